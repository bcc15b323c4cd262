"""Published training steps as the works of their kernels, so that a fit needs neither their models nor their graphs.

`data/traced/works.parquet` has one line per kernel of a traced job (works that share all factors are added up),
`data/traced/rows.parquet` one line per measured row. `precision-time fit traced` writes both from the tables of
data-parallel steps and of forward passes; it needs torch, torchvision and timm, and takes half an hour. All other
stages read them.
"""

from __future__ import annotations

import csv
import os
import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from precision_time.capture.captured_model import evaluation_graph
from precision_time.capture.graph import Phase
from precision_time.errors import DataError, PrecisionTimeError
from precision_time.fit.cases import case_of, is_data_parallel
from precision_time.layout.segment import OpSignatures
from precision_time.measurements.row import Row, row_of
from precision_time.measurements.table import OPTIONAL, REQUIRED, read_table
from precision_time.placement import cluster_of
from precision_time.prediction import work_options
from precision_time.timing.constants import StepConstants, shipped
from precision_time.timing.curves import Array
from precision_time.timing.kernel_factors import NO_FACTORS
from precision_time.timing.signature_times import time_signatures
from precision_time.timing.work import ATTENTION, CONVOLUTION_FEATURES, CONVOLUTIONS, TILE_FAMILIES
from precision_time.timing.work_table import DETAILS, WorkTable

if TYPE_CHECKING:
    import pandas as pd

TABLES = ("measurements.csv", "measurements_more.csv", "timm_train.csv", "torchvision_gpus.csv")
"""Tables of `published/` with data-parallel steps."""
FORWARD = "timm_forward.csv"
"""Table of `published/` with forward passes of evaluations, which say something about kernels and nothing of steps."""
ALL = (*TABLES, FORWARD)
WORKS, ROWS = Path("traced") / "works.parquet", Path("traced") / "rows.parquet"
_NUMBERS = (
    *(f"shape{i}" for i in range(4)), "flops", "floor_flops", "bytes", "serial_bytes", "launches", "repeats",
    *CONVOLUTION_FEATURES, *DETAILS, "covered", *(f"rival{i}" for i in range(4)), "rival_bytes",
)  # fmt: skip
_ADDED = ("flops", "floor_flops", "bytes", "serial_bytes", "launches")
"""Columns that add up over works which differ in nothing that their time depends on besides."""


@dataclass(frozen=True, slots=True, eq=False)
class Traced:
    """Measured rows with the works of their jobs.

    rows    the measured rows, those of FORWARD among them (see `forward_rows`)
    case    the traced job of each row, `other_s` the seconds of its step besides kernels
    table   the works of all jobs, `of_case` the job and `calls` the calls per step of each, sorted by job
    gpu     name of the GPU of each job
    """

    rows: tuple[Row, ...]
    case: NDArray[np.intp]
    other_s: Array
    table: WorkTable
    of_case: NDArray[np.intp]
    calls: Array
    gpu: tuple[str, ...]


def _work_columns(table: WorkTable, calls: Array) -> dict[str, Any]:
    """The works of one job as columns; works that are no products, attention or convolutions are added up by class."""
    rivals = np.full((5, len(calls)), np.nan)
    at = table.rivals[table.rivals < len(calls)]
    rivals[:4, at], rivals[4, at] = table.rival_shape[:, : len(at)], table.rival_bytes[: len(at)]
    count = len(calls)
    parts = (
        table.shape[:, :count], [getattr(table, name)[:count] for name in _NUMBERS[4:10]],
        table.convolution[:, :count], table.details[:, :count], [table.covered[:count]], rivals,
    )  # fmt: skip
    numbers = np.concatenate([np.asarray(part, dtype=np.float64) for part in parts])
    names = np.array(["|".join(key) for key in table.classes])[table.class_of[:count]]
    families = np.array([key[0] for key in table.classes])[table.class_of[:count]]
    apart = np.isin(families, [*CONVOLUTIONS, *TILE_FAMILIES, ATTENTION]) | table.covered[:count]
    keys = np.where(apart, np.char.add(names, np.char.mod("#%d", np.arange(count))), names)
    _, first, group = np.unique(keys, return_index=True, return_inverse=True)
    weight = np.where(apart, 1.0, calls)
    for name in _ADDED:
        row = _NUMBERS.index(name)
        numbers[row, first] = np.bincount(group, weights=numbers[row] * weight, minlength=len(first))
    columns = {name: numbers[i, first].astype(np.float32) for i, name in enumerate(_NUMBERS)}
    return {"class": names[first], "calls": np.where(apart, calls, 1.0)[first].astype(np.float32), **columns}


