"""Fits a step that is captured at a grid of sizes: every dimension becomes a polynomial of the sizes.

Captured at other sizes, the same sequence of operators appears with other dimensions. Each dimension is fitted in exact
rational arithmetic by a polynomial of the symbols (batch size, sequence length, ...) and checked at another size.
Floating point is not used: a dimension that is not such a polynomial raises `CaptureError`.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from precision_time.capture.graph import AttrValue, OpGraph, OpSignature, TensorSpec
from precision_time.capture.stored_apart import Pins, closest
from precision_time.capture.symbolic import FORMAT, evaluate
from precision_time.errors import CaptureError, JobError, PrecisionTimeError
from precision_time.zoo.workload import Symbol


def fit(
    name: str,
    symbols: Sequence[Symbol],
    capture_at: Callable[[dict[str, int]], OpGraph],
    degree: int | None = None,
    products: Sequence[Sequence[str]] = (),
) -> dict[str, Any]:
    """The stored form of the step that `capture_at(sizes)` traces, fitted over the symbols' samples.

    `degree`: the highest total degree of a polynomial, for models of many symbols: products of more of them than that
    do not occur, and the corners of the grid that only they need are not captured. `products`: the very products of
    symbols that occur, by name, so that only they and their factors are captured.
    Raises `CaptureError` when the operator sequence or a dimension does not follow the symbols.
    """
    places = _places(symbols, degree, products)
    graphs = [capture_at({s.name: s.samples[k] for s, k in zip(symbols, place, strict=True)}) for place in places]
    encoder = _Encoder(name, symbols, places)
    encoded = encoder.encode(graphs)
    stored = {
        "format": FORMAT,
        "name": name,
        "symbols": [[s.name, s.multiple_of, s.degree] for s in symbols],
        **encoded,
    }
    check = {s.name: s.check for s in symbols}
    evaluated, traced = evaluate(stored, check), capture_at(check)
    if not same_step(evaluated, traced):
        raise CaptureError(
            f"{name}: the fitted graph differs from a capture at {check}: its dimensions are no polynomials"
        )
    return stored


def fit_apart(
    stored: dict[str, Any],
    symbols: Sequence[Symbol],
    capture_at: Callable[[dict[str, int]], OpGraph],
    degree: int | None = None,
    products: Sequence[Sequence[str]] = (),
    same: Callable[[OpGraph, OpGraph], bool] | None = None,
) -> dict[Pins, dict[str, Any]]:
    """The steps at the sizes `apart` of symbols, where they are not what `stored` gives there; see `fit`.

    `same`: when two graphs count as one step (default: `same_step`). Where the model cannot be captured at such a size,
    that is stored: `refused`, the reason.
    """
    forms: dict[Pins, dict[str, Any]] = {}
    for pins in _pins(symbols):
        fixed = dict(pins)
        sizes = {s.name: s.samples[0] for s in symbols} | fixed
        nearest = forms.get(closest(forms, sizes), stored)
        try:
            traced = capture_at(sizes)
        except (CaptureError, JobError) as error:
            cause = _cause(error)
            if isinstance(cause, PrecisionTimeError):
                raise  # a limit of ours says nothing about training
            if "refused" not in nearest:
                at, larger = " and ".join(f"{name}={value}" for name, value in pins), " or ".join(fixed)
                why = f"{stored['name']} cannot be trained with {at}: {cause}; raise {larger}"
                forms[pins] = {"format": FORMAT, "refused": why}
            continue
        if "refused" not in nearest and (same or same_step)(evaluate(nearest, sizes), traced):
            continue
        forms[pins] = fit(
            stored["name"],
            [s for s in symbols if s.name not in fixed],
            lambda free, fixed=fixed: capture_at({**free, **fixed}),  # type: ignore[misc]
            degree,
            [[name for name in product if name not in fixed] for product in products],
        )
    return forms


def _pins(symbols: Sequence[Symbol]) -> Iterator[Pins]:
    """The sets of sizes that may be stored apart, the smallest first."""
    names = {s.name for s in symbols}
    ones = [s for s in symbols if s.apart is not None]
    for count in range(1, len(ones) + 1):
        for chosen in itertools.combinations(ones, count):
            pinned = {s.name: s.apart for s in chosen if s.apart is not None}
            if all(names.isdisjoint(set(s.apart_with) - set(pinned)) for s in chosen):
                yield tuple(sorted(pinned.items()))


def _cause(error: BaseException) -> BaseException:
    """The error of the library that could not run the step."""
    while error.__cause__ is not None:
        error = error.__cause__
    return error


def same_step(a: OpGraph, b: OpGraph) -> bool:
    """Whether two graphs run the same operators on the same tensors with the same lifetimes."""
    if len(a.calls) != len(b.calls) or a.parameters != b.parameters or len(a.storages) != len(b.storages):
        return False
    return (
        all(
            a.kinds[x.kind] == b.kinds[y.kind]
            and (x.phase, x.views, x.reads, x.writes) == (y.phase, y.views, y.reads, y.writes)
            for x, y in zip(a.calls, b.calls, strict=True)
        )
        and a.storages == b.storages
    )


def as_long(a: OpGraph, b: OpGraph) -> bool:
    """Whether two graphs run the same operators on as many elements, with the same lifetimes. Of images channels last,
    a batch of one is viewed in fewer dimensions, which costs nothing."""

    def elements(kind: OpSignature) -> tuple[Any, ...]:
        return kind.name, *((t.dtype, math.prod(t.shape)) for t in (*kind.inputs, *kind.outputs))

    return (
        len(a.calls) == len(b.calls)
        and all(
            elements(a.kinds[x.kind]) == elements(b.kinds[y.kind])
            and (x.phase, x.reads, x.writes) == (y.phase, y.reads, y.writes)
            for x, y in zip(a.calls, b.calls, strict=True)
        )
        and a.parameters == b.parameters
        and list(a.storages) == list(b.storages)
    )


def _places(
    symbols: Sequence[Symbol], degree: int | None = None, products: Sequence[Sequence[str]] = ()
) -> list[tuple[int, ...]]:
    """The captured points of the grid, by index of each symbol's sample; also the powers that they determine."""
    every = itertools.product(*(range(symbol.degree + 1) for symbol in symbols))
    powers = [[product.count(symbol.name) for symbol in symbols] for product in products]

    def occurs(place: tuple[int, ...]) -> bool:
        if degree is not None and sum(place) > degree:
            return False
        divides = (all(a <= b for a, b in zip(place, whole, strict=True)) for whole in powers)
        return not powers or any(divides)

    return [place for place in every if occurs(place)]


