"""`chatapp keys`: the commands of the window that have keys, and the keys that the settings give them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from chatapp.options import folder_options, json_option, settings_of

if TYPE_CHECKING:
    from chatapp.tui.keymap import Keymap

_PLACES = {
    "window": "In the window",
    "box": "In the box",
    "text": "In the text, the commands of a message while one is marked",
    "list": "In the list",
}


@click.command()
@json_option
@folder_options
@click.pass_context
def keys(context: click.Context, /, as_json: bool, **flags: Any) -> None:
    """List the commands of the window that have keys; `[keys]` in the settings file changes them."""
    from chatapp.console import Narrator, print_json, print_text
    from chatapp.tui.keymap import keymap

    found = keymap(settings_of(context, flags).keys)
    for problem in found.problems:
        Narrator().notice(problem)
    if as_json:
        print_json(_objects(found))
    else:
        print_text(_text(found))


def _objects(found: Keymap) -> list[dict[str, Any]]:
    from chatapp.tui.keymap import commands, key_text

    return [
        {
            "command": name,
            "place": bound.place,
            "keys": [key_text(key) for key in found.keys(name)],
            "default": [key_text(key) for key in bound.keys],
            "what": bound.what,
        }
        for name, bound in commands().items()
    ]


def _text(found: Keymap) -> str:
    """A table for each place: command, keys, what it does, and the own keys where the settings changed them."""
    lines: list[str] = []
    for place, title in _PLACES.items():
        lines += [title, ""]
        for one in _objects(found):
            if one["place"] == place:
                was = "" if one["keys"] == one["default"] else f" (without the settings: {', '.join(one['default'])})"
                lines.append(f"  {one['command']:<18}{', '.join(one['keys']):<16}{one['what']}{was}".rstrip())
        lines.append("")
    return "\n".join(lines)
