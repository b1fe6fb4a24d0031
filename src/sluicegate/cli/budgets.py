"""The budgets of an application on its server, as commands read and change them.

A command opens a store of its own from the application's settings, with a longer deadline and without the wrappers: a
store that is down is an error here, and no local fallback answers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Generator, Hashable, Iterable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from functools import cached_property, partial
from inspect import isawaitable
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import click

from sluicegate.cli.application import Application, Limiting
from sluicegate.cli.commands import Command
from sluicegate.cli.output import Shell, console, plain, scanning
from sluicegate.clock import MICROSECOND, Clock, calendar_us, epoch_seconds
from sluicegate.errors import ConfigurationError, OverrideError, StoreError, is_foreign
from sluicegate.identity import Digested, Identity, Seal, digest
from sluicegate.identity import identity_text as plain_text
from sluicegate.limiter import Limiter
from sluicegate.overrides import Action, Override, Overrides
from sluicegate.overrides.applied import Applied, Held, rules_for, terms_with
from sluicegate.overrides.file import Watched, overrides_in
from sluicegate.overrides.follow import mark_of
from sluicegate.overrides.override import EVERY_RULE
from sluicegate.plan import Check, Outcome, Plan, Terms
from sluicegate.replay.words import count, key_text
from sluicegate.rules.ban import Ban
from sluicegate.rules.key import KeySpec, can_be, parts_of
from sluicegate.rules.rollout import EVERYBODY, shadows
from sluicegate.rules.rule import METHODS, Rule
from sluicegate.rules.terms import present, scope_text
from sluicegate.rules.tiers import Tiers
from sluicegate.rules.typed import NAMED
from sluicegate.stores import open_store
from sluicegate.stores.memory import AsyncMemoryStore, MemoryStore
from sluicegate.web.access import AccessList
from sluicegate.web.bound import Bound, names_of, of_method
from sluicegate.web.charge import short_label, view_of
from sluicegate.web.gate import AsyncGate, Gate

if TYPE_CHECKING:
    from sluicegate.stores.redis.scan import KeyPage

DEADLINE: Final = 2.0  # seconds: a person waits longer than a request, and a server may be busy


class Known(NamedTuple):
    """Terms that a rule of the application has, with the name that people know."""

    rule: str
    terms: Terms
    ban: Ban | None = None
    names: tuple[str, ...] = ()  # by which a person may mean it: that of the rule, and of one of its quotas
    tier: str | None = None  # that has these terms, if the rule has tiers
    held: Action | None = None  # of the override that holds instead of the rule


Of = Callable[[str, str | None], Held | None]
"""Returns the override that holds for one identity under a rule and a tier."""


class Blocking:
    """A synchronous view of a store whose methods are async: each call runs on one event loop."""

    def __init__(self, store: Any, runner: asyncio.Runner) -> None:
        self._store, self._runner = store, runner
        self.clock: Clock | None = getattr(store, "clock", None)  # which is no method

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._store, name)

        def call(*given: object) -> object:
            found = method(*given)
            return self._runner.run(_awaited(found)) if isawaitable(found) else found

        return call


async def _awaited(found: Awaitable[object]) -> object:
    return await found


class Budgets:
    """The budgets in one place: under the same prefix of one store. Several limiters of an application may share them,
    if they give an identity the same text.
    """

    def __init__(self, limiters: Sequence[Limiting], store: Any) -> None:
        self._limiters = limiters
        self.settings = limiters[0].settings
        self.store = store

    def identity(self, words: Iterable[str]) -> Identity:
        """Return the identity that a person typed, as the application's keys make it."""
        return self._limiters[0].gate.typed(words)

    def can_be(self, key: KeySpec, words: Sequence[str]) -> bool:
        """True if a key could ever return the identity or the pattern that a person typed. A pattern of addresses is
        compared as one address.
        """
        settings = self.settings
        sample = ["ip:127.0.0.1" if word.startswith("ip:") and "*" in word else word for word in words]
        return can_be(key, self.identity(sample), prefix=settings.ipv6_prefix, ipv4_prefix=settings.ipv4_prefix)

    @property
    def own_keys(self) -> list[KeySpec]:
        """The `key` of each limiter's settings, of those that have no function."""
        keys = [each.settings.key for each in self._limiters]
        return [key for key in keys if not any(map(callable, parts_of(key)))]

    def apart(self, words: Sequence[str]) -> set[str]:
        """Return the names of the rules that are not known to count by the identity that a person typed."""
        keys = self.keys(None)
        given = {name for name, key in keys if self.can_be(key, words) and not of_functions(key, words)}
        return {name for name, _ in keys} - given

    def text(self, words: Iterable[str]) -> str:
        """Return its text, as the store gets it."""
        return self._limiters[0].gate.limiter.text(self.identity(words))

    @property
    def lists(self) -> list[AccessList]:
        """The access lists of the limiters."""
        return [listed for each in self._limiters for listed in each.settings.lists]

    def overrides(self, store: object = None) -> Overrides:
        """Return what reads and writes the overrides of the application, by another store if one is given."""
        return Overrides(self.store if store is None else store, self._limiters[0].gate.limiter.text)

    @property
    def mark(self) -> str:
        """The mark of the secret of this shell, as each process that follows tells its own."""
        return mark_of(self._limiters[0].gate.limiter.text(""))

    @property
    def live(self) -> list[Override]:
        """The overrides that have not ended: of the file that the application follows, or of its server."""
        given = self.settings.overrides
        if isinstance(given, str):
            held = overrides_in(Watched(given).changed() or "", given, lambda word: self.text([word]))
            return [each for each in held if each.holds(int(epoch_seconds() * MICROSECOND))]
        if given is not True or not hasattr(self.store, "read_overrides"):
            return []
        return [*self.overrides().list()]

    @property
    def rules(self) -> list[Rule]:
        """All rules, each once."""
        return [bound.rule for _, bound in self._bounds()]

    def meant(self, rule: str, quota: str | None) -> list[Rule]:
        """Return the rules that an override is for. Raises OverrideError if one of them cannot have the quota."""
        return rules_for(rule, self.rules, quota, algorithm=self.settings.algorithm)

    def sealed(self, text: str) -> str:
        """Return the text of an identity in the form that the store gets."""
        secret = self.settings.secret
        return text if secret is None or type(text) is Digested else Seal(secret).text(text)

    def applied(self, held: Iterable[Override]) -> Applied:
        """Return these overrides as a gate of the application applies them."""
        return Applied(held, seal=self.sealed)

    def followed(self) -> Applied:
        """Return the overrides that hold. If they cannot be read, warn and return none."""
        try:
            return self.applied(self.live)
        except OverrideError as error:  # the processes go on with a set that no command knows
            says = f"warning: {error}; the last good overrides may hold instead of these rules"
            console(stderr=True).print(plain(says, "yellow"))
            return self.applied(())

    def keys(self, name: str | None) -> list[tuple[str, KeySpec]]:
        """The rules and their keys: all, or those that a person means by this name of a rule or a ban."""
        return [
            (bound.rule.name, gate.key_of(bound))
            for gate, bound in self._bounds()
            if name in (None, EVERY_RULE)
            or name in {bound.rule.name, *names_of(bound)}
            or (bound.rule.ban is not None and name == bound.rule.ban.name)
        ]

    @cached_property
    def known(self) -> dict[str, tuple[Known, ...]]:
        """The terms of all rules, by the id of the rule. Several tiers may share an id."""
        return _by_id(self._all_known())

    def ids(self, names: set[str]) -> set[str]:
        """Return the ids of the budgets that a person means by these names."""
        known = [(rule_id, name) for rule_id, known in self.known.items() for each in known for name in each.names]
        return {rule_id for rule_id, name in known if name in names}

    def steered(
        self, words: Sequence[str], text: str, applied: Applied
    ) -> tuple[dict[str, tuple[Known, ...]], tuple[Override, ...]]:
        """Return the terms with the overrides that hold for one identity, and those."""
        who = plain_text(self.identity(words)) if words else text
        found: dict[Override, None] = {}

        def of(rule: str, tier: str | None) -> Held | None:
            held = applied.of(rule, who, tier)
            found.update({} if held is None else {held.override: None})
            return held

        return _by_id(self._all_known(of)), tuple(found)

    @cached_property
    def computed(self) -> dict[str, str]:
        """The rules whose quota is a function of the request, by the first part of the ids of their budgets."""
        rules = [bound.rule for _, bound in self._bounds() if bound.terms is None]
        return {
            scope_text(rule.name if rule.scope is None else rule.scope): rule.name
            for rule in rules
            if not isinstance(rule.quota, Tiers)
        }

    def rule_of(self, rule_id: str) -> str | None:
        """Return the rule whose function makes the quota of this budget; None for other budgets."""
        return self.computed.get(rule_id.partition(":")[0])

    def owner(self, rule_id: str) -> str | None:
        """Return the rule or the view that alone knows the quota of a budget; None for other budgets."""
        return self.rule_of(rule_id) or view_of(rule_id)

    def why_unknown(self, rule_id: str) -> str:
        """Return why no command knows the quota of this budget."""
        rule, view = self.rule_of(rule_id), view_of(rule_id)
        if rule is not None:
            return f"The quota of the rule {rule} is a function of the request"
        if view is not None:
            return f"Only the view {view} knows its quota"
        endpoints = [each for limiting in self._limiters for each in limiting.endpoints]
        choosing = dict.fromkeys([each.endpoint.label for each in endpoints if each.chosen is not None])
        some = f" (chosen for each request by {', '.join(choosing)})" if choosing else ""
        return f"No rule of the application has this id: it is of an old quota, or in Django of a throttle class{some}"

    @cached_property
    def bans(self) -> dict[str, Ban]:
        """The bans of all rules, by name and by the name of each rule that has one."""
        rules = [bound.rule for _, bound in self._bounds()]
        return {name: rule.ban for rule in rules if rule.ban is not None for name in (rule.name, rule.ban.name)}

    @property
    def views(self) -> set[str]:
        """The views, as `view_of` names them: each may charge rules that are known only while it runs."""
        return {short_label(rules.endpoint.label) for limiting in self._limiters for rules in limiting.endpoints}

    def peek(self, checks: Iterable[tuple[Terms, str]]) -> tuple[Outcome, ...]:
        """Return the outcome of each pair of terms and an identity, at no cost. Charges nothing."""
        time = calendar_us(getattr(self.store, "clock", None))
        plan = Plan(tuple([Check(present((terms,), *time)[0], text, 0) for terms, text in checks]), charge=False)
        outcomes: tuple[Outcome, ...] = self.store.run(plan) if plan.checks else ()
        return outcomes

    def read(self, checks: Iterable[tuple[Terms, str]]) -> list[Outcome | None]:
        """Do the same, with None for a key that another program wrote."""
        checks = [*checks]
        try:
            return [*self.peek(checks)]
        except StoreError as error:
            if not is_foreign(error):
                raise
        return [None] if len(checks) == 1 else [found for each in checks for found in self.read([each])]

    def pages(self, text: str | None, seen: Callable[[float], object]) -> Iterator[KeyPage]:
        """Yield the budgets of an identity, or of all, a few keys at a time. `seen` gets the share scanned so far."""
        page = getattr(self.store, "page", None)
        if page is None:
            problem, expected = "this store cannot list budgets", "keep them in a redis:// store"
            raise ConfigurationError("store", self.store, problem=problem, expected=expected)
        position, total = None, 0
        while True:
            found = page(position, text)
            total = max(total, len(position.servers) if position else 1 + int(found.left))
            yield found
            position = found.following
            seen(1.0 if position is None else max(0.0, 1 - found.left / total))
            if position is None:
                return

    def having(self, ids: set[str], what: str) -> Iterator[tuple[str, str]]:
        """Yield who has a budget of these ids, and its id, behind a progress bar. A scan may yield a budget twice."""
        with scanning(what) as seen:
            for page in self.pages(None, seen):
                yield from [each for each in page.budgets if each[1] in ids]

    def _bounds(self) -> Iterator[tuple[Gate | AsyncGate, Bound]]:
        done: set[int] = set()
        for limiting in self._limiters:
            for _, bounds, chosen in limiting.endpoints:
                for bound in (*bounds, *(chosen or ())):
                    if id(bound.rule) not in done:
                        done.add(id(bound.rule))
                        yield limiting.gate, bound

    def _all_known(self, of: Of | None = None) -> Iterator[Known]:
        for gate, bound in self._bounds():
            rule = bound.rule
            methods = (bound.methods or METHODS) - {"HEAD"} if rule.per_method else (None,)
            for tier, terms, held in _terms(rule, bound, gate.settings.algorithm, of=of):
                for method in sorted(methods, key=str):
                    for each in terms if method is None else of_method(terms, str(method)):
                        label, shadow = "" if tier is None else f"({tier})", "(shadow)" if each.shadow else ""
                        override = "" if held is None else "(override)"
                        name = " ".join(filter(None, (each.name, label, method, shadow, override)))
                        yield Known(name, each, names=(rule.name, each.name), tier=tier, held=held)
                for once in {each.once for each in terms if each.once is not None}:
                    yield Known(once.name, once, names=(rule.name, once.name), tier=tier)
            if rule.ban is not None:
                yield Known(f"ban {rule.ban.name}", rule.ban.terms, rule.ban, names=(rule.ban.name,))


