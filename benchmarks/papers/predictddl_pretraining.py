"""Pre-training of the encoder: it learns to tell from a graph what follows from the graph. No measured time is seen.

The vector of a network, through a perceptron of one hidden layer that is then thrown away, must give these figures,
each in standard deviations over the training networks (Huber loss; half of its weight is on the first five):

    log of nodes, longest path, parameters, FLOPs and bytes of a sample's forward pass;
    the share of FLOPs and the share of bytes in each type of node;
    log of its roofline seconds on four devices and precisions of the catalog, less that of its FLOPs over the peak.

All networks are drawn at random (`random_networks`), so no network that a predictor is judged on, not even its graph,
takes part. GHN-2's own objective is to classify images with the weights that it decodes; the encoder that PredictDDL
used is not public, so the objective is this project's.

`python -m benchmarks.papers.predictddl_pretraining` makes the shipped weights again (about an hour on one core). It
prints the held-out R2 after every epoch, and goes on from its checkpoint where it was stopped.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from benchmarks.papers.predictddl_torch import Batch, Graph, TorchEncoder, batch_of, graph_of
from benchmarks.papers.random_networks import random_networks
from precision_time.hardware.catalog import default_catalog
from precision_time.predictors.predictddl.encoder import WEIGHTS, random_encoder, save_encoder
from precision_time.predictors.predictddl.network import Floats, Network
from precision_time.predictors.predictddl.paths import levels
from precision_time.predictors.predictddl.primitives import Primitive
from precision_time.shipped import writing

ROOFLINES = (
    ("v100-16gb-sxm", "fp32", 1.0),
    ("v100-16gb-sxm", "fp16", 0.5),
    ("a100-80gb-sxm", "tf32", 1.0),
    ("h100-80gb-sxm", "bf16", 0.5),
)
"""Device, mathematics, and bytes of an element against fp32."""
SIZES = ("nodes", "path", "parameters", "flops", "bytes")
HIDDEN = 64
"""Units of the hidden layer of the perceptron that is thrown away."""
_TOGETHER = 16
"""Batches whose networks are sorted by depth, so that a batch has few levels."""


def targets_of(network: Network) -> Floats:
    """The figures of the module's text, before they are standardised."""
    flops, size = network.flops, network.bytes
    sizes = [
        network.nodes,
        1 + int(levels(network.nodes, network.edges).max()),
        1 + network.parameters,
        1.0 + flops.sum(),
        1.0 + size.sum(),
    ]
    shares = [
        np.bincount(network.types, weights=what, minlength=len(Primitive)) / max(1.0, what.sum())
        for what in (flops, size)
    ]
    gpus = default_catalog().gpus
    roofs = []
    for name, math, width in ROOFLINES:
        peak, bandwidth = gpus[name].peak(math), gpus[name].memory_bytes_per_s
        seconds = np.maximum(flops / peak, width * size / bandwidth).sum()
        roofs.append(np.log(seconds / ((1.0 + flops.sum()) / peak)))
    return np.concatenate([np.log(sizes), *shares, roofs])


@dataclass(frozen=True, slots=True, eq=False)
class Pool:
    """Networks ready for the encoder, and their targets."""

    graphs: Sequence[Graph]
    targets: Floats

    @classmethod
    def of(cls, networks: Sequence[Network]) -> Pool:
        return cls([graph_of(each) for each in networks], np.stack([targets_of(each) for each in networks]))


