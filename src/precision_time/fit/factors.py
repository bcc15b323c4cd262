"""The few factors between kernels and whole steps, and how measured steps settle them.

The kernel models come from kernel tables; whole steps may only move factors on a group of families per architecture and
dtype class, shrunk towards zero and towards each other, and the factors of host and execution.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from precision_time.fit.cases import Case, run
from precision_time.fit.row_correlation import between
from precision_time.measurements.row import Row
from precision_time.timing.constants import StepConstants
from precision_time.timing.step_factors import GROUPS, Openness, group_seconds, parts

Array = NDArray[np.float64]

EXECUTIONS = ("torchscript", "xla")
PRIOR = {"execution": 0.20, "host": 0.60, "ranks": 0.60}
BENT = {"host": ("operator", "tensor"), "ranks": ("jitter", "host_contention")}
"""Factors whose slopes are differences: what they cost depends on what the device waits for."""


class Parameters:
    """The log factors as one vector: group, group x class, group x class x architecture, execution, host."""

    def __init__(self, keys: Sequence[tuple[str, str, str]]) -> None:
        self.keys = sorted(set(keys))
        names: dict[str, float] = {}
        for key in self.keys:
            names |= parts(key)
        for execution in EXECUTIONS:
            names[f"execution:{execution}"] = PRIOR["execution"]
        for part, factors in BENT.items():
            names |= {f"{part}:{factor}": PRIOR[part] for factor in factors}
        self.names = list(names)
        self.prior = np.array(list(names.values()))
        self.index = {name: i for i, name in enumerate(self.names)}

    @property
    def architectures(self) -> list[str]:
        """Those that whole steps were measured on."""
        return sorted({arch for _, arch, _ in self.keys})

    def columns(self, group: str, arch: str, kind: str) -> list[int]:
        """Parameters that add up to the log factor of a group on an architecture in a dtype class."""
        return [self.index[name] for name in sorted(parts((group, arch, kind))) if name in self.index]

    def constants(self, theta: Array) -> StepConstants:
        """The factors as `price` reads them, with `*` architectures for those never seen."""
        scales: dict[str, float] = {}
        for group, families in GROUPS.items():
            for kind in ("fp64", "fp32", "tf32", "half", "fp8"):
                if group in self.index:
                    common = float(np.exp(theta[self.columns(group, "*", kind)].sum()))
                    scales |= {f"{family}|*|{kind}": common for family in families}
        for group, arch, kind in self.keys:
            factor = float(np.exp(theta[self.columns(group, arch, kind)].sum()))
            scales |= {f"{family}|{arch}|{kind}": factor for family in GROUPS[group]}
        execution = {e: float(np.exp(theta[self.index[f"execution:{e}"]])) for e in EXECUTIONS}
        bent: dict[str, Any] = {
            part: {factor: float(np.exp(theta[self.index[f"{part}:{factor}"]])) for factor in factors}
            for part, factors in BENT.items()
        }
        return StepConstants(scales, execution, **bent)


@dataclass(frozen=True, slots=True, eq=False)
class Linear:
    """The last linear step of a fit: slopes of log(predicted), what they are to add up to, how far rows were off."""

    slopes: Array
    target: Array
    residual: Array


@dataclass(frozen=True, slots=True, eq=False)
class Fitted:
    """Log factors, and their covariance once the training rows have spoken."""

    parameters: Parameters
    theta: Array
    covariance: Array
    linear: Linear

    @property
    def constants(self) -> StepConstants:
        return self.parameters.constants(self.theta)

    @property
    def openness(self) -> Openness:
        """What is left open of the kernels' factors; host and execution have spreads of their own."""
        count = sum(1 for name in self.parameters.names if ":" not in name)
        return Openness(self.parameters.names[:count], self.covariance[:count, :count])


