"""The command `precision-time`: parse, call one function, print. A mistake is one line and exit code 2."""

from __future__ import annotations

import os
import sys
from argparse import Namespace
from collections.abc import Sequence

from precision_time.cli import commands
from precision_time.cli.parser import build_parser, parse
from precision_time.errors import PrecisionTimeError

OK, WRONG, INTERRUPTED, BROKEN_PIPE = 0, 2, 130, 141


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code."""
    if hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(errors="replace")  # a terminal that lacks a character still gets the table
    try:
        code = _dispatch(parse(argv))
        sys.stdout.flush()
    except PrecisionTimeError as error:
        print(f"precision-time: error: {' '.join(str(error).split())}", file=sys.stderr)
        return WRONG
    except KeyboardInterrupt:
        print("precision-time: interrupted", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:
        # Python flushes stdout once more at exit; give it somewhere to write.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return BROKEN_PIPE
    except SystemExit as stop:  # --help
        return stop.code if isinstance(stop.code, int) else OK
    return code


def _dispatch(options: Namespace) -> int:
    if options.version:
        from importlib.metadata import version

        print(f"precision-time {version('precision-time')}")
    elif options.completion:
        print(commands.completion(options.completion))
    elif options.command is None:
        build_parser().print_help()
    else:
        print(getattr(commands, options.command)(options))
    return OK


if __name__ == "__main__":
    sys.exit(main())
