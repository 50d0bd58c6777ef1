import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from models import tuner
from models.kvstatus import StoredKv
from models.llama import Model
from models.measuring import TimeUp
from models.tuner import LITTLE_KV, Effort, _Trials, choose, measure, tune
from models.tuning import (
    DOUBTFUL_S,
    FULL_UBATCH,
    KvType,
    Rates,
    Trial,
    Tuned,
    Tuning,
    cores,
    forget,
    note_path,
    remember,
    remembered,
    tuned_from,
)
from tests.models import tiny_models

MODEL = cast(Model, object())
CHOICE = Tuning(flash_attention=True, threads=1, threads_batch=1)
RATES = Rates(decode=40.0, message=100.0, prompt=200.0)
TUNED = Tuned(CHOICE, RATES, (Trial(CHOICE, RATES),), depth=2048, measured_at=1e9, foreign=0.1)
QUICK = Effort(30.0, depth=128, n_prompt=64, n_windows=1, is_wide=True)


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> list[Tuned | None]:
    """What the next measurements find; each takes one away."""
    found: list[Tuned | None] = [TUNED] * 5

    def measure(*_: object, **__: object) -> Tuned | None:
        return found.pop()

    monkeypatch.setattr(tuner, "measure", measure)
    return found


def ask(cache_dir: Path, weights: str = "ab", gpu_layers: int = 0, kv_type: KvType = "f16") -> Tuning:
    """Tune without looking at the progress."""
    return tune(MODEL, weights, cache_dir, gpu_layers=gpu_layers, kv_type=kv_type, progress=lambda _done, _total: None)


# --- remembering ---


def test_a_choice_is_measured_once(tmp_path: Path, measured: list[Tuned | None]) -> None:
    """The second time it is remembered, with all that was measured."""
    assert [ask(tmp_path), ask(tmp_path)] == [CHOICE, CHOICE]
    assert (len(measured), remembered(tmp_path, "ab", "f16")) == (4, TUNED)


def test_each_model_and_kv_type_is_measured(tmp_path: Path, measured: list[Tuned | None]) -> None:
    """Other weights, or another precision of KV: another measurement."""
    ask(tmp_path, "ab")
    ask(tmp_path, "cd")
    ask(tmp_path, "ab", kv_type="q8_0")
    assert len(measured) == 2


