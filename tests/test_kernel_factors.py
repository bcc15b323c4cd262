"""Factors on kernels: what they multiply, and their fit to whole steps."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from precision_time.fit.cases import case_of
from precision_time.fit.kernel_factors import Steps, cross_validate
from precision_time.fit.traced import ROWS, WORKS, Traced, read
from precision_time.fit.traced_rows import ALL, table_path
from precision_time.hardware import gpu
from precision_time.measurements.row import row_of
from precision_time.measurements.table import OPTIONAL, REQUIRED
from precision_time.timing.constants import StepConstants
from precision_time.timing.kernel_factors import (
    AXES,
    FILE,
    LARGEST,
    MEMORY,
    NO_FACTORS,
    PARTS,
    SIZE,
    KernelClass,
    KernelFactors,
    curves,
    sizes,
    terms,
)
from precision_time.timing.kernels import KernelModel
from precision_time.timing.parameters import read_data
from precision_time.timing.work import CONVOLUTIONS, Convolution, Work, conv_work, matmul_work, memory_work
from precision_time.timing.work_table import WorkTable

DATA = Path(__file__).parents[1] / "data"
A100 = gpu("a100-80gb-sxm")
PLAIN = KernelModel(scales={}, factors=NO_FACTORS)


def model(constants: dict[str, float], curves: dict[str, list[float]] | None = None) -> KernelModel:
    return KernelModel(scales={}, factors=KernelFactors(constants, curves or {}))


def seconds(of: KernelModel, work: Work) -> float:
    """Without the launch."""
    times = of.seconds([work], A100)
    return float(times.seconds[0] - PLAIN.parts(WorkTable.from_works([work]), A100).start[0, 0])


def convolution(
    channels: int = 64, direction: str = "fwd", stride: int = 1, images: int = 64, outputs: int = 0, math: str = "fp16"
) -> Work:
    out = (56 // stride, 56 // stride)
    sizes_of = Convolution(images, channels, outputs or 2 * channels, (56, 56), out, (3, 3), (stride, stride))
    return conv_work(sizes_of, math, 2.0 if math == "fp16" else 4.0, direction=direction, layout="nhwc")


# --- what they multiply


def test_a_term_multiplies_the_kernels_of_its_family() -> None:
    pointwise, softmax = memory_work("pointwise", 1e9, 1e9), memory_work("softmax", 1e9, 1e9)
    doubled = model({"memory:pointwise": math.log(2.0)})
    assert seconds(doubled, pointwise) == pytest.approx(2.0 * seconds(PLAIN, pointwise))
    assert seconds(doubled, softmax) == seconds(PLAIN, softmax)


def test_terms_of_a_class_add_up() -> None:
    product = matmul_work((1, 4096, 4096, 4096), "fp16", 2.0)
    both = model({"memory:matmul": 0.1, "memory:matmul|half|ampere": 0.2, "memory:matmul|half|hopper": 0.7})
    assert seconds(both, product) == pytest.approx(math.exp(0.3) * seconds(PLAIN, product))


def test_compute_and_memory_of_a_convolution_are_apart() -> None:
    heavy = convolution(512)
    assert seconds(model({"compute:conv": math.log(2.0)}), heavy) > 1.8 * seconds(PLAIN, heavy)
    assert seconds(model({"memory:conv": math.log(2.0)}), heavy) < 1.3 * seconds(PLAIN, heavy)


def test_a_curve_is_linear_between_its_knots() -> None:
    knots = AXES["inputs"]
    values = [0.0] * len(knots)
    values[list(knots).index(6.0)] = 0.4  # 64 channels
    curved = model({}, {"compute:dense|nhwc|half@inputs": values, "memory:dense|nhwc|half@inputs": values})
    for channels, log in ((64, 0.4), (128, 0.0), (32, 0.0), (96, 0.4 * (7.0 - math.log2(96)))):
        work = convolution(channels)
        assert math.log(seconds(curved, work) / seconds(PLAIN, work)) == pytest.approx(log, abs=1e-6)


def test_no_factor_is_larger_than_the_limit() -> None:
    work = memory_work("pointwise", 1e9, 1e9)
    assert seconds(model({"memory:pointwise": 9.0}), work) == pytest.approx(math.exp(LARGEST) * seconds(PLAIN, work))


def test_no_kernel_is_faster_than_its_floor() -> None:
    work = memory_work("pointwise", 1e9, 1e9)
    assert seconds(model({"memory:pointwise": -2.0}), work) == pytest.approx(2e9 / A100.memory_bytes_per_s)


@pytest.mark.parametrize("stride", [1, 2])
def test_all_passes_of_a_convolution_have_its_sizes(stride: int) -> None:
    works = [convolution(48, direction, stride) for direction in ("fwd", "dgrad", "wgrad")]
    found = dict(zip(AXES, sizes(WorkTable.from_works(works), np.arange(3)), strict=True))
    expected = {"inputs": 48, "outputs": 96, "taps": 9, "positions": (56 // stride) ** 2, "stride": stride**2}
    for axis, value in expected.items():
        assert found[axis] == pytest.approx([math.log2(value)] * 3), axis
    assert list(found["input_alignment"]) == list(found["output_alignment"]) == [0.0] * 3


@pytest.mark.parametrize(
    ("channels", "math", "doublings"),
    [(324, "fp16", 1), (324, "tf32", 0), (21, "fp16", 3), (18, "tf32", 1), (3, "fp16", 0), (96, "fp16", 0)],
)
def test_alignment_counts_doublings_to_whole_16_bytes(channels: int, math: str, doublings: int) -> None:
    """324 half numbers are 648 bytes, which twice are a multiple of 16; in tf32 they are 1,296."""
    table = WorkTable.from_works([convolution(channels, outputs=64, math=math)])
    found = dict(zip(AXES, sizes(table, np.arange(1)), strict=True))
    assert (list(found["input_alignment"]), list(found["output_alignment"])) == ([doublings], [0.0])


@pytest.mark.parametrize(("channels", "doublings"), [(128, 0), (96, 1), (144, 2), (40, 3), (3, 0)])
@pytest.mark.parametrize("direction", ["fwd", "dgrad", "wgrad"])
def test_alignment_of_a_depthwise_convolution_is_that_of_its_channels(
    channels: int, doublings: int, direction: str
) -> None:
    """To 64 of them, in every pass, whatever its outputs."""
    of = Convolution(8, channels, channels, (28, 28), (28, 28), (5, 5), (1, 1), channels)
    table = WorkTable.from_works([conv_work(of, "fp16", 2.0, direction=direction, layout="nhwc")])
    found = dict(zip(AXES, sizes(table, np.arange(1)), strict=True))
    assert (list(found["input_alignment"]), list(found["inputs"])) == ([doublings], [0.0])


def test_depthwise_kernels_in_tf32_share_their_curves_with_those_in_fp32() -> None:
    """They run on vector units, which know no tf32."""
    deep, dense = (
        {math: KernelClass(family, "fwd.nchw", math, "ampere", "") for math in ("half", "tf32", "fp32")}
        for family in ("conv_depthwise", "conv")
    )
    for part in ("compute", "memory"):
        assert list(curves(part, deep["tf32"])) == list(curves(part, deep["fp32"])) != list(curves(part, deep["half"]))
        assert list(curves(part, dense["tf32"])) == list(curves(part, dense["half"]))


def test_graphics_chips_share_terms() -> None:
    def shared(arch: str) -> set[str]:
        of = KernelClass("conv", "fwd.nchw", "half", arch, "card")
        return {name for name in terms("compute", of) if "graphics" in name}

    assert (
        shared("ada") == shared("ampere-ga10x") == shared("blackwell-gb20x") >= {"conv|half|graphics", "conv|graphics"}
    )
    assert shared("ampere") == shared("blackwell") == shared("turing") == set()


def test_a_class_without_terms_has_no_factor() -> None:
    of = KernelClass("conv", "fwd.nhwc", "half", "ampere", "A100-SXM4-80GB")
    assert not NO_FACTORS.vector(of).any()
    assert KernelFactors({"compute:conv": 1.0}, {}).vector(of).shape == (SIZE,)


@given(
    st.sampled_from(("fwd", "dgrad", "wgrad")),
    st.integers(1, 600),
    st.integers(1, 64),
    st.sampled_from(("fp16", "tf32", "fp32")),
    st.sampled_from(("nchw", "nhwc")),
    st.sampled_from(("a100-80gb-sxm", "v100-16gb-sxm", "rtx-3090", "h100-80gb-sxm", "l40s")),
)
def test_twice_the_batch_costs_once_to_twice_as_long(
    direction: str, channels: int, images: int, math_name: str, layout: str, name: str
) -> None:
    shipped, device = KernelModel(), gpu(name)
    if math_name == "tf32" and not device.has("tf32"):
        return
    width = 2.0 if math_name == "fp16" else 4.0
    works = [
        conv_work(
            Convolution(count, channels, channels, (28, 28), (28, 28), (3, 3), (1, 1)),
            math_name,
            width,
            direction=direction,
            layout=layout,
        )
        for count in (images, 2 * images)
    ]
    one, two = shipped.seconds(works, device).seconds
    assert one * (1 - 1e-9) <= two <= 2.0 * one * (1 + 1e-9)


# --- the fit


def steps_of(truth: KernelModel, families: int = 6, clock: float = 1.0) -> Steps:
    """Measured steps of small networks whose kernels take what `truth` says, on nodes of this clock."""
    generator = np.random.default_rng(0)
    works: list[Work] = []
    of_case, rows = [], []
    columns = dict.fromkeys((*REQUIRED, *OPTIONAL), "")
    for case in range(8 * families):
        own = [convolution(int(generator.choice([32, 64, 128, 256]))), memory_work("pointwise", 1e9, 1e9)]
        own += [matmul_work((1, 4096, 1024, int(generator.integers(1, 9)) * 512), "fp16", 2.0)]
        works += own
        of_case += [case] * len(own)
        taken = float(truth.seconds(own, A100).seconds.sum()) * math.exp(0.01 * generator.normal())
        cells = {"id": f"r{case}", "model": "resnet50", "gpu": A100.name, "precision": "amp-fp16", "trust": "A"}
        row = row_of(case + 2, {**columns, **cells, "framework": "pytorch", "step_time_s": repr(taken)})
        rows.append(replace(row, family=f"family{case % families}"))
    count = len(rows)
    zeros = np.zeros(count)
    table = WorkTable.from_works(works)
    traced = Traced(
        tuple(rows),
        np.arange(count),
        zeros,
        table,
        np.array(of_case),
        np.ones(len(works)),
        table.first(0),
        np.zeros(0, dtype=np.intp),
        (A100.name,) * count,
        np.full(count, clock),
    )
    return Steps(traced)


def test_the_slopes_are_those_of_the_seconds() -> None:
    steps = steps_of(PLAIN)
    theta = np.random.default_rng(1).normal(size=len(steps.design.names)) * steps.design.widths
    base, slopes = steps._kernels(theta)
    slope = sum(steps.design.transposed[part] @ slopes[part] for part in PARTS)
    for column in range(0, len(theta), 7):
        moved = theta.copy()
        moved[column] += 1e-5
        difference = (steps._kernels(moved)[0] - base).sum() / 1e-5
        assert difference == pytest.approx(slope[column], rel=1e-2, abs=1e-9), steps.design.names[column]


def test_a_faster_clock_shortens_every_kernel() -> None:
    nothing = np.zeros(len(steps_of(PLAIN).design.names))
    usual, fast = (steps_of(PLAIN, clock=clock).seconds(nothing) for clock in (1.0, 1.25))
    assert fast == pytest.approx(usual / 1.25)


def test_the_fit_finds_what_families_agree_on() -> None:
    truth = model({"compute:conv": math.log(1.6), "memory:conv": math.log(1.6)})
    steps = steps_of(truth)
    before = np.abs(np.log(steps.seconds(np.zeros(len(steps.design.names))) / steps.measured)).mean()
    after = np.abs(np.log(steps.seconds(steps.full) / steps.measured)).mean()
    held_out = np.abs(np.log(cross_validate(steps, lambda row: row.family).seconds / steps.measured)).mean()
    assert before > 0.1
    assert after < held_out < 0.5 * before
    rounded = KernelModel(scales={}, factors=steps.factors(steps.full))
    work = convolution(128)
    assert seconds(rounded, work) == pytest.approx(1.6 * seconds(PLAIN, work), rel=0.15)


def test_what_is_held_out_does_not_change_its_prediction() -> None:
    steps = steps_of(PLAIN)
    out = np.array([row.family == "family0" for row in steps.rows])
    before = steps.seconds(steps.fit(~out))[out]
    steps.measured = np.where(out, 3.0 * steps.measured, steps.measured)
    assert list(steps.seconds(steps.fit(~out))[out]) == list(before)


def test_rows_of_several_gpus_of_little_trust_in_another_framework_tell_nothing_of_kernels() -> None:
    steps, slow = steps_of(PLAIN), steps_of(PLAIN)
    out = np.array([row.family == "family0" for row in slow.rows])
    slow.rows = tuple(
        replace(row, trust="C", framework="tensorflow2", gpus=8) if waits else row
        for row, waits in zip(slow.rows, out.tolist(), strict=True)
    )
    slow.measured = np.where(out, 2.0 * slow.measured, slow.measured)
    assert list(slow.usable) == list(steps.usable), "they are judged as others are"
    assert list(slow.fitted_to) == list(steps.usable & ~out)
    everything = np.ones(len(out), dtype=np.bool_)
    assert slow.fit(everything) == pytest.approx(steps.fit(~out), abs=1e-9)


# --- what ships


def test_the_shipped_factors_name_known_terms() -> None:
    content = read_data(FILE)
    for name in (*content["constants"], *content["curves"]):
        assert name.partition(":")[0] in PARTS
    for name, values in content["curves"].items():
        assert len(values) == len(AXES[name.rpartition("@")[2]]), name
    assert all(abs(value) <= LARGEST for value in content["constants"].values())
    assert KernelFactors.shipped().constants == content["constants"]


def test_the_shipped_factors_were_fitted_to_the_tables_of_the_repository() -> None:
    if not (DATA / WORKS).is_file():
        pytest.skip("no clone of the repository")
    from precision_time.fit.provenance import sha256

    made = read_data(FILE)["provenance"]
    assert made["sha256"] == sha256(DATA / WORKS)
    assert made["rows_sha256"] == sha256(DATA / ROWS)
    assert made["tables"] == {name: sha256(table_path(DATA, name)) for name in ALL}
    traced = read(DATA)
    assert len(traced.rows) > 10_000
    assert {of_family for of_family, *_ in traced.table.classes} > CONVOLUTIONS


IN_ORDER = (
    "dle-pt-transformer-xl-large-wikitext103-train-v100-32gb-sxm-dgx-2h-1x-fp32-b8",
    "dle-pt-efficientnet-b4",
    "dle-pt-bert-large",
)
"""Rows in a node of another clock, and with kernels that weaker devices bound."""


def test_the_fit_times_kernels_as_predict_does() -> None:
    if not (DATA / WORKS).is_file():
        pytest.skip("no clone of the repository")
    steps = Steps(read(DATA, ("measurements.csv", "measurements_more.csv")))
    factors = KernelFactors.shipped()
    work_s = steps.calls * steps.in_order(factors)
    of_job = np.bincount(steps.traced.of_case, work_s)
    for start in IN_ORDER:
        number = next(i for i, row in enumerate(steps.rows) if row.id.startswith(start))
        row = steps.rows[number]
        assert row.job is not None
        timed, _ = case_of(row, row.job).run(StepConstants(factors=factors))
        known = float(timed.work_s @ timed.calls_per_kind[timed.works.owner])
        assert of_job[steps.traced.case[number]] == pytest.approx(known, rel=1e-3), row.id


def test_a_product_takes_wider_arithmetic_where_that_is_faster_and_then_moves_no_factor() -> None:
    sizes = [(64, 1024, 160, 8), (1, 4096, 4096, 4096)]
    own, wider = ([matmul_work(size, math, 4.0) for size in sizes] for math in ("tf32", "fp32"))
    narrow_s, wide_s = (PLAIN.seconds(works, A100).seconds for works in (own, wider))
    assert wide_s[0] < narrow_s[0]
    assert narrow_s[1] < wide_s[1]
    steps = steps_of(PLAIN, families=1)
    rows, table = steps.rows[:1], WorkTable.from_works([*own, convolution(64)])
    one = Steps(
        Traced(
            rows,
            np.zeros(1, dtype=np.intp),
            np.zeros(1),
            table,
            np.zeros(3, dtype=np.intp),
            np.ones(3),
            WorkTable.from_works(wider),
            np.arange(2),
            (A100.name,),
            np.ones(1),
        )
    )
    nothing = np.zeros(len(one.design.names))
    assert one.in_order(NO_FACTORS)[0] <= wide_s[0] * (1 + 1e-9)
    one.replace_works(nothing)
    assert np.isnan(one.replaced).tolist() == [False, True, True]
    _, _, slopes = one._works(nothing)
    assert slopes[MEMORY][0] == 0.0
    assert slopes[MEMORY][1] > 0.0
