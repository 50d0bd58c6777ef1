from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast, get_args

import pytest

from models import misses, selftest
from models.engine import MemoryKind
from models.errors import ModelError
from models.fingerprint import LLAMA_BUILD, Fingerprint
from models.kvfolder import KvFolder
from models.kvformat import FORMAT, SegmentId
from models.kvopen import OpenedKv, fingerprint_of, open_kv
from models.kvsettings import DEFAULT_KV, KvSettings
from models.llama import ContextSettings, KvType, Model
from models.selftest import SelfTest
from models.stats import KvShape
from tests.models.helpers import FINGERPRINT, changed

SETTINGS = ContextSettings(8192, flash_attention=True, threads=2)
PASSED = SelfTest(True, "it came back", 0.0, 77, 0.1)
FAILED = SelfTest(False, "The logits differ.", 9.0, 0, 0.1)
METADATA = {
    "general.name": "A Model",
    "tokenizer.ggml.model": "gpt2",
    "tokenizer.ggml.pre": "smollm",
    "qwen.rope.freq_base": "1000000.000000",
    "qwen.rope.scaling.factor": "4.000000",
    "qwen.rope.scaling.type": "yarn",
    "qwen.rope.scaling.original_context_length": "32768",
    "qwen.rope.scaling.yarn_log_multiplier": "0.1",
    "qwen.rope.scaling.attn_factor": "1.5",
}


@dataclass
class StubModel:
    """What is asked of loaded weights here."""

    meta: dict[str, str] = field(default_factory=lambda: dict(METADATA))
    architecture: str = "qwen"
    shape: KvShape = KvShape(30, 3, 64)  # noqa: RUF009 - frozen
    n_vocab: int = 49_152
    sliding_window: int = 512
    memory_kind: MemoryKind = "dense"

    def metadata(self, key: str) -> str | None:
        """A value of the file's header."""
        return self.meta.get(key)

    def kv_shape_of(self, kv_type: KvType) -> KvShape:
        """Layers, heads, width, and the types asked for."""
        return replace(self.shape, type_k=kv_type, type_v=kv_type)


def fingerprint(
    model: StubModel | None = None, settings: ContextSettings = SETTINGS, loras: Any = (), gpu_layers: int = 0
) -> Fingerprint:
    """The fingerprint of a model under settings."""
    asked = cast(Model, model or StubModel())
    return fingerprint_of(asked, settings, weights="ab" * 32, loras=loras, gpu_layers=gpu_layers)


# --- the fingerprint ---


def test_every_field_is_filled_from_its_source(monkeypatch: pytest.MonkeyPatch) -> None:
    """Header, shape, settings and what is installed, each in its place."""
    monkeypatch.delenv("LLAMA_ATTN_ROT_DISABLE", raising=False)
    assert fingerprint(loras=[("cd" * 32, 0.5)], gpu_layers=99) == Fingerprint(
        weights="ab" * 32,
        loras=f"{'cd' * 32}*0.5",
        kv_format=FORMAT,
        llama_build=LLAMA_BUILD,
        architecture="qwen",
        layers=30,
        kv_heads=3,
        head_width=64,
        type_k="f16",
        type_v="f16",
        flash_attention=True,
        rope_base=1_000_000.0,
        rope_scale=4.0,
        rope_scaling="yarn",
        yarn="32768 0.1 1.5",
        sliding_window=512,
        full_window_cache=True,
        rotation=True,
        tokenizer="gpt2 smollm 49152",
        gpu_layers=99,
    )


def test_a_header_that_says_little_is_enough() -> None:
    """Most files name no scaling at all."""
    made = fingerprint(StubModel(meta={}))
    assert (made.rope_base, made.rope_scale, made.rope_scaling, made.yarn, made.tokenizer) == (0, 0, "", "", "49152")


@pytest.mark.parametrize("key", [key for key in METADATA if key != "general.name"])
def test_every_entry_of_the_header_counts(key: str) -> None:
    """What changes rows or tokens makes another generation; another name does not."""
    other = StubModel(meta={**METADATA, key: "70000"})
    assert len(fingerprint().difference(fingerprint(other).fields())) == 1
    named = StubModel(meta={**METADATA, "general.name": "Another"})
    assert fingerprint(named) == fingerprint()


