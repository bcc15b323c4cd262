"""Kernel times from the points that `calibrate` measured on the device itself, interpolated between sizes.

Memory-bound works follow a monotone curve over bytes: of their operator, else of a similar one (`similar_operators`),
else of their family. Products, convolutions and attention follow a smooth surface over their sizes, around the shares
of peak and bandwidth that each class reaches; one surface serves all operators of a family. Works without a point keep
the learned curves.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from precision_time.bounded_cache import bounded
from precision_time.hardware.calibration import Calibration
from precision_time.hardware.gpu import Gpu
from precision_time.timing.interpolation import Array, MonotoneCurve, SmoothSurface, nonnegative
from precision_time.timing.kernels import SOURCES, KernelTimes, WorkTable, compute_peak
from precision_time.timing.similar_operators import ALIKE
from precision_time.timing.work import (
    ATTENTION,
    CONV,
    CONV_DILATED,
    CONV_FEW,
    CONV_GROUPED,
    CONV_UNEVEN,
    CONVOLUTION_FEATURES,
    MATMUL,
    RNN,
    TILE_FAMILIES,
    VECTOR_CONVOLUTIONS,
    class_of_dtype,
)

Key = tuple[str, ...]
Indices = NDArray[np.intp]
Mask = NDArray[np.bool_]

MEASURED, INTERPOLATED, ASSUMED = (SOURCES.index(name) for name in ("measured", "interpolated", "assumed"))
BORROWED_SPREAD = 0.3
"""Least spread of log(time) where the points are another operator's: chosen."""
SAME_SHARE = 0.01
"""Sizes within this share of a point count as measured."""
_POOLED = 0.35
"""Points of different operators nearer than this (natural log of bytes) are averaged before the curve is drawn."""
_GAP_SPREAD = 0.1
"""Spread per factor e between a size and the nearest point of its curve: chosen."""

SURFACES = TILE_FAMILIES | VECTOR_CONVOLUTIONS | {ATTENTION}
"""Families limited by arithmetic, as a rule."""
# Families whose utilisation is used where a family was not measured.
_RELATED = {
    CONV_FEW: (CONV, MATMUL),
    CONV_DILATED: (CONV, MATMUL), CONV_GROUPED: (CONV, MATMUL), CONV_UNEVEN: (CONV, MATMUL), CONV: (MATMUL,),
    RNN: (MATMUL,), ATTENTION: (MATMUL,),
}  # fmt: skip
# An operator is timed as a whole and represented by one work. These are timed pass by pass, without bias.
_IN_PARTS = frozenset({"aten.convolution_backward", "pt.rnn", "pt.rnn_backward"})
_BIAS_APART = frozenset({"aten.convolution", "aten._convolution", "aten.cudnn_convolution"})


def apply_calibration(times: KernelTimes, table: WorkTable, owner: Indices, gpu: Gpu) -> tuple[KernelTimes, Mask]:
    """`times` with the works that the calibration covers timed from its points, and a mask of these works.

    `owner`: the operator (by index) that each work belongs to.
    """
    count = len(table)
    covered, whole = np.zeros(count, dtype=np.bool_), np.zeros(count, dtype=np.bool_)
    if gpu.calibration is None or not len(gpu.calibration.kernels) or not count:
        return times, covered
    book = _book(gpu)
    floor = times.floor_seconds
    seconds, source, spread = times.seconds.copy(), times.source.copy(), times.log_spread.copy()
    features = _features(table.shape, table.convolution, table.flops, table.bytes)
    operators = table.operators or ("",) * count
    groups: dict[tuple[str, int], list[int]] = {}
    for index, key in enumerate(zip(operators, table.class_of.tolist(), strict=True)):
        groups.setdefault(key, []).append(index)
    for (operator, class_index), members in groups.items():
        family, variant, math, kind = table.classes[class_index]
        at = np.array(members, dtype=np.intp)
        if family in SURFACES:
            surface = book.surface(family, math, kind)
            if surface is None:
                continue
            floors = _floors(table.flops[at] / compute_peak(gpu, math, kind), table.bytes[at] / gpu.memory_bytes_per_s)
            curve_s, deviation, same = surface.at(features[at], floors, operator, variant)
            own, known = surface.knows(operator, variant)
        else:
            curve = book.curve(operator, family, variant, math, kind)
            if curve is None:
                continue
            curve_s, deviation, same = curve.at(table.bytes[at])
            # A sweep over many small tensors costs at least so many calls.
            curve_s = np.maximum(curve_s, table.launches[at] * book.call_s)
            own, known = curve.own, curve.named
        seconds[at] = np.maximum(curve_s, floor[at])
        spread[at] = deviation if own else np.maximum(deviation, BORROWED_SPREAD)
        source[at] = np.where(same, MEASURED, INTERPOLATED) if own else ASSUMED
        covered[at], whole[at] = True, known
    for main, rest in _parts(table, operators, owner, whole, gpu):
        seconds[main] = max(seconds[main] - floor[rest].sum(), floor[main])
        seconds[rest] = floor[rest]
        source[rest], spread[rest], covered[rest] = source[main], spread[main], True
    helpers = np.where(covered, 0.0, times.helper_seconds)  # a measured kernel is timed with its helpers
    return replace(times, seconds=seconds, source=source, log_spread=spread, helper_seconds=helpers), covered


