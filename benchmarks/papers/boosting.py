"""Study of boosting, its blind twins, the simulator and boosting-residual: held out by job, family and precision."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass

import numpy as np

from benchmarks.papers import boosting_figures as figures
from benchmarks.papers import boosting_runs
from benchmarks.papers.boosting_claims import (
    PUBLISHED,
    SAME_GPUS,
    Blind,
    Importance,
    blind_table,
    claims,
    findings,
    method,
)
from benchmarks.papers.boosting_held_out import (
    CURVE,
    FOLDS,
    Question,
    answer,
    questions,
)
from benchmarks.papers.judging import (
    Runs,
    by_precision,
    call_seconds,
    having,
    mape,
    precision_ratios,
    scores,
    table_by,
    table_of_runs,
)
from benchmarks.papers.study import Context, Figure, Section, Table, Verdict
from precision_time.predictors.boosting import AGGREGATED, Boosting
from precision_time.predictors.facts import facts_of
from precision_time.predictors.features import COMMUNICATION, COMPUTE, FEATURES, OVERLAP, matrix, vector
from precision_time.predictors.interface import MeasuredJob
from precision_time.predictors.residual import BoostingResidual
from precision_time.predictors.simulator import Simulator
from precision_time.predictors.trees import Setting
from precision_time.timing.constants import shipped

KEY, TITLE = "boosting", "Precision-aware gradient boosting, its blind twins, and boosting-residual"
QUICK = Setting(rounds=30, seeds=1)
_LEFT_OUT = ("by job", "boosting by card", "curve 0.25", "curve 0.4")
"""Of a quick study: what is as another of its runs."""
HELD_OUT = {
    "boosting by job": f"boosting, {FOLDS}-fold by job",
    "boosting by card": f"boosting, {FOLDS}-fold by model and GPU",
    "boosting by family": "boosting, by model family",
    "boosting by precision": "boosting, by precision",
    "boosting without attention": "boosting, attention models unseen",
}
BESIDE = {
    "simulator by job": f"simulator, {FOLDS}-fold by job",
    "boosting-residual by job": f"boosting-residual, {FOLDS}-fold by job",
    "simulator by family": "simulator, by model family",
    "boosting-residual by family": "boosting-residual, by model family",
}
LARGE_RUNS = {
    "boosting by job": f"{FOLDS}-fold by job",
    "boosting by family": "by model family",
    "boosting by precision": "by precision",
}


def study(context: Context) -> Section:
    """Train, judge and tell, on published rows and on real runs. Without either the section says so."""
    published, real = _published(context), boosting_runs.study(context, *((QUICK,) if context.quick else ()))
    return Section(
        KEY,
        TITLE,
        (*published.text, *real.text),
        (*published.claims, *real.claims),
        (*published.tables, *real.tables),
        (*published.figures, *real.figures),
        (*published.verdicts, *real.verdicts),
        {**published.data, "real_runs": dict(real.data)},
    )


def _published(context: Context) -> Section:
    setting = QUICK if context.quick else Setting()
    measured = tuple(context.published)
    if not measured:
        return Section(KEY, TITLE, ("The tables of published rows are absent, so boosting was not judged on them.",))

    def progress(part: str) -> Callable[[int, int], None]:
        return lambda done, of: context.progress(part, done, of)

    asked = [q for q in questions(measured, context.seed) if not (context.quick and q.run in _LEFT_OUT)]
    workers = 1 if context.quick else None
    runs = answer(measured, asked, setting, context.seed, progress("boosting: held out"), workers)
    if not {"boosting by job", "boosting by family"} <= set(runs):
        return Section(KEY, TITLE, (f"{len(measured)} published rows are too few to judge boosting held out.",))
    large_runs: Runs = {}
    if context.large:
        wanted = [
            q for q in questions(context.large, context.seed, simulators=False, blind=False) if q.run in LARGE_RUNS
        ]
        report = progress("boosting: large models")
        large_runs = answer(context.large, wanted, setting, context.seed, report, workers)
    context.progress("boosting: all rows", 0, 1)
    whole = Boosting(setting, context.seed)
    whole.fit(measured)
    models = _importance(whole, measured)
    timing = _timing(whole, measured)
    context.progress("boosting: all rows", 1, 1)
    blind = _blind(measured, runs)
    curve = _curve(asked, runs)
    results = _Results(runs, large_runs, blind, models, whole, timing)
    return Section(
        KEY,
        TITLE,
        verdicts=_verdicts(runs, timing),
        text=(*method(), *findings(large_runs, runs, models)),
        claims=claims(measured, runs, blind),
        tables=_tables(results),
        figures=_figures(results, curve),
        data={
            "rows": len(measured),
            "scores": scores(runs),
            "large": scores(large_runs),
            "blind": blind,
            "learning_curve": curve,
            "importance": {name: [list(each) for each in found] for name, found in models.items()},
            "timing": timing,
            "precision_range": precision_ratios(measured),
            "setting": asdict(setting),
        },
    )


def _blind(measured: Sequence[MeasuredJob], runs: Runs) -> Blind:
    """MAPE of the aware predictor and of its twins by the precision asked about, and over all."""
    names = {"boosting by job": "aware"}
    names |= {
        key: f"blind, trained in {key.split()[1]}"
        for key in runs
        if key.startswith("blind ") and "simulator" not in key
    }
    here = {key: label for key, label in names.items() if key != "boosting by job"}
    names |= {"blind, all rows as fp32": "blind, trained on all rows as fp32"}
    names |= {"simulator by job": "simulator, aware", "blind simulator fp32": "simulator, blind, trained in fp32"}
    asked = [*sorted({each.measured.precision for each in runs["boosting by job"]}), "all"]

    def sizes(key: str, gpus: set[str] | None = None) -> dict[str, float]:
        return {p: mape(runs[key], having("precision", p, gpus)) for p in asked}

    errors: dict[str, dict[str, float]] = {label: sizes(key) for key, label in names.items() if key in runs}
    for key, label in here.items():
        # A precision may have been measured on other GPUs than the one asked about; on these both were.
        errors[label + SAME_GPUS] = sizes(key, {m.job.gpu for m in measured if m.precision == key.split()[1]})
    return errors


def _curve(asked: Sequence[Question], runs: Runs) -> list[tuple[float, float]]:
    """(mean number of training rows, MAPE) of the learning curve."""
    points = []
    for share in CURVE:
        name = "boosting by job" if share == 1.0 else f"curve {share:g}"
        if name in runs:
            count = statistics.fmean(len(q.training) for q in asked if q.run == name)
            points.append((count, mape(runs[name])))
    return points


def _importance(whole: Boosting, measured: Sequence[MeasuredJob]) -> dict[str, list[tuple[str, float, float]]]:
    """Of each model: (feature, mean |SHAP| in log seconds, share of the gain)."""
    learned = whole.learned
    facts = [facts_of(each.job) for each in measured]
    several = [each for each in facts if each.ranks > 1]
    shown = [("compute", learned.compute.trees, matrix(facts, COMPUTE))]
    if learned.communication is not None and learned.aggregator is not None and several:
        added = learned.communication.log_factor(several)
        columns = np.column_stack([np.expm1(added), matrix(several, OVERLAP)])
        shown.append(("communication", learned.communication.trees, matrix(several, COMMUNICATION)))
        shown.append(("aggregator", learned.aggregator.trees, columns))
    importance = {}
    for name, trees, columns in shown:
        sizes, gains = np.abs(trees.contributions(columns)).mean(axis=0), trees.gains()
        features = [feature.name for feature in trees.features]
        importance[name] = [(f, float(s), gains[f]) for f, s in zip(features, sizes, strict=True)]
    return importance


def _timing(whole: Boosting, measured: Sequence[MeasuredJob]) -> dict[str, float]:
    """Median seconds of a call on this machine, warm, and of a first question about a network never asked of."""
    jobs = [each.job for each in measured[:: max(1, len(measured) // 20)]][:20]
    facts = {id(job): facts_of(job) for job in jobs}
    simulator = Simulator()
    simulator.constants = shipped()  # fitted factors take no other time than those that ship, and fitting takes seconds
    top = BoostingResidual(whole.setting, whole.seed, simulator)
    top.fit(measured)
    seconds = {
        "features": call_seconds(lambda job: vector(facts[id(job)], FEATURES), jobs),
        "model": call_seconds(lambda job: whole.learned.log_parts([facts[id(job)]]), jobs),
        "predict": call_seconds(whole.predict, jobs),
        "residual": call_seconds(top.predict, jobs),
        "simulator": call_seconds(Simulator().predict, jobs),
    }
    first = measured[0].job.replace(model="vit-b-16", model_config={}, input={}, batch_size=48, optimizer="adamw")
    start = time.perf_counter()
    whole.predict(first)
    return {**seconds, "first_of_a_network": time.perf_counter() - start}


@dataclass(frozen=True)
class _Results:
    """What the tables and figures are made of."""

    runs: Runs
    large_runs: Runs
    blind: Blind
    models: Importance
    whole: Boosting
    timing: Mapping[str, float]


_CALL_NAMES = {
    "features": "features of a counted job",
    "model": "the model alone",
    "predict": "boosting, predict",
    "residual": "boosting-residual, predict",
    "simulator": "simulator, predict",
    "first_of_a_network": "boosting, first question about a network",
}


def _tables(results: _Results) -> tuple[Table, ...]:
    names = {**HELD_OUT, **BESIDE}
    families = {key: label for key, label in names.items() if key.endswith(("family", "attention"))}
    tables = [
        table_of_runs("Held out, rows of trust A and B", results.runs, names),
        table_by("By precision", results.runs, names, "precision"),
        table_by("By model family", results.runs, families, "family"),
    ]
    if results.large_runs:
        large = {key: f"boosting, {label}" for key, label in LARGE_RUNS.items()}
        tables += [
            table_of_runs("Large language models, trained and judged apart", results.large_runs, large),
            table_by("Large language models by precision", results.large_runs, large, "precision"),
        ]
    moves = tuple(
        (model, name, f"{100 * (np.exp(size) - 1):.1f}", f"{100 * gain:.0f}")
        for model, found in results.models.items()
        for name, size, gain in sorted(found, key=lambda each: -each[1])[:10]
    )
    features = tuple(
        (f.name, f.unit, "more is never faster" if f.sign else "", f.what) for f in (AGGREGATED[0], *FEATURES)
    )
    calls = tuple((_CALL_NAMES[key], f"{1e3 * seconds:.2f}") for key, seconds in results.timing.items())
    return (
        *tables,
        blind_table("Aware and blind, 5-fold by job: MAPE by precision asked about", results.blind),
        Table(
            "Feature importance, trained on all rows",
            ("model", "feature", "moves the time by, %", "share of gain, %"),
            moves,
            left=2,
        ),
        Table("Features", ("name", "unit", "monotone", "what"), features, left=4),
        Table("Seconds of a call on this machine", ("call", "median, ms"), calls),
    )


def _figures(results: _Results, curve: Sequence[tuple[float, float]]) -> tuple[Figure, ...]:
    shown = {k: v for k, v in HELD_OUT.items() if not k.endswith(("card", "attention"))}
    blind = results.blind.items()
    ways = {way: by for way, by in blind if not way.startswith("simulator") and not way.endswith(SAME_GPUS)}
    return (
        figures.ratios(results.runs, shown),
        figures.blindness(ways),
        figures.importance(results.models),
        figures.learning_curve({"boosting, by job": curve}, PUBLISHED),
    )


_SHOWN = {
    "boosting by job": "job",
    "boosting by family": "model family",
    "boosting by precision": "precision",
    "boosting-residual by job": "job",
    "boosting-residual by family": "model family",
    "simulator by job": "job",
    "simulator by family": "model family",
}
"""Runs for the table of all predictors, and what each holds out."""
_CALLS = {"boosting": "predict", "boosting-residual": "residual", "simulator": "simulator"}


def _verdicts(runs: Runs, timing: Mapping[str, float]) -> tuple[Verdict, ...]:
    return tuple(
        Verdict(name, "published rows", left_out, by_precision(runs[run]), call_s=timing[_CALLS[name]])
        for run, left_out in _SHOWN.items()
        for name in (run.partition(" ")[0],)
        if run in runs
    )
