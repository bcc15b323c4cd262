"""One stage of the fit in a process of its own: `python -m precision_time.fit STAGE --tables DIR`.

`precision-time fit` runs one such process for each stage, because parameters are read once a process and every stage
has to read what the stage before it wrote.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
from importlib import import_module
from pathlib import Path

from precision_time.errors import PrecisionTimeError
from precision_time.fit import STAGES
from precision_time.shipped import writing


def main(arguments: list[str] | None = None) -> int:
    """Run the stage; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m precision_time.fit")
    parser.add_argument("stage", choices=STAGES)
    parser.add_argument("--tables", type=Path, required=True, help="the folder data/ of the repository")
    parser.add_argument("--report", action="store_true", help="judge held out, write nothing")
    parser.add_argument("--measured", action="append", default=[], help="folder that `measure` wrote; may be repeated")
    given = parser.parse_args(arguments)
    try:
        with contextlib.nullcontext() if given.report else writing():
            _run(given)
    except (PrecisionTimeError, OSError) as error:
        print(f"{parser.prog} {given.stage}: {error}", file=sys.stderr)
        return 2
    return 0


def _run(given: argparse.Namespace) -> None:
    stage = import_module(f"precision_time.fit.{given.stage}")
    if given.stage == "kernels":
        stage.run(given.tables, given.measured)
    elif STAGES[given.stage].judges:
        stage.run(given.tables, judge_only=given.report)
    else:
        stage.run(given.tables)


if __name__ == "__main__":
    sys.exit(main())
