"""Optuna: trials that cannot fit in memory, or cannot end in time, are pruned before they start.

    study.optimize(predicted(objective, job_of, deadline_s=3600), n_trials=100)

`job_of` gives the job of a trial from the values that it suggests; the trial keeps the prediction as user attributes.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import optuna

from precision_time.errors import PrecisionTimeError
from precision_time.estimate.estimate import Estimate
from precision_time.integrations.trials import Limits, verdict_on
from precision_time.job.job import Job
from precision_time.prediction import predict


def predicted(
    objective: Callable[[optuna.Trial], Any],
    job_of: Callable[[optuna.Trial], Job],
    *,
    deadline_s: float | None = None,
    least_chance: float = 0.5,
    least_fit: float = 0.5,
) -> Callable[[optuna.Trial], Any]:
    """The objective, which runs only for trials that may fit and end in time.

    deadline_s    seconds that the run of a trial may take
    least_chance  probability of ending within it below which a trial is pruned
    least_fit     probability of fitting in memory below which a trial is pruned

    A trial that cannot be predicted runs, with the reason in its user attributes. The values that `job_of` suggests are
    those that the objective sees. Raises `JobError` for a wrong argument.
    """
    limits = Limits(deadline_s, least_chance, least_fit)

    @functools.wraps(objective)
    def run(trial: optuna.Trial) -> Any:
        try:
            estimate = predict(job_of(trial))
        except PrecisionTimeError as error:
            trial.set_user_attr("not_predicted", str(error))
        else:
            _judge(trial, estimate, limits)
        return objective(trial)

    return run


def predicted_seconds(trial: optuna.Trial, job: Job) -> float:
    """Seconds of the run of a trial's job in the median, to be an objective of its own beside the loss.

    Raises `TrialPruned` where the job does not fit in memory, and a `PrecisionTimeError` for one that cannot be
    predicted or has no length.
    """
    estimate = predict(job)
    _judge(trial, estimate, Limits(least_chance=0.0))
    if estimate.run is None:
        raise PrecisionTimeError("the run of a trial needs a length: give epochs (with a dataset), steps or samples")
    return estimate.run.p50


def _judge(trial: optuna.Trial, estimate: Estimate, limits: Limits) -> None:
    verdict = verdict_on(estimate, limits)
    for name, value in verdict.facts.items():
        trial.set_user_attr(name, value)
    if not verdict:
        trial.set_user_attr("pruned_because", verdict.reason)
        raise optuna.TrialPruned(verdict.reason)
