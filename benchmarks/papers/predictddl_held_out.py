"""PredictDDL judged on networks, or on families, that it never saw run, in its own design and in poorer ones."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from precision_time.errors import PredictorError
from precision_time.predictors.predictddl.features import CLUSTER, GRAPH, PRECISION, PUBLISHED, RUN, SIZE
from precision_time.predictors.predictddl.identity import plain_name
from precision_time.predictors.predictddl.predictor import PredictDDL, embedder_of
from precision_time.predictors.predictddl.regressors import LINEAR, MLP, QUADRATIC, SVR, Setting
from precision_time.predictors.predictddl.selection import grouped_folds
from precision_time.predictors.predictddl.trainer import Design, Row
from precision_time.report.errors import ErrorStatistics

FULL = Design()
FEW = (
    Setting(LINEAR, (("alpha", 1e5),)),
    Setting(LINEAR, (("alpha", 10.0),)),
    Setting(QUADRATIC, (("alpha", 300.0),)),
    Setting(SVR, (("C", 3.0), ("width", 0.1))),
    Setting(MLP, (("alpha", 30.0),)),
)
"""One or two settings of each regressor: the first ones for a quick study, and where families are left out."""
_DRAWN = (GRAPH, SIZE, CLUSTER, RUN, PRECISION)
AS_PUBLISHED = dataclasses.replace(FULL, groups=_DRAWN, law=False)
"""What the paper describes, with the precision as one column group more; its target is log(seconds)."""
PUBLISHED_ROW = "published design with precision"
VARIANTS: Mapping[str, Design] = {
    "predictddl": FULL,
    "without the law of work": dataclasses.replace(FULL, law=False),
    "law of work, no graph vector": dataclasses.replace(FULL, groups=tuple(g for g in FULL.groups if g != GRAPH)),
    PUBLISHED_ROW: AS_PUBLISHED,
    "published design, no precision": dataclasses.replace(AS_PUBLISHED, groups=PUBLISHED),
    "published design, sizes alone": dataclasses.replace(AS_PUBLISHED, groups=(SIZE, CLUSTER, RUN, PRECISION)),
    "published design, graph vector alone": dataclasses.replace(AS_PUBLISHED, groups=(GRAPH, CLUSTER, RUN, PRECISION)),
    "published design, random encoder": dataclasses.replace(AS_PUBLISHED, encoder="random"),
}
"""The product's design and two without a part of it; then the published design and its ablations."""
Report = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class Held:
    """A row and what was predicted for it by a predictor that never saw its network (or its family) run."""

    row: Row
    seconds: float
    confidence: float
    strange: bool
    setting: str
    """The regressor that the fold chose."""
    covered: bool
    """Whether the measured time lies between P10 and P90."""

    @property
    def error(self) -> float:
        """Predicted over measured, less one."""
        return self.seconds / self.row.measured.seconds - 1.0


def held_out(
    rows: Sequence[Row],
    design: Design,
    folds: int,
    by: Callable[[Row], str],
    seed: int = 0,
    report: Report | None = None,
) -> list[Held]:
    """Every row predicted once, by a predictor trained on the folds without its group. Order of `rows` is kept.

    Dataset types are told apart inside, as always; a group stands on one side in all of them.
    """
    groups = [by(row) for row in rows]
    parts = grouped_folds(groups, min(folds, len(set(groups))), seed)
    held: dict[int, Held] = {}
    for number, (known, unseen) in enumerate(parts):
        predictor = PredictDDL(design)
        predictor.learn_described([rows[i] for i in known])
        embed = embedder_of(design.encoder)
        for i in unseen.tolist():
            held[i] = _held(predictor, rows[i], embed(rows[i].facts.network))
        if report is not None:
            report(number + 1, len(parts))
    return [held[i] for i in range(len(rows))]


def _held(predictor: PredictDDL, row: Row, vector: np.ndarray) -> Held:
    trained = predictor.trained.get(row.facts.dataset)
    if trained is None:
        raise PredictorError(f"no fold could train dataset type {row.facts.dataset!r}; give runs of more networks")
    forecast = trained.forecast(row.facts, vector)
    measured = row.measured.seconds
    return Held(
        row,
        forecast.seconds,
        forecast.confidence or 0.0,
        trained.likeness.is_strange(vector),
        trained.fitted.setting.label,
        forecast.p10_s <= measured <= forecast.p90_s,
    )


def network_of_row(row: Row) -> str:
    return plain_name(row.measured.job.model)


def family_of_row(row: Row) -> str:
    return row.measured.family


def accuracy_by(held: Sequence[Held], key: Callable[[Held], str]) -> dict[str, ErrorStatistics]:
    """Error statistics of groups, in the order of their names."""
    names = sorted({key(each) for each in held})
    return {name: accuracy([each for each in held if key(each) == name]) for name in names}


def accuracy(held: Sequence[Held]) -> ErrorStatistics:
    """Error statistics of all rows, with the share inside P10-P90."""
    return ErrorStatistics.of([each.error for each in held], [each.covered for each in held])


def mean_error(held: Sequence[Held]) -> float:
    """Mean absolute error as a fraction; nan for no rows."""
    value = accuracy(held).mape
    return math.nan if value is None else value
