"""The adapter for FastAPI: the names of `sluicegate.starlette`, a dependency, and the 429 for OpenAPI.

The middleware counts malformed bodies, 404s and 405s, and sends a refusal before a body is read. The dependency
`RateLimit` is for quotas per user when another dependency finds out the user. It runs after the body was read, and uses
the middleware's gate.
"""

# No `from __future__ import annotations` here: FastAPI reads the annotations of `RateLimit.__call__`, and it cannot
# resolve text on an instance.

from collections.abc import Callable, Hashable, Mapping
from dataclasses import replace
from inspect import Parameter, Signature
from typing import Annotated, Any, Final, NoReturn, Unpack, get_args, get_origin
from uuid import UUID

from sluicegate.asgi import Scope, charge_of
from sluicegate.errors import IdentityError, RuleError, needs, shows_half_made
from sluicegate.plan import Decision, RateLimitExceeded
from sluicegate.runtime.awaiting import check_hash
from sluicegate.web.charge import AnyQuota, ChargedRule, run_async
from sluicegate.web.http import PROBLEM, TYPES
from sluicegate.web.marks import EXEMPT, LateOptions, takes_quota
from sluicegate.web.usage import LIMIT, MAX_AGE, SCHEMA

with needs("fastapi"):
    import fastapi as _fastapi  # noqa: F401  # pyright: ignore[reportUnusedImport]  (is it installed?)
    from fastapi import APIRouter
    from fastapi.params import Depends, Security
    from starlette.requests import HTTPConnection

    from sluicegate.starlette import (
        RateLimitMiddleware,
        Refused,
        charge,
        charge_sync,
        decision,
        exempt,
        health,
        limit,
        reset_all,
        settle,
        status,
        usage,
        usage_of,
    )
    from sluicegate.starlette.middleware import state_at
    from sluicegate.starlette.request import StarletteCaller
    from sluicegate.starlette.responses import error_for
    from sluicegate.starlette.routes import endpoint_at

__all__ = [
    "RESPONSES",
    "RateLimit",
    "RateLimitMiddleware",
    "Refused",
    "charge",
    "charge_sync",
    "decision",
    "exempt",
    "health",
    "limit",
    "reset_all",
    "settle",
    "status",
    "usage",
    "usage_of",
    "usage_router",
]


_NAMES: Final = ("id", "pk", "identity", "username", "sub")
"""What may name a user that a dependency returns: the first of these that the user has."""


class _Misuse:
    """An attribute that FastAPI reads of a dependency, or pydantic of an annotation. It raises RuleError if the class
    itself is given as a dependency, or an instance as an annotation.
    """

    def __init__(self, *, of_annotations: bool = False) -> None:
        self._of_annotations = of_annotations

    def __get__(self, instance: object, owner: type) -> NoReturn:
        if instance is None:
            problem = "the class itself, without a quota"
            expected = f'give {owner.__name__}("10/minute"), or Depends({owner.__name__}("10/minute"))'
        elif self._of_annotations:
            problem, expected = "given as an annotation", "write Annotated[Decision | None, RateLimit(…)]"
        else:
            raise AttributeError
        raise RuleError("dependency", owner if instance is None else instance, problem=problem, expected=expected)


@shows_half_made
class RateLimit(Depends):
    """A dependency of a route, a router or the whole application that limits each of their routes.

        @app.get("/export", dependencies=[Depends(RateLimit("10/minute"))])

    An instance is itself a `Depends`, so it also works without `Depends` around it. The class instead of an instance
    raises a RuleError where the route is declared.

    The dependency needs the middleware, and uses the middleware's gate and settings. It returns the Decision, or None
    if no rule applies. It raises a refusal as `Refused`, an HTTPException with the status 429 that is also a
    RateLimitExceeded. A handler for either exception can make the response. If there is an `on_denied`, it raises a
    plain RateLimitExceeded, and the middleware calls `on_denied`. What the request was charged before is given back
    then, unless `refund_earlier=False`. Two equal instances are one dependency: they are charged once, and
    `app.dependency_overrides[RateLimit("10/minute")]` finds both. The options are the same as for `@limit`. Without
    `scope` each route has a separate budget.

    `user` is a dependency that returns the signed-in user, or None, as in `RateLimit("10/minute", user=current_user)`.
    FastAPI resolves it once for the request. The key is then "user", and functions read `request.user`.
    """

    dependency: Any = _Misuse()
    __signature__: Any = _Misuse()
    __get_pydantic_core_schema__: Any = _Misuse(of_annotations=True)

    @takes_quota
    def __init__(
        self,
        quota: AnyQuota,
        *,
        user: Callable[..., object] | Depends | None = None,
        refund_earlier: bool = True,
        **options: Unpack[LateOptions],
    ) -> None:
        super().__init__(self)
        self.user = None if user is None else _dependency(user)
        if self.user is not None:
            options = {"key": "user", **options}
        self.rule = ChargedRule.of("RateLimit", quota, refund_earlier=refund_earlier, **options)
        for option in ("key", "quota", "cost", "when"):  # FastAPI finds equal dependencies by their hash
            check_hash(option, getattr(self.rule.mark.rule, option), error=RuleError)
        self.__signature__ = _signature(self.user)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RateLimit) and self._same == other._same

    def __hash__(self) -> int:
        return hash(self._same)

    def __repr__(self) -> str:
        return f"RateLimit({self.rule.mark.rule.quota!r})"

    @property
    def _same(self) -> tuple[object, ...]:
        mark, refund_earlier, _ = self.rule
        return mark.rule, mark.named, refund_earlier, self.user

    async def __call__(self, connection: HTTPConnection, **resolved: object) -> Decision | None:
        """Charge this request once. `resolved` has the user, if there is a dependency that returns it."""
        scope = connection.scope
        state = state_at(scope, "RateLimit on", scope.get("endpoint"))
        if EXEMPT in state.enforced or not state.gate.settings.enabled:
            return state.decision
        caller = _LateCaller(scope, resolved["user"]) if "user" in resolved else StarletteCaller(scope)
        try:
            charged = await run_async(charge_of(self.rule, scope, endpoint_at(scope)), caller)
        except RateLimitExceeded as error:
            if state.gate.settings.answer_to(error.decision) is not None:
                raise  # the middleware calls `on_denied`
            raise error_for(scope, state.refuse(error.decision)) from None
        return charged if charged.checks else None


