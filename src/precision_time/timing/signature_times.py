"""Seconds of every distinct operator of a program: device and host time, each with its source and spread.

Equal operators (an `OpSignature`) are timed once, so the cost of timing does not depend on the number of layers or
micro-batches.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from precision_time.bounded_cache import bounded
from precision_time.capture.graph import OpSignature, TensorSpec
from precision_time.hardware.calibration import HostFigures
from precision_time.hardware.catalog import stronger_gpus, weaker_gpus
from precision_time.hardware.fabric import Cluster
from precision_time.hardware.gpu import Gpu
from precision_time.hardware.node import Node
from precision_time.layout.segment import OpSignatures, Segment
from precision_time.timing.calibrated import apply_calibration, contention_factors
from precision_time.timing.constants import StepConstants, shipped
from precision_time.timing.host import HostCosts, host_costs, measured_host_costs
from precision_time.timing.kernels import SOURCES, KernelTimes, WorkTable
from precision_time.timing.layout_costs import FrameworkOverhead
from precision_time.timing.operators import WorkOptions, operator_key, touched, works
from precision_time.timing.work import ATTENTION, CONV_DEPTHWISE, MEMORY_FAMILIES, TILE_FAMILIES, Work

Array = NDArray[np.float64]

FUSING = frozenset({"compile", "torchscript", "xla"})
"""Execution modes that change the kernels, so that their factor also applies to measured kernels."""


@dataclass(frozen=True, slots=True, eq=False)
class KindWorks:
    """The works of all operators of a program in one table; `owner[i]` is the operator that work i belongs to.

    `rivals` are the kernels of the next wider arithmetic (see `_WIDER`) that the library may choose instead, and does
    where they are faster: float32 (Winograd) on devices whose TF32 peak is not higher, or for products too small for
    matrix units. `rival_of[i]` is the work that rival i may replace. `launches` are those of the host: helper kernels
    (layout transposes) are launched within the library's call.
    """

    table: WorkTable
    owner: NDArray[np.intp]
    launches: NDArray[np.intp]
    nbytes: Array
    family: tuple[str, ...]
    unsupported: tuple[int, ...]
    is_cast: NDArray[np.bool_]
    rivals: WorkTable
    rival_of: NDArray[np.intp]


@dataclass(frozen=True, eq=False)
class TimedSignatures:
    """Seconds of a program's distinct operators on a cluster, one call each.

    `kind_s` is seconds per operator (the sum of its kernels), `floor_s` its least seconds in any implementation
    (`KernelTimes.least_seconds`); `source_s[operator, source]` splits them
    by source. `work_s` is seconds per work of the table, `work_spread` the standard deviation of log(work_s),
    `work_helpers` the share of `work_s` that helper kernels take (layout transposes).
    """

    kinds: OpSignatures
    works: KindWorks
    work_s: Array
    work_spread: Array
    work_helpers: Array
    kind_s: Array
    floor_s: Array
    compute_bound_s: Array
    launch_s: Array
    source_s: Array
    host: HostCosts
    host_kind_s: Array
    synchronous: bool
    """On a CPU the host runs kernels and collectives itself, so nothing overlaps."""
    host_source: str
    """Source of the host costs: "measured" on a calibrated host, else "assumed"."""
    communication_source: str = field(default="learned", kw_only=True)
    """Source of the collective times: "measured" where `calibrate` timed them, else "learned"."""

    def device_seconds(self, segment: Segment) -> Array:
        return np.asarray(self.kind_s[segment.kind], dtype=np.float64)

    def host_seconds(self, segment: Segment) -> Array:
        return self.host.of(segment, self.host_kind_s)

    @property
    def calls_per_kind(self) -> Array:
        """How often each operator runs in an optimizer step; `TimedProgram` defines it."""
        raise NotImplementedError


@bounded()
def kind_works(kinds: OpSignatures, options: WorkOptions) -> KindWorks:
    """The hardware-independent works of a program's distinct operators."""
    works_of_all: list[Work] = []
    operators: list[str] = []
    owner: list[int] = []
    unsupported: list[int] = []
    rivals: list[Work] = []
    rival_of: list[int] = []
    for index, kind in enumerate(kinds):
        rule = works(kind, options)
        if rule is None:
            unsupported.append(index)
            rule = [touched(kind)]
        wider = _wider(kind, rule, options)
        for position, work in enumerate(rule):
            if wider is not None and work.math in _WIDER and work.family in _ARITHMETIC:
                rivals.append(wider[position])
                rival_of.append(len(works_of_all) + position)
        works_of_all += rule
        operators += [operator_key(kind)] * len(rule)
        owner += [index] * len(rule)
    count = len(kinds)
    owners = np.array(owner, dtype=np.intp)
    table = WorkTable.from_works(works_of_all, operators)
    nbytes = _sum_by(owners, table.bytes, count)
    launches = _sum_by(owners, np.where(table.serial_bytes > 0.0, 1.0, table.launches), count)
    return KindWorks(
        table,
        owners,
        launches.astype(np.intp),
        nbytes,
        tuple(w.family for w in works_of_all),
        tuple(unsupported),
        np.array([_is_cast(kind) for kind in kinds], dtype=np.bool_),
        WorkTable.from_works(rivals),
        np.array(rival_of, dtype=np.intp),
    )


