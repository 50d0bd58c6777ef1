import json
from dataclasses import replace
from itertools import product
from typing import get_args

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.judge import FOLLOW_UPS, MORE, OPEN, REQUESTS, auc, encoder_methods, fitted_scores, kinds_of, read_items
from benchmarks.judge_fit import read_requests
from models.engine import Role
from models.similarity import Scores, Similarity, load
from sessions.conversation import Message
from sessions.policy import (
    Facts,
    Step,
    TaskPolicy,
    Verdict,
    VerdictKind,
    facts_of,
    judge,
    needs_scores,
    step,
)

FACTS = Facts("Sliding-window rate limiter", "In Go, per user.", "Keep a ring buffer of timestamps per user.")
SCORES = st.builds(Scores, *[st.floats(-20, 20)], *[st.floats(-1, 1)] * 3, st.floats(-20, 20))


@pytest.fixture(scope="module")
def encoder() -> Similarity:
    """The encoder that ships, loaded once."""
    return load()


def message(number: int, role: Role, text: str) -> Message:
    """A stored message."""
    return Message(number, "s", role, text, "complete", None, None, 0.0)


def verdict_on(encoder: Similarity, draft: str, facts: Facts = FACTS) -> Verdict:
    """What the judge that ships says."""
    return judge(facts, draft, encoder.scores(draft, facts.task, facts.question, facts.answer))


def test_the_facts_are_the_task_line_and_the_last_turn() -> None:
    """Earlier turns and the system prompt are not looked at."""
    messages = [
        message(1, "system", "Be brief."),
        message(2, "user", "first"),
        message(3, "assistant", "one"),
        message(4, "user", "second"),
        message(5, "assistant", "two"),
    ]

    assert facts_of("the task", messages) == Facts("the task", "second", "two")


def test_failed_messages_and_reasoning_are_not_looked_at() -> None:
    """A question that never reached the model, and what a model thought, say nothing about the task."""
    failed = replace(message(3, "user", "second"), status="failed")
    messages = [message(1, "user", "first"), message(2, "assistant", "<think>hm, poems</think>one"), failed]

    facts = facts_of("", messages)

    assert (facts.question, facts.answer.strip()) == ("first", "one")


def test_an_empty_answer_is_passed_over() -> None:
    """An answer that was stopped before its first word says nothing about the task."""
    messages = [message(1, "user", "first"), message(2, "assistant", "one"), message(3, "assistant", " ")]

    assert facts_of("", messages) == Facts("", "first", "one")


@pytest.mark.parametrize(("facts", "draft"), [(FACTS, " \n"), (Facts("a task"), "How do I boil an egg?")])
def test_an_empty_draft_and_a_first_message_are_never_of_another_task(facts: Facts, draft: str) -> None:
    """There is nothing to differ from, so nothing has to be computed."""
    assert not needs_scores(facts, draft)
    assert judge(facts, draft, None).kind == "same"


def test_a_draft_that_cannot_be_read_is_unsure_and_sent() -> None:
    """Who writes in a script that the encoder does not know is not asked each time."""
    verdict = judge(FACTS, "मुझे एक पत्र लिखना है", None)

    assert (verdict.kind, verdict.score) == ("unsure", None)
    assert step("strict", verdict) == "send"


@given(SCORES, st.floats(0, 5))
def test_the_more_a_draft_stands_alone_the_higher_its_score(scores: Scores, more: float) -> None:
    """And the verdict never goes back from "other" to "same"."""
    order = ["same", "unsure", "other"]
    lower = judge(FACTS, "a draft", scores)
    higher = judge(
        FACTS,
        "a draft",
        replace(scores, standalone=scores.standalone + more),
    )

    assert lower.score is not None
    assert higher.score is not None
    assert 0 <= lower.score <= higher.score <= 1
    assert order.index(lower.kind) <= order.index(higher.kind)


@pytest.mark.parametrize("which", ["to_task", "to_question", "to_answer"])
def test_nearness_to_the_conversation_speaks_for_the_same_task(which: str) -> None:
    """Each of the three cosines does."""
    near = dict.fromkeys(("to_task", "to_question", "to_answer"), 0.2)
    far = judge(FACTS, "a draft", Scores(2.0, **near)).score
    near[which] = 0.6
    close = judge(FACTS, "a draft", Scores(2.0, **near)).score

    assert far is not None
    assert close is not None
    assert close < far


@given(SCORES)
def test_a_request_about_the_answer_only_ever_excuses_a_draft(scores: Scores) -> None:
    """However surely a draft is no such request, that makes it no other task."""
    without = judge(FACTS, "a draft", replace(scores, about_answer=0.0)).score
    found = judge(FACTS, "a draft", scores).score

    assert without is not None
    assert found is not None
    assert found < without if scores.about_answer > 1 and without > 1e-6 else found <= without
    assert found == without or scores.about_answer > 0


def test_the_reason_says_that_a_draft_is_about_the_answer() -> None:
    """The verdict `same` of such a draft has no nearness to speak of."""
    verdict = judge(FACTS, "make it shorter", Scores(1.0, 0.0, 0.0, 0.0, 4.0))

    assert (verdict.kind, verdict.reason) == ("same", "It asks for something about the last answer.")


@given(SCORES)
def test_reasons_are_one_sentence(scores: Scores) -> None:
    """They are shown as they are."""
    reason = judge(FACTS, "a draft", scores).reason

    assert reason.endswith(".")
    assert reason.count(".") == 1
    assert len(reason) < 90


