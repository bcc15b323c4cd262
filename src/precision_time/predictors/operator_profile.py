"""Measured times of single operators in their real shapes and dtypes, and the profiling of this machine."""

from __future__ import annotations

import io
import tempfile
import zipfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from precision_time.capture.graph import OpSignature
from precision_time.errors import DataError
from precision_time.hardware.gpu import Gpu
from precision_time.job.job import Job
from precision_time.journal import held, read
from precision_time.measure.clock import Timed
from precision_time.measure.point import Point
from precision_time.reading import MOST_SAVED_VALUES, parse_json, read_member, to_json
from precision_time.report.write import write_whole
from precision_time.timing.operators import WorkOptions

Report = Callable[[int, int], None]
_LAYOUT = "layout"
BESIDE = "operators.zip"
"""File name of a profile beside the device file of its machine."""
_MEMBER = "operators.json"


def device_key(gpu: Gpu) -> str:
    """A device's name: that of the catalog, with the machine for a device that `calibrate` measured."""
    return gpu.name if gpu.calibration is None else f"{gpu.name} ({gpu.calibration.machine})"


@dataclass(frozen=True, slots=True)
class OperatorProfile:
    """Points of one device (`device_key`), and the operators that could not be measured.

    `spent_s` is the time of measuring all points, `now_s` the part of it that was not read from a journal.
    """

    device: str = ""
    points: tuple[Point, ...] = ()
    spent_s: float = 0.0
    left_out: tuple[str, ...] = ()
    now_s: float = 0.0
    _exact: Mapping[Any, Timed] = field(default_factory=dict, repr=False, compare=False)
    _loose: Mapping[Any, Timed] = field(default_factory=dict, repr=False, compare=False)

    def __post_init__(self) -> None:
        exact = {(point.kind, point.options): point.time for point in self.points}
        loose: dict[Any, Timed] = {}
        for point in self.points:
            loose.setdefault((_without_layout(point.kind), point.options), point.time)
        object.__setattr__(self, "_exact", exact)
        object.__setattr__(self, "_loose", loose)

    def __len__(self) -> int:
        return len(self.points)

    def time(self, kind: OpSignature, options: WorkOptions) -> Timed | None:
        """Time of this operator, or of one with another memory layout where the graph does not state the layout."""
        options = options.of_operator(kind.name)
        point = self._exact.get((kind, options))
        if point is None and kind.attr(_LAYOUT) is None:
            point = self._loose.get((kind, options))
        return point

    def to_json(self) -> dict[str, Any]:
        return {
            "device": self.device,
            "spent_s": self.spent_s,
            "left_out": list(self.left_out),
            "points": [point.to_json() for point in self.points],
        }

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> OperatorProfile:
        points = tuple(Point.from_json(point) for point in content["points"])
        return cls(str(content["device"]), points, float(content["spent_s"]), tuple(content["left_out"]))

    def write(self, path: Path) -> None:
        """Write compressed JSON, the same bytes for the same profile."""
        packed = io.BytesIO()
        with zipfile.ZipFile(packed, "w") as archive:
            member = zipfile.ZipInfo(_MEMBER)  # dated 1980, always
            member.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(member, to_json({"format": 1, **self.to_json()}, separators=(",", ":")))
        write_whole(path, packed.getvalue())

    @classmethod
    def read(cls, path: Path) -> OperatorProfile:
        """Read what `write` wrote. Raises a `DataError` where it cannot be read."""
        try:
            return cls.from_json(
                parse_json(read_member(path, _MEMBER, "profile"), f"profile {path}", MOST_SAVED_VALUES)
            )
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise DataError(
                f"{path} is no profile of operators ({type(error).__name__}); profile them again"
            ) from error


def _rounded(record: dict[str, Any]) -> dict[str, Any]:
    """Round times to six digits, far below their spread, to halve the file."""
    return {key: float(f"{value:.6g}") if isinstance(value, float) else value for key, value in record.items()}


def _without_layout(kind: OpSignature) -> OpSignature:
    """The operator without the memory layout of its operands."""
    return replace(kind, attrs=tuple(pair for pair in kind.attrs if pair[0] != _LAYOUT))


def profile_operators(
    jobs: Sequence[Job],
    budget_s: float,
    journal: Path | None = None,
    report: Report = lambda done, total: None,
    ranks: int = 1,
    threads: int | None = None,
) -> OperatorProfile:
    """Measure every operator of the jobs on this machine in about `budget_s` seconds, each once.

    Points are appended to `journal` (one JSON line each), and a later call measures only what is missing, for other
    jobs too. `ranks` and `threads` as in `calibrate`. Raises `MeasureError` where this machine cannot run them, or
    where the journal is from another machine.
    """
    from precision_time.measure.calibrate import Machine, portable_fields
    from precision_time.measure.launch import launch
    from precision_time.measure.profile import spent_s

    here = Machine.here(ranks=ranks, threads=threads)
    fields = _distinct(portable_fields(job) for job in jobs)
    with tempfile.TemporaryDirectory(prefix="precision-time-") as folder:
        path = (journal or Path(folder) / "profile.jsonl").absolute()
        task = {
            "task": "profile",
            "device": here.device_type,
            "jobs": fields,
            "budget_s": budget_s,
            "journal": str(path),
        }
        with held(path):
            done = launch(task, threads=here.threads, timeout_s=2 * budget_s + 600, report=report)
        _, records, _ = read(path)
    points = [Point.from_json(_rounded(said)) for record in records.values() for said in record.get("points", ())]
    return OperatorProfile(
        device_at_hand(), tuple(points), spent_s(records), tuple(done["left_out"]), float(done["spent_s"])
    )


def device_at_hand() -> str:
    """`device_key` of the device that is profiled on this machine."""
    from precision_time.measure import machine
    from precision_time.measure.calibrate import Machine, device_name

    here = Machine.here()
    return f"{device_name(here)} ({machine.description(here.device_type)})"


def _distinct(jobs: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    distinct: list[dict[str, Any]] = []
    for each in jobs:
        each.pop("run", None)
        if each not in distinct:
            distinct.append(each)
    return distinct
