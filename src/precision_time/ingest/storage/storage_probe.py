"""`calibrate --storage`: latency and rates of a storage for one reader, many readers, and two groups of readers.

Latency and the rate of one reader are measured with pauses between reads, so that a rate-limited storage has no queue;
the rates of many readers and of small reads without pauses.
"""

from __future__ import annotations

import datetime
import os
import random
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from types import TracebackType
from typing import Any

from precision_time.errors import IngestError
from precision_time.hardware.storage import Storage
from precision_time.ingest.storage.index import Index, files_of, local_path
from precision_time.ingest.storage.probe_reader import Order, Reads
from precision_time.processes import end_process, start_module

BUDGET_S = 20.0
LEAST_BUDGET_S = 4.0
READERS = (1, 2, 4, 8)
PAUSE_S = 0.03
"""Seconds between the reads that measure latency; below 33 reads per second of a storage the latency is too large."""
BUSY_S = 0.001
"""Seconds of computation before each such read, about those of decoding a picture."""
SATURATED = 1.05
"""More readers must increase the rate by this factor to be worth trying further."""
ALONE = 1.1
"""If several readers exceed the rate of one by this factor, the storage did not limit the one."""
RESOLVED = 0.02
"""Least share of a file's read time that counts as transfer, since a shorter one is not resolved beside latency."""
START_S = 60.0
"""Seconds to wait for a reader after its time."""

Report = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class Rate:
    """The total rate of a number of readers."""

    readers: int
    reads_per_s: float
    bytes_per_s: float


@dataclass(frozen=True, slots=True)
class StorageProbe:
    """The measured storage, and the measurements behind it.

    rates    whole files by number of readers; small: small reads of as many readers as saturate it
    group    readers of one group; doubled: two such groups at the same time
    cache    how the page cache was avoided, as text
    pictures  the data set has an index of JPEG files, which preparation_probe can decode
    """

    storage: Storage
    files: int
    mean_bytes: float
    rates: tuple[Rate, ...]
    small: Rate
    doubled: Rate
    cache: str
    seconds: float
    pictures: bool

    @property
    def group(self) -> int:
        return self.doubled.readers // 2

    @property
    def limited_by_requests(self) -> bool:
        """Whether small reads are no faster than whole files: larger files would then give a larger bandwidth."""
        return self.small.reads_per_s < 1.1 * max(rate.reads_per_s for rate in self.rates)

    def to_dict(self) -> dict[str, Any]:
        """For JSON: the fields of the storage file, and the measurements."""

        def row(rate: Rate) -> dict[str, float]:
            return {"readers": rate.readers, "reads_per_s": rate.reads_per_s, "bytes_per_s": rate.bytes_per_s}

        return {
            "storage": self.storage.to_dict(),
            "files": self.files,
            "mean_bytes": self.mean_bytes,
            "rates": [row(rate) for rate in self.rates],
            "small_reads": row(self.small),
            "two_groups": row(self.doubled),
            "limited_by_requests": self.limited_by_requests,
            "page_cache": self.cache,
            "seconds": self.seconds,
        }

    def __str__(self) -> str:
        storage = self.storage
        lines = [
            f"{storage.name}: {self.files:,} files of {self.mean_bytes / 1e3:,.1f} kB, read for {self.seconds:.0f} s",
            f"  one reader     {storage.latency_s * 1e3:.3g} ms to the first byte, "
            f"then {storage.stream_bytes_per_s / 1e6:,.4g} MB/s",
        ]
        lines += [
            f"  {rate.readers:2d} reader{'s' if rate.readers > 1 else ' '}     "
            f"{rate.reads_per_s:,.0f} files per second, {rate.bytes_per_s / 1e6:,.4g} MB/s"
            for rate in self.rates
        ]
        lines += [
            f"  small reads    {self.small.reads_per_s:,.0f} per second by {self.small.readers} readers",
            f"  two groups     {storage.reader_efficiency:.2f} of the bandwidth is left, {self.group} readers each",
            f"  page cache     {self.cache}",
        ]
        if self.limited_by_requests:
            lines.append("  limited by requests: larger files would bring more bytes per second than this")
        return "\n".join(lines)


