"""How fast co-located jobs go, alone and in pairs, cold and hot: windows, repeated until they agree."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import combinations

import numpy as np

from precision_time.errors import IngestError
from precision_time.ingest.stagger.inversion import Seen, SeenPair, bound
from precision_time.ingest.stagger.jobs_file import JobsFile, JobWords
from precision_time.ingest.stagger.processes import Trace
from precision_time.ingest.stagger.windows import (
    FEWEST_LINES,
    Alone,
    Rate,
    alone,
    combined,
    reached_s,
    slope,
    together,
    typical,
    whole_epoch,
)
from precision_time.ingest.stagger.windows_plan import Windows, batch_of, pair_sizes

STEADY = 0.04
"""Windows are repeated until no rate has a larger standard error, as a share of it ..."""
MOST_REPEATS = 3
"""... but not more often than this."""
_FEWEST_BATCHES = 8

Paces = tuple[list["Pace"], dict[tuple[int, int], SeenPair], list[str]]
"""Of every job, of every pair, and notes."""


@dataclass
class Pace:
    """One job as its repeated windows show it."""

    seen: Seen
    fill_s: float = 0.0
    epoch_s: float = 0.0
    end_s: float = 0.0
    batch: float = 1.0
    samples: int = 0


def by_subsets(file: JobsFile, windows: Windows, said: Callable[[str], None]) -> Paces:
    """Jobs that can be told what to read: each a subset of its own. `said` is told what comes next."""
    notes: list[str] = []
    paces: list[Pace] = []
    for job, words in enumerate(file.jobs):
        said(f"{words.name} alone")
        n = _fitting(file, _size(file, windows, job, notes), words.bytes_per_sample, notes)
        while True:
            made, weighed = _subset_alone(file, windows, job, n)
            size = words.bytes_per_sample
            if size is None and weighed:
                size = weighed / (3 * (n // 2))  # all that the two launches have read
            fits = _fitting(file, n, size, notes)
            if fits == n:
                break
            n = fits
        paces.append(replace(made, seen=replace(made.seen, bytes_per_sample=size), samples=n))
    pairs: dict[tuple[int, int], SeenPair] = {}
    for pair in combinations(range(len(file.jobs)), 2):
        said(f"{file.jobs[pair[0]].name} beside {file.jobs[pair[1]].name}")
        pairs[pair] = _subset_pair(file, windows, pair, paces, notes)
    return paces, pairs, notes


def _size(file: JobsFile, windows: Windows, job: int, notes: list[str]) -> int:
    """Samples of a job's windows, from the file; else a tenth of an epoch, but no longer than a short look allows."""
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
    batch, pace = batch_of(trace), slope(trace).seconds
    tenth = min(file.samples_of(file.jobs[job]) // 10, file.calibration.window_s / 2 / pace)
    return min(most, math.ceil(max(_FEWEST_BATCHES, tenth / batch)) * int(batch))


def _fitting(file: JobsFile, n: int, size: float | None, notes: list[str]) -> int:
    """The window's samples, fewer where the cache would not hold all that the windows of a job read."""
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


def _subset_alone(file: JobsFile, windows: Windows, job: int, n: int) -> tuple[Pace, float | None]:
    colds: list[Alone] = []
    halves: list[Alone] = []
    rates: list[Rate] = []
    while True:
        traces, weighed = windows.subset_alone(job, n, len(colds))
        cold, half = traces["cold"][0], traces["half"][0]
        batch = batch_of(cold)
        colds.append(alone(cold, n, 2))
        halves.append(alone(half, n))
        rates.append(
            whole_epoch(
                half,
                n - n % batch if cold.samples[-1] < 2 * n else n,
                colds[-1].fill_s,
                batch * colds[-1].first.seconds,
            )
        )
        seen = Seen(
            file.jobs[job].name,
            typical([one.first for one in colds]),
            typical([combined([*one.hots, *other.hots]) for one, other in zip(colds, halves, strict=True)]),
            typical(rates),
        )
        if _enough(file, len(colds), [weighed_over_epochs(file.jobs[job], seen)]):
            break
    if not bound(seen):  # it waits for nothing, so all its windows have measured one and the same pace
        paces = [*(one.first for one in colds), *(hot for one in (*colds, *halves) for hot in one.hots), *rates]
        seen = replace(seen, hot=typical(paces))
    both = [*colds, *halves]
    fill, epoch, end = (float(np.mean([getattr(o, w) for o in both])) for w in ("fill_s", "epoch_s", "end_s"))
    return Pace(seen, fill, epoch, end, batch, n), weighed


def weighed_over_epochs(job: JobWords, seen: Seen) -> Rate:
    """The mean time of a sample over all epochs: the error of a hot pace matters little where hot epochs are short."""
    hot = job.epochs - 1
    return Rate(seen.cold.seconds + hot * seen.hot.seconds, math.hypot(seen.cold.error, hot * seen.hot.error))


def _enough(file: JobsFile, count: int, rates: list[Rate]) -> bool:
    if count < file.calibration.repeats:
        return False
    return count >= MOST_REPEATS or all(rate.spread <= STEADY for rate in rates)


def _subset_pair(
    file: JobsFile, windows: Windows, pair: tuple[int, int], paces: list[Pace], notes: list[str]
) -> SeenPair:
    two = [paces[job] for job in pair]
    most = min(file.samples_of(file.jobs[job]) for job in pair)
    if file.cache.capacity is not None:
        most = min(most, *(int(file.cache.capacity / (one.seen.bytes_per_sample or 1.0)) for one in two))
    sizes, epochs, hot_s = pair_sizes(
        (two[0].seen.name, two[1].seen.name),
        [one.samples for one in two],
        [one.seen.cold.seconds for one in two],
        [one.seen.hot.seconds for one in two],
        [one.batch for one in two],
        most,
        file.calibration.window_s,
        max(1.0, 2 * max(one.fill_s for one in two)),
    )
    repeat = 0
    colds: list[list[Rate]] = []
    hots: list[list[Rate]] = []
    while True:
        traces = windows.subset_pair(pair, sizes, epochs, hot_s, repeat)
        repeat += 1
        try:
            colds.append(together(traces["cold"], "the cold window of two"))
        except IngestError:
            # One began when the other was through: the machine was busy elsewhere.
            if repeat >= MOST_REPEATS:
                raise
            continue
        found = _hot_together(traces["hot"], [one.seen for one in two], notes)
        # A window over several short epochs has the pause between epochs in it; it is no doing of the other job.
        pauses = [one.epoch_s / size if e > 1 else 0.0 for one, size, e in zip(two, sizes, epochs, strict=True)]
        hots.append([replace(r, seconds=max(r.seconds - p, r.seconds / 2)) for r, p in zip(found, pauses, strict=True)])
        cold = [typical([one[a] for one in colds]) for a in (0, 1)]
        hot = [typical([one[a] for one in hots]) for a in (0, 1)]
        whole = [
            weighed_over_epochs(file.jobs[job], replace(one.seen, cold=cold[a], hot=hot[a]))
            for a, (job, one) in enumerate(zip(pair, two, strict=True))
        ]
        if _enough(file, len(colds), whole):
            return SeenPair((cold[0], cold[1]), (hot[0], hot[1]))


def _hot_together(traces: list[Trace], alone_seen: list[Seen], notes: list[str]) -> list[Rate]:
    """Paces of two hot jobs; those alone where one was through before the other had told enough."""
    try:
        return together(traces, "the hot window of two")
    except IngestError:
        names = " and ".join(one.name for one in alone_seen)
        notes.append(
            f"{names} were not at work together for long enough when all was cached; as if they did not slow "
            "each other then: raise epochs or calibration.samples"
        )
        return [one.hot for one in alone_seen]


def by_pace(file: JobsFile, windows: Windows, said: Callable[[str], None]) -> Paces:
    """Jobs that cannot be told what to read: stopped when they have shown their pace."""
    if file.cache.capacity is not None and any(
        file.cache.capacity < (job.bytes_per_sample or math.inf) * file.samples_of(job) for job in file.jobs
    ):
        raise IngestError(
            "a hot window needs all data in the cache, or jobs that can read a subset, and cache.capacity is smaller "
            "than the data; write {samples}, {first} and {epochs} into the commands"
        )
    everyone = tuple(range(len(file.jobs)))
    notes = []
    said("all data cached")
    hot = windows.whole_hot(everyone, 0)
    if file.cache.warm is None:
        spent = sum(float(t[0].seconds[-1]) for name, t in hot.items() if name.startswith("first-"))
        notes.append(
            f"hot windows took a full first epoch, {spent:.0f} s, because the jobs cannot read a subset and "
            "there is no cache.warm command"
        )
    paces = []
    for job in everyone:
        said(f"{file.jobs[job].name} alone")
        colds: list[Trace] = []
        while not colds or not _enough(file, len(colds), [typical([slope(t) for t in colds])]):
            colds.append(windows.whole_cold((job,), len(colds))[0])
        first = [(slope(t), t) for t in colds]
        fill = [reached_s(t, t.samples[-1]) - float(t.samples[-1]) * rate.seconds for rate, t in first]
        seen = Seen(
            file.jobs[job].name,
            typical([rate for rate, _ in first]),
            slope(hot[str(job)][0]),
            bytes_per_sample=file.jobs[job].bytes_per_sample,
        )
        paces.append(Pace(seen, max(0.0, float(np.mean(fill))), 0.0, 0.0, batch_of(colds[0])))
    pairs = {}
    for pair in combinations(everyone, 2):
        said(f"{file.jobs[pair[0]].name} beside {file.jobs[pair[1]].name}")
        cold = together(windows.whole_cold(pair, 0), "the cold window of two")
        found = _hot_together(hot[f"{pair[0]}-{pair[1]}"], [paces[job].seen for job in pair], notes)
        pairs[pair] = SeenPair((cold[0], cold[1]), (found[0], found[1]))
    if file.same_order and len(everyone) > 1:
        notes.append(
            "jobs of one order that cannot read disjoint subsets find each other's samples in the cold window of two, "
            "so what they do to each other's reads is underestimated"
        )
    return paces, pairs, notes