@pytest.mark.parametrize("what", ["models.tuning._cpu_name", "models.tuning.LLAMA_BUILD"])
def test_another_machine_or_build_is_measured(
    tmp_path: Path, measured: list[Tuned | None], monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    """A cache folder that moved to another processor, or another llama.cpp, is not believed."""
    ask(tmp_path)
    monkeypatch.setattr(what, (lambda: "another") if what.endswith("name") else "another")
    ask(tmp_path)
    assert len(measured) == 3


@pytest.mark.parametrize(("age_s", "n_measured"), [(60, 1), (DOUBTFUL_S + 60, 2), (-60, 2)])
def test_what_was_measured_beside_others_holds_for_some_hours(
    tmp_path: Path, measured: list[Tuned | None], age_s: float, n_measured: int
) -> None:
    """On a machine that is always busy not each start measures; what is old, or of the future, is measured again."""
    measured[-1] = replace(TUNED, foreign=1.2, measured_at=time.time() - age_s)
    assert [ask(tmp_path), ask(tmp_path)] == [CHOICE, CHOICE]
    assert len(measured) == 5 - n_measured


def test_a_doubtful_choice_stays_where_nothing_can_be_measured(tmp_path: Path, measured: list[Tuned | None]) -> None:
    """Even an old one: stored KV was made with it."""
    remember(tmp_path, "ab", replace(TUNED, foreign=1.2))
    measured[-1] = None
    assert ask(tmp_path) == CHOICE


@pytest.mark.parametrize(
    ("foreign", "before", "expected"),
    [(0.1, 0.1, True), (0.1, 1.2, True), (1.2, 1.3, True), (1.2, 0.1, False), (1.2, -1.0, True)],
)
def test_a_doubtful_measurement_never_replaces_a_sure_one(foreign: float, before: float, expected: bool) -> None:
    """Any other is newer, and better than nothing (here: below 0)."""
    kept = None if before < 0 else replace(TUNED, foreign=before)
    assert replace(TUNED, foreign=foreign).replaces(kept) is expected


def test_where_others_cannot_be_seen_it_is_kept(tmp_path: Path, measured: list[Tuned | None]) -> None:
    """Not known is not doubtful."""
    measured[-1] = replace(TUNED, foreign=None)
    ask(tmp_path)
    assert remembered(tmp_path, "ab", "f16") == replace(TUNED, foreign=None)


@pytest.mark.parametrize("kv_type", ["f16", "q8_0"])
def test_when_nothing_can_be_measured_the_usual_settings_are_used(
    tmp_path: Path, measured: list[Tuned | None], kv_type: KvType
) -> None:
    """All processors; flash attention where the KV needs it. Nothing is kept."""
    measured[-1] = None
    assert ask(tmp_path, kv_type=kv_type) == Tuning(kv_type == "q8_0", cores(), cores(), kv_type=kv_type)
    assert list(tmp_path.iterdir()) == []


def kept(**changes: object) -> bytes:
    """A note with some values changed."""
    return json.dumps(asdict(TUNED) | changes).encode()


@pytest.mark.parametrize(
    "junk",
    [
        b"",
        b"\xff\xfe",
        b"[]",
        b"null",
        b"{}",
        b"[" * 100_000,
        kept(choice=None),
        kept(choice={"flash_attention": True}),
        kept(choice=asdict(CHOICE) | {"threads": "many"}),
        kept(choice=asdict(CHOICE) | {"threads": 0}),
        kept(choice=asdict(CHOICE) | {"threads_batch": -3}),
        kept(choice=asdict(CHOICE) | {"threads": 1_000_000}),
        kept(choice=asdict(CHOICE) | {"n_ubatch": 0}),
        kept(rates={"decode": 0, "message": 1, "prompt": 1}),
        kept(rates={"decode": float("nan"), "message": 1, "prompt": 1}),
        kept(trials=[[]]),
        kept(measured_at="yesterday"),
    ],
)
def test_a_damaged_note_is_measured_again(tmp_path: Path, measured: list[Tuned | None], junk: bytes) -> None:
    """What is no choice for this machine is measured and written anew."""
    ask(tmp_path)
    (note,) = (tmp_path / "tuning").iterdir()
    note.write_bytes(junk)
    assert [ask(tmp_path), ask(tmp_path)] == [CHOICE, CHOICE]
    assert len(measured) == 3


def test_with_a_gpu_nothing_is_measured(tmp_path: Path, measured: list[Tuned | None]) -> None:
    """Layers on a GPU: flash attention and all cores."""
    assert ask(tmp_path, gpu_layers=99) == Tuning(True, cores(), cores())
    assert (len(measured), list(tmp_path.iterdir())) == (5, [])


def test_a_cache_that_cannot_be_written_is_no_error(tmp_path: Path, measured: list[Tuned | None]) -> None:
    """The choice then holds for this run."""
    (tmp_path / "cache").write_bytes(b"")
    assert ask(tmp_path / "cache") == CHOICE
    assert len(measured) == 4


def test_forgetting_takes_the_notes_of_all_kv_types(tmp_path: Path) -> None:
    """What is kept of another model stays."""
    for weights, kv_type in (("ab", "f16"), ("ab", "q8_0"), ("cd", "f16")):
        choice = replace(CHOICE, kv_type=cast(KvType, kv_type))
        remember(tmp_path, weights, replace(TUNED, choice=choice))
    assert (forget(tmp_path, "ab"), forget(tmp_path, "ab")) == (True, False)
    assert (remembered(tmp_path, "ab", "f16"), remembered(tmp_path, "ab", "q8_0")) == (None, None)
    assert note_path(tmp_path, "cd", "f16").exists()


# --- choosing ---


def trial(flash: bool, threads: int, rates: tuple[float, float, float], n_ubatch: int = FULL_UBATCH) -> Trial:
    """A trial with as many threads for both."""
    return Trial(Tuning(flash, threads, threads, n_ubatch), Rates(*rates))


OFF, ON = trial(False, 4, (40, 100, 200)), trial(True, 4, (20, 100, 250))


@pytest.mark.parametrize("trials", [(OFF, ON), (ON, OFF)])
def test_the_faster_flash_attention_mode_is_chosen(trials: Sequence[Trial]) -> None:
    """By the time of a whole turn: decoding weighs most."""
    assert choose(trials, {}) == (OFF.tuning, OFF.rates, "measured")


@pytest.mark.parametrize(
    ("decode", "stored", "expected"),
    [
        (21.0, {True: StoredKv(5000, 10), False: StoredKv(10, 10)}, (True, "kv")),
        (21.0, {True: StoredKv(10, 10), False: StoredKv(5000, 10)}, (False, "measured")),
        (21.0, {True: StoredKv(LITTLE_KV, 10)}, (False, "measured")),
        (21.0, {}, (False, "measured")),
        (30.0, {True: StoredKv(5000, 10)}, (False, "measured")),
    ],
)
def test_stored_kv_is_given_up_for_more_than_the_margin(
    decode: float, stored: Mapping[bool, StoredKv], expected: tuple[bool, str]
) -> None:
    """Where one mode has clearly more KV on disk, the other has to be a tenth faster."""
    choice, _, reason = choose([trial(False, 4, (decode, 100, 200)), trial(True, 4, (20, 100, 200))], stored)
    assert (choice.flash_attention, reason) == expected


def test_threads_are_chosen_for_decoding_and_prefill_apart() -> None:
    """Fewer threads decode faster, all of them read a prompt faster: both are used for what they are good at."""
    choice, rates, _ = choose([OFF, ON, trial(False, 2, (55, 60, 90)), trial(False, 1, (30, 30, 40))], {})
    assert choice == Tuning(False, threads=2, threads_batch=4)
    assert rates == Rates(55, 100, 200)


def test_fewer_tokens_together_need_a_gain_beyond_noise() -> None:
    """Two per cent are none."""
    slightly, clearly = trial(False, 4, (40, 101, 205), 256), trial(False, 4, (40, 120, 240), 128)
    assert choose([OFF, slightly], {})[0].n_ubatch == FULL_UBATCH
    assert choose([OFF, slightly, clearly], {})[0].n_ubatch == 128


def test_quantized_kv_needs_flash_attention() -> None:
    """There is nothing to choose from, and it is said."""
    only = Trial(Tuning(True, 2, 2, kv_type="q8_0"), RATES)
    assert choose([only], {False: StoredKv(1000, 10)}) == (only.tuning, RATES, "needed")


@pytest.mark.parametrize(("foreign", "expected"), [(0.0, "measured"), (None, "measured"), (1.2, "kv")])
def test_stored_kv_is_not_given_up_for_a_doubtful_measurement(
    monkeypatch: pytest.MonkeyPatch, foreign: float | None, expected: str
) -> None:
    """However much faster the other mode seemed."""

    class Rated(_Trials):
        def run(self, tunings: Sequence[Tuning]) -> bool:
            self.done += [Trial(one, replace(RATES, decode=20 if one.flash_attention else 60)) for one in tunings]
            return True

    monkeypatch.setattr(tuner, "_Trials", Rated)
    monkeypatch.setattr("models.busy.ForeignLoad.cores_used", lambda _load: foreign)
    model = cast(Model, SimpleNamespace(n_ctx_train=4096, memory_kind="dense"))
    tuned = measure(model, QUICK, "f16", stored={True: StoredKv(5000, 10)}, progress=lambda _done, _n: None)
    assert tuned
    assert (tuned.reason, tuned.choice.flash_attention) == (expected, expected == "kv")


def test_fewer_threads_are_tried_where_all_take_too_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """However long those took that got through: without them there would be no measurement at all."""
    now = 0.0

    def rates(_trials: _Trials, tuning: Tuning, _begun: float) -> Rates:
        nonlocal now
        is_late = tuning.threads == 2 and tuning.flash_attention
        now += 10 if tuning.threads == 2 else 1
        if is_late:
            raise TimeUp
        return RATES

    monkeypatch.setattr(tuner, "time", SimpleNamespace(monotonic=lambda: now, time=time.time))
    monkeypatch.setattr(tuner, "cores", lambda: 2)
    monkeypatch.setattr(_Trials, "_rates", rates)
    model = cast(Model, SimpleNamespace(n_ctx_train=4096, memory_kind="dense"))
    tuned = measure(model, Effort(29.0), "f16", stored={}, progress=lambda _done, _n: None)
    assert tuned
    assert [(one.tuning.threads, one.tuning.flash_attention) for one in tuned.trials] == [(1, False), (1, True)]


# --- measuring, with real models ---


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory, native_log: list[str]) -> dict[str, Model]:
    """A model of each of these kinds, of a few kilobytes."""
    assert native_log is not None
    folder = tmp_path_factory.mktemp("tiny")
    return {
        kind: Model(tiny_models.build(kind, folder), gpu_layers=0, progress=lambda _share: None)
        for kind in ("dense", "hybrid", "recurrent")
    }


