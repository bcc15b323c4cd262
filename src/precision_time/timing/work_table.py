"""Many works as arrays: built once per program, or from the numbers of a recording."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from precision_time.timing.corrections import covers
from precision_time.timing.curves import Array
from precision_time.timing.work import ATTENTION, CONVOLUTION_FEATURES, TILE_FAMILIES, Work

DETAILS = ("cols", "causal")


@dataclass(frozen=True, slots=True, eq=False)
class WorkTable:
    """Works as a struct of arrays; works that share parameters share a class."""

    classes: tuple[tuple[str, str, str, str], ...]
    class_of: NDArray[np.intp]
    shape: Array
    flops: Array
    floor_flops: Array
    bytes: Array
    serial_bytes: Array
    latency_s: Array
    launches: Array
    repeats: Array
    tiled: NDArray[np.intp]
    attention: NDArray[np.intp]
    rivals: NDArray[np.intp]
    rival_shape: Array
    rival_bytes: Array
    convolution: Array
    """CONVOLUTION_FEATURES where a work is a convolution; ones elsewhere."""
    details: Array
    """Elements in a row, and whether causal; zero where a work has no such thing."""
    covered: NDArray[np.bool_]
    """Whether the correction of the family's curve applies to a work (see `corrections.covers`)."""
    operators: tuple[str, ...] = ()
    """The operator of each work, where known (see `operators.operator_key`); measured points are keyed by operator. In
    a table that ends with rivals they have none."""

    def __len__(self) -> int:
        return len(self.class_of)

    @classmethod
    def from_works(cls, works: Sequence[Work], operators: Sequence[str] = ()) -> WorkTable:
        draft, numbers = TableDraft.of(works, operators)
        return draft.table(np.array(numbers, dtype=np.float64))

    def first(self, count: int) -> WorkTable:
        """The first `count` works; its arrays are views of this table's."""
        if count == len(self):
            return self
        class_of = self.class_of[:count]
        rivals = self.rivals[self.rivals < count]
        return WorkTable(
            classes=self.classes[: int(class_of.max(initial=-1)) + 1],  # numbered in the order of works
            class_of=class_of,
            tiled=self.tiled[self.tiled < count],
            attention=self.attention[self.attention < count],
            rivals=rivals,
            rival_shape=self.rival_shape[:, : len(rivals)],
            rival_bytes=self.rival_bytes[: len(rivals)],
            **{name: getattr(self, name)[..., :count] for name in _OF_WORKS},
            operators=self.operators,
        )

    def chosen(self, at: NDArray[np.intp]) -> WorkTable:
        """The works at these positions, in that order, with the classes that they have."""
        used, class_of = np.unique(self.class_of[at], return_inverse=True)
        place = np.full(len(self), -1)
        place[self.rivals] = np.arange(len(self.rivals))
        rivals = np.flatnonzero(place[at] >= 0)
        of_rival = place[at][rivals]
        return WorkTable(
            classes=tuple(self.classes[number] for number in used.tolist()),
            class_of=class_of.astype(np.intp),
            tiled=np.flatnonzero(np.isin(at, self.tiled)),
            attention=np.flatnonzero(np.isin(at, self.attention)),
            rivals=rivals,
            rival_shape=self.rival_shape[:, of_rival],
            rival_bytes=self.rival_bytes[of_rival],
            **{name: getattr(self, name)[..., at] for name in _OF_WORKS},
            operators=tuple(self.operators[i] for i in at.tolist()) if self.operators else (),
        )

    @classmethod
    def joined(cls, tables: Sequence[WorkTable]) -> WorkTable:
        """One table of the works of all tables in order, equal to `from_works` of all of them."""
        tables = [table for table in tables if len(table)] or tables[:1]
        if len(tables) == 1:
            return tables[0]
        keys: dict[tuple[str, str, str, str], int] = {}
        classes, shifts, before = [], [], 0
        for table in tables:
            renumbered = np.array([keys.setdefault(key, len(keys)) for key in table.classes], dtype=np.intp)
            classes.append(renumbered[table.class_of] if len(table) else table.class_of)
            shifts.append(before)
            before += len(table)

        def after(name: str) -> Any:
            return np.concatenate([getattr(table, name) for table in tables], axis=-1)

        def positions(name: str) -> Any:
            return np.concatenate([getattr(table, name) + by for table, by in zip(tables, shifts, strict=True)])

        return cls(
            classes=tuple(keys),
            class_of=np.concatenate(classes),
            **{name: positions(name) for name in ("tiled", "attention", "rivals")},
            **{name: after(name) for name in _COLUMNS},
            operators=tuple(chain.from_iterable([table.operators for table in tables])),
        )


