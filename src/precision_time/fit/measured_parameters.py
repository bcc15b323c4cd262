"""Parameter sets from folders of `measure`: the part `own` of kernels.json, keyed "family.variant|dtype class".

Products and attention are fitted to the rows of the kernel tables on the same device too. Both weigh the same, and the
rows of the tables, which other libraries ran, may differ from ours by one factor and one call overhead. Convolutions
and recurrent layers depart from the device's products, depthwise convolutions are a share of the vector peak, all other
families a share of bandwidth.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from precision_time.fit.kernel_curves import EFFICIENCY, FREE, Free, predict, solve
from precision_time.fit.kernel_tables import SEED, Rows
from precision_time.fit.measured_points import Key, MeasuredFolder, MeasuredGroup
from precision_time.timing.curves import PARAMETERS, Array
from precision_time.timing.kernels import KernelModel, WorkTable, compute_peak
from precision_time.timing.parameters import ParameterBook
from precision_time.timing.work import ATTENTION, CONV, MATMUL, MEMORY_FAMILIES, VECTOR_CONVOLUTIONS, WINOGRAD, Work

Sets = dict[str, dict[str, Any]]
Values = dict[str, float]

FEWEST = 6
"""With fewer rows a variant is pooled with its pass, then with its family, and a family is not fitted."""
_FULL = 40
"""With so many rows, products get all parameters where the tables have none of the device, and families that depart
from products get an efficiency for every tile size."""
_LEAST_SHARE = 0.3
"""Least share of an operator's time that must remain after the predicted time of its other works is subtracted."""
_PULL = 0.1
"""Weight of a departure from the start by one span, against a residual of log time: fixes undetermined numbers."""
_NOISE = 0.1
"""Spread of a point at which its weight is 0.7 of that of a noiseless one."""
_LEAST_SPREAD = 0.02
_HELD_OUT = 0.2
"""Share of the rows, drawn at random, that is held out once to be judged."""

_TRAFFIC: Free = {"memory": (0.5, 0.005, 1.0), "start": (3e-6, 3e-7, 3e-4)}
_POWER: Free = {"power": (3.0, 1.3, 12.0)}
_DIFFERENCE: Free = {"factor": (1.0, 0.3, 3.0), "overhead": (5e-6, 0.0, 1e-4)}
"""How the rows of the kernel tables may differ: they determine the shape of a curve, our rows its level."""


@dataclass(frozen=True, slots=True)
class Sample:
    """Rows of one device at one peak, their works as arrays, and the weight of each row."""

    rows: Rows
    table: WorkTable
    weight: Array

    def only(self, chosen: NDArray[np.bool_]) -> Sample:
        """The chosen rows."""
        works = [work for work, wanted in zip(self.rows.works, chosen.tolist(), strict=True) if wanted]
        rows = replace(self.rows, works=works, seconds=self.rows.seconds[chosen])
        return Sample(rows, WorkTable.from_works(works), self.weight[chosen])


@dataclass(frozen=True, slots=True)
class Solution:
    """Values of a set, of its Winograd alternative (fp32 convolutions), and the difference of the tables' rows."""

    values: Values
    rival: Values | None
    difference: Values

    def log_error(self, samples: Sequence[Sample]) -> Array:
        """log(predicted / measured) of each row."""
        parts = [np.log(predict(s.table, s.rows, self.values, self.rival) / s.rows.seconds) for s in samples]
        return np.asarray(np.concatenate(parts), dtype=np.float64)


