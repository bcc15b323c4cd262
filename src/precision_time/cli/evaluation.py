"""The command `evaluate`: check the output files, evaluate the table, write the files that were asked for."""

from __future__ import annotations

import shlex
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from precision_time.cli.arguments import ROW_FILTERS
from precision_time.cli.parser import UsageError
from precision_time.cli.streams import note
from precision_time.cli.workers import workers_of
from precision_time.field_types import whole

_WORST = whole(0, 10**6, "rows")

if TYPE_CHECKING:
    from precision_time.evaluation import Evaluation


def evaluate(options: Namespace) -> tuple[Evaluation, int]:
    """The evaluation of the parsed command line, its files written, and the number of worst rows to show."""
    if not options.table:
        raise UsageError(
            "no table is given; name a CSV file of measured jobs, for example precision-time evaluate measured.csv "
            "(columns: docs/evaluate.md)"
        )
    worst = _WORST("worst", options.worst)
    _check_options(options)
    from precision_time.cli.progress import Progress
    from precision_time.evaluation import evaluate as evaluate_table
    from precision_time.measurements.table import read_table
    from precision_time.report.write import write_whole

    with Progress("lines read") as progress:
        table = read_table(options.table, allow_code=options.allow_code, progress=progress)
    for warning in table.warnings:
        note(f"precision-time: warning: {warning}")
    filters = {column: _values(column, getattr(options, column)) for column in ROW_FILTERS}
    with workers_of(options) as workers, Progress("distinct jobs") as progress:
        evaluation = evaluate_table(
            table, blind=options.blind, anchors=options.anchors, workers=workers, progress=progress, **filters
        )
    if options.csv is not None:
        from precision_time.evaluation.csv_table import csv_parts

        write_whole(options.csv, csv_parts(evaluation))
        note(f"rows written to {options.csv}")
    if options.html is not None:
        from precision_time.evaluation.page import page

        write_whole(options.html, page(evaluation, _command(options), worst))
        note(f"report written to {options.html}")
    if options.json:
        for text in evaluation.notes():
            note(f"precision-time: note: {text}")
    return evaluation, worst


def _check_options(options: Namespace) -> None:
    """Raise `UsageError` or `DataError` for options that would fail after minutes of predicting."""
    from precision_time.evaluation.evaluation import ANCHORS

    if options.anchors not in ANCHORS:
        raise UsageError(f"--anchors {options.anchors!r} is unknown; use one of {', '.join(ANCHORS)}")
    for flag, suffixes in (("html", (".html", ".htm")), ("csv", (".csv",))):
        if getattr(options, flag) is not None:
            _check_suffix(f"--{flag}", Path(getattr(options, flag)), suffixes)
    if options.html is not None:
        from precision_time.report.figure import require_matplotlib

        require_matplotlib("the HTML report")


def _values(column: str, texts: Sequence[str] | None) -> list[str]:
    """The values of a filter, separated by commas or from a repeated flag."""
    values = [part.strip() for text in texts or () for part in text.split(",") if part.strip()]
    if texts and not values:
        raise UsageError(f"flag --{column} is empty; give it a value or leave it out")
    return values


def _check_suffix(flag: str, path: Path, suffixes: tuple[str, ...]) -> None:
    if path.suffix.lower() not in suffixes:
        raise UsageError(f"{flag} {str(path)!r} must end in {' or '.join(suffixes)}")


def _command(options: Namespace) -> str:
    """The command line that makes this report again."""
    arguments = ["precision-time", "evaluate", options.table]
    for flag in ("blind", "anchors", *ROW_FILTERS):
        value = getattr(options, flag)
        if value and value != "all":
            arguments += [f"--{flag}", ",".join(value) if isinstance(value, list) else value]
    return shlex.join(arguments)
