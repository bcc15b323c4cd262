"""Seconds the host needs to launch each operator. A GPU that finishes earlier waits: the step is launch-bound."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from precision_time.bounded_cache import bounded
from precision_time.capture.graph import Phase
from precision_time.hardware.calibration import HostFigures
from precision_time.layout.segment import OpSignatures, Segment
from precision_time.timing.parameters import read_data

Array = NDArray[np.float64]


_BACKWARD = int(Phase.BACKWARD)
WAIT_S = 20e-6
"""Seconds to read one number back from an idle device: copy, wait, return through Python. Assumed."""

LOOP = "pt.position_loop"
"""Operators that stand for a loop in Python, of which every kernel is an operator of its own, and each second one has
a view before it."""


PRODUCTS = frozenset({"aten.mm", "aten.addmm", "aten.bmm", "aten.baddbmm", "aten._scaled_mm"})


@dataclass(frozen=True, slots=True)
class RelativeCosts:
    """Host time of an operator over that of most others: of those whose modules have parameters and that ask a library
    for a kernel."""

    convolution: float = 1.0
    convolution_backward: float = 1.0
    batch_norm: float = 1.0
    batch_norm_backward: float = 1.0
    product: float = 1.0

    def of(self, operator: str) -> float:
        """Of an operator by its name."""
        kind = kind_of(operator)
        return 1.0 if kind is None else float(getattr(self, kind))


def kind_of(operator: str) -> str | None:
    """The field of `RelativeCosts` of an operator, if it has one."""
    if operator in PRODUCTS:
        return "product"
    backward = "_backward" if operator.endswith("_backward") else ""
    if operator.startswith("aten.convolution"):
        return f"convolution{backward}"
    return f"batch_norm{backward}" if "batch_norm" in operator else None


@dataclass(frozen=True, slots=True)
class HostCosts:
    """Seconds of host time: per operator (times its relative cost), per free view, per kernel after the first, per
    multi-tensor sweep and per tensor on its list, per tensor that a sweep handles one by one, and once a step (loop,
    gradients to None, batch to device). The backward pass is launched by C++, in `backward_share` of the time."""

    operator_s: float
    view_s: float
    kernel_s: float
    sweep_s: float
    list_s: float
    tensor_s: float
    step_s: float
    log_spread: float
    backward_share: float
    relative: RelativeCosts = RelativeCosts()

    def per_kind(self, kinds: OpSignatures, launches: NDArray[np.intp]) -> Array:
        """Host seconds of one call of each operator, without views."""
        relative = np.array([self.relative.of(name) for name in kinds.names], dtype=np.float64)
        seconds = self.operator_s * relative + self.kernel_s * np.maximum(launches - 1, 0)
        for i, name in enumerate(kinds.names):
            if name == "pt.sweep":
                kind = kinds[i]
                calls = kind.int_attr("host_calls", 1)
                listed = self.sweep_s + kind.int_attr("tensors", 1) * self.list_s
                seconds[i] = listed if calls == 1 else calls * self.tensor_s
                seconds[i] += kind.int_attr("host_waits", 0) * WAIT_S
            elif name.startswith(LOOP):
                seconds[i] = (self.operator_s + self.view_s / 2) * launches[i]
        return np.asarray(seconds, dtype=np.float64)

    def of(self, segment: Segment, per_kind: Array) -> Array:
        """Host seconds of every call of a segment."""
        seconds: Array = per_kind.take(segment.kind) + self.view_s * segment.views
        return np.where(segment.phase == _BACKWARD, seconds * self.backward_share, seconds)


@bounded()
def host_costs(execution: str, factor: float = 1.0) -> HostCosts:
    """Costs in an execution mode. `factor` multiplies every cost (node's host, contention)."""
    content = read_data("host.json")
    us = {key: value * 1e-6 * factor for key, value in content["modes"][execution].items()}
    return HostCosts(
        us["operator_us"],
        us["view_us"],
        us["kernel_us"],
        us["sweep_us"],
        us["list_us"],
        us["tensor_us"],
        us["step_us"],
        content["log_spread"],
        content["backward_share"],
        relative_costs(),
    )


def relative_costs() -> RelativeCosts:
    """The relative costs that ship with the package."""
    return RelativeCosts(**read_data("host.json")["relative"])


@bounded()
def measured_host_costs(host: HostFigures, execution: str, launches: bool = True) -> HostCosts:
    """A calibrated host: its measured costs in eager mode; other modes are the shipped costs times the ratio of its
    measured cost per operator to the shipped one. `launches`: the host launches kernels; false on a CPU, whose
    operators' own times have the rest."""
    content = read_data("host.json")
    if execution != "eager":
        factor = host.operator_us / content["modes"]["eager"]["operator_us"]
        return replace(host_costs(execution, factor), log_spread=max(host.log_spread, content["log_spread"]))
    return HostCosts(
        host.operator_us * 1e-6,
        host.view_us * 1e-6,
        host.kernel_us * 1e-6,
        host.sweep_us * 1e-6,
        host.list_us * 1e-6,
        host.tensor_us * 1e-6,
        host.step_us * 1e-6,
        host.log_spread,
        host.backward_share,
        relative_costs() if launches else RelativeCosts(),
    )
