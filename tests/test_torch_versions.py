"""What a job's version of PyTorch changes: grouped convolutions in NHWC before 1.12."""

from __future__ import annotations

import pytest

from precision_time import Job, predict
from precision_time.capture.graph import OpSignature, TensorSpec
from precision_time.measurements.row import row_of
from precision_time.measurements.table import OPTIONAL, REQUIRED
from precision_time.timing.operators import BEFORE_1_12, WorkOptions, works


def convolution(groups: int) -> OpSignature:
    x, weight, y = ((8, 64, 56, 56), (64, 64 // groups, 3, 3), (8, 64, 56, 56))
    specs = [TensorSpec(shape, "float16") for shape in (x, weight, y)]
    attributes = (("stride", (1, 1)), ("padding", (1, 1)), ("dilation", (1, 1)), ("groups", groups))
    return OpSignature("aten.convolution", tuple(specs[:2]), (specs[2],), attributes)


@pytest.mark.parametrize("groups", [1, 4, 64])
@pytest.mark.parametrize("last", [True, False])
def test_only_grouped_convolutions_channels_last_have_other_kernels(groups: int, last: bool) -> None:
    (now,), (old,) = (works(convolution(groups), WorkOptions(False, last, slow)) or [] for slow in (False, True))
    assert (old.variant == now.variant + BEFORE_1_12) == (groups > 1 and last)
    assert (old.flops, old.bytes, old.shape) == (now.flops, now.bytes, now.shape)


@pytest.mark.parametrize(
    ("column", "notes", "expected"),
    [("", "pt112 cu113; no GradScaler", "1.12"), ("", "pt110 cu113", "1.10"), ("2.9", "pt112", "2.9"), ("", "", None)],
)
def test_a_row_names_its_version_in_its_column_or_notes(column: str, notes: str, expected: str | None) -> None:
    cells = dict.fromkeys((*REQUIRED, *OPTIONAL), "")
    cells |= {"model": "resnet50", "gpu": "rtx-3090", "precision": "amp-fp16", "step_time_s": "1", "notes": notes}
    job = row_of(1, cells | {"torch": column}).job
    assert job is not None
    assert job.torch == expected


def test_before_2_11_torch_chose_flash_attention_2() -> None:
    """A published row and a job that says the same are priced alike."""
    assert [Job("m", torch=version).attention_kernel for version in (None, "2.10", "2.11")] == [
        "flash",
        "flash2",
        "flash",
    ]
    words = {"model": "llama3-8b", "gpu": "h100-80gb-sxm", "gpus": "8", "precision": "bf16-master", "batch_size": "1"}
    cells = dict.fromkeys((*REQUIRED, *OPTIONAL), "") | words | {"framework": "torchtitan", "step_time_s": "1"}
    row = row_of(1, cells | {"parallelism": "fsdp", "attention": "flash", "optimizer": "adamw"})
    assert "torch 2.6" in row.assumed
    job = Job("llama3-8b", gpu="h100-80gb-sxm", gpus=8, precision="bf16-master", batch_size=1, layout="fsdp",
              framework="torchtitan", torch="2.6", optimizer="adamw", optimizer_impl="fused")  # fmt: skip
    assert row.job == job
    seconds = [
        predict(job.replace(**other)).step.p50
        for other in ({}, {"torch": None, "attention": "flash2"}, {"torch": None})
    ]
    assert seconds[0] == seconds[1] > seconds[2]
