"""`plan`: what to launch so that a job is done in time and within the budget.

    plan(job, Goal(deadline_hours=48, budget_usd=3000), Space(providers=("aws",), gpus=(8, 16, 32)))

All candidates of the space are predicted, so that the choice is exact; those that cannot meet the goal even at the peak
of their GPUs are not.
"""

from __future__ import annotations

import dataclasses
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from precision_time.errors import JobError, PlanError
from precision_time.estimate.learned import Corrections
from precision_time.estimate.quantile import probability_of
from precision_time.job.job import Job
from precision_time.plan.assess import Assessed
from precision_time.plan.goal import Goal
from precision_time.plan.grid import grid_of
from precision_time.plan.options import Option, distinct, front, least, option_of
from precision_time.plan.ranking import assessed
from precision_time.plan.space import Candidates, Space, candidates, combinations
from precision_time.plan.spot import PUBLISHED, Market, market_of
from precision_time.plan.spot_options import spot_options, unplanned
from precision_time.processes import Workers
from precision_time.units import human_bytes, human_seconds
from precision_time.without_collection import WithoutCollection

_SINGULAR = {"are": "is", "have": "has", "do": "does", "meet": "meets", "counts": "count"}


@dataclass(frozen=True, slots=True)
class Reason:
    """Why candidates were left out: how many, in words, and what the nearest misses by."""

    count: int
    text: str
    nearest: str = ""

    def __str__(self) -> str:
        text = self.text if self.count != 1 else " ".join(_SINGULAR.get(word, word) for word in self.text.split(" "))
        return f"{self.count:,} {text}" + (f"; {self.nearest}" if self.nearest else "")


@dataclass(frozen=True, slots=True)
class Plan:
    """The answer.

    chosen     the option with the least of the objective among those that meet the goal
    front      options that no other beats in time and cost, and in the objective where it is another
    others     all that meet the goal, by the objective
    reasons    why the rest was left out
    basis      what the choice rests on, in sentences
    by_share   of a searched schedule: for every length of its first part the option with the least of the objective, or
               the likeliest where none meets the goal
    quantile   a probability whose quantile is shown in place of P90; None: P90
    """

    job: Job
    goal: Goal
    space: Space
    chosen: Option
    front: tuple[Option, ...]
    others: tuple[Option, ...]
    reasons: tuple[Reason, ...]
    global_batch: int
    tried: int
    basis: tuple[str, ...] = ()
    by_share: tuple[Option, ...] = ()
    options: tuple[Option, ...] = field(default=(), repr=False)
    """All that fit, for pictures."""
    quantile: float | None = None

    def with_quantile(self, probability: float) -> Plan:
        """The same plan, whose text, JSON and pictures show this quantile.

        Raises `JobError` for a probability outside 0.01 to 0.999.
        """
        return dataclasses.replace(self, quantile=probability_of(probability))

    @property
    def shown(self) -> list[Option]:
        """The options that pictures show: of a searched schedule, those of the chosen length."""
        return [option for option in self.options if not self.by_share or option.share == self.chosen.share]

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        from precision_time.plan.worth import worth_measuring

        measurement = worth_measuring(self)
        return {
            "goal": self.goal.to_dict(),
            "global_batch_size": self.global_batch,
            "tried": self.tried,
            "chosen": self.chosen.to_dict(self.quantile),
            "front": [option.to_dict(self.quantile) for option in self.front],
            "others": [option.brief() for option in distinct(self.shown) if option not in self.front],
            "meet_the_goal": len(self.others),
            "by_share": [{"share": option.share, **option.to_dict(self.quantile)} for option in self.by_share],
            "left_out": [{"count": r.count, "reason": r.text, "nearest": r.nearest} for r in self.reasons],
            "basis": list(self.basis),
            "worth_measuring": measurement.to_dict() if measurement else None,
        }

    def plot(self, path: str | Path) -> None:
        """Write the picture: .png, .svg or .html."""
        from precision_time.plan.figure import plot

        plot(self, path)

    def __str__(self) -> str:
        from precision_time.plan.text import text

        return text(self)


def plan(
    job: Job,
    goal: Goal | None = None,
    space: Space | None = None,
    *,
    workers: Workers = 1,
    progress: Callable[[int, int], None] | None = None,
    learned: Corrections | None = None,
) -> Plan:
    """The plan of a job whose run has a length (epochs, steps or samples).

    `workers` processes, or any executor (that of a Dask cluster, say), share the candidates; the plan is the same.
    `learned`: corrections by outcomes of the cluster's jobs; every candidate gets its own.
    Raises `PlanError` where nothing meets the goal: it names what binds, and the nearest goals that can be met.
    """
    with WithoutCollection():
        return _plan(job, goal or Goal(), space or Space(), workers, progress, learned)


