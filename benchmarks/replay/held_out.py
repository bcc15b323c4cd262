"""Published rows as predicted by parameters that were fitted without their source.

A source is a repository; submitters of MLPerf are clusters of their own and are left out together. Factors on kernels,
factors on whole steps and factors of layouts are fitted anew without every source, by the stages that fit the shipped
ones. `python -m benchmarks.replay.held_out` writes `data/replay/held_out.csv` (about ten minutes on one core).
"""

from __future__ import annotations

import csv
import io
import math
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np

from precision_time.anchoring import Anchoring
from precision_time.estimate.spread import kind_of
from precision_time.fit import layouts
from precision_time.fit.cases import Case, cases, fitted_to, layout_cases
from precision_time.fit.factors import fit
from precision_time.fit.folds import TRUSTED, judge
from precision_time.fit.kernel_factors import Steps
from precision_time.fit.steps import kind_of_row
from precision_time.fit.traced import read
from precision_time.measurements.repository import STEPS, required_data_folder
from precision_time.measurements.row import Row
from precision_time.measurements.table import read_table
from precision_time.prediction import predict
from precision_time.report.write import write_whole
from precision_time.serve.learning.facets import Facets
from precision_time.timing.constants import StepConstants, shipped
from precision_time.timing.kernel_factors import KernelFactors

OUTPUT = Path("replay") / "held_out.csv"
"""Below the data folder."""
MORE = Path("published") / "measurements_more.csv"
MLPERF = "mlcommons"


RELEASES: dict[str, dict[str | None, str]] = {
    r"/training_results_(v\d\.\d)@": {},
    r"/Megatron-Bridge@.* \[([\d.]+)\]$": {},
    r"-(pt\d+)-cu\d+-": {},
    r"/deeplearning-benchmark@.*-throughput-(v2-)?fp": {None: "v1", "v2-": "v2"},
    r"/pytorch-gpu-benchmark@\w+:(new_results|results)/": {"results": "first", "new_results": "second"},
    r"/torchtitan@.*_h100_(202412|2025-06)_": {"202412": "2024-12"},
}
"""What a source says of its release -> the text of it that sorts in the order of time, where that is another one."""


@dataclass(frozen=True, slots=True)
class HeldOutRow:
    """A measured row as one outcome of a cluster.

    cluster      repository of the source; of MLPerf the submitter
    source       what was left out of the fits: all of MLPerf together
    gpu ... job  facets (`learning.Facets`); `launch` as the shipped parameters have it, 0 for models of libraries
    release      of the software or machine, as the source tells it; their order is that of time
    gpus, batch  GPUs, and samples of a rank
    measured_s   seconds of the step
    predicted_s  the same as predicted without any row of the source
    widening     what the job itself adds to the spread of its log
    kind         kind of the step, by which base spreads differ
    shipped_s    as predicted by the shipped parameters without anchors, which saw the row
    anchored_s   the same with the shipped anchors but those of the same job
    """

    id: str
    cluster: str
    source: str
    trust: str
    gpu: str
    framework: str
    precision: str
    family: str
    model: str
    setting: str
    job: str
    launch: float
    release: str
    gpus: int
    batch: int
    measured_s: float
    predicted_s: float
    widening: float
    kind: str
    shipped_s: float
    anchored_s: float

    @property
    def residual(self) -> float:
        """log(measured / predicted)."""
        return math.log(self.measured_s / self.predicted_s)

    @property
    def facets(self) -> Facets:
        return Facets(**{item.name: getattr(self, item.name) for item in fields(Facets)})


def cluster_of_source(source: str) -> str:
    """The cluster that a row stands for: "NVIDIA/DeepLearningExamples", "mlcommons/Azure"."""
    repository, _, rest = source.partition("@")
    if repository.startswith(MLPERF):
        return f"{MLPERF}/{rest.partition(':')[2].partition('/')[0]}"
    return repository


def left_out_with(source: str) -> str:
    """The rows of this name are left out of fits together."""
    cluster = cluster_of_source(source)
    return MLPERF if cluster.startswith(MLPERF) else cluster


def release_of(source: str) -> str:
    """Release of a source's software, of which it may have several; "": it says nothing of them."""
    for pattern, names in RELEASES.items():
        if found := re.search(pattern, source):
            return names.get(found[1], found[1])
    return ""


def _forward(source: str) -> str:
    """Forward passes of timm are of the repository that its steps are of."""
    return "huggingface/pytorch-image-models" if source == "timm_forward.csv" else left_out_with(source)


def rows_without_their_source(tables: Path, progress: Callable[[str], None]) -> Iterator[HeldOutRow]:
    """Every published row of trust A to C that can be predicted, in the order of the tables."""
    steps = read_table(tables / STEPS).rows
    more = read_table(tables / MORE).rows
    progress("tracing steps")
    fitted = cases(steps)
    traced = [*fitted, *cases(more)]
    kernels = Steps(read(tables))
    of_kernels = np.array([_forward(row.source) for row in kernels.rows])
    full_s = kernels.seconds(kernels.full)
    bases: dict[str, StepConstants] = {}
    for name in sorted(set(of_kernels.tolist())):
        progress(f"steps without {name}")
        theta = kernels.without(of_kernels == name)
        factors = kernels.factors(theta)
        yield from _of_cases(name, traced, bases.setdefault(name, _base(name, fitted, factors, bases)))
        yield from _of_kernels(kernels, of_kernels == name, kernels.seconds(theta), full_s)
    yield from _of_layouts(tables, bases, progress)