def probe_storage(
    root: str, budget_s: float = BUDGET_S, report: Report = lambda done, total: None, readers: Sequence[int] = READERS
) -> StorageProbe:
    """Measure the storage at `root` (a folder, a file, http://, s3:// ...) for about `budget_s` seconds.

    Raises IngestError for a budget that is too small or a storage that cannot be read.
    """
    if budget_s < LEAST_BUDGET_S:
        raise IngestError(f"budget of the storage probe is {budget_s:g} s; give at least {LEAST_BUDGET_S:g} s")
    start = time.monotonic()
    root, index = files_of(root)
    local = local_path(root) is not None
    if local:
        _write_back(root, index)
    window_s = budget_s / (len(readers) + 4)
    done = _Steps(report, len(readers) + 4)
    with _Readers(root, local, index, 2 * max(readers)) as team:
        team.ready(report=done)
        small_s = _usual(team.spaced(window_s / 2, small=True))
        whole_s = _usual(team.spaced(window_s / 2, small=False))
        done.step()
        rates: list[Rate] = []
        for count in readers:
            rates.append(team.rate(count, window_s))
            done.step()
            if len(rates) > 1 and rates[-1].bytes_per_s < SATURATED * rates[-2].bytes_per_s:
                break
        if 1.0 / rates[0].reads_per_s < whole_s:
            # The storage is not rate-limited: pauses only let caches and processors go cold.
            whole_s = _usual(team.spaced(window_s / 2, small=False, pause_s=0.0))
            small_s = min(small_s, whole_s, _usual(team.spaced(window_s / 2, small=True, pause_s=0.0)))
        best = max(rates, key=lambda rate: rate.bytes_per_s)
        group = min((r.readers for r in rates if r.bytes_per_s * SATURATED > best.bytes_per_s), default=best.readers)
        small = team.rate(group, window_s, small=True)
        done.step()
        # One group again right before two, so that slow drift of the machine does not count.
        alone, doubled = team.rate(group, window_s / 2), team.rate(2 * group, window_s)
        done.end()
        cache = team.cache_words()
    storage = _storage(root, local, index, whole_s, small_s, rates, small, doubled.bytes_per_s / alone.bytes_per_s)
    return StorageProbe(
        storage,
        len(index),
        index.mean_bytes,
        tuple(rates),
        small,
        doubled,
        cache,
        time.monotonic() - start,
        pictures=index.listed and all(name.lower().endswith((".jpg", ".jpeg")) for name in index.names),
    )


def _storage(
    root: str,
    local: bool,
    index: Index,
    whole_s: float,
    small_s: float,
    rates: Sequence[Rate],
    small: Rate,
    efficiency: float,
) -> Storage:
    if rates[0].reads_per_s * ALONE < max(rate.reads_per_s for rate in rates):
        # Several readers get more than one, so the reader limits itself. Otherwise the storage limits all readers in
        # total, and the reader with pauses shows the time of a read without a queue.
        whole_s = max(whole_s, 1.0 / rates[0].reads_per_s)
    latency_s = min(small_s, whole_s)
    piece = rates[0].bytes_per_s / rates[0].reads_per_s
    return Storage(
        name=_name(root),
        bytes_per_s=_short(max(rate.bytes_per_s for rate in rates)),
        stream_bytes_per_s=_short(piece / max(whole_s - latency_s, RESOLVED * whole_s)),
        latency_s=_short(latency_s),
        requests_per_s=_short(max(small.reads_per_s, *(rate.reads_per_s for rate in rates))),
        reader_efficiency=min(1.0, round(efficiency, 3)),
        page_cache=local,
        source=f"measured by precision-time calibrate --storage on {datetime.date.today().isoformat()}, "
        f"{len(index)} files of {index.mean_bytes / 1e3:.1f} kB",
    )


