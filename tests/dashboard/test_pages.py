"""The pages and their actions, behind both doors."""

from __future__ import annotations

import asyncio
import re
import socket
from collections.abc import Callable, Iterator
from contextlib import closing
from time import monotonic
from typing import Any
from urllib.parse import urlencode

import pytest

from sluicegate import Limiter, Rule
from sluicegate.dashboard import Dashboard
from sluicegate.dashboard.counts import _terms_tables
from sluicegate.dashboard.doors import MOST
from sluicegate.errors import AsyncMismatchError, ConfigurationError, SettingsError
from sluicegate.identity import digest, identity_text
from sluicegate.overrides.override import MOST as MOST_OVERRIDES
from sluicegate.overrides.override import Document, Entry, Override
from sluicegate.plan import Check, Plan
from sluicegate.rules.ban import Ban
from sluicegate.stores import Counted
from sluicegate.stores.memory import MemoryStore
from sluicegate.web.endpoint import Endpoint
from sluicegate.web.gate import Gate
from sluicegate.web.settings import Settings
from tests.dashboard.applications import HOST, SAME, Reply, Visitor
from tests.servers import ask
from tests.test_gate import Visitor as Client

PLACE = Endpoint("view")
ALICE = digest(identity_text(("user", "alice")))
RULES = [Rule(name="login", quota="2/minute", key="user", ban=Ban(name="strikes", after=3, within=60, duration=600))]
FORWARDED = ("X-Forwarded-For", "Forwarded", "Via", "X-Forwarded-Host", "X-Forwarded-Proto", "CF-Connecting-IP")
Make = Callable[..., "Application"]


class Application:
    """An application with a dashboard, and a visitor of the dashboard."""

    def __init__(self, store: str, protocol: str, *, follows: bool = True, **options: Any) -> None:
        given = {"authorize": lambda request: request["visitor"], "writable": True, **options}
        self.dashboard = Dashboard(store, **given)
        note = self.dashboard.note
        settings = Settings(store=store, rules=RULES, on_decision=note, deny_cache=0, deadline=2, overrides=follows)
        self.gate = Gate(settings)
        self.visitor = Visitor(self.dashboard, protocol)

    def ask(self, user: str = "alice", times: int = 1) -> list[bool]:
        found = [self.gate.decide(Client(user=user), self.gate.bind(PLACE)) for _ in range(times)]
        self.dashboard.note.send()  # as its timer does, within a second
        return [decision is not None and decision.allowed for decision in found]

    def close(self) -> None:
        self.gate.close()
        self.dashboard.close()


