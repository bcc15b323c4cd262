"""Data parallelism: DDP's buckets by hand, and the passes over all parameters of a step."""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from precision_time.capture.graph import Call, OpGraph, OpSignature, Parameter, Phase, TensorSpec
from precision_time.capture.layers import Unit, layered
from precision_time.capture.training_step import TrainingStep
from precision_time.job.layout import Layout
from precision_time.job.precision import PRECISIONS
from precision_time.layout.buckets import BUCKET_BYTES, FIRST_BUCKET_BYTES, Gradient, fill_buckets, stage_buckets
from precision_time.layout.options import Options
from precision_time.layout.program import Bucket, Chunk, StepProgram
from precision_time.layout.segment import Segment
from precision_time.layout.step_program import step_program

MIB = 1 << 20


def parameters(*numels: int, dtype: str = "float32") -> tuple[Parameter, ...]:
    """Weights whose gradients arrive from the last to the first, at calls 1, 2, 3 ... behind one forward call."""
    count = len(numels)
    return tuple(Parameter(f"p{i}", (n,), dtype, dtype, count - i) for i, n in enumerate(numels))


def buckets(weights: tuple[Parameter, ...], wire_dtype: str | None = None) -> tuple[Bucket, ...]:
    """Those of one unit with a backward operator for each of these weights."""
    unit = Unit("model", (0,), tuple(range(1, len(weights) + 1)), weights)
    return stage_buckets((unit,), (Chunk(((0, 1, 0),)),), wire_dtype).buckets


def step_of(precision: str, *numels: int, optimizer: str = "adam") -> TrainingStep:
    """A step of one forward operator and one backward operator per parameter."""
    formats = PRECISIONS[precision]
    weights = tuple(
        Parameter(p.name, p.shape, formats.parameter_dtype, formats.gradient_dtype, p.ready)
        for p in parameters(*numels)
    )
    spec = TensorSpec((16,), formats.compute_dtype)
    calls = (Call(0, Phase.FORWARD), *(Call(0, Phase.BACKWARD) for _ in numels))
    graph = OpGraph(
        "net", (OpSignature("aten.relu", (spec,), (spec,)),), calls, ("",), (), weights, buffer_bytes=64
    )  # fmt: skip
    return TrainingStep(
        model="net", layers=layered(graph), sharded=None, split=None, parameters=sum(numels), precision=formats,
        optimizer=optimizer, implementation=None, clip_norm=None, batch_size=8, dataset=None, family="own",
    )  # fmt: skip


def program(step: TrainingStep, ranks: int, micro_batches: int = 1, **options: Any) -> StepProgram:
    return step_program(step, Layout(dp=ranks), Options(micro_batches, **options))


def signatures(found: StepProgram, segment: Segment) -> list[OpSignature]:
    return [found.kinds[k] for k in segment.kind]


# --- buckets ----------------------------------------------------------------------------------------------------------


