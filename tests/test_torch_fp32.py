"""Precision torch-fp32: TF32 in cuDNN's operators where the GPU has it, fp32 everywhere else."""

from __future__ import annotations

import pytest

from precision_time import Job, compare, predict
from precision_time.comparison import cross
from precision_time.hardware.catalog import default_catalog
from precision_time.job.precision import parse_precision
from precision_time.prediction import simulate_step, work_options
from precision_time.timing.operators import WorkOptions

CONVOLUTIONS, PRODUCTS = Job("resnet50", batch_size=32), Job("bert-large", batch_size=8)


def simulated_s(job: Job, gpu: str, precision: str) -> float:
    cluster = default_catalog().cluster(gpu, 1)
    return simulate_step(job, parse_precision(precision), cluster).timeline.step_s


def test_names() -> None:
    assert parse_precision("default").name == "torch-fp32"
    assert parse_precision("Torch_FP32").math == "fp32"


def test_a_gpu_without_tf32_runs_fp32() -> None:
    for job in (CONVOLUTIONS, PRODUCTS):
        plain = predict(job.replace(gpu="v100-32gb-sxm", precision="fp32"))
        default = predict(job.replace(gpu="v100-32gb-sxm", precision="torch-fp32"))
        assert default.step == plain.step
        assert default.memory == plain.memory


@pytest.mark.parametrize("gpu", ["a100-80gb-sxm", "rtx-3090", "h100-80gb-sxm"])
def test_products_run_in_fp32_and_convolutions_in_tf32(gpu: str) -> None:
    assert simulated_s(PRODUCTS, gpu, "torch-fp32") == pytest.approx(simulated_s(PRODUCTS, gpu, "fp32"))
    fp32, default, tf32 = (simulated_s(CONVOLUTIONS, gpu, name) for name in ("fp32", "torch-fp32", "tf32"))
    assert tf32 <= default < 0.9 * fp32
    assert default < 1.02 * tf32  # one product, of the classifier


def test_the_order_of_precisions_holds_with_anchors() -> None:
    for model in ("resnet50", "bert-large", "vit-b-16", "unet3d"):
        job = Job(model, gpu="a100-80gb-sxm")
        fp32, default, tf32 = (predict(job.replace(precision=p)).step.p50 for p in ("fp32", "torch-fp32", "tf32"))
        assert tf32 <= default * 1.0001
        assert default <= fp32 * 1.0001


def test_recurrent_layers_have_cudnns_switch() -> None:
    job = Job("small-lstm", batch_size=16)
    fp32, default, tf32 = (simulated_s(job, "a100-80gb-sxm", name) for name in ("fp32", "torch-fp32", "tf32"))
    assert tf32 <= default * (1 + 1e-12)  # a launch-bound step adds up in another order
    assert default <= fp32 * (1 + 1e-12)


def test_options_of_single_operators() -> None:
    gpu = default_catalog().gpu("a100-80gb-sxm")
    options = work_options(CONVOLUTIONS.replace(precision="torch-fp32"), gpu)
    assert options == WorkOptions(tf32_convolutions=True, efficient_masks="all")
    assert options.of_operator("aten.convolution_backward") == WorkOptions(tf32=True, efficient_masks="all")
    assert options.of_operator("pt.rnn") == WorkOptions(tf32=True, efficient_masks="all")
    assert options.of_operator("aten.addmm") == WorkOptions(efficient_masks="all")
    v100 = work_options(CONVOLUTIONS.replace(precision="torch-fp32"), default_catalog().gpu("v100-16gb-sxm"))
    assert v100 == WorkOptions(efficient_masks="all")


def test_the_baseline_of_a_comparison_and_its_explanation() -> None:
    rows = compare(cross(CONVOLUTIONS.replace(gpu="a100-80gb-sxm"), precision=["amp-fp16", "fp32", "torch-fp32"]))
    assert rows.baseline is not None
    assert rows.baseline.job.precision == "torch-fp32"
    assert "as torch-fp32" in "\n".join(rows.explanations())
    notes = predict(CONVOLUTIONS.replace(gpu="a100-80gb-sxm", precision="torch-fp32")).assumptions
    assert any(note.startswith("torch-fp32, PyTorch's default: convolutions") for note in notes)
