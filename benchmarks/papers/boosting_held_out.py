"""The held-out predictions of the study of boosting: one question per fold, answered on all cores.

Every question says which rows teach and which are judged; nothing else of the judged rows reaches a predictor. The
simulator is fitted once per fold and serves boosting-residual too; the shipped step factors and the published anchors,
which know the judged rows, are used by neither.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from benchmarks.papers.judging import Prediction
from benchmarks.papers.study import large_caches
from precision_time.predictors.boosting import BlindBoosting, Boosting
from precision_time.predictors.facts import JobKey
from precision_time.predictors.interface import Forecast, MeasuredJob, Predictor, steps_of
from precision_time.predictors.published import card_group, grouped_folds, job_group
from precision_time.predictors.residual import BoostingResidual
from precision_time.predictors.rows import enough
from precision_time.predictors.simulator import BlindSimulator, Simulator
from precision_time.predictors.trees import Setting
from precision_time.processes import cores, pooled

Array = NDArray[np.float64]

BOOSTING, SIMULATORS, BLIND, BLIND_ALL, BLIND_SIMULATOR = (
    "boosting",
    "simulators",
    "blind",
    "blind, all rows",
    "blind simulator",
)
RESIDUAL = "residual"
"""What is trained; `SIMULATORS` are the simulator and boosting-residual, `RESIDUAL` the latter alone."""
FOLDS = 5
CURVE = (0.15, 0.25, 0.4, 0.7, 1.0)
"""Shares of the training rows of a fold in the learning curve."""
ATTENTION = ("bert", "transformer-xl")
"""Families of the table with attention. No vision transformer was measured; BERT's encoder is a ViT's."""


@dataclass(frozen=True, slots=True)
class Question:
    """`run` names the held-out run that the answer belongs to; indices are into the rows of the study."""

    run: str
    kind: str
    training: tuple[int, ...]
    judged: tuple[int, ...]
    precision: str = ""


@dataclass(frozen=True, slots=True)
class Share:
    """Questions for one process, with the rows they are about."""

    measured: tuple[MeasuredJob, ...]
    questions: tuple[Question, ...]
    setting: Setting
    seed: int


Answer = tuple[str, int, float, float, float]
"""Run, row, and P50, P10 and P90 in seconds."""


def questions(
    measured: Sequence[MeasuredJob], seed: int, simulators: bool = True, blind: bool = True
) -> list[Question]:
    """All of the study: `simulators` for the simulator beside, `blind` for the twins."""
    jobs = np.array(grouped_folds(measured, job_group, FOLDS, seed))
    cards = np.array(grouped_folds(measured, card_group, FOLDS, seed))
    families = np.array([each.family for each in measured])
    precisions = np.array([each.precision for each in measured])
    asked: list[Question] = []

    def ask(run: str, kind: str, folds: NDArray[np.generic], precision: str = "") -> None:
        for fold in np.unique(folds):
            judged = np.flatnonzero(folds == fold)
            training = np.flatnonzero(folds != fold)
            if precision and kind in (BLIND, BLIND_SIMULATOR):
                training = training[precisions[training] == precision]
            asked.append(Question(run, kind, _indices(training), _indices(judged), precision))

    for name, folds in (("job", jobs), ("card", cards), ("family", families), ("precision", precisions)):
        if len(np.unique(folds)) > 1:
            ask(f"boosting by {name}", BOOSTING, folds)
    if attention := [i for i, name in enumerate(families) if name in ATTENTION]:
        others = [i for i, name in enumerate(families) if name not in ATTENTION]
        asked.append(Question("boosting without attention", BOOSTING, tuple(others), tuple(attention)))
    for share in CURVE[:-1]:
        asked += _thinned(measured, jobs, share, seed)
    if simulators:
        for name, folds in (("job", jobs), ("family", families)):
            ask(f"by {name}", SIMULATORS, folds)
    if blind:
        for name in sorted(set(precisions)):
            ask(f"blind {name}", BLIND, jobs, name)
        ask("blind, all rows as fp32", BLIND_ALL, jobs, "fp32")
        if simulators:
            ask("blind simulator fp32", BLIND_SIMULATOR, jobs, "fp32")
    return asked


def _thinned(measured: Sequence[MeasuredJob], folds: NDArray[np.generic], share: float, seed: int) -> list[Question]:
    """The folds with a share of the training rows, whole jobs drawn by chance; a larger share holds a smaller one."""
    asked = []
    group_of = [job_group(each) for each in measured]
    for fold in np.unique(folds):
        training, judged = np.flatnonzero(folds != fold), np.flatnonzero(folds == fold)
        groups = sorted({group_of[i] for i in training})
        np.random.default_rng((seed, int(fold))).shuffle(groups)
        kept: list[int] = []
        for group in groups:
            if len(kept) >= share * len(training):
                break
            kept += [int(i) for i in training if group_of[i] == group]
        asked.append(Question(f"curve {share:g}", BOOSTING, tuple(sorted(kept)), _indices(judged)))
    return asked


def _indices(positions: NDArray[np.intp]) -> tuple[int, ...]:
    return tuple(int(i) for i in positions)


def answer(
    measured: Sequence[MeasuredJob],
    asked: Sequence[Question],
    setting: Setting,
    seed: int,
    progress: Callable[[int, int], None] = lambda done, of: None,
    workers: int | None = None,
) -> dict[str, list[Prediction]]:
    """The held-out predictions by run; a run of which a fold has too few rows to train on is left out."""
    workers = workers or min(cores(), 4)
    short = {q.run for q in asked if q.kind != BLIND_SIMULATOR and not enough([measured[i] for i in q.training])}
    longest_first = sorted((q for q in asked if q.run not in short), key=lambda q: q.kind != SIMULATORS)
    shares = [Share(tuple(measured), (question,), setting, seed) for question in longest_first]
    answers: dict[int, list[Answer]] = {}
    progress(0, len(shares))
    if workers > 1 and len(shares) > 1:
        for index, answered in pooled(answer_share, shares, workers):
            answers[index] = answered
            progress(len(answers), len(shares))
    for index, share in enumerate(shares):  # those that no pool could answer
        if index not in answers:
            answers[index] = answer_share(share)
            progress(len(answers), len(shares))
    runs: dict[str, dict[int, Forecast]] = {}
    for index in sorted(answers):
        for run, row, p50, p10, p90 in answers[index]:
            runs.setdefault(run, {})[row] = Forecast(p50, p10, p90)
    return {run: [Prediction(measured[i], by_row[i]) for i in sorted(by_row)] for run, by_row in runs.items()}


@large_caches()
def answer_share(share: Share) -> list[Answer]:
    """What one process answers."""
    answers: list[Answer] = []
    for question in share.questions:
        training = [share.measured[i] for i in question.training]
        for run, predictor in _trained(question, training, share.setting, share.seed).items():
            per_step: dict[JobKey, tuple[float, ...]] = {}  # one question for all lengths of a job
            for row in question.judged:
                job = share.measured[row].job
                key, steps = JobKey.of(job), steps_of(job)
                if key not in per_step:
                    forecast = predictor.predict(job)
                    per_step[key] = (forecast.seconds / steps, forecast.p10_s / steps, forecast.p90_s / steps)
                p50, p10, p90 = (each * steps for each in per_step[key])
                answers.append((run, row, p50, p10, p90))
    return answers


def _trained(
    question: Question, training: Sequence[MeasuredJob], setting: Setting, seed: int
) -> Mapping[str, Predictor]:
    """The predictors that a question is about, by the run that their answers belong to."""
    if question.kind == SIMULATORS:
        simulator = Simulator()
        simulator.fit(training)
        residual = BoostingResidual(setting, seed, simulator)
        residual.fit(training)
        return {f"simulator {question.run}": simulator, f"boosting-residual {question.run}": residual}
    made: Predictor
    if question.kind == RESIDUAL:
        made = BoostingResidual(setting, seed)
    elif question.kind == BLIND_SIMULATOR:
        made = BlindSimulator(question.precision)
    elif question.kind in (BLIND, BLIND_ALL):
        made = BlindBoosting(question.precision, question.kind == BLIND_ALL, setting=setting, seed=seed)
    else:
        made = Boosting(setting, seed)
    made.fit(training)
    return {question.run: made}
