"""Calibrates co-located jobs: short windows, then the parameters of the fluid model with their uncertainty."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from precision_time.ingest.model.rates import JobRates, SharedCache, Slowdowns
from precision_time.ingest.stagger import cache_state
from precision_time.ingest.stagger.calibration_windows import Launcher, Report, Windows
from precision_time.ingest.stagger.inversion import PairRates, Parameters, SoloRates, invert, is_storage_bound
from precision_time.ingest.stagger.jobs_file import JobsFile
from precision_time.ingest.stagger.sample_rates import (
    MeasuredJob,
    mean_over_epochs,
    rates_by_subsets,
    rates_without_subsets,
)
from precision_time.ingest.stagger.trace_rates import Rate
from precision_time.ingest.stagger.windows_journal import NAME, held_folder, open_journal

UNQUIET = 0.08
"""A larger relative standard error of a rate, after all repeats, is reported in a note."""
DRAWS = 32
"""Number of parameter sets drawn from the measurement errors, for the band around a curve."""

Model = tuple[tuple[JobRates, ...], Slowdowns]


@dataclass(frozen=True)
class Calibration:
    """The parameters of the fluid model for the jobs of a file, and the measurements behind them.

    jobs, slowdowns, cache  as in rates.py
    solo, pairs             the measured rates of single jobs and of pairs
    draws                   parameter sets drawn from the measurement errors
    cost_s, reused_s        seconds of measuring, and how many of these were spent earlier
    notes                   parameters that the windows did not determine, and the values assumed
    """

    jobs: tuple[JobRates, ...]
    slowdowns: Slowdowns
    cache: SharedCache
    solo: tuple[SoloRates, ...]
    pairs: dict[tuple[int, int], PairRates]
    draws: tuple[Model, ...]
    cost_s: float
    reused_s: float
    notes: tuple[str, ...]

    @property
    def spread(self) -> float:
        """The largest relative standard error of a measured rate."""
        rates = [rate for solo in self.solo for rate in (solo.cold, solo.hot, solo.half) if rate is not None]
        rates += [rate for pair in self.pairs.values() for rate in (*pair.cold, *pair.hot)]
        return max(rate.spread for rate in rates)

    def to_dict(self) -> dict[str, Any]:
        names = [job.name for job in self.jobs]
        return {
            "jobs": [
                {
                    **{
                        w: getattr(job, w)
                        for w in (
                            "name",
                            "samples",
                            "epochs",
                            "hot_s",
                            "storage_s",
                            "overlap",
                            "start_up_s",
                            "end_s",
                            "bytes_per_sample",
                        )
                    },
                    "parts": dict(job.parts),
                    "cold": solo.cold.to_dict(),
                    "hot": solo.hot.to_dict(),
                    "half_cached": solo.half.to_dict() if solo.half else None,
                }
                for job, solo in zip(self.jobs, self.solo, strict=True)
            ],
            "together": {
                "hot": [list(row) for row in self.slowdowns.hot],
                "storage": [list(row) for row in self.slowdowns.storage],
                "same_order": self.slowdowns.same_order,
            },
            "pairs": [
                {
                    "jobs": [names[i], names[j]],
                    "cold": [r.to_dict() for r in pair.cold],
                    "hot": [r.to_dict() for r in pair.hot],
                }
                for (i, j), pair in self.pairs.items()
            ],
            "cache": {"capacity_samples": self.cache.capacity, "policy": self.cache.policy},
            "cost_s": self.cost_s,
            "of_which_earlier_s": self.reused_s,
            "notes": list(self.notes),
        }


def calibrate(
    file: JobsFile, folder: str | Path, fresh: bool = False, report: Report = lambda what, done, total: None
) -> Calibration:
    """Measure the windows that `folder` does not hold yet, or all of them if `fresh`, and invert them to parameters.

    `report` is called with (what is measured, steps done, steps in all). Raises IngestError if a job fails, and
    DataError while another process uses the folder.
    """
    check_start(file, folder)
    with held_folder(folder):
        return _calibrate(file, folder, fresh, report)


def check_start(file: JobsFile, folder: str | Path) -> None:
    """Before a folder is made: raise IngestError for a cache that cannot be emptied, and where code may not run."""
    cache_state.check_reset(file)
    journal = Path(folder) / NAME
    if not journal.exists() or not journal.stat().st_size:  # there is nothing to read but what is measured
        file.check_code(f"run of job {file.jobs[0].name!r}", file.jobs[0].run)


def _calibrate(file: JobsFile, folder: str | Path, fresh: bool, report: Report) -> Calibration:
    journal = open_journal(folder, fresh)
    launcher = Launcher(file, Path(folder))
    windows = Windows(file, journal, launcher, report)
    jobs = len(file.jobs)
    steps = jobs + math.comb(jobs, 2)
    done = 0

    def announce(what: str) -> None:
        nonlocal done
        report(what, done, steps)
        done += 1

    began = time.monotonic()
    launcher.tick = lambda: report(f"{time.monotonic() - began:.0f} s", max(0, done - 1), steps)
    try:
        measure = rates_by_subsets if file.takes_subsets else rates_without_subsets
        measured, pairs, notes = measure(file, windows, announce)
    finally:
        launcher.close()
    report("done", steps, steps)
    return _assembled(file, measured, pairs, windows, notes)


def _assembled(
    file: JobsFile,
    measured: list[MeasuredJob],
    pairs: dict[tuple[int, int], PairRates],
    windows: Windows,
    notes: list[str],
) -> Calibration:
    solo = tuple(job.rates for job in measured)
    parameters = invert(solo, pairs)
    jobs, effects = _model(file, measured, solo, parameters)
    sizes = [rates.bytes_per_sample for rates in solo if rates.bytes_per_sample]
    held = None
    if file.cache.capacity is not None and sizes:
        held = file.cache.capacity / (sum(sizes) / len(sizes))
    draws = _draws(file, measured, solo, pairs)
    weighed = [mean_over_epochs(spec, rates) for spec, rates in zip(file.jobs, solo, strict=True)]
    if (worst := max(rate.spread for rate in weighed)) > UNQUIET:
        notes = [
            *notes,
            f"the windows of one job differ by {worst:.0%} (standard error): something else was at work "
            "on this machine; call again with --fresh when it is quiet",
        ]
    cache = SharedCache(held, file.cache.policy, file.coalesces)
    return Calibration(
        jobs,
        effects,
        cache,
        solo,
        pairs,
        draws,
        windows.cost_s,
        windows.reused_s,
        tuple(dict.fromkeys([*notes, *parameters.notes])),
    )


def _model(file: JobsFile, measured: list[MeasuredJob], solo: tuple[SoloRates, ...], parameters: Parameters) -> Model:
    jobs = tuple(
        JobRates(
            name=spec.name,
            samples=file.samples_of(spec),
            epochs=spec.epochs,
            hot_s=rates.hot.seconds + job.epoch_s / file.samples_of(spec),
            storage_s=parameters.storage_s[i],
            overlap=parameters.overlap[i],
            start_up_s=job.fill_s,
            end_s=job.end_s,
            parts=file.parts_of(spec),
            bytes_per_sample=rates.bytes_per_sample,
        )
        for i, (spec, job, rates) in enumerate(zip(file.jobs, measured, solo, strict=True))
    )
    return jobs, Slowdowns(parameters.hot, parameters.storage, file.same_order)


def _draws(
    file: JobsFile, measured: list[MeasuredJob], solo: tuple[SoloRates, ...], pairs: dict[tuple[int, int], PairRates]
) -> tuple[Model, ...]:
    """Parameters from rates drawn within their errors. Which jobs wait for the storage is kept fixed."""
    chance = np.random.default_rng(0)
    storage_bound = [is_storage_bound(rates) for rates in solo]

    def drawn(rate: Rate) -> Rate:
        return replace(rate, seconds=max(0.2 * rate.seconds, chance.normal(rate.seconds, rate.error)))

    models = []
    for _ in range(DRAWS):
        drawn_solo = tuple(
            replace(rates, cold=drawn(rates.cold), hot=drawn(rates.hot), half=drawn(rates.half) if rates.half else None)
            for rates in solo
        )
        two = {
            key: PairRates((drawn(pair.cold[0]), drawn(pair.cold[1])), (drawn(pair.hot[0]), drawn(pair.hot[1])))
            for key, pair in pairs.items()
        }
        models.append(_model(file, measured, drawn_solo, invert(drawn_solo, two, storage_bound)))
    return tuple(models)
