"""The adapter for FastAPI: the names of `sluicegate.starlette`, a dependency, and the 429 for OpenAPI.

The middleware counts malformed bodies, 404s and 405s, and sends a refusal before a body is read. The dependency
`RateLimit` is for quotas per user when another dependency finds out the user. It runs after the body was read, and uses
the middleware's gate.
"""

# No `from __future__ import annotations` here: FastAPI reads the annotations of `RateLimit.__call__`, and it cannot
# resolve text on an instance.

from functools import lru_cache
from typing import Any, Final, NoReturn, Unpack

from sluicegate.errors import RuleError
from sluicegate.extras import needs
from sluicegate.plan import Decision
from sluicegate.rules.rule import QuotaFunction
from sluicegate.rules.terms import QuotaSpec
from sluicegate.web.endpoint import Endpoint, label_of, scope_of, short_name
from sluicegate.web.marks import EXEMPT, Mark, RuleOptions, make_mark, takes_quota
from sluicegate.web.problem import PROBLEM, TYPES

with needs("fastapi"):
    import fastapi as _fastapi  # noqa: F401  # pyright: ignore[reportUnusedImport]  (is it installed?)
    from fastapi.params import Depends
    from starlette.requests import HTTPConnection

    from sluicegate.starlette import RateLimitMiddleware, Refused, charge, charge_sync, decision, exempt, limit
    from sluicegate.starlette.decorators import bounds_of
    from sluicegate.starlette.middleware import decide, state_at
    from sluicegate.starlette.responses import error_for
    from sluicegate.starlette.routes import template_of

__all__ = [
    "RESPONSES",
    "RateLimit",
    "RateLimitMiddleware",
    "Refused",
    "charge",
    "charge_sync",
    "decision",
    "exempt",
    "limit",
]


class _OnInstances:
    """An attribute that FastAPI reads from a dependency. Reading it from the class instead of an instance raises
    RuleError.
    """

    def __get__(self, instance: object, owner: type) -> NoReturn:
        if instance is not None:
            raise AttributeError
        expected = f'give {owner.__name__}("10/minute"), or Depends({owner.__name__}("10/minute"))'
        raise RuleError("dependency", owner, problem="the class itself, without a quota", expected=expected)


class _OfTypes(_OnInstances):
    """An attribute that pydantic reads from an annotation. Reading it raises RuleError, because RateLimit is not an
    annotation.
    """

    def __get__(self, instance: object, owner: type) -> NoReturn:
        if instance is None:
            super().__get__(instance, owner)
        expected = "write Annotated[Decision | None, RateLimit(…)]"
        raise RuleError("dependency", instance, problem="given as an annotation", expected=expected)


class RateLimit(Depends):
    """A dependency of a route, a router or the whole application that limits each of their routes.

        @app.get("/export", dependencies=[Depends(RateLimit("10/minute"))])

    An instance is itself a `Depends`, so it also works without `Depends` around it. The class instead of an instance
    raises a RuleError where the route is declared.

    The dependency needs the middleware, and uses the middleware's gate and settings. It returns the Decision, or None
    if no rule applies. It raises a refusal as `Refused`, an HTTPException with the status 429 that is also a
    RateLimitExceeded. A handler for either exception can make the response. Two equal instances are one dependency:
    they are charged once, and `app.dependency_overrides[RateLimit("10/minute")]` finds both. The options are the same
    as for `@limit`. Without `scope` each route has a separate budget.
    """

    dependency: Any = _OnInstances()
    __signature__: Any = _OnInstances()
    __get_pydantic_core_schema__: Any = _OfTypes()

    @takes_quota
    def __init__(
        self,
        quota: QuotaSpec | QuotaFunction,
        *,
        scope: str | None = None,
        name: str | None = None,
        **options: Unpack[RuleOptions],
    ) -> None:
        super().__init__(self)
        if "override_defaults" in options:
            problem = "when a dependency runs, the defaults are charged already"
            expected = "leave it out, or write @limit(…, override_defaults=True) on the view"
            raise RuleError("RateLimit", "override_defaults", problem=problem, expected=expected)
        self.mark = make_mark(quota, scope=scope, name=name, **options)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RateLimit) and (self.mark.rule, self.mark.named) == (other.mark.rule, other.mark.named)

    def __hash__(self) -> int:
        return hash((self.mark.rule, self.mark.named))

    def __repr__(self) -> str:
        return f"RateLimit({self.mark.rule.quota!r})"

    async def __call__(self, connection: HTTPConnection) -> Decision | None:
        """Charge this request once."""
        scope = connection.scope
        state = state_at(scope, "RateLimit on", scope.get("endpoint"))
        if self.mark in state.enforced or EXEMPT in state.enforced or not state.gate.settings.enabled:
            return state.decision
        state.note_marks((self.mark,))
        endpoint = _endpoint(self.mark, label_of(scope.get("endpoint")), template_of(scope))
        decided = await decide(state, scope, bounds_of(state.gate, endpoint, endpoint.marks))
        if decided is not None and not decided.allowed:
            raise error_for(scope, decided)
        return decided


@lru_cache(maxsize=4096)
def _endpoint(mark: Mark, label: str, route: str) -> Endpoint:
    """Return the endpoint of a dependency. Its budget is separate from the budgets of `@limit` and of other quotas."""
    quota = mark.rule.quota
    text = label_of(quota) if callable(quota) else "; ".join(map(str, quota if isinstance(quota, tuple) else (quota,)))
    scope = scope_of(Endpoint(label=f"{label}~{text}", route=route))
    rule = mark.rule_for(short_name(Endpoint(label=label)), scope)
    return Endpoint(marks=(Mark(rule, named=True),), label=label, route=route)


def _header(text: str, schema: dict[str, Any]) -> dict[str, Any]:
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
