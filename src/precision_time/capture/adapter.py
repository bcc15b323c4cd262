"""An adapter of low rank beside a linear layer: the calls that it adds to a traced step (LoRA, arXiv:2106.09685).

It adds B(A(dropout(x))) x scaling to the result of the layer, in the order of peft's `lora.Linear.forward`
(peft/tuners/lora/layer.py): the scaling is a pass over the whole result.
"""

from __future__ import annotations

from dataclasses import replace

from precision_time.capture.graph import Call, Category, OpSignature, Parameter, Phase, TensorSpec
from precision_time.capture.graph_edit import GraphEdit
from precision_time.capture.linear_layers import OPERANDS, LinearLayer
from precision_time.job.lora import Lora

Made = tuple[OpSignature, Call]
"""A call with its operator, as it is inserted."""


class Adapter:
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
        self.sides = {"lora_a": (lora.rank, self.inputs), "lora_b": (self.outputs, lora.rank)}
        self.weights: dict[str, int] = {}
        """Storages of the matrices, whose rows and columns are `sides`."""

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
        gradients = {}
        for name, shape in self.sides.items():
            spec = self._weight(*shape, self.parameter_dtype)
            self.weights[name], gradients[name] = self._trained(f"{name}.weight", spec)
        kept = self._forward()
        if self.layer.backward is not None:
            self._backward(kept, gradients)

    def _trained(self, name: str, spec: TensorSpec) -> tuple[int, int]:
        """A new weight beside the layer's, and its gradient."""
        gradient = self.edit.storage(replace(spec, dtype=self.gradient_dtype), Category.GRADIENTS)
        made = Parameter(f"{self.layer.path}.{name}", spec.shape, spec.dtype, self.gradient_dtype, -1)
        return self.edit.parameter(made, gradient), gradient

    def _forward(self) -> dict[str, int]:
        """The calls after the layer's product; what they keep for the backward pass, by name."""
        edit, rank, forward = self.edit, self.lora.rank, Phase.FORWARD
        calls: list[Made] = []
        kept = dict(self.weights)
        x, wide = self.layer.source, self._matrix(self.rows, self.inputs, dtype=self.source_dtype)
        if self.lora.dropout:
            mask = replace(wide, dtype="bool")
            dropped, kept["mask"] = edit.storage(wide), edit.storage(mask)
            kind = OpSignature("aten.native_dropout", (wide,), (wide, mask), _dropout(self.lora.dropout))
            calls.append((kind, self._call(forward, (x,), (dropped, kept["mask"]), 1)))
            x = dropped
        self._prepare(calls, kept, x)
        if self.layer.casts:
            narrow = self._matrix(self.rows, self.inputs)
            calls.append(self._cast(forward, x, x := edit.storage(narrow), wide, narrow))
        kept["x"] = x
        low, high = self._matrix(self.rows, rank), self.out
        kept["low"], kept["high"] = edit.storage(low), edit.storage(high)
        for name, reads, into, before, after in (
            ("lora_a", x, kept["low"], self._matrix(self.rows, self.inputs), low),
            ("lora_b", kept["low"], kept["high"], low, high),
        ):
            weight = self._narrowed(name, calls, kept)
            calls.append((self._product(before, weight, after), self._call(forward, (reads, kept[name]), (into,))))
        alone = edit.storage(self.out)
        self._sum(calls, kept, alone, self.product.writes[0])
        edit.change(self.layer.forward, call=replace(edit.at(self.layer.forward).call, writes=(alone,)))
        edit.after(self.layer.forward, calls)
        return kept

    def _prepare(self, calls: list[Made], kept: dict[str, int], x: int) -> None:
        """What runs before the products of the adapter, whose input is `x` before it is cast."""

    def _narrowed(self, name: str, calls: list[Made], kept: dict[str, int]) -> TensorSpec:
        """A matrix of the adapter in the dtype of its products, to which it is cast once."""
        weight = self._weight(*self.sides[name], self.dtype)
        if self.parameter_dtype != self.dtype and kept[name] == self.weights[name]:
            kept[name] = self.edit.storage(weight)
            before = replace(weight, dtype=self.parameter_dtype)
            calls.append(self._cast(Phase.FORWARD, self.weights[name], kept[name], before, weight))
        return weight

    def _sum(self, calls: list[Made], kept: dict[str, int], alone: int, result: int) -> None:
        """The scaled result of the adapter added to that of the layer alone."""
        high, scaled = self.out, self.edit.storage(self.out)
        self._pass(calls, Phase.FORWARD, "mul", (kept["high"],), scaled, (high,), high)
        self._pass(calls, Phase.FORWARD, "add", (alone, scaled), result, (high, high), high)

    def _pass(
        self,
        calls: list[Made],
        phase: Phase,
        name: str,
        reads: tuple[int, ...],
        writes: int,
        before: tuple[TensorSpec, ...],
        after: TensorSpec,
    ) -> None:
        """A pass over tensors."""
        calls.append((OpSignature(f"aten.{name}", before, (after,)), self._call(phase, reads, (writes,), 1)))

    def _backward(self, kept: dict[str, int], gradients: dict[str, int]) -> None:
        """The calls before the product that gives the gradient of the layer's input, and the sum after it."""
        edit, rank, at = self.edit, self.lora.rank, self.layer.backward
        assert at is not None
        product = edit.graph.calls[at]
        incoming = product.reads[OPERANDS[edit.graph.kinds[product.kind].name]]
        low, high, wide = self._matrix(self.rows, rank), self.out, self._matrix(self.rows, self.inputs)
        of_low, of_x = edit.storage(low), edit.storage(wide)
        back = Phase.BACKWARD
        calls: list[Made] = []
        scaled = self._entering(calls, kept, incoming)
        for name, gradient, of, into, before, after in (
            ("lora_b", scaled, "low", of_low, high, low),
            ("lora_a", of_low, "x", of_x, low, wide),
        ):
            calls += self._weight_gradient(name, gradient, kept[of], gradients[name], before, after)
            weight = self._transposed(*self.sides[name])
            calls.append((self._product(before, weight, after), self._call(back, (gradient, kept[name]), (into,))))
        final, total = of_x, product.writes[0]
        end = at
        spec = wide
        if self.layer.casts:
            spec = replace(wide, dtype=self.source_dtype)
            calls.append(self._cast(back, of_x, final := edit.storage(spec), wide, spec))
            end, total = self._cast_after(at)
        final = self._ending(calls, kept, final, spec)
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

    def _entering(self, calls: list[Made], kept: dict[str, int], incoming: int) -> int:
        """The gradient of the adapter's result, from that of the layer's."""
        scaled = self.edit.storage(self.out)
        self._pass(calls, Phase.BACKWARD, "mul", (incoming,), scaled, (self.out,), self.out)
        return scaled

    def _ending(self, calls: list[Made], kept: dict[str, int], of_x: int, spec: TensorSpec) -> int:
        """The gradient of what went into the adapter, from that through its products."""
        return of_x

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
    ) -> list[Made]:
        weight = self._weight(*self.sides[name], self.dtype)
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

    def _cast(self, phase: Phase, reads: int, writes: int, before: TensorSpec, after: TensorSpec) -> Made:
        return OpSignature("aten._to_copy", (before,), (after,)), self._call(phase, (reads,), (writes,), 0)


def _dropout(probability: float) -> tuple[tuple[str, float | bool], ...]:
    return (("p", probability), ("train", True))
