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

from chatapp.safe import clean
from chatapp.texts import tr, tr_later
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

    @property
    def told(self) -> str:
        """Its sentence in the reader's language."""
        return tr(self.sentence).format(name=self.value)


def _always(_: ChatApp) -> bool:
    return True


def _has_row(app: ChatApp) -> bool:
    return bool(app.stage.current)


@dataclass(frozen=True, slots=True)
class Verb:
    """`/name ARGUMENT`: the argument is empty for none, in brackets if it may be left out.

    `can` says whether the verb is offered. `do` may be a coroutine function; what takes long or asks something is
    handed to `Stage.work` or `Stage.converse`. `complete` lists values that fit what is typed; it is called in a
    thread. In `key`, `{command}` stands for the keys of a command of the keymap. All texts are given to `tr` when they
    are shown.
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
        return f"{MARK}{self.name} {tr(self.argument)}".rstrip()

    @property
    def needs_argument(self) -> bool:
        """True if nothing can be done by the name alone."""
        return bool(self.argument) and not self.argument.startswith("[")


_OWN = "model"
_SAMPLING = (
    *(Choice(name, name, tr_later("Answer this conversation by the preset {name!r}.")) for name in PRESETS),
    Choice(_OWN, tr_later("the model's own"), tr_later("Answer this conversation as the model's file recommends.")),
)
_KEEPING = (
    Choice("keep", tr_later("keep"), tr_later("Later prompts begin with the answers as they were written.")),
    Choice(
        "strip",
        tr_later("strip"),
        tr_later("Later prompts are shorter; each answer is read once more without its reasoning."),
    ),
)

VERBS: tuple[Verb, ...] = (
    Verb(
        "new",
        tr_later("New conversation"),
        tr_later("Begin a conversation."),
        lambda app, _: app.action_new(),
        key="{new}",
    ),
    Verb(
        "rename",
        tr_later("Rename"),
        tr_later("Give this conversation another title."),
        lambda app, text: naming.rename(app.stage, text) if text else app.action_rename(),
        key="{rename}",
        argument=tr_later("[TITLE]"),
        can=_has_row,
    ),
    Verb(
        "task",
        tr_later("Task line"),
        tr_later("Give this conversation another task line."),
        lambda app, text: naming.set_task(app.stage, text),
        argument=tr_later("TEXT"),
        can=_has_row,
    ),
    Verb(
        "tag",
        tr_later("Tags"),
        tr_later("Add tags to this conversation; a minus before one takes it away."),
        lambda app, text: naming.tag(app.stage, text),
        argument=tr_later("WORD..."),
        can=_has_row,
    ),
    Verb(
        "done",
        tr_later("Done or reopen"),
        tr_later("Mark this conversation as done, or reopen it."),
        lambda app, _: app.action_toggle_done(),
        key="{done}",
        can=_has_row,
    ),
    Verb(
        "takeover",
        tr_later("Take this conversation over"),
        tr_later("Write here what is open in another window, which reads along then."),
        lambda app, _: app.action_take_over(),
        key="{takeover}",
        can=_has_row,
    ),
    Verb(
        "search",
        tr_later("Search"),
        tr_later("Search all conversations while you type."),
        lambda app, _: app.action_search(),
        key="{search}",
    ),
    Verb(
        "pin",
        tr_later("Pin or unpin"),
        tr_later("Keep this conversation at the top of the list, or not."),
        lambda app, _: app.upkeep.do("pin"),
        key=tr_later("{list.pin} in the list"),
        can=_has_row,
    ),
    Verb(
        "archive",
        tr_later("Archive, or back to the list"),
        tr_later("Take this conversation out of the list; search still finds it."),
        lambda app, _: app.upkeep.do("archive"),
        key=tr_later("{list.archive} in the list"),
        can=_has_row,
    ),
    Verb(
        "trash",
        tr_later("Move to the trash"),
        tr_later("It can be taken back for 30 days."),
        lambda app, _: app.upkeep.do("trash"),
        key=tr_later("{list.trash} in the list"),
        can=_has_row,
    ),
    Verb(
        "restore",
        tr_later("Restore from the trash"),
        tr_later("Put this conversation back on the list."),
        lambda app, _: app.upkeep.do("restore"),
        key=tr_later("{list.restore} in the trash"),
        can=lambda app: app.upkeep.is_in_trash,
    ),
    Verb(
        "delete",
        tr_later("Delete for good"),
        tr_later("Delete this conversation of the trash for good, after a question."),
        lambda app, _: app.upkeep.do("delete"),
        key=tr_later("{list.trash} in the trash"),
        can=lambda app: app.upkeep.is_in_trash,
    ),
    Verb(
        "back",
        tr_later("Take back the last trash, archive or pin"),
        tr_later("Undo the last change of a conversation's place."),
        lambda app, _: app.upkeep.do("undo"),
        key=tr_later("{list.undo} in the list"),
    ),
    Verb(
        "view",
        tr_later("List, archive or trash"),
        tr_later("Let the list show the archive, then the trash, then the conversations again."),
        lambda app, _: app.stage.overview.next_view(),
        key=tr_later("{list.view} in the list"),
    ),
    Verb(
        "revise",
        tr_later("Edit a question"),
        tr_later("The marked question, or the last one, as another version; both are kept."),
        lambda app, _: app.branching.do("edit"),
        key="{message.edit}",
        can=_has_row,
    ),
    Verb(
        "again",
        tr_later("Answer once more"),
        tr_later("Another version of the marked answer, or of the last one; both are kept."),
        lambda app, _: app.branching.do("regenerate"),
        key="{message.again}",
        can=_has_row,
    ),
    Verb(
        "continue",
        tr_later("Let the answer go on"),
        tr_later("Go on with an answer that was stopped, cut or interrupted."),
        lambda app, _: app.branching.do("continue"),
        key="{message.continue}",
        can=_has_row,
    ),
    Verb(
        "previous",
        tr_later("Previous version"),
        tr_later("Show the version before this one, of the marked message or the last that has several."),
        lambda app, _: app.branching.do("older"),
        key="{message.older}",
        can=_has_row,
    ),
    Verb(
        "next",
        tr_later("Next version"),
        tr_later("Show the version behind this one, of the marked message or the last that has several."),
        lambda app, _: app.branching.do("newer"),
        key="{message.newer}",
        can=_has_row,
    ),
    Verb(
        "fork",
        tr_later("Fork"),
        tr_later("A new conversation with what was said up to the marked message, or all of it."),
        lambda app, _: app.branching.do("fork"),
        key="{message.fork}",
        can=_has_row,
    ),
    Verb(
        "undo",
        tr_later("Take back the last turn"),
        tr_later("Its question goes back into the box; the branch is kept."),
        lambda app, _: app.branching.do("undo"),
        key=tr_later("{text.undo} in the text"),
        can=_has_row,
    ),
    Verb(
        "links",
        tr_later("Links of a message"),
        tr_later("Show the links of the marked message, or of the last answer that has some, and open one."),
        lambda app, _: app.branching.do("links"),
        key="{message.links}",
        can=_has_row,
    ),
    Verb(
        "begin",
        tr_later("Where the answer begins"),
        tr_later("Show where the marked answer begins, or the last one; the end is followed no more."),
        lambda app, _: app.action_scroll_to_answer(),
        key="{answer}",
        can=_has_row,
    ),
    Verb(
        "tree",
        tr_later("Tree of branches"),
        tr_later("All versions and branches of this conversation; one can be shown."),
        lambda app, _: app.branching.do("tree"),
        key="{message.tree}",
        can=_has_row,
    ),
    Verb(
        "stop",
        tr_later("Stop the answer"),
        tr_later("Stop the answer; its text so far is kept."),
        lambda app, _: app.action_stop(),
        key="Escape",
    ),
    Verb(
        "copy",
        tr_later("Copy the last answer"),
        tr_later("Copy it without its reasoning."),
        lambda app, _: app.preferences.copy_answer(),
    ),
    Verb(
        "code",
        tr_later("Copy a code block"),
        tr_later("Copy a code block of the marked message, or of the last answer that has one."),
        lambda app, _: app.branching.do("code"),
        can=_has_row,
    ),
    Verb(
        "sampling",
        tr_later("Sampling"),
        tr_later("How the answers of this conversation are sampled."),
        lambda app, value: app.preferences.choose_sampling(None if value == _OWN else value),
        argument=tr_later("PRESET"),
        choices=_SAMPLING,
    ),
    Verb(
        "reasoning",
        tr_later("Reasoning in later prompts"),
        tr_later("Whether later prompts of this conversation contain the reasoning of its answers."),
        lambda app, value: app.preferences.set_reasoning("strip" if value == "strip" else "keep"),
        argument=tr_later("POLICY"),
        choices=_KEEPING,
    ),
    Verb(
        "attach",
        tr_later("Attach a file"),
        tr_later("Put a file's text into the message; @ in the box does the same."),
        lambda app, path: app.desk.attach(path),
        argument=tr_later("FILE"),
        complete=lambda app, begin: app.desk.files(begin),
    ),
    Verb(
        "snippet",
        tr_later("Insert a snippet"),
        tr_later("Put a text of your own into the box, with its variables filled in."),
        lambda app, name: app.desk.insert_snippet(name),
        argument=tr_later("[NAME]"),
        complete=lambda app, begin: app.desk.snippet_names(begin),
    ),
    Verb(
        "edit",
        tr_later("Open the draft in an editor"),
        tr_later("Write the message in the editor that VISUAL or EDITOR names."),
        lambda app, _: app.desk.edit(),
        key="{editor}",
    ),
    Verb(
        "system",
        tr_later("System prompt"),
        tr_later("Choose or write the system prompt; a conversation with messages goes on with it in a fork."),
        lambda app, text: app.prompting.ask(text),
        argument=tr_later("[@NAME|TEXT]"),
    ),
    Verb(
        "export",
        tr_later("Export to a file"),
        tr_later("Write this conversation to a new .md, .txt or .json file, or into a folder."),
        lambda app, path: app.reports.export(path),
        argument=tr_later("FILE"),
        complete=lambda app, begin: app.desk.files(begin),
        can=_has_row,
    ),
    Verb(
        "import",
        tr_later("Import from a file"),
        tr_later("Add the conversations of an export of chatapp, ChatGPT, Claude or others."),
        lambda app, path: app.reports.take_in(path),
        argument=tr_later("FILE"),
        complete=lambda app, begin: app.desk.files(begin),
    ),
    Verb(
        "cost",
        tr_later("Cost of this conversation"),
        tr_later("Show its tokens and KV by message, and what coming back takes."),
        lambda app, _: app.reports.cost(),
        can=_has_row,
    ),
    Verb(
        "stats",
        tr_later("Statistics"),
        tr_later("Show how fast answers came and what was reused."),
        lambda app, _: app.reports.statistics(),
    ),
    Verb(
        "model",
        tr_later("Use another model"),
        tr_later("Choose one of the models on this machine, for this conversation or for new ones."),
        lambda app, _: app.switching.choose(),
        can=lambda app: app.switching.can_choose,
    ),
    Verb(
        "list",
        tr_later("Show or hide the list"),
        tr_later("Show or hide the list."),
        lambda app, _: app.action_toggle_sidebar(),
        key="{list}",
    ),
    Verb(
        "meters",
        tr_later("Meters as panel or line"),
        tr_later("Fold the meters to one line, or unfold them."),
        lambda app, _: app.action_fold_meters(),
        key="{meters}",
    ),
    Verb(
        "why",
        tr_later("Why was this slow?"),
        tr_later("Say where the time of the marked answer went, or of the last one."),
        lambda app, _: app.action_why(),
        key="{why}",
        can=_has_row,
    ),
    Verb(
        "thoughts",
        tr_later("Fold or unfold reasoning"),
        tr_later("Show the whole reasoning of all answers, or fold it."),
        lambda app, _: app.action_toggle_reasoning(),
        key="{reasoning}",
    ),
    Verb(
        "welcome",
        tr_later("Welcome"),
        tr_later("Show what the first start shows: the models, what the meters say, three things to try."),
        lambda app, _: app.welcome.show(),
    ),
    Verb(
        "help",
        tr_later("Keys and the model"),
        tr_later("Show all keys and commands, and what is known of the model."),
        lambda app, _: app.action_help(),
        key="{help}",
    ),
    Verb(
        "quit",
        tr_later("Quit the program"),
        tr_later("Quit; a running answer is stopped first and kept."),
        lambda app, _: app.action_leave(),
        key="{quit}",
    ),
)


def commands(app: ChatApp) -> Iterable[SystemCommand]:
    """Yield what the palette offers now."""
    for verb in VERBS:
        if not verb.can(app):
            continue
        for choice in verb.choices:
            title = f"{clean(tr(verb.title))}: {clean(tr(choice.label))}"
            yield SystemCommand(title, clean(choice.told), partial(verb.do, app, choice.value))
        if not verb.choices and verb.needs_argument:
            yield SystemCommand(
                clean(tr(verb.title)),
                clean(tr(verb.sentence)),
                partial(app.stage.composer.begin_command, f"{MARK}{verb.name} "),
            )
        elif not verb.choices:
            yield SystemCommand(clean(tr(verb.title)), clean(with_key(app, verb)), partial(verb.do, app, ""))


def with_key(app: ChatApp, verb: Verb) -> str:
    """Return the sentence of a verb, and its key before it if it has one."""
    sentence = tr(verb.sentence)
    return f"{app.keys.fill(tr(verb.key))} · {sentence}" if verb.key else sentence


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
        return tr("There is no command /{name}: F1 lists all; // at the start sends a slash.").format(name=name[:40])
    if not verb.can(app):
        return tr("/{name} is not possible here and now.").format(name=verb.name)
    if argument and not verb.argument:
        return tr("/{name} takes nothing behind it.").format(name=verb.name)
    values = [choice.value for choice in verb.choices]
    if values and argument not in values:
        return tr("/{name} takes one of {values}.").format(name=verb.name, values=", ".join(values))
    if verb.needs_argument and not argument:
        return f"{verb.usage}: {tr(verb.sentence)}"
    return verb, argument


async def perform(app: ChatApp, verb: Verb, argument: str) -> None:
    """Do what a verb says."""
    done: Any = verb.do(app, argument)
    if isawaitable(done):
        await done
