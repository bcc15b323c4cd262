"""The columns of PredictDDL: the graph's vector, its sizes, the cluster, the run, the precision.

    x = [graph vector, log params, log FLOPs, log nodes | servers n, 1/n, log n, cores, memory, peaks, bandwidths,
         links | batch, data, samples, image size, memory format, execution, optimizer | precision]

and, as an addition of this project, `work`: operations and bytes by kind of layer, and roofline seconds in the job's
precision where the device has peaks. An ablation removes whole groups of columns; `PUBLISHED` are the groups of the
paper, without precision and work.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from math import log

import numpy as np

from precision_time.errors import MissingPeakError, PredictorError, nearest
from precision_time.hardware.fabric import Cluster
from precision_time.job.precision import Precision
from precision_time.predictors.interface import global_batch_size
from precision_time.predictors.predictddl.facts import Facts
from precision_time.predictors.predictddl.network import Floats, Network
from precision_time.predictors.predictddl.primitives import Primitive

GRAPH, SIZE, CLUSTER, RUN, PRECISION, WORK = "graph", "size", "cluster", "run", "precision", "work"
GROUPS = (GRAPH, SIZE, CLUSTER, RUN, PRECISION, WORK)
PUBLISHED = (GRAPH, SIZE, CLUSTER, RUN)

_MATHS = ("fp32", "tf32", "fp16", "bf16")
_COSTLY = {
    "convolution": (Primitive.CONV, Primitive.DIL_CONV),
    "grouped convolution": (Primitive.SEP_CONV,),
    "product": (Primitive.LINEAR, Primitive.MSA),
    "recurrent": (Primitive.RNN,),
}
"""Kinds of layers that are bound by operations; all others move memory."""
STATELESS = ("sgd", "none")
"""Optimizers that read and write little more than weights and gradients."""
_PASSES = 3.0
"""Operations of forward and backward over forward: the backward pass has two products for each forward one."""


def columns(facts: Facts, vector: Floats, groups: Iterable[str] = GROUPS) -> dict[str, float]:
    """Named features of one job; names begin with their group. Raises a `PredictorError` for an unknown group."""
    values: dict[str, float] = {}
    for group in groups:
        if group == GRAPH:
            values.update({f"{group}.{i:02d}": value for i, value in enumerate(vector.tolist())})
        elif group in _MADE:
            values.update(_named(facts, group))
        else:
            raise PredictorError(f"feature group {group!r} is unknown; nearest: {nearest(group, (GRAPH, *_MADE))}")
    return values


def _named(facts: Facts, group: str) -> Mapping[str, float]:
    return {f"{group}.{name}": value for name, value in _MADE[group](facts).items()}


def matrix(rows: Sequence[Mapping[str, float]], names: Sequence[str]) -> Floats:
    """Rows over columns, in the order of `names`; a column that a row does not have is 0."""
    return np.array([[row.get(name, 0.0) for name in names] for row in rows], dtype=np.float64).reshape(-1, len(names))


def _size(network: Network) -> dict[str, float]:
    return {
        "log_params": log(1.0 + network.parameters),
        "log_flops": log(1.0 + float(network.flops.sum())),
        "log_nodes": log(network.nodes),
    }


def _cluster(facts: Facts) -> dict[str, float]:
    n = facts.ranks
    values = {"ranks": float(n), "1/ranks": 1.0 / n, "log_ranks": log(n), "log_nodes": log(facts.nodes)}
    if facts.cluster is None:
        return values
    gpu, group = facts.cluster.gpu, facts.cluster.world
    values["log_cores"] = log(gpu.sm_count or 1)
    values["log_memory"] = log(gpu.memory_bytes)
    values["log_bandwidth"] = log(gpu.memory_bytes_per_s)
    values |= {f"log_{math}": log(gpu.peaks.get(math) or gpu.peaks.get("fp32") or 1e12) for math in _MATHS}
    values["log_link"] = log(group.bus_bytes_per_s) if n > 1 else 0.0
    values["log_network"] = log(max(1.0, group.network_bytes_per_s)) if facts.cluster.domains > 1 else 0.0
    return values


def _run(facts: Facts) -> dict[str, float]:
    return {
        "log_batch": log(facts.batch_size),
        "log_accumulation": log(facts.job.grad_accum),
        "log_samples": log(max(1.0, facts.samples)),
        "log_steps": log(max(1.0, facts.samples / global_batch_size(facts.job))),
        "log_resolution": log(facts.resolution),
        "nhwc": float(facts.job.memory_format == "nhwc"),
        "math_attention": float(facts.job.attention == "math"),
        "static_graph": float(facts.job.execution != "eager"),
        "stateless": float(facts.job.optimizer in STATELESS),
    }


def activation_bytes(precision: Precision) -> float:
    """Of one element."""
    return {"float64": 8.0, "float16": 2.0, "bfloat16": 2.0}.get(precision.compute_dtype, 4.0)


def _precision(precision: Precision, cluster: Cluster | None) -> dict[str, float]:
    values = {
        "log_width": log(activation_bytes(precision)),
        "log_weight_width": log(2.0 if precision.parameter_dtype in ("float16", "bfloat16") else 4.0),
        "autocast": float(precision.autocast),
        "loss_scaling": float(precision.loss_scaling),
        "bfloat16": float(precision.compute_dtype == "bfloat16"),
        "tf32": float(precision.tf32 or precision.tf32_convolutions),
        "fp8": float(bool(precision.fp8_scaling)),
    }
    if cluster is not None:
        values["log_peak"] = log(peak_of(cluster, precision))
    return values


def peak_of(cluster: Cluster, precision: Precision) -> float:
    """FLOP/s of matrix products in a precision."""
    try:
        return cluster.gpu.peak(precision.math)
    except MissingPeakError:
        return cluster.gpu.vector_peak("fp32")  # half tensors on a device without half units compute in fp32


def _work(facts: Facts) -> dict[str, float]:
    network, precision = facts.network, facts.job.precision_spec
    flops, size = network.flops, network.bytes
    values = {"log_bytes": log(1.0 + float(size.sum()))}
    rest = np.ones(network.nodes, dtype=bool)
    all_flops = 1.0 + float(flops.sum())
    for name, kinds in _COSTLY.items():
        of_kind = np.isin(network.types, kinds)
        rest &= ~of_kind
        values[f"share_{name.replace(' ', '_')}"] = float(flops[of_kind].sum()) / all_flops
    values["log_bytes_moved"] = log(1.0 + float(size[rest].sum()))
    values["log_intensity"] = log(all_flops / (1.0 + float(size.sum())))
    if facts.cluster is not None:
        gpu = facts.cluster.gpu
        dense = np.isin(network.types, [kind for kinds in _COSTLY.values() for kind in kinds])
        peak = np.where(dense, peak_of(facts.cluster, precision), gpu.vector_peak("fp32"))
        moved = activation_bytes(precision) / 4.0 * size / gpu.memory_bytes_per_s
        values["log_roofline"] = log(_PASSES * float(np.maximum(flops / peak, moved).sum()))
    return values


_MADE: Mapping[str, Callable[[Facts], dict[str, float]]] = {
    SIZE: lambda facts: _size(facts.network),
    CLUSTER: _cluster,
    RUN: _run,
    PRECISION: lambda facts: _precision(facts.job.precision_spec, facts.cluster),
    WORK: _work,
}
"""By group of features that a job has without its graph's vector."""
