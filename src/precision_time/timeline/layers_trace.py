"""A layered step as Chrome trace events: one rank's units in order, or one track per pipeline stage."""

from __future__ import annotations

from typing import Any

from precision_time.timeline.layers import LayeredTimeline, simulate_layers
from precision_time.timeline.pipeline_trace import pipeline_trace
from precision_time.timing.layer_times import TimedLayers


def layers_trace_events(timeline: LayeredTimeline, timed: TimedLayers, title: str) -> dict[str, Any]:
    """The step in the Chrome trace format; times in microseconds."""
    if timeline.pipeline is not None:
        return pipeline_trace(timeline.pipeline, title)
    names = {0: "compute", 1: "data-parallel communication"}
    events: list[dict[str, Any]] = [
        {"ph": "M", "pid": 0, "name": "process_name", "args": {"name": f"rank 0: {title}"}},
        *({"ph": "M", "pid": 0, "tid": tid, "name": "thread_name", "args": {"name": name}}
          for tid, name in names.items()),
    ]  # fmt: skip
    events.extend(
        {"ph": "X", "pid": 0, "tid": int(span.track), "ts": span.start_s * 1e6, "dur": span.seconds * 1e6,
         "name": span.name, "cat": span.kind, "args": {}}
        for span in simulate_layers(timed, record=True).played
    )  # fmt: skip
    return {
        "traceEvents": events,
        "displayTimeUnit": "ms",
        "otherData": {"repeated_micro_steps_not_drawn": timeline.repeated_micro_steps},
    }
