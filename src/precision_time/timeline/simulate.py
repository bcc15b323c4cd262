"""Host launch, compute and communication streams of a steady step.

Host and device each run in order; a kernel starts when the one before it has ended and the host has launched it.
Gradient buckets are reduced one at a time, in order, on their own stream, each when its last gradient is ready. Two
consecutive steps are run from a shared start and the second is taken, so a step that leaves its queue full begins the
next one with a full queue. Micro-steps between the first and the last are equal: two are run, the others counted.

Before the last reduction ends the slowest rank must have its gradients: all others wait for it.

A synchronous device (a CPU) has no streams: host, kernels and reductions take turns on the same cores.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from precision_time.capture.graph import Phase
from precision_time.layout.rank_program import Segment
from precision_time.timing.program_times import TimedProgram
from precision_time.timing.ranks import averaged

Array = NDArray[np.float64]

LAUNCH_LATENCY_S = 3e-6
"""From the host's launch call to the start of the kernel on an idle device (FACTS: kernel floor 3.4-4 us with it)."""


@dataclass(frozen=True, slots=True, eq=False)
class Span:
    """One segment as it ran: start and duration of every call on the compute stream, seconds from the step's start."""

    segment: Segment
    start: Array
    duration: Array


@dataclass(frozen=True, slots=True, eq=False)
class Timeline:
    """One steady step.

    `busy[phase]` is compute-stream seconds by phase without casts, `casts_s` the casts among forward and backward,
    `host_gap_s` compute-stream idle time waiting for the host, `communication_exposed_s` idle time waiting for
    gradients, `straggler_wait_s` for the slowest rank. They sum to `step_s`. `host_s` is the time the host launches.
    """

    step_s: float
    busy: dict[Phase, float]
    casts_s: float
    host_gap_s: float
    communication_exposed_s: float
    communication_hidden_s: float
    straggler_wait_s: float
    host_s: float
    spans: tuple[Span, ...]
    reductions: tuple[tuple[float, float, int], ...]
    """(start, end, bytes) of the buckets of the last micro-step."""
    repeated_micro_steps: int
    """Micro-steps that `spans` leaves out because they equal the one drawn."""
    recompute_s: float = 0.0
    """Forward passes run again for the backward pass."""
    bubble_s: float = 0.0
    """A pipeline stage waiting for its neighbours."""
    exposed_by_group: Mapping[str, float] = field(default_factory=dict)
    """`communication_exposed_s` by who communicates: tensor, context, expert, data, pipeline ranks."""
    hidden_by_group: Mapping[str, float] = field(default_factory=dict)


class _Clock:
    """Positions of the host and of the compute stream, and what has been spent."""

    def __init__(self, timed: TimedProgram) -> None:
        self.timed = timed
        self.host = 0.0
        self.device = 0.0
        self.gap = 0.0
        self.exposed = 0.0
        self.waited = 0.0
        self.reduced = 0.0
        self.unreduced = 0
        self.spans: list[Span] = []

    def run(self, segment: Segment) -> Span | None:
        """Launch and execute a segment."""
        if not len(segment):
            return None
        host = self.host + np.cumsum(self.timed.host_seconds(segment))
        duration = self.timed.device_seconds(segment)
        launched = host + LAUNCH_LATENCY_S
        done = np.cumsum(duration)
        before = done - duration
        # end_i = done_i + max(device, max_{j<=i}(launched_j - before_j))
        offset = np.maximum(np.maximum.accumulate(launched - before), self.device)
        start = before + offset
        end = float(start[-1] + duration[-1])
        self.gap += end - self.device - float(done[-1])
        self.host, self.device = float(host[-1]), end
        span = Span(segment, start, duration)
        self.spans.append(span)
        return span

    def wait(self, until: float) -> None:
        """The compute stream waits for communication."""
        if until > self.device:
            self.exposed += until - self.device
            self.device = until

    def wait_for_ranks(self) -> None:
        """All ranks wait for the slowest since the last reduction."""
        share = averaged(self.timed.wait_share, self.unreduced)
        wait = share * (self.device - self.reduced)
        self.waited += wait
        self.device += wait
        self.reduced, self.unreduced = self.device, 0

    def synchronise(self) -> None:
        """The host waits for the device."""
        self.host = max(self.host, self.device)

    def begin_step(self, seconds: float) -> None:
        """The host's own part of a step: the loop, gradients to None, the batch to the device."""
        self.host += seconds


class _OneClock(_Clock):
    """Host and kernels are one stream; the host's share counts as a gap."""

    def run(self, segment: Segment) -> Span | None:
        if not len(segment):
            return None
        host = self.timed.host_seconds(segment)
        duration = self.timed.device_seconds(segment)
        start = self.device + np.cumsum(host + duration) - duration
        self.gap += float(host.sum())
        self.host = self.device = float(start[-1] + duration[-1])
        span = Span(segment, start, duration)
        self.spans.append(span)
        return span

    def wait(self, until: float) -> None:
        super().wait(until)
        self.host = self.device

    def begin_step(self, seconds: float) -> None:
        self.gap += seconds
        self.device += seconds
        self.host = self.device


