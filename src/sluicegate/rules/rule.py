"""Rule: a quota, a name, a key and options. Everything is validated when a rule is made."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final, cast

from sluicegate.algorithms import AlgorithmName, find
from sluicegate.concurrency import Concurrency
from sluicegate.errors import ConfigurationError, RuleError, check_flag, nearest, shows_half_made, takes_names, within
from sluicegate.plan import FAILURE_POLICIES, FailurePolicy, Terms
from sluicegate.rules.ban import Ban
from sluicegate.rules.cost import Ended, Estimate, untold
from sluicegate.rules.key import KeySpec, Native, validate_key
from sluicegate.rules.once import header_of
from sluicegate.rules.response import Response, of_response, when_to_refund
from sluicegate.rules.rollout import Mode, share
from sluicegate.rules.terms import Quotas, QuotaSpec, make_terms, read, whole_cost
from sluicegate.rules.tiers import Tiers
from sluicegate.runtime.awaiting import check_call, check_hash

QuotaFunction = Callable[[Native], QuotaSpec | Awaitable[QuotaSpec | None] | None]
CostFunction = Callable[[Native], int | Awaitable[int]]
Condition = Callable[[Native], bool | Awaitable[bool]]
ResponseFunction = Callable[[Response], bool]
CostAfter = Callable[[Ended], int | None]
AnswerFunction = Callable[..., Any]
"""Makes the response to a refusal: of the framework's own request and a Decision, whatever that framework takes."""

_NAME: Final = re.compile(r"[\x20-\x7e]{1,128}")  # what a Structured Field String can carry (RFC 9651 §3.3.3)
_REGISTERED: Final = """
ACL BASELINE-CONTROL BIND CHECKIN CHECKOUT CONNECT COPY DELETE GET HEAD LABEL LINK LOCK MERGE MKACTIVITY MKCALENDAR
MKCOL MKREDIRECTREF MKWORKSPACE MOVE OPTIONS ORDERPATCH PATCH POST PROPFIND PROPPATCH PUT QUERY REBIND REPORT SEARCH
TRACE UNBIND UNCHECKOUT UNLINK UNLOCK UPDATE UPDATEREDIRECTREF VERSION-CONTROL
"""  # IANA's registry of methods, without PRI, which no request can have
_OTHERS: Final = "BAN M-SEARCH NOTIFY PURGE SUBSCRIBE UNSUBSCRIBE"  # methods of caches and of UPnP
METHODS: Final = frozenset([*_REGISTERED.split(), *_OTHERS.split()])
_NOT_IN_A_PATH: Final = (  # (pattern of a mistake, problem, what to write instead)
    (
        r"//.*",
        "begins with two slashes, and a path that does is read as if it began with one",
        'write it like "/api/*"',
    ),
    (r".*\?([^/]*=.*)?", "has a query, which is no part of a path", "leave it out, or look at the query in when="),
    (r".*#.*", "has a fragment, which no browser sends", "leave it out"),
    (r".*%[0-9A-Fa-f]{2}.*", "is percent-encoded, and paths are compared decoded", 'write it plainly, as "/café"'),
    (
        r".*(\{\w+(:[^{}]*)?\}|<(\w+:)?\w+>).*",
        "is the template of a route",
        "give it as route=, or write * for the part",
    ),
    (r".*\s", "has blanks around it", "leave them out"),
)
_NOT_AT_NO_COST: Final = ("ban", "count_denied", "charge_when", "refund_when", "estimate", "cost_after", "once_per")
"""Options that have no meaning at a cost of 0, which charges nothing and refuses nobody."""
_NOT_AT_ONCE: Final = ("algorithm", *_NOT_AT_NO_COST[1:], "unit")
"""Options that have no meaning for a Concurrency."""


