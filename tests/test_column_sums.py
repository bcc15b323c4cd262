"""Sums over the rows of a matrix: gradients of biases, and of scales by channel."""

from __future__ import annotations

import pytest

from precision_time.capture.graph import OpSignature, TensorSpec
from precision_time.hardware.catalog import default_catalog
from precision_time.timing.constants import shipped
from precision_time.timing.operators import WorkOptions, works
from precision_time.timing.work import Work

NCHW, NHWC = WorkOptions(), WorkOptions(channels_last=True)


def summed(*shape: int, dim: tuple[int, ...] = (0,)) -> OpSignature:
    left = tuple(1 if i in dim else side for i, side in enumerate(shape))
    return OpSignature("aten.sum", (TensorSpec(shape, "float16"),), (TensorSpec(left, "float16"),), (("dim", dim),))


def only(kind: OpSignature, options: WorkOptions = NCHW) -> Work:
    (work,) = works(kind, options) or []
    return work


@pytest.mark.parametrize(
    ("rows", "columns", "turns", "turn_us"),
    [
        # 32 threads by 4: 25,088 rows each; 1,568 blocks are wanted, 1,056 of two columns of blocks run at once
        (100_352, 192, 1_056 / 4, 0.35),
        # 16 threads by 8: 25,088 rows each, 1,568 blocks
        (200_704, 64, 1_568 / 8, 0.25),
        # 12 columns of blocks; 6,272 rows each
        (25_088, 1_536, 176 / 4, 0.35),
        # 401,408 rows of 32 threads: 256 rows to a block at most
        (1_605_632, 1_152, 401_408 / 256 / 4, 0.35),
    ],
)
def test_the_last_block_adds_what_the_others_found(rows: int, columns: int, turns: float, turn_us: float) -> None:
    work = only(summed(rows, columns))
    assert work.latency_s == pytest.approx(turns * turn_us * 1e-6)
    assert work.launches == 2, "a fill of the counter of blocks"


def test_few_rows_are_one_block() -> None:
    alone, shared = only(summed(1_020, 1_000)), only(summed(1_024, 1_000))
    assert (alone.launches, shared.launches) == (1, 2)
    assert alone.latency_s == pytest.approx(255 * 0.06e-6)
    assert shared.latency_s == pytest.approx(16 / 4 * 0.35e-6)


@pytest.mark.parametrize(
    ("rows", "columns", "measured_us"),
    [
        (100_352, 192, 131),
        (200_704, 384, 123),
        (50_176, 128, 53),
        (8_192, 768, 19),
        (802_816, 576, 411),
        (3_136, 192, 12),
        (2_048, 1_024, 11),
        (256, 1_000, 7.6),
    ],
)
def test_sums_of_an_h100(rows: int, columns: int, measured_us: float) -> None:
    """`data/measured/h100/profiled.csv`."""
    work = only(summed(rows, columns))
    found = shipped().kernels.seconds([work], default_catalog().gpu("h100-80gb-sxm")).seconds.sum()
    assert found == pytest.approx(measured_us * 1e-6, rel=0.25)


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        (summed(100_352, 190), NCHW),
        (summed(512, 196, 192), NCHW),
        (summed(100_352, 192, dim=(1,)), NCHW),
        (summed(128, 192, 28, 28, dim=(0, 2, 3)), NCHW),
        (summed(128, 192, 28, 28, dim=(2, 3)), NHWC),
    ],
)
def test_others_load_each_element_alone(kind: OpSignature, options: WorkOptions) -> None:
    assert only(kind, options).variant == "fwd.by_element"


def test_channels_of_images_are_columns_where_they_come_last() -> None:
    images = only(summed(128, 192, 28, 28, dim=(0, 2, 3)), NHWC)
    assert images.latency_s == only(summed(100_352, 192)).latency_s
    grad = TensorSpec((128, 192, 28, 28), "float16")
    weight = TensorSpec((192, 192, 1, 1), "float16")
    made = (grad, weight, TensorSpec((192,), "float16"))
    kind = OpSignature("aten.convolution_backward", (grad, grad, weight), made, (("output_mask", (False, True, True)),))
    bias = (works(kind, NHWC) or [])[-1]
    assert (bias.family, bias.latency_s) == ("reduction", images.latency_s)
    assert (works(kind, NCHW) or [])[-1].latency_s == 0.0
