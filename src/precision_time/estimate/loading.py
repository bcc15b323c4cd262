"""The effect of the data loader on an estimate: first (cold) and later epochs, stalls, and what would hide them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any

from precision_time.estimate.interval import Z90, Interval
from precision_time.ingest.pipeline.formats import STATED_SPREAD
from precision_time.ingest.pipeline.loader import Loader
from precision_time.units import human_seconds

NOTICED = 1e-3
"""Stalls below this share of the step are not reported."""


@dataclass(frozen=True, slots=True)
class Loading:
    """The loader of a job beside its training step. Seconds; `first` is the epoch that fills the cache.

    steady                     the epochs whose step is the estimate's: "later", or "first" where the run has one epoch
    first_step, later_step     steps of the first epoch, and of the later ones on average
    first_epoch, later_epoch   whole epochs, with the queue's filling; None where an epoch has no known length
    first_stall_s, later_...   seconds of a step that training waits for data (P50)
    first_loader_s, later_...  seconds that the loader alone needs for a step
    first_miss, later_miss     share of the samples that come from the storage
    first_binding, later_...   the resource that limits the loader
    workers_to_hide            loader workers per rank that hide the loader by themselves; None: no number does
    gb_per_s_to_hide           the same of the storage's bandwidth
    hidden_pause_s             a pause of the storage that the queue of prepared batches covers
    verdict                    a summary in one sentence
    source                     "measured" where storage and preparation are the job's own figures, else "assumed"
    """

    storage: str
    steady: str
    first_step: Interval
    later_step: Interval
    first_epoch: Interval | None
    later_epoch: Interval | None
    first_stall_s: float
    later_stall_s: float
    first_loader_s: float
    later_loader_s: float
    first_miss: float
    later_miss: float
    first_binding: str
    later_binding: str
    workers_to_hide: int | None
    gb_per_s_to_hide: float | None
    hidden_pause_s: float
    verdict: str
    source: str

    @property
    def step(self) -> Interval:
        """The step of the estimate."""
        return self.first_step if self.steady == "first" else self.later_step

    @property
    def stall_s(self) -> float:
        return self.first_stall_s if self.steady == "first" else self.later_stall_s

    @property
    def loader_s(self) -> float:
        return self.first_loader_s if self.steady == "first" else self.later_loader_s

    @property
    def binding(self) -> str:
        return self.first_binding if self.steady == "first" else self.later_binding

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values; `from_dict` reads them back."""
        values: dict[str, Any] = {}
        for name in _NAMES:
            value = getattr(self, name)
            is_interval = isinstance(value, Interval)
            values[name] = {q: getattr(value, q) for q in ("p10", "p50", "p90")} if is_interval else value
        return values

    @classmethod
    def from_dict(cls, given: Mapping[str, Any]) -> Loading:
        values: dict[str, Any] = {n: Interval(**v) if isinstance(v := given[n], Mapping) else v for n in _NAMES}
        return cls(**values)


_NAMES = tuple(item.name for item in fields(Loading))


