"""Every key of the window, in the order the help shows them; `{command}` stands for the keys of a command."""

from __future__ import annotations

from chatapp.texts import tr_later

KEYS: tuple[tuple[str, tuple[tuple[str, str], ...]], ...] = (
    (
        tr_later("Writing"),
        (
            ("Enter", tr_later("send the message")),
            ("Shift+Enter, Alt+Enter, Ctrl+J", tr_later("new line")),
            (tr_later("/ (in the empty box)"), tr_later("commands; // begins a message with a slash")),
            (tr_later("@ (in the box)"), tr_later("files below this folder: the chosen one is attached")),
            (tr_later("Tab, Enter (in their list)"), tr_later("take what is highlighted; Escape hides the list")),
            (tr_later("Up (in the first line)"), tr_later("the message before: of this conversation, then of all")),
            (tr_later("Down (in the last line)"), tr_later("the message behind, at last the draft")),
            ("{editor}", tr_later("write the message in the editor that VISUAL or EDITOR names")),
            (tr_later("Enter, Delete (on a chip)"), tr_later("show what it stands for; remove it")),
            ("Escape", tr_later("stop the answer, its text so far is kept; give up editing")),
            ("{box.up}, {box.down}", tr_later("scroll the conversation")),
        ),
    ),
    (
        tr_later("Conversations"),
        (
            ("{new}", tr_later("new conversation")),
            ("{list}", tr_later("show or hide the list")),
            (tr_later("{search}, {list.search} (in the list)"), tr_later("search all conversations")),
            (tr_later("Enter (in the list)"), tr_later("open the conversation; of what was found, the message")),
            (
                tr_later("{list.pin}, {list.archive} (in the list)"),
                tr_later("pin or unpin it; archive it or put it back"),
            ),
            (tr_later("{list.task}, {list.tags} (in the list)"), tr_later("its task line; its tags")),
            (
                tr_later("{list.trash} (in the list)"),
                tr_later("move it to the trash; in the trash, delete it for good"),
            ),
            (tr_later("{list.restore} (in the trash)"), tr_later("put it back")),
            (tr_later("{list.undo} (in the list)"), tr_later("take back the last trash, archive or pin")),
            (tr_later("{list.view} (in the list)"), tr_later("show the archive, then the trash, then the list")),
            ("{rename}", tr_later("rename; Ctrl+G there lets the model suggest a title")),
            ("{done}", tr_later("mark as done, or reopen")),
            ("{takeover}", tr_later("write here what is open in another window")),
        ),
    ),
    (
        tr_later("Messages"),
        (
            ("{previous}, {next}", tr_later("mark a message")),
            (tr_later("{text.previous}, {text.next} (in the text)"), tr_later("the same")),
            (tr_later("{message.edit} (marked)"), tr_later("edit the question: another version of it")),
            (tr_later("{message.again} (marked)"), tr_later("answer once more: another version of the answer")),
            (tr_later("{message.older}, {message.newer} (marked)"), tr_later("show the other versions")),
            (tr_later("{message.continue} (marked)"), tr_later("let an answer go on that was stopped or cut")),
            (tr_later("{message.fork} (marked)"), tr_later("fork: a new conversation up to here")),
            (tr_later("{message.copy} (marked)"), tr_later("copy the message, without reasoning")),
            (tr_later("{message.code} (marked)"), tr_later("copy a code block of the message")),
            (
                tr_later("{message.links} (marked)"),
                tr_later("the links of the message: Enter opens one, its address in sight"),
            ),
            (tr_later("{message.tree} (marked)"), tr_later("the tree of all branches")),
            (tr_later("{text.undo} (in the text)"), tr_later("take back the last turn")),
            (tr_later("Enter (marked)"), tr_later("unfold or fold what is attached")),
            (tr_later("Escape (marked)"), tr_later("mark no message")),
        ),
    ),
    (
        tr_later("Dialogs"),
        (
            ("Up, Down, Enter", tr_later("choose")),
            (tr_later("Space (in a list of turns)"), tr_later("mark a turn to be left out")),
            (tr_later("Ctrl+S, F8 (system prompt)"), tr_later("use the text; move out what changes from run to run")),
            (tr_later("F (in the cost)"), tr_later("fork without the old message that holds most")),
            ("Escape", tr_later("close without a change; stop a summary")),
        ),
    ),
    (
        tr_later("Window"),
        (
            ("Tab, Shift+Tab", tr_later("next, previous part of the window")),
            (tr_later("Home, End (in the text)"), tr_later("first message; newest text, and follow it")),
            ("{start}, {end}", tr_later("the same from everywhere")),
            ("{answer}", tr_later("where the marked or the last answer begins")),
            ("{reasoning}", tr_later("unfold or fold all reasoning")),
            ("{meters}", tr_later("meters as a panel or as one line")),
            ("{why}", tr_later("why was this slow? The numbers of the last or the marked answer in sentences")),
            ("{help}", tr_later("this help, and the facts of the model")),
            ("{palette}", tr_later("all commands, themes too")),
            ("Ctrl+C", tr_later("copy the selection; twice without one quits")),
            ("{quit}", tr_later("quit")),
        ),
    ),
)
