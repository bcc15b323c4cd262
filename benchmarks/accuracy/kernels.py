"""Errors of kernel times: on rows not fitted, on devices and dtype classes not measured, and of simpler models."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from precision_time.fit.kernel_corrections import as_timed, call_overhead, fit_class, fit_corrections
from precision_time.fit.kernel_tables import SEED, Rows, read_gpus, read_rows
from precision_time.fit.kernels import ROWS_PER_SET, Sets, by_class, fit_sets, pooled
from precision_time.timing.corrections import TERMS
from precision_time.timing.curves import Array
from precision_time.timing.kernels import KernelModel, KernelTimes, WorkTable

CASES = ("profiled", "bare", "unseen", "unseen bare", "other class", "roofline", "constant")
"""How the judged rows were kept from the fit, or the model that stands in for it: see `kernel_page`."""
PRODUCTS = ("matmul", "attention")
LIMITS = {"matmul and attention": (0.08, 0.15), "the rest": (0.15, 0.25)}
"""Goals for the median error, on a measured device and on an unseen one."""


@dataclass(frozen=True, slots=True)
class CurveErrors:
    """|predicted / measured - 1| of the judged rows of one curve, dtype class and device, by case."""

    curve: str
    dtype: str
    gpu: str
    rows: int
    errors: Mapping[str, Array]

    @property
    def name(self) -> str:
        """Curve, dtype class and device."""
        return f"{self.curve} {self.dtype} {self.gpu}"

    def median(self, case: str) -> float:
        """Median error of a case."""
        return float(np.median(self.errors[case]))

    def p90(self, case: str) -> float:
        """90th percentile of the errors of a case."""
        return float(np.percentile(self.errors[case], 90))


@dataclass(frozen=True, slots=True)
class Target:
    """A goal for the median error of a group of kernels in one case, and the medians reached.

    `over_curves` is the median of the medians of its curves, `over_rows` that of all its rows; `missed` are the curves
    above the goal with their medians, the largest first.
    """

    kernels: str
    case: str
    limit: float
    over_curves: float
    over_rows: float
    curves: int
    missed: tuple[tuple[str, float], ...]

    @property
    def met(self) -> bool:
        """Whether both medians are within the goal."""
        return max(self.over_curves, self.over_rows) <= self.limit


def judge(tables: Path) -> list[CurveErrors]:
    """All curves of the kernel tables below `tables`, judged by fits that did not see the judged rows."""
    rows = list(read_rows(tables / "kernels", read_gpus(), ROWS_PER_SET))
    return list(evaluate(rows, fit_sets(rows)))


def chosen_rows(rows: Rows, chosen: NDArray[np.bool_]) -> Rows:
    """The rows where `chosen` is true."""
    works = [work for work, wanted in zip(rows.works, chosen.tolist(), strict=True) if wanted]
    return replace(rows, works=works, seconds=rows.seconds[chosen])


def halves(rows: Rows) -> tuple[Rows, Rows]:
    """Two random halves, the same ones every time."""
    first = np.random.default_rng(SEED).permutation(len(rows)) % 2 == 0
    return chosen_rows(rows, first), chosen_rows(rows, ~first)


def errors_of(parameters: Mapping[str, Any], group: Rows, overhead: float) -> tuple[Array, KernelTimes]:
    """|predicted / measured - 1| by the model the package runs; isolated timings carry an overhead."""
    times = KernelModel(scales={}, fitted=parameters).seconds(group.works, group.gpu)
    return np.abs((times.seconds + overhead) / group.seconds - 1.0), times


def evaluate(rows: Sequence[Rows], sets: Sets) -> Iterator[CurveErrors]:
    """One `CurveErrors` for each curve, dtype class and device; `sets` are fitted to all rows.

    No row is judged by parameters that saw it: "profiled" and "bare" by a fit to the other half of all rows, the
    held-out cases by fits without the device or without the dtype class.
    """
    profiled, bare = _by_halves(rows)
    for number, group in enumerate(rows):
        errors = {"profiled": np.concatenate(profiled[number]), "bare": np.concatenate(bare[number])}
        errors |= _held_out(group, rows, sets, without_device(sets, rows, group))
        yield CurveErrors(group.curve, group.kind, group.gpu.kernel_name, len(group), errors)


def _by_halves(rows: Sequence[Rows]) -> tuple[list[list[Array]], list[list[Array]]]:
    """Errors of both halves of every group, each under a fit to the other halves, with and without corrections."""
    split = [halves(group) for group in rows]
    profiled: list[list[Array]] = [[] for _ in rows]
    bare: list[list[Array]] = [[] for _ in rows]
    for side in (0, 1):
        seen = [pair[side] for pair in split]
        sets = fit_sets(seen)
        parameters = {"sets": sets, "corrections": fit_corrections(seen, sets)}
        for number, pair in enumerate(split):
            overhead = call_overhead(sets, pair[0])
            other = as_timed(pair[1 - side], sets)
            profiled[number].append(errors_of(parameters, other, overhead)[0])
            bare[number].append(errors_of({"sets": sets}, other, overhead)[0])
    return profiled, bare


def without_device(sets: Sets, rows: Sequence[Rows], group: Rows) -> Sets:
    """The sets that a fit gives without the device of `group` for its curve and dtype class."""
    left = dict(sets)
    keys = ["conv|fp32", "winograd|fp32"] if group.curve == "conv" else [f"{group.curve}|{group.kind}"]
    arch, name = group.gpu.arch, group.gpu.kernel_name
    for key in keys:
        left[key] = {k: v for k, v in sets[key].items() if k not in (name, f"arch:{arch}")}
        peers = [g for g in by_class(rows).get(key, []) if g.gpu.arch == arch and g is not group]
        left[key] |= pooled(peers, arch, sets[key], without=name)
    return left


def _held_out(group: Rows, rows: Sequence[Rows], sets: Sets, left: Sets) -> dict[str, Array]:
    key, overhead = f"{group.curve}|{group.kind}", call_overhead(sets, group)
    others = [r for r in rows if (r.curve, r.kind) == (group.curve, group.kind) and r is not group]
    corrections = {key: fit_class(others, sets, devices=False)} if group.curve in TERMS else {}
    group = as_timed(group, sets)
    gone = {key, f"winograd|{group.kind}"} if group.curve == "conv" else {key}
    plain, times = errors_of({"sets": left}, group, overhead)
    work = WorkTable.from_works(group.works)
    floor = times.floor_seconds + work.serial_bytes / group.gpu.memory_bytes_per_s
    share = float(np.median(floor / np.maximum(group.seconds - overhead, 1e-9)))
    return {
        "unseen": errors_of({"sets": left, "corrections": corrections}, group, overhead)[0],
        "unseen bare": plain,
        "other class": errors_of({"sets": {k: v for k, v in sets.items() if k not in gone}}, group, overhead)[0],
        "roofline": np.abs((floor + overhead) / group.seconds - 1.0),
        "constant": np.abs((floor / share + overhead) / group.seconds - 1.0),
    }


def targets(judged: Sequence[CurveErrors]) -> list[Target]:
    """The goals of `LIMITS` and what was reached."""
    result = []
    for group, limits in LIMITS.items():
        members = [curve for curve in judged if (curve.curve in PRODUCTS) == (group == "matmul and attention")]
        for case, limit in zip(("profiled", "unseen"), limits, strict=True):
            medians = {curve.name: curve.median(case) for curve in members}
            missed = sorted(((n, m) for n, m in medians.items() if m > limit), key=lambda item: -item[1])
            over_rows = float(np.median(np.concatenate([curve.errors[case] for curve in members])))
            over_curves = float(np.median(list(medians.values())))
            result.append(Target(group, case, limit, over_curves, over_rows, len(members), tuple(missed)))
    return result
