"""PredictDDL against Ernest at stated costs: what each knows of an unseen network, and what finding that out took.

Ernest's model t(s, m) knows parts of the data and machines, nothing of networks, batches and precisions. Each protocol
says which runs Ernest has had; PredictDDL has had all runs of the *other* networks, and none of the one asked about.

    same runs    Ernest has the very runs that PredictDDL was trained on, one model for each dataset type, batch and
                 precision, so that only the network is hidden from it. Equal cost because it is the same measurements.
    per network  for every unseen network and dataset type, Ernest makes the runs that its design asks for, in fp32 and
                 at the first batch, and uses them for all batches and precisions of that network.
    per job      for every unseen network, dataset type, batch and precision it makes its design's runs. Where a batch
                 was only ever run over the whole data, there is nothing cheaper than the answer, and none is counted.

    both told    the last two again, with PredictDDL's answers corrected by the very runs that Ernest made.

Candidates for a design are parts of the data below the whole, as its authors use them; rows that Ernest ran itself are
not among those it is judged on, and PredictDDL is then judged on the same rows. PredictDDL's bill is paid once: the
more networks it serves, the less of it falls to each. At `even` networks both have spent as much.

**Chosen after the real runs were in.** At first Ernest was fitted in per cent everywhere; that the same runs are fitted
in seconds, as its authors do, and the runs of its own design in per cent, was decided with errors on these rows in
view, and it changes the ratio. Therefore `headline` does not choose: it takes the smallest of all ratios of the first
reading.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from benchmarks.papers.intervals import over_groups
from benchmarks.papers.predictddl_held_out import Held, network_of_row
from precision_time.errors import PredictorError
from precision_time.predictors.ernest import Ernest, designed, job_key
from precision_time.predictors.experiment_design import FloatArray
from precision_time.predictors.interface import MeasuredJob
from precision_time.predictors.predictddl.selection import grouped_folds

Statistic = Callable[[FloatArray], Any]
"""numpy.mean or numpy.median."""
SAME_RUNS = ("dataset", "batch_size", "precision")
PER_NETWORK = ("model", "dataset")
PER_JOB = ("model", "dataset", "batch_size", "precision")
CHEAP_PRECISION = "fp32"


@dataclass(frozen=True, slots=True)
class Beside:
    """A row predicted by both."""

    held: Held
    ernest_s: float

    @property
    def ernest_error(self) -> float:
        return self.ernest_s / self.held.row.measured.seconds - 1.0


@dataclass(frozen=True, slots=True)
class Protocol:
    """What came of one protocol. Costs are seconds of measuring: Ernest's a network, PredictDDL's in all."""

    name: str
    beside: tuple[Beside, ...]
    ernest_network_s: float
    predictddl_s: float
    runs_per_network: float

    @property
    def ernest_mape(self) -> float:
        return float(np.mean([abs(b.ernest_error) for b in self.beside]))

    @property
    def predictddl_mape(self) -> float:
        return float(np.mean([abs(b.held.error) for b in self.beside]))

    @property
    def ratio(self) -> float:
        """Of the mean errors over all rows."""
        return self.ernest_mape / self.predictddl_mape

    @property
    def median_ratio(self) -> float:
        """Of the median errors over all rows."""
        return _ratio(np.median, *self._sizes(self.beside))

    def by_statistic(self) -> dict[str, float]:
        """Ratios of the means and of the medians."""
        return {"mean": self.ratio, "median": self.median_ratio}

    def interval(self, of: Statistic = np.mean) -> tuple[float, float]:
        """80 % interval of the ratio of means (or medians) where networks are drawn anew."""
        groups: dict[str, list[Beside]] = {}
        for each in self.beside:
            groups.setdefault(each.held.row.measured.job.model, []).append(each)
        sizes = [self._sizes(rows) for rows in groups.values()]
        return over_groups(
            sizes, lambda drawn: _ratio(of, *(np.concatenate(side) for side in zip(*drawn, strict=True)))
        )

    @staticmethod
    def _sizes(rows: Sequence[Beside]) -> tuple[FloatArray, FloatArray]:
        """Absolute errors of Ernest and of PredictDDL."""
        return np.array([abs(b.ernest_error) for b in rows]), np.array([abs(b.held.error) for b in rows])

    @property
    def even(self) -> float:
        """Unseen networks at which both have spent as much; infinite where Ernest spends nothing on one."""
        return self.predictddl_s / self.ernest_network_s if self.ernest_network_s else float("inf")

    def by_network(self) -> dict[str, tuple[float, float]]:
        """Mean error of Ernest and of PredictDDL for every network."""
        names = sorted({b.held.row.measured.job.model for b in self.beside})
        errors = {}
        for name in names:
            rows = [b for b in self.beside if b.held.row.measured.job.model == name]
            errors[name] = (
                float(np.mean([abs(b.ernest_error) for b in rows])),
                float(np.mean([abs(b.held.error) for b in rows])),
            )
        return errors

    def ratios(self) -> dict[str, float]:
        """Ernest's mean error over PredictDDL's, network by network."""
        return {name: ernest / predictddl for name, (ernest, predictddl) in self.by_network().items()}

    def to_dict(self) -> dict[str, Any]:
        """For the JSON of the report, which `benchmarks.papers.claims` reads."""
        return {
            "rows": len(self.beside),
            "ernest_mape": self.ernest_mape,
            "predictddl_mape": self.predictddl_mape,
            "ratio": self.ratio,
            "ratio_interval": self.interval(),
            "median_ratio": self.median_ratio,
            "median_ratio_interval": self.interval(np.median),
            "ratios": self.ratios(),
            "ernest_network_s": self.ernest_network_s,
            "predictddl_s": self.predictddl_s,
        }


def headline(same: Sequence[Protocol]) -> tuple[str, float]:
    """Which ratio of the first reading stands for all: the smallest, over fits of Ernest and over mean and median.

    `same` are the protocols with the same runs, one for each way to fit Ernest.
    """
    ratios = {f"{each.name}, by {of}": value for each in same for of, value in each.by_statistic().items()}
    return min(ratios.items(), key=lambda pair: pair[1])


def _ratio(of: Statistic, ernest: FloatArray, predictddl: FloatArray) -> float:
    return float(of(ernest) / of(predictddl))


def same_runs(held: Sequence[Held], folds: int, seed: int, relative: bool = False) -> Protocol:
    """Ernest fitted to the training rows of every fold; `held` and folds must be those of PredictDDL.

    Its authors weigh errors in seconds; `relative` weighs them in per cent, which is ours and favours small answers.
    """
    rows = [each.row for each in held]
    beside: dict[int, Beside] = {}
    costs = []
    for known, unseen in grouped_folds([network_of_row(row) for row in rows], folds, seed):
        ernest = Ernest(by=SAME_RUNS, relative=relative)
        ernest.fit([rows[i].measured for i in known])
        costs.append(ernest.cost().measured_s)
        for i in unseen.tolist():
            beside[i] = Beside(held[i], ernest.predict(rows[i].measured.job).seconds)
    return Protocol(
        "same runs, in per cent" if relative else "same runs",
        tuple(beside[i] for i in range(len(rows))),
        0.0,
        float(np.mean(costs)),
        0.0,
    )


def runs_made(held: Sequence[Held], by: Sequence[str], budget: float) -> list[MeasuredJob]:
    """The runs that Ernest's design asks for of every unseen network."""
    whole = _whole(held)
    candidates = [each.row for each in held if each.row.facts.samples < whole[each.row.facts.dataset]]
    if tuple(by) == PER_NETWORK:
        first = {
            dataset: min(row.facts.batch_size for row in candidates if row.facts.dataset == dataset)
            for dataset in whole
        }
        candidates = [
            row
            for row in candidates
            if row.measured.precision == CHEAP_PRECISION and row.facts.batch_size == first[row.facts.dataset]
        ]
    return designed([row.measured for row in candidates], by=by, budget=budget)


