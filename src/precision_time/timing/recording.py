"""Arithmetic on dimensions that is recorded once and repeated on arrays for other dimensions.

The rules of operators are plain Python functions of whole numbers. A rule that gets an `Amount` in place of a number
computes as before, and every operation goes into a `Recording`. Repeating it for other inputs takes a few calls of
numpy per kind of operation, whatever the number of operators.

A comparison, and whatever else turns an amount into a plain number, is a guard: the recording is valid where all
guards come out as recorded. Values are 64-bit floats, which hold the whole numbers below 2^53 exactly.
"""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Plain = int | float
Function = Callable[[Any, Any], Any]


def _log2(value: Any, _other: Any) -> Any:
    """Of numbers and arrays alike, so that both give the same bits."""
    return np.vectorize(math.log2, otypes=[np.float64])(value) if isinstance(value, np.ndarray) else math.log2(value)


_ADD, _MULTIPLY, _SUBTRACT, _DIVIDE, _FLOOR_DIVIDE, _LESS, _AT_MOST, _EQUAL, _LOG2 = range(9)
_FUNCTIONS: tuple[tuple[Function, Function], ...] = (
    (operator.add, np.add), (operator.mul, np.multiply), (operator.sub, np.subtract),
    (operator.truediv, np.true_divide), (operator.floordiv, np.floor_divide), (operator.lt, np.less),
    (operator.le, np.less_equal), (operator.eq, np.equal), (_log2, _log2),
)  # fmt: skip
"""Every operation on numbers and on arrays."""


def _operation(code: int, neutral: Plain | None = None, swapped: bool = False) -> Callable[[Amount, Any], Amount]:
    """A method of `Amount`: the operation on it and another amount or a number. `neutral`: the number that changes
    nothing, in an operation whose operands may change places; `swapped`: the other one is the first operand."""
    function = _FUNCTIONS[code][0]

    def combine(self: Amount, other: Any) -> Amount:
        recording = self.recording
        if other.__class__ is Amount:
            place, value = other.place, other.value
        elif other == neutral:
            return self
        else:
            place, value = recording.constant(other), other
        first, second = (place, self.place) if swapped else (self.place, place)
        if neutral is not None and second < first:
            first, second = second, first
        key = (code, first, second)
        known = recording.known.get(key)
        if known is None:
            result = function(value, self.value) if swapped else function(self.value, value)
            known = recording.known[key] = Amount(recording, recording.next_place(), result)
        return known

    return combine


def _comparison(code: int, swapped: bool = False) -> Callable[[Amount, Any], bool]:
    """A method of `Amount`: a guard."""

    def compare(self: Amount, other: Any) -> bool:
        return self.recording.guard(code, other, self) if swapped else self.recording.guard(code, self, other)

    return compare


class Amount:
    """A number that follows from the inputs of a recording: entry `place` of its values, and its value this time."""

    __slots__ = ("place", "recording", "value")

    def __init__(self, recording: Recording, place: int, value: Plain) -> None:
        self.recording, self.place, self.value = recording, place, value

    __add__ = __radd__ = _operation(_ADD, neutral=0)
    __mul__ = __rmul__ = _operation(_MULTIPLY, neutral=1)
    __sub__, __rsub__ = _operation(_SUBTRACT), _operation(_SUBTRACT, swapped=True)
    __truediv__, __rtruediv__ = _operation(_DIVIDE), _operation(_DIVIDE, swapped=True)
    __floordiv__ = _operation(_FLOOR_DIVIDE)
    __lt__, __gt__ = _comparison(_LESS), _comparison(_LESS, swapped=True)
    __le__, __ge__ = _comparison(_AT_MOST), _comparison(_AT_MOST, swapped=True)
    log2 = _operation(_LOG2)

    def __neg__(self) -> Amount:
        return self * -1

    def __eq__(self, other: object) -> bool:
        return isinstance(other, (int, float, Amount)) and self.recording.guard(_EQUAL, self, other)

    def __bool__(self) -> bool:
        return not self.recording.guard(_EQUAL, self, 0)

    def plain(self) -> Any:
        """The value, which then holds for this one alone."""
        self.recording.guard(_EQUAL, self, self.value)
        return self.value

    def __float__(self) -> float:
        return float(self.plain())

    def __int__(self) -> int:
        return int(self.plain())

    def __index__(self) -> int:
        return operator.index(self.plain())

    def __hash__(self) -> int:
        return hash(self.plain())


def log2(value: Any) -> Any:
    """log2 of a number or an amount."""
    return value.log2(0) if isinstance(value, Amount) else math.log2(value)


