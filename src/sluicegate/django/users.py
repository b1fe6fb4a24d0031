"""The lookup of the signed-in user in Django's session, for the key "user", and the limit on such lookups.

The application does not notice the lookup. A lookup that did not change the session leaves it marked as unread, so a
page that does not depend on the user does not vary by the cookie. The application gets the user that was found.
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
from sluicegate.plan import Check, Decision, Outcome, Plan
from sluicegate.rules.key import Caller, reads_user
from sluicegate.rules.terms import make_terms, read
from sluicegate.stores import open_store
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

_MEMORY: Final = "memory://?max_keys=10000"
_AUTH: Final = "django.contrib.auth.middleware"
_UNREADY: Final = make_terms("user", read("1/second"), algorithm=DEFAULT)  # for a rule whose quota is a function


def known_user(request: Any, *, is_async: bool) -> Any:
    """Return the name of the signed-in user; None if nobody is signed in, UNKNOWN if only a lookup can find out.

    Django's own lazy user comes from the session: without a session key nobody is signed in. Other authentications
    know users without a session. `is_async` means that the lookup would be awaited.
    """
    user = getattr(request, "user", None)
    if not isinstance(user, LazyObject):
        return name_of(user)
    facts = vars(user)
    if facts.get("_wrapped", empty) is not empty:
        return name_of(user)
    if isinstance(facts.get("_setupfunc"), _FoundUser):
        return facts["_setupfunc"].name
    if not _is_django_user(request, is_async=is_async):
        return UNKNOWN
    for cached in ("_cached_user", "_acached_user"):
        if cached in vars(request):
            return name_of(vars(request)[cached])
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
        self._store = open_store(_MEMORY, prefix=settings.prefix, clock=settings.clock)
        (self._misses,) = make_terms("misses", read(MISSES), algorithm="fixed-window")
        (self._logged,) = make_terms("logged", read("1/minute"), algorithm="fixed-window")
        self._fails = False
        self._warned = False  # about the current or last outage

    def allow(self, address: str) -> bool:
        """True if the session of a request from this address may be read."""
        return self._store.run(Plan((Check(self._misses, address, 1),), charge=False))[0].allowed

    def count_miss(self, address: str) -> None:
        self._store.run(Plan((Check(self._misses, address, 1),)))

    def note_success(self) -> None:
        """Log the end of an outage, if its beginning was logged."""
        if not self._fails:
            return
        self._fails = False
        if self._warned:
            log.info("sluicegate: lookups of the signed-in user recovered")

    def note_failure(self, error: Exception) -> None:
        """Log the first failure of an outage, without the error's text: it may contain a session id."""
        if self._fails:
            return
        self._fails = True
        self._warned = self._store.run(Plan((Check(self._logged, "", 1),)))[0].allowed
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


