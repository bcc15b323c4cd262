"""The time curves of matrix products and fused attention on one device, in numpy over arrays of shapes.

A product is cut into tiles; a tile costs its own multiply-adds plus a fixed start-up worth `k0` steps along
k, at an efficiency per tile size. Tiles fill the multiprocessors in waves, a partly filled wave costs
`wave` of a full one. Alternatively the k dimension is split so that all multiprocessors work ("stream"),
which pays for a reduction. The library is taken to choose the fastest. Every ingredient grows with m, n, k
and batch, so the result does too.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

# One column per number a class of work needs on a device. Families read the ones they use.
PARAMETERS = (
    "e256x128", "e128x128", "e128x64", "e64x64", "e64x32",  # efficiency by tile; attention: only the first
    "k0",       # start-up of a tile, in steps along k (attention: keys)
    "wave",     # how much of an incomplete wave is lost, 0..1
    "stream",   # efficiency of splitting k, relative to whole tiles
    "reduce",   # cost of the reduction after a split, in trips of the fp32 output at DRAM bandwidth
    "memory",   # share of the DRAM bandwidth reached
    "start",    # seconds per kernel launch on the device
    "power",    # how compute and memory time combine: (c^p + m^p)^(1/p)
    "d0",       # attention: head size at which half of the efficiency is reached
)  # fmt: skip
INDEX = {name: i for i, name in enumerate(PARAMETERS)}

# Rows, columns, parameter column. Both orientations of an oblong tile share one efficiency.
_TILES = (
    (256, 128, 0), (128, 256, 0), (128, 128, 1), (128, 64, 2), (64, 128, 2), (64, 64, 3),
    (64, 32, 4), (32, 64, 4),
)  # fmt: skip
_TILE_M = np.array([t[0] for t in _TILES], dtype=np.float64)
_TILE_N = np.array([t[1] for t in _TILES], dtype=np.float64)
_TILE_E = np.array([t[2] for t in _TILES])
_MIN_SPLIT_K = 128.0
_QUERY_BLOCK = 128.0
_USUAL_TILE, _LEAST_TILE = 128.0, 64.0


def waves(fill: Array, strength: Array) -> Array:
    """Time of `fill` waves of tiles, in full waves; at least `fill`, never falling."""
    result: Array = fill + strength * (np.ceil(fill) - fill)
    return result


def matmul_seconds(shape: Array, p: Array, peak: Array, sm_count: float | Array, bytes_per_s: float | Array) -> Array:
    """Compute time of products; shape rows are batch, m, n, k; p is (len(PARAMETERS), count), or (len(PARAMETERS),
    devices, count) with `peak`, `sm_count` and `bytes_per_s` by device."""
    batch, m, n, k = shape
    tile_m, tile_n = (sizes.reshape(-1, *[1] * (p.ndim - 1)) for sizes in (_TILE_M, _TILE_N))
    blocks = np.ceil(m / tile_m) * np.ceil(n / tile_n) * batch
    fill = blocks / sm_count
    one_step = (2.0 * tile_m * tile_n * sm_count) / (peak * p[_TILE_E])
    k0 = p[5]
    whole = one_step * (k + k0) * waves(fill, p[6])
    steps = np.maximum(fill * k, np.minimum(k, _MIN_SPLIT_K)) + k0 * np.maximum(fill, 1.0)
    parts = np.minimum(np.maximum(sm_count, blocks), blocks * np.maximum(k / _MIN_SPLIT_K, 1.0))
    partial = parts * (tile_m * tile_n * 8.0)
    split = one_step * steps / p[7] + partial * (p[8] / bytes_per_s)
    best: Array = np.minimum(whole, split).min(axis=0)
    return best


def elements_of_products(shape: Array) -> Array:
    """Elements that the tiles of products load and store, for whole groups of rows; shape rows are batch, m, n, k."""
    batch, m, n, k = shape
    rows, columns = (_LEAST_TILE * np.ceil(side / _LEAST_TILE) for side in (m, n))
    result: Array = batch * (rows * k * np.ceil(n / _USUAL_TILE) + k * columns * np.ceil(m / _USUAL_TILE) + m * n)
    return result


def attention_seconds(shape: Array, flops: Array, p: Array, peak: Array, sm_count: float | Array) -> Array:
    """Compute time of fused attention; shape rows are batch x heads, queries, keys, head size."""
    heads, queries, _, head_dim = shape
    blocks = heads * np.ceil(queries / _QUERY_BLOCK)
    per_query = flops / (heads * queries * head_dim) + 4.0 * p[5]
    efficiency = p[0] * head_dim / (head_dim + p[12])
    one_block = per_query * head_dim * _QUERY_BLOCK * sm_count / (peak * efficiency)
    result: Array = one_block * waves(blocks / sm_count, p[6])
    return result


def scores_of_tiles(shape: Array) -> Array:
    """Scores of attention in whole tiles; shape rows as in `attention_seconds`."""
    heads, queries, keys, _ = shape
    result: Array = heads * _LEAST_TILE**2 * np.ceil(queries / _LEAST_TILE) * np.ceil(keys / _LEAST_TILE)
    return result


def combine(compute: Array, memory: Array, power: Array) -> Array:
    """Compute and memory time of one kernel, which overlap imperfectly: from the larger to the sum."""
    high, low = np.maximum(compute, memory), np.minimum(compute, memory)
    ratio = low / np.maximum(high, 1e-30)
    result: Array = high * (1.0 + ratio**power) ** (1.0 / power)
    return result
