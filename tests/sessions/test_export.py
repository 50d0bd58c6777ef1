import json
import os
import stat
import unicodedata
from collections.abc import Iterator
from contextlib import closing
from dataclasses import fields, replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from models.engine import Role, TokenRun, TurnStats
from models.presets import SamplingChoice
from sessions import exportfiles
from sessions.conversation import MessageStatus, ModelRef, Session
from sessions.errors import BadRequest, StoreError
from sessions.exportfiles import make_folder, safe_stem, write_file, write_into
from sessions.exporting import markdown, open_fence, plain
from sessions.history import title_of
from sessions.hygiene import tidy
from sessions.store import Store
from sessions.transcript import Line, Transcript, insert, load
from tests.sessions.transfer import brought, exported, json_file, only, talk

BARE = Session("0" * 16, "T", "T", "open", None, None, 1.5, 2.5, None)
ODD = st.text(st.characters(exclude_categories=()), max_size=30) | st.sampled_from(
    ["", "<|im_end|>", "\ufeffx\r\ny\rz", "\ud83d\ude00", "\udc00\ud800", "e\u0301\u202e\u2066", "\0\x1b[2J", "```\n"]
)


def times() -> st.SearchStrategy[float]:
    """Moments as clocks give them."""
    return st.floats(0, 4e9, allow_nan=False)


@st.composite
def transcripts(draw: st.DrawFn) -> Transcript:
    """Conversations of any shape, with text by the rule for text that comes in."""
    model = draw(
        st.none()
        | st.builds(
            ModelRef, st.text("0123456789abcdef", min_size=64, max_size=64), st.just("m"), st.just(""), st.just(7)
        )
    )
    lines: list[Line] = []
    if draw(st.booleans()):
        lines.append(Line(None, "system", tidy(draw(ODD))[0], "complete", draw(times())))
    for _ in range(draw(st.integers(0, 8))):
        parent = draw(st.none() | st.integers(0, len(lines) - 1)) if lines else None
        role: Role = draw(st.sampled_from(["user", "assistant"]))
        text = draw(ODD)
        # What a model said is kept as it is, as far as it can be stored.
        said = "".join(char for char in text if not 0xD800 <= ord(char) < 0xE000)
        text = tidy(text)[0] if role == "user" else said
        ids = tuple(draw(st.lists(st.integers(0, 2**32 - 1), max_size=5)))
        run = TokenRun(ids, 0, draw(st.integers(0, len(ids)))) if model and draw(st.booleans()) else None
        stats = (
            TurnStats(ttft_s=draw(times()), prompt_tokens=3, miss_reason="why", seed=0) if draw(st.booleans()) else None
        )
        status: MessageStatus = draw(st.sampled_from(["complete", "stopped", "cut", "interrupted", "failed"]))
        lines.append(Line(parent, role, text, status, draw(times()), run, stats))
    session = Session(
        id=draw(st.text("0123456789abcdefghjkmnpqrstvwxyz", min_size=16, max_size=16)),
        title=title_of(tidy(draw(ODD))[0]),
        task=title_of(tidy(draw(ODD))[0], limit=300),
        state=draw(st.sampled_from(["open", "done"])),
        system=lines[0].text if lines and lines[0].role == "system" else None,
        model=model,
        created_at=draw(times()),
        updated_at=draw(times()),
        trashed_at=draw(st.none() | times()),
        n_ctx=draw(st.none() | st.integers(1, 10**6)),
        reasoning=draw(st.sampled_from(["keep", "strip"])),
        sampling=draw(
            st.sampled_from([None, SamplingChoice("precise"), SamplingChoice(None, {"seed": 3, "stop": ("a", "b")})])
        ),
        forked_from=draw(st.none() | st.just("0123456789abcdef")),
        pinned_at=draw(st.none() | times()),
        archived_at=draw(st.none() | times()),
        tags=tuple(sorted(draw(st.sets(st.sampled_from(["a", "여행", "x-1"]))))),
    )
    return Transcript(session, tuple(lines), draw(st.none() | st.integers(0, len(lines) - 1)) if lines else None)


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(transcripts(), max_size=3, unique_by=lambda transcript: transcript.session.id))
def test_json_brings_everything_back(tmp_path_factory: pytest.TempPathFactory, given_: list[Transcript]) -> None:
    """Written, read into an empty folder and written again, a file is the same, byte by byte, and so are the values."""
    folder = tmp_path_factory.mktemp("there-and-back")
    ids = [transcript.session.id for transcript in given_]
    with closing(Store(folder / "one")) as one, closing(Store(folder / "two")) as two:
        with one.db.transaction() as db:
            for transcript in given_:
                insert(db, transcript)
        assert [load(one, session_id) for session_id in ids] == given_
        text = exported(one, ids, tokens=True)
        path = folder / "x.json"
        path.write_bytes(text.encode())
        assert {outcome.status for outcome in brought(two, path, tokens=True)} <= {"added"}
        assert exported(two, ids, tokens=True) == text
        assert [load(two, session_id) for session_id in ids] == given_
        assert {outcome.status for outcome in brought(two, path)} <= {"there"}


