"""Settings: the options of every adapter, each with one name in every framework.

Keyword arguments of an adapter, a mapping (Flask's config, Django's settings), a TOML file or the environment become
one frozen Settings object. A wrong value raises a SettingsError with the given value, the expected value and the
nearest known name.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from copy import copy
from dataclasses import dataclass, field, fields, replace
from functools import partial, wraps
from importlib import import_module
from pathlib import Path
from typing import Any, Final, TypedDict

from sluicegate.address import IPV4_PREFIX, IPV6_PREFIX, Trust
from sluicegate.algorithms import DEFAULT, AlgorithmName, find
from sluicegate.clock import Clock
from sluicegate.concurrency import Concurrency
from sluicegate.errors import (
    ConfigurationError,
    QuotaError,
    RuleError,
    SettingsError,
    check_flag,
    check_labels,
    shows_half_made,
    unknown_option,
    within,
)
from sluicegate.identity import Seal
from sluicegate.overrides.file import Watched, tables
from sluicegate.plan import FAILURE_POLICIES, Decision, FailurePolicy, Handlers
from sluicegate.quota import Quota
from sluicegate.rules.ban import Ban, agree
from sluicegate.rules.key import KeySpec, ReadyKey, address_key, check_nesting, validate_key
from sluicegate.rules.rollout import Mode, share
from sluicegate.rules.rule import AnswerFunction, Rule, check_answer
from sluicegate.rules.terms import make_terms, read
from sluicegate.runtime.hidden import hide as hide  # noqa: PLC0414  # the adapters import it from here
from sluicegate.stores import DEADLINE, AsyncStore, Store, StoreChange, valid_prefix
from sluicegate.stores.wrappers import PREFIX, STALENESS, StoreOptions
from sluicegate.web.access import AccessList, listed
from sluicegate.web.http import HeadersSpec, read_dialect

# What a mapping of a file may have for a rule and for a ban: their own fields, so no name is written twice.
_RULE_OPTIONS: Final = tuple(option.name for option in fields(Rule))
_BAN_OPTIONS: Final = tuple(option.name for option in fields(Ban))
# Options that may also be dotted names.
_FUNCTIONS: Final = ("quota", "cost", "when", "charge_when", "refund_when", "estimate", "cost_after", "on_denied")
_VARIABLES: Final = "environment "  # the start of `source` for settings that were read from environment variables
_NOT_SETTINGS: Final = ("SLUICEGATE_APP", "SLUICEGATE_EXAMPLES")  # the variables of the commands and of the exams

# Settings that may be None.
_NONE: Final = ("headers", "trusted_proxies", "on_denied", "on_store_change", "on_decision", "error_message")


class SettingsOptions(TypedDict, total=False):
    """The options of `Settings`, for the signatures of the adapters. A type checker finds a misspelt option."""

    store: str | Store | AsyncStore
    default_limits: Iterable[str | Quota]
    limits_replace_defaults: bool
    rules: Iterable[Rule | Mapping[str, object]] | str
    key: KeySpec
    allow: Iterable[object]
    deny: Iterable[object]
    algorithm: AlgorithmName
    headers: HeadersSpec
    trusted_proxies: int | str | Iterable[str] | None
    trusted_header: str
    ipv6_prefix: int
    ipv4_prefix: int
    secret: str | bytes | None
    on_store_failure: FailurePolicy
    deadline: float
    replicas: int
    deny_cache: float
    on_store_change: Callable[[StoreChange], object] | None
    enabled: bool
    mode: Mode
    prefix: str
    error_message: str | None
    on_denied: AnswerFunction | None
    strict: bool
    overrides: bool | str
    on_decision: Handlers | None
    show_identities: bool
    application: str
    clock: Clock | None


@shows_half_made
@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The options of an adapter. The names are the same in every framework.

    - `store`: a URL (`memory://`, `redis://…`) or a store.
    - `default_limits`: quotas that hold for every request, one budget per identity for the whole application.
    - `limits_replace_defaults`: True drops the default limits for a view with `@limit`, unless that says
      `override_defaults=False`.
    - `rules`: a list of Rule, or of mappings with a rule's options; or the path of a TOML file with `[[rules]]`, which
      is followed: what changes in it holds within a second, or changes nothing if any of it is wrong.
    - `key`: the key of rules without a key: "user", "ip", "header:Name", "path:name", a tuple of such keys, or a
      function.
    - `allow`, `deny`: clients that pass every rule, and clients that are refused (403), before any store is called:
      networks, identities that the key returns, functions of the request. A client on both lists is refused.
    - `algorithm`: the algorithm of rules without an algorithm.
    - `headers`: the dialect of the RateLimit fields, one of `sluicegate.web.http.DIALECTS`, or names for those of
      "x-ratelimit": `{"limit": "X-RateLimit-Limit"}`; None for no such fields.
    - `trusted_proxies`: None (only the socket's peer counts), a number of hops, or networks; "unix" means a peer
      without an address. `trusted_header` is the one header that the trusted proxies write.
    - `ipv6_prefix`, `ipv4_prefix`: the number of bits of an address that identify a client.
    - `secret`: 16 bytes at least. With a secret, stores keep each identity as a digest that is keyed with the secret.
    - `on_store_failure`: "local" (the same limits, in this process's memory), "allow", or "deny" (503).
    - `deadline`: how many seconds a request waits for a silent server. While the server answers or a connection opens,
      it may wait longer (up to a second).
    - `replicas`: the number of processes; "local" divides every limit by it.
    - `deny_cache`: seconds for which a refusal may be cached in this process; 0 means no cache.
    - `on_store_change`: a function of a StoreChange, called once when the store becomes unavailable and once when it is
      available again.
    - `enabled`: False lets every request pass.
    - `mode`: in "shadow" every rule, also of a view and of the defaults, counts and logs and never refuses.
    - `prefix`: begins every key in a shared server.
    - `error_message`: the text of a 429, for rules without one of their own.
    - `on_denied`: a function of (request, decision) that returns the response to a refused request.
    - `strict`: True turns warnings into errors.
    - `overrides`: True follows what operators set while the application runs, in its store; a path follows the
      `[[overrides]]` of a TOML file; False follows nothing.
    - `on_decision`: a function, or several, called with a DecisionEvent for each decision, after the answer.
    - `show_identities`: True shows identities in events as text, not as digests.
    - `application`: the name of the application in its events.
    - `clock`: a ManualClock, for tests.

    `source` is the file, the mapping or the variables that the settings were read from. It is empty for settings given
    in code.
    """

    store: str | Store | AsyncStore = "memory://"
    default_limits: Iterable[str | Quota] = ()
    limits_replace_defaults: bool = False
    rules: Iterable[Rule | Mapping[str, object]] | str = ()
    key: KeySpec = "user"
    allow: Iterable[object] = ()
    deny: Iterable[object] = ()
    algorithm: AlgorithmName = DEFAULT
    headers: HeadersSpec = "draft-11"
    trusted_proxies: int | str | Iterable[str] | None = None
    trusted_header: str = "X-Forwarded-For"
    ipv6_prefix: int = IPV6_PREFIX
    ipv4_prefix: int = IPV4_PREFIX
    secret: str | bytes | None = field(default=None, repr=False)
    on_store_failure: FailurePolicy = "local"
    deadline: float = DEADLINE
    replicas: int = 1
    deny_cache: float = STALENESS
    on_store_change: Callable[[StoreChange], object] | None = None
    enabled: bool = True
    mode: Mode = "enforce"
    prefix: str = PREFIX
    error_message: str | None = None
    on_denied: AnswerFunction | None = None
    strict: bool = False
    overrides: bool | str = True
    on_decision: Handlers | None = None
    show_identities: bool = False
    application: str = ""
    clock: Clock | None = None
    trust: Trust = field(init=False)
    address: ReadyKey = field(init=False, repr=False, compare=False)
    lists: tuple[AccessList, ...] = field(init=False, repr=False, compare=False)  # with entries; `deny` first
    source: str = field(repr=False, compare=False, default="")
    rules_file: str = field(repr=False, compare=False, default="")

    def __post_init__(self) -> None:
        errors: list[ConfigurationError] = []  # of all options: one error does not hide the others
        checking = partial(_collecting, errors, self.source)

        def settle(option: str, value: object) -> None:
            object.__setattr__(self, option, value)

        with checking():
            check_flag("strict", self.strict)
        with checking():
            if isinstance(self.trusted_proxies, Iterator):
                settle("trusted_proxies", tuple(self.trusted_proxies))  # an iterator can be read only once
            settle("trust", Trust.of(self.trusted_proxies, self.trusted_header))
            bits = {"prefix": self.ipv6_prefix, "ipv4_prefix": self.ipv4_prefix}
            settle("address", address_key(self.trust, strict=self.strict, **bits))
        with checking(), within("key"):
            settle("key", _key(self.key))
            validate_key(self.key)
        lists: list[AccessList] = []
        for option in ("allow", "deny"):
            with checking():
                entries = [_function(entry, option=option) for entry in listed(option, getattr(self, option))]
                settle(option, tuple(entries))
                if entries and not errors:  # the entries depend on the addresses and on the key
                    lists.insert(0, AccessList.of(option, entries, self.key, **bits))
        settle("lists", tuple(lists))
        algorithm = "gcra"  # it counts every quota: if the name is wrong, no other error is about the algorithm
        with checking():
            find(self.algorithm)
            algorithm = self.algorithm
        checks: tuple[Callable[[], object], ...] = (
            lambda: None if self.secret is None else Seal(self.secret),
            lambda: check_labels(self.application, show_identities=self.show_identities),
            lambda: settle("on_decision", _handlers(self.on_decision)),
            lambda: settle("headers", read_dialect(self.headers)),
            lambda: valid_prefix(self.prefix),
            lambda: _check_policy(self.on_store_failure),
            lambda: settle("on_store_change", _function(self.on_store_change, option="on_store_change")),
            lambda: StoreOptions(on_store_change=self.on_store_change),
            lambda: StoreOptions(deadline=self.deadline, strict=self.strict),
            lambda: StoreOptions(replicas=self.replicas),
            lambda: StoreOptions(deny_cache=self.deny_cache),
            lambda: StoreOptions(clock=self.clock),
            lambda: check_flag("enabled", self.enabled),
            lambda: check_flag("limits_replace_defaults", self.limits_replace_defaults),
            lambda: None if isinstance(self.overrides, str) else check_flag("overrides", self.overrides),
            lambda: share(self.mode, 100),
            lambda: settle("on_denied", _function(self.on_denied, option="on_denied")),
            lambda: check_answer(self.error_message, self.on_denied, error=SettingsError),
        )
        for check in checks:  # each raises for a wrong option
            with checking():
                check()
        with checking(), within("default_limits"):
            limits = _default_limits(self.default_limits)
            settle("default_limits", limits)
            if limits:
                make_terms("default", limits, algorithm=algorithm)
        rules: list[Rule] = []
        with checking():
            if isinstance(self.rules, str):
                if "://" in self.rules:  # a URL in the wrong place: an error about a file would show its password
                    raise _error("rules", "…", "a URL", "give the path of a TOML file with [[rules]]")
                settle("rules_file", self.rules)
                rules += read_rules(Watched(self.rules).changed() or "", self.rules, algorithm=algorithm)
            else:
                for number, given in enumerate(_listed_rules(self.rules), 1):
                    with checking():
                        rules.append(_added(given, number, rules, algorithm=algorithm))
        settle("rules", tuple(rules))
        if errors:
            raise _together(errors)

    def __copy__(self) -> Settings:
        return replace(self)

    def __deepcopy__(self, memo: object) -> Settings:
        return copy(self)  # with the same store and the same clock, because a copy of a store would count separately

    def __reduce__(self) -> tuple[object, ...]:
        if not isinstance(self.store, str):
            problem = f"settings with a {type(self.store).__name__} cannot be pickled"
            raise TypeError(f"{problem}: it holds connections or budgets; give the URL of a store")
        return partial(Settings, **{name: getattr(self, name) for name in (*_KNOWN, "source", "rules_file")}), ()

    @classmethod
    def given(cls, settings: object, options: Mapping[str, object], *, source: str) -> Settings:
        """Return the settings of an adapter, which was given either `settings=` or options as keyword arguments."""
        if settings is None:
            return cls.from_mapping(options, source=source)
        if options:
            problem, expected = "given beside settings=", "put them into the settings, or leave out settings="
            raise SettingsError("options", sorted(options), problem=problem, expected=expected)
        if not isinstance(settings, Settings):
            expected = 'give Settings(…), or the options by name, as default_limits=["1000/day"]'
            raise SettingsError("settings", type(settings), problem="not Settings", expected=expected)
        return settings

    @classmethod
    def from_mapping(cls, options: Mapping[str, object], *, source: str = "settings") -> Settings:
        """Make settings from a mapping. Its names may be in capitals. Errors show the `source`.

        >>> Settings.from_mapping({"DEFAULT_LIMITS": ["1000/day"]}).default_limits
        (Quota('1000/day'),)
        """
        options = hide(options)
        return cls._found(options, source)

    @classmethod
    def from_toml(cls, path: str | Path, *, table: str = "sluicegate") -> Settings:
        """Read settings from one table of a TOML file. A function is given as its dotted name; "none" means None."""
        found = read_table(path, table)
        if isinstance(found, SettingsError):
            raise found
        return cls.from_mapping(found, source=f"{path} [{table}]")

    @classmethod
    def from_environ(cls, environ: Mapping[str, str], *, prefix: str = "SLUICEGATE_") -> Settings:
        """Read settings from environment variables such as SLUICEGATE_STORE and SLUICEGATE_DEFAULT_LIMITS. A variable
        cannot hold rules. Any other variable with the prefix is an error, except SLUICEGATE_APP, SLUICEGATE_EXAMPLES
        and those that Kubernetes sets for a service.
        """
        found = _read_variables(environ, prefix)
        del environ  # so that no traceback shows the variables
        if isinstance(found, SettingsError):
            raise found
        return cls._found(found, f"{_VARIABLES}{prefix}*")

    @classmethod
    def _found(cls, options: Mapping[str, object], source: str) -> Settings:
        """Make settings from a mapping that was read from `source`. Every error shows it."""
        known = _options(cls)
        errors: list[ConfigurationError] = []
        found: dict[str, Any] = {}
        for given, value in options.items():
            name = given.lower() if isinstance(given, str) else ""
            if name not in known:
                errors.append(_unknown(source, given, known))
            elif name in found:
                errors.append(_error(source, given, f'"{name}" is given twice', "keep one of the two"))
            found[name] = value
        try:
            made = cls(**{name: value for name, value in found.items() if name in known}, source=source)
        except ConfigurationError as error:
            errors.append(error)
        else:
            if not errors:
                return made
        raise _together(errors)

    def answer_to(self, decision: Decision) -> AnswerFunction | None:
        """Return the `on_denied` of the rule that refused, or else that of the application."""
        for terms, _, _ in decision.checks:
            if terms.on_denied is not None:
                binding = decision.binding
                return self.on_denied if binding is None else binding[0].terms.on_denied or self.on_denied
        return self.on_denied

    def blamed(self) -> AbstractContextManager[None]:
        """Add the source of these settings to each ConfigurationError that the block raises."""
        return _found_in(self.source)


