"""Published training steps as the works of their kernels, so that a fit needs neither their models nor their graphs.

`data/traced/works.parquet` has one line per kernel of a traced job (works that share all factors are added up) and one
per kernel in wider arithmetic that may replace one, `data/traced/rows.parquet` one line per measured row.
`precision-time fit traced` writes both from the tables of steps, forward passes, parts and operators; it needs torch,
torchvision and timm, and takes half an hour. All other stages read them.
"""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from precision_time.capture.captured_model import evaluation_graph
from precision_time.capture.graph import Phase
from precision_time.errors import DataError, InternalError, PrecisionTimeError
from precision_time.fit.cases import case_of, is_data_parallel
from precision_time.fit.operator_rows import OPERATORS, MeasuredOperator, measured_operators
from precision_time.fit.step_parts import OF_PART
from precision_time.fit.traced_rows import (
    ALL,
    family_of,
    is_forward,
    is_step,
    measured_otherwise,
    part_of,
    rows_of,
    table_path,
)
from precision_time.hardware.catalog import default_catalog
from precision_time.hardware.gpu import Gpu
from precision_time.layout.segment import OpSignatures
from precision_time.measurements.row import Row
from precision_time.placement import cluster_of
from precision_time.prediction import work_options
from precision_time.timing.constants import StepConstants, shipped
from precision_time.timing.curves import Array
from precision_time.timing.device_order import may_widen
from precision_time.timing.kernel_factors import NO_FACTORS
from precision_time.timing.kind_works import kind_works
from precision_time.timing.operators import WorkOptions
from precision_time.timing.signature_times import TimedSignatures, time_signatures
from precision_time.timing.work import ATTENTION, CONVOLUTION_FEATURES, CONVOLUTIONS, TILE_FAMILIES
from precision_time.timing.work_table import DETAILS, WorkTable

if TYPE_CHECKING:
    import pandas as pd

Classes = tuple[tuple[str, str, str, str], ...]
WORKS, ROWS = Path("traced") / "works.parquet", Path("traced") / "rows.parquet"
_NUMBERS = (
    *(f"shape{i}" for i in range(4)), "flops", "floor_flops", "bytes", "serial_bytes", "latency_s", "launches",
    "repeats", *CONVOLUTION_FEATURES, *DETAILS, "covered", *(f"rival{i}" for i in range(4)), "rival_bytes",
)  # fmt: skip
_ADDED = ("flops", "floor_flops", "bytes", "serial_bytes", "latency_s", "launches")
"""Columns that add up over works which differ in nothing that their time depends on besides."""


@dataclass(frozen=True, slots=True, eq=False)
class Traced:
    """Measured rows with the works of their jobs.

    rows    the measured rows, those of FORWARD among them (see `forward_rows`)
    case    the traced job of each row, `other_s` the seconds of its step besides kernels
    table   the works of all jobs, `of_case` the job and `calls` the calls per step of each, sorted by job
    wider   works in wider arithmetic that may replace others (`KindWorks`), `wider_of` the place of these in `table`
    gpu     name of the GPU of each job, `clock` its speed in the job's node over that of the catalog
    """

    rows: tuple[Row, ...]
    case: NDArray[np.intp]
    other_s: Array
    table: WorkTable
    of_case: NDArray[np.intp]
    calls: Array
    wider: WorkTable
    wider_of: NDArray[np.intp]
    gpu: tuple[str, ...]
    clock: Array


def _numbers(table: WorkTable) -> Array:
    """The works of a table as rows of `_NUMBERS`."""
    rivals = np.full((5, len(table)), np.nan)
    rivals[:4, table.rivals], rivals[4, table.rivals] = table.rival_shape, table.rival_bytes
    parts = (
        table.shape, [getattr(table, name) for name in _NUMBERS[4:11]], table.convolution, table.details,
        [table.covered], rivals,
    )  # fmt: skip
    return np.concatenate([np.asarray(part, dtype=np.float64) for part in parts])


def _class_names(table: WorkTable) -> NDArray[np.str_]:
    return np.array(["|".join(key) for key in table.classes])[table.class_of]


def _own_and_wider(
    kinds: OpSignatures, options: WorkOptions, gpu: Gpu
) -> tuple[WorkTable, WorkTable, NDArray[np.intp]]:
    """The works of operators, those in wider arithmetic that may replace some on a GPU, and which they may replace."""
    if not kinds.parts:
        works = kind_works(kinds, options)
        both, classes = replace(works.with_rivals, operators=()), works.table.classes
        narrow = [classes[number] for number in works.table.class_of[works.rival_of].tolist()]
        chosen = np.flatnonzero([may_widen(key, gpu) and not _in_half_units(key, gpu) for key in narrow])
        return works.table, both.chosen(len(works.table) + chosen), works.rival_of[chosen]
    own, wider, replaced = zip(*(_own_and_wider(part, options, gpu) for part in kinds.parts), strict=True)
    before = np.cumsum([0, *map(len, own[:-1])])
    places = [of + count for of, count in zip(replaced, before.tolist(), strict=True)]
    return WorkTable.joined(own), WorkTable.joined(wider), np.concatenate(places)


