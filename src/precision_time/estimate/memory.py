"""Peak device memory of one rank, by category, and the temporaries of an optimizer's update."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from precision_time.capture.optimizer import BY_TENSOR, FEW_PASSES, rule
from precision_time.shipped import shipped_file

CPU_PROCESS_BYTES = 250 << 20
"""The interpreter, torch's libraries and oneDNN's workspaces of one process on a CPU, which has no context: assumed."""
WEIGHTS, GRADIENTS, STATES, MASTERS = "weights", "gradients", "optimizer states", "master weights"
ACTIVATIONS, COPIES, BUFFERS = "activations", "copies of weights", "communication buffers"
UPDATE, FRAMEWORK = "temporaries of the update", "framework and fragmentation"
PARAMETERS = "estimate/data/memory.json"
_ODDS_OF_P90 = math.log(9.0)
"""Log odds of 0.9, the 90th percentile of the standard logistic distribution."""
_MOST_ODDS = 700.0
"""Log odds above which `exp` overflows."""
_STRAY = 0.02
"""Share of batches that ran, or did not, against odds of 99 %: 2 to 3 % in benchmarks/results/memory.md."""


@dataclass(frozen=True, slots=True)
class MemoryParameters:
    """What a device holds beside live tensors, and how far a predicted peak is off (`precision-time fit memory`).

    process_bytes   what the driver keeps, the CUDA context, handles and workspaces of cuBLAS and cuDNN
    fragmentation   memory that PyTorch's caching allocator holds beyond live tensors, as a share of them
    log_scale       scale of the logistic distribution of log(peak), of a job on one GPU
    log_scale_many  the same of a job on several, whose buffers, shards and stages nobody measured
    """

    process_bytes: int
    fragmentation: float
    log_scale: float
    log_scale_many: float


@cache
def memory_parameters() -> MemoryParameters:
    """The parameters as shipped. Raises `DataError` where the file is not the one that was shipped."""
    values = json.loads(shipped_file(PARAMETERS).read_bytes())
    return MemoryParameters(*(values[name] for name in MemoryParameters.__slots__))


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes at the fullest moment of a step, by category, and the capacity of the device.

    stages         the categories of every pipeline stage, in order; empty with one stage (`by_category`: the fullest's)
    largest_batch  the largest micro-batch that fits, 0 where none does; None unless requested
    log_scale      scale of the logistic distribution of log(peak); 0: the peak is taken as certain
    """

    by_category: Mapping[str, int]
    capacity_bytes: int
    stages: tuple[Mapping[str, int], ...] = ()
    largest_batch: int | None = None
    log_scale: float = 0.0

    @property
    def peak_bytes(self) -> int:
        return sum(self.by_category.values())

    @property
    def allocated_bytes(self) -> int:
        """Of live tensors alone, as `torch.cuda.max_memory_allocated` counts; the rest is what the process and the
        allocator hold beside them."""
        return self.peak_bytes - self.by_category.get(FRAMEWORK, 0)

    @property
    def fits(self) -> bool:
        return self.peak_bytes <= self.capacity_bytes

    @property
    def peak_interval(self) -> tuple[int, int, int]:
        """P10, P50 and P90 of the peak, in bytes."""
        width = math.exp(_ODDS_OF_P90 * self.log_scale)
        return round(self.peak_bytes / width), self.peak_bytes, round(self.peak_bytes * width)

    @property
    def fit_probability(self) -> float:
        """How likely the job is to fit: one half or more where it `fits`. Other causes keep it from 0 and 1."""
        if not self.log_scale or not self.peak_bytes:
            return float(self.fits)
        odds = math.log(self.pressure) / self.log_scale
        return min(max(1.0 / (1.0 + math.exp(min(odds, _MOST_ODDS))), _STRAY), 1.0 - _STRAY)

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
            "allocated_bytes": self.allocated_bytes,
            "capacity_bytes": self.capacity_bytes,
            "peak_interval_bytes": dict(zip(("p10", "p50", "p90"), self.peak_interval, strict=True)),
            "fits": self.fits,
            "fit_probability": self.fit_probability,
            "log_scale": self.log_scale,
            "pressure": self.pressure,
            "stages": [dict(rows) for rows in self.stages],
        }
        return values if self.largest_batch is None else {**values, "largest_batch": self.largest_batch}

    @classmethod
    def from_dict(cls, given: Mapping[str, Any]) -> Memory:
        stages = tuple(dict(rows) for rows in given.get("stages", ()))
        largest, scale = given.get("largest_batch"), given.get("log_scale", 0.0)
        return cls(dict(given["by_category"]), given["capacity_bytes"], stages, largest, scale)


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
