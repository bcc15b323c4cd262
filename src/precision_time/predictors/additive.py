"""The per-operator additive model of arXiv 2604.16145: the sum of four terms (`additive_equations`).

Each operator of a rank, forward and backward, has the dtype that autocast gives it and is looked up at its local shape
in a profile of the device. The times come, in this order, from

1. operators profiled on the machine at hand (`Additive(budget_s=...)`, see `operator_profile`), or earlier, in a file
   `operators.zip` beside the job's device file;
2. the points of the job's device file, as `calibrate` measured them, interpolated where none has the shape;
3. the shipped kernel curves, fitted to kernel benchmarks alone (published tables, and folders that `measure` wrote and
   `fit kernels` took in), for GPUs of the catalog that the benchmarks know.

The notes of a forecast give the share of each source, and which kernels the benchmarks know on that GPU. Measured
training times are not used, so nothing has to be trained: `fit` takes from measured jobs only their operators. The
paper gives no interval; ours covers the spread of operator times, not what the equations leave out.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from precision_time.errors import DataError, PredictorError
from precision_time.hardware.fabric import Cluster
from precision_time.hardware.gpu import Gpu
from precision_time.job.job import Job
from precision_time.job.precision import parse_precision
from precision_time.placement import catalog_of, cluster_of
from precision_time.prediction import work_options
from precision_time.predictors.additive_equations import Terms, additive, bandwidth, ring_volume
from precision_time.predictors.additive_local import LocalStep, local_step
from precision_time.predictors.interface import Cost, Forecast, MeasuredJob, steps_of
from precision_time.predictors.operator_profile import (
    BESIDE,
    OperatorProfile,
    device_at_hand,
    device_key,
    profile_operators,
)
from precision_time.reading import LARGEST_SAVED, MOST_SAVED_VALUES, read_json, to_json
from precision_time.report.write import make_folder, write_whole
from precision_time.timing.constants import StepConstants
from precision_time.timing.kernels import SOURCES, compute_peak
from precision_time.timing.operators import WorkOptions
from precision_time.timing.signature_times import TimedSignatures, time_signatures

FILE = "additive.json"
FORMAT = 2
_CURVES = StepConstants()
"""Kernel curves without the shipped step factors, which were fitted to whole steps."""
_MEASURED = SOURCES.index("measured")
_POINT_S = 0.1
"""Seconds that `calibrate` spends on a short operator (`measure.session.LONGEST_POINT_S`); a long one is called four
times."""
_LEAST_CALLS = 4


@dataclass(frozen=True, slots=True)
class Added:
    """One step of a job by the equations, with their inputs.

    `log_spread` is the standard deviation of log(T_comp); `shares` maps a source of operator times (profiled, measured,
    interpolated ...) to its share of T_comp. Volumes are in bytes, bandwidths in bytes per second (0: nothing is sent).
    """

    terms: Terms
    log_spread: float
    shares: Mapping[str, float]
    data_bytes: float
    data_bytes_per_s: float
    tensor_bytes: float
    tensor_bytes_per_s: float


class Additive:
    """The predictor. With a budget `fit` profiles the operators of its jobs here; without, nothing has to be fitted.

    budget_s  seconds of profiling on the machine at hand, for the jobs that run on it (gpu this-cpu or this-gpu of a
              device file that `calibrate` wrote); 0: nothing is run
    journal   file of the points, one JSON line each, which a later fit continues. None: measured anew
    ranks, threads   as in `calibrate`: those under which the jobs run
    beside    whether a profile beside the jobs' device file is used
    """

    name = "additive"

    def __init__(
        self,
        budget_s: float = 0.0,
        journal: Path | None = None,
        report: Callable[[int, int], None] = lambda done, total: None,
        ranks: int = 1,
        threads: int | None = None,
        beside: bool = True,
    ) -> None:
        self._beside = beside
        self._budget_s, self._journal, self._report = budget_s, journal, report
        self._ranks, self._threads = ranks, threads
        self._profile = OperatorProfile()
        self._cost = Cost(0, 0.0, 0.0)
        self._uncharged: Sequence[Job] = ()

    def fit(self, measured: Sequence[MeasuredJob]) -> None:
        """Profile the jobs' operators if there is a budget. The jobs' times are not used."""
        begin = time.perf_counter()
        self._settle(measured)
        jobs = [self._as_profiled(each.job) for each in measured]
        self._profile = self._profiled(jobs)
        profiled = self._profile
        self._cost = Cost(len(profiled), profiled.spent_s, time.perf_counter() - begin - profiled.now_s)
        self._uncharged = jobs

    def predict(self, job: Job) -> Forecast:
        """Seconds of the job's run or step. Raises `PredictorError` for a device without operator times, or a layout
        without equation."""
        added = self.added(job)
        return Forecast.spread(
            steps_of(job) * added.terms.seconds, added.log_spread, notes=tuple(_notes(job, added, self._profile))
        )

    def added(self, job: Job) -> Added:
        """The terms of one optimizer step and their inputs."""
        job = self._as_profiled(job)
        if job.schedule:
            raise PredictorError("the additive model takes one precision, not a schedule; predict each part by itself")
        cluster = _where(job)
        device = device_key(cluster.gpu)
        profile = self._profile if self._profile.device == device else OperatorProfile()
        if not len(profile):
            _check_known(cluster.gpu)
        compute_peak(cluster.gpu, job.precision_spec.math, "")
        local, timed, options = self._timed(job, cluster)
        seconds, spread, profiled = _operators(timed, options, profile)
        stages = [float(calls @ seconds) for calls in local.calls]
        busiest = int(np.argmax(stages))
        compute, weights = stages[busiest], local.calls[busiest] * seconds
        data = max(ring_volume(sent, local.data_group[0]) for sent in local.data)
        tensor = max(ring_volume(sent, local.tensor_group[0]) for sent in local.tensor)
        rates = [
            bandwidth(cluster.group(*group)) if volume else 0.0
            for volume, group in ((data, local.data_group), (tensor, local.tensor_group))
        ]
        return Added(
            additive(compute, data, rates[0], tensor, rates[1], local.pp),
            float(weights @ spread) / compute if compute else 0.0,
            _shares(timed, local.calls[busiest], profiled, weights),
            data,
            rates[0],
            tensor,
            rates[1],
        )

    def save(self, folder: Path) -> None:
        """Write `additive.json`: cost and profiled points."""
        make_folder(folder, "folder", parents=True)
        cost = self.cost()
        content = {
            "format": FORMAT,
            "name": self.name,
            **self._more(),
            "cost": [cost.runs, cost.measured_s, cost.fit_s],
            "profile": self._profile.to_json(),
        }
        write_whole(folder / FILE, (to_json(content, indent=1) + "\n").encode())

    @classmethod
    def load(cls, folder: Path) -> Additive:
        """What `save` wrote; `DataError` where it cannot be read."""
        path = folder / FILE
        try:
            content = read_json(path, largest=LARGEST_SAVED, most=MOST_SAVED_VALUES)
            if (content["format"], content["name"]) != (FORMAT, cls.name):
                raise DataError(
                    f"{path} holds predictor {content['name']} in format {content['format']}, not {cls.name}"
                )
            predictor = cls()
            predictor._cost = Cost(*content["cost"])
            predictor._profile = OperatorProfile.from_json(content["profile"])
            predictor._restore(content)
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise DataError(
                f"{path} is no saved {cls.name} predictor ({type(error).__name__}); save it again"
            ) from error
        return predictor

    def cost(self) -> Cost:
        """Operators whose measured times it uses, and the seconds of measuring them.

        For the points of a device file these are estimated from the time that `calibrate` spends on a point.
        """
        if self._uncharged:  # computed late, because every job must be read or traced for it
            runs, seconds = self._looked_up(self._uncharged)
            self._cost = Cost(self._cost.runs + runs, self._cost.measured_s + seconds, self._cost.fit_s)
            self._uncharged = ()
        return self._cost

    def held_out(self) -> Mapping[str, float]:
        """Nothing, since no measured time is fitted to."""
        return {}

    def _profiled(self, jobs: Sequence[Job]) -> OperatorProfile:
        """Operators profiled now, or profiles beside the device file of a job; else none."""
        if self._budget_s > 0.0:
            here = device_at_hand()
            here_jobs = [job for job in jobs if device_key(_where(job).gpu) == here]
            if not here_jobs:
                raise PredictorError(
                    f"additive has a budget of {self._budget_s:g} s to profile operators on {here}, but no job is on "
                    "it; give jobs with a device file that `calibrate` wrote here, or leave the budget out"
                )
            return profile_operators(here_jobs, self._budget_s, self._journal, self._report, self._ranks, self._threads)
        files = {Path(job.device).with_name(BESIDE) for job in jobs if job.device} if self._beside else set()
        profiles = [OperatorProfile.read(path) for path in sorted(files) if path.is_file()]
        devices = {device_key(_where(job).gpu) for job in jobs}
        return next((profile for profile in profiles if profile.device in devices), OperatorProfile())

    def _settle(self, measured: Sequence[MeasuredJob]) -> None:
        """Take other settings from the jobs."""

    def _as_profiled(self, job: Job) -> Job:
        """The job in the precision whose operator times are used."""
        return job

    def _more(self) -> dict[str, Any]:
        return {}

    def _restore(self, content: Mapping[str, Any]) -> None:
        """Read back what `_more` wrote."""

    def _timed(self, job: Job, cluster: Cluster) -> tuple[LocalStep, TimedSignatures, WorkOptions]:
        """The rank's operators with their times from the device file or the curves, on one GPU."""
        local = local_step(job, cluster.gpu.device_type)
        options = work_options(job, cluster.gpu)
        return local, time_signatures(local.kinds, _where(job, alone=True), options, job.execution, _CURVES), options

    def _looked_up(self, jobs: Sequence[Job]) -> tuple[int, float]:
        """Number of operators that the device files hold in the jobs' shapes; rough seconds of measuring them."""
        seconds_of: dict[Any, float] = {}
        for job in jobs:
            cluster = _where(job)
            if cluster.gpu.calibration is None or self._profile.device == device_key(cluster.gpu):
                continue
            local, timed, options = self._timed(job, cluster)
            runs = np.sum(local.calls, axis=0) > 0
            for index in np.flatnonzero(runs & (timed.source_s[:, _MEASURED] > 0.0)):
                seconds_of[device_key(cluster.gpu), local.kinds[int(index)], options] = float(timed.kind_s[index])
        return len(seconds_of), _spent(seconds_of.values())


