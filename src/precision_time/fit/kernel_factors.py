"""Fits the factors on kernels (`timing.kernel_factors`) to published steps and forward passes of hundreds of networks.

Writes `timing/data/kernel_factors.json`. The terms are those under which what was measured is most likely: a step or
pass is the sum of its kernels, each with its factors, and of what no kernel takes. Errors of rows of one model family
on one architecture in one precision, memory format and framework share an effect; rows of large families weigh less;
errors have Student's t distribution, so that networks with a mechanism that the model lacks move the terms little.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import cached_property, partial
from multiprocessing import get_context
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize

from precision_time.estimate.spread import SpreadTerms, widening
from precision_time.fit.kernel_design import by_device, classes_of, design_of, parts_of
from precision_time.fit.operator_rows import OPERATORS
from precision_time.fit.provenance import provenance, sha256
from precision_time.fit.traced import ROWS, WORKS, Traced, read
from precision_time.fit.traced_rows import (
    ALL,
    STEP_PARTS,
    is_forward,
    is_step,
    part_of,
    table_path,
    waits_for_others,
)
from precision_time.hardware.catalog import default_catalog
from precision_time.hardware.gpu import Gpu
from precision_time.measurements.digest import digests_of
from precision_time.measurements.row import Row
from precision_time.processes import cores
from precision_time.report.errors import ErrorStatistics, labels
from precision_time.report.table import Table
from precision_time.report.write import compact_json
from precision_time.shipped import write_shipped
from precision_time.timing.curves import Array
from precision_time.timing.device_order import TimesOf, in_order, times_on
from precision_time.timing.kernel_factors import (
    COMPUTE,
    FILE,
    HELPING,
    LARGEST,
    MEMORY,
    PARTS,
    KernelFactors,
)
from precision_time.timing.kernels import KernelModel, KernelTimes
from precision_time.timing.step_factors import Openness, seconds_by_group
from precision_time.timing.work import CONVOLUTIONS

OUTPUT = Path(__file__).parent.parent / "timing" / "data" / FILE
SHARED = 0.15
"""Standard deviation of the effect that rows of one family, architecture, precision and format share: chosen."""
SHARED_TIMM = 0.1
"""The same for image networks of timm, measured by one program: chosen."""
SHARED_ELSEWHERE = 0.2
"""The same for rows of another framework than PyTorch, whose libraries fuse and choose kernels otherwise: chosen."""
OWN = {"A": 0.08, "B": 0.10, "C": 0.30}
"""Standard deviations of a row's own error, by trust."""
CROWDING = 0.35
"""A row weighs as many rows of its family as there are to the power of minus this: chosen."""
FREEDOM = 3.0
"""Degrees of freedom of the errors' t distribution: chosen, as are the three above, by errors of families held out."""
RESTARTS = 4
ROUNDS = 2
"""After so many fits to all rows it is found again which works are timed as others (`Steps.replace_works`)."""
ROUNDED = 0.005
"""Share of its time by which a work differs from what it is timed as; less is due to rounded factors."""
LAUNCH_SPREAD = 0.3
"""Standard deviation of the log of what a step takes besides kernels: chosen."""
MOST_OTHER = 0.25
"""Rows whose step is to a larger share no kernels say little about kernels and are left out."""
LEAST_PER_CALL_S = {"torchvision_gpus.csv": 200e-6}
"""Rows with shorter kernels than this on average are left out: the old hosts of this table launch that slowly."""
LEAST_PER_CALL_DEFAULT_S = 20e-6


