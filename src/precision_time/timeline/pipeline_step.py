"""The steady step of a program of several pipeline stages."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from precision_time.errors import JobError
from precision_time.layout.program import DATA, PIPELINE, Chunk, Stage, StepProgram
from precision_time.timeline.pipeline import PipelineTimeline, StageTimes, pipeline
from precision_time.timeline.terms import communication_within_units, timeline_of
from precision_time.timeline.timeline import Timeline
from precision_time.timing.passes import Pass
from precision_time.timing.program_times import TimedProgram
from precision_time.timing.ranks import averaged


def _row(timed: TimedProgram, chunk: Chunk, kind: str) -> tuple[float, float, float]:
    """Device seconds, host seconds and the device's wait for the host of all units of a chunk in one pass: "forward",
    "backward" or "recompute"."""
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
    """Seconds of one micro-batch on a stage, by chunk: forward, backward with recomputation, weight gradients alone.

    `waited`: the part spent waiting for gathered weights; `launched`: for the host; both summed over chunks.
    """

    forward: tuple[float, ...]
    backward: tuple[float, ...]
    weights: tuple[float, ...]
    waited: float
    launched: float


def _stage_seconds(timed: TimedProgram, stage: Stage, accumulate: Pass) -> _StageSeconds:
    """Seconds of a stage. Fully sharded, each chunk's weights are gathered behind each of its passes."""
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


def pipeline_step(timed: TimedProgram) -> Timeline:
    """A pipeline, then the gradients and the update of its slowest stage. The terms are those of the busiest stage.

    Raises `JobError` where the micro-batches do not suit an interleaved schedule.
    """
    program, layout = timed.program, timed.program.layout
    _check_interleaving(program)
    accumulates = dict(zip(program.stages, [sweeps.accumulate for sweeps in timed.sweeps], strict=True))
    known = {stage: _stage_seconds(timed, stage, accumulate) for stage, accumulate in accumulates.items()}
    each = [known[stage] for stage in program.stages]
    weights = np.array([s.weights for s in each]) if layout.schedule == "zero-bubble" else None
    played = pipeline(
        layout.schedule,
        StageTimes(np.array([s.forward for s in each]), np.array([s.backward for s in each]), weights),
        timed.send_s,
        program.micro_batches,
        blocking_send=layout.schedule in ("1f1b", "gpipe"),
    )
    ends = [_stage_end(timed, index, seconds, played) for index, seconds in enumerate(each)]
    stage = timed.busiest
    busiest = program.stages.index(stage)
    end, seconds = ends[busiest], each[busiest]
    between = program.micro_batches // program.reductions  # micro-batches between two reductions
    straggler_wait = averaged(timed.wait_share, between) * float(played.busy_s.max())
    exposed_by, hidden_by = communication_within_units(timed, stage)
    data_s = end.exposed_s + seconds.waited * program.micro_batches
    exposed_by[DATA] = data_s + timed.tied_s
    hidden_by[DATA] = max(end.sent_s - data_s, 0.0)
    exposed_by[PIPELINE] = float(played.exposed_send_s[busiest])
    launched = seconds.launched * program.micro_batches
    launched += sum(tail.seconds - tail.device_s + tail.gap_s for tail in timed.sweeps[busiest].tails)
    step_s = max(each.end_s for each in ends) + timed.tied_s
    timeline = timeline_of(timed, stage, step_s, straggler_wait, exposed_by, hidden_by, launched)
    return replace(timeline, pipeline=played, stage_tail_s=tuple(sweeps.tail_s for sweeps in timed.sweeps))


def _check_interleaving(program: StepProgram) -> None:
    layout = program.layout
    if layout.schedule == "interleaved" and program.micro_batches % layout.pp:
        least = layout.pp * (program.micro_batches // layout.pp) or layout.pp
        raise JobError(
            f"grad_accum {program.micro_batches} is the number of micro-batches and must be a multiple of "
            f"pp={layout.pp} with interleaved stages (vpp={layout.vpp}); set grad_accum to {least} or "
            f"{least + layout.pp}, or vpp to 1"
        )


@dataclass(frozen=True, slots=True)
class _StageEnd:
    """The end of a stage after its last backward pass.

    end_s       end of its update
    exposed_s   seconds of data-parallel collectives that nothing hides
    sent_s      all seconds of data-parallel collectives
    """

    end_s: float
    exposed_s: float
    sent_s: float


def _stage_end(timed: TimedProgram, index: int, seconds: _StageSeconds, played: PipelineTimeline) -> _StageEnd:
    program, layout = timed.program, timed.program.layout
    data, sweeps = timed.stage_data[index], timed.sweeps[index]
    reduce, gather = data.reduce_s * program.reductions, data.gather_s if layout.zero in (1, 2) else 0.0
    # Reduced behind the last backward of each chunk but the last, which nothing follows.
    backward_s = sum(seconds.backward)
    room = backward_s - min(seconds.backward) if layout.overlap_grad_reduce else 0.0
    if layout.overlap_grad_reduce and layout.vpp == 1:
        room = backward_s * 0.5
    reduced = max(reduce - room * program.reductions, 0.0)
    idle = max(float(played.stage_start_s[index]), 0.0)
    gathered = max(gather - (sum(seconds.forward) + idle if layout.overlap_param_gather else 0.0), 0.0)
    copies = (sweeps.into_buckets.seconds + sweeps.out_of_buckets.seconds) * program.reductions
    broadcast = timed.broadcast_s * program.reductions
    end = float(played.stage_end_s[index]) + broadcast + copies + reduced + sweeps.tail_s + gathered
    end += timed.offload.update_s  # of the stage that trains most
    sent = reduce + broadcast + (2 * program.micro_batches * data.gather_s if layout.zero >= 3 else gather)
    return _StageEnd(end, reduced + gathered + broadcast, sent)
