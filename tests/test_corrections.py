"""Corrections on top of the curves: what the fit recovers, and what no table may ever do to a time."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from precision_time.hardware.gpu import Gpu
from precision_time.timing.corrections import AXES, CURVE, FREE, ROW, TERMS, UP, Correction, Knots
from precision_time.timing.kernels import KernelModel
from precision_time.timing.parameters import ParameterBook, read_data
from precision_time.timing.work import Attention, Convolution, Work, attention_work, conv_work, matmul_work, memory_work

SHIPPED = read_data("kernels.json")
BARE = {name: part for name, part in SHIPPED.items() if name != "corrections"}
WITH, WITHOUT = KernelModel(scales={}, fitted=SHIPPED), KernelModel(scales={}, fitted=BARE)
A100 = Gpu(
    name="a100", kernel_name="A100-SXM4-80GB", vendor="NVIDIA", arch="ampere", memory_bytes=80 << 30,
    memory_bytes_per_s=2039e9, sm_count=108, tdp_w=400.0,
    peaks={"fp64": 9.7e12, "fp32": 19.5e12, "tf32": 156e12, "fp16": 312e12, "bf16": 312e12},
)  # fmt: skip
P4 = Gpu(
    name="p4", kernel_name="P4", vendor="NVIDIA", arch="pascal", memory_bytes=8 << 30, memory_bytes_per_s=192e9,
    sm_count=20, peaks={"fp32": 5.5e12}, tdp_w=75.0,
)  # fmt: skip
H200 = replace(
    A100, name="h200", kernel_name="H200-SXM", arch="hopper", memory_bytes_per_s=4800e9, sm_count=132, tdp_w=700.0,
    peaks={"fp32": 66.9e12, "bf16": 989.4e12, "fp8": 1978.9e12},
)  # fmt: skip
UNSEEN = replace(A100, name="new", kernel_name="New-GPU")
size = st.integers(1, 6000)
device = st.sampled_from([A100, P4, H200, UNSEEN])


def seconds(model: KernelModel, *works: Work, gpu: Gpu = A100) -> np.ndarray:
    return model.seconds(works, gpu).seconds


def product(b: int, m: int, n: int, k: int, gpu: Gpu, fp8: bool = False) -> Work:
    if fp8 and gpu.has("fp8"):
        return matmul_work((b, m, n, k), "fp8", 1, 2)
    return matmul_work((b, m, n, k), "bf16", 2) if gpu.has("bf16") else matmul_work((b, m, n, k), "fp32", 4)


def convolution(n: int, c_in: int, c_out: int, image: int) -> Work:
    return conv_work(Convolution(n, c_in, c_out, (image, image), (image, image), (3, 3), (1, 1), 1), "fp32", 4)


def normalised(family: str, rows: int, cols: int) -> Work:
    return memory_work(family, 4.0 * rows * cols, 4.0 * rows * cols, variant="fwd", shape=(rows, cols))


# --- no table makes a time do what a curve may not ------------------------------------------------------------------


@given(st.integers(1, 64), size, size, size, st.integers(0, 3), st.integers(1, 900), device, st.booleans())
def test_a_larger_product_is_never_faster(
    b: int, m: int, n: int, k: int, axis: int, more: int, gpu: Gpu, fp8: bool
) -> None:
    larger = [b, m, n, k]
    larger[axis] += more
    small, large = seconds(WITH, product(b, m, n, k, gpu, fp8), product(*larger, gpu, fp8), gpu=gpu)
    assert large >= small * (1 - 1e-9)


@given(st.integers(1, 64), st.integers(1, 900), st.integers(1, 900), st.integers(1, 64), st.integers(0, 3),
       st.integers(1, 90), st.sampled_from([A100, P4]))  # fmt: skip
def test_a_larger_convolution_is_never_faster(
    n: int, c_in: int, c_out: int, image: int, axis: int, more: int, gpu: Gpu
) -> None:
    larger = [n, c_in, c_out, image]
    larger[axis] += more
    small, large = seconds(WITH, convolution(n, c_in, c_out, image), convolution(*larger), gpu=gpu)
    assert large >= small * (1 - 1e-9)


@given(st.integers(1, 64), st.integers(1, 32), size, size, st.integers(0, 3), st.integers(1, 900), st.booleans(),
       st.sampled_from([A100, H200, UNSEEN]))  # fmt: skip
def test_larger_attention_is_never_faster(
    b: int, heads: int, queries: int, keys: int, axis: int, more: int, causal: bool, gpu: Gpu
) -> None:
    larger = [b, heads, queries, keys]
    larger[axis] += more
    if causal:  # with causal masks more queries than keys are another problem
        larger[2] = queries = larger[3] if axis >= 2 else keys
        queries = keys
    small, large = seconds(
        WITH,
        *(
            attention_work(Attention(x, h, h, q, k, 64, causal=causal), "bf16", 2)
            for x, h, q, k in ((b, heads, queries, keys), larger)
        ),
        gpu=gpu,
    )
    assert large >= small * (1 - 1e-9)


@given(st.sampled_from(["softmax", "layer_norm"]), st.integers(1, 200_000), size, st.booleans(), size, device)
def test_more_rows_and_longer_rows_are_never_faster(
    family: str, rows: int, cols: int, longer: bool, more: int, gpu: Gpu
) -> None:
    other = (rows, cols + more) if longer else (rows + more, cols)
    small, large = seconds(WITH, normalised(family, rows, cols), normalised(family, *other), gpu=gpu)
    assert large >= small * (1 - 1e-9)


@settings(max_examples=200)
@given(st.integers(1, 300), size, size, size, device, st.booleans())
def test_twice_the_batch_costs_between_once_and_twice(b: int, m: int, n: int, k: int, gpu: Gpu, fp8: bool) -> None:
    pairs = [
        (product(b, m, n, k, gpu, fp8), product(2 * b, m, n, k, gpu, fp8)),
        (
            convolution(b, m % 900 + 1, n % 900 + 1, k % 64 + 1),
            convolution(2 * b, m % 900 + 1, n % 900 + 1, k % 64 + 1),
        ),
        (normalised("softmax", b * m, k), normalised("softmax", 2 * b * m, k)),
    ]
    if gpu.has("bf16"):
        pairs.append(tuple(attention_work(Attention(x, 8, 8, m, m, 64), "bf16", 2) for x in (b, 2 * b)))
    for once, twice in pairs:
        one, two = seconds(WITH, once, twice, gpu=gpu)
        assert one * (1 - 1e-9) <= two <= 2.0 * one * (1 + 1e-9)


@given(st.integers(1, 64), size, size, size, device, st.booleans())
def test_never_below_the_floor(b: int, m: int, n: int, k: int, gpu: Gpu, fp8: bool) -> None:
    for work in (
        product(b, m, n, k, gpu, fp8),
        normalised("softmax", m, n),
        convolution(b, m % 900 + 1, n % 900 + 1, 14),
    ):
        times = WITH.seconds([work], gpu)
        assert times.seconds[0] > times.floor_seconds[0]


def test_a_table_that_asks_for_less_than_the_floor_gets_the_floor() -> None:
    fast = json.loads(json.dumps(SHIPPED))
    corrections = fast["corrections"]["matmul|half"]
    corrections["devices"] = {
        A100.kernel_name: [(np.array(table) * 0 - 10).tolist() for table in corrections["shared"]]
    }
    work, start = product(1, 4096, 4096, 4096, A100), BARE["sets"]["matmul|half"][A100.kernel_name]["values"]["start"]
    times = KernelModel(scales={}, fitted=fast).seconds([work], A100)
    assert times.seconds[0] == pytest.approx(times.floor_seconds[0] + start)


@given(size, size, size, device)
def test_a_small_change_of_size_is_a_small_change_of_correction(m: int, n: int, k: int, gpu: Gpu) -> None:
    """The curve has steps, the correction has none: its slopes are bounded, also beyond the knots."""
    kind = "half" if gpu.has("bf16") else "fp32"
    correction = Correction.find(SHIPPED["corrections"], f"matmul|{kind}", gpu.kernel_name)
    assert correction is not None
    busy = np.array([1e-4, 1e-4 * 1.001])

    class Two:
        shape = np.array([[1.0, 1.0], [m, 1.001 * m], [n, 1.001 * n], [k, 1.001 * k]])
        convolution = details = np.ones((2, 2))

    one, two = correction.log2_factor(busy, Two, np.arange(2))
    assert abs(one - two) < 0.02


def test_shipped_tables_keep_the_rules() -> None:
    """Along a size no entry falls; along the curve the steepest and the flattest slopes add up to [-1, 0]."""
    for key, corrections in SHIPPED["corrections"].items():
        curve = key.partition("|")[0]
        knots = {name: np.array(at) for name, at in corrections["knots"].items()}
        assert all((np.diff(at) > 0).all() for at in knots.values())
        for tables in (corrections["shared"], *corrections["devices"].values()):
            low, high = np.zeros(len(knots[CURVE]) - 1), np.zeros(len(knots[CURVE]) - 1)
            for (one, other), entries in zip(TERMS[curve], tables, strict=True):
                table = np.array(entries)
                for axis, name in enumerate((one, other)):
                    kind = UP if name == CURVE else AXES[curve][name][1]
                    slopes = np.diff(table, axis=axis)
                    if name == CURVE:
                        slopes = slopes / np.diff(knots[CURVE])[:, None]
                        low, high = low + slopes.min(axis=1), high + slopes.max(axis=1)
                    elif kind == UP:
                        assert slopes.min() >= 0.0, (key, name)
                    else:
                        assert kind in (ROW, FREE)
            assert low.min() >= -1.0, key
            assert high.max() <= 0.0, key


# --- who gets which table ---------------------------------------------------------------------------------------------


def test_an_unseen_device_gets_the_shared_part_only() -> None:
    corrections = SHIPPED["corrections"]["matmul|half"]
    of_device = Correction.find(SHIPPED["corrections"], "matmul|half", A100.kernel_name)
    other = Correction.find(SHIPPED["corrections"], "matmul|half", UNSEEN.kernel_name)
    assert of_device is not None
    assert other is not None
    assert [table.tolist() for table in other.tables] == corrections["shared"]
    assert (
        [table.tolist() for table in of_device.tables]
        == corrections["devices"][A100.kernel_name]
        != corrections["shared"]
    )


def test_a_class_without_correction_is_exactly_the_bare_curve() -> None:
    works = [
        matmul_work((1, 777, 512, 4096), "tf32", 4),  # borrows the curve of half, not what was seen beyond it
        conv_work(Convolution(8, 64, 64, (28, 28), (28, 28), (3, 3), (1, 1), 1), "fp16", 2),
        conv_work(Convolution(8, 64, 64, (28, 28), (28, 28), (1, 1), (1, 1), 1), "fp32", 4),
        conv_work(Convolution(8, 64, 64, (28, 28), (28, 28), (3, 3), (1, 1), 1), "fp32", 4, direction="wgrad"),
        attention_work(Attention(8, 16, 16, 512, 512, 64), "bf16", 2, direction="bwd"),
        memory_work("softmax", 1e8, 1e8, dtype="float16", variant="fwd", shape=(1e5, 500)),
        memory_work("softmax", 1e8, 1e8, variant="bwd", shape=(1e5, 500)),
        memory_work("softmax", 1e8, 1e8, variant="fwd"),
        memory_work("pointwise", 1e8, 1e8),
    ]
    assert (seconds(WITH, *works) == seconds(WITHOUT, *works)).all()
    measured = [product(1, 777, 512, 4096, A100), normalised("softmax", 10_000, 3000), convolution(32, 64, 64, 28)]
    assert (seconds(WITH, *measured) != seconds(WITHOUT, *measured)).all()


def test_what_we_measured_ourselves_takes_no_correction_of_others() -> None:
    measured_set = {"values": {"e256x128": 0.5, "memory": 0.5, "start": 1e-6}, "variants": [""], "log_spread": 0.1}
    book = ParameterBook(fitted={**SHIPPED, "own": {"matmul|half": {A100.kernel_name: measured_set}}}, scales={})
    where = ("matmul", "", "half", A100.kernel_name, "ampere")
    assert book.resolve(*where).correction is None
    assert ParameterBook(fitted=SHIPPED, scales={}).resolve(*where).correction is not None


def test_outside_the_knots_the_edge_holds() -> None:
    knots = Knots([np.array([2.0, 4.0, 8.0]), np.array([0.0, 1.0])])  # axes of other lengths
    below, share = knots.places(np.array([[-5.0, 2.0, 5.0, 8.0, 99.0], [-1.0, 0.0, 0.25, 1.0, 2.0]]))
    assert below.tolist() == [[0, 0, 1, 1, 1], [0] * 5]
    assert share.tolist() == [[0.0, 0.0, 0.25, 1.0, 1.0], [0.0, 0.0, 0.25, 1.0, 1.0]]
    huge = [product(1, 1 << p, 1 << p, 1 << p, A100) for p in (18, 19)]
    ratio = seconds(WITH, *huge) / seconds(WITHOUT, *huge)
    assert ratio[0] == pytest.approx(ratio[1], rel=1e-4)


def test_a_borrowed_set_sustains_less_where_more_flops_share_a_watt() -> None:
    """Half of the power for the same peak: efficiencies fall by the root of two; a measured device is as measured."""

    def efficiency(name: str, flops_per_w: float) -> float:
        parameters = ParameterBook(scales={}).resolve("matmul", "", "fp32", name, "volta", flops_per_w)
        return float(parameters.values[0])

    source = float(SHIPPED["sets"]["matmul|fp32"]["arch:volta"]["flops_per_w"])
    usual = efficiency("New-GPU", source)
    assert efficiency("New-GPU", 2 * source) == pytest.approx(usual / 2**0.5)
    assert efficiency("New-GPU", source / 2) == usual == efficiency("New-GPU", 0.0)
    assert efficiency("V100-PCIE-32GB", 9 * source) == efficiency("V100-PCIE-32GB", 0.0)


def test_many_small_products_do_not_come_below_their_curve_where_no_batch_was_measured() -> None:
    """One long product of these sides takes half of its curve's time; many that take as long together do not."""
    many, long = (4096, 384, 64, 384), (1, 4096 * 384, 64, 384)

    def ratio(shape: tuple[int, int, int, int], math: str, gpu: Gpu) -> float:
        work = matmul_work(shape, math, 4 if math == "fp32" else 2)
        return float((seconds(WITH, work, gpu=gpu) / seconds(WITHOUT, work, gpu=gpu)).item())

    for gpu in (A100, H200):
        assert ratio(long, "bf16", gpu) < 0.95
        assert ratio(many, "bf16", gpu) == pytest.approx(1.0, abs=0.02)
    grid = Correction.find(SHIPPED["corrections"], "matmul|fp32", "V100-PCIE-32GB")
    assert grid is not None
    assert grid.grid.batched  # that table has products of several matrices