@shows_half_made
@takes_names("name", "quota")
@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """A limit for each identity. Raises RuleError, QuotaError, AlgorithmError or IdentityError for wrong arguments.

    - `name`: unique; shown in header fields and in `Decision.by_rule`.
    - `quota`: a Quota or its text (if a text has several quotas, all of them hold), a Concurrency or its text, or a
      function of the request that returns such a value, or None if the rule does not apply.
    - `key`: "user", "ip", "header:Name", "path:name", a tuple of such keys, or a function of the request. Without a
      key, the rule uses the application's key. If a function returns None, the rule does not apply.
    - `algorithm`: one of `sluicegate.algorithms.ALGORITHMS`; None means the application's algorithm.
    - `cost`: units per request, 0 or more, or a function of the request.
    - `scope`: rules with the same scope, algorithm and period share budgets. The default is the name.
    - `methods`, `path` (a pattern with `*`), `route` (names of routes), `when` (a function of the request): the
      requests that the rule applies to. By default it applies to all requests. A rule for GET also applies to HEAD.
    - `count_denied`: True charges refused requests as well, up to the limit.
    - `on_store_failure`: "local", "allow" or "deny" while the store is unavailable; None means the application's
      setting.
    - `mode`: in "shadow" the rule counts, and never refuses.
    - `enforce_percent`: the percentage of identities that the rule is enforced for; for the other identities the rule
      is in shadow.
    - `charge_when`, or its opposite `refund_when`: a function of the `sluicegate.rules.response.Response`. The
      request is charged before the view, and refunded before the response starts if the function decides so.
    - `estimate` and `cost_after`: for a cost that the response tells. `estimate` is a number of units, or a function of
      the request: it is charged before the view. `cost_after` is a function of the `sluicegate.rules.cost.Ended`
      response, and returns the actual cost: the rest is refunded, or charged, even above the limit.
    - `unit`: what the quota counts, as "tokens" or "content-bytes"; for header fields.
    - `per_method`: True gives each method a budget of its own; HEAD shares that of GET.
    - `once_per`: "header:Idempotency-Key": the retries of a request, which have its key, are charged once.
    - `error_message`: the text of a 429 by this rule. `on_denied`: a function of (request, decision) that returns the
      response to a refusal by this rule. None means the application's setting.
    - `ban`: a Ban that blocks identities that are refused too often. Bans with the same name are one ban.

    >>> Rule(name="login", quota="5/minute; 20/hour", key="ip").names
    ('login-minute', 'login-hour')
    """

    name: str
    quota: QuotaSpec | QuotaFunction
    key: KeySpec | None = None
    algorithm: AlgorithmName | None = None
    cost: int | CostFunction = 1
    scope: str | None = None
    methods: Iterable[str] | None = None
    path: str | None = None
    route: str | Iterable[str] | None = None
    when: Condition | None = None
    count_denied: bool = False
    on_store_failure: FailurePolicy | None = None
    ban: Ban | None = None
    mode: Mode = "enforce"
    enforce_percent: float = 100
    charge_when: ResponseFunction | None = None
    refund_when: ResponseFunction | None = None
    estimate: int | CostFunction | None = None
    cost_after: CostAfter | None = None
    unit: str | None = None
    per_method: bool = False
    once_per: str | None = None
    error_message: str | None = None
    on_denied: AnswerFunction | None = None

    def __post_init__(self) -> None:
        check_name("name", self.name)
        with within(self._label):
            self._settle()

    def _settle(self) -> None:
        """Validate and normalise every option."""
        if self.scope is not None:
            check_name("scope", self.scope)
        if self.algorithm is not None:
            find(self.algorithm)
        if self.key is not None:
            validate_key(self.key)
        object.__setattr__(self, "methods", _methods(self))
        object.__setattr__(self, "route", _routes(self))
        _check_path(self)
        if self.when is not None and not callable(self.when):
            raise _error("when", self.when, "not a function", "give a function of the request, or leave it out")
        for option in ("count_denied", "per_method"):
            check_flag(option, getattr(self, option), error=RuleError)
        if self.on_store_failure not in (None, *FAILURE_POLICIES):
            known = ", ".join(FAILURE_POLICIES)
            raise _error("on_store_failure", self.on_store_failure, "not known", f"use one of {known}")
        check_answer(self.error_message, self.on_denied)
        check_hash("on_denied", self.on_denied, error=RuleError)  # it is a key of the cache of terms
        when_to_refund(self.charge_when, self.refund_when)
        if self.once_per is not None:
            header_of(self.once_per)
            for option, given in _given(self, _NOT_AT_NO_COST[:-1]):  # all but itself
                problem = "it looks at how each request ends, so it cannot stand beside once_per"
                raise _error(option, given, problem, "make two rules")
        self._settle_cost()
        share(self.mode, self.enforce_percent)
        if self.ban is not None and not isinstance(self.ban, Ban):
            raise _error("ban", self.ban, "not a Ban", "give Ban(after=10, within=…, duration=…)")
        if not callable(self.quota) or isinstance(self.quota, type):  # the class Quota is not a function of a request
            object.__setattr__(self, "quota", read(self.quota))
        for option in ("quota", "cost", "when", "estimate"):
            if callable(given := getattr(self, option)):
                check_call(option, given, takes=("request",), error=RuleError)
        for quotas in self.known:
            self._check_options_of(quotas)
        _check_cost(self)
        if self.algorithm is not None:
            for quota in self.known:
                self.terms(self.algorithm, quota)

    def _settle_cost(self) -> None:
        """Validate the options of a cost that the response tells. The estimate is the cost that is charged first."""
        if self.unit is not None:
            check_name("unit", self.unit)
        if self._after is None:
            return
        of_response("cost_after", self._after, example="response.size")
        for option, given in _given(self, ("charge_when", "refund_when")):
            problem, expected = "given beside a cost that the response tells", "let cost_after return 0 for it"
            raise _error(option, given, problem, expected)
        estimate = 1 if self.estimate is None else self.estimate
        cost = Estimate(self.name, estimate) if callable(estimate) else whole_cost("estimate", estimate)
        if self.cost not in (1, cost) and not isinstance(self.cost, Estimate):  # a copy of a rule has it already
            raise _error("cost", self.cost, "given beside a cost that the response tells", "give it as estimate")
        object.__setattr__(self, "cost", cost)

    @property
    def _after(self) -> Callable[..., object] | None:
        """What tells the cost after the response; None if the cost is known before."""
        return untold if self.cost_after is None and self.estimate is not None else self.cost_after

    @property
    def priced(self) -> str:
        """The name of the option that says what a request is charged first."""
        return "cost" if self.estimate is None else "estimate"

    @property
    def known(self) -> tuple[Quotas, ...]:
        """The quotas that are known before any request."""
        if isinstance(self.quota, Tiers):
            return tuple([tier for tier in self.quota.table.values() if tier is not None])
        return () if callable(self.quota) else (cast("Quotas", self.quota),)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the rule's terms, if its quota is not a function."""
        return tuple(terms.name for terms in self.terms("sliding-window" if self.algorithm is None else self.algorithm))

    def terms(self, algorithm: str, quota: QuotaSpec | None = None, *, tier: str | None = None) -> tuple[Terms, ...]:
        """Return the constant part of this rule's checks, one for each quota. `algorithm` is for a rule without one.
        `tier` is the one that has the quota.
        """
        try:
            quotas = read(self.quota if quota is None else quota)
            self._check_options_of(quotas)
            return make_terms(
                self.name,
                quotas,
                algorithm=self.algorithm or algorithm,
                scope=self.scope,
                counted=self.count_denied,
                on_store_failure=self.on_store_failure,
                ban=None if self.ban is None else self.ban.terms,
                refund_when=when_to_refund(self.charge_when, self.refund_when),
                tier=tier,
                once_per=None if self.once_per is None else header_of(self.once_per),
                message=self.error_message,
                on_denied=self.on_denied,
                cost_after=self._after,
                unit=self.unit,
            )
        except ConfigurationError as error:
            error.within(self._label)
            raise

    @property
    def _label(self) -> str:
        return f"rule {self.name!r}"

    def _check_options_of(self, quotas: Quotas) -> None:
        """Raise RuleError for options that have no meaning together with a Concurrency."""
        if isinstance(quotas, Concurrency):
            for option, given in _given(self, _NOT_AT_ONCE):
                raise _error(option, given, "has no meaning for a Concurrency", "leave it out, or make two rules")


