import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from chatapp.bulk_records import record_of
from chatapp.objects import STATS_KEYS
from models.engine import TurnStats
from models.fake import FakeEngine, echo
from sessions.batch import Answered
from sessions.batch_rows import Row
from tests.chatapp.test_cli import Shell, chatapp, posix_only

__all__ = ["chatapp"]  # a fixture


def lines(*rows: object) -> bytes:
    """Return JSONL."""
    return b"".join(json.dumps(row).encode() + b"\n" for row in rows)


def records(path: Path) -> list[dict[str, Any]]:
    """Return the rows of an output."""
    return [json.loads(line) for line in path.read_text().splitlines()]


def row(row_id: object, prompt: str) -> dict[str, object]:
    """Return a row of the input."""
    return {"id": row_id, "prompt": prompt}


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """An input that is not there yet."""
    return tmp_path / "in.jsonl"


@pytest.fixture
def target(tmp_path: Path) -> Path:
    """An output that is not there yet."""
    return tmp_path / "out.jsonl"


def openai(custom_id: str, **body: Any) -> dict[str, Any]:
    """Return a line of OpenAI's batch API."""
    messages = [{"role": "system", "content": "Be kind."}, {"role": "user", "content": "hi"}]
    return {
        "custom_id": custom_id,
        "method": "POST",
        "url": "/v1/chat/completions",
        "body": {"model": "gpt", "messages": messages, **body},
    }


def test_an_openai_line_is_answered_in_its_form(chatapp: Shell) -> None:
    """With usage, what was reused, and an error object for what cannot be asked."""
    good, cut, bad = (
        json.loads(line) for line in chatapp_lines(chatapp, openai("a"), openai("b", max_tokens=3), openai("c", n=2))
    )
    assert list(good) == ["id", "custom_id", "response", "error"]
    assert (good["custom_id"], good["error"], good["response"]["status_code"]) == ("a", None, 200)
    body = good["response"]["body"]
    assert (body["object"], body["model"]) == ("chat.completion", "fake")
    choice = body["choices"][0]
    assert (choice["message"]["role"], choice["message"]["content"]) == ("assistant", echo("hi"))
    assert choice["finish_reason"] == "stop"
    usage = body["usage"]
    assert usage["prompt_tokens"] + usage["completion_tokens"] == usage["total_tokens"]
    assert tuple(body["stats"]) == STATS_KEYS
    second = cut["response"]["body"]
    assert second["choices"][0]["finish_reason"] == "length"
    assert second["usage"]["prompt_tokens_details"]["cached_tokens"] == second["usage"]["prompt_tokens"] - 1
    assert (bad["custom_id"], bad["response"], bad["error"]["line"]) == ("c", None, 3)
    assert "n is not supported" in bad["error"]["message"]
    assert len({good["id"], cut["id"], bad["id"]}) == 3


def test_what_a_server_had_cached_is_told_or_left_out() -> None:
    """A number that nobody knows is not zero."""
    asked = Row(1, 0, "ab", "a", "openai")
    usages = []
    for n in (None, 7):
        stats = TurnStats(prompt_tokens=9, resident_tokens=n, restored_tokens=n and 0, output_tokens=2)
        answered = Answered(asked, "hi", status="complete", stats=stats, reason="end")
        record = record_of(answered, session=None, model="m", at=0.0)
        usages.append(record["response"]["body"]["usage"])
    assert "prompt_tokens_details" not in usages[0]
    assert usages[1]["prompt_tokens_details"] == {"cached_tokens": 7}
    assert [usage["total_tokens"] for usage in usages] == [11, 11]


def chatapp_lines(chatapp: Shell, *rows: object, code: int = 3) -> list[str]:
    """Return what a batch of these rows prints."""
    target = chatapp.data_dir.with_name("answers.jsonl")
    chatapp("batch", "-", "-o", str(target), stdin=lines(*rows), code=code)
    return target.read_text().splitlines()


def test_a_text_file_has_a_prompt_a_line(chatapp: Shell, tmp_path: Path) -> None:
    """Blank lines are none; `--format` says it where the name does not."""
    source = tmp_path / "in.TXT"
    source.write_bytes(b"\xef\xbb\xbfone\r\n\r\n{two}\r\n")
    printed = [json.loads(line) for line in chatapp("batch", str(source)).splitlines()]
    assert [(one["id"], one["line"], one["text"]) for one in printed] == [
        (None, 1, echo("one")),
        (None, 3, echo("{two}")),
    ]
    assert json.loads(chatapp("batch", "-", "--format", "text", stdin=b"x"))["text"] == echo("x")


