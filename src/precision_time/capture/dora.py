"""DoRA (arXiv:2402.09353): an adapter that also trains the length of each row of the layer's weight.

The layer gives m / ||W + s B A|| x (W x + s B A x), with one magnitude m an output; the norms count as constants in the
backward pass (section 4.3 of the paper). The order of operations is that of peft (peft/tuners/lora/dora.py,
`DoraLinearLayer.forward`, 0.21): B A as the two products of an identity matrix, the sum with the whole weight and its
norms, in the dtype of the adapter; then passes over the layer's result. With dropout the layer's product is computed a
second time, of what dropout left. Quantized weights are dequantized once more for the norms.

The cast of the layer's input to the dtype of the adapter, which peft makes where they differ, is left out, as in LoRA.
"""

from __future__ import annotations

from dataclasses import replace

from precision_time.capture.adapter import Adapter, Made
from precision_time.capture.graph import OpSignature, Phase, TensorSpec
from precision_time.capture.graph_edit import GraphEdit
from precision_time.capture.linear_layers import LinearLayer
from precision_time.capture.quantized_weights import whole_weight
from precision_time.errors import JobError
from precision_time.job.lora import Lora

_FORWARD, _BACKWARD = Phase.FORWARD, Phase.BACKWARD


class Dora(Adapter):
    """The calls of one adapter with magnitudes. `quantized`: the format of the layer's weight."""

    def __init__(self, edit: GraphEdit, layer: LinearLayer, lora: Lora, quantized: str | None) -> None:
        super().__init__(edit, layer, lora)
        if self.grouped:
            raise JobError(f"lora.dora has no form for the experts {layer.name!r}; leave them out of lora.targets")
        self.quantized = quantized
        self.row = TensorSpec((1, self.outputs), self.parameter_dtype)
        self.passes = replace(self.out, dtype=self.parameter_dtype)
        """The layer's result times magnitudes: in the dtype of these, which is at least as wide."""
        self.mixed = self.parameter_dtype != self.out.dtype

    def insert(self) -> None:
        spec = TensorSpec((self.outputs,), self.parameter_dtype)
        self.magnitude, self.magnitude_gradient = self._trained("lora_magnitude", spec)
        super().insert()

    def _prepare(self, calls: list[Made], kept: dict[str, int], x: int) -> None:
        """The norms of the rows of W + s B A, the factors that follow, and with dropout the layer's product again."""
        rank, square = self.lora.rank, TensorSpec((self.inputs, self.inputs), self.parameter_dtype)
        eye = self.edit.storage(square)
        calls.append((OpSignature("aten.eye", (), (square,)), self._call(_FORWARD, (), (eye,), 0)))
        seen = replace(square, dtype=self.dtype)
        eye = self._as(calls, _FORWARD, eye, square, seen)
        a, b = self._matrix(self.inputs, rank), self._matrix(self.inputs, self.outputs)
        for name, before, after in (("lora_a", seen, a), ("lora_b", a, b)):
            matrix = self._narrowed(name, calls, kept)
            made = self.edit.storage(after)
            calls.append((self._product(before, matrix, after), self._call(_FORWARD, (eye, kept[name]), (made,))))
            eye = made
        whole = replace(b, dtype=self.parameter_dtype)
        product = self._as(calls, _FORWARD, eye, b, whole)
        weight = self._dense(calls)
        vector = TensorSpec((self.outputs,), self.parameter_dtype)
        scaled, total, kept["norm"], kept["factor"] = (self.edit.storage(s) for s in (whole, whole, vector, vector))
        self._pass(calls, _FORWARD, "mul", (product,), scaled, (whole,), whole)
        self._pass(calls, _FORWARD, "add", (weight, scaled), total, (whole, whole), whole)
        rows = TensorSpec((self.outputs, self.inputs), whole.dtype)
        norm = OpSignature("aten.linalg_vector_norm", (rows,), (vector,), (("dim", (1,)),))
        calls.append((norm, self._call(_FORWARD, (total,), (kept["norm"],), 0)))
        self._pass(calls, _FORWARD, "div", (self.magnitude, kept["norm"]), kept["factor"], (vector, vector), vector)
        if self.lora.dropout:
            self._base_again(calls, kept, x, weight, whole)

    def _dense(self, calls: list[Made]) -> int:
        """The layer's weight in the dtype of the adapter."""
        if self.quantized is None:
            return self.layer.parameter
        spec, made, wide = whole_weight(self.edit, self.layer, self.quantized)
        calls += made
        return self._as(calls, _FORWARD, wide, spec, replace(spec, dtype=self.parameter_dtype))

    def _base_again(self, calls: list[Made], kept: dict[str, int], x: int, weight: int, whole: TensorSpec) -> None:
        """The layer's product of what dropout left, without its bias."""
        wide, narrow = (
            self._matrix(self.rows, self.inputs, dtype=self.source_dtype),
            self._matrix(self.rows, self.inputs),
        )
        x = self._as(calls, _FORWARD, x, wide, narrow)
        kept["weight"] = self._as(calls, _FORWARD, weight, whole, replace(whole, dtype=self.dtype))
        kept["base"] = self.edit.storage(self.out)
        seen = self._matrix(self.inputs, self.outputs)
        kind = OpSignature("aten.mm", (narrow, seen), (self.out,))
        calls.append((kind, self._call(_FORWARD, (x, kept["weight"]), (kept["base"],))))

    def _sum(self, calls: list[Made], kept: dict[str, int], alone: int, result: int) -> None:
        """(factor - 1) x base + factor x adapter x s, added to the layer's result."""
        base = self.out
        if "base" not in kept:
            kept["base"], base = self._without_bias(calls, alone)
        kept["less"] = self.edit.storage(self.row)
        self._pass(calls, _FORWARD, "sub", (kept["factor"],), kept["less"], (self.row,), self.row)
        of_base, of_adapter, scaled, total = (self.edit.storage(self.passes) for _ in range(4))
        over = self.passes
        self._pass(calls, _FORWARD, "mul", (kept["less"], kept["base"]), of_base, (self.row, base), over)
        self._pass(calls, _FORWARD, "mul", (kept["factor"], kept["high"]), of_adapter, (self.row, self.out), over)
        self._pass(calls, _FORWARD, "mul", (of_adapter,), scaled, (over,), over)
        self._pass(calls, _FORWARD, "add", (of_base, scaled), total, (over, over), over)
        into = self.edit.storage(over) if self.mixed else result
        self._pass(calls, _FORWARD, "add", (alone, total), into, (self.out, over), over)
        if self.mixed:
            calls.append(self._cast(_FORWARD, into, result, over, self.out))

    def _without_bias(self, calls: list[Made], alone: int) -> tuple[int, TensorSpec]:
        """The layer's result less its bias, which DoRA does not scale."""
        names = [p.name for p in self.edit.graph.parameters]
        bias = f"{self.layer.path}.bias"
        if bias not in names:
            return alone, self.out
        base = self.edit.storage(self.passes)
        vector = TensorSpec((self.outputs,), self.parameter_dtype)
        self._pass(calls, _FORWARD, "sub", (alone, names.index(bias)), base, (self.out, vector), self.passes)
        return base, self.passes

    def _entering(self, calls: list[Made], kept: dict[str, int], incoming: int) -> int:
        """The gradients of the adapter's result and of the magnitudes, and what the layer's own gradient gets."""
        over, edit = self.passes, self.edit
        wide = self._as(calls, _BACKWARD, incoming, self.out, over)
        own = self._as(calls, _BACKWARD, wide, over, self.out) if self.mixed else incoming
        scaled, of_adapter, by_adapter, of_base, by_base = (edit.storage(over) for _ in range(5))
        sums = [edit.storage(self.row) for _ in range(3)]
        self._pass(calls, _BACKWARD, "mul", (wide,), scaled, (over,), over)
        self._pass(calls, _BACKWARD, "mul", (scaled, kept["factor"]), of_adapter, (over, self.row), over)
        self._pass(calls, _BACKWARD, "mul", (scaled, kept["high"]), by_adapter, (over, self.out), over)
        self._row_sum(calls, by_adapter, sums[0])
        of_adapter = self._as(calls, _BACKWARD, of_adapter, over, self.out)
        base = self.out if "weight" in kept or not self._has_bias() else over
        self._pass(calls, _BACKWARD, "mul", (wide, kept["less"]), of_base, (over, self.row), over)
        self._pass(calls, _BACKWARD, "mul", (wide, kept["base"]), by_base, (over, base), over)
        self._row_sum(calls, by_base, sums[1])
        kept["of_base"] = self._as(calls, _BACKWARD, of_base, over, self.out)
        if "weight" not in kept:
            whole = edit.storage(self.out)
            self._pass(calls, _BACKWARD, "add", (own, kept["of_base"]), whole, (self.out, self.out), self.out)
            own = whole
        self._pass(calls, _BACKWARD, "add", (sums[0], sums[1]), sums[2], (self.row, self.row), self.row)
        kept["sum"] = sums[2]
        at = self.layer.backward
        assert at is not None
        call = edit.at(at).call
        edit.change(at, call=replace(call, reads=tuple([own if s == incoming else s for s in call.reads])))
        return of_adapter

    def _ending(self, calls: list[Made], kept: dict[str, int], of_x: int, spec: TensorSpec) -> int:
        """With dropout the gradient through the layer's second product is added; the gradient of the magnitudes."""
        if "weight" in kept:
            narrow = self._matrix(self.rows, self.inputs)
            of_base, total = self.edit.storage(narrow), self.edit.storage(spec)
            kind = OpSignature("aten.mm", (self.out, self._matrix(self.outputs, self.inputs)), (narrow,))
            calls.append((kind, self._call(_BACKWARD, (kept["of_base"], kept["weight"]), (of_base,))))
            of_base = self._as(calls, _BACKWARD, of_base, narrow, spec)
            self._pass(calls, _BACKWARD, "add", (of_base, of_x), total, (spec, spec), spec)
            of_x = total
        vector = TensorSpec((self.outputs,), self.parameter_dtype)
        reads = (kept["sum"], kept["norm"])
        self._pass(calls, _BACKWARD, "div", reads, self.magnitude_gradient, (vector, vector), vector)
        return of_x

    def _has_bias(self) -> bool:
        return any(p.name == f"{self.layer.path}.bias" for p in self.edit.graph.parameters)

    def _row_sum(self, calls: list[Made], reads: int, writes: int) -> None:
        kind = OpSignature("aten.sum", (self.passes,), (self.row,), (("dim", (0,)),))
        calls.append((kind, self._call(_BACKWARD, (reads,), (writes,), 0)))

    def _as(self, calls: list[Made], phase: Phase, reads: int, before: TensorSpec, after: TensorSpec) -> int:
        """A tensor in another dtype; itself where it has it."""
        if before.dtype == after.dtype:
            return reads
        writes = self.edit.storage(after)
        calls.append(self._cast(phase, reads, writes, before, after))
        return writes
