"""What can be done with conversations without an engine: their rules over the store's rows."""

from __future__ import annotations

import time
from collections.abc import Collection
from typing import TYPE_CHECKING

from models.engine import Role
from models.presets import PRESETS, SamplingChoice
from sessions.asked import Mark, asked
from sessions.conversation import Draft, Message, ReasoningPolicy, Session, SessionSummary, Version
from sessions.drafts import NOBODY, KeptDraft, claim, drafts_of, let_go
from sessions.errors import BadRequest, SessionClosed
from sessions.history import prompt_messages, title_of
from sessions.journal import Journal, Partial, is_answering, peek, recover_one
from sessions.lease import sweep
from sessions.overview import Wanted
from sessions.purge import ForgetKV, delete_forever, expire, forget_nothing
from sessions.turn import checked

if TYPE_CHECKING:
    from pathlib import Path

    from sessions.costs import Cost
    from sessions.filing import Imported
    from sessions.prompts import PromptLibrary
    from sessions.search import Page
    from sessions.statistics import Key, Statistics
    from sessions.store import Store  # at run time it would load the database library for everybody

MAX_TAG_CHARS = 40
_NEW = 0
"""The id of no stored message: it has neither tokens nor stats to copy."""


class Conversations:
    """Conversations by id. Synchronous, milliseconds; raises `SessionNotFound`, `StoreError`."""

    def __init__(
        self, store: Store, *, forget_kv: ForgetKV = forget_nothing, reasoning: ReasoningPolicy = "keep"
    ) -> None:
        """`reasoning` is the policy of new conversations."""
        self._store = store
        self._forget_kv = forget_kv
        self._reasoning: ReasoningPolicy = reasoning

    def sessions(
        self,
        wanted: Wanted = Wanted(),  # noqa: B008 - frozen
        *,
        limit: int = 200,
        trash: bool = False,
        after: SessionSummary | None = None,
    ) -> list[SessionSummary]:
        """Return conversations, pinned ones first, then by last use: at most `limit`, those behind `after`.

        `trash` is short for those in the trash.
        """
        return self._store.summaries(wanted, limit=limit, trash=trash, after=after)

    def search(self, query: str, *, limit: int = 20, offset: int = 0) -> Page:
        """Return the messages and titles that match, best first; what is new is indexed first, within limits."""
        return self._store.search(query, limit=limit, offset=offset)

    def catch_up(self, limit: int = 500) -> int:
        """Index at most `limit` new messages for `search`, while nothing else goes on; return how many those were."""
        return self._store.words.catch_up(limit)

    def session(self, session_id: str) -> Session:
        """Return one conversation."""
        return self._store.session(session_id)

    def messages(self, session_id: str) -> list[Message]:
        """Return the messages of the branch that is shown, oldest first; the system prompt, if any, is the first."""
        return self._store.messages(session_id)

    def new(self, *, system: str | None = None) -> Session:
        """Start a conversation. Raises `BadRequest` for a system prompt without text."""
        return self._store.create_session(
            system=None if system is None else checked(system, "system prompt"), reasoning=self._reasoning
        )

    def set_system(self, session_id: str, text: str) -> Session:
        """Give a conversation without messages its system prompt. Raises `BadRequest`, `SessionClosed`."""
        session = self.writable(session_id)
        if session.system is not None:
            raise BadRequest("This conversation already has a system prompt: start a new one for another.")
        if self._store.tree(session_id):
            raise BadRequest(
                "A system prompt comes before the first message: `chatapp sessions system` makes a fork with another."
            )
        return self._store.set_system(session_id, checked(text, "system prompt"))

    # --- what is written on it ---

    def rename(self, session_id: str, title: str) -> Session:
        """Give a conversation another title. Raises `BadRequest` for an empty one."""
        return self._store.rename(session_id, title_of(checked(title, "title")))

    def set_task(self, session_id: str, task: str) -> Session:
        """Give a conversation another task line. Raises `BadRequest` for an empty one."""
        return self._store.set_task(session_id, title_of(checked(task, "task line"), limit=300))

    def tag(self, session_id: str, *, add: Collection[str] = (), remove: Collection[str] = ()) -> Session:
        """Add and remove tags. Raises `BadRequest` for a tag that is not a short word, or not there to be removed."""
        session = self._store.session(session_id)
        added = {_tag(tag) for tag in add}
        removed = {_tag(tag) for tag in remove}
        if unknown := removed - set(session.tags):
            raise BadRequest(f"This conversation has no tag {min(unknown)!r}.")
        return self._store.set_tags(session_id, (set(session.tags) | added) - removed)

    def pin(self, session_id: str) -> Session:
        """Keep a conversation at the top of the list."""
        return self._store.set_pinned(session_id, pinned=True)

    def unpin(self, session_id: str) -> Session:
        """Let a conversation take its place by age."""
        return self._store.set_pinned(session_id, pinned=False)

    def archive(self, session_id: str) -> Session:
        """Take a conversation out of the list; search still finds it."""
        return self._store.set_archived(session_id, archived=True)

    def unarchive(self, session_id: str) -> Session:
        """Put a conversation back on the list."""
        return self._store.set_archived(session_id, archived=False)

    def mark_done(self, session_id: str) -> Session:
        """Close a conversation: it takes no message until it is reopened."""
        return self._store.set_state(session_id, "done")

    def reopen(self, session_id: str) -> Session:
        """Let a closed conversation take messages again."""
        return self._store.set_state(session_id, "open")

    def trash(self, session_id: str) -> Session:
        """Move a conversation to the trash. Raises `BadRequest` while it is answered."""
        with self._idle(session_id):
            return self._store.set_trashed(session_id, trashed=True)

    def restore(self, session_id: str) -> Session:
        """Take a conversation out of the trash."""
        return self._store.set_trashed(session_id, trashed=False)

    def delete_forever(self, session_id: str) -> None:
        """Delete a conversation's text and the KV only it reaches. `BadRequest` while it is answered."""
        delete_forever(self._store, session_id, self._forget_kv)

    def expire(self, now: float) -> list[str]:
        """Delete for good what has been in the trash for 30 days at `now` (epoch s); return the ids."""
        return expire(self._store, self._forget_kv, now)

    # --- its own choices ---

    def choose_sampling(self, session_id: str, preset: str | None) -> Session:
        """Let a conversation be answered by a preset of its own; None: by what its model recommends.

        Raises `BadRequest` for an unknown preset.
        """
        if preset is not None and preset not in PRESETS:
            raise BadRequest(f"There is no preset {preset!r}: choose one of {', '.join(PRESETS)}.")
        return self._store.set_sampling(session_id, SamplingChoice(preset) if preset else None)

    def set_reasoning(self, session_id: str, policy: ReasoningPolicy) -> Session:
        """Choose whether later prompts contain the reasoning of answers to come."""
        return self._store.set_reasoning(session_id, policy)

    # --- branches ---

    def fork(
        self, session_id: str, *, through: int | None = None, without: Collection[int] = (), system_only: bool = False
    ) -> Session:
        """Copy a conversation to a new one, which shares its KV as far as both begin alike.

        `through` is the last message to take (None: all that are shown), `without` names questions that are left out
        with their answers, `system_only` takes the system prompt and nothing else. Raises `BadRequest` for a message
        that is not there.
        """
        messages = self._store.messages(session_id)
        known = {message.id for message in messages}
        if unknown := ({through} if through is not None else set()) - known | set(without) - known:
            raise BadRequest(f"The conversation shows no message {min(unknown)}.")
        kept: list[Message] = []
        is_left_out = False
        for message in messages:
            if message.role == "user":
                is_left_out = message.id in without
            if not is_left_out and (message.role == "system" or not system_only):
                kept.append(message)
            if message.id == through:
                break
        return self._store.fork(session_id, kept, _re_tokenized(messages, kept))

    def change_system(self, session_id: str, text: str) -> Session:
        """Give a conversation another system prompt: a fork has it, and the messages that are shown.

        Bodies keep their tokens; only what no system prompt stood before is tokenized anew, up to the first turn. An
        empty conversation becomes no fork, nor does one that has this prompt. Raises `BadRequest` for an empty text.
        """
        text = checked(text)
        messages = self._store.messages(session_id)
        if not messages:
            return self.set_system(session_id, text)
        session = self._store.session(session_id)
        if session.system == text:
            return session
        rest = [message for message in messages if message.role != "system"]
        system = Message(_NEW, session_id, "system", text, "complete", None, None, messages[0].created_at)
        opened = set()
        if session.system is None:  # failed questions are no part of a prompt: several messages may have opened one
            first = next((message.id for message in prompt_messages(messages)), rest[-1].id)
            opened = {message.id for message in rest if message.id <= first}
        return self._store.fork(session_id, [system, *rest], opened)

    def versions(self, session_id: str) -> dict[int, Version]:
        """Return the versions of each message that has several, by message id."""
        return self._store.versions(session_id)

    def tree(self, session_id: str) -> list[Message]:
        """Return all messages of all branches, oldest first, without token runs and stats."""
        return self._store.tree(session_id)

    def show_branch(self, session_id: str, message_id: int) -> None:
        """Show the branch through a message.

        Raises `BadRequest` for a message of another conversation, and while this one is answered.
        """
        self.writable(session_id)
        with self._idle(session_id):
            self._store.show_branch(session_id, message_id)

    def undo(self, session_id: str) -> str:
        """Take back the last turn and return its question; the branch is kept.

        Raises `BadRequest` if there is none, and while the conversation is answered.
        """
        self.writable(session_id)
        with self._idle(session_id):
            question = next((m for m in reversed(self._store.messages(session_id)) if m.role == "user"), None)
            if question is None:
                raise BadRequest("There is no turn to take back.")
            self._store.set_head(session_id, question.parent_id)
        return question.text

    # --- other threads ---

    def beside(self) -> Conversations:
        """Return the same conversations over a connection of their own, for another thread, which `close`s it."""
        return Conversations(self._store.beside(), forget_kv=self._forget_kv, reasoning=self._reasoning)

    def close(self) -> None:
        """Close the connection."""
        self._store.close()

    # --- other windows ---

    @property
    def version(self) -> int:
        """A number that changes when somebody else has written to the store."""
        return self._store.db.version

    def answer_elsewhere(self, session_id: str) -> Partial | None:
        """Return the answer that is being written in a conversation, as far as it is on disk; None if none is."""
        return peek(self._store.journal_dir, session_id)

    def is_answering(self, session_id: str) -> bool:
        """True while a turn of a conversation goes on, in whichever process, before its first words too."""
        return is_answering(self._store.journal_dir, session_id)

    @property
    def leases_dir(self) -> Path:
        """Where windows hold the conversations that they write in; see `sessions.lease`."""
        return self.data_dir / "leases"

    def sweep_locks(self) -> None:
        """Remove the lock files that killed processes left."""
        sweep(self.leases_dir, self._store.journal_dir)

    def settle_dead(self, session_id: str) -> bool:
        """Store the answer of a process that has died; False if there is none, or it is being written."""
        return recover_one(self._store, session_id) is not None

    # --- what else is in the store ---

    @property
    def data_dir(self) -> Path:
        """The folder of the store: what works for long in a thread opens it anew."""
        return self._store.path.parent

    @property
    def prompts(self) -> PromptLibrary:
        """The library of system prompts."""
        from sessions.prompts import PromptLibrary

        return PromptLibrary(self._store.db)

    def asked(
        self, session_id: str | None, after: Mark | None = None, *, limit: int = 50
    ) -> tuple[list[Draft], Mark | None]:
        """Return what was asked in a conversation, newest first, then in all others; see `sessions.asked`."""
        return asked(self._store.db, session_id, after, limit=limit)

    def cost(self, session_id: str, *, n_ctx: int | None, kv_bytes_per_token: int | None) -> Cost:
        """Return what the branch that is shown costs; see `sessions.costs`."""
        from sessions.costs import RELEVANCE, Rates, cost_of, rates_of
        from sessions.measured import newest_stats

        session = self._store.session(session_id)
        rates = rates_of(newest_stats(self._store.db, session.model.weights)) if session.model else Rates()
        verdicts = self._store.verdicts(session_id)
        return cost_of(
            self._store.messages(session_id),
            n_ctx=n_ctx,
            kv_bytes_per_token=kv_bytes_per_token,
            rates=rates,
            relevance={message_id: RELEVANCE[kind] for message_id, (kind, _) in verdicts.items()},
        )

    def statistics(self, by: Collection[Key]) -> Statistics:
        """Return the figures of all turns; takes about a second for 300,000 messages."""
        from sessions.measured import turn_rows
        from sessions.statistics import summarize

        return summarize(turn_rows(self._store.db), by)

    def export(self, session_id: str, target: Path, *, is_folder: bool = False) -> Path:
        """Write a conversation to a new file; see `sessions.filing`."""
        from sessions.filing import export

        return export(self._store, session_id, target, is_folder=is_folder)

    def import_from(self, path: Path) -> Imported:
        """Add the conversations of a file; see `sessions.filing`."""
        from sessions.filing import import_from

        return import_from(self._store, path)

    # --- drafts ---

    def drafts(self) -> dict[str, str]:
        """Return what was written and not sent, by conversation; that of a new one is not among them."""
        return self._store.drafts()

    def draft(self, session_id: str | None) -> Draft:
        """Return the newest draft of a conversation; None is the one that is not stored yet."""
        return self._store.draft(session_id)

    def keep_draft(self, session_id: str | None, draft: Draft, window: str = NOBODY) -> None:
        """Keep what is written in a window and not sent; an empty text is none."""
        self._store.keep_draft(session_id, draft, window)

    def kept_drafts(self, session_id: str | None) -> list[KeptDraft]:
        """Return the drafts of all windows in a conversation, newest first."""
        return drafts_of(self._store.db, session_id)

    def claim_draft(self, kept: KeptDraft, window: str) -> bool:
        """Let a draft belong to another window; False if somebody else was faster."""
        return claim(self._store.db, kept, window)

    def let_go_of_draft(self, session_id: str | None, window: str) -> None:
        """Let any window have what this one wrote in a conversation."""
        let_go(self._store.db, session_id, window)

    def _idle(self, session_id: str) -> Journal:
        """Hold the right to write for as long as a change of what is shown takes. Raises `BadRequest`."""
        self._store.session(session_id)
        return Journal(self._store.journal_dir, session_id, monotonic=time.monotonic)

    def writable(self, session_id: str) -> Session:
        """Return a conversation that takes messages. Raises `SessionClosed`."""
        session = self._store.session(session_id)
        if session.trashed_at is not None:
            raise SessionClosed("This conversation is in the trash: restore it to go on (`chatapp sessions restore`).")
        if session.state == "done":
            raise SessionClosed("This conversation is done: reopen it to go on (`chatapp sessions reopen`).")
        return session


def _re_tokenized(messages: list[Message], kept: list[Message]) -> set[int]:
    """Messages whose tokens do not fit their new place: what opens one depends on who spoke before in the prompt."""
    before, now = _roles_before(messages), _roles_before(kept)
    return {message_id for message_id, role in now.items() if before.get(message_id, "nobody") != role}


def _roles_before(messages: list[Message]) -> dict[int, Role | None]:
    """For each message of a prompt, whose it follows; None for the first."""
    prompt = prompt_messages(messages)
    return {message.id: prior.role if prior else None for prior, message in zip([None, *prompt], prompt, strict=False)}


def _tag(tag: str) -> str:
    tag = tag.strip().removeprefix("#").lower()
    if not tag or len(tag) > MAX_TAG_CHARS or any(char.isspace() or not char.isprintable() for char in tag):
        raise BadRequest(f"A tag is one word of at most {MAX_TAG_CHARS} characters.")
    return tag