def _terms(
    rule: Rule, bound: Bound, algorithm: str, *, of: Of | None
) -> Iterator[tuple[str | None, tuple[Terms, ...], Action | None]]:
    """Yield the terms that are known before a request, each with the tier that has them, if any, and with the override
    that holds instead: those that are enforced for some identity, and those that are in shadow for some.
    """
    for tier, quotas in bound.written(algorithm):
        held, terms, share = None if of is None else of(rule.name, tier), quotas, bound.share
        if held is not None:
            terms, share = held.apply(rule, terms, share=share, make=partial(terms_with, algorithm=algorithm))
        action = None if held is None else held.override.action
        if terms is not None and share > 0:
            yield tier, terms, action
        if terms is not None and share < EVERYBODY:
            yield tier, shadows(terms), action


def _by_id(found: Iterable[Known]) -> dict[str, tuple[Known, ...]]:
    by_id: dict[str, dict[tuple[str, int], Known]] = {}
    for known in found:
        by_id.setdefault(known.terms.rule_id, {}).setdefault((known.rule, known.terms.limit), known)
    return {rule_id: tuple(each.values()) for rule_id, each in by_id.items()}


@contextmanager
def opened(application: Application) -> Generator[list[Budgets]]:
    """Open the budgets of an application on its servers. Limiters that share their budgets are opened as one."""
    places: dict[tuple[Hashable, ...], list[Limiting]] = {}
    for limiting in application.limiters:
        places.setdefault(_place(limiting), []).append(limiting)
    with asyncio.Runner() as runner, ExitStack() as stack:
        yield [stack.enter_context(_opened(limiters, runner)) for limiters in places.values()]


