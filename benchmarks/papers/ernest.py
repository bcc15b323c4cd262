"""Ernest judged: on analytics jobs published with CherryPick, and on real training runs of a machine.

Each group (job and machine type) is fitted on the runs that the design asks for, of the candidates that are not held
out, and judged on those held out. Nothing is shared between groups.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from benchmarks.papers.cloud_figures import scatter
from benchmarks.papers.cloud_tables import JOBS, CloudRun, read_cloud_runs
from benchmarks.papers.judging import FIELDS
from benchmarks.papers.study import Context, Figure, Section, Table, Verdict
from precision_time.errors import DataError
from precision_time.predictors.ernest import Ernest, by_key, fit_curve, point_of
from precision_time.predictors.experiment_design import BUDGET, Point, design
from precision_time.predictors.interface import Forecast, MeasuredJob
from precision_time.report.errors import ErrorStatistics, labels, percent


@dataclass(frozen=True, slots=True)
class Way:
    """Which of the candidate runs are made and how they are fitted; no criterion: all of them are."""

    label: str
    criterion: str | None = None
    budget: float = BUDGET
    relative: bool = False


ALL = (Way("all candidates"), Way("all, errors weighed in per cent", relative=True))
SMALL_BUDGETS = tuple(Way(f"{c}-optimal, budget 0.5", c, 0.5) for c in "AD")
"""For clusters of 4 machines and more, where a run of the smallest input costs a quarter or less."""
DESIGNED = (*(Way(f"{c}-optimal, budget {b:g}", c, b) for b in (BUDGET, BUDGET / 2) for c in "AD"), *ALL)


@dataclass(frozen=True, slots=True)
class Run:
    """One run of a group: where in (s, m), how long, and what making it cost in seconds."""

    point: Point
    seconds: float
    cost_s: float


@dataclass(frozen=True, slots=True)
class Split:
    """A group of one job on one machine type: runs that may be made, and runs it is judged on.

    With none held, it is judged on the candidates that the design does not ask for.
    """

    group: str
    candidates: tuple[Run, ...]
    held: tuple[Run, ...] = ()


@dataclass(frozen=True, slots=True)
class Judged:
    """One prediction of a held-out run."""

    group: str
    predicted: Forecast
    measured_s: float

    @property
    def error(self) -> float:
        return self.predicted.seconds / self.measured_s - 1.0


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one way of choosing runs came to on many splits."""

    judged: tuple[Judged, ...]
    runs: int
    candidates: int
    cost_s: float
    candidates_cost_s: float


def evaluate(splits: Sequence[Split], way: Way) -> Outcome:
    """Fit and judge every split."""
    judged: list[Judged] = []
    runs = candidates = 0
    cost = whole = 0.0
    for split in splits:
        chosen = _chosen(split.candidates, way)
        curve = fit_curve([r.point for r in chosen], [r.seconds for r in chosen], way.relative)
        runs, candidates = runs + len(chosen), candidates + len(split.candidates)
        cost, whole = cost + sum(r.cost_s for r in chosen), whole + sum(r.cost_s for r in split.candidates)
        for run in split.held or [r for r in split.candidates if r not in chosen]:
            seconds = max(curve.seconds(run.point), 1e-9)
            judged.append(Judged(split.group, Forecast.spread(seconds, curve.log_spread_at(run.point)), run.seconds))
    return Outcome(tuple(judged), runs, candidates, cost, whole)


def _chosen(candidates: Sequence[Run], way: Way) -> list[Run]:
    if way.criterion is None:
        return list(candidates)
    made = _designed(tuple(sorted({r.point for r in candidates})), way.budget, way.criterion)
    return [r for r in candidates if r.point in made]


@lru_cache(maxsize=256)
def _designed(points: tuple[Point, ...], budget: float, criterion: str) -> frozenset[Point]:
    """Groups measured at the same points share a design."""
    return frozenset(design(points, budget=budget, criterion=criterion).runs)


def larger_clusters(runs: Sequence[CloudRun], job: str) -> list[Split]:
    """Of every machine type measured on 5 cluster sizes or more: the largest two are held out. All data, so s = 1."""
    splits = []
    for vm in sorted({r.vm for r in runs if r.job == job}):
        measured = sorted((r for r in runs if r.job == job and r.vm == vm), key=lambda r: r.machines)
        made = [Run(Point(1.0, r.machines), r.seconds, r.seconds) for r in measured]
        if len(made) >= 5:
            splits.append(Split(f"{job} on {vm}", tuple(made[:-2]), tuple(made[-2:])))
    return splits


INPUT_SIZES = {"terasort-50": 0.5, "terasort-75": 0.75, "terasort-100": 1.0, "terasort": 1.0}
"""Inputs that may be run; terasort is taken for 100, see `inputs_text`."""
LARGER_INPUTS = {"terasort-125": 1.25, "terasort-150": 1.5, "terasort-640": 6.4}


