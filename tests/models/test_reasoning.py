import time
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from models.reasoning import (
    FAMILIES,
    Kind,
    Part,
    Splitter,
    answer_of,
    block_of,
    family_in,
    family_named,
    parts,
    reasoning_of,
    start_in,
)

ANALYSIS = "<|channel|>analysis<|message|>"
COMMENTARY = "<|end|><|start|>assistant<|channel|>commentary to=x <|constrain|>json<|message|>"
FINAL = "<|end|><|start|>assistant<|channel|>final<|message|>"
PAIRS = [
    ("<think>", "</think>"),
    ("[THINK]", "[/THINK]"),
    ("<|START_THINKING|>", "<|END_THINKING|>"),
    ("<seed:think>", "</seed:think>"),
    ("<reasoning>", "</reasoning>"),
    (ANALYSIS, FINAL),
]
FRAGMENTS = (
    *(mark for family in FAMILIES for mark in family.marks),
    *(
        "<|start|>assistant",
        "analysis",
        "commentary",
        "final",
        "<",
        "</",
        "|",
        "think>",
        "[",
        " ",
        "\n",
        "\r\n",
        "x",
        "é",
    ),
)
TEXTS = st.lists(st.sampled_from(FRAGMENTS), max_size=14).map("".join) | st.text(max_size=8)


def reasoning(text: str, *, is_open: bool = False) -> Part:
    """A part of reasoning."""
    return Part("reasoning", text, is_open)


def answer(text: str) -> Part:
    """A part that is the answer."""
    return Part("answer", text, is_open=False)


@pytest.mark.parametrize(("opening", "closing"), PAIRS)
def test_a_block_at_the_beginning_is_reasoning(opening: str, closing: str) -> None:
    """White space may stand before it; marks and blank lines are in neither part."""
    for text in (f"{opening}\nso\n{closing}\n\n  \n  yes", f" \n{opening}so\n{closing}  yes"):
        assert parts(text) == (reasoning("so\n"), answer("  yes"))
        assert (reasoning_of(text), answer_of(text)) == ("so", "  yes")


@pytest.mark.parametrize(("opening", "closing"), PAIRS)
def test_a_block_anywhere_else_is_text(opening: str, closing: str) -> None:
    """Code that mentions a mark is not folded, nor is what only ends a block."""
    for text in (f"Use {opening}so{closing}.", f"so{closing}yes", f"`{opening}`"):
        assert parts(text) == (answer(text),)
        assert (reasoning_of(text), answer_of(text)) == ("", text)


@pytest.mark.parametrize(("opening", "closing"), PAIRS)
def test_a_block_that_does_not_end_is_open(opening: str, closing: str) -> None:
    """Also with nothing in it yet; there is no answer then."""
    assert parts(opening) == (reasoning("", is_open=True),)
    assert parts(f"{opening}so") == (reasoning("so", is_open=True),)
    assert parts(f"{opening}so{closing[:-1]}")[-1].kind == "reasoning"
    assert answer_of(f"{opening}so\n\nand so on") == ""


def test_channels_are_reasoning_up_to_the_final_one() -> None:
    """Analysis and commentary are told apart by a blank line; an answer without them has none."""
    assert parts(f"{ANALYSIS}one{COMMENTARY}two{FINAL}yes") == (reasoning("one\n\ntwo"), answer("yes"))
    assert parts("<|channel|>final<|message|>yes") == (answer("yes"),)
    assert parts(f"{ANALYSIS}one<|end|>yes") == (reasoning("one"), answer("yes"))
    assert parts("<|channel|>other<|message|>yes") == (answer("<|channel|>other<|message|>yes"),)
    assert parts("<|channel|>ana") == (reasoning("", is_open=True),)
    assert parts(f"{ANALYSIS}one<|end|><|start|>assi") == (reasoning("one"),)


def test_an_empty_block_is_no_part() -> None:
    """What a model writes that was told not to think."""
    assert parts("<think>\n\n</think>\n\nyes") == (answer("yes"),)
    assert parts("") == ()


