"""A cache of samples in a folder, of stated capacity, shared by the processes of a machine.

A hit opens, reads and (for lru) touches a file, without a lock, so that loader workers do not wait for each other. The
library diskcache 5.6 is slower: with lru it writes to its database at every hit, measured at 80 us alone and 400 us
with four readers, with stalls of up to 0.6 s. The folder may be on a disk or in memory (tmpfs).
"""

from __future__ import annotations

import fcntl
import hashlib
import heapq
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from precision_time.errors import IngestError, nearest
from precision_time.reading import read_json, to_json

POLICIES = ("lru", "no-eviction")
SETTINGS = "cache.json"
SIZE = "size"
MARK = ".precision-time-cache"
"""File by which `stagger` knows a cache folder that it may empty; it holds the folder's path."""
ITEM = ".item"


class FileCache:
    """`get(key, read)` returns the bytes of `key`, from the cache or from `read(key)`.

    capacity   bytes of samples that it holds, exactly; None: no limit
    policy     "lru": evict the least recently used samples; "no-eviction": a full cache stores nothing more (CoorDL)

    `hits` and `misses` count the requests of this process. A copy in another process (pickled or forked) starts at 0.
    """

    def __init__(self, folder: str | Path, capacity: int | None = None, policy: str = "lru") -> None:
        if policy not in POLICIES:
            raise IngestError(
                f"policy {policy!r} of the cache is unknown; nearest: {nearest(policy, POLICIES, 1)}; "
                f"use {' or '.join(POLICIES)}"
            )
        if capacity is not None and capacity < 0:
            raise IngestError(f"capacity of the cache is {capacity} bytes; give 0 or more, or leave it out")
        self.folder, self.capacity, self.policy = Path(folder), capacity, policy
        self._counted = (os.getpid(), 0, 0)
        self._oldest: list[tuple[int, str, int]] = []
        self._prepare()

    @property
    def hits(self) -> int:
        """Samples of this process that were in the cache."""
        return self._counts()[1]

    @property
    def misses(self) -> int:
        """Samples of this process that had to be read."""
        return self._counts()[2]

    def get(self, key: str, read: Callable[[str], bytes]) -> bytes:
        """The bytes of `key`; on a miss they are read and stored."""
        path = self._path(key)
        pid, hits, misses = self._counts()
        content = self._load(path)
        if content is not None:
            self._counted = (pid, hits + 1, misses)
            return content
        self._counted = (pid, hits, misses + 1)
        content = read(key)
        self._store(path, content)
        return content

    def warm(self, keys: Iterable[str], read: Callable[[str], bytes]) -> None:
        """Read and store the keys that are missing, without counting."""
        for key in keys:
            path = self._path(key)
            if not os.path.exists(path):
                self._store(path, read(key))

    def clear(self) -> None:
        """Delete all samples. Concurrent readers are not disturbed."""
        with self._locked() as size:
            for _, path, _ in self._items():
                _unlink(path)
            _write_size(size, 0)
        self._oldest = []
        self._counted = (os.getpid(), 0, 0)

    def held(self) -> int:
        """Bytes of the cached samples."""
        with self._locked() as size:
            return _read_size(size)

    def __len__(self) -> int:
        return sum(1 for _ in self._items())

    def __contains__(self, key: str) -> bool:
        return os.path.exists(self._path(key))

    def _counts(self) -> tuple[int, int, int]:
        if self._counted[0] != os.getpid():
            self._counted = (os.getpid(), 0, 0)
        return self._counted

    def _path(self, key: str) -> str:
        return f"{self.folder}/{hashlib.sha1(key.encode(), usedforsecurity=False).hexdigest()}{ITEM}"

    def _load(self, path: str) -> bytes | None:
        try:
            file = os.open(path, os.O_RDONLY)
        except FileNotFoundError:
            return None
        try:
            length = os.fstat(file).st_size
            content = os.read(file, length)
            while len(content) < length:  # a read may be cut short; a file is whole from the first
                content += os.read(file, length - len(content))
            if self.policy == "lru":
                now = time.time_ns()  # the kernel's own stamp is only as fine as its tick
                os.utime(file, ns=(now, now))
        finally:
            os.close(file)
        return content

    def _store(self, path: str, content: bytes) -> None:
        """Store a sample if the policy has room; the lock is held only while room is reserved."""
        if self.capacity is not None and len(content) > self.capacity:
            return
        if self.policy == "no-eviction" and self.capacity is not None and self.held() + len(content) > self.capacity:
            return
        part = f"{path}.{os.getpid()}.{threading.get_native_id()}"
        try:
            with open(part, "wb") as file:
                file.write(content)
            with self._locked() as size:
                total = _read_size(size)
                if os.path.exists(path) or not (room := self._room(total, len(content)))[0]:
                    os.unlink(part)
                    return
                now = time.time_ns()
                os.utime(part, ns=(now, now))
                os.rename(part, path)
                _write_size(size, room[1] + len(content))
        except OSError as error:
            _unlink(part)
            raise IngestError(
                f"cache folder {str(self.folder)!r} cannot keep a sample: {error}; give a smaller capacity or a "
                "folder with more room"
            ) from error

    def _room(self, total: int, wanted: int) -> tuple[bool, int]:
        """Whether `wanted` bytes fit, after what was used longest ago has gone, and the bytes then held."""
        if self.capacity is None or total + wanted <= self.capacity:
            return True, total
        if self.policy == "no-eviction":
            return False, total
        looked = False
        while total + wanted > self.capacity:
            if not self._oldest:
                if looked:  # nothing is left: the size on file was wrong
                    return True, 0
                self._oldest = list(self._items())
                heapq.heapify(self._oldest)
                looked = True
                total = sum(length for _, _, length in self._oldest)
                continue
            used, path, length = heapq.heappop(self._oldest)
            try:
                if os.stat(path).st_mtime_ns == used:
                    os.unlink(path)
                    total -= length
            except FileNotFoundError:  # another process has put it out, and counted it
                continue
            # What was used since our list was made is younger than all that the list holds; the next list has it.
            looked = False
        return True, total

    def _items(self) -> Iterator[tuple[int, str, int]]:
        """Time of last use, path and bytes of all samples."""
        with os.scandir(self.folder) as entries:
            for entry in entries:
                if entry.name.endswith(ITEM):
                    try:
                        status = entry.stat()
                    except FileNotFoundError:
                        continue
                    yield status.st_mtime_ns, entry.path, status.st_size

    def _prepare(self) -> None:
        """Make the folder, or check that it holds a cache of this capacity and policy."""
        settings = {"capacity": self.capacity, "policy": self.policy}
        path = self.folder / SETTINGS
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            with self._locked() as size:
                if path.exists():
                    self._check(read_json(path, "settings of a cache,"))
                elif any(name not in (SIZE, MARK) for name in os.listdir(self.folder)):
                    raise IngestError(f"folder {str(self.folder)!r} holds other files than a cache; choose another")
                else:
                    path.write_text(to_json(settings))
                self._sweep()
                _write_size(size, sum(length for _, _, length in self._items()))
        except OSError as error:
            raise IngestError(f"cache folder {str(self.folder)!r} cannot be used: {error}; choose another") from error

    def _sweep(self) -> None:
        """Remove partial files of killed processes."""
        for path in self.folder.glob(f"*{ITEM}.*"):
            pid = int(path.name.split(".")[2])
            try:
                os.kill(pid, 0)
            except ProcessLookupError:
                _unlink(str(path))
            except PermissionError:  # another user's, and alive
                continue

    def _check(self, settings: dict[str, object]) -> None:
        for word, value in (("capacity", self.capacity), ("policy", self.policy)):
            if settings.get(word) != value:
                raise IngestError(
                    f"cache folder {str(self.folder)!r} holds a cache of {word} {settings.get(word)}, not {value}; "
                    "give the same, or choose another folder"
                )

    @contextmanager
    def _locked(self) -> Iterator[int]:
        """The file with the bytes held, locked against all other processes."""
        file = os.open(self.folder / SIZE, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield file
        finally:
            os.close(file)


def _read_size(file: int) -> int:
    return int(os.pread(file, 32, 0) or b"0")


def _write_size(file: int, size: int) -> None:
    os.pwrite(file, b"%-32d" % size, 0)


def _unlink(path: str) -> None:
    with suppress(FileNotFoundError):
        os.unlink(path)
