import os
import sys
import time
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import pytest
from textual import events

from chatapp.tui.desk import Tools
from chatapp.tui.snippetscreens import SnippetsScreen, VariablesScreen
from chatapp.tui.viewer import ViewerScreen, broken
from models.engine import Sampling
from sessions.attachments import Part, joined
from sessions.conversation import Draft
from tests.chatapp.tui_window import Window, hears, sees, until

SIZE = (140, 30)
REPORT = "첫 줄\n" + "line\n" * 411


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """A folder with files to attach, apart from the store's."""
    folder = tmp_path / "files"
    (folder / "src").mkdir(parents=True)
    (folder / "report.txt").write_text(REPORT, encoding="utf-8")
    (folder / "src" / "main.py").write_text("print(1)\n", encoding="utf-8")
    return folder


# --- files ---


async def test_a_file_is_completed_attached_and_sent(tmp_path: Path, files: Path) -> None:
    """Its chip says lines and tokens; sent, its text is in the message, and on the screen a folded line."""
    window = Window(tmp_path / "data", reply=lambda _: "ok", tools=Tools(folder=files))
    async with window.app.run_test(size=SIZE) as pilot:
        await pilot.press(*"look @rpt")
        await until(pilot, lambda: window.app.desk.completing.is_shown, "the offer")
        await pilot.press("tab")
        await until(pilot, lambda: window.composer.text == "look [report.txt #1]", "the chip")
        block = f"report.txt:\n```\n{REPORT}```"
        await sees(pilot, window, f"▸ report.txt, 412 lines, {len(block.encode()):,} tokens ✕")
        await pilot.press("enter")
        await sees(pilot, window, "ok")
        [question, _] = window.manager.messages(window.app.stage.current)
        assert question.text == f"look \n\n{block}"
        assert [(one.name, question.text[one.start : one.end]) for one in question.attachments] == [
            ("report.txt", block)
        ]
        assert window.manager.sessions()[0].session.title == "look"
        await sees(pilot, window, "▸ report.txt, 412 lines")
        assert "첫 줄" not in window.screen_text()
        await pilot.press("shift+tab", "left_square_bracket", "left_square_bracket", "enter")
        await sees(pilot, window, "첫 줄")
        await pilot.press("enter")
        await until(pilot, lambda: "첫 줄" not in window.screen_text(), "it is folded again")


async def test_a_file_that_is_only_named_is_attached_before_it_is_sent(tmp_path: Path, files: Path) -> None:
    """`@PATH` in a text counts without completion; a name of no file stays text."""
    window = Window(tmp_path / "data", reply=lambda _: "ok", tools=Tools(folder=files))
    async with window.app.run_test(size=SIZE) as pilot:
        window.composer.insert("@src/main.py @somebody hello ")
        await pilot.press("enter")
        await until(pilot, lambda: len(window.engine.prompts) == 1, "it is sent")
        assert window.engine.prompts[0].entries[0].text == ("src/main.py:\n```\nprint(1)\n```\n\n @somebody hello ")


@pytest.mark.parametrize("name", ["missing.txt", "src", "pipe", "program"])
async def test_what_cannot_be_attached_is_said(tmp_path: Path, files: Path, name: str) -> None:
    """What was written is in the box again, to be mended."""
    os.mkfifo(files / "pipe")
    (files / "program").write_bytes(b"\x7fELF\0\0")
    window = Window(tmp_path / "data", tools=Tools(folder=files))
    async with window.app.run_test(size=SIZE) as pilot:
        window.composer.insert(f"/attach {name}")
        await pilot.press("escape", "enter")
        await hears(pilot, window, name)
        await until(pilot, lambda: window.composer.text == f"/attach {name}", "it can be mended")


async def test_chips_are_shown_and_removed(tmp_path: Path, files: Path) -> None:
    """Enter on its line shows what a chip stands for, Delete removes it, Backspace in the text takes it whole."""
    window = Window(tmp_path / "data", tools=Tools(folder=files))
    async with window.app.run_test(size=SIZE) as pilot:
        window.app.desk.attach("report.txt")
        await until(pilot, lambda: window.composer.text == "[report.txt #1]", "the chip")
        await pilot.press("shift+tab", "enter")
        await until(pilot, lambda: isinstance(window.app.screen, ViewerScreen), "the viewer")
        await sees(pilot, window, "첫 줄")
        await pilot.press("escape", "delete")
        await until(pilot, lambda: window.composer.text == "", "the chip is gone")
        assert not window.composer.bar.display
        window.app.desk.attach("src/main.py")
        await until(pilot, lambda: "main.py" in window.composer.text, "the chip")
        await pilot.press("x", "backspace", "backspace")
        assert window.composer.text == ""
        await pilot.press("ctrl+z")
        assert window.composer.draft.startswith("src/main.py:\n```\nprint(1)\n```")


