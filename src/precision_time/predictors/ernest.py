"""Ernest (Venkataraman et al., NSDI 2016): time of a job from its share of the data and its number of machines.

    t(s, m) = th0 + th1 * s / m + th2 * m + th3 * ln m,   th >= 0, by non-negative least squares

with s the fraction of the data set and m the ranks. It uses no feature of the network, so it needs runs of every job:
one curve for each device and each job that differs in more than s and m. Fitted to steps (`per_step`), s is the
samples of a step, and a run takes as many times as long as it has steps. The runs that its experiment design asks for
are charged to it. Errors are weighted equally in seconds, as in the authors' code. Relative weights (`relative=True`)
and the intervals are additions of this project.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from precision_time.errors import DataError, PredictorError, nearest
from precision_time.job.job import JOB_FIELDS, Job
from precision_time.predictors.experiment_design import BUDGET, FloatArray, Point, design, features
from precision_time.predictors.interface import Cost, Forecast, MeasuredJob, global_batch_size, steps_of
from precision_time.predictors.published import card_group
from precision_time.reading import read_json, to_json
from precision_time.report.write import make_folder, write_whole
from precision_time.zoo.names import zoo_name

_SCALE = ("gpus", "nodes", "layout", "run", "anchors", "schedule", "device")
"""Fields that set s and m instead of the job (of the layout only dp), or name a file."""

Key = tuple[tuple[str, Hashable], ...]

SPREAD_UNKNOWN = 0.2
"""Standard deviation of log time with too few runs to estimate it: the authors report most errors below 20 %."""
SPREAD_LEAST = 0.02
"""Least standard deviation of log time between repeats: chosen."""

LEAST_POINTS = 2
"""Fewest different points (s, m) of a curve of published steps; one says nothing of how time grows."""

SMALL_FRACTIONS = (0.01, 0.025, 0.05, 0.075, 0.1)
"""Fractions of the data for candidate runs: Ernest trains on up to a tenth."""

FILE = "ernest.json"


def samples_of(job: Job) -> float:
    """Samples of the job's run, or of one step where that has no length."""
    run = job.run
    if run.samples is not None:
        return float(run.samples)
    if run.epochs is not None and (size := data_set_size(job)) is not None:
        return run.epochs * size
    if run.epochs is not None:
        raise PredictorError(
            f"run.epochs {run.epochs:g} says no number of samples; add run.dataset or run.dataset_size"
        )
    return float((run.steps or 1) * global_batch_size(job))


def data_set_size(job: Job) -> int | None:
    """Samples of one epoch, None where the job does not state them."""
    seq_len = job.input.get("seq_len")
    return job.run.samples_per_epoch(seq_len=seq_len if isinstance(seq_len, int) else None)


def point_of(job: Job) -> Point:
    """(s, m) of a job. Without a known data set s counts samples, which only rescales th1."""
    return Point(samples_of(job) / (data_set_size(job) or 1), job.gpus)


def job_key(job: Job, by: Sequence[str] | None = None) -> Key:
    """The key of a curve: all fields of the job but those of its scale, or only the fields `by`."""
    fields = job.to_dict()
    fields["layout"] = job.layout_spec.text(with_dp=False)
    fields["dataset"] = job.run.dataset or ""
    fields["dataset_size"] = data_set_size(job) or 0
    names = sorted(fields.keys() - set(_SCALE) | {"layout"}) if by is None else by
    return tuple((name, _plain(fields.get(name))) for name in names)


def _plain(value: Any) -> Hashable:
    return json.dumps(value, sort_keys=True) if isinstance(value, (dict, list)) else value


def by_key(measured: Iterable[MeasuredJob], by: Sequence[str] | None = None) -> dict[Key, list[MeasuredJob]]:
    """Rows by the key of their curve."""
    groups: dict[Key, list[MeasuredJob]] = {}
    for row in measured:
        groups.setdefault(job_key(row.job, by), []).append(row)
    return groups


@dataclass(frozen=True, slots=True)
class Curve:
    """t(s, m) of one job on one device: parameters in seconds, the range of the runs, and the spread of log time."""

    theta: tuple[float, float, float, float]
    runs: int
    ranks: tuple[int, int]
    fractions: tuple[float, float]
    log_spread: float

    def seconds(self, point: Point) -> float:
        return float(features([point])[0] @ np.array(self.theta))

    def beyond(self, point: Point) -> float:
        """Factor by which the point lies outside the runs, in ranks or in data, whichever is larger; at least 1."""
        far = [point.ranks / self.ranks[1], self.ranks[0] / point.ranks]
        far += [point.fraction / self.fractions[1], self.fractions[0] / point.fraction]
        return max(1.0, *far)

    def log_spread_at(self, point: Point) -> float:
        """Standard deviation of log time at a point; doubled at a factor of e outside the runs."""
        return self.log_spread * (1.0 + math.log(self.beyond(point)))


