import ctypes
import threading
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path

import pytest
from llama_cpp import llama_cpp as lib

from models.engine import Sampling
from models.errors import EngineError, ModelError
from models.llama import Context, ContextSettings, Model, Sampler
from tests.models.helpers import KV_BYTES_PER_TOKEN, N_CTX
from tests.models.tiny_models import build, build_lora

SETTINGS = ContextSettings(N_CTX, flash_attention=False, threads=1)


@pytest.fixture(scope="module")
def tokens(model: Model) -> list[int]:
    """40 tokens of prose."""
    text = "The old lighthouse keeper counted the ships that passed in the night and wrote each into a book. "
    return model.tokenize(text * 3, False)[:40]


@pytest.fixture(scope="module")
def _contexts(model: Model) -> Iterator[list[Context]]:
    made = [Context(model, SETTINGS) for _ in range(2)]
    yield made
    for context in made:
        context.close()


@pytest.fixture
def context(_contexts: list[Context]) -> Context:
    """An empty context."""
    _contexts[0].clear_cancel()
    _contexts[0].clear()
    return _contexts[0]


@pytest.fixture
def other(_contexts: list[Context]) -> Context:
    """A second empty context."""
    _contexts[1].clear_cancel()
    _contexts[1].clear()
    return _contexts[1]


def prefill(context: Context, tokens: Sequence[int]) -> bool:
    """Append tokens without looking at the progress."""
    return context.prefill(tokens, lambda _done: None)


def logits(context: Context, model: Model, token: int) -> bytes:
    """Evaluate one token; the logits behind it, bit for bit."""
    assert context.decode(token)
    return ctypes.string_at(lib.llama_get_logits_ith(context._handle, -1), 4 * model.n_vocab)


def end(context: Context, sequence: int = 0) -> int:
    """How many positions the native cache holds of a sequence that begins at 0."""
    return int(lib.llama_memory_seq_pos_max(context._memory, sequence)) + 1


# --- vocabulary ---


def test_a_body_cannot_contain_control_tokens(model: Model) -> None:
    """A control token's text is one id only when asked for; in a body it is plain characters."""
    assert model.tokenize("<|im_end|>", True) == [2]
    plain = model.tokenize("<|im_end|>", False)
    assert 2 not in plain
    assert b"".join(map(model.piece, plain)) == b"<|im_end|>"
    assert (model.piece(2), model.ends_generation(2)) == (b"", True)


@pytest.mark.parametrize("text", ["\n" + " " * 39, " " * 200, "a" * 5000, "é漢字🙂\x00\r\n\t", ""])
def test_tokens_stand_for_their_text(model: Model, text: str) -> None:
    """The pieces of a text's tokens joined are the text, also where a piece is longer than any usual buffer."""
    ids = model.tokenize(text, False)
    assert b"".join(map(model.piece, ids)).decode() == text


def test_long_pieces_are_whole(model: Model) -> None:
    """The longest piece of the vocabulary has 81 bytes, and comes back as 81."""
    assert max(len(model.piece(token)) for token in range(model.n_vocab)) == 81
    assert len(model.tokenize("\n" + " " * 39, False)) == 1


def test_a_lone_surrogate_is_replaced(model: Model) -> None:
    """Text that is no valid Unicode cannot break the tokenizer."""
    assert model.tokenize("\ud800", False) == model.tokenize("?", False)


def test_what_the_model_says_of_itself(model: Model) -> None:
    """Shape and kind of the starter model; its KV takes 23,040 bytes a token."""
    assert model.kv_shape.bytes_per_token == KV_BYTES_PER_TOKEN
    assert (model.architecture, model.memory_kind, model.sliding_window) == ("llama", "dense", 0)
    assert model.chat_template is not None
    assert "<|im_start|>" in model.chat_template
    assert (model.metadata("no.such.key"), model.token_text("eos")) == (None, "<|im_end|>")


def test_a_file_that_is_no_model_is_one_sentence(tmp_path: Path, native_log: list[str]) -> None:
    """Junk behind the right magic bytes cannot be loaded, and that is all that happens."""
    assert native_log is not None
    (tmp_path / "junk.gguf").write_bytes(b"GGUF" + b"\xff" * 1000)
    with pytest.raises(ModelError, match=r"^junk\.gguf cannot be loaded"):
        Model(tmp_path / "junk.gguf", gpu_layers=0, progress=lambda _share: None)


# --- evaluation ---


def test_prefill_reports_and_keeps_its_tokens(context: Context, tokens: list[int]) -> None:
    """The progress ends at the number of tokens, which are then resident and take bytes."""
    seen: list[int] = []
    assert context.prefill(tokens, seen.append)
    assert (seen, context.tokens, end(context)) == ([40], tokens, 40)
    assert 40 * KV_BYTES_PER_TOKEN <= context.kv_bytes <= 40 * KV_BYTES_PER_TOKEN * 1.02
    context.clear()
    assert (context.tokens, context.kv_bytes, end(context)) == ([], 0, 0)


