"""Chat formats that a user may name for a model file without a chat template; each is a template like any other."""

from __future__ import annotations

import json
from dataclasses import dataclass

from models.errors import TemplateError


@dataclass(frozen=True, slots=True)
class _Format:
    """What stands around a system prompt (None: there is none), a message and an answer; `{eos}` is the EOS token."""

    system: tuple[str, str] | None
    user: tuple[str, str]
    assistant: tuple[str, str]

    @property
    def template(self) -> str:
        """The format as a template. BOS is the tokenizer's business."""
        refusal = "{{ raise_exception('this format has no system prompt') }}"
        system = refusal if self.system is None else _around(*self.system)
        return (
            "{% for m in messages %}"
            "{% if m.role == 'system' %}"
            + system
            + "{% elif m.role == 'user' %}"
            + _around(*self.user)
            + "{% else %}"
            + _around(*self.assistant)
            + "{% endif %}{% endfor %}"
            "{% if add_generation_prompt %}" + _literal(self.assistant[0]) + "{% endif %}"
        )


def _around(opening: str, closing: str) -> str:
    return f"{_literal(opening)}{{{{ m.content }}}}{_literal(closing)}"


def _literal(text: str) -> str:
    """A Jinja expression of a text; its strings are written like those of JSON."""
    return " + eos_token + ".join(json.dumps(part) for part in text.split("{eos}")).join(("{{ ", " }}"))


_FORMATS = {
    "alpaca": _Format(("", "\n\n"), ("### Instruction:\n", "\n\n"), ("### Response:\n", "{eos}\n\n")),
    "chatml": _Format(
        ("<|im_start|>system\n", "<|im_end|>\n"),
        ("<|im_start|>user\n", "<|im_end|>\n"),
        ("<|im_start|>assistant\n", "<|im_end|>\n"),
    ),
    "deepseek": _Format(("", ""), ("<｜User｜>", ""), ("<｜Assistant｜>", "<｜end▁of▁sentence｜>")),
    "gemma": _Format(None, ("<start_of_turn>user\n", "<end_of_turn>\n"), ("<start_of_turn>model\n", "<end_of_turn>\n")),
    "llama2": _Format(None, ("[INST] ", " [/INST]"), ("", "{eos}")),
    "llama3": _Format(
        ("<|start_header_id|>system<|end_header_id|>\n\n", "<|eot_id|>"),
        ("<|start_header_id|>user<|end_header_id|>\n\n", "<|eot_id|>"),
        ("<|start_header_id|>assistant<|end_header_id|>\n\n", "<|eot_id|>"),
    ),
    "mistral": _Format(None, ("[INST]", "[/INST]"), ("", "{eos}")),
    "phi3": _Format(("<|system|>\n", "<|end|>\n"), ("<|user|>\n", "<|end|>\n"), ("<|assistant|>\n", "<|end|>\n")),
    "phi4": _Format(
        ("<|im_start|>system<|im_sep|>", "<|im_end|>"),
        ("<|im_start|>user<|im_sep|>", "<|im_end|>"),
        ("<|im_start|>assistant<|im_sep|>", "<|im_end|>"),
    ),
    "vicuna": _Format(("", "\n\n"), ("USER: ", ""), (" ASSISTANT:", "{eos}")),
    "zephyr": _Format(("<|system|>\n", "{eos}\n"), ("<|user|>\n", "{eos}\n"), ("<|assistant|>\n", "{eos}\n")),
}


def known_formats() -> tuple[str, ...]:
    """Return the names a user may choose from, in alphabetical order."""
    return tuple(sorted(_FORMATS))


def template_of(name: str) -> str:
    """Return the template of a known format; raises `TemplateError` for another name."""
    known = _FORMATS.get(name)
    if known is None:
        raise TemplateError(f"There is no chat format {name!r}; choose one of {', '.join(known_formats())}.")
    return known.template
