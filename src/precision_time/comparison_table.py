"""A comparison as text: the rows, where each step goes (it adds up as printed), the explanations."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING

from precision_time.comparison import BREAKDOWN, speed_up_over
from precision_time.text_table import format_table
from precision_time.units import digits_for, rounded_parts, unit_for

if TYPE_CHECKING:
    from precision_time.comparison import Comparison, EstimateLike, IntervalLike, Row

_TERM_HEADS = dict(zip(
    BREAKDOWN,
    ("forward", "backward", "optimizer", "scaling", "recompute", "casts", "host", "comm.", "bubble", "slowest GPU",
     "data"),
    strict=True,
))  # fmt: skip
_WHERE_SOME_HAVE = frozenset({"recompute", "bubble", "straggler_wait", "loader_stall"})
"""Terms that stand in the table only where a row has them."""


def interval_text(interval: IntervalLike) -> str:
    """ "104.9 ms (96.1-114.0)": P50 with P10 and P90 in the same unit."""
    scale, unit = unit_for(interval.p50)
    low, middle, high = (value / scale for value in (interval.p10, interval.p50, interval.p90))
    digits = digits_for(middle)
    return f"{middle:.{digits}f} {unit} ({low:.{digits}f}-{high:.{digits}f})"


def cost_per_epoch(estimate: EstimateLike) -> float | None:
    """US dollars for one epoch: GPUs x hours x the job's price, or the epoch's part of the run's cost."""
    if estimate.epoch is None:
        return None
    price = estimate.job.run.price_per_gpu_hour
    if price is not None:
        return price * estimate.job.gpus * estimate.epoch.p50 / 3600
    if estimate.rental is not None:
        return estimate.rental.usd_per_hour * estimate.epoch.p50 / 3600
    if estimate.cost_usd is None or estimate.run is None or estimate.run.p50 <= 0:
        return None
    return float(estimate.cost_usd) * estimate.epoch.p50 / estimate.run.p50


def _memory_text(estimate: EstimateLike) -> str:
    memory = estimate.memory
    text = f"{memory.peak_bytes / 2**30:.1f}/{memory.capacity_bytes / 2**30:.0f} GiB"
    return text if memory.fits else text + " NO"


def summary_rows(comparison: Comparison) -> tuple[list[str], list[list[str]]]:
    """Heads and cells of the main table; what all rows share stands in the title instead."""
    rows = comparison.rows
    costs = [None if row.estimate is None else cost_per_epoch(row.estimate) for row in rows]
    epochs = any(row.estimate is not None and row.estimate.epoch is not None for row in rows)
    timed = any(cost is not None for cost in costs)
    words = differing(rows)
    heads = [*words, "step P50 (P10-P90)", "samples/s", "speed-up", "memory"]
    heads += (["epoch"] if epochs else []) + (["$/epoch"] if timed else [])
    base = comparison.baseline
    cells = []
    for index, (row, cost) in enumerate(zip(rows, costs, strict=True)):
        line = [column[index] for column in words.values()] + _estimate_cells(row, base, epochs)
        cells.append(line + ([] if not timed else ["-" if cost is None else f"{cost:,.2f}"]))
    return heads, cells


def differing(rows: Sequence[Row]) -> dict[str, list[str]]:
    """Columns of words that tell the rows apart: always the precision, the others where they differ."""
    layouts = [row.job.layout for row in rows]
    if len({row.job.layout_spec.text(with_dp=False) for row in rows}) == 1:
        layouts = ["-"] * len(rows)  # only dp differs, which the number of GPUs says
    columns = {
        "model": [row.job.model for row in rows],
        "precision": [row.job.precision for row in rows],
        "gpus": [_cluster(row) for row in rows],
        "layout": layouts,
        "batch": [str(row.batch_size or "-") for row in rows],
    }
    return {head: cells for head, cells in columns.items() if head == "precision" or len({*cells} - {"-"}) > 1}


