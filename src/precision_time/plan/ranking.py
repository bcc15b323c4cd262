"""`rank_layouts`: the valid layouts of a job on its GPUs, the fastest first."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from precision_time.errors import JobError
from precision_time.estimate.learned import Corrections
from precision_time.estimate.quantile import label, probability_of, quantile_of
from precision_time.global_batch import global_batch_of
from precision_time.job.job import Job
from precision_time.placement import cluster_of
from precision_time.plan.assess import Assessed, assess_batches
from precision_time.plan.layouts import arranged
from precision_time.processes import Workers, cores, map_chunks
from precision_time.units import human_bytes, human_count, human_seconds

MOST_CANDIDATES = 200_000
"""Most candidates of one search."""
CHUNK = 40
"""Most groups of candidates that differ in their micro-batch alone that are sent to a process at once; one takes 5 ms.
"""
WORTH_A_PROCESS = 1000
"""Candidates for which one more process is started where the number is not given."""


@dataclass(frozen=True, slots=True)
class Layouts:
    """The ranked layouts of a job.

    rows          those that fit, by the median of their step
    global_batch  samples of a step, equal in all
    tokens        tokens of a step, or samples where the model has no sequence; `unit` says which
    tried, unfit  candidates in all, and those whose memory does not fit
    nearest_bytes by which the nearest of those does not
    quantile      a probability whose quantile of the step is shown beside the median; None: no other than P10 and P90
    """

    rows: tuple[Assessed, ...]
    global_batch: int
    tokens: int
    unit: str
    tried: int
    unfit: int
    nearest_bytes: int
    quantile: float | None = None

    def with_quantile(self, probability: float) -> Layouts:
        """The same rows, whose text and JSON also show this quantile of the step.

        Raises `JobError` for a probability outside 0.01 to 0.999.
        """
        return dataclasses.replace(self, quantile=probability_of(probability))

    def _further(self, row: Assessed) -> float | None:
        """Seconds of the step at the further quantile."""
        if self.quantile is None or row.step is None:
            return None
        return quantile_of(row.step, self.quantile, row.floor_s)

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {
            "global_batch_size": self.global_batch,
            "tried": self.tried,
            "do_not_fit": self.unfit,
            **({"quantile": self.quantile} if self.quantile is not None else {}),
            "layouts": [
                {
                    "layout": row.job.layout,
                    "batch_size": row.job.batch_size,
                    "grad_accum": row.job.grad_accum,
                    "recompute": row.job.recompute,
                    "step": {q: getattr(row.step, q) for q in ("p10", "p50", "p90")},
                    **({"step_at_quantile_s": at} if (at := self._further(row)) is not None else {}),
                    "mfu": row.mfu,
                    f"{self.unit}_per_s": self.tokens / row.step.p50,
                    "peak_bytes": row.peak_bytes,
                    "fits": row.fits,
                    "job": row.job.to_dict(),
                }
                for row in self.rows
                if row.step
            ],
        }

    def text(self, shown: int = 20) -> str:
        """A table of the fastest."""
        from precision_time.report.table import Table

        mark = [label(self.quantile)] if self.quantile is not None else []
        heads = ["layout", "batch x accum", "recompute", "step", "P10-P90", *mark]
        heads += ["MFU", f"{self.unit}/s", "memory", "fits"]
        lines = []
        for row in self.rows[:shown]:
            if row.step is None:
                continue
            lines.append(
                [
                    row.job.layout,
                    f"{row.job.batch_size} x {row.job.grad_accum}",
                    row.job.recompute,
                    human_seconds(row.step.p50),
                    f"{human_seconds(row.step.p10)}-{human_seconds(row.step.p90)}",
                    *([human_seconds(at)] if (at := self._further(row)) is not None else []),
                    "-" if row.mfu is None else f"{row.mfu:.1%}",
                    human_count(self.tokens / row.step.p50),
                    human_bytes(row.peak_bytes),
                    f"{row.fits:.0%}",
                ]
            )
        more = len(self.rows) - len(lines)
        foot = [f"{more} more that fit, slower"] if more > 0 else []
        if self.unfit:
            foot.append(f"{self.unfit} do not fit in memory, the nearest by {human_bytes(self.nearest_bytes)}")
        head = f"{self.tried} layouts of a global batch of {self.global_batch:,} samples"
        return "\n".join([head, "", Table(heads, lines, left=3).text(), "", *foot]).rstrip()

    def __str__(self) -> str:
        return self.text()


def rank_layouts(
    job: Job,
    gpus: int | None = None,
    global_batch: int | None = None,
    *,
    least_fit: float = 0.5,
    largest_batch: bool = False,
    workers: Workers = 1,
    progress: Callable[[int, int], None] | None = None,
    learned: Corrections | None = None,
) -> Layouts:
    """All valid layouts of the job on its GPUs at the same global batch, the fastest first.

    `least_fit`: probability of fitting in memory below which a layout is left out. `largest_batch`: every layout and
    recomputation at its largest micro-batch that fits, any divisor of a replica's share; else at all powers of two that
    divide it. `learned`: corrections by outcomes of the cluster's jobs.
    Raises `JobError` where none is valid or none fits.
    """
    gpus = gpus or job.gpus
    batch = global_batch or global_batch_of(job)
    placed = job.replace(gpus=gpus, layout="dp")
    cluster = cluster_of(placed)
    node_gpus = min(cluster.node.domain_gpus, gpus)
    jobs = list(arranged(placed, gpus, node_gpus, batch, all_batches=largest_batch))
    if not jobs:
        raise JobError(
            f"no layout of {job.model} on {gpus} GPUs makes up a global batch of {batch} samples; take a multiple of "
            f"the data-parallel ranks, for example --global-batch-size {max(1, round(batch / gpus)) * gpus}"
        )
    found = assessed(jobs, least_fit, workers, progress, learned)
    rows = sorted((row for row in found if row.step), key=lambda row: row.step.p50 if row.step else 0.0)
    unfit = [row for row in found if not row.error and not row.predicted]
    if not rows:
        raise _none_fits(job, gpus, found, unfit)
    rows = _at_largest(rows) if largest_batch else rows
    tokens, unit = _tokens(placed, batch)
    return Layouts(
        rows=tuple(rows),
        global_batch=batch,
        tokens=tokens,
        unit=unit,
        tried=len(found),
        unfit=len(unfit),
        nearest_bytes=min((row.missing_bytes for row in unfit), default=0),
    )


def _at_largest(rows: Sequence[Assessed]) -> list[Assessed]:
    """Of every layout and recomputation the row with the largest micro-batch, in the order of the rows."""
    largest: dict[tuple[str, str], Assessed] = {}
    for row in rows:
        place = (row.job.layout, row.job.recompute)
        if place not in largest or (row.job.batch_size or 0) > (largest[place].job.batch_size or 0):
            largest[place] = row
    return [row for row in rows if row is largest[row.job.layout, row.job.recompute]]


def _none_fits(job: Job, gpus: int, found: Sequence[Assessed], unfit: Sequence[Assessed]) -> JobError:
    if not unfit:
        return JobError(found[0].error or "no layout can be predicted")
    nearest = min(unfit, key=lambda row: row.missing_bytes)
    return JobError(
        f"none of {len(found)} layouts of {job.model} fits on {gpus} x {job.gpu}; the nearest, {nearest.label}, misses "
        f"by {human_bytes(nearest.missing_bytes)}: take more GPUs, larger ones, or a smaller precision"
    )


def assessed(
    jobs: Sequence[Job],
    least_fit: float,
    workers: Workers = 1,
    progress: Callable[[int, int], None] | None = None,
    learned: Corrections | None = None,
) -> list[Assessed]:
    """Every job assessed, in order, by `workers` processes (None: as many as are worth starting) or an executor."""
    if len(jobs) > MOST_CANDIDATES:
        raise JobError(
            f"the search has {len(jobs):,} candidates; narrow GPUs, counts, precisions or layouts to "
            f"{MOST_CANDIDATES:,} at most"
        )
    by_batch: dict[tuple[Any, ...], list[int]] = {}
    for index, job in enumerate(jobs):
        by_batch.setdefault(_but_batch(job), []).append(index)
    alike = [sorted(by_batch[key], key=lambda index: jobs[index].batch_size or 0) for key in sorted(by_batch)]
    count = max(1, min(cores(), len(jobs) // WORTH_A_PROCESS)) if workers is None else workers
    size = -(-len(alike) // (4 * count)) if isinstance(count, int) else CHUNK
    size = max(1, min(size, CHUNK))
    chunks = [range(start, min(start + size, len(alike))) for start in range(0, len(alike), size)]
    items = [tuple([jobs[index] for index in indices]) for indices in alike]
    rows: dict[int, Assessed] = {}
    report = None if progress is None else partial(_of_jobs, progress, len(jobs))
    assess = partial(assess_batches, least_fit=least_fit, learned=learned)
    for indices, found in zip(alike, map_chunks(assess, items, chunks, count, report), strict=True):
        rows.update(zip(indices, found, strict=True))
    return [rows[index] for index in range(len(jobs))]


def _of_jobs(progress: Callable[[int, int], None], jobs: int, done: int, total: int) -> None:
    """Progress in candidates, which come in groups of unequal size."""
    progress(jobs * done // max(total, 1), jobs)


def _but_batch(job: Job) -> tuple[Any, ...]:
    """A candidate apart from its micro-batch, sorted so that neighbours share the traced step and its program."""
    layout = job.layout_spec
    degrees = (layout.tp, layout.cp, layout.ep, job.gpu, job.recompute, layout.pp, layout.vpp, layout.zero, job.gpus)
    schedule = tuple([(part.from_step, part.precision) for part in job.schedule])
    return (job.model, job.precision, *degrees, job.layout, job.node or "", schedule)


def _tokens(job: Job, batch: int) -> tuple[int, str]:
    """What a step trains on: tokens of sequences, or samples."""
    from precision_time.capture.captured_model import resolve

    length = resolve(job).sizes.get("seq_len")
    return (batch * length, "tokens") if isinstance(length, int) else (batch, "samples")
