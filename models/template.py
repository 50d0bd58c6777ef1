"""Chat template -> append-only token runs: the text around message bodies, found by probing it.

A template may do anything with a conversation. What can be kept in a KV cache is one that prints each message
where it stands, and around it a text that depends only on its role and the role before: the *glue*. Probe
conversations with unique bodies are rendered in a short-lived process; the gaps between the bodies are the
glue; and each probe is then rebuilt from the glue and compared character by character. A template that does
not pass is refused with the reason; where a rule of docs/prompts.md says what is done instead, `Glue.notes` does.

Only renderings that end in a generation prompt are compared: they are all a model ever reads.
"""

from __future__ import annotations

import datetime
import hashlib
import itertools
import json
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, get_args

from models.cachefile import write_atomically
from models.engine import Role
from models.errors import ModelError, TemplateError
from models.formats import known_formats, template_of
from models.glue import Glue, Trim, one_line
from models.reasoning import FAMILIES, Family, family_in

Turns = tuple[tuple[Role, str], ...]
"""A probe conversation: roles and bodies."""

Render = Callable[[Turns, bool], str]
"""A conversation, and whether a generation prompt follows -> the template's text; raises `TemplateError`."""

_FORMAT = "glue 3"
_RENDERER = Path(__file__).with_name("renderer.py")
_TIME_LIMIT_S = 1.7
_START_LIMIT_S = 20.0
_FROZEN_DAYS = 30
_ROLES: dict[str, Role] = {"s": "system", "u": "user", "a": "assistant"}
_MUST_PASS = ("u", "uau", "uauau")
_LONG = "u" + "au" * 12
_WITH_SYSTEM = ("su", "suauau")
_USER_TWICE = ("uu", "uauu")
_PLAIN = "Zq{}qZ"
_SPACED = " \n\t Zq{}qZ \t\n "
_LINES = "\n\nZq{}qZ\n\n"
_ODD = "Zq{} {{{{ x }}}} {{% y %}} {{# z #}} <b>&amp;\\n</b> é 漢字 🙂 'q' \"qZ"
_TRIMS: tuple[Trim, ...] = get_args(Trim)


@dataclass(frozen=True, slots=True)
class _Rendered:
    """What came back from the renderer process."""

    render: Render
    reads_clock: bool


def probe(
    template: str | None,
    *,
    bos_token: str,
    eos_token: str,
    cache_dir: Path,
    chat_format: str | None = None,
    today: Callable[[], datetime.date] = lambda: datetime.datetime.now().astimezone().date(),
) -> Glue:
    """Find the glue of a chat template, or raise `TemplateError` with a sentence that says why there is none.

    `chat_format` names one of `known_formats` to be used in place of the model's own template; None is a model file
    without one. Takes 0.3 s, and about 2 s for a template that does not end. A glue once found is read from
    `cache_dir/templates`; a cache file that cannot be read, or is damaged, counts for nothing. A template that asks
    for the time is told the day of its first probe, and is probed again for another only after `_FROZEN_DAYS`.
    """
    if chat_format is not None:
        template = template_of(chat_format)
    if template is None:
        raise ModelError(
            "The model file has no chat template, so its turns cannot be built; choose a chat model, or name the "
            f"format it was trained with: {', '.join(known_formats())}."
        )
    parts = json.dumps([_FORMAT, template, bos_token, eos_token])
    path = cache_dir / "templates" / f"{hashlib.sha256(parts.encode()).hexdigest()}.json"
    day = today()
    glue = _read_cache(path)
    if glue is None or _is_outdated(glue, day):
        rendered = _render_probes(template, bos_token, eos_token, day)
        glue = derive(rendered.render, bos_token=bos_token, family=family_in(template))
        glue = replace(glue, frozen=day.isoformat() if rendered.reads_clock else None)
        _write_cache(path, glue)
    return replace(glue, chat_format=chat_format)


