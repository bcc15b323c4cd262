"""Boosting on the real runs of small networks: held out by job, network, family and precision, beside blind twins and
the simulator that reads the machine's device file alone.

All is answered in one process, which counts every job once: tracing the networks takes longer than most of the fits.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.papers import boosting_figures as figures
from benchmarks.papers.boosting_claims import Blind, blind_table, residual_claims
from benchmarks.papers.boosting_held_out import (
    BLIND,
    BOOSTING,
    FOLDS,
    RESIDUAL,
    Question,
    answer,
)
from benchmarks.papers.judging import (
    Prediction,
    Predictions,
    Runs,
    by_precision,
    call_seconds,
    having,
    mape,
    precision_ratios,
    score,
    scores,
    table_by,
    table_of_runs,
    times_by_precision,
)
from benchmarks.papers.study import Claim, Context, Section, Verdict
from precision_time.predictors.additive import Additive, BlindAdditive, calibration_seconds
from precision_time.predictors.boosting import Boosting
from precision_time.predictors.facts import JobKey, facts_of
from precision_time.predictors.interface import Forecast, MeasuredJob, Predictor, steps_of
from precision_time.predictors.published import grouped_folds, job_group
from precision_time.predictors.residual import BoostingResidual
from precision_time.predictors.rows import merged
from precision_time.predictors.simulator import BlindSimulator, Simulator
from precision_time.predictors.trees import Setting
from precision_time.report.errors import percent

ATTENTION = ("vit", "cct", "swin")
"""Families of small networks with attention: three ViTs (two patch sizes, and DeiT), CCT and Swin."""
NETWORK_FOLDS = 5
"""Networks are left out seven at a time, which is stricter than one at a time and takes a seventh of it."""
FAMILY_FOLDS = 10
"""Two or three families at a time, of 22."""
SETTING = Setting(seeds=1)
"""As everywhere, but one ensemble and not the mean of three, which takes three times as long."""
FEW = ("small-lenet5", "small-alexnet", "small-mlp", "small-nin", "small-vgg11", "small-squeezenet-1.1", "small-vit-p8")
"""Networks of a quick study."""
ROWS = "real runs"
WAYS = {
    "job": f"{FOLDS}-fold by job",
    "network": "by network, seven at a time",
    "family": "by model family, two or three at a time",
    "precision": "by precision",
}
UNSEEN = "without attention"
NAMES = {
    **{f"boosting by {way}": f"boosting, {said}" for way, said in WAYS.items()},
    f"boosting {UNSEEN}": "boosting, attention models unseen",
    **{f"boosting-residual by {way}": f"boosting-residual, {said}" for way, said in WAYS.items()},
    f"boosting-residual {UNSEEN}": "boosting-residual, attention models unseen",
    "simulator": "simulator, device file alone",
    f"simulator {UNSEEN}": "simulator, device file alone, on the attention models",
}


def study(context: Context, setting: Setting = SETTING) -> Section:
    """The part of the section that rests on real runs; without any it says so."""
    measured = _few(context.runs) if context.quick else tuple(context.runs)
    nothing = Section("boosting", "", ("There are no real runs to judge boosting on here.",))
    if not measured:
        return nothing
    unfitted = predict_unfitted(measured, lambda done, of: context.progress("boosting: counting real runs", done, of))
    asked = questions_of_runs(measured, context.seed)
    if context.quick:
        asked = [q for q in asked if not q.run.endswith(("by network", "by precision"))]

    def progress(done: int, of: int) -> None:
        context.progress("boosting: real runs, held out", done, of)

    runs: dict[str, Predictions] = {**answer(measured, asked, setting, context.seed, progress, workers=1)}
    if not {"boosting by job", "boosting by family"} <= set(runs):
        return nothing
    runs["simulator"] = unfitted["simulator"]
    if unseen := [each for each in runs["simulator"] if each.measured.family in ATTENTION]:
        runs[f"simulator {UNSEEN}"] = unseen
    blind = _blind(measured, {**runs, **unfitted})
    timing = _timing(measured, setting, context.seed)
    by_family = {k: v for k, v in NAMES.items() if k.endswith("by family") or k == "simulator"}
    shown = {k: NAMES[k] for k in ("boosting by family", "boosting-residual by family", "simulator")}
    return Section(
        "boosting",
        "",
        text=_text(measured, runs),
        claims=_claims(measured, runs, blind),
        tables=(
            table_of_runs("Real runs of small networks, held out", runs, NAMES),
            table_by("Real runs by precision", runs, NAMES, "precision"),
            table_by("Real runs by model family", runs, by_family, "family"),
            blind_table(
                "Real runs, aware and blind: MAPE by precision asked about; boosting 5-fold by job, the others are "
                "fitted to no run",
                blind,
            ),
        ),
        figures=(figures.ratios(runs, shown, "Real runs: predicted over measured pass of every held-out row"),),
        verdicts=_verdicts(measured, asked, runs, timing),
        data={"scores": scores(runs), "blind": blind, "timing": timing, "rows": len(measured)},
    )


def _few(measured: Sequence[MeasuredJob]) -> tuple[MeasuredJob, ...]:
    return tuple(each for each in measured if each.job.model in FEW and each.dataset == "cifar-10")


def predict_unfitted(
    measured: Sequence[MeasuredJob], progress: Callable[[int, int], None]
) -> dict[str, list[Prediction]]:
    """Predictions by what is fitted to no run: the simulator, the additive model, and their twins.

    The facts of every job are counted too, and kept for boosting, so that each network is traced once.
    """
    additive: dict[str, Additive] = {"additive": Additive()}
    simulators: dict[str, Simulator] = {}
    for precision in sorted({each.precision for each in measured}):
        twin = BlindAdditive()
        twin.freeze(precision)
        additive[f"additive blind {precision}"] = twin
        simulators[f"simulator blind {precision}"] = BlindSimulator(precision)
    for model in additive.values():
        model.fit(measured)
    predictions: dict[str, list[Prediction]] = {name: [] for name in ("simulator", *additive, *simulators)}
    groups: dict[JobKey, list[MeasuredJob]] = {}
    for each in measured:
        groups.setdefault(JobKey.of(each.job), []).append(each)
    ordered = sorted(groups.values(), key=lambda rows: _graph(rows[0]))
    simulator = Simulator()
    for done, rows in enumerate(ordered):
        progress(done, len(ordered))
        job = rows[0].job
        steps = steps_of(job)
        facts_of(job)
        whole = simulator.predict(job)
        step = {"simulator": (whole.seconds / steps, whole.p10_s / steps, whole.p90_s / steps)}
        step |= {name: (model.added(job).terms.seconds,) * 3 for name, model in additive.items()}
        step |= {name: (twin.step_seconds(job),) * 3 for name, twin in simulators.items()}
        for name, (p50, p10, p90) in step.items():
            for each in rows:
                times = steps_of(each.job)
                predictions[name].append(Prediction(each, Forecast(p50 * times, p10 * times, p90 * times)))
    progress(len(ordered), len(ordered))
    return predictions


def _graph(each: MeasuredJob) -> tuple[str, ...]:
    """Jobs of one traced network stand together, and those of both precisions beside each other."""
    job = each.job
    return tuple(map(str, (job.model, job.model_config, job.input, job.batch_size, job.gpus, job.precision)))


def questions_of_runs(measured: Sequence[MeasuredJob], seed: int) -> list[Question]:
    """Who teaches and who is judged; boosting and boosting-residual are asked alike, the twins by job."""
    precisions = np.array([each.precision for each in measured])
    networks = min(NETWORK_FOLDS, len({each.job.model for each in measured}))
    families = min(FAMILY_FOLDS, len({each.family for each in measured}))
    folds: dict[str, NDArray[Any]] = {
        "job": np.array(grouped_folds(measured, job_group, FOLDS, seed)),
        "network": np.array(grouped_folds(measured, lambda each: each.job.model, networks, seed)),
        "family": np.array(grouped_folds(measured, lambda each: each.family, families, seed)),
        "precision": precisions,
    }
    unseen = np.array([each.family in ATTENTION for each in measured])
    asked = []
    for kind, name in ((BOOSTING, "boosting"), (RESIDUAL, "boosting-residual")):
        for way, of in folds.items():
            asked += [
                Question(f"{name} by {way}", kind, _at(of != fold), _at(of == fold))
                for fold in np.unique(of)
                if len(np.unique(of)) > 1
            ]
        if unseen.any():
            asked.append(Question(f"{name} {UNSEEN}", kind, _at(~unseen), _at(unseen)))
    jobs = folds["job"]
    for precision in np.unique(precisions):
        asked += [
            Question(
                f"blind {precision}",
                BLIND,
                _at((jobs != f) & (precisions == precision)),
                _at(jobs == f),
                str(precision),
            )
            for f in np.unique(jobs)
        ]
    return asked


def _at(chosen: NDArray[np.bool_]) -> tuple[int, ...]:
    return tuple(np.flatnonzero(chosen).tolist())


def _blind(measured: Sequence[MeasuredJob], runs: Runs) -> Blind:
    """MAPE of every aware predictor and of its twins by the precision asked about, and over all."""
    known = sorted({each.precision for each in measured})
    names = {"boosting by job": "boosting, aware"}
    names |= {f"blind {name}": f"boosting, blind, trained in {name}" for name in known}
    names |= {"simulator": "simulator, aware"}
    names |= {f"simulator blind {name}": f"simulator, blind, knows {name}" for name in known}
    names |= {"additive": "additive, aware"}
    names |= {f"additive blind {name}": f"additive, blind, profiled in {name}" for name in known}
    return {
        label: {asked: mape(runs[key], having("precision", asked)) for asked in (*known, "all")}
        for key, label in names.items()
        if key in runs
    }


def noise(measured: Sequence[MeasuredJob]) -> float:
    """Median standard deviation of log(seconds) between repeats of a row; 0 where nothing was repeated."""
    return statistics.median([each.log_spread for each in measured if each.log_spread is not None] or [0.0])


def _text(measured: Sequence[MeasuredJob], runs: Runs) -> tuple[str, ...]:
    networks = len({each.job.model for each in measured})
    unseen = sorted({each.job.model for each in measured if each.family in ATTENTION})
    text = [
        f"Real runs are {len(measured):,} rows of {networks} small networks on the CPU of the data card, in "
        f"{' and '.join(sorted({each.precision for each in measured}))}, with 1 and 2 workers. Passes of one job over "
        "several amounts of data teach as one row (all their seconds over all their steps) and are judged one by one. "
        f"Repeats of a row differ by {percent(noise(measured))} themselves (median). Device facts, host costs and "
        "collectives are those of the machine's device file; nothing of the published rows teaches here. Trees are as "
        "for the published rows, one ensemble in place of three.",
        "The simulator is as it ships, with that device file: it has seen no training run of this machine, in either "
        "precision. Step factors do not move measured kernels, so boosting-residual fits trees alone.",
        "By precision: trained in one of the two alone, asked about the other; no row says how the two differ.",
    ]
    if unseen:
        families = ", ".join(name for name in ATTENTION if any(m.family == name for m in measured))
        text.append(
            f"Attention models unseen, on real runs: trained without {', '.join(unseen)} (families {families}), which "
            "are left out together and judged."
        )
    for way in ("job", "family"):
        simulator, residual, alone = (
            score(runs[name]) for name in ("simulator", f"boosting-residual by {way}", f"boosting by {way}")
        )
        text.append(
            f"Real runs, held out by {way}: boosting {percent(alone.mape)}, boosting-residual {percent(residual.mape)},"
            f" the simulator alone {percent(simulator.mape)} (signed mean {percent(simulator.signed_mean, sign='+')})."
        )
    return tuple(text)


def _claims(measured: Sequence[MeasuredJob], runs: Runs, blind: Blind) -> tuple[Claim, ...]:
    near = f"repeats of one row differ by {percent(noise(measured))} (median)"
    claims = [
        Claim(
            f"boosting on real runs, grouped {FOLDS}-fold cross-validation, MAPE",
            "9.8 % (arXiv 2604.16145)",
            percent(mape(runs["boosting by job"])),
            None,
            f"another machine, a CPU, and networks of milliseconds; {near}",
        )
    ]
    if f"boosting {UNSEEN}" in runs:
        unseen, residual = (percent(mape(runs[f"{name} {UNSEEN}"])) for name in ("boosting", "boosting-residual"))
        claims.append(
            Claim(
                "boosting on real runs, ViT-type models unseen, MAPE",
                "9.8 % (arXiv 2604.16145, over all)",
                f"{unseen}, boosting-residual {residual}",
                None,
                "no network that is left has kernels of attention",
            )
        )
    if "boosting by precision" in runs:
        claims.append(
            Claim(
                "boosting on real runs, MAPE in a precision that was not measured",
                "10.6 % (readers of 2604.16145)",
                percent(mape(runs["boosting by precision"])),
                None,
                "of two precisions one is left, so nothing says what a change of precision does here",
            )
        )
    claims += _blind_claims(measured, blind)
    return (*claims, *residual_claims(runs, dict.fromkeys(("job", "family"), "simulator"), " on real runs"))


def _blind_claims(measured: Sequence[MeasuredJob], blind: Blind) -> list[Claim]:
    twins = {
        (way, asked): size
        for way, by in blind.items()
        if "blind" in way
        for asked, size in by.items()
        if asked != "all" and not way.endswith(asked)
    }
    per_step = [replace(each, seconds=each.seconds / steps_of(each.job)) for each in merged(measured)]
    ratios = precision_ratios(per_step)
    if not twins or not ratios:
        return []
    (way, asked), worst = max(twins.items(), key=lambda item: item[1])
    aware = blind[f"{way.partition(',')[0]}, aware"]
    fp32_fastest = statistics.fmean(min(by, key=lambda name: by[name]) == "fp32" for by in times_by_precision(per_step))
    return [
        Claim(
            "precision-blind predictor on real runs, MAPE",
            "up to 147.8 % (abstract)",
            f"up to {percent(worst)}: {way}, asked about {asked} (aware: {percent(aware[asked])})",
            None,
            "how far a blind predictor is off is the ratio between the precisions: here the slower takes "
            f"{statistics.median(ratios):.1f} times the faster in the median of {len(ratios)} jobs, and fp32 is the "
            f"faster one in {percent(fp32_fastest)} of them",
        )
    ]


def _timing(measured: Sequence[MeasuredJob], setting: Setting, seed: int) -> dict[str, float]:
    """Median seconds of one warm answer on this machine."""
    jobs = [each.job for each in measured[:: max(1, len(measured) // 10)]][:10]
    trained: dict[str, Predictor] = {"boosting": Boosting(setting, seed)}
    trained["boosting-residual"] = BoostingResidual(setting, seed)
    for predictor in trained.values():
        predictor.fit(measured)
    return {name: call_seconds(predictor.predict, jobs) for name, predictor in trained.items()}


_LEFT_OUT = {
    **{f"by {way}": way for way in ("job", "precision")},
    "by network": "network, seven at a time",
    "by family": "model family, two or three at a time",
    UNSEEN: f"{', '.join(ATTENTION)} (attention), together",
}


def _verdicts(
    measured: Sequence[MeasuredJob], asked: Sequence[Question], runs: Runs, timing: Mapping[str, float]
) -> tuple[Verdict, ...]:
    """Each predictor is charged for its training runs, boosting-residual for the calibration too."""
    calibration_s = calibration_seconds(each.job for each in measured)
    verdicts = []
    for name in ("boosting", "boosting-residual"):
        for way, left_out in _LEFT_OUT.items():
            run = f"{name} {way}"
            if run not in runs:
                continue
            spent = statistics.fmean(sum(measured[i].cost_s for i in q.training) for q in asked if q.run == run)
            spent += calibration_s if name == "boosting-residual" else 0.0
            verdicts.append(Verdict(name, ROWS, left_out, by_precision(runs[run]), spent, timing[name]))
    return tuple(verdicts)
