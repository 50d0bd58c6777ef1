"""Which flags llama.cpp is compiled with on this machine, and the key such a build is kept under."""

from __future__ import annotations

import hashlib
import json
import platform
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass

_BUILD_VARIABLES = ("CXXFLAGS", "LDFLAGS", "CMAKE_GENERATOR", "CUDACXX", "SKBUILD_CMAKE_ARGS")
"""Variables, beside CMAKE_ARGS and CFLAGS, that change what a build produces."""


@dataclass(frozen=True, slots=True)
class Machine:
    """What a native build depends on besides its flags."""

    platform: str
    """Operating system, architecture and C library."""
    compiler: str
    """Hash of all macros the C and C++ compilers predefine for this CPU: version and instruction set."""
    has_fp16_vectors: bool
    """The compiler, told to use all of this CPU, uses AVX512-FP16."""


@dataclass(frozen=True, slots=True)
class Build:
    """One way to compile one version of llama-cpp-python."""

    version: str
    cmake_args: str
    """As in the variable CMAKE_ARGS: words quoted for a shell."""
    key: str
    """Equal for two builds exactly when their results are interchangeable; a valid folder name."""


def probe(env: Mapping[str, str]) -> Machine | None:
    """Describe this machine, or return None when it has no C or no C++ compiler."""
    where = "-".join((platform.system(), platform.machine(), *platform.libc_ver())).strip("-")
    if sys.platform == "win32":
        # CMake looks for Visual Studio itself; it is rarely on the PATH.
        return Machine(where, _digest(env.get("PROCESSOR_IDENTIFIER", "")), has_fp16_vectors=False)
    c = _first_found(env.get("CC"), "cc", "gcc", "clang")
    cxx = _first_found(env.get("CXX"), "c++", "g++", "clang++")
    c_macros = native_macros(c, "c") if c else None
    cxx_macros = native_macros(cxx, "c++") if cxx else None
    if c_macros is None or cxx_macros is None:
        return None
    return Machine(where, _digest(c_macros, cxx_macros), has_fp16_vectors=uses_fp16_vectors(c_macros))


def native_macros(compiler: list[str], language: str) -> str | None:
    """Return the macros `compiler` predefines for this CPU, or None when it does not run.

    They are asked for instead of /proc/cpuinfo because they hold what the generated code really depends on,
    on every platform, and do not change with the kernel or a distribution's rebuild of the compiler.
    """
    for cpu in (["-march=native"], ["-mcpu=native"], []):  # some ARM compilers know only the second, or none
        command = [*compiler, *cpu, "-dM", "-E", "-x", language, "-"]
        try:
            done = subprocess.run(command, input="", capture_output=True, text=True, timeout=60, check=False)
        except (OSError, subprocess.TimeoutExpired):
            return None
        if done.returncode == 0:
            return "\n".join(sorted(done.stdout.splitlines()))
    return None


def uses_fp16_vectors(macros: str) -> bool:
    """Return True when the compiler knows AVX512-FP16 and this CPU has it."""
    return "#define __AVX512FP16__ 1" in macros.splitlines()


def plan(version: str, machine: Machine, user_args: str, env: Mapping[str, str]) -> Build:
    """Choose the flags for `machine`; `user_args` come last, so they win."""
    chosen = ["-DGGML_NATIVE=ON", "-DLLAMA_BUILD_TESTS=OFF"]
    if machine.has_fp16_vectors:
        # Half-precision arithmetic makes flash attention 2.8 times slower at 4,000 tokens on such CPUs.
        chosen += [_without_fp16("C", env.get("CFLAGS", "")), _without_fp16("CXX", env.get("CXXFLAGS", ""))]
    args = " ".join([*map(shlex.quote, chosen), *([user_args.strip()] if user_args.strip() else [])])
    variables = {name: env[name] for name in ("CFLAGS", *_BUILD_VARIABLES) if env.get(name)}
    facts = [version, args, machine.platform, machine.compiler, variables]
    return Build(version, args, f"{version}-{_digest(json.dumps(facts, sort_keys=True))[:20]}")


def _without_fp16(language: str, users_flags: str) -> str:
    # Setting CMAKE_C_FLAGS makes CMake ignore CFLAGS, so the user's have to be repeated here.
    return f"-DCMAKE_{language}_FLAGS={f'{users_flags} -mno-avx512fp16'.strip()}"


def _first_found(chosen: str | None, *names: str) -> list[str] | None:
    """Return the user's compiler (maybe several words, `ccache gcc`), else the first that exists."""
    if chosen:
        return shlex.split(chosen)
    return next(([name] for name in names if shutil.which(name)), None)


def _digest(*texts: str) -> str:
    return hashlib.sha256("\0".join(texts).encode()).hexdigest()
