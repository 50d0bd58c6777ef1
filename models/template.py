"""Chat template -> append-only token runs: the text around message bodies, found by probing it.

A template may do anything with a conversation. What can be kept in a KV cache is one that prints each message
where it stands, and around it a text that depends only on its role and the role before: the *glue*. Probe
conversations with unique bodies are rendered in a short-lived process; the gaps between the bodies are the
glue; and each probe is then rebuilt from the glue and compared character by character. A template that does
not pass is refused with the reason.

Only renderings that end in a generation prompt are compared: they are all a model ever reads.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from models.cachefile import write_atomically
from models.engine import Entry, Role, TokenRun
from models.errors import TemplateError

Tokenize = Callable[[str, bool], list[int]]
"""Text, and whether control tokens in it are meant as such -> token ids, without BOS."""

Turns = tuple[tuple[Role, str], ...]
"""A probe conversation: roles and bodies."""

Render = Callable[[Turns, bool], str]
"""A conversation, and whether a generation prompt follows -> the template's text; raises `TemplateError`."""

_FORMAT = "glue 1"
_RENDERER = Path(__file__).with_name("renderer.py")
_TIME_LIMIT_S = 2.0
_START_LIMIT_S = 20.0
_ROLES: dict[str, Role] = {"s": "system", "u": "user", "a": "assistant"}
_MUST_PASS = ("u", "uau", "uauau")
_WITH_SYSTEM = ("su", "suauau")
_USER_TWICE = ("uu", "uauu")
_PLAIN = "Zq{}qZ"
_SPACED = " \n\t Zq{}qZ \t\n "
_ODD = "Zq{} {{{{ x }}}} {{% y %}} {{# z #}} <b>&amp;\\n</b> é 漢字 🙂 'q' \"qZ"
_THINKING: Turns = (("user", "ZqZ"), ("assistant", "<think>\nZq\n</think>\n\nqZ"), ("user", "qZq"))


@dataclass(frozen=True, slots=True)
class Glue:
    """What a template prints around message bodies. Each message owns its opening, its body and its closing.

    `first_user` and `first_system` open a conversation (BOS and a default system block included),
    `system_user` opens the user's turn after the system prompt, `answer_user` after an answer, `user_user`
    after a message that was never answered (None: the template does not allow it); `assistant` is the
    generation prompt. `system_refusal` says why there can be no system prompt. `trimmed` are the roles whose
    bodies the template strips. `rewrites_reasoning`: in earlier answers the template drops `<think>` blocks;
    token runs keep them.
    """

    bos_token: str
    first_user: str
    answer_user: str
    user_close: str
    assistant: str
    assistant_close: str
    user_user: str | None = None
    first_system: str = ""
    system_close: str = ""
    system_user: str = ""
    system_refusal: str | None = None
    trimmed: tuple[Role, ...] = ()
    rewrites_reasoning: bool = False

    @property
    def supports_system(self) -> bool:
        """True when a system prompt may come first."""
        return self.system_refusal is None

    @property
    def bos_printed(self) -> bool:
        """True when the template prints the BOS token itself, so that the tokenizer must not add one."""
        return bool(self.bos_token) and self.first_user.startswith(self.bos_token)

    def opening(self, previous: Role | None, role: Role) -> str:
        """Return the text before a body of `role` after a message of `previous` (None: it is the first).

        Raises `TemplateError` for an order of roles the template does not allow.
        """
        if role == "system" and self.system_refusal is not None:
            raise TemplateError(f"this model takes no system prompt: {self.system_refusal}")
        openings: dict[tuple[Role | None, Role], str | None] = {
            (None, "system"): self.first_system,
            (None, "user"): self.first_user,
            ("system", "user"): self.system_user,
            ("assistant", "user"): self.answer_user,
            ("user", "user"): self.user_user,
            ("user", "assistant"): self.assistant,
        }
        text = openings.get((previous, role))
        if text is None:
            place = "at the start" if previous is None else f"right after a {previous} message"
            raise TemplateError(f"the model's chat template allows no {role} message {place}")
        return text

    def closing(self, role: Role) -> str:
        """Return the text after a body of `role`."""
        return {"system": self.system_close, "user": self.user_close, "assistant": self.assistant_close}[role]

    def body(self, role: Role, text: str) -> str:
        """Return the text as the template would print it: stripped, or as it is."""
        return text.strip() if role in self.trimmed else text


