"""Which keys the window has, and what the user's settings make of them."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Literal

from textual.binding import Binding
from textual.keys import KEY_NAME_REPLACEMENTS, Keys, format_key

from chatapp.texts import tr

if TYPE_CHECKING:
    from textual.dom import DOMNode

Place = Literal["window", "box", "text", "list"]

_EVERYWHERE = frozenset({"enter", "escape", "tab", "shift+tab", "ctrl+c", "up", "down"})
"""Keys that choose, close and move wherever they are pressed."""
_WRITING = frozenset(
    {"backspace", "delete", "left", "right", "home", "end", "space"}
    | {"ctrl+j", "shift+enter", "alt+enter", "ctrl+enter", "ctrl+v"}
)
"""Keys that the box cannot do without."""
_SAME = {"ctrl+i": "Tab", "ctrl+m": "Enter", "ctrl+h": "Backspace", "ctrl+left_square_bracket": "Escape"}
"""Keys that most terminals cannot tell from another one."""
_KEY = re.compile(r"\{([a-z._]+)\}")
_MODIFIERS = ("ctrl", "alt", "shift", "super")
_NAMES = frozenset(str(key.value) for key in Keys) | {"space", "enter"}
_SHOWN = {
    "delete": "Delete",
    "pageup": "Page Up",
    "pagedown": "Page Down",
    "up": "Up",
    "down": "Down",
    "left": "Left",
    "right": "Right",
}


@dataclass(frozen=True, slots=True)
class Bound:
    """A command that has keys: its name in the settings, its own keys, where they work, what it is called."""

    id: str
    keys: tuple[str, ...]
    place: Place
    what: str


@dataclass(frozen=True, slots=True)
class Keymap:
    """The keys of all commands; `given` are those that differ from the program's own, by command.

    `problems` are sentences on entries of the settings that could not be used; the program's own keys stay there.
    """

    given: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    problems: tuple[str, ...] = ()

    def keys(self, name: str) -> tuple[str, ...]:
        """The keys of a command, in the terminal library's names."""
        return self.given.get(name) or commands()[name].keys

    def shown(self, name: str) -> str:
        """The keys of a command as people write them."""
        return ", ".join(shown_key(key) for key in self.keys(name))

    def fill(self, text: str) -> str:
        """Return a text with `{command}` replaced by the keys of that command."""
        return _KEY.sub(lambda found: self.shown(found[1]), text)

    @property
    def bindings(self) -> dict[str, str]:
        """What `App.set_keymap` takes."""
        return {name: ",".join(keys) for name, keys in self.given.items()}


@cache
def commands() -> Mapping[str, Bound]:
    """Return all commands whose keys can be changed, by name, in the order in which the window declares them."""
    # Imported late: these modules show keys.
    from chatapp.tui.app import ChatApp
    from chatapp.tui.commands import VERBS
    from chatapp.tui.composer import Composer
    from chatapp.tui.sidebar import Sidebar
    from chatapp.tui.transcript import Transcript

    places: tuple[tuple[Place, type[DOMNode]], ...] = (
        ("window", ChatApp),
        ("box", Composer),
        ("text", Transcript),
        ("list", Sidebar),
    )
    titles = {name: verb.title for verb in reversed(VERBS) for name in _KEY.findall(verb.key)}
    found: dict[str, Bound] = {}
    for place, owner in places:
        for binding in Binding.make_bindings(owner.BINDINGS):
            if binding.id is None:
                continue
            before = found.get(binding.id)
            keys = (*(before.keys if before else ()), binding.key)
            what = before.what if before else titles.get(binding.id, binding.description)
            found[binding.id] = Bound(binding.id, tuple(dict.fromkeys(keys)), place, what)
    return found


def keymap(given: Mapping[str, str]) -> Keymap:
    """Return the keys that settings ask for, each entry by itself: one that cannot be used spoils no other."""
    wanted: dict[str, tuple[str, ...]] = {}
    problems: list[str] = []
    for name, text in given.items():
        found = _read(name, text)
        if isinstance(found, str):
            problems.append(found)
        else:
            wanted[name] = found
    while clash := _clash(wanted):
        name, key, other = clash
        del wanted[name]
        sentence = tr(
            "keys: {key} for {name!r} belongs to {other!r} already: choose another key, or give {other!r} one."
        )
        problems.append(sentence.format(key=key_text(key), name=name, other=other))
    own = commands()
    return Keymap({name: keys for name, keys in wanted.items() if keys != own[name].keys}, tuple(problems))


