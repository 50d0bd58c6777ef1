"""What the chat window talks to in place of a terminal when it runs in a browser."""

from __future__ import annotations

import os
from functools import partial
from typing import Any

from textual import events
from textual.app import App
from textual.drivers.web_driver import WebDriver


class Driver(WebDriver):
    """Textual's driver for browsers, with an end that loses nothing.

    Without a browser the window leaves as with Ctrl+Q: a running answer is stopped and stored. So it does when the
    server itself is gone, however that ended.
    """

    def __init__(self, app: App[Any], **options: Any) -> None:
        super().__init__(app, **options)
        # Only what is painted goes to the server: programs started from here, such as a browser, say theirs on stderr.
        self._write = partial(_write, os.dup(self.fileno))
        os.dup2(2, self.fileno)

    def start_application_mode(self) -> None:
        """Begin with the focus: the page gives it to the terminal before this process can be told."""
        super().start_application_mode()
        self._app.call_later(self._app.post_message, events.AppFocus())

    def on_meta(self, packet_type: str, payload: dict[str, object]) -> None:
        """Take a message of the server: the end is for the window to decide."""
        if packet_type == "quit":
            self._leave()
        else:
            super().on_meta(packet_type, payload)

    def run_input_thread(self) -> None:
        """Take what the server sends until either side ends."""
        super().run_input_thread()
        if not self.exit_event.is_set():
            self._leave()

    def _leave(self) -> None:
        self._app.call_later(self._app.run_action, "leave")


def _write(descriptor: int, data: bytes) -> int:
    """Write all of the data, or nothing more once nobody reads: leaving goes on all the same."""
    rest = memoryview(data)
    try:
        while rest:
            rest = rest[os.write(descriptor, rest) :]
    except BrokenPipeError:
        pass
    return len(data)
