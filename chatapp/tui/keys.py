"""Every key of the window, in the order the help shows them."""

from __future__ import annotations

KEYS: tuple[tuple[str, tuple[tuple[str, str], ...]], ...] = (
    (
        "Writing",
        (
            ("Enter", "send the message"),
            ("Shift+Enter, Alt+Enter, Ctrl+J", "new line"),
            ("/ (in the empty box)", "commands; // begins a message with a slash"),
            ("@ (in the box)", "files below this folder: the chosen one is attached"),
            ("Tab, Enter (in their list)", "take what is highlighted; Escape hides the list"),
            ("Up (in the first line)", "the message before: of this conversation, then of all"),
            ("Down (in the last line)", "the message behind, at last the draft"),
            ("F6", "write the message in the editor that VISUAL or EDITOR names"),
            ("Enter, Delete (on a chip)", "show what it stands for; remove it"),
            ("Escape", "stop the answer, its text so far is kept; give up editing"),
            ("Page Up, Page Down", "scroll the conversation"),
        ),
    ),
    (
        "Conversations",
        (
            ("Ctrl+N", "new conversation"),
            ("Ctrl+B", "show or hide the list"),
            ("Ctrl+F, / (in the list)", "search all conversations"),
            ("Enter (in the list)", "open the conversation; of what was found, the message"),
            ("P, A (in the list)", "pin or unpin it; archive it or put it back"),
            ("T, # (in the list)", "its task line; its tags"),
            ("Delete (in the list)", "move it to the trash; in the trash, delete it for good"),
            ("R (in the trash)", "put it back"),
            ("U (in the list)", "take back the last trash, archive or pin"),
            ("V (in the list)", "show the archive, then the trash, then the list"),
            ("F2", "rename; Ctrl+G there lets the model suggest a title"),
            ("F4", "mark as done, or reopen"),
        ),
    ),
    (
        "Messages",
        (
            ("Alt+Up, Alt+Down", "mark a message"),
            ("[, ] (in the text)", "the same"),
            ("E (marked)", "edit the question: another version of it"),
            ("R (marked)", "answer once more: another version of the answer"),
            ("Left, Right (marked)", "show the other versions"),
            ("C (marked)", "let an answer go on that was stopped or cut"),
            ("F (marked)", "fork: a new conversation up to here"),
            ("Y (marked)", "copy the message, without reasoning"),
            ("T (marked)", "the tree of all branches"),
            ("Ctrl+Z (in the text)", "take back the last turn"),
            ("Enter (marked)", "unfold or fold what is attached"),
            ("Escape (marked)", "mark no message"),
        ),
    ),
    (
        "Dialogs",
        (
            ("Up, Down, Enter", "choose"),
            ("Space (in a list of turns)", "mark a turn to be left out"),
            ("Ctrl+S, F8 (system prompt)", "use the text; move out what changes from run to run"),
            ("F (in the cost)", "fork without the old message that holds most"),
            ("Escape", "close without a change; stop a summary"),
        ),
    ),
    (
        "Window",
        (
            ("Tab, Shift+Tab", "next, previous part of the window"),
            ("Home, End (in the text)", "first message; newest text, and follow it"),
            ("Ctrl+Home, Ctrl+End", "the same from everywhere"),
            ("F5", "unfold or fold all reasoning"),
            ("F3", "meters as a panel or as one line"),
            ("F1", "this help, and the facts of the model"),
            ("Ctrl+P", "all commands, themes too"),
            ("Ctrl+C", "copy the selection; twice without one quits"),
            ("Ctrl+Q", "quit"),
        ),
    ),
)
