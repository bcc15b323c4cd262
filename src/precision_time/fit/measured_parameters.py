"""Parameter sets from our own measurements: the `own` part of kernels.json, keyed "family.variant|dtype class".

Products and attention keep what others measured on the same device beside our rows: both weigh the same, and others'
rows, which other libraries ran, may differ from ours by one factor and one call overhead. Convolutions and recurrent
layers depart from the device's products, depthwise ones are a share of the vector peak, all else a share of bandwidth.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from precision_time.fit.kernel_curves import EFFICIENCY, FREE, Free, predict, solve
from precision_time.fit.kernel_tables import SEED, Rows
from precision_time.fit.measured_points import Key, OwnFolder, OwnGroup
from precision_time.timing.curves import PARAMETERS, Array
from precision_time.timing.kernels import KernelModel, WorkTable, compute_peak
from precision_time.timing.parameters import ParameterBook
from precision_time.timing.work import ATTENTION, CONV, CONV_DEPTHWISE, MATMUL, MEMORY_FAMILIES, WINOGRAD, Work

Sets = dict[str, dict[str, Any]]
Values = dict[str, float]

FEWEST = 6
"""Rows below which a variant is pooled with its pass, then with its family, and a family is left as it was."""
_FULL = 40
"""Rows from which products get every parameter of their own where others measured none on the device, and what departs
from products an efficiency for every size of tile."""
_OWN_SHARE = 0.3
"""Of an operator's time, what must be left to a work when the works beside it are taken off."""
_PULL = 0.1
"""Weight of one span away from the start, against a residual of log time: holds the numbers that no row needs."""
_NOISE = 0.1
"""Spread of a point at which it weighs 0.7 of a quiet one."""
_LEAST_SPREAD = 0.02
_HELD_OUT = 0.2
"""Share of the rows, drawn at random, that is held out once to be judged."""

_TRAFFIC: Free = {"memory": (0.5, 0.005, 1.0), "start": (3e-6, 3e-7, 3e-4)}
_POWER: Free = {"power": (3.0, 1.3, 12.0)}
_OTHERS: Free = {"factor": (1.0, 0.3, 3.0), "overhead": (5e-6, 0.0, 1e-4)}
"""What rows of others may differ by. They tell the shape of a curve; how fast this library is, ours tell."""


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
class Found:
    """Values of a set, those of its Winograd rival (fp32 convolutions), and what others' rows differ by."""

    values: Values
    rival: Values | None
    others: Values

    def log_error(self, samples: Sequence[Sample]) -> Array:
        """log(predicted / measured) of each row."""
        parts = [np.log(predict(s.table, s.rows, self.values, self.rival) / s.rows.seconds) for s in samples]
        return np.asarray(np.concatenate(parts), dtype=np.float64)


