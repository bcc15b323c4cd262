"""Seconds by precision, model, GPU and count of GPUs, from whatever rows exist: what `boosting_steps` writes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from precision_time.predictors.interface import MeasuredJob, global_batch_size, steps_of
from precision_time.report.table import Table

PRECISIONS = (
    "fp64", "fp32", "tf32", "amp-fp16", "fp16-master", "fp16", "amp-bf16", "bf16-master", "bf16", "fp8",
)  # fmt: skip
Cell = tuple[str, str, int]
"""Model, GPU, GPUs."""


def precision_table(measured: Sequence[MeasuredJob], errors: NDArray[np.float64]) -> str:
    """Markdown. A cell is the median of milliseconds a sample and rank, the rows, and their mean |error| held out.

    Listed are models on a GPU and count that were measured in two precisions or more; the others are counted.
    `errors` are predicted over measured - 1, row by row.
    """
    cells: dict[Cell, dict[str, list[tuple[float, float]]]] = {}
    for each, error in zip(measured, errors, strict=True):
        if each.job.batch_size is None:
            continue
        rank_samples = global_batch_size(each.job) / each.job.layout_spec.dp
        per_sample_s = each.seconds / steps_of(each.job) / rank_samples
        found = cells.setdefault((each.job.model, each.job.gpu, each.job.gpus), {})
        found.setdefault(each.precision, []).append((per_sample_s, abs(float(error))))
    several = {cell: found for cell, found in sorted(cells.items()) if len(found) > 1}
    single = {name: sum(list(found) == [name] for found in cells.values()) for name in PRECISIONS}
    lines = [
        (model, gpu, str(count), *(_cell(found.get(name, ())) for name in PRECISIONS), _range(found))
        for (model, gpu, count), found in several.items()
    ]
    table = Table(("model", "GPU", "GPUs", *PRECISIONS, "slowest / fastest"), lines, left=2)
    counted = ", ".join(f"{count} in {name}" for name, count in single.items() if count)
    return (
        "# Seconds by precision\n\n"
        "Median of milliseconds for a sample on a rank, (n rows), and the mean error of boosting on these rows with "
        "their family held out. Empty where no row was published. Batches differ between rows of a cell. Written by "
        f"`python -m benchmarks.papers.boosting_steps` from all published steps of trust A and B.\n\n"
        f"{len(several)} models on a GPU and count were measured in several precisions; in one alone: {counted}.\n\n"
        f"{table.markdown()}\n"
    )


def _cell(found: Sequence[tuple[float, float]]) -> str:
    if not found:
        return ""
    seconds, errors = zip(*found, strict=True)
    return f"{1e3 * float(np.median(seconds)):.3g} ({len(found)}) {float(np.mean(errors)):.0%}"


def _range(found: dict[str, list[tuple[float, float]]]) -> str:
    medians = [float(np.median([seconds for seconds, _ in rows])) for rows in found.values()]
    return f"{max(medians) / min(medians):.2f}"
