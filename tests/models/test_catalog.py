import json
import os
import sys
from pathlib import Path

import pytest

from models.catalog import Model, check_gguf, describe, describe_one, entries, find, starter_model
from models.errors import ModelError
from models.modelfacts import FactsCache
from models.modelfiles import Entry, ModelFolders, entry_at
from tests.models.ggufs import gguf, llama, tensor

links_only = pytest.mark.skipif(os.name != "posix", reason="links need a privilege on Windows")


def test_a_gguf_passes(tmp_path: Path) -> None:
    """Four bytes decide."""
    (tmp_path / "a.gguf").write_bytes(b"GGUFrest")
    check_gguf(tmp_path / "a.gguf")


def test_no_file_is_one_sentence(tmp_path: Path) -> None:
    """The sentence names the path and the way out."""
    with pytest.raises(ModelError, match=r"^There is no model file at .*none\.gguf; pass another with --model"):
        check_gguf(tmp_path / "none.gguf")


def test_a_folder_is_one_sentence(tmp_path: Path) -> None:
    """A folder is not a file."""
    with pytest.raises(ModelError, match="is a folder"):
        check_gguf(tmp_path)


@pytest.mark.parametrize("data", [b"", b"GGU", b"GGML....", b"\x7fELF....", b"<html>"])
def test_another_kind_of_file_is_one_sentence(tmp_path: Path, data: bytes) -> None:
    """Other magic bytes, or fewer than four, are not a GGUF."""
    (tmp_path / "a.gguf").write_bytes(data)
    with pytest.raises(ModelError, match="is not a GGUF model file"):
        check_gguf(tmp_path / "a.gguf")


def test_an_unreadable_file_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The system's reason is passed on."""

    def denied(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "open", denied)
    with pytest.raises(ModelError, match="cannot be read: Permission denied"):
        check_gguf(tmp_path / "a.gguf")


def test_a_path_through_a_file_is_one_sentence(tmp_path: Path) -> None:
    """A file is no folder."""
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(ModelError, match="cannot be read"):
        check_gguf(tmp_path / "file" / "a.gguf")


def test_the_starter_is_found_without_running_its_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The package's GGUF is found as data; its own code is not imported."""
    package = tmp_path / "a_starter_package"
    package.mkdir()
    (package / "__init__.py").write_text("raise RuntimeError('imported')")
    (package / "model.gguf").write_bytes(b"GGUF")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr("models.catalog._STARTER_PACKAGE", "a_starter_package")
    assert starter_model() == package / "model.gguf"
    assert "a_starter_package" not in sys.modules


def test_without_the_package_there_is_no_starter(monkeypatch: pytest.MonkeyPatch) -> None:
    """None, not an error."""
    monkeypatch.setattr("models.catalog._STARTER_PACKAGE", "no_such_package_at_all")
    assert starter_model() is None


# --- what is listed ---


@pytest.fixture
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModelFolders:
    """A place for each source, none of them made yet; no starter."""
    monkeypatch.setattr("models.catalog.starter_model", lambda: None)
    return ModelFolders(tmp_path / "own", (tmp_path / "ollama",), (tmp_path / "lms",), (tmp_path / "hf",))


def put(path: Path, content: bytes | None = None) -> Path:
    """Write a file, a model unless something else is given."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gguf(llama(), [tensor("t", [8])], data=bytes(32)) if content is None else content)
    return path


def in_ollama(root: Path, name: str, digest: str = "ab" * 32, *, media: str = "model", separator: str = ":") -> Path:
    """Write a manifest as Ollama does, and the blob it names; returns the blob."""
    layers = [
        {"mediaType": "application/vnd.ollama.image.template", "digest": "sha256:" + "00" * 32},
        {"mediaType": f"application/vnd.ollama.image.{media}", "digest": f"sha256{separator}{digest}"},
    ]
    put(root / "manifests" / name, json.dumps({"layers": layers}).encode())
    return put(root / "blobs" / f"sha256-{digest}")


def listed(folders: ModelFolders, tmp_path: Path) -> dict[str, Model]:
    """The described models by name."""
    return {model.entry.name: model for model in describe(entries(folders), FactsCache(tmp_path / "cache"))}


def test_nothing_is_no_error(folders: ModelFolders) -> None:
    """None of the folders has to exist."""
    assert entries(folders) == []


def test_all_sources_are_listed_in_order(
    folders: ModelFolders, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Own, starter, Ollama, LM Studio, Hugging Face, each under the name its owner uses."""
    starter = put(tmp_path / "package" / "Starter.Q4.gguf")
    monkeypatch.setattr("models.catalog.starter_model", lambda: starter)
    own = put(folders.own / "mine.gguf")
    blob = in_ollama(tmp_path / "ollama", "registry.ollama.ai/library/llama3.2/3b")
    lms = put(tmp_path / "lms" / "maker" / "a model" / "a model-Q4.gguf")
    hub = put(tmp_path / "hf" / "models--o--r" / "snapshots" / "abc" / "sub" / "hub.GGUF")
    assert entries(folders) == [
        Entry("mine", "own", (own,)),
        Entry("Starter.Q4", "starter", (starter,)),
        Entry("llama3.2:3b", "Ollama", (blob,)),
        Entry("a model-Q4", "LM Studio", (lms,)),
        Entry("hub", "Hugging Face", (hub,)),
    ]
    assert all(model.problem is None and model.facts for model in listed(folders, tmp_path).values())