_WIDER = {"tf32": "float32", "fp16": "float32", "bf16": "float32", "fp8": "bfloat16"}
"""Arithmetic of a product -> dtype of the kernels that may replace it; float32 ones then do without TF32."""
_NARROW = {"bfloat16": "float32", "float16": "float32", "float8_e4m3fn": "bfloat16", "float8_e5m2": "bfloat16"}
_ARITHMETIC = TILE_FAMILIES | {CONV_DEPTHWISE, ATTENTION}


def _wider(kind: OpSignature, rule: Sequence[Work], options: WorkOptions) -> list[Work] | None:
    """The works of an operator of products in the next wider arithmetic; None where there is none."""
    maths = {work.math for work in rule if work.family in _ARITHMETIC and work.math in _WIDER}
    if not maths:
        return None
    fp8 = "fp8" in maths

    def widened(specs: tuple[TensorSpec, ...]) -> tuple[TensorSpec, ...]:
        return tuple(
            replace(spec, dtype=_NARROW.get(spec.dtype, spec.dtype))
            if not fp8 or spec.dtype.startswith("float8")
            else spec
            for spec in specs
        )

    return works(
        replace(kind, inputs=widened(kind.inputs), outputs=widened(kind.outputs)), replace(options, tf32=False)
    )


def _sum_by(owner: NDArray[np.intp], values: Array, count: int) -> Array:
    if not len(owner):
        return np.zeros(count)
    return np.asarray(np.bincount(owner, weights=values, minlength=count), dtype=np.float64)


def _is_cast(kind: OpSignature) -> bool:
    return kind.name in ("aten._to_copy", "pt.quantize") or (
        kind.name == "pt.sweep" and kind.attr("label") in ("master_gradients", "master_to_weights")
    )


@bounded()
def _kernel_times(kinds: KindWorks, gpu: Gpu, constants: StepConstants) -> tuple[KernelTimes, NDArray[np.bool_] | None]:
    """Kernel times and, on a calibrated device, which works its measured points cover.

    They do not depend on the number of GPUs, so a comparison across counts computes them once.
    """
    times = _uncalibrated_times(kinds, gpu, constants)
    if gpu.calibration is not None:
        return apply_calibration(times, kinds.table, kinds.owner, gpu)
    times = _not_above_weaker(kinds, gpu, constants)
    for stronger in stronger_gpus(gpu):
        other = _not_above_weaker(kinds, stronger, constants)
        slower = (other.seconds > times.seconds) & other.of_device & ~times.of_device
        times = _replaced(times, np.flatnonzero(slower), other, times.floor_seconds)
    return times, None


@bounded()
def _not_above_weaker(kinds: KindWorks, gpu: Gpu, constants: StepConstants) -> KernelTimes:
    """Kernel times of which none is above that on a device that is nowhere better.

    Curves are fitted device by device and may contradict each other. Where only one of the two was measured, the other
    gives way: a lent curve lowers no measured time (`_kernel_times` raises it instead).
    """
    times = _uncalibrated_times(kinds, gpu, constants)
    for weaker in weaker_gpus(gpu):
        other = _uncalibrated_times(kinds, weaker, constants)
        faster = (other.seconds < times.seconds) & (other.of_device | ~times.of_device)
        times = _replaced(times, np.flatnonzero(faster), other, times.floor_seconds)
    return times


