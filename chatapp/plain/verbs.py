"""The commands of plain mode. What the window has, too, is called as it is there."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from chatapp.plain import branches, conversations, figures, files, models
from chatapp.plain.repl import MARK
from chatapp.texts import tr, tr_later

if TYPE_CHECKING:
    from chatapp.plain.repl import Repl

_MOST_COMPLETED = 100


@dataclass(frozen=True, slots=True)
class Verb:
    """`/name ARGUMENT`: the argument is empty for none, in brackets if it may be left out.

    `alias` is another name. `names_file`: what stands behind the name is a path.
    """

    name: str
    sentence: str
    do: Callable[[Repl, str], Awaitable[None]]
    argument: str = ""
    alias: str = ""
    names_file: bool = False

    @property
    def usage(self) -> str:
        """As it is typed."""
        return f"{MARK}{self.name} {tr(self.argument)}".rstrip()

    @property
    def told(self) -> str:
        """How it is typed, and what it does."""
        return f"{self.usage}: {tr(self.sentence)}"


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


VERBS: tuple[Verb, ...] = (
    Verb("help", tr_later("Show all commands."), _help, tr_later("[NAME]")),
    Verb("new", tr_later("Begin a conversation."), conversations.new),
    Verb(
        "list",
        tr_later("List conversations; /open takes their numbers."),
        conversations.list_,
        tr_later("[N|archive|trash|#TAG|WORDS]"),
    ),
    Verb("open", tr_later("Go on with a conversation; last is the last used one."), conversations.open_, "N|ID|last"),
    Verb("show", tr_later("Show the last turns of this conversation."), conversations.show, "[N|all]"),
    Verb(
        "search",
        tr_later("Search all conversations; /open takes the numbers."),
        conversations.search,
        tr_later("WORDS"),
    ),
    Verb(
        "rename",
        tr_later("Give this conversation another title."),
        conversations.rename,
        tr_later("[TITLE]"),
        alias="title",
    ),
    Verb("task", tr_later("Give this conversation another task line."), conversations.task, tr_later("[TEXT]")),
    Verb(
        "tag",
        tr_later("Add tags to this conversation; a minus before one takes it away."),
        conversations.tag,
        tr_later("WORD..."),
    ),
    Verb("done", tr_later("Mark this conversation as done, or reopen it."), conversations.done),
    Verb("pin", tr_later("Keep this conversation at the top of the list, or not."), conversations.pin),
    Verb("archive", tr_later("Take this conversation out of the list; search still finds it."), conversations.archive),
    Verb("trash", tr_later("Move a conversation to the trash, for 30 days."), conversations.trash, "[N|ID]"),
    Verb("restore", tr_later("Put a conversation of the trash back on the list."), conversations.restore, "[N|ID]"),
    Verb(
        "delete",
        tr_later("Delete a conversation of the trash for good, after a question."),
        conversations.delete,
        "N|ID",
    ),
    Verb(
        "revise",
        tr_later("Another version of the last question, or of that message; both are kept."),
        branches.revise,
        "[N]",
    ),
    Verb("again", tr_later("Another version of the last answer; both are kept."), branches.again),
    Verb("continue", tr_later("Go on with an answer that was stopped, cut or interrupted."), branches.continue_),
    Verb(
        "fork",
        tr_later("A new conversation with what was said up to that message, or all of it."),
        branches.fork,
        "[N]",
    ),
    Verb("undo", tr_later("Take back the last turn; the branch is kept."), branches.undo),
    Verb("tree", tr_later("All versions and branches of this conversation; one can be shown."), branches.tree, "[N]"),
    Verb(
        "attach",
        tr_later("Put a file's text before the next message."),
        files.attach,
        tr_later("FILE"),
        names_file=True,
    ),
    Verb(
        "edit", tr_later("Write the message in the editor that VISUAL or EDITOR names."), files.edit, tr_later("[TEXT]")
    ),
    Verb(
        "system",
        tr_later("Show or write the system prompt; a conversation with messages goes on with it in a fork."),
        branches.system,
        tr_later("[@NAME|TEXT]"),
    ),
    Verb(
        "export",
        tr_later("Write this conversation to a new .md, .txt or .json file, or into a folder."),
        files.export,
        tr_later("FILE"),
        names_file=True,
    ),
    Verb(
        "import",
        tr_later("Add the conversations of an export of chatapp, ChatGPT, Claude or others."),
        files.import_,
        tr_later("FILE"),
        names_file=True,
    ),
    Verb("cost", tr_later("Show its tokens and KV by message, and what coming back takes."), figures.cost),
    Verb("stats", tr_later("Show how fast answers came and what was reused."), figures.stats, "[on|off|all]"),
    Verb(
        "model",
        tr_later("Choose one of the models on this machine, for this conversation or for new ones."),
        models.choose,
        tr_later("[NAME]"),
    ),
    Verb(
        "sampling", tr_later("How the answers of this conversation are sampled."), figures.sampling, tr_later("PRESET")
    ),
    Verb(
        "reasoning",
        tr_later("Whether later prompts of this conversation contain the reasoning of its answers."),
        figures.reasoning,
        "keep|strip",
    ),
    Verb("thoughts", tr_later("Whether the reasoning of answers is told."), figures.thoughts, "mark|show|hide"),
    Verb("policy", tr_later("What is done about messages of another task."), figures.policy, "[off|ask|strict]"),
    Verb("quit", tr_later("Quit the program."), _quit, alias="exit"),
)


def find(text: str) -> tuple[Verb, str] | str:
    """Return the command that a text names and its argument, or a sentence on why it cannot be done."""
    bare = text.removeprefix(MARK)
    words = bare.split(maxsplit=1)
    name = words[0].lower() if words and not bare[:1].isspace() else ""
    argument = words[1].strip() if len(words) > 1 else ""
    verb = next((verb for verb in VERBS if name and name in (verb.name, verb.alias)), None)
    if verb is None:
        text = tr("There is no command {name}: /help lists all; // at the start sends a slash.")
        return text.format(name=f"{MARK}{name[:40]}")
    if argument and not verb.argument:
        return tr("{name} takes nothing behind it.").format(name=f"{MARK}{verb.name}")
    if verb.argument and not verb.argument.startswith("[") and not argument:
        return verb.told
    return verb, argument


def completed(line: str) -> Sequence[str]:
    """Return what a line may become that begins so: names of commands, and of files behind those that take one."""
    if not line.startswith(MARK):
        return ()
    name, blank, path = line.removeprefix(MARK).partition(" ")
    if not blank:
        return [f"{MARK}{verb.name} " for verb in VERBS if verb.name.startswith(name)]
    is_file = any(verb.name == name and verb.names_file for verb in VERBS)
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
