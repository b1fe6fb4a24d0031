"""`sluicegate replay`: what it prints, and what it says about wrong words."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from sluicegate.cli.commands import sluicegate

LINE = '203.0.113.{} - - [23/Nov/2026:14:00:{:02} +0000] "{} {} HTTP/1.1" 200 12 "-" "-"\n'


@pytest.fixture
def log(tmp_path: Path) -> str:
    """A client with ten logins in ten seconds, and one with two requests."""
    lines = [LINE.format(7, second, "POST", "/login") for second in range(10)]
    lines.insert(4, LINE.format(8, 3, "GET", "/"))
    lines.append(LINE.format(8, 59, "GET", "/users/17"))
    path = tmp_path / "access.log"
    path.write_text("".join(lines))
    return str(path)


def run(*words: str) -> Result:
    return CliRunner().invoke(sluicegate, ["replay", *words], env={"COLUMNS": "100"})


def test_it_says_whom_a_rule_refuses(log: str) -> None:
    done = run(log, "--rule", "login: 5/minute by ip on POST /login")
    assert done.exit_code == 0, done.output
    assert "login refuses 5 of 10 requests" in done.output
    assert "Busiest 1 s without" in done.output
    assert "POST /login" in done.output.split("Route ")[1]
    assert "203.0.113.7" in done.output, "the log has its clients in clear"
    assert "203.0.113.7" not in run(log, "--rule", "2/minute", "--hide-identities").output


@pytest.mark.slow
def test_candidates_are_compared(log: str, tmp_path: Path) -> None:
    rules = tmp_path / "limits.toml"
    rules.write_text('[sluicegate]\nkey = "ip"\ndefault_limits = ["3/minute"]\n')
    words = ("--rule", "5/minute", "--rule", "10/hour on /login", "--rules", str(rules), "--json")
    found = json.loads(run(log, *words).stdout)["candidates"]
    assert [each["refused"] for each in found] == [5, 0, 7]
    assert [each["name"] for each in found] == ["5/minute", "10/hour", "limits"]
    assert "different keys" not in run(log, *words[:-1]).output
    rules.write_text('[sluicegate]\ndefault_limits = ["3/minute"]\n')
    assert "The candidates count by different keys (ip, user)" in run(log, *words[:-1]).output
    together = json.loads(run(log, *words, "--together").stdout)["candidates"]
    assert [each["refused"] for each in together] == [5, 7]


def in_file(folder: Path, text: str) -> str:
    path = folder / "limits.toml"
    path.write_text(f"[sluicegate]\n{text}")
    return str(path)


RULE = '[[sluicegate.rules]]\nname = "login"\nquota = "5/minute"\nkey = "ip"\n'


@pytest.mark.parametrize(
    ("text", "enforced", "note"),
    [
        (f'{RULE}mode = "shadow"\n', 0, "login (in shadow)"),
        (f"{RULE}enforce_percent = 10\n", 10, "login (for 10 %)"),
        (f'mode = "shadow"\n{RULE}', 0, "login (in shadow)"),
        ('mode = "shadow"\nkey = "ip"\ndefault_limits = ["5/minute"]\n', 0, "default (in shadow)"),
        (RULE, 100, None),
    ],
)
def test_a_rule_in_shadow_is_replayed_as_if_enforced(
    log: str, tmp_path: Path, text: str, enforced: float, note: str | None
) -> None:
    words = ("--rules", in_file(tmp_path, text))
    (found,) = json.loads(run(log, *words, "--json").stdout)["candidates"]
    assert (found["refused"], found["rules"][0]["enforced"]) == (5, enforced)
    report = " ".join(run(log, *words, "--html", str(tmp_path / "report.html")).output.split())
    said = f"Replayed as if enforced for everybody: {note}."
    assert (said in report) == (note is not None)
    assert (said in (tmp_path / "report.html").read_text("utf-8")) == (note is not None)


def test_the_report_is_also_a_page(log: str, tmp_path: Path) -> None:
    done = run(log, "--rule", "login: 5/minute by ip on POST /login", "--html", str(tmp_path / "report.html"))
    assert "login refuses 5 of 10 requests" in done.output
    assert "login refuses 5 of 10 requests" in (tmp_path / "report.html").read_text("utf-8")


@pytest.mark.parametrize("quota", ["5/10 seconds", "5 per 10 seconds", "5/10s"])
def test_a_quota_may_have_words(log: str, quota: str) -> None:
    (found,) = json.loads(run(log, "--rule", f"login: {quota} by ip on POST /login", "--json").stdout)["candidates"]
    (same,) = json.loads(run(log, "--rule", "login: 5/10seconds by ip on POST /login", "--json").stdout)["candidates"]
    assert found["refused"] == same["refused"]


def test_a_time_is_chosen(log: str) -> None:
    words = ("--rule", "1/minute", "--json", "--since", "2026-11-23T14:00:02Z", "--until", "2026-11-23T14:00:05")
    found = json.loads(run(log, *words).stdout)
    assert found["traffic"]["requests"] == 4
    assert found["candidates"][0]["refused"] == 2


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ([], "no candidate"),
        (["--rule", "5/minute bye ip"], '"5/minute bye ip" cannot be read; write it like'),
        (["--rule", "5/minute by ipp"], 'at character 13, "ipp" is no key; did you mean "ip"?'),
        (["--rule", "5/minute by"], 'nothing follows "by"'),
        (["--rule", "5/minute by ip by user"], '"by" is given twice'),
        (["--rule", "5/fortnight"], 'unknown unit "fortnight"'),
        (["--rule", "5/minute on POST login"], '"login" does not begin with a slash'),
        (["--rule", "5/minute on POSTT /login"], "no such method"),
        (["--rule", "5/minute on login"], "a path begins with a slash"),
        (["--rule", "5/minute", "--format", "json"], "none of 12 lines can be read as json"),
        (["--rule", "5/minute with gcr"], 'did you mean "gcra"?'),
        (["--rule", "5/minute cost bytes/0"], '"0" is not a whole number above 0'),
        (["--rule", "5/minute when 9xx"], '"9xx" is no status'),
        (["--rule", "5/minute by os.path:nothing"], "cannot be imported"),
        (["--rule", "2 at once"], "rule '2 at once': the log has no durations"),
        (["--rule", "5/minute", "--window", "nan"], "'nan' is not a number"),
        (["--rule", "5/minute", "--since", "yesterday"], "for '--since': 'yesterday': give a time like"),
        (["--rule", "5/minute", "--until", "18.11.2026"], "for '--until': '18.11.2026': give a time like"),
        (["--rule", "5/minute", "--since", "2026-11-23", "--until", "2026-11-22"], "is not before --until 2026-11-22"),
        (["--rule", "5/minute", "--zone", "Mars"], "give a time zone"),
        (["--rule", "5/minute", "--field", "user"], "write it like"),
        (["--rules", "nothing.toml"], "nothing.toml"),
        (["--rule", "5/minute", "--html", "nowhere/report.html"], "'nowhere' is no folder"),
    ],
)
def test_a_wrong_word_is_one_sentence(log: str, words: list[str], says: str) -> None:
    done = run(log, *words)
    assert done.exit_code == 2
    assert says in " ".join(done.output.split())


PROXY = '10.0.0.{} - - [23/Nov/2026:14:00:{:02} +0000] "POST /login HTTP/1.1" 200 12 "-" "-" "{}"\n'


@pytest.mark.parametrize("command", ["replay", "suggest"])
@pytest.mark.parametrize(
    ("key", "says"),
    [
        ("header:X-Foo", "No line of the log has the key header:X-Foo"),
        ("field:nope", "No line of the log has the key field:nope"),
        ("user", "requests without a user are counted by address. If it has another name, give --field user=NAME."),
        ("ip", ""),
    ],
)
def test_a_key_that_the_log_lacks_is_said_first(log: str, command: str, key: str, says: str) -> None:
    words = ["replay", log, "--rule", f"5/minute by {key}"] if command == "replay" else ["suggest", log, "--by", key]
    done = CliRunner().invoke(sluicegate, words, env={"COLUMNS": "400"})
    assert done.exit_code == 0, done.output
    beginning = "\n".join(done.output.splitlines()[:3])
    assert says in beginning
    assert ("No line" in done.output) == bool(says)
    assert ("The log has address" in beginning) == (":" in key)
    assert "of everything" not in done.output  # a name that nobody has given


BY_FUNCTION = """
def by_header(request): return next(iter(request.header("x-api-key")), None)
def by_field(request): return request.field("tenant")
"""
LOGGED: dict[str, tuple[str, list[str]]] = {  # lines of two clients, and the words that say their format
    "a format string": (
        '203.0.113.7 [23/Nov/2026:14:00:{:02} +0000] "GET / HTTP/1.1" "c{}"\n',
        ["--format", '$remote_addr [$time_local] "$request" "$http_x_api_key"'],
    ),
    "json": ('{{"time": "2026-11-23T14:00:{:02}Z", "path": "/", "tenant": "c{}"}}\n', []),
    "csv": ("2026-11-23T14:00:{:02}Z,/,c{}\n", ["--format", "csv", "--field", "time=time"]),
}


@pytest.mark.parametrize("form", LOGGED)
def test_a_function_reads_each_field_of_the_log(form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    line, words = LOGGED[form]
    log, name = tmp_path / "access.log", f"of_{abs(hash(tmp_path))}"
    head = "time,path,tenant\n" if form == "csv" else ""
    log.write_text(head + "".join([line.format(second, second % 2) for second in range(10)]))
    (tmp_path / f"{name}.py").write_text(BY_FUNCTION)
    monkeypatch.syspath_prepend(tmp_path)
    by = "by_header" if "$http" in line + "".join(words) else "by_field"
    found = json.loads(run(str(log), *words, "--rule", f"3/minute by {name}:{by}", "--json").stdout)
    assert [(each["identities"], each["refused"]) for each in found["candidates"]] == [(2, 4)]


@pytest.mark.slow
@pytest.mark.parametrize("command", [["suggest", "--by", "user"], ["replay", "--rule", "5/minute by user"]])
def test_the_only_line_with_a_user_is_said(log: str, command: list[str], tmp_path: Path) -> None:
    line = '192.0.2.1 - {} [{}:14:00:30 +0000] "GET / HTTP/1.1" 200 12\n'
    path = tmp_path / "odd.log"
    path.write_text(Path(log).read_text() + line.format("bob", "23/Nov/2026") + line.format("-", "23/Nov/2099"))
    done = CliRunner().invoke(sluicegate, [*command, str(path)], env={"COLUMNS": "400"})
    chosen = ["--since", "2026-11-23T00:00:00Z", "--until", "2026-11-24T00:00:00Z"]
    assert "1 of 14 requests has the key user of" in done.output
    done = CliRunner().invoke(sluicegate, [*command, str(path), *chosen], env={"COLUMNS": "400"})
    assert "1 of 13 requests has the key user of" in done.output


@pytest.mark.parametrize("command", ["replay", "suggest"])
@pytest.mark.parametrize(
    ("address", "client", "option", "hinted"),
    [
        ("10", "203.0.113.{}", [], True),
        ("10", "203.0.113.{}", ["--trusted-proxies", "1"], False),
        ("10", "-", [], False),
        ("198", "203.0.113.{}", [], False),
    ],
)
def test_proxies_that_hide_the_clients_are_said(
    tmp_path: Path, command: str, address: str, client: str, option: list[str], hinted: bool
) -> None:
    lines = [PROXY.format(at % 8, at % 60, client.format(at % 200)) for at in range(400)]
    path = tmp_path / "proxy.log"
    path.write_text("".join(lines).replace("10.0.0.", f"{address}.0.0."))
    form = '$remote_addr - $remote_user [$time_local] "$request" $status $body_bytes_sent "$http_referer" '
    form += '"$http_user_agent" "$http_x_forwarded_for"'
    words = [command, str(path), "--format", form, *option, *(["--rule", "5/minute"] if command == "replay" else [])]
    done = CliRunner().invoke(sluicegate, words, env={"COLUMNS": "400"})
    assert done.exit_code == 0, done.output
    assert ("Give --trusted-proxies 1 (how many there are)" in done.output) == hinted


@pytest.mark.parametrize("form", ["auto", "json"])
def test_json_without_a_known_time_says_what_the_line_has(tmp_path: Path, form: str) -> None:
    path = tmp_path / "my.jsonl"
    path.write_text('{"moment": "2026-11-23T14:00:00Z", "peer": {"addr": "203.0.113.7"}}\n' * 3)
    done = run(str(path), "--rule", "5/minute", "--format", form)
    assert done.exit_code == 2
    output = " ".join(done.output.split())
    assert "--field time=NAME" in output
    assert "moment, peer.addr" in output
    words = ("--field", "time=moment", "--field", "address=peer.addr", "--format", "json")
    assert run(str(path), "--rule", "2/minute", *words).exit_code == 0


def test_strict_stops_at_a_line(log: str) -> None:
    with Path(log).open("a") as file:
        file.write("nothing\n")
    assert run(log, "--rule", "5/minute").exit_code == 0
    done = run(log, "--rule", "5/minute", "--strict")
    assert done.exit_code == 1
    assert "line 13" in done.output