def derive(render: Render, *, bos_token: str, family: Family | None = None) -> Glue:
    """Find the glue by rendering probe conversations; raises `TemplateError`. As pure as `render` is.

    `family` is how the template marks reasoning.
    """
    first_user, before_answer = _gaps(render, "u")
    _, before_past, after_answer, _ = _gaps(render, "uau")
    user_close = _closing(render, "u", before_answer, before_past)
    assistant_close = _closing(render, "ua", after_answer)
    glue = Glue(
        bos_token=bos_token,
        first_user=first_user,
        answer_user=after_answer.removeprefix(assistant_close),
        user_close=user_close,
        assistant=before_answer.removeprefix(user_close),
        past_assistant=before_past.removeprefix(user_close),
        assistant_close=assistant_close,
    )
    glue = _verified(render, glue, _MUST_PASS, ("user", "assistant"))
    if not _reproduces(render, glue, _talk(_LONG)):
        raise TemplateError("The model's chat template rewrites earlier turns of long conversations.")
    glue = _with_system(render, glue)
    glue = _with_user_twice(render, glue)
    if family is None:
        return glue
    rewrites = any(_rewrites(render, answer) for answer in _reasonings(family))
    return replace(glue, reasoning=family.name, rewrites_reasoning=rewrites)


# --- from renderings to glue ---


def _talk(roles: str, body: str = _PLAIN) -> Turns:
    """Return a conversation of one-letter roles; `body` gets each message's place, so that all differ."""
    return tuple((_ROLES[letter], body.format(place)) for place, letter in enumerate(roles))


def _gaps(render: Render, roles: str, *, generation_prompt: bool = True) -> list[str]:
    """Return the texts before, between and after the bodies of a plain conversation."""
    turns = _talk(roles)
    rest = render(turns, generation_prompt)
    gaps = []
    for _, body in turns:
        if rest.count(body) != 1:
            raise TemplateError("The model's chat template drops, repeats or reorders messages.")
        gap, _, rest = rest.partition(body)
        gaps.append(gap)
    return [*gaps, rest]


def _closing(render: Render, roles: str, *followings: str) -> str:
    """Return how much of each of `followings` belongs to the last message: what is printed when nothing follows it.

    Empty where that cannot be told; all of it then belongs to the next message's opening.
    """
    try:
        closing = _gaps(render, roles, generation_prompt=False)[-1]
    except TemplateError:
        return ""
    return closing if all(following.startswith(closing) for following in followings) else ""


def _with_system(render: Render, glue: Glue) -> Glue:
    """Add the glue of a system prompt, or the reason why there can be none."""
    try:
        first_system, between, _ = _gaps(render, "su")
        # What opens a user's turn after an answer opens it here too, where the template is regular.
        is_regular = glue.answer_user and between.endswith(glue.answer_user)
        system_close = between.removesuffix(glue.answer_user) if is_regular else ""
        found = replace(
            glue,
            first_system=first_system,
            system_close=system_close,
            system_user=between.removeprefix(system_close),
        )
        return _verified(render, found, _WITH_SYSTEM, ("system",))
    except TemplateError as exc:
        return replace(glue, system_refusal=str(exc))


def _with_user_twice(render: Render, glue: Glue) -> Glue:
    """Add the opening after a message that was never answered, if the template allows two in a row."""
    try:
        between = _gaps(render, "uu")[1]
        if not between.startswith(glue.user_close):
            return glue
        found = replace(glue, user_user=between.removeprefix(glue.user_close))
        return _verified(render, found, _USER_TWICE, ())
    except TemplateError:
        return glue


def _reasonings(family: Family) -> tuple[str, str]:
    """Return answers with reasoning: with the mark that begins it, and without as behind a prompt that has it."""
    rest = f"\nZq\n{family.close}\n\nqZ"
    return family.open + rest, rest.lstrip()


def _rewrites(render: Render, answer: str) -> bool:
    """True when an earlier answer with reasoning is not printed as it was given."""
    try:
        return answer not in render(_after(answer), True)
    except TemplateError:
        return True


def _after(answer: str) -> Turns:
    """Return a conversation with this answer in its history."""
    return (("user", "ZqZ"), ("assistant", answer), ("user", "qZq"))


def _verified(render: Render, glue: Glue, conversations: Sequence[str], roles: tuple[Role, ...]) -> Glue:
    """Return the glue with what is trimmed of `roles`; raise unless it reproduces the conversations."""
    for roles_of, body in itertools.product(conversations, (_PLAIN, _ODD)):
        if not _reproduces(render, glue, _talk(roles_of, body)):
            raise TemplateError("The model's chat template rewrites earlier turns or changes their texts.")
    spaced = [_talk(roles_of, body) for roles_of in conversations for body in (_SPACED, _LINES)]
    for ends in itertools.product(_TRIMS, repeat=2 * len(roles)):
        trims = tuple(zip(roles, ends[::2], ends[1::2], strict=True))
        found = tuple(trim for trim in trims if trim[1:] != ("nothing", "nothing"))
        trying = replace(glue, trimmed=(*glue.trimmed, *found))
        if all(_reproduces(render, trying, turns) for turns in spaced):
            return trying
    raise TemplateError("The model's chat template changes white space in messages in an irregular way.")


