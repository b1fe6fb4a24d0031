"""The lookup of the signed-in user in Django's session, for the key "user", and the limit on such lookups.

The application does not notice the lookup. A lookup that did not change the session leaves it marked as unread, so a
page that does not depend on the user does not vary by the cookie. The application gets the user that was found.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Collection, Generator, Hashable
from contextlib import contextmanager
from typing import Any, Final, Protocol
from weakref import WeakKeyDictionary

from asgiref.sync import sync_to_async
from django.conf import settings as django_settings
from django.utils.functional import LazyObject, SimpleLazyObject, empty

from sluicegate.algorithms import DEFAULT
from sluicegate.clock import MICROSECOND
from sluicegate.errors import ConfigurationError, IdentityError
from sluicegate.limiter import Limiter
from sluicegate.plan import Check, Decision, Outcome
from sluicegate.rules.key import Caller, reads_user
from sluicegate.rules.terms import make_terms, read
from sluicegate.web.bound import Bound
from sluicegate.web.gate import AsyncGate, Gate, Undecided
from sluicegate.web.settings import Settings

log = logging.getLogger("sluicegate.django.users")

MISSES: Final = "300/minute"
"""How many lookups for one address may find no session. Then no lookup runs for that address until the window has
passed.

Expired sessions at one address stay far below it. An address that invents session ids costs 5 queries a second.
"""

UNKNOWN: Final = object()  # only a lookup can find the user

_MEMORY: Final = "memory://?max_keys=10000"  # addresses whose misses are counted: bounded, as all that clients fill
_AUTH: Final = "django.contrib.auth.middleware"  # the module of the functions that read Django's own user
_UNREADY: Final = make_terms("user", read("1/second"), algorithm=DEFAULT)  # for a rule whose quota is a function


def known_user(request: Any, *, is_async: bool) -> object:
    """Return the name of the signed-in user; None if nobody is signed in, UNKNOWN if only a lookup can find out.

    Django's own lazy user comes from the session: without a session key nobody is signed in. Other authentications
    know users without a session. `is_async` means that the lookup would be awaited.
    """
    user, facts = request.user, vars(request)
    if not isinstance(user, LazyObject):
        return name_of(user)
    found = vars(user)
    if found.get("_wrapped", empty) is not empty:
        return name_of(user)
    if isinstance(read := found.get("_setupfunc"), _FoundUser):
        return read.name
    if not _is_django_user(request, is_async=is_async):
        return UNKNOWN
    for cached in ("_cached_user", "_acached_user"):
        if cached in facts:
            return name_of(facts[cached])
    return UNKNOWN if request.session.session_key else None


def name_of(user: Any) -> Hashable | None:
    """Return a signed-in user's primary key, as text because it may be of any type; None if nobody is signed in."""
    try:
        if user is None or not user.is_authenticated or user.pk is None:
            return None
        return str(user.pk)
    except AttributeError as error:
        found = vars(user)["_wrapped"] if isinstance(user, LazyObject) else user
        if found is None:
            return None
        if found is empty:
            raise  # the authentication itself failed
        problem = "it has no is_authenticated and pk"
        expected = "set a user that has both, or give a rule's key as a function of the request"
        raise IdentityError("request.user", type(found), problem=problem, expected=expected) from error


class LookupHistory:
    """The results of one gate's lookups: how many found no session, by address, and whether they fail now."""

    def __init__(self, settings: Settings) -> None:
        limiter = Limiter(_MEMORY, prefix=settings.prefix, clock=settings.clock, algorithm="fixed-window")
        self.misses = limiter.limit(MISSES, action="misses")
        self._logged = limiter.limit("1/minute", action="logged")
        self._fails = False
        self._warned = False  # about the current or last outage

    def note_success(self) -> None:
        """Log the end of an outage, if its beginning was logged."""
        if self._fails and self._warned:
            log.info("sluicegate: lookups of the signed-in user recovered")
        self._fails = False

    def note_failure(self, error: Exception) -> None:
        """Log the first failure of an outage, without the error's text: it may contain a session id."""
        if self._fails:
            return
        self._fails = True
        self._warned = self._logged.hit("").allowed
        if self._warned:  # once a minute: a client may be able to make its own lookups fail
            kind = f"{type(error).__module__}.{type(error).__qualname__}"
            log.warning(
                "sluicegate: Django's lookup of the signed-in user failed (%s); rules with on_store_failure='deny' "
                "refuse the request, other rules charge its address",
                kind,
            )