def _usual(seconds: Sequence[float]) -> float:
    """The mean, because an epoch is a sum, without the slowest twentieth, because one stall would dominate it."""
    fastest = sorted(seconds)[: max(len(seconds) - len(seconds) // 20, 1)]
    return statistics.mean(fastest)


def _short(value: float) -> float:
    return float(f"{value:.4g}")


def _name(root: str) -> str:
    last = re.sub(r"[^a-z0-9]+", "-", root.split("://")[-1].rstrip("/").rsplit("/", 1)[-1].lower()).strip("-")
    return f"measured-{last or 'storage'}"


def _write_back(root: str, index: Index) -> None:
    """Write dirty pages to the device, since they cannot be dropped from the page cache."""
    for name in index.names:
        try:
            file = os.open(f"{root}/{name}", os.O_RDONLY)
        except OSError as error:
            raise IngestError(
                f"file {name!r} of storage {root!r} cannot be read: {error.strerror}; check your rights, or make the "
                "data set anew"
            ) from error
        try:
            os.fdatasync(file)
        except OSError:  # a file system that keeps nothing back
            return
        finally:
            os.close(file)


class _Steps:
    """Counts steps and reports them."""

    def __init__(self, report: Report, total: int) -> None:
        self._report, self._total, self._done = report, total, 0

    def step(self) -> None:
        self._done += 1
        self._report(self._done, self._total)

    def end(self) -> None:
        self._report(self._total, self._total)


class _Readers:
    """Reader processes, started once; each has its own files."""

    def __init__(self, root: str, local: bool, index: Index, most: int) -> None:
        self._local = local
        self._files = list(zip(index.names, index.bytes, strict=True))
        random.Random(0).shuffle(self._files)
        self._root, self._most = root, most
        self._pipes: list[Connection] = []
        self._processes: list[subprocess.Popen[bytes]] = []
        self._checked = self._cached = 0

    def __enter__(self) -> _Readers:
        # Not multiprocessing's: that runs the caller's main module once more in every process.
        environment = {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        for _ in range(self._most):
            ours, theirs = Pipe()
            with theirs:
                arguments = (self._root, "local" if self._local else "remote", str(theirs.fileno()))
                module = "precision_time.ingest.storage.probe_reader"
                options: dict[str, Any] = {"pass_fds": [theirs.fileno()], "stdin": subprocess.DEVNULL}
                self._processes.append(start_module(module, *arguments, environment=environment, **options))
            self._pipes.append(ours)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for pipe in self._pipes:
            pipe.close()
        for process in self._processes:  # they end when their pipe does
            end_process(process, 0.1 if kind else 5.0)

    def ready(self, report: _Steps) -> None:
        """Let every reader read once, so that processes run and connections are open."""
        self._order(len(self._pipes), 0.0)

    def spaced(self, seconds: float, small: bool, pause_s: float = PAUSE_S) -> list[float]:
        """Seconds of each read of one reader with pauses and computation between reads."""
        return self._order(1, seconds, small, pause_s, BUSY_S)[0].seconds

    def rate(self, count: int, seconds: float, small: bool = False) -> Rate:
        """The total rate of `count` readers."""
        results = self._order(count, seconds, small)
        return Rate(
            count,
            sum(len(reads.seconds) / (reads.ended - reads.began) for reads in results),
            sum(reads.bytes / (reads.ended - reads.began) for reads in results),
        )

    def _order(
        self, count: int, seconds: float, small: bool = False, pause_s: float = 0.0, busy_s: float = 0.0
    ) -> list[Reads]:
        begin = time.monotonic() + (0.02 if seconds else 0.0)
        for number, pipe in enumerate(self._pipes[:count]):
            files = self._files[number::count] or self._files
            pipe.send(Order(files, begin, begin + seconds, small, pause_s, busy_s, number))
        results = []
        for pipe in self._pipes[:count]:
            if not pipe.poll(seconds + START_S):
                raise IngestError(f"a read has not ended after {START_S:g} s; the storage hangs: check it by hand")
            try:
                answer: Reads | str = pipe.recv()
            except EOFError:
                raise IngestError("a reader of the storage probe died; try again with more memory free") from None
            if isinstance(answer, str):
                raise IngestError(answer)
            self._checked, self._cached = self._checked + answer.checked, self._cached + answer.cached
            results.append(answer)
        return results

    def cache_words(self) -> str:
        """How the page cache was avoided, and whether that worked."""
        if not self._local:
            return "none: read over the network"
        if not self._checked:
            return "each file's pages were dropped before it was read (posix_fadvise); the kernel does not say whether"
        gone = 1.0 - self._cached / self._checked
        if gone > 0.9:
            return f"each file's pages were dropped before it was read (posix_fadvise; {gone:.0%} were gone)"
        return f"could not be kept out: {1 - gone:.0%} of the pages were still there, so these figures are of memory"
