"""A training loop to stagger: a small CNN on JPEG pictures. `width` and `steps` choose what is its limit.

A tiny net (width=4) waits for its data; a wide one (width=32), or several steps on each batch, keeps the processor
busy. As a job of `precision-time stagger`: python:examples/stagger/train.py:train
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader

from precision_time.ingest.storage.file_cache import FileCache
from precision_time.ingest.storage.pictures import LABELS
from precision_time.ingest.storage.reading import Pictures


def network(width: int) -> nn.Module:
    """Three convolutions; the first looks at every fourth pixel, so that a narrow net costs next to nothing."""
    return nn.Sequential(
        nn.Conv2d(3, width, 7, stride=4, padding=3),
        nn.ReLU(),
        nn.Conv2d(width, 2 * width, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.Conv2d(2 * width, 4 * width, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(4 * width, LABELS),
    )


def learner(width: int, steps: int, seed: int = 0) -> Callable[[torch.Tensor, torch.Tensor], None]:
    """What is done with every batch: so many steps of the optimizer."""
    torch.manual_seed(seed)
    net, loss_of = network(width), nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)

    def learn(pictures: torch.Tensor, labels: torch.Tensor) -> None:
        for _ in range(steps):
            optimizer.zero_grad()
            loss_of(net(pictures), labels).backward()
            optimizer.step()

    return learn


@dataclass(frozen=True)
class Settings:
    """What a job of `jobs.yaml` may say under `arguments`, and how much of the data set it reads.

    The job reads the samples [first, first + samples) of the data set at `root`, shuffled in every epoch. `cache` is
    the folder of a cache of `cache_mib` MiB (None: it holds everything); two jobs may share it. `steps` are the
    optimizer steps on each batch, `prefetch` the batches that each worker prepares ahead. Jobs of one `seed` read in
    one order.
    """

    root: str
    cache: str | None = None
    cache_mib: float | None = None
    cache_policy: str = "lru"
    samples: int | None = None
    first: int = 0
    epochs: int = 1
    batch_size: int = 16
    workers: int = 1
    width: int = 4
    steps: int = 1
    prefetch: int = 2
    seed: int = 0

    def file_cache(self) -> FileCache | None:
        if self.cache is None:
            return None
        return FileCache(self.cache, None if self.cache_mib is None else int(self.cache_mib * 2**20), self.cache_policy)


def train(progress: Callable[[int], None], **arguments: Any) -> None:
    """Train a small network with these `Settings`."""
    settings = Settings(**arguments)
    torch.set_num_threads(1)
    loader = DataLoader(
        Pictures(settings.root, settings.file_cache(), settings.first, settings.samples),
        batch_size=settings.batch_size,
        shuffle=True,
        num_workers=settings.workers,
        persistent_workers=settings.workers > 0,
        prefetch_factor=settings.prefetch if settings.workers else None,
        generator=torch.Generator().manual_seed(settings.seed),
    )
    learn = learner(settings.width, settings.steps, settings.seed)
    progress(0)
    for _ in range(settings.epochs):
        for pictures, labels in loader:
            learn(pictures, labels)
            progress(len(labels))
