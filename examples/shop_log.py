"""Generated traffic of a web shop whose truth is known: which requests are of people, and which of programs.

For tests, measurements and the tutorial: `python -m examples.shop_log access.log` writes a log. The same model
gives the same traffic on every machine and version of Python. What one actor does depends on nobody else, so a model
with an attack has the same visitors as the model without it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import count, islice
from math import log
from pathlib import Path
from random import Random
from typing import Final, Literal, NamedTuple

Kind = Literal["human", "office", "client", "crawler", "scraper", "attack", "distributed", "storm"]
"""Who sent a request.

- `human`: a visitor with an address of their own. `office`: one of many people behind one address.
- `client`: a program with an account, which calls the API at regular times. `storm`: its calls during an outage, which
  it repeats without a pause.
- `crawler`: slow, says who it is. `scraper`: fast, says that it is a browser.
- `attack`: one address that tries passwords. `distributed`: the same from many addresses, each as slow as a person.
"""

PEOPLE: Final = frozenset({"human", "office"})

SECOND: Final = 1_000_000
DAY: Final = 86_400 * SECOND
LOGIN: Final = "/login"
_RHYTHM: Final = (4, 2, 1, 1, 1, 2, 5, 9, 13, 15, 16, 16, 15, 15, 15, 15, 16, 17, 19, 21, 22, 19, 14, 8)  # by hour
_OFFICE: Final = (0, 0, 0, 0, 0, 0, 0, 2, 9, 14, 10, 8, 4, 7, 9, 8, 7, 4, 1, 0, 0, 0, 0, 0)
_BROWSERS: Final = (
    "Mozilla/5.0 (Windows NT 10.0; Win64; x64) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/{}.0.0.0 Safari/537.36",
    "Mozilla/5.0 (X11; Linux x86_64; rv:{0}.0) Gecko/20100101 Firefox/{0}.0",
    "Mozilla/5.0 (Macintosh; Intel Mac OS X 10_15_7) AppleWebKit/605.1.15 (KHTML, like Gecko) Version/{} Safari/605.1",
    "Mozilla/5.0 (Linux; Android 15) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/{}.0.0.0 Mobile Safari/537.36",
    "Mozilla/5.0 (iPhone; CPU iPhone OS 18_{0} like Mac OS X) AppleWebKit/605.1.15 (KHTML, like Gecko) Mobile/15E{0}",
)
_CRAWLER: Final = "Mozilla/5.0 (compatible; Examplebot/2.1; +https://bot.example/about)"
_WORDS: Final = ("lamp", "chair", "desk", "shelf", "sofa", "rug", "bed", "table")
_ITEMS: Final = 2000


class Event(NamedTuple):
    """One request: columns of traffic, and the truth."""

    time: int
    address: str
    user: str | None
    method: str
    path: str
    query: str | None
    status: int
    bytes: int
    duration: int
    agent: str
    kind: Kind
    actor: str


@dataclass(frozen=True, kw_only=True)
class Model:
    """How much of what: numbers of actors, and rates in requests a second."""

    seed: int = 1
    start: datetime = datetime(2026, 3, 2, tzinfo=UTC)  # a Monday
    days: int = 3
    visitors: int = 400  # people a day with an address of their own
    office: int = 80  # people a day behind the one address of an office
    clients: int = 4
    crawlers: int = 2
    scrapers: int = 1
    attack: float = 2.0  # passwords a second from one address, for an hour each day; 0 for none
    distributed: int = 0  # addresses that try three passwords a day each
    storm: bool = True  # on the second day the API fails for five minutes


class _Actor:
    """One actor on one day: draws its requests."""

    def __init__(self, model: Model, day: int, who: tuple[Kind, int]) -> None:
        kind, number = who
        self.random = random = Random(f"{model.seed}/{day}/{kind}/{number}").random  # not for secrets
        self.kind: Kind = kind
        self.name = f"{kind}-{number}"
        self.begin = _midnight(model, day)
        self.address = ""
        self.user: str | None = None
        self.agent = _BROWSERS[int(random() * len(_BROWSERS))].format(int(90 + random() * 50))
        self.events: list[Event] = []

    def at(self, hours: tuple[int, ...]) -> float:
        """Return a time of this day, in seconds, that follows a rhythm."""
        left = self.random() * sum(hours)
        for hour, weight in enumerate(hours):
            left -= weight
            if left < 0:
                return (hour + self.random()) * 3600
        return 0.0

    def pause(self, mean: float) -> float:
        """Return the length of a pause: exponential, so that short ones are frequent."""
        return -mean * log(1 - self.random())

    def send(
        self,
        at: float,
        path: str,
        *,
        method: str = "GET",
        query: str | None = None,
        status: int = 200,
        size: int = 8000,
    ) -> None:
        """Add one request, `at` seconds after midnight."""
        draw = self.random()
        self.events.append(
            Event(
                time=self.begin + int(at * SECOND),
                address=self.address,
                user=self.user,
                method=method,
                path=path,
                query=query,
                status=status,
                bytes=size // 2 + int(draw * size),
                duration=int((2 + 40 * draw * draw) * 1000),
                agent=self.agent,
                kind=self.kind,
                actor=self.name,
            )
        )


def _browse(actor: _Actor, at: float) -> None:
    """One visit: pages with their images, pauses to read, perhaps a search and a login."""
    random, send = actor.random, actor.send
    send(at, "/")
    for asset in ("app.css", "shop.css", "app.js", "cart.js", "logo.svg", "font.woff2"):
        if random() < 0.8:  # the others are in the browser's cache
            send(at + 0.1 + random() * 0.6, f"/static/{asset}", size=30_000)
    login = 0.25 if actor.kind == "human" else 0.9  # an office works with its account
    if random() < login:
        at = _login(actor, at + 2 + actor.pause(6))
    while random() < 0.85:
        at += 1.5 + actor.pause(14)
        choice = random()
        if choice < 0.15:
            send(at, "/search", query=f"q={_WORDS[int(random() * len(_WORDS))]}")
        elif choice < 0.2:
            send(at, "/cart")
        elif choice < 0.22:
            send(at, f"/old/{int(random() * 100)}", status=404, size=400)
        else:
            item = int(random() * random() * _ITEMS)
            send(at, f"/items/{item}")
            for number in range(int(random() * 4)):
                send(at + 0.1 + random() * 0.5, f"/static/items/{item}-{number}.jpg", size=60_000)
    if actor.user is not None and random() < 0.4:
        send(at + 5 + actor.pause(20), "/orders", method="POST", status=302, size=300)
    actor.user = None


def _login(actor: _Actor, at: float) -> float:
    """A login, with the mistakes that people make: one in eight mistypes, and some try several passwords."""
    actor.send(at, LOGIN)
    for _ in range(4):
        at += 3 + actor.pause(8)
        if actor.random() > 0.125:
            actor.user = actor.name
            actor.send(at, LOGIN, method="POST", status=302, size=300)
            return at
        actor.send(at, LOGIN, method="POST", status=401, size=900)
    return at


def _human(actor: _Actor, number: int) -> None:
    for visit in range(1 + (actor.random() < 0.3)):
        if number % 8 == 7:  # IPv6: the network is the household's, the rest changes
            actor.address = f"2001:db8:{number:x}::{int(actor.random() * 65535) + 1:x}:{visit + 1:x}"
        else:
            actor.address = f"84.{number >> 16 & 255}.{number >> 8 & 255}.{number & 255}"
        _browse(actor, actor.at(_RHYTHM))


def _office(actor: _Actor, number: int) -> None:
    actor.address = "198.51.100.7"
    for _ in range(2):
        _browse(actor, actor.at(_OFFICE))


def _client(actor: _Actor, number: int, outage: tuple[float, float]) -> None:
    actor.address, actor.user, actor.agent = f"203.0.113.{number % 250 + 1}", f"service-{number}", "shop-client/3.2"
    every = (10, 30, 60, 300)[number % 4]
    at = actor.random() * every
    while at < 86_400:
        if outage[0] <= at < outage[1]:
            actor.kind = "storm"
            actor.send(at, f"/api/orders/{int(actor.random() * 500)}", status=503, size=200)
            at += 0.08 + actor.random() * 0.04
        else:
            actor.kind = "client"
            actor.send(at, f"/api/orders/{int(actor.random() * 500)}", size=1500)
            at += every + (actor.random() - 0.5) * 0.1


def _crawler(actor: _Actor, number: int) -> None:
    actor.address, actor.agent = f"192.0.2.{number % 250 + 1}", _CRAWLER
    at = actor.random() * 20
    actor.send(at, "/robots.txt", size=200)
    while (at := at + 8 + actor.random() * 8) < 86_400:
        actor.send(at, f"/items/{int(actor.random() * _ITEMS)}")


def _scraper(actor: _Actor, number: int) -> None:
    actor.address = f"45.9.{number >> 8 & 255}.{number & 255}"
    for _ in range(3):
        at = actor.at(_RHYTHM)
        for item in range(int(actor.random() * _ITEMS), _ITEMS + 300):
            at += 0.05 + actor.random() * 0.2
            gone = item >= _ITEMS
            actor.send(at, f"/items/{item}", status=404 if gone else 200, size=400 if gone else 8000)


def _attack(actor: _Actor, rate: float) -> None:
    actor.address, actor.agent = "185.220.101.4", "python-requests/2.32"
    begin = at = actor.random() * 82_000
    while at < begin + 3600:
        actor.send(at, LOGIN, method="POST", status=401, size=900)
        at += actor.pause(1 / rate)


def _distributed(actor: _Actor, number: int) -> None:
    actor.address = f"91.{number >> 16 & 255}.{number >> 8 & 255}.{number & 255}"
    for _ in range(3):
        actor.send(actor.random() * 86_400, LOGIN, method="POST", status=401, size=900)


def events_of(model: Model, day: int) -> list[Event]:
    """Return the requests of the visits that begin on one day, in no order."""
    begin = Random(f"{model.seed}/outage").random() * 80_000  # not for secrets
    outage = (begin, begin + 300) if model.storm and day == 1 else (0.0, 0.0)
    actors: tuple[tuple[Kind, int, Callable[[_Actor, int], None]], ...] = (
        ("human", model.visitors, _human),
        ("office", model.office if (day + model.start.weekday()) % 7 < 5 else 0, _office),
        ("client", model.clients, lambda actor, number: _client(actor, number, outage)),
        ("crawler", model.crawlers, _crawler),
        ("scraper", model.scrapers, _scraper),
        ("attack", 1 if model.attack else 0, lambda actor, _: _attack(actor, model.attack)),
        ("distributed", model.distributed, _distributed),
    )
    events: list[Event] = []
    for kind, actors_of, behave in actors:
        for number in range(actors_of):
            actor = _Actor(model, day, (kind, number))
            behave(actor, _person(actor, model, number) if kind == "human" else number)
            events += actor.events
    return events


def _midnight(model: Model, day: int) -> int:
    return int(model.start.timestamp()) * SECOND + day * DAY


def _person(actor: _Actor, model: Model, number: int) -> int:
    """Return which person comes: half of the visitors of a day come every day."""
    if number % 2 == 0:
        return number
    person = model.visitors + int(actor.random() * 20 * model.visitors)
    actor.name = f"human-{person}"
    return person


def days(model: Model) -> Iterator[list[Event]]:
    """Yield the requests of one day after another, sorted by time, without end. A visit at midnight is in two."""
    carried: list[Event] = []
    for day in count():
        events = sorted(carried + events_of(model, day))
        midnight = _midnight(model, day + 1)
        end = next((number for number, event in enumerate(events) if event.time >= midnight), len(events))
        carried = events[end:]
        yield events[:end]


def write(model: Model, path: str | Path, *, size: int | None = None) -> int:
    """Write a log in the combined format, and return the number of lines. With `size`, write as many days as it takes
    to fill that many bytes.
    """
    lines = written = 0
    second, stamp = -1, ""
    with Path(path).open("w", encoding="utf-8", newline="\n", buffering=1 << 20) as file:
        for events in islice(days(model), model.days if size is None else None):
            for event in events:
                if event.time // SECOND != second:
                    second = event.time // SECOND
                    stamp = f"{datetime.fromtimestamp(second, UTC):%d/%b/%Y:%H:%M:%S} +0000"
                written += file.write(line_of(event, stamp))
                lines += 1
                if size is not None and written >= size:
                    return lines
    return lines


def line_of(event: Event, stamp: str) -> str:
    """Return a request as a line of a log in the combined format. `stamp` is its time."""
    target = event.path if event.query is None else f"{event.path}?{event.query}"
    return (
        f'{event.address} - {event.user or "-"} [{stamp}] "{event.method} {target} HTTP/1.1"'
        f' {event.status} {event.bytes} "-" "{event.agent}"\n'
    )


if __name__ == "__main__":
    sys.stdout.write(f"{write(Model(), sys.argv[1])} lines\n")
