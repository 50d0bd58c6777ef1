"""What a chat template prints around message bodies, and what a user is told about it.

The rules behind it, those for templates that do not fit included, are told in docs/prompts.md.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal, TypeAlias

from models.engine import Role
from models.errors import TemplateError

Trim: TypeAlias = Literal["nothing", "line breaks", "white space"]
"""What is cut off one end of a body."""

MERGED_SYSTEM_END = "\n\n"
"""What stands between a system prompt and the first message that it is merged with."""

_STRIPPED: dict[Trim, str | None] = {"nothing": "", "line breaks": "\n", "white space": None}
_MARK = re.compile(r"<[|｜/]?[^<>\s]{1,60}>|\[/?[A-Z_]{2,}\]")
_ROLE_NAMES = re.compile(r"\s*(system|developer|user|assistant|model)\s*", re.IGNORECASE)
_WORDS_OF_A_TEXT = 3
_QUOTED_CHARS = 100


@dataclass(frozen=True, slots=True)
class Glue:
    """What a template prints around message bodies. Each message owns its opening, its body and its closing.

    `first_user` and `first_system` open a conversation (BOS and a default system block included),
    `system_user` opens the user's turn after the system prompt, `answer_user` after an answer, `user_user`
    after a message that was never answered (None: the template does not allow it, and an empty answer is put
    between). `assistant` is the generation prompt, `past_assistant` what the template opens earlier answers with.
    `system_refusal` says why the template has no system prompt of its own. `trimmed`: what is cut off the left
    and the right end of the bodies of a role. `rewrites_reasoning`: in earlier answers the template changes
    `<think>` blocks; token runs keep them. `frozen` is the day (ISO) that the template was told when it asked for
    the time, `chat_format` the name of the known format that was chosen in place of the model's own template.
    """

    bos_token: str
    first_user: str
    answer_user: str
    user_close: str
    assistant: str
    past_assistant: str
    assistant_close: str
    user_user: str | None = None
    first_system: str = ""
    system_close: str = ""
    system_user: str = ""
    system_refusal: str | None = None
    trimmed: tuple[tuple[Role, Trim, Trim], ...] = ()
    rewrites_reasoning: bool = False
    frozen: str | None = None
    chat_format: str | None = None

    @property
    def supports_system(self) -> bool:
        """True when the template itself has a system prompt; else one is merged with the first message."""
        return self.system_refusal is None

    @property
    def bos_printed(self) -> bool:
        """True when the template prints the BOS token itself, so that the tokenizer must not add one."""
        return bool(self.bos_token) and self.first_user.startswith(self.bos_token)

    @property
    def notes(self) -> tuple[str, ...]:
        """Where the prompts are not what the user, or the template, would have them: one sentence each."""
        return tuple(_notes(self))

    def opening(self, previous: Role | None, role: Role) -> str:
        """Return the text before a body of `role` after a message of `previous` (None: it is the first).

        For an answer that is the generation prompt. Raises `TemplateError` for an order of roles that no template
        has a text for.
        """
        is_merged = not self.supports_system
        openings: dict[tuple[Role | None, Role], str] = {
            (None, "system"): self.first_user if is_merged else self.first_system,
            (None, "user"): self.first_user,
            ("system", "user"): MERGED_SYSTEM_END if is_merged else self.system_user,
            ("assistant", "user"): self.answer_user,
            ("user", "user"): self._after_no_answer,
            ("user", "assistant"): self.assistant,
        }
        text = openings.get((previous, role))
        if text is None:
            after = {"system": "a system prompt", "user": "a message", "assistant": "an answer"}
            place = "at the start" if previous is None else f"right after {after[previous]}"
            raise TemplateError(f"The model's chat template allows no {role} message {place}.")
        return text

    def past_opening(self, answer: str) -> str:
        """Return the text before an answer whose tokens are not known, such as an imported one.

        It is what the template puts before earlier answers; but an answer that ends a reasoning block without
        having begun it goes on where the generation prompt has begun one.
        """
        reasoning, is_ended, _ = answer.partition("</think>")
        goes_on = is_ended and "<think>" not in reasoning and self.assistant.rstrip().endswith("<think>")
        return self.assistant if goes_on else self.past_assistant

    def closing(self, role: Role) -> str:
        """Return the text after a body of `role`."""
        return {"system": self.system_close, "user": self.user_close, "assistant": self.assistant_close}[role]

    def body(self, role: Role, text: str) -> str:
        """Return the text as the template would print it: trimmed, or as it is."""
        if role == "system" and not self.supports_system:
            role = "user"
        for trimmed, left, right in self.trimmed:
            if trimmed == role:
                text = text.lstrip(_STRIPPED[left]).rstrip(_STRIPPED[right])
        return text

    @property
    def marks(self) -> set[str]:
        """Texts in the glue that look like control tokens."""
        return {mark for text in self._texts for mark in _MARK.findall(text)}

    @property
    def _after_no_answer(self) -> str:
        if self.user_user is not None:
            return self.user_user
        return self.past_assistant + self.assistant_close + self.answer_user

    @property
    def _texts(self) -> tuple[str, ...]:
        """All of it."""
        system = (self.first_system, self.system_close, self.system_user)
        user = (self.first_user, self.user_close, self.answer_user, self._after_no_answer)
        return (*system, *user, self.assistant, self.past_assistant, self.assistant_close)


def _notes(glue: Glue) -> list[str]:
    notes = []
    if glue.chat_format:
        notes.append(f"Prompts are built in the format {glue.chat_format} that was named, not by the model's template.")
    default, always = _own_text(glue.first_user), _own_text(glue.first_system)
    if always:
        notes.append(f"The chat template begins every conversation with a text of its own: “{always}”.")
    elif default and glue.supports_system:
        notes.append(f"Without a system prompt the chat template puts its own: “{default}”.")
    elif default:
        notes.append(f"The chat template begins every conversation with a text of its own: “{default}”.")
    if glue.frozen:
        notes.append(
            f"The chat template asks for the time: it is told {glue.frozen}, and another day only after a month, "
            "so that conversations share their beginning."
        )
    if not glue.supports_system:
        notes.append(
            "The chat template has no system prompt: one is put into the first message, with a blank line between."
        )
    if glue.user_user is None:
        notes.append("The chat template wants each message answered: one that is not is followed by an empty answer.")
    if glue.assistant.strip() != glue.past_assistant.strip():
        notes.append(
            f"The chat template opens a new answer with “{one_line(glue.assistant)}” but earlier ones with "
            f"“{one_line(glue.past_assistant)}”: an answer keeps the opening it was written behind."
        )
    if glue.rewrites_reasoning:
        notes.append(
            "The chat template changes the reasoning in earlier answers: it is kept as it was, so that nothing is "
            "read again."
        )
    return notes


def _own_text(opening: str) -> str:
    """What a template says in an opening beside marks and names of roles; nothing if it is not a text."""
    parts = [_ROLE_NAMES.sub("", part) if _ROLE_NAMES.fullmatch(part) else part for part in _MARK.split(opening)]
    text = one_line(" ".join(re.sub(r"^\s*system\s*\n", "", part) for part in parts), _QUOTED_CHARS + 1).rstrip(".")
    if len(text.split()) < _WORDS_OF_A_TEXT:
        return ""
    return text if len(text) <= _QUOTED_CHARS else text[: _QUOTED_CHARS - 1] + "…"


def one_line(text: str, limit: int = 200) -> str:
    """Make a foreign text fit a sentence: one printable line of at most `limit` characters."""
    visible = "".join(char if char.isprintable() else " " for char in text[:2000])
    return " ".join(visible.split())[:limit]
