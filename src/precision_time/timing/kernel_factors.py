"""Factors on the compute, memory and helper time of kernels, learned from whole training steps.

A kernel table times kernels alone; a step of a network shows what the library really runs. The log of each factor is a
sum of terms, from what all kernels of a family share to the pass, layout, arithmetic and architecture of one, and of
curves over the sizes of a convolution, linear between knots. No term depends on the batch: twice the batch costs once
to twice as long. `fit.kernel_factors` fits the terms to published steps, each shrunk towards zero by the standard
deviations below.

Kernels without a convolution have one factor, on all of their time (`memory`).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from precision_time.bounded_cache import STRUCTURES, bounded
from precision_time.shipped import is_shipped, shipped_file
from precision_time.timing.corrections import Knots
from precision_time.timing.curves import Array
from precision_time.timing.work import (
    ALIGN,
    CONV_1D,
    CONV_DEPTHWISE,
    CONV_DIRECT,
    CONV_FEW,
    CONV_GROUPED,
    CONV_UNEVEN,
    CONVOLUTIONS,
    VECTOR_CONVOLUTIONS,
)

COMPUTE, MEMORY, HELPING = "compute", "memory", "helpers"
PARTS = (COMPUTE, MEMORY, HELPING)
FILE = "kernel_factors.json"

COMMON, OF_ARCHITECTURE, OF_SIZE, OF_HELPERS = 0.15, 0.5, 0.2, 0.6
"""Prior standard deviations of convolutions: of what all share, of an architecture, of a curve at a knot, of layout
transposes. Chosen among half to three times their values by errors of families held out."""
OF_UNEVEN_SIZE = 0.5
"""Of a curve of depthwise convolutions, and of grouped ones in NHWC, for which libraries have fast kernels of a few
widths and filters and slow ones of all others (grouped ones on vector units are a family of their own)."""
OF_FEW = 0.5
"""Of convolutions of few channels and their curves: no table measures any, and one H100 alone tells them apart."""
MEMORY_SHARE = 0.7
"""Of these, for the memory time of a convolution."""
GRAPHICS_CHIPS = frozenset({"ampere-ga10x", "ada", "blackwell-gb20x"})
"""Architectures with the same multiprocessor (compute capability 8.6, 8.9 and 12), which run the same kernels."""
_PRODUCTS, _STREAMS = frozenset({"matmul", "rnn"}), frozenset({"pointwise", "cast"})
_WITHOUT = frozenset({"attention", "optimizer"})
"""Families without factors: tables measure attention, and steps tell an optimizer's kernels badly from its launches."""
_OTHERS = {"product": 0.05, "stream": 0.1, "other": 0.3}
"""The same of kernels that are no convolutions: kernel tables measure products and streams, and nothing else."""
OF_TRAFFIC = 0.15
"""The same of all kernels that memory limits, in half precision on an architecture: tables measure them in single
precision alone, and threads that load half as many bytes at once use less of a large bandwidth."""
OF_ALIGNMENT = 0.7
"""The same of products in half precision whose rows are no multiples of 16 bytes: tables measure none."""
OF_DEVICE = 0.06
"""The same of all kernels but products on one device, and twice of products there, of all and by dtype class: clocks
under load. Apart, since the kernels of a device that memory limits say nothing of its products."""

