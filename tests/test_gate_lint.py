"""No text reaches a widget without the gate, as far as reading the program can tell."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tests.gatelint import Program, findings, program_of

ROOT = Path(__file__).resolve().parent.parent

BEHIND_ONE_ENTRANCE = "markdown_"
"""Modules named so work on one clean text: what `MarkdownText.set` and `grow` are given, which is looked at."""

OTHER_UPDATES = ["chatapp/cli_transfer.py: update() shows outcome.changes"]
"""Counters, which are no widgets."""


def test_every_text_of_the_window_passes_the_gate() -> None:
    """What is shown is written in the source, a number, or cleaned where it is shown."""
    program, trees = program_of(
        path for folder in ("chatapp", "sessions", "models") for path in sorted((ROOT / folder).rglob("*.py"))
    )
    found = []
    for path, tree in trees.items():
        name = path.relative_to(ROOT).as_posix()
        if name.startswith("chatapp/") and not path.stem.startswith(BEHIND_ONE_ENTRANCE):
            found += [f"{name}:{line}" for line in findings(program, tree)]
    assert [one for one in found if _without_line(one) not in OTHER_UPDATES] == []


def _without_line(finding: str) -> str:
    name, _, rest = finding.split(":", 2)
    return f"{name}:{rest}"


def found_in(code: str) -> list[str]:
    """What the lint says of a program of one module."""
    program, tree = Program(), ast.parse(code)
    program.read("module", tree)
    return list(findings(program, tree))


@pytest.mark.parametrize(
    "code",
    [
        "def f(text: str): Static(text, markup=False)",
        "def f(session): self.title.update(session.title)",
        "def f(text: str): self.app.notify(f'{text} failed', markup=False)",
        "def f(text: str): window.border_title = Content(text)",
        "def f(text: str): return Content.assemble('a', (text, 'bold'))",
        "def f(names: list[str]): return [Option(name) for name in names]",
        "def f(text: str):\n    line = clean(text)\n    line = text\n    Static(line)",
        "def f(text: str):\n    parts = ['a']\n    parts.append(text)\n    Static(' '.join(parts))",
        "class A:\n    title: str\ndef f(a: A): Static(a.title)\nf(A(title=open('x').read()))",
        "def f(text: str) -> str: return text.strip()\ndef g(text: str): Label(f(text))",
        "def f(text: str): Static(text)\nf('a')\nf(clean(b))\nf(answer)",
        "class W:\n    def __init__(self, a: str):\n        self.a = a\n    def g(self): Static(self.a)\nW(x)",
        "def f(text: str): Static(f'{text:>20}')",
        "try: pass\nexcept OSError as error: Static(str(error))",
        "def f(event):\n    match event:\n        case Failed(message=text): Static(text)",
        "def f(table, text: str): table.add_row(1, text)",
        "def f(text: str): self._text.grow(text)",
        "def f(text: str): log.write_line(text)",
        "def f(text: str): box.placeholder = text",
        "def f(text: str): yield SystemCommand('a', text, None)",
    ],
)
def test_a_planted_text_is_found(code: str) -> None:
    """A text that comes from elsewhere is a finding, however it gets to the widget."""
    assert len(found_in(code)) == 1


@pytest.mark.parametrize(
    "code",
    [
        "Static('Sessions')",
        "def f(text: str): Static(clean(text), markup=False)",
        "def f(n: int): Static(f'{n:,} tokens')",
        "def f(a, b): Static(f'{a / b:.0%}')",
        "def f(text: str): return Content.assemble('a', (clean_line(text, 20), 'bold'))",
        "def f(text: str):\n    line = clean(text)\n    Static(line + ' ' * 3)",
        "WORDS = {'a': 'b'}\ndef f(key: str): Static(WORDS[key])",
        "def f(n: int) -> str: return f'{n} lines'\ndef g(n: int): Static(f(n))",
        "def f(text: str): Static(text)\nf('a')\nf(clean(b))",
        "class W:\n    def __init__(self, a: str):\n        self.a = clean(a)\n    def g(self): Static(self.a)",
        "class Way:\n    label: str\ndef f(way: Way): Static(way.label)\nf(Way('Go on'))",
        "seen = set()\nseen.update(names)",
        "def f(widget): return widget.is_big\nStatic('a' if f(x) else 'b')",
    ],
)
def test_safe_text_is_no_finding(code: str) -> None:
    """What is written in the source, a number or cleaned passes without an exemption."""
    assert found_in(code) == []
