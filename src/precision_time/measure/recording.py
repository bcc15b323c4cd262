"""Records the operators of a traced step with all their arguments, so that each can run again alone on a device.

A graph holds what decides an operator's cost; running it again needs every argument. `Recorder` is the tracer of
`capture` that also stores the arguments of each distinct operator. They are plain JSON values, so that the operators
of the zoo are recorded once and ship with the package (`zoo_operators`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from precision_time.capture import fused as _fused  # noqa: F401  (registers the operators of this package)
from precision_time.capture.build import build_workload
from precision_time.capture.graph import OpSignature
from precision_time.capture.regimes import regime_of
from precision_time.capture.step import Regime, capture
from precision_time.capture.tracer import Tracer
from precision_time.errors import MeasureError
from precision_time.job.job import Job
from precision_time.measure.tensors import random
from precision_time.zoo.workload import Workload

_UNREPEATABLE = frozenset(
    """
    aten._local_scalar_dense aten.record_stream aten._assert_async pt.ctc_loss pt.ctc_loss_backward
    aten._ctc_loss aten._ctc_loss_backward aten._cudnn_ctc_loss aten._cudnn_rnn pt.grouped_mm pt.grouped_mm_weight
    pt.grouped_sum pt.combine pt.combine_backward pt.state_scan_forward pt.state_scan_backward
    pt.causal_conv1d pt.causal_conv1d_backward pt.selective_scan pt.selective_scan_backward pt.delta_rule
    pt.delta_rule_backward pt.wkv pt.wkv_backward
    """.split()
)
"""Operators whose values must be consistent, so that random ones do not do; operators that wait for the device; and
those of experts and state spaces, which have no kernel here."""


@dataclass(frozen=True, slots=True)
class Recorded:
    """One distinct operator: its name in graphs, the overload that ran ("aten::mm.default"), its arguments.

    A tensor is {"t": [shape, stride, dtype]}; lists and plain values are kept as they are.
    """

    operator: str
    overload: str
    arguments: tuple[Any, ...]
    keywords: tuple[tuple[str, Any], ...] = ()


@dataclass(frozen=True, slots=True)
class Counted:
    """A recorded operator, its signature in the graph, and the number of calls in a micro-step."""

    recorded: Recorded
    kind: OpSignature
    calls: int


class Recorder(Tracer):
    """The tracer, which also stores the arguments and the number of calls of each distinct operator."""

    def __init__(self, layouts: bool = False) -> None:
        super().__init__(layouts)
        self._recorded: dict[int, tuple[Recorded, OpSignature]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        position = len(self.calls)
        result = super().__torch_dispatch__(func, types, args, kwargs)
        if len(self.calls) > position and (index := self.calls[position].kind) not in self._recorded:
            arguments = tuple(_plain(value) for value in args)
            keywords = tuple((key, _plain(value)) for key, value in (kwargs or {}).items())
            kind = next(kind for kind, at in self.kinds.items() if at == index)
            self._recorded[index] = Recorded(kind.name, _overload(func), arguments, keywords), kind
        return result

    def recorded(self) -> list[Counted]:
        """Every distinct operator with its number of calls."""
        counts: dict[int, int] = {}
        for call in self.calls:
            counts[call.kind] = counts.get(call.kind, 0) + 1
        return [
            Counted(recorded, kind, counts[index])
            for index, (recorded, kind) in self._recorded.items()
            if kind.name not in _UNREPEATABLE and kind.inputs
        ]


def record(job: Job, device_type: str) -> list[Counted]:
    """The operators of a job's micro-step in their own shapes, without the optimizer's passes over parameters."""
    operators = record_workload(lambda: build_workload(job).workload, job, device_type)
    if job.precision_spec.parameter_dtype != "float64":
        return operators
    return [Counted(in_dtype(each.recorded, "float32", "float64"), each.kind, each.calls) for each in operators]


def record_workload(build: Callable[[], Workload], job: Job, device_type: str) -> list[Counted]:
    """The operators of a micro-step of the workload that `build` returns, in the job's precision and attention."""
    precision = job.precision_spec
    recorder = Recorder(layouts=device_type == "cpu")
    low = getattr(torch, precision.compute_dtype)
    capture(
        build,
        Regime(regime_of(precision)),
        low_precision=low if low in (torch.float16, torch.bfloat16) else torch.bfloat16,
        attention="math" if job.attention == "math" else "flash",
        name=job.model,
        device_rules=device_type,
        tracer=recorder,
    )
    return recorder.recorded()


def in_dtype(each: Recorded, old: str, new: str) -> Recorded:
    """The same operator with one dtype in place of another."""

    def renamed(value: Any) -> Any:
        if isinstance(value, dict) and "t" in value:
            shape, stride, dtype = value["t"]
            return {"t": [shape, stride, new if dtype == old else dtype]}
        if isinstance(value, dict) and value.get("dtype") == old:
            return {"dtype": new}
        return [renamed(v) for v in value] if isinstance(value, list) else value

    keywords = tuple((key, renamed(value)) for key, value in each.keywords)
    return Recorded(each.operator, each.overload, tuple(renamed(v) for v in each.arguments), keywords)


