"""LoRA and QLoRA: a traced step with adapters of low rank beside its linear layers and all other weights frozen.

Frozen weights get no gradient, so the product for it is left out, and so is whatever leads to no adapter.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from precision_time.capture.adapter import Adapter
from precision_time.capture.dora import Dora
from precision_time.capture.graph import OpGraph, Parameter
from precision_time.capture.graph_edit import GraphEdit
from precision_time.capture.linear_layers import LinearLayer, linear_layers
from precision_time.capture.quantized_weights import quantize
from precision_time.errors import JobError, nearest
from precision_time.job.lora import ALL_LINEAR, ATTENTION, Lora

_ATTENTION = re.compile(r"attention|attn|self_attn|self_attention|mixer")
_NAMES = {
    "query": ("q_proj", "wq", "linear_qkv"),
    "key": ("k_proj", "wk", "linear_qkv"),
    "value": ("v_proj", "wv", "linear_qkv"),
    "qkv": ("qkv_proj", "c_attn", "query_key_value", "Wqkv", "wqkv", "linear_qkv"),
    "output": ("o_proj", "out_proj", "wo", "linear_proj", "output_proj", "c_proj"),
    "gate": ("gate_proj", "w1", "gate_up_proj", "linear_fc1"),
    "up": ("up_proj", "w3", "fc1", "c_fc", "fc_in", "gate_up_proj", "linear_fc1"),
    "down": ("down_proj", "w2", "fc2", "fc_out", "linear_fc2", "c_proj"),
    "q_down": ("q_a_proj",), "q_up": ("q_b_proj", "q_proj"),
    "kv_down": ("kv_a_proj_with_mqa",), "kv_up": ("kv_b_proj",),
}  # fmt: skip
"""Last part of a layer's name in this zoo -> what peft, Megatron-Bridge or torchtune call it. A name of one layer that
is several here (linear_qkv, gate_up_proj) gives each its own adapter."""


_MODULES = {
    "embedding": ("embed_tokens", "wte", "word_embeddings", "tok_embeddings", "embeddings"),
    "head": ("lm_head", "output", "score", "embed_out"),
    "norm": ("ln_f", "final_layernorm"),
}
"""A module outside of the blocks in this zoo -> what others call it."""


def with_adapters(graph: OpGraph, lora: Lora, quantized: str | None = None) -> OpGraph:
    """The step in which only adapters are trained. Raises `JobError` where the model lacks a target."""
    if any(".lora_" in p.name for p in graph.parameters):
        raise JobError(
            f"lora adds adapters, and {graph.name} has its own; leave lora out, or name the model without adapters"
        )
    layers = linear_layers(graph)
    targets = _targets(layers, lora, graph.name)
    edit = GraphEdit(graph)
    for layer in layers:
        if layer in targets:
            (Dora(edit, layer, lora, quantized) if lora.dora else Adapter(edit, layer, lora)).insert()
        if quantized:
            quantize(edit, layer, quantized)
    _train_whole(edit, lora)
    _train_biases(edit, lora, {f"{layer.path}.bias" for layer in targets})
    return edit.finish()


def _train_whole(edit: GraphEdit, lora: Lora) -> None:
    """Leave modules trained whole. Their original is kept beside (peft's ModulesToSaveWrapper)."""
    graph = edit.graph
    owners = [p.name.rpartition(".")[0].rpartition(".")[2] for p in graph.parameters]
    tied = "head" not in owners
    for name in lora.modules_to_save:
        found = [i for i, owner in enumerate(owners) if owner == name or name in _MODULES.get(owner, ())]
        if tied and name in _MODULES["head"]:
            found = [i for i, owner in enumerate(owners) if owner == "embedding"]
        if not found:
            raise JobError(
                f"lora.modules_to_save {name!r} is no module of {graph.name} with weights; nearest: "
                f"{nearest(name, list(dict.fromkeys(owners)))}; use names such as embed_tokens, lm_head"
            )
        for i in found:
            p = graph.parameters[i]
            edit.train(i)
            edit.parameter(Parameter(f"{p.name.rpartition('.')[0]}.original", p.shape, p.dtype, p.grad_dtype, -1), None)


def _train_biases(edit: GraphEdit, lora: Lora, adapted: set[str]) -> None:
    """Leave biases trained: all of the model, or those of layers with an adapter."""
    for i, parameter in enumerate(edit.graph.parameters):
        wanted = parameter.name in adapted if lora.bias == "lora_only" else parameter.name.endswith(".bias")
        if wanted and lora.bias != "none":
            edit.train(i)


def _targets(layers: Sequence[LinearLayer], lora: Lora, model: str) -> list[LinearLayer]:
    chosen: dict[int, LinearLayer] = {}
    for target in lora.targets:
        found = [layer for layer in layers if _is(layer, target)]
        if not found:
            names = list(dict.fromkeys(layer.name for layer in layers))
            raise JobError(
                f"lora.targets {target!r} is no linear layer of {model}; nearest: {nearest(target, names)}; "
                f"use all-linear, attention or names of {', '.join(names)}"
            )
        chosen.update((layer.forward, layer) for layer in found)
    return list(chosen.values())


def _is(layer: LinearLayer, target: str) -> bool:
    if target == ALL_LINEAR:
        return True
    if target == ATTENTION:
        return any(_ATTENTION.fullmatch(part) for part in layer.path.split(".")[:-1])
    return layer.name == target or target in _NAMES.get(layer.name, ())
