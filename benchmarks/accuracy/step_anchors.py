"""The rows held out once more, each corrected by measured rows: what anchors are worth.

Factors are fitted without the family of the row, and the covariance without the errors of its family. The anchors are
the other rows of the table except those of the same job, each with the prediction of the same held-out factors.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from precision_time.anchors.posterior import Anchors
from precision_time.estimate.correction import Correction
from precision_time.estimate.interval import Interval
from precision_time.evaluation.rows import JudgedRow
from precision_time.fit.anchors import covariances_without
from precision_time.fit.folds import TRUSTED, HeldOut, spread_for

SAME_JOB = ("key",)
SAME_MODEL = ("model", "gpu", "framework")


def anchored(judged: Sequence[HeldOut]) -> list[JudgedRow]:
    """The rows in the order of the table, corrected by all others, with the interval that is left."""
    anchors = [held_out.anchor for held_out in judged]
    by_family = {family: Anchors(anchors, covariance) for family, covariance in covariances_without(anchors).items()}
    spreads = _usual_spreads(judged)
    result = [
        _corrected(each, by_family[each.descriptor.family].correction(each.descriptor, SAME_JOB), spreads[each.fold])
        for each in judged
    ]
    return sorted(result, key=lambda j: j.row.line)


def anchored_by_one(judged: Sequence[HeldOut]) -> list[JudgedRow]:
    """The rows of trust A and B, each corrected by one other row of its model on its GPU, never one of the same job.

    Of several such rows the one that leaves the narrowest interval is taken; rows without any are left out.
    """
    by_family, spreads = covariances_without([held_out.anchor for held_out in judged]), _usual_spreads(judged)
    result = []
    trusted = [each for each in judged if each.row.trust in TRUSTED]
    for each in trusted:
        corrections = [
            Anchors([other.anchor], by_family[each.descriptor.family]).correction(each.descriptor)
            for other in trusted
            if all(getattr(other.descriptor, name) == getattr(each.descriptor, name) for name in SAME_MODEL)
            and other.descriptor.key != each.descriptor.key
        ]
        if corrections:
            bare = math.hypot(spreads[each.fold], each.widening)
            nearest = min(corrections, key=lambda correction: correction.narrowed(bare))
            result.append(_corrected(each, nearest, spreads[each.fold]))
    return sorted(result, key=lambda j: j.row.line)


def _usual_spreads(judged: Sequence[HeldOut]) -> dict[str, float]:
    """For every fold the base spread that the others give."""
    return {fold: spread_for([j for j in judged if j.fold != fold] or judged) for fold in {j.fold for j in judged}}


def _corrected(each: HeldOut, correction: Correction, base: float) -> JudgedRow:
    breakdown = {term: seconds * correction.of(term) for term, seconds in each.breakdown.items()}
    spread = correction.narrowed(math.hypot(base, each.widening))
    return JudgedRow(each.row, Interval.around(sum(breakdown.values()), spread), breakdown, each.fits, seen=False)
