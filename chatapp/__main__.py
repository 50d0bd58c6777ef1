"""The program: runs the command line and turns every error into one sentence and an exit code.

0 ok, 1 failed, 2 wrong usage, 3 some rows failed, 130 stopped with Ctrl+C.
"""

from __future__ import annotations

import io
import os
import sys
import traceback
from pathlib import Path
from typing import TextIO

import click
from click.exceptions import NoArgsIsHelpError

from chatapp.cli import cli
from chatapp.config import DEBUG, is_debug
from chatapp.safe import clean
from models.errors import EngineError
from sessions.errors import SessionError

FAILED = 1
INTERRUPTED = 130


def main() -> None:
    """Run `chatapp` and exit."""
    sys.stdout, sys.stderr = _writable(sys.stdout), _writable(sys.stderr)
    code = _run()
    for stream in (sys.stdout, sys.stderr):
        _let_go(stream)
    sys.exit(code)


def _run() -> int:
    try:
        code = cli.main(prog_name="chatapp", standalone_mode=False)
        if not code:  # what already failed has said why, and its terminal may be gone
            sys.stdout.flush()
    except NoArgsIsHelpError as error:
        print(error.format_message(), file=sys.stderr)
        return error.exit_code
    except click.UsageError as error:
        command = error.ctx.command_path if error.ctx else "chatapp"
        return _fail(f"{error.format_message()} (`{command} --help` shows how.)", error.exit_code)
    except click.ClickException as error:
        return _fail(error.format_message(), error.exit_code)
    except (SessionError, EngineError) as error:
        return _fail(str(error))
    except (KeyboardInterrupt, click.Abort):
        return INTERRUPTED
    except BrokenPipeError:
        # Nobody reads any more. What is still buffered must not complain when the interpreter ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED
    except OSError as error:
        return _fail(f"{error.filename or 'Input or output'}: {error.strerror or error}.")
    except Exception as error:  # noqa: BLE001 - the top of the program
        if is_debug():
            print(clean(traceback.format_exc()), end="", file=sys.stderr)
            return FAILED
        name = type(error).__name__
        return _fail(f"Something went wrong in the program ({name}: {error}); {DEBUG}=1 shows where.")
    return code if isinstance(code, int) else 0


def _fail(message: str, code: int = FAILED) -> int:
    print(f"Error: {clean(message)}", file=sys.stderr)
    return code


def _let_go(stream: TextIO) -> None:
    """Write out what is buffered; where nothing can be, as after a hang-up, the interpreter must not try once more.

    It would end with an exit status of its own.
    """
    try:
        stream.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _writable(stream: TextIO | None) -> TextIO:
    """A stream that replaces what its encoding cannot say, instead of failing in the middle of an answer.

    One that was closed by whoever started the program takes everything and keeps nothing.
    """
    if stream is None:
        return Path(os.devnull).open("w", encoding="utf-8")
    if isinstance(stream, io.TextIOWrapper):
        stream.reconfigure(errors="replace")
    return stream


if __name__ == "__main__":
    main()
