"""The asyncio side of the engine process: start, requests, cancel, restart after a crash."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import sys
from collections.abc import AsyncGenerator, AsyncIterator
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal

from models import hugepages, protocol
from models.engine import GAVE_UP, Ahead, Event, Failed, Loaded, ModelInfo, Prompt, Sampling, Stored
from models.errors import EngineDied, EngineError, PromptTooLong, ProtocolError
from models.kvsettings import DEFAULT_KV, KvSettings

_SHUTDOWN_S = 20.0
_BACK_OFF_S = 0.5
_MAX_CRASHES = 2
_LOG_BYTES = 4 << 20


class EngineProcess:
    """An `Engine` in a child process. A dead child is reported at once and started again with the next request.

    After two crashes without a finished request between them it stays down and says so.
    """

    def __init__(
        self,
        model_path: Path,
        *,
        cache_dir: Path,
        data_dir: Path,
        n_ctx: int | None = None,
        gpu_layers: int = 0,
        threads: int | None = None,
        flash_attention: Literal["auto", "on", "off"] = "auto",
        kv: KvSettings = DEFAULT_KV,
        kv_type: str = "f16",
        chat_format: str | None = None,
        loras: tuple[tuple[Path, float], ...] = (),
        n_parallel: int = 1,
        speculation: Literal["auto", "off"] = "auto",
    ) -> None:
        """Nothing is started until the first request. `n_parallel` requests are answered together, if the model can."""
        self._settings: dict[str, Any] = {
            "model_path": str(model_path.resolve()),
            "cache_dir": str(cache_dir.resolve()),
            "data_dir": str(data_dir.resolve()),
            "n_ctx": n_ctx,
            "gpu_layers": gpu_layers,
            "threads": threads,
            "flash_attention": flash_attention,
            "kv": asdict(kv),
            "kv_type": kv_type,
            "chat_format": chat_format,
            "n_parallel": n_parallel,
            "loras": [(str(path.resolve()), scale) for path, scale in loras],
            "speculation": speculation,
        }
        self.log_path = cache_dir.resolve() / "logs" / "engine.log"
        self._process: asyncio.subprocess.Process | None = None
        self._reader: asyncio.Task[None] | None = None
        self._streams: dict[int, asyncio.Queue[dict[str, Any] | None]] = {}
        # Requests that nobody waits for: of which only `Stored` is to come, and drafts that are read ahead.
        self._closing: set[int] = set()
        self._ids = itertools.count(1)
        self._load_lock = asyncio.Lock()
        self._info: ModelInfo | None = None
        self._n_crashes = 0
        self._n_cancels = 0
        self._is_closed = False

    @property
    def info(self) -> ModelInfo | None:
        """The loaded model, None before `Loaded`."""
        return self._info

    @property
    def pid(self) -> int | None:
        """The child's process id, None while there is none."""
        return self._process.pid if self._process and self._process.returncode is None else None

    async def load(self) -> AsyncIterator[Event]:
        """Start the process if needed and load the model: `Progress`*, then `Loaded` or `Failed`."""
        async with self._load_lock:
            if self._info is not None and self.pid is not None:
                yield Loaded(self._info)
                return
            self._info = None
            async for event in self._request({"op": "load", "settings": self._settings}):
                if isinstance(event, Loaded):
                    self._info = event.info
                yield event

    async def prepare(self, prompt: Prompt) -> AsyncIterator[Event]:
        """Make a history resident: `Progress`*, `Prepared`, `Stored`; or `Failed` ('cancelled' too)."""
        async for event in self._loaded_request({"op": "prepare", "prompt": protocol.prompt_to_json(prompt)}):
            yield event

    async def generate(self, prompt: Prompt, sampling: Sampling) -> AsyncIterator[Event]:
        """Answer a prompt: `Progress`*, `Prepared`, `Piece`*, `Finished`, `Stored`; or `Failed`."""
        request = {
            "op": "generate",
            "prompt": protocol.prompt_to_json(prompt),
            "sampling": protocol.sampling_to_json(sampling),
        }
        async for event in self._loaded_request(request):
            yield event

    async def anticipate(self, prompt: Prompt) -> AsyncIterator[Ahead]:
        """Read a draft ahead while nothing else is asked: `Ahead`*; what fails is told by the next request."""
        if self._info is None or self.pid is None:
            return
        request = {"op": "anticipate", "draft": protocol.prompt_to_json(prompt)}
        with contextlib.suppress(EngineError):
            async with contextlib.aclosing(self._messages(request)) as messages:
                async for message in messages:
                    if message.get("event") != "ahead":
                        return
                    yield Ahead(message["n_ready"], message["n_settled"])

    async def cancel(self) -> None:
        """Stop the oldest request that has not ended, also one that still waits for the model.

        One of which only `Stored` is to come has ended for this.
        """
        self._n_cancels += 1
        running = self._streams.keys() - self._closing
        if running and self.pid is not None:
            await self._send({"op": "cancel", "id": min(running)})

    async def count(self, text: str) -> int:
        """Tokens of a message body; raises `EngineError`."""
        async for event in self.load():
            if isinstance(event, Failed):
                raise EngineError(event.message)
        async with contextlib.aclosing(self._messages({"op": "count", "text": text})) as messages:
            async for message in messages:
                if message.get("event") == "counted":
                    return int(message["n"])
                if message.get("event") == "failed":
                    raise EngineError(message["message"])
        raise EngineDied(self._death())

    async def close(self) -> None:
        """Let the process write pending KV and end; kill it if it does not."""
        self._is_closed = True
        process = self._process
        if process is None:
            return
        if process.returncode is None and self._info is None:
            process.kill()  # it is still loading: there is nothing to be saved, and no reason to wait
            await process.wait()
        if process.returncode is None:
            with contextlib.suppress(OSError, EngineError):
                await self._send({"op": "shutdown", "id": 0})
            for request_id in list(self._streams):
                with contextlib.suppress(OSError, EngineError):
                    await self._send({"op": "cancel", "id": request_id})
            if process.stdin:
                process.stdin.close()
            try:
                await asyncio.wait_for(process.wait(), _SHUTDOWN_S)
            except TimeoutError:
                process.kill()
                await process.wait()
        if self._reader:
            await self._reader

    # --- requests ---

    async def _loaded_request(self, request: dict[str, Any]) -> AsyncIterator[Event]:
        n_cancels = self._n_cancels
        if self._info is None or self.pid is None:
            async for event in self.load():
                yield event
                if isinstance(event, Failed):
                    return
        if self._n_cancels != n_cancels:
            yield Failed("cancelled", "Stopped.")
            return
        async for event in self._request(request):
            yield event

    async def _request(self, request: dict[str, Any]) -> AsyncIterator[Event]:
        async with contextlib.aclosing(self._messages(request)) as messages:
            try:
                async for message in messages:
                    event = protocol.event_from_json(message)
                    if isinstance(event, Failed) and event.kind == GAVE_UP and self._process:
                        await self._process.wait()  # the next request needs a new one
                    yield event
                    if isinstance(event, Failed | Stored):
                        self._n_crashes = 0
                        return
            except (EngineDied, ProtocolError) as exc:
                yield Failed(exc.kind, str(exc))

    async def _messages(self, request: dict[str, Any]) -> AsyncGenerator[dict[str, Any], None]:
        """The answers to one request; a request abandoned half way is cancelled. Raises `EngineDied`."""
        request_id = next(self._ids)
        stream: asyncio.Queue[dict[str, Any] | None] = asyncio.Queue()
        await self._start()
        self._streams[request_id] = stream
        if request["op"] == "anticipate":
            self._closing.add(request_id)
        is_over = False
        try:
            await self._send({**request, "id": request_id})
            while (message := await stream.get()) is not None:
                if message.get("event") in ("end", "stored", "failed"):
                    is_over = True
                if message.get("event") == ("prepared" if request["op"] == "prepare" else "finished"):
                    self._closing.add(request_id)
                if message.get("event") == "end":
                    if request["op"] != "load":
                        self._n_crashes = 0
                    return
                yield message
            is_over = True
            raise EngineDied(self._death())
        finally:
            self._streams.pop(request_id, None)
            self._closing.discard(request_id)
            if not is_over and self.pid is not None:
                with contextlib.suppress(OSError, EngineError):
                    await self._send({"op": "cancel", "id": request_id})

    async def _send(self, message: dict[str, Any]) -> None:
        process = self._process
        if process is None or process.stdin is None:
            raise EngineDied(self._death())
        line = protocol.encode(message)
        if len(line) > protocol.LINE_LIMIT:
            raise PromptTooLong("The conversation is longer than any context: start a new one, or leave out turns.")
        try:
            process.stdin.write(line)
            await process.stdin.drain()
        except (BrokenPipeError, ConnectionResetError) as exc:
            raise EngineDied(self._death()) from exc

    # --- the process ---

    async def _start(self) -> None:
        if self.pid is not None:
            return
        if self._is_closed:
            raise EngineDied("The engine is closed.")
        if self._n_crashes >= _MAX_CRASHES:
            self._n_crashes = 0
            raise EngineDied(
                f"The engine stopped {_MAX_CRASHES} times in a row and was not started again; "
                f"its log is {self.log_path}. Try once more, or another model."
            )
        if self._n_crashes:
            await asyncio.sleep(_BACK_OFF_S)
        try:
            log = self._open_log()
            try:
                self._process = await asyncio.create_subprocess_exec(
                    sys.executable,
                    "-P",
                    "-m",
                    "models.worker",
                    stdin=asyncio.subprocess.PIPE,
                    stdout=asyncio.subprocess.PIPE,
                    stderr=log,
                    limit=protocol.LINE_LIMIT,
                    cwd=self.log_path.parent,
                    env=hugepages.environment(),
                )
            finally:
                os.close(log)
        except OSError as exc:
            raise EngineDied(
                f"The engine process cannot be started ({exc.filename or sys.executable}: {exc.strerror}): "
                "mend that, or choose another cache folder with --cache-dir."
            ) from exc
        self._reader = asyncio.create_task(self._read(self._process))

    def _open_log(self) -> int:
        self.log_path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
        if self.log_path.exists() and self.log_path.stat().st_size > _LOG_BYTES:
            flags |= os.O_TRUNC
        return os.open(self.log_path, flags, 0o600)

    async def _read(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdout is not None
        try:
            while line := await process.stdout.readline():
                message = protocol.decode(line)
                stream = self._streams.get(message.get("id", 0))
                if stream is not None:
                    stream.put_nowait(message)
        except (ProtocolError, ValueError):
            process.kill()
        await process.wait()
        self._info = None
        if not self._is_closed:
            self._n_crashes += 1
        for stream in self._streams.values():
            stream.put_nowait(None)

    def _death(self) -> str:
        return f"The engine process ended unexpectedly; what was said is safe (its log: {self.log_path})."
