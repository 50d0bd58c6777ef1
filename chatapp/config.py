"""Settings: flags before environment before file before defaults. The only reader of the environment."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import platformdirs

from chatapp.values import (
    ENGINE,
    KEYS,
    LANGUAGE,
    LORAS,
    MODEL,
    PATH,
    PRESETS_OF_MODELS,
    SIZE,
    SWITCH,
    THEME,
    Kind,
    choice,
    whole,
)
from models.formats import known_formats
from models.kvsettings import DEFAULT_KV, KvSettings

if TYPE_CHECKING:
    from chatapp.clipboard import Terminal
    from models.modelfiles import ModelFolders
    from models.remote_profile import RemoteProfile

FlashAttention = Literal["auto", "on", "off"]
KvType = Literal["f16", "q8_0"]
Reasoning = Literal["keep", "strip"]
Policy = Literal["off", "ask", "strict"]
Thoughts = Literal["mark", "show", "hide"]
DEBUG = "CHATAPP_DEBUG"
CONFIG = "CHATAPP_CONFIG"
SERVE_KEY = "CHATAPP_API_KEY"
BROWSER_DRIVER = "chatapp.web.driver:Driver"
"""What Textual is told to talk to, in place of a terminal, by the server of `chatapp web`."""


class ConfigError(Exception):
    """A setting has a value that cannot be used; the message is one sentence for the user."""


@dataclass(frozen=True, slots=True)
class Settings:
    """What a run of the program works with.

    `model` is a path, or a name if it is relative and has no `.gguf`; None is the chosen default. `n_ctx` None is
    the default for this machine, `threads` None the measured best. `engine` is `llama`, or `fake` for demonstrations
    and tests (`fake:50` answers 50 tokens a second). `kv_type` is how KV is held in memory and on disk; `loras` are
    adapters with their strengths. `chat_format` names a known format for a model whose file has no chat template.
    `presets` are those of sampling, by the name of the model; `reasoning` is what becomes of it in new conversations,
    `policy` what is done about drafts of another task. `theme` and `keys` (by command) are those of the window, which
    checks them.
    """

    data_dir: Path
    cache_dir: Path
    model: Path | None = None
    n_ctx: int | None = None
    gpu_layers: int = 0
    threads: int | None = None
    flash_attention: FlashAttention = "auto"
    speculation: Literal["auto", "off"] = "auto"
    n_parallel: int = 1
    """Requests that the engine on this machine answers together; commands that send several at once say how many."""
    engine: str = "llama"
    kv: KvSettings = DEFAULT_KV
    kv_type: KvType = "f16"
    loras: tuple[tuple[Path, float], ...] = ()
    chat_format: str | None = None
    presets: Mapping[str, str] = field(default_factory=dict)
    reasoning: Reasoning = "keep"
    policy: Policy = "ask"
    theme: str = "auto"
    keys: Mapping[str, str] = field(default_factory=dict)
    language: str = "auto"
    """Of the interface; auto: that of the locale."""
    plain: bool | None = None
    """Whether the program opens in plain mode; None: where there can be no window."""
    thoughts: Thoughts = "mark"
    """How plain mode tells the reasoning of answers."""
    typeahead: bool = True
    """Whether the window lets the engine read drafts ahead, unless the machine runs on its battery."""
    engines: Mapping[str, RemoteProfile] = field(default_factory=dict, repr=False)
    """Servers by name: `engine` may be one of them, with `/MODEL` behind it to have another model there."""
    config_dir: Path = field(default=Path(), compare=False)
    """Where the settings file is, or would be; snippets are below it."""
    config_file: Path = field(default=Path(), compare=False)
    """That file."""


@dataclass(frozen=True, slots=True)
class Setting:
    """Where one setting comes from and goes to.

    Its flag is `--name`, its variable `CHATAPP_NAME`; `key` is its place in the file (None: not settable there),
    `target` the field of `Settings`, or of its `kv`.
    """

    name: str
    key: str | None
    target: str
    kind: Kind

    @property
    def flag(self) -> str:
        """As it is written on the command line, where that has it."""
        return "--" + self.name.replace("_", "-")

    @property
    def variable(self) -> str:
        """The environment variable."""
        return f"CHATAPP_{self.name.upper()}"


SETTINGS = (
    Setting("data_dir", "data_dir", "data_dir", PATH),
    Setting("cache_dir", "cache_dir", "cache_dir", PATH),
    Setting("model", "model", "model", MODEL),
    Setting("ctx", "ctx", "n_ctx", whole(1)),
    Setting("gpu_layers", "gpu_layers", "gpu_layers", whole(-1)),
    Setting("threads", "threads", "threads", whole(1)),
    Setting("flash_attention", "flash_attention", "flash_attention", choice("auto", "on", "off")),
    Setting("speculation", "speculation", "speculation", choice("auto", "off")),
    Setting("kv_type", "kv_type", "kv_type", choice("f16", "q8_0")),
    Setting("lora", "lora", "loras", LORAS),
    Setting("chat_format", "chat_format", "chat_format", choice(*known_formats())),
    Setting("presets", "presets", "presets", PRESETS_OF_MODELS),
    Setting("reasoning", "reasoning", "reasoning", choice("keep", "strip")),
    Setting("policy", "policy", "policy", choice("off", "ask", "strict")),
    Setting("theme", "theme", "theme", THEME),
    Setting("keys", "keys", "keys", KEYS),
    Setting("language", "language", "language", LANGUAGE),
    Setting("plain", "plain", "plain", SWITCH),
    Setting("typeahead", "typeahead", "typeahead", SWITCH),
    Setting("thoughts", "thoughts", "thoughts", choice("mark", "show", "hide")),
    Setting("kv", "kv.enabled", "kv.enabled", SWITCH),
    Setting("kv_budget", "kv.budget", "kv.budget_bytes", SIZE),
    Setting("kv_free_floor", "kv.free_floor", "kv.free_floor_bytes", SIZE),
    Setting("kv_daily_limit", "kv.daily_limit", "kv.daily_bytes", SIZE),
    Setting("engine", "engine", "engine", ENGINE),
)
"""All settings."""

_KEYS = tuple(setting.key for setting in SETTINGS if setting.key)


def load_settings(flags: Mapping[str, Any], environ: Mapping[str, str] | None = None) -> Settings:
    """Combine flags (None and (): not given) with `CHATAPP_*` variables, the settings file and defaults.

    An empty variable counts as unset. Only the values that win are looked at. Raises `ConfigError`.
    """
    environ = os.environ if environ is None else environ
    path, file = _file(flags.get("config"), environ)
    given: dict[str, Any] = {}
    for setting in SETTINGS:
        flag, text = flags.get(setting.name), environ.get(setting.variable)
        if flag is not None and flag != ():
            given[setting.target] = _parse(setting, flag, setting.flag)
        elif text:
            given[setting.target] = _parse(setting, text, setting.variable)
        elif setting.key in file:
            given[setting.target] = _parse_from_file(setting, file[setting.key], path)
    kv = {target.removeprefix("kv."): given.pop(target) for target in list(given) if target.startswith("kv.")}
    given.setdefault("data_dir", platformdirs.user_data_path("chatapp", False))
    given.setdefault("cache_dir", platformdirs.user_cache_path("chatapp", False))
    engines = _engines(file.get("engines"), path, environ)
    settings = Settings(kv=KvSettings(**kv), config_dir=path.parent, config_file=path, engines=engines, **given)
    _check_engine(settings)
    if settings.kv_type != "f16" and settings.flash_attention == "off":
        raise ConfigError(
            f"KV of type {settings.kv_type} needs flash attention: "
            "set --flash-attention to auto or on, or --kv-type to f16."
        )
    return settings


@dataclass(frozen=True, slots=True)
class Hub:
    """The hub that models are fetched from: its address (None: the usual one), and whether it may be asked at all."""

    endpoint: str | None
    is_offline: bool


def hub(environ: Mapping[str, str] | None = None) -> Hub:
    """Return the hub, as its own variables name it."""
    environ = os.environ if environ is None else environ
    offline = environ.get("HF_HUB_OFFLINE", "").lower() in ("1", "true", "yes", "on")
    return Hub(environ.get("HF_ENDPOINT", "").rstrip("/") or None, offline)


def model_folders(settings: Settings, environ: Mapping[str, str] | None = None) -> ModelFolders:
    """Return where models may lie: the own folder, and those of other programs, as their own variables name them."""
    from models.modelfiles import ModelFolders

    environ = os.environ if environ is None else environ

    def folders(named: str | None, *usual: str) -> tuple[Path, ...]:
        try:
            return tuple(Path(folder).expanduser().absolute() for folder in ([named] if named else usual))
        except RuntimeError:  # there is no home folder
            return ()

    cache = environ.get("XDG_CACHE_HOME") or "~/.cache"
    hugging_face = environ.get("HF_HOME") or f"{cache}/huggingface"
    return ModelFolders(
        own=settings.data_dir / "models",
        ollama=folders(environ.get("OLLAMA_MODELS"), "~/.ollama/models", "/usr/share/ollama/.ollama/models"),
        lm_studio=folders(None, "~/.lmstudio/models", f"{cache}/lm-studio/models"),
        hugging_face=folders(environ.get("HF_HUB_CACHE"), f"{hugging_face}/hub"),
    )


def editor_command(environ: Mapping[str, str] | None = None) -> tuple[str, ...]:
    """Return the user's editor and its arguments; where none is named, the one that every system has."""
    import shlex

    environ = os.environ if environ is None else environ
    named = environ.get("VISUAL") or environ.get("EDITOR") or ("notepad" if os.name == "nt" else "vi")
    try:
        return tuple(shlex.split(named, posix=os.name != "nt"))
    except ValueError:  # a quotation mark without its other half
        return (named,)