def _given(rule: Rule, options: Iterable[str]) -> Iterator[tuple[str, object]]:
    """Yield those of some options that are not the default, each with its value."""
    for option in options:
        if (given := getattr(rule, option)) != Rule.__dataclass_fields__[option].default:
            yield option, given


def _error(option: str, given: object, problem: str, expected: str) -> RuleError:
    return RuleError(option, given, problem=problem, expected=expected)


def check_answer(message: object, on_denied: object, *, error: type[ConfigurationError] = RuleError) -> None:
    """Raise an error for a value that is no text of a refusal, or no function that makes its response."""
    if message is not None and (not isinstance(message, str) or not message.strip()):
        raise error("error_message", message, problem="not a text", expected="give a sentence for the client, or None")
    if isinstance(message, str) and any("\ud800" <= letter <= "\udfff" for letter in message):
        problem = "it has half of a surrogate pair, which UTF-8 cannot encode"
        raise error("error_message", message, problem=problem, expected="give the whole character")
    if on_denied is not None and not callable(on_denied):
        expected = "give a function of (request, decision), or its dotted name"
        raise error("on_denied", on_denied, problem="not a function", expected=expected)
    if on_denied is not None:
        check_call("on_denied", on_denied, takes=("request", "decision"), error=error)


def check_name(option: str, name: object) -> None:
    """Raise RuleError for a value that cannot be a name in header fields."""
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise RuleError(
            option, name, problem="not a name of printable ASCII", expected="give 1 to 128 letters, digits or signs"
        )
    if name != name.strip():
        raise RuleError(option, name, problem="has blanks around it", expected="leave them out")


