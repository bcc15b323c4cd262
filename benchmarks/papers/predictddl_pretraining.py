"""Pre-training of the encoder: it learns to tell from a graph what follows from the graph. No measured time is seen.

The vector of a network, through one linear layer that is then thrown away, must give these figures, each in standard
deviations over the training networks (Huber loss):

    log of nodes, longest path, parameters, FLOPs and bytes of a sample's forward pass;
    the share of FLOPs and the share of bytes in each of the fifteen types of node;
    log of its roofline seconds on four devices and precisions of the catalog, less that of its FLOPs over the peak.

Networks are drawn at random (`generator`) and a tenth are those of the zoo with a shipped graph. Nothing of the
networks that a predictor is later judged on is needed, though a zoo model's *graph* may be among them.

`python -m benchmarks.papers.predictddl_pretraining` makes the shipped weights again.
"""

from __future__ import annotations

import argparse
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import torch
from torch import nn

from benchmarks.papers.random_networks import random_networks
from precision_time.capture.captured_model import capture_model
from precision_time.errors import PrecisionTimeError
from precision_time.hardware.catalog import default_catalog
from precision_time.job.job import Job
from precision_time.predictors.predictddl.encoder import (
    WEIGHTS,
    Encoder,
    GraphTensors,
    random_encoder,
    save_encoder,
    tensors_of,
)
from precision_time.predictors.predictddl.network import Floats, Network, network_of
from precision_time.predictors.predictddl.paths import levels
from precision_time.predictors.predictddl.primitives import Primitive
from precision_time.shipped import writing
from precision_time.zoo.catalog import ENTRIES

with warnings.catch_warnings():
    # torch_geometric decorates with torch.jit.script as it is imported, which torch 2.15 warns of.
    warnings.filterwarnings("ignore", message="`torch.jit.script` is deprecated", category=FutureWarning)
    from torch_geometric.data import Data
    from torch_geometric.loader import DataLoader

ROOFLINES = (
    ("v100-16gb-sxm", "fp32", 1.0),
    ("v100-16gb-sxm", "fp16", 0.5),
    ("a100-80gb-sxm", "tf32", 1.0),
    ("h100-80gb-sxm", "bf16", 0.5),
)
"""Device, mathematics, and bytes of an element against fp32."""

LARGEST = 260
"""Nodes of the largest zoo network trained on: what is longer costs more than it teaches."""


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


def zoo_networks(largest: int = LARGEST) -> list[Network]:
    """Networks of the zoo whose graphs ship, at their own sizes."""
    networks = []
    for name, entry in ENTRIES.items():
        if not getattr(entry, "ships", True):
            continue
        try:
            step = capture_model(Job(name))
            network = network_of(step.graph, step.batch_size)
        except PrecisionTimeError:
            continue
        if network.nodes <= largest:
            networks.append(network)
    return networks


@dataclass(frozen=True, slots=True)
class Pretrained:
    """A trained encoder and how well its vectors say the targets: share of variance, on networks never trained on."""

    encoder: Encoder
    r2: Floats
    provenance: dict[str, Any]


def pretrain(
    networks: Sequence[Network],
    held_out: Sequence[Network],
    *,
    epochs: int = 10,
    batch: int = 64,
    rate: float = 3e-3,
    seed: int = 0,
    progress: Callable[[int, int], None] = lambda done, of: None,
) -> Pretrained:
    """Train an encoder and a linear layer on the targets of `networks`; judge both on `held_out`."""
    start = time.perf_counter()
    targets = np.stack([targets_of(network) for network in networks])
    mean, deviation = targets.mean(0), np.maximum(targets.std(0), 1e-3)
    scaled = torch.from_numpy((targets - mean) / deviation).float()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        encoder = random_encoder(seed).train()
        head = nn.Linear(encoder.width, targets.shape[1])
        loader = DataLoader(
            [_data(network, scaled[i]) for i, network in enumerate(networks)], batch_size=batch, shuffle=True
        )
        optimizer = torch.optim.AdamW([*encoder.parameters(), *head.parameters()], lr=rate, weight_decay=1e-3)
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, rate, total_steps=max(1, epochs * len(loader)))
        done = 0
        for _ in range(epochs):
            for each in loader:
                optimizer.zero_grad(set_to_none=True)
                loss = nn.functional.smooth_l1_loss(head(encoder(each)), each.target)
                loss.backward()
                nn.utils.clip_grad_norm_(encoder.parameters(), 1.0)
                optimizer.step()
                schedule.step()
                done += 1
                progress(done, epochs * len(loader))
    encoder.eval()
    return Pretrained(
        encoder,
        _judge(encoder, head, held_out, mean, deviation),
        {
            "networks": len(networks),
            "epochs": epochs,
            "batch": batch,
            "rate": rate,
            "seed": seed,
            "seconds": round(time.perf_counter() - start, 1),
            "torch": torch.__version__.split("+")[0],
        },
    )


def _data(network: Network, target: torch.Tensor) -> Data:
    given = {name: value for name, value in _fields(tensors_of(network)).items() if name != "batch"}
    return Data(num_nodes=network.nodes, target=target[None, :], **given)


def _fields(tensors: GraphTensors) -> dict[str, torch.Tensor]:
    return {item.name: getattr(tensors, item.name) for item in fields(tensors)}


def _judge(encoder: Encoder, head: nn.Module, networks: Sequence[Network], mean: Floats, deviation: Floats) -> Floats:
    if not networks:
        return np.full(len(mean), np.nan)
    truth = (np.stack([targets_of(network) for network in networks]) - mean) / deviation
    with torch.no_grad():
        predicted = torch.cat([head(encoder(tensors_of(network))) for network in networks]).numpy()
    spread = np.maximum(((truth - truth.mean(0)) ** 2).sum(0), 1e-9)
    return np.asarray(1.0 - ((truth - predicted) ** 2).sum(0) / spread)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--networks", type=int, default=1000, help="random networks to train on")
    parser.add_argument("--epochs", type=int, default=14)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args(arguments)
    networks = [*random_networks(given.networks, given.seed), *zoo_networks()]
    held_out = random_networks(100, given.seed + 1)

    def show(done: int, of: int) -> None:
        print(f"\r{done}/{of} steps", end="", flush=True)

    with writing():
        made = pretrain(networks, held_out, epochs=given.epochs, seed=given.seed, progress=show)
        r2 = made.r2
        names = ["nodes", "path", "parameters", "flops", "bytes"]
        scores = {name: round(float(value), 3) for name, value in zip(names, r2, strict=False)}
        scores |= {"shares": round(float(np.median(r2[5:-4])), 3), "rooflines": round(float(np.median(r2[-4:])), 3)}
        save_encoder(made.encoder, WEIGHTS, {**made.provenance, "held_out_r2": scores})
    print(f"\n{WEIGHTS.name}: {WEIGHTS.stat().st_size / 1024:.0f} kB, {made.provenance}, held-out R2 {scores}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
