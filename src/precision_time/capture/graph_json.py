"""An `OpGraph` as plain JSON values, and back: what comes back is checked, since anybody may have written it.

    specs       [dtype, dimension, ...] of every distinct tensor
    kinds       [name, [input spec, ...], [output spec, ...], [[attribute, value], ...]]
    calls       columns kind, phase, module, views, reads, writes
    storages    columns bytes, born, dies, category
    parameters  [name, shape, dtype, dtype of the gradient, ready, trainable, packed]

A number that JSON has not, or that files may not hold, is {"number": text}.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn

from precision_time.capture.graph import (
    BYTES_PER_ELEMENT,
    AttrValue,
    Calls,
    Category,
    OpGraph,
    OpSignature,
    Parameter,
    Phase,
    Spans,
    Storages,
    TensorSpec,
)
from precision_time.capture.limits import MOST_BUILT_BY_NAME, MOST_DISPATCHED, MOST_TENSOR_BYTES
from precision_time.checks import show
from precision_time.errors import DataError
from precision_time.job.lora import QUANTIZED

MOST_STORAGES, MOST_DIMENSIONS, MOST_TENSORS, MOST_ATTRS = 200_000, 16, 2_000, 50
LARGEST_DIMENSION = 2**48
MOST_VIEWS = 10**5
LONGEST_NAME = 300
_OPERATOR = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,60}(?:[.:]{1,2}[A-Za-z0-9_]{1,100}){1,3}")
_ATTR = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,60}")
_EXPONENT = 300
"""Numbers beyond 1e300 are written as text."""


def graph_values(graph: OpGraph) -> dict[str, Any]:
    """The graph as JSON values."""
    numbers: dict[TensorSpec, int] = {}

    def number(specs: Sequence[TensorSpec]) -> list[int]:
        return [numbers.setdefault(spec, len(numbers)) for spec in specs]

    kinds = [
        [kind.name, number(kind.inputs), number(kind.outputs), [[key, _plain(value)] for key, value in kind.attrs]]
        for kind in graph.kinds
    ]
    calls, storages = tuple(graph.calls), tuple(graph.storages)
    return {
        "specs": [[spec.dtype, *spec.shape] for spec in numbers],
        "kinds": kinds,
        "calls": {
            "kind": [call.kind for call in calls],
            "phase": [int(call.phase) for call in calls],
            "module": [call.module for call in calls],
            "views": [call.views for call in calls],
            "reads": [list(call.reads) for call in calls],
            "writes": [list(call.writes) for call in calls],
        },
        "modules": list(graph.modules),
        "storages": {
            "bytes": [storage.nbytes for storage in storages],
            "born": [storage.born for storage in storages],
            "dies": [storage.dies for storage in storages],
            "category": [int(storage.category) for storage in storages],
        },
        "parameters": [
            [p.name, list(p.shape), p.dtype, p.grad_dtype, p.ready, p.trainable, p.packed or False]
            for p in graph.parameters
        ],
        "buffer_bytes": graph.buffer_bytes,
        "assumptions": list(graph.assumptions),
    }


def _plain(value: AttrValue) -> Any:
    if isinstance(value, tuple):
        return [_plain(each) for each in value]
    if isinstance(value, float) and not (value == 0.0 or 10.0**-_EXPONENT < abs(value) < 10.0**_EXPONENT):
        return {"number": repr(value)}
    return value


def graph_of(values: Any, name: str) -> OpGraph:
    """The graph of JSON values; `name` is its model. Raises `DataError` for anything that is not such a graph."""
    read = _Reader()
    specs = [read.spec(f"specs[{i}]", each) for i, each in enumerate(read.rows(values, "specs", 10 * MOST_DISPATCHED))]
    kinds = tuple(
        read.kind(f"kinds[{i}]", each, specs) for i, each in enumerate(read.rows(values, "kinds", MOST_DISPATCHED))
    )
    modules = tuple(
        read.text(f"modules[{i}]", each) for i, each in enumerate(read.rows(values, "modules", MOST_BUILT_BY_NAME))
    )
    stored = read.mapping(values, "storages")
    called = read.mapping(values, "calls")
    count = len(read.rows(called, "kind", MOST_DISPATCHED))
    blocks = len(read.rows(stored, "bytes", MOST_STORAGES))
    calls = Calls(
        read.column(called, "kind", count, len(kinds) - 1),
        read.column(called, "phase", count, max(Phase)),
        read.column(called, "module", count, max(len(modules) - 1, 0)),
        read.column(called, "views", count, MOST_VIEWS),
        read.lists(called, "reads", count, blocks - 1),
        read.lists(called, "writes", count, blocks - 1),
    )
    storages = Storages(
        read.column(stored, "bytes", blocks, MOST_TENSOR_BYTES),
        Spans.of(
            read.column(stored, "born", blocks, count, -1),
            read.column(stored, "dies", blocks, count),
            read.column(stored, "category", blocks, max(Category)),
        ),
    )
    parameters = tuple(
        read.parameter(f"parameters[{i}]", each, count)
        for i, each in enumerate(read.rows(values, "parameters", MOST_BUILT_BY_NAME))
    )
    assumptions = tuple(
        read.text(f"assumptions[{i}]", each, 2000) for i, each in enumerate(read.rows(values, "assumptions", 100))
    )
    buffers = read.whole("buffer_bytes", values.get("buffer_bytes"), MOST_TENSOR_BYTES)
    if not count or not kinds or not modules:
        read.wrong("calls", count, "no operators")
    return OpGraph(name, kinds, calls, modules, storages, parameters, buffers, {}, assumptions)


class _Reader:
    """Reads parts of a graph; `where` names the part in errors."""

    def wrong(self, where: str, value: object, what: str) -> NoReturn:
        raise DataError(f"graph: {where} is {show(value)}, {what}; capture the model again")

    def mapping(self, values: Any, key: str) -> Mapping[str, Any]:
        found = values.get(key) if isinstance(values, Mapping) else None
        if not isinstance(found, Mapping):
            self.wrong(key, found, "not a mapping")
        return found

    def rows(self, values: Any, key: str, most: int) -> Sequence[Any]:
        found = values.get(key) if isinstance(values, Mapping) else None
        if not isinstance(found, list):
            self.wrong(key, found, "not a list")
        if len(found) > most:
            self.wrong(key, f"a list of {len(found):,}", f"and at most {most:,} are read")
        return found

    def whole(self, where: str, value: Any, most: int, least: int = 0) -> int:
        if type(value) is not int or not least <= value <= most:
            self.wrong(where, value, f"not a whole number from {least} to {most:,}")
        return value

    def column(self, values: Any, key: str, count: int, most: int, least: int = 0) -> list[int]:
        found = self.rows(values, key, MOST_STORAGES)
        if len(found) != count:
            self.wrong(key, f"a list of {len(found):,}", f"not of {count:,}")
        if found and (set(map(type, found)) != {int} or min(found) < least or max(found) > most):
            place = next(i for i, each in enumerate(found) if type(each) is not int or not least <= each <= most)
            self.whole(f"{key}[{place}]", found[place], most, least)
        return list(found)

    def lists(self, values: Any, key: str, count: int, most: int) -> list[list[int]]:
        found = self.rows(values, key, count)
        if len(found) != count:
            self.wrong(key, f"a list of {len(found):,}", f"not of {count:,}")
        return [self._indices(f"{key}[{i}]", each, most) for i, each in enumerate(found)]

    def _indices(self, where: str, value: Any, most: int) -> list[int]:
        if not isinstance(value, list) or len(value) > MOST_TENSORS:
            self.wrong(where, value, f"not a list of up to {MOST_TENSORS:,} numbers")
        return [self.whole(where, each, most) for each in value]

    def text(self, where: str, value: Any, most: int = LONGEST_NAME) -> str:
        if not isinstance(value, str) or len(value) > most or not (value.isprintable() or not value):
            self.wrong(where, value, f"not a line of at most {most} characters")
        return value

    def dtype(self, where: str, value: Any) -> str:
        if not isinstance(value, str) or value not in BYTES_PER_ELEMENT:
            self.wrong(where, value, f"not one of {', '.join(BYTES_PER_ELEMENT)}")
        return value

    def shape(self, where: str, value: Any) -> tuple[int, ...]:
        if not isinstance(value, list) or len(value) > MOST_DIMENSIONS:
            self.wrong(where, value, f"not a list of up to {MOST_DIMENSIONS} dimensions")
        shape = tuple(self.whole(where, each, LARGEST_DIMENSION) for each in value)
        if math.prod(shape) > MOST_TENSOR_BYTES:
            self.wrong(where, value, "more elements than any tensor has")
        return shape

    def spec(self, where: str, value: Any) -> TensorSpec:
        if not isinstance(value, list) or not value:
            self.wrong(where, value, "not a dtype with dimensions")
        return TensorSpec(self.shape(where, value[1:]), self.dtype(where, value[0]))

    def kind(self, where: str, value: Any, specs: Sequence[TensorSpec]) -> OpSignature:
        if not isinstance(value, list) or len(value) != 4:
            self.wrong(where, value, "not name, inputs, outputs, attributes")
        name, inputs, outputs, attrs = value
        if not isinstance(name, str) or not _OPERATOR.fullmatch(name):
            self.wrong(where, name, "not the name of an operator")
        if not isinstance(attrs, list) or len(attrs) > MOST_ATTRS:
            self.wrong(where, attrs, f"not a list of up to {MOST_ATTRS} attributes")
        at = len(specs) - 1
        return OpSignature(
            name,
            tuple(specs[i] for i in self._indices(where, inputs, at)),
            tuple(specs[i] for i in self._indices(where, outputs, at)),
            tuple(self._attr(where, each) for each in attrs),
        )

    def _attr(self, where: str, value: Any) -> tuple[str, AttrValue]:
        if not isinstance(value, list) or len(value) != 2 or not _ATTR.fullmatch(str(value[0])):
            self.wrong(where, value, "not an attribute with its value")
        return str(value[0]), self._value(where, value[1], 3)

    def _value(self, where: str, value: Any, depth: int) -> AttrValue:
        if isinstance(value, list) and depth and len(value) <= MOST_TENSORS:
            return tuple(self._value(where, each, depth - 1) for each in value)
        if isinstance(value, Mapping) and set(value) == {"number"}:
            return _number(self, where, value["number"])
        if value is None or isinstance(value, (bool, float)):
            return value
        if isinstance(value, int) and abs(value) < 2**62:
            return value
        if not isinstance(value, str):
            self.wrong(where, value, "not the value of an attribute")
        return self.text(where, value)

    def parameter(self, where: str, value: Any, count: int) -> Parameter:
        if not isinstance(value, list) or len(value) != 7:
            self.wrong(where, value, "not name, shape, dtypes, ready, trainable, packed")
        name, shape, dtype, grad_dtype, ready, trainable, packed = value
        if type(trainable) is not bool or packed not in (False, *QUANTIZED):
            self.wrong(where, value, f"without true or false, then false or one of {', '.join(QUANTIZED)}, at its end")
        return Parameter(
            self.text(where, name),
            self.shape(where, shape),
            self.dtype(where, dtype),
            self.dtype(where, grad_dtype),
            self.whole(where, ready, count, -1),
            trainable,
            packed or "",
        )


def _number(read: _Reader, where: str, text: Any) -> float:
    convert: Callable[[Any], float] = float
    if not isinstance(text, str) or len(text) > 40:
        read.wrong(where, text, "not a number as text")
    try:
        return convert(text)
    except ValueError:
        read.wrong(where, text, "not a number as text")
