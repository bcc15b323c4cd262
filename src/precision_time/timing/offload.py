"""Seconds of what an offloaded job does on the host: copies over PCIe, updates by the CPUs, reads and writes of NVMe.

ZeRO-Offload (arXiv:2101.06840) copies gradients to the host behind the backward pass, updates there and copies weights
back while the next ones are updated. With weights on the host (ZeRO-Infinity, arXiv:2104.07857; FSDP's CPUOffload)
every pass fetches them, one layer ahead. States on NVMe are read and written behind the update.

The update is limited by the memory of the CPUs, which the ranks of a node share. ZeRO-Offload's Adam takes 2.57 s for
10 billion weights on a DGX-2 (its table 4; recalled), which is 117 GB/s of 256 at the 30 bytes that it moves for each.
"""

from __future__ import annotations

from dataclasses import dataclass

from precision_time.errors import JobError
from precision_time.hardware.fabric import Cluster
from precision_time.hardware.storage import storage
from precision_time.layout.program import StepProgram

UPDATE_EFFICIENCY = 0.46
"""Share of the host memory's bandwidth that an update reaches: 117 of 256 GB/s (see above)."""
HOST_BYTES_PER_S = 2e11
"""Bandwidth of the CPUs' memory of a node where the catalog has none: assumed, two sockets of the years since 2020."""
_LANE_BYTES_PER_S = {1: 2.5e8, 2: 5e8, 3: 9.85e8, 4: 1.969e9, 5: 3.938e9, 6: 7.563e9}
"""Of each PCIe generation, one way (PCI-SIG)."""
_PCIE_EFFICIENCY = 0.8
"""What a copy reaches of it: 25 of 31.5 GB/s is usual for generation 4 (bandwidthTest of CUDA's samples; recalled)."""
_USUAL_PCIE = (4, 16)
NVME = "nvme-gen4"
"""Storage of the catalog that each NVMe drive is taken as."""
WRITE_SHARE = 0.6
"""Rate of writing over that of reading of that drive (PM9A3: 4,100 and 6,900 MB/s; recalled)."""
GPUS_PER_DRIVE = 2
"""GPUs of a node to each drive, as in a DGX A100 (recalled)."""


@dataclass(frozen=True, slots=True)
class OffloadTimes:
    """What the GPU waits for in a step, and what the host holds.

    update_s    the update after the last backward pass, with what of its copies nothing hides
    forward_s, backward_s   waits of each micro-batch for weights, and for gradients to leave
    node_bytes  held by the host, or by its drives, of one node
    link_bytes_per_s, host_bytes_per_s   rate of one GPU's link, and of the update on one node
    """

    update_s: float = 0.0
    forward_s: float = 0.0
    backward_s: float = 0.0
    node_bytes: float = 0.0
    link_bytes_per_s: float = 0.0
    host_bytes_per_s: float = 0.0

    def notes(self, offload: str, host_memory_bytes: int | None) -> tuple[str, ...]:
        """Sentences on what the host holds and how fast it is taken to be. `offload`: the job's word."""
        where = "NVMe" if offload.endswith("nvme") else "host memory"
        node = f"{self.node_bytes / 2**30:,.0f} GiB"
        rates = f"{self.host_bytes_per_s / 1e9:.0f} GB/s of an update, {self.link_bytes_per_s / 1e9:.0f} of a link"
        notes = [f"offload {offload}: {node} of {where} a node; rates are assumed ({rates})"]
        if host_memory_bytes is not None and where != "NVMe" and self.node_bytes > host_memory_bytes:
            held = f"{host_memory_bytes / 2**30:,.0f} GiB"
            notes.append(f"the host memory of a node, {held}, does not hold {node}; take more nodes or {offload}-nvme")
        return tuple(notes)

    def copies_s(self, micro_batches: int) -> float:
        """Waits for copies in a step."""
        return micro_batches * (self.forward_s + self.backward_s)


NOT_OFFLOADED = OffloadTimes()


def offload_times(program: StepProgram, cluster: Cluster, forward_s: float, backward_s: float) -> OffloadTimes:
    """Of the stage that trains most; `forward_s` and `backward_s`: compute of a micro-batch that copies hide behind."""
    offload = program.offload
    if offload is None:
        return NOT_OFFLOADED
    gpu, node = cluster.gpu, cluster.node
    if gpu.device_type == "cpu":
        raise JobError(f"offload moves states from a GPU to its host, and {gpu.name} is a CPU; leave offload out")
    ranks = min(cluster.gpus, cluster.gpus_per_node)
    host = node.host_bytes_per_s or HOST_BYTES_PER_S
    generation, lanes = (gpu.pcie_gen, gpu.pcie_lanes) if gpu.pcie_gen in _LANE_BYTES_PER_S else _USUAL_PCIE
    link = min(_LANE_BYTES_PER_S[generation or 4] * (lanes or 16) * _PCIE_EFFICIENCY, host / ranks)
    trained, held = offload.trained_elements, offload.held_elements
    update_s = trained * ranks * offload.update_bytes / (host * UPDATE_EFFICIENCY)
    fetched = held * offload.weight_bytes / link if offload.parameters else 0.0
    if offload.nvme:
        drive = storage(NVME).bytes_per_s * max(1, node.gpus_per_node // GPUS_PER_DRIVE)
        states = trained * ranks * offload.state_bytes
        update_s = max(update_s, states / drive + states / (drive * WRITE_SHARE))
        if offload.parameters:
            fetched = max(fetched, held * ranks * offload.weight_bytes / drive)
    if not offload.parameters:  # new weights go back while the next ones are updated
        update_s = max(update_s, trained * offload.weight_bytes / link)
    gradients = trained * offload.gradient_bytes / link
    if not offload.reduces_each:
        update_s += max(gradients - backward_s, 0.0)
    kept = trained * (offload.state_bytes + offload.gradient_bytes) + held * offload.weight_bytes * offload.parameters
    return OffloadTimes(
        update_s,
        max(fetched - forward_s, 0.0),
        max(fetched + (gradients if offload.reduces_each else 0.0) - backward_s, 0.0),
        kept * ranks,
        link,
        host * UPDATE_EFFICIENCY,
    )
