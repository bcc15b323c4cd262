"""Trials of a search over hyperparameters: which may fit in memory and end in time, without any tuner's library.

    verdict = judged(job, deadline_s=3600)
    if verdict:
        executor.submit(train, config)

`Limits` are checked once for a whole search. Optuna's pruning (`integrations.optuna`) rests on them; Ray Tune, and any
`concurrent.futures.Executor`, take the configurations that `worth_running` leaves.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TypeVar

from precision_time.errors import JobError, PrecisionTimeError
from precision_time.estimate.estimate import Estimate
from precision_time.field_types import SECONDS, apply_checks, number, option, optional
from precision_time.job.job import Job
from precision_time.prediction import predict

Config = TypeVar("Config")
SHARE = number(0.0, 1.0, zero=True)


@dataclass(frozen=True, slots=True)
class Limits:
    """What a trial has to meet. Raises `JobError` for a value outside its range."""

    deadline_s: float | None = option(None, optional(SECONDS), "seconds that the run of a trial may take")
    least_chance: float = option(0.5, SHARE, "least probability of ending within them")
    least_fit: float = option(0.5, SHARE, "least probability of fitting in memory")

    def __post_init__(self) -> None:
        apply_checks(self)


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether a trial is worth running; true in a condition where it is.

    reason    why it is not; empty where it is
    facts     predicted_step_s, predicted_fit, and where the run has a length predicted_run_s and predicted_chance
    estimate  None where the job cannot be predicted, which `error` explains; such a trial runs
    """

    reason: str = ""
    facts: dict[str, float] = field(default_factory=dict)
    estimate: Estimate | None = None
    error: str = ""

    def __bool__(self) -> bool:
        return not self.reason


def judged(job: Job, *, deadline_s: float | None = None, least_chance: float = 0.5, least_fit: float = 0.5) -> Verdict:
    """The verdict on the job of a trial. Raises `JobError` for a wrong limit, and for a deadline without a length."""
    limits = Limits(deadline_s, least_chance, least_fit)
    try:
        estimate = predict(job)
    except PrecisionTimeError as error:
        return Verdict(error=str(error))
    return verdict_on(estimate, limits)


def verdict_on(estimate: Estimate, limits: Limits) -> Verdict:
    """The verdict on a predicted trial."""
    fits = estimate.memory.fit_probability
    facts = {"predicted_step_s": estimate.step.p50, "predicted_fit": fits}
    reason = f"fits in memory with {fits:.0%}" if fits < limits.least_fit else ""
    if estimate.goodput is not None:
        wall, deadline_s = estimate.goodput.wall, limits.deadline_s
        facts["predicted_run_s"] = wall.interval.p50
        if deadline_s is not None:
            facts["predicted_chance"] = chance = wall.probability(deadline_s)
            late = f"ends within {deadline_s:g} s with {chance:.0%}" if chance < limits.least_chance else ""
            reason = reason or late
    elif limits.deadline_s is not None:
        raise JobError(
            "deadline_s needs the length of a trial's run: give its job epochs (with a dataset), steps or samples"
        )
    return Verdict(reason, facts, estimate)


def worth_running(
    configs: Iterable[Config],
    job_of: Callable[[Config], Job],
    *,
    deadline_s: float | None = None,
    least_chance: float = 0.5,
    least_fit: float = 0.5,
) -> list[Config]:
    """The configurations whose jobs may fit and end in time, the shortest predicted run first.

    Those that cannot be predicted come last. Raises as `judged`.
    """
    found = []
    for config in configs:
        verdict = judged(job_of(config), deadline_s=deadline_s, least_chance=least_chance, least_fit=least_fit)
        if verdict:
            seconds = verdict.facts.get("predicted_run_s", verdict.facts.get("predicted_step_s", float("inf")))
            found.append((seconds, config))
    return [config for _, config in sorted(found, key=lambda pair: pair[0])]
