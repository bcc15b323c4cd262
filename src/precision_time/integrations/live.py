"""The time left of a run that trains: the predicted step, corrected by the steps that were measured.

Pure arithmetic on seconds; it reads no clock and knows no framework.
"""

from __future__ import annotations

import math
import statistics
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from precision_time.estimate.interval import Z90, Interval

WARMUP_STEPS = 3
"""First steps that are not counted: they allocate memory, choose kernels and start loader workers."""
FEWEST_STEPS = 3
"""Measured steps from which the prediction is corrected."""
WINDOW = 256
"""Latest steps that the correction rests on, so that it follows a run whose steps become slower."""
_BLOCKS = 16
"""Groups of neighbouring steps whose means are compared: regular pauses count, one long step does not."""
_DRIFT = 0.02
"""Relative uncertainty of the pace that more steps do not remove: chosen, as the steps to come are other ones."""


@dataclass(slots=True)
class Pauses:
    """Evaluations or checkpoints of a run: how many are due, and how long one takes.

    every_steps   steps between two; None: none is expected
    predicted_s   seconds of one before the first was measured; None: not predicted
    """

    every_steps: int | None = None
    predicted_s: float | None = None
    measured_s: list[float] = field(default_factory=list)

    def left_s(self, done: int, steps: int) -> float:
        """Seconds of those that are due after step `done` of `steps`."""
        if not self.every_steps:
            return 0.0
        return max(steps // self.every_steps - done // self.every_steps, 0) * (self.each_s or 0.0)

    @property
    def each_s(self) -> float | None:
        """Seconds of one: the mean of those measured, else the predicted."""
        return statistics.fmean(self.measured_s) if self.measured_s else self.predicted_s

    @property
    def unknown(self) -> bool:
        """Whether some are due whose time is not known yet."""
        return bool(self.every_steps) and self.each_s is None


@dataclass(slots=True)
class LiveRun:
    """Steps of a run as they are measured.

    steps       of the whole run; None where its length is unknown
    predicted   seconds of a step; None without a prediction
    here        whether the prediction is for the device that trains; else measured steps alone decide
    """

    steps: int | None = None
    predicted: Interval | None = None
    here: bool = True
    warmup: int = WARMUP_STEPS
    done: int = 0
    evaluations: Pauses = field(default_factory=Pauses)
    checkpoints: Pauses = field(default_factory=Pauses)
    _periods: deque[float] = field(default_factory=lambda: deque(maxlen=WINDOW))
    _waits: deque[float] = field(default_factory=lambda: deque(maxlen=WINDOW))

    def add(self, period_s: float, wait_s: float) -> None:
        """A step: seconds since the end of the one before, without evaluations and checkpoints, and those of them that
        passed before it began, while the loader made its batch."""
        self.done += 1
        if self.done > self.warmup:
            self._periods.append(period_s)
            self._waits.append(wait_s)

    @property
    def measured(self) -> int:
        """Steps that the correction rests on."""
        return len(self._periods)

    @property
    def pace_s(self) -> float | None:
        """Seconds of a step as measured: the median of means of neighbouring steps; None before there are enough."""
        return statistics.median(_block_means(self._periods)) if self.measured >= FEWEST_STEPS else None

    @property
    def wait_s(self) -> float:
        """Seconds of a step that pass before it begins, likewise."""
        return statistics.median(_block_means(self._waits)) if self._waits else 0.0

    @property
    def ratio(self) -> float | None:
        """Measured over predicted seconds of a step; None where one of them is not known or is of another device."""
        if self.pace_s is None or self.predicted is None or not self.here:
            return None
        return self.pace_s / self.predicted.p50

    def step(self) -> Interval | None:
        """Seconds of a step to come: prediction and measurement, each weighted by how sure it is."""
        pace, predicted = self.pace_s, self.predicted if self.here else None
        if pace is None:
            return predicted
        means = _block_means(self._periods)
        spread = statistics.median(abs(mean / pace - 1.0) for mean in means) * 1.4826
        measured = math.hypot(spread / math.sqrt(len(means)), _DRIFT)
        if predicted is None:
            return Interval.around(pace, measured)
        prior = math.log(predicted.p90 / predicted.p50) / Z90 or 1e-6
        weight = prior**2 / (prior**2 + measured**2)
        middle = predicted.p50 * (pace / predicted.p50) ** weight
        return Interval.around(middle, measured * math.sqrt(weight))

    def left(self) -> Interval | None:
        """Seconds until the last step is done; None while neither prediction nor measurement or no length is known."""
        step = self.step()
        if step is None or self.steps is None:
            return None
        beside_s = sum(pauses.left_s(self.done, self.steps) for pauses in (self.evaluations, self.checkpoints))
        return step.scaled(max(self.steps - self.done, 0)).shifted(beside_s)

    def parted(self) -> bool:
        """Whether the measured step lies outside of the predicted P10 to P90."""
        pace = self.pace_s
        if pace is None or self.predicted is None or not self.here:
            return False
        return not self.predicted.p10 <= pace <= self.predicted.p90


def _block_means(values: Sequence[float] | deque[float]) -> list[float]:
    """Means of at most `_BLOCKS` groups of neighbours of nearly equal size."""
    held = list(values)
    count = min(_BLOCKS, len(held))
    edges = [round(index * len(held) / count) for index in range(count + 1)]
    return [statistics.fmean(held[low:high]) for low, high in pairwise(edges)]