@dataclass(slots=True, eq=False)
class Training:
    """The state of a pre-training run after `done` steps of `epochs` passes over the pool."""

    encoder: TorchEncoder
    head: nn.Module
    optimizer: torch.optim.Optimizer
    schedule: torch.optim.lr_scheduler.LRScheduler
    done: int = 0
    seconds: float = 0.0

    def parts(self) -> dict[str, Any]:
        names = ("encoder", "head", "optimizer", "schedule")
        return {name: getattr(self, name).state_dict() for name in names}

    def save(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        beside = path.with_suffix(".part")
        torch.save(self.parts() | {"done": self.done, "seconds": self.seconds}, beside)
        beside.replace(path)

    def resume(self, path: Path) -> None:
        stored = torch.load(path, weights_only=True)
        for name in self.parts():
            getattr(self, name).load_state_dict(stored[name])
        self.done, self.seconds = stored["done"], stored["seconds"]


def started(pool: Pool, epochs: int, batch: int, rate: float, seed: int) -> Training:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        encoder = TorchEncoder(random_encoder(seed))
        head = nn.Sequential(
            nn.Linear(encoder.norm.normalized_shape[0], HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, pool.targets.shape[1])
        )
    optimizer = torch.optim.AdamW([*encoder.parameters(), *head.parameters()], lr=rate, weight_decay=1e-4)
    total = max(1, epochs * _steps(pool, batch))
    return Training(encoder, head, optimizer, torch.optim.lr_scheduler.OneCycleLR(optimizer, rate, total_steps=total))


def pretrain(
    pool: Pool,
    training: Training,
    *,
    epochs: int,
    batch: int,
    seed: int = 0,
    after_epoch: Callable[[int], None] = lambda epoch: None,
    progress: Callable[[int, int], None] = lambda done, of: None,
) -> None:
    """Train for the steps that are left; `after_epoch` is called after each whole epoch."""
    mean, deviation = scale_of(pool)
    targets = torch.from_numpy((pool.targets - mean) / deviation).float()
    weights = torch.full((targets.shape[1],), 0.5 / (targets.shape[1] - len(SIZES)))
    weights[: len(SIZES)] = 0.5 / len(SIZES)
    each = _steps(pool, batch)
    parameters = [*training.encoder.parameters(), *training.head.parameters()]
    for epoch in range(training.done // each, epochs):
        for number, (graphs, chosen) in enumerate(_batches(pool, batch, seed + epoch)):
            if epoch * each + number < training.done:
                continue
            start = time.perf_counter()
            training.optimizer.zero_grad(set_to_none=True)
            predicted = training.head(training.encoder(graphs()))
            losses = nn.functional.smooth_l1_loss(predicted, targets[chosen], reduction="none")
            (losses @ weights).mean().backward()
            nn.utils.clip_grad_norm_(parameters, 1.0)
            training.optimizer.step()
            training.schedule.step()
            training.done += 1
            training.seconds += time.perf_counter() - start
            progress(training.done, epochs * each)
        after_epoch(epoch + 1)


def scale_of(pool: Pool) -> tuple[Floats, Floats]:
    """Mean and standard deviation of the targets."""
    return pool.targets.mean(0), np.maximum(pool.targets.std(0), 1e-3)


def _steps(pool: Pool, batch: int) -> int:
    return -(-len(pool.graphs) // batch)


def _batches(pool: Pool, batch: int, seed: int) -> Iterator[tuple[Callable[[], Batch], list[int]]]:
    """All networks once, in batches of similar depth. A batch is built when its function is called."""
    chance = np.random.default_rng(seed)
    order = chance.permutation(len(pool.graphs))
    batches: list[list[int]] = []
    for start in range(0, len(order), batch * _TOGETHER):
        some = sorted(order[start : start + batch * _TOGETHER].tolist(), key=lambda i: pool.graphs[i].depth)
        batches += [some[i : i + batch] for i in range(0, len(some), batch)]
    for i in chance.permutation(len(batches)).tolist():
        chosen = batches[i]
        yield lambda chosen=chosen: batch_of([pool.graphs[k] for k in chosen]), chosen  # type: ignore[misc]


def r2_of(training: Training, pool: Pool, held_out: Pool) -> Floats:
    """Share of the targets' variance that the vectors give, on networks that were never trained on."""
    mean, deviation = scale_of(pool)
    truth = (held_out.targets - mean) / deviation
    graphs = held_out.graphs
    with torch.no_grad():
        vectors = [training.encoder(batch_of(graphs[i : i + 64])) for i in range(0, len(graphs), 64)]
        predicted = training.head(torch.cat(vectors)).numpy()
    spread = np.maximum(((truth - truth.mean(0)) ** 2).sum(0), 1e-9)
    return np.asarray(1.0 - ((truth - predicted) ** 2).sum(0) / spread)


def scores_of(r2: Floats) -> dict[str, float]:
    """R2 of the sizes, and the median of the shares and of the rooflines."""
    scores = dict(zip(SIZES, r2.tolist(), strict=False))
    scores |= {"shares": float(np.median(r2[len(SIZES) : -4])), "rooflines": float(np.median(r2[-4:]))}
    return {name: round(value, 3) for name, value in scores.items()}


def write(training: Training, given: Mapping[str, Any], scores: Mapping[str, float]) -> None:
    """Write the weights that ship, with the options they were made with and their held-out R2."""
    provenance = {
        **{name: given[name] for name in ("networks", "epochs", "batch", "rate", "seed")},
        "steps": training.done,
        "seconds": round(training.seconds),
        "torch": torch.__version__.split("+")[0],
        "held_out_r2": dict(scores),
    }
    save_encoder(training.encoder.encoder(), WEIGHTS, provenance)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--networks", type=int, default=16000, help="random networks to train on")
    parser.add_argument("--epochs", type=int, default=14)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--rate", type=float, default=4e-3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--checkpoint", type=Path, default=Path("out/predictddl_pretraining.pt"))
    given = parser.parse_args(arguments)
    pool, held_out = Pool.of(random_networks(given.networks, given.seed)), Pool.of(random_networks(300, given.seed + 1))
    training = started(pool, given.epochs, given.batch, given.rate, given.seed)
    if given.checkpoint.is_file():
        training.resume(given.checkpoint)

    def show(done: int, of: int) -> None:
        print(f"\r{done}/{of} steps", end="", flush=True)

    def after(epoch: int) -> None:
        training.save(given.checkpoint)
        print(f"\nepoch {epoch}, {training.seconds:.0f} s: held-out R2 {scores_of(r2_of(training, pool, held_out))}")

    with writing():
        pretrain(
            pool, training, epochs=given.epochs, batch=given.batch, seed=given.seed, after_epoch=after, progress=show
        )
        write(training, vars(given), scores_of(r2_of(training, pool, held_out)))
    print(f"{WEIGHTS.name}: {WEIGHTS.stat().st_size / 1024:.0f} kB")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
