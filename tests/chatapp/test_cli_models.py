import io
import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from chatapp.__main__ import main
from chatapp.config import Hub as HubSettings
from chatapp.config import Settings, hub, load_settings, model_folders
from chatapp.engines import model_path, with_model_path
from models.errors import ModelError
from models.modelfacts import FactsCache
from models.typerates import TypeRate, TypeRates, remember_types
from tests.models import tiny_models
from tests.models.ggufs import gguf, llama, tensor
from tests.models.hub_server import Hub, running

HOSTILE = "evil\x1b[2J\u202ename"
KEYS = [
    "name",
    "path",
    "source",
    "files",
    "missing",
    "problem",
    "default",
    "title",
    "architecture",
    "parameters",
    "quantization",
    "size_bytes",
    "ctx_train",
    "template",
    "tokenizer",
    "tokenizer_pre",
    "vocabulary",
    "memory",
    "kv_type",
    "kv_bytes_per_token",
    "fit",
]
FIT_KEYS = ["verdict", "ctx", "weights_bytes", "kv_bytes", "needed_bytes", "available_bytes"]


class Terminal(io.StringIO):
    """Text streams that are a terminal."""

    def isatty(self) -> bool:
        """Somebody watches."""
        return True


class Shell:
    """Runs `chatapp models` over its own folders and home."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.home = folder / "home"
        self.data_dir, self.cache_dir = folder / "data", folder / "cache"
        self.own = self.data_dir / "models"
        self.stderr = ""
        self._monkeypatch = monkeypatch
        for name in ("OLLAMA_MODELS", "HF_HOME", "HF_HUB_CACHE", "HF_ENDPOINT", "HF_HUB_OFFLINE", "XDG_CACHE_HOME"):
            monkeypatch.delenv(name, raising=False)
        for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy"):
            monkeypatch.delenv(name, raising=False)
        monkeypatch.setenv("HOME", str(self.home))
        monkeypatch.setenv("USERPROFILE", str(self.home))
        monkeypatch.setenv("CHATAPP_DATA_DIR", str(self.data_dir))
        monkeypatch.setenv("CHATAPP_CACHE_DIR", str(self.cache_dir))
        monkeypatch.setattr("models.catalog.starter_model", lambda: None)
        monkeypatch.setattr("models.fit.available_memory", lambda: 1 << 30)
        monkeypatch.setattr("chatapp.models_cmd.available_memory", lambda: 1 << 30)

    def __call__(self, *arguments: str, code: int = 0, typed: str | None = None, command: str = "models") -> str:
        """Run a command; return its stdout. With `typed`, all streams are a terminal on which that is typed."""
        out, error, typing = (
            (io.StringIO(), io.StringIO(), io.StringIO())
            if typed is None
            else (Terminal(), Terminal(), Terminal(typed))
        )
        with self._monkeypatch.context() as patched:
            patched.setattr(sys, "argv", ["chatapp", command, *arguments])
            for name, stream in (("stdin", typing), ("stdout", out), ("stderr", error)):
                patched.setattr(sys, name, stream)
            with pytest.raises(SystemExit) as exited:
                main()
        self.stderr = error.getvalue()
        assert exited.value.code == code, (exited.value.code, out.getvalue(), self.stderr)
        return out.getvalue()

    def json(self, *arguments: str, code: int = 0) -> Any:
        """Run a command with --json; return what it printed."""
        return json.loads(self(*arguments, "--json", code=code))

    def put(self, path: str, content: bytes | None = None, **keys: Any) -> Path:
        """Write a model below the home folder."""
        file = self.home / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(gguf(llama(**keys), [tensor("t", [8])], data=bytes(32)) if content is None else content)
        return file

    def settings(self, **flags: Any) -> Settings:
        """What the command line would make of these flags."""
        return load_settings(flags)


@pytest.fixture
def models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Shell:
    """The commands over empty folders."""
    return Shell(tmp_path, monkeypatch)


# --- list and info ---


def test_nothing_is_an_empty_list(models: Shell) -> None:
    """No folder has to exist, none is made."""
    assert models.json("list") == []
    assert models("list") == ""
    assert "models add" not in models.stderr
    models("list", typed="")
    assert "`chatapp models add PATH.gguf` adds one." in models.stderr
    assert not models.data_dir.exists()


def test_the_json_has_the_documented_keys(models: Shell) -> None:
    """They are an interface; what is unknown is null."""
    models("add", str(tiny_models.build("dense", models.put("x").parent)))
    models.put(".lmstudio/models/m/bad.gguf", b"<html>")
    good, bad = models.json("list")
    assert [list(good), list(bad)] == [KEYS, KEYS]
    assert list(good["fit"]) == FIT_KEYS
    assert good["name"] == "tiny-dense"
    assert good["source"] == "own"
    assert (good["memory"], good["template"], good["ctx_train"]) == ("dense", "chatml", 8192)
    assert good["kv_bytes_per_token"] == 4 * 1 * (32 + 32) * 2
    assert good["fit"]["verdict"] == "fits"
    assert good["fit"]["kv_bytes"] == 8192 * good["kv_bytes_per_token"]
    assert bad["problem"] == "bad.gguf is not a GGUF model file."
    assert (bad["fit"], bad["architecture"]) == (None, None)
    assert models.json("info", "tiny-dense") == good | {"tuning": None, "types": None}


def test_the_list_has_a_row_for_each_model(models: Shell) -> None:
    """The default is marked, a problem is a sentence below."""
    models.put(".lmstudio/models/m/some model.gguf")
    models.put(".cache/huggingface/hub/models--o--r/snapshots/a/bad.gguf", b"")
    models("default", "some")
    lines = models("list").splitlines()
    assert [line.split() for line in lines] == [
        ["name", "architecture", "parameters", "quantization", "size", "context", "memory", "source"],
        ["*", "some", "model", "llama", "8", "F32", *lines[1].split()[6:8], "4,096", "fits", "LM", "Studio"],
        ["bad", "cannot", "be", "used", "Hugging", "Face"],
        ["bad:", "bad.gguf", "is", "not", "a", "GGUF", "model", "file."],
    ]


def test_info_prints_everything(models: Shell) -> None:
    """A line for each fact."""
    path = tiny_models.build("sliding window", models.put("x").parent)
    lines = dict(line.split("  ", 1) for line in models("info", str(path)).splitlines())
    shown = {name: value.strip() for name, value in lines.items()}
    assert shown["name"] == "tiny-sliding-window"
    assert shown["file"] == str(path)
    assert shown["architecture"] == "gemma3"
    assert shown["template"] == "chatml"
    assert shown["tokenizer"] == "gpt2, smollm"
    assert shown["memory kind"] == "sliding window"
    assert shown["KV"] == "768 bytes a token (f16)"
    assert shown["memory"].startswith("fits: ")
    assert shown["memory"].endswith("6.0 MiB KV for 8,192 tokens, 1.0 GiB available")


def test_context_and_kv_type_count(models: Shell) -> None:
    """As flags of the command, or ahead of it."""
    path = str(models.put("m.gguf"))
    found = models.json("info", path, "--ctx", "1000000", "--kv-type", "q8_0")
    assert (found["kv_type"], found["fit"]["ctx"]) == ("q8_0", 1_000_000)
    assert found["kv_bytes_per_token"] == 2 * 2 * 64 * 34 // 32
    assert models.json("info", path, "--ctx", "10000000")["fit"]["verdict"] == "too large"


def test_info_of_what_cannot_be_used_fails(models: Shell) -> None:
    """What is known is printed, the reason is on stderr."""
    path = models.put("m.gguf", b"GGUF")
    assert models.json("info", str(path), code=1)["problem"] == (
        "m.gguf is cut short or damaged: its header says more than the file holds."
    )
    assert models.stderr == "Error: m.gguf is cut short or damaged: its header says more than the file holds.\n"
    for missing in (models.home / "none.gguf", "none.gguf"):
        models("info", str(missing), code=1)
        assert models.stderr == f"Error: There is no model file at {missing}.\n"


def test_info_without_a_name_is_the_one_that_is_used(
    models: Shell, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The default, the variable, the starter; without any the way out is said."""
    models("info", code=1)
    assert "There is no model" in models.stderr
    starter = models.put("starter.gguf")
    monkeypatch.setattr("models.catalog.starter_model", lambda: starter)
    assert models.json("info")["source"] == "starter"
    models.put(".lmstudio/models/m/other.gguf")
    models("default", "other")
    assert models.json("info")["name"] == "other"
    monkeypatch.setenv("CHATAPP_MODEL", "starter")
    assert models.json("info")["name"] == "starter"
    assert tmp_path in starter.parents


