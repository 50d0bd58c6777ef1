"""How many threads decode: as many as were chosen, or half while other programs hold the processors; pure.

Threads that evaluate one token wait for each other after every operation. If one of them has to share its processor,
all wait: one busy neighbour costs two threads on two cores a factor of four, and one thread nothing.
"""

from __future__ import annotations

_TRIED = 4
"""Steps of a try."""
_WATCHED_S = 0.15
"""Seconds of decoding, and no fewer steps than a try has, that are looked at together: a window paints ten times a
second, and between two frames it takes nothing."""
_TAKEN = 0.85
"""With a smaller share of the processor time that was asked for, others have it; a window that paints takes less."""
_FIRST_REST, _LONGEST_REST = 32, 512
"""Steps until the other number is tried again, doubled each time it was slower."""
_HOPELESS = 1.5
"""A step so much longer than those before ends a try."""


class Pace:
    """Learns from each step how long it took, and says how many threads are to run the next."""

    def __init__(self, threads: int) -> None:
        """Begin with `threads`, the number that was chosen on a quiet machine."""
        self.threads = threads
        """Threads of the next step."""
        self._most, self._fewer = threads, max(1, threads // 2)
        self._n_steps = 0
        self._steps_s = self._cpu_s = 0.0
        self._before_s: float | None = None
        """During a try: what a step took with the number of threads that it is to be compared with."""
        self._rest = 0
        """Steps until the next try."""
        self._next_rest = _FIRST_REST

    def took(self, seconds: float, cpu_s: float) -> int:
        """Learn from a step of `self.threads`, in seconds and processor seconds; returns `threads` for the next one."""
        if self._fewer == self._most:
            return self.threads
        self._rest -= 1
        self._n_steps += 1
        self._steps_s += seconds
        self._cpu_s += cpu_s
        if self._before_s is not None:
            is_over = self._n_steps == _TRIED or seconds > _HOPELESS * self._before_s
        else:
            is_over = self._n_steps >= _TRIED and self._steps_s >= _WATCHED_S
        if is_over:
            self._judge()
        return self.threads

    def _judge(self) -> None:
        """End a try, or begin one if it is time for it and there is a reason."""
        mine, share = self._steps_s / self._n_steps, self._cpu_s / (self._steps_s * self.threads or 1.0)
        self._n_steps, self._steps_s, self._cpu_s = 0, 0.0, 0.0
        if self._before_s is not None:
            if mine < self._before_s:
                self._before_s, self._rest, self._next_rest = None, _FIRST_REST, _FIRST_REST
            else:
                self._switch(None)
                self._rest = self._next_rest = min(2 * self._next_rest, _LONGEST_REST)
        elif self._rest <= 0 and (self.threads == self._fewer or share < _TAKEN):
            self._switch(mine)

    def _switch(self, before_s: float | None) -> None:
        self.threads = self._fewer if self.threads == self._most else self._most
        self._before_s = before_s
