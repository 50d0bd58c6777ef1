"""What is done with messages: other versions of them, going on, forking, taking back."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import TypeVar

from chatapp.clipboard import Terminal
from chatapp.safe import clean_line
from chatapp.texts import tr
from chatapp.tui.live import Request
from chatapp.tui.sending import Sending
from chatapp.tui.stage import Stage
from models.reasoning import answer_of
from sessions.conversation import Draft, Message, Session

T = TypeVar("T")


class Branching:
    """Verbs on the marked message of the conversation on the screen; without one, on the last that they fit."""

    def __init__(self, stage: Stage, sending: Sending, terminal: Terminal) -> None:
        self._stage = stage
        self._sending = sending
        self._terminal = terminal

    async def do(self, verb: str) -> None:
        """Do what a key or a command says."""
        match verb:
            case "edit":
                self._edit()
            case "regenerate":
                await self._regenerate()
            case "continue":
                await self._continue()
            case "older" | "newer":
                await self._other_version(-1 if verb == "older" else 1)
            case "fork":
                await self._fork()
            case "copy":
                self._copy()
            case "code":
                self._stage.converse(self._copy_code())
            case "links":
                self._links()
            case "undo":
                await self._undo()
            case "tree":
                self._stage.converse(self._tree())
            case _:
                raise AssertionError(f"unknown verb {verb}")

    # --- verbs ---

    def _edit(self) -> None:
        question = self._chosen("user", tr("There is no question to edit yet."))
        if question is not None and self._writable():
            self._stage.editing.begin(question, Draft(question.text, question.attachments))

    async def _regenerate(self) -> None:
        if not self._writable():
            return
        marked = self._marked()
        if marked is not None and marked.role == "assistant":
            question = self._before(marked)
            request = Request("regenerate", marked.id)
        else:
            question = self._last(lambda message: message.role == "user" and message.status != "failed")
            if marked is not None and question != marked:
                self._stage.warn(tr("Mark an answer, or the last question, to have it answered once more."))
                return
            request = Request("regenerate")
        if question is None:
            self._stage.warn(tr("There is no question to answer."))
            return
        await self._sending.go_on(question, request)

    async def _continue(self) -> None:
        if not self._writable():
            return
        answer = self._last(lambda _: True)
        marked = self._marked()
        question = self._before(answer) if answer and answer.role == "assistant" else None
        if answer is None or question is None or not self._stage.transcript.marking.can_go_on(answer):
            self._stage.warn(tr("There is no answer that was stopped or cut, and could go on."))
        elif marked is not None and marked != answer:
            self._stage.warn(tr("Only the last answer can go on: what follows another one was said without it."))
        else:
            await self._sending.go_on(question, Request("continue"), begun=answer)

    async def _other_version(self, step: int) -> None:
        stage = self._stage
        marked = self._marked() or self._last(lambda message: message.id in stage.transcript.marking.versions)
        version = stage.transcript.marking.versions.get(marked.id) if marked else None
        if version is None:
            stage.warn(tr("This message has one version only."))
            return
        at = version.number - 1 + step
        if 0 <= at < len(version.ids):
            await self.show(version.ids[at])

    async def show(self, message_id: int) -> None:
        """Show the branch through a message of this conversation, and mark the message."""
        stage = self._stage
        if message_id not in {message.id for message in stage.messages()}:
            if not self._writable():
                return
            if not stage.did(lambda: stage.manager.show_branch(stage.current, message_id)):
                return
        await stage.show_messages(at=message_id)
        stage.transcript.focus()

    async def _fork(self) -> None:
        stage = self._stage
        through = self._marked() or self._last(lambda _: True)
        if through is None:
            stage.warn(tr("There is nothing to fork yet."))
            return
        fork = stage.ask(lambda: stage.manager.fork(stage.current, through=through.id))
        if fork is not None:
            await stage.show(fork.id)
            stage.composer.focus()
            sentence = tr("A fork of {title}: a conversation of its own, up to that message.")
            stage.tell(sentence.format(title=clean_line(fork.title, 60)))

    def _copy(self) -> None:
        message = self._marked() or self._last(lambda one: one.role == "assistant")
        text = _said(message) if message else ""
        if text.strip():
            self._stage.app.copy_to_clipboard(text)
        else:
            self._stage.warn(tr("There is no text to copy."))

    async def _copy_code(self) -> None:
        from chatapp.tui.codeblocks import CodeScreen, code_blocks

        app, blocks = self._stage.app, self._found(code_blocks)
        if not blocks:
            self._stage.warn(tr("There is no code block to copy."))
            return
        chosen = blocks[0].text if len(blocks) == 1 else await app.push_screen_wait(CodeScreen(blocks))
        if chosen is not None:
            app.copy_to_clipboard(chosen)

    def _links(self) -> None:
        from chatapp.tui.links import links_of

        if addresses := self._found(links_of):
            self.offer_links(addresses)
        else:
            self._stage.warn(tr("There is no link to open."))

    def offer_links(self, addresses: Sequence[str]) -> None:
        """Show addresses whole, and open the one that is chosen; where there is no browser, copy it."""
        self._stage.converse(self._open_one(addresses))

    async def _open_one(self, addresses: Sequence[str]) -> None:
        from chatapp.tui.links import LinkScreen, has_browser, open_link

        stage = self._stage
        is_page = stage.app.is_web
        is_copied = not is_page and not has_browser(self._terminal)
        way = tr("Enter copies · Escape cancels") if is_copied else tr("Enter opens in the browser · Escape cancels")
        chosen = await stage.app.push_screen_wait(LinkScreen(addresses, way))
        if chosen is None:
            return
        if is_page:
            stage.app.open_url(chosen)
        elif is_copied or not await asyncio.to_thread(open_link, chosen):
            stage.app.copy_to_clipboard(chosen)

    async def _undo(self) -> None:
        stage = self._stage
        if not self._writable():
            return
        question = self._last(lambda message: message.role == "user")
        if stage.ask(lambda: stage.manager.undo(stage.current)) is None or question is None:
            return
        stage.editing.give_up()
        is_free = not stage.composer.draft.strip()
        await stage.show_messages()
        if is_free:
            stage.composer.put_message(Draft(question.text, question.attachments))
        stage.composer.focus()
        if is_free:
            told = tr("The last turn is taken back: its question is in the box. The tree of branches still has it.")
        else:
            told = tr("The last turn is taken back: the draft in the box stays. The tree of branches still has it.")
        stage.tell(told)

    async def _tree(self) -> None:
        from chatapp.tui.branchtree import TreeScreen, tree_rows

        stage = self._stage
        session_id = stage.current
        messages = stage.ask(lambda: stage.manager.tree(session_id)) if session_id else None
        if not messages:
            stage.warn(tr("There is no message yet."))
            return
        shown = {message.id for message in stage.messages()}
        chosen = await stage.app.push_screen_wait(TreeScreen(tree_rows(messages, shown)))
        if chosen is not None and stage.current == session_id:
            await self.show(chosen)

    # --- which message ---

    def _marked(self) -> Message | None:
        return self._stage.transcript.marked

    def _last(self, fits: Callable[[Message], bool]) -> Message | None:
        return next((message for message in reversed(self._stage.transcript.marking.messages) if fits(message)), None)

    def _found(self, parts_of: Callable[[str], list[T]]) -> list[T]:
        """Parts of the marked message, or of the last answer that has such parts."""
        marked = self._marked()
        answers = (one for one in reversed(self._stage.transcript.marking.messages) if one.role == "assistant")
        texts = map(_said, [marked] if marked else answers)
        return next(filter(None, map(parts_of, texts)), [])

    def _chosen(self, role: str, otherwise: str) -> Message | None:
        """The marked message if it has this role, else the last that has; or a sentence."""
        marked = self._marked()
        if marked is not None and marked.role != role:
            marked = self._before(marked)
        found = marked or self._last(lambda message: message.role == role)
        if found is None:
            self._stage.warn(otherwise)
        return found

    def _before(self, answer: Message) -> Message | None:
        """The question of an answer."""
        return next((one for one in self._stage.transcript.marking.messages if one.id == answer.parent_id), None)

    def _writable(self) -> bool:
        """True if the conversation takes messages now; else a sentence says why not."""
        stage = self._stage
        if stage.current in stage.talk.live:
            stage.warn(tr("This conversation is being answered. Escape stops the answer."))
            return False
        session: Session | None = stage.session()
        if session is None:
            stage.warn(tr("There is no message yet."))
            return False
        if reason := stage.why_held(session):
            stage.warn(f"{reason.replace(' · ', '. ')}.")
            return False
        return True


def _said(message: Message) -> str:
    """What a message says, without reasoning."""
    return answer_of(message.text) if message.role == "assistant" else message.text
