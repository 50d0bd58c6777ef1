"""Keys that the user's settings change, in the window and in everything that names a key."""

from pathlib import Path

import pytest
from click.testing import CliRunner

from chatapp.cli import cli
from chatapp.tui.commands import VERBS
from chatapp.tui.footer import fit, rank
from chatapp.tui.keymap import Keymap, commands, key_text, keymap, shown_key
from chatapp.tui.keys import KEYS
from chatapp.tui.screens import help_text
from chatapp.tui.surroundings import Surroundings
from tests.chatapp.tui_window import Window, hears, sees

SIZE = (130, 36)


def window_with(folder: Path, **keys: str) -> Window:
    """A window whose settings give these keys; underlines stand for dots."""
    return Window(folder, surroundings=Surroundings(keys={name.replace("_", "."): key for name, key in keys.items()}))


def test_an_entry_changes_the_keys_of_its_command() -> None:
    """Keys are written as people write them, several with commas; case matters where only a letter is pressed."""
    found = keymap({"search": "Ctrl+K", "list.pin": "P, x", "list.search": "?", "message.fork": ",", "help": "f11"})
    assert found.problems == ()
    assert found.given == {
        "search": ("ctrl+k",),
        "list.pin": ("P", "x"),
        "list.search": ("question_mark",),
        "message.fork": ("comma",),
        "help": ("f11",),
    }
    assert found.shown("list.pin") == "Shift+P, X"


def test_what_is_not_changed_keeps_its_keys() -> None:
    """An entry that says what is so already is none."""
    found = keymap({"search": "ctrl+f"})
    assert (found.given, found.shown("search"), found.shown("list.tags")) == ({}, "Ctrl+F", "#")


def test_two_commands_can_change_places() -> None:
    """What counts is the result: no key is taken that its owner gives away."""
    found = keymap({"help": "f2", "rename": "f1"})
    assert (found.given, found.problems) == ({"help": ("f2",), "rename": ("f1",)}, ())


@pytest.mark.parametrize(
    ("name", "key", "sentence"),
    [
        ("serch", "f11", "keys: there is no command 'serch': perhaps 'search' is meant."),
        ("xyzzy", "f11", "keys: there is no command 'xyzzy': `chatapp keys` lists all."),
        ("search", "f1", "keys: f1 for 'search' belongs to 'help' already: choose another key, or give 'help' one."),
        ("list.pin", "ctrl+n", "keys: ctrl+n for 'list.pin' belongs to 'new' already"),
        ("list.pin", "a", "keys: a for 'list.pin' belongs to 'list.archive' already"),
        ("search", "k", "would be typed into the box: put ctrl or alt before it, or take a function key."),
        ("search", "?", "would be typed into the box"),
        ("search", "ctrl+i", "is the same as Tab in most terminals: choose another key."),
        ("search", "ctrl+[", "is the same as Escape in most terminals"),
        ("search", "hyper+k", "is no key: write one like f7, ctrl+k, alt+up or [, several with commas between."),
        ("search", "f119", "is no key"),
        ("search", "ctrl+\x1b", "is no key"),
        ("search", "enter", "is needed to write, to choose and to close: choose another key."),
        ("list.pin", "escape", "is needed to write, to choose and to close"),
        ("search", "backspace", "is needed to write"),
        ("search", "", "keys: 'search' has no key: write one, such as 'search' = 'ctrl+f'."),
    ],
)
def test_an_entry_that_cannot_be_used_is_one_sentence(name: str, key: str, sentence: str) -> None:
    """The sentence has a way out, the command keeps its own keys, and other entries count."""
    found = keymap({name: key, "rename": "f12"})
    [problem] = found.problems
    assert sentence in problem
    assert found.given == {"rename": ("f12",)}


def test_the_same_letter_may_mean_something_else_elsewhere() -> None:
    """R restores in the trash and answers again in the text; only the keys of the window work everywhere."""
    found = keymap({"list.pin": "e", "message.edit": "p"})
    assert found.problems == ()


