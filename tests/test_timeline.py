"""The step of a rank against an event simulation of single operators written independently, and sums of its terms."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from precision_time.capture.graph import OpSignature, Phase, TensorSpec
from precision_time.job.layout import Layout
from precision_time.layout.program import Bucket, Buckets, Chunk, Stage, StepProgram, UnitProgram
from precision_time.layout.segment import OpSignatures, Segment
from precision_time.timeline import simulate as module
from precision_time.timeline.accumulation import accumulate
from precision_time.timeline.rank import Rank
from precision_time.timeline.simulate import simulate
from precision_time.timeline.timeline import COMMUNICATION, COMPUTE, Timeline
from precision_time.timeline.trace import trace_events
from precision_time.timing import scaled as scaling
from precision_time.timing.host import HostCosts
from precision_time.timing.offload import NOT_OFFLOADED
from precision_time.timing.passes import FREE, LAUNCH_LATENCY_S, Pass, Sums, UnitTimes, bucket_ready, pass_of, sums_of
from precision_time.timing.program_times import DataTimes, SweepTimes
from precision_time.timing.scaled import Factors, scaled

US = 1e-6
NONE = Segment.of([])
SPEC = TensorSpec((4,), "float32")
Rows = tuple[tuple[int, int], ...]
"""Microseconds of every operator: on the host, on the device."""


@dataclass(frozen=True)
class Unit:
    forward: Rows
    backward: Rows
    recompute: Rows
    gather_us: int
    reduce_us: int


@dataclass(frozen=True)
class AllReduce:
    """One of DDP's buckets: complete after operator `position` of the backward pass of the `use`-th unit."""

    use: int
    position: int
    elements: int
    us: int


@dataclass(frozen=True)
class Case:
    """A step from which program and oracle are built. `runs`: (unit, times in a row, of which recompute)."""

    units: tuple[Unit, ...]
    runs: tuple[tuple[int, int, int], ...]
    tails: tuple[Rows, ...]
    accumulate: Rows
    layout: Layout
    micro_batches: int = 1
    step_us: int = 0
    reduces_always: bool = False
    buckets: tuple[AllReduce, ...] = ()
    into_buckets: Rows = ()
    out_of_buckets: Rows = ()
    broadcast_us: int = 0
    wait_share: float = 0.0
    slowdown: float = 1.0
    synchronous: bool = False

    @property
    def order(self) -> list[tuple[int, bool]]:
        return [(unit, k < again) for unit, repeat, again in self.runs for k in range(repeat)]

    @property
    def gather_all_us(self) -> int:
        return sum(self.units[i].gather_us for i, _ in self.order)

    @property
    def reduce_all_us(self) -> int:
        return sum(self.units[i].reduce_us for i, _ in self.order)

    @property
    def reductions(self) -> int:
        return self.micro_batches if self.reduces_always else 1

    def operators(self) -> Iterator[tuple[Phase | str, Rows, int]]:
        """Every stretch of operators with its phase and how often a step runs it."""
        for index, again in self.order:
            unit = self.units[index]
            yield Phase.FORWARD, unit.forward, self.micro_batches
            yield Phase.BACKWARD, unit.backward, self.micro_batches
            yield "recompute", unit.recompute, self.micro_batches * again
        yield Phase.BACKWARD, self.accumulate, self.micro_batches - 1
        yield Phase.BACKWARD, self.into_buckets + self.out_of_buckets, self.reductions
        for tail in self.tails:
            yield Phase.OPTIMIZER, tail, 1

    def seconds(self, column: int) -> float:
        """What the host (0) or the device (1) does in a step."""
        return US * sum(row[column] * times for _, rows, times in self.operators() for row in rows)


