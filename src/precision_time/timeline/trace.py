"""A timeline as Chrome trace events (ui.perfetto.dev, chrome://tracing)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from precision_time.capture.graph import OpSignature, Phase
from precision_time.timeline.simulate import Timeline

_STREAMS = {1: "compute", 2: "communication"}


def trace_events(
    timeline: Timeline, kinds: Sequence[OpSignature], modules: Sequence[str], title: str
) -> dict[str, Any]:
    """The step in the Chrome trace format; times in microseconds. Micro-steps that repeat are drawn once or twice."""
    events: list[dict[str, Any]] = [
        {"ph": "M", "pid": 0, "name": "process_name", "args": {"name": f"rank 0: {title}"}},
        *({"ph": "M", "pid": 0, "tid": tid, "name": "thread_name", "args": {"name": name}}
          for tid, name in _STREAMS.items()),
    ]  # fmt: skip
    phases = list(Phase)
    for span in timeline.spans:
        rows = zip(
            span.segment.kind.tolist(), span.segment.phase.tolist(), span.segment.module.tolist(),
            span.start.tolist(), span.duration.tolist(), strict=True,
        )  # fmt: skip
        for kind_index, phase, module, start, duration in rows:
            kind = kinds[kind_index]
            label = kind.attr("label")
            events.append(
                {
                    "ph": "X", "pid": 0, "tid": 1, "ts": start * 1e6, "dur": duration * 1e6,
                    "name": str(label) if label else kind.name, "cat": phases[phase].name.lower(),
                    "args": {
                        "module": modules[module] if module < len(modules) else "",
                        "inputs": [f"{s.dtype}{list(s.shape)}" for s in kind.inputs],
                        "outputs": [f"{s.dtype}{list(s.shape)}" for s in kind.outputs],
                    },
                }
            )  # fmt: skip
    for start, end, nbytes in timeline.reductions:
        events.append(
            {"ph": "X", "pid": 0, "tid": 2, "ts": start * 1e6, "dur": (end - start) * 1e6,
             "name": "all_reduce", "cat": "communication", "args": {"bytes": nbytes}}
        )  # fmt: skip
    return {
        "traceEvents": events,
        "displayTimeUnit": "ms",
        "otherData": {"repeated_micro_steps_not_drawn": timeline.repeated_micro_steps},
    }


def with_loader(trace: dict[str, Any], train_s: float, loader_s: float, stall_s: float, binding: str) -> dict[str, Any]:
    """The same step with the loader on a track of its own, and below it what training waits for its samples."""
    events = trace["traceEvents"]
    track = 1 + max((event["tid"] for event in events if "tid" in event), default=0)
    drawn = [("next samples", 0.0, loader_s)]
    if stall_s:
        drawn.append((f"training waits: {binding}", train_s, stall_s))
    return {
        **trace,
        "traceEvents": [
            *events,
            *({"ph": "M", "pid": 0, "tid": track + at, "name": "thread_name", "args": {"name": name}}
              for at, name in enumerate(("loader", "loader stall"))),
            *({"ph": "X", "pid": 0, "tid": track + at, "ts": start * 1e6, "dur": seconds * 1e6, "name": name,
               "cat": "loader", "args": {"limit": binding}}
              for at, (name, start, seconds) in enumerate(drawn)),
        ],
    }  # fmt: skip