@dataclass(frozen=True, slots=True)
class Problem:
    """One set to fit: our rows, the tables' rows of the same class and device, the products that some families depart
    from, and the Winograd kernels that a dilated convolution in fp32 may run instead.
    """

    family: str
    samples: Sequence[Sample]
    table_rows: Sequence[Rows]
    product: Values
    winograd: Values

    @property
    def count(self) -> int:
        """Our rows."""
        return sum(len(sample.rows) for sample in self.samples)

    def solved(self) -> Solution:
        """The values with the smallest residuals of log time."""
        rivals = any(len(sample.table.rivals) for sample in self.samples)
        full = bool(self.table_rows) or self.count >= _FULL
        free, expand = _free(self.family, full, rivals and self.family == CONV, self.product)
        if self.table_rows:
            exact = all(rows.exact for rows in self.table_rows)
            free = {**free, **{name: bounds for name, bounds in _DIFFERENCE.items() if name == "factor" or not exact}}
        start = np.array([bounds[0] for bounds in free.values()])
        span = np.array([high - low for _, low, high in free.values()])
        tables = [WorkTable.from_works(rows.works) for rows in self.table_rows]
        equal = np.sqrt(self.count / max(sum(len(rows) for rows in self.table_rows), 1))

        def solution(x: Array) -> Solution:
            named = dict(zip(free, x.tolist(), strict=True))
            difference = {name: named.pop(name) for name in _DIFFERENCE if name in named}
            values, rival = expand(named)
            return Solution(values, self.winograd if rivals and rival is None else rival, difference)

        def residual(x: Array) -> Array:
            current = solution(x)
            parts = [np.concatenate([sample.weight for sample in self.samples]) * current.log_error(self.samples)]
            for table, rows in zip(tables, self.table_rows, strict=True):
                overhead = 0.0 if rows.exact else current.difference["overhead"]
                seconds = predict(table, rows, current.values) * current.difference["factor"] + overhead
                parts.append(equal * np.log(seconds / rows.seconds))
            return np.concatenate([*parts, _PULL * (x - start) / span])

        return solution(solve(residual, free))

    def held_out(self) -> Array:
        """log(predicted / measured) of a fifth of the rows by a set fitted without them; the same rows every time."""
        places = np.random.default_rng(SEED).permutation(self.count)
        last = np.split(places < max(_HELD_OUT * self.count, 1.0), np.cumsum([len(s.rows) for s in self.samples])[:-1])
        sides: tuple[list[Sample], list[Sample]] = ([], [])
        for sample, held_out in zip(self.samples, last, strict=True):
            for side, chosen in zip(sides, (held_out, ~held_out), strict=True):
                if chosen.any():
                    side.append(sample.only(chosen))
        return replace(self, samples=sides[1]).solved().log_error(sides[0])


def fit_measured(
    folders: Sequence[MeasuredFolder], table_rows: Sequence[Rows], sets: Sets, apart: frozenset[str] = frozenset()
) -> tuple[Sets, list[dict[str, Any]]]:
    """The sets fitted to `folders`, and a table of their errors.

    `table_rows` and `sets` are the rows and sets of the kernel tables. Devices in `apart` are left out of the sets of
    their architecture in families that arithmetic limits. The errors are those of our rows by these sets, of a fifth of
    the rows held out, and of the earlier prediction ("before", with the factors of whole steps).
    """
    fitted: Sets = {}
    report: list[dict[str, Any]] = []
    before = KernelModel(fitted={"sets": sets})
    for key, variants, groups in _cells(folders):
        family, _, kind = key
        parameters = {"sets": sets, "own": fitted}
        model, book = KernelModel(scales={}, fitted=parameters), ParameterBook(scales={}, fitted=parameters)
        by_device: dict[str, list[Sample]] = {}
        for group in groups:
            by_device.setdefault(group.gpu.kernel_name, []).extend(samples_of(group, model))
        for chip, names in _chips(groups, frozenset() if family in MEMORY_FAMILIES else apart):
            samples = [sample for name in names for sample in by_device[name]]
            if sum(len(sample.rows) for sample in samples) < FEWEST:
                continue
            if chip not in by_device and len(names) == 1:  # an architecture of one device
                rival = fitted.get(_winograd(key), {}).get(names[0]) if family == CONV else None
                _enter(fitted, key, chip, fitted[f"{_name(key)}|{kind}"][names[0]], rival)
                continue
            rows = [r for r in table_rows if _same_class(r, family, kind, variants) and r.gpu.kernel_name in names]
            problem = _problem(key, variants, samples, rows, book)
            solved = problem.solved()
            described = _described(problem, solved, variants)
            rival = {**described, "values": _rounded(solved.rival)} if family == CONV and solved.rival else None
            _enter(fitted, key, chip, described, rival)
            if chip in by_device:
                errors = _judged(problem, solved, before)
                report.append({"kernels": _name(key), "dtype": kind, "gpu": chip, **errors})
    return fitted, report


