"""Peak device memory of one rank, by category, from the captured lifetimes of every tensor."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from precision_time.capture.graph import BYTES_PER_ELEMENT, Category, OpGraph, Storage
from precision_time.capture.optimizer import BY_TENSOR, FEW_PASSES, Tail, rule
from precision_time.capture.training_step import TrainingStep

FRAMEWORK_BYTES = 600 << 20
"""CUDA context, cuBLAS/cuDNN handles and workspaces of one process; assumed,
between the 0.4 and 0.9 GiB that nvidia-smi commonly shows for an idle PyTorch process."""
CPU_PROCESS_BYTES = 250 << 20
"""The interpreter, torch's libraries and oneDNN's workspaces of one process on a CPU, which has no context: assumed."""
WEIGHTS, GRADIENTS, STATES, MASTERS = "weights", "gradients", "optimizer states", "master weights"
ACTIVATIONS, COPIES, BUFFERS = "activations", "copies of weights", "communication buffers"
UPDATE, FRAMEWORK = "temporaries of the update", "framework and fragmentation"
FRAGMENTATION = 0.05
"""Share of live tensors that PyTorch's caching allocator holds beyond them: assumed, to be calibrated on a device."""


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes at the fullest moment of a step, by category, against what the device has.

    stages         the same of every pipeline stage, in order; empty where there is one (`by_category` is the fullest's)
    largest_batch  the largest micro-batch that fits, 0 where none does; None unless it was asked for
    """

    by_category: Mapping[str, int]
    capacity_bytes: int
    stages: tuple[Mapping[str, int], ...] = ()
    largest_batch: int | None = None

    @property
    def peak_bytes(self) -> int:
        return sum(self.by_category.values())

    @property
    def fits(self) -> bool:
        return self.peak_bytes <= self.capacity_bytes

    @property
    def pressure(self) -> float:
        """Expected reserved memory over what there is. Near 1 PyTorch's allocator frees its cache and tries again."""
        return self.peak_bytes / self.capacity_bytes

    @property
    def stage_peaks(self) -> tuple[int, ...]:
        return tuple(sum(rows.values()) for rows in self.stages)

    @property
    def missing_bytes(self) -> int:
        """How much more the job needs than the device has (0 when it fits)."""
        return max(0, self.peak_bytes - self.capacity_bytes)

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values; `from_dict` reads them back."""
        found: dict[str, Any] = {
            "by_category": dict(self.by_category),
            "peak_bytes": self.peak_bytes,
            "capacity_bytes": self.capacity_bytes,
            "fits": self.fits,
            "pressure": self.pressure,
            "stages": [dict(rows) for rows in self.stages],
        }
        return found if self.largest_batch is None else {**found, "largest_batch": self.largest_batch}

    @classmethod
    def from_dict(cls, given: Mapping[str, Any]) -> Memory:
        stages = tuple(dict(rows) for rows in given.get("stages", ()))
        return cls(dict(given["by_category"]), given["capacity_bytes"], stages, given.get("largest_batch"))


@dataclass(frozen=True, slots=True)
class _Level:
    """Bytes by category at one call."""

    weights: int
    copies: int
    activations: int
    gradients: int


@lru_cache(maxsize=128)
def _peak_of_step(graph: OpGraph, standing: bool) -> tuple[_Level, int]:
    """The call at which most is alive, and the bytes of all gradients. `standing`: gradients are there all the time."""
    end = len(graph.calls) + 2
    copy = len(Category)
    live = np.zeros((copy + 1, end + 1))
    for storage in graph.storages:
        row = copy if _is_copy_of_weights(graph, storage) else int(storage.category)
        born, dies = max(storage.born, 0), min(storage.dies, len(graph.calls)) + 1
        live[row, born] += storage.nbytes
        live[row, min(dies, end)] -= storage.nbytes
    level = np.cumsum(live, axis=1)
    total = {category: sum(s.nbytes for s in graph.storages if s.category is category) for category in Category}
    if standing:
        level[Category.GRADIENTS] = total[Category.GRADIENTS] + _added(graph, end + 1)
    at = int(level.sum(axis=0).argmax())
    gradients = total[Category.GRADIENTS] if standing else int(level[Category.GRADIENTS, at])
    working = int(level[: copy + 1, at].sum() - level[Category.WEIGHTS, at] - level[copy, at])
    working -= int(level[Category.GRADIENTS, at])
    more = int(level[Category.GRADIENTS, at]) - gradients
    return _Level(total[Category.WEIGHTS], int(level[copy, at]), working + more, gradients), total[Category.GRADIENTS]


def _added(graph: OpGraph, length: int) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """Bytes of new gradients while they are added to those that stand: each is there for one call."""
    found = np.zeros(length)
    for storage in graph.storages:
        if storage.category is Category.GRADIENTS and storage.born >= 0:
            found[storage.born] += storage.nbytes
    return found


def _is_copy_of_weights(graph: OpGraph, storage: Storage) -> bool:
    """Casts of weights, which autocast keeps until its region ends, and the backward pass until it has used them."""
    if storage.category is not Category.ACTIVATIONS or not 0 <= storage.born < len(graph.calls):
        return False
    call = graph.calls[storage.born]
    read = [graph.storages[r].category for r in call.reads]
    cast = graph.kinds[call.kind].name == "aten._to_copy"
    return cast and bool(read) and all(category is Category.WEIGHTS for category in read)


def memory(
    step: TrainingStep, capacity_bytes: int, ranks: int, grad_accum: int, process_bytes: int = FRAMEWORK_BYTES
) -> Memory:
    """Peak by category for this step under plain data parallelism."""
    # Between the micro-steps of a step gradients stay; of one micro-step they come and go (zero_grad's set_to_none).
    most, gradients = _peak_of_step(step.graph, grad_accum > 1)
    tail: Tail = step.tail
    lasting = {
        WEIGHTS: most.weights,
        STATES: tail.state_bytes,
        MASTERS: tail.master_bytes,
        BUFFERS: gradients if ranks > 1 else 0,  # DDP's buckets, which gradients are copied into
    }
    moment = {COPIES: most.copies, ACTIVATIONS: most.activations, GRADIENTS: most.gradients}
    update = {GRADIENTS: gradients, UPDATE: int(_update_bytes(step))}
    if sum(update.values()) > sum(moment.values()):
        moment = update
    order = (WEIGHTS, COPIES, GRADIENTS, STATES, MASTERS, ACTIVATIONS, BUFFERS, UPDATE)
    rows = {name: int(lasting.get(name, 0) + moment.get(name, 0)) for name in order}
    rows[FRAMEWORK] = process_bytes + int(FRAGMENTATION * sum(rows.values()))
    return Memory(rows, capacity_bytes)


def _update_bytes(step: TrainingStep) -> float:
    sizes = [p.numel for p in step.graph.parameters if p.trainable and p.ready >= 0]
    copied = any(kind.attr("label") == "master_gradients" for _, kind in step.tail.operators)
    how = step.implementation or ("fused" if step.precision.master_weights else "foreach")
    width = BYTES_PER_ELEMENT[step.precision.state_dtype]
    largest = max(sizes, default=0)
    return (4 if copied else 0) * sum(sizes) + update_bytes(step.optimizer, how, sum(sizes), largest, width)


def update_bytes(optimizer: str, implementation: str, elements: float, largest: float, width: int) -> float:
    """Temporaries of an update over so many elements, with the largest tensor's and the bytes of one.

    Adam and its kin make the square root of the second moment: torch's foreach of all tensors at once, else of one at
    a time and its quotient beside it. Others add the weight decay to a copy of the gradient. Fused kernels need none.
    """
    passes = rule(optimizer).passes
    if implementation in FEW_PASSES or not passes:
        return 0.0
    if implementation not in BY_TENSOR:
        return width * elements
    return width * largest * (2 if any(p.name == "sqrt" for p in passes) else 1)
