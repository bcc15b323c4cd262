"""How like the networks trained on a new one is: cosine similarity of graph vectors, and a flag for strangers."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from precision_time.predictors.predictddl.network import Floats

STRANGE = 0.05
"""Share of the training networks themselves that are as lonely as a stranger: the flag's quantile."""

_ROUNDING = 1e-9


@dataclass(frozen=True, slots=True)
class Likeness:
    """Vectors of the training networks, one row each, and the similarity below which a network is a stranger.

    Vectors are standardised over the training networks first: means over nodes all point much the same way, so that
    raw cosines are near one for everything.
    """

    vectors: Floats
    mean: Floats
    deviation: Floats
    threshold: float

    def confidence(self, vector: Floats) -> float:
        """Largest cosine similarity to a training network, in [0, 1]."""
        return float(np.clip(self._similarities(vector).max(), 0.0, 1.0))

    def nearest(self, vector: Floats) -> int:
        """Row of the training network that is most alike."""
        return int(self._similarities(vector).argmax())

    def is_strange(self, vector: Floats) -> bool:
        """Whether a network is out of distribution: less alike than nearly all training networks are to another."""
        return self.confidence(vector) < self.threshold

    def _similarities(self, vector: Floats) -> Floats:
        unit = _unit((self.vectors - self.mean) / self.deviation)
        return np.asarray(unit @ _unit(((vector - self.mean) / self.deviation)[None, :])[0])


def _unit(rows: Floats) -> Floats:
    return np.asarray(rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-12))


def likeness(vectors: Floats) -> Likeness:
    """The threshold is a low quantile of the training networks' similarities to their nearest other."""
    mean, deviation = vectors.mean(0), vectors.std(0)
    deviation = np.where(deviation > 1e-9, deviation, 1.0)
    unit = _unit((vectors - mean) / deviation)
    between = unit @ unit.T
    np.fill_diagonal(between, -1.0)
    nearest = between.max(1)
    threshold = float(np.clip(np.quantile(nearest, STRANGE) - _ROUNDING, 0.0, 1.0)) if len(vectors) > 1 else 0.0
    return Likeness(vectors, mean, deviation, threshold)