def _plan(
    job: Job,
    goal: Goal,
    space: Space,
    workers: Workers,
    progress: Callable[[int, int], None] | None,
    learned: Corrections | None,
) -> Plan:
    _check_length(job)
    if goal.objective == "co2" and space.grid is None:
        raise JobError("objective co2 needs a grid; name a country, for example --grid france, or give grams per kWh")
    market = market_of(space.spot) if space.spot is not None else None
    found, judging = candidates(job, space, goal), _Judging(space, goal, market, workers, progress, learned)
    rows, options = _judged(found, judging)
    meeting = [option for option in options if option.chance >= goal.confidence]
    reasons = (*_unfit(rows), *_missed(options, goal), *_grouped(found.refused))
    if market is not None:
        reasons = (*reasons, *(Reason(count, text) for count, text in unplanned(options, market)))
    if not meeting:
        if found.pruned:  # the nearest goals are those of all candidates
            found = candidates(job, space, Goal())
            rows, options = _judged(found, judging)
        if not found.jobs:
            raise PlanError(f"no candidate is left: {'; '.join(map(str, _grouped(found.refused)))}")
        raise _infeasible(goal, options, rows, reasons)
    by_share = _by_share(options, goal) if space.schedule and space.schedule.share is None else ()
    if by_share and (goal.deadline_hours is not None or goal.budget_usd is not None):
        longest = max(option.share for option in meeting)
        meeting = [option for option in meeting if option.share == longest]
    ranked = sorted(meeting, key=lambda o: (o.objective(goal.objective), o.objective("time")))
    chosen = least(meeting, goal.objective)
    return Plan(
        job=job,
        goal=goal,
        space=space,
        chosen=chosen,
        front=front(meeting, goal.objective),
        others=tuple(ranked),
        reasons=reasons,
        global_batch=found.global_batch,
        tried=len(rows),
        basis=_basis(chosen, space),
        by_share=by_share,
        options=tuple(options),
    )


@dataclass(frozen=True, slots=True)
class _Judging:
    """What candidates are judged by, and the processes that do it."""

    space: Space
    goal: Goal
    market: Market | None
    workers: Workers
    progress: Callable[[int, int], None] | None
    learned: Corrections | None


def _judged(found: Candidates, by: _Judging) -> tuple[list[Assessed], list[Option]]:
    """All candidates assessed, and the options of those that are predicted.

    A candidate that fits less surely than the goal asks cannot meet it whatever its time, so it is not predicted.
    """
    rows = assessed(found.jobs, by.goal.confidence, by.workers, by.progress, by.learned)
    grid = by.space.grid
    grams = grid_of(grid).grams_per_kwh if grid is not None else None
    options = [
        option_of(rows[index], offer, by.goal, by.space.pue, grams, found.shares[index])
        for index, offer in combinations(found)
        if rows[index].predicted
    ]
    if by.market is not None:
        options += spot_options(options, by.market, by.goal)
    return rows, options


def _check_length(job: Job) -> None:
    run = job.run
    if job.schedule:
        raise JobError(
            "precision is a schedule by steps; a plan takes one by share of the run: --schedule fp32:10%..amp-bf16, or "
            "fp32:N%..amp-bf16 to try every tenth"
        )
    if run.epochs is None and run.steps is None and run.samples is None:
        raise JobError("a plan needs the length of the run: give epochs (with a dataset), steps or samples")


def _by_share(options: Sequence[Option], goal: Goal) -> tuple[Option, ...]:
    """The best option of every length of a schedule's first part, by its length."""
    found = []
    for share in sorted({option.share for option in options}):
        there = [option for option in options if option.share == share]
        meeting = [option for option in there if option.chance >= goal.confidence]
        found.append(least(meeting, goal.objective) if meeting else max(there, key=lambda o: o.chance))
    return tuple(found)


def _grouped(refused: Sequence[tuple[str, str]]) -> list[Reason]:
    kinds: Mapping[str, list[str]] = defaultdict(list)
    for kind, sentence in refused:
        kinds[kind].append(sentence)
    return [Reason(len(sentences), f"GPU counts {kind}", sentences[0]) for kind, sentences in kinds.items()]


def _unfit(rows: Sequence[Assessed]) -> list[Reason]:
    """Candidates whose memory does not fit, and those that cannot be predicted."""
    reasons = []
    unfit = [row for row in rows if not row.error and not row.predicted]
    if unfit:
        nearest = min(unfit, key=lambda row: row.missing_bytes)
        by = (
            f"misses by {human_bytes(nearest.missing_bytes)}"
            if nearest.missing_bytes
            else f"fits with {nearest.fits:.0%}"
        )
        where = f"{nearest.job.gpus} x {nearest.job.gpu}, {nearest.label}"
        reasons.append(Reason(len(unfit), "do not fit in memory surely enough", f"the nearest, {where}, {by}"))
    errors = Counter(row.error for row in rows if row.error)
    if errors:
        sentence, _ = errors.most_common(1)[0]
        reasons.append(Reason(sum(errors.values()), "cannot be predicted", f"for example: {sentence}"))
    return reasons