class LoadedSteps:
    """Steps, epochs and runs as intervals, from a loader and a training step that takes `train`.

    P10 of the training step is combined with a fast loader, P90 with a slow one: their errors are taken as fully
    correlated.
    """

    def __init__(self, loader: Loader, train: Interval, per_epoch: int | None, steps: int | None) -> None:
        self.loader, self.train, self.per_epoch, self.steps = loader, train, per_epoch, steps
        storage, prepare = (math.exp(Z90 * s) for s in (loader.storage.log_spread, loader.prepare_spread))
        self._at = (
            (train.p10, loader.slower(1 / storage, 1 / prepare)),
            (train.p50, loader),
            (train.p90, loader.slower(storage, prepare)),
        )
        epochs = steps / per_epoch if steps and per_epoch else None
        self.only_first = epochs is not None and epochs <= 1.0
        self.first_miss = loader.first_miss()
        self.later = loader.later_misses(None if epochs is None or epochs <= 1.0 else epochs)
        whole = sum(weight for weight, _ in self.later)
        self.later_miss = min(sum(weight * miss for weight, miss in self.later) / whole, 1.0)

    def _interval(self, seconds: Callable[[float, Loader], float]) -> Interval:
        return Interval(*(seconds(train_s, loader) for train_s, loader in self._at))

    def _later(self, seconds: Callable[[float, Loader, float], float]) -> Interval:
        """The mean of the later epochs, so that epochs add up to the run."""
        if len(self.later) == 1:
            return self._interval(lambda train_s, loader: seconds(train_s, loader, self.later[0][1]))
        count = sum(weight for weight, _ in self.later)
        return self._interval(
            lambda train_s, loader: sum(w * seconds(train_s, loader, miss) for w, miss in self.later) / count
        )

    def first_step(self) -> Interval:
        return self._interval(lambda train_s, loader: loader.step_s(train_s, self.first_miss))

    def later_step(self) -> Interval:
        return self._later(lambda train_s, loader, miss: loader.step_s(train_s, miss))

    def first_epoch(self, steps: float) -> Interval:
        return self._interval(lambda train_s, loader: loader.epoch_s(train_s, self.first_miss, steps))

    @cached_property
    def _epochs(self) -> tuple[Interval, Interval] | None:
        """The first and a later one, where an epoch has a length."""
        return (self.first_epoch(self.per_epoch), self.later_epoch(self.per_epoch)) if self.per_epoch else None

    def later_epoch(self, steps: float) -> Interval:
        return self._later(lambda train_s, loader, miss: loader.epoch_s(train_s, miss, steps))

    def run(self, steps: int) -> Interval:
        """Steps of a run from its first epoch on; of a last epoch that is cut short, its share."""
        if self._epochs is None or self.per_epoch is None:
            return self.later_step().scaled(steps)
        if steps <= self.per_epoch:
            return self.first_epoch(steps)
        first, later = self._epochs[0], self._epochs[1].scaled(steps / self.per_epoch - 1.0)
        return Interval(first.p10 + later.p10, first.p50 + later.p50, first.p90 + later.p90)

    def loading(self) -> Loading:
        loader, train_s = self.loader, self.train.p50
        first, later = self.first_step(), self.later_step()
        stalls = max(first.p50 - train_s, 0.0), max(later.p50 - train_s, 0.0)
        in_later = not self.only_first and stalls[1] > NOTICED * train_s
        remedy = loader.remedy(train_s, self.later_miss if in_later else self.first_miss)
        measured = loader.storage.measured and loader.prepare_spread <= STATED_SPREAD
        return Loading(
            storage=loader.storage.name,
            steady="first" if self.only_first else "later",
            first_step=first,
            later_step=later,
            first_epoch=self._epochs[0] if self._epochs else None,
            later_epoch=self._epochs[1] if self._epochs else None,
            first_stall_s=stalls[0],
            later_stall_s=stalls[1],
            first_loader_s=loader.period_s(self.first_miss),
            later_loader_s=loader.period_s(self.later_miss),
            first_miss=self.first_miss,
            later_miss=self.later_miss,
            first_binding=loader.binding(train_s, self.first_miss),
            later_binding=loader.binding(train_s, self.later_miss),
            workers_to_hide=remedy.workers_alone,
            gb_per_s_to_hide=None if remedy.bandwidth_alone is None else remedy.bandwidth_alone / 1e9,
            hidden_pause_s=loader.workers * loader.prefetch_factor * train_s / loader.batches_per_step,
            verdict=self._verdict(stalls),
            source="measured" if measured else "assumed",
        )

    def _verdict(self, stalls: tuple[float, float]) -> str:
        train_s = self.train.p50
        if max(stalls[0], 0.0 if self.only_first else stalls[1]) <= NOTICED * train_s:
            return f"data loading keeps up, {self._hidden(self.first_miss)} at most"
        first = self._said(stalls[0], self.first_miss)
        if self.only_first:
            return f"first epoch: {first}"
        later = self._said(stalls[1], self.later_miss)
        return f"every epoch: {first}" if first == later else f"first epoch: {first}; later epochs: {later}"

    def _said(self, stall: float, miss: float) -> str:
        loader, train_s = self.loader, self.train.p50
        if stall <= NOTICED * train_s:
            return f"data loading keeps up, {self._hidden(miss)}"
        needs = " and ".join(loader.remedy(train_s, miss).needs) or "nothing that is known"
        waits = stall / (train_s + stall)
        return f"loader-bound by {loader.binding(train_s, miss)}, {waits:.0%} of a step; {needs} would hide it"

    def _hidden(self, miss: float) -> str:
        return f"{human_seconds(self.loader.period_s(miss))} of it behind {human_seconds(self.train.p50)} of training"
