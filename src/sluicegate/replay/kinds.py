"""Kinds of identities: people, many people behind one address, and programs, told apart by what they do.

Each sign of a program is stated in SIGNS, below the reason why people do not do it. Three points make a program: one
sign alone does not, except a list of refused passwords. Many people may share an address if there are several browsers,
or no User-Agents in the log: then only signs count that a crowd cannot give. From five browsers or users on, four
points are needed. A suggested limit may refuse programs only, so doubt counts for people: the kind is "unclear".
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final, NamedTuple

from sluicegate.errors import needs
from sluicegate.replay.peaks import PEAK, peaks
from sluicegate.replay.traffic import COLUMNS
from sluicegate.replay.words import printable, share, span

with needs("replay"):
    import polars as pl

HUMAN: Final = "human"
SHARED: Final = "shared"
AUTOMATED: Final = "automated"
UNCLEAR: Final = "unclear"
"""The kinds. A limit should refuse only `automated`. `shared` is an address with many people behind it, as an office
has. `unclear` made too few requests to say, or may be many people or a program with many names: it counts as people.
"""
KINDS: Final = (HUMAN, SHARED, UNCLEAR, AUTOMATED)

WANTED: Final = ("method", "path", "status", "agent", "user")
"""The columns of traffic that the signs and `suggest` read."""
SEEN: Final = ("path", "status", "agent", "user", "asset", "program", "name")
"""The columns that `kinds` reads, beside the identity and the time."""

_ASSET: Final = r"(?i)\.(?:css|m?js|map|png|jpe?g|gif|svg|ico|webp|avif|woff2?|ttf|eot|mp4|webm|mp3)$"
# Kubernetes; the load balancers of AWS, Google and Azure; Consul, Envoy, Prometheus, Nagios; and services that watch.
_CHECKER: Final = (
    r"(?i)kube-probe|health.?check|googlehc|health probe|load balancer agent|envoy/hc|blackbox.exporter|check_http|"
    r"pingdom|uptime|newrelicpinger|statuscake|site24x7|zabbix|datadog"
)
_PROGRAM: Final = (
    rf"{_CHECKER}|bot\b|crawl|spider|slurp|curl/|wget/|python|aiohttp|httpx|scrapy|java/|go-http|okhttp|axios|"
    r"node-fetch|libwww|headless|phantomjs|monitor|[a-z]-client/"
)
_FEW: Final = 10  # requests: fewer say nothing about who sends them
MANY: Final = 5  # browsers: a person has a phone, a tablet and a computer
_ENOUGH: Final = 3  # points of a program
_ENOUGH_OF_MANY: Final = 4  # where many people seem to share the address
_ASSETS: Final = 0.05  # of the requests of half the identities: then the log has assets
_HOUR: Final = 3_600_000_000
_DAY: Final = 24 * _HOUR
_LOOK: Final = 300_000_000
_CHECKED: Final = 0.95  # of the requests of a health check: answered with 2xx


class Sign(NamedTuple):
    """A sign of a program."""

    points: int
    reason: str  # with the identity's own figures in braces
    crowd: bool = False  # many people behind one address may do it


SIGNS: Final[Mapping[str, Sign]] = {
    # People pause for a second here and a minute there; the middle half of 20 pauses within 10 % is a timer.
    "regular": Sign(2, "half of its pauses last {pauses}"),
    # People sleep: 20 different hours of a day are too many.
    "sleepless": Sign(2, "active in {hours} hours of one day", crowd=True),
    # A page a second for five minutes is faster than people read.
    "fast": Sign(2, "{fastest:,} pages within 5 minutes"),
    # People mistype, but most of what they ask for exists: half of 20 requests is a guess.
    "failing": Sign(2, "{failures} of its {requests:,} requests failed with 401, 403 or 404"),
    # People open a page before they log in; three refused requests and nothing else is a list of passwords.
    "refused": Sign(3, "each of its {requests:,} requests failed with 401 or 403"),
    # Browsers load them with a page; a cache may hold some, but hardly all of 20 requests.
    "bare": Sign(1, "none of its {requests:,} requests was for an image, a script or a style", crowd=True),
    # People open dozens of pages a day, not 200 different ones.
    "wandering": Sign(1, "{paths:,} different pages in one day", crowd=True),
    # 50 requests to one path are seldom a person's.
    "single": Sign(1, "each of its {requests:,} requests is for the same path"),
    # Only a program says that it is one; any program may say that it is not.
    "name": Sign(2, "it calls itself {agent}", crowd=True),
    # Nobody browses with such a name.
    "checker": Sign(1, "this is a name of health checks"),
}


class Kinds(NamedTuple):
    """The kind of each identity."""

    table: pl.DataFrame  # `identity`, `kind`, `people`, a column for each sign, their figures, and `check`

    def reasons(self, who: int | str) -> tuple[str, ...]:
        """Return why an identity is taken for a program."""
        row = self.table.row(by_predicate=pl.col("identity") == who, named=True)
        texts = {"failures": share(row["failed"], 1), "pauses": _pauses(row["low"] or 0, row["high"] or 0)}
        texts["agent"] = printable(row["agent"] or "")
        signs = [name for name in SIGNS if row[name] and not (name == "failing" and row["refused"])]  # says more
        return tuple([SIGNS[name].reason.format(**row | texts) for name in signs])


def _pauses(low: float, high: float) -> str:
    """Return how long the middle half of pauses lasts.

    >>> _pauses(9.98, 10.01), _pauses(57, 62)
    ('10 s', '57 s to 1 min 2 s')
    """
    return " to ".join(dict.fromkeys([span(low), span(high)]))


def is_asset() -> pl.Expr:
    """Return whether the column `path` is an image, a script, a style or the like: browsers load them unasked."""
    return pl.col("path").cast(pl.String()).str.contains(_ASSET).fill_null(value=False)


def is_program() -> pl.Expr:
    """Return whether the column `agent` is the name of a program that says so."""
    return pl.col("agent").cast(pl.String()).str.contains(_PROGRAM).fill_null(value=False)


def seen(frame: pl.DataFrame, texts: Collection[str] = ()) -> pl.DataFrame:
    """Add the columns of SEEN. Paths, User-Agents and users are only compared, so a hash of each is enough, but for
    those whose `texts` are needed.
    """
    absent = [pl.lit(None, COLUMNS[name]).alias(name) for name in WANTED if name not in frame.columns]
    rows = frame.with_columns(absent).with_columns(asset=is_asset(), program=is_program())
    hashed = [pl.col(name) for name in ("path", "agent", "user") if name not in texts]
    hashed = [pl.when(each.is_not_null()).then(each.hash()).alias(each.meta.output_name()) for each in hashed]
    return rows.with_columns(*hashed, name=pl.when("program").then("agent"))


def loading(frame: pl.DataFrame) -> tuple[int, int]:
    """Return how many identities that may be people loaded some assets, as browsers do, and how many there are."""
    mine = frame.filter(~pl.col("program")).group_by("identity")
    known = mine.agg(requests=pl.len(), assets=pl.col("asset").sum()).filter(pl.col("requests") >= _FEW)
    return known.filter(pl.col("assets") >= _ASSETS * pl.col("requests")).height, known.height


def sees_assets(loads: int, of: int) -> bool:
    """Return whether the log has the assets that browsers load: half of those who may be people loaded some."""
    return 0 < of <= 2 * loads


def kinds(frame: pl.DataFrame, *, sees_assets: bool, resolution: int) -> Kinds:
    """Return the kinds of identities, from their requests in order of time, with the columns `identity`, `time` and
    SEEN. People are the different User-Agents that do not say that they are programs, or the different users whose
    requests succeeded, on the busiest day: a list of passwords has many users too. A browser is such a User-Agent with
    three requests, one of them for an asset: a program that changes its name with each request has none.
    """
    status = pl.col("status")
    whole = frame.group_by("identity", maintain_order=True).agg(
        requests=pl.len(),
        failed=status.is_in([401, 403, 404]).sum(),
        denied=status.is_in([401, 403]).sum(),
        known=status.count(),
        fine=status.is_between(200, 299).sum(),
        assets=pl.col("asset").sum(),
        program=pl.col("program").mean() >= 0.5,
        checker=pl.col("name").cast(pl.String()).str.contains(_CHECKER).sum() >= pl.len() / 2,
        agent=pl.col("name").drop_nulls().first(),
        named=pl.col("agent").is_not_null().any(),
        path=pl.col("path").first(),
        single=pl.col("path").n_unique() == 1,
    )
    fastest = peaks(frame.filter(~pl.col("asset")), ["identity"], [_LOOK]).rename({f"{PEAK}{_LOOK}": "fastest"})
    table = (
        whole.join(_daily(frame, sees_assets=sees_assets), on="identity", how="left")
        .join(_middle(frame), on="identity", how="left")
        .join(fastest, on="identity", how="left")
        .with_columns(
            pl.col("people").fill_null(1).clip(1),
            pl.col(["browsers", "fastest"]).fill_null(0),
            (pl.col("failed", "denied") / pl.col("known")).fill_nan(0),
        )
    )
    requests, many = pl.col("requests"), pl.col("people") >= MANY
    steady = (requests > 20) & (pl.col("high") - pl.col("low") <= 0.1 * pl.col("middle") + resolution / 1e6)
    table = table.with_columns(
        regular=steady & (pl.col("middle") >= 10 * resolution / 1e6),
        sleepless=(pl.col("hours") >= 20) & ~many,
        fast=pl.col("named") & (pl.col("fastest") > 300 * pl.col("people")),
        failing=(requests >= 20) & (pl.col("failed") >= 0.5),
        refused=(requests >= 3) & (pl.col("denied") == 1) & sees_assets,
        bare=(requests >= 20) & (pl.col("assets") == 0) & sees_assets,
        wandering=pl.col("paths") >= 200 * pl.col("people"),
        single=(requests >= 50) & pl.col("single"),
        name=pl.col("program"),
        # A health check says so, or asks for one path, at equal pauses, and is nearly always answered with 2xx.
        check=pl.col("checker") & (pl.col("failed") < 0.5)
        | steady & (pl.col("middle") >= 1) & pl.col("single") & (pl.col("fine") >= _CHECKED * requests),
    )
    maybe_many = (pl.col("people") > 1) | ~pl.col("named")
    points = pl.sum_horizontal(
        pl.when(~maybe_many | (not sign.crowd)).then(pl.col(name).cast(pl.Int32) * sign.points).otherwise(0)
        for name, sign in SIGNS.items()
    )
    kind = (
        pl.when(points >= pl.when(many).then(_ENOUGH_OF_MANY).otherwise(_ENOUGH))
        .then(pl.lit(AUTOMATED))
        .when(pl.col("browsers") >= MANY)
        .then(pl.lit(SHARED))
        .when(many | (requests < _FEW))
        .then(pl.lit(UNCLEAR))
        .otherwise(pl.lit(HUMAN))
    )
    return Kinds(table.with_columns(kind=kind))


def _daily(frame: pl.DataFrame, *, sees_assets: bool) -> pl.DataFrame:
    """Return what differs on the busiest day of each identity: its hours, paths, people and browsers."""
    by_someone = pl.col("agent").is_not_null() & ~pl.col("program")
    different = {  # whose different values are counted, and in which requests
        "hour": (pl.col("time") // _HOUR, pl.lit(value=True)),
        "path": (pl.col("path"), ~pl.col("asset")),
        "agent": (pl.col("agent"), by_someone),
        "user": (pl.col("user"), pl.col("user").is_not_null() & (pl.col("status") < 400).fill_null(value=True)),
    }
    used = pl.concat(
        frame.filter(those)
        .group_by("identity", day=pl.col("time") // _DAY, what=pl.lit(what), value=value.hash())
        .agg(requests=pl.len(), assets=pl.col("asset").sum())
        for what, (value, those) in different.items()
    )
    is_browser = (pl.col("requests") >= 3) & ((pl.col("assets") > 0) | (not sees_assets))
    days = used.group_by("identity", "day", "what").agg(number=pl.len().cast(pl.Int64), browsers=is_browser.sum())
    hour, path, agent, user = [pl.col("what") == what for what in different]
    number, browsers = pl.col("number"), pl.col("browsers").cast(pl.Int64)
    return days.group_by("identity").agg(
        hours=number.filter(hour).max(),
        paths=number.filter(path).max().fill_null(0),
        people=number.filter(agent | user).max(),
        browsers=pl.max_horizontal(browsers.filter(agent).max(), number.filter(user).max()),
    )


def _middle(frame: pl.DataFrame) -> pl.DataFrame:
    """Return the quarters of the pauses of each identity, in seconds: its `low`, `middle` and `high` pause."""
    pause = pl.col("time").diff().over("identity") / 1e6
    rows = frame.select("identity", pause=pause).drop_nulls().group_by("identity")
    parts = {"low": 0.25, "middle": 0.5, "high": 0.75}
    place = pl.len().cast(pl.Int64) - 1
    return rows.agg(
        **{name: pl.col("pause").sort().get((place * part).round().cast(pl.Int64)) for name, part in parts.items()}
    )


def unseen(*, assets: bool, agents: bool, statuses: bool) -> tuple[str, ...]:
    """Return what a log without these does not show."""
    found: list[str] = []
    if not assets:
        found.append("the log has no images, scripts or styles: whether a client loads them says nothing")
    if not agents:
        found.append("the log has no User-Agent: many people behind one address look like one fast person")
    if not statuses:
        found.append("the log has no statuses: failed requests are not seen")
    return tuple(found)