def call_of(each: Recorded, device: torch.device, nhwc: bool = False) -> Callable[[], Any]:
    """A call of the operator on real tensors of the device; with `nhwc`, images are stored channels last.

    Raises `MeasureError` if this version of PyTorch lacks the operator.
    """
    tensors = _Tensors(each, device, nhwc)
    arguments = [tensors.real(value) for value in each.arguments]
    keywords = {key: tensors.real(value) for key, value in each.keywords}
    namespace, _colons, rest = each.overload.partition("::")
    name, _dot, overload = rest.partition(".")
    if each.operator in _FUSED:
        more = {"learned": True} if overload == "learned" else {}
        return _FUSED[each.operator](*arguments, **more)
    try:
        function = getattr(getattr(getattr(torch.ops, namespace), name), overload)
    except AttributeError as error:
        raise MeasureError(f"this PyTorch has no operator {each.overload}") from error
    return lambda: function(*arguments, **keywords)


class _Tensors:
    """Real values for the arguments of one operator."""

    def __init__(self, each: Recorded, device: torch.device, nhwc: bool) -> None:
        self._device = device
        self._nhwc = nhwc
        self._bound = _index_bound(each)

    def real(self, value: Any) -> Any:
        if isinstance(value, list):
            return [self.real(v) for v in value]
        if not isinstance(value, dict):
            return value
        if "dtype" in value or "format" in value:
            return getattr(torch, next(iter(value.values())))
        if "device" in value:
            return self._device
        if "other" in value:
            return None
        return self._tensor(*value["t"])

    def _tensor(self, shape: list[int], stride: list[int], name: str) -> torch.Tensor:
        dtype = getattr(torch, name)
        if self._nhwc and len(shape) == 4 and stride == _contiguous(shape):
            stride = [shape[1] * shape[2] * shape[3], 1, shape[1] * shape[3], shape[1]]
        if self._device.type == "meta":
            return torch.empty_strided(shape, stride, dtype=dtype, device=self._device)
        extent = 1 + sum((size - 1) * step for size, step in zip(shape, stride, strict=True)) if 0 not in shape else 0
        if dtype.is_floating_point:
            flat = random(self._device, dtype, extent)
        elif dtype == torch.bool:
            flat = random(self._device, torch.float32, extent) > 0
        elif dtype.is_complex:
            flat = torch.view_as_complex(random(self._device, torch.float32, extent, 2)).to(dtype)
        else:  # indices, valid in any dimension of the operator's tables
            flat = torch.randint(0, self._bound, (extent,), device=self._device, dtype=dtype)
        return flat.as_strided(shape, stride)


def _index_bound(each: Recorded) -> int:
    """Indices below this number are valid in every table of the operator."""
    if each.operator == "aten.embedding_dense_backward":
        rows = each.arguments[2]
        return int(rows) if isinstance(rows, int) else 1
    if each.operator == "aten.embedding":
        return int(each.arguments[0]["t"][0][0])
    tables = [shape for shape, _, dtype in tensors_of(each) if "float" in dtype and shape]
    return max(min((min(shape) for shape in tables), default=1), 1)


def tensors_of(each: Recorded) -> Iterator[tuple[list[int], list[int], str]]:
    """Shape, strides and dtype of every tensor among the arguments."""

    def walk(value: Any) -> Iterator[tuple[list[int], list[int], str]]:
        if isinstance(value, dict) and "t" in value:
            shape, stride, dtype = value["t"]
            yield shape, stride, dtype
        elif isinstance(value, list):
            for member in value:
                yield from walk(member)

    for value in (*each.arguments, *(value for _, value in each.keywords)):
        yield from walk(value)


def _attention(query: Any, key: Any, value: Any, mask: Any, dropout_p: float, is_causal: bool) -> Callable[[], Any]:
    attend = torch.nn.functional.scaled_dot_product_attention
    return lambda: attend(query, key, value, mask, dropout_p, is_causal)


def _attention_backward(
    grad: Any,
    query: Any,
    key: Any,
    value: Any,
    mask: Any,
    _out: Any,
    _sums: Any,
    dropout_p: float,
    is_causal: bool,
    learned: bool = False,
) -> Callable[[], Any]:
    with torch.enable_grad():
        leaves = [t.detach().requires_grad_() for t in (query, key, value, *([mask] if learned else []))]
        masks = leaves[3:] or [mask]
        out = torch.nn.functional.scaled_dot_product_attention(*leaves[:3], *masks, dropout_p, is_causal)
    return lambda: torch.autograd.grad(out, leaves, grad, retain_graph=True)


