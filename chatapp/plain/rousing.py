"""The main thread hears of a signal also where Python alone would let it wait for the next key.

Python handles a signal between two of its own steps. One that comes while readline draws a key, just before it waits
for the next, would be handled after that key only; and what a handler raises inside of a completion is swallowed. So
after each signal the main thread is roused, several times: its waiting breaks off, and what is to be handled is.
"""

from __future__ import annotations

import contextlib
import signal
import socket
import threading
from collections.abc import Callable, Iterator

CAN_ROUSE = hasattr(signal, "pthread_kill")
"""False on Windows, where a waiting thread is told of Ctrl+C by other means."""
_EVERY_S = 0.1
_TIMES = 10


@contextlib.contextmanager
def rousing(roused: Callable[[], object]) -> Iterator[None]:
    """Rouse the main thread, which must be the one that enters, after each signal that has a handler of Python.

    `roused` is called there each time, after the handler of the signal, and may raise. Only that may: of two handlers
    that raise at once `input` makes a SystemError. Does nothing where `CAN_ROUSE` is False.
    """
    if not CAN_ROUSE:
        yield
        return
    rouser = signal.SIGURG  # whoever gets it without a handler is not ended by it, and its number is a high one
    hears, tells = socket.socketpair()
    tells.setblocking(False)  # as asked for by set_wakeup_fd
    is_over = threading.Event()
    main = threading.get_ident()

    def rouse() -> None:
        while numbers := hears.recv(64):
            if any(number != rouser for number in numbers):
                for _ in range(_TIMES):
                    signal.pthread_kill(main, rouser)
                    if is_over.wait(_EVERY_S):
                        break

    before = signal.signal(rouser, lambda *_: roused())
    wakeup_before = signal.set_wakeup_fd(tells.fileno(), warn_on_full_buffer=False)
    thread = threading.Thread(target=rouse, name="rousing", daemon=True)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        signal.set_wakeup_fd(wakeup_before)
        tells.close()
        thread.join()
        hears.close()
        signal.signal(rouser, before)