def contention_factors(table: WorkTable, calibration: Calibration, ranks: int) -> Array:
    """Factor on the time of each work with `ranks` processes on the node, as measured."""
    factors = calibration.contention_of(ranks)
    by_class = np.array([factors.of(family, kind, family in SURFACES) for family, _, _, kind in table.classes])
    return np.asarray(by_class[table.class_of], dtype=np.float64)


def _parts(
    table: WorkTable, operators: tuple[str, ...], owner: Indices, whole: Mask, gpu: Gpu
) -> Iterator[tuple[int, Indices]]:
    """For every operator timed as a whole: its largest work, which takes the time, and its other works."""
    counts = np.bincount(owner)
    for kind in np.unique(owner[whole & (counts[owner] > 1)]):
        works = np.flatnonzero(owner == kind)
        operator = operators[works[0]]
        # Only on a GPU is the bias a kernel of its own.
        if operator in _IN_PARTS or (operator in _BIAS_APART and gpu.device_type != "cpu"):
            continue
        main = max(works[whole[works]].tolist(), key=lambda i: (table.flops[i], table.bytes[i]))
        yield main, works[works != main]


def _features(shape: Array, convolution: Array, flops: Array, nbytes: Array) -> Array:
    """What utilisation depends on, one row a work, in natural logs: the product's sizes, operations per byte, images,
    positions; operations per product (half of them under a causal mask), taps and stride; how round m, n and k are.

    Operations per product, taps and stride span less than sizes do and count double. Roundness is the power of two in
    a size: rows that far apart share cache sets, and kernels load aligned rows faster.
    """
    sizes = np.maximum(shape, 1.0)
    operations = np.maximum(flops, 1.0)
    dense = operations / sizes.prod(axis=0)
    images, positions, taps, stride = np.maximum(convolution, 1.0)
    columns = [*sizes, operations / np.maximum(nbytes, 1.0), images, positions, dense**2, taps**2, stride**2]
    powers = np.gcd(sizes[1:].astype(np.int64), _ROUNDEST).astype(np.float64)
    plain = (positions == 1.0) & (taps == 1.0)  # of a convolution, m and k are products of several sizes
    columns += list(np.where(plain, powers**_ROUNDNESS, 1.0))
    return np.asarray(np.log(np.stack(columns, axis=1)), dtype=np.float64)


_ROUNDEST, _ROUNDNESS = 4096, 0.5
"""Largest power of two that counts, and its weight against a size: half."""


def _floors(compute_s: Array, traffic_s: Array) -> Array:
    """The columns of which a base time is made: arithmetic at peak, traffic at full bandwidth, a microsecond."""
    return np.stack([compute_s, traffic_s, np.full_like(compute_s, 1e-6)], axis=1)


