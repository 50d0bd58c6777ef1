import csv
import io
import json
from contextlib import closing
from datetime import datetime
from pathlib import Path

import click
import pytest

from chatapp.cli_stats import parse_by, parse_since
from chatapp.csvtext import csv_lines
from chatapp.statlist import FIGURE_KEYS, TURN_KEYS
from models.engine import TokenRun, TurnStats
from sessions.conversation import ModelRef
from sessions.store import Store
from tests.chatapp.test_cli import Shell

NOON = datetime(2026, 11, 30, 12).astimezone().timestamp()
DAY_S = 86_400
EVIL = ModelRef("bb" * 32, "=cmd|'/c calc'!A1\x1b[2J", "", 2)


@pytest.fixture
def chatapp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Shell:
    """The command line over empty folders."""
    return Shell(tmp_path, monkeypatch)


def fill(chatapp: Shell) -> list[str]:
    """Store turns of two models on two days; return the conversations' ids."""
    turns = (
        (NOON, ModelRef("aa" * 32, "tiny", "", 1), TurnStats(ttft_s=0.5, tpot_s=0.1, output_tokens=5)),
        (NOON + DAY_S, EVIL, TurnStats(ttft_s=1.5, tpot_s=0.2, miss_reason="nothing stored")),
    )
    keys = []
    for at, model, stats in turns:
        with closing(Store(chatapp.data_dir, clock=lambda at=at: at)) as store:  # type: ignore[misc]
            key = store.create_session(system="s").id
            question = store.add_question(key, "q", title="q")
            store.add_answer(question, "a", "complete", run=TokenRun((1, 2), 0, 2), stats=stats, model=model)
            keys.append(key)
    return keys


def test_stats_of_all_turns(chatapp: Shell) -> None:
    """One object with every key, null where unknown, and the same as a table."""
    fill(chatapp)
    found = chatapp.json("stats")
    assert list(found["total"]) == list(FIGURE_KEYS)
    assert (found["by"], found["groups"]) == ([], [])
    total = found["total"]
    assert (total["turns"], total["ttft_p50_s"], total["ttft_p95_s"], total["output_tokens"]) == (2, 0.5, 1.5, 5)
    assert (total["tokens_per_s_p50"], total["reuse_share"]) == (10.0, None)
    assert total["miss_reasons"] == [{"reason": "nothing stored", "turns": 1}]
    lines = [line.split() for line in chatapp("stats").splitlines()]
    assert [
        "first",
        "text",
        "after",
        "0.50",
        "s",
        "as",
        "a",
        "rule,",
        "19",
        "of",
        "20",
        "turns",
        "within",
        "1.50",
        "s",
    ] in lines
    assert ["reused", "-"] in lines


def test_stats_by_model_and_day(chatapp: Shell) -> None:
    """A row for each model and day, days in their order; a table of them has one line each."""
    fill(chatapp)
    groups = chatapp.json("stats", "--by", "model,day")["groups"]
    assert [(g["day"], g["model"], g["turns"]) for g in groups] == [
        ("2026-11-30", "tiny", 1),
        ("2026-12-01", EVIL.name, 1),
    ]
    table = chatapp("stats", "--by", "day").split("\n\n")[0].splitlines()
    assert [line.split()[0] for line in table] == ["day", "2026-11-30", "2026-12-01"]
    assert "model" not in chatapp.json("stats", "--by", "day")["groups"][0]


def test_stats_leave_turns_out(chatapp: Shell) -> None:
    """By day, model and trash; without any turn it says so."""
    first, _ = fill(chatapp)
    assert chatapp.json("stats", "--since", "2026-12-01")["total"]["ttft_p50_s"] == 1.5
    assert chatapp.json("stats", "--model", "TIN")["total"]["ttft_p50_s"] == 0.5
    chatapp("sessions", "delete", first)
    assert chatapp.json("stats")["total"]["turns"] == 1
    assert chatapp.json("stats", "--trash")["total"]["turns"] == 2
    assert chatapp("stats", "--model", "none") == "No turn was measured.\n"
    assert chatapp.json("stats", "--model", "none")["total"]["turns"] == 0


def test_csv_has_a_row_for_each_group(chatapp: Shell) -> None:
    """Without groups, the one of all turns; cells that are unknown are empty."""
    fill(chatapp)
    whole = list(csv.DictReader(io.StringIO(chatapp("stats", "--csv"))))
    assert [(row["turns"], row["reuse_share"], row["miss_reasons"]) for row in whole] == [
        ("2", "", "nothing stored (1)")
    ]
    by_model = list(csv.DictReader(io.StringIO(chatapp("stats", "--csv", "--by", "model"))))
    assert [row["model"] for row in by_model] == ["'" + EVIL.name, "tiny"]


def test_turns_are_exported_whole(chatapp: Shell) -> None:
    """A row for each turn with every field; JSON has numbers and nulls, CSV times that people read."""
    keys = fill(chatapp)
    rows = json.loads(chatapp("stats", "--turns", "--json"))
    assert [list(row) for row in rows] == [list(TURN_KEYS)] * 2
    assert [(row["session"], row["model"], row["at"]) for row in rows] == [
        (keys[0], "tiny", NOON),
        (keys[1], EVIL.name, NOON + DAY_S),
    ]
    assert (rows[0]["ttft_s"], rows[0]["seed"]) == (0.5, None)
    table = list(csv.DictReader(io.StringIO(chatapp("stats", "--turns", "--csv"))))
    assert [row["model"] for row in table] == ["tiny", "'" + EVIL.name]
    assert datetime.fromisoformat(table[0]["at"]).timestamp() == NOON
    assert json.loads(chatapp("stats", "--turns", "--json", "--model", "none")) == []


