"""The wall in front of the terminal: every kind of widget is given raw text, and no row holds anything live."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.segment import Segment
from rich.style import Style
from rich.text import Text
from textual.app import App, ComposeResult
from textual.color import Color
from textual.content import Content
from textual.filter import LineFilter
from textual.widgets import DataTable, Label, Log, Markdown, OptionList, Static, Tooltip
from textual.widgets.option_list import Option

from chatapp.safe import clean, clean_field, clean_line, inert, safe_stream
from chatapp.tui.fields import Area, Field
from chatapp.tui.gate import GATE, Gate
from tests.chatapp.escapes import CORPUS, LIVE, WHOLE, batches

BATCH = 0x1000
SIGN = "Ω"
"""Before each text, so that a test knows that it was painted."""
N_SURFACES = 12


class Surfaces(App[None]):
    """One widget of each kind, as wide as a whole batch, with the gate before them or without it."""

    CSS = """
    Surfaces > Screen > * { width: 100%; height: 3; min-height: 0; max-height: 3; padding: 0; max-width: 100%;
        dock: none; layer: none; margin: 0; display: block; position: relative; }
    #titled { border: solid red; }
    """

    def __init__(self, gate: LineFilter | None = GATE) -> None:
        super().__init__()
        self._gate = gate

    def get_line_filters(self) -> Sequence[LineFilter]:
        """As the real window has them."""
        return [*super().get_line_filters(), *([self._gate] if self._gate else [])]

    def compose(self) -> ComposeResult:
        """All of them, empty."""
        yield Static("", id="static", markup=False)
        yield Static("", id="styled", markup=False)
        yield Label("", markup=False)
        yield Markdown("", open_links=False)
        yield OptionList(markup=False)
        yield Area(soft_wrap=False)
        yield Field(id="field")
        yield Field(id="placeholder")
        yield Log()
        table: DataTable[object] = DataTable(show_header=False, cursor_type="none")
        table.add_column("text", width=2 * BATCH)
        yield table
        yield Static("", id="titled", markup=False)
        yield Tooltip("", markup=False)

    async def tell(self, text: str) -> None:
        """Give all of them a raw text."""
        text = SIGN + text
        content = Content(text)
        self.query_one("#static", Static).update(text)
        self.query_one("#styled", Static).update(Content.assemble((text, "bold $accent")))
        self.query_one(Label).update(content)
        await self.query_one(Markdown).update(text)
        self.query_one(OptionList).set_options([Option(content)])
        self.query_one(Area).load_text(text)
        self.query_one("#field", Field).value = text
        self.query_one("#placeholder", Field).placeholder = text
        self.query_one(Log).clear().write_line(text)
        table = self.query_one(DataTable)
        table.clear()
        table.add_row(Text(text))
        self.query_one("#titled").border_title = content
        self.query_one("#titled").border_subtitle = content
        self.query_one(Tooltip).update(content)

    def rows(self) -> str:
        """All the text that is on its way to the terminal."""
        strips = self.screen._compositor.render_strips()
        return "".join(segment.text for strip in strips for segment in strip)


@pytest.mark.timeout(600)
async def test_no_code_point_passes_any_kind_of_widget(pytestconfig: pytest.Config) -> None:
    """Each code point, raw, in each kind of widget: nothing live is in the rows that are painted.

    With `--every-code-point` that is all of them; else all batches with one that matters, and a sample of the rest.
    """
    is_whole = bool(pytestconfig.getoption("--every-code-point"))
    app = Surfaces()
    async with app.run_test(size=(2 * BATCH + 50, 3 * N_SURFACES), notifications=True) as pilot:
        for number, text in enumerate(batches(BATCH)):
            if not (is_whole or LIVE.search(text) or number % 16 == 0):
                continue
            await app.tell(text)
            await pilot.pause()
            rows = app.rows()
            assert rows.count(SIGN) > N_SURFACES - 2, "a widget was not painted"
            found = LIVE.search(rows)
            assert found is None, f"{found[0]!r} of the batch from {ord(text[0]):#x}"


async def test_no_escape_passes_any_kind_of_widget() -> None:
    """The corpus, raw, in each kind of widget and in a toast: nothing live is in the rows."""
    app = Surfaces()
    async with app.run_test(size=(400, 3 * N_SURFACES), notifications=True) as pilot:
        for name, text in CORPUS.items():
            await app.tell(text)
            app.notify(text, title=SIGN + text, markup=False)
            await pilot.pause()
            rows = app.rows()
            found = LIVE.search(rows)
            assert found is None, f"{found[0]!r} of {name}"
            app.clear_notifications()


async def test_without_the_wall_the_widgets_let_it_through() -> None:
    """The test above can fail: with the gate away, escapes are in the rows."""
    app = Surfaces(gate=None)
    async with app.run_test(size=(400, 3 * N_SURFACES)) as pilot:
        await app.tell(CORPUS["OSC 52, ended by ST"])
        await pilot.pause()
        assert app.rows().count("\x1b]52") > N_SURFACES - 4


def test_a_row_keeps_its_width() -> None:
    """What the wall takes out is no cell wide by the tables that rows are laid out with."""
    for text in batches(BATCH):
        assert cell_len(inert(text)) == cell_len(text)


def test_addresses_in_styles_are_taken_out() -> None:
    """A style with an address would be a link of the terminal's own, with whatever stands in the address."""
    style = Style(link="https://evil.example/\x1b]0;x\x07", bold=True)
    (segment,) = Gate().apply([Segment("bank", style)], Color(0, 0, 0))
    assert segment.text == "bank"
    assert segment.style is not None
    assert segment.style.link is None
    assert segment.style.bold


def test_harmless_segments_are_the_same_objects() -> None:
    """The wall costs nothing where there is nothing to take out."""
    segments = [Segment("plain"), Segment(" " * 80, Style(bold=True))]
    assert all(new is old for new, old in zip(GATE.apply(segments, Color(0, 0, 0)), segments, strict=True))


@pytest.mark.parametrize("name", CORPUS)
def test_no_cut_brings_an_escape_to_life(name: str) -> None:
    """Each text of the corpus, cut in two at any place and cleaned in pieces, holds nothing live."""
    text = CORPUS[name]
    for at in range(len(text) + 1):
        both = clean(text[:at]) + clean(text[at:])
        assert not LIVE.search(both.replace("\n", "").replace("\t", ""))
        both.encode()
        assert not LIVE.search(inert(text[:at]) + inert(text[at:]))
        assert not LIVE.search(clean_line(text[:at], 80) + clean_line(text[at:], 80))


@given(st.text(st.characters(codec=None, exclude_categories=())))
def test_a_field_is_one_clean_line_of_the_same_length(text: str) -> None:
    """A place in the raw text is the same place in the field."""
    field = clean_field(text)
    assert len(field) == len(text)
    assert not LIVE.search(field)
    assert clean_field(field) is field


def test_a_crash_is_told_in_clean_text(tmp_path: Path) -> None:
    """What a library reports of a failure quotes what the program held, and is cleaned on its way out."""
    with (tmp_path / "stderr").open("w+") as stream:
        safe = safe_stream(stream)
        safe.write("MarkupError: \x1b]52;c;UFdORUQ=\x07\n")
        safe.flush()
        stream.seek(0)
        assert stream.read() == "MarkupError: ␛]52;c;UFdORUQ=␇\n"


def test_the_corpus_is_live() -> None:
    """Each text of the corpus but the markup holds what a terminal would obey."""
    tame = [name for name, text in CORPUS.items() if not LIVE.search(text)]
    assert tame == ["markup"]
    assert LIVE.search(WHOLE)
