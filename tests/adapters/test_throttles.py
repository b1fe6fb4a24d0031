"""`sluicegate.drf` and `sluicegate.ninja`: throttle classes with the frameworks' protocols, on our engine."""

from __future__ import annotations

import gc
import re
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from itertools import permutations
from typing import Any, cast
from uuid import uuid4

import pytest
from click.testing import CliRunner
from django.core.exceptions import ImproperlyConfigured
from django.http import HttpRequest, HttpResponse
from django.urls import path

from sluicegate import ManualClock, Quota, Rule, Tiers
from sluicegate.cli.application import Limiting
from sluicegate.cli.budgets import Budgets
from sluicegate.cli.commands import sluicegate
from sluicegate.django import acharge, charge, checks, limit, overview, rate_limited
from sluicegate.django.throttles import RateThrottle, read_rate
from sluicegate.errors import AsyncMismatchError, NotEnforcedError, QuotaError, RuleError
from sluicegate.plan import Outcome, Plan
from sluicegate.runtime.awaiting import label_of
from sluicegate.stores.memory import AsyncMemoryStore, MemoryStore
from tests.adapters.django_app import OURS, Site, User, serving

with pytest.MonkeyPatch.context() as patch:
    patch.setenv("NINJA_SKIP_REGISTRY", "yes")
    import ninja
    from ninja.throttling import SimpleRateThrottle as NinjaOwn
    from rest_framework.authentication import BaseAuthentication
    from rest_framework.decorators import api_view, throttle_classes
    from rest_framework.exceptions import AuthenticationFailed, Throttled
    from rest_framework.permissions import AllowAny, BasePermission
    from rest_framework.renderers import JSONRenderer
    from rest_framework.response import Response
    from rest_framework.settings import api_settings
    from rest_framework.throttling import SimpleRateThrottle as DrfOwn
    from rest_framework.views import APIView
    from rest_framework.viewsets import ViewSet

    from sluicegate import drf
    from sluicegate import ninja as throttles


class Tokens(BaseAuthentication):
    """Bearer tokens that are the user's name; without one the request is anonymous."""

    def authenticate(self, request: Any) -> Any:
        name = request.META.get("HTTP_AUTHORIZATION")
        if name is None:
            return None
        if name not in ("Bearer alice", "Bearer bob"):
            raise AuthenticationFailed
        return User(name.removeprefix("Bearer ")), name

    def authenticate_header(self, request: Any) -> str:
        return "Bearer"


def view(*given: Any, **attributes: Any) -> Any:
    """A view of REST framework with these throttles."""

    def get(self: Any, request: Any) -> Response:
        return Response("passed")

    common = {"authentication_classes": (Tokens,), "renderer_classes": (JSONRenderer,), "get": get}
    made: Any = type("Shown", (APIView,), {**common, "throttle_classes": given, **attributes})
    return made.as_view()


def throttle(base: Any = drf.UserRateThrottle, **attributes: Any) -> Any:
    return type("Own", (base,), attributes)


def operation(*given: Any) -> Any:
    """The routes of a Ninja API whose users are in the Authorization header."""

    def authenticate(request: Any) -> Any:
        return request.headers.get("Authorization", "nobody")

    api = ninja.NinjaAPI(auth=authenticate, throttle=[*given], urls_namespace=uuid4().hex, docs_url=None)

    @api.get("x")
    def shown(request: Any) -> str:
        return "passed"

    return api.urls


class Counting(MemoryStore):
    """A memory store that keeps the plans it ran."""

    def __init__(self, clock: ManualClock) -> None:
        super().__init__(clock=clock)
        self.plans: list[Plan] = []

    def run(self, plan: Plan) -> tuple[Outcome, ...]:
        self.plans.append(plan)
        return super().run(plan)


def alice(site: Site, target: str = "/x", **options: Any) -> Any:
    return site.request("GET", target, headers=[("Authorization", "Bearer alice")], **options)


