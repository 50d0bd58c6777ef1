import io
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from chatapp.__main__ import main
from chatapp.objects import SAMPLING_KEYS, STATS_KEYS
from models.engine import Event, Prepared
from models.fake import FakeEngine, echo

ROOT = Path(__file__).parents[2]
posix_only = pytest.mark.skipif(os.name != "posix", reason="signals are POSIX's")


class Shell:
    """Runs `chatapp` over its own folders with the fake engine."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.stderr = ""
        self.data_dir = folder / "data"
        self._monkeypatch = monkeypatch
        monkeypatch.setenv("CHATAPP_DATA_DIR", str(self.data_dir))
        monkeypatch.setenv("CHATAPP_CACHE_DIR", str(folder / "cache"))
        monkeypatch.setenv("CHATAPP_ENGINE", "fake")

    def popen(self, *arguments: str, engine: str = "fake") -> subprocess.Popen[bytes]:
        """Start a command in a process of its own; its stdin is empty."""
        return subprocess.Popen(
            [sys.executable, "-W", "error", "-m", "chatapp", *arguments],
            cwd=ROOT,
            env={**os.environ, "CHATAPP_ENGINE": engine},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )

    def __call__(self, *arguments: str, stdin: bytes = b"", code: int = 0) -> str:
        """Run a command here; return its stdout, or its stderr where it is expected to fail."""
        out_bytes, error_bytes = io.BytesIO(), io.BytesIO()
        out, error = (io.TextIOWrapper(target, encoding="utf-8") for target in (out_bytes, error_bytes))
        with self._monkeypatch.context() as patched:
            patched.setattr(sys, "argv", ["chatapp", *arguments])
            patched.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))
            patched.setattr(sys, "stdout", out)
            patched.setattr(sys, "stderr", error)
            with pytest.raises(SystemExit) as exited:
                main()
        out.flush()
        error.flush()
        printed, self.stderr = (written.getvalue().decode() for written in (out_bytes, error_bytes))
        assert exited.value.code == code, (exited.value.code, printed, self.stderr)
        return printed if code == 0 else self.stderr

    def json(self, *arguments: str, stdin: bytes = b"") -> Any:
        """Run a command with --json; return what it printed."""
        return json.loads(self(*arguments, "--json", stdin=stdin))


@pytest.fixture
def chatapp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Shell:
    """The command line over empty folders."""
    return Shell(tmp_path, monkeypatch)


def test_run_prints_the_answer_alone(chatapp: Shell) -> None:
    """Stdout has the answer and nothing else, stderr nothing when nobody watches."""
    assert chatapp("run", "hello") == echo("hello")
    assert chatapp.stderr == ""


def test_run_json_is_the_documented_object(chatapp: Shell) -> None:
    """The keys are an interface."""
    answer = chatapp.json("run", "hello")
    assert list(answer) == ["session", "text", "reasoning", "token_ids", "status", "model", "sampling", "stats"]
    assert tuple(answer["stats"]) == STATS_KEYS
    assert tuple(answer["sampling"]) == SAMPLING_KEYS
    assert answer["text"] == echo("hello")
    assert answer["token_ids"] == list(echo("hello").encode())
    assert (answer["status"], answer["model"]) == ("complete", "fake")
    assert answer["stats"]["ttft_s"] > 0
    assert answer["stats"]["kv_bytes_written"] > 0


def test_a_session_goes_on_from_disk(chatapp: Shell) -> None:
    """The second run, in a new process, restores the history and evaluates only the new message."""
    first = chatapp.json("run", "one", "--system", "Be kind.")
    second = chatapp.json("run", "two", "--session", first["session"][:15])
    assert second["session"] == first["session"]
    assert second["stats"]["restored_tokens"] > 100
    assert second["stats"]["prefilled_tokens"] == len("two") + 3
    assert "already has" in chatapp("run", "x", "--session", first["session"], "--system", "y", code=1)


@pytest.mark.parametrize(
    ("arguments", "stdin", "question"),
    [
        (["from argument"], b"", "from argument"),
        ([], b"from stdin\n", "from stdin"),
        (["both"], b"file\ncontent\n", "both\n\nfile\ncontent"),
        ([], b"\xef\xbb\xbfwith a mark", "with a mark"),
        (["\ufeffa\r\nb\rc"], b"\xef\xbb\xbfd\r\ne\rf\r\n", "a\nb\nc\n\nd\ne\nf"),
        (["\u200fשלום\u200b"], "\u2067x\u2069\u200d".encode(), "\u200fשלום\u200b\n\n\u2067x\u2069\u200d"),
    ],
)
def test_the_question_comes_from_argument_and_stdin(
    chatapp: Shell, arguments: list[str], stdin: bytes, question: str
) -> None:
    """Either alone, or both with an empty line between them."""
    key = chatapp.json("run", *arguments, stdin=stdin)["session"]
    assert chatapp.json("sessions", "show", key)["messages"][0]["text"] == question


def test_damaged_input_is_replaced_and_counted(chatapp: Shell) -> None:
    """Bad UTF-8 on stdin is answered all the same, and stderr says how much of it was replaced."""
    key = chatapp.json("run", stdin=b"a\xffb\xfe")["session"]
    assert "2 damaged" in chatapp.stderr
    assert chatapp.json("sessions", "show", key)["messages"][0]["text"] == "a\ufffdb\ufffd"


def test_damaged_arguments_are_counted_with_the_rest(chatapp: Shell) -> None:
    """Bytes of a command line that are no UTF-8 come as surrogates; those of the system prompt count too."""
    key = chatapp.json("run", "a\udcff", "--system", "s\udcfe\ud83d\ude00", stdin=b"\x00")["session"]
    assert "3 damaged" in chatapp.stderr
    texts = [message["text"] for message in chatapp.json("sessions", "show", key)["messages"]]
    assert texts[:2] == ["s\ufffd😀", "a\ufffd\n\n\ufffd"]


def test_effective_sampling_is_told(chatapp: Shell) -> None:
    """The preset, what was given over it, and the seed that was drawn."""
    sampling = chatapp.json("run", "x", "--preset", "creative", "--temperature", "0.5", "--stop", "#")["sampling"]
    assert (sampling["temperature"], sampling["top_k"], sampling["top_p"]) == (0.5, 0, 1.0)
    assert (sampling["stop"], sampling["max_tokens"], sampling["grammar"]) == (["#"], None, None)
    assert sampling["seed"] == 0  # the fake engine's draw
    assert chatapp.json("run", "x", "--seed", "7")["sampling"]["seed"] == 7
    assert chatapp.json("run", "x")["sampling"]["temperature"] == 0.8


def test_schemas_and_grammars_reach_the_engine(chatapp: Shell, tmp_path: Path) -> None:
    """From a file or from the command line."""
    schema, grammar = tmp_path / "s.json", tmp_path / "g.gbnf"
    schema.write_bytes(b'\xef\xbb\xbf{"type": "integer"}\r\n')
    grammar.write_text('root ::= "yes" | "no"\n')
    from_file = chatapp.json("run", "x", "--json-schema", str(schema))["sampling"]["grammar"]
    assert from_file == chatapp.json("run", "x", "--json-schema", '{"type": "integer"}')["sampling"]["grammar"]
    assert "integer" in from_file
    assert chatapp.json("run", "x", "--grammar", str(grammar))["sampling"]["grammar"] == grammar.read_text()


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--json-schema", "{}", "--grammar", "x"], "do not go together"),
        (["--json-schema", "missing.json"], "missing.json"),
        (["--grammar", "missing.gbnf"], "missing.gbnf"),
        (["--grammar", "."], "cannot be read"),
        (["--grammar", os.devnull], "no rule named root"),
        (["--grammar", "\0"], "cannot be read"),
        (["--json-schema", '{"type": "strin"}'], "'strin' is no type"),
        (["--json-schema", "{"], "not JSON"),
        (["--preset", "wild"], "--preset"),
    ],
)
def test_a_wrong_constraint_is_wrong_usage(chatapp: Shell, arguments: list[str], sentence: str) -> None:
    """Said in one sentence before a model is loaded, in both commands that take it."""
    for command in (["run", "x"], ["batch", "-"]):
        said = chatapp(*command, *arguments, code=2)
        assert sentence in said
        assert len(said.splitlines()) == 1


def test_a_grammar_file_that_is_too_large_or_no_text_is_refused(chatapp: Shell, tmp_path: Path) -> None:
    """Neither is read whole."""
    path = tmp_path / "g"
    path.write_bytes(b'root ::= "a"\n#' + b"x" * 70_000)
    assert "too large" in chatapp("run", "x", "--grammar", str(path), code=2)
    assert "too large" in chatapp("run", "x", "--json-schema", str(path), code=2)
    path.write_bytes(b"root ::= \xff")
    assert "not UTF-8" in chatapp("run", "x", "--grammar", str(path), code=2)


def test_characters_the_model_does_not_see_are_told(chatapp: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    """On stderr, of one question and of all rows together."""
    prefill = FakeEngine._prefill

    async def lossy(engine: FakeEngine, *arguments: Any, **flags: Any) -> AsyncIterator[Event]:
        async for event in prefill(engine, *arguments, **flags):
            yield replace(event, lost_characters=2) if isinstance(event, Prepared) else event

    monkeypatch.setattr(FakeEngine, "_prefill", lossy)
    chatapp("run", "x")
    assert "2 character(s) cannot be written" in chatapp.stderr
    chatapp("batch", "-", stdin=b'{"prompt": "x"}\n{"prompt": "y\\u0000"}\n')
    assert "4 character(s) cannot be written" in chatapp.stderr
    assert "1 damaged character(s)" in chatapp.stderr


def test_ephemeral_runs_leave_nothing(chatapp: Shell) -> None:
    """Neither a conversation nor KV is on disk, not even the database."""
    answer = chatapp.json("run", "secret", "--ephemeral", "--system", "s")
    assert (answer["session"], answer["stats"]["kv_bytes_written"]) == (None, 0)
    assert not chatapp.data_dir.exists()
    assert list(chatapp.data_dir.parent.rglob("*.json")) == []


def test_sampling_flags_reach_the_engine(chatapp: Shell) -> None:
    """Limits and stop strings cut the answer."""
    assert chatapp("run", "x", "--max-tokens", "3", "--seed", "7", "--temperature", "0") == "You\n"
    assert chatapp("run", "x", "--stop", "**x", "--stop", " said") == "You\n"


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["run"], "no question"),
        (["run", "  "], "no question"),
        (["run", "x", "--ephemeral", "--session", "abc"], "ephemeral"),
        (["run", "x", "--top-p", "2"], "top-p"),
        (["nonsense"], "nonsense"),
        (["--session", "x", "run", "y"], "--session"),
        ([], "needs a terminal"),
        (["batch", "missing.jsonl"], "missing.jsonl"),
    ],
)
def test_wrong_usage_is_one_sentence_and_exit_code_2(chatapp: Shell, arguments: list[str], sentence: str) -> None:
    """Nothing happens, one line says why."""
    said = chatapp(*arguments, code=2)
    assert sentence in said
    assert len(said.splitlines()) == 1


def test_the_environment_can_be_wrong_too(chatapp: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    """A variable that makes no sense is wrong usage as well."""
    monkeypatch.setenv("CHATAPP_CTX", "many")
    assert "CHATAPP_CTX" in chatapp("run", "x", code=2)


@pytest.mark.parametrize(
    ("arguments", "content", "sentence"),
    [
        (["run", "x", "--kv-budget", "lots"], "", "--kv-budget must be a size"),
        (["run", "x", "--kv-type", "q4_0"], "", "--kv-type"),
        (["run", "x", "--lora", "a=nan"], "", "--lora must be"),
        (["run", "x", "--flash-attention", "off"], 'kv_type = "q8_0"', "needs flash attention"),
        (["run", "x", "--config", "missing.toml"], "", "missing.toml"),
        (["run", "x"], "ctx = 'many'", "ctx in "),
        (["run", "x"], '"\\u001b[2J\\n" = 1', "unknown key"),
        (["sessions", "list"], "ctxt = 1", "perhaps 'ctx' is meant"),
    ],
)
def test_wrong_settings_are_one_sentence_and_exit_code_2(
    chatapp: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], content: str, sentence: str
) -> None:
    """From flags and from the file, in every command."""
    (tmp_path / "config.toml").write_text(content)
    monkeypatch.setenv("CHATAPP_CONFIG", str(tmp_path / "config.toml"))
    said = chatapp(*arguments, code=2)
    assert sentence in said
    assert len(said.splitlines()) == 1
    assert "\x1b" not in said


def test_the_file_is_read_and_flags_win(chatapp: Shell, tmp_path: Path) -> None:
    """KV that the file switches off is switched on by a flag, before or behind the command."""
    (tmp_path / "config.toml").write_text("[kv]\nenabled = false")
    config = ["--config", str(tmp_path / "config.toml")]

    def written(*arguments: str) -> bool:
        return bool(chatapp.json(*arguments)["stats"]["kv_bytes_written"])

    assert not written("run", "a", *config)
    assert written(*config, "run", "b", "--kv")
    assert written("--kv", *config, "run", "c")
    assert not written("--kv", "run", "d", "--no-kv")


def test_adapters_before_the_command_are_not_lost(chatapp: Shell) -> None:
    """A flag that may be repeated counts as not given where it is not."""
    assert "--lora must be" in chatapp("--lora", "a=nan", "run", "x", code=2)
    assert chatapp("--lora", "a=nan", "run", "x", "--lora", "b=1") == echo("x")


def test_errors_cannot_command_the_terminal(chatapp: Shell) -> None:
    """What the user typed is shown harmless in error messages."""
    assert "\x1b" not in chatapp("sessions", "show", "\x1b]0;x\x07", code=1)
    assert "\x1b" not in chatapp("\x1b[2J", code=2)


def test_a_question_that_is_too_long_is_one_sentence(chatapp: Shell) -> None:
    """Nothing was evaluated, the question is kept as failed and the conversation goes on."""
    key = chatapp.json("run", "short")["session"]
    said = chatapp("run", "x" * 400, "--session", key, "--ctx", "300", "--json", code=1)
    assert "context" in said
    chatapp("run", "y", "--session", key)
    statuses = [message["status"] for message in chatapp.json("sessions", "show", key)["messages"]]
    assert statuses == ["complete", "complete", "failed", "complete", "complete"]


@pytest.mark.parametrize("content", [b"no database" * 1000, b"no"])
def test_a_damaged_store_is_one_sentence(chatapp: Shell, content: bytes) -> None:
    """Every command names the file and the way out."""
    chatapp.data_dir.mkdir()
    (chatapp.data_dir / "chat.db").write_bytes(content)
    for command in (["run", "x"], ["sessions", "list"]):
        said = chatapp(*command, code=1)
        assert "chat.db" in said
        assert "--data-dir" in said
        assert len(said.splitlines()) == 1


def test_a_folder_that_cannot_be_used_is_one_sentence(chatapp: Shell, tmp_path: Path) -> None:
    """Data and cache folder alike."""
    (tmp_path / "file").touch()
    impossible = str(tmp_path / "file" / "x")
    assert "--data-dir" in chatapp("run", "x", "--data-dir", impossible, code=1)
    assert "file" in chatapp("run", "x", "--cache-dir", impossible, code=1)


@posix_only
def test_a_full_disk_is_one_sentence(chatapp: Shell) -> None:
    """When files cannot grow any more, the answer is not pretended to be saved."""
    key = chatapp.json("run", "before")["session"]
    shell = f"ulimit -f 40; exec {sys.executable} -m chatapp run --session {key} '{'x' * 60_000}'"
    done = subprocess.run(
        ["bash", "-c", shell],
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1, done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert "chat.db" in done.stderr
    assert [message["text"] for message in chatapp.json("sessions", "show", key)["messages"]][:1] == ["before"]


def read_some(process: subprocess.Popen[bytes], n: int) -> bytes:
    """Return the first bytes of a running answer."""
    assert process.stdout
    return process.stdout.read(n)


@posix_only
def test_a_program_killed_in_mid_answer_loses_nothing_said(chatapp: Shell) -> None:
    """After kill -9 the next command finds the partial answer as interrupted, and the next turn goes on."""
    with chatapp.popen("run", "a long question", engine="fake:200") as process:
        said = read_some(process, 60)
        process.kill()
    (listed,) = chatapp.json("sessions", "list")
    question, answer = chatapp.json("sessions", "show", listed["id"])["messages"]
    assert (question["text"], answer["status"]) == ("a long question", "interrupted")
    assert answer["text"]
    assert echo("a long question").startswith(answer["text"])
    assert len(said) - len(answer["text"]) <= 200  # a second's worth
    assert list((chatapp.data_dir / "journal").glob("*.jsonl")) == []
    after = chatapp.json("run", "go on", "--session", listed["id"])
    assert after["stats"]["restored_tokens"] + after["stats"]["prefilled_tokens"] > len(answer["text"])


@posix_only
@pytest.mark.parametrize("mode", [[], ["--json"]])
def test_ctrl_c_stops_the_answer_and_keeps_it(chatapp: Shell, mode: list[str]) -> None:
    """The exit code is 130, the partial answer is on stdout and stored as stopped."""
    with chatapp.popen("run", "question", *mode, engine="fake:50") as process:
        said = b"" if mode else read_some(process, 5)
        journal = chatapp.data_dir / "journal"
        while not list(journal.glob("*.jsonl")):
            assert process.poll() is None
            time.sleep(0.01)  # nothing else tells from outside that it has begun
        process.send_signal(signal.SIGINT)
        out, error = process.communicate()
    assert (process.returncode, error) == (130, b"")
    (listed,) = chatapp.json("sessions", "list")
    answer = chatapp.json("sessions", "show", listed["id"])["messages"][1]
    assert answer["status"] == "stopped"
    shown = json.loads(out)["text"] if mode else (said + out).decode().rstrip("\n")
    assert shown == answer["text"].rstrip("\n")
    assert len(answer["text"]) < len(echo("question"))


@posix_only
def test_a_closed_pipe_is_quiet(chatapp: Shell) -> None:
    """When nobody reads any more, the program ends without a word and keeps what was said."""
    with chatapp.popen("run", "question", engine="fake:300") as process:
        read_some(process, 3)
        assert process.stdout
        process.stdout.close()
        assert process.stderr
        assert process.stderr.read() == b""
    assert process.returncode == 1
    (listed,) = chatapp.json("sessions", "list")
    assert chatapp.json("sessions", "show", listed["id"])["messages"][1]["status"] == "stopped"


def test_sessions_are_listed_shown_and_changed(chatapp: Shell) -> None:
    """Each subcommand does what it says and prints the conversation as JSON."""
    key = chatapp.json("run", "What is\ta tap?\nmore")["session"]
    (listed,) = chatapp.json("sessions", "list")
    assert (listed["id"], listed["title"], listed["n_messages"]) == (key, "What is a tap?", 2)
    assert list(listed) == [
        "id",
        "title",
        "task",
        "state",
        "system",
        "model",
        "created_at",
        "updated_at",
        "trashed_at",
        "pinned_at",
        "archived_at",
        "tags",
        "forked_from",
        "n_ctx",
        "reasoning",
        "sampling",
        "n_messages",
        "n_tokens",
    ]
    assert "What is a tap?" in chatapp("sessions", "list")
    shown = chatapp.json("sessions", "show", key)
    assert [message["role"] for message in shown["messages"]] == ["user", "assistant"]
    assert tuple(shown["messages"][1]["stats"]) == STATS_KEYS
    assert echo("What is\ta tap?\nmore").strip() in chatapp("sessions", "show", key)
    assert chatapp.json("sessions", "done", key)["state"] == "done"
    assert "reopen" in chatapp("run", "x", "--session", key, code=1)
    assert chatapp.json("sessions", "reopen", key)["state"] == "open"
    assert chatapp.json("sessions", "delete", key)["trashed_at"] is not None
    assert chatapp.json("sessions", "list") == []
    assert [row["id"] for row in chatapp.json("sessions", "list", "--trash")] == [key]
    assert chatapp.json("sessions", "restore", key)["trashed_at"] is None
    assert chatapp("sessions", "done", key) == ""


def test_deleting_forever_leaves_no_trace(chatapp: Shell, tmp_path: Path) -> None:
    """Text and KV are in no file any more; another conversation's KV stays."""
    gone = chatapp.json("run", "kumquat")["session"]
    kept = chatapp.json("run", "pear")["session"]
    assert chatapp.json("sessions", "delete", gone, "--forever") == {"id": gone, "deleted": True}
    contents = [path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()]
    ids = json.dumps(list(b"kumquat"))[1:-1].encode()
    assert not [content for content in contents if b"kumquat" in content or ids in content]
    assert chatapp.json("run", "more", "--session", kept)["stats"]["restored_tokens"] > 100
    assert "no conversation" in chatapp("sessions", "show", gone, code=1)


