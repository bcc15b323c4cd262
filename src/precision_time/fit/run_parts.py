"""Start-up and evaluations of whole runs, from MLPerf's training logs.

The logarithm of the seconds from launch to the first step is a line in log(nodes), plus an effect of the benchmark and
one of the submitter, both normal, plus noise (restricted maximum likelihood). Runs on other accelerators than GPUs and
minigo, whose workers play while it trains, are left out.

An evaluation is compared with the predicted forward passes of its samples on the same GPUs; only runs whose GPUs and
batch are known from a row of the measured steps take part. Detectors compare boxes on the CPU afterwards, so they get a
factor and seconds for every image of their own.
"""

from __future__ import annotations

import csv
import json
import math
import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from precision_time.estimate.assemble import evaluation_forward_seconds
from precision_time.estimate.interval import Z90
from precision_time.estimate.run_parts import PARAMETERS, Evaluation, RunParts, StartUp, run_parts
from precision_time.fit.provenance import provenance
from precision_time.measurements.table import read_table
from precision_time.placement import cluster_of
from precision_time.prediction import simulate_step
from precision_time.shipped import ROOT, write_shipped

Floats = NDArray[np.float64]
TABLE = "published/run_parts.csv"
STEPS = ("published/measurements_more.csv", "published/measurements_llm_more.csv")
SAMPLES = {"resnet": 50_000, "ssd": 24_781, "maskrcnn": 5_000, "gpt3": 5_760}
"""Samples of one evaluation by MLPerf's rules: ImageNet, OpenImages and COCO 2017 validation sets, C4 validation
subset of 11.6 million tokens in sequences of 2,048. 3D U-Net's sliding windows are not published as a number."""
DETECTION = ("ssd", "maskrcnn")
_OTHER_HARDWARE = re.compile("tpu|ipu|modelarts|cloudbrain|hls|gaudi|-nodes?-|spr", re.IGNORECASE)
_NODES = tuple(map(re.compile, (r"_n(\d+)(?:_|$)", r"_N(\d+)$", r"^(\d+)x[A-Z]", r"^(\d+)xa30")))
LEAST_S = 1.0
"""Start-ups below it are of logs without the time of launch."""


@dataclass(frozen=True, slots=True)
class Starts:
    """Start-ups: log seconds, log nodes, benchmark and submitter of every run."""

    log_s: Floats
    log_nodes: Floats
    benchmark: NDArray[np.str_]
    submitter: NDArray[np.str_]

    def __len__(self) -> int:
        return len(self.log_s)

    def chosen(self, kept: NDArray[np.bool_]) -> Starts:
        return Starts(self.log_s[kept], self.log_nodes[kept], self.benchmark[kept], self.submitter[kept])


def _logs(tables: Path) -> list[dict[str, str]]:
    with (tables / TABLE).open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def nodes_of(system: str) -> int:
    """The number of nodes in the name of a system ("dgxa100_n64_ngc21.09_mxnet"); 1 where it has none."""
    found = next((m for pattern in _NODES if (m := pattern.search(system))), None)
    return int(found[1]) if found else 1


def starts(tables: Path) -> Starts:
    """The start-ups of runs on GPUs."""
    kept = []
    for row in _logs(tables):
        system, seconds = row["result"].split("/")[0], float(row["init_s"])
        if row["benchmark"] != "minigo" and seconds > LEAST_S and not _OTHER_HARDWARE.search(system):
            kept.append((math.log(seconds), math.log(nodes_of(system)), row["benchmark"], row["submitter"].lower()))
    log_s, log_nodes, benchmark, submitter = zip(*kept, strict=True)
    return Starts(np.array(log_s), np.array(log_nodes), np.array(benchmark), np.array(submitter))


def _same(labels: NDArray[np.str_], others: NDArray[np.str_]) -> Floats:
    equal: Floats = (labels[:, None] == others[None, :]).astype(float)
    return equal


