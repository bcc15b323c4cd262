"""Relations between kernel times that hold on every GPU: wider arithmetic, weaker devices, larger sizes."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from precision_time.capture.graph import BYTES_PER_ELEMENT, OpSignature, TensorSpec
from precision_time.hardware.catalog import after_fit, cluster, default_catalog, stronger_gpus, weaker_gpus
from precision_time.hardware.fabric import Cluster
from precision_time.hardware.gpu import Gpu
from precision_time.job import Job
from precision_time.layout.segment import OpSignatures
from precision_time.prediction import predict
from precision_time.timing.constants import shipped
from precision_time.timing.few_channels import WHOLE_CHANNELS
from precision_time.timing.kernel_factors import NO_FACTORS
from precision_time.timing.operators import WorkOptions
from precision_time.timing.signature_times import time_signatures
from precision_time.timing.work import MEMORY_FAMILIES, Work, attention_work, conv_work, matmul_work, memory_work
from precision_time.timing.work import Attention as AttentionSizes
from precision_time.timing.work import Convolution as ConvolutionSizes

GPUS = sorted(name for name, gpu in default_catalog().gpus.items() if "fp32" in gpu.peaks)
DTYPES = {"fp32": "float32", "tf32": "float32", "fp16": "float16", "bf16": "bfloat16", "fp8": "float8_e4m3fn"}
TOLERANCE = 1e-9

size = st.integers(1, 4000)
small = st.integers(1, 64)


@st.composite
def products(draw: st.DrawFn) -> tuple[str, tuple[int, ...]]:
    name = draw(st.sampled_from(["aten.mm", "aten.bmm", "aten.convolution", "pt.attention", "pt.attention_backward"]))
    if name == "aten.mm":
        return name, (draw(size), draw(size), draw(size))
    if name == "aten.bmm":
        return name, (draw(small), draw(size), draw(size), draw(size))
    if name == "aten.convolution":
        return name, (draw(small), draw(size), draw(size), draw(st.integers(1, 112)), draw(st.sampled_from([1, 3, 5])))
    return name, (draw(small), draw(small), draw(size), draw(st.sampled_from([32, 64, 128])))


def signature(name: str, sizes: tuple[int, ...], dtype: str) -> OpSignature:
    def of(*shape: int) -> TensorSpec:
        return TensorSpec(shape, dtype)

    if name in ("aten.mm", "aten.bmm"):
        *batch, m, n, k = sizes
        return OpSignature(name, (of(*batch, m, k), of(*batch, k, n)), (of(*batch, m, n),))
    if name == "aten.convolution":
        images, inner, outer, side, taps = sizes
        x, w, y = of(images, inner, side, side), of(outer, inner, taps, taps), of(images, outer, side, side)
        return OpSignature(name, (x, w), (y,), (("stride", (1, 1)),))
    batch, heads, length, width = sizes
    q = of(batch, heads, length, width)
    if name == "pt.attention":
        return OpSignature(name, (q, q, q), (q, TensorSpec((batch, heads, length), "float32")))
    return OpSignature(name, (q, q, q, q, q, TensorSpec((batch, heads, length), "float32")), (q, q, q))


def seconds(kind: OpSignature, where: Cluster, **options: bool) -> float:
    return float(time_signatures(OpSignatures((kind,)), where, WorkOptions(**options)).kind_s[0])


@settings(max_examples=150)
@given(products(), st.sampled_from(GPUS), st.booleans())
def test_narrower_arithmetic_is_never_slower(product: tuple[str, tuple[int, ...]], gpu: str, nhwc: bool) -> None:
    """The library chooses: it has the kernels of wider arithmetic too. Convolutions of few channels keep theirs."""
    where = cluster(gpu)
    few = product[0] == "aten.convolution" and product[1][1] < WHOLE_CHANNELS and product[1][-1] > 1
    wide = seconds(signature(*product, "float32"), where, channels_last=nhwc)
    for unit in ("tf32", "fp16", "bf16"):
        if where.gpu.has(unit) and (unit == "tf32" or not few):
            kind = signature(*product, DTYPES[unit])
            assert seconds(kind, where, channels_last=nhwc, tf32=unit == "tf32") <= wide * (1 + TOLERANCE), unit
    if where.gpu.has("fp8") and where.gpu.has("bf16") and product[0] == "aten.mm":
        on_grid = (product[0], tuple(-(-side // 16) * 16 for side in product[1]))
        scaled = dataclasses.replace(signature(*on_grid, DTYPES["fp8"]), name="pt.scaled_mm")
        scaled = dataclasses.replace(scaled, outputs=(TensorSpec(scaled.outputs[0].shape, "bfloat16"),))
        plain = signature(*on_grid, "bfloat16")
        assert seconds(scaled, where) <= seconds(plain, where) * (1 + TOLERANCE)


def test_some_gpus_are_weaker_than_others() -> None:
    known = default_catalog()
    assert {gpu.name for gpu in weaker_gpus(known.gpu("a100-80gb-sxm"))} == {
        "a100-40gb-pcie", "a100-80gb-pcie", "a100-40gb-sxm",
    }  # fmt: skip
    assert weaker_gpus(known.gpu("l4")) == ()
    assert sum(len(weaker_gpus(gpu)) for gpu in known.gpus.values()) > 40


PAIRS = [(weak.name, gpu.name) for gpu in default_catalog().gpus.values() for weak in weaker_gpus(gpu)]
LATER = [
    (gpu.name, strong.name)
    for gpu in default_catalog().gpus.values()
    if after_fit(gpu)
    for strong in stronger_gpus(gpu)
]


@settings(max_examples=150)
@given(products(), st.sampled_from(PAIRS + LATER), st.sampled_from(sorted(DTYPES)))
def test_a_better_gpu_of_the_catalog_is_never_slower(
    product: tuple[str, tuple[int, ...]], pair: tuple[str, str], unit: str
) -> None:
    weak, strong = (Cluster(default_catalog().gpu(name), *_alone(name)) for name in pair)
    if weak.gpu.has(unit) and unit != "fp8":
        kind = signature(*product, DTYPES[unit])
        times = [seconds(kind, where, tf32=unit == "tf32") * where.node.clock_factor for where in (strong, weak)]
        assert times[0] <= times[1] * (1 + TOLERANCE)


def _alone(name: str) -> tuple[object, ...]:
    found = cluster(name)
    return tuple(getattr(found, field.name) for field in dataclasses.fields(found) if field.name != "gpu")


@settings(max_examples=100)
@given(products(), st.sampled_from(GPUS), st.floats(1.0, 2.0), st.sampled_from(["peaks", "bandwidth", "all"]))
def test_a_raised_figure_never_slows_a_kernel(
    product: tuple[str, tuple[int, ...]], name: str, factor: float, raised: str
) -> None:
    usual = cluster(name)
    gpu: Gpu = usual.gpu
    peaks = {key: peak * (factor if raised != "bandwidth" else 1.0) for key, peak in gpu.peaks.items()}
    bandwidth = gpu.memory_bytes_per_s * (factor if raised != "peaks" else 1.0)
    faster = dataclasses.replace(gpu, name="raised", peaks=peaks, memory_bytes_per_s=bandwidth)
    kind = signature(*product, "float32")
    times = [seconds(kind, dataclasses.replace(usual, gpu=each)) for each in (faster, gpu)]
    assert times[0] <= times[1] * (1 + TOLERANCE)


@st.composite
def grown(draw: st.DrawFn) -> tuple[Work, Work]:
    """A work and the same with one size larger."""
    unit = draw(st.sampled_from(["fp32", "tf32", "fp16", "bf16"]))
    width = BYTES_PER_ELEMENT[DTYPES[unit]]
    kind = draw(st.sampled_from(["matmul", "conv", "attention", "memory"]))
    more = draw(st.integers(1, 700))
    if kind == "memory":
        family, few = draw(st.sampled_from(sorted(MEMORY_FAMILIES))), draw(st.floats(0, 1e9))
        return memory_work(family, few, few), memory_work(family, few, few * (1 + more / 100))
    if kind == "matmul":
        sizes = [draw(small), draw(size), draw(size), draw(size)]
    elif kind == "conv":
        sizes = [draw(small), draw(size), draw(size), draw(st.integers(2, 112))]
    else:
        sizes = [draw(small), draw(small), draw(size)]
    larger = list(sizes)
    larger[draw(st.integers(0, len(sizes) - 1))] += more
    if kind == "matmul":
        one, two = (matmul_work((b, m, n, k), unit, width) for b, m, n, k in (sizes, larger))
    elif kind == "conv":
        how = {
            "direction": draw(st.sampled_from(["fwd", "dgrad", "wgrad"])),
            "layout": draw(st.sampled_from(["nchw", "nhwc"])),
        }
        taps = draw(st.sampled_from([1, 3, 5]))
        one, two = (
            conv_work(ConvolutionSizes(n, i, o, (s, s), (s, s), (taps, taps), (1, 1)), unit, width, **how)
            for n, i, o, s in (sizes, larger)
        )
    else:
        causal, direction = draw(st.booleans()), draw(st.sampled_from(["fwd", "bwd"]))
        one, two = (
            attention_work(AttentionSizes(b, h, h, s, s, 64, causal=causal), unit, width, direction)
            for b, h, s in (sizes, larger)
        )
    return one, two


WITHOUT_FACTORS = dataclasses.replace(shipped(), factors=NO_FACTORS)


@settings(max_examples=300)
@given(grown(), st.sampled_from(GPUS))
def test_more_work_is_never_faster_on_any_gpu(pair: tuple[Work, Work], name: str) -> None:
    """Without the factors on kernels, which wider convolutions may have smaller ones of, as on a real GPU."""
    gpu = default_catalog().gpu(name)
    if all(work.math == "vector" or gpu.has(work.math) for work in pair):
        less, more = WITHOUT_FACTORS.kernels.seconds(pair, gpu).seconds
        assert np.isfinite(more)
        assert more >= less * (1 - TOLERANCE)


@pytest.mark.parametrize("model", ["resnet50", "efficientnet-b0", "small-alexnet", "small-cct", "jasper-10x5dr"])
@pytest.mark.parametrize("gpu", ["rtx-4090", "a40", "h100-80gb-sxm"])
@pytest.mark.parametrize("batch", [1, 32])
def test_tf32_never_slows_a_step(model: str, gpu: str, batch: int) -> None:
    """Neither kernels nor launches; also where measured steps of both precisions correct the estimate."""
    job = Job(model, gpu=gpu, batch_size=batch, precision="fp32")
    full, tf32 = predict(job), predict(job.replace(precision="tf32"))
    assert tf32.step.p50 <= full.step.p50 * (1 + 1e-6)
