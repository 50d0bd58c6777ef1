"""The main job in a real terminal, on the real model: chat, quit, come back, and go on at once."""

from __future__ import annotations

import shutil
from contextlib import closing
from pathlib import Path

import pytest

from sessions.store import Store
from tests.terminal.terminal import Terminal, options

pytestmark = pytest.mark.skipif(shutil.which("tmux") is None, reason="these tests type into tmux, which is missing")


@pytest.mark.timeout(300)
def test_a_conversation_comes_back_from_disk(tmp_path: Path) -> None:
    """After quitting and choosing the session in the sidebar, its tokens are restored, not computed."""
    with Terminal(*options(tmp_path)) as terminal:
        terminal.wait_for("Welcome to chatapp")
        terminal.press("Escape")
        terminal.wait_for("Message")
        terminal.type("Name three rivers in Korea. 한강 말고도 알려 줘.")
        terminal.press("Enter")
        terminal.wait_for(r"decode")
        terminal.press("Escape")
        terminal.wait_for(r"written .*[1-9]")
        terminal.press("C-q")
        terminal.wait_for("ENDED 0")
    with Terminal(*options(tmp_path)) as terminal:
        terminal.wait_for("Name three rivers")
        terminal.press("BTab", "BTab")
        terminal.wait_for("To trash")  # the list has the focus
        terminal.press("Down", "Enter")
        restored = terminal.wait_for(r"restored ([1-9][\d,]*)")
        n_restored = int(restored[1].replace(",", ""))
        assert n_restored > 20
        terminal.type("And in Japan?")
        terminal.press("Enter")
        terminal.wait_for(r"resident [1-9]")
        prefilled = terminal.wait_for(r"prefilled ([1-9][\d,]*)")
        assert int(prefilled[1].replace(",", "")) < 30
        terminal.press("C-q")
        terminal.wait_for("ENDED 0")


@pytest.mark.timeout(300)
def test_everything_people_do_with_conversations(tmp_path: Path) -> None:
    """Create, meet the task dialog, fork, search, trash, undo, export and import, by keys and commands alone."""
    exported = tmp_path / "autumn.json"
    with Terminal(*options(tmp_path), "--engine", "fake", policy="ask") as terminal:
        terminal.wait_for("Message")
        terminal.type("Write a haiku about the autumn moon over a quiet lake. 호수 위의 달")
        terminal.press("Enter")
        terminal.wait_for("You said")
        terminal.wait_for(r"written .*[1-9]")

        terminal.type("How do I configure nginx as a reverse proxy with TLS for two servers?")
        terminal.press("Enter")
        terminal.wait_for("Another task")
        terminal.wait_for("The task here: Write a haiku")
        terminal.wait_for("Enter chooses")  # what is pressed before that answers nothing
        terminal.press("Enter")  # the first way: a new conversation
        terminal.wait_for(r"You said: How do I configure")
        terminal.wait_for(r"written .*[1-9]")

        terminal.press("C-f")
        terminal.wait_for("Back to the list")  # the field has the focus
        terminal.type("호수")
        terminal.wait_for(r"호수 위의 달")
        terminal.press("Enter")
        terminal.wait_for("║")  # the message that was found is marked, and letters are verbs
        terminal.type("f")
        terminal.wait_for("A fork of")

        terminal.type(f"/export {exported}")
        terminal.press("Enter")
        terminal.wait_for("Written:")

        terminal.type("/trash")
        terminal.wait_for(r"│ /trash")
        terminal.press("Enter")
        terminal.wait_for("In the trash")
        terminal.type("/back")
        terminal.press("Enter")
        terminal.wait_for("Back from the trash")

        terminal.press("C-q")
        terminal.wait_for("ENDED 0")
    assert exported.stat().st_size > 0
    elsewhere = tmp_path / "elsewhere"
    with Terminal(*options(elsewhere), "--engine", "fake") as terminal:
        terminal.wait_for("Message")
        terminal.type(f"/import {exported}")
        terminal.press("Enter")
        terminal.wait_for(r"▸?\s*Write a haiku")
        terminal.press("C-q")
        terminal.wait_for("ENDED 0")
    with closing(Store(tmp_path / "data")) as store:
        rows = [row.session for row in store.summaries()]
        assert len(rows) == 3
        assert sum(session.forked_from is not None for session in rows) == 1
        assert all(session.trashed_at is None for session in rows)
    with closing(Store(elsewhere / "data")) as store:
        (imported,) = store.summaries()
        assert imported.n_messages == 1  # the fork ends with the question that was found
