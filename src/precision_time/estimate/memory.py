"""Peak device memory of one rank, by category, and the temporaries of an optimizer's update."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from precision_time.capture.optimizer import BY_TENSOR, FEW_PASSES, rule

FRAMEWORK_BYTES = 600 << 20
"""Bytes of CUDA context, cuBLAS/cuDNN handles and workspaces of one process: assumed, between the 0.4 and 0.9 GiB that
nvidia-smi commonly shows for an idle PyTorch process."""
CPU_PROCESS_BYTES = 250 << 20
"""The interpreter, torch's libraries and oneDNN's workspaces of one process on a CPU, which has no context: assumed."""
WEIGHTS, GRADIENTS, STATES, MASTERS = "weights", "gradients", "optimizer states", "master weights"
ACTIVATIONS, COPIES, BUFFERS = "activations", "copies of weights", "communication buffers"
UPDATE, FRAMEWORK = "temporaries of the update", "framework and fragmentation"
FRAGMENTATION = 0.05
"""Memory that PyTorch's caching allocator holds beyond live tensors, as a share of them: assumed."""


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes at the fullest moment of a step, by category, and the capacity of the device.

    stages         the categories of every pipeline stage, in order; empty with one stage (`by_category`: the fullest's)
    largest_batch  the largest micro-batch that fits, 0 where none does; None unless requested
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
        """Peak over capacity. Near 1 PyTorch's allocator frees its cache and retries, which times do not include."""
        return self.peak_bytes / self.capacity_bytes

    @property
    def stage_peaks(self) -> tuple[int, ...]:
        return tuple(sum(rows.values()) for rows in self.stages)

    @property
    def missing_bytes(self) -> int:
        """Bytes that the job needs beyond the capacity (0 when it fits)."""
        return max(0, self.peak_bytes - self.capacity_bytes)

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values; `from_dict` reads them back."""
        values: dict[str, Any] = {
            "by_category": dict(self.by_category),
            "peak_bytes": self.peak_bytes,
            "capacity_bytes": self.capacity_bytes,
            "fits": self.fits,
            "pressure": self.pressure,
            "stages": [dict(rows) for rows in self.stages],
        }
        return values if self.largest_batch is None else {**values, "largest_batch": self.largest_batch}

    @classmethod
    def from_dict(cls, given: Mapping[str, Any]) -> Memory:
        stages = tuple(dict(rows) for rows in given.get("stages", ()))
        return cls(dict(given["by_category"]), given["capacity_bytes"], stages, given.get("largest_batch"))


def update_bytes(optimizer: str, implementation: str, elements: float, largest: float, width: int) -> float:
    """Bytes of temporaries of an update. `elements`: of all tensors, `largest`: of the largest, `width`: bytes of an
    element.

    Adam and similar optimizers take the square root of the second moment: foreach implementations of all tensors at
    once, others of one tensor at a time, with its quotient. Other optimizers add the weight decay to a copy of the
    gradient. Fused kernels need none.
    """
    passes = rule(optimizer).passes
    if implementation in FEW_PASSES or not passes:
        return 0.0
    if implementation not in BY_TENSOR:
        return width * elements
    return width * largest * (2 if any(p.name == "sqrt" for p in passes) else 1)