@pytest.mark.parametrize(
    ("manifest", "name"),
    [
        ("registry.ollama.ai/library/m/latest", "m:latest"),
        ("registry.ollama.ai/me/m/q4", "me/m:q4"),
        ("hf.co/me/m-GGUF/Q4_K_M", "hf.co/me/m-GGUF:Q4_K_M"),
    ],
)
def test_ollama_names_are_ollamas(folders: ModelFolders, tmp_path: Path, manifest: str, name: str) -> None:
    """What it assumes is left out."""
    in_ollama(tmp_path / "ollama", manifest)
    assert [entry.name for entry in entries(folders)] == [name]


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\xff",
        b"[]",
        b"1",
        b"[" * 100_000,
        b'{"layers": 1}',
        b'{"layers": [1]}',
        b'{"layers": [{}]}',
        b'{"layers": []}',
        b'{"layers": [{"mediaType": "application/vnd.ollama.image.model"}]}',
        b'{"layers": [{"mediaType": "application/vnd.ollama.image.model", "digest": 1}]}',
        b'{"layers": [{"mediaType": "application/vnd.ollama.image.model", "digest": "sha256:../../x"}]}',
        b'{"layers": [{"mediaType": "application/vnd.ollama.image.model", "digest": "md5:' + b"a" * 64 + b'"}]}',
        b" " * (2 << 20),
    ],
)
def test_a_manifest_of_another_kind_is_passed_over(folders: ModelFolders, tmp_path: Path, content: bytes) -> None:
    """Whatever stands in it, no path is made from anything but a digest."""
    put(tmp_path / "ollama" / "manifests" / "h" / "n" / "m" / "t", content)
    put(tmp_path / "ollama" / "manifests" / "h" / "a file", content)
    assert entries(folders) == []


def test_of_ollamas_layers_only_models_count(folders: ModelFolders, tmp_path: Path) -> None:
    """Projectors, templates and licences are others; digests are written in two ways."""
    in_ollama(tmp_path / "ollama", "h/n/m/projector", media="projector")
    in_ollama(tmp_path / "ollama", "h/n/m/model", "cd" * 32, separator="-")
    assert [entry.name for entry in entries(folders)] == ["h/n/m:model"]


def test_a_missing_blob_is_a_problem(folders: ModelFolders, tmp_path: Path) -> None:
    """The sentence names it."""
    in_ollama(tmp_path / "ollama", "h/n/m/t").unlink()
    problem = listed(folders, tmp_path)["h/n/m:t"].problem
    assert problem == f"sha256-{'ab' * 32} cannot be read: No such file or directory."


def test_split_files_are_one_model(folders: ModelFolders, tmp_path: Path) -> None:
    """With the parameters and the size of all; the first file is the one that is loaded."""
    files = [put(folders.own / f"big-{n:05}-of-00003.gguf") for n in (1, 2, 3)]
    put(folders.own / "big.gguf")
    assert entries(folders)[0] == Entry("big", "own", tuple(files))
    model = describe_one(entries(folders)[0], FactsCache(tmp_path / "cache"))
    assert model.facts is not None
    assert (model.facts.n_params, model.facts.size_bytes) == (24, 3 * files[0].stat().st_size)
    assert entry_at(files[1]).files == tuple(files)


