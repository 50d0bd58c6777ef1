"""Copying messages, code blocks and what is selected with the mouse."""

from pathlib import Path

from chatapp.clipboard import Terminal
from chatapp.tui.codeblocks import CodeBlock, code_blocks
from chatapp.tui.surroundings import Surroundings
from tests.chatapp.tui_window import Window, hears, sees, until

SIZE = (100, 30)
LONG = "word " * 60
TWO = f"{LONG}\n\n```python\nprint(1)\n```\n\nand\n\n~~~\nls -l\n~~~\n"


def test_code_blocks_are_listed_with_their_languages() -> None:
    """Fences of either kind, set-in code, code in lists and a fence left open; spans in a line are none."""
    text = "`no`\n\n```python title=x\na\n```\n\n- item\n\n  ~~~sh\n  b\n  ~~~\n\ntext\n\n    c\n\n````\n```\nopen"
    assert code_blocks(text) == [
        CodeBlock("python", "a\n"),
        CodeBlock("sh", "b\n"),
        CodeBlock("", "c\n"),
        CodeBlock("", "```\nopen"),
    ]


async def test_the_only_code_block_is_copied_at_once(tmp_path: Path) -> None:
    """`/code` takes the last answer that has one; with several it asks which."""
    window = Window(tmp_path, reply=lambda _: "so:\n\n```c\nint x;\n```\n")
    session_id = await window.ask("one")
    async with window.app.run_test(size=SIZE) as pilot:
        await window.app.stage.show(session_id)
        await pilot.press(*"/code", "enter")
        await hears(pilot, window, "Copied through the terminal (OSC 52).")
        assert window.app.clipboard == "int x;\n"


async def test_of_several_code_blocks_one_is_chosen(tmp_path: Path) -> None:
    """They are listed by language and first lines, the last one highlighted."""
    window = Window(tmp_path, reply=lambda _: TWO)
    session_id = await window.ask("one")
    async with window.app.run_test(size=SIZE) as pilot:
        await window.app.stage.show(session_id)
        await pilot.press(*"/code", "enter")
        await sees(pilot, window, "Copy a code block")
        await pilot.press("up", "enter")
        await until(pilot, lambda: window.app.clipboard == "print(1)\n", "the first block is copied")


async def test_without_a_code_block_that_is_told(tmp_path: Path) -> None:
    """Nothing is copied then."""
    window = Window(tmp_path)
    session_id = await window.ask("one")
    async with window.app.run_test(size=SIZE) as pilot:
        await window.app.stage.show(session_id)
        await pilot.press(*"/code", "enter")
        await hears(pilot, window, "There is no code block to copy.")


async def test_what_is_selected_is_copied_without_wraps_and_borders(tmp_path: Path) -> None:
    """Dragging over a message gives its text, not the lines of the screen."""
    window = Window(tmp_path, reply=lambda _: TWO)
    session_id = await window.ask(LONG.strip())
    async with window.app.run_test(size=SIZE) as pilot:
        await window.app.stage.show(session_id)
        await pilot.pause()
        window.transcript.text_select_all()
        await pilot.press("ctrl+c")
        await until(pilot, lambda: bool(window.app.clipboard), "it is copied")
        lines = window.app.clipboard.splitlines()
        assert lines.count(LONG.strip()) == 2
        assert {"print(1)", "ls -l"} <= {line.strip() for line in lines}
        assert not set("│┃║─") & set(window.app.clipboard)


async def test_a_terminal_that_takes_no_copies_gets_a_file(tmp_path: Path) -> None:
    """The sentence names it; pasting into the box works all the same."""
    surroundings = Surroundings(terminal=Terminal(kind="dumb"), folder=tmp_path / "window")
    window = Window(tmp_path / "data", surroundings=surroundings, reply=lambda _: "a\x1b]52;c;eA==\x07b")
    session_id = await window.ask("one")
    async with window.app.run_test(size=SIZE) as pilot:
        await window.app.stage.show(session_id)
        await pilot.press(*"/copy", "enter")
        await hears(pilot, window, "Your terminal does not take copies")
        copied = (tmp_path / "window" / "copied.txt").read_text(encoding="utf-8")
        assert copied == window.app.clipboard == "a␛]52;c;eA==␇b"
