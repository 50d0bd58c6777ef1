"""Every verb of the window and of plain mode, once: what it is called, and what it says of itself.

What a verb does is bound to its name in `chatapp.tui.commands` and in `chatapp.plain.verbs`; a front end has the verbs
that it binds.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from chatapp.slash import MARK
from chatapp.texts import tr, tr_later
from models.presets import PRESETS

FILE = tr_later("FILE")
"""The argument of a verb that takes a path."""
OWN = "model"
"""The sampling that the model's file recommends."""


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


@dataclass(frozen=True, slots=True)
class Verb:
    """`/name ARGUMENT`: the argument is empty for none, in brackets if it may be left out.

    `title` and `key` are for the window's palette and help; in `key`, `{command}` stands for the keys of a command of
    the keymap. `alias` is another name. All texts are given to `tr` when they are shown.
    """

    name: str
    title: str
    sentence: str
    key: str = ""
    argument: str = ""
    choices: Sequence[Choice] = ()
    alias: str = ""

    @property
    def usage(self) -> str:
        """As it is typed."""
        return f"{MARK}{self.name} {tr(self.argument)}".rstrip()

    @property
    def told(self) -> str:
        """How it is typed, and what it does."""
        return f"{self.usage}: {tr(self.sentence)}"

    @property
    def needs_argument(self) -> bool:
        """True if nothing can be done by the name alone."""
        return bool(self.argument) and not self.argument.startswith("[")

    def refusal(self, argument: str) -> str | None:
        """Return a sentence on why it cannot be done with an argument, None if it can."""
        if argument and not self.argument:
            return tr("/{name} takes nothing behind it.").format(name=self.name)
        values = [choice.value for choice in self.choices]
        if values and argument not in values:
            return tr("/{name} takes one of {values}.").format(name=self.name, values=", ".join(values))
        return self.told if self.needs_argument and not argument else None


def typed(text: str) -> tuple[str, str]:
    """Return the name, in lower case, and the argument that are typed behind a slash; "/ x" has no name."""
    bare = text.removeprefix(MARK)
    words = bare.split(maxsplit=1)
    name = words[0].lower() if words and not bare[:1].isspace() else ""
    return name, words[1].strip() if len(words) > 1 else ""


def named(verbs: Iterable[Verb], name: str) -> Verb | None:
    """Return the verb with this name, or this other name."""
    return next((verb for verb in verbs if name and name in (verb.name, verb.alias)), None)


_SAMPLING = (
    *(Choice(name, name, tr_later("Answer this conversation by the preset {name!r}.")) for name in PRESETS),
    Choice(OWN, tr_later("the model's own"), tr_later("Answer this conversation as the model's file recommends.")),
)
_KEEPING = (
    Choice("keep", tr_later("keep"), tr_later("Later prompts begin with the answers as they were written.")),
    Choice(
        "strip",
        tr_later("strip"),
        tr_later("Later prompts are shorter; each answer is read once more without its reasoning."),
    ),
)

