"""What is known of one cluster: the outcomes of its latest jobs, its tails, its anomalies. Bounded in size."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import Any

from precision_time.estimate.learned import Learned
from precision_time.job.job import Job
from precision_time.serve.learning.anomalies import Anomaly, anomaly_of
from precision_time.serve.learning.conformal import Tails
from precision_time.serve.learning.effects import Variances
from precision_time.serve.learning.facets import Facets
from precision_time.serve.learning.outcome import LARGEST_RATIO, Known, Observed, has_own_anchors
from precision_time.serve.learning.posterior import JobOutcomes, Posterior

MOST_JOBS, MOST_REPEATS, MOST_ANOMALIES, MOST_SOFTWARE = 200, 8, 50, 50
"""Jobs of a cluster that are kept, those with the latest outcomes; outcomes of each; anomalies; kinds of nodes whose
current software is kept."""
YEARLY = 0.05
"""Spread that is added to an outcome for every year of its age: chosen."""
_YEAR_S = 365.25 * 86400.0
_COUNTED = ("gpu", "framework", "precision", "family", "model", "job")
_TWINS = ("model", "precision", "gpu", "framework")


@dataclass(frozen=True, slots=True)
class KnownJob:
    """A job with its outcomes and its latest uncorrected prediction: P50 of the step in seconds, spread of its log."""

    facets: Facets
    predicted_s: float
    spread: float
    outcomes: tuple[Known, ...]

    def with_one_more(self, observed: Observed) -> KnownJob:
        """All outcomes are compared with the latest prediction, so that a better predictor needs no new outcomes."""
        outcomes = sorted((*self.outcomes, observed.known), key=lambda known: known.number)[-MOST_REPEATS:]
        return KnownJob(observed.facets, observed.predicted_s, observed.spread, tuple(outcomes))

    @property
    def number(self) -> int:
        return self.outcomes[-1].number

    def to_dict(self) -> dict[str, Any]:
        outcomes = [each.to_dict() for each in self.outcomes]
        facets = self.facets.to_dict()
        return {"facets": facets, "predicted_s": self.predicted_s, "spread": self.spread, "outcomes": outcomes}

    @classmethod
    def from_dict(cls, given: Mapping[str, Any]) -> KnownJob:
        outcomes = tuple(Known(**each) for each in given["outcomes"])
        return cls(Facets.from_dict(given["facets"]), given["predicted_s"], given["spread"], outcomes)


@dataclass(frozen=True, slots=True)
class Expected:
    """What others say of an outcome before it is learned: mean and spread of log(measured / predicted), and how many
    spreads it came out above."""

    mean: float
    spread: float
    deviation: float


@dataclass(slots=True)
class Cluster:
    """The outcomes of one cluster.

    outcomes   that were learned since the start, of jobs that are no longer kept too
    unused     outcomes that were too far off to be of the job that was predicted
    current    software of the latest outcome by GPU and framework
    """

    name: str
    variances: Variances
    jobs: dict[str, KnownJob] = field(default_factory=dict)
    tails: Tails = field(default_factory=Tails)
    anomalies: tuple[Anomaly, ...] = ()
    outcomes: int = 0
    unused: int = 0
    number: int = 0
    current: dict[str, str] = field(default_factory=dict)
    _posterior: Posterior | None = None
    _counts: dict[str, Counter[str]] | None = None

    def correction(self, facets: Facets) -> Learned:
        """What the outcomes say about a job."""
        if not self.jobs:
            return Learned(self.name, 0)
        found = self.posterior.predicted(replace(facets, release=self.current.get(_kind(facets), "")))
        sharing = {name: self.counts[name][getattr(facets, name)] for name in _COUNTED}
        return Learned(
            cluster=self.name,
            outcomes=sum(len(job.outcomes) for job in self.jobs.values()),
            sharing={name: count for name, count in sharing.items() if count},
            factor=math.exp(found.mean),
            informed=found.informed,
            own_spread=self.variances.noise,
            prior_spread=math.sqrt(found.prior),
            low=self.tails.low,
            high=self.tails.high,
        )

    def correction_of(self, job: Job, precision: str, launch: float) -> Learned | None:
        """The correction of a job in a precision; None where it has anchors of its own, which may be the same runs."""
        if has_own_anchors(job.anchors):
            return None
        return self.correction(Facets.of_job(job, launch, precision=precision))

    def learn(self, observed: Observed) -> Expected | None:
        """Take in an outcome; returns what was expected of it, None where it is too far off to be learned."""
        self.number = observed.known.number
        learned = self.correction(observed.facets)
        mean, spread = math.log(learned.factor), max(learned.narrowed(observed.spread), 1e-6)
        expected = Expected(mean, spread, (observed.ratio - mean) / spread)
        found = anomaly_of(observed, mean, spread, self._twins(observed.facets), self.anomalies)
        if found is not None:
            self.anomalies = (*self.anomalies, found)[-MOST_ANOMALIES:]
        if abs(observed.ratio) > math.log(LARGEST_RATIO):
            self.unused += 1
            return None
        self.tails = self.tails.after(expected.deviation)
        self._keep(observed)
        self.outcomes += 1
        self._posterior = self._counts = None
        return expected

    def _keep(self, observed: Observed) -> None:
        key = observed.facets.job
        job = self.jobs.pop(key, None) or KnownJob(observed.facets, observed.predicted_s, observed.spread, ())
        self.jobs[key] = job.with_one_more(observed)  # at the end: the order of the dictionary is that of the numbers
        if len(self.jobs) > MOST_JOBS:
            del self.jobs[next(iter(self.jobs))]
        kind = _kind(observed.facets)
        self.current.pop(kind, None)
        self.current[kind] = observed.known.software
        if len(self.current) > MOST_SOFTWARE:
            del self.current[next(iter(self.current))]

    @property
    def posterior(self) -> Posterior:
        if self._posterior is None:
            latest = max(known.at for job in self.jobs.values() for known in job.outcomes)
            groups = [group for job in self.jobs.values() for group in _by_release(job, latest)]
            self._posterior = Posterior(groups, self.variances)
        return self._posterior

    @property
    def counts(self) -> dict[str, Counter[str]]:
        """Outcomes by facet and its value."""
        if self._counts is None:
            counts: dict[str, Counter[str]] = {name: Counter() for name in _COUNTED}
            for job in self.jobs.values():
                for name in _COUNTED:
                    counts[name][getattr(job.facets, name)] += len(job.outcomes)
            self._counts = counts
        return self._counts

    def _twins(self, facets: Facets) -> list[Known]:
        return [
            known
            for job in self.jobs.values()
            if all(getattr(job.facets, name) == getattr(facets, name) for name in _TWINS)
            for known in job.outcomes
        ]

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values; `from_dict` reads them back."""
        return {
            "jobs": [job.to_dict() for job in self.jobs.values()],
            "tails": self.tails.to_dict(),
            "anomalies": [each.to_dict() for each in self.anomalies],
            "outcomes": self.outcomes,
            "unused": self.unused,
            "number": self.number,
            "current": dict(self.current),
        }

    @classmethod
    def from_dict(cls, name: str, variances: Variances, given: Mapping[str, Any]) -> Cluster:
        jobs = [KnownJob.from_dict(each) for each in given["jobs"]]
        return cls(
            name=name,
            variances=variances,
            jobs={job.facets.job: job for job in jobs},
            tails=Tails.from_dict(given["tails"]),
            anomalies=tuple(Anomaly.from_dict(each) for each in given["anomalies"]),
            outcomes=given["outcomes"],
            unused=given["unused"],
            number=given["number"],
            current=dict(given["current"]),
        )


def _by_release(job: KnownJob, latest: float) -> Iterator[JobOutcomes]:
    """The outcomes of a job on each release of its software; they are older than the `latest` of the cluster."""
    ordered = sorted(job.outcomes, key=lambda known: (known.software, known.number))
    for release, group in groupby(ordered, key=lambda known: known.software):
        known = list(group)
        yield JobOutcomes(
            replace(job.facets, release=release),
            tuple(math.log(each.measured_s / job.predicted_s) for each in known),
            tuple(YEARLY**2 * max(latest - each.at, 0.0) / _YEAR_S for each in known),
        )


def _kind(facets: Facets) -> str:
    return f"{facets.gpu} {facets.framework}"
