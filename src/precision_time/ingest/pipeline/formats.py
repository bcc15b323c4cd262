"""Seconds of one core to decode, augment and batch a sample, by storage format.

Defaults for jobs without `decode_ms`; a measured figure is more accurate. "Measured": here, on one core of
an AMD EPYC with Pillow 13, torch 2.15 and torchvision 0.29 (2026-11-22), on made images of natural spectrum.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Preparation:
    """Seconds of one worker: `fixed_s` a sample and `per_byte_s` for every stored byte."""

    fixed_s: float
    per_byte_s: float
    source: str

    def seconds(self, nbytes: float) -> float:
        return self.fixed_s + self.per_byte_s * nbytes


PREPARATIONS: dict[str, Preparation] = {
    "jpeg": Preparation(
        0.6e-3,
        25e-9,
        "3.3 ms for 110 kB. Measured: 1.49 ms to decode 500 x 375 of 103 kB, 1.25 ms for crop, flip and "
        "normalisation, 0.3 ms to batch. The DS-Analyzer paper (Mohan et al. 2021, figure 1, recalled) has 735 MB/s "
        "of ImageNet on 24 cores with DALI: 3.6 ms",
    ),
    "png": Preparation(0.6e-3, 25e-9, "assumed as jpeg"),
    "raw": Preparation(
        0.16e-3,
        0.25e-9,
        "measured: 0.16 ms for a CIFAR sample's crop, flip and normalisation; 0.13 ms for 600 kB to floats",
    ),
    "tokens": Preparation(5e-6, 1e-9, "measured: 1.5 us for 1,024 tokens to int64; the rest of the loop is assumed"),
    "flac": Preparation(
        0.5e-3,
        30e-9,
        "6.8 ms for 211 kB. Measured: 3.0 ms for the mel spectrum of 12 s; decoding is assumed to take as long",
    ),
    "wav": Preparation(0.5e-3, 8e-9, "measured: 3.0 ms for the mel spectrum of 12 s, 384 kB"),
    "video": Preparation(5e-3, 20e-9, "assumed"),
}

STATED_SPREAD = 0.10
"""Spread of the logarithm of preparation times that the job states: chosen, equal to that of a measured storage."""
FORMAT_SPREAD = 0.35
"""The same for this table, since processors and augmentations differ (chosen)."""

WORKER_START_S = 0.02
"""Seconds to fork a worker at the start of an epoch: 13 to 20 ms were measured, with up to four workers on two
cores."""
