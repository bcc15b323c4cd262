"""Factors fitted on whole steps of large models: launch cost of frameworks, slowdown beside collectives, networks.

`data/layout_scales.json` is written by `precision-time fit layouts`. Everything here is at its neutral value
without that file.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache

from precision_time.timing.parameters import read_data


@dataclass(frozen=True, slots=True)
class FrameworkOverhead:
    """Effect of a framework on host and kernel times.

    host          factor on every host cost with all GPUs of a node in use, in place of host contention; None: not
                  measured
    traffic       factor on memory-bound kernels except the optimizer's
    host_power    p in (d^p + h^p)^(1/p), the seconds of a pass with device seconds d and host seconds h, where a
                  framework synchronizes too often for its host to run ahead of the device; None: the host runs ahead
    """

    host: float | None = None
    traffic: float = 1.0
    host_power: float | None = None

    def pass_seconds(self, device_s: float, host_s: float) -> float:
        """Device seconds of a pass, including its wait for a host that does not run ahead."""
        larger, smaller = max(device_s, host_s), min(device_s, host_s)
        if self.host_power is None or larger <= 0.0:
            return device_s
        return float(larger * (1.0 + (smaller / larger) ** self.host_power) ** (1.0 / self.host_power))


@dataclass(frozen=True, slots=True)
class LayoutCosts:
    """host        framework -> factor on every cost of its host (custom autograd functions, checkpointing with random
                   states, timers between them: more Python per kernel than plain PyTorch)
    traffic        framework -> factor on kernels that memory limits: other releases of PyTorch, copies not traced
    host_power     framework -> p (see `FrameworkOverhead`)
    overlap        scale on how much compute slows beside communication (see `overlap`)
    network        node type -> share of its network's bandwidth that jobs get there; whole where nothing is known
    attention      kernel variant ("bwd.triton128"), or "variant|architecture" -> factor on its time
    kernels        architecture -> factor on the time of all kernels, where no table measures its kernels
    """

    host: Mapping[str, float] = field(default_factory=dict)
    host_power: Mapping[str, float] = field(default_factory=dict)
    overlap: float = 1.0
    traffic: Mapping[str, float] = field(default_factory=dict)
    network: Mapping[str, float] = field(default_factory=dict)
    attention: Mapping[str, float] = field(default_factory=dict)
    kernels: Mapping[str, float] = field(default_factory=dict)

    def overhead(self, framework: str) -> FrameworkOverhead:
        """The effect of a framework on host and kernel times."""
        traffic = float(self.traffic.get(framework, 1.0))
        return FrameworkOverhead(self.host.get(framework), traffic, self.host_power.get(framework))


@cache
def shipped_layout_costs() -> LayoutCosts:
    """The costs that ship with the package."""
    content = read_data("layout_scales.json").get("costs", {})
    return LayoutCosts(**content)