class Steps:
    """Traced rows prepared for fits: what their kernels take without factors, and the design of the factors."""

    def __init__(self, traced: Traced) -> None:
        self.traced = traced
        self.rows = traced.rows
        catalog = default_catalog()
        gpus = [catalog.gpu(name) for name in traced.gpu]
        self.arch = [gpu.arch for gpu in gpus]
        self.calls = traced.calls / traced.clock[traced.of_case]  # each as many as take its time at the catalog's clock
        self.parts = parts_of(traced, gpus)
        self.classes, self.class_of = classes_of(traced, gpus)
        self.design = design_of(traced, self.classes, self.class_of)
        self.convolves = np.array([of.family in CONVOLUTIONS for of in self.classes])[self.class_of]
        self.measured = np.array([row.measured_s for row in self.rows])
        self.partial = np.array([not is_step(row) for row in self.rows])
        self.keys = [self._key(row, case) for row, case in zip(self.rows, traced.case.tolist(), strict=True)]
        self.devices = list(by_device(traced, gpus))
        self.replaced = np.full(len(self.calls), np.nan)
        self.ordered = np.ones(len(self.calls))

    def _key(self, row: Row, case: int) -> str:
        """Rows with the same one share an effect."""
        what = "step" if is_step(row) else "forward" if is_forward(row) else part_of(row)
        memory_format = row.job.memory_format if row.job else ""
        source = "timm" if row.model.startswith("timm:") else row.framework
        return f"{what}|{row.family}|{self.arch[case]}|{row.precision}|{memory_format}|{source}"

    @cached_property
    def usable(self) -> NDArray[np.bool_]:
        """Rows that say something about kernels."""
        plain = self.seconds(np.zeros(len(self.design.names)))
        other = np.abs(self.traced.other_s) < MOST_OTHER * plain
        calls = np.bincount(self.traced.of_case, weights=self.traced.table.launches * self.traced.calls)
        per_call = self.measured / np.maximum(calls[self.traced.case], 1.0)
        least = np.array([LEAST_PER_CALL_S.get(_table_of(row), LEAST_PER_CALL_DEFAULT_S) for row in self.rows])
        least[[row.source in (STEP_PARTS, OPERATORS) for row in self.rows]] = 0.0
        return np.asarray(other & (per_call > least))

    @cached_property
    def fitted_to(self) -> NDArray[np.bool_]:
        """The usable rows without those whose several GPUs wait for more than kernels."""
        return np.asarray(self.usable & ~np.array([waits_for_others(row) for row in self.rows]))

    def seconds(self, theta: Array) -> Array:
        """Predicted seconds of every row with these log factors."""
        work_s = self.calls * self.in_order(self.factors(theta))
        of_job = np.bincount(self.traced.of_case, work_s, minlength=len(self.arch))
        return np.asarray(of_job[self.traced.case] + self.traced.other_s)

    def in_order(self, factors: KernelFactors) -> Array:
        """Seconds of every work at the catalog's clock, as `predict` times it: in the arithmetic that is faster and in
        the order of devices."""
        return self._timed(factors, in_order)

    def _timed(self, factors: KernelFactors, on: Callable[[Gpu, TimesOf], KernelTimes]) -> Array:
        model, seconds = KernelModel(scales={}, factors=factors), np.zeros(len(self.calls))
        for device in self.devices:
            times = on(device.gpu, partial(times_on, model, device.with_rivals, device.rival_of))
            seconds[device.at] = times.seconds
        return seconds

    def replace_works(self, theta: Array) -> None:
        """Take over from these log factors which works are timed as another arithmetic or device. The former take that
        time whatever the factors, so fits do not move by them; the latter share factors with the other device, and
        take the same multiple of their own time."""
        self.replaced[:], self.ordered[:] = np.nan, 1.0
        own, factors = self._works(theta)[0] / np.maximum(self.calls, 1e-30), self.factors(theta)
        widened = self._timed(factors, lambda gpu, times_of: times_of((gpu,))[gpu]) < (1.0 - ROUNDED) * own
        seconds = self.in_order(factors)
        self.replaced[widened], self.ordered = seconds[widened], np.where(widened, 1.0, seconds / own)

    def _kernels(self, theta: Array) -> tuple[Array, dict[str, Array]]:
        """Kernel seconds of every job, and the slope of every work's seconds over the log factor of each part."""
        seconds, _, slopes = self._works(theta)
        of_job = np.bincount(self.traced.of_case, weights=seconds, minlength=len(self.arch))
        return np.asarray(of_job, dtype=np.float64), slopes

    def _works(self, theta: Array) -> tuple[Array, Array, dict[str, Array]]:
        """Seconds of every work, those of helpers among them, and the slopes over the log factor of each part."""
        design, parts, calls = self.design, self.parts, self.calls * self.ordered
        raw = {part: design.slopes[part] @ theta for part in PARTS}
        logs = {part: np.clip(log, -LARGEST, LARGEST) for part, log in raw.items()}
        logs[COMPUTE] = np.where(self.convolves, logs[COMPUTE], logs[MEMORY])
        compute, memory = parts.compute * np.exp(logs[COMPUTE]), parts.memory * np.exp(logs[MEMORY])
        high = np.maximum(np.maximum(compute, memory), 1e-30)
        by_compute, by_memory = (compute / high) ** parts.power, (memory / high) ** parts.power
        total = np.maximum(by_compute + by_memory, 1e-30)
        direct, weight = high * total ** (1.0 / parts.power), by_compute / total
        rival = parts.rival * np.exp(logs[COMPUTE])
        busy = np.minimum(direct, rival) * parts.correction
        weight = np.where(rival < direct, 1.0, weight)
        helping = parts.helpers * np.exp(logs[HELPING])
        free, replaced = calls * (busy + helping > parts.floor), ~np.isnan(self.replaced)
        seconds = calls * (np.maximum(busy + helping, parts.floor) + parts.start)
        seconds[replaced], free[replaced] = (calls * self.replaced)[replaced], 0.0
        of_memory = np.where(self.convolves, 1.0 - weight, 1.0)
        slopes = {
            COMPUTE: free * busy * np.where(self.convolves, weight, 0.0),
            MEMORY: free * busy * of_memory,
            HELPING: free * helping,
        }
        moving = {part: slope * (np.abs(raw[part]) < LARGEST) for part, slope in slopes.items()}
        return seconds, calls * helping, moving

    def widening(self, openness: Openness) -> Array:
        """What the job of every row adds to the standard deviation of log(step time), as `estimate.spread` has it.

        All seconds besides kernels count as launches. `openness`: what whole steps leave open of the step factors.
        """
        work_s, helping, _ = self._works(self.full)
        jobs, classes, table = len(self.arch), self.traced.table.classes, self.traced.table
        place = self.traced.of_case * len(classes) + table.class_of

        def by_class(values: Array) -> Array:
            sums = np.bincount(place, weights=values, minlength=jobs * len(classes))
            return np.asarray(sums.reshape(jobs, len(classes)), dtype=np.float64)

        spent, helped = by_class(work_s), by_class(helping)
        kernel = np.sqrt((by_class(work_s * self.parts.log_spread) ** 2).sum(axis=1))
        other = np.zeros(jobs)
        other[self.traced.case] = np.maximum(self.traced.other_s, 0.0)
        step = spent.sum(axis=1) + other
        found = np.zeros(jobs)
        for job in range(jobs):
            used = np.flatnonzero(spent[job])
            groups = seconds_by_group([classes[i] for i in used], spent[job, used], helped[job, used], self.arch[job])
            factors = openness.log_spread(groups, step[job])
            share = other[job] / step[job]
            found[job] = widening(SpreadTerms(kernel[job] / step[job], factors, share, LAUNCH_SPREAD, 0.0, 0.0))
        return np.asarray(found[self.traced.case])

    def fit(self, train: NDArray[np.bool_], start: Array | None = None, iterations: int = 120) -> Array:
        """The most likely log factors given the rows of `train` (a mask); `start`: log factors to begin with."""
        at = np.flatnonzero(train & self.fitted_to)
        keys = [self.keys[i] for i in at]
        crowd = Counter(keys)
        cells, cell = np.unique(keys, return_inverse=True)
        weight = np.array([crowd[key] for key in keys], dtype=np.float64) ** -CROWDING
        own = np.array([OWN.get(self.rows[i].trust, OWN["C"]) for i in at])
        shared_of = np.array([_shared(key) for key in cells])
        case, other, target = self.traced.case[at], self.traced.other_s[at], np.log(self.measured[at])
        widths, count = self.design.widths, len(self.design.widths)

        def loss(z: Array) -> tuple[float, Array]:
            kernels, slopes = self._kernels(z[:count] * widths)
            step = np.maximum(kernels[case] + other, 1e-6)
            error = (np.log(step) - target + (shared_of * z[count:])[cell]) / own
            square = error**2 / FREEDOM
            cost = 0.5 * (FREEDOM + 1.0) * np.log1p(square)
            pull = weight * (FREEDOM + 1.0) / FREEDOM * error / (1.0 + square) / own
            of_job = np.bincount(case, weights=pull / step, minlength=len(kernels))[self.traced.of_case]
            gradient = sum(self.design.transposed[part] @ (slopes[part] * of_job) for part in PARTS)
            shared = shared_of * np.bincount(cell, weights=pull, minlength=len(cells))
            total = float(weight @ cost) + 0.5 * float(z @ z)
            return total, np.concatenate([gradient * widths, shared]) + z

        first = np.zeros(count + len(cells))
        if start is not None:
            first[:count] = start / widths
        options = {"maxiter": iterations, "maxcor": 20, "ftol": 1e-6}
        for _ in range(RESTARTS):  # a line search can end at a kink, where a kernel reaches its floor
            found = minimize(loss, first, jac=True, method="L-BFGS-B", options=options)
            first = found.x
            if found.success:
                break
        return np.asarray(first[:count] * widths, dtype=np.float64)

    @cached_property
    def full(self) -> Array:
        """The log factors fitted to all rows."""
        every, theta = np.ones(len(self.rows), dtype=np.bool_), None
        for _ in range(ROUNDS):
            theta = self.fit(every, theta)
            self.replace_works(theta)
        return self.fit(every, theta)

    def without(self, left_out: Sequence[bool] | NDArray[np.bool_]) -> Array:
        """The log factors fitted without some rows. The search begins at those of all rows, which decides nothing."""
        return self.fit(~np.asarray(left_out, dtype=np.bool_), self.full, iterations=40)

    def without_each(self, left_out: Sequence[Sequence[bool] | NDArray[np.bool_]]) -> Iterator[Array]:
        """`without` of each mask in order, by as many processes as there are cores."""
        self.full  # noqa: B018 - found once, and not in every process
        with ProcessPoolExecutor(cores(), get_context("fork"), _share, (self,)) as pool:
            yield from pool.map(_without, left_out)

    def factors(self, theta: Array) -> KernelFactors:
        """These log factors as kernel timing reads them; what changes no time by 0.1 % is left out."""
        found = self.design
        curve_columns = {column for first, count in found.knots.values() for column in range(first, first + count)}
        constants = {
            name: round(float(value), 4)
            for column, (name, value) in enumerate(zip(found.names, theta, strict=True))
            if column not in curve_columns and abs(value) >= 0.0005
        }
        shaped = {
            name: [round(float(value), 3) for value in theta[first : first + count]]
            for name, (first, count) in found.knots.items()
            if np.abs(theta[first : first + count]).max() >= 0.001
        }
        return KernelFactors(dict(sorted(constants.items())), dict(sorted(shaped.items())))


