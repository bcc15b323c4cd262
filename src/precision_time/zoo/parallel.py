"""How the transformers of the zoo are split over tensor-parallel and expert-parallel ranks, one `Split` per builder.

A rank's part of a model is the same model with fewer heads, a narrower feed-forward layer and less vocabulary; its step
is traced like any other. A `Split` lists the keys of `model_config` that are divided, and the modules of a block whose
weights are divided, where layouts place the exchange of activations.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any


@dataclass(frozen=True, slots=True)
class Split:
    """How a model is divided. "Keys" are keys of `model_config`, "modules" names of submodules.

    tensor         keys divided by the tensor-parallel degree (`kv_heads` down to one)
    experts        keys divided by the expert-parallel degree
    expert_tensor  keys divided by the tensor-parallel degree of the experts
    regions        modules of a block with divided weights: ranks exchange activations at their input and output
    moe            the region whose tokens are dispatched to experts
    own_tokens     whether each tensor-parallel rank dispatches its own tokens (whole experts, etp 1, with sp)
    shared         the module inside `moe` that all tokens pass, divided like any other
    cross          regions that also read the output of the other stack
    embedding, head  modules outside the blocks over which the vocabulary is divided
    whole          modules outside the blocks that run on all tokens, also where the sequence is split
    depth, stacks  key of the number of blocks in a stack, and the number of stacks
    lengths        input sizes that are lengths of sequences
    tokens         keys that count tokens of a sequence
    per_head       (key, size, heads): keys that are size / heads of the whole model where they are not given
    context        whether all attention is within one sequence, which context-parallel ranks can then split
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
DECODER = "models.decoder:build"
"""The builder of decoders."""
SPLITS: Mapping[str, Split] = {
    DECODER: Split(
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
"""Builder of a zoo entry -> how its model is divided."""

VOCABULARY_MULTIPLE = 128
"""A divided vocabulary is padded to this many rows per rank (Megatron's make-vocab-size-divisible-by)."""


def whole_config(config: Mapping[str, Any], split: Split) -> dict[str, Any]:
    """The `model_config` with the keys that follow from others filled in, so that dividing these leaves them alone."""
    derived = {key: config[size] // config[heads] for key, size, heads in split.per_head if size in config}
    return {**derived, **config}


def local_config(config: Mapping[str, Any], split: Split, tp: int, ep: int, etp: int, parts: int = 1) -> dict[str, Any]:
    """The `model_config` of one rank that holds one of `parts` parts of the sequence."""
    local = dict(config)
    for key in split.tokens:
        if config.get(key):
            local[key] = -(-config[key] // parts)
    for key in split.tensor:
        if config.get(key):
            local[key] = _divided(key, config[key], tp)
    for key in split.expert_tensor:
        if config.get(key):
            local[key] = -(-config[key] // etp)
    if config.get("experts"):
        held = config.get("local_experts") or config["experts"]
        for key in split.experts:
            local[key] = -(-held // ep)
    return local


def _divided(key: str, value: int, tp: int) -> int:
    if key == "kv_heads":
        return max(1, value // tp)
    if key == "vocab" and value % tp:
        multiple = VOCABULARY_MULTIPLE * tp
        return -(-value // multiple) * multiple // tp
    return -(-value // tp)


def indivisible(config: Mapping[str, Any], split: Split, tp: int, ep: int) -> tuple[str, int] | None:
    """The first key whose value is not a multiple of its degree, with that value; None if there is none."""
    for key in split.tensor:
        value = config.get(key)
        if value and key not in ("vocab", "kv_heads") and value % tp:
            return key, value
    kv = config.get("kv_heads")
    if kv and max(kv, tp) % min(kv, tp):
        return "kv_heads", kv
    experts = config.get("experts")
    return ("experts", experts) if experts and experts % ep else None
