from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from models.engine import Entry, Event, Finished, Prepared, Prompt, Sampling
from models.loading import LocalSettings
from models.local import LocalEngine
from models.tokenruns import answer_glue
from tests.models.helpers import after, n_ahead, n_new, one
from tests.models.tiny_models import KINDS, Tokenizer, build

TEMPLATES = {
    path.stem: path.read_text(encoding="utf-8") for path in Path(__file__).with_name("templates").glob("*.jinja")
}
TURNS = 20
FEW = Sampling(temperature=1.0, max_tokens=4)


CASES: list[tuple[str, str, Tokenizer]] = [
    *(("dense", name, "bpe") for name in TEMPLATES),
    *(("dense", name, "spm") for name in ("deepseek-r1", "gemma3", "llama2", "mistral-v3", "one-sided")),
    *((kind, "deepseek-r1", "spm") for kind in KINDS if kind != "dense"),
]


def load(folder: Path, kind: str, name: str, tokenizer: Tokenizer) -> LocalEngine:
    """Load a tiny model with the template."""
    settings = LocalSettings(
        build(kind, folder, template=TEMPLATES[name], tokenizer=tokenizer),
        cache_dir=folder / "cache",
        data_dir=folder / "data",
        n_ctx=8192,
        threads=1,
        flash_attention="off",
        speculation="off",
    )
    return LocalEngine(settings, lambda _event: None)


@pytest.fixture(params=CASES, ids="-".join)
def engine(request: pytest.FixtureRequest, tmp_path: Path, native_log: list[str]) -> Iterator[LocalEngine]:
    """A tiny model of each case."""
    assert native_log is not None
    made = load(tmp_path, *request.param)
    yield made
    made.close()


@pytest.fixture
def spm(tmp_path: Path, native_log: list[str]) -> Iterator[LocalEngine]:
    """A model whose tokenizer puts a space before each text."""
    assert native_log is not None
    made = load(tmp_path, "dense", "llama2", "spm")
    yield made
    made.close()


def answered(engine: LocalEngine, prompt: Prompt, seed: int) -> list[Event]:
    """Answer a prompt with a few random tokens."""
    events: list[Event] = []
    engine.generate(prompt, replace(FEW, seed=seed), events.append)
    return events


def test_twenty_turns_evaluate_no_token_twice(engine: LocalEngine) -> None:
    """Each turn evaluates its message, its glue and nothing of the history, whatever the model has answered."""
    prompt = Prompt((Entry("system", "Be brief."), Entry("user", "Begin.")))
    start = answer_glue("user", engine._glue, engine._model.tokenize).start
    assert bool(start) == bool(engine._glue.reasoning_start)
    n_resident = 0
    for turn in range(TURNS):
        events = answered(engine, prompt, seed=turn)
        prepared, finished = one(Prepared, events), one(Finished, events)
        assert finished.run.body[: len(start)] == start
        if turn:
            assert prepared.prefilled == n_new(prepared) + len(start)
            assert (prepared.resident, prepared.restored) == (n_resident + n_ahead(prepared), 0)
        n_resident = sum(len(run.ids) for run in (*prepared.runs, finished.run))
        prompt = after(prompt, events, f"Question {turn}?")


def test_what_a_stop_string_leaves_has_no_space_put_before_it(spm: LocalEngine) -> None:
    """Ids and text agree where a stop string ends inside a token."""
    prompt = Prompt((Entry("user", "hello"),), store_kv=False)
    whole = one(Finished, answered(spm, prompt, seed=1))
    pieces = [spm._model.piece(token).decode("utf-8", "replace") for token in whole.run.body]
    place = next(place for place, piece in enumerate(pieces) if len(piece) > 1)
    stop = whole.text[len("".join(pieces[:place])) + 1 :]
    spm._context.clear()
    events: list[Event] = []
    spm.generate(prompt, replace(FEW, seed=1, stop=(stop,)), events.append)
    finished = one(Finished, events)
    assert finished.reason == "stop"
    assert b"".join(map(spm._model.piece, finished.run.body)).decode() == finished.text
    assert finished.text + stop == whole.text
