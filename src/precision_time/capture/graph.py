"""The operator graph of one training micro-step plus its optimizer step: what capture gives and the rest reads.

An `OpGraph` knows no hardware and no seconds. Equal operators (same name, tensors and attributes) are one
`OpSignature`; the step is the sequence of `Call`s that run them. dtypes are PyTorch's names without the `torch.` prefix
("float32", "bfloat16", "int64", "bool" ...). A multiply-add counts as two FLOP everywhere in this package.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field
from enum import IntEnum
from functools import cached_property
from itertools import chain
from typing import Any, TypeGuard, overload

import numpy as np
from numpy.typing import NDArray

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
    _numel: int | None = field(default=None, init=False, repr=False, compare=False)

    @property
    def numel(self) -> int:
        known = self._numel
        if known is None:  # asked for many times of a tensor that operators share
            known = math.prod(self.shape)
            object.__setattr__(self, "_numel", known)
        return known

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
        return value if _is_number(value) else default

    def ints_attr(self, name: str) -> tuple[int, ...]:
        """A list of integers (stride, dilation ...); empty where the operator has none."""
        value = self.attr(name)
        if isinstance(value, tuple):
            return tuple([v for v in value if _is_number(v)])
        return (value,) if _is_number(value) else ()


def _is_number(value: AttrValue) -> TypeGuard[int]:
    """Whether an attribute is a number, or one that follows from sizes (`timing.recording`)."""
    return value is not None and not isinstance(value, (str, tuple))


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
    packed: str = ""
    """The format it is stored in (see `adapters`), while `dtype` is that of its products; "": as `dtype`."""

    @property
    def numel(self) -> int:
        return math.prod(self.shape)


_CATEGORIES = tuple(Category)


@dataclass(frozen=True, slots=True, eq=False)
class Spans:
    """Of storages as columns: `born`, `dies`, `category`. Arrays, since the garbage collector visits every object."""

    born: NDArray[np.int32]
    dies: NDArray[np.int32]
    category: NDArray[np.int8]

    @classmethod
    def of(cls, born: Sequence[int], dies: Sequence[int], category: Sequence[int]) -> Spans:
        return cls(np.array(born, dtype=np.int32), np.array(dies, dtype=np.int32), np.array(category, dtype=np.int8))

    def __len__(self) -> int:
        return len(self.born)

    def rows(self) -> Iterator[tuple[int, int, Category]]:
        """`born`, `dies` and `category` of every storage."""
        categories = [_CATEGORIES[number] for number in self.category.tolist()]
        return zip(self.born.tolist(), self.dies.tolist(), categories, strict=True)


Indices = NDArray[np.int32]


class Calls(Sequence[Call]):
    """Calls as columns. Those of one step are thousands of objects, kept only where one is asked for by its number.

    `reads[i]` is read by call `reader[i]`, `writes[i]` written by `writer[i]`, in the order of calls.
    """

    __slots__ = ("_objects", "kind", "module", "phase", "reader", "reads", "views", "writer", "writes")

    def __init__(
        self,
        kind: Sequence[int],
        phase: Sequence[int],
        module: Sequence[int],
        views: Sequence[int],
        reads: Sequence[Sequence[int]],
        writes: Sequence[Sequence[int]],
    ) -> None:
        self.kind, self.phase, self.module, self.views = (_column(values) for values in (kind, phase, module, views))
        self.reads, self.reader = _flat(reads)
        self.writes, self.writer = _flat(writes)
        self._objects: tuple[Call, ...] | None = None

    @classmethod
    def of(cls, calls: Sequence[Call]) -> Calls:
        """Any calls as columns."""
        if isinstance(calls, Calls):
            return calls
        names = ("kind", "phase", "module", "views", "reads", "writes")
        return cls(*([getattr(call, name) for call in calls] for name in names))

    def with_kinds(self, numbers: Sequence[int]) -> Calls:
        """The same calls, whose kinds are numbered otherwise."""
        calls = copy(self)
        calls.kind, calls._objects = _column(numbers), None
        return calls

    def __len__(self) -> int:
        return len(self.kind)

    @overload
    def __getitem__(self, index: int) -> Call: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[Call, ...]: ...
    def __getitem__(self, index: int | slice) -> Call | tuple[Call, ...]:
        if self._objects is None:
            self._objects = tuple(self)
        return self._objects[index]

    def __iter__(self) -> Iterator[Call]:
        return iter(self._objects or self._rows())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and tuple(self) == tuple(other)

    __hash__ = None  # type: ignore[assignment]

    def _rows(self) -> Iterator[Call]:
        phases = [_PHASES[number] for number in self.phase.tolist()]
        numbers = (self.kind.tolist(), phases, self.module.tolist(), self.views.tolist())
        touched = (_by_call(self.reads, self.reader, len(self)), _by_call(self.writes, self.writer, len(self)))
        return (Call(*row) for row in zip(*numbers, *touched, strict=True))

    def first(self, phase: Phase) -> int:
        """The first call of a phase or a later one; their number where there is none."""
        later = np.flatnonzero(self.phase >= phase)
        return int(later[0]) if len(later) else len(self)

    def read_by(self, calls: Sequence[int]) -> Indices:
        """Storages that some of the calls read, each as often as it is read."""
        inside = np.zeros(len(self), dtype=np.bool_)
        inside[np.array(calls, dtype=np.intp)] = True
        return self.reads[inside[self.reader]]

    def held_bytes(self) -> int:
        """Bytes of memory."""
        return (16 + (0 if self._objects is None else 280)) * len(self) + 8 * (len(self.reads) + len(self.writes))


_PHASES = tuple(Phase)


def _column(values: Sequence[int]) -> Indices:
    return np.array(values, dtype=np.int32)


def _flat(rows: Sequence[Sequence[int]]) -> tuple[Indices, Indices]:
    """The values of all rows, and the row of each."""
    counts = [len(row) for row in rows]
    return _column(list(chain.from_iterable(rows))), np.repeat(np.arange(len(rows), dtype=np.int32), counts)


def _by_call(values: Indices, call: Indices, count: int) -> list[tuple[int, ...]]:
    """The inverse of `_flat`."""
    flat = values.tolist()
    ends = np.searchsorted(call, np.arange(count), side="right").tolist()
    return [tuple(flat[start:end]) for start, end in zip([0, *ends], ends, strict=False)]


def exact_array(sizes: Sequence[int] | NDArray[Any]) -> NDArray[Any]:
    """Whole numbers whose sum is exact: Python's, where 64 bits may not hold it."""
    if not len(sizes):
        return np.zeros(0, dtype=np.int64)
    largest = sizes.max() if isinstance(sizes, np.ndarray) else max(sizes)
    kind: Any = np.int64 if float(largest) * len(sizes) < 2.0**61 else object
    return np.asarray(sizes, dtype=kind)