@dataclass(slots=True)
class _Job:
    """A traced job: the columns of its works, seconds besides kernels, GPU, and (id, family) of its rows."""

    columns: dict[str, Any]
    other_s: float
    gpu: str
    rows: list[tuple[str, str]]


def _traced_model(rows: Sequence[Row]) -> list[_Job]:
    """The jobs of one model; rows that cannot be traced are said and left out."""
    now = shipped()
    constants = StepConstants(execution=now.execution, host=now.host, ranks=now.ranks, factors=NO_FACTORS)
    jobs: dict[str, _Job] = {}
    for row in rows:
        if row.job is None:
            continue
        if reason := measured_otherwise(row):
            print(f"\n{row.id}: {reason}", file=sys.stderr)
            continue
        forward = is_forward(row)
        key = f"{forward} {row.job!r}"
        if key not in jobs:
            try:
                jobs[key] = (_forward_pass if forward else _training_step)(row, constants)
            except PrecisionTimeError as error:
                print(f"\n{row.id}: {error}", file=sys.stderr)
                continue
        jobs[key].rows.append((row.id, family_of(row.model, row.family)))
    return list(jobs.values())


def _training_step(row: Row, constants: StepConstants) -> _Job:
    assert row.job is not None
    case = case_of(row, row.job)
    timed, timeline = case.run(constants)
    calls = timed.calls_per_kind[timed.works.owner]
    columns = _work_columns(timed.works.table, calls)
    return _Job(columns, timeline.step_s - float(timed.work_s @ calls), case.cluster.gpu.name, [])


def _forward_pass(row: Row, constants: StepConstants) -> _Job:
    """What the host takes longer to launch than the kernels run is no kernel's time."""
    assert row.job is not None
    cluster, graph = cluster_of(row.job), evaluation_graph(row.job)
    if row.job.precision_spec.autocast and any(kind.name == "aten.native_group_norm" for kind in graph.kinds):
        raise DataError(f"{row.model}: timm ran group norm in half precision here (its fast norm), autocast does not")
    options = work_options(row.job, cluster.gpu)
    timed = time_signatures(OpSignatures(graph.kinds), cluster, options, row.job.execution, constants)
    count = Counter(call.kind for call in graph.calls if call.phase is Phase.FORWARD)
    per_kind = np.array([count[kind] for kind in range(len(graph.kinds))], dtype=np.float64)
    calls = per_kind[timed.works.owner]
    host_s, device_s = float(timed.host_kind_s @ per_kind), float(timed.work_s @ calls)
    return _Job(_work_columns(timed.works.table, calls), max(host_s - device_s, 0.0), cluster.gpu.name, [])


_REPARAMETERISED = (
    "efficientvit_m", "fastvit", "levit", "mobileclip", "mobileone", "repghost", "repvgg", "repvit", "tiny_vit",
)  # fmt: skip
_MEASURED_OTHERWISE = {
    "ecaresnext50t_32x4d": "was measured with 26 layers (as long as ecaresnext26t_32x4d); today's timm has 50",
    "ig_resnext101_32x48d": "is resnext101_32x8d in today's timm",
}
"""Start of a timm name -> why its rows cannot be reproduced with today's library."""


