"""The `Estimate`: times with intervals, a breakdown that adds up, memory, cost, and the source of each number."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from precision_time.errors import DataError
from precision_time.estimate.correction import NONE, Correction
from precision_time.estimate.goodput import Goodput
from precision_time.estimate.interval import Interval
from precision_time.estimate.learned import Learned
from precision_time.estimate.loading import Loading
from precision_time.estimate.memory import Memory
from precision_time.estimate.quantile import AtQuantile, at_quantile, probability_of
from precision_time.estimate.utilisation import Utilisation
from precision_time.hardware.prices import Rental
from precision_time.job.job import Job

BREAKDOWN_TERMS = (
    "forward", "backward", "optimizer", "loss_scaling", "recompute", "casts", "host_gaps", "communication_exposed",
    "bubble", "straggler_wait", "loader_stall",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Estimate:
    """The predicted time, memory and cost of a job.

    step, epoch, run   seconds as P10/P50/P90 (epoch and run are None where their length is unknown)
    breakdown          seconds of the P50 step by term; sums to step.p50
    sources            share of the step's time by kind of source
    unsupported        operators without a model (timed as the bytes they touch), with their share of the bytes
    communication      by group of ranks (tensor, context, expert, data, pipeline): exposed_s and hidden_s
    bound_shares       share of kernel time limited by arithmetic, by memory, by launch size
    assumptions        defaults and omissions, one sentence each
    anchors            measured jobs that corrected the step: factors by term, the nearest of them
    loading            first and later epochs, stalls and what would hide them, where the job has a `data` section.
                       `step` and `epoch` are then those of later epochs, if the run has any
    goodput            the parts of the run around its steps, and the distribution of its time; None without a length
    utilisation        tokens per second, model FLOP/s of a GPU, MFU and HFU
    rental             the cloud instances whose list price the cost is of; None without a named price
    learned            what outcomes of the cluster's jobs changed; None: nothing
    quantile           a probability whose quantile text, JSON and pictures show beside P10, P50 and P90; None: no other
    """

    job: Job
    step: Interval
    epoch: Interval | None
    run: Interval | None
    breakdown: Mapping[str, float]
    communication_hidden_s: float
    samples_per_s: float
    samples_unit: str
    steps_per_epoch: int | None
    steps: int | None
    memory: Memory
    sources: Mapping[str, float]
    bound_shares: Mapping[str, float]
    unsupported: tuple[str, ...]
    unsupported_bytes_share: float
    floor_s: float
    parameters: int
    flops_per_step: Mapping[str, float]
    cost_usd: Interval | None = None
    energy_j: Interval | None = None
    assumptions: tuple[str, ...] = ()
    anchors: Correction = NONE
    communication: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    loading: Loading | None = None
    goodput: Goodput | None = None
    utilisation: Utilisation | None = None
    rental: Rental | None = None
    learned: Learned | None = None
    quantile: float | None = None
    events: Callable[[], dict[str, Any]] | None = field(default=None, repr=False, compare=False)

    def __float__(self) -> float:
        return self.step.p50

    def __str__(self) -> str:
        from precision_time.estimate.text import text

        return text(self)

    def __repr__(self) -> str:
        from precision_time.estimate.notebook import line

        return line(self)

    def _repr_html_(self) -> str:
        from precision_time.estimate.notebook import notebook_html

        return notebook_html(self)

    def at_quantile(self, probability: float) -> AtQuantile:
        """What step, epoch, run, cost, energy and memory stay below with a probability from 0.01 to 0.999, each alone.

        Raises `JobError` for another probability.
        """
        return at_quantile(self, probability)

    def with_quantile(self, probability: float) -> Estimate:
        """The same estimate, whose text, JSON and pictures also show this quantile."""
        return dataclasses.replace(self, quantile=probability_of(probability))

    def explain(self) -> str:
        """What the step spends its time on, what limits it, and what the numbers rest on, in a few sentences."""
        from precision_time.estimate.notebook import explanation

        return explanation(self)

    def plot(self, path: str | Path | None = None) -> Any:
        """The matplotlib figure of step, run and memory; with a path (.png, .svg, .html) also written.

        Raises `JobError` for another suffix, `MissingExtraError` without matplotlib.
        """
        from precision_time.estimate.figure import plot

        return plot(self, path)

    def to_pandas(self) -> Any:
        """A `pandas.DataFrame`: P10, P50, P90 and unit of each quantity. Raises `MissingExtraError` without pandas."""
        from precision_time.estimate.notebook import frame

        return frame(self)

    def trace_events(self) -> dict[str, Any]:
        """The steady step in the Chrome trace format; only on a fresh estimate, not on one read back from JSON."""
        if self.events is None:
            raise DataError("this estimate was read from JSON and holds no timeline: predict the job again for a trace")
        return self.events()

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values; `from_dict` reads them back."""
        intervals = {name: _interval_dict(getattr(self, name)) for name in _INTERVALS}
        plain = {name: getattr(self, name) for name in _PLAIN}
        return {
            "job": self.job.to_dict(),
            **intervals,
            **{
                k: dict(v) if isinstance(v, Mapping) else list(v) if isinstance(v, tuple) else v
                for k, v in plain.items()
            },
            "anchors": self.anchors.to_dict(),
            "loading": self.loading.to_dict() if self.loading else None,
            "goodput": self.goodput.to_dict() if self.goodput else None,
            "utilisation": self.utilisation.to_dict() if self.utilisation else None,
            "memory": self.memory.to_dict(),
            **({"rental": self.rental.to_dict()} if self.rental else {}),
            **({"learned": self.learned.to_dict()} if self.learned else {}),
            **({"quantile": self.at_quantile(self.quantile).to_dict()} if self.quantile is not None else {}),
        }

    @classmethod
    def from_dict(cls, given: Mapping[str, Any]) -> Estimate:
        """An estimate from `to_dict`'s values (without its timeline)."""
        try:
            fields: dict[str, Any] = {name: _interval(given[name]) if given[name] else None for name in _INTERVALS}
            for name in _PLAIN:
                fields[name] = tuple(given[name]) if isinstance(given[name], list) else given[name]
            memory = Memory.from_dict(given["memory"])
            anchors = Correction.from_dict(given.get("anchors", {}))
            loading = Loading.from_dict(given["loading"]) if given.get("loading") else None
            whole = Goodput.from_dict(given["goodput"]) if given.get("goodput") else None
            achieved = Utilisation(**given["utilisation"]) if given.get("utilisation") else None
            rental = Rental.from_dict(given["rental"]) if given.get("rental") else None
            learned = Learned.from_dict(given["learned"]) if given.get("learned") else None
            return cls(
                job=Job.from_dict(given["job"]),
                memory=memory,
                anchors=anchors,
                loading=loading,
                goodput=whole,
                utilisation=achieved,
                rental=rental,
                learned=learned,
                quantile=(given.get("quantile") or {}).get("probability"),
                **fields,
            )
        except (KeyError, TypeError) as error:
            raise DataError(f"this is no estimate written by to_dict: {error} is missing or malformed") from error


def _interval(given: Mapping[str, float]) -> Interval:
    """Raises `TypeError` where the quantiles are not in order, or no numbers."""
    found = Interval(**given)
    if not found.p10 <= found.p50 <= found.p90:
        raise TypeError("an interval in order")
    return found


_INTERVALS = ("step", "epoch", "run", "cost_usd", "energy_j")
_PLAIN = (
    "breakdown", "communication_hidden_s", "samples_per_s", "samples_unit", "steps_per_epoch", "steps", "sources",
    "bound_shares", "unsupported", "unsupported_bytes_share", "floor_s", "parameters", "flops_per_step", "assumptions",
    "communication",
)  # fmt: skip


def _interval_dict(interval: Interval | None) -> dict[str, float] | None:
    return None if interval is None else {"p10": interval.p10, "p50": interval.p50, "p90": interval.p90}