class UserLookup:
    """One lookup of the user of a request whose `request.user` has not been read yet."""

    __slots__ = ("_address", "_before", "_bounds", "_caller", "_history", "_reads", "_request", "_session", "_settings")

    def __init__(self, caller: Caller, gate: Gate | AsyncGate, bounds: Collection[Bound]) -> None:
        self._caller, self._settings, self._bounds = caller, gate.settings, bounds
        self._request = caller.native
        self._session: Any = getattr(self._request, "session", None)
        self._before = dict(getattr(self._session, "__dict__", {}))
        self._reads = "_session_cache" not in self._before and bool(getattr(self._session, "session_key", None))
        self._history = history_of(gate)
        self._address = self._settings.address(caller)

    def run(self) -> Hashable | None:
        if self._is_over_limit():
            return None
        request = self._request
        try:
            if not _is_django_user(request, is_async=False):
                return self._from_other(name_of(request.user))
            from django.contrib import auth  # it needs the settings, so it is not imported earlier

            signed_in = self._session.get(auth.SESSION_KEY)
            return self._from_session(signed_in, None if signed_in is None else auth.get_user(request))
        except ConfigurationError:
            raise
        except Exception as error:  # noqa: BLE001  # its row in tests/test_house.py says why
            self._fail(error)
            return None

    async def run_async(self) -> Hashable | None:
        """Do the same as `run`, with awaits. Reading `request.user` here would block the event loop."""
        if self._is_over_limit():
            return None
        request = self._request
        try:
            if not _is_django_user(request, is_async=True):
                auser = getattr(request, "auser", None)
                if auser is None or _is_of_auth(auser):  # the other authentication offers only `request.user`
                    return self._from_other(await sync_to_async(name_of)(request.user))
                return self._from_other(name_of(await auser()))
            from django.contrib import auth

            signed_in = await self._session.aget(auth.SESSION_KEY)
            return self._from_session(signed_in, None if signed_in is None else await auth.aget_user(request))
        except ConfigurationError:
            raise
        except Exception as error:  # noqa: BLE001  # its row in tests/test_house.py says why
            self._fail(error)
            return None

    def _is_over_limit(self) -> bool:
        """True if this lookup must not run: it would read a session, and too many earlier lookups from this address
        found no session.
        """
        return self._reads and not self._history.allow(self._address)

    def _from_other(self, name: Hashable | None) -> Hashable | None:
        """Return the name from another authentication. Changes that the authentication made to the session stay."""
        self._history.note_success()
        if name is None and self._reads and vars(self._session).get("_session_cache") == {}:
            self._history.count_miss(self._address)
        return name

    def _from_session(self, signed_in: Any, user: Any) -> Hashable | None:
        """Return the name from Django's session. The session is left as it was before the lookup."""
        session, before, name = self._session, self._before, name_of(user)
        self._history.note_success()
        if user is None and self._reads and not session.keys():  # the id is invented, or the session has expired
            self._restore()
            self._history.count_miss(self._address)
        elif session.modified == before["modified"]:  # else Django ended or renewed it: the response shows that
            if name is not None:
                _FoundUser(self._request, user, signed_in=signed_in, name=name).install()
            session.accessed = before["accessed"]
            if django_settings.SESSION_SAVE_EVERY_REQUEST:  # else Django would save what was read, after the view
                self._restore()
        return name

    def _fail(self, error: Exception) -> None:
        """Restore the session. Raise the refusal if a rule has on_store_failure="deny", else charge the address."""
        self._restore()
        self._history.note_failure(error)
        settings = self._settings
        refusing = [
            bound
            for bound in self._bounds
            if (bound.rule.on_store_failure or settings.on_store_failure) == "deny"
            and reads_user(settings.key if bound.rule.key is None else bound.rule.key)
            and bound.share
            and bound.holds(self._caller)
        ]
        if refusing:
            raise Undecided(_refusal_of(refusing)) from error

    def _restore(self) -> None:
        if self._before:
            vars(self._session).clear()
            vars(self._session).update(self._before)


class _FoundUser:
    """The user that a lookup has found, for the application. Reading it makes the response vary by the cookie.

    Django's own functions still find the user. This class fills their cache if the session still names the same user.
    """

    def __init__(self, request: Any, user: Any, *, signed_in: Any, name: Hashable) -> None:
        self.name = name
        self._request, self._user, self._signed_in = request, user, signed_in
        self._read: Any = vars(request.user)["_setupfunc"]
        self._read_async: Any = getattr(request, "auser", None)

    def install(self) -> None:
        """Replace Django's `user` and `auser` on the request. Another authentication's `auser` stays."""
        self._request.user = SimpleLazyObject(self)
        if _is_of_auth(self._read_async):
            self._request.auser = self.get_async

    def __call__(self) -> Any:
        from django.contrib import auth

        facts = vars(self._request)
        if "_cached_user" not in facts and self._request.session.get(auth.SESSION_KEY) == self._signed_in:
            facts["_cached_user"] = self._user
        return self._read()

    async def get_async(self) -> Any:
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


def _is_of_auth(function: Any) -> bool:
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