def _in_half_units(key: tuple[str, str, str, str], gpu: Gpu) -> bool:
    """Whether a class runs on a GPU's units for half precision. Their products leave them in odd shapes alone (1 % of
    the products' time of image networks), but would be two thirds of the table."""
    return key[2] in ("fp16", "bf16") and key[2] in gpu.peaks


def _columns_of(timed: TimedSignatures, options: WorkOptions, gpu: Gpu, calls: Array) -> dict[str, Any]:
    """`_work_columns` of the operators of a program, with the calls of each of their works."""
    columns, classes = _work_columns(timed.kinds, options, gpu, calls)
    if classes != timed.works.table.classes:
        raise InternalError("the works of a job are not those of its operators")
    return columns


def _work_columns(
    kinds: OpSignatures, options: WorkOptions, gpu: Gpu, calls: Array | None = None
) -> tuple[dict[str, Any], Classes]:
    """The works of operators as columns, each called once or as `calls` says, and the classes of all.

    Works that are no products, attention or convolutions are added up by class, where they do as many operations for
    their bytes. Those in wider arithmetic come last and have no calls.
    """
    table, wider, wider_of = _own_and_wider(kinds, options, gpu)
    calls = np.ones(len(table)) if calls is None else calls
    numbers, names = _numbers(table), _class_names(table)
    families = np.array([key[0] for key in table.classes])[table.class_of]
    apart = np.isin(families, [*CONVOLUTIONS, *TILE_FAMILIES, ATTENTION]) | table.covered
    steps_of = np.rint(4.0 * np.log2(np.maximum(table.flops, 1.0) / np.maximum(table.bytes, 1.0)))
    alone, alike = np.char.mod("#%d", np.arange(len(table))), np.char.mod("~%d", steps_of)
    keys = np.char.add(names, np.where(apart, alone, alike))
    _, first, group = np.unique(keys, return_index=True, return_inverse=True)
    weight = np.where(apart, 1.0, calls)
    for name in _ADDED:
        row = _NUMBERS.index(name)
        numbers[row, first] = np.bincount(group, weights=numbers[row] * weight, minlength=len(first))
    all_numbers = np.concatenate([numbers[:, first], _numbers(wider)], axis=1).astype(np.float32)
    own_calls = np.where(apart, calls, 1.0)[first]
    columns = {
        "class": np.concatenate([names[first], _class_names(wider)]),
        "calls": np.concatenate([own_calls, np.zeros(len(wider))]).astype(np.float32),
        "replaces": np.concatenate([np.full(len(first), -1), group[wider_of]]).astype(np.int32),
        **dict(zip(_NUMBERS, all_numbers, strict=True)),
    }
    return columns, table.classes


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
        key = f"{row.id if not (forward or is_step(row)) else forward} {row.job!r}"
        if key not in jobs:
            try:
                jobs[key] = (_forward_pass if forward else _training_step if is_step(row) else _part)(row, constants)
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
    columns = _columns_of(timed, case.options, case.cluster.gpu, calls)
    return _Job(columns, timeline.step_s - float(timed.work_s @ calls), case.cluster.gpu.name, [])


def _forward_pass(row: Row, constants: StepConstants) -> _Job:
    """What the host takes longer to launch than the kernels run is no kernel's time."""
    assert row.job is not None
    cluster, graph = cluster_of(row.job), evaluation_graph(row.job)
    options = work_options(row.job, cluster.gpu)
    timed = time_signatures(OpSignatures(graph.kinds), cluster, options, row.job.execution, constants)
    count = Counter(call.kind for call in graph.calls if call.phase is Phase.FORWARD)
    per_kind = np.array([count[kind] for kind in range(len(graph.kinds))], dtype=np.float64)
    calls = per_kind[timed.works.owner]
    host_s, device_s = float(timed.host_kind_s @ per_kind), float(timed.work_s @ calls)
    return _Job(_columns_of(timed, options, cluster.gpu, calls), max(host_s - device_s, 0.0), cluster.gpu.name, [])


def _part(row: Row, constants: StepConstants) -> _Job:
    """The works of a step that are of one part."""
    whole = _training_step(row, constants)
    of_part = OF_PART[part_of(row)].among(whole.columns["class"], whole.columns["taps"])
    return replace(whole, columns=_own(whole.columns, of_part), other_s=0.0)


def _operator(measured: MeasuredOperator) -> _Job:
    gpu = default_catalog().gpu(measured.row.gpu)
    columns, _ = _work_columns(OpSignatures((measured.point.kind,)), measured.point.options, gpu)
    return _Job(_own(columns), 0.0, gpu.name, [(measured.row.id, measured.row.family)])


