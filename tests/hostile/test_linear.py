"""Linear work for any text of a client: every pattern and every loop that reads one has a row here.

There are two tables, and two walks over the source of sluicegate that find the rows they need.

PATTERNS. Every call of a function of `re` or `fnmatch` needs a row: where its text comes from and which methods read
it. The test runs the pattern on growing texts, even if the real code bounds the length before it.

LOOPS. Every function that loops needs a row: by `for`, `while`, a comprehension, `map`, `filter`, or a call of its own
name, bare or on `self`. A loop over a client's text has a row in LOOPS that says how to call it. Any other has a row in
ASIDE that says what it loops over. A row of ASIDE may name a whole module if no client's text of any length gets there.

The walks cannot find out whether a reason in ASIDE is true. So the last test sends hostile requests through every
adapter and counts the lines that run in each function: only a function in LOOPS may run more lines for a longer text.
The walks cannot look into a built-in function either. The rows, and those of ALSO, measure these.
"""

from __future__ import annotations

import ast
import gc
import re
import sys
import tracemalloc
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from fnmatch import fnmatchcase
from functools import cache, partial
from importlib import import_module
from io import BytesIO
from types import CodeType, FrameType
from typing import Any, Final, NamedTuple

import pytest

from sluicegate import Concurrency, Limiter, ManualClock, address, asgi, identity
from sluicegate.address import Trust, client_address
from sluicegate.asgi import AsgiCaller
from sluicegate.migrate import transform
from sluicegate.rules import key, response, rule, terms
from sluicegate.runtime import hidden
from sluicegate.web import http
from sluicegate.web.endpoint import NOWHERE
from sluicegate.web.gate import AsyncGate, Gate
from sluicegate.web.settings import Settings
from sluicegate.wsgi import WsgiCaller
from tests.hostile.growth import Act, families, of_pattern, too_steep
from tests.hostile.inside import OPTIONS, PLACES, SHOPS, in_each_shop
from tests.hostile.test_fuzz import FuzzCaller
from tests.test_house import PACKAGE, SOURCE, Module

CLIENT: Final = "a request of a client's"
QUOTA: Final = "a quota, perhaps from a function of the request"
ANSWER: Final = "the fields of an application's answer"
OPERATOR: Final = "what the operator or the application's author wrote"

RUNNING: Final = [module for module in SOURCE if module.name.partition(".")[0] != "testing"]
"""All of sluicegate that runs in an application. `sluicegate.testing` does not."""


class Pattern(NamedTuple):
    """The source of its text, and the methods that read it."""

    source: str
    methods: tuple[str, ...]
    samples: tuple[str | re.Pattern[str], ...] = ()  # where the source does not say it; a text is for `fnmatch`


