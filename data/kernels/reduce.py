"""Reduce the kernel tables as published to the rows and columns that the fits read.

    python data/kernels/reduce.py FOLDER [OUTPUT]

FOLDER holds `neusight.parquet`, `aic_gemm.parquet`, `aic_attention.parquet` and `aic_nccl.parquet` with the columns
described in README.md; OUTPUT defaults to the folder of this script. Repeated measurements of one product or collective
(frameworks, replicates) become their median. Row order is kept, because the fits sample rows by position.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pandas as pd

FRAMEWORKS = ("vllm", "sglang")
"""Serving frameworks whose bf16 linear layer is torch's own, so that cuBLAS runs as in training."""
FLASH_KERNELS = ("flash_att", "fa3", "fa4", "flash_attn", "trtllm_mha", "flashinfer")
COLLECTIVE_GPUS = (
    "A100-SXM4-80GB", "B200-SXM", "B300-SXM", "GB200", "GB300", "H100-SXM-80GB", "H200-SXM", "L40S",
    "RTX-PRO-6000-Server",
)  # fmt: skip
ELEMENTWISE = ("add", "mul", "div", "addu", "mulu", "divu", "relu", "tanh", "gelu")


def neusight(table: pd.DataFrame) -> pd.DataFrame:
    """fp32 forward micro-benchmarks above the timing floor, of the operators that have a curve."""
    table = table[(table.origin == "microbench") & (table.phase == "fwd") & (table.dtype == "fp32") & (table.flag == 0)]
    products = table.op.isin(["bmm", "linear"]) & (table.m >= 16) & (table.n >= 16) & (table.k >= 16)
    convolutions = (table.op == "conv") & (table.c_in >= 3) & (table.b >= 12)
    by_rows = table.op.isin(["softmax", "ln"]) & (table.h >= 64)
    table = table[products | convolutions | table.op.isin(ELEMENTWISE) | by_rows]
    return table[["gpu", "op", "b", "m", "n", "k", "h", "c_in", "c_out", "ksize", "img", "latency_us"]]


def products(table: pd.DataFrame) -> pd.DataFrame:
    """bf16 and fp8 products of the newest version of each framework, unflagged, no side below 32."""
    table = table[table.dtype.isin(["bf16", "fp8"]) & table.latest & (table.flag == 0)]
    table = table[table.framework.isin(FRAMEWORKS) & (table.m >= 32) & (table.n >= 32) & (table.k >= 32)]
    return median(table, ["gpu", "dtype", "m", "n", "k"])


def attention(table: pd.DataFrame) -> pd.DataFrame:
    """bf16 forward attention of flash-type kernels without a window, newest version of each framework."""
    table = table[(table.dtype == "bf16") & (table.flag == 0) & (table.window == 0)]
    table = table[table.kernel.str.contains("|".join(FLASH_KERNELS)) & (table.gpu != "Arc-Pro-B60")]
    table = table[(table.head_dim <= 256) & (table.seq >= 64)]
    version = table.version.map(lambda text: tuple(int("".join(filter(str.isdigit, p)) or 0) for p in text.split(".")))
    newest = version.groupby([table.gpu, table.op, table.framework]).transform("max")
    return table[version == newest][["gpu", "op", "kernel", "b", "seq", "num_heads", "n_kv", "head_dim", "latency_us"]]


def collectives(table: pd.DataFrame) -> pd.DataFrame:
    """NCCL in fp16, unflagged: the switch does not reduce int8, and training does not use it."""
    table = table[(table.flag == 0) & (table.library == "nccl") & (table.dtype == "fp16")]
    return median(table[table.gpu.isin(COLLECTIVE_GPUS)], ["gpu", "collective", "num_gpus", "bytes"])


def median(table: pd.DataFrame, keys: list[str]) -> pd.DataFrame:
    """Microseconds of each combination of `keys`, in their order."""
    return table.groupby(keys, as_index=False, observed=True).latency_us.median()


REDUCTIONS = {
    "neusight.parquet": neusight,
    "aic_gemm.parquet": products,
    "aic_attention.parquet": attention,
    "aic_nccl.parquet": collectives,
}


def main() -> None:
    source, output = Path(sys.argv[1]), Path(sys.argv[2] if len(sys.argv) > 2 else __file__)
    for name, reduction in REDUCTIONS.items():
        reduced = reduction(pd.read_parquet(source / name)).reset_index(drop=True)
        path = (output if output.is_dir() else output.parent) / name
        reduced.to_parquet(path, compression="zstd", compression_level=19, index=False)
        print(f"{name}: {len(reduced):,} rows, {path.stat().st_size / 1e6:.2f} MB")


if __name__ == "__main__":
    main()
