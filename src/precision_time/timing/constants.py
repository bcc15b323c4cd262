"""Factors fitted on whole training steps: written by `fit.steps` and `fit.layouts`, read by `time_program`.

`factors` multiply compute, memory and helper time of kernels (see `KernelFactors`), `scales` all kernel time by
"family|arch|dtype class" (see `KernelModel`), `execution` that of an execution mode. `host` multiplies the host's cost
of a tensor, `ranks` jitter and host contention.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache, cached_property

from precision_time.timing.host import HostCosts
from precision_time.timing.kernel_factors import NO_FACTORS, KernelFactors
from precision_time.timing.kernels import KernelModel
from precision_time.timing.layout_costs import LayoutCosts, shipped_layout_costs
from precision_time.timing.parameters import read_data
from precision_time.timing.ranks import RankCosts, rank_costs


@dataclass(frozen=True, eq=False)
class StepConstants:
    """Factors between kernel tables and whole steps, and costs of frameworks and layouts."""

    scales: Mapping[str, float] = field(default_factory=dict)
    execution: Mapping[str, float] = field(default_factory=dict)
    host: Mapping[str, float] = field(default_factory=dict)
    ranks: Mapping[str, float] = field(default_factory=dict)
    layouts: LayoutCosts = field(default_factory=LayoutCosts)
    factors: KernelFactors = NO_FACTORS

    @cached_property
    def kernels(self) -> KernelModel:
        layouts = self.layouts
        attention = {
            f"attention.{variant}{'' if '|' in variant else '|*'}|*": factor
            for variant, factor in layouts.attention.items()
        }
        chips = {f"*|{arch}|*": factor for arch, factor in layouts.kernels.items()}
        return KernelModel(scales={**self.scales, **attention, **chips}, factors=self.factors)

    def execution_factor(self, execution: str) -> float:
        return float(self.execution.get(execution, 1.0))

    @property
    def rank_costs(self) -> RankCosts:
        return rank_costs(self.ranks.get("jitter", 1.0), self.ranks.get("host_contention", 1.0))

    def host_costs(self, costs: HostCosts) -> HostCosts:
        if not self.host:
            return costs
        return dataclasses.replace(costs, tensor_s=costs.tensor_s * self.host.get("tensor", 1.0))


@cache
def shipped() -> StepConstants:
    """The constants that ship with the package."""
    content = read_data("step_scales.json")
    parts = ("scales", "execution", "host", "ranks")
    scales, execution, host, ranks = (content.get(name, {}) for name in parts)
    return StepConstants(scales, execution, host, ranks, shipped_layout_costs(), KernelFactors.shipped())
