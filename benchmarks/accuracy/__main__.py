"""Judge the shipped parameters held out, and write the pages of benchmarks/results/ and README's accuracy tables.

    python -m benchmarks.accuracy                          all parts
    python -m benchmarks.accuracy steps layouts            some of the parts (--help lists them)
    python -m benchmarks.accuracy steps --json FILE        keep every judged row in FILE

Run it from the root of the repository. On one core, steps take twenty minutes, anchors and classes ten each, layouts
eight, kernels seven, collectives three, memory two, allocator one.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.accuracy import (
    allocator,
    anchor_page,
    classes,
    collective_page,
    collectives,
    kernel_page,
    kernels,
    layouts,
    memory,
    served_board,
    step_figure,
    step_page,
)
from benchmarks.accuracy.facts import Facts
from benchmarks.accuracy.step_rows import write_runs
from benchmarks.accuracy.steps import board, judge_all
from precision_time.errors import PrecisionTimeError
from precision_time.fit.layouts import judge, read_rows
from precision_time.measurements.repository import LARGE_STEPS, STEPS, required_data_folder
from precision_time.measurements.table import read_table
from precision_time.report.page import fill_markers
from precision_time.report.write import compact_json, write_whole
from precision_time.timing.constants import shipped
from precision_time.timing.parameters import read_data

RESULTS = Path(__file__).parents[1] / "results"
README = Path(__file__).parents[2] / "README.md"


@dataclass(frozen=True, slots=True)
class Options:
    """Where tables are and results go; `readme` None leaves README alone."""

    tables: Path
    results: Path
    readme: Path | None
    keep: Path | None = None

    def fill_readme(self, name: str, text: str) -> None:
        """Put `text` between the markers `name` of README."""
        if self.readme is not None:
            page = self.readme.read_text(encoding="utf-8")
            write_whole(self.readme, fill_markers(page, name, text, self.readme.name))


def steps(options: Options) -> None:
    """accuracy.md with its figure accuracy.png, and README's first table."""
    path = options.tables / STEPS
    tables = [read_table(path), read_table(options.tables / LARGE_STEPS)]
    facts = Facts.of(path, tables[0])
    runs = judge_all(tables[0].rows, _progress)
    print(file=sys.stderr)
    if options.keep:
        write_runs(options.keep, facts, runs)
    judged = board(facts, runs, tables)
    write_whole(options.results / "accuracy.png", step_figure.picture(judged))
    write_whole(options.results / "accuracy.md", step_page.page(judged, "accuracy.png"))
    options.fill_readme("accuracy", step_page.readme_table(judged, "benchmarks/results/accuracy.md"))


def judge_anchors(options: Options) -> None:
    """anchors.md."""
    text = anchor_page.page(options.tables, _progress)
    print(file=sys.stderr)
    write_whole(options.results / "anchors.md", text)


def judge_classes(options: Options) -> None:
    """unknown.md and README's table of what is new about a job."""
    judged = classes.judge(options.tables, _progress)
    print(file=sys.stderr)
    write_whole(options.results / "unknown.md", classes.page(judged))
    options.fill_readme("classes", classes.readme(judged))


def judge_layouts(options: Options) -> None:
    """large-models.md, large-models.json and README's second table."""
    errors = layouts.errors_of(judge(read_rows(options.tables), shipped(), _progress))
    print(file=sys.stderr)
    _write_json(options.results / "large-models.json", errors)
    write_layout_pages(options, errors)


def write_layout_pages(options: Options, errors: Mapping[str, Any]) -> None:
    """large-models.md and README's second table from `errors`."""
    write_whole(options.results / "large-models.md", layouts.page(read_data("layout_scales.json"), errors))
    options.fill_readme("layouts-small", layouts.summary(errors))


def judge_kernels(options: Options) -> None:
    """kernels.md."""
    judged = kernels.judge(options.tables)
    write_whole(options.results / "kernels.md", kernel_page.page(judged, options.tables / "kernels"))


def judge_collectives(options: Options) -> None:
    """collectives.md and collectives.json."""
    errors = collectives.judge(options.tables)
    _write_json(options.results / "collectives.json", errors)
    write_whole(options.results / "collectives.md", collective_page.page(read_data("collectives.json"), errors))


def judge_memory(options: Options) -> None:
    """memory.md."""
    judged = memory.board(options.tables, _progress)
    print(file=sys.stderr)
    write_whole(options.results / "memory.md", memory.page(judged))


def play_allocator(options: Options) -> None:
    """allocator.md."""
    rows = allocator.study(_progress)
    print(file=sys.stderr)
    write_whole(options.results / "allocator.md", allocator.page(rows))


PARTS: Mapping[str, Callable[[Options], None]] = {
    "steps": steps,
    "anchors": judge_anchors,
    "classes": judge_classes,
    "layouts": judge_layouts,
    "kernels": judge_kernels,
    "collectives": judge_collectives,
    "memory": judge_memory,
    "allocator": play_allocator,
}


def _write_json(path: Path, content: Mapping[str, Any]) -> None:
    write_whole(path, compact_json(json.loads(json.dumps(content))) + "\n")


def _progress(text: str) -> None:
    print(f"\r{text:50}", end="", file=sys.stderr, flush=True)


def main(arguments: Sequence[str] | None = None) -> int:
    """Judge the parts named; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.accuracy", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("part", nargs="*", help=f"{', '.join(PARTS)} (default: all)")
    parser.add_argument("--tables", help="folder with published/ and kernels/ (default: data/ of the repository)")
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder to write (default benchmarks/results)")
    parser.add_argument("--readme", type=Path, help="README to fill (default: the repository's, with --results none)")
    parser.add_argument("--json", type=Path, dest="keep", help="keep every judged row of the steps in this file")
    given = parser.parse_args(arguments)
    if unknown := [name for name in given.part if name not in PARTS]:
        parser.error(f"part {unknown[0]!r} is unknown; use {', '.join(PARTS)}")
    readme = given.readme or (README if given.results == RESULTS else None)
    try:
        options = Options(required_data_folder(given.tables), given.results, readme, given.keep)
        for name in given.part or PARTS:
            print(f"{name} ...", file=sys.stderr)
            PARTS[name](options)
        if options.results == RESULTS:
            served_board.write(RESULTS)
    except (PrecisionTimeError, OSError) as error:
        print(f"{parser.prog}: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
