"""One node type: its GPUs, the fabric between them, and its network."""

from __future__ import annotations

from dataclasses import dataclass

from precision_time.hardware.fields import check_noun


@dataclass(frozen=True)
class Node:
    name: str
    gpu_names: tuple[str, ...]
    """Catalog names of the GPUs that it is sold with; empty: any."""
    gpus_per_node: int
    intra: str
    """Fabric between the GPUs of one node."""
    inter: str | None = None
    """Fabric between nodes; None without a network."""
    nics: int = 0
    """Ports of `inter` on each node."""
    domain_gpus: int = 0
    """GPUs that share `intra`: more than one node's in a rack (GB200 NVL72: 4 to a tray, 72 to a domain).
    0: those of one node."""
    oversubscription: float = 1.0
    """Of the network: bandwidth below its leaf switches over that above them; 1 is non-blocking."""
    rail_optimised: bool = False
    """Whether GPU i of every node is wired to leaf switch i, rather than all GPUs of a node to one leaf."""
    gpus_per_leaf: int = 0
    """GPUs under one leaf switch, in a rail one of each node; 0: one leaf holds all."""
    clock_factor: float = 1.0
    """Speed of the same GPU here against its catalog entry (power limit, cooling, clocks)."""
    host_factor: float = 1.0
    """Host time (launching, data) here against the reference host, a DGX A100."""
    tdp_w: float | None = None
    """Power limit of the GPU here, where it is not the catalog entry's."""
    cores: int | None = None
    """CPU cores (not hardware threads); None: not known."""
    host_memory_bytes: int | None = None
    """Memory of the CPUs; None: not known."""
    host_bytes_per_s: float | None = None
    """Bandwidth of the memory of the CPUs; None: not known."""
    default_for: tuple[str, ...] = ()
    """GPUs for which this is the node when the job names none."""
    aliases: tuple[str, ...] = ()
    source: str = ""

    def __post_init__(self) -> None:
        if not self.domain_gpus:
            object.__setattr__(self, "domain_gpus", self.gpus_per_node)
        check_noun(self)

    def fits(self, gpu_name: str) -> bool:
        return not self.gpu_names or gpu_name in self.gpu_names
