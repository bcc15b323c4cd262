"""Fits the kernel-time parameters from the published kernel tables and from our own measurements:
`python -m precision_time.fit.kernels --shared DIR --measured FOLDER`.

Writes `timing/data/kernels.json` (or --out FILE): one parameter set per curve, dtype class and measured
device, one pooled set per architecture, and the corrections of these curves, with the rows used and the checksums of
the inputs. `--report FILE` also judges them held out and writes the page of errors. Each --measured is a folder that
`precision-time measure` wrote on a GPU of the catalog; its sets stand under `own`. Deterministic; about a minute on one
core, several more with a report or measurements.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Mapping, Sequence
from datetime import date
from pathlib import Path
from typing import Any

from precision_time.errors import DataError, PrecisionTimeError
from precision_time.fit.kernel_corrections import fit_corrections
from precision_time.fit.kernel_curves import fit_convolution, fit_curve
from precision_time.fit.kernel_evaluation import evaluate
from precision_time.fit.kernel_report import as_text, page
from precision_time.fit.kernel_tables import TABLES, Rows, read_gpus, read_rows
from precision_time.fit.measured_parameters import fit_own
from precision_time.fit.measured_points import OwnFolder, read_folders
from precision_time.fit.provenance import sha256

Sets = dict[str, dict[str, Any]]
# These keep their own set but do not speak for their architecture: the RTX PRO is Blackwell by name only
# (GDDR7, no tensor memory), the others are cards of 70-75 W whose clocks fall under matrix load.
_NOT_POOLED = frozenset({"RTX-PRO-6000-Server", "P4", "T4", "L4"})
_COMPUTE = frozenset({"matmul", "conv", "attention"})
OUTPUT = Path(__file__).parents[1] / "timing" / "data" / "kernels.json"
STEPS_NEXT = "now refit the whole-step factors (stage steps), which were fitted beside other kernels"


def fit_sets(rows: Sequence[Rows]) -> Sets:
    """All parameter sets, keyed "curve|dtype class" and then device or "arch:name"."""
    sets: Sets = {}
    for key, groups in _by_class(rows).items():
        if key.startswith("conv|"):
            continue
        sets[key] = {group.gpu.kernel_name: fit_curve([group]) for group in groups}
        for arch in sorted({group.gpu.arch for group in groups}):
            sets[key] |= _pooled(groups, arch, sets[key])
    for group in rows:
        if group.curve == "conv":
            name, arch = group.gpu.kernel_name, f"arch:{group.gpu.arch}"
            fitted = fit_convolution(group, sets["matmul|fp32"][name]["values"])
            winograd = {**fitted, "values": fitted.pop("winograd")}
            winograd.pop("winograd", None)
            for curve, found in (("conv", fitted), ("winograd", winograd)):
                of_class = sets.setdefault(f"{curve}|{group.kind}", {})
                of_class[name] = found
                if name not in _NOT_POOLED:  # one device with convolutions is left per architecture
                    of_class[arch] = found
    return sets


def _by_class(rows: Sequence[Rows]) -> dict[str, list[Rows]]:
    classes: dict[str, list[Rows]] = {}
    for group in rows:
        classes.setdefault(f"{group.curve}|{group.kind}", []).append(group)
    return classes


def _pooled(groups: Sequence[Rows], arch: str, own: Mapping[str, Any], without: str = "") -> dict[str, Any]:
    if not groups:
        return {}
    apart = {without} | (_NOT_POOLED if groups[0].curve in _COMPUTE else set())
    members = [g for g in groups if g.gpu.arch == arch and g.gpu.kernel_name not in apart]
    if not members:
        return {}
    found = own[members[0].gpu.kernel_name] if len(members) == 1 else fit_curve(members)
    return {f"arch:{arch}": found}


def without_device(sets: Sets, rows: Sequence[Rows], group: Rows) -> Sets:
    """The sets as they would be had `group`'s device never been measured for this curve and dtype class."""
    left = dict(sets)
    keys = ["conv|fp32", "winograd|fp32"] if group.curve == "conv" else [f"{group.curve}|{group.kind}"]
    arch, name = group.gpu.arch, group.gpu.kernel_name
    for key in keys:
        left[key] = {k: v for k, v in sets[key].items() if k not in (name, f"arch:{arch}")}
        peers = [g for g in _by_class(rows).get(key, []) if g.gpu.arch == arch and g is not group]
        left[key] |= _pooled(peers, arch, sets[key], without=name)
    return left


