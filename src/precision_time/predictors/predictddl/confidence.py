"""Similarity of a new network to the training networks (cosine of graph vectors), and an out-of-distribution flag."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from precision_time.predictors.predictddl.network import Floats

STRANGE = 0.05
"""Quantile of the flag: the share of training networks whose nearest neighbour is less similar than the threshold."""

_ROUNDING = 1e-9


@dataclass(frozen=True, slots=True)
class Likeness:
    """Vectors of the training networks, one row each, and the similarity below which a network is flagged.

    Vectors are standardised over the training networks first, because means over nodes are nearly parallel and raw
    cosines are near one for all networks.
    """

    vectors: Floats
    mean: Floats
    deviation: Floats
    threshold: float

    def confidence(self, vector: Floats) -> float:
        """Largest cosine similarity to a training network, in [0, 1]."""
        return float(np.clip(self._similarities(vector).max(), 0.0, 1.0))

    def nearest(self, vector: Floats) -> int:
        """Row of the most similar training network."""
        return int(self._similarities(vector).argmax())

    def is_strange(self, vector: Floats) -> bool:
        """Whether a network is out of distribution: less similar than nearly all training networks to their nearest."""
        return self.confidence(vector) < self.threshold

    def _similarities(self, vector: Floats) -> Floats:
        unit = _unit((self.vectors - self.mean) / self.deviation)
        return np.asarray(unit @ _unit(((vector - self.mean) / self.deviation)[None, :])[0])


def _unit(rows: Floats) -> Floats:
    return np.asarray(rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-12))


def likeness(vectors: Floats) -> Likeness:
    """Likeness to these vectors; the threshold is a low quantile of their similarities to their nearest other."""
    mean, deviation = vectors.mean(0), vectors.std(0)
    deviation = np.where(deviation > 1e-9, deviation, 1.0)
    unit = _unit((vectors - mean) / deviation)
    between = unit @ unit.T
    np.fill_diagonal(between, -1.0)
    nearest = between.max(1)
    threshold = float(np.clip(np.quantile(nearest, STRANGE) - _ROUNDING, 0.0, 1.0)) if len(vectors) > 1 else 0.0
    return Likeness(vectors, mean, deviation, threshold)