class BlindAdditive(Additive):
    """The precision-blind twin: every job runs in one precision, that of most of the jobs it was fitted to."""

    name = "additive-blind"
    precision = ""
    """The precision of all predictions; "" before `fit`."""
    _frozen = False

    def freeze(self, precision: str) -> None:
        """Set the precision, whatever that of the jobs it is fitted to."""
        self.precision, self._frozen = parse_precision(precision).label, True

    def _settle(self, measured: Sequence[MeasuredJob]) -> None:
        counts = Counter(each.precision for each in measured)
        if not self._frozen:
            self.precision = max(sorted(counts), key=lambda name: counts[name]) if counts else ""

    def _as_profiled(self, job: Job) -> Job:
        return job.replace(precision=self.precision) if self.precision else job

    def _more(self) -> dict[str, Any]:
        return {"precision": self.precision}

    def _restore(self, content: Mapping[str, Any]) -> None:
        self.precision = str(content["precision"])


def calibration_seconds(jobs: Iterable[Job]) -> float:
    """Rough seconds that `calibrate` spent on the kernels of the jobs' device files, which hold no such figure."""
    points = {
        device_key(gpu): gpu.calibration.kernels.seconds
        for job in jobs
        if job.device and (gpu := catalog_of(job).gpu(job.gpu)).calibration is not None
    }
    return sum(map(_spent, points.values()))