class Timed:
    """What `simulate` and `trace_events` need of a `TimedProgram`, with microseconds of our choosing."""

    def __init__(self, case: Case) -> None:
        self.rows: list[tuple[int, int]] = []
        self.synchronous, self.slowdown, self.wait_share = case.synchronous, case.slowdown, case.wait_share
        self.host = HostCosts(0, 0, 0, 0, 0, 0, case.step_us * US, 0.2, 1.0)
        self.unit_kinds = self.all_kinds = None
        self.kernel_factor = self.host_factor = 1.0
        self.phases: dict[Stage, tuple[list[float], float]] = {}
        self.overhead, self.offload = FREE, NOT_OFFLOADED
        self.send_s = self.tied_s = 0.0
        units = tuple(self._unit(f"blocks.{i}", unit) for i, unit in enumerate(case.units))
        tails = tuple(self._segment(rows, Phase.OPTIMIZER) for rows in case.tails)
        sweeps = [
            self._segment(rows, Phase.BACKWARD) for rows in (case.accumulate, case.into_buckets, case.out_of_buckets)
        ]
        stage = Stage((Chunk(case.runs),), tails, *sweeps, 0, 0, 0, 0)
        self.kinds = OpSignatures(OpSignature(f"aten.op{i}", (SPEC,), (SPEC,)) for i in range(len(self.rows)))
        self.works = type("Works", (), {"is_cast": np.zeros(len(self.rows), dtype=bool)})
        self.program = StepProgram(
            kinds=self.kinds, units=units, stages=(stage,), layout=case.layout, micro_batches=case.micro_batches,
            weight_bytes=4.0, gradient_bytes=4.0, boundary_bytes=0, tied_bytes=0, groups={},
            reduces_always=case.reduces_always,
            buckets=Buckets(tuple(Bucket(4 * b.elements, b.elements, b.use, b.position) for b in case.buckets)),
            broadcast_bytes=64 if case.broadcast_us else 0,
        )  # fmt: skip
        self.units = tuple(
            UnitTimes(*(self._pass(sums) for sums in self._sums(u.forward, u.backward, u.recompute))) for u in units
        )
        self.sweeps = (
            SweepTimes(
                tuple(self._pass(sums) for sums in self._sums(*tails)),
                *(self._pass(sums) for sums in self._sums(*sweeps)),
            ),
        )
        self.unit_data = tuple(DataTimes(u.gather_us * US, u.reduce_us * US) for u in case.units)
        self.stage_data = (DataTimes(case.gather_all_us * US, case.reduce_all_us * US),)
        self.bucket_s = tuple(b.us * US for b in case.buckets)
        order = [case.order[::-1][b.use][0] for b in case.buckets]
        self.bucket_ready = tuple(
            bucket_ready(self, units[unit].backward, b.position)  # type: ignore[arg-type]
            for unit, b in zip(order, case.buckets, strict=True)
        )
        self.broadcast_s = case.broadcast_us * US

    def _sums(self, *segments: Segment) -> list[Sums | None]:
        return sums_of(self, segments)  # type: ignore[arg-type]

    def _pass(self, sums: Sums | None) -> Pass:
        return pass_of(sums, (), FREE, self.synchronous)

    def _segment(self, rows: Rows, phase: Phase) -> Segment:
        first = len(self.rows)
        self.rows += rows
        return Segment.of([(first + i, phase, 0, 0) for i in range(len(rows))])

    def _unit(self, name: str, unit: Unit) -> UnitProgram:
        forward, recompute = (self._segment(rows, Phase.FORWARD) for rows in (unit.forward, unit.recompute))
        backward = self._segment(unit.backward, Phase.BACKWARD)
        return UnitProgram(name, forward, backward, recompute, (), (), (), 0, 0, 0, 0, 0)

    def host_seconds(self, segment: Segment) -> Any:
        return np.array([self.rows[k][0] for k in segment.kind]) * US

    def launched_seconds(self, segments: tuple[Segment, ...]) -> Any:
        return np.concatenate([self.host_seconds(segment).cumsum() for segment in segments])

    def device_seconds(self, segment: Segment) -> Any:
        return np.array([self.rows[k][1] for k in segment.kind]) * US


def timed(case: Case) -> Any:
    return Timed(case)


# --- the oracle: single operators, each waiting for its stream, its launch and what it needs --------------------------


@dataclass
class Events:
    """Three streams that work through their queues, and what the compute stream waited for."""

    host: float = 0.0
    compute: float = 0.0
    wire: float = 0.0
    waited_for_host: float = 0.0
    waited_for_wire: float = 0.0
    log: list[tuple[str, float, float]] = field(default_factory=list)

    def launch(self, rows: Rows, needs: Sequence[float] = ()) -> list[float]:
        """Operators launched in order, of which the first needs something else, too; the end of each."""
        late = max([0.0, *(need - self.compute for need in needs)])
        self.waited_for_wire += late
        self.compute += late
        ends = []
        for host_us, device_us in rows:
            self.host += host_us * US
            start = max(self.compute, self.host + LAUNCH_LATENCY_S)
            self.waited_for_host += start - self.compute
            self.compute = start + device_us * US
            ends.append(self.compute)
        return ends

    def collective(self, microseconds: int, needs: float, name: str) -> float:
        if not microseconds:
            return needs
        start = max(self.wire, needs)
        self.wire = start + microseconds * US
        self.log.append((name, start, self.wire))
        return self.wire


@dataclass
class Expected:
    """A step that the next one equals."""

    step_s: float
    host_gap_s: float
    exposed_s: float
    collectives: list[tuple[str, float, float]]

    def seconds(self) -> tuple[float, float, float]:
        return self.step_s, self.host_gap_s, self.exposed_s


def played(case: Case) -> Expected:
    """Every micro-batch of every step, event by event, until a step equals the one before."""
    on, steps = Events(), [Expected(0.0, 0.0, 0.0, [])]
    while len(steps) < 3 or steps[-1].seconds() != pytest.approx(steps[-2].seconds(), rel=1e-12, abs=1e-15):
        steps.append(_step(case, on))
        assert len(steps) < 300
    return steps[-1]


