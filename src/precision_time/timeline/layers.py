"""The steady step of a layered program: units in order on a rank, gathering and reducing beside them, or a pipeline.

Without stages the units are played one by one, with two streams: compute, and the collectives over data-parallel
ranks, which take their turns in the order they were asked for (one NCCL communicator). With stages, whole chunks go to
`pipeline`. The first micro-batches are played; what repeats is counted.

Fully sharded (FSDP, ZeRO 3): the weights of a unit are gathered before its forward and before its backward pass, not
before the compute of the unit but one has ended (FSDP's `limit_all_gathers`), in the backward pass the next unit's
before this one's compute (`BACKWARD_PRE`), and its gradients are reduced behind the next unit's backward. The last
unit's backward follows its forward, so that its weights stay (torchtitan, and FSDP's root). Nothing is gathered before
the update has ended. Sharded up to the gradients (ZeRO 1, 2), weights are gathered once, behind the first forward
passes or after the update.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from precision_time.errors import JobError
from precision_time.layout.layered_program import DATA, PIPELINE, Chunk, Stage
from precision_time.timeline.pipeline import PipelineTimeline, StageTimes, pipeline
from precision_time.timeline.simulate import Timeline
from precision_time.timing.layer_times import TimedLayers, busiest_stage, host_seconds, phase_seconds
from precision_time.timing.passes import NOTHING, Pass, UnitTimes
from precision_time.timing.ranks import averaged

PLAYED = 3
"""Micro-batches played one by one; those between the second and the last are like the second."""


@dataclass(frozen=True, slots=True)
class Played:
    """A pass or a collective as it ran: track 0 is compute, 1 the stream of data-parallel collectives."""

    track: int
    name: str
    kind: str
    start_s: float
    seconds: float


@dataclass(frozen=True, slots=True, eq=False)
class LayeredTimeline(Timeline):
    """A `Timeline` of the busiest rank, with the pipeline it is part of or its units as they were played."""

    pipeline: PipelineTimeline | None = None
    stage_tail_s: tuple[float, ...] = ()
    played: tuple[Played, ...] = ()


def simulate_layers(timed: TimedLayers, record: bool = False) -> LayeredTimeline:
    """The steady step of a timed layered program; `record` what a rank without stages runs one by one (`played`)."""
    return _staged(timed) if timed.program.layout.pp > 1 else _unstaged(timed, record)


@dataclass(slots=True)
class _Rank:
    """Where the host, the compute stream and the stream of data-parallel collectives are.

    Compute beside a collective takes `slowdown` times as long; what that costs counts as exposed communication.
    """

    slowdown: float = 1.0
    recording: bool = False
    host: float = 0.0
    device: float = 0.0
    wire: float = 0.0
    busy: float = 0.0
    exposed: float = 0.0
    sent: float = 0.0
    ended: list[float] = field(default_factory=list)
    played: list[Played] = field(default_factory=list)

    def run(self, step: Pass, ready: float = 0.0, name: str = "", kind: str = "") -> None:
        """Launch and execute a pass that may not start before `ready`, when its weights are there."""
        device, slowed = self.device, 0.0
        if ready > device:
            self.exposed += ready - device
            device = ready
        if self.wire > device and self.slowdown != 1.0:
            slowed = min(self.wire - device, step.device_s) * (self.slowdown - 1.0)
            self.exposed += slowed
        if name and self.recording:
            self.played.append(Played(0, name, kind, device, step.device_s + slowed))
        self.device = max(device + step.device_s, self.host + step.launch_bound_s) + slowed
        self.host += step.host_s
        self.busy += step.device_s
        self.ended.append(self.device)

    def send(self, seconds: float, ready: float, name: str = "") -> float:
        """A collective of `seconds` that may start when `ready`; its end."""
        if seconds:
            start = max(self.wire, ready)
            self.wire = start + seconds
            if name and self.recording:
                self.played.append(Played(1, name, "communication", start, seconds))
            self.sent += seconds
        return self.wire if seconds else ready

    def mark(self) -> tuple[float, ...]:
        return self.device, self.busy, self.exposed, self.sent, self.host, self.wire

    def repeat(self, before: tuple[float, ...], times: int) -> None:
        """What happened since `before` happens again so many times; a backlog of collectives grows as often."""
        found = (now + times * (now - then) for then, now in zip(before, self.mark(), strict=True))
        self.device, self.busy, self.exposed, self.sent, self.host, self.wire = found


def _unstaged(timed: TimedLayers, record: bool) -> LayeredTimeline:
    """All units on every rank."""
    program = timed.program
    rank = _Rank(timed.slowdown, record)
    uses = tuple(_uses(program.stages[0]))
    start = rank.mark()
    for _ in range(2):
        start = rank.mark()
        rank.played.clear()
        rank.host += timed.host.step_s
        if timed.synchronous:  # host and kernels are one stream
            rank.device += timed.host.step_s
            rank.host = rank.device
        micro = program.micro_batches
        played = min(micro, PLAYED)
        for index in range(played):
            before = rank.mark()
            last = index == played - 1
            _micro_batch(timed, rank, uses, first=index == 0, last=last)
            if index == 1 and micro > PLAYED:
                rank.repeat(before, micro - PLAYED)
        _finish(timed, rank)
    step_s, busy_s, exposed, sent = (now - then for then, now in zip(start[:4], rank.mark()[:4], strict=True))
    wait = averaged(timed.wait_share, program.micro_batches if program.layout.zero < 2 else 1) * float(busy_s)
    exposed_by, hidden_by = _inside(timed, program.stages[0])
    exposed_by[DATA] = exposed_by.get(DATA, 0.0) + float(exposed)
    hidden_by[DATA] = hidden_by.get(DATA, 0.0) + max(float(sent - exposed), 0.0)
    drawn = tuple(replace(p, start_s=p.start_s - float(start[0])) for p in rank.played)
    found = _timeline(timed, program.stages[0], float(step_s), wait, exposed_by, hidden_by, None, None, ())
    return replace(found, played=drawn)


def _micro_batch(timed: TimedLayers, rank: _Rank, uses: Sequence[tuple[int, bool]], first: bool, last: bool) -> None:
    """Forward and backward of one micro-batch, with what travels between data-parallel ranks."""
    layout = timed.program.layout
    names = [u.name for u in timed.program.units]
    gather_names, reduce_names = ([f"{what} {name}" for name in names] for what in ("gather", "reduce"))
    gathers_each = layout.zero >= 3
    gathers_first = layout.zero in (1, 2) and first and layout.overlap_param_gather
    updated = rank.device  # no weight is gathered before
    # Where nothing is on the wire, what stands in a row is one pass; but a trace names every one.
    in_rows = not (rank.recording or gathers_each or gathers_first) and rank.wire <= rank.device
    if in_rows:
        _rows_forward(timed, rank)
    for place, (unit, _) in enumerate(() if in_rows else uses):
        ready = 0.0
        if gathers_each or gathers_first:
            freed = rank.ended[-2] if gathers_each and place > 1 else updated
            ready = rank.send(timed.unit_data[unit].gather_s, freed, gather_names[unit])
        rank.run(timed.units[unit].forward, ready, names[unit], "forward")
    reduces = layout.zero >= 2 or last or timed.program.reduces_always
    behind = layout.overlap_grad_reduce
    backward = uses[::-1]
    ready = 0.0
    in_rows = in_rows and not (reduces and behind)
    if in_rows:
        _rows_backward(timed, rank)
    for place, (unit, again) in enumerate(() if in_rows else backward):
        arrived = ready
        if gathers_each and place + 1 < len(backward):
            freed = rank.ended[-1]
            after = backward[place + 1][0]
            ready = rank.send(timed.unit_data[after].gather_s, freed, gather_names[after])
        if again:
            rank.run(timed.units[unit].recompute, arrived, names[unit], "recompute")
        rank.run(timed.units[unit].backward, arrived, names[unit], "backward")
        if reduces and behind:
            rank.send(timed.unit_data[unit].reduce_s, rank.device, reduce_names[unit])
    if not first:
        rank.run(timed.accumulates[0])
    if reduces and not behind:
        rank.run(NOTHING, rank.send(timed.stage_data[0].reduce_s, rank.device))
    if timed.copies[0].device_s and (last or timed.program.reduces_always):
        rank.run(timed.copies[0], rank.wire)  # DDP takes the sums out of its buckets before it returns


def _rows_forward(timed: TimedLayers, rank: _Rank) -> None:
    for chunk in timed.program.stages[0].chunks:
        for unit, repeat, _ in chunk.units:
            rank.run(timed.units[unit].forward.times(repeat))


def _rows_backward(timed: TimedLayers, rank: _Rank) -> None:
    """From the end; the first of a row recompute."""
    for chunk in reversed(timed.program.stages[0].chunks):
        for unit, repeat, again in reversed(chunk.units):
            times = timed.units[unit]
            rank.run(times.backward.times(repeat - again))
            rank.run(times.recompute.then(times.backward).times(again))


def _finish(timed: TimedLayers, rank: _Rank) -> None:
    """Wait for the gradients, update, gather the new weights where nothing hides that."""
    layout = timed.program.layout
    rank.run(NOTHING, rank.wire)
    if timed.program.sync_after_tail:
        rank.host = max(rank.host, rank.device)
    rank.run(timed.tails[0], 0.0, "optimizer", "optimizer")
    if layout.zero in (1, 2) and not layout.overlap_param_gather:
        rank.run(NOTHING, rank.send(timed.stage_data[0].gather_s, rank.device))


def _uses(stage: Stage) -> Iterator[tuple[int, bool]]:
    """The units of a stage one by one, and whether each recomputes (the first of a row do)."""
    for chunk in stage.chunks:
        for unit, repeat, again in chunk.units:
            for k in range(repeat):
                yield unit, k < again


def _inside(timed: TimedLayers, stage: Stage) -> tuple[dict[str, float], dict[str, float]]:
    """Seconds that a stage's ranks exchange within units in a step, exposed and hidden, by group."""
    exposed: dict[str, float] = {}
    hidden: dict[str, float] = {}
    for chunk in stage.chunks:
        for unit, repeat, again in chunk.units:
            times: UnitTimes = timed.units[unit]
            for step, count in ((times.forward, repeat), (times.backward, repeat), (times.recompute, again)):
                for into, seconds in ((exposed, step.exposed), (hidden, step.hidden)):
                    for group, value in seconds.items():
                        into[group] = into.get(group, 0.0) + value * count * timed.program.micro_batches
    return exposed, hidden