def _reproduces(render: Render, glue: Glue, turns: Turns) -> bool:
    """True when the glue gives what the template gives, generation prompt included."""
    text, previous = "", None
    for role, body in turns:
        opening = glue.past_opening(body) if role == "assistant" else glue.opening(previous, role)
        text += opening + glue.body(role, body) + glue.closing(role)
        previous = role
    return text + glue.opening(previous, "assistant") == render(turns, True)


# --- the renderer process ---


def _all_probes() -> Iterator[tuple[Turns, bool]]:
    """Each conversation `derive` asks for, rendered in one go because starting a process is what costs."""
    for roles in (*_MUST_PASS, *_WITH_SYSTEM, *_USER_TWICE):
        for body in (_PLAIN, _ODD, _SPACED, _LINES):
            yield _talk(roles, body), True
    yield _talk(_LONG), True
    yield _talk("u"), False
    yield _talk("ua"), False
    for family in FAMILIES:
        for answer in _reasonings(family):
            yield _after(answer), True


def _render_probes(template: str, bos_token: str, eos_token: str, day: datetime.date) -> _Rendered:
    """Render all probes in the renderer process; return a look-up among its answers."""
    probes = list(_all_probes())
    request = {
        "template": template,
        "bos_token": bos_token,
        "eos_token": eos_token,
        "today": day.isoformat(),
        "time_limit_s": _TIME_LIMIT_S,
        "conversations": [
            {
                "messages": [{"role": role, "content": body} for role, body in turns],
                "add_generation_prompt": generation_prompt,
            }
            for turns, generation_prompt in probes
        ],
    }
    answers = dict(zip(probes, _ask_renderer(request), strict=True))

    def render(turns: Turns, generation_prompt: bool) -> str:
        answer = answers[turns, generation_prompt]
        if answer["error"] is not None:
            raise TemplateError(_because("The model's chat template raises an error", answer["error"]))
        return str(answer["text"])

    return _Rendered(render, any(answer["clock"] for answer in answers.values()))


def _ask_renderer(request: dict[str, Any]) -> list[dict[str, Any]]:
    try:
        child = subprocess.run(
            [sys.executable, "-I", str(_RENDERER)],
            input=json.dumps(request).encode(),
            capture_output=True,
            timeout=_START_LIMIT_S,
            check=False,
        )
    except subprocess.TimeoutExpired as exc:
        raise TemplateError("The process that renders the model's chat template did not start in time.") from exc
    except OSError as exc:
        raise TemplateError(
            _because("The process that renders the model's chat template cannot start", str(exc))
        ) from exc
    if child.stderr.startswith(b"Timeout"):  # faulthandler's first word
        raise TemplateError(f"The model's chat template takes longer than {_TIME_LIMIT_S:g} s.")
    if child.returncode != 0:
        last = child.stderr.decode(errors="replace").strip().rpartition("\n")[2]
        reason = last or f"exit code {child.returncode}"
        raise TemplateError(_because("The process that renders the model's chat template broke", reason))
    answer = json.loads(child.stdout)
    if answer["error"] is not None:
        raise TemplateError(_because("The model's chat template is not valid", answer["error"]))
    renderings: list[dict[str, Any]] = answer["renderings"]
    return renderings


def _because(what: str, reason: str) -> str:
    """Return a sentence that ends in a foreign reason."""
    return f"{what}: {one_line(reason).removesuffix('.')}."


# --- the cache ---


def _digest(fields: object) -> str:
    return hashlib.sha256(json.dumps(fields, sort_keys=True).encode()).hexdigest()


def _read_cache(path: Path) -> Glue | None:
    try:
        cached = json.loads(path.read_bytes())
        fields = cached["glue"]
        if cached["sha256"] != _digest(fields):
            return None
        return Glue(**{**fields, "trimmed": tuple(map(tuple, fields["trimmed"]))})
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
        return None


def _is_outdated(glue: Glue, day: datetime.date) -> bool:
    """True when a template has long been told the same day, or one that has not come yet."""
    if glue.frozen is None:
        return False
    age = (day - datetime.date.fromisoformat(glue.frozen)).days
    return not 0 <= age < _FROZEN_DAYS


def _write_cache(path: Path, glue: Glue) -> None:
    fields = asdict(glue)
    write_atomically(path, json.dumps({"sha256": _digest(fields), "glue": fields}, indent=1).encode())