def larger_inputs(runs: Sequence[CloudRun]) -> list[Split]:
    """TeraSort with smaller inputs run and larger ones held out, on machine types that have both."""
    splits = []
    for vm in sorted({r.vm for r in runs if r.job in LARGER_INPUTS}):
        of = [r for r in runs if r.vm == vm]
        small = tuple(
            Run(Point(INPUT_SIZES[r.job], r.machines), r.seconds, r.seconds) for r in of if r.job in INPUT_SIZES
        )
        large = tuple(
            Run(Point(LARGER_INPUTS[r.job], r.machines), r.seconds, r.seconds) for r in of if r.job in LARGER_INPUTS
        )
        if len(small) >= 4 and large:
            splits.append(Split(f"terasort on {vm}", small, large))
    return splits


def inputs_text(runs: Sequence[CloudRun]) -> str:
    """Which inputs of TeraSort are taken for sizes, and by how much times on the same cluster differ."""

    def times(job: str) -> list[float]:
        """Seconds of a job over those of terasort-100, on every cluster that ran both."""
        of = {(r.vm, r.machines): r.seconds for r in runs if r.job == "terasort-100"}
        return [r.seconds / of[r.vm, r.machines] for r in runs if r.job == job and (r.vm, r.machines) in of]

    small = sorted({r.job for r in runs if r.job.startswith("terasort-0") or r.job == "terasort-80"})
    said = [
        f"{job} takes up to {max(ratios):.1f} times as long as terasort-100 on the same cluster"
        for job in small
        if max(ratios := times(job), default=0.0) > 1.0
    ]
    text = f"{'; '.join(said)}, so terasort-05 to terasort-80 are no input sizes and are left out. " if said else ""
    if alike := times("terasort"):
        off = [abs(ratio - 1.0) for ratio in alike]
        text += (
            f"terasort is taken for terasort-100: on {len(off)} clusters with both it differs by "
            f"{percent(statistics.median(off))} in the median and by {percent(max(off), 0)} at most."
        )
    return text


def _extent(counts: Sequence[int]) -> list[int]:
    return sorted({min(counts), max(counts)}) if counts else [0]


def groups_of_runs(rows: Sequence[MeasuredJob], least: int = 6) -> dict[str, tuple[Run, ...]]:
    """Real runs by job otherwise unchanged, those measured at `least` points of (s, m) or more."""
    groups = {}
    for measured in by_key(rows).values():
        first = measured[0].job
        name = f"{first.model}, {measured[0].dataset}, {measured[0].precision}, batch {first.batch_size}"
        made = tuple(Run(point_of(r.job), r.seconds, r.cost_s) for r in measured)
        if len({r.point for r in made}) >= least:
            groups[name] = made
    return groups


def more_data(groups: dict[str, tuple[Run, ...]]) -> list[Split]:
    """The largest part of the data is held out, on every number of workers."""
    splits = []
    for name, made in groups.items():
        most = max(r.point.fraction for r in made)
        held = tuple(r for r in made if r.point.fraction == most)
        splits.append(Split(name, tuple(r for r in made if r.point.fraction < most), held))
    return splits


HEADER = (
    "held out",
    "fitted on",
    "groups",
    *labels(FIELDS),
    "runs made",
    "of candidates",
    "their seconds",
    "of candidates'",
)


def row(what: str, way: Way, outcome: Outcome) -> tuple[str, ...]:
    """A row of the table of errors."""
    share = outcome.cost_s / outcome.candidates_cost_s if outcome.candidates_cost_s else 1.0
    return (
        what,
        way.label,
        str(len({each.group for each in outcome.judged})),
        *_statistics(outcome.judged).cells(FIELDS),
        str(outcome.runs),
        percent(outcome.runs / outcome.candidates, 0),
        f"{outcome.cost_s:.3g}",
        percent(share, 0),
    )


def _statistics(judged: Sequence[Judged]) -> ErrorStatistics:
    inside = [each.predicted.p10_s <= each.measured_s <= each.predicted.p90_s for each in judged]
    return ErrorStatistics.of([each.error for each in judged], inside)


def _pairs(groups: Mapping[str, Sequence[Judged]]) -> dict[str, list[tuple[float, float]]]:
    """(measured, predicted) seconds of each group, for the figure."""
    return {name: [(each.measured_s, each.predicted.seconds) for each in judged] for name, judged in groups.items()}


def study(context: Context) -> Section:
    """Ernest's part of the report."""
    text = [
        "Ernest predicts a job from runs of that very job: t = th0 + th1 s/m + th2 m + th3 ln m with s the share of "
        "the data, m the machines and no th below 0. It is judged only on runs that it was not fitted on, and charged "
        "for those it was."
    ]
    tables: list[Table] = []
    figures: list[Figure] = []
    data: dict[str, object] = {}
    _cloud(context, text, tables, figures, data)
    verdicts = _machine(context, text, tables, figures, data)
    return Section("ernest", "Ernest", tuple(text), (), tuple(tables), tuple(figures), verdicts=verdicts, data=data)


