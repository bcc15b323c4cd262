"""LoRA and QLoRA: a traced step with adapters of low rank beside its linear layers and all other weights frozen.

An adapter (arXiv:2106.09685) adds B(A(dropout(x))) x scaling to the result of a linear layer, in the order of peft's
`lora.Linear.forward` (peft/tuners/lora/layer.py): the scaling is a pass over the whole result. Frozen weights get no
gradient, so the product for it is left out, and so is whatever leads to no adapter.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from precision_time.capture.graph import Call, Category, OpGraph, OpSignature, Parameter, Phase, TensorSpec
from precision_time.capture.graph_edit import GraphEdit
from precision_time.capture.linear_layers import OPERANDS, LinearLayer, linear_layers
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
            _Adapter(edit, layer, lora).insert()
        if quantized:
            quantize(edit, layer, quantized)
    _train_whole(edit, lora)
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


class _Adapter:
    """The calls of one adapter."""

    def __init__(self, edit: GraphEdit, layer: LinearLayer, lora: Lora) -> None:
        self.edit, self.layer, self.lora = edit, layer, lora
        graph = edit.graph
        self.product = graph.calls[layer.forward]
        kind = graph.kinds[self.product.kind]
        at = OPERANDS[kind.name]
        self.grouped = kind.name == "pt.grouped_mm"
        x, weight, self.out = kind.inputs[at], kind.inputs[at + 1], kind.outputs[0]
        self.rows, self.inputs, self.outputs, self.dtype = x.shape[0], x.shape[1], self.out.shape[1], x.dtype
        self.groups = weight.shape[:1] if self.grouped else ()
        parameter = graph.parameters[layer.parameter]
        self.parameter_dtype, self.gradient_dtype = parameter.dtype, parameter.grad_dtype
        self.source_dtype = self._source_dtype()

    def _source_dtype(self) -> str:
        graph = self.edit.graph
        if not self.layer.casts:
            return self.dtype
        of = self.product.reads[OPERANDS[graph.kinds[self.product.kind].name]]
        return next(graph.kinds[c.kind].inputs[0].dtype for c in graph.calls if of in c.writes)

    def _matrix(self, *sides: int, dtype: str | None = None) -> TensorSpec:
        return TensorSpec(sides, dtype or self.dtype)

    def _weight(self, rows: int, columns: int, dtype: str) -> TensorSpec:
        """Of shape (groups, inputs, outputs) or, as torch's, (outputs, inputs)."""
        return TensorSpec((*self.groups, columns, rows) if self.grouped else (rows, columns), dtype)

    def _call(self, phase: Phase, reads: tuple[int, ...], writes: tuple[int, ...], views: int = 2) -> Call:
        return Call(0, phase, self.product.module, views, reads, writes)

    def insert(self) -> None:
        """Parameters, forward and backward calls of the adapter."""
        edit, rank = self.edit, self.lora.rank
        sides = {"lora_a": (rank, self.inputs), "lora_b": (self.outputs, rank)}
        specs = {name: self._weight(*shape, self.parameter_dtype) for name, shape in sides.items()}
        gradients = {
            name: edit.storage(self._weight(*shape, self.gradient_dtype), Category.GRADIENTS)
            for name, shape in sides.items()
        }
        weights = {}
        for name, spec in specs.items():
            full = f"{self.layer.path}.{name}.weight"
            made = Parameter(full, spec.shape, spec.dtype, self.gradient_dtype, -1)
            weights[name] = edit.parameter(made, gradients[name])
        kept = self._forward(weights, sides)
        if self.layer.backward is not None:
            self._backward(kept, gradients, sides)

    def _forward(self, weights: dict[str, int], sides: dict[str, tuple[int, int]]) -> dict[str, int]:
        """The calls after the layer's product; what they keep for the backward pass, by name."""
        edit, rank, forward = self.edit, self.lora.rank, Phase.FORWARD
        calls: list[tuple[OpSignature, Call]] = []
        kept = dict(weights)
        x, wide = self.layer.source, self._matrix(self.rows, self.inputs, dtype=self.source_dtype)
        if self.lora.dropout:
            mask = replace(wide, dtype="bool")
            dropped, kept["mask"] = edit.storage(wide), edit.storage(mask)
            kind = OpSignature("aten.native_dropout", (wide,), (wide, mask), _dropout(self.lora.dropout))
            calls.append((kind, self._call(forward, (x,), (dropped, kept["mask"]), 1)))
            x = dropped
        if self.layer.casts:
            narrow = self._matrix(self.rows, self.inputs)
            calls.append(self._cast(forward, x, x := edit.storage(narrow), wide, narrow))
        kept["x"] = x
        low, high = self._matrix(self.rows, rank), self.out
        kept["low"] = edit.storage(low)
        for name, reads, into, before, after in (
            ("lora_a", x, kept["low"], self._matrix(self.rows, self.inputs), low),
            ("lora_b", kept["low"], edit.storage(high), low, high),
        ):
            weight = self._weight(*sides[name], self.dtype)
            if self.parameter_dtype != self.dtype:
                kept[name] = edit.storage(weight)
                calls.append(
                    self._cast(forward, weights[name], kept[name], replace(weight, dtype=self.parameter_dtype), weight)
                )
            calls.append((self._product(before, weight, after), self._call(forward, (reads, kept[name]), (into,))))
        scaled, alone = edit.storage(high), edit.storage(self.out)
        result = self.product.writes[0]
        calls.append((OpSignature("aten.mul", (high,), (high,)), self._call(forward, (into,), (scaled,), 1)))
        calls.append(
            (OpSignature("aten.add", (high, high), (high,)), self._call(forward, (alone, scaled), (result,), 1))
        )
        edit.change(self.layer.forward, call=replace(edit.at(self.layer.forward).call, writes=(alone,)))
        edit.after(self.layer.forward, calls)
        return kept

    def _backward(self, kept: dict[str, int], gradients: dict[str, int], sides: dict[str, tuple[int, int]]) -> None:
        """The calls before the product that gives the gradient of the layer's input, and the sum after it."""
        edit, rank, at = self.edit, self.lora.rank, self.layer.backward
        assert at is not None
        product = edit.graph.calls[at]
        incoming = product.reads[OPERANDS[edit.graph.kinds[product.kind].name]]
        low, high, wide = self._matrix(self.rows, rank), self.out, self._matrix(self.rows, self.inputs)
        scaled, of_low, of_x = edit.storage(high), edit.storage(low), edit.storage(wide)
        back = Phase.BACKWARD
        calls = [(OpSignature("aten.mul", (high,), (high,)), self._call(back, (incoming,), (scaled,), 1))]
        for name, gradient, of, into, before, after in (
            ("lora_b", scaled, "low", of_low, high, low),
            ("lora_a", of_low, "x", of_x, low, wide),
        ):
            calls += self._weight_gradient(name, gradient, kept[of], gradients[name], before, after, sides)
            weight = self._transposed(*sides[name])
            calls.append((self._product(before, weight, after), self._call(back, (gradient, kept[name]), (into,))))
        final, total = of_x, product.writes[0]
        end = at
        spec = wide
        if self.layer.casts:
            spec = replace(wide, dtype=self.source_dtype)
            calls.append(self._cast(back, of_x, final := edit.storage(spec), wide, spec))
            end, total = self._cast_after(at)
        if self.lora.dropout:
            undone, mask = edit.storage(spec), replace(spec, dtype="bool")
            kind = OpSignature("aten.native_dropout_backward", (spec, mask), (spec,))
            calls.append((kind, self._call(back, (final, kept["mask"]), (undone,), 1)))
            final = undone
        edit.before(at, calls)
        alone = edit.storage(spec)
        edit.change(end, call=replace(edit.at(end).call, writes=(alone,)))
        edit.after(
            end, [(OpSignature("aten.add", (spec, spec), (spec,)), self._call(back, (final, alone), (total,), 1))]
        )

    def _cast_after(self, at: int) -> tuple[int, int]:
        """The call that casts the gradient of the layer's input back, and what it writes."""
        graph, own = self.edit.graph, self.edit.graph.calls[at].writes[0]
        for i in range(at + 1, len(graph.calls)):
            call = graph.calls[i]
            if own in call.reads:
                return (i, call.writes[0]) if graph.kinds[call.kind].name == "aten._to_copy" else (at, own)
        return at, own

    def _weight_gradient(
        self,
        name: str,
        gradient: int,
        x: int,
        into: int,
        before: TensorSpec,
        after: TensorSpec,
        sides: dict[str, tuple[int, int]],
    ) -> list[tuple[OpSignature, Call]]:
        weight = self._weight(*sides[name], self.dtype)
        if self.grouped:
            attrs = (("groups", self.groups[0]),)
            kind = OpSignature("pt.grouped_mm_weight", (before, after), (weight,), attrs)
        else:
            kind = OpSignature("aten.mm", (self._matrix(*before.shape[::-1]), after), (weight,))
        if self.gradient_dtype == self.dtype:
            return [(kind, self._call(Phase.BACKWARD, (gradient, x), (into,)))]
        narrow = self.edit.storage(weight)
        cast = self._cast(Phase.BACKWARD, narrow, into, weight, replace(weight, dtype=self.gradient_dtype))
        return [(kind, self._call(Phase.BACKWARD, (gradient, x), (narrow,))), cast]

    def _product(self, x: TensorSpec, weight: TensorSpec, out: TensorSpec) -> OpSignature:
        """x times a weight, seen as (inputs, outputs)."""
        if self.grouped:
            seen = TensorSpec((self.groups[0], x.shape[1], out.shape[1]), weight.dtype)
            return OpSignature("pt.grouped_mm", (x, seen), (out,))
        return OpSignature("aten.mm", (x, self._matrix(x.shape[1], out.shape[1])), (out,))

    def _transposed(self, rows: int, columns: int) -> TensorSpec:
        return self._weight(columns, rows, self.dtype)

    def _cast(
        self, phase: Phase, reads: int, writes: int, before: TensorSpec, after: TensorSpec
    ) -> tuple[OpSignature, Call]:
        return OpSignature("aten._to_copy", (before,), (after,)), self._call(phase, (reads,), (writes,), 0)


def _dropout(probability: float) -> tuple[tuple[str, float | bool], ...]:
    return (("p", probability), ("train", True))
