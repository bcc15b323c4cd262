"""The page benchmarks/results/kernels.md."""

from __future__ import annotations

import platform
from collections.abc import Sequence
from datetime import date
from pathlib import Path

import numpy as np
import scipy

from benchmarks.accuracy.kernels import CASES, CurveErrors, Target, targets
from precision_time.fit.kernel_tables import TABLES
from precision_time.fit.provenance import sha256
from precision_time.report.errors import percent
from precision_time.report.table import Table

_TEXT = """\
# Errors of kernel times

|predicted / measured - 1| against the published kernel tables of `data/kernels/`: medians, and 90th percentiles where a
column says P90. Written on {made} by `make board`; do not edit. Python {python}, numpy {numpy}, scipy {scipy}; {rows:,}
rows, drawn evenly over the logarithm of the work, from

{inputs}

[timing.md](../../docs/timing.md) describes how kernels are timed, [fit.md](../../docs/fit.md) how the parameters are
fitted.

- **profiled**: the device was measured. Rows are split at random into two halves; curves and corrections are fitted to
  one and judged on the other, and the other way round. The shipped parameters are fitted to all rows.
- **bare**: the same rows and halves, by the curve without its correction.
- **unseen**: the device is left out of curve and correction, both fitted anew. It gets the curve of its architecture or
  of a similar chip and the shared correction, whose strength was chosen without it. **unseen bare**: without that
  correction.
- **other class**: the dtype class is left out on all devices. Its kernels take the parameters of another class of the
  same device, as a class without data does (half from fp32; fp8 and fp32 from half). Curves of one class alone take
  hand-set numbers, convolutions those of products.
- **roofline**: the floor itself. **constant**: one utilisation per curve, fitted to the rows it is judged on.

NeuSight timed each call alone. The fitted call overhead (15-40 us, a property of the host) is added in every column and
is not shipped. fp8 products were timed together with the quantising of their input; its cost, fitted on the device, is
added too.

## Targets

A target is met where the median over curves (one for each curve, dtype class and GPU) and the median over all rows both
are.

{targets}

{missed}

## By curve

{curves}

## By curve, dtype class and GPU

{lines}
"""


def page(judged: Sequence[CurveErrors], tables: Path) -> str:
    """The page as Markdown; `tables` is the folder with the kernel tables."""
    goals = targets(judged)
    return _TEXT.format(
        made=date.today().isoformat(),
        python=platform.python_version(),
        numpy=np.__version__,
        scipy=scipy.__version__,
        rows=sum(curve.rows for curve in judged),
        inputs="\n".join(f"- `{name}`, sha256 `{sha256(tables / name)}`" for name in TABLES),
        targets=_targets_table(goals),
        missed="\n".join(map(_missed, goals)),
        curves=_by_curve(judged),
        lines=_by_device(judged),
    )


def _targets_table(goals: Sequence[Target]) -> str:
    columns = ["kernels", "device", "target", "over curves", "over rows", "met", "curves above"]
    rows = [
        [
            goal.kernels,
            goal.case,
            percent(goal.limit, 0),
            percent(goal.over_curves),
            percent(goal.over_rows),
            "yes" if goal.met else "**no**",
            f"{len(goal.missed)} of {goal.curves}",
        ]
        for goal in goals
    ]
    return Table(columns, rows, left=2).markdown()


def _missed(goal: Target) -> str:
    names = ", ".join(f"{name} ({percent(median)})" for name, median in goal.missed) or "none"
    return f"- {goal.kernels}, {goal.case}, above {percent(goal.limit, 0)}: {names}."


def _by_curve(judged: Sequence[CurveErrors]) -> str:
    """The median over devices of the medians of every case."""
    rows = []
    for curve, dtype in sorted({(each.curve, each.dtype) for each in judged}):
        members = [each for each in judged if (each.curve, each.dtype) == (curve, dtype)]
        medians = [percent(float(np.median([each.median(case) for each in members]))) for case in CASES]
        rows.append([curve, dtype, f"{len(members)}", *medians])
    return Table(["curve", "dtype", "devices", *CASES], rows, left=2).markdown()


def _by_device(judged: Sequence[CurveErrors]) -> str:
    with_p90 = ("profiled", "unseen")
    columns = ["curve", "dtype", "GPU", "rows"]
    for case in CASES:
        columns += [case, f"{case} P90"] if case in with_p90 else [case]
    rows = []
    for each in sorted(judged, key=lambda each: (each.curve, each.dtype, each.gpu)):
        cells = [each.curve, each.dtype, each.gpu, f"{each.rows:,}"]
        for case in CASES:
            cells += [percent(each.median(case))] + ([percent(each.p90(case))] if case in with_p90 else [])
        rows.append(cells)
    return Table(columns, rows, left=3).markdown()