def test_keep_rolls_back(context: Context, model: Model, tokens: list[int]) -> None:
    """What was appended and cut off again leaves no trace in the logits."""
    prefill(context, tokens[:25])
    expected = logits(context, model, tokens[25])
    context.keep(25)
    prefill(context, tokens[:-15:-1])
    context.keep(25)
    assert (context.tokens, end(context)) == (tokens[:25], 25)
    assert logits(context, model, tokens[25]) == expected
    context.keep(0)
    assert (context.tokens, end(context)) == ([], 0)


def test_a_cancelled_step_leaves_the_prefix(context: Context, model: Model, tokens: list[int]) -> None:
    """An evaluation aborted in native code adds nothing, and the next one is as if it had not been."""
    prefill(context, tokens[:25])
    expected = logits(context, model, tokens[25])
    context.keep(25)
    context.cancel()
    assert context.is_cancelled
    assert not context.decode(tokens[26])
    assert not prefill(context, tokens[26:])
    assert (context.tokens, end(context)) == (tokens[:25], 25)
    context.clear_cancel()
    assert logits(context, model, tokens[25]) == expected


def test_a_cancel_during_prefill_leaves_a_consistent_context(
    context: Context, other: Context, model: Model, tokens: list[int]
) -> None:
    """Wherever a cancel from another thread strikes, the tokens are those in the cache, and going on is right."""
    wanted = tokens * 8
    canceller = threading.Timer(0.05, context.cancel)
    canceller.start()
    prefill(context, wanted)
    canceller.join()
    context.clear_cancel()
    assert context.tokens == wanted[: len(context.tokens)]
    assert end(context) == len(context.tokens)
    context.keep(0)
    for each in (context, other):
        prefill(each, tokens)
    assert logits(context, model, 7) == logits(other, model, 7)


def test_the_context_has_an_end(model: Model, tokens: list[int]) -> None:
    """More tokens than fit are an error of ours, and the context is usable afterwards."""
    small = Context(model, ContextSettings(256, flash_attention=False, threads=1))
    try:
        with pytest.raises(EngineError, match="could not evaluate"):
            prefill(small, (tokens * 7)[: small.n_ctx + 1])
        assert small.tokens == []
        assert prefill(small, tokens[:5])
    finally:
        small.close()


# --- rows ---


@pytest.mark.parametrize("cuts", [(0, 40), (0, 25, 40), (0, 1, 39, 40)])
def test_restored_rows_give_the_same_bits(
    context: Context, other: Context, model: Model, tokens: list[int], cuts: tuple[int, ...]
) -> None:
    """The next token's logits behind restored segments are those behind the original, bit for bit."""
    prefill(context, tokens)
    for start, stop in pairwise(cuts):
        rows = context.export_rows(start, stop)
        assert len(rows) <= (stop - start) * KV_BYTES_PER_TOKEN * 1.02 + 2_048
        assert other.import_rows(memoryview(rows), start, tokens[start:stop], start, stop)
    assert (other.tokens, end(other), end(other, 1), end(context, 1)) == (tokens, 40, 0, 0)
    assert logits(other, model, 7) == logits(context, model, 7)


def test_part_of_a_segment_can_be_restored(context: Context, other: Context, model: Model, tokens: list[int]) -> None:
    """Rows [20, 35) out of a segment of [10, 40), behind 20 resident tokens, are right too."""
    prefill(context, tokens)
    head, rows = context.export_rows(0, 20), context.export_rows(10, 40)
    assert other.import_rows(memoryview(head), 0, tokens[:20], 0, 20)
    assert other.import_rows(memoryview(rows), 10, tokens[10:40], 20, 35)
    assert other.tokens == tokens[:35]
    context.keep(35)
    assert logits(other, model, 7) == logits(context, model, 7)


@pytest.mark.parametrize("fault", ["cut", "empty", "magic", "longer", "start", "wider", "tokens"])
def test_refused_rows_leave_a_clean_context(
    context: Context, other: Context, model: Model, tokens: list[int], fault: str
) -> None:
    """Rows that are cut, extended or of another place are refused; the context is then empty and computes right."""
    prefill(context, tokens)
    prefill(other, tokens[:20])
    rows, start, ids = context.export_rows(20, 40), 20, tokens[20:]
    if fault == "cut":
        rows = rows[:-8]
    elif fault == "empty":
        rows = rows[:0]
    elif fault == "magic":
        rows[0] ^= 1
    elif fault == "longer":
        rows += b"\0" * 8
    elif fault == "start":
        start = 19
    elif fault == "wider":
        start, ids = 19, tokens[19:]
    else:
        ids = ids[:-1]
    assert not other.import_rows(memoryview(rows), start, ids, 20, start + len(ids))
    assert (other.tokens, end(other), end(other, 1)) == ([], 0, 0)
    prefill(other, tokens)
    assert logits(other, model, 7) == logits(context, model, 7)