AXES: Mapping[str, Array] = {
    "inputs": np.array([0.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0, 10.0]),
    "outputs": np.array([0.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0, 10.0]),
    "taps": np.log2([1.0, 3.0, 9.0, 25.0, 49.0, 81.0, 121.0]),
    "positions": np.array([4.0, 6.0, 8.0, 10.0, 12.0, 14.0, 16.0]),
    "stride": np.array([0.0, 2.0, 4.0]),
    "groups": np.array([1.0, 3.0, 5.0, 6.0, 8.0, 10.0]),
    "input_alignment": np.array([0.0, 1.0, 2.0, 3.0]),
    "output_alignment": np.array([0.0, 1.0, 2.0, 3.0]),
}
"""Knots of the curves: log2 of channels per group, taps, positions of an image, product of strides and groups; and how
far channels are from whole 16 bytes, which tensor cores load at once: how often their number must be doubled (0 below
8 channels, which the first curves tell apart). Of a depthwise convolution: its channels, from `WHOLE_DEPTHWISE`.
Outside the knots the value at the edge holds."""
WHOLE_DEPTHWISE = 64
"""Channels whose multiples depthwise kernels run fastest, as published steps of timm's networks show."""
KNOTS = Knots(list(AXES.values()))
_STARTS = dict(zip(AXES, np.cumsum([0, *(len(knots) for knots in AXES.values())]).tolist(), strict=False))
_CURVES = sum(len(knots) for knots in AXES.values())
_WIDTH = 1 + _CURVES
"""Numbers of one part of a class: its constant, then the curves."""
SIZE = 2 * _WIDTH + 1
_CONSTANTS = np.array([0, _WIDTH, 2 * _WIDTH])
_FIRST_KNOTS = 1 + np.array(list(_STARTS.values()))[:, None]
"""Where the constant of each part is among the numbers of a class, and the first knot of each curve in a part."""
LARGEST = 2.0
"""Largest absolute log of a factor."""


@dataclass(frozen=True, slots=True)
class KernelClass:
    """Kernels that share all terms but the sizes: a family with its variant and dtype class on a device."""

    family: str
    variant: str
    dtype_class: str
    arch: str
    device: str

    @property
    def direction(self) -> str:
        """The pass: fwd, dgrad, wgrad, bwd or empty."""
        return self.variant.partition(".")[0]

    @property
    def layout(self) -> str:
        """nchw, nhwc or native of a convolution."""
        return self.variant.rpartition(".")[2]

    @property
    def unit(self) -> str:
        """half where tensor cores compute in half or tf32, else the dtype class. Vector units know no tf32."""
        if self.dtype_class != "tf32":
            return self.dtype_class
        return "fp32" if self.family in VECTOR_CONVOLUTIONS else "half"


def terms(part: str, of: KernelClass) -> dict[str, float]:
    """The terms of a class of kernels that depend on no size, with their prior standard deviations."""
    return {**_shared_terms(part, of), **_device_terms(part, of)}


def _shared_terms(part: str, of: KernelClass) -> dict[str, float]:
    """Those that all devices of an architecture share; each that is its own, graphics chips share as well."""
    if of.family in _WITHOUT:
        return {}
    if of.family in CONVOLUTIONS:
        found = _helper_terms(of) if part == HELPING else _convolution_terms(part, of)
    else:
        found = _other_terms(of) if part == MEMORY else {}
    if of.arch not in GRAPHICS_CHIPS:
        return found
    own = {tuple(name.split("|")): width for name, width in found.items() if of.arch in name.split("|")}
    return found | {"|".join("graphics" if each == of.arch else each for each in n): w for n, w in own.items()}


def _device_terms(part: str, of: KernelClass) -> dict[str, float]:
    if part == HELPING or of.family in _WITHOUT or (part == COMPUTE and of.family not in CONVOLUTIONS):
        return {}
    if of.family == "matmul":
        return {f"product|{of.device}": OF_DEVICE, f"product|{of.dtype_class}|{of.device}": OF_DEVICE}
    return {f"device|{of.device}": OF_DEVICE}