@pytest.fixture(params=["asgi", "wsgi"])
def protocol(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(params=["memory", "valkey"])
def make(request: pytest.FixtureRequest, protocol: str) -> Iterator[Make]:
    made: list[Application] = []

    def build(**options: Any) -> Application:
        url = "memory://"
        if request.param == "valkey":
            server = request.getfixturevalue("valkey")
            ask(server, "FLUSHALL")
            url = server.url
        made.append(Application(url, protocol, **options))
        return made[-1]

    yield build
    for each in made:
        each.close()


@pytest.fixture
def made(protocol: str) -> Iterator[Application]:
    """One in memory."""
    found = Application("memory://", protocol)
    yield found
    found.close()


READS = ("/", "/bans", "/identity", f"/identity?who={ALICE}", "/events")
ACTS = ("/identity", "/reset", "/override", "/remove", "/undo")
FORM = {"identity": "user:alice", "rule": "login", "action": "off", "who": ALICE}


@pytest.mark.parametrize("path", READS)
def test_what_is_read(made: Application, path: str) -> None:
    assert made.visitor.get(path).status == 200
    made.visitor.user = None
    refused = made.visitor.get(path)
    assert refused.status == 403
    assert "set-cookie" not in refused.headers
    assert ALICE not in refused.body


@pytest.mark.parametrize("path", ACTS)
def test_what_is_done(made: Application, path: str) -> None:
    made.dashboard._overrides.set("login", action="off", until="1h")
    form = {**FORM, "id": made.dashboard._overrides.list()[0].id}
    before = made.dashboard._overrides.list()
    good = made.visitor.send(path, form)
    assert (good.status, good.body) == (303, "")
    if path in ("/override", "/remove", "/undo"):
        assert made.dashboard._overrides.list() != before


@pytest.mark.parametrize("path", ACTS)
def test_nothing_is_done_without_a_session_or_by_a_forged_form(made: Application, path: str) -> None:
    made.dashboard._overrides.set("login", action="off", until="1h")
    before = made.dashboard._overrides.history()
    form = {**FORM, "id": made.dashboard._overrides.list()[0].id}
    forged: list[dict[str, str]] = [
        {},  # every browser says where a form comes from
        {**SAME, "Sec-Fetch-Site": "cross-site"},
        {**SAME, "Sec-Fetch-Site": "same-site"},
        {**SAME, "Sec-Fetch-Site": "none"},
        {"Origin": "https://evil.example"},
        {"Origin": f"https://{HOST}.evil.example"},
        {"Origin": f"https://evil.example/{HOST}"},
        {"Origin": f"https://{HOST}:444"},
        {"Origin": "null"},
        {"Origin": "null", "Host": ""},
        {"Origin": "https://["},
    ]
    assert [made.visitor.post(path, form, headers=headers).status for headers in forged] == [403] * len(forged)
    made.visitor.user = None
    assert made.visitor.post(path, form, headers=SAME).status == 403
    assert made.dashboard._overrides.history() == before


@pytest.mark.parametrize("path", ACTS)
def test_read_only(protocol: str, path: str) -> None:
    made = Application("memory://", protocol, writable=False)
    answer = made.visitor.send(path, FORM)
    assert answer.status == (303 if path == "/identity" else 403)  # to look is no change
    assert 'action="override"' not in made.visitor.get().body
    assert made.dashboard._overrides.history() == []
    made.close()


def test_an_old_browser_says_only_the_origin(made: Application) -> None:
    headers = {"Origin": f"http://{HOST}"}
    assert made.visitor.post("/override", {**FORM, "identity": ""}, headers=headers).status == 303


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "", 303),
        ("HEAD", "/", 200),
        ("PUT", "/", 404),
        ("DELETE", "/override", 404),
        ("GET", "/override", 404),
        ("GET", "/nowhere", 404),
        ("GET", "/../etc/passwd", 404),
        ("GET", "/base.html", 404),
        ("GET", "/bans?from=1-99999999999999999999", 200),
        ("GET", "/bans?from=evil.example:6379-0", 200),
        ("GET", "/identity?who=%3Cscript%3E", 400),
        ("GET", "/identity?who=alice", 400),
    ],
)
def test_other_requests(made: Application, method: str, path: str, status: int) -> None:
    answer = made.visitor.get(path, method)
    assert answer.status == status
    assert "<script>" not in answer.body
    if not path:
        assert answer.headers["location"] == "/limits/"


def test_only_a_digest_reaches_a_command(make: Make) -> None:
    """A key has its bytes as they are, so another text could be a command of its own."""
    made = make()
    made.ask()
    for who in ("abc", "a" * 23, "a" * 21 + "é", f"{ALICE}\r\n*1\r\n$8\r\nFLUSHALL"):
        assert made.visitor.get(f"/identity?{urlencode({'who': who})}").status == 400
        assert made.visitor.send("/reset", {"who": who}).status == 400
    assert made.ask(times=2) == [True, False], "nothing was reset"


def test_a_place_to_go_on_that_no_server_has_given(make: Make) -> None:
    made = make()
    made.ask()
    for place in (f"1-{2**64 - 1}", f"1-{2**64}", "1-99999999999999999999"):
        assert made.visitor.get(f"/bans?from={place}").status == 200


@pytest.mark.parametrize(
    ("mount", "to"),
    [("/é", "/%C3%A9/"), ("/a b", "/a%20b/"), ("//evil.example", "/evil.example/"), ("/limits/", "/limits/")],
)
def test_the_redirect_to_the_page_stays_in_the_application(made: Application, mount: str, to: str) -> None:
    made.visitor.mount = mount
    assert made.visitor.get("").headers["location"] == to


@pytest.mark.parametrize(
    ("length", "more", "status"),
    [
        *[(length, {}, 403) for length in ("abc", "-5", "1_0", "+0", "9" * 5000)],
        ("", {"HTTP_TRANSFER_ENCODING": "chunked"}, 403),
        *[(length, {}, 303) for length in ("", "0")],
    ],
)
def test_the_length_of_a_form(length: str, more: dict[str, str], status: int) -> None:
    made = Application("memory://", "wsgi")
    made.dashboard._overrides.set("login", action="off")
    made.visitor.environ = {"CONTENT_LENGTH": length, **more}
    assert made.visitor.send("/undo", {}).status == status
    made.close()