PATHS: Final = (
    "/*", "/api/*", "*/x", "/*/*/*/*/*a", "/*a*b*?c", "/*ab*ab*ab", "/[a-z]*[!x]*.json", "*?*?*?*/", "/[*", "/*" * 30,
)  # fmt: skip
ROUTES: Final = (
    r"(?:^/a$)()|(?:^/(?:[^/]+)/b$)()|(?:^/a/(?:[0-9]+(\.[0-9]+)?)$)()|(?:^/a/(?:.*)$)()|(?:^/(?:[a-f]{8}-?[a-f]{4})$)()",
    "|".join(f"(?:^/(?:[^/]+)/{number}$)()|(?:^/(?:.*)/{number}$)()" for number in range(20)),
)
PATTERNS: Final = {
    "address:TOKEN": Pattern(OPERATOR, ("fullmatch",)),
    "address:_PAIR": Pattern("one element of a client's Forwarded", ("match",)),
    "address:_BACKWARDS": Pattern("a client's Forwarded", ("match",)),
    "overrides.file:tables": Pattern(OPERATOR, ("match",), (re.compile(r"[ \t]*\[\[[ \t]*rules[ \t]*\]\]"),)),
    "overrides.override:DIGEST": Pattern(OPERATOR, ("fullmatch",)),
    "overrides.override:_PATTERN": Pattern(OPERATOR, ("fullmatch",)),
    "overrides.override:_HEAD": Pattern(OPERATOR, ("fullmatch",)),
    "overrides.override:pattern_of": Pattern(
        "the text of an identity", ("fullmatch",), ("t5:suser[0-9]+:stest-.*", "s.*@example\\.com", "sa.*a")
    ),
    "concurrency:Concurrency.is_meant": Pattern(QUOTA, ("search",)),
    "concurrency:Concurrency.parse": Pattern(QUOTA, ("fullmatch",)),
    "starlette.routes:_NAMED_GROUP": Pattern(OPERATOR, ("subn",)),
    "starlette.routes:_REFERENCE": Pattern(OPERATOR, ("search",)),
    "starlette.routes:_table_of": Pattern("a client's path", ("match",), ROUTES),
    "web.gate:_Rules._ready": Pattern("a client's path", ("fullmatch",), PATHS),
    "web.http:_PRINTABLE": Pattern(OPERATOR, ("fullmatch",)),
    "web.http:_STRING": Pattern(ANSWER, ("findall", "sub")),
    "web.http:_SINGLE": Pattern(ANSWER, ("match",)),
    "web.http:_DELAY": Pattern(ANSWER, ("fullmatch",)),
    "web.http:_DATE": Pattern(ANSWER, ("fullmatch",)),
    "dashboard:Dashboard._bans": Pattern("what an operator has in a query", ("fullmatch",)),
    "dashboard.doors:_LOCAL": Pattern("a client's Host", ("fullmatch",)),
    "dashboard.doors:wsgi_door.dashboard": Pattern("a client's Content-Length", ("fullmatch",)),
    "overrides.override:_CONTROL": Pattern("what an operator types", ("search",)),
    "web.http:_weight": Pattern("a client's Accept", ("fullmatch",)),
    "observe.refusal_log:_WORD": Pattern("an identity", ("fullmatch",)),
    "web.http:_TOKEN": Pattern(OPERATOR, ("fullmatch",)),
    "usage:_TOTAL": Pattern("the ends of an upstream's body, 20 kB at most", ("findall",)),
    "usage:_PARTS": Pattern("the ends of an upstream's body, 20 kB at most", ("findall",)),
    "quota:_parse_part.number": Pattern("one number of a quota", ("fullmatch",)),
    "migrate.peers:_PER": Pattern("source of an application", ("fullmatch",)),
    "migrate.peers:_RATE": Pattern("source of an application", ("match",)),
    "usage:_ITERATIONS": Pattern("the ends of an upstream's body, 20 kB at most", ("sub",)),
    "migrate.transform:_ASKED": Pattern("source of an application", ("fullmatch",)),
    "migrate.transform:_Rewriter.__init__": Pattern(
        "source of an application",
        ("findall",),
        tuple([re.compile(net) for _, net, _ in transform._NETS]),
    ),
    "rules.typed:NAMED": Pattern(OPERATOR, ("match", "sub")),
    "migrate.transform:_LINE": Pattern("source of an application", ("sub",)),
    "replay.suggest:_LOGIN": Pattern("a route of a log", ("search",)),
    "replay.routes:_WORD": Pattern("a route of a log", ("findall",)),
    "cli.watch:_LINE": Pattern("the application's metrics", ("match",)),
    "cli.watch:_LABEL": Pattern("the application's metrics", ("match",)),
    "cli.watch:_ESCAPED": Pattern("the application's metrics", ("sub",)),
    "replay.candidates:_NAME": Pattern(OPERATOR, ("match",)),
    "replay.paste:_NUMBER": Pattern(OPERATOR, ("sub",)),
    "replay.page:_PART": Pattern("our template", ("sub",)),
    "replay.routes:_VARIABLE": Pattern("a part of a logged path", ("fullmatch",)),
    "stores.redis.scan:_BUDGET": Pattern("a key of the server", ("search",)),
    "stores.redis.scan:_BAN": Pattern("a value of the server", ("fullmatch",)),
    "replay.known:_DURATION": Pattern(OPERATOR, ("fullmatch",)),
    "replay.log:_COLOUR": Pattern("a log", ("sub",)),
    "replay.words:_LETTERS": Pattern("a line of a log", ("sub",)),
    "replay.words:_DIGITS": Pattern("a line of a log", ("sub",)),
    "replay.syntaxes:_APACHE_DIRECTIVE": Pattern(OPERATOR, ("split",)),
    "replay.syntaxes:_GUNICORN_ATOM": Pattern(OPERATOR, ("split",)),
    "replay.syntaxes:_HAPROXY_VARIABLE": Pattern(OPERATOR, ("split",)),
    "replay.syntaxes:_CONF_WORD": Pattern(OPERATOR, ("findall",)),
    "replay.syntaxes:_CONF_ESCAPE": Pattern(OPERATOR, ("sub",)),
    "replay.syntaxes:_NGINX_VARIABLE": Pattern(OPERATOR, ("split",)),
    "address:MEANT": Pattern(OPERATOR, ("fullmatch",)),
    "web.endpoint:_UNPRINTABLE": Pattern("the name of a view", ("search", "sub")),
    "web.charge:_UNREADABLE": Pattern("the name of a view", ("sub",)),
    "web.charge:_CHARGE": Pattern("an id in a key of the server, for commands", ("match",)),
    "quota:Quota.parse_all": Pattern(QUOTA, ("split",)),
    "quota:_parse_part": Pattern(QUOTA, ("fullmatch",)),
    "rules.rule:_NAME": Pattern(OPERATOR, ("fullmatch",)),
    "rules.rule:_check_path": Pattern(OPERATOR, ("fullmatch",), tuple(pattern for pattern, *_ in rule._NOT_IN_A_PATH)),
    "rules.rule:_instead_of": Pattern(OPERATOR, ("fullmatch",)),
    "stores:valid_prefix": Pattern(OPERATOR, ("fullmatch",)),
    "runtime.hidden:shown_url": Pattern(OPERATOR, ("fullmatch",)),
    "stores.embedded:_URL": Pattern(OPERATOR, ("fullmatch",)),
    "stores.embedded:_AMOUNT": Pattern(OPERATOR, ("fullmatch",)),
    "stores.embedded:_SECONDS": Pattern(OPERATOR, ("fullmatch",)),
    "stores.memory:_max_keys": Pattern(OPERATOR, ("fullmatch",)),
    "rules.terms:scope_text": Pattern(OPERATOR, ("fullmatch",)),
}