def test_a_name_that_is_not_one_models_is_one_sentence(models: Shell) -> None:
    """With the nearest."""
    models.put(".lmstudio/models/m/qwen-a.gguf")
    models.put(".lmstudio/models/m/qwen-b.gguf")
    models("info", "qwen", code=1)
    assert models.stderr == "Error: More than one model is meant by 'qwen': give one of qwen-a, qwen-b.\n"
    models("info", "quen-a", code=1)
    assert models.stderr == "Error: There is no model 'quen-a'; the nearest are qwen-a, qwen-b.\n"


def test_hostile_text_reaches_no_terminal(models: Shell) -> None:
    """Neither from a header nor from a file's name."""
    keys = llama() | {"general.name": HOSTILE, "tokenizer.ggml.pre": HOSTILE, "general.architecture": HOSTILE}
    path = models.put(f".lmstudio/models/{HOSTILE}/{HOSTILE}.gguf", gguf(keys))
    models.put(f".lmstudio/models/bad{HOSTILE}.gguf", b"")
    printed = models("list", typed="") + models("info", str(path), typed="") + models.stderr
    models("info", "evi", code=0, typed="")
    models("info", "zzz", code=1, typed="")
    printed += models.stderr
    models("remove", "evi", "--yes", code=1, typed="")
    printed += models.stderr
    assert "\x1b[2J" not in printed
    assert "\u202e" not in printed
    assert len(models("list").splitlines()) == 4


