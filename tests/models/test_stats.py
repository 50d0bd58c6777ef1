from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from models.engine import ModelInfo, TurnStats
from models.stats import KvShape, common_prefix, default_context, memory_share, tpot, tpot_floor

KIB = 1024
GIB = 1 << 30


@pytest.mark.parametrize(
    ("shape", "per_token"),
    [
        (KvShape(32, 32, 128), 512 * KIB),  # Llama 2 7B
        (KvShape(28, 4, 128), 56 * KIB),  # Qwen2.5-7B
        (KvShape(36, 16, 128), 288 * KIB),  # a 3B model without grouped queries: K and V 2,048 wide
        (KvShape(30, 3, 64), 23_040),  # SmolLM2-135M
        (KvShape(30, 3, 64, "f32", "f32"), 46_080),
        (KvShape(30, 3, 64, "q8_0", "q8_0"), 12_240),  # 34 bytes for 32 elements
        (KvShape(30, 3, 64, "q8_0", "f16"), 17_640),
    ],
)
def test_bytes_per_token(shape: KvShape, per_token: int) -> None:
    """2 x layers x KV heads x head width x bytes of an element, for models whose figures are known."""
    assert shape.bytes_per_token == per_token


def test_known_totals() -> None:
    """4,096 tokens of Llama 2 are 2 GiB, 131,072 of Qwen2.5 are 7 GiB, 4,010 of SmolLM2 are 92.4 MB."""
    assert KvShape(32, 32, 128).bytes_per_token * 4_096 == 2 * GIB
    assert KvShape(28, 4, 128).bytes_per_token * 131_072 == 7 * GIB
    assert KvShape(30, 3, 64).bytes_per_token * 4_010 == 92_390_400


def test_time_per_output_token() -> None:
    """The first token is not counted: 5 tokens are 4 steps; one token has no pace."""
    assert tpot(10.0, 12.0, 5) == 0.5
    assert tpot(10.0, 10.0, 2) == 0.0
    assert (tpot(10.0, 12.0, 1), tpot(0.0, 0.0, 0)) == (None, None)


@pytest.mark.parametrize(
    ("trained", "available", "tokens"),
    [
        (2_048, 64 * GIB, 2_048),
        (131_072, 64 * GIB, 32_768),
        (131_072, GIB, 16_384),  # 40 % of it holds 18,641 tokens of 23,040 bytes
        (8_192, 0, 512),
    ],
)
def test_the_context_fits_the_model_and_the_memory(trained: int, available: int, tokens: int) -> None:
    """The trained length, 32,768, or the power of two that 40 % of memory holds: whichever is least."""
    assert default_context(trained, 23_040, available) == tokens


@given(st.lists(st.integers(0, 2)), st.lists(st.integers(0, 2)))
def test_common_prefix_is_the_longest(a: list[int], b: list[int]) -> None:
    """Both agree up to it, and differ or end behind it."""
    n = common_prefix(a, b)
    assert a[:n] == b[:n]
    assert n in (len(a), len(b)) or a[n] != b[n]


INFO = ModelInfo(
    name="m",
    path="",
    architecture="llama",
    n_params=0,
    weights_bytes=0,
    n_ctx=1000,
    n_ctx_train=1000,
    kv_bytes_per_token=10,
    flash_attention=True,
    threads=1,
    gpu_layers=0,
    fingerprint="",
    supports_system=True,
    kv_note=None,
    load_s=0.0,
    active_bytes=1000,
    read_bytes_per_s=500.0,
)


@pytest.mark.parametrize(
    ("info", "floor"),
    [
        (INFO, 4.0),  # (1000 + 100 x 10) / 500
        (replace(INFO, memory_kind="sliding window"), 2.0),
        (replace(INFO, memory_kind="recurrent", kv_bytes_per_token=0, kv_state_bytes=500), 3.0),
        (replace(INFO, memory_kind="hybrid", kv_state_bytes=500), 5.0),
        (replace(INFO, active_bytes=None), None),
        (replace(INFO, read_bytes_per_s=None), None),
    ],
)
def test_the_least_time_of_a_token(info: ModelInfo, floor: float | None) -> None:
    """Active weights, KV of the tokens before and states, over the speed of reading; unknown without one of them."""
    assert tpot_floor(info, 100) == floor


def test_how_much_of_the_memory_is_used() -> None:
    """A busy moment may have measured its speed too low, so it is never more than all; unknown without either time."""
    assert (memory_share(0.04, 0.01), memory_share(0.01, 0.02)) == (0.25, 1.0)
    assert (memory_share(None, 0.02), memory_share(0.01, None), memory_share(0.0, 0.02)) == (None, None, None)


@given(
    st.tuples(*[st.floats(0, 1e4) for _ in range(4)]),
    st.tuples(*[st.booleans() for _ in range(4)]),
)
def test_the_parts_of_the_ttft_add_up(parts: tuple[float, ...], known: tuple[bool, ...]) -> None:
    """Queue, restore, prefill and first decode are the whole; without one of the others the queue is unknown."""
    queue, restore, prefill, first = parts
    values = [value if is_known else None for value, is_known in zip((sum(parts), *parts[1:]), known, strict=True)]
    stats = TurnStats(ttft_s=values[0], restore_s=values[1], prefill_s=values[2], first_decode_s=values[3])
    if not all(known):
        assert stats.queue_s is None
        return
    assert stats.queue_s is not None
    assert stats.queue_s == pytest.approx(queue, abs=1e-6)
    assert stats.queue_s + restore + prefill + first == pytest.approx(stats.ttft_s)


def test_the_way_to_who_asked_is_no_part_of_the_queue() -> None:
    """Where it is known, it is a part of its own; else nobody can tell it from waiting."""
    stats = TurnStats(ttft_s=1.0, restore_s=0.1, prefill_s=0.2, first_decode_s=0.1)
    assert stats.queue_s == pytest.approx(0.6)
    assert replace(stats, transport_s=0.25).queue_s == pytest.approx(0.35)


def test_a_part_is_never_negative() -> None:
    """Two processes have two clocks: what was measured inside may be a little more than the whole."""
    assert TurnStats(ttft_s=1.0, restore_s=0.0, prefill_s=1.0, first_decode_s=0.001).queue_s == 0.0
