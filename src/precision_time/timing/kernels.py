"""Seconds of kernels on a device: time = max(compute floor, memory floor) / utilisation + launch.

What is learned is the utilisation, which lies in (0, 1]; no kernel is ever timed below its physical floor.
`WorkTable` holds many works as arrays and is built once per program; `KernelModel.seconds` gives their seconds.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from precision_time.timing.corrections import covers
from precision_time.timing.curves import INDEX, Array, attention_seconds, combine, matmul_seconds
from precision_time.timing.parameters import SOURCES, ParameterBook
from precision_time.timing.work import (
    ATTENTION,
    CONV_DEPTHWISE,
    CONVOLUTION_FEATURES,
    FUSABLE_FAMILIES,
    TILE_FAMILIES,
    WINOGRAD,
    Work,
)

__all__ = ["SOURCES", "Device", "KernelModel", "KernelTimes", "WorkTable"]

# Share of peak bandwidth of NCHW transposes on tensor cores: assumed; whole steps scale it (HELPERS).
TRANSPOSE_SHARE = 0.85
# Of devices that publish none: as H100. Only wave quantisation depends on it.
DEFAULT_SM_COUNT = 132
# Of devices that publish none: the largest last-level cache of the catalog, so that no floor is too high.
DEFAULT_CACHE_BYTES = 128 << 20
DETAILS = ("cols", "causal")
_POWER, _MEMORY, _START = INDEX["power"], INDEX["memory"], INDEX["start"]


class Device(Protocol):
    """The properties of a GPU that kernel times depend on (`hardware.gpu.Gpu` has them)."""

    @property
    def kernel_name(self) -> str: ...
    @property
    def arch(self) -> str: ...
    @property
    def sm_count(self) -> int | None: ...
    @property
    def l2_bytes(self) -> int | None: ...
    @property
    def memory_bytes_per_s(self) -> float: ...
    @property
    def tdp_w(self) -> float | None: ...
    @property
    def peaks(self) -> Mapping[str, float]: ...
    def peak(self, math: str) -> float: ...


def compute_peak(gpu: Device, math: str, dtype_class: str) -> float:
    """Dense FLOP/s of the fastest unit that `math` may use on `gpu`; a missing one is a MissingPeakError.

    Matrix units serve fp64 and fp32 where the device has them for it. Half precision without matrix units
    (Pascal) runs on the vector units. Vector work below fp64 is computed in fp32.
    """
    peaks = gpu.peaks
    if math == "vector":
        name = "fp64" if dtype_class == "fp64" else "fp32"
        return peaks.get(name) or max(peaks.values(), default=0.0) or gpu.peak(name)
    if math in ("fp64", "fp32"):
        return max(gpu.peak(math), peaks.get(f"{math}_matrix", 0.0))
    if math == "fp16" and "fp16" not in peaks and "fp16_vector" in peaks:
        return max(peaks["fp16_vector"], peaks.get("fp32", 0.0))
    return gpu.peak(math)


@dataclass(frozen=True, slots=True)
class KernelTimes:
    """One entry per work: seconds, the floors under them, index into SOURCES, spread of log(seconds).

    floor_seconds  of the kernel alone: its operations at peak, its operands once through memory
    least_seconds  of its part of a step in any implementation: fused with its neighbours, operands in the cache
    """

    seconds: Array
    floor_seconds: Array
    least_seconds: Array
    source: NDArray[np.int8]
    log_spread: Array
    helper_seconds: Array
    """Of `seconds`: what helper kernels take (`Work.serial_bytes`)."""
    of_device: NDArray[np.bool_]
    """Whether the curve of each work was fitted on the very device."""

    @property
    def utilisation(self) -> Array:
        """Floor over time, launch included; in [0, 1]."""
        result: Array = self.floor_seconds / np.maximum(self.seconds, 1e-30)
        return result


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
    """The operator of each work, where known (see `operators.operator_key`); measured points are keyed by operator."""

    def __len__(self) -> int:
        return len(self.class_of)

    @classmethod
    def from_works(cls, works: Sequence[Work], operators: Sequence[str] = ()) -> WorkTable:
        keys: dict[tuple[str, str, str, str], int] = {}
        class_of = np.array([keys.setdefault(w.key, len(keys)) for w in works], dtype=np.intp)
        rivals = [i for i, w in enumerate(works) if w.alternative is not None]
        features = [dict(w.features) for w in works]

        def column(values: Iterable[float]) -> Array:
            return np.fromiter(values, dtype=np.float64)

        def shapes(rows: Sequence[Sequence[float] | None]) -> Array:
            return np.array(rows, dtype=np.float64).reshape(len(rows), 4).T.copy()

        def positions(families: frozenset[str]) -> NDArray[np.intp]:
            return np.array([i for i, w in enumerate(works) if w.family in families], dtype=np.intp)

        return cls(
            classes=tuple(keys),
            class_of=class_of,
            shape=shapes([w.shape for w in works]),
            flops=column(w.flops for w in works),
            floor_flops=column(w.floor_flops for w in works),
            bytes=column(w.bytes_read + w.bytes_written for w in works),
            serial_bytes=column(w.serial_bytes for w in works),
            launches=column(w.launches for w in works),
            repeats=column(w.repeats for w in works),
            tiled=positions(TILE_FAMILIES),
            attention=positions(frozenset({ATTENTION})),
            rivals=np.array(rivals, dtype=np.intp),
            rival_shape=shapes([works[i].alternative for i in rivals]),
            rival_bytes=column(works[i].alternative_bytes for i in rivals),
            convolution=np.array(
                [[feature_values.get(name, 1.0) for feature_values in features] for name in CONVOLUTION_FEATURES],
                dtype=np.float64,
            ),
            details=np.array(
                [[feature_values.get(name, 0.0) for feature_values in features] for name in DETAILS], dtype=np.float64
            ),
            covered=np.array(
                [
                    covers(w.family, w.variant, feature_values)
                    for w, feature_values in zip(works, features, strict=True)
                ],
                dtype=np.bool_,
            ),
            operators=tuple(operators),
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
            operators=tuple(name for table in tables for name in table.operators),
        )


_COLUMNS = (
    "shape", "flops", "floor_flops", "bytes", "serial_bytes", "launches", "repeats", "rival_shape", "rival_bytes",
    "convolution", "details", "covered",
)  # fmt: skip


class KernelModel:
    """Seconds of works on a device.

    `scales` maps "family|arch|dtype_class" (a part may be "*", the family may carry its variant:
    "conv.wgrad") to a factor on the time above the launch, the most specific key wins; default: the shipped
    whole-step factors. `fitted` replaces the shipped parameters (used by the fit itself for held-out
    evaluation).
    """

    def __init__(self, scales: Mapping[str, float] | None = None, fitted: Mapping[str, Any] | None = None) -> None:
        self._book = ParameterBook(fitted=fitted, scales=scales)

    def seconds(self, works: Sequence[Work] | WorkTable, gpu: Device) -> KernelTimes:
        table = works if isinstance(works, WorkTable) else WorkTable.from_works(works)
        if not len(table):
            none = np.zeros(0)
            return KernelTimes(none, none, none, np.zeros(0, np.int8), none, none, np.zeros(0, np.bool_))
        bandwidth = float(gpu.memory_bytes_per_s)
        sms = float(gpu.sm_count or DEFAULT_SM_COUNT)
        tops = [compute_peak(gpu, math, kind) for _, _, math, kind in table.classes]
        dense = [top / gpu.tdp_w if gpu.tdp_w else 0.0 for top in tops]
        classes = [
            self._book.resolve(f, v, kind, gpu.kernel_name, gpu.arch, d)
            for (f, v, _, kind), d in zip(table.classes, dense, strict=True)
        ]
        at = table.class_of
        peaks = np.array(tops)[at]
        p = np.array([r.values for r in classes]).T[:, at]

        direct = np.array([family == CONV_DEPTHWISE for family, *_ in table.classes])[at]
        compute = table.flops / np.where(direct, _direct_peak(gpu, peaks) * p[0], peaks)
        if len(i := table.tiled):
            compute[i] = table.repeats[i] * matmul_seconds(table.shape[:, i], p[:, i], peaks[i], sms, bandwidth)
        if len(i := table.attention):
            compute[i] = attention_seconds(table.shape[:, i], table.flops[i], p[:, i], peaks[i], sms)
        busy = combine(compute, table.bytes / (bandwidth * p[_MEMORY]), p[_POWER])
        helpers = table.serial_bytes / (bandwidth * TRANSPOSE_SHARE)
        if len(i := table.rivals):
            rival = [
                self._book.resolve(WINOGRAD, v, c, gpu.kernel_name, gpu.arch, d)
                for (_, v, _, c), d in zip(table.classes, dense, strict=True)
            ]
            q = np.array([r.values for r in rival]).T[:, at[i]]
            products = matmul_seconds(table.rival_shape, q, peaks[i], sms, bandwidth)
            busy[i] = np.minimum(busy[i], products + table.rival_bytes / (bandwidth * q[_MEMORY]))

        for number, resolved in enumerate(classes):
            if resolved.correction is not None and len(i := np.flatnonzero((at == number) & table.covered)):
                busy[i] *= np.exp2(resolved.correction.log2_factor(busy[i], table, i))
        floor = np.maximum(table.floor_flops / peaks, table.bytes / bandwidth)
        busy *= np.array([r.scale for r in classes])[at]
        helpers *= np.array([r.helper_scale for r in classes])[at]
        return KernelTimes(
            np.maximum(busy + helpers, floor) + table.launches * p[_START],
            floor,
            least_seconds(table, gpu, peaks),
            np.array([r.source for r in classes], dtype=np.int8)[at],
            np.array([r.log_spread for r in classes])[at],
            helpers,
            np.array([r.of_device for r in classes])[at],
        )


def least_seconds(table: WorkTable, gpu: Device, peaks: Array) -> Array:
    """Seconds that each work adds to a step at least, in any implementation; `peaks`: FLOP/s of each work.

    A kernel of FUSABLE_FAMILIES can be the epilogue of its producer or the prologue of its consumer, so only its
    operations count. Of the others' traffic, what the cache holds of the operands before the kernel and of the results
    after it need not pass through memory.
    """
    cached = 2.0 * (gpu.l2_bytes or DEFAULT_CACHE_BYTES)
    apart = np.array([family not in FUSABLE_FAMILIES for family, *_ in table.classes])[table.class_of]
    traffic = np.where(apart, np.maximum(table.bytes - cached, 0.0), 0.0)
    return np.maximum(table.floor_flops / peaks, traffic / gpu.memory_bytes_per_s)


def _direct_peak(gpu: Device, peaks: Array) -> Array:
    """Depthwise kernels run on the vector units, whatever the dtype of their operands."""
    vector = gpu.peaks.get("fp32")
    result: Array = np.minimum(peaks, vector) if vector else peaks
    return result