class _Curve:
    """Seconds by bytes. `own`: of that operator and variant alone; `named`: points under the operator's name."""

    def __init__(self, nbytes: Array, seconds: Array, spread: Array, own: bool, named: bool) -> None:
        self.own, self.named = own, named
        self._curve = MonotoneCurve(nbytes, seconds, spread, SAME_SHARE if own else _POOLED)
        self._logs = np.log(np.maximum(nbytes, 1.0))
        self._noise = float(np.median(spread))

    def at(self, nbytes: Array) -> tuple[Array, Array, Mask]:
        """Seconds, spread of their log, and whether a point has this size."""
        gap = _GAP_SPREAD * self._curve.distance(nbytes)
        apart = np.abs(np.log(np.maximum(nbytes, 1.0))[:, None] - self._logs).min(axis=1)
        spread = np.sqrt(self._curve.deviation**2 + self._noise**2 + gap**2)
        return self._curve.seconds(nbytes), spread, apart <= SAME_SHARE


class _Surface:
    """Seconds by sizes, for all operators and variants of a family.

    Each class (operator and variant) has a base time: its arithmetic at a share of the peak, plus its traffic at one
    of the bandwidth, plus a call. The surface is what the points take beside it, for all classes at once.
    """

    def __init__(
        self, features: Array, floors: Array, classes: list[tuple[str, str]], seconds: Array, noise: Array, own: bool
    ) -> None:
        self._own = own
        self._classes = frozenset(classes)
        self._operators = {name: i for i, name in enumerate(sorted({operator for operator, _ in classes}))}
        self._variants = {name: i for i, name in enumerate(sorted({variant for _, variant in classes}))}
        self._features = features
        self._labels = np.array([(self._operators[o], self._variants[v]) for o, v in classes], dtype=np.intp)
        self._noise = float(np.median(noise))
        self._any = nonnegative(floors, seconds)
        self._bases: dict[tuple[str, str], Array] = {}
        self._offsets: dict[tuple[str, str], float] = {}
        excess = np.zeros(len(seconds))
        for name in self._classes:
            at = np.array([i for i, each in enumerate(classes) if each == name], dtype=np.intp)
            base = nonnegative(floors[at], seconds[at]) if len(at) >= _POINTS_FOR_BASE else self._any
            excess[at] = np.log(seconds[at] / (floors[at] @ base))
            self._bases[name] = base
            self._offsets[name] = float(excess[at].sum()) / (len(at) + 1.0)
            excess[at] -= self._offsets[name]
        self._surface = SmoothSurface(features, self._labels, excess, noise)

    def knows(self, operator: str, variant: str) -> tuple[bool, bool]:
        """Whether there are points of that operator in that variant (in any, if the work names none), and in any
        variant."""
        named = self._own and operator in self._operators
        return named and (not variant or (operator, variant) in self._classes), named

    def at(self, features: Array, floors: Array, operator: str, variant: str) -> tuple[Array, Array, Mask]:
        """Seconds, spread of their log, and whether a point has these sizes."""
        label = (self._operators.get(operator, -1), self._variants.get(variant, -1))
        labels = np.broadcast_to(np.array(label, dtype=np.intp), (len(features), 2))
        excess, deviation = self._surface.at(features, labels)
        base, offset = self._base(operator, variant)
        apart = np.abs(features[:, None] - self._features).max(axis=2)
        alike = (self._labels[:, 0] == label[0]) & (not variant or self._labels[:, 1] == label[1])
        seconds = floors @ base * np.exp(offset + excess)
        return seconds, np.hypot(deviation, self._noise), (alike & (apart <= SAME_SHARE)).any(axis=1)

    def _base(self, operator: str, variant: str) -> tuple[Array, float]:
        """Base and offset of the class; without points, the mean of the operator's classes, else of the variant's."""
        name = (operator, variant)
        if name in self._bases:
            return self._bases[name], self._offsets[name]
        for index, word in enumerate(name):
            near = [each for each in sorted(self._bases) if each[index] == word]
            if near:
                return np.mean([self._bases[n] for n in near], axis=0), float(np.mean([self._offsets[n] for n in near]))
        return self._any, 0.0


_POINTS_FOR_BASE = 6
"""Points from which a class has a base time of its own, twice the numbers that it needs."""


