import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import platformdirs
import pytest

from chatapp.cli import cli
from chatapp.config import SETTINGS, ConfigError, Settings, load_settings
from models.kvsettings import KvSettings

PAGE = (Path(__file__).parents[2] / "docs" / "settings.md").read_text(encoding="utf-8")
FOLDERS = {"CHATAPP_DATA_DIR": "/d", "CHATAPP_CACHE_DIR": "/c"}
WriteConfig = Callable[[str | bytes], Path]


@pytest.fixture(autouse=True)
def config_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder the system would give for the settings file."""
    monkeypatch.setattr(platformdirs, "user_config_path", lambda *_args: tmp_path / "config")
    return tmp_path / "config"


@pytest.fixture
def write(config_dir: Path) -> WriteConfig:
    """Writes the default settings file."""

    def write_file(content: str | bytes) -> Path:
        config_dir.mkdir(exist_ok=True)
        path = config_dir / "config.toml"
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    return write_file


def load(flags: dict[str, Any] | None = None, **variables: str) -> Settings:
    """Settings with fixed folders; `variables` without their `CHATAPP_`."""
    return load_settings(flags or {}, FOLDERS | {f"CHATAPP_{name}": value for name, value in variables.items()})


# --- where a value comes from ---


def test_flags_come_before_the_environment() -> None:
    """A flag wins over its variable, the variable over the default; unset flags are None."""
    environ = {"CHATAPP_DATA_DIR": "/env/data", "CHATAPP_CACHE_DIR": "/env/cache", "CHATAPP_CTX": "1024"}
    settings = load_settings({"data_dir": Path("/flag/data"), "cache_dir": None, "ctx": 512}, environ)
    assert settings == Settings(data_dir=Path("/flag/data"), cache_dir=Path("/env/cache"), n_ctx=512)


def test_the_environment_comes_before_the_file(write: WriteConfig) -> None:
    """A variable wins over the file, the file over the default."""
    write('ctx = 1\nthreads = 1\n[kv]\nbudget = 1\nfree_floor = 1\n"enabled" = false')
    settings = load({"ctx": 3}, CTX="2", THREADS="2", KV_BUDGET="2", KV="")
    assert (settings.n_ctx, settings.threads) == (3, 2)
    assert settings.kv == KvSettings(enabled=False, budget_bytes=2, free_floor_bytes=1)


def test_every_variable_is_read() -> None:
    """All settings can come from the environment."""
    environ = {
        "CHATAPP_DATA_DIR": "/d",
        "CHATAPP_CACHE_DIR": "/c",
        "CHATAPP_MODEL": "/m.gguf",
        "CHATAPP_CTX": "99",
        "CHATAPP_GPU_LAYERS": "-1",
        "CHATAPP_THREADS": "2",
        "CHATAPP_FLASH_ATTENTION": "on",
        "CHATAPP_ENGINE": "fake:50",
        "CHATAPP_KV": "no",
        "CHATAPP_KV_BUDGET": "20GiB",
        "CHATAPP_KV_FREE_FLOOR": "1 kB",
        "CHATAPP_KV_DAILY_LIMIT": "0",
        "CHATAPP_KV_TYPE": "q8_0",
        "CHATAPP_LORA": os.pathsep.join(["/a.gguf", "/b.gguf=0.5"]),
    }
    assert load_settings({}, environ) == Settings(
        data_dir=Path("/d"),
        cache_dir=Path("/c"),
        model=Path("/m.gguf"),
        n_ctx=99,
        gpu_layers=-1,
        threads=2,
        flash_attention="on",
        engine="fake:50",
        kv=KvSettings(enabled=False, budget_bytes=20 << 30, free_floor_bytes=1000, daily_bytes=0),
        kv_type="q8_0",
        loras=((Path("/a.gguf"), 1.0), (Path("/b.gguf"), 0.5)),
    )


def test_every_key_is_read(write: WriteConfig) -> None:
    """All settings for users can come from the file."""
    write("""
        data_dir = "/d"
        cache_dir = "/c"
        model = "/m.gguf"
        ctx = 99
        gpu_layers = -1
        threads = 2
        flash_attention = "on"
        kv_type = "q8_0"
        lora = ["/a.gguf", "/b.gguf=0.5", {path = "/c=2", scale = -1}, {path = "/d=2"}]

        [kv]
        enabled = false
        budget = "20GiB"
        free_floor = "1 kB"
        daily_limit = 0
    """)
    assert load_settings({}, {}) == Settings(
        data_dir=Path("/d"),
        cache_dir=Path("/c"),
        model=Path("/m.gguf"),
        n_ctx=99,
        gpu_layers=-1,
        threads=2,
        flash_attention="on",
        kv=KvSettings(enabled=False, budget_bytes=20 << 30, free_floor_bytes=1000, daily_bytes=0),
        kv_type="q8_0",
        loras=((Path("/a.gguf"), 1.0), (Path("/b.gguf"), 0.5), (Path("/c=2"), -1.0), (Path("/d=2"), 1.0)),
    )


def test_defaults_are_the_systems_folders() -> None:
    """Without flags, variables and a file, the folders are those of the system; empty variables count as unset."""
    settings = load_settings({"lora": ()}, {"CHATAPP_CTX": "", "CHATAPP_MODEL": "", "CHATAPP_CONFIG": ""})
    assert settings == Settings(
        platformdirs.user_data_path("chatapp", False), platformdirs.user_cache_path("chatapp", False)
    )


def test_paths_become_absolute(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The engine runs elsewhere, so a relative path is taken from here and ~ is the home folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    settings = load_settings({"model": Path("m.gguf"), "lora": ("~/a=2", "b")}, {"CHATAPP_DATA_DIR": "~/d"})
    assert (settings.model, settings.data_dir) == (tmp_path / "m.gguf", tmp_path / "d")
    assert settings.loras == ((tmp_path / "a", 2.0), (tmp_path / "b", 1.0))


def test_paths_in_the_file_are_relative_to_it(write: WriteConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    """It means the same wherever the program is started."""
    folder = write('model = "m.gguf"\nlora = ["a=2", {path = "~/b"}]').parent
    monkeypatch.setenv("HOME", "/home/me")
    settings = load()
    assert settings.model == folder / "m.gguf"
    assert settings.loras == ((folder / "a", 2.0), (Path("/home/me/b"), 1.0))


def test_an_equals_sign_may_be_part_of_a_path() -> None:
    """Only a number behind the last one is a scale."""
    loras = load({"lora": ("/x=y", "/x=1=0.5", "/5")}).loras
    assert loras == ((Path("/x=y"), 1.0), (Path("/x=1"), 0.5), (Path("/5"), 1.0))


@pytest.mark.parametrize("word", ["1", "true", "on", "YES", "0", "False", "off", "no"])
def test_a_switch_has_many_words(word: str) -> None:
    """In any case."""
    assert load(KV=word).kv.enabled is (word.lower() in ("1", "true", "on", "yes"))


# --- the file itself ---


def test_a_named_file_takes_the_place_of_the_default(write: WriteConfig, tmp_path: Path) -> None:
    """The flag wins over the variable; the file of the system is not read then."""
    write("not even TOML")
    (tmp_path / "one.toml").write_text("ctx = 1")
    (tmp_path / "two.toml").write_text("threads = 2")
    assert load(CONFIG=str(tmp_path / "one.toml")).n_ctx == 1
    settings = load({"config": tmp_path / "two.toml"}, CONFIG=str(tmp_path / "one.toml"))
    assert (settings.n_ctx, settings.threads) == (None, 2)


@pytest.mark.parametrize("content", ["", "# nothing\r\n", "\ufeffctx = 1\r\n", "[kv]"])
def test_a_file_may_say_little(write: WriteConfig, content: str) -> None:
    """Empty, with a byte order mark, or with the line ends of Windows."""
    write(content)
    assert load().n_ctx == (1 if "ctx" in content else None)


def test_a_named_file_has_to_exist(tmp_path: Path) -> None:
    """The sentence says who named it."""
    (tmp_path / "file").touch()
    for missing in (tmp_path / "missing.toml", tmp_path / "file" / "x"):
        with pytest.raises(ConfigError, match=r"no settings file .*(missing\.toml|x): create it, or leave --config"):
            load({"config": missing})
        with pytest.raises(ConfigError, match="leave CHATAPP_CONFIG"):
            load(CONFIG=str(missing))


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ("ctx", "is not valid TOML (Expected '=' after a key in a key/value pair (at end of document)): mend it"),
        ("ctx = 1\nctx = 2\n", "at line 2"),
        (b"\xff", "is not UTF-8 text: save it as that"),
        ("x = " + "[" * 10_000, "is not valid TOML ("),
        ("ctxt = 1", "has the unknown key 'ctxt': perhaps 'ctx' is meant."),
        ("gpu-layers = 1", "perhaps 'gpu_layers' is meant."),
        ("[kv]\nbudge = 1", "has the unknown key 'kv.budge': perhaps 'kv.budget' is meant."),
        ("kv_budget = 1", "perhaps 'kv.budget' is meant."),
        ("[kvv]", "perhaps 'kv' is meant."),
        ("zzzz = 1", "the keys are data_dir, cache_dir, model, ctx,"),
        ("engine = 7", "engine in"),
        ("engines = 7", "engines in"),
        ("[engines.box]", "engines.box in"),
        ("kv = true", "must be a table: write [kv] and below it"),
    ],
)
def test_a_file_that_cannot_be_used_is_named(write: WriteConfig, content: str | bytes, sentence: str) -> None:
    """One sentence with the file, what is wrong in it, and the way out."""
    path = write(content)
    with pytest.raises(ConfigError) as raised:
        load()
    assert str(path) in str(raised.value)
    assert sentence in str(raised.value)


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    """A folder, for instance."""
    with pytest.raises(ConfigError, match=f"{tmp_path} cannot be read .*: mend it, or name another with --config"):
        load({"config": tmp_path})


# --- values ---


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("CTX", "many"),
        ("CTX", "0"),
        ("GPU_LAYERS", "-2"),
        ("THREADS", "1.5"),
        ("FLASH_ATTENTION", "maybe"),
        ("ENGINE", "Other one"),
        ("ENGINE", "fake:quick"),
        ("ENGINE", "fake:0"),
        ("MODEL", "~nobody-of-this-name/x"),
        ("CONFIG", "~nobody-of-this-name/x"),
        ("KV", "maybe"),
        ("KV_BUDGET", "lots"),
        ("KV_FREE_FLOOR", "-1"),
        ("KV_DAILY_LIMIT", "nan"),
        ("KV_TYPE", "q4_0"),
        ("LORA", "a.gguf=nan"),
        ("LORA", "=1"),
    ],
)
def test_a_bad_variable_is_named(variable: str, value: str) -> None:
    """The sentence says which variable has which wrong value."""
    with pytest.raises(ConfigError, match=f"CHATAPP_{variable} must be .*, not '{value}'"):
        load(None, **{variable: value})


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        ({"kv_budget": "lots"}, '--kv-budget must be a size such as "20GiB", "500 MB" or 0, not \'lots\'.'),
        ({"lora": ("a=inf",)}, "--lora must be adapters, each as PATH or PATH=SCALE"),
        ({"data_dir": Path("~nobody-of-this-name")}, "--data-dir must be a path, not '~nobody-of-this-name'."),
        ({"config": Path("~nobody-of-this-name")}, "--config must be a path, not '~nobody-of-this-name'."),
    ],
)
def test_a_bad_flag_is_named(flags: dict[str, Any], sentence: str) -> None:
    """What the command line itself does not check."""
    with pytest.raises(ConfigError) as raised:
        load(flags)
    assert sentence in str(raised.value)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("ctx", '"4096"'),
        ("ctx", "true"),
        ("ctx", "0"),
        ("ctx", "1.0"),
        ("model", "1"),
        ("model", '""'),
        ("model", r'"a\u0000b"'),
        ("model", "{}"),
        ("flash_attention", "true"),
        ("kv_type", '"f32"'),
        ("lora", '"a.gguf"'),
        ("lora", "[1]"),
        ("lora", "[{}]"),
        ("lora", "[{path = 1}]"),
        ("lora", '[{path = "a", scale = "1"}]'),
        ("lora", '[{path = "a", scale = true}]'),
        ("lora", '[{path = "a", scale = nan}]'),
        ("lora", f'[{{path = "a", scale = 1{"0" * 400}}}]'),
        ("lora", '[{path = "a", strength = 1}]'),
        ("kv.enabled", "2"),
        ("kv.budget", "1.5"),
        ("kv.free_floor", "true"),
        ("kv.daily_limit", "-1"),
    ],
)
def test_a_bad_value_in_the_file_is_named(write: WriteConfig, key: str, value: str) -> None:
    """The sentence has the key, the file and what would be right."""
    path = write(f"{key} = {value}")
    with pytest.raises(ConfigError) as raised:
        load()
    assert str(raised.value).startswith(f"{key} in {path} must be ")
    assert len(str(raised.value).splitlines()) == 1


def test_a_value_that_does_not_count_does_no_harm(write: WriteConfig) -> None:
    """A flag gets around a wrong value elsewhere."""
    write("ctx = 0")
    assert load({"ctx": 5}).n_ctx == 5


def test_quantized_kv_needs_flash_attention(write: WriteConfig) -> None:
    """The sentence has both ways out; measured flash attention may still become on."""
    write('kv_type = "q8_0"')
    assert (load().kv_type, load().flash_attention) == ("q8_0", "auto")
    with pytest.raises(ConfigError, match=r"q8_0 needs flash attention: .*--flash-attention .*--kv-type"):
        load({"flash_attention": "off"})


def test_a_server_can_be_the_engine(write: WriteConfig) -> None:
    """By its name, with another model behind it; a name that there is not is told with those that there are."""
    write('engine = "box"\n[engines.box]\nbase_url = "http://127.0.0.1:1/v1"\n')
    assert (load().engine, load().engines["box"].base_url) == ("box", "http://127.0.0.1:1/v1")
    assert load({"engine": "box/some/model"}).engine == "box/some/model"
    with pytest.raises(ConfigError, match=r"no engine 'bax': the engines are llama, box;"):
        load({"engine": "bax"})


# --- the page ---


def test_every_setting_is_documented() -> None:
    """Each has a row with its flag, variable and key; flags are those of the command line."""
    flags = {option for parameter in cli.params for option in parameter.opts}
    rows = {line.split(" | ")[1].strip("| "): line for line in PAGE.splitlines() if line.startswith("| ")}
    for setting in SETTINGS:
        if setting.key:
            row = rows[f"`{setting.variable}`"]
            assert f"`{setting.key}`" in row
            assert (f"`{setting.flag}" in row) == (setting.flag in flags)


def test_the_example_on_the_page_works(write: WriteConfig) -> None:
    """The file shown can be used as it is."""
    example = PAGE.partition("```toml\n")[2].partition("```")[0]
    write(example)
    assert load().kv.budget_bytes == 20 << 30
    assert json.dumps(load().loras, default=str).count("gguf") == 2


def test_presets_are_a_table_or_pairs(write: WriteConfig) -> None:
    """A model's name may hold anything; what is no preset is refused."""
    write('[presets]\n"a=b" = "precise"\n')
    assert load().presets == {"a=b": "precise"}
    assert load(PRESETS="x=creative,y=z=balanced").presets == {"x": "creative", "y=z": "balanced"}
    for bad in ('presets = "precise"', '[presets]\nx = "wild"', "[presets]\nx = 1"):
        write(bad)
        with pytest.raises(ConfigError, match="presets"):
            load()
    with pytest.raises(ConfigError, match="PRESETS must be"):
        load(PRESETS="precise")
