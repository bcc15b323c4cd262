"""First layers of image networks: convolutions of fewer channels than tensor cores load at once are their own works."""

from __future__ import annotations

import csv

import pytest

from benchmarks.rigs.gpu_tables import part_of
from precision_time.hardware.catalog import default_catalog
from precision_time.measurements.repository import required_data_folder
from precision_time.timing.constants import shipped
from precision_time.timing.device_order import may_widen
from precision_time.timing.few_channels import STEPS_PER_SM_S
from precision_time.timing.kernels import KernelModel, WorkTable
from precision_time.timing.work import CONV, CONV_1D, CONV_FEW, CONV_GROUPED, Convolution, Work, conv_work

PROFILE = required_data_folder() / "measured" / "h100" / "profiled.csv"
H100 = default_catalog().gpu("h100-80gb-sxm")


def first(
    math: str = "fp16",
    channels: int = 3,
    groups: int = 1,
    direction: str = "fwd",
    layout: str = "nhwc",
    outputs: int = 64,
) -> Work:
    """A pass of ResNet's first layer, with other channels."""
    conv = Convolution(128, channels, outputs, (224, 224), (112, 112), (7, 7), (2, 2), groups)
    return conv_work(conv, math, 2.0 if math in ("fp16", "bf16") else 4.0, direction=direction, layout=layout)


@pytest.mark.parametrize(
    ("math", "channels", "groups", "family"),
    [
        ("fp16", 1, 1, CONV_FEW),
        ("bf16", 3, 1, CONV_FEW),
        ("fp16", 7, 1, CONV_FEW),
        ("fp16", 8, 1, CONV),
        ("tf32", 3, 1, CONV),
        ("fp32", 3, 1, CONV),
        ("fp16", 16, 4, CONV_GROUPED),
    ],
)
def test_fewer_channels_than_tensor_cores_load_are_a_family(math: str, channels: int, groups: int, family: str) -> None:
    assert first(math, channels, groups).family == family


def test_convolutions_over_a_line_are_none_of_them() -> None:
    assert conv_work(Convolution(8, 1, 64, (8192,), (8192,), (7,), (1,), 1), "fp16", 2.0).family == CONV_1D


def test_multiprocessors_limit_them() -> None:
    """128 images of 112 x 112 positions, two times 32 outputs, the root of 49 taps: 22.5 million steps on 132
    multiprocessors, whatever the pass and the number of channels."""
    seconds = 128 * 112 * 112 * 2 * 7 / (132 * STEPS_PER_SM_S)
    assert seconds == pytest.approx(1.158e-3, rel=1e-3)
    works = [first(direction=direction, channels=channels) for direction in ("fwd", "wgrad") for channels in (1, 3)]
    assert works[0].flops == 2 * 128 * 112 * 112 * 64 * 49
    parts = KernelModel(scales={}).parts(WorkTable.from_works(works), H100)
    assert parts.compute[0] == pytest.approx(seconds)
    larger = first(outputs=65)
    assert KernelModel(scales={}).parts(WorkTable.from_works([larger]), H100).compute == pytest.approx(1.5 * seconds)


def test_a_gpu_without_tensor_cores_computes_them_as_products() -> None:
    """A Titan Xp, which takes longer for the operations than its multiprocessors for the steps."""
    gpu = default_catalog().gpu("titan-xp")
    parts = KernelModel(scales={}).parts(WorkTable.from_works([first()]), gpu)
    assert parts.compute > 128 * 112 * 112 * 2 * 7 / ((gpu.sm_count or 0) * STEPS_PER_SM_S)


def test_bfloat16_has_other_kernels_in_nhwc_alone() -> None:
    assert first("bf16").variant == "fwd.bf16.nhwc"
    assert first("fp16").variant == "fwd.nhwc"
    assert first("bf16", layout="nchw").variant == first("fp16", layout="nchw").variant == "fwd.nchw"


def test_they_are_not_computed_in_wider_arithmetic() -> None:
    """Profiled steps take them in half precision, though TF32 would be predicted faster."""
    assert not may_widen(first().key, H100)


def measured_s(model: str, precision: str, memory_format: str) -> float:
    """Seconds of a forward first layer in a profiled step."""
    job = model, precision, memory_format
    with PROFILE.open(newline="") as file:
        of_job = [
            line for line in csv.DictReader(file) if (line["model"], line["precision"], line["memory_format"]) == job
        ]
    (line,) = (line for line in of_job if part_of(line) == "convolution_few")
    return float(line["us"]) / 1e6 / int(line["calls"])


@pytest.mark.parametrize(
    ("model", "precision", "memory_format"),
    [
        ("resnet50", "amp-fp16", "nhwc"),
        ("resnet50", "amp-fp16", "nchw"),
        ("timm:densenet121", "amp-bf16", "nhwc"),
    ],
)
def test_an_h100_takes_the_time_of_its_profiled_steps(model: str, precision: str, memory_format: str) -> None:
    """The same layer of 128 images, within 60 %: fitted, and 51 to 84 % too fast before they were a family."""
    work = first(precision.removeprefix("amp-"), layout=memory_format)
    predicted = float(shipped().kernels.seconds([work], H100).seconds[0])
    assert predicted == pytest.approx(measured_s(model, precision, memory_format), rel=0.6)