@pytest.mark.parametrize("option", ["ipv6_prefix", "ipv4_prefix"])
def test_an_address_is_counted_as_in_the_application(protocol: str, option: str) -> None:
    typed, bits, counts = {
        "ipv6_prefix": ("ip:2001:db8:1:2::5", 48, "2001:db8:1::/48"),
        "ipv4_prefix": ("ip:203.0.113.7", 24, "203.0.113.0/24"),
    }[option]
    given: Any = {option: bits}
    made, who = Application("memory://", protocol, **given), digest(identity_text(("ip", counts)))
    assert made.visitor.send("/identity", {"identity": typed}).headers["location"] == f"identity?who={who}"
    made.visitor.send("/override", {"rule": "login", "action": "off", "identity": typed})
    assert made.dashboard._overrides.list()[0].digests == (who,)
    made.close()
    with pytest.raises(SettingsError, match=option):
        Application("memory://", protocol, **{**given, option: 0})


def test_a_server_of_the_page_alone_starts_and_stops() -> None:
    sent, came = list[Any](), [{"type": "lifespan.startup"}, {"type": "lifespan.shutdown"}]

    async def receive() -> Any:
        return came.pop(0)

    async def send(message: Any) -> None:
        sent.append(message["type"])

    asyncio.run(Dashboard(insecure=True).asgi({"type": "lifespan"}, receive, send))  # type: ignore[arg-type]
    assert sent == ["lifespan.startup.complete", "lifespan.shutdown.complete"]


def test_forms_are_bounded(made: Application) -> None:
    answer = made.visitor.send("/override", {"rule": "login", "action": "off", "until": "1h", "why": "x" * MOST})
    assert answer.status == 403
    assert made.dashboard._overrides.list() == ()
    assert made.visitor.send("/nowhere", {}).status == 404


def test_a_form_that_is_cut_off_does_nothing(made: Application) -> None:
    form = {"rule": "login", "action": "off", "identity": "user:1234"}
    assert made.visitor.send("/override", form, lost=2).status == 403
    assert made.dashboard._overrides.list() == ()


def test_every_answer_forbids_what_it_does_not_need(made: Application) -> None:
    for path in (*READS, "/nowhere", ""):
        headers = made.visitor.get(path).headers
        policy = headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert "frame-ancestors 'none'" in policy
        assert headers["cache-control"] == "no-store"
    first, second = [
        re.findall("nonce-([^']+)'", made.visitor.get().headers["content-security-policy"])[0] for _ in "ab"
    ]
    assert first != second
    assert made.visitor.get().body.count("<script nonce=") == 1


def test_it_shows_what_was_decided(make: Make) -> None:
    made = make()
    made.ask(times=5)
    page = made.visitor.get().body
    assert ">login</th>" in page
    assert '<td class="n refusals">3</td>' in page
    assert f'href="identity?who={ALICE}">{ALICE}</a>' in page
    assert "alice" not in page
    assert made.visitor.get("/events").body.startswith("retry: 5000\ndata: <section")


def test_one_identity_is_looked_up_reset_and_unbanned(make: Make) -> None:
    made = make()
    made.ask(times=6)
    assert made.ask() == [False]
    answer = made.visitor.send("/identity", {"identity": "user:alice"})
    assert answer.headers["location"] == f"identity?who={ALICE}"
    page = made.visitor.get(f"/identity?who={ALICE}").body
    assert '<th scope="row">login</th><td>2 in 1 min</td>' in page
    assert "refused for" in page
    assert "alice" not in page
    bans = made.visitor.get("/bans").body
    assert f'aria-label="Unban {ALICE}"' in bans
    assert made.visitor.send("/reset", {"who": ALICE, "rule": "strikes:ban"}).status == 303
    assert "Nobody is banned." in made.visitor.get("/bans").body
    assert made.ask() == [False]  # the budget of its rule is still used up
    assert made.visitor.send("/reset", {"who": ALICE}).status == 303
    assert made.ask(times=3) == [True, True, False]


def test_a_budget_in_shadow_is_marked(make: Make) -> None:
    made = make()
    made.dashboard._overrides.set("login", action="shadow")
    made.ask()
    assert '<th scope="row">login (shadow)</th>' in made.visitor.get(f"/identity?who={ALICE}").body


