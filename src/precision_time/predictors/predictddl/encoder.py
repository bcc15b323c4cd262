"""The graph hypernetwork's encoder (GHN-2): a network as a vector, by one round of a gated graph network.

Knyazev et al. 2021: a node starts as the embedding of its type plus four embeddings, side by side, of its channels and
its kernel. A forward sweep and then a backward sweep visit the nodes in topological order,

    m_v = sum over neighbours u of MLP(h_u) + sum over virtual edges (u, v) of MLP_ve(h_u) / length
    h_v = GRU(m_v, h_v)

where the neighbours are those before v in the forward, those behind it in the backward sweep. Layer norm; the vector is
the mean over nodes. GHN-2 decodes it into weights of the network; PredictDDL uses it as a description of the network.
This module only evaluates it; benchmarks/papers/predictddl_pretraining.py trains it.
"""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from precision_time.errors import DataError
from precision_time.predictors.predictddl.network import Floats, Ints, Network
from precision_time.predictors.predictddl.paths import levels, levels_from_the_end, path_lengths
from precision_time.predictors.predictddl.primitives import (
    CHANNEL_BINS,
    KERNEL_BINS,
    Primitive,
    channel_bin,
    kernel_bin,
)
from precision_time.shipped import ROOT, shipped_file, write_shipped

WIDTH = 32
"""Numbers of a node's state and of the graph's vector."""
WEIGHTS = ROOT / "predictors/predictddl/data/encoder.npz"
"""The pre-trained encoder that ships; `python -m benchmarks.papers.predictddl_pretraining` makes it again."""
_NORM_EPSILON = 1e-5


@dataclass(frozen=True, slots=True, eq=False)
class Encoder:
    """Arrays of the encoder, named and shaped as the parameters of PyTorch's modules (Linear: outputs x inputs).

    `type_embedding`, `channel_embedding`, `kernel_embedding`; `near` and `far`, perceptrons of two layers (`.0`, `.2`);
    `gru` (reset, update, new); `norm`.
    """

    arrays: Mapping[str, Floats]

    @property
    def width(self) -> int:
        return len(self.arrays["norm.weight"])


