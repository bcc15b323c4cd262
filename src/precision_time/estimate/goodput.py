"""The parts that a run's wall time consists of, from the scheduler's queue to the last step.

Every part has an interval of its own. They vary independently of each other, so their P10 and P90 do not add up to
those of the run; the P50 column does, as the parts of a run of median length.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from precision_time.bounded_cache import bounded
from precision_time.estimate.checkpoints import Checkpoint
from precision_time.estimate.failures import FailureRate, Interruptions, best_interval, lost_shares
from precision_time.estimate.interval import Interval
from precision_time.estimate.levels import COUNT, Distribution, Floats, interval_of, median, of_interval
from precision_time.estimate.run_parts import Evaluation, StartUp
from precision_time.units import human_bytes, human_seconds

if TYPE_CHECKING:
    from precision_time.job.run import Run

LABELS = {
    "queue": "queueing",
    "start_up": "start-up",
    "compile": "compilation",
    "first_epoch": "waiting for data, first epoch",
    "training": "training",
    "skipped_steps": "steps skipped by loss scaling",
    "data": "waiting for data, later",
    "evaluation": "evaluation",
    "checkpoints": "writing checkpoints",
    "lost_work": "work lost by failures",
    "restarts": "restarts",
}
"""Parts in the order of a run, as people read them."""
GROWTH_INTERVAL = 2000
"""Steps after which torch.amp.GradScaler doubles its scale. Once it has reached the largest that holds, every doubling
overflows and skips one step."""
_START, _EVALUATION, _RATE = 1, 2, 3
_STEPS = 0
"""Axes of `levels` that the parts vary along; failures also use one of their own."""
NOTEWORTHY_S = 3600.0
"""Shorter runs get no note about failures."""


@dataclass(frozen=True, slots=True)
class RunFacts:
    """What the run around the steps depends on besides their times.

    evaluation_forward_s   of the forward passes of one evaluation; None where none is predicted
    scales_loss            whether a dynamic loss scale skips steps
    """

    run: Run
    model: str
    nodes: int
    gpus: int
    start_up: StartUp
    evaluation: Evaluation
    evaluation_forward_s: float | None
    checkpoint: Checkpoint
    scales_loss: bool
    compiles: bool


@dataclass(frozen=True, slots=True)
class Stepping:
    """Seconds of all steps of a run: without waits for data, with them, and with those of the first epoch alone.

    floor_s   the physical floor of their kernels
    """

    steps: int
    per_epoch: int | None
    training: Interval
    whole: Interval
    first_wait_s: float = 0.0
    floor_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Goodput:
    """The parts of a run in seconds, by their key in `LABELS`, and the distribution of their sum.

    wall              from the first to the last second on the GPUs
    from_submission   the same with the time in a queue
    share             of `wall` that is training
    notes             sentences about failures, checkpoints and defaults
    """

    parts: Mapping[str, Interval]
    wall: Distribution
    share: float
    notes: tuple[str, ...] = ()
    basis: tuple[RunFacts, Stepping] | None = field(default=None, repr=False, compare=False)
    """What it was made of; not on one read back from JSON."""

    @property
    def queue_s(self) -> float:
        queue = self.parts.get("queue")
        return queue.p50 if queue else 0.0

    def from_submission(self) -> Distribution:
        """Of the time from submission to the end."""
        return self.wall.later(self.queue_s)

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values; `from_dict` reads them back."""
        return {
            "parts": {name: dataclasses.asdict(part) for name, part in self.parts.items()},
            "wall_quantiles": list(self.wall.quantiles),
            "share": self.share,
            "notes": list(self.notes),
        }

    @classmethod
    def from_dict(cls, given: Mapping[str, Any]) -> Goodput:
        parts = {name: Interval(**part) for name, part in given["parts"].items()}
        return cls(parts, Distribution(tuple(given["wall_quantiles"])), given["share"], tuple(given["notes"]))


