"""The binding's C functions, without the rest of its package.

That rest is a front end of its own: it takes several times as long to import, and brings numpy, jinja2 and a cache that
pickles into the process. The only module that imports llama_cpp.
"""

from __future__ import annotations

import importlib.util
import sys
import types


def _leave_out_the_package() -> None:
    """Let submodules be imported without running the package's own `__init__`; nothing where that has run."""
    spec = importlib.util.find_spec("llama_cpp")
    if "llama_cpp" in sys.modules or spec is None or spec.submodule_search_locations is None:
        return
    package = types.ModuleType("llama_cpp")
    package.__path__ = list(spec.submodule_search_locations)
    package.__spec__ = spec
    sys.modules["llama_cpp"] = package


_leave_out_the_package()

from llama_cpp import llama_cpp as lib  # noqa: E402 - not before the package is left out

__all__ = ["lib"]