def simulate(timed: TimedProgram) -> Timeline:
    """The steady step of a timed program."""
    program = timed.program
    clock = _OneClock(timed) if timed.synchronous else _Clock(timed)
    reductions: list[tuple[float, float, int]] = []
    step_start, host_start, drawn_from = 0.0, 0.0, 0
    extra, extra_gap, extra_exposed, extra_waited = 0.0, 0.0, 0.0, 0.0
    for _ in range(2):
        step_start, host_start, drawn_from = clock.device, clock.host, len(clock.spans)
        clock.gap = clock.exposed = clock.waited = extra = extra_gap = extra_exposed = extra_waited = 0.0
        clock.begin_step(timed.host.step_s)
        plain = program.micro_steps - 1
        all_reduce_always = program.synced_micro_steps == program.micro_steps and program.ranks > 1
        for index in range(min(plain, 2)):
            before = (clock.device, clock.gap, clock.exposed, clock.waited)
            reductions = _micro_step(clock, accumulate=index > 0, reduce=all_reduce_always)
            if index == 1 and plain > 2:
                copies = plain - 2
                extra = copies * (clock.device - before[0])
                extra_gap = copies * (clock.gap - before[1])
                extra_exposed = copies * (clock.exposed - before[2])
                extra_waited = copies * (clock.waited - before[3])
                if not all_reduce_always:  # the slowest rank is slow in the micro-steps that are only counted, too
                    clock.reduced -= extra
                    clock.unreduced += copies
        reductions = _micro_step(clock, accumulate=plain > 0, reduce=program.ranks > 1)
        _tail(clock)
    step_s = clock.device - step_start + extra
    reduce_s = float(timed.bucket_s.sum() + timed.broadcast_s) * program.synced_micro_steps
    exposed = clock.exposed + extra_exposed
    busy, casts = _busy(timed)
    spans = clock.spans[drawn_from:]
    shifted = tuple(Span(s.segment, s.start - step_start, s.duration) for s in spans)
    return Timeline(
        step_s=step_s,
        busy=busy,
        casts_s=casts,
        host_gap_s=max(clock.gap + extra_gap, 0.0),
        communication_exposed_s=exposed,
        communication_hidden_s=max(reduce_s - exposed, 0.0),
        straggler_wait_s=clock.waited + extra_waited,
        host_s=clock.host - host_start,
        spans=shifted,
        reductions=tuple((a - step_start, b - step_start, n) for a, b, n in reductions),
        repeated_micro_steps=max(program.micro_steps - 3, 0),
    )


def _micro_step(clock: _Clock, accumulate: bool, reduce: bool) -> list[tuple[float, float, int]]:
    timed, program = clock.timed, clock.timed.program
    clock.unreduced += 1
    if reduce and timed.broadcast_s:
        clock.wait(clock.device + timed.broadcast_s)
    if timed.synchronous:
        return _micro_step_in_turns(clock, accumulate, reduce)
    span = clock.run(program.micro)
    if accumulate:
        clock.run(program.accumulate)
    if not reduce or span is None:
        return []
    copies = program.bucket_copies
    if len(copies):
        clock.run(_only(copies, 0))
    free = 0.0
    reductions = []
    ends = span.start + span.duration
    # Each gradient is accumulated and copied into its bucket as it arrives. That work is drawn after the backward
    # pass; a bucket is ready later by the part of it that its own and earlier gradients take.
    delay = clock.device - float(ends[-1])
    arrived, elements = 0, sum(bucket.elements for bucket in program.buckets)
    for bucket, seconds in zip(program.buckets, timed.bucket_s, strict=True):
        arrived += bucket.elements
        ready = float(ends[min(bucket.ready, len(ends) - 1)]) + delay * arrived / elements
        start = max(free, ready)
        free = start + float(seconds)
        reductions.append((start, free, bucket.nbytes))
    clock.wait(free)
    clock.wait_for_ranks()
    if len(copies):
        clock.run(_only(copies, 1))
    return reductions


def _micro_step_in_turns(clock: _Clock, accumulate: bool, reduce: bool) -> list[tuple[float, float, int]]:
    """The same where a reduction takes the cores: a bucket is reduced when it is ready, and compute waits."""
    timed, program = clock.timed, clock.timed.program
    reductions = []
    done = 0
    if reduce:
        for bucket, seconds in zip(program.buckets, timed.bucket_s, strict=True):
            clock.run(_part(program.micro, done, bucket.ready + 1))
            if not done:
                clock.run(_only(program.bucket_copies, 0))
            done = max(done, bucket.ready + 1)
            start = clock.device
            clock.wait(start + float(seconds))
            reductions.append((start, clock.device, bucket.nbytes))
    clock.run(_part(program.micro, done, len(program.micro)))
    if accumulate:
        clock.run(program.accumulate)
    if reduce:
        clock.wait_for_ranks()
        clock.run(_only(program.bucket_copies, 1))
    return reductions


def _only(segment: Segment, index: int) -> Segment:
    return _part(segment, index, index + 1)


def _part(segment: Segment, start: int, stop: int) -> Segment:
    at = slice(start, max(start, stop))
    return Segment(segment.kind[at], segment.phase[at], segment.views[at], segment.module[at])


def _tail(clock: _Clock) -> None:
    program = clock.timed.program
    split = program.sync_after_tail + 1
    tail = program.tail
    if split:
        clock.run(_part(tail, 0, split))
        clock.synchronise()
    clock.run(_part(tail, split, len(tail)))


def _busy(timed: TimedProgram) -> tuple[dict[Phase, float], float]:
    """Compute-stream seconds of a whole step by phase, casts apart."""
    program = timed.program
    busy = dict.fromkeys(Phase, 0.0)
    casts = 0.0
    runs = (
        (program.micro, program.micro_steps),
        (program.accumulate, program.micro_steps - 1),
        (program.bucket_copies, program.synced_micro_steps),
        (program.tail, 1),
    )
    for segment, times in runs:
        if not len(segment) or times <= 0:
            continue
        seconds = timed.device_seconds(segment) * times
        cast = timed.works.is_cast[segment.kind]
        casts += float(seconds[cast].sum())
        totals = np.bincount(segment.phase[~cast], weights=seconds[~cast], minlength=len(Phase))
        for phase in Phase:
            busy[phase] += float(totals[phase])
    return busy, casts
