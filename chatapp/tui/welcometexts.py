"""What the welcome says: the meters with the glyphs and colours they have in the window, and what to try; pure."""

from __future__ import annotations

from dataclasses import dataclass

from textual.content import Content

from chatapp.safe import clean
from chatapp.texts import tr, tr_later
from chatapp.tui import words
from chatapp.tui.keymap import Keymap
from chatapp.tui.listrows import COLD, MUTED, WARM
from chatapp.tui.readouts import ALARMS, MARKS
from chatapp.tui.timing import PARTS, tpot_plot, ttft_bar

_CELLS = 8
"""Width of a meter in the left column."""
_SECONDS = (0.1, 0.1, 0.5, 0.1)
_TPOTS = (5.0, 5.0, 6.0, 5.0, 4.0, 5.0, 6.0, 5.0)

PART_SENTENCES = (
    tr_later("waiting for its turn, looking up what is kept"),
    tr_later("reading the KV cache of earlier text from disk"),
    tr_later("computing the part of the prompt that was not kept"),
    tr_later("from there to the first text"),
)
ORIGINS = (
    (tr_later("resident"), tr_later("tokens that were still in memory: free")),
    (tr_later("restored"), tr_later("tokens that came from disk: a moment")),
    (tr_later("prefilled"), tr_later("tokens that were computed: the slow part")),
)


@dataclass(frozen=True, slots=True)
class Line:
    """A row of two columns; `begins` is True where another topic begins."""

    mark: Content
    sentence: str
    begins: bool = False


def meter_lines(keys: Keymap) -> list[Line]:
    """Every meter with what it says, in the order of the panel; then the list, and the key that explains."""
    parts = [
        Line(Content.assemble("  ", (glyph, style), " ", clean(tr(name))), tr(sentence))
        for (name, glyph, style), sentence in zip(PARTS, PART_SENTENCES, strict=True)
    ]
    origins = [
        Line(Content.assemble((glyph, style), " ", clean(tr(name))), tr(sentence), begins=at == 0)
        for at, ((glyph, style), (name, sentence)) in enumerate(zip(MARKS, ORIGINS, strict=True))
    ]
    context = Content.assemble((words.bar(0.4, _CELLS), ALARMS[""][0]))
    return [
        Line(_named("TTFT", ttft_bar(_SECONDS, _CELLS)), tr("time from Enter to the first text, and its parts:")),
        *parts,
        Line(_named("TPOT", tpot_plot(_TPOTS, None, _CELLS, 1)), tr("time for each token after that"), begins=True),
        Line(_named(tr("floor"), tpot_plot((), 1.0, _CELLS, 1)), tr("the best that this machine's memory allows")),
        Line(_named(tr("context"), context), tr("how full the model's window is; it warns in time"), begins=True),
        Line(_named("KV", Content("")), tr("memory that the conversation takes (the KV cache)")),
        *origins,
        Line(
            Content.assemble((WARM, "$secondary"), " ", clean(tr("warm"))),
            tr("in the list: it comes back from disk"),
            begins=True,
        ),
        Line(Content.assemble((COLD, MUTED), " ", clean(tr("cold"))), tr("in the list: it would be read anew")),
        Line(
            Content.assemble((clean(keys.fill("{why}")), "bold $accent")),
            tr("why an answer was slow, told in sentences"),
            begins=True,
        ),
    ]


def things_to_try(keys: Keymap) -> list[Line]:
    """Three things to try."""
    sentences = (
        tr("Write something and press Enter. Escape stops an answer and keeps it."),
        tr("Quit with {quit} and come back: choose the conversation in the list ({list}), and it goes on at once."),
        tr("{search} searches all conversations; /help, or {help}, shows the keys and commands."),
    )
    return [
        Line(Content.assemble((f"{number}.", "bold $accent")), keys.fill(sentence), begins=True)
        for number, sentence in enumerate(sentences, 1)
    ]


def _named(name: str, meter: Content) -> Content:
    return Content.assemble((clean(name), "bold"), " ", meter)