# --- add, remove, default ---


def test_a_model_is_added_used_and_removed(models: Shell) -> None:
    """By its name from then on; the file it came from stays."""
    path = models.put("a folder/My Model.gguf")
    assert models.json("add", str(path))["path"] == str(models.own / "My Model.gguf")
    assert model_path(models.settings(model=Path("my mod"))) == models.own / "My Model.gguf"
    assert models.json("remove", "My Model", "--yes") == {"name": "My Model", "removed": True, "freed_bytes": 0}
    assert path.exists()
    assert models.json("list") == []


def test_a_copy_takes_room(models: Shell) -> None:
    """And gives it back."""
    path = models.put("m.gguf")
    models("add", str(path), "--copy", typed="")
    assert "100 %" in models.stderr
    assert "m is added: `chatapp --model m` chats with it." in models.stderr
    path.unlink()
    assert models.json("remove", "m", "--yes")["freed_bytes"] > 0


def test_removing_asks(models: Shell) -> None:
    """Nobody there: wrong usage. No: nothing happens. Yes: it is gone."""
    models("add", str(models.put("m.gguf")))
    models("remove", "m", code=2)
    assert "--yes" in models.stderr
    models("remove", "m", code=1, typed="n\n")
    assert "Remove m (the link to it; the file stays)?" in models.stderr
    assert (models.own / "m.gguf").exists()
    models("remove", "m", typed="y\n")
    assert not (models.own / "m.gguf").exists()


def test_other_programs_files_are_never_removed(models: Shell) -> None:
    """It says so."""
    path = models.put(".lmstudio/models/m/m.gguf")
    models("remove", "m", "--yes", code=1)
    assert models.stderr == ("Error: m is not in chatapp's own folder (LM Studio): remove it where it came from.\n")
    assert path.exists()


def test_a_copy_is_removed_even_if_another_has_its_name(models: Shell) -> None:
    """Only the own one can be meant."""
    path = models.put(".lmstudio/models/m/m.gguf")
    models("add", str(path), "--copy")
    models("remove", "m", "--yes")
    assert path.exists()
    assert list(models.own.iterdir()) == []


