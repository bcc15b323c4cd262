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

from precision_time.bounded_cache import bounded
from precision_time.timing.by_element import ELEMENTS_PER_SM_S, is_by_element
from precision_time.timing.corrections import Correction, Grid
from precision_time.timing.curves import (
    INDEX,
    Array,
    attention_seconds,
    combine,
    elements_of_products,
    matmul_seconds,
    scores_of_tiles,
)
from precision_time.timing.few_channels import STEPS_PER_SM_S, steps
from precision_time.timing.kernel_factors import SIZE, ClassFactors, KernelFactors, counts_of, multipliers
from precision_time.timing.parameters import SOURCES, ParameterBook, Resolved
from precision_time.timing.work import (
    CONV_FEW,
    CONVOLUTIONS,
    FUSABLE_FAMILIES,
    MATMUL,
    MATRIX_MATH,
    MEMORY_FAMILIES,
    MULTIPLYING,
    RIVALLED,
    TILED_CONVOLUTIONS,
    UNALIGNED_ELEMENTS_PER_SM_S,
    VECTOR_CONVOLUTIONS,
    WINOGRAD,
    Work,
    elements_together,
    scores_per_cycle,
)
from precision_time.timing.work_table import WorkTable

__all__ = ["SOURCES", "Device", "KernelModel", "KernelTimes", "WorkTable"]