def _number_of(place: Sequence[int], widths: Sequence[int]) -> int:
    """The place's number among all powers, the last symbol's counted first."""
    number = 0
    for power, width in zip(place, widths, strict=True):
        number = number * width + power
    return number


@dataclass(frozen=True, slots=True)
class _Polynomial:
    """An attribute that is a polynomial of the sizes, by its number."""

    index: int


class _Table:
    """Values numbered in order of first appearance."""

    def __init__(self) -> None:
        self.index: dict[Any, int] = {}

    def __call__(self, value: Any) -> int:
        return self.index.setdefault(value, len(self.index))

    @property
    def values(self) -> list[Any]:
        return list(self.index)


class _Encoder:
    def __init__(self, name: str, symbols: Sequence[Symbol], places: Sequence[tuple[int, ...]]) -> None:
        self.name = name
        self.units = [[Fraction(sample, s.multiple_of) for sample in s.samples] for s in symbols]
        index = {place: i for i, place in enumerate(places)}
        # Along every symbol, the runs of places that differ in it alone, from its first sample on.
        self.runs = [
            [
                [index[other] for k in range(len(units)) if (other := (*p[:at], k, *p[at + 1 :])) in index]
                for p in places
                if p[at] == 0
            ]
            for at, units in enumerate(self.units)
        ]
        widths = [symbol.degree + 1 for symbol in symbols]
        self.numbers = [_number_of(place, widths) for place in places]
        self.polynomials = _Table()
        self.memo: dict[tuple[int, ...], int] = {}
        self.specs = _Table()
        self.kinds = _Table()

    def polynomial(self, values: tuple[int, ...]) -> int:
        known = self.memo.get(values)
        if known is not None:
            return known
        coefficients = self._coefficients(values)
        terms = tuple((n, c) for n, c in zip(self.numbers, coefficients, strict=False) if c)
        self.memo[values] = index = self.polynomials(terms)
        return index

    def _coefficients(self, values: Sequence[int]) -> list[Fraction]:
        """Newton's divided differences along one symbol after the other, then conversion from Newton's form to powers.

        Both use only the places below a place, so a grid without its far corners gives the same result.
        """
        differences = [Fraction(v) for v in values]
        if len(set(values)) == 1:
            return [differences[0]]
        for units, runs in zip(self.units, self.runs, strict=True):
            for run in runs:
                for order in range(1, len(run)):
                    for k in range(len(run) - 1, order - 1, -1):
                        difference = differences[run[k]] - differences[run[k - 1]]
                        differences[run[k]] = difference / (units[k] - units[k - order])
        for units, runs in zip(self.units, self.runs, strict=True):
            for run in runs:
                for start in range(len(run) - 2, -1, -1):
                    for k in range(start, len(run) - 1):
                        differences[run[k]] -= units[start] * differences[run[k + 1]]
        return differences

    def spec(self, specs: Sequence[TensorSpec]) -> int:
        first = specs[0]
        if any(len(s.shape) != len(first.shape) or s.dtype != first.dtype for s in specs):
            raise CaptureError(f"{self.name}: a tensor changes rank or dtype with the input sizes")
        dims = tuple(self.polynomial(dim) for dim in zip(*(s.shape for s in specs), strict=True))
        return self.specs((first.dtype, dims))

    def kind(self, kinds: Sequence[OpSignature]) -> int:
        first = kinds[0]
        for other in kinds[1:]:
            if (other.name, len(other.inputs), len(other.outputs)) != (
                first.name,
                len(first.inputs),
                len(first.outputs),
            ):
                raise CaptureError(f"{self.name}: {first.name} becomes {other.name} at another input size")
        inputs = tuple(self.spec(column) for column in zip(*(k.inputs for k in kinds), strict=True))
        outputs = tuple(self.spec(column) for column in zip(*(k.outputs for k in kinds), strict=True))
        return self.kinds((first.name, inputs, outputs, self.attrs(kinds)))

    def attrs(self, kinds: Sequence[OpSignature]) -> tuple[tuple[str, AttrValue | _Polynomial], ...]:
        """Constant attributes, and integers that change with the sizes (number of experts) as polynomials."""
        first = kinds[0].attrs
        fitted: list[tuple[str, AttrValue | _Polynomial]] = []
        for column in zip(*(k.attrs for k in kinds), strict=False):
            name, value = column[0]
            values = tuple(v for _, v in column)
            if all(v == value for v in values):
                fitted.append((name, value))
            elif all(type(v) is int for v in values):
                fitted.append((name, _Polynomial(self.polynomial(tuple(int(str(v)) for v in values)))))
            else:
                break
        if len(fitted) < len(first) or any([n for n, _ in k.attrs] != [n for n, _ in first] for k in kinds):
            raise CaptureError(f"{self.name}: the attributes of {kinds[0].name} change with the input sizes")
        return tuple(fitted)

    def encode(self, graphs: Sequence[OpGraph]) -> dict[str, Any]:
        first = graphs[0]
        if any(len(g.calls) != len(first.calls) or len(g.storages) != len(first.storages) for g in graphs):
            raise CaptureError(f"{self.name}: the sequence of operators changes with the input sizes")
        memo: dict[tuple[int, ...], int] = {}
        kinds = []
        for calls in zip(*(g.calls for g in graphs), strict=True):
            key = tuple(c.kind for c in calls)
            if key not in memo:
                memo[key] = self.kind([g.kinds[c.kind] for g, c in zip(graphs, calls, strict=True)])
            kinds.append(memo[key])
        sizes = [
            self.polynomial(tuple(s.nbytes for s in row)) for row in zip(*(g.storages for g in graphs), strict=True)
        ]
        calls_ = first.calls
        return {
            "modules": list(first.modules),
            "calls": {
                "kind": kinds,
                "phase": [int(c.phase) for c in calls_],
                "module": [c.module for c in calls_],
                "views": [c.views for c in calls_],
                "reads": [list(c.reads) for c in calls_],
                "writes": [list(c.writes) for c in calls_],
            },
            "storages": {
                "bytes": sizes,
                "born": [s.born for s in first.storages],
                "dies": [s.dies - s.born for s in first.storages],
                "category": [int(s.category) for s in first.storages],
            },
            "parameters": [
                [
                    p.name,
                    [self.polynomial(dim) for dim in zip(*(q.shape for q in row), strict=True)],
                    p.dtype,
                    p.grad_dtype,
                    p.ready,
                    int(p.trainable),
                ]
                for p, row in zip(first.parameters, zip(*(g.parameters for g in graphs), strict=True), strict=True)
            ],
            "buffer_bytes": self.polynomial(tuple(g.buffer_bytes for g in graphs)),
            "assumptions": list(first.assumptions),
            "kinds": [[n, list(i), list(o), _jsonable(a)] for n, i, o, a in self.kinds.values],
            "specs": [[dtype, *dims] for dtype, dims in self.specs.values],
            "polynomials": [[[i, _number(c)] for i, c in terms] for terms in self.polynomials.values],
        }


def _number(value: Fraction) -> int | str:
    return value.numerator if value.denominator == 1 else f"{value.numerator}/{value.denominator}"


def _jsonable(attrs: tuple[tuple[str, AttrValue | _Polynomial], ...]) -> list[Any]:
    return [
        [k, {"polynomial": v.index} if isinstance(v, _Polynomial) else list(v) if isinstance(v, tuple) else v]
        for k, v in attrs
    ]
