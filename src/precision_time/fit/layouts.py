"""The few factors of large-model steps, fitted to published ones.

    python -m precision_time.fit.layouts --shared DIR           fit, write timing/data/layout_scales.json, print errors
    python -m precision_time.fit.layouts --shared DIR --judge   only judge, every row held out by model and by scale
    ... --report docs/large-models.md                           and put the tables into that page

What is fitted (see `timing.layout_costs`): how much slower a framework launches kernels than plain PyTorch, how host
and device share a step in which neither is always ahead, how much compute slows beside collectives, the share of its
network that one cluster's jobs get, and what an attention kernel that no table measures takes. Kernels and collectives
keep what their own tables say. Each factor has a prior, so that what no row determines stays where it was.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from precision_time.fit.evaluation.text import percent
from precision_time.fit.folds import UNSEEN_ARCHITECTURE, Z90
from precision_time.fit.layout_cases import LayoutCase, layout_cases
from precision_time.fit.layout_report import filled
from precision_time.fit.provenance import provenance
from precision_time.job.file import compact_json
from precision_time.measurements.digest import digests_of
from precision_time.measurements.row import Row
from precision_time.measurements.table import read_table
from precision_time.text_table import format_table
from precision_time.timing.constants import StepConstants, shipped
from precision_time.timing.layout_costs import LayoutCosts

Array = NDArray[np.float64]
TABLE = Path("data") / "published" / "measurements_llm.csv"
"""The measured steps, below the shared folder."""
OUTPUT = Path(__file__).parent.parent / "timing" / "data" / "layout_scales.json"
TRUSTED = ("A", "B")
REFIT = 0.15
"""A fold with more of the rows than this is left out in earnest."""
SPREAD = 0.05
"""Errors of this size in log(step) are what the model is expected to leave; larger ones count linearly."""


@dataclass(frozen=True, slots=True)
class Factor:
    """One number to fit: its log is drawn to `log(usual)` with standard deviation `width`."""

    name: str
    usual: float
    width: float
    why: str


FACTORS: tuple[Factor, ...] = (
    Factor("host.megatron-deepspeed", 2.0, 0.5, "Python per kernel over plain PyTorch's: nothing measured"),
    Factor("host_power", 6.0, 0.4, "a step is neither all host nor all device: between 3 and 12"),
    Factor("overlap", 1.0, 0.5, "block counts of NCCL are recalled, the sharing law assumed"),
    Factor("traffic.llm-foundry", 1.0, 0.15, "pointwise kernels of PyTorch 1.13 and 2.1 against tables of later ones"),
    Factor("network.hgx-a100-4nic", 0.8, 0.3, "vTrain's cluster: four ports for eight GPUs, nothing measured of it"),
    Factor("attention.bwd.triton64", 1.3, 0.2, "flash-attention 2 over Triton's backward (arXiv:2307.08691, figure 5)"),
    Factor("attention.bwd.triton128", 1.6, 0.25, "the same at head size 128"),
    Factor("attention.fwd.triton64", 1.15, 0.15, "the same, forward (arXiv:2307.08691, figure 4)"),
    Factor("attention.fwd.triton128", 1.15, 0.15, "the same at head size 128"),
)


def costs_of(theta: Array) -> LayoutCosts:
    """The constants that the logs `theta` of `FACTORS` stand for."""
    value = {f.name: float(np.exp(t)) for f, t in zip(FACTORS, theta, strict=True)}
    return LayoutCosts(
        host={name[5:]: v for name, v in value.items() if name.startswith("host.")},
        host_power=value["host_power"],
        overlap=value["overlap"],
        traffic={name[8:]: v for name, v in value.items() if name.startswith("traffic.")},
        network={name[8:]: v for name, v in value.items() if name.startswith("network.")},
        attention={name[10:]: v for name, v in value.items() if name.startswith("attention.")},
    )


def usual() -> Array:
    return np.log([f.usual for f in FACTORS])


@dataclass(frozen=True, slots=True, eq=False)
class Fitted:
    """`theta` with the predictions' logs and their slopes at it, by case."""

    theta: Array
    logs: Array
    slopes: Array