def test_an_override_is_set_and_removed(make: Make) -> None:
    made = make()
    made.ask(times=3)
    form = {"rule": "login", "action": "quota", "quota": "5/minute", "identity": "user:alice", "until": "2h"}
    answer = made.visitor.send("/override", {**form, "why": "<b>import</b>", "pattern": "", "tier": " "})
    assert answer.headers["location"] == "./?done=1"
    (held,) = made.dashboard._overrides.list()
    assert (held.rule, held.quota, held.digests, held.by, held.why) == (
        *("login", "5/minute", (ALICE,)),
        *("staff", "<b>import</b>"),
    )
    page = made.visitor.get("/?done=1").body
    assert "&lt;b&gt;import&lt;/b&gt;" in page
    assert "alice" not in page
    made.visitor.send("/remove", {"id": held.id})
    assert made.dashboard._overrides.list() == ()
    made.visitor.send("/undo", {})
    assert made.dashboard._overrides.list() == (held,)


@pytest.mark.parametrize(
    ("rule", "is_known"), [("login", True), ("strikes", False), ("*", True), ("logi", False), ("login-", False)]
)
@pytest.mark.parametrize("follows", [True, False])
def test_a_change_that_may_hold_for_nothing_is_said(make: Make, rule: str, is_known: bool, follows: bool) -> None:
    made = make(follows=follows)
    made.ask()
    answer = made.visitor.send("/override", {"rule": rule, "action": "shadow"})
    page = made.visitor.get(answer.headers["location"][1:]).body
    assert ("No rule of this name has decided lately" in page) is not is_known
    assert ("All processes follow" in page, "No process follows" in page) == (follows, not follows)


@pytest.mark.parametrize(
    ("form", "says"),
    [
        ({"action": "quota", "rule": "login", "quota": "many"}, "SG001"),
        ({"action": "quota", "rule": "login"}, "SG015"),
        ({"action": "boom", "rule": "login"}, "SG015"),
        ({"action": "off"}, "SG015"),  # a rule is typed, also "*"
        ({"action": "deny", "rule": "*"}, "SG015"),  # the page itself would be refused
        ({"action": "off", "rule": "login", "until": "soon"}, "SG015"),
        ({"action": "off", "rule": "login", "until": "1"}, "SG015"),  # it may be meant as hours
        ({"action": "off", "rule": "login", "identity": "alice@example.com"}, "SG006"),
        ({"action": "off", "rule": "login", "identity": "int:alice@example.com"}, "SG006"),
        ({"action": "off", "rule": "login", "identity": "user:alice", "tier": "free"}, "SG015"),
    ],
)
def test_what_is_wrong_is_said_without_the_identity(made: Application, form: dict[str, str], says: str) -> None:
    answer = made.visitor.send("/override", form)
    assert answer.status == 400
    assert f"[{says}]" in answer.body
    assert "alice" not in answer.body


def test_text_from_outside_is_escaped(made: Application) -> None:
    limiter = Limiter(made.gate.limiter.opened, on_decision=made.dashboard.note)
    evil = "<script>alert(1)</script>\n\ud800"
    for _ in range(3):
        limiter.hit("1/minute", evil, action=evil)
    made.dashboard.note.send()
    page = made.visitor.get().body
    assert "<script>alert" not in page
    assert "&lt;script&gt;alert(1)" in page
    made.visitor.send("/override", {"rule": evil[:20], "action": "off"})
    assert "<script>alert" not in made.visitor.get().body


def test_identities_are_shown_if_asked_for(protocol: str) -> None:
    made = Application("memory://", protocol, show_identities=True)
    made.ask(times=3)
    assert "t5:suser6:salice" in made.visitor.get().body
    made.close()


def test_a_store_that_is_away(protocol: str) -> None:
    dashboard = Dashboard("redis://127.0.0.1:1", authorize=lambda request: True)
    visitor = Visitor(dashboard, protocol)
    answers = [visitor.get(path) for path in ("/", "/bans")]
    assert [answer.status for answer in answers] == [503, 503]
    event = visitor.get("/events")
    assert event.status == 200
    assert "unavailable" in event.body
    dashboard.close()


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({}, SettingsError),
        ({"authorize": True}, SettingsError),
        ({"authorize": len, "insecure": True}, SettingsError),
        ({"insecure": "yes"}, SettingsError),
        ({"insecure": True, "writable": 1}, SettingsError),
        ({"insecure": True, "store": "redis+cell://127.0.0.1:1"}, SettingsError),
        ({"insecure": True, "store": "oops"}, ConfigurationError),
    ],
)
def test_it_refuses_to_be_made(options: dict[str, Any], error: type[Exception]) -> None:
    with pytest.raises(error) as raised:
        Dashboard(**options)
    assert "SG00" in str(raised.value)


