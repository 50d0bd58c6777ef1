"""Writes a GGUF model as vLLM reads models: `python vllm_model.py GGUF FOLDER`, in the environment that has vLLM."""

from __future__ import annotations

import sys
from pathlib import Path

import torch
import transformers


def convert(gguf: Path, folder: Path) -> None:
    """Write weights, unpacked to 16 bits, and tokenizer with the chat template."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
    model = transformers.AutoModelForCausalLM.from_pretrained(
        gguf.parent,
        gguf_file=gguf.name,
        dtype=torch.bfloat16,
        quantization_config=transformers.GgufConfig(dequantize=True),
    )
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


if __name__ == "__main__":
    convert(Path(sys.argv[1]), Path(sys.argv[2]))
