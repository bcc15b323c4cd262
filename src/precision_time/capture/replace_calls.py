"""Replacing calls of a graph while lifetimes and gradient positions follow."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Sequence

from precision_time.capture.graph import Call, OpGraph, OpSignature


class Signatures:
    """Numbers signatures: those of `first` by position, then new ones in order of first use.

    `first` may hold a signature twice, since renaming a dtype can make two equal; numbers of its calls stay valid.
    """

    def __init__(self, first: Iterable[OpSignature] = ()) -> None:
        self._all = list(first)
        self._numbers = {signature: number for number, signature in enumerate(self._all)}

    def __call__(self, signature: OpSignature) -> int:
        number = self._numbers.setdefault(signature, len(self._all))
        if number == len(self._all):
            self._all.append(signature)
        return number

    def __iter__(self) -> Iterator[OpSignature]:
        return iter(self._all)


def replace_calls(
    graph: OpGraph, signatures: Iterable[OpSignature], calls: Sequence[Call], new_positions: Sequence[int]
) -> OpGraph:
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
        kinds=tuple(signatures),
        calls=tuple(calls),
        storages=tuple(
            dataclasses.replace(s, born=at(s.born), dies=at(s.dies), nbytes=0 if i in removed else s.nbytes)
            for i, s in enumerate(graph.storages)
        ),
        parameters=tuple(dataclasses.replace(p, ready=at(p.ready)) for p in graph.parameters),
    )


def _touched(calls: Iterable[Call]) -> set[int]:
    return {storage for call in calls for storage in (*call.reads, *call.writes)}
