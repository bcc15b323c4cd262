"""`compare` predicts many jobs and gives a `Comparison`; `cross` makes the jobs from the values of some fields.

    compare(cross(job, precision=["fp32", "amp-fp16"], gpus=[1, 8]))

A job that cannot be predicted keeps its row, with the sentence that says why.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from precision_time.checks import show
from precision_time.errors import JobError, PrecisionTimeError, nearest
from precision_time.estimate.quantile import probability_of
from precision_time.job import Job
from precision_time.processes import Workers, cores, map_chunks

if TYPE_CHECKING:
    from precision_time.estimate.estimate import Estimate


@dataclass(frozen=True, slots=True)
class Row:
    """A job with its estimate, or with the sentence that says why there is none."""

    job: Job
    estimate: Estimate | None
    error: str | None = None

    @property
    def batch_size(self) -> int | None:
        """Samples per data-parallel rank and micro-step: the job's, or the default of the model."""
        if self.job.batch_size is not None or self.estimate is None:
            return self.job.batch_size
        per_step = self.estimate.samples_per_s * self.estimate.step.p50
        return max(1, round(per_step / self.job.layout_spec.dp / self.job.grad_accum))

    def speed_up_over(self, base: Row | None) -> float | None:
        """Samples per second over those of `base`; None where either has no estimate."""
        if base is None or base.estimate is None or self.estimate is None or base.estimate.samples_per_s <= 0:
            return None
        return self.estimate.samples_per_s / base.estimate.samples_per_s