def _convolution_terms(part: str, of: KernelClass) -> dict[str, float]:
    family, kind, chip = of.family, of.dtype_class, of.arch
    share = MEMORY_SHARE if part == MEMORY else 1.0
    common, own = COMMON * share, OF_ARCHITECTURE * share
    found = {
        family: common,
        f"{family}|{of.direction}": 0.5 * common,
        f"{family}|{of.layout}": 0.5 * common,
        f"{family}|{of.layout}|{of.unit}": 0.7 * common,
        f"{family}|{of.direction}|{of.layout}|{of.unit}": 0.7 * common,
        f"conv|{chip}": 0.3 * own,
        f"conv|{kind}|{chip}": 0.9 * own,
    }
    if family == CONV_FEW:
        wide = OF_FEW * share
        found |= {family: wide, f"{family}|{of.direction}": 0.5 * wide, f"{family}|{of.layout}": 0.5 * wide}
        return {**found, f"{family}.{of.variant}": wide, f"{family}|{chip}": 0.2 * own}
    if family == CONV_1D:  # few families have any: near to other convolutions
        return {**found, f"{family}|{chip}": 0.15 * own, f"{family}|{kind}|{chip}": 0.2 * own}
    return {
        **found,
        f"{family}|{chip}": 0.2 * own,
        f"{family}|{kind}|{chip}": 0.7 * own,
        f"{family}|{of.layout}|{kind}|{chip}": 0.7 * own,
        f"{family}|{of.direction}|{kind}|{chip}": 0.5 * own,
    }


def _helper_terms(of: KernelClass) -> dict[str, float]:
    width = OF_HELPERS
    return {
        "helpers": 0.5 * width,
        f"helpers|{of.arch}": width,
        f"helpers|{of.direction}": 0.3 * width,
        f"helpers|{of.family}": 0.3 * width,
        f"helpers|{of.dtype_class}": 0.3 * width,
        f"helpers|{of.dtype_class}|{of.arch}": 0.7 * width,
    }


def _other_terms(of: KernelClass) -> dict[str, float]:
    kind = "product" if of.family in _PRODUCTS else "stream" if of.family in _STREAMS else "other"
    width = _OTHERS[kind]
    common = min(width, 0.1)  # what one architecture's steps tell of another's norms is little
    found = {
        of.family: common,
        f"{of.family}|{of.dtype_class}": 0.5 * common,
        f"{of.family}|{of.dtype_class}|{of.arch}": 0.8 * width,
    }
    if kind != "product" and of.dtype_class == "half":
        found[f"traffic|half|{of.arch}"] = OF_TRAFFIC
    if of.variant:
        found[f"{of.family}.{of.variant}"] = 0.5 * common
    if of.variant.startswith(ALIGN):
        found[f"{of.family}.{of.variant}"] = OF_ALIGNMENT
        found[f"{of.family}.{of.variant}|{of.arch}"] = OF_ALIGNMENT
    if "." in of.variant:  # batch norm: direction, kernels and memory format; fused kernels: direction
        rest, wide = of.variant.partition(".")[2], _OTHERS["other"]
        found[f"{of.family}.{rest}|{of.dtype_class}"] = 0.5 * wide
        found[f"{of.family}.{of.variant}|{of.dtype_class}"] = 0.5 * wide
        found[f"{of.family}.{rest}|{of.dtype_class}|{of.arch}"] = 0.8 * wide
    return found


def curves(part: str, of: KernelClass) -> Iterator[tuple[str, str, float]]:
    """Label, axis and prior standard deviation of every curve of a class of convolutions."""
    if part == HELPING or of.family not in CONVOLUTIONS:
        return
    kind = _KINDS.get(of.family, "dense")
    uneven = kind == "depthwise" or (kind != "dense" and of.layout == "nhwc")
    size = OF_FEW if kind == "few" else OF_UNEVEN_SIZE if uneven else OF_SIZE
    width = size * (MEMORY_SHARE if part == MEMORY else 1.0)
    label = f"{kind}|{of.layout}|{of.unit}"
    for axis in ("inputs", "outputs", "taps", "positions", "stride"):
        yield label, axis, width
        yield f"{label}|{of.direction}", axis, 0.7 * width
    if kind in ("grouped", "direct", "uneven"):
        yield label, "groups", width
    if kind == "depthwise" and of.unit == "half":
        yield label, "input_alignment", width
        yield f"{label}|{of.direction}", "input_alignment", 0.7 * width
    if kind in ("dense", "grouped", "uneven") and of.unit == "half":
        yield label, "input_alignment", width
        yield label, "output_alignment", width


