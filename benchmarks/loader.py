"""Loader-bound training, predicted and measured: `python benchmarks/loader.py`. Needs nginx; takes about four minutes.

Real PyTorch training (examples/stagger/train.py) on real JPEG files from nginx with a limited rate, through the file
cache. What predicts: the storage probe, the preparation probe, and steps of the optimizer on batches in memory, taken
between the judged runs but never from them. Writes benchmarks/results/loader.json and loader.md.
Leave the machine alone meanwhile.
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
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from precision_time.hardware.storage import Storage
from precision_time.ingest.index import read_index
from precision_time.ingest.loader import Loader
from precision_time.ingest.local_server import LocalServer
from precision_time.ingest.pictures import Recipe, make
from precision_time.ingest.preparation_probe import PreparationProbe, probe_preparation
from precision_time.ingest.reading import CROPPED, Pictures
from precision_time.ingest.storage_probe import probe_storage

RESULTS = Path(__file__).parent / "results"
EXAMPLE = Path(__file__).parent.parent / "examples" / "stagger" / "train.py"
SIZE, BATCH = 160, 16
GOAL = 0.10


@dataclass(frozen=True)
class Setting:
    """One loader: its workers, the storage's limit, the cache (share of the data that it holds) and the net."""

    name: str
    workers: int
    requests_per_s: float | None
    cache: float | None
    policy: str = "lru"
    width: int = 4
    steps: int = 1


SETTINGS = (
    Setting("storage-bound, then all cached", 1, 250, None),
    Setting("storage-bound, half cached (no eviction)", 2, 400, 0.5, "no-eviction"),
    Setting("storage-bound, 0.7 cached (lru)", 2, 400, 0.7, "lru"),
    Setting("no workers, then all cached", 0, 300, None, width=8),
    Setting("preparation-bound, no limit, all cached", 1, None, None),
    Setting("compute-bound once cached", 1, 250, None, width=16, steps=2),
)


