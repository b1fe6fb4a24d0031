"""Settings: one table of options with one name each, wherever they come from.

Keyword arguments of an adapter, a mapping (Flask's config, Django's settings), a TOML file or the environment all
become one frozen Settings, or a SettingsError that names what was given, what is expected and the nearest known name.
This module knows rules and addresses; no framework and no concrete store.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from difflib import get_close_matches
from functools import wraps
from importlib import import_module
from pathlib import Path
from typing import Any, Final, cast

from sluicegate.address import IPV6_PREFIX, Trust
from sluicegate.algorithms import DEFAULT, find
from sluicegate.ban import Ban
from sluicegate.cautions import check_strict
from sluicegate.clock import Clock
from sluicegate.errors import ConfigurationError, RuleError, SettingsError, within
from sluicegate.hidden import hide_options
from sluicegate.http import check_dialect
from sluicegate.identity import Seal
from sluicegate.key import KeySpec, ReadyKey, address_key, validate_key
from sluicegate.lists import Lists, listed
from sluicegate.quota import Quota
from sluicegate.rule import Rule
from sluicegate.stores import DEADLINE, AsyncStore, Store, StoreChange, valid_prefix
from sluicegate.stores.stack import FAILURE_OPTIONS, STALENESS, Stack
from sluicegate.terms import Quotas, make_terms, quotas

_RULE_OPTIONS: Final = tuple(option.name for option in fields(Rule))
_FUNCTIONS: Final = ("quota", "cost", "when", "charge_when", "refund_when")  # options that may be dotted names too
_NONE: Final = ("headers", "trusted_proxies", "on_denied", "on_store_change")  # settings that may be None


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Everything that an adapter can be told. The names are the same in every framework.

    - `store`: a URL (`memory://`, `redis://…`) or a store.
    - `default_limits`: quotas that hold for every request, one budget per identity for the whole application.
    - `rules`: a list of Rule, or of mappings with a rule's options.
    - `key`: who is asking, where a rule does not say: "user", "ip", "header:Name", "path:name", a tuple, a function.
    - `allow`, `deny`: who passes every rule, and who is refused (403), before any store is asked: networks, identities
      as the key gives them, functions of the request. Who is on both is denied.
    - `algorithm`: where a rule does not say.
    - `headers`: the dialect of the RateLimit fields, one of `sluicegate.http.DIALECTS`; None for no such fields.
    - `trusted_proxies`: None (only the socket's peer is believed), a number of hops, or networks; "unix" stands for a
      peer without an address. `trusted_header` is the one header that those proxies write.
    - `ipv6_prefix`: how many bits of an IPv6 address are one client's.
    - `secret`: 16 bytes at least; what is kept of identities is then a digest under this key.
    - `on_store_failure`: "local" (the same limits, in this process's memory), "allow", or "deny" (503).
    - `deadline`: seconds that the store may cost a request, all told.
    - `replicas`: how many processes share the work; "local" divides every limit by it.
    - `deny_cache`: seconds for which a refusal may be remembered in this process; 0 for none.
    - `on_store_change`: a function of a StoreChange, called once when the store stops answering and once when it
      answers again.
    - `enabled`: False lets everything pass.
    - `prefix`: begins every key in a shared server.
    - `on_denied`: a function of (request, decision) that returns the response to a refused request.
    - `strict`: True makes errors of what would be warnings.
    - `clock`: a ManualClock, for tests.
    """

    store: str | Store | AsyncStore = "memory://"
    default_limits: Iterable[str | Quota] = ()
    rules: Iterable[Rule | Mapping[str, Any]] = ()
    key: KeySpec = "user"
    allow: Iterable[Any] = ()
    deny: Iterable[Any] = ()
    algorithm: str = DEFAULT
    headers: str | None = "draft-11"
    trusted_proxies: int | str | Iterable[str] | None = None
    trusted_header: str = "X-Forwarded-For"
    ipv6_prefix: int = IPV6_PREFIX
    secret: str | bytes | None = field(default=None, repr=False)
    on_store_failure: str = "local"
    deadline: float = DEADLINE
    replicas: int = 1
    deny_cache: float = STALENESS
    on_store_change: Callable[[StoreChange], object] | None = None
    enabled: bool = True
    prefix: str = "sg"
    on_denied: Callable[..., Any] | None = None
    strict: bool = False
    clock: Clock | None = None
    trust: Trust = field(init=False)
    address: ReadyKey = field(init=False, repr=False, compare=False)
    lists: Lists | None = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        def settle(option: str, value: object) -> None:
            object.__setattr__(self, option, value)

        if isinstance(self.trusted_proxies, Iterator):
            settle("trusted_proxies", tuple(self.trusted_proxies))  # it can be read once
        settle("trust", Trust.of(self.trusted_proxies, self.trusted_header))
        if self.secret is not None:
            Seal(self.secret)  # says what cannot work
        check_strict(self.strict)
        settle("address", address_key(self.trust, prefix=self.ipv6_prefix, strict=self.strict))
        with within("key"):
            settle("key", _key(self.key))
            validate_key(self.key)
        for option in ("allow", "deny"):
            entries = [_function(entry, option=option) for entry in listed(option, getattr(self, option))]
            settle(option, tuple(entries))
        both = Lists(self.allow, self.deny, key=self.key, address=self.address, trust=self.trust)
        settle("lists", both if self.allow or self.deny else None)
        find(self.algorithm)
        check_dialect(self.headers)
        valid_prefix(self.prefix)
        settle("on_store_change", _function(self.on_store_change, option="on_store_change"))
        if self.on_store_failure == "raise":
            raise _error("on_store_failure", "raise", "an adapter has no one to raise to", "use local, allow or deny")
        Stack(
            **{option: getattr(self, option) for option in FAILURE_OPTIONS}, clock=self.clock
        )  # says what cannot work
        if not isinstance(self.enabled, bool):
            raise _error("enabled", self.enabled, "neither True nor False", "give one of them")
        settle("on_denied", _function(self.on_denied, option="on_denied"))
        if self.on_denied is not None and not callable(self.on_denied):
            raise _error(
                "on_denied",
                self.on_denied,
                "not a function",
                "give a function of (request, decision), or its dotted name",
            )
        with within("default_limits"):
            settle("default_limits", _default_limits(self.default_limits))
            if self.default_limits:
                make_terms("default", cast("Quotas", self.default_limits), algorithm=self.algorithm)
        settle("rules", _rules(self.rules))
        for rule in cast("tuple[Rule, ...]", self.rules):
            for quota in rule.known:
                rule.terms(self.algorithm, quota)  # says what the algorithm cannot carry

    def __copy__(self) -> Settings:
        return replace(self)

    def __deepcopy__(self, memo: object) -> Settings:
        return replace(self)  # with the same store and the same clock: a copy of these would count by itself

    def __reduce__(self) -> tuple[Any, ...]:
        if not isinstance(self.store, str):
            problem = f"settings with a {type(self.store).__name__} cannot be pickled"
            raise TypeError(f"{problem}: it holds connections or budgets; give the URL of a store")
        return (_remade, ({option.name: getattr(self, option.name) for option in fields(self) if option.init},))

    @classmethod
    def given(cls, settings: object, options: Mapping[str, Any], *, source: str) -> Settings:
        """What an adapter was given: whole settings, or options by name."""
        if settings is None:
            return cls.from_mapping(options, source=source)
        if options:
            problem, expected = "given beside settings=", "put it into the settings, or leave those out"
            raise SettingsError("options", sorted(options), problem=problem, expected=expected)
        if not isinstance(settings, Settings):
            expected = 'give Settings(…), or the options by name, as default_limits=["1000/day"]'
            raise SettingsError("settings", type(settings), problem="not Settings", expected=expected)
        return settings

    @classmethod
    def from_mapping(cls, options: Mapping[str, Any], *, source: str = "settings") -> Settings:
        """From a mapping whose names may be in capitals. `source` says in errors where it came from.

        >>> Settings.from_mapping({"DEFAULT_LIMITS": ["1000/day"]}).default_limits
        (Quota('1000/day'),)
        """
        options = hide(options)
        return cls._found(options, source, lambda _: source)

    @classmethod
    def from_toml(cls, path: str | Path, *, table: str = "sluicegate") -> Settings:
        """From one table of a TOML file; functions are given by their dotted names, "none" stands for None."""
        found = _read_table(path, table)
        if isinstance(found, SettingsError):
            raise found
        return cls.from_mapping(found, source=f"{path} [{table}]")

    @classmethod
    def from_environ(cls, environ: Mapping[str, str], *, prefix: str = "SLUICEGATE_") -> Settings:
        """From variables such as SLUICEGATE_STORE and SLUICEGATE_DEFAULT_LIMITS. Rules are too much for a variable."""
        found = _read_variables(environ, prefix)
        del environ  # a traceback would show every variable of it
        if isinstance(found, SettingsError):
            raise found
        return cls._found(found, f"environment {prefix}*", lambda option: f"environment {prefix}{option.upper()}")

    @classmethod
    def _found(cls, options: Mapping[str, Any], source: str, source_of: Callable[[str], str]) -> Settings:
        """From a mapping that was found somewhere. Every error says where, by the option that it begins with."""
        known = [option.name for option in fields(cls) if option.init]
        found = {}
        for given, value in options.items():
            name = given.lower() if isinstance(given, str) else ""
            if name not in known:
                raise _unknown(source, given, known)
            if name in found:
                raise _error(source, given, f'"{name}" is given twice', "keep one of them")
            found[name] = value
        try:
            return cls(**found)
        except ConfigurationError as error:
            error.found_in(source_of(error.what.partition(":")[0]))
            raise