_SHARED: list[Steps] = []
"""In a process of `Steps.without_each`: the steps, as they were when it was forked."""


def _share(steps: Steps) -> None:
    _SHARED.append(steps)


def _without(left_out: Sequence[bool] | NDArray[np.bool_]) -> Array:
    return _SHARED[0].without(left_out)


def _shared(key: str) -> float:
    """Standard deviation of the effect that the rows with a key (`Steps.keys`) share."""
    source = key.rpartition("|")[2]
    return SHARED_TIMM if source == "timm" else SHARED if source == "pytorch" else SHARED_ELSEWHERE


def _table_of(row: Row) -> str:
    """The table of a row that has a host of its own kind."""
    return "torchvision_gpus.csv" if row.model.startswith("torchvision:") else ""


@dataclass(frozen=True, slots=True)
class HeldOutSteps:
    """Predicted seconds of every row by factors fitted without its fold; NaN for rows that fit no kernels."""

    seconds: Array
    fold: tuple[str, ...]


def cross_validate(
    steps: Steps, fold: Callable[[Row], str], progress: Callable[[str], None] = lambda name: None, most: int = 12
) -> HeldOutSteps:
    """Every row judged by factors fitted without its fold; small folds are left out together, in `most` fits."""
    names = [fold(row) for row in steps.rows]
    sizes_of = Counter(names)
    groups: list[list[str]] = [[] for _ in range(min(most, len(sizes_of)))]
    loads = [0] * len(groups)
    for name, count in sorted(sizes_of.items(), key=lambda each: (-each[1], each[0])):
        lightest = loads.index(min(loads))
        groups[lightest].append(name)
        loads[lightest] += count
    seconds = np.full(len(names), np.nan)
    masks = [np.isin(names, group) for group in groups]
    for number, (out, theta) in enumerate(zip(masks, steps.without_each(masks), strict=True), 1):
        progress(f"{number}/{len(groups)}")
        seconds[out] = steps.seconds(theta)[out]
    return HeldOutSteps(np.where(steps.usable, seconds, np.nan), tuple(names))


