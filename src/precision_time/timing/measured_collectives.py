"""Seconds of collectives from the points that `calibrate` measured among the ranks of a node."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from precision_time.bounded_cache import bounded
from precision_time.hardware.calibration import CollectivePoints
from precision_time.hardware.fabric import Cluster
from precision_time.timing.collectives import CollectiveTime
from precision_time.timing.interpolation import MonotoneCurve


def measured_collective(name: str, nbytes: ArrayLike, cluster: Cluster) -> CollectiveTime | None:
    """Seconds interpolated between measured sizes; None on several nodes or where this number of ranks was not
    measured.

    Above the largest size the bandwidth of that size is used, below the smallest its time.
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


@bounded()
def _curve(points: CollectivePoints) -> MonotoneCurve:
    return MonotoneCurve(np.array(points.nbytes), np.array(points.seconds), np.zeros(len(points.nbytes)))
