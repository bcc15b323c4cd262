"""Calibrates co-located jobs: short windows, then the parameters of the fluid model with their uncertainty."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np

from precision_time.errors import IngestError
from precision_time.ingest.model.rates import JobRates, SharedCache, Together
from precision_time.ingest.stagger.inversion import Found, Seen, SeenPair, bound, invert
from precision_time.ingest.stagger.jobs_file import JobsFile, JobWords
from precision_time.ingest.stagger.journal import Journal
from precision_time.ingest.stagger.processes import Trace
from precision_time.ingest.stagger.windows import (
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
from precision_time.ingest.stagger.windows_plan import Launcher, Report, Windows, batch_of, pair_sizes

STEADY = 0.04
"""Windows are repeated until no rate has a larger standard error, as a share of it ..."""
UNQUIET = 0.08
"""An error that is still larger after all repeats is told."""
MOST_REPEATS = 3
"""... but not more often than this."""
_FEWEST_BATCHES = 8
DRAWS = 32
"""Sets of parameters drawn within the errors, for the band around a curve."""

Model = tuple[tuple[JobRates, ...], Together]


@dataclass(frozen=True)
class Calibration:
    """Everything the fluid model needs to know of the jobs of a file, with what it rests on.

    jobs, together, cache   as in rates.py
    seen, pairs             the measured rates
    draws                   other sets of parameters that the measurements allow
    cost_s, reused_s        seconds of measuring, and how many of these were spent earlier
    notes                   what the windows could not tell, and what was taken instead
    """

    jobs: tuple[JobRates, ...]
    together: Together
    cache: SharedCache
    seen: tuple[Seen, ...]
    pairs: dict[tuple[int, int], SeenPair]
    draws: tuple[Model, ...]
    cost_s: float
    reused_s: float
    notes: tuple[str, ...]

    @property
    def spread(self) -> float:
        """The largest standard error of a measured rate, as a share of it."""
        rates = [rate for seen in self.seen for rate in (seen.cold, seen.hot, seen.half) if rate is not None]
        rates += [rate for pair in self.pairs.values() for rate in (*pair.cold, *pair.hot)]
        return max(rate.spread for rate in rates)

    def to_dict(self) -> dict[str, Any]:
        names = [job.name for job in self.jobs]
        return {
            "jobs": [
                {
                    **{w: getattr(job, w) for w in ("name", "samples", "epochs", "hot_s", "storage_s", "overlap",
                                                    "start_up_s", "end_s", "bytes_per_sample")},
                    "parts": dict(job.parts),
                    "cold": seen.cold.to_dict(), "hot": seen.hot.to_dict(),
                    "half_cached": seen.half.to_dict() if seen.half else None,
                }
                for job, seen in zip(self.jobs, self.seen, strict=True)
            ],
            "together": {
                "hot": [list(row) for row in self.together.hot],
                "storage": [list(row) for row in self.together.storage],
                "same_order": self.together.same_order,
            },
            "pairs": [
                {"jobs": [names[i], names[j]], "cold": [r.to_dict() for r in pair.cold],
                 "hot": [r.to_dict() for r in pair.hot]}
                for (i, j), pair in self.pairs.items()
            ],
            "cache": {"capacity_samples": self.cache.capacity, "policy": self.cache.policy},
            "cost_s": self.cost_s, "of_which_earlier_s": self.reused_s, "notes": list(self.notes),
        }  # fmt: skip


@dataclass
class _Pace:
    """One job as its repeated windows show it."""

    seen: Seen
    fill_s: float = 0.0
    epoch_s: float = 0.0
    end_s: float = 0.0
    batch: float = 1.0
    samples: int = 0


def calibrate(
    file: JobsFile, folder: str | Path, fresh: bool = False, report: Report = lambda what, done, total: None
) -> Calibration:
    """Measure what has not been measured before. `folder` keeps the measurements; `fresh` measures all again."""
    journal = Journal(Path(folder), fresh)
    launcher = Launcher(file, Path(folder))
    windows = Windows(file, journal, launcher, report)
    jobs = len(file.jobs)
    steps = jobs + math.comb(jobs, 2)
    done = 0

    def said(what: str) -> None:
        nonlocal done
        report(what, done, steps)
        done += 1

    began = time.monotonic()
    launcher.tick = lambda: report(f"{time.monotonic() - began:.0f} s", max(0, done - 1), steps)
    try:
        measure = _by_subsets if file.takes_subsets else _by_pace
        paces, pairs, notes = measure(file, windows, said)
    finally:
        launcher.close()
    report("done", steps, steps)
    return _assembled(file, paces, pairs, windows, notes)


def _by_subsets(
    file: JobsFile, windows: Windows, said: Callable[[str], None]
) -> tuple[list[_Pace], dict[tuple[int, int], SeenPair], list[str]]:
    notes: list[str] = []
    paces: list[_Pace] = []
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
    notes.append(f"windows have {most} samples instead of {n}, because the cache must hold two of them")
    return most


def _subset_alone(file: JobsFile, windows: Windows, job: int, n: int) -> tuple[_Pace, float | None]:
    colds: list[Alone] = []
    halves: list[Alone] = []
    rates: list[Rate] = []
    while True:
        traces, weighed = windows.subset_alone(job, n, len(colds))
        cold, half = traces["cold"][0], traces["half"][0]
        batch = batch_of(cold)
        colds.append(alone(cold, n))
        halves.append(alone(half, n))
        rates.append(whole_epoch(half, n - n % batch if cold.samples[-1] < 2 * n else n, colds[-1].fill_s,
                                 batch * colds[-1].first.seconds))  # fmt: skip
        seen = Seen(
            file.jobs[job].name,
            typical([one.first for one in colds]),
            typical([combined([*one.hots, *other.hots]) for one, other in zip(colds, halves, strict=True)]),
            typical(rates),
        )
        if _enough(file, len(colds), [_weighed(file.jobs[job], seen)]):
            break
    if not bound(seen):  # it waits for nothing, so all its windows have measured one and the same pace
        paces = [*(one.first for one in colds), *(hot for one in (*colds, *halves) for hot in one.hots), *rates]
        seen = replace(seen, hot=typical(paces))
    both = [*colds, *halves]
    fill, epoch, end = (float(np.mean([getattr(o, w) for o in both])) for w in ("fill_s", "epoch_s", "end_s"))
    return _Pace(seen, fill, epoch, end, batch, n), weighed


def _weighed(job: JobWords, seen: Seen) -> Rate:
    """The mean time of a sample over all epochs: the error of a hot pace matters little where hot epochs are short."""
    hot = job.epochs - 1
    return Rate(seen.cold.seconds + hot * seen.hot.seconds, math.hypot(seen.cold.error, hot * seen.hot.error))


def _enough(file: JobsFile, count: int, rates: list[Rate]) -> bool:
    if count < file.calibration.repeats:
        return False
    return count >= MOST_REPEATS or all(rate.spread <= STEADY for rate in rates)


def _subset_pair(
    file: JobsFile, windows: Windows, pair: tuple[int, int], paces: list[_Pace], notes: list[str]
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
            _weighed(file.jobs[job], replace(one.seen, cold=cold[a], hot=hot[a]))
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
        notes.append(f"{names} were not at work together for long enough when all was cached; as if they did not slow "
                     "each other then: raise epochs or calibration.samples")  # fmt: skip
        return [one.hot for one in alone_seen]


def _by_pace(
    file: JobsFile, windows: Windows, said: Callable[[str], None]
) -> tuple[list[_Pace], dict[tuple[int, int], SeenPair], list[str]]:
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
            file.jobs[job].name, typical([rate for rate, _ in first]), slope(hot[str(job)][0]),
            bytes_per_sample=file.jobs[job].bytes_per_sample,
        )  # fmt: skip
        paces.append(_Pace(seen, max(0.0, float(np.mean(fill))), 0.0, 0.0, batch_of(colds[0])))
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


def _assembled(
    file: JobsFile, paces: list[_Pace], pairs: dict[tuple[int, int], SeenPair], windows: Windows, notes: list[str]
) -> Calibration:
    seen = tuple(pace.seen for pace in paces)
    found = invert(seen, pairs)
    jobs, effects = _model(file, paces, seen, found)
    sizes = [one.bytes_per_sample for one in seen if one.bytes_per_sample]
    held = None
    if file.cache.capacity is not None and sizes:
        held = file.cache.capacity / (sum(sizes) / len(sizes))
    draws = _draws(file, paces, seen, pairs)
    weighed = [_weighed(words, one) for words, one in zip(file.jobs, seen, strict=True)]
    if (worst := max(rate.spread for rate in weighed)) > UNQUIET:
        notes = [*notes, f"the windows of one job differ by {worst:.0%} (standard error): something else was at work "
                 "on this machine; call again with --fresh when it is quiet"]  # fmt: skip
    cache = SharedCache(held, file.cache.policy, file.coalesces)
    return Calibration(
        jobs, effects, cache, seen, pairs, draws, windows.cost_s, windows.reused_s,
        tuple(dict.fromkeys([*notes, *found.notes])),
    )  # fmt: skip


def _model(file: JobsFile, paces: list[_Pace], seen: tuple[Seen, ...], found: Found) -> Model:
    jobs = tuple(
        JobRates(
            name=words.name,
            samples=file.samples_of(words),
            epochs=words.epochs,
            hot_s=one.hot.seconds + pace.epoch_s / file.samples_of(words),
            storage_s=found.storage_s[i],
            overlap=found.overlap[i],
            start_up_s=pace.fill_s,
            end_s=pace.end_s,
            parts=file.parts_of(words),
            bytes_per_sample=one.bytes_per_sample,
        )
        for i, (words, pace, one) in enumerate(zip(file.jobs, paces, seen, strict=True))
    )
    return jobs, Together(found.hot, found.storage, file.same_order)


def _draws(
    file: JobsFile, paces: list[_Pace], seen: tuple[Seen, ...], pairs: dict[tuple[int, int], SeenPair]
) -> tuple[Model, ...]:
    """The same inversion of rates drawn within their errors. Who waits for the storage stays as it was judged."""
    chance = np.random.default_rng(0)
    which = [bound(one) for one in seen]

    def drawn(rate: Rate) -> Rate:
        return replace(rate, seconds=max(0.2 * rate.seconds, chance.normal(rate.seconds, rate.error)))

    made = []
    for _ in range(DRAWS):
        some = tuple(
            replace(one, cold=drawn(one.cold), hot=drawn(one.hot), half=drawn(one.half) if one.half else None)
            for one in seen
        )
        two = {
            key: SeenPair((drawn(pair.cold[0]), drawn(pair.cold[1])), (drawn(pair.hot[0]), drawn(pair.hot[1])))
            for key, pair in pairs.items()
        }
        made.append(_model(file, paces, some, invert(some, two, which)))
    return tuple(made)
