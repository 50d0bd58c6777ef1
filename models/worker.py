"""The engine process: reads requests, answers events, one JSON object a line.

Native code may write to descriptors 1 and 2, and may abort: the pipes are moved to descriptors of their own
before llama_cpp is imported, everything else goes to the log file, and a crash takes only this process.
"""

from __future__ import annotations

import contextlib
import os
import queue
import sys
import threading
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from models import protocol
from models.engine import Emit, Event, Failed, Finished, Loaded, Prompt
from models.errors import EngineError
from models.kvsettings import KvSettings

if TYPE_CHECKING:
    from models.local import LocalEngine


class Worker:
    """One request at a time on the main thread; a reader thread takes cancels while native code runs."""

    def __init__(self, requests: BinaryIO, events: BinaryIO) -> None:
        self._requests = requests
        self._events = events
        self._send_lock = threading.Lock()
        self._queue: queue.Queue[dict[str, Any] | None] = queue.Queue()
        self._engine: LocalEngine | None = None
        self._state_lock = threading.Lock()
        self._running: int | None = None
        self._cancelled: set[int] = set()
        self._joined: set[int] = set()
        """Requests that are answered together with others."""
        self._is_orphan = False

    def run(self) -> None:
        """Serve until the pipe closes or `shutdown` comes; pending KV is written before it ends."""
        threading.Thread(target=self._read, name="requests", daemon=True).start()
        while (request := self._next()) is not None:
            if request["op"] == "shutdown":
                break
            self._serve(request)
        if self._engine:
            self._engine.close()

    def _next(self) -> dict[str, Any] | None:
        """The next request; while there is none, those that have joined are answered, batch by batch."""
        while self._engine and self._goes_on(self._engine):
            with contextlib.suppress(queue.Empty):
                return self._queue.get_nowait()
            self._step(self._engine)
        return self._queue.get()

    def _goes_on(self, engine: LocalEngine) -> bool:
        return engine.is_busy and not self._is_orphan

    def _step(self, engine: LocalEngine) -> None:
        engine.clear_cancel()  # for whom it was is asked by name
        try:
            engine.step()
        except Exception as exc:  # noqa: BLE001 - the top of the process: the user must hear of it, once
            sys.excepthook(type(exc), exc, exc.__traceback__)
            engine.fail_joined("engine", f"The engine met an unexpected error ({type(exc).__name__}).")

    def _read(self) -> None:
        while line := self._requests.readline(protocol.LINE_LIMIT):
            with contextlib.suppress(EngineError, KeyError):
                request = protocol.decode(line)
                op, request_id = request["op"], request["id"]
                if op == "cancel":
                    self._cancel(request_id)
                else:
                    self._enqueue(request)
        # The front end is gone: stop what runs, nobody reads it.
        self._is_orphan = True
        with self._state_lock:
            if self._engine:
                self._engine.cancel()
        self._queue.put(None)

    def _enqueue(self, request: dict[str, Any]) -> None:
        if request["op"] in ("prepare", "generate"):
            # One that cannot be understood fails when it is served, where somebody is told.
            with contextlib.suppress(KeyError, TypeError, ValueError):
                request["prompt"] = protocol.prompt_from_json(request["prompt"])
        self._queue.put(request)
        with self._state_lock:
            if self._engine:
                self._engine.give_way()
                if "prompt" in request:
                    self._engine.hurry()

    def _next_prompt(self) -> Prompt | None:
        """The prompt that somebody waits with; a shutdown or a count can wait for what is kept."""
        with self._queue.mutex:
            prompts = [request["prompt"] for request in self._queue.queue if request and "prompt" in request]
        return next((prompt for prompt in prompts if isinstance(prompt, Prompt)), None)

    def _is_awaited(self) -> bool:
        """True if any request waits."""
        return not self._queue.empty()

    def _cancel(self, request_id: int) -> None:
        with self._state_lock:
            self._cancelled.add(request_id)
            if self._running == request_id and self._engine:
                self._engine.cancel()
            elif self._engine:
                self._engine.cancel_joined(request_id)

    def _serve(self, request: dict[str, Any]) -> None:
        request_id = request["id"]
        while request["op"] == "prepare" and self._engine and self._goes_on(self._engine):
            self._step(self._engine)  # it needs the context to itself
        with self._state_lock:
            self._running = request_id
            if self._engine and not self._is_orphan:
                self._engine.clear_cancel()
                if request_id in self._cancelled:
                    self._engine.cancel()
        try:
            self._handle(request, lambda event: self._send(request_id, event))
        except EngineError as exc:
            self._joined.discard(request_id)
            self._send(request_id, Failed(exc.kind, str(exc)))
        except Exception as exc:  # noqa: BLE001 - the top of the process: the user must hear of it, once
            self._joined.discard(request_id)
            sys.excepthook(type(exc), exc, exc.__traceback__)
            self._send(request_id, Failed("engine", f"The engine met an unexpected error ({type(exc).__name__})."))
        with self._state_lock:
            self._running = None
            if request_id not in self._joined:
                self._cancelled.discard(request_id)

    def _handle(self, request: dict[str, Any], emit: Any) -> None:
        op = request["op"]
        if op == "load":
            if self._engine is None:
                settings = request["settings"]
                for name in ("model_path", "cache_dir", "data_dir"):
                    settings[name] = Path(settings[name])
                settings["kv"] = KvSettings(**settings["kv"])
                settings["loras"] = tuple((Path(path), scale) for path, scale in settings["loras"])
                from models.weights import LoadingWeights

                loading = LoadingWeights(
                    settings["model_path"], gpu_layers=settings["gpu_layers"], loras=settings["loras"]
                )
                # Imported meanwhile: that takes as long as a small model.
                from models.loading import LocalSettings
                from models.local import LocalEngine

                self._engine = LocalEngine(
                    LocalSettings(**settings),
                    emit,
                    loading,
                    next_prompt=self._next_prompt,
                    is_awaited=self._is_awaited,
                    is_cancelled=self._cancelled.__contains__,
                )
            else:
                emit(Loaded(self._engine.info))  # who asked first may have gone away before it was
        elif self._engine is None:
            raise EngineError("The model is not loaded.")
        elif op == "prepare":
            self._engine.prepare(request["prompt"], emit)
            return  # like that of `generate`, its end is `Stored`
        elif op == "generate" and self._engine.answers_together:
            sampling = protocol.sampling_from_json(request["sampling"])
            self._joined.add(request["id"])
            self._engine.join(request["id"], request["prompt"], sampling, self._until_over(request["id"], emit))
            return
        elif op == "generate":
            self._engine.generate(request["prompt"], protocol.sampling_from_json(request["sampling"]), emit)
            return  # its end is `Stored`, which may come later from the writer's thread
        elif op == "anticipate":
            draft = protocol.prompt_from_json(request["draft"])
            told = {"id": request["id"], "event": "ahead"}
            self._engine.anticipate(draft, lambda ahead: self._write(told | asdict(ahead)))
        elif op == "count":
            self._write({"id": request["id"], "event": "counted", "n": self._engine.count(request["text"])})
        else:
            raise EngineError(f"The engine does not know the request {op!r}.")
        self._write({"id": request["id"], "event": "end"})

    def _until_over(self, request_id: int, emit: Emit) -> Emit:
        def told(event: Event) -> None:
            emit(event)
            if isinstance(event, Finished | Failed):
                self._joined.discard(request_id)
                self._cancelled.discard(request_id)

        return told

    def _send(self, request_id: int, event: Event) -> None:
        self._write({"id": request_id, **protocol.event_to_json(event)})

    def _write(self, message: dict[str, Any]) -> None:
        with self._send_lock, contextlib.suppress(OSError):
            self._events.write(protocol.encode(message))
            self._events.flush()


def _log(text: str) -> None:
    sys.stderr.write(text)


def main() -> None:
    """Move the pipes away from descriptors 0 to 2, then serve."""
    requests = os.fdopen(os.dup(0), "rb")
    events = os.fdopen(os.dup(1), "wb")
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    # Descriptor 2 is already the log file, opened by the front end.
    os.dup2(2, 1)
    import signal

    # Ctrl+C reaches the whole group; the front end decides what it means.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    from models.llama import quiet_logs

    kept = quiet_logs(_log)
    worker = Worker(requests, events)
    worker.run()
    sys.stderr.flush()
    del kept
    # Native destructors are slow and may abort; everything worth keeping is on disk.
    os._exit(0)


if __name__ == "__main__":
    main()
