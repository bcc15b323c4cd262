"""Pricing: each kind once, float32 kernels where TF32 would be slower, and the parts of a kind by hand."""

from __future__ import annotations

import numpy as np
import pytest
from precision_time.layout.data_parallel_GONE import data_parallel

from precision_time.capture.captured_model import capture_model
from precision_time.hardware import cluster
from precision_time.job import Job
from precision_time.timing.operators import WorkOptions
from precision_time.timing.signature_times import OldTimedProgram, old_time_program


def timed(precision: str, gpu: str, gpus: int = 1, grad_accum: int = 1) -> OldTimedProgram:
    job = Job("resnet50", precision=precision, gpu=gpu, batch_size=32)
    program = data_parallel(capture_model(job), gpus, grad_accum)
    return old_time_program(program, cluster(gpu, gpus), WorkOptions(tf32=precision == "tf32"))


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


def test_accumulation_and_more_gpus_price_the_same_kernels() -> None:
    once, often = timed("fp32", "a100-80gb-sxm", 8), timed("fp32", "a100-80gb-sxm", 8, grad_accum=64)
    shared = len(once.program.micro)
    assert once.device_seconds(once.program.micro) == pytest.approx(often.device_seconds(often.program.micro))
    assert shared == len(often.program.micro)
    assert len(often.program.kinds) - len(once.program.kinds) == 1  # the accumulation itself
