"""Measured jobs as regression takes them: facts, log seconds of a step, and who may not meet whom across a fold."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from precision_time.errors import PredictorError
from precision_time.job.job import Job
from precision_time.predictors.facts import Facts, JobKey, facts_of
from precision_time.predictors.interface import MeasuredJob, steps_of
from precision_time.predictors.published import card_group, grouped_folds, job_group

Array = NDArray[np.float64]
Indices = NDArray[np.intp]

FAMILY_FOLDS = 9
"""Most folds of families inside a fit; each costs a fit of its own."""
FEWEST, FEWEST_GROUPS = 20, 4
"""Measured jobs, and jobs in another dress counted once, without which nothing is fitted: chosen."""


def enough(measured: Sequence[MeasuredJob]) -> bool:
    """Whether trees can be trained on these jobs at all."""
    measured = merged(measured)
    return len(measured) >= FEWEST and _groups(measured) >= FEWEST_GROUPS


def _groups(measured: Sequence[MeasuredJob]) -> int:
    return len({job_group(each) for each in measured})


def merged(measured: Sequence[MeasuredJob]) -> list[MeasuredJob]:
    """The measured jobs, those that differ only in how long they ran as one: all their seconds over all their steps.

    Features are of a step, so several lengths of one job would only repeat a row.
    """
    found: list[MeasuredJob] = []
    groups: dict[tuple[JobKey, str, str], list[MeasuredJob]] = {}
    for each in measured:
        if each.job.run.samples is None and each.job.run.steps is None and each.job.run.epochs is None:
            found.append(each)
            continue
        group = groups.setdefault((JobKey.of(each.job), each.family, each.dataset), [])
        if not group:
            found.append(each)
        group.append(each)
    longer = {
        id(group[0]): sum(m.seconds for m in group) / sum(steps_of(m.job) for m in group)
        for group in groups.values() if len(group) > 1
    }  # fmt: skip
    return [replace(m, seconds=longer[id(m)] * steps_of(m.job)) if id(m) in longer else m for m in found]


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
        if not enough(measured):
            raise PredictorError(
                f"{name} cannot be trained on {len(measured)} measured jobs in {_groups(measured)} groups; "
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

    @property
    def known(self) -> Known:
        return Known(
            frozenset(self.families),
            frozenset(self.alike),
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
        """A fold for each family, some together where there are more than `most`; of one alone, five of jobs."""
        count = len(set(self.families))
        if count < 2:
            return self.job_folds(5)
        if count > most:
            return np.array(grouped_folds(self.measured, lambda each: each.family, most), dtype=np.intp)
        known = {name: i for i, name in enumerate(sorted(set(self.families)))}
        return np.array([known[name] for name in self.families], dtype=np.intp)


@dataclass(frozen=True, slots=True)
class Known:
    """What the training rows had: families, models on GPUs, architectures and precisions."""

    families: frozenset[str]
    alike: frozenset[str]
    architectures: frozenset[str]
    precisions: frozenset[str]

    def kinship(self, job: Job, facts: Facts, precision: bool = True) -> tuple[str, tuple[str, ...]]:
        """Which of `Radii` holds for a job, and what is new about it; a `precision` that does not count is none."""
        strange = {"family": facts.family not in self.families, "on": facts.cluster.gpu.arch not in self.architectures}
        strange["in"] = precision and job.precision not in self.precisions
        words = {
            "family": f"of family {facts.family}",
            "on": f"on {facts.cluster.gpu.arch}",
            "in": f"in {job.precision}",
        }
        notes = tuple(
            f"no measured job {words[what]} was among the training rows" for what, new in strange.items() if new
        )
        if notes:
            return "strange", notes
        return ("same" if card_group(MeasuredJob("", job, 0.0, "")) in self.alike else "kin"), ()

    def to_dict(self) -> dict[str, list[str]]:
        return {name: sorted(getattr(self, name)) for name in ("families", "alike", "architectures", "precisions")}


@dataclass(frozen=True, slots=True)
class Radii:
    """Half widths of the interval in log seconds, of held-out training rows: `same` of a model and GPU that other rows
    are of, `kin` of a family and an architecture that others are of, `strange` of a family left out."""

    same: float
    kin: float
    strange: float

    @classmethod
    def of(cls, same: Array, kin: Array, strange: Array, families: Sequence[str]) -> Radii:
        """Of held-out errors, `families` those of the rows; none narrower than one for a job better known."""
        widths = np.maximum.accumulate([conformal(same), conformal(kin), conformal_of_groups(strange, families)])
        return cls(*map(float, widths))


SHARES = (0.0, 0.25, 0.5, 0.75, 1.0)


def best_share(errors: Array, correction: Array, weights: Array) -> float:
    """The share of a learned correction that leaves the least mean |error| in rows of families that taught it nothing.

    What trees learn of some families holds for another in part; rows of families left out say how much.
    """
    left = [float(np.average(np.abs(errors - share * correction), weights=weights)) for share in SHARES]
    return SHARES[int(np.argmin(left))]


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


def conformal_of_groups(errors: Array, groups: Sequence[str], coverage: float = 0.8) -> float:
    """Half width in log seconds that holds `coverage` of the rows of a new group, if groups are like each other.

    Rows of a group err together, so each group counts once, however many rows it has, and one more, unseen, counts as
    wider than all (Dunn, Wasserman and Ramdas 2023, hierarchical conformal prediction by pooled distributions). The
    widest error seen is the answer where so few groups cannot promise as much.
    """
    usable = np.isfinite(errors)
    sizes = np.abs(errors[usable])
    if not len(sizes):
        return 0.0
    names = [name for name, usual in zip(groups, usable, strict=True) if usual]
    counts: dict[str, int] = {}
    for name in names:
        counts[name] = counts.get(name, 0) + 1
    order = np.argsort(sizes)
    inside = np.cumsum([1.0 / counts[names[i]] for i in order]) / (len(counts) + 1)
    return float(sizes[order][min(int(np.searchsorted(inside, coverage - 1e-9)), len(sizes) - 1)])
