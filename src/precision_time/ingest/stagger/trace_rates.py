"""Rates from the progress of jobs in short windows.

Progress lines arrive in bursts of one batch for each loader worker. Seconds per sample are therefore the least-squares
slope of time over samples at the ends of bursts. Over all lines the slope would be too small where bursts are few: by
8 % with two workers and eight lines.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

import numpy as np

from precision_time.errors import IngestError
from precision_time.ingest.model.contention import Flags
from precision_time.ingest.model.rates import Array
from precision_time.ingest.stagger.processes import Trace

FEWEST_LINES = 4
"""Least number of progress lines for a slope."""
_BURST = 0.5
"""Lines within this share of the mean gap belong to one burst."""
_FEWEST_BURSTS = 3


@dataclass(frozen=True, slots=True)
class Rate:
    """Seconds per sample with its standard error, from a number of windows."""

    seconds: float
    error: float
    windows: int = 1

    @property
    def spread(self) -> float:
        """The error as a share of the value."""
        return self.error / self.seconds if self.seconds else 0.0

    def to_dict(self) -> dict[str, float]:
        return {"s_per_sample": self.seconds, "standard_error_s": self.error, "windows": self.windows}


def typical(rates: Sequence[Rate]) -> Rate:
    """The median of three or more rates, else the mean, so that a disturbed window counts little.

    Only for launches at different times; within one launch slow moments belong to the rate, and the mean is right.
    """
    rate = combined(rates)
    return rate if len(rates) < 3 else Rate(median(rate.seconds for rate in rates), rate.error, rate.windows)


def combined(rates: Sequence[Rate]) -> Rate:
    """The mean of repeated windows, with its standard error from their scatter; of one or two, at least their own
    error."""
    count = len(rates)
    mean = math.fsum(rate.seconds for rate in rates) / count
    within = math.sqrt(math.fsum(rate.error**2 for rate in rates)) / count
    between = 0.0
    if count > 1:
        between = math.sqrt(math.fsum((rate.seconds - mean) ** 2 for rate in rates) / (count - 1) / count)
    return Rate(mean, between if count > 2 else max(within, between), count)


def slope(
    trace: Trace,
    begin_s: float = -math.inf,
    end_s: float = math.inf,
    first: float = 0.0,
    last: float = math.inf,
    window: str = "a window",
) -> Rate:
    """Seconds per sample over the lines within these seconds and these cumulative samples (`first` excluded).

    Raises IngestError for fewer than FEWEST_LINES lines; `window` names the window in that message.
    """
    inside = (trace.seconds >= begin_s) & (trace.seconds <= end_s) & (trace.samples > first) & (trace.samples <= last)
    ends = _burst_ends(trace.seconds, inside)
    seconds, samples = trace.seconds[inside], trace.samples[inside]
    lines = len(seconds)
    if lines < FEWEST_LINES or samples[-1] <= samples[0]:
        raise IngestError(
            f"job {trace.job!r} reported progress only {lines} times in {window}, and a rate needs {FEWEST_LINES}; "
            "raise calibration.samples or calibration.window_s, or report progress after every batch"
        )
    if ends.sum() >= _FEWEST_BURSTS:
        seconds, samples = trace.seconds[ends], trace.samples[ends]
    centred = samples - samples.mean()
    spread = float(centred @ centred)
    rate = float(centred @ seconds) / spread
    if rate <= 0:
        raise IngestError(f"job {trace.job!r} reported progress that takes no time in {window}; check what it counts")
    residual = seconds - seconds.mean() - rate * centred
    # Residuals of neighbouring lines are correlated, since times accumulate: four lines count as one.
    freedom = max(1.0, lines / 4 - 1)
    error = math.sqrt(float(residual @ residual) / freedom / spread * 4)
    return Rate(rate, error)


def _burst_ends(seconds: Array, inside: Flags) -> Flags:
    """The lines inside that end a burst: followed by a longer gap, or by no line."""
    at = np.flatnonzero(inside)
    ends = inside.copy()
    if len(at) > 1:
        gaps = np.diff(seconds[at[0] : at[-1] + 2], append=np.inf)[: len(at)]
        ends[at] = gaps > _BURST * (seconds[at[-1]] - seconds[at[0]]) / (len(at) - 1)
    return ends


def reached_s(trace: Trace, samples: float) -> float:
    """Seconds from the launch until `samples` were done."""
    at = int(np.searchsorted(trace.samples, samples - 0.5))
    return float(trace.seconds[min(at, len(trace.seconds) - 1)])


def whole_epoch(trace: Trace, samples: float, fill_s: float, batch_s: float) -> Rate:
    """Seconds per sample of a first epoch from its end, for epochs whose rate is not constant.

    `fill_s` is the time before the first batch, from another launch, with a standard error of a quarter.
    """
    return Rate(
        (reached_s(trace, samples) - fill_s) / samples, math.hypot(batch_s / math.sqrt(12), fill_s / 4) / samples
    )


@dataclass(frozen=True, slots=True)
class SoloTrace:
    """One launch of a job alone on a subset: a first epoch, then hot ones.

    first           seconds per sample of the first epoch
    hots            of each further one
    fill_s          of the first epoch, what lies outside its slope: launch, start-up, the first batch on its way
    epoch_s         the same of a hot epoch: workers started again, the pipeline filled again
    end_s           from the last sample to the end of the process
    """

    first: Rate
    hots: tuple[Rate, ...]
    fill_s: float
    epoch_s: float
    end_s: float


def read_solo(trace: Trace, samples: int, epochs: int | None = None) -> SoloTrace:
    """The rates of a launch of `epochs` epochs (None: as many as reported) of `samples` samples. The job may drop the
    last batch of an epoch. Raises IngestError if the reported samples do not fit."""
    samples_done = trace.samples[-1] if len(trace.samples) else 0.0
    batch = float(np.max(np.diff(trace.samples, prepend=0.0))) if len(trace.samples) else 1.0
    epochs = epochs or max(1, round(samples_done / samples))
    each = samples_done / epochs
    if not samples - batch <= each <= samples + 0.5:
        raise IngestError(
            f"job {trace.job!r} was asked for whole epochs of {samples} samples and reported {samples_done:g}, not "
            f"{epochs * samples}; check samples of the file, batch_size of the job, and that it reads what it is "
            "told to"
        )
    first = slope(trace, last=each + 0.5, window="the first epoch of a window")
    fill = reached_s(trace, each) - each * first.seconds
    hots, gaps = [], []
    for epoch in range(1, epochs):
        rate = slope(trace, first=epoch * each + 0.5, last=(epoch + 1) * each + 0.5, window="a hot epoch of a window")
        hots.append(rate)
        gaps.append(reached_s(trace, (epoch + 1) * each) - reached_s(trace, epoch * each) - each * rate.seconds)
    end = (trace.ended_s if trace.ended_s is not None else float(trace.seconds[-1])) - float(trace.seconds[-1])
    return SoloTrace(first, tuple(hots), max(0.0, fill), max(0.0, float(np.mean(gaps))) if gaps else 0.0, max(0.0, end))


def concurrent_rates(traces: Sequence[Trace], window: str) -> list[Rate]:
    """Rates in the time during which all of several jobs, launched at about the same time, were running."""
    begin = max(t.launched_s + _first_s(t, window) for t in traces)
    end = min(t.launched_s + float(t.seconds[-1]) for t in traces)
    return [slope(t, begin - t.launched_s, end - t.launched_s, window=window) for t in traces]


def _first_s(trace: Trace, window: str) -> float:
    done = np.flatnonzero(trace.samples > 0)
    if not len(done):
        raise IngestError(f"job {trace.job!r} reported no progress in {window}; raise calibration.window_s")
    return float(trace.seconds[done[0]])
