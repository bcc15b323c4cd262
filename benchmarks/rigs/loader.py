"""Loader-bound training, predicted and measured: `python -m benchmarks.rigs.loader`.

Needs nginx; takes about ten minutes.

Real PyTorch training (examples/stagger/train.py) on real JPEG files from nginx with a limited rate, through the file
cache. What predicts: the storage probe, the preparation probe, and steps of the optimizer on batches in memory, taken
between the judged runs but never from them. Writes benchmarks/results/loader.json and loader.md.
Leave the machine alone meanwhile. Where other programs took more than a twentieth of its processors during a probe or a
run, that one is done again (whatever came out), until --patience is over; what they took is written down.

The caches are files in memory, where there is such a folder. On ext4 a new file costs what was deleted before: the
kernel does not use the inode of a deleted file again for minutes, and looks at each of them to find another one. Here
20 to 500 us of processor time a file, between two runs that were otherwise the same.
"""

from __future__ import annotations

import argparse
import datetime
import importlib.metadata
import importlib.util
import json
import os
import platform
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import torch

from benchmarks.rigs.local_server import LocalServer
from precision_time.hardware.storage import Storage
from precision_time.ingest.pipeline.formats import WORKER_START_S
from precision_time.ingest.pipeline.loader import Loader
from precision_time.ingest.storage.index import read_index
from precision_time.ingest.storage.pictures import Recipe, make
from precision_time.ingest.storage.preparation_probe import PreparationProbe, probe_preparation
from precision_time.ingest.storage.reading import CROPPED
from precision_time.ingest.storage.storage_probe import probe_storage

RESULTS = Path(__file__).parents[1] / "results"
EXAMPLE = Path(__file__).parents[2] / "examples" / "stagger" / "train.py"
SIZE, BATCH = 160, 16
GOAL = 0.10
DISTURBED = 0.05
"""Share of the processors that other programs may have during a run."""
MEMORY = Path("/dev/shm")
T = TypeVar("T")


@dataclass(frozen=True)
class Setting:
    """One loader: its workers, the storage's limit, the cache (share of the data that it holds), the net, batches that
    each worker prepares ahead, and the edge of a picture.
    """

    name: str
    workers: int
    requests_per_s: float | None
    cache: float | None
    policy: str = "lru"
    width: int = 4
    steps: int = 1
    prefetch: int = 2
    size: int = SIZE


SETTINGS = (
    Setting("storage-bound, then all cached", 1, 150, None),
    Setting("storage-bound, half cached (no eviction)", 2, 200, 0.5, "no-eviction"),
    Setting("storage-bound, 0.7 cached (lru)", 2, 200, 0.7, "lru"),
    Setting("no workers, then all cached", 0, 150, None, width=8),
    Setting("preparation-bound, no limit, all cached", 1, None, None),
    Setting("compute-bound once cached", 1, 150, None, width=16, steps=2),
)
ADDED = (
    Setting("two workers on two cores, no limit", 2, None, None),
    Setting("one batch ahead, no limit", 1, None, None, prefetch=1),
    Setting("larger pictures", 1, 150, None, size=320),
    Setting("larger pictures, two workers, half cached", 2, 200, 0.5, "no-eviction", size=320),
    Setting("no workers, slow step", 0, 100, None, width=16, steps=4),
    Setting("storage and worker as fast", 1, 500, None),
)
"""After the model had been built on those above."""


