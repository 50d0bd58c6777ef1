"""Who may import, read and render what: what keeps the packages apart and the terminal safe."""

import ast
import inspect
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import textual.widgets
from textual.app import App

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("chatapp", "sessions", "models")

ENVIRONMENT_READERS = {"chatapp/config.py", "models/hugepages.py"}
"""The only modules that may read the process environment: for the settings, and to hand it on to the engine."""

FORBIDDEN_MODULES = {"pickle", "marshal", "shelve", "dill", "diskcache"}
"""Loading their files runs code."""

MARKUP_BY_DEFAULT = {"Static", "Label", "OptionList", "Tooltip"}
"""Widgets that parse their text as markup unless told otherwise."""

MARKUP_HARMLESS = {"HelpPanel", "ListItem", "Welcome"}
"""They have the switch too, but show only child widgets or Textual's own text."""

LABELLED = {"Button", "Checkbox", "Collapsible", "RadioButton", "Tab", "TabPane"}
"""Widgets that always parse a label given as a string."""

PARSED_ATTRIBUTES = {"border_title", "border_subtitle", "tooltip"}
"""Attributes whose strings are parsed as markup."""

Lint = Callable[[ast.Module], Iterator[str]]


def sources(*folders: str) -> list[Path]:
    """Return all modules below the folders."""
    return sorted(path for folder in folders for path in (ROOT / folder).rglob("*.py"))


def problems(lint: Lint, *folders: str, allowed: frozenset[str] = frozenset()) -> list[str]:
    """Run a lint over the folders' modules, except the allowed ones."""
    found = []
    for path in sources(*folders):
        name = path.relative_to(ROOT).as_posix()
        if name not in allowed:
            found += [f"{name}:{problem}" for problem in lint(ast.parse(path.read_text(encoding="utf-8")))]
    return found


def name_of(node: ast.expr) -> str:
    """Return the last part of a dotted name, or nothing."""
    match node:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name
        case _:
            return ""


def code_loading(tree: ast.Module) -> Iterator[str]:
    """Report imports of modules that unpickle, and calls that run text."""
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=names):
                modules = [alias.name for alias in names]
            case ast.ImportFrom(module=str(module)):
                modules = [module]
            case ast.Call(func=ast.Name(id="eval" | "exec" as name)):
                yield f"{node.lineno}: calls {name}"
                continue
            case _:
                continue
        for module in modules:
            if module.split(".")[0] in FORBIDDEN_MODULES:
                yield f"{node.lineno}: imports {module}"


def environment_reads(tree: ast.Module) -> Iterator[str]:
    """Report reads of the process environment."""
    names = {"environ", "environb", "getenv", "getenvb"}
    for node in ast.walk(tree):
        match node:
            case ast.Attribute(value=ast.Name(id="os"), attr=name) if name in names:
                yield f"{node.lineno}: reads os.{name}"
            case ast.ImportFrom(module="os", names=imported):
                for alias in imported:
                    if alias.name in names:
                        yield f"{node.lineno}: imports os.{alias.name}"


def turns_markup_off(call: ast.Call) -> bool:
    """Return True when the call passes markup=False."""
    return any(
        word.arg == "markup" and isinstance(word.value, ast.Constant) and word.value.value is False
        for word in call.keywords
    )


def is_inert(value: ast.expr) -> bool:
    """Return True for text nobody else wrote, and for Content, which is not parsed."""
    if isinstance(value, ast.IfExp):
        return is_inert(value.body) and is_inert(value.orelse)
    return isinstance(value, ast.Constant) or (isinstance(value, ast.Call) and name_of(value.func) == "Content")


def parsing_classes(tree: ast.Module) -> set[str]:
    """Return the widgets that parse by default, with the module's own subclasses that leave it so."""
    names = set(MARKUP_BY_DEFAULT)
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef) and any(name_of(base) in names for base in node.bases):
            inits = [call for call in ast.walk(node) if isinstance(call, ast.Call) and name_of(call.func) == "__init__"]
            if not any(turns_markup_off(call) for call in inits):
                names.add(node.name)
    return names


def markup_parsing(tree: ast.Module) -> Iterator[str]:
    """Report places where text of a user, model or file could be parsed as markup."""
    parsing = parsing_classes(tree)
    for node in ast.walk(tree):
        match node:
            case ast.Call(func=func):
                yield from _call_problems(node, name_of(func), parsing)
            case ast.Assign(targets=[ast.Attribute(attr=name)], value=value) if name in PARSED_ATTRIBUTES:
                if not is_inert(value):
                    yield f"{node.lineno}: {name} parses its text; wrap it in Content()"