def _spent(seconds: Iterable[float]) -> float:
    return sum(max(_POINT_S, _LEAST_CALLS * each) for each in seconds)


def _where(job: Job, alone: bool = False) -> Cluster:
    """The job's GPUs; with `alone` one of them, as when an operator is profiled."""
    return catalog_of(job).cluster(job.gpu, 1, node=job.system or job.node) if alone else cluster_of(job)


def _check_known(gpu: Gpu) -> None:
    """Raise `PredictorError` for a device without a calibration that no kernel benchmark knows."""
    if gpu.calibration is None and not any(_CURVES.kernels.tables(gpu)):
        raise PredictorError(
            f"additive has no operator times for gpu {gpu.name}: kernel benchmarks know none of architecture "
            f"{gpu.arch} (they know {', '.join(_CURVES.kernels.known_devices)}); calibrate the GPU, or choose another "
            "predictor"
        )


def _known(gpu: Gpu) -> str:
    """Which kernels the benchmarks know on this GPU."""
    of_device, pooled = (", ".join(name.replace("|", " ") for name in each) for each in _CURVES.kernels.tables(gpu))
    known = [f"{of_device} on {gpu.name}"] if of_device else []
    known += [f"{pooled} on other {gpu.arch} GPUs"] if pooled else []
    return f"kernel benchmarks know {'; '.join(known)}; other kernels are assumed from these"