def _summary(steps: Steps, runs: Mapping[str, Array]) -> Table:
    fields = ("n", "mape", "median_ape", "signed_mean", "p90_ape")
    image = np.array([row.model.startswith("timm:") for row in steps.rows]) & ~steps.partial
    last = np.array([row.job is not None and row.job.memory_format == "nhwc" for row in steps.rows])
    trusted = np.array([row.trust != "C" for row in steps.rows])
    kinds = {
        "image networks": image,
        "image networks, NHWC": image & last,
        "other steps": ~image & ~steps.partial,
        "forward passes, parts and operators": steps.partial,
    }
    rows = []
    for name, seconds in runs.items():
        for kind, mask in kinds.items():
            errors = (seconds / steps.measured - 1.0)[mask & trusted & steps.usable]
            rows.append([name, kind, *ErrorStatistics.of(errors.tolist(), [True] * len(errors)).cells(fields)])
    return Table(["factors on kernels", "rows of trust A and B", *labels(fields)], rows)


def run(tables: Path, judge_only: bool = False) -> None:
    """Fit the factors to the traced rows below `tables`, print errors, and write them unless `judge_only`."""
    steps = Steps(read(tables))
    full = steps.full
    judged = cross_validate(
        steps, lambda row: row.family, lambda text: print(f"\rfold {text}", end="", file=sys.stderr)
    )
    print(file=sys.stderr)
    runs = {
        "none": steps.seconds(np.zeros(len(full))),
        "fitted": steps.seconds(full),
        "held out by family": judged.seconds,
    }
    print(_summary(steps, runs))
    if judge_only:
        return
    factors = steps.factors(full)
    content = {
        "provenance": {
            **provenance("kernel_factors", tables / WORKS, int(steps.fitted_to.sum())),
            "rows_sha256": sha256(tables / ROWS),
            "row_digests": digests_of(row.digest for row in steps.rows if row.digest),
            "tables": {name: sha256(table_path(tables, name)) for name in ALL},
            "shared_error": SHARED,
            "shared_error_of_timm": SHARED_TIMM,
            "shared_error_of_other_frameworks": SHARED_ELSEWHERE,
            "degrees_of_freedom": FREEDOM,
            "own_errors": OWN,
        },
        "constants": factors.constants,
        "curves": factors.curves,
    }
    write_shipped(OUTPUT, compact_json(content) + "\n")
    print(f"{len(factors.constants)} terms and {len(factors.curves)} curves -> {OUTPUT}", file=sys.stderr)
