"""The dispatch mode that records every operator of a step, with dtypes, storages, lifetimes and module path."""

from __future__ import annotations

import math
import weakref
from functools import cache
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_unflatten

from precision_time.capture.channels_last import COPIES, RESULTS, runs_first, runs_last
from precision_time.capture.graph import AttrValue, Call, Category, OpSignature, Phase, Storage, TensorSpec
from precision_time.capture.limits import MOST_DISPATCHED, OperatorBudget
from precision_time.zoo.meta_tensors import beside_meta, tensors_of

# Arguments that change an operator's work beyond its tensor shapes.
_ATTRS = frozenset(
    """
    stride padding dilation transposed groups output_mask output_padding kernel_size dim half_to_float p
    is_causal dropout_p mode hidden layers bidirectional batch_first num_layers train training window chunk
    """.split()
)
# Operators that neither launch a kernel nor move a byte, in addition to views (recognised by their schema).
_FREE = frozenset(
    """
    aten.detach aten.empty aten.empty_like aten.new_empty aten.empty_strided aten.new_empty_strided
    aten._unsafe_view aten.lift_fresh aten._reshape_alias aten.alias aten.is_same_size aten.resize_ aten.set_
    aten.sym_size aten.sym_stride aten.sym_numel aten._has_compatible_shallow_copy_type
    """.split()
)
# Operators that do the same with every element, beside those that torch tags so.
_POINTWISE = frozenset(
    """
    aten._to_copy aten.copy_ aten.elu_backward aten.hardsigmoid_backward aten.hardswish_ aten.hardswish_backward
    aten.hardtanh_backward aten.leaky_relu_backward aten.masked_fill_ aten.mish_backward aten._prelu_kernel
    aten.softplus_backward
    """.split()
)
_JOINING = frozenset({"aten.cat", "aten.stack"})
_PRODUCTS = frozenset({"aten.mm", "aten.addmm", "aten.bmm", "aten.baddbmm"})


def _layout(inputs: list[torch.Tensor]) -> str:
    """How the operands of a product lie in memory, in BLAS letters: "nt" is x @ W.t(), "tn" a weight gradient."""
    return "".join("t" if t.stride(-1) != 1 and t.stride(-2) == 1 else "n" for t in inputs[-2:])


def _in_columns(operand: torch.Tensor) -> bool:
    """Whether an operand in half precision lies in columns, as the first one of a gradient of weights does."""
    found: bool = operand.element_size() == 2 and operand.stride(1) != 1 and operand.stride(0) == 1
    return found


def _strided(inputs: list[torch.Tensor], outputs: list[torch.Tensor]) -> int:
    """False where the largest of an operator's tensors lie in memory as rows of numbers in one order, else True; where
    neighbours in memory of one are not neighbours in the result, how many elements a kernel computes between them.

    Elements are computed in the order of the result (aten/src/ATen/TensorIterator.cpp, reorder_dimensions).
    """
    tensors = [*outputs, *inputs]
    most = max((t.numel() for t in tensors), default=0)
    largest = [t for t in tensors if t.numel() == most]
    if all(t.is_contiguous() for t in largest):
        return False
    orders = {tuple((s, n) for n, s in zip(t.shape, t.stride(), strict=True) if n > 1) for t in largest}
    if len(orders) == 1 and _dense(*orders):
        return False
    return max((_apart(t, largest[0]) for t in largest if t.shape == largest[0].shape), default=1)


def _joined(inputs: list[torch.Tensor], result: torch.Tensor) -> int:
    """As `_strided`, of tensors that are joined, whose kernel always computes where each element goes: False where
    neighbours in memory stay neighbours."""
    apart = max((_apart(t, result) for t in inputs if t.dim() == result.dim()), default=1)
    return apart if apart > 1 else False