def one_place(places: Sequence[Budgets]) -> Budgets:
    """Return the only one of these places. Raises UsageError if there are several."""
    if len(places) > 1:
        raise click.UsageError("the limiters of this application use several stores; give the TOML file of one")
    return places[0]


def _place(limiting: Limiting) -> tuple[Hashable, ...]:
    """Return what is the same for limiters that share their budgets: the keys of one are those of the other."""
    settings, given = limiting.settings, limiting.settings.store
    store = given if isinstance(given, str) else id(given)
    return store, settings.prefix, settings.ipv6_prefix, settings.ipv4_prefix, limiting.gate.limiter.text("")


@contextmanager
def _opened(limiters: Sequence[Limiting], runner: asyncio.Runner) -> Generator[Budgets]:
    """Open the budgets of limiters that share them. A store object of the application stays open."""
    limiting = limiters[0]
    settings = limiting.settings
    given = settings.store
    if isinstance(given, (MemoryStore, AsyncMemoryStore)) or (isinstance(given, str) and given.startswith("memory:")):
        problem = "each process of the application keeps its budgets in its own memory, where no command sees them"
        raise ConfigurationError("store", given, problem=problem, expected="use embedded:// or redis://")
    if isinstance(given, str):
        with closing(open_store(given, prefix=settings.prefix, clock=settings.clock, deadline=DEADLINE)) as store:
            yield Budgets(limiters, store)
    else:
        yield Budgets(limiters, given if isinstance(limiting.gate.limiter, Limiter) else Blocking(given, runner))


