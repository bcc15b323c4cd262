"""The streams of a step against a plain event simulation written independently, and sums of parts."""

from __future__ import annotations

import dataclasses
from itertools import pairwise
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from precision_time.capture.graph import OpSignature, Phase, TensorSpec
from precision_time.layout.segment import Bucket, RankProgram, Segment
from precision_time.timeline import simulate as module
from precision_time.timeline.simulate import LAUNCH_LATENCY_S, Timeline, simulate
from precision_time.timeline.trace import trace_events
from precision_time.timing.host import HostCosts

SPEC = TensorSpec((4,), "float32")
KINDS = tuple(OpSignature(f"aten.op{i}", (SPEC,), (SPEC,)) for i in range(6))
CAST = 5
US = 1e-6


@dataclasses.dataclass
class FakePriced:
    """What `simulate` needs of a `OldTimedProgram`, with seconds of our choosing."""

    program: RankProgram
    kind_s: Any
    host_kind_s: Any
    bucket_s: Any
    broadcast_s: float
    host: HostCosts
    synchronous: bool = False
    wait_share: float = 0.0

    @property
    def works(self) -> Any:
        return dataclasses.make_dataclass("Works", ["is_cast"])(np.array([i == CAST for i in range(len(KINDS))]))

    def device_seconds(self, segment: Segment) -> Any:
        return self.kind_s[segment.kind]

    def host_seconds(self, segment: Segment) -> Any:
        return self.host_kind_s[segment.kind] + self.host.view_s * segment.views


def segment(phase: Phase, *kinds: int) -> Segment:
    return Segment.of([(k, phase, i % 2, 0) for i, k in enumerate(kinds)])


def one(of: Segment, index: int) -> Segment:
    at = slice(index, index + 1)
    return Segment(of.kind[at], of.phase[at], of.views[at], of.module[at])


def micro(forward: list[int], backward: list[int]) -> Segment:
    rows = [(k, Phase.FORWARD, 0, 0) for k in forward] + [(k, Phase.BACKWARD, 1, 0) for k in backward]
    return Segment.of(rows)


durations = st.lists(st.integers(1, 60).map(lambda n: n * US), min_size=len(KINDS), max_size=len(KINDS))
ops = st.lists(st.integers(0, len(KINDS) - 1), min_size=1, max_size=12)


@st.composite
def programs(draw: Any, fewest: int, most: int) -> FakePriced:
    forward, backward, tail = draw(ops), draw(ops), draw(ops)
    ranks = draw(st.sampled_from([1, 2]))
    count = draw(st.integers(fewest, most))
    ready = sorted(draw(st.sets(st.integers(0, len(forward) + len(backward) - 1), min_size=1, max_size=3)))
    found = tuple(Bucket(100 * (i + 1), 25, r) for i, r in enumerate(ready)) if ranks > 1 else ()
    program = RankProgram(
        kinds=KINDS,
        micro=micro(forward, backward),
        tail=segment(Phase.OPTIMIZER, *tail),
        accumulate=segment(Phase.BACKWARD, *([1] if count > 1 else [])),
        bucket_copies=segment(Phase.BACKWARD, *([2, 3] if ranks > 1 else [])),
        buckets=found,
        broadcast_bytes=0,
        micro_steps=count,
        synced_micro_steps=(draw(st.sampled_from([1, count])) if ranks > 1 else 0),
        ranks=ranks,
        sync_after_tail=draw(st.integers(-1, len(tail) - 1)),
    )
    wire = np.array([draw(st.integers(1, 400)) * US for _ in found])
    broadcast = draw(st.sampled_from([0.0, 7 * US])) if ranks > 1 else 0.0
    view_s, step_s = draw(st.sampled_from([0.0, 2 * US])), draw(st.sampled_from([0.0, 30 * US]))
    host = HostCosts(0, view_s, 0, 0, 0, 0, step_s, 0.2, 1.0)
    wait = draw(st.sampled_from([0.0, 0.08])) if ranks > 1 else 0.0
    times = np.array(draw(durations)), np.array(draw(durations))
    return FakePriced(program, *times, wire, broadcast, host, wait_share=wait)


