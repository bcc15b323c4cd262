"""Standard output and standard error of the command line.

The result of a command is written to standard output by `emit`, everything else to standard error by `note`. While a
command runs, `reserved` leads every other print (of the user's own models, of libraries and of child processes) to
standard error, so that the result, which may be JSON, stands alone. Both escape control characters.
"""

from __future__ import annotations

import contextlib
import io
import os
import sys
from collections.abc import Generator
from typing import TextIO

from precision_time.errors import DataError
from precision_time.report.printable import printable
from precision_time.report.write import reason

_STANDARD_OUTPUT = 1
_result: int | TextIO | None = None
"""Where `emit` writes while a command runs: a file descriptor, a stream that has none, or None where it is closed."""


class ReaderGoneError(Exception):
    """The reader of standard output has closed it, as `head` does."""


@contextlib.contextmanager
def reserved(to_the_end: bool = False) -> Generator[None, None, None]:
    """Keep standard output for `emit`; what anything else prints goes to standard error.

    `to_the_end`: also what threads and exit handlers of own code print after the block.
    """
    global _result
    _open_closed()
    outer, given = _result, sys.stdout
    try:
        descriptor = given.fileno() if given is not None else -1
    except (OSError, ValueError):
        descriptor = -1
    if descriptor != _STANDARD_OUTPUT:  # closed, or a stream of a test or notebook
        _result = given
        with contextlib.redirect_stdout(sys.stderr):
            try:
                yield
            finally:
                _result = outer
        return
    with contextlib.suppress(OSError):
        given.flush()
    _result = os.dup(_STANDARD_OUTPUT)
    os.dup2(sys.stderr.fileno(), _STANDARD_OUTPUT)
    # A stream of its own: code that closes sys.stdout must not close standard error.
    others = open(os.dup(sys.stderr.fileno()), "w", buffering=1, errors="backslashreplace")  # noqa: SIM115
    try:
        with contextlib.redirect_stdout(others):
            yield
    finally:
        with contextlib.suppress(OSError):
            others.close()
        if not to_the_end:
            os.dup2(_result, _STANDARD_OUTPUT)
        os.close(_result)
        _result = outer


def emit(text: str) -> None:
    """Write a line or more of the result to standard output.

    Raises `DataError` where it cannot be written (a full disk, closed), `ReaderGoneError` where its reader has gone.
    """
    if _result is None:
        raise DataError("standard output is closed, so nothing can be printed; open it, or direct it to a file")
    content = printable(text) + "\n"
    try:
        if not isinstance(_result, int):
            _result.write(content)
            _result.flush()
            return
        encoding = getattr(sys.__stdout__, "encoding", None) or "utf-8"
        data = memoryview(content.encode(encoding, errors="replace"))
        while data:
            data = data[os.write(_result, data) :]
    except BrokenPipeError:
        raise ReaderGoneError from None
    except (OSError, ValueError) as error:
        raise DataError(f"standard output cannot be written: {reason(error)}; direct it elsewhere") from None


def note(text: str) -> None:
    """Write a line to standard error; where that is closed or full it is lost."""
    _write_error(printable(text) + "\n")


def show_status(text: str) -> None:
    """Replace the last line of the terminal."""
    _write_error(f"\r{printable(text)}\033[K")


def _write_error(text: str) -> None:
    try:
        sys.stderr.write(text)
        sys.stderr.flush()
    except (ValueError, AttributeError):  # closed or replaced by own code
        with contextlib.suppress(OSError):
            os.write(2, text.encode(errors="replace"))
    except OSError:
        _discard_errors()


def _open_closed() -> None:
    """Open closed standard streams on the null device, so that no file that is opened later takes their place."""
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            opened = os.open(os.devnull, os.O_RDWR)
            if opened != descriptor:
                os.dup2(opened, descriptor)
                os.close(opened)
            os.set_inheritable(descriptor, True)
    if sys.stderr is None:
        sys.stderr = open(2, "w", errors="backslashreplace", closefd=False)  # noqa: SIM115


def _discard_errors() -> None:
    """Lead standard error to the null device: what it holds in its buffer is written once more at exit."""
    with contextlib.suppress(OSError, ValueError, AttributeError, io.UnsupportedOperation):
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, sys.stderr.fileno())
        os.close(null)