_KNOWN: Final = frozenset(option.name for option in fields(Settings) if option.init)


def hide(options: Mapping[Any, Any]) -> dict[Any, Any]:
    """A copy of settings as they were given, of which a traceback shows neither password nor secret."""
    return hide_options(options, _KNOWN)


def _hide_arguments() -> None:
    """Have the arguments of Settings hidden before its `__init__`, which is made by `dataclasses`, can be seen."""
    made = Settings.__init__

    @wraps(made)
    def hiding(self: Settings, **options: Any) -> None:
        options = hide(options)
        made(self, **options)

    Settings.__init__ = hiding  # type: ignore[method-assign]


_hide_arguments()


def _read_table(path: str | Path, table: str) -> dict[str, Any] | SettingsError:
    """One table of a file. An error is returned: where it is raised, no variable holds the text of the file."""
    try:
        document = tomllib.loads(Path(path).read_text("utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        return _error("settings file", str(path), str(error), "give a readable TOML file")
    options = document.get(table)
    if not isinstance(options, dict):
        return _error("settings file", str(path), f"has no table [{table}]", f"put the settings under [{table}]")
    return {option: None if _is_none(option, value) else value for option, value in hide(options).items()}


def _read_variables(environ: Mapping[str, str], prefix: str) -> dict[str, Any] | SettingsError:
    """The settings among the variables. An error is returned: where it is raised, no variable holds them."""
    found: dict[str, Any] = {}
    for variable, text in environ.items():
        if not variable.startswith(prefix):
            continue
        option = variable.removeprefix(prefix).lower()
        if option in ("rules", "clock"):
            return _error(variable, "…", "cannot be told in a variable", "use from_toml or code for it")
        found[option] = None if _is_none(option, text) else _READERS.get(option, str)(text)
    return hide(found)


def _remade(options: dict[str, Any]) -> Settings:
    return Settings(**options)


def _error(option: str, given: object, problem: str, expected: str) -> SettingsError:
    return SettingsError(option, given, problem=problem, expected=expected)


def _unknown(what: str, given: object, known: Iterable[str], *, kind: str = "setting") -> SettingsError:
    near = get_close_matches(str(given).lower(), list(known), n=1)
    expected = f'did you mean "{near[0]}"?' if near else f"known are {', '.join(known)}"
    return _error(what, given, f"no such {kind}", expected)


def _default_limits(given: object) -> tuple[Quota, ...]:
    if isinstance(given, (str, Quota)):
        return quotas(given)
    if not isinstance(given, Iterable):
        raise _error("default_limits", given, "not a list of quotas", 'give a list like ["1000/day", "20/second"]')
    return tuple(quota for each in given for quota in quotas(each))


def _rules(given: object) -> tuple[Rule, ...]:
    if isinstance(given, (str, Mapping)) or not isinstance(given, Iterable):
        raise _error("rules", given, "not a list of rules", 'give a list like [{"name": "login", "quota": "5/minute"}]')
    rules = tuple([rule if isinstance(rule, Rule) else _rule(rule, place) for place, rule in enumerate(given, 1)])
    names = [rule.name for rule in rules]
    for name in names:
        if names.count(name) > 1:
            raise _error("rules", name, "two rules of this name", "give each rule a name of its own")
    return rules


def _rule(given: object, place: int) -> Rule:
    """A rule from a mapping; its functions may be given by dotted names. Errors call it by its name or its place."""
    if not isinstance(given, Mapping):
        raise _error(f"rule {place}", given, "neither a Rule nor a mapping", 'give {"name": …, "quota": …}')
    options = {str(name).lower(): value for name, value in given.items()}
    label = f"rule {options['name']!r}" if options.get("name") else f"rule {place}"
    if len(options) < len(given):
        raise _error(label, [*given], "an option is given twice, in capitals and not", "keep one of them")
    for name in options:
        if name not in _RULE_OPTIONS:
            raise _unknown(label, name, _RULE_OPTIONS, kind="option")
    for name in ("name", "quota"):
        if name not in options:
            raise RuleError(label, dict(given), problem=f'has no "{name}"', expected=f'add "{name}"')
    with within(label):
        options["key"] = _key(options.get("key"))
        if isinstance(options.get("ban"), Mapping):
            options["ban"] = _ban(options["ban"])
        for name in _FUNCTIONS:
            options[name] = _function(options.get(name), option=name)
        return Rule(**{name: value for name, value in options.items() if value is not None})


def _ban(given: Mapping[str, Any]) -> Ban:
    """A ban from a mapping."""
    options, known = {str(name).lower(): value for name, value in given.items()}, [each.name for each in fields(Ban)]
    for name in options:
        if name not in known:
            raise _unknown("ban", name, known, kind="option")
    for name in ("after", "within", "duration"):
        if name not in options:
            raise RuleError("ban", dict(given), problem=f'has no "{name}"', expected=f'add "{name}"')
    return Ban(**options)


def _key(given: object) -> Any:
    """A key: lists stand for tuples, which TOML and JSON do not have, and dotted names for functions."""
    if isinstance(given, (tuple, list)):
        return tuple([_key(part) for part in given])
    return _function(given, option="key")


def _function(given: object, *, option: str) -> Any:
    """What a dotted name such as "shop.limits.by_team" stands for; anything else as it is."""
    if not isinstance(given, str) or not all(part.isidentifier() for part in given.split(".")):
        return given
    module, dot, name = given.rpartition(".")
    if not dot:
        return given
    try:
        found = getattr(import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise _error(
            option, given, f"cannot be imported ({error})", 'give a dotted name like "shop.limits.by_team"'
        ) from error
    if not callable(found):
        problem = f"leads to a {type(found).__name__}, not to a function"
        raise _error(option, given, problem, "give the dotted name of a function")
    return found


def _is_none(option: str, value: object) -> bool:
    """Whether None is meant, where it can only be written as text."""
    return option.lower() in _NONE and value == "none"


def _flag(text: str) -> object:
    return {"1": True, "true": True, "yes": True, "0": False, "false": False, "no": False}.get(text.lower(), text)


def _parts(text: str) -> list[str]:
    return [part.strip() for part in text.split(",")]


def _proxies(text: str) -> object:
    return int(text) if text.isascii() and text.isdecimal() else _parts(text)


def _number(kind: type[int] | type[float]) -> Callable[[str], object]:
    """A reader of numbers; what is none stays text, and is refused with everything else."""

    def read(text: str) -> object:
        try:
            return kind(text)
        except ValueError:
            return text

    return read


_READERS: Final[dict[str, Callable[[str], object]]] = {
    "enabled": _flag,
    "strict": _flag,
    "ipv6_prefix": _number(int),
    "trusted_proxies": _proxies,
    "allow": _parts,
    "deny": _parts,
    "deadline": _number(float),
    "replicas": _number(int),
    "deny_cache": _number(float),
}
