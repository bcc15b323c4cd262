"""Operators of a rank in order (`Segment`), and the distinct operators of a program (`OpSignatures`)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from precision_time.capture.graph import OpSignature, Phase

Indices = NDArray[np.intp]


@dataclass(frozen=True, slots=True)
class Bucket:
    """Gradients reduced together: bytes on the wire, elements, and the call after which all of them are ready."""

    nbytes: int
    elements: int
    ready: int


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


@dataclass(frozen=True, slots=True, eq=False)
class RankProgram:
    """One optimizer step of one rank.

    `micro` is a micro-step without gradient reduction, `synced` is the micro-step that reduces (with the copies into
    and out of buckets), `tail` follows the last one. `micro_steps` counts both; `synced_micro_steps` of them reduce.
    `accumulate` runs once more in every micro-step after the first.
    """

    kinds: OpSignatures
    micro: Segment
    tail: Segment
    accumulate: Segment
    bucket_copies: Segment
    buckets: tuple[Bucket, ...]
    broadcast_bytes: int
    micro_steps: int
    synced_micro_steps: int
    ranks: int
    sync_after_tail: int
    """Tail position after which the host reads from the device (loss scaling, NovoGrad); -1: none."""
    length_spread: float = 0.0
    """How far the ranks' batches differ in length, as a share of the middle (`CapturedModel.length_spread`)."""