def forget_everyone(
    shell: Shell, limiters: Iterable[Budgets], meant: Callable[[Budgets], set[str]], *, what: str
) -> None:
    """Forget the budgets of these ids of all identities, after a question: a few keys at a time, so that the server
    goes on serving.
    """
    shell.confirm(f"Forget {what} of everyone?")
    forgotten = 0
    for budgets in limiters:
        for who, rule_id in budgets.having(meant(budgets), "forgetting budgets"):
            budgets.store.forget(rule_id, Digested(who))
            forgotten += 1
    shell.tell({"forgotten": forgotten}, f"Forgot {what}: {count(forgotten, 'record')}.")


def check_name(kind: str, given: str, names: Collection[str], *, part_of: Collection[str] = ()) -> None:
    """Raise UsageError if none has this name. `part_of` are the rules with a quota or a ban that has it."""
    if given not in names:
        part = f", but a quota or a ban of the rule {', '.join(sorted(part_of))}" if part_of else ""
        listed = f"the {kind}s are {', '.join(sorted(names))}" if names else f"the application has no {kind}s"
        raise click.UsageError(f"no {kind} {given!r}{part}; {listed}")


def check_rule(limiters: Iterable[Budgets], rule: str) -> None:
    """Raise UsageError if no rule of these limiters has this name."""
    names = {name for budgets in limiters for known in budgets.known.values() for each in known for name in each.names}
    check_name("rule", rule, names.union(*[budgets.computed.values() for budgets in limiters]))


