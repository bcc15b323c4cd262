"""A step as Chrome trace events (ui.perfetto.dev, chrome://tracing): the operators of one rank, or pipeline stages."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from precision_time.capture.graph import Phase
from precision_time.errors import JobError
from precision_time.timeline.pipeline_trace import pipeline_trace
from precision_time.timeline.simulate import simulate
from precision_time.timeline.timeline import COMMUNICATION, COMPUTE, Span
from precision_time.timing.passes import LAUNCH_LATENCY_S
from precision_time.timing.program_times import TimedProgram
from precision_time.timing.signature_times import Array

Event = dict[str, Any]
_STREAMS = {COMPUTE: "compute", COMMUNICATION: "communication"}
_PHASES = tuple(phase.name.lower() for phase in Phase)
MOST_EVENTS = 300_000
"""Operators that a trace draws, of two micro-steps at most (50 MB)."""


def trace_events(timed: TimedProgram, modules: Sequence[str], title: str) -> dict[str, Any]:
    """The step in the Chrome trace format; times in microseconds. Micro-steps that repeat are drawn once or twice.

    `modules`: paths of the modules that the operators of the captured model belong to. Raises `JobError` for more than
    `MOST_EVENTS` operators.
    """
    timeline = simulate(timed, record=True)
    if timeline.pipeline is not None:
        return pipeline_trace(timeline.pipeline, title)
    count = sum(1 if span.segment is None else len(span.segment) for span in timeline.spans)
    if count > MOST_EVENTS:
        raise JobError(
            f"a trace of this step has {count:,} operators, and at most {MOST_EVENTS:,} are drawn; trace "
            "the model with fewer layers, or with grad_accum 1"
        )
    events: list[Event] = [
        {"ph": "M", "pid": 0, "name": "process_name", "args": {"name": f"rank 0: {title}"}},
        *(
            {"ph": "M", "pid": 0, "tid": stream + 1, "name": "thread_name", "args": {"name": name}}
            for stream, name in _STREAMS.items()
        ),
    ]
    names = _block_names(timeline.spans)
    for span, block in zip(timeline.spans, names, strict=True):
        if span.segment is None or not len(span.segment):
            events.append(_event(span.stream, span.name, span.kind, span.start_s, span.seconds, {"bytes": span.nbytes}))
        else:
            events += _operators(timed, span, block, modules)
    ended = max((span.start_s + span.seconds for span in timeline.spans), default=0.0)
    if timeline.step_s > ended:  # ranks wait at every reduction; the sum is drawn at the end of the step
        rest = timeline.step_s - ended
        events.append(_event(COMPUTE, "waits for the slowest rank", "wait", ended, rest, {}))
    return {
        "traceEvents": events,
        "displayTimeUnit": "ms",
        "otherData": {"repeated_micro_steps_not_drawn": timeline.repeated_micro_steps},
    }


def _event(stream: int, name: str, category: str, start_s: float, seconds: float, args: Event) -> Event:
    return {
        "ph": "X",
        "pid": 0,
        "tid": stream + 1,
        "ts": start_s * 1e6,
        "dur": seconds * 1e6,
        "name": name,
        "cat": category,
        "args": args,
    }


def _operators(timed: TimedProgram, span: Span, block: str, modules: Sequence[str]) -> Iterator[Event]:
    """The operators of a pass as events, and its wait (for collectives or the host) at the end."""
    segment = span.segment
    assert segment is not None
    starts, durations = _times(timed, span)
    rows = zip(
        segment.kind.tolist(),
        segment.phase.tolist(),
        segment.module.tolist(),
        starts.tolist(),
        durations.tolist(),
        strict=True,
    )
    for index, phase, module, start, duration in rows:
        signature = timed.kinds[index]
        label = signature.attr("label")
        path = modules[module] if module < len(modules) else ""
        args = {
            "module": block + path[len(span.name) :] if path.startswith(span.name) else path,
            "inputs": [f"{tensor.dtype}{list(tensor.shape)}" for tensor in signature.inputs],
            "outputs": [f"{tensor.dtype}{list(tensor.shape)}" for tensor in signature.outputs],
        }
        yield _event(span.stream, str(label) if label else signature.name, _PHASES[phase], start, duration, args)
    end = float(starts[-1] + durations[-1])
    if span.start_s + span.seconds - end > 1e-9:
        rest = span.start_s + span.seconds - end
        yield _event(span.stream, f"{span.kind} {block}: waits", "wait", end, rest, {})


def _times(timed: TimedProgram, span: Span) -> tuple[Array, Array]:
    """Start and duration of every operator: each starts when the one before has ended and the host has launched it."""
    segment = span.segment
    assert segment is not None
    host = timed.host_seconds(segment) * timed.host_factor
    durations = timed.device_seconds(segment) * timed.kernel_factor
    if timed.synchronous:
        return span.start_s + np.cumsum(host + durations) - durations, durations
    before = np.cumsum(durations) - durations
    launched = span.host_s + np.cumsum(host) + LAUNCH_LATENCY_S
    return before + np.maximum(np.maximum.accumulate(launched - before), span.start_s), durations


def _block_names(spans: Sequence[Span]) -> list[str]:
    """The name of each span's block in the model. Equal blocks are one unit, which has the name of the first."""
    counts: Counter[tuple[str, str]] = Counter()
    names = []
    for span in spans:
        match = re.fullmatch(r"(.*?)(\d+)", span.name) if span.segment is not None else None
        if match is None:
            names.append(span.name)
            continue
        key = (match[1], span.kind)
        names.append(f"{match[1]}{counts[key]}")
        counts[key] += 1
    for kind in ("backward", "recompute"):  # these run from the last block to the first
        for prefix in {name for name, passed in counts if passed == kind}:
            places = [i for i, span in enumerate(spans) if span.kind == kind and names[i].startswith(prefix)]
            places = [i for i in places if re.fullmatch(re.escape(prefix) + r"\d+", names[i])]
            for i, name in zip(places, [names[i] for i in reversed(places)], strict=True):
                names[i] = name
    return names


def with_loader(trace: dict[str, Any], train_s: float, loader_s: float, stall_s: float, binding: str) -> dict[str, Any]:
    """The step with the loader on a track of its own, and on a further track the wait of training for samples."""
    events = trace["traceEvents"]
    track = 1 + max((event["tid"] for event in events if "tid" in event), default=0)
    drawn = [("next samples", 0.0, loader_s)]
    if stall_s:
        drawn.append((f"training waits: {binding}", train_s, stall_s))
    return {
        **trace,
        "traceEvents": [
            *events,
            *(
                {"ph": "M", "pid": 0, "tid": track + at, "name": "thread_name", "args": {"name": name}}
                for at, name in enumerate(("loader", "loader stall"))
            ),
            *(
                {
                    "ph": "X",
                    "pid": 0,
                    "tid": track + at,
                    "ts": start * 1e6,
                    "dur": seconds * 1e6,
                    "name": name,
                    "cat": "loader",
                    "args": {"limit": binding},
                }
                for at, (name, start, seconds) in enumerate(drawn)
            ),
        ],
    }
