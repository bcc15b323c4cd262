"""The factors between kernels and whole steps, and their fit to measured steps.

Kernel times come from kernel tables. Whole steps may only change a factor on each group of operator families, by dtype
class and architecture, and the factors of host, ranks and execution mode; Gaussian priors on the log factors shrink
them towards one and towards each other.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from precision_time.fit.cases import Case
from precision_time.fit.row_correlation import error_covariance
from precision_time.measurements.row import Row
from precision_time.timing.constants import StepConstants
from precision_time.timing.kernel_factors import NO_FACTORS, KernelFactors
from precision_time.timing.layout_costs import shipped_layout_costs
from precision_time.timing.step_factors import GROUPS, Openness, group_seconds, parts

Array = NDArray[np.float64]

EXECUTIONS = ("torchscript", "xla")
PRIOR = {"execution": 0.20, "host": 0.35, "ranks": 0.60}
NARROW = 0.15
"""Of the prior deviations of groups, where factors on kernels come first: chosen."""
DIFFERENCED = {"host": ("tensor",), "ranks": ("jitter", "host_contention")}
"""Factors whose slopes are finite differences, because their cost depends on what the device waits for."""


class Parameters:
    """The log factors as one vector: group, group x class, group x class x architecture, execution, host."""

    def __init__(self, keys: Sequence[tuple[str, str, str]], width: float = 1.0) -> None:
        self.keys, self.width = sorted(set(keys)), width
        names: dict[str, float] = {}
        for key in self.keys:
            names |= {name: prior * width for name, prior in parts(key).items()}
        for execution in EXECUTIONS:
            names[f"execution:{execution}"] = PRIOR["execution"]
        for part, factors in DIFFERENCED.items():
            names |= {f"{part}:{factor}": PRIOR[part] for factor in factors}
        self.names = list(names)
        self.prior = np.array(list(names.values()))
        self.index = {name: i for i, name in enumerate(self.names)}

    @property
    def architectures(self) -> list[str]:
        """Architectures with measured whole steps."""
        return sorted({arch for _, arch, _ in self.keys})

    def columns(self, group: str, arch: str, kind: str) -> list[int]:
        """Indices of the parameters whose sum is the log factor of a group on an architecture in a dtype class."""
        return [self.index[name] for name in sorted(parts((group, arch, kind))) if name in self.index]

    def constants(self, theta: Array, factors: KernelFactors = NO_FACTORS) -> StepConstants:
        """The factors as kernel timing reads them, on top of `factors`; architecture `*` stands for architectures
        without measured steps."""
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
        differenced: dict[str, Any] = {
            part: {factor: float(np.exp(theta[self.index[f"{part}:{factor}"]])) for factor in factors}
            for part, factors in DIFFERENCED.items()
        }
        return StepConstants(scales, execution, **differenced, layouts=shipped_layout_costs(), factors=factors)


@dataclass(frozen=True, slots=True, eq=False)
class Linear:
    """The last Gauss-Newton step: slopes of log(predicted) (rows x parameters), their target, and log residuals."""

    slopes: Array
    target: Array
    residual: Array


@dataclass(frozen=True, slots=True, eq=False)
class Fitted:
    """Log factors `theta` with their posterior covariance, and the last linear step of the fit."""

    parameters: Parameters
    theta: Array
    covariance: Array
    linear: Linear
    factors: KernelFactors = NO_FACTORS

    @property
    def constants(self) -> StepConstants:
        """The factors as kernel timing reads them."""
        return self.parameters.constants(self.theta, self.factors)

    @property
    def openness(self) -> Openness:
        """Posterior covariance of the kernel factors; host and execution have spreads of their own."""
        count = sum(1 for name in self.parameters.names if ":" not in name)
        return Openness(self.parameters.names[:count], self.covariance[:count, :count], self.parameters.width)


def fit(training: Sequence[Case], iterations: int = 6, factors: KernelFactors = NO_FACTORS) -> Fitted:
    """The most likely factors on top of `factors`, by Gauss-Newton on log(measured / predicted) with correlated errors.

    The slope of a group's factor is the share of the group in the step; slopes of host and ranks are finite
    differences. Stops when no log factor changes by 0.01, or after `iterations`.
    """
    plain = StepConstants(factors=factors)
    shares = [group_seconds(case.run(plain)[0], case.cluster.gpu.arch) for case in training]
    parameters = Parameters([key for share in shares for key in share], 1.0 if factors is NO_FACTORS else NARROW)
    rows, architectures = [case.row for case in training], [case.cluster.gpu.arch for case in training]
    theta = np.zeros(len(parameters.names))
    covariance = np.diag(parameters.prior**2)
    linear = Linear(np.zeros((len(training), len(theta))), np.zeros(len(training)), np.zeros(len(training)))
    for _ in range(iterations):
        slopes, residual = _linear(training, parameters.constants(theta, factors), parameters)
        linear = Linear(slopes, residual + slopes @ theta, residual)
        solution, covariance = _solved(parameters, rows, architectures, linear)
        change, theta = float(np.abs(solution - theta).max()), solution
        if change < 0.01:
            break
    return Fitted(parameters, theta, covariance, linear, factors)


def _solved(
    parameters: Parameters, rows: Sequence[Row], architectures: Sequence[str], linear: Linear
) -> tuple[Array, Array]:
    """The most likely log factors of a linear step, and their posterior covariance."""
    weight = np.linalg.inv(error_covariance(rows, architectures, linear.residual))
    covariance = np.linalg.inv(linear.slopes.T @ weight @ linear.slopes + np.diag(parameters.prior**-2))
    return covariance @ linear.slopes.T @ weight @ linear.target, np.asarray(covariance, dtype=np.float64)


def left_out(fitted: Fitted, training: Sequence[Case], groups: Sequence[int]) -> dict[int, Array]:
    """Change of log(predicted) of every training row without the rows of each group, by group.

    `groups[i]` is the group of row i. To first order: the last linear step is solved again without those rows, with the
    same slopes.
    """
    linear, changes = fitted.linear, {}
    for group in sorted(set(groups)):
        kept = [i for i, each in enumerate(groups) if each != group]
        if not kept:
            continue
        rest = Linear(linear.slopes[kept], linear.target[kept], linear.residual[kept])
        cases = [training[i] for i in kept]
        theta, _ = _solved(
            fitted.parameters, [case.row for case in cases], [case.cluster.gpu.arch for case in cases], rest
        )
        changes[group] = np.asarray(linear.slopes @ (theta - fitted.theta), dtype=np.float64)
    return changes


def _linear(training: Sequence[Case], constants: StepConstants, parameters: Parameters) -> tuple[Array, Array]:
    """Slopes of log(predicted) over the parameters, and log(measured / predicted), of every row."""
    slopes = np.zeros((len(training), len(parameters.names)))
    residual = np.zeros(len(training))
    for i, case in enumerate(training):
        timed, timeline = case.run(constants)
        residual[i] = np.log(case.row.measured_s / timeline.step_s)
        busy = 0.0
        for (group, arch, kind), seconds in group_seconds(timed, case.cluster.gpu.arch).items():
            slopes[i, parameters.columns(group, arch, kind)] += seconds / timeline.step_s
            busy += seconds
        if case.job.execution in EXECUTIONS:
            slopes[i, parameters.index[f"execution:{case.job.execution}"]] = busy / timeline.step_s
        # Where the device never waits for the host, the host's factor does not change the step.
        hosted, several = timeline.host_gap_s >= 0.002 * timeline.step_s, case.cluster.gpus > 1
        relevant = {"tensor": hosted, "jitter": several, "host_contention": several and hosted}
        for part, factors in DIFFERENCED.items():
            for factor in factors:
                if relevant[factor]:
                    slope = _difference(case, constants, part, factor, timeline.step_s)
                    slopes[i, parameters.index[f"{part}:{factor}"]] = slope
    return slopes, residual


def _difference(case: Case, constants: StepConstants, part: str, factor: str, step_s: float) -> float:
    """Slope of log(step) over the log of a factor, from a step with the factor 10 % larger."""
    values = getattr(constants, part)
    changed: dict[str, Any] = {part: {**values, factor: values[factor] * 1.1}}
    timeline = case.run(dataclasses.replace(constants, **changed))[1]
    return float(np.log(timeline.step_s / step_s) / np.log(1.1))
