"""The peers' build: its flags, where it is kept, when it is made, what is said when it cannot be."""

import io
import shlex
import sys
from pathlib import Path

import pytest

from tools import llama_peers, native
from tools.native import Build, Machine
from tools.wheels import BuildError

MACHINE = Machine(platform="Linux-x86_64", compiler="c0ffee", has_fp16_vectors=True)
BUILD = Build("1.0", "-DX=ON '-DCMAKE_C_FLAGS=-O2 -g'", "1.0-key")


class TestPlan:
    """llama_peers.plan and configure_command."""

    def test_the_wheels_flags_are_all_there(self) -> None:
        """The programs are compiled with everything the wheel is compiled with, the user's own flags last."""
        wheel = shlex.split(native.plan("1.0", MACHINE, "-DGGML_CUDA=on", {"CFLAGS": "-g"}).cmake_args)
        peers = shlex.split(llama_peers.plan("1.0", MACHINE, "-DGGML_CUDA=on", {"CFLAGS": "-g"}).cmake_args)
        assert [flag for flag in peers if flag in wheel] == wheel
        assert peers[-1] == "-DGGML_CUDA=on"

    def test_other_flags_are_another_build(self) -> None:
        """A build is not taken for one with other flags or of another version."""
        keys = {
            llama_peers.plan(version, MACHINE, args, {}).key for version in ("1.0", "1.1") for args in ("", "-DX=1")
        }
        assert len(keys) == 4

    def test_flags_reach_cmake_as_words(self) -> None:
        """A flag with a space in it stays one argument."""
        command = llama_peers.configure_command(Path("source"), Path("build"), BUILD)
        assert command == ["cmake", "-S", "source", "-B", "build", "-DX=ON", "-DCMAKE_C_FLAGS=-O2 -g"]


class TestTools:
    """llama_peers.missing_tools."""

    @pytest.mark.skipif(sys.platform == "win32", reason="makes executables by their mode")
    def test_what_the_system_has_is_used(self, tmp_path: Path) -> None:
        """Only what is not on the path is missing."""
        _make_executable(tmp_path / "ninja", "exit 0")
        assert llama_peers.missing_tools(str(tmp_path)) == ["cmake"]


class TestObtain:
    """llama_peers.obtain."""

    def test_it_is_kept_beside_the_wheels(self, tmp_path: Path) -> None:
        """The wheels' folder is cleaned by its own rules, so the server has another."""
        path = llama_peers.peers_path(tmp_path / "wheels", BUILD)
        assert path == tmp_path / "llama-peers" / "1.0-key"

    def test_a_build_that_is_there_is_not_made_again(self, tmp_path: Path) -> None:
        """A second call answers at once and says nothing."""
        path = llama_peers.peers_path(tmp_path / "wheels", BUILD)
        path.mkdir(parents=True)
        out = io.StringIO()
        assert llama_peers.obtain(tmp_path / "wheels", BUILD, {}, out) == path
        assert out.getvalue() == ""

    @pytest.mark.skipif(sys.platform == "win32", reason="makes executables by their mode")
    def test_a_failed_download_names_the_log(self, tmp_path: Path) -> None:
        """The message is one sentence with the log's path, the log holds pip's words, and nothing is left."""
        for name in ("cmake", "ninja"):
            _make_executable(tmp_path / name, "exit 0")
        env = {"PATH": str(tmp_path), "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": "", "PIP_CONFIG_FILE": "/dev/null"}
        with pytest.raises(BuildError, match="could not be downloaded") as failure:
            llama_peers.obtain(tmp_path / "wheels", BUILD, env, io.StringIO())
        log = tmp_path / "llama-peers" / "1.0-key.log"
        assert str(failure.value).endswith(str(log))
        assert "llama-cpp-python==1.0" in log.read_text()
        assert not llama_peers.peers_path(tmp_path / "wheels", BUILD).exists()


def _make_executable(path: Path, script: str) -> None:
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
