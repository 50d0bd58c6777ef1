from collections.abc import Iterable

import pytest
from textual import events
from textual._xterm_parser import XTermParser
from textual.drivers import linux_driver
from textual.message import Message

from chatapp.tui.pasting import PasteParser, read_pastes_in_pieces

START, END = "\x1b[200~", "\x1b[201~"
STREAMS = [
    f"{START}hello\r\nworld{END}",
    f"ab{START}x{END}\x1b[A",
    f"{START}{END}z",
    f"{START}a{END}{START}b\x1b[31mc{END}",
    f"{START}\x1b[20 [201~ \x1b{END}\r",
    f"{START}{START}nested{END}q",
    "\x1b[2~\x1b[20~\x1b[21~",
    f"{START}a\x00b{END}",
]


def told(messages: Iterable[Message]) -> list[object]:
    """What an event says."""
    return [one.text if isinstance(one, events.Paste) else getattr(one, "key", one) for one in messages]


@pytest.mark.parametrize("stream", STREAMS)
def test_pastes_and_keys_come_out_wherever_reads_end(stream: str) -> None:
    """However a stream is cut in two, it gives the events of the whole one, each paste as one text.

    But for a cut behind the first or second character of a paste's mark, which could be the Escape key.
    """
    whole = told(PasteParser().feed(stream))
    for at in range(1, len(stream)):
        if any(stream.startswith(START, at - n) for n in (1, 2)):
            continue
        parser = PasteParser()
        assert [*told(parser.feed(stream[:at])), *told(parser.feed(stream[at:]))] == whole


@pytest.mark.parametrize("stream", [STREAMS[at] for at in (0, 1, 2, 6, 7)])
def test_events_are_those_of_textual(stream: str) -> None:
    """The same as from Textual's own parser for pastes of plain text; that one waits for what follows a paste."""
    own = told(PasteParser().feed(stream + "x"))
    assert own == told(XTermParser().feed(stream + "x"))


def test_a_paste_is_there_with_its_end() -> None:
    """Nothing has to follow; a paste of a million characters in small reads is one event."""
    parser = PasteParser()
    data = f"{START}{'x' * 1_000_000}{END}"
    made = [one for at in range(0, len(data), 4096) for one in parser.feed(data[at : at + 4096])]
    assert [len(one.text) for one in made if isinstance(one, events.Paste)] == [1_000_000]


def test_the_driver_uses_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Textual's driver finds the parser under the name that it makes its own by."""
    monkeypatch.setitem(vars(linux_driver), "XTermParser", XTermParser)
    read_pastes_in_pieces()
    assert vars(linux_driver)["XTermParser"] is PasteParser
    assert "XTermParser" in linux_driver.LinuxDriver.run_input_thread.__code__.co_names