@dataclass(frozen=True, slots=True)
class Problem:
    """One set to find: our rows, others' rows of the same class and device, the products that some depart from, and
    the Winograd kernels that a dilated convolution in fp32 may run instead.
    """

    family: str
    samples: Sequence[Sample]
    theirs: Sequence[Rows]
    product: Values
    winograd: Values

    @property
    def count(self) -> int:
        return sum(len(sample.rows) for sample in self.samples)

    def solved(self) -> Found:
        rivals = any(len(sample.table.rivals) for sample in self.samples)
        full = bool(self.theirs) or self.count >= _FULL
        free, expand = _free(self.family, full, rivals and self.family == CONV, self.product)
        if self.theirs:
            exact = all(rows.exact for rows in self.theirs)
            free = {**free, **{name: bounds for name, bounds in _OTHERS.items() if name == "factor" or not exact}}
        start = np.array([bounds[0] for bounds in free.values()])
        span = np.array([high - low for _, low, high in free.values()])
        tables = [WorkTable.from_works(rows.works) for rows in self.theirs]
        equal = np.sqrt(self.count / max(sum(len(rows) for rows in self.theirs), 1))

        def found(x: Array) -> Found:
            named = dict(zip(free, x.tolist(), strict=True))
            others = {name: named.pop(name) for name in _OTHERS if name in named}
            values, rival = expand(named)
            return Found(values, self.winograd if rivals and rival is None else rival, others)

        def residual(x: Array) -> Array:
            here = found(x)
            parts = [np.concatenate([sample.weight for sample in self.samples]) * here.log_error(self.samples)]
            for table, rows in zip(tables, self.theirs, strict=True):
                overhead = 0.0 if rows.exact else here.others["overhead"]
                seconds = predict(table, rows, here.values) * here.others["factor"] + overhead
                parts.append(equal * np.log(seconds / rows.seconds))
            return np.concatenate([*parts, _PULL * (x - start) / span])

        return found(solve(residual, free))

    def held_out(self) -> Array:
        """log(predicted / measured) of a fifth of the rows by a set that never saw them; the same rows every time."""
        places = np.random.default_rng(SEED).permutation(self.count)
        last = np.split(places < max(_HELD_OUT * self.count, 1.0), np.cumsum([len(s.rows) for s in self.samples])[:-1])
        sides: tuple[list[Sample], list[Sample]] = ([], [])
        for sample, mine in zip(self.samples, last, strict=True):
            for side, chosen in zip(sides, (mine, ~mine), strict=True):
                if chosen.any():
                    side.append(sample.only(chosen))
        return replace(self, samples=sides[1]).solved().log_error(sides[0])


def fit_own(
    folders: Sequence[OwnFolder], others: Sequence[Rows], sets: Sets, apart: frozenset[str] = frozenset()
) -> tuple[Sets, list[dict[str, Any]]]:
    """The `own` sets, and a table of errors: of our rows by these sets, of rows held out, and as they were predicted
    until now ("before": with the factors of whole steps).

    `others` and `sets` are the rows and sets of the kernel tables. Devices in `apart` do not speak for their
    architecture where arithmetic limits.
    """
    own: Sets = {}
    report: list[dict[str, Any]] = []
    before = KernelModel(fitted={"sets": sets})
    for key, variants, groups in _cells(folders):
        family, _, kind = key
        label = f"{_name(key)}|{kind}"
        model = KernelModel(scales={}, fitted={"sets": sets, "own": own})
        book = ParameterBook(scales={}, fitted={"sets": sets, "own": own})
        by_device: dict[str, list[Sample]] = {}
        for group in groups:
            by_device.setdefault(group.gpu.kernel_name, []).extend(samples_of(group, model))
        for chip, names in _chips(groups, frozenset() if family in MEMORY_FAMILIES else apart):
            samples = [sample for name in names for sample in by_device[name]]
            if sum(len(sample.rows) for sample in samples) < FEWEST:
                continue
            if chip not in by_device and len(names) == 1:  # an architecture of one device
                rival = own.get(_winograd(key), {}).get(names[0]) if family == CONV else None
                _enter(own, key, chip, own[label][names[0]], rival)
                continue
            theirs = [rows for rows in others if _alike(rows, family, kind, variants) and rows.gpu.kernel_name in names]
            gpu = samples[0].rows.gpu
            product, winograd = (
                dict(zip(PARAMETERS, found.values.tolist(), strict=True))
                for found in (
                    book.resolve(MATMUL, "", kind, gpu.kernel_name, gpu.arch),
                    book.resolve(WINOGRAD, variants[0], kind, gpu.kernel_name, gpu.arch),
                )
            )
            problem = Problem(family, samples, theirs, product, winograd)
            solved = problem.solved()
            said = _described(problem, solved, variants)
            rival = {**said, "values": _rounded(solved.rival)} if family == CONV and solved.rival else None
            _enter(own, key, chip, said, rival)
            if chip in by_device:
                report.append({"kernels": _name(key), "dtype": kind, "gpu": chip, **_judged(problem, solved, before)})
    return own, report


# --- which rows make a set --------------------------------------------------------------------------------------------