def terminal(environ: Mapping[str, str] | None = None) -> Terminal:
    """Return what the environment tells of the terminal."""
    import sys

    from chatapp.clipboard import Terminal

    return Terminal.read(os.environ if environ is None else environ, sys.platform)


def language(settings: Settings, environ: Mapping[str, str] | None = None) -> str:
    """Return the language of the interface, as gettext names it: `ko`, `pt_BR`."""
    if settings.language != "auto":
        return settings.language
    environ = os.environ if environ is None else environ
    locale = next((environ[name] for name in ("LC_ALL", "LC_MESSAGES", "LANG") if environ.get(name)), "C")
    if locale.split(".")[0] in ("C", "POSIX"):
        return "en"
    return (environ.get("LANGUAGE") or locale).split(":")[0].split(".")[0].split("@")[0]


def wants_colour(environ: Mapping[str, str] | None = None) -> bool:
    """False when the user, or the terminal, wants text without colours."""
    environ = os.environ if environ is None else environ
    return not environ.get("NO_COLOR") and environ.get("TERM", "dumb") != "dumb"


def is_in_browser(environ: Mapping[str, str] | None = None) -> bool:
    """True when the chat window's pictures and keys go through the server of `chatapp web`."""
    return (os.environ if environ is None else environ).get("TEXTUAL_DRIVER") == BROWSER_DRIVER


