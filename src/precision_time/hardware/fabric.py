"""What joins GPUs, and the cluster that collectives run on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil

from precision_time.errors import CatalogError
from precision_time.hardware.gpu import Gpu
from precision_time.hardware.node import Node

INTRA_KINDS = ("nvlink", "nvswitch", "pcie", "shared-memory")
NETWORK_KINDS = ("infiniband", "roce", "ethernet", "efa")
KINDS = (*INTRA_KINDS, *NETWORK_KINDS)


@dataclass(frozen=True)
class Fabric:
    """A link type: a bus bandwidth per GPU inside a node; a line rate and an efficiency between nodes.

    Bus bandwidth is the nccl-tests figure for very large messages: what each GPU really sends, one direction.
    """

    name: str
    kind: str
    bus_bytes_per_s_by_gpus: Mapping[int, float]
    """Inside a node, by the number of GPUs that take part (a partial mesh or a PCIe tree is not flat)."""
    nic_bytes_per_s: float = 0.0
    """Between nodes: line rate of one port, one direction."""
    efficiency: float = 1.0
    """Between nodes: share of the line rate that a large all-reduce reaches."""
    nvls_bytes_per_s: float = 0.0
    """In-switch reduction: buffer bytes all-reduced per second; 0 where the switch cannot."""
    latency_scale: float = 1.0
    """Measured latency over NCCL's own constants."""
    hop_us: Mapping[str, float] | None = None
    """Latency of one hop by protocol (LL, LL128, Simple) where it is not the usual one of its kind."""
    ll128: bool = True
    """Whether NCCL may use the LL128 protocol here."""
    source: str = ""

    @property
    def is_network(self) -> bool:
        return self.kind in NETWORK_KINDS

    @property
    def is_through_host(self) -> bool:
        """Messages pass through host memory, so that a local copy costs nothing beside them."""
        return self.kind in ("pcie", "shared-memory")

    def bus_bytes_per_s(self, gpus: int) -> float:
        """Bus bandwidth of `gpus` GPUs: that of the largest tabulated count not above it."""
        table = self.bus_bytes_per_s_by_gpus
        return table[max((count for count in table if count <= gpus), default=min(table))]


@dataclass(frozen=True)
class Cluster:
    """`gpus` equal GPUs on `nodes` equal nodes: all that a collective needs to know.

    The communicators inside a job (tensor parallel, data parallel, ...) are `group`s of it.
    """

    gpu: Gpu
    node: Node
    intra: Fabric
    inter: Fabric | None
    gpus: int
    nodes: int

    def __post_init__(self) -> None:
        if self.gpus < 1 or self.nodes < 1:
            raise CatalogError(f"gpus={self.gpus}, nodes={self.nodes}: both must be at least 1.")
        if self.nodes > self.gpus:
            raise CatalogError(f"{self.nodes} nodes for {self.gpus} GPUs: use at most one node per GPU.")
        if self.gpus > self.nodes * self.node.gpus_per_node:
            raise CatalogError(
                f"{self.gpus} GPUs do not fit on {self.nodes} x {self.node.name}"
                f" with {self.node.gpus_per_node} GPUs each;"
                f" use nodes={ceil(self.gpus / self.node.gpus_per_node)} or leave nodes out."
            )
        if self.gpus % self.nodes:
            raise CatalogError(
                f"{self.gpus} GPUs cannot be shared equally by {self.nodes} nodes; use a multiple of nodes."
            )
        if self.domains > 1 and self.inter is None:
            raise CatalogError(
                f"node {self.node.name} has no network between nodes, so {self.gpus} GPUs on {self.nodes}"
                f" nodes cannot talk; use at most {self.node.gpus_per_node} GPUs or a node with `inter`."
            )

    def __hash__(self) -> int:
        """By name: the fields hold tables."""
        return hash((self.gpu.name, self.node.name, self.gpus, self.nodes))

    @property
    def gpus_per_node(self) -> int:
        return self.gpus // self.nodes

    @property
    def domains(self) -> int:
        """Groups of GPUs that the intra fabric joins; the network joins the groups."""
        nodes_per_domain = max(1, self.node.domain_gpus // self.node.gpus_per_node)
        domains = ceil(self.nodes / nodes_per_domain)
        while self.nodes % domains:  # equal shares: 256 GPUs of NVL72 are four domains of 64
            domains += 1
        return domains

    @property
    def gpus_per_domain(self) -> int:
        return self.gpus // self.domains

    @property
    def world(self) -> Group:
        """All ranks as one communicator."""
        return self.group(self.gpus)

    def group(self, size: int, stride: int = 1) -> Group:
        """The communicator of `size` ranks, `stride` apart (tensor parallel: 1; data parallel: tp).

        The groups like it run at the same time and share the network ports of each domain.
        """
        if size < 1 or stride < 1 or size * stride > self.gpus:
            raise CatalogError(
                f"a group of {size} ranks {stride} apart does not fit in {self.gpus} GPUs;"
                f" use size x stride <= {self.gpus}."
            )
        local = _largest_divisor(size, max(1, min(size, self.gpus_per_domain // stride)))
        network = 0.0
        if self.inter is not None:
            ports = self.node.nics * self.nodes / self.domains * local / self.gpus_per_domain
            network = ports * self.inter.nic_bytes_per_s * self.inter.efficiency
        return Group(size, size // local, self.intra, self.inter, network)


@dataclass(frozen=True)
class Group:
    """A communicator: `ranks` GPUs spread evenly over `domains`, each of them joined by `intra`."""

    ranks: int
    domains: int
    intra: Fabric
    inter: Fabric | None = None
    network_bytes_per_s: float = 0.0
    """What this communicator's ranks in one domain may send out per second, one direction."""

    def __hash__(self) -> int:
        """By name: a fabric holds tables."""
        return hash((self.ranks, self.domains, self.intra.name, self.network_bytes_per_s))

    @property
    def ranks_per_domain(self) -> int:
        return self.ranks // self.domains


def _largest_divisor(number: int, limit: int) -> int:
    return next(part for part in range(limit, 0, -1) if number % part == 0)
