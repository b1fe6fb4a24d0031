"""Users that a dependency of FastAPI finds: `RateLimit("10/minute", user=current_user)`."""

from __future__ import annotations

from typing import Annotated, Any
from uuid import UUID

import pytest
from fastapi import Depends, FastAPI, Security
from fastapi.params import Depends as DependsMarker
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer

from sluicegate import ManualClock, Tiers
from sluicegate.errors import IdentityError, RuleError
from sluicegate.fastapi import RateLimit, RateLimitMiddleware
from tests.adapters.asgi_client import AsgiClient, make_scope

BEARER = HTTPBearer(auto_error=False)
Token = Annotated[HTTPAuthorizationCredentials | None, Depends(BEARER)]
asked: list[str] = []


class Member:
    """A user as an application has it."""

    def __init__(self, number: int, plan: str) -> None:
        self.id, self.plan = number, plan


def name_in(token: Token) -> str | None:
    asked.append("name")
    return None if token is None else token.credentials


async def member(name: Annotated[str | None, Depends(name_in)]) -> Member | None:
    asked.append("member")
    return None if name is None else Member(ord(name[0]), "gold" if name == "gold" else "free")


async def yielded(found: Annotated[Member | None, Depends(member)]) -> Any:
    yield found
    asked.append("closed")


def as_mapping(name: Annotated[str | None, Depends(name_in)]) -> dict[str, Any] | None:
    return None if name is None else {"sub": name, "id": None, "pk": False}


def or_false(name: Annotated[str | None, Depends(name_in)]) -> str | bool:
    return name or False


NAMED: Any = Depends(name_in)  # FastAPI 0.123 resolves no annotation in a class


class Session:
    """A class as a dependency: a request without a token is nobody's."""

    def __init__(self, name: Any = NAMED) -> None:
        self.username, self.is_authenticated = name, name is not None


def limited(app: FastAPI, **options: Any) -> AsgiClient:
    app.add_middleware(RateLimitMiddleware, **{"clock": ManualClock(), **options})
    return AsgiClient(app)


def of(late: RateLimit) -> FastAPI:
    app = FastAPI()
    app.get("/", dependencies=[Depends(late)])(lambda: "x")
    return app


def with_token(client: AsgiClient, name: str | None, path: str = "/") -> Any:
    return client.get(path, headers=[] if name is None else [("Authorization", f"Bearer {name}")])


USERS: list[Any] = [
    name_in, member, yielded, as_mapping, or_false, Session, Depends(member), Security(member),
    Security(member, scopes=["items"]), Annotated[Member | None, Depends(member)], Annotated[Session, Depends()],
]  # fmt: skip


class Numbered:
    """A user whose primary key is a UUID."""

    id = UUID(int=7)


@pytest.mark.parametrize(
    ("user", "text"),
    [(7, "7"), ("7", "7"), (UUID(int=7), str(UUID(int=7))), (Numbered(), str(Numbered.id))],
)
def test_a_user_is_text_however_it_was_found(user: Any, text: str) -> None:
    """So commands and `reset_all` find the budget by the text."""
    app = of(RateLimit("1/minute", user=lambda: user, scope="mine"))
    app.get("/text", dependencies=[Depends(RateLimit("1/minute", user=lambda: text, scope="mine"))])(lambda: "x")
    client = limited(app)
    assert [client.get(path).status for path in ("/text", "/")] == [200, 429]


@pytest.mark.parametrize("user", USERS)
def test_a_dependency_limits_each_user_that_another_one_finds(user: Any) -> None:
    app = FastAPI()

    late = RateLimit("2/minute", user=user, name="own")
    before: Any = user if isinstance(user, DependsMarker) else late.user
    app.get("/", dependencies=[before, Depends(late)])(lambda: "x")

    client = limited(app, default_limits=["9/hour"], key="ip")
    asked.clear()
    statuses = [with_token(client, name).status for name in ("anna", "anna", "anna", "bob", "bob", "bob")]
    assert statuses == [200, 200, 429] * 2
    assert asked.count("name") == 6, "FastAPI has resolved it once for each request"
    anonymous = [with_token(client, None) for _ in range(3)]
    assert [each.status for each in anonymous] == [200, 200, 429]  # by address
    assert client.get("/", peer="203.0.113.77").status == 200
    assert anonymous[1].one("ratelimit") == '"default";r=3;t=3600, "own";r=0;t=60'
    assert (anonymous[2].one("retry-after"), anonymous[2].one("ratelimit")) == ("60", '"own";r=0;t=60')
    app.get("/other")(lambda: "x")
    assert client.get("/other").one("ratelimit") == '"default";r=2;t=3600'  # each refusal gave the default back


def test_functions_of_a_late_users_rule_read_the_user() -> None:
    tiers = Tiers({"free": "1/minute", "gold": "2/minute"}, by=lambda request: request.user.plan)
    late = RateLimit(tiers, user=member, key=lambda request: request.user.plan)
    client = limited(of(late))
    assert [with_token(client, name).status for name in ("anna", "bob", "gold", "gold", "gold")] == [
        200,
        429,
        200,
        200,
        429,
    ]


def test_a_late_user_who_has_no_name_is_an_error_and_never_shares_a_budget() -> None:
    client = limited(of(RateLimit("1/minute", user=object)))
    with pytest.raises(IdentityError, match=r"no id, pk, identity, username or sub; give a key.* \[SG006\]"):
        client.serve(make_scope("GET", "/"), raising=True)
    for wrong in ("alice", Depends(), Annotated[str, "alice"]):
        with pytest.raises(RuleError, match=r"RateLimit: user .*: not a dependency; .*user=current_user"):
            RateLimit("1/minute", user=wrong)  # type: ignore[arg-type]
    assert RateLimit("1/minute", user=member) != RateLimit("1/minute", user=name_in, key="user")
    alias: Any = Annotated[Member | None, Depends(member)]
    assert len({RateLimit("1/minute", user=same) for same in (member, member, Depends(member), alias)}) == 1
    scopes: Any = [["items"], ["items"], ("items",), ["users"], None]
    assert len({RateLimit("1/minute", user=Security(member, scopes=each)) for each in scopes}) == 3


def test_a_late_user_adds_nothing_to_openapi_but_its_own_parameters() -> None:
    plain, late = FastAPI(), FastAPI()
    plain.get("/", dependencies=[Depends(member)])(lambda: "x")
    late.get("/", dependencies=[Depends(RateLimit("1/minute", user=member))])(lambda: "x")
    assert late.openapi() == plain.openapi()


def test_what_the_middleware_charged_stays_if_the_dependency_says_so() -> None:
    late = RateLimit("1/minute", user=member, refund_earlier=False)
    client = limited(of(late), default_limits=["9/hour"], key="ip")
    assert [with_token(client, "anna").status for _ in range(3)] == [200, 429, 429]
    assert with_token(client, "bob").one("ratelimit").startswith('"default";r=5;')
