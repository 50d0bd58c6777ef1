"""Markdown as lines: what each kind of block looks like, how it fits a width, and what a selection copies."""

from itertools import accumulate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chatapp.tui.markdown_blocks import LINK, Code, parse
from chatapp.tui.markdown_lines import Line, copied
from chatapp.tui.markdown_sheet import LONGEST, Sheet
from tests.chatapp.markdown import shown

KINDS = """\
# Heading

A paragraph with **bold**, `code` and a [link](https://example.org/x).
Its second line.

- one
- two
  goes on
  - inner
- [x] done
- [ ] open

9. nine
10. ten

> quoted
>
> > twice

```python
def f(x):
    return x
```

| name | n |
|:-----|--:|
| a    | 1 |
| bcd  | 22 |

---

<div>not a tag</div>
"""

EXPECTED = """\
Heading

A paragraph with bold, code and a link.
Its second line.

• one
• two
  goes on
  ◦ inner
☑ done
☐ open

 9. nine
10. ten

▌ quoted
▌
▌ ▌ twice

python
def f(x):
    return x

name │  n
─────┼───
a    │  1
bcd  │ 22

────────────────────────────────────────

<div>not a tag</div>"""


def test_each_kind_of_block() -> None:
    """Headings, lists, tasks, quotes, code, tables, rules, and HTML as text."""
    assert shown(KINDS, 40) == EXPECTED


def test_a_loose_list_and_its_paragraphs() -> None:
    """Items with a blank line between them keep it; what follows in an item stands under its text."""
    text = "1. one\n\n   more\n\n2. two\n\n   ```\n   code\n   ```"
    assert shown(text) == "1. one\n\n   more\n\n2. two\n\n   code"


def test_an_empty_item_and_an_empty_text() -> None:
    """A bullet without text is a bullet; no text is no line."""
    assert shown("-\n- a") == "•\n• a"
    assert shown("") == ""


def test_a_link_knows_its_address() -> None:
    """The address is in the style of the text, and of an image's name."""
    (block,) = parse("see [this](https://example.org) ![a cat](http://x/c.png)")[0]
    metas = [span.style.meta for span in block.content.spans if not isinstance(span.style, str)]  # type: ignore[union-attr]
    assert [meta[LINK] for meta in metas] == ["https://example.org", "http://x/c.png"]
    assert block.content.plain == "see this [image: a cat]"  # type: ignore[union-attr]


def test_code_is_what_was_written() -> None:
    """Blank lines at both ends and trailing blanks stay; a language is only a name."""
    for language in ("python", "", "no-such-language", "$(rm)"):
        (block,) = parse(f"```{language}\n\n  a  \n\n\n```")[0]
        assert isinstance(block, Code)
        assert block.content.plain == "\n  a  \n\n"


def test_a_table_without_room_is_a_list_of_fields() -> None:
    """Columns that would say nothing are not drawn."""
    text = "| first | second | third |\n|--|--|--|\n| alpha | beta | gamma |\n| delta | epsilon | zeta |"
    assert shown(text, 16) == (
        "first: alpha\nsecond: beta\nthird: gamma\n────────────\nfirst: delta\nsecond: epsilon\nthird: zeta"
    )


def test_columns_share_the_width() -> None:
    """A narrow column keeps what it needs, the wide one wraps."""
    text = "| n | text |\n|--|--|\n| 1 | " + "word " * 12 + "|"
    lines = shown(text, 30).splitlines()
    assert all(line.startswith(("n │", "──┼", "1 │", "  │", "─┼")) for line in lines)
    assert " ".join(line[4:] for line in lines[2:]) == ("word " * 12).strip()


_texts = st.text(
    st.one_of(
        st.sampled_from("ab *_`#->|[]()!~1.\n\n \t\\$<&한글é👩‍👩‍👧"),
        st.characters(codec="utf-8", exclude_categories=["Cc"]),
    ),
    max_size=300,
)


@given(text=_texts, width=st.integers(10, 60))
def test_no_line_is_wider_than_the_widget(text: str, width: int) -> None:
    """Whatever the text is, and however it is nested: a line is wider only if what stands in front leaves no room."""
    sheet = Sheet()
    sheet.set(text)
    for line in sheet.lines(width):
        assert line.content.cell_length <= max(width, line.n_lead * 2 + 9)


@given(text=_texts, cuts=st.lists(st.integers(1, 40), max_size=20), width=st.integers(12, 60))
def test_a_grown_text_ends_as_the_whole_one(text: str, cuts: list[int], width: int) -> None:
    """After any pieces, `set` shows what a text that was never cut shows; on the way nothing fails."""
    sheet = Sheet()
    for end in accumulate(cuts):
        sheet.grow(text[:end])
        sheet.lines(width)
    sheet.set(text)
    assert "\n".join(line.content.plain.rstrip() for line in sheet.lines(width)) == shown(text, width)


@pytest.mark.parametrize("step", [1, 3, 7, 50])
def test_a_growing_text_shows_what_has_come(step: int) -> None:
    """At each step each letter that came is on the screen, and settled blocks look as they will in the end."""
    sheet = Sheet()
    for end in range(step, len(KINDS), step):
        sheet.grow(KINDS[:end])
        seen = "".join(line.content.plain for line in sheet.lines(60))
        last_word = "".join(char for char in KINDS[:end].split("\n")[-1] if char.isalpha())
        assert (
            last_word == "" or "http" in KINDS[:end].split("\n")[-1] or last_word in "".join(filter(str.isalpha, seen))
        )
    sheet.grow(KINDS + "\nend")
    assert "\n".join(line.content.plain.rstrip() for line in sheet.lines(40)).startswith(EXPECTED)


def test_growing_reads_only_the_last_block(monkeypatch: pytest.MonkeyPatch) -> None:
    """A text of 200 paragraphs is not parsed again for each piece: 2 blocks at most."""
    sizes: list[int] = []

    def counted(text: str) -> object:
        sizes.append(len(text))
        return parse(text)

    monkeypatch.setattr("chatapp.tui.markdown_sheet.parse", counted)
    sheet, text = Sheet(), ""
    for _ in range(200):
        text += "A paragraph of some words.\n\n"
        sheet.grow(text)
    assert len(sizes) == 200
    assert max(sizes) <= 2 * len("A paragraph of some words.\n\n")


def _lines(text: str, width: int) -> list[Line]:
    sheet = Sheet()
    sheet.set(text)
    return list(sheet.lines(width))


def test_a_selection_has_the_line_ends_of_the_text() -> None:
    """Wrapped lines are joined again, in prose with a blank, in code without; indents of a list are no part of it."""
    text = "- " + "word " * 20 + "\n\n```\n" + "x" * 50 + "\ny\n```"
    lines = _lines(text, 20)
    assert copied(lines, [(0, -1)] * len(lines)) == "• " + ("word " * 20).strip() + "\n\n" + "x" * 50 + "\ny"


def test_a_part_of_a_line_is_copied() -> None:
    """The first and the last line may be selected in part; quote bars are what Markdown has."""
    lines = _lines("> quoted text\n> more", 40)
    assert copied(lines, [(2, -1), (0, 4)]) == "quoted text\n> mo"
    assert copied(lines, [(0, -1)] * 2) == "> quoted text\n> more"


def test_a_very_long_text_stands_as_it_was_written() -> None:
    """Beyond the limit nothing is read as Markdown, and nothing is lost."""
    text = "- item\n" * (LONGEST // 7 + 1)
    assert shown(text).replace("\n", "") == text.replace("\n", "")