@pytest.mark.parametrize("kind", ["dense", "hybrid", "recurrent"])
def test_both_modes_and_fewer_threads_are_tried(tiny: dict[str, Model], kind: str) -> None:
    """The choice is made of what was tried, and its rates are theirs; its JSON gives it back."""
    told: list[tuple[int, int]] = []
    tuned = measure(tiny[kind], QUICK, "f16", stored={}, progress=lambda done, n: told.append((done, n)))
    assert tuned
    tried = [trial.tuning for trial in tuned.trials]
    assert {one.flash_attention for one in tried} == {False, True}
    assert {one.threads for one in tried} >= {1, cores()}
    assert tuned.choice.threads in {one.threads for one in tried}
    assert tuned.rates.decode == max(
        one.rates.decode for one in tuned.trials if one.tuning.flash_attention == tuned.choice.flash_attention
    )
    assert told == sorted(told)
    # What cannot be copied to other positions is measured at the beginning, and that is said.
    assert tuned.depth == (QUICK.depth if kind == "dense" else 32)
    assert tuned_from(json.loads(json.dumps(asdict(tuned)))) == tuned


def test_lossy_kv_is_tried_only_where_the_user_allows_it(tiny: dict[str, Model]) -> None:
    """With q8_0 the lossless one is measured beside it, for the table; the choice stays what was allowed."""
    plain = measure(tiny["dense"], QUICK, "f16", stored={}, progress=lambda _done, _n: None)
    lossy = measure(tiny["dense"], QUICK, "q8_0", stored={}, progress=lambda _done, _n: None)
    assert plain
    assert lossy
    assert {trial.tuning.kv_type for trial in plain.trials} == {"f16"}
    assert {trial.tuning.kv_type for trial in lossy.trials} == {"f16", "q8_0"}
    assert (lossy.choice.kv_type, lossy.choice.flash_attention) == ("q8_0", True)


