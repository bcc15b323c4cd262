"""A timed program whose kernels, launches and collectives take other times than its models say.

Measured jobs correct a prediction this way: their factors act on what the simulation takes in, not on what it gives.
Time that hides behind other time then stays hidden until it is the longer, so that a job with more work is never the
faster one.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from precision_time.timing.layout_costs import FrameworkOverhead
from precision_time.timing.passes import NOTHING, BucketReady, Pass, UnitTimes
from precision_time.timing.program_times import DataTimes, SweepTimes, TimedProgram, busiest_stage


class Factors(NamedTuple):
    """Factors on the seconds of kernels, of the host's launches, and of collectives."""

    kernels: float = 1.0
    host: float = 1.0
    communication: float = 1.0

    def times(self, factor: float) -> Factors:
        """All factors multiplied, and so the step."""
        return Factors(*(each * factor for each in self))


UNCHANGED = Factors()


def scaled(timed: TimedProgram, factors: Factors) -> TimedProgram:
    """The program with its times multiplied. Where a pass's own model is not kept (what launching alone allows, room
    for collectives) the result is an upper bound that grows with every time of the program."""
    overhead, synchronous = timed.overhead, timed.synchronous
    wire = factors.communication
    late = max(factors.kernels, factors.host)

    def each(step: Pass) -> Pass:
        return _pass(step, factors, overhead, synchronous)

    units = tuple([UnitTimes(each(u.forward), each(u.backward), each(u.recompute)) for u in timed.units])
    return replace(
        timed,
        units=units,
        busiest=busiest_stage(timed.program, units),
        unit_data=_data(timed.unit_data, wire),
        stage_data=_data(timed.stage_data, wire),
        sweeps=tuple(
            [
                SweepTimes(tuple(map(each, s.tails)), each(s.accumulate), each(s.into_buckets), each(s.out_of_buckets))
                for s in timed.sweeps
            ]
        ),
        bucket_s=tuple([seconds * wire for seconds in timed.bucket_s]),
        bucket_ready=tuple([BucketReady(share, launch * late) for share, launch in timed.bucket_ready]),
        broadcast_s=timed.broadcast_s * wire,
        send_s=timed.send_s * wire,
        tied_s=timed.tied_s * wire,
        host=replace(timed.host, step_s=timed.host.step_s * factors.host),
        kernel_factor=timed.kernel_factor * factors.kernels,
        host_factor=timed.host_factor * factors.host,
    )


def _data(times: tuple[DataTimes, ...], factor: float) -> tuple[DataTimes, ...]:
    return tuple([DataTimes(each.gather_s * factor, each.reduce_s * factor) for each in times])


def _pass(step: Pass, factors: Factors, overhead: FrameworkOverhead, synchronous: bool) -> Pass:
    """A pass with its times multiplied. What is hidden may come out where the collective grows more than compute."""
    if step is NOTHING:
        return NOTHING
    kernels, host, wire = factors
    exposed, hidden, before_s, waiting = step.exposed, step.hidden, 0.0, 0.0
    if exposed:
        apart = wire - min(kernels, wire)
        exposed = {g: wire * e + apart * step.hidden[g] for g, e in step.exposed.items()}
        hidden = {g: (wire - apart) * h for g, h in step.hidden.items()}
        before_s, waiting = sum(step.exposed.values()), sum(exposed.values())
    kernel_s = step.device_s - before_s - step.gap_s
    if synchronous:
        kernel_s *= kernels
        gap_s = step.gap_s * host
        return Pass(kernel_s + gap_s + waiting, kernel_s, kernel_s, exposed, hidden, gap_s)
    least = min(kernels, host)
    launched = least * (step.launch_bound_s - before_s)
    launched += (kernels - least) * kernel_s + (host - least) * step.host_s
    device_s, host_s = kernel_s * kernels + waiting, step.host_s * host
    seconds = overhead.pass_seconds(device_s, host_s) if step.gap_s else device_s
    return Pass(seconds, host_s, launched + waiting, exposed, hidden, seconds - device_s)
