"""Orders that hold between related jobs of the zoo: more work, more GPUs and slower links never shorten a step."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace

import pytest

from precision_time.errors import PrecisionTimeError
from precision_time.hardware import Fabric
from precision_time.job import Job
from precision_time.placement import cluster_of
from precision_time.prediction import predict, simulate_step
from precision_time.zoo.catalog import ENTRIES

GPUS = ("a100-80gb-sxm", "h100-80gb-sxm", "l4", "rtx-4090", "b200", "a100-40gb-pcie", "t4")  # switches and PCIe
NETWORK_TOLERANCE = 0.02
"""Compute beside a collective slows by the bandwidth of its links, also where latency bounds the collective: over
slower links it slows less."""


def step_s(job: Job, **changes: object) -> float:
    return predict(job.replace(**changes)).step.p50


def check(job: Job) -> None:
    step = step_s(job)
    assert step_s(job, grad_accum=job.grad_accum + 1) >= step * (1 - 1e-9)
    far = [step_s(job, grad_accum=n) for n in (1000, 2000, 3000)]
    assert far[2] - far[1] == pytest.approx(far[1] - far[0], rel=1e-3)
    if job.layout == "dp":
        assert step >= step_s(job, gpus=1) * (1 - 1e-9)
        assert step_s(job, gpus=job.gpus + 1) >= step * (1 - 1e-9)
        assert step_s(job, recompute="full") >= step * (1 - 1e-9)
    cluster = cluster_of(job)
    slower = replace(cluster, intra=halved(cluster.intra), inter=cluster.inter and halved(cluster.inter))
    there, here = (simulate_step(job, job.precision_spec, each).timeline.step_s for each in (slower, cluster))
    assert there >= here * (1 - NETWORK_TOLERANCE)


def halved(fabric: Fabric) -> Fabric:
    return replace(
        fabric, name=f"{fabric.name} halved", nic_bytes_per_s=fabric.nic_bytes_per_s / 2,
        nvls_bytes_per_s=fabric.nvls_bytes_per_s / 2,
        bus_bytes_per_s_by_gpus={gpus: rate / 2 for gpus, rate in fabric.bus_bytes_per_s_by_gpus.items()},
    )  # fmt: skip


def sampled(count: int, seed: int) -> Iterator[Job]:
    draw = random.Random(seed)
    names = sorted(ENTRIES)
    while count:
        gpus = draw.choice([1, 2, 3, 4, 5, 7, 8, 9, 11, 13, 16, 17, 31, 64, 71, 72, 127, 256])
        try:
            job = Job(
                draw.choice(names), gpus=gpus, gpu=draw.choice(GPUS), batch_size=draw.choice([None, 1, 2, 4]),
                precision=draw.choice(["fp32", "tf32", "amp-fp16", "amp-bf16", "bf16-master", "bf16"]),
                grad_accum=draw.choice([1, 1, 2, 3, 4, 5, 8, 64]), no_sync=draw.random() < 0.7,
                layout=draw.choice(["dp", "dp", "dp", "fsdp", "zero1", "zero2"]),
            )  # fmt: skip
            predict(job)
        except PrecisionTimeError:
            continue
        count -= 1
        yield job


CASES = (
    Job("gpt2", gpu="h100-80gb-sxm", gpus=8, precision="bf16-master", grad_accum=64, batch_size=1),
    Job("t5-base", gpu="h100-80gb-sxm", gpus=4, precision="bf16-master", grad_accum=264, batch_size=1),
    Job("dlrm-small", gpu="rtx-4090", grad_accum=48),
    Job("gpt-oss-120b", gpu="a100-80gb-sxm", gpus=17, precision="bf16-master", batch_size=3),
    Job("roberta-base", gpu="a100-80gb-sxm", gpus=7, batch_size=1, grad_accum=2, no_sync=False),
    Job("bert-base", gpu="h100-80gb-sxm", gpus=7, batch_size=1, grad_accum=4, framework="megatron"),
)
"""Jobs whose order was wrong."""


@pytest.mark.parametrize("job", CASES, ids=lambda job: f"{job.model} on {job.gpus}")
def test_jobs_whose_order_was_wrong(job: Job) -> None:
    check(job)


def test_a_larger_batch_hides_launches_but_not_reductions() -> None:
    """Buckets of a pass that waits for the host are ready when their operators have been launched."""
    job = Job("swin-t", gpu="rtx-4090", gpus=4, batch_size=4, precision="amp-fp16", no_sync=False)
    assert step_s(job, batch_size=8) >= step_s(job)


def test_a_step_with_many_micro_steps_is_no_faster_on_a_slower_gpu() -> None:
    job = Job("dlrm-small", grad_accum=48)
    assert step_s(job, gpu="l4") >= step_s(job, gpu="rtx-4090")


@pytest.mark.slow
def test_order_of_sampled_jobs() -> None:
    for job in sampled(150, seed=18):
        check(job)