def measured_otherwise(row: Row) -> str:
    """Why what was measured is not what today's library runs under that name; empty where it is."""
    name = row.model.removeprefix("timm:")
    if name == row.model:
        return ""
    for start, reason in _MEASURED_OTHERWISE.items():
        if name.startswith(start):
            return f"{row.model} {reason}"
    version = row.job.torch or "" if row.job is not None else ""
    if version.startswith("1.") and (name.startswith("tresnet") or "iabn" in name):
        return f"{row.model} was measured with InPlaceABN, for which timm has batch norm since PyTorch 2.0"
    if is_forward(row) and version == "2.9" and name.startswith(_REPARAMETERISED):
        return f"{row.model} was measured with its branches fused (timm's reparameterize_model)"
    return ""


def is_forward(row: Row) -> bool:
    """Whether a row is a forward pass, not a step."""
    return row.id.startswith(_FORWARD_ID)


_FORWARD_ID = "forward-"
_TAKEN = {"1.13": "1.13", "2.4": "2.4", "2.91": "2.9"}
"""Versions of PyTorch in FORWARD whose rows are taken, as jobs have them. Times of 2.1 are near to those of 2.4."""


def forward_rows(path: Path) -> list[Row]:
    """The eager rows of the table FORWARD, one image size of each model; their `measured_s` is that of the pass.

    Attention is fused from PyTorch 2.0 on.
    """
    with path.open(newline="") as file:
        cells = [(i, line) for i, line in enumerate(csv.DictReader(file), 2) if line["execution"] == "eager"]
    sizes: dict[str, Counter[str]] = {}
    for _, line in cells:
        sizes.setdefault(line["model"], Counter())[line["image_size"]] += 1
    usual = {model: max(count, key=lambda size: (count[size], -int(size))) for model, count in sizes.items()}
    rows = []
    for number, line in cells:
        if line["image_size"] != usual[line["model"]] or line["torch"] not in _TAKEN:
            continue
        version = _TAKEN[line["torch"]]
        given = {name: line.get(name, "") for name in (*REQUIRED, *OPTIONAL)} | {
            "id": f"{_FORWARD_ID}{number}", "source": path.name, "trust": "A", "framework": "pytorch", "gpus": "1",
            "input": f"image_size={line['image_size']}", "optimizer": "none", "step_time_s": line["forward_s"],
            "attention": "math" if version.startswith("1.") else "flash",
            "torch": version,
        }  # fmt: skip
        rows.append(row_of(number, given))
    return rows


def _rows_of(tables: Path, name: str) -> Sequence[Row]:
    path = tables / "published" / name
    return forward_rows(path) if name == FORWARD else read_table(path).rows


def family_of(model: str, other: str = "") -> str:
    """The family of a model: of timm the module that defines it, of torchvision the like, else `other`."""
    library, colon, name = model.partition(":")
    if library == "timm" and colon:
        from timm.models import get_deprecated_models, model_entrypoint

        current = get_deprecated_models().get(name) or name
        return str(model_entrypoint(current.partition(".")[0]).__module__).rpartition(".")[2]
    if library == "torchvision" and colon:
        return next((family for start, family in _TORCHVISION if name.startswith(start)), name)
    return other


_TORCHVISION = (
    ("resne", "resnet"), ("wide_resnet", "resnet"), ("densenet", "densenet"), ("vgg", "vgg"), ("shuffle", "shufflenet"),
    ("squeeze", "squeezenet"), ("mobilenet", "efficientnet"), ("mnasnet", "efficientnet"),
    ("efficientnet", "efficientnet"), ("inception", "inception_v3"), ("googlenet", "inception_v3"),
)  # fmt: skip
"""Start of a torchvision name -> family."""