def _step(case: Case, on: Events) -> Expected:
    zero = case.layout.zero
    begin, host_gap, exposed, on.log = on.compute, on.waited_for_host, on.waited_for_wire, []
    on.host += case.step_us * US
    for micro in range(case.micro_batches):
        _micro_batch(case, on, micro, micro == case.micro_batches - 1)
    on.launch((), [on.wire])
    for place, tail in enumerate(case.tails):
        if place:
            on.host = max(on.host, on.compute)
        on.launch(tail)
    if zero in (1, 2) and not case.layout.overlap_param_gather:
        on.launch((), [on.collective(case.gather_all_us, on.compute, "gather")])
    log = [(name, start - begin, end - start) for name, start, end in on.log]
    return Expected(on.compute - begin, on.waited_for_host - host_gap, on.waited_for_wire - exposed, log)


def _micro_batch(case: Case, on: Events, micro: int, last: bool) -> None:
    zero, units, order = case.layout.zero, case.units, case.order
    reduces = zero >= 2 or last or case.reduces_always
    if reduces:
        on.launch((), [on.collective(case.broadcast_us, on.compute, "broadcast")])
    start, ends = on.compute, []
    for place, (unit, _) in enumerate(order):
        needs = 0.0
        if zero == 3:  # two units' weights at a time: room for these is there when the unit but one is through
            room = ends[place - 2] if place >= 2 else start
            needs = on.collective(units[unit].gather_us, room, f"gather {unit}")
        elif zero and micro == 0 and case.layout.overlap_param_gather:
            needs = on.collective(units[unit].gather_us, start, f"gather {unit}")
        on.launch(units[unit].forward, [needs])
        ends.append(on.compute)
    backward = order[::-1]
    ready = 0.0
    ran: list[list[float]] = []
    for place, (unit, again) in enumerate(backward):
        following = 0.0
        if zero == 3 and place + 1 < len(backward):
            after = backward[place + 1][0]
            following = on.collective(units[after].gather_us, on.compute, f"gather {after}")
        on.launch(units[unit].recompute if again else (), [ready])
        ran.append(on.launch(units[unit].backward, [ready]))
        if reduces and case.layout.overlap_grad_reduce and not case.buckets:
            on.collective(units[unit].reduce_us, on.compute, f"reduce {unit}")
        ready = following
    if micro:
        on.launch(case.accumulate)
    if case.buckets and reduces:
        on.launch(case.into_buckets)
        _all_reduces(case, on, ran, micro == 0)
        on.launch(case.out_of_buckets, [on.wire])
    elif reduces and not case.layout.overlap_grad_reduce:
        on.launch((), [on.collective(case.reduce_all_us, on.compute, "reduce")])


def _all_reduces(case: Case, on: Events, ran: list[list[float]], first: bool) -> None:
    """A bucket is complete after its last gradient's operator, and later by the copies of all gradients up to it."""
    whole = sum(b.elements for b in case.buckets)
    copied = case.into_buckets if first else (*case.accumulate, *case.into_buckets)
    copying = sum(device for _, device in copied) * US
    for count, bucket in enumerate(case.buckets, 1):
        arrived = sum(b.elements for b in case.buckets[:count])
        ready = ran[bucket.use][bucket.position] + copying * arrived / whole
        on.collective(bucket.us, ready, "all_reduce")


# --- cases ------------------------------------------------------------------------------------------------------------

micros = st.integers(0, 60)
rows = st.lists(st.tuples(micros, micros), min_size=1, max_size=4).map(tuple)
LAYOUTS = (
    Layout(dp=4, zero=3), Layout(dp=4, zero=2), Layout(dp=4, zero=1), Layout(dp=4),
    Layout(dp=4, zero=1, overlap_param_gather=True), Layout(dp=4, zero=3, overlap_grad_reduce=False),
    Layout(dp=4, overlap_grad_reduce=False), Layout(dp=2, tp=2, zero=1, overlap_grad_reduce=True),
)  # fmt: skip


@st.composite
def plain_cases(draw: Any, most: int = 3, layouts: Sequence[Layout] = LAYOUTS) -> Case:
    """Steps whose gradients travel unit by unit, or all at once."""
    wire = st.integers(0, draw(st.sampled_from([20, 400])))
    units = tuple(
        Unit(draw(rows), draw(rows), draw(rows), draw(wire), draw(wire)) for _ in range(draw(st.integers(1, 3)))
    )
    runs = []
    for _ in range(draw(st.integers(1, 4))):
        repeat = draw(st.integers(1, 3))
        runs.append((draw(st.integers(0, len(units) - 1)), repeat, draw(st.integers(0, repeat))))
    return Case(
        units, tuple(runs), tuple(draw(st.lists(rows, min_size=1, max_size=3))), draw(rows),
        draw(st.sampled_from(layouts)), draw(st.integers(1, most)), draw(st.sampled_from([0, 50])), draw(st.booleans()),
    )  # fmt: skip


