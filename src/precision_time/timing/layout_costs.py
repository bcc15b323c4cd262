"""Factors fitted on whole steps of large models: launch cost of frameworks, slowdown beside collectives, networks.

`data/layout_scales.json` is written by `precision-time fit layouts`. Everything here is at its neutral value
without that file.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache

import numpy as np
from numpy.typing import NDArray

from precision_time.timing.parameters import read_data
from precision_time.timing.work import MATMUL
from precision_time.timing.work_table import WorkTable

Array = NDArray[np.float64]


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


ORIGINS = {"megatron-bridge": "megatron", "megatron-deepspeed": "megatron"}
"""Frameworks whose host runs another one's code: their training loop, layers and schedules are Megatron-LM's."""
ROWWISE = "rowwise"
"""Variant of products in fp8 with a scale for each row of an operand."""
NARROW, WIDE = 2048.0, 4096.0
"""Width of a matrix product up to which the factors of whole steps hold, and from which those of large models do: the
products of the steps that the former are fitted to are at most as wide as BERT-large's (1,024 by 4,096)."""


def wide(shape: Array) -> Array:
    """From 0 (narrow) to 1 (wide), linear in the logarithm of the width: the geometric mean of the two smaller of m, n
    and k, which are those of the weights unless there are few tokens. `shape`: (batch, m, n, k) of many works."""
    smallest = np.sort(shape[1:], axis=0)[:2]
    width = np.sqrt(np.maximum(smallest.prod(axis=0), 1.0))
    result: Array = np.clip(np.log(width / NARROW) / np.log(WIDE / NARROW), 0.0, 1.0)
    return result


@dataclass(frozen=True, slots=True)
class LayoutCosts:
    """host        framework, or where it has none the one of `ORIGINS` -> factor on every cost of its host (custom
                   autograd functions, checkpointing with random states, timers between them: more Python per kernel
                   than plain PyTorch)
    traffic        framework (see `ORIGINS`) -> factor on kernels that memory limits: fused ones, other releases of
                   PyTorch, copies not traced
    host_power     framework (see `ORIGINS`) -> p (see `FrameworkOverhead`)
    overlap        scale on how much compute slows beside communication (see `overlap`)
    network        node type -> share of its network's bandwidth that jobs get there; whole where nothing is known
    attention      kernel variant ("bwd.triton128"), or "variant|architecture" -> factor on its time
    kernels        architecture -> factor on the time of all kernels, where no table measures its kernels
    products       "architecture|dtype class" -> factor on the time of wide matrix products (see `wide`), or
                   "architecture|rowwise" of products that run other kernels (see `ROWWISE`), of any width
    """

    host: Mapping[str, float] = field(default_factory=dict)
    host_power: Mapping[str, float] = field(default_factory=dict)
    overlap: float = 1.0
    traffic: Mapping[str, float] = field(default_factory=dict)
    network: Mapping[str, float] = field(default_factory=dict)
    attention: Mapping[str, float] = field(default_factory=dict)
    kernels: Mapping[str, float] = field(default_factory=dict)
    products: Mapping[str, float] = field(default_factory=dict)

    def on_products(self, works: WorkTable, arch: str) -> Array | None:
        """The factor on every work of a table on an architecture; None where all are 1."""
        of_class = [
            self.products.get(f"{arch}|{ROWWISE if variant == ROWWISE else kind}", 1.0) if family == MATMUL else 1.0
            for family, variant, _, kind in works.classes
        ]
        if all(factor == 1.0 for factor in of_class):
            return None
        of_any_width = np.array([variant == ROWWISE for _, variant, _, _ in works.classes])[works.class_of]
        factors: Array = np.array(of_class)[works.class_of] ** np.where(of_any_width, 1.0, wide(works.shape))
        return factors

    def overhead(self, framework: str) -> FrameworkOverhead:
        """The effect of a framework on host and kernel times."""
        origin = ORIGINS.get(framework, framework)
        return FrameworkOverhead(
            self.host.get(framework, self.host.get(origin)),
            float(self.traffic.get(origin, 1.0)),
            self.host_power.get(origin),
        )


@cache
def shipped_layout_costs() -> LayoutCosts:
    """The costs that ship with the package."""
    content = read_data("layout_scales.json").get("costs", {})
    return LayoutCosts(**content)