async def test_a_megabyte_is_a_chip_at_once(tmp_path: Path, files: Path) -> None:
    """Attached or pasted, no key waits for it: the thread of the keys works for a fifth of a second at most."""
    (files / "big.log").write_text("a line of a log 가나다\n" * 40_000, encoding="utf-8")
    window = Window(tmp_path / "data", tools=Tools(folder=files))
    async with window.app.run_test(size=SIZE) as pilot:
        await until(pilot, lambda: window.app.stage.talk.model.info is not None, "the model is there")
        window.app.stage.talk.model.info = None  # its context would be too small
        before = time.thread_time()
        window.app.desk.attach("big.log")
        await until(pilot, lambda: "big.log" in window.composer.text, "the chip")
        window.composer.post_message(events.Paste("a line of a log\n" * 50_000))
        await until(pilot, lambda: "[pasted 781 KiB #2]" in window.composer.text, "the second chip")
        assert time.thread_time() - before < 2.0  # some of it is the tests' own looking


@pytest.mark.parametrize(
    ("text", "lines"), [("a\tb", ["a   b"]), ("가나다라마", ["가나다라", "마"]), ("x" * 9, ["x" * 8, "x"])]
)
def test_the_viewer_breaks_long_lines(text: str, lines: list[str]) -> None:
    """No line is wider than the window, wide characters counted."""
    assert broken(text, 8) == lines


# --- drafts and earlier messages ---


async def test_a_draft_survives_a_crash(tmp_path: Path, files: Path) -> None:
    """What was typed, and its chips, are there again without anybody having said goodbye."""
    window = Window(tmp_path / "data", tools=Tools(folder=files))
    async with window.app.run_test(size=SIZE) as pilot:
        await pilot.press(*"half a ")
        window.app.desk.attach("src/main.py")
        await until(pilot, lambda: "src/main.py:" in window.manager.draft(None).text, "it is saved")
        saved = window.manager.draft(None)
    again = Window(tmp_path / "data", tools=Tools(folder=files))
    async with again.app.run_test(size=SIZE) as pilot:
        await until(pilot, lambda: "[src/main.py #1]" in again.composer.text, "the draft is there")
        assert again.composer.content == saved
        await pilot.press("enter")
        await until(pilot, lambda: len(again.engine.prompts) == 1, "it is sent")
        assert again.manager.draft(None) == Draft("")


async def test_quitting_saves_the_draft(tmp_path: Path) -> None:
    """Also what was typed in the last second."""
    window = Window(tmp_path)
    session_id = await window.ask("one")
    async with window.app.run_test(size=SIZE) as pilot:
        await window.app.stage.show(session_id)
        await pilot.press(*"now", "ctrl+q")
    assert Window(tmp_path).manager.drafts() == {session_id: "now"}


async def test_earlier_messages_come_back_by_up(tmp_path: Path) -> None:
    """First those of this conversation, then all others, newest first; the draft stands at the end."""
    window = Window(tmp_path, reply=lambda _: "ok")
    await window.ask("other one")
    session_id = await window.ask("mine 1")
    await window.ask("mine 2\nsecond line", session_id)
    await window.ask("other two")
    async with window.app.run_test(size=SIZE) as pilot:
        await window.app.stage.show(session_id)
        await pilot.press(*"draft")
        seen = []
        for _ in range(5):
            await pilot.press("up")
            seen.append(window.composer.text)
        assert seen == ["mine 2\nsecond line", "mine 1", "other two", "other one", "other one"]
        for _ in range(2):
            await pilot.press("down")
        assert window.composer.text == "mine 1"
        await pilot.press("down", "down")
        assert window.composer.text == "draft"


async def test_a_recalled_text_that_is_edited_is_the_draft(tmp_path: Path) -> None:
    """It is not lost by going on from it."""
    window = Window(tmp_path, reply=lambda _: "ok")
    session_id = await window.ask("one")
    async with window.app.run_test(size=SIZE) as pilot:
        await window.app.stage.show(session_id)
        await pilot.press("up", "x", "up")
        assert window.composer.text == "one"
        await pilot.press("down")
        assert window.composer.text == "onex"


async def test_what_was_attached_comes_back_attached(tmp_path: Path) -> None:
    """A recalled message has its chips."""
    window = Window(tmp_path, reply=lambda _: "ok")
    draft = joined(["a ", Part("pasted", "y" * 9000)])
    session_id = window.manager.new().id
    async for _ in window.manager.send(session_id, draft.text, Sampling(), attachments=draft.attachments):
        pass
    async with window.app.run_test(size=SIZE) as pilot:
        await pilot.press("up")
        assert window.composer.content == draft
        assert window.composer.text == "a [pasted 8.8 KiB #1]"


# --- snippets and the editor ---