@contextmanager
def _found_in(source: str) -> Generator[None]:
    """Add this source to each ConfigurationError that the block raises. For environment variables, add the name of the
    variable that has the wrong option.
    """
    try:
        yield
    except ConfigurationError as error:
        option = error.what.partition(":")[0]
        if source.startswith(_VARIABLES) and option in _KNOWN:
            source = f"{source.removesuffix('*')}{option.upper()}"
        error.found_in(source)
        raise


@contextmanager
def _collecting(errors: list[ConfigurationError], source: str) -> Generator[None]:
    """Add the ConfigurationError that the block raises to the errors of these settings."""
    try:
        with _found_in(source):
            yield
    except ConfigurationError as error:
        errors.append(error)


def _together(errors: list[ConfigurationError]) -> ConfigurationError:
    """Return the first error, with all others as its notes."""
    first, *others = errors
    for other in others:
        for text in (str(other), *getattr(other, "__notes__", ())):
            first.add_note(text)
    return first


def _options(kind: type[Settings]) -> list[str]:
    """Return the names of the settings. Those that `replace` gives too are none of them."""
    return [option.name for option in fields(kind) if option.init and option.name not in ("source", "rules_file")]


_KNOWN: Final = frozenset(_options(Settings))


def _hide_arguments() -> None:
    """Wrap the `__init__` that `dataclasses` made, so that no traceback shows a secret among its arguments."""
    made = Settings.__init__

    @wraps(made)
    def hiding(self: Settings, *, source: str = "", rules_file: str = "", **options: Any) -> None:
        options = hide(options)
        for name in options:
            if name not in _KNOWN:
                raise _unknown("Settings", name, _options(Settings))
        made(self, source=source, rules_file=rules_file, **options)

    Settings.__init__ = hiding  # type: ignore[method-assign]