def test_batch_answers_rows(chatapp: Shell, tmp_path: Path) -> None:
    """Each row has the documented keys; one bad row makes exit code 3 and stops nothing."""
    source, target = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    source.write_bytes(b'{"id": "a", "prompt": "one"}\nbad\n{"id": "b", "prompt": "two"}\n')
    assert "3 rows, 1 failed" in chatapp("batch", str(source), "-o", str(target), "--system", "s", code=3)
    rows = [json.loads(line) for line in target.read_text().splitlines()]
    assert [(row["id"], row["line"], row["status"]) for row in rows] == [
        ("a", 1, "complete"),
        (None, 2, "failed"),
        ("b", 3, "complete"),
    ]
    keys = ("id", "line", "text", "reasoning", "token_ids", "status", "error", "stats", "session", "key")
    assert {tuple(row) for row in rows} == {keys}
    assert {tuple(row["stats"]) for row in rows} == {STATS_KEYS}
    good = b'{"id": 1, "prompt": "one"}\n'
    assert json.loads(chatapp("batch", "-", stdin=good))["text"] == echo("one")
    assert not chatapp.data_dir.exists()
    assert "directory" in chatapp("batch", "-", "-o", str(tmp_path), stdin=good, code=1)


def test_everything_on_disk_is_private(chatapp: Shell, tmp_path: Path) -> None:
    """Under umask 0, no file or folder of ours is open to others."""
    old = os.umask(0)
    try:
        chatapp("run", "x")
    finally:
        os.umask(old)
    mine = [path for top in ("data", "cache") for path in (tmp_path / top).rglob("*")]
    assert [path for path in [*mine, chatapp.data_dir] if path.stat().st_mode & 0o077] == []


def test_help_is_there_at_once(chatapp: Shell) -> None:
    """It takes at most four times as long as Python needs to import click; the best of five each."""
    bare_s, help_s = [], []
    for _ in range(5):
        started = time.perf_counter()
        subprocess.run([sys.executable, "-W", "error", "-c", "import click"], cwd=ROOT, check=True)
        bare_s.append(time.perf_counter() - started)
        started = time.perf_counter()
        with chatapp.popen("--help") as process:
            out, _ = process.communicate()
        help_s.append(time.perf_counter() - started)
        assert b"Chat with a local model" in out
    assert min(help_s) < 4 * min(bare_s)


def test_folders_can_be_given_before_or_behind_the_command(chatapp: Shell, tmp_path: Path) -> None:
    """Flags of the program are those of its commands; the nearer one wins."""
    first, second = str(tmp_path / "1"), str(tmp_path / "2")
    chatapp("--data-dir", first, "run", "x")
    chatapp("--data-dir", first, "run", "y", "--data-dir", second)
    listed = [chatapp.json("--data-dir", where, "sessions", "list") for where in (first, second)]
    assert [[row["title"] for row in rows] for rows in listed] == [["x"], ["y"]]
