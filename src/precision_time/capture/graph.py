"""The operator graph of one training micro-step plus its optimizer step: what capture gives and the rest reads.

An `OpGraph` knows no hardware and no seconds. Equal operators (same name, tensors and attributes) are one
`OpSignature`; the step is the sequence of `Call`s that run them. dtypes are PyTorch's names without the `torch.` prefix
("float32", "bfloat16", "int64", "bool" ...). A multiply-add counts as two FLOP everywhere in this package.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from functools import cached_property

BYTES_PER_ELEMENT: dict[str, int] = {
    "float64": 8, "float32": 4, "float16": 2, "bfloat16": 2,
    "float8_e4m3fn": 1, "float8_e5m2": 1,
    "int64": 8, "int32": 4, "int16": 2, "int8": 1, "uint8": 1, "bool": 1,
    "complex64": 8, "complex128": 16,
}  # fmt: skip

AttrValue = int | float | bool | str | None | tuple["AttrValue", ...]


class Phase(IntEnum):
    """Where in the step an operator runs."""

    FORWARD = 0
    LOSS = 1
    BACKWARD = 2
    UNSCALE = 3
    CLIP = 4
    OPTIMIZER = 5


class Category(IntEnum):
    """What a stored tensor is for; the rows of the memory table."""

    WEIGHTS = 0
    GRADIENTS = 1
    ACTIVATIONS = 2
    INPUTS = 3


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """Shape (elements) and dtype of one tensor."""

    shape: tuple[int, ...]
    dtype: str

    @property
    def numel(self) -> int:
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        return self.numel * BYTES_PER_ELEMENT[self.dtype]


@dataclass(frozen=True, slots=True)
class OpSignature:
    """One distinct operator: name ("aten.convolution"), tensors in argument order, the attributes that matter."""

    name: str
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    attrs: tuple[tuple[str, AttrValue], ...] = ()

    def attr(self, name: str, default: AttrValue = None) -> AttrValue:
        for key, value in self.attrs:
            if key == name:
                return value
        return default

    def int_attr(self, name: str, default: int) -> int:
        value = self.attr(name, default)
        return int(value) if isinstance(value, (int, float)) else default

    def ints_attr(self, name: str) -> tuple[int, ...]:
        """A list of integers (stride, dilation ...); empty where the operator has none."""
        value = self.attr(name)
        if isinstance(value, tuple):
            return tuple(int(v) for v in value if isinstance(v, (int, float)))
        return (int(value),) if isinstance(value, int) else ()


@dataclass(frozen=True, slots=True)
class Call:
    """One execution of a kind.

    `views` counts the free operators (views, metadata) the host dispatched just before it; `module` indexes
    `OpGraph.modules`; `reads` and `writes` are indices into `OpGraph.storages`.
    """

    kind: int
    phase: Phase
    module: int = 0
    views: int = 0
    reads: tuple[int, ...] = ()
    writes: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Storage:
    """A block of memory: bytes, the call that allocates it (-1: before the step) and the last call that holds it.

    `dies` = number of calls when it outlives the step.
    """

    nbytes: int
    born: int
    dies: int
    category: Category


@dataclass(frozen=True, slots=True)
class Parameter:
    """One weight tensor, in the order of `module.parameters()`.

    `ready` is the backward call after which its gradient is complete (-1: never gets one); `uses` is how often the
    forward pass reads it.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    grad_dtype: str
    ready: int
    trainable: bool = True

    @property
    def numel(self) -> int:
        return math.prod(self.shape)


@dataclass(frozen=True, eq=False)
class OpGraph:
    """One forward + loss + backward at concrete sizes, with the parameters an optimizer then updates."""

    name: str
    kinds: tuple[OpSignature, ...]
    calls: tuple[Call, ...]
    modules: tuple[str, ...]
    storages: tuple[Storage, ...]
    parameters: tuple[Parameter, ...]
    buffer_bytes: int
    sizes: Mapping[str, int] = field(default_factory=dict)
    assumptions: tuple[str, ...] = ()

    @cached_property
    def parameter_count(self) -> int:
        return sum(p.numel for p in self.parameters)
