import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from sessions.conversations import Conversations
from sessions.errors import BadRequest
from sessions.migrations import MIGRATIONS, migrate
from sessions.prompts import PromptLibrary, SystemPrompt, text_hash
from sessions.store import Store
from tests.sessions.helpers import Clock


@pytest.fixture
def library(store: Store) -> PromptLibrary:
    """An empty library whose clock moves a second with each read."""
    return PromptLibrary(store.db, clock=Clock(step=1.0))


def test_a_prompt_is_kept_under_its_name(library: PromptLibrary) -> None:
    """Its text is tidied as all text is, and found with the mark before the name or without."""
    added = library.add("coder", "\ufeffBe brief.\r\nWrite code.\n\n")
    assert added == SystemPrompt("coder", "Be brief.\nWrite code.", 1_000_001.0)
    assert library.get("@coder") == library.get(" coder ") == added
    assert library.all() == [added]


def test_a_name_is_one_word(library: PromptLibrary) -> None:
    """Names of any script, composed either way; what could not be told from an option or a text is refused."""
    library.add("회의록", "kept")
    assert library.get("회의록").text == "kept"
    for bad in ("", "two words", "@@x", "-x", "a\x1bb", "\u202ea", "x" * 41):
        with pytest.raises(BadRequest, match="one word"):
            library.add(bad, "text")


def test_a_name_is_taken_once(library: PromptLibrary) -> None:
    """Neither adding nor renaming takes the place of another prompt."""
    library.add("a", "first")
    library.add("b", "second")
    with pytest.raises(BadRequest, match="already"):
        library.add("a", "third")
    with pytest.raises(BadRequest, match="already"):
        library.rename("b", "a")
    assert [(prompt.name, prompt.text) for prompt in library.all()] == [("a", "first"), ("b", "second")]


def test_a_prompt_can_be_changed_renamed_and_removed(library: PromptLibrary) -> None:
    """A change moves its time, a new name does not; what is gone is not found."""
    first = library.add("a", "first")
    changed = library.edit("a", "second")
    assert changed.updated_at > first.updated_at
    assert library.rename("a", "b") == SystemPrompt("b", "second", changed.updated_at)
    assert library.remove("b").text == "second"
    for ask in (
        library.get,
        library.remove,
        lambda name: library.edit(name, "x"),
        lambda name: library.rename(name, "c"),
    ):
        with pytest.raises(BadRequest, match="no prompt 'b'"):
            ask("b")


def test_an_empty_prompt_is_refused(library: PromptLibrary) -> None:
    """There is nothing to keep; the one that is there stays."""
    library.add("a", "first")
    for empty in ("", " \n ", "\ufeff"):
        with pytest.raises(BadRequest, match="empty"):
            library.edit("a", empty)
    with pytest.raises(BadRequest, match="is the most"):
        library.edit("a", "x" * 4_000_001)
    assert library.get("a").text == "first"


def test_equal_texts_have_equal_hashes(library: PromptLibrary) -> None:
    """Eight characters, by the text alone."""
    assert library.add("a", "same").hash == library.add("b", "same").hash == text_hash("same") == "0967115f"
    assert library.add("c", "same.").hash != text_hash("same")


def test_changing_a_prompt_changes_no_conversation(store: Store, library: PromptLibrary) -> None:
    """A conversation has a copy of the text it began with."""
    library.add("a", "first")
    key = Conversations(store).new(system=library.resolve("@a")).id
    library.edit("a", "second")
    assert store.session(key).system == "first"
    library.remove("a")
    assert [message.text for message in store.messages(key)] == ["first"]


def test_conversations_are_counted_by_text(store: Store, library: PromptLibrary) -> None:
    """Whoever has the very text counts, by whichever name; those in the trash do not."""
    for name, text in (("a", "same"), ("b", "same"), ("c", "other"), ("d", "unused")):
        library.add(name, text)
    keys = [store.create_session(system=text).id for text in ("same", "same", "same", "other", "same ")]
    store.set_trashed(keys[0], trashed=True)
    assert [(prompt.name, prompt.n_sessions) for prompt in library.all()] == [("a", 2), ("b", 2), ("c", 1), ("d", 0)]


def test_a_name_stands_where_a_text_could(library: PromptLibrary) -> None:
    """One @ is a name, two are a text that begins with one, and everything else is a text."""
    library.add("a", "the text")
    assert [library.resolve(given) for given in ("@a", "@@a", "a", "a@b")] == ["the text", "@a", "a", "a@b"]
    with pytest.raises(BadRequest, match=r"no prompt 'b'.*@@"):
        library.resolve("@b")


def test_what_was_removed_is_in_no_file(store: Store, library: PromptLibrary) -> None:
    """Neither the database nor its log holds a text that is gone, or was changed."""

    def held() -> bytes:
        return b"".join(path.read_bytes() for path in store.path.parent.glob("chat.db*"))

    library.add("a", "a secret of ours")
    assert b"a secret of ours" in held()
    library.edit("a", "another secret of ours")
    assert b"a secret of ours" not in held()
    library.remove("a")
    assert b"secret of ours" not in held()


def test_an_older_database_gets_the_library(tmp_path: Path) -> None:
    """The step adds an empty library, and conversations stay."""
    with closing(Store(tmp_path)) as store:
        store.create_session(system="kept")
        store.db._db.execute("DROP TABLE system_prompts")
        step = next(step.number for step in MIGRATIONS if step.apply.__name__ == "prompt_library")
        store.db._db.execute(f"PRAGMA user_version = {step - 1}")
        migrate(store.db._db, store.path, MIGRATIONS[:step])
        assert PromptLibrary(store.db).all() == []
        assert [summary.session.system for summary in store.summaries()] == ["kept"]
    with closing(sqlite3.connect(tmp_path / "chat.db")) as db:
        assert db.execute("SELECT count(*) FROM system_prompts").fetchone() == (0,)