def own_runs(name: str, held: Sequence[Held], by: Sequence[str], bill_s: float, budget: float) -> Protocol:
    """Ernest with its design's runs of every unseen network: "per network" or "per job"."""
    made = runs_made(held, by, budget)
    ernest = Ernest(by=by, relative=True)
    ernest.fit(made)
    run_ids = {row.id for row in made}
    beside = []
    for each in held:
        if each.row.measured.id in run_ids:
            continue
        try:
            beside.append(Beside(each, ernest.predict(each.row.measured.job).seconds))
        except PredictorError:  # a batch that no design could run for less than the answer
            continue
    networks = len({row.job.model for row in made})
    return Protocol(name, tuple(beside), sum(row.cost_s for row in made) / networks, bill_s, len(made) / networks)


def with_ernest_runs(protocol: Protocol, held: Sequence[Held], by: Sequence[str], budget: float) -> Protocol:
    """The same rows where PredictDDL is told of Ernest's runs too: its answers times the geometric mean of measured
    over predicted in the runs of the same key. No parameter is chosen; both now pay for those runs."""
    predicted = {each.row.measured.id: each.seconds for each in held}
    ratios: dict[Hashable, list[float]] = {}
    for run in runs_made(held, by, budget):
        ratios.setdefault(job_key(run.job, by), []).append(math.log(run.seconds / predicted[run.id]))
    beside = tuple(
        replace(b, held=replace(b.held, seconds=b.held.seconds * math.exp(float(np.mean(logs)))))
        for b in protocol.beside
        if (logs := ratios.get(job_key(b.held.row.measured.job, by)))
    )
    return replace(protocol, name=f"{protocol.name}, both told", beside=beside)


def _whole(held: Sequence[Held]) -> dict[str, float]:
    """Samples of the largest run, by dataset type."""
    largest: dict[str, float] = {}
    for each in held:
        facts = each.row.facts
        largest[facts.dataset] = max(largest.get(facts.dataset, 0.0), facts.samples)
    return largest