class Loop(NamedTuple):
    """The source of the text, a call of the function that loops over it, and the signs of the text."""

    source: str
    act: Act
    signs: str = ' ,"a\0'
    starts: tuple[str, ...] = ()


NETWORKS: Final = Trust.of("0.0.0.0/0", "Forwarded")
HOPS: Final = Trust.of(32)
OURS: Final = [("RateLimit-Policy", '"a";q=1;w=9'), ("RateLimit", '"a";r=0;t=7'), ("Retry-After", "7")]
ALLOWED: Final = Limiter().hit("5/minute", "alice")
SEAL: Final = identity.Seal("only for these tests")
FORWARDED: Final = ("for=", 'for="', "for=10.0.0.1,", "for=10.0.0.1;")
LISTS: Final = Gate(Settings(allow=["192.0.2.0/24", ("user", "alice")], deny=["203.0.113.0/24"]))
ASYNC_GATE: Final = AsyncGate(Settings())
BY_PATH: Final = Gate(Settings(rules=[{"name": "a", "quota": "1/day", "path": "/*a*/*/*.json"}])).bind(
    NOWHERE.endpoint
)[0]


def lines_of(text: str) -> list[tuple[bytes, bytes]]:
    """As many header lines as the text has characters."""
    return [(b"x", b"") for _ in text] + [(b"forwarded", text.encode("utf-8", "surrogatepass"))]


def at_once(*acts: Act) -> Act:
    return lambda text: [act(text) for act in acts]


def in_django(text: str) -> object:
    from django.core.handlers.asgi import ASGIRequest

    from sluicegate.django.request import DjangoRequestState

    scope: dict[str, Any] = {"type": "http", "method": "GET", "path": "/", "query_string": b"", "headers": []}
    request = ASGIRequest(scope, BytesIO())
    scope["headers"] = lines_of(text)  # Django has joined the lines before
    return DjangoRequestState(request, ASYNC_GATE).header("Forwarded")


def quietly(act: Act) -> Act:
    """Ignore the errors about a wrong text."""

    def tried(text: str) -> None:
        with suppress(ValueError):  # every error about a person's text is one
            act(text)

    return tried


parse_quota: Final = quietly(terms.read)
walk_header: Final = at_once(
    lambda text: client_address("10.0.0.1", [text], NETWORKS),
    lambda text: client_address("10.0.0.1", [text], HOPS),
    lambda text: client_address("10.0.0.1", text.split(","), NETWORKS),
)
merge_fields: Final = at_once(
    lambda text: http.merge([("RateLimit", text)], OURS),
    lambda text: http.merge([("RateLimit", part) for part in text.split(",")], OURS),
    lambda text: http.merge([(part, "") for part in text], OURS),
    lambda text: http.merge([("Retry-After", text), ("Cache-Control", text), ("X-RateLimit-Limit", text)], OURS),
)

