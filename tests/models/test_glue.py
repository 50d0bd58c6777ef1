from dataclasses import replace

import pytest

from models.glue import Glue, one_line
from models.reasoning import FAMILIES, Family

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
    assert notes == (() if text is None else (f"Without a system prompt the template puts its own: “{text}”.",))


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
        ("<|assistant|>[THINK]", "so\n[/THINK]\nyes", True),
        ("<|assistant|>[THINK]", "so\n</think>\nyes", False),
    ],
)
def test_an_answer_goes_on_with_reasoning_that_was_begun_for_it(prompt: str, answer: str, goes_on: bool) -> None:
    """Only text that ends a block without beginning one, and only where the generation prompt leaves one open."""
    glue = replace(PLAIN, assistant=prompt)
    assert glue.past_opening(answer) == (prompt if goes_on else "<|assistant|>")


@pytest.mark.parametrize(
    ("reasoning", "answer", "is_own"),
    [
        (None, "<think>so</think>yes", True),
        ("<think>", "\n<think>so</think>yes", True),
        ("[THINK]", "\n[THINK]so", True),
        ("channels", "<|channel|>final<|message|>yes", True),
        ("channels", "<|channel|>other<|message|>yes", False),
        ("channels", "<think>so</think>yes", False),
        ("<think>", "See <think>so", False),
    ],
)
def test_an_answer_that_begins_with_reasoning_stands_where_a_new_one_would(
    reasoning: str | None, answer: str, is_own: bool
) -> None:
    """Behind the generation prompt without what that begins; if it is marked as the template marks it."""
    glue = replace(PLAIN, assistant="<|new|><think>\n", reasoning=reasoning)
    assert (glue.assistant_opening, glue.reasoning_start) == ("<|new|>", "<think>\n")
    assert glue.past_opening(answer) == ("<|new|>" if is_own else "<|assistant|>")


@pytest.mark.parametrize(
    ("assistant", "reasoning", "end"),
    [
        ("<|assistant|><think>\n", "<think>", "</think>\n\n"),
        ("<|assistant|>[THINK]", "[THINK]", "[/THINK]"),
        ("<|assistant|>", "<think>", ""),
        ("<|start|>assistant", "channels", "<|channel|>final<|message|>"),
        ("<|start|>assistant<|channel|>final<|message|>", "channels", ""),
        (
            "<|start|>assistant<|channel|>analysis<|message|>",
            "channels",
            "<|end|><|start|>assistant<|channel|>final<|message|>",
        ),
        ("<|assistant|>", None, ""),
    ],
)
def test_what_ends_reasoning_before_it_has_begun(assistant: str, reasoning: str | None, end: str) -> None:
    """The family's own mark, where the generation prompt leaves a block open or an answer has a channel."""
    assert replace(PLAIN, assistant=assistant, reasoning=reasoning).no_reasoning == end


@pytest.mark.parametrize(
    ("glue", "note"),
    [
        (replace(PLAIN, reasoning="<think>"), "Reasoning in <think> blocks stays in the prompt unless stripped."),
        (
            replace(PLAIN, reasoning="channels", rewrites_reasoning=True),
            "Reasoning in channels stays in the prompt unless stripped; the template drops it.",
        ),
    ],
)
def test_how_reasoning_is_handled_is_a_note(glue: Glue, note: str) -> None:
    """One sentence, whether or not the template would keep it."""
    assert glue.notes == (note,)


def test_reasoning_begun_by_the_prompt_is_not_another_opening() -> None:
    """Only an opening that differs beside that is noted."""
    glue = replace(PLAIN, assistant="<|assistant|><think>\n", reasoning="<think>")
    assert len(glue.notes) == 1
    assert len(replace(glue, assistant="<|other|><think>\n").notes) == 2


@pytest.mark.parametrize("family", FAMILIES)
def test_notes_are_short(family: Family) -> None:
    """All at once, with the longest of everything: they are read in a narrow column."""
    glue = replace(
        PLAIN,
        first_user="one two three " * 20,
        assistant="<|new|>",
        user_user=None,
        system_refusal="no",
        reasoning=family.name,
        rewrites_reasoning=True,
        frozen="2026-03-14",
        chat_format="deepseek",
    )
    assert len(glue.notes) == 7
    assert all(len(note) <= 100 and note.endswith(".") for note in glue.notes)


def test_marks_of_reasoning_stay_text_where_they_could_forge() -> None:
    """In messages always; in answers from elsewhere where the marks make messages of their own."""
    thinking, channels = replace(PLAIN, reasoning="<think>"), replace(PLAIN, reasoning="channels")
    assert PLAIN.guarded("user") == PLAIN.marks
    assert {"<think>", "</think>"} <= thinking.guarded("user") & thinking.guarded("system")
    assert not {"<think>", "</think>"} & thinking.guarded("assistant")
    assert {"<|constrain|>", "<|message|>"} <= channels.guarded("user") & channels.guarded("assistant")


def test_marks_are_what_looks_like_a_control_token() -> None:
    """Angle brackets and bracketed capitals, in all of the glue."""
    glue = replace(PLAIN, user_close=" [/INST]", assistant="<｜Assistant｜>a < b > c")
    assert glue.marks == {"<|user|>", "[/INST]", "<|end|>", "<｜Assistant｜>", "<|assistant|>", "<|system|>"}


def test_one_line_is_one_line() -> None:
    """Printable, single-spaced, cut."""
    assert one_line(" a\n\n b\x00c ", 4) == "a b "
