"""The rows held out once more, each corrected by measured rows: what anchors are worth.

Factors are fitted without the family of the row, and the covariance without the errors of its family. The anchors are
the other rows of the table except those of the same job, each with the prediction of the same held-out factors.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from precision_time.estimate.interval import Interval
from precision_time.evaluation.rows import JudgedRow
from precision_time.fit.anchors import CorrectedRow, covariances_without, judge_anchored, judge_one
from precision_time.fit.folds import HeldOut, spread_for

SAME_JOB = ("key",)


def anchored(judged: Sequence[HeldOut]) -> list[JudgedRow]:
    """The rows in the order of the table, corrected by all others, with the interval that is left."""
    covariances = covariances_without([each.anchor for each in judged])
    return _in_order(judge_anchored(judged, _usual_spreads(judged), covariances, SAME_JOB))


def anchored_by_one(judged: Sequence[HeldOut]) -> list[JudgedRow]:
    """The rows of trust A and B, each corrected by one other row of its model on its GPU, never one of the same job.

    Of several such rows the one that leaves the narrowest interval is taken; rows without any are left out.
    """
    covariances = covariances_without([each.anchor for each in judged])
    return _in_order([nearest for _, nearest in judge_one(judged, _usual_spreads(judged), covariances)])


def _usual_spreads(judged: Sequence[HeldOut]) -> list[float]:
    """The spread of every row without anchors, with the base spread that the other folds give."""
    bases = {fold: spread_for([j for j in judged if j.fold != fold] or judged) for fold in {j.fold for j in judged}}
    return [math.hypot(bases[each.fold], each.widening) for each in judged]


def _in_order(rows: Sequence[CorrectedRow]) -> list[JudgedRow]:
    result = [
        JudgedRow(
            each.held_out.row, Interval.around(each.seconds, each.spread), each.terms, each.held_out.fits, seen=False
        )
        for each in rows
    ]
    return sorted(result, key=lambda j: j.row.line)
