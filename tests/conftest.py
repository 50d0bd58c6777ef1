import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# How long a case takes on a busy machine says nothing of whether it is right.
settings.register_profile("any machine", parent=settings(), deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any machine")

MUTANTS_A_RUN = 200_000
"""Damaged files that one run of the test of the container's reader makes."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """How long to look for a damaged file that is accepted: `--mutants 10000000` takes minutes."""
    parser.addoption(
        "--mutants", type=int, default=MUTANTS_A_RUN, metavar="N", help="damaged KV files to try, rounded up to 200,000"
    )
    parser.addoption(
        "--model-mutants", type=int, default=24, metavar="N", help="damaged KV folders that the real model answers from"
    )
    parser.addoption(
        "--every-code-point", action="store_true", help="all 1,114,112 through each kind of widget, a minute or two"
    )
    parser.addoption(
        "--kv-kills", type=int, default=6, metavar="N", help="programs killed while they share a KV folder"
    )
    parser.addoption("--llama-server", type=Path, metavar="PATH", help="ask this server, not the one of xllamacpp")
    parser.addoption("--vllm", metavar="URL|FOLDER", help="ask this vLLM: an address, or what tools.vllm_server made")
    parser.addoption("--batch-kills", type=int, default=6, metavar="N", help="kills of a batch before it may end")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """A run of the reader's test, with a seed of its own, for each 200,000 of them."""
    if "mutant_seed" in metafunc.fixturenames:
        n_runs = -(-int(metafunc.config.getoption("--mutants")) // MUTANTS_A_RUN)
        metafunc.parametrize("mutant_seed", range(20, 20 + n_runs))


@pytest.fixture(autouse=True, scope="session")
def _plain_settings() -> Iterator[None]:
    """The developer's own settings mean nothing to the tests, nor to the programs they start.

    Drafts are judged only where a test says so: the judge takes a second to start.
    """
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("CHATAPP_CONFIG", os.devnull)
        patched.setenv("CHATAPP_POLICY", "off")
        patched.setenv("CHATAPP_LANGUAGE", "en")
        yield


@pytest.fixture(autouse=True, scope="session")
def _signals_as_usual() -> None:
    """What tests start hears of a closed terminal, also where they run behind `nohup`."""
    if hasattr(signal, "SIGHUP"):
        signal.signal(signal.SIGHUP, signal.SIG_DFL)