def test_the_reason_tells_a_near_subject_from_a_far_one() -> None:
    """A switch within a subject is told apart from one to something else."""
    far = judge(FACTS, "a draft", Scores(30.0, 0.0, 0.0, 0.0))
    near = judge(FACTS, "a draft", Scores(30.0, 0.5, 0.5, 0.5))

    assert (far.kind, near.kind) == ("other", "other")
    assert "little in common" in far.reason
    assert "same subject" in near.reason


def test_what_each_policy_does_with_each_verdict() -> None:
    """Off never asks, ask only where another task is likely, strict asks as often and demands more."""
    found: dict[tuple[TaskPolicy, VerdictKind], Step] = {
        (policy, kind): step(policy, Verdict(kind, 0.5, "A reason."))
        for policy, kind in product(get_args(TaskPolicy), get_args(VerdictKind))
    }

    assert found == {
        ("off", "same"): "send",
        ("off", "other"): "send",
        ("off", "unsure"): "send",
        ("ask", "same"): "send",
        ("ask", "other"): "dialog",
        ("ask", "unsure"): "hint",
        ("strict", "same"): "send",
        ("strict", "other"): "dialog",
        ("strict", "unsure"): "hint",
    }


# None of these is among the items that the weights were fitted to.
@pytest.mark.parametrize(
    "draft", ["why a ring buffer?", "now the same for Python please", "panic: index out of range [64]"]
)
def test_follow_ups_are_not_asked_about(encoder: Similarity, draft: str) -> None:
    """Short replies, ports and pasted errors belong to the task."""
    assert verdict_on(encoder, draft).kind != "other"


@pytest.mark.parametrize(
    "draft",
    [
        "Write a speech for my sister's wedding, three minutes.",
        "By the way, which vegetables can I sow in August?",
        "할머니 생신 선물로 뭐가 좋을지 추천해 줘",
    ],
)
def test_switches_are_asked_about(encoder: Similarity, draft: str) -> None:
    """Bluntly, politely, and in another language than the conversation's."""
    assert verdict_on(encoder, draft).kind == "other"


def test_the_method_holds_on_items_it_was_not_fitted_to(encoder: Similarity) -> None:
    """Fitted anew to one file of labelled drafts, it judges the other: what docs/task-policy.md promises."""
    items, more = read_items(OPEN), read_items(MORE)
    together = [*items, *more]
    y = np.array([int(item.is_other) for item in together])
    method = encoder_methods(encoder, together)["**sentence vectors: both**"]
    n = len(items)

    requests = read_requests(REQUESTS, encoder)
    scores = fitted_scores(method, y, np.arange(n, len(y)), np.arange(n), requests)
    called = np.array([kind == "other" for kind in kinds_of(scores)])

    assert auc(scores, y[:n]) > 0.9
    assert y[:n][called].mean() > 0.9
    assert called[y[:n] == 1].mean() > 0.6


def test_requests_about_the_answer_are_told_from_switches_that_sound_like_them(encoder: Similarity) -> None:
    """Drafts that nothing was fitted to: "make it shorter" against "make a shopping list", in five languages."""
    items = read_items(FOLLOW_UPS)
    kinds = [verdict_on(encoder, item.draft, Facts(item.task, item.question, item.answer)).kind for item in items]

    called = [item for item, kind in zip(items, kinds, strict=True) if kind == "other"]
    n_other = sum(item.is_other for item in items)
    assert sum(not item.is_other for item in called) < 0.05 * (len(items) - n_other)
    assert sum(item.is_other for item in called) > 0.7 * n_other


def test_no_draft_is_both_fitted_to_and_tested_with() -> None:
    """A figure of drafts that were learned by heart would say nothing."""
    rows = [json.loads(line) for line in REQUESTS.read_text(encoding="utf-8").splitlines()]
    learned = {draft for row in rows for draft in [*row["same"], *row["other"]]}
    learned |= {item.draft for item in [*read_items(OPEN), *read_items(MORE)]}

    assert not learned & {item.draft for item in read_items(FOLLOW_UPS)}


@pytest.mark.parametrize(
    "draft",
    [
        "Translate your answer into English",
        "Make it shorter",
        "Now as a table",
        "Schreib das auf Englisch",
        "더 짧게 써 줘",
        "もっと短くして",
    ],
)
@pytest.mark.parametrize("task", ["Plan a trip to Lisbon", "세탁기 소음 줄이기", "Steuererklärung für 2023"])
def test_a_request_about_the_answer_fits_behind_any_answer(encoder: Similarity, draft: str, task: str) -> None:
    """Whatever the conversation is about, and in whichever language."""
    assert verdict_on(encoder, draft, Facts(task, task, f"{task}: here is what I would do first.")).kind != "other"


def test_the_weights_that_ship_are_those_of_the_labelled_items(encoder: Similarity) -> None:
    """A changed table or encoder shows: on its own items the judge is right nearly always."""
    kinds = {True: 0, False: 0}
    items = [*read_items(OPEN), *read_items(MORE)]
    for item in items:
        verdict = verdict_on(encoder, item.draft, Facts(item.task, item.question, item.answer))
        kinds[item.is_other] += verdict.kind == "other"

    n_other = sum(item.is_other for item in items)
    assert kinds[True] > 0.85 * n_other
    assert kinds[False] < 0.03 * (len(items) - n_other)
