import re
from dataclasses import fields, replace
from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chatapp import why
from chatapp.misstexts import because
from chatapp.tui import words
from chatapp.why import explain, measured_answer, parts
from models import misses
from models.engine import TurnStats
from sessions.conversation import Message

TURN = TurnStats(
    ttft_s=1.0,
    tpot_s=0.031,
    prompt_tokens=1640,
    resident_tokens=24,
    restored_tokens=1204,
    prefilled_tokens=412,
    output_tokens=52,
    restore_s=0.05,
    prefill_s=0.4,
    first_decode_s=0.05,
    waited_s=0.3,
    restore_decision="restore",
    restore_estimate_s=0.06,
    prefill_estimate_s=9.0,
    tpot_floor_s=0.0124,
    cpu_share=0.99,
)
REASONS = (
    misses.NOTHING,
    misses.TOO_SMALL,
    misses.EVICTED,
    misses.VANISHED,
    misses.OFF,
    misses.cut(118, "edited text"),
    misses.cut(4010, "template"),
    misses.cut(12, "context limit"),
    misses.ends(7),
    misses.no_restore_point(512),
    misses.no_restore_point(0),
    misses.other_settings(["threads"]),
    misses.damaged("checksum"),
    misses.unreadable("Permission denied"),
    misses.self_test_failed("rows differ"),
)
SECONDS = st.none() | st.floats(0, 5000)
TOKENS = st.none() | st.integers(0, 200_000)
SHARE = st.none() | st.floats(0, 1)
STATS = st.builds(
    TurnStats,
    ttft_s=SECONDS,
    tpot_s=SECONDS,
    prompt_tokens=TOKENS,
    resident_tokens=TOKENS,
    restored_tokens=TOKENS,
    prefilled_tokens=TOKENS,
    output_tokens=TOKENS,
    restore_s=SECONDS,
    prefill_s=SECONDS,
    miss_reason=st.none() | st.sampled_from(REASONS),
    restore_decision=st.sampled_from([None, "restore", "prefill"]),
    restore_estimate_s=SECONDS,
    prefill_estimate_s=SECONDS,
    reasoning_tokens=TOKENS,
    waited_s=SECONDS,
    model_load_s=SECONDS,
    first_decode_s=SECONDS,
    tpot_floor_s=SECONDS,
    cpu_share=SHARE,
    restore_read_s=SECONDS,
    restore_verify_s=SECONDS,
    restore_copy_s=SECONDS,
    sampling_s=SECONDS,
    transport_s=SECONDS,
    speculated_tokens=TOKENS,
    accepted_tokens=TOKENS,
)
NUMBER = re.compile(r"<?\d[\d,.]*(?: (?:ms|min \d+ s|s)\b|%)?")


def said(stats: TurnStats) -> str:
    """All sentences, without what could be done."""
    return " ".join(explain(stats).sentences)


def test_a_turn_is_told_in_sentences() -> None:
    """Each part that took time is named with its number, in the order in which they came."""
    assert explain(TURN).sentences == (
        "The first text came after 1.00 s, the whole answer took 2.58 s.",
        "The message waited 0.30 s for another answer.",
        "Storing the message, ending what was done before and looking up what is kept took 0.20 s.",
        "24 of the 1,640 tokens of the prompt were still in memory.",
        "1,204 tokens came back from disk in 50 ms instead of about 9.00 s of prefill.",
        "412 tokens were computed in 0.40 s: the new part of the prompt.",
        "From there to the first text it took 50 ms.",
        "Decoding: 52 tokens at 31 ms each.",
        "This machine's memory allows 12 ms for each: 40% of its speed was used.",
    )


