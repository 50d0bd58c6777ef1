"""Which model a conversation goes on with."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING

from chatapp.modellist import MOST_STAND_INS, ModelChoice, models_here, stand_ins
from chatapp.plain.asking import Way
from chatapp.safe import clean_line
from chatapp.texts import tr, tr_later
from models.engine import Failed, Loaded
from sessions.errors import BadRequest
from sessions.loading import MODEL_GONE, NO_MEMORY, SERVER_GONE

if TYPE_CHECKING:
    from chatapp.plain.repl import Repl

_READ_ONLY = tr_later("The conversation can be read with /show; nothing is loaded.")


async def choose(repl: Repl, name: str) -> None:
    """Let a named model, or one of a numbered list, go on with the conversation, or with new ones."""
    from chatapp.shelf import wanted_path

    if name:
        path = await repl.following.wait(asyncio.to_thread(wanted_path, repl.settings, Path(name)))
        if path is not None:
            await _use(repl, path)
        return
    await _choose(repl)


async def offer_if_needed(repl: Repl, failed: Failed) -> bool:
    """Offer ways on if a conversation's own model cannot be had; True if what failed can be done now."""
    if failed.kind not in (MODEL_GONE, NO_MEMORY, *SERVER_GONE) or not repl.asking.can_ask or repl.current is None:
        return False
    ways = [
        Way("read", tr("Read only: nothing is loaded.")),
        Way("other", tr("Use another model: the text stays, the new model reads it all once.")),
    ]
    if failed.kind == NO_MEMORY:
        ways.append(Way("anyway", tr("Load it anyway: this may be slow, or end other programs.")))
    if failed.kind in SERVER_GONE:
        ways.append(Way("anyway", tr("Try again: the server may be there by now.")))
    in_place = await _stand_ins(repl) if failed.kind in SERVER_GONE else {}
    for name, model in in_place.items():
        sentence = tr("Let {model} go on: the text stays, the new model reads it all once.")
        ways.append(Way(name, sentence.format(model=clean_line(model.name, 60))))
    match await repl.asking.choose(tr("What is to be done?"), ways):
        case str(chosen) if chosen in in_place:
            return await _use(repl, in_place[chosen].path)
        case "other":
            return await _choose(repl)
        case "anyway":
            failed_again = await repl.following.events(repl.manager.open(repl.current, force=True), repl.voice.loading)
            if failed_again:
                repl.fail(failed_again.message)
            return failed_again is None
    repl.voice.say(tr(_READ_ONLY))
    return False


async def _stand_ins(repl: Repl) -> dict[str, ModelChoice]:
    """What can go on in place of the server that the conversation belongs to."""
    model = repl.session().model
    found = await repl.following.wait(asyncio.to_thread(models_here, repl.settings))
    first = stand_ins(found or [], Path(model.path) if model else None)[:MOST_STAND_INS]
    return {f"in place {n}": choice for n, choice in enumerate(first)}


async def _choose(repl: Repl) -> bool:
    if repl.settings.engine.startswith("fake"):
        raise BadRequest(tr("This engine has one model only."))
    info = repl.engine.info
    if info is not None:
        repl.voice.say(tr("Loaded is {model}.").format(model=clean_line(info.name, 60)))
    found = await repl.following.wait(asyncio.to_thread(models_here, repl.settings))
    if not found:
        return False
    if not repl.asking.can_ask:
        repl.voice.print("\n".join(clean_line(model.name, 60) for model in found))
        return False
    ways = []
    for model in found:
        facts = [clean_line(model.name, 60), model.detail]
        if not model.fits:
            facts.append(tr("needs more memory than there is"))
        ways.append(Way(str(model.path), ", ".join(facts)))
    chosen = await repl.asking.choose(tr("Which model?"), ways)
    return chosen is not None and await _use(repl, Path(chosen))


async def _use(repl: Repl, path: Path, *, force: bool = False) -> bool:
    events = repl.manager.switch_model(repl.current, path, force=force)
    repl.voice.begin_waiting()
    failed = await repl.following.events(events, repl.voice.loading, Loaded)
    if failed and failed.kind == NO_MEMORY and repl.asking.can_ask:
        ways = [
            Way("cancel", tr("Cancel: the model stays as it is.")),
            Way("anyway", tr("Load it anyway: this may be slow, or end other programs.")),
        ]
        if await repl.asking.choose(failed.message, ways) == "anyway":
            return await _use(repl, path, force=True)
        return False
    if failed:
        repl.fail(" ".join([failed.message, tr("Nothing was changed.")]))
        return False
    name = clean_line(repl.engine.info.name, 60) if repl.engine.info else ""
    if repl.current is None:
        repl.voice.say(tr("New conversations use {model}.").format(model=name))
    else:
        said = tr("This conversation now uses {model}: its text stays, its KV starts anew.")
        repl.voice.say(said.format(model=name))
    return True
