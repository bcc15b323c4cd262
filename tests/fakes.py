"""A stand-in for an Estimate, with round numbers that a reader can check, and invented calibrated devices."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from precision_time.hardware import Catalog, Gpu, Rental, default_catalog
from precision_time.hardware.calibration import KERNEL_COLUMNS
from precision_time.job import Job
from precision_time.timing.work import CONVOLUTION_FEATURES, Work, matmul_work, memory_work

BREAKDOWN = {
    "forward": 0.030,
    "backward": 0.050,
    "optimizer": 0.010,
    "loss_scaling": 0.0,
    "casts": 0.0,
    "host_gaps": 0.0,
    "communication_exposed": 0.010,
}


@dataclass(frozen=True)
class FakeInterval:
    p10: float
    p50: float
    p90: float

    def __float__(self) -> float:
        return float(self.p50)


@dataclass(frozen=True)
class FakeMemory:
    peak_bytes: float = 10 * 2**30
    capacity_bytes: float = 40 * 2**30

    @property
    def fits(self) -> bool:
        return self.peak_bytes <= self.capacity_bytes


@dataclass(frozen=True)
class FakeEstimate:
    """100 samples per GPU and step, 0.1 s in all, unless the job and `breakdown` say otherwise."""

    job: Job
    breakdown: Mapping[str, float] = field(default_factory=lambda: dict(BREAKDOWN))
    memory: FakeMemory = FakeMemory()
    bound_shares: Mapping[str, float] = field(default_factory=dict)
    communication_hidden_s: float = 0.005
    epoch: FakeInterval | None = None
    run: FakeInterval | None = None
    cost_usd: float | FakeInterval | None = None
    rental: Rental | None = None
    utilisation: None = None
    quantile: None = None
    assumptions: tuple[str, ...] = ()

    @property
    def step(self) -> FakeInterval:
        total = sum(self.breakdown.values())
        return FakeInterval(0.9 * total, total, 1.2 * total)

    @property
    def samples_per_s(self) -> float:
        return (self.job.batch_size or 100) * self.job.grad_accum * self.job.gpus / self.step.p50

    def to_dict(self) -> dict[str, Any]:
        return {"job": self.job.to_dict(), "step_s": self.step.p50}

    def trace_events(self) -> dict[str, Any]:
        return {"traceEvents": []}

    def __str__(self) -> str:
        return f"fake estimate of {self.job.signature()}"


def fake(job: Job, **terms: float) -> FakeEstimate:
    """The usual fake with some terms of the breakdown changed."""
    return FakeEstimate(job, breakdown={**BREAKDOWN, **terms})


def kernel_row(operator: str, work: Work, seconds: float, spread: float = 0.02) -> list[Any]:
    """One row of a calibration's `kernels`: an operator timed as that work."""
    extra = (dict(work.features).get(name, 1.0) for name in CONVOLUTION_FEATURES)
    return [operator, work.family, work.variant, work.math, work.dtype, *work.shape, *extra, work.flops, work.bytes,
            work.launches, seconds, spread]  # fmt: skip


HOST = {
    "operator_us": 4.0, "view_us": 1.0, "kernel_us": 0.0, "sweep_us": 12.0, "list_us": 0.2, "tensor_us": 2.0,
    "step_us": 100.0, "backward_share": 0.5, "log_spread": 0.2,
}  # fmt: skip


def device_document(rows: Sequence[list[Any]], device_type: str = "cpu", **calibration: Any) -> dict[str, Any]:
    """What `calibrate` writes, for a machine of 100 GFLOP/s and 40 GB/s with two ranks."""
    measured = {
        "made": "2026-11-21", "command": "precision-time calibrate", "machine": "invented", "threads": 1,
        "versions": {"torch": "2.15.0"}, "noise": 0.04, "kernels": {"columns": list(KERNEL_COLUMNS), "rows": rows},
        **calibration,
    }  # fmt: skip
    peaks = {f"{math}_tflops": 0.1 for math in ("fp64", "fp32", "fp16", "bf16")}
    device = {"vendor": "AMD", "arch": "x86-64", "mem_gb": 16, "mem_bw_gbs": 40, **peaks, "device_type": device_type,
              "calibration": measured}  # fmt: skip
    node = {"gpus": ["this-cpu"], "gpus_per_node": 8, "intra": "this-machine-gloo", "default_for": ["this-cpu"]}
    fabric = {"kind": "shared-memory", "bus_gb_per_s": {"2": 1.5}, "source": "measured here"}
    return {"gpus": {"this-cpu": device}, "nodes": {"this-machine": node}, "fabrics": {"this-machine-gloo": fabric}}


def calibrated_catalog(rows: Sequence[list[Any]], device_type: str = "cpu", **calibration: Any) -> Catalog:
    """The catalog with that machine; its device is "this-cpu"."""
    return default_catalog().with_document(device_document(rows, device_type, **calibration), "device.json")


def device(rows: Sequence[list[Any]], device_type: str = "cpu", **calibration: Any) -> Gpu:
    return calibrated_catalog(rows, device_type, **calibration).gpu("this-cpu")


MB, US = 1e6, 1e-6


def traffic(megabytes: float, family: str = "pointwise", dtype: str = "float32", variant: str = "fwd") -> Work:
    """Half of the bytes read, half written."""
    return memory_work(family, megabytes * MB / 2, megabytes * MB / 2, dtype=dtype, variant=variant)


def product(m: float, n: float, k: float) -> Work:
    return matmul_work((1, int(m), int(n), int(k)), "fp32", 4)


TWO = [kernel_row("aten.add", traffic(1), 100 * US), kernel_row("aten.add", traffic(4), 400 * US)]
"""An addition at 10 GB/s."""