class Storages(Sequence[Storage]):
    """Storages as columns: their bytes, and what they share with those of the same model at other sizes."""

    __slots__ = ("nbytes", "spans")

    def __init__(self, nbytes: Sequence[int] | NDArray[Any], spans: Spans) -> None:
        self.nbytes, self.spans = exact_array(nbytes), spans

    def __len__(self) -> int:
        return len(self.spans)

    @overload
    def __getitem__(self, index: int) -> Storage: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[Storage, ...]: ...
    def __getitem__(self, index: int | slice) -> Storage | tuple[Storage, ...]:
        if isinstance(index, slice):
            return tuple(self)[index]
        spans = self.spans
        category = _CATEGORIES[spans.category[index]]
        return Storage(int(self.nbytes[index]), int(spans.born[index]), int(spans.dies[index]), category)

    def __iter__(self) -> Iterator[Storage]:
        return (Storage(size, *span) for size, span in zip(self.nbytes.tolist(), self.spans.rows(), strict=True))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and tuple(self) == tuple(other)

    __hash__ = None  # type: ignore[assignment]


def spans_of(storages: Sequence[Storage]) -> Spans:
    """The spans of storages: the same object where they are columns."""
    if isinstance(storages, Storages):
        return storages.spans
    return Spans.of([s.born for s in storages], [s.dies for s in storages], [s.category for s in storages])


@dataclass(frozen=True, slots=True, eq=False)
class Skeleton:
    """What the graphs of one model of one shape have in common at all input sizes, compared by identity.

    Whatever follows from it alone (units, lifetimes) is worked out once for all batches.
    """

    calls: Calls
    modules: tuple[str, ...]
    spans: Spans
    parameters: tuple[Parameter, ...]
    names: tuple[str, ...]
    """Of the operators that calls refer to."""
    traced: Skeleton | None = None
    """The same in the dtypes that the step was traced in, where these are others."""
    repeated: tuple[tuple[str, tuple[int, ...]], ...] = ()
    """As `OpGraph.repeated`."""

    def held_bytes(self) -> int:
        """Bytes of memory of what it does not share with the skeletons of the same model in other shapes."""
        return 200 * len(self.parameters)


@dataclass(frozen=True, eq=False)
class OpGraph:
    """One forward + loss + backward at concrete sizes, with the parameters an optimizer then updates."""

    name: str
    kinds: Sequence[OpSignature]
    calls: Sequence[Call]
    modules: tuple[str, ...]
    storages: Sequence[Storage]
    parameters: tuple[Parameter, ...]
    buffer_bytes: int
    sizes: Mapping[str, int] = field(default_factory=dict)
    assumptions: tuple[str, ...] = ()
    base: Skeleton | None = None
    """The skeleton that the graph was made from; see `skeleton`."""
    repeated: tuple[tuple[str, tuple[int, ...]], ...] = ()
    """Stacks of which few blocks were traced: path, and for each block of the model the number of the traced one that
    it equals. `layers.layered` gives the whole model; calls, storages and parameters are those of the few."""

    @cached_property
    def skeleton(self) -> Skeleton:
        """What the graph shares with others: with no other, where its calls or storages were replaced."""
        base = self.base
        if (
            base is not None
            and (base.calls is self.calls and base.modules is self.modules and base.parameters is self.parameters)
            and (isinstance(self.storages, Storages) and self.storages.spans is base.spans)
            and len(self.kinds) == len(base.names)
        ):
            return base
        names = tuple(kind.name for kind in self.kinds)
        calls, spans = Calls.of(self.calls), spans_of(self.storages)
        return Skeleton(calls, self.modules, spans, self.parameters, names, repeated=self.repeated)

    def held_bytes(self) -> int:
        """Bytes of memory, without what it shares with the graphs of the same model at other sizes."""
        own = 1000 * (len(self.kinds) if isinstance(self.kinds, tuple) else 0) + 8 * len(self.storages)
        if self.skeleton is self.base:
            return own
        return own + 280 * len(self.calls) + 200 * len(self.storages) + 200 * len(self.parameters)

    @cached_property
    def storage_bytes(self) -> NDArray[Any]:
        """Bytes of every storage, by `exact_array`."""
        storages = self.storages
        return storages.nbytes if isinstance(storages, Storages) else exact_array([s.nbytes for s in storages])

    @cached_property
    def parameter_count(self) -> int:
        return sum(p.numel for p in self.parameters)