def probe(template: str, *, bos_token: str, eos_token: str, cache_dir: Path) -> Glue:
    """Find the glue of a chat template, or raise `TemplateError` with a sentence that says why there is none.

    Takes 0.3 s, and about 2.3 s for a template that does not end. A glue once found is read from
    `cache_dir/templates`; a cache file that cannot be read, or is damaged, counts for nothing.
    """
    parts = json.dumps([_FORMAT, template, bos_token, eos_token])
    path = cache_dir / "templates" / f"{hashlib.sha256(parts.encode()).hexdigest()}.json"
    glue = _read_cache(path)
    if glue is None:
        glue = derive(_render_probes(template, bos_token, eos_token), bos_token=bos_token)
        _write_cache(path, glue)
    return glue


def derive(render: Render, *, bos_token: str) -> Glue:
    """Find the glue by rendering probe conversations; raises `TemplateError`. As pure as `render` is."""
    first_user, before_answer = _gaps(render, "u")
    after_answer = _gaps(render, "uau")[2]
    user_close = _closing(render, "u", before_answer)
    assistant_close = _closing(render, "ua", after_answer)
    glue = Glue(
        bos_token=bos_token,
        first_user=first_user,
        answer_user=after_answer.removeprefix(assistant_close),
        user_close=user_close,
        assistant=before_answer.removeprefix(user_close),
        assistant_close=assistant_close,
    )
    glue = _verified(render, glue, _MUST_PASS, ("user", "assistant"))
    glue = _with_system(render, glue)
    glue = _with_user_twice(render, glue)
    return replace(glue, rewrites_reasoning=_rewrites_reasoning(render, glue))


def tokenize_entries(
    entries: Sequence[Entry], glue: Glue, tokenize: Tokenize, add_bos: int | None
) -> tuple[TokenRun, ...]:
    """Return the run of each entry: the one it has, else opening, body and closing tokenized on their own.

    Only glue may become control tokens; a body never does. `add_bos` is the BOS id where the tokenizer wants
    one; it is put first unless the template has printed it. Raises `TemplateError` for roles the template
    does not allow.
    """
    runs: list[TokenRun] = []
    previous: Role | None = None
    for entry in entries:
        runs.append(entry.run or _run(entry, previous, glue, tokenize, add_bos))
        previous = entry.role
    return tuple(runs)


