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

from precision_time.bounded_cache import Budget, bounded
from precision_time.hardware.calibration import HostFigures
from precision_time.hardware.fabric import Cluster
from precision_time.hardware.gpu import Gpu
from precision_time.hardware.node import Node
from precision_time.layout.segment import OpSignatures, Segment, joined_segments
from precision_time.timing.calibrated import apply_calibration, contention_factors
from precision_time.timing.constants import StepConstants, shipped
from precision_time.timing.device_order import in_order, times_on
from precision_time.timing.host import HostCosts, host_costs, measured_host_costs
from precision_time.timing.kernels import SOURCES, KernelTimes
from precision_time.timing.kind_works import KindWorks, kind_works, sum_by
from precision_time.timing.layout_costs import FrameworkOverhead
from precision_time.timing.operators import WorkOptions
from precision_time.timing.work import MEMORY_FAMILIES
from precision_time.timing.work_table import WorkTable

Array = NDArray[np.float64]

FUSING = frozenset({"compile", "torchscript", "xla"})
"""Execution modes that change the kernels, so that their factor also applies to measured kernels."""
FITTED_HOST_SPREAD = 0.1
"""Spread of log(launch costs) in a framework whose host was fitted to whole steps: the errors of its launch-bound steps
are 0.10 (root mean square of 63)."""


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
        return self.kind_s.take(segment.kind)

    def host_seconds(self, segment: Segment) -> Array:
        return self.host.of(segment, self.host_kind_s)

    def launched_seconds(self, segments: tuple[Segment, ...]) -> Array:
        """Seconds after which the host has launched each operator, from the start of launching its segment."""
        return _launched_seconds(segments, self.host, self.host_kind_s.tobytes())

    @property
    def calls_per_kind(self) -> Array:
        """How often each operator runs in an optimizer step; `TimedProgram` defines it."""
        raise NotImplementedError


@bounded()
def _launched_seconds(segments: tuple[Segment, ...], host: HostCosts, per_kind: bytes) -> Array:
    """Kept by all that decides it, and the batch does not; `per_kind`: the bytes of `host_kind_s`."""
    joined = joined_segments(segments)
    seconds = host.of(joined.all, np.frombuffer(per_kind))
    for place in joined.filled:
        of_segment = seconds[slice(*joined.spans[place])]
        of_segment.cumsum(out=of_segment)
    return seconds


@bounded()
def _kernel_times(kinds: KindWorks, gpu: Gpu, constants: StepConstants) -> tuple[KernelTimes, NDArray[np.bool_] | None]:
    """Kernel times and, on a calibrated device, which works its measured points cover.

    They do not depend on the number of GPUs, so a comparison across counts computes them once.
    """
    if gpu.calibration is not None:
        return apply_calibration(_times_on(kinds, (gpu,), constants)[gpu], kinds.table, kinds.owner, gpu)
    return in_order(gpu, lambda related: _related_times(kinds, related, constants)), None


_RELATED = Budget(8 << 20)
"""Of times on GPUs that are compared with each other. They are as large as all that follows from them, and serve the
same job on each of these GPUs."""


def _times_on(kinds: KindWorks, gpus: tuple[Gpu, ...], constants: StepConstants) -> dict[Gpu, KernelTimes]:
    return times_on(constants.kernels, kinds.with_rivals, kinds.rival_of, gpus)


_related_times = bounded(Gpu, budget=_RELATED)(_times_on)


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

    def after(name: str) -> Any:
        return np.concatenate([getattr(part, name) for part in parts])

    table = WorkTable.joined([w.table for w in works])
    joined = KindWorks(
        table=table,
        owner=np.concatenate([w.owner + n for w, n in zip(works, kinds_before, strict=True)]),
        launches=np.concatenate([w.launches for w in works]),
        nbytes=np.concatenate([w.nbytes for w in works]),
        family=tuple(itertools.chain.from_iterable([w.family for w in works])),
        unsupported=tuple(i + n for w, n in zip(works, kinds_before, strict=True) for i in w.unsupported),
        is_cast=np.concatenate([w.is_cast for w in works]),
        with_rivals=table,
        rival_of=np.zeros(0, dtype=np.intp),
    )
    return replace(parts[0], kinds=program_kinds, works=joined, **{name: after(name) for name in _BY_KIND_OR_WORK})


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
    products = constants.layouts.on_products(kinds.table, gpu.arch) if gpu.calibration is None else None
    if products is not None:
        factor = factor * products
    # A power- or cooling-limited machine runs the same kernels slower or faster (DGX-1, DGX-2, DGX-2H).
    floor = times.floor_seconds / cluster.node.clock_factor
    seconds = np.maximum(times.seconds * factor / cluster.node.clock_factor, floor)
    if gpu.calibration is not None and cluster.gpus_per_node > 1:
        seconds = np.maximum(seconds * contention_factors(kinds.table, gpu.calibration, cluster.gpus_per_node), floor)
    count = len(program_kinds)
    owner = kinds.owner

    def per_kind(values: Array) -> Array:
        return sum_by(owner, values, count)

    by_source = sum_by(owner * len(SOURCES) + times.source, seconds, count * len(SOURCES))
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
        source_s=by_source.reshape(count, len(SOURCES)),
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

    `factor`, of a framework whose layers are autograd functions in Python, replaces contention; they launch the
    backward pass from Python, too.
    """
    measured = _measured_host(cluster)
    if measured is not None:
        return measured_host_costs(measured, execution, cluster.gpu.device_type != "cpu")
    if factor is None:
        contention = constants.rank_costs.host_factor(cluster.gpus_per_node)
        return constants.host_costs(host_costs(execution, cluster.node.host_factor * contention))
    costs = constants.host_costs(host_costs(execution, cluster.node.host_factor * factor))
    return replace(costs, log_spread=FITTED_HOST_SPREAD, backward_share=1.0)
