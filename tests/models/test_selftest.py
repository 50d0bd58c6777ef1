"""The self-test passes where restoring works, and notices where it does not."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

from models import kvrows, selftest
from models.errors import EngineError, ModelError
from models.llama import Context, ContextSettings, Model
from tests.models.tiny_models import KINDS, UNKNOWN, WINDOW, build

SETTINGS = ContextSettings(8192, flash_attention=False, threads=1)


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory, native_log: list[str]) -> Iterator[dict[str, Model]]:
    """A tiny model of each kind."""
    assert native_log is not None
    folder = tmp_path_factory.mktemp("tiny")
    made = {kind: Model(build(kind, folder), gpu_layers=0, progress=lambda _share: None) for kind in (*KINDS, UNKNOWN)}
    yield made
    for model in made.values():
        model.close()


@pytest.fixture
def prefilled(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Tokens of each batch that is evaluated."""
    sizes: list[int] = []
    plain = Context._decode

    def counted(self: Context, batch: Any, n: int, *prepared: Any) -> bool:
        sizes.append(n)
        return plain(self, batch, n, *prepared)

    monkeypatch.setattr(Context, "_decode", counted)
    return sizes


@pytest.mark.parametrize("kv", ["f16", "f16, flash attention", "q8_0"])
@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_passes(models: dict[str, Model], kind: str, kv: str, prefilled: list[int]) -> None:
    """Every kind of memory restores here, to the bit, with fewer than 128 tokens evaluated."""
    settings = ContextSettings(8192, kv != "f16", 1, "q8_0" if kv == "q8_0" else "f16")
    found = selftest.run(models[kind], settings)
    assert found.passed, found.detail
    assert found.max_difference == 0
    assert (found.row_bytes > 0, found.state_bytes > 0) == (kind != "recurrent", kind in ("hybrid", "recurrent"))
    assert sum(prefilled) < 128
    assert "saved and restored" in found.detail


def test_the_window_is_crossed(models: dict[str, Model], prefilled: list[int]) -> None:
    """More tokens are resident than the window holds, and few of them were evaluated."""
    detail = selftest.run(models["sliding window"], SETTINGS).detail
    assert f"to fill the window of {WINDOW}" in detail
    assert int(detail.split()[0]) >= WINDOW + 2 * 32
    assert sum(prefilled) < 128


