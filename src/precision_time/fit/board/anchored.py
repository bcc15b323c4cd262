"""The held-out rows once more, each corrected by the others: what anchors are worth.

Factors are fitted without the row's family and the covariance without its family's errors. The anchors are the other
rows of the table, never those of the same job, each with what the same held-out factors predict for it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from precision_time.anchors.posterior import Anchors
from precision_time.estimate.interval import Interval
from precision_time.fit.anchors import covariances
from precision_time.fit.evaluation.accuracy import Judged
from precision_time.fit.folds import HeldOut, spread_for

SAME_JOB = ("key",)


def anchored(judged: Sequence[HeldOut]) -> list[Judged]:
    """The rows in the order of the table, corrected, with the interval that is left."""
    anchors = [held_out.anchor for held_out in judged]
    found = {family: Anchors(anchors, covariance) for family, covariance in covariances(anchors).items()}
    bases = {fold: spread_for([j for j in judged if j.fold != fold] or judged) for fold in {j.fold for j in judged}}
    result = []
    for anchor, held_out in zip(anchors, judged, strict=True):
        correction = found[anchor.kind.family].correction(anchor.kind, SAME_JOB)
        breakdown = {term: seconds * correction.of(term) for term, seconds in held_out.breakdown.items()}
        spread = correction.narrowed(math.hypot(bases[held_out.fold], held_out.widening))
        step = Interval.around(sum(breakdown.values()), spread)
        result.append(Judged(held_out.row, step, breakdown, held_out.fits, seen=False))
    return sorted(result, key=lambda j: j.row.line)
