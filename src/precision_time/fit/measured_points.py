"""Folders of `precision-time measure` as the fit reads them: works with their measured seconds.

A group holds all measurements of one family, variant and dtype class on one device of the catalog. Points marked as
outliers are left out. Where an operator runs several works, its time is assigned to the work that names its pass (the
chain of a recurrent layer, the scatter of an embedding's gradient), else to the first; the fit subtracts the predicted
time of the others.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import Any

from precision_time.bounded_cache import bounded
from precision_time.capture.captured_model import capture_model
from precision_time.capture.graph import Phase
from precision_time.capture.optimizer import tail
from precision_time.errors import CatalogError, DataError, MissingPeakError, PrecisionTimeError
from precision_time.fit.measured_files import Record, content
from precision_time.fit.provenance import sha256
from precision_time.hardware.catalog import default_catalog
from precision_time.hardware.gpu import Gpu
from precision_time.job.job import Job
from precision_time.measure.point import Point
from precision_time.timing.kernels import compute_peak
from precision_time.timing.operators import WorkOptions, works
from precision_time.timing.work import Work, memory_work

_DEVICE_BOUND = 2.0
"""An update is used where the device works this many times as long as the host; else the host loop was timed."""
_PURE = {"float32": "fp32", "float16": "fp16", "bfloat16": "bf16"}
"""dtype -> precision whose optimizer keeps all tensors in it."""

Key = tuple[str, str, str]
"""Family, variant, dtype class."""


@dataclass(frozen=True, slots=True)
class Member:
    """One measured operator: a work of the group, how many equal works it runs, the other works it runs, and the
    seconds of all of them with their relative spread.
    """

    work: Work
    count: int
    others: tuple[Work, ...]
    seconds: float
    spread: float


@dataclass(frozen=True, slots=True)
class MeasuredGroup:
    """All measurements of a folder of one family, variant and dtype class on its device."""

    key: Key
    gpu: Gpu
    file: str
    members: tuple[Member, ...]


@dataclass(frozen=True, slots=True)
class MeasuredFolder:
    """A folder of measurements: device, file read ("folder/file") with its SHA-256, groups, and the numbers of outliers
    left out and of operators without use.
    """

    gpu: Gpu
    file: str
    sha256: str
    groups: tuple[MeasuredGroup, ...]
    outliers: int
    skipped: int

    @property
    def rows(self) -> int:
        """Measured operators in all groups."""
        return sum(len(group.members) for group in self.groups)

    def described(self) -> dict[str, Any]:
        """Provenance of the sets, as kernels.json stores it."""
        return {"sha256": self.sha256, "gpu": self.gpu.name, "rows": self.rows, "outliers": self.outliers}

    def __str__(self) -> str:
        return (
            f"{self.file}: {self.gpu.name}, {self.rows:,} operators in {len(self.groups)} classes, "
            f"{self.outliers:,} outliers left out, {self.skipped:,} others without use"
        )


def read_folders(folders: Sequence[str | Path]) -> list[MeasuredFolder]:
    """All folders.

    Raises `DataError` for a folder that is not of `measure`, is given twice, was measured on a CPU or holds no
    operator, and `CatalogError` for a device that the catalog lacks.
    """
    results = [read_folder(folder) for folder in folders]
    for index, folder in enumerate(results):
        if folder.file in [other.file for other in results[:index]]:
            raise DataError(f"two measured folders have the file {folder.file}; name each once, or rename one")
    return results


def read_folder(folder: str | Path) -> MeasuredFolder:
    """One folder (see `read_folders` for errors)."""
    path = Path(folder)
    device, points, updates, source = content(path)
    gpu = _gpu(device, path)
    file = f"{path.resolve().name}/{source.name}"
    try:
        kept = [point for point in points if not point["outlier"]]
        device_bound = [update for update in updates if update["seconds"] > _DEVICE_BOUND * update["host_s"]]
        timed = [(point_works(point), float(point["seconds"]), float(point["spread"])) for point in kept]
        timed += [([update_work(each)], float(each["seconds"]), float(each["spread"])) for each in device_bound]
    except (LookupError, TypeError, ValueError, ArithmeticError, AttributeError, PrecisionTimeError) as error:
        raise DataError(
            f"measured {str(folder)!r}: {source.name} holds a point that this version cannot read "
            f"({type(error).__name__}: {error}); measure anew or leave the folder out"
        ) from error
    usable = [(ran, s, spread) for ran, s, spread in timed if ran and 0 < s < inf and _timed(ran, gpu)]
    groups = _grouped(usable, gpu, file)
    if not groups:
        raise DataError(f"measured {str(folder)!r} holds no operator that a fit can use; measure --only operators")
    skipped = len(timed) - sum(len(group.members) for group in groups)
    return MeasuredFolder(gpu, file, sha256(source), groups, len(points) - len(kept), skipped)


def point_works(record: Record) -> list[Work]:
    """All works of a point of the journal; none where the registry has no rule for it."""
    point = Point.from_json(dict(record))
    return works(point.kind, point.options) or []


def update_work(record: Record) -> Work:
    """A whole update over the parameters of a model, as one work: traffic and launches of its sweeps, summed."""
    kind, _, implementation = record["update"].partition(" ")
    sweeps = _sweeps(record["model"], kind, implementation, record["dtype"])
    return memory_work(
        "optimizer",
        sum(w.bytes_read for w in sweeps),
        sum(w.bytes_written for w in sweeps),
        sum(w.launches for w in sweeps),
        dtype=record["dtype"],
        flops=sum(w.flops for w in sweeps),
    )


@bounded()
def _sweeps(model: str, kind: str, implementation: str, dtype: str) -> tuple[Work, ...]:
    precision = "amp-fp16" if kind == "unscale" else _PURE[dtype]
    phase = {"clip": Phase.CLIP, "unscale": Phase.UNSCALE}.get(kind, Phase.OPTIMIZER)
    job = Job(model, precision=precision)
    optimizer = kind if phase == Phase.OPTIMIZER else "sgd"
    parameters = capture_model(job).graph.parameters
    clip = 1.0 if phase == Phase.CLIP else None
    update = tail(parameters, job.precision_spec, optimizer, implementation or "foreach", clip)
    operators = [operator for at, operator in update.operators if at == phase]
    return tuple(work for operator in operators for work in works(operator, WorkOptions()) or ())


def _timed(operator_works: Sequence[Work], gpu: Gpu) -> bool:
    try:
        return all(compute_peak(gpu, work.math, work.dtype_class) > 0 for work in operator_works)
    except MissingPeakError:
        return False  # no job on this device can ask for it either


def _key(work: Work) -> Key:
    return work.family, work.variant, work.dtype_class


def _grouped(timed: Sequence[tuple[list[Work], float, float]], gpu: Gpu, file: str) -> tuple[MeasuredGroup, ...]:
    """The groups; `timed` holds all works of each operator with their seconds and spread."""
    groups: dict[Key, list[Member]] = {}
    for ran, seconds, spread in timed:
        main = next((work for work in ran if work.variant), ran[0])
        same_key = [work for work in ran if _key(work) == _key(main)]
        if any(work != main for work in same_key):
            continue  # one time of layers of several sizes: none of them is known
        others = tuple(work for work in ran if _key(work) != _key(main))
        groups.setdefault(_key(main), []).append(Member(main, len(same_key), others, seconds, spread))
    return tuple(MeasuredGroup(key, gpu, file, tuple(members)) for key, members in sorted(groups.items()))


def _gpu(device: str, folder: Path) -> Gpu:
    if device == "this-cpu":
        raise DataError(
            f"measured {str(folder)!r} was measured on a CPU; CPUs are predicted from a device file, which "
            "`precision-time calibrate` writes and --device reads"
        )
    try:
        return default_catalog().gpu(device)
    except CatalogError as error:
        raise CatalogError(
            f"measured {str(folder)!r} was measured on {device!r}, which is not in the catalog; add it to gpus.csv, or "
            "predict it from a device file (`precision-time calibrate`, then --device)"
        ) from error
