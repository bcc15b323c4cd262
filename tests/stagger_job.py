"""A small job for the tests of `stagger`: reads files over HTTP or from a cache folder, then works on them.

It can be told to misbehave: --die-at a sample of a whole run, --silent, --hang, --empty data.
"""

from __future__ import annotations

import argparse
import os
import random
import sys
import threading
import time
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from queue import Queue
from typing import Any


def fetch(root: str, cache: Path, index: int) -> bytes:
    kept = cache / f"{index}.bin"
    try:
        return kept.read_bytes()
    except FileNotFoundError:
        with urllib.request.urlopen(f"{root}/{index}.bin", timeout=10) as answer:
            content: bytes = answer.read()
        part = cache / f"{index}.{os.getpid()}.part"
        part.write_bytes(content)
        part.replace(kept)
        return content


@dataclass(frozen=True)
class Settings:
    """`work_s` seconds a sample are spent asleep, as beside a GPU; the job fails after `die_at` samples."""

    samples: int
    first: int
    epochs: int
    root: str
    cache: str
    work_s: float = 0.0
    batch_size: int = 4
    die_at: int | None = None
    pid_file: str | None = None


def read_batches(settings: Settings, ready: Queue[list[bytes] | Exception]) -> None:
    """Reads all epochs in a random order, as a loader does; an error is put in the place of a batch."""
    folder = Path(settings.cache)
    folder.mkdir(exist_ok=True)
    chance = random.Random(os.getpid())
    try:
        for _ in range(settings.epochs):
            order = list(range(settings.first, settings.first + settings.samples))
            chance.shuffle(order)
            for at in range(0, len(order), settings.batch_size):
                batch = order[at : at + settings.batch_size]
                ready.put([fetch(settings.root, folder, index) for index in batch])
    except Exception as error:
        ready.put(error)


def train(
    progress: Callable[[int], None], *, tell: Callable[[int], None] = lambda done: None, **arguments: Any
) -> None:
    """Reads ahead in a thread and reports every batch."""
    settings = Settings(**arguments)
    if settings.pid_file:
        Path(settings.pid_file).write_text(str(os.getpid()))
    ready: Queue[list[bytes] | Exception] = Queue(maxsize=4)
    threading.Thread(target=read_batches, args=(settings, ready), daemon=True).start()
    progress(0)
    done = 0
    while done < settings.samples * settings.epochs:
        batch = ready.get()
        if isinstance(batch, Exception):
            raise batch
        time.sleep(settings.work_s * len(batch))
        done += len(batch)
        progress(len(batch))
        tell(done)
        if settings.die_at is not None and done >= settings.die_at:
            raise RuntimeError("the loss is not a number")


def main() -> None:
    from precision_time.ingest.progress import Progress

    parser = argparse.ArgumentParser()
    for flag, kind in (("samples", int), ("first", int), ("epochs", int), ("work-s", float), ("die-at", int)):
        parser.add_argument(f"--{flag}", type=kind, default=None if flag == "die-at" else 0)
    for flag in ("root", "cache", "pid-file"):
        parser.add_argument(f"--{flag}")
    parser.add_argument("--log", action="store_true", help="tell progress by log lines and not by the file")
    parser.add_argument("--silent", action="store_true")
    given = vars(parser.parse_args())
    log, silent = given.pop("log"), given.pop("silent")
    if not given["samples"]:
        sys.exit("no files in the data set")
    if log or silent:
        given["tell"] = (lambda done: None) if silent else lambda done: print(f"step done, samples={done}, loss=0.1")
        train(lambda more: None, **given)
    else:
        with Progress.from_environment() as progress:
            train(progress, **given)


if __name__ == "__main__":
    main()