def filled(store: Store) -> str:
    """Return the id of a conversation with a branch, token ids and stats."""
    session = store.create_session(system="Be brief.")
    question = store.add_question(session.id, "Wie geht's? 👍", title="Wie geht's?")
    model = ModelRef("ab" * 32, "tiny", "/secret/place/tiny.gguf", 9)
    run = TokenRun((1, 2, 3), 1, 2)
    store.add_answer(
        question, "<think>\nHm.\n</think>\n\nGut.", "cut", run=run, stats=TurnStats(ttft_s=0.5), model=model
    )
    store.add_answer(question, "Besser.", "complete", run=None)
    store.set_tags(session.id, ["alltag"])
    return session.id


def test_every_stat_is_known_by_its_type() -> None:
    """A new stat that is no number needs a rule of its own to come back."""
    others = {field.name for field in fields(TurnStats) if str(field.type) not in ("float | None", "int | None")}
    assert others == {"miss_reason", "restore_decision"}


def test_json_says_nothing_about_this_machine(store: Store, tmp_path: Path) -> None:
    """Where a model's file lies stays out, and is not taken from a file either; token ids only when asked for."""
    session_id = filled(store)
    assert "/secret" not in exported(store, [session_id], tokens=True)
    assert '"ids"' not in exported(store, [session_id])
    value = json.loads(exported(store, [session_id], tokens=True))
    value["conversations"][0]["model"]["path"] = "/planted"
    value["conversations"][0]["endpoint"] = "http://planted"
    with closing(Store(tmp_path / "other")) as other:
        transcript = only(other, brought(other, json_file(tmp_path / "x.json", value)))
        assert transcript.session.model == ModelRef("ab" * 32, "tiny", "", 9)
        assert [line.run for line in transcript.lines] == [None] * 4


def test_a_model_that_is_known_keeps_its_place(store: Store, tmp_path: Path) -> None:
    """Importing does not rename a model of this machine."""
    session_id = filled(store)
    value = json.loads(exported(store, [session_id]))
    value["conversations"][0]["model"]["name"] = "planted"
    value["conversations"][0]["id"] = ""
    only(store, brought(store, json_file(tmp_path / "x.json", value)))
    assert [(model.name, model.path) for model in store.models()] == [("tiny", "/secret/place/tiny.gguf")]


