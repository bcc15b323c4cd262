"""The factors of large-model steps: what solves them, and what they do."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from precision_time.capture.graph import OpSignature, TensorSpec
from precision_time.fit.layouts import FACTORS, OUTPUT, Fitted, costs_of, solve, usual
from precision_time.hardware import gpu
from precision_time.job import Job
from precision_time.layout.segment import OpSignatures
from precision_time.placement import cluster_of
from precision_time.timing.constants import StepConstants, shipped
from precision_time.timing.layout_costs import FrameworkOverhead, LayoutCosts, shipped_layout_costs, wide
from precision_time.timing.operators import WorkOptions
from precision_time.timing.signature_times import time_signatures
from precision_time.timing.work import Attention, attention_work, memory_work

DOCUMENT = json.loads(OUTPUT.read_text(encoding="utf-8"))


def linear(count: int, theta: np.ndarray) -> tuple[np.ndarray, Fitted]:
    """Rows whose logs are linear in the factors, measured with the true ones."""
    slopes = np.random.default_rng(1).uniform(0, 1, (count, len(theta)))
    at = Fitted(usual(), np.zeros(count), slopes)
    return slopes @ (theta - usual()), at


def test_factors_are_found_where_rows_say_them():
    true = usual() + 0.1
    measured, at = linear(400, true)
    assert np.abs(solve(measured, at) - true).max() < 0.02


def test_what_no_row_says_stays_where_it_was():
    measured, at = linear(50, usual() + 0.1)
    at.slopes[:, 0] = 0.0
    assert solve(measured, at)[0] == pytest.approx(usual()[0])


def test_one_wild_row_hardly_moves_them():
    true = usual() + 0.1
    measured, at = linear(400, true)
    wild = measured.copy()
    wild[0] += 3.0
    assert np.abs(solve(wild, at) - solve(measured, at)).max() < 0.05


def test_rows_left_out_do_not_count():
    measured, at = linear(100, usual() + 0.1)
    spoiled = measured.copy()
    spoiled[:20] = 9.0
    keep = np.arange(100) >= 20
    assert np.allclose(solve(spoiled, at, keep), solve(measured, at, keep))


def test_costs_have_every_factor():
    costs = costs_of(usual())
    assert costs.host_power == pytest.approx({"megatron": 6.0})
    slow = costs.overhead("megatron-deepspeed")
    assert (slow.host, slow.host_power, slow.traffic) == pytest.approx((1.0, 6.0, 1.0))
    assert costs.overhead("megatron-bridge").host == pytest.approx(1.5)  # its own, and the rest of Megatron's
    assert costs.overhead("pytorch") == FrameworkOverhead()
    sections = (costs.host, costs.host_power, costs.traffic, costs.network, costs.attention, costs.kernels)
    sections += (costs.products,)
    assert sum(map(len, sections)) + 1 == len(FACTORS)  # and the overlap


def test_host_and_device_share_a_pass():
    pass_seconds = LayoutCosts(host_power={"slow": 4.0}).overhead("slow").pass_seconds
    assert pass_seconds(1.0, 0.0) == 1.0
    assert pass_seconds(0.0, 2.0) == 2.0
    assert pass_seconds(1.0, 1.0) == pytest.approx(2**0.25)
    assert pass_seconds(0.0, 0.0) == 0.0
    assert 1.0 < pass_seconds(1.0, 0.5) < 1.02


def test_a_host_that_runs_ahead_leaves_a_pass_to_the_device():
    pass_seconds = LayoutCosts(host_power={"slow": 4.0}).overhead("pytorch").pass_seconds
    assert pass_seconds(1.0, 0.9) == 1.0
    assert pass_seconds(1.0, 5.0) == 1.0


def test_kernels_of_an_architecture_have_their_factors():
    """Those on all of its kernels multiply those on its attention; other architectures have neither."""
    layouts = LayoutCosts(attention={"fwd.flash2|hopper": 2.0, "flash2|cdna3": 3.0}, kernels={"cdna3": 1.5})
    plain, factored = StepConstants(layouts=LayoutCosts()).kernels, StepConstants(layouts=layouts).kernels
    attention = attention_work(Attention(8, 32, 8, 4096, 4096, 128, causal=True), "bf16", 2.0)
    works = [memory_work("pointwise", 1e9, 1e9), *(replace(attention, variant=f"{p}.flash2") for p in ("fwd", "bwd"))]
    for name, expected in (
        ("h100-80gb-sxm", (1.0, 2.0, 1.0)), ("mi300x", (1.5, 4.5, 4.5)), ("a100-80gb-sxm", (1.0, 1.0, 1.0)),
    ):  # fmt: skip
        ratio = factored.seconds(works, gpu(name)).seconds / plain.seconds(works, gpu(name)).seconds
        assert ratio == pytest.approx(expected, rel=0.01)


def test_the_width_of_a_product() -> None:
    """The geometric mean of its two smaller sizes: 2,048 is narrow, 4,096 wide, between them lies 2,896."""
    products = [(16384, 1024, 4096), (1024, 16384, 4096), (16384, 4096, 2048), (4096, 4096, 16384), (10**5, 8192, 8192)]
    shapes = np.array([(1, *each) for each in products], dtype=np.float64).T
    assert wide(shapes) == pytest.approx([0.0, 0.0, 0.5, 1.0, 1.0])


def test_wide_products_of_an_architecture_have_their_factor() -> None:
    """Narrow ones, other dtypes, other architectures and memory-bound kernels have none."""
    cluster = cluster_of(Job("gpt2", gpu="h100-80gb-sxm"))

    def product(width: int, dtype: str) -> OpSignature:
        square = TensorSpec((width, width), dtype)
        return OpSignature("aten.mm", (square, square), (square,))

    kinds = OpSignatures((product(8192, "bfloat16"), product(1024, "bfloat16"), product(8192, "float32")))

    def seconds(factors: dict[str, float]) -> np.ndarray:
        constants = replace(shipped(), layouts=LayoutCosts(products=factors))
        return time_signatures(kinds, cluster, WorkOptions(), constants=constants).kind_s

    plain = seconds({})
    assert seconds({"hopper|half": 1.5}) / plain == pytest.approx([1.5, 1.0, 1.0], rel=0.01)
    assert (seconds({"ampere|half": 1.5}) == plain).all()


def test_shipped_costs_are_those_of_the_file():
    assert shipped().layouts == shipped_layout_costs()
    assert shipped_layout_costs().host == DOCUMENT["costs"]["host"]
