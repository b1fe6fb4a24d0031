"""`sluicegate whois`: what a server has of the identity with a digest, or which client of access logs it is."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

from sluicegate.cli.budgets import Budgets, identity_text
from sluicegate.cli.logs import Nothing, Options, open_log, progress, reads_logs, trusted
from sluicegate.cli.output import Shell, operated
from sluicegate.cli.show import show
from sluicegate.clock import LATEST_US, MICROSECOND
from sluicegate.identity import digest
from sluicegate.replay.words import count, key_text, moment
from sluicegate.rules.key import parts_of
from sluicegate.web.settings import Settings

if TYPE_CHECKING:
    from sluicegate.replay.decide import Ready


@click.command()
@click.argument("name", metavar="DIGEST")
@click.argument("logs", metavar="[LOG]…", nargs=-1)
@reads_logs
@operated()
def whois(shell: Shell, name: str, **options: Any) -> None:
    """Say who has a digest, as keys, logs and the other commands have it instead of an identity.

    Without a log: what the server has of it, as `show` prints it. With access logs: the client with this digest, by the
    keys and the secret of the application. No other client is printed. Write -- before a digest that begins with -.
    """
    if not options["logs"]:
        click.get_current_context().invoke(show, name=name, app=shell.app, as_json=shell.as_json)
        return
    from sluicegate.replay.tally import readable  # here: the help needs no extra

    places = [Budgets((each,), None) for each in shell.application.limiters]  # a log needs no server
    wanted = str(identity_text(places[0], (), name))  # raises for what is no digest
    keys = [(place, ready) for place in places for ready in _keys(place, trusted(options))]
    log, common = open_log(options)
    since, until = common["since"] or 0, common["until"] or LATEST_US
    who, times = "", list[int]()
    with progress() as bar:
        for whole in log.frames({"time"}.union(*[ready.wanted for _, ready in keys])):
            bar.read(log)
            frame = whole.filter(whole["time"].is_between(since, until, closed="left"))
            rows = set[int]()  # several keys may give a request this identity
            for place, ready in keys:
                texts = ready.identify(frame)
                mine = [text for text in texts.drop_nulls().unique() if digest(place.sealed(text)) == wanted]
                who = readable(mine[0]) if mine else who
                rows.update(texts.is_in(mine).arg_true())
            times += frame["time"].gather(sorted(rows)).to_list()
    if not times:
        tried = dict.fromkeys([key_text(ready.key) for _, ready in keys])
        lacks = f"; the log lacks {', '.join(log.read.missing)}" if log.read.missing else ""
        named = dict.fromkeys([key_text(key) for place in places for _, key in place.keys(None)])
        others = ", ".join([each for each in named if each not in tried])
        hint = "compare the digest that sluicegate show prints of an identity, such as text:bob"
        more = f"; no log has a function or a value of the path ({others}): {hint}" if others else ""
        raise Nothing(f"no request has this digest by {', '.join(tried)}{lacks}{more}")
    first, last = times[0] / MICROSECOND, times[-1] / MICROSECOND
    facts = {"digest": wanted, "identity": who, "requests": len(times), "first": first, "last": last}
    shell.tell(facts, f"{who}: {count(len(times), 'request')} from {moment(first)} to {moment(last)}")


def _keys(place: Budgets, proxies: Options) -> Iterator[Ready]:
    """Yield the keys that a log can have: it has neither the request of a framework nor the names of its routes."""
    from sluicegate.replay.candidates import Candidate
    from sluicegate.replay.decide import Ready

    names = ("trusted_proxies", "trusted_header", "ipv6_prefix", "ipv4_prefix")
    given = {name: getattr(place.settings, name) for name in names} | proxies
    used = [key for _, key in place.keys(None)]
    for key in dict.fromkeys([place.settings.key, *used, "ip"]):  # "ip": other keys fall back to it
        if not any([callable(part) or str(part).startswith("path:") for part in parts_of(key)]):
            yield Ready(Candidate("whois", Settings(key=key, default_limits=["1/second"], overrides=False, **given)))
