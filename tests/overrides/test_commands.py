"""The commands that steer an application: what they refuse, and what they show of the history."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from sluicegate import Limiter, Rule, Settings, wsgi
from sluicegate.cli import overrides
from sluicegate.cli.commands import sluicegate
from sluicegate.identity import identity_text
from sluicegate.plan import Check, Plan
from sluicegate.rules.rollout import shadows
from tests.adapters.wsgi_client import WsgiClient
from tests.servers import Server, ask, wait_until

SETTINGS = """
[sluicegate]
store = "{url}"
key = "ip"

[[sluicegate.rules]]
name = "login"
quota = "5/minute; 20/hour"
ban = {{ after = 10, within = "10 minutes", duration = "1 hour", name = "guessing" }}
"""
Operate = Callable[..., Result]


@pytest.fixture
def operate(valkey: Server, tmp_path: Path) -> Iterator[Operate]:
    limits = tmp_path / "limits.toml"
    limits.write_text(SETTINGS.format(url=valkey.url), "utf-8")

    def run(*words: str, columns: str = "200") -> Result:
        return CliRunner().invoke(sluicegate, words, env={"SLUICEGATE_APP": str(limits), "COLUMNS": columns})

    valkey.flush()
    yield run
    valkey.flush()


PART = ", but a quota or a ban of the rule login"


@pytest.mark.parametrize(("name", "part"), [("logn", ""), ("login-hour", PART), ("guessing", PART)])
def test_an_override_is_for_a_whole_rule(operate: Operate, name: str, part: str) -> None:
    """A name of one of its quotas, or of its ban, would hold for nothing."""
    for words in (("override", name, "9/minute"), ("shadow", name), ("deny", "add", "ip:203.0.113.7", "--rule", name)):
        done = operate(*words, "--yes")
        assert (done.exit_code, f"no rule '{name}'{part}; the rules are login" in done.output) == (2, True), done.output


@pytest.mark.parametrize("algorithm", ["sliding-window", "token-bucket"])
def test_what_becomes_of_what_was_used(operate: Operate, tmp_path: Path, algorithm: str) -> None:
    limits = tmp_path / "limits.toml"
    limits.write_text(limits.read_text("utf-8").replace('name = "login"', f'name = "login"\nalgorithm = "{algorithm}"'))
    done = operate("override", "login", "9/minute", "--yes")
    assert done.exit_code == 0
    assert "0 budgets in use" in done.output
    assert ("a bucket starts again at another rate" in done.output) is (algorithm == "token-bucket")


def test_a_time_has_a_unit(operate: Operate) -> None:
    done = operate("deny", "add", "ip:203.0.113.7", "--for", "7", "--yes")
    assert (done.exit_code, "'7': no unit; write 7h for hours, 7d for days" in done.output) == (2, True)
    for written in ("7h", "7d"):
        assert operate("deny", "add", "ip:203.0.113.7", "--for", written, "--yes").exit_code == 0


WRONG: dict[str, tuple[tuple[str, ...], str]] = {
    "a tier": (("off", "login", "--tier", "free"), "no tier 'free'; the application has no tiers"),
    "a time": (("override", "login", "9/minute", "--for", "soon"), "nor a length of time"),
    "an identity": (("override", "login", "9/minute", "--identity", "bob"), "not as a key gives it"),
    "a pattern": (("override", "login", "9/minute", "--pattern", "bob"), "not a pattern"),
    "a reason of two lines": (("shadow", "login", "--why", "one\ntwo"), "more than a line"),
    "a reason with a control character": (("shadow", "login", "--why", "\x1b[2J"), "more than a line"),
    "a key": (("deny", "add", "ip:999.1.1.1"), "not an address"),
    "an id": (("override", "remove", "12345678"), "0 overrides of this id or key"),
    "a key that is not denied": (("deny", "remove", "ip:203.0.113.7"), "0 overrides of this id or key"),
    "everything that is denied": (("deny", "remove", "*"), "0 overrides of this id or key"),
    "nothing to undo": (("override", "undo"), "nothing was changed"),
}


@pytest.mark.slow
@pytest.mark.parametrize("case", WRONG)
def test_what_is_wrong_is_said_before_anything_is_shown(operate: Operate, case: str) -> None:
    words, says = WRONG[case]
    done = operate(*words)
    assert done.exit_code == 2
    assert says in done.output
    assert "Following" not in done.output
    assert "Change it?" not in done.output


CLIENT = "WXpfEb_c_PK11D-pHAVw0Q"  # the digest of ip:198.51.100.4
# What was set before, a command, and the row that it shows first.
CHANGES: dict[str, tuple[tuple[str, ...], tuple[str, ...], str]] = {
    "set": ((), ("override", "login", "9/minute"), "login 5/minute; 20/hour 9/minute everybody"),
    "replace": (("off", "login"), ("override", "login", "9/minute", "--for", "2h"), "login off 9/minute everybody 2 h"),
    "undo": (("override", "login", "9/minute"), ("override", "undo"), "login 9/minute 5/minute; 20/hour everybody"),
    "remove all": (("off", "login"), ("override", "remove", "*"), "login off 5/minute; 20/hour everybody"),
    "remove by its key": (
        ("deny", "add", "ip:198.51.100.4"),
        ("deny", "remove", "ip:198.51.100.4"),
        f"login deny 5/minute; 20/hour {CLIENT}",
    ),
    "remove by its pattern": (
        ("allow", "add", "ip:198.51.*", "--rule", "login"),
        ("override", "remove", "ip:198.51.*"),
        "login allow 5/minute; 20/hour ip:198.51.*",
    ),
}


@pytest.mark.parametrize("case", CHANGES)
def test_a_change_is_shown_before_it_is_made(operate: Operate, case: str) -> None:
    before, words, row = CHANGES[case]
    assert not before or operate(*before, "--yes").exit_code == 0
    held = operate("override", "list", "--json").output
    done = operate(*words)  # nobody answers
    assert done.exit_code == 1
    assert row in [" ".join(line.split()) for line in done.output.splitlines()]
    assert "Following: 0 processes." in done.output
    assert operate("override", "list", "--json").output == held
    done = operate(*words, "--yes")
    assert (done.exit_code, "No process follows: they had no request lately" in done.output) == (0, True)
    assert operate("override", "list", "--json").output != held


EXPORT_CLIENT = ("--identity", "ip:198.51.100.4")
# Overrides of several widths, a command, the row that it shows first, and what `show` says of the client after it.
WIDTHS: dict[str, tuple[tuple[tuple[str, ...], ...], tuple[str, ...], str, str]] = {
    "a narrower one": (
        (("override", "login", "9/minute"),),
        ("override", "login", "8/minute", *EXPORT_CLIENT),
        f"login 9/minute 8/minute {CLIENT}",
        "8/minute",
    ),
    "a narrower one goes": (
        (("override", "login", "9/minute"), ("override", "login", "8/minute", *EXPORT_CLIENT)),
        ("override", "remove", "ip:198.51.100.4"),
        f"login 8/minute 9/minute {CLIENT}",
        "9/minute",
    ),
    "one of an identity under a pattern": (
        (("override", "login", "9/minute", "--pattern", "ip:198.51.*"),),
        ("override", "login", "8/minute", *EXPORT_CLIENT),
        f"login 9/minute 8/minute {CLIENT}",
        "8/minute",
    ),
    "a pattern under a shorter one": (
        (("shadow", "login", "--pattern", "ip:198.*"), ("off", "login", "--pattern", "ip:198.51.10*")),
        ("override", "login", "8/minute", "--pattern", "ip:198.51.*"),
        "login shadow 8/minute ip:198.51.*",
        "off",
    ),
    "a wider one, which has no effect": (
        (("override", "login", "9/minute", *EXPORT_CLIENT),),
        ("off", "*", *EXPORT_CLIENT),
        f"login 9/minute 9/minute {CLIENT}",
        "9/minute",
    ),
    "a deny, after another quota": (
        (("override", "login", "9/minute", *EXPORT_CLIENT),),
        ("deny", "add", "ip:198.51.100.4"),
        f"login 9/minute deny {CLIENT}",
        "deny",
    ),
    "a deny, before another quota": (
        (("deny", "add", "ip:198.51.*"),),
        ("override", "login", "9/minute", *EXPORT_CLIENT),
        f"login deny deny {CLIENT}",
        "deny",
    ),
    "a deny of the rule goes": (
        (("override", "login", "9/minute", *EXPORT_CLIENT), ("deny", "add", "ip:198.51.100.4", "--rule", "login")),
        ("deny", "remove", "ip:198.51.100.4"),
        f"login deny 9/minute {CLIENT}",
        "9/minute",
    ),
    "a deny, and an exception": (
        (("deny", "add", "ip:198.51.*"),),
        ("allow", "add", "ip:198.51.100.4"),
        f"login deny allow {CLIENT}",
        "allow",
    ),
}


@pytest.mark.parametrize("secret", ["", 'secret = "a secret of 24 letters.."'])
@pytest.mark.parametrize("case", WIDTHS)
def test_the_narrowest_is_shown_before_a_change_and_by_show(
    operate: Operate, tmp_path: Path, case: str, secret: str
) -> None:
    before, words, row, holds = WIDTHS[case]
    limits = tmp_path / "limits.toml"
    limits.write_text(limits.read_text("utf-8").replace('key = "ip"', f'key = "ip"\n{secret}'), "utf-8")
    for each in before:
        assert operate(*each, "--yes").exit_code == 0
    shown = [" ".join(line.split()) for line in operate(*words).output.splitlines()]
    assert [line for line in shown if line.startswith("login")] == [row.replace(CLIENT, digest_in(operate))]
    assert operate(*words, "--yes").exit_code == 0
    (found,) = json.loads(operate("show", "ip:198.51.100.4", "--json").output)["limiters"]
    assert [each["quota"] or each["action"] for each in found["overrides"]] == [holds]


def digest_in(operate: Operate) -> str:
    return str(json.loads(operate("show", "ip:198.51.100.4", "--json").output)["identity"])


def test_a_change_of_many_overrides_shows_the_first(operate: Operate, valkey: Server) -> None:
    with Limiter(valkey.url, deadline=5) as limiter:
        for number in range(30):
            limiter.overrides.set("login", "9/minute", identities=[("ip", f"203.0.113.{number}")])
    done = operate("override", "remove", "*")
    assert "and 10 more" in done.output
    assert "30 overrides removed." in operate("override", "remove", "*", "--yes").output


OUTSIDE: dict[str, tuple[tuple[str, ...], tuple[str, ...], bool]] = {  # what holds, a change, and if the first stays
    "an identity": (("override", "login", "9/minute", "--identity", "ip:203.0.113.7"), ("shadow", "login"), True),
    "of every rule": (("off", "*", "--pattern", "ip:203.0.*"), ("shadow", "login"), True),
    "a rule before all": (("off", "login"), ("shadow", "*"), True),
    "replaced": (("off", "login"), ("shadow", "login"), False),
    "all before a rule": (("off", "*"), ("shadow", "login"), False),
    "a list": (("allow", "add", "ip:203.0.*"), ("shadow", "login"), True),
    "narrower itself": (("off", "login"), ("shadow", "login", "--identity", "ip:203.0.113.7"), False),
}


@pytest.mark.parametrize("case", OUTSIDE)
def test_what_stays_outside_of_a_change_is_said(operate: Operate, case: str) -> None:
    before, words, stays = OUTSIDE[case]
    (made,) = json.loads(operate(*before, "--yes", "--json").output)["added"]
    says = f"Still holds for some, because it comes first: 1 override ({made['id']})."
    assert (says in operate(*words).output) is stays


def test_an_identity_that_no_rule_counts_by_is_said(operate: Operate) -> None:
    for key in ("user:bob", "user:b*"):
        assert f"counts by such an identity as {key}" in operate("deny", "add", key, "--yes").output
    for key in ("ip:203.0.113.7", "ip:203.0.*"):
        assert "counts by" not in operate("deny", "add", key, "--yes").output


KEYS = """
from flask import Flask
from sluicegate import Ban
from sluicegate.flask import RateLimiter, limit