_KINDS = {
    CONV_DEPTHWISE: "depthwise", CONV_GROUPED: "grouped", CONV_DIRECT: "direct", CONV_UNEVEN: "uneven", CONV_FEW: "few",
}  # fmt: skip


class Columns(Protocol):
    """The columns of a `WorkTable` that the factors are computed from."""

    @property
    def classes(self) -> tuple[tuple[str, str, str, str], ...]: ...
    @property
    def class_of(self) -> NDArray[np.intp]: ...
    @property
    def shape(self) -> Array: ...
    @property
    def convolution(self) -> Array: ...


@dataclass(frozen=True, slots=True, eq=False)
class _Traits:
    """What the factors read of each class of a table: whether it convolves, in which pass, and how many channels tensor
    cores load at once."""

    convolves: NDArray[np.bool_]
    forward: NDArray[np.bool_]
    dgrad: NDArray[np.bool_]
    whole: NDArray[np.intp]


@bounded(budget=STRUCTURES)
def _traits(classes: tuple[tuple[str, str, str, str], ...]) -> _Traits:
    directions = [variant.partition(".")[0] for _, variant, *_ in classes]
    return _Traits(
        np.array([family in CONVOLUTIONS for family, *_ in classes], dtype=np.bool_),
        np.array([direction == "fwd" for direction in directions], dtype=np.bool_),
        np.array([direction == "dgrad" for direction in directions], dtype=np.bool_),
        np.array([4 if kind == "tf32" else 8 for *_, kind in classes], dtype=np.intp),
    )


def sizes(table: Columns, at: Any) -> Array:
    """The coordinates (AXES x works) of the convolutions at positions `at`."""
    return _coordinates(counts_of(table, at), _traits(table.classes).whole[table.class_of[at]])


def counts_of(table: Columns, at: Any) -> Array:
    """Input and output channels per group, positions, taps, strides and groups of convolutions; none depends on the
    batch."""
    traits, of_class = _traits(table.classes), table.class_of[at]
    groups, rows, columns, depth = np.maximum(table.shape[:, at], 1.0)
    _, positions, taps, stride = np.maximum(table.convolution[:, at], 1.0)
    forward, dgrad = traits.forward[of_class], traits.dgrad[of_class]
    inputs = np.where(forward, depth / taps, np.where(dgrad, columns, columns / taps))
    outputs = np.where(forward, columns, np.where(dgrad, np.maximum(depth / taps * stride, 1.0), rows))
    return np.array([inputs, outputs, positions, taps, stride, groups])


def _coordinates(counts: Array, whole: NDArray[np.intp]) -> Array:
    inputs, outputs, positions, taps, stride, groups = np.maximum(counts, 1.0)
    logs = np.log2(np.array([inputs, outputs, taps, positions, stride, groups]))
    depthwise = (np.round(inputs) == 1) & (groups > 1)
    channels = np.where(depthwise, groups, [inputs, outputs])
    return np.concatenate([logs, _doublings(channels, np.where(depthwise, WHOLE_DEPTHWISE, whole))])


def _doublings(channels: Array, whole: NDArray[np.intp]) -> Array:
    """How often numbers of channels must be doubled to be multiples of `whole`, at most three times."""
    count = np.round(channels)
    found = [count * factor % whole != 0 for factor in (1, 2, 4)]
    return np.where(count < 8, 0.0, np.sum(found, axis=0, dtype=np.float64))


