"""How far off kernel times are: on rows not fitted, on devices and dtype classes not measured, and by plain models."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from precision_time.fit.kernel_corrections import as_timed, call_overhead, fit_class, fit_corrections
from precision_time.fit.kernel_tables import SEED, Rows
from precision_time.timing.corrections import TERMS
from precision_time.timing.curves import Array
from precision_time.timing.kernels import KernelModel, KernelTimes, WorkTable

Sets = dict[str, dict[str, Any]]

CASES = ("profiled", "bare", "unseen", "unseen bare", "other class", "roofline", "constant")
"""Rows of a measured device that were not fitted; the same by the curve without correction; the device held out, with
and without the shared correction; the dtype class held out on every device; the floor; one utilisation fitted on the
line."""
PRODUCTS = ("matmul", "attention")
LIMITS = {"matmul and attention": (0.08, 0.15), "the rest": (0.15, 0.25)}
"""Median error aimed at, on a measured device and on an unseen one."""


@dataclass(frozen=True, slots=True)
class Line:
    """Errors |predicted / measured - 1| of the judged rows of one curve, dtype class and device, by case."""

    curve: str
    dtype: str
    gpu: str
    rows: int
    errors: Mapping[str, Array]

    @property
    def name(self) -> str:
        return f"{self.curve} {self.dtype} {self.gpu}"

    def median(self, case: str) -> float:
        return float(np.median(self.errors[case]))

    def cells(self) -> dict[str, Any]:
        """As a row of the table: medians, and the 90th percentiles of what the package claims."""
        numbers: dict[str, float] = {}
        for case in CASES:
            numbers[case] = self.median(case)
            if case in ("profiled", "unseen"):
                numbers[f"{case} p90"] = float(np.percentile(self.errors[case], 90))
        rounded = {name: round(value, 4) for name, value in numbers.items()}
        return {"curve": self.curve, "dtype": self.dtype, "gpu": self.gpu, "rows": self.rows} | rounded


def part(rows: Rows, chosen: NDArray[np.bool_]) -> Rows:
    """The chosen rows."""
    works = [work for work, wanted in zip(rows.works, chosen.tolist(), strict=True) if wanted]
    return replace(rows, works=works, seconds=rows.seconds[chosen])


def halves(rows: Rows) -> tuple[Rows, Rows]:
    """Two random halves; the same ones every time."""
    first = np.random.default_rng(SEED).permutation(len(rows)) % 2 == 0
    return part(rows, first), part(rows, ~first)


def errors(content: Mapping[str, Any], group: Rows, overhead: float) -> tuple[Array, KernelTimes]:
    """|predicted / measured - 1| by the model the package runs; isolated timings carry an overhead."""
    times = KernelModel(scales={}, fitted=content).seconds(group.works, group.gpu)
    return np.abs((times.seconds + overhead) / group.seconds - 1.0), times


def evaluate(
    rows: Sequence[Rows],
    sets: Sets,
    fit_sets: Callable[[Sequence[Rows]], Sets],
    without_device: Callable[[Sets, Sequence[Rows], Rows], Sets],
) -> Iterator[Line]:
    """One line per curve, dtype class and device. Each row is judged by parameters that never saw it: "profiled" by
    a fit to the other half of all rows, the held-out cases by fits without the device or without the dtype class.
    """
    split = [halves(group) for group in rows]
    judged: list[list[Array]] = [[] for _ in rows]
    bare: list[list[Array]] = [[] for _ in rows]
    for side in (0, 1):
        seen = [pair[side] for pair in split]
        fitted = fit_sets(seen)
        content = {"sets": fitted, "corrections": fit_corrections(seen, fitted)}
        for number, pair in enumerate(split):
            overhead = call_overhead(fitted, pair[0])
            other = as_timed(pair[1 - side], fitted)
            judged[number].append(errors(content, other, overhead)[0])
            bare[number].append(errors({"sets": fitted}, other, overhead)[0])
    for number, group in enumerate(rows):
        found = {"profiled": np.concatenate(judged[number]), "bare": np.concatenate(bare[number])}
        yield Line(
            group.curve, group.kind, group.gpu.kernel_name, len(group),
            found | _held_out(group, rows, sets, without_device(sets, rows, group)),
        )  # fmt: skip


def _held_out(group: Rows, rows: Sequence[Rows], sets: Sets, left: Sets) -> dict[str, Array]:
    key, overhead = f"{group.curve}|{group.kind}", call_overhead(sets, group)
    others = [r for r in rows if (r.curve, r.kind) == (group.curve, group.kind) and r is not group]
    corrections = {key: fit_class(others, sets, devices=False)} if group.curve in TERMS else {}
    group = as_timed(group, sets)
    gone = {key, f"winograd|{group.kind}"} if group.curve == "conv" else {key}
    plain, times = errors({"sets": left}, group, overhead)
    work = WorkTable.from_works(group.works)
    floor = times.floor_seconds + work.serial_bytes / group.gpu.memory_bytes_per_s
    share = float(np.median(floor / np.maximum(group.seconds - overhead, 1e-9)))
    return {
        "unseen": errors({"sets": left, "corrections": corrections}, group, overhead)[0],
        "unseen bare": plain,
        "other class": errors({"sets": {k: v for k, v in sets.items() if k not in gone}}, group, overhead)[0],
        "roofline": np.abs((floor + overhead) / group.seconds - 1.0),
        "constant": np.abs((floor / share + overhead) / group.seconds - 1.0),
    }


def targets(lines: Sequence[Line]) -> list[dict[str, Any]]:
    """What was aimed at and what came out: the median of the lines' medians and of all rows, and the lines above."""
    result = []
    for group, limits in LIMITS.items():
        members = [line for line in lines if (line.curve in PRODUCTS) == (group == "matmul and attention")]
        for case, limit in zip(("profiled", "unseen"), limits, strict=True):
            over_lines = float(np.median([line.median(case) for line in members]))
            over_rows = float(np.median(np.concatenate([line.errors[case] for line in members])))
            missed = sorted((line for line in members if line.median(case) > limit), key=lambda x: -x.median(case))
            result.append({
                "kernels": group, "case": case, "limit": limit, "over lines": round(over_lines, 4),
                "over rows": round(over_rows, 4), "met": max(over_lines, over_rows) <= limit,
                "lines": len(members), "missed": [(line.name, round(line.median(case), 4)) for line in missed],
            })  # fmt: skip
    return result


def by_curve(lines: Sequence[Line]) -> list[dict[str, Any]]:
    """The median over devices of every case, per curve and dtype class."""
    result = []
    for curve, dtype in sorted({(line.curve, line.dtype) for line in lines}):
        members = [line for line in lines if (line.curve, line.dtype) == (curve, dtype)]
        medians = {case: round(float(np.median([m.median(case) for m in members])), 4) for case in CASES}
        result.append({"curve": curve, "dtype": dtype, "devices": len(members)} | medians)
    return result