@pytest.mark.skipif(sys.platform == "win32", reason="links need a privilege on Windows")
def test_a_second_link_can_be_removed_too(models: Shell) -> None:
    """It is in no list."""
    models("add", str(models.put("a.gguf")))
    (models.own / "b.gguf").symlink_to(models.own / "a.gguf")
    assert [model["name"] for model in models.json("list")] == ["a"]
    models("remove", "b", "--yes")
    assert [path.name for path in models.own.iterdir()] == ["a.gguf"]


def test_a_damaged_file_is_not_added(models: Shell) -> None:
    """One sentence."""
    models("add", str(models.put("m.gguf", b"<html>")), code=1)
    assert models.stderr == "Error: m.gguf is not a GGUF model file.\n"


def test_the_default_is_used_where_no_model_is_named(models: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    """Flag, variable and file come before it."""
    models("default", code=1)
    path = models.put(".lmstudio/models/m/m.gguf")
    assert models.json("default", "m") == {"name": "m", "path": str(path), "chosen": True, "exists": True}
    assert models("default") == "m\n"
    assert model_path(models.settings()) == path
    assert model_path(models.settings(model=Path("/x.gguf"))) == Path("/x.gguf")
    monkeypatch.setenv("CHATAPP_MODEL", "/y.gguf")
    assert model_path(models.settings()) == Path("/y.gguf")
    assert [model["default"] for model in models.json("list")] == [True]


def test_a_default_that_is_gone_is_one_sentence(models: Shell) -> None:
    """The starter is not taken in its place: it would answer otherwise."""
    path = models.put("m.gguf")
    models("default", str(path))
    path.unlink()
    assert models.json("default")["exists"] is False
    assert models("default") == "m\n"
    assert "is gone" in models.stderr
    with pytest.raises(ModelError, match=r"default model 'm' is gone: .*`chatapp models default NAME`"):
        model_path(models.settings())


def test_without_a_choice_the_default_is_the_starter(models: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    """`chosen` tells them apart."""
    starter = models.put("starter.gguf")
    monkeypatch.setattr("models.catalog.starter_model", lambda: starter)
    assert models.json("default") == {"name": "starter", "path": str(starter), "chosen": False, "exists": True}


def test_a_damaged_model_is_no_default(models: Shell) -> None:
    """One sentence, and the old one stays."""
    models("default", str(models.put("m.gguf")))
    models("default", str(models.put("bad.gguf", b"")), code=1)
    assert models.stderr == "Error: bad.gguf is not a GGUF model file.\n"
    assert models("default") == "m\n"


def test_a_part_of_a_model_is_no_default(models: Shell) -> None:
    """A projector, for instance; `info` says what it is."""
    path = models.put("clip.gguf", gguf({"general.architecture": "clip"}))
    models("default", str(path), code=1)
    assert models.stderr == "Error: clip.gguf is no model but a part of one (mmproj).\n"
    assert "mmproj: a part of a model, no model" in models("info", str(path))


# --- names instead of paths ---


def test_a_name_is_told_from_a_path(models: Shell, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A path ends in .gguf, is there, or begins like one; relative ones start where they always do."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").touch()
    (tmp_path / "folder").mkdir()
    for given, meant in {
        "m.gguf": tmp_path / "m.gguf",
        "file": tmp_path / "file",
        "./x": tmp_path / "x",
        "~/x": models.home / "x",
        "/x": Path("/x"),
        "folder": Path("folder"),
        "llama3.2:3b": Path("llama3.2:3b"),
        "me/m:q4": Path("me/m:q4"),
    }.items():
        assert models.settings(model=given).model == meant


def test_an_unknown_name_ends_a_run_before_it_begins(models: Shell) -> None:
    """Exit code 1, one sentence."""
    models.put(".lmstudio/models/m/qwen.gguf")
    models("x", "--model", "gwen", code=1, typed="", command="run")
    assert models.stderr == "Error: There is no model 'gwen'; the nearest are qwen.\n"


def test_another_data_folder_changes_no_model(models: Shell) -> None:
    """A benchmark works in folders of its own, and with the same model."""
    path = models.put("m.gguf")
    models("add", str(path))
    models("default", "m")
    for settings in (models.settings(), models.settings(model="m")):
        assert with_model_path(settings).model == models.own / "m.gguf"
    fake = replace(models.settings(), engine="fake")
    assert with_model_path(fake) == fake


# --- folders ---


def test_folders_are_those_of_the_programs(models: Shell) -> None:
    """Their own variables count."""
    settings, home = models.settings(), models.home
    usual = model_folders(settings, {})
    assert usual.own == models.own
    assert usual.ollama[0] == home / ".ollama" / "models"
    assert usual.lm_studio == (home / ".lmstudio" / "models", home / ".cache" / "lm-studio" / "models")
    assert usual.hugging_face == (home / ".cache" / "huggingface" / "hub",)
    named = model_folders(settings, {"OLLAMA_MODELS": "/o", "HF_HOME": "~/h", "XDG_CACHE_HOME": "/c"})
    assert named.ollama == (Path("/o"),)
    assert named.hugging_face == (home / "h" / "hub",)
    assert named.lm_studio[1] == Path("/c/lm-studio/models")
    assert model_folders(settings, {"HF_HUB_CACHE": "/b", "HF_HOME": "/h"}).hugging_face == (Path("/b"),)


def test_without_a_home_only_the_own_folder_is_left(models: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is no error."""
    settings = models.settings()

    def homeless(_path: Path) -> Path:
        raise RuntimeError

    monkeypatch.setattr(Path, "expanduser", homeless)
    assert model_folders(settings, {}).ollama == ()


def test_listing_is_quick_the_second_time(models: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    """No header is read again."""
    models.put(".lmstudio/models/m/m.gguf")
    first = models.json("list")
    monkeypatch.setattr("models.modelfacts.read_header", lambda _path: pytest.fail("read again"))
    assert models.json("list") == first
    assert FactsCache(models.cache_dir).facts(Path(first[0]["path"])).architecture == "llama"


# --- pull ---


def test_a_model_is_pulled(models: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    """From the hub that HF_ENDPOINT names, into the own folder."""
    pytest.importorskip("huggingface_hub")
    data = gguf(llama(), [tensor("t", [8])], data=bytes(32))
    with running(Hub("me/Tiny", {"Tiny-Q8_0.gguf": data, "Tiny-Q4_0.gguf": data})) as server:
        monkeypatch.setenv("HF_ENDPOINT", server.endpoint + "/")
        assert models.json("pull", "me/Tiny:q8_0")["path"] == str(models.own / "Tiny-Q8_0.gguf")
        remember_types(models.cache_dir, TypeRates({"Q4_0": TypeRate(9, 9), "Q4_K_M": TypeRate(3, 3)}, 1e9))
        models("pull", "me/Tiny:Q4_0", typed="")
        assert "Q4_0 is the fastest here for chat" in models.stderr
        assert "checking Tiny-Q4_0.gguf" in models.stderr
        models("pull", "me/Other", code=1)
        assert models.stderr == "Error: There is no me/Other on this hub, or not this file of it.\n"
    assert (models.own / "Tiny-Q8_0.gguf").read_bytes() == data
    assert [model["name"] for model in models.json("list")] == ["Tiny-Q4_0", "Tiny-Q8_0"]


def test_pull_offline_is_one_sentence(models: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    """Exit code 1."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    models("pull", "me/Tiny", code=1)
    assert models.stderr.startswith("Error: HF_HUB_OFFLINE is set: ")
    models("pull", "nonsense", code=1)
    assert "is no repository of a hub" in models.stderr


def test_the_hubs_variables_are_read() -> None:
    """Empty ones count as unset."""
    assert hub({"HF_ENDPOINT": "https://h/", "HF_HUB_OFFLINE": "TRUE"}) == HubSettings("https://h", True)
    assert hub({"HF_ENDPOINT": "", "HF_HUB_OFFLINE": "0"}) == HubSettings(None, False)
