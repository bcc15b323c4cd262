"""The few factors between kernels and whole steps, and how measured steps settle them.

The kernel models come from kernel tables; whole steps may only move factors on a group of families per architecture and
dtype class, shrunk towards zero and towards each other, and the factors of host and execution.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from precision_time.fit.cases import Case, run
from precision_time.timeline.simulate import simulate
from precision_time.timing.constants import StepConstants
from precision_time.timing.price import PricedProgram, price
from precision_time.timing.work import MEMORY_FAMILIES

Array = NDArray[np.float64]

_NORMS = ("batch_norm", "layer_norm", "group_norm", "softmax")
_INDEXED = ("embedding", "gather", "scatter", "sort")
GROUPS: dict[str, tuple[str, ...]] = {
    "conv.nchw": ("conv.nchw",),
    "conv.nhwc": ("conv.nhwc",),
    "conv_dilated": ("conv_dilated",),
    "grouped": ("conv_grouped", "conv_depthwise"),
    "matmul": ("matmul", "rnn"),
    "norm": _NORMS,
    "indexed": _INDEXED,
    "traffic": tuple(sorted(MEMORY_FAMILIES - {*_NORMS, *_INDEXED, "optimizer"})),
}
"""Families (with the layout where it matters) that share a factor. Attention and optimizer keep what tables say."""
_GROUP_OF = {family: group for group, families in GROUPS.items() for family in families}
EXECUTIONS = ("torchscript", "xla")
PRIOR = {"execution": 0.20, "host": 0.30}
GROUP_PRIOR = {
    "matmul": 0.05, "traffic": 0.08, "norm": 0.15, "conv": 0.25, "conv_dilated": 0.50, "grouped": 0.35, "indexed": 0.35,
}  # fmt: skip
"""Prior standard deviations of the log factors, set by what the kernel tables already measure: matrix products and
pointwise traffic are known to 5-10 %, norms by a published figure, half-precision convolutions by none. A factor's
dtype class and architecture may depart from the group by 0.7 and 0.5 of it."""
NOISE = 0.10
"""Standard deviation of log(measured) that the fit allows a row before shrinkage yields."""


class Parameters:
    """The log factors as one vector: group, group x class, group x class x architecture, execution, host."""

    def __init__(self, keys: Sequence[tuple[str, str, str]]) -> None:
        self.keys = sorted(set(keys))
        names: dict[str, float] = {}
        for group, arch, kind in self.keys:
            family = group.partition(".")[0]
            width = GROUP_PRIOR[family]
            names[family] = width
            names[group] = width if group == family else 0.7 * width
            names[f"{group}|{kind}"] = 0.7 * width
            names[f"{group}|{arch}|{kind}"] = 0.5 * width
        for execution in EXECUTIONS:
            names[f"execution:{execution}"] = PRIOR["execution"]
        for host in ("operator", "tensor"):
            names[f"host:{host}"] = PRIOR["host"]
        self.names = list(names)
        self.prior = np.array(list(names.values()))
        self.index = {name: i for i, name in enumerate(self.names)}

    @property
    def architectures(self) -> list[str]:
        """Those that whole steps were measured on."""
        return sorted({arch for _, arch, _ in self.keys})

    def columns(self, group: str, arch: str, kind: str) -> list[int]:
        """Parameters that add up to the log factor of a group on an architecture in a dtype class."""
        wanted = {group.partition(".")[0], group, f"{group}|{kind}", f"{group}|{arch}|{kind}"}
        return [self.index[name] for name in sorted(wanted) if name in self.index]

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
        host = {h: float(np.exp(theta[self.index[f"host:{h}"]])) for h in ("operator", "tensor")}
        return StepConstants(scales, execution, host)


def _keys(case: Case, priced: PricedProgram) -> dict[tuple[str, str, str], float]:
    """Seconds of the step by (group, architecture, dtype class)."""
    program = case.program
    times = np.zeros(len(program.kinds))
    for segment, repeats in (
        (program.micro, program.micro_steps),
        (program.accumulate, program.micro_steps - 1),
        (program.bucket_copies, program.synced_micro_steps),
        (program.tail, 1),
    ):
        if len(segment) and repeats > 0:
            times += np.bincount(segment.kind, minlength=len(times)) * repeats
    seconds = priced.work_s * times[priced.works.owner]
    found: dict[tuple[str, str, str], float] = {}
    table = priced.works.table
    for index, (family, variant, _, kind) in enumerate(table.classes):
        group = _GROUP_OF.get(family) or _GROUP_OF.get(f"{family}.{variant.rpartition('.')[2]}")
        if group is not None:
            key = (group, case.cluster.gpu.arch, kind)
            found[key] = found.get(key, 0.0) + float(seconds[table.class_of == index].sum())
    return found


def fit(training: Sequence[Case], iterations: int = 6) -> tuple[Parameters, Array]:
    """Gauss-Newton on log(measured / predicted) with the Gaussian prior.

    The slope of a group's factor is the group's share of the step; the host's slopes are differences.
    """
    plain = StepConstants()
    shares = [_keys(case, run(case, plain)[0]) for case in training]
    parameters = Parameters([key for share in shares for key in share])
    theta = np.zeros(len(parameters.names))
    for _ in range(iterations):
        constants = parameters.constants(theta)
        slopes = np.zeros((len(training), len(theta)))
        residual = np.zeros(len(training))
        for i, case in enumerate(training):
            priced, timeline = run(case, constants)
            residual[i] = np.log(case.row.measured_s / timeline.step_s)
            busy = 0.0
            for (group, arch, kind), seconds in _keys(case, priced).items():
                slopes[i, parameters.columns(group, arch, kind)] += seconds / timeline.step_s
                busy += seconds
            if case.job.execution in EXECUTIONS:
                slopes[i, parameters.index[f"execution:{case.job.execution}"]] = busy / timeline.step_s
            if timeline.host_gap_s < 0.002 * timeline.step_s:
                continue  # the device never waits for the host, so the host's factors do not move this row
            for host in ("operator", "tensor"):
                bent = dataclasses.replace(constants, host={**constants.host, host: constants.host[host] * 1.1})
                change = np.log(
                    simulate(price(case.program, case.cluster, case.options, case.job.execution, bent)).step_s
                    / timeline.step_s
                )
                slopes[i, parameters.index[f"host:{host}"]] = change / np.log(1.1)
        # rows far off say that the model lacks something, not that a factor is wrong: they pull less (Huber)
        robust = np.minimum(1.0, 0.3 / np.maximum(np.abs(residual), 1e-9))
        weight = np.array([c.weight for c in training]) * robust / NOISE**2
        left = (slopes * weight[:, None]).T @ slopes + np.diag(parameters.prior**-2)
        right = (slopes * weight[:, None]).T @ residual - theta / parameters.prior**2
        step = np.linalg.solve(left, right)
        theta = theta + step
        if float(np.abs(step).max()) < 0.01:
            break
    return parameters, theta
