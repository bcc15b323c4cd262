"""Fits the factors of large-model steps to published ones (`LARGE_TABLES`).

Writes `timing/data/layout_scales.json`. Fitted are (see `timing.layout_costs`): how much slower a framework launches
kernels than plain PyTorch, how host and device share a step in which neither is always ahead, how much compute slows
beside collectives, the share of its network that the jobs of one cluster get, and the time of kernels that no table
measures: of attention, and of AMD's GPUs. Kernels and collectives keep the times of their own tables. Each factor has a
prior, so that a factor that no row determines keeps its usual value.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from precision_time.estimate.interval import Z90
from precision_time.estimate.spread import kind_of
from precision_time.fit.cases import Case, layout_cases
from precision_time.fit.folds import TRUSTED
from precision_time.fit.provenance import provenance, sha256
from precision_time.fit.spreads import Errors, Spread, base_spreads, novelty
from precision_time.hardware.catalog import default_catalog
from precision_time.measurements.digest import digests_of
from precision_time.measurements.repository import LARGE_TABLES
from precision_time.measurements.row import Row
from precision_time.measurements.table import read_table
from precision_time.report.errors import ErrorStatistics, labels
from precision_time.report.table import Table
from precision_time.report.write import compact_json
from precision_time.shipped import write_shipped
from precision_time.timing.constants import StepConstants, shipped
from precision_time.timing.layout_costs import LayoutCosts

Array = NDArray[np.float64]
OUTPUT = Path(__file__).parent.parent / "timing" / "data" / "layout_scales.json"
REFIT = 0.15
"""The factors are fitted anew without a fold that holds more than this share of the rows."""
SPREAD = 0.05
"""Expected size of the errors in log(step); larger errors count linearly."""


@dataclass(frozen=True, slots=True)
class Factor:
    """One number to fit: the prior of its log is Gaussian around `log(usual)` with standard deviation `width`."""

    name: str
    usual: float
    width: float
    why: str


_FLASH2 = "the rule of kernel_priors.json has it: 370 TFLOP/s on H100 where FlashAttention-3 has 648 (arXiv:2407.08608)"
_LARGE = "wider products than those of the steps behind the factors on kernels, in steps at the power limit"
FACTORS: tuple[Factor, ...] = (
    Factor("host.megatron", 1.0, 0.25, "Python per kernel over plain PyTorch's, in both passes: nothing measured"),
    Factor("host.megatron-bridge", 1.5, 0.5, "modules of Transformer Engine, fp8 scales: nothing measured"),
    Factor("host_power.megatron", 6.0, 0.4, "timers and synchronizing sends: no running ahead"),
    Factor("overlap", 1.0, 0.15, "block counts of NCCL are recalled, the sharing law assumed"),
    Factor("traffic.megatron", 1.0, 0.15, "its fused pointwise kernels against those of PyTorch"),
    Factor("traffic.llm-foundry", 1.0, 0.15, "pointwise kernels of PyTorch 1.13 and 2.1 against tables of later ones"),
    Factor("network.hgx-a100-4nic", 0.8, 0.3, "vTrain's cluster: four ports for eight GPUs, nothing measured of it"),
    Factor("attention.bwd.triton64", 1.3, 0.2, "flash-attention 2 over Triton's backward (arXiv:2307.08691, figure 5)"),
    Factor("attention.bwd.triton128", 1.6, 0.25, "the same at head size 128"),
    Factor("attention.fwd.triton64", 1.15, 0.15, "the same, forward (arXiv:2307.08691, figure 4)"),
    Factor("attention.fwd.triton128", 1.15, 0.15, "the same at head size 128"),
    Factor("attention.fwd.flash2|hopper", 1.0, 0.15, _FLASH2),
    Factor("attention.bwd.flash2|hopper", 1.0, 0.2, "the same, backward"),
    Factor("attention.fwd.triton128|hopper", 2.0, 0.3, "Triton's of that time on Hopper: nothing measured"),
    Factor("attention.bwd.triton128|hopper", 3.0, 0.3, "the same, backward"),
    Factor("products.ampere|half", 1.0, 0.05, _LARGE),
    Factor("products.hopper|half", 1.0, 0.1, _LARGE),
    Factor("products.hopper|rowwise", 1.0, 0.15, "fp8 kernels with a scale for each row: no table"),
    Factor("kernels.cdna3", 1.3, 0.3, "kernels of AMD's GPUs: no table measures them"),
    Factor("attention.flash2|cdna3", 2.0, 0.4, "attention there, in addition: nothing measured"),
)


def costs_of(theta: Array) -> LayoutCosts:
    """The constants of `theta`, the logs of `FACTORS`."""
    value = {f.name: float(np.exp(t)) for f, t in zip(FACTORS, theta, strict=True)}
    sections: dict[str, dict[str, float]] = {}
    for name, number in value.items():
        section, _, key = name.partition(".")
        sections.setdefault(section, {})[key] = number
    overlap = sections.pop("overlap")[""]
    return LayoutCosts(overlap=overlap, **sections)


def usual() -> Array:
    """Logs of the usual values of `FACTORS`."""
    return np.log([f.usual for f in FACTORS])


@dataclass(frozen=True, slots=True, eq=False)
class Fitted:
    """`theta` (logs of `FACTORS`) with log(predicted) of every case there, and its slopes (cases x factors)."""

    theta: Array
    logs: Array
    slopes: Array


def log_predictions(cases: Sequence[Case], theta: Array, base: StepConstants) -> Array:
    """log(seconds) of every case with the factors `theta`."""
    constants = replace(base, layouts=costs_of(theta))
    return np.log([case.seconds(constants) for case in cases])


def fit(
    cases: Sequence[Case],
    base: StepConstants,
    start: Array | None = None,
    rounds: int = 5,
    progress: Callable[[str], None] = lambda _: None,
) -> Fitted:
    """Gauss-Newton with weights that let large errors count linearly, never further than a factor of two at a time."""
    measured = np.log([c.row.measured_s for c in cases])
    theta = usual() if start is None else start
    logs = log_predictions(cases, theta, base)
    slopes = np.zeros((len(cases), len(theta)))
    for turn in range(rounds):
        for k in range(len(theta)):
            moved = theta.copy()
            moved[k] += 0.04
            slopes[:, k] = (log_predictions(cases, moved, base) - logs) / 0.04
            progress(f"round {turn + 1}/{rounds}, factor {k + 1}/{len(theta)}")
        theta = theta + np.clip(solve(measured, Fitted(theta, logs, slopes)) - theta, -0.7, 0.7)
        before, logs = logs, log_predictions(cases, theta, base)
        if np.abs(logs - before).max() < 2e-3:
            break
    return Fitted(theta, logs, slopes)


def solve(measured: Array, at: Fitted, keep: NDArray[np.bool_] | None = None) -> Array:
    """The factors that fit the rows of `keep` best, with log(predicted) linear around `at`."""
    kept = np.ones(len(measured), dtype=bool) if keep is None else keep
    prior, width = usual(), np.array([f.width for f in FACTORS])
    slopes = at.slopes[kept]
    theta = at.theta
    for _ in range(20):
        error = measured[kept] - at.logs[kept] - slopes @ (theta - at.theta)
        weight = 1.0 / np.maximum(np.abs(error) / SPREAD, 1.0) / SPREAD**2
        normal = slopes.T @ (slopes * weight[:, None]) + np.diag(1.0 / width**2)
        right = slopes.T @ (weight * (measured[kept] - at.logs[kept] + slopes @ at.theta)) + prior / width**2
        solution = np.asarray(np.linalg.solve(normal, right), dtype=np.float64)
        if np.abs(solution - theta).max() < 1e-6:
            return solution
        theta = solution
    return theta


def by_model(row: Row) -> str:
    """A named model, or a GPT by its width and depth."""
    config = row.job.model_config if row.job else {}
    return f"{row.model} {config.get('layers', '')}x{config.get('hidden', '')}" if row.model == "gpt" else row.model


MANY = "above 64"


def by_scale(row: Row) -> str:
    """Within a node, some nodes, many nodes."""
    return "up to 8 GPUs" if row.gpus <= 8 else "9 to 64" if row.gpus <= 64 else MANY


def by_count(row: Row) -> str:
    """The number of GPUs."""
    return f"{row.gpus} GPUs"


FOLDS: dict[str, Callable[[Row], str]] = {
    "model": by_model,
    "GPU count": by_count,
    "scale": by_scale,
    "GPU": lambda row: row.gpu,
    "architecture": lambda row: default_catalog().gpu(row.gpu).arch,
    "framework": lambda row: row.framework,
}


def held_out(cases: Sequence[Case], at: Fitted, fold: Callable[[Row], str], base: StepConstants) -> Array:
    """log(predicted) of every case by factors fitted without its fold.

    Without a small fold the factors hardly move, so they are solved along the known slopes; without a large one they
    are fitted anew.
    """
    names = np.array([fold(c.row) for c in cases])
    trusted = np.array([c.row.trust in TRUSTED for c in cases])
    measured = np.log([c.row.measured_s for c in cases])
    logs = np.zeros(len(cases))
    for name in dict.fromkeys(names.tolist()):
        inside = names == name
        rest = ~inside & trusted
        if inside.sum() > REFIT * len(cases):
            theta = fit([c for c, kept in zip(cases, rest, strict=True) if kept], base, rounds=4).theta
        else:
            theta = solve(measured, at, rest)
        where = np.flatnonzero(inside)
        logs[where] = log_predictions([cases[i] for i in where.tolist()], theta, base)
    return logs


@dataclass(frozen=True, slots=True, eq=False)
class Judgement:
    """All measured cases under the fit to those of trust A and B, and under fits without them.

    `runs`: log(predicted) of every case by the name of the run. `widenings`: what each job adds to its spread;
    `new_widenings`: the same where no other row is of its framework; `kinds`: the kind of each
    (`estimate.spread.kind_of`).
    """

    cases: Sequence[Case]
    fitted_on: Sequence[Case]
    theta: Array
    runs: Mapping[str, Array]
    widenings: Array
    new_widenings: Array
    kinds: NDArray[np.str_]

    @property
    def measured(self) -> Array:
        """log(measured seconds) of every case."""
        return np.asarray(np.log([c.row.measured_s for c in self.cases]))

    @property
    def trusted(self) -> NDArray[np.bool_]:
        """Whether each case has trust A or B."""
        return np.array([c.row.trust in TRUSTED for c in self.cases])

    def errors(self, fold: str) -> Errors:
        """The errors of every case held out by one of `FOLDS`. By scale, only those of more GPUs than all others are
        judged: a job on fewer GPUs than any fitted one is none that is new."""
        folds = [FOLDS[fold](case.row) for case in self.cases]
        judged = [name == MANY for name in folds] if fold == "scale" else None
        return Errors.of(self.runs[f"held out by {fold}"] - self.measured, folds, judged)

    def spread(self, fold: str) -> Spread:
        """The spreads of the cases in a run without their fold (of `FOLDS`)."""
        left_out = np.where(self.gone("framework", fold), self.new_widenings, self.widenings)
        return Spread(self.widenings, self.kinds, self.trusted, self.errors("model"), left_out)

    def gone(self, what: str, fold: str) -> NDArray[np.bool_]:
        """Whether no row of the same `what` is left without the fold of a case (both of `FOLDS`)."""
        folds: dict[str, set[str]] = {}
        for case in self.cases:
            folds.setdefault(FOLDS[what](case.row), set()).add(FOLDS[fold](case.row))
        return np.array([len(folds[FOLDS[what](case.row)]) == 1 for case in self.cases])

    @property
    def spreads(self) -> Array:
        """Standard deviation of log(step) of every case held out by model, as the rows of other models give it: with
        what a new GPU and a new framework add where no other model has them."""
        usual = self.spread("model").elsewhere(self.errors("model"), new=False)
        variance = usual**2
        for what in ("GPU", "framework"):
            new = self.spread(what).elsewhere(self.errors(what), new=True)
            variance += np.where(self.gone(what, "model"), np.maximum(new**2 - usual**2, 0.0), 0.0)
        return np.sqrt(variance)


HELD_OUT_BY_MODEL = "held out by model"


def judge(rows: Sequence[Row], base: StepConstants, progress: Callable[[str], None] = lambda _: None) -> Judgement:
    """Fit the factors to the rows, and judge every row by factors fitted without it."""
    cases = layout_cases(rows, lambda done: progress(f"tracing {done}/{len(rows)}"))
    fitted_on = [c for c in cases if c.row.trust in TRUSTED]
    at = fit(fitted_on, base, progress=progress)
    everywhere = _everywhere(cases, fitted_on, at, base)
    runs = {"without factors": log_predictions(cases, usual(), base), "fitted": everywhere.logs}
    runs |= {f"held out by {name}": held_out(cases, everywhere, fold, base) for name, fold in FOLDS.items()}
    constants = replace(base, layouts=costs_of(at.theta))
    widenings = np.array([case.widening(constants) for case in cases])
    of_frameworks = np.array([f.name.startswith(("host", "traffic")) for f in FACTORS])
    without = replace(base, layouts=costs_of(np.where(of_frameworks, usual(), at.theta)))
    new_widenings = np.array([case.widening(without, new_framework=True) for case in cases])
    kinds = np.array([kind_of(case.row.family, case.row.precision, case.job, case.cluster.gpu.name) for case in cases])
    return Judgement(cases, fitted_on, at.theta, runs, widenings, new_widenings, kinds)


def _everywhere(cases: Sequence[Case], fitted_on: Sequence[Case], at: Fitted, base: StepConstants) -> Fitted:
    """The fit with the rows of trust C too, which were not fitted: their slopes are zero and never used."""
    place = {id(c): i for i, c in enumerate(fitted_on)}
    logs = np.zeros(len(cases))
    slopes = np.zeros((len(cases), len(at.theta)))
    rest = [i for i, c in enumerate(cases) if id(c) not in place]
    for i, c in enumerate(cases):
        if id(c) in place:
            logs[i], slopes[i] = at.logs[place[id(c)]], at.slopes[place[id(c)]]
    if rest:
        logs[rest] = log_predictions([cases[i] for i in rest], at.theta, base)
    return Fitted(at.theta, logs, slopes)


NOVEL = {"gpu": "GPU", "architecture": "architecture", "framework": "framework", "scale": "scale"}
"""What may be new about a job, and the fold whose errors say how far a prediction is off then."""


def seen(cases: Sequence[Case]) -> dict[str, Any]:
    """What the fitted cases have (`JobFacts`)."""
    values = {
        "family": {c.row.family for c in cases},
        "gpu": {c.cluster.gpu.name for c in cases},
        "architecture": {c.cluster.gpu.arch for c in cases},
        "precision": {c.row.precision for c in cases},
        "framework": {c.job.framework for c in cases},
    }
    return {**{name: sorted(each) for name, each in values.items()}, "gpus": max(c.cluster.gpus for c in cases)}


FIELDS = ("n", "mape", "median_ape", "signed_mean", "p90_ape", "coverage_p10_p90")


def summary(judged: Judgement) -> Table:
    """One row of errors for each run, of the rows of trust A and B."""
    rows, spreads = [], judged.spreads
    for name, logs in judged.runs.items():
        errors = (logs - judged.measured)[judged.trusted]
        inside = np.abs(errors) <= Z90 * spreads[judged.trusted]
        rows.append([name, *ErrorStatistics.of(np.expm1(errors), inside.tolist()).cells(FIELDS)])
    return Table(["rows of trust A and B", *labels(FIELDS)], rows)


def read_rows(tables: Path) -> list[Row]:
    """The rows of all tables of large models below `tables`."""
    return [row for name in LARGE_TABLES for row in read_table(tables / name).rows]


def document(judged: Judgement, tables: Path) -> dict[str, Any]:
    """What `layout_scales.json` holds, fitted to the tables below `tables`."""
    costs = costs_of(judged.theta)
    runs = {name: (judged.spread(fold), judged.errors(fold)) for name, fold in NOVEL.items()}
    first, *others = (tables / name for name in LARGE_TABLES)

    def rounded(values: Mapping[str, float]) -> dict[str, float]:
        return {name: round(value, 4) for name, value in values.items()}

    return {
        "provenance": {
            **provenance("layouts", first, len(judged.fitted_on)),
            "other_tables": {path.name: sha256(path) for path in others},
            "row_digests": digests_of(c.row.digest for c in judged.fitted_on),
            "priors": {f.name: {"usual": f.usual, "width": f.width, "why": f.why} for f in FACTORS},
        },
        "costs": {
            "host": rounded(costs.host),
            "host_power": rounded(costs.host_power),
            "overlap": round(costs.overlap, 4),
            "traffic": rounded(costs.traffic),
            "network": rounded(costs.network),
            "attention": rounded(costs.attention),
            "kernels": rounded(costs.kernels),
            "products": rounded(costs.products),
        },
        "interval": {
            **base_spreads(judged.spread("model")),
            "seen": seen(judged.fitted_on),
            "novelty": novelty(runs),
        },
    }


def run(tables: Path, judge_only: bool = False) -> None:
    """Fit the published steps below `tables`, print the errors held out, and write the factors unless `judge_only`."""
    judged = judge(
        read_rows(tables), shipped(), lambda text: print(f"\r{text:40}", end="", file=sys.stderr, flush=True)
    )
    print(file=sys.stderr)
    print(summary(judged))
    if not judge_only:
        write_shipped(OUTPUT, compact_json(document(judged, tables)) + "\n")
        print(f"{len(judged.theta)} factors from {len(judged.fitted_on)} rows -> {OUTPUT}", file=sys.stderr)
