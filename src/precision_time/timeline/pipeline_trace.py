"""A pipeline as Chrome trace events (ui.perfetto.dev, chrome://tracing): one track per stage."""

from __future__ import annotations

from typing import Any

from precision_time.timeline.pipeline import PipelineTimeline

MOST_MICRO_BATCHES = 64
"""Micro-batches drawn by default: the fill and some rounds; 16,000 events (3 MB) for 16 stages of 8 chunks."""


def pipeline_trace(timeline: PipelineTimeline, title: str, most: int = MOST_MICRO_BATCHES) -> dict[str, Any]:
    """The step in the Chrome trace format; times in microseconds. At most `most` micro-batches are drawn.

    A note covers the rest of each stage, from the end of its last operation drawn to the end of its last backward.
    Raises `JobError` where the pipeline has more operations than are simulated.
    """
    events: list[dict[str, Any]] = [
        {"ph": "M", "pid": 0, "name": "process_name", "args": {"name": f"pipeline ({timeline.schedule}): {title}"}},
    ]
    hidden = max(timeline.micro_batches - most, 0)
    for stage in range(timeline.times.stages):
        events.append({"ph": "M", "pid": 0, "tid": stage, "name": "thread_name", "args": {"name": f"stage {stage}"}})
        drawn_until = 0.0
        for start, duration, kind, micro_batch, chunk in timeline.intervals(stage, most):
            drawn_until = start + duration
            events.append(
                {
                    "ph": "X",
                    "pid": 0,
                    "tid": stage,
                    "ts": start * 1e6,
                    "dur": duration * 1e6,
                    "name": f"{kind} {micro_batch}",
                    "cat": kind,
                    "args": {"micro_batch": micro_batch, "chunk": chunk},
                }
            )
        if hidden:
            end = float(timeline.stage_end_s[stage])
            events.append(
                {
                    "ph": "X",
                    "pid": 0,
                    "tid": stage,
                    "ts": drawn_until * 1e6,
                    "dur": max(end - drawn_until, 0.0) * 1e6,
                    "name": f"{hidden} more micro-batches",
                    "cat": "note",
                    "args": {},
                }
            )
    return {
        "traceEvents": events,
        "displayTimeUnit": "ms",
        "otherData": {"micro_batches_not_drawn": hidden},
    }