def goodput(facts: RunFacts, stepping: Stepping) -> Goodput:
    """The parts of a run of these steps."""
    start_up, start_note = _start_up(facts)
    evaluation = _evaluation(facts, stepping)
    whole = np.maximum(of_interval(stepping.whole, _STEPS), min(stepping.floor_s, stepping.whole.p50))
    evaluating = of_interval(evaluation, _EVALUATION)
    lost, lost_notes = _lost(facts, stepping, whole + evaluating, start_up.p50)
    compile_s = facts.run.compile_s or 0.0
    fixed = [part for part in (start_up, evaluation) if part.p10 == part.p90]
    if len(fixed) == 2 and all(part.min() == part.max() for part in lost.values()):
        # Exact where nothing but the steps varies.
        wall = Distribution.of_interval(stepping.whole, min(stepping.floor_s, stepping.whole.p10))
        beside_s = sum(part.p50 for part in fixed) + sum(float(part[0]) for part in lost.values())
        wall = wall.later(beside_s + compile_s)
    else:
        beside = [of_interval(start_up, _START), evaluating, *lost.values()]
        wall = Distribution.of(sum(beside, whole)).later(compile_s)
    parts = {
        "start_up": start_up,
        "compile": Interval(compile_s, compile_s, compile_s),
        **_steps(facts, stepping),
        "evaluation": evaluation,
        **{name: interval_of(values) for name, values in lost.items()},
    }
    shown = {n: p for n, p in parts.items() if p.p90 > 0.0 or n == "training" or n in lost}
    parts = _adding_up(shown, wall.interval.p50)
    if facts.run.queue_s:
        parts = {"queue": Interval(*(facts.run.queue_s,) * 3), **parts}
    notes = (*start_note, *_settings(facts), *lost_notes)
    return Goodput(parts, wall, parts["training"].p50 / wall.interval.p50, notes, (facts, stepping))


def _steps(facts: RunFacts, stepping: Stepping) -> dict[str, Interval]:
    """Training, steps that are skipped, and waits for data."""
    whole, training = stepping.whole, stepping.training
    training = Interval(*(min(getattr(training, q), getattr(whole, q)) for q in ("p10", "p50", "p90")))
    low, middle, high = (getattr(whole, q) - getattr(training, q) for q in ("p10", "p50", "p90"))
    waits = Interval(min(low, middle), middle, max(high, middle))
    first = min(stepping.first_wait_s / middle, 1.0) if middle > 0.0 else 1.0
    skipped = 1.0 / (GROWTH_INTERVAL + 1) if facts.scales_loss else 0.0
    return {
        "first_epoch": waits.scaled(first),
        "training": training.scaled(1.0 - skipped),
        "skipped_steps": training.scaled(skipped),
        "data": waits.scaled(1.0 - first),
    }


def _adding_up(parts: Mapping[str, Interval], total: float) -> dict[str, Interval]:
    """The parts with medians that add up to that of the run: the rest is shared by their upper (or lower) widths."""
    rest = total - sum(part.p50 for part in parts.values())
    widths = {n: p.p90 - p.p50 if rest > 0.0 else p.p50 - p.p10 for n, p in parts.items()}
    width = sum(widths.values())
    if width <= 0.0:
        widths, width = {n: p.p50 for n, p in parts.items()}, sum(p.p50 for p in parts.values())
    moved = {n: p.p50 + rest * widths[n] / width for n, p in parts.items()}
    return {n: Interval(min(p.p10, moved[n]), moved[n], max(p.p90, moved[n])) for n, p in parts.items()}


def _start_up(facts: RunFacts) -> tuple[Interval, tuple[str, ...]]:
    if facts.run.start_up_s is not None:
        return Interval(*(facts.run.start_up_s,) * 3), ()
    usual = facts.start_up.interval(facts.model, facts.nodes)
    note = (
        f"start-up as in {facts.start_up.runs} runs of MLPerf: {human_seconds(usual.p10)} to "
        f"{human_seconds(usual.p90)} (start_up_s says otherwise)"
    )
    return usual, (note,)


