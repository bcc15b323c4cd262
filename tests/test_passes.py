"""Passes as max-plus maps, against kernels launched and run one by one."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from precision_time.capture.graph import Phase
from precision_time.layout.segment import Segment
from precision_time.timing.passes import FREE, LAUNCH_LATENCY_S, NOTHING, Pass, pass_of, sums_of

US = 1e-6
operators = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 60)), min_size=1, max_size=8)
moments = st.tuples(st.integers(0, 300), st.integers(0, 300))


class Costs:
    """Host and device seconds of every operator of a segment, which is its own kind."""

    synchronous = False

    def __init__(self, rows: list[tuple[int, int]]) -> None:
        self.host, self.device = (np.array(column) * US for column in zip(*rows, strict=True))

    def launched_seconds(self, segments: tuple[Segment, ...]) -> Any:
        return np.concatenate([self.host[segment.kind].cumsum() for segment in segments])

    def device_seconds(self, segment: Segment) -> Any:
        return self.device[segment.kind]


def alone(costs: Costs, segment: Segment, exchanges: tuple[tuple[str, float, float], ...] = ()) -> Pass:
    (sums,) = sums_of(costs, (segment,))  # type: ignore[arg-type]
    return pass_of(sums, exchanges, FREE, costs.synchronous)


def passed(rows: list[tuple[int, int]], exchanges: tuple[tuple[str, float, float], ...] = ()) -> Pass:
    segment = Segment.of([(i, Phase.FORWARD, 0, 0) for i in range(len(rows))])
    return alone(Costs(rows), segment, exchanges)


def launched(rows: list[tuple[int, int]], host: float, device: float) -> tuple[float, float]:
    """Every operator is launched, then runs when the one before it has ended."""
    for host_us, device_us in rows:
        host += host_us * US
        device = max(device, host + LAUNCH_LATENCY_S) + device_us * US
    return host, device


def after(step: Pass, host: float, device: float) -> tuple[float, float]:
    return host + step.host_s, max(device + step.device_s, host + step.launch_bound_s)


def near(found: tuple[float, float], expected: tuple[float, float]) -> None:
    assert found == pytest.approx(expected, rel=1e-12, abs=1e-15)


@settings(max_examples=200)
@given(operators, moments)
def test_a_pass_is_what_its_operators_do(rows: list[tuple[int, int]], at: tuple[int, int]) -> None:
    start = at[0] * US, at[1] * US
    near(after(passed(rows), *start), launched(rows, *start))


@settings(max_examples=200)
@given(st.lists(operators, min_size=1, max_size=4), moments)
def test_passes_in_a_row_are_the_pass_of_all_operators(parts: list[list[tuple[int, int]]], at: tuple[int, int]) -> None:
    joined = NOTHING
    for part in parts:
        joined = joined.then(passed(part))
    whole = passed([row for part in parts for row in part])
    assert (joined.device_s, joined.host_s, joined.launch_bound_s) == pytest.approx(
        (whole.device_s, whole.host_s, whole.launch_bound_s), rel=1e-12
    )
    start = at[0] * US, at[1] * US
    near(after(joined, *start), launched([row for part in parts for row in part], *start))


@settings(max_examples=200)
@given(operators, st.integers(0, 6), moments)
def test_a_pass_many_times(rows: list[tuple[int, int]], count: int, at: tuple[int, int]) -> None:
    start = at[0] * US, at[1] * US
    near(after(passed(rows).times(count), *start), launched(rows * count, *start))


@settings(max_examples=100)
@given(operators, st.integers(0, 50), st.integers(1, 5))
def test_exchanges_hold_the_device_up_and_are_counted(rows: list[tuple[int, int]], wire: int, count: int) -> None:
    alone, both = passed(rows), passed(rows, (("tensor", wire * US, 2 * US), ("context", 0.0, US)))
    assert both.device_s == pytest.approx(alone.device_s + wire * US)
    assert both.launch_bound_s == pytest.approx(alone.launch_bound_s + wire * US)
    assert both.host_s == alone.host_s
    many = both.times(count).then(alone)
    assert many.exposed == pytest.approx({"tensor": count * wire * US, "context": 0.0})
    assert many.hidden == pytest.approx({"tensor": count * 2 * US, "context": count * US})


def test_nothing_changes_nothing() -> None:
    step = passed([(3, 5), (7, 1)])
    assert NOTHING.then(step) == step == step.then(NOTHING)
    assert step.times(0) == NOTHING
    assert alone(Costs([(1, 1)]), Segment.of([])) == NOTHING
    waits = alone(Costs([(1, 1)]), Segment.of([]), (("tensor", 1.0, 0.0),))
    assert (waits.device_s, waits.host_s) == (1.0, 0.0)


def test_on_a_synchronous_device_host_and_kernels_take_turns() -> None:
    costs = Costs([(3, 5), (7, 1)])
    costs.synchronous = True
    step = alone(costs, Segment.of([(0, Phase.FORWARD, 0, 0), (1, Phase.FORWARD, 0, 0)]))
    assert step.seconds == pytest.approx(16 * US)
    assert after(step, 0.0, 0.0)[1] == pytest.approx(16 * US)


@settings(max_examples=100)
@given(st.lists(st.one_of(operators, st.just([])), min_size=1, max_size=6))
def test_sums_found_together_are_those_found_one_by_one(parts: list[list[tuple[int, int]]]) -> None:
    costs = Costs([row for part in parts for row in part] or [(1, 1)])
    ends = list(itertools.accumulate(map(len, parts)))
    segments = tuple(
        Segment.of([(i, Phase.FORWARD, 0, 0) for i in range(end - len(part), end)])
        for part, end in zip(parts, ends, strict=True)
    )
    apart = [sums_of(costs, (segment,))[0] for segment in segments]  # type: ignore[arg-type]
    assert sums_of(costs, segments) == apart  # type: ignore[arg-type]
    assert [each is None for each in apart] == [not part for part in parts]