def _own(columns: Mapping[str, Any], chosen: NDArray[np.bool_] | bool = True) -> dict[str, Any]:
    """The chosen works but those in wider arithmetic, which may serve whole steps alone."""
    kept = chosen & (columns["replaces"] < 0)
    return {name: values[kept] for name, values in columns.items()}


def run(tables: Path) -> None:
    """Trace every row of ALL below `tables` and write WORKS and ROWS there."""
    import pandas as pd

    by_model: dict[str, list[tuple[str, Row]]] = {}
    for name in ALL:
        for row in rows_of(tables, name):
            if row.job is not None and is_data_parallel(row.job) and row.measured_s > 0:
                by_model.setdefault(row.job.model, []).append((name, row))
    tables_of = {row.id: name for rows in by_model.values() for name, row in rows}
    works: list[pd.DataFrame] = []
    lines: list[tuple[str, str, str, int, float, str]] = []

    def add(job: _Job, of_table: Callable[[str], str]) -> None:
        case = len(works)
        works.append(pd.DataFrame({"case": np.int32(case), **job.columns}))
        lines.extend((name, of_table(name), family, case, job.other_s, job.gpu) for name, family in job.rows)

    with ProcessPoolExecutor(os.cpu_count()) as pool:
        groups = pool.map(_traced_model, [[row for _, row in rows] for rows in by_model.values()], chunksize=4)
        for done, found in enumerate(groups, 1):
            print(f"\rtracing model {done}/{len(by_model)}", end="", file=sys.stderr)
            for job in found:
                add(job, tables_of.__getitem__)
    for operator in measured_operators(table_path(tables, OPERATORS)):
        add(_operator(operator), lambda name: OPERATORS)
    print(file=sys.stderr)
    (tables / WORKS).parent.mkdir(exist_ok=True)
    table = pd.concat(works, ignore_index=True)
    table["class"] = table["class"].astype("category")
    table.to_parquet(tables / WORKS, compression="zstd", index=False)
    rows_table = pd.DataFrame(lines, columns=["id", "table", "family", "case", "other_s", "gpu"])
    rows_table.to_parquet(tables / ROWS, compression="zstd", index=False)
    print(f"{len(rows_table)} rows, {len(works)} jobs, {len(table)} works -> {tables / WORKS}", file=sys.stderr)


def read(tables: Path, names: Iterable[str] = ALL) -> Traced:
    """The traced rows of the named tables. Raises `DataError` where they were not traced."""
    import pandas as pd

    for path in (WORKS, ROWS):
        if not (tables / path).is_file():
            raise DataError(f"folder {str(tables)!r} has no {path}; precision-time fit traced writes it")
    chosen = set(names)
    lines = pd.read_parquet(tables / ROWS)
    lines = lines[lines["table"].isin(chosen)]
    measured: dict[tuple[str, str, int], Row] = {}
    for name in sorted(chosen):
        seen: Counter[str] = Counter()
        for row in rows_of(tables, name):
            measured[name, row.id, seen[row.id]] = row
            seen[row.id] += 1
    time_of = lines.groupby(["table", "id"]).cumcount()  # a job measured several times has one id, traced in order
    keys = list(zip(lines["table"], lines["id"], time_of, strict=True))
    lines = lines[[key in measured for key in keys]]
    found = [measured[key] for key in keys if key in measured]
    rows = tuple(replace(row, family=family) for row, family in zip(found, lines["family"], strict=True))
    cases, case = np.unique(lines["case"].to_numpy(), return_inverse=True)
    works = pd.read_parquet(tables / WORKS)
    works = works[works["case"].isin(cases)]
    if "replaces" not in works:  # traced before works in wider arithmetic were
        works["replaces"] = -1
    own, wider = works[works["replaces"] < 0], works[works["replaces"] >= 0]
    begins = np.searchsorted(own["case"].to_numpy(), wider["case"].to_numpy())
    gpus: Mapping[int, str] = dict(zip(lines["case"], lines["gpu"], strict=True))
    clock = np.ones(len(cases))
    for number, job in {number: row.job for number, row in zip(case.tolist(), rows, strict=True) if row.job}.items():
        clock[number] = cluster_of(job).node.clock_factor
    return Traced(
        rows,
        case.astype(np.intp),
        lines["other_s"].to_numpy(np.float64),
        _table(own),
        np.searchsorted(cases, own["case"].to_numpy()).astype(np.intp),
        own["calls"].to_numpy(np.float64),
        _table(wider),
        (begins + wider["replaces"].to_numpy()).astype(np.intp),
        tuple(gpus[each] for each in cases.tolist()),
        clock,
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
        **dict(zip(_NUMBERS[4:11], numbers[4:11], strict=True)),
        tiled=np.flatnonzero(np.isin(families, list(TILE_FAMILIES))),
        attention=np.flatnonzero(families == ATTENTION),
        rivals=rivals,
        rival_shape=numbers[-5:-1, rivals],
        rival_bytes=numbers[-1, rivals],
        convolution=numbers[11:15],
        details=numbers[15:17],
        covered=numbers[17] > 0,
    )
