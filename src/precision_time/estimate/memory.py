"""Peak device memory of one rank, by category, from the captured lifetimes of every tensor."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from precision_time.capture.graph import Category, OpGraph
from precision_time.capture.optimizer import Tail
from precision_time.capture.training_step import TrainingStep

FRAMEWORK_BYTES = 600 << 20
"""CUDA context, cuBLAS/cuDNN handles and workspaces of one process; assumed,
between the 0.4 and 0.9 GiB that nvidia-smi commonly shows for an idle PyTorch process."""
CPU_PROCESS_BYTES = 250 << 20
"""The interpreter, torch's libraries and oneDNN's workspaces of one process on a CPU, which has no context: assumed."""
FRAGMENTATION = 0.05
"""Share of live tensors that PyTorch's caching allocator holds beyond them: assumed, to be calibrated on a device."""


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes at the fullest moment of a step, by category, against what the device has."""

    by_category: Mapping[str, int]
    capacity_bytes: int

    @property
    def peak_bytes(self) -> int:
        return sum(self.by_category.values())

    @property
    def fits(self) -> bool:
        return self.peak_bytes <= self.capacity_bytes

    @property
    def missing_bytes(self) -> int:
        """How much more the job needs than the device has (0 when it fits)."""
        return max(0, self.peak_bytes - self.capacity_bytes)


@lru_cache(maxsize=128)
def _peak_of_step(graph: OpGraph) -> tuple[int, int, int, int]:
    """Bytes of weights, activations and gradients at the call where their sum is largest, and of all gradients."""
    end = len(graph.calls) + 2
    live = np.zeros((len(Category), end + 1))
    for storage in graph.storages:
        born, dies = max(storage.born, 0), min(storage.dies, len(graph.calls)) + 1
        live[storage.category, born] += storage.nbytes
        live[storage.category, min(dies, end)] -= storage.nbytes
    level = np.cumsum(live, axis=1)
    at = int(level.sum(axis=0).argmax())
    weights = sum(s.nbytes for s in graph.storages if s.category is Category.WEIGHTS)
    working = level[Category.ACTIVATIONS, at] + level[Category.INPUTS, at]
    everything = sum(s.nbytes for s in graph.storages if s.category is Category.GRADIENTS)
    return weights, int(working), int(level[Category.GRADIENTS, at]), everything


def memory(
    step: TrainingStep, capacity_bytes: int, ranks: int, grad_accum: int, process_bytes: int = FRAMEWORK_BYTES
) -> Memory:
    """Peak by category for this step under plain data parallelism."""
    weights, working, gradients, all_gradients = _peak_of_step(step.graph)
    tail: Tail = step.tail
    if grad_accum > 1 or ranks > 1:
        gradients = all_gradients  # kept between micro-steps, or standing in DDP's buckets from the first backward on
    buckets = all_gradients if ranks > 1 else 0
    # foreach updates hold one more parameter-sized temporary, when the activations are gone
    temporary = all_gradients if any(kind.attr("host_calls") == 1 for _, kind in tail.operators) else 0
    live = weights + working + gradients
    at_update = weights + all_gradients + temporary
    if at_update > live:
        working, gradients = temporary, all_gradients
    rows = {
        "weights": weights,
        "gradients": gradients,
        "optimizer states": tail.state_bytes,
        "master weights": tail.master_bytes,
        "activations": working,
        "communication buffers": buckets,
    }
    held = sum(rows.values())
    rows["framework and fragmentation"] = process_bytes + int(FRAGMENTATION * held)
    return Memory({name: int(value) for name, value in rows.items()}, capacity_bytes)
