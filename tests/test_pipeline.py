"""Pipeline schedules against an event-driven simulation, formulas of the papers, and what must hold of any."""

from __future__ import annotations

import heapq
from collections import defaultdict
from itertools import count, pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from precision_time.errors import JobError
from precision_time.timeline import pipeline as pipeline_module
from precision_time.timeline import pipeline_play
from precision_time.timeline.pipeline import SCHEDULES, Interval, PipelineTimeline, StageTimes, pipeline
from precision_time.timeline.pipeline_trace import pipeline_trace

Op = tuple[str, int, int]  # kind, micro-batch, chunk


def uniform(stages: int, forward: float, backward: float, weight: float = 0.0, chunks: int = 1) -> StageTimes:
    shape = (stages, chunks)
    return StageTimes(np.full(shape, forward), np.full(shape, backward), np.full(shape, weight))


# --- the oracle: every stage walks through its list, operation by operation, on a heap of events ----------------------


def order(schedule: str, stage: int, stages: int, chunks: int, micro_batches: int) -> list[Op]:
    """What a stage runs, written as Megatron-LM's and zero-bubble's loops are."""
    m = micro_batches
    if schedule == "gpipe":
        return [("F", i, 0) for i in range(m)] + [("B", i, 0) for i in range(m)]
    if schedule == "interleaved":
        total, group = m * chunks, stages * chunks

        def op(kind: str, number: int) -> Op:
            chunk = number % group // stages
            micro = number // group * stages + number % stages
            return kind, micro, chunk if kind == "F" else chunks - 1 - chunk

        warm = min(2 * (stages - stage - 1) + (chunks - 1) * stages, total)
        ops = [op("F", i) for i in range(warm)]
        for i in range(total - warm):
            ops += [op("F", warm + i), op("B", i)]
        return ops + [op("B", i) for i in range(total - warm, total)]
    warm = min(stages - stage - 1, m)
    ops = [("F", i, 0) for i in range(warm)]
    made = 0
    for i in range(m):
        if warm + i < m:
            ops.append(("F", warm + i, 0))
        ops.append(("B", i, 0))
        if schedule == "zero-bubble" and i >= stage:
            ops.append(("W", made, 0))
            made += 1
    if schedule == "zero-bubble":
        ops += [("W", i, 0) for i in range(made, m)]
    return ops


def seconds(schedule: str, times: StageTimes, stage: int, op: Op) -> float:
    kind, _, chunk = op
    if kind == "F":
        return float(times.forward_s[stage, chunk])
    weight = float(times.weight_s[stage, chunk]) if schedule == "zero-bubble" and times.weight_s is not None else 0.0
    return weight if kind == "W" else float(times.backward_s[stage, chunk]) - weight