def _apart(tensor: torch.Tensor, result: torch.Tensor) -> int:
    """How many elements are computed from one to its neighbour in `tensor`, in the order of `result`; True for one."""
    strides = result.stride()
    inner = next((d for d, s in enumerate(tensor.stride()) if s == 1 and tensor.shape[d] > 1), None)
    if inner is None:
        return True
    faster = [d for d, stride in enumerate(strides) if stride < strides[inner] and tensor.stride(d) > 0]
    apart = math.prod(tensor.shape[d] for d in faster)
    return apart if apart > 1 else True


def _dense(order: tuple[tuple[int, int], ...]) -> bool:
    """Whether dimensions (stride, size) are those of a tensor without gaps or elements that lie on each other."""
    expected = 1
    for stride, size in sorted(order):
        if stride != expected:
            return False
        expected *= size
    return True


def _is_view(func: Any) -> bool:
    returns = func._schema.returns
    return bool(returns) and all(r.alias_info is not None and not r.alias_info.is_write for r in returns)


def _plain(value: Any) -> AttrValue:
    if isinstance(value, (list, tuple)):
        return tuple(_plain(v) for v in value)
    if isinstance(value, (bool, int, float, str)) or value is None:
        return value
    return str(value)


@cache
def dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


class _PlainMode(TorchDispatchMode):
    """A dispatch mode without the wrapper that keeps torch.compile out of it, which would import all of torch._dynamo.

    That takes a second of processor time in the first trace.
    """

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False


class BudgetedBuild(_PlainMode):
    """Ends the construction of a model that makes too many tensors, and initialises no weights that have no values."""

    def __init__(self, most: int) -> None:
        super().__init__()
        self._budget = OperatorBudget(most)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self._budget.spend()
        if func in _INITIALISERS and args[0].is_meta:
            return args[0]
        return func(*args, **(kwargs or {}))


_INITIALISERS = frozenset({torch.ops.aten.normal_.default, torch.ops.aten.uniform_.default})


