"""What the verbs of the window do: the palette, the slash commands in the box and the help are made of them.

A verb is added by one line in `chatapp.verbs`, and one here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from inspect import isawaitable
from typing import TYPE_CHECKING, Any

from textual.app import SystemCommand

from chatapp import verbs
from chatapp.safe import clean
from chatapp.slash import MARK
from chatapp.texts import tr
from chatapp.tui import naming
from chatapp.verbs import OWN, Verb

if TYPE_CHECKING:
    from chatapp.tui.app import ChatApp


def _always(_: ChatApp) -> bool:
    return True


def _has_row(app: ChatApp) -> bool:
    return bool(app.stage.current)


@dataclass(frozen=True, slots=True)
class _Doing:
    """What is done for a verb, with what stands behind its name and no white space around it ("" from the palette).

    `can` says whether the verb is offered. `do` may be a coroutine function; what takes long or asks something is
    handed to `Stage.work` or `Stage.converse`. `complete` lists values that fit what is typed; it is called in a
    thread.
    """

    do: Callable[[ChatApp, str], object]
    can: Callable[[ChatApp], bool] = _always
    complete: Callable[[ChatApp, str], Sequence[str]] | None = None


_DOING: Mapping[str, _Doing] = {
    "new": _Doing(lambda app, _: app.action_new()),
    "rename": _Doing(lambda app, text: naming.rename(app.stage, text) if text else app.action_rename(), can=_has_row),
    "task": _Doing(lambda app, text: naming.set_task(app.stage, text), can=_has_row),
    "tag": _Doing(lambda app, text: naming.tag(app.stage, text), can=_has_row),
    "done": _Doing(lambda app, _: app.action_toggle_done(), can=_has_row),
    "takeover": _Doing(lambda app, _: app.action_take_over(), can=_has_row),
    "search": _Doing(lambda app, _: app.action_search()),
    "pin": _Doing(lambda app, _: app.upkeep.do("pin"), can=_has_row),
    "archive": _Doing(lambda app, _: app.upkeep.do("archive"), can=_has_row),
    "trash": _Doing(lambda app, _: app.upkeep.do("trash"), can=_has_row),
    "restore": _Doing(lambda app, _: app.upkeep.do("restore"), can=lambda app: app.upkeep.is_in_trash),
    "delete": _Doing(lambda app, _: app.upkeep.do("delete"), can=lambda app: app.upkeep.is_in_trash),
    "back": _Doing(lambda app, _: app.upkeep.do("undo")),
    "view": _Doing(lambda app, _: app.stage.overview.next_view()),
    "revise": _Doing(lambda app, _: app.branching.do("edit"), can=_has_row),
    "again": _Doing(lambda app, _: app.branching.do("regenerate"), can=_has_row),
    "continue": _Doing(lambda app, _: app.branching.do("continue"), can=_has_row),
    "previous": _Doing(lambda app, _: app.branching.do("older"), can=_has_row),
    "next": _Doing(lambda app, _: app.branching.do("newer"), can=_has_row),
    "fork": _Doing(lambda app, _: app.branching.do("fork"), can=_has_row),
    "undo": _Doing(lambda app, _: app.branching.do("undo"), can=_has_row),
    "links": _Doing(lambda app, _: app.branching.do("links"), can=_has_row),
    "begin": _Doing(lambda app, _: app.action_scroll_to_answer(), can=_has_row),
    "tree": _Doing(lambda app, _: app.branching.do("tree"), can=_has_row),
    "stop": _Doing(lambda app, _: app.action_stop()),
    "copy": _Doing(lambda app, _: app.preferences.copy_answer()),
    "code": _Doing(lambda app, _: app.branching.do("code"), can=_has_row),
    "sampling": _Doing(lambda app, value: app.preferences.choose_sampling(None if value == OWN else value)),
    "reasoning": _Doing(lambda app, value: app.preferences.set_reasoning("strip" if value == "strip" else "keep")),
    "attach": _Doing(lambda app, path: app.desk.attach(path), complete=lambda app, begin: app.desk.files(begin)),
    "snippet": _Doing(
        lambda app, name: app.desk.insert_snippet(name), complete=lambda app, begin: app.desk.snippet_names(begin)
    ),
    "edit": _Doing(lambda app, _: app.desk.edit()),
    "system": _Doing(lambda app, text: app.prompting.ask(text)),
    "export": _Doing(
        lambda app, path: app.reports.export(path), can=_has_row, complete=lambda app, begin: app.desk.files(begin)
    ),
    "import": _Doing(lambda app, path: app.reports.take_in(path), complete=lambda app, begin: app.desk.files(begin)),
    "cost": _Doing(lambda app, _: app.reports.cost(), can=_has_row),
    "stats": _Doing(lambda app, _: app.reports.statistics()),
    "model": _Doing(lambda app, _: app.switching.choose(), can=lambda app: app.switching.can_choose),
    "list": _Doing(lambda app, _: app.action_toggle_sidebar()),
    "meters": _Doing(lambda app, _: app.action_fold_meters()),
    "why": _Doing(lambda app, _: app.action_why(), can=_has_row),
    "thoughts": _Doing(lambda app, _: app.action_toggle_reasoning()),
    "welcome": _Doing(lambda app, _: app.welcome.show()),
    "help": _Doing(lambda app, _: app.action_help()),
    "quit": _Doing(lambda app, _: app.action_leave()),
}

VERBS: tuple[Verb, ...] = tuple(verbs.VERBS[name] for name in _DOING)


def can(app: ChatApp, verb: Verb) -> bool:
    """True if a verb is offered now."""
    return _DOING[verb.name].can(app)


def commands(app: ChatApp) -> Iterable[SystemCommand]:
    """Yield what the palette offers now."""
    for verb in VERBS:
        if not can(app, verb):
            continue
        for choice in verb.choices:
            title = f"{clean(tr(verb.title))}: {clean(tr(choice.label))}"
            yield SystemCommand(title, clean(choice.told), partial(_DOING[verb.name].do, app, choice.value))
        if not verb.choices and verb.needs_argument:
            yield SystemCommand(
                clean(tr(verb.title)),
                clean(tr(verb.sentence)),
                partial(app.stage.composer.begin_command, f"{MARK}{verb.name} "),
            )
        elif not verb.choices:
            yield SystemCommand(
                clean(tr(verb.title)), clean(with_key(app, verb)), partial(_DOING[verb.name].do, app, "")
            )


def with_key(app: ChatApp, verb: Verb) -> str:
    """Return the sentence of a verb, and its key before it if it has one."""
    sentence = tr(verb.sentence)
    return f"{app.keys.fill(tr(verb.key))} · {sentence}" if verb.key else sentence


def offered(app: ChatApp, begin: str) -> list[Verb]:
    """Return the verbs that can be done now and whose name begins so, by name."""
    return sorted((verb for verb in VERBS if verb.name.startswith(begin.lower()) and can(app, verb)), key=_name)


def _name(verb: Verb) -> str:
    return verb.name


def find(app: ChatApp, text: str) -> tuple[Verb, str] | str:
    """Return the verb that a text names and its argument, or a sentence on why it cannot be done."""
    name, argument = verbs.typed(text)
    verb = verbs.named(VERBS, name)
    if verb is None:
        return tr("There is no command /{name}: {key} lists all; // at the start sends a slash.").format(
            name=name[:40], key=app.keys.shown("help")
        )
    if not can(app, verb):
        return tr("/{name} is not possible here and now.").format(name=verb.name)
    return verb.refusal(argument) or (verb, argument)


def completed(app: ChatApp, verb: Verb, begin: str) -> Sequence[str] | None:
    """Return the values of a verb that begin so, None for one that cannot say; called in a thread."""
    complete = _DOING[verb.name].complete
    return None if complete is None else complete(app, begin)


async def perform(app: ChatApp, verb: Verb, argument: str) -> None:
    """Do what a verb says."""
    done: Any = _DOING[verb.name].do(app, argument)
    if isawaitable(done):
        await done