def _cells(folders: Sequence[OwnFolder]) -> list[tuple[Key, list[str], list[OwnGroup]]]:
    """What gets a set: its key, the variants it stands for, its groups; those that others' times rest on come first.

    A variant with too few rows on every device shares a set with its pass in any layout, then with its family; that
    set has the rows of all variants below its name.
    """
    by_key: dict[Key, list[OwnGroup]] = {}
    for folder in folders:
        for group in folder.groups:
            by_key.setdefault(group.key, []).append(group)
    found = {key: ([key[1]], groups) for key, groups in by_key.items() if _most(groups) >= FEWEST}
    for family, variant, kind in [key for key in by_key if key not in found]:
        for name in dict.fromkeys((variant.partition(".")[0], "")):
            below = [key for key in by_key if (key[0], key[2]) == (family, kind) and key[1].startswith(name)]
            pooled = [group for key in below for group in by_key[key]]
            if _most(pooled) >= FEWEST:
                found.setdefault((family, name, kind), (sorted(key[1] for key in below), pooled))
                break

    def order(key: Key) -> tuple[bool, bool, Key]:
        return any(member.beside for group in found[key][1] for member in group.members), key[0] != MATMUL, key

    return [(key, *found[key]) for key in sorted(found, key=order)]


def _most(groups: Sequence[OwnGroup]) -> int:
    """Rows of the device with most of them."""
    return max(sum(len(g.members) for g in groups if g.gpu == gpu) for gpu in {g.gpu for g in groups})


def _chips(groups: Sequence[OwnGroup], apart: frozenset[str]) -> Iterable[tuple[str, list[str]]]:
    """Every device by itself, then every architecture with the devices that speak for it."""
    arch_of = {group.gpu.kernel_name: group.gpu.arch for group in groups}
    for name in sorted(arch_of):
        yield name, [name]
    for arch in sorted(set(arch_of.values())):
        names = sorted(name for name in arch_of if arch_of[name] == arch and name not in apart)
        if names:
            yield f"arch:{arch}", names


def samples_of(group: OwnGroup, model: KernelModel) -> list[Sample]:
    """Rows of a group by peak, net of what ran beside them as `model` prices it."""
    family, _, kind = group.key
    curve = "traffic" if family in MEMORY_FAMILIES else MATMUL
    curve = {ATTENTION: "attention", CONV_DEPTHWISE: "direct"}.get(family, curve)
    by_peak: dict[float, list[tuple[Work, float, float]]] = {}
    for member in group.members:
        beside = float(model.seconds(member.beside, group.gpu).seconds.sum()) if member.beside else 0.0
        if member.seconds - beside >= _OWN_SHARE * member.seconds:
            net = (member.work, (member.seconds - beside) / member.count, member.spread)
            by_peak.setdefault(compute_peak(group.gpu, member.work.math, kind), []).append(net)
    found = []
    for net_rows in by_peak.values():
        works = [work for work, _, _ in net_rows]
        seconds, spread = (np.array([row[i] for row in net_rows], dtype=np.float64) for i in (1, 2))
        rows = Rows(curve, kind, group.gpu, works, seconds, True, group.file)
        found.append(Sample(rows, WorkTable.from_works(works), _NOISE / np.hypot(_NOISE, spread)))
    return found


def _alike(rows: Rows, family: str, kind: str, variants: Sequence[str]) -> bool:
    """Whether others' rows are of this very class: products, and attention forward."""
    same = (rows.curve, rows.kind) == (family, kind)
    return same and (family == MATMUL or (family == ATTENTION and "fwd" in variants))


def _name(key: Key) -> str:
    return f"{key[0]}.{key[1]}" if key[1] else key[0]


# --- what a family learns ---------------------------------------------------------------------------------------------

Expand = Callable[[Values], tuple[Values, Values | None]]


