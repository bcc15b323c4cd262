"""Convolutions that this project measured alone, as rows of the fit of factors on kernels.

No published table times a convolution in half precision by pass and memory format; a folder of `precision-time measure`
does. Its other operators are left out: with them, steps of families held out were no better.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from precision_time.fit.measured_files import content
from precision_time.measure.point import Point
from precision_time.measurements.row import Row

OPERATORS = "h100/operators.parquet"
"""Table of `measured/` with single operators."""
LEAST_S = 25e-6
"""Shorter ones are left out: launches and the first loads are much of their time."""
PRECISION = "amp-fp16"
"""Of all these rows, so that they are held out with the steps that run such convolutions."""
_ID = "operator-"


@dataclass(frozen=True, slots=True)
class MeasuredOperator:
    """An operator with its measured seconds, as a row of the fit and in its shapes."""

    row: Row
    point: Point


def is_operator(row: Row) -> bool:
    """Whether a row is an operator alone."""
    return row.id.startswith(_ID)


def measured_operators(path: Path) -> list[MeasuredOperator]:
    """The convolutions in half precision of the table `path`, outliers left out; raises `DataError` (see `content`)."""
    device, points, _, _ = content(path.parent)
    found = []
    for number, record in enumerate(points, 2):
        half = record["inputs"][0][1] == "float16"
        if record["outlier"] or not half or record["seconds"] < LEAST_S or "convolution" not in record["operator"]:
            continue
        point = Point.from_json(dict(record))
        work = point.work
        row = Row(
            id=f"{_ID}{number} {work.family}.{work.variant}",
            source=OPERATORS,
            line=number,
            trust="A",
            framework="pytorch",
            model=str(record["operator"]),
            family="operators",
            gpu=device,
            precision=PRECISION,
            gpus=1,
            measured_s=point.time.seconds,
            job=None,
            reason="one operator is no job",
            assumed=(),
            setting=(),
            digest="",
        )
        found.append(MeasuredOperator(row, point))
    return found
