"""The command `precision-time`: parse, call one function, print. A mistake is one line and exit code 2."""

from __future__ import annotations

import contextlib
import io
import signal
import sys
from collections.abc import Generator, Sequence

from precision_time.cli.streams import ReaderGoneError, emit, note, reserved
from precision_time.errors import Interrupted, PrecisionTimeError

OK, WRONG, INTERRUPTED, BROKEN_PIPE = 0, 2, 130, 141


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code."""
    try:
        with reserved():
            return _run(argv)
    except KeyboardInterrupt:
        return INTERRUPTED


def _run(argv: Sequence[str] | None) -> int:
    try:
        with _interrupts():
            return _dispatch(argv)
    except PrecisionTimeError as error:
        return _wrong(str(error))
    except KeyboardInterrupt:
        note("precision-time: interrupted")
        return INTERRUPTED
    except ReaderGoneError:  # it has what it wanted
        return BROKEN_PIPE
    except MemoryError:
        return _wrong("there is not enough memory for this job; free some, or take a smaller job")
    except OSError as error:  # of the system, such as a full disk under the folder of temporary files
        place = f"{error.filename!r}: " if error.filename else ""
        return _wrong(f"{place}{error.strerror or error}; see to it and run the command again")


def _dispatch(argv: Sequence[str] | None) -> int:
    # Imported here, where an interruption is answered and the streams are safe.
    from precision_time.cli import commands
    from precision_time.cli.outputs import check_outputs
    from precision_time.cli.parser import build_parser, parse

    text = io.StringIO()
    try:
        with contextlib.redirect_stdout(text):
            options = parse(argv)
    except SystemExit as stop:  # --help
        emit(text.getvalue().removesuffix("\n"))
        return stop.code if isinstance(stop.code, int) else OK
    if options.version:
        from precision_time import __version__

        emit(f"precision-time {__version__}")
    elif options.completion:
        emit(commands.completion(options.completion))
    elif options.command is None:
        emit(build_parser().format_help().removesuffix("\n"))
    else:
        check_outputs(options)
        emit(getattr(commands, options.command)(options))
    return OK


def _wrong(message: str) -> int:
    note(f"precision-time: error: {' '.join(message.split())}")
    return WRONG


@contextlib.contextmanager
def _interrupts() -> Generator[None, None, None]:
    """Ctrl-C raises `Interrupted`, which own code that raises KeyboardInterrupt is told apart from."""
    before = signal.getsignal(signal.SIGINT)
    if before is not signal.default_int_handler:  # ignored, or the caller's own
        yield
        return

    def interrupt(*_: object) -> None:
        raise Interrupted

    try:
        signal.signal(signal.SIGINT, interrupt)
    except ValueError:  # not the main thread
        yield
        return
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


if __name__ == "__main__":
    sys.exit(main())