def assistant_glue(previous: Role | None, glue: Glue, tokenize: Tokenize) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the token ids that stand before and after an answer to a message of `previous`."""
    opening = tokenize(glue.opening(previous, "assistant"), True)
    return tuple(opening), tuple(tokenize(glue.closing("assistant"), True))


def _run(entry: Entry, previous: Role | None, glue: Glue, tokenize: Tokenize, add_bos: int | None) -> TokenRun:
    opening = tokenize(glue.opening(previous, entry.role), True)
    if previous is None and add_bos is not None and opening[:1] != [add_bos]:
        opening = [add_bos, *opening]
    body = tokenize(glue.body(entry.role, entry.text), False)
    closing = tokenize(glue.closing(entry.role), True)
    body_end = len(opening) + len(body)
    return TokenRun((*opening, *body, *closing), len(opening), body_end)


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
            raise TemplateError("the model's chat template drops, repeats or reorders messages")
        gap, _, rest = rest.partition(body)
        gaps.append(gap)
    return [*gaps, rest]


def _closing(render: Render, roles: str, following: str) -> str:
    """Return how much of `following` belongs to the last message: what is printed when nothing follows it.

    Empty where that cannot be told; all of it then belongs to the next message's opening.
    """
    try:
        closing = _gaps(render, roles, generation_prompt=False)[-1]
    except TemplateError:
        return ""
    return closing if following.startswith(closing) else ""


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


def _rewrites_reasoning(render: Render, glue: Glue) -> bool:
    """True when an earlier answer with a `<think>` block is not printed as it was given."""
    try:
        return not _reproduces(render, glue, _THINKING)
    except TemplateError:
        return True


def _verified(render: Render, glue: Glue, conversations: Sequence[str], roles: tuple[Role, ...]) -> Glue:
    """Return the glue with the trimmed among `roles`; raise unless it reproduces the conversations."""
    for roles_of, body in itertools.product(conversations, (_PLAIN, _ODD)):
        if not _reproduces(render, glue, _talk(roles_of, body)):
            raise TemplateError("the model's chat template rewrites earlier turns or changes their texts")
    subsets = itertools.chain.from_iterable(itertools.combinations(roles, n) for n in range(len(roles) + 1))
    for subset in subsets:
        trying = replace(glue, trimmed=(*glue.trimmed, *subset))
        if all(_reproduces(render, trying, _talk(roles_of, _SPACED)) for roles_of in conversations):
            return trying
    raise TemplateError("the model's chat template changes white space in messages in an irregular way")


def _reproduces(render: Render, glue: Glue, turns: Turns) -> bool:
    """True when the glue gives what the template gives, generation prompt included."""
    text, previous = "", None
    for role, body in turns:
        text += glue.opening(previous, role) + glue.body(role, body) + glue.closing(role)
        previous = role
    return text + glue.opening(previous, "assistant") == render(turns, True)


# --- the renderer process ---


def _all_probes() -> Iterator[tuple[Turns, bool]]:
    """Each conversation `derive` asks for, rendered in one go because starting a process is what costs."""
    for roles in (*_MUST_PASS, *_WITH_SYSTEM, *_USER_TWICE):
        for body in (_PLAIN, _ODD, _SPACED):
            yield _talk(roles, body), True
    yield _talk("u"), False
    yield _talk("ua"), False
    yield _THINKING, True


def _render_probes(template: str, bos_token: str, eos_token: str) -> Render:
    """Render all probes in the renderer process; return a look-up among its answers."""
    probes = list(_all_probes())
    request = {
        "template": template,
        "bos_token": bos_token,
        "eos_token": eos_token,
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
        if answer["clock"]:
            raise TemplateError("the model's chat template reads the clock")
        if answer["error"] is not None:
            raise TemplateError(f"the model's chat template raises an error: {_one_line(answer['error'])}")
        return str(answer["text"])

    return render


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
        raise TemplateError("the process that renders the model's chat template did not start in time") from exc
    except OSError as exc:
        raise TemplateError(f"the process that renders the model's chat template cannot start: {exc}") from exc
    if child.stderr.startswith(b"Timeout"):  # faulthandler's first word
        raise TemplateError(f"the model's chat template takes longer than {_TIME_LIMIT_S:g} s")
    if child.returncode != 0:
        last = child.stderr.decode(errors="replace").strip().rpartition("\n")[2]
        reason = _one_line(last or f"exit code {child.returncode}")
        raise TemplateError(f"the process that renders the model's chat template broke: {reason}")
    answer = json.loads(child.stdout)
    if answer["error"] is not None:
        raise TemplateError(f"the model's chat template is not valid: {_one_line(answer['error'])}")
    renderings: list[dict[str, Any]] = answer["renderings"]
    return renderings


def _one_line(text: str) -> str:
    """Make a foreign message fit a sentence: one printable line of at most 200 characters."""
    visible = "".join(char if char.isprintable() else " " for char in text[:1000])
    return " ".join(visible.split())[:200]


# --- the cache ---


def _digest(fields: object) -> str:
    return hashlib.sha256(json.dumps(fields, sort_keys=True).encode()).hexdigest()


def _read_cache(path: Path) -> Glue | None:
    try:
        cached = json.loads(path.read_bytes())
        fields = cached["glue"]
        if cached["sha256"] != _digest(fields):
            return None
        return Glue(**{**fields, "trimmed": tuple(fields["trimmed"])})
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
        return None


def _write_cache(path: Path, glue: Glue) -> None:
    fields = asdict(glue)
    write_atomically(path, json.dumps({"sha256": _digest(fields), "glue": fields}, indent=1).encode())
