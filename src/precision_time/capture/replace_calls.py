"""Replacing calls of a graph while lifetimes and gradient positions follow."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

from precision_time.capture.graph import Call, OpGraph, OpSignature


def moved_graph(graph: OpGraph, kinds: list[OpSignature], calls: list[Call], moved: list[int]) -> OpGraph:
    """`graph` with other calls; `moved[i]` is the new position of old call i, for lifetimes and gradients.

    A tensor that only calls which are gone touched is gone too: it keeps its place in the list, without bytes.
    """
    end = len(calls)
    before, after = _touched(graph.calls), _touched(calls)
    gone = before - after

    def at(old: int) -> int:
        return -1 if old < 0 else moved[old] if old < len(moved) else end

    return dataclasses.replace(
        graph,
        kinds=tuple(kinds),
        calls=tuple(calls),
        storages=tuple(
            dataclasses.replace(s, born=at(s.born), dies=at(s.dies), nbytes=0 if i in gone else s.nbytes)
            for i, s in enumerate(graph.storages)
        ),
        parameters=tuple(dataclasses.replace(p, ready=at(p.ready)) for p in graph.parameters),
    )


def _touched(calls: Iterable[Call]) -> set[int]:
    return {storage for call in calls for storage in (*call.reads, *call.writes)}
