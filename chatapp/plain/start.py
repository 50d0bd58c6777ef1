"""Opens plain mode over the store and the engine, and closes them behind it."""

from __future__ import annotations

import sys
import time
from contextlib import closing
from typing import TYPE_CHECKING, Literal, TextIO

import click

from chatapp.config import Settings, is_in_browser, language, terminal, wants_colour

if TYPE_CHECKING:
    from collections.abc import Callable

    from chatapp.plain.bridge import Bridge
    from models.engine import Engine
    from sessions.conversation import Session
    from sessions.manager import SessionManager

Why = Literal["wanted", "pipe", "dumb", "unseen"]
"""`unseen`: the window would be drawn on stderr, and that goes elsewhere."""

USAGE = (
    "The chat window needs a terminal, and stdin has no message: `echo QUESTION | chatapp` answers one, "
    "`chatapp --plain` reads one from each line."
)
NO_WINDOW = "The chat window needs a terminal, and --no-plain leaves nothing else: leave that out."


def why_plain(settings: Settings) -> Why | None:
    """Return why there is to be no window, None if there is to be one. Raises `UsageError`."""
    if is_in_browser():
        return None
    if settings.plain:
        return "wanted"
    is_pipe = not (_is_terminal(sys.stdin) and _is_terminal(sys.stdout))
    is_unseen = not _is_terminal(sys.stderr)
    if not is_pipe and not is_unseen and terminal().kind != "dumb":
        return None
    if settings.plain is False:
        raise click.UsageError(NO_WINDOW)
    if is_pipe:
        return "pipe"
    return "unseen" if is_unseen else "dumb"


def open_plain(settings: Settings, session_id: str | None, why: Why) -> int:
    """Chat line by line until the user leaves or the input ends; return the exit code.

    Raises `UsageError` where there is nothing to do, our errors when it cannot even begin.
    """
    from chatapp.plain.bridge import Bridge
    from chatapp.plain.lines import PipeReader, Reader, TerminalReader
    from chatapp.plain.verbs import completed
    from chatapp.texts import tr, use

    use(language(settings))
    reader: Reader
    if _is_terminal(sys.stdin):
        reader = TerminalReader(completed)
    else:
        piped = PipeReader(sys.stdin.buffer if sys.stdin else None, is_literal=why != "wanted")
        if not piped.has_text():
            raise click.UsageError(USAGE)
        reader = piped
    if why == "dumb":
        sys.stderr.write(tr("This terminal cannot show the chat window: this is plain mode.") + "\n")
    elif why == "unseen":
        click.echo(tr("The chat window would be drawn on stderr, which goes elsewhere: this is plain mode."))
    bridge = Bridge(reader)
    return bridge.run(lambda: _run(settings, session_id, bridge))


async def _run(settings: Settings, session_id: str | None, bridge: Bridge) -> int:
    from chatapp.engines import forget_kv, kv_gives_way, make_shelf, make_switch
    from models.encoder import Encoder
    from sessions.journal import recover
    from sessions.manager import SessionManager
    from sessions.store import Store

    with closing(Store(settings.data_dir, make_room=kv_gives_way(settings))) as store:
        recover(store)
        session = store.find(session_id) if session_id else None
        engine, encoder = make_switch(settings), Encoder()
        try:
            manager = SessionManager(
                store,
                engine,
                forget_kv=forget_kv(settings),
                shelf=make_shelf(settings),
                reasoning=settings.reasoning,
                policy=settings.policy,
                score=encoder.scores,
            )
            return await _chat(manager, store.find, engine, settings, bridge, session.id if session else None)
        finally:
            await encoder.close()
            await engine.close()


async def _chat(
    manager: SessionManager,
    find: Callable[[str], Session],
    engine: Engine,
    settings: Settings,
    bridge: Bridge,
    session_id: str | None,
) -> int:
    from chatapp.plain.asking import Asking
    from chatapp.plain.conversations import greet
    from chatapp.plain.follow import Following
    from chatapp.plain.holding import Holding
    from chatapp.plain.repl import Repl
    from chatapp.plain.voice import Voice
    from sessions.lease import Leases

    voice = Voice(has_colour=wants_colour(), monotonic=time.monotonic)
    following = Following(manager.stop)
    bridge.interrupted, bridge.ended = following.interrupt, following.end
    holding = Holding(Leases(manager.leases_dir), is_command=bridge.reader.is_literal)
    asking = Asking(bridge, voice)
    with closing(holding):
        repl = Repl(manager, find, engine, settings, bridge, voice, asking, following, holding, session_id)
        if bridge.reader.is_interactive:
            await greet(repl)
        return await repl.run()


def _is_terminal(stream: TextIO | None) -> bool:
    return stream is not None and not stream.closed and stream.isatty()