def _logs(cases: Sequence[LayoutCase], theta: Array, base: StepConstants) -> Array:
    constants = replace(base, layouts=costs_of(theta))
    return np.log([case.seconds(constants) for case in cases])


def fit(
    cases: Sequence[LayoutCase], base: StepConstants, start: Array | None = None, rounds: int = 5,
    progress: Callable[[str], None] = lambda _: None,
) -> Fitted:  # fmt: skip
    """Gauss-Newton with weights that let large errors count linearly, never further than a factor of two at a time."""
    measured = np.log([c.row.measured_s for c in cases])
    theta = usual() if start is None else start
    logs = _logs(cases, theta, base)
    slopes = np.zeros((len(cases), len(theta)))
    for turn in range(rounds):
        for k in range(len(theta)):
            moved = theta.copy()
            moved[k] += 0.04
            slopes[:, k] = (_logs(cases, moved, base) - logs) / 0.04
            progress(f"round {turn + 1}/{rounds}, factor {k + 1}/{len(theta)}")
        theta = theta + np.clip(solve(measured, Fitted(theta, logs, slopes)) - theta, -0.7, 0.7)
        before, logs = logs, _logs(cases, theta, base)
        if np.abs(logs - before).max() < 2e-3:
            break
    return Fitted(theta, logs, slopes)


def solve(measured: Array, at: Fitted, keep: NDArray[np.bool_] | None = None) -> Array:
    """The factors that fit the kept rows best, taking logs of predictions as linear around `at`."""
    kept = np.ones(len(measured), dtype=bool) if keep is None else keep
    prior, width = usual(), np.array([f.width for f in FACTORS])
    slopes = at.slopes[kept]
    theta = at.theta
    for _ in range(20):
        error = measured[kept] - at.logs[kept] - slopes @ (theta - at.theta)
        weight = 1.0 / np.maximum(np.abs(error) / SPREAD, 1.0) / SPREAD**2
        normal = slopes.T @ (slopes * weight[:, None]) + np.diag(1.0 / width**2)
        right = slopes.T @ (weight * (measured[kept] - at.logs[kept] + slopes @ at.theta)) + prior / width**2
        found = np.linalg.solve(normal, right)
        if np.abs(found - theta).max() < 1e-6:
            return np.asarray(found, dtype=np.float64)
        theta = found
    return np.asarray(theta, dtype=np.float64)


def by_model(row: Row) -> str:
    """A named model, or a GPT by its width and depth."""
    config = row.job.model_config if row.job else {}
    return f"{row.model} {config.get('layers', '')}x{config.get('hidden', '')}" if row.model == "gpt" else row.model


def by_scale(row: Row) -> str:
    """Within a node, some nodes, many."""
    return "up to 8 GPUs" if row.gpus <= 8 else "9 to 64" if row.gpus <= 64 else "above 64"


def by_count(row: Row) -> str:
    return f"{row.gpus} GPUs"


FOLDS: dict[str, Callable[[Row], str]] = {
    "model": by_model,
    "GPU count": by_count,
    "scale": by_scale,
    "GPU": lambda row: row.gpu,
    "framework": lambda row: row.framework,
}