def _rnn_module(x: Any, mode: int, hidden: int, layers: int, both: bool, first: bool) -> torch.nn.Module:
    kind = {0: "relu", 1: "tanh"}.get(mode)
    make: Any = {2: torch.nn.LSTM, 3: torch.nn.GRU}.get(mode, torch.nn.RNN)
    more = {"nonlinearity": kind} if kind else {}
    module: torch.nn.Module = make(
        x.shape[-1], hidden, layers, batch_first=first, bidirectional=both, device=x.device, dtype=x.dtype, **more
    )
    return module


def _rnn(x: Any, _weights: Any, *setting: Any) -> Callable[[], Any]:
    module = _rnn_module(x, *setting)
    return lambda: module(x)


def _rnn_backward(grad: Any, x: Any, _weights: Any, _out: Any, _reserve: Any, *setting: Any) -> Callable[[], Any]:
    module = _rnn_module(x, *setting[:5])
    with torch.enable_grad():
        leaf = x.detach().requires_grad_()
        states = [state.detach().requires_grad_() for given in setting[5:] for state in given]
        out = module(leaf, *([tuple(states) if len(states) > 1 else states[0]] if states else []))[0]
    leaves = [leaf, *module.parameters(), *states]
    return lambda: torch.autograd.grad(out, leaves, grad, retain_graph=True)


def _rms_norm(x: Any, shape: Any, weight: Any) -> Callable[[], Any]:
    return lambda: torch.nn.functional.rms_norm(x, shape, weight)


def _rms_norm_backward(grad: Any, x: Any, shape: Any, _rstd: Any, weight: Any, mask: Any) -> Callable[[], Any]:
    with torch.enable_grad():
        named = [t.detach().requires_grad_(on) for t, on in zip((x, weight), mask, strict=True) if t is not None]
        out = torch.nn.functional.rms_norm(named[0], shape, *named[1:])
    leaves = [t for t in named if t.requires_grad]
    return lambda: torch.autograd.grad(out, leaves, grad, retain_graph=True)


_FUSED: dict[str, Callable[..., Callable[[], Any]]] = {
    "pt.attention": _attention,
    "pt.attention_backward": _attention_backward,
    "pt.rms_norm": _rms_norm,
    "pt.rms_norm_backward": _rms_norm_backward,
    "pt.rnn": _rnn,
    "pt.rnn_backward": _rnn_backward,
}
"""Operators that only this package's graphs have, as calls of PyTorch."""


def passes(each: Recorded) -> Iterator[tuple[str, Recorded]]:
    """(name, part) of the parts in which an operator is timed: a convolution without bias, each of its gradients."""
    if each.operator == "aten.convolution" and len(each.arguments) > 2:
        bare = (*each.arguments[:2], None, *each.arguments[3:])
        yield "", Recorded(each.operator, each.overload, bare, each.keywords)
    elif each.operator == "aten.convolution_backward":
        mask = each.arguments[-1]
        for index, name in enumerate(("dgrad", "wgrad")):
            if mask[index]:
                only = (*each.arguments[:-1], [i == index for i in range(3)])
                yield name, Recorded(each.operator, each.overload, only, each.keywords)
    else:
        yield "", each


def label(each: Recorded) -> str:
    """A unique name: the operator, its overload and all of its arguments."""
    texts = [_text(value) for value in each.arguments]
    texts += [f"{key}={_text(value)}" for key, value in each.keywords]
    return f"{each.operator} {each.overload.partition('.')[2]}({', '.join(texts)})"


def _text(value: Any) -> str:
    if isinstance(value, list):
        return f"[{','.join(_text(v) for v in value)}]"
    if not isinstance(value, dict) or "t" not in value:
        return str(value if not isinstance(value, dict) else next(iter(value.values())))
    shape, stride, dtype = value["t"]
    order = "" if stride == _contiguous(shape) else f"/{'x'.join(map(str, stride))}"
    return f"{dtype}:{'x'.join(map(str, shape))}{order}"


def _contiguous(shape: list[int]) -> list[int]:
    return [math.prod(shape[i + 1 :]) for i in range(len(shape))]


def _plain(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return {"t": [list(value.shape), list(value.stride()), str(value.dtype).removeprefix("torch.")]}
    if isinstance(value, torch.dtype):
        return {"dtype": str(value).removeprefix("torch.")}
    if isinstance(value, torch.device):
        return {"device": ""}
    if isinstance(value, torch.memory_format):
        return {"format": str(value).removeprefix("torch.")}
    if isinstance(value, (list, tuple)):
        return [_plain(v) for v in value]
    if isinstance(value, (bool, int, float, str)) or value is None:
        return value
    return {"other": str(value)}


def _overload(func: Any) -> str:
    name: str = func._schema.name
    return f"{name}.{func._overloadname}"
