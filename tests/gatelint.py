"""Finds text that reaches a widget without having passed the gate, by reading the program.

A text is safe if it is written in the source, a number, what the gate returns, or put together from such: an
expression is followed through names, attributes and functions of the program to what it is made of. Where that
cannot be seen, it is a finding: call `clean` there, which costs nothing where there is nothing to do.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TypeVar

T = TypeVar("T", bound=ast.AST)
T2 = TypeVar("T2")

GATE = frozenset({"clean", "clean_line", "clean_field", "inert"})
"""What the gate is called."""

NUMBERS = frozenset({"len", "int", "float", "round", "sum", "abs", "cell_len", "ord", "bool", "chr_width"})
PASSED_ON = frozenset(
    {"str", "list", "tuple", "sorted", "reversed", "enumerate", "zip", "dict", "set", "max", "min"}
    | {"tr", "tr_n", "tr_later"}  # translations are texts of ours
)
"""Functions as safe as their arguments."""
METHODS = frozenset(
    {
        "append",
        "capitalize",
        "casefold",
        "center",
        "copy",
        "expandtabs",
        "first_line",
        "format",
        "get",
        "isoformat",
        "items",
        "join",
        "keys",
        "ljust",
        "lower",
        "lstrip",
        "pad_left",
        "partition",
        "plain",
        "pop",
        "removeprefix",
        "removesuffix",
        "replace",
        "right_crop",
        "rjust",
        "rpartition",
        "rstrip",
        "split",
        "splitlines",
        "strftime",
        "strip",
        "stylize",
        "stylize_before",
        "title",
        "truncate",
        "upper",
        "values",
        "zfill",
    }
)
"""Methods as safe as their object and their arguments."""
SAFE_TYPES = frozenset({"int", "float", "bool", "None", "Content", "Option", "date", "datetime", "timedelta"})

CONTENT = frozenset({"Content", "assemble", "styled", "Text", "Option", "from_markup"})
"""What shows its arguments, which is judged where it stands."""
WIDGETS: Mapping[str, tuple[int, ...]] = {
    "Static": (0,),
    "Label": (0,),
    "Tooltip": (0,),
    "Markdown": (0,),
    "Content": (0,),
    "Text": (0,),
    "Option": (0,),
    "Button": (0,),
    "Checkbox": (0,),
    "Input": (0,),
    "Field": (0,),
    "TextArea": (0,),
    "Area": (0,),
    "SystemCommand": (0, 1),
    "Hit": (1, 2),
    "DiscoveryHit": (0, 1),
    "notify": (0,),
    "load_text": (0,),
    "write_line": (0,),
    "write_lines": (0,),
    "set_options": (0,),
    "set_label": (0,),
    "styled": (0,),
    "from_text": (0,),
}
"""What shows its arguments at these places."""
ALL_SHOWN = frozenset({"assemble", "add_row", "add_column", "add_columns"})
"""What shows all of its arguments; of a pair, the first."""
UPDATES = frozenset({"update", "set", "grow"})
"""Methods of widgets that show their argument; those of dictionaries and sets are left out by what they are given."""
KEYWORDS = frozenset({"title", "label", "tooltip", "placeholder", "content", "message", "text", "prompt"})
"""Arguments of the above that are shown, by name."""
ATTRIBUTES = frozenset({"border_title", "border_subtitle", "tooltip", "placeholder", "sub_title"})
"""Attributes that are shown."""


@dataclass
class Program:
    """All functions, names and attributes of the modules that were read, by their bare names."""

    functions: dict[str, list[ast.FunctionDef | ast.AsyncFunctionDef]] = field(
        default_factory=lambda: defaultdict(list)
    )
    values: dict[str, list[ast.expr]] = field(default_factory=lambda: defaultdict(list))
    """What module and class level names, and attributes of `self`, are given."""
    types: dict[str, list[ast.expr]] = field(default_factory=lambda: defaultdict(list))
    """The annotations of fields and attributes."""
    modules: dict[ast.AST, str] = field(default_factory=dict)
    imports: dict[tuple[ast.AST, str], str] = field(default_factory=dict)
    """The module that a name comes from, by the module that uses it."""
    fields: dict[str, list[ast.AnnAssign]] = field(default_factory=lambda: defaultdict(list))
    classes: dict[str, list[ast.ClassDef]] = field(default_factory=lambda: defaultdict(list))
    calls: dict[str, list[ast.Call]] = field(default_factory=lambda: defaultdict(list))
    owner: dict[ast.AST, ast.AST] = field(default_factory=dict)
    """The function that a node is in."""
    holder: dict[ast.AST, ast.ClassDef] = field(default_factory=dict)
    """The class that a method or field stands in."""
    _known: dict[tuple[str, str], bool] = field(default_factory=dict)

    def read(self, name: str, tree: ast.Module) -> None:
        """Take a module in."""
        self.modules[tree] = name
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and node.module:
                for alias in node.names:
                    self.imports[tree, alias.asname or alias.name] = node.module.split(".")[-1]
        self._walk(tree, tree)

    def _walk(self, node: ast.AST, scope: ast.AST) -> None:
        for child in ast.iter_child_nodes(node):
            self.owner[child] = scope
            inner = scope
            match child:
                case ast.FunctionDef() | ast.AsyncFunctionDef():
                    self.functions[child.name].append(child)
                    inner = child
                case ast.ClassDef(name=name, body=body):
                    self.classes[name].append(child)
                    self.holder |= dict.fromkeys(body, child)
                case ast.Call(func=func):
                    self.calls[name_of(func)].append(child)
                case ast.Assign(targets=targets, value=value):
                    for target in targets:
                        self._given(target, value, scope)
                case ast.AnnAssign(target=target, annotation=annotation, value=value):
                    if name := _attribute(target, scope):
                        self.types[name].append(annotation)
                        if child in self.holder:
                            self.fields[name].append(child)
                    if value is not None:
                        self._given(target, value, scope)
                case ast.AugAssign(target=target, value=value):
                    self._given(target, value, scope)
                case _:
                    pass
            self._walk(child, inner)

    def _given(self, target: ast.expr, value: ast.expr, scope: ast.AST) -> None:
        if isinstance(target, ast.Tuple):
            pairs = zip(target.elts, value.elts, strict=False) if isinstance(value, ast.Tuple) else ()
            for one, part in pairs or [(one, value) for one in target.elts]:
                self._given(one, part, scope)
        elif name := _attribute(target, scope):
            self.values[name].append(value)

    # --- judging ---

    def is_safe(self, node: ast.expr | None) -> bool:
        """True if an expression can only be text of ours, a number, or cleaned."""
        match node:
            case None | ast.Constant() | ast.Compare():
                return True
            case ast.JoinedStr(values=parts):
                return all(map(self.is_safe, parts))
            case ast.FormattedValue(value=value, format_spec=spec):
                return _formats_numbers(spec) or self.is_safe(value)
            case ast.IfExp(body=body, orelse=other):
                return self.is_safe(body) and self.is_safe(other)
            case ast.BoolOp(values=parts) | ast.Tuple(elts=parts) | ast.List(elts=parts) | ast.Set(elts=parts):
                return all(map(self.is_safe, parts))
            case ast.Dict(values=parts):
                return all(map(self.is_safe, parts))
            case ast.BinOp(left=left, right=right):
                return self.is_safe(left) and self.is_safe(right)
            case ast.UnaryOp(operand=value) | ast.NamedExpr(value=value) | ast.Await(value=value):
                return self.is_safe(value)
            case ast.Starred(value=value) | ast.Subscript(value=value):
                return self.is_safe(value)
            case ast.ListComp(elt=value) | ast.GeneratorExp(elt=value) | ast.SetComp(elt=value):
                return self.is_safe(value)
            case ast.DictComp(value=value):
                return self.is_safe(value)
            case ast.Call():
                return self._is_safe_call(node)
            case ast.Name(id=name):
                return self._is_safe_name(node, name)
            case ast.Attribute(attr="cell_length" | "width" | "height"):
                return True
            case ast.Attribute(value=value, attr=name):
                if (of := self._class_of(value)) is not None:
                    return self._is_safe_member(of, name)
                return self._is_safe_attribute(name)
            case _:
                return False

    def _is_safe_call(self, call: ast.Call) -> bool:
        name = name_of(call.func)
        parts = [*call.args, *(word.value for word in call.keywords)]
        if name in GATE or name in NUMBERS or name in CONTENT:
            return True
        if isinstance(call.func, ast.Name) and name in PASSED_ON:
            return all(map(self.is_safe, parts))
        match call.func:
            case ast.Attribute(value=value) if name in METHODS and all(map(self.is_safe, [value, *parts])):
                return True
            case _:
                pass
        is_free = isinstance(call.func, ast.Name) or self._is_module(call.func)
        meant = [one for one in self.functions[name] if (one in self.holder) != is_free]
        if is_free:
            meant = self._meant(meant, name, call)
        elif isinstance(call.func, ast.Attribute) and (of := self._class_of(call.func.value)) is not None:
            family = self._family(of)
            meant = [one for one in meant if self.holder[one] in family]
        key = ("function", " ".join(str(id(one)) for one in meant))
        return bool(meant) and self._once(key, lambda: all(map(self._returns_safe, meant)))

    def _module(self, node: ast.AST) -> ast.AST:
        while node in self.owner:
            node = self.owner[node]
        return node

    def _meant(self, found: list[T], name: str, node: ast.AST) -> list[T]:
        """Of things of one name, those of the module that uses it, else those that it imports, else all."""
        here = self._module(node)
        source = self.imports.get((here, name))
        own = [one for one in found if self._module(one) is here]
        return own or [one for one in found if self.modules.get(self._module(one)) == source] or found

    def _is_module(self, function: ast.expr) -> bool:
        """True for what is called by the name of a module of the program: `words.count`."""
        return isinstance(function, ast.Attribute) and name_of(function.value) in self.modules.values()

    def _returns_safe(self, function: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
        if self._is_safe_type(function.returns):
            return True
        own = (node for node in ast.walk(function) if self.owner.get(node) is function)
        given = [node.value for node in own if isinstance(node, ast.Return | ast.Yield)]
        return bool(given) and all(map(self.is_safe, given))

    def _is_safe_attribute(self, name: str) -> bool:
        def judged() -> bool:
            types, values, properties = self.types[name], self.values[name], self.functions[name]
            if not (types or values or properties):
                return False
            if types and all(map(self._is_safe_type, types)) and not properties:
                return True
            return (
                all(self._is_safe_field(one, name) for one in self.fields[name])
                and all(map(self.is_safe, values))
                and all(map(self._returns_safe, properties))
            )

        return self._once(("attribute", name), judged)

    def _class_of(self, value: ast.expr) -> ast.ClassDef | None:
        """The class of `self`, of an argument that says so, or of what runs through a list of calls of the class."""
        if isinstance(value, ast.Attribute):
            home = self._home(value)
            made = [one for one in self.values.get(value.attr, []) if home and self._home(one) is home]
            match made:
                case [ast.Call(func=func)]:
                    return self._only_class(name_of(func), value)
                case _:
                    return None
        if not isinstance(value, ast.Name):
            return None
        scope = self.owner.get(value)
        while isinstance(scope, ast.FunctionDef | ast.AsyncFunctionDef):
            arguments = [*scope.args.posonlyargs, *scope.args.args, *scope.args.kwonlyargs]
            for at, one in enumerate(arguments):
                if one.arg == value.id:
                    if at == 0 and one.annotation is None:
                        return self.holder.get(scope)
                    return self._only_class(name_of(one.annotation) if one.annotation else "", value)
            for node in ast.walk(scope):
                if isinstance(node, ast.For | ast.comprehension) and name_of(node.target) == value.id:
                    if (of := self._element_class(node.iter, scope)) is not None:
                        return of
                    made = self.values.get(name_of(node.iter), [])
                    rows = [row for one in made if isinstance(one, ast.Tuple | ast.List) for row in one.elts]
                    names = {name_of(row.func) for row in rows if isinstance(row, ast.Call)}
                    if len(names) == 1:
                        return self._only_class(names.pop(), value)
            scope = self.owner.get(scope)
        return None

    def _element_class(self, rows: ast.expr, function: ast.FunctionDef | ast.AsyncFunctionDef) -> ast.ClassDef | None:
        """What an argument, or an attribute, says that it is a list of."""
        arguments = [*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs]
        said = [one.annotation for one in arguments if isinstance(rows, ast.Name) and one.arg == rows.id]
        said += self.types.get(name_of(rows), []) if isinstance(rows, ast.Attribute) else []
        named = [one.slice for one in said if isinstance(one, ast.Subscript)]
        return self._only_class(name_of(named[0]), rows) if named else None

    def is_collection(self, value: ast.expr) -> bool:
        """True for an attribute or a name that is said to be a dictionary or a set."""
        said = self.types.get(name_of(value), []) + self.values.get(name_of(value), [])
        names = {name_of(one.value) for one in said if isinstance(one, ast.Subscript)}
        names |= {name_of(one.func) for one in said if isinstance(one, ast.Call)}
        return bool(names & {"dict", "set", "Counter", "defaultdict"})

    def _only_class(self, name: str, node: ast.AST) -> ast.ClassDef | None:
        found = self._meant(self.classes.get(name, []), name, node)
        return found[0] if len(found) == 1 else None

    def _is_safe_member(self, of: ast.ClassDef, name: str) -> bool:
        """The same for an attribute of an object whose class is known; its bases and children count as the class."""
        family = self._family(of)

        def judged() -> bool:
            methods = [one for one in self.functions.get(name, []) if self.holder.get(one) in family]
            fields = [one for one in self.fields.get(name, []) if self.holder.get(one) in family]
            given = [value for value in self.values.get(name, []) if self._home(value) in family]
            types = [one for one in self.types.get(name, []) if self._home(one) in family]
            if types and all(map(self._is_safe_type, types)):
                return True
            return (
                bool(methods or fields or given)
                and all(self._is_safe_field(one, name) for one in fields)
                and all(map(self.is_safe, given))
                and all(map(self._returns_safe, methods))
            )

        return self._once(("member", f"{of.name} {name}"), judged)

    def _family(self, of: ast.ClassDef) -> list[ast.ClassDef]:
        family = [of, *self._children(of.name)]
        for one in family:
            bases = (self._only_class(name_of(base), one) for base in one.bases)
            family += [base for base in bases if base and base not in family]
        return family

    def _home(self, node: ast.AST) -> ast.ClassDef | None:
        """The class that a node stands in."""
        scope: ast.AST | None = node
        while scope is not None:
            if scope in self.holder:
                return self.holder[scope]
            scope = self.owner.get(scope)
        return None

    # --- from where a function is called, or a class ---

    def _is_given_safe(self, function: ast.FunctionDef | ast.AsyncFunctionDef, argument: ast.arg) -> bool:
        """True if each call of a function of this name gives a safe text for an argument, as far as can be seen."""
        holder = self.holder.get(function)
        is_bound = holder is not None and not any(name_of(one) == "staticmethod" for one in function.decorator_list)
        name = holder.name if holder and function.name == "__init__" else function.name
        calls = list(self.calls[name])
        if holder and function.name == "__init__":
            calls += [call for child in self._children(holder.name) for call in _super_inits(child)]
        places = [*function.args.posonlyargs, *function.args.args][is_bound:]
        default = _defaults(function).get(argument.arg)
        at = places.index(argument) if argument in places else None
        key = f"{id(function)} {argument.arg}"
        return bool(calls) and self._once(
            ("argument", key),
            lambda: self.is_safe(default) and all(self._gives_safe(call, argument.arg, at) for call in calls),
        )

    def _is_safe_field(self, one: ast.AnnAssign, name: str) -> bool:
        """The same for a field of a class that is made by its fields."""
        if self._is_safe_type(one.annotation):
            return True
        holder = self.holder.get(one)
        calls = self.calls[holder.name] if holder else []
        if holder is None or not calls:
            return False
        names = [_attribute(field.target, holder) for field in holder.body if isinstance(field, ast.AnnAssign)]
        at = names.index(name)
        return self.is_safe(one.value) and all(
            self._gives_safe(call, name, at) for call in [*calls, *self.calls["replace"]]
        )

    def _gives_safe(self, call: ast.Call, name: str, at: int | None) -> bool:
        if any(word.arg is None for word in call.keywords) and name_of(call.func) != "replace":
            return False
        for word in call.keywords:
            if word.arg == name:
                return self.is_safe(word.value)
        before = call.args[: at + 1] if at is not None and name_of(call.func) != "replace" else []
        if any(isinstance(one, ast.Starred) for one in before):
            return all(map(self.is_safe, call.args))
        return self.is_safe(before[at]) if at is not None and at < len(before) else True

    def _children(self, name: str) -> list[ast.ClassDef]:
        own = [one for classes in self.classes.values() for one in classes]
        return [one for one in own if any(name_of(base) == name for base in one.bases)]

    # --- names ---

    def _is_safe_name(self, node: ast.expr, name: str) -> bool:
        scope = self.owner.get(node)
        while isinstance(scope, ast.FunctionDef | ast.AsyncFunctionDef):
            found = list(self._bound_in(scope, name))
            if found:
                key = ("local", f"{id(scope)} {name}")
                return self._once(key, partial(_all, _call, found))
            scope = self.owner.get(scope)
        if scope is not None and (found := list(self._bound_in(scope, name))):
            return all(safe() for safe in found)
        given = [value for value in self.values.get(name, []) if isinstance(self.owner.get(value), ast.Module)]
        if given := self._meant(given, name, node):
            key = ("global", " ".join(str(id(one)) for one in given))
            return self._once(key, lambda: all(map(self.is_safe, given)))
        return self._is_safe_attribute(name)

    def _is_safe_argument(self, function: ast.FunctionDef | ast.AsyncFunctionDef, one: ast.arg) -> bool:
        return self._is_safe_type(one.annotation) or self._is_given_safe(function, one)

    def _bound_in(self, scope: ast.AST, name: str) -> Iterator[Callable[[], bool]]:
        """Return a judgment for each way in which a name gets its value within a function."""
        if isinstance(scope, ast.FunctionDef | ast.AsyncFunctionDef):
            arguments = scope.args
            own = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs, arguments.vararg, arguments.kwarg]
            for one in own:
                if one is not None and one.arg == name:
                    yield partial(self._is_safe_argument, scope, one)
        for node in ast.walk(scope):
            if isinstance(scope, ast.Module) and self.owner.get(node) is not scope:
                continue
            match node:
                case ast.Assign(targets=targets, value=value):
                    for target in targets:
                        yield from self._bound(target, value, name)
                case ast.AnnAssign(target=target, value=value) | ast.AugAssign(target=target, value=value):
                    yield from self._bound(target, value, name)
                case ast.NamedExpr(target=target, value=value):
                    yield from self._bound(target, value, name)
                case ast.For(target=target, iter=value) | ast.AsyncFor(target=target, iter=value):
                    yield from self._bound(target, value, name)
                case ast.comprehension(target=target, iter=value):
                    yield from self._bound(target, value, name)
                case ast.withitem(optional_vars=ast.expr() as target, context_expr=value):
                    yield from self._bound(target, value, name)
                case ast.MatchAs(name=bound) | ast.MatchStar(name=bound) | ast.ExceptHandler(name=bound):
                    if bound == name:
                        yield bool  # False: what a case or a handler binds comes from elsewhere
                case ast.Call(func=ast.Attribute(value=ast.Name(id=bound), attr="append" | "extend" | "insert")):
                    if bound == name:
                        yield partial(_all, self.is_safe, node.args)

    def _bound(self, target: ast.expr, value: ast.expr | None, name: str) -> Iterator[Callable[[], bool]]:
        match target:
            case ast.Name(id=bound) if bound == name:
                yield lambda: self.is_safe(value)
            case ast.Tuple(elts=targets) | ast.List(elts=targets):
                if isinstance(value, ast.Tuple) and len(value.elts) == len(targets):
                    for one, part in zip(targets, value.elts, strict=True):
                        yield from self._bound(one, part, name)
                elif isinstance(value, ast.Call) and name_of(value.func) == "enumerate" and len(targets) == 2:
                    yield from self._bound(targets[0], ast.Constant(0), name)
                    yield from self._bound(targets[1], value.args[0], name)
                else:
                    for one in targets:
                        yield from self._bound(one, value, name)
            case ast.Starred(value=inner):
                yield from self._bound(inner, value, name)
            case _:
                return

    def _is_safe_type(self, annotation: ast.expr | None) -> bool:
        match annotation:
            case ast.Constant(value=None):
                return True
            case ast.Constant(value=str(text)):
                return self._is_safe_type(ast.parse(text, mode="eval").body)
            case ast.Name(id=name) | ast.Attribute(attr=name):
                if name in SAFE_TYPES:
                    return True
                aliases = self.values[name]
                return bool(aliases) and all(_is_literal(one) for one in aliases)
            case ast.BinOp(left=left, op=ast.BitOr(), right=right):
                return self._is_safe_type(left) and self._is_safe_type(right)
            case ast.Subscript(value=value, slice=inner):
                if name_of(value) == "Literal":
                    return True
                return all(map(self._is_safe_type, inner.elts if isinstance(inner, ast.Tuple) else [inner]))
            case _:
                return False

    def _once(self, key: tuple[str, str], judge: Callable[[], bool]) -> bool:
        """Judge a name once; while it is being judged, it counts as safe: a cycle adds no text."""
        if key not in self._known:
            self._known[key] = True
            self._known[key] = judge()
        return self._known[key]


def findings(program: Program, tree: ast.Module) -> Iterator[str]:
    """Report what a module shows without the gate."""
    for node in ast.walk(tree):
        match node:
            case ast.Call():
                name = name_of(node.func)
                if name in UPDATES and isinstance(node.func, ast.Attribute) and program.is_collection(node.func.value):
                    continue
                for shown in _shown(node, name):
                    if not program.is_safe(shown):
                        yield f"{shown.lineno}: {name}() shows {ast.unparse(shown)}"
            case ast.Assign(targets=[ast.Attribute(attr=name)], value=value) if name in ATTRIBUTES:
                if not program.is_safe(value):
                    yield f"{node.lineno}: {name} shows {ast.unparse(value)}"


def _shown(call: ast.Call, name: str) -> Iterator[ast.expr]:
    """The arguments of a call that reach the screen."""
    if name in ALL_SHOWN:
        for one in call.args:
            yield _without_style(one)
    elif name in WIDGETS:
        places = WIDGETS[name]
        yield from (one for at, one in enumerate(call.args) if at in places)
    elif name in UPDATES and len(call.args) == 1 and isinstance(call.func, ast.Attribute):
        yield call.args[0]
    elif name == "from_markup":
        yield from call.args
        yield from (word.value for word in call.keywords)
    else:
        return
    yield from (word.value for word in call.keywords if word.arg in KEYWORDS)


def _without_style(part: ast.expr) -> ast.expr:
    match part:
        case ast.Tuple(elts=[text, _]):
            return text
        case _:
            return part


def name_of(node: ast.expr) -> str:
    """Return the last part of a dotted name, or nothing."""
    match node:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name
        case _:
            return ""


def _attribute(target: ast.expr, scope: ast.AST) -> str:
    """The name that others know a target by: an attribute's, or one at the level of a module or class."""
    match target:
        case ast.Attribute(attr=name):
            return name
        case ast.Name(id=name) if not isinstance(scope, ast.FunctionDef | ast.AsyncFunctionDef):
            return name
        case _:
            return ""