def _problem(
    key: Key, variants: Sequence[str], samples: list[Sample], table_rows: list[Rows], book: ParameterBook
) -> Problem:
    """The fit of one set, with the products and Winograd kernels that `book` has for its device."""
    family, _, kind = key
    gpu = samples[0].rows.gpu
    product, winograd = (
        dict(zip(PARAMETERS, book.resolve(base, variant, kind, gpu.kernel_name, gpu.arch).values.tolist(), strict=True))
        for base, variant in ((MATMUL, ""), (WINOGRAD, variants[0]))
    )
    return Problem(family, samples, table_rows, product, winograd)


# --- which rows make a set


def _cells(folders: Sequence[MeasuredFolder]) -> list[tuple[Key, list[str], list[MeasuredGroup]]]:
    """Key, variants and groups of every set, ordered so that sets which other sets need come first.

    A variant with too few rows on every device shares a set with its pass in any layout, then with its family; that
    set has the rows of all variants below its name.
    """
    by_key: dict[Key, list[MeasuredGroup]] = {}
    for folder in folders:
        for group in folder.groups:
            by_key.setdefault(group.key, []).append(group)
    cells = {key: ([key[1]], groups) for key, groups in by_key.items() if _most(groups) >= FEWEST}
    for family, variant, kind in [key for key in by_key if key not in cells]:
        for name in dict.fromkeys((variant.partition(".")[0], "")):
            below = [key for key in by_key if (key[0], key[2]) == (family, kind) and key[1].startswith(name)]
            pooled = [group for key in below for group in by_key[key]]
            if _most(pooled) >= FEWEST:
                cells.setdefault((family, name, kind), (sorted(key[1] for key in below), pooled))
                break

    def order(key: Key) -> tuple[bool, bool, Key]:
        return any(member.others for group in cells[key][1] for member in group.members), key[0] != MATMUL, key

    return [(key, *cells[key]) for key in sorted(cells, key=order)]


def _most(groups: Sequence[MeasuredGroup]) -> int:
    """Rows of the device with most of them."""
    return max(sum(len(g.members) for g in groups if g.gpu == gpu) for gpu in {g.gpu for g in groups})


def _chips(groups: Sequence[MeasuredGroup], apart: frozenset[str]) -> Iterable[tuple[str, list[str]]]:
    """Every device alone, then every architecture with its devices that are not `apart`."""
    arch_of = {group.gpu.kernel_name: group.gpu.arch for group in groups}
    for name in sorted(arch_of):
        yield name, [name]
    for arch in sorted(set(arch_of.values())):
        names = sorted(name for name in arch_of if arch_of[name] == arch and name not in apart)
        if names:
            yield f"arch:{arch}", names


def samples_of(group: MeasuredGroup, model: KernelModel) -> list[Sample]:
    """Rows of a group by peak, less the time that `model` predicts for the other works of each operator."""
    family, _, kind = group.key
    curve = "traffic" if family in MEMORY_FAMILIES else MATMUL
    curve = {ATTENTION: "attention", **dict.fromkeys(VECTOR_CONVOLUTIONS, "direct")}.get(family, curve)
    by_peak: dict[float, list[tuple[Work, float, float]]] = {}
    for member in group.members:
        others_s = float(model.seconds(member.others, group.gpu).seconds.sum()) if member.others else 0.0
        if member.seconds - others_s >= _LEAST_SHARE * member.seconds:
            net = (member.work, (member.seconds - others_s) / member.count, member.spread)
            by_peak.setdefault(compute_peak(group.gpu, member.work.math, kind), []).append(net)
    samples = []
    for net_rows in by_peak.values():
        works = [work for work, _, _ in net_rows]
        seconds, spread = (np.array([row[i] for row in net_rows], dtype=np.float64) for i in (1, 2))
        rows = Rows(curve, kind, group.gpu, works, seconds, True, group.file)
        samples.append(Sample(rows, WorkTable.from_works(works), _NOISE / np.hypot(_NOISE, spread)))
    return samples


def _same_class(rows: Rows, family: str, kind: str, variants: Sequence[str]) -> bool:
    """Whether rows of the tables belong to this class: products and forward attention."""
    same = (rows.curve, rows.kind) == (family, kind)
    return same and (family == MATMUL or (family == ATTENTION and "fwd" in variants))


def _name(key: Key) -> str:
    return f"{key[0]}.{key[1]}" if key[1] else key[0]


# --- parameters of a family

Expand = Callable[[Values], tuple[Values, Values | None]]