async def test_a_snippet_asks_for_its_variables(tmp_path: Path) -> None:
    """It is put in at the cursor, filled; one without variables at once."""
    folder = tmp_path / "snippets"
    folder.mkdir()
    (folder / "translate.md").write_text("{{language}}로: {{ text }} / {{language}}\n", encoding="utf-8")
    (folder / "plain.md").write_text("as it is", encoding="utf-8")
    window = Window(tmp_path / "data", tools=Tools(snippets=folder))
    async with window.app.run_test(size=SIZE) as pilot:
        window.composer.insert("/snippet translate")
        await pilot.press("escape", "enter")
        await until(pilot, lambda: isinstance(window.app.screen, VariablesScreen), "the dialog")
        await pilot.press("k", "o", "enter", "h", "i", "enter")
        await until(pilot, lambda: window.composer.text == "ko로: hi / ko", "the text")
        window.app.desk.insert_snippet("")
        await until(pilot, lambda: isinstance(window.app.screen, SnippetsScreen), "the list")
        await pilot.press("enter")
        await until(pilot, lambda: window.composer.text == "ko로: hi / koas it is", "the other one")
        window.app.desk.insert_snippet("../secret")
        await hears(pilot, window, "There is no snippet '../secret'")


async def test_the_editor_gets_the_draft_and_gives_it_back(
    tmp_path: Path, files: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Chips stay whose words stay; the file is private and gone behind it."""
    seen = tmp_path / "seen"
    script = (
        "import os, pathlib, sys; path = pathlib.Path(sys.argv[1]); "
        f"pathlib.Path({str(seen)!r}).write_text(str(path) + ' ' + oct(path.stat().st_mode)); "
        "path.write_text(path.read_text(encoding='utf-8') + '\\n한글 added\\n', encoding='utf-8')"
    )
    tools = Tools(editor=(sys.executable, "-c", script), folder=files)
    window = Window(tmp_path / "data", tools=tools)
    async with window.app.run_test(size=SIZE) as pilot:
        monkeypatch.setattr(window.app, "suspend", nullcontext)
        window.app.desk.attach("src/main.py")
        await until(pilot, lambda: "main.py" in window.composer.text, "the chip")
        await pilot.press("f6")
        await until(pilot, lambda: "한글 added" in window.composer.text, "the text is back")
        assert window.composer.draft == "src/main.py:\n```\nprint(1)\n```\n\n한글 added"
    path, mode = seen.read_text().split()
    assert mode == "0o100600"
    assert not Path(path).parent.exists()


@pytest.mark.parametrize(
    ("editor", "said"),
    [
        ((), "set VISUAL or EDITOR"),
        (("no-such-editor",), "cannot be used"),
        ((sys.executable, "-c", "exit(3)"), "code 3"),
    ],
)
async def test_an_editor_that_fails_leaves_the_draft(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, editor: tuple[str, ...], said: str
) -> None:
    """One sentence, and the text as it was."""
    window = Window(tmp_path, tools=Tools(editor=editor))
    async with window.app.run_test(size=SIZE) as pilot:
        monkeypatch.setattr(window.app, "suspend", nullcontext)
        await pilot.press(*"text", "f6")
        await hears(pilot, window, said)
        assert window.composer.text == "text"


async def test_a_message_that_waits_is_a_draft_until_it_is_stored(tmp_path: Path) -> None:
    """While another answer is being written, a crash would not take it."""
    window = Window(tmp_path, reply=lambda asked: "word " * (2_000 if asked == "first" else 4), tokens_per_s=100)
    other = await window.ask("other")
    async with window.app.run_test(size=SIZE) as pilot:
        await pilot.press(*"first", "enter")
        await sees(pilot, window, "word word")
        await window.app.stage.show(other)
        await pilot.press(*"second", "enter")
        await until(pilot, lambda: other in window.app.stage.talk.live, "it waits")
        window.app.stage.save_draft()
        assert window.manager.draft(other) == Draft("second")
        await window.manager.stop()
        await until(pilot, lambda: len(window.manager.messages(other)) > 2, "it is stored")
        await until(pilot, lambda: window.manager.draft(other) == Draft(""), "it is no draft any more")


async def test_another_model_counts_anew(tmp_path: Path, files: Path) -> None:
    """What a chip says is true for the model that answers next."""
    window = Window(tmp_path / "data", tools=Tools(folder=files))
    async with window.app.run_test(size=SIZE) as pilot:
        await until(pilot, lambda: window.app.stage.talk.model.info is not None, "the model is there")
        window.composer.count_with(len)
        window.app.desk.attach("src/main.py")
        await sees(pilot, window, "src/main.py, 1 line, 29 tokens")
        info = window.app.stage.talk.model.info
        assert info is not None
        window.app.stage.talk.model.info = replace(info, weights="other")
        window.composer.count_with(lambda text: 2 * len(text))
        await sees(pilot, window, "src/main.py, 1 line, 58 tokens")
