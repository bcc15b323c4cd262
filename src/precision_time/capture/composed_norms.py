"""RMS norms as PyTorch ran them before 2.9: composed of small operators, eight forward and seventeen backward.

CUDA has had a kernel for them since 2.9 (`_fused_rms_norm`, pytorch pull request 153666), which traces show. Before,
every operator moved the input in single precision, and the backward pass kept it so: the norms of a step in bfloat16
read and wrote 14 times as many bytes.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from precision_time.capture.graph import Call, Category, OpGraph, OpSignature, TensorSpec
from precision_time.capture.graph_edit import GraphEdit

FORWARD, BACKWARD = "pt.rms_norm", "pt.rms_norm_backward"


@dataclass(frozen=True, slots=True)
class _Kept:
    """Storages that the backward pass reads: the input in the norm's arithmetic, and the normalised input."""

    wide: int
    normalised: int


def composed_rms_norms(graph: OpGraph) -> OpGraph:
    """`graph` with every RMS norm composed of the operators of torch before 2.9."""
    if not any(kind.name == FORWARD for kind in graph.kinds):
        return graph
    edit = GraphEdit(graph)
    kept: dict[int, _Kept] = {}
    for at, call in enumerate(graph.calls):
        kind = graph.kinds[call.kind]
        if len(kind.inputs) != len(call.reads) or len(kind.outputs) != len(call.writes):
            continue  # of a graph that nobody traced
        if kind.name == FORWARD and len(call.writes) == 2:
            kept[call.writes[1]] = _forward(edit, at)
        elif kind.name == BACKWARD and len(call.reads) > 2 and call.reads[2] in kept:
            _backward(edit, at, kept[call.reads[2]])
    for number in range(len(graph.parameters)):
        edit.train(number)
    return edit.finish()


class _Steps:
    """Operators that take the place of call `at`, in order."""

    def __init__(self, edit: GraphEdit, at: int) -> None:
        self.edit, self.at, self.call = edit, at, edit.at(at).call
        self.calls: list[tuple[OpSignature, Call]] = []

    def run(
        self,
        name: str,
        inputs: list[tuple[int, TensorSpec]],
        output: TensorSpec,
        into: int | None = None,
        views: int = 0,
        **attributes: tuple[int, ...] | bool,
    ) -> tuple[int, TensorSpec]:
        """An operator on storages; the storage of its result, which is `into` or a new one."""
        storage = self.edit.storage(output, Category.ACTIVATIONS) if into is None else into
        kind = OpSignature(f"aten.{name}", tuple([spec for _, spec in inputs]), (output,), tuple(attributes.items()))
        reads = tuple([number for number, _ in inputs])
        self.calls.append((kind, replace(self.call, views=views, reads=reads, writes=(storage,))))
        return storage, output

    def finish(self) -> None:
        """Put the operators where the call was, with the views before it."""
        if self.calls:
            kind, first = self.calls[0]
            self.calls[0] = (kind, replace(first, views=first.views + self.call.views))
        self.edit.before(self.at, self.calls)
        self.edit.remove(self.at)


def _arithmetic(spec: TensorSpec) -> TensorSpec:
    """A tensor in the dtype that the norm computes in."""
    return TensorSpec(spec.shape, "float32") if spec.dtype in ("float16", "bfloat16") else spec


def _forward(edit: GraphEdit, at: int) -> _Kept:
    kind, call = edit.at(at).kind, edit.at(at).call
    spec, rstd = kind.inputs[0], (call.writes[1], kind.outputs[1])
    steps, wide_spec = _Steps(edit, at), _arithmetic(spec)
    wide = (call.reads[0], spec)
    if wide_spec != spec:
        wide = steps.run("_to_copy", [wide], wide_spec)
    squares = steps.run("pow", [wide], wide_spec)
    mean = steps.run("mean", [squares], rstd[1], dim=_dims(spec, rstd[1]))
    steps.run("add_", [mean], rstd[1], into=mean[0])
    steps.run("rsqrt", [mean], rstd[1], into=rstd[0])
    weights = list(zip(call.reads[1:], kind.inputs[1:], strict=True))
    last = weights == [] and wide_spec == spec
    normalised = steps.run("mul", [wide, rstd], wide_spec, into=call.writes[0] if last else None, views=1)
    result = normalised
    for weight in weights:
        result = steps.run("mul", [result, weight], wide_spec, into=call.writes[0] if wide_spec == spec else None)
    if wide_spec != spec:
        steps.run("_to_copy", [result], spec, into=call.writes[0])
    steps.finish()
    return _Kept(wide[0], normalised[0])