class Recording:
    """Operations in the order they were asked for, equal ones once (`known`). Finished by `finish`."""

    def __init__(self) -> None:
        self.known: dict[tuple[int, int, int], Amount] = {}
        self._inputs: dict[int, Amount] = {}
        self._constants: dict[Plain, int] = {}
        self._guards: dict[tuple[int, int, int], bool] = {}
        self._count = 0

    def input(self, number: int, value: int) -> Amount:
        """Input `number`, whose value this time is given."""
        if number not in self._inputs:
            self._inputs[number] = Amount(self, self.next_place(), value)
        return self._inputs[number]

    def constant(self, value: Plain) -> int:
        """The place of a number."""
        place = self._constants.get(value)
        if place is None:
            place = self._constants[value] = self.next_place()
        return place

    def next_place(self) -> int:
        """A place for another value."""
        self._count += 1
        return self._count - 1

    def guard(self, code: int, one: Any, other: Any) -> bool:
        """The outcome of a comparison, on which all that follows depends."""
        first, second = (each.value if each.__class__ is Amount else each for each in (one, other))
        places = [each.place if each.__class__ is Amount else self.constant(each) for each in (one, other)]
        outcome = bool(_FUNCTIONS[code][0](first, second))
        if places[0] != places[1]:
            self._guards[code, places[0], places[1]] = outcome
        return outcome

    def finish(self, wanted: Sequence[Plain | Amount]) -> Repeatable:
        """What repeats the recording; `wanted`: numbers and amounts whose values it gives."""
        level = [0] * self._count
        for (_, first, second), result in self.known.items():  # in the order of places
            level[result.place] = 1 + max(level[first], level[second])
        rows = sorted((level[r.place], code, r.place, a, b) for (code, a, b), r in self.known.items())
        given = [*(amount.place for amount in self._inputs.values()), *self._constants.values()]
        new = np.zeros(self._count, dtype=np.intp)  # place -> place after ordering
        new[[*given, *(row[2] for row in rows)]] = np.arange(self._count)
        table = np.array(rows, dtype=np.intp).reshape(len(rows), 5)
        starts = np.flatnonzero(np.any(np.diff(table[:, :2], axis=0, prepend=-1) != 0, axis=1)).tolist()
        groups = [  # none where nothing depends on an input
            (_FUNCTIONS[rows[a][1]][1], len(given) + a, len(given) + b, new[table[a:b, 3]], new[table[a:b, 4]])
            for a, b in itertools.pairwise([*starts, len(rows)])
        ]
        guards = []
        for code in sorted({code for code, _, _ in self._guards}):
            of_code = [(a, b, outcome) for (c, a, b), outcome in self._guards.items() if c == code]
            one, other, outcomes = (np.array(column) for column in zip(*of_code, strict=True))
            guards.append((_FUNCTIONS[code][1], new[one], new[other], outcomes))
        amounts = [i for i, value in enumerate(wanted) if value.__class__ is Amount]
        plain = np.array([0.0 if v.__class__ is Amount else v for v in wanted], dtype=np.float64)
        return Repeatable(
            np.fromiter(self._inputs, dtype=np.intp),
            np.fromiter(self._constants, dtype=np.float64),
            self._count,
            groups,
            guards,
            (len(wanted), np.flatnonzero(plain).astype(np.int32), plain[plain != 0.0]),
            np.array(amounts, dtype=np.int32),
            new[[value.place for value in wanted if value.__class__ is Amount]].astype(np.int32),
        )


class Repeatable:
    """A finished recording: values in the order of levels, one group of equal operations after another."""

    __slots__ = ("_amounts", "_constants", "_count", "_groups", "_guards", "_inputs", "_plain", "_sources")

    def __init__(
        self,
        inputs: NDArray[np.intp],
        constants: Array,
        count: int,
        groups: list[tuple[Function, int, int, Any, Any]],
        guards: list[tuple[Function, Any, Any, Any]],
        plain: tuple[int, NDArray[np.int32], Array],
        amounts: NDArray[np.int32],
        sources: NDArray[np.int32],
    ) -> None:
        self._inputs, self._constants, self._count = inputs, constants, count
        self._groups, self._guards = groups, guards
        self._plain, self._amounts, self._sources = plain, amounts, sources

    def held_bytes(self) -> int:
        """Bytes of memory."""
        return 24 * self._count + 12 * len(self._plain[1]) + 8 * len(self._amounts) + 600 * len(self._groups)

    def at(self, inputs: Array) -> Array | None:
        """The wanted values at other inputs; None where a guard comes out differently."""
        values = np.empty(self._count)
        first = len(self._inputs)
        values[:first] = inputs[self._inputs]
        values[first : first + len(self._constants)] = self._constants
        with np.errstate(all="ignore"):  # a branch that is not taken here may divide by nothing
            for function, start, end, one, other in self._groups:
                values[start:end] = function(values[one], values[other])
        for function, one, other, outcomes in self._guards:
            if not np.array_equal(function(values[one], values[other]), outcomes):
                return None
        count, places, plain = self._plain
        wanted = np.zeros(count)
        wanted[places] = plain
        wanted[self._amounts] = values[self._sources]
        return wanted