def _check_path(rule: Rule) -> None:
    path = rule.path
    if path is None:
        return
    if not isinstance(path, str) or not path.startswith("/"):
        raise _error("path", path, "does not begin with a slash", 'write it like "/api/*"')
    for pattern, problem, expected in _NOT_IN_A_PATH:
        if re.fullmatch(pattern, path, re.DOTALL):
            raise _error("path", path, problem, expected)


def _methods(rule: Rule) -> frozenset[str] | None:
    if rule.methods is None:
        return None
    given = _listed(rule.methods)
    methods = frozenset([method.upper() for method in given if isinstance(method, str)])
    if not given or not all(isinstance(method, str) for method in given):
        raise _error("methods", rule.methods, "not names of HTTP methods", 'give a list like ["POST", "PUT"]')
    for method in sorted(methods - METHODS):
        raise _error("methods", method, "no such method", _instead_of(method))
    return methods | {"HEAD"} if "GET" in methods else methods


def _instead_of(method: str) -> str:
    """Return the hint for a method that is not registered."""
    known = nearest(method, METHODS, 'give a list like ["POST", "PUT"]')
    if not re.fullmatch("[A-Z-]+", method):
        return known
    return f'{known}; for your own method leave methods out, and give when=lambda request: request.method == "{method}"'


def _routes(rule: Rule) -> frozenset[str] | None:
    if rule.route is None:
        return None
    given = _listed(rule.route)
    routes = [route for route in given if isinstance(route, str) and route]
    if not given or routes != given:
        raise _error("route", rule.route, "not the name of a route", "give a name or a list of names")
    for route in routes:
        if route != route.strip():
            raise _error("route", route, "has blanks around it", "leave them out")
    return frozenset(routes)


def _listed(given: object) -> list[object]:
    """Return the items: one text, or the items of an iterable; an empty list for any other value."""
    if isinstance(given, str):
        return [given]
    return list(given) if isinstance(given, Iterable) else []


def _check_cost(rule: Rule) -> None:
    cost = rule.cost
    if callable(cost):
        return
    whole_cost("cost", cost)
    if cost == 0:
        for option, given in _given(rule, _NOT_AT_NO_COST):
            problem = "a cost of 0 charges nothing and never refuses"
            raise _error(option, given, problem, "leave it out, or give a cost")
    for known in rule.known:
        for quota in (known.quota,) if isinstance(known, Concurrency) else known:
            capacity = quota.limit if quota.burst is None else quota.burst  # what may pass at the same moment
            if cost > capacity:
                problem = f"more than {capacity}, so it could never pass"
                raise _error(rule.priced, cost, problem, f"lower the {rule.priced} or raise the limit")
