"""The look for the signed-in user: what the key "user" reads from Django's session, and what bounds it.

The application does not notice the look. A look that did not change the session leaves it as if nobody had read it, so
a page that does not depend on the user does not vary by the cookie. What was read is kept for the application.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Hashable
from typing import Any, Final
from weakref import WeakKeyDictionary

from asgiref.sync import sync_to_async
from django.conf import settings as django_settings
from django.utils.functional import LazyObject, SimpleLazyObject, empty

from sluicegate.algorithms import DEFAULT
from sluicegate.clock import MICROSECOND
from sluicegate.errors import ConfigurationError, IdentityError
from sluicegate.gate import AsyncGate, Bound, Gate
from sluicegate.key import Caller, KeySpec
from sluicegate.plan import Check, Decision, Outcome, Plan
from sluicegate.settings import Settings
from sluicegate.stores import open_store
from sluicegate.terms import make_terms, read

log = logging.getLogger("sluicegate.django.users")

FRUITLESS: Final = "300/minute"
"""How many looks for one address may find no session. Then none are made for it until the window has passed.

Expired sessions at one address stay far below it; an address that makes sessions up costs 5 queries a second.
"""

UNKNOWN: Final = object()  # only a look can tell

_MEMORY: Final = "memory://?max_keys=10000"
_AUTH: Final = "django.contrib.auth.middleware"
_UNREADY: Final = make_terms("user", read("1/second"), algorithm=DEFAULT)  # of a rule whose quota is a function


class UserUnknownError(Exception):
    """The look failed, and a rule refuses requests then. `decision` is the refusal."""

    def __init__(self, decision: Decision) -> None:
        super().__init__("the look for the signed-in user failed")
        self.decision = decision


def known_user(request: Any, *, later: bool) -> Any:
    """What names the signed-in user, None for nobody; UNKNOWN where only a look can tell.

    Django's own lazy user comes from the session, so it is nobody where the session has no key. Other authentications
    know users without a session. `later` says that the look would be awaited.
    """
    user = getattr(request, "user", None)
    if not isinstance(user, LazyObject):
        return name_of(user)
    facts = vars(user)
    if facts.get("_wrapped", empty) is not empty:
        return name_of(user)
    if isinstance(facts.get("_setupfunc"), _Kept):
        return facts["_setupfunc"].name
    if not _is_djangos(request, later=later):
        return UNKNOWN
    for cached in ("_cached_user", "_acached_user"):
        if cached in vars(request):
            return name_of(vars(request)[cached])
    return UNKNOWN if request.session.session_key else None


def name_of(user: Any) -> Hashable | None:
    """What names a signed-in user. Text, because a primary key may be of any type."""
    try:
        if user is None or not user.is_authenticated or user.pk is None:
            return None
        return str(user.pk)
    except AttributeError as error:
        given = vars(user)["_wrapped"] if isinstance(user, LazyObject) else user
        if given is None:
            return None
        if given is empty:
            raise  # the authentication has failed
        problem = "it has no is_authenticated and pk"
        expected = "set a user that has both, or give a rule's key as a function of the request"
        raise IdentityError("request.user", type(given), problem=problem, expected=expected) from error


class Looks:
    """The results of the looks of one gate: how many found no session, by address, and whether they fail now."""

    def __init__(self, settings: Settings) -> None:
        self._store = open_store(_MEMORY, prefix=settings.prefix, clock=settings.clock)
        (self._fruitless,) = make_terms("fruitless", read(FRUITLESS), algorithm="fixed-window")
        (self._logged,) = make_terms("logged", read("1/minute"), algorithm="fixed-window")
        self._fails = False
        self._warned = False  # of the present or last outage

    def allow(self, address: str) -> bool:
        """Whether the session of a request from this address may be read."""
        return self._store.run(Plan((Check(self._fruitless, address, 1),), charge=False))[0].allowed

    def count(self, address: str) -> None:
        """Count a look that found no session."""
        self._store.run(Plan((Check(self._fruitless, address, 1),)))

    def succeeded(self) -> None:
        """Log that an outage is over, if its beginning was logged."""
        if not self._fails:
            return
        self._fails = False
        if self._warned:
            log.info("sluicegate: the look for the signed-in user succeeds again")

    def failed(self, error: Exception) -> None:
        """Log the first failure of an outage, without the error's text: a session's id may stand in it."""
        if self._fails:
            return
        self._fails = True
        self._warned = self._store.run(Plan((Check(self._logged, "", 1),)))[0].allowed
        if self._warned:  # not each time: a client may make its own looks fail
            kind = f"{type(error).__module__}.{type(error).__qualname__}"
            log.warning("sluicegate: the look for the signed-in user fails (%s), so on_store_failure decides", kind)


_looks: Final[WeakKeyDictionary[Gate | AsyncGate, Looks]] = WeakKeyDictionary()


def looks_of(gate: Gate | AsyncGate) -> Looks:
    """The looks of one gate."""
    found = _looks.get(gate)
    return _looks.setdefault(gate, Looks(gate.settings)) if found is None else found


class Look:
    """One look for the user of a request whose `request.user` nobody has read yet."""

    __slots__ = ("_address", "_before", "_bounds", "_caller", "_looks", "_reads", "_request", "_session", "_settings")

    def __init__(self, caller: Caller, gate: Gate | AsyncGate, bounds: Collection[Bound]) -> None:
        self._caller, self._settings, self._bounds = caller, gate.settings, bounds
        self._request = caller.native
        self._session: Any = getattr(self._request, "session", None)
        self._before = dict(getattr(self._session, "__dict__", {}))
        self._reads = "_session_cache" not in self._before and bool(getattr(self._session, "session_key", None))
        self._looks = looks_of(gate)
        self._address = self._settings.address(caller)

    def now(self) -> Hashable | None:
        """Look, and return what names the user."""
        if self._is_bounded():
            return None
        request = self._request
        try:
            if not _is_djangos(request, later=False):
                return self._other(name_of(request.user))
            from django.contrib import auth  # not before the settings are there

            signed_in = self._session.get(auth.SESSION_KEY)
            return self._own(signed_in, None if signed_in is None else auth.get_user(request))
        except ConfigurationError:
            raise
        except Exception as error:  # noqa: BLE001  # its row in tests/test_house.py says why
            self._fail(error)
            return None

    async def later(self) -> Hashable | None:
        """The same, awaited. A look at `request.user` here would be I/O on the event loop."""
        if self._is_bounded():
            return None
        request = self._request
        try:
            if not _is_djangos(request, later=True):
                auser = getattr(request, "auser", None)
                if auser is None or _is_of_auth(auser):  # the other authentication knows only `request.user`
                    return self._other(await sync_to_async(name_of)(request.user))
                return self._other(name_of(await auser()))
            from django.contrib import auth

            signed_in = await self._session.aget(auth.SESSION_KEY)
            return self._own(signed_in, None if signed_in is None else await auth.aget_user(request))
        except ConfigurationError:
            raise
        except Exception as error:  # noqa: BLE001  # its row in tests/test_house.py says why
            self._fail(error)
            return None

    def _is_bounded(self) -> bool:
        """Whether this is the look for a session that has still to be read, and too many such looks found nothing."""
        return self._reads and not self._looks.allow(self._address)

    def _other(self, name: Hashable | None) -> Hashable | None:
        """The name as another authentication says it. What it did to the session stays."""
        self._looks.succeeded()
        if name is None and self._reads and vars(self._session).get("_session_cache") == {}:
            self._looks.count(self._address)
        return name

    def _own(self, signed_in: Any, user: Any) -> Hashable | None:
        """The name as Django's session says it. The session is left as it was found."""
        session, before, name = self._session, self._before, name_of(user)
        self._looks.succeeded()
        if user is None and self._reads and not session.keys():  # it was made up, or has expired
            self._restore()
            self._looks.count(self._address)
        elif session.modified == before["modified"]:  # else Django has ended or renewed it, and has to say so
            if name is not None:
                _Kept(self._request, user, signed_in=signed_in, name=name).stand_in()
            session.accessed = before["accessed"]
            if django_settings.SESSION_SAVE_EVERY_REQUEST:  # Django would write what was read back after the view
                self._restore()
        return name

    def _fail(self, error: Exception) -> None:
        """Leave the session as it was found. Raise the refusal if a rule says so, else count by address."""
        self._restore()
        self._looks.failed(error)
        settings = self._settings
        refusing = [
            bound
            for bound in self._bounds
            if (bound.rule.on_store_failure or settings.on_store_failure) == "deny"
            and asks_for_user(settings.key if bound.rule.key is None else bound.rule.key)
            and bound.share
            and bound.holds(self._caller)
        ]
        if refusing:
            raise UserUnknownError(_refused(refusing)) from error

    def _restore(self) -> None:
        if self._before:
            vars(self._session).clear()
            vars(self._session).update(self._before)