def test_missing_parts_are_named(folders: ModelFolders, tmp_path: Path) -> None:
    """A few of them; a count that no model has is no split file."""
    put(folders.own / "two-00002-of-00003.gguf")
    put(folders.own / "many-00001-of-00009.gguf")
    put(folders.own / "x-00000-of-00003.gguf")
    put(folders.own / "y-00001-of-99999.gguf")
    found = listed(folders, tmp_path)
    assert found["two"].problem == "two-00001-of-00003.gguf, two-00003-of-00003.gguf are missing."
    assert str(found["many"].problem).endswith("many-00006-of-00009.gguf and 3 more are missing.")
    assert found["x-00000-of-00003"].problem is None
    assert found["y-00001-of-99999"].problem is None
    assert entry_at(tmp_path / "none-00001-of-00002.gguf").missing == ("none-00002-of-00002.gguf",)


def test_a_damaged_file_is_listed_with_the_reason(folders: ModelFolders, tmp_path: Path) -> None:
    """As is one that lacks its end."""
    put(folders.own / "bad.gguf", b"<html>")
    put(folders.own / "cut.gguf", gguf(llama(), [tensor("t", [8])], data=bytes(30)))
    found = listed(folders, tmp_path)
    assert found["bad"].problem == "bad.gguf is not a GGUF model file."
    assert found["cut"].problem == "cut.gguf is cut short: 2 bytes are missing."


def test_parts_of_models_are_not_listed(folders: ModelFolders, tmp_path: Path) -> None:
    """Projectors and adapters."""
    put(folders.own / "model-mmproj-f16.gguf")
    put(folders.own / "clip.gguf", gguf({"general.architecture": "clip"}))
    put(folders.own / "lora.gguf", gguf({"general.type": "adapter"}))
    assert listed(folders, tmp_path) == {}


def test_only_files_are_listed(folders: ModelFolders) -> None:
    """Folders and pipes named so are not, nor hidden files and those with another ending."""
    (folders.own / "folder.gguf").mkdir(parents=True)
    put(folders.own / "model.bin")
    put(folders.own / ".hidden.gguf")
    put(folders.own / "folder.gguf" / "inside.gguf")
    if hasattr(os, "mkfifo"):
        os.mkfifo(folders.own / "pipe.gguf")
    assert entries(folders) == []


def test_names_may_be_anything(folders: ModelFolders, tmp_path: Path) -> None:
    """Blanks, other scripts, what is not UTF-8."""
    names = ["a b", "模型 é", "🦙"]
    if sys.platform == "linux":
        names.append("\udcff")
    for name in names:
        put(folders.own / f"{name}.gguf")
    assert sorted(listed(folders, tmp_path)) == sorted(names)
    assert sorted(listed(folders, tmp_path)) == sorted(names)


@links_only
def test_one_file_is_listed_once(folders: ModelFolders, tmp_path: Path) -> None:
    """However many links lead to it; the own folder's name comes first."""
    file = put(tmp_path / "lms" / "m" / "file.gguf")
    folders.own.mkdir()
    (folders.own / "link.gguf").symlink_to(file)
    (tmp_path / "lms" / "again").symlink_to(tmp_path / "lms" / "m")
    (tmp_path / "lms" / "m" / "other.gguf").symlink_to(file)
    assert [(entry.name, entry.source) for entry in entries(folders)] == [("link", "own")]


@links_only
def test_links_may_lead_nowhere_or_round(folders: ModelFolders, tmp_path: Path) -> None:
    """A dead link is listed as one; a circle is walked once."""
    folders.own.mkdir()
    (folders.own / "dead.gguf").symlink_to(tmp_path / "gone.gguf")
    (folders.own / "round.gguf").symlink_to(folders.own / "round.gguf")
    tree = tmp_path / "lms"
    file = put(tree / "a" / "m.gguf")
    (tree / "a" / "up").symlink_to(tree)
    (tree / "a" / "self").symlink_to(tree / "a" / "self")
    found = listed(folders, tmp_path)
    assert found["dead"].problem == "dead.gguf is a link to a file that is gone."
    assert found["round"].problem == "round.gguf is a link to a file that is gone."
    assert found["m"].entry.path == file


def test_deep_trees_end(folders: ModelFolders, tmp_path: Path) -> None:
    """Nobody keeps a model thirty folders down."""
    put(tmp_path.joinpath("lms", *["d"] * 30, "deep.gguf"))
    put(tmp_path.joinpath("lms", *["d"] * 5, "m.gguf"))
    assert [entry.name for entry in entries(folders)] == ["m"]