def serve_key(environ: Mapping[str, str] | None = None) -> str | None:
    """Return the key that clients of `chatapp serve` show; None: no variable gives one."""
    return (os.environ if environ is None else environ).get(SERVE_KEY) or None


def is_debug() -> bool:
    """True when errors of the program itself are to be shown with their traceback."""
    return bool(os.environ.get(DEBUG))


def _parse(setting: Setting, value: Any, where: str, base: Path = Path()) -> Any:
    try:
        return setting.kind.parse(value, base)
    except (ValueError, OverflowError) as exc:
        shown = list(value) if isinstance(value, tuple) else str(value) if isinstance(value, Path) else value
        raise ConfigError(f"{where} must be {setting.kind.expected}, not {shown!r}.") from exc


def _parse_from_file(setting: Setting, value: Any, path: Path) -> Any:
    where = f"{setting.key} in {path}"
    if type(value) not in setting.kind.types:  # exactly: in Python, true is a whole number too
        raise ConfigError(f"{where} must be {setting.kind.expected}, not {value!r}.")
    return _parse(setting, value, where, path.parent)


def _file(flag: Path | None, environ: Mapping[str, str]) -> tuple[Path, dict[str, Any]]:
    """Return the settings file and its values by key; only one that nobody named may be missing."""
    named = flag or environ.get(CONFIG)
    if not named:
        path = platformdirs.user_config_path("chatapp", False) / "config.toml"
        return path, _values(path, _text(path) or "")
    source = "--config" if flag else CONFIG
    try:
        path = PATH.parse(named, Path())
    except ValueError as exc:
        raise ConfigError(f"{source} must be {PATH.expected}, not {str(named)!r}.") from exc
    text = _text(path)
    if text is None:
        raise ConfigError(f"There is no settings file {path}: create it, or leave {source} out.")
    return path, _values(path, text)


