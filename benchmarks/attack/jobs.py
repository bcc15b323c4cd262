"""Random valid jobs: any named model on any GPU, in any precision, layout and count.

Most are answered. Some are refused (a GPU without the unit, a model that cannot be split that way), which is no defect.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from functools import cache
from typing import Any

from precision_time.errors import PrecisionTimeError
from precision_time.hardware.catalog import default_catalog
from precision_time.job import Job
from precision_time.job.choices import (
    ATTENTIONS,
    DTYPES,
    EXECUTIONS,
    FRAMEWORKS,
    MEMORY_FORMATS,
    OPTIMIZER_IMPLS,
    OPTIMIZERS,
    RECOMPUTES,
)
from precision_time.job.precision import PRECISIONS
from precision_time.zoo.catalog import ENTRIES

Fields = dict[str, Any]

COUNTS = (1, 1, 1, 2, 3, 4, 7, 8, 8, 16, 17, 24, 32, 61, 64, 72, 128, 256, 1024, 4096, 16384)
LAYOUTS = {
    "dp": 1, "fsdp": 1, "zero1": 1, "zero2": 1, "zero3": 1, "tp=2": 2, "tp=8": 8, "pp=2": 2, "pp=4": 4, "tp=2,pp=2": 4,
    "tp=4,pp=2": 8, "tp=2,pp=4,vpp=2": 8, "hsdp=8": 8,
}  # fmt: skip
"""Layouts, and what must divide the GPUs."""

TORCH_VERSIONS = ("1.9", "1.11", "1.12", "1.13.1+cu117", "2.0", "2.4", "2.10", "2.11")
"""On both sides of each version at which a kernel or what it keeps changed."""
TRACED = (
    "convnext_atto", "densenet121", "edgenext_xx_small", "efficientnet_b0", "ghostnet_100", "levit_128s", "mixnet_s",
    "mobilenetv2_050", "mobilenetv3_small_050", "regnetx_002", "regnety_004", "resnest14d", "resnet26d",
    "resnext50_32x4d", "vit_tiny_patch16_224", "xcit_nano_12_p16_224",
)  # fmt: skip
"""Networks of timm with grouped and depthwise convolutions, attention and plain convolutions; torch traces them."""


@cache
def models() -> tuple[str, ...]:
    """Named models whose graphs ship, so that no torch is needed."""
    return tuple(name for name, entry in ENTRIES.items() if entry.ships)


@cache
def gpus() -> tuple[str, ...]:
    """All GPUs of the catalog that are not too old or too odd to have a peak in fp32."""
    return tuple(name for name, gpu in default_catalog().gpus.items() if "fp32" in gpu.peaks)


def _precision(source: random.Random, gpu: str) -> str:
    """A precision that the GPU has a unit for."""
    peaks = default_catalog().gpus[gpu].peaks
    return source.choice([name for name, precision in PRECISIONS.items() if precision.math in peaks] or ["fp32"])


def random_fields(source: random.Random, short: bool = False, names: Sequence[str] | None = None) -> Fields:
    """Fields of a job that is probably valid, of one of the models `names` (default: all whose graphs ship).

    `short`: only model, precision, GPU, batch and count.
    """
    name = source.choice(names or models())
    usual = ENTRIES[name].batch_size if name in ENTRIES else 32
    gpu = source.choice(gpus())
    fields: Fields = {
        "model": name,
        "precision": _precision(source, gpu),
        "gpu": gpu,
        "gpus": source.choice(COUNTS),
        "batch_size": max(1, int(usual * 2.0 ** source.uniform(-4, 2))),
    }
    if short:
        return fields
    if source.random() < 0.5:
        fields["grad_accum"] = source.choice((1, 2, 3, 4, 5, 8, 16, 48, 64, 128, 264))
    if source.random() < 0.5:
        divide = [layout for layout, divisor in LAYOUTS.items() if fields["gpus"] % divisor == 0]
        fields["layout"] = source.choice(divide)
    for field, choices, chance in (
        ("optimizer", OPTIMIZERS, 0.3),
        ("memory_format", MEMORY_FORMATS, 0.3),
        ("attention", ATTENTIONS, 0.2),
        ("recompute", RECOMPUTES, 0.2),
        ("execution", EXECUTIONS, 0.2),
        ("framework", FRAMEWORKS, 0.2),
        ("torch", TORCH_VERSIONS, 0.2),
        ("optimizer_impl", OPTIMIZER_IMPLS, 0.1),
        ("no_sync", (False,), 0.1),
        ("communication_dtype", DTYPES, 0.1),
        ("loss_scale", ("static",), 0.1),
        ("clip_norm", (0, 1.0), 0.1),
    ):
        if source.random() < chance:
            fields[field] = source.choice(choices)
    if source.random() < 0.4:
        fields["run"] = source.choice(
            ({"steps": 1000}, {"samples": 10**6}, {"epochs": 2, "dataset_size": 10**6}, {"steps": 50, "start_up_s": 60})
        )
        if source.random() < 0.3:
            fields["run"] = {**fields["run"], **source.choice(_AROUND)}
    if source.random() < 0.1:
        fields["data"] = _data(source)
    return fields


_AROUND: tuple[Fields, ...] = (
    {"checkpoint_every_s": 300, "checkpoint_s": 4},
    {"checkpoint_every_steps": 10, "checkpoint_storage": "nvme-gen4"},
    {"failure_prior": "published", "checkpoint_every_s": 900, "checkpoint_s": 20},
    {"gpu_hours_per_failure": 100.0, "checkpoint_storage": "nfs-10gbe", "checkpoint_async": True},
    {"queue_s": 100, "compile_s": 60},
    {"evaluation_samples": 10_000, "evaluation_every_steps": 20},
)
"""What a run may have around its steps."""


def _data(source: random.Random) -> Fields:
    """A loader, mostly with a cache that holds from nearly nothing to more than the data."""
    fields: Fields = {"storage": source.choice(("nfs-10gbe", "nvme-gen4")), "workers": source.choice((1, 4, 8))}
    if source.random() < 0.7:
        fields |= {"samples": source.choice((50_000, 1_281_167)), "bytes_per_sample": source.choice((3_000, 110_000))}
        fields["format"] = source.choice(("jpeg", "raw", "tokens"))
    if source.random() < 0.75:
        fields["cache"] = source.choice(("explicit", "page-cache"))
        if source.random() < 0.8:
            fields["cache_gib"] = source.choice((0.1, 10, 60, 200, 1000))
        if fields["cache"] == "explicit":
            fields |= source.choice(({}, {"cache_policy": "lru"}, {"cache_policy": "no-eviction"}))
        fields |= source.choice(({}, {}, {"cached": 0.5}, {"cached": 1}, {"keep_ms": 0.1}))
    return fields


def random_job(source: random.Random, names: Sequence[str] | None = None) -> Job:
    """A job that passes the checks of its fields, of one of the models `names`."""
    while True:
        try:
            return Job.from_dict(random_fields(source, names=names))
        except PrecisionTimeError:
            continue