class _Mixed:
    """The line and the benchmarks' effects, given the three standard deviations of the log."""

    def __init__(self, runs: Starts, deviations: tuple[float, float, float]) -> None:
        kind, site, noise = deviations
        covariance = kind**2 * _same(runs.benchmark, runs.benchmark) + site**2 * _same(runs.submitter, runs.submitter)
        covariance += noise**2 * np.eye(len(runs))
        line = np.stack([np.ones(len(runs)), runs.log_nodes], axis=1)
        self.runs, self.deviations, self.covariance = runs, deviations, covariance
        lower = np.linalg.cholesky(covariance)
        white_line, white = np.linalg.solve(lower, line), np.linalg.solve(lower, runs.log_s)
        normal = white_line.T @ white_line
        self.line = np.linalg.solve(normal, white_line.T @ white)
        rest = white - white_line @ self.line
        self.surprise = float(np.log(np.diag(lower)).sum() + 0.5 * rest @ rest + 0.5 * np.linalg.slogdet(normal)[1])
        self.rest = runs.log_s - line @ self.line

    def effects(self) -> dict[str, tuple[float, float]]:
        """Of every benchmark: its mean and standard deviation, given the runs."""
        kind = self.deviations[0]
        names = np.unique(self.runs.benchmark)
        shared = kind**2 * _same(names, self.runs.benchmark)
        solved = np.linalg.solve(self.covariance, np.column_stack([self.rest, shared.T]))
        left = kind**2 - np.einsum("ij,ji->i", shared, solved[:, 1:])
        means = shared @ solved[:, 0]
        return {
            str(name): (round(float(mean), 4), round(math.sqrt(max(float(var), 0.0)), 4))
            for name, mean, var in zip(names, means, left, strict=True)
        }


def fitted_start_up(runs: Starts) -> StartUp:
    """The likeliest parameters."""
    from scipy.optimize import minimize

    def surprise(logs: Floats) -> float:
        return _Mixed(runs, _three(np.exp(logs))).surprise

    best = minimize(surprise, np.log([0.6, 0.5, 0.6]), method="Nelder-Mead", options={"xatol": 0.01, "fatol": 0.05})
    deviations = _three(np.exp(best.x).round(4))
    model = _Mixed(runs, deviations)
    log_s, per_log_node = (round(float(v), 4) for v in model.line)
    return StartUp(log_s, per_log_node, model.effects(), deviations, len(runs))


def _three(values: Floats) -> tuple[float, float, float]:
    kind, site, noise = (float(v) for v in values)
    return kind, site, noise


@dataclass(frozen=True, slots=True)
class Evaluated:
    """One run's evaluations beside the forward passes predicted for them."""

    benchmark: str
    gpus: int
    forward_s: float
    measured_s: float

    @property
    def samples(self) -> int:
        return SAMPLES[self.benchmark]


def _slug(text: str) -> str:
    return re.sub(r"[^a-z0-9.]+", "-", text.lower()).strip("-")


def evaluated(tables: Path) -> list[Evaluated]:
    """The runs whose job is known from a measured step."""
    logs: Mapping[str, dict[str, str]] = {
        f"mlperf-{row['round']}-{_slug(row['submitter'])}-{_slug(row['result'])}": row for row in _logs(tables)
    }
    return list(_evaluated(tables, logs))


def _evaluated(tables: Path, logs: Mapping[str, dict[str, str]]) -> Iterator[Evaluated]:
    for table in STEPS:
        for row in read_table(tables / table).rows:
            log = logs.get(row.id)
            if log is None or row.job is None or log["benchmark"] not in SAMPLES or not log["eval_median_s"]:
                continue
            measured_s = float(log["eval_median_s"])
            if measured_s > 0.0:
                evaluated = simulate_step(row.job, row.job.precision_spec, cluster_of(row.job), evaluates=True)
                forward_s = evaluation_forward_seconds(evaluated, row.job, SAMPLES[log["benchmark"]])
                yield Evaluated(log["benchmark"], row.job.gpus, forward_s, measured_s)


def fitted_evaluation(runs: list[Evaluated], *, on_host: bool) -> Evaluation:
    """The parameters by all runs; the spread is that of benchmarks which the others predict."""
    factor, host_s = _least_squares(runs, on_host)
    squares = []
    for name in sorted({r.benchmark for r in runs}):
        others, own = [r for r in runs if r.benchmark != name], [r for r in runs if r.benchmark == name]
        squares.append(float((_errors(own, *_least_squares(others, on_host)) ** 2).mean()))
    return Evaluation(factor, host_s, round(math.sqrt(sum(squares) / len(squares)), 4))


