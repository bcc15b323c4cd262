"""What the server has learned of each cluster: corrections, errors over time, anomalies."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Any

from precision_time.errors import DataError
from precision_time.serve.http.pool import Lesson
from precision_time.serve.learning import Learning
from precision_time.serve.learning.outcome import step_seconds
from precision_time.serve.records import Recorded

MOST_POINTS = 1_000
"""Outcomes of a cluster whose errors are kept, the latest."""


class Corrections:
    """`Learning`, with what is shown of it.

    `states`: the number of the last outcome of every cluster. `last`: number, prediction and key of the last outcome.
    """

    def __init__(self) -> None:
        self.learning = Learning()
        self.states: dict[str, int] = {}
        self.last: list[Any] | None = None
        self._points: dict[str, deque[dict[str, Any]]] = {}

    @property
    def number(self) -> int:
        """Of the last outcome that was learned."""
        return self.learning.number

    def learn(self, recorded: Recorded) -> None:
        """Learn an outcome; one of a prediction without facets, of another version, changes nothing."""
        cluster = recorded.prediction.cluster
        self.last = [recorded.number, recorded.prediction.id, recorded.outcome.key]
        try:
            self.learning.learn(recorded)
        except DataError:
            return
        self.states[cluster] = recorded.number
        point = _point(recorded)
        if point is not None:
            self._points.setdefault(cluster, deque(maxlen=MOST_POINTS)).append(point)

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values; `from_dict` reads them back."""
        points = {cluster: list(each) for cluster, each in self._points.items()}
        return {"learning": self.learning.to_dict(), "states": self.states, "last": self.last, "points": points}

    @classmethod
    def from_dict(cls, given: Mapping[str, Any]) -> Corrections:
        """What `to_dict` gave. Raises `DataError`, KeyError, TypeError or ValueError for anything else."""
        found = cls()
        found.learning = Learning.from_dict(given["learning"])
        found.states = {str(name): int(number) for name, number in given["states"].items()}
        found.last = list(given["last"])
        found._points = {name: deque(each, maxlen=MOST_POINTS) for name, each in given["points"].items()}
        return found

    def lesson(self, cluster: str) -> Lesson | None:
        """What a process has to know to correct a cluster's jobs; None where nothing was learned of it."""
        known = self.learning.clusters.get(cluster)
        return Lesson(cluster, known.number, known.to_dict) if known and known.jobs else None

    def accuracy(self, cluster: str) -> dict[str, Any]:
        """The error of every outcome against what was predicted for it, in their order."""
        return {"cluster": cluster, "points": list(self._points.get(cluster, ()))}

    def anomalies(self, cluster: str) -> list[dict[str, Any]]:
        """Outcomes that are far off, the last first."""
        return [anomaly.to_dict() for anomaly in self.learning.anomalies(cluster)]


def _point(recorded: Recorded) -> dict[str, Any] | None:
    """What was predicted for an outcome, as it was kept, and what came of it; None without the time of a step."""
    prediction, outcome = recorded.prediction, recorded.outcome
    measured = step_seconds(prediction, outcome)
    if measured is None:
        return None
    told = prediction.estimate["step"]
    return {
        "number": recorded.number,
        "prediction": prediction.id,
        "at": outcome.recorded_at,
        "job": dict(prediction.job),
        "measured_s": measured,
        "predicted_s": told["p50"],
        "error": told["p50"] / measured - 1.0,
        "error_uncorrected": prediction.predicted[1] / measured - 1.0,
        "inside": told["p10"] <= measured <= told["p90"],
    }
