"""Sizes of a job's convolutions and products, on which their utilisation depends: what features of a job read.

Each is a mean over the kernels of a kind, weighted by their roofline seconds (operations at the dense peak or bytes at
the memory bandwidth, whichever take longer), or a share of the roofline seconds of all kernels. They need no curves of
kernels, so the works of a traced job (`fit.traced`) give the same sizes as the job itself.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np
from numpy.typing import NDArray

from precision_time.hardware.gpu import Gpu
from precision_time.timing.kernels import compute_peak
from precision_time.timing.work import (
    CONV_DEPTHWISE,
    CONV_DIRECT,
    CONV_GROUPED,
    CONV_UNEVEN,
    CONVOLUTIONS,
    MATMUL,
    NATIVE,
    NATIVE_BF16,
    VECTOR_CONVOLUTIONS,
)
from precision_time.timing.work_table import WorkTable

Array = NDArray[np.float64]

MEANS = {
    "batch": "products in one kernel",
    "m": "rows of a product (of a convolution: positions of all images)",
    "n": "columns of a product (of a convolution: output channels of a group)",
    "k": "summed numbers of a product (of a convolution: input channels of a group times taps)",
    "groups": "groups of a convolution",
    "channels": "output channels of a group of a convolution, or input channels where its data gradient is computed",
    "taps": "numbers of a filter",
    "positions": "output positions of an image",
}
"""Sizes whose mean log2 is taken."""
SHARES = {
    "narrow": "kernels of fewer than 64 columns or summed numbers: tiles of matrix units partly empty",
    "compute": "kernels that operations bound, not bytes",
    "strided": "convolutions with a stride",
    "unaligned": "kernels of which a dimension (of a convolution: channels of all groups) is no multiple of 16 bytes",
    "nchw": "convolutions in NCHW",
    "nhwc": "convolutions in NHWC",
}
"""Kernels whose share of the seconds is taken."""
KERNEL = "kernel"
"""Name of the mean log10 of a kernel's seconds."""
_PRODUCT = ("batch", "m", "n", "k", "narrow", "compute", KERNEL, "unaligned")
KINDS: dict[str, tuple[frozenset[str], tuple[str, ...]]] = {
    "conv": (frozenset(CONVOLUTIONS), (*_PRODUCT[:-1], "taps", "positions", "strided")),
    "dense": (frozenset(CONVOLUTIONS - {CONV_GROUPED, CONV_UNEVEN, *VECTOR_CONVOLUTIONS}), ("unaligned",)),
    "grouped": (
        frozenset({CONV_GROUPED, CONV_DIRECT, CONV_UNEVEN}),
        ("groups", "channels", "nchw", "nhwc", "unaligned"),
    ),
    "depthwise": (frozenset({CONV_DEPTHWISE}), ("taps", "positions", "nchw", "nhwc", "unaligned")),
    "matmul": (frozenset({MATMUL}), _PRODUCT),
}
"""Kind of kernels -> families, and the sizes that are taken of them."""
NAMES = tuple(f"{kind}.{name}" for kind, (_, names) in KINDS.items() for name in names)
"""Names that `kernel_sizes` gives."""
NARROW = 64
"""Columns or summed numbers below which tiles of matrix units are partly empty."""
_ALIGNED = {"fp64": 2, "fp32": 4, "tf32": 4, "half": 8, "fp8": 16}
"""dtype class -> numbers in 16 bytes, the alignment that kernels of matrix units load at once."""


def class_peaks(classes: Sequence[tuple[str, str, str, str]], gpu: Gpu) -> Array:
    """Dense FLOP/s of each class of works."""
    return np.array([compute_peak(gpu, math, kind) for _, _, math, kind in classes])


def kernel_sizes(table: WorkTable, calls: Array, gpu: Gpu) -> dict[str, float]:
    """Sizes by name (`conv.n`, `matmul.narrow` ...), 0 where a step has no such kernels.

    calls  times that each work of the table runs in a step
    """
    compute_s = table.flops / class_peaks(table.classes, gpu)[table.class_of]
    memory_s = table.bytes / gpu.memory_bytes_per_s
    kernel_s = np.maximum(compute_s, memory_s)
    seconds = kernel_s * calls
    all_s = float(seconds.sum()) or 1.0
    passes, formats = _passes(table)
    logs = {name: np.log2(np.maximum(values, 1.0)) for name, values in _means(table, passes).items()}
    logs[KERNEL] = np.log10(np.maximum(kernel_s, 1e-9))
    members = {**_members(table, passes, formats), "compute": compute_s >= memory_s}
    sizes: dict[str, float] = {}
    for kind, (of_kind, names) in KINDS.items():
        weight = np.where(_is_of(table, of_kind), seconds, 0.0)
        mean = weight / (float(weight.sum()) or 1.0)
        for name in names:
            size = mean @ logs[name] if name in logs else weight[members[name]].sum() / all_s
            sizes[f"{kind}.{name}"] = float(size)
    return sizes


def _is_of(table: WorkTable, families: Collection[str]) -> NDArray[np.bool_]:
    """Which works are of one of the families."""
    return np.array([family in families for family, *_ in table.classes], dtype=bool)[table.class_of]


def _passes(table: WorkTable) -> tuple[NDArray[np.str_], NDArray[np.str_]]:
    """Pass and memory format of every work, from the variant of its class ("fwd.nhwc")."""
    parts = np.array([variant.partition(".")[::2] for _, variant, *_ in table.classes]).reshape(-1, 2)[table.class_of]
    return parts[:, 0], parts[:, 1]


def _means(table: WorkTable, passes: NDArray[np.str_]) -> dict[str, Array]:
    """The sizes of MEANS."""
    batch, m, n, k = table.shape
    _, positions, taps, _ = table.convolution
    channels = np.where(passes == "wgrad", m, n)
    return {
        "batch": batch, "m": m, "n": n, "k": k, "groups": batch, "channels": channels, "taps": taps,
        "positions": positions,
    }  # fmt: skip


def _members(table: WorkTable, passes: NDArray[np.str_], formats: NDArray[np.str_]) -> dict[str, NDArray[np.bool_]]:
    """Which works SHARES are of, but for those that depend on the device."""
    return {
        "narrow": np.minimum(table.shape[2], table.shape[3]) < NARROW,
        "strided": table.convolution[3] > 1,
        "unaligned": _unaligned(table, passes),
        "nchw": np.isin(formats, ("nchw", NATIVE, NATIVE_BF16)),
        "nhwc": formats == "nhwc",
    }


def _unaligned(table: WorkTable, passes: NDArray[np.str_]) -> NDArray[np.bool_]:
    """Whether columns or summed numbers of a product, or channels of a convolution, are no multiple of 16 bytes."""
    groups, m, n, k = np.maximum(table.shape, 1.0)
    images, positions, taps, _ = table.convolution
    inputs = np.where(passes == "fwd", k / taps, np.where(passes == "wgrad", n / taps, n))
    outputs = np.where(passes == "fwd", n, np.where(passes == "wgrad", m, k * m / (images * positions * taps)))
    is_convolution = _is_of(table, CONVOLUTIONS)
    first = np.where(is_convolution, np.rint(inputs) * groups, k)
    second = np.where(is_convolution, np.rint(outputs) * groups, n)
    multiple = np.array([_ALIGNED[kind] for *_, kind in table.classes])[table.class_of]
    return np.asarray((first % multiple != 0) | (second % multiple != 0))