@bounded()
def _uncalibrated_times(kinds: KindWorks, gpu: Gpu, constants: StepConstants) -> KernelTimes:
    times = constants.kernels.seconds(kinds.table, gpu)
    names = {math for _, _, math, _ in kinds.rivals.classes}
    if not len(kinds.rivals) or any(name not in gpu.peaks for name in names):
        return times
    other = constants.kernels.seconds(kinds.rivals, gpu)
    chosen = np.flatnonzero(other.seconds < times.seconds[kinds.rival_of])
    at = kinds.rival_of[chosen]
    floor, least = times.floor_seconds.copy(), times.least_seconds.copy()
    floor[at] = np.minimum(floor[at], other.floor_seconds[chosen])
    least[at] = np.minimum(least[at], other.least_seconds[chosen])
    return _replaced(replace(times, least_seconds=least), at, other, floor, chosen)


def _replaced(
    times: KernelTimes, at: NDArray[np.intp], other: KernelTimes, floor: Array, places: NDArray[np.intp] | None = None
) -> KernelTimes:
    """`times` with the works at positions `at` timed as those of `other` at the same positions, or at `places`."""
    places = at if places is None else places
    seconds, source = times.seconds.copy(), times.source.copy()
    spread, helpers, of_device = times.log_spread.copy(), times.helper_seconds.copy(), times.of_device.copy()
    seconds[at], source[at] = other.seconds[places], other.source[places]
    spread[at], helpers[at] = other.log_spread[places], other.helper_seconds[places]
    of_device[at] = other.of_device[places]
    return KernelTimes(seconds, floor, times.least_seconds, source, spread, helpers, of_device)


@dataclass(frozen=True, slots=True)
class Machine:
    """The properties of a cluster that kernel and host times depend on; the number of nodes is not one."""

    gpu: Gpu
    node: Node
    gpus_per_node: int

    def __hash__(self) -> int:
        """By name, as `Cluster` does."""
        return hash((self.gpu.name, self.node.name, self.gpus_per_node))


@bounded(Gpu, Node)
def machine(cluster: Cluster) -> Machine:
    return Machine(cluster.gpu, cluster.node, cluster.gpus_per_node)


_SLOWED = sorted(MEMORY_FAMILIES - {"optimizer"})


def time_signatures(
    program_kinds: OpSignatures,
    cluster: Cluster,
    options: WorkOptions,
    execution: str = "eager",
    constants: StepConstants | None = None,
    overhead: FrameworkOverhead | None = None,
) -> TimedSignatures:
    """Seconds for every operator on the cluster's GPU. `overhead`: of the job's framework.

    Parts that several programs share are timed once.
    """
    constants = constants or shipped()
    return time_signature_part(program_kinds, machine(cluster), options, execution, constants, overhead)


@bounded(OpSignatures, KindWorks)
def time_signature_part(
    part: OpSignatures,
    cluster: Machine,
    options: WorkOptions,
    execution: str,
    constants: StepConstants,
    overhead: FrameworkOverhead | None,
) -> TimedSignatures:
    """Seconds of operators that several programs may share."""
    if part.parts:
        timed = tuple(time_signature_part(p, cluster, options, execution, constants, overhead) for p in part.parts)
        return _joined(part, timed)
    return _time_signatures(part, cluster, options, execution, constants, overhead)


@bounded(OpSignatures)
def _joined(program_kinds: OpSignatures, parts: tuple[TimedSignatures, ...]) -> TimedSignatures:
    """The parts concatenated; host costs and sources are those of the first part, equal in all on one cluster."""
    works = [part.works for part in parts]
    kinds_before = _before([len(part.kinds) for part in parts])
    works_before = _before([len(w.table) for w in works])

    def after(name: str) -> Any:
        return np.concatenate([getattr(part, name) for part in parts])

    def shifted(name: str, by: Sequence[int]) -> NDArray[np.intp]:
        return np.concatenate([getattr(w, name) + n for w, n in zip(works, by, strict=True)])

    table = KindWorks(
        table=WorkTable.joined([w.table for w in works]),
        owner=shifted("owner", kinds_before),
        launches=np.concatenate([w.launches for w in works]),
        nbytes=np.concatenate([w.nbytes for w in works]),
        family=tuple(family for w in works for family in w.family),
        unsupported=tuple(i + n for w, n in zip(works, kinds_before, strict=True) for i in w.unsupported),
        is_cast=np.concatenate([w.is_cast for w in works]),
        rivals=WorkTable.joined([w.rivals for w in works]),
        rival_of=shifted("rival_of", works_before),
    )
    return replace(parts[0], kinds=program_kinds, works=table, **{name: after(name) for name in _BY_KIND_OR_WORK})


