"""llama.cpp through its low-level API: load, tokenize, evaluate, sample, export and import KV rows.

The only package that imports llama_cpp. Plain synchronous code for the engine process; every foreign failure
becomes an error of ours here.
"""

from models.llama.backend import BUILD, can_offload, quiet_logs, rotates_kv
from models.llama.branches import PREFIX, Branches, Part
from models.llama.context import N_BATCH, Context, ContextSettings
from models.llama.grammar import Grammar
from models.llama.model import KvType, MemoryKind, Model
from models.llama.sampler import Sampler

__all__ = [
    "BUILD",
    "N_BATCH",
    "PREFIX",
    "Branches",
    "Context",
    "ContextSettings",
    "Grammar",
    "KvType",
    "MemoryKind",
    "Model",
    "Part",
    "Sampler",
    "can_offload",
    "quiet_logs",
    "rotates_kv",
]