@given(STATS)
def test_every_number_stems_from_the_stats(stats: TurnStats) -> None:
    """Whatever a turn's numbers are, the sentences have no other ones."""
    known = parts(stats)
    seconds = [getattr(stats, field.name) for field in fields(stats) if field.name.endswith("_s")]
    whole = (stats.ttft_s or 0) + known.get("decode", 0)
    counts = [getattr(stats, field.name) for field in fields(stats) if field.name.endswith("_tokens")]
    shares = [stats.cpu_share]
    if stats.tpot_s and stats.tpot_floor_s is not None:
        shares.append(min(1.0, stats.tpot_floor_s / stats.tpot_s))
    if stats.sampling_s is not None and known.get("decode"):
        shares.append(min(1.0, stats.sampling_s / known["decode"]))
    if stats.reasoning_tokens and stats.output_tokens:
        shares.append(min(1.0, stats.reasoning_tokens / stats.output_tokens))
    allowed = {words.seconds(value) for value in (*seconds, *known.values(), whole) if value is not None}
    allowed |= {words.count(n) for n in counts if n is not None} | {f"{one:.0%}" for one in shares if one is not None}
    allowed |= set(NUMBER.findall(stats.miss_reason or ""))
    found = explain(stats)
    text = " ".join((*found.sentences, found.advice or ""))
    assert {number.rstrip(",.") for number in NUMBER.findall(text)} <= {one.rstrip(",.") for one in allowed}


@given(STATS)
def test_the_parts_add_up(stats: TurnStats) -> None:
    """Those before decoding are the time to the first text, unless the clocks disagree; none is negative."""
    known = parts(stats)
    before = [seconds for part, seconds in known.items() if part != "decode"]
    assert min((*before, 0.0)) >= 0
    if stats.queue_s:
        assert sum(before) == pytest.approx(stats.ttft_s)


@given(STATS)
def test_every_sentence_is_whole(stats: TurnStats) -> None:
    """One begins with a capital or a number, ends with one full stop, and is a line."""
    found = explain(stats)
    for sentence in (*found.sentences, *([found.advice] if found.advice else [])):
        assert sentence[0].isupper() or sentence[0].isdigit()
        assert sentence.endswith(".")
        assert "\n" not in sentence
        assert "  " not in sentence
        assert "None" not in sentence


@pytest.mark.parametrize("reason", REASONS)
def test_every_miss_is_a_clause(reason: str) -> None:
    """The sentence says in words why so much was computed, the numbers of the reason included."""
    sentence = next(one for one in explain(replace(TURN, miss_reason=reason)).sentences if "computed" in one)
    assert sentence == f"412 tokens were computed in 0.40 s, because {because(reason)}."
    assert all(number in sentence for number in re.findall(r"\d[\d,]*\d|\d", reason))


def test_where_the_text_first_differs_is_said() -> None:
    """An edit is named as such."""
    text = said(replace(TURN, miss_reason=misses.cut(118, "edited text")))
    assert "because the text before them was changed (first difference at token 118)." in text


def test_disk_that_was_slower_is_not_praised() -> None:
    """The expectation is told as one where it was wrong, and where it spoke for prefill."""
    slow = said(replace(TURN, restore_s=0.5, prefill_estimate_s=0.4))
    assert "came back from disk in 0.50 s; prefill was expected to take about 0.40 s." in slow
    prefilled = replace(TURN, restored_tokens=0, restore_decision="prefill", miss_reason=misses.TOO_SMALL)
    assert "reading them from disk was expected to take longer, 60 ms." in said(prefilled)


def test_reasoning_and_other_programs_are_named() -> None:
    """Both only where there was something of it."""
    text = said(replace(TURN, reasoning_tokens=42, cpu_share=0.45))
    assert "Reasoning was 81% of the answer, 42 tokens." in text
    assert "decoding got 45% of the processor time it asked for." in text
    assert "processor" not in said(TURN)


def test_what_made_a_restore_long_is_named() -> None:
    """Of reading, verifying and loading the one that took longest, where the restore took long at all."""
    slow = replace(TURN, restore_s=2.0, restore_read_s=1.8, restore_verify_s=0.5, restore_copy_s=0.3)
    assert "Most of that was reading the files, 1.80 s." in said(slow)
    assert "Most of that was loading them into the context" in said(replace(slow, restore_copy_s=1.9))
    assert "Most of that" not in said(replace(slow, restore_s=0.05))


def test_sampling_is_named_where_it_takes_a_share() -> None:
    """A thousandth of the time is not worth a sentence, a third is."""
    assert "Choosing the tokens" not in said(replace(TURN, sampling_s=0.002))
    assert "Choosing the tokens took 33% of that time." in said(replace(TURN, sampling_s=0.52))


