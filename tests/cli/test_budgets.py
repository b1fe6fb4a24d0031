"""`show`, `reset`, `ban`, `unban`, `bans` and `top`, on real servers, over applications of every framework."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from textwrap import dedent
from typing import Any
from uuid import uuid4

import pytest
import redis
from click.testing import CliRunner, Result
from flask.testing import FlaskClient
from starlette.testclient import TestClient

from docs.pages import DOCS
from sluicegate import Limiter
from sluicegate.cli import top as top_module
from sluicegate.cli.application import load
from sluicegate.cli.budgets import Budgets
from sluicegate.cli.commands import sluicegate
from sluicegate.identity import digest, identity_text
from sluicegate.limiter import Limit
from sluicegate.stores.redis import RedisStore
from tests.cluster import Cluster
from tests.servers import Server, valkey_server

RULES = """
    from sluicegate import Ban
    STRIKES = Ban(after=3, within="10 minutes", duration="1 hour", name="strikes")
    OPTIONS = dict(
        store=STORE, prefix=PREFIX, key="header:X-Key", deny_cache=0, default_limits=["1000/day"], secret="s" * 16,
        deadline=5,
        rules=[dict(name="login", quota="2/minute", path="/login", ban=STRIKES)],
    )
"""
APPLICATIONS = {
    "starlette": """
        from starlette.applications import Starlette
        from starlette.responses import PlainTextResponse
        from starlette.routing import Route
        from sluicegate.starlette import RateLimitMiddleware

        async def login(request):
            return PlainTextResponse("in")

        app = Starlette(routes=[Route("/login", login, methods=["POST"])])
        app.add_middleware(RateLimitMiddleware, **OPTIONS)
    """,
    "flask": """
        from flask import Flask
        from sluicegate.flask import RateLimiter

        app = Flask("shop")
        RateLimiter(app, **OPTIONS)

        @app.post("/login")
        def login():
            return "in"
    """,
    "django": """
        import django
        from django.conf import settings
        from django.http import HttpResponse
        from django.urls import path

        settings.configure(
            ALLOWED_HOSTS=["*"], ROOT_URLCONF=__name__, SECRET_KEY="x", SLUICEGATE=OPTIONS,
            INSTALLED_APPS=["sluicegate.django"], MIDDLEWARE=["sluicegate.django.RateLimitMiddleware"],
        )
        django.setup()

        def login(request):
            return HttpResponse("in")

        urlpatterns = [path("login", login)]

        from django.core.handlers.wsgi import WSGIHandler

        app = WSGIHandler()
    """,
}
DJANGO = """
    import sys
    sys.path.insert(0, {folder!r})
    from {module} import app
    from django.test import Client
    print([Client().post("/login", headers={{"X-Key": "abc"}}).status_code for _ in range({requests})])
"""
WHO = "header:X-Key=abc"


class Shop:
    """An application in a module of its own, and the commands for it."""

    def __init__(self, framework: str, server: Server, folder: Path) -> None:
        self.framework, self.folder = framework, folder
        self.module = f"shop_{uuid4().hex}"
        start = f"STORE, PREFIX = {server.url!r}, {self.module!r}\n"
        self.path = folder / f"{self.module}.py"
        self.path.write_text(start + dedent(RULES) + dedent(APPLICATIONS[framework]), "utf-8")

    def log_in(self, times: int) -> list[int]:
        """Send requests as a client does, and return their statuses."""
        if self.framework == "django":  # its settings are those of a process
            program = dedent(DJANGO).format(folder=str(self.folder), module=self.module, requests=times)
            found: list[int] = json.loads(self.process([sys.executable, "-c", program]))
            return found
        app: Any = __import__(self.module).app
        client: Any = FlaskClient(app) if self.framework == "flask" else TestClient(app)
        return [client.post("/login", headers={"X-Key": "abc"}).status_code for _ in range(times)]

    def run(self, *words: str, status: int = 0, typed: str = "") -> str:
        """Run a command, and return what it prints. Django's runs in a process of its own."""
        if self.framework == "django":
            command = [sys.executable, "-m", "sluicegate", *words]
            return self.process(command, status=status, typed=typed)
        done: Result = CliRunner().invoke(sluicegate, words, env={"SLUICEGATE_APP": self.module}, input=typed)
        assert done.exit_code == status, done.output
        return done.stdout if "--json" in words else done.output

    def process(self, command: list[str], *, status: int = 0, typed: str = "") -> str:
        env = {"SLUICEGATE_APP": self.module, "PATH": "", "COLUMNS": "100", "PYTHONIOENCODING": "utf-8"}
        done = subprocess.run(
            command, cwd=self.folder, env=env, input=typed, capture_output=True, text=True, timeout=60, check=False
        )
        assert done.returncode == status, done.stderr
        return done.stdout + done.stderr


