"""How the zoo's transformers are split over tensor-parallel and expert-parallel ranks, said once per definition.

A rank's part of a model is the same definition with fewer heads, a narrower feed-forward layer and less vocabulary; its
step is traced like any other. What is said here is which words of `model_config` are divided, and which modules of a
block work on divided weights, so that layouts know where ranks have to exchange activations.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any


@dataclass(frozen=True, slots=True)
class Split:
    """tensor      words divided by the tensor-parallel degree (`kv_heads` down to one)
    experts     words divided by the expert-parallel degree
    expert_tensor  words divided by the tensor-parallel degree of the experts
    regions     modules of a block whose weights are divided: ranks exchange activations where data enters and leaves
    moe         of these, those whose tokens travel to experts; own_tokens: each tensor-parallel rank sends its own, as
                experts that are whole (etp 1) under sequence parallelism are sent them
    shared      the module inside it that all tokens pass, divided like any other
    cross       of these, those that also read the other stack's output
    embedding, head  modules outside the blocks that the vocabulary is divided over
    whole       modules outside the blocks that run on all tokens of the sequence also where it is split
    depth       the word that says how many blocks a stack has; stacks: how many stacks
    lengths     input sizes that are lengths of sequences; tokens: words that count tokens of a sequence
    per_head    words that follow from others while they are whole: a head's size is the hidden size over the heads
    context     whether attention is all within one sequence, which context-parallel ranks then share
    """

    tensor: tuple[str, ...]
    regions: tuple[str, ...]
    experts: tuple[str, ...] = ()
    expert_tensor: tuple[str, ...] = ()
    moe: str = "moe"
    own_tokens: bool = False
    shared: str = "shared"
    cross: tuple[str, ...] = ()
    embedding: tuple[str, ...] = ("embedding",)
    head: tuple[str, ...] = ("head",)
    whole: tuple[str, ...] = ()
    depth: str = "layers"
    stacks: int = 1
    lengths: tuple[str, ...] = ("seq_len",)
    tokens: tuple[str, ...] = ()
    per_head: tuple[tuple[str, str, str], ...] = (("head_dim", "hidden", "heads"),)
    context: bool = True


_ENCODER_DECODER = Split(
    tensor=("heads", "ffn", "vocab"),
    regions=("attention", "cross_attention", "ffn"),
    cross=("cross_attention",),
    embedding=("encoder.word",),
    stacks=2,
    lengths=("seq_len", "target_len"),
    context=False,
)
SPLITS: Mapping[str, Split] = {
    "models.decoder:build": Split(
        tensor=("heads", "kv_heads", "ffn", "shared_ffn", "vocab"),
        regions=("attention", "ffn", "moe"),
        experts=("local_experts",),
        expert_tensor=("moe_ffn",),
    ),
    "models.encoder:build": Split(
        tensor=("heads", "ffn", "vocab"),
        regions=("attention", "ffn"),
        embedding=("encoder.embeddings.word",),
        head=("prediction.decoder",),
        tokens=("max_predictions",),
    ),
    # The generator and the discriminator are two stacks one after the other; only pretraining has the first.
    "models.electra:build": Split(
        tensor=("heads", "ffn", "vocab", "generator_heads", "generator_ffn"),
        regions=("attention", "ffn"),
        embedding=("discriminator.encoder.embeddings.word", "encoder.embeddings.word"),
        head=("generator.prediction.decoder",),
        whole=("generator_loss",),
        stacks=2,
        tokens=("max_predictions",),
        per_head=(("head_dim", "hidden", "heads"), ("generator_head_dim", "generator_hidden", "generator_heads")),
    ),
    "models.bart_t5:build_bart": _ENCODER_DECODER,
    "models.bart_t5:build_t5": replace(_ENCODER_DECODER, whole=("encoder.bias", "decoder.bias")),
}
"""By the builder of a zoo entry."""

VOCABULARY_MULTIPLE = 128
"""A divided vocabulary is padded to this many rows per rank (Megatron's make-vocab-size-divisible-by)."""


def whole_config(config: Mapping[str, Any], split: Split) -> dict[str, Any]:
    """With the words that depend on others, so that they stay when these are divided."""
    derived = {word: config[size] // config[heads] for word, size, heads in split.per_head if size in config}
    return {**derived, **config}


def local_config(config: Mapping[str, Any], split: Split, tp: int, ep: int, etp: int, parts: int = 1) -> dict[str, Any]:
    """The `model_config` of one rank, on one of `parts` of the sequence."""
    local = dict(config)
    for word in split.tokens:
        if config.get(word):
            local[word] = -(-config[word] // parts)
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
