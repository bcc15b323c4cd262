"""What is learned from an outcome: the seconds of its step, against those predicted for its job."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import median, quantiles
from typing import Any

from precision_time.errors import DataError
from precision_time.estimate.interval import Z90
from precision_time.job.anchors import PUBLISHED
from precision_time.report.printable import printable
from precision_time.serve.learning.facets import Facets
from precision_time.serve.records import Outcome, Prediction, Recorded

LARGEST_RATIO = 20.0
"""An outcome that is further from the prediction, either way, is of another job or in another unit, and is not learned:
chosen. Published rows are at most 2.6 times off."""
MOST_STALL = 0.05
"""Share of a step that may wait for data; where it is more, the outcome tells of the loader and is not learned."""
LEAST_TRAINING = 0.5
"""Share of a run that must be steps, for its length to tell how long a step took."""
_MACHINE = {
    "hosts": ("hosts", "host", "hostname", "node"), "gpu": ("gpu", "device"), "driver": ("driver",), "cuda": ("cuda",),
    "torch": ("torch",), "framework": ("framework",),
}  # fmt: skip
"""What is kept of a machine -> the names that an outcome may give it, the first that is there."""
_SOFTWARE = ("driver", "cuda", "torch", "framework")
_LONGEST = 80
"""Characters that are kept of what a machine says."""


@dataclass(frozen=True, slots=True)
class Known:
    """An outcome as it is kept.

    number      in the order in which outcomes were acknowledged
    measured_s  seconds of the step
    at          when it was recorded, in seconds since 1970
    software    versions of what predicted it, and of what ran it, as one text
    machine     what its machine says: hosts, driver ...
    """

    number: int
    measured_s: float
    at: float
    software: str = ""
    machine: Mapping[str, str] | None = None

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Observed:
    """An outcome with what was predicted for its job.

    predicted_s  P50 of the step in seconds before any correction by outcomes
    spread       of log(step time) then
    varies       P90 over P50 of its single steps; None where there are fewer than ten
    full         peak memory over capacity; None where not measured
    """

    facets: Facets
    predicted_s: float
    spread: float
    known: Known
    prediction: str
    cluster: str
    name: str
    varies: float | None = None
    full: float | None = None

    @property
    def ratio(self) -> float:
        """log(measured / predicted)."""
        return math.log(self.known.measured_s / self.predicted_s)

    @classmethod
    def of(cls, recorded: Recorded) -> Observed | None:
        """The outcome as it is learned; None where it tells nothing of the step, where its prediction has no facets (it
        is of another version) or was corrected by anchors of its own."""
        prediction, outcome = recorded.prediction, recorded.outcome
        if has_own_anchors(prediction.job.get("anchors") or ()):
            return None
        try:
            facets = Facets.from_dict(prediction.facets)
        except DataError:
            return None
        seconds = step_seconds(prediction, outcome)
        _, middle, high = prediction.predicted
        if seconds is None or not 0.0 < middle <= high < math.inf or _stalls(prediction):
            return None
        capacity = prediction.estimate.get("memory", {}).get("capacity_bytes")
        return cls(
            facets=facets,
            predicted_s=middle,
            spread=math.log(high / middle) / Z90,
            known=Known(
                recorded.number, seconds, outcome.recorded_at, _software(prediction, outcome), _machine(outcome)
            ),
            prediction=prediction.id,
            cluster=prediction.cluster,
            name=_words(prediction.job.get("model", "")),
            varies=_variation(outcome),
            full=outcome.peak_bytes / capacity if outcome.peak_bytes and capacity else None,
        )


def has_own_anchors(anchors: Sequence[str]) -> bool:
    """Whether others than the published anchors correct a job, or none do: it starts from another base."""
    return any(entry != PUBLISHED for entry in anchors)


def step_seconds(prediction: Prediction, outcome: Outcome) -> float | None:
    """Seconds of a step: as measured, as the median of single steps, or from the length of a finished run without
    what is predicted around its steps. None where nothing of this is known."""
    if outcome.step_s is not None:
        return _positive(outcome.step_s)
    if outcome.steps_s:
        return _positive(median(outcome.steps_s))
    goodput, steps = prediction.estimate.get("goodput"), prediction.estimate.get("steps")
    if outcome.run_s is None or not outcome.finished or not goodput or not steps:
        return None
    parts = {name: float(part["p50"]) for name, part in goodput["parts"].items() if name != "queue"}
    training = parts.get("training", 0.0) + parts.get("skipped_steps", 0.0)
    around = sum(parts.values()) - training
    if training < LEAST_TRAINING * (training + around):
        return None
    return _positive((outcome.run_s - around) / float(steps))


def _positive(seconds: float) -> float | None:
    return seconds if 0.0 < seconds < math.inf else None


def _stalls(prediction: Prediction) -> bool:
    breakdown = prediction.estimate.get("breakdown", {})
    return float(breakdown.get("loader_stall", 0.0)) > MOST_STALL * (sum(breakdown.values()) or 1.0)


def _software(prediction: Prediction, outcome: Outcome) -> str:
    predicted = [f"{name} {version}" for name, version in sorted(prediction.versions.items())]
    ran = [f"{name} {outcome.machine[name]}"[:_LONGEST] for name in _SOFTWARE if outcome.machine.get(name)]
    return "; ".join([*predicted, *ran])[: 4 * _LONGEST]


def _machine(outcome: Outcome) -> dict[str, str]:
    found = {}
    for name, given in _MACHINE.items():
        value = next((outcome.machine[each] for each in given if each in outcome.machine), None)
        if isinstance(value, list | tuple):
            value = ", ".join(map(str, value))
        if value not in (None, ""):
            found[name] = _words(value)
    return found


def _words(value: object) -> str:
    """At most `_LONGEST` characters of one line that are safe to print."""
    return printable(" ".join(f"{value}".split())[:_LONGEST])


def _variation(outcome: Outcome) -> float | None:
    steps = [each for each in outcome.steps_s if 0.0 < each < math.inf]
    if len(steps) < 10:
        return None
    tenths = quantiles(steps, n=10)
    return tenths[8] / tenths[4]
