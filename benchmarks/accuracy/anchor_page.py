"""The page benchmarks/results/anchors.md."""

from __future__ import annotations

from collections.abc import Callable
from datetime import date
from pathlib import Path

from precision_time.fit.anchors import published_rows, worth

_TEXT = """\
# How far anchors reach

Written on {made} by `python -m benchmarks.accuracy anchors`; do not edit. Anchors are measured jobs that correct a
prediction ([docs/anchors.md](../../docs/anchors.md)). The judged rows are those of trust A and B of the data-parallel
tables `measurements.csv` and `measurements_more.csv`. The effects that errors share are chosen without the family of
the judged row. "Without" is the prediction before the correction, of the same rows.

Published rows are known to the factors, so that they were fitted to the anchors, but not to rows that share with the
judged one what no anchor shares with it (where that is the job itself, or the anchor is one row, to all rows). For a
family that is new to the factors, as a user's own model is, they were fitted without the family. No anchor corrects a
job of another framework. The worst family is the one whose mean error grows most, of those with eight or more rows.
A single row stands for the user's own measurement, alone or beside all published rows of other sources (repositories
at a commit); the mean over all such rows counts. Only factors on kernels were fitted anew; rows that say nothing about
kernels keep the prediction as shipped.
P10-P90 is as wide as the errors of rows in the same place require, without and with anchors.

{tables}"""


def page(tables: Path, progress: Callable[[str], None]) -> str:
    """The page, from the published rows below `tables`."""
    found = worth(published_rows(tables, progress), progress)
    return _TEXT.format(
        made=date.today().isoformat(),
        tables="\n".join(f"## {title[0].upper()}{title[1:]}\n\n{table.markdown()}\n" for title, table in found.items()),
    )
