"""The page that the side-by-side run writes: its rows, what was missed, and its place on the page."""

import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks import llama_bench
from benchmarks.llama_server import serving
from benchmarks.report import BEGIN, END, PAGE, PARTS, between_markers, page_text, processor
from benchmarks.rows import ROWS, Row
from models.errors import EngineError

MACHINE = {"processor": "X1", "extensions": "avx2", "cores": 2, "build": "b", "flags": "-DX=ON"}
ABOUT = {**MACHINE, "threads": 2, "flash_attention": "off", "chosen": "chose", "minutes": 12.6}


class Ones(dict[str, Any]):
    """Figures of which every one is 1, but for words."""

    def __missing__(self, key: str) -> Any:
        """Return the figure."""
        return "--flash-attn on" if key == "peer_best_flags" else "on" if key.endswith("_flash_attention") else 1.0


class TestRows:
    """benchmarks.rows."""

    def test_every_part_has_rows(self) -> None:
        """What is measured is shown."""
        assert set(ROWS) == set(PARTS)
        assert all(rows_of(Ones(), "off") for rows_of in ROWS.values())

    @pytest.mark.parametrize(
        ("row", "wanted", "is_met"),
        [
            (Row("x", "", ratio=0.96, least=0.97), "≥ 0.97", False),
            (Row("x", "", ratio=0.97, least=0.97), "≥ 0.97", True),
            (Row("x", "", ratio=0.36, most=0.35), "≤ 0.35", False),
            (Row("x", "", ratio=9, value=0.5, most=1, unit=" s"), "≤ 1 s", True),
            (Row("x", "", most=1), "≤ 1", False),
            (Row("x", ""), None, True),
        ],
    )
    def test_a_limit_is_of_the_value_or_the_ratio(self, row: Row, wanted: str | None, is_met: bool) -> None:
        """A figure that could not be had does not meet a limit."""
        assert (row.wanted, row.is_met) == (wanted, is_met)


class TestPage:
    """The text between the markers."""

    def test_losses_are_said(self) -> None:
        """A ratio below what was wanted is marked; machine, flags and modes are named."""
        found = Ones({"deep_greedy_ratio": 0.5, "depth_tokens": 4096, "foreign_load": 0.25})
        text = page_text({"machine": ABOUT, "speed": found})
        (line,) = [line for line in text.splitlines() if "(missed)" in line]
        assert (
            line
            == "| decode, greedy, depth 4,096 | 1.0 t/s | llama-bench | 1.0 t/s | 0.50 | ≥ 0.97 (missed) | off / off |"
        )
        assert text.startswith(
            "X1, 2 cores (avx2); b, both sides compiled with `-DX=ON`; starter model; both with 2 threads"
        )
        assert "at most: speed 25%." in text

    def test_all_rows_have_all_cells(self) -> None:
        """The table is one."""
        text = page_text({"machine": ABOUT, **{part: Ones({"foreign_load": 0.0}) for part in PARTS}})
        table = [line for line in text.splitlines() if line.startswith("|")]
        assert {line.count(" |") for line in table[2:]} == {table[0].count(" |")}

    def test_the_rest_of_the_page_stays(self) -> None:
        """Only what is between the markers changes, and a second time too."""
        page = f"before\n{BEGIN}\nold\n{END}\nafter\n"
        once = between_markers(page, "new")
        assert once == f"before\n{BEGIN}\n\nnew\n\n{END}\nafter\n"
        assert between_markers(once, "newer") == once.replace("new", "newer")

    def test_the_page_has_its_markers(self) -> None:
        """docs/performance.md can be written."""
        assert "\n\nnew\n\n" in between_markers(PAGE.read_text(encoding="utf-8"), "new")


class TestProcessor:
    """report.processor."""

    def test_it_is_named_by_what_matters(self, tmp_path: Path) -> None:
        """Name, family, model and the vector extensions of the first processor."""
        path = tmp_path / "cpuinfo"
        first = "processor\t: 0\ncpu family\t: 25\nmodel\t\t: 1\nmodel name\t: A CPU\nflags\t\t: fpu avx2 avx512f\n"
        path.write_text(f"{first}\nprocessor\t: 1\n")
        assert processor(path) == {"processor": "A CPU family 25 model 1", "extensions": "avx2 avx512f"}

    def test_a_system_that_does_not_tell_is_unknown(self, tmp_path: Path) -> None:
        """There is no such file on other systems."""
        assert processor(tmp_path / "none")["processor"] == "unknown"


@pytest.mark.skipif(sys.platform == "win32", reason="makes executables by their mode")
class TestPrograms:
    """The peers' programs."""

    def test_tests_of_llama_bench_are_read(self, tmp_path: Path) -> None:
        """Modes are named, samples kept apart."""
        test = '{"n_prompt":0,"n_gen":64,"n_depth":4096,"samples_ts":[1.5,2.5],"flash_attn":-1,"n_threads":2}'
        program = _program(tmp_path / "bench", f"echo '[{test}]'")
        (cell,) = llama_bench.run(program, tmp_path / "m.gguf", [])
        assert cell == llama_bench.Cell(0, 64, 4096, (1.5, 2.5), "auto", 2)

    def test_a_program_that_fails_says_why(self, tmp_path: Path) -> None:
        """Its own words are in the error."""
        program = _program(tmp_path / "bench", "echo no such model >&2; exit 1")
        with pytest.raises(EngineError, match="no such model"):
            llama_bench.run(program, tmp_path / "m.gguf", [])
        with (
            pytest.raises(EngineError, match="no such model"),
            serving(program, tmp_path / "m.gguf", [], tmp_path / "log"),
        ):
            pass


def _program(path: Path, script: str) -> Path:
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return path
