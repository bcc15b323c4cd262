"""Boosting on the real runs of small networks: held out by job, network, family and precision, beside blind twins and
the simulator that reads the machine's device file alone.

All is answered in one process, which counts every job once: tracing the networks takes longer than most of the fits.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.papers import boosting_figures as figures
from benchmarks.papers.boosting_held_out import (
    BLIND,
    BOOSTING,
    FOLDS,
    RESIDUAL,
    HeldOut,
    Question,
    answer,
)
from benchmarks.papers.boosting_scores import (
    Score,
    by_kind,
    by_run,
    having,
    moved_by_precision,
    percent,
    scores,
    timing_of,
)
from benchmarks.papers.study import Claim, Context, Errors, Section, Table, Verdict
from precision_time.predictors.additive import Additive, BlindAdditive, calibration_seconds
from precision_time.predictors.boosting import Boosting
from precision_time.predictors.facts import JobKey, facts_of
from precision_time.predictors.interface import Forecast, MeasuredJob, Predictor, steps_of
from precision_time.predictors.published import grouped_folds, job_group
from precision_time.predictors.residual import BoostingResidual
from precision_time.predictors.rows import merged
from precision_time.predictors.simulator import BlindSimulator, Simulator
from precision_time.predictors.trees import Setting

ATTENTION = ("vit", "cct", "swin")
"""Families of small networks with attention: three ViTs (two patch sizes, and DeiT), CCT and Swin."""
NETWORK_FOLDS = 5
"""Networks are left out seven at a time, which is stricter than one at a time and takes a seventh of it."""
SETTING = Setting(seeds=1)
"""As everywhere, but one ensemble and not the mean of three, which takes three times as long."""
FEW = (
    "small-lenet5", "small-alexnet", "small-mlp", "small-nin", "small-vgg11", "small-squeezenet-1.1", "small-vit-p8"
)  # fmt: skip
"""Networks of a quick study."""
ROWS = "real runs"
WAYS = {"job": f"{FOLDS}-fold by job", "network": "by network, seven at a time", "family": "by model family",
        "precision": "by precision"}  # fmt: skip
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
    fixed = count(measured, lambda done, of: context.progress("boosting: counting real runs", done, of))
    asked = questions_of_runs(measured, context.seed)
    if context.quick:
        asked = [q for q in asked if not q.run.endswith(("by network", "by precision"))]
    runs = answer(
        measured, asked, setting, context.seed,
        lambda done, of: context.progress("boosting: real runs, held out", done, of), workers=1,
    )  # fmt: skip
    if not {"boosting by job", "boosting by family"} <= set(runs):
        return nothing
    runs = {**runs, **{name: held for name, held in fixed.items() if name == "simulator"}}
    unseen = {i: runs["simulator"].forecasts[i] for i, each in enumerate(measured) if each.family in ATTENTION}
    if unseen:
        runs[f"simulator {UNSEEN}"] = HeldOut(unseen)
    blind = _blind(measured, runs, fixed)
    found = scores(measured, runs)
    said = _timing(measured, setting, context.seed)
    by_family = {k: v for k, v in NAMES.items() if k.endswith("by family") or k == "simulator"}
    return Section(
        "boosting",
        "",
        text=_text(measured, runs),
        claims=_claims(measured, runs, blind),
        tables=(
            by_run("Real runs of small networks, held out", measured, runs, NAMES),
            by_kind("Real runs by precision", measured, runs, NAMES, "precision"),
            by_kind("Real runs by model family", measured, runs, by_family, "family"),
            _blind_table(blind),
        ),
        figures=(
            figures.ratios(
                measured, runs,
                {k: NAMES[k] for k in ("boosting by family", "boosting-residual by family", "simulator")},
                "Real runs: predicted over measured pass of every held-out row", "measured pass",
            ),
        ),
        verdicts=_verdicts(measured, asked, found, said),
        data={"scores": found, "blind": blind, "timing": said, "rows": len(measured)},
    )  # fmt: skip


def _few(measured: Sequence[MeasuredJob]) -> tuple[MeasuredJob, ...]:
    return tuple(each for each in measured if each.job.model in FEW and each.dataset == "cifar-10")


def count(measured: Sequence[MeasuredJob], progress: Callable[[int, int], None]) -> dict[str, HeldOut]:
    """What is fitted to no run at all, and so is held out: the simulator, the additive model, and their twins.

    On the way the facts of every job are counted, so that boosting finds them: a network is traced once for all.
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
    found: dict[str, HeldOut] = {name: HeldOut() for name in ("simulator", *additive, *simulators)}
    groups: dict[JobKey, list[int]] = {}
    for i, each in enumerate(measured):
        groups.setdefault(JobKey.of(each.job), []).append(i)
    ordered = sorted(groups.values(), key=lambda at: _graph(measured[at[0]]))
    simulator = Simulator()
    for done, rows in enumerate(ordered):
        progress(done, len(ordered))
        job = measured[rows[0]].job
        steps = steps_of(job)
        facts_of(job)
        whole = simulator.predict(job)
        step = {"simulator": (whole.seconds / steps, whole.p10_s / steps, whole.p90_s / steps)}
        step |= {name: (model.added(job).terms.seconds,) * 3 for name, model in additive.items()}
        step |= {name: (twin.step_seconds(job),) * 3 for name, twin in simulators.items()}
        for name, said in step.items():
            for i in rows:
                again = steps_of(measured[i].job)
                found[name].forecasts[i] = Forecast(said[0] * again, said[1] * again, said[2] * again)
    progress(len(ordered), len(ordered))
    return found


