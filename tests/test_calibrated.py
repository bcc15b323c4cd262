"""Kernels of calibrated devices: points are reproduced, joined sensibly, borrowed openly and never beat the floor."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fakes import MB, TWO, US, device, kernel_row, product, traffic
from precision_time.capture.graph import OpSignature, TensorSpec
from precision_time.hardware import Gpu
from precision_time.layout.segment import OpSignatures
from precision_time.timing.calibrated import apply_calibration
from precision_time.timing.interpolation import MonotoneCurve, SmoothSurface
from precision_time.timing.kernels import SOURCES, KernelModel, KernelTimes, WorkTable
from precision_time.timing.kind_works import kind_works
from precision_time.timing.operators import WorkOptions, operator_key
from precision_time.timing.work import Attention, Convolution, Work, attention_work, conv_work, memory_work

MODEL = KernelModel(scales={})


def timed(gpu: Gpu, operator: str, *works: Work) -> KernelTimes:
    """Each work as an operator of its own."""
    table = WorkTable.from_works(works, [operator] * len(works))
    return apply_calibration(MODEL.seconds(table, gpu), table, np.arange(len(works)), gpu)[0]


def sources(times: KernelTimes) -> list[str]:
    return [SOURCES[code] for code in times.source]


# --- traffic: one curve over bytes ------------------------------------------------------------------------------


def test_between_two_points_time_is_straight_on_log_axes() -> None:
    times = timed(device(TWO), "aten.add", traffic(1), traffic(2), traffic(4), traffic(0.01), traffic(40))
    # below the smallest the call costs what it costs; above the largest 10 GB/s hold
    assert times.seconds == pytest.approx(np.array([100, 200, 400, 100, 4000]) * US)
    assert sources(times) == ["measured", "interpolated", "measured", "interpolated", "interpolated"]
    assert times.log_spread[0] < 0.05 < times.log_spread[4]


def test_what_falls_with_size_is_averaged() -> None:
    curve = MonotoneCurve(np.array([4e6, 1e6, 2e6]), np.array([5.0, 2.0, 1.0]), np.zeros(3))
    assert curve.seconds(np.array([1e6, 2e6, 4e6])) == pytest.approx([2**0.5, 2**0.5, 5.0])
    assert curve.deviation == pytest.approx(np.log(2) / 2 * (2 / 3) ** 0.5)


def test_no_time_is_below_the_floor() -> None:
    rows = [kernel_row("aten.add", traffic(1), 100 * US), kernel_row("aten.add", traffic(100), 101 * US)]
    times = timed(device(rows), "aten.add", traffic(100))
    assert times.seconds[0] == times.floor_seconds[0] == pytest.approx(100e6 / 40e9)


def test_a_sweep_over_many_tensors_costs_as_many_calls() -> None:
    many = memory_work("optimizer", MB / 2, MB / 2, launches=500)
    rows = [*TWO, kernel_row("pt.sweep:mul", traffic(0.01, "optimizer"), 2 * US),
            kernel_row("pt.sweep:mul", traffic(4, "optimizer"), 200 * US)]  # fmt: skip
    assert timed(device(rows), "pt.sweep:mul", many).seconds[0] == pytest.approx(500 * 2 * US)


def test_where_a_work_looks_for_points() -> None:
    """The operator, one alike, its family, the operator or family in float32, any pointwise: one after another."""
    work = traffic(2, "softmax", "bfloat16", "bwd")
    name = "aten._softmax_backward_data"
    places = [
        (name, traffic(2, "softmax", "bfloat16", "bwd"), "measured"),
        (name, traffic(2, "softmax", "bfloat16", "fwd"), "assumed"),
        ("aten._log_softmax_backward_data", traffic(2, "softmax", "bfloat16", "bwd"), "assumed"),
        ("aten.other", traffic(2, "softmax", "bfloat16", "bwd"), "assumed"),
        ("aten.other", traffic(2, "softmax", "bfloat16"), "assumed"),
        (name, traffic(2, "softmax", "float32", "bwd"), "assumed"),
        ("aten.other", traffic(2, "softmax", "float32"), "assumed"),
        ("aten.relu", traffic(2, "pointwise", "bfloat16"), "assumed"),
        ("aten.relu", traffic(2, "pointwise", "float32"), "assumed"),
    ]
    for first in range(len(places)):
        rows = [kernel_row(op, at, (100 + i) * US) for i, (op, at, _) in enumerate(places)][first:]
        times = timed(device(rows), name, work)
        assert times.seconds[0] == pytest.approx((100 + first) * US), first
        assert sources(times) == [places[first][2]]
        assert times.log_spread[0] >= (0.3 if first else 0.0)
    nothing = device([kernel_row("aten.mm", product(64, 64, 64), 20 * US)])
    untouched = MODEL.seconds([work], nothing)
    assert timed(nothing, name, work).seconds == pytest.approx(untouched.seconds)


@pytest.mark.parametrize(("device_type", "expected_us"), [("cpu", 900), ("cuda", 100)])
def test_on_a_cpu_half_numbers_stand_for_as_many_wide_ones(device_type: str, expected_us: float) -> None:
    """A loop over elements takes its time by elements: a pooling of 1 MB in bfloat16 is one of 2 MB in float32."""
    name = "aten.max_pool2d_with_indices"
    pooled = kernel_row(name, traffic(1, "pooling", "bfloat16"), 900 * US)
    rows = [pooled, kernel_row("aten.relu", traffic(2, "pointwise"), 100 * US)]
    times = timed(device(rows, device_type), name, traffic(2, "pooling"))
    assert times.seconds[0] == pytest.approx(expected_us * US)
    assert sources(times) == ["assumed"]


def test_an_operator_timed_as_a_whole_is_not_counted_twice() -> None:
    spec = TensorSpec((1000, 256), "float32")
    index = TensorSpec((100,), "int64")
    kinds = OpSignatures(
        [OpSignature("aten.embedding_dense_backward", (TensorSpec((100, 256), "float32"), index), (spec,))]
    )
    table = kind_works(kinds, WorkOptions())
    largest = traffic(spec.nbytes / MB, "fill", variant="")
    found = device([kernel_row("aten.embedding_dense_backward", largest, 500 * US), *TWO])
    times, covered = apply_calibration(MODEL.seconds(table.table, found), table.table, table.owner, found)
    assert covered.all()
    assert times.seconds.sum() == pytest.approx(500 * US)
    assert np.all(times.seconds >= times.floor_seconds)


@pytest.mark.parametrize(("device_type", "bias_us"), [("cpu", 0), ("cuda", 100)])
def test_a_bias_is_a_kernel_of_its_own_on_gpus_alone(device_type: str, bias_us: float) -> None:
    x, w, bias = (TensorSpec(shape, "float32") for shape in ((1, 16, 32, 32), (16, 16, 3, 3), (16,)))
    conv = OpSignature("aten.convolution", (x, w, bias), (x,), (("stride", (1, 1)),))
    table = kind_works(OpSignatures([conv]), WorkOptions())
    main = conv_work(Convolution(1, 16, 16, (32, 32), (32, 32), (3, 3), (1, 1), 1), "fp32", 4)
    found = device([kernel_row("aten.convolution", main, 300 * US), *TWO], device_type)
    times, _ = apply_calibration(MODEL.seconds(table.table, found), table.table, table.owner, found)
    assert times.seconds.sum() == pytest.approx((300 + bias_us) * US, rel=0.02)


# --- products and attention: a surface of utilisation -------------------------------------------------------------


def true_seconds(work: Work) -> float:
    """An invented device: every side of a product has a size at which half of the efficiency is reached."""
    _, m, n, k = work.shape
    return 4 * US + work.flops / (0.9e11 * m / (m + 20) * n / (n + 30) * k / (k + 60))


SIDES = (16, 64, 256, 1024)
PRODUCTS = [product(m, n, k) for i, m in enumerate(SIDES) for n in SIDES for k in SIDES[i % 2 :: 2]]
SQUARE = device([kernel_row("aten.mm", work, true_seconds(work), 0.02) for work in PRODUCTS])


def test_points_are_reproduced_within_their_noise() -> None:
    times = timed(SQUARE, "aten.mm", *PRODUCTS)
    assert np.log(times.seconds / [true_seconds(w) for w in PRODUCTS]) == pytest.approx(0, abs=0.06)
    assert set(sources(times)) == {"measured"}
    assert times.log_spread.max() < 0.1


def test_between_points_the_surface_is_smooth_and_outside_it_is_unsure() -> None:
    between = [product(m, n, k) for m in (32, 100, 700) for n in (50, 400) for k in (90, 600)]
    times = timed(SQUARE, "aten.mm", *between)
    assert np.log(times.seconds / [true_seconds(w) for w in between]) == pytest.approx(0, abs=0.14)
    assert set(sources(times)) == {"interpolated"}
    far = timed(SQUARE, "aten.mm", product(16 * 1024, 1024, 1024))
    assert far.log_spread[0] > 0.15 * np.log(16) > times.log_spread.max()


@given(st.integers(1, 20000), st.integers(1, 20000), st.integers(1, 20000), st.sampled_from(["aten.mm", "aten.bmm"]))
def test_no_product_is_below_the_floor(m: int, n: int, k: int, operator: str) -> None:
    times = timed(SQUARE, operator, product(m, n, k))
    assert times.floor_seconds[0] <= times.seconds[0] < np.inf
    assert 0 < times.utilisation[0] <= 1
    assert times.log_spread[0] >= (0.3 if operator == "aten.bmm" else 0.02)


@given(st.floats(0, 1e9), st.floats(0, 1e9), st.lists(st.tuples(st.floats(1, 1e8), st.floats(1e-6, 1)), min_size=1))
def test_more_bytes_are_never_faster(few: float, more: float, points: list[tuple[float, float]]) -> None:
    gpu = device([kernel_row("aten.add", memory_work("pointwise", size, 0.0, variant="fwd"), s) for size, s in points])
    works = [memory_work("pointwise", size, 0.0, variant="fwd") for size in (few, few + more)]
    times = timed(gpu, "aten.add", *works)
    assert times.seconds[0] <= times.seconds[1] * (1 + 1e-12)
    assert np.all(times.seconds >= times.floor_seconds)


def test_related_families_lend_their_utilisation() -> None:
    works = [
        conv_work(Convolution(4, 64, 64, (28, 28), (28, 28), (3, 3), (1, 1), 1), "fp32", 4),
        attention_work(Attention(2, 8, 8, 128, 128, 64), "fp32", 4),
    ]
    times = timed(SQUARE, "aten.unmeasured", *works)
    assert sources(times) == ["assumed", "assumed"]
    assert np.all(times.log_spread >= 0.3)
    assert np.all(times.seconds > times.floor_seconds)


def test_a_causal_mask_and_the_taps_of_a_kernel_tell_points_apart() -> None:
    causal, full = (attention_work(Attention(2, 8, 8, 512, 512, 64, causal=c), "fp32", 4) for c in (True, False))
    wide = conv_work(Convolution(8, 64, 64, (28, 28), (28, 28), (3, 3), (1, 1), 1), "fp32", 4)
    narrow = conv_work(Convolution(8, 576, 64, (28, 28), (28, 28), (1, 1), (1, 1), 1), "fp32", 4)
    assert causal.shape == full.shape
    assert wide.shape == narrow.shape
    for operator, slow, fast in (("pt.attention", causal, full), ("aten.convolution", wide, narrow)):
        measured = [slow.flops / 2.5e10, fast.flops / 5e10]
        gpu = device([kernel_row(operator, work, s) for work, s in zip((slow, fast), measured, strict=True)])
        assert timed(gpu, operator, slow, fast).seconds == pytest.approx(measured, rel=0.1)


def test_operators_of_a_family_help_each_other() -> None:
    """Four products without a bias, 32 with one that take 1.3 times as long: their shape, its level."""
    rows = [kernel_row("aten.addmm", work, 1.3 * true_seconds(work)) for work in PRODUCTS]
    few = [kernel_row("aten.mm", work, true_seconds(work)) for work in PRODUCTS[::8]]
    unknown = [work for i, work in enumerate(PRODUCTS) if i % 8]
    truth = np.array([true_seconds(w) for w in unknown])
    alone, together = (timed(device(found), "aten.mm", *unknown) for found in (few, [*few, *rows]))
    error = [float(np.sqrt(np.mean(np.log(times.seconds / truth) ** 2))) for times in (alone, together)]
    assert error[1] < min(0.15, 0.4 * error[0]), error
    assert set(sources(together)) == {"interpolated"}


def test_a_surface_of_one_point_is_that_point() -> None:
    surface = SmoothSurface(np.zeros((1, 2)), np.zeros((1, 2), dtype=np.intp), np.array([-1.5]), np.array([0.02]))
    here = np.array([[0.0, 0.0], [3.0, 4.0]])
    values, spread = surface.at(here, np.zeros((2, 2), dtype=np.intp))
    assert values == pytest.approx([-1.5, -1.5])
    assert spread[0] < 0.05 < spread[1]
    _, unseen = surface.at(here, np.full((2, 2), -1, dtype=np.intp))
    assert np.all(unseen > spread)


def test_names_of_operators() -> None:
    assert operator_key(OpSignature("aten.add_", (), ())) == "aten.add"
    assert operator_key(OpSignature("pt.sweep", (), (), (("label", "mul_"),))) == "pt.sweep:mul"