MakeShop = Callable[[str], Shop]


@pytest.fixture
def make_shop(valkey: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[MakeShop]:
    monkeypatch.syspath_prepend(str(tmp_path))
    yield lambda framework: Shop(framework, valkey, tmp_path)
    valkey.flush()


@pytest.mark.parametrize("framework", APPLICATIONS)
def test_a_customer_is_blocked_shown_and_let_in_again(framework: str, make_shop: MakeShop) -> None:
    shop = make_shop(framework)
    assert shop.log_in(6) == [200, 200, 429, 429, 429, 429]
    (limiter,) = json.loads(shop.run("show", WHO, "--json"))["limiters"]
    found = {row["rule"]: (row["used"], row["state"]) for row in limiter["budgets"]}
    assert found == {"default": (2, "passes"), "login": (2, "refused"), "ban strikes": (3, "banned")}
    who = json.loads(shop.run("bans", "--json"))["bans"][0]["identity"]
    assert who not in (digest(identity_text(("header:x-key", "abc"))), "abc")  # sealed with the secret
    shown = shop.run("show", WHO)
    assert "banned for" in shown
    assert who in shown
    for typed in ("n\n", ""):
        assert "With --yes the command does not ask" in shop.run("reset", WHO, status=1, typed=typed)
    assert json.loads(shop.run("reset", "--digest", who, "--yes", "--json"))["identity"] == who
    assert "Nothing is used under this identity" in shop.run("show", WHO)
    assert shop.log_in(1) == [200]


def test_a_rule_is_reset_alone(make_shop: MakeShop) -> None:
    shop = make_shop("flask")
    shop.log_in(3)
    shop.run("reset", WHO, "--rule", "login", "--yes")
    (limiter,) = json.loads(shop.run("show", WHO, "--json", "--quick"))["limiters"]
    assert {row["rule"] for row in limiter["budgets"]} == {"default", "ban strikes"}
    for words in (("reset", WHO, "--rule"), ("top", "--rule")):
        assert "the rules are default, login, strikes" in shop.run(*words, "logni", status=2)


@pytest.mark.parametrize(("rule", "count"), [("", 4), ("login", 1), ("search", 2), ("strikes", 0)])
def test_reset_says_what_it_has_forgotten(rule: str, count: int, make_shop: MakeShop, valkey: Server) -> None:
    """Under a rule in shadow too, whose budgets are other ones."""
    shop = make_shop("flask")
    shadow = 'dict(name="search", quota="3/minute; 9/day", path="/login", mode="shadow"), dict(name="login"'
    shop.path.write_text(shop.path.read_text("utf-8").replace('dict(name="login"', shadow), "utf-8")
    words = ["reset", WHO, *(["--rule", rule] if rule else []), "--yes"]
    assert json.loads(shop.run(*words, "--json"))["forgotten"] == []
    assert "Nothing was used" in shop.run(*words)
    limiter: Any = load(shop.module).limiters[0].gate.limiter
    text = limiter.text(("header:x-key", "abc"))
    with closing(RedisStore.from_url(valkey.url, prefix=shop.module)) as store:
        shop.log_in(1)
        before = store.rule_ids(text)
        forgotten = json.loads(shop.run(*words, "--json"))["forgotten"]
        assert len(forgotten) == count
        assert set(forgotten) == before - store.rule_ids(text)
    shop.log_in(1)
    assert shop.run(*words).startswith("Nothing" if not count else f"Forgot {count} budget{'s' * (count > 1)}.")


@pytest.mark.parametrize(
    ("words", "warned"), [("user:alice", True), ("header:X-Kye=abc", True), ("ip:203.0.113.7", False), (WHO, False)]
)
def test_an_identity_that_no_key_gives(words: str, warned: bool, make_shop: MakeShop) -> None:
    """Every key falls back to the address."""
    shop = make_shop("flask")
    problem = "counts by such an identity as"
    for command in ("show", "reset --yes", "reset --rule login --yes", "unban --yes", "ban --yes"):
        is_error = warned and command.startswith("ban")
        output = " ".join(shop.run(*command.split(), words, status=2 if is_error else 0).split())
        assert (problem in output) is warned, command
        assert ("the keys are header:X-Key" in output) is warned
    assert ("Nobody is banned." in shop.run("bans")) is warned


@pytest.mark.parametrize("name", [(WHO,), ("--digest",)])
def test_bans_by_hand(name: tuple[str, ...], make_shop: MakeShop) -> None:
    shop = make_shop("starlette")
    who = json.loads(shop.run("show", WHO, "--json"))["identity"]
    name = (*name, who) if name == ("--digest",) else name
    assert "Nobody is banned." in shop.run("bans")
    assert f"Banned {who} by strikes for 2 h." in shop.run("ban", *name, "--for", "2 hours", "--yes")
    assert shop.log_in(1) == [429]
    assert who in shop.run("bans")
    assert json.loads(shop.run("unban", *name, "--ban", "login", "--yes", "--json"))["was_banned"] is True
    assert "reset gives them back" in shop.run("unban", *name, "--yes")
    assert shop.log_in(1) == [200]
    assert "the bans are strikes" in shop.run("ban", *name, "--ban", "nope", status=2)
    assert "'2': no unit; write 2h for hours" in shop.run("ban", *name, "--for", "2", "--yes", status=2)
    assert "Nobody is banned." in shop.run("bans")


def test_identities_of_every_kind(make_shop: MakeShop) -> None:
    shop = make_shop("flask")
    (limiting,) = load(shop.module).limiters
    limiter: Any = limiting.gate.limiter
    for words, identity in {
        ("user:alice",): ("user", "alice"),
        ("ip:2001:db8::7",): ("ip", "2001:db8::/64"),
        ("ip:203.0.113.7",): ("ip", "203.0.113.7"),
        ("ip:203.0.113.7/32",): ("ip", "203.0.113.7"),
        ("ip:2001:db8::/64",): ("ip", "2001:db8::/64"),
        ("path:room=a:b=c",): ("path:room", "a:b=c"),
        ("user:alice", "ip:2001:db8::7"): (("user", "alice"), ("ip", "2001:db8::/64")),
        ("text:user:alice",): "user:alice",
        ("int:42",): 42,
        ("text:org int:5", "ip:2001:db8::7"): (("org", 5), ("ip", "2001:db8::/64")),
        ("text:org int:5",): ("org", 5),
        ("text:two words",): "two words",
        ("bytes:ff00",): b"\xff\x00",
    }.items():
        assert json.loads(shop.run("show", *words, "--json"))["identity"] == digest(limiter.text(identity)), words


@pytest.mark.parametrize(
    "words",
    [
        (),
        ("alice",),
        ("int:x",),
        ("ip:999.1.1.1",),
        ("ip:203.0.113.0/24",),
        ("user:alice", "ip:2001:db8::/48"),
        ("user:alice", "ip:shop.example"),
        ("header:X-Key",),
        ("user:alice", "--digest", "7Gb0o9Qe_P1kzJrX2YvWmA"),
        ("--digest", "short"),
        ("--digest", "*" * 22),
    ],
)
def test_what_is_not_an_identity(words: tuple[str, ...], make_shop: MakeShop) -> None:
    make_shop("flask").run("show", *words, status=2)


def test_budgets_that_no_rule_has_are_shown_by_their_ids(make_shop: MakeShop, valkey: Server) -> None:
    shop = make_shop("flask")
    with Limiter(valkey.url, prefix=shop.module, secret="s" * 16) as limiter:
        limiter.hit("7/minute", ("header:x-key", "abc"), action="\x1b[31mold[/b]")
    shown = shop.run("show", WHO)
    assert "\x1b" not in shown
    (limiter_row,) = json.loads(shop.run("show", WHO, "--json"))["limiters"]
    assert [rule_id.rpartition(":")[2] for rule_id in limiter_row["unknown"]] == ["sw60"]
    shown = " ".join(shop.run("top").split())
    assert "1 budget of unknown quota" in shown
    assert "No rule of the application has this id: it is of an old quota" in shown
    assert "unknown" not in shop.run("top", "--rule", "login")


STEERED: dict[str, tuple[tuple[str, ...], str, dict[str, Any]]] = {  # a command, and what `top` shows of a rule
    "everybody": (("override", "login", "3/minute"), "login (override)", {"limit": 3, "state": "passes"}),
    "the client": (
        ("override", "login", "9/minute", "--identity", WHO),
        "login (override)",
        {"limit": 9, "state": "passes"},
    ),
}


@pytest.mark.parametrize("case", STEERED)
def test_top_knows_the_overrides_as_show_does(case: str, make_shop: MakeShop) -> None:
    words, rule, expected = STEERED[case]
    shop = make_shop("flask")
    shop.log_in(3)
    shop.run(*words, "--yes")
    (top,) = json.loads(shop.run("top", "--rule", "login", "--json"))["top"]
    (limiter,) = json.loads(shop.run("show", WHO, "--json"))["limiters"]
    (show,) = [row for row in limiter["budgets"] if row["rule"] == rule]
    assert {name: top[name] for name in ("rule", *expected)} == {"rule": rule, **expected}
    assert {name: show[name] for name in expected} == expected


CHARGES = """
from flask import request
from sluicegate.flask import charge

@app.post("/order")
def order():
    charge(request, "7/minute")
    charge(request, "9/hour", scope="orders")
    return "done"
"""


COMPUTED = """
from sluicegate.flask import limit

@app.get("/search")
@limit(lambda request: "7/minute", key="header:X-Key", scope="search")
def search():
    return "found"

@app.get("/find")
@limit(lambda request: "9/hour", key="header:X-Key")
def find():
    return "found"
"""


def test_a_quota_that_is_a_function_is_named_by_its_rule(make_shop: MakeShop) -> None:
    shop = make_shop("flask")
    shop.path.write_text(f"{shop.path.read_text('utf-8')}{COMPUTED}", "utf-8")
    client: Any = FlaskClient(__import__(shop.module).app)
    ids = {"search": "sw60", "find": "sw3600"}
    for name in ids:
        assert client.get(f"/{name}", headers={"X-Key": "abc"}).status_code == 200
    shown, top = (" ".join(shop.run(*words).split()) for words in (("show", WHO), ("top",)))
    assert "2 budgets of unknown quota" in top
    for name, shape in ids.items():
        says = f"The quota of the rule {name} is a function of the request."
        assert (says in shown, says in top) == (True, True)
        one = json.loads(shop.run("top", "--rule", name, "--json"))
        assert (one["scanned"], one["unknown"]) == (0, 1)
        found = json.loads(shop.run("reset", WHO, "--rule", name, "--yes", "--json"))["forgotten"]
        assert [rule_id.rpartition(":")[2] for rule_id in found] == [shape]
    assert json.loads(shop.run("show", WHO, "--json"))["limiters"][0]["unknown"] == []


def test_a_charge_inside_a_view_is_named_by_its_view(make_shop: MakeShop) -> None:
    """No command knows its quota before the view runs."""
    shop = make_shop("flask")
    shop.path.write_text(f"{shop.path.read_text('utf-8')}{CHARGES}", "utf-8")
    client: Any = FlaskClient(__import__(shop.module).app)
    view = f"{shop.module}.order"
    assert client.post("/order", headers={"X-Key": "abc"}).status_code == 200
    (limiter,) = json.loads(shop.run("show", WHO, "--json"))["limiters"]
    theirs, ours = sorted(limiter["unknown"], key=lambda each: view[-41:] in each)
    assert (theirs, ours.startswith(f"{view[-41:]}-")) == ("orders:sw3600", True)
    shown = " ".join(shop.run("show", WHO).split())
    assert f"Only the view {view[-41:]} knows its quota" in shown
    assert "No rule of the application has this id" in shown
    for rule, forgotten in ((view[-41:], [ours]), (view[-41:], []), (theirs, [theirs]), (ours, [])):
        assert json.loads(shop.run("reset", WHO, "--rule", rule, "--yes", "--json"))["forgotten"] == forgotten


def test_the_rule_of_a_dependency_is_reset(make_shop: MakeShop) -> None:
    shop = make_shop("starlette")
    app = """
from fastapi import Depends, FastAPI
from sluicegate.fastapi import RateLimit

app = FastAPI()
app.add_middleware(RateLimitMiddleware, **OPTIONS)

@app.post("/login", dependencies=[Depends(RateLimit("9/hour", name="entering"))])
def login(): ...
"""
    shop.path.write_text(f"{shop.path.read_text('utf-8')}{app}", "utf-8")
    assert shop.log_in(1) == [200]
    assert shop.run("reset", WHO, "--rule", "entering", "--yes").startswith("Forgot 1 budget.")


def test_top_shows_who_uses_most(make_shop: MakeShop, monkeypatch: pytest.MonkeyPatch, valkey: Server) -> None:
    """Over many pages and batches, with less kept than there is, nobody is forgotten who belongs to the top."""
    monkeypatch.setattr(top_module, "_rest", lambda started: started)
    shop = make_shop("flask")
    (limiting,) = load(shop.module).limiters
    default = limiting.gate.bind(limiting.endpoints[0].endpoint)[0].terms[0]  # type: ignore[index]
    with Limiter(valkey.url, prefix=shop.module) as limiter:
        for number in range(400):
            Limit(limiter, (default,)).hit(f"client {number}", cost=1 + number * 7 % 400)
    shop.log_in(5)
    found = json.loads(shop.run("top", "--json", "--limit", "5", "--rule", "default"))
    assert (found["scanned"], found["used_up"]) == (401, 0)
    assert [row["used"] for row in found["top"]] == [400, 399, 398, 397, 396]
    assert [row["rule"] for row in json.loads(shop.run("top", "--json", "--limit", "2"))["top"]] == [
        "ban strikes",
        "login",
    ]
    text = shop.run("top")
    assert "404 budgets" not in text or "client" not in text  # digests only
    assert "client" not in text


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_a_store_that_was_made_in_code(kind: str, make_shop: MakeShop, valkey: Server) -> None:
    shop = make_shop("flask" if kind == "sync" else "starlette")
    client = "redis.Redis" if kind == "sync" else "redis.asyncio.Redis"
    store = "RedisStore" if kind == "sync" else "AsyncRedisStore"
    made = f"""
import redis.asyncio
from redis.backoff import NoBackoff
from redis.asyncio.retry import Retry as AsyncRetry
from redis.retry import Retry
from sluicegate.stores.redis import {store}
retry = {"Retry" if kind == "sync" else "AsyncRetry"}(NoBackoff(), 0)
client = {client}.from_url({valkey.url!r}, socket_timeout=2, socket_connect_timeout=2, retry=retry)
STORE = {store}(client, prefix={shop.module!r})
OPTIONS = {{**OPTIONS, "store": STORE}}
del OPTIONS["prefix"]
"""
    text = shop.path.read_text("utf-8")
    at = text.index("from starlette" if kind == "async" else "from flask")
    shop.path.write_text(text[:at] + made + text[at:], "utf-8")
    with Limiter(RedisStore.from_url(valkey.url, prefix=shop.module), secret="s" * 16) as limiter:
        terms: Any = load(shop.module).limiters[0].endpoints[0].bounds[0].terms
        Limit(limiter, terms).hit(("header:x-key", "abc"))
    (row,) = json.loads(shop.run("show", WHO, "--json"))["limiters"][0]["budgets"]
    assert (row["rule"], row["used"]) == ("default", 1)


def test_budgets_in_memory_are_out_of_reach(tmp_path: Path) -> None:
    path = tmp_path / "limits.toml"
    path.write_text('[sluicegate]\ndefault_limits = ["5/day"]\n', "utf-8")
    done = CliRunner().invoke(sluicegate, ["show", "user:alice", "--app", str(path)])
    assert done.exit_code == 2
    assert "in its own memory" in done.output


def test_every_node_of_a_cluster_is_asked(cluster: Cluster, tmp_path: Path) -> None:
    path, prefix = tmp_path / "limits.toml", uuid4().hex
    text = f'[sluicegate]\nstore = "{cluster.url}"\nprefix = "{prefix}"\ndefault_limits = ["9/day"]\n'
    path.write_text(text, "utf-8")
    app = ["--app", str(path), "--json"]
    with Limiter(RedisStore.from_url(cluster.url, prefix=prefix, deadline=5)) as limiter:
        for number in range(20):
            limiter.hit("9/day", ("user", str(number)), action="default")
    found = json.loads(CliRunner().invoke(sluicegate, ["top", *app]).stdout)
    assert (found["scanned"], len(found["top"])) == (20, 20)
    for number in range(20):
        done = CliRunner().invoke(sluicegate, ["reset", f"user:{number}", "--yes", *app])
        assert len(json.loads(done.stdout)["forgotten"]) == 1, done.output
    assert json.loads(CliRunner().invoke(sluicegate, ["top", *app]).stdout)["scanned"] == 0


def test_the_permissions_that_the_docs_list_are_enough(valkey: Server, tmp_path: Path) -> None:
    """With SCAN. The number of keys is only for the progress bar."""
    (permissions,) = re.findall(r"^ACL SETUSER .+$", (DOCS / "redis.md").read_text("utf-8"), re.MULTILINE)
    path, url = tmp_path / "limits.toml", valkey.url.replace("://", "://sluicegate:secret@")
    rule = '{name = "login", quota = "500/day", ban = {after = 3, within = 60, duration = 60}}'
    path.write_text(f'[sluicegate]\nstore = "{url}"\nrules = [{rule}]\n', "utf-8")
    with closing(redis.Redis(port=valkey.port)) as admin, Limiter(valkey.url) as limiter:
        limiter.hit("500/day", ("user", "alice"), action="login")
        admin.mset({f"sg:{number}": "" for number in range(300)})  # several pages
        admin.execute_command(*shlex.split(permissions), "+scan")
        try:
            for words in ("show user:alice", "top", "bans", "ban user:alice --yes", "reset user:alice --yes"):
                done = CliRunner().invoke(sluicegate, [*words.split(), "--app", str(path)])
                assert done.exit_code == 0, done.output
            assert done.output.startswith("Forgot 2 budgets.")
        finally:
            admin.execute_command("ACL DELUSER sluicegate")
            valkey.flush()


@pytest.mark.parametrize("fault", ["pause", "kill"])
def test_a_store_that_is_down_is_one_sentence(fault: str, tmp_path: Path) -> None:
    path = tmp_path / "limits.toml"
    rule = '{name = "login", quota = "5/day", ban = {after = 3, within = 60, duration = 60}}'
    with valkey_server() as server:
        path.write_text(f'[sluicegate]\nstore = "{server.url}"\nrules = [{rule}]\n', "utf-8")
        getattr(server, fault)()
        for words in ("show user:alice", "reset user:alice --yes", "bans", "top", "ban user:a --yes"):
            done = CliRunner().invoke(sluicegate, [*words.split(), "--app", str(path)])
            assert done.exit_code == 2
            assert done.output.startswith("sluicegate: store ")
            assert len(done.output.splitlines()) == 1
            assert "goes on" not in done.output
            assert done.output.endswith("; run sluicegate doctor\n")
        if fault == "pause":
            server.resume()


def test_budgets_in_shadow_are_known(make_shop: MakeShop) -> None:
    """A rule in shadow, one per method, and one enforced for a share: each has budgets of its own in shadow."""
    shop = make_shop("flask")
    shadow = [
        'dict(name="trial", quota="1/minute", mode="shadow")',
        'dict(name="each", quota="1/minute", mode="shadow", per_method=True)',
        'dict(name="half", quota="1/minute", enforce_percent=1e-9)',
    ]
    text = shop.path.read_text("utf-8")
    shop.path.write_text(text.replace("rules=[", f"rules=[{', '.join(shadow)}, "), "utf-8")
    assert shop.log_in(2) == [200, 200]
    names = {"trial (shadow)", "each POST (shadow)", "half (shadow)"}
    for words in (("show", WHO), ("show", WHO, "--quick")):
        (limiter,) = json.loads(shop.run(*words, "--json"))["limiters"]
        assert limiter["unknown"] == []
        assert {row["rule"]: row["state"] for row in limiter["budgets"] if row["shadow"]} == dict.fromkeys(
            names, "refused"
        )
        assert "would refuse for" in shop.run(*words)
    found = json.loads(shop.run("top", "--json"))
    assert found["unknown"] == 0
    assert {row["rule"] for row in found["top"] if row["shadow"]} == names
    assert found["top"][0]["rule"] == "login"  # it refuses now; rules in shadow come after it
    (row,) = json.loads(shop.run("top", "--json", "--rule", "trial"))["top"]
    assert (row["rule"], row["used"]) == ("trial (shadow)", 1)


def test_keys_of_other_programs_are_skipped_and_counted(make_shop: MakeShop, valkey: Server) -> None:
    """Under the prefix of an application any program may write. One such key hides no budget."""
    shop = make_shop("flask")
    shop.log_in(6)
    who = json.loads(shop.run("bans", "--json"))["bans"][0]["identity"]
    with redis.Redis.from_url(valkey.url) as client:
        (login,) = [key.decode() for key in client.keys("*:login:*")]
        client.set(b"%s:{\xff\xfe}:zz" % shop.module.encode(), "1")
        client.set(f"{shop.module}:{{short}}:x", "1")
        client.hset(login.replace(who, "B" * 22), "a", "b")
        client.set(f"{shop.module}:{{{'C' * 22}}}:strikes:ban", "garbage")
        client.hset(f"{shop.module}:{{{'D' * 22}}}:strikes:ban", "a", "b")
        (default,) = client.keys(f"{shop.module}:{{{who}}}:default:*")
        client.delete(default)
        client.hset(default, "a", "b")
    (limiting,) = load(shop.module).limiters
    (ban,) = {bound.rule.ban for each in limiting.endpoints for bound in each.bounds if bound.rule.ban}
    with Limiter(valkey.url, prefix=shop.module, secret="s" * 16) as limiter:
        assert list(limiter.bans(ban)) == [who]
    found = json.loads(shop.run("top", "--json"))
    assert {row["rule"] for row in found["top"] if row["identity"] == who} >= {"login", "ban strikes"}
    assert found["foreign"] >= 4
    assert "under the prefix skipped" in shop.run("top")
    found = json.loads(shop.run("bans", "--json"))
    assert ([each["identity"] for each in found["bans"]], found["foreign"]) == ([who], 3)
    assert "banned for" in shop.run("show", WHO)
    found = json.loads(shop.run("show", "--digest", "B" * 22, "--json"))["limiters"][0]
    assert (found["budgets"], [each.split(":")[0] for each in found["foreign"]]) == ([], ["login"])
    assert "another program wrote this key" in shop.run("show", "--digest", "B" * 22)


@pytest.mark.parametrize("words", ["top --json", "top --once", "top", "bans", f"show {WHO}"])
def test_a_command_that_is_interrupted_says_so(
    words: str, make_shop: MakeShop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A script must not take an empty output for an answer."""

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    shop = make_shop("flask")
    monkeypatch.setattr(Budgets, "pages", interrupted)
    assert shop.run(*words.split(), status=130).strip() == ""


@pytest.fixture
def shop_with_tiers(make_shop: MakeShop) -> Shop:
    shop = make_shop("flask")
    tiers = 'Tiers({"free": "2/hour", "pro": "9/hour"}, by=lambda request: "free")'
    text = shop.path.read_text("utf-8").replace("import Ban", "import Ban, Tiers")
    shop.path.write_text(text.replace("rules=[", f'rules=[dict(name="tiered", quota={tiers}), '), "utf-8")
    shop.log_in(2)
    return shop


@pytest.mark.parametrize("more", [(), ("--quick",)], ids=" ".join)
def test_show_has_the_budgets_of_one_tier(more: tuple[str, ...], shop_with_tiers: Shop) -> None:
    """A user on the tier "pro" is not shown as refused on the tier "free" (issue 26)."""

    def shown(*words: str) -> list[tuple[str, str | None, str]]:
        (limiter,) = json.loads(shop_with_tiers.run("show", WHO, "--json", *more, *words))["limiters"]
        return sorted((row["rule"], row["tier"], row["state"]) for row in limiter["budgets"] if "tier" in row["rule"])

    free, pro = ("tiered (free)", "free", "refused"), ("tiered (pro)", "pro", "passes")
    assert (shown(), shown("--tier", "pro")) == ([free, pro], [pro])
    assert "does not know the tier of an identity" in shop_with_tiers.run("show", WHO, *more)
    printed = shop_with_tiers.run("show", WHO, "--tier", "pro", *more)
    assert "(free)" not in printed
    assert "does not know" not in printed
    assert "the tiers are free, pro" in shop_with_tiers.run("show", WHO, "--tier", "por", status=2)


def test_top_shows_every_tier_of_a_budget(shop_with_tiers: Shop) -> None:
    """The server knows nobody's tier: who may be refused in one of them comes first."""
    found = json.loads(shop_with_tiers.run("top", "--json", "--rule", "tiered"))
    assert [(row["rule"], row["used"], row["state"]) for row in found["top"]] == [
        ("tiered (free)", 2, "refused"),
        ("tiered (pro)", 2, "passes"),
    ]
    assert (found["scanned"], found["used_up"]) == (1, 1)
    says = "does not know the tier of an identity"
    for rule, is_said in (("tiered", True), ("login", False)):
        assert (says in shop_with_tiers.run("top", "--rule", rule)) is is_said


def test_access_lists_are_shown(make_shop: MakeShop) -> None:
    """A client with a 403 has no budget: the list is the reason."""
    shop = make_shop("flask")
    text = shop.path.read_text("utf-8")
    lists = 'OPTIONS = dict(allow=["10.1.0.0/16", ("header:x-key", "secret key")], deny=["10.0.0.0/8"], '
    shop.path.write_text(text.replace("OPTIONS = dict(", lists), "utf-8")
    checked = shop.run("check")
    assert "allow: 10.1.0.0/16, identities: 1" in checked
    assert "deny: 10.0.0.0/8" in checked
    assert "secret key" not in checked
    assert "in 10.0.0.0/8, on the list 'deny'" in shop.run("show", "ip:10.2.3.4")
    assert "list" not in shop.run("show", "ip:192.0.2.1")
    secret = "header:X-Key=secret key"
    shown = json.loads(shop.run("show", secret, "--json"))
    assert shown["limiters"][0]["lists"] == ["allow"]
    for words in ((secret,), ("--digest", shown["identity"])):
        assert "on the list 'allow': no rule is applied" in shop.run("show", *words)


@pytest.mark.parametrize("prefix", ["the same", "another"])
def test_limiters_that_share_their_budgets_are_listed_once(prefix: str, make_shop: MakeShop) -> None:
    """One around the application, and one around a part of it."""
    shop = make_shop("starlette")
    own = "" if prefix == "the same" else ', prefix=PREFIX + "2"'
    more = f"""
inner = Starlette(routes=[Route("/find", login, methods=["POST"])])
inner.add_middleware(RateLimitMiddleware, **{{**OPTIONS, **dict(rules=[dict(name="find", quota="9/minute")]{own})}})
app.mount("/inner", inner)
"""
    shop.path.write_text(f"{shop.path.read_text('utf-8')}{more}", "utf-8")
    shop.log_in(6)
    assert TestClient(__import__(shop.module).inner).post("/find", headers={"X-Key": "abc"}).status_code == 200
    limiters = json.loads(shop.run("show", WHO, "--json"))["limiters"]
    apart = [["ban strikes", "default", "login"], ["default", "find"]]
    expected = [["ban strikes", "default", "find", "login"]] if prefix == "the same" else apart
    assert sorted(sorted(row["rule"] for row in each["budgets"]) for each in limiters) == expected
    assert [each["unknown"] for each in limiters] == [[]] * len(expected)
    top = json.loads(shop.run("top", "--json"))
    listed = sorted(rule for each in expected for rule in each)
    assert sorted(row["rule"] for row in top["top"]) == listed
    assert (top["scanned"], top["unknown"]) == (len(listed), 0)
    assert len(json.loads(shop.run("bans", "--json"))["bans"]) == 1
