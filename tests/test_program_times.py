"""Seconds of a program: each kind once, float32 kernels where TF32 would be slower, buckets by hand."""

from __future__ import annotations

import numpy as np
import pytest

from precision_time.hardware import cluster
from precision_time.job import Job
from precision_time.prediction import simulate_step
from precision_time.timing.collectives import collective_seconds
from precision_time.timing.program_times import TimedProgram


def timed(precision: str, gpu: str, gpus: int = 1, grad_accum: int = 1) -> TimedProgram:
    job = Job("resnet50", precision=precision, gpu=gpu, gpus=gpus, batch_size=32, grad_accum=grad_accum)
    return simulate_step(job, job.precision_spec, cluster(gpu, gpus)).timed


@pytest.mark.parametrize("gpu", ["rtx-3090", "a100-80gb-sxm", "l4"])
def test_allowing_tf32_never_slows_a_kernel_down(gpu: str) -> None:
    assert np.all(timed("tf32", gpu).kind_s <= timed("fp32", gpu).kind_s * (1 + 1e-9))


def test_tf32_convolutions_are_chosen_where_the_peak_is_higher() -> None:
    ours, plain = timed("tf32", "a100-80gb-sxm"), timed("fp32", "a100-80gb-sxm")
    assert ours.kind_s.sum() < 0.7 * plain.kind_s.sum()


def test_no_kind_is_below_its_floor_and_sources_add_up() -> None:
    found = timed("amp-fp16", "a100-80gb-sxm", gpus=8)
    assert np.all(found.kind_s >= found.floor_s)
    assert found.source_s.sum(axis=1) == pytest.approx(found.kind_s)
    assert found.work_s.sum() == pytest.approx(found.kind_s.sum())


def test_accumulation_and_more_gpus_time_the_same_kernels() -> None:
    alone, once = timed("fp32", "a100-80gb-sxm"), timed("fp32", "a100-80gb-sxm", 8)
    often = timed("fp32", "a100-80gb-sxm", 8, grad_accum=64)
    assert once.units == often.units
    for one, many in zip(alone.units, once.units, strict=True):  # the hosts of eight ranks are slower
        assert (one.forward.device_s, one.backward.device_s) == (many.forward.device_s, many.backward.device_s)
    assert len(once.program.kinds) - len(alone.program.kinds) == 2  # into the buckets and out of them
    assert len(often.program.kinds) - len(once.program.kinds) == 1  # the accumulation itself


def test_a_bucket_is_ready_after_the_share_of_the_pass_that_its_operators_take() -> None:
    """Summed by hand over the operators of the unit's backward pass up to the one that the bucket waits for."""
    found = timed("amp-fp16", "a100-80gb-sxm", 8)
    program = found.program
    (chunk,) = program.stages[0].chunks
    backward = [unit for unit, repeat, _ in reversed(chunk.units) for _ in range(repeat)]
    assert len(program.buckets.buckets) > 3
    for bucket, ready, seconds in zip(program.buckets.buckets, found.bucket_ready, found.bucket_s, strict=True):
        passed = found.kind_s[program.units[backward[bucket.use]].backward.kind]
        assert ready.share == pytest.approx(passed[: bucket.position + 1].sum() / passed.sum())
        wire = collective_seconds("all_reduce", bucket.nbytes, cluster("a100-80gb-sxm", 8).world).seconds
        assert seconds == pytest.approx(float(wire))
    assert program.buckets.buckets[-1].use == len(backward) - 1
