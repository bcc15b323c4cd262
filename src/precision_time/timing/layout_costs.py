"""What whole steps of large models say beyond kernels and collectives: how fast a framework launches, overlap's cost.

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
    """What a framework does to the costs of its kernels.

    host      factor on every cost of its host, in place of what ranks on a node cost each other's
    traffic   factor on kernels that memory limits, its optimizer's apart
    """

    host: float = 1.0
    traffic: float = 1.0


@dataclass(frozen=True, slots=True)
class LayoutCosts:
    """host        framework -> factor on every cost of its host (custom autograd functions, checkpointing with random
                   states, timers between them: more Python per kernel than plain PyTorch)
    traffic        framework -> factor on kernels that memory limits: other releases of PyTorch, copies not traced
    host_power     how host and device share a pass in which neither is always ahead: (d^p + h^p)^(1/p) seconds of
                   device seconds d and host seconds h; the larger of both for a large p
    overlap        scale on how much compute slows beside communication (see `overlap`)
    network        node type -> share of its network's bandwidth that jobs get there; whole where nothing is known
    attention      kernel variant ("bwd.triton128") -> factor on its time
    """

    host: Mapping[str, float] = field(default_factory=dict)
    host_power: float = 20.0
    overlap: float = 1.0
    traffic: Mapping[str, float] = field(default_factory=dict)
    network: Mapping[str, float] = field(default_factory=dict)
    attention: Mapping[str, float] = field(default_factory=dict)

    def overhead(self, framework: str) -> FrameworkOverhead:
        """What a framework does to the costs of its kernels."""
        return FrameworkOverhead(float(self.host.get(framework, 1.0)), float(self.traffic.get(framework, 1.0)))

    def together(self, device_s: float, host_s: float) -> float:
        """Seconds of a pass that takes the device and the host so long."""
        larger, smaller = max(device_s, host_s), min(device_s, host_s)
        if larger <= 0.0:
            return 0.0
        power = self.host_power
        return float(larger * (1.0 + (smaller / larger) ** power) ** (1.0 / power))


@cache
def shipped_layout_costs() -> LayoutCosts:
    """Those that come with the package."""
    content = read_data("layout_scales.json").get("costs", {})
    return LayoutCosts(**content)