# --- the fit ----------------------------------------------------------------------------------------------------------


def _synthetic(gpu: Gpu, lift: float, noise: float = 0.02) -> Any:
    """Products that take 2^lift times their curve where rows are long, and the curve where they are short."""
    from precision_time.fit.kernel_tables import Rows

    rng = np.random.default_rng(int(lift * 100))
    works = [product(1, *(int(2**e) for e in rng.uniform(6, 13, 3)), gpu) for _ in range(400)]
    rows = np.log2([work.shape[1] for work in works])
    g = lift * np.clip((rows - 7) / 5, 0, 1)
    curve = KernelModel(scales={}, fitted=BARE).seconds(works, gpu).seconds
    measured = curve * np.exp2(g) * np.exp(rng.normal(0, noise, len(works)))
    return Rows("matmul", "half", gpu, works, measured, True, "made up")


def _judge(content: dict[str, Any], rows: Any) -> float:
    times = KernelModel(scales={}, fitted=content).seconds(rows.works, rows.gpu).seconds
    return float(np.median(np.abs(times / rows.seconds - 1)))


def test_the_fit_recovers_a_known_correction_and_what_a_device_departs_by() -> None:
    pytest.importorskip("scipy")
    from precision_time.fit.kernel_corrections import fit_corrections

    names = ("A100-SXM4-80GB", "H200-SXM", "H100-SXM-80GB")
    groups = [_synthetic(replace(H200, kernel_name=n), lift) for n, lift in zip(names, (0.5, 0.6, 1.0), strict=True)]
    content = {**BARE, "corrections": fit_corrections(groups, SHIPPED["sets"])}
    for rows in groups:
        assert _judge(BARE, rows) > 0.15
        assert _judge(content, rows) < 0.04
    unseen = _synthetic(replace(H200, kernel_name="New-GPU"), 0.65)
    assert _judge(content, unseen) < 0.5 * _judge(BARE, unseen)


