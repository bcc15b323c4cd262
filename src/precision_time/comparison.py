"""One job beside others: a table, speed-ups, and in words why a precision is or is not faster.

    compare(cross(job, precision=["fp32", "amp-fp16"], gpus=[1, 8])) -> Comparison

A job that cannot be predicted keeps its row, with the sentence that says why.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Protocol, SupportsFloat

from precision_time.errors import PrecisionTimeError
from precision_time.hardware.prices import Rental
from precision_time.job import Job
from precision_time.processes import cores, pooled

BREAKDOWN = (
    "forward",
    "backward",
    "optimizer",
    "loss_scaling",
    "recompute",
    "casts",
    "host_gaps",
    "communication_exposed",
    "bubble",
    "straggler_wait",
    "loader_stall",
)
"""The terms that sum to a step, in the order of the step."""


class IntervalLike(Protocol):
    @property
    def p10(self) -> float: ...
    @property
    def p50(self) -> float: ...
    @property
    def p90(self) -> float: ...


class MemoryLike(Protocol):
    @property
    def peak_bytes(self) -> float: ...
    @property
    def capacity_bytes(self) -> float: ...
    @property
    def fits(self) -> bool: ...


class EstimateLike(Protocol):
    """What a comparison reads of an `Estimate`."""

    @property
    def job(self) -> Job: ...
    @property
    def step(self) -> IntervalLike: ...
    @property
    def epoch(self) -> IntervalLike | None: ...
    @property
    def run(self) -> IntervalLike | None: ...
    @property
    def samples_per_s(self) -> float: ...
    @property
    def breakdown(self) -> Mapping[str, float]: ...
    @property
    def communication_hidden_s(self) -> float: ...
    @property
    def memory(self) -> MemoryLike: ...
    @property
    def bound_shares(self) -> Mapping[str, float]: ...
    @property
    def cost_usd(self) -> SupportsFloat | None: ...
    @property
    def rental(self) -> Rental | None: ...
    def to_dict(self) -> dict[str, Any]: ...


@dataclass(frozen=True, slots=True)
class Row:
    """A job with its estimate, or with the sentence why there is none."""

    job: Job
    estimate: EstimateLike | None
    error: str | None = None

    @property
    def batch_size(self) -> int | None:
        """Samples per data-parallel rank and micro-step: the job's, or the model's default that was taken."""
        if self.job.batch_size is not None or self.estimate is None:
            return self.job.batch_size
        per_step = self.estimate.samples_per_s * self.estimate.step.p50
        return max(1, round(per_step / self.job.layout_spec.dp / self.job.grad_accum))


@dataclass(frozen=True, slots=True)
class Comparison:
    """The rows in the order asked for. `str()` is the whole answer as text."""

    rows: tuple[Row, ...]

    @property
    def baseline(self) -> Row | None:
        """What speed-ups refer to: the first predicted row in fp32, else in tf32, else the first of all."""
        predicted = [row for row in self.rows if row.estimate is not None]
        for precision in ("fp32", "tf32"):
            for row in predicted:
                if row.job.precision == precision:
                    return row
        return predicted[0] if predicted else None

    def speed_up(self, row: Row) -> float | None:
        """Samples per second over the baseline's."""
        return speed_up_over(self.baseline, row)

    def explanations(self) -> list[str]:
        """In words, from the breakdowns: why a precision is faster or not; what does not fit."""
        from precision_time.comparison_reasons import explain

        return explain(self)

    def to_dict(self) -> dict[str, Any]:
        base = self.baseline
        at = next((index for index, row in enumerate(self.rows) if row is base), None)
        return {
            "baseline": at,
            "rows": [
                {
                    "job": row.job.to_dict(),
                    "estimate": None if row.estimate is None else row.estimate.to_dict(),
                    "error": row.error,
                    "speed_up": speed_up_over(base, row),
                }
                for row in self.rows
            ],
            "explanations": self.explanations(),
        }

    def plot(self, path: str | Path) -> None:
        """Write the picture: .png, .svg or a self-contained .html."""
        from precision_time.comparison_plot import plot

        plot(self, path)

    def __str__(self) -> str:
        from precision_time.comparison_table import render

        return render(self)