_histories: Final[WeakKeyDictionary[Gate | AsyncGate, LookupHistory]] = WeakKeyDictionary()


def history_of(gate: Gate | AsyncGate) -> LookupHistory:
    found = _histories.get(gate)
    return _histories.setdefault(gate, LookupHistory(gate.settings)) if found is None else found


class LookupState(Caller, Protocol):
    """The state of a request, as a lookup uses it."""

    gate: Gate | AsyncGate
    bounds: Collection[Bound]
    found_user: object


class UserLookup:
    """One lookup of the user of a request whose `request.user` has not been read yet."""

    __slots__ = ("_address", "_before", "_history", "_reads", "_request", "_session", "_state")

    def __init__(self, state: LookupState) -> None:
        self._state = state
        self._request: Any = state.native
        self._session: Any = getattr(self._request, "session", None)
        self._before = dict(getattr(self._session, "__dict__", {}))
        self._reads = "_session_cache" not in self._before and bool(getattr(self._session, "session_key", None))
        self._history = history_of(state.gate)
        self._address = state.gate.settings.address(state, {})

    def start(self) -> Hashable | Awaitable[Hashable | None] | None:
        """Return the user's name, on an event loop an awaitable of it.

        None if nobody is signed in, and if the lookup must not run: it would read a session, and too many earlier
        lookups from this address found no session.
        """
        if self._reads and not self._history.misses.peek(self._address).allowed:
            return self._found(None)
        return self._run_async() if isinstance(self._state.gate, AsyncGate) else self._run()

    def _found(self, name: Hashable | None) -> Hashable | None:
        """Note the result: one request does one lookup."""
        self._state.found_user = name
        return name

    def _run(self) -> Hashable | None:
        request = self._request
        with self._failing():
            if not _is_django_user(request, is_async=False):
                return self._from_other(name_of(request.user))
            from django.contrib import auth  # it needs the settings, so it is not imported earlier

            signed_in = self._session.get(auth.SESSION_KEY)
            return self._from_session(signed_in, None if signed_in is None else auth.get_user(request))
        return self._found(None)

    async def _run_async(self) -> Hashable | None:
        """Do the same as `_run`, with awaits. Reading `request.user` here would block the event loop."""
        request = self._request
        with self._failing():
            if not _is_django_user(request, is_async=True):
                auser = getattr(request, "auser", None)
                if auser is None or _is_of_auth(auser):  # the other authentication offers only `request.user`
                    return self._from_other(await sync_to_async(name_of)(request.user))
                return self._from_other(name_of(await auser()))
            from django.contrib import auth

            signed_in = await self._session.aget(auth.SESSION_KEY)
            return self._from_session(signed_in, None if signed_in is None else await auth.aget_user(request))
        return self._found(None)

    @contextmanager
    def _failing(self) -> Generator[None]:
        """Restore the session if the lookup fails. Raise the refusal if a rule has on_store_failure="deny", else the
        block ends, and the address is charged.
        """
        try:
            yield
        except ConfigurationError:
            raise
        except Exception as error:
            self._restore()
            self._history.note_failure(error)
            refusing = [bound for bound in self._state.bounds if self._is_refusing(bound)]
            if refusing:
                raise Undecided(_refusal_of(refusing)) from error

    def _is_refusing(self, bound: Bound) -> bool:
        """True if a rule refuses a request whose user cannot be found."""
        rule, settings = bound.rule, self._state.gate.settings
        return (
            (rule.on_store_failure or settings.on_store_failure) == "deny"
            and reads_user(settings.key if rule.key is None else rule.key)
            and bool(bound.share)
            and bound.holds(self._state)
        )

    def _from_other(self, name: Hashable | None) -> Hashable | None:
        """Return the name from another authentication. Changes that the authentication made to the session stay."""
        self._history.note_success()
        if name is None and self._reads and vars(self._session).get("_session_cache") == {}:
            self._history.misses.hit(self._address)
        return self._found(name)

    def _from_session(self, signed_in: object, user: object) -> Hashable | None:
        """Return the name from Django's session. The session is left as it was before the lookup."""
        session, before, name = self._session, self._before, name_of(user)
        self._history.note_success()
        if user is None and self._reads and not session.keys():  # the id is invented, or the session has expired
            self._restore()
            self._history.misses.hit(self._address)
        elif session.modified == before["modified"]:  # else Django ended or renewed it: the response shows that
            if name is not None:
                _FoundUser(self._request, user, signed_in=signed_in, name=name).install()
            session.accessed = before["accessed"]
            if django_settings.SESSION_SAVE_EVERY_REQUEST:  # else Django would save what was read, after the view
                self._restore()
        return self._found(name)

    def _restore(self) -> None:
        if self._before:
            vars(self._session).clear()
            vars(self._session).update(self._before)


