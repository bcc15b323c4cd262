"""One device: its peaks, memory size and memory bandwidth."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from precision_time.errors import CatalogError, MissingPeakError, nearest
from precision_time.hardware.calibration import Calibration
from precision_time.hardware.fields import GPU, PEAKS, check_noun, si_type

_PEAK_TYPES = {math: si_type(GPU[key]) for key, math in PEAKS.items()}
# Precision of a job that an error suggests where the device has no peak for the requested arithmetic.
_PRECISION_FOR_MATH = {"bf16": "amp-bf16", "fp16": "amp-fp16", "tf32": "tf32", "fp32": "fp32", "fp64": "fp64"}


FULL_RATE = 900.0
"""FLOP per multiprocessor and cycle of matrix units in half precision that do not have half of their rate: 1024 or
more, at a boost clock of the data sheet."""

ECC_SHARE = 0.85
"""Pointwise kernels of the P4, T4 and L4 take 0.75 to 0.78 of the bandwidth, of the A100 and V100 0.87 to 0.92
(`timing/data/kernels.json`)."""


@dataclass(frozen=True)
class Gpu:
    """A device of the catalog. Peaks are dense, in FLOP/s; `None` means "not established", never zero."""

    name: str
    kernel_name: str
    """Name of the device in the kernel tables (column `gpu` of gpus.csv)."""
    vendor: str
    arch: str
    """Short family: pascal, volta, turing, ampere, ada, hopper, blackwell, cdna1 ... cdna4, xe2, tpu."""
    memory_bytes: int
    """As the driver shows it; the CUDA context and the allocator take part of it."""
    memory_bytes_per_s: float
    peaks: Mapping[str, float]
    """fp64, fp64_matrix, fp32, fp32_matrix, tf32, fp16 (matrix units, fp32 accumulation), fp16_vector, bf16,
    fp8, int8, fp4: only those the device has."""
    compute_capability: tuple[int, int] | None = None
    sm_count: int | None = None
    fp32_lanes_per_sm: int | None = None
    boost_hz: float | None = None
    max_hz: float | None = None
    """Highest clock of a card that runs above its boost clock where power allows: GeForce, Titan and workstation cards.
    `peaks` are those of the boost clock."""
    memory_type: str = ""
    """As its maker names it: HBM3, GDDR6X; empty where unknown."""
    l2_bytes: int | None = None
    tdp_w: float | None = None
    nvlink_bytes_per_s: float = 0.0
    """Sum of both directions; Infinity Fabric on AMD, ICI on TPU; 0 where there is none."""
    pcie_gen: int | None = None
    pcie_lanes: int | None = None
    sources: str = ""
    notes: str = field(default="", repr=False)
    device_type: str = "cuda"
    """As torch names it: "cuda" also for AMD. A "cpu" runs an operator before it dispatches the next."""
    calibration: Calibration | None = field(default=None, repr=False)
    """Times measured on this device by `calibrate`; peaks and bandwidth are then the best rates measured."""

    def __post_init__(self) -> None:
        check_noun(self)
        for math, peak in self.peaks.items():
            if math not in _PEAK_TYPES:
                raise CatalogError(f"Gpu {self.name!r}: unknown peak {math!r}; nearest: {nearest(math, _PEAK_TYPES)}.")
            _PEAK_TYPES[math].entry(peak, f"Gpu {self.name!r}: peak of {math} in FLOP/s")

    def __hash__(self) -> int:
        # `peaks` is a mapping; equal devices hash equal
        return hash((self.name, self.memory_bytes_per_s, self.calibration))

    @property
    def top_hz(self) -> float | None:
        """The highest clock."""
        return self.max_hz or self.boost_hz

    @property
    def clock_headroom(self) -> float:
        """Highest clock over that of `peaks`, at least 1; 1 on a calibrated device, whose peaks were measured."""
        if self.calibration is not None or not (self.max_hz and self.boost_hz):
            return 1.0
        return max(self.max_hz / self.boost_hz, 1.0)

    @property
    def matrix_headroom(self) -> float:
        """Clock of kernels on matrix units over that of `peaks`: GeForce cards, whose rate with fp32 sums is halved,
        stay below their power limit and run at the highest; 1 on others."""
        rate = self.peaks.get("fp16", 0.0) / ((self.sm_count or 1) * (self.boost_hz or 1.0))
        return self.clock_headroom if 0.0 < rate < FULL_RATE else 1.0

    @property
    def ecc_share(self) -> float:
        """Share of the bandwidth that error correction leaves: GDDR of cards for data centers holds it beside the data.
        HBM has room of its own for it; GeForce and workstation cards, which have a highest clock, run without."""
        return ECC_SHARE if self.memory_type.startswith("GDDR") and not self.max_hz else 1.0

    def peak(self, math: str) -> float:
        """Dense FLOP/s in `math`, a key of `peaks`; a missing peak is an error, not a guess."""
        try:
            return self.peaks[math]
        except KeyError:
            has = ", ".join(sorted(self.peaks)) or "none"
            raise MissingPeakError(f"{self.name} has no {math} peak (it has {has}); {self._instead(math)}.") from None

    def vector_peak(self, dtype: str) -> float:
        """FLOP/s outside the matrix units, for pointwise work on tensors of `dtype`.

        PyTorch's half-precision pointwise kernels convert to fp32, compute and convert back, so everything
        below fp64 runs at the fp32 rate.
        """
        return self.peak("fp64" if dtype == "fp64" else "fp32")

    def has(self, math: str) -> bool:
        return math in self.peaks

    def _instead(self, math: str) -> str:
        order = {"fp8": "bf16 fp16 tf32", "fp4": "bf16 fp16 tf32", "bf16": "fp16 tf32", "fp16": "bf16 tf32"}
        for other in (*order.get(math, "").split(), "fp32", "bf16", "fp16"):
            if other in self.peaks:
                return f"use precision {_PRECISION_FOR_MATH[other]} or another GPU"
        return "use another GPU, or add the peak in a device file"
