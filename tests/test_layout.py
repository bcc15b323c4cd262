"""Plain data parallelism: DDP's buckets by hand, and what one rank runs."""

from __future__ import annotations

import dataclasses
import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st
from precision_time.layout.data_parallel import BUCKET_BYTES, FIRST_BUCKET_BYTES, buckets, data_parallel

from precision_time.capture.captured_model import CapturedModel
from precision_time.capture.graph import Call, OpGraph, OpSignature, Parameter, Phase, TensorSpec
from precision_time.capture.optimizer import tail
from precision_time.job.precision import PRECISIONS

MIB = 1 << 20


def parameters(*numels: int, dtype: str = "float32") -> tuple[Parameter, ...]:
    """Weights whose gradients arrive from the last to the first, at calls 0, 1, 2 ..."""
    count = len(numels)
    return tuple(Parameter(f"p{i}", (n,), dtype, dtype, count - 1 - i) for i, n in enumerate(numels))


def step_of(precision: str, *numels: int, optimizer: str = "adam") -> CapturedModel:
    """A step of one backward operator per parameter."""
    said = PRECISIONS[precision]
    found = tuple(
        Parameter(p.name, p.shape, said.parameter_dtype, said.gradient_dtype, p.ready) for p in parameters(*numels)
    )
    spec = TensorSpec((16,), said.compute_dtype)
    kinds = (OpSignature("aten.relu", (spec,), (spec,)),)
    calls = tuple(Call(0, Phase.BACKWARD) for _ in numels)
    graph = OpGraph("net", kinds, calls, ("",), (), found, buffer_bytes=64)
    return CapturedModel("net", graph, tail(found, said, optimizer), said, optimizer, 8, None, "own")


def test_buckets_by_hand() -> None:
    """Arrival p4 .. p0. 0.5 + 0.5 MiB reach the first limit, then 20 + 10 MiB pass 25; the rest is what is left."""
    sizes = [MIB, 10 * MIB, 20 * MIB, MIB // 2, MIB // 2]
    found = buckets(parameters(*(n // 4 for n in sizes)))
    assert [b.nbytes for b in found] == [MIB, 30 * MIB, MIB]
    assert [b.ready for b in found] == [1, 3, 4]
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
    assert [b.ready for b in found] == sorted({b.ready for b in found})
    assert found[-1].ready == len(numels) - 1
    assert all(b.nbytes >= BUCKET_BYTES for b in found[1:-1])
    for bucket, (first, last) in zip(found, itertools.pairwise([-1, *(b.ready for b in found)]), strict=True):
        arrived = numels[::-1][first + 1 : last + 1]
        limit = FIRST_BUCKET_BYTES if bucket is found[0] else BUCKET_BYTES
        assert sum(arrived) == bucket.elements
        assert sum(arrived[:-1]) * 4 < limit


def wire(precision: str, dtype: str | None = None) -> int:
    program = data_parallel(step_of(precision, MIB, 10 * MIB), 8, wire_dtype=dtype)
    return sum(b.nbytes for b in program.buckets)


def test_bytes_on_the_wire_follow_the_gradients_dtype() -> None:
    """Autocast keeps fp32 gradients, so its traffic does not halve; half weights and a compression hook halve it."""
    full = wire("fp32")
    assert full == 4 * 11 * MIB
    assert wire("amp-fp16") == wire("amp-bf16") == wire("tf32") == full
    assert wire("fp16-master") == wire("bf16-master") == wire("bf16") == wire("fp8") == full // 2
    assert wire("fp64") == 2 * full
    assert wire("amp-fp16", "float16") == full // 2


def test_one_rank_reduces_nothing() -> None:
    program = data_parallel(step_of("fp32", MIB), 1)
    assert program.buckets == ()
    assert len(program.bucket_copies) == 0
    assert (program.broadcast_bytes, program.synced_micro_steps) == (0, 0)


def test_many_ranks_copy_into_and_out_of_buckets() -> None:
    program = data_parallel(step_of("amp-fp16", MIB, MIB), 4, wire_dtype="float16")
    into, out = (program.kinds[k] for k in program.bucket_copies.kind)
    assert (into.inputs[0].dtype, into.outputs[0].dtype) == ("float32", "float16")
    assert (out.inputs[0].dtype, out.outputs[0].dtype) == ("float16", "float32")
    assert into.attr("launches") == out.attr("launches") == 2
    assert program.broadcast_bytes == 64


@pytest.mark.parametrize(("no_sync", "synced"), [(True, 1), (False, 4)])
def test_accumulation(no_sync: bool, synced: int) -> None:
    program = data_parallel(step_of("fp32", MIB), 2, 4, no_sync)
    assert (program.micro_steps, program.synced_micro_steps) == (4, synced)
    assert len(program.accumulate) == 1
    assert len(data_parallel(step_of("fp32", MIB), 2).accumulate) == 0
    assert len(program.micro) == 1  # the program does not grow with the micro-steps


def test_the_host_waits_after_unscaling_only() -> None:
    scaled = data_parallel(step_of("amp-fp16", MIB), 1)
    assert scaled.sync_after_tail == 0
    assert scaled.kinds[scaled.tail.kind[0]].attr("label") == "unscale"
    assert data_parallel(step_of("amp-bf16", MIB), 1).sync_after_tail == -1
