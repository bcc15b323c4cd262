"""Fabrics between GPUs, the cluster that a job runs on, and the groups of ranks that communicate."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import ceil
from typing import Any

from precision_time.errors import CatalogError
from precision_time.hardware.fields import BUS, BUS_GPUS, NETWORK_KINDS, EntryField, check_noun, si_type
from precision_time.hardware.gpu import Gpu
from precision_time.hardware.node import Node

_BUS = si_type(EntryField(BUS, "bus bandwidth", factor=1e9))


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

    def __post_init__(self) -> None:
        check_noun(self)
        if self.is_network and not self.nic_bytes_per_s:
            raise CatalogError(f"Fabric {self.name!r}: nic_bytes_per_s is missing; give the rate of one port.")
        if not self.is_network and not self.bus_bytes_per_s_by_gpus:
            raise CatalogError(f"Fabric {self.name!r}: bus_bytes_per_s_by_gpus is empty; give one rate by GPUs.")
        for gpus, rate in self.bus_bytes_per_s_by_gpus.items():
            BUS_GPUS.entry(gpus, f"Fabric {self.name!r}: a number of GPUs of bus_bytes_per_s_by_gpus")
            _BUS.entry(rate, f"Fabric {self.name!r}: bus_bytes_per_s_by_gpus")

    @property
    def is_network(self) -> bool:
        return self.kind in NETWORK_KINDS

    @property
    def is_through_host(self) -> bool:
        """Whether messages pass through host memory; the time of a local copy is then negligible."""
        return self.kind in ("pcie", "shared-memory")

    @property
    def widens_with_gpus(self) -> bool:
        """Whether more GPUs have more bandwidth each: a mesh, in which every GPU brings links of its own."""
        rates = [rate for _, rate in sorted(self.bus_bytes_per_s_by_gpus.items())]
        return rates[-1] > rates[0]

    def bus_bytes_per_s(self, gpus: int) -> float:
        """Bus bandwidth of `gpus` GPUs: that of the largest tabulated count not above it."""
        table = self.bus_bytes_per_s_by_gpus
        return table[max((count for count in table if count <= gpus), default=min(table))]


@dataclass(frozen=True)
class Cluster:
    """`gpus` equal GPUs on `nodes` equal nodes, with the fabrics between them.

    The communicators of a job (tensor parallel, data parallel, ...) are `group`s of it. Nodes have equal shares of the
    GPUs, or, where `packed`, are filled one after another; then the last may hold fewer, and is taken to use its ports
    as a full one, so that one more GPU never makes the others faster.
    """

    gpu: Gpu
    node: Node
    intra: Fabric
    inter: Fabric | None
    gpus: int
    nodes: int
    packed: bool = False

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
        if self.gpus % self.nodes and not self.packed:
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
        """On the fullest node."""
        return min(self.gpus, self.node.gpus_per_node) if self.packed else self.gpus // self.nodes

    @property
    def domains(self) -> int:
        """Number of groups of GPUs that the intra fabric connects; the network connects the groups."""
        return ceil(self.nodes / max(1, self.node.domain_gpus // self.node.gpus_per_node))

    @property
    def nodes_per_domain(self) -> int:
        """Of the largest: domains have equal shares of the nodes (256 GPUs of NVL72 are four domains of 64)."""
        return ceil(self.nodes / self.domains)

    @property
    def gpus_per_domain(self) -> int:
        return min(self.gpus, self.gpus_per_node * self.nodes_per_domain)

    @property
    def world(self) -> Group:
        """All ranks as one communicator."""
        return self.group(self.gpus)

    def group(self, size: int, stride: int = 1) -> Group:
        """The communicator of `size` ranks, `stride` apart (tensor parallel: 1; data parallel: tp).

        The other groups of the same kind run at the same time; all share the network ports of each domain, and the
        host where messages pass through it.
        """
        if size < 1 or stride < 1 or size * stride > self.gpus:
            raise CatalogError(
                f"a group of {size} ranks {stride} apart does not fit in {self.gpus} GPUs;"
                f" use size x stride <= {self.gpus}."
            )
        local = max(1, min(size, self.gpus_per_domain // stride))
        domains = ceil(size / local)
        if size % domains == 0 and not (self.packed and size == self.gpus):
            local = size // domains
        group = Group(size, domains, self.intra, self.inter, active_per_domain=self.gpus_per_domain, fullest=local)
        if self.inter is None:
            return group
        shared = self.node.nics * self.nodes_per_domain * local / self.gpus_per_domain
        near = local * max(1.0, self.node.nics / self.node.gpus_per_node)  # a rank has no rings through others' ports
        rate = min(shared, near) * self.inter.nic_bytes_per_s * self.inter.efficiency
        group = replace(group, network_bytes_per_s=rate)
        return replace(group, **self._spine(group, stride)) if group.domains > 1 else group

    def _spine(self, group: Group, stride: int) -> dict[str, Any]:
        """The fields of `Group` that describe its traffic above the leaf switches."""
        leaf, rails = self.node.gpus_per_leaf, self.node.rail_optimised
        domains = group.domains
        nodes_under = leaf if rails else leaf // self.node.gpus_per_node  # a rail's leaf holds one GPU of each
        apart = max(self.gpus_per_domain, stride) // self.gpus_per_node  # nodes from one domain to the group's next
        under = min(domains, max(1, nodes_under // apart)) if leaf else domains
        local = group.ranks_per_domain
        outside = (domains - under) / (domains - 1)  # of the traffic to other domains, what leaves this leaf's
        # Equal local ranks meet under their rail's leaf; other pairs do not, unless NVLink carries them to the rail.
        other_rail = (local - 1) / local if rails else 0.0
        skewed = rails and stride > self.gpus_per_node and stride % self.gpus_per_node != 0
        by_nvlink = rails and not self.intra.is_through_host and not skewed
        return {
            "oversubscription": self.node.oversubscription,
            "neighbours_cross_spine": under < domains or skewed,
            "spine_share": 1.0 if skewed else outside + (1 - outside) * other_rail,
            "spine_share_by_nvlink": outside if by_nvlink else None,
        }


@dataclass(frozen=True)
class Group:
    """A communicator: `ranks` GPUs spread over `domains`, each of them joined by `intra`."""

    ranks: int
    domains: int
    intra: Fabric
    inter: Fabric | None = None
    network_bytes_per_s: float = 0.0
    """Bytes per second that this communicator's ranks in one domain send out of their ports, one direction."""
    oversubscription: float = 1.0
    """Bandwidth below the leaf switches over that above them."""
    neighbours_cross_spine: bool = False
    """Whether some neighbours in a ring or tree are under different leaf switches."""
    spine_share: float = 0.0
    """All-to-all: share of the network traffic above the leaf switches when each GPU sends through its own port."""
    spine_share_by_nvlink: float | None = None
    """The same when NVLink first carries a message to the GPU on the receiver's rail (NCCL's PXN); None: it cannot."""
    active_per_domain: int = 0
    """GPUs of a domain that communicate at the same time, in this communicator and others of the same kind."""
    fullest: int = 0
    """Ranks in the domain with the most; 0: in each the same number."""

    def __hash__(self) -> int:
        """By name: a fabric holds tables."""
        return hash((self.ranks, self.domains, self.intra.name, self.network_bytes_per_s))

    @property
    def ranks_per_domain(self) -> int:
        """In the domain with the most."""
        return self.fullest or self.ranks // self.domains

    @property
    def neighbour_bytes_per_s(self) -> float:
        """Bytes per second that a ring, a tree or a pipeline can send out of one domain."""
        return self.network_bytes_per_s / (self.oversubscription if self.neighbours_cross_spine else 1.0)

    @property
    def bus_bytes_per_s(self) -> float:
        """Bus bandwidth inside a domain; through a host, all groups of the domain share it."""
        alone = self.intra.bus_bytes_per_s(self.ranks_per_domain)
        if self.intra.is_through_host and self.active_per_domain > self.ranks_per_domain:
            return min(alone, self.intra.bus_bytes_per_s(self.active_per_domain))
        return alone

    @property
    def inside(self) -> Group:
        """The ranks of one domain."""
        return replace(self, ranks=self.ranks_per_domain, domains=1, fullest=0)

    @property
    def rail(self) -> Group:
        """The communicator of one rank in each domain, while those of the other ranks run at the same time."""
        rank_bytes_per_s = self.network_bytes_per_s / self.ranks_per_domain
        return replace(self, ranks=self.domains, network_bytes_per_s=rank_bytes_per_s, fullest=0)