def _row(timed: TimedLayers, chunk: Chunk, kind: str) -> tuple[float, float, float]:
    """Seconds of device and host of the units of a chunk in a row, and what of the device's is a wait for the host:
    "forward", "backward" or "recompute"."""
    device_s = host_s = gap_s = 0.0
    for unit, repeat, again in chunk.units:
        count = again if kind == "recompute" else repeat
        if count:
            step: Pass = getattr(timed.units[unit], kind)
            device_s += count * step.device_s
            host_s += count * step.host_s
            gap_s += count * step.gap_s
    return device_s, host_s, gap_s


@dataclass(frozen=True, slots=True)
class _StageSeconds:
    """Of one micro-batch on a stage, by chunk: forward, backward with what it recomputes, its weight gradients alone.

    `waited` is what of these is a wait for gathered weights, `launched` a wait for the host; both of all chunks.
    """

    forward: tuple[float, ...]
    backward: tuple[float, ...]
    weights: tuple[float, ...]
    waited: float
    launched: float


def _stage_seconds(timed: TimedLayers, stage: Stage, accumulate: Pass) -> _StageSeconds:
    """Fully sharded, each chunk's weights are gathered behind each of its passes."""
    layout = timed.program.layout
    rows: list[tuple[float, float, float]] = []
    waited = launched = 0.0
    part = 1 / len(stage.chunks)
    for held in stage.chunks:
        forward, plain, again = (_row(timed, held, kind) for kind in ("forward", "backward", "recompute"))
        backward = (
            again[0] + plain[0] + accumulate.device_s * part,
            again[1] + plain[1] + accumulate.host_s * part,
            again[2] + plain[2],
        )
        gather = sum(n * timed.unit_data[unit].gather_s for unit, n, _ in held.units) if layout.zero >= 3 else 0.0
        seconds = []
        for device_s, host_s, gap_s in (forward, backward):
            slower = max(device_s, host_s)
            late = max(gather - slower, 0.0) if layout.overlap_param_gather else gather
            seconds.append(slower + late)
            waited += late
            launched += slower - device_s + gap_s
        rows.append((seconds[0], seconds[1], max(plain[0], plain[1]) / 2))
    columns = list(zip(*rows, strict=True))
    return _StageSeconds(columns[0], columns[1], columns[2], waited, launched)