def fit(training: Sequence[Case], iterations: int = 6) -> Fitted:
    """Gauss-Newton on log(measured / predicted): the most likely factors, where rows of a family err together.

    The slope of a group's factor is the group's share of the step; the host's slopes are differences.
    """
    plain = StepConstants()
    shares = [group_seconds(run(case, plain)[0], case.cluster.gpu.arch) for case in training]
    parameters = Parameters([key for share in shares for key in share])
    rows, architectures = [case.row for case in training], [case.cluster.gpu.arch for case in training]
    theta = np.zeros(len(parameters.names))
    covariance = np.diag(parameters.prior**2)
    linear = Linear(np.zeros((len(training), len(theta))), np.zeros(len(training)), np.zeros(len(training)))
    for _ in range(iterations):
        slopes, residual = _linear(training, parameters, theta)
        linear = Linear(slopes, residual + slopes @ theta, residual)
        found, covariance = _solved(parameters, rows, architectures, linear)
        change, theta = float(np.abs(found - theta).max()), found
        if change < 0.01:
            break
    return Fitted(parameters, theta, covariance, linear)


def _solved(
    parameters: Parameters, rows: Sequence[Row], architectures: Sequence[str], linear: Linear
) -> tuple[Array, Array]:
    """The most likely log factors of a linear step, and their covariance."""
    weight = np.linalg.inv(between(rows, architectures, linear.residual))
    covariance = np.linalg.inv(linear.slopes.T @ weight @ linear.slopes + np.diag(parameters.prior**-2))
    return covariance @ linear.slopes.T @ weight @ linear.target, np.asarray(covariance, dtype=np.float64)


def left_out(fitted: Fitted, training: Sequence[Case], groups: Sequence[int]) -> dict[int, Array]:
    """Group -> how log(predicted) of every training row would move, had the rows of that group not been among them.

    To first order: the last linear step of the fit is solved again without them, the slopes stay.
    """
    linear, found = fitted.linear, {}
    for group in sorted(set(groups)):
        kept = [i for i, each in enumerate(groups) if each != group]
        if not kept:
            continue
        rest = Linear(linear.slopes[kept], linear.target[kept], linear.residual[kept])
        cases = [training[i] for i in kept]
        theta, _ = _solved(
            fitted.parameters, [case.row for case in cases], [case.cluster.gpu.arch for case in cases], rest
        )
        found[group] = np.asarray(linear.slopes @ (theta - fitted.theta), dtype=np.float64)
    return found


def _linear(training: Sequence[Case], parameters: Parameters, theta: Array) -> tuple[Array, Array]:
    """Slopes of log(predicted) over the parameters, and log(measured / predicted), of every row."""
    constants = parameters.constants(theta)
    slopes = np.zeros((len(training), len(theta)))
    residual = np.zeros(len(training))
    for i, case in enumerate(training):
        timed, timeline = run(case, constants)
        residual[i] = np.log(case.row.measured_s / timeline.step_s)
        busy = 0.0
        for (group, arch, kind), seconds in group_seconds(timed, case.cluster.gpu.arch).items():
            slopes[i, parameters.columns(group, arch, kind)] += seconds / timeline.step_s
            busy += seconds
        if case.job.execution in EXECUTIONS:
            slopes[i, parameters.index[f"execution:{case.job.execution}"]] = busy / timeline.step_s
        # Where the device never waits for the host, the host's factors do not move the row.
        hosted, several = timeline.host_gap_s >= 0.002 * timeline.step_s, case.program.ranks > 1
        moved = {"operator": hosted, "tensor": hosted, "jitter": several, "host_contention": several and hosted}
        for part, factors in BENT.items():
            for factor in factors:
                if moved[factor]:
                    now = getattr(constants, part)
                    changed: dict[str, Any] = {part: {**now, factor: now[factor] * 1.1}}
                    bent = dataclasses.replace(constants, **changed)
                    change = np.log(run(case, bent)[1].step_s / timeline.step_s)
                    slopes[i, parameters.index[f"{part}:{factor}"]] = change / np.log(1.1)
    return slopes, residual
