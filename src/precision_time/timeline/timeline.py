"""One steady step: its terms, and the intervals on its streams."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from precision_time.capture.graph import Phase
from precision_time.layout.segment import Segment
from precision_time.timeline.pipeline import PipelineTimeline

COMPUTE, COMMUNICATION = 0, 1
"""Streams of a rank."""


@dataclass(frozen=True, slots=True)
class Span:
    """A pass of a unit, a pass over the parameters, or a collective, in seconds from the start of the step.

    `segment` holds the operators of a pass, which the host began to launch at `host_s`.
    """

    stream: int
    name: str
    kind: str
    start_s: float
    seconds: float
    host_s: float = 0.0
    segment: Segment | None = None
    nbytes: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class Timeline:
    """One steady step of the busiest rank. The terms sum to `step_s`.

    busy             compute-stream seconds by phase, without casts and what is recomputed
    casts_s          casts among forward and backward
    recompute_s      forward passes run again for the backward pass
    host_gap_s       compute-stream idle time that waits for the host
    communication_exposed_s   idle time that waits for other ranks' data, and compute time lost beside communication
    straggler_wait_s          idle time that waits for the slowest rank
    bubble_s         a pipeline stage waiting for its neighbours
    host_s           the host's own launching time; not a term
    exposed_by_group, hidden_by_group   seconds of communication by group of ranks: tensor, context, expert, data,
                     pipeline
    repeated_micro_steps   micro-steps that `spans` leaves out because they equal one that is drawn
    """

    step_s: float
    busy: Mapping[Phase, float]
    casts_s: float
    recompute_s: float
    host_gap_s: float
    communication_exposed_s: float
    communication_hidden_s: float
    straggler_wait_s: float
    bubble_s: float
    host_s: float
    exposed_by_group: Mapping[str, float] = field(default_factory=dict)
    hidden_by_group: Mapping[str, float] = field(default_factory=dict)
    repeated_micro_steps: int = 0
    pipeline: PipelineTimeline | None = None
    stage_tail_s: tuple[float, ...] = ()
    spans: tuple[Span, ...] = ()

    def times(self, factor: float) -> Timeline:
        """The step where everything takes `factor` times as long, without spans and pipeline."""
        return Timeline(
            self.step_s * factor,
            {phase: seconds * factor for phase, seconds in self.busy.items()},
            self.casts_s * factor,
            self.recompute_s * factor,
            self.host_gap_s * factor,
            self.communication_exposed_s * factor,
            self.communication_hidden_s * factor,
            self.straggler_wait_s * factor,
            self.bubble_s * factor,
            self.host_s * factor,
            {group: seconds * factor for group, seconds in self.exposed_by_group.items()},
            {group: seconds * factor for group, seconds in self.hidden_by_group.items()},
            self.repeated_micro_steps,
            stage_tail_s=tuple(seconds * factor for seconds in self.stage_tail_s),
        )