def _missed(options: Sequence[Option], goal: Goal) -> list[Reason]:
    """Options that are too slow, too dear, or not both surely enough."""
    reasons = []
    late = [o for o in options if o.in_time < goal.confidence]
    dear = [o for o in options if o.in_budget < goal.confidence and o.in_time >= goal.confidence]
    if late and goal.deadline_hours is not None:
        over = min(o.finish.quantile(goal.confidence) for o in late) - goal.deadline_hours * 3600.0
        reasons.append(Reason(len(late), "are too slow", f"the nearest needs {human_seconds(max(over, 0.0))} more"))
    if dear and goal.budget_usd is not None:
        over = min(o.cost.quantile(goal.confidence) for o in dear) - goal.budget_usd
        reasons.append(Reason(len(dear), "are in time but too expensive", f"the nearest by ${max(over, 0.0):,.2f}"))
    rest = [o for o in options if o.chance < goal.confidence] if not (late or dear) else []
    if rest:
        reasons.append(Reason(len(rest), f"meet the goal with less than {goal.confidence:.0%}"))
    return reasons


def _infeasible(
    goal: Goal, options: Sequence[Option], rows: Sequence[Assessed], reasons: Sequence[Reason]
) -> PlanError:
    """One sentence: what binds, and the nearest goals that can be met."""
    if not options:
        return PlanError(
            f"nothing fits with {goal.confidence:.0%} or can be predicted among {len(rows):,} candidates: "
            f"{reasons[0]}; take layout auto, more or larger GPUs, recompute full, or a lower confidence"
        )
    sure = goal.confidence
    affordable = [o for o in options if o.assessed.fits * o.in_budget >= sure]
    timely = [o for o in options if o.assessed.fits * o.in_time >= sure]
    parts = []
    if goal.deadline_hours is not None and affordable:
        within = "" if goal.budget_usd is None else f"with ${goal.budget_usd:,.0f} "
        parts.append(f"{within}the earliest finish is {_finish(affordable, sure)}")
    if goal.budget_usd is not None and timely:
        by = "" if goal.deadline_hours is None else f"in {human_seconds(goal.deadline_hours * 3600.0)} "
        parts.append(f"{by}it takes {_cost(timely, sure)}")
    if not affordable and (goal.deadline_hours is not None or not timely):
        parts.append(f"the cheapest takes {_cost(options, sure)}")
    if not timely and goal.budget_usd is not None:
        parts.append(f"the fastest ends {_finish(options, sure)}")
    limits = [name for name, met in (("the deadline", timely), ("the budget", affordable)) if not met]
    binding = " and ".join(limits) or "the deadline and the budget together"
    return PlanError(f"nothing meets {binding} with {sure:.0%}: {'; '.join(dict.fromkeys(parts))}")


def _finish(options: Sequence[Option], sure: float) -> str:
    first = min(_fitting(options, sure), key=lambda o: o.finish.quantile(_level(o, sure)))
    level = _level(first, sure)
    return f"in {human_seconds(first.finish.quantile(level))} ({_named(first)}, ${first.cost.quantile(level):,.0f})"


def _cost(options: Sequence[Option], sure: float) -> str:
    cheap = min(_fitting(options, sure), key=lambda o: o.cost.quantile(_level(o, sure)))
    level = _level(cheap, sure)
    return f"${cheap.cost.quantile(level):,.0f} ({_named(cheap)}, {human_seconds(cheap.finish.quantile(level))})"


def _fitting(options: Sequence[Option], sure: float) -> Sequence[Option]:
    return [o for o in options if o.assessed.fits > sure] or options


def _level(option: Option, sure: float) -> float:
    """The quantile at which an option that fits so surely meets its goal with `sure`."""
    return sure / option.assessed.fits if option.assessed.fits > sure else sure


def _named(option: Option) -> str:
    job = option.assessed.job
    return f"{job.gpus} x {job.gpu}, {option.assessed.precision}"


def _basis(chosen: Option, space: Space) -> tuple[str, ...]:
    """What the choice rests on."""
    row = chosen.assessed
    sources = sorted((row.sources or {}).items(), key=lambda pair: -pair[1])
    known = ", ".join(f"{name} {share:.0%}" for name, share in sources if share >= 0.005)
    lines = [f"kernel and communication times: {known}"]
    if row.rests_on:
        lines.append(f"corrected by measured jobs, the nearest {', '.join(row.rests_on[:2])}")
    if row.learned is not None and row.learned.outcomes:
        lines.append(f"{row.learned}; every candidate by what the outcomes say about its own GPU and precision")
    price = chosen.offer.price
    if chosen.spot is not None and price is not None:
        lines.append(f"price: {price.provider} {price.region}, on the spot market and on demand, {price.trust}")
        known = "seven traces of single instances in 2023" if space.spot == PUBLISHED else f"{space.spot}"
        lines.append(f"spells with and without a spot instance: as in {known}")
    elif price is not None:
        term = "for a reservation, which has to be made first" if chosen.offer.reserved else "on demand"
        lines.append(f"price: {price.provider} {price.region}, {term}, list price of {price.as_of}, {price.trust}")
    else:
        lines.append(f"GPUs of {chosen.offer.provider} have no price, so they cost nothing here")
    return tuple(lines)
