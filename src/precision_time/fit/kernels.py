"""Fits the parameters of kernel times: utilisation curves by curve, dtype class and device, and their corrections.

Reads the kernel tables of `data/kernels/` and folders that `precision-time measure` wrote on a GPU of the catalog;
writes `timing/data/kernels.json`: one parameter set per curve, dtype class and measured device, one pooled set per
architecture, the corrections of these curves, and under `own` the sets of the measured folders, with the checksums of
the inputs. Deterministic; about a minute on one core, several more with measured folders.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping, Sequence
from datetime import date
from pathlib import Path
from typing import Any

from precision_time.errors import DataError
from precision_time.fit.kernel_corrections import fit_corrections
from precision_time.fit.kernel_curves import fit_convolution, fit_curve
from precision_time.fit.kernel_tables import TABLES, Rows, read_gpus, read_rows
from precision_time.fit.measured_parameters import fit_measured
from precision_time.fit.measured_points import MeasuredFolder, read_folders
from precision_time.fit.provenance import sha256
from precision_time.reading import read_json, to_json
from precision_time.report.errors import percent
from precision_time.report.table import Table
from precision_time.shipped import write_shipped

Sets = dict[str, dict[str, Any]]
# These keep their own set but are left out of the set of their architecture: cards of 70-75 W whose clocks fall under
# matrix load.
NOT_POOLED = frozenset({"P4", "T4", "L4"})
_COMPUTE = frozenset({"matmul", "conv", "attention"})
ROWS_PER_SET = 1500
"""Rows fitted for each curve, dtype class and device."""
OUTPUT = Path(__file__).parents[1] / "timing" / "data" / "kernels.json"
STEPS_NEXT = "now refit the whole-step factors (stage steps), which were fitted beside other kernels"


def fit_sets(rows: Sequence[Rows]) -> Sets:
    """All parameter sets, keyed "curve|dtype class" and then device or "arch:name"."""
    sets: Sets = {}
    for key, groups in by_class(rows).items():
        if key.startswith("conv|"):
            continue
        sets[key] = {group.gpu.kernel_name: fit_curve([group]) for group in groups}
        for arch in sorted({group.gpu.arch for group in groups}):
            sets[key] |= pooled(groups, arch, sets[key])
    for group in rows:
        if group.curve == "conv":
            name, arch = group.gpu.kernel_name, f"arch:{group.gpu.arch}"
            fitted = fit_convolution(group, sets["matmul|fp32"][name]["values"])
            winograd = {**fitted, "values": fitted.pop("winograd")}
            winograd.pop("winograd", None)
            for curve, parameters in (("conv", fitted), ("winograd", winograd)):
                of_class = sets.setdefault(f"{curve}|{group.kind}", {})
                of_class[name] = parameters
                if name not in NOT_POOLED:  # one device with convolutions is left per architecture
                    of_class[arch] = parameters
    return sets


def by_class(rows: Sequence[Rows]) -> dict[str, list[Rows]]:
    """Rows by "curve|dtype class", one entry for each device."""
    classes: dict[str, list[Rows]] = {}
    for group in rows:
        classes.setdefault(f"{group.curve}|{group.kind}", []).append(group)
    return classes


def pooled(groups: Sequence[Rows], arch: str, sets: Mapping[str, Any], without: str = "") -> dict[str, Any]:
    """The set of an architecture, fitted to its devices but `without`; `sets` are those of the devices."""
    if not groups:
        return {}
    apart = {without} | (NOT_POOLED if groups[0].curve in _COMPUTE else set())
    members = [g for g in groups if g.gpu.arch == arch and g.gpu.kernel_name not in apart]
    if not members:
        return {}
    return {f"arch:{arch}": sets[members[0].gpu.kernel_name] if len(members) == 1 else fit_curve(members)}


def as_json(content: Mapping[str, Any]) -> str:
    """JSON of one entry a line, and one line for each row of numbers."""
    text = to_json(content, indent=1)
    return re.sub(r"\[[-\s\d.,e+]+\]", lambda match: "[" + " ".join(match.group()[1:-1].split()) + "]", text) + "\n"


def check_kept(out: Path, folders: Sequence[MeasuredFolder]) -> None:
    """Raises `DataError` if `out` holds sets from a folder that is not among `folders`: they would be lost."""
    if not out.exists():
        return
    try:
        held = set(read_json(out, "out").get("measured", {}))
    except (AttributeError, TypeError) as error:
        raise DataError(f"out {str(out)!r} is no file of parameters ({type(error).__name__}); name another") from error
    lost = sorted(held - {folder.file for folder in folders})
    if lost:
        raise DataError(
            f"{out.name} holds sets fitted to {', '.join(lost)}, which this fit would drop; give their folders with "
            "--measured too, or delete the file"
        )


def run(
    tables: Path, measured: Sequence[str | Path] = (), rows_per_set: int = ROWS_PER_SET, output: Path = OUTPUT
) -> None:
    """Fit the kernel tables below `tables` and the folders `measured`, and write the parameters to `output`.

    Prints the errors of the sets fitted to `measured`. Raises `DataError` for a folder that `measure` did not write,
    or where `output` holds sets of a folder that is not given.
    """
    folders = read_folders(measured)
    check_kept(output, folders)
    directory = tables / "kernels"
    rows = list(read_rows(directory, read_gpus(), rows_per_set))
    sets = fit_sets(rows)
    content: dict[str, Any] = {
        "about": "Fitted by precision_time.fit.kernels from kernel tables of others (NeuSight, MIT licence; "
        "aiconfigurator, Apache-2.0). Do not edit: refit.",
        "made": date.today().isoformat(),
        "inputs": {name: {"sha256": sha256(directory / name)} for name in TABLES},
        "rows_per_set": rows_per_set,
        "sets": sets,
        "corrections": fit_corrections(rows, sets),
    }
    own: dict[str, Any] = {}
    if folders:
        own, evaluation = fit_measured(folders, rows, sets, NOT_POOLED)
        content |= {"measured": {folder.file: folder.described() for folder in folders}}
        content |= {"own_evaluation": evaluation, "own": own}
        print(error_table(evaluation))
    write_shipped(output, as_json(content))
    for folder in folders:
        print(folder, file=sys.stderr)
    print(f"{sum(len(group) for group in rows):,} rows, {len(sets)} curves -> {output}", file=sys.stderr)
    if folders:
        print(f"{len(own)} classes of kernels measured by us; {STEPS_NEXT}", file=sys.stderr)


def error_table(evaluation: Sequence[Mapping[str, Any]]) -> Table:
    """Rows of equal keys as a table; fractions become per cent."""
    columns = list(evaluation[0])
    rows = [[percent(v) if isinstance(v := row[c], float) else str(v) for c in columns] for row in evaluation]
    return Table(columns, rows, left=3)
