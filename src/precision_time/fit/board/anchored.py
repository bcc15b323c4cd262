"""The held-out rows once more, each corrected by the others: what anchors are worth.

Factors are fitted without the row's family and the covariance without its family's errors. The anchors are the other
rows of the table, never those of the same job, each with what the same held-out factors predict for it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from precision_time.anchors.posterior import Anchors
from precision_time.estimate.correction import Correction
from precision_time.estimate.interval import Interval
from precision_time.fit.anchors import covariances
from precision_time.fit.evaluation.accuracy import Judged
from precision_time.fit.folds import TRUSTED, HeldOut, spread_for

SAME_JOB = ("key",)
SAME_MODEL = ("model", "gpu", "framework")


def anchored(judged: Sequence[HeldOut]) -> list[Judged]:
    """The rows in the order of the table, corrected by all others, with the interval that is left."""
    anchors = [held_out.anchor for held_out in judged]
    found = {family: Anchors(anchors, covariance) for family, covariance in covariances(anchors).items()}
    usual = _usual_spreads(judged)
    result = [
        _corrected(each, found[each.descriptor.family].correction(each.descriptor, SAME_JOB), usual[each.fold])
        for each in judged
    ]
    return sorted(result, key=lambda j: j.row.line)


def anchored_by_one(judged: Sequence[HeldOut]) -> list[Judged]:
    """The rows of trust A and B whose model was measured on their GPU in another way too, each corrected by one such
    row alone: the one that leaves it the narrowest interval."""
    found, usual = covariances([held_out.anchor for held_out in judged]), _usual_spreads(judged)
    result = []
    trusted = [each for each in judged if each.row.trust in TRUSTED]
    for each in trusted:
        corrections = [
            Anchors([other.anchor], found[each.descriptor.family]).correction(each.descriptor)
            for other in trusted
            if all(getattr(other.descriptor, name) == getattr(each.descriptor, name) for name in SAME_MODEL)
            and other.descriptor.key != each.descriptor.key
        ]
        if corrections:
            bare = math.hypot(usual[each.fold], each.widening)
            nearest = min(corrections, key=lambda correction: correction.narrowed(bare))
            result.append(_corrected(each, nearest, usual[each.fold]))
    return sorted(result, key=lambda j: j.row.line)


def _usual_spreads(judged: Sequence[HeldOut]) -> dict[str, float]:
    """For every fold the base spread that the others give."""
    return {fold: spread_for([j for j in judged if j.fold != fold] or judged) for fold in {j.fold for j in judged}}


def _corrected(each: HeldOut, correction: Correction, base: float) -> Judged:
    breakdown = {term: seconds * correction.of(term) for term, seconds in each.breakdown.items()}
    spread = correction.narrowed(math.hypot(base, each.widening))
    return Judged(each.row, Interval.around(sum(breakdown.values()), spread), breakdown, each.fits, seen=False)
