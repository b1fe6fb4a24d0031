"""What a reader must know before the figures: keys that lines lack, and proxies that hide the clients."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from sluicegate.errors import needs
from sluicegate.replay.caller import LogKey
from sluicegate.replay.decide import Ready
from sluicegate.replay.log import Log
from sluicegate.replay.traffic import HEADER
from sluicegate.replay.words import share
from sluicegate.rules.key import KeySpec

with needs("replay"):
    import polars as pl

_PRIVATE: Final = r"^(?:10\.|127\.|192\.168\.|172\.(?:1[6-9]|2\d|3[01])\.|::1$|f[cd][0-9a-f]{2}:)"
_FEW: Final = 3  # addresses: of a load balancer, not of all clients
_LISTED: Final = 15  # fields of the log
_BY_ADDRESS: Final = "are counted by address"


class Hints:
    """Watches the frames of a log for what the keys of some candidates read."""

    def __init__(self, ready: Sequence[Ready]) -> None:
        self._keys: dict[str, tuple[str, set[str], str]] = {}  # by column: the key, its rules, what they do without
        for one in ready:
            for bound in one.bounds:
                for key, column, without in _read_by(one.gate.key_of(bound)):
                    self._keys.setdefault(column, (key, set(), without))[1].add(bound.rule.name)
        trusts = [each.settings.trust for each in ready]
        self._trusts_all = all([trust.hops or trust.networks or trust.unix for trust in trusts])
        self._have = Counter[str]()  # requests, by the columns of keys
        self.requests = self._private = 0
        self.first: int | None = None
        self.last: int | None = None
        self._forwards = False
        self._peers: set[str] = set()

    @property
    def wanted(self) -> set[str]:
        """The columns that it reads, beside those of the candidates."""
        return set() if self._trusts_all else {"address", "forwarded"}

    def watch(self, log: Log, wanted: set[str], *, since: int | None, until: int | None) -> Iterator[pl.DataFrame]:
        """Yield the frames of a log with these columns, from `since` to before `until`. Count what they have."""
        for whole in log.frames(wanted | self.wanted):
            frame = whole if since is None else whole.filter(pl.col("time") >= since)
            frame = frame if until is None else frame.filter(pl.col("time") < until)
            self._add(frame)
            yield frame

    def _add(self, frame: pl.DataFrame) -> None:
        if frame.height:
            self.first, self.last = frame["time"][0] if self.first is None else self.first, frame["time"][-1]
        self.requests += frame.height
        self._have.update({name: frame[name].count() for name in self._keys if name in frame.columns})
        if self._trusts_all or "address" not in frame.columns or "forwarded" not in frame.columns:
            return
        self._forwards = self._forwards or frame["forwarded"].null_count() < frame.height
        if self._forwards:
            peers = frame["address"].drop_nulls()
            self._private += int(peers.str.contains(_PRIVATE).sum())
            if len(self._peers) <= _FEW:
                self._peers.update(peers.unique().head(_FEW + 1))

    @property
    def absent(self) -> list[str]:
        """The keys that no line has, and without which a request is counted by address."""
        keys = [(key, self._have[name], without) for name, (key, _, without) in self._keys.items()]
        return [key for key, has, without in keys if not has and without.endswith(_BY_ADDRESS)]

    def found(self, fields: Iterable[str] = ()) -> tuple[str, ...]:
        """Return the hints as sentences. `fields` are the names of what the log has."""
        listed = ", ".join([*fields][:_LISTED])
        known = f" The log has {listed}." if listed else ""
        hints = []
        for name, (key, rules, without) in self._keys.items():
            has, of = self._have[name], f"the key {key} of {', '.join(sorted(rules))}: {without}."
            if not has:
                named = "" if key.startswith("field:") else f" If it has another name, give --field {key.lower()}=NAME."
                hints.append(f"No line of the log has {of}{'' if key == 'user' else known}{named}")
            elif has < self.requests:
                hints.append(f"{has:,} of {self.requests:,} requests {'has' if has == 1 else 'have'} {of}")
        if self._forwards and (2 * self._private > self.requests or len(self._peers) <= _FEW):
            whose = (
                f"{share(self._private, self.requests)} of the requests come from private addresses"
                if 2 * self._private > self.requests
                else "All requests come from very few addresses"
            )
            hints.append(
                f"{whose}, and the log has X-Forwarded-For: they are proxies, not clients. Give --trusted-proxies 1 "
                f"(how many there are), or their networks, as --trusted-proxies {_network(min(self._peers))}."
            )
        return tuple(hints)


def _network(address: str) -> str:
    """Return a network to trust that has this address."""
    return "10.0.0.0/8" if address.startswith("10.") else address


def _read_by(key: KeySpec) -> Iterator[tuple[str, str, str]]:
    """Yield what a key reads that a log may lack: its text, its column, and what its rule does without."""
    for part in key if isinstance(key, tuple) else (key,):
        if part == "user":
            yield "user", "user", f"requests without a user {_BY_ADDRESS}"
        elif isinstance(part, str) and part.startswith("header:"):
            yield part, f"{HEADER}{part.partition(':')[2].lower()}", f"requests without it {_BY_ADDRESS}"
        elif isinstance(part, LogKey) and part.kind == "field":
            yield str(part), part.columns[0], "the rule applies to no request without it"
