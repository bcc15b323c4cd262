"""Tokens per second, MFU and HFU against the published formulas, and over layouts."""

from __future__ import annotations

import pytest

from precision_time import Estimate, Job, compare, predict
from precision_time.comparison import cross
from precision_time.estimate.utilisation import Utilisation
from precision_time.plan import rank_layouts

LLAMA = Job("llama3-8b", gpu="h100-80gb-sxm", gpus=8, layout="fsdp", precision="bf16-master")


def achieved(job: Job) -> Utilisation:
    found = predict(job).utilisation
    assert found is not None
    return found


def test_a_decoder_against_6n_plus_12lhs() -> None:
    """PaLM's formula: 6 FLOP for each weight of a product and 12 x layers x width x length for attention, per token."""
    estimate = predict(LLAMA)
    found = estimate.utilisation
    assert found is not None
    weights = estimate.parameters - 128256 * 4096  # the table of embeddings is looked up
    per_token = 6 * weights + 12 * 32 * 4096 * 8192
    tokens = 8 * 8192
    assert found.model_flops == pytest.approx(per_token * tokens, rel=2e-3)
    assert found.tokens_per_s == pytest.approx(tokens / estimate.step.p50)
    assert found.mfu == pytest.approx(per_token * tokens / (estimate.step.p50 * 8 * 989.4e12), rel=2e-3)
    assert found.hfu == found.mfu
    assert found.tflops_per_gpu == pytest.approx(found.model_flops / estimate.step.p50 / 8e12)


def test_resnet50_against_its_published_macs() -> None:
    """4.09 G multiply-adds forward; backward twice that but for the gradient of the image (conv1: 118 M)."""
    found = achieved(Job("resnet50", batch_size=64, precision="amp-fp16"))
    assert found.tokens_per_s is None
    assert found.model_flops == pytest.approx(64 * 2 * (3 * 4.089e9 - 0.118e9), rel=5e-3)


@pytest.mark.parametrize(
    "layout", ["dp", "zero2", "tp=2,sp=1", "tp=8,sp=1", "pp=2", "pp=4,vpp=2", "tp=2,pp=2,cp=2", "cp=2", "hsdp=4"]
)
def test_the_model_needs_the_same_flop_in_every_layout(layout: str) -> None:
    base = achieved(LLAMA.replace(batch_size=1, grad_accum=8)).model_flops / (8 * 8)  # of a sample
    job = LLAMA.replace(layout=layout, batch_size=1, grad_accum=8)
    assert achieved(job).model_flops / (8 * job.layout_spec.dp) == pytest.approx(base, rel=1e-3)


def test_what_is_computed_again_counts_for_the_hardware_alone() -> None:
    plain, again = achieved(LLAMA), achieved(LLAMA.replace(recompute="full"))
    assert again.model_flops == pytest.approx(plain.model_flops)
    assert plain.repeated_flops == 0.0
    assert 0.2 < again.repeated_flops / again.model_flops < 1 / 3
    assert again.hfu is not None
    assert again.mfu is not None
    assert again.hfu / again.mfu == pytest.approx(1 + again.repeated_flops / again.model_flops)


def test_the_peak_is_that_of_the_unit() -> None:
    job = Job("resnet50", batch_size=64, gpu="a100-80gb-sxm")
    assert [achieved(job.replace(precision=p)).peak for p in ("fp32", "torch-fp32", "tf32", "amp-bf16")] == [
        "fp32", "tf32", "tf32", "bf16",
    ]  # fmt: skip
    assert achieved(Job("bert-large", precision="torch-fp32")).peak == "fp32"
    for precision in ("fp32", "torch-fp32", "tf32", "amp-bf16"):
        mfu = achieved(job.replace(precision=precision)).mfu
        assert mfu is not None
        assert 0.0 < mfu < 1.0


def test_it_is_read_back_shown_and_ranked_by() -> None:
    estimate = predict(LLAMA)
    assert Estimate.from_dict(estimate.to_dict()).utilisation == estimate.utilisation
    assert "tokens per second" in str(estimate)
    assert "MFU" in str(estimate)
    table = str(compare(cross(LLAMA, precision=["bf16-master", "fp8"])))
    assert "tokens/s" in table
    assert "MFU" in table
    best = rank_layouts(LLAMA, global_batch=16).rows[0]
    assert best.mfu == achieved(best.job).mfu