def _graph(each: MeasuredJob) -> tuple[str, ...]:
    """Jobs of one traced network stand together, and those of both precisions beside each other."""
    job = each.job
    return tuple(map(str, (job.model, job.model_config, job.input, job.batch_size, job.gpus, job.precision)))


def questions_of_runs(measured: Sequence[MeasuredJob], seed: int) -> list[Question]:
    """Who teaches and who is judged; boosting and boosting-residual are asked alike, the twins by job."""
    precisions = np.array([each.precision for each in measured])
    networks = min(NETWORK_FOLDS, len({each.job.model for each in measured}))
    folds: dict[str, NDArray[Any]] = {
        "job": np.array(grouped_folds(measured, job_group, FOLDS, seed)),
        "network": np.array(grouped_folds(measured, lambda each: each.job.model, networks, seed)),
        "family": np.array([each.family for each in measured]),
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
            Question(f"blind {precision}", BLIND, _at((jobs != f) & (precisions == precision)), _at(jobs == f),
                     str(precision))
            for f in np.unique(jobs)
        ]  # fmt: skip
    return asked


def _at(chosen: NDArray[np.bool_]) -> tuple[int, ...]:
    return tuple(np.flatnonzero(chosen).tolist())


Blind = Mapping[str, Mapping[str, float]]


def _blind(measured: Sequence[MeasuredJob], runs: Mapping[str, HeldOut], fixed: Mapping[str, HeldOut]) -> Blind:
    """MAPE of every aware predictor and of its twins by the precision asked about, and over all."""
    asked = [*sorted({each.precision for each in measured}), "all"]
    known = [name for name in asked if name != "all"]
    names = {"boosting by job": "boosting, aware"}
    names |= {f"blind {name}": f"boosting, blind, trained in {name}" for name in known}
    names |= {"simulator": "simulator, aware"} | {
        f"simulator blind {name}": f"simulator, blind, knows {name}" for name in known
    }
    names |= {"additive": "additive, aware"}
    names |= {f"additive blind {name}": f"additive, blind, profiled in {name}" for name in known}
    everything = {**runs, **fixed}
    return {
        label: {p: Score.of(measured, everything[key], having("precision", p)).mape for p in asked}
        for key, label in names.items()
        if key in everything
    }


def _blind_table(blind: Blind) -> Table:
    asked = list(next(iter(blind.values())))
    rows = [(way, *(f"{100 * by[p]:.1f}" for p in asked)) for way, by in blind.items()]
    return Table(
        "Real runs, aware and blind: MAPE (%) by precision asked about; boosting 5-fold by job, the others are fitted "
        "to no run",
        ("predictor", *asked),
        tuple(rows),
    )


def noise(measured: Sequence[MeasuredJob]) -> float:
    """Median standard deviation of log(seconds) between repeats of a row; 0 where nothing was repeated."""
    return statistics.median([each.log_spread for each in measured if each.log_spread is not None] or [0.0])


