"""Replacing calls of a graph while lifetimes and gradient positions follow."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

from precision_time.capture.graph import Call, OpGraph, OpSignature


def replace_calls(graph: OpGraph, kinds: list[OpSignature], calls: list[Call], new_positions: list[int]) -> OpGraph:
    """`graph` with other calls; `new_positions[i]` is the position of old call i, for lifetimes and gradients.

    A storage that no call uses any more keeps its index and has zero bytes.
    """
    end = len(calls)
    touched_before, touched_after = _touched(graph.calls), _touched(calls)
    removed = touched_before - touched_after

    def at(old: int) -> int:
        return -1 if old < 0 else new_positions[old] if old < len(new_positions) else end

    return dataclasses.replace(
        graph,
        kinds=tuple(kinds),
        calls=tuple(calls),
        storages=tuple(
            dataclasses.replace(s, born=at(s.born), dies=at(s.dies), nbytes=0 if i in removed else s.nbytes)
            for i, s in enumerate(graph.storages)
        ),
        parameters=tuple(dataclasses.replace(p, ready=at(p.ready)) for p in graph.parameters),
    )


def _touched(calls: Iterable[Call]) -> set[int]:
    return {storage for call in calls for storage in (*call.reads, *call.writes)}
