"""Norms by memory format, library and rows; products by the alignment of their rows; fused kernels."""

from __future__ import annotations

from dataclasses import replace

import pytest

from precision_time.capture.graph import OpSignature, TensorSpec
from precision_time.hardware.catalog import default_catalog
from precision_time.timing.kernel_factors import NO_FACTORS
from precision_time.timing.kernels import KernelModel
from precision_time.timing.operators import WorkOptions, alignment, works
from precision_time.timing.work import Work

NCHW, NHWC = WorkOptions(), WorkOptions(channels_last=True)


def only(kind: OpSignature, options: WorkOptions = NCHW) -> Work:
    (work,) = works(kind, options) or []
    return work


def batch_norm(samples: int, channels: int, side: int = 64, dtype: str = "float16") -> OpSignature:
    x, weight = TensorSpec((samples, channels, side, side), dtype), TensorSpec((channels,), "float32")
    return OpSignature("aten.native_batch_norm", (x, weight, weight), (x, weight, weight), (("training", True),))


def layer_norm(rows: int, columns: int) -> OpSignature:
    x, weight = TensorSpec((rows, columns), "float16"), TensorSpec((columns,), "float16")
    each = TensorSpec((rows, 1), "float32")
    return OpSignature("aten.native_layer_norm", (x, weight, weight), (x, each, each))


def test_a_batch_norm_in_nchw_waits_for_the_block_that_has_a_channel() -> None:
    """32 x 64 x 64 x 64 numbers, read twice and written once by 64 blocks of 4.5 billion a second: 1.22 ms, less what
    512 blocks would take."""
    work = only(batch_norm(32, 64))
    numbers = 3 * 32 * 64 * 64 * 64
    assert work.latency_s == pytest.approx(numbers / 64 / 4.5e9 - numbers / 512 / 4.5e9)
    assert only(batch_norm(32, 64), NHWC).latency_s == 0.0
    assert only(batch_norm(8, 512)).latency_s == only(batch_norm(8, 2048)).latency_s == 0.0
    same_size = [only(batch_norm(4096 // channels, channels)).latency_s for channels in (16, 32, 64, 128, 256, 512)]
    assert same_size == sorted(same_size, reverse=True)


def test_blocks_wait_on_gpus_alone() -> None:
    model, h100 = KernelModel(scales={}, factors=NO_FACTORS), default_catalog().gpu("h100-80gb-sxm")
    few, many = only(batch_norm(32, 16)), only(batch_norm(1, 512))
    assert few.latency_s > 0
    for device, longer in ((h100, True), (replace(h100, arch="cpu"), False)):
        slow, fast = model.seconds([few, many], device).seconds
        assert (slow > 1.5 * fast) == longer


@pytest.mark.parametrize(("dtype", "kernels"), [("float16", "cudnn"), ("float32", "cudnn"), ("bfloat16", "native")])
def test_pytorch_runs_its_own_batch_norm_in_bfloat16(dtype: str, kernels: str) -> None:
    kind = batch_norm(8, 64, dtype=dtype)
    assert [only(kind, options).variant for options in (NCHW, NHWC)] == [f"fwd.{kernels}.nchw", f"fwd.{kernels}.nhwc"]


def test_an_instance_norm_is_in_no_memory_format() -> None:
    """It is the batch norm of one sample whose channels are all channels of all samples."""
    works_of = [only(batch_norm(1, 8 * 32), options) for options in (NCHW, NHWC)]
    assert works_of[0] == works_of[1]
    assert works_of[0].variant == "fwd.cudnn.nchw"


def test_a_layer_norm_takes_time_for_each_row() -> None:
    assert only(layer_norm(100_000, 96)).latency_s == pytest.approx(145e-6)
    backward = OpSignature("aten.native_layer_norm_backward", layer_norm(100_000, 96).inputs[:1] * 2, ())
    assert [work.latency_s for work in works(backward, NCHW) or []] == [0.0]


@pytest.mark.parametrize(
    ("n", "k", "math", "variant"),
    [
        (50257, 768, "fp16", "align1"), (50258, 768, "bf16", "align2"), (50260, 768, "fp16", "align4"),
        (768, 50257, "fp16", "align1"), (50264, 768, "fp16", ""), (50257, 768, "fp32", ""), (50257, 768, "tf32", ""),
    ],
)  # fmt: skip
def test_products_in_half_precision_are_told_apart_by_alignment(n: int, k: int, math: str, variant: str) -> None:
    assert alignment(n, k, math) == variant


def test_fused_kernels_are_a_class_of_their_own() -> None:
    x = TensorSpec((8, 64, 32, 32), "float16")
    for passes, family in ((1, "pointwise"), (2, "batch_norm")):
        for backward, variant in ((0, "fwd.fused"), (1, "bwd.fused")):
            attributes = (("operators", 3), ("passes", passes), ("backward", backward))
            work = only(OpSignature("pt.fused_pointwise", (x,), (x,), attributes))
            assert (work.family, work.variant, work.latency_s) == (family, variant, 0.0)