def test_keys_are_shown_as_people_write_them() -> None:
    """In the window with capitals, in the settings as there."""
    keys = ("ctrl+k", "f5", "pageup", "left_square_bracket", "alt+up", "T", "number_sign")
    assert [shown_key(key) for key in keys] == ["Ctrl+K", "F5", "Page Up", "[", "Alt+Up", "Shift+T", "#"]
    assert [key_text(key) for key in keys] == ["ctrl+k", "f5", "pageup", "[", "alt+up", "T", "#"]


def test_every_key_that_is_named_somewhere_exists() -> None:
    """Help and commands name keys by the commands of the keymap, and leave none of these out."""
    named = "".join([key for _, rows in KEYS for key, _ in rows])
    assert [name for name in commands() if f"{{{name}}}" not in named and name != "editor"] == []
    own = Keymap()
    assert "{" not in own.fill(named + "".join(verb.key for verb in VERBS)).replace("{{", "")


async def test_a_changed_key_works_in_the_box_too(tmp_path: Path) -> None:
    """Ctrl+K deletes to the end of the line there, until the settings give it to the window."""
    window = window_with(tmp_path, search="ctrl+k")
    async with window.app.run_test(size=SIZE) as pilot:
        await pilot.press("a", "left", "ctrl+k")
        await pilot.pause()
        assert (window.composer.text, window.app.focused is window.listing.field) == ("a", True)
        await pilot.press("escape", "ctrl+f")
        await pilot.pause()
        assert window.app.focused is not window.listing.field


async def test_the_footer_the_help_and_the_commands_show_the_users_keys(tmp_path: Path) -> None:
    """Whoever changed a key reads the new one everywhere."""
    window = window_with(tmp_path, search="ctrl+k", help="f11")
    async with window.app.run_test(size=SIZE) as pilot:
        await sees(pilot, window, "^k Search")
        assert "^f" not in window.screen_text()
        await pilot.press("slash", *"sea")
        await sees(pilot, window, "Ctrl+K · Search")
        await pilot.press("escape", "f11")
        await sees(pilot, window, "Ctrl+K, / (in the list)")
        await pilot.press("f11")
        await pilot.pause()
        assert len(window.app.screen_stack) == 1


async def test_a_changed_letter_is_a_verb_of_the_marked_message(tmp_path: Path) -> None:
    """The new letter copies, the old one is typed into the box."""
    window = window_with(tmp_path, message_copy="x")
    session_id = await window.ask("one")
    async with window.app.run_test(size=SIZE) as pilot:
        await window.app.stage.show(session_id)
        await pilot.press("alt+up", "x")
        await hears(pilot, window, "Copied through the terminal")
        await pilot.press("y")
        await pilot.pause()
        assert window.composer.text == "y"


async def test_a_changed_key_of_the_trash_works_in_both_views(tmp_path: Path) -> None:
    """Moving to the trash and deleting there are one key; the second asks."""
    window = window_with(tmp_path, list_trash="d")
    session_id = await window.ask("one")
    async with window.app.run_test(size=SIZE) as pilot:
        window.sidebar.focus()
        window.sidebar.highlighted = 1
        await pilot.press("d")
        await hears(pilot, window, "trash")
        await pilot.press("v", "v")
        await pilot.pause()
        window.sidebar.highlighted = 0
        await pilot.press("d")
        await sees(pilot, window, "Escape cancels")
        assert [one.session.id for one in window.manager.sessions(trash=True)] == [session_id]


async def test_a_slip_in_the_settings_is_told_and_the_window_works(tmp_path: Path) -> None:
    """One sentence for each entry; the rest counts."""
    window = window_with(tmp_path, serch="f11", help="f10")
    async with window.app.run_test(size=SIZE) as pilot:
        await hears(pilot, window, "perhaps 'search' is meant")
        await pilot.press("f10")
        await sees(pilot, window, "Conversations")