def _errors(runs: list[Evaluated], factor: float, host_s: float) -> Floats:
    """Logarithm of predicted over measured seconds."""
    errors: Floats = np.log([factor * r.forward_s + host_s * r.samples for r in runs])
    return errors - np.log([r.measured_s for r in runs])


def _least_squares(runs: list[Evaluated], on_host: bool) -> tuple[float, float]:
    """Factor and, `on_host`, seconds a sample, of least squares of the logarithm; benchmarks count equally."""
    from scipy.optimize import minimize

    _, of, count = np.unique([r.benchmark for r in runs], return_inverse=True, return_counts=True)
    weight = 1.0 / count[of]

    def loss(x: Floats) -> float:
        host_s = math.exp(x[1]) if on_host else 0.0
        return float((weight * _errors(runs, math.exp(x[0]), host_s) ** 2).sum())

    best = minimize(loss, [0.5, -6.5] if on_host else [0.5], method="Nelder-Mead").x
    return round(math.exp(best[0]), 4), round(math.exp(best[1]), 7) if on_host else 0.0


@dataclass(frozen=True, slots=True)
class Judged:
    """Predicted over measured seconds, and whether the measured ones lie in P10 to P90."""

    log_error: Floats
    inside: NDArray[np.bool_]

    def text(self) -> str:
        size = np.abs(self.log_error)
        return (
            f"off by a factor of {math.exp(float(np.median(size))):.2f} in the median, "
            f"{math.exp(float(np.quantile(size, 0.9))):.2f} in P90; in P10-P90 {self.inside.mean():.0%}"
        )


def judge_start_up(runs: Starts, by: str) -> Judged:
    """Start-ups by parameters that were fitted without their benchmark, or without their submitter."""
    labels: NDArray[np.str_] = getattr(runs, by)
    errors, inside = np.zeros(len(runs)), np.zeros(len(runs), dtype=np.bool_)
    for name in np.unique(labels):
        out = labels == name
        found = fitted_start_up(runs.chosen(~out))
        kind, site, noise = found.between
        for i in np.flatnonzero(out):
            effect, unsure = found.benchmarks.get(str(runs.benchmark[i]), (0.0, kind))
            middle = found.log_s + found.per_log_node * runs.log_nodes[i] + effect
            errors[i] = middle - runs.log_s[i]
            inside[i] = abs(errors[i]) <= Z90 * math.sqrt(unsure**2 + site**2 + noise**2)
    return Judged(errors, inside)


def judge_evaluations(runs: list[Evaluated]) -> dict[str, Judged]:
    """Evaluations of each benchmark by the parameters of the others of its kind."""
    judged = {}
    for name in sorted({r.benchmark for r in runs}):
        detects = name in DETECTION
        others = [r for r in runs if r.benchmark != name and (r.benchmark in DETECTION) == detects]
        if not others:
            continue
        own = [r for r in runs if r.benchmark == name]
        spread = fitted_evaluation(
            [r for r in runs if (r.benchmark in DETECTION) == detects], on_host=detects
        ).log_spread
        errors = _errors(own, *_least_squares(others, detects))
        judged[name] = Judged(errors, np.abs(errors) <= Z90 * spread)
    return judged


def run(tables: Path, judge_only: bool = False) -> None:
    """Fit and write the parameters; `judge_only`: print how they do held out."""
    runs, evaluations = starts(tables), evaluated(tables)
    if judge_only:
        for by in ("benchmark", "submitter"):
            print(f"start-up, held out by {by}: {judge_start_up(runs, by).text()} ({len(runs)} runs)")
        for name, judged in judge_evaluations(evaluations).items():
            print(f"evaluation of {name}, by the others of its kind: {judged.text()} ({len(judged.inside)} runs)")
        return
    found = RunParts(
        fitted_start_up(runs),
        fitted_evaluation([r for r in evaluations if r.benchmark not in DETECTION], on_host=False),
        fitted_evaluation([r for r in evaluations if r.benchmark in DETECTION], on_host=True),
    )
    content: dict[str, Any] = {
        "provenance": provenance("run_parts", tables / TABLE, len(runs)),
        "evaluations": len(evaluations),
        **found.to_dict(),
    }
    write_shipped(ROOT / PARAMETERS, json.dumps(content, indent=1) + "\n")
    run_parts.cache_clear()
    print(f"start-up {math.exp(found.start_up.log_s):.0f} s on one node", file=sys.stderr)