def example() -> Any:
    """The training loop that users see."""
    spec = importlib.util.spec_from_file_location("stagger_train", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # its dataclass looks its module up
    spec.loader.exec_module(module)
    return module


def step_s(width: int, steps: int, seconds: float = 0.6, size: int = SIZE) -> float:
    """Mean seconds of training on batches in memory, so many that none is still in the processor's cache."""
    learn = example().learner(width, steps)
    edge = round(CROPPED * size)
    pictures, labels = torch.rand(16, BATCH, 3, edge, edge), torch.arange(BATCH) % 10
    torch.set_num_threads(1)
    learn(pictures[0], labels)
    count, start = 0, time.perf_counter()
    while time.perf_counter() < start + seconds or count < 16:
        learn(pictures[count % 16], labels)
        count += 1
    return (time.perf_counter() - start) / count


@dataclass(frozen=True)
class Epoch:
    """Really measured: seconds, and the share of samples that were read from the server."""

    seconds: float
    missed: float


def measure(setting: Setting, server: LocalServer, cache: Path, samples: int, epochs: int) -> list[Epoch]:
    """Every epoch of a real run that starts with an empty cache."""
    start, read, done = 0.0, 0, 0
    results: list[Epoch] = []

    def progress(count: int) -> None:
        nonlocal start, read, done
        done += count
        if done % samples == 0:
            now, requests = time.monotonic(), server.requests()
            if done:
                results.append(Epoch(now - start, (requests - read) / samples))
            start, read = time.monotonic(), requests

    total = sum(read_index(server.url).bytes)
    example().train(
        progress,
        root=server.url,
        cache=str(cache),
        epochs=epochs,
        workers=setting.workers,
        width=setting.width,
        steps=setting.steps,
        batch_size=BATCH,
        cache_policy=setting.policy,
        prefetch=setting.prefetch,
        cache_mib=None if setting.cache is None else setting.cache * total / 2**20,
    )
    return results


def loader_of(
    setting: Setting, storage: Storage, prepared: PreparationProbe, samples: int, mean_bytes: float
) -> Loader:
    """The loader as the probes describe it."""
    works = setting.workers > 0
    return Loader(
        samples_per_step=BATCH,
        bytes_per_sample=mean_bytes,
        prepare_s=(prepared.worker_s if works else prepared.inline_s) + prepared.hit_s,
        batch_s=prepared.worker_end_s if works else prepared.inline_end_s,
        keep_s=prepared.keep_s,
        read_core_s=prepared.read_core_s,
        handoff_s=prepared.handoff_s,
        storage=storage,
        workers=setting.workers,
        prefetch_factor=setting.prefetch,
        cores=float(os.cpu_count() or 1),
        training_cores=1.0,
        samples=samples,
        capacity=1.0 if setting.cache is None else setting.cache,
        policy=setting.policy,
    )


def predict(loader: Loader, prepared: PreparationProbe, train_s: float, samples: int) -> tuple[float, float]:
    """Seconds of the cold epoch and of a later one. The loop keeps its workers: they start once, before the first."""
    steps, started_s = samples / BATCH, WORKER_START_S * loader.workers
    cold = loader.epoch_s(train_s, loader.first_miss(), steps) - started_s + prepared.start_s * loader.workers
    later = loader.epoch_s(train_s, loader.later_misses()[0][1], steps) - started_s
    return cold, later


class Machine:
    """Does something when no other program is busy, and again if one was meanwhile."""

    def __init__(self, patience_s: float) -> None:
        self._end = time.monotonic() + patience_s
        self.taken: list[float] = []

    def alone(self, do: Callable[[], T], server: LocalServer) -> T:
        """What `do` gives; `taken` gets the share of the processors that others had during it."""
        while True:
            self._await_rest()
            before, private = _ticks(), _own_ticks(server)
            results = do()
            every = max(_ticks()[1] - before[1], 1)
            taken = max(_ticks()[0] - before[0] - (_own_ticks(server) - private), 0.0) / every
            if taken <= DISTURBED or time.monotonic() > self._end:
                self.taken.append(taken)
                return results

    def _await_rest(self) -> None:
        """A second in which nearly nothing ran."""
        while time.monotonic() < self._end:
            before = _ticks()
            time.sleep(1.0)
            after = _ticks()
            if after[0] - before[0] <= DISTURBED * (after[1] - before[1]):
                return


def run(
    folder: Path,
    caches: Path,
    samples: int,
    rounds: int,
    settings: Sequence[Setting],
    machine: Machine,
    epochs: int = 4,
) -> list[dict[str, Any]]:
    """These settings, `rounds` times, with the probes in between."""
    roots = {size: folder / f"pictures{size}" for size in {setting.size for setting in settings}}
    for size, root in roots.items():
        make(root, samples, Recipe(size))
    mean_bytes = {size: read_index(str(root)).mean_bytes for size, root in roots.items()}
    probed: dict[Setting, list[Storage]] = {setting: [] for setting in settings}
    measured: dict[Setting, list[list[Epoch]]] = {setting: [] for setting in settings}
    steps: dict[Setting, list[float]] = {setting: [] for setting in settings}
    prepared: dict[Setting, list[PreparationProbe]] = {setting: [] for setting in settings}
    for turn in range(rounds):
        for setting in settings:
            with LocalServer(roots[setting.size], setting.requests_per_s) as server:

                def trained(setting: Setting = setting, server: LocalServer = server) -> list[Epoch]:
                    with tempfile.TemporaryDirectory(dir=caches) as cache:
                        return measure(setting, server, Path(cache), samples, epochs)

                probe = partial(probe_storage, server.url, 6.0)
                probed[setting].append(machine.alone(probe, server).storage)
                prepare = partial(probe_preparation, server.url, BATCH, caches, 4.0)
                prepared[setting].append(machine.alone(prepare, server))
                step = partial(step_s, setting.width, setting.steps, size=setting.size)
                steps[setting].append(machine.alone(step, server))
                measured[setting].append(machine.alone(trained, server))
            _progress(f"{turn + 1}/{rounds} {setting.name}", measured[setting][-1], max(machine.taken[-4:]))
    storages = {setting: middle_of(results) for setting, results in probed.items()}
    rows = []
    for setting in settings:
        train_s = statistics.median(steps[setting])
        # The median over all settings that read such pictures: nothing in it depends on another setting.
        middle = middle_of_probes([p for other in settings if other.size == setting.size for p in prepared[other]])
        if setting.workers:
            train_s += middle.receive_s
        loader = loader_of(setting, storages[setting], middle, samples, mean_bytes[setting.size])
        cold, later = predict(loader, middle, train_s, samples)
        first = [epochs[0] for epochs in measured[setting]]
        rest = [epoch for epochs in measured[setting] for epoch in epochs[1:]]
        rows.append(
            {
                "setting": asdict(setting),
                "storage": storages[setting].to_dict(),
                "prepared": asdict(middle),
                "train_s": train_s,
                "binding": loader.binding(train_s, loader.first_miss()),
                "cold": judged(cold, loader.first_miss(), first),
                "later": judged(later, loader.later_misses()[0][1], rest),
                "epochs": [[asdict(epoch) for epoch in epochs] for epochs in measured[setting]],
            }
        )
    return rows


def _progress(at: str, epochs: Sequence[Epoch], taken: float) -> None:
    notes = ", ".join(f"{epoch.seconds:.2f} s {epoch.missed:.0%}" for epoch in epochs)
    print(f"{at}: {notes}; others {taken:.0%}", file=sys.stderr, flush=True)


def middle_of_probes(results: Sequence[PreparationProbe]) -> PreparationProbe:
    """The median of every figure."""
    return PreparationProbe(
        **{word: statistics.median(getattr(measured, word) for measured in results) for word in asdict(results[0])}
    )


def middle_of(results: Sequence[Storage]) -> Storage:
    """The median of every figure."""
    fields = ("bytes_per_s", "stream_bytes_per_s", "latency_s", "requests_per_s", "reader_efficiency")
    return replace(
        results[0], **{word: statistics.median(getattr(measured, word) for measured in results) for word in fields}
    )


def judged(predicted_s: float, miss: float, epochs: list[Epoch]) -> dict[str, float]:
    """Prediction beside the median epoch."""
    seconds = statistics.median(epoch.seconds for epoch in epochs)
    missed = statistics.median(epoch.missed for epoch in epochs)
    return {
        "predicted_s": predicted_s,
        "measured_s": seconds,
        "error": predicted_s / seconds - 1,
        "predicted_miss": miss,
        "measured_miss": missed,
    }


def table(rows: list[dict[str, Any]]) -> str:
    """The rows as Markdown."""
    lines = [
        "| loader | workers | requests/s | cache | cold: predicted, measured | | later: predicted, measured | |",
        "|---|--:|--:|---|--:|--:|--:|--:|",
    ]
    for row in rows:
        setting = row["setting"]
        cache = "all" if setting["cache"] is None else f"{setting['cache']:.0%} {setting['policy']}"
        cells = [setting["name"], str(setting["workers"]), f"{setting['requests_per_s'] or 'no limit'}", cache]
        for kind in ("cold", "later"):
            results = row[kind]
            cells += [f"{results['predicted_s']:.2f} s, {results['measured_s']:.2f} s", f"{results['error']:+.1%}"]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3, help="runs of each setting (default 3)")
    parser.add_argument("--samples", type=int, default=640, help="pictures of an epoch (default 640)")
    parser.add_argument(
        "--patience", type=float, default=30.0, help="minutes, after which disturbed runs count too (default 30)"
    )
    parser.add_argument("--output", type=Path, default=RESULTS, help="folder of loader.json and loader.md")
    parser.add_argument(
        "--caches", type=Path, default=MEMORY if MEMORY.is_dir() else None, help="folder of the caches (default memory)"
    )
    parser.add_argument("--only", default="", help="settings whose name contains this")
    options = parser.parse_args()
    settings = [setting for setting in (*SETTINGS, *ADDED) if options.only in setting.name]
    with (
        tempfile.TemporaryDirectory(prefix="precision-time-loader-") as folder,
        tempfile.TemporaryDirectory(prefix="precision-time-loader-", dir=options.caches) as caches,
    ):
        alone = Machine(60.0 * options.patience)
        rows = run(Path(folder), Path(caches), options.samples, options.rounds, settings, alone)
    machine: dict[str, Any] = {
        "date": datetime.date.today().isoformat(),
        "processor": _processor(),
        "cores": os.cpu_count(),
        "others": max(alone.taken),
        "versions": {name: importlib.metadata.version(name) for name in ("precision-time", "torch", "pillow", "numpy")}
        | {"python": platform.python_version()},
    }
    errors = [abs(row[kind]["error"]) for row in rows for kind in ("cold", "later")]
    content = {"machine": machine, "samples": options.samples, "rounds": options.rounds, "rows": rows}
    options.output.mkdir(parents=True, exist_ok=True)
    (options.output / "loader.json").write_text(json.dumps(content, indent=1) + "\n")
    versions = ", ".join(f"{name} {version}" for name, version in machine["versions"].items())
    text = (
        "# Loader-bound jobs: predicted against measured\n\n"
        f"`python -m benchmarks.rigs.loader` on {machine['date']}: {machine['processor']}, {machine['cores']} cores; "
        f"{versions}. {options.samples} JPEG pictures of {SIZE} x {SIZE} (larger: 320 x 320), batches of {BATCH}, "
        f"medians of {options.rounds} runs, caches in {options.caches or 'the temporary folder'}; other programs "
        f"took at most {machine['others']:.0%} of the processors meanwhile.\n"
        "Predicted from the storage probe, the preparation probe and steps on batches in memory. The last "
        f"{sum(setting in ADDED for setting in settings)} settings were added after the model had been built.\n\n"
        f"{table(rows)}\n\n"
        f"Largest error {max(errors):.1%}, mean {statistics.mean(errors):.1%}; "
        f"{sum(error <= GOAL for error in errors)} of {len(errors)} epochs within {GOAL:.0%}.\n"
    )
    (options.output / "loader.md").write_text(text)
    print(text)
    return 0


