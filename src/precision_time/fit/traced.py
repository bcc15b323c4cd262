"""Published training steps as the works of their kernels, so that a fit needs neither their models nor their graphs.

`data/traced/works.parquet` has one line per kernel of a traced job (works that share all factors are added up) and one
per kernel in wider arithmetic that may replace one, `data/traced/rows.parquet` one line per measured row.
`precision-time fit traced` writes both from the tables of data-parallel steps and of forward passes; it needs torch,
torchvision and timm, and takes half an hour. All other stages read them.
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
from precision_time.errors import DataError, InternalError, PrecisionTimeError
from precision_time.fit.cases import case_of, is_data_parallel
from precision_time.hardware.gpu import Gpu
from precision_time.layout.segment import OpSignatures
from precision_time.measurements.row import Row, row_of
from precision_time.measurements.table import OPTIONAL, REQUIRED, read_table
from precision_time.placement import cluster_of
from precision_time.prediction import work_options
from precision_time.timing.constants import StepConstants, shipped
from precision_time.timing.curves import Array
from precision_time.timing.device_order import may_widen
from precision_time.timing.kernel_factors import NO_FACTORS
from precision_time.timing.kind_works import kind_works
from precision_time.timing.operators import WorkOptions
from precision_time.timing.signature_times import TimedSignatures, time_signatures
from precision_time.timing.work import ATTENTION, CONVOLUTION_FEATURES, CONVOLUTIONS, MATMUL, TILE_FAMILIES
from precision_time.timing.work_table import DETAILS, WorkTable

if TYPE_CHECKING:
    import pandas as pd

OWN = "h100.csv"
"""Table of `measured/` with this project's own steps; those that the host limited say nothing of kernels."""
TABLES = ("measurements.csv", "measurements_more.csv", "timm_train.csv", "torchvision_gpus.csv", OWN)
"""Tables of `published/` and `measured/` with data-parallel steps."""
FORWARD = "timm_forward.csv"
"""Table of `published/` with forward passes of evaluations, which say something about kernels and nothing of steps."""
STEP_PARTS = "h100_parts.csv"
"""Table of `measured/` with seconds of the kernels of some operators of a step, as torch's profiler saw them."""
ALL = (*TABLES, FORWARD, STEP_PARTS)
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


def _work_columns(timed: TimedSignatures, options: WorkOptions, gpu: Gpu, calls: Array) -> dict[str, Any]:
    """The works of one job as columns; works that are no products, attention or convolutions are added up by class.
    Those in wider arithmetic come last and have no calls."""
    table, wider, wider_of = _own_and_wider(timed.kinds, options, gpu)
    if table.classes != timed.works.table.classes or len(table) != len(calls):
        raise InternalError("the works of a job are not those of its operators")
    numbers, names = _numbers(table), _class_names(table)
    families = np.array([key[0] for key in table.classes])[table.class_of]
    apart = np.isin(families, [*CONVOLUTIONS, *TILE_FAMILIES, ATTENTION]) | table.covered
    keys = np.where(apart, np.char.add(names, np.char.mod("#%d", np.arange(len(table)))), names)
    _, first, group = np.unique(keys, return_index=True, return_inverse=True)
    weight = np.where(apart, 1.0, calls)
    for name in _ADDED:
        row = _NUMBERS.index(name)
        numbers[row, first] = np.bincount(group, weights=numbers[row] * weight, minlength=len(first))
    all_numbers = np.concatenate([numbers[:, first], _numbers(wider)], axis=1).astype(np.float32)
    own_calls = np.where(apart, calls, 1.0)[first]
    return {
        "class": np.concatenate([names[first], _class_names(wider)]),
        "calls": np.concatenate([own_calls, np.zeros(len(wider))]).astype(np.float32),
        "replaces": np.concatenate([np.full(len(first), -1), group[wider_of]]).astype(np.int32),
        **dict(zip(_NUMBERS, all_numbers, strict=True)),
    }


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
    columns = _work_columns(timed, case.options, case.cluster.gpu, calls)
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
    return _Job(_work_columns(timed, options, cluster.gpu, calls), max(host_s - device_s, 0.0), cluster.gpu.name, [])