@st.composite
def ddp_cases(draw: Any, most: int = 3) -> Case:
    """Steps whose gradients travel in DDP's buckets."""
    case = draw(plain_cases(most, (Layout(dp=4),)))
    backward = [case.units[i].backward for i, _ in reversed(case.order)]
    places = [(use, position) for use, each in enumerate(backward) for position in range(len(each))]
    wire = st.integers(0, draw(st.sampled_from([20, 400])))
    buckets = tuple(
        AllReduce(*place, draw(st.integers(1, 100)), draw(wire))
        for place in sorted(draw(st.sets(st.sampled_from(places), min_size=1, max_size=4)))
    )
    return replace(
        case, buckets=buckets, into_buckets=draw(rows), out_of_buckets=draw(rows),
        broadcast_us=draw(st.sampled_from([0, 7])),
    )  # fmt: skip


def cases(most: int = 3) -> st.SearchStrategy[Case]:
    return st.one_of(plain_cases(most), ddp_cases(most))


def step_of(case: Case) -> Timeline:
    """The same step whether or not it is recorded."""
    recorded = simulate(timed(case), record=True)
    assert simulate(timed(case)).step_s == pytest.approx(recorded.step_s, rel=1e-12, abs=1e-15)
    return recorded


def communication(timeline: Timeline) -> float:
    return timeline.communication_exposed_s + timeline.communication_hidden_s


def near(value: float) -> Any:
    return pytest.approx(value, rel=1e-9, abs=1e-12)


def check_waits(case: Case, timeline: Timeline, expected: Expected) -> None:
    """The step and its waits. Where host and device take equally long, the waits depend on the lead the host began
    with."""
    assert timeline.step_s == near(expected.step_s)
    waits = timeline.host_gap_s + timeline.communication_exposed_s
    assert waits == near(expected.host_gap_s + expected.exposed_s)
    if timeline.host_gap_s > 1e-12 or timeline.step_s != near(case.seconds(0) + case.step_us * US):
        assert timeline.host_gap_s == near(expected.host_gap_s)


# --- the step ---------------------------------------------------------------------------------------------------------


@settings(max_examples=150)
@given(cases())
def test_equals_an_event_simulation(case: Case) -> None:
    expected, timeline = played(case), step_of(case)
    check_waits(case, timeline, expected)
    assert communication(timeline) == near(sum(seconds for _, _, seconds in expected.collectives))
    spans = [s for s in timeline.spans if s.stream == COMMUNICATION]
    assert [s.name.replace("blocks.", "") for s in spans] == [name for name, _, _ in expected.collectives]
    assert [s.start_s for s in spans] == pytest.approx([start for _, start, _ in expected.collectives], abs=1e-12)
    assert [s.seconds for s in spans] == pytest.approx([seconds for _, _, seconds in expected.collectives])


@settings(max_examples=75)
@given(cases(most=6))
def test_terms_are_those_of_the_operators_and_sum_to_the_step(case: Case) -> None:
    timeline = step_of(case)
    totals: Counter[Phase | str] = Counter()
    for phase, operators, times in case.operators():
        totals[phase] += sum(device for _, device in operators) * US * times
    assert timeline.recompute_s == near(totals.pop("recompute", 0.0))
    assert {phase: s for phase, s in timeline.busy.items() if s} == {p: near(s) for p, s in totals.items() if s}
    assert timeline.host_s == near(case.seconds(0) + case.step_us * US)
    waits = timeline.host_gap_s + timeline.communication_exposed_s + timeline.straggler_wait_s
    assert timeline.step_s == near(sum(timeline.busy.values()) + timeline.casts_s + timeline.recompute_s + waits)
    assert min(timeline.host_gap_s, timeline.communication_exposed_s, timeline.communication_hidden_s) >= 0.0
    assert timeline.bubble_s == 0.0


def test_casts_are_a_term_of_their_own() -> None:
    program = timed(Case((Unit(((1, 30), (1, 40)), ((1, 50),), (), 0, 0),), ((0, 1, 0),), (((1, 9),),), (), Layout()))
    program.works.is_cast[1] = True
    timeline = simulate(program)
    assert timeline.casts_s == near(40 * US)
    assert timeline.busy[Phase.FORWARD] == near(30 * US)
    assert timeline.step_s - timeline.host_gap_s == near(129 * US)


def without_communication(case: Case, factor: int = 0) -> Case:
    """The same step with every collective so many times as long."""
    return replace(
        case, broadcast_us=case.broadcast_us * factor,
        units=tuple(replace(u, gather_us=u.gather_us * factor, reduce_us=u.reduce_us * factor) for u in case.units),
        buckets=tuple(replace(b, us=b.us * factor) for b in case.buckets),
    )  # fmt: skip


@settings(max_examples=75)
@given(cases(most=8))
def test_what_holds_of_any_step(case: Case) -> None:
    timeline = step_of(case)
    without, slower = step_of(without_communication(case)), step_of(without_communication(case, 2))
    assert communication(without) == 0.0
    assert not [s for s in without.spans if s.stream == COMMUNICATION]
    slack, work = 1e-12, case.seconds(1)
    assert without.step_s <= timeline.step_s + slack
    assert timeline.step_s <= slower.step_s + slack
    assert timeline.step_s >= communication(timeline) - slack
    assert timeline.step_s >= work - slack
    assert timeline.communication_exposed_s <= timeline.step_s - work + slack