_ALL = (
    Verb("new", tr_later("New conversation"), tr_later("Begin a conversation."), key="{new}"),
    Verb(
        "rename",
        tr_later("Rename"),
        tr_later("Give this conversation another title."),
        key="{rename}",
        argument=tr_later("[TITLE]"),
    ),
    Verb(
        "task", tr_later("Task line"), tr_later("Give this conversation another task line."), argument=tr_later("TEXT")
    ),
    Verb(
        "tag",
        tr_later("Tags"),
        tr_later("Add tags to this conversation; a minus before one takes it away."),
        argument=tr_later("WORD..."),
    ),
    Verb("done", tr_later("Done or reopen"), tr_later("Mark this conversation as done, or reopen it."), key="{done}"),
    Verb(
        "takeover",
        tr_later("Take this conversation over"),
        tr_later("Write here what is open in another window, which reads along then."),
        key="{takeover}",
    ),
    Verb("search", tr_later("Search"), tr_later("Search all conversations while you type."), key="{search}"),
    Verb(
        "pin",
        tr_later("Pin or unpin"),
        tr_later("Keep this conversation at the top of the list, or not."),
        key=tr_later("{list.pin} in the list"),
    ),
    Verb(
        "archive",
        tr_later("Archive, or back to the list"),
        tr_later("Take this conversation out of the list; search still finds it."),
        key=tr_later("{list.archive} in the list"),
    ),
    Verb(
        "trash",
        tr_later("Move to the trash"),
        tr_later("It can be taken back for 30 days."),
        key=tr_later("{list.trash} in the list"),
    ),
    Verb(
        "restore",
        tr_later("Restore from the trash"),
        tr_later("Put this conversation back on the list."),
        key=tr_later("{list.restore} in the trash"),
    ),
    Verb(
        "delete",
        tr_later("Delete for good"),
        tr_later("Delete this conversation of the trash for good, after a question."),
        key=tr_later("{list.trash} in the trash"),
    ),
    Verb(
        "back",
        tr_later("Take back the last trash, archive or pin"),
        tr_later("Undo the last change of a conversation's place."),
        key=tr_later("{list.undo} in the list"),
    ),
    Verb(
        "view",
        tr_later("List, archive or trash"),
        tr_later("Let the list show the archive, then the trash, then the conversations again."),
        key=tr_later("{list.view} in the list"),
    ),
    Verb(
        "revise",
        tr_later("Edit a question"),
        tr_later("The marked question, or the last one, as another version; both are kept."),
        key="{message.edit}",
    ),
    Verb(
        "again",
        tr_later("Answer once more"),
        tr_later("Another version of the marked answer, or of the last one; both are kept."),
        key="{message.again}",
    ),
    Verb(
        "continue",
        tr_later("Let the answer go on"),
        tr_later("Go on with an answer that was stopped, cut or interrupted."),
        key="{message.continue}",
    ),
    Verb(
        "previous",
        tr_later("Previous version"),
        tr_later("Show the version before this one, of the marked message or the last that has several."),
        key="{message.older}",
    ),
    Verb(
        "next",
        tr_later("Next version"),
        tr_later("Show the version behind this one, of the marked message or the last that has several."),
        key="{message.newer}",
    ),
    Verb(
        "fork",
        tr_later("Fork"),
        tr_later("A new conversation with what was said up to the marked message, or all of it."),
        key="{message.fork}",
    ),
    Verb(
        "undo",
        tr_later("Take back the last turn"),
        tr_later("Its question goes back into the box; the branch is kept."),
        key=tr_later("{text.undo} in the text"),
    ),
    Verb(
        "links",
        tr_later("Links of a message"),
        tr_later("Show the links of the marked message, or of the last answer that has some, and open one."),
        key="{message.links}",
    ),
    Verb(
        "begin",
        tr_later("Where the answer begins"),
        tr_later("Show where the marked answer begins, or the last one; the end is followed no more."),
        key="{answer}",
    ),
    Verb(
        "tree",
        tr_later("Tree of branches"),
        tr_later("All versions and branches of this conversation; one can be shown."),
        key="{message.tree}",
    ),
    Verb("stop", tr_later("Stop the answer"), tr_later("Stop the answer; its text so far is kept."), key="Escape"),
    Verb("copy", tr_later("Copy the last answer"), tr_later("Copy it without its reasoning.")),
    Verb(
        "code",
        tr_later("Copy a code block"),
        tr_later("Copy a code block of the marked message, or of the last answer that has one."),
    ),
    Verb(
        "sampling",
        tr_later("Sampling"),
        tr_later("How the answers of this conversation are sampled."),
        argument=tr_later("PRESET"),
        choices=_SAMPLING,
    ),
    Verb(
        "reasoning",
        tr_later("Reasoning in later prompts"),
        tr_later("Whether later prompts of this conversation contain the reasoning of its answers."),
        argument=tr_later("POLICY"),
        choices=_KEEPING,
    ),
    Verb(
        "attach",
        tr_later("Attach a file"),
        tr_later("Put a file's text into the message; @ in the box does the same."),
        argument=FILE,
    ),
    Verb(
        "snippet",
        tr_later("Insert a snippet"),
        tr_later("Put a text of your own into the box, with its variables filled in."),
        argument=tr_later("[NAME]"),
    ),
    Verb(
        "edit",
        tr_later("Open the draft in an editor"),
        tr_later("Write the message in the editor that VISUAL or EDITOR names."),
        key="{editor}",
    ),
    Verb(
        "system",
        tr_later("System prompt"),
        tr_later("Choose or write the system prompt; a conversation with messages goes on with it in a fork."),
        argument=tr_later("[@NAME|TEXT]"),
    ),
    Verb(
        "export",
        tr_later("Export to a file"),
        tr_later("Write this conversation to a new .md, .txt or .json file, or into a folder."),
        argument=FILE,
    ),
    Verb(
        "import",
        tr_later("Import from a file"),
        tr_later("Add the conversations of an export of chatapp, ChatGPT, Claude or others."),
        argument=FILE,
    ),
    Verb(
        "cost",
        tr_later("Cost of this conversation"),
        tr_later("Show its tokens and KV by message, and what coming back takes."),
    ),
    Verb("stats", tr_later("Statistics"), tr_later("Show how fast answers came and what was reused.")),
    Verb(
        "model",
        tr_later("Use another model"),
        tr_later("Choose one of the models on this machine, for this conversation or for new ones."),
    ),
    Verb("list", tr_later("Show or hide the list"), tr_later("Show or hide the list."), key="{list}"),
    Verb(
        "meters",
        tr_later("Meters as panel or line"),
        tr_later("Fold the meters to one line, or unfold them."),
        key="{meters}",
    ),
    Verb(
        "why",
        tr_later("Why was this slow?"),
        tr_later("Say where the time of the marked answer went, or of the last one."),
        key="{why}",
    ),
    Verb(
        "thoughts",
        tr_later("Fold or unfold reasoning"),
        tr_later("Show the whole reasoning of all answers, or fold it."),
        key="{reasoning}",
    ),
    Verb(
        "welcome",
        tr_later("Welcome"),
        tr_later("Show what the first start shows: the models, what the meters say, three things to try."),
    ),
    Verb(
        "help",
        tr_later("Keys and the model"),
        tr_later("Show all keys and commands, and what is known of the model."),
        key="{help}",
    ),
    Verb(
        "quit",
        tr_later("Quit the program"),
        tr_later("Quit; a running answer is stopped first and kept."),
        key="{quit}",
    ),
)

