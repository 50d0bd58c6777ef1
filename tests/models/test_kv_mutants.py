"""Damaged stores through the real model: the answer is bit for bit that of a clean run."""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from models.cost import Rates
from models.kvfolder import KvFolder
from models.kvstore import KvStore
from models.kvverify import verify
from models.llama import Context, ContextSettings, Model
from models.residency import Request, Residency
from tests.models.helpers import FINGERPRINT, segment_files

KEY = b"k" * 32
N_ANSWER = 3
N_HEALING_RUNS = 3
TEXTS = (
    "<|im_start|>system\nYou are a gardener of many years, and you answer everything briefly and kindly.<|im_end|>\n",
    "<|im_start|>user\nWhat grows in the garden behind the house in spring?<|im_end|>\n",
    "<|im_start|>assistant\nTulips first, then peas along the wall, and between them a great many weeds.<|im_end|>\n",
    "<|im_start|>user\nAnd what should I do about the last of these?<|im_end|>\n<|im_start|>assistant\n",
)

Answer = tuple[tuple[int, ...], bytes]
Mutate = Callable[[random.Random, list[Path]], None]


def _flip(rng: random.Random, files: list[Path]) -> None:
    path = rng.choice(files)
    data = bytearray(path.read_bytes())
    # Half of the bits fall into header and token ids, which are a tiny part of the file.
    end = rng.choice((300, len(data)))
    data[rng.randrange(min(end, len(data)))] ^= 1 << rng.randrange(8)
    path.write_bytes(data)


def _zero_page(rng: random.Random, files: list[Path]) -> None:
    path = rng.choice(files)
    data = bytearray(path.read_bytes())
    at = rng.randrange(len(data)) & ~4095
    data[at : at + 4096] = bytes(len(data[at : at + 4096]))
    path.write_bytes(data)