def example() -> Any:
    """The training loop that users see."""
    spec = importlib.util.spec_from_file_location("stagger_train", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def step_s(width: int, steps: int, seconds: float = 0.6) -> float:
    """Median seconds of training on one batch that is in memory."""
    learn = example().learner(width, steps)
    edge = round(CROPPED * SIZE)
    pictures, labels = torch.rand(BATCH, 3, edge, edge), torch.arange(BATCH) % 10
    torch.set_num_threads(1)
    learn(pictures, labels)
    found: list[float] = []
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or len(found) < 5:
        begun = time.perf_counter()
        learn(pictures, labels)
        found.append(time.perf_counter() - begun)
    return statistics.median(found)


def measure(setting: Setting, root: str, cache: Path, samples: int, epochs: int) -> list[float]:
    """Seconds of every epoch of a real run that starts with an empty cache."""
    marks: list[float] = []
    done = 0

    def progress(count: int) -> None:
        nonlocal done
        done += count
        if done % samples == 0:
            marks.append(time.monotonic())

    total = sum(read_index(root).bytes)
    example().train(
        progress, root=root, cache=str(cache), epochs=epochs, workers=setting.workers, width=setting.width,
        steps=setting.steps, batch_size=BATCH, cache_policy=setting.policy,
        cache_mib=None if setting.cache is None else setting.cache * total / 2**20,
    )  # fmt: skip
    return [after - before for before, after in zip(marks, marks[1:], strict=False)]


def loader_of(setting: Setting, storage: Storage, prepared: PreparationProbe, samples: int, mean_bytes: float) -> Loader:
    """The loader as the probes describe it."""
    prepare_s = (prepared.worker_s if setting.workers else prepared.inline_s) + prepared.hit_s
    return Loader(
        samples_per_step=BATCH,
        bytes_per_sample=mean_bytes,
        prepare_s=prepare_s,
        # A missed sample is kept too, by whoever read it.
        storage=replace(storage, latency_s=storage.latency_s + prepared.store_s),
        workers=setting.workers,
        cores=float(os.cpu_count() or 1),
        training_cores=1.0,
        samples=samples,
        capacity=1.0 if setting.cache is None else setting.cache,
        policy=setting.policy,
    )


def predict(loader: Loader, train_s: float, samples: int) -> tuple[float, float, str]:
    """Seconds of the cold epoch and of a later one, and what limits the first."""
    steps = samples / BATCH
    cold = loader.epoch_s(train_s, loader.first_miss(), steps)
    later = loader.epoch_s(train_s, loader.later_misses()[0][1], steps)
    return cold, later, loader.binding(train_s, loader.first_miss())


def run(folder: Path, samples: int, rounds: int, epochs: int = 4) -> list[dict[str, Any]]:
    """All settings, `rounds` times, with the probes in between."""
    make(folder / "pictures", samples, Recipe(SIZE))
    root = str(folder / "pictures")
    mean_bytes = read_index(root).mean_bytes
    storages: dict[Setting, Storage] = {}
    measured: dict[Setting, list[list[float]]] = {setting: [] for setting in SETTINGS}
    steps: dict[Setting, list[float]] = {setting: [] for setting in SETTINGS}
    prepared: list[PreparationProbe] = []
    for turn in range(rounds):
        for setting in SETTINGS:
            with LocalServer(root, setting.requests_per_s) as server:
                if turn == 0:
                    storages[setting] = probe_storage(server.url, 6.0).storage
                prepared.append(probe_preparation(root, BATCH, folder, 3.0))
                steps[setting].append(step_s(setting.width, setting.steps))
                with tempfile.TemporaryDirectory(dir=folder) as cache:
                    measured[setting].append(measure(setting, server.url, Path(cache), samples, epochs))
            print(f"{turn + 1}/{rounds} {setting.name}: {measured[setting][-1]}", file=sys.stderr, flush=True)
    middle = PreparationProbe(**{
        word: statistics.median(getattr(one, word) for one in prepared) for word in asdict(prepared[0])
    })  # fmt: skip
    rows = []
    for setting in SETTINGS:
        train_s = statistics.median(steps[setting])
        if setting.workers:
            train_s += middle.receive_s
        cold, later, binding = predict(
            loader_of(setting, storages[setting], middle, samples, mean_bytes), train_s, samples
        )
        really_cold = statistics.median(epochs[0] for epochs in measured[setting])
        really_later = statistics.median(second for epochs in measured[setting] for second in epochs[1:])
        rows.append({
            "setting": asdict(setting),
            "storage": storages[setting].to_dict(),
            "train_s": train_s,
            "binding": binding,
            "cold": {"predicted_s": cold, "measured_s": really_cold, "error": cold / really_cold - 1},
            "later": {"predicted_s": later, "measured_s": really_later, "error": later / really_later - 1},
            "epochs_s": measured[setting],
        })  # fmt: skip
    return [{"prepared": asdict(middle)}, *rows]


def table(rows: list[dict[str, Any]]) -> str:
    """The rows as Markdown."""
    lines = [
        "| loader | workers | requests/s | cache | cold epoch: predicted, measured | | later epochs: predicted, measured | |",
        "|---|--:|--:|---|--:|--:|--:|--:|",
    ]
    for row in rows:
        setting = row["setting"]
        cache = "all" if setting["cache"] is None else f"{setting['cache']:.0%} {setting['policy']}"
        cells = [
            setting["name"], str(setting["workers"]), f"{setting['requests_per_s'] or 'no limit'}", cache,
        ]  # fmt: skip
        for kind in ("cold", "later"):
            found = row[kind]
            cells += [f"{found['predicted_s']:.2f} s, {found['measured_s']:.2f} s", f"{found['error']:+.1%}"]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3, help="runs of each setting (default 3)")
    parser.add_argument("--samples", type=int, default=640, help="pictures of an epoch (default 640)")
    parser.add_argument("--output", type=Path, default=RESULTS, help="folder of loader.json and loader.md")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="precision-time-loader-") as folder:
        prepared, *rows = run(Path(folder), given.samples, given.rounds)
    machine = {
        "date": datetime.date.today().isoformat(),
        "processor": _processor(),
        "cores": os.cpu_count(),
        "versions": {
            name: importlib.metadata.version(name) for name in ("precision-time", "torch", "pillow", "numpy")
        } | {"python": platform.python_version()},
    }  # fmt: skip
    errors = [abs(row[kind]["error"]) for row in rows for kind in ("cold", "later")]
    content = {"machine": machine, "samples": given.samples, "rounds": given.rounds, **prepared, "rows": rows}
    given.output.mkdir(parents=True, exist_ok=True)
    (given.output / "loader.json").write_text(json.dumps(content, indent=1) + "\n")
    versions = ", ".join(f"{name} {version}" for name, version in machine["versions"].items())
    text = (
        "# Loader-bound jobs: predicted against measured\n\n"
        f"`python benchmarks/loader.py` on {machine['date']}: {machine['processor']}, {machine['cores']} cores; "
        f"{versions}. {given.samples} JPEG pictures of {SIZE} x {SIZE}, batches of {BATCH}, medians of {given.rounds} "
        "runs.\nPredicted from the storage probe, the preparation probe and steps on batches in memory.\n\n"
        f"{table(rows)}\n\n"
        f"Largest error {max(errors):.1%}, mean {statistics.mean(errors):.1%}; "
        f"{sum(error <= GOAL for error in errors)} of {len(errors)} epochs within {GOAL:.0%}.\n"
    )
    (given.output / "loader.md").write_text(text)
    print(text)
    return 0


def _processor() -> str:
    path = Path("/proc/cpuinfo")
    names = [line.split(":")[1].strip() for line in path.read_text().splitlines() if line.startswith("model name")] \
        if path.exists() else []  # fmt: skip
    return names[0] if names else platform.processor() or platform.machine()


if __name__ == "__main__":
    sys.exit(main())