_OF_WORKS = (
    "shape", "flops", "floor_flops", "bytes", "serial_bytes", "latency_s", "launches", "repeats", "convolution",
    "details", "covered",
)  # fmt: skip
_COLUMNS = (*_OF_WORKS, "rival_shape", "rival_bytes")


@dataclass(frozen=True, slots=True, eq=False)
class TableDraft:
    """A `WorkTable` apart from its numbers, which may follow from sizes that are not known yet."""

    classes: tuple[tuple[str, str, str, str], ...]
    class_of: NDArray[np.intp]
    tiled: NDArray[np.intp]
    attention: NDArray[np.intp]
    rivals: NDArray[np.intp]
    covered: NDArray[np.bool_]
    operators: tuple[str, ...]

    @classmethod
    def of(cls, works: Sequence[Work], operators: Sequence[str] = ()) -> tuple[TableDraft, list[float]]:
        """The draft, and the numbers column by column: those of all works, then shapes and bytes of their rivals."""
        keys: dict[tuple[str, str, str, str], int] = {}
        class_of = np.array([keys.setdefault(w.key, len(keys)) for w in works], dtype=np.intp)
        features = [dict(w.features) for w in works]
        rivals = [i for i, w in enumerate(works) if w.alternative is not None]
        columns: list[list[float]] = [
            *([w.shape[i] for w in works] for i in range(4)),
            *([getattr(w, name) for w in works] for name in _NUMBERS),
            *([of.get(name, 1.0) for of in features] for name in CONVOLUTION_FEATURES),
            *([of.get(name, 0.0) for of in features] for name in DETAILS),
            *([works[i].alternative[axis] for i in rivals] for axis in range(4)),  # type: ignore[index]
            [works[i].alternative_bytes for i in rivals],
        ]

        def positions(families: frozenset[str]) -> NDArray[np.intp]:
            return np.array([i for i, w in enumerate(works) if w.family in families], dtype=np.intp)

        draft = cls(
            classes=tuple(keys),
            class_of=class_of,
            tiled=positions(TILE_FAMILIES),
            attention=positions(frozenset({ATTENTION})),
            rivals=np.array(rivals, dtype=np.intp),
            covered=np.array([covers(w.family, w.variant, f) for w, f in zip(works, features, strict=True)], np.bool_),
            operators=tuple(operators),
        )
        return draft, [number for column in columns for number in column]

    @property
    def size(self) -> int:
        """How many numbers it has."""
        return _ROWS * len(self.class_of) + 5 * len(self.rivals)

    def table(self, numbers: Array) -> WorkTable:
        """The table with these numbers."""
        count, rivals = len(self.class_of), len(self.rivals)
        of_work = numbers[: _ROWS * count].reshape(_ROWS, count)
        of_rival = numbers[_ROWS * count :].reshape(5, rivals)
        details = _ROWS - len(DETAILS)
        return WorkTable(
            classes=self.classes,
            class_of=self.class_of,
            shape=of_work[:4],
            **dict(zip(_NUMBERS, of_work[4:], strict=False)),
            tiled=self.tiled,
            attention=self.attention,
            rivals=self.rivals,
            rival_shape=of_rival[:4],
            rival_bytes=of_rival[4],
            convolution=of_work[4 + len(_NUMBERS) : details],
            details=of_work[details:],
            covered=self.covered,
            operators=self.operators,
        )


_NUMBERS = ("flops", "floor_flops", "bytes", "serial_bytes", "latency_s", "launches", "repeats")
"""Columns of a table that are numbers of a `Work`."""
_ROWS = 4 + len(_NUMBERS) + len(CONVOLUTION_FEATURES) + len(DETAILS)