def test_a_file_is_new_and_has_the_format_of_its_name(chatapp: Shell, tmp_path: Path) -> None:
    """Nothing is printed, and nothing is overwritten."""
    fill(chatapp)
    target = tmp_path / "turns.csv"
    assert chatapp("stats", "--turns", "-o", str(target)) == ""
    written = target.read_text()
    assert written.startswith(",".join(TURN_KEYS))
    assert "is there already" in chatapp("stats", "--turns", "-o", str(target), code=1)
    assert target.read_text() == written
    chatapp("stats", "-o", str(tmp_path / "stats.json"))
    assert json.loads((tmp_path / "stats.json").read_text())["total"]["turns"] == 2
    assert "cannot be written" in chatapp("stats", "--csv", "-o", str(tmp_path / "no" / "x.csv"), code=1)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--csv", "--json"], "do not go together"),
        (["--turns"], "--csv or --json"),
        (["--turns", "--csv", "--by", "day"], "leave --by out"),
        (["--by", "week"], "model, day"),
        (["--by", "day,"], "model, day"),
        (["--since", "yesterday"], "2026-11-30"),
    ],
)
def test_wrong_usage_is_named(chatapp: Shell, arguments: list[str], said: str) -> None:
    """One sentence says what goes."""
    assert said in chatapp("stats", *arguments, code=2)


def test_a_day_begins_at_midnight_here() -> None:
    """Days, moments, and so many hours, days or weeks ago."""
    assert parse_since("2026-11-30", 0.0) == NOON - 12 * 3600
    assert parse_since("2026-11-30T12:00", 0.0) == NOON
    assert [parse_since(ago, NOON) for ago in ("12h", "7d", "2W")] == [NOON - n * 3600 for n in (12, 168, 336)]
    assert parse_by("day, model") == ("model", "day")
    assert parse_by("") == ()
    with pytest.raises(click.UsageError):
        parse_since("", 0.0)


def test_no_cell_is_a_formula() -> None:
    """A text that a spreadsheet would run gets an apostrophe; numbers and plain names stay."""
    texts = ["=1+1", "+1", "-1", "@SUM(A1)", "\t=1", "\r=1", " =1", "＝1", "a=1", "", "Qwen-2", 'a,"b"\nc']
    [*lines] = csv_lines(["name"], ([text] for text in texts))
    cells = [row[0] if row else "" for row in csv.reader(io.StringIO("".join(lines), newline=""))]
    assert cells == ["name", *("'" + text for text in texts[:8]), *texts[8:]]
    assert "".join(csv_lines(["n", "x"], [[-1, None], [0.5, "-"]])) == "n,x\n-1,\n0.5,'-\n"


def test_what_a_conversation_costs(chatapp: Shell) -> None:
    """Tokens by message and role, what the last turns reused, and the way back by this model's rates."""
    key = chatapp.json("run", "hello", "--system", "Be kind.")["session"]
    chatapp("run", "again", "--session", key)
    found = chatapp.json("sessions", "cost", key)
    assert (found["session"], found["model"], found["n_ctx"], found["context_share"]) == (key, "fake", None, None)
    assert [message["role"] for message in found["messages"]] == ["system", "user", "assistant", "user", "assistant"]
    assert sum(message["n_tokens"] for message in found["messages"]) == found["n_tokens"]
    assert found["kv_bytes"] == 1024 * found["n_tokens"]
    assert [turn["reuse_share"] is not None for turn in found["last_turns"]] == [True, True]
    assert found["rebuild_s"] > 0
    assert found["heavy"] is None
    assert chatapp.json("sessions", "cost", key, "--config", "/dev/null")["n_tokens"] == found["n_tokens"]
    text = chatapp("sessions", "cost", key)
    assert "system" in text
    assert "largest" not in text


def test_a_heavy_message_comes_with_the_way_out(chatapp: Shell) -> None:
    """The command that is named leaves the turn out."""
    key = chatapp.json("run", "log " * 500)["session"]
    for text in ("a", "b"):
        chatapp("run", text, "--session", key)
    heavy = chatapp.json("sessions", "cost", key)["heavy"]
    line = chatapp("sessions", "cost", key).splitlines()[-1]
    assert f"Message {heavy['message_id']} holds" in line
    command = line.split("`")[1].split()
    assert command == ["chatapp", "sessions", "fork", key, "--without", str(heavy["question_id"])]
    fork = chatapp(*command[1:]).strip()
    assert chatapp.json("sessions", "cost", fork)["n_tokens"] < chatapp.json("sessions", "cost", key)["n_tokens"] / 2


def test_the_cost_view_is_text(chatapp: Shell) -> None:
    """Titles and messages are lines of a table, whatever they hold; an unknown id is one sentence."""
    key = chatapp.json("run", ">\x1b[2J\u202ehello\nworld")["session"]
    text = chatapp("sessions", "cost", key)
    assert "\x1b" not in text
    assert "\u202e" not in text
    assert ">␛[2J" in text
    assert "There is no conversation" in chatapp("sessions", "cost", "zz", code=1)


def test_the_context_is_the_one_that_was_asked_for(chatapp: Shell) -> None:
    """A share of the context is told where its size is known."""
    key = chatapp.json("run", "hello")["session"]
    found = json.loads(chatapp("--ctx", "1000", "sessions", "cost", key, "--json"))
    assert (found["n_ctx"], found["context_share"]) == (1000, found["n_tokens"] / 1000)
    assert "of a context of 1,000" in chatapp("--ctx", "1000", "sessions", "cost", key)
