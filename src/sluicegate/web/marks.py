"""Marks: the values that `@limit` and `@exempt` leave on a view.

A decorator declares; the adapter enforces, once for each request. So that a decorated view never runs unlimited, the
decorator also wraps it in a guard that checks whether its mark was enforced. If `@limit` stands above the route
decorator, the framework already has the undecorated function. Then the adapter finds the mark on this function. Each
adapter makes its `limit` from `make_mark` and a guard of its own.
"""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from inspect import isbuiltin, iscoroutinefunction
from typing import Any, Final, NoReturn, ParamSpec, Protocol, TypedDict, TypeVar, Unpack, cast, overload

from sluicegate.algorithms import AlgorithmName
from sluicegate.errors import RuleError, check_flag, unknown_option
from sluicegate.plan import FailurePolicy
from sluicegate.rules.ban import Ban
from sluicegate.rules.key import KeySpec
from sluicegate.rules.rollout import Mode
from sluicegate.rules.rule import (
    AnswerFunction,
    Condition,
    CostAfter,
    CostFunction,
    QuotaFunction,
    ResponseFunction,
    Rule,
    check_name,
)
from sluicegate.rules.terms import QuotaSpec
from sluicegate.runtime.awaiting import label_of

P = ParamSpec("P")
R = TypeVar("R")
View = TypeVar("View")
Decorator = TypeVar("Decorator", bound=Callable[..., object])

Function = Callable[..., object]
Arguments = tuple[object, ...]
Options = Mapping[str, object]

_ATTRIBUTE: Final = "__sluicegate__"  # of a view: its marks. `functools.wraps` copies it to the functions around it


@dataclass(frozen=True, slots=True, eq=False)
class Mark:
    """One `@limit` and its rule, named after the view if no name was given. Compared by object identity."""

    rule: Rule
    named: bool
    override_defaults: bool | None = None  # None: the setting `limits_replace_defaults` says it
    frees: bool = False  # a mark of `@exempt`: its rule is never charged
    is_misplaced: bool = False  # `_BELOW_EXEMPT`: a route that has it is an error
    label: str = ""  # of the method that it is on, if that is part of a class

    def drops_defaults(self, *, by_itself: bool) -> bool:
        """True if the default limits do not hold beside this mark. `by_itself` is the setting."""
        return by_itself and not self.frees if self.override_defaults is None else self.override_defaults

    def rule_for(self, name: str, scope: str) -> Rule:
        """Return the rule, with the view's own name and scope unless a name or scope was given."""
        rule = self.rule
        return replace(rule, name=rule.name if self.named else name, scope=scope if rule.scope is None else rule.scope)


# A Mark has a rule. This one is never charged.
_FREE: Final = Rule(name="exempt", scope="exempt", quota="1/second", cost=0)
EXEMPT: Final = Mark(_FREE, named=True, frees=True)
"""The mark of a view to which no rule applies."""

EXEMPT_FROM_DEFAULTS: Final = Mark(_FREE, named=True, override_defaults=True, frees=True)
"""The mark of a view to which the default limits do not apply."""

_BELOW_EXEMPT: Final = Mark(_FREE, named=True, frees=True, is_misplaced=True)
"""The mark of the function inside `@exempt`. A route that has it is an error: `@exempt` stands above its decorator."""


def marks_of(view: object) -> tuple[Mark, ...]:
    """Return the marks that a view has, the innermost first."""
    marks: tuple[Mark, ...] = getattr(view, _ATTRIBUTE, ())
    return marks


def declare(view: View, mark: Mark) -> View:
    """Add a mark to a view. For a view that takes no attributes (a bound method), add the mark to its function."""
    marked = getattr(view, "__func__", view)
    if mark not in marks_of(marked):
        setattr(marked, _ATTRIBUTE, (*marks_of(marked), mark))
    return view


def declare_within(view: View, mark: Mark) -> View:
    """Add a mark to a view and to the functions that it wraps: an inner decorator may have registered one of them.

    Not for the methods of classes, which may wrap methods that other classes inherit.
    """
    inner = getattr(view, "__wrapped__", None)
    while inner is not None:
        with suppress(AttributeError):  # a built-in function takes none, and is not a view
            declare(inner, mark)
        inner = getattr(inner, "__wrapped__", None)
    return declare(view, mark)


_NO_PARENTHESES: Final = 'write it with a quota in parentheses: @limit("5/minute")'


class Decorating:
    """The decorator that `@limit(…)` returns. It is no dependency: FastAPI reads `__signature__` or `dependency` of
    one, and both raise RuleError.
    """

    def __init__(self, decorate: Function) -> None:
        self._decorate = decorate

    def __call__(self, *given: object, **named: object) -> object:
        if len(given) != 1 or named:  # a framework calls it as a view: `@limit` was written without parentheses
            types = [type(each).__name__ for each in (*given, *named.values())]
            raise not_a_view("@limit on", types, problem="not one view", expected="decorate a view")
        return self._decorate(given[0])

    @property
    def __signature__(self) -> NoReturn:
        expected = 'give Depends(RateLimit("5/minute")), or write @limit("5/minute") above the view'
        raise RuleError("dependency", "@limit", problem="a decorator, not a dependency", expected=expected)

    dependency = __signature__  # where `Depends` is missing around it


