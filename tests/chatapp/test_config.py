from pathlib import Path

import platformdirs
import pytest

from chatapp.config import ConfigError, Settings, load_settings


def test_flags_come_before_the_environment() -> None:
    """A flag wins over its variable, the variable over the default; unset flags are None."""
    environ = {"CHATAPP_DATA_DIR": "/env/data", "CHATAPP_CACHE_DIR": "/env/cache", "CHATAPP_CTX": "1024"}
    settings = load_settings({"data_dir": Path("/flag/data"), "cache_dir": None, "n_ctx": 512}, environ)
    assert settings == Settings(data_dir=Path("/flag/data"), cache_dir=Path("/env/cache"), n_ctx=512)


def test_every_variable_is_read() -> None:
    """All settings can come from the environment."""
    environ = {
        "CHATAPP_DATA_DIR": "/d",
        "CHATAPP_CACHE_DIR": "/c",
        "CHATAPP_MODEL": "/m.gguf",
        "CHATAPP_CTX": "99",
        "CHATAPP_GPU_LAYERS": "-1",
        "CHATAPP_THREADS": "2",
        "CHATAPP_FLASH_ATTENTION": "off",
        "CHATAPP_ENGINE": "fake:50",
    }
    assert load_settings({}, environ) == Settings(Path("/d"), Path("/c"), Path("/m.gguf"), 99, -1, 2, "off", "fake:50")


def test_defaults_are_the_systems_folders() -> None:
    """Without flags and variables, the folders are those of the system; empty variables count as unset."""
    settings = load_settings({}, {"CHATAPP_CTX": "", "CHATAPP_MODEL": ""})
    assert settings == Settings(
        platformdirs.user_data_path("chatapp", False), platformdirs.user_cache_path("chatapp", False)
    )


def test_paths_become_absolute(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The engine runs elsewhere, so a relative path is taken from here and ~ is the home folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    settings = load_settings({"model": Path("m.gguf")}, {"CHATAPP_DATA_DIR": "~/d"})
    assert (settings.model, settings.data_dir) == (tmp_path / "m.gguf", tmp_path / "d")


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("CTX", "many"),
        ("CTX", "0"),
        ("GPU_LAYERS", "-2"),
        ("THREADS", "1.5"),
        ("FLASH_ATTENTION", "maybe"),
        ("ENGINE", "other"),
        ("ENGINE", "fake:quick"),
        ("ENGINE", "fake:0"),
    ],
)
def test_a_bad_variable_is_named(variable: str, value: str) -> None:
    """The sentence says which variable has which wrong value."""
    with pytest.raises(ConfigError, match=f"CHATAPP_{variable}.*{value}|{value}.*CHATAPP_{variable}"):
        load_settings({}, {f"CHATAPP_{variable}": value})
