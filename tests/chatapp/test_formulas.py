"""Formulas in Markdown keep their source, and only what is one is taken for one."""

import pytest

from chatapp.tui.formulas import in_unicode
from chatapp.tui.markdown_blocks import parse
from tests.chatapp.markdown import shown


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        (r"\(a+b\)", "a+b"),
        (r"\(x^2 \le \alpha_1\)", "x² ≤ α₁"),
        (r"$\lambda \to \infty$", "λ → ∞"),
        (r"$$\sum n^{10}$$", "∑ n¹⁰"),
        (r"\[\frac{a}{b}\]", r"\[\frac{a}{b}\]"),
        (r"\(x^{abc}\)", r"\(x^{abc}\)"),
        (r"\(\unknown\)", r"\(\unknown\)"),
    ],
)
def test_a_formula_is_unicode_only_if_all_of_it_is(source: str, expected: str) -> None:
    """What has no plain sign in any part is shown as it was written, its marks included."""
    assert in_unicode(source) == expected


@pytest.mark.parametrize(
    "text",
    [
        "It costs $5 and $6 today.",
        "a $ b $ c",
        "one $ only",
        r"an open \( bracket",
        "$$",
        "`$a*b$`",
    ],
)
def test_money_and_single_marks_are_no_formulas(text: str) -> None:
    """Dollars that do not embrace a formula stay text."""
    assert shown(text) == text.replace("`", "").replace("\\(", "(")


@pytest.mark.parametrize(
    "text", [r"\(\frac{a*b*c}{d_1}\)", "$\\frac{x * y}{2 * z}$", "\\[\n\\frac{a}{b}\n\\]", "$$\n\\frac{*a*}{b}\n$$"]
)
def test_nothing_of_a_formula_is_markdown(text: str) -> None:
    """Backslashes, asterisks and underscores inside stay."""
    assert shown(text) == text


def test_a_block_formula_ends_a_paragraph() -> None:
    """A formula on lines of its own right behind a text line is one block."""
    blocks = parse("So:\n\\[\n\\frac{a}{b}\n\\]\nthen")[0]
    assert [len(block.content.plain.splitlines()) for block in blocks if hasattr(block, "content")] == [1, 3, 1]


def test_a_formula_that_never_ends_is_text() -> None:
    """An open mark at the end of a long text costs no more than reading it."""
    text = "\\( " * 5000
    assert shown(text.strip()).count("(") == 5000