def test_the_type_of_kv_and_flash_attention_count() -> None:
    """Both change the bytes of a row, the threads and the size of a short context do not."""
    other = fingerprint(settings=replace(SETTINGS, kv_type="q8_0", flash_attention=False))
    assert fingerprint().difference(other.fields()) == ["KV type of K", "KV type of V", "flash attention"]
    assert fingerprint(settings=replace(SETTINGS, threads=8, n_ctx=512)) == fingerprint()


def test_a_context_beyond_the_original_one_counts() -> None:
    """There some models take other RoPE factors, so that the same tokens have other rows."""
    long = fingerprint(settings=replace(SETTINGS, n_ctx=32_769))
    assert fingerprint().difference(long.fields()) == ["RoPE scaling"]
    assert fingerprint(settings=replace(SETTINGS, n_ctx=32_768)) == fingerprint()
    odd = StubModel(meta={**METADATA, "qwen.rope.scaling.original_context_length": "8000"})
    assert fingerprint(odd, replace(SETTINGS, n_ctx=7_990)) == fingerprint(odd)
    assert fingerprint(odd, replace(SETTINGS, n_ctx=7_900)) != fingerprint(odd)


def test_adapters_count_in_any_order() -> None:
    """The same adapters with the same scales add up to the same weights; another scale does not."""
    one, other = ("cd" * 32, 1.0), ("ef" * 32, 0.25)
    assert fingerprint(loras=[one, other]) == fingerprint(loras=[other, one])
    assert len({fingerprint(loras=each) for each in ([], [one], [one, other], [one, (other[0], 0.5)])}) == 4


@pytest.mark.parametrize(
    ("switch", "rotates"), [("0", True), ("", True), ("off", True), ("1", False), ("-1", False), (" 2x", False)]
)
def test_the_librarys_switch_of_rotation_counts(monkeypatch: pytest.MonkeyPatch, switch: str, rotates: bool) -> None:
    """Read as the library reads it: any number but 0 turns it off."""
    monkeypatch.setenv("LLAMA_ATTN_ROT_DISABLE", switch)
    assert fingerprint().rotation is rotates


# --- opening ---


class Opening:
    """Opens the KV of a stub model, and counts self-tests."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.root = root
        self.result: SelfTest | ModelError = PASSED
        self.calls: list[str] = []
        self.opened: list[OpenedKv] = []
        monkeypatch.setattr(selftest, "run", self._run)

    def _run(self, _model: Model, settings: ContextSettings) -> SelfTest:
        assert settings == SETTINGS
        self.calls.append("test")
        if isinstance(self.result, ModelError):
            raise self.result
        return self.result

    def __call__(
        self, model: StubModel | None = None, kv: KvSettings = DEFAULT_KV, made: Fingerprint = FINGERPRINT
    ) -> OpenedKv:
        """As the engine does it."""
        opened = open_kv(
            cast(Model, model or StubModel()),
            SETTINGS,
            made,
            cache_dir=self.root / "cache",
            data_dir=self.root / "data",
            kv=kv,
            path=Path("/models/file.gguf"),
            check=lambda: self.calls.append("check"),
        )
        self.opened.append(opened)
        return opened

    def close(self) -> None:
        """Close what was opened."""
        for opened in self.opened:
            if opened.store:
                opened.store.close()

    @property
    def signs(self) -> list[Path]:
        """What shows that somebody uses the store."""
        return list((self.root / "cache" / "kv" / "in-use").iterdir())


@pytest.fixture
def opening(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Opening]:
    """A machine on which no KV was kept yet."""
    opening = Opening(tmp_path, monkeypatch)
    yield opening
    opening.close()


def test_switched_off_nothing_is_made(tmp_path: Path, opening: Opening) -> None:
    """No folder, no key, no self-test."""
    assert opening(kv=KvSettings(enabled=False)) == OpenedKv(None, misses.OFF)
    assert (list(tmp_path.iterdir()), opening.calls) == ([], [])


@pytest.mark.parametrize("kind", get_args(MemoryKind))
def test_a_store_is_opened_for_the_models_memory(opening: Opening, kind: MemoryKind) -> None:
    """It knows what the memory can go back to, and one restore point's size is known too."""
    opened = opening(StubModel(memory_kind=kind))
    assert opened.store is not None
    assert (opened.store.kind, opened.reason, opened.state_bytes) == (kind, None, 77)