def fit_curve(points: Sequence[Point], seconds: Sequence[float], relative: bool = False) -> Curve:
    """Non-negative least squares, with a spread from leaving out one run at a time."""
    rows, times = features(points), np.asarray(seconds, dtype=float)
    theta = _nnls(rows, times, relative)
    ranks = [p.ranks for p in points]
    fractions = [p.fraction for p in points]
    return Curve(
        (float(theta[0]), float(theta[1]), float(theta[2]), float(theta[3])),
        len(points),
        (min(ranks), max(ranks)),
        (min(fractions), max(fractions)),
        _left_out_spread(rows, times, relative),
    )


def _nnls(rows: FloatArray, times: FloatArray, relative: bool) -> FloatArray:
    from scipy.optimize import nnls

    weights = 1.0 / times if relative else np.ones_like(times)
    # Scaled columns have the same solution, and the solver's tolerance suits all of them.
    sizes = np.linalg.norm(rows * weights[:, None], axis=0)
    sizes[sizes == 0.0] = 1.0
    theta: FloatArray = nnls(rows * weights[:, None] / sizes, times * weights)[0] / sizes
    return theta


def _left_out_spread(rows: FloatArray, times: FloatArray, relative: bool) -> float:
    errors = []
    if len(rows) < 3:
        return SPREAD_UNKNOWN
    for i in range(len(rows)):
        others = np.arange(len(rows)) != i
        guess = float(rows[i] @ _nnls(rows[others], times[others], relative))
        if guess > 0.0:
            errors.append(math.log(guess / times[i]))
    return max(SPREAD_LEAST, float(np.sqrt(np.mean(np.square(errors))))) if errors else SPREAD_UNKNOWN


class Ernest:
    """See the module.

    by        fields that make up the key of a curve (default: all but the scale; (): none)
    per_step  curves of the time of one step, by model, configuration, input, GPU and precision: `by` is not used
    """

    name = "ernest"

    def __init__(self, by: Sequence[str] | None = None, relative: bool = False, per_step: bool = False) -> None:
        known = {*JOB_FIELDS, "dataset", "dataset_size"}
        for field in by or ():
            if field not in known or (field in _SCALE and field != "layout"):
                near = nearest(field, known - set(_SCALE) | {"layout"})
                raise PredictorError(f"by {field!r} is no field that can tell jobs apart; nearest: {near}")
        self.by = None if by is None else tuple(by)
        self.relative = relative
        self.per_step = per_step
        self._curves: dict[Key, Curve] = {}
        self._cost = Cost(0, 0.0, 0.0)

    def fit(self, measured: Sequence[MeasuredJob]) -> None:
        """Fit one curve for each key; all rows are charged."""
        start = time.perf_counter()
        groups: dict[Key, list[MeasuredJob]] = {}
        for each in measured:
            groups.setdefault(self._key(each.job), []).append(each)
        self._curves = {}
        for key, rows in groups.items():
            points = [self._point(row.job) for row in rows]
            seconds = [row.seconds / self._times(row.job) for row in rows]
            if not self.per_step or len(set(points)) >= LEAST_POINTS:
                self._curves[key] = fit_curve(points, seconds, self.relative)
        self._cost = Cost(len(measured), sum(r.cost_s for r in measured), time.perf_counter() - start)

    def _key(self, job: Job) -> Key:
        if self.per_step:
            group = card_group(MeasuredJob("", job, 0.0, ""))
            return (("job", group), ("precision", job.precision_spec.label))
        return job_key(job, self.by)

    def _point(self, job: Job) -> Point:
        return Point(float(global_batch_size(job)), job.gpus) if self.per_step else point_of(job)

    def _times(self, job: Job) -> float:
        """How often the job takes what its curve gives."""
        return steps_of(job) if self.per_step else 1.0

    def curve(self, job: Job) -> Curve:
        """The fitted curve of a job. Raises a `PredictorError` that lists the runs to make."""
        curve = self._curves.get(self._key(job))
        if curve is None:
            raise PredictorError(self._missing(job))
        return curve

    def predict(self, job: Job) -> Forecast:
        curve, point = self.curve(job), self._point(job)
        seconds = curve.seconds(point) * self._times(job)
        if seconds <= 0.0:
            raise PredictorError(
                f"ernest's runs of {job.model} give 0 s for gpus {point.ranks}; add a run with as many"
            )
        of = f"{curve.runs} runs on {_span(curve.ranks, '')} GPUs and {_span(curve.fractions, self._unit)}"
        notes = (f"{'extrapolated' if curve.beyond(point) > 1.0 else 'interpolated'} from {of}",)
        return Forecast.spread(seconds, curve.log_spread_at(point), notes=notes)

    def cost(self) -> Cost:
        return self._cost

    def save(self, folder: Path) -> None:
        curves: list[dict[str, Any]] = [
            {"key": [list(pair) for pair in key], **asdict(curve)} for key, curve in self._curves.items()
        ]
        content = {
            "by": self.by,
            "relative": self.relative,
            "per_step": self.per_step,
            "cost": asdict(self._cost),
            "curves": curves,
        }
        make_folder(folder, "folder", parents=True)
        write_whole(folder / FILE, (to_json(content, indent=1) + "\n").encode())

    @classmethod
    def load(cls, folder: Path) -> Ernest:
        try:
            content = read_json(folder / FILE)
            made = cls(content["by"], content["relative"], content["per_step"])
            made._cost = Cost(**content["cost"])
            made._curves = {tuple((n, v) for n, v in entry["key"]): _read_curve(entry) for entry in content["curves"]}
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise DataError(
                f"folder {str(folder)!r} holds no saved ernest ({type(error).__name__}: {error}); fit and save it again"
            ) from error
        return made

    @property
    def _unit(self) -> str:
        return " samples of a step" if self.per_step else " of the data"

    def held_out(self) -> Mapping[str, float]:
        """Mean spread of log time over the curves that have three runs or more, each run left out in turn."""
        spreads = [curve.log_spread for curve in self._curves.values() if curve.runs >= 3]
        return {"run of the same job": float(np.mean(spreads))} if spreads else {}

    def _missing(self, job: Job) -> str:
        what = f"{job.model} in {job.precision_spec.label} on {job.gpu}"
        if not self._curves:
            begin = f"ernest has no runs, so none of {what}"
        else:
            begin = f"ernest has no runs of {what} with these settings, and does not use other jobs{self._others(job)}"
        runs = runs_to_make(job)
        if not runs:
            return f"{begin}; make a few runs on parts of the data and on several gpus, and fit them"
        wanted = ", ".join(f"samples {samples} on gpus {ranks}" for samples, ranks in runs)
        return f"{begin}; make these runs and fit them: {wanted}"

    def _others(self, job: Job) -> str:
        """GPUs and precisions of which it has runs of this model."""
        if not self.per_step:
            return ""
        known = [dict(key) for key in self._curves]
        found = sorted(
            f"{str(each['job']).rpartition('|')[2]} in {each['precision']}"
            for each in known
            if str(each["job"]).partition("|")[0] == zoo_name(job.model)
        )
        return f" (of this model it has {', '.join(dict.fromkeys(found))})" if found else ""


