"""Features of a job for regression: one table of names, units and monotone signs, and the vector of a job.

A feature with sign 1 is a size: more operations, bytes, kernels or gradients never lower the predicted time, all else
equal. The other features are ratios, shares and device facts, and the data decide their direction.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from precision_time.bounded_cache import bounded
from precision_time.job.choices import FUSING
from precision_time.predictors.facts import CLASSES, Facts
from precision_time.predictors.kernel_sizes import MEANS, NAMES, SHARES
from precision_time.timing.work import HELPERS

Array = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Feature:
    """`sign` is 1 where a larger value never lowers the time, all else equal, and 0 where either is possible."""

    name: str
    unit: str
    sign: int
    what: str
    of: Callable[[Facts], float]


def _log(value: float) -> float:
    """log10, with nothing at 0."""
    return math.log10(value) if value > 1.0 else 0.0


def _flops(kind: str) -> Feature:
    return Feature(f"log_flops_{kind}", "log10 FLOP", 1, f"operations in {kind}", lambda f: _log(f.flops[kind]))


def _share(group: str, run_in: str | None = None) -> Feature:
    """`run_in`: of one pass only."""

    def of(facts: Facts) -> float:
        mine = (s for (name, each), s in facts.kernel_seconds.items() if name == group and run_in in (None, each))
        return sum(mine) / facts.kernel_s

    name = "_".join(("share", group, run_in or "other")) if run_in is not None else f"share_{group}"
    what = f"seconds of {group}{f' ({run_in})' if run_in else ''} over those of all kernels"
    return Feature(name, "1", 0, what, of)


def _size(name: str) -> Feature:
    kind, _, size = name.partition(".")
    unit, what = ("log2", MEANS[size]) if size in MEANS else ("1", SHARES[size]) if size in SHARES else _KERNEL
    return Feature(name, unit, 0, f"{kind}: {what}", lambda f: f.sizes[name])


_KERNEL = ("log10 s", "roofline seconds of a kernel")
_CONVOLUTION = ("fwd", "dgrad", "wgrad")
PASSES: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(
        ("conv.nchw", "conv.nhwc", "conv_1d", "conv_dilated", "depthwise", "grouped", HELPERS), _CONVOLUTION
    ),
    "attention": ("fwd", "bwd"),
    "norm": ("fwd", "bwd"),
    "traffic": ("fwd", "bwd", ""),
}
"""Groups of kernels whose share of the seconds is told for each pass."""
_LAST_OF_FIRST = 14
"""Minor release that 2.0 would have been of PyTorch 1."""


def _older(facts: Facts) -> float:
    """Minor releases of PyTorch from the job's to 2.0, which followed 1.13; 0 for later ones and where none is named.

    Later releases are not told apart: rows that name one are of large models alone, so that trees which split between
    2.1 and the present would apply what they learn of those to networks in PyTorch 1.
    """
    major, _, minor = (facts.torch or "2").partition(".")
    return float(_LAST_OF_FIRST - int(minor.partition(".")[0] or 0)) if major == "1" else 0.0


def _peak(facts: Facts, *names: str) -> float:
    return _log(max((facts.cluster.gpu.peaks.get(name, 0.0) for name in names), default=0.0))


def _per_kernel(facts: Facts) -> float:
    return math.log10(facts.kernel_s / max(facts.kernels, 1.0))


def _is_fused(facts: Facts) -> float:
    return float(facts.execution in FUSING)


def _bus(facts: Facts) -> float:
    cluster = facts.cluster
    return cluster.intra.bus_bytes_per_s(cluster.gpus_per_domain) if cluster.gpus_per_domain > 1 else 0.0


COMPUTE: tuple[Feature, ...] = (
    # sizes
    *(_flops(kind) for kind in CLASSES),
    Feature("log_bytes", "log10 byte", 1, "device memory traffic of a step", lambda f: _log(f.bytes)),
    Feature("log_kernels", "log10", 1, "kernels launched in a step", lambda f: _log(f.kernels)),
    # what the precision makes of the step
    Feature(
        "matrix_use", "1", 0, "tensor-core utilisation: share of FLOP on matrix units, x their peak over the best",
        lambda f: f.matrix_flops / max(sum(f.flops.values()), 1.0),
    ),
    Feature("bandwidth_saved", "1", 0, "traffic in fp32 over traffic", lambda f: f.fp32_bytes / max(f.bytes, 1.0)),
    Feature("cast_share", "1", 0, "traffic of casts over all", lambda f: f.cast_bytes / max(f.bytes, 1.0)),
    Feature("cast_kernels", "1", 0, "casts over kernels", lambda f: f.casts / max(f.kernels, 1.0)),
    Feature("scaling_share", "1", 0, "traffic of loss scaling over all", lambda f: f.scaling_bytes / max(f.bytes, 1.0)),
    Feature("scaling_kernels", "1", 0, "kernels of loss scaling over all", lambda f: f.scalings / max(f.kernels, 1.0)),
    # mix of the step
    Feature(
        "log_intensity", "log10 FLOP/byte", 0, "operations over traffic",
        lambda f: _log(sum(f.flops.values()) / max(f.bytes, 1.0)),
    ),
    *(_share(group, run_in) for group, passes in PASSES.items() for run_in in passes),
    _share("matmul"),
    _share("indexed"),
    _share("optimizer"),
    *(_size(name) for name in NAMES),
    Feature("host_share", "1", 0, "seconds of launching over those of kernels", lambda f: f.host_s / f.kernel_s),
    Feature("log_kernel_s", "log10 s", 0, "seconds of a kernel, mean", _per_kernel),
    Feature("fused", "0 or 1", 0, "pointwise chains fused", _is_fused),
    Feature("torch_before_2", "releases", 0, "minor releases of PyTorch until 2.0", _older),
    # device
    Feature("log_peak_fp32", "log10 FLOP/s", 0, "vector units in fp32", lambda f: _peak(f, "fp32")),
    Feature("log_peak_half", "log10 FLOP/s", 0, "matrix units in half", lambda f: _peak(f, "fp16", "bf16")),
    Feature("log_bandwidth", "log10 byte/s", 0, "device memory", lambda f: _log(f.cluster.gpu.memory_bytes_per_s)),
    Feature("log_peak", "log10 FLOP/s", 0, "of the dtype class with most operations", lambda f: _log(f.peak)),
    Feature(
        "log_balance", "log10 FLOP/byte", 0, "that peak over memory bandwidth",
        lambda f: _log(f.peak / f.cluster.gpu.memory_bytes_per_s),
    ),
)  # fmt: skip
"""Features of compute."""

_NAMED = {each.name: each for each in COMPUTE}

COMMUNICATION: tuple[Feature, ...] = (
    Feature("wire_share", "1", 1, "collectives of gradients over kernels", lambda f: f.wire_s / f.kernel_s),
    Feature("inner_share", "1", 1, "collectives inside layers over kernels", lambda f: f.inner_s / f.kernel_s),
    Feature(
        "wire_window", "1", 1, "collectives of gradients over the backward pass that may hide them",
        lambda f: f.wire_s / max(f.backward_s, 1e-9),
    ),
    Feature("log_ranks", "log10", 1, "GPUs", lambda f: _log(f.ranks)),
    Feature("log_nodes", "log10", 1, "nodes", lambda f: _log(f.cluster.nodes)),
    Feature("bubble", "1", 1, "pipeline: share of the step a stage waits", lambda f: f.bubble),
    Feature("log_link", "log10 byte/s", 0, "bus bandwidth inside a node", lambda f: _log(_bus(f))),
    Feature(
        "log_nic", "log10 byte/s", 0, "line rate of a node's network ports",
        lambda f: _log(f.cluster.node.nics * f.cluster.inter.nic_bytes_per_s) if f.cluster.inter is not None else 0.0,
    ),
    Feature("log_wire_bytes", "log10 byte", 1, "gradients reduced, in the dtype sent", lambda f: _log(f.wire_bytes)),
    Feature("gradient_bytes", "byte", 0, "of one reduced gradient element", lambda f: f.gradient_bytes),
    Feature("log_micro_steps", "log10", 0, "micro-steps of a step", lambda f: _log(f.micro_steps)),
    *(_NAMED[name] for name in ("log_kernels", "matrix_use", "bandwidth_saved", "scaling_share", "host_share")),
)  # fmt: skip
"""Features of communication."""

OVERLAP: tuple[Feature, ...] = tuple(
    each
    for each in COMMUNICATION
    if each.name
    in (
        "wire_share",
        "inner_share",
        "wire_window",
        "log_ranks",
        "gradient_bytes",
        "matrix_use",
        "bandwidth_saved",
        "scaling_share",
        "host_share",
    )
)
"""Features of the overlap; the aggregator also gets the predicted communication over compute."""

FEATURES = tuple({each.name: each for each in (*COMPUTE, *COMMUNICATION)}.values())
"""All features, each once."""


def vector(facts: Facts, features: Sequence[Feature] = FEATURES) -> Array:
    """The values of the features, in their order."""
    return np.array([feature.of(facts) for feature in features], dtype=np.float64)


def matrix(jobs: Sequence[Facts], features: Sequence[Feature] = FEATURES) -> Array:
    """A row for every job, a column for every feature. Rows are cached by `Facts` object, since folds repeat them."""
    if not jobs:
        return np.zeros((0, len(features)))
    return np.array([_values(facts) for facts in jobs])[:, [_PLACE[feature.name] for feature in features]]


_PLACE = {feature.name: i for i, feature in enumerate(FEATURES)}


@bounded()
def _values(facts: Facts) -> Array:
    return vector(facts)


def names(features: Sequence[Feature]) -> list[str]:
    return [feature.name for feature in features]


def signs(features: Sequence[Feature]) -> list[int]:
    return [feature.sign for feature in features]