class Tracer(_PlainMode):
    """Records calls while active. Hooks outside set `phase` and `module_stack`.

    `layouts` also records the memory layout of the operands of products, on which the rates of CPU kernels depend
    strongly and those of GPU libraries hardly; GPU graphs leave it out and are smaller. `channels_last`: images are
    stored so, and operators are corrected as the module of that name says.
    """

    def __init__(self, layouts: bool = False, channels_last: bool = False) -> None:
        super().__init__()
        self._layouts = layouts
        self.channels_last = channels_last
        self.phase = Phase.FORWARD
        self.kinds: dict[OpSignature, int] = {}
        self.calls: list[Call] = []
        self.modules: dict[str, int] = {"": 0}
        self.module_stack: list[str] = [""]
        self.storages: list[list[int]] = []  # nbytes, born, dies, category
        self.assumptions: set[str] = set()
        self._views = 0
        self._budget = OperatorBudget(MOST_DISPATCHED)
        self._live: dict[int, tuple[int, Any]] = {}
        self._module_of_sequence: dict[int, int] = {}
        self._fresh: dict[Any, int] = {}
        self._results: dict[Any, Any] = {}
        self._schemas: dict[Any, tuple[str, bool, bool, tuple[str, ...]]] = {}

    def storage_index(self, tensor: torch.Tensor, category: Category | None = None) -> int:
        storage = tensor.untyped_storage()
        key = storage._cdata
        known = self._live.get(key)
        if known is not None and known[1]() is not None:
            index = known[0]
        else:
            index = len(self.storages)
            self.storages.append([storage.nbytes(), len(self.calls) - 1, -1, int(Category.ACTIVATIONS)])
            self._live[key] = (index, weakref.ref(storage, self._on_death(key, index)))
        if category is not None:
            self.storages[index][3] = int(category)
        return index

    def _on_death(self, key: int, index: int) -> Any:
        def died(reference: Any) -> None:
            self.storages[index][2] = len(self.calls) - 1
            if self._live.get(key, (None, None))[1] is reference:
                del self._live[key]

        return died

    def finish(self) -> list[Storage]:
        end = len(self.calls)
        self._live.clear()
        return [
            Storage(nbytes, born, dies if dies >= 0 else end, Category(category))
            for nbytes, born, dies, category in self.storages
        ]

    def _schema(self, func: Any) -> tuple[str, bool, bool, tuple[str, ...]]:
        """An operator's name, whether it is free and whether it does the same with every element, and its arguments."""
        known = self._schemas.get(func)
        if known is None:
            name = str(func).rsplit(".", 1)[0].replace("precision_time.", "pt.")
            free = name in _FREE or _is_view(func)
            each = torch.Tag.pointwise in func.tags or name in _POINTWISE
            known = self._schemas[func] = (name, free, each, tuple(a.name for a in func._schema.arguments))
        return known

    def _module_index(self) -> int:
        if self.phase >= Phase.BACKWARD:
            node = torch._C._current_autograd_node()
            if node is not None:
                return self._module_of_sequence.get(node._sequence_nr(), 0)
            return 0
        path = self.module_stack[-1]
        index = self.modules.setdefault(path, len(self.modules))
        # The node of a differentiable operator is made before the operator runs, so the newest number is its own; what
        # runs without one (masks, positions) must not take over the number of the node before it.
        self._module_of_sequence.setdefault(torch.autograd._get_sequence_nr() - 1, index)
        return index

    def _run(self, func: Any, args: Any, kwargs: Any, inputs: list[torch.Tensor]) -> Any:
        """The operator's result. Equal calls on equal tensors have equal shapes: the second one is not computed.

        A model repeats its layers, and torch's shape rules are Python; this makes the trace several times faster.
        """
        fresh = self._fresh.get(func)
        if fresh is None:
            schema = func._schema
            pure = not schema.is_mutable and all(r.alias_info is None for r in schema.returns)
            in_place = bool(args) and len(schema.returns) == 1 and schema.returns[0].alias_info is not None
            first_only = sum(a.alias_info is not None for a in schema.arguments) == 1
            fresh = self._fresh[func] = 1 if pure else 2 if in_place and first_only else 0
        if not fresh or not all(t.is_meta for t in inputs):
            return self._computed(func, args, kwargs)
        try:
            key = (func, _signature(args), _signature(kwargs))
            known = self._results.get(key)
        except TypeError:  # an unhashable argument
            return self._computed(func, args, kwargs)
        if known is not None:
            if fresh == 2:
                return args[0]
            specs, spec = known
            made = [
                leaf
                if not isinstance(leaf, tuple)
                else torch.empty_strided(leaf[0], leaf[1], dtype=leaf[2], device="meta")
                for leaf in specs
            ]
            return made[0] if spec.is_leaf() else tree_unflatten(made, spec)
        out = self._computed(func, args, kwargs)
        leaves, spec = tree_flatten(out)
        if all(o.is_meta for o in leaves if isinstance(o, torch.Tensor)):
            self._results[key] = (
                [(tuple(o.shape), o.stride(), o.dtype) if isinstance(o, torch.Tensor) else o for o in leaves],
                spec,
            )
        return out

    def _computed(self, func: Any, args: Any, kwargs: Any) -> Any:
        out = func(*args, **kwargs)
        corrected = RESULTS.get(func)
        return corrected(args, out) if corrected else out

    def _copied(self, func: Any, args: Any, module: int) -> Any:
        """The operator's arguments after the copies that it makes itself, which are recorded."""
        copies = COPIES[func].of(args) if func in COPIES else {}
        for i, copy in copies.items():
            kind = OpSignature("aten.clone", (_spec(args[i]),), (_spec(copy),), (("strided", _apart(args[i], copy)),))
            self._record(kind, module, (self.storage_index(args[i]),), [copy])
        return tuple(copies.get(i, value) for i, value in enumerate(args)) if copies else args

    def _record(self, kind: OpSignature, module: int, reads: tuple[int, ...], outputs: list[torch.Tensor]) -> None:
        index = self.kinds.setdefault(kind, len(self.kinds))
        position = len(self.calls)
        self.calls.append(Call(index, self.phase, module, self._views, reads))
        writes = tuple(self.storage_index(t) for t in outputs)
        self.calls[position] = Call(index, self.phase, module, self._views, reads, writes)
        self._views = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        self._budget.spend()
        name, free, pointwise, arg_names = self._schema(func)
        inputs = tensors_of((args, kwargs))
        given = args
        args, kwargs = beside_meta(func, args, kwargs, inputs)
        module = self._module_index()
        if free:
            # A gradient of `as_strided` squeezes a batch of one, which would thus be launched more slowly than two.
            self._views += name != "aten.squeeze" or _autograd_node() != "AsStridedBackward0"
            return func(*args, **kwargs)
        if name == "aten._local_scalar_dense" and args[0].dtype == torch.bool:
            # Model code that branches on its data ("is nothing masked?"); without data the common case is taken.
            self._views += 1
            self.assumptions.add(f"a branch on data in {self.module_stack[-1] or 'the model'} was taken as true")
            return True
        if self.channels_last or not self._layouts:
            args = self._copied(func, args, module)
        if args is not given:
            inputs = tensors_of((args, kwargs))
        reads = tuple(self.storage_index(t) for t in inputs)
        in_specs = tuple(_spec(t) for t in inputs)
        out = self._run(func, args, kwargs, inputs)
        outputs = tensors_of((out,))
        named = zip(arg_names, args, strict=False)
        attrs = tuple((k, _plain(v)) for k, v in (*named, *kwargs.items()) if k in _ATTRS)
        if self._layouts and name in _PRODUCTS:
            attrs = (*attrs, ("layout", _layout(inputs)))
        elif name == "aten.mm" and _in_columns(inputs[0]):
            attrs = (*attrs, ("transposed", True))
        elif name == "aten.bmm" and inputs[1].shape[0] > 1 and inputs[1].stride(0) == 0:
            attrs = (*attrs, ("shared", True))  # one matrix for all of a batch
        if name == "aten.convolution_backward" or name == "aten.convolution":
            attrs = tuple((k, v) for k, v in attrs if k != "output_padding")
        if not (self.channels_last or self._layouts) and runs_last(func, args):
            attrs = (*attrs, ("channels_last", True))
        elif self.channels_last and runs_first(func, args):
            attrs = (*attrs, ("channels_last", False))
        apart = _strided(inputs, outputs) if pointwise else name in _JOINING and _joined(inputs, outputs[0])
        strided = (("strided", apart),) if apart else ()
        kind = OpSignature(name, in_specs, tuple(_spec(t) for t in outputs), (*attrs, *strided))
        if name == "aten._to_copy" and len(inputs) == 1 and in_specs[0].dtype == kind.outputs[0].dtype:
            kind = OpSignature("aten.clone", kind.inputs, kind.outputs, strided)
        self._record(kind, module, reads, outputs)
        return out


def _autograd_node() -> str:
    """The name of the gradient that autograd computes; "" outside of a backward pass."""
    node = torch._C._current_autograd_node()
    return "" if node is None else str(node.name())


def _signature(argument: Any) -> Any:
    """What an operator's result depends on, hashable unless the argument is not."""
    if isinstance(argument, torch.Tensor):
        return (argument.shape, argument.stride(), argument.dtype)
    if isinstance(argument, (tuple, list)):
        return (type(argument), *map(_signature, argument))
    if isinstance(argument, dict):
        return (dict, *((name, _signature(value)) for name, value in argument.items()))
    return (type(argument), argument)


def _spec(tensor: torch.Tensor) -> TensorSpec:
    return TensorSpec(tuple(tensor.shape), dtype_name(tensor.dtype))