def give_way(widget: DOMNode, keys: Keymap) -> None:
    """Let a field that edits text leave to the window the keys that the settings gave to the window.

    A field comes before the window when a key is pressed, and its own keys have no names that a keymap could change.
    """
    for name, given in keys.given.items():
        if commands()[name].place == "window":
            for key in given:
                widget._bindings.key_to_bindings.pop(key, None)


def shown_key(key: str) -> str:
    """A key as people write it: Ctrl+K, F5, Page Up, [."""
    *modifiers, base = key.split("+")
    if len(base) == 1 and base.isupper():
        modifiers.append("shift")
    name = _SHOWN.get(base) or format_key(base)
    name = name.upper() if len(name) == 1 else name[:1].upper() + name[1:]
    return "+".join([*(word.capitalize() for word in modifiers), name])


def key_text(key: str) -> str:
    """A key as it is written in the settings: ctrl+k, f5, pageup, [."""
    *modifiers, base = key.split("+")
    shown = format_key(base)
    return "+".join([*modifiers, shown if len(shown) == 1 and shown.isascii() else base])


def _read(name: str, text: str) -> tuple[str, ...] | str:
    """The keys of one entry, or a sentence."""
    bound = commands().get(name)
    if bound is None:
        if near := difflib.get_close_matches(name, commands(), n=1):
            sentence = tr("keys: there is no command {name!r}: perhaps {near!r} is meant.")
            return sentence.format(name=name[:40], near=near[0])
        return tr("keys: there is no command {name!r}: `chatapp keys` lists all.").format(name=name[:40])
    keys = tuple(_normal(part.strip()) for part in re.split(r",(?=.)", text.strip()) if part.strip())
    if not keys:
        sentence = tr("keys: {name!r} has no key: write one, such as {name!r} = {key!r}.")
        return sentence.format(name=name, key=key_text(bound.keys[0]))
    for key in keys:
        if refusal := _refusal(key, bound):
            return refusal.format(key=key[:40], name=name, same=_SAME.get(key, ""))
    return keys


def _normal(text: str) -> str:
    """A key in the terminal library's names; what is none stays as it is."""
    *modifiers, base = text.split("+") if not text.endswith("+") else [*text[:-1].rstrip("+").split("+"), "+"]
    modifiers = [word.strip().lower() for word in modifiers if word.strip()]
    base = base.strip()
    if len(base) == 1:
        if modifiers == ["shift"] and base.isalpha():
            return base.upper()
        base = base.lower() if modifiers else base
        named = _named(base)
    else:
        named = base.lower().replace(" ", "")
    return "+".join([*sorted(modifiers, key=_order), named])


def _order(modifier: str) -> int:
    return _MODIFIERS.index(modifier) if modifier in _MODIFIERS else len(_MODIFIERS)


def _named(character: str) -> str:
    """The name of the key that types a character."""
    import unicodedata

    if character.isalnum():
        return character
    name = unicodedata.name(character, "").lower().replace("-", "_").replace(" ", "_")
    return KEY_NAME_REPLACEMENTS.get(name, name) or character


def _refusal(key: str, bound: Bound) -> str | None:
    """Why a key cannot be given to a command: a sentence with places for the key, the command and the same key."""
    *modifiers, base = key.split("+")
    is_character = len(base) == 1 and base.isprintable()
    shown = format_key(base)
    is_mark = len(shown) == 1 and shown.isprintable() and base not in _NAMES
    if any(word not in _MODIFIERS for word in modifiers) or not (is_character or is_mark or base in _NAMES):
        return tr(
            "keys: {key!r} for {name!r} is no key: write one like f7, ctrl+k, alt+up or [, several with commas between."
        )
    if key in _SAME:
        return tr("keys: {key!r} for {name!r} is the same as {same} in most terminals: choose another key.")
    writes = bound.place in ("window", "box")
    if key in _EVERYWHERE or (writes and key in _WRITING):
        return tr("keys: {key!r} for {name!r} is needed to write, to choose and to close: choose another key.")
    if writes and (is_character or is_mark) and not {"ctrl", "alt", "super"} & set(modifiers):
        return tr(
            "keys: {key!r} for {name!r} would be typed into the box: put ctrl or alt before it, or take a function key."
        )
    return None


def _clash(wanted: Mapping[str, tuple[str, ...]]) -> tuple[str, str, str] | None:
    """The last entry whose key another command has too, that key, and the other command."""
    own = commands()
    final = {name: wanted.get(name, bound.keys) for name, bound in own.items()}
    for name in reversed(list(wanted)):
        for key in wanted[name]:
            for other, keys in final.items():
                if other != name and key in keys and _meet(own[name].place, own[other].place):
                    return name, key, other
    return None


def _meet(one: Place, other: Place) -> bool:
    """True if a key could mean either of two commands: those of the window work everywhere."""
    return one == other or "window" in (one, other)
