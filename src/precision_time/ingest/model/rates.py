"""The parameters of jobs that share a node: rates of each job alone, and how much the jobs slow each other.

Every field is measured in short windows (calibration.py) or derived from a description of the loader (predicted.py).
Vocabulary: a *hit* is a sample found in the cache; the *storage* is what a missed sample is read from.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import overload

import numpy as np
from numpy.typing import NDArray

from precision_time.errors import IngestError, nearest

Array = NDArray[np.float64]
POLICIES = ("lru", "no-eviction")


def _checked(owner: str, name: str, value: float, least: float, most: float = math.inf, open_: bool = False) -> None:
    """Raise IngestError for a value that is not finite and in [least, most], or in (least, most] when `open_`."""
    if not math.isfinite(value) or value < least or value > most or (open_ and value == least):
        valid = f"above {least:g}" if open_ else f"at least {least:g}"
        valid += f" and at most {most:g}" if math.isfinite(most) else ""
        raise IngestError(f"{name} of {owner} is {value}: give a finite number, {valid}.")


@dataclass(frozen=True, slots=True)
class JobRates:
    """One job running alone. All times are seconds per sample of the whole job (all its ranks and workers).

    samples       samples of one epoch
    epochs        epochs; may be a fraction
    hot_s         time when every sample is a hit: the slower of accelerator and preparation
    storage_s     time that the storage needs for a missed sample (1 / its rate for this job)
    overlap       1: a deep prefetch queue hides reads behind training, time = max(hot, m storage);
                  0: none does, time = m max(hot, storage) + (1 - m) hot; between: linear in it
    start_up_s    from launch to the first read
    end_s         from the last sample to the end of the process
    parts         share of this job's samples that lie in each named part of the data; jobs that name the same part
                  read the same samples there. {"data": 1.0} for all jobs: they read the same data
    cached        share of its samples that are cached before any job starts
    bytes_per_sample  stored bytes of a sample, for cache capacities; None: not known
    """

    name: str
    samples: int
    epochs: float
    hot_s: float
    storage_s: float
    overlap: float = 1.0
    start_up_s: float = 0.0
    end_s: float = 0.0
    parts: Mapping[str, float] = field(default_factory=lambda: {"data": 1.0})
    cached: float = 0.0
    bytes_per_sample: float | None = None

    def __post_init__(self) -> None:
        owner = f"job {self.name!r}"
        for name in ("samples", "epochs", "hot_s"):
            _checked(owner, name, getattr(self, name), 0.0, open_=True)
        for name in ("storage_s", "start_up_s", "end_s"):
            _checked(owner, name, getattr(self, name), 0.0)
        for name in ("overlap", "cached"):
            _checked(owner, name, getattr(self, name), 0.0, 1.0)
        if self.bytes_per_sample is not None:
            _checked(owner, "bytes_per_sample", self.bytes_per_sample, 0.0, open_=True)
        for part, share in self.parts.items():
            _checked(owner, f"the share of part {part!r}", share, 0.0, 1.0, open_=True)
        if abs(sum(self.parts.values()) - 1) > 1e-6:
            total = f"{sum(self.parts.values()):g}"
            raise IngestError(f"The parts of {owner} add up to {total}: give shares of its samples that add up to 1.")

    @overload
    def time_s(self, miss: float, storage_stretch: float = 1.0, hot_stretch: float = 1.0) -> float: ...
    @overload
    def time_s(self, miss: Array, storage_stretch: float | Array = 1.0, hot_stretch: float | Array = 1.0) -> Array: ...
    def time_s(
        self, miss: float | Array, storage_stretch: float | Array = 1.0, hot_stretch: float | Array = 1.0
    ) -> float | Array:
        """Seconds per sample when the share `miss` of samples is read from the storage, `overlap` as above."""
        time = sample_s(self.hot_s * hot_stretch, self.storage_s * storage_stretch, miss, self.overlap)
        return float(time) if np.ndim(time) == 0 else np.asarray(time)

    @property
    def cold_epoch_s(self) -> float:
        """Seconds of a first epoch alone, with nothing but `cached` in the cache."""
        return self.samples * self.time_s(1.0 - self.cached)

    @property
    def hot_epoch_s(self) -> float:
        """Seconds of an epoch alone that finds every sample in the cache."""
        return self.samples * self.hot_s


def sample_s(hot: float | Array, storage: float | Array, miss: float | Array, overlap: float | Array) -> Array:
    """Seconds per sample from those of a hit, those of the storage, the share of misses and the overlap."""
    read = miss * np.asarray(storage)
    deep = np.maximum(hot, read)
    shallow = hot + miss * np.maximum(np.asarray(storage) - hot, 0.0)
    return np.asarray(overlap * deep + (1.0 - np.asarray(overlap)) * shallow)


@dataclass(frozen=True, slots=True)
class Slowdowns:
    """How jobs slow each other, pairwise: entry [i][j] is the factor on i's time while j is busy; 1 is no slowdown.

    While the set B of other jobs is busy, a time of i is multiplied by 1 + sum over j in B of (entry[i][j] - 1). If j
    is busy for a share u_j of the time, the *speed* of i is averaged over it: for two jobs it is
    1 - u_j (1 - 1 / entry[i][j]). contention.py computes the shares.

    hot         factor on `hot_s` while j prepares or trains, from shared cores or a shared accelerator
    storage     factor on `storage_s` while j reads from the same storage: 2 if the storage serves both readers as fast
                together as one alone, 2 / eta if two readers get only a share eta of that, 1 if it has capacity for
                both
    same_order  the jobs read samples in one order (one seed), the same in every epoch, so that a job behind another
                hits what that one has read
    """

    hot: tuple[tuple[float, ...], ...]
    storage: tuple[tuple[float, ...], ...]
    same_order: bool = False

    def __post_init__(self) -> None:
        for name in ("hot", "storage"):
            table = getattr(self, name)
            if any(len(row) != len(table) for row in table) or len(self.hot) != len(self.storage):
                raise IngestError(f"{name} is not a square table: give one row and one column for each job.")
            for i, row in enumerate(table):
                for j, value in enumerate(row):
                    # A factor below 1 would be a speed-up. Only the cache gives one, and it is modelled apart.
                    if i != j:
                        _checked("the jobs' slowdowns", f"{name}[{i}][{j}]", value, 1.0)

    @classmethod
    def uniform(cls, jobs: int, storage: float = 2.0, hot: float = 1.0, same_order: bool = False) -> Slowdowns:
        """The same factors for all pairs."""

        def table(value: float) -> tuple[tuple[float, ...], ...]:
            return tuple(tuple(1.0 if i == j else value for j in range(jobs)) for i in range(jobs))

        return cls(table(hot), table(storage), same_order)


@dataclass(frozen=True, slots=True)
class SharedCache:
    """The cache between storage and jobs.

    capacity   samples it holds (of the mean size); None: all
    policy     "lru": a miss evicts the least recently used sample; "no-eviction": a full cache keeps its content
               (CoorDL)
    coalesces  whether jobs that miss one sample at the same time share one read, as in the page cache. If not, as in a
               cache of files, each reads it, and jobs at the same sample of one order read everything twice
    """

    capacity: float | None = None
    policy: str = "lru"
    coalesces: bool = True

    def __post_init__(self) -> None:
        if self.capacity is not None:
            _checked("the cache", "capacity", self.capacity, 0.0)
        if self.policy not in POLICIES:
            near = nearest(self.policy, POLICIES)
            raise IngestError(f"Cache policy {self.policy!r} is not known (nearest: {near}): give one of those.")
