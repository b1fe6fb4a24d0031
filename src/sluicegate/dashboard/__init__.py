"""The dashboard: a page that shows an application's limits while they work, for operators.

A request of either protocol becomes an answer, with the I/O of the store between. What is shown at a path is a template
with the name of the path; style and script are inside of it. `counts` is what all processes have decided, and `doors`
are the ASGI and the WSGI application, which say who may come in.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from http import HTTPStatus
from secrets import token_urlsafe
from typing import Any, Final
from urllib.parse import parse_qsl, quote

from sluicegate.address import IPV4_PREFIX, IPV6_PREFIX, check_prefixes
from sluicegate.dashboard.counts import Counts, budgets, known_terms, report
from sluicegate.dashboard.doors import Answer, asgi_door, wsgi_door
from sluicegate.errors import (
    ConfigurationError,
    IdentityError,
    OverrideError,
    SettingsError,
    StoreError,
    check_flag,
    needs,
)
from sluicegate.identity import Digested, digest
from sluicegate.limiter import AsyncLimiter, Limiter
from sluicegate.observe.status import describe
from sluicegate.overrides import Entry, Override, Overrides
from sluicegate.overrides.follow import who_follows
from sluicegate.overrides.override import DIGEST, EVERY_RULE, LONGEST
from sluicegate.plan import BAN
from sluicegate.replay.words import span
from sluicegate.rules.key import Caller
from sluicegate.rules.typed import typed_identity, with_unit
from sluicegate.runtime.hidden import hide_secret, hide_store
from sluicegate.stores import Store
from sluicegate.stores.memory import MemoryStore
from sluicegate.stores.wrappers import PREFIX

with needs("dashboard"):
    from jinja2 import Environment, PackageLoader, StrictUndefined

__all__ = ["Dashboard"]

_SHOWN: Final = 100  # overrides of a page, and bans: it stays small whatever stands in the store
_OPTIONS: Final = ("action", "quota", "pattern", "tier", "until", "why")  # of an override, as its form names them
_POLICY: Final = "default-src 'none'; connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"


class Dashboard:
    """The page of one application, to mount beside it. Give `note` to the application as `on_decision`.

    `store`, `prefix`, `secret`, `ipv6_prefix` and `ipv4_prefix` are those of the application. With memory the page
    shows this process, and finds the store of the limiter that has `note`. `authorize` gets the ASGI scope or the WSGI
    environ of each request, and returns whether it may pass. If it returns text, that is the author in the history. It
    may be async under ASGI. `insecure=True` instead lets requests of this machine pass. Nothing can be changed unless
    `writable`. Identities are digests unless `show_identities`. Raises SettingsError for wrong arguments, without
    `authorize` too.

        dashboard = Dashboard("redis://…", authorize=is_staff, writable=True)
        app.add_middleware(RateLimitMiddleware, store="redis://…", on_decision=dashboard.note)
        app.mount("/limits", dashboard.asgi)
    """

    def __init__(
        self,
        store: str | Store = "memory://",
        *,
        authorize: Callable[[Any], object] | None = None,
        insecure: bool = False,
        writable: bool = False,
        prefix: str = PREFIX,
        secret: str | bytes | None = None,
        ipv6_prefix: int = IPV6_PREFIX,
        ipv4_prefix: int = IPV4_PREFIX,
        show_identities: bool = False,
    ) -> None:
        store, secret = hide_store(store), hide_secret(secret)
        for option, given in (("insecure", insecure), ("writable", writable), ("show_identities", show_identities)):
            check_flag(option, given)
        if (authorize is None) is not insecure or not (authorize is None or callable(authorize)):
            expected = "give a function of the request as authorize, or insecure=True for requests of this machine only"
            raise SettingsError("authorize", authorize, problem="nothing says who may see the page", expected=expected)
        # An operator waits longer than a request: a second.
        self._limiter = Limiter(store, prefix=prefix, secret=secret, deadline=1.0)
        self._writable, self._opened = writable, self._limiter.opened
        check_prefixes(ipv6_prefix, ipv4_prefix)
        self._typed = partial(typed_identity, prefix=ipv6_prefix, ipv4_prefix=ipv4_prefix)
        if not hasattr(self._opened, "add_counts"):
            raise SettingsError("store", self._opened, problem="keeps no counts", expected="use memory:// or redis://")
        self.note = Counts(self._opened, show_identities=show_identities)
        """Counts the decisions of the application: its `on_decision`."""
        self.asgi, self.wsgi = asgi_door(self._answer, authorize), wsgi_door(self._answer, authorize)
        env: Any = Environment(loader=PackageLoader("sluicegate.dashboard"), autoescape=True, undefined=StrictUndefined)
        env.filters.update(span=span, moment=partial(datetime.fromtimestamp, tz=UTC))
        self._templates = env
        self._shows = {"/": self._index, "/bans": self._bans, "/events": self._live, "/identity": self._identity}

    def close(self) -> None:
        """Close the connections of the page."""
        self._limiter.close()

    @property
    def _application(self) -> Limiter | AsyncLimiter | None:
        """The limiter in this process that has `note` as its `on_decision`."""
        existing: list[Limiter | AsyncLimiter] = [*Limiter.existing(), *AsyncLimiter.existing()]
        return next((each for each in existing if each.events and self.note.__call__ in each.events.handlers), None)

    @property
    def _store(self) -> Any:
        """That of the budgets, without wrappers: a store that is away is an error here, and no local fallback answers.
        In memory it is that of the application in this process.
        """
        mine, here = self._opened, self._application and self._application.opened
        memory = getattr(here, "memory", here)  # inside of an AsyncMemoryStore
        return memory if isinstance(mine, MemoryStore) and isinstance(memory, MemoryStore) else mine

    @property
    def _overrides(self) -> Overrides:
        return Overrides(self._store, self._limiter.text)

    def _answer(self, caller: Caller, root: str, *, query: str, form: str | None, granted: object) -> Answer:
        if not granted:
            return self._says(HTTPStatus.FORBIDDEN, "This page is not for you.")
        try:
            return self._act(caller.path, form, granted) if caller.method == "POST" else self._show(caller, root, query)
        except StoreError as error:
            return self._says(HTTPStatus.SERVICE_UNAVAILABLE, str(error))
        except ConfigurationError as error:  # of what the operator has typed, which may be an identity
            problem = "" if isinstance(error, IdentityError) else f"{error.problem}; "
            return self._says(HTTPStatus.BAD_REQUEST, f"{error.what}: {problem}{error.expected} [{error.code}]")

    def _show(self, caller: Caller, root: str, query: str) -> Answer:
        path = caller.path
        if path in ("", root):
            # One slash at the front: two would name another host.
            return _answer(HTTPStatus.SEE_OTHER, Location=f"{quote('/' + root.strip('/')).rstrip('/')}/")
        if path not in self._shows or caller.method not in ("GET", "HEAD"):
            return self._says(HTTPStatus.NOT_FOUND, "There is no such page.")
        shown = self._shows[path](_fields(query))
        is_down = path == "/" and shown["report"] is None
        return self._page(path[1:] or "index", HTTPStatus.SERVICE_UNAVAILABLE if is_down else HTTPStatus.OK, shown)

    def _act(self, path: str, text: str | None, granted: object) -> Answer:
        if text is None:
            return self._says(HTTPStatus.FORBIDDEN, "This form was not sent whole by this page. Load the page again.")
        form = _fields(text)
        if path == "/identity":  # the address of its page has the digest, because addresses are logged
            who = digest(self._limiter.text(self._typed([form.get("identity", "")])))
            return _answer(HTTPStatus.SEE_OTHER, Location=f"identity?who={who}")
        if not self._writable:
            return self._says(HTTPStatus.FORBIDDEN, "This dashboard is read-only: it is made without writable=True.")
        by = granted[:LONGEST] if isinstance(granted, str) else "dashboard"
        match path:
            case "/reset":  # under one rule, such as a ban, or under all that are known
                named = self._text_of(form.get("who", ""))
                for rule_id in {each.rule_id for each in known_terms(self._opened)}:
                    if form.get("rule") in (None, rule_id):
                        self._store.forget(rule_id, named)
            case "/override":
                given: Any = {name: form[name] for name in _OPTIONS if name in form}
                identities = [self._typed([form["identity"]])] if "identity" in form else None
                rule = form.get("rule", "")
                if how := with_unit(given.get("until", "")):
                    raise OverrideError("until", given["until"], problem="no unit", expected=how)
                self._overrides.set(rule, **given, identities=identities, by=by)
                # login-minute is of the rule login
                names = [f"{each.name}-" for each in known_terms(self._opened) if each.algorithm != BAN]
                if rule != EVERY_RULE and not any([name.startswith(f"{rule}-") for name in names]):
                    return _answer(HTTPStatus.SEE_OTHER, Location="./?done=unknown")
            case "/remove":
                self._overrides.remove(form.get("id", ""), by=by)
            case "/undo":
                self._overrides.undo(by=by)
            case _:
                return self._says(HTTPStatus.NOT_FOUND, "This cannot be done.")
        return _answer(HTTPStatus.SEE_OTHER, Location="./?done=1")

    def _index(self, query: Mapping[str, str]) -> dict[str, Any]:
        live = self._live(query)  # a silent server is asked once: each question waits
        if live["report"] is None:
            return live
        return {**live, **self._held(), "done": query.get("done"), "follows": who_follows(self._store)}

    def _live(self, query: Mapping[str, str]) -> dict[str, Any]:
        """Return what changes by itself. The circuits are those of the application, if it is in this process."""
        status, here, found = self._limiter.status(), self._application, None
        known = describe(here.store) if here else status
        with suppress(StoreError):  # the status says why
            found = report(self._opened) if status.available else None
        return {"status": status._replace(circuits=known.circuits, entries=known.entries), "report": found}

    def _held(self, who: str | None = None) -> dict[str, Any]:
        """Return the overrides that hold, all or those that name an identity, and the history; or why they cannot be
        read.
        """
        listed, history, problem = tuple[Override, ...](), list[Entry](), ""
        try:
            listed = self._overrides.list()
            history = self._overrides.history()
        except ConfigurationError as error:
            problem = str(error)
        held = [one for one in reversed(listed) if who is None or who in one.digests]
        return {"held": held[:_SHOWN], "left_out": len(held[_SHOWN:]), "history": history, "problem": problem}

    def _bans(self, query: Mapping[str, str]) -> dict[str, Any]:
        """Return the bans among the next few keys: a scan that the operator has asked for. The place where it goes on
        has no address of a server, because a client must not choose one.
        """
        store, position = self._store, None
        known = {each.rule_id: each for each in known_terms(self._opened) if each.algorithm == BAN}
        if not hasattr(store, "page"):
            held = [(terms, *ban) for terms in known.values() for ban in store.bans(terms).items()]
            return {"bans": held[:_SHOWN], "left_out": len(held[_SHOWN:]), "following": ""}
        if place := re.fullmatch("([0-9]{1,4})-([0-9]{1,20})", query.get("from", "")):
            from sluicegate.stores.redis.scan import Position  # here: memory does not need redis

            position = Position(store.servers()[-int(place[1]) :], min(int(place[2]), 2**64 - 1))
        found: dict[tuple[str, str], None] = {}
        for _ in range(50):  # some 5,000 keys
            page = store.page(position)
            found.update(dict.fromkeys([pair for pair in page.budgets if pair[1] in known]))
            position = page.following
            if position is None or len(found) >= _SHOWN:
                break
        read = [(who, each) for who, rule_id in found for each in budgets(store, [known[rule_id]], Digested(who))]
        bans = [(terms, who, outcome.retry_after) for who, (terms, outcome) in read if not outcome.allowed]
        return {"bans": bans, "left_out": 0, "following": position and f"{len(position.servers)}-{position.cursor}"}

    def _identity(self, query: Mapping[str, str]) -> dict[str, Any]:
        who = query.get("who", "")
        found = budgets(self._store, known_terms(self._opened), self._text_of(who)) if who else []
        return {**self._held(who), "who": who, "budgets": found}

    def _text_of(self, who: str) -> str:
        """Return what stands for the identity with this digest in the store: in memory its text. Raises IdentityError
        for what is no digest: a key has its bytes as they are.
        """
        if not DIGEST.fullmatch(who):
            raise IdentityError("identity", who, problem="not a digest", expected="type it in the form for an identity")
        named: Callable[[str], str | None] = getattr(self._store, "named", Digested)
        return named(who) or Digested(who)

    def _says(self, code: HTTPStatus, sentence: str) -> Answer:
        return self._page("message", code, {"sentence": sentence, "code": code})

    def _page(self, name: str, code: HTTPStatus, shown: dict[str, Any]) -> Answer:
        nonce = token_urlsafe(16)
        body = self._templates.get_template(f"{name}.html").render(shown, nonce=nonce, writable=self._writable)
        return _answer(code, body, nonce=nonce, kind="event-stream" if name == "events" else "html")


def _answer(code: HTTPStatus, body: str = "", *, nonce: str = "", kind: str = "html", **fields: str) -> Answer:
    content = body.encode("utf-8", "replace")
    fields |= {"Content-Type": f"text/{kind}; charset=utf-8", "Content-Length": str(len(content))}
    # Not the policy "no-referrer": browsers then send `Origin: null` with a form.
    fields |= {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff", "Referrer-Policy": "same-origin"}
    policy = f"{_POLICY}; img-src data:; script-src 'nonce-{nonce}'; style-src 'nonce-{nonce}'"
    return code, [*fields.items(), ("Content-Security-Policy", policy)], content


def _fields(text: str) -> dict[str, str]:
    """Return the fields of a query or of a form that are not empty: the first ones, without blanks around."""
    return {name: value.strip() for name, value in reversed(parse_qsl(text)) if value.strip()}
