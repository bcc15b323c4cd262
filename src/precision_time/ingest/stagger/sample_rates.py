"""Sample rates of co-located jobs, alone and in pairs, cold and hot, from windows repeated until they agree."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import combinations

import numpy as np

from precision_time.errors import IngestError
from precision_time.ingest.stagger.calibration_windows import Windows, batch_of, pair_sizes
from precision_time.ingest.stagger.inversion import PairRates, SoloRates, is_storage_bound
from precision_time.ingest.stagger.jobs_file import JobsFile, JobSpec
from precision_time.ingest.stagger.processes import Trace
from precision_time.ingest.stagger.trace_rates import (
    FEWEST_LINES,
    Rate,
    SoloTrace,
    combined,
    concurrent_rates,
    reached_s,
    read_solo,
    slope,
    typical,
    whole_epoch,
)

STEADY = 0.04
"""Windows are repeated until no rate has a larger relative standard error, up to MOST_REPEATS times."""
MOST_REPEATS = 3
_FEWEST_BATCHES = 8

MeasuredRates = tuple[list["MeasuredJob"], dict[tuple[int, int], PairRates], list[str]]
"""Rates of every job and of every pair, and notes."""


@dataclass
class MeasuredJob:
    """Rates and fixed times of one job, from repeated windows; `batch` and `samples` of its windows."""

    rates: SoloRates
    fill_s: float = 0.0
    epoch_s: float = 0.0
    end_s: float = 0.0
    batch: float = 1.0
    samples: int = 0


def rates_by_subsets(file: JobsFile, windows: Windows, announce: Callable[[str], None]) -> MeasuredRates:
    """Rates of jobs that can read a subset. `announce` is called with what is measured next."""
    notes: list[str] = []
    measured_jobs: list[MeasuredJob] = []
    for job, spec in enumerate(file.jobs):
        announce(f"{spec.name} alone")
        n = _fitting(file, _size(file, windows, job, notes), spec.bytes_per_sample, notes)
        while True:
            measured_job, weighed = _subset_alone(file, windows, job, n)
            size = spec.bytes_per_sample
            if size is None and weighed:
                size = weighed / (3 * (n // 2))  # all that the two launches have read
            fits = _fitting(file, n, size, notes)
            if fits == n:
                break
            n = fits
        measured_jobs.append(replace(measured_job, rates=replace(measured_job.rates, bytes_per_sample=size), samples=n))
    pairs: dict[tuple[int, int], PairRates] = {}
    for pair in combinations(range(len(file.jobs)), 2):
        announce(f"{file.jobs[pair[0]].name} beside {file.jobs[pair[1]].name}")
        pairs[pair] = _subset_pair(file, windows, pair, measured_jobs, notes)
    return measured_jobs, pairs, notes


def _size(file: JobsFile, windows: Windows, job: int, notes: list[str]) -> int:
    """Samples of a job's windows: from the file, else a tenth of an epoch, at most half of window_s."""
    # The half-cached window reads [n/2, 3n/2), so n is at most two thirds of the data.
    most = file.samples_of(file.jobs[job]) * 2 // 3
    if most < FEWEST_LINES:
        raise IngestError(
            f"job {file.jobs[job].name!r} has {file.samples_of(file.jobs[job])} samples, too few for a window; "
            f"samples must be at least {math.ceil(1.5 * FEWEST_LINES)}, and some batches more is better"
        )
    asked = file.calibration.samples
    if asked is not None:
        if asked > most:
            notes.append(f"calibration.samples {asked} is more than two thirds of the data; {most} were used")
        return min(asked, most)
    trace = windows.whole_cold((job,), 0, shorter=4.0)[0]
    batch, measured = batch_of(trace), slope(trace).seconds
    tenth = min(file.samples_of(file.jobs[job]) // 10, file.calibration.window_s / 2 / measured)
    return min(most, math.ceil(max(_FEWEST_BATCHES, tenth / batch)) * int(batch))


def _fitting(file: JobsFile, n: int, size: float | None, notes: list[str]) -> int:
    """The window's samples, reduced where the cache would not hold the windows of a job."""
    if file.cache.capacity is None or size is None:
        return n
    most = int(file.cache.capacity / size / 2)
    if most >= n:
        return n
    if most < FEWEST_LINES:
        raise IngestError(
            f"cache.capacity {file.cache.capacity:g} holds {file.cache.capacity / size:.3g} samples of {size:g} bytes, "
            f"and a window needs {2 * FEWEST_LINES}; check cache.capacity"
        )
    notes.append(f"windows have {most} samples instead of {n}, because the cache must hold two of them")
    return most


def _subset_alone(file: JobsFile, windows: Windows, job: int, n: int) -> tuple[MeasuredJob, float | None]:
    colds: list[SoloTrace] = []
    halves: list[SoloTrace] = []
    half_rates: list[Rate] = []
    while True:
        traces, weighed = windows.subset_alone(job, n, len(colds))
        cold, half = traces["cold"][0], traces["half"][0]
        batch = batch_of(cold)
        colds.append(read_solo(cold, n, 2))
        halves.append(read_solo(half, n))
        last = colds[-1]
        read = n - n % batch if cold.samples[-1] < 2 * n else n
        half_rates.append(whole_epoch(half, read, last.fill_s, batch * last.first.seconds))
        rates = SoloRates(
            file.jobs[job].name,
            typical([each.first for each in colds]),
            typical([combined([*each.hots, *other.hots]) for each, other in zip(colds, halves, strict=True)]),
            typical(half_rates),
        )
        if _enough(file, len(colds), [mean_over_epochs(file.jobs[job], rates)]):
            break
    both = [*colds, *halves]
    if not is_storage_bound(rates):  # every window measures the same rate, cold or hot
        every = [*(each.first for each in colds), *(hot for each in both for hot in each.hots), *half_rates]
        rates = replace(rates, hot=typical(every))
    fill, epoch, end = (float(np.mean([getattr(o, w) for o in both])) for w in ("fill_s", "epoch_s", "end_s"))
    return MeasuredJob(rates, fill, epoch, end, batch, n), weighed


def mean_over_epochs(job: JobSpec, rates: SoloRates) -> Rate:
    """Sum over all epochs of the time per sample, which weighs the errors of cold and hot rates."""
    hot = job.epochs - 1
    return Rate(rates.cold.seconds + hot * rates.hot.seconds, math.hypot(rates.cold.error, hot * rates.hot.error))


def _enough(file: JobsFile, count: int, rates: list[Rate]) -> bool:
    if count < file.calibration.repeats:
        return False
    return count >= MOST_REPEATS or all(rate.spread <= STEADY for rate in rates)


def _subset_pair(
    file: JobsFile, windows: Windows, pair: tuple[int, int], measured_jobs: list[MeasuredJob], notes: list[str]
) -> PairRates:
    both = [measured_jobs[job] for job in pair]
    most = min(file.samples_of(file.jobs[job]) for job in pair)
    if file.cache.capacity is not None:
        most = min(most, *(int(file.cache.capacity / (each.rates.bytes_per_sample or 1.0)) for each in both))
    sizes, epochs, hot_s = pair_sizes(
        (both[0].rates.name, both[1].rates.name),
        [each.samples for each in both],
        [each.rates.cold.seconds for each in both],
        [each.rates.hot.seconds for each in both],
        [each.batch for each in both],
        most,
        file.calibration.window_s,
        max(1.0, 2 * max(each.fill_s for each in both)),
    )
    repeat = 0
    colds: list[list[Rate]] = []
    hots: list[list[Rate]] = []
    while True:
        traces = windows.subset_pair(pair, sizes, epochs, hot_s, repeat)
        repeat += 1
        try:
            colds.append(concurrent_rates(traces["cold"], "the cold window of two"))
        except IngestError:
            # One began when the other was through: the machine was busy elsewhere.
            if repeat >= MOST_REPEATS:
                raise
            continue
        hot_rates = _hot_concurrent(traces["hot"], [each.rates for each in both], notes)
        # A window over several short epochs has the pause between epochs in it; it is no doing of the other job.
        pauses = [each.epoch_s / size if e > 1 else 0.0 for each, size, e in zip(both, sizes, epochs, strict=True)]
        hots.append(
            [replace(r, seconds=max(r.seconds - p, r.seconds / 2)) for r, p in zip(hot_rates, pauses, strict=True)]
        )
        cold = [typical([each[a] for each in colds]) for a in (0, 1)]
        hot = [typical([each[a] for each in hots]) for a in (0, 1)]
        whole = [
            mean_over_epochs(file.jobs[job], replace(each.rates, cold=cold[a], hot=hot[a]))
            for a, (job, each) in enumerate(zip(pair, both, strict=True))
        ]
        if _enough(file, len(colds), whole):
            return PairRates((cold[0], cold[1]), (hot[0], hot[1]))


def _hot_concurrent(traces: list[Trace], alone_rates: list[SoloRates], notes: list[str]) -> list[Rate]:
    """Rates of two hot jobs; those alone, with a note, if they did not run concurrently for long enough."""
    try:
        return concurrent_rates(traces, "the hot window of two")
    except IngestError:
        names = " and ".join(each.name for each in alone_rates)
        notes.append(
            f"{names} were not at work together for long enough when all was cached; as if they did not slow "
            "each other then: raise epochs or calibration.samples"
        )
        return [each.hot for each in alone_rates]


def rates_without_subsets(file: JobsFile, windows: Windows, announce: Callable[[str], None]) -> MeasuredRates:
    """Rates of jobs that cannot read a subset: each window is stopped when it suffices for a rate."""
    if file.cache.capacity is not None and any(
        file.cache.capacity < (job.bytes_per_sample or math.inf) * file.samples_of(job) for job in file.jobs
    ):
        raise IngestError(
            "a hot window needs all data in the cache, or jobs that can read a subset, and cache.capacity is smaller "
            "than the data; write {samples}, {first} and {epochs} into the commands"
        )
    everyone = tuple(range(len(file.jobs)))
    notes = []
    announce("all data cached")
    hot = windows.whole_hot(everyone, 0)
    if file.cache.warm is None:
        spent = sum(float(t[0].seconds[-1]) for name, t in hot.items() if name.startswith("first-"))
        notes.append(
            f"hot windows took a full first epoch, {spent:.0f} s, because the jobs cannot read a subset and "
            "there is no cache.warm command"
        )
    measured_jobs = []
    for job in everyone:
        announce(f"{file.jobs[job].name} alone")
        colds: list[Trace] = []
        while not colds or not _enough(file, len(colds), [typical([slope(t) for t in colds])]):
            colds.append(windows.whole_cold((job,), len(colds))[0])
        first = [(slope(t), t) for t in colds]
        fill = [reached_s(t, t.samples[-1]) - float(t.samples[-1]) * rate.seconds for rate, t in first]
        rates = SoloRates(
            file.jobs[job].name,
            typical([rate for rate, _ in first]),
            slope(hot[str(job)][0]),
            bytes_per_sample=file.jobs[job].bytes_per_sample,
        )
        measured_jobs.append(MeasuredJob(rates, max(0.0, float(np.mean(fill))), 0.0, 0.0, batch_of(colds[0])))
    pairs = {}
    for pair in combinations(everyone, 2):
        announce(f"{file.jobs[pair[0]].name} beside {file.jobs[pair[1]].name}")
        cold = concurrent_rates(windows.whole_cold(pair, 0), "the cold window of two")
        hot_rates = _hot_concurrent(hot[f"{pair[0]}-{pair[1]}"], [measured_jobs[job].rates for job in pair], notes)
        pairs[pair] = PairRates((cold[0], cold[1]), (hot_rates[0], hot_rates[1]))
    if file.same_order and len(everyone) > 1:
        notes.append(
            "jobs of one order that cannot read disjoint subsets find each other's samples in the cold window of two, "
            "so what they do to each other's reads is underestimated"
        )
    return measured_jobs, pairs, notes
