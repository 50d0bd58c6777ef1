import re
from collections.abc import Iterator
from pathlib import Path

import click

from chatapp.cli import Program, cli
from chatapp.objects import SAMPLING_KEYS, STATS_KEYS
from models.presets import PRESETS

PAGE = (Path(__file__).parents[2] / "docs" / "cli.md").read_text(encoding="utf-8")


def commands(group: click.Group, path: str = "") -> Iterator[tuple[str, click.Command]]:
    """Return all commands with their names; groups in modules of their own are imported for it."""
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command
        if isinstance(command, click.Group):
            yield from commands(command, f"{path}{name} ")
        else:
            yield f"{path}{name}", command


def test_every_command_and_flag_is_documented() -> None:
    """What the program offers is on the page."""
    names = [name for name, _ in commands(cli)]
    flags = {
        option
        for _, command in [("", cli), *commands(cli)]
        for parameter in command.params
        if isinstance(parameter, click.Option) and not parameter.hidden
        for option in (*parameter.opts, *parameter.secondary_opts)
    }
    assert [name for name in names if name not in PAGE] == []
    assert sorted(flag for flag in flags - {"--version", "--output"} if flag not in PAGE) == []


def test_help_says_of_a_group_what_the_group_says() -> None:
    """The sentences that stand in for groups which are not imported are theirs."""
    context = click.Context(cli)
    for name, sentence in Program.GROUPS.items():
        group = cli.get_command(context, name)
        assert group
        assert (group.name, (group.help or "").partition("\n")[0].startswith(sentence)) == (name, True)


def test_every_flag_on_the_page_exists() -> None:
    """The page offers nothing that the program does not have."""
    known = {
        option
        for _, command in [("", cli), *commands(cli)]
        for parameter in command.params
        for option in (*parameter.opts, *parameter.secondary_opts)
    }
    assert set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", PAGE)) - known == set()


def test_every_stat_is_documented() -> None:
    """The keys of the JSON interface are explained."""
    assert [key for key in (*STATS_KEYS, *SAMPLING_KEYS) if f"`{key}`" not in PAGE] == []


def test_presets_are_documented_with_their_values() -> None:
    """The table on the page is the one in the program, and the command offers the same names."""
    for name, values in PRESETS.items():
        cells = [f"{values[key]:g}" for key in ("temperature", "top_k", "top_p", "min_p", "repeat_penalty")]
        assert f"| `{name}` | {' | '.join(cells)} |" in PAGE
    offered = next(option.type for option in cli.commands["run"].params if option.name == "preset")
    assert isinstance(offered, click.Choice)
    assert list(offered.choices) == list(PRESETS)