def test_an_unknown_layout_is_filled_for_real(
    models: dict[str, Model], prefilled: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where rows cannot be moved, the window is evaluated instead, and the rest of the test stays the same."""
    monkeypatch.setattr(kvrows, "move", lambda _payload, _shift: False)
    assert selftest.run(models["sliding window"], SETTINGS).passed
    assert sum(prefilled) > WINDOW + 100


def test_filling_for_real_has_a_deadline(models: dict[str, Model], monkeypatch: pytest.MonkeyPatch) -> None:
    """A slow machine tests what it got done."""
    monkeypatch.setattr(kvrows, "move", lambda _payload, _shift: False)
    monkeypatch.setattr(selftest, "_REAL_FILL_S", 0.0)
    found = selftest.run(models["sliding window"], SETTINGS)
    assert found.passed
    assert "16 of them to fill" in found.detail


# --- what it must notice ---


def test_a_memory_that_cannot_be_taken_apart_does_not_pass(models: dict[str, Model]) -> None:
    """Where the library's state is laid out otherwise than its kind has it, nothing is kept; and nothing crashes."""
    found = selftest.run(models[UNKNOWN], SETTINGS)
    assert (found.passed, "could not be" in found.detail) == (False, True)


def zeroed(payload: bytearray) -> bytearray:
    """The last third of the bytes lost."""
    n = len(payload) // 3
    return payload[:-n] + bytearray(n)


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "recurrent"])
def test_lost_rows_are_noticed(models: dict[str, Model], kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows whose bytes are zero give other logits."""
    plain = Context.export_rows
    empty_state = 0 if kind != "hybrid" else 100  # a hybrid's rows end with the sections of an empty state

    def broken(self: Context, start: int, end: int) -> bytearray:
        rows = plain(self, start, end)
        cut = len(rows) - empty_state
        return zeroed(rows[:cut]) + rows[cut:]

    monkeypatch.setattr(Context, "export_rows", broken)
    monkeypatch.setattr(kvrows, "move", lambda _payload, _shift: False)
    monkeypatch.setattr(selftest, "_REAL_FILL_S", 20.0)
    found = selftest.run(models[kind], SETTINGS)
    assert not found.passed
    assert "differ by" in found.detail or "refused" in found.detail


def swapped(self: Context, payload: memoryview, start: int, tokens: Sequence[int], begin: int, end: int) -> bool:
    """Keys of the first layer in each other's cells; the labels alone may be swapped, as keys carry their position."""
    section = kvrows.first_section(payload)
    assert section is not None
    mixed, at = bytearray(payload), section.end + 20
    size = int.from_bytes(payload[at - 8 : at], "little")
    for i, cell in enumerate(reversed(range(len(tokens)))):
        mixed[at + i * size : at + (i + 1) * size] = payload[at + cell * size : at + (cell + 1) * size]
    return IMPORT_ROWS(self, memoryview(mixed), start, tokens, begin, end)


def without_state(self: Context, _payload: memoryview, tokens: Sequence[int]) -> bool:
    """Say that a state was loaded, and load none."""
    self._needs_state = False
    self.tokens[:] = tokens
    return True


def damaged_state(self: Context, payload: memoryview, tokens: Sequence[int]) -> bool:
    """Load a state of which the first layer is lost."""
    damaged = bytearray(payload)
    damaged[60:700] = bytearray(640)
    return IMPORT_STATE(self, memoryview(damaged), tokens)


IMPORT_ROWS = Context.import_rows
IMPORT_STATE = Context.import_state


@pytest.mark.parametrize(
    ("kind", "method", "broken"),
    [
        ("dense", "import_rows", swapped),
        ("moe", "import_rows", swapped),
        ("hybrid", "import_rows", swapped),
        ("sliding window", "import_rows", swapped),
        ("hybrid", "import_state", without_state),
        ("recurrent", "import_state", without_state),
        ("hybrid", "import_state", damaged_state),
        ("recurrent", "import_state", damaged_state),
    ],
)
def test_a_wrong_restore_is_noticed(
    models: dict[str, Model], kind: str, method: str, broken: Callable[..., bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the library accepts without a word but is not what was saved does not pass."""
    monkeypatch.setattr(Context, method, broken)
    found = selftest.run(models[kind], SETTINGS)
    assert not found.passed
    assert "differ by" in found.detail or (kind == "sliding window" and "rows that were restored" in found.detail)
    assert found.max_difference > 0


@pytest.mark.parametrize("method", ["import_rows", "import_state"])
def test_a_refusal_is_a_failed_test(models: dict[str, Model], method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was saved and cannot be loaded is not worth saving."""
    monkeypatch.setattr(Context, method, lambda *_args: False)
    found = selftest.run(models["hybrid"], SETTINGS)
    assert (found.passed, found.detail) == (False, "The library refused a state it had saved itself.")


def test_a_part_that_is_refused_is_a_failed_test(models: dict[str, Model], monkeypatch: pytest.MonkeyPatch) -> None:
    """The same for the first half."""
    seen: list[int] = []

    def second_time(self: Context, payload: memoryview, tokens: Sequence[int]) -> bool:
        seen.append(len(tokens))
        return len(seen) < 2 and IMPORT_STATE(self, payload, tokens)

    monkeypatch.setattr(Context, "import_state", second_time)
    found = selftest.run(models["recurrent"], SETTINGS)
    assert (found.passed, "first half" in found.detail) == (False, True)


def test_a_cut_that_fails_is_a_failed_test(models: dict[str, Model], monkeypatch: pytest.MonkeyPatch) -> None:
    """Cutting back must leave the first half."""
    monkeypatch.setattr(Context, "keep", lambda self, _n: self.clear())
    found = selftest.run(models["dense"], SETTINGS)
    assert (found.passed, "cut back" in found.detail) == (False, True)


def test_an_error_of_the_library_is_a_failed_test(models: dict[str, Model], monkeypatch: pytest.MonkeyPatch) -> None:
    """The sentence says what went wrong; nothing is raised."""

    def fails(_self: Context, _start: int, _end: int) -> bytearray:
        raise EngineError("The KV rows could not be read.")

    monkeypatch.setattr(Context, "export_rows", fails)
    found = selftest.run(models["dense"], SETTINGS)
    assert not found.passed
    assert found.detail.endswith("The KV rows could not be read.")


def test_logits_that_are_no_numbers_do_not_pass(models: dict[str, Model], monkeypatch: pytest.MonkeyPatch) -> None:
    """Not-a-number equals nothing, but must not slip through a comparison."""
    plain = Context.logits

    def broken(self: Context) -> Any:
        found = plain(self)
        found[3] = float("nan")
        return found

    monkeypatch.setattr(Context, "logits", broken)
    found = selftest.run(models["dense"], SETTINGS)
    assert (found.passed, "finite" in found.detail) == (False, True)


def test_a_context_that_cannot_be_had_is_no_failed_test(models: dict[str, Model]) -> None:
    """Memory that is short now may be there the next time, so nothing is remembered."""
    settings = ContextSettings(256, flash_attention=False, threads=1, kv_type="q8_0")
    with pytest.raises(ModelError, match="flash attention"):
        selftest.run(models["dense"], settings)