@dataclass(frozen=True, slots=True, repr=False)
class Comparison:
    """The rows in the order of the jobs. `str()` gives tables and explanations as text.

    base      the row that speed-ups refer to; None: the first predicted in torch-fp32, else fp32, tf32, or at all
    quantile  a probability whose quantile is shown beside the medians; None: no other than P10 and P90
    """

    rows: tuple[Row, ...]
    base: Row | None = None
    quantile: float | None = None

    @property
    def baseline(self) -> Row | None:
        """The row that speed-ups refer to; None where no row is predicted."""
        if self.base is not None:
            return self.base
        predicted = [row for row in self.rows if row.estimate is not None]
        for precision in ("torch-fp32", "fp32", "tf32"):
            for row in predicted:
                if row.job.precision == precision:
                    return row
        return predicted[0] if predicted else None

    def best(self, count: int | None = None, by: str = "throughput") -> Comparison:
        """The first `count` rows by a key of `SORTS`, the best first; speed-ups refer to the same row as before.

        Rows that do not fit in memory, and those without an estimate or a price, come last. Raises `JobError` for
        another key.
        """
        if by not in SORTS:
            raise JobError(f"sort {show(by)} is unknown; nearest: {nearest(str(by), SORTS)}")
        key = SORTS[by]
        ordered = sorted(self.rows, key=lambda row: (row.estimate is None or not row.estimate.memory.fits, key(row)))
        return Comparison(tuple(ordered[:count]), self.baseline, self.quantile)

    def with_quantile(self, probability: float) -> Comparison:
        """The same rows, whose tables, JSON and pictures also show this quantile.

        Raises `JobError` for a probability outside 0.01 to 0.999.
        """
        sure = probability_of(probability)
        base = next((index for index, row in enumerate(self.rows) if row is self.base), None)
        rows = tuple(
            row if row.estimate is None else replace(row, estimate=row.estimate.with_quantile(sure))
            for row in self.rows
        )
        return Comparison(rows, self.base if base is None else rows[base], sure)

    def speed_up(self, row: Row) -> float | None:
        """Samples per second over those of the baseline; None where either has no estimate."""
        return row.speed_up_over(self.baseline)

    def explanations(self) -> list[str]:
        """Sentences read off the breakdowns: why a precision is faster or not, and which rows do not fit in memory."""
        from precision_time.comparison.reasons import explain

        return explain(self)

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values: the index of the baseline, each row with job and estimate or error, the explanations."""
        base = self.baseline
        return {
            "baseline": next((index for index, row in enumerate(self.rows) if row is base), None),
            "rows": [
                {
                    "job": row.job.to_dict(),
                    "estimate": None if row.estimate is None else row.estimate.to_dict(),
                    "error": row.error,
                    "speed_up": row.speed_up_over(base),
                }
                for row in self.rows
            ],
            "explanations": self.explanations(),
        }

    def _repr_html_(self) -> str:
        from precision_time.comparison.table import summary_table

        return summary_table(self).html()

    def to_pandas(self) -> Any:
        """A `pandas.DataFrame` with a row for each job: fields, times in seconds, memory in bytes, error.

        Raises `MissingExtraError` where pandas is not installed.
        """
        from precision_time.comparison.table import frame

        return frame(self)

    def plot(self, path: str | Path) -> None:
        """Write the picture: .png, .svg or a self-contained .html."""
        from precision_time.comparison.plot import plot

        plot(self, path)

    def __repr__(self) -> str:
        from precision_time.comparison.table import title

        named = f"{title(self)}: " if self.rows else ""
        failed = sum(row.estimate is None for row in self.rows)
        return f"<Comparison {named}{len(self.rows)} rows{f', {failed} without an estimate' if failed else ''}>"

    def __str__(self) -> str:
        from precision_time.comparison.table import render

        return render(self)


def _least(value: Callable[[Estimate], float | None]) -> Callable[[Row], float]:
    def key(row: Row) -> float:
        found = value(row.estimate) if row.estimate is not None else None
        return math.inf if found is None else found

    return key


def _usd_per_sample(estimate: Estimate) -> float | None:
    price = estimate.job.run.price_per_gpu_hour
    usd = estimate.job.gpus * price if price is not None else estimate.rental.usd_per_hour if estimate.rental else None
    return usd / estimate.samples_per_s if usd is not None else None


SORTS: Mapping[str, Callable[[Row], float]] = {
    "throughput": _least(lambda estimate: -estimate.samples_per_s),
    "step": _least(lambda estimate: estimate.step.p50),
    "cost": _least(_usd_per_sample),
    "memory": _least(lambda estimate: float(estimate.memory.peak_bytes)),
}
"""Keys of `Comparison.best`: most samples per second, shortest step, least dollars a sample, least memory."""

MOST_JOBS = 20_000
"""Most jobs of one comparison; as many take half a minute on two cores without other work."""


def cross(base: Job, **axes: Sequence[Any]) -> list[Job]:
    """The base job with every combination of the fields' values, the first field varying slowest, none twice.

    Raises `JobError` for more than `MOST_JOBS`.
    """
    return crossed([base], axes)


def crossed(bases: Sequence[Job], axes: Mapping[str, Sequence[Any]]) -> list[Job]:
    """Every base job with every combination, as `cross` makes them."""
    counts = {"models": len(bases), **{name: len(values) for name, values in axes.items()}}
    total = math.prod(counts.values())
    if total > MOST_JOBS:
        made = " x ".join(f"{count:,} {name}" for name, count in counts.items() if count > 1)
        raise JobError(f"{made} make {total:,} jobs; give at most {MOST_JOBS:,} at once, by fewer values of a field")
    return distinct(
        base.replace(**dict(zip(axes, values, strict=True)))
        for base in bases
        for values in itertools.product(*axes.values())
    )


def distinct(jobs: Iterable[Job]) -> list[Job]:
    """The jobs in their order, each once."""
    return list({repr(job): job for job in jobs}.values())


JOBS_PER_WORKER = 1000
"""Starting a worker costs 0.5 s and predicting a job 2 to 5 ms, so fewer jobs are predicted in this process."""


def compare(
    jobs: Job | Iterable[Job],
    predict: Callable[[Job], Estimate] | None = None,
    progress: Callable[[int, int], None] | None = None,
    *,
    layouts: Sequence[Any] = (),
    prepare: Callable[[Job], Job] | None = None,
    workers: Workers = 1,
) -> Comparison:
    """Predict every job, in each of `layouts` where they are given.

    `predict` replaces the predictor, `progress(done, total)` counts jobs. `prepare` changes each job before it is
    predicted, as `largest_batch.at_largest_batch` does; where it raises, the row says why.

    `workers` processes share the jobs, None for as many as are worth starting, or any executor does; the result is the
    same. A script that starts processes needs `if __name__ == "__main__":` around the call.
    """
    todo = [jobs] if isinstance(jobs, Job) else list(jobs)
    if layouts:
        todo = [job for base in todo for job in cross(base, layout=layouts)]
    # Jobs that share a traced step follow one another, so that the step is read and laid out once.
    order = sorted(range(len(todo)), key=lambda index: _step_key(todo[index]))
    count = max(1, min(cores(), len(todo) // JOBS_PER_WORKER)) if workers is None else workers
    if predict is None and (not isinstance(count, int) or count > 1):
        share = -(-len(order) // (4 * count)) if isinstance(count, int) else len(order)
        size = max(1, min(JOBS_PER_WORKER // 4, share))
        chunks = [order[start : start + size] for start in range(0, len(order), size)]
        row = partial(_row_without_timeline, prepare=prepare)
        return Comparison(tuple(map_chunks(row, todo, chunks, count, progress)))
    return Comparison(tuple(map_chunks(partial(_row, predict=predict, prepare=prepare), todo, [order], 1, progress)))


def _row(job: Job, predict: Callable[[Job], Estimate] | None, prepare: Callable[[Job], Job] | None) -> Row:
    if predict is None:
        from precision_time.prediction import predict as default

        predict = default
    try:
        job = prepare(job) if prepare is not None else job
        return Row(job, predict(job))
    except PrecisionTimeError as error:
        return Row(job, None, str(error))


def _row_without_timeline(job: Job, prepare: Callable[[Job], Job] | None) -> Row:
    """The row of a worker process. Its estimate travels without the timeline, which is made again when it is read."""
    from precision_time.prediction import predict

    return _row(job, lambda job: replace(predict(job), events=partial(_events, job)), prepare)


def _events(job: Job) -> dict[str, Any]:
    from precision_time.prediction import predict

    return predict(job).trace_events()


def _step_key(job: Job) -> tuple[str, ...]:
    """The fields that the traced step of a job depends on, then the layout and the number of ranks; as text to sort."""
    fields = (
        job.model,
        dict(job.model_config),
        dict(job.input),
        job.precision,
        job.batch_size,
        job.attention,
        job.loss,
    )
    layout = job.layout_spec
    degrees = (layout.tp, layout.cp, layout.ep, layout.sp, job.recompute, layout.pp, layout.vpp)
    return tuple(
        map(
            str, (*fields, job.lora, job.quantized, job.execution, job.optimizer, job.memory_format, *degrees, job.gpus)
        )
    )