@links_only
def test_the_newest_revision_of_a_hub_file_counts(folders: ModelFolders, tmp_path: Path) -> None:
    """Snapshots are links into the blobs of a repository; what is in two is listed once."""
    repository = tmp_path / "hf" / "models--o--r"
    for i, revision in enumerate(("old", "new", "middle")):
        blob = put(repository / "blobs" / revision)
        snapshot = repository / "snapshots" / revision
        snapshot.mkdir(parents=True)
        (snapshot / "m.gguf").symlink_to(blob)
        os.utime(snapshot, (1000 + i % 2, 1000 + i % 2))
    put(tmp_path / "hf" / "datasets--o--r" / "snapshots" / "a" / "d.gguf")
    put(tmp_path / "hf" / "models--file")
    assert [(entry.name, entry.path.parent.name) for entry in entries(folders)] == [("m", "new")]


def test_files_of_one_name_in_a_repository_are_two_models(folders: ModelFolders, tmp_path: Path) -> None:
    """Each in a folder of its own; paths tell them apart."""
    snapshot = tmp_path / "hf" / "models--o--r" / "snapshots" / "a"
    paths = [put(snapshot / quantization / "m.gguf") for quantization in ("Q4", "Q8")]
    assert [(entry.name, entry.path) for entry in entries(folders)] == [("m", path) for path in paths]


def test_a_folder_that_cannot_be_read_is_empty(folders: ModelFolders, monkeypatch: pytest.MonkeyPatch) -> None:
    """Others are listed all the same."""

    def denied(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    put(folders.own / "m.gguf")
    monkeypatch.setattr(os, "scandir", denied)
    assert entries(folders) == []


# --- names ---

NAMES = [Entry(name, "own", (Path(f"/m/{name}.gguf"),)) for name in ("Qwen3-4B-Q4", "Qwen3-8B-Q4", "gemma", "Gemma-2")]


@pytest.mark.parametrize(
    ("wanted", "name"),
    [
        ("gemma", "gemma"),
        ("Gemma-2", "Gemma-2"),
        ("GEMMA", "gemma"),
        ("gemma-", "Gemma-2"),
        ("qwen3-4", "Qwen3-4B-Q4"),
        ("Qwen3-8B-Q4", "Qwen3-8B-Q4"),
    ],
)
def test_a_model_is_found_by_its_name_or_its_beginning(wanted: str, name: str) -> None:
    """Case does not matter; a whole name comes before a beginning."""
    assert find(NAMES, wanted).name == name


@pytest.mark.parametrize(
    ("wanted", "sentence"),
    [
        ("qwen", "More than one model is meant by 'qwen': give one of Qwen3-4B-Q4, Qwen3-8B-Q4."),
        ("qwem3-4b-q4", "There is no model 'qwem3-4b-q4'; the nearest are Qwen3-4B-Q4, Qwen3-8B-Q4."),
        ("8B", "There is no model '8B'; the nearest are Qwen3-8B-Q4."),
        ("", "There is no model ''; the nearest are Qwen3-4B-Q4, Qwen3-8B-Q4, gemma, Gemma-2."),
        ("zzzz", "There is no model 'zzzz'; the nearest are Qwen3-4B-Q4, Qwen3-8B-Q4, gemma, Gemma-2."),
    ],
)
def test_what_is_not_one_model_is_one_sentence(wanted: str, sentence: str) -> None:
    """It lists the nearest."""
    with pytest.raises(ModelError) as raised:
        find(NAMES, wanted)
    assert str(raised.value) == sentence


def test_two_models_of_one_name_are_told_apart_by_path() -> None:
    """A copy, for instance."""
    with pytest.raises(ModelError, match=r"named 'gemma': give the path of one: /m/gemma\.gguf, /n/g\.gguf\.$"):
        find([*NAMES, Entry("gemma", "LM Studio", (Path("/n/g.gguf"),))], "gemma")


def test_without_models_the_way_out_is_said() -> None:
    """Adding one."""
    with pytest.raises(ModelError, match="models add"):
        find([], "x")


def test_a_path_has_a_name_too() -> None:
    """Without its ending, if it has that one."""
    assert entry_at(Path("/b/m.GGUF")).name == "m"
    assert entry_at(Path("/b/sha256-ab.x")).name == "sha256-ab.x"
