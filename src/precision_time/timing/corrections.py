"""The measured deviation of kernels from their time curve: a smooth factor on the curve's busy time.

log2(time) = log2(curve) + g, where g is a sum of tables over two features each, linear between knots. All devices share
the tables of a class of kernels; a measured device has its own tables, regularised towards the shared ones. Outside the
knots the value at the edge holds.

Time stays monotone by construction. g never falls along a size that is a feature, and along the curve itself the slopes
of g add up to something in [-1, 0]: time then grows with the curve, and no faster. A batch enters through the curve
alone, so twice the batch costs between once and twice as much, as on the curve.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from precision_time.timing.curves import Array
from precision_time.timing.work import ATTENTION, CONV, MATMUL

CURVE = "curve"
"""The axis of the curve itself: log2 of its busy time in microseconds."""
UP, ROW, FREE = "up", "row", "free"
"""Constraint on g along an axis. UP: g never falls (a size). ROW: g plus the curve never falls (the length of a row, to
which the curve is proportional). FREE: none (a head size, a flag)."""


class Columns(Protocol):
    """The columns of a `WorkTable` that the features are computed from."""

    @property
    def shape(self) -> Array: ...
    @property
    def convolution(self) -> Array: ...
    @property
    def details(self) -> Array: ...


Feature = Callable[[Columns, Any], Array]


def _log2(values: Array) -> Array:
    result: Array = np.log2(np.maximum(values, 1.0))
    return result


def _rows(t: Columns, i: Any) -> Array:
    return _log2(t.shape[1, i])


def _columns(t: Columns, i: Any) -> Array:
    return _log2(t.shape[2, i])


def _depth(t: Columns, i: Any) -> Array:
    return _log2(t.shape[3, i])


def _length(t: Columns, i: Any) -> Array:
    return _log2(np.sqrt(t.shape[1, i] * t.shape[2, i]))


def _inputs(t: Columns, i: Any) -> Array:
    return _log2(t.shape[3, i] / t.convolution[2, i])


def _outputs(t: Columns, i: Any) -> Array:
    return _log2(t.shape[2, i])


def _positions(t: Columns, i: Any) -> Array:
    return _log2(t.convolution[1, i])


def _row(t: Columns, i: Any) -> Array:
    return _log2(t.details[0, i])


def _causal(t: Columns, i: Any) -> Array:
    values: Array = t.details[1, i]
    return values


AXES: Mapping[str, Mapping[str, tuple[Feature, str]]] = {
    MATMUL: {"rows": (_rows, UP), "columns": (_columns, UP), "depth": (_depth, UP)},
    ATTENTION: {"length": (_length, UP), "head": (_depth, FREE), "causal": (_causal, FREE)},
    CONV: {"inputs": (_inputs, UP), "outputs": (_outputs, UP), "positions": (_positions, UP)},
    "softmax": {"row": (_row, ROW)},
    "layer_norm": {"row": (_row, ROW)},
}
"""Per curve the features beside the curve itself, all in log2 but the flag. Rows, columns and depth: m, n and k; inputs
and outputs: channels; positions: of an image; length: the geometric mean of queries and keys; row: elements that are
one normalisation covers."""
TERMS: Mapping[str, tuple[tuple[str, str], ...]] = {
    MATMUL: (
        (CURVE, "rows"),
        (CURVE, "columns"),
        (CURVE, "depth"),
        ("rows", "depth"),
        ("columns", "depth"),
        ("rows", "columns"),
    ),
    ATTENTION: ((CURVE, "length"), (CURVE, "head"), (CURVE, "causal")),
    CONV: ((CURVE, "inputs"), (CURVE, "outputs"), (CURVE, "positions"), ("inputs", "outputs")),
    "softmax": ((CURVE, "row"),),
    "layer_norm": ((CURVE, "row"),),
}
"""The two axes of each table of g."""


def covers(family: str, variant: str, features: Mapping[str, float]) -> bool:
    """Whether the kernel tables contain rows like this work: forward passes, 3x3 stride-1 convolutions, softmax and
    norms with a known row length, all products.
    """
    if family == CONV:
        return variant.startswith("fwd") and features.get("taps") == 9.0 and features.get("stride") == 1.0
    if family in ("softmax", "layer_norm"):
        return variant == "fwd" and features.get("cols", 0.0) >= 1.0
    return family == MATMUL or (family == ATTENTION and variant.partition(".")[0] == "fwd")


class Knots:
    """The knots of several axes; values are placed among those of all axes at once."""

    __slots__ = ("_first", "_flat", "_inner", "_last", "_rows")

    def __init__(self, axes: Sequence[Array]) -> None:
        most = max(map(len, axes))
        self._flat = np.concatenate([[*knots, *[knots[-1]] * (most - len(knots))] for knots in axes])
        self._rows = np.arange(len(axes))[:, None] * most
        self._first, self._last = (np.array([[knots[end]] for knots in axes]) for end in (0, -1))
        inner = [[*knots[1:-1], *[np.inf] * (most - len(knots))] for knots in axes]
        self._inner = np.array(inner).T[:, :, None]

    def places(self, values: Array) -> tuple[NDArray[np.intp], Array]:
        """The knot at or below each value (axes x values), and how far on it is towards the next, 0..1; clipped to the
        knots."""
        inside = np.minimum(np.maximum(values, self._first), self._last)
        below = np.zeros(inside.shape, dtype=np.intp)
        for knot in self._inner:
            below += inside >= knot
        at = self._rows + below
        left = self._flat.take(at)
        return below, (inside - left) / (self._flat.take(at + 1) - left)


class Grid:
    """The knots of one class of kernels, which the tables of all devices share."""

    __slots__ = ("_knots", "_offsets", "_one", "_other", "_wide", "batched", "curve")

    def __init__(self, curve: str, knots: Mapping[str, Array], batched: bool = True) -> None:
        """`batched`: whether products of several matrices were measured."""
        self.batched = batched
        names = [CURVE, *AXES[curve]]
        axes = [knots[name] for name in names]
        self.curve, self._knots = curve, Knots(axes)
        self._one, self._other = (np.array([names.index(term[axis]) for term in TERMS[curve]]) for axis in (0, 1))
        lengths = list(map(len, axes))
        sizes = [lengths[one] * lengths[other] for one, other in zip(self._one, self._other, strict=True)]
        self._wide = np.array([[lengths[other]] for other in self._other])
        self._offsets = np.cumsum([0, *sizes[:-1]])[:, None]

    def log2_factor(self, tables: Array, start: Any, busy: Array, columns: Columns, at: Any) -> Array:
        """g of the works at positions `at`, whose curve takes `busy` seconds.

        `tables`: the entries of the tables of one or more devices, one after another; `start`: where those of each
        work's device begin. Where no batch was measured, g of a long curve is that of one large product: many small
        ones do not come below their curve by more than one of them does.
        """
        found = self._log2_factor(tables, start, busy, columns, at)
        if not self.batched and len(several := np.flatnonzero(columns.shape[0, at] > 1.0)):
            of_several = at[several]
            each = busy[several] / columns.shape[0, of_several]
            start = start[several] if isinstance(start, np.ndarray) else start
            alone = self._log2_factor(tables, start, each, columns, of_several)
            found[several] = np.maximum(found[several], np.minimum(alone, 0.0))
        return found

    def _log2_factor(self, tables: Array, start: Any, busy: Array, columns: Columns, at: Any) -> Array:
        below, share = self._knots.places(
            np.array([values for _, values in coordinates(self.curve, busy, columns, at)])
        )
        one, other = self._one, self._other
        corner = below.take(one, axis=0) * self._wide + below.take(other, axis=0) + (self._offsets + start)
        opposite = corner + self._wide
        x, y = share.take(one, axis=0), share.take(other, axis=0)
        rest = 1.0 - y
        low = tables.take(corner) * rest + tables.take(corner + 1) * y
        high = tables.take(opposite) * rest + tables.take(opposite + 1) * y
        total: Array = np.add.reduce(low + (high - low) * x, axis=0)
        return total


@dataclass(frozen=True, eq=False)
class Correction:
    """g of one class of kernels on one device: a table (knots x knots) for each of TERMS."""

    grid: Grid
    tables: Sequence[Array]

    @classmethod
    def find(cls, content: Mapping[str, Any], key: str, device: str, grid: Grid | None = None) -> Correction | None:
        """The correction of `device`, else the shared one; `content`: `corrections` of kernels.json, keyed "curve|dtype
        class". `grid`: of the key, where known."""
        entry = content.get(key)
        if entry is None:
            return None
        knots = {name: np.array(at, dtype=np.float64) for name, at in entry["knots"].items()}
        tables = [np.array(table, dtype=np.float64) for table in entry["devices"].get(device, entry["shared"])]
        return cls(grid or Grid(key.partition("|")[0], knots, entry.get("batched", True)), tables)

    @cached_property
    def flat(self) -> Array:
        """The entries of all tables, one after another."""
        return np.concatenate([table.ravel() for table in self.tables])

    def log2_factor(self, busy: Array, columns: Columns, at: Any) -> Array:
        """As that of the grid, of works on this device alone."""
        return self.grid.log2_factor(self.flat, 0, busy, columns, at)


def coordinates(curve: str, busy: Array, columns: Columns, at: Any) -> list[tuple[str, Array]]:
    """The value of every axis for the works at positions `at`."""
    base = np.log2(np.maximum(busy, 1e-12) * 1e6)
    return [(CURVE, base), *((name, feature(columns, at)) for name, (feature, _) in AXES[curve].items())]