def as_json(content: Mapping[str, Any]) -> str:
    """JSON of one entry a line, and one line for each row of numbers."""
    text = json.dumps(content, indent=1)
    return re.sub(r"\[[-\s\d.,e+]+\]", lambda found: "[" + " ".join(found.group()[1:-1].split()) + "]", text) + "\n"


def check_kept(out: Path, folders: Sequence[OwnFolder]) -> None:
    """Raises `DataError` if `out` holds sets from a folder that is not among `folders`: they would be lost."""
    if not out.exists():
        return
    try:
        held = json.loads(out.read_text(encoding="utf-8")).get("measured", {})
    except (OSError, ValueError, AttributeError) as error:
        raise DataError(f"out {str(out)!r} is no file of parameters ({type(error).__name__}); name another") from error
    lost = sorted(set(held) - {folder.file for folder in folders})
    if lost:
        raise DataError(
            f"{out.name} holds sets fitted to {', '.join(lost)}, which this fit would drop; give their folders with "
            "--measured too, or delete the file"
        )


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m precision_time.fit.kernels", description=__doc__)
    parser.add_argument("--shared", type=Path, required=True, help="folder that holds data/gpus.csv and data/kernels/")
    parser.add_argument("--out", type=Path, default=OUTPUT)
    parser.add_argument("--rows", type=int, default=1500, help="rows used per curve, dtype class and device")
    parser.add_argument(
        "--measured", type=Path, action="append", default=[], help="folder of `precision-time measure`; may be repeated"
    )
    parser.add_argument("--report", type=Path, help="page of errors to write, docs/kernels.md")
    options = parser.parse_args(argv)
    try:
        folders = read_folders(options.measured)
        check_kept(options.out, folders)
    except PrecisionTimeError as error:
        print(f"{parser.prog}: error: {error}", file=sys.stderr)
        return 2
    directory = options.shared / "data" / "kernels"
    rows = list(read_rows(directory, read_gpus(options.shared / "data" / "gpus.csv"), options.rows))
    sets = fit_sets(rows)
    content = {
        "about": "Fitted by precision_time.fit.kernels from kernel tables of others (NeuSight, MIT licence; "
        "aiconfigurator, Apache-2.0). Do not edit: refit.",
        "made": date.today().isoformat(),
        "inputs": {name: {"sha256": sha256(directory / name)} for name in TABLES},
        "rows_per_set": options.rows,
        "sets": sets,
        "corrections": fit_corrections(rows, sets),
    }
    own_table: list[dict[str, Any]] = []
    if folders:
        own, own_table = fit_own(folders, rows, sets, _NOT_POOLED)
        content |= {"measured": {folder.file: folder.described() for folder in folders}}
        content |= {"own_evaluation": own_table, "own": own}
    temporary = options.out.with_suffix(".tmp")
    temporary.write_text(as_json(content), encoding="utf-8")
    temporary.replace(options.out)
    if options.report:
        command = "python -m precision_time.fit.kernels --shared DIR --report docs/kernels.md"
        lines = list(evaluate(rows, sets, fit_sets, without_device))
        options.report.write_text(page(lines, content["inputs"], command), encoding="utf-8")
        print(as_text([line.cells() for line in lines]))
    if own_table:
        print(f"\n{as_text(own_table)}")
    for folder in folders:
        print(folder, file=sys.stderr)
    print(f"\n{sum(len(group) for group in rows)} rows, {len(sets)} curves -> {options.out}", file=sys.stderr)
    if folders:
        print(f"{len(content['own'])} classes of kernels measured by us; {STEPS_NEXT}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
