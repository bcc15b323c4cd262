"""Fused attention with a mask: which kernel runs it, and what that kernel does in a cycle."""

from __future__ import annotations

import pytest

from precision_time import Job
from precision_time.capture.graph import OpSignature, TensorSpec
from precision_time.hardware.catalog import default_catalog
from precision_time.prediction import work_options
from precision_time.timing.constants import shipped
from precision_time.timing.operators import WorkOptions, works
from precision_time.timing.work import Work
from precision_time.timing.work_table import WorkTable

ALL, LEARNED = WorkOptions(efficient_masks="all"), WorkOptions(efficient_masks="learned")
BATCH, HEADS, TOKENS, SIZE = 128, 12, 196, 32


def half(*shape: int) -> TensorSpec:
    return TensorSpec(shape, "bfloat16")


OPERAND = half(BATCH, HEADS, TOKENS, SIZE)
BIAS, PADDING = half(1, HEADS, TOKENS, TOKENS), TensorSpec((BATCH, 1, 1, TOKENS), "bool")


def forward(*mask: TensorSpec, dropout_p: float = 0.0, dtype: str = "bfloat16") -> OpSignature:
    operand = TensorSpec(OPERAND.shape, dtype)
    attrs = (("dropout_p", dropout_p), ("is_causal", False))
    return OpSignature("pt.attention", (operand,) * 3 + mask, (operand,), attrs)


def backward(mask: TensorSpec, learned: bool) -> OpSignature:
    statistics = TensorSpec((BATCH, HEADS, TOKENS), "float32")
    of_mask = (half(BATCH, HEADS, TOKENS, TOKENS),) * learned
    inputs = (OPERAND,) * 4 + (mask, OPERAND, statistics)
    return OpSignature("pt.attention_backward", inputs, (OPERAND,) * 3 + of_mask, (("dropout_p", 0.0),))


def only(kind: OpSignature, options: WorkOptions) -> Work:
    (work,) = works(kind, options) or []
    return work


@pytest.mark.parametrize(
    ("kind", "options", "variant"),
    [
        (forward(), ALL, "fwd"),
        (forward(PADDING), ALL, "fwd.efficient"),
        (forward(BIAS), ALL, "fwd.efficient"),
        (forward(BIAS, dropout_p=0.1), ALL, "fwd.efficient.dropout"),
        (forward(BIAS, dropout_p=0.1), WorkOptions(efficient_masks="all", evaluates=True), "fwd.efficient"),
        (forward(TensorSpec(BIAS.shape, "float32"), dtype="float32"), ALL, "fwd"),
        (forward(BIAS), LEARNED, "fwd.efficient"),
        (forward(BIAS), WorkOptions(efficient_masks="learned", evaluates=True), "fwd"),
        (forward(PADDING), LEARNED, "fwd"),
        (backward(BIAS, True), LEARNED, "bwd.efficient"),
        (backward(BIAS, False), LEARNED, "bwd"),
        (backward(PADDING, False), ALL, "bwd.efficient"),
        (forward(BIAS), WorkOptions(), "fwd"),
        (forward(half(HEADS)), ALL, "fwd"),
        (forward(half(HEADS)), LEARNED, "fwd"),
    ],
)
def test_the_kernel_of_a_mask(kind: OpSignature, options: WorkOptions, variant: str) -> None:
    assert only(kind, options).variant == variant


@pytest.mark.parametrize(
    ("gpu", "changes", "masks"),
    [
        ("a100-80gb-sxm", {}, "all"), ("rtx-4090", {}, "all"), ("rtx-pro-6000-maxq", {}, "all"),
        ("v100-16gb-sxm", {}, "all"), ("h100-80gb-sxm", {}, "learned"), ("b200-180gb-sxm", {}, "learned"),
        ("h100-80gb-sxm", {"torch": "2.8"}, "all"), ("h100-80gb-sxm", {"framework": "megatron"}, ""),
        ("mi300x", {}, ""), ("p100-16gb-sxm", {}, ""),
    ],
)  # fmt: skip
def test_masks_by_gpu_and_version(gpu: str, changes: dict[str, str], masks: str) -> None:
    job = Job(model="bert-base", gpu=gpu, precision="amp-fp16", batch_size=8, **changes)
    assert work_options(job, default_catalog().gpu(gpu)).efficient_masks == masks


def seconds(kind: OpSignature, options: WorkOptions, gpu: str) -> float:
    return float(shipped().kernels.seconds([only(kind, options)], default_catalog().gpu(gpu)).seconds.sum())


def test_an_h100_computes_scores_by_the_cycle() -> None:
    """CoAtNet's 1,536 heads of 4 x 4 tiles: 100.7 million scores, 1.6 in a cycle of each of 132 multiprocessors, are
    241 us; 272 were measured. Backward 545 and 723."""
    forward_s = seconds(forward(BIAS), LEARNED, "h100-80gb-sxm")
    scores = BATCH * HEADS * 256 * 256
    assert scores / (1.6 * 132 * 1.98e9) == pytest.approx(241e-6, rel=0.01)
    assert 241e-6 <= forward_s == pytest.approx(272e-6, rel=0.1)
    backward_s = seconds(backward(BIAS, True), LEARNED, "h100-80gb-sxm")
    assert 545e-6 <= backward_s == pytest.approx(723e-6, rel=0.15)
    assert seconds(forward(PADDING), LEARNED, "h100-80gb-sxm") < 0.5 * forward_s, "cuDNN's takes a padding mask"


def test_a_tile_is_computed_whole() -> None:
    """49 keys and queries cost what 64 do."""

    def of_tokens(tokens: int) -> float:
        operand, bias = half(4096, 2, tokens, SIZE), half(1, 2, tokens, tokens)
        kind = OpSignature("pt.attention", (operand, operand, operand, bias), (operand,))
        (work,) = works(kind, ALL) or []
        gpu = default_catalog().gpu("h100-80gb-sxm")
        return float(shipped().kernels.parts(WorkTable.from_works([work]), gpu).compute[0, 0])

    assert of_tokens(49) == of_tokens(64) < of_tokens(65)