def _part(row: Row, constants: StepConstants) -> _Job:
    """The works of a step that are of one part."""
    whole = _training_step(row, constants)
    families, *passes = OF_PART[part_of(row)]
    names = [name.split("|")[:2] for name in whole.columns["class"].tolist()]
    own = whole.columns["replaces"] < 0  # wider arithmetic may serve whole steps alone
    of_part = own & [f in families and (not passes or v.partition(".")[0] in passes) for f, v in names]
    return replace(whole, columns={name: values[of_part] for name, values in whole.columns.items()}, other_s=0.0)


OF_PART: Mapping[str, tuple[frozenset[str] | str, ...]] = {
    "convolution": (CONVOLUTIONS, "fwd"),
    "convolution_backward": (CONVOLUTIONS, "dgrad", "wgrad"),
    "batch_norm": (frozenset({"batch_norm"}), "fwd"),
    "batch_norm_backward": (frozenset({"batch_norm"}), "bwd"),
    "layer_norm": (frozenset({"layer_norm"}), "fwd"),
    "layer_norm_backward": (frozenset({"layer_norm"}), "bwd"),
    "product": (frozenset({MATMUL}),),
    "pooling": (frozenset({"pooling"}),),
    "softmax": (frozenset({"softmax"}),),
    "reduction": (frozenset({"reduction"}),),
    "copy": (frozenset({"cast", "copy", "transpose"}),),
    "pointwise": (frozenset({"pointwise"}),),
}
"""Name of a part of a step -> families of works, and their passes if not all."""


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
    return another_today(row.model, row.job.torch or "" if row.job is not None else "", is_forward(row))


def another_today(model: str, version: str, forward: bool = False) -> str:
    """`measured_otherwise` of a model under a version of PyTorch, of a step or of a forward pass."""
    name = model.removeprefix("timm:")
    if name == model:
        return ""
    for start, reason in _MEASURED_OTHERWISE.items():
        if name.startswith(start):
            return f"{model} {reason}"
    if version.startswith("1.") and (name.startswith("tresnet") or "iabn" in name):
        return f"{model} was measured with InPlaceABN, for which timm has batch norm since PyTorch 2.0"
    if forward and version == "2.9" and name.startswith(_REPARAMETERISED):
        return f"{model} was measured with its branches fused (timm's reparameterize_model)"
    return ""


def is_forward(row: Row) -> bool:
    """Whether a row is a forward pass, not a step."""
    return row.id.startswith(_FORWARD_ID)


def is_step(row: Row) -> bool:
    """Whether a row is a whole step, not a forward pass or a part."""
    return not row.id.startswith((_FORWARD_ID, _PART_ID))


def part_of(row: Row) -> str:
    """The name of the part that a row of STEP_PARTS is."""
    return row.id.rpartition(" ")[2]


_FORWARD_ID, _PART_ID = "forward-", "part-"
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


def table_path(tables: Path, name: str) -> Path:
    """Where a table of ALL is."""
    return tables / ("measured" if name in (OWN, STEP_PARTS) else "published") / name


def part_rows(path: Path) -> list[Row]:
    """The rows of the table STEP_PARTS; their `measured_s` is that of the part's kernels."""
    rows = []
    with path.open(newline="") as file:
        for number, line in enumerate(csv.DictReader(file), 2):
            given = {name: line.get(name, "") for name in (*REQUIRED, *OPTIONAL)} | {
                "id": f"{_PART_ID}{number} {line['part']}", "source": path.name, "trust": "A", "framework": "pytorch",
            }  # fmt: skip
            rows.append(row_of(number, given))
    return rows


def _rows_of(tables: Path, name: str) -> Sequence[Row]:
    path = table_path(tables, name)
    if name == OWN:
        return [row for row in read_table(path).rows if row.trust != "C"]
    of_parts = {FORWARD: forward_rows, STEP_PARTS: part_rows}
    return of_parts[name](path) if name in of_parts else read_table(path).rows


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
    measured: dict[tuple[str, str, int], Row] = {}
    for name in sorted(chosen):
        seen: Counter[str] = Counter()
        for row in _rows_of(tables, name):
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