def _text(measured: Sequence[MeasuredJob], runs: Mapping[str, HeldOut]) -> tuple[str, ...]:
    networks = len({each.job.model for each in measured})
    unseen = sorted({each.job.model for each in measured if each.family in ATTENTION})
    said = [
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
        said.append(
            f"Attention models unseen, on real runs: trained without {', '.join(unseen)} (families "
            f"{', '.join(name for name in ATTENTION if any(m.family == name for m in measured))}), which are left out "
            "together and judged."
        )
    for way in ("job", "family"):
        simulator, top, alone = (
            Score.of(measured, runs[name])
            for name in ("simulator", f"boosting-residual by {way}", f"boosting by {way}")
        )
        said.append(
            f"Real runs, held out by {way}: boosting {percent(alone.mape)}, boosting-residual {percent(top.mape)}, "
            f"the simulator alone {percent(simulator.mape)} ({100 * simulator.signed:+.1f} % with its sign)."
        )
    return tuple(said)


def _claims(measured: Sequence[MeasuredJob], runs: Mapping[str, HeldOut], blind: Blind) -> tuple[Claim, ...]:
    job = Score.of(measured, runs["boosting by job"])
    near = f"repeats of one row differ by {percent(noise(measured))} (median), which bounds every predictor"
    said = [
        Claim(
            f"boosting on real runs, grouped {FOLDS}-fold cross-validation, MAPE", "9.8 % (arXiv 2604.16145)",
            percent(job.mape), None, f"another machine, a CPU, and networks of milliseconds; {near}",
        )
    ]  # fmt: skip
    if f"boosting {UNSEEN}" in runs:
        unseen = Score.of(measured, runs[f"boosting {UNSEEN}"])
        top = Score.of(measured, runs[f"boosting-residual {UNSEEN}"])
        said.append(
            Claim(
                "boosting on real runs, ViT-type models unseen, MAPE", "9.8 % (arXiv 2604.16145, over all)",
                f"{percent(unseen.mape)}, boosting-residual {percent(top.mape)}", None,
                "no network that is left has kernels of attention",
            )
        )  # fmt: skip
    if "boosting by precision" in runs:
        other = Score.of(measured, runs["boosting by precision"])
        said.append(
            Claim(
                "boosting on real runs, MAPE in a precision that was not measured",
                "10.6 % (readers of 2604.16145)", percent(other.mape), None,
                "of two precisions one is left, so nothing says what a change of precision does here",
            )
        )  # fmt: skip
    twins = {
        (way, p): size for way, by in blind.items() if "blind" in way for p, size in by.items()
        if p != "all" and not way.endswith(p)
    }  # fmt: skip
    moved = moved_by_precision(merged(measured))
    if twins and moved:
        (way, asked), worst = max(twins.items(), key=lambda item: item[1])
        aware = blind[f"{way.partition(',')[0]}, aware"]
        said.append(
            Claim(
                "precision-blind predictor on real runs, MAPE", "up to 147.8 % (abstract)",
                f"up to {percent(worst)}: {way}, asked about {asked} (aware: {percent(aware[asked])})", None,
                f"how far a blind predictor is off is the ratio between the precisions: here the slower takes "
                f"{statistics.median(moved):.1f} times the faster in the median of {len(moved)} jobs, and fp32 is the "
                f"faster one in {percent(_faster(measured, 'fp32'))} of them",
            )
        )  # fmt: skip
    for way in ("job", "family"):
        simulator, top = (Score.of(measured, runs[name]) for name in ("simulator", f"boosting-residual by {way}"))
        better = top.mape < simulator.mape
        said.append(
            Claim(
                f"boosting-residual on real runs, held out by {way}",
                f"the simulator itself: {percent(simulator.mape)}", percent(top.mape), better,
                "" if better else "what the simulator leaves of one family says little of another's",
            )
        )  # fmt: skip
    return tuple(said)


def _faster(measured: Sequence[MeasuredJob], precision: str) -> float:
    """Share of the jobs measured in several precisions that were fastest in this one."""
    times: dict[str, dict[str, float]] = {}
    for each in merged(measured):
        key = f"{job_group(each)}|{each.job.batch_size}"
        times.setdefault(key, {})[each.precision] = each.seconds / steps_of(each.job)
    several = [by for by in times.values() if len(by) > 1]
    return statistics.fmean(min(by, key=lambda name: by[name]) == precision for by in several)


def _timing(measured: Sequence[MeasuredJob], setting: Setting, seed: int) -> dict[str, float]:
    """Median seconds of one warm answer on this machine."""
    jobs = [each.job for each in measured[:: max(1, len(measured) // 10)]][:10]
    trained: dict[str, Predictor] = {"boosting": Boosting(setting, seed)}
    trained["boosting-residual"] = BoostingResidual(setting, seed)
    for predictor in trained.values():
        predictor.fit(measured)
    return {name: timing_of(predictor.predict, jobs) for name, predictor in trained.items()}


_LEFT_OUT = {"job": "job", "network": "network, seven at a time", "family": "model family", "precision": "precision"}


def _verdicts(
    measured: Sequence[MeasuredJob], asked: Sequence[Question], found: Mapping[str, Any], said: Mapping[str, float]
) -> tuple[Verdict, ...]:
    """Each predictor is charged for its training runs, boosting-residual for the calibration too."""
    device = calibration_seconds(each.job for each in measured)
    verdicts = []
    for name in ("boosting", "boosting-residual"):
        ways = {f"{name} by {way}": left_out for way, left_out in _LEFT_OUT.items()}
        for run, left_out in {**ways, f"{name} {UNSEEN}": f"{', '.join(ATTENTION)} (attention), together"}.items():
            if run not in found:
                continue
            spent = [sum(measured[i].cost_s for i in q.training) for q in asked if q.run == run]
            verdicts.append(
                Verdict(
                    name, ROWS, left_out,
                    {
                        part: Errors(s["n"], s["mape"], s["median"], s["p90"], s["signed"])
                        for part, s in {"all": found[run]["all"], **found[run]["precision"]}.items()
                    },
                    statistics.fmean(spent) + (device if name != "boosting" else 0.0),
                    said[name],
                )
            )  # fmt: skip
    return tuple(verdicts)
