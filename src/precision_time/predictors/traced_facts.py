"""Facts of published jobs whose models torch has to trace, so that a predictor is trained in minutes without them.

    python -m precision_time.predictors.traced_facts        # in a clone; needs torch, torchvision and timm

writes `data/traced/facts.parquet`: one line for each row of `TABLES` that can be traced, with the fields of
`facts.Facts`, columns `kernel|GROUP|PASS` in seconds and `flops|CLASS`. Tracing takes 20 minutes of one core and goes
on where it was killed. Sizes of kernels are in no column: `read` takes them from the works of the same jobs
(`precision-time fit traced`), so that other sizes need no tracing.
"""

from __future__ import annotations

import itertools
import json
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np

from precision_time.errors import PrecisionTimeError
from precision_time.fit.traced import read as works_of_rows
from precision_time.fit.traced_rows import measured_otherwise
from precision_time.hardware.catalog import default_catalog
from precision_time.job.job import Job
from precision_time.measurements.repository import required_data_folder
from precision_time.measurements.row import Row
from precision_time.measurements.table import read_table
from precision_time.placement import cluster_of
from precision_time.predictors.facts import Facts, facts_of
from precision_time.predictors.kernel_sizes import kernel_sizes

TABLES = ("torchvision_gpus.csv", "timm_train.csv")
"""Tables of `published/` whose models torch has to trace."""
FACTS = Path("traced") / "facts.parquet"
_PART = Path("traced") / "facts.part"
"""One line of JSON for each traced row, until all are."""
_SCALARS = tuple(
    each.name for each in fields(Facts) if each.name not in ("kernel_seconds", "sizes", "flops", "cluster", "torch")
)
_KERNEL, _FLOPS = "kernel", "flops"


def run(tables: Path) -> None:
    """Trace every row and write `FACTS`. Rows that cannot be traced are named on standard error and left out."""
    import pandas as pd

    part = tables / _PART
    done = {(line["table"], line["id"]) for line in _lines(part)}
    left = [(name, row) for name, row in _rows(tables) if (name, row.id) not in done]
    with part.open("a", encoding="utf-8") as file:
        for count, (name, row) in enumerate(left, 1):
            print(f"\rtracing row {count}/{len(left)}", end="", file=sys.stderr)
            assert row.job is not None
            try:
                known = facts_of(row.job)
            except PrecisionTimeError as error:
                print(f"\n{row.id}: {error}", file=sys.stderr)
                continue
            line = {"id": row.id, "table": name, **_columns(known)}
            file.write(json.dumps(line) + "\n")
    table = pd.DataFrame(list(_lines(part))).fillna(0.0)
    table.to_parquet(tables / FACTS, compression="zstd", index=False)
    part.unlink()
    print(f"\n{len(table)} rows -> {tables / FACTS}", file=sys.stderr)


def _rows(tables: Path) -> Iterator[tuple[str, Row]]:
    """Rows of a model follow each other, so that its graph is traced once for each batch and memory format."""
    for name in TABLES:
        rows = [row for row in read_table(tables / "published" / name).rows if row.job and not measured_otherwise(row)]
        for row in sorted(rows, key=lambda row: repr(row.job)):
            yield name, row


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    if path.is_file():
        with path.open(encoding="utf-8") as file:
            for line in file:
                if line.endswith("\n"):  # the last line of a process that was killed may be cut
                    yield json.loads(line)


def _columns(known: Facts) -> dict[str, Any]:
    columns = {name: getattr(known, name) for name in _SCALARS}
    columns |= {f"{_KERNEL}|{group}|{run_in}": seconds for (group, run_in), seconds in known.kernel_seconds.items()}
    return columns | {f"{_FLOPS}|{kind}": count for kind, count in known.flops.items()}


@dataclass(frozen=True, slots=True)
class TracedRow:
    """What tracing found of a measured row: the columns of FACTS, and `Facts.sizes` of its works."""

    columns: Mapping[str, Any]
    sizes: Mapping[str, float]

    @property
    def family(self) -> str:
        return str(self.columns["family"])


def read(tables: Path) -> dict[tuple[str, str], TracedRow]:
    """Every traced row, by table and id; rows of one id are of one job. Empty where the tables were not traced."""
    import pandas as pd

    if not (tables / FACTS).is_file():
        return {}
    lines = pd.read_parquet(tables / FACTS).to_dict("records")
    sizes = _sizes(tables)
    keys = ((line["table"], line["id"]) for line in lines)
    return {key: TracedRow(line, sizes[key[1]]) for key, line in zip(keys, lines, strict=True) if key[1] in sizes}


def _sizes(tables: Path) -> dict[str, dict[str, float]]:
    """`Facts.sizes` by the id of a row, from the works of its job."""
    traced = works_of_rows(tables, TABLES)
    bounds = np.searchsorted(traced.of_case, np.arange(len(traced.gpu) + 1))
    catalog = default_catalog()
    of_case = []
    for case, (start, end) in enumerate(itertools.pairwise(bounds)):
        at = np.arange(start, end)
        of_case.append(kernel_sizes(traced.table.chosen(at), traced.calls[at], catalog.gpu(traced.gpu[case])))
    return {row.id: of_case[case] for row, case in zip(traced.rows, traced.case, strict=True)}


def facts_from(traced: TracedRow, job: Job) -> Facts:
    """The facts of the job of a traced row."""
    parts = {tuple(name.split("|")): value for name, value in traced.columns.items() if "|" in name}
    return Facts(
        **{name: traced.columns[name] for name in _SCALARS},
        kernel_seconds={(key[1], key[2]): float(s) for key, s in parts.items() if key[0] == _KERNEL and s},
        sizes=traced.sizes,
        flops={key[1]: float(count) for key, count in parts.items() if key[0] == _FLOPS},
        cluster=cluster_of(job),
        torch=job.torch,
    )


if __name__ == "__main__":
    run(required_data_folder(sys.argv[1] if len(sys.argv) > 1 else None))
