"""What every side-by-side measurement is given: both programs, the model, and the settings of both sides."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from chatapp.config import Settings


@dataclass(frozen=True, slots=True)
class Beside:
    """One run: the folder with llama-server and llama-bench, the model, a temporary folder, and our settings.

    The settings name flash attention, threads and context, so that both sides have the same.
    """

    peers: Path
    model: Path
    folder: Path
    settings: Settings

    @property
    def server(self) -> Path:
        """llama-server."""
        return self.peers / "llama-server"

    @property
    def bench(self) -> Path:
        """llama-bench."""
        return self.peers / "llama-bench"

    @property
    def server_flags(self) -> tuple[str, ...]:
        """What llama-server is told so that it computes with our settings."""
        settings = self.settings
        flags = ("--ctx-size", str(settings.n_ctx), "--threads", str(settings.threads))
        return (*flags, "--flash-attn", settings.flash_attention)

    @property
    def bench_flags(self) -> tuple[str, ...]:
        """The same for llama-bench."""
        is_on = self.settings.flash_attention == "on"
        return ("-t", str(self.settings.threads), "-fa", "on" if is_on else "off")
