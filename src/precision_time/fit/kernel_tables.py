"""Reads the kernel tables of `data/kernels/` into plain arrays: one `Rows` per curve, dtype class and device.

`data/kernels/reduce.py` has left out what is at the timing floor, flagged or too small to matter for training. What
fits twice into the level-2 cache is left out here, and the rest is thinned to a sample that is uniform in the logarithm
of the work.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from precision_time.hardware.fields import arch_family
from precision_time.hardware.gpu import Gpu
from precision_time.reading import read_records
from precision_time.shipped import shipped_file
from precision_time.timing.curves import Array
from precision_time.timing.work import (
    MATMUL,
    Attention,
    Convolution,
    Work,
    attention_work,
    conv_work,
    matmul_work,
    memory_work,
)

GPUS = "hardware/data/gpus.csv"
SEED = 20261121
TABLES = ("neusight.parquet", "aic_gemm.parquet", "aic_attention.parquet")
_PEAKS = {
    "fp64": "fp64_tflops",
    "fp64_matrix": "fp64_tensor_tflops",
    "fp32": "fp32_tflops",
    "tf32": "tf32_tflops",
    "fp32_matrix": "fp32_matrix_tflops",
    "fp16": "fp16_tflops",
    "fp16_vector": "fp16_vector_tflops",
    "bf16": "bf16_tflops",
    "fp8": "fp8_tflops",
}
_ARCH = {"Blackwell Ultra": "blackwell", "Xe2": "xe2", "TPU": "tpu"}

_OPERANDS = {"add": 3, "mul": 3, "div": 3, "addu": 2, "mulu": 2, "divu": 2, "relu": 2, "tanh": 2, "gelu": 2}
"""Elements that an elementwise operator reads and writes for each point; `...u` have a scalar second operand."""
FEWEST_ROWS = 40
"""A curve of a device with fewer fp32 rows is not fitted."""


@dataclass(frozen=True, slots=True)
class Rows:
    """Measured kernels of one curve and dtype class on one device. `exact`: graph replays, without call overhead."""

    curve: str
    kind: str
    gpu: Gpu
    works: list[Work]
    seconds: Array
    exact: bool
    source: str

    def __len__(self) -> int:
        return len(self.works)


def read_gpus() -> dict[str, Gpu]:
    """The devices of the kernel tables, by the name that these tables use."""
    gpus: dict[str, Gpu] = {}
    for _, row in read_records(shipped_file(GPUS), ()):
        arch = row["arch"]
        short = next((new for old, new in _ARCH.items() if arch.startswith(old)), arch_family(arch))
        gpus[row["gpu"]] = Gpu(
            name=row["name"],
            kernel_name=row["gpu"],
            vendor=row["vendor"],
            arch=short,
            memory_bytes=int(float(row["mem_gb"]) * 1e9),
            memory_bytes_per_s=float(row["mem_bw_gbs"]) * 1e9,
            peaks={k: float(row[c]) * 1e12 for k, c in _PEAKS.items() if row[c]},
            sm_count=int(row["sm_count"]) if row["sm_count"] else None,
            tdp_w=float(row["tdp_w"]) if row["tdp_w"] else None,
            l2_bytes=int(float(row["l2_mb"]) * 2**20) if row["l2_mb"] else None,
            memory_type=row["mem_type"],
            max_hz=float(row["max_mhz"]) * 1e6 if row["max_mhz"] else None,
        )
    return gpus


def thin(table: pd.DataFrame, size: Any, count: int, bins: int = 24) -> pd.DataFrame:
    """At most `count` rows, spread evenly over the logarithm of `size`; the same rows every time."""
    if len(table) <= count:
        return table
    values = np.log2(np.asarray(size, dtype=np.float64))
    edges = np.linspace(values.min(), values.max() + 1e-9, bins + 1)
    group = np.digitize(values, edges)
    weight = 1.0 / np.bincount(group, minlength=bins + 2)[group]
    rng = np.random.default_rng(SEED)
    chosen = rng.choice(len(table), size=count, replace=False, p=weight / weight.sum())
    return table.iloc[np.sort(chosen)]


def read_rows(directory: Path, gpus: Mapping[str, Gpu], per_set: int) -> Iterator[Rows]:
    """The rows of the three tables in `directory`, at most `per_set` for each curve, dtype class and device."""
    yield from _neusight(directory / TABLES[0], gpus, per_set)
    yield from read_products(directory / TABLES[1], gpus, per_set)
    yield from _attention(directory / TABLES[2], gpus, per_set)


def _seconds(table: pd.DataFrame) -> Array:
    return np.asarray(table["latency_us"], dtype=np.float64) * 1e-6


def _neusight(path: Path, gpus: Mapping[str, Gpu], per_set: int) -> Iterator[Rows]:
    """fp32 kernels, each timed alone by PyTorch, so that every time holds a call overhead."""
    readers: tuple[Callable[[pd.DataFrame, Gpu, int], Rows | None], ...] = (
        _products,
        _convolutions,
        _elementwise,
        partial(_row_wise, op="softmax", family="softmax"),
        partial(_row_wise, op="ln", family="layer_norm"),
    )
    for name, table in pd.read_parquet(path).groupby("gpu"):
        for reader in readers:
            rows = reader(table, gpus[str(name)], per_set)
            if rows is not None and len(rows) >= FEWEST_ROWS:
                yield rows


def _products(table: pd.DataFrame, gpu: Gpu, per_set: int) -> Rows | None:
    rows = table[table.op.isin(["bmm", "linear"])]
    rows = thin(rows, rows.b.astype(float) * rows.m * rows.n * rows.k, per_set)
    sizes = rows[["b", "m", "n", "k"]].to_numpy(dtype=int).tolist()
    works = [matmul_work((b, m, n, k), "fp32", 4) for b, m, n, k in sizes]
    return Rows(MATMUL, "fp32", gpu, works, _seconds(rows), False, TABLES[0])


def _convolutions(table: pd.DataFrame, gpu: Gpu, per_set: int) -> Rows | None:
    rows = table[table.op == "conv"]
    if rows.empty:
        return None
    rows = thin(rows, rows.b.astype(float) * rows.c_in * rows.c_out * rows.img * rows.img, per_set)
    works = []
    for b, c_in, c_out, r, size in rows[["b", "c_in", "c_out", "ksize", "img"]].to_numpy(dtype=int).tolist():
        image, kernel = (size, size), (r, r)
        works.append(conv_work(Convolution(b, c_in, c_out, image, image, kernel, (1, 1), 1), "fp32", 4))
    return Rows("conv", "fp32", gpu, works, _seconds(rows), False, TABLES[0])


def _elementwise(table: pd.DataFrame, gpu: Gpu, per_set: int) -> Rows | None:
    rows = table[table.op.isin(_OPERANDS)]
    count = rows.b.astype(float) * rows.h.astype(float)
    traffic = 4.0 * count * rows.op.map(_OPERANDS).astype(float)
    rows = rows.assign(traffic=traffic)[traffic > 2.0 * float(gpu.l2_bytes or 0)]
    rows = thin(rows, rows.traffic, per_set)
    works = [memory_work("pointwise", 0.75 * t, 0.25 * t) for t in rows.traffic.tolist()]
    return Rows("pointwise", "fp32", gpu, works, _seconds(rows), False, TABLES[0])


def _row_wise(table: pd.DataFrame, gpu: Gpu, per_set: int, op: str, family: str) -> Rows | None:
    rows = table[table.op == op]
    traffic = 8.0 * rows.b.astype(float) * rows.h.astype(float)
    rows = rows.assign(traffic=traffic)[traffic > 2.0 * float(gpu.l2_bytes or 0)]
    rows = thin(rows, rows.traffic, per_set)
    sizes = rows[["b", "h"]].to_numpy(dtype=float).tolist()
    works = [memory_work(family, 4 * b * h, 4 * b * h, variant="fwd", shape=(b, h)) for b, h in sizes]
    return Rows(family, "fp32", gpu, works, _seconds(rows), False, TABLES[0])


def read_products(path: Path, gpus: Mapping[str, Gpu], per_set: int) -> Iterator[Rows]:
    """bf16 and fp8 products of serving frameworks that call torch's linear layer, median over the frameworks.

    The fp8 rows quantise their activations inside the timed call: that traffic is the work's serial bytes.
    """
    for (name, dtype), rows in pd.read_parquet(path).groupby(["gpu", "dtype"]):
        gpu = gpus.get(str(name))
        if gpu is None or dtype not in gpu.peaks:
            continue
        rows = thin(rows, rows.m.astype(float) * rows.n * rows.k, per_set)
        works = []
        for m, n, k in rows[["m", "n", "k"]].to_numpy(dtype=int).tolist():
            if dtype == "bf16":
                works.append(matmul_work((1, m, n, k), "bf16", 2))
            else:
                works.append(replace(matmul_work((1, m, n, k), "fp8", 1, 2), launches=2, serial_bytes=3.0 * m * k))
        yield Rows(MATMUL, "half" if dtype == "bf16" else "fp8", gpu, works, _seconds(rows), True, TABLES[1])


def _attention(path: Path, gpus: Mapping[str, Gpu], per_set: int) -> Iterator[Rows]:
    """bf16 forward attention of flash-type kernels, median over frameworks and kernels."""
    keys = ["op", "b", "seq", "num_heads", "n_kv", "head_dim"]
    for name, table in pd.read_parquet(path).groupby("gpu"):
        rows = table.groupby(keys, as_index=False).latency_us.median()
        rows = thin(rows, rows.b.astype(float) * rows.seq**2.0 * rows.num_heads * rows.head_dim, per_set)
        works = [
            attention_work(Attention(b, heads, kv, seq, seq, dim, causal=op == "context"), "bf16", 2)
            for op, b, seq, heads, kv, dim in rows[keys].itertuples(index=False)
        ]
        yield Rows("attention", "half", gpus[str(name)], works, _seconds(rows), False, TABLES[2])
