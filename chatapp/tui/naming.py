"""What a conversation is called and counted to, given in the box: its title, its task line, its tags."""

from __future__ import annotations

from chatapp.safe import clean_line
from chatapp.texts import tr
from chatapp.tui.stage import Stage


def rename(stage: Stage, title: str) -> None:
    """Give the conversation on the screen another title."""
    stage.refresh_title(stage.ask(lambda: stage.manager.rename(stage.current, title)))
    stage.refresh_sidebar()


def set_task(stage: Stage, task: str) -> None:
    """Give the conversation on the screen another task line."""
    if session := stage.ask(lambda: stage.manager.set_task(stage.current, task)):
        stage.refresh_title(session)
        stage.tell(tr("The task: {task}").format(task=clean_line(session.task, 120)))


def tag(stage: Stage, words: str) -> None:
    """Add tags to the conversation on the screen; a minus before one takes it away."""
    given = words.split()
    remove = [word[1:] for word in given if word.startswith("-")]
    add = [word for word in given if not word.startswith("-")]
    session = stage.ask(lambda: stage.manager.tag(stage.current, add=add, remove=remove))
    if session is not None:
        names = " ".join(f"#{clean_line(name, 40)}" for name in session.tags)
        stage.tell(tr("Tags: {tags}").format(tags=names) if names else tr("This conversation has no tag now."))
        stage.refresh()