def test_a_batch_goes_on(chatapp: Shell, source: Path, target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is answered is not asked again, and with nothing to ask no model is loaded."""
    source.write_bytes(lines(row(1, "a"), row(2, "b")))
    chatapp("batch", str(source), "-o", str(target), "--limit", "1")
    first = target.read_bytes()
    chatapp("batch", str(source), "-o", str(target))
    assert "1 of them had been answered before." in chatapp.stderr
    assert target.read_bytes().startswith(first)
    monkeypatch.setattr(FakeEngine, "load", None)
    chatapp("batch", str(source), "-o", str(target))
    assert "2 rows, 0 failed" in chatapp.stderr


def test_another_question_for_all_rows_is_new_work(chatapp: Shell, source: Path, target: Path) -> None:
    """A system prompt decides what is asked; how it is sampled does not. The old answers stay, at the end."""
    source.write_bytes(lines(row(1, "a"), row(2, "b")))
    chatapp("batch", str(source), "-o", str(target))
    chatapp("batch", str(source), "-o", str(target), "--temperature", "0")
    assert "This run took" not in chatapp.stderr
    chatapp("batch", str(source), "-o", str(target), "--system", "s")
    assert "2 earlier answers belong to no row" in chatapp.stderr
    assert [one["id"] for one in records(target)] == [1, 2, 1, 2]


def test_failed_rows_are_retried(chatapp: Shell, source: Path, target: Path) -> None:
    """With a larger context the long one is answered; the exit code is that of the whole output."""
    source.write_bytes(lines(row(1, "x" * 500), row(2, "b")))
    chatapp("batch", str(source), "-o", str(target), "--ctx", "400", code=3)
    chatapp("batch", str(source), "-o", str(target), code=3)
    assert [one["status"] for one in records(target)] == ["failed", "complete"]
    chatapp("batch", str(source), "-o", str(target), "--retry-failed")
    assert [(one["id"], one["status"]) for one in records(target)] == [(1, "complete"), (2, "complete")]


def test_check_finds_all_bad_rows_without_a_model(
    chatapp: Shell, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One line each on stdout; exit code 0 only without any."""
    monkeypatch.setattr(FakeEngine, "load", None)
    source.write_bytes(lines(row(1, "a"), {"id": "a"}) + b"{bad\n")
    assert "3 rows, 2 that cannot be asked." in chatapp("batch", str(source), "--check", code=3)
    source.write_bytes(lines(row(1, "a")))
    assert chatapp("batch", str(source), "--check") == ""


def test_rows_branch_from_a_conversation(chatapp: Shell, source: Path, target: Path) -> None:
    """Its messages are computed once, or restored; it stays as it was."""
    key = chatapp.json("run", "a long first question " * 10)["session"]
    before = chatapp.json("sessions", "show", key)
    source.write_bytes(lines(row(1, "one"), row(2, "two"), {"messages": [{"role": "system", "content": "s"}]}))
    chatapp("batch", str(source), "-o", str(target), "--session", key, code=3)
    first, second, _ = records(target)
    for answer in (first, second):
        stats = answer["stats"]
        assert stats["prompt_tokens"] == stats["resident_tokens"] + stats["restored_tokens"] + stats["prefilled_tokens"]
        assert stats["resident_tokens"] > 300
        assert stats["prefilled_tokens"] < 10
    assert "came from disk" in chatapp.stderr
    assert chatapp.json("sessions", "show", key) == before
    assert len(chatapp.json("sessions", "list")) == 1


def test_the_task_policy_holds_behind_a_conversation(
    chatapp: Shell, source: Path, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A row of another task is an error, unless it may be asked; rows on their own belong to none."""
    monkeypatch.setenv("CHATAPP_POLICY", "ask")
    key = chatapp.json("run", "How do I prune roses in winter?")["session"]
    other = "Write a SQL query that joins orders and customers by region and sums the revenue."
    source.write_bytes(lines(row(1, other)))
    chatapp("batch", str(source), "-o", str(target), "--session", key, code=3)
    assert "--allow-off-task asks it" in records(target)[0]["error"]
    chatapp("batch", str(source), "-o", str(target), "--session", key, "--retry-failed", "--allow-off-task")
    assert records(target)[0]["status"] == "complete"
    chatapp("batch", str(source))


def test_rows_can_be_kept_as_conversations(chatapp: Shell, source: Path, target: Path) -> None:
    """Each by itself, named in its row; a run that has nothing to answer keeps none twice."""
    source.write_bytes(lines(row(1, "one"), row(2, "two")) + b"bad\n")
    for _ in range(2):
        chatapp("batch", str(source), "-o", str(target), "--save-sessions", "--system", "s", code=3)
    listed = {session["id"]: session for session in chatapp.json("sessions", "list", "--tag", "batch")}
    answers = records(target)
    assert set(listed) == {one["session"] for one in answers[:2]}
    assert {listed[one["session"]]["title"] for one in answers if one["session"]} == {"one", "two"}
    assert answers[2]["session"] is None


def test_order_prefix_asks_like_rows_together(chatapp: Shell, source: Path, target: Path) -> None:
    """The prompts' common part is computed once each, and the output is in the input's order all the same."""
    prefixes = ["a" * 300, "b" * 300]
    source.write_bytes(lines(*(row(n, f"{prefixes[n % 2]} {n}") for n in range(8))))
    computed = []
    for order in ("input", "prefix"):
        output = target.with_suffix(f".{order}")
        chatapp("batch", str(source), "-o", str(output), "--order", order)
        computed.append(sum(one["stats"]["prefilled_tokens"] for one in records(output)))
        assert [one["id"] for one in records(output)] == list(range(8))
    assert computed[1] < 700 < 2_000 < computed[0]


def test_the_order_of_completion_can_stay(chatapp: Shell, source: Path, target: Path) -> None:
    """Then the output is as it was written."""
    source.write_bytes(lines(*(row(n, f"{'ab'[n % 2] * 300} {n}") for n in range(6))))
    chatapp("batch", str(source), "-o", str(target), "--order", "prefix", "--as-completed")
    ids = [one["id"] for one in records(target)]
    assert sorted(ids) == list(range(6))
    assert ids in ([0, 2, 4, 1, 3, 5], [1, 3, 5, 0, 2, 4])


def test_one_request_at_a_time_is_said(chatapp: Shell) -> None:
    """`--parallel` changes nothing here, and a sentence says so."""
    chatapp("batch", "-", "--parallel", "8", stdin=lines(row(1, "a")))
    assert "serves one request at a time" in chatapp.stderr


def test_a_row_may_take_so_long(chatapp: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    """Then it is an error, and the exit code says that some failed."""
    load = FakeEngine.load

    def hanging(engine: FakeEngine) -> Any:
        engine.hang_at = 2
        return load(engine)

    monkeypatch.setattr(FakeEngine, "load", hanging)
    (answer,) = (json.loads(line) for line in chatapp_lines_timed(chatapp))
    assert (answer["text"], answer["status"]) == ("Yo", "failed")
    assert "0.05 s" in answer["error"]


def test_answers_are_safe_from_a_power_cut_while_others_are_made(
    chatapp: Shell, source: Path, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not only at the end: what was answered is on the disk although the next row hangs."""
    load, synced = FakeEngine.load, []

    def hanging(engine: FakeEngine) -> Any:
        engine.hang_at = len(echo("a")) + 5
        return load(engine)

    def fsync(descriptor: int) -> None:
        synced.append(os.fstat(descriptor).st_size)

    monkeypatch.setattr(FakeEngine, "load", hanging)
    monkeypatch.setattr("chatapp.bulk._SYNC_S", 0.01)
    monkeypatch.setattr(os, "fsync", fsync)
    source.write_bytes(lines(row(1, "a"), row(2, "b" * 60)))
    chatapp("batch", str(source), "-o", str(target), "--timeout", "0.5", code=3)
    first, second = target.read_bytes().splitlines(keepends=True)
    assert len(first) in synced
    assert json.loads(second)["status"] == "failed"


def chatapp_lines_timed(chatapp: Shell) -> list[str]:
    """Return what a batch of one row prints that may take 0.05 s."""
    target = chatapp.data_dir.with_name("answers.jsonl")
    chatapp("batch", "-", "-o", str(target), "--timeout", "0.05", stdin=lines(row(1, "a")), code=3)
    return target.read_text().splitlines()


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--system", "s", "--session", "last"], "--system is for new conversations"),
        (["--allow-off-task"], "--allow-off-task is for --session"),
        (["--order", "prefix"], "needs a file"),
        (["--retry-failed"], "needs the file"),
        (["--timeout", "0"], "--timeout"),
        (["--parallel", "0"], "--parallel"),
        (["--limit", "0"], "--limit"),
    ],
)
def test_what_does_not_go_together_is_wrong_usage(chatapp: Shell, arguments: list[str], sentence: str) -> None:
    """One sentence before anything is read."""
    said = chatapp("batch", "-", *arguments, code=2)
    assert sentence in said
    assert len(said.splitlines()) == 1