@dataclass(frozen=True, slots=True, eq=False)
class KernelFactors:
    """The fitted terms: logs by "part:term" and "part:label@axis" (a value per knot)."""

    constants: Mapping[str, float]
    curves: Mapping[str, Sequence[float]]

    @classmethod
    def shipped(cls) -> KernelFactors:
        """The factors that ship with the package."""
        return _shipped()

    def vector(self, of: KernelClass) -> Array:
        """All numbers of a class: constant and curves of compute, the same of memory, the constant of helpers."""
        result = _shared_vector(self, of.family, of.variant, of.dtype_class, of.arch).copy()
        for i, part in enumerate(PARTS):
            for name in _device_terms(part, of):
                result[i * _WIDTH] += self.constants.get(f"{part}:{name}", 0.0)
        return result


@bounded(budget=STRUCTURES)
def _shared_vector(factors: KernelFactors, family: str, variant: str, dtype_class: str, arch: str) -> Array:
    """`KernelFactors.vector` of a class without the terms of its device."""
    of = KernelClass(family, variant, dtype_class, arch, "")
    result = np.zeros(SIZE)
    if not factors.constants and not factors.curves:
        return result
    for i, part in enumerate(PARTS):
        start = i * _WIDTH
        result[start] = sum(factors.constants.get(f"{part}:{name}", 0.0) for name in _shared_terms(part, of))
        for label, axis, _ in curves(part, of):
            values = factors.curves.get(f"{part}:{label}@{axis}")
            if values is not None:
                at = start + 1 + _STARTS[axis]
                result[at : at + len(values)] += values
    return result


NO_FACTORS = KernelFactors({}, {})
"""Kernels as their tables time them."""


@cache
def _shipped() -> KernelFactors:
    name = f"timing/data/{FILE}"
    if not is_shipped(name):
        return NO_FACTORS
    content = json.loads(shipped_file(name).read_bytes())
    return KernelFactors(content["constants"], content["curves"])


class ClassFactors:
    """The numbers of the classes of a table on several devices. Compared by identity."""

    __slots__ = ("flat", "vectors")

    def __init__(self, vectors: Array) -> None:
        """`vectors` (devices x classes x SIZE) of `KernelFactors.vector`."""
        self.vectors = vectors
        self.flat = vectors.reshape(len(vectors), -1)


def multipliers(factors: ClassFactors, table: Columns) -> tuple[Array, Array, Array]:
    """Factors on compute, memory and helper time, devices x works."""
    convolutions = np.flatnonzero(_traits(table.classes).convolves[table.class_of])
    # Kept by all that decides them, and the batch does not.
    return _multipliers(factors, table.classes, table.class_of.tobytes(), counts_of(table, convolutions).tobytes())


@bounded(ClassFactors)
def _multipliers(
    factors: ClassFactors, classes: tuple[tuple[str, str, str, str], ...], class_of: bytes, counts: bytes
) -> tuple[Array, Array, Array]:
    """As `multipliers`; `class_of` and `counts` (of the convolutions): the bytes of these arrays."""
    at, traits = np.frombuffer(class_of, dtype=np.intp), _traits(classes)
    # by part: what a factor is made of lies together
    logs = np.moveaxis(factors.vectors, 2, 0).take(_CONSTANTS, axis=0).take(at, axis=2)
    convolves = traits.convolves[at]
    if len(i := np.flatnonzero(convolves)) and factors.flat.any():
        of_class = at[i]
        of_each = np.frombuffer(counts).reshape(-1, len(i))
        below, shares = KNOTS.places(_coordinates(of_each, traits.whole[of_class]))
        below = below + _FIRST_KNOTS + of_class * SIZE
        rest = 1.0 - shares
        for part in (0, 1):
            first = below + part * _WIDTH
            curved = factors.flat.take(first, axis=1) * rest + factors.flat.take(first + 1, axis=1) * shares
            total = logs[part].take(i, axis=1)
            for each in np.moveaxis(curved, 1, 0):  # in order, as they were fitted
                total += each
            logs[part, :, i] = total.T
    logs[0, :, ~convolves] = logs[1, :, ~convolves]
    np.clip(logs, -LARGEST, LARGEST, out=logs)
    compute, memory, helpers = np.exp(logs)
    return compute, memory, helpers