@pytest.mark.parametrize("meta", [METADATA, {}])
def test_the_generation_is_called_what_the_model_is(opening: Opening, meta: dict[str, str]) -> None:
    """By the name of its file, as everywhere; the title in its header is for files without a name."""
    opening(StubModel(meta=meta))
    about = KvFolder(opening.root / "cache" / "kv").about(FINGERPRINT.digest())
    assert about["model"] == {"name": "file", "path": "/models/file.gguf"}


def test_the_users_limits_reach_the_store(opening: Opening) -> None:
    """A budget that is too small for anything refuses the first write."""
    store = opening(kv=KvSettings(budget_bytes=1)).store
    assert store is not None
    with pytest.raises(OSError, match="budget of 1 B"):
        store.write(SegmentId(store.digest, store.root_key, 0, (1,)), b"rows")


def test_a_self_test_runs_once_for_a_fingerprint(opening: Opening) -> None:
    """Announced before, and remembered; other settings are tested anew."""
    for _ in range(3):
        assert opening().reason is None
    assert opening.calls == ["check", "test"]
    opening(made=changed(gpu_layers=9))
    assert opening.calls == ["check", "test"] * 2


def test_a_failed_self_test_keeps_kv_off(opening: Opening) -> None:
    """The reason is told at every start without another test, and nobody's sign is left on the store."""
    opening.result = FAILED
    for _ in range(2):
        assert opening() == OpenedKv(None, "self-test failed: The logits differ.")
        assert opening.signs == []
    assert opening.calls == ["check", "test"]


def test_a_self_test_that_could_not_run_is_tried_again(opening: Opening) -> None:
    """Too little memory today is not remembered."""
    opening.result = ModelError("There is not enough memory.")
    assert opening() == OpenedKv(None, "self-test failed: There is not enough memory.")
    assert opening.signs == []
    opening.result = PASSED
    assert opening().reason is None
    assert opening.calls == ["check", "test"] * 2


@pytest.mark.parametrize("junk", [None, "passed", [], {}, {"detail": "x"}])
def test_a_note_that_is_no_result_is_tested_anew(opening: Opening, junk: Any) -> None:
    """What says nothing about passing is not believed."""
    first = opening().store
    assert first is not None
    first.remember("self_test", junk)
    assert opening().reason is None
    assert opening.calls == ["check", "test"] * 2


@pytest.mark.parametrize("passed", ["yes", 1, None])
def test_only_a_clear_yes_has_passed(opening: Opening, passed: Any) -> None:
    """Anything else keeps KV off."""
    first = opening().store
    assert first is not None
    first.remember("self_test", {"passed": passed, "detail": "who knows"})
    assert opening() == OpenedKv(None, "self-test failed: who knows")


@pytest.mark.parametrize("junk", [None, "many", [1]])
def test_an_unknown_size_of_the_state_is_none(opening: Opening, junk: Any) -> None:
    """It is shown to the user and decides nothing."""
    first = opening().store
    assert first is not None
    first.remember("self_test", {"passed": True, "state_bytes": junk})
    assert opening().state_bytes == 0


def test_two_crashes_keep_kv_off(opening: Opening) -> None:
    """What killed the engine twice is not loaded a third time; the sentence says how to try again."""
    first = opening().store
    assert first is not None
    first.remember("crashes", {"00": 2})
    told = "the engine died twice while it restored this model's KV; `chatapp kv clear` lets it try again"
    assert opening() == OpenedKv(None, told)
    assert opening.calls == ["check", "test"]


@pytest.mark.parametrize("place", ["cache", "data"])
def test_a_folder_that_cannot_be_used_keeps_kv_off(opening: Opening, place: str) -> None:
    """A file in the place of the cache or of the data directory: one sentence, and the chat goes on."""
    (opening.root / place).write_bytes(b"")
    opened = opening()
    assert opened.store is None
    assert opened.reason is not None
    assert opened.reason.startswith("KV cannot be kept on disk: ")
    assert opening.calls == []


def test_a_newer_programs_store_keeps_kv_off(opening: Opening) -> None:
    """It is left alone, and the reason is told."""
    first = opening().store
    assert first is not None
    first._index._query("PRAGMA user_version=99")
    told = "KV cannot be kept on disk: the KV index was made by a newer version of this program"
    assert opening() == OpenedKv(None, told)