def speed_up_over(base: Row | None, row: Row) -> float | None:
    """Samples per second over another row's."""
    if base is None or base.estimate is None or row.estimate is None or base.estimate.samples_per_s <= 0:
        return None
    return row.estimate.samples_per_s / base.estimate.samples_per_s


def cross(base: Job, **axes: Sequence[Any]) -> list[Job]:
    """The base job with every combination of the words' values, the first varying slowest, none twice."""
    every = itertools.product(*axes.values())
    return distinct(base.replace(**dict(zip(axes, values, strict=True))) for values in every)


def distinct(jobs: Iterable[Job]) -> list[Job]:
    """The jobs in their order, each once."""
    return list({repr(job): job for job in jobs}.values())


JOBS_PER_WORKER = 1000
"""A worker costs half a second and a job 2 to 5 ms: with fewer jobs it does not pay."""


def compare(
    jobs: Job | Iterable[Job],
    predict: Callable[[Job], EstimateLike] | None = None,
    progress: Callable[[int, int], None] | None = None,
    *,
    layouts: Sequence[Any] = (),
    workers: int | None = 1,
) -> Comparison:
    """Predict every job, or a job in every one of `layouts`. `progress(done, total)` is called as they are done.

    `workers`: processes to share many jobs out over; None: as many as pay. The answers are the same; a script needs
    `if __name__ == "__main__":` around the call, as for every pool of processes.
    """
    todo = [jobs] if isinstance(jobs, Job) else list(jobs)
    if layouts:
        todo = [job for base in todo for job in cross(base, layout=layouts)]
    # Jobs that share a traced step follow one another, so that it is read and laid out once.
    order = sorted(range(len(todo)), key=lambda index: _step_key(todo[index]))
    report = progress or (lambda done, total: None)
    rows: dict[int, Row] = {}
    count = max(1, min(cores(), len(todo) // JOBS_PER_WORKER)) if workers is None else workers
    if predict is None and count > 1:
        size = max(1, min(JOBS_PER_WORKER // 4, -(-len(order) // (4 * count))))
        chunks = [order[start : start + size] for start in range(0, len(order), size)]
        with closing(pooled(_rows, [[todo[i] for i in chunk] for chunk in chunks], count)) as answered:
            for place, found in answered:
                rows.update(zip(chunks[place], found, strict=True))
                report(len(rows), len(todo))
    for index in order:
        if index not in rows:
            report(len(rows), len(todo))
            rows[index] = _row(todo[index], predict)
    return Comparison(tuple(rows[index] for index in range(len(todo))))


def _row(job: Job, predict: Callable[[Job], EstimateLike] | None) -> Row:
    if predict is None:
        from precision_time.prediction import predict as whole_line

        predict = whole_line
    try:
        return Row(job, predict(job))
    except PrecisionTimeError as error:
        return Row(job, None, str(error))


def _rows(jobs: Sequence[Job]) -> list[Row]:
    """In a worker: rows whose estimates go back without their timeline, which is made again when it is asked for."""
    from precision_time.prediction import predict

    def light(job: Job) -> EstimateLike:
        return replace(predict(job), events=partial(_events, job))

    return [_row(job, light) for job in jobs]


def _events(job: Job) -> dict[str, Any]:
    from precision_time.prediction import predict

    return predict(job).trace_events()


def _step_key(job: Job) -> tuple[str, ...]:
    """What the traced step of a job depends on, then the number of ranks; as text, for sorting."""
    words = (job.model, dict(job.model_config), dict(job.input), job.precision, job.batch_size, job.attention)
    layout = job.layout_spec
    degrees = (layout.tp, layout.cp, layout.ep, layout.sp, job.recompute, layout.pp, layout.vpp)
    return tuple(map(str, (*words, job.execution, job.optimizer, job.memory_format, *degrees, job.gpus)))
