"""`Learning`: the corrections of all clusters, learned from a store's outcomes in the order of their numbers.

The state is a function of the outcomes and their order: two workers that have read the same outcomes correct equally.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from precision_time.errors import DataError
from precision_time.estimate.learned import Learned
from precision_time.serve.learning.anomalies import Anomaly
from precision_time.serve.learning.cluster import Cluster, Expected
from precision_time.serve.learning.effects import Variances, shipped_variances
from precision_time.serve.learning.facets import Facets
from precision_time.serve.learning.outcome import Observed
from precision_time.serve.records import Recorded, Store

FORMAT = 1
MOST_CLUSTERS = 200
"""Clusters that are kept, those with the latest outcomes."""


class Learning:
    """What all clusters have taught. `number`: of the last outcome that was read."""

    def __init__(self, variances: Variances | None = None) -> None:
        self.variances = variances or shipped_variances()
        self.clusters: dict[str, Cluster] = {}
        self.number = 0

    def catch_up(self, store: Store) -> int:
        """Learn the outcomes that the store has got since; returns how many. Raises `StoreError` as the store does."""
        count = 0
        for recorded in store.recorded(after=self.number):
            self.learn(recorded)
            count += 1
        return count

    def learn(self, recorded: Recorded) -> Expected | None:
        """Learn one outcome; returns what was expected of it. None where it tells nothing of the step, or is too far
        off to be of this job; where its number was read before nothing changes."""
        if recorded.number <= self.number:
            return None
        self.number = recorded.number
        observed = Observed.of(recorded)
        if observed is None:
            return None
        cluster = self.clusters.pop(observed.cluster, None) or Cluster(observed.cluster, self.variances)
        self.clusters[observed.cluster] = cluster
        if len(self.clusters) > MOST_CLUSTERS:
            del self.clusters[next(iter(self.clusters))]
        return cluster.learn(observed)

    def cluster(self, name: str) -> Cluster:
        """What corrects the jobs of a cluster; an unknown one has no outcomes, and leaves the published base."""
        return self.clusters.get(name) or Cluster(name, self.variances)

    def correction(self, cluster: str, facets: Facets) -> Learned:
        """What the outcomes of a cluster say about a job."""
        return self.cluster(cluster).correction(facets)

    def anomalies(self, cluster: str | None = None) -> tuple[Anomaly, ...]:
        """The latest anomalies of a cluster, or of all, the last first."""
        chosen = [each for name, each in self.clusters.items() if cluster in (None, name)]
        found = [anomaly for each in chosen for anomaly in each.anomalies]
        return tuple(sorted(found, key=lambda anomaly: -anomaly.number))

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values; `from_dict` reads them back."""
        return {
            "format": FORMAT,
            "number": self.number,
            "clusters": {name: cluster.to_dict() for name, cluster in self.clusters.items()},
        }

    @classmethod
    def from_dict(cls, given: Mapping[str, Any], variances: Variances | None = None) -> Learning:
        """The state from `to_dict`'s values. Raises `DataError` where they are of another format."""
        learning = cls(variances)
        try:
            if given["format"] != FORMAT:
                raise DataError(
                    f"the state of corrections has format {given['format']!r}, and this version reads {FORMAT}; delete "
                    "it, and it is learned anew from the store"
                )
            learning.number = int(given["number"])
            learning.clusters = {
                name: Cluster.from_dict(name, learning.variances, each) for name, each in given["clusters"].items()
            }
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise DataError(f"this is no state of corrections: {error} is missing or malformed") from error
        return learning
