"""Convolutions of profiled steps beside their predictions: `python -m benchmarks.accuracy.own_convolutions`.

A step's error says little of its kernels, since errors of some hide those of others.
"""

from __future__ import annotations

import csv
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from benchmarks.rigs.gpu_tables import kind_of
from precision_time.capture.graph import OpSignature
from precision_time.fit.cases import case_of
from precision_time.measurements.repository import required_data_folder
from precision_time.measurements.table import read_table
from precision_time.report.errors import percent
from precision_time.report.table import Table
from precision_time.report.write import write_whole
from precision_time.timing.constants import shipped
from precision_time.timing.signature_times import TimedSignatures
from precision_time.timing.work import CONVOLUTIONS

NAME = "h100"
OUTPUT = Path("benchmarks/results/h100-convolutions.md")
BACKWARD = "aten.convolution_backward"
LEAST_S = 100e-6
"""Shorter convolutions are not listed one by one."""
Job = tuple[str, str, str, str]
Shape = tuple[int, ...]
Shapes = tuple[Shape, Shape]


@dataclass(frozen=True, slots=True)
class Judged:
    """All calls of a convolution in a step: shapes of input and weight, seconds measured and predicted."""

    job: Job
    backward: bool
    x: Shape
    weight: Shape
    measured_s: float
    predicted_s: float

    @property
    def kind(self) -> str:
        return kind_of(self.x, self.weight, half=True)

    @property
    def nhwc(self) -> bool:
        return self.job[3] == "nhwc"


def shapes_of(text: str, backward: bool) -> Shapes | None:
    """Input and weight of a profiled convolution, whose operands are the gradient, if it is backward, input, weight;
    None of a transposed one, whose weight has its inputs first."""
    of_each = [tuple(int(size) for size in each.split("x")) for each in text.split(";")[: backward + 2]]
    x, weight = of_each[backward:]
    return None if backward and of_each[0][1] != weight[0] else (x, weight)


def measured(path: Path) -> dict[Job, dict[tuple[bool, Shapes], float]]:
    """Seconds of the convolutions of profiled.csv by job, pass and shapes."""
    found: dict[Job, dict[tuple[bool, Shapes], float]] = defaultdict(lambda: defaultdict(float))
    with path.open(newline="") as file:
        for line in csv.DictReader(file):
            backward = line["operator"] == BACKWARD
            if not backward and line["operator"] not in ("aten.convolution", "aten.cudnn_convolution"):
                continue
            if shapes := shapes_of(line["shapes"], backward):
                job = line["model"], line["precision"], line["batch_size"], line["memory_format"]
                found[job][backward, shapes] += float(line["us"]) / 1e6
    return found


def _key(kind: OpSignature) -> tuple[bool, Shapes]:
    backward = kind.name == BACKWARD
    x, weight = (spec.shape for spec in kind.inputs[backward : backward + 2])
    return backward, (x, weight)


def judge(tables: Path, progress: Callable[[str], None] = lambda text: None) -> list[Judged]:
    """Every convolution that a profiled step and its traced one have alike, as shipped."""
    profiled = measured(tables / "measured" / NAME / "profiled.csv")
    judged = []
    for row in read_table(tables / "measured" / f"{NAME}.csv").rows:
        if row.job is None:
            continue
        job = row.model, row.precision, str(row.job.batch_size), row.job.memory_format or "nchw"
        if job not in profiled:
            continue
        progress(row.model)
        timed, _ = case_of(row, row.job).run(shipped())
        predicted: dict[tuple[bool, Shapes], float] = defaultdict(float)
        for kind, seconds, calls in zip(
            timed.kinds, timed.kind_s - _biases_s(timed), timed.calls_per_kind, strict=True
        ):
            if kind.name in (BACKWARD, "aten.convolution") and not kind.attr("transposed"):
                predicted[_key(kind)] += float(seconds * calls)
        for key, seconds in profiled.pop(job).items():
            if key in predicted:
                judged.append(Judged(job, key[0], *key[1], seconds, predicted[key]))
    return judged


def _biases_s(timed: TimedSignatures) -> NDArray[np.float64]:
    """Of every operator, the seconds of adding a bias or summing its gradient: the profiler has these as operators."""
    works = timed.works
    of_bias = np.array([family not in CONVOLUTIONS for family, *_ in works.table.classes])[works.table.class_of]
    return np.bincount(works.owner, timed.work_s * of_bias, len(timed.kinds)).astype(np.float64)


KINDS = {
    "few": "fewer than 8 channels", "one_tap": "1 x 1", "larger": "larger filters", "grouped": "groups",
    "depthwise": "depthwise",
}  # fmt: skip
"""Kind of a convolution -> what the page calls it."""


def _line(names: Sequence[str], chosen: Sequence[Judged]) -> list[str]:
    spent, told = sum(each.measured_s for each in chosen), sum(each.predicted_s for each in chosen)
    return [*names, str(len(chosen)), f"{1e3 * spent:.1f}", f"{1e3 * told:.1f}", percent(told / spent - 1.0, 0, "+")]


def by_kind(judged: Iterable[Judged]) -> Table:
    """Seconds measured and predicted of each kind of convolution, by memory format and pass."""
    every, lines = list(judged), []
    for kind, name in KINDS.items():
        for nhwc in (False, True):
            for backward in (False, True):
                chosen = [each for each in every if (each.kind, each.nhwc, each.backward) == (kind, nhwc, backward)]
                if chosen:
                    names = [name, "NHWC" if nhwc else "NCHW", "backward" if backward else "forward"]
                    lines.append(_line(names, chosen))
    return Table(
        ["convolutions of", "format", "pass", "shapes", "measured, ms", "predicted, ms", "error"], lines, left=3
    )


def worst(judged: Iterable[Judged], count: int = 25) -> Table:
    """The convolutions whose predicted seconds are furthest off, in milliseconds."""
    long = [each for each in judged if each.measured_s >= LEAST_S]
    chosen = sorted(long, key=lambda each: -abs(each.predicted_s - each.measured_s))[:count]
    lines = []
    for each in chosen:
        x, weight = ("x".join(map(str, shape)) for shape in (each.x, each.weight))
        names = [f"{each.job[0]}, {each.job[1]}", each.job[3], "backward" if each.backward else "forward", x, weight]
        lines.append([*names, *_line([], [each])[1:]])
    columns = ["step", "format", "pass", "input", "weight", "measured, ms", "predicted, ms", "error"]
    return Table(columns, lines, left=5)


def page(judged: Sequence[Judged]) -> str:
    """h100-convolutions.md."""
    return f"""# Convolutions of profiled steps on an H100

Written by `python -m benchmarks.accuracy.own_convolutions`; do not edit. Kernels of convolutions in the profiled steps
of `data/measured/{NAME}/profiled.csv`, all calls of one shape in a step together, beside what `predict` answers for
them, without biases; transposed ones are left out. The shipped factors are fitted to sums of all convolutions of most
of these steps, forward and backward, so this is no error held out. Such a sum does not tell its kinds apart: errors of
some hide those of others.

{by_kind(judged).markdown()}

The convolutions with the largest errors in milliseconds:

{worst(judged).markdown()}
"""


def main() -> int:
    """Write the page; returns the exit code."""
    judged = judge(required_data_folder(), lambda name: print(f"\r{name:50}", end="", file=sys.stderr, flush=True))
    print(file=sys.stderr)
    write_whole(OUTPUT, page(judged).encode())
    print(OUTPUT)
    return 0


if __name__ == "__main__":
    sys.exit(main())
