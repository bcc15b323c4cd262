"""The command `evaluate`: check where results go, judge the table, write the files that were asked for."""

from __future__ import annotations

import sys
from argparse import Namespace
from pathlib import Path
from typing import TYPE_CHECKING

from precision_time.checks import count_or_zero
from precision_time.cli.arguments import ROW_FILTERS
from precision_time.cli.parser import UsageError
from precision_time.report.write import check_file

if TYPE_CHECKING:
    from precision_time.evaluation import Evaluation


def evaluate(given: Namespace) -> tuple[Evaluation, int]:
    """The evaluation of the parsed command line, its files written, and how many of the worst rows to show."""
    from precision_time.evaluation.evaluation import ANCHORS

    if not given.table:
        raise UsageError("no table is given; name a CSV file of measured jobs, for example precision-time evaluate "
                         "measured.csv (columns: docs/evaluate.md)")  # fmt: skip
    worst = count_or_zero("worst", given.worst)
    if given.anchors not in ANCHORS:
        raise UsageError(f"--anchors {given.anchors!r} is unknown; use one of {', '.join(ANCHORS)}")
    for flag, suffixes in (("html", (".html", ".htm")), ("csv", (".csv",))):
        if getattr(given, flag) is not None:
            _check_output(f"--{flag}", Path(getattr(given, flag)), suffixes, Path(given.table))
    if given.html is not None:
        from precision_time.report.figure import require_matplotlib

        require_matplotlib("the HTML report")
    from precision_time.cli.progress import Progress
    from precision_time.evaluation import evaluate as judge
    from precision_time.measurements.table import read_table
    from precision_time.report.write import write_whole

    table = read_table(given.table)
    for warning in table.warnings:
        print(f"precision-time: warning: {warning}", file=sys.stderr)
    chosen = {word: _values(word, getattr(given, word)) for word in ROW_FILTERS}
    with Progress("rows") as progress:
        evaluation = judge(table, blind=given.blind, anchors=given.anchors, workers=None, progress=progress, **chosen)
    if given.csv is not None:
        from precision_time.evaluation.csv_table import csv_text

        write_whole(given.csv, csv_text(evaluation), inputs=[given.table])
        print(f"rows written to {given.csv}", file=sys.stderr)
    if given.html is not None:
        from precision_time.evaluation.page import page

        write_whole(given.html, page(evaluation, _command(given), worst).encode())
        print(f"report written to {given.html}", file=sys.stderr)
    if given.json:
        for note in evaluation.notes():
            print(f"precision-time: note: {note}", file=sys.stderr)
    return evaluation, worst


def _values(word: str, given: list[str] | None) -> list[str]:
    """The values of a filter, given with commas or by repeating the flag."""
    values = [part.strip() for text in given or () for part in text.split(",") if part.strip()]
    if given and not values:
        raise UsageError(f"flag --{word} is empty; give it a value or leave it out")
    return values


def _check_output(flag: str, path: Path, suffixes: tuple[str, ...], table: Path) -> None:
    if path.suffix.lower() not in suffixes:
        raise UsageError(f"{flag} {str(path)!r} must end in {' or '.join(suffixes)}")
    check_file(flag, path)
    if path.exists() and table.exists() and path.samefile(table):
        raise UsageError(f"{flag} {str(path)!r} is the table itself; name another file")


def _command(given: Namespace) -> str:
    """The command line that makes this report again."""
    import shlex

    words = ["precision-time", "evaluate", given.table]
    for flag in ("blind", "anchors", *ROW_FILTERS):
        value = getattr(given, flag)
        if value and value != "all":
            words += [f"--{flag}", ",".join(value) if isinstance(value, list) else value]
    return shlex.join(words)