class Oracle:
    """Event by event in plain Python: every micro-step of both steps is run."""

    def __init__(self, timed: FakePriced) -> None:
        self.p = timed
        self.host = self.device = self.idle_for_host = self.idle_for_wire = self.idle_for_ranks = 0.0
        self.reduced, self.unreduced = 0.0, 0

    def launch(self, segment: Segment) -> list[float]:
        ends = []
        for kind, views in zip(segment.kind.tolist(), segment.views.tolist(), strict=True):
            self.host += float(self.p.host_kind_s[kind]) + self.p.host.view_s * views
            start = max(self.device, self.host + LAUNCH_LATENCY_S)
            self.idle_for_host += start - self.device
            self.device = start + float(self.p.kind_s[kind])
            ends.append(self.device)
        return ends

    def wait(self, until: float) -> None:
        self.idle_for_wire += max(0.0, until - self.device)
        self.device = max(self.device, until)

    def step(self) -> None:
        program = self.p.program
        self.host += self.p.host.step_s
        for index in range(program.micro_steps):
            last = index == program.micro_steps - 1
            self.unreduced += 1
            reduce = program.ranks > 1 and (last or program.synced_micro_steps == program.micro_steps)
            if reduce:
                self.wait(self.device + self.p.broadcast_s)
            ends = self.launch(program.micro)
            if index:
                self.launch(program.accumulate)
            if reduce:
                self.launch(one(program.bucket_copies, 0))
                wire, copied = 0.0, 0
                delay = self.device - ends[-1]
                for bucket, seconds in zip(program.buckets, self.p.bucket_s, strict=True):
                    copied += bucket.elements
                    late = delay * copied / sum(b.elements for b in program.buckets)
                    wire = max(wire, ends[bucket.ready] + late) + float(seconds)
                self.wait(wire)
                slowest = (self.device - self.reduced) * self.p.wait_share / self.unreduced**0.5
                self.idle_for_ranks += slowest
                self.device += slowest
                self.reduced, self.unreduced = self.device, 0
                self.launch(one(program.bucket_copies, 1))
        for position in range(len(program.tail)):
            self.launch(one(program.tail, position))
            if position == program.sync_after_tail:
                self.host = max(self.host, self.device)

    def second(self) -> tuple[float, ...]:
        self.step()
        before = (self.device, self.idle_for_host, self.idle_for_wire, self.idle_for_ranks)
        self.step()
        after = (self.device, self.idle_for_host, self.idle_for_wire, self.idle_for_ranks)
        return tuple(b - a for a, b in zip(before, after, strict=True))


def close(a: float, b: float) -> bool:
    return a == pytest.approx(b, rel=1e-9, abs=1e-12)


@settings(max_examples=150)
@given(programs(1, 3))
def test_equals_an_event_simulation(timed: FakePriced) -> None:
    step, idle_for_host, idle_for_wire, idle_for_ranks = Oracle(timed).second()
    found = simulate(timed)  # type: ignore[arg-type]
    assert close(found.step_s, step)
    assert close(found.host_gap_s, idle_for_host)
    assert close(found.communication_exposed_s, idle_for_wire)
    assert close(found.straggler_wait_s, idle_for_ranks)


def parts(found: Timeline) -> float:
    waits = found.host_gap_s + found.communication_exposed_s + found.straggler_wait_s
    return sum(found.busy.values()) + found.casts_s + waits


@settings(max_examples=150)
@given(programs(1, 6))
def test_parts_sum_to_the_step(timed: FakePriced) -> None:
    found = simulate(timed)  # type: ignore[arg-type]
    assert close(found.step_s, parts(found))
    assert min(*found.busy.values(), found.casts_s, found.host_gap_s, found.communication_exposed_s) >= 0
    program = timed.program
    wire = (float(timed.bucket_s.sum()) + timed.broadcast_s) * program.synced_micro_steps
    assert close(found.communication_exposed_s + found.communication_hidden_s, wire)


@settings(max_examples=60)
@given(programs(4, 12))
def test_repeated_micro_steps_are_counted_not_run(timed: FakePriced) -> None:
    """The oracle runs them all. A queue that fills up or drains over many micro-steps is the difference allowed."""
    found = simulate(timed)  # type: ignore[arg-type]
    step, *_ = Oracle(timed).second()
    assert found.step_s == pytest.approx(step, rel=0.25)
    assert found.repeated_micro_steps == timed.program.micro_steps - 3