def shapes_of(width: int = WIDTH) -> dict[str, tuple[int, ...]]:
    """Name -> shape of the arrays."""
    square, gates = (width, width), (3 * width, width)
    perceptrons = {
        f"{name}.{layer}.{part}": square if part == "weight" else square[:1]
        for name in ("near", "far")
        for layer in (0, 2)
        for part in ("weight", "bias")
    }
    return {
        "type_embedding.weight": (len(Primitive), width),
        "channel_embedding.weight": (CHANNEL_BINS, width // 4),
        "kernel_embedding.weight": (KERNEL_BINS, width // 4),
        **perceptrons,
        "gru.weight_ih": gates,
        "gru.weight_hh": gates,
        "gru.bias_ih": gates[:1],
        "gru.bias_hh": gates[:1],
        "norm.weight": (width,),
        "norm.bias": (width,),
    }


def random_encoder(seed: int = 0, width: int = WIDTH) -> Encoder:
    """An untrained encoder, for the ablation: drawn from the distributions that PyTorch's modules start from."""
    chance = np.random.default_rng(seed)
    arrays: dict[str, Floats] = {}
    for name, shape in shapes_of(width).items():
        if "embedding" in name:
            arrays[name] = chance.normal(size=shape)
        elif name.startswith("norm"):
            arrays[name] = np.full(shape, float(name == "norm.weight"))
        else:
            arrays[name] = chance.uniform(-1.0, 1.0, shape) / np.sqrt(width)
    return Encoder(arrays)


def embed(encoder: Encoder, network: Network) -> Floats:
    """The vector of a network."""
    a, nodes, edges = encoder.arrays, network.nodes, network.edges
    sizes = [table[bins] for table, bins in zip(_size_tables(encoder), size_bins(network).T, strict=True)]
    states = a["type_embedding.weight"][network.types] + np.concatenate(sizes, axis=1)
    lengths = path_lengths(nodes, edges)
    states = _sweep(encoder, states, lengths, levels(nodes, edges))
    states = _sweep(encoder, states, lengths.T, levels_from_the_end(nodes, edges))
    centred = states - states.mean(1, keepdims=True)
    normed = centred / np.sqrt((centred**2).mean(1, keepdims=True) + _NORM_EPSILON)
    return np.asarray((normed * a["norm.weight"] + a["norm.bias"]).mean(0))


def size_bins(network: Network) -> Ints:
    """Bins of in channels, out channels, kernel height and width of every node."""
    bins = [(channel_bin(i), channel_bin(o), kernel_bin(h), kernel_bin(w)) for i, o, h, w in network.shapes.tolist()]
    return np.array(bins, dtype=np.int64).reshape(-1, 4)


def _size_tables(encoder: Encoder) -> tuple[Floats, Floats, Floats, Floats]:
    channels, kernels = encoder.arrays["channel_embedding.weight"], encoder.arrays["kernel_embedding.weight"]
    return channels, channels, kernels, kernels


def _sweep(encoder: Encoder, states: Floats, lengths: Any, level: Ints) -> Floats:
    """One sweep. `lengths` has a row for each node and a column for each node whose messages it may get."""
    near = (lengths == 1).astype(np.float64)
    far = np.where(lengths > 1, 1.0 / np.maximum(lengths, 1), 0.0)
    states, by_near, by_far = states.copy(), np.zeros_like(states), np.zeros_like(states)
    order = np.argsort(level, kind="stable")
    for nodes in np.split(order, np.cumsum(np.bincount(level))[:-1]):
        new = _gru(encoder, near[nodes] @ by_near + far[nodes] @ by_far, states[nodes])
        states[nodes] = new
        by_near[nodes], by_far[nodes] = _perceptron(encoder, "near", new), _perceptron(encoder, "far", new)
    return states


def _linear(encoder: Encoder, name: str, x: Floats, part: str = "") -> Floats:
    a = encoder.arrays
    return np.asarray(x @ a[f"{name}.weight{part}"].T + a[f"{name}.bias{part}"])


def _perceptron(encoder: Encoder, name: str, x: Floats) -> Floats:
    return _linear(encoder, f"{name}.2", np.maximum(_linear(encoder, f"{name}.0", x), 0.0))


def _gru(encoder: Encoder, message: Floats, state: Floats) -> Floats:
    """torch.nn.GRUCell."""
    into, over = _linear(encoder, "gru", message, "_ih"), _linear(encoder, "gru", state, "_hh")
    width = encoder.width
    gates = _sigmoid(into[:, : 2 * width] + over[:, : 2 * width])
    reset, update = gates[:, :width], gates[:, width:]
    new = np.tanh(into[:, 2 * width :] + reset * over[:, 2 * width :])
    return np.asarray((1.0 - update) * new + update * state)


def _sigmoid(x: Floats) -> Floats:
    return np.asarray(0.5 * (1.0 + np.tanh(0.5 * x)))


def save_encoder(encoder: Encoder, path: Path, provenance: Mapping[str, Any]) -> None:
    """Write the arrays, in single precision, and their provenance as one npz."""
    packed = io.BytesIO()
    arrays: dict[str, Any] = {name: array.astype(np.float32) for name, array in encoder.arrays.items()}
    np.savez_compressed(packed, provenance=np.array(json.dumps(provenance, sort_keys=True)), **arrays)
    write_shipped(path, packed.getvalue())


def load_encoder(path: Path | None = None) -> Encoder:
    """Read the encoder of an npz, by default the shipped one. Raises a `DataError` where its shapes are wrong."""
    path = path or shipped_file(WEIGHTS.relative_to(ROOT).as_posix())
    try:
        with np.load(path, allow_pickle=False) as stored:
            arrays = {name: stored[name].astype(np.float64) for name in stored.files if name != "provenance"}
        encoder = Encoder(arrays)
        if {name: array.shape for name, array in arrays.items()} != shapes_of(encoder.width):
            raise ValueError("its arrays have other shapes")
    except (OSError, KeyError, ValueError) as error:
        raise DataError(
            f"encoder weights {path.name!r} cannot be read ({str(error).splitlines()[0]}); make them again with "
            "python -m benchmarks.papers.predictddl_pretraining"
        ) from error
    return encoder
