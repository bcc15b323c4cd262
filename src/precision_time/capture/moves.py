"""Replacing calls of a graph while lifetimes and gradient positions follow."""

from __future__ import annotations

import dataclasses

from precision_time.capture.graph import Call, OpGraph, OpKind


def moved_graph(graph: OpGraph, kinds: list[OpKind], calls: list[Call], moved: list[int]) -> OpGraph:
    """`graph` with other calls; `moved[i]` is the new position of old call i, for lifetimes and gradients."""
    end = len(calls)

    def at(old: int) -> int:
        return -1 if old < 0 else moved[old] if old < len(moved) else end

    return dataclasses.replace(
        graph,
        kinds=tuple(kinds),
        calls=tuple(calls),
        storages=tuple(dataclasses.replace(s, born=at(s.born), dies=at(s.dies)) for s in graph.storages),
        parameters=tuple(dataclasses.replace(p, ready=at(p.ready)) for p in graph.parameters),
    )
