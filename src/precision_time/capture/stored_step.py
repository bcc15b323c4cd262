"""A stored step, prepared so that its graph at further sizes is cheap: only dimensions are evaluated.

Calls, modules, lifetimes and parameters are objects that the graphs at all sizes share (`Skeleton`). Precisions that
change a stored step (softmax kernels of float16, fp8 products) change it here, before any size is known: a graph whose
dimensions are numbers of polynomials goes through the same functions as a traced one.
"""

from __future__ import annotations

import marshal
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from math import lcm
from sys import intern
from typing import Any

import numpy as np
from numpy.typing import NDArray

from precision_time.bounded_cache import STRUCTURES, bounded
from precision_time.capture.graph import (
    BYTES_PER_ELEMENT,
    Calls,
    OpGraph,
    OpSignature,
    Parameter,
    Skeleton,
    Spans,
    Storages,
    TensorSpec,
    spans_of,
)
from precision_time.capture.kinds import Form, Number, SizedKinds
from precision_time.errors import CaptureError

_LARGEST = 2.0**61
"""Whole numbers below it are exact in arrays; larger ones are Python's."""


@dataclass(frozen=True, slots=True, eq=False)
class Polynomials:
    """Polynomials of the input sizes with rational coefficients, whose values are whole numbers.

    `terms`: monomial of every term of all polynomials in order; `starts`: first term of each; the value of a polynomial
    is the sum of its terms over its denominator.
    """

    name: str
    symbols: tuple[tuple[str, int, int], ...]
    monomials: tuple[tuple[int, ...], ...]
    terms: NDArray[np.intp]
    coefficients: tuple[int, ...]
    starts: NDArray[np.intp]
    denominators: tuple[int, ...]
    fixed: tuple[bool, ...]
    """Whether the value of each is the same at all sizes."""

    @classmethod
    def of(cls, stored: Mapping[str, Any]) -> Polynomials:
        symbols = tuple((name, multiple, degree) for name, multiple, degree in stored["symbols"])
        used: dict[int, int] = {}
        terms: list[int] = []
        coefficients: list[int] = []
        starts: list[int] = []
        denominators: list[int] = []
        for polynomial in ([[0, 0]], *stored["polynomials"]):  # the first is zero
            exact = [(index, Fraction(c)) for index, c in polynomial] or [(0, Fraction(0))]
            denominator = lcm(*(c.denominator for _, c in exact))
            starts.append(len(terms))
            denominators.append(denominator)
            terms += [used.setdefault(index, len(used)) for index, _ in exact]
            coefficients += [int(c * denominator) for _, c in exact]
        monomials = []
        for index in used:
            powers, left = [], index
            for _, _, degree in reversed(symbols):
                left, power = divmod(left, degree + 1)
                powers.append(power)
            monomials.append(tuple(reversed(powers)))
        varies = np.array([any(powers) for powers in monomials])[terms] & (np.array(coefficients, dtype=object) != 0)
        return cls(
            stored["name"],
            symbols,
            tuple(monomials),
            np.array(terms, dtype=np.intp),
            tuple(coefficients),
            np.array(starts, dtype=np.intp),
            tuple(denominators),
            tuple((~np.logical_or.reduceat(varies, starts)).tolist()),
        )

    @property
    def nbytes(self) -> int:
        """Bytes of memory."""
        return 70 * len(self.coefficients) + 120 * len(self.denominators)

    def at(self, sizes: Mapping[str, int]) -> list[int]:
        """The value of every polynomial; number 0 is zero."""
        units = []
        for name, multiple, _ in self.symbols:
            if sizes[name] % multiple:
                raise CaptureError(
                    f"{name} {sizes[name]} is not a multiple of {multiple}, which the stored graph of {self.name} needs"
                )
            units.append(sizes[name] // multiple)
        products = []
        for powers in self.monomials:
            product = 1
            for unit, power in zip(units, powers, strict=True):
                product *= unit**power
            products.append(product)
        kind: Any = np.int64 if max(products) * float(max(map(abs, self.coefficients))) * 64 < _LARGEST else object
        values = np.array(self.coefficients, dtype=kind) * np.array(products, dtype=kind)[self.terms]
        sums: list[int] = np.add.reduceat(values, self.starts).tolist()
        return [total // denominator for total, denominator in zip(sums, self.denominators, strict=True)]


@dataclass(frozen=True, slots=True, eq=False)
class StoredStep:
    """A graph whose dimensions, bytes and attributes are numbers of `polynomials`.

    graph    its own `kinds` are left out: `form` holds them
    factor   bytes of a stored float over those of the dtype that replaces it
    """

    graph: OpGraph
    form: Form
    polynomials: Polynomials
    factor: int
    calls: Calls
    nbytes: NDArray[np.intp]
    spans: Spans
    traced: StoredStep | None = None
    """The step in other dtypes whose calls, lifetimes and polynomials these are, and which counts their memory."""

    @classmethod
    def of(cls, stored: Mapping[str, Any], rename: Mapping[str, str]) -> StoredStep:
        step = cls.around(_without_sizes(stored), Polynomials.of(stored), 1)
        return step.renamed(rename) if rename else step

    @classmethod
    def around(cls, graph: OpGraph, polynomials: Polynomials, factor: int) -> StoredStep:
        nbytes, spans, calls = graph.storage_bytes, spans_of(graph.storages), Calls.of(graph.calls)
        used, numbers = np.unique(calls.kind, return_inverse=True)
        form = Form.of([graph.kinds[i] for i in used.tolist()], polynomials.fixed)
        calls = calls.with_kinds(numbers.tolist())
        return cls(
            replace(graph, kinds=(), calls=calls, storages=Storages(nbytes, spans)),
            form,
            polynomials,
            factor,
            calls,
            nbytes.astype(np.intp),
            spans,
        )

    def renamed(self, rename: Mapping[str, str]) -> StoredStep:
        """The step in other dtypes of the same regime."""
        parameters = tuple(
            replace(p, dtype=rename.get(p.dtype, p.dtype), grad_dtype=rename.get(p.grad_dtype, p.grad_dtype))
            for p in self.graph.parameters
        )
        factor = {old: _width(new) // _width(old) for old, new in rename.items()}.get("float32", 1)
        graph = replace(self.graph, parameters=parameters)
        return replace(self, graph=graph, form=self.form.renamed(rename), factor=factor, traced=self)

    def held_bytes(self) -> int:
        """Bytes of memory."""
        dtypes = 200 * (len(self.form.specs) + len(self.graph.parameters))
        if self.traced is not None:
            return dtypes
        return dtypes + 250 * len(self.form) + 40 * len(self.spans) + self.calls.held_bytes() + self.polynomials.nbytes

    def unsized(self) -> OpGraph:
        """The graph with the numbers of polynomials in place of dimensions and bytes."""
        return replace(self.graph, kinds=self.form.unsized())

    def changed(self, change: Callable[[OpGraph], OpGraph]) -> StoredStep:
        """The step after a change that looks at no size."""
        graph = self.unsized()
        after = change(graph)
        return self if after is graph else StoredStep.around(after, self.polynomials, self.factor)

    def at(self, sizes: Mapping[str, int]) -> OpGraph:
        """The graph at concrete sizes."""
        values = self.polynomials.at(sizes)
        graph = self.graph
        shapes = tuple([values[d] for p in graph.parameters for d in p.shape])
        skeleton = _skeleton(self, shapes)
        nbytes = np.array(values, dtype=np.int64 if max(values) < _LARGEST else object)[self.nbytes] * self.factor
        return OpGraph(
            name=graph.name,
            kinds=SizedKinds(self.form, values),
            calls=skeleton.calls,
            modules=skeleton.modules,
            storages=Storages(nbytes, skeleton.spans),
            parameters=skeleton.parameters,
            buffer_bytes=values[graph.buffer_bytes] * self.factor,
            sizes=dict(sizes),
            assumptions=graph.assumptions,
            base=skeleton,
        )


@bounded(budget=STRUCTURES)
def _skeleton(step: StoredStep, shapes: tuple[int, ...]) -> Skeleton:
    """The skeleton of a step; `shapes`: all dimensions of its parameters in order."""
    parameters = []
    place = 0
    for p in step.graph.parameters:
        shape = shapes[place : place + len(p.shape)]
        place += len(p.shape)
        parameters.append(Parameter(p.name, shape, p.dtype, p.grad_dtype, p.ready, p.trainable))
    traced = None if step.traced is None else _skeleton(step.traced, shapes)
    return Skeleton(step.calls, step.graph.modules, step.spans, tuple(parameters), step.form.names, traced)


def _numbered(value: Any) -> Any:
    """A stored attribute; a dimension in it becomes the number of its polynomial."""
    if isinstance(value, dict):
        return Number(value["polynomial"] + 1)
    return tuple(_numbered(v) for v in value) if isinstance(value, list) else value


def _without_sizes(stored: Mapping[str, Any]) -> OpGraph:
    """The stored graph with numbers of polynomials in place of dimensions and bytes."""
    specs = [TensorSpec(tuple([d + 1 for d in dims]), intern(dtype)) for dtype, *dims in stored["specs"]]
    calls, storages = stored["calls"], stored["storages"]
    lives = zip(storages["born"], storages["dies"], strict=True)
    spans = Spans.of(storages["born"], [born + life for born, life in lives], storages["category"])
    columns = (calls[name] for name in ("kind", "phase", "module", "views", "reads", "writes"))
    attributes: dict[bytes, tuple[tuple[str, Any], ...]] = {}

    def attrs_of(pairs: list[list[Any]]) -> tuple[tuple[str, Any], ...]:
        """Attributes, of which operators have few distinct ones, as the same object; 1, 1.0 and true are distinct."""
        key = marshal.dumps(pairs, 2)
        if key not in attributes:
            attributes[key] = tuple([(intern(name), _numbered(value)) for name, value in pairs])
        return attributes[key]

    return OpGraph(
        name=stored["name"],
        kinds=tuple(
            [
                OpSignature(
                    intern(name),
                    tuple([specs[i] for i in inputs]),
                    tuple([specs[o] for o in outputs]),
                    attrs_of(attrs),
                )
                for name, inputs, outputs, attrs in stored["kinds"]
            ]
        ),
        calls=Calls(*columns),
        modules=tuple(map(intern, stored["modules"])),
        storages=Storages([size + 1 for size in storages["bytes"]], spans),
        parameters=tuple(
            Parameter(intern(name), tuple([d + 1 for d in shape]), intern(dtype), intern(grad), ready, bool(trainable))
            for name, shape, dtype, grad, ready, trainable in stored["parameters"]
        ),
        buffer_bytes=stored["buffer_bytes"] + 1,
        assumptions=tuple(stored["assumptions"]),
    )


def _width(dtype: str) -> int:
    return BYTES_PER_ELEMENT[dtype]