@settings(max_examples=40)
@given(plain_cases())
def test_one_rank_fully_sharded_is_one_rank(case: Case) -> None:
    """Collectives of one rank take no time; where they are requested plays no part."""
    plain = without_communication(replace(case, layout=Layout(), reduces_always=False))
    for zero in (1, 2, 3):
        assert step_of(replace(plain, layout=Layout(zero=zero))).step_s == near(step_of(plain).step_s)


def test_nothing_is_gathered_before_the_update_has_ended() -> None:
    long = ((1, 500),)
    for layout in (Layout(dp=4, zero=3), Layout(dp=4, zero=1, overlap_param_gather=True)):
        timeline = step_of(Case((Unit(long, long, (), 90, 0),), ((0, 3, 0),), (long,), (), layout))
        first = next(s for s in timeline.spans if s.stream == COMMUNICATION)
        assert first.start_s == pytest.approx(0.0, abs=1e-9)  # the step before has just ended with its update
        assert timeline.communication_exposed_s == pytest.approx(90 * US)


# --- host and device --------------------------------------------------------------------------------------------------


def fixed(micro_batches: int, device_us: int, host_us: int) -> Case:
    """Ten operators forward, twenty backward and one of the optimizer, all alike."""
    one = ((host_us, device_us),)
    return Case((Unit(one * 10, one * 20, (), 0, 0),), ((0, 1, 0),), (one,), one, Layout(), micro_batches)


def test_a_slow_host_is_host_bound_and_a_fast_one_is_not() -> None:
    slow, fast = step_of(fixed(1, 5, 50)), step_of(fixed(1, 50, 5))
    assert slow.step_s == pytest.approx(31 * 50 * US, rel=0.02)
    assert slow.host_gap_s > 0.8 * slow.step_s
    assert fast.step_s == pytest.approx(31 * 50 * US, rel=0.02)
    assert fast.host_gap_s == pytest.approx(0, abs=1e-9)


def test_the_host_waits_for_the_device_between_two_tails() -> None:
    """The device has 1000 us to do when the host has launched all of it; then it idles for the launch of the rest."""
    unit, rest = Unit(((1, 500),), ((1, 500),), (), 0, 0), ((20, 5), (20, 5))
    whole = Case((unit,), ((0, 1, 0),), (((1, 5), *rest),), (), Layout())
    split = replace(whole, tails=(((1, 5),), rest))
    assert step_of(whole).step_s == pytest.approx(1015 * US)
    launch = 20 * US + LAUNCH_LATENCY_S
    assert step_of(split).step_s == pytest.approx(1005 * US + launch + 20 * US + 5 * US)


@settings(max_examples=75)
@given(cases(most=6))
def test_a_synchronous_device_does_one_thing_after_another(case: Case) -> None:
    """A CPU: the host runs the kernels itself, and collectives take the cores that compute."""
    timeline = step_of(replace(case, synchronous=True, wait_share=0.0))
    host = case.seconds(0) + case.step_us * US
    wire = sum(seconds for _, _, seconds in played(case).collectives)
    assert timeline.step_s == near(host + case.seconds(1) + wire)
    assert timeline.host_gap_s == near(host)
    assert timeline.communication_exposed_s == near(wire)
    assert timeline.communication_hidden_s == near(0.0)
    spans = sorted((s.start_s, s.start_s + s.seconds) for s in timeline.spans)
    assert all(end <= start + 1e-12 for (_, end), (start, _) in pairwise(spans))


# --- other ranks ------------------------------------------------------------------------------------------------------


@settings(max_examples=60)
@given(cases(most=6), st.booleans())
def test_waits_for_the_slowest_rank_come_with_every_reduction(case: Case, always: bool) -> None:
    """What differs between ranks averages out over the micro-batches between two reductions, but not what runs once."""
    case = replace(case, reduces_always=always)
    alone, waiting = step_of(case), step_of(replace(case, wait_share=0.08))
    between = 1 if always or case.layout.zero >= 2 else case.micro_batches
    assert alone.straggler_wait_s == 0.0
    least, most = 0.08 / between**0.5 * alone.step_s, 0.08 * alone.step_s
    assert least * (1 - 1e-9) <= waiting.straggler_wait_s <= most * (1 + 1e-9)
    assert between > 1 or waiting.straggler_wait_s == near(most)
    assert waiting.step_s == near(alone.step_s + waiting.straggler_wait_s)


def in_a_bucket(all_reduce_us: int, slowdown: float) -> Case:
    """Backward passes of 100 us each, the all-reduce of the first to be done from there on; an update of 10 us."""
    unit = Unit(((1, 100),), ((1, 100),), (), 0, 0)
    return Case((unit,), ((0, 2, 0),), (((1, 10),),), (), Layout(dp=2), buckets=(AllReduce(0, 0, 8, all_reduce_us),),
                slowdown=slowdown)  # fmt: skip


