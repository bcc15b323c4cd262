"""Fits the host's costs of operators to the seconds in which our H100's host launched training steps.

Writes `operator_us`, `view_us` and `step_us` of eager steps and the relative costs of `timing/data/host.json`; its
other numbers are set by hand there. `host_s` of `data/measured/h100/usage.csv` is the time until the host had launched
a step; it tells of the host alone where the host either never waited for the device or limited the step.
"""

from __future__ import annotations

import csv
import json
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from precision_time.capture.graph import Phase
from precision_time.capture.training_step import training_step
from precision_time.fit.cases import Case, case_of
from precision_time.fit.provenance import provenance
from precision_time.measurements.row import Row
from precision_time.measurements.table import read_table
from precision_time.shipped import ROOT, write_shipped
from precision_time.timing.constants import shipped
from precision_time.timing.host import RelativeCosts, kind_of
from precision_time.timing.parameters import read_data

Array = NDArray[np.float64]
STEPS, LAUNCHES = "measured/h100.csv", "measured/h100/usage.csv"
NEVER_WAITED, LIMITS = 0.85, 0.93
"""The host never waited if it had launched a step in this share of its time, and limits the step from the other one on,
where the device's predicted time is less than the former share: the launches of a step that ends with a wait for the
device take as long as the step, whichever of the two limits it. A loss scaler waits for the device in every step."""
RELATIVE = tuple(field.name for field in fields(RelativeCosts))
COSTS = ("operator", *RELATIVE, "view", "step")
USUAL_US = (24.0, 38.0, 96.0, 38.0, 52.0, 36.0, 5.0, 650.0)
"""Prior means in microseconds on the reference host (a DGX A100), in the order of `COSTS`: guesses."""
WIDTH, ERROR = 0.7, 0.15
"""Prior standard deviation of a cost over its mean; expected error of a step's launch time: chosen."""


@dataclass(frozen=True, slots=True, eq=False)
class Launched:
    """How often each of `COSTS` occurs in a step, the backward pass at its share, and the seconds they took, on the
    reference host."""

    counts: Array
    seconds: float


def run(tables: Path) -> None:
    """Fit the costs and write them."""
    steps = launched(tables)
    costs_us = fitted_us(steps)
    content = dict(read_data("host.json"))
    eager = {"operator_us": costs_us["operator"], "view_us": costs_us["view"], "step_us": costs_us["step"]}
    content["modes"] = {**content["modes"], "eager": {**content["modes"]["eager"], **eager}}
    content["relative"] = {name: round(costs_us[name] / costs_us["operator"], 2) for name in RELATIVE}
    content["fitted"] = provenance("host", tables / LAUNCHES, len(steps))
    path = ROOT / "timing" / "data" / "host.json"
    write_shipped(path, json.dumps(content, indent=1) + "\n")
    read_data.cache_clear()
    errors = errors_of(steps, costs_us)
    print(f"host: {len(steps)} steps, launch times {np.abs(errors).mean():.1%} off", file=sys.stderr)


def launched(tables: Path) -> list[Launched]:
    """The steps whose launch times tell of the host alone."""
    seconds = host_seconds(tables)
    found = []
    for row in read_table(tables / STEPS).rows:
        if row.job is None or row.id not in seconds or not tells_of_the_host(row, seconds[row.id]):
            continue
        case = case_of(row, row.job)
        if seconds[row.id] < NEVER_WAITED * row.measured_s or device_s(case) < NEVER_WAITED * row.measured_s:
            found.append(launched_step(case, seconds[row.id]))
    return found


def host_seconds(tables: Path) -> dict[str, float]:
    """Seconds until the host had launched a step, by the id of its row."""
    with (tables / LAUNCHES).open(encoding="utf-8", newline="") as file:
        lines = [(line["id"].removeprefix("timm:"), line["host_s"]) for line in csv.DictReader(file)]
    return {f"h100-{name}": float(seconds) for name, seconds in lines if seconds}


def tells_of_the_host(row: Row, seconds: float) -> bool:
    """Whether the host never waited for the device in a step, or limits it."""
    if row.job is None or row.job.execution != "eager":
        return False
    share = seconds / row.measured_s
    return share > LIMITS or (share < NEVER_WAITED and not row.job.precision_spec.loss_scaling)


def device_s(case: Case) -> float:
    """Predicted seconds in which the device works, by the shipped factors."""
    _, timeline = case.run(shipped())
    return timeline.step_s - timeline.host_gap_s


def launched_step(case: Case, seconds: float) -> Launched:
    """The counts of a step that the host launched in `seconds`."""
    timed, _ = case.run(shipped())
    share, counts = timed.host.backward_share, dict.fromkeys(COSTS, 0.0)
    layers = training_step(case.job).layers
    graph = layers.graph
    names = [kind.name for kind in graph.kinds]
    for number, times in Counter(layers.order).items():
        unit = layers.units[number]
        for index in (*unit.forward, *unit.backward):
            call = graph.calls[index]
            weight = times * (share if call.phase == Phase.BACKWARD else 1.0)
            counts[kind_of(names[call.kind]) or "operator"] += weight
            counts["view"] += weight * call.views
    counts["step"] = 1.0
    factor = case.cluster.node.host_factor
    sweeps_s = sum(tail.host_s for sweep in timed.sweeps for tail in sweep.tails)
    return Launched(np.array([counts[name] for name in COSTS], dtype=np.float64), (seconds - sweeps_s) / factor)


def fitted_us(steps: Sequence[Launched]) -> dict[str, float]:
    """The costs in microseconds by least squares on relative errors, large ones counted linearly, with the prior."""
    usual = np.array(USUAL_US)
    seconds = np.array([step.seconds for step in steps]) * 1e6
    counts = np.array([step.counts for step in steps]) / seconds[:, None]
    prior = np.diag(ERROR / (WIDTH * usual))
    costs = usual
    for _ in range(20):
        error = np.abs(counts @ costs - 1.0)
        weight = np.sqrt(ERROR / np.maximum(error, ERROR))
        left = np.vstack([counts * weight[:, None], prior])
        right = np.concatenate([weight, np.full(len(usual), ERROR / WIDTH)])
        costs = np.linalg.lstsq(left, right, rcond=None)[0]
    return {name: round(float(cost), 2) for name, cost in zip(COSTS, costs, strict=True)}


def errors_of(steps: Sequence[Launched], costs_us: dict[str, float]) -> Array:
    """log(predicted / measured) of the launch times."""
    costs = np.array([costs_us[name] for name in COSTS])
    return np.log([float(step.counts @ costs) * 1e-6 / step.seconds for step in steps])
