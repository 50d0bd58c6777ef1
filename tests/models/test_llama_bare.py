import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import models
from models.engine import Sampling
from models.llama import Context, ContextSettings, Model, Sampler
from tests.models.helpers import starter

PROGRAM = Path(models.__file__).with_name("llama") / "bare.py"
LOAD = {"op": "load", "gpu_layers": 0, "n_ctx": 256, "threads": 1, "flash_attention": False, "kv_type": "f16"}
IDS = [1, 4093, 198, 504, 4093, 198]


def answers(*requests: dict[str, Any]) -> list[dict[str, Any]]:
    """Return what the program answers to requests behind a load."""
    lines = [json.dumps(request) for request in ({**LOAD, "model": str(starter())}, *requests)]
    ran = subprocess.run(
        [sys.executable, "-P", str(PROGRAM)], input="\n".join(lines) + "\n", capture_output=True, text=True, check=True
    )
    return [json.loads(line) for line in ran.stdout.splitlines()]


def test_it_decodes_what_the_engine_decodes(model: Model) -> None:
    """The same tokens behind the same prompt, so that the same work is measured; and again from the same place."""
    context = Context(model, ContextSettings(256, flash_attention=False, threads=1))
    sampler = Sampler(model, Sampling(temperature=0), 0)
    context.prefill(IDS, lambda _done: None)
    expected = []
    for _ in range(8):
        expected.append(context.sample(sampler))
        context.decode(expected[-1])
    sampler.close()
    context.close()
    whole = {"op": "prefill", "ids": IDS, "keep": 0}
    again = {"op": "prefill", "ids": IDS, "keep": len(IDS) - 1}
    decode = {"op": "decode", "n": 8}
    loaded, _, first, _, second = answers(whole, decode, again, decode)
    assert loaded["load_s"] > 0
    assert first["ids"] == expected
    assert second["ids"] == expected
    assert first["tpot_s"] > 0


def test_steps_leave_nothing_behind() -> None:
    """What is measured without sampling changes no answer."""
    whole = {"op": "prefill", "ids": IDS, "keep": 0}
    again = {"op": "prefill", "ids": IDS, "keep": len(IDS) - 1}
    steps, decode = {"op": "steps", "n": 3, "width": 2}, {"op": "decode", "n": 4}
    *_, first = answers(whole, decode)
    _, _, measured, _, second = answers(whole, steps, again, decode)
    assert measured["step_s"] > 0
    assert second["ids"] == first["ids"]


def test_tokens_that_are_not_there_are_not_built_upon() -> None:
    """A request that claims more than is resident ends the program instead of measuring something else."""
    ran = subprocess.run(
        [sys.executable, "-P", str(PROGRAM)],
        input="\n".join(
            [json.dumps({**LOAD, "model": str(starter())}), json.dumps({"op": "prefill", "ids": IDS, "keep": 3})]
        ),
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode != 0
    assert "what is kept is not resident" in ran.stderr
