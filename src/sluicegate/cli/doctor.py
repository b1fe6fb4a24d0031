"""`sluicegate doctor`: what is wrong with a store for rate limits, and what to do.

It asks each server about itself, and runs each algorithm once for a client that nobody else has. It changes nothing
else. A check that the user of the URL may not do is "unknown", which is not wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from functools import partial
from secrets import token_hex
from typing import Any, Final, Literal, NamedTuple

import click
from rich.console import Console
from rich.table import Column, Table

from sluicegate.algorithms import ALGORITHMS
from sluicegate.cli.application import Limiting
from sluicegate.cli.commands import load_app, option_app
from sluicegate.cli.output import as_json, console, plain, print_json
from sluicegate.clock import epoch_seconds, monotonic
from sluicegate.errors import AlgorithmError, ConfigurationError, StoreError, cause_text
from sluicegate.limiter import Limiter
from sluicegate.observe.status import describe, percentiles
from sluicegate.replay.words import count
from sluicegate.runtime.hidden import shown_url
from sluicegate.stores import DEADLINE, Store, open_store
from sluicegate.stores.wrappers import PREFIX

PATIENCE: Final = 2.0  # seconds that one command may take: a doctor may be far from the server
PINGS: Final = 50
RUNS: Final = 10  # of each algorithm
FULL: Final = 0.8  # of maxmemory
SKEW: Final = 1.0  # seconds between two clocks
OLDEST: Final = {"redis": (6, 2), "valkey": (7, 2)}
MB: Final = 1_048_576

Facts = Mapping[str, Any]  # of INFO: the client parses some of the values
State = Literal["good", "bad", "warning", "unknown"]
_REACH: Final = (
    "check that the server runs and answers PING (it may be stopped, swap, or run a long command or script: its log,"
    " SLOWLOG GET 10), and the host, the port, the password and the scheme in the URL (rediss:// or valkeys:// for TLS)"
)
_SIGNS: Final = {"good": ("✓", "green"), "bad": ("✗", "red"), "warning": ("!", "yellow"), "unknown": ("?", "yellow")}


class Finding(NamedTuple):
    """What one check has found."""

    about: str
    state: State
    says: str
    advice: str = ""  # what to do


def _good(about: str, says: str) -> Finding:
    return Finding(about, "good", says)


def _bad(about: str, says: str, advice: str = "") -> Finding:
    return Finding(about=about, state="bad", says=says, advice=advice)


_FORBIDDEN: Final = Finding(
    about="", state="unknown", says="the user may not ask for it (+info)", advice="run doctor as another user"
)


class Patient(NamedTuple):
    """One server, with what was found."""

    address: str
    findings: tuple[Finding, ...]


class Examined(NamedTuple):
    """A store that is examined."""

    store: Store
    shown: str
    prefix: str
    deadline: float  # of the application

    @property
    def title(self) -> str:
        return f"{self.shown} ({describe(self.store).topology}, prefix {self.prefix})"


@click.command()
@click.argument("url", required=False, metavar="[URL]")
@option_app
@click.option("--prefix", default=PREFIX, show_default=True, help="The prefix of the keys, for a URL.")
@as_json
def doctor(url: str | None, app: str | None, prefix: str, *, as_json: bool) -> None:
    """Examine the store at URL, or the store of the application. The exit status is 1 if something is wrong."""
    reports = []
    for examined in _stores(url, app, prefix):
        with closing(examined.store):
            reports.append((examined, list(_patients(examined))))
    bad = [f for _, patients in reports for patient in patients for f in patient.findings if f.state == "bad"]
    if as_json:
        print_json({"good": not bad, "stores": [_as_json(*report) for report in reports]})
    else:
        out = console()
        for report in reports:
            _print(out, *report)
        out.print(f"{len(bad)} wrong" if bad else "nothing wrong", style="red" if bad else "green")
    if bad:
        click.get_current_context().exit(1)


def _stores(url: str | None, app: str | None, prefix: str) -> Iterator[Examined]:
    """Yield the store at the URL, or each store of the application once."""
    if url is not None:
        if "://" not in url and not url.rpartition(":")[2].isdecimal():
            raise click.UsageError(f"{shown_url(url)!r} is no URL of a store; for an application write --app {url}")
        opened = open_store(url, prefix=prefix, deadline=PATIENCE)
        yield Examined(store=opened, shown=shown_url(url), prefix=prefix, deadline=DEADLINE)
        return
    stores: dict[tuple[str, str], list[Limiting]] = {}
    try:
        application = load_app(app)
    except click.UsageError as error:
        raise click.UsageError(f"{error.format_message()}; or give doctor the URL of a store") from error
    for limiting in application.limiters:
        store = limiting.settings.store
        if not isinstance(store, str):
            expected = "give doctor the URL of its server"
            raise ConfigurationError("store", type(store), problem="the application made it itself", expected=expected)
        stores.setdefault((store, limiting.settings.prefix), []).append(limiting)
    for (store, own), limiters in stores.items():
        opened = open_store(store, prefix=own, deadline=PATIENCE)
        deadline = min([each.settings.deadline for each in limiters])
        yield Examined(store=opened, shown=shown_url(store), prefix=own, deadline=deadline)


def _patients(examined: Examined) -> Iterator[Patient]:
    """Examine every server of a store."""
    store: Any = examined.store
    if not hasattr(store, "servers"):
        says = "the budgets are in the memory of each process: there is no server to examine"
        yield Patient(examined.shown, (_good("store", says), _scripts(examined)))
        return
    try:
        addresses = store.servers()
    except (StoreError, ConfigurationError) as error:
        yield Patient(examined.shown, (_failure("connection", error),))
        return
    for address in addresses:
        yield _Server(examined, address).examine()


class _Server:
    """The examination of one server."""

    def __init__(self, examined: Examined, address: Any) -> None:
        from sluicegate.stores.redis import server_info  # here: it needs redis-py

        self._examined = examined
        self._store: Any = examined.store
        self._address = address
        self._info = server_info

    def examine(self) -> Patient:
        """Run all checks. If the server does not answer, the first one says so, and no other one runs."""
        findings = list[Finding]()
        try:
            self._ping()
            findings.append(self._of_info("server", "server", self._version))
            findings.append(self._latency())
            findings.append(self._scripts())
            findings.append(self._of_info("topology", "replication", self._role))
            findings.append(self._of_info("memory", "memory", self._memory))
            findings.append(self._of_info("persistence", "persistence", self._persistence))
            findings.append(self._clock())
            findings.append(self._permissions(findings))
        except StoreError as error:
            findings.append(_failure("connection", error))
        return Patient(str(self._address), tuple(findings))

    def _ask(self, words: list[str | int]) -> Any:
        """Send a command. Raises StoreError."""
        return self._store.send(self._address, words)

    def _ping(self) -> None:
        with self._info.if_permitted():
            self._ask(["PING"])

    def _facts(self, section: str) -> Facts | None:
        """Return a section of INFO; None if the user may not call it."""
        with self._info.if_permitted():
            return self._info.facts_of(self._ask(["INFO", section]))
        return None

    def _of_info(self, about: str, section: str, check: Callable[[Facts], Finding]) -> Finding:
        """Check a section of INFO, if the user may call it."""
        facts = self._facts(section)
        return _FORBIDDEN._replace(about=about) if facts is None else check(facts)

    def _version(self, facts: Facts) -> Finding:
        version = self._info.version_of(facts)
        if version is None:
            return _FORBIDDEN._replace(about="server")
        name, _, number = version.partition(" ")
        parts = tuple([int(part) for part in number.split(".")[:2] if part.isdecimal()])
        oldest = OLDEST.get(name)
        if oldest is not None and parts < oldest:
            wanted = ".".join(map(str, oldest))
            return _bad("server", f"{version} is too old", f"install {name} {wanted} or later")
        return _good("server", version)

    def _latency(self) -> Finding:
        return Finding("round trip", *_compared([_timed(self._ping) for _ in range(PINGS)], self._examined.deadline))

    def _scripts(self) -> Finding:
        parts = getattr(self._store, "parts", None)
        return _scripts(self._examined, lambda identity: parts is None or parts(identity) == (str(self._address),))

    def _role(self, facts: Facts) -> Finding:
        replicas, topology = int(facts.get("connected_slaves", 0)), describe(self._store).topology
        enabled = (self._facts("cluster") or {}).get("cluster_enabled", "0")
        if facts.get("role") == "slave":
            advice = "give the URL of the master, of the Sentinels (redis+sentinel://) or of the cluster"
            return _bad("topology", "it is a replica, which only reads", advice)
        if str(enabled) == "1" and topology != "cluster":
            return _bad("topology", "it is a node of a cluster", "change the URL to redis+cluster://")
        if topology in ("sentinel", "cluster") and not replicas:
            advice = "add a replica: if this server stops, no other one can take its place"
            return _bad("topology", "a master without a replica", advice)
        return _good("topology", f"a master with {count(replicas, 'replica')}")

    def _memory(self, facts: Facts) -> Finding:
        used, most = int(facts.get("used_memory", 0)), int(facts.get("maxmemory", 0))
        policy = str(facts.get("maxmemory_policy", "noeviction"))
        if not most:
            advice = "set maxmemory, so that the server does not take the memory of the whole machine"
            return Finding("memory", "warning", f"{used / MB:.1f} MB used, without a maxmemory", advice=advice)
        says = f"{used / MB:.1f} of {most / MB:.1f} MB used, {policy}"
        if used > FULL * most:
            return _bad("memory", f"{says}: nearly full", "raise maxmemory, or take other data elsewhere")
        if policy in ("noeviction", "volatile-ttl"):
            return _good("memory", says)
        advice = "CONFIG SET maxmemory-policy noeviction; on a server that is also a cache, volatile-ttl (SG109)"
        return _bad("memory", f"{says}: a full server forgets clients that are refused", advice)

    def _persistence(self, facts: Facts) -> Finding:
        failed = [name for name in ("rdb_last_bgsave_status", "aof_last_write_status") if facts.get(name, "ok") != "ok"]
        if str(facts.get("loading", "0")) == "1":
            return _bad("persistence", "it is reading its data from disk", "wait until it has read them")
        if failed:
            says, advice = f"it cannot save its data to disk ({failed[0]})", "see its log; it may refuse all writes"
            return _bad("persistence", says, advice)
        if str(facts.get("aof_enabled", "0")) == "1":
            return _good("persistence", "it writes an append-only file")
        says = "no append-only file: a restart may empty it, and every client starts again"
        is_ours = self._examined.shown.startswith("embedded:")  # nobody configures it
        how = "embedded:// never writes one: use redis://" if is_ours else "CONFIG SET appendonly yes (and in its file)"
        return Finding("persistence", "warning", says, advice=f"{how}, if budgets and bans are to outlive a restart")

    def _clock(self) -> Finding:
        try:
            before, (seconds, micros), after = epoch_seconds(), self._ask(["TIME"]), epoch_seconds()
        except StoreError as error:
            return _failure("clock", error)
        apart = int(seconds) + int(micros) / 1_000_000 - (before + after) / 2
        if abs(apart) < SKEW:
            return _good("clock", "the same time as this machine")
        says = f"{abs(apart):.1f} s {'ahead of' if apart > 0 else 'behind'} this machine"
        advice = "run NTP on both: limits use the server's clock, also that of a server that takes over"
        return _bad("clock", says, advice)

    def _permissions(self, findings: Sequence[Finding]) -> Finding:
        refused = [found.about for found in findings if found.state == "bad" and "Permissions" in found.advice]
        if refused:
            says = f"the user may not call what sluicegate needs: see {' and '.join(refused)}"
            return _bad("permissions", says, 'grant what the page "Redis and Valkey" lists under Permissions')
        with self._info.if_permitted():
            self._ask(["SCAN", 0, "COUNT", 1])
            return _good("permissions", "the user may call what sluicegate needs, and SCAN")
        says = "the user may not call SCAN: bans, reset_all and the commands show and top cannot work"
        return Finding("permissions", "unknown", says, advice="add +scan to the user if you need them")


def _scripts(examined: Examined, fits: Callable[[str], bool] = bool) -> Finding:
    """Run every algorithm for a client of its own. `fits` says whether a server has the keys of an identity."""
    limiter = Limiter()
    limiter.store = examined.store  # without wrappers: its errors are raised
    client, times, ran = token_hex(8), list[float](), 0
    while not fits(limiter.text(client)):
        client = token_hex(8)
    names: Any = dict.fromkeys([algorithm.NAMES[0] for algorithm in ALGORITHMS.values()])
    for name in names:
        limit = limiter.limit(f"{RUNS}/second", action="doctor", algorithm=name)
        try:
            limit.hit(client)  # it may send the script
            times += [_timed(partial(limit.hit, client)) for _ in range(RUNS)]
            limit.reset(client)
        except AlgorithmError:  # the store knows fewer algorithms
            continue
        except (StoreError, ConfigurationError) as error:
            return _failure("scripts", error)
        ran += 1
    state, says, advice = _compared(times, examined.deadline)
    return Finding("scripts", state, f"{count(ran, 'algorithm')} ran, {says}", advice=advice)


def _timed(call: Callable[[], object]) -> float:
    began = monotonic()
    call()
    return monotonic() - began


def _compared(times: Sequence[float], deadline: float) -> tuple[State, str, str]:
    """Return how long the calls took, and whether that is near the deadline of a request."""
    median, most = percentiles(times) or (0.0, 0.0)
    says = f"median {median * 1000:.2f} ms, 99 % within {most * 1000:.2f} ms, the deadline is {deadline * 1000:g} ms"
    if median < deadline / 4:
        return "good", says, ""
    return "bad", says, "bring the server nearer to the application, or raise the option deadline"


def _failure(about: str, error: StoreError | ConfigurationError) -> Finding:
    """Return the finding of a failure, with what to do if the store knows it."""
    if isinstance(error, StoreError):
        return _bad(about, cause_text(error.cause), error.advice or _REACH)
    return _bad(about, str(error))


def _as_json(examined: Examined, patients: Sequence[Patient]) -> dict[str, object]:
    servers = [{"address": each.address, "findings": [one._asdict() for one in each.findings]} for each in patients]
    return {"store": examined.shown, "prefix": examined.prefix, "servers": servers}


def _print(out: Console, examined: Examined, patients: Sequence[Patient]) -> None:
    out.print(plain(examined.title, style="bold"))
    for patient in patients:
        if patient.address not in examined.shown:
            out.print(plain(patient.address))
        grid = Table.grid("", "", Column(overflow="fold"), padding=(0, 2, 0, 0))
        for about, state, says, advice in patient.findings:
            sign, color = _SIGNS[state]
            grid.add_row(plain(sign, color), about, plain(says))
            if advice:
                grid.add_row("", "", plain(f"→ {advice}", color))
        out.print(grid)