def held_out(cases: Sequence[LayoutCase], at: Fitted, fold: Callable[[Row], str], base: StepConstants) -> Array:
    """Log of every prediction by factors that never saw its fold.

    A small fold hardly moves the factors, and what is left of the rows is fitted along the slopes known; without a
    large one they are fitted anew.
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
        logs[where] = _logs([cases[i] for i in where.tolist()], theta, base)
    return logs


GROUPS: tuple[tuple[str, str, Callable[[Row], bool]], ...] = (
    ("MPT, FSDP, A100, 8-512 GPUs", "8", lambda r: r.framework == "llm-foundry" and r.gpu.startswith("a100")),
    (
        "GPT, tp x pp x dp, A100, 8-512 GPUs",
        "10",
        lambda r: r.framework == "megatron-deepspeed" and r.gpus >= 8,
    ),
    ("GPT, tp x pp x dp, A100, 2 and 4 GPUs", "", lambda r: r.framework == "megatron-deepspeed" and r.gpus < 8),
    ("Megatron tables", "12", lambda r: r.framework == "megatron"),
    ("fp8", "15", lambda r: r.precision.startswith("fp8")),
    ("mixtures of experts", "", lambda r: bool(r.job and r.job.model_config.get("experts"))),
)
"""Rows that are judged together, and the goal for their mean error in percent."""


def errors_of(cases: Sequence[LayoutCase], runs: Mapping[str, Array], spreads: Array, at: str) -> dict[str, Any]:
    """Errors by group of rows and by how they were held out; `spreads` of log(step) judge the intervals of run `at`."""
    measured = np.log([c.row.measured_s for c in cases])
    groups: list[dict[str, Any]] = []
    for title, goal, wanted in GROUPS:
        for trust, those in (("A, B", TRUSTED), ("all", ("A", "B", "C"))):
            chosen = np.array([wanted(c.row) and c.row.trust in those for c in cases])
            if not chosen.any() or (trust == "all" and chosen.sum() == groups[-1]["n"]):
                continue
            found = {}
            for name, logs in runs.items():
                error = np.exp(logs[chosen] - measured[chosen]) - 1.0
                found[name] = {
                    "mape": round(float(np.abs(error).mean()), 4),
                    "median": round(float(np.median(np.abs(error))), 4),
                    "signed": round(float(error.mean()), 4),
                    "p90": round(float(np.quantile(np.abs(error), 0.9)), 4),
                }
            goal_text = f"{goal} %" if goal else ""
            groups.append({"title": title, "trust": trust, "n": int(chosen.sum()), "goal": goal_text, "runs": found})
    inside = np.abs(runs[at] - measured) <= Z90 * spreads
    coverage = {"all": round(float(inside.mean()), 3)}
    for title, _, wanted in GROUPS:
        chosen = np.array([wanted(c.row) for c in cases])
        coverage[title] = round(float(inside[chosen].mean()), 3)
    return {"judged": len(cases), "groups": groups, "coverage": coverage}


def table(errors: Mapping[str, Any]) -> str:
    """The errors as text."""
    lines = []
    for group in errors["groups"]:
        cells = [
            f"{percent(run['mape'])} ({percent(run['signed'], sign='+')})" for run in group["runs"].values()
        ]  # fmt: skip
        lines.append([group["title"], group["trust"], str(group["n"]), *cells, group["goal"]])
    return format_table(["rows", "trust", "n", *errors["groups"][0]["runs"], "goal"], lines)


def document(
    cases: Sequence[LayoutCase], theta: Array, interval: Mapping[str, Any], errors: Mapping[str, Any], source: Path
) -> dict[str, Any]:
    costs = costs_of(theta)

    def rounded(values: Mapping[str, float]) -> dict[str, float]:
        return {k: round(v, 4) for k, v in values.items()}

    return {
        "provenance": {
            **provenance("layouts", source, len(cases)),
            "row_digests": digests_of(c.row.digest for c in cases),
            "priors": {f.name: {"usual": f.usual, "width": f.width, "why": f.why} for f in FACTORS},
        },
        "costs": {
            "host": rounded(costs.host),
            "host_power": round(costs.host_power, 4),
            "overlap": round(costs.overlap, 4),
            "traffic": rounded(costs.traffic),
            "network": rounded(costs.network),
            "attention": rounded(costs.attention),
        },
        "interval": dict(interval),
        "errors": dict(errors),
    }


def spread(error: Array, widenings: Array) -> float:
    """The base spread that, beside what each job adds, puts four of five held-out rows into P10-P90."""
    low, high = 0.0, 0.5
    for _ in range(30):
        middle = (low + high) / 2
        covered = float((np.abs(error) <= Z90 * np.hypot(middle, widenings)).mean())
        low, high = (middle, high) if covered < 0.8 else (low, middle)
    return high


def widenings(cases: Sequence[LayoutCase], theta: Array, base: StepConstants) -> Array:
    """What each job adds to its own spread."""
    constants = replace(base, layouts=costs_of(theta))
    return np.array([case.widening(constants) for case in cases])


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m precision_time.fit.layouts", description=__doc__.splitlines()[0])
    parser.add_argument("--shared", type=Path, required=True, help=f"folder with {TABLE.as_posix()}")
    parser.add_argument("--judge", action="store_true", help="judge only, leave the factors as they are")
    parser.add_argument(
        "--report", type=Path, action="append", default=[], metavar="PAGE",
        help="put the tables between this page's markers; may be repeated",
    )  # fmt: skip
    given = parser.parse_args(arguments)
    rows = read_table(given.shared / TABLE).rows
    cases = layout_cases(rows, lambda done: print(f"\rtracing {done}/{len(rows)}", end="", file=sys.stderr))
    print(file=sys.stderr)
    base = shipped()
    fitted_on = [c for c in cases if c.row.trust in TRUSTED]
    at = fit(fitted_on, base, progress=lambda text: print(f"\r{text}   ", end="", file=sys.stderr))
    print(file=sys.stderr)
    everywhere = _everywhere(cases, fitted_on, at, base)
    runs = {"without factors": _logs(cases, usual(), base), "fitted": everywhere.logs}
    runs |= {f"held out by {name}": held_out(cases, everywhere, fold, base) for name, fold in FOLDS.items()}
    trusted = np.array([c.row.trust in TRUSTED for c in cases])
    measured = np.log([c.row.measured_s for c in cases])
    own = widenings(cases, at.theta, base)
    by = "held out by model"
    width = spread((runs[by] - measured)[trusted], own[trusted])
    interval = {
        "log_spread": round(width, 4),
        "architectures": sorted({c.cluster.gpu.arch for c in fitted_on}),
        "unseen_architecture": UNSEEN_ARCHITECTURE,
    }
    errors = errors_of(cases, runs, np.hypot(width, own), by)
    print(table(errors))
    content = document(fitted_on, at.theta, interval, errors, given.shared / TABLE)
    print(content["costs"], interval)
    if not given.judge:
        OUTPUT.write_text(compact_json(content) + "\n", encoding="utf-8")
        print(f"written: {OUTPUT.name}, {len(at.theta)} factors from {len(fitted_on)} rows", file=sys.stderr)
    for page in given.report:
        page.write_text(filled(page.read_text(encoding="utf-8"), content), encoding="utf-8")
    return 0


def _everywhere(
    cases: Sequence[LayoutCase], fitted_on: Sequence[LayoutCase], at: Fitted, base: StepConstants
) -> Fitted:
    """What the fit found, with rows of trust C too, which it never saw: their slopes are never used."""
    place = {id(c): i for i, c in enumerate(fitted_on)}
    logs = np.zeros(len(cases))
    slopes = np.zeros((len(cases), len(at.theta)))
    rest = [i for i, c in enumerate(cases) if id(c) not in place]
    for i, c in enumerate(cases):
        if id(c) in place:
            logs[i], slopes[i] = at.logs[place[id(c)]], at.slopes[place[id(c)]]
    if rest:
        logs[rest] = _logs([cases[i] for i in rest], at.theta, base)
    return Fitted(at.theta, logs, slopes)


if __name__ == "__main__":
    sys.exit(main())
