"""Traced works as the fit of the factors on kernels needs them: seconds of their parts, and which terms act on them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from precision_time.fit.traced import Traced
from precision_time.hardware.gpu import Gpu
from precision_time.timing.curves import Array
from precision_time.timing.kernel_factors import (
    AXES,
    COMPUTE,
    KNOTS,
    MEMORY,
    NO_FACTORS,
    PARTS,
    KernelClass,
    curves,
    sizes,
    terms,
)
from precision_time.timing.kernels import KernelModel, KernelParts
from precision_time.timing.work import CONVOLUTIONS
from precision_time.timing.work_table import WorkTable

AT_ONCE = 50_000
"""Works that are timed together on all devices they are compared on."""


@dataclass(frozen=True, slots=True, eq=False)
class Design:
    """Slopes of the log factors of every work over the terms, by part; terms by name with their prior deviations."""

    names: list[str]
    widths: Array
    slopes: dict[str, Any]
    transposed: dict[str, Any]
    knots: dict[str, tuple[int, int]]
    """First column and number of knots of every curve."""


def parts_of(traced: Traced, gpus: Sequence[Any]) -> KernelParts:
    """The parts of every work on the GPU of its job."""
    model = KernelModel(scales={}, factors=NO_FACTORS)
    names = {gpu.name: gpu for gpu in gpus}
    device = np.array([gpu.name for gpu in gpus])[traced.of_case]
    result: dict[str, Array] = {}
    for name, gpu in names.items():
        at = np.flatnonzero(device == name)
        parts = model.parts(traced.table.chosen(at), gpu)
        for field in KernelParts.__dataclass_fields__:
            result.setdefault(field, np.zeros(len(device)))[at] = getattr(parts, field)[0]
    return KernelParts(**result)


@dataclass(frozen=True, slots=True, eq=False)
class OnDevice:
    """Works on one GPU: their places among all, and the table that `timing.device_order` times."""

    gpu: Gpu
    at: NDArray[np.intp]
    with_rivals: WorkTable
    rival_of: NDArray[np.intp]


def by_device(traced: Traced, gpus: Sequence[Gpu]) -> Iterator[OnDevice]:
    """The works by device, at most `AT_ONCE` together."""
    names = np.array([gpu.name for gpu in gpus])[traced.of_case]
    place = np.zeros(len(names), dtype=np.intp)
    for gpu in {gpu.name: gpu for gpu in gpus}.values():
        on_gpu = np.flatnonzero(names == gpu.name)
        for at in np.array_split(on_gpu, -(-len(on_gpu) // AT_ONCE)):
            wider = np.flatnonzero(np.isin(traced.wider_of, at))
            place[at] = np.arange(len(at))
            both = WorkTable.joined([traced.table.chosen(at), traced.wider.chosen(wider)])
            yield OnDevice(gpu, at, both, place[traced.wider_of[wider]])


def classes_of(traced: Traced, gpus: Sequence[Any]) -> tuple[list[KernelClass], NDArray[np.intp]]:
    """The distinct classes of works on their devices, and the class of every work."""
    pairs = traced.table.class_of * len(gpus) + traced.of_case
    found, position = np.unique(pairs, return_inverse=True)
    numbers: dict[KernelClass, int] = {}
    of_pair = []
    for pair in found.tolist():
        (family, variant, _, kind), gpu = traced.table.classes[pair // len(gpus)], gpus[pair % len(gpus)]
        key = KernelClass(family, variant, kind, gpu.arch, gpu.kernel_name)
        of_pair.append(numbers.setdefault(key, len(numbers)))
    return list(numbers), np.array(of_pair, dtype=np.intp)[position]


def design_of(traced: Traced, classes: Sequence[KernelClass], class_of: NDArray[np.intp]) -> Design:
    names: dict[str, int] = {}
    widths: list[float] = []
    knots: dict[str, tuple[int, int]] = {}

    def columns(name: str, width: float, count: int = 1) -> int:
        if name not in names:
            for i in range(count):
                names[name if count == 1 else f"{name}#{i}"] = len(widths)
                widths.append(width)
            if count > 1:
                names[name] = len(widths) - count
                knots[name] = len(widths) - count, count
        return names[name]

    entries: dict[str, list[tuple[Any, Any, Any]]] = {part: [] for part in PARTS}
    members: dict[int, NDArray[np.intp]] = {}
    order = np.argsort(class_of, kind="stable")
    bounds = np.searchsorted(class_of[order], np.arange(len(classes) + 1))
    for number, of in enumerate(classes):
        members[number] = at = order[bounds[number] : bounds[number + 1]]
        for part in PARTS:
            for name, width in terms(part, of).items():
                column = columns(f"{part}:{name}", width)
                entries[part].append((at, np.full(len(at), column), np.ones(len(at))))
    for number, of in enumerate(classes):
        if of.family not in CONVOLUTIONS:
            continue
        at = members[number]
        places = dict(zip(AXES, zip(*KNOTS.places(sizes(traced.table, at)), strict=True), strict=True))
        for part in (COMPUTE, MEMORY):
            for label, axis, width in curves(part, of):
                first = columns(f"{part}:{label}@{axis}", width, len(AXES[axis]))
                below, share = places[axis]
                entries[part] += [(at, first + below, 1.0 - share), (at, first + below + 1, share)]
    shape = len(class_of), len(widths)
    slopes = {part: _matrix(found, shape) for part, found in entries.items()}
    plain = sorted((column, name) for name, column in names.items() if name not in knots)
    transposed = {part: matrix.T.tocsr() for part, matrix in slopes.items()}
    return Design([name for _, name in plain], np.array(widths), slopes, transposed, knots)


def _matrix(entries: Sequence[tuple[Any, Any, Any]], shape: tuple[int, int]) -> Any:
    rows, columns, values = (np.concatenate(each) for each in zip(*entries, strict=True))
    return sparse.csr_matrix((values, (rows, columns)), shape=shape)