def row_names(rows: Sequence[Row]) -> list[str]:
    """Each row by the words that tell it from the others: "amp-fp16, 8 x v100-16gb-sxm, batch 100"."""
    columns = differing(rows)
    if "batch" in columns:
        columns["batch"] = [f"batch {cell}" for cell in columns["batch"]]
    return [", ".join(words) for words in zip(*columns.values(), strict=True)]


def _estimate_cells(row: Row, base: Row | None, epochs: bool) -> list[str]:
    estimate = row.estimate
    if estimate is None or base is None:
        return ["no estimate", "-", "-", "-"] + (["-"] if epochs else [])
    speed_up = speed_up_over(base, row)
    cells = [
        interval_text(estimate.step),
        f"{estimate.samples_per_s:,.{min(2, digits_for(estimate.samples_per_s))}f}",
        "-" if speed_up is None else f"{speed_up:.2f}x",
        _memory_text(estimate),
    ]
    if epochs:
        cells.append("-" if estimate.epoch is None else interval_text(estimate.epoch).split(" (")[0])
    return cells


def title(comparison: Comparison) -> str:
    """What all rows have in common, in words: "resnet50 on 8 x a100-80gb-sxm, batch 256 per GPU"."""
    rows = comparison.rows
    models = {row.job.model for row in rows}
    words = next(iter(models)) if len(models) == 1 else f"{len(models)} models"
    if len({_cluster(row) for row in rows}) == 1:
        words += f" on {_cluster(rows[0])}"
    batches = {row.batch_size for row in rows} - {None}
    if len(batches) == 1:
        words += f", batch {batches.pop()} per GPU"
    return words


def _cluster(row: Row) -> str:
    return f"{row.job.gpus} x {row.job.gpu}"


def breakdown_rows(comparison: Comparison) -> tuple[list[str], list[list[str]]]:
    """Heads and cells of the second table, in milliseconds; the terms add up to the step as printed.

    What is recomputed, bubbles, the waits for the slowest GPU and for data stand there where a row has them."""
    names = row_names(comparison.rows)
    known = [(n, row.estimate) for n, row in zip(names, comparison.rows, strict=True) if row.estimate is not None]
    digits = 1 if min((estimate.step.p50 for _, estimate in known), default=1.0) >= 0.01 else 3
    had = {term for _, estimate in known for term, seconds in estimate.breakdown.items() if seconds}
    terms = [term for term in BREAKDOWN if term not in _WHERE_SOME_HAVE or term in had]
    cells = []
    for name, estimate in known:
        parts = rounded_parts([estimate.breakdown.get(term, 0.0) * 1e3 for term in terms], digits)
        numbers = [*parts, sum(parts), estimate.communication_hidden_s * 1e3]
        cells.append([name, *(f"{n:,.{digits}f}" for n in numbers)])
    return ["step in ms", *(_TERM_HEADS[term] for term in terms), "= step", "(hidden comm.)"], cells


def render(comparison: Comparison) -> str:
    """The whole answer as text."""
    if not comparison.rows:
        return "nothing to compare"
    parts = [title(comparison)]
    heads, cells = summary_rows(comparison)
    parts.append(format_table(heads, cells, left=heads.index("step P50 (P10-P90)")))
    base = comparison.baseline
    if base is not None:
        parts[-1] += f"\nspeed-up: samples per second over {base.job.precision} on {base.job.gpus} x {base.job.gpu}"
        heads, cells = breakdown_rows(comparison)
        parts.append(format_table(heads, cells))
    rentals = {str(row.estimate.rental): None for row in comparison.rows if row.estimate and row.estimate.rental}
    notes = [
        textwrap.fill(note, 110, subsequent_indent="  ", break_on_hyphens=False, break_long_words=False)
        for note in (*rentals, *comparison.explanations())
    ]
    if notes:
        parts.append("\n".join(notes))
    return "\n\n".join(parts)
