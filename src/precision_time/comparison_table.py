"""A comparison as text: the rows, where each step goes (it adds up as printed), the explanations."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from precision_time.comparison import Comparison, EstimateLike, IntervalLike, Row

_UNITS = ((1e-6, "us"), (1e-3, "ms"), (1.0, "s"), (60.0, "min"), (3600.0, "h"), (86400.0, "days"))
_TERM_HEADS = ("forward", "backward", "optimizer", "scaling", "casts", "host", "comm.")


def unit_for(seconds: float) -> tuple[float, str]:
    """The unit in which a duration reads well: 1.5 ms, 12 s, 3.4 h."""
    fitting = [unit for unit in _UNITS if abs(seconds) >= (2 if unit[0] >= 60 else 1) * unit[0]]
    return fitting[-1] if fitting else _UNITS[0]


def interval_text(interval: IntervalLike) -> str:
    """ "104.9 ms (96.1-114.0)": P50 with P10 and P90 in the same unit."""
    scale, unit = unit_for(interval.p50)
    low, middle, high = (value / scale for value in (interval.p10, interval.p50, interval.p90))
    digits = digits_for(middle)
    return f"{middle:.{digits}f} {unit} ({low:.{digits}f}-{high:.{digits}f})"


def digits_for(value: float) -> int:
    """Decimals that leave about three significant digits."""
    return min(9, max(0, 2 - math.floor(math.log10(abs(value))))) if value else 0


def rounded_parts(parts: Sequence[float], digits: int) -> list[float]:
    """The parts rounded so that they sum to their rounded total (largest remainders go up)."""
    scale = 10.0**digits
    floors = [math.floor(part * scale) for part in parts]
    missing = round(sum(parts) * scale) - sum(floors)
    by_remainder = sorted(range(len(parts)), key=lambda i: floors[i] - parts[i] * scale)
    for index in by_remainder[:missing]:
        floors[index] += 1
    return [value / scale for value in floors]


def format_table(heads: Sequence[str], rows: Sequence[Sequence[str]], left: int = 1) -> str:
    """Columns padded to their widest cell; the first `left` flush left, the others flush right."""
    widths = [max(len(line[i]) for line in (heads, *rows)) for i in range(len(heads))]
    lines = []
    for line in (heads, tuple("-" * width for width in widths), *rows):
        cells = [c.ljust(w) if i < left else c.rjust(w) for i, (c, w) in enumerate(zip(line, widths, strict=True))]
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)


def cost_per_epoch(estimate: EstimateLike) -> float | None:
    """US dollars for one epoch: GPUs x hours x the job's price, or the epoch's part of the run's cost."""
    if estimate.epoch is None:
        return None
    price = estimate.job.run.price_per_gpu_hour
    if price is not None:
        return price * estimate.job.gpus * estimate.epoch.p50 / 3600
    if estimate.cost_usd is None or estimate.run is None or estimate.run.p50 <= 0:
        return None
    return float(estimate.cost_usd) * estimate.epoch.p50 / estimate.run.p50


def _memory_text(estimate: EstimateLike) -> str:
    memory = estimate.memory
    text = f"{memory.peak_bytes / 2**30:.1f}/{memory.capacity_bytes / 2**30:.0f} GiB"
    return text if memory.fits else text + " NO"


def summary_rows(comparison: Comparison) -> tuple[list[str], list[list[str]]]:
    """Heads and cells of the main table; columns that would be empty or the same everywhere are left out."""
    rows = comparison.rows
    models = len({row.job.model for row in rows}) > 1
    costs = [None if row.estimate is None else cost_per_epoch(row.estimate) for row in rows]
    epochs = any(row.estimate is not None and row.estimate.epoch is not None for row in rows)
    heads = ["precision", "gpu", "gpus", "batch", "step P50 (P10-P90)", "samples/s", "speed-up", "memory"]
    heads = (["model"] if models else []) + heads + (["epoch"] if epochs else [])
    heads += ["$/epoch"] if any(cost is not None for cost in costs) else []
    cells = []
    for row, cost in zip(rows, costs, strict=True):
        line = [row.job.model] if models else []
        line += [row.job.precision, row.job.gpu, str(row.job.gpus), str(row.batch_size or "default")]
        line += _estimate_cells(comparison, row, epochs)
        if len(heads) > len(line):
            line.append("-" if cost is None else f"{cost:,.2f}")
        cells.append(line)
    return heads, cells


def _estimate_cells(comparison: Comparison, row: Row, epochs: bool) -> list[str]:
    estimate = row.estimate
    if estimate is None:
        return ["no estimate", "-", "-", "-"] + (["-"] if epochs else [])
    speed_up = comparison.speed_up(row)
    cells = [
        interval_text(estimate.step),
        f"{estimate.samples_per_s:,.{min(2, digits_for(estimate.samples_per_s))}f}",
        "-" if speed_up is None else f"{speed_up:.2f}x",
        _memory_text(estimate),
    ]
    if epochs:
        cells.append("-" if estimate.epoch is None else interval_text(estimate.epoch).split(" (")[0])
    return cells


def breakdown_rows(comparison: Comparison) -> tuple[list[str], list[list[str]]]:
    """Heads and cells of the second table, in milliseconds; the terms add up to the step as printed."""
    from precision_time.comparison import BREAKDOWN

    cells = []
    for row in comparison.rows:
        if row.estimate is None:
            continue
        parts = [row.estimate.breakdown.get(term, 0.0) * 1e3 for term in BREAKDOWN]
        digits = 1 if sum(parts) >= 10 else 3
        parts = rounded_parts(parts, digits)
        numbers = [*parts, sum(parts), row.estimate.communication_hidden_s * 1e3]
        name = f"{row.job.precision}, {row.job.gpus} x {row.job.gpu}, batch {row.batch_size or 'default'}"
        cells.append([name, *(f"{number:,.{digits}f}" for number in numbers)])
    return ["step in ms", *_TERM_HEADS, "= step", "(hidden comm.)"], cells


def render(comparison: Comparison) -> str:
    """The whole answer as text."""
    if not comparison.rows:
        return "nothing to compare"
    models = {row.job.model for row in comparison.rows}
    parts = [f"{next(iter(models))}:"] if len(models) == 1 else []
    heads, cells = summary_rows(comparison)
    parts.append(format_table(heads, cells, left=heads.index("gpus")))
    base = comparison.baseline
    if base is not None:
        parts[-1] += f"\nspeed-up: samples per second over {base.job.precision} on {base.job.gpus} x {base.job.gpu}"
        heads, cells = breakdown_rows(comparison)
        parts.append(format_table(heads, cells))
    notes = [
        textwrap.fill(note, 110, subsequent_indent="  ", break_on_hyphens=False, break_long_words=False)
        for note in comparison.explanations()
    ]
    if notes:
        parts.append("\n".join(notes))
    return "\n\n".join(parts)
