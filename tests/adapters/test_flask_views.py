"""What `@limit` and `@exempt` decorate in Flask (FL03), and decorated views without a limiter."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial, wraps
from inspect import iscoroutinefunction
from typing import Any, assert_type

import pytest
from flask import Blueprint, Flask, Response
from flask.typing import ResponseReturnValue
from flask.views import MethodView, View

from sluicegate import ManualClock, Rule
from sluicegate.errors import NotEnforcedError, QuotaError, RuleError
from sluicegate.flask import RateLimited, RateLimiter, decision, exempt, limit
from sluicegate.testing.client import Answer
from tests.adapters.wsgi_client import WsgiClient, sf_list


def limited(app: Flask, **options: Any) -> WsgiClient:
    """A client of the application under a new limiter."""
    app.logger.disabled = True
    RateLimiter(app, clock=ManualClock(), **options)
    return WsgiClient(app)


def policies(answer: Answer) -> list[str]:
    """The names of the rules that held for a request."""
    return [name for name, _ in sf_list(answer, "ratelimit-policy")] if answer.one("ratelimit-policy") else []


def hello() -> str:
    return "hello"


async def async_view() -> str:
    return "async"


def plain(view: Callable[..., Any]) -> Callable[..., Any]:
    """A usual decorator: it keeps name and attributes."""

    @wraps(view)
    async def async_view(*args: Any, **kwargs: Any) -> Any:
        return await view(*args, **kwargs)

    @wraps(view)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return view(*args, **kwargs)

    return async_view if iscoroutinefunction(view) else wrapper


def hiding(view: Callable[..., Any]) -> Callable[..., Any]:
    """A decorator that hides the view inside it."""

    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return view(*args, **kwargs)

    return wrapper


class Thing:
    """A view that is an object."""

    __name__ = "thing"

    def __call__(self) -> str:
        return "object"

    def method(self) -> str:
        return "method"


class Unhashable(Thing):
    """A view without a hash."""

    __hash__ = None  # type: ignore[assignment]


def below(route: Callable[..., Any], view: Any) -> None:
    route(limit("2/minute")(view))


def above(route: Callable[..., Any], view: Any) -> None:
    limit("2/minute")(route(view))


def between(route: Callable[..., Any], view: Any) -> None:
    limit("2/minute")(route(limit("9/minute")(view)))


def twice_above(route: Callable[..., Any], view: Any) -> None:
    limit("2/minute")(limit("9/minute")(route(view)))


def under_plain(route: Callable[..., Any], view: Any) -> None:
    route(plain(limit("2/minute")(view)))


def over_plain(route: Callable[..., Any], view: Any) -> None:
    limit("2/minute")(plain(route(view)))


def under_hiding(route: Callable[..., Any], view: Any) -> None:
    route(hiding(limit("2/minute")(view)))


@pytest.mark.parametrize("view", ["function", "async", "lambda", "partial", "object", "method"])
@pytest.mark.parametrize("order", [below, above, between, twice_above, under_plain, over_plain])
def test_fl03_a_view_of_any_kind_above_and_below_the_route(order: Callable[..., None], view: str) -> None:
    async def made_async() -> str:
        return "async"

    app = Flask(__name__)
    views = {
        "function": lambda: "here",
        "async": made_async,
        "lambda": lambda: "there",
        "partial": partial(lambda text: text, "part"),
        "object": Thing(),
        "method": type("Fresh", (Thing,), {"method": lambda self: "method"})().method,
    }
    order(lambda found: app.add_url_rule("/a", "a", found) or found, views[view])
    client = limited(app)
    assert client.statuses("/a", "/a", "/a", "/open") == [200, 200, 429, 404]
    assert 1 <= len(policies(client.request("GET", "/a"))) <= 2


def test_fl03_a_mark_that_a_decorator_hides_is_enforced_by_the_view() -> None:
    app = Flask(__name__)
    under_hiding(app.get("/a", endpoint="a"), lambda: "hidden")
    client = limited(app, default_limits=["3/minute"])
    assert client.statuses("/a", "/a", "/a", "/a") == [200, 200, 429, 429]
    answers = [client.request("GET", "/open") for _ in range(2)]  # the refusals of the view gave the default back
    assert [(answer.status, policies(answer)) for answer in answers] == [(404, ["default"]), (429, ["default"])]


def test_fl03_blueprints_nested_and_registered_twice() -> None:
    outer, inner = Blueprint("outer", __name__), Blueprint("inner", __name__)
    outer.get("/hello", endpoint="hello")(lambda: "outer")
    inner.get("/hello", endpoint="hello")(lambda: "inner")
    inner.get("/free", endpoint="free")(exempt(lambda: "free"))
    outer.register_blueprint(inner, url_prefix="/inner")
    app = Flask(__name__)
    app.get("/hello", endpoint="hello")(hello)
    app.register_blueprint(outer, url_prefix="/one")
    app.register_blueprint(outer, url_prefix="/two", name="again")
    assert limit("2/minute")(outer) is outer  # after the registration as well as before
    client = limited(app)
    for path in ("/hello", "/inner/hello"):
        assert client.statuses(f"/one{path}", f"/two{path}", f"/one{path}", f"/two{path}") == [200, 200, 429, 429]
    assert client.statuses(*["/hello"] * 4, *["/one/inner/free"] * 4) == [200] * 8


def nested() -> Callable[[], str]:
    """A view that a factory makes: all its views have one qualified name."""

    def view() -> str:
        return "nested"

    return view


@pytest.mark.parametrize(
    "make",
    [
        pytest.param(lambda: limit("2/minute")(hello), id="of a module"),
        pytest.param(lambda: limit("2/minute")(nested()), id="of a factory"),
        pytest.param(lambda: limit("2/minute")(lambda: "a"), id="lambda"),
        pytest.param(lambda: limit("2/minute")(partial(nested())), id="partial"),
        pytest.param(lambda: limit("2/minute")(Unhashable()), id="unhashable"),
        pytest.param(lambda: subclass(MethodView, get=limit("2/minute")(lambda self: "a")).as_view("a"), id="method"),
        pytest.param(lambda: limit("2/minute")(subclass(MethodView, get=lambda self: "a")).as_view("a"), id="class"),
        pytest.param(
            lambda: limit("2/minute")(type("Fresh", (Thing,), {"method": lambda self: "a"})().method), id="bound"
        ),
    ],
)
def test_fl03_one_function_has_one_budget_wherever_it_is_registered(make: Callable[[], Callable[..., Any]]) -> None:
    view = make()
    blueprint = Blueprint("pages", __name__)
    blueprint.get("/hello", endpoint="hello")(view)
    blueprint.get("/hi", endpoint="hello")(view)
    app = Flask(__name__)
    app.register_blueprint(blueprint, url_prefix="/one")
    app.register_blueprint(blueprint, url_prefix="/two", name="again")
    client = limited(app)
    assert client.statuses("/one/hello", "/two/hi", "/one/hi", "/two/hello") == [200, 200, 429, 429]


def test_fl03_two_functions_of_a_factory_have_two_budgets() -> None:
    app = Flask(__name__)
    for name in ("a", "b"):
        view = limit("1/minute")(nested())
        app.get(f"/{name}", endpoint=name)(view)
        app.get(f"/other/{name}", endpoint=name)(view)
    assert limited(app).statuses("/a", "/b", "/other/a", "/other/b") == [200, 200, 429, 429]


def test_fl03_two_functions_of_one_name_have_two_budgets() -> None:
    def make(text: str) -> Callable[[], str]:
        def handler() -> str:
            return text

        handler.__qualname__ = "handler"  # as if the module defined both, one after the other
        return handler

    app = Flask(__name__)
    app.get("/a", endpoint="a")(limit("3/minute")(make("a")))
    app.get("/b", endpoint="b")(limit("1/minute")(make("b")))
    client = limited(app)
    assert client.statuses("/a", "/b", "/b", "/a", "/a", "/a") == [200, 200, 429, 200, 200, 429]
    assert policies(client.request("GET", "/a")) == policies(client.request("GET", "/b")) == ["handler"]


def test_fl03_a_blueprint_and_its_view_may_both_be_limited() -> None:
    blueprint = Blueprint("pages", __name__)

    @blueprint.route("/form", methods=["GET", "POST"])
    @limit("1/minute", methods=["POST"])
    def form() -> str:
        return "form"

    limit("3/minute")(blueprint)
    app = Flask(__name__)
    app.register_blueprint(blueprint)
    client = limited(app)
    statuses = [client.request(method, "/form").status for method in ("GET", "POST", "POST", "GET", "GET")]
    assert statuses == [200, 200, 429, 200, 429]  # GET is not charged to the budget of POST


class Page(View):
    def dispatch_request(self) -> ResponseReturnValue:
        return "page"


def subclass(base: type[View], **attributes: Any) -> type[View]:
    """A new class."""
    return type("Fresh", (base,), attributes)


def test_fl03_a_view_class() -> None:
    app = Flask(__name__)
    page = limit("2/minute")(subclass(Page))
    app.add_url_rule("/a", view_func=page.as_view("a"))
    app.add_url_rule("/b", view_func=page.as_view("b"))
    app.add_url_rule("/c", view_func=Page.as_view("c"))
    assert limited(app).statuses("/a", "/b", "/a", "/c", "/c", "/c") == [200, 200, 429, 200, 200, 200]


def test_fl03_classes_that_inherit_a_limit_have_budgets_of_their_own() -> None:
    base = limit("1/minute")(subclass(Page))
    app = Flask(__name__)
    app.add_url_rule("/base", view_func=base.as_view("base"))
    app.add_url_rule("/one", view_func=subclass(base).as_view("one"))
    app.add_url_rule("/two", view_func=subclass(base, dispatch_request=lambda self: "two").as_view("two"))
    paths = ["/base", "/one", "/two"]
    assert limited(app).statuses(*paths, *paths) == [200, 200, 200, 429, 429, 429]


def test_fl03_decorators_of_a_class() -> None:
    class Decorated(MethodView):
        decorators = [plain, limit("2/minute"), plain]  # noqa: RUF012  # as Flask's documentation writes it

        def get(self) -> str:
            return "get"

        def post(self) -> str:
            return "post"

    app = Flask(__name__)
    app.add_url_rule("/a", view_func=Decorated.as_view("a"))
    client = limited(app)
    assert [client.request(method, "/a").status for method in ("GET", "POST", "GET")] == [200, 200, 429]


def test_fl03_single_methods_of_a_class() -> None:
    @limit("4/minute")
    class Items(MethodView):
        @limit("2/minute")
        def get(self) -> str:
            return "get"

        @limit("1/minute")
        async def post(self) -> str:
            return "post"

        @exempt
        def put(self) -> str:
            return "put"

        def delete(self) -> str:
            return "delete"

    app = Flask(__name__)
    app.add_url_rule("/a", view_func=Items.as_view("a"))
    client = limited(app)
    steps = [
        *[("HEAD", 200), ("GET", 200), ("GET", 429), ("HEAD", 429)],  # `get` handles HEAD
        *[("POST", 200), ("POST", 429)],
        *[("PUT", 200)] * 9,
        *[("DELETE", 200), ("DELETE", 429)],  # the class's budget of 4 was charged by the other methods as well
    ]
    assert [(method, client.request(method, "/a").status) for method, _ in steps] == steps


def test_fl03_an_async_view_uses_the_sync_store() -> None:
    """FL07: each async view has a new event loop. The connection pool of an async client does not work across loops."""
    app = Flask(__name__)
    app.get("/a")(limit("2/minute")(async_view))
    client = limited(app)
    assert [client.request("GET", "/a").body for _ in range(2)] == [b"async"] * 2
    assert client.request("GET", "/a").status == 429


@pytest.mark.parametrize("nearer", ["view", "method", "blueprint"])
def test_a_limit_inside_something_exempt_still_applies(nearer: str) -> None:
    app, blueprint, inner = Flask(__name__), exempt(Blueprint("b", __name__)), Blueprint("inner", __name__)
    blueprint.get("/free", endpoint="free")(lambda: "free")
    if nearer == "view":
        blueprint.get("/a", endpoint="a")(limit("2/minute")(lambda: "a"))
    elif nearer == "method":
        cls = subclass(MethodView, get=limit("2/minute")(lambda self: "a"))
        blueprint.add_url_rule("/a", view_func=exempt(cls).as_view("a"))
    else:
        inner.get("/a")(lambda: "a")
        blueprint.register_blueprint(limit("2/minute")(inner))
    app.register_blueprint(blueprint)
    client = limited(app, default_limits=["1/minute"])
    assert client.statuses("/free", "/free", "/a", "/a", "/a") == [200, 200, 200, 200, 429]


@pytest.mark.parametrize(
    "make",
    [
        lambda: exempt(limit("2/minute")(lambda: "a")),
        lambda: limit("2/minute")(exempt(lambda: "a")),
        lambda: exempt(limit("2/minute")(subclass(Page))),
        lambda: limit("2/minute")(exempt(subclass(Page))),
        lambda: exempt(subclass(Page, dispatch_request=limit("2/minute")(lambda self: "a"))),
        lambda: exempt(limit("2/minute")(Blueprint("b", __name__))),
        lambda: limit("2/minute")(exempt(Blueprint("b", __name__))),
    ],
)
def test_limit_and_exempt_on_one_view_is_an_error_at_the_decorator(make: Callable[[], Any]) -> None:
    with pytest.raises(RuleError, match="has @limit as well"):
        make()


def test_limit_on_a_class_and_exempt_on_its_view_is_an_error_at_the_first_request() -> None:
    app = Flask(__name__)
    app.add_url_rule("/a", view_func=exempt(limit("2/minute")(subclass(Page)).as_view("a")))
    limited(app)
    app.testing = True
    with pytest.raises(RuleError, match="has @limit as well"):
        app.test_client().get("/elsewhere")


@pytest.mark.parametrize("name", ["writes", None])
def test_a_name_is_shown_and_shares_no_budget(name: str | None) -> None:
    app = Flask(__name__)
    for path in ("/a", "/b"):
        app.get(path, endpoint=path[1:])(limit("1/minute", name=name)(lambda: "x"))
    client = limited(app)
    answers = [client.request("GET", path) for path in ("/a", "/b", "/a")]
    assert [answer.status for answer in answers] == [200, 200, 429]
    assert policies(answers[0]) == [name or "<lambda>"]


def test_a_view_called_by_another_view_is_charged_once_and_to_its_own_budget() -> None:
    app = Flask(__name__)

    @app.get("/reply")
    @limit("2/minute")
    def reply() -> str:
        return "reply"

    @app.get("/proxy")
    def proxy() -> str:
        return reply() + reply()

    client = limited(app)
    answer = client.request("GET", "/proxy")
    assert (answer.status, answer.body, policies(answer)) == (200, b"replyreply", ["reply"])
    assert client.statuses("/reply", "/proxy", "/reply") == [200, 429, 429]


def test_a_view_does_not_run_after_a_refusal_that_its_caller_has_caught() -> None:
    app, ran = Flask(__name__), list[str]()

    @limit("1/minute")
    def reply() -> str:
        ran.append("reply")
        return "reply"

    @app.get("/proxy")
    def proxy() -> str:
        for _ in range(3):
            with suppress(RateLimited):
                reply()
        return "proxy"

    client = limited(app)
    assert client.statuses("/proxy") == [200]
    assert ran == ["reply"] * 3  # one charge for each request
    assert client.statuses("/proxy") == [200]
    assert ran == ["reply"] * 3


def test_a_method_and_a_class_called_by_another_view() -> None:
    @limit("3/minute")
    class Items(MethodView):
        @limit("2/minute")
        def get(self) -> str:
            return "get"

    app = Flask(__name__)
    app.add_url_rule("/items", view_func=Items.as_view("items"))
    app.get("/proxy")(lambda: Items().dispatch_request())
    client = limited(app)
    assert client.statuses("/proxy", "/items", "/proxy", "/items") == [200, 200, 429, 429]


@pytest.mark.parametrize("options", [{"enabled": False}, {}])
def test_a_limiter_that_is_off_lets_decorated_views_run(options: dict[str, bool]) -> None:
    app = Flask(__name__)
    view = limit("1/minute")(lambda: "a")
    app.get("/a", endpoint="a")(view)
    app.get("/proxy", endpoint="proxy")(lambda: "->" + view())
    expected = [200] * 4 if options else [200, 429, 429, 429]
    assert limited(app, **options).statuses("/a", "/proxy", "/a", "/proxy") == expected


def test_a_decorated_view_without_a_limiter_is_an_error() -> None:
    app = Flask(__name__)
    app.testing = True
    app.get("/a")(limit("1/minute")(hello))
    app.add_url_rule("/b", view_func=limit("1/minute")(subclass(Page)).as_view("b"))
    app.get("/c", endpoint="c")(limit("1/minute")(async_view))
    for path, name in (("/a", "hello"), ("/b", "Fresh"), ("/c", "async_view")):
        with pytest.raises(NotEnforcedError, match=rf"{name}'.*call RateLimiter\(app\).*another framework.*SG008"):
            app.test_client().get(path)


def test_a_decorated_view_outside_a_request_is_an_error() -> None:
    app = Flask(__name__)
    RateLimiter(app)
    view = limit("1/minute")(hello)
    with pytest.raises(NotEnforcedError):
        view()
    with app.app_context(), pytest.raises(NotEnforcedError):
        view()


def test_a_limiter_on_another_application_does_not_count() -> None:
    one, other = Flask("one"), Flask("other")
    view = limit("1/minute")(hello)
    one.get("/a")(view)
    other.get("/a")(view)
    other.testing = True
    RateLimiter(one)
    assert one.test_client().get("/a").status_code == 200
    with pytest.raises(NotEnforcedError):
        other.test_client().get("/a")


@pytest.mark.parametrize(
    ("quota", "options", "error"),
    [
        ("5/fortnight", {}, QuotaError),
        ("5/minute", {"cost": 6}, RuleError),
        ("5/minute", {"override_defaults": "yes"}, RuleError),
    ],
)
def test_wrong_arguments_raise_at_the_decorator(quota: str, options: dict[str, Any], error: type[Exception]) -> None:
    with pytest.raises(error):
        limit(quota, **options)


@pytest.mark.parametrize("decorate", [limit("1/minute"), exempt])
@pytest.mark.parametrize("thing", ["text", 5, None, dict, View, MethodView, Flask(__name__)])
def test_only_views_and_blueprints_can_be_decorated(thing: Any, decorate: Any) -> None:
    with pytest.raises(RuleError, match="neither a view nor a blueprint"):
        decorate(thing)


def test_a_wrong_rule_is_an_error_at_the_first_request_to_any_path() -> None:
    app = Flask(__name__)
    app.testing = True
    app.get("/a", endpoint="a")(limit("1/s burst 5")(lambda: "a"))  # the application's own algorithm has no bursts
    RateLimiter(app)
    for _ in range(2):
        with pytest.raises(ValueError, match="burst"):
            app.test_client().get("/nowhere")


@pytest.mark.parametrize(
    ("route", "words"),
    [("helo", 'did you mean "hello"?'), ("/hell", 'did you mean "/hello"?'), ("x" * 9, "give the name")],
)
def test_a_rule_for_no_route_is_an_error(route: str, words: str) -> None:
    app = Flask(__name__)
    app.testing = True
    app.get("/hello")(hello)
    RateLimiter(app, rules=[Rule(name="r", quota="1/minute", route=["hello", route])])
    for check in (app.extensions["sluicegate"][0].endpoint_rules, lambda: app.test_client().get("/hello")):
        with pytest.raises(RuleError, match="no such route") as caught:
            check()
        assert words in str(caught.value)


@pytest.mark.parametrize("route", ["shop.hello", "/shop/<int:id>/"])
def test_rules_by_endpoint_and_by_url_rule(route: str) -> None:
    shop = Blueprint("shop", __name__)
    shop.get("/<int:id>/", endpoint="hello")(lambda id: "item")  # noqa: A006
    app = Flask(__name__)
    app.register_blueprint(shop, url_prefix="/shop")
    app.get("/other", endpoint="other")(hello)
    client = limited(app, rules=[{"name": "r", "quota": "2/minute", "route": route}])
    paths = ["/shop/1/", "/shop/2/", "/shop/3/", "/other"]
    assert client.statuses(*paths) == [200, 200, 429, 200]


def test_the_decision_can_be_read_in_a_view() -> None:
    app = Flask(__name__)

    @app.get("/a")
    @limit("5/minute")
    def view() -> dict[str, Any]:
        found = decision()
        assert found is not None
        return {"rule": found.rule, "remaining": found.remaining}

    @app.get("/b")
    def none() -> str:
        return str(decision())

    client = limited(app)
    assert client.request("GET", "/a").body == b'{"remaining":4,"rule":"view"}\n'
    assert client.request("GET", "/b").body == b"None"


def test_decorated_views_keep_their_types() -> None:
    @limit("5/minute", key="ip", methods=["GET"])
    def item(number: int) -> str:
        return str(number)

    @limit("5/minute")
    async def other(name: str) -> Response:
        return Response(name)

    blueprint = exempt(Blueprint("b", __name__))
    typed: tuple[Callable[[int], str], Callable[[str], Awaitable[Response]]] = (item, other)
    assert_type(blueprint, Blueprint)
    assert_type(limit("1/minute")(Page), type[Page])
    assert len(typed) == 2
    app = Flask(__name__)
    RateLimiter(app, enabled=False)
    with app.test_request_context():
        assert_type(item(5), str)
        with pytest.raises(TypeError):
            item("5", 6)  # type: ignore[arg-type,call-arg]


def test_the_decorators_of_flask_limiter_are_functions_here() -> None:
    for name, called in (("limit", "limit"), ("shared_limit", "limit"), ("exempt", "exempt")):
        with pytest.raises(AttributeError, match=f"write from sluicegate.flask import {called}"):
            getattr(RateLimiter(), name)
    for name in ("request_filter", "enabled", "reset", "check", "current_limit"):
        with pytest.raises(AttributeError, match="; use "):
            getattr(RateLimiter(), name)
    assert not hasattr(RateLimiter(), "anything")
    with pytest.raises(AttributeError, match="no attribute 'enabled'"):
        setattr(RateLimiter(), "enabled", False)  # noqa: B010  # a type checker refuses the statement
