"""What it costs to come back to a conversation: from the KV index and measured rates, without loading anything."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from models.cost import Rates, rates_from
from models.kvfolder import KvFolder
from models.kvindex import KvIndex, Outline

_WARM_SHARE = 0.9
"""Share of the tokens that have to come from disk for a conversation to be warm."""


@dataclass(frozen=True, slots=True)
class Price:
    """Expected seconds until a conversation is resident; None where nothing was ever measured for its model.

    `is_warm` when (nearly) all of it comes from disk.
    """

    is_warm: bool
    seconds: float | None


@dataclass(frozen=True, slots=True)
class Ask:
    """A conversation to price: its tokens, and its newest KV segments as (fingerprint, tip), both hex."""

    n_tokens: int
    tips: Sequence[tuple[str, str]]


def prices(root: Path, asked: Mapping[str, Ask], *, fingerprint: str | None = None) -> dict[str, Price]:
    """Return the price of each conversation, by its id; `root` is the KV folder, which need not exist.

    Where a conversation has KV of several models or settings, that of `fingerprint` (hex) counts if it has any, else
    the one that covers most. Conversations without tokens have no price. Raises OSError.
    """
    folder = KvFolder(root)
    with closing(KvIndex(folder.index_path, read_only=True)) as index:
        rows = {row.key: row for row in index.outlines()}
    known: dict[bytes, Rates | None] = {}

    def rates_of(generation: bytes) -> Rates | None:
        if generation not in known:
            measured = folder.notes(generation).get("rates")
            known[generation] = rates_from(measured) if measured else None
        return known[generation]

    found = {}
    for session_id, ask in asked.items():
        if not ask.n_tokens:
            continue
        ends = [(bytes.fromhex(generation), bytes.fromhex(tip)) for generation, tip in ask.tips]
        if fingerprint is not None:
            ends = [end for end in ends if end[0].hex() == fingerprint] or ends
        offers = [_price(ask.n_tokens, chain_to(rows, tip), rates_of(generation)) for generation, tip in ends]
        rates = rates_of(bytes.fromhex(fingerprint)) if fingerprint else None
        found[session_id] = min(offers, key=_order, default=_price(ask.n_tokens, [], rates))
    return found


def chain_to(rows: Mapping[bytes, Outline], tip: bytes) -> list[Outline]:
    """Return the segments from the first to the tip that can be restored: those before the first that is lost."""
    chain: list[Outline] = []
    key = tip
    while (row := rows.get(key)) is not None:
        chain.append(row)
        key = row.parent
        if len(chain) > len(rows):  # a damaged index may lead in a circle
            return []
    chain.reverse()
    return chain[: next((n for n, row in enumerate(chain) if not row.bytes), len(chain))]


def _price(n_tokens: int, chain: Sequence[Outline], rates: Rates | None) -> Price:
    covered = min(n_tokens, sum(row.n_tokens for row in chain))
    is_warm = covered >= _WARM_SHARE * n_tokens
    if rates is None:
        return Price(is_warm, None)
    # Of states only the newest is read.
    n_bytes = sum(row.rows_bytes for row in chain) + (chain[-1].state_bytes if chain else 0)
    estimate = rates.estimate(n_tokens=covered, n_bytes=n_bytes, n_files=len(chain))
    rest_s = (n_tokens - covered) * rates.prefill_s_per_token
    restores = covered and estimate.restores
    return Price(bool(restores) and is_warm, rest_s + (estimate.restore_s if restores else estimate.prefill_s))


def _order(price: Price) -> tuple[bool, float]:
    return not price.is_warm, price.seconds if price.seconds is not None else float("inf")


def asks(tips: Mapping[str, Sequence[tuple[str, str]]], n_tokens: Iterable[tuple[str, int]]) -> dict[str, Ask]:
    """Return what to ask for conversations with these numbers of tokens."""
    return {session_id: Ask(n, tips.get(session_id, ())) for session_id, n in n_tokens}
