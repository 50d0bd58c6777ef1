import asyncio
import contextlib
import io
import os
import platform
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any, cast

import pytest
import pytest_asyncio

from models import protocol
from models.client import EngineProcess
from models.engine import Entry, Event, Failed, Finished, Loaded, Piece, Prepared, Prompt, Sampling, Stored
from models.errors import EngineDied, EngineError
from models.kvsettings import KvSettings
from models.loading import LocalSettings
from models.worker import Worker
from tests.models.helpers import N_CTX, after, copy_notes, local_settings, n_ahead, one, starter

GREEDY = Sampling(temperature=0, max_tokens=6)
LONG = Sampling(temperature=0)
COUNT = Prompt((Entry("user", "Count to one thousand."),))
Start = Callable[..., EngineProcess]


@pytest_asyncio.fixture
async def start(tmp_path: Path, warm_root: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Start]:
    """Makes engines over one folder, and closes them; a restart does not wait."""
    monkeypatch.setattr("models.client._BACK_OFF_S", 0.0)
    copy_notes(warm_root, tmp_path)
    made: list[EngineProcess] = []

    def make(model: Path | None = None, root: Path = tmp_path) -> EngineProcess:
        made.append(
            EngineProcess(
                model or starter(),
                cache_dir=root / "cache",
                data_dir=root / "data",
                n_ctx=N_CTX,
                threads=1,
                flash_attention="off",
            )
        )
        return made[-1]

    yield make
    for engine in made:
        await engine.close()


async def drain(events: AsyncIterator[Event]) -> list[Event]:
    """All events."""
    return [event async for event in events]


def kill(engine: EngineProcess) -> None:
    """End the child as a crash of native code would."""
    assert engine.pid is not None
    os.kill(engine.pid, signal.SIGKILL)


async def generate_and_kill(engine: EngineProcess, prompt: Prompt = COUNT) -> list[Event]:
    """Kill the child at the first piece of the answer; all events."""
    events = []
    async for event in engine.generate(prompt, LONG):
        events.append(event)
        if isinstance(event, Piece) and engine.pid is not None:
            kill(engine)
    return events


async def test_a_killed_child_is_reported_and_started_again(start: Start) -> None:
    """The answer breaks off with one sentence; the next request restores what was stored and works."""
    engine = start()
    first = Prompt((Entry("user", "Name a colour, please, one that everybody knows."),))
    second = after(first, await drain(engine.generate(first, GREEDY)), "And another one, please.")
    events = await generate_and_kill(engine, second)
    failed = one(Failed, events)
    assert events[-1] is failed
    assert (failed.kind, "\n" in failed.message, str(engine.log_path) in failed.message) == ("died", False, True)
    again = await drain(engine.generate(second, GREEDY))
    assert one(Prepared, again).restored > 0
    assert one(Finished, again).text


async def test_two_crashes_in_a_row_stop_the_restarts(start: Start) -> None:
    """It says so once, without starting anything; asked once more it starts again."""
    engine = start()
    for _ in range(2):
        assert one(Failed, await generate_and_kill(engine)).kind == "died"
    (failed,) = await drain(engine.generate(COUNT, GREEDY))
    assert isinstance(failed, Failed)
    assert (failed.kind, engine.pid) == ("died", None)
    assert "2 times in a row" in failed.message
    assert one(Finished, await drain(engine.generate(COUNT, GREEDY))).text


async def test_a_finished_request_between_two_crashes_forgives_the_first(start: Start) -> None:
    """Only crashes in a row count."""
    engine = start()
    await generate_and_kill(engine)
    assert one(Finished, await drain(engine.generate(COUNT, GREEDY))).text
    await generate_and_kill(engine)
    assert one(Finished, await drain(engine.generate(COUNT, GREEDY))).text


