import sys
from pathlib import Path

import pytest

from chatapp.config import Settings
from models.errors import EngineError

if sys.platform == "win32":
    pytest.skip("a pseudo-terminal", allow_module_level=True)

from chatapp.benches import firstkey


def test_a_window_that_ends_at_once_is_an_error_of_ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In one sentence, as one that takes no key."""
    monkeypatch.setattr(firstkey, "_ENV", (*firstkey._ENV, "CHATAPP_CTX=junk"))
    settings = Settings(data_dir=tmp_path, cache_dir=tmp_path, model=tmp_path / "none.gguf")
    with pytest.raises(EngineError, match="never took a key"):
        firstkey.first_key_s(settings)