VERBS: Mapping[str, Verb] = {verb.name: verb for verb in _ALL}
"""As the window says them."""


def _other(name: str, sentence: str = "", argument: str | None = None, alias: str = "") -> Verb:
    """What plain mode says of a verb where that is something else."""
    verb = VERBS[name]
    own = verb.argument if argument is None else argument
    return replace(verb, sentence=sentence or verb.sentence, argument=own, alias=alias)


_OTHERS = (
    _other("help", tr_later("Show all commands."), tr_later("[NAME]")),
    _other(
        "list", tr_later("List conversations; /open takes their numbers."), tr_later("[N|archive|trash|#TAG|WORDS]")
    ),
    Verb("open", "", tr_later("Go on with a conversation; last is the last used one."), argument="N|ID|last"),
    Verb("show", "", tr_later("Show the last turns of this conversation."), argument="[N|all]"),
    _other("search", tr_later("Search all conversations; /open takes the numbers."), tr_later("WORDS")),
    _other("rename", alias="title"),
    _other("task", argument=tr_later("[TEXT]")),
    _other("trash", tr_later("Move a conversation to the trash, for 30 days."), "[N|ID]"),
    _other("restore", tr_later("Put a conversation of the trash back on the list."), "[N|ID]"),
    _other("delete", tr_later("Delete a conversation of the trash for good, after a question."), "N|ID"),
    _other("revise", tr_later("Another version of the last question, or of that message; both are kept."), "[N]"),
    _other("again", tr_later("Another version of the last answer; both are kept.")),
    _other("fork", tr_later("A new conversation with what was said up to that message, or all of it."), "[N]"),
    _other("undo", tr_later("Take back the last turn; the branch is kept.")),
    _other("tree", argument="[N]"),
    _other("attach", tr_later("Put a file's text before the next message.")),
    _other("edit", argument=tr_later("[TEXT]")),
    _other(
        "system", tr_later("Show or write the system prompt; a conversation with messages goes on with it in a fork.")
    ),
    _other("stats", argument="[on|off|all]"),
    _other("model", argument=tr_later("[NAME]")),
    _other("reasoning", argument="keep|strip"),
    _other("thoughts", tr_later("Whether the reasoning of answers is told."), "mark|show|hide"),
    Verb("policy", "", tr_later("What is done about messages of another task."), argument="[off|ask|strict]"),
    _other("quit", tr_later("Quit the program."), alias="exit"),
)

IN_PLAIN: Mapping[str, Verb] = {**VERBS, **{verb.name: verb for verb in _OTHERS}}
"""As plain mode says them."""
