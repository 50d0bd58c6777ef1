"""What a chat template prints around message bodies, and what a user is told about it.

The rules behind it, those for templates that do not fit included, are told in docs/prompts.md.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal, TypeAlias

from models.engine import Role
from models.errors import TemplateError
from models.reasoning import block_of, family_named, start_in

Trim: TypeAlias = Literal["nothing", "line breaks", "white space"]
"""What is cut off one end of a body."""

MERGED_SYSTEM_END = "\n\n"
"""What stands between a system prompt and the first message that it is merged with."""

_STRIPPED: dict[Trim, str | None] = {"nothing": "", "line breaks": "\n", "white space": None}
_MARK = re.compile(r"<[|｜/]?[^<>\s]{1,60}>|\[/?[A-Z_]{2,}\]")
_ROLE_NAMES = re.compile(r"\s*(system|developer|user|assistant|model)\s*", re.IGNORECASE)
_WORDS_OF_A_TEXT = 3
_QUOTED_CHARS = 40


@dataclass(frozen=True, slots=True)
class Glue:
    """What a template prints around message bodies. Each message owns its opening, its body and its closing.

    `first_user` and `first_system` open a conversation (BOS and a default system block included),
    `system_user` opens the user's turn after the system prompt, `answer_user` after an answer, `user_user`
    after a message that was never answered (None: the template does not allow it, and an empty answer is put
    between). `assistant` is the generation prompt, `past_assistant` what the template opens earlier answers with.
    `system_refusal` says why the template has no system prompt of its own. `trimmed`: what is cut off the left
    and the right end of the bodies of a role. `reasoning` is the name of the family of `models/reasoning.py` whose
    marks the template knows; `rewrites_reasoning`: in earlier answers it changes such blocks. `frozen` is the day (ISO)
    that the template was told when it asked for the time, `chat_format` the name of the known format that was chosen in
    place of the model's own template.
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
    reasoning: str | None = None
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

    @property
    def assistant_opening(self) -> str:
        """The generation prompt without the reasoning that it begins: what stands before an answer's own text."""
        return self.assistant.removesuffix(self.reasoning_start)

    @property
    def reasoning_start(self) -> str:
        """The mark at the end of the generation prompt that begins reasoning, empty if there is none.

        It is where the text of an answer begins: only so does the text say by itself what in it is reasoning.
        """
        start = start_in(self.assistant)
        return "" if start is None else self.assistant[start[1] :]

    @property
    def no_reasoning(self) -> str:
        """What an answer that is not to reason has to begin with, behind `reasoning_start`: for a grammar's answers."""
        start = start_in(self.assistant)
        if start is not None:
            family, at = start
            gap = "\n\n" if self.assistant[at:].endswith("\n") else ""
            return family.close + (gap if not family.final else "")
        own = family_named(self.reasoning)
        is_due = own is not None and own.final and not self.assistant.endswith(own.final)
        return own.final if own is not None and is_due else ""

    @property
    def empty_reasoning(self) -> str:
        """A block without reasoning, for an answer of a model that would begin one by itself."""
        own = family_named(self.reasoning)
        return f"{own.open}\n\n{own.close}\n\n" if own is not None and not own.final else ""

    def past_opening(self, answer: str) -> str:
        """Return the text before an answer whose tokens are not known, such as an imported one.

        It is what the template puts before earlier answers. But one that begins with reasoning as the template marks it
        stands where a new answer would, and one that ends a block without having begun it goes on where the generation
        prompt begins one.
        """
        start = start_in(self.assistant)
        own = family_named(self.reasoning) or (start and start[0])
        if own and block_of(answer).end and answer.lstrip().startswith(own.marks[0]):
            return self.assistant_opening
        if start is None:
            return self.past_assistant
        reasoning, is_ended, _ = answer.partition(start[0].close)
        return self.assistant if is_ended and start[0].open not in reasoning else self.past_assistant

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

    def guarded(self, role: Role) -> set[str]:
        """Return the marks that stay text in a body of `role`: those in the glue, and those of reasoning.

        An answer from elsewhere may mark its reasoning, unless by what marks whole messages.
        """
        family = family_named(self.reasoning)
        if family is None or (role == "assistant" and not family.final):
            return self.marks
        return self.marks | {*family.marks}

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
        notes.append(f"Prompts are built in the named format {glue.chat_format}, not by the model's template.")
    default, always = _own_text(glue.first_user), _own_text(glue.first_system)
    if default and glue.supports_system and not always:
        notes.append(f"Without a system prompt the template puts its own: “{default}”.")
    elif always or default:
        notes.append(f"The template begins every conversation with: “{always or default}”.")
    if glue.frozen:
        notes.append(f"The template asks for the date: it is told {glue.frozen}, and a new one after a month.")
    if not glue.supports_system:
        notes.append("The template has no system prompt: one is put into the first message.")
    if glue.user_user is None:
        notes.append("The template wants each message answered: an empty answer is put where there is none.")
    if glue.assistant_opening.strip() != glue.past_assistant.strip():
        notes.append("The template opens earlier answers differently: an answer keeps the opening it had.")
    if glue.reasoning:
        what = f"Reasoning in {glue.reasoning}{' blocks' if glue.reasoning[0] in '<[' else ''}"
        drops = "; the template drops it" if glue.rewrites_reasoning else ""
        notes.append(f"{what} stays in the prompt unless stripped{drops}.")
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
