"""Reads the section `calibration` of a device file; errors name the row or field that is wrong."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from precision_time import checks
from precision_time.errors import CatalogError, nearest
from precision_time.field_types import NAME
from precision_time.hardware.calibration import (
    KERNEL_COLUMNS,
    OPTIONAL_COLUMNS,
    TEXT_COLUMNS,
    Calibration,
    CollectivePoints,
    Contention,
    HostFigures,
    KernelPoints,
)
from precision_time.hardware.fields import (
    CALIBRATION,
    HOST,
    MESSAGE,
    MESSAGE_SECONDS,
    POINT,
    POINT_SECONDS,
    POINT_SIZE,
    POINT_SPREAD,
    RANKS,
    SLOWDOWN,
    values_of,
)

CALIBRATION_KEYS = {*CALIBRATION, "versions", "kernels", "host", "contention", "collectives", "crowding"}
_MATHS = ("vector", "fp64", "fp32", "tf32", "fp16", "bf16", "fp8")
_DTYPES = (
    "float32", "bfloat16", "float16", "float64", "float8_e4m3fn", "float8_e5m2", "int64", "int32", "int16", "int8",
    "uint8", "bool", "complex64", "complex128",
)  # fmt: skip
_COLLECTIVES = ("all_reduce", "broadcast")


def calibration_from_entry(value: object, where: str) -> Calibration:
    entry = checks.mapping(value, where)
    checks.known_keys(entry, CALIBRATION_KEYS, where)
    checks.required(entry, {key: key for key in ("made", "noise", "kernels")}, where)
    versions = checks.mapping(entry.get("versions") or {}, f"{where}: versions")
    return Calibration(
        kernels=_kernels(entry["kernels"], f"{where}: kernels"),
        host=None if entry.get("host") is None else _host(entry["host"], f"{where}: host"),
        contention=_contention(entry, where),
        collectives=_collectives(entry.get("collectives") or {}, f"{where}: collectives"),
        versions=tuple(
            sorted(
                (NAME.entry(n, f"{where}: versions"), NAME.entry(v, f"{where}: versions")) for n, v in versions.items()
            )
        ),
        **values_of(CALIBRATION, {key: entry[key] for key in CALIBRATION if key in entry}, where),
    )


def _kernels(value: object, where: str) -> KernelPoints:
    entry = checks.mapping(value, where)
    checks.known_keys(entry, {"columns", "rows"}, where)
    columns, rows = entry.get("columns"), entry.get("rows")
    if not isinstance(columns, list) or not isinstance(rows, list):
        raise CatalogError(f"{where}: columns or rows is missing; give a list of names and a list of rows.")
    for name in columns:
        if name not in KERNEL_COLUMNS:
            raise CatalogError(
                f"{where}: unknown column {checks.show(name)}; nearest: {nearest(str(name), KERNEL_COLUMNS)}."
            )
    for name in KERNEL_COLUMNS:
        if columns.count(name) != 1 and not (name in OPTIONAL_COLUMNS and name not in columns):
            raise CatalogError(f"{where}: column {name} is given {columns.count(name)} times in columns; give it once.")
    for index, row in enumerate(rows):
        if not isinstance(row, list) or len(row) != len(columns):
            raise CatalogError(
                f"{where}: row {index + 1} is {checks.show(row)}; give {len(columns)} values, one for each column."
            )
    table: dict[str, tuple[Any, ...]] = dict.fromkeys(columns, ())
    if rows:
        table = dict(zip(columns, zip(*rows, strict=True), strict=True))
    for name in OPTIONAL_COLUMNS - table.keys():
        table[name] = (1.0,) * len(rows)
    values: dict[str, Any] = {
        name: (_text if name in TEXT_COLUMNS else _figures)(name, table[name], where) for name in KERNEL_COLUMNS
    }
    return KernelPoints(**values)


def _text(name: str, values: Sequence[Any], where: str) -> tuple[Any, ...]:
    allowed = {"math": _MATHS, "dtype": _DTYPES}.get(name, ())
    for each in set(map(_hashable, values)):
        bad = not isinstance(each, str) or (not each and name != "variant") or (allowed and each not in allowed)
        if bad:
            row = next(i for i, value in enumerate(values) if _hashable(value) == each) + 1
            choice = f"one of {', '.join(allowed)}" if allowed else "a name"
            raise CatalogError(f"{where}: row {row}: {name} is {checks.show(values[row - 1])}; use {choice}.")
    return tuple(values)


def _figures(name: str, values: Sequence[Any], where: str) -> tuple[float, ...]:
    of = {"seconds": POINT_SECONDS, "spread": POINT_SPREAD, "flops": POINT, "bytes": POINT}.get(name, POINT_SIZE)
    if values and {int, float}.issuperset(set(map(type, values))):  # the usual case, checked a column at a time
        low, high = min(values), max(values)
        if of.least <= low and high <= of.most:
            return tuple(map(float, values))
    return tuple(float(of.entry(each, f"{where}: row {index + 1}: {name}")) for index, each in enumerate(values))


def _host(value: object, where: str) -> HostFigures:
    entry = checks.mapping(value, where)
    checks.known_keys(entry, set(HOST), where)
    checks.required(entry, {name: name for name in HOST}, where)
    return HostFigures(**values_of(HOST, entry, where))


def _contention(calibration: Mapping[str, object], device: str) -> tuple[Contention, ...]:
    """The field `contention`, or `crowding`, the name that device files had before."""
    name = "crowding" if "crowding" in calibration else "contention"
    if name == "crowding" and "contention" in calibration:
        raise CatalogError(f"{device}: crowding is the old name of contention; give contention alone.")
    where = f"{device}: {name}"
    found = []
    for count, factors in checks.mapping(calibration.get(name) or {}, where).items():
        place = f"{where}: {count}"
        ranks = RANKS.entry(count, f"{where}: a number of ranks")
        entry = checks.mapping(factors, place)
        checks.known_keys(entry, {"compute", "memory", "classes"}, place)
        checks.required(entry, {"compute": "compute", "memory": "memory"}, place)
        compute, memory = (SLOWDOWN.entry(entry[key], f"{place}: {key}") for key in ("compute", "memory"))
        classes = checks.mapping(entry.get("classes") or {}, f"{place}: classes")
        each = {
            NAME.entry(n, f"{place}: classes"): SLOWDOWN.entry(f, f"{place}: classes: {n}") for n, f in classes.items()
        }
        found.append(Contention(ranks, compute, memory, tuple(sorted(each.items()))))
    return tuple(sorted(found, key=lambda each: each.ranks))


def _collectives(value: object, where: str) -> tuple[CollectivePoints, ...]:
    points = []
    for name, by_ranks in checks.mapping(value, where).items():
        if name not in _COLLECTIVES:
            raise CatalogError(
                f"{where}: unknown collective {checks.show(name)}; use one of {', '.join(_COLLECTIVES)}."
            )
        for count, pairs in checks.mapping(by_ranks, f"{where}: {name}").items():
            place = f"{where}: {name}: {count}"
            ranks = RANKS.entry(count, f"{where}: {name}: a number of ranks")
            if not isinstance(pairs, list) or not pairs or any(not isinstance(p, list) or len(p) != 2 for p in pairs):
                raise CatalogError(f"{place} is {checks.show(pairs)}; give a list of [bytes, seconds].")
            sizes = tuple(MESSAGE.entry(size, f"{place}: bytes") for size, _ in pairs)
            seconds = tuple(MESSAGE_SECONDS.entry(time, f"{place}: seconds") for _, time in pairs)
            points.append(CollectivePoints(str(name), ranks, sizes, seconds))
    return tuple(points)


def _hashable(value: object) -> object:
    return value if isinstance(value, str) else repr(value).encode()
