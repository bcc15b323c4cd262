"""Measured jobs as regression takes them: facts, log seconds of a step, and who may not meet whom across a fold."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from precision_time.errors import PredictorError
from precision_time.job.job import Job
from precision_time.predictors.facts import Facts, facts_of
from precision_time.predictors.interface import MeasuredJob, steps_of
from precision_time.predictors.published import card_group, grouped_folds, job_group

Array = NDArray[np.float64]
Indices = NDArray[np.intp]

FEWEST, FEWEST_GROUPS = 20, 4
"""Measured jobs, and jobs in another dress counted once, without which nothing is fitted: chosen."""


@dataclass(frozen=True, eq=False)
class Rows:
    """`alike` names the experiment of a row, a model on a GPU; its n rows weigh as sqrt(n), since they err alike."""

    measured: tuple[MeasuredJob, ...]
    facts: tuple[Facts, ...]
    log_s: Array
    alike: tuple[str, ...]

    @classmethod
    def of(cls, measured: Sequence[MeasuredJob], seen: Callable[[Job], Job], name: str) -> Rows:
        """`seen` is a job as the predictor sees it. Raises `PredictorError` where they are too few to learn from."""
        groups = len({job_group(each) for each in measured})
        if len(measured) < FEWEST or groups < FEWEST_GROUPS:
            raise PredictorError(
                f"{name} cannot be trained on {len(measured)} measured jobs in {groups} groups; "
                f"give at least {FEWEST} in {FEWEST_GROUPS} groups of model, GPU and count"
            )
        return cls(
            tuple(measured),
            tuple(facts_of(seen(each.job)) for each in measured),
            np.log([each.seconds / steps_of(each.job) for each in measured]),
            tuple(map(card_group, measured)),
        )

    def __len__(self) -> int:
        return len(self.measured)

    def pick(self, at: Indices) -> Rows:
        return Rows(
            tuple(self.measured[i] for i in at), tuple(self.facts[i] for i in at), self.log_s[at],
            tuple(self.alike[i] for i in at),
        )  # fmt: skip

    @property
    def weights(self) -> Array:
        counts: dict[str, int] = {}
        for name in self.alike:
            counts[name] = counts.get(name, 0) + 1
        return np.array([counts[name] ** -0.5 for name in self.alike])

    @property
    def families(self) -> tuple[str, ...]:
        return tuple(each.family for each in self.measured)

    @property
    def several(self) -> NDArray[np.bool_]:
        """Jobs of more than one GPU."""
        return np.array([facts.ranks > 1 for facts in self.facts], dtype=np.bool_)

    def job_folds(self, count: int, seed: int = 0) -> NDArray[np.intp]:
        """The fold of each row; a job in other precisions and batches stays in one."""
        return np.array(grouped_folds(self.measured, job_group, count, seed), dtype=np.intp)

    def family_folds(self) -> NDArray[np.intp]:
        """A fold for each family; where there is but one, five of jobs."""
        known = {name: i for i, name in enumerate(sorted(set(self.families)))}
        if len(known) < 2:
            return self.job_folds(5)
        return np.array([known[name] for name in self.families], dtype=np.intp)


def out_of_fold(folds: Indices, held_out: Callable[[Indices, Indices], Array]) -> Array:
    """For every row what `held_out(training, judged)` says of it, trained on the other folds alone."""
    found = np.full(len(folds), np.nan)
    for fold in np.unique(folds):
        judged = np.flatnonzero(folds == fold)
        found[judged] = held_out(np.flatnonzero(folds != fold), judged)
    return found


def conformal(errors: Array, coverage: float = 0.8) -> float:
    """Half width in log seconds that holds `coverage` of new rows, if these held-out errors are like theirs."""
    size = np.sort(np.abs(errors[np.isfinite(errors)]))
    if not len(size):
        return 0.0
    return float(size[min(len(size), int(np.ceil(coverage * (len(size) + 1)))) - 1])
