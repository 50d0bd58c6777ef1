"""Evaluates the settled tokens of a draft while nobody waits for anything."""

from __future__ import annotations

from collections.abc import Callable

from models.engine import Ahead
from models.llama import Context
from models.residency import Residency
from models.stats import common_prefix
from models.typeahead import DraftTokens

# Fewer tokens than this fit into the batch that the message's end needs anyway.
_WORTH_READING = 16
# What a batch may take that is lost when it is broken off, and one that is not, which a request waits for (s).
_LOST_S = 1.0
_WAITED_S = 0.05
_LEAST_LOST, _LEAST_WAITED, _MOST = 64, 16, 512


def read_ahead(
    context: Context,
    residency: Residency,
    draft: DraftTokens,
    tell: Callable[[Ahead], None],
    is_awaited: Callable[[], bool],
) -> None:
    """Make the settled tokens of a draft resident, batch by batch, until somebody waits or the context is cancelled.

    The history is restored first if it has gone. A memory that cannot rewind is copied behind it, and goes back to
    there when the draft is changed or something else is sent; its batches are short, and are not broken off. Nothing
    is written to disk, and what is stored stays what it is. Raises `EngineError` from the native layer.
    """
    if is_awaited():
        return
    residency.cut(common_prefix(context.tokens, draft.tokens))
    # With the opening behind it: a state is stored there, and a memory that has one comes back nowhere else.
    if len(context.tokens) < draft.n_history and not residency.recall(draft.tokens[: draft.body_start]):
        return
    can_rewind = context.kind in ("dense", "sliding window")
    if not can_rewind and (context.anchor_end or 0) < draft.n_history:
        context.anchor()
    longest_s, least = (_LOST_S, _LEAST_LOST) if can_rewind else (_WAITED_S, _LEAST_WAITED)
    n_batch = min(_MOST, max(least, int(longest_s / max(residency.prefill_s_per_token, 1e-9))))
    tell(draft.ahead(len(context.tokens)))
    if len(draft.tokens) - len(context.tokens) < _WORTH_READING:
        return

    def report(_done: int) -> None:
        tell(draft.ahead(len(context.tokens)))

    while (position := len(context.tokens)) < len(draft.tokens) and not is_awaited():
        batch = draft.tokens[position : position + n_batch]
        if not context.prefill(batch, report, finishes_batches=not can_rewind):
            return
