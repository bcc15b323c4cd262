"""Configurations to choose from, and the record of a search over them.

A configuration has features (inputs of the surrogate), coordinates (settings that can be varied one at a time) and a
price per second; its cost is price times time. Prices may be in any unit: dollars, watts, workers. A search measures
configurations, each at most once, and ends with the cheapest that keeps the deadline.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from precision_time.errors import DataError, PredictorError
from precision_time.reading import parse_json, to_json

FloatArray = NDArray[np.float64]
Measure = Callable[[int], float]
"""Position of a configuration -> seconds of the job there."""


@dataclass(frozen=True, slots=True)
class Configurations:
    """A table of configurations. `seconds` are known times, None where each has to be measured."""

    names: tuple[str, ...]
    feature_names: tuple[str, ...]
    features: FloatArray
    price_per_s: FloatArray
    coordinates: tuple[tuple[str | float, ...], ...]
    seconds: FloatArray | None = None

    def __post_init__(self) -> None:
        count = len(self.names)
        if count == 0:
            raise PredictorError("configurations are empty; give at least one")
        if len(set(self.names)) < count:
            twice = next(name for i, name in enumerate(self.names) if name in self.names[:i])
            raise PredictorError(f"configuration {twice!r} is given twice; keep one")
        if self.features.shape != (count, len(self.feature_names)):
            raise PredictorError(
                f"features have shape {self.features.shape}; {count} configurations and {len(self.feature_names)} "
                f"feature names need {(count, len(self.feature_names))}"
            )
        if len(self.coordinates) != count or len({len(c) for c in self.coordinates}) > 1:
            raise PredictorError(f"coordinates must be {count} tuples of one length, one for each configuration")
        for field, values in (("price_per_s", self.price_per_s), ("seconds", self.seconds)):
            if values is not None and (values.shape != (count,) or not np.all(values > 0.0)):
                raise PredictorError(f"{field} must be {count} numbers above 0, one for each configuration")

    def __len__(self) -> int:
        return len(self.names)

    @property
    def normalised(self) -> FloatArray:
        """Features on [0, 1], each by its least and largest value; constant ones are left out."""
        low, high = self.features.min(axis=0), self.features.max(axis=0)
        varied = high > low
        scaled: FloatArray = (self.features[:, varied] - low[varied]) / (high - low)[varied]
        return scaled

    def known(self) -> Measure:
        """A measure function that looks up the known times. Raises a `PredictorError` where there are none."""
        seconds = self.seconds
        if seconds is None:
            raise PredictorError("these configurations have no known seconds; give a measure function")
        return lambda index: float(seconds[index])

    def best(self, deadline_s: float | None = None) -> int | None:
        """The cheapest that keeps the deadline, from known times; None where none does."""
        times = np.array([self.known()(i) for i in range(len(self))])
        costs = np.where(times <= (deadline_s or math.inf), times * self.price_per_s, math.inf)
        return int(np.argmin(costs)) if np.isfinite(costs).any() else None


@dataclass(frozen=True, slots=True)
class Trial:
    """One measured configuration: cost is price times seconds, `improvement` the expected one (None: not computed)."""

    index: int
    name: str
    seconds: float
    cost: float
    feasible: bool
    improvement: float | None = None


@dataclass(frozen=True, slots=True)
class Search:
    """The trials in order, the reason for stopping, and the names of configurations whose run failed."""

    history: tuple[Trial, ...]
    stopped: str
    deadline_s: float | None = None
    failed: tuple[str, ...] = ()

    @property
    def best(self) -> Trial | None:
        """The cheapest trial that keeps the deadline; None where none does."""
        return min((t for t in self.history if t.feasible), key=lambda t: t.cost, default=None)

    @property
    def cost(self) -> float:
        """Cost of all trials."""
        return sum(t.cost for t in self.history)

    @property
    def seconds(self) -> float:
        """Seconds of all trials."""
        return sum(t.seconds for t in self.history)

    def to_json(self) -> str:
        return to_json(asdict(self), indent=1)

    @classmethod
    def from_json(cls, text: str) -> Search:
        try:
            content: dict[str, Any] = parse_json(text, "text of a search")
            trials = tuple(Trial(**trial) for trial in content["history"])
            return cls(trials, content["stopped"], content["deadline_s"], tuple(content.get("failed", ())))
        except (ValueError, KeyError, TypeError) as error:
            raise DataError(
                f"text is no saved search ({type(error).__name__}: {error}); save it with to_json"
            ) from error


class Trials:
    """The results of a running search: a time or a failure for each configuration that was tried."""

    def __init__(self, table: Configurations, measure: Measure | None = None, deadline_s: float | None = None) -> None:
        if deadline_s is not None and not deadline_s > 0.0:
            raise PredictorError(f"deadline_s {deadline_s!r} must be above 0; leave it out for none")
        self.table = table
        self.deadline_s = deadline_s
        self.done: dict[int, Trial] = {}
        self.failed: dict[int, None] = {}
        self._measure = measure

    def run(self, index: int) -> Trial:
        """The trial of a configuration, measured now unless it was before."""
        if index not in self.done:
            measure = self._measure or self.table.known()
            self.add(index, measure(index))
        return self.done[index]

    def add(self, index: int, seconds: float, improvement: float | None = None) -> Trial:
        """Keep a measured time; it replaces an earlier result of that configuration."""
        name = self.table.names[index]
        if not (seconds > 0.0 and math.isfinite(seconds)):
            raise PredictorError(f"configuration {name!r} took {seconds!r} s; a measured time must be above 0")
        cost = seconds * float(self.table.price_per_s[index])
        feasible = self.deadline_s is None or seconds <= self.deadline_s
        self.failed.pop(index, None)
        self.done[index] = Trial(index, name, seconds, cost, feasible, improvement)
        return self.done[index]

    def fail(self, index: int) -> None:
        """Note that a configuration cannot run the job; it replaces an earlier result."""
        self.done.pop(index, None)
        self.failed[index] = None

    @property
    def tried(self) -> int:
        """Configurations with a result."""
        return len(self.done) + len(self.failed)

    @property
    def open(self) -> list[int]:
        """Positions not tried yet."""
        return [i for i in range(len(self.table)) if i not in self.done and i not in self.failed]

    @property
    def best(self) -> Trial | None:
        return min((t for t in self.done.values() if t.feasible), key=lambda t: t.cost, default=None)

    def end(self, why: str) -> Search:
        failed = tuple(self.table.names[i] for i in self.failed)
        return Search(tuple(self.done.values()), why, self.deadline_s, failed)


def table_of(
    rows: Sequence[Mapping[str, float]],
    names: Sequence[str],
    prices: Sequence[float],
    coordinates: Sequence[Sequence[str | float]],
    seconds: Sequence[float] | None = None,
) -> Configurations:
    """Configurations from one mapping of features each, all with the same names."""
    if not rows:
        raise PredictorError("configurations are empty; give at least one")
    fields = tuple(rows[0])
    for name, row in zip(names, rows, strict=True):
        if set(row) != set(fields):
            raise PredictorError(f"features of {name!r} are {', '.join(row)}; the first has {', '.join(fields)}")
    return Configurations(
        tuple(names),
        fields,
        np.array([[row[f] for f in fields] for row in rows], dtype=float),
        np.array(prices, dtype=float),
        tuple(tuple(c) for c in coordinates),
        None if seconds is None else np.array(seconds, dtype=float),
    )
