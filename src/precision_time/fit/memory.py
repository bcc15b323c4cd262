"""What a device holds beside live tensors, and the spread of a predicted peak, from published memory brackets.

A job runs where live bytes x (1 + fragmentation) + process bytes, times an error, are at most the capacity. The log of
the error is logistic around zero. Of each bracket is known that the batch which ran needs no more, and the next larger
one more: process bytes and the scale of the error are those under which that is likeliest. Fragmentation cannot be told
from process bytes by devices of one size, so it is assumed.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from precision_time.estimate.memory import PARAMETERS, MemoryParameters, memory_parameters
from precision_time.fit.brackets import BRACKETS, Brackets, read
from precision_time.fit.provenance import provenance
from precision_time.shipped import ROOT, write_shipped

FRAGMENTATION = 0.05
"""Memory that PyTorch's caching allocator holds beyond live tensors, as a share of them: assumed. A simulation of it
over the traced brackets reserves 8 % more than live tensors, of which it needs 1 % once it has freed its cache."""
LOG_SCALE_MANY = 0.06
"""Scale of log(peak) of jobs on several devices: assumed. Their buffers and shards are not in any bracket."""
STRAY = 0.02
"""Share of brackets whose batch failed for another reason than memory, or was chosen otherwise: assumed, so that a few
of them do not decide the fit."""


@dataclass(frozen=True, slots=True)
class Judged:
    """Brackets judged by parameters that were fitted without their families.

    fits, fails   whether the prediction is right at the batch that ran, and at the one that did not
    least_error   log of the least factor by which the predicted peak is off: above 0 too much was predicted, below 0
                  too little; 0 where both are right
    probability   of fitting, at the batch that ran and at the one that did not
    """

    brackets: Brackets
    fits: NDArray[np.bool_]
    fails: NDArray[np.bool_]
    least_error: NDArray[np.float64]
    probability: tuple[NDArray[np.float64], NDArray[np.float64]]


def families(brackets: Brackets) -> Iterator[tuple[str, NDArray[np.bool_]]]:
    """Every family and which brackets are of it."""
    for name in np.unique(brackets.family):
        yield str(name), brackets.family == name


def fitted(brackets: Brackets, kept: NDArray[np.bool_] | None = None) -> MemoryParameters:
    """The likeliest parameters of some of the brackets; a bracket weighs less the more its family has."""
    from scipy.optimize import minimize

    chosen = np.ones(len(brackets), dtype=np.bool_) if kept is None else kept
    _, of_family, count = np.unique(brackets.family[chosen], return_inverse=True, return_counts=True)
    weight = 1.0 / np.sqrt(count[of_family])
    live = np.stack([brackets.fits[chosen], brackets.fails[chosen]]) * (1.0 + FRAGMENTATION)
    capacity = brackets.capacity[chosen]

    def surprise(x: NDArray[np.float64]) -> float:
        margin = np.log(capacity / (live + x[0] * 2.0**30)) / math.exp(x[1])
        runs = 1.0 / (1.0 + np.exp(-np.clip(margin, -60.0, 60.0)))
        return float(-(weight * np.log((1.0 - STRAY) * np.maximum(runs[0] - runs[1], 0.0) + STRAY)).sum())

    best = minimize(surprise, [1.5, math.log(0.03)], method="Nelder-Mead", options={"xatol": 1e-4, "fatol": 1e-6})
    return MemoryParameters(
        round(float(best.x[0]) * 1024) << 20, FRAGMENTATION, round(math.exp(float(best.x[1])), 4), LOG_SCALE_MANY
    )


def judge(brackets: Brackets) -> Judged:
    """Every bracket by parameters fitted without its family."""
    shape = len(brackets)
    logs, scales = np.zeros((2, shape)), np.zeros(shape)
    for _, inside in families(brackets):
        found = fitted(brackets, ~inside)
        for row, live in enumerate((brackets.fits, brackets.fails)):
            peak = live[inside] * (1.0 + found.fragmentation) + found.process_bytes
            logs[row, inside] = np.log(peak / brackets.capacity[inside])
        scales[inside] = found.log_scale
    fits, fails = logs[0] <= 0.0, logs[1] > 0.0
    least = np.maximum(logs[0], 0.0) + np.minimum(logs[1], 0.0)
    low, high = (1.0 / (1.0 + np.exp(log / scales)) for log in logs)
    return Judged(brackets, fits, fails, least, (low, high))


def run(tables: Path, judge_only: bool = False) -> None:
    """Fit and write the parameters; `judge_only`: print how they do held out by family."""
    brackets = read(tables)
    if judge_only:
        judged = judge(brackets)
        print(
            f"{len(brackets)} brackets, held out by family: right at the batch that ran {judged.fits.mean():.1%}, "
            f"at the one that did not {judged.fails.mean():.1%}"
        )
        return
    found = fitted(brackets)
    content = {
        "provenance": provenance("memory", tables / BRACKETS, len(brackets)),
        **{name: getattr(found, name) for name in MemoryParameters.__slots__},
    }
    write_shipped(ROOT / PARAMETERS, json.dumps(content, indent=1) + "\n")
    memory_parameters.cache_clear()
    print(f"process {found.process_bytes >> 20} MiB, scale {found.log_scale}", file=sys.stderr)
