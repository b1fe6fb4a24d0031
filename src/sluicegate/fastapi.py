"""The adapter for FastAPI: the names of `sluicegate.starlette`, a dependency, and the 429 for OpenAPI.

The middleware protects: it counts malformed bodies, 404s and 405s, and answers before a body is read. The dependency
`RateLimit` is for quotas of users who have been recognised by other dependencies; it runs after the body was read,
through the middleware's gate. This module knows FastAPI and Starlette; no store.
"""

# No `from __future__ import annotations` here: FastAPI reads the annotations of `RateLimit.__call__`, and it cannot
# resolve text on an instance.

from functools import lru_cache
from typing import Any, Final, NoReturn, Unpack

from sluicegate.errors import RuleError
from sluicegate.extras import needs
from sluicegate.marks import EXEMPT, Mark, RuleOptions, make_mark
from sluicegate.passage import Place, label_of, scope_of, short_name
from sluicegate.plan import Decision
from sluicegate.problem import PROBLEM, TYPES
from sluicegate.rule import QuotaFunction
from sluicegate.terms import QuotaSpec

with needs("fastapi"):
    import fastapi as _fastapi  # noqa: F401  # pyright: ignore[reportUnusedImport]  (is it there?)
    from fastapi.params import Depends
    from starlette.requests import HTTPConnection

    from sluicegate.starlette import RateLimitMiddleware, Refused, decision, exempt, limit
    from sluicegate.starlette.answers import refusal
    from sluicegate.starlette.decorators import bounds_of
    from sluicegate.starlette.middleware import charge, passage_at
    from sluicegate.starlette.places import template_of

__all__ = ["RESPONSES", "RateLimit", "RateLimitMiddleware", "Refused", "decision", "exempt", "limit"]


class _OfInstances:
    """An attribute that FastAPI looks for on what it was given, and that only an instance of RateLimit can have."""

    def __get__(self, instance: object, owner: type) -> NoReturn:
        if instance is not None:  # an instance has its own, or none
            raise AttributeError
        expected = f'give {owner.__name__}("10/minute"), or Depends({owner.__name__}("10/minute"))'
        raise RuleError("dependency", owner, problem="the class itself, without a quota", expected=expected)


class RateLimit(Depends):
    """A dependency that limits each route it stands on: of a route, a router or the whole application.

        @app.get("/export", dependencies=[Depends(RateLimit("10/minute"))])

    It is a `Depends` itself, so that it limits also where `Depends` around it was forgotten. The class in the place of
    an instance is a RuleError where the route is declared.

    It needs the middleware, whose gate and settings it uses, and returns the Decision (None where it does not apply).
    A refusal is raised as `Refused`, an HTTPException with the status 429 that is a RateLimitExceeded as well: a
    handler for either answers it. Two equal ones are the same dependency: they are charged once, and
    `app.dependency_overrides[RateLimit("10/minute")]` finds them. Options are those of `@limit`; without `scope` each
    route has a budget of its own.
    """

    dependency: Any = _OfInstances()
    __signature__: Any = _OfInstances()
    __get_pydantic_core_schema__: Any = _OfInstances()

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
            problem = "when a dependency runs, the defaults have been charged"
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
        """Charge this request, once."""
        scope = connection.scope
        passage = passage_at(scope, "RateLimit on", scope.get("endpoint"))
        if self.mark in passage.enforced or EXEMPT in passage.enforced or not passage.gate.settings.enabled:
            return passage.decision
        passage.enforced.add(self.mark)
        place = _place(self.mark, label_of(scope.get("endpoint")), template_of(scope))
        decided = await charge(passage, scope, bounds_of(passage.gate, place, place.marks))
        if decided is not None and not decided.allowed:
            raise refusal(scope, decided)
        return decided


@lru_cache(maxsize=4096)
def _place(mark: Mark, label: str, route: str) -> Place:
    """The place of a dependency. Its budget is apart from the decorators' of the same view, and from other quotas'."""
    quota = mark.rule.quota
    text = label_of(quota) if callable(quota) else "; ".join(map(str, quota if isinstance(quota, tuple) else (quota,)))
    scope = scope_of(Place(label=f"{label}~{text}", route=route))
    rule = mark.rule_for(short_name(Place(label=label)), scope)
    return Place(marks=(Mark(rule, named=True),), label=label, route=route)


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
            "RateLimit-Policy": _header("The policies that hold here.", {"type": "string"}),
        },
        # The middleware and `@limit` answer with the one, the dependency by FastAPI's own handler with the other.
        "content": {PROBLEM: {"schema": _PROBLEM}, "application/json": {"schema": _DETAIL}},
    }
}
"""For `responses=` of a route, a router or the application: the 429 in OpenAPI."""