def payer(request): ...
def home(): ...

app = Flask("shop")
app.get("/")(limit("5/minute", key=payer)(home))
rules = [
    dict(name="export", quota="2/hour", key=payer, ban=Ban(after=9, within=60, duration=60, name="out")),
    dict(name="team", quota="3/hour", key=("ip", payer)),
    dict(name="login", quota="4/hour", key="ip"),
]
RateLimiter(app, store="{url}", key="user", rules=rules)
"""


@pytest.fixture
def keyed(operate: Operate, tmp_path: Path, valkey: Server) -> Operate:
    """The commands for an application whose keys are functions, and others."""
    path = tmp_path / "keys.py"
    path.write_text(KEYS.format(url=valkey.url), "utf-8")
    return lambda *words: operate(*words, "--app", str(path))


BOB = "text:bob for text, user:bob for a tuple"
EXPORT = f"the key of export is a function (keys.payer): give what it returns: {BOB}"
ADDRESS = EXPORT.replace("user:bob", "ip:bob")
BOTH = EXPORT.replace("export", "export, home")
NOT_LOGIN = "no rule with the name or the ban 'login' counts by such an identity as user:bob; the keys are ip"
TEAM = "the key of team has a function (ip + keys.payer): give what it returns: "
# A command, and what it warns of.
TYPED: dict[str, list[str]] = {
    "override export 9/hour --identity user:bob": [EXPORT],
    "override export 9/hour --identity ip:203.0.113.7": [ADDRESS.replace("bob", "203.0.113.7")],
    "override export 9/hour --pattern user:b*": [EXPORT.replace("bob", "b*")],
    "shadow export --identity user:bob": [EXPORT],
    "shadow export --pattern ip:203.*": [ADDRESS.replace("bob", "203.*")],
    "deny add user:bob --rule export": [EXPORT],
    "deny add user:bob": [],  # by the key of the application, also where no rule applies
    "allow add user:b*": [],
    "off * --identity user:bob": [BOTH],
    "off * --pattern user:b*": [BOTH.replace("bob", "b*")],
    "deny add user:bob --rule login": [NOT_LOGIN],
    "deny add user:b* --rule login": [NOT_LOGIN.replace("bob", "b*")],
    "reset user:bob --rule export": [EXPORT],
    "reset user:bob": [BOTH],
    "show user:bob": [BOTH],
    "show user:b-user:c": [BOTH.replace("bob", "b-user:c")],
    "ban user:bob": [EXPORT],
    "unban user:bob": [EXPORT],
    "show ip:203.0.113.7 path:a=b": [f"{TEAM}text:b for text, path:a=b for a tuple"],
    "override export 9/hour --identity text:bob": [],
    "off export --pattern text:b*": [],
    "deny add ip:203.0.113.7 --rule login": [],
    "off * --identity ip:203.0.113.7": [],  # the key of login gives it
    "off * --pattern ip:203.*": [],
    "reset ip:203.0.113.7": [],
    "show ip:203.0.113.7": [],
    "show ip:203.0.113.7 text:bob": [],
    "show int:42": [],
}


@pytest.mark.parametrize("words", TYPED)
def test_what_a_key_that_is_a_function_gives_is_said_before_anything_is_asked(keyed: Operate, words: str) -> None:
    lines = keyed(*words.split()).output.splitlines()
    assert [line for line in lines if line.startswith("warning")] == [f"warning: {each}" for each in TYPED[words]]
    assert lines[: len(TYPED[words])] == [f"warning: {each}" for each in TYPED[words]]


# A change under every rule, the rules that it shows, and those that it only counts.
PLACES: dict[str, tuple[set[str], str]] = {
    "deny add text:bob": ({"export", "home"}, "2 rules (login, team)"),
    "deny add ip:203.0.113.7": ({"login"}, "3 rules (export, home, team)"),
    "allow add user:bob": ({"*"}, "4 rules (export, home, login, team)"),  # also where no rule applies
    "off * --identity text:bob --identity ip:203.0.113.7": ({"export", "home", "login"}, "1 rule (team)"),
    "off *": ({"export", "home", "login", "team"}, ""),
}


@pytest.mark.parametrize("words", PLACES)
def test_a_change_shows_the_rules_that_count_by_its_identity(keyed: Operate, words: str) -> None:
    rules, counted = PLACES[words]
    shown = keyed(*words.split()).output
    assert {line.split()[0] for line in shown.splitlines()} & {"export", "home", "login", "team", "*"} == rules
    says = "Not shown, because the key is not known to give this identity: "
    assert [line for line in shown.splitlines() if line.startswith(says)] == ([f"{says}{counted}."] if counted else [])


def app(environ: Any, start_response: Any) -> list[bytes]:
    start_response("200 OK", [("Content-Type", "text/plain")])
    return [b"done"]


@pytest.mark.parametrize(("secret", "warns"), [("a secret of 24 letters..", False), ("another secret of 24 ...", True)])
def test_another_secret_than_that_of_the_processes_is_said(
    operate: Operate, tmp_path: Path, valkey: Server, secret: str, warns: bool
) -> None:
    """An override of an identity would hold for nobody there."""
    limits = tmp_path / "limits.toml"
    text = SETTINGS.format(url=valkey.url).replace('key = "ip"', f'key = "ip"\nsecret = "{secret}"')
    limits.write_text(text, "utf-8")
    settings = Settings(store=valkey.url, secret="a secret of 24 letters..", default_limits=["9/day"], deadline=5)
    with closing(wsgi.RateLimitMiddleware(app, settings=settings)) as application:
        WsgiClient(application).request("GET", "/")
        wait_until("the process is listed", lambda: "1 process." in operate("off", "login").output)
        done = operate("deny", "add", "ip:203.0.113.7", "--yes")
        assert ("another secret than in this shell" in done.output) is warns
        assert "All processes follow within 2 seconds." in done.output


def test_remove_takes_only_the_key_that_was_added(operate: Operate) -> None:
    for key in ("header:X-API-Key=ab*", "ip:203.0.113.7"):
        assert operate("deny", "add", key, "--yes").exit_code == 0
    for key in ("no-such-id", "header:x-api-key=abc*", "ip:203.0.113.8"):
        assert "0 overrides of this id or key" in operate("deny", "remove", key, "--yes").output
    for key in ("ip:203.0.113.7", "header:X-API-Key=ab*"):
        assert "1 override removed" in operate("deny", "remove", key, "--yes").output


def test_remove_names_what_has_the_key_among_others(operate: Operate) -> None:
    words = ("--identity", "ip:203.0.113.7", "--identity", "ip:203.0.113.8")
    (made,) = json.loads(operate("override", "login", "9/minute", *words, "--yes", "--json").output)["added"]
    for key in ("ip:203.0.113.7", made["identities"][0]):
        assert f"it is in {made['id']};" in operate("override", "remove", key).output


def test_the_history_says_who_when_what_and_why(operate: Operate) -> None:
    assert "nothing was written" in operate("override", "remove", "*", "--yes").output
    assert json.loads(operate("override", "remove", "*", "--yes", "--json").output) == {"added": [], "removed": []}
    assert "Nothing was changed." in operate("history").output
    assert operate("override", "login", "9/minute", "--why", "a test", "--yes").exit_code == 0
    assert operate("override", "undo", "--yes").exit_code == 0
    (last,) = json.loads(operate("history", "-n", "1", "--json").output)["history"]
    assert (last["what"], [each["quota"] for each in last["removed"]]) == ("undo", ["9/minute"])
    lines = operate("history").output.splitlines()
    changes = ["undo login: not 9/minute for everybody", "quota login: 9/minute for everybody"]
    assert [re.split(r" {2,}", line)[1] for line in lines[1:]] == changes
    assert lines[2].endswith("a test")


@pytest.mark.parametrize("columns", ["40", "80"])
@pytest.mark.parametrize("command", ["history", "override list"])
def test_what_is_to_be_copied_is_whole_on_a_narrow_terminal(
    operate: Operate, monkeypatch: pytest.MonkeyPatch, command: str, columns: str
) -> None:
    monkeypatch.setattr(overrides, "_author", lambda: "deploy@4f2a91c07b3e")
    words = ("override", "login", "9/minute; 100/day", "--identity", "ip:203.0.113.7", "--why", "a big import for bob")
    operate(*words, "--for", "7 days", "--yes")
    (change,) = json.loads(operate("history", "--json").output)["history"]
    (made,) = change["added"]
    shown = operate(*command.split(), columns=columns).output
    whole = (change["by"], made["identities"][0], change["at"] if command == "history" else made["id"])
    assert [each for each in whole if each not in shown] == []
    assert max(map(len, shown.splitlines())) <= int(columns)


def test_show_goes_on_with_overrides_that_cannot_be_read(operate: Operate, valkey: Server) -> None:
    terms = Rule(name="login", quota="5/minute; 20/hour").terms("sliding-window")
    with Limiter(valkey.url, deadline=5) as limiter:
        limiter.store.run(Plan((Check(terms[0], identity_text(("ip", "203.0.113.7")), 5),)))
    ask(valkey, "SET", "sg:{overrides}:document", "by hand")
    done = operate("show", "ip:203.0.113.7", "--json")
    (found,) = json.loads(done.stdout)["limiters"]
    assert [(each["limit"], each["state"]) for each in found["budgets"]] == [(5, "refused")]
    assert "SG015" in done.stderr


# What is set, and what `show` says of a client that has used 5 of 5, and 1 in shadow: of how many, and what happens.
SHOWN: dict[str, tuple[tuple[str, ...], tuple[str, int, int, str]]] = {
    "another quota": (("override", "login", "9/minute; 20/hour"), ("login-minute (override)", 5, 9, "passes")),
    "shadow": (("shadow", "login"), ("login-minute (shadow) (override)", 1, 5, "passes")),
    "off": (("off", "login"), ("login-minute (override)", 5, 5, "passes")),
    "a pattern": (("allow", "add", "ip:203.0.113.*"), ("login-minute (override)", 5, 5, "passes")),
    "denied": (("deny", "add", "ip:203.0.113.7"), ("login-minute (override)", 5, 5, "denied")),
    "somebody else": (("deny", "add", "ip:203.0.113.8"), ("login-minute", 5, 5, "refused")),
}


@pytest.mark.parametrize("case", SHOWN)
def test_show_says_what_holds_for_an_identity(operate: Operate, valkey: Server, case: str) -> None:
    words, row = SHOWN[case]
    client = identity_text(("ip", "203.0.113.7"))
    terms = Rule(name="login", quota="5/minute; 20/hour").terms("sliding-window")
    with Limiter(valkey.url, deadline=5) as limiter:
        limiter.store.run(Plan(tuple([Check(each, client, 5) for each in terms])))
        limiter.store.run(Plan(tuple([Check(each, client, 1) for each in shadows(terms)])))
    assert operate(*words, "--yes").exit_code == 0
    (found,) = json.loads(operate("show", "ip:203.0.113.7", "--json").output)["limiters"]
    rows = {(each["rule"], each["used"], each["limit"], each["state"]) for each in found["budgets"]}
    assert row in rows
    assert len(rows) == 2, "one of each quota"
    assert (found["unknown"] == []) is (case == "shadow")


@pytest.mark.parametrize(
    ("text", "says"),
    [(b"[[rule]]\nname = 'a'", "[[rules]]"), (b"", "rules = []"), (b"\xff", "utf-8"), (b"x=" + b"[" * 9999, "")],
)
@pytest.mark.parametrize("command", ["check", "diff"])
def test_the_commands_say_what_is_wrong_with_a_file(
    operate: Operate, tmp_path: Path, command: str, text: bytes, says: str
) -> None:
    path = tmp_path / "rules.toml"
    path.write_bytes(text)
    done = operate("rules", command, str(path))
    assert done.exit_code == 1, done.output
    assert says in done.output
    assert "SG015" in done.output


BANS = """
[[rules]]
name = "login"
quota = "5/minute"
ban = { after = 10, within = "10 minutes", duration = "1 hour", name = "guessing" }
"""
OTHER_BAN = BANS.replace("login", "search").replace("after = 10", "after = 20")
APP = """
from flask import Flask
from sluicegate import Ban
from sluicegate.flask import RateLimiter, limit

