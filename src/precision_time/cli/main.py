"""The command `precision-time`: parse, call one function, print. A mistake is one line and exit code 2."""

from __future__ import annotations

import contextlib
import gc
import io
import sys
from collections.abc import Sequence

from precision_time.cli.streams import ReaderGoneError, emit, note, reserved
from precision_time.errors import PrecisionTimeError, shortened
from precision_time.signals import Stopped, stop_signals

OK, WRONG, INTERRUPTED, BROKEN_PIPE = 0, 2, 130, 141
_ONLY_PREDICT = {"predict", "compare", "plan", "layouts", "walltime", "slurm", "kubernetes", "capture"}
"""Commands whose process traces models and ends."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code."""
    try:
        with reserved(to_the_end=argv is None):  # as a program, which ends with this
            return _run(argv)
    except KeyboardInterrupt:
        return INTERRUPTED


def _run(argv: Sequence[str] | None) -> int:
    try:
        with stop_signals():
            return _dispatch(argv)
    except PrecisionTimeError as error:
        return _wrong(str(error))
    except KeyboardInterrupt as stop:
        note("precision-time: interrupted")
        return stop.exit_code if isinstance(stop, Stopped) else INTERRUPTED
    except ReaderGoneError:  # it has what it wanted
        return BROKEN_PIPE
    except MemoryError:
        return _wrong("there is not enough memory for this job; free some, or take a smaller job")
    except OSError as error:  # of the system, such as a full disk under the folder of temporary files
        place = f"{error.filename!r}: " if error.filename else ""
        return _wrong(shortened(f"{place}{error.strerror or error}; see to it and run the command again"))


def _dispatch(argv: Sequence[str] | None) -> int:
    # Imported here, where an interruption is answered and the streams are safe.
    from precision_time.capture.deferred_imports import defer_imports
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
        if argv is None and options.command in _ONLY_PREDICT:
            defer_imports()
        if argv is None and options.command == "predict":
            # One job ends before cycles matter, and each collection visits what torch and transformers keep: 0.3 s.
            gc.disable()
        emit(getattr(commands, options.command)(options))
    return OK


def _wrong(message: str) -> int:
    note(f"precision-time: error: {' '.join(message.split())}")
    return WRONG


if __name__ == "__main__":
    sys.exit(main())