def takes_quota(limit: Decorator) -> Decorator:
    """Return an adapter's `@limit`, or the `__init__` of a class with the same arguments: wrong arguments are a
    RuleError, where Python would raise a TypeError.
    """
    owner, dot, _ = limit.__qualname__.partition(".")
    what, start = (owner, 1) if dot else ("@limit", 0)
    own = tuple(limit.__kwdefaults__ or ())

    @functools.wraps(limit)
    def checked(*given: object, **options: object) -> object:
        quotas = given[start:]
        _check_options(what, options.keys() - {"quota", *own}, own)
        if not quotas and "quota" not in options:
            raise RuleError(what, quotas, problem="no quota", expected=_NO_PARENTHESES.replace("@limit", what))
        if quotas and "quota" in options:
            problem = f"given twice, beside {quotas[0]!r}"
            raise RuleError(what, options["quota"], problem=problem, expected="keep one of the two")
        if len(quotas) > 1:
            expected = 'give the others by name, as scope="…"; several quotas are one text: "5/minute; 100/day"'
            raise RuleError(what, quotas[1], problem="only the quota is a positional argument", expected=expected)
        made: Any = limit(*given, **options)  # the decorator; nothing from an `__init__`
        return made if dot else Decorating(made)

    return cast("Decorator", checked)


class Exempt(Protocol):
    """An adapter's `@exempt`: alone above a view, or with an option."""

    @overload
    def __call__(self, view: View, *, defaults_only: bool = False) -> View: ...

    @overload
    def __call__(self, *, defaults_only: bool) -> Callable[[View], View]: ...


def takes_view(exempt: Callable[[Any, Mark], object]) -> Exempt:
    """Return an adapter's `@exempt`. With a view it returns the free view; with only `defaults_only`, a decorator."""

    @functools.wraps(exempt)
    def checked(*views: object, **options: object) -> object:
        defaults_only = options.pop("defaults_only", None)
        if defaults_only is not None:
            check_flag("@exempt: defaults_only", defaults_only, error=RuleError)
            if not views and not options:
                return functools.partial(checked, defaults_only=defaults_only)
        if len(views) + len(options) != 1 or not options.keys() <= {"view"}:
            expected = "write @exempt, without parentheses, or @exempt(defaults_only=True)"
            raise RuleError("@exempt", (*views, *options), problem="not one view", expected=expected)
        view = views[0] if views else options["view"]
        try:
            return exempt(view, EXEMPT_FROM_DEFAULTS if defaults_only else EXEMPT)
        except (AttributeError, TypeError):
            raise not_a_view("@exempt on", view, expected="write @exempt above a view") from None

    return cast("Exempt", checked)


def not_a_view(what: str, given: object, *, problem: str = "not a view", expected: str) -> RuleError:
    """Return the error for a decorator on something else than a view. For `@limit`, the parentheses may be missing."""
    if what == "@limit on" and not callable(given):
        expected = f"{expected}; or {_NO_PARENTHESES}"
    return RuleError(what, given, problem=problem, expected=expected)


def _is_being_defined(function: Function) -> bool:
    """True if `@exempt` decorates this function where it is defined; False for `exempt(view)` with a view that exists.

    A function that is being defined has its code among the constants of the calling code, and no variable has the
    function yet. The same holds for the inmost function below other decorators. There is no other way to know
    `@exempt` in a wrong place from `exempt(view)`, which may free one of two routes.
    """
    frame = sys._getframe(1)  # pyright: ignore[reportPrivateUsage]
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] == "sluicegate":
        frame = frame.f_back
    named = [*frame.f_locals.values()]
    inmost = inspect.unwrap(function, stop=lambda each: any(each is value for value in named))
    code = getattr(inmost, "__code__", None)
    if code is None or code.co_name == "<lambda>" or any(inmost is value for value in named):
        return False
    return any(code is constant for constant in frame.f_code.co_consts)


_OF_OTHERS: Final = {  # an option that `@limit` does not have → where it belongs
    **dict.fromkeys(("path", "route"), "a view has its own path; give it to a Rule of the settings"),
    "user": "give a key, or give it to RateLimit of sluicegate.fastapi",
    "refund_earlier": "@limit is charged with the earlier rules, all or none; give it to a charge inside the view",
}


def _check_options(what: str, given: Iterable[str], own: tuple[str, ...]) -> None:
    """Raise RuleError for options that `@limit`, or a charge inside a view, does not have. `own` are its other ones."""
    known = [name for name in ("quota", *own, *MarkOptions.__annotations__) if not own or name != "override_defaults"]
    for name in given:
        if name in _OF_OTHERS and name not in own:
            raise RuleError(what, name, problem="no such option", expected=_OF_OTHERS[name])
        if name not in (*known, "override_defaults"):
            raise unknown_option(what, name, known, error=RuleError)