_BY_KIND_OR_WORK = (
    "work_s", "work_spread", "work_helpers", "kind_s", "floor_s", "compute_bound_s", "launch_s", "source_s",
    "host_kind_s",
)  # fmt: skip


def _before(lengths: Sequence[int]) -> list[int]:
    return [0, *itertools.accumulate(lengths)][:-1]


def _time_signatures(
    program_kinds: OpSignatures,
    cluster: Machine,
    options: WorkOptions,
    execution: str,
    constants: StepConstants,
    overhead: FrameworkOverhead | None,
) -> TimedSignatures:
    kinds = kind_works(program_kinds, options)
    gpu: Gpu = cluster.gpu
    times, calibrated = _kernel_times(kinds, gpu, constants)
    factor: float | Array = constants.execution_factor(execution)
    if calibrated is not None and execution not in FUSING:
        factor = np.where(calibrated, 1.0, factor)  # the points already are this device's own
    if overhead is not None and overhead.traffic != 1.0:
        factor = factor * np.where(np.isin(kinds.family, _SLOWED), overhead.traffic, 1.0)
    # A power- or cooling-limited machine runs the same kernels slower or faster (DGX-1, DGX-2, DGX-2H).
    floor = times.floor_seconds / cluster.node.clock_factor
    seconds = np.maximum(times.seconds * factor / cluster.node.clock_factor, floor)
    if gpu.calibration is not None and cluster.gpus_per_node > 1:
        seconds = np.maximum(seconds * contention_factors(kinds.table, gpu.calibration, cluster.gpus_per_node), floor)
    count = len(program_kinds)
    owner = kinds.owner

    def per_kind(values: Array) -> Array:
        return _sum_by(owner, values, count)

    source_s = np.stack([per_kind(np.where(times.source == i, seconds, 0.0)) for i in range(len(SOURCES))], axis=1)
    kind_s = per_kind(seconds)
    host = host_of(execution, cluster, constants, None if overhead is None else overhead.host)
    memory_floor = kinds.table.bytes / gpu.memory_bytes_per_s
    return TimedSignatures(
        kinds=program_kinds,
        works=kinds,
        work_s=seconds,
        work_spread=times.log_spread,
        work_helpers=times.helper_seconds / np.maximum(times.seconds, 1e-30),
        kind_s=kind_s,
        floor_s=per_kind(times.least_seconds) / max(cluster.node.clock_factor, 1.0),
        compute_bound_s=per_kind(np.where(times.floor_seconds > memory_floor * 1.0001, seconds, 0.0)),
        launch_s=per_kind(np.where(seconds < 8e-6 * np.maximum(kinds.table.launches, 1), seconds, 0.0)),
        source_s=source_s,
        host=host,
        host_kind_s=host.per_kind(program_kinds, kinds.launches),
        synchronous=gpu.device_type == "cpu",
        host_source="measured" if _measured_host(cluster) is not None and execution == "eager" else "assumed",
    )


def fields_of(timed: TimedSignatures) -> dict[str, Any]:
    """The fields that a `TimedProgram` copies from its `TimedSignatures`."""
    return {name: getattr(timed, name) for name in _TAKEN_OVER}


_TAKEN_OVER = tuple(item.name for item in fields(TimedSignatures) if not item.kw_only)


def _measured_host(cluster: Machine) -> HostFigures | None:
    return None if cluster.gpu.calibration is None else cluster.gpu.calibration.host


def host_of(execution: str, cluster: Machine, constants: StepConstants, factor: float | None = None) -> HostCosts:
    """Costs of the calibrated host where it was measured; else the shipped ones times the node's factor and contention.

    `factor` replaces contention.
    """
    measured = _measured_host(cluster)
    if measured is not None:
        return measured_host_costs(measured, execution)
    contention = constants.rank_costs.host_factor(cluster.gpus_per_node) if factor is None else factor
    return constants.host_costs(host_costs(execution, cluster.node.host_factor * contention))
