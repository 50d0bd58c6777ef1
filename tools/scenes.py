"""The scenes of the documentation's pictures, and those that the snapshot tests compare."""

from __future__ import annotations

from tools.studio import OTHER_TASK, QUESTIONS, Scene, Studio

PASTED = "2026-05-28 12:00:01 INFO worker 3 took job 1847 and finished it after 0.21 s\n" * 160


async def _nothing(_: Studio) -> None:
    """The conversation as it was resumed."""


async def _answering(studio: Studio) -> None:
    studio.engine.hang_at = 150
    await studio.press(*QUESTIONS[2], "enter")
    await studio.until(lambda: studio.app.readings.n_output == 150)


async def _searching(studio: Studio) -> None:
    await studio.press("ctrl+f", *"disk")
    await studio.sees("answer ·")


async def _listing(studio: Studio) -> None:
    await studio.press("shift+tab", "shift+tab")
    studio.app.stage.sidebar.focus()
    await studio.press("down", "down")


async def _marking(studio: Studio) -> None:
    await studio.press("alt+up")


async def _tree(studio: Studio) -> None:
    await studio.press("alt+up", "r")
    await studio.sees("2/2")
    await studio.press("escape", *"/tree", "enter")
    await studio.sees("Branches")


async def _cost(studio: Studio) -> None:
    await studio.press(*"/cost", "enter")
    await studio.sees("Cost")


async def _statistics(studio: Studio) -> None:
    await studio.press(*"/stats", "enter")
    await studio.sees("tokens were reused")


async def _system(studio: Studio) -> None:
    await studio.press(*"/system", "enter")
    await studio.sees("System prompt")
    await studio.press(*"You answer in short sentences. Today is 2026-05-28.")


async def _welcome(studio: Studio) -> None:
    await studio.press("ctrl+n", *"/welcome", "enter")
    await studio.sees("in use")


async def _welcome_meters(studio: Studio) -> None:
    await _welcome(studio)
    await studio.press("right")
    await studio.sees("TPOT ")


async def _help(studio: Studio) -> None:
    await studio.press("f1")
    await studio.sees("Writing")


async def _palette(studio: Studio) -> None:
    await studio.press("ctrl+p", *"copy")
    await studio.sees("Copy a code block")


async def _task(studio: Studio) -> None:
    await studio.press(*OTHER_TASK, "enter")
    await studio.sees("Enter chooses")


async def _limit(studio: Studio) -> None:
    studio.composer.take_paste(PASTED)
    await studio.press("enter")
    await studio.sees("Enter chooses")


PICTURES = (
    Scene("welcome", "The welcome of the first start: the models that were found on this machine", _welcome),
    Scene("welcome-meters", "The welcome's second step: what the meters say, with their glyphs", _welcome_meters),
    Scene(
        "chat", "The window: conversations left, an answer being written in the middle, the meters right", _answering
    ),
    Scene("resume", "A conversation just resumed: its tokens restored from disk", _nothing),
    Scene("list", "The list with the focus: the facts of the highlighted conversation stand below it", _listing),
    Scene("search", "Search while you type: what was found stands in the place of the list", _searching),
    Scene("marked", "A marked message: the last line shows the letters that are verbs now", _marking),
    Scene("tree", "The tree of branches: two versions of an answer", _tree),
    Scene("cost", "The cost of a conversation, message by message", _cost),
    Scene("stats", "Statistics by model and by day", _statistics),
    Scene("system", "Choosing a system prompt", _system),
    Scene("help", "The help: keys by the place where they work", _help),
    Scene("palette", "The palette finds every command by name", _palette),
    Scene("task", "A draft of another task: the window offers a new conversation", _task),
    Scene("limit", "A message that does not fit into the context: the ways on", _limit),
    Scene("light", "The light theme", _answering, theme="light"),
    Scene("contrast", "High contrast", _answering, theme="contrast-dark"),
    Scene("small", "A window of 60 columns and 16 lines: list and meters are folded away", _answering, size=(60, 16)),
)

SNAPSHOTS = (
    Scene("dark", "the dark theme", _answering, size=(104, 28)),
    Scene("light", "the light theme", _answering, size=(104, 28), theme="light"),
    Scene("contrast", "high contrast", _answering, size=(104, 28), theme="contrast-dark"),
    Scene("colourless", "NO_COLOR, the list with the focus", _listing, size=(104, 28), is_colourless=True),
    Scene("60x16", "a small window", _answering, size=(60, 16)),
    Scene("80x24", "a usual terminal", _answering, size=(80, 24)),
    Scene("help", "the help", _help, size=(80, 24)),
    Scene("stats", "the statistics", _statistics, size=(80, 24)),
    Scene("welcome", "the meters in the welcome, without colours", _welcome_meters, size=(80, 24), is_colourless=True),
)
