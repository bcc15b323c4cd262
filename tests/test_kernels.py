"""Kernel times: never under the floor, monotone, in the right units, and close to the kernel tables."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from precision_time.errors import MissingPeakError
from precision_time.hardware.gpu import Gpu
from precision_time.timing.kernels import SOURCES, KernelModel, WorkTable
from precision_time.timing.parameters import ParameterBook, read_data
from precision_time.timing.work import (
    MEMORY_FAMILIES,
    Attention,
    Convolution,
    Recurrent,
    Work,
    attention_work,
    conv_work,
    matmul_work,
    memory_work,
    rnn_works,
)

A100 = Gpu(
    name="a100", kernel_name="A100-SXM4-80GB", vendor="NVIDIA", arch="ampere", memory_bytes=80 << 30,
    memory_bytes_per_s=2039e9, sm_count=108,
    peaks={"fp64": 9.7e12, "fp64_matrix": 19.5e12, "fp32": 19.5e12, "tf32": 156e12,
           "fp16": 312e12, "bf16": 312e12},
)  # fmt: skip
V100 = Gpu(
    name="v100", kernel_name="V100-SXM2-16GB", vendor="NVIDIA", arch="volta", memory_bytes=16 << 30,
    memory_bytes_per_s=900e9, sm_count=80, peaks={"fp64": 7.8e12, "fp32": 15.7e12, "fp16": 125e12},
)  # fmt: skip
UNKNOWN = Gpu(
    name="new", kernel_name="New-GPU", vendor="Other", arch="elbrus", memory_bytes=1 << 34,
    memory_bytes_per_s=1e12, peaks={"fp32": 20e12, "bf16": 200e12},
)  # fmt: skip
MODEL = KernelModel(scales={})

size = st.integers(1, 5000)
math_unit = st.sampled_from(["fp64", "fp32", "tf32", "fp16", "bf16"])
BYTES = {"fp64": 8, "fp32": 4, "tf32": 4, "fp16": 2, "bf16": 2}


def seconds(*works: Work, gpu: Gpu = A100) -> np.ndarray:
    return MODEL.seconds(works, gpu).seconds


def matmul(batch: int, m: int, n: int, k: int, unit: str) -> Work:
    return matmul_work((batch, m, n, k), unit, BYTES[unit])


def conv(n: int, c_in: int, c_out: int, image: int, kernel: int, unit: str, **how: str) -> Work:
    return conv_work(
        Convolution(n, c_in, c_out, (image, image), (image, image), (kernel,) * 2, (1, 1), 1), unit, BYTES[unit], **how
    )


@st.composite
def any_work(draw: st.DrawFn) -> Work:
    unit = draw(math_unit)
    kind = draw(st.sampled_from(["matmul", "conv", "grouped", "attention", "memory", "rnn"]))
    direction = draw(st.sampled_from(["fwd", "dgrad", "wgrad"]))
    layout = draw(st.sampled_from(["nchw", "nhwc"]))
    small = st.integers(1, 64)
    if kind == "matmul":
        return matmul(draw(small), draw(size), draw(size), draw(size), unit)
    if kind == "conv":
        kernel = draw(st.sampled_from([1, 3, 5, 7]))
        return conv(draw(small), draw(st.integers(1, 600)), draw(st.integers(1, 600)), draw(small), kernel,
                    unit, direction=direction, layout=layout)  # fmt: skip
    if kind == "grouped":
        groups, each = draw(small), draw(st.integers(1, 16))
        image, channels = draw(small), groups * each
        return conv_work(
            Convolution(draw(small), channels, channels, (image,) * 2, (image,) * 2, (3, 3), (1, 1), groups),
            unit,
            BYTES[unit],
            direction=direction,
            layout=layout,
        )
    if kind == "attention":
        heads = draw(small)
        return attention_work(
            Attention(
                draw(small),
                heads,
                heads,
                draw(size),
                draw(size),
                draw(st.sampled_from([40, 64, 128])),
                causal=draw(st.booleans()),
            ),
            unit,
            BYTES[unit],
            direction=draw(st.sampled_from(["fwd", "bwd"])),
        )
    if kind == "rnn":
        works = rnn_works(Recurrent(draw(small), draw(small), draw(size), draw(size), 4), unit, BYTES[unit])
        return works[draw(st.integers(0, 1))]
    family = draw(st.sampled_from(sorted(MEMORY_FAMILIES)))
    return memory_work(family, draw(st.floats(0, 1e10)), draw(st.floats(1, 1e10)), draw(small))


@given(any_work())
def test_never_below_the_floor_and_utilisation_is_a_share(work: Work) -> None:
    times = MODEL.seconds([work], A100)
    assert times.floor_seconds[0] <= times.seconds[0] < math.inf
    assert 0.0 < times.utilisation[0] <= 1.0
    assert work.floor_flops <= work.flops
    assert times.log_spread[0] > 0.0


@given(st.integers(1, 64), size, size, size, math_unit, st.integers(0, 3), st.integers(1, 700))
def test_a_larger_product_is_never_faster(b: int, m: int, n: int, k: int, unit: str, axis: int, more: int) -> None:
    shape = [b, m, n, k]
    larger = list(shape)
    larger[axis] += more
    small, large = seconds(matmul(*shape, unit), matmul(*larger, unit))
    assert large >= small * (1 - 1e-9)


@given(st.integers(1, 64), st.integers(1, 300), st.integers(1, 300), st.integers(1, 64), math_unit,
       st.sampled_from(["fwd", "dgrad", "wgrad"]), st.integers(0, 3), st.integers(1, 40))  # fmt: skip
def test_a_larger_convolution_is_never_faster(
    n: int, c_in: int, c_out: int, image: int, unit: str, direction: str, axis: int, more: int
) -> None:
    shape = [n, c_in, c_out, image]
    larger = list(shape)
    larger[axis] += more
    small, large = seconds(conv(*shape, 3, unit, direction=direction), conv(*larger, 3, unit, direction=direction))
    assert large >= small * (1 - 1e-9)


@given(st.sampled_from(sorted(MEMORY_FAMILIES)), st.floats(0, 1e10), st.floats(0, 1e10))
def test_more_bytes_are_never_faster(family: str, few: float, more: float) -> None:
    small, large = seconds(memory_work(family, few, 1.0), memory_work(family, few + more, 1.0))
    assert large >= small


@given(st.integers(1, 32), st.integers(1, 16), size, st.sampled_from([64, 80, 128]), st.integers(1, 500))
def test_longer_attention_is_never_faster(b: int, heads: int, seq: int, dim: int, more: int) -> None:
    works = [attention_work(Attention(b, heads, heads, s, s, dim, causal=True), "bf16", 2) for s in (seq, seq + more)]
    small, large = seconds(*works)
    assert large >= small


@settings(max_examples=60)
@given(st.integers(1, 128), size, st.integers(1, 600), st.integers(1, 64), math_unit)
def test_twice_the_batch_costs_between_once_and_twice(b: int, m: int, c: int, image: int, unit: str) -> None:
    for once, twice in (
        (matmul(b, m, c, 512, unit), matmul(2 * b, m, c, 512, unit)),
        (conv(b, c, 64, image, 3, unit), conv(2 * b, c, 64, image, 3, unit)),
        (
            attention_work(Attention(b, 8, 8, m, m, 64), unit, 2),
            attention_work(Attention(2 * b, 8, 8, m, m, 64), unit, 2),
        ),
        (memory_work("pointwise", b * c, b * c), memory_work("pointwise", 2 * b * c, 2 * b * c)),
    ):
        one, two = seconds(once, twice)
        assert one * (1 - 1e-9) <= two <= 2.05 * one


def test_hand_worked_roofline() -> None:
    """4096^3 bf16: 2 * 4096^3 / 312e12 = 440.5 us of operations, 3 * 4096^2 * 2 / 2039e9 = 49.4 us of
    bytes.
    """
    work = matmul_work((1, 4096, 4096, 4096), "bf16", 2)
    times = MODEL.seconds([work], A100)
    assert times.floor_seconds[0] == pytest.approx(440.5e-6, rel=1e-3)
    assert times.floor_seconds[0] / times.seconds[0] == pytest.approx(0.82, abs=0.08)  # cuBLAS reaches 250-270 TFLOP/s
    # 100 MB read, 100 MB written: 98.1 us at 2039 GB/s
    floor = MODEL.seconds([memory_work("pointwise", 1e8, 1e8)], A100).floor_seconds[0]
    assert floor == pytest.approx(98.1e-6, rel=1e-3)


def test_floor_counts_the_cheapest_algorithm() -> None:
    work = conv(32, 64, 64, 56, 3, "fp32")
    assert work.flops == 2 * 32 * 56 * 56 * 64 * 64 * 9
    assert work.floor_flops == pytest.approx(work.flops / 2.25)
    assert conv(32, 64, 64, 56, 1, "fp32").floor_flops == 2 * 32 * 56 * 56 * 64 * 64
    strided = conv_work(Convolution(32, 64, 64, (56, 56), (28, 28), (3, 3), (2, 2), 1), "fp32", 4)
    assert strided.floor_flops == strided.flops
    long = conv_work(Convolution(8, 64, 64, (4000,), (4000,), (31,), (1,), 1), "fp32", 4)
    assert long.floor_flops < long.flops / 8


def test_nchw_on_tensor_cores_pays_for_transposes_but_fp32_does_not() -> None:
    shape = (64, 256, 64, 56, 1)
    assert seconds(conv(*shape, "fp16", layout="nchw"))[0] > 1.2 * seconds(conv(*shape, "fp16", layout="nhwc"))[0]
    assert seconds(conv(*shape, "fp32", layout="nchw"))[0] == seconds(conv(*shape, "fp32", layout="nhwc"))[0]


def test_precision_orders_large_products() -> None:
    fp32, tf32, bf16 = seconds(*(matmul(1, 4096, 4096, 4096, unit) for unit in ("fp32", "tf32", "bf16")))
    assert fp32 > 4 * tf32 > 4 * bf16


def test_sources_say_what_was_measured() -> None:
    works = [
        matmul(1, 1024, 1024, 1024, "bf16"),
        matmul(1, 1024, 1024, 1024, "tf32"),
        memory_work("sort", 1e6, 1e6),
    ]
    times = MODEL.seconds(works, A100)
    assert [SOURCES[code] for code in times.source] == ["learned", "assumed", "assumed"]
    assert times.log_spread[0] < times.log_spread[1]


def test_missing_peak_is_an_error_and_unknown_devices_are_priced() -> None:
    with pytest.raises(MissingPeakError, match="tf32"):
        MODEL.seconds([matmul(1, 64, 64, 64, "tf32")], V100)
    times = MODEL.seconds([matmul(1, 2048, 2048, 2048, "bf16")], UNKNOWN)
    assert SOURCES[times.source[0]] == "assumed"


def test_step_scales_multiply_the_most_specific_key() -> None:
    work = conv(64, 256, 256, 28, 3, "fp16", direction="wgrad", layout="nhwc")
    plain = MODEL.seconds([work], A100).seconds[0]
    start = 3e-6
    scales = {"conv|*|half": 3.0, "conv.wgrad|ampere|half": 1.5, "matmul|ampere|half": 9.0}
    scaled = KernelModel(scales=scales).seconds([work], A100).seconds[0]
    assert scaled - start == pytest.approx(1.5 * (plain - start), rel=0.01)


def test_a_table_of_works_gives_the_same_as_the_list() -> None:
    works = [matmul(2, 300, 200, 100, "fp16"), conv(8, 64, 64, 28, 3, "fp32"), memory_work("cast", 1e6, 5e5),
             *rnn_works(Recurrent(20, 32, 128, 256, 4), "fp16", 2, direction="bwd")]  # fmt: skip
    together = MODEL.seconds(WorkTable.from_works(works), A100).seconds
    apart = [MODEL.seconds([work], A100).seconds[0] for work in works]
    assert together == pytest.approx(apart)
    assert len(MODEL.seconds([], A100).seconds) == 0


def test_every_number_set_by_hand_has_a_source() -> None:
    priors = read_data("kernel_priors.json")
    for part in ("rules", "relatives", "transfer"):
        for key, rule in priors[part].items():
            assert rule["source"], key
            assert rule["log_spread"] > 0, key
    book = ParameterBook(scales={})
    for family in MEMORY_FAMILIES - {"pointwise"}:
        assert book.resolve(family, "fwd", "half", "A100-SXM4-80GB", "ampere").log_spread >= 0.05


def test_fitted_sets_carry_their_provenance() -> None:
    content = read_data("kernels.json")
    assert all(len(entry["sha256"]) == 64 for entry in content["inputs"].values())
    for sets in content["sets"].values():
        for found in sets.values():
            assert found["rows"] > 0
            assert found["file"] in content["inputs"]
            assert 0 < found["median_error"] < 0.35
    files = {**content["inputs"], **content.get("measured", {})}
    assert all(len(entry["sha256"]) == 64 for entry in files.values())
    for sets in content.get("own", {}).values():  # told apart from what others measured
        for found in sets.values():
            assert found["rows"] > 0
            assert set(found["file"].split(" + ")) <= set(files)


def test_close_to_the_kernel_tables() -> None:
    pytest.importorskip("pandas")
    from precision_time.fit.kernel_tables import TABLES, read_gpus, read_products

    gpus = read_gpus()
    wanted = {name: gpus[name] for name in ("A100-SXM4-80GB", "H100-SXM-80GB", "H200-SXM", "B200-SXM")}
    for rows in read_products(Path(__file__).parents[1] / "data" / "kernels" / TABLES[1], wanted, 400):
        if rows.kind == "half":
            error = np.abs(MODEL.seconds(rows.works, rows.gpu).seconds / rows.seconds - 1)
            assert np.median(error) < 0.10, rows.gpu.kernel_name
