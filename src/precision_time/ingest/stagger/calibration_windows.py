"""Short windows in which co-located jobs are measured, alone and in pairs, cold and hot; each is measured once.

Jobs that can read a subset run a first (cold) and further (hot) epochs of a small subset. Other jobs are started on all
their data with an empty cache, and stopped when their progress suffices for a rate.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from precision_time.errors import IngestError
from precision_time.ingest.stagger import cache_state
from precision_time.ingest.stagger.jobs_file import JobsFile
from precision_time.ingest.stagger.processes import Host, Running, Trace, watch
from precision_time.ingest.stagger.trace_rates import FEWEST_LINES, reached_s
from precision_time.ingest.stagger.windows_journal import key_of
from precision_time.journal import Journal
from precision_time.report.write import make_folder

Report = Callable[[str, int, int], None]
_FEWEST_BATCHES = 6
_MOST_HOT_EPOCHS = 30
_HOT_SHARE = 0.25
_MOST_PAIR_EPOCHS = 10_000


@dataclass
class Launch:
    """The launch of one job in a window: `epochs` passes over `samples` samples from number `first` on."""

    job: int
    samples: int
    first: int
    epochs: int


@dataclass
class Launcher:
    """Starts jobs for windows. Its hosts start on first use and end with `close`."""

    file: JobsFile
    folder: Path
    tick: Callable[[], None] = lambda: None
    _hosts: dict[int, Host] = field(default_factory=dict)

    def host(self, job: int) -> Host:
        """The host of a job. The first call starts all hosts, so that imports run concurrently and outside a window."""
        if not self._hosts:
            self._hosts = {number: Host(self.file, spec) for number, spec in enumerate(self.file.jobs)}
            for host in self._hosts.values():
                host.ready()
        return self._hosts[job]

    def run(
        self, name: str, launches: Sequence[Launch], until: Callable[[Sequence[Running]], bool] = lambda _: False
    ) -> list[Trace]:
        """Launch jobs at the same time; return their traces when all have ended or `until` holds."""
        folder = make_folder(self.folder / "windows", "folder", parents=True)
        places = [folder / f"{self.file.jobs[launch.job].name}-{name}" for launch in launches]
        running: list[Running] = []
        try:
            for launch, place in zip(launches, places, strict=True):
                running.append(self.host(launch.job).launch(launch.samples, launch.first, launch.epochs, place))
            watch(running, lambda: until(running), self.file.calibration.patience_s, tick=self.tick)
        finally:
            for one in running:
                one.stop()
        return [one.trace() for one in running]

    def close(self) -> None:
        for host in self._hosts.values():
            host.close()
        self._hosts = {}


@dataclass
class Windows:
    """Measures windows, or reads them from the journal. `cost_s`: seconds of all windows; `reused_s`: of those
    reused."""

    file: JobsFile
    journal: Journal
    launcher: Launcher
    report: Report = lambda what, done, total: None
    cost_s: float = 0.0
    reused_s: float = 0.0
    _counted: set[str] = field(default_factory=set)

    def _once(
        self, jobs: Sequence[int], window: dict[str, Any], measure: Callable[[], dict[str, list[Trace]]]
    ) -> tuple[dict[str, list[Trace]], float | None]:
        key = key_of(self.file, [self.file.jobs[job] for job in jobs], window)
        entry = self.journal.get(key)
        if entry is None:
            begin = time.monotonic()
            self.launcher.host(jobs[0])
            cache_state.empty(self.file)
            traces = measure()
            entry = self.journal.add(
                key,
                {
                    "window": window,
                    "jobs": [self.file.jobs[job].name for job in jobs],
                    "cost_s": round(time.monotonic() - begin, 3),
                    "cache_bytes": cache_state.weight(self.file),
                    "traces": {name: [trace.to_dict() for trace in traces] for name, traces in traces.items()},
                },
            )
        elif key not in self._counted:
            self.reused_s += float(entry["cost_s"])
        if key not in self._counted:  # equal jobs are measured once
            self._counted.add(key)
            self.cost_s += float(entry["cost_s"])
        names = [self.file.jobs[job].name for job in jobs]
        traces = {name: [Trace.from_dict(trace) for trace in kept] for name, kept in entry["traces"].items()}
        if entry["jobs"] != names:  # the same jobs under other names
            new = dict(zip(entry["jobs"], names, strict=True))
            traces = {
                k: [Trace(new[t.job], t.seconds, t.samples, t.ended_s, t.launched_s) for t in v]
                for k, v in traces.items()
            }
        return traces, entry["cache_bytes"]

    def subset_alone(self, job: int, samples: int, repeat: int) -> tuple[dict[str, list[Trace]], float | None]:
        """Traces "cold" (a cold and a hot epoch) and "half" (the same for a subset of which half is cached), and the
        bytes in the cache afterwards."""

        def measure() -> dict[str, list[Trace]]:
            cold = self.launcher.run("cold", [Launch(job, samples, 0, 2)])
            spec = self.file.jobs[job]
            hot_samples = (spec.epochs - 1) * self.file.samples_of(spec)
            epochs = 1 + hot_epochs(cold[0], samples, hot_samples, self.file.calibration.window_s)
            return {"cold": cold, "half": self.launcher.run("half", [Launch(job, samples, samples // 2, epochs)])}

        return self._once([job], {"kind": "alone", "samples": samples, "repeat": repeat}, measure)

    def subset_pair(
        self, jobs: tuple[int, int], samples: tuple[int, int], epochs: tuple[int, int], hot_s: float, repeat: int
    ) -> dict[str, list[Trace]]:
        """Traces "cold" (one epoch of disjoint subsets) and "hot" (the same subsets, until both jobs ran for
        `hot_s`)."""
        firsts = (0, samples[0])

        def measure() -> dict[str, list[Trace]]:
            cold = [Launch(job, n, first, 1) for job, n, first in zip(jobs, samples, firsts, strict=True)]
            hot = [Launch(job, n, first, e) for job, n, first, e in zip(jobs, samples, firsts, epochs, strict=True)]
            return {
                "cold": self.launcher.run("cold-pair", cold),
                "hot": self.launcher.run("hot-pair", hot, lambda running: _enough_progress(running, hot_s)),
            }

        window = {"kind": "pair", "samples": samples, "epochs": epochs, "repeat": repeat}
        return self._once(jobs, window, measure)[0]

    def whole_cold(self, jobs: tuple[int, ...], repeat: int, shorter: float = 1.0) -> list[Trace]:
        """Traces of jobs started on all their data with an empty cache, stopped after window_s of common progress."""
        seconds = self.file.calibration.window_s / shorter

        def measure() -> dict[str, list[Trace]]:
            return {
                "cold": self.launcher.run(
                    f"cold-{len(jobs)}", self._whole_launches(jobs), lambda r: _enough_progress(r, seconds)
                )
            }

        return self._once(jobs, {"kind": "cold", "window_s": seconds, "repeat": repeat}, measure)[0]["cold"]

    def whole_hot(self, jobs: tuple[int, ...], repeat: int) -> dict[str, list[Trace]]:
        """Traces with all data cached: "0", "1" ... of single jobs, "0-1" ... of pairs. The cache is filled by
        `cache.warm`, or by a first epoch of each part of the data, whose trace is "first-0" ..."""
        seconds = self.file.calibration.window_s

        def measure() -> dict[str, list[Trace]]:
            traces: dict[str, list[Trace]] = {}
            filled: set[str] = set()
            if self.file.cache.warm is not None:
                cache_state.fill(self.file)
                filled |= {part for job in jobs for part in self.file.parts_of(self.file.jobs[job])}
            for job in jobs:
                parts = set(self.file.parts_of(self.file.jobs[job]))
                if not parts <= filled:
                    epoch = self.file.samples_of(self.file.jobs[job])
                    traces[f"first-{job}"] = self.launcher.run(
                        "first",
                        self._whole_launches((job,)),
                        lambda r, n=epoch: _epoch_over_for(r[0], n, seconds),  # type: ignore[misc]
                    )
                    filled |= parts
            for job in jobs:
                traces[str(job)] = self.launcher.run(
                    "hot", self._whole_launches((job,)), lambda r: _enough_progress(r, seconds)
                )
            for a, i in enumerate(jobs):
                for j in jobs[a + 1 :]:
                    pair = self._whole_launches((i, j))
                    traces[f"{i}-{j}"] = self.launcher.run("hot-pair", pair, lambda r: _enough_progress(r, seconds))
            return traces

        return self._once(jobs, {"kind": "hot", "window_s": seconds, "repeat": repeat}, measure)[0]

    def _whole_launches(self, jobs: Sequence[int]) -> list[Launch]:
        return [Launch(j, self.file.samples_of(self.file.jobs[j]), 0, self.file.jobs[j].epochs) for j in jobs]


def _enough_progress(running: Sequence[Running], seconds: float) -> bool:
    """Whether all jobs have run concurrently for `seconds`, or one has ended."""
    if any(one.over for one in running):
        return True
    firsts = [one.first_s for one in running]
    if any(first is None for first in firsts) or any(one.lines < 2 * FEWEST_LINES for one in running):
        return False
    return time.monotonic() - max(first for first in firsts if first is not None) >= seconds


def _epoch_over_for(running: Running, samples: int, seconds: float) -> bool:
    """Whether `seconds` have passed since an epoch of `samples` samples ended."""
    return running.over or (running.samples > samples and _since(running, samples) >= seconds)


def _since(running: Running, samples: int) -> float:
    trace = running.trace()
    return float(trace.seconds[-1]) - reached_s(trace, samples)


def batch_of(trace: Trace) -> float:
    """Samples of a batch: the largest increment of a progress line."""
    return float(np.max(np.diff(trace.samples, prepend=0.0)))


def hot_epochs(cold: Trace, samples: int, hot_samples: int, window_s: float) -> int:
    """Number of hot epochs after the first epoch of a window.

    They last half as long as the cold epoch or, for a job with many hot epochs, a quarter of the `hot_samples` of its
    run; at most `window_s`. `cold` is the trace of a cold and a hot epoch. The speed of a processor varies from second
    to second, so a longer window is nearer to a long run.
    """
    each = cold.samples[-1] / 2
    first = reached_s(cold, each) - float(cold.seconds[0])
    hot = max(1e-6, reached_s(cold, 2 * each) - reached_s(cold, each))
    lasts = min(max(first / 2, _HOT_SHARE * hot_samples / samples * hot), window_s)
    return max(1, min(_MOST_HOT_EPOCHS, math.ceil(lasts / hot)))


def pair_sizes(
    names: tuple[str, str],
    samples: Sequence[int],
    cold_s: Sequence[float],
    hot_s: Sequence[float],
    batches: Sequence[float],
    most: float,
    window_s: float,
    start_s: float,
) -> tuple[tuple[int, int], tuple[int, int], float]:
    """Samples and hot epochs for a window of two jobs, so that both run for about the same time; seconds if hot.

    samples   of the windows of each job alone
    most      samples of both windows in total, limited by data and cache
    start_s   seconds by which one job may start later than the other
    """
    lasts = max(
        min(n * c for n, c in zip(samples, cold_s, strict=True)),
        *(_FEWEST_BATCHES * b * c for b, c in zip(batches, cold_s, strict=True)),
    )
    sizes = [lasts / c for c in cold_s]
    scale = min(1.0, most / math.fsum(sizes))
    whole = [max(1, round(scale * n / b)) * b for n, b in zip(sizes, batches, strict=True)]
    if any(n < FEWEST_LINES * b for n, b in zip(whole, batches, strict=True)) or sum(whole) > most + max(batches):
        raise IngestError(
            f"jobs {names[0]!r} and {names[1]!r} cannot be measured together: disjoint "
            f"windows of {_FEWEST_BATCHES} batches do not fit {most:.0f} samples; use smaller batches or more data"
        )
    longest = min(window_s, max(n * c / 2 for n, c in zip(whole, cold_s, strict=True)))
    lasts_hot = max(longest, *(n * h for n, h in zip(whole, hot_s, strict=True)))
    epochs = [
        min(_MOST_PAIR_EPOCHS, max(1, math.ceil((lasts_hot + start_s) / (n * h) - 0.05)))
        for n, h in zip(whole, hot_s, strict=True)
    ]
    return (int(whole[0]), int(whole[1])), (epochs[0], epochs[1]), lasts_hot
