"""Every verb of the window, once: the palette, the slash commands in the box and the help are made of it.

A verb is added by one line in `VERBS`. Its `do` gets the app and what stands behind the name in the box, with no
white space around it ("" from the palette or where there is nothing).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from inspect import isawaitable
from typing import TYPE_CHECKING, Any

from textual.app import SystemCommand

from chatapp.tui import naming
from chatapp.tui.slash import MARK
from models.presets import PRESETS

if TYPE_CHECKING:
    from chatapp.tui.app import ChatApp


@dataclass(frozen=True, slots=True)
class Choice:
    """A value that a verb takes, what the palette calls it, and a sentence."""

    value: str
    label: str
    sentence: str


def _always(_: ChatApp) -> bool:
    return True


def _has_row(app: ChatApp) -> bool:
    return bool(app.stage.current)


@dataclass(frozen=True, slots=True)
class Verb:
    """`/name ARGUMENT`: the argument is empty for none, in brackets if it may be left out.

    `can` says whether the verb is offered. `do` may be a coroutine function; what takes long or asks something is
    handed to `Stage.work` or `Stage.converse`. `complete` lists values that fit what is typed; it is called in a
    thread.
    """

    name: str
    title: str
    sentence: str
    do: Callable[[ChatApp, str], object]
    key: str = ""
    argument: str = ""
    choices: Sequence[Choice] = ()
    complete: Callable[[ChatApp, str], Sequence[str]] | None = None
    can: Callable[[ChatApp], bool] = _always

    @property
    def usage(self) -> str:
        """As it is written in the box."""
        return f"{MARK}{self.name} {self.argument}".rstrip()

    @property
    def needs_argument(self) -> bool:
        """True if nothing can be done by the name alone."""
        return bool(self.argument) and not self.argument.startswith("[")


_OWN = "model"
_SAMPLING = (
    *(Choice(name, name, f"Answer this conversation by the preset {name!r}.") for name in PRESETS),
    Choice(_OWN, "the model's own", "Answer this conversation as the model's file recommends."),
)
_KEEPING = (
    Choice("keep", "keep", "Later prompts begin with the answers as they were written."),
    Choice("strip", "strip", "Later prompts are shorter; each answer is read once more without its reasoning."),
)

VERBS: tuple[Verb, ...] = (
    Verb("new", "New conversation", "Begin a conversation.", lambda app, _: app.action_new(), key="Ctrl+N"),
    Verb(
        "rename",
        "Rename",
        "Give this conversation another title.",
        lambda app, text: naming.rename(app.stage, text) if text else app.action_rename(),
        key="F2",
        argument="[TITLE]",
        can=_has_row,
    ),
    Verb(
        "task",
        "Task line",
        "Give this conversation another task line.",
        lambda app, text: naming.set_task(app.stage, text),
        argument="TEXT",
        can=_has_row,
    ),
    Verb(
        "tag",
        "Tags",
        "Add tags to this conversation; a minus before one takes it away.",
        lambda app, text: naming.tag(app.stage, text),
        argument="WORD...",
        can=_has_row,
    ),
    Verb(
        "done",
        "Done or reopen",
        "Mark this conversation as done, or reopen it.",
        lambda app, _: app.action_toggle_done(),
        key="F4",
        can=_has_row,
    ),
    Verb(
        "search",
        "Search",
        "Search all conversations while you type.",
        lambda app, _: app.action_search(),
        key="Ctrl+F",
    ),
    Verb(
        "pin",
        "Pin or unpin",
        "Keep this conversation at the top of the list, or not.",
        lambda app, _: app.upkeep.do("pin"),
        key="P in the list",
        can=_has_row,
    ),
    Verb(
        "archive",
        "Archive, or back to the list",
        "Take this conversation out of the list; search still finds it.",
        lambda app, _: app.upkeep.do("archive"),
        key="A in the list",
        can=_has_row,
    ),
    Verb(
        "trash",
        "Move to the trash",
        "It can be taken back for 30 days.",
        lambda app, _: app.upkeep.do("trash"),
        key="Delete in the list",
        can=_has_row,
    ),
    Verb(
        "restore",
        "Restore from the trash",
        "Put this conversation back on the list.",
        lambda app, _: app.upkeep.do("restore"),
        key="R in the trash",
        can=lambda app: app.upkeep.is_in_trash,
    ),
    Verb(
        "delete",
        "Delete for good",
        "Delete this conversation of the trash for good, after a question.",
        lambda app, _: app.upkeep.do("delete"),
        key="Delete in the trash",
        can=lambda app: app.upkeep.is_in_trash,
    ),
    Verb(
        "back",
        "Take back the last trash, archive or pin",
        "Undo the last change of a conversation's place.",
        lambda app, _: app.upkeep.do("undo"),
        key="U in the list",
    ),
    Verb(
        "view",
        "List, archive or trash",
        "Let the list show the archive, then the trash, then the conversations again.",
        lambda app, _: app.stage.overview.next_view(),
        key="V in the list",
    ),
    Verb(
        "revise",
        "Edit a question",
        "The marked question, or the last one, as another version; both are kept.",
        lambda app, _: app.branching.do("edit"),
        key="E",
        can=_has_row,
    ),
    Verb(
        "again",
        "Answer once more",
        "Another version of the marked answer, or of the last one; both are kept.",
        lambda app, _: app.branching.do("regenerate"),
        key="R",
        can=_has_row,
    ),
    Verb(
        "continue",
        "Let the answer go on",
        "Go on with an answer that was stopped, cut or interrupted.",
        lambda app, _: app.branching.do("continue"),
        key="C",
        can=_has_row,
    ),
    Verb(
        "previous",
        "Previous version",
        "Show the version before this one, of the marked message or the last that has several.",
        lambda app, _: app.branching.do("older"),
        key="Left",
        can=_has_row,
    ),
    Verb(
        "next",
        "Next version",
        "Show the version behind this one, of the marked message or the last that has several.",
        lambda app, _: app.branching.do("newer"),
        key="Right",
        can=_has_row,
    ),
    Verb(
        "fork",
        "Fork",
        "A new conversation with what was said up to the marked message, or all of it.",
        lambda app, _: app.branching.do("fork"),
        key="F",
        can=_has_row,
    ),
    Verb(
        "undo",
        "Take back the last turn",
        "Its question goes back into the box; the branch is kept.",
        lambda app, _: app.branching.do("undo"),
        key="Ctrl+Z in the text",
        can=_has_row,
    ),
    Verb(
        "tree",
        "Tree of branches",
        "All versions and branches of this conversation; one can be shown.",
        lambda app, _: app.branching.do("tree"),
        key="T",
        can=_has_row,
    ),
    Verb(
        "stop",
        "Stop the answer",
        "Stop the answer; its text so far is kept.",
        lambda app, _: app.action_stop(),
        key="Escape",
    ),
    Verb(
        "copy", "Copy the last answer", "Copy it without its reasoning.", lambda app, _: app.preferences.copy_answer()
    ),
    Verb(
        "sampling",
        "Sampling",
        "How the answers of this conversation are sampled.",
        lambda app, value: app.preferences.choose_sampling(None if value == _OWN else value),
        argument="PRESET",
        choices=_SAMPLING,
    ),
    Verb(
        "reasoning",
        "Reasoning in later prompts",
        "Whether later prompts of this conversation contain the reasoning of its answers.",
        lambda app, value: app.preferences.set_reasoning("strip" if value == "strip" else "keep"),
        argument="POLICY",
        choices=_KEEPING,
    ),
    Verb(
        "attach",
        "Attach a file",
        "Put a file's text into the message; @ in the box does the same.",
        lambda app, path: app.desk.attach(path),
        argument="FILE",
        complete=lambda app, begin: app.desk.files(begin),
    ),
    Verb(
        "snippet",
        "Insert a snippet",
        "Put a text of your own into the box, with its variables filled in.",
        lambda app, name: app.desk.insert_snippet(name),
        argument="[NAME]",
        complete=lambda app, begin: app.desk.snippet_names(begin),
    ),
    Verb(
        "edit",
        "Open the draft in an editor",
        "Write the message in the editor that VISUAL or EDITOR names.",
        lambda app, _: app.desk.edit(),
        key="F6",
    ),
    Verb(
        "system",
        "System prompt",
        "Choose or write the system prompt; a conversation with messages goes on with it in a fork.",
        lambda app, text: app.prompting.ask(text),
        argument="[@NAME|TEXT]",
    ),
    Verb(
        "export",
        "Export to a file",
        "Write this conversation to a new .md, .txt or .json file, or into a folder.",
        lambda app, path: app.reports.export(path),
        argument="FILE",
        complete=lambda app, begin: app.desk.files(begin),
        can=_has_row,
    ),
    Verb(
        "import",
        "Import from a file",
        "Add the conversations of an export of chatapp, ChatGPT, Claude or others.",
        lambda app, path: app.reports.take_in(path),
        argument="FILE",
        complete=lambda app, begin: app.desk.files(begin),
    ),
    Verb(
        "cost",
        "Cost of this conversation",
        "Show its tokens and KV by message, and what coming back takes.",
        lambda app, _: app.reports.cost(),
        can=_has_row,
    ),
    Verb(
        "stats",
        "Statistics",
        "Show how fast answers came and what was reused.",
        lambda app, _: app.reports.statistics(),
    ),
    Verb(
        "model",
        "Use another model",
        "Choose one of the models on this machine, for this conversation or for new ones.",
        lambda app, _: app.switching.choose(),
        can=lambda app: app.switching.can_choose,
    ),
    Verb(
        "list",
        "Show or hide the list",
        "Show or hide the list.",
        lambda app, _: app.action_toggle_sidebar(),
        key="Ctrl+B",
    ),
    Verb(
        "meters",
        "Meters as panel or line",
        "Fold the meters to one line, or unfold them.",
        lambda app, _: app.action_fold_meters(),
        key="F3",
    ),
    Verb(
        "thoughts",
        "Fold or unfold reasoning",
        "Show the whole reasoning of all answers, or fold it.",
        lambda app, _: app.action_toggle_reasoning(),
        key="F5",
    ),
    Verb(
        "help",
        "Keys and the model",
        "Show all keys and commands, and what is known of the model.",
        lambda app, _: app.action_help(),
        key="F1",
    ),
    Verb(
        "quit",
        "Quit the program",
        "Quit; a running answer is stopped first and kept.",
        lambda app, _: app.action_leave(),
        key="Ctrl+Q",
    ),
)


def commands(app: ChatApp) -> Iterable[SystemCommand]:
    """Yield what the palette offers now."""
    for verb in VERBS:
        if not verb.can(app):
            continue
        for choice in verb.choices:
            yield SystemCommand(f"{verb.title}: {choice.label}", choice.sentence, partial(verb.do, app, choice.value))
        if not verb.choices and verb.needs_argument:
            yield SystemCommand(
                verb.title, verb.sentence, partial(app.stage.composer.begin_command, f"{MARK}{verb.name} ")
            )
        elif not verb.choices:
            yield SystemCommand(verb.title, verb.sentence, partial(verb.do, app, ""))


def offered(app: ChatApp, begin: str) -> list[Verb]:
    """Return the verbs that can be done now and whose name begins so, by name."""
    return sorted((verb for verb in VERBS if verb.name.startswith(begin.lower()) and verb.can(app)), key=_name)


def _name(verb: Verb) -> str:
    return verb.name


def find(app: ChatApp, text: str) -> tuple[Verb, str] | str:
    """Return the verb that a text names and its argument, or a sentence on why it cannot be done."""
    words = text.removeprefix(MARK).split(maxsplit=1)
    name = words[0] if words and not text.removeprefix(MARK)[:1].isspace() else ""
    argument = words[1].strip() if len(words) > 1 else ""
    verb = next((verb for verb in VERBS if verb.name == name.lower()), None)
    if verb is None:
        return f"There is no command {MARK}{name[:40]}: F1 lists all; {MARK * 2} at the start sends a slash."
    if not verb.can(app):
        return f"{MARK}{verb.name} is not possible here and now."
    if argument and not verb.argument:
        return f"{MARK}{verb.name} takes nothing behind it."
    values = [choice.value for choice in verb.choices]
    if values and argument not in values:
        return f"{MARK}{verb.name} takes one of {', '.join(values)}."
    if verb.needs_argument and not argument:
        return f"{verb.usage}: {verb.sentence}"
    return verb, argument


async def perform(app: ChatApp, verb: Verb, argument: str) -> None:
    """Do what a verb says."""
    done: Any = verb.do(app, argument)
    if isawaitable(done):
        await done