def test_files_of_somebody_elses_are_not_written(chatapp: Shell, source: Path, target: Path) -> None:
    """Neither the input, nor what is no output of a batch."""
    source.write_bytes(lines(row(1, "a")))
    assert "The output is the input" in chatapp("batch", str(source), "-o", str(source), code=2)
    target.write_text("my diary")
    assert "no result of a batch" in chatapp("batch", str(source), "-o", str(target), code=1)
    assert (source.read_bytes(), target.read_text()) == (lines(row(1, "a")), "my diary")


@posix_only
def test_ctrl_c_stops_a_batch_that_goes_on(chatapp: Shell, source: Path, target: Path) -> None:
    """Whole rows stay, exit code 130, and the same command does the rest; a second one meanwhile is refused."""
    source.write_bytes(lines(*(row(n, "x") for n in range(30))))
    pipe = target.with_name("pipe")
    os.mkfifo(pipe)
    with chatapp.popen("batch", str(pipe), "-o", str(target)) as process, pipe.open("wb", buffering=0) as rows:
        rows.write(lines(row(0, "x")))
        while not (target.exists() and target.read_bytes().endswith(b"\n")):
            os.sched_yield()
        assert "Another batch is writing" in chatapp("batch", str(source), "-o", str(target), code=1)
        process.send_signal(signal.SIGINT)
        process.communicate()
        assert process.returncode == 130
    assert [one["id"] for one in records(target)] == [0]
    chatapp("batch", str(source), "-o", str(target))
    assert [one["id"] for one in records(target)] == list(range(30))
