"""Seconds of kernels on a device: time = max(compute floor, memory floor) / utilisation + launch.

What is learned is the utilisation, which lies in (0, 1]; no kernel is ever timed below its physical floor.
`WorkTable` holds many works as arrays and is built once per program; `KernelModel.seconds` gives their seconds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from precision_time.timing.corrections import covers
from precision_time.timing.curves import INDEX, Array, attention_seconds, combine, matmul_seconds
from precision_time.timing.parameters import SOURCES, ParameterBook, Resolved
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
        draft, numbers = TableDraft.of(works, operators)
        return draft.table(np.array(numbers, dtype=np.float64))

    def repeated(self, times: int) -> WorkTable:
        """The works so many times in a row, each time in classes of their own."""
        if times == 1:
            return self
        turn = np.arange(times)[:, None]

        def positions(values: NDArray[np.intp], count: int) -> Any:
            return (values + turn * count).ravel()

        columns: dict[str, Any] = {name: np.tile(getattr(self, name), times) for name in _COLUMNS}

        return WorkTable(
            classes=self.classes * times,
            class_of=positions(self.class_of, len(self.classes)),
            **{name: positions(getattr(self, name), len(self)) for name in ("tiled", "attention", "rivals")},
            **columns,
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


_NUMBERS = ("flops", "floor_flops", "bytes", "serial_bytes", "launches", "repeats")
"""Columns of a table that are numbers of a `Work`."""
_ROWS = 4 + len(_NUMBERS) + len(CONVOLUTION_FEATURES) + len(DETAILS)


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
        """Seconds of works on one device."""
        table = works if isinstance(works, WorkTable) else WorkTable.from_works(works)
        return self.seconds_on(table, (gpu,))[0]

    def seconds_on(self, works: WorkTable, gpus: Sequence[Device]) -> list[KernelTimes]:
        """Seconds of works on each of several devices, found together: arrays hold the works device by device."""
        count = len(works)
        if not count:
            none = np.zeros(0)
            return [KernelTimes(none, none, none, np.zeros(0, np.int8), none, none, np.zeros(0, np.bool_))] * len(gpus)
        table = works.repeated(len(gpus))
        bandwidth = np.repeat([float(gpu.memory_bytes_per_s) for gpu in gpus], count)
        sms = np.repeat([float(gpu.sm_count or DEFAULT_SM_COUNT) for gpu in gpus], count)
        asked = [(gpu, key, compute_peak(gpu, key[2], key[3])) for gpu in gpus for key in works.classes]
        classes = [self._resolve(gpu, family, kind, top) for gpu, (family, *kind), top in asked]
        at = table.class_of
        peaks = np.array([top for *_, top in asked])[at]
        p = np.array([r.values for r in classes]).T[:, at]

        direct = np.array([family == CONV_DEPTHWISE for _, (family, *_), _ in asked])[at]
        compute = table.flops / np.where(direct, np.minimum(peaks, _vector_peaks(gpus, count)) * p[0], peaks)
        if len(i := table.tiled):
            products = matmul_seconds(table.shape[:, i], p[:, i], peaks[i], sms[i], bandwidth[i])
            compute[i] = table.repeats[i] * products
        if len(i := table.attention):
            compute[i] = attention_seconds(table.shape[:, i], table.flops[i], p[:, i], peaks[i], sms[i])
        busy = combine(compute, table.bytes / (bandwidth * p[_MEMORY]), p[_POWER])
        helpers = table.serial_bytes / (bandwidth * TRANSPOSE_SHARE)
        if len(i := table.rivals):
            rival = [self._resolve(gpu, WINOGRAD, kind, top) for gpu, (_, *kind), top in asked]
            q = np.array([r.values for r in rival]).T[:, at[i]]
            products = matmul_seconds(table.rival_shape, q, peaks[i], sms[i], bandwidth[i])
            busy[i] = np.minimum(busy[i], products + table.rival_bytes / (bandwidth[i] * q[_MEMORY]))
        _correct(busy, table, classes)
        floor = np.maximum(table.floor_flops / peaks, table.bytes / bandwidth)
        busy *= np.array([r.scale for r in classes])[at]
        helpers *= np.array([r.helper_scale for r in classes])[at]
        columns = (
            np.maximum(busy + helpers, floor) + table.launches * p[_START],
            floor,
            least_seconds(table, gpus, peaks, bandwidth),
            np.array([r.source for r in classes], dtype=np.int8)[at],
            np.array([r.log_spread for r in classes])[at],
            helpers,
            np.array([r.of_device for r in classes])[at],
        )
        return [KernelTimes(*rows) for rows in zip(*(c.reshape(len(gpus), count) for c in columns), strict=True)]

    def _resolve(self, gpu: Device, family: str, kind: Sequence[str], top: float) -> Resolved:
        """Parameters of a class of work. `kind`: its variant, arithmetic and dtype class; `top`: FLOP/s of its unit."""
        variant, _, dtype_class = kind
        dense = top / gpu.tdp_w if gpu.tdp_w else 0.0
        return self._book.resolve(family, variant, dtype_class, gpu.kernel_name, gpu.arch, dense)


def _correct(busy: Array, table: WorkTable, classes: Sequence[Resolved]) -> None:
    """Multiplies busy seconds by the measured deviations from their curves; classes with one correction at a time."""
    corrections = {id(r.correction): r.correction for r in classes if r.correction is not None}
    of_class = np.array([id(r.correction) for r in classes], dtype=np.int64)[table.class_of]
    for number, correction in corrections.items():
        if len(i := np.flatnonzero((of_class == number) & table.covered)):
            busy[i] *= np.exp2(correction.log2_factor(busy[i], table, i))


def least_seconds(table: WorkTable, gpus: Sequence[Device], peaks: Array, bandwidth: Array) -> Array:
    """Seconds that each work adds to a step at least, in any implementation; `peaks`, `bandwidth`: FLOP/s and bytes/s
    of each work.

    A kernel of FUSABLE_FAMILIES can be the epilogue of its producer or the prologue of its consumer, so only its
    operations count. Of the others' traffic, what the cache holds of the operands before the kernel and of the results
    after it need not pass through memory.
    """
    cached = np.repeat([2.0 * (gpu.l2_bytes or DEFAULT_CACHE_BYTES) for gpu in gpus], len(table) // len(gpus))
    apart = np.array([family not in FUSABLE_FAMILIES for family, *_ in table.classes])[table.class_of]
    traffic = np.where(apart, np.maximum(table.bytes - cached, 0.0), 0.0)
    return np.maximum(table.floor_flops / peaks, traffic / bandwidth)


def _vector_peaks(gpus: Sequence[Device], count: int) -> Array:
    """Depthwise kernels run on the vector units, whatever the dtype of their operands."""
    return np.repeat([gpu.peaks.get("fp32") or np.inf for gpu in gpus], count)
