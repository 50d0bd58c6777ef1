from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from pathlib import Path

import pytest

from chatapp.config import Settings, Thoughts
from chatapp.plain.bridge import Bridge
from chatapp.plain.lines import PipeReader
from chatapp.plain.start import _chat
from chatapp.plain.voice import PROGRESS_AFTER_S, PROGRESS_EVERY_S, Voice
from models.engine import Progress
from models.fake import FakeEngine
from sessions.manager import SessionManager
from sessions.store import Store

Chat = Callable[..., int]
REASONED = "<think>first this\nthen that</think>\n\nThe answer."


class Person:
    """Somebody who types these lines, as a `Reader` that can be asked."""

    is_interactive = True
    is_literal = False

    def __init__(self, lines: Sequence[str]) -> None:
        self._lines: Iterator[str] = iter(lines)
        self.prompts: list[str] = []

    def read(self, prompt: str, begin: str = "", *, is_answer: bool = False) -> str | None:  # noqa: ARG002
        """Return the next line."""
        self.prompts.append(prompt)
        return next(self._lines, None)

    def has_begun(self) -> bool:
        """Nothing is ever half typed."""
        return False

    def remember(self, questions: Sequence[str]) -> None:
        """Nothing is brought back."""


@pytest.fixture
def chat(tmp_path: Path) -> Chat:
    """Chat with an engine, typing these lines; returns the exit code."""

    def run(engine: FakeEngine, *lines: str, thoughts: Thoughts = "mark") -> int:
        settings = Settings(tmp_path / "data", tmp_path / "cache", engine="fake", thoughts=thoughts)
        bridge = Bridge(Person(lines))

        async def work() -> int:
            with closing(Store(settings.data_dir)) as store:
                manager = SessionManager(store, engine)
                return await _chat(manager, store.find, engine, settings, bridge, None)

        return bridge.run(work)

    return run


@pytest.mark.parametrize(
    ("thoughts", "aside"),
    [("mark", False), ("show", True), ("hide", False)],
)
def test_reasoning_is_no_part_of_the_answer(
    chat: Chat, capsys: pytest.CaptureFixture[str], thoughts: Thoughts, aside: bool
) -> None:
    """Stdout has the answer alone; what is told of its reasoning stands on stderr, between marks."""
    assert chat(FakeEngine(reply=lambda _: REASONED), "why?", thoughts=thoughts) == 0
    out, err = capsys.readouterr()
    assert out == "The answer.\n"
    assert ("[reasoning]\nfirst this\nthen that\n[answer]\n" in err) == aside


def test_an_engine_that_dies_says_what_comes_next(chat: Chat, capsys: pytest.CaptureFixture[str]) -> None:
    """The text so far is on the screen, the way on is told, and the next message is answered."""
    engine = FakeEngine(reply=lambda text: f"Answer to {text}.", crash_at=9)
    chat(engine, "one", "/continue")
    out, err = capsys.readouterr()
    assert out.startswith("Answer to\n")
    assert "The next message starts the engine again." in err


def test_a_model_that_cannot_be_loaded_is_told_with_the_message(chat: Chat, capsys: pytest.CaptureFixture[str]) -> None:
    """The message is not lost silently: it is said why it was not sent."""
    chat(FakeEngine(load_error="The model file is damaged."), "one")
    assert "The model file is damaged." in capsys.readouterr().err


def test_a_summary_goes_on_in_a_new_conversation(
    chat: Chat, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """The summary is shown and asked about, and the message is sent behind it."""
    engine = FakeEngine(reply=lambda text: "In sum: letters." if "Summarize" in text else "Yes.", n_ctx=1500)
    chat(engine, "a" * 800, "b" * 500, "1", "1")
    out, err = capsys.readouterr()
    assert "1. New conversation with a summary" in err
    assert "In sum: letters." in out
    with closing(Store(tmp_path / "data")) as store:
        newest, older = store.summaries()
        asked = store.messages(newest.session.id)[0].text
        assert "In sum: letters." in asked
        assert asked.endswith("b" * 500)
        assert older.n_messages == 2


def test_a_title_is_suggested_and_asked_about(chat: Chat, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """/rename without a title takes the model's only when the user does."""
    engine = FakeEngine(reply=lambda text: "A Fine Title" if "title" in text else "Yes.")
    chat(engine, "hello", "/rename", "2", "/rename", "1")
    assert "Take the title that the model suggests: A Fine Title" in capsys.readouterr().err
    with closing(Store(tmp_path / "data")) as store:
        assert store.summaries()[0].session.title == "A Fine Title"


def test_one_model_is_no_choice(chat: Chat, capsys: pytest.CaptureFixture[str]) -> None:
    """/model says so where there is nothing to choose from."""
    chat(FakeEngine(), "/model")
    assert "one model only" in capsys.readouterr().err


def test_what_the_work_raises_is_raised_in_the_main_thread() -> None:
    """A failure of the program reaches whoever started it, instead of a hang."""

    async def fail() -> int:
        raise RuntimeError("broken")

    with pytest.raises(RuntimeError, match="broken"):
        Bridge(PipeReader(None, is_literal=False)).run(fail)


def test_progress_is_said_now_and_then(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """On a terminal after a while, then every few seconds, and never while a line is typed."""
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    now = 0.0
    voice = Voice(has_colour=False, monotonic=lambda: now)
    voice.progress(Progress("prefill", 1, 100))
    voice.begin_waiting()
    for now in (0.1, PROGRESS_AFTER_S, PROGRESS_AFTER_S + 1, PROGRESS_AFTER_S + PROGRESS_EVERY_S):
        voice.progress(Progress("prefill", int(now * 10), 100))
    voice.end_waiting()
    now = 100.0
    voice.progress(Progress("prefill", 99, 100))
    assert capsys.readouterr().err == "Reading the prompt, 20 % done.\nReading the prompt, 70 % done.\n"


def test_progress_says_how_long_it_will_take(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Where the engine expects a time worth saying."""
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    now = 0.0
    voice = Voice(has_colour=False, monotonic=lambda: now)
    voice.begin_waiting()
    now = PROGRESS_AFTER_S
    voice.progress(Progress("prefill", 20, 100, 7.6))
    assert capsys.readouterr().err == "Reading the prompt, 20 % done, about 8 s left.\n"


def test_an_answer_is_written_by_lines_and_sentences(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """On a terminal nothing is written of a sentence before it is whole, and nothing is held back at the end."""
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    voice = Voice(has_colour=False, monotonic=lambda: 0.0)
    written = []
    for piece in ("One", " two. Th", "ree", "\nfo", "ur\x1b[2J"):
        voice.tell(piece)
        written.append(capsys.readouterr().out)
    voice.end_line()
    assert (written, capsys.readouterr().out) == (["", "One two. ", "", "Three\n", ""], "four␛[2J\n")