@pytest.mark.parametrize(
    ("text", "ends", "is_reasoning", "is_open"),
    [
        ("yes", (0, 0), False, False),
        (" <think>so</think>\n\n yes", (18, 20), True, False),
        ("<think>so</think>\n", (17, 18), True, False),
        ("<think>so", (9, 9), True, True),
        ("<|channel|>final<|message|>yes", (27, 27), False, False),
        (f"{ANALYSIS}a{FINAL}yes", (len(f"{ANALYSIS}a{FINAL}"),) * 2, True, False),
    ],
)
def test_where_a_block_lies(text: str, ends: tuple[int, int], is_reasoning: bool, is_open: bool) -> None:
    """Up to the end of its mark; the answer begins behind the blank lines."""
    block = block_of(text)
    assert (block.end, block.answer_start) == ends
    assert (block.is_reasoning, block.is_open) == (is_reasoning, is_open)


@given(TEXTS, st.lists(st.integers(0, 200)))
def test_it_does_not_matter_how_a_text_is_cut(text: str, cuts: list[int]) -> None:
    """A splitter says of pieces what `parts` says of the whole; nothing it has said is taken back."""
    splitter = Splitter()
    said: list[tuple[Kind, str]] = []
    for begin, end in pairwise(sorted({0, len(text), *(cut for cut in cuts if cut < len(text))})):
        said += splitter.feed(text[begin:end])
    said += splitter.finish()
    for kind in ("reasoning", "answer"):
        whole = "".join(part.text for part in parts(text) if part.kind == kind)
        assert "".join(piece for of, piece in said if of == kind) == whole
    assert splitter.block == block_of(text)
    assert all(piece for _kind, piece in said)


@given(TEXTS)
def test_parts_and_block_agree(text: str) -> None:
    """The answer is what stands behind the block; a text without one is the answer as it is."""
    block = block_of(text)
    assert answer_of(text) == "".join(part.text for part in parts(text) if part.kind == "answer")
    assert 0 <= block.end <= block.answer_start <= len(text)
    assert text[block.end : block.answer_start].strip() == ""
    assert block.end or answer_of(text) == text


def test_what_may_become_a_mark_is_held_back() -> None:
    """And no more than that."""
    splitter = Splitter()
    assert splitter.feed("\n<thi") == []
    assert splitter.feed("nk>so </th") == [("reasoning", "so ")]
    assert splitter.is_open
    assert splitter.feed("en </think>\n") == [("reasoning", "</then ")]
    assert (splitter.is_open, splitter.feed("\n yes")) == (False, [("answer", " yes")])
    assert splitter.feed(" </think>") == [("answer", " </think>")]


@pytest.mark.parametrize("unit", ["x", " ", "\n", "<", "</think", "<|end|"])
@pytest.mark.parametrize("head", ["", "<think>", "<think></think>", ANALYSIS, "<|channel|>"])
def test_the_time_is_linear(head: str, unit: str) -> None:
    """Ten times the text in small pieces takes about ten times as long; a quadratic one would take a hundred."""

    def seconds(n: int) -> float:
        splitter = Splitter()
        text = head + unit * (n // len(unit))
        begun = time.process_time()
        for at in range(0, len(text), 4):
            splitter.feed(text[at : at + 4])
        splitter.finish()
        return time.process_time() - begun

    assert min(seconds(40_000) for _ in range(2)) < 40 * min(seconds(4_000) for _ in range(3)) + 0.02


@pytest.mark.parametrize(
    ("template", "name"),
    [
        ("{{ m.content.split('</think>')[-1] }}", "<think>"),
        ("<|im_start|>assistant\n<think>\n", "<think>"),
        ("{{ '[THINK]' }}", "[THINK]"),
        ("'<|start|>assistant<|channel|>analysis<|message|>'", "channels"),
        ("<|channel|>", None),
        ("<|im_start|>{{ m.role }}", None),
    ],
)
def test_the_family_a_template_knows(template: str, name: str | None) -> None:
    """By the marks in its source."""
    family = family_in(template)
    assert (family.name if family else None) == name
    assert family_named(name) is family


@pytest.mark.parametrize(
    ("prompt", "start"),
    [
        ("<a><think>\n", "<think>\n"),
        ("<a>\n[THINK]", "[THINK]"),
        (f"<|start|>assistant{ANALYSIS}", ANALYSIS),
        ("<a>", None),
        ("<a><think>\n\n</think>\n\n", None),
    ],
)
def test_the_block_a_generation_prompt_leaves_open(prompt: str, start: str | None) -> None:
    """Its mark ends the prompt, but for white space."""
    found = start_in(prompt)
    assert (found and prompt[found[1] :]) == start
