"""A comparison as text: the rows, where each step goes (it adds up as printed), the explanations."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from precision_time.estimate.estimate import BREAKDOWN_TERMS
from precision_time.estimate.notebook import require_pandas
from precision_time.estimate.quantile import label
from precision_time.estimate.text import interval_text
from precision_time.report.table import Table
from precision_time.units import digits_for, human_seconds, rounded_parts

if TYPE_CHECKING:
    from precision_time.comparison.comparison import Comparison, Row
    from precision_time.estimate.estimate import Estimate

_TERM_HEADS = dict(
    zip(
        BREAKDOWN_TERMS,
        (
            "forward",
            "backward",
            "optimizer",
            "scaling",
            "recompute",
            "casts",
            "host",
            "comm.",
            "bubble",
            "slowest GPU",
            "data",
        ),
        strict=True,
    )
)
_SHOWN_WHERE_NONZERO = frozenset({"recompute", "bubble", "straggler_wait", "loader_stall"})
"""Terms that have a column only where some row spends time on them."""
_STEP = "step P50 (P10-P90)"


def cost_per_epoch(estimate: Estimate) -> float | None:
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


def _memory_text(estimate: Estimate) -> str:
    memory = estimate.memory
    text = f"{memory.peak_bytes / 2**30:.1f}/{memory.capacity_bytes / 2**30:.0f} GiB"
    return text if memory.fits else text + " NO"


def summary_table(comparison: Comparison) -> Table:
    """The main table: the fields in which rows differ, then step, throughput, speed-up, memory, epoch, run and cost."""
    rows = comparison.rows
    fields = differing(rows)
    lines = [[column[index] for column in fields.values()] for index in range(len(rows))]
    heads = [*fields]
    for head, cells in _columns(comparison).items():
        if head == _STEP or any(cell is not None for cell in cells):
            heads.append(head)
            lines = [[*line, "-" if cell is None else cell] for line, cell in zip(lines, cells, strict=True)]
    return Table(heads, lines, left=len(fields))


def _columns(comparison: Comparison) -> dict[str, list[str | None]]:
    """Columns of estimates by their heading: a cell for each row, None where it has no such number."""
    base, sure = comparison.baseline, comparison.quantile
    per_s = "tokens/s" if all_read_tokens(comparison.rows) else "samples/s"
    mark = label(sure) if sure is not None else ""
    repeated = any(repeats(row.estimate) for row in comparison.rows)
    columns: dict[str, list[str | None]] = {}
    for place, row in enumerate(comparison.rows):
        estimate = row.estimate
        cells: dict[str, str | None] = {_STEP: "no estimate"}
        if estimate is not None:
            at = estimate.at_quantile(sure) if sure is not None else None
            speed_up, achieved = row.speed_up_over(base), estimate.utilisation
            tokens = achieved.tokens_per_s if achieved is not None and per_s == "tokens/s" else None
            cells = {
                _STEP: interval_text(estimate.step),
                f"step {mark}": human_seconds(at.step_s) if at else None,
                per_s: _rate(tokens or estimate.samples_per_s),
                "TFLOP/s/GPU": None if achieved is None else f"{achieved.tflops_per_gpu:,.1f}",
                "MFU": None if achieved is None or achieved.mfu is None else f"{achieved.mfu:.1%}",
                "HFU": None if achieved is None or achieved.hfu is None or not repeated else f"{achieved.hfu:.1%}",
                "speed-up": None if speed_up is None else f"{speed_up:.2f}x",
                "memory": _memory_text(estimate),
                "epoch": None if estimate.epoch is None else interval_text(estimate.epoch).split(" (")[0],
                "$/epoch": _dollars(cost_per_epoch(estimate)),
                "run": None if estimate.run is None else human_seconds(estimate.run.p50),
                f"run {mark}": None if at is None or at.run_s is None else human_seconds(at.run_s),
                "$/run": _dollars(None if estimate.cost_usd is None else float(estimate.cost_usd)),
                f"$/run {mark}": _dollars(at.cost_usd if at else None),
            }
        for head, cell in cells.items():
            columns.setdefault(head, [None] * len(comparison.rows))[place] = cell
    return columns


def repeats(estimate: Estimate | None) -> bool:
    """Whether the step computes something again, so that HFU is above MFU."""
    return estimate is not None and estimate.utilisation is not None and estimate.utilisation.repeated_flops > 0


def _rate(per_s: float) -> str:
    return f"{per_s:,.{min(2, digits_for(per_s))}f}"


def _dollars(usd: float | None) -> str | None:
    return None if usd is None else f"{usd:,.2f}"


def frame(comparison: Comparison) -> Any:
    """A `pandas.DataFrame` of all rows; NaN and None where a row has no estimate."""
    pandas = require_pandas("to_pandas")
    rows = []
    for row in comparison.rows:
        job, estimate = row.job, row.estimate
        values: dict[str, Any] = {
            "model": job.model, "precision": job.precision, "gpu": job.gpu, "gpus": job.gpus, "layout": job.layout,
            "batch_size": row.batch_size,
        }  # fmt: skip
        if estimate is not None:
            step, run = estimate.step, estimate.run
            values |= {
                "step_p10_s": step.p10, "step_p50_s": step.p50, "step_p90_s": step.p90,
                "samples_per_s": estimate.samples_per_s, "run_p50_s": run.p50 if run else None,
                "cost_p50_usd": estimate.cost_usd.p50 if estimate.cost_usd else None,
                "memory_bytes": estimate.memory.peak_bytes, "fits": estimate.memory.fits,
            }  # fmt: skip
            for name in ("tokens_per_s", "tflops_per_gpu", "mfu", "hfu"):
                values[name] = getattr(estimate.utilisation, name, None)
            if comparison.quantile is not None:
                at, mark = estimate.at_quantile(comparison.quantile), label(comparison.quantile).lower()
                values |= {
                    f"step_{mark}_s": at.step_s, f"run_{mark}_s": at.run_s, f"cost_{mark}_usd": at.cost_usd,
                    f"memory_{mark}_bytes": at.peak_bytes,
                }  # fmt: skip
        rows.append({**values, "speed_up": comparison.speed_up(row), "error": row.error or None})
    return pandas.DataFrame(rows)


def differing(rows: Sequence[Row]) -> dict[str, list[str]]:
    """Columns of job fields that tell the rows apart: always the precision, the others where they differ."""
    layouts = [row.job.layout for row in rows]
    if len({row.job.layout_spec.text(with_dp=False) for row in rows}) == 1:
        layouts = ["-"] * len(rows)  # only dp differs, as the number of GPUs shows
    columns = {
        "model": [row.job.model for row in rows],
        "precision": [row.job.precision for row in rows],
        "gpus": [_cluster(row) for row in rows],
        "layout": layouts,
        "batch": [str(row.batch_size or "-") for row in rows],
    }
    return {head: cells for head, cells in columns.items() if head == "precision" or len({*cells} - {"-"}) > 1}


def row_names(rows: Sequence[Row]) -> list[str]:
    """Each row by the fields that tell it from the others: "amp-fp16, 8 x v100-16gb-sxm, batch 100"."""
    columns = differing(rows)
    if "batch" in columns:
        columns["batch"] = [f"batch {cell}" for cell in columns["batch"]]
    return [", ".join(cells) for cells in zip(*columns.values(), strict=True)]


def all_read_tokens(rows: Sequence[Row]) -> bool:
    """Whether every predicted row has tokens per second, so that all throughputs can be given in tokens."""
    achieved = [row.estimate.utilisation for row in rows if row.estimate is not None]
    return bool(achieved) and all(each is not None and each.tokens_per_s is not None for each in achieved)


def _whole_label(comparison: Comparison, base: Row) -> str:
    """What tells the baseline from other rows, and its GPUs: "fp32 on 8 x v100-16gb-sxm, batch 100"."""
    rows = comparison.rows if base in comparison.rows else (*comparison.rows, base)
    fields = {head: cells[rows.index(base)] for head, cells in differing(rows).items() if head not in ("gpus", "model")}
    if "batch" in fields:
        fields["batch"] = f"batch {fields['batch']}"
    precision, *others = [cell for cell in fields.values() if cell != "-"]
    model = f"{base.job.model} in " if len({row.job.model for row in rows}) > 1 else ""
    return ", ".join([f"{model}{precision} on {_cluster(base)}", *others])


def title(comparison: Comparison) -> str:
    """What all rows have in common: "resnet50 on 8 x a100-80gb-sxm, batch 256 per GPU"."""
    rows = comparison.rows
    models = {row.job.model for row in rows}
    text = next(iter(models)) if len(models) == 1 else f"{len(models)} models"
    if len({_cluster(row) for row in rows}) == 1:
        text += f" on {_cluster(rows[0])}"
    batches = {row.batch_size for row in rows} - {None}
    if len(batches) == 1:
        text += f", batch {batches.pop()} per GPU"
    return text


def _cluster(row: Row) -> str:
    return f"{row.job.gpus} x {row.job.gpu}"


def breakdown_table(comparison: Comparison) -> Table:
    """Milliseconds of each term of the step; the terms add up to the step as printed.

    Recomputation, bubbles and the waits for the slowest GPU and for data have a column only where they take time.
    """
    names = row_names(comparison.rows)
    predicted = [(n, row.estimate) for n, row in zip(names, comparison.rows, strict=True) if row.estimate is not None]
    digits = 1 if min((estimate.step.p50 for _, estimate in predicted), default=1.0) >= 0.01 else 3
    nonzero = {term for _, estimate in predicted for term, seconds in estimate.breakdown.items() if seconds}
    terms = [term for term in BREAKDOWN_TERMS if term not in _SHOWN_WHERE_NONZERO or term in nonzero]
    rows = []
    for name, estimate in predicted:
        parts = rounded_parts([estimate.breakdown.get(term, 0.0) * 1e3 for term in terms], digits)
        numbers = [*parts, sum(parts), estimate.communication_hidden_s * 1e3]
        rows.append([name, *(f"{n:,.{digits}f}" for n in numbers)])
    return Table(["step in ms", *(_TERM_HEADS[term] for term in terms), "= step", "(hidden comm.)"], rows)


def render(comparison: Comparison) -> str:
    """Title, tables, prices and explanations as text."""
    if not comparison.rows:
        return "nothing to compare"
    parts = [title(comparison), summary_table(comparison).text()]
    base = comparison.baseline
    if base is not None:
        parts[-1] += f"\nspeed-up: samples per second over {_whole_label(comparison, base)}"
        parts.append(breakdown_table(comparison).text())
    rentals = {str(row.estimate.rental): None for row in comparison.rows if row.estimate and row.estimate.rental}
    notes = [
        textwrap.fill(note, 110, subsequent_indent="  ", break_on_hyphens=False, break_long_words=False)
        for note in (*rentals, *comparison.explanations())
    ]
    if notes:
        parts.append("\n".join(notes))
    return "\n\n".join(parts)