def _super_inits(one: ast.ClassDef) -> list[ast.Call]:
    """The calls of `super().__init__` in a class."""
    calls = (node for node in ast.walk(one) if isinstance(node, ast.Call))
    return [
        call
        for call in calls
        if isinstance(call.func, ast.Attribute)
        and call.func.attr == "__init__"
        and isinstance(call.func.value, ast.Call)
        and name_of(call.func.value.func) == "super"
    ]


def _defaults(function: ast.FunctionDef | ast.AsyncFunctionDef) -> dict[str, ast.expr | None]:
    """What arguments are where a call does not give them."""
    places = [one.arg for one in [*function.args.posonlyargs, *function.args.args]]
    own = function.args.defaults
    named = {one.arg: value for one, value in zip(function.args.kwonlyargs, function.args.kw_defaults, strict=True)}
    return dict(zip(places[len(places) - len(own) :], own, strict=True)) | named


def _formats_numbers(spec: ast.expr | None) -> bool:
    """True for a format that text does not have: it would fail."""
    match spec:
        case ast.JoinedStr(values=[*_, ast.Constant(value=str(text))]):
            return text[-1:] in set("dfgeE%n,")
        case _:
            return False


def _all(is_so: Callable[[T2], bool], things: Iterable[T2]) -> bool:
    return all(map(is_so, things))


def _call(judge: Callable[[], bool]) -> bool:
    return judge()


def _is_literal(value: ast.expr) -> bool:
    match value:
        case ast.Subscript(value=of):
            return name_of(of) == "Literal"
        case ast.BinOp(left=left, right=right):
            return _is_literal(left) and _is_literal(right)
        case _:
            return False


def program_of(paths: Iterable[Path]) -> tuple[Program, dict[Path, ast.Module]]:
    """Read modules."""
    program, trees = Program(), {}
    for path in paths:
        trees[path] = ast.parse(path.read_text(encoding="utf-8"))
        program.read(path.stem, trees[path])
    return program, trees
