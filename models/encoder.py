"""The judge's encoder in a process of its own: its memory and its arithmetic stay out of the front end.

Started by the first question, ended when none has come for a while. One JSON object a line, a question at a time.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

from models.errors import ModelError
from models.similarity import Scores, excerpt

IDLE_S = 300.0
"""After so long without a question the process ends: it holds 150 MB."""
_ANSWER_S = 20.0
_LINE_LIMIT = 1 << 20


class Encoder:
    """Scores drafts in a child process. All methods belong to one event loop."""

    def __init__(self, *, idle_s: float = IDLE_S) -> None:
        """Nothing is started until the first question."""
        self._idle_s = idle_s
        self._lock = asyncio.Lock()
        self._process: asyncio.subprocess.Process | None = None
        self._end: asyncio.TimerHandle | None = None

    @property
    def pid(self) -> int | None:
        """The child's process id, None while there is none."""
        return self._process.pid if self._process and self._process.returncode is None else None

    async def scores(self, draft: str, task: str, question: str, answer: str) -> Scores | None:
        """Compare a draft with its conversation, see `Similarity.scores`. Raises `ModelError` in one sentence."""
        texts = [excerpt(text) for text in (draft, task, question, answer)]
        async with self._lock:
            if self._end:
                self._end.cancel()
            try:
                async with asyncio.timeout(_ANSWER_S):
                    reply = await self._ask(texts)
                    scores, error = reply.get("scores"), reply.get("error")
                    found = Scores(**scores) if scores else None
            except (OSError, ValueError, TypeError, TimeoutError) as exc:
                self._kill()
                raise ModelError("The judge of the task policy does not answer: set policy to off, or go on.") from exc
            except asyncio.CancelledError:
                self._kill()  # its answer would be taken for that of the next question
                raise
            self._end = asyncio.get_running_loop().call_later(self._idle_s, self._kill)
        if error:
            self._kill()
            raise ModelError(str(error))
        return found

    async def close(self) -> None:
        """End the process."""
        if self._end:
            self._end.cancel()
        process = self._process
        self._kill()
        if process:
            await process.wait()

    async def _ask(self, texts: list[str]) -> dict[str, Any]:
        if self.pid is None:
            self._process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-P",
                "-m",
                "models.encoder",
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.DEVNULL,
                limit=_LINE_LIMIT,
                cwd=Path(sys.prefix),
            )
        process = self._process
        assert process, "it was just made"
        assert process.stdin, "it was made with pipes"
        assert process.stdout, "it was made with pipes"
        process.stdin.write(json.dumps(texts).encode() + b"\n")
        await process.stdin.drain()
        reply = json.loads(await process.stdout.readline())
        if not isinstance(reply, dict):
            raise TypeError("no object")
        return reply

    def _kill(self) -> None:
        if self._process and self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()
        self._process = None


def serve() -> None:
    """Answer questions from stdin on stdout until it is closed."""
    from models import similarity

    # Ctrl+C in the terminal is for the front end, which ends this process by closing stdin.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    judge: similarity.Similarity | None = None
    for line in sys.stdin.buffer:
        reply: dict[str, Any]
        try:
            judge = judge or similarity.load()
            found = judge.scores(*json.loads(line))
            reply = {"scores": asdict(found) if found else None}
        except ModelError as exc:
            reply = {"error": str(exc)}
        sys.stdout.buffer.write(json.dumps(reply).encode() + b"\n")
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    serve()