def _operators(timed: TimedSignatures, options: WorkOptions, profile: OperatorProfile) -> tuple[Any, Any, Any]:
    """Seconds of every operator, the spread of their log, and which are profiled; casts take no time."""
    seconds = timed.kind_s.copy()
    at = timed.works.owner
    spread = np.bincount(at, timed.work_s * timed.work_spread, len(seconds)) / np.maximum(seconds, 1e-30)
    profiled = np.zeros(len(seconds), dtype=np.bool_)
    if len(profile):
        for index, kind in enumerate(timed.kinds):
            point = profile.time(kind, options)
            if point is not None:
                seconds[index], spread[index], profiled[index] = point.seconds, point.spread, True
    seconds[timed.works.is_cast] = 0.0
    return seconds, spread, profiled


def _shares(timed: TimedSignatures, calls: Any, profiled: Any, weights: Any) -> dict[str, float]:
    """Share of T_comp by source of the operator times, largest first."""
    total = float(weights.sum()) or 1.0
    seconds = {"profiled": float(weights[profiled].sum())}
    rest = np.where(profiled | timed.works.is_cast, 0.0, calls)
    for index, name in enumerate(SOURCES):
        seconds[name] = float(rest @ timed.source_s[:, index])
    return {name: s / total for name, s in sorted(seconds.items(), key=lambda pair: -pair[1]) if s > 0.0}


def _notes(job: Job, added: Added, profile: OperatorProfile) -> list[str]:
    shares = ", ".join(f"{share:.0%} {name}" for name, share in added.shares.items())
    notes = [f"operators' times: {shares}"]
    if not {"profiled", "measured", "interpolated"} & set(added.shares):
        notes.append(_known(_where(job).gpu))
    layout = job.layout_spec
    if layout.pp > 1 and job.grad_accum > 1:
        notes.append(
            f"the published pipeline term is (pp - 1) = {layout.pp - 1} times the compute; with {job.grad_accum} "
            f"micro-batches a pipeline idles {layout.pp - 1}/{job.grad_accum} of it"
        )
    return notes