def _dependency(user: object) -> Depends:
    """Return the dependency that finds out the user: the argument `user`, or the one inside of Annotated."""
    found = user
    if get_origin(user) is Annotated:
        kind, *metadata = get_args(user)
        found = next((each for each in reversed(metadata) if isinstance(each, Depends)), None)
        if found is not None and found.dependency is None:  # then the type itself is the dependency
            found = replace(found, dependency=kind)
    elif not isinstance(user, Depends) and callable(user):
        found = Depends(user)
    if not isinstance(found, Depends) or found.dependency is None:
        expected = "give the dependency that returns the user, as user=current_user"
        raise RuleError("RateLimit: user", user, problem="not a dependency", expected=expected)
    return replace(found, scopes=tuple(found.scopes or ())) if isinstance(found, Security) else found  # a list: no hash


def _signature(user: Depends | None) -> Signature:
    """Return the parameters that FastAPI fills in: the connection, and the user if a dependency returns it."""
    parameters = [Parameter("connection", Parameter.KEYWORD_ONLY, annotation=HTTPConnection)]
    if user is not None:
        parameters.append(Parameter("user", Parameter.KEYWORD_ONLY, default=user, annotation=Any))
    return Signature(parameters)


class _LateCaller(StarletteCaller):
    """The client of a request whose user a dependency has returned."""

    __slots__ = ("_user",)

    def __init__(self, scope: Scope, user: object) -> None:
        super().__init__({**scope, "user": user})  # functions read it as `request.user`
        self._user = user

    def user(self) -> Hashable | None:
        """Return the user's name; None if nobody is signed in."""
        user = self._user
        if user is None or user is False:
            return None
        if isinstance(user, (str, bytes)):
            return user
        if isinstance(user, (int, UUID)):  # as text, as each adapter has a user
            return str(user)
        if getattr(user, "is_authenticated", True) is False:
            return None
        for name in _NAMES:
            found: object = user.get(name) if isinstance(user, Mapping) else getattr(user, name, None)
            if found is not None and found is not False and found != "":
                return str(found)
        problem = f"it has no {', '.join(_NAMES[:-1])} or {_NAMES[-1]}"
        expected = "give a key, as key=lambda request: request.user.number"
        raise IdentityError("RateLimit: user", type(user), problem=problem, expected=expected)


def _header(text: str, schema: dict[str, object]) -> dict[str, object]:
    return {"description": text, "schema": schema}


_PROBLEM: Final = {
    "type": "object",
    "required": ["type", "title", "status", "violated-policies"],
    "properties": {
        "type": {
            "type": "string",
            "format": "uri",
            "enum": [f"{TYPES}quota-exceeded", f"{TYPES}abnormal-usage-detected"],
        },
        "title": {"type": "string"},
        "status": {"type": "integer", "const": 429},
        "detail": {"type": "string"},
        "violated-policies": {"type": "array", "items": {"type": "string"}},
    },
}
_DETAIL: Final = {"type": "object", "required": ["detail"], "properties": {"detail": {"type": "string"}}}

RESPONSES: Final[dict[int | str, dict[str, Any]]] = {
    429: {
        "description": "Too many requests; come back after `Retry-After` seconds.",
        "headers": {
            "Retry-After": _header("Seconds to wait.", {"type": "integer", "minimum": 1}),
            "RateLimit": _header("What is left of each policy.", {"type": "string"}),
            "RateLimit-Policy": _header("The policies that apply here.", {"type": "string"}),
        },
        # The middleware and `@limit` send the first; FastAPI's handler sends the second for the dependency.
        "content": {PROBLEM: {"schema": _PROBLEM}, "application/json": {"schema": _DETAIL}},
    }
}
"""For `responses=` of a route, a router or the application: the 429 in OpenAPI."""


def usage_router(*, limit: AnyQuota = LIMIT, max_age: int = MAX_AGE) -> APIRouter:
    """Return a router with one page, `/usage`: the caller's budgets under all rules as JSON, also in OpenAPI.

    The page charges none of them. It has a `limit` of its own. A browser may keep the answer for `max_age` seconds.

        app.include_router(usage_router(), prefix="/me")
    """
    answer: dict[int | str, dict[str, Any]] = {
        200: {"description": "What you have used.", "content": {"application/json": {"schema": SCHEMA}}}
    }
    router, view = APIRouter(), usage(limit=limit, max_age=max_age)
    router.add_api_route("/usage", view, response_model=None, responses=answer | RESPONSES, name="usage")
    return router