def _truncate(rng: random.Random, files: list[Path]) -> None:
    path = rng.choice(files)
    os.truncate(path, rng.choice((0, 7, path.stat().st_size // 2, path.stat().st_size - 1)))


def _extend(rng: random.Random, files: list[Path]) -> None:
    with rng.choice(files).open("ab") as file:
        file.write(rng.randbytes(rng.choice((1, 4096))))


def _swap(rng: random.Random, files: list[Path]) -> None:
    one, other = rng.sample(files, 2)
    aside = one.with_name("aside")
    one.rename(aside)
    other.rename(one)
    aside.rename(other)


def _splice(rng: random.Random, files: list[Path]) -> None:
    one, other = (path.read_bytes() for path in rng.sample(files, 2))
    cut = rng.randrange(min(len(one), len(other)))
    rng.choice(files).write_bytes(one[:cut] + other[cut:])


def _old_version(rng: random.Random, files: list[Path]) -> None:
    path = rng.choice(files)
    data = bytearray(path.read_bytes())
    data[7] = rng.choice((0, 1, 3, 255))
    path.write_bytes(data)


def _vanish(rng: random.Random, files: list[Path]) -> None:
    rng.choice(files).unlink()


def _link(rng: random.Random, files: list[Path]) -> None:
    one, other = rng.sample(files, 2)
    one.unlink()
    one.symlink_to(other)


def _folder(rng: random.Random, files: list[Path]) -> None:
    path = rng.choice(files)
    path.unlink()
    path.mkdir()


def _pipe(rng: random.Random, files: list[Path]) -> None:
    path = rng.choice(files)
    path.unlink()
    os.mkfifo(path)


def _index(rng: random.Random, files: list[Path]) -> None:
    index = files[0].parents[2] / "index.db"
    data = bytearray(index.read_bytes())
    for _ in range(20):
        data[rng.randrange(len(data))] ^= 0xFF
    index.write_bytes(data)


MUTATIONS: tuple[Mutate, ...] = (
    _flip,
    _zero_page,
    _truncate,
    _extend,
    _swap,
    _splice,
    _old_version,
    _vanish,
    _link,
    _folder,
    _pipe,
    _index,
)


class Runner:
    """Answers the conversation from a store, message by message, so that batches end where segments do."""

    def __init__(self, model: Model) -> None:
        self.context = Context(model, ContextSettings(512, flash_attention=False, threads=1))
        self.context.warm_up()
        self.messages = [model.tokenize(text, True) for text in TEXTS]
        self.n_restored = 0

    def answer(self, root: Path) -> Answer:
        """Greedy tokens and the logits' bytes behind the whole history, made resident from this store or by prefill."""
        self.context.clear()
        store = KvStore(root, KEY, FINGERPRINT, clock=lambda: 1.0)
        store.remember("rates", Rates(1.0, 0.0, 0.0).to_json())
        residency = Residency(self.context, store)
        self.n_restored = 0
        tokens: list[int] = []
        ends: list[int] = []
        try:
            for i, message in enumerate(self.messages):
                tokens = [*tokens, *message]
                ends.append(len(tokens))
                is_last = i == len(self.messages) - 1
                outcome = residency.ensure(Request(tokens, len(tokens) - is_last, 0, ends), lambda *_: None)
                self.n_restored += outcome.restored
                if not is_last:
                    residency.capture(ends, lambda _written: None)
            return self._decode()
        finally:
            residency.close()

    def _decode(self) -> Answer:
        ids = []
        for _ in range(N_ANSWER):
            logits = self.context.logits()
            ids.append(max(range(len(logits)), key=logits.__getitem__))
            assert self.context.decode(ids[-1])
        return tuple(ids), self.context.logits().tobytes()


@pytest.fixture(scope="module")
def runner(model: Model) -> Iterator[Runner]:
    """One context for all runs: what a refused restore leaves behind would show."""
    made = Runner(model)
    yield made
    made.context.close()


@pytest.fixture(scope="module")
def stored(runner: Runner, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Answer]:
    """A store as a clean run leaves it, and that run's answer."""
    root = tmp_path_factory.mktemp("stored") / "kv"
    answer = runner.answer(root)
    assert runner.n_restored == 0
    return root, answer


def mutant(root: Path, target: Path, seed: int) -> Sequence[Path]:
    """A copy of the store with one thing damaged, another kind each time."""
    shutil.copytree(root, target)
    files = segment_files(target)
    MUTATIONS[seed % len(MUTATIONS)](random.Random(seed), files)
    return files


def test_an_intact_store_answers_as_the_clean_run(runner: Runner, stored: tuple[Path, Answer]) -> None:
    """The oracle itself: restored and clean are equal bit for bit, and it was restored."""
    root, clean = stored
    assert runner.answer(root) == clean
    assert runner.n_restored == sum(map(len, runner.messages[:-1]))


def test_mutants_answer_as_the_clean_run(
    runner: Runner, stored: tuple[Path, Answer], tmp_path: Path, pytestconfig: pytest.Config
) -> None:
    """Whatever is damaged, and wherever, tokens and logits are those of a run that had nothing stored."""
    root, clean = stored
    for seed in range(int(pytestconfig.getoption("--model-mutants"))):
        target = tmp_path / str(seed)
        mutant(root, target, seed)
        assert runner.answer(target) == clean, f"mutant {seed}"
        if MUTATIONS[seed % len(MUTATIONS)] is _index:
            # An index that is only wrong is found by reading all of it, which is done once a day or when asked.
            verify(target, KEY, repair=True, progress=lambda _done, _total: None)
        # Soon all of it serves again. A damaged file may lie where nobody had to read it, so not always at once.
        for _ in range(N_HEALING_RUNS):
            assert runner.answer(target) == clean, f"mutant {seed}, a run after"
        assert runner.n_restored == sum(map(len, runner.messages[:-1])), f"mutant {seed} was not made up for"
        assert all(path.is_file() and not path.is_symlink() for path in segment_files(KvFolder(target).root))
        shutil.rmtree(target)
