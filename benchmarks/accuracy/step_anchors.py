"""The rows held out once more, each corrected by measured rows: what anchors are worth.

Factors are fitted without the family of the row, and the covariance without the errors of its family. The anchors are
the other rows of the table except those of the same job, each with the prediction of the same held-out factors.
"""

from __future__ import annotations

from collections.abc import Sequence

from precision_time.anchors.posterior import Anchors
from precision_time.estimate.interval import Interval
from precision_time.evaluation.rows import JudgedRow
from precision_time.fit.anchor_choice import ONE_ROW, Evidence
from precision_time.fit.anchors import correct, covariances_without, differs, evidence_of
from precision_time.fit.folds import TRUSTED, HeldOut
from precision_time.fit.spreads import of_held_out


def anchored(judged: Sequence[HeldOut]) -> tuple[list[JudgedRow], list[JudgedRow]]:
    """The rows in the order of the table, corrected by all others, with the interval that is left; and those of trust
    A and B corrected by one row of their model on their GPU in their precision, never one of the same job.

    Of several such rows the one that leaves the narrowest interval is taken; rows without any are left out.
    """
    evidence = evidence_of(judged, of_held_out(judged).tolist())
    covariances = covariances_without(evidence)
    by_family = {name: Anchors([each.anchor for each in judged], known) for name, known in covariances.items()}
    rows = list(zip(judged, evidence, strict=True))
    by_all = [_corrected(row, of, by_family[of.family], alone=False) for row, of in rows]
    by_one = []
    equal, other = next(iter(ONE_ROW.values()))
    trusted = [(row, of) for row, of in rows if row.row.trust in TRUSTED]
    for row, of in trusted:
        nearest = [
            _corrected(row, of, Anchors([by.anchor], covariances[of.family]), alone=True)
            for _, by in trusted
            if differs(of, by, equal, other)
        ]
        if nearest:
            by_one.append(min(nearest, key=lambda each: each.step.p90 / each.step.p50))
    return _in_order(by_all), _in_order(by_one)


def _corrected(row: HeldOut, evidence: Evidence, anchors: Anchors, alone: bool) -> JudgedRow:
    found = correct(row, evidence, anchors, alone=alone)
    terms = row.scaled(found.factors)
    return JudgedRow(row.row, Interval.around(sum(terms.values()), found.spread), terms, row.fits, seen=False)


def _in_order(rows: Sequence[JudgedRow]) -> list[JudgedRow]:
    return sorted(rows, key=lambda j: j.row.line)