class RuleOptions(TypedDict, total=False):
    """The options of `sluicegate.Rule` that every way to declare a rule takes unchanged."""

    key: KeySpec | None
    algorithm: AlgorithmName | None
    cost: int | CostFunction
    methods: Iterable[str] | None
    when: Condition | None
    count_denied: bool
    on_store_failure: FailurePolicy | None
    ban: Ban | None
    mode: Mode
    enforce_percent: float
    charge_when: ResponseFunction | None
    refund_when: ResponseFunction | None
    estimate: int | CostFunction | None
    cost_after: CostAfter | None
    unit: str | None
    per_method: bool
    once_per: str | None
    error_message: str | None
    on_denied: AnswerFunction | None


class LateOptions(RuleOptions, total=False):
    """The options of a rule that is charged after the middleware's: those of `@limit`, except `override_defaults`."""

    scope: str | None
    name: str | None


class MarkOptions(LateOptions, total=False):
    """The options of `@limit`, for the signatures of the adapters' decorators."""

    override_defaults: bool | None


def make_mark(
    quota: QuotaSpec | QuotaFunction,
    what: str = "@limit",
    own: tuple[str, ...] = (),
    /,
    *,
    scope: str | None = None,
    name: str | None = None,
    override_defaults: bool | None = None,
    **options: Unpack[RuleOptions],
) -> Mark:
    """Make a mark from the arguments of `@limit`, or of `what`, which has `own` options too. Wrong arguments raise at
    once.

    - `scope`: all views with the same scope have one budget; without it, the view has a budget of its own.
    - `name` is shown in header fields. Without it, the scope is shown, or else the view's own name.
    - `override_defaults` drops the application's default limits for this view; None leaves it to the setting
      `limits_replace_defaults`.
    - The other options are the same as for `sluicegate.Rule`.
    """
    _check_options(what, options, own)
    if override_defaults is not None:
        check_flag("override_defaults", override_defaults, error=RuleError)
    if callable(scope):
        expected = 'give a name, and make the function a part of the key: key=("ip", f)'
        raise RuleError(f"{what} scope", label_of(scope), problem="a function", expected=expected)
    if scope is not None:  # here: Rule would call it the name
        check_name("scope", scope)
    label = name if name is not None else scope
    rule = Rule(name=what if label is None else label, quota=quota, scope=scope, **options)
    if rule.algorithm is None and not callable(quota):  # a typo raises here, not at the first request
        bursts = isinstance(rule.quota, tuple) and any(each.burst for each in rule.quota)
        rule.terms("gcra" if bursts else "sliding-window")
    return Mark(rule, named=label is not None, override_defaults=override_defaults)


class Guard:
    """What a decorated view calls first. It raises to refuse. This one is for a view that is free of limits: it does
    nothing. An adapter's own enforces the mark, unless the adapter has enforced it before the call.
    """

    def sync(self, mark: Mark, view: Function, args: Arguments, kwargs: Options) -> None:
        """Do it for a plain function."""

    def later(self, mark: Mark, view: Function, args: Arguments, kwargs: Options) -> Awaitable[None] | None:
        """Do the same for an async function. It returns an awaitable if there is something to wait for."""
        self.sync(mark, view, args=args, kwargs=kwargs)
        return None


def guarded(view: Callable[P, R], mark: Mark, guard: Guard) -> Callable[P, R]:
    """Wrap a view in its guard. Return a new function with the view's name, signature and marks."""

    @functools.wraps(view)
    async def later(*args: P.args, **kwargs: P.kwargs) -> Any:
        waiting = guard.later(mark, view, args=args, kwargs=kwargs)
        if waiting is not None:
            await waiting
        answer: Any = view(*args, **kwargs)
        return await answer

    @functools.wraps(view)
    def sync(*args: P.args, **kwargs: P.kwargs) -> R:
        guard.sync(mark, view, args=args, kwargs=kwargs)
        return view(*args, **kwargs)

    return cast("Callable[P, R]", later) if iscoroutinefunction(view) else sync


def freed(view: Any, guard: Guard, mark: Mark = EXEMPT) -> Any:
    """Return the view with a mark of `@exempt`. A function is wrapped, not marked: another route may have it as it
    is.

    A class or an object is marked itself. A wrapper of it would not be the class that the framework looks for.
    """
    if isinstance(view, (staticmethod, classmethod)):
        return type(view)(freed(view.__func__, guard, mark))
    if isbuiltin(view) or not callable(view):
        raise TypeError("not a view")
    if not (isinstance(view, functools.partial) or hasattr(view, "__code__") or hasattr(view, "__func__")):
        return declare(view, mark)
    free = guarded(view, mark, guard)
    if _is_being_defined(view):
        declare_within(view, _BELOW_EXEMPT)
    return declare(free, mark)