@pytest.mark.parametrize(
    ("peer", "host", "more", "status"),
    [
        ("127.0.0.1", "127.0.0.1:8000", {}, 200),
        ("127.0.0.1", "localhost", {}, 200),
        ("::1", "[::1]:8000", {}, 200),
        ("203.0.113.7", "localhost", {}, 403),
        ("127.0.0.1", "evil.example", {}, 403),  # its name leads here
        *[("127.0.0.1", "localhost", {name: "a"}, 403) for name in FORWARDED],  # a proxy on this machine
        ("", "localhost", {}, 403),
    ],
)
def test_insecure_is_for_this_machine(protocol: str, peer: str, host: str, more: dict[str, str], status: int) -> None:
    dashboard = Dashboard(insecure=True)
    assert Visitor(dashboard, protocol, peer=peer, host=host).get(headers=more).status == status


def test_authorize_may_be_async_where_it_can_be(protocol: str) -> None:
    async def is_staff(request: Any) -> bool:
        await asyncio.sleep(0)
        return request["visitor"] == "staff"

    visitor = Visitor(Dashboard(authorize=is_staff), protocol)
    if protocol == "wsgi":
        with pytest.raises(AsyncMismatchError):
            visitor.get()
        return
    assert visitor.get().status == 200
    visitor.user = "guest"
    assert visitor.get().status == 403


NULL = '[{"rule":"login","action":"off","digests":null}]'


@pytest.mark.parametrize("text", ["oops", f"sluicegate 1 1 {digest(NULL)}\n{NULL}"])
def test_overrides_that_cannot_be_read_are_removed_by_a_click(make: Make, text: str) -> None:
    made = make()
    store: Any = made.dashboard._store
    if isinstance(store, MemoryStore):
        store._overrides = text.encode()
    else:
        store.send(store.servers()[0], ["SET", "sg:{overrides}:document", text])
    page = made.visitor.get()
    assert page.status == 200
    assert "[SG015]" in page.body
    assert made.visitor.send("/remove", {"id": "*"}).status == 303
    assert "The rules hold as they are written." in made.visitor.get().body


def test_authorize_may_change_what_it_gets(protocol: str) -> None:
    def spoils(request: Any) -> bool:
        request.update({"PATH_INFO": "/bans", "path": "/limits/bans"})
        return True

    visitor = Visitor(Dashboard(authorize=spoils), protocol)
    assert visitor.get("").headers["location"] == "/limits/"


def test_memory_is_that_of_the_application() -> None:
    memory = MemoryStore()
    dashboard = Dashboard(authorize=len)
    own = dashboard._store
    limiter = Limiter(memory, on_decision=dashboard.note)
    assert dashboard._store is memory is not own
    limiter.close()


LONG = "<i>" + "x" * 100_000


def sized(reply: Reply) -> int:
    """The size of a page, which is no error."""
    assert reply.status == 200, reply.body
    assert "<i>" not in reply.body
    return len(reply.body)


@pytest.mark.slow
def test_pages_stay_small_with_ten_thousand_overrides(make: Make) -> None:
    made = make(writable=True)
    store: Any = made.dashboard._store
    held = [
        Override(rule="*", action="off", digests=(digest(f"{each}"),), why=f"reason {each}", id=f"{each}")
        for each in range(MOST_OVERRIDES - 1)
    ]
    held.append(Override(rule="login", action="off", pattern=f"user:{LONG}*", why="newest", id="newest"))
    store.write_overrides(b"", Document(1, tuple(held)).text(), Entry(1, "staff", "boom", added=tuple(held)).text())
    assert sized(made.visitor.get()) < 150_000
    page = made.visitor.get().body
    assert page.count("Remove the override of") == 100
    assert "newest" in page
    assert "9,900 more are left out." in page
    assert "9,995 more" in page  # of the change in the history


