"""Operators of a rank in order (`Segment`), and the distinct operators of a program (`OpSignatures`)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from precision_time.capture.graph import OpSignature, Phase

Indices = NDArray[np.intp]


@dataclass(frozen=True, slots=True, eq=False)
class Segment:
    """Operators in order: for each its index into the program's `kinds`, its phase, the views before it, its module."""

    kind: Indices
    phase: Indices
    views: Indices
    module: Indices

    @classmethod
    def of(cls, rows: Sequence[tuple[int, Phase, int, int]]) -> Segment:
        columns = np.array(rows, dtype=np.intp).reshape(len(rows), 4).T
        return cls(columns[0], columns[1], columns[2], columns[3])

    def __len__(self) -> int:
        return len(self.kind)


class OpSignatures(tuple[OpSignature, ...]):
    """All distinct operators of a program, compared by identity so that caches keyed on them are cheap.

    `parts`: the tuples that were joined, in order, where several programs share them.
    """

    parts: tuple[OpSignatures, ...] = ()

    @classmethod
    def joined(cls, *parts: OpSignatures) -> OpSignatures:
        signatures = cls(kind for part in parts for kind in part)
        signatures.parts = tuple(part for part in parts if len(part))
        return signatures

    __hash__ = object.__hash__

    def __eq__(self, other: object) -> bool:
        return self is other