async def test_a_child_that_died_idle_is_started_again(start: Start) -> None:
    """Nobody waits for it, so nobody is told; the next request works."""
    engine = start()
    await drain(engine.load())
    kill(engine)
    assert engine._reader is not None
    await engine._reader
    assert (engine.pid, engine.info) == (None, None)
    assert await engine.count("one two") == 2


async def test_a_child_that_died_unnoticed_fails_once(start: Start) -> None:
    """A request sent before the death was noticed fails in one sentence, or is answered by a new child."""
    engine = start()
    await drain(engine.load())
    kill(engine)
    last = (await drain(engine.generate(COUNT, GREEDY)))[-1]
    assert isinstance(last, Stored) or (isinstance(last, Failed) and last.kind == "died")
    assert one(Finished, await drain(engine.generate(COUNT, GREEDY))).text


async def test_a_request_that_fails_is_not_waited_for(start: Start) -> None:
    """What the engine cannot count is an error."""
    engine = start()
    with pytest.raises(EngineError):
        await engine.count(cast(Any, 5))
    assert await engine.count("") == 0


async def test_after_closing_nothing_is_started(start: Start) -> None:
    """A closed engine says so."""
    engine = start()
    await engine.close()
    assert await drain(engine.load()) == [Failed("died", "The engine is closed.")]
    with pytest.raises(EngineError, match="closed"):
        await engine.count("a")
    assert issubclass(EngineDied, EngineError)


async def test_closing_ends_a_running_answer(start: Start) -> None:
    """Close does not wait for a long answer, and whoever listens gets its end."""
    engine = start()
    closing: asyncio.Task[None] | None = None
    events = []
    async for event in engine.generate(COUNT, LONG):
        events.append(event)
        if isinstance(event, Piece) and closing is None:
            closing = asyncio.create_task(engine.close())
    assert closing is not None
    await closing
    assert isinstance(events[-1], Stored | Failed)
    assert engine.pid is None


async def test_an_abandoned_answer_is_cancelled(start: Start) -> None:
    """Closing the stream of events stops the decoding: the context holds less than the whole answer."""
    engine = start()
    events = engine.generate(COUNT, LONG)
    async with contextlib.aclosing(cast(Any, events)):
        async for event in events:
            if isinstance(event, Piece):
                break
    assert one(Finished, await drain(engine.generate(COUNT, GREEDY))).reason == "length"


# --- models that cannot be used ---