def run(tables: Path) -> None:
    """Trace every row of ALL below `tables` and write WORKS and ROWS there."""
    import pandas as pd

    by_model: dict[str, list[tuple[str, Row]]] = {}
    for name in ALL:
        for row in _rows_of(tables, name):
            if row.job is not None and is_data_parallel(row.job) and row.measured_s > 0:
                by_model.setdefault(row.job.model, []).append((name, row))
    tables_of = {row.id: name for rows in by_model.values() for name, row in rows}
    works, lines, case = [], [], 0
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        groups = pool.map(_traced_model, [[row for _, row in rows] for rows in by_model.values()], chunksize=4)
        for done, found in enumerate(groups, 1):
            print(f"\rtracing model {done}/{len(by_model)}", end="", file=sys.stderr)
            for job in found:
                works.append(pd.DataFrame({"case": np.int32(case), **job.columns}))
                lines += [(name, tables_of[name], family, case, job.other_s, job.gpu) for name, family in job.rows]
                case += 1
    print(file=sys.stderr)
    (tables / WORKS).parent.mkdir(exist_ok=True)
    table = pd.concat(works, ignore_index=True)
    table["class"] = table["class"].astype("category")
    table.to_parquet(tables / WORKS, compression="zstd", index=False)
    rows_table = pd.DataFrame(lines, columns=["id", "table", "family", "case", "other_s", "gpu"])
    rows_table.to_parquet(tables / ROWS, compression="zstd", index=False)
    print(f"{len(rows_table)} rows, {case} jobs, {len(table)} works -> {tables / WORKS}", file=sys.stderr)


def read(tables: Path, names: Iterable[str] = ALL) -> Traced:
    """The traced rows of the named tables. Raises `DataError` where they were not traced."""
    import pandas as pd

    for path in (WORKS, ROWS):
        if not (tables / path).is_file():
            raise DataError(f"folder {str(tables)!r} has no {path}; precision-time fit traced writes it")
    chosen = set(names)
    lines = pd.read_parquet(tables / ROWS)
    lines = lines[lines["table"].isin(chosen)]
    measured = {(name, row.id): row for name in sorted(chosen) for row in _rows_of(tables, name)}
    kept = [(name, key) in measured for name, key in zip(lines["table"], lines["id"], strict=True)]
    lines = lines[kept]
    rows = tuple(
        replace(measured[name, key], family=family)
        for name, key, family in zip(lines["table"], lines["id"], lines["family"], strict=True)
    )
    cases, case = np.unique(lines["case"].to_numpy(), return_inverse=True)
    works = pd.read_parquet(tables / WORKS)
    works = works[works["case"].isin(cases)]
    gpus: Mapping[int, str] = dict(zip(lines["case"], lines["gpu"], strict=True))
    return Traced(
        rows,
        case.astype(np.intp),
        lines["other_s"].to_numpy(np.float64),
        _table(works),
        np.searchsorted(cases, works["case"].to_numpy()).astype(np.intp),
        works["calls"].to_numpy(np.float64),
        tuple(gpus[each] for each in cases.tolist()),
    )


def _table(works: pd.DataFrame) -> WorkTable:
    numbers = works[list(_NUMBERS)].to_numpy(np.float64).T
    class_of = works["class"].cat.codes.to_numpy().astype(np.intp)
    classes = tuple(tuple(name.split("|")) for name in works["class"].cat.categories)
    families = np.array([key[0] for key in classes])[class_of]
    rivals = np.flatnonzero(~np.isnan(numbers[-5]))
    return WorkTable(
        classes=classes,
        class_of=class_of,
        shape=numbers[:4],
        **dict(zip(_NUMBERS[4:10], numbers[4:10], strict=True)),
        tiled=np.flatnonzero(np.isin(families, list(TILE_FAMILIES))),
        attention=np.flatnonzero(families == ATTENTION),
        rivals=rivals,
        rival_shape=numbers[-5:-1, rivals],
        rival_bytes=numbers[-1, rivals],
        convolution=numbers[10:14],
        details=numbers[14:16],
        covered=numbers[16] > 0,
    )
