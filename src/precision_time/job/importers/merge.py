"""Several imported files as one: a DeepSpeed config with TrainingArguments, an sbatch script with what it launches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from precision_time.checks import show
from precision_time.job.importers.imported import Imported
from precision_time.job.importers.numerics import Numerics, combined

_PARTS = ("run", "input", "model_config")
"""Fields that are mappings, joined key by key."""


def merged(files: Sequence[tuple[str, Imported]]) -> Imported:
    """The settings of all files; `files` are their names with what was read.

    A field that two files state with different values is left undecided, so that the user has to decide it. A field
    that one file leaves open and another states is decided.
    """
    if len(files) == 1:
        return files[0][1]
    fields, conflicts = _stated(files)
    defaults: dict[str, Any] = {}
    for _, imported in files:
        defaults = {**imported.defaults, **defaults}
    undecided = {
        field: f"{name}: {why}"
        for name, imported in files
        for field, why in imported.undecided.items()
        if not _settled(field, why, [other for _, other in files if other is not imported])
    }
    numerics, fault = _numerics([imported.numerics for _, imported in files])
    if fault:
        conflicts["precision"] = fault
    totals = {imported.global_batch for _, imported in files} - {None}
    if len(totals) > 1:
        conflicts["global_batch"] = f"is {' and '.join(map(str, sorted(filter(None, totals))))}"
    return Imported(
        kind=" with ".join(dict.fromkeys(imported.kind for _, imported in files)),
        fields=fields,
        global_batch=min(filter(None, totals), default=None),
        least_gpus=max(imported.least_gpus for _, imported in files),
        not_taken={key: why for _, imported in files for key, why in imported.not_taken.items()},
        taken=tuple(dict.fromkeys(key for _, imported in files for key in imported.taken)),
        defaults=defaults,
        undecided={**undecided, **conflicts},
        numerics=numerics,
    )


def _settled(field: str, why: str, others: Sequence[Imported]) -> bool:
    """Whether other files decide a field that one leaves open; auto is filled in with their defaults too."""
    for other in others:
        if field in other.undecided:
            continue
        auto = why.endswith(" auto")
        if field == "precision" and auto and other.numerics is not None:
            return True
        if field in other.fields or (auto and field in other.defaults):
            return True
    return False


def _numerics(each: Sequence[Numerics | None]) -> tuple[Numerics | None, str]:
    """What all files say of mixed precision, and the contradiction between two of them or ""."""
    result, fault = None, ""
    for numerics in each:
        if result is None or numerics is None:
            result = result or numerics
            continue
        result, found = combined(result, numerics)
        fault = fault or (f"{found} contradict each other" if found else "")
    return result, fault


def _stated(files: Sequence[tuple[str, Imported]]) -> tuple[dict[str, Any], dict[str, str]]:
    """The fields that files state, and those that two of them state differently, with both values."""
    fields: dict[str, Any] = {}
    source: dict[str, str] = {}
    conflicts: dict[str, str] = {}
    for name, imported in files:
        for field, value in imported.fields.items():
            if field in _PARTS and isinstance(value, Mapping):
                for key in set(value) & set(fields.get(field, {})):
                    if str(value[key]) != str(fields[field][key]):
                        conflicts[key if field == "run" else field] = _both(
                            field, source, fields[field][key], name, value[key]
                        )
                fields[field] = {**value, **fields.get(field, {})}
                source.setdefault(field, name)
            elif field not in fields:
                fields[field], source[field] = value, name
            elif _different(fields[field], value):
                conflicts[field] = _both(field, source, fields[field], name, value)
    return fields, conflicts


def _both(field: str, source: Mapping[str, str], first: Any, name: str, second: Any) -> str:
    return f"is {show(first)} in {source[field]} but {show(second)} in {name}"


def _different(first: Any, second: Any) -> bool:
    try:
        return float(first) != float(second)
    except (TypeError, ValueError):
        return bool(first != second)