def needs(stage: int, stages: int, chunks: int, op: Op) -> tuple[int, Op] | None:
    """The stage and operation whose result this one waits for."""
    kind, micro, chunk = op
    part, last = chunk * stages + stage, chunks * stages - 1
    if kind == "W" or (kind == "F" and part == 0):
        return None
    if kind == "B" and part == last:
        return stage, ("F", micro, chunk)
    part += -1 if kind == "F" else 1
    return part % stages, (kind, micro, part // stages)


def simulated(
    schedule: str, times: StageTimes, send_s: float, micro_batches: int
) -> list[list[tuple[Op, float, float]]]:
    """(operation, start, end) of every stage."""
    stages, chunks = times.stages, times.chunks
    lists = [order(schedule, s, stages, chunks, micro_batches) for s in range(stages)]
    ran: list[list[tuple[Op, float, float]]] = [[] for _ in range(stages)]
    done: dict[tuple[int, Op], float] = {}
    asleep: dict[tuple[int, Op], list[int]] = defaultdict(list)
    free = [0.0] * stages
    events: list[tuple[float, int, float]] = []

    def begin(stage: int) -> None:
        if len(ran[stage]) == len(lists[stage]):
            return
        op = lists[stage][len(ran[stage])]
        need, start = needs(stage, stages, chunks, op), free[stage]
        if need is not None and need not in done:
            asleep[need].append(stage)
            return
        if need is not None:
            start = max(start, done[need] + (send_s if need[0] != stage else 0.0))
        heapq.heappush(events, (start + seconds(schedule, times, stage, op), stage, start))

    for stage in range(stages):
        begin(stage)
    while events:
        now, stage, start = heapq.heappop(events)
        op = lists[stage][len(ran[stage])]
        ran[stage].append((op, start, now))
        done[stage, op] = free[stage] = now
        begin(stage)
        for other in asleep.pop((stage, op), []):
            begin(other)
    assert [len(r) for r in ran] == [len(o) for o in lists]
    return ran


def met(schedule: str, times: StageTimes, send_s: float, micro_batches: int) -> list[list[tuple[Op, float, float]]]:
    """The same where sends block: Megatron-LM's calls one by one; a link's n-th call of one side meets the other's."""
    stages, m = times.stages, micro_batches
    calls: list[list[Op | int]] = []  # an operation, or the link (named by its lower stage) on which to meet
    for s in range(stages):
        warm = m if schedule == "gpipe" else min(stages - s - 1, m)
        before, after = ([s - 1] if s else []), ([s] if s < stages - 1 else [])
        todo: list[Op | int] = []
        for i in range(warm):
            todo += [*before, ("F", i, 0), *after]  # recv_forward, forward, send_forward
        if warm < m:
            todo += before  # recv_forward
        for i in range(m - warm):
            todo += [("F", warm + i, 0), *after]  # send_forward_recv_backward
            todo += [("B", i, 0), *before]  # send_backward_recv_forward, at last send_backward
        for i in range(m - warm, m):
            todo += [*after, ("B", i, 0), *before]  # recv_backward, backward, send_backward
        calls.append(todo)
    ran: list[list[tuple[Op, float, float]]] = [[] for _ in range(stages)]
    position = [0] * stages
    there: dict[int, tuple[int, float]] = {}
    ticket = count()
    events = [(0.0, next(ticket), s) for s in range(stages)]
    while events:
        now, _, stage = heapq.heappop(events)
        if position[stage] == len(calls[stage]):
            continue
        call = calls[stage][position[stage]]
        if isinstance(call, int):
            if call not in there:
                there[call] = (stage, now)
                continue
            other, _ = there.pop(call)
            assert other != stage
            for s in (stage, other):
                position[s] += 1
                heapq.heappush(events, (now + send_s, next(ticket), s))
        else:
            end = now + seconds(schedule, times, stage, call)
            ran[stage].append((call, now, end))
            position[stage] += 1
            heapq.heappush(events, (end, next(ticket), stage))
    assert all(at == len(todo) for at, todo in zip(position, calls, strict=True))
    return ran


def check(timeline: PipelineTimeline, ran: list[list[tuple[Op, float, float]]], blocking: bool = False) -> None:
    """Everything a timeline says, against the simulation."""
    near: dict[str, Any] = {"rel": 1e-9, "abs": 1e-9}
    assert timeline.step_s == pytest.approx(max(r[-1][2] for r in ran), **near)
    assert timeline.stage_end_s.tolist() == pytest.approx([r[-1][2] for r in ran], **near)
    assert timeline.stage_start_s.tolist() == pytest.approx([r[0][1] for r in ran], **near)
    assert timeline.busy_s.tolist() == pytest.approx([sum(b - a for _, a, b in r) for r in ran], **near)
    assert (timeline.exposed_send_s <= timeline.bubble_s + 1e-9 * timeline.step_s + 1e-12).all()
    short = {"forward": "F", "backward": "B", "weight": "W"}
    for stage, mine in enumerate(ran):
        told = list(timeline.intervals(stage))
        assert list(timeline.intervals(stage, 2)) == [each for each in told if each.micro_batch < 2]
        assert [(short[i.kind], i.micro_batch, i.chunk) for i in told] == [op for op, _, _ in mine]
        assert [i.start_s for i in told] == pytest.approx([a for _, a, _ in mine], **near)
        assert [i.start_s + i.duration_s for i in told] == pytest.approx([b for _, _, b in mine], **near)
        held = most = 0
        release = "W" if timeline.schedule == "zero-bubble" else "B"
        for (kind, _, _), _, _ in mine:
            held += (kind == "F") - (kind == release)
            most = max(most, held)
        assert timeline.in_flight[stage] == most
        if not blocking:
            idle = [mine[0][1], *(b[1] - a[2] for a, b in pairwise(mine))]
            sent = sum(min(max(gap, 0.0), timeline.send_s) for gap in idle)
            assert timeline.exposed_send_s[stage] == pytest.approx(sent, rel=1e-9, abs=1e-9)


# Times with few digits make ties, and ties are where orders of events could differ.
SECONDS = st.one_of(st.integers(0, 4).map(float), st.floats(0.01, 5.0))


@st.composite
def jobs(draw: st.DrawFn, schedules: tuple[str, ...] = SCHEDULES, most: int = 14) -> tuple[str, StageTimes, float, int]:
    schedule = draw(st.sampled_from(schedules))
    stages = draw(st.integers(1, 5))
    chunks = draw(st.integers(2, 4)) if schedule == "interleaved" else 1
    micro_batches = draw(st.integers(1, most))
    if schedule == "interleaved":
        micro_batches = stages * max(1, micro_batches // stages)

    def array() -> np.ndarray[Any, np.dtype[np.float64]]:
        if draw(st.booleans()):
            return np.full((stages, chunks), draw(SECONDS))
        return np.array(draw(st.lists(SECONDS, min_size=stages * chunks, max_size=stages * chunks))).reshape(stages, -1)

    backward = array()
    weight = backward * draw(st.sampled_from([0.0, 0.25, 0.5, 1.0]))
    send_s = draw(st.one_of(st.just(0.0), SECONDS, st.just(0.01)))
    return schedule, StageTimes(array(), backward, weight), send_s, micro_batches


@settings(max_examples=150, deadline=None)
@given(jobs())
def test_as_the_event_driven_simulation(job: tuple[str, StageTimes, float, int]) -> None:
    check(pipeline(*job), simulated(*job))


@settings(max_examples=80, deadline=None)
@given(jobs(schedules=("gpipe", "1f1b")))
def test_blocking_sends_as_megatrons_calls(job: tuple[str, StageTimes, float, int]) -> None:
    check(pipeline(*job, blocking_send=True), met(*job), blocking=True)


@settings(max_examples=60, deadline=None)
@given(jobs(most=150))
def test_what_is_skipped_would_have_been_the_same(job: tuple[str, StageTimes, float, int]) -> None:
    check(pipeline(*job), simulated(*job))


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("slow", [0, 2, 3])
@pytest.mark.parametrize("by", [1.0001, 1.01, 1.5])
@pytest.mark.parametrize("send_s", [0.0, 0.02, 1.7])
def test_a_slow_stage_and_many_micro_batches(schedule: str, slow: int, by: float, send_s: float) -> None:
    """Nearly equal stages take turns in setting the pace only after many micro-batches."""
    chunks = 2 if schedule == "interleaved" else 1
    forward = np.ones((4, chunks))
    forward[slow, -1] *= by
    job = (schedule, StageTimes(forward, 2 * forward, forward * 0.9), send_s, 240)
    check(pipeline(*job), simulated(*job))


def test_blocking_sends_and_many_micro_batches() -> None:
    times = StageTimes([[1.0], [1.2], [1.1], [1.19]], [[2.0], [2.1], [2.2], [2.3]])
    check(pipeline("1f1b", times, 0.1, 200, blocking_send=True), met("1f1b", times, 0.1, 200), blocking=True)


@pytest.mark.parametrize(
    ("schedule", "stages", "chunks"), [("1f1b", 8, 1), ("zero-bubble", 8, 1), ("interleaved", 8, 5)]
)
def test_the_work_does_not_grow_with_the_micro_batches(
    schedule: str, stages: int, chunks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A first stage with an embedding and a last one with the loss: rows are played up to where they repeat."""
    played: list[int] = []
    for clock in (pipeline_play._Ring, pipeline_play._Pairs):
        run = clock.run

        def counted(self: Any, first: int, end: int, run: Any = run) -> None:
            played.append(end - first)
            run(self, first, end)

        monkeypatch.setattr(clock, "run", counted)
    forward = np.ones((stages, chunks))
    forward[0, 0], forward[-1, -1] = 1.1, 1.5
    times = StageTimes(forward, 2 * forward, forward)
    rows = []
    for micro_batches in (400, 4000, 40000):
        played.clear()
        pipeline_module._play.cache_clear()  # what one played, the next would remember
        pipeline(schedule, times, 0.05, micro_batches)
        rows.append(sum(played))
    assert rows[0] == rows[1] == rows[2]


# --- worked by hand, and the formulas of the papers -----------------------------------------------------------------


@pytest.mark.parametrize("micro_batches", [1, 3, 4, 5, 32, 500])
@pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])
def test_equal_stages_fill_and_drain_once(schedule: str, micro_batches: int) -> None:
    """(m + p - 1)(f + b): GPipe and 1F1B take equally long, and hold m and p - s micro-batches."""
    timeline = pipeline(schedule, uniform(4, 1.0, 2.5), 0.0, micro_batches)
    assert timeline.step_s == pytest.approx((micro_batches + 3) * 3.5)
    assert timeline.bubble_s.tolist() == pytest.approx([3 * 3.5] * 4)
    held = [micro_batches] * 4 if schedule == "gpipe" else [min(micro_batches, 4 - s) for s in range(4)]
    assert timeline.in_flight.tolist() == held


@pytest.mark.parametrize("chunks", [2, 3, 8])
@pytest.mark.parametrize("groups", [1, 2, 5, 40])
def test_interleaving_divides_the_bubble(chunks: int, groups: int) -> None:
    """Equation of arXiv:2104.04473, section 2.2: (p - 1)(f + b) / v with f and b of the whole stage."""
    timeline = pipeline("interleaved", uniform(4, 1.0 / chunks, 2.0 / chunks, chunks=chunks), 0.0, 4 * groups)
    assert timeline.bubble_s.tolist() == pytest.approx([3 * 3.0 / chunks] * 4)


@pytest.mark.parametrize(("forward", "inputs", "weights"), [(1.0, 1.0, 1.0), (1.0, 1.3, 0.9), (1.0, 1.3, 0.7)])
@pytest.mark.parametrize("micro_batches", [8, 20, 300])
def test_zero_bubble_fills_with_weight_gradients(
    forward: float, inputs: float, weights: float, micro_batches: int
) -> None:
    """ZB-H1, arXiv:2401.10241 table 2: (p - 1)(T_F + T_B - T_W), T_B the gradient of the inputs alone."""
    times = uniform(4, forward, inputs + weights, weights)
    timeline = pipeline("zero-bubble", times, 0.0, micro_batches)
    bubble = 3 * (forward + inputs - weights)
    assert timeline.step_s == pytest.approx(micro_batches * (forward + inputs + weights) + bubble)
    assert timeline.in_flight.max() == pipeline("1f1b", times, 0.0, micro_batches).in_flight.max()


def test_two_stages_two_micro_batches_by_hand() -> None:
    """Stage 0: F0 0-1, F1 1-2; stage 1: F0 1.5-4.5, B0 -6.5, F1 -9.5, B1 -11.5; stage 0: B0 7-8, B1 12-13."""
    times = StageTimes([[1.0], [3.0]], [[1.0], [2.0]])
    timeline = pipeline("1f1b", times, 0.5, 2)
    assert list(timeline.intervals(0)) == [
        Interval(0.0, 1.0, "forward", 0, 0),
        Interval(1.0, 1.0, "forward", 1, 0),
        Interval(7.0, 1.0, "backward", 0, 0),
        Interval(12.0, 1.0, "backward", 1, 0),
    ]
    assert timeline.step_s == 13.0
    assert timeline.stage_end_s.tolist() == [13.0, 11.5]
    assert timeline.bubble_s.tolist() == [9.0, 3.0]
    assert timeline.exposed_send_s.tolist() == [1.0, 0.5]


def test_a_round_trip_sets_the_pace_where_sends_are_long() -> None:
    """p micro-batches per round trip: (f + b) + 2 send (p - 1) / p each, not (f + b), once sends are not hidden."""
    p, send_s = 4, 0.5
    few, many = (pipeline("1f1b", uniform(p, 1.0, 2.0), send_s, m).step_s for m in (400, 800))
    assert (many - few) / 400 == pytest.approx(3.0 + 2 * send_s * (p - 1) / p)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_one_stage_is_busy_all_the_time(schedule: str) -> None:
    chunks = 3 if schedule == "interleaved" else 1
    timeline = pipeline(schedule, uniform(1, 1.0, 2.0, 1.0, chunks), 7.0, 9)
    assert timeline.step_s == pytest.approx(9 * 3.0 * chunks)
    assert timeline.exposed_send_s.tolist() == [0.0]


# --- what must hold of any --------------------------------------------------------------------------------------------


@settings(max_examples=60, deadline=None)
@given(jobs(), st.floats(0.0, 2.0), st.data())
def test_more_is_never_shorter(job: tuple[str, StageTimes, float, int], extra: float, data: st.DataObject) -> None:
    schedule, times, send_s, micro_batches = job
    timeline = pipeline(*job)
    near = 1e-9 * (1 + timeline.step_s)
    more = micro_batches + (times.stages if schedule == "interleaved" else 1)
    assert pipeline(schedule, times, send_s, more).step_s >= timeline.step_s - near
    assert pipeline(schedule, times, send_s + extra, micro_batches).step_s >= timeline.step_s - near
    forward = times.forward_s.copy()
    forward[data.draw(st.integers(0, times.stages - 1))] += extra
    slower = StageTimes(forward, times.backward_s, times.weight_s)
    assert pipeline(schedule, slower, send_s, micro_batches).step_s >= timeline.step_s - near
    assert (timeline.step_s >= timeline.busy_s - near).all()
    assert (timeline.stage_end_s <= timeline.step_s).all()
    parts = times.stages * times.chunks
    weight = 0.0 if schedule != "zero-bubble" or times.weight_s is None else float(times.weight_s.sum())
    path = float(times.forward_s.sum() + times.backward_s.sum()) - weight
    if times.stages > 1:
        path += 2 * (parts - 1) * send_s
    assert timeline.step_s >= path - near


# --- errors -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("1f1", uniform(2, 1, 1), 0.0, 4), "1f1b"),
        (("1f1b", uniform(2, 1, 1), 0.0, 0), "0 micro-batches"),
        (("1f1b", uniform(2, 1, 1), -1.0, 4), "send_s"),
        (("1f1b", uniform(2, 1, 1, chunks=2), 0.0, 4), "say interleaved"),
        (("interleaved", uniform(2, 1, 1), 0.0, 4), "say 1f1b"),
        (("interleaved", uniform(4, 1, 1, chunks=2), 0.0, 6), "multiple of 4"),
        (("zero-bubble", StageTimes([[1.0]], [[1.0]]), 0.0, 4), "weight_s"),
    ],
)
def test_errors_name_the_fix(arguments: tuple[str, StageTimes, float, int], words: str) -> None:
    with pytest.raises(JobError, match=words):
        pipeline(*arguments)


def test_blocking_is_of_schedules_that_block() -> None:
    with pytest.raises(JobError, match="blocking_send=False"):
        pipeline("interleaved", uniform(2, 1, 1, chunks=2), 0.1, 4, blocking_send=True)


@pytest.mark.parametrize(
    ("times", "words"),
    [
        (([1.0], [1.0]), "stages, chunks"),
        (([[1.0]], [[1.0, 2.0]]), "differ in shape"),
        (([[-1.0]], [[1.0]]), "negative"),
        (([[1.0]], [[1.0]], [[2.0]]), "weight_s exceeds"),
    ],
)
def test_half_described_stages(times: tuple[Any, ...], words: str) -> None:
    with pytest.raises(JobError, match=words):
        StageTimes(*times)


# --- the trace --------------------------------------------------------------------------------------------------------


def test_a_track_per_stage() -> None:
    timeline = pipeline("zero-bubble", uniform(3, 1.0, 2.0, 1.0), 0.1, 5)
    trace = pipeline_trace(timeline, "three stages")
    drawn = [e for e in trace["traceEvents"] if e["ph"] == "X"]
    assert {e["tid"] for e in drawn} == {0, 1, 2}
    assert len(drawn) == 3 * 5 * 3
    assert max(e["ts"] + e["dur"] for e in drawn) == pytest.approx(timeline.step_s * 1e6)
    assert trace["otherData"] == {"micro_batches_not_drawn": 0}


def test_micro_batches_beyond_the_limit_are_named_not_drawn() -> None:
    timeline = pipeline("1f1b", uniform(2, 1.0, 2.0), 0.0, 50)
    trace = pipeline_trace(timeline, "two stages", most=10)
    drawn = [e for e in trace["traceEvents"] if e["ph"] == "X" and e["cat"] != "note"]
    notes = [e for e in trace["traceEvents"] if e["ph"] == "X" and e["cat"] == "note"]
    assert {e["args"]["micro_batch"] for e in drawn} == set(range(10))
    assert [n["name"] for n in notes] == ["40 more micro-batches"] * 2
    assert max(n["ts"] + n["dur"] for n in notes) == pytest.approx(timeline.step_s * 1e6)
    assert trace["otherData"] == {"micro_batches_not_drawn": 40}


@pytest.mark.parametrize("stages", [2, 16])
def test_a_long_gpipe_goes_on_at_its_last_rate(stages: int, monkeypatch: pytest.MonkeyPatch) -> None:
    times = StageTimes(np.linspace(1, 2, stages)[:, None], np.linspace(3, 2, stages)[:, None])
    exact = pipeline("gpipe", times, 0.1, 1000, blocking_send=True)
    monkeypatch.setattr(pipeline_module, "MOST_ROWS", 1000)
    bounded = pipeline("gpipe", times, 0.1, 1000, blocking_send=True)
    assert bounded.step_s == pytest.approx(exact.step_s, rel=1e-9)
    assert bounded.stage_end_s == pytest.approx(exact.stage_end_s, rel=1e-9)


def test_a_pipeline_of_too_many_stages_is_refused() -> None:
    times = StageTimes(np.ones((4000, 1)), np.ones((4000, 1)))
    with pytest.raises(JobError, match=r"pp=4000 x vpp=1 with 1 micro-batches .* lower pp or vpp"):
        pipeline("1f1b", times, 0.0, 1)