@pytest.mark.slow
def test_pages_stay_small_with_ten_thousand_bans(make: Make) -> None:
    made = make()
    made.ask(times=5)
    store: Any = made.gate.limiter.opened
    terms = RULES[0].ban
    assert terms is not None
    for each in range(10_000):
        store.run(Plan((Check(terms.terms, f"s{each}", terms.after),), forced=True))
    seen, path = set[str](), "/bans"
    while path and len(seen) < 1_000:
        page = made.visitor.get(path)
        assert sized(page) < 400_000
        seen.update(re.findall('Unban ([^"]+)', page.body))
        following = re.search('href="(bans.from=[^"]+)"', page.body)
        path = f"/{following[1]}" if following else ""
    assert len(seen) >= 100
    assert path or "9,9" in page.body  # one can go on, or the page says how many are left out


def test_pages_stay_small_with_names_that_clients_invent(made: Application) -> None:
    with Limiter(made.gate.limiter.opened, on_decision=made.dashboard.note) as limiter:
        for each in range(200):
            limiter.hit("1/minute", "alice", action=f"{each}{LONG}")
        made.dashboard.note.send()
    assert sized(made.visitor.get()) < 200_000
    assert "more rules, with fewer refusals, are left out" in made.visitor.get("/events").body


@pytest.mark.parametrize("path", ["/", "/bans", f"/identity?who={ALICE}"])
def test_terms_of_another_program_do_not_break_a_page(made: Application, path: str) -> None:
    store: Any = made.dashboard._opened
    texts = ['[7,"b","gcra",1000000,1]', f'["a","b","gcra",1{"0" * 400},1]', '[["a"],"b","gcra",1000000,1]']
    store.add_counts([Counted(_terms_tables()[0], 60, dict.fromkeys(texts, 1))])
    made.ask()
    assert made.visitor.get(path).status == 200


def test_a_history_that_cannot_be_read_leaves_the_overrides(make: Make) -> None:
    made = make()
    made.dashboard._overrides.set("login", action="off", why="still here")
    store: Any = made.dashboard._store
    before = store.read_overrides(b"")
    store.write_overrides(before, before, "oops")
    page = made.visitor.get()
    assert page.status == 200
    assert "[SG015]" in page.body
    assert "still here" in page.body
    assert "Remove all overrides" not in page.body


def test_a_line_break_in_an_event_stays_inside_of_it(made: Application) -> None:
    with Limiter(made.gate.limiter.opened, on_decision=made.dashboard.note) as limiter:
        limiter.hit("1/minute", "alice", action="a\r\revent: forged\u2028b")
        made.dashboard.note.send()
    lines = re.split("\r\n|\r|\n", made.visitor.get("/events").body)  # as a browser does
    assert lines[0] == "retry: 5000"
    assert {line.partition(":")[0] for line in lines[1:]} == {"data", ""}
    assert lines[-2:] == ["", ""]


def test_a_page_says_that_the_store_is_away_and_asks_it_once(protocol: str) -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as silent:  # it accepts, and says nothing
        dashboard = Dashboard(f"redis://127.0.0.1:{silent.getsockname()[1]}", authorize=lambda request: True)
        began = monotonic()
        page = Visitor(dashboard, protocol).get()
        assert monotonic() - began < 2.5  # one deadline, and the time of a busy machine
        assert page.status == 503
        assert "unavailable" in page.body
        assert "The store does not answer" in page.body
        assert "new EventSource" in page.body  # so the page comes back by itself
        dashboard.close()


def test_a_stream_of_events_ends(made: Application) -> None:
    """A server that stops waits for no page."""
    began = monotonic()
    assert made.visitor.get("/events").body.endswith("\n\n")
    assert monotonic() - began < 5
    assert made.visitor.get("/events", "HEAD").status == 200


@pytest.mark.parametrize("host", ["", "localhost:", "[::1", "[", "127.0.0.1.evil.example", "localhost.", "127.0.0.1,x"])
def test_a_strange_host_is_no_error(protocol: str, host: str) -> None:
    status = Visitor(Dashboard(insecure=True), protocol, peer="127.0.0.1", host=host).get().status
    assert status == (200 if host == "localhost:" else 403)


@pytest.mark.parametrize("length", ["x", "-1", "1" * 5000])
def test_a_strange_length_of_a_form_is_no_error(length: str) -> None:
    visitor = Visitor(Dashboard(insecure=True), "wsgi", peer="127.0.0.1", host="localhost")
    visitor.environ = {"CONTENT_LENGTH": length}
    assert visitor.send("/identity", {"identity": "user:alice"}).status == 403