class _FoundUser:
    """The user that a lookup has found, for the application. Reading it makes the response vary by the cookie.

    Django's own functions still find the user. This class fills their cache if the session still names the same user.
    """

    _read_async: Callable[[], Awaitable[object]]

    def __init__(self, request: Any, user: object, *, signed_in: object, name: Hashable) -> None:
        self.name = name
        self._request, self._user, self._signed_in = request, user, signed_in
        self._read: Callable[[], object] = vars(request.user)["_setupfunc"]

    def install(self) -> None:
        """Replace Django's `user` and `auser` on the request. Another authentication's `auser` stays."""
        self._request.user = SimpleLazyObject(self)
        auser: Any = getattr(self._request, "auser", None)
        if _is_of_auth(auser):
            self._read_async, self._request.auser = auser, self.get_async

    def __call__(self) -> object:
        from django.contrib import auth

        facts = vars(self._request)
        if "_cached_user" not in facts and self._request.session.get(auth.SESSION_KEY) == self._signed_in:
            facts["_cached_user"] = self._user
        return self._read()

    async def get_async(self) -> object:
        """Return the user, and await where Django's lookup is asynchronous."""
        from django.contrib import auth

        facts = vars(self._request)
        if "_acached_user" not in facts and await self._request.session.aget(auth.SESSION_KEY) == self._signed_in:
            facts["_acached_user"] = self._user
        return await self._read_async()


def _is_django_user(request: Any, *, is_async: bool) -> bool:
    """True if the lazy user is the one of Django's AuthenticationMiddleware, which reads Django's session."""
    from django.contrib.sessions.backends.base import SessionBase

    if not _is_of_auth(vars(request.user).get("_setupfunc")):
        return False
    if not issubclass(type(getattr(request, "session", None)), SessionBase):
        return False
    return _is_of_auth(getattr(request, "auser", None)) or not is_async


def _is_of_auth(function: object) -> bool:
    """True if a function, or the function of a partial, belongs to Django's AuthenticationMiddleware."""
    return getattr(getattr(function, "func", function), "__module__", None) == _AUTH


def _refusal_of(bounds: Collection[Bound]) -> Decision:
    """Return the refusal by rules whose identity is unknown because the lookup failed."""
    checks = tuple([Check(terms, "", 1) for bound in bounds for terms in bound.terms or _UNREADY])
    limits = [check.terms.limit for check in checks]
    wait = MICROSECOND
    return Decision(
        allowed=False,
        checks=checks,
        outcomes=tuple([Outcome(False, limit, 0, wait, wait, wait, source="policy") for limit in limits]),
    )
