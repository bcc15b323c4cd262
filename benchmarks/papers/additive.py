"""The study of the per-operator additive model: on real runs, on published rows, and over the layouts of LLaMA-3.1-8B.

Beside it stand its precision-blind twins, one for each precision that a profile could have been taken in, and the
product's simulator on the same operator times. Nothing is fitted: all rows are held out.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from benchmarks.papers import additive_figures as figures
from benchmarks.papers import additive_layouts as layouts
from benchmarks.papers.additive_errors import (
    Judged,
    accuracy,
    accuracy_table,
    mape,
    precisions_of,
    twin_table,
)
from benchmarks.papers.judging import call_seconds
from benchmarks.papers.study import Claim, Context, Section, Table, Verdict
from precision_time.anchoring import Anchoring
from precision_time.errors import PrecisionTimeError
from precision_time.job.job import Job
from precision_time.job.precision import PRECISIONS
from precision_time.prediction import predict
from precision_time.predictors.additive import Additive, BlindAdditive, calibration_seconds
from precision_time.predictors.additive_equations import Terms
from precision_time.predictors.interface import MeasuredJob, steps_of
from precision_time.report.errors import percent
from precision_time.timing.constants import StepConstants

AWARE, SIMULATOR, CALIBRATED = "additive", "simulator", "additive, interpolated operators"
REPAIRS = (
    "pipeline term by micro-batches",
    "with optimizer and loss scaler",
    "with casts",
    "with overlap and latency",
)
"""Cumulative: each is the one before it and one thing more."""
FEW, LARGE_SHARE = 24, 3
"""Rows of a table in a quick study; of the large table every third is judged, which takes half a minute."""
_ALONE = Anchoring(use=False)
_KERNELS = StepConstants()
"""Kernel benchmarks alone, as the additive model has them: the factors that ship were fitted to the published rows."""


def study(context: Context) -> Section:
    """Judge the model, its twins and the simulator by precision."""
    quick = context.quick
    runs = _few(context.runs, FEW if quick else len(context.runs))
    published = _few(context.published, FEW if quick else len(context.published))
    large = _few(context.large, FEW if quick else len(context.large) // LARGE_SHARE)
    on_runs = judge("real runs", runs, context, None, interpolated=True)
    on_published = judge("published rows", published, context, _KERNELS)
    on_large = judge("large models", large, context, _KERNELS, twins=False)
    table = layouts.collect(layouts.PRECISIONS[:1] if quick else layouts.PRECISIONS, context.progress)
    cost = Additive()
    cost.fit(runs)
    tables, pictures = [], []
    for title, judged in (("real runs", on_runs), ("published rows, data parallel", on_published)):
        if judged:
            shown = [way for way in (AWARE, CALIBRATED, SIMULATOR) if any(way in each.seconds for each in judged)]
            tables += [accuracy_table(title, judged, shown), twin_table(title, judged, AWARE)]
            tables.append(_repairs(title, judged))
            pictures.append(figures.by_precision(title, judged))
    if on_large:
        tables.append(_by_stages(on_large))
    tables += layouts.tables(table)
    pictures.append(figures.layouts(table))
    return Section(
        key="additive",
        title="Per-operator additive model",
        text=(*_TEXT, *_absent(context)),
        claims=(*_claims(on_runs, on_published), layouts.ratio_claim(table)),
        tables=tuple(tables),
        figures=tuple(pictures),
        verdicts=(*_verdicts("real runs", on_runs, cost.cost().measured_s), *_verdicts("published rows", on_published)),
        data={
            "real_runs": _data(on_runs),
            "published": _data(on_published),
            "large": _data(on_large),
            "layouts": layouts.data(table),
            "cost": {"operators": cost.cost().runs, "measured_s": cost.cost().measured_s, "fit_s": cost.cost().fit_s},
        },
    )


def judge(
    part: str,
    measured: Sequence[MeasuredJob],
    context: Context,
    constants: StepConstants | None,
    twins: bool = True,
    interpolated: bool = False,
) -> list[Judged]:
    """Seconds of every job by the model, its twins ("blind PRECISION") and the simulator; what cannot be is missing."""
    aware = Additive()
    aware.fit(measured)
    ways: dict[str, Callable[[MeasuredJob], float]] = {
        f"blind {name}": _twin(name, measured)
        for name in PRECISIONS
        if twins and any(each.precision == name for each in measured)
    }
    if interpolated:  # what `calibrate` measured, without the profile of these very operators
        rough = Additive(beside=False)
        rough.fit(measured)
        ways[CALIBRATED] = lambda each: rough.predict(each.job).seconds
    judged = []
    # One model after another, so that each is read or traced once.
    ordered = sorted(measured, key=lambda each: _graph(each.job))
    for done, each in enumerate(ordered):
        context.progress(f"additive: {part}", done, len(ordered))
        seconds: dict[str, float] = {}
        with suppress(PrecisionTimeError):  # a layout that the equations do not know
            estimate = predict(each.job, constants=constants, anchoring=_ALONE)
            seconds[SIMULATOR] = steps_of(each.job) * float(estimate.step.p50)
            seconds.update(_repaired(each, aware.added(each.job).terms, estimate.breakdown))
        for name, way in ways.items():
            with suppress(PrecisionTimeError):  # a precision that the device has no unit for
                seconds[name] = way(each)
        judged.append(Judged(each, seconds))
    context.progress(f"additive: {part}", len(ordered), len(ordered))
    return judged


def _twin(precision: str, measured: Sequence[MeasuredJob]) -> Callable[[MeasuredJob], float]:
    """The blind twin whose operators were profiled in one precision, on the devices of all jobs."""
    twin = BlindAdditive()
    twin.freeze(precision)
    twin.fit(measured)
    return lambda each: twin.predict(each.job).seconds


def _repaired(each: MeasuredJob, terms: Terms, simulator: Mapping[str, float]) -> dict[str, float]:
    """The published sum, and what becomes of it where one thing after another is as the simulator has it."""
    steps, micro_steps = steps_of(each.job), each.job.grad_accum
    added = terms.seconds
    seconds = {AWARE: steps * added}
    for name, more in zip(
        REPAIRS,
        (
            -terms.pipeline_s * (1.0 - 1.0 / micro_steps),
            simulator["optimizer"] + simulator["loss_scaling"],
            simulator["casts"],
            simulator["communication_exposed"] - terms.data_s - terms.tensor_s,
        ),
        strict=True,
    ):
        added += more
        seconds[name] = steps * added
    return seconds


def _graph(job: Job) -> tuple[str, ...]:
    return tuple(map(str, (job.model, job.model_config, job.input, job.batch_size, job.precision)))


def _few(rows: Sequence[MeasuredJob], count: int) -> list[MeasuredJob]:
    """So many of the rows, spread evenly."""
    if count >= len(rows):
        return list(rows)
    return [rows[index * len(rows) // count] for index in range(count)]


def _repairs(title: str, judged: Sequence[Judged]) -> Table:
    """What each thing that the equations leave out is worth."""
    names = precisions_of(judged)
    rows = []
    for way in (AWARE, *REPAIRS, SIMULATOR):
        statistics = [accuracy(judged, way, name) for name in names]
        rows.append((way, *(f"{' ('.join(each.cells(_SIGNED))})" if each.n else "-" for each in statistics)))
    return Table(
        f"What the equations leave out, on {title}: MAPE (signed mean error); each row includes the rows above it",
        ("terms", *names),
        tuple(rows),
    )


_SIGNED = ("mape", "signed_mean")


def _by_stages(judged: Sequence[Judged]) -> Table:
    """Errors by pipeline stages, and with the pipeline term replaced."""
    rows = []
    for stages in sorted({each.measured.job.layout_spec.pp for each in judged}):
        these = [each for each in judged if each.measured.job.layout_spec.pp == stages]
        statistics = [accuracy(these, way) for way in (AWARE, REPAIRS[0], SIMULATOR)]
        rows.append((str(stages), str(statistics[0].n), *(cell for each in statistics for cell in each.cells(_SIGNED))))
    return Table(
        "Published rows of large models by pipeline stages: MAPE and signed mean error. In the middle the pipeline "
        "term alone is divided by the number of micro-batches.",
        ("pp", "rows", "additive", "signed", "by micro-batches", "signed", "simulator", "signed"),
        tuple(rows),
    )


_TEXT = (
    "T = T_comp + V_dp/B + V_tp/B + T_comp (pp - 1), after arXiv 2604.16145 as readers of it report; what the "
    "symbols stand for "
    "beyond that is our reading (docs/additive.md). No term overlaps another, no message has a latency, and "
    "optimizer, loss "
    "scaler, casts and host are not in it. Nothing is fitted to training times, so every row is held out.",
    "On real runs operators take the times that they were profiled with on that machine, each by itself, whole, "
    "in its own "
    "shape and dtype; where a profile lacks one, those interpolated from what `calibrate` measured there. On "
    "published rows the devices are not at hand: kernel curves, fitted to kernel benchmarks alone, stand in for a "
    "profile, for the additive model and for the simulator beside it, so that the two differ in their equations only.",
)


def _absent(context: Context) -> list[str]:
    notes = []
    if not context.runs:
        notes.append("There are no real runs to judge on here.")
    if not context.published:
        notes.append("The published rows are not here (no data/published), so the model is not judged on them.")
    return notes


def _claims(on_runs: Sequence[Judged], on_published: Sequence[Judged]) -> list[Claim]:
    claims = []
    for title, judged in (("real runs", on_runs), ("published rows", on_published)):
        if not judged:
            continue
        known = precisions_of(judged)
        twins = {
            (twin, asked): mape(judged, f"blind {twin}", asked) for twin in known for asked in known if twin != asked
        }
        twins = {pair: size for pair, size in twins.items() if not math.isnan(size)}
        found = f"additive {percent(mape(judged, AWARE))} MAPE over all precisions"
        if twins:
            (twin, asked), worst = max(twins.items(), key=lambda pair: pair[1])
            found += f"; its twin up to {percent(worst)} (profiled in {twin}, asked about {asked})"
        claims.append(
            Claim(
                f"A model that assumes one precision fails in another ({title})",
                "baselines that assume one precision reach 130 % and 148 % (a reader's report); abstract: up to "
                "147.85 % MAPE",
                found,
                None,
                "Another job, device and set of precisions; how far a blind model is off is the ratio between "
                "the precisions.",
            )
        )
    claims.append(
        Claim(
            "Error on a precision that was not profiled",
            "10.64 % (a reader's report)",
            "not checked",
            None,
            "The paper's job (LLaMA-3.1-8B on 8 x H100) has no measured rows in public, and how its model "
            "reaches a precision that it did not profile is not reported.",
        )
    )
    return claims


def _verdicts(rows: str, judged: Sequence[Judged], measured_s: float | None = None) -> tuple[Verdict, ...]:
    """The model and the simulator beside it; neither was fitted to these rows.

    On a calibrated device the simulator is charged for the calibration; elsewhere it uses kernel curves alone.
    """
    precisions = precisions_of(judged)
    jobs = [each.measured.job for each in judged if {AWARE, SIMULATOR} <= set(each.seconds)]
    calibrated = calibration_seconds(jobs) or None
    constants = None if calibrated else _KERNELS
    model = Additive()
    model.fit([each.measured for each in judged])
    ways: dict[str, tuple[str, float | None, Callable[[Job], Any]]] = {
        "additive": (AWARE, measured_s, model.predict),
        "simulator" if calibrated else "simulator, kernels alone": (
            SIMULATOR,
            calibrated,
            lambda job: predict(job, constants=constants, anchoring=_ALONE),
        ),
    }
    return tuple(
        Verdict(
            name,
            rows,
            "all: nothing is fitted to steps",
            {part: accuracy(judged, way, part) for part in ("all", *precisions)},
            spent,
            call_seconds(call, jobs[:: max(1, len(jobs) // 10)][:10]),
        )
        for name, (way, spent, call) in ways.items()
        if judged and all(accuracy(judged, way, precision).n for precision in precisions)
    )


def _data(judged: Sequence[Judged]) -> dict[str, Any]:
    ways = sorted({way for each in judged for way in each.seconds})
    return {
        "rows": [
            {"id": m.id, "precision": m.precision, "measured_s": m.seconds, **each.seconds}
            for each in judged
            for m in (each.measured,)
        ],
        "accuracy": {
            way: {name: accuracy(judged, way, name).to_dict() for name in ("all", *precisions_of(judged))}
            for way in ways
        },
    }
