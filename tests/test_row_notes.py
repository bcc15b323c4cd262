"""What the notes of a row say of its job: scaling of fp8, dropped tokens, ranks that share states, hidden traffic."""

from __future__ import annotations

import pytest

from precision_time.measurements.row import Row, row_of
from precision_time.measurements.table import OPTIONAL, REQUIRED
from precision_time.prediction import predict


def _row(layout: str, precision: str, notes: str) -> Row:
    cells = {
        **dict.fromkeys((*REQUIRED, *OPTIONAL), ""), "id": "r", "trust": "A", "model": "qwen3-30b-a3b",
        "gpu": "h100-80gb-sxm", "gpus": "16", "batch_size": "1", "precision": precision, "parallelism": layout,
        "framework": "torchtitan", "step_time_s": "1.0", "notes": notes,
    }  # fmt: skip
    return row_of(2, cells)


@pytest.mark.parametrize(
    ("layout", "notes", "precision", "setting"),
    [
        ("ep=8,dp=16,zero=1", "FP8-CS; router force-balanced, token-drop capacity", "fp8", "capacity_factor=1"),
        ("dp=16,zero=1", "Precision printed MXFP8; preset X", "fp8-block", ""),
        ("tp=8,dp=2,sp=1,zero=3,etp=1", "async TP; float8 rowwise", "fp8-rowwise", "overlap_tp=1"),
        ("dp=16,zero=1", "zero1 group 8 (-1: all data-parallel ranks)", "fp8", "shard=8"),
        ("dp=16,zero=1", "zero1 group 16 (-1: all data-parallel ranks)", "fp8", ""),
        ("dp=16,zero=1", "zero1 group -1 (-1: all data-parallel ranks)", "fp8", ""),
    ],
)  # fmt: skip
def test_a_job_is_what_the_notes_of_its_row_state(layout: str, notes: str, precision: str, setting: str) -> None:
    row, plain = _row(layout, "fp8", notes), _row(layout, "fp8", "")
    assert row.job is not None
    assert plain.job is not None
    assert row.job == plain.job.replace(
        precision=precision, layout=f"{layout},{setting}" if setting else plain.job.layout
    )
    assert (setting.replace("=", " ") in row.assumed) is bool(setting)
    assert (f"precision {precision}" in row.assumed) is (precision != "fp8")
    assert row.precision == "fp8", "the row keeps the name of its table"


def test_notes_on_fp8_change_no_other_precision() -> None:
    row = _row("dp=16,zero=1", "bf16", "compared with float8 rowwise")
    assert row.job is not None
    assert row.job.precision == _row("dp=16,zero=1", "bf16", "").job.precision  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("model", "optimizer", "torch", "kernels"),
    [
        ("tft", "", "", "fused"),  # apex FusedAdam
        ("bart-large", "adam", "", "fused"),
        ("efficientdet-d0", "sgd", "", "fused"),
        ("quartznet-15x5", "novograd", "", "fused"),
        ("jasper-10x5dr", "novograd", "", "torch1"),  # NVIDIA's own, in Python
        ("waveglow", "adam", "", "torch1"),  # torch.optim
        ("tft", "adam", "2.4", None),
    ],
)
def test_kernels_of_an_optimizer_are_those_of_the_published_script(
    model: str, optimizer: str, torch: str, kernels: str | None
) -> None:
    cells = {
        **dict.fromkeys((*REQUIRED, *OPTIONAL), ""), "id": "r", "trust": "A", "model": model, "gpu": "a100-80gb-sxm",
        "gpus": "1", "precision": "amp-fp16", "framework": "pytorch", "step_time_s": "1.0",
        "optimizer": optimizer or "adam", "torch": torch,
    }  # fmt: skip
    job = row_of(2, cells).job
    assert job is not None
    assert job.optimizer_impl == kernels


def test_an_average_of_weights_is_the_models_unless_a_column_says_otherwise() -> None:
    cells = {
        **dict.fromkeys((*REQUIRED, *OPTIONAL), ""), "id": "r", "trust": "A", "model": "gpunet-0",
        "gpu": "a100-80gb-sxm", "precision": "amp-fp16", "step_time_s": "1.0",
    }  # fmt: skip
    usual, without = row_of(2, cells), row_of(2, cells | {"ema": "none"})
    assert "ema single" in usual.assumed
    assert not any(said.startswith("ema") for said in without.assumed)
    assert usual.job is not None
    assert without.job == usual.job.replace(ema="none")


def test_steps_without_a_scaler_neither_unscale_nor_wait() -> None:
    """As timm's benchmark runs them, which `timm_train.csv` is of."""
    cells = {
        **dict.fromkeys((*REQUIRED, *OPTIONAL), ""), "id": "r", "trust": "A", "model": "resnet50", "gpu": "rtx-3090",
        "precision": "amp-fp16", "framework": "pytorch", "step_time_s": "1.0", "optimizer": "sgd",
    }  # fmt: skip
    scaled = row_of(2, cells)
    plain = row_of(2, cells | {"notes": "pt110 cu113; no GradScaler; zero_grad before the timer"})
    assert "loss_scale none" in plain.assumed
    assert plain.job is not None
    assert scaled.job is not None
    assert plain.job == scaled.job.replace(loss_scale="none", torch="1.10", optimizer_impl="torch1")
    one, other = (predict(job.replace(anchors="none")) for job in (scaled.job, plain.job))
    assert one.breakdown["loss_scaling"] > other.breakdown["loss_scaling"] == 0.0
    assert one.breakdown["host_gaps"] > 1e-6 > other.breakdown["host_gaps"]


@pytest.mark.parametrize(("images", "long_side"), [("1", 1152), ("2", 1184), ("12", 1280), ("200", 1344)])
def test_batches_of_images_that_vary_are_as_large_as_the_largest_of_them(images: str, long_side: int) -> None:
    """By hand for 2: 1088 x 0.3025 + 1216 x 0.6 + 1344 x 0.0975 = 1190, and the nearest multiple of 32."""
    cells = {
        **dict.fromkeys((*REQUIRED, *OPTIONAL), ""), "id": "r", "trust": "B", "model": "maskrcnn-r50-fpn",
        "gpu": "a100-80gb-sxm", "precision": "amp-fp16", "framework": "pytorch", "batch_size": images,
        "input": "image_size=800x1333", "step_time_s": "1.0",
    }  # fmt: skip
    vary = row_of(2, {**cells, "notes": "image sizes vary (short side 800, long side to 1333)"})
    assert vary.job is not None
    assert vary.job.input["image_size"] == (800, long_side)
    assert f"input image_size=800x{long_side}" in vary.assumed
    fixed, others = row_of(2, cells), row_of(2, {**cells, "input": "image_size=512", "notes": "image sizes vary"})
    assert fixed.job is not None
    assert fixed.job.input["image_size"] == (800, 1333)
    assert others.job is not None
    assert others.job.input["image_size"] == 512