def test_what_takes_longer_than_its_time_is_broken_off(model: Model) -> None:
    """The model's two thousand tokens are not waited for; without both modes there is no measurement."""
    assert measure(model, Effort(0.03), "f16", stored={}, progress=lambda _done, _n: None) is None


_TUNE = """
import sys
from pathlib import Path
from models.llama import Model
from models.tuner import tune
model = Model(Path(sys.argv[1]), gpu_layers=0, progress=lambda share: None)
tune(model, "ab", Path(sys.argv[2]), gpu_layers=0, progress=lambda done, n: print("trying", flush=True))
"""


@pytest.mark.skipif(os.name == "nt", reason="signals of POSIX")
def test_a_killed_measurement_leaves_nothing_behind(tmp_path: Path, tiny: dict[str, Model]) -> None:
    """No note, half of one or file in its place, and no process that goes on painting."""
    assert tiny
    path = tiny_models.build("dense", tmp_path)
    command = [sys.executable, "-c", _TUNE, str(path), str(tmp_path / "cache")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True) as child:
        assert child.stdout
        assert child.stdout.readline() == b"trying\n"
        child.send_signal(signal.SIGKILL)
    assert not (tmp_path / "cache").exists()
    for _ in range(1200):  # the painter looks at its parent ten times a second
        try:
            os.killpg(child.pid, 0)
        except ProcessLookupError:
            break
        time.sleep(0.05)
    else:
        pytest.fail("something goes on painting")
