from pathlib import Path

import pytest

from models.reasoning import parts
from sessions.fieldvalues import seconds
from sessions.store import Store
from tests.sessions.transfer import DATA, archive, brought, chatgpt_tree, database, json_file, only, talk


def test_chatgpt_keeps_branches_times_and_what_was_seen(store: Store) -> None:
    """The branch shown is ChatGPT's, the others are versions; hidden context, tools and recaps stay out."""
    outcomes = brought(store, DATA / "chatgpt.json")
    transcript = only(store, outcomes)
    assert talk(transcript) == [
        ("user", "[Image]\n\nWhy is my dough slow? 🍞"),
        ("assistant", "<think>\nYeast slows in the cold.\n</think>\n\nIt is cold.\nKeep it at 24 °C."),
        ("user", "A timer in Python?"),
        ("assistant", "```python\nimport time\ntime.sleep(60)\n```\n\nSixty seconds."),
    ]
    session = transcript.session
    assert (session.title, session.created_at, session.updated_at) == (
        "Sourdough in winter",
        1700000000.5,
        1700000900.25,
    )
    assert session.archived_at == session.updated_at
    assert [line.created_at for line in transcript.shown()] == [1700000001.0, 1700000006.0, 1700000100.0, 1700000102.0]
    versions = store.versions(session.id)
    assert sorted(version.number for version in versions.values()) == [1, 1, 2, 2]
    assert {line.text for line in transcript.lines} >= {
        "<think>\nYeast slows in the cold.\n</think>\n\nCold slows yeast.",
        "Why is my dough so slow in winter?",
        "Cold yeast.",
    }
    assert {word: n for word, n in outcomes[-1].changes.items() if n} == {"tool": 2, "merged": 3}


def test_chatgpt_conversations_that_are_none_do_not_stop_the_rest(store: Store) -> None:
    """One without a tree is reported with its title, one in which nobody speaks as empty."""
    assert [(o.index, o.title, o.status) for o in brought(store, DATA / "chatgpt.json")] == [
        (2, "No tree", "failed"),
        (3, "Nothing said", "empty"),
        (1, "Sourdough in winter", "added"),
    ]


def test_a_zip_is_read_in_place(store: Store, tmp_path: Path) -> None:
    """All numbered parts are read wherever they lie in the archive; nothing else of it is."""
    content = (DATA / "chatgpt.json").read_bytes()
    other = (DATA / "claude.json").read_bytes()
    path = archive(
        tmp_path / "export.zip",
        {
            "a/conversations-000.json": content,
            "../../conversations-001.json": other,
            "chat.html": b"<html>",
            "__MACOSX/a/conversations-000.json": b"junk",
        },
    )
    assert [o.status for o in brought(store, path)].count("added") == 2
    assert sorted(file.name for file in tmp_path.iterdir()) == ["data", "export.zip"]


def test_claude_keeps_text_reasoning_and_the_text_of_attachments(store: Store) -> None:
    """Blocks of text are one answer, thinking is its reasoning, and calls of tools stay out."""
    outcomes = brought(store, DATA / "claude.json")
    transcript = only(store, outcomes)
    assert talk(transcript) == [
        ("user", "[Attachment: plan.txt]\nday 1: sea\n[End of attachment]\n\n[File: map.png]\n\n읽어 줘"),
        ("assistant", "<think>\nA short plan.\n</think>\n\nFirst part.\n\nSecond part."),
        ("user", "고마워"),
    ]
    assert transcript.session.title == "강릉 여행"
    assert transcript.session.created_at == seconds("2024-05-01T10:00:00.123456Z") == 1714557600.123456
    assert outcomes[0].changes["empty"] == 1
    assert [part.kind for part in parts(transcript.shown()[1].text)] == ["reasoning", "answer"]


def test_claude_branches_are_kept_where_the_export_names_parents(store: Store, tmp_path: Path) -> None:
    """Two answers to one question are versions; the later leaf is shown."""
    root = "00000000-0000-4000-8000-000000000000"
    messages = [
        {
            "uuid": "a",
            "parent_message_uuid": root,
            "sender": "human",
            "text": "q",
            "created_at": "2024-01-01T00:00:00Z",
        },
        {
            "uuid": "b",
            "parent_message_uuid": "a",
            "sender": "assistant",
            "text": "one",
            "created_at": "2024-01-01T00:00:01Z",
        },
        {
            "uuid": "c",
            "parent_message_uuid": "a",
            "sender": "assistant",
            "text": "two",
            "created_at": "2024-01-01T00:00:02Z",
        },
    ]
    path = json_file(tmp_path / "x.json", [{"uuid": "u", "name": "", "chat_messages": messages}])
    transcript = only(store, brought(store, path))
    assert talk(transcript) == [("user", "q"), ("assistant", "two")]
    assert transcript.session.title == "q"
    assert len(transcript.lines) == 3


