"""The tokens of answers that were given here, found again when a client sends them back as text."""

from __future__ import annotations

import struct
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from hashlib import blake2b

from models.engine import Entry, TokenRun
from sessions.hygiene import tidy

MOST_TOKENS = 1_000_000
"""Of all answers together; the ones not asked for longest go first."""


class Recall:
    """Answers by all that was said before them.

    A client sends text, and putting an answer's text into tokens again may give others than the model chose: all KV
    behind them would be lost. White space around an answer does not count, because clients trim it.
    """

    def __init__(self, *, most_tokens: int = MOST_TOKENS) -> None:
        self._runs: OrderedDict[bytes, TokenRun] = OrderedDict()
        self._most_tokens = most_tokens
        self._n_tokens = 0

    def known(self, entries: Sequence[Entry]) -> tuple[Entry, ...]:
        """Return the entries, those that are answers from here with their tokens."""
        return tuple(
            replace(entry, run=self._find(key)) if entry.role == "assistant" else entry
            for entry, key in zip(entries, _keys(entries), strict=True)
        )

    def remember(self, entries: Sequence[Entry], text: str, run: TokenRun) -> None:
        """Keep the answer to these entries: what a client was given of it, and its tokens as later prompts have them.

        A server's tokens are not known: then nothing is kept.
        """
        if not run.ids:
            return
        *_, key = _keys([*entries, Entry("assistant", tidy(text)[0])])
        self._drop(key)
        self._runs[key] = run
        self._n_tokens += len(run.ids)
        while self._n_tokens > self._most_tokens:
            self._drop(next(iter(self._runs)))

    def _find(self, key: bytes) -> TokenRun | None:
        if key in self._runs:
            self._runs.move_to_end(key)
        return self._runs.get(key)

    def _drop(self, key: bytes) -> None:
        run = self._runs.pop(key, None)
        self._n_tokens -= len(run.ids) if run else 0


def _keys(entries: Sequence[Entry]) -> Iterator[bytes]:
    """A key for each entry, which stands for all before it too."""
    key = b""
    for entry in entries:
        text = (entry.text.strip() if entry.role == "assistant" else entry.text).encode()
        key = blake2b(struct.pack("<16s9sQ", key, entry.role.encode(), len(text)) + text, digest_size=16).digest()
        yield key