# Share of peak bandwidth of NCHW transposes on tensor cores: assumed; whole steps scale it (HELPERS).
TRANSPOSE_SHARE = 0.85
# Least share of peak bandwidth of batches of half and fp8 products, which stream small matrices: assumed, near those of
# pointwise kernels. The fitted share is that of large products, whose tiles are read again.
STREAMED_SHARE = 0.88
# Of devices that publish none: as H100. Only wave quantisation and kernels that multiprocessors limit depend on it.
DEFAULT_SM_COUNT = 132
DEFAULT_BOOST_HZ = 1.98e9
# Of devices that publish none: the largest last-level cache of the catalog, so that no floor is too high.
DEFAULT_CACHE_BYTES = 128 << 20
# Batch norm reads its input once for the statistics and again to normalise; what fits on chip is read once.
LEAST_PASSES = {("batch_norm", "fwd"): 2 / 3, ("batch_norm", "bwd"): 3 / 5}
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
    def boost_hz(self) -> float | None: ...
    @property
    def clock_headroom(self) -> float: ...
    @property
    def matrix_headroom(self) -> float: ...
    @property
    def ecc_share(self) -> float: ...
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
    """One entry per work, or a row of them for each of several devices: seconds, the floors under them, index into
    SOURCES, spread of log(seconds).

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

    def of(self, part: Any) -> KernelTimes:
        """The times at an index of all arrays, as views."""
        return KernelTimes(*(getattr(self, name)[part] for name in KernelTimes.__slots__))


class KernelModel:
    """Seconds of works on a device.

    `scales` maps "family|arch|dtype_class" (a part may be "*", the family may carry its variant:
    "conv.wgrad") to a factor on the time above the launch, the most specific key wins, and "*|arch|*" multiplies;
    default: the shipped whole-step factors. `factors` are those on compute, memory and helper time; default: the
    shipped ones where `scales` are, else none. `fitted` replaces the shipped parameters (used by the fit itself for
    held-out evaluation).
    """

    def __init__(
        self,
        scales: Mapping[str, float] | None = None,
        fitted: Mapping[str, Any] | None = None,
        factors: KernelFactors | None = None,
    ) -> None:
        self._book = ParameterBook(fitted=fitted, scales=scales, factors=factors)

    def tables(self, gpu: Device) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """`ParameterBook.tables` of a device."""
        return self._book.tables(gpu.kernel_name, gpu.arch)

    @property
    def known_devices(self) -> tuple[str, ...]:
        """Devices of the kernel tables, as these call them."""
        return self._book.gpus()

    def seconds(self, works: Sequence[Work] | WorkTable, gpu: Device) -> KernelTimes:
        """Seconds of works on one device."""
        table = works if isinstance(works, WorkTable) else WorkTable.from_works(works)
        return self.seconds_on(table, (gpu,)).of(0)

    def seconds_on(self, works: WorkTable, gpus: Sequence[Device]) -> KernelTimes:
        """Seconds of works on several devices, found together: arrays hold a row for each device."""
        known = _classes_on(self._book, works.classes, tuple(gpus), len(works.rivals) > 0)
        at, bandwidth = works.class_of, known.bandwidth
        parts = _parts(works, known)
        by_compute, by_memory, by_helpers = multipliers(known.factors, works)
        busy = parts.busy(by_compute, by_memory) * known.scale[:, at]
        helpers = parts.helpers * by_helpers * known.helper_scale[:, at]
        # A kernel of FUSABLE_FAMILIES can be the epilogue of its producer or the prologue of its consumer, so only its
        # operations count. Of the others' traffic, what the cache holds of the operands before the kernel and of the
        # results after it need not pass through memory.
        passing = np.where(known.apart[at], np.maximum(works.bytes - known.cached, 0.0), 0.0)
        return KernelTimes(
            np.maximum(busy + helpers, parts.floor) + parts.start,
            parts.floor,
            np.maximum(parts.operations, passing / bandwidth),
            known.source[:, at],
            known.log_spread[:, at],
            helpers,
            known.of_device[:, at],
        )

    def parts(self, works: WorkTable, gpu: Device) -> KernelParts:
        """What the seconds of works on a device are made of, without any factor from whole steps."""
        return _parts(works, _classes_on(self._book, works.classes, (gpu,), len(works.rivals) > 0))


@dataclass(frozen=True, slots=True, eq=False)
class KernelParts:
    """Seconds of the parts of kernels as their tables time them, devices x works.

    rival       of a cheaper algorithm that the library may choose; infinite where there is none
    correction  the factor of the measured deviation from the curve
    power       how compute and memory overlap
    operations  the compute floor; `floor`: both floors
    log_spread  standard deviation of log(seconds)
    """

    compute: Array
    memory: Array
    rival: Array
    correction: Array
    power: Array
    helpers: Array
    start: Array
    operations: Array
    floor: Array
    log_spread: Array

    def busy(self, by_compute: Array | float = 1.0, by_memory: Array | float = 1.0) -> Array:
        """Seconds between launch and end without helpers, with factors on compute and memory."""
        direct = combine(self.compute * by_compute, self.memory * by_memory, self.power)
        result: Array = np.minimum(direct, self.rival * by_compute) * self.correction
        return result


def _parts(works: WorkTable, known: _Classes) -> KernelParts:
    at, bandwidth, sms = works.class_of, known.bandwidth, known.sms
    peaks = known.peaks[:, at]
    share, start, power = (known.values[name].take(at, axis=1) for name in (_MEMORY, _START, _POWER))
    compute = works.flops / known.units[:, at]
    if len(i := works.tiled):
        products = matmul_seconds(works.shape[:, i], known.values[:, :, at[i]], peaks[:, i], sms, bandwidth)
        products = np.maximum(products, elements_of_products(works.shape[:, i]) / known.unaligned[:, at[i]])
        compute[:, i] = works.repeats[i] * products
    if known.few.any() and len(i := np.flatnonzero(known.few[at])):
        _, outputs, positions, taps, *_ = counts_of(works, i)
        of_sms = steps(works.convolution[0, i], positions, taps, outputs) / (sms * STEPS_PER_SM_S)
        compute[:, i] = np.maximum(compute[:, i], of_sms * known.waits)
    if len(i := works.attention):
        compute[:, i] = attention_seconds(
            works.shape[:, i], works.flops[i], known.values[:, :, at[i]], peaks[:, i], sms
        )
        compute[:, i] = np.maximum(compute[:, i], scores_of_tiles(works.shape[:, i]) / known.scores[:, at[i]])
    if known.streamed.any():
        share = np.where(known.streamed[at] & (works.shape[0] > 1.0), np.maximum(share, STREAMED_SHARE), share)
    memory = works.bytes / (bandwidth * share) + works.latency_s * known.waits
    rival, correction = np.full_like(compute, np.inf), np.ones_like(compute)
    if len(i := works.rivals):
        q = known.rivals[:, :, at[i]]
        products = matmul_seconds(works.rival_shape, q, peaks[:, i], sms, bandwidth)
        rival[:, i] = products + works.rival_bytes / (bandwidth * q[_MEMORY])
    if known.corrections:
        busy = np.minimum(combine(compute, memory, power), rival)
        for number, first, places, columns in _corrected(known, at.tobytes(), works.covered.tobytes()):
            grid, tables, _ = known.corrections[number]
            found = grid.log2_factor(tables, first, busy.take(places), works, columns)
            correction.put(places, np.exp2(found))
    operations = works.floor_flops / (peaks * known.headroom)
    return KernelParts(
        compute,
        memory,
        rival,
        correction,
        power,
        works.serial_bytes / (bandwidth * TRANSPOSE_SHARE),
        works.launches * start,
        operations,
        np.maximum(operations, works.bytes * known.least_passes[at] / bandwidth),
        known.log_spread[:, at],
    )


Places = NDArray[np.intp]


@bounded()
def _corrected(known: _Classes, class_of: bytes, covered: bytes) -> list[tuple[int, Places, Places, Places]]:
    """The number of each of `known.corrections` that applies; of every work it corrects on every device, where the
    tables begin, the place among devices x works, and the column. `class_of` and `covered`: the bytes of these columns
    of the table."""
    at, of_curve = np.frombuffer(class_of, dtype=np.intp), np.frombuffer(covered, dtype=np.bool_)
    found = []
    for number, (_, _, starts) in enumerate(known.corrections):
        first = starts[:, at]
        places = np.flatnonzero((first >= 0) & of_curve)
        if len(places):
            found.append((number, first.take(places), places, places % len(at)))
    return found


@dataclass(frozen=True, slots=True, eq=False)
class _Classes:
    """What the classes of works of a table are timed with, a row for each device and a column for each class.

    units        FLOP/s of the units that the class runs on
    unaligned    elements that products load and store in a second, where they do so fewer than 16 bytes at a time
    waits        by device: 1 where thread blocks wait for their loads and have steps of their own (GPUs), else 0
    headroom     by device: highest clock over that of its peaks
    least_passes by class: share of its bytes that a kernel which keeps its data on chip moves
    scores       of attention that a device computes in a second, where that limits it
    values       parameters; `rivals`: those of Winograd, for the classes that may have works with such an alternative
    factors      `KernelFactors.vector` of all devices and classes
    streamed     by class: whether it is of products whose tables time single matrices
    few          by class: whether it is of convolutions of few channels
    apart        by class: whether its operands pass through memory in any implementation
    cached       by device: bytes that its cache holds before and after a kernel
    corrections  measured deviations: their knots, the tables of all devices that have some, and where those of the
                 device of each class begin (-1: it has none)
    """

    bandwidth: Array
    waits: Array
    sms: Array
    cached: Array
    peaks: Array
    headroom: Array
    least_passes: Array
    units: Array
    unaligned: Array
    scores: Array
    values: Array
    rivals: Array
    factors: ClassFactors
    scale: Array
    helper_scale: Array
    source: NDArray[np.int8]
    log_spread: Array
    of_device: NDArray[np.bool_]
    streamed: NDArray[np.bool_]
    few: NDArray[np.bool_]
    apart: NDArray[np.bool_]
    corrections: list[tuple[Grid, Array, NDArray[np.intp]]]


@bounded(Grid)
def _classes_on(
    book: ParameterBook, classes: tuple[tuple[str, str, str, str], ...], gpus: tuple[Device, ...], rivals: bool
) -> _Classes:
    """The same for all sizes of a model."""
    shape = len(gpus), len(classes)
    units_of = {(math, kind) for _, _, math, kind in classes}
    peaks = [{unit: compute_peak(gpu, *unit) for unit in units_of} for gpu in gpus]

    def resolved(of_classes: Iterable[tuple[str, str, str, str]]) -> list[Resolved]:
        found, of_classes = [], tuple(of_classes)
        for gpu, of_unit in zip(gpus, peaks, strict=True):
            name, arch, watts = gpu.kernel_name, gpu.arch, gpu.tdp_w
            for family, variant, math, kind in of_classes:
                flops_per_w = of_unit[math, kind] / watts if watts else 0.0
                found.append(book.resolve(family, variant, kind, name, arch, flops_per_w))
        return found

    headroom = np.array([[gpu.clock_headroom] for gpu in gpus])
    matrix_headroom = np.array([[gpu.matrix_headroom] for gpu in gpus])
    ecc = np.array([[gpu.ecc_share] for gpu in gpus])

    def parameters(of_classes: Sequence[Resolved], clocks: Array, streams: NDArray[np.bool_]) -> Array:
        """Those of another device at the clocks of this one, over that of its peaks; and of classes that stream
        (`streams`), at the share of bandwidth that error correction leaves it."""
        sets = np.array([r.values for r in of_classes]).T.reshape(len(INDEX), len(gpus), -1)
        borrowed = ~np.array([r.of_device for r in of_classes], dtype=np.bool_).reshape(len(gpus), -1)
        fitted_at = np.array([r.ecc_share for r in of_classes]).reshape(len(gpus), -1)
        sets[:5] *= np.where(borrowed, clocks, 1.0)
        sets[_MEMORY] = np.minimum(sets[_MEMORY] * np.where(borrowed & streams, ecc / fitted_at, 1.0), 1.0)
        return sets

    found = resolved(classes)
    tiled = np.array([family in TILED_CONVOLUTIONS for family, *_ in classes], dtype=np.bool_)
    on_matrix_units = np.array([c[0] in MULTIPLYING and c[2] in MATRIX_MATH for c in classes], dtype=np.bool_)
    streams = np.array([family in MEMORY_FAMILIES for family, *_ in classes], dtype=np.bool_)
    clocks = np.where(on_matrix_units, matrix_headroom, np.where(tiled, headroom, 1.0))
    values = of_rivals = parameters(found, clocks, streams)
    able = [i for i, (family, _, math, _) in enumerate(classes) if family in CONVOLUTIONS and math in RIVALLED]
    if rivals and able:
        of_rivals = values.copy()
        winograd = resolved((WINOGRAD, *classes[i][1:]) for i in able)
        of_rivals[:, :, able] = parameters(winograd, headroom, np.zeros(len(able), dtype=np.bool_))
    of_class = np.array([[of_unit[math, kind] for _, _, math, kind in classes] for of_unit in peaks]).reshape(shape)
    vector = np.array([[gpu.peaks.get("fp32") or np.inf] for gpu in gpus])
    direct = np.array([family in VECTOR_CONVOLUTIONS for family, *_ in classes], dtype=np.bool_)
    sms = np.array([[float(gpu.sm_count or DEFAULT_SM_COUNT)] for gpu in gpus])
    clock = np.array([[gpu.boost_hz or DEFAULT_BOOST_HZ] for gpu in gpus])
    units = np.where(direct, np.minimum(of_class, vector) * values[0], of_class)
    by_element = np.array([is_by_element(family, variant) for family, variant, *_ in classes], dtype=np.bool_)
    on_cpu = np.array([[gpu.arch == "cpu"] for gpu in gpus])
    units = np.where(by_element & ~on_cpu, sms * ELEMENTS_PER_SM_S, units)
    together = np.array([elements_together(family, variant, kind) for family, variant, _, kind in classes])
    scores = np.array([scores_per_cycle(family, variant) for family, variant, *_ in classes])
    usual = np.isinf(together) & np.isinf(scores)  # the tables that corrections come from measure no others

    def table(column: Iterable[Any], dtype: Any = np.float64) -> Any:
        return np.array(list(column), dtype=dtype).reshape(shape)

    return _Classes(
        bandwidth=np.array([[float(gpu.memory_bytes_per_s)] for gpu in gpus]),
        waits=np.where(on_cpu, 0.0, 1.0),
        sms=sms,
        cached=np.array([[2.0 * (gpu.l2_bytes or DEFAULT_CACHE_BYTES)] for gpu in gpus]),
        peaks=of_class,
        headroom=headroom,
        least_passes=np.array(
            [LEAST_PASSES.get((family, variant.partition(".")[0]), 1.0) for family, variant, *_ in classes]
        ),
        units=units,
        unaligned=np.where(on_cpu, np.inf, sms * UNALIGNED_ELEMENTS_PER_SM_S * together),
        scores=np.where(on_cpu, np.inf, sms * clock * scores),
        values=values,
        rivals=of_rivals,
        factors=ClassFactors(np.array([r.factors for r in found]).reshape(*shape, SIZE)),
        scale=table(r.scale for r in found),
        helper_scale=table(r.helper_scale for r in found),
        source=table((r.source for r in found), np.int8),
        log_spread=table(r.log_spread for r in found),
        of_device=table((r.of_device for r in found), np.bool_),
        streamed=np.array(
            [family == MATMUL and kind in ("half", "fp8") for family, _, _, kind in classes], dtype=np.bool_
        ),
        few=np.array([family == CONV_FEW for family, *_ in classes], dtype=np.bool_),
        apart=np.array([family not in FUSABLE_FAMILIES for family, *_ in classes], dtype=np.bool_),
        corrections=_corrections(
            [r.correction if whole else None for r, whole in zip(found, np.tile(usual, len(gpus)), strict=True)], shape
        ),
    )


def _corrections(
    of_classes: Sequence[Correction | None], shape: tuple[int, int]
) -> list[tuple[Grid, Array, NDArray[np.intp]]]:
    """Corrections with the same knots together; `of_classes`: of all devices' classes, device by device."""
    starts: dict[Grid, dict[Correction, int]] = {}
    for correction in of_classes:
        if correction is not None:
            of_grid = starts.setdefault(correction.grid, {})
            of_grid.setdefault(correction, len(of_grid) * len(correction.flat))
    return [
        (
            grid,
            np.concatenate([correction.flat for correction in of_grid]),
            np.array([-1 if c is None else of_grid.get(c, -1) for c in of_classes], dtype=np.intp).reshape(shape),
        )
        for grid, of_grid in starts.items()
    ]
