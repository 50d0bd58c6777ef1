"""What the commands of plain mode do; what the window has, too, is called as it is there."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from chatapp import verbs
from chatapp.plain import branches, conversations, figures, files, holding, models
from chatapp.slash import MARK
from chatapp.texts import tr
from chatapp.verbs import FILE, Verb

if TYPE_CHECKING:
    from chatapp.plain.repl import Repl

_MOST_COMPLETED = 100


async def _help(repl: Repl, text: str) -> None:
    name = text.removeprefix(MARK)
    for verb in VERBS:
        if not name or name in (verb.name, verb.alias):
            alias = [tr("Also {name}.").format(name=f"{MARK}{verb.alias}")] if verb.alias else []
            repl.voice.print(" ".join([verb.told, *alias]))
    repl.voice.hint(
        tr(
            'A message of several lines stands between two lines of """, or its lines end in a backslash; // at '
            "the start sends a slash. Ctrl+C stops an answer and keeps its text."
        )
    )


async def _quit(repl: Repl, _: str) -> None:
    repl.is_over = True


_DOING: Mapping[str, Callable[[Repl, str], Awaitable[None]]] = {
    "help": _help,
    "new": conversations.new,
    "list": conversations.list_,
    "open": conversations.open_,
    "show": conversations.show,
    "search": conversations.search,
    "rename": conversations.rename,
    "task": conversations.task,
    "tag": conversations.tag,
    "done": conversations.done,
    "takeover": holding.take_over,
    "pin": conversations.pin,
    "archive": conversations.archive,
    "trash": conversations.trash,
    "restore": conversations.restore,
    "delete": conversations.delete,
    "revise": branches.revise,
    "again": branches.again,
    "continue": branches.continue_,
    "fork": branches.fork,
    "undo": branches.undo,
    "tree": branches.tree,
    "attach": files.attach,
    "edit": files.edit,
    "system": branches.system,
    "export": files.export,
    "import": files.import_,
    "cost": figures.cost,
    "stats": figures.stats,
    "model": models.choose,
    "sampling": figures.sampling,
    "reasoning": figures.reasoning,
    "thoughts": figures.thoughts,
    "policy": figures.policy,
    "quit": _quit,
}

VERBS: tuple[Verb, ...] = tuple(verbs.IN_PLAIN[name] for name in _DOING)


def find(text: str) -> tuple[Verb, str] | str:
    """Return the command that a text names and its argument, or a sentence on why it cannot be done."""
    name, argument = verbs.typed(text)
    verb = verbs.named(VERBS, name)
    if verb is None:
        text = tr("There is no command {name}: /help lists all; // at the start sends a slash.")
        return text.format(name=f"{MARK}{name[:40]}")
    return verb.refusal(argument) or (verb, argument)


async def perform(repl: Repl, verb: Verb, argument: str) -> None:
    """Do what a command says."""
    await _DOING[verb.name](repl, argument)


def completed(line: str) -> Sequence[str]:
    """Return what a line may become that begins so: names of commands, and of files behind those that take one."""
    if not line.startswith(MARK):
        return ()
    name, blank, path = line.removeprefix(MARK).partition(" ")
    if not blank:
        return [f"{MARK}{verb.name} " for verb in VERBS if verb.name.startswith(name)]
    is_file = any(verb.name == name and verb.argument == FILE for verb in VERBS)
    return [f"{MARK}{name} {found}" for found in _files(path)] if is_file else ()


def _files(begin: str) -> list[str]:
    folder, slash, name = begin.rpartition("/")
    try:
        return sorted(_named(Path(folder + slash).expanduser() if slash else Path(), folder + slash, name))
    except (OSError, RuntimeError, ValueError):  # it cannot be read, or there is no home folder
        return []


def _named(folder: Path, shown: str, begin: str) -> Iterator[str]:
    for n, path in enumerate(folder.iterdir()):
        if n >= _MOST_COMPLETED * _MOST_COMPLETED:
            return
        if path.name.startswith(begin) and (begin or not path.name.startswith(".")) and path.name.isprintable():
            yield f"{shown}{path.name}{'/' if path.is_dir() else ''}"