def _cloud(
    context: Context, text: list[str], tables: list[Table], figures: list[Figure], data: dict[str, object]
) -> None:
    try:
        if context.data is None:
            raise DataError("there is no data folder")
        runs = read_cloud_runs(context.data)
    except DataError as error:
        text.append(f"The analytics jobs published with CherryPick were not judged: {error}.")
        return
    jobs = JOBS[:2] if context.quick else JOBS
    rows = []
    shown: dict[str, tuple[Judged, ...]] = {}
    for done, job in enumerate(jobs):
        context.progress("Ernest: analytics jobs", done, len(jobs))
        outcomes = {way: evaluate(larger_clusters(runs, job), way) for way in ALL}
        rows += [row(f"{job}: two largest clusters", way, outcome) for way, outcome in outcomes.items()]
        shown[job] = outcomes[ALL[0]].judged
    counts = [len(split.candidates) for job in jobs for split in larger_clusters(runs, job)]
    rows += [row("terasort: larger inputs", way, evaluate(larger_inputs(runs), way)) for way in (*SMALL_BUDGETS, *ALL)]
    context.progress("Ernest: analytics jobs", len(jobs), len(jobs))
    text.append(
        "On the analytics jobs nearly all runs are on the whole input (s = 1), so only the number of machines varies: "
        "the two largest clusters of each machine type are predicted from all smaller ones "
        f"({' to '.join(map(str, _extent(counts)))} runs for four parameters). Only TeraSort has other inputs. "
        + inputs_text(runs)
    )
    tables.append(Table("Analytics jobs: errors on runs held out", HEADER, tuple(rows)))
    figures.append(scatter("Analytics jobs: two largest clusters of each machine type", _pairs(shown)))
    data["cloud"] = [dict(zip(HEADER, line, strict=True)) for line in rows]


def _machine(
    context: Context, text: list[str], tables: list[Table], figures: list[Figure], data: dict[str, object]
) -> tuple[Verdict, ...]:
    groups = groups_of_runs(context.runs)
    if not groups:
        text.append(
            "There are no real runs that Ernest could be judged on: it needs one job at 6 points of (share of the "
            "data, workers) or more. `precision-time runs` makes them."
        )
        return ()
    if context.quick:
        groups = dict(list(groups.items())[:4])
    context.progress("Ernest: real runs", 0, 2)
    more = {way: evaluate(more_data(groups), way) for way in DESIGNED}
    rows = [row("the largest share of the data", way, outcome) for way, outcome in more.items()]
    context.progress("Ernest: real runs", 1, 2)
    everything = [Split(name, made) for name, made in groups.items()]
    unseen = {way: evaluate(everything, way) for way in DESIGNED if way.criterion}
    rows += [row("points not asked for", way, outcome) for way, outcome in unseen.items()]
    workers = {r.point.ranks for made in groups.values() for r in made}
    if len(workers) < 3:
        text.append(
            f"The real runs have {len(workers)} numbers of workers, which cannot tell 1, m and ln m apart: the design "
            "leaves out what no candidate distinguishes, and predictions hold for those numbers of workers only."
        )
    fit_s, predict_s = timing(context.runs)
    text.append(
        f"Fitting one curve takes {1e3 * fit_s:.2f} ms and a prediction {1e3 * predict_s:.3f} ms; a job that was never "
        f"run has to be run first, which took {unseen[DESIGNED[0]].cost_s / len(groups):.1f} s of "
        "runs on average with the A-optimal design here."
    )
    tables.append(
        Table(
            "Real runs on a machine: errors on runs held out (points not asked for differ from design to design)",
            HEADER,
            tuple(rows),
        )
    )
    figures.append(
        scatter(
            "Real runs: points the A-optimal design does not ask for", _pairs(_by_precision(unseen[DESIGNED[0]].judged))
        )
    )
    data["machine"] = [dict(zip(HEADER, line, strict=True)) for line in rows]
    data["fit_s"], data["predict_s"] = fit_s, predict_s
    context.progress("Ernest: real runs", 2, 2)
    outcome = more[DESIGNED[0]]
    parts = {"all": outcome.judged, **_by_precision(outcome.judged)}
    errors = {name: _statistics(judged) for name, judged in parts.items()}
    left_out = "largest share of the data; it runs each job itself"
    return (Verdict("ernest", "real runs", left_out, errors, outcome.cost_s, predict_s),)


def _by_precision(judged: Sequence[Judged]) -> dict[str, tuple[Judged, ...]]:
    names = sorted({j.group.split(", ")[2] for j in judged})
    return {name: tuple(j for j in judged if j.group.split(", ")[2] == name) for name in names}


def timing(rows: Sequence[MeasuredJob]) -> tuple[float, float]:
    """Seconds of fitting one curve and of one prediction."""
    model = Ernest()
    model.fit(rows)
    start = time.perf_counter()
    for measured in rows:
        model.curve(measured.job).seconds(point_of(measured.job))
    return model.cost().fit_s / len(by_key(rows)), (time.perf_counter() - start) / len(rows)
