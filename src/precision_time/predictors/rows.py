"""Measured jobs as rows of a regression: facts, log seconds of a step, and the folds of cross-validation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from precision_time.errors import PredictorError
from precision_time.job.job import Job
from precision_time.predictors.facts import Facts, JobKey, facts_of
from precision_time.predictors.interface import Forecast, MeasuredJob, steps_of
from precision_time.predictors.published import card_group, grouped_folds, job_group

Array = NDArray[np.float64]
Indices = NDArray[np.intp]

FAMILY_FOLDS = 9
"""Most folds of families inside a fit; each fold needs a fit."""
FEWEST, FEWEST_GROUPS = 20, 4
"""Fewest measured jobs, and fewest groups of them (`published.job_group`), to fit to: chosen."""


def enough(measured: Sequence[MeasuredJob]) -> bool:
    """Whether there are enough jobs to train trees."""
    measured = merged(measured)
    return len(measured) >= FEWEST and _groups(measured) >= FEWEST_GROUPS


def _groups(measured: Sequence[MeasuredJob]) -> int:
    return len({job_group(each) for each in measured})


def merged(measured: Sequence[MeasuredJob]) -> list[MeasuredJob]:
    """The measured jobs, with jobs that differ only in the length of their run as one: total seconds over total steps.

    Features are of a step, so several lengths of one job would only repeat a row.
    """
    first_of_group: list[MeasuredJob] = []
    groups: dict[tuple[JobKey, str, str], list[MeasuredJob]] = {}
    for each in measured:
        if each.job.run.samples is None and each.job.run.steps is None and each.job.run.epochs is None:
            first_of_group.append(each)
            continue
        group = groups.setdefault((JobKey.of(each.job), each.family, each.dataset), [])
        if not group:
            first_of_group.append(each)
        group.append(each)
    mean_step_s = {
        id(group[0]): sum(m.seconds for m in group) / sum(steps_of(m.job) for m in group)
        for group in groups.values()
        if len(group) > 1
    }
    return [
        replace(m, seconds=mean_step_s[id(m)] * steps_of(m.job)) if id(m) in mean_step_s else m for m in first_of_group
    ]


@dataclass(frozen=True, eq=False)
class Rows:
    """`experiments` names the experiment of each row: a model on a GPU.

    The n rows of an experiment have correlated errors, so together they weigh sqrt(n).
    """

    measured: tuple[MeasuredJob, ...]
    facts: tuple[Facts, ...]
    log_s: Array
    experiments: tuple[str, ...]

    @classmethod
    def of(cls, measured: Sequence[MeasuredJob], view: Callable[[Job], Job], name: str) -> Rows:
        """`view` gives the job whose facts are taken. Raises `PredictorError` where there are too few jobs."""
        if not enough(measured):
            raise PredictorError(
                f"{name} cannot be trained on {len(measured)} measured jobs in {_groups(measured)} groups; "
                f"give at least {FEWEST} in {FEWEST_GROUPS} groups of model, GPU and count"
            )
        return cls(
            tuple(measured),
            tuple(_facts(each, view(each.job)) for each in measured),
            np.log([each.seconds / steps_of(each.job) for each in measured]),
            tuple(map(card_group, measured)),
        )

    def __len__(self) -> int:
        return len(self.measured)

    def pick(self, at: Indices) -> Rows:
        return Rows(
            tuple(self.measured[i] for i in at),
            tuple(self.facts[i] for i in at),
            self.log_s[at],
            tuple(self.experiments[i] for i in at),
        )

    @property
    def weights(self) -> Array:
        counts: dict[str, int] = {}
        for name in self.experiments:
            counts[name] = counts.get(name, 0) + 1
        return np.array([counts[name] ** -0.5 for name in self.experiments])

    @property
    def families(self) -> tuple[str, ...]:
        return tuple(each.family for each in self.measured)

    @property
    def several(self) -> NDArray[np.bool_]:
        """Jobs of more than one GPU."""
        return np.array([facts.ranks > 1 for facts in self.facts], dtype=np.bool_)

    @property
    def known(self) -> Known:
        return Known(
            frozenset(self.families),
            frozenset(self.experiments),
            frozenset(facts.cluster.gpu.arch for facts in self.facts),
            frozenset(each.precision for each in self.measured),
        )

    def card_folds(self, count: int, seed: int = 0) -> NDArray[np.intp]:
        """Stricter: a model on a GPU stays in one fold, whatever the number of GPUs."""
        return np.array(grouped_folds(self.measured, card_group, count, seed), dtype=np.intp)

    def job_folds(self, count: int, seed: int = 0) -> NDArray[np.intp]:
        """The fold of each row; a job in other precisions and batches stays in one."""
        return np.array(grouped_folds(self.measured, job_group, count, seed), dtype=np.intp)

    def family_folds(self, most: int = FAMILY_FOLDS) -> NDArray[np.intp]:
        """At most `most` folds of whole families; five folds of jobs where there is one family only."""
        count = len(set(self.families))
        if count < 2:
            return self.job_folds(5)
        if count > most:
            return np.array(grouped_folds(self.measured, lambda each: each.family, most), dtype=np.intp)
        known = {name: i for i, name in enumerate(sorted(set(self.families)))}
        return np.array([known[name] for name in self.families], dtype=np.intp)


def _facts(measured: MeasuredJob, job: Job) -> Facts:
    """The facts of the job that the row is taken for, which may be in another precision."""
    return measured.facts if measured.facts is not None and job is measured.job else facts_of(job)


@dataclass(frozen=True, slots=True)
class Known:
    """Families, experiments (models on GPUs), architectures and precisions of the training rows."""

    families: frozenset[str]
    experiments: frozenset[str]
    architectures: frozenset[str]
    precisions: frozenset[str]

    def familiarity(self, job: Job, facts: Facts, precision: bool = True) -> tuple[str, tuple[str, ...]]:
        """The field of `Radii` that holds for a job, and notes on what is new about it.

        Without `precision` a new precision does not count as new.
        """
        new = {
            f"of family {facts.family}": facts.family not in self.families,
            f"on {facts.cluster.gpu.arch}": facts.cluster.gpu.arch not in self.architectures,
            f"in {job.precision}": precision and job.precision not in self.precisions,
        }
        notes = tuple(f"no measured job {what} was among the training rows" for what, is_new in new.items() if is_new)
        if notes:
            return "new_family", notes
        return (
            "same_experiment" if card_group(MeasuredJob("", job, 0.0, "")) in self.experiments else "same_family"
        ), ()

    def to_dict(self) -> dict[str, list[str]]:
        return {
            name: sorted(getattr(self, name)) for name in ("families", "experiments", "architectures", "precisions")
        }


@dataclass(frozen=True, slots=True)
class Radii:
    """Half widths of the interval in log seconds, from errors on held-out training rows.

    same_experiment  for a model on a GPU of which other rows were measured
    same_family      for a family and an architecture of which others were measured
    new_family       for a family, an architecture or a precision without training rows
    """

    same_experiment: float
    same_family: float
    new_family: float

    @classmethod
    def of(cls, same_experiment: Array, same_family: Array, new_family: Array, families: Sequence[str]) -> Radii:
        """From held-out errors, `families` being those of the rows; a less familiar job never gets a narrower width."""
        widths = [conformal(same_experiment), conformal(same_family), conformal_of_groups(new_family, families)]
        return cls(*map(float, np.maximum.accumulate(widths)))

    def forecast(self, seconds: float, familiarity: str, notes: tuple[str, ...]) -> Forecast:
        """The interval around `seconds` for a job of this familiarity (`Known.familiarity`)."""
        factor = float(np.exp(getattr(self, familiarity)))
        return Forecast(seconds, seconds / factor, seconds * factor, notes=notes)


SHARES = (0.0, 0.25, 0.5, 0.75, 1.0)


def best_share(errors: Array, correction: Array, weights: Array) -> float:
    """The share of a learned correction with the least mean |error| on families that it was not fitted to.

    A correction learned on some families applies to another family in part only.
    """
    mean_errors = [float(np.average(np.abs(errors - share * correction), weights=weights)) for share in SHARES]
    return SHARES[int(np.argmin(mean_errors))]


def out_of_fold(folds: Indices, held_out: Callable[[Indices, Indices], Array]) -> Array:
    """For every row the value of `held_out(training, judged)`, which trains on the other folds alone."""
    values = np.full(len(folds), np.nan)
    for fold in np.unique(folds):
        judged = np.flatnonzero(folds == fold)
        values[judged] = held_out(np.flatnonzero(folds != fold), judged)
    return values


def mean_error(errors: Array) -> float:
    """Mean of |predicted / measured - 1|, of errors log(measured / predicted)."""
    finite = errors[np.isfinite(errors)]
    return float(np.mean(np.abs(np.expm1(-finite)))) if len(finite) else 0.0


def conformal(errors: Array, coverage: float = 0.8) -> float:
    """Half width in log seconds that holds `coverage` of new rows, if their errors are distributed as these."""
    size = np.sort(np.abs(errors[np.isfinite(errors)]))
    if not len(size):
        return 0.0
    return float(size[min(len(size), int(np.ceil(coverage * (len(size) + 1)))) - 1])


def conformal_of_groups(errors: Array, groups: Sequence[str], coverage: float = 0.8) -> float:
    """Half width in log seconds that holds `coverage` of the rows of a new group, if groups are exchangeable.

    Errors within a group are correlated, so each group counts once, however many rows it has, and one unseen group
    counts as wider than all (Dunn, Wasserman and Ramdas 2023, hierarchical conformal prediction by pooled
    distributions). Where there are too few groups for this coverage the result is the largest error.
    """
    finite = np.isfinite(errors)
    sizes = np.abs(errors[finite])
    if not len(sizes):
        return 0.0
    names = [name for name, keep in zip(groups, finite, strict=True) if keep]
    counts: dict[str, int] = {}
    for name in names:
        counts[name] = counts.get(name, 0) + 1
    order = np.argsort(sizes)
    inside = np.cumsum([1.0 / counts[names[i]] for i in order]) / (len(counts) + 1)
    return float(sizes[order][min(int(np.searchsorted(inside, coverage - 1e-9)), len(sizes) - 1)])