def cut_model(path: Path) -> None:
    """The first half of the starter."""
    data = starter().read_bytes()
    path.write_bytes(data[: len(data) // 2])


def junk_model(path: Path) -> None:
    """Something else."""
    path.write_bytes(b"<html>not a model</html>")


def model_without_template(path: Path) -> None:
    """The starter with its chat template under a name that nobody looks for."""
    data = starter().read_bytes()
    key = b"tokenizer.chat_template"
    assert data.count(key) == 1
    path.write_bytes(data.replace(key, b"tokenizer.chat_templatE"))


@pytest.mark.parametrize(
    ("make", "kind", "sentence"),
    [
        (cut_model, "model", "model.gguf cannot be loaded: it is damaged, cut short or of an unknown kind."),
        (junk_model, "model", "is not a GGUF model file"),
        (model_without_template, "model", "has no chat template"),
        (lambda _path: None, "model", "There is no model file at"),
    ],
)
async def test_a_model_that_cannot_be_used_is_one_sentence(
    start: Start, tmp_path: Path, make: Callable[[Path], None], kind: str, sentence: str
) -> None:
    """Load fails with it, and so does every request; the process stays alive."""
    make(tmp_path / "model.gguf")
    engine = start(tmp_path / "model.gguf")
    failed = one(Failed, await drain(engine.load()))
    assert (failed.kind, "\n" in failed.message) == (kind, False)
    assert sentence in failed.message
    assert one(Failed, await drain(engine.generate(COUNT, GREEDY))) == failed
    with pytest.raises(EngineError):
        await engine.count("a")
    assert engine.info is None
    assert engine.pid is not None


# --- the process and its surroundings ---


async def test_a_models_module_in_the_working_folder_is_not_run(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither where the user stands nor beside the log is code picked up."""
    trap = f"import pathlib; pathlib.Path({str(tmp_path / 'sprung')!r}).touch()"
    for folder in (tmp_path / "here", tmp_path / "cache" / "logs"):
        folder.mkdir(parents=True)
        for name in ("models.py", "llama_cpp.py", "ctypes.py", "json.py"):
            (folder / name).write_text(trap)
    monkeypatch.chdir(tmp_path / "here")
    assert one(Loaded, await drain(start().load())).info.n_ctx == N_CTX
    assert not (tmp_path / "sprung").exists()


async def test_native_output_goes_to_the_log(start: Start, capfd: pytest.CaptureFixture[str]) -> None:
    """Nothing of the engine process reaches our own streams; the log has it, and only we may read it."""
    engine = start()
    await drain(engine.generate(COUNT, GREEDY))
    await engine.close()
    assert capfd.readouterr() == ("", "")
    assert "llama" in engine.log_path.read_text()
    assert engine.log_path.stat().st_mode & 0o777 == 0o600


async def test_a_log_folder_that_cannot_be_made_is_one_sentence(start: Start, tmp_path: Path) -> None:
    """The engine cannot be started, and says why."""
    (tmp_path / "file").write_bytes(b"")
    failed = one(Failed, await drain(start(root=tmp_path / "file").load()))
    assert failed.kind == "died"
    assert failed.message.startswith("The engine process cannot be started (")


async def test_closing_waits_for_the_disk(start: Start) -> None:
    """A turn that was just finished is on disk after close, though nobody waited for `Stored`."""
    engine = start()
    first = Prompt((Entry("user", "Name a flower that everybody knows and likes."),))
    events = []
    async for event in engine.generate(first, GREEDY):
        events.append(event)
        if isinstance(event, Finished):
            break
    await engine.close()
    prepared = one(Prepared, await drain(start().generate(after(first, events, "More."), GREEDY)))
    assert prepared.restored == sum(len(run.ids) for run in prepared.runs[:2]) + n_ahead(prepared)


def worker(root: Path) -> subprocess.Popen[bytes]:
    """A bare engine process with pipes in our hands."""
    return subprocess.Popen(
        [sys.executable, "-P", "-m", "models.worker"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        cwd=root,
    )


def test_settings_cross_the_pipe_unchanged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the engine process builds its engine from is what the client was given."""
    taken: list[LocalSettings] = []
    begun: list[tuple[object, ...]] = []
    monkeypatch.setattr(
        "models.weights.LoadingWeights", lambda path, *, gpu_layers, loras: begun.append((path, gpu_layers, loras))
    )
    monkeypatch.setattr("models.local.LocalEngine", lambda settings, *_args, **_kwargs: taken.append(settings))
    given = LocalSettings(
        tmp_path / "m.gguf",
        cache_dir=tmp_path / "cache",
        data_dir=tmp_path / "data",
        n_ctx=7,
        gpu_layers=2,
        threads=3,
        flash_attention="on",
        kv=KvSettings(enabled=False, budget_bytes=2**62, free_floor_bytes=0),
        kv_type="q8_0",
        loras=((tmp_path / "a.gguf", 0.1), (tmp_path / "b.gguf", -1.0)),
        speculation="off",
        n_parallel=3,
    )
    names = [field.name for field in fields(LocalSettings)][1:]
    client = EngineProcess(given.model_path, **{name: getattr(given, name) for name in names})
    request = protocol.encode({"id": 1, "op": "load", "settings": client._settings})
    Worker(io.BytesIO(request), io.BytesIO()).run()
    assert taken == [given]
    assert begun == [(given.model_path, given.gpu_layers, given.loras)]


def test_a_child_whose_parent_is_gone_ends(tmp_path: Path, warm_root: Path) -> None:
    """When the pipe closes in the middle of an endless answer, the process stops it and ends."""
    settings = local_settings(copy_notes(warm_root, tmp_path))
    names = ("model_path", "cache_dir", "data_dir")
    load = {name: str(getattr(settings, name)) for name in names}
    load |= {"n_ctx": N_CTX, "gpu_layers": 0, "threads": 1, "flash_attention": "off"}  # type: ignore[dict-item]
    load |= {"kv": asdict(settings.kv), "kv_type": "f16", "loras": []}  # type: ignore[dict-item]
    with worker(tmp_path) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        child.stdin.write(protocol.encode({"id": 1, "op": "load", "settings": load}))
        prompt, sampling = protocol.prompt_to_json(COUNT), protocol.sampling_to_json(LONG)
        child.stdin.write(protocol.encode({"id": 2, "op": "generate", "prompt": prompt, "sampling": sampling}))
        child.stdin.flush()
        while protocol.decode(child.stdout.readline())["event"] != "piece":
            pass
        child.stdin.close()
        events = [protocol.decode(line) for line in child.stdout]
        assert child.wait(30) == 0
    (finished,) = [event for event in events if event["event"] == "finished"]
    assert finished["reason"] == "cancelled"


def test_junk_on_the_pipe_is_ignored(tmp_path: Path) -> None:
    """Lines that are no requests do not end the process; an unknown request is answered."""
    with worker(tmp_path) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        for line in (b"junk\n", b"[1]\n", b"{}\n", b"\xff\n", b"[" * 100_000 + b"\n", b'{"op": "count"}\n'):
            child.stdin.write(line)
        child.stdin.write(protocol.encode({"id": 7, "op": "dance"}))
        child.stdin.flush()
        answer = protocol.decode(child.stdout.readline())
        assert (answer["id"], answer["event"], answer["message"]) == (7, "failed", "The model is not loaded.")
        child.stdin.close()
        assert child.wait(30) == 0


async def test_a_stop_passes_over_a_history_that_is_resident(start: Start) -> None:
    """Only `Stored` is to come of it: what is stopped is the answer behind it."""
    engine = start()
    opened = engine.prepare(COUNT)
    async for event in opened:
        if isinstance(event, Prepared):
            break
    answered = []
    async for event in engine.generate(COUNT, LONG):
        answered.append(event)
        if isinstance(event, Piece):
            await engine.cancel()
    assert one(Finished, answered).reason == "cancelled"
    await cast(Any, opened).aclose()


async def test_a_stop_while_the_model_loads_is_heeded(start: Start) -> None:
    """A request that waits for the model ends as cancelled, and nothing is evaluated."""
    engine = start()
    kinds: list[type[Event]] = []
    async for event in engine.generate(COUNT, GREEDY):
        kinds.append(type(event))
        if len(kinds) == 1:
            await engine.cancel()
    assert kinds[-2:] == [Loaded, Failed]
    assert one(Finished, await drain(engine.generate(COUNT, GREEDY))).text


def has_huge_pages_on_request() -> bool:
    """True if the system gives huge pages to programs that ask for them."""
    setting = Path("/sys/kernel/mm/transparent_hugepage/enabled")
    return setting.exists() and "[madvise]" in setting.read_text() and platform.libc_ver() >= ("glibc", "2.35")


def huge_kb(pid: int | None) -> int:
    """KiB of a process's own memory that lie in huge pages."""
    rollup = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return next(int(line.split()[1]) for line in rollup if line.startswith("AnonHugePages:"))


@pytest.mark.skipif(not has_huge_pages_on_request(), reason="no huge pages on request here")
async def test_the_engine_keeps_its_buffers_in_huge_pages(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    """The KV cache alone is larger than one."""
    monkeypatch.delenv("GLIBC_TUNABLES", raising=False)
    engine = start()
    await drain(engine.load())
    assert huge_kb(engine.pid) >= 2 * 1024