def test_open_webui_keeps_system_prompt_versions_and_the_pin(store: Store) -> None:
    """The tree of its history is ours."""
    transcript = only(store, brought(store, DATA / "openwebui.json"))
    assert talk(transcript) == [
        ("system", "Answer in one line."),
        ("user", "How often do I oil it?"),
        ("assistant", "Monthly."),
    ]
    assert len(transcript.lines) == 4
    assert transcript.session.pinned_at is not None


def test_llm_logs_keep_prompts_fragments_and_times(store: Store, tmp_path: Path) -> None:
    """A response is a question and an answer; the system prompt that each repeats stands once."""
    path = database(tmp_path / "logs.db", (DATA / "llm.sql").read_text(encoding="utf-8"))
    outcomes = brought(store, path)
    transcript = only(store, outcomes)
    assert talk(transcript) == [
        ("system", "Be short."),
        ("user", "It is a small boat.\nThree names for a boat"),
        ("assistant", "Gull, Foam, Ada"),
        ("user", "And one more"),
        ("assistant", "Brine"),
    ]
    assert transcript.session.created_at == seconds("2024-02-03T04:05:06.7Z")
    assert transcript.session.updated_at == seconds("2024-02-03 04:06:00Z")
    assert outcomes[0].changes["system"] == 0


def test_the_database_of_ollamas_app_is_read(store: Store, tmp_path: Path) -> None:
    """Thinking becomes reasoning of the answer that follows it, results of tools stay out."""
    path = database(tmp_path / "db.sqlite", (DATA / "ollama.sql").read_text(encoding="utf-8"))
    outcomes = brought(store, path, "ollama")
    transcript = only(store, outcomes)
    assert talk(transcript) == [
        ("user", "[File: harbour.png]\n\nWhen is high tide?"),
        ("assistant", "<think>\nI need to look it up.\n</think>\n\nAt half past twelve."),
    ]
    assert transcript.session.created_at == seconds("2025-08-01T07:00:00.123456Z")
    assert (outcomes[0].changes["tool"], outcomes[0].changes["merged"]) == (1, 1)


def test_markdown_whose_headings_name_speakers_is_read(store: Store) -> None:
    """Headings and bold names begin messages, those inside of code do not."""
    transcript = only(store, brought(store, DATA / "talk.md"))
    assert transcript.session.title == "Paper boats"
    assert talk(transcript) == [
        ("user", "How do I fold one?"),
        ("assistant", "Like this:\n\n```markdown\n## User\n\nnot a speaker\n```"),
        ("user", "thanks"),
        ("assistant", "Fair winds."),
    ]


@pytest.mark.parametrize(
    ("nodes", "shown"),
    [
        ([("a", None, "user", "x"), ("b", "a", "user", "y")], [("user", "x\n\ny")]),
        ([("a", "gone", "user", "x"), ("b", "a", "assistant", "y")], [("user", "x"), ("assistant", "y")]),
        (
            [
                ("s", None, "system", "S"),
                ("a", "s", "user", "x"),
                ("t", "a", "system", "T"),
                ("b", "t", "assistant", "y"),
            ],
            [("system", "S"), ("user", "x"), ("assistant", "y")],
        ),
        ([("a", None, "user", "x"), ("b", "a", "assistant", " "), ("c", "b", "user", "y")], [("user", "x\n\ny")]),
        ([("c", "d", "user", "round"), ("d", "c", "user", "round"), ("a", None, "user", "x")], [("user", "x")]),
        ([("a", None, "assistant", "hello"), ("b", "a", "user", "x")], [("assistant", "hello"), ("user", "x")]),
    ],
)
def test_trees_of_any_shape_become_ours(
    store: Store, tmp_path: Path, nodes: list[tuple[str, str | None, str, str]], shown: list[tuple[str, str]]
) -> None:
    """Rows of one role, missing parents, later system prompts, empty answers and circles have one rule each."""
    transcript = only(store, brought(store, json_file(tmp_path / "x.json", [chatgpt_tree(*nodes)])))
    assert talk(transcript) == shown


def test_a_message_in_the_middle_that_is_shown_last_stays_the_last(store: Store, tmp_path: Path) -> None:
    """Where ChatGPT shows the first of two messages of a role, that one is shown; the longer one is a version."""
    tree = chatgpt_tree(("a", None, "user", "x"), ("b", "a", "assistant", "y"), ("c", "b", "assistant", "z"), head="b")
    transcript = only(store, brought(store, json_file(tmp_path / "x.json", [tree])))
    assert talk(transcript) == [("user", "x"), ("assistant", "y")]
    assert [line.text for line in transcript.lines] == ["x", "y", "y\n\nz"]


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (5, 5.0),
        ("1970-01-01T00:00:05Z", 5.0),
        ("1970-01-01 00:00:05", 5.0),
        ("1970-01-01 02:00:05.250000000 +0200 CEST", 5.25),
        ("1970-01-01", 0.0),
        (True, None),
        (10**400, None),
        ("yesterday!", None),
        ("9999-99-99 00:00:00", None),
        (None, None),
    ],
)
def test_moments_are_read_as_programs_write_them(value: object, expected: float | None) -> None:
    """Numbers, ISO 8601 and Go's way; what is no moment is none."""
    assert seconds(value) == expected
