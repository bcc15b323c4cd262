"""The one operator whose trace differs between float16 and bfloat16 autocast: softmax with fp32 result.

CUDA runs it as one kernel for float16 and as cast + softmax for bfloat16 (SoftMax.cpp, `half_to_float`). Stored graphs
are traced in bfloat16; for float16 the casts around softmax are merged into it.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from precision_time.capture.graph import Call, OpGraph, OpSignature
from precision_time.capture.replace_calls import Signatures, replace_calls

_FORWARD = ("aten._softmax", "aten._log_softmax")
_BACKWARD = ("aten._softmax_backward_data", "aten._log_softmax_backward_data")


def merge_half_softmax(graph: OpGraph) -> OpGraph:
    """`graph` (already renamed to float16) with cast + softmax and softmax backward + cast as single operators."""
    before = tuple(graph.calls)
    readers = Counter(storage for call in before for storage in set(call.reads))
    signatures = Signatures(graph.kinds)
    calls: list[Call] = []
    new_positions: list[int] = []
    removed: set[int] = set()

    position = 0
    while position < len(before):
        call = before[position]
        follower = before[position + 1] if position + 1 < len(before) else None
        if follower is not None and _merges(graph, call, follower, readers):
            first, second = graph.kinds[call.kind], graph.kinds[follower.kind]
            attrs = first.attrs if first.name in _BACKWARD else second.attrs
            name = first.name if first.name in _BACKWARD else second.name
            merged = signatures(OpSignature(name, first.inputs, second.outputs, attrs))
            removed.add(call.writes[0])
            new_positions += [len(calls), len(calls)]
            calls.append(
                Call(
                    merged,
                    call.phase,
                    follower.module,
                    call.views + follower.views,
                    call.reads,
                    follower.writes,
                )
            )
            position += 2
            continue
        new_positions.append(len(calls))
        calls.append(call)
        position += 1
    if not removed:
        return graph
    result = replace_calls(graph, signatures, calls, new_positions)
    storages = tuple(replace(s, nbytes=0) if i in removed else s for i, s in enumerate(result.storages))
    return replace(result, storages=storages)


def _merges(graph: OpGraph, call: Call, follower: Call, readers: Counter[int]) -> bool:
    first, second = graph.kinds[call.kind], graph.kinds[follower.kind]
    if not call.writes or call.writes[0] not in follower.reads:
        return False
    if first.name == "aten._to_copy" and second.name in _FORWARD:
        cast = (first.inputs[0].dtype, first.outputs[0].dtype) == ("float16", "float32")
        return cast and readers[call.writes[0]] == 1
    if first.name in _BACKWARD and second.name == "aten._to_copy":
        cast = (second.inputs[0].dtype, second.outputs[0].dtype) == ("float32", "float16")
        return cast and readers[call.writes[0]] == 1
    return False