def _free(family: str, full: bool, rivals: bool, product: Values) -> tuple[Free, Expand]:
    """The numbers that a family learns, and how they become parameters and those of a Winograd rival."""
    if family in MEMORY_FAMILIES:
        return _TRAFFIC, _plainly
    if family == CONV_DEPTHWISE:
        return {"e256x128": (0.1, 0.002, 1.0), **_TRAFFIC, **_POWER}, _plainly
    if family == ATTENTION or (family == MATMUL and full):
        return FREE[family], _plainly
    ways = ("direct", "winograd") if rivals else ("direct",)
    free = {
        **{name: (product[name], low, high) for name, (_, low, high) in EFFICIENCY.items() if full},
        **dict.fromkeys(ways, (0.8, 0.02, 1.5)), **{f"{way}_k0": (product["k0"], 0.0, 1500.0) for way in ways},
        "stream": (product["stream"], 0.05, 1.0), "reduce": (product["reduce"], 0.0, 4.0),
        "memory": (0.7, 0.02, 1.0), **({"transforms": (0.7, 0.1, 1.0)} if rivals else {}),
        "start": _TRAFFIC["start"], **_POWER,
    }  # fmt: skip

    def depart(named: Values) -> tuple[Values, Values | None]:
        made = []
        for way in ways:
            values = {name: min(1.0, named.get(name, product[name]) * named[way]) for name in EFFICIENCY}
            values |= {name: named[name] for name in ("stream", "reduce", "memory", "start", "power")}
            made.append({**values, "k0": named[f"{way}_k0"], "wave": product["wave"]})
        return made[0], {**made[1], "memory": named["transforms"]} if rivals else None

    return free, depart


def _plainly(named: Values) -> tuple[Values, Values | None]:
    return named, None


# --- what is said of a set --------------------------------------------------------------------------------------------


def _enter(own: Sets, key: Key, chip: str, found: dict[str, Any], rival: dict[str, Any] | None) -> None:
    own.setdefault(f"{_name(key)}|{key[2]}", {})[chip] = found
    if rival is not None:
        own.setdefault(_winograd(key), {})[chip] = rival


def _winograd(key: Key) -> str:
    return f"{_name((WINOGRAD, *key[1:]))}|{key[2]}"


def _described(problem: Problem, solved: Found, variants: Sequence[str]) -> dict[str, Any]:
    error = solved.log_error(problem.samples)
    size = np.abs(np.expm1(error))
    # Half of what holds the middle 68 %, more where few rows settled many numbers.
    few = problem.count / max(problem.count - len(solved.values), problem.count / 3)
    spread = float(np.subtract(*np.percentile(error, [84, 16])) / 2) * few**0.5
    files = [sample.rows.source for sample in problem.samples] + [rows.source for rows in problem.theirs]
    return {
        "values": _rounded(solved.values),
        "variants": list(variants),
        "log_spread": round(max(spread, _LEAST_SPREAD), 4),
        "rows": problem.count,
        "gpus": sorted({sample.rows.gpu.kernel_name for sample in problem.samples}),
        "file": " + ".join(dict.fromkeys(files)),
        "median_error": round(float(np.median(size)), 4),
        "p90_error": round(float(np.percentile(size, 90)), 4),
        **({"others": {"rows": sum(map(len, problem.theirs)), **_rounded(solved.others)}} if problem.theirs else {}),
    }


def _rounded(values: Values) -> Values:
    return {name: round(value, 9) for name, value in values.items()}


def _judged(problem: Problem, solved: Found, before: KernelModel) -> dict[str, Any]:
    old = [np.log(before.seconds(s.table, s.rows.gpu).seconds / s.rows.seconds) for s in problem.samples]
    errors = solved.log_error(problem.samples), problem.held_out(), np.concatenate(old)
    fitted, unseen, guessed = (np.abs(np.expm1(error)) for error in errors)
    numbers = {
        "median": np.median(fitted), "p90": np.percentile(fitted, 90), "held-out median": np.median(unseen),
        "held-out p90": np.percentile(unseen, 90), "before": np.median(guessed),
    }  # fmt: skip
    return {"rows": problem.count, **{name: round(float(value), 4) for name, value in numbers.items()}}
