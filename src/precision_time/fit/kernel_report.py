"""The page of kernel errors, docs/kernels.md."""

from __future__ import annotations

import platform
from collections.abc import Mapping, Sequence
from datetime import date
from typing import Any

import numpy as np
import scipy

from precision_time.fit.kernel_evaluation import Line, by_curve, targets

_TEXT = """\
# Errors of kernel times

|predicted / measured - 1| against published kernel tables, in percent, medians unless p90 is said. Made {made} by

```sh
{command}
```

with Python {python}, numpy {numpy}, scipy {scipy}, from {rows:,} rows drawn evenly over the logarithm of the work:

{inputs}

How kernels are timed is said in [timing.md](timing.md), how the correction is fitted in [fit.md](fit.md).

- **profiled**: the device was measured. Rows are split at random into two halves; curve and correction are fitted to
  one and judged on the other, and the other way round, so no row is judged by a fit that saw it. What ships is fitted
  to all rows.
- **bare**: the same rows and halves, by the curve without its correction.
- **unseen**: all rows of the device left out of curve and correction, both fitted anew; it gets the curve of its
  architecture or of a near chip and the shared correction, whose strength was chosen without it. **unseen bare**:
  without that correction.
- **other class**: the dtype class left out on all devices; its kernels borrow another class of the same device as a
  class without data does (half from fp32, fp8 and fp32 from half). Curves with one class alone fall back on
  hand-set numbers, convolutions on products.
- **roofline**: the floor as it is. **constant**: one utilisation per line, fitted on that very line, so it saw what it
  is judged on.

NeuSight's calls were timed alone; their fitted call overhead (15-40 us, a fact of the host) is added in every column
and is not shipped.
fp8 products were timed with the quantising of their input, whose cost, as fitted on the device, is added likewise.

## Targets

Met where the median over the lines below (one per curve, dtype class and GPU) and the median over all rows both are.

{targets}

{missed}

## By curve

{curves}

## By curve, dtype class and GPU

{lines}
"""


def page(lines: Sequence[Line], inputs: Mapping[str, Mapping[str, str]], command: str) -> str:
    """The page as Markdown."""
    aims = targets(lines)
    ordered = sorted(lines, key=lambda line: (line.curve, line.dtype, line.gpu))
    shown = [
        {
            "kernels": aim["kernels"], "device": aim["case"], "target": f"{100 * aim['limit']:.0f}",
            "over lines": aim["over lines"], "over rows": aim["over rows"], "": "met" if aim["met"] else "not met",
            "lines above": f"{len(aim['missed'])} of {aim['lines']}",
        }
        for aim in aims
    ]  # fmt: skip
    return _TEXT.format(
        made=date.today().isoformat(), command=command, python=platform.python_version(), numpy=np.__version__,
        scipy=scipy.__version__, rows=sum(line.rows for line in lines),
        inputs="\n".join(f"- `{name}`, sha256 `{entry['sha256']}`" for name, entry in inputs.items()),
        targets=as_text(shown), missed="\n".join(_missed(aim) for aim in aims), curves=as_text(by_curve(lines)),
        lines=as_text([line.cells() for line in ordered]),
    )  # fmt: skip


def _missed(aim: Mapping[str, Any]) -> str:
    names = ", ".join(f"{name} ({100 * value:.1f})" for name, value in aim["missed"]) or "none"
    return f"- {aim['kernels']}, {aim['case']}, above {100 * aim['limit']:.0f} %: {names}."


def as_text(table: Sequence[Mapping[str, Any]]) -> str:
    """A table as Markdown, errors in percent."""
    columns = list(table[0])
    lines = ["| " + " | ".join(columns) + " |", "|" + "---|" * len(columns)]
    for row in table:
        cells = [f"{100 * v:.1f}" if isinstance(v := row[c], float) else str(v) for c in columns]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)