def fixed(micro_steps: int, kernel_us: float, host_us: float) -> FakePriced:
    program = RankProgram(
        KINDS, micro([0] * 10, [0] * 20), segment(Phase.OPTIMIZER, 0), segment(Phase.BACKWARD, 0),
        segment(Phase.BACKWARD), (), 0, micro_steps, 0, 1, -1,
    )  # fmt: skip
    costs = np.full(len(KINDS), 1.0)
    return FakePriced(program, costs * kernel_us * US, costs * host_us * US, np.zeros(0), 0.0,
                      HostCosts(0, 0, 0, 0, 0, 0, 0, 0.2, 1.0))  # fmt: skip


@pytest.mark.parametrize(("kernel_us", "host_us"), [(50.0, 5.0), (5.0, 50.0)])
def test_long_accumulation_is_exact_when_one_side_rules(kernel_us: float, host_us: float) -> None:
    timed = fixed(100, kernel_us, host_us)
    assert simulate(timed).step_s == pytest.approx(Oracle(timed).second()[0], rel=1e-6)  # type: ignore[arg-type]


def test_cost_does_not_grow_with_accumulation() -> None:
    runs = []
    for micro_steps in (4, 1000):
        with patch.object(module._Clock, "run", autospec=True, side_effect=module._Clock.run) as run:
            simulate(fixed(micro_steps, 5, 5))  # type: ignore[arg-type]
        runs.append(run.call_count)
    assert runs[0] == runs[1]


def test_a_slow_host_is_host_bound_and_a_fast_one_is_not() -> None:
    slow, fast = simulate(fixed(1, 5, 50)), simulate(fixed(1, 50, 5))  # type: ignore[arg-type]
    assert slow.step_s == pytest.approx(31 * 50 * US, rel=0.02)
    assert slow.host_gap_s > 0.8 * slow.step_s
    assert fast.step_s == pytest.approx(31 * 50 * US, rel=0.02)
    assert fast.host_gap_s == pytest.approx(0, abs=1e-9)


@settings(max_examples=100)
@given(programs(1, 6))
def test_a_synchronous_device_does_one_thing_after_another(timed: FakePriced) -> None:
    found = simulate(dataclasses.replace(timed, synchronous=True))  # type: ignore[arg-type]
    program = timed.program
    runs = (
        (program.micro, program.micro_steps),
        (program.accumulate, program.micro_steps - 1),
        (program.bucket_copies, program.synced_micro_steps),
        (program.tail, 1),
    )
    host = timed.host.step_s + sum(float(timed.host_seconds(s).sum()) * times for s, times in runs)
    kernels = sum(float(timed.device_seconds(s).sum()) * times for s, times in runs)
    wire = (float(timed.bucket_s.sum()) + timed.broadcast_s) * program.synced_micro_steps
    assert close(found.step_s, host + kernels + wire + found.straggler_wait_s)
    if program.micro_steps == 1:  # between the ends of two reductions lies all that is not this wait
        assert close(found.straggler_wait_s, timed.wait_share * (host + kernels + wire))
    assert close(found.host_gap_s, host)
    assert close(found.communication_exposed_s, wire)
    assert close(found.communication_hidden_s, 0.0)
    assert close(found.step_s, parts(found))
    drawn = sorted((s, s + d) for span in found.spans for s, d in zip(span.start, span.duration, strict=True))
    waits = sorted((start, end) for start, end, _ in found.reductions)
    last = drawn + waits if found.repeated_micro_steps == 0 and program.synced_micro_steps < 2 else drawn
    assert all(end <= start + 1e-12 for (_, end), (start, _) in pairwise(sorted(last)))


@settings(max_examples=40)
@given(programs(1, 3))
def test_trace_events_cover_the_step(timed: FakePriced) -> None:
    found = simulate(timed)  # type: ignore[arg-type]
    events = trace_events(found, KINDS, ("",), "title")["traceEvents"]
    compute = [e for e in events if e["ph"] == "X" and e["tid"] == 1]
    wire = [e for e in events if e["ph"] == "X" and e["tid"] == 2]
    assert len(wire) == len(timed.program.buckets)
    last = 0.0
    for event in compute:
        assert event["ts"] >= last - 1e-6
        last = event["ts"] + event["dur"]
    assert last == pytest.approx(found.step_s * 1e6, rel=1e-6)