def _backward(edit: GraphEdit, at: int, kept: _Kept) -> None:
    kind, call = edit.at(at).kind, edit.at(at).call
    gradient, spec, small = (call.reads[0], kind.inputs[0]), kind.inputs[1], (call.reads[2], kind.inputs[2])
    steps, wide_spec = _Steps(edit, at), _arithmetic(spec)
    wide, normalised = (kept.wide, wide_spec), (kept.normalised, wide_spec)
    results = list(zip(call.writes, kind.outputs, strict=True))
    of_input, of_weight = _wanted(kind, results)
    if gradient[1] != wide_spec:
        gradient = steps.run("_to_copy", [gradient], wide_spec)
    if len(kind.inputs) > 3:
        weight = (call.reads[3], kind.inputs[3])
        if of_weight is not None:
            _weight_gradient(steps, gradient, normalised, weight[1], of_weight)
        if of_input is not None:
            gradient = steps.run("mul", [gradient, weight], wide_spec)
    if of_input is not None:
        of_rstd = steps.run("mul", [gradient, wide], wide_spec, views=1)
        direct = steps.run("mul", [gradient, small], wide_spec)
        total = steps.run("sum", [of_rstd], small[1], dim=_dims(spec, small[1]))
        cubes = steps.run("pow", [small], small[1], views=1)
        scaled = steps.run("mul", [total], small[1])
        slope = steps.run("mul", [scaled, cubes], small[1])
        spread = steps.run("div", [(slope[0], wide_spec)], wide_spec, views=1, strided=True)
        power = steps.run("pow", [wide], wide_spec)
        doubled = steps.run("mul", [power], wide_spec)
        through_mean = steps.run("mul", [spread, doubled], wide_spec)
        whole = steps.run("add", [direct, through_mean], wide_spec, into=of_input if wide_spec == spec else None)
        if wide_spec != spec:
            steps.run("_to_copy", [whole], spec, into=of_input)
    steps.finish()


def _wanted(kind: OpSignature, results: list[tuple[int, TensorSpec]]) -> tuple[int | None, int | None]:
    """The storages of the gradients of input and weight, where they are computed."""
    mask = kind.attr("output_mask")
    first, second = mask[:2] if isinstance(mask, tuple) and len(mask) > 1 else (True, len(results) > 1)
    numbers = iter([number for number, _ in results])
    return next(numbers, None) if first else None, next(numbers, None) if second else None


def _weight_gradient(
    steps: _Steps, gradient: tuple[int, TensorSpec], normalised: tuple[int, TensorSpec], weight: TensorSpec, into: int
) -> None:
    shape = gradient[1].shape
    product = steps.run("mul", [gradient, normalised], gradient[1])
    leading = len(shape) - len(weight.shape)
    summed = TensorSpec((*(1,) * leading, *weight.shape), gradient[1].dtype)
    same = summed.dtype == weight.dtype
    dims = tuple(range(leading))
    total = steps.run("sum", [product], summed, into=into if same else None, dim=dims)
    if not same:
        steps.run("_to_copy", [(total[0], TensorSpec(weight.shape, summed.dtype))], weight, into=into, views=1)


def _dims(spec: TensorSpec, small: TensorSpec) -> tuple[int, ...]:
    """The dimensions over which a norm sums."""
    return tuple([i for i, (a, b) in enumerate(zip(spec.shape, small.shape, strict=False)) if a != b])
