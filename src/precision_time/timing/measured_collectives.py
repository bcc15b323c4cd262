"""Collectives by the points that `calibrate` measured among the ranks of this node."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import ArrayLike

from precision_time.hardware.calibration import CollectivePoints
from precision_time.hardware.fabric import Cluster
from precision_time.timing.collectives import CollectiveTime
from precision_time.timing.interpolation import MonotoneCurve


def measured_collective(name: str, nbytes: ArrayLike, cluster: Cluster) -> CollectiveTime | None:
    """Seconds between measured sizes; None where the world is larger than the node, or not of a measured size.

    Above the largest message its bandwidth holds; below the smallest its time.
    """
    calibration = cluster.gpu.calibration
    if calibration is None or cluster.nodes > 1 or cluster.gpus == 1:
        return None
    points = calibration.collective(name, cluster.gpus)
    if points is None:
        return None
    size = np.asarray(nbytes, dtype=np.float64)
    nothing = size == 0
    curve = _curve(points)
    return CollectiveTime(
        seconds=np.where(nothing, 0.0, curve.seconds(size)),
        choice=np.where(nothing, "none", "measured"),
        source="measured",
        log_std=float(np.hypot(curve.deviation, calibration.noise)),
    )


@lru_cache(maxsize=64)
def _curve(points: CollectivePoints) -> MonotoneCurve:
    return MonotoneCurve(np.array(points.nbytes), np.array(points.seconds), np.zeros(len(points.nbytes)))