def _staged(timed: TimedLayers) -> LayeredTimeline:
    """A pipeline, then the gradients and the update of its slowest stage. The terms are those of the busiest stage."""
    program = timed.program
    layout = program.layout
    known: dict[int, _StageSeconds] = {}
    for stage, accumulate in zip(program.stages, timed.accumulates, strict=True):
        if id(stage) not in known:
            known[id(stage)] = _stage_seconds(timed, stage, accumulate)
    each = [known[id(stage)] for stage in program.stages]
    if layout.schedule == "interleaved" and program.micro_batches % layout.pp:
        least = layout.pp * (program.micro_batches // layout.pp) or layout.pp
        raise JobError(
            f"grad_accum {program.micro_batches} is the number of micro-batches and must be a multiple of "
            f"pp={layout.pp} with interleaved stages (vpp={layout.vpp}); set grad_accum to {least} or "
            f"{least + layout.pp}, or vpp to 1"
        )
    weights = np.array([s.weights for s in each]) if layout.schedule == "zero-bubble" else None
    played = pipeline(
        layout.schedule, StageTimes(np.array([s.forward for s in each]), np.array([s.backward for s in each]), weights),
        timed.send_s, program.micro_batches, blocking_send=layout.schedule in ("1f1b", "gpipe"),
    )  # fmt: skip
    ends, shown, sent = [], [], []
    for index in range(layout.pp):
        data, tail = timed.stage_data[index], timed.tails[index]
        reduce, gather = data.reduce_s, data.gather_s if layout.zero in (1, 2) else 0.0
        # Reduced behind the last backward of each chunk but the last, which nothing follows.
        backward_s = sum(each[index].backward)
        room = backward_s - min(each[index].backward) if layout.overlap_grad_reduce else 0.0
        if layout.overlap_grad_reduce and layout.vpp == 1:
            room = backward_s * 0.5
        reduced = max(reduce - room, 0.0)
        idle = max(float(played.stage_start_s[index]), 0.0)
        gathered = max(gather - (sum(each[index].forward) + idle if layout.overlap_param_gather else 0.0), 0.0)
        gathers = 2 * program.micro_batches * data.gather_s if layout.zero >= 3 else gather
        sent.append(reduce + gathers)
        shown.append(reduced + gathered)
        copies = timed.copies[index].seconds * program.reductions
        ends.append(float(played.stage_end_s[index]) + copies + reduced + tail.seconds + gathered)
    stage = busiest_stage(program, timed.units)
    busiest = program.stages.index(stage)
    step_s = max(ends) + timed.tied_s
    wait = averaged(timed.wait_share, program.micro_batches) * float(played.busy_s.max())
    exposed_by, hidden_by = _inside(timed, stage)
    data_s = shown[busiest] + each[busiest].waited * program.micro_batches
    exposed_by[DATA] = data_s + timed.tied_s
    hidden_by[DATA] = max(sent[busiest] - data_s, 0.0)
    exposed_by[PIPELINE] = float(played.exposed_send_s[busiest])
    tail = timed.tails[busiest]
    launched = each[busiest].launched * program.micro_batches + tail.seconds - tail.device_s + tail.gap_s
    tails = tuple(p.seconds for p in timed.tails)
    return _timeline(timed, stage, step_s, wait, exposed_by, hidden_by, launched, played, tails)


def _timeline(
    timed: TimedLayers, busiest: Stage, step_s: float, wait: float, exposed: Mapping[str, float],
    hidden: Mapping[str, float], launched: float | None, played: PipelineTimeline | None, tails: tuple[float, ...],
) -> LayeredTimeline:  # fmt: skip
    """Terms that add up to the step: what is neither compute nor communication is a wait for the host, of which a
    pipeline has `launched`, or a bubble."""
    busy, casts, again = phase_seconds(timed, busiest)
    compute = sum(busy.values()) + casts + again
    left = max(step_s - compute - sum(exposed.values()), 0.0)
    gap = left if launched is None else min(max(launched, 0.0), left)
    bubble = left - gap
    total = compute + sum(exposed.values()) + bubble + gap + wait
    return LayeredTimeline(
        step_s=total,
        busy=busy,
        casts_s=casts,
        host_gap_s=gap,
        communication_exposed_s=sum(exposed.values()),
        communication_hidden_s=sum(hidden.values()),
        straggler_wait_s=wait,
        host_s=host_seconds(timed, busiest),
        spans=(),
        reductions=(),
        repeated_micro_steps=max(timed.program.micro_batches - PLAYED, 0),
        recompute_s=again,
        bubble_s=bubble,
        exposed_by_group={k: v for k, v in exposed.items() if v},
        hidden_by_group={k: v for k, v in hidden.items() if v},
        pipeline=played,
        stage_tail_s=tails,
    )