@pytest.mark.parametrize(
    ("all_reduce_us", "step_us", "exposed_us"),
    [(60, 410 + 6, 6), (100, 410 + 10, 10), (150, 410 + 50, 50)],  # the longest one ends after the slowed compute
)
def test_compute_beside_an_all_reduce_is_slower(all_reduce_us: int, step_us: int, exposed_us: int) -> None:
    assert step_of(in_a_bucket(all_reduce_us, 1.0)).step_s == pytest.approx(max(410, 310 + all_reduce_us) * US)
    timeline = step_of(in_a_bucket(all_reduce_us, 1.1))
    assert timeline.step_s == pytest.approx(step_us * US)
    assert timeline.communication_exposed_s == pytest.approx(exposed_us * US)
    assert communication(timeline) == pytest.approx(all_reduce_us * US)


@settings(max_examples=100)
@given(cases())
def test_slowdown_costs_at_most_its_share_of_the_step(case: Case) -> None:
    alone, beside = step_of(case), step_of(replace(case, slowdown=1.2))
    assert alone.step_s <= beside.step_s + 1e-12
    assert beside.step_s <= 1.2 * alone.step_s + 1e-12
    assert step_of(replace(without_communication(case), slowdown=1.2)).step_s <= alone.step_s + 1e-12


SLOW_HOST = (1, 20, 100, 200)
"""Microseconds of a launch, against kernels of up to 200: the host rules most passes."""


def beside_a_slow_host(source: random.Random, longer: float = 0.0) -> Case:
    """A step with overlapped communication. The host waits for its device once, so that the end of the backward pass
    counts. The same source gives the same step but for operators and collectives that are longer, this share of them.
    """
    more = random.Random(source.random())

    def us(*choices: int) -> int:
        added = more.choice((1, 10, 60)) if more.random() < longer else 0
        return source.choice(choices) + added

    def rows_of(most: int) -> Rows:
        return tuple((us(*SLOW_HOST), us(1, 30, 80, 200)) for _ in range(source.randint(1, most)))

    def wire() -> int:
        return us(0, 0, 60, 150, 250, 400)

    units = tuple(Unit(rows_of(2), rows_of(3), rows_of(1), wire(), wire()) for _ in range(source.randint(2, 5)))
    order = [*range(len(units))]
    layout = source.choice([each for each in LAYOUTS if each.overlap_grad_reduce])
    buckets: tuple[AllReduce, ...] = ()
    if layout.zero == 0:
        places = [(use, at) for use, i in enumerate(order[::-1]) for at in range(len(units[i].backward))]
        chosen = sorted(source.sample(places, min(len(places), source.randint(1, 4))))
        buckets = tuple(AllReduce(*place, source.randint(1, 9), wire()) for place in chosen)
    return Case(
        units, tuple((i, 1, source.randint(0, 1)) for i in order), (rows_of(2), rows_of(1)), rows_of(1), layout,
        source.randint(1, 3), us(0, 50), source.random() < 0.3, buckets, rows_of(1) if buckets else (),
        rows_of(1) if buckets else (), slowdown=source.choice((1.0, 1.2, 1.5, 1.9)),
    )  # fmt: skip


@settings(max_examples=200)
@given(st.integers(0, 2**32), st.sampled_from([0.05, 0.3, 1.0]))
@example(671, 0.05)  # ZeRO 2; these three were shorter before a wait for the host made up for slower compute
@example(2815, 0.05)  # ZeRO 1
@example(8650, 0.05)  # DDP
def test_longer_operators_never_shorten_a_step(seed: int, longer: float) -> None:
    """Also where the host rules, and what runs beside a collective depends on when both begin."""
    before, after = (simulate(timed(beside_a_slow_host(random.Random(seed), share))) for share in (0.0, longer))
    assert after.step_s >= before.step_s - 1e-12


@pytest.mark.parametrize("buckets", [False, True])
def test_a_later_pass_is_not_slowed_less_than_it_is_later(buckets: bool) -> None:
    """The host launches every 100 or 200 us, and waits for the end of the backward pass before the second tail. The
    reduction of the first gradients ends beside the last pass, however long the pass between runs."""
    units = tuple(
        Unit(((1, 1),), ((host, device),), (), 0, reduce)
        for host, device, reduce in ((200, 190, 0), (100, 20, 0), (100, 10, 250))
    )
    case = Case(
        units,
        ((0, 1, 0), (1, 1, 0), (2, 1, 0)),
        (((1, 1),), ((1, 1),)),
        (),
        Layout(dp=4, zero=0 if buckets else 2, overlap_grad_reduce=True),
        buckets=(AllReduce(0, 0, 1, 250),) * buckets,
        slowdown=1.5,
    )
    later = replace(case, units=(units[0], replace(units[1], backward=((100, 80),)), units[2]))
    last = replace(case, units=(replace(units[0], backward=((200, 250),)), *units[1:]))
    assert step_of(later).step_s >= step_of(case).step_s - 1e-12
    assert step_of(last).step_s > step_of(case).step_s + 50 * US


