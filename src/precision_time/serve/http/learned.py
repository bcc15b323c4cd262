"""What the server asks of `learning`: a correction for a job, the state it rests on, and what to show of it.

`Nothing` stands in where a server has no store.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from precision_time.serve.records import Recorded


class Learned(Protocol):
    """Learned from outcomes. `states`: a number for every cluster that changes with each of its outcomes."""

    states: dict[str, int]

    def learn(self, recorded: Recorded) -> None: ...

    def correction(self, job: Mapping[str, Any], cluster: str) -> Mapping[str, Any] | None: ...

    def accuracy(self, cluster: str | None) -> Mapping[str, Any]: ...

    def anomalies(self, cluster: str | None) -> Mapping[str, Any]: ...


class Nothing:
    """Nothing is learned."""

    def __init__(self) -> None:
        self.states: dict[str, int] = {}
        self.counts: dict[str, int] = {}

    def learn(self, recorded: Recorded) -> None:
        cluster = recorded.prediction.cluster
        self.counts[cluster] = self.counts.get(cluster, 0) + 1

    def correction(self, job: Mapping[str, Any], cluster: str) -> Mapping[str, Any] | None:
        return None

    def accuracy(self, cluster: str | None) -> Mapping[str, Any]:
        return {"cluster": cluster, "outcomes": self.counts.get(cluster or "", 0), "points": []}

    def anomalies(self, cluster: str | None) -> Mapping[str, Any]:
        return {"cluster": cluster, "anomalies": []}
