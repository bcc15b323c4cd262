"""The page benchmarks/results/anchors.md."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date

from precision_time.fit.anchors import worth
from precision_time.fit.folds import HeldOut

_TEXT = """\
# How far anchors reach

Written on {made} by `make board`; do not edit. The rows are published steps of trust A and B, predicted by factors
fitted without their model family. In each line the other rows of the family correct them, except the rows that share
the named fields with them.

{by_distance}

In the next table a single row of the same model on the same GPU corrects each row. Median, P90 and the share in P10-P90
are those with the nearest such row: the one that leaves the narrowest interval.

{by_one}
"""


def page(judged: Sequence[HeldOut]) -> str:
    """The page from the rows judged held out by model family."""
    by_distance, by_one = worth(judged)
    return _TEXT.format(made=date.today().isoformat(), by_distance=by_distance.markdown(), by_one=by_one.markdown())