@pytest.fixture(params=[False, True], ids=["wsgi", "asgi"])
def asgi(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


# ---- rates -------------------------------------------------------------------------------------------------------

RATES: list[tuple[Any, Any, str | None]] = [
    ("10/min", DrfOwn, "10/minute"),
    ("100/day", DrfOwn, "100/day"),
    ("5/s", DrfOwn, "5/second"),
    ("5/hrs", DrfOwn, "5/hour"),  # REST framework reads the first letter only
    ("1_000/d", DrfOwn, "1000/day"),
    (" 10/m", DrfOwn, "10/minute"),
    ("10/5m", DrfOwn, "10 per 5 minutes"),
    ("10/minute; 100/day", DrfOwn, "10/minute; 100/day"),
    ("1/second burst 20", DrfOwn, "1/second burst 20"),
    ("10_000/calendar month", DrfOwn, "10000/calendar month"),
    ("100/calendar day in Europe/Berlin", NinjaOwn, "100/calendar day in Europe/Berlin"),
    (Quota(7, 60), DrfOwn, "7/minute"),
    ("100/10", NinjaOwn, "100 per 10 seconds"),
    ("10_000/7d", NinjaOwn, "10000/week"),
    ("500/10min", NinjaOwn, "500 per 10 minutes"),
    ("10/month", DrfOwn, None),  # 10 a minute for REST framework
    ("10/month", NinjaOwn, "10 per 30 days"),
    ("0/min", DrfOwn, None),
    ("10", DrfOwn, None),
    ("10/x", DrfOwn, None),
    ("2 at once", DrfOwn, None),
]


@pytest.mark.parametrize(("rate", "framework", "expected"), RATES)
def test_a_rate_is_read_as_the_framework_or_as_sluicegate_reads_it(rate: Any, framework: Any, expected: Any) -> None:
    if expected is None:
        with pytest.raises(QuotaError):
            read_rate(rate, framework)
    else:
        assert "; ".join(map(str, read_rate(rate, framework))) == expected


def test_a_text_with_two_meanings_names_both() -> None:
    both = r'"10/minute" for rest_framework.+ write "10/minute" or "10 per 30 days"'
    with pytest.raises(QuotaError, match=f"^Own: rate .+{both}"):
        throttle(rate="10/month")()


PRO = Tiers({"free": "1/minute", "pro": "3/minute"}, by=lambda request: "pro" if request.user.pk == "alice" else "free")


def plan_of(self: Any, request: Any) -> str | None:
    return {"alice": "3/min", "bob": "1/min"}.get(str(request.user.pk))


@pytest.mark.parametrize(
    "given",
    [
        {"rate": PRO},
        {"rate": plan_of},
        {"THROTTLE_RATES": {"user": PRO}},
        {"THROTTLE_RATES": {"user": lambda request: plan_of(None, request)}},
    ],
    ids=["tiers", "method", "tiers in the rates", "function in the rates"],
)
def test_a_rate_per_plan(given: Any, asgi: bool) -> None:
    with serving(asgi=asgi, urls=[path("x", view(throttle(**given)))]) as site:
        assert [alice(site).status for _ in range(4)] == [200, 200, 200, 429]
        bob = [("Authorization", "Bearer bob")]
        assert site.statuses("/x", "/x", headers=bob) == [200, 429]


def test_an_async_rate_is_an_error() -> None:
    async def later(self: Any, request: Any) -> str:
        return "1/min"

    with serving(asgi=False), pytest.raises(AsyncMismatchError, match="rate of Own"):
        throttle(rate=later)().bounds(HttpRequest(), "alice")


# ---- what REST framework's users write ---------------------------------------------------------------------------


class ByPlan(drf.UserRateThrottle):
    """Changes its rate for each request, as many projects do."""

    rate = "9/min"

    def allow_request(self, request: Any, view: Any) -> bool:
        self.num_requests, self.duration = self.parse_rate("2/min")
        return bool(super().allow_request(request, view))


class Minutes(drf.UserRateThrottle):
    """Reads rates of its own."""

    rate = "2 each minute"

    def parse_rate(self, rate: Any) -> Any:
        return int(rate.split()[0]), 60


class ByTeam(drf.SimpleRateThrottle):
    rate = "2/min"

    def get_cache_key(self, request: Any, view: Any) -> str | None:
        return request.headers.get("X-Team")


class OneAddress(drf.AnonRateThrottle):
    rate = "2/min"

    def get_ident(self, request: Any) -> str:
        return "all"


class Two(drf.AnonRateThrottle):
    rate = "2/min"


class OneFormat(drf.AnonRateThrottle):
    rate = "2/min"
    cache_format = "all"


TEAM = [("X-Team", "red")]
OVERRIDES: dict[str, tuple[Any, list[dict[str, Any]], list[int]]] = {
    "allow_request": (ByPlan, [{}] * 3, [200, 200, 429]),
    "parse_rate": (Minutes, [{}] * 3, [200, 200, 429]),
    "get_cache_key": (ByTeam, [{"headers": TEAM}] * 3 + [{}] * 3, [200, 200, 429, 200, 200, 200]),
    "get_ident": (OneAddress, [{"peer": f"203.0.113.{n}"} for n in (1, 2, 3)], [200, 200, 429]),
    "none": (Two, [{"peer": f"203.0.113.{n}"} for n in (1, 2, 1, 1)], [200, 200, 200, 429]),
    "cache_format": (OneFormat, [{"peer": f"203.0.113.{n}"} for n in (1, 2, 3)], [200, 200, 429]),
}


@pytest.mark.parametrize("name", OVERRIDES)
def test_what_a_subclass_overrides_holds(name: str, asgi: bool) -> None:
    kind, requests, statuses = OVERRIDES[name]
    with serving(asgi=asgi, urls=[path("x", view(kind))], clock=ManualClock()) as site:
        assert [site.request("GET", "/x", **each).status for each in requests] == statuses


class Actions(ViewSet):
    """A viewset, of which an action has throttles of its own."""

    throttle_classes = (OneAddress,)

    def get(self, request: Any) -> Response:
        return Response("passed")


DESCRIBED: dict[str, tuple[Any, str, str]] = {  # the view, its quotas, and its key
    "rate": (view(throttle(rate="2/min; 9/hour")), "2/minute; 9/hour", "user"),
    "several": (view(Two, throttle(rate="9/hour")), "2/minute 9/hour", "ip user"),
    "key": (view(ByTeam), "2/minute", f"{__name__}.ByTeam.get_cache_key"),
    "parse_rate": (view(Minutes), "2/minute", "user"),
    "scope": (
        view(throttle(drf.ScopedRateThrottle, THROTTLE_RATES={"files": "2/min"}), throttle_scope="files"),
        "2/minute",
        "user",
    ),
    "no scope": (view(drf.ScopedRateThrottle), "", ""),
    "a function": (view(throttle(rate=lambda self, request: "2/min")), "by", "user"),
    "another package's": (view(DrfOwn), "", ""),
    "an action": (Actions.as_view({"get": "get"}, throttle_classes=[Two]), "2/minute", "ip"),
    "get_throttles": (view(Two, get_throttles=lambda self: []), "", ""),
    "no view of REST framework": (lambda request: HttpResponse("plain"), "", ""),
}


@pytest.mark.parametrize("kind", DESCRIBED)
def test_commands_know_the_rules_that_are_charged(kind: str) -> None:
    """Those of throttles come after those of the middleware."""
    target, quotas, keys = DESCRIBED[kind]
    store = Counting(ManualClock())
    with serving(asgi=False, urls=[path("x", target)], store=store, default_limits=["99/day"]) as site:
        gate, (_, (_, (default, *found), chosen)) = overview.project_rules()
        assert (chosen is not None) == (kind == "get_throttles")
        assert default.rule.name == "default"
        shown = [
            "by" if callable(each.rule.quota) else "; ".join(map(str, cast("Any", each.rule.quota))) for each in found
        ]
        assert (" ".join(shown), " ".join(label_of(gate.key_of(each)) for each in found)) == (quotas, keys)
        if kind in ("a function", "another package's"):
            return  # the quota is not known yet; it needs a cache
        site.request("GET", "/x", headers=TEAM)
        charged = {check.terms.rule_id for plan in store.plans[1:] for check in plan.checks}
        assert charged == {terms.rule_id for each in found for terms in each.terms or ()}


def needs_request(self: Any, view: Any) -> bool:
    return bool(view.request.user)


# ---- what is chosen for each request is no error -----------------------------------------------------------------

ByPlanScope = throttle(drf.ScopedRateThrottle, THROTTLE_RATES={"uploads_free": "2/min"})


def name_the_plan(view: Any) -> None:
    view.throttle_scope = "uploads_free"


def give_rates(self: Any) -> list[Any]:
    return [throttle(kind, rate="2/min")() for kind in self.throttle_classes]


def scope_in_get_throttles(self: Any) -> list[Any]:
    name_the_plan(self)
    return [*APIView.get_throttles(self)]


def scope_in_initial(self: Any, request: Any, *args: Any, **kwargs: Any) -> None:
    name_the_plan(self)
    APIView.initial(self, request, *args, **kwargs)


def scope_in_allow_request(self: Any, request: Any, view: Any) -> bool:
    name_the_plan(view)
    return bool(drf.ScopedRateThrottle.allow_request(self, request, view))


def scope_in_a_foreign_throttle(self: Any, request: Any, view: Any) -> bool:
    name_the_plan(view)
    return True


class ScopeInPermission(BasePermission):
    """A permission that chooses the scope of the view."""

    def has_permission(self, request: Any, view: Any) -> bool:
        name_the_plan(view)
        return True


class Composed(APIView):
    """A view whose scope is a property."""

    throttle_classes = (ByPlanScope,)
    renderer_classes = (JSONRenderer,)

    @property
    def throttle_scope(self) -> str:
        return "uploads_free" if hasattr(self, "request") else "uploads"

    def get(self, request: Any) -> Response:
        return Response("passed")


class Late(drf.UserRateThrottle):
    """A throttle whose scope is known when the application serves."""

    serving = False

    def get_rate(self) -> str:
        return "2/min" if self.serving else str(super().get_rate())


CHOSEN: dict[str, Any] = {
    "rates in get_throttles": view(throttle(scope="none"), get_throttles=give_rates),
    "get_throttles": view(ByPlanScope, throttle_scope="uploads", get_throttles=scope_in_get_throttles),
    "initial": view(ByPlanScope, throttle_scope="uploads", initial=scope_in_initial),
    "allow_request": view(throttle(ByPlanScope, allow_request=scope_in_allow_request), throttle_scope="uploads"),
    "another throttle": view(
        type("Foreign", (DrfOwn,), {"rate": "9/min", "allow_request": scope_in_a_foreign_throttle}),
        ByPlanScope,
        throttle_scope="uploads",
    ),
    "a permission": view(ByPlanScope, throttle_scope="uploads", permission_classes=(ScopeInPermission,)),
    "permissions": view(ByPlanScope, throttle_scope="uploads", permission_classes=(ScopeInPermission & AllowAny,)),
    "a property": Composed.as_view(),
    "get_rate": view(type("Late", (Late,), {"scope": "none"})),
    "a factory": view(partial(throttle(rate="2/min")), type("Late", (Late,), {"scope": "none"})),
}


@pytest.mark.parametrize("kind", CHOSEN)
def test_what_is_chosen_for_each_request_is_no_error(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(asgi=False, urls=[path("x", CHOSEN[kind])], default_limits=["99/day"], clock=ManualClock()) as site:
        assert [each.id for each in checks.check() if str(each.id).startswith("sluicegate.E")] == []
        done = CliRunner().invoke(sluicegate, ["check"], env={"DJANGO_SETTINGS_MODULE": "x", "COLUMNS": "200"})
        assert (done.exit_code, "chosen for each request, not checked" in done.output) == (0, True), done.output
        monkeypatch.setattr(Late, "serving", True)
        assert site.statuses("/x", "/x", "/x") == [200, 200, 429]


class WithOwnKey(drf.SimpleRateThrottle):
    """What most projects write: a scope and a key. The scope has no rate."""

    scope = "nowhere"

    def get_cache_key(self, request: Any, view: Any) -> str:
        return "everybody"


@pytest.mark.parametrize(
    "target",
    [
        view(WithOwnKey),
        view(drf.ScopedRateThrottle, throttle_scope="nowhere"),
        view(Two, throttle(WithOwnKey, allow_request=scope_in_allow_request)),
        view(WithOwnKey, get_view_name=needs_request, finalize_response=needs_request),
        view(WithOwnKey, permission_classes=(AllowAny,)),
        view(throttle(rate="10/month")),
        view(throttle(rate="2/min", options={"algorithm": "none"})),
        api_view(["GET"])(throttle_classes([WithOwnKey])(lambda request: Response("passed"))),
        Actions.as_view({"get": "get"}, throttle_classes=[WithOwnKey]),
    ],
)
def test_what_no_request_can_change_is_an_error(target: Any) -> None:
    with serving(asgi=False, urls=[path("x", target)]) as site:
        assert [each.id for each in checks.check() if str(each.id).startswith("sluicegate.E")] == ["sluicegate.E004"]
        assert site.statuses("/x") == [500]


@pytest.mark.parametrize(
    ("target", "status", "says"),
    [
        (view(Two, get_throttles=lambda self: []), 0, "throttles: chosen for each request, not checked"),
        (view(throttle(rate="2/min", prepare=needs_request)), 0, "throttles: chosen for each request, not checked"),
        (view(drf.ScopedRateThrottle, throttle_scope="nowhere"), 2, f"in the throttles of {__name__}.Shown"),
        (view(throttle(rate="10/month")), 1, f"the throttles of {__name__}.Shown: Own: rate '10/month'"),
    ],
    ids=["get_throttles", "needs the request", "no rate", "a rate of two meanings"],
)
def test_check_names_the_view_and_what_it_chooses(target: Any, status: int, says: str) -> None:
    env = {"DJANGO_SETTINGS_MODULE": "its settings", "COLUMNS": "200"}
    with serving(asgi=False, urls=[path("x", target)], default_limits=["99/day"]):
        for words in (["check"], ["check", "--json"]):
            done = CliRunner().invoke(sluicegate, words, env=env)
            assert (done.exit_code, says in done.output) == (status, True), done.output
            assert "2/minute" not in done.output


@pytest.mark.parametrize(
    ("target", "says"),
    [
        (view(Two, get_throttles=lambda self: []), f" (chosen for each request by {__name__}.Shown)"),
        (view(Two), ""),
    ],
)
def test_show_names_the_views_that_choose_throttles(target: Any, says: str) -> None:
    with serving(asgi=False, urls=[path("x", target), path("y", target)]):
        gate, endpoints = overview.project_rules()
        budgets = Budgets([Limiting(gate.settings, gate, tuple(endpoints))], None)
        why = "No rule of the application has this id: it is of an old quota, or in Django of a throttle class"
        assert budgets.why_unknown("uploads:sw86400") == why + says


def test_commands_know_a_throttle_with_a_rate_for_each_view() -> None:
    def prepare(self: Any, view: Any) -> bool:
        self.rate = view.rate
        self.num_requests, self.duration = self.parse_rate(self.rate)
        return True

    own = throttle(rate="9/min", prepare=prepare)
    with serving(asgi=False, urls=[path(rate[0], view(own, rate=rate)) for rate in ("1/min", "2/min")]):
        _, (_, *rules) = overview.project_rules()
        assert [str(terms.quota) for each in rules for terms in each.bounds[0].terms or ()] == ["1/minute", "2/minute"]


def test_scopes_and_their_rates(asgi: bool) -> None:
    scoped = throttle(drf.ScopedRateThrottle, THROTTLE_RATES={"uploads": "2/min", "none": None})
    scopes = {"a": "uploads", "b": "uploads", "c": None, "d": "none"}
    urls = [path(route, view(scoped, throttle_scope=scope)) for route, scope in scopes.items()]
    with serving(asgi=asgi, urls=urls) as site:
        assert site.statuses("/a", "/b", "/b", "/a", "/c", "/d") == [200, 200, 429, 429, 200, 200]
    with pytest.raises(ImproperlyConfigured):
        throttle(drf.SimpleRateThrottle)()


@pytest.mark.parametrize("installed", [True, False], ids=["middleware", "alone"])
def test_a_plain_view_of_the_same_scope_shares_the_budget(installed: bool, asgi: bool) -> None:
    @limit("2/minute", scope="uploads", key="user")
    def plain(request: HttpRequest) -> HttpResponse:
        return HttpResponse("passed")

    urls = [path("plain", plain), path("x", view(throttle(rate="2/min", scope="uploads")))]
    urls.append(path("", operation(throttle(throttles.UserRateThrottle, scope="uploads")("2/min"))))
    with (
        pytest.warns(match="SG104") if not installed else nothing(),
        serving(asgi=asgi, middleware=[OURS] if installed else [], urls=urls, clock=ManualClock()) as site,
    ):
        assert site.statuses("/plain", "/x", "/x", "/plain") == [200, 200, 429, 429]
        assert alice(site).status == 200


@contextmanager
def nothing() -> Iterator[None]:
    yield


def test_num_proxies_counts_where_the_settings_trust_no_proxy(monkeypatch: pytest.MonkeyPatch, asgi: bool) -> None:
    monkeypatch.setattr(api_settings, "NUM_PROXIES", 1, raising=False)
    ends = [[("X-Forwarded-For", f"6.6.6.6, 203.0.113.{n}")] for n in (1, 2, 1, 1)]
    trusting: dict[str, Any] = {"trusted_proxies": ["192.0.2.0/24"]}
    for options, statuses in (({}, [200, 200, 200, 429]), (trusting, [200, 200, 429, 429])):
        with serving(asgi=asgi, urls=[path("x", view(Two))], **options) as site:
            assert [site.request("GET", "/x", headers=each).status for each in ends] == statuses


# ---- all or nothing ----------------------------------------------------------------------------------------------

BURST, SUSTAINED = {"scope": "burst", "rate": "2/min"}, {"scope": "sustained", "rate": "9/hour"}


def test_all_throttles_of_a_view_are_one_plan(asgi: bool) -> None:
    clock = ManualClock()
    store = Counting(clock)
    given = throttle(**SUSTAINED), throttle(**BURST)
    given[0].__name__ = "Sustained"
    with serving(asgi=asgi, urls=[path("x", view(*given))], store=AsyncMemoryStore(store) if asgi else store) as site:
        assert [alice(site).status for _ in range(4)] == [200, 200, 429, 429]
        assert [len(plan.checks) for plan in store.plans] == [2, 2, 2, 2]
        assert alice(site).one("ratelimit") == '"burst";r=0;t=60'
        clock.advance(60)
        assert alice(site).one("ratelimit") == '"sustained";r=6;t=3540, "burst";r=1;t=60'


class Named(drf.SimpleRateThrottle):
    """One class for several throttles of a view, which gives each its scope and its rate."""

    def __init__(self, scope: str, rate: str) -> None:
        self.scope, self.rate = scope, rate
        super().__init__()

    def get_cache_key(self, request: Any, view: Any) -> str:
        return "everybody"


@pytest.mark.parametrize("order", [*permutations((("tight", "2/hour"), ("loose", "9/hour"), None))])
def test_each_throttle_of_one_class_is_asked(order: Any, asgi: bool) -> None:
    def get_throttles(self: Any) -> list[Any]:
        return [throttle(rate="9/day", scope="other")() if each is None else Named(*each) for each in order]

    store = Counting(ManualClock())
    urls = [path("x", view(get_throttles=get_throttles))]
    with serving(asgi=asgi, urls=urls, store=AsyncMemoryStore(store) if asgi else store) as site:
        assert site.statuses("/x", "/x", "/x", "/x") == [200, 200, 429, 429]
    charged = [{check.terms.name for check in plan.checks} for plan in store.plans if plan.charge]
    assert charged[:2] == [{"tight", "loose", "other"}] * 2


@pytest.mark.parametrize("order", [(BURST, SUSTAINED), (SUSTAINED, BURST)], ids=["refusal first", "refusal last"])
@pytest.mark.parametrize("framework", ["Ninja", "REST framework, asked one by one"])
def test_a_refusal_costs_nothing_in_the_others(framework: str, order: Any, asgi: bool) -> None:
    """Ninja asks one after the other, and so does REST framework if `allow_request` is overridden."""
    if framework == "Ninja":
        target = operation(*[throttle(throttles.AuthRateThrottle, scope=each["scope"])(each["rate"]) for each in order])
        urls = [path("", target)]
    else:

        def allow_request(self: Any, request: Any, view: Any) -> bool:
            return bool(drf.UserRateThrottle.allow_request(self, request, view))

        urls = [path("x", view(*[throttle(**each, allow_request=allow_request) for each in order]))]
    clock = ManualClock()
    with serving(asgi=asgi, urls=urls, clock=clock, key="ip", default_limits=["50/day"]) as site:
        answers = [alice(site) for _ in range(5)]
        assert [answer.status for answer in answers] == [200, 200, 429, 429, 429]
        assert [answer.one("retry-after") for answer in answers[2:]] == ["60", "60", "60"]
        clock.advance(60)
        fields = alice(site).one("ratelimit") or ""
        assert '"default";r=47' in fields
        assert '"sustained";r=6' in fields
        assert '"burst";r=1' in fields


# ---- answers -----------------------------------------------------------------------------------------------------


def test_the_frameworks_answer_and_the_fields(asgi: bool) -> None:
    seen: list[Any] = []
    heard: list[Any] = []

    def handler(error: Exception, context: Any) -> Response:
        assert isinstance(error, Throttled)
        seen.append(error.wait)
        return Response({"slow": error.wait}, status=429, headers={"Retry-After": str(error.wait)})

    def hear(sender: Any, decision: Any, **_: Any) -> None:
        heard.append(decision.rule)

    rate_limited.connect(hear)
    shown = view(throttle(rate="1/min"), get_exception_handler=lambda self: handler)
    with serving(asgi=asgi, urls=[path("x", shown)], clock=ManualClock()) as site:
        passed, refused = alice(site), alice(site)
    assert passed.one("ratelimit") == '"user";r=0;t=60'
    assert (refused.status, refused.body, seen, heard) == (429, b'{"slow":60}', [60], ["user"])
    assert refused.one("retry-after") == "60"
    assert refused.one("ratelimit-policy") == '"user";q=1;w=60'
    rate_limited.disconnect(hear)


def test_without_the_middleware_the_limits_hold_and_there_are_no_fields(asgi: bool) -> None:
    urls = [path("x", view(throttle(rate="1/min"))), path("n/", operation(throttles.AuthRateThrottle("1/min")))]
    with serving(asgi=asgi, middleware=[], urls=urls, clock=ManualClock()) as site:
        for target in ("/x", "/n/x"):
            passed, refused = alice(site, target), alice(site, target)
            assert (passed.status, passed.one("ratelimit")) == (200, None)
            assert (refused.status, refused.one("ratelimit")) == (429, None)
            # The oldest Ninja sends no Retry-After of its own.
            assert refused.one("retry-after") in (("60",) if target == "/x" else ("60", None))


def charging(*given: Any, is_async: bool) -> Any:
    """The routes of a Ninja API with these throttles. Its operation charges once a minute, or fails."""
    api = ninja.NinjaAPI(auth=lambda request: "alice", throttle=[*given], urls_namespace=uuid4().hex, docs_url=None)

    async def async_shown(request: Any) -> str:
        if "X-Fail" in request.headers:
            raise RuntimeError
        await acharge(request, "1/minute", scope="inside")
        return "passed"

    def shown(request: Any) -> str:
        if "X-Fail" in request.headers:
            raise RuntimeError
        charge(request, "1/minute", scope="inside")
        return "passed"

    api.get("x")(async_shown if is_async else shown)
    return api.urls


@pytest.mark.parametrize("is_async", [False, True], ids=["def", "async def"])
@pytest.mark.parametrize(
    ("options", "left"), [({}, 8), ({"refund_when": lambda response: response.status_code == 500}, 9)]
)
def test_what_a_throttle_charged_is_given_back(options: Any, left: int, is_async: bool, asgi: bool) -> None:
    """By a refused charge in the view, and by a response that it waits for."""
    given = [throttle(throttles.AuthRateThrottle, scope=scope, options=options)("9/hour") for scope in ("a", "b")]
    clock = ManualClock()
    with serving(asgi=asgi, urls=[path("", charging(*given, is_async=is_async))], clock=clock) as site:

        def shown(*headers: tuple[str, str]) -> tuple[int, list[str]]:
            answer = site.request("GET", "/x", headers=headers)
            return answer.status, re.findall('"[ab]";r=[0-9]', answer.one("ratelimit") or "")

        assert shown(("X-Fail", "yes")) == (500, [f'"a";r={left}', f'"b";r={left}'])
        assert site.statuses("/x", "/x", "/x") == [200, 429, 429]
        clock.advance(60)
        assert shown() == (200, [f'"a";r={left - 2}', f'"b";r={left - 2}'])


@pytest.mark.parametrize("is_async", [False, True], ids=["def", "async def"])
def test_a_charge_after_a_throttle_needs_the_middleware_too(is_async: bool, asgi: bool) -> None:
    errors: list[NotEnforcedError] = []

    def get(self: Any, request: Any) -> Response:
        with pytest.raises(NotEnforcedError) as raised:
            charge(request, "1/minute")
        errors.append(raised.value)
        return Response("passed")

    urls = [path("", charging(throttles.AuthRateThrottle("9/min"), is_async=is_async))]
    urls.append(path("v", view(throttle(rate="9/min"), get=get)))
    with serving(asgi=asgi, middleware=[], urls=urls) as site:
        assert site.statuses("/v", "/v", "/x", "/x") == [200, 200, 500, 500]
    assert len(errors) == 2


def test_where_limits_are_off_every_request_passes(asgi: bool) -> None:
    urls = [path("x", view(throttle(rate="1/min"))), path("n/", operation(throttles.AuthRateThrottle("1/min")))]
    with serving(asgi=asgi, urls=urls, enabled=False) as site:
        assert site.statuses("/x", "/x", "/n/x", "/n/x") == [200] * 4


@pytest.mark.filterwarnings("ignore:.*SG110")  # the middleware asks the deny list too, before the user is known
@pytest.mark.parametrize("target", ["/x", "/n/x"])
def test_a_refusal_that_is_no_429(target: str, asgi: bool) -> None:
    urls = [path("x", view(throttle(rate="9/min"))), path("n/", operation(throttles.AuthRateThrottle("9/min")))]
    with serving(asgi=asgi, urls=urls, store="redis://127.0.0.1:1", on_store_failure="deny") as site:  # nobody listens
        answer = alice(site, target)
        assert (answer.status, answer.one("retry-after")) == (503, "1")
    with serving(asgi=asgi, urls=[path("x", view(throttle(rate="9/min")))], deny=[("user", "alice")]) as site:
        assert alice(site).status == 403


def test_wrong_tokens_are_limited_by_address(asgi: bool) -> None:
    """DRF#5234: the middleware counts what fails before REST framework asks its throttles."""
    guesses = Rule(name="guesses", quota="2/minute", key="ip", charge_when=lambda response: response.status_code == 401)
    with serving(asgi=asgi, urls=[path("x", view(throttle(rate="9/min")))], rules=[guesses]) as site:
        wrong = [("Authorization", "Bearer wrong")]
        assert alice(site).status == 200
        assert site.statuses("/x", "/x", "/x", headers=wrong) == [401, 401, 429]


def test_options_of_a_rule(asgi: bool) -> None:
    costly = throttle(rate="5/min", options={"cost": 2})
    shadow = throttle(rate="1/min", scope="later", options={"mode": "shadow"})
    shadow.__name__ = "Shadow"
    keyed = throttle(rate="1/min", options={"key": "header:X-Team"})
    with serving(asgi=asgi, urls=[path("x", view(costly, shadow)), path("k", view(keyed))]) as site:
        assert [alice(site).status for _ in range(3)] == [200, 200, 429]
        assert site.statuses("/k", "/k", headers=TEAM) == [200, 429]
    with pytest.raises(RuleError, match="the framework answers what a throttle refuses"):
        throttle(options={"on_denied": print})


def test_wait_is_the_time_until_the_next_request_passes() -> None:
    asked = throttles.AnonRateThrottle("2/min")
    clock = ManualClock()

    def request() -> HttpRequest:
        made = HttpRequest()
        made.META["REMOTE_ADDR"] = "198.51.100.9"
        return made

    with serving(asgi=False, clock=clock):
        assert asked.wait() is None
        waits = []
        for _ in range(3):
            asked.allow_request(request())
            waits.append(asked.wait())
            clock.advance(1)
    assert waits == [0.0, 59.0, 58.0]


def test_each_class_says_what_it_lacks() -> None:
    with pytest.raises(NotImplementedError):
        RateThrottle().proxies()


def test_an_async_operation_with_async_receivers_and_charges_that_wait_for_the_response() -> None:
    heard: list[Any] = []

    async def hear(sender: Any, decision: Any, **_: Any) -> None:
        heard.append(decision.rule)

    burst, sustained = throttle(throttles.AuthRateThrottle, scope="burst"), throttle(throttles.AuthRateThrottle)
    api = ninja.NinjaAPI(
        auth=lambda request: "alice",
        throttle=[burst("1/min"), sustained("9/hour")],
        urls_namespace=uuid4().hex,
        docs_url=None,
    )

    @api.get("x")
    async def shown(request: Any) -> str:
        return "passed"

    waiting = Rule(name="failed", quota="9/day", key="ip", charge_when=lambda response: response.status_code >= 500)
    rate_limited.connect(hear)
    clock = ManualClock()
    with serving(asgi=True, urls=[path("", api.urls)], rules=[waiting], clock=clock) as site:
        assert [alice(site).status for _ in range(3)] == [200, 429, 429]
        clock.advance(60)
        fields = alice(site).one("ratelimit") or ""
        assert '"auth";r=7' in fields  # a refusal by the first throttle costs nothing in the second
        assert '"failed";r=9' in fields
    rate_limited.disconnect(hear)
    assert heard == ["burst", "burst"]


# ---- events ------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("middleware", [(OURS,), ()], ids=["middleware", "alone"])
@pytest.mark.parametrize("kind", ["drf", "ninja"])
def test_throttles_give_one_event_for_each_decision(kind: str, middleware: Any, *, asgi: bool) -> None:
    events: list[Any] = []
    rates: list[Any] = ["2/min", "1/hour; 5/day"]
    if kind == "drf":
        urls = [path("x", view(*[throttle(rate=rate, scope=rate[0]) for rate in rates]))]
    else:
        urls = [path("", operation(*[throttles.AuthRateThrottle(rate) for rate in rates]))]
    with serving(asgi=asgi, urls=urls, middleware=middleware, on_decision=events.append) as site:
        assert [alice(site).status for _ in range(2)] == [200, 429]
        gc.collect()
    asked = {"drf": [[True] * 3, [True, False, True]], "ninja": [[True], [True] * 2, [True], [False, True]]}[kind]
    assert [[rule.result == "allowed" for rule in event.rules] for event in events] == asked
    assert {(event.endpoint, event.method) for event in events} == {("x", "GET")}
