"""The distinct operators of a stored step: their form, which the graphs at all sizes share, and its numbers at some."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, overload

from precision_time.bounded_cache import STRUCTURES, bounded
from precision_time.capture.graph import AttrValue, OpSignature, TensorSpec


@dataclass(frozen=True, slots=True)
class Number:
    """In an attribute of an operator without sizes: the number of a polynomial. Tensors hold plain numbers."""

    polynomial: int


@dataclass(frozen=True, slots=True, eq=False)
class Form:
    """Operators whose dimensions and attributes are numbers of polynomials, compared by identity.

    specs: their distinct tensors, to which `kinds` refers by position: name, inputs, outputs, attributes.
    """

    specs: tuple[TensorSpec, ...]
    kinds: tuple[tuple[str, tuple[int, ...], tuple[int, ...], tuple[tuple[str, Any], ...]], ...]
    names: tuple[str, ...]
    fixed: Sequence[bool]
    """Of every polynomial, whether its value is the same at all sizes."""
    in_bfloat16: Form | None = None
    """Of a form in float16: the same one in bfloat16, whose works differ in the name of the arithmetic alone."""

    @classmethod
    def of(cls, kinds: Sequence[OpSignature], fixed: Sequence[bool]) -> Form:
        """Of operators that hold numbers of polynomials in place of dimensions."""
        numbers: dict[TensorSpec, int] = {}

        def number(specs: tuple[TensorSpec, ...]) -> tuple[int, ...]:
            return tuple([numbers.setdefault(spec, len(numbers)) for spec in specs])

        rows = tuple([(k.name, number(k.inputs), number(k.outputs), k.attrs) for k in kinds])
        return cls(tuple(numbers), rows, tuple([kind.name for kind in kinds]), fixed)

    def __len__(self) -> int:
        return len(self.kinds)

    def renamed(self, rename: Mapping[str, str]) -> Form:
        """With other dtypes."""
        specs = tuple([TensorSpec(s.shape, rename.get(s.dtype, s.dtype)) for s in self.specs])
        return replace(self, specs=specs, in_bfloat16=self if rename == {"bfloat16": "float16"} else None)

    def held_bytes(self) -> int:
        """Bytes of memory of a form made from another."""
        return 200 * len(self.kinds)

    def unsized(self) -> tuple[OpSignature, ...]:
        """The operators that `of` takes."""
        specs = self.specs
        return tuple(
            [
                OpSignature(name, tuple([specs[i] for i in inputs]), tuple([specs[o] for o in outputs]), attrs)
                for name, inputs, outputs, attrs in self.kinds
            ]
        )

    def at(self, values: Sequence[int]) -> tuple[OpSignature, ...]:
        """The operators; `values`: of the polynomials."""
        specs = [TensorSpec(tuple([values[d] for d in spec.shape]), spec.dtype) for spec in self.specs]
        return tuple(
            [
                OpSignature(
                    name,
                    tuple([specs[i] for i in inputs]),
                    tuple([specs[o] for o in outputs]),
                    tuple([(key, _attr(value, values)) for key, value in attrs]) if attrs else (),
                )
                for name, inputs, outputs, attrs in self.kinds
            ]
        )


class SizedKinds(Sequence[OpSignature]):
    """A form at some sizes. Its operators are hundreds of objects, made only where one is asked for."""

    __slots__ = ("_objects", "form", "values")

    def __init__(self, form: Form, values: Sequence[int]) -> None:
        self.form, self.values = form, values
        self._objects: tuple[OpSignature, ...] | None = None

    def _made(self) -> tuple[OpSignature, ...]:
        if self._objects is None:
            self._objects = self.form.at(self.values)
        return self._objects

    def __len__(self) -> int:
        return len(self.form)

    @overload
    def __getitem__(self, index: int) -> OpSignature: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[OpSignature, ...]: ...
    def __getitem__(self, index: int | slice) -> OpSignature | tuple[OpSignature, ...]:
        return self._made()[index]

    def __iter__(self) -> Iterator[OpSignature]:
        return iter(self._made())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and tuple(self) == tuple(other)

    __hash__ = None  # type: ignore[assignment]


def names_of(kinds: Sequence[OpSignature]) -> tuple[str, ...]:
    """The names of operators, without making those of a form."""
    return kinds.form.names if isinstance(kinds, SizedKinds) else tuple([kind.name for kind in kinds])


def with_attribute(
    kinds: Sequence[OpSignature], names: tuple[str, ...], old: float, new: float
) -> Sequence[OpSignature]:
    """Operators with another value of some attributes where they have the old one."""
    if isinstance(kinds, SizedKinds):
        return SizedKinds(_form_with(kinds.form, names, old, new), kinds.values)
    return tuple([OpSignature(k.name, k.inputs, k.outputs, _attrs_with(k.attrs, names, old, new)) for k in kinds])


@bounded(budget=STRUCTURES)
def _form_with(form: Form, names: tuple[str, ...], old: float, new: float) -> Form:
    """The same form for all sizes."""
    kinds = [(name, ins, outs, _attrs_with(attrs, names, old, new)) for name, ins, outs, attrs in form.kinds]
    other = form.in_bfloat16
    return replace(form, kinds=tuple(kinds), in_bfloat16=other and _form_with(other, names, old, new))


def _attrs_with(
    attrs: tuple[tuple[str, Any], ...], names: tuple[str, ...], old: float, new: float
) -> tuple[tuple[str, Any], ...]:
    return tuple([(key, new if key in names and value == old else value) for key, value in attrs])


def _attr(value: Any, values: Sequence[int]) -> AttrValue:
    if type(value) is Number:
        return values[value.polynomial]
    return tuple(_attr(v, values) for v in value) if isinstance(value, tuple) else value
