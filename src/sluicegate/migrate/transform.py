"""The one transformer that applies the tables to a file."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from itertools import takewhile
from symtable import symtable
from typing import Any, Final

import libcst as cst
from libcst import matchers as m
from libcst.metadata import MetadataWrapper, PositionProvider, QualifiedNameProvider, QualifiedNameSource

from sluicegate.migrate.peers import CONFIG, CONSTRUCTS, DECISION, INSIDE, MIDDLEWARES, SETTINGS, note_of
from sluicegate.migrate.project import REFUSALS, ROOTS, Project, bound, canonical, imports, roots_of, values, words
from sluicegate.migrate.rewrite import FIRST, Construct, Expression, Left, Site, code, constant, last, source

MARK: Final = "# sluicegate: "
"""The start of the comment at a place that a person has to look at."""
ADVICE: Final = "note: "
"""The start of a text about what differs. Without what another text asks for, the application does not start."""

_DJANGO: Final = ("django_ratelimit", "rest_framework")


def rewrite(text: bytes, project: Project) -> bytes:
    """Return the text of a file as it is with sluicegate. Raises SyntaxError or cst.ParserSyntaxError."""
    module = cst.parse_module(text)
    tree = ast.parse(text)
    names, before = imports(tree), words(module.code)
    theirs = {name for name, dotted in names.items() if roots_of(dotted)}
    taken = bound(symtable(module.code, "", "exec"), {*project.limiters, *theirs}) - theirs
    site = Site(project, {dotted: name for name, dotted in names.items()}, taken=taken, values=values(tree))
    rewriter = _Rewriter(site, module.code)
    made = MetadataWrapper(module, unsafe_skip_copy=True).visit(rewriter)
    after = words(made.code)
    new = {name: at for name, at in rewriter.site.wanted.items() if name in after and names.get(name) != ".".join(at)}
    gone = ((before & names.keys()) | theirs) - after | new.keys()  # what nothing uses, and what a new import is named
    text = made.visit(_Tidier(gone, new)).bytes
    text = _LINE.sub(lambda line: b"".join(line.group(1, 2, 3)) if line[2] else b"", text)
    return text.replace(_GONE.encode(), b"pass")


_GONE: Final = "__gone__"
"""A statement that is gone. Its line goes at the end, and the comments that are above it and on it stay."""
_LINE: Final = re.compile(rb"^([ \t]*)__gone__[ \t]*(#[^\r\n]*)?(\r?\n|\r|\Z)", re.MULTILINE)


class _Rewriter(cst.CSTTransformer):
    """Applies the tables. A note is kept by the node that stands in the tree now, because a conversion of a call may
    take the node out again, as that of a key takes `get_remote_address` out.
    """

    METADATA_DEPENDENCIES = (PositionProvider, QualifiedNameProvider)

    def __init__(self, site: Site, text: str) -> None:
        super().__init__()
        self.site = site
        self._words = words(text)
        self._lines = text.splitlines()
        self._nets = [(re.compile(net), note) for roots, net, note in _NETS if self._has(*roots)]
        self._names = self.site.names
        # Of the module, so of two at its top, and of each statement: a node → its comment.
        self._notes: list[dict[cst.CSTNode, str]] = [{}]
        self._uses: set[cst.CSTNode] = set()  # the names that are called, decorate or are a type
        self._blocks: set[cst.CSTNode] = set()  # what a `with` enters
        self._errors: set[cst.CSTNode] = set()  # what is read from the error of a refusal
        self._has_others = "SLUICEGATE" in site.taken or "*" in site.imports.values()

    # Names

    def _named(self, original: Expression, updated: Expression) -> Expression:
        every = self.get_metadata(QualifiedNameProvider, original, ())
        names = [each.name if each.source is QualifiedNameSource.IMPORT else source(original) for each in every]
        found = next(filter(None, map(self.site.project.named, names)), None)
        if found is None or (found.startswith("rest_framework.") and found not in CONSTRUCTS):
            return updated
        construct = CONSTRUCTS.get(found)
        if construct is not None and construct.options and original not in self._uses:
            self._notes[-1][updated] = _NOT_CALLED
            return updated
        if construct is None or construct.removed:
            self._notes[-1][updated] = note_of(found.rpartition(".")[2])
        elif construct.to:
            updated = code(self.site.use(construct.to))
        self._names[updated] = found
        return updated

    def leave_Name(self, original_node: cst.Name, updated_node: cst.Name) -> Expression:
        """Rewrite a name."""
        return self._named(original_node, updated_node)

    def leave_Attribute(self, original_node: cst.Attribute, updated_node: cst.Attribute) -> Expression:
        """Rewrite a dotted name, and what django-ratelimit writes on a request."""
        if original_node.value not in self._errors:
            self._notes[-1].pop(updated_node.value, None)  # the longer name says more
        if original_node in self._errors:
            self._notes[-1][updated_node] = DECISION if updated_node.attr.value == "limit" else _SENTENCE
            return updated_node
        if updated_node.attr.value == "limited" and (asked := self._would_refuse(original_node)):
            return asked
        return self._named(original_node, updated_node)

    def _would_refuse(self, asked: Expression) -> Expression | None:
        found = _ASKED.fullmatch(source(asked))
        if found is None or not self._has("django_ratelimit"):
            return None
        decision = self.site.use("sluicegate.django.decision")
        return code(f'getattr({decision}({found[1] or found[2]}), "would_refuse", False)')

    def leave_SimpleString(self, original_node: cst.SimpleString, updated_node: cst.SimpleString) -> Expression:
        """Rewrite a dotted name in the settings of Django."""
        text, quote = str(original_node.evaluated_value), original_node.quote
        to = CONSTRUCTS.get(canonical(text) or text, _NOTHING).to if text.startswith(_DJANGO) else ""
        return updated_node.with_changes(value=f"{quote}{to}{quote}") if to else updated_node

    def _has(self, *roots: str) -> bool:
        return not self.site.project.roots.isdisjoint(roots)

    # Calls

    def leave_Call(self, original_node: cst.Call, updated_node: cst.Call) -> Expression:
        """Rewrite a call. If it cannot be, it stays."""
        func = updated_node.func
        if last(func) == "getattr" and (asked := self._would_refuse(original_node)):
            return asked
        name = "" if isinstance(func, cst.Call) else self._names.get(func, "")  # not of a call: that is a decorator
        construct = CONSTRUCTS.get(name, _NOTHING)
        made: Expression = updated_node
        try:
            if original_node in self._blocks and construct.options:
                raise Left(INSIDE)
            if construct.quoted is not None:
                made = construct.quoted(updated_node, self.site)
            elif construct.options:
                made = self._called(updated_node, construct)
        except Left as reason:
            made = updated_node.with_changes(func=original_node.func)
            name, self._notes[-1][made] = "", str(reason)
        self._names[made] = name
        limited = {last(each.value) for each in updated_node.args} - self.site.project.functions.keys()
        if limited and isinstance(func, cst.Call) and self._names.get(func) == "flask_limiter.Limiter.limit":
            self._notes[-1][made] = _BOTH_HOLD
        return made

    def _called(self, call: cst.Call, construct: Construct) -> cst.Call:
        names = tuple(construct.options)
        # The first argument was the application in older versions.
        given = {each.keyword.value for each in call.args if each.keyword is not None}
        positional = ("app", *names[1:]) if names[0] == "key_func" in given else names
        values: dict[str, Expression] = {}
        commas = {}
        notes = self.site.notes
        notes.clear()
        needed = []
        for number, each in enumerate(call.args):
            if each.star or (each.keyword is None and number >= len(positional)):
                raise Left("these arguments cannot be read here; write them by hand")
            name = positional[number] if each.keyword is None else each.keyword.value
            option = construct.options.get(name)
            value = None if option is None else option.convert(each.value, self.site)
            if option is None:
                notes.append(f"{name}={' '.join(source(each.value).split())} is left out: {note_of(name)}")
            elif value is not None and option.to:
                values[option.to], commas[option.to] = value, each is not call.args[-1] and each.comma
        if construct.finish is not None:
            construct.finish(values, self.site)
        limits = construct.to == "sluicegate.Settings" and "default_limits" in values
        if (limits or construct.to in _IN_MIDDLEWARE) and not self.site.project.has_middleware:
            needed = ["add the middleware to the application: app.add_middleware(RateLimitMiddleware, settings=…)"]
            self.site.project.has_middleware = True  # said once, at the first limit
        made = call.with_changes(args=_arguments(call, values, commas))
        self._notes[-1][made] = "\n".join([*needed, *[f"{ADVICE}{each}" for each in notes]])
        return made

    # Settings

    def _configured(self, name: object, value: Expression, *, in_django: bool = False) -> tuple[str, Expression] | None:
        """Return the name and the value of a setting here. None for another name, and for a setting that stays."""
        option = (SETTINGS if in_django else CONFIG).get(str(name))
        if option is None or not self._has("flask_limiter", "django_ratelimit"):
            return None
        try:
            made = option.convert(value, self.site)
        except Left:
            return None
        return None if made is None else (option.to, made)

    def leave_Arg(self, original_node: cst.Arg, updated_node: cst.Arg) -> cst.Arg:
        """Rewrite a setting that is given by name, as to `app.config.update`."""
        name = "" if original_node.keyword is None else original_node.keyword.value
        found = self._configured(name, updated_node.value)
        return updated_node if found is None else updated_node.with_changes(keyword=cst.Name(found[0]), value=found[1])

    def leave_DictElement(self, original_node: cst.DictElement, updated_node: cst.DictElement) -> cst.DictElement:
        """Rewrite a setting in a mapping."""
        found = self._configured(constant(original_node.key), updated_node.value)
        return updated_node if found is None else updated_node.with_changes(key=code(f'"{found[0]}"'), value=found[1])

    def leave_Assign(self, original_node: Any, updated_node: Any) -> Any:
        """Rewrite a setting in its own statement, and the place of the limiter in the state of an application."""
        targets = [each.target for each in getattr(updated_node, "targets", [updated_node])]
        if len(targets) > 1 or updated_node.value is None:
            return updated_node
        target, value = source(targets[0]), updated_node.value
        return self._assigned(target, value) or self._followed(updated_node, target, value) or updated_node

    leave_AnnAssign = leave_Assign

    def _assigned(self, target: str, value: Expression) -> cst.BaseSmallStatement | None:
        if target.endswith(".state.limiter") and self._has("slowapi"):
            middleware = self.site.use("sluicegate.{web}.RateLimitMiddleware")
            return _statement(f"{target[:-14]}.add_middleware({middleware}, settings={source(value)})")
        mapping, bracket, key = target.rpartition("[")
        in_django = len(self._notes) == 2 and "django_ratelimit" in self.site.project.roots
        found = self._configured(key.strip("\"']"), value, in_django=in_django)
        if found is None:
            return None
        name, text = found[0], source(found[1])
        if not in_django:
            return _statement(f'{mapping}["{name}"] = {text}' if bracket else f"{name} = {text}")
        others = '**globals().get("SLUICEGATE", {}), ' * self._has_others  # also of a module whose names are imported
        self._has_others = True
        return _statement(f'SLUICEGATE = {{{others}"{name}": {text}}}')

    def _followed(self, statement: cst.BaseSmallStatement, target: str, value: Expression) -> Any:
        """Return an assignment and, after it, the statement that adds the middleware."""
        is_list = len(self._notes) == 2 and target == "MIDDLEWARE" and "MIDDLEWARE" not in source(value)
        if is_list and self._has(*_DJANGO) and self._words.isdisjoint(MIDDLEWARES):
            return cst.FlattenSentinel([statement, _statement(f'MIDDLEWARE = [*MIDDLEWARE, "{MIDDLEWARES[0]}"]')])
        makes_app = isinstance(value, cst.Call) and last(value.func) == "FastAPI"
        if makes_app and self._has("fastapi_limiter") and "RateLimitMiddleware" not in self._words:
            middleware = self.site.use("sluicegate.fastapi.RateLimitMiddleware")
            return cst.FlattenSentinel([statement, _statement(f"{target}.add_middleware({middleware})")])
        return None

    # Statements

    def leave_FunctionDef(self, original_node: cst.FunctionDef, updated_node: cst.FunctionDef) -> cst.FunctionDef:
        """Put `exempt` below the route: here it frees only what is below it. Keep the limit of a blueprint."""
        every = updated_node.decorators
        names = {each: self._names.get(each.decorator, "") for each in every}
        routes = [each for each in every if m.matches(each.decorator, _ROUTE)]
        end = every.index(routes[-1]) + 1 if routes else 0
        every = [*sorted(every[:end], key=lambda each: names[each].endswith(_FREES)), *every[end:]]
        owners = {source(each.decorator).partition("(")[0].split(".")[-2] for each in routes}
        limited = owners & (self.site.project.limited | self.site.project.inside)
        for at, each in enumerate(every):
            if names[each] == "flask_limiter.Limiter.exempt" and limited:
                kept = f"{self.site.use('sluicegate.flask.exempt')}(defaults_only=True)"
                every[at] = each.with_changes(decorator=code(kept))
        return updated_node.with_changes(decorators=every)

    def leave_Expr(self, original_node: cst.Expr, updated_node: cst.Expr) -> Any:
        """Remove a call that only gives an application what there is not here."""
        return cst.Expr(cst.Name(_GONE)) if self._is_removed(updated_node.value) else updated_node

    def leave_Element(self, original_node: cst.Element, updated_node: cst.Element) -> Any:
        """Remove a middleware from a list."""
        return cst.RemoveFromParent() if self._is_removed(updated_node.value) else updated_node

    def _is_removed(self, call: Expression) -> bool:
        given = [each.value for each in call.args] if isinstance(call, cst.Call) else []
        return any(CONSTRUCTS.get(self._names.get(each, ""), _NOTHING).removed for each in given)

    def on_visit(self, node: cst.CSTNode) -> bool:
        """Open the notes of a statement. Note what is called, decorates, is a type, is entered by a block, or is read
        from an error.
        """
        match node:
            case cst.Call(func=used) | cst.Decorator(decorator=used):
                self._uses.add(used)
            case cst.Annotation():
                self._uses.update(m.findall(node, _ANY))
            case cst.WithItem(item=item):
                self._blocks.add(item)  # there a limit is no decorator
            case cst.Assign(targets=[*_, cst.AssignTarget(cst.Name(name))]) | cst.AnnAssign(target=cst.Name(name)):
                self.site.scopes[:] = [name]
            case _ if hasattr(node, "leading_lines"):
                self.site.scopes[:] = [""] * isinstance(node, cst.SimpleStatementLine)
        if hasattr(node, "leading_lines"):
            self._notes.append({})
            self._errors.update(m.findall(node, _OF_ERROR) if self._handles(node) else ())
        return super().on_visit(node)

    def _handles(self, node: cst.CSTNode) -> bool:
        """True for what gets the error of a refusal."""
        if isinstance(node, cst.ExceptHandler):
            return node.type is not None and any(each in source(node.type) for each in REFUSALS)
        return isinstance(node, cst.FunctionDef) and node.name.value in self.site.project.handlers

    def on_leave(self, original_node: Any, updated_node: Any) -> Any:
        """Write the notes of a statement above it. Give each statement that is new its own line."""
        made: Any = super().on_leave(original_node, updated_node)
        if not hasattr(original_node, "leading_lines"):
            return made
        notes = self._notes.pop()
        there = set(m.findall(made, _ANY)) if notes else ()
        texts = [line for node, text in notes.items() if node in there for line in text.splitlines()]
        first = next(iter(getattr(original_node, "decorators", ())), original_node)
        place: Any = self.get_metadata(PositionProvider, first)
        above = (self._lines[at].strip() for at in reversed(range(place.start.line - 1)))
        known = [*takewhile(lambda line: line.startswith("#"), above)]
        if not any(each.startswith(MARK) for each in known):
            found = [(each, note) for net, note in self._nets for each in net.findall(_part(made))]
            texts = texts or [note or note_of(str(each)) for each, note in found]
        lines = [f"{MARK}{text}" for text in dict.fromkeys(texts)]
        if isinstance(original_node, (cst.SimpleStatementLine, cst.Decorator)):
            lines += (Counter(_comments(original_node)) - Counter(_comments(made))).elements()
        new = [cst.EmptyLine(comment=cst.Comment(text)) for text in lines if text not in known]
        made = made.with_changes(leading_lines=[*made.leading_lines, *new])
        if not isinstance(made, cst.SimpleStatementLine) or len(made.body) == len(getattr(original_node, "body", ())):
            return made
        more = [cst.SimpleStatementLine([each]) for each in made.body[1:]]
        return cst.FlattenSentinel([made.with_changes(body=made.body[:1]), *more])


class _Tidier(cst.CSTTransformer):
    """Removes and adds imports."""

    def __init__(self, gone: Collection[str], wanted: Mapping[str, tuple[str, str]]) -> None:
        super().__init__()
        self._gone = gone
        self._wanted = wanted

    def leave_Import(self, original_node: Any, updated_node: Any) -> Any:
        """Remove the names that are gone."""
        names = updated_node.names
        aliases: list[cst.ImportAlias] = [] if isinstance(names, cst.ImportStar) else [*names]
        left = [each for each in aliases if _local(each) not in self._gone]
        if len(left) == len(aliases):
            return updated_node
        if not left:
            return cst.Expr(cst.Name(_GONE))
        return updated_node.with_changes(names=[*left[:-1], left[-1].with_changes(comma=aliases[-1].comma)])

    leave_ImportFrom = leave_Import

    def leave_IndentedBlock(self, original_node: cst.IndentedBlock, updated_node: cst.IndentedBlock) -> Any:
        """Keep a block that is empty now."""
        if all(m.matches(each, _GONE_LINE) for each in updated_node.body):
            return updated_node.with_changes(body=[*updated_node.body, cst.parse_statement("pass")])
        return updated_node

    def leave_Module(self, original_node: cst.Module, updated_node: cst.Module) -> cst.Module:
        """Add the imports: below the first line that has lost one, or below all others."""
        lines = {at: imports(ast.parse(source(each).strip())) for at, each in enumerate(original_node.body)
                 if m.matches(each, _IMPORT)}  # fmt: skip
        start = -1 if original_node.get_docstring() is None else 0
        at = next((at for at, names in lines.items() if names.keys() & self._gone), max(lines, default=start))
        new = [cst.parse_statement(text) for text in _imports(self._wanted)]
        return updated_node.with_changes(body=[*updated_node.body[: at + 1], *new, *updated_node.body[at + 1 :]])


def _imports(wanted: Mapping[str, tuple[str, str]]) -> Iterator[str]:
    """Write the imports, one statement for each module."""
    modules: dict[str, list[str]] = {}
    for local, (module, name) in sorted(wanted.items(), key=lambda each: each[1]):
        modules.setdefault(module, []).append(name if name == local else f"{name} as {local}")
    return (f"from {module} import {', '.join(names)}" for module, names in modules.items())


def _arguments(call: cst.Call, values: Mapping[str, Expression], commas: Mapping[str, Any]) -> list[cst.Arg]:
    """Write the arguments of a call, with the commas and so the lines that they have."""
    names = sorted(values, key=lambda name: name != FIRST)
    called = code(f"f({', '.join('x' if name == FIRST else f'{name}=x' for name in names)})")
    opening = call.whitespace_before_args
    space = opening if isinstance(opening, cst.ParenthesizedWhitespace) else cst.SimpleWhitespace(" ")
    ends = [commas.get(name, cst.MaybeSentinel.DEFAULT) for name in names[:-1]]
    ends = [end if isinstance(end, cst.Comma) else cst.Comma(whitespace_after=space) for end in ends]
    ends += [each.comma for each in call.args[-1:]] or [cst.MaybeSentinel.DEFAULT]
    made = cst.ensure_type(called, cst.Call).args
    return [arg.with_changes(value=values[name], comma=end) for arg, name, end in zip(made, names, ends, strict=False)]


def _statement(text: str) -> cst.BaseSmallStatement:
    return cst.ensure_type(cst.parse_statement(text), cst.SimpleStatementLine).body[0]


def _part(statement: Any) -> str:
    """Return what a statement says by itself, without the comments above it and the statements inside it."""
    inside = (cst.EmptyLine, cst.IndentedBlock)
    own = [each for each in statement.children if not (isinstance(each, inside) or hasattr(each, "leading_lines"))]
    return "@" * isinstance(statement, cst.Decorator) + " ".join(map(source, own)).strip()


def _comments(node: cst.CSTNode) -> list[str]:
    return [each.value for each in m.findall(node, m.Comment()) if isinstance(each, cst.Comment)]


def _local(alias: cst.ImportAlias) -> str:
    """Return the name that an import binds."""
    return source(alias.asname.name if alias.asname is not None else alias.name).partition(".")[0]


_NOTHING: Final = Construct()
_ANY: Final = m.MatchIfTrue[cst.CSTNode](lambda _: True)
_BOTH_HOLD: Final = (
    f"{ADVICE}in a blueprint both hold here; there the limit of a view, or of a blueprint inside, replaces it"
)
_FREES: Final = ("Limiter.exempt", "skip_limiter")
_STAR: Final = "import each name by itself instead of *, and run the command again: names stay until then"
_SENTENCE: Final = f"{ADVICE}here it is a sentence for the client; {DECISION}"
_OF_ERROR: Final = m.Attribute(value=m.Name(), attr=m.Name(m.MatchRegex("limit|description|detail")))
_IN_MIDDLEWARE: Final = ("sluicegate.{web}.limit", "sluicegate.fastapi.RateLimit")
_NOT_CALLED: Final = "it stays where it is not called: write the call, or a limit as a function that returns one"
_UNKNOWN: Final = "if this is a limiter, write it by hand: nothing says what its owner is"
_SOFTLY: Final = 'write getattr(decision(request), "would_refuse", False), with decision of sluicegate.django'
_STARS: Final = rf"\bfrom ({'|'.join(ROOTS[:-1])}|rest_framework.throttling)(\.\w+)* import \*"
_OWNED: Final = (
    r"^(?:@\(?[^(]*|decorators\b[\s\S]*)(?<!csrf)\.(limit|shared_limit|exempt)\b"
    r"|\bgetattr\([\w.]*limiter\b|\.limit\([^()]*\)\(|\.shared_limit\("
)
_ERROR: Final = r"\b(e|err|error|ex|exc|exception)\.limit\b(?!\()|\bview_rate_limit\b"
_SET: Final = rf"(?<=[\"'])RATELIMIT_\w*|\bRATELIMIT_\w+(?=\s*[:=])|\b(?:{'|'.join([*SETTINGS, *CONFIG])})\b"
_NETS: Final = (  # where these packages are: a text that stays → what to do, or "" for a name of the tables
    (ROOTS, _STARS, _STAR),
    (("flask_limiter", "django_ratelimit", "slowapi"), _SET, ""),
    (("flask_limiter", "slowapi"), _OWNED, _UNKNOWN),
    (("flask_limiter", "slowapi"), _ERROR, DECISION),
    (("django_ratelimit",), r"\.limited\b|[\"']limited[\"']", _SOFTLY),
)
_VERB: Final = m.MatchRegex("route|get|post|put|patch|delete|head|options|api_route")
_ROUTE: Final = m.Call(func=m.Attribute(attr=m.Name(_VERB)))
_ASKED: Final = re.compile(r"((?:\w+\.)*request)\.limited|getattr\(((?:\w+\.)*request), ['\"]limited['\"](, \w+)?\)")
_GONE_LINE: Final = m.SimpleStatementLine([m.Expr(m.Name(_GONE))])
_IMPORT: Final = m.SimpleStatementLine([m.OneOf(m.Import(), m.ImportFrom()), m.ZeroOrMore()])