def _text(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8-sig")
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as exc:
        raise ConfigError(f"{path} cannot be read ({exc.strerror}): mend it, or name another with --config.") from exc
    except UnicodeDecodeError as exc:
        raise ConfigError(f"{path} is not UTF-8 text: save it as that, or name another with --config.") from exc


def _values(path: Path, text: str) -> dict[str, Any]:
    """Values by dotted key, all of them known."""
    if not text:
        return {}
    import tomllib  # most starts have no file, and `--help` is to be there at once

    try:
        tree = tomllib.loads(text)
    except (ValueError, RecursionError) as exc:
        raise ConfigError(f"{path} is not valid TOML ({exc}): mend it, or name another with --config.") from exc
    kv = tree.pop("kv", {})
    if not isinstance(kv, dict):
        raise ConfigError(f"kv in {path} must be a table: write [kv] and below it enabled = true or the like.")
    values = tree | {f"kv.{name}": value for name, value in kv.items()}
    for key in values:
        if key not in (*_KEYS, "engines"):
            raise ConfigError(f"{path} has the unknown key {key!r}: {_way_out(key)}.")
    return values


def _engines(tables: Any, path: Path, environ: Mapping[str, str]) -> dict[str, RemoteProfile]:
    if tables is None:
        return {}
    from chatapp import profiles

    if not isinstance(tables, dict):
        raise ConfigError(f"engines in {path} must be tables: write [engines.NAME] and below it base_url = ...")
    found = {}
    for name, table in tables.items():
        try:
            found[name] = profiles.parse(name, table, environ, path.parent)
        except profiles.ProfileError as error:
            raise ConfigError(f"engines.{name} in {path} {error}.") from error
    return found


def _check_engine(settings: Settings) -> None:
    """Raise `ConfigError` for an engine that there is not."""
    name = settings.engine.partition("/")[0]
    if name != "llama" and not name.startswith("fake") and name not in settings.engines:
        known = ", ".join(("llama", *settings.engines))
        raise ConfigError(f"There is no engine {name!r}: the engines are {known}; `chatapp engines add` adds a server.")


def _way_out(key: str) -> str:
    """What somebody who wrote `key` may have meant."""
    import difflib

    near = difflib.get_close_matches(key, (*_KEYS, "kv"), n=1)
    return f"perhaps {near[0]!r} is meant" if near else f"the keys are {', '.join(_KEYS)}"