def test_a_device_that_waits_for_its_host_makes_up_for_slower_compute() -> None:
    """Backward passes of 100 us beside an all-reduce of 60 us lose 6 us, and wait 20 us for the next launch."""
    case = replace(in_a_bucket(60, 1.1), step_us=0)
    slow_host = replace(case, units=(Unit(((120, 100),), ((120, 100),), (), 0, 0),))
    alone, beside = step_of(replace(slow_host, slowdown=1.0)), step_of(slow_host)
    assert beside.step_s == near(alone.step_s)
    assert beside.communication_exposed_s == near(0.0)


# --- micro-batches ----------------------------------------------------------------------------------------------------


def all_run(case: Case) -> Timeline:
    """The step with every micro-batch run."""

    def run_all(_: Rank, run: Callable[[], None], count: int) -> int:
        for _ in range(count):
            run()
        return 0

    with patch.object(module, "accumulate", run_all):
        return simulate(timed(case))


def terms(timeline: Timeline) -> tuple[float, ...]:
    hidden = timeline.communication_hidden_s
    return timeline.step_s, timeline.host_gap_s, timeline.communication_exposed_s, hidden


@settings(max_examples=75)
@given(cases(most=40), st.booleans())
def test_micro_batches_skipped_equal_micro_batches_run(case: Case, always: bool) -> None:
    """Whichever stream rules, and where another one begins to rule while the micro-batches are counted."""
    case = replace(case, reduces_always=always)
    expected, timeline = played(case), simulate(timed(case))
    assert timeline.repeated_micro_steps == 0 or case.micro_batches > 4
    check_waits(case, timeline, expected)
    assert communication(timeline) == near(sum(seconds for _, _, seconds in expected.collectives))


@settings(max_examples=100)
@given(cases(most=500), st.booleans(), st.sampled_from([1.0, 1.2]), st.booleans())
def test_long_accumulation_is_as_if_every_micro_batch_ran(
    case: Case, always: bool, slowdown: float, synchronous: bool
) -> None:
    case = replace(case, reduces_always=always, slowdown=slowdown, synchronous=synchronous)
    assert terms(simulate(timed(case))) == pytest.approx(terms(all_run(case)), rel=1e-7, abs=1e-12)


def test_micro_batches_that_take_turns() -> None:
    """The device moves on by 1, 2, 3, 1, 2, 3 ...: no micro-batch equals the one before, and their mean is repeated."""
    rank, turns = Rank(), iter(range(10**6))

    def run() -> None:
        rank.device += 1.0 + next(turns) % 3

    skipped = accumulate(rank, run, 3000)
    assert rank.device == pytest.approx(6000.0)
    assert 2900 < skipped < 3000


@settings(max_examples=60)
@given(cases(), st.integers(1, 300), st.booleans())
def test_one_more_micro_batch_never_shortens_a_step(case: Case, most: int, always: bool) -> None:
    """And micro-batches cost the same in the end: from some number on each costs as much as the one before."""
    case = replace(case, reduces_always=always)
    few, more = (simulate(timed(replace(case, micro_batches=n))).step_s for n in (most, most + 1))
    assert more >= few - 1e-12
    far = [simulate(timed(replace(case, micro_batches=10**5 + 12 * n))).step_s for n in range(3)]
    assert far[2] - far[1] == pytest.approx(far[1] - far[0], rel=1e-6, abs=1e-9)


def exposed_once(micro_batches: int, ranks: int) -> Case:
    """A host-bound micro-batch (90 us of launches, 60 us of kernels), and 4 ms of reductions at the end of the step."""
    unit = Unit(((30, 20),), ((60, 40),), (), 0, 0)
    buckets = (AllReduce(0, 0, 8, 4000),) if ranks > 1 else ()
    return Case((unit,), ((0, 1, 0),), (((10, 10),),), (), Layout(dp=ranks), micro_batches, buckets=buckets)


@pytest.mark.parametrize("micro_batches", [1, 2, 3, 4, 5, 64, 133, 134, 135, 1000])
def test_communication_hides_only_the_host_time_that_it_lasts(micro_batches: int) -> None:
    """Exposed communication lets the host run ahead, by its own length and not in every micro-batch."""
    alone, several = (step_of(exposed_once(micro_batches, ranks)).step_s for ranks in (1, 8))
    host, device = (micro_batches * each + 10 for each in (90, 60))
    assert alone == pytest.approx(host * US)
    assert several == pytest.approx(max(host, device + 4000) * US)


def fixed_cost(micro_batches: int, layout: Layout) -> int:
    """Passes run on the rank for a step."""
    case = repeating(layout, 5, 4, 30, micro_batches)
    with patch.object(Rank, "run", autospec=True, side_effect=Rank.run) as run:
        simulate(timed(case))
    return run.call_count


def repeating(layout: Layout, host: int, device: int, wire: int, micro_batches: int) -> Case:
    one = ((host, device),)
    return Case(
        (Unit(one * 3, one * 6, one * 3, wire, wire),), ((0, 5, 5),), (one * 2,), one, layout, micro_batches, 20
    )


@pytest.mark.parametrize("layout", LAYOUTS)
def test_cost_does_not_grow_with_accumulation(layout: Layout) -> None:
    assert fixed_cost(10**9, layout) == fixed_cost(10**4, layout) <= 15 * fixed_cost(2, layout)


