"""The communicators of a program on a cluster, and the seconds of collectives in them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from precision_time.bounded_cache import bounded
from precision_time.hardware.fabric import Cluster, Group
from precision_time.layout.program import StepProgram
from precision_time.timing.collectives import shipped_seconds
from precision_time.timing.layout_costs import LayoutCosts
from precision_time.timing.measured_collectives import measured_collective
from precision_time.timing.overlap import overlap_slowdown


@dataclass(frozen=True, slots=True)
class Communicators:
    """Communicators by name. `overlap` scales the slowdown of compute beside their collectives."""

    groups: Mapping[str, Group]
    cluster: Cluster
    overlap: float

    @classmethod
    def of(cls, program: StepProgram, cluster: Cluster, costs: LayoutCosts) -> Communicators:
        share = costs.network.get(cluster.node.name, 1.0)
        groups = {
            name: _group(cluster, size, stride, share) for name, (size, stride) in program.groups.items() if size > 1
        }
        return cls(groups, cluster, costs.overlap)

    def seconds(self, group: str, collective: str, nbytes: float, copies: int = 0, spread: float = 1.0) -> float:
        """Seconds of a collective of `nbytes` per rank; 0 without such a communicator. `copies`, `spread`: as in
        `CollectiveOp`."""
        communicator = self.groups.get(group)
        if communicator is None or nbytes <= 0:
            return 0.0
        if copies:
            nbytes = nbytes * _sent_once(communicator, copies, spread)
        if self.cluster.gpu.calibration is not None and communicator.ranks == self.cluster.gpus:
            measured = measured_collective(collective, nbytes, self.cluster)
            if measured is not None:
                return float(measured.seconds)
        return shipped_seconds(collective, (float(nbytes),), communicator)[0]

    def seconds_of_each(self, group: str, collective: str, sizes: tuple[float, ...]) -> tuple[float, ...]:
        """Seconds of a collective for each of some sizes in bytes."""
        communicator = self.groups.get(group)
        if communicator is None or not any(sizes):
            return (0.0,) * len(sizes)
        if self.cluster.gpu.calibration is not None:
            return tuple([self.seconds(group, collective, nbytes) for nbytes in sizes])
        return shipped_seconds(collective, sizes, communicator)

    @property
    def measured(self) -> bool:
        """Whether `calibrate` timed all-reduces among all ranks of this node."""
        return measured_collective("all_reduce", 1.0, self.cluster) is not None

    def slowdown(self, group: str, collective: str) -> float:
        """Compute beside the collective over compute alone."""
        communicator = self.groups.get(group)
        return 1.0 if communicator is None else _slowed(self.cluster, communicator, collective, self.overlap)


@bounded()
def _group(cluster: Cluster, size: int, stride: int, share: float) -> Group:
    group = cluster.group(size, stride)
    return group if share == 1.0 else replace(group, network_bytes_per_s=share * group.network_bytes_per_s)


def _sent_once(group: Group, copies: int, spread: float) -> float:
    """Share of the `copies` of a token (one per expert) that is sent when each node (between nodes) or rank (within
    one) receives it once: the expected number of distinct nodes or ranks over `copies`, of experts that are evenly
    spread over a share of them (`spread`)."""
    places = max(1.0, spread * (group.domains if group.domains > 1 else group.ranks))
    return min(1.0, places * (1.0 - (1.0 - 1.0 / places) ** copies) / copies)


@bounded()
def _slowed(cluster: Cluster, group: Group, collective: str, scale: float) -> float:
    return overlap_slowdown(cluster, group, collective, scale).compute
