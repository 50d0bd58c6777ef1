"""What is sent: the same beginning in the same bytes, reasoning where it is of use, each server's own names."""

import json
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from models.engine import Entry, Prompt, Role, Sampling
from models.remote_probe import Facts, Kind
from models.remote_profile import RemoteProfile, identity, is_name, place_of, read_place
from models.remote_request import body_of, messages, refusal

KINDS: tuple[Kind, ...] = ("llama-server", "vllm", "sglang", "generic")
ROLES: tuple[Role, ...] = ("user", "assistant")
TEXTS = st.text(max_size=20) | st.just("<think>\nhm\n</think>\n\nyes")
THOUGHT = Entry("assistant", "<think>\nhm\n</think>\n\nyes")


@given(texts=st.lists(TEXTS, min_size=3, max_size=9), kind=st.sampled_from(KINDS))
def test_a_longer_prompt_begins_with_the_shorter_one(texts: list[str], kind: Kind) -> None:
    """Byte for byte, so that the server finds the prefix in its cache."""
    entries = [Entry("system", "Be brief.")]
    entries += [Entry(ROLES[n % 2], text) for n, text in enumerate(texts)]
    ends = [n + 1 for n, entry in enumerate(entries) if entry.role == "user"]
    sent = [json.dumps(messages(Prompt(tuple(entries[:end])), kind)) for end in ends]
    assert all(longer.startswith(shorter[:-1]) for shorter, longer in pairwise(sent))
    assert all(json.loads(one)[0] == {"role": "system", "content": "Be brief."} for one in sent)


@pytest.mark.parametrize("kind", KINDS)
def test_reasoning_of_earlier_answers(kind: Kind) -> None:
    """In a field of its own for servers whose templates know it; others get the answer alone."""
    sent = messages(Prompt((Entry("user", "?"), THOUGHT, Entry("user", "!"))), kind)[1]
    assert sent["content"] == "yes"
    assert sent.get("reasoning_content") == (None if kind == "generic" else "hm")


def test_an_answer_that_goes_on_is_sent_as_it_is() -> None:
    """It has to be the beginning of what comes."""
    assert messages(Prompt((Entry("user", "?"), THOUGHT)), "vllm")[1] == {"role": "assistant", "content": THOUGHT.text}


def test_names_of_sampling() -> None:
    """Each server gets its own; 0 of the likeliest means all of them."""
    sampling = Sampling(top_k=0, repeat_penalty=1.2, seed=3)
    prompt = Prompt((Entry("user", "?"),))
    llama = body_of(prompt, sampling, Facts("llama-server", "m", slot=2), name="box")
    vllm = body_of(prompt, sampling, Facts("vllm", "m"), name="box")
    assert (llama["top_k"], llama["repeat_penalty"], llama["id_slot"]) == (0, 1.2, 2)
    assert (vllm["top_k"], vllm["repetition_penalty"], "repeat_penalty" in vllm) == (-1, 1.2, False)
    assert llama["seed"] == vllm["seed"] == 3


def test_fields_that_are_left_out() -> None:
    """What a server refuses is not sent; only what the user chose is worth telling."""
    prompt = replace(Prompt((Entry("user", "?"),)), may_reason=False)
    without = {"stream_options", "chat_template_kwargs", "seed"}
    body = body_of(prompt, Sampling(seed=1), Facts("vllm", "m"), without=without, name="box")
    assert not without & body.keys()
    assert refusal("box", without, body) == "box refuses seed: the answer was made without"
    assert refusal("box", {"stream_options"}, body) is None


@pytest.mark.parametrize(
    ("name", "model"), [("box", "m"), ("box", "Qwen/Qwen3-8B"), ("a.b", "/models/x.gguf"), ("c", "a//b/./%2F ü")]
)
def test_places(name: str, model: str) -> None:
    """A place names server and model, also where models have slashes; a file is no place."""
    assert read_place(place_of(name, model)) == (name, model)
    assert read_place(place_of(name, "")) == (name, None)
    assert read_place(Path("/home/me/engine.gguf")) is None
    assert read_place(None) is None
    assert identity(name, model) != identity(name + model[0], model[1:])


def test_addresses() -> None:
    """Without a path, the usual one is meant; what is not part of the interface lies beside it."""
    plain, deep = RemoteProfile("a", "http://h:1/"), RemoteProfile("a", "https://h/api/v1/")
    assert (plain.api, plain.root) == ("http://h:1/v1", "http://h:1")
    assert (deep.api, deep.root, deep.host) == ("https://h/api/v1", "https://h/api", "h")
    assert is_name("box-1")
