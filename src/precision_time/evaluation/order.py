"""Whether the precisions of one job are predicted in the measured order, which the choice of a precision relies on.

Two rows are one job in two precisions when model, shape, input, GPU, GPUs, nodes, system, layout, framework and
repository agree. Memory format, optimizer, execution and attention may differ, because published full-precision rows
often differ in them too. Rows that also agree in batch and accumulation are compared with each other first; published
mixed-precision rows often take a larger batch, so rows without such a partner are compared whatever their batch.
Compared are seconds per sample and GPU, step / (batch x accumulation).

A pair is two rows of one job in different precisions. It is right when the predictions stand in the order of the
measurements; a tie of predictions is wrong. Pairs measured exactly equal have no order and do not count.

    pairs_right    right pairs over all pairs
    kendall_tau    (right - reversed) / pairs within a job (tau-a, a tie of predictions counts neither way),
                   averaged over jobs
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass

import numpy as np

from precision_time.evaluation.rows import Counted, JudgedRow, counted

TIE = 1e-9
"""Relative difference below which two predictions count as equal: rounding errors are smaller."""


@dataclass(frozen=True, slots=True)
class Order:
    """`n_jobs` measured in more than one precision and their `n_pairs`; shares are None where there is no pair."""

    n_jobs: int
    kendall_tau: float | None
    pairs_right: float | None
    n_pairs: int

    def to_dict(self) -> dict[str, float | int | None]:
        """Field names and values, as in the JSON of `evaluate`."""
        return asdict(self)


MOST_COMPARED = 3000
"""Distinct rows of one job of which all pairs are compared; of more, as many at equal distances in the table."""


def precision_order(judged: Iterable[JudgedRow], involving: str | None = None) -> Order:
    """The order within all jobs; with `involving`, over the pairs of which one row has this precision."""
    return counted_order(counted(judged), involving)


def counted_order(rows: Iterable[Counted], involving: str | None = None) -> Order:
    """The same of rows that are counted."""
    jobs = [counts for same in _jobs(list(rows)) if (counts := _counts(same, involving))[0]]
    pairs = sum(count for count, _, _ in jobs)
    if not pairs:
        return Order(0, None, None, 0)
    tau = sum((right - reversed_) / count for count, right, reversed_ in jobs) / len(jobs)
    return Order(len(jobs), tau, sum(right for _, right, _ in jobs) / pairs, pairs)


def _jobs(rows: Sequence[Counted]) -> list[list[Counted]]:
    """Groups of rows that are one job in more than one precision."""
    same_batch = _several_precisions(rows, lambda j: (*j.row.setting, _batch(j)))
    paired = {id(each) for group in same_batch for each in group}
    left = [each for each in rows if id(each) not in paired and _batch(each.judged)[0] is not None]
    return same_batch + _several_precisions(left, lambda j: j.row.setting)


def _several_precisions(rows: Sequence[Counted], key: Callable[[JudgedRow], tuple[object, ...]]) -> list[list[Counted]]:
    groups: dict[tuple[object, ...], list[Counted]] = {}
    for each in rows:
        groups.setdefault(key(each.judged), []).append(each)
    return [group for group in groups.values() if len({each.judged.row.precision for each in group}) > 1]


def _batch(judged: JudgedRow) -> tuple[int | None, int]:
    """Batch (None: the model's default) and accumulation."""
    job = judged.row.job
    return (job.batch_size, job.grad_accum) if job else (None, 1)


def _samples(judged: JudgedRow) -> int:
    """Samples of a step on one data-parallel rank; rows without a batch are compared only with each other."""
    batch, accumulation = _batch(judged)
    return (batch or 1) * accumulation


def _counts(group: Sequence[Counted], involving: str | None) -> tuple[int, int, int]:
    """Pairs of one job, how many are predicted in the measured order, and how many in the reverse."""
    group = group[:: -(-len(group) // MOST_COMPARED)]
    rows = [each.judged for each in group]
    times = np.array([each.times for each in group])
    measured = np.log([j.row.measured_s / _samples(j) for j in rows])
    predicted = np.log([j.step.p50 / _samples(j) for j in rows])
    precisions = np.array([j.row.precision for j in rows])
    count = right = reversed_ = 0
    for first in range(len(rows) - 1):
        gap = measured[first + 1 :] - measured[first]
        other = precisions[first + 1 :]
        pair = (np.abs(gap) > TIE) & (other != precisions[first])
        if involving is not None and precisions[first] != involving:
            pair &= other == involving
        predicted_gap = predicted[first + 1 :] - predicted[first]
        agrees = np.where(np.abs(predicted_gap) > TIE, np.sign(predicted_gap) * np.sign(gap), 0.0)[pair]
        pairs = (times[first + 1 :] * times[first])[pair]
        count += int(pairs.sum())
        right += int(pairs[agrees > 0].sum())
        reversed_ += int(pairs[agrees < 0].sum())
    return count, right, reversed_
