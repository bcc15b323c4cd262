"""How the zoo's transformers are split over tensor-parallel and expert-parallel ranks, said once per definition.

A rank's part of a model is the same definition with fewer heads, a narrower feed-forward layer and less vocabulary; its
step is traced like any other. What is said here is which words of `model_config` are divided, and which modules of a
block work on divided weights, so that layouts know where ranks have to exchange activations.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Split:
    """tensor      words divided by the tensor-parallel degree (`kv_heads` down to one)
    experts     words divided by the expert-parallel degree
    expert_tensor  words divided by the tensor-parallel degree of the experts
    regions     modules of a block whose weights are divided: ranks exchange activations where data enters and leaves
    moe         of these, those whose tokens travel to experts
    embedding, head  modules outside the blocks that the vocabulary is divided over
    depth       the word that says how many blocks there are
    """

    tensor: tuple[str, ...]
    regions: tuple[str, ...]
    experts: tuple[str, ...] = ()
    expert_tensor: tuple[str, ...] = ()
    moe: str = "moe"
    embedding: str = "embedding"
    head: str = "head"
    depth: str = "layers"


SPLITS: Mapping[str, Split] = {
    "models.decoder:build": Split(
        tensor=("heads", "kv_heads", "ffn", "shared_ffn", "vocab"),
        regions=("attention", "ffn", "moe"),
        experts=("local_experts",),
        expert_tensor=("moe_ffn",),
    ),
}
"""By the builder of a zoo entry."""

VOCABULARY_MULTIPLE = 128
"""A divided vocabulary is padded to this many rows per rank (Megatron's make-vocab-size-divisible-by)."""


def local_config(config: Mapping[str, Any], split: Split, tp: int, ep: int, etp: int) -> dict[str, Any]:
    """The `model_config` of one rank."""
    local = dict(config)
    for word in split.tensor:
        if config.get(word):
            local[word] = _divided(word, config[word], tp)
    for word in split.expert_tensor:
        if config.get(word):
            local[word] = -(-config[word] // etp)
    if config.get("experts"):
        held = config.get("local_experts") or config["experts"]
        for word in split.experts:
            local[word] = -(-held // ep)
    return local


def _divided(word: str, value: int, tp: int) -> int:
    if word == "kv_heads":
        return max(1, value // tp)
    if word == "vocab" and value % tp:
        multiple = VOCABULARY_MULTIPLE * tp
        return -(-value // multiple) * multiple // tp
    return -(-value // tp)


def indivisible(config: Mapping[str, Any], split: Split, tp: int, ep: int) -> tuple[str, int] | None:
    """The first word that a degree does not divide, with its value; None where all do."""
    for word in split.tensor:
        value = config.get(word)
        if value and word not in ("vocab", "kv_heads") and value % tp:
            return word, value
    kv = config.get("kv_heads")
    if kv and max(kv, tp) % min(kv, tp):
        return "kv_heads", kv
    experts = config.get("experts")
    return ("experts", experts) if experts and experts % ep else None
