"""Predictions do not depend on what was predicted before: caches are keyed on all that their values depend on.

Steps, programs, timed programs and graphs are compared by identity, so that what follows from them is cached at little
cost. Equal jobs therefore have to share these objects, and unequal jobs must never do so by accident.
"""

from __future__ import annotations

import random
import sys
from typing import Any

from precision_time.job import Job
from precision_time.prediction import predict

ROOMS = tuple(
    f"precision_time.{room}" for room in ("capture", "layout", "timing", "timeline", "estimate", "anchors", "placement")
)


def jobs() -> list[Job]:
    """Jobs that differ in one field each, and so would share a cache entry keyed on too little."""
    resnet = Job("resnet50", gpus=8, precision="amp-fp16", batch_size=64)
    llama = Job("llama3-8b", gpu="h100-80gb-sxm", gpus=64, precision="bf16-master", grad_accum=8, framework="megatron",
                layout="tp=4,pp=2,zero=1")  # fmt: skip
    changes: list[tuple[Job, dict[str, Any]]] = [
        (resnet, change) for change in (
            {}, {"gpus": 1}, {"gpus": 16}, {"precision": "amp-bf16"}, {"precision": "tf32"}, {"batch_size": 32},
            {"grad_accum": 2}, {"grad_accum": 2, "no_sync": False}, {"memory_format": "nhwc"}, {"optimizer": "adam"},
            {"optimizer_impl": "fused"}, {"execution": "compile"}, {"layout": "fsdp"}, {"layout": "zero1"},
            {"recompute": "full"}, {"communication_dtype": "float16"}, {"gpu": "v100-16gb-sxm"},
            {"loss_scale": "static"},
        )
    ] + [
        (llama, change) for change in (
            {}, {"layout": "tp=4,pp=2,zero=1,sp=1"}, {"layout": "tp=2,pp=4,zero=1"}, {"layout": "tp=4,pp=2"},
            {"grad_accum": 16}, {"recompute": "selective"}, {"recompute": "full", "recompute_layers": 4},
            {"framework": "pytorch"}, {"attention": "math"}, {"input": {"seq_len": 2048}}, {"precision": "fp8"},
        )
    ]  # fmt: skip
    return [job.replace(**change) for job, change in changes]


def clear_caches() -> int:
    """Empties the caches of the rooms between job and estimate; returns how many there are."""
    modules = [module for name, module in sys.modules.items() if name.startswith(ROOMS)]
    caches = [each for module in modules for each in vars(module).values() if hasattr(each, "cache_clear")]
    for cache in caches:
        cache.cache_clear()
    return len(caches)


def answer(job: Job) -> tuple[float, float, int, tuple[str, ...]]:
    estimate = predict(job)
    return estimate.step.p50, estimate.step.p90, estimate.memory.peak_bytes, estimate.assumptions


def test_what_is_cached_changes_no_prediction() -> None:
    every = jobs()
    cold = []
    for job in every:
        assert clear_caches() > 20
        cold.append(answer(job))
    assert len({seconds for seconds, *_ in cold}) > 0.9 * len(every)  # the changes do matter
    clear_caches()
    order = [*range(len(every)), *range(len(every))]
    random.Random(0).shuffle(order)
    for place in order:
        assert answer(every[place]) == cold[place], every[place]
