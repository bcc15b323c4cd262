"""The commands `train` and `reproduce`, and the answer of a predictor other than the line."""

from __future__ import annotations

import os
import sys
import time
from argparse import Namespace
from pathlib import Path
from typing import TYPE_CHECKING

from precision_time.cli.outputs import check_folder, check_parent
from precision_time.cli.progress import PATIENCE_S

if TYPE_CHECKING:
    from precision_time.job import Job
    from precision_time.predictors.report import Report

PAGE, DATA, TEXT = "report.html", "report.json", "report.md"


def reproduce(given: Namespace) -> Report:
    """The report of the parsed command line, written to its folder."""
    import json

    from precision_time.job.checks import count_or_zero
    from precision_time.job.file import write_whole
    from precision_time.predictors.report import markdown, page
    from precision_time.predictors.reproduce import known_studies
    from precision_time.predictors.reproduce import reproduce as make

    known_studies(given.name)
    seed = count_or_zero("seed", given.seed)
    folder = Path(given.output or "reproduction")
    check_folder("--output", folder)
    check_parent("--output", folder)
    shared = Path(given.shared) if given.shared else None
    runs = Path(given.real_runs) if given.real_runs else None
    with Studies() as progress:
        report = make(given.name, shared, runs, seed=seed, quick=given.quick, progress=progress)
    folder.mkdir(exist_ok=True)
    write_whole(str(folder / PAGE), page(report).encode())
    write_whole(str(folder / DATA), (json.dumps(report.to_dict(), indent=2, ensure_ascii=False) + "\n").encode())
    write_whole(str(folder / TEXT), markdown(report).encode())
    print(f"report written to {folder / PAGE}, and as {DATA} and {TEXT} beside it", file=sys.stderr)
    return report


def train(given: Namespace) -> str:
    """Train the predictors that are named; says what each cost."""
    import json

    from precision_time.predictors.store import train as make
    from precision_time.text_table import format_table

    folder = Path(given.output or "trained")
    check_folder("--output", folder)
    shared = Path(given.shared) if given.shared else None
    with Studies() as progress:
        cards = make(
            given.name, folder, shared, Path(given.real_runs) if given.real_runs else None,
            lambda name, done, of: progress("training", name, done, of),
        )  # fmt: skip
    if given.json:
        return json.dumps(cards, indent=2)
    rows = [[name, str(c["rows"]), _spent(c["measured_s"]), _spent(c["training_s"])] for name, c in cards.items()]
    table = format_table(["predictor", "rows", "measuring them took", "training took"], rows)
    return f"{table}\n\npredict with them: precision-time predict ... --predictor NAME --trained {folder}"


def _spent(seconds: object) -> str:
    from precision_time.units import human_seconds

    return human_seconds(float(str(seconds))) if seconds else "not known"


def by_predictor(name: str, trained: str | None, job: Job) -> tuple[str, dict[str, object]]:
    """A job's time by a predictor other than the line, as text and for JSON."""
    from precision_time.predictors.interface import steps_of
    from precision_time.predictors.store import trained as load
    from precision_time.units import human_seconds

    found = load(name, Path(trained) if trained else None).predict(job)
    steps = steps_of(job)
    what = "step" if steps == 1 else f"run of {steps:,.0f} steps"
    lines = [
        f"{job.signature()}, by {name}",
        f"  {what}: {human_seconds(found.seconds)} ({human_seconds(found.p10_s)} - {human_seconds(found.p90_s)})",
    ]
    if steps != 1:
        lines.append(f"  step: {human_seconds(found.seconds / steps)}")
    if found.confidence is not None:
        lines.append(f"  like what it was trained on: {found.confidence:.0%}")
    lines += [f"  {note}" for note in found.notes]
    content: dict[str, object] = {
        "predictor": name, "job": job.to_dict(), "steps": steps, "seconds": found.seconds, "p10_s": found.p10_s,
        "p90_s": found.p90_s, "step_s": found.seconds / steps, "confidence": found.confidence,
        "notes": list(found.notes),
    }  # fmt: skip
    return "\n".join(lines), content


class Studies:
    """A line on a terminal: how far each study is. Elsewhere a line whenever a study begins another part."""

    def __init__(self) -> None:
        self._start = time.monotonic()
        self._now: dict[str, str] = {}
        self._parts: dict[str, str] = {}
        self._shown = False

    def __enter__(self) -> Studies:
        return self

    def __call__(self, study: str, part: str, done: int, of: int) -> None:
        if time.monotonic() - self._start < PATIENCE_S:
            return
        if not sys.stderr.isatty():
            if self._parts.get(study) != part:
                self._parts[study] = part
                print(f"{study}: {part}", file=sys.stderr, flush=True)
            return
        self._now[study] = f"{study}: {part} {done}/{of}"
        width = os.get_terminal_size(sys.stderr.fileno()).columns
        took = time.monotonic() - self._start
        line = f"{took // 60:.0f}:{took % 60:02.0f}  " + "  |  ".join(self._now.values())
        print(f"\r\033[K{line[: width - 1]}", end="", file=sys.stderr, flush=True)
        self._shown = True

    def __exit__(self, *_: object) -> None:
        if self._shown:
            print("\r\033[K", end="", file=sys.stderr, flush=True)
