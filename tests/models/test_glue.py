from dataclasses import replace

import pytest

from models.glue import Glue, one_line

PLAIN = Glue(
    bos_token="<s>",
    first_user="<|user|>",
    answer_user="<|user|>",
    user_close="<|end|>",
    assistant="<|assistant|>",
    past_assistant="<|assistant|>",
    assistant_close="<|end|>",
    user_user="<|user|>",
    first_system="<|system|>",
    system_close="<|end|>",
    system_user="<|user|>",
)


def test_an_ordinary_template_has_no_notes() -> None:
    """Nothing is said where nothing deviates."""
    assert PLAIN.notes == ()


@pytest.mark.parametrize(
    ("opening", "text"),
    [
        ("<|im_start|>system\nYou are a bot.<|im_end|>\n<|im_start|>user\n", "You are a bot"),
        ("<s>[SYSTEM_PROMPT]You are a bot.[/SYSTEM_PROMPT][INST]", "You are a bot"),
        ("<|start_header_id|>system<|end_header_id|>\n\n<|eot_id|><|start_header_id|>user<|end_header_id|>\n\n", None),
        ("[gMASK]<sop><|user|>\n", None),
        ("<start_of_turn>user\n", None),
        ("<|im_start|>user<|im_sep|>", None),
        ("USER: ", None),
        ("### Instruction:\n", None),
    ],
)
def test_a_text_of_the_templates_own_is_told_from_marks(opening: str, text: str | None) -> None:
    """Marks and names of roles are no text; three words are."""
    notes = replace(PLAIN, first_user=opening).notes
    assert notes == (() if text is None else (f"Without a system prompt the chat template puts its own: “{text}”.",))


def test_control_characters_in_a_quoted_text_are_left_out() -> None:
    """A template cannot reach the terminal through a note."""
    (note,) = replace(PLAIN, first_user="You are\x1b[2J a\u202ebot\x07, [/] you know").notes
    assert "“You are [2J a bot , [/] you know”" in note


def test_no_bos_text_is_never_printed() -> None:
    """A model without a BOS token is not thought to print one."""
    printing = replace(PLAIN, first_user="<s><|user|>")
    assert (printing.bos_printed, replace(printing, bos_token="").bos_printed) == (True, False)


@pytest.mark.parametrize(
    ("prompt", "answer", "goes_on"),
    [
        ("<|assistant|><think>\n", "so\n</think>\nyes", True),
        ("<|assistant|><think>\n", "<think>so</think>yes", False),
        ("<|assistant|><think>\n", "yes", False),
        ("<|assistant|>", "so\n</think>\nyes", False),
        ("<|assistant|><think></think>", "so\n</think>\nyes", False),
    ],
)
def test_an_answer_goes_on_with_reasoning_that_was_begun_for_it(prompt: str, answer: str, goes_on: bool) -> None:
    """Only text that ends a block without beginning one, and only where the generation prompt leaves one open."""
    glue = replace(PLAIN, assistant=prompt)
    assert glue.past_opening(answer) == (prompt if goes_on else "<|assistant|>")


def test_marks_are_what_looks_like_a_control_token() -> None:
    """Angle brackets and bracketed capitals, in all of the glue."""
    glue = replace(PLAIN, user_close=" [/INST]", assistant="<｜Assistant｜>a < b > c")
    assert glue.marks == {"<|user|>", "[/INST]", "<|end|>", "<｜Assistant｜>", "<|assistant|>", "<|system|>"}


def test_one_line_is_one_line() -> None:
    """Printable, single-spaced, cut."""
    assert one_line(" a\n\n b\x00c ", 4) == "a b "
