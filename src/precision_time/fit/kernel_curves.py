"""Fits the parameters of one curve to measured rows of one or several devices, on the logarithm of time."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from scipy.optimize import least_squares

from precision_time.fit.kernel_tables import Rows
from precision_time.timing.curves import (
    INDEX,
    PARAMETERS,
    Array,
    attention_seconds,
    combine,
    matmul_seconds,
)
from precision_time.timing.kernels import DEFAULT_SM_COUNT, TRANSPOSE_SHARE, WorkTable, compute_peak

Free = Mapping[str, tuple[float, float, float]]
"""name: (start, lower, upper) of each fitted number."""
EFFICIENCY = {
    "e256x128": (0.8, 0.05, 1.0), "e128x128": (0.75, 0.05, 1.0), "e128x64": (0.6, 0.05, 1.0),
    "e64x64": (0.45, 0.03, 1.0), "e64x32": (0.3, 0.02, 1.0),
}  # fmt: skip
_COMMON = {"memory": (0.8, 0.2, 1.0), "start": (4e-6, 1e-6, 1.2e-4)}
FREE: dict[str, dict[str, tuple[float, float, float]]] = {
    "matmul": {**EFFICIENCY, "k0": (150.0, 0.0, 1500.0), "wave": (0.6, 0.0, 1.0), "stream": (0.8, 0.2, 1.0),
               "reduce": (0.3, 0.0, 4.0), **_COMMON, "power": (3.0, 1.3, 12.0)},
    "attention": {"e256x128": (0.7, 0.05, 1.0), "k0": (128.0, 0.0, 3000.0), "wave": (0.5, 0.0, 1.0),
                  "d0": (16.0, 0.0, 200.0), **_COMMON, "power": (3.0, 1.3, 12.0)},
    "pointwise": _COMMON, "softmax": _COMMON, "layer_norm": _COMMON,
}  # fmt: skip
# A weak prior holds the efficiency of tiles that no row uses at their usual share of the largest tile's efficiency.
_USUAL_SHARE = {"e128x128": 0.93, "e128x64": 0.8, "e64x64": 0.57, "e64x32": 0.3}
_PRIOR_WEIGHT = 0.03
# Seconds to start a kernel back to back; a call timed alone also takes the event and launch overhead of its host.
# Attention rows also write the paged cache in a second kernel, which training does not.
BACK_TO_BACK_START = {"attention": 6e-6}
DEFAULT_START = 3e-6
# fp8 rows quantise inside the timed call. Its cost, a multiple of the traffic of one pass, is fitted and not shipped,
# because the graph of a training step lists its quantising kernels apart.
QUANTISING = "quantising"
_QUANTISING: Free = {QUANTISING: (2.0, 0.3, 8.0)}


def vector(values: Mapping[str, float]) -> Array:
    """Named values as a parameter column; the curve does not use the parameters without a name."""
    p = np.zeros(len(PARAMETERS))
    p[INDEX["power"]], p[INDEX["memory"]] = 4.0, 1.0
    for name, value in values.items():
        if name != QUANTISING:
            p[INDEX[name]] = value
    return p


def predict(
    table: WorkTable, rows: Rows, values: Mapping[str, float], rival: Mapping[str, float] | None = None
) -> Array:
    """Seconds of `rows` with these parameters, by the curves that the package runs; `rival`: those of Winograd."""
    gpu, p = rows.gpu, vector(values)[:, None]
    peak = np.array(compute_peak(gpu, rows.works[0].math, rows.kind))
    sms, bandwidth = float(gpu.sm_count or DEFAULT_SM_COUNT), gpu.memory_bytes_per_s
    if rows.curve == "attention":
        compute = attention_seconds(table.shape, table.flops, p, peak, sms)
    elif rows.curve in ("matmul", "conv"):
        compute = table.repeats * matmul_seconds(table.shape, p, peak, sms, bandwidth)
    elif rows.curve == "direct":  # on the vector units, as KernelModel times depthwise convolutions
        compute = table.flops / (np.minimum(peak, gpu.peaks.get("fp32", peak)) * p[0])
    else:
        compute = table.flops / peak
    memory = table.bytes / (bandwidth * p[INDEX["memory"]]) + table.latency_s
    busy = combine(compute, memory, p[INDEX["power"]])
    busy = busy + table.serial_bytes * values.get(QUANTISING, 1.0) / (bandwidth * TRANSPOSE_SHARE)
    if rival is not None:
        q = vector(rival)[:, None]
        products = matmul_seconds(table.rival_shape, q, peak, sms, bandwidth)
        rival_s = products + table.rival_bytes / (bandwidth * q[INDEX["memory"]])
        busy[table.rivals] = np.minimum(busy[table.rivals], rival_s)
    result: Array = np.maximum(busy, table.floor_flops / peak) + table.launches * p[INDEX["start"]]
    return result


def peak_of(rows: Rows) -> float:
    """Dense FLOP/s of the unit that these rows run on."""
    return compute_peak(rows.gpu, rows.works[0].math, rows.kind)


def fit_curve(groups: Sequence[Rows]) -> dict[str, Any]:
    """One parameter set for all `groups` (devices of one architecture, same curve and dtype class)."""
    free = {**FREE[groups[0].curve], **(_QUANTISING if groups[0].kind == "fp8" else {})}
    tables = [WorkTable.from_works(rows.works) for rows in groups]
    shapes = [(name, shape) for name, shape in _USUAL_SHARE.items() if name in free]

    def residual(x: Array) -> Array:
        values = dict(zip(free, x.tolist(), strict=True))
        parts = [
            np.log(predict(table, rows, values) / rows.seconds) / np.sqrt(len(rows))
            for table, rows in zip(tables, groups, strict=True)
        ]
        prior = [_PRIOR_WEIGHT * np.log(values[name] / values["e256x128"] / shape) for name, shape in shapes]
        everything: Array = np.concatenate([*parts, prior])
        return everything * float(np.sqrt(sum(len(rows) for rows in groups) / len(groups)))

    return _finish(groups, residual, free, lambda x: (dict(zip(free, x.tolist(), strict=True)), None))


def fit_convolution(rows: Rows, product: Mapping[str, float]) -> dict[str, Any]:
    """Direct and Winograd convolution as departures from the matrix-product set of the same device."""
    free = {
        "direct": (0.9, 0.2, 1.3),
        "direct_k0": (100.0, 0.0, 1500.0),
        "winograd": (0.7, 0.1, 1.3),
        "winograd_k0": (20.0, 0.0, 300.0),
        **_COMMON,
        "transforms": (0.7, 0.2, 1.0),
        "power": (3.0, 1.3, 12.0),
    }
    table = WorkTable.from_works(rows.works)

    def expand(x: Array) -> tuple[dict[str, float], dict[str, float]]:
        named = dict(zip(free, x.tolist(), strict=True))
        sets = []
        for algorithm in ("direct", "winograd"):
            values = dict(product)
            for name in EFFICIENCY:
                values[name] = min(1.0, product[name] * named[algorithm])
            values |= {"k0": named[f"{algorithm}_k0"], "memory": named["memory"], "start": named["start"]}
            sets.append(values | {"power": named["power"]})
        sets[1]["memory"] = named["transforms"]
        return sets[0], sets[1]

    def residual(x: Array) -> Array:
        direct, winograd = expand(x)
        return np.asarray(np.log(predict(table, rows, direct, winograd) / rows.seconds))

    return _finish([rows], residual, free, expand)


def solve(residual: Callable[[Array], Array], free: Free) -> Array:
    """The numbers of `free` within their bounds with the smallest residuals (soft L1), the better of two starts."""
    start, low, high = (np.array([bounds[i] for bounds in free.values()]) for i in range(3))
    span = high - low

    def scaled(z: Array) -> Array:
        return np.asarray(residual(low + z * span))

    best = None
    for nudge in (0.0, 0.15):
        z0 = np.clip((start - low) / span + nudge * np.array([(-1) ** i for i in range(len(start))]), 0.02, 0.98)
        result = least_squares(scaled, z0, bounds=(0.0, 1.0), loss="soft_l1", f_scale=0.15, diff_step=3e-3, max_nfev=60)
        if best is None or result.cost < best.cost:
            best = result
    assert best is not None
    solution: Array = low + best.x * span
    return solution


def _finish(groups: Sequence[Rows], residual: Any, free: Free, expand: Any) -> dict[str, Any]:
    x = solve(residual, free)
    values, rival = expand(x)
    error = residual(x)[: sum(len(rows) for rows in groups)]
    overhead = None
    if not groups[0].exact:
        usual = BACK_TO_BACK_START.get(groups[0].curve, DEFAULT_START)
        overhead, values["start"] = values["start"], min(values["start"], usual)
        if rival is not None:
            rival["start"] = values["start"]
    quantising = values.pop(QUANTISING, None)
    # The spread is robust: half the width that holds the middle 68 % of the residuals.
    spread = float(np.subtract(*np.percentile(error, [84, 16])) / 2)
    share = np.abs(np.expm1(error))
    result: dict[str, Any] = {
        "values": {k: round(float(v), 9) for k, v in values.items()},
        "log_spread": round(spread, 4),
        "rows": int(sum(len(rows) for rows in groups)),
        "gpus": [rows.gpu.kernel_name for rows in groups],
        "file": groups[0].source,
        "median_error": round(float(np.median(share)), 4),
        "p90_error": round(float(np.percentile(share, 90)), 4),
    }
    if dense := [peak_of(rows) / rows.gpu.tdp_w for rows in groups if rows.gpu.tdp_w]:
        result["flops_per_w"] = float(f"{np.exp(np.mean(np.log(dense))):.4g}")
    ecc = float(np.exp(np.mean([np.log(rows.gpu.ecc_share) for rows in groups])))
    if ecc < 1.0:
        result["ecc_share"] = round(ecc, 4)
    if quantising is not None:
        result[QUANTISING] = round(float(quantising), 4)
    if overhead is not None:
        result["isolated_call_overhead_s"] = round(float(overhead), 9)
    if rival is not None:
        result["winograd"] = {k: round(float(v), 9) for k, v in rival.items()}
    return result