def test_rows_are_moved_to_the_front(context: Context, other: Context, model: Model, tokens: list[int]) -> None:
    """Compaction of the starter's rows leaves logits that are those of the restored rows, bit for bit."""
    prefill(context, tokens)
    rows = context.export_rows(0, 40)
    assert other.import_rows(memoryview(rows), 0, tokens, 0, 40)
    assert context.compact()
    assert (context.tokens, end(context), context.cells_end) == (tokens, 40, 40)
    assert logits(context, model, 7) == logits(other, model, 7)
    assert context.logits() == other.logits()
    assert len(context.logits()) == model.n_vocab


# --- adapters ---


def adapted(base: Path, *loras: tuple[Path, float]) -> bytes:
    """The logits of a fresh tiny model with adapters."""
    model = Model(base, gpu_layers=0, progress=lambda _share: None, loras=loras)
    context = Context(model, ContextSettings(256, flash_attention=False, threads=1))
    try:
        prefill(context, range(10, 40))
        return context.logits().tobytes()
    finally:
        context.close()
        model.close()


def test_an_adapter_changes_the_model(tmp_path: Path, native_log: list[str]) -> None:
    """LoRA adapters add up, by their scales; with scale 0 nothing changes."""
    assert native_log is not None
    base = build("dense", tmp_path)
    one, two = build_lora(base, tmp_path, 1), build_lora(base, tmp_path, 2)
    plain = adapted(base)
    assert adapted(base, (one, 0.0)) == plain
    found = [adapted(base, *loras) for loras in ([(one, 1.0)], [(one, 0.5)], [(two, 1.0)], [(one, 1.0), (two, 1.0)])]
    assert len({plain, *found}) == 5
    assert adapted(base, (one, 1.0)) == found[0]


@pytest.mark.parametrize("fault", ["missing", "junk", "a model", "another model's"])
def test_an_adapter_that_does_not_fit_is_one_sentence(tmp_path: Path, native_log: list[str], fault: str) -> None:
    """The sentence names the file."""
    assert native_log is not None
    base = build("dense", tmp_path)
    lora = tmp_path / "lora.gguf"
    if fault == "junk":
        lora.write_bytes(b"GGUF" + b"\xff" * 1000)
    elif fault == "a model":
        lora.write_bytes(base.read_bytes())
    elif fault == "another model's":
        lora.write_bytes(build_lora(base, tmp_path, 1).read_bytes())
        base = build("moe", tmp_path)
    with pytest.raises(ModelError, match=r"^lora\.gguf cannot be loaded"):
        Model(base, gpu_layers=0, progress=lambda _share: None, loras=[(lora, 1.0)])


# --- sampling ---


def draw(context: Context, model: Model, sampling: Sampling, seed: int, n: int = 12) -> list[int]:
    """Choose `n` tokens from the same logits."""
    sampler = Sampler(model, sampling, seed, context.tokens)
    try:
        return [context.sample(sampler) for _ in range(n)]
    finally:
        sampler.close()


def test_the_seed_decides(context: Context, model: Model, tokens: list[int]) -> None:
    """The same seed draws the same tokens, another one others; greedy needs none."""
    prefill(context, tokens)
    warm = Sampling(temperature=2.0, top_k=0, top_p=1.0, min_p=0.0)
    assert draw(context, model, warm, 1) == draw(context, model, warm, 1)
    assert draw(context, model, warm, 1) != draw(context, model, warm, 2)
    greedy = Sampling(temperature=0)
    assert len(set(draw(context, model, greedy, 1) + draw(context, model, greedy, 2))) == 1


@pytest.mark.parametrize("narrow", [Sampling(top_k=1), Sampling(top_p=0.0), Sampling(min_p=1.0)])
def test_each_filter_can_leave_one_token(context: Context, model: Model, tokens: list[int], narrow: Sampling) -> None:
    """top-k 1, top-p 0 and min-p 1 each leave only the likeliest token, whatever the seed."""
    prefill(context, tokens)
    (best,) = set(draw(context, model, Sampling(temperature=0), 0))
    assert set(draw(context, model, narrow, 3)) == {best}


def test_the_repeat_penalty_counts_the_prompt(context: Context, model: Model, tokens: list[int]) -> None:
    """A token that the prompt ends with becomes unlikely."""
    prefill(context, tokens)
    (best,) = set(draw(context, model, Sampling(temperature=0), 0, n=1))
    context.tokens.append(best)
    try:
        assert draw(context, model, Sampling(temperature=0, repeat_penalty=100.0), 0, n=1) != [best]
    finally:
        context.tokens.pop()