def test_buckets_by_hand() -> None:
    """Arrival p4 .. p0. 0.5 + 0.5 MiB reach the first limit, then 20 + 10 MiB pass 25; the rest is what is left."""
    sizes = [MIB, 10 * MIB, 20 * MIB, MIB // 2, MIB // 2]
    found = buckets(parameters(*(n // 4 for n in sizes)))
    assert [b.nbytes for b in found] == [MIB, 30 * MIB, MIB]
    assert [(b.use, b.position) for b in found] == [(0, 1), (0, 3), (0, 4)]
    assert [b.elements * 4 for b in found] == [b.nbytes for b in found]


def test_a_bucket_closes_after_the_parameter_that_reaches_the_limit() -> None:
    assert (FIRST_BUCKET_BYTES, BUCKET_BYTES) == (MIB, 25 * MIB)
    exact = buckets(parameters(25 * MIB // 4, MIB // 4))
    assert [b.nbytes for b in exact] == [MIB, 25 * MIB]
    below = buckets(parameters(4, 25 * MIB // 4 - 1, MIB // 4))
    assert [b.nbytes for b in below] == [MIB, 25 * MIB - 4 + 16]
    huge = buckets(parameters(4, 100 * MIB))
    assert [b.nbytes for b in huge] == [400 * MIB, 16]


def test_frozen_and_unused_parameters_are_not_reduced() -> None:
    some = parameters(8, 16, 32)
    some = (some[0], dataclasses.replace(some[1], ready=-1), dataclasses.replace(some[2], trainable=False))
    assert [b.elements for b in buckets(some)] == [8]
    assert buckets(()) == ()


@given(st.lists(st.integers(1, 40 * MIB), min_size=1, max_size=40))
def test_buckets_hold_every_gradient_once_in_order(numels: list[int]) -> None:
    found = buckets(parameters(*numels))
    assert sum(b.elements for b in found) == sum(numels)
    assert [b.position for b in found] == sorted({b.position for b in found})
    assert found[-1].position == len(numels) - 1
    assert all(b.nbytes >= BUCKET_BYTES for b in found[1:-1])
    for bucket, (first, last) in zip(found, itertools.pairwise([-1, *(b.position for b in found)]), strict=True):
        arrived = numels[::-1][first + 1 : last + 1]
        limit = FIRST_BUCKET_BYTES if bucket is found[0] else BUCKET_BYTES
        assert sum(arrived) == bucket.elements
        assert sum(arrived[:-1]) * 4 < limit


def test_a_stage_is_filled_from_its_last_unit_to_its_first() -> None:
    """A head of 3 MiB, three blocks of 10 + 2 MiB, of which the 2 arrive first, and an embedding of 1 MiB."""
    embedding = Unit("before", (0,), (9,), (Parameter("e", (MIB // 4,), "float32", "float32", 9),))
    block = Unit("blocks.0", (1,), (6, 7, 8), (
        Parameter("large", (10 * MIB // 4,), "float32", "float32", 8),
        Parameter("small", (2 * MIB // 4,), "float32", "float32", 6),
    ))  # fmt: skip
    head = Unit("after", (2,), (4, 5), (Parameter("h", (3 * MIB // 4,), "float32", "float32", 5),))
    chunk = Chunk(((0, 1, 0), (1, 3, 0), (2, 1, 0)))
    found = stage_buckets((embedding, block, head), (chunk,), None).buckets
    # 3, then 2 + 10 + 2 + 10 reach 24, the third block's 2 pass 25, then 10 and the embedding.
    assert [(b.nbytes // MIB, b.use, b.position) for b in found] == [(3, 0, 1), (26, 3, 0), (11, 4, 0)]


def test_gradients_of_several_chunks_arrive_from_the_last() -> None:
    gradients = [Gradient(use, 0, 10, 40) for use in range(3)]
    assert list(fill_buckets(gradients)) == [Bucket(120, 30, 2, 0)]
    assert list(fill_buckets(gradients, "float16")) == [Bucket(60, 30, 2, 0)]
    assert list(fill_buckets([])) == []


# --- bytes on the wire ------------------------------------------------------------------------------------------------


def wire(precision: str, dtype: str | None = None) -> int:
    found = program(step_of(precision, MIB, 10 * MIB), 8, communication_dtype=dtype)
    assert found.gradient_bytes * sum(b.elements for b in found.buckets.buckets) == sum(
        b.nbytes for b in found.buckets.buckets
    )
    return sum(b.nbytes for b in found.buckets.buckets)


def test_bytes_on_the_wire_follow_the_gradients_dtype() -> None:
    """Autocast keeps fp32 gradients, so its traffic does not halve; half weights and a compression hook halve it."""
    full = wire("fp32")
    assert full == 4 * 11 * MIB
    assert wire("amp-fp16") == wire("amp-bf16") == wire("tf32") == full
    assert wire("fp16-master") == wire("bf16-master") == wire("bf16") == wire("fp8") == full // 2
    assert wire("fp64") == 2 * full
    assert wire("amp-fp16", "float16") == full // 2


def test_one_rank_reduces_nothing() -> None:
    found = program(step_of("fp32", MIB), 1)
    (stage,) = found.stages
    assert found.buckets.buckets == ()
    assert len(stage.into_buckets) == len(stage.out_of_buckets) == 0
    assert found.broadcast_bytes == 0


def test_many_ranks_copy_into_and_out_of_buckets() -> None:
    found = program(step_of("amp-fp16", MIB, MIB), 4, communication_dtype="float16")
    (stage,) = found.stages
    (into,), (out,) = (signatures(found, segment) for segment in (stage.into_buckets, stage.out_of_buckets))
    assert (into.inputs[0].dtype, into.outputs[0].dtype) == ("float32", "float16")
    assert (out.inputs[0].dtype, out.outputs[0].dtype) == ("float16", "float32")
    assert into.attr("launches") == out.attr("launches") == 2
    assert found.broadcast_bytes == 64


@pytest.mark.parametrize("framework", ["megatron", "deepspeed"])
def test_frameworks_with_buffers_of_their_own_have_no_buckets(framework: str) -> None:
    """They divide all gradients once in one buffer instead."""
    found = program(step_of("fp32", MIB, MIB), 4, framework=framework)
    (stage,) = found.stages
    assert found.buckets.buckets == ()
    assert found.broadcast_bytes == len(stage.into_buckets) == len(stage.out_of_buckets) == 0
    average = signatures(found, stage.tails[0])[0]
    assert average.attr("label") == "average"
    assert average.inputs[0].numel == 2 * MIB


# --- micro-batches and the update -------------------------------------------------------------------------------------


@pytest.mark.parametrize(("no_sync", "reductions"), [(True, 1), (False, 4)])
def test_accumulation(no_sync: bool, reductions: int) -> None:
    found = program(step_of("fp32", MIB), 2, 4, no_sync=no_sync)
    (stage,) = found.stages
    assert (found.micro_batches, found.reductions) == (4, reductions)
    times = {id(segment): times for segment, times in found.sweeps(stage)}
    assert len(stage.accumulate) == 1
    assert (times[id(stage.accumulate)], times[id(stage.into_buckets)]) == (3, reductions)
    assert len(program(step_of("fp32", MIB), 2).stages[0].accumulate) == 0
    (unit,) = found.units
    assert (len(unit.forward), len(unit.backward)) == (1, 1)  # the program does not grow with the micro-batches


def test_the_host_waits_after_unscaling_only() -> None:
    scaled = program(step_of("amp-fp16", MIB), 1)
    first, rest = scaled.stages[0].tails
    assert [kind.attr("label") for kind in signatures(scaled, first)] == ["unscale"]
    assert len(rest) > 0
    for precision, options in (("amp-bf16", {}), ("amp-fp16", {"loss_scale": "static"})):
        whole = program(step_of(precision, MIB), 1, **options)
        assert len(whole.stages[0].tails) == 1