def check_tier(limiters: Iterable[Budgets], tier: str) -> None:
    """Raise UsageError if no rule of these limiters has this tier."""
    known = [each for budgets in limiters for known in budgets.known.values() for each in known]
    check_name("tier", tier, {each.tier for each in known if each.tier})


def of_functions(key: KeySpec, words: Sequence[str]) -> dict[str, str]:
    """Return the words of a typed identity that a function in a key gives as text: typed, and as they are typed then.

    >>> of_functions(("ip", len), ["ip:203.0.113.7", "user:bob"])
    {'user:bob': 'text:bob'}
    """
    parts = key if isinstance(key, tuple) else (key,)
    pairs = zip(parts, words, strict=True) if len(parts) == len(words) else ()
    return {word: NAMED.sub("text:", word) for part, word in pairs if callable(part) and NAMED.match(word)}


def warn_of_mismatch(
    places: Iterable[Budgets], words: Sequence[str], rule: str | None = None, *, lists: bool = False, fails: str = ""
) -> None:
    """Warn on stderr if no key of the rules, or of the rule with this name, is known to give the typed identity or
    pattern. With `lists`, the keys of the settings count too. With `fails`, what no key can give is an error.

    Else it is no error, because a charge inside a view may have any key, and a function may return any identity.
    """
    named = [(budgets, *each) for budgets in places if words for each in budgets.keys(rule)]
    keys = named + [(budgets, "", key) for budgets in places if lists for key in budgets.own_keys]
    fits = [(name, key) for budgets, name, key in keys if budgets.can_be(key, words)]
    if not keys or not all([any(map(callable, parts_of(key))) for _, key in fits]):
        return
    doubts = dict[str, dict[str, None]]()  # what is said, and of which rules
    for name, key in fits:
        forms = [f"{text} for text, {word} for a tuple" for word, text in of_functions(key, words).items()]
        kind = f"{'has' if isinstance(key, tuple) else 'is'} a function ({key_text(key)})"
        if forms:
            doubts.setdefault(f"{kind}: give what it returns: {', '.join(forms)}", {})[name] = None
    problems = [f"the key of {', '.join(names)} {says}" for says, names in doubts.items()]
    if not fits:
        every = rule in (None, EVERY_RULE)
        which = "no rule of this application" if every else f"no rule with the name or the ban {rule!r}"
        listed = ", ".join(sorted({key_text(key) for _, _, key in keys}))
        problems = [f"{which} counts by such an identity as {' '.join(words)}; the keys are {listed}"]
        if fails:
            raise click.UsageError(f"{problems[0]}, {fails}")
    for problem in problems:
        console(stderr=True).print(plain(f"warning: {problem}", "yellow"))


def takes_identity(command: Command) -> Command:
    """Add the arguments that name an identity, for `identity_text`."""
    text = "A digest, as top and bans show it, instead of an identity."
    command = click.option("--digest", "name", metavar="DIGEST", help=text)(command)
    return click.argument("identity", nargs=-1)(command)


def identity_text(budgets: Budgets, words: tuple[str, ...], name: str | None) -> str:
    """Return the text of the typed identity, or the digest that was typed instead."""
    if bool(words) is (name is not None):
        raise click.UsageError("give either an identity such as user:alice, or --digest")
    if name is None:
        return budgets.text(words)
    if len(name) != len(digest("")) or not name.replace("-", "a").replace("_", "a").isalnum() or not name.isascii():
        raise click.UsageError(f"digest {name!r}: it has 22 letters, digits, - or _, as top and bans show it")
    return Digested(name)
