from collections.abc import Iterator
from pathlib import Path

import pytest

from models.llama import Model, quiet_logs
from tests.models.helpers import starter


@pytest.fixture(scope="session")
def native_log() -> Iterator[list[str]]:
    """What the native library says, kept out of the tests' output."""
    lines: list[str] = []
    kept = quiet_logs(lines.append)
    yield lines
    del kept


@pytest.fixture(scope="session")
def model(native_log: list[str]) -> Model:
    """The starter model's weights, loaded once."""
    assert native_log is not None
    return Model(starter(), gpu_layers=0, progress=lambda _share: None)


@pytest.fixture(scope="session")
def warm_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the hash of the weights and the template's glue are kept for all tests."""
    return tmp_path_factory.mktemp("warm")