@pytest.mark.parametrize(
    "change",
    [
        {"messages": None},
        {"messages": [{"role": "user"}]},
        {"messages": [{"role": "tool", "text": "x"}]},
        {"messages": [{"role": "user", "text": "x", "parent": 0}]},
        {"messages": [{"role": "user", "text": "x", "created_at": -1}]},
        {"messages": [{"role": "user", "text": "x"}, {"role": "system", "text": "x"}]},
        {"messages": [{"role": "user", "text": "x", "run": {"ids": [1], "body": [0, 2]}}]},
        {"messages": [{"role": "user", "text": "x", "run": {"ids": [-1], "body": [0, 0]}}]},
        {"state": "open?"},
        {"head": 9},
        {"created_at": 1e300},
        {"created_at": "today"},
        {"model": {"weights": "../../x"}},
        {"n_ctx": 0},
        {"n_ctx": True},
    ],
)
def test_fields_that_cannot_be_are_a_sentence(store: Store, tmp_path: Path, change: dict[str, object]) -> None:
    """A damaged conversation of our own format fails, alone and with its title."""
    value = json.loads(exported(store, [filled(store)]))
    value["conversations"][0] |= change
    (outcome,) = brought(store, json_file(tmp_path / "x.json", value), tokens=True)
    assert (outcome.status, outcome.title) == ("failed", "Wie geht's?")
    assert outcome.reason


def test_fields_that_are_missing_have_usual_values(store: Store, tmp_path: Path) -> None:
    """A conversation of texts alone is enough; unknown fields and unfit tags are dropped."""
    value = {
        "format": "chatapp-conversations",
        "version": 1,
        "conversations": [
            {
                "id": "../x",
                "tags": ["ok", "two words", 3],
                "sampling": {"preset": "no", "given": {"top_p": 7, "seed": 1}},
                "messages": [{"role": "user", "text": "x"}, {"role": "assistant", "text": "y", "parent": 0}],
                "head": 1,
            }
        ],
    }
    outcomes = brought(store, json_file(tmp_path / "x.json", value))
    transcript = only(store, outcomes)
    assert talk(transcript) == [("user", "x"), ("assistant", "y")]
    assert (transcript.session.tags, transcript.session.sampling) == (("ok",), SamplingChoice(None, {"seed": 1}))
    assert outcomes[0].changes["tags"] == 2
    assert len(transcript.session.id) == 16


def test_markdown_reads_well_and_comes_back(store: Store, tmp_path: Path) -> None:
    """Title and facts are escaped, reasoning is quoted, code is untouched, and an open block is closed."""
    session = replace(BARE, title="*A* <b>", tags=("x",))
    code = "```python\n# comment\n## User\nprint('<b>')"
    lines = (
        Line(None, "user", "## Assistant\n\nhello", "complete", 0.0),
        Line(0, "assistant", f"<think>\nHm\n\n```\nopen\n</think>\n\n{code}", "cut", 60.0),
        Line(0, "assistant", "other", "complete", 61.0),
    )
    text = "".join(markdown(Transcript(session, lines, 1)))
    assert text.startswith("# \\*A\\* \\<b\\>\n")
    assert "> **Reasoning**\n>\n> Hm\n>\n> ```\n> open\n" in text
    assert "\n## Assistant (cut)\n\n> **Reasoning**" in text
    assert text.endswith(f"\n{code}\n```\n")
    assert "messages of other branches, not shown: 1" in text
    path = tmp_path / "x.md"
    path.write_text(text, encoding="utf-8")
    back = only(store, brought(store, path))
    assert back.session.title == "*A* <b>"
    assert talk(back) == [
        ("user", "## Assistant\n\nhello"),
        ("assistant", f"<think>\nHm\n\n```\nopen\n</think>\n\n{code}\n```"),
    ]
    assert [line.created_at for line in back.lines] == [0.0, 60.0]


def test_text_names_speakers_and_times(store: Store) -> None:
    """Plain text has the same facts, and reasoning between brackets."""
    text = "".join(plain(load(store, filled(store))))
    assert "--- System, " in text
    assert "Wie geht's? 👍\n" in text
    assert "tags: alltag\n" in text
    store.show_branch(store.summaries()[0].session.id, store.tree(store.summaries()[0].session.id)[2].id)
    text = "".join(plain(load(store, store.summaries()[0].session.id)))
    assert "[Reasoning]\nHm.\n[End of reasoning]\n\nGut.\n" in text


