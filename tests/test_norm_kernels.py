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


def test_evaluation_knows_the_statistics_and_drops_nothing_out() -> None:
    evaluates, x = WorkOptions(evaluates=True), TensorSpec((32, 64, 64, 64), "float16")
    norm = only(batch_norm(32, 64), evaluates)
    assert (norm.family, norm.bytes_read, norm.bytes_written, norm.latency_s) == ("pointwise", x.nbytes, x.nbytes, 0.0)
    assert only(batch_norm(1, 64), evaluates) == only(batch_norm(1, 64)), "one sample's: an instance norm"
    fused = OpSignature("pt.fused_pointwise", (x,), (x,), (("of_batch", True),))
    assert (only(fused).launches, only(fused, evaluates).launches) == (2, 1)
    dropout = OpSignature("aten.native_dropout", (x,), (x, TensorSpec(x.shape, "bool")))
    assert only(dropout).family == "dropout"
    assert works(dropout, evaluates) == []


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


def test_the_gradient_of_softmax_is_a_product_and_a_kernel() -> None:
    """The product reads gradient and weights and writes their size; the kernel reads it and the weights again."""
    weights, scores = TensorSpec((8, 197, 197), "float32"), TensorSpec((8, 197, 197), "float16")
    gradient = OpSignature("aten._softmax_backward_data", (weights, weights), (scores,), (("dim", -1),))
    product, rest = works(gradient, WorkOptions()) or []
    assert (product.family, product.variant, product.bytes) == ("pointwise", "fwd", 3 * weights.nbytes)
    assert (rest.family, rest.variant, rest.bytes) == ("softmax", "bwd", 2 * weights.nbytes + scores.nbytes)
    logarithm = OpSignature("aten._log_softmax_backward_data", (weights, weights), (scores,), (("dim", -1),))
    assert [work.bytes for work in works(logarithm, WorkOptions()) or []] == [rest.bytes]


def test_the_gradient_of_softmax_takes_longer_than_softmax_on_an_h100() -> None:
    """Measured (`data/measured/h100`): 204 us and 84, 218 and 91, where the traffic of one kernel says 1.5 times."""
    model, gpu = KernelModel(scales={}, factors=NO_FACTORS), default_catalog().gpu("h100-80gb-sxm")

    def seconds(operator: str, operands: int, weights: TensorSpec) -> float:
        kind = OpSignature(operator, (weights,) * operands, (weights,), (("dim", -1),))
        return float(model.seconds(works(kind, WorkOptions()) or [], gpu).seconds.sum())

    for weights, ratio in (
        (TensorSpec((768, 197, 197), "float32"), 204 / 84),
        (TensorSpec((96, 577, 577), "float32"), 218 / 91),
    ):
        forward, gradient = seconds("aten._softmax", 1, weights), seconds("aten._softmax_backward_data", 2, weights)
        assert gradient / forward == pytest.approx(ratio, rel=0.2)


@pytest.mark.parametrize(
    ("shape", "groups", "dtype", "kernels"),
    [
        ((128, 256, 56, 56), 1, "float16", ["conv", "pointwise"]),
        ((128, 256, 56, 56), 256, "float16", ["conv_depthwise", "pointwise"]),
        ((128, 256, 56, 56), 256, "float32", ["conv_depthwise"]),  # PyTorch's own kernel adds its bias itself
    ],
)
def test_a_bias_after_cudnn_is_a_kernel_of_its_own(
    shape: tuple[int, ...], groups: int, dtype: str, kernels: list[str]
) -> None:
    image, channels = TensorSpec(shape, dtype), shape[1]
    weight, bias = TensorSpec((channels, channels // groups, 3, 3), dtype), TensorSpec((channels,), dtype)
    attrs = (("groups", groups), ("stride", (1, 1)))
    plain = works(OpSignature("aten.convolution", (image, weight), (image,), attrs), WorkOptions()) or []
    biased = works(OpSignature("aten.convolution", (image, weight, bias), (image,), attrs), WorkOptions()) or []
    assert (len(plain), [work.family for work in biased]) == (1, kernels)
    if len(kernels) > 1:
        assert (biased[1].variant, biased[1].flops) == ("fwd.by_element", image.numel)


def test_a_bias_is_added_one_number_at_a_time_on_an_h100() -> None:
    """Measured (`data/measured/h100/profiled.csv`): 333 us after EfficientFormer's convolutions of 256 channels, 310
    billion numbers a second."""
    image = TensorSpec((128, 256, 56, 56), "bfloat16")
    weight, bias = TensorSpec((256, 256, 1, 1), "bfloat16"), TensorSpec((256,), "bfloat16")
    kind = OpSignature("aten.convolution", (image, weight, bias), (image,), (("stride", (1, 1)),))
    model, gpu = KernelModel(scales={}, factors=NO_FACTORS), default_catalog().gpu("h100-80gb-sxm")
    assert model.seconds(works(kind, WorkOptions()) or [], gpu).seconds[1] == pytest.approx(333e-6, rel=0.15)