def test_the_help_fits_into_any_width() -> None:
    """No line is wider than the room it is given; in few cells the columns stand one below the other."""
    for width in (38, 54, 74, 120):
        assert max(len(line) for line in help_text(Keymap(), width).plain.splitlines()) <= width


def test_the_footer_keeps_what_matters() -> None:
    """Help and palette stay to the last, then what has the focus, then the keys of the window by their weight."""
    cells = {"verb('trash')": 10, "stop": 6, "rename": 9, "new": 7, "help": 8, "command_palette": 11}
    keys = [(rank(action, of_window=not action.startswith("verb")), width) for action, width in cells.items()]
    assert fit(keys, 100) == {0, 1, 2, 3, 4, 5}
    assert fit(keys, 42) == {0, 1, 3, 4, 5}
    assert fit(keys, 36) == {0, 1, 4, 5}
    assert fit(keys, 19) == {4, 5}
    assert fit(keys, 8) == {4}


@pytest.mark.parametrize("width", [40, 60, 80, 120])
async def test_the_footer_cuts_no_word(tmp_path: Path, width: int) -> None:
    """Whatever the width, the last line holds whole keys with whole names."""
    window = Window(tmp_path)
    async with window.app.run_test(size=(width, 20)) as pilot:
        await sees(pilot, window, "f1 Help")
        shown = window.screen_text().splitlines()[-1].split()
        bindings = [found.binding for found in window.app.screen.active_bindings.values() if found.binding.show]
        names = {word for one in bindings for word in one.description.split()}
        keys = {window.app.get_key_display(one) for one in bindings}
        assert [word for word in shown if word not in names | keys] == []
        assert "Commands" in shown


def test_the_command_lists_ids_keys_and_defaults(tmp_path: Path) -> None:
    """`chatapp keys` is where the names for the settings are found; what cannot be used is told on stderr."""
    file = tmp_path / "config.toml"
    file.write_text('[keys]\nsearch = "ctrl+k"\nlist.pin = ["x", "P"]\nserch = 1\n', encoding="utf-8")
    done = CliRunner().invoke(cli, ["keys", "--config", str(file)])
    assert done.exit_code == 0
    assert "search            ctrl+k" in done.stdout
    assert "(without the settings: ctrl+f)" in done.stdout
    assert "list.pin          x, P" in done.stdout
    assert done.stderr == "keys: there is no command 'serch': perhaps 'search' is meant.\n"


@pytest.mark.parametrize("size", [(39, 16), (60, 9), (30, 5)])
async def test_a_window_that_is_too_small_says_what_it_needs(tmp_path: Path, size: tuple[int, int]) -> None:
    """And how to leave, with the user's key; one cell more in each direction and it can be used."""
    window = window_with(tmp_path, quit="f12")
    async with window.app.run_test(size=size) as pilot:
        await pilot.pause()
        told = " ".join(window.screen_text().split())
        assert told == "The window needs 40 columns and 10 lines: make it larger. F12 quits; nothing is lost."
        await pilot.resize_terminal(40, 10)
        await sees(pilot, window, "Message · Enter sends")


async def test_sentences_name_the_keys_of_the_settings(tmp_path: Path) -> None:
    """The hint of an empty window, and why a conversation takes no message, are true with other keys."""
    window = window_with(tmp_path, new="f7", help="f11", done="ctrl+k")
    async with window.app.run_test(size=(200, 36)) as pilot:
        await sees(pilot, window, "F7 starts a new conversation")
        await sees(pilot, window, "F11 lists all keys")
        session_id = window.manager.new().id
        question = window.store.add_question(session_id, "q", title="t")
        window.store.add_answer(question, "a", "complete", run=None)
        window.manager.mark_done(session_id)
        await window.app.stage.show(session_id)
        await sees(pilot, window, "Ctrl+K reopens it")