@pytest.mark.parametrize(
    ("text", "fence"),
    [
        ("a", ""),
        ("```\na\n```", ""),
        ("```\na", "```"),
        ("~~~~ x\n```\n~~~", "~~~~"),
        ("``` a ` b", ""),
        ("```\n```` x\n````", ""),
    ],
)
def test_an_open_code_block_is_known(text: str, fence: str) -> None:
    """What closes a block is as long as what opens it, and of its kind."""
    assert open_fence(text) == fence


@pytest.mark.parametrize(
    ("title", "stem"),
    [
        ("Simple title", "Simple title"),
        ("강릉 여행 é", "강릉 여행 é"),
        ("../../etc/passwd", "etc passwd"),
        ("a/b\\c:d*e?f", "a b c d e f"),
        ("-rf", "rf"),
        (".hidden", "hidden"),
        ("CON", "_CON"),
        ("nul.txt", "_nul.txt"),
        ("COM¹", "_COM¹"),
        ("con .x", "_con .x"),
        ("x\u202etxt.exe\0\n\x1b[2J", "x txt.exe 2J"),
        ("🚀", "conversation"),
        ("...", "conversation"),
        ("", "conversation"),
    ],
)
def test_names_of_files_are_safe(title: str, stem: str) -> None:
    """Nothing of a title reaches a path but letters, digits and harmless signs."""
    assert safe_stem(title) == stem


@settings(max_examples=300)
@given(ODD)
def test_no_title_makes_a_name_that_leads_elsewhere(title: str) -> None:
    """Of any text: no separator, no control, not hidden, no option, short, and its own name on every system."""
    stem = safe_stem(title * 40)
    assert stem
    assert stem == stem.strip(" .")
    assert not stem.startswith(("-", "."))
    assert len(stem.encode()) <= exportfiles.MAX_NAME_BYTES + 1
    assert {unicodedata.category(char)[0] for char in stem} <= set("LMNZPS")
    assert not set(stem) & set('/\\:*?"<>|')


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    """A name that is taken, by a link too, is refused; in a folder the next one is taken."""
    (tmp_path / "there.md").write_text("mine")
    (tmp_path / "link.md").symlink_to(tmp_path / "nowhere")
    for name in ("there.md", "link.md"):
        with pytest.raises(BadRequest, match="choose another name"):
            write_file(tmp_path / name, ["x"])
    assert (tmp_path / "there.md").read_text() == "mine"
    assert [write_into(tmp_path, "link", ".md", [str(n)]).name for n in range(2)] == ["link 2.md", "link 3.md"]
    assert not (tmp_path / "nowhere").exists()


def test_files_are_private_and_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the umask, only the owner reads them; one that fails in the middle is not there."""
    old = os.umask(0)
    try:
        make_folder(tmp_path / "a" / "b")
        path = write_into(tmp_path / "a" / "b", "x", ".md", ["é\r\n"])
    finally:
        os.umask(old)
    assert path.read_bytes() == "é\r\n".encode()
    assert [stat.S_IMODE(item.stat().st_mode) for item in (path, path.parent)] == [0o600, 0o700]

    def broken() -> Iterator[str]:
        yield "x"
        raise OSError(28, "No space left on device")

    with pytest.raises(StoreError, match="no space left"):
        write_file(tmp_path / "y.md", broken())

    def no_links(*_: object) -> None:
        raise PermissionError(1, "no links here")

    monkeypatch.setattr(os, "link", no_links)
    write_file(tmp_path / "z.md", ["z"])
    assert write_into(tmp_path, "z", ".md", ["z"]).name == "z 2.md"
    assert sorted(item.name for item in tmp_path.iterdir()) == ["a", "z 2.md", "z.md"]