class _Book:
    """The points of one device by key; a class is solved on first use."""

    def __init__(self, gpu: Gpu, calibration: Calibration) -> None:
        points = calibration.kernels
        self._loops = gpu.device_type == "cpu"
        self._operator = [operator.rstrip("_") for operator in points.operator]
        self._variant = points.variant
        kinds = [class_of_dtype(math, dtype) for math, dtype in zip(points.math, points.dtype, strict=True)]
        flops, self._bytes = np.array(points.flops), np.array(points.bytes)
        self._seconds, self._spread = np.array(points.seconds), np.array(points.spread)
        shape = np.array([points.batch, points.m, points.n, points.k], dtype=np.float64)
        convolution = np.array([getattr(points, name) for name in CONVOLUTION_FEATURES], dtype=np.float64)
        self._features = _features(shape, convolution, flops, self._bytes)
        peaks = np.array([compute_peak(gpu, math, kind) for math, kind in zip(points.math, kinds, strict=True)])
        self._floors = _floors(flops / peaks, self._bytes / gpu.memory_bytes_per_s)
        self.call_s = float((self._seconds / np.maximum(np.array(points.launches), 1.0)).min())
        """Seconds of the cheapest call: the least cost of any launch."""
        self._members: dict[Key, list[int]] = {}
        for i, (family, math, kind) in enumerate(zip(points.family, points.math, kinds, strict=True)):
            operator, variant = self._operator[i], points.variant[i]
            for key in (
                ("own", operator, family, variant, math, kind),
                ("operator", operator, math, kind),
                ("variant", family, variant, math, kind),
                ("unit", family, math, kind),
                ("family", family, kind),
            ):
                self._members.setdefault(key, []).append(i)
        self._curves: dict[tuple[Key, bool], _Curve] = {}
        self._surfaces: dict[Key, _Surface] = {}

    def curve(self, operator: str, family: str, variant: str, math: str, kind: str) -> _Curve | None:
        """The curve of the nearest points: the operator's, a similar operator's, the family's; then those of float32
        (on a CPU also of half precision, by elements); then any pointwise."""
        of_operator = ("operator", operator, math, kind)
        key = self._first(
            ("own", operator, family, variant, math, kind),
            of_operator,
            *(("operator", other, math, kind) for other in ALIKE.get(operator, ())),
            ("variant", family, variant, math, kind),
            ("family", family, kind),
            ("operator", operator, math, "fp32"),
            ("family", family, "fp32"),
            *(self._narrower(operator, family, math) if kind == "fp32" else ()),
            ("family", "pointwise", kind),
            ("family", "pointwise", "fp32"),
        )
        if key is None:
            return None
        own = key[0] == "own" or (key == of_operator and not variant)
        curve = self._curves.get((key, own))
        if curve is None:
            at = np.array(self._members[key], dtype=np.intp)
            named = key[0] == "own" or key[:2] == of_operator[:2]
            as_wide = _NARROWED if kind == "fp32" and key[-1] == "half" else 1.0
            curve = _Curve(as_wide * self._bytes[at], self._seconds[at], self._spread[at], own, named)
            self._curves[key, own] = curve
        return curve

    def _narrower(self, operator: str, family: str, math: str) -> tuple[Key, ...]:
        """Keys of half-precision points for float32 on a CPU, where the loop over elements takes the time. A pooling
        takes ten times as long there as a pointwise operator of as many bytes."""
        return (("operator", operator, math, "half"), ("family", family, "half")) if self._loops else ()

    def surface(self, family: str, math: str, kind: str) -> _Surface | None:
        """The surface of the family in that unit, else in any unit of the dtype class, else of a related family."""
        own = ("unit", family, math, kind)
        key = self._first(own, *(("family", name, kind) for name in (family, *_RELATED.get(family, ()))))
        if key is None:
            return None
        surface = self._surfaces.get(key)
        if surface is None:
            at = np.array(self._members[key], dtype=np.intp)
            classes = [(self._operator[i], self._variant[i]) for i in at]
            surface = _Surface(
                self._features[at], self._floors[at], classes, self._seconds[at], self._spread[at], key == own
            )
            self._surfaces[key] = surface
        return surface

    def _first(self, *keys: Key) -> Key | None:
        return next((key for key in keys if key in self._members), None)


_NARROWED = 2.0
"""Bytes of float32 over those of half, for as many elements."""


@bounded()
def _book(gpu: Gpu) -> _Book:
    if gpu.calibration is None:
        raise ValueError(f"{gpu.name} is not calibrated")
    return _Book(gpu, gpu.calibration)