class _Kept:
    """The user whom a look has found, for the application to read: its response then varies by the cookie.

    Django's own functions answer. They are given the user as their first answer while the session names the same one.
    """

    def __init__(self, request: Any, user: Any, *, signed_in: Any, name: Hashable) -> None:
        self.name = name
        self._request, self._user, self._signed_in = request, user, signed_in
        self._read: Any = vars(request.user)["_setupfunc"]
        self._read_later: Any = getattr(request, "auser", None)

    def stand_in(self) -> None:
        """Answer for Django on the request. Another authentication's `auser` stays."""
        self._request.user = SimpleLazyObject(self)
        if _is_of_auth(self._read_later):
            self._request.auser = self.later

    def __call__(self) -> Any:
        from django.contrib import auth

        facts = vars(self._request)
        if "_cached_user" not in facts and self._request.session.get(auth.SESSION_KEY) == self._signed_in:
            facts["_cached_user"] = self._user
        return self._read()

    async def later(self) -> Any:
        """The same, awaited."""
        from django.contrib import auth

        facts = vars(self._request)
        if "_acached_user" not in facts and await self._request.session.aget(auth.SESSION_KEY) == self._signed_in:
            facts["_acached_user"] = self._user
        return await self._read_later()


def asks_for_user(key: KeySpec) -> bool:
    """Whether a key is "user", or has it among its parts."""
    return "user" in key if isinstance(key, tuple) else key == "user"


def _is_djangos(request: Any, *, later: bool) -> bool:
    """Whether the lazy user is the one of Django's AuthenticationMiddleware, and so comes from Django's session."""
    from django.contrib.sessions.backends.base import SessionBase

    if not _is_of_auth(vars(request.user).get("_setupfunc")):
        return False
    if not issubclass(type(getattr(request, "session", None)), SessionBase):
        return False
    return _is_of_auth(getattr(request, "auser", None)) or not later


def _is_of_auth(function: Any) -> bool:
    """Whether a function, or what a partial calls, is one of Django's authentication."""
    return getattr(getattr(function, "func", function), "__module__", None) == _AUTH


def _refused(bounds: Collection[Bound]) -> Decision:
    """The refusal by rules whose identity the failed look could not find."""
    checks = tuple([Check(terms, "", 1) for bound in bounds for terms in bound.terms or _UNREADY])
    limits = [check.terms.params[0] for check in checks]
    wait = MICROSECOND
    return Decision(
        allowed=False,
        checks=checks,
        results=tuple([Outcome(False, limit, 0, wait, wait, wait, source="policy") for limit in limits]),
    )
