"""One reader of a storage probe, in a process of its own like a loader's worker.

Local files are read without the page cache: a file's pages are dropped before it is read (posix_fadvise), and a
non-blocking read checks that they were.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection

from precision_time.errors import IngestError
from precision_time.ingest.storage.object_reader import ObjectReader, open_reader

PIECE = 8 * 2**20
"""Bytes of one read of a larger file, at a random offset."""
SMALL_LOCAL = 4096
"""Bytes of a small read from a file: one page, the least that a device reads. From a server it is one byte."""


@dataclass(frozen=True, slots=True)
class Order:
    """An order to read files, or small parts of them, until `end` on the machine's monotonic clock.

    `pause_s` passes between two reads, so that a rate-limited storage has no queue. `busy_s` of computation comes
    before each read, as decoding in a loader's worker, because an idle processor would make the read slower.
    """

    files: Sequence[tuple[str, int]]
    begin: float
    end: float
    small: bool = False
    pause_s: float = 0.0
    busy_s: float = 0.0
    seed: int = 0


@dataclass(slots=True)
class Reads:
    """The result: seconds of each read, bytes, first start and last end, and page cache checks with those cached."""

    seconds: list[float] = field(default_factory=list)
    bytes: int = 0
    began: float = 0.0
    ended: float = 0.0
    checked: int = 0
    cached: int = 0


def serve(root: str, local: bool, orders: Connection) -> None:
    """Carry out orders until the pipe closes; an error is returned as text."""
    reader: ObjectReader | None = None
    while True:
        try:
            order: Order | None = orders.recv()
        except (EOFError, ConnectionError, KeyboardInterrupt):
            return
        if order is None:
            return
        try:
            reader = reader or (ColdFiles(root) if local else open_reader(root))
            orders.send(carry_out(reader, order))
        except IngestError as error:
            with suppress(ConnectionError):  # another reader's error has already ended the probe
                orders.send(str(error))
        except (KeyboardInterrupt, ConnectionError):
            return


def carry_out(reader: ObjectReader, order: Order) -> Reads:
    """Read the files in random order, repeatedly, until the time is over."""
    chance, reads = random.Random(order.seed), Reads()
    wait = order.begin - time.monotonic()
    time.sleep(max(wait, 0.0))
    reads.began = reads.ended = time.monotonic()
    files = list(order.files)
    while not reads.seconds or reads.ended < order.end:
        chance.shuffle(files)
        for name, size in files:
            if order.pause_s:
                time.sleep(order.pause_s)
            busy = time.monotonic() + order.busy_s
            while time.monotonic() < busy:
                pass
            start, length = _part(size, order.small, isinstance(reader, ColdFiles), chance)
            began = time.monotonic()
            content = reader.read(name, start, length)
            reads.ended = time.monotonic()
            reads.seconds.append(reads.ended - began)
            reads.bytes += len(content)
            if reads.ended >= order.end:
                break
    if isinstance(reader, ColdFiles):
        reads.checked, reads.cached, reader.checked, reader.cached = reader.checked, reader.cached, 0, 0
    return reads


def _part(size: int, small: bool, local: bool, chance: random.Random) -> tuple[int, int | None]:
    if small:
        length = min(SMALL_LOCAL if local else 1, size)
        return (chance.randrange(size - length + 1) // SMALL_LOCAL * SMALL_LOCAL if local else 0), length
    if size > PIECE:
        return chance.randrange(size - PIECE + 1) // SMALL_LOCAL * SMALL_LOCAL, PIECE
    return 0, None


def main(root: str, local: str, descriptor: str) -> None:
    """The process: a root, "local" or "remote", and the descriptor of the pipe that orders come through."""
    serve(root, local == "local", Connection(int(descriptor)))


class ColdFiles:
    """Files of a folder, each read after its pages were dropped from the page cache."""

    def __init__(self, root: str) -> None:
        self._root = root
        self.checked = self.cached = 0

    def read(self, name: str, start: int = 0, length: int | None = None) -> bytes:
        try:
            file = os.open(f"{self._root}/{name}", os.O_RDONLY)
            try:
                os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
                self._check(file, start)
                length_wanted = os.fstat(file).st_size if length is None else length
                parts, got = [], 0
                while got < length_wanted and (part := os.pread(file, length_wanted - got, start + got)):
                    parts.append(part)
                    got += len(part)
                os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
            finally:
                os.close(file)
        except OSError as error:
            raise IngestError(
                f"file {name!r} of storage {self._root!r} cannot be read: {error.strerror}; check the path"
            ) from error
        return b"".join(parts)

    def _check(self, file: int, start: int) -> None:
        """For the first reads: check whether the page was cached."""
        if self.checked >= 50 or not hasattr(os, "RWF_NOWAIT"):
            return
        with suppress(OSError):  # a file system that cannot say
            self.checked += 1
            try:
                self.cached += os.preadv(file, [bytearray(1)], start, os.RWF_NOWAIT) == 1
            except BlockingIOError:
                return

    def close(self) -> None:
        pass


if __name__ == "__main__":
    import sys

    # Under its own name, so that what is sent through the pipe is of the same class on both sides.
    from precision_time.ingest.storage import probe_reader

    probe_reader.main(*sys.argv[1:])