app = Flask("shop")
ban = Ban(after=20, within="10 minutes", duration="1 hour", name="guessing")
app.get("/", endpoint="home")(limit("5/minute", ban=ban)(lambda: ""))
RateLimiter(app, store="{url}")
"""
# A file, what `rules check` says, and what `rules diff` says, which has the application.
REFUSED: dict[str, tuple[str, str, str]] = {
    "two bans of one name": (BANS + OTHER_BAN, "line 7: rule 'search': ban", "line 7: rule 'search': ban"),
    "another ban in a view": (BANS, "nothing is wrong", "another rule has a different ban of this name"),
    "an unknown route": (BANS.replace("ban =", 'route = "nowhere" #'), "nothing is wrong", "no such route"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_check_and_diff_find_what_a_process_refuses(
    operate: Operate, tmp_path: Path, valkey: Server, case: str
) -> None:
    text, says, differs = REFUSED[case]
    rules, app = tmp_path / "rules.toml", tmp_path / "shop.py"
    rules.write_text(text, "utf-8")
    app.write_text(APP.format(url=valkey.url), "utf-8")
    assert says in operate("rules", "check", str(rules)).output
    done = operate("rules", "diff", str(rules), "--app", str(app))
    assert done.exit_code == 1
    assert differs in done.output


@pytest.fixture
def followed(operate: Operate, tmp_path: Path) -> Path:
    """The file of overrides that the application follows instead of its server."""
    path, limits = tmp_path / "overrides.toml", tmp_path / "limits.toml"
    text = limits.read_text("utf-8")
    limits.write_text(text.replace("key =", f"overrides = {json.dumps(str(path))}\nkey ="), "utf-8")
    path.write_text('[[overrides]]\nrule = "login"\nquota = "50/minute"\nidentities = ["ip:203.0.113.7"]\n', "utf-8")
    return path


def test_the_commands_read_a_file_of_overrides(operate: Operate, followed: Path, valkey: Server) -> None:
    terms = Rule(name="login", quota="5/minute; 20/hour").terms("sliding-window")
    with Limiter(valkey.url, deadline=5) as limiter:
        limiter.store.run(Plan((Check(terms[0], identity_text(("ip", "203.0.113.7")), 5),)))
    (found,) = json.loads(operate("show", "ip:203.0.113.7", "--json").output)["limiters"]
    assert [(each["limit"], each["state"]) for each in found["budgets"]] == [(50, "passes")]
    listed = operate("override", "list").output
    assert "50/minute" in listed
    assert f"These are in {followed}; change that file." in listed
    for words in (("override", "remove", "line-1"), ("off", "login"), ("history",)):
        done = operate(*words)
        assert (done.exit_code, str(followed) in done.output) == (2, True)


FILES: dict[str, tuple[str, int, str]] = {  # a file of overrides, and what `check` ends with and says
    "right": ('rule = "login"\nquota = "9/minute"', 0, ""),
    "wrong": ('rule = "login"\nquota = "9/mniute"', 1, "line 1: "),
    "an identity": (
        'rule = "login"\naction = "off"\nidentities = ["bob"]',
        1,
        "line 1: identities: write it with user:",
    ),
    "slots": ('rule = "login"\nquota = "9 at once"', 1, "slots instead of units per time"),
    "another rule": ('rule = "logn"\nquota = "9/minute"', 0, "override table-1: no rule 'logn'; the rules are login"),
}


@pytest.mark.parametrize("case", FILES)
def test_a_file_of_overrides_is_checked(operate: Operate, followed: Path, case: str) -> None:
    text, code, says = FILES[case]
    followed.write_text(f"[[overrides]]\n{text}\n", "utf-8")
    is_right = case not in ("wrong", "an identity")
    done = operate("check")
    assert "bob" not in done.output
    assert (done.exit_code, says in done.output, "warning" in done.output) == (code, True, code == 0 and bool(says))
    done = operate("rules", "check", str(followed))
    assert (done.exit_code == 0, "1 override, nothing is wrong." in done.output) == (is_right, is_right)


@pytest.mark.parametrize("text", [b"[[rules]]\nname = 'a'", b"\xff", b"", b"[[overrides]]\nrule = 'a'"])
def test_both_checks_end_and_print_alike(operate: Operate, tmp_path: Path, text: bytes) -> None:
    rules, limits = tmp_path / "rules.toml", tmp_path / "limits.toml"
    rules.write_bytes(text)
    name = "overrides" if b"overrides" in text else "rules"
    limits.write_text(f"[sluicegate]\n{name} = {json.dumps(str(rules))}\n", "utf-8")
    for words, what in ((("check", str(limits)), "application"), (("rules", "check", str(rules)), "file")):
        assert [operate(*words, *more).exit_code for more in ((), ("--json",))] == [1, 1]
        answer = json.loads(operate(*words, "--json").stdout)
        assert answer.keys() == {what, "error"}
        assert answer["error"].keys() == {"code", "message", "further"}


def test_a_change_as_json_is_shown_before_it_is_asked_for(operate: Operate) -> None:
    assert "login 5/minute; 20/hour off everybody" in " ".join(operate("off", "login", "--json").stderr.split())
    assert operate("off", "login", "--json", "--yes").stderr == ""


def test_an_empty_list_says_that_nobody_is_on_it(operate: Operate) -> None:
    assert operate("off", "login", "--yes").exit_code == 0
    for words in (("deny", "list"), ("allow", "list")):
        assert operate(*words).output == "Nobody is on this list.\n"
