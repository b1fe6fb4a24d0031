"""Kinds of identities: people, many people behind one address, and programs, told apart by what they do.

Each sign of a program is stated in SIGNS with its threshold and the reason for it. Three points make a program: one
sign alone does not, except a list of refused passwords. Many people may share an address if there are several browsers,
or no User-Agents in the log: then only signs count that a crowd cannot give. From five browsers or users on, four
points are needed. A suggested limit may refuse programs only, so doubt counts for people: the kind is "unclear".
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from sluicegate.extras import needs
from sluicegate.replay.peaks import peaks
from sluicegate.replay.words import share, span

with needs("replay"):
    import polars as pl

HUMAN: Final = "human"
SHARED: Final = "shared"
AUTOMATED: Final = "automated"
UNCLEAR: Final = "unclear"
PROTECTED: Final = (HUMAN, SHARED, UNCLEAR)
"""Kinds that a limit should not refuse. `shared` is an address with many people behind it, as an office or a mobile
network has. `unclear` made too few requests to say, or may be many people or a program with many names. It is treated
like people.
"""

_ASSET: Final = r"(?i)\.(?:css|m?js|map|png|jpe?g|gif|svg|ico|webp|avif|woff2?|ttf|eot|mp4|webm|mp3)$"
_PROGRAM: Final = (
    r"(?i)bot\b|crawl|spider|slurp|curl/|wget/|python|aiohttp|httpx|scrapy|java/|go-http|okhttp|axios|node-fetch|"
    r"libwww|headless|phantomjs|monitor|[a-z]-client/"
)
_FEW: Final = 10  # requests: fewer say nothing about who sends them
MANY: Final = 5  # browsers: a person has a phone, a tablet and a computer
_ENOUGH: Final = 3  # points of a program
_ENOUGH_OF_MANY: Final = 4  # where many people seem to share the address
_ASSETS: Final = 0.05  # of the requests of half the identities: then the log has assets
_HOUR: Final = 3_600_000_000
_DAY: Final = 24 * _HOUR
_LOOK: Final = 300_000_000


class Sign(NamedTuple):
    """A sign of a program."""

    points: int
    reason: str  # with the identity's own figures in braces
    why: str  # why people do not do this
    crowd: bool = False  # many people behind one address may do it


SIGNS: Final[Mapping[str, Sign]] = {
    "regular": Sign(
        2,
        "half of its pauses last {pauses}",
        "people pause for a second here and a minute there; the middle half of 20 pauses within 10 % is a timer",
    ),
    "sleepless": Sign(
        2,
        "active in {hours} hours of one day",
        "people sleep: 20 different hours of a day are too many",
        crowd=True,
    ),
    "fast": Sign(
        2,
        "{fastest:,} pages within 5 minutes",
        "a page a second for five minutes is faster than people read",
    ),
    "failing": Sign(
        2,
        "{failures} of its {requests:,} requests failed with 401, 403 or 404",
        "people mistype, but most of what they ask for exists: half of 20 requests is a guess",
    ),
    "refused": Sign(
        3,
        "each of its {requests:,} requests failed with 401 or 403",
        "people open a page before they log in; three refused requests and nothing else is a list of passwords",
    ),
    "bare": Sign(
        1,
        "none of its {requests:,} requests was for an image, a script or a style",
        "browsers load them with a page; a cache may hold some, but hardly all of 20 requests",
        crowd=True,
    ),
    "wandering": Sign(
        1,
        "{paths:,} different pages in one day",
        "people open dozens of pages a day, not 200 different ones",
        crowd=True,
    ),
    "single": Sign(
        1, "each of its {requests:,} requests is for the same path", "50 requests to one path are seldom a person's"
    ),
    "name": Sign(
        2,
        "it calls itself {agent!r}",
        "only a program says that it is one; any program may say that it is not",
        crowd=True,
    ),
}


class Kinds(NamedTuple):
    """The kind of each identity, and what the log cannot show."""

    table: pl.DataFrame  # `who`, `kind`, `people`, a column for each sign, and the figures of its reasons
    unseen: tuple[str, ...]

    def reasons(self, who: Any) -> tuple[str, ...]:
        """Return why an identity has its kind."""
        row = self.table.row(by_predicate=pl.col("who") == who, named=True)
        texts = {"failures": share(row["failed"], 1), "pauses": _pauses(row["low"] or 0, row["high"] or 0)}
        signs = [name for name in SIGNS if row[name] and not (name == "failing" and row["refused"])]  # says more
        found = [SIGNS[name].reason.format(**row, **texts) for name in signs]
        if row["kind"] == SHARED:
            return (f"{row['people']} browsers or users in one day", *found)
        if row["kind"] == UNCLEAR and row["people"] >= MANY:
            return (f"{row['people']} User-Agents in one day: many people, or a program with many names", *found)
        if row["kind"] == UNCLEAR:
            return (f"only {row['requests']} requests", *found)
        return tuple(found) or ("no sign of a program",)


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


def kinds_of(frame: pl.DataFrame, *, resolution: int) -> Kinds:
    """Tell the kinds of all identities, from `who`, `time`, `path`, `status`, `agent`, `user`, `asset` and `program`.

    `asset` and `program` are columns by `is_asset` and `is_program`. `path`, `agent` and `user` need not be text: only
    equal values matter. `resolution` is that of the times, in microseconds.
    """
    sees_assets = _sees_assets(frame)
    day = pl.col("time") // _DAY
    hour = pl.col("time") // _HOUR
    gap = pl.col("time").diff().cast(pl.Float64)
    whole = frame.group_by("who", maintain_order=True).agg(
        requests=pl.len(),
        failed=pl.col("status").is_in([401, 403, 404]).mean(),
        denied=pl.col("status").is_in([401, 403]).mean(),
        assets=pl.col("asset").sum(),
        targets=pl.col("path").n_unique(),
        program=pl.col("program").mean() >= 0.5,
        agent=pl.col("agent").filter("program").first(),
        named=pl.col("agent").is_not_null().any(),
        low=gap.quantile(0.25) / 1e6,
        middle=gap.quantile(0.5) / 1e6,
        high=gap.quantile(0.75) / 1e6,
    )
    daily = frame.group_by("who", day.alias("day")).agg(
        hours=hour.n_unique(), paths=pl.col("path").filter(~pl.col("asset")).n_unique()
    )
    fastest = peaks(frame.filter(~pl.col("asset")), ["who"], [_LOOK]).rename({f"peak:{_LOOK}": "fastest"})
    table = (
        whole.join(daily.group_by("who").agg(pl.col("hours", "paths").max()), on="who", how="left")
        .join(_people(frame, sees_assets=sees_assets), on="who", how="left")
        .join(fastest, on="who", how="left")
        .with_columns(
            pl.col("people").fill_null(1).clip(1),
            pl.col(["browsers", "fastest", "failed", "denied"]).fill_null(0),
        )
    )
    requests, many = pl.col("requests"), pl.col("people") >= MANY
    table = table.with_columns(
        regular=(requests > 20)
        & (pl.col("middle") >= 10 * resolution / 1e6)
        & (pl.col("high") - pl.col("low") <= 0.1 * pl.col("middle") + resolution / 1e6),
        sleepless=(pl.col("hours") >= 20) & ~many,
        fast=pl.col("named") & (pl.col("fastest") > 300 * pl.col("people")),
        failing=(requests >= 20) & (pl.col("failed") >= 0.5),
        refused=(requests >= 3) & (pl.col("denied") == 1) & sees_assets,
        bare=(requests >= 20) & (pl.col("assets") == 0) & sees_assets,
        wandering=pl.col("paths") >= 200 * pl.col("people"),
        single=(requests >= 50) & (pl.col("targets") == 1),
        name=pl.col("program"),
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
    return Kinds(table.with_columns(kind=kind), _unseen(frame, sees_assets=sees_assets))


def _sees_assets(frame: pl.DataFrame) -> bool:
    """Return whether the log has the assets that browsers load: half of those who may be people loaded some."""
    each = frame.filter(~pl.col("program")).group_by("who").agg(requests=pl.len(), share=pl.col("asset").mean())
    half = each.filter(pl.col("requests") >= _FEW)["share"].median()
    return isinstance(half, float) and half >= _ASSETS


def _people(frame: pl.DataFrame, *, sees_assets: bool) -> pl.DataFrame:
    """Return how many `people` each identity may be, and how many `browsers` it surely has, on its busiest day.

    People are the different User-Agents that do not say that they are programs, or the different users whose requests
    succeeded: a list of passwords has many users too. A browser is such a User-Agent with three requests, one of them
    for an asset: a program that changes its name with each request has none.
    """
    day = (pl.col("time") // _DAY).alias("day")
    agents = frame.filter(pl.col("agent").is_not_null() & ~pl.col("program")).group_by("who", "agent", day)
    each = agents.agg(requests=pl.len(), assets=pl.col("asset").sum())
    is_browser = (pl.col("requests") >= 3) & ((pl.col("assets") > 0) | (not sees_assets))
    by_agent = each.group_by("who", "day").agg(people=pl.len().cast(pl.Int64), browsers=is_browser.sum().cast(pl.Int64))
    known = frame.filter(pl.col("user").is_not_null() & (pl.col("status") < 400).fill_null(value=True))
    users = (
        known.group_by("who", day)
        .agg(people=pl.col("user").n_unique().cast(pl.Int64))
        .with_columns(browsers=pl.col("people"))
    )
    daily = pl.concat([by_agent, users])
    return daily.group_by("who").agg(pl.col("people", "browsers").max())


def _unseen(frame: pl.DataFrame, *, sees_assets: bool) -> tuple[str, ...]:
    found: list[str] = []
    if not frame.height:
        return ()
    if not sees_assets:
        found.append("the log has no images, scripts or styles: whether a client loads them says nothing")
    if not frame["agent"].is_not_null().any():
        found.append("the log has no User-Agent: many people behind one address look like one fast person")
    if not frame["status"].is_not_null().any():
        found.append("the log has no statuses: failed requests are not seen")
    return tuple(found)
