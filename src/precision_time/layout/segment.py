"""Operators of a rank in order (`Segment`), and the distinct operators of a program (`OpSignatures`)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray

from precision_time.bounded_cache import bounded
from precision_time.capture.graph import OpSignature, Phase
from precision_time.capture.kinds import SizedKinds, names_of

Indices = NDArray[np.int32] | NDArray[np.intp]


@dataclass(frozen=True, slots=True, eq=False)
class Segment:
    """Operators in order: for each its index into the program's `kinds`, its phase, the views before it, its module."""

    kind: NDArray[np.intp]
    phase: Indices
    views: Indices
    module: Indices

    @classmethod
    def of(cls, rows: Sequence[tuple[int, Phase, int, int]]) -> Segment:
        columns = np.array(rows, dtype=np.intp).reshape(len(rows), 4).T
        return cls(columns[0], columns[1], columns[2], columns[3])

    def __len__(self) -> int:
        return len(self.kind)

    def then(self, kinds: Sequence[int], phase: Phase) -> Segment:
        """The segment with further operators of one phase after it."""
        if not kinds:
            return self
        none = np.zeros(len(kinds), dtype=np.int32)
        more = (np.array(kinds, dtype=np.intp), none + phase, none, none)
        columns: Any = zip((self.kind, self.phase, self.views, self.module), more, strict=True)
        return Segment(*map(np.concatenate, columns))


@dataclass(frozen=True, slots=True, eq=False)
class JoinedSegments:
    """Segments one after another, so that one array holds a number of every operator.

    spans    where each segment begins and ends
    row      of each operator, the place of its segment
    starts   where each segment that has operators begins; `filled`: the places of these
    lengths  the number of operators of each segment
    """

    all: Segment
    spans: tuple[tuple[int, int], ...]
    row: NDArray[np.intp]
    starts: NDArray[np.intp]
    filled: tuple[int, ...]
    lengths: NDArray[np.intp]


@bounded()
def joined_segments(segments: tuple[Segment, ...]) -> JoinedSegments:
    """At least one segment."""
    lengths = np.array([len(segment) for segment in segments], dtype=np.intp)
    ends = lengths.cumsum()
    names = ("kind", "phase", "views", "module")
    columns: Any = [np.concatenate([getattr(segment, name) for segment in segments]) for name in names]
    return JoinedSegments(
        Segment(*columns) if len(segments) > 1 else segments[0],
        tuple(zip((ends - lengths).tolist(), ends.tolist(), strict=True)),
        np.repeat(np.arange(len(segments), dtype=np.intp), lengths),
        (ends - lengths)[lengths > 0],
        tuple(np.flatnonzero(lengths).tolist()),
        lengths,
    )


class OpSignatures(Sequence[OpSignature]):
    """All distinct operators of a program, compared by identity so that caches keyed on them are cheap.

    `own`: the operators, which may be those of a graph at some sizes; `parts`: in place of them those that were joined,
    in order, where several programs share them.
    """

    __slots__ = ("own", "parts")

    def __init__(self, own: Iterable[OpSignature] = (), parts: tuple[OpSignatures, ...] = ()) -> None:
        self.own: Sequence[OpSignature] = own if isinstance(own, SizedKinds) else tuple(own)
        self.parts = parts

    @classmethod
    def joined(cls, *parts: OpSignatures) -> OpSignatures:
        """The operators of all parts; the part itself where the others are empty."""
        kept = tuple(part for part in parts if len(part))
        return kept[0] if len(kept) == 1 else cls(parts=kept)

    def held_bytes(self) -> int:
        """Bytes of memory, without those of parts and graphs."""
        return 1000 * len(self.own) if isinstance(self.own, tuple) else 100

    def __len__(self) -> int:
        return len(self.own) + sum(map(len, self.parts))

    def __iter__(self) -> Iterator[OpSignature]:
        return chain(self.own, *self.parts)

    @overload
    def __getitem__(self, index: int) -> OpSignature: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[OpSignature, ...]: ...
    def __getitem__(self, index: int | slice) -> OpSignature | tuple[OpSignature, ...]:
        if isinstance(index, slice):
            return tuple(self)[index]
        for part in self.parts:
            if index < len(part):
                return part[index]
            index -= len(part)
        return self.own[index]

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the operators."""
        return names_of(self.own) + tuple(name for part in self.parts for name in part.names)
