"""A server that is down: what can go on in its place is offered in order, and nothing goes on by itself."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from chatapp.config import Settings
from chatapp.engines import make_shelf, make_switch
from chatapp.modellist import ModelChoice, servers, stand_ins
from chatapp.plain.bridge import Bridge
from chatapp.plain.start import _chat
from chatapp.tui.dialogs import WaysScreen
from models.engine import Event, Failed, ModelInfo
from models.remote_profile import RemoteProfile, place_of
from sessions.loading import Shelf
from sessions.manager import SessionManager
from sessions.store import Store
from tests.chatapp import tui_window
from tests.chatapp.test_cli_engines import running
from tests.chatapp.test_plain_talk import Person
from tests.chatapp.tui_window import ScriptedEngine, Window, sees, until
from tests.models.scripted_server import answer

BOX = place_of("box", "m")
HERE = ModelChoice("here", Path("here.gguf"), "llama · 1.0 GiB", fits=True, is_usual=True)
SPARE = ModelChoice("n at spare", place_of("spare", "n"), "127.0.0.1:1", fits=True)
LAST = ModelChoice("o at last", place_of("last", "o"), "127.0.0.1:2", fits=True)
DOWN = ModelChoice("m at box", BOX, "127.0.0.1:3", fits=True)


def test_the_order_in_which_they_are_offered() -> None:
    """The other servers as the settings file has them, then this machine's usual model if it fits."""
    choices = [ModelChoice("small", Path("small.gguf"), "", fits=True), HERE, SPARE, DOWN, LAST]
    assert stand_ins(choices, BOX) == [SPARE, LAST, HERE]
    assert stand_ins([replace(HERE, fits=False), DOWN], BOX) == []


def test_a_new_conversation_at_the_usual_server() -> None:
    """That server is the one that is down."""
    assert stand_ins([replace(DOWN, is_usual=True), SPARE], None) == [SPARE]


def test_servers_stand_as_in_the_settings() -> None:
    """Their order is the user's."""
    engines = {name: RemoteProfile(name, "http://127.0.0.1:1", model="m") for name in ("z", "a", "k")}
    settings = Settings(Path("data"), Path("cache"), engine="a", engines=engines)
    assert [choice.name for choice in servers(settings)] == ["m at z", "m at a", "m at k"]
    assert [choice.name for choice in stand_ins(servers(settings), None)] == ["m at z", "m at k"]


class _Servers(ScriptedEngine):
    """Models named `m` are at a server that cannot be reached once it is down."""

    is_down = False

    async def load(self) -> AsyncIterator[Event]:
        """Fail, as a server does that nobody started."""
        if self._name == "m" and type(self).is_down:
            yield Failed("unreachable", "box cannot be reached: is it running, and is base_url right?")
            return
        async for event in super().load():
            yield event

    @property
    def info(self) -> ModelInfo | None:
        """Its place, as servers have one."""
        info = super().info
        return replace(info, path=BOX.as_posix()) if info and self._name == "m" else info


async def test_the_window_asks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The ways have those that can go on; the one that is chosen does, and until then nobody was asked anything."""
    monkeypatch.setattr(tui_window, "ScriptedEngine", _Servers)
    monkeypatch.setattr(_Servers, "is_down", False)
    earlier = Window(tmp_path)
    async for _ in earlier.manager.switch_model(None, BOX):
        pass
    session_id = await earlier.ask("remember this")
    earlier.store.close()
    monkeypatch.setattr(_Servers, "is_down", True)
    shelf = Shelf(find=lambda _model: BOX)
    window = Window(tmp_path, session_id=session_id, models=lambda: [HERE, DOWN, SPARE], shelf=shelf)
    async with window.app.run_test(size=(120, 36)) as pilot:
        await sees(pilot, window, "The server cannot be used")
        await sees(pilot, window, "Let n at spare go on")
        text = window.screen_text()
        assert "Let m at box go on" not in text
        assert text.index("Let n at spare go on") < text.index("Let here go on")
        assert all(engine.prompts == [] for engine in window.made)
        await until(pilot, lambda: isinstance(window.app.screen, WaysScreen) and window.app.screen._is_ready, "ready")
        await pilot.press("down", "down", "down", "enter")
        await sees(pilot, window, "This conversation now uses n: its text stays,")
        await until(pilot, lambda: not window.composer.read_only, "the box takes text")
        await pilot.press(*"more", "enter")
        await until(pilot, lambda: len(window.manager.messages(session_id)) == 4, "it is answered")
        assert window.engine.prompts[-1].entries[0].text == "remember this"


def test_plain_mode_asks(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """By a number; the message is then answered by the one that was chosen, with all that was said before."""
    with running() as spare:
        spare.chat = [answer("Quinces.")]
        with running() as box:
            engines = {
                "box": RemoteProfile("box", box.url, model="m", connect_s=0.5),
                "spare": RemoteProfile("spare", spare.url, model="m"),
            }
            settings = Settings(tmp_path / "data", tmp_path / "cache", engine="box", engines=engines, policy="off")
            assert _typed(settings, "Which fruit?") == 0
        assert len(box.asked) == 1
        assert spare.received == []
        assert _typed(settings, "/list", "/open 1", "4", "Sure?") == 0
        assert [message["content"] for message in spare.asked[-1].body["messages"]] == [
            "Which fruit?",
            "Pears it is.",
            "Sure?",
        ]
    out, err = capsys.readouterr()
    assert out.splitlines()[-1] == "Quinces."
    assert "4. Let m at spare go on" in err


def _typed(settings: Settings, *lines: str) -> int:
    bridge = Bridge(Person(lines))
    engine = make_switch(settings)

    async def work() -> int:
        with closing(Store(settings.data_dir)) as store:
            manager = SessionManager(store, engine, shelf=make_shelf(settings))
            try:
                return await _chat(manager, store.find, engine, settings, bridge, None)
            finally:
                await engine.close()

    return bridge.run(work)
