"""`chatapp bench`: each command runs, and prints what docs/performance.md says."""

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from chatapp.cli_bench import bench
from tests.models.helpers import starter

PAGE = (Path(__file__).parents[2] / "docs" / "performance.md").read_text(encoding="utf-8")
ENGINE = ("--threads", "1", "--flash-attention", "off", "--ctx", "1024")
SIZES: dict[str, tuple[str, ...]] = {
    "resume": ("--tokens", "64", "--repeats", "1", *ENGINE),
    "decode": ("--depth", "64", "--tokens", "16", "--repeats", "1", *ENGINE),
    "prefill": ("--depth", "64", "--tokens", "32", "--repeats", "1", *ENGINE),
    "batch": ("--rows", "3", "--tokens", "16", "--system-tokens", "64", "--parallel", "2", *ENGINE),
    "typeahead": ("--tokens", "64", "--repeats", "1", *ENGINE),
    "ui": ("--tokens", "32", "--turns", "2", "--watch", "0.2"),
    "startup": ("--tokens", "32", "--repeats", "1", *ENGINE),
}


def documented(command: str) -> set[str]:
    """Return the keys that the page explains for a command."""
    section = PAGE.partition(f"### `chatapp bench {command}`\n")[2].partition("\n#")[0]
    cells = [line.split("|")[1] for line in section.splitlines() if line.startswith("| `")]
    return {key for cell in cells for key in re.findall(r"`([a-z0-9_]+)`", cell)}


def measured(command: str) -> dict[str, Any]:
    """Run a command with sizes that say nothing about speed."""
    if command != "ui":
        starter()
    ran = subprocess.run(
        [sys.executable, "-m", "chatapp", "bench", command, *SIZES[command], "--json"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    figures: dict[str, Any] = json.loads(ran.stdout)
    return figures


def test_every_command_has_its_keys_on_the_page() -> None:
    """No command is left out, and none is explained that there is not."""
    assert sorted(bench.commands) == sorted(SIZES)
    assert sorted(re.findall(r"^### `chatapp bench (\w+)`$", PAGE, re.MULTILINE)) == sorted(SIZES)


@pytest.mark.parametrize("command", SIZES)
def test_ratios_are_called_ratios(command: str) -> None:
    """What compares two sides says so with the end of its name, and every command compares something."""
    keys = documented(command)
    assert any(key.endswith("_ratio") for key in keys)
    assert [key for key in keys if "ratio" in key and not key.endswith("_ratio")] == []
    assert any(key.endswith("foreign_load") for key in keys)


def test_resume_restores_what_was_said() -> None:
    """Its keys are those on the page, and the restored conversation goes on with the live one's tokens."""
    figures = measured("resume")
    assert set(figures) == documented("resume")
    assert figures["equal_tokens"] is True
    assert figures["restored_evaluated_tokens"] <= figures["message_and_glue_tokens"]


def test_decode_measures_both_sides() -> None:
    """Its keys are those on the page, and the deep prompt is the longer one."""
    figures = measured("decode")
    assert set(figures) == documented("decode")
    assert figures["deep_depth_tokens"] > figures["shallow_depth_tokens"]
    assert all(value > 0 for key, value in figures.items() if key.endswith("_ratio"))


def test_prefill_evaluates_the_tokens_it_was_asked_for() -> None:
    """Its keys are those on the page, and glue and text together have the wanted length."""
    figures = measured("prefill")
    assert set(figures) == documented("prefill")
    assert (figures["shallow_evaluated_tokens"], figures["deep_evaluated_tokens"]) == (32, 32)


def test_batch_evaluates_the_shared_prefix_once() -> None:
    """Its keys are those on the page; counted, one after the other and at once."""
    figures = measured("batch")
    assert set(figures) == documented("batch")
    assert (figures["sequential_shared_evaluated_ratio"], figures["parallel_shared_evaluated_ratio"]) == (1, 1)


def test_typeahead_leaves_little_to_evaluate() -> None:
    """Its keys are those on the page; what was read ahead is not evaluated at send."""
    figures = measured("typeahead")
    assert set(figures) == documented("typeahead")
    if figures["read_whole"]:  # it may not be, on a machine with other work
        assert figures["ahead_evaluated_tokens"] < figures["plain_evaluated_tokens"]
        assert figures["evaluated_to_allowed_ratio"] <= 1


def test_ui_measures_every_kind_of_answer() -> None:
    """Its keys are those on the page."""
    assert set(measured("ui")) == documented("ui")


def test_startup_starts_both_sides() -> None:
    """Its keys are those on the page, and an import takes time."""
    figures = measured("startup")
    assert set(figures) == documented("startup")
    assert figures["engine_ready_ratio"] > 0
    assert figures["first_key_s"] > figures["bare_python_s"]


def test_a_server_is_not_measured() -> None:
    """What runs elsewhere says nothing about this machine: one sentence, exit code 1."""
    ran = subprocess.run(
        [sys.executable, "-m", "chatapp", "bench", "startup", "--engine", "fake", "--json"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 1
    assert ran.stderr.strip() == "Error: This starts the engine of this machine: name --engine llama."