def _span(ends: tuple[float, float], unit: str) -> str:
    low, high = (f"{end:.3g}" if end < 1.0 else f"{end:,.0f}" for end in ends)
    return f"{low}{unit}" if low == high else f"{low} to {high}{unit}"


def runs_to_make(job: Job, budget: float = BUDGET) -> list[tuple[int, int]]:
    """(samples, ranks) of the A-optimal design for this job; [] where its data set or batch is unknown.

    Candidates are fractions of the data up to a tenth on 1, 2, 4 ... ranks up to the job's, of at least one step.
    """
    size = data_set_size(job)
    if size is None or job.batch_size is None:
        return []
    counts = sorted({1 << i for i in range(job.gpus.bit_length()) if 1 << i <= job.gpus} | {job.gpus})
    points = [Point(s, m) for s in SMALL_FRACTIONS for m in counts if s * size >= job.batch_size * job.grad_accum * m]
    if not points:
        return []
    return [(round(p.fraction * size), p.ranks) for p in sorted(design(points, budget=budget).runs)]


def designed(
    measured: Sequence[MeasuredJob], *, by: Sequence[str] | None = None, budget: float = BUDGET, criterion: str = "A"
) -> list[MeasuredJob]:
    """The measured rows that the design selects, separately for every key.

    Candidates are the points (s, m) at which the key was measured; all rows at a selected point are returned.
    """
    chosen: list[MeasuredJob] = []
    for rows in by_key(measured, by).values():
        at: dict[Point, list[MeasuredJob]] = {}
        for row in rows:
            at.setdefault(point_of(row.job), []).append(row)
        for point in design(list(at), budget=budget, criterion=criterion).runs:
            chosen += at[point]
    return chosen


def _read_curve(entry: Mapping[str, Any]) -> Curve:
    first, second, third, fourth = (float(v) for v in entry["theta"])
    return Curve(
        (first, second, third, fourth),
        int(entry["runs"]),
        (entry["ranks"][0], entry["ranks"][1]),
        (entry["fractions"][0], entry["fractions"][1]),
        float(entry["log_spread"]),
    )