def _free(family: str, full: bool, rivals: bool, product: Values) -> tuple[Free, Expand]:
    """The fitted numbers of a family, and the function that makes parameters and Winograd parameters of them."""
    if family in MEMORY_FAMILIES:
        return _TRAFFIC, _unchanged
    if family in VECTOR_CONVOLUTIONS:
        return {"e256x128": (0.1, 0.002, 1.0), **_TRAFFIC, **_POWER}, _unchanged
    if family == ATTENTION or (family == MATMUL and full):
        return FREE[family], _unchanged
    algorithms = ("direct", "winograd") if rivals else ("direct",)
    free = {name: (product[name], low, high) for name, (_, low, high) in EFFICIENCY.items() if full}
    free |= dict.fromkeys(algorithms, (0.8, 0.02, 1.5))
    free |= {f"{algorithm}_k0": (product["k0"], 0.0, 1500.0) for algorithm in algorithms}
    free |= {"stream": (product["stream"], 0.05, 1.0), "reduce": (product["reduce"], 0.0, 4.0)}
    free |= {"memory": (0.7, 0.02, 1.0), **({"transforms": (0.7, 0.1, 1.0)} if rivals else {})}
    free |= {"start": _TRAFFIC["start"], **_POWER}

    def depart(named: Values) -> tuple[Values, Values | None]:
        results = []
        for algorithm in algorithms:
            values = {name: min(1.0, named.get(name, product[name]) * named[algorithm]) for name in EFFICIENCY}
            values |= {name: named[name] for name in ("stream", "reduce", "memory", "start", "power")}
            results.append({**values, "k0": named[f"{algorithm}_k0"], "wave": product["wave"]})
        return results[0], {**results[1], "memory": named["transforms"]} if rivals else None

    return free, depart


def _unchanged(named: Values) -> tuple[Values, Values | None]:
    return named, None


# --- contents of kernels.json


def _enter(fitted: Sets, key: Key, chip: str, described: dict[str, Any], rival: dict[str, Any] | None) -> None:
    fitted.setdefault(f"{_name(key)}|{key[2]}", {})[chip] = described
    if rival is not None:
        fitted.setdefault(_winograd(key), {})[chip] = rival


def _winograd(key: Key) -> str:
    return f"{_name((WINOGRAD, *key[1:]))}|{key[2]}"


def _described(problem: Problem, solved: Solution, variants: Sequence[str]) -> dict[str, Any]:
    error = solved.log_error(problem.samples)
    size = np.abs(np.expm1(error))
    # Half the width of the middle 68 %, more where few rows determine many numbers.
    few = problem.count / max(problem.count - len(solved.values), problem.count / 3)
    spread = float(np.subtract(*np.percentile(error, [84, 16])) / 2) * few**0.5
    files = [sample.rows.source for sample in problem.samples] + [rows.source for rows in problem.table_rows]
    described = {
        "values": _rounded(solved.values),
        "variants": list(variants),
        "log_spread": round(max(spread, _LEAST_SPREAD), 4),
        "rows": problem.count,
        "gpus": sorted({sample.rows.gpu.kernel_name for sample in problem.samples}),
        "file": " + ".join(dict.fromkeys(files)),
        "median_error": round(float(np.median(size)), 4),
        "p90_error": round(float(np.percentile(size, 90)), 4),
    }
    if problem.table_rows:
        rows = sum(len(rows) for rows in problem.table_rows)
        described["others"] = {"rows": rows, **_rounded(solved.difference)}
    return described


def _rounded(values: Values) -> Values:
    return {name: round(value, 9) for name, value in values.items()}


def _judged(problem: Problem, solved: Solution, before: KernelModel) -> dict[str, Any]:
    old = [np.log(before.seconds(s.table, s.rows.gpu).seconds / s.rows.seconds) for s in problem.samples]
    errors = solved.log_error(problem.samples), problem.held_out(), np.concatenate(old)
    fitted, unseen, guessed = (np.abs(np.expm1(error)) for error in errors)
    numbers = {
        "median": np.median(fitted),
        "p90": np.percentile(fitted, 90),
        "held-out median": np.median(unseen),
        "held-out p90": np.percentile(unseen, 90),
        "before": np.median(guessed),
    }
    return {"rows": problem.count, **{name: round(float(value), 4) for name, value in numbers.items()}}