def _call_problems(call: ast.Call, name: str, parsing: set[str]) -> Iterator[str]:
    if (name in parsing or name == "notify") and not turns_markup_off(call):
        yield f"{call.lineno}: {name}() without markup=False"
    label = [*call.args[:1], *(word.value for word in call.keywords if word.arg in {"label", "title"})]
    if name in LABELLED and not all(map(is_inert, label)):
        yield f"{call.lineno}: {name}() parses its label; wrap it in Content()"
    if name == "from_markup" and not isinstance(call.args[0], ast.Constant):
        yield f"{call.lineno}: from_markup() of text that is not a literal"


def test_import_contracts_hold() -> None:
    """The layers point downward and each foreign library has its one importer."""
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            "from importlinter.cli import lint_imports_command as main; main()",
            "--no-cache",
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        encoding="utf-8",
        env={**os.environ, "PYTHONIOENCODING": "utf-8"},  # its logo does not fit every console
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("module", "unwanted"),
    [
        (
            "chatapp.cli",
            {"textual", "asyncio", "sqlite3", "sqlite_utils", "httpx2", "llama_cpp", "numpy", "jinja2", "diskcache"},
        ),
        (
            "chatapp.window",
            {"httpx2", "aiohttp", "huggingface_hub", "llama_cpp", "numpy", "tiktoken", "jinja2", "sessions.lint"},
        ),
        ("sessions.manager", {"textual", "click", "llama_cpp", "diskcache"}),
        ("models.client", {"textual", "click", "llama_cpp", "sqlite_utils", "diskcache"}),
    ],
)
def test_a_module_loads_no_more_than_it_needs(module: str, unwanted: set[str]) -> None:
    """In a clean interpreter, importing the module leaves heavy and foreign libraries unloaded."""
    script = f"import json, sys, {module}; print(json.dumps(sorted(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    names = json.loads(done.stdout)
    loaded = {*names, *(name.split(".")[0] for name in names)}
    assert unwanted & loaded == set()


def test_nothing_runs_code_from_data() -> None:
    """No module unpickles, evaluates or executes what it reads."""
    assert problems(code_loading, *PACKAGES) == []


def test_the_environment_is_read_in_one_place() -> None:
    """Only the configuration looks at environment variables, and what hands them on."""
    assert problems(environment_reads, *PACKAGES, allowed=frozenset(ENVIRONMENT_READERS)) == []


def test_the_screen_parses_no_foreign_markup() -> None:
    """Every widget of the interface that could parse markup is told not to."""
    assert problems(markup_parsing, "chatapp") == []


def test_every_widget_with_a_markup_switch_is_known() -> None:
    """A Textual release with a new widget that parses markup fails here, not on a user's screen."""
    widgets = {name: getattr(textual.widgets, name) for name in vars(textual.widgets)["__all__"]}
    switches = {
        name
        for name, widget in widgets.items()
        if (switch := inspect.signature(widget.__init__).parameters.get("markup")) and switch.default is True
    }
    assert switches == MARKUP_BY_DEFAULT | MARKUP_HARMLESS
    assert inspect.signature(App.notify).parameters["markup"].default is True


@pytest.mark.parametrize(
    ("lint", "code"),
    [
        (code_loading, "import pickle"),
        (code_loading, "from diskcache.core import Cache"),
        (code_loading, "eval('1')"),
        (environment_reads, "import os\nos.environ['HOME']"),
        (environment_reads, "import os\nos.getenv('HOME')"),
        (environment_reads, "from os import environ"),
        (markup_parsing, "Static(text)"),
        (markup_parsing, "widgets.Label(text, markup=True)"),
        (markup_parsing, "self.app.notify(str(error))"),
        (markup_parsing, "class Meter(Static):\n    pass\nMeter(text)"),
        (markup_parsing, "self.border_title = session.title"),
        (markup_parsing, "Button(session.title)"),
        (markup_parsing, "Content.from_markup(answer)"),
    ],
)
def test_each_lint_finds_what_it_is_for(lint: Lint, code: str) -> None:
    """A lint that never fires protects nothing."""
    assert len(list(lint(ast.parse(code)))) == 1


@pytest.mark.parametrize(
    "code",
    [
        "Static(text, markup=False)",
        "class Meter(Static):\n    def __init__(self):\n        super().__init__(markup=False)\nMeter()",
        "self.border_title = 'Sessions'",
        "self.border_title = Content(session.title)",
        "Button('Stop')",
        "Content.from_markup('[b]$title[/b]', title=title)",
    ],
)
def test_safe_ways_to_show_text_pass(code: str) -> None:
    """The markup lint accepts the forms it asks for."""
    assert list(markup_parsing(ast.parse(code))) == []