LOOPS: Final = {
    "address:_believed": Loop(CLIENT, walk_header, ' ,;"=\\\0', FORWARDED),
    "address:is_rewritten": Loop(
        CLIENT, lambda text: address.is_rewritten("10.0.0.1", [text], "Forwarded"), ' ,;"=\\\0', FORWARDED
    ),
    "address:_elements": Loop(CLIENT, walk_header, ',"\\', ("10.0.0.1,",)),
    "address:_unquoted_split": Loop(CLIENT, address._unquoted_split, ' ,;"=\\\0', FORWARDED),
    "address:_forwarded_for": Loop(CLIENT, address._forwarded_for, ' ,;"=\\\0a', FORWARDED),
    "rules.response:Headers.__init__": Loop(ANSWER, lambda text: response.Headers([(each, each) for each in text])),
    "rules.response:Headers.__getitem__": Loop(
        ANSWER, lambda text: response.Headers([("x", each) for each in text])["x"]
    ),
    "asgi:AsgiCaller.header": Loop(
        CLIENT, lambda text: AsgiCaller({"path": "/", "headers": lines_of(text)}).header("Forwarded"), "a"
    ),
    "django.request:DjangoRequestState.header": Loop(CLIENT, in_django, "a"),
    "web.http:_wants_text": Loop(CLIENT, http._wants_text, " ,;=q1", ("text/html;q=",)),
    "web.http:merge": Loop(ANSWER, merge_fields, '",;\\a', ('"a', "limit=1, ")),
    "web.http:_renamed": Loop(ANSWER, merge_fields, '"\\a=', ('"a', '"a-')),
    "web.http:_renamed.free_name": Loop(
        ANSWER, lambda text: http.merge([("RateLimit", ",".join(f'"a-{at}"' for at in range(len(text) // 8)))], OURS)
    ),
    "web.http:_join": Loop(ANSWER, merge_fields, ",0"),
    "web.http:_part_left": Loop(ANSWER, lambda text: http._part_left([(each, each) for each in text]), "a,"),
    "identity:joined": Loop(CLIENT, identity.joined, "a\0\ud800"),
    "identity:_encoded": Loop(CLIENT, lambda text: identity.identity_text((text, tuple(text), [text])), "a\0\ud800"),
    "rules.key:_look_for_proxies": Loop(
        CLIENT,
        lambda text: key._look_for_proxies(FuzzCaller(peer="10.0.0.1", lines=[text, *text[:999]]), strict=False),
        ' ,;"=\\\0',
        FORWARDED,
    ),
    "web.access:AccessList.has": Loop(
        CLIENT, lambda text: LISTS.resolve(FuzzCaller(peer=text, signed_in=text, lines=[text]), (), {}), " ,:/["
    ),
    "asgi:response_of": Loop(
        ANSWER,
        lambda text: asgi.response_of({"type": asgi.HTTP[0], "status": 200, "headers": lines_of(text)}),
        "a",
    ),
    "asgi:with_fields": Loop(
        ANSWER,
        lambda text: asgi.with_fields({"status": 200, "headers": lines_of(text)}, ALLOWED, "draft-11"),
        "a",
    ),
    "asgi:merged": Loop(
        ANSWER, lambda text: asgi.merged([(b"ratelimit", b"%d" % at) for at in range(len(text))], OURS), "a"
    ),
    "web.http:is_preflight": Loop(
        CLIENT,
        lambda text: http.is_preflight("OPTIONS", lambda name: ["0"] * len(text) + [text]),
        "a0",
    ),
    "quota:Quota.parse_all": Loop(QUOTA, parse_quota, "; 1/", ("1/day;", "1/")),
    "quota:_parse_part": Loop(QUOTA, parse_quota, " 1/ab", ("1/day burst", "1 per ")),
}

ALSO: Final = {  # functions that do not loop, but read a client's text by built-in functions that do
    "account": Loop(CLIENT, identity.account, " aİ\u0301\u0323\ufdfa\u200b"),
    "identity_text": Loop(CLIENT, identity.identity_text, "a\0\ud800"),
    "digest": Loop(CLIENT, identity.digest, "a\ud800"),
    "Seal": Loop(CLIENT, lambda text: SEAL.text(identity.identity_text(text)), "a\ud800"),
    "wants_text": Loop(CLIENT, http.wants_text, " ,;=q1a\0", ("text/html;q=", "*/*,")),
    "AsgiCaller.path": Loop(
        CLIENT, lambda text: AsgiCaller({"path": f"/a{text}", "root_path": f"/{text[:99]}"}).path, "a/"
    ),
    "WsgiCaller.path": Loop(CLIENT, lambda text: WsgiCaller({"PATH_INFO": text}).path, "/é\xff\ud800"),
    "Bound.holds": Loop(CLIENT, lambda text: BY_PATH.holds(FuzzCaller(path=text)), "/a\n.é", ("/a", "/a/a/")),
    "the address of a peer": Loop(
        CLIENT, lambda text: key.address_key(Trust())(FuzzCaller(peer=text, lines=[text]), {}), " :[]%.0"
    ),
    "concurrency": Loop(
        QUOTA,
        quietly(lambda text: Concurrency.is_meant(text) and Concurrency.parse(text)),
        " a1\n",
        ("1 at once for ", "1 at once for x", "at once ", "at "),
    ),
    "shown_url": Loop(OPERATOR, hidden.shown_url, "@:/,?#[a0", ("redis://", "redis://a:", "redis://a@")),
}

ASIDE: Final = {
    "address:Trust.*": "the networks of the operator's proxies",
    "address:check_prefixes": "two settings",
    "identity:encoder": "the lengths of a short text, once for each key",
    "overrides.*": "what an operator has set, which is bounded",
    "rules.typed:*": OPERATOR,
    "observe.events:*": "the checks of one decision, and the fields of an event",
    "asgi:health*": "the two fields of an answer",
    "observe.status:*": "the circuits of one store, and a hundred round trips",
    "observe.refusal_log:*": "the rules of one decision, and the identities that are followed, which are bounded",
    "observe.measures:*": "the limiters of this process, held slots, and kinds of events and bans, which are bounded",
    "observe.prometheus:*": "the rules of one decision, and the stores of this process",
    "observe.opentelemetry:*": "the rules of one decision, and the attributes of one metric",
    "web.charge:*": "the checks of one decision, and the options of one call",
    "web.charges:*": "the checks of one decision",
    "django.throttles:*": "the throttles of one view, and the checks of one decision",
    "drf:*": "the throttles of one view",
    "django.status:*": "the gates of this process",
    "asgi:_texts": "the rules of one decision",
    "rules.key:as_keys_give": OPERATOR,
    "rules.key:parts_of": OPERATOR,
    "rules.key:check_nesting": OPERATOR,
    "asgi:AsgiCaller.user": "the two names that a user may have",
    "asgi:RateLimitMiddleware.answers_preflight": "the layers of the application",
    "asgi:chain": "the layers of the application",
    "asgi:responds_to_preflight": "the same",
    "runtime.awaiting:*": "the wrappers of one function of the application",
    "django.users:*": "the rules that hold for one request",
    "runtime.fork:*": "the objects of this process that have a lock",
    "runtime.hidden:hide": OPERATOR,
    "rules.key:can_be": OPERATOR,
    "web.access:resolve_lists": "the two lists",
    "address:is_in": "the networks of the settings",
    "web.access:_as_the_key_gives": OPERATOR,
    "asgi:RateLimitMiddleware.endpoint_rules": "the routes of the application",
    "wsgi:RateLimitMiddleware.__init__": "the rules of the settings",
    "wsgi:SettlingBody.__iter__": "the chunks of the application's own answer, each passed on",
    "starlette.middleware:RateLimitMiddleware._check": "the layers of the application",
    "starlette.middleware:RateLimitMiddleware.answers_preflight": "the same",
    "starlette.middleware:RateLimitMiddleware.own_answer": "nothing: it calls another function with its name",
    "django.responses:*": "the checks of one decision, and the fields of one answer",
    "django.overview:*": "the routes of the project, for commands",
    # The page's forms have 64 kB at most, a query and a Cookie what the server lets in. Only `Guard.cookie` reads the
    # text of somebody who was not granted, and it has a row in LOOPS.
    "dashboard:*": "what an operator looks at or types; a form has 64 kB at most",
    "dashboard.counts:*": "the checks of one decision, and what is counted, which is bounded",
    "dashboard.doors:*": "the four fields of a proxy, and the parts of a request's body, 64 kB at most",
    "django.admin.*": OPERATOR,
    "django.checks:*": "the project's settings, at its start",
    "django.decorators:*": "the classes and marks of one view",
    "django.lifecycle:*": "the chunks of the application's own answer, each passed on",
    "django.conf:*": "the names of the project's middleware",
    "django.routes:*": "the routes of the project; a client's path is matched by Django's own patterns",
    "fastapi:*": "the dependencies of one route",
    "flask.decorators:*": "the marks of one view",
    "flask.extension:*": "the options, the limiters and the fields of one application's answer",
    "flask.responses:*": "the fields of a refusal, and the handlers of the application",
    "flask.routes:*": "the routes of the application; a client's path is matched by Werkzeug's own patterns",
    "starlette.responses:*": "the fields of a refusal, and the handlers of the application",
    "starlette.decorators:*": "the arguments and marks of one view",
    "starlette.routes:*": "the routes of the application; a client's path is matched by Starlette's own patterns",
    "web.gate:*": "rules, terms and checks; their keys, lists and patterns read the request",
    "web.http:retry_after": "the checks of one decision",
    "web.http:fields_for": "the fields of one decision",
    "web.http:_denial": "the checks of one decision",
    "web.http:make_denial": "the fields of one decision",
    "web.http:denial": "the checks of one decision",
    "web.http:_draft_11": "the checks of one decision",
    "web.http:_of_one.fields": "the checks of one decision",
    "web.http:_policies": "the checks of one decision",
    "web.http:_read_names": OPERATOR,
    "web.http:_draft_6": "the numbers of one decision",
    "web.http:_named.*": "the numbers of one decision",
    "web.http:_x_ratelimit_delta": "the numbers of one decision",
    "web.http:_openai": "the checks of one decision",
    "web.http:_of_unit": "three numbers",
    "web.usage:*": "the checks of one decision",
    "observe.usage:*": "the checks of one decision",
    "usage:*": "the fields that a pattern has found",
    "rules.cost:unsettled": "the checks of one request",
    "django.usage:*": "the routes of the project",
    "rules.once:*": "the checks of one decision, and six header fields",
    "rules.key:reads_path": OPERATOR,
    "quota:Calendar.*": "the names of time zones, and some days around a moment",
    "migrate:*": OPERATOR,
    "migrate.*": OPERATOR,
    "rules.key:Keys.ready": OPERATOR,
    "rules.key:_all_of.*": "the parts of one key",
    "rules.key:address_key": OPERATOR,
    "web.access:AccessList.of": OPERATOR,
    "web.access:listed": OPERATOR,
    "web.endpoint:*": "the marks of one view, and its wrappers",
    "web.request_state:*": "the checks of one decision, and the marks of one view",
    "quota:Quota.span": "the seven units",
    "rules.terms:*": "the quotas of one rule; a text of them has 1,000 characters at most",
    # Values, the engine and its stores: of a request they see checks, whose identities have 128 characters at most.
    **dict.fromkeys(
        ("algorithms.*", "rules.ban:*", "web.settlement:*", "limiter:*", "web.bound:*", "plan:*",
         "web.http:problem", "reservation:*", "rules.rollout:*", "stores:*", "stores.*"),
        "checks and what stores keep of them; an identity has 128 characters at most",
    ),
    **dict.fromkeys(("web.marks:*", "rules.rule:*", "web.settings:*", "rules.tiers:*"), OPERATOR),
    "errors:*": "the frames of one call or import",
    "cli.*": OPERATOR,
    "replay.*": "a log, which an operator reads outside the application; its lines have 64 kB at most",
}  # fmt: skip

LOOPING: Final = (ast.For, ast.AsyncFor, ast.While, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
DEFINES: Final = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


class Found(NamedTuple):
    """A line of the source that needs a row."""

    row: str
    line: int
    call: ast.Call | None = None


def walk(module: Module) -> Iterator[tuple[str, str, ast.AST]]:
    """Every node, with the dotted name of its function or class and the module's constant that contains it."""

    def below(node: ast.AST, scope: str, constant: str) -> Iterator[tuple[str, str, ast.AST]]:
        for inner in ast.iter_child_nodes(node):
            within, named = scope, constant
            if isinstance(inner, DEFINES):
                within = f"{scope}.{inner.name}".lstrip(".")
            match inner:
                case ast.Assign(targets=[ast.Name(id=name)]) | ast.AnnAssign(target=ast.Name(id=name)) if not scope:
                    named = name
            yield within, named, inner
            yield from below(inner, within, named)

    return below(module.tree, "", "")


def patterns_in(module: Module) -> Iterator[Found]:
    """Every call of `re` and `fnmatch`. Its row has the name of its constant, or else of its function."""
    owners, functions = {}, {}
    for node in module.all(ast.Import, ast.ImportFrom):
        match node:
            case ast.Import(names=names):
                owners.update({alias.asname or alias.name: alias.name for alias in names})
            case ast.ImportFrom(module="re" | "fnmatch", names=names):
                functions.update({alias.asname or alias.name: alias.name for alias in names})
    for scope, constant, node in walk(module):
        match node:
            case ast.Call(func=ast.Attribute(value=ast.Name(id=owner), attr=method)):
                is_one = owners.get(owner) in ("re", "fnmatch")
            case ast.Call(func=ast.Name(id=name)):
                method, is_one = functions.get(name, ""), name in functions
            case _:
                continue
        if is_one and method not in ("escape", "purge"):
            yield Found(f"{module.name}:{constant or scope}", node.lineno, node)


def loops_in(module: Module) -> Iterator[Found]:
    """Every function that loops or calls its own name. A loop during an import reads no request."""
    for scope, _, node in walk(module):
        own = scope.rpartition(".")[2]
        match node:
            case ast.Call(func=ast.Name(id="map" | "filter")):
                loops = True
            case ast.Call(func=ast.Name(id=name) | ast.Attribute(value=ast.Name(id="self"), attr=name)):
                loops = name == own
            case _:
                loops = isinstance(node, LOOPING)
        if loops and scope:
            yield Found(f"{module.name}:{scope}", getattr(node, "lineno", 1))


def without_a_row(module: Module) -> Iterator[str]:
    for found in patterns_in(module):
        if found.row not in PATTERNS:
            yield f"{found.line}: give {found.row} a row in PATTERNS: where its text comes from, and what reads it"
    for found in loops_in(module):
        if found.row not in LOOPS and not any(fnmatchcase(found.row, row) for row in ASIDE):
            yield f"{found.line}: {found.row} loops: give it a row in LOOPS, or say in ASIDE what it loops over"


@pytest.mark.slow
def test_every_pattern_and_every_loop_has_its_row() -> None:
    found = [f"{module.path}:{fault}" for module in RUNNING for fault in without_a_row(module)]
    assert not found, "\n" + "\n".join(dict.fromkeys(found))


@pytest.mark.slow
def test_every_row_has_its_pattern_or_its_loop() -> None:
    patterns = {found.row for module in RUNNING for found in patterns_in(module)}
    loops = {found.row for module in RUNNING for found in loops_in(module)}
    stale = [row for row in PATTERNS if row not in patterns] + [row for row in LOOPS if row not in loops]
    assert not stale + [row for row in ASIDE if not any(fnmatchcase(loop, row) for loop in loops)]


@pytest.mark.slow
@pytest.mark.parametrize("row", [row for row in PATTERNS if row.rpartition(":")[2].isupper()])
def test_a_pattern_is_read_as_its_row_says(row: str) -> None:
    home, _, name = row.partition(":")
    read = set()
    for module in RUNNING:
        imports = {target for _, target in module.imports}
        if module.name != home and f"sluicegate.{home}.{name}" not in imports:
            continue
        for node in module.all(ast.Attribute):
            match node:
                case ast.Attribute(value=ast.Name(id=owner), attr=method) if owner == name:
                    read.add(method)
    assert read == set(PATTERNS[row].methods)


@pytest.mark.parametrize(
    ("name", "text", "rows"),
    [
        ("x", "import re\nA: Final = re.compile('a')\nB = re.compile('b', re.I)", ["x:A", "x:B"]),
        ("x", "import re\ndef f(t): return re.fullmatch(P, t)", ["x:f"]),
        ("x", "import re as r\nclass C:\n    def f(self, t): return r.sub(P, '', t)", ["x:C.f"]),
        ("x", "from re import search as look\ndef f(t): return look(P, t)", ["x:f"]),
        ("x", "from fnmatch import fnmatchcase\ndef f(t): return fnmatchcase(t, p)", ["x:f"]),
        ("x", "import re\ndef f(t): return re.escape(t), other.compile(t), t.split()", []),
        ("x", "TABLE = {at: at for at in range(3)}", []),
        ("x", "def f(t):\n    for c in t: pass", ["x:f"]),
        ("x", "async def f(t):\n    async for c in t: pass", ["x:f"]),
        ("x", "def f(t):\n    while t: t = t[1:]", ["x:f"]),
        ("x", "def f(t): return any(c in t for c in t) or {c for c in t} or {c: c for c in t}", ["x:f"] * 3),
        ("x", "def f(t):\n    def g(): return [c for c in t]\n    return g", ["x:f.g"]),
        ("x", "def f(t): return list(map(str, t)), filter(None, t)", ["x:f"] * 2),
        ("x", "class C:\n    def f(self, t): return self.f(t[1:])\ndef g(t): return t and g(t[1:])", ["x:C.f", "x:g"]),
        ("x", "class C:\n    def f(self, t): return self.other.f(t)", []),
        ("address", "_PAIR = re.compile('')\nimport re\ndef _believed(t):\n    for c in t: pass", []),
        ("rules.rule", "def new(t):\n    for c in t: pass", []),
    ],
)
def test_the_walks_find_what_needs_a_row(name: str, text: str, rows: list[str]) -> None:
    module = Module(name, "x.py", text)
    missing = [fault for fault in without_a_row(module) if name == "x"]
    assert [fault.partition(": ")[2].removeprefix("give ").split()[0] for fault in missing] == rows
    assert name == "x" or not list(without_a_row(module))


def expressions(row: str) -> Iterator[tuple[str, int]]:
    """The patterns of a row, and their flags."""
    home, _, name = row.partition(":")
    module = import_module(f"sluicegate.{home}")
    made = getattr(module, name, None)
    if isinstance(made, re.Pattern):
        if isinstance(made.pattern, bytes):  # the same work on text
            made = re.compile(made.pattern.decode("latin-1"), made.flags | re.ASCII)
        yield made.pattern, made.flags
        return
    if PATTERNS[row].samples:
        from fnmatch import translate

        for sample in PATTERNS[row].samples:
            yield (translate(sample), 0) if isinstance(sample, str) else (sample.pattern, sample.flags)
        return
    (source,) = [module for module in RUNNING if module.name == home]
    for found in patterns_in(source):
        if found.row == row and found.call is not None:
            given = [ast.unparse(each) for each in found.call.args]
            flags = given[2:] if found.call.func.attr in ("match", "fullmatch", "search") else []  # type: ignore[attr-defined]
            yield eval(given[0], vars(module)), eval(flags[0], vars(module)) if flags else 0


READERS: Final[dict[str, Callable[[re.Pattern[str]], Act]]] = {
    **{method: lambda made, method=method: getattr(made, method) for method in ("match", "fullmatch", "search")},  # type: ignore[misc]
    **{method: lambda made, method=method: getattr(made, method) for method in ("findall", "split")},  # type: ignore[misc]
    **{method: lambda made, method=method: partial(getattr(made, method), "") for method in ("sub", "subn")},  # type: ignore[misc]
}


@pytest.mark.slow
@pytest.mark.parametrize("row", PATTERNS)
def test_a_pattern_works_in_proportion_to_its_text(row: str) -> None:
    for text, flags in expressions(row):
        made = re.compile(text, flags)
        for method in PATTERNS[row].methods:
            for family in of_pattern(text, flags):
                found = too_steep(READERS[method](made), family)
                assert not found, f"{text!r} by {method}: {found}"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("pattern", "method"),
    [
        (
            r'\s*([^=;\s]+)\s*=\s*(?:"((?:[^"\\]|\\.)*)"|([^;"]*))\s*(?:;|\Z)',
            "match",
        ),  # cubic: an old one for pairs
        (r'"((?:[^"\\]|\\.)*)"', "findall"),  # an old pattern for names of rules in a field
        (r"\s*(\S+)\s+at\s+once(?:\s+for\s+(\S.*?))?\s*", "fullmatch"),  # an old pattern for concurrency limits
        (r"\s+$", "search"),
        (r"a*b?a*c", "match"),
        (r".*x.*y", "search"),
    ],
)
def test_a_slower_pattern_is_found(pattern: str, method: str) -> None:
    act = READERS[method](re.compile(pattern))
    assert any(too_steep(act, family) for family in of_pattern(pattern))


@cache
def caches(modules: int) -> list[Any]:
    """Every lru_cache of sluicegate when this many modules are loaded. The search takes milliseconds."""
    loaded = [module for name, module in list(sys.modules.items()) if name.partition(".")[0] == "sluicegate"]
    return [each for module in loaded for each in vars(module).values() if type(each) is type(address._parsed)]


def forget() -> None:
    for each in caches(len(sys.modules)):
        each.cache_clear()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*SG102")
@pytest.mark.parametrize("row", [*LOOPS, *ALSO])
def test_a_loop_works_in_proportion_to_its_text(row: str) -> None:
    loop = {**LOOPS, **ALSO}[row]
    for family in families(loop.signs, (*loop.signs, "x"), loop.starts):
        found = too_steep(loop.act, family, before=forget)
        assert not found, f"{row}: {found}"


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*SG102")
@pytest.mark.parametrize(
    "row", ["address:_believed", "rules.key:_look_for_proxies", "web.access:AccessList.has", *ALSO]
)
def test_no_long_text_is_cached(row: str) -> None:
    """New invented texts of 32 kB leave nothing in the caches."""
    act = {**LOOPS, **ALSO}[row].act
    act("a" * 32_768)
    gc.collect()
    tracemalloc.start()
    try:
        for number in range(32):
            act(f"{number}" + "a" * 32_768)
        gc.collect()
        kept, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert kept < 200_000


BEGIN: Final = str(PACKAGE)


def lines_run(first: Callable[[], object], again: Callable[[], object]) -> Counter[str]:
    """How many lines of each function of sluicegate run during a call, when the store has seen such a call."""
    counted: Counter[CodeType] = Counter()

    def trace(frame: FrameType, event: str, _: object) -> Any:
        if not frame.f_code.co_filename.startswith(BEGIN):
            return None
        counted[frame.f_code] += event == "line"
        return trace

    first()
    forget()
    before = sys.gettrace()
    sys.settrace(trace)
    try:
        again()
    finally:
        sys.settrace(before)
    named: Counter[str] = Counter()
    for code, lines in counted.items():
        inside = code.co_filename.removeprefix(f"{PACKAGE}/").removesuffix(".py").removesuffix("/__init__")
        name = re.sub(r"\.<locals>|\.<\w+>", "", code.co_qualname)
        named[f"{inside.replace('/', '.')}:{name}"] += lines
    return named


LENGTHS: Final = (256, 1_024, 4_096)
MIDDLES: Final = (",", 'for="\\";', "/a=b; ")


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*SG10[235]", "ignore:.*SG110")
@in_each_shop(["everything, nobody trusted", "refused, in text", "networks, Forwarded", "hops"])
def test_only_functions_with_a_row_run_more_lines_for_a_longer_text(shop: str, options: str) -> None:
    clock = ManualClock()  # otherwise the store's entries would depend on the time
    for place, request in PLACES.items():
        with SHOPS[shop]({**OPTIONS[options], "clock": clock}) as ready:
            ready(request("a"))()  # work that is done only once
            for middle in MIDDLES:
                texts = (middle * (length // len(middle)) for length in LENGTHS)
                short, middling, long = (lines_run(ready(request(text)), ready(request(text))) for text in texts)
                for function, count in long.items():
                    more, first = count - middling[function], middling[function] - short[function]
                    where = f"{function}: {short[function]}, {middling[function]}, {count} lines, {middle!r} in {place}"
                    assert more <= 5 * max(first, 0) + 40, where
                    assert function in LOOPS or more <= 8, where
