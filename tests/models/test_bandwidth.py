from collections.abc import Mapping
from pathlib import Path

import pytest

from models import bandwidth
from models.bandwidth import active_bytes, read_speed
from models.gguf_header import Header, read_header
from tests.models.ggufs import Simple, gguf, llama, tensor

F32 = 4
LAYER = [tensor("blk.0.attn_q.weight", [32, 32]), tensor("output_norm.weight", [32])]
N_LAYER = 32 * 32 + 32


def header(folder: Path, tensors: list[bytes], metadata: Mapping[str, Simple] | None = None) -> Header:
    """The header of a file with these tensors."""
    path = folder / "m.gguf"
    path.write_bytes(gguf(metadata or llama(), tensors))
    return read_header(path)


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The thread counts that were measured; each finds ten bytes a second for each thread."""
    calls: list[int] = []

    def measure(n_threads: int) -> float:
        calls.append(n_threads)
        return 10.0 * n_threads

    monkeypatch.setattr(bandwidth, "_measure", measure)
    return calls


# --- what a token reads ---


def test_a_tied_embedding_is_the_output_and_read_whole(tmp_path: Path) -> None:
    """Without an output matrix of its own, the embedding is multiplied by for each token."""
    found = header(tmp_path, [*LAYER, tensor("token_embd.weight", [32, 100])])
    assert active_bytes([found]) == F32 * (N_LAYER + 3200)


def test_of_an_embedding_beside_an_output_one_row_is_read(tmp_path: Path) -> None:
    """The table is looked up, and so are tables for each layer; the output matrix is read."""
    tables = [tensor("token_embd.weight", [32, 100]), tensor("per_layer_token_embd.weight", [32, 100])]
    found = header(tmp_path, [*LAYER, *tables, tensor("output.weight", [32, 50])])
    assert active_bytes([found]) == F32 * (N_LAYER + 1600)


def test_of_experts_only_the_active_share_is_read(tmp_path: Path) -> None:
    """Two of eight experts: a quarter of their weights, and all of the others."""
    experts = [tensor("blk.0.ffn_up_exps.weight", [32, 32, 8]), tensor("blk.0.ffn_up_shexp.weight", [32, 32])]
    found = header(tmp_path, [*LAYER, *experts], llama(expert_count=8, expert_used_count=2))
    assert active_bytes([found]) == F32 * (N_LAYER + 32 * 32 + 2 * 32 * 32)


@pytest.mark.parametrize("counts", [{}, {"expert_count": 8}, {"expert_count": 2, "expert_used_count": 8}])
def test_experts_without_counts_are_unknown(tmp_path: Path, counts: dict[str, Simple]) -> None:
    """Nothing is guessed where the header does not say how many a token uses."""
    found = header(tmp_path, [*LAYER, tensor("blk.0.ffn_up_exps.weight", [32, 32, 8])], llama(**counts))
    assert active_bytes([found]) is None


def test_what_plain_decoding_may_skip_is_unknown(tmp_path: Path) -> None:
    """Layers that predict further tokens, and types of an unknown size, leave no certain number."""
    assert active_bytes([header(tmp_path, LAYER, llama(nextn_predict_layers=1))]) is None
    assert active_bytes([header(tmp_path, [*LAYER, tensor("a", [64], kind=250)])]) is None


def test_files_of_a_split_model_are_added(tmp_path: Path) -> None:
    """The first one has the metadata, all of them have tensors."""
    first = header(tmp_path, LAYER)
    second = header(tmp_path, [tensor("output.weight", [32, 50])], {"general.alignment": 32})
    assert active_bytes([first, second]) == F32 * (N_LAYER + 1600)


# --- how fast it is read ---


def test_a_machine_is_measured_once_for_each_number_of_threads(tmp_path: Path, measured: list[int]) -> None:
    """The second time it is remembered."""
    assert [read_speed(2, tmp_path), read_speed(2, tmp_path), read_speed(1, tmp_path)] == [20.0, 20.0, 10.0]
    assert measured == [2, 1]


def test_another_machine_is_measured(tmp_path: Path, measured: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    """A cache folder that moved to another processor is not believed."""
    read_speed(2, tmp_path)
    monkeypatch.setattr("models.tuning._cpu_name", lambda: "another processor")
    read_speed(2, tmp_path)
    assert measured == [2, 2]


@pytest.mark.parametrize(
    "junk",
    [
        b"",
        b"\xff",
        b"[]",
        b"null",
        b"{}",
        b'{"bytes_per_s": "fast"}',
        b'{"bytes_per_s": -1.0}',
        b'{"bytes_per_s": NaN}',
    ],
)
def test_a_damaged_note_is_measured_again(tmp_path: Path, measured: list[int], junk: bytes) -> None:
    """What is no speed is measured and written anew."""
    read_speed(2, tmp_path)
    (note,) = (tmp_path / "bandwidth").iterdir()
    note.write_bytes(junk)
    assert [read_speed(2, tmp_path), read_speed(2, tmp_path)] == [20.0, 20.0]
    assert len(measured) == 2


def test_without_memory_to_spare_nothing_is_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The probe must not push a model out; there is no floor then, and nothing is remembered."""
    monkeypatch.setattr(bandwidth, "available_memory", lambda: 64 << 20)
    assert read_speed(1, tmp_path) is None
    assert list(tmp_path.iterdir()) == []


def test_the_probe_reads_every_byte(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each round goes over the whole buffer, in parts that do not overlap and leave nothing out."""
    spans: list[tuple[int, int]] = []

    def find(address: int, wanted: int, n_bytes: int) -> None:
        assert wanted != bandwidth._FILLING
        spans.append((address, address + n_bytes))

    monkeypatch.setattr(bandwidth, "_finder", lambda: find)
    monkeypatch.setattr(bandwidth, "available_memory", lambda: 8 * (32 << 20))
    assert bandwidth._measure(4)
    rounds = [sorted(spans[i : i + 4]) for i in range(0, len(spans), 4)]
    assert rounds
    for parts in rounds:
        assert parts[-1][1] - parts[0][0] == 32 << 20
        assert [end for _, end in parts[:-1]] == [begin for begin, _ in parts[1:]]


def test_this_machine_can_be_measured(tmp_path: Path) -> None:
    """The real probe comes to a number that no memory has and none is below."""
    speed = read_speed(1, tmp_path)
    assert speed is not None
    assert 1e7 < speed < 1e13
