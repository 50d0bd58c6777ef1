"""Sequences that branch from one another and from the resident prefix of a context, evaluated in one batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from models.errors import EngineError
from models.llama.context import ABORTED, Context
from models.llama.native import lib

_FIRST = 2
"""Sequences 0 and 1 are the context's own: the resident prefix and its scratch."""
_NO_ROOM = 1

PREFIX = -1
"""Stands for the context's resident prefix, where the number of a branch is asked."""


@dataclass(frozen=True, slots=True)
class Part:
    """Tokens that are to be appended to a branch."""

    branch: int
    tokens: Sequence[int]


@dataclass(slots=True)
class _Cells:
    """Cells that one sequence has filled and others may share."""

    n: int


class Branches:
    """Token sequences in the cells of a context, beside its resident prefix; dense and sliding-window memories only.

    Branching copies no data: cells belong to all sequences that share them. Attention runs over the cells of all
    sequences; in return a prefix that they share is read once for all of them.
    """

    def __init__(self, context: Context) -> None:
        """As many branches as the context's settings say; it must not be used by others while a branch has tokens."""
        n = context.settings.n_branches
        assert n > 0, "the context was made without branches"
        assert context.kind in ("dense", "sliding window"), "a state belongs to one sequence"
        self._context = context
        self._tokens: list[list[int]] = [[] for _ in range(n)]
        self._cells: list[list[_Cells]] = [[] for _ in range(n)]
        self._prefix_cells: list[_Cells] = []
        self._batch = lib.llama_batch_init(context.n_batch, 0, 1)

    def close(self) -> None:
        """Free what is not the context's."""
        lib.llama_batch_free(self._batch)

    def __len__(self) -> int:
        return len(self._tokens)

    def tokens(self, branch: int) -> Sequence[int]:
        """Exactly what a branch holds, from position 0; of `PREFIX` what the context does."""
        return self._context.tokens if branch == PREFIX else self._tokens[branch]

    def kv_bytes(self, branch: int) -> int:
        """Bytes the branch would take in a file."""
        return int(lib.llama_state_seq_get_size(self._context.handle, _FIRST + branch))

    @property
    def n_free(self) -> int:
        """Cells that are certainly free: what was cut from a sequence that others share counts as used."""
        self._count_prefix()
        used = {id(cells): cells.n for shared in (*self._cells, self._prefix_cells) for cells in shared}
        return max(0, self._context.n_ctx - sum(used.values()))

    # --- branching ---

    def fork(self, branch: int, source: int, n: int) -> int:
        """Make a branch hold the first `n` tokens of another one, or of `PREFIX`; it may be the same one.

        Returns how many it holds: none where the window behind them has gone.
        """
        tokens = self.tokens(source)
        assert n <= len(tokens), "there is not so much to share"
        is_cut = n < len(tokens)
        if source == branch:
            self._cut(branch, n)
        else:
            self._copy(branch, source, n)
        if n and is_cut and not self._context.holds_window(_FIRST + branch, n):
            self.drop(branch)
        return len(self._tokens[branch])

    def _copy(self, branch: int, source: int, n: int) -> None:
        self.drop(branch)
        if n == 0:
            return
        tokens = self.tokens(source)
        lib.llama_memory_seq_cp(self._context.memory, 0 if source == PREFIX else _FIRST + source, _FIRST + branch, 0, n)
        self._tokens[branch] = list(tokens[:n])
        self._count_prefix()
        self._cells[branch] = list(self._prefix_cells if source == PREFIX else self._cells[source])
        self._context.has_branches = True

    def drop(self, branch: int) -> None:
        """Empty a branch; cells that no other sequence shares are free."""
        if self._tokens[branch]:
            lib.llama_memory_seq_rm(self._context.memory, _FIRST + branch, -1, -1)
        self._tokens[branch], self._cells[branch] = [], []
        self._context.has_branches = any(self._tokens)

    def adopt(self, branch: int) -> None:
        """Make a branch the context's resident prefix, in the place of the one that was; the branch is empty then."""
        context, tokens = self._context, self._tokens[branch]
        assert tokens, "there is nothing to be adopted"
        lib.llama_memory_seq_rm(context.memory, 0, -1, -1)
        lib.llama_memory_seq_cp(context.memory, _FIRST + branch, 0, 0, len(tokens))
        context.replace_prefix(tokens)
        self._prefix_cells = self._cells[branch]
        self.drop(branch)

    def _cut(self, branch: int, n: int) -> None:
        tokens = self._tokens[branch]
        if n < len(tokens):
            lib.llama_memory_seq_rm(self._context.memory, _FIRST + branch, n, -1)
            own = self._cells[branch][-1] if self._cells[branch] else None
            if own and not self._is_shared(own, branch):
                own.n = max(0, own.n - (len(tokens) - n))
            del tokens[n:]
            self._context.has_branches = any(self._tokens)

    def _is_shared(self, cells: _Cells, branch: int) -> bool:
        others = (shared for other, shared in enumerate(self._cells) if other != branch)
        return any(cells is one for shared in (*others, self._prefix_cells) for one in shared)

    def _count_prefix(self) -> None:
        """Note what was appended to the prefix, or cut from it; branches may still hold the cells that it had then."""
        cells = self._prefix_cells
        n_more = len(self._context.tokens) - sum(one.n for one in cells)
        while n_more < 0:
            last = cells.pop()
            n_more += last.n
        if n_more > 0:
            cells.append(_Cells(n_more))

    # --- evaluation ---

    def evaluate(self, parts: Sequence[Part]) -> Literal["done", "aborted", "no room"]:
        """Append tokens to branches, in one batch; `sample` takes the logits behind each part. Raises `EngineError`.

        If not done, all branches are as they were before.
        """
        batch = self._batch
        n = 0
        for part in parts:
            begin = len(self._tokens[part.branch])
            for i, token in enumerate(part.tokens):
                batch.token[n], batch.pos[n], batch.logits[n] = token, begin + i, i == len(part.tokens) - 1
                batch.n_seq_id[n], batch.seq_id[n][0] = 1, _FIRST + part.branch
                n += 1
        batch.n_tokens = n
        self._context.has_branches = True
        result = lib.llama_decode(self._context.handle, batch)
        if result == 0:
            lib.llama_synchronize(self._context.handle)
            self._context.branches_allocated(n)
            for part in parts:
                self._append(part)
            return "done"
        for part in parts:
            lib.llama_memory_seq_rm(self._context.memory, _FIRST + part.branch, len(self._tokens[part.branch]), -1)
        self._context.has_branches = any(self._tokens)
        if result == ABORTED:
            return "aborted"
        if result == _NO_ROOM:
            return "no room"
        raise EngineError(f"The engine could not evaluate the prompts (llama_decode gave {result}).")

    def _append(self, part: Part) -> None:
        shared = self._cells[part.branch]
        if not shared or self._is_shared(shared[-1], part.branch):
            shared.append(_Cells(0))
        shared[-1].n += len(part.tokens)
        self._tokens[part.branch].extend(part.tokens)
