"""Our own measurements as a fit reads them: folders that `precision-time measure` wrote, works with their seconds.

A group holds everything measured of one family, variant and dtype class on one device of the catalog. Points marked as
outliers are left out. Where an operator runs several works, its time belongs to the one that names its pass (the chain
of a recurrent layer, the scatter of an embedding's gradient), else to the first; the fit takes off what others cost.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from math import inf
from pathlib import Path
from typing import Any

from precision_time.capture.graph import Phase
from precision_time.capture.optimizer import tail
from precision_time.capture.training_step import training_step
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
"""An update counts whose device is busy so many times as long as the host: below, the loop over tensors is timed."""
_PURE = {"float32": "fp32", "float16": "fp16", "bfloat16": "bf16"}
"""The precision whose optimizer has all tensors in that dtype."""

Key = tuple[str, str, str]
"""Family, variant, dtype class."""


@dataclass(frozen=True, slots=True)
class Member:
    """One measured operator: a work of the group, how many equal ones it runs, what runs beside them, and the seconds
    of all together with their relative spread.
    """

    work: Work
    count: int
    beside: tuple[Work, ...]
    seconds: float
    spread: float


@dataclass(frozen=True, slots=True)
class OwnGroup:
    """All that a folder says of one family, variant and dtype class on its device."""

    key: Key
    gpu: Gpu
    file: str
    members: tuple[Member, ...]


@dataclass(frozen=True, slots=True)
class OwnFolder:
    """A folder of measurements: the device, the file that was read as "folder/file" with its SHA-256, the groups, how
    many outliers were left out and how many operators tell nothing by themselves.
    """

    gpu: Gpu
    file: str
    sha256: str
    groups: tuple[OwnGroup, ...]
    outliers: int
    skipped: int

    @property
    def rows(self) -> int:
        return sum(len(group.members) for group in self.groups)

    def described(self) -> dict[str, Any]:
        """As kernels.json says where sets come from."""
        return {"sha256": self.sha256, "gpu": self.gpu.name, "rows": self.rows, "outliers": self.outliers}

    def __str__(self) -> str:
        return (
            f"{self.file}: {self.gpu.name}, {self.rows:,} operators in {len(self.groups)} classes, "
            f"{self.outliers:,} outliers left out, {self.skipped:,} others without use"
        )


def read_folders(folders: Sequence[str | Path]) -> list[OwnFolder]:
    """Each folder; `DataError` if one is no folder of `measure`, is given twice, was measured on a CPU or holds no
    operator, `CatalogError` if the catalog lacks its device.
    """
    found = [read_folder(folder) for folder in folders]
    for index, folder in enumerate(found):
        if folder.file in [other.file for other in found[:index]]:
            raise DataError(f"two measured folders have the file {folder.file}; name each once, or rename one")
    return found


def read_folder(folder: str | Path) -> OwnFolder:
    """One folder (see `read_folders` for errors)."""
    path = Path(folder)
    device, points, updates, source = content(path)
    gpu = _gpu(device, path)
    file = f"{path.resolve().name}/{source.name}"
    try:
        kept = [said for said in points if not said["outlier"]]
        busy = [said for said in updates if said["seconds"] > _DEVICE_BOUND * said["host_s"]]
        found = [(point_works(said), float(said["seconds"]), float(said["spread"])) for said in kept]
        found += [([update_work(said)], float(said["seconds"]), float(said["spread"])) for said in busy]
    except (LookupError, TypeError, ValueError, ArithmeticError, AttributeError, PrecisionTimeError) as error:
        raise DataError(
            f"measured {str(folder)!r}: {source.name} holds a point that this version cannot read "
            f"({type(error).__name__}: {error}); measure anew or leave the folder out"
        ) from error
    usable = [(ran, s, spread) for ran, s, spread in found if ran and 0 < s < inf and _timed(ran, gpu)]
    groups = _grouped(usable, gpu, file)
    if not groups:
        raise DataError(f"measured {str(folder)!r} holds no operator that a fit can use; measure --only operators")
    skipped = len(found) - sum(len(group.members) for group in groups)
    return OwnFolder(gpu, file, sha256(source), groups, len(points) - len(kept), skipped)


def point_works(said: Record) -> list[Work]:
    """All works of a point as a journal keeps it; none where the registry has no rule."""
    point = Point.from_json(dict(said))
    return works(point.kind, point.options) or []


def update_work(said: Record) -> Work:
    """A whole update over the parameters of a model, as one work: traffic and launches of its sweeps, summed."""
    what, _, how = said["update"].partition(" ")
    sweeps = _sweeps(said["model"], what, how, said["dtype"])
    return memory_work(
        "optimizer", sum(w.bytes_read for w in sweeps), sum(w.bytes_written for w in sweeps),
        sum(w.launches for w in sweeps), dtype=said["dtype"], flops=sum(w.flops for w in sweeps),
    )  # fmt: skip


@cache
def _sweeps(model: str, what: str, how: str, dtype: str) -> tuple[Work, ...]:
    precision = "amp-fp16" if what == "unscale" else _PURE[dtype]
    phase = {"clip": Phase.CLIP, "unscale": Phase.UNSCALE}.get(what, Phase.OPTIMIZER)
    job = Job(model, precision=precision)
    optimizer = what if phase == Phase.OPTIMIZER else "sgd"
    parameters = training_step(job).graph.parameters
    found = tail(parameters, job.precision_spec, optimizer, how or "foreach", 1.0 if phase == Phase.CLIP else None)
    kinds = [kind for at, kind in found.operators if at == phase]
    return tuple(work for kind in kinds for work in works(kind, WorkOptions()) or ())


def _timed(found: Sequence[Work], gpu: Gpu) -> bool:
    try:
        return all(compute_peak(gpu, work.math, work.dtype_class) > 0 for work in found)
    except MissingPeakError:
        return False  # no job on this device can ask for it either


def _key(work: Work) -> Key:
    return work.family, work.variant, work.dtype_class


def _grouped(found: Sequence[tuple[list[Work], float, float]], gpu: Gpu, file: str) -> tuple[OwnGroup, ...]:
    """The groups; `found` has all works of each operator, their seconds and spread."""
    groups: dict[Key, list[Member]] = {}
    for ran, seconds, spread in found:
        main = next((work for work in ran if work.variant), ran[0])
        alike = [work for work in ran if _key(work) == _key(main)]
        if any(work != main for work in alike):
            continue  # layers of several sizes in one time: no one of them is known
        beside = tuple(work for work in ran if _key(work) != _key(main))
        groups.setdefault(_key(main), []).append(Member(main, len(alike), beside, seconds, spread))
    return tuple(OwnGroup(key, gpu, file, tuple(members)) for key, members in sorted(groups.items()))


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