def _ticks() -> tuple[int, int]:
    """The machine's processors so far: busy and all, in ticks; zeros where the system does not say."""
    path = Path("/proc/stat")
    if not path.exists():
        return 0, 0
    user, nice, system, idle, waiting, *others = map(int, path.read_text().splitlines()[0].split()[1:9])
    busy = user + nice + system + sum(others)
    return busy, busy + idle + waiting


def _ticks_of(server: LocalServer) -> float:
    """Of nginx, the child of the server's shell."""
    path, pid = Path("/proc"), server.pid
    results = 0
    for stat in path.glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[1]) == pid:
            results += int(fields[11]) + int(fields[12])
    return float(results)


def _own_ticks(server: LocalServer) -> float:
    """What this process, the children that have ended and the server have had of the processors."""
    spent = os.times()
    seconds = spent.user + spent.system + spent.children_user + spent.children_system
    return seconds * os.sysconf("SC_CLK_TCK") + _ticks_of(server)


def _processor() -> str:
    path = Path("/proc/cpuinfo")
    names = (
        [line.split(":")[1].strip() for line in path.read_text().splitlines() if line.startswith("model name")]
        if path.exists()
        else []
    )
    return names[0] if names else platform.processor() or platform.machine()


if __name__ == "__main__":
    sys.exit(main())
