"""The bytes of a checkpoint and the seconds of writing one.

A checkpoint holds what is trained: weights, fp32 master weights and optimizer states. Ranks that hold the same values
write them once, so plain data parallelism has one writer, and every rank writes where the states are sharded.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

from precision_time.capture.graph import BYTES_PER_ELEMENT
from precision_time.capture.optimizer import rule
from precision_time.capture.training_step import TrainingStep
from precision_time.hardware.fabric import Cluster
from precision_time.hardware.storage import storage
from precision_time.job.job import Job
from precision_time.layout.sweeps import kept_states

GB_PER_S_PER_LANE = {1: 0.25, 2: 0.5, 3: 0.985, 4: 1.969, 5: 3.938, 6: 7.563}
"""PCI-SIG: by generation, after encoding."""
COPY_EFFICIENCY = 0.8
"""Share of the PCIe rate that copies to page-locked memory reach: assumed."""
_USUAL_GENERATION, _USUAL_LANES = 4, 16


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """One checkpoint of a job.

    nbytes    of all ranks together
    stops_s   seconds that training stops
    write_s   seconds until it is on the storage; None where no storage is named
    storage   its name
    """

    nbytes: int
    stops_s: float
    write_s: float | None = None
    storage: str | None = None


def checkpoint_bytes(step: TrainingStep, zero: int) -> int:
    """Of the values that are trained: weights, their moving average, masters and optimizer states.

    `zero`: the stage of ZeRO.
    """
    precision = step.precision
    masters = precision.master_weights
    # FSDP keeps the fp32 shard instead of half weights.
    weight = 0 if masters and zero >= 2 else BYTES_PER_ELEMENT[precision.parameter_dtype]
    states = rule(step.optimizer).state_bytes(BYTES_PER_ELEMENT[precision.state_dtype])
    trained = step.parameters * step.layers.trainable_share
    order = step.layers.order
    kept = kept_states(step, [(i, order.count(i)) for i in dict.fromkeys(order)], 1, 1)
    weight += BYTES_PER_ELEMENT[precision.parameter_dtype] if step.ema else 0
    return ceil(trained * (weight + (4 if masters else 0)) + (trained * states if kept is None else kept))


def checkpoint_of(job: Job, step: TrainingStep, cluster: Cluster) -> Checkpoint:
    """The checkpoint of a job; its time is what the job gives, else follows from the storage, else is 0."""
    nbytes = checkpoint_bytes(step, job.layout_spec.zero)
    given, name = job.run.checkpoint_s, job.run.checkpoint_storage
    if name is None:
        return Checkpoint(nbytes, given or 0.0)
    target, layout = storage(name), job.layout_spec
    writers = layout.tp * layout.pp * layout.shard_ranks
    nodes = ceil(writers / cluster.gpus_per_node)
    rate = min(writers * target.stream_bytes_per_s, target.bytes_per_s * (1 if target.shared else nodes))
    write_s = nbytes / rate + target.latency_s
    if given is not None:
        return Checkpoint(nbytes, given, write_s, target.name)
    if job.run.checkpoint_async:
        return Checkpoint(nbytes, min(nbytes / writers / _copy_rate(cluster), write_s), write_s, target.name)
    return Checkpoint(nbytes, write_s, write_s, target.name)


def _copy_rate(cluster: Cluster) -> float:
    """Bytes per second from a GPU to the host's memory."""
    generation, lanes = cluster.gpu.pcie_gen or _USUAL_GENERATION, cluster.gpu.pcie_lanes or _USUAL_LANES
    return COPY_EFFICIENCY * 1e9 * lanes * GB_PER_S_PER_LANE.get(generation, GB_PER_S_PER_LANE[6])
