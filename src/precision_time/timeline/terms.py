"""The terms of a step, which add up to its length."""

from __future__ import annotations

from collections.abc import Mapping

from precision_time.layout.program import Stage
from precision_time.timeline.timeline import Timeline
from precision_time.timing.passes import UnitTimes
from precision_time.timing.program_times import TimedProgram, host_seconds, phase_seconds


def communication_within_units(timed: TimedProgram, stage: Stage) -> tuple[dict[str, float], dict[str, float]]:
    """Seconds of the collectives inside units in a step of a stage, exposed and hidden, by group."""
    exposed: dict[str, float] = {}
    hidden: dict[str, float] = {}
    for chunk in stage.chunks:
        for unit, repeat, again in chunk.units:
            times: UnitTimes = timed.units[unit]
            for step, count in ((times.forward, repeat), (times.backward, repeat), (times.recompute, again)):
                if not step.exposed:
                    continue
                for into, seconds in ((exposed, step.exposed), (hidden, step.hidden)):
                    for group, value in seconds.items():
                        into[group] = into.get(group, 0.0) + value * count * timed.program.micro_batches
    return exposed, hidden


def timeline_of(
    timed: TimedProgram,
    busiest: Stage,
    step_s: float,
    straggler_wait_s: float,
    exposed: Mapping[str, float],
    hidden: Mapping[str, float],
    launched_s: float | None = None,
) -> Timeline:
    """The terms of a step of `step_s`, to which `straggler_wait_s` is added.

    Time that is neither compute nor communication is a wait for the host. In a pipeline `launched_s` of it is; the rest
    is the bubble.
    """
    busy, casts, recomputed = phase_seconds(timed, busiest)
    compute = sum(busy.values()) + casts + recomputed
    communication = sum(exposed.values())
    idle = max(step_s - compute - communication, 0.0)
    gap = idle if launched_s is None else min(max(launched_s, 0.0), idle)
    return Timeline(
        step_s=compute + communication + idle + straggler_wait_s,
        busy=busy,
        casts_s=casts,
        recompute_s=recomputed,
        host_gap_s=gap,
        communication_exposed_s=communication,
        communication_hidden_s=sum(hidden.values()),
        straggler_wait_s=straggler_wait_s,
        bubble_s=idle - gap,
        host_s=host_seconds(timed, busiest),
        exposed_by_group={group: seconds for group, seconds in exposed.items() if seconds},
        hidden_by_group={group: seconds for group, seconds in hidden.items() if seconds},
    )