# --- corrected times --------------------------------------------------------------------------------------------------


def corrected(case: Case, factors: Factors) -> Timeline:
    """The step of the program with its times multiplied."""

    def changed(one: Any, **fields: Any) -> Any:
        if not isinstance(one, Timed):
            return replace(one, **fields)
        other = copy(one)
        vars(other).update(fields)
        return other

    with patch.object(scaling, "replace", changed):
        return simulate(scaled(timed(case), factors))


def multiplied(case: Case, host: float, device: float, wire: float) -> Case:
    """The case with the microseconds of every operator and collective multiplied."""

    def rows_of(rows: Rows) -> Any:
        return tuple((launch * host, kernel * device) for launch, kernel in rows)

    units = (
        Unit(*(rows_of(r) for r in (u.forward, u.backward, u.recompute)), u.gather_us * wire, u.reduce_us * wire)  # type: ignore[arg-type]
        for u in case.units
    )
    return replace(
        case, units=tuple(units), tails=tuple(map(rows_of, case.tails)), accumulate=rows_of(case.accumulate),
        into_buckets=rows_of(case.into_buckets), out_of_buckets=rows_of(case.out_of_buckets),
        step_us=case.step_us * host, broadcast_us=case.broadcast_us * wire,
        buckets=tuple(replace(b, us=b.us * wire) for b in case.buckets),
    )  # type: ignore[arg-type]  # fmt: skip


some_factors = st.builds(Factors, *[st.sampled_from([0.5, 0.8, 1.0, 1.25, 2.0])] * 3)


@settings(max_examples=60)
@given(cases(), st.sampled_from([0.5, 1.0, 2.0]), st.booleans())
def test_one_factor_on_everything_is_that_factor_on_the_step(case: Case, factor: float, synchronous: bool) -> None:
    case = replace(case, synchronous=synchronous)
    timeline, plain = corrected(case, Factors(factor, factor, factor)), step_of(case)
    assert timeline.step_s == pytest.approx(factor * plain.step_s, rel=1e-9)
    assert timeline.communication_exposed_s == pytest.approx(factor * plain.communication_exposed_s, abs=1e-12)
    assert sum(timeline.busy.values()) == pytest.approx(factor * sum(plain.busy.values()))


@settings(max_examples=100)
@given(cases(), some_factors)
def test_corrected_steps_are_near_steps_of_corrected_operators(case: Case, factors: Factors) -> None:
    """Where a pass waits for its own launches a bound stands for its operators."""
    found = corrected(case, factors).step_s
    exact = step_of(multiplied(case, factors.host, factors.kernels, factors.communication)).step_s
    passes = len(case.order) * 3 * case.micro_batches + 8
    assert found >= exact - passes * LAUNCH_LATENCY_S
    assert found <= max(factors) * step_of(case).step_s + 1e-12
    device_bound = step_of(case).host_gap_s < 1e-12 and factors.host <= min(factors.kernels, factors.communication)
    if device_bound:
        assert found <= exact + 1e-9 * exact + passes * LAUNCH_LATENCY_S * max(factors)


@settings(max_examples=75)
@given(cases(), some_factors, st.sampled_from([(1, 1, 2), (1, 3, 1), (2, 1, 1)]), st.booleans())
def test_more_work_never_takes_less_corrected_time(
    case: Case, factors: Factors, more: tuple[int, int, int], synchronous: bool
) -> None:
    case = replace(case, synchronous=synchronous)
    assert corrected(multiplied(case, *more), factors).step_s >= corrected(case, factors).step_s - 1e-12
    one_more = replace(case, runs=(*case.runs, (0, 1, 0))) if not case.buckets else case
    assert corrected(one_more, factors).step_s >= corrected(case, factors).step_s - 1e-12


# --- traces -----------------------------------------------------------------------------------------------------------


@settings(max_examples=80)
@given(cases(), st.booleans())
def test_traces_cover_the_step(case: Case, synchronous: bool) -> None:
    case = replace(case, synchronous=synchronous, wait_share=0.08)
    timeline = step_of(case)
    events = [e for e in trace_events(timed(case), ("",), "title")["traceEvents"] if e["ph"] == "X"]
    compute, wire = ([e for e in events if e["tid"] == stream + 1] for stream in (COMPUTE, COMMUNICATION))
    assert len(wire) == sum(s.stream == COMMUNICATION for s in timeline.spans)
    operators = [e for e in compute if e["name"].startswith("aten.op")]
    assert len(operators) == sum(len(each) * times for _, each, times in case.operators())
    assert sum(e["dur"] for e in operators) == pytest.approx(1e6 * case.seconds(1))
    for track in (compute, wire):
        for one, after in pairwise(track):
            assert after["ts"] >= one["ts"] + one["dur"] - 1e-6
    end = max(e["ts"] + e["dur"] for e in events)
    assert end == pytest.approx(timeline.step_s * 1e6, rel=1e-9, abs=1e-6)