def test_guesses_are_named() -> None:
    """How many were evaluated, and how many became part of the answer; nothing where there were none."""
    assert "30 of 40 guessed tokens were right" in said(replace(TURN, speculated_tokens=40, accepted_tokens=30))
    assert "guessed" not in said(replace(TURN, speculated_tokens=0, accepted_tokens=0))


def test_nothing_measured_is_said() -> None:
    """An answer that broke off has no numbers, and no advice."""
    assert explain(TurnStats()).advice is None
    assert said(TurnStats()).startswith("Nothing was measured")


@pytest.mark.parametrize(
    ("state", "begin"),
    [("waiting", "No text has come yet, after 1.00 s."), ("writing", "The first text came after 1.00 s, and the")],
)
def test_a_turn_that_goes_on_is_not_over(state: Literal["waiting", "writing"], begin: str) -> None:
    """The first sentence says that the numbers are those so far."""
    assert explain(TURN, state).sentences[0].startswith(begin)


@pytest.mark.parametrize(
    ("changes", "words_of_it"),
    [
        ({"ttft_s": 9.0, "waited_s": 8.0}, "one answer is written at a time"),
        ({"ttft_s": 9.0, "waited_s": None}, "for another answer, or for the model"),
        ({"ttft_s": 9.0, "model_load_s": 8.0}, "loading the model"),
        ({"ttft_s": 9.0}, "before the prompt was read"),
        ({"ttft_s": 9.0, "restore_s": 8.0}, "a faster disk"),
        ({"ttft_s": 9.0, "first_decode_s": 8.0}, "the way to the first text"),
        ({"ttft_s": 9.0, "transport_s": 8.0}, "the way from the engine"),
        ({"ttft_s": 9.0, "prefill_s": 8.0}, "a shorter message"),
        ({"ttft_s": 9.0, "prefill_s": 8.0, "miss_reason": misses.OFF}, "--kv "),
        ({"ttft_s": 9.0, "prefill_s": 8.0, "miss_reason": misses.EVICTED}, "--kv-budget"),
        ({"ttft_s": 9.0, "prefill_s": 8.0, "miss_reason": misses.cut(1, "edited text")}, "belongs at its end"),
        ({"ttft_s": 9.0, "prefill_s": 8.0, "miss_reason": misses.NOTHING}, "the next turn"),
        ({}, "another number of threads"),
        ({"cpu_share": None}, "or other programs use it"),
        ({"tpot_floor_s": 0.03}, "close to what the memory allows"),
        ({"tpot_floor_s": None}, "a shorter answer or a smaller model"),
        ({"cpu_share": 0.4}, "close them"),
        ({"reasoning_tokens": 40}, "does not reason"),
    ],
)
def test_the_largest_part_has_a_way_out(changes: dict[str, object], words_of_it: str) -> None:
    """The last sentence is about what took longest, and about why."""
    advice = explain(replace(TURN, **changes)).advice  # type: ignore[arg-type]
    assert advice is not None
    assert words_of_it in advice


def test_what_was_quick_needs_no_advice() -> None:
    """Where nothing took long there is nothing to be done."""
    quick = TurnStats(ttft_s=0.003, tpot_s=0.0001, output_tokens=9, restore_s=0.0, prefill_s=0.001, first_decode_s=0.0)
    assert explain(quick).advice is None


def message(message_id: int, stats: TurnStats | None, *, parent_id: int = 0) -> Message:
    """An answer, or (without stats and parent) a question."""
    role: Literal["assistant", "user"] = "assistant" if parent_id else "user"
    return Message(message_id, "s", role, "", "complete", None, stats, 0.0, parent_id or None)


def test_which_answer_is_meant() -> None:
    """The named one or the one to the named question; else the last that was measured."""
    talk = [
        message(1, None),
        message(2, TURN, parent_id=1),
        message(3, None),
        message(4, TURN, parent_id=3),
        message(5, None),
        message(6, None, parent_id=5),
    ]
    asked = (None, 2, 1, 6, 5, 99)
    found = [answer and answer.id for answer in (measured_answer(talk, one) for one in asked)]
    assert found == [4, 2, 2, 6, 6, None]


def test_every_part_has_advice() -> None:
    """None of them is forgotten: each can be the largest."""
    assert set(parts(TURN)) | set(parts(replace(TURN, waited_s=None))) == set(why.Part.__args__)  # type: ignore[attr-defined]