def _evaluation(facts: RunFacts, stepping: Stepping) -> Interval:
    """Of all evaluations."""
    run = facts.run
    count = 0.0
    if run.evaluation_every_steps:
        count = float(stepping.steps // run.evaluation_every_steps)
    elif run.evaluation_every_epochs and stepping.per_epoch:
        count = stepping.steps / stepping.per_epoch / run.evaluation_every_epochs
    if run.evaluation_s is not None:
        return Interval(*(count * run.evaluation_s,) * 3)
    if facts.evaluation_forward_s is None or run.evaluation_samples is None:
        return Interval(0.0, 0.0, 0.0)
    return facts.evaluation.interval(facts.evaluation_forward_s, run.evaluation_samples).scaled(count)


def failure_rate(run: Run) -> FailureRate | None:
    """The rate that a job gives or asks for; None where nothing is known."""
    if run.gpu_hours_per_failure is not None:
        return FailureRate.known(run.gpu_hours_per_failure)
    if run.failures_seen is not None and run.failures_gpu_hours is not None:
        return FailureRate.published(run.failures_seen, run.failures_gpu_hours)
    return FailureRate.published() if run.failure_prior == "published" else None


def _lost(
    facts: RunFacts, stepping: Stepping, work_s: Floats, start_up_s: float
) -> tuple[dict[str, Floats], tuple[str, ...]]:
    """Seconds of checkpoints, of work lost and of restarts; notes about them."""
    run, checkpoint, rate = facts.run, facts.checkpoint, failure_rate(facts.run)
    step_s = stepping.whole.p50 / stepping.steps
    restart_s = run.restart_s if run.restart_s is not None else start_up_s
    between_s, usual_s = _between(rate, facts.gpus) if rate else (None, None)
    stops_s = checkpoint.stops_s
    tau, notes = _interval(facts, step_s, usual_s)
    values: dict[str, Floats] = {}
    if tau is not None and run.checkpoint_s is None and checkpoint.storage is None:
        size = human_bytes(checkpoint.nbytes)
        notes = (*notes, f"a checkpoint has {size}; its time is not counted: give checkpoint_storage or checkpoint_s")
    if tau is not None and stops_s:
        if checkpoint.write_s is not None and run.checkpoint_async:
            stops_s = max(stops_s, checkpoint.write_s - tau)  # the one before has to be written
        values["checkpoints"] = np.floor(work_s / tau + 1e-9) * stops_s
        if run.checkpoint_every_steps:
            values["checkpoints"] = np.full(COUNT, stepping.steps // run.checkpoint_every_steps * stops_s)
    if rate is None or between_s is None or usual_s is None:
        return values, (*notes, *_unknown(facts, median(work_s), tau, stops_s))
    lost = Interruptions.of(work_s, tau, stops_s, restart_s, between_s)
    values |= {"lost_work": lost.lost_work_s, "restarts": lost.restarts_s}
    note = f"failures: {rate.source}; {facts.gpus:,} GPUs are interrupted every {human_seconds(usual_s)}"
    return values, (*notes, f"{note}, {lost.mean_failures:.3g} times in this run on average")


@bounded()
def _between(rate: FailureRate, gpus: int) -> tuple[Floats, float]:
    """Mean seconds between failures of so many GPUs at every level of its uncertainty, and their median."""
    seconds = rate.hours_between(gpus, _RATE) * 3600.0
    return seconds, median(seconds)


def _interval(facts: RunFacts, step_s: float, between_s: float | None) -> tuple[float | None, tuple[str, ...]]:
    """Seconds of work between checkpoints, None without any, and what other choices would cost."""
    run, stops_s = facts.run, facts.checkpoint.stops_s
    tau = run.checkpoint_every_s
    if run.checkpoint_every_steps:
        tau = run.checkpoint_every_steps * step_s
    if between_s is None or not stops_s:
        return tau, ()
    best = max(best_interval(stops_s, between_s), step_s)
    restart_s = run.restart_s or 0.0
    chosen = best if tau is None else tau
    shares = lost_shares((best, 0.5 * best, 2.0 * best, chosen), stops_s, restart_s, between_s)
    note = (
        f"checkpoints lose least every {human_seconds(best)} ({shares[0]:.2%} of the work; half of it {shares[1]:.2%}, "
        f"twice {shares[2]:.2%}; Daly 2006)"
    )
    return chosen, (note if tau is None else f"{note}; every {human_seconds(tau)}: {shares[3]:.2%}",)


def _unknown(facts: RunFacts, work_s: float, tau: float | None, stops_s: float) -> Sequence[str]:
    """What failures would have to be like to change the run, where nothing is known of them."""
    if work_s < NOTEWORTHY_S:
        return ()
    if tau is None or not stops_s:
        if tau is not None:
            return ()
        between_s = work_s / _DOUBLES
        return (
            f"failures are not known: without checkpoints, more than one in {human_seconds(between_s)} (in "
            f"{between_s / 3600.0 * facts.gpus:,.0f} GPU-hours) would more than double this run on average",
        )
    between_s = (tau + stops_s) ** 2 / (2.0 * stops_s)
    return (
        f"failures are not known: checkpoints every {human_seconds(tau)} lose least where one comes in "
        f"{human_seconds(between_s)} (in {between_s / 3600.0 * facts.gpus:,.0f} GPU-hours); if they come more often, "
        f"write checkpoints more often",
    )


_DOUBLES = 1.2564312086261697
"""x at which (exp(x) - 1) / x = 2: the mean number of failures in a run that doubles it without checkpoints."""


def _settings(facts: RunFacts) -> tuple[str, ...]:
    notes = []
    if facts.compiles and facts.run.compile_s is None:
        notes.append("the seconds that torch.compile takes at the start are not counted: give compile_s")
    if facts.scales_loss:
        notes.append(f"loss scaling skips one step in {GROWTH_INTERVAL + 1:,}, as GradScaler does in the long run")
    return tuple(notes)
