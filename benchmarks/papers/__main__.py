"""`python -m benchmarks.papers [STUDY ...]`: run the studies and write the report as HTML, JSON and Markdown.

A call that was interrupted is continued by the next with the same output: finished studies are kept.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.papers.report import Report, markdown, page
from benchmarks.papers.reproduce import STUDIES, known_studies, reproduce
from precision_time.errors import PrecisionTimeError, PredictorError
from precision_time.journal import held
from precision_time.measurements.repository import STEPS, data_folder
from precision_time.predictors.runs import read_runs
from precision_time.report.write import write_whole
from precision_time.signals import Stopped, stop_signals

PAGE, DATA, TEXT = "report.html", "report.json", "report.md"
JOURNAL = "studies.jsonl"
"""Finished studies of a report that is not."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.papers", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("study", nargs="*", metavar="STUDY", help=f"{', '.join(STUDIES)} (default: all)")
    parser.add_argument(
        "--data", metavar="DIR", help="folder with published/ and cloud-configurations/ (default: data)"
    )
    parser.add_argument("--real-runs", type=Path, metavar="FOLDER", help="real runs that `precision-time runs` made")
    parser.add_argument("--output", type=Path, metavar="FOLDER", default=Path("out/reproduction"))
    parser.add_argument("--seed", type=int, default=0, help="seed of all random draws (default 0)")
    parser.add_argument("--quick", action="store_true", help="fewer seeds, rounds and rows: to try it out")
    given = parser.parse_args(arguments)
    try:
        with stop_signals():
            _write(given)
    except PrecisionTimeError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except Stopped as stop:
        print("interrupted; the same command goes on with the studies that are left", file=sys.stderr)
        return stop.exit_code
    return 0


def _write(given: argparse.Namespace) -> None:
    known_studies(given.study)
    data = data_folder(given.data)
    if given.data is not None and (data is None or not (data / STEPS).is_file()):
        raise PredictorError(f"data {given.data!r} has no {STEPS}; name the folder that has, or none")
    if given.output.exists() and not given.output.is_dir():
        raise PredictorError(f"output {str(given.output)!r} is a file; name a folder")
    read_runs(given.real_runs)  # a table that cannot be read is an error before anything is written
    given.output.mkdir(parents=True, exist_ok=True)
    journal = given.output / JOURNAL
    with held(journal):
        settings: dict[str, Any] = {"seed": given.seed, "quick": given.quick}
        report = reproduce(given.study, data, given.real_runs, **settings, journal=journal, progress=_Progress())
        _write_report(given, report)
        journal.unlink()


def _write_report(given: argparse.Namespace, report: Report) -> None:
    write_whole(str(given.output / PAGE), page(report).encode())
    write_whole(str(given.output / DATA), (json.dumps(report.to_dict(), indent=2, ensure_ascii=False) + "\n").encode())
    write_whole(str(given.output / TEXT), markdown(report).encode())
    print(report)
    print(f"report written to {given.output / PAGE}, and as {DATA} and {TEXT} beside it", file=sys.stderr)


class _Progress:
    """Prints a line to stderr whenever a study begins another part."""

    def __init__(self) -> None:
        self._parts: dict[str, str] = {}

    def __call__(self, study: str, part: str, done: int, of: int) -> None:
        if self._parts.get(study) != part:
            self._parts[study] = part
            print(f"{study}: {part}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    raise SystemExit(main())