def test_the_solver_meets_inequalities_that_bind() -> None:
    """A target that falls along a size and rises along the curve is answered by the nearest table that may be."""
    pytest.importorskip("scipy")
    from precision_time.fit.monotone import Monotone, level

    knots = {CURVE: np.arange(4.0), "row": np.arange(3.0)}
    rules = Monotone("softmax", knots)
    target = np.add.outer(np.arange(4.0), -3.0 * np.arange(3.0))
    table = level("softmax", rules.tables(rules.solve(np.eye(12), target.ravel())))[0]
    assert np.diff(table, axis=0).max() <= 0.0
    lows = np.diff(table, axis=0).min(axis=1)
    for i in range(3):
        assert (np.diff(table, axis=1)[i : i + 2].min() + lows[i]) >= -0.96
    free = np.minimum.accumulate(np.full((4, 3), 0.5) * -np.add.outer(np.arange(4.0), np.zeros(3)), axis=0)
    assert level("softmax", rules.tables(rules.solve(np.eye(12), free.ravel())))[0] == pytest.approx(free, abs=0.01)


def test_the_cost_of_quantising_inside_a_timed_call_is_told_from_the_product() -> None:
    """Rows that spend 2.5 passes over their input before the product; the set that ships has no trace of them."""
    pytest.importorskip("scipy")
    from precision_time.fit.kernel_curves import fit_curve
    from precision_time.fit.kernel_tables import Rows

    rng = np.random.default_rng(1)
    sizes = [tuple(int(2**e) for e in rng.uniform(6, 14, 3)) for _ in range(300)]
    plain = [replace(product(1, *s, H200, fp8=True), serial_bytes=3.0 * s[0] * s[2], launches=2) for s in sizes]
    slower = [replace(work, serial_bytes=2.5 * work.serial_bytes) for work in plain]
    fitted = fit_curve([Rows("matmul", "fp8", H200, plain, seconds(WITHOUT, *slower, gpu=H200), True, "made up")])
    assert fitted["quantising"] == pytest.approx(2.5, rel=0.1)
    assert "quantising" not in fitted["values"]
