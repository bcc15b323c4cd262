"""The steady step of a program: units in order on a rank, gathering and reducing beside them, or a pipeline of stages.

One stage runs its units in order on two streams: compute, and the data-parallel collectives, which run one at a time in
the order they are issued (one NCCL communicator). Several stages go to `pipeline_step`. The steady step is the one that
all later steps equal: a launch queue that a step leaves full is full at the start of the next. Of the equal
micro-batches between the first and the last a few are run and the others counted (`accumulation`).

PyTorch's DDP reduces gradients in buckets (`layout.buckets`), each when its last gradient is complete. Fully sharded
(FSDP, ZeRO 3), the weights of a unit are gathered before its forward and before its backward pass, at the earliest when
the last unit but one has ended (FSDP's `limit_all_gathers`); in the backward pass the next unit's weights are gathered
before this unit's compute (`BACKWARD_PRE`), and gradients are reduced behind the next unit's backward. The last unit's
backward follows its forward, so its weights are kept (torchtitan, and FSDP's root). Nothing is gathered before the
update has ended. With ZeRO 1 and 2, weights are gathered once, behind the first forward passes or after the update.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cached_property, partial
from typing import NamedTuple

from precision_time.layout.program import DATA, Stage
from precision_time.layout.segment import Segment
from precision_time.timeline.accumulation import EQUAL, accumulate
from precision_time.timeline.pipeline_step import pipeline_step
from precision_time.timeline.rank import Label, Position, Rank
from precision_time.timeline.terms import communication_within_units, timeline_of
from precision_time.timeline.timeline import Timeline
from precision_time.timing.passes import LAUNCH_LATENCY_S, Pass
from precision_time.timing.program_times import TimedProgram, host_seconds
from precision_time.timing.ranks import averaged

HOST = "host"
"""Copies between device and host, among the groups of exposed communication."""
MOST_STEPS = 8
"""Steps run to find the steady one."""

Uses = Sequence[tuple[int, bool]]
"""Units in the order they run forward, and whether each recomputes."""


def simulate(timed: TimedProgram, record: bool = False) -> Timeline:
    """The steady step of a timed program. `record`: keep every pass and collective, where there is one stage."""
    if timed.program.layout.pp > 1:
        return pipeline_step(timed)
    return _Step(timed, record).timeline()


class _Bucketed(NamedTuple):
    """A bucket of gradients (see `Bucket` and `BucketReady`), the seconds of its reduction, and the elements in it and
    in all before it."""

    use: int
    share: float
    launch_bound_s: float
    seconds: float
    nbytes: int
    arrived: int


class _Step:
    """One rank that holds all units."""

    def __init__(self, timed: TimedProgram, record: bool) -> None:
        self.timed, self.program, self.layout = timed, timed.program, timed.program.layout
        self.rank = Rank(timed.slowdown, timed.synchronous, record)
        self.stage = self.program.stages[0]
        self.uses: Uses = tuple(_uses(self.stage))
        self.sweeps = timed.sweeps[0]

    def timeline(self) -> Timeline:
        rank, program = self.rank, self.program
        start, skipped = self._steady_step()
        taken = rank.position().since(start)
        between = program.micro_batches // program.reductions if self.layout.zero < 2 else 1
        # What runs once a step does not average out.
        once_s = min(taken.sent + self.sweeps.tail_s, taken.device)
        averaging = averaged(self.timed.wait_share, between)
        straggler_wait = averaging * taken.device + (self.timed.wait_share - averaging) * once_s
        exposed_by, hidden_by = communication_within_units(self.timed, self.stage)
        copied_s = self.timed.offload.copies_s(program.micro_batches)
        exposed = max(taken.exposed - copied_s - self.timed.offload.update_s, 0.0)
        exposed_by[DATA] = exposed_by.get(DATA, 0.0) + exposed
        exposed_by[HOST] = copied_s
        hidden_by[DATA] = hidden_by.get(DATA, 0.0) + max(taken.sent - exposed, 0.0)
        timeline = timeline_of(self.timed, self.stage, taken.device, straggler_wait, exposed_by, hidden_by)
        if not rank.spans and not skipped:
            return timeline
        return replace(
            timeline,
            spans=tuple(
                replace(s, start_s=s.start_s - start.device, host_s=s.host_s - start.device) for s in rank.spans
            ),
            repeated_micro_steps=skipped,
        )

    def _steady_step(self) -> tuple[Position, int]:
        """Runs steps until one is like all that follow; returns the rank's position before it, and how many of its
        micro-batches were skipped.

        A step that starts with all of it launched is steady where the device takes no less time than the host, which
        then stays ahead. Otherwise steps are run until the host's lead is that of the step before: after the second,
        but for rare programs.
        """
        rank = self.rank
        if not rank.synchronous and len(self.sweeps.tails) == 1 and self.program.offload is None:
            rank.host = -2.0 * host_seconds(self.timed, self.stage) - LAUNCH_LATENCY_S
            start = rank.position()
            skipped = self._run_step()
            taken = rank.position().since(start)
            if taken.host <= taken.device * (1.0 + EQUAL):
                return start, skipped
            rank.host = rank.device
        self._run_step()
        for _ in range(MOST_STEPS):
            start = rank.position()
            skipped = self._run_step()
            taken = rank.position().since(start)
            if abs(taken.host - taken.device) <= EQUAL * taken.device:
                break
        return start, skipped

    def _run_step(self) -> int:
        """One step; returns the number of micro-batches counted and not run."""
        rank, micro_batches = self.rank, self.program.micro_batches
        rank.spans.clear()
        rank.ended.clear()
        rank.host += self.timed.host.step_s
        if rank.synchronous:
            rank.device += self.timed.host.step_s
            rank.host = rank.device
        self._micro_batch(first=True, last=micro_batches == 1)
        skipped = 0
        if micro_batches > 2:
            skipped = accumulate(rank, partial(self._micro_batch, first=False, last=False), micro_batches - 2)
        if micro_batches > 1:
            self._micro_batch(first=False, last=True)
        self._update()
        return skipped

    def _micro_batch(self, first: bool, last: bool) -> None:
        """Forward and backward of one micro-batch, with its data-parallel collectives."""
        rank, timed = self.rank, self.timed
        reduces = self.layout.zero >= 2 or last or self.program.reduces_always
        if reduces and timed.broadcast_s:
            rank.wait(rank.send(timed.broadcast_s, rank.device, "broadcast", self.program.broadcast_bytes))
        self._forward(first)
        self._copied(timed.offload.forward_s)
        if reduces and timed.bucket_s:
            self._backward_in_buckets(first)
            return
        self._backward(reduces)
        if not first:
            self._sweep(self.sweeps.accumulate, "accumulate", "backward", self.stage.accumulate)
        if reduces and not self.layout.overlap_grad_reduce:
            rank.wait(rank.send(timed.stage_data[0].reduce_s, rank.device, "reduce"))
        self._copied(timed.offload.backward_s)

    def _copied(self, seconds: float) -> None:
        """A wait for copies between host and device that no compute hides."""
        if seconds:
            self.rank.wait(self.rank.device + seconds)

    def _forward(self, first: bool) -> None:
        rank = self.rank
        gathers_each = self.layout.zero >= 3
        gathers_first = self.layout.zero in (1, 2) and first and self.layout.overlap_param_gather
        # Without collectives, equal units in a row are one pass; a trace needs every unit.
        if not (rank.recording or gathers_each or gathers_first) and rank.is_undisturbed():
            for step in self.forward_rows:
                rank.run(step)
            return
        updated = rank.device  # no weight is gathered before
        for place, (unit, _) in enumerate(self.uses):
            ready = 0.0
            if gathers_each or gathers_first:
                freed = rank.ended[-2] if gathers_each and place > 1 else updated
                if gathers_each and self.program.reference:
                    self._gather(unit, freed)
                ready = self._gather(unit, freed)
            self._pass(unit, "forward", ready)

    def _backward(self, reduces: bool) -> None:
        """A backward pass whose gradients are reduced unit by unit, or not at all."""
        rank, timed = self.rank, self.timed
        gathers_each = self.layout.zero >= 3
        behind = reduces and self.layout.overlap_grad_reduce
        if not (rank.recording or gathers_each or behind) and rank.is_undisturbed():
            for step in self.backward_rows:
                rank.run(step)
            return
        backward = self.uses[::-1]
        ready = 0.0
        for place, (unit, again) in enumerate(backward):
            arrived = ready
            if gathers_each and place + 1 < len(backward):
                ready = self._gather(backward[place + 1][0], rank.ended[-1])
            if again:
                self._pass(unit, "recompute", arrived)
            self._pass(unit, "backward", arrived)
            if behind:
                rank.send(timed.unit_data[unit].reduce_s, rank.device, f"reduce {self.program.units[unit].name}")

    @cached_property
    def forward_rows(self) -> list[Pass]:
        """A forward pass without collectives: equal units in a row as one pass."""
        rows = [row for chunk in self.stage.chunks for row in chunk.units]
        return [self.timed.units[unit].forward.times(repeat) for unit, repeat, _ in rows]

    @cached_property
    def backward_rows(self) -> list[Pass]:
        """A backward pass without collectives; the first units of a row recompute."""
        rows: list[Pass] = []
        for chunk in reversed(self.stage.chunks):
            for unit, repeat, again in reversed(chunk.units):
                times = self.timed.units[unit]
                rows.append(times.backward.times(repeat - again))
                if again:
                    rows.append(times.recompute.then(times.backward).times(again))
        return rows

    def _backward_in_buckets(self, first: bool) -> None:
        """A backward pass with DDP's reductions, up to the copies out of the buckets.

        Each gradient is accumulated and copied into its bucket as it arrives. This work is timed after the backward
        pass; it delays each bucket by the share of its own and earlier gradients.
        """
        rank, units = self.rank, self.timed.units
        runs = []
        for unit, again in reversed(self.uses):
            if again:
                self._pass(unit, "recompute")
            runs.append((rank.device, rank.host, rank.idle, units[unit].backward.device_s))
            self._pass(unit, "backward")
        copies_s = self.sweeps.into_buckets.device_s + (0.0 if first else self.sweeps.accumulate.device_s)
        if not first:
            self._sweep(self.sweeps.accumulate, "accumulate", "backward", self.stage.accumulate)
        self._sweep(self.sweeps.into_buckets, "into buckets", "backward", self.stage.into_buckets)
        elements, slowed, idle, margins = self.bucketed[-1].arrived, 0.0, 0.0, rank.margins
        for use, share, launch_bound_s, seconds, nbytes, arrived in self.bucketed:
            device, host, idle_before, backward_s = runs[use]
            ran, launched = device + share * backward_s, host + launch_bound_s
            late = launched - ran
            ready = (launched if late > 0.0 else ran) + copies_s * arrived / elements
            margins.append(late)
            if rank.slowdown == 1.0:
                rank.send(seconds, ready, "all_reduce", nbytes)
                continue
            idle, before = max(idle, idle_before + late if late > 0.0 else idle_before), idle
            if slowed:
                slowed = self._made_up(slowed, idle - before)
            done = rank.send(seconds, ready + slowed, "all_reduce", nbytes)
            ended = rank.device + self._made_up(slowed, rank.idle - idle)
            beside = min(done, ended) - (done - seconds)
            margins += (done - ended, beside)
            if beside > 0.0:
                slowed += beside * (rank.slowdown - 1.0)
        rank.slow(self._made_up(slowed, rank.idle - idle))
        rank.wait(rank.wire)
        self._sweep(self.sweeps.out_of_buckets, "out of buckets", "backward", self.stage.out_of_buckets)

    @cached_property
    def bucketed(self) -> list[_Bucketed]:
        """DDP's buckets in the order they are reduced."""
        timed, arrived, rows = self.timed, 0, []
        for bucket, seconds, last in zip(self.program.buckets.buckets, timed.bucket_s, timed.bucket_ready, strict=True):
            arrived += bucket.elements
            rows.append(_Bucketed(bucket.use, last.share, last.launch_bound_s, seconds, bucket.nbytes, arrived))
        return rows

    def _made_up(self, slowed: float, idle: float) -> float:
        """What is left of a delay after the device has waited for its host for so long."""
        if slowed:
            self.rank.margins.append(slowed - idle)
        return max(slowed - idle, 0.0)

    def _update(self) -> None:
        """Wait for the gradients, update, and gather the new weights if that is not overlapped."""
        rank = self.rank
        rank.wait(rank.wire)
        for place, (tail, segment) in enumerate(zip(self.sweeps.tails, self.stage.tails, strict=True)):
            if place:
                rank.synchronize()
            self._sweep(tail, "optimizer", "optimizer", segment)
        if self.program.offload is not None:  # the host updates, and launches nothing meanwhile
            self._copied(self.timed.offload.update_s)
            rank.synchronize()
        if self.layout.zero in (1, 2) and not self.layout.overlap_param_gather:
            rank.wait(rank.send(self.timed.stage_data[0].gather_s, rank.device, "gather"))

    def _gather(self, unit: int, ready: float) -> float:
        """The end of gathering a unit's weights, which may start at `ready`."""
        return self.rank.send(self.timed.unit_data[unit].gather_s, ready, f"gather {self.program.units[unit].name}")

    def _sweep(self, step: Pass, name: str, kind: str, segment: Segment) -> None:
        """Run a pass over the parameters."""
        self.rank.run(step, 0.0, Label(name, kind, segment) if self.rank.recording else None)

    def _pass(self, unit: int, kind: str, ready: float = 0.0) -> None:
        """Run one pass of a unit: "forward", "backward" or "recompute"."""
        step: Pass = getattr(self.timed.units[unit], kind)
        if not self.rank.recording:
            self.rank.run(step, ready)
            return
        program = self.program.units[unit]
        self.rank.run(step, ready, Label(program.name, kind, getattr(program, kind)))


def _uses(stage: Stage) -> Iterator[tuple[int, bool]]:
    """The units of a stage one by one, and whether each recomputes (the first of a row do)."""
    for chunk in stage.chunks:
        for unit, repeat, again in chunk.units:
            for k in range(repeat):
                yield unit, k < again