_hide_arguments()


def read_table(path: str | Path, table: str) -> dict[str, object] | SettingsError:
    """Read a table of a file. An error is returned, to be raised where no variable has the text of the file."""
    try:
        document = tomllib.loads(Path(path).read_text("utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        return _error("settings file", str(path), str(error), "give a readable TOML file")
    options = document.get(table)
    if not isinstance(options, dict):
        return _error("settings file", str(path), f"has no table [{table}]", f"put the settings under [{table}]")
    return {option: None if _is_none(option, value) else value for option, value in hide(options).items()}


def _read_variables(environ: Mapping[str, str], prefix: str) -> dict[str, object] | SettingsError:
    """Return the settings among the environment variables. An error is returned, not raised here: the caller that
    raises it has no variable with the values.
    """
    found: dict[str, object] = {}
    others = _of_services(environ)
    for variable, text in environ.items():
        if not variable.startswith(prefix) or variable in _NOT_SETTINGS or variable.startswith(others):
            continue
        option = variable.removeprefix(prefix).lower()
        if option == "clock":
            return _error(variable, "…", "cannot be given in a variable", "use from_toml or code for it")
        found[option] = None if _is_none(option, text) else _READERS.get(option, str)(text)
    return hide(found)


def _of_services(environ: Mapping[str, str]) -> tuple[str, ...]:
    """Return the beginnings of the variables that Kubernetes has set for services: SLUICEGATE_REDIS_SERVICE_HOST comes
    with others, such as SLUICEGATE_REDIS_PORT_6379_TCP.
    """
    ends = ("SERVICE_HOST", "SERVICE_PORT", "PORT")
    services = [name.removesuffix(ends[0]) for name in environ if name.endswith(f"_{ends[0]}")]
    return tuple([service + end for service in services for end in ends])


def _error(option: str, given: object, problem: str, expected: str) -> SettingsError:
    return SettingsError(option, given, problem=problem, expected=expected)


def _unknown(what: str, given: object, known: Iterable[str], *, kind: str = "setting") -> ConfigurationError:
    if kind == "setting" and isinstance(given, str) and given.lower() in _RULE_OPTIONS:
        return _error(what, given, "no such setting", 'it is an option of a rule; give it to a Rule in "rules"')
    return unknown_option(what, given, known, error=SettingsError, kind=kind)


def _check_policy(given: str) -> None:
    if given not in FAILURE_POLICIES:
        problem = "an adapter has no one to raise to" if given == "raise" else "not known"
        raise _error("on_store_failure", given, problem, "use local, allow or deny")


def _default_limits(given: object) -> tuple[Quota, ...]:
    if not isinstance(given, Iterable) and not isinstance(given, Quota):
        raise _error("default_limits", given, "not a list of quotas", 'give a list like ["1000/day", "20/second"]')
    limits: list[Quota] = []
    for each in given if isinstance(given, Iterable) and not isinstance(given, str) else [given]:
        quotas = read(each)
        if isinstance(quotas, Concurrency):
            problem = "a Concurrency, where a quota per time is expected"
            raise QuotaError("quota", each, problem=problem, expected="give it to a rule, to @limit or to hold")
        limits += quotas
    return tuple(limits)


def _listed_rules(given: object) -> Iterable[object]:
    if isinstance(given, (str, Mapping)) or not isinstance(given, Iterable):
        raise _error("rules", given, "not a list of rules", 'give a list like [{"name": "login", "quota": "5/minute"}]')
    return given


def read_rules(text: str, path: str, *, algorithm: str, required: bool = True) -> tuple[Rule, ...]:
    """Return the rules in the text of a file. Raises OverrideError with the first error of each table, and its line."""
    rules, bans = list[Rule](), dict[str, Ban]()

    def add(options: Mapping[str, object], number: int) -> None:
        rules.append(_added(options, number, rules, algorithm=algorithm))
        agree(bans, rules[-1].name, rules[-1].ban)

    tables(text, "rules", path, make=add, required=required)
    return tuple(rules)


def _added(given: object, number: int, others: Iterable[Rule], *, algorithm: str) -> Rule:
    """Return a rule that may stand beside these. Raises ConfigurationError for one that cannot be."""
    rule = given if isinstance(given, Rule) else _rule(given, number)
    if rule.name in [other.name for other in others]:
        raise _error("rules", rule.name, "two rules of this name", "give each rule a name of its own")
    for quota in rule.known:
        rule.terms(algorithm, quota)  # raises for a quota that the algorithm cannot count
    return rule


def _rule(given: object, number: int) -> Rule:
    """Make a rule from a mapping. Its functions may be given as dotted names."""
    unnamed = f"rule {number} (counted from 1)"
    if not isinstance(given, Mapping):
        raise _error(unnamed, given, "neither a Rule nor a mapping", 'give {"name": …, "quota": …}')
    name = next((value for option, value in given.items() if str(option).lower() == "name"), None)
    label = f"rule {name!r}" if name else unnamed
    options = _named(label, given, known=_RULE_OPTIONS, needed=("name", "quota"))
    with within(label):
        options["key"] = _key(options.get("key"))
        if isinstance(options.get("ban"), Mapping):
            needed = ("after", "within", "duration")
            options["ban"] = Ban(**_named("ban", options["ban"], known=_BAN_OPTIONS, needed=needed))
        for option in _FUNCTIONS:
            options[option] = _function(options.get(option), option=option)
        return Rule(**{option: value for option, value in options.items() if value is not None})


def _named(
    what: str, given: Mapping[object, object], *, known: Collection[str], needed: Iterable[str]
) -> dict[str, Any]:
    """Return the options in a mapping, with names in small letters. Raises ConfigurationError for one that is unknown,
    given twice or missing.
    """
    options = {str(name).lower(): value for name, value in given.items()}
    if len(options) < len(given):
        problem = "an option is given twice, in capitals and in small letters"
        raise _error(what, [*given], problem, "keep one of the two")
    for name in options:
        if name not in known:
            raise _unknown(what, name, known, kind="option")
    for name in needed:
        if name not in options:
            raise RuleError(what, {**given}, problem=f'has no "{name}"', expected=f'add "{name}"')
    return options


def _key(given: object) -> Any:
    """Read a key. A list becomes a tuple, which TOML and JSON do not have, and a dotted name the named function."""
    if isinstance(given, (tuple, list)):
        check_nesting(given)
        return tuple([_key(part) for part in given])
    return _function(given, option="key")


def _function(given: object, *, option: str) -> Any:
    """Import the function with a dotted name such as "shop.limits.by_team". Return any other value unchanged."""
    if not isinstance(given, str) or not all(part.isidentifier() for part in given.split(".")):
        return given
    module, dot, name = given.rpartition(".")
    if not dot:
        return given
    expected = 'give a dotted name like "shop.limits.by_team"'
    try:
        found = getattr(import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise _error(option, given, f"cannot be imported ({error})", expected) from error
    except Exception as error:  # its row in tests/test_house.py says why
        problem = f"cannot be imported ({type(error).__name__}: {error})"
        raise _error(option, given, problem, f"repair the module, or {expected}") from error
    if not callable(found):
        problem = f"leads to a {type(found).__name__}, not to a function"
        raise _error(option, given, problem, "give the dotted name of a function")
    return found


def _handlers(given: object) -> Any:
    """Return the handlers of `on_decision`, of which some may be given as dotted names."""
    if given is None:
        return None
    from sluicegate.observe.events import handlers_of  # only an application with events needs it

    several = isinstance(given, (list, tuple))
    found = [_function(each, option="on_decision") for each in (given if several else (given,))]  # type: ignore[attr-defined]
    return handlers_of(found if several else found[0])


def _is_none(option: str, value: object) -> bool:
    """True if this text means None. It is needed because files and variables have no None."""
    return option.lower() in _NONE and value in ("none", "None")


def _flag(text: str) -> object:
    return {"1": True, "true": True, "yes": True, "0": False, "false": False, "no": False}.get(text.lower(), text)


def _parts(text: str) -> list[str]:
    return [part.strip() for part in text.split(",")]


def _proxies(text: str) -> object:
    return int(text) if text.isascii() and text.isdecimal() else _parts(text)


def _number(kind: type[int] | type[float]) -> Callable[[str], object]:
    """Make a function that reads numbers. Other text stays as it is: the later check of the settings raises for it."""

    def read(text: str) -> object:
        try:
            return kind(text)
        except ValueError:
            return text

    return read


# Options that are no text: environment variables have only text.
_READERS: Final[dict[str, Callable[[str], object]]] = {
    "enabled": _flag,
    "strict": _flag,
    "limits_replace_defaults": _flag,
    "overrides": _flag,
    "on_decision": _parts,
    "show_identities": _flag,
    "ipv6_prefix": _number(int),
    "ipv4_prefix": _number(int),
    "trusted_proxies": _proxies,
    "allow": _parts,
    "deny": _parts,
    "deadline": _number(float),
    "replicas": _number(int),
    "deny_cache": _number(float),
}
