"""The models on this machine that a conversation can be given."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from chatapp.safe import clean_line
from chatapp.texts import tr

if TYPE_CHECKING:
    from chatapp.config import Settings
    from models.remote_profile import RemoteProfile

MOST_STAND_INS = 3
"""So many are offered one by one when a server is down; the others are in the list of models."""


@dataclass(frozen=True, slots=True)
class ModelChoice:
    """A model on this machine; `detail` is one line on it, `fits` False where it needs more memory than there is.

    `is_usual` is True for the one that is used when none is chosen.
    """

    name: str
    path: Path
    detail: str
    fits: bool
    is_usual: bool = False


def models_here(settings: Settings) -> list[ModelChoice]:
    """Return the models on this machine that can be used; reads their headers."""
    from chatapp.config import model_folders
    from models.catalog import describe, entries
    from models.fit import available_memory, fit
    from models.kvbudget import size
    from models.modelfacts import FactsCache

    available, usual = available_memory(), _usual(settings)
    choices = []
    for model in describe(entries(model_folders(settings)), FactsCache(settings.cache_dir)):
        facts = model.facts
        if facts is None or model.problem:
            continue
        found = fit(
            weights_bytes=facts.size_bytes,
            kv_elements=facts.kv_elements,
            n_ctx_train=facts.n_ctx_train,
            kv_type=settings.kv_type,
            n_ctx=settings.n_ctx,
            available_bytes=available,
        )
        told = (facts.architecture, facts.quantization, size(facts.size_bytes), model.entry.source)
        detail = " · ".join(part for part in told if part)
        is_usual = usual is not None and _is_same(usual, model.entry.path)
        choices.append(ModelChoice(model.entry.name, model.entry.path, detail, found.verdict != "too large", is_usual))
    return [*choices, *servers(settings)]


def servers(settings: Settings) -> list[ModelChoice]:
    """Return the servers of the settings as models that a conversation can be given; nothing is asked there."""
    from models.remote_profile import place_of

    usual = settings.engine.partition("/")[0]
    return [
        ModelChoice(
            _server_name(profile),
            place_of(profile.name, profile.model or ""),
            profile.host,
            True,
            profile.name == usual,
        )
        for profile in settings.engines.values()
    ]


def stand_ins(choices: Sequence[ModelChoice], own: Path | None) -> list[ModelChoice]:
    """Return what can take the place of a server that is down, in the order in which it is offered.

    Those are the other servers, as the settings file has them, and then the usual model of this machine. `own` is the
    place of the one that is down; None: the usual server's.
    """
    from models.remote_profile import read_place

    place = read_place(own)
    down = place[0] if place else None
    others, here = [], []
    for choice in choices:
        if (at := read_place(choice.path)) is None:
            here += [choice] if choice.is_usual and choice.fits else []
        elif not (choice.is_usual if down is None else at[0] == down):
            others.append(choice)
    return [*others, *here]


def _server_name(profile: RemoteProfile) -> str:
    if profile.model is None:
        return profile.name
    return tr("{model} at {server}").format(model=profile.model, server=profile.name)


def keep_as_usual(settings: Settings, choice: ModelChoice) -> str | None:
    """Use a model when none is named, from the next start on; returns a sentence where that will not happen."""
    from models.errors import ModelError
    from models.modelfiles import Entry
    from models.ownmodels import write_default
    from models.remote_profile import read_place

    if (place := read_place(choice.path)) is not None:
        return tr('The next start uses it if the settings file says so: engine = "{name}".').format(name=place[0])
    usual = _usual(settings)
    if usual is not None and _is_same(usual, choice.path):
        return None
    try:
        write_default(settings.data_dir / "models", Entry(choice.name, "path", (choice.path,)))
    except ModelError as error:
        return str(error)
    if settings.model is None:
        return None
    return tr("The next start uses {model} again, which --model or the settings name: take that out.").format(
        model=clean_line(settings.model.name, 60)
    )


def _usual(settings: Settings) -> Path | None:
    """The model that is used when none is chosen, None if that cannot be had."""
    from chatapp.engines import model_path
    from models.errors import ModelError

    try:
        return model_path(settings)
    except ModelError:
        return None


def _is_same(one: Path, other: Path) -> bool:
    return os.path.realpath(one) == os.path.realpath(other)