def _base(name: str, fitted: Sequence[Case], factors: KernelFactors, bases: dict[str, StepConstants]) -> StepConstants:
    """Factors on whole steps, on top of `factors`, fitted without a source."""
    return fit(fitted_to(c for c in fitted if left_out_with(c.row.source) != name), factors=factors).constants


def _of_cases(name: str, traced: Sequence[Case], constants: StepConstants) -> Iterator[HeldOutRow]:
    members = [case for case in traced if left_out_with(case.row.source) == name]
    for case, held_out in zip(members, judge(members, constants, name), strict=True):
        yield _row(case.row, case.step.batch_size, held_out.predicted_s, held_out.widening, held_out.kind)


def _of_kernels(kernels: Steps, members: Any, seconds: Any, full_s: Any) -> Iterator[HeldOutRow]:
    """Image networks of timm and torchvision, whose steps are predicted as the sum of their kernels and the rest."""
    named = np.array([row.model.partition(":")[0] in ("timm", "torchvision") for row in kernels.rows])
    widenings = kernels.widening(_openness())
    chosen = np.flatnonzero(members & named & ~kernels.partial & kernels.usable).tolist()
    for i in chosen:
        row = kernels.rows[i]
        kind = kind_of_row(row)
        batch = row.job.batch_size if row.job and row.job.batch_size else 0
        yield _row(row, batch, float(seconds[i]), float(widenings[i]), kind, float(full_s[i]))


def _openness() -> Any:
    from precision_time.timing.step_factors import shipped_openness

    return shipped_openness()


def _of_layouts(tables: Path, bases: dict[str, StepConstants], progress: Callable[[str], None]) -> Iterator[HeldOutRow]:
    progress("tracing layouts")
    traced = layout_cases(layouts.read_rows(tables))
    trusted = np.array([case.row.trust in TRUSTED for case in traced])
    names = [left_out_with(case.row.source) for case in traced]
    for name in dict.fromkeys(names):
        progress(f"layouts without {name}")
        inside = np.array([each == name for each in names])
        base = bases.get(name, shipped())
        rest = [case for case, kept in zip(traced, ~inside & trusted, strict=True) if kept]
        theta = layouts.fit(rest, base, rounds=3).theta
        constants = replace(base, layouts=layouts.costs_of(theta))
        for case, out in zip(traced, inside, strict=True):
            if out:
                kind = kind_of(case.row.family, case.row.precision, case.job, case.cluster.gpu.name)
                yield _row(case.row, case.step.batch_size, case.seconds(constants), case.widening(constants), kind)


def _row(
    row: Row, batch: int, predicted_s: float, widening: float, kind: str, shipped_s: float | None = None
) -> HeldOutRow:
    job = row.job
    assert job is not None
    launch, anchored_s = 0.0, shipped_s
    if shipped_s is None:
        alone = predict(job, anchoring=Anchoring(use=False))
        anchored = predict(job, anchoring=Anchoring(without=("key",), framework=row.kernels_of))
        launch, shipped_s, anchored_s = alone.bound_shares["launch"], alone.step.p50, anchored.step.p50
    facets = replace(Facets.of_job(job, launch, row.kernels_of), release=release_of(row.source))
    return HeldOutRow(
        id=row.id,
        cluster=cluster_of_source(row.source),
        source=left_out_with(row.source),
        trust=row.trust,
        gpus=row.gpus,
        batch=batch,
        measured_s=row.measured_s,
        predicted_s=float(f"{predicted_s:.6g}"),
        widening=round(widening, 4),
        kind=kind,
        shipped_s=float(f"{shipped_s:.6g}"),
        anchored_s=float(f"{anchored_s:.6g}"),
        **{item.name: getattr(facets, item.name) for item in fields(Facets)},
    )


def write(rows: Iterable[HeldOutRow], path: Path) -> None:
    names = [item.name for item in fields(HeldOutRow)]
    text = io.StringIO()
    table = csv.DictWriter(text, names, lineterminator="\n")
    table.writeheader()
    table.writerows(asdict(row) for row in rows)
    path.parent.mkdir(exist_ok=True)
    write_whole(path, text.getvalue())


def read_held_out(path: Path) -> list[HeldOutRow]:
    """The rows of the file, in its order."""
    kinds = {item.name: {"int": int, "float": float}.get(str(item.type), str) for item in fields(HeldOutRow)}
    with path.open(encoding="utf-8", newline="") as file:
        return [HeldOutRow(**{name: kinds[name](text) for name, text in row.items()}) for row in csv.DictReader(file)]


def main() -> int:
    tables = required_data_folder()
    write(rows_without_their_source(tables, lambda text: print(text, file=sys.stderr)), tables / OUTPUT)
    return 0


if __name__ == "__main__":
    sys.exit(main())
