"""Sizes of a job's convolutions and products, on which their utilisation depends: what features of a job read.

Each is a mean over the kernels of a kind, weighted by their seconds, or a share of all seconds.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from precision_time.timing.work import CONVOLUTIONS
from precision_time.timing.work_table import WorkTable

Array = NDArray[np.float64]

KINDS: dict[str, tuple[str, ...]] = {"conv": tuple(CONVOLUTIONS), "matmul": ("matmul",)}
"""Kind of kernels -> families."""
MEANS = {
    "batch": "products in one kernel",
    "m": "rows of a product (of a convolution: positions of all images)",
    "n": "columns of a product (of a convolution: output channels of a group)",
    "k": "summed numbers of a product (of a convolution: input channels of a group times taps)",
}
"""Sizes whose mean log2 is taken, in the order of `WorkTable.shape`."""
NARROW = 64
"""Columns or summed numbers below which tiles of matrix units are partly empty."""


def kernel_sizes(table: WorkTable, calls: Array, work_s: Array, by_operations: NDArray[np.bool_]) -> dict[str, float]:
    """Sizes by name (`conv.n`, `matmul.narrow` ...), 0 where a step has no such kernels.

    calls          times that each work of the table runs in a step
    work_s         seconds of each
    by_operations  whether its operations bound it, not its bytes
    """
    seconds = work_s * calls
    all_s = float(seconds.sum()) or 1.0
    families = np.array([family for family, *_ in table.classes])[table.class_of]
    sizes: dict[str, float] = {}
    for kind, members in KINDS.items():
        mine = np.isin(families, members)
        weight = np.where(mine, seconds, 0.0)
        total = float(weight.sum())
        share = weight / (total or 1.0)
        logs = np.log2(np.maximum(table.shape, 1.0))
        sizes |= {f"{kind}.{name}": float(share @ log) for name, log in zip(MEANS, logs, strict=True)}
        narrow = np.minimum(table.shape[2], table.shape[3]) < NARROW
        sizes[f"{kind}.narrow"] = float(weight[narrow].sum()) / all_s
        sizes[f"{kind}.compute"] = float(weight[by_operations].sum()) / all_s
        sizes[f"{kind}.kernel"] = float(share @ np.log10(np.maximum(work_s, 1e-9))) if total else 0.0
        if kind == "conv":
            _, positions, taps, stride = table.convolution
            sizes["conv.taps"] = float(share @ np.log2(np.maximum(taps, 1.0)))
            sizes["conv.positions"] = float(share @ np.log2(np.maximum(positions, 1.0)))
            sizes["conv.strided"] = float(weight[stride > 1].sum()) / all_s
    return sizes


NAMES = (
    *(f"{kind}.{name}" for kind in KINDS for name in (*MEANS, "narrow", "compute", "kernel")),
    "conv.taps",
    "conv.positions",
    "conv.strided",
)
"""Names that `kernel_sizes` gives."""
