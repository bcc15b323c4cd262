"""What one unit of a model keeps, hands on and needs while it runs, from the lifetimes of every tensor.

All sizes are taken from a list with the bytes of every storage, so that one trace answers for any rank whose operators
are the same at other sizes.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from precision_time.bounded_cache import STRUCTURES, bounded
from precision_time.capture.graph import Category, OpGraph, Phase, Skeleton
from precision_time.capture.layers import Unit

Indices = NDArray[np.intp]
Parts = tuple[tuple[tuple[int, ...], bool], ...]
"""Parts of a unit that run again: their forward calls, and whether what they hand on is dropped and made again too."""


class Lifetimes(NamedTuple):
    """Bytes of one unit in one micro-batch.

    kept         activations that its forward pass leaves for its backward pass, with `output` where that is kept
    output       what later units read of it: all that remains of a unit which is computed again
    core         of `kept`, what selective recomputation drops: of attention what lies between scores and context
    copies       of `kept`, casts of weights: autocast holds them until its region ends
    taken        what its backward pass reads of earlier units: the activation that recomputation starts from
    forward      the most alive during its forward pass
    blind        the same without a graph for the backward pass: a forward pass that will be run again
    backward     the most alive during its backward pass, with what is left of `kept` and the gradient that came in
    graded       the same with the gradients of its own weights as they appear
    gradients    of `graded`, these gradients
    """

    kept: int
    output: int
    core: int
    copies: int
    taken: int
    forward: int
    blind: int
    backward: int
    graded: int
    gradients: int


def lifetimes(
    graph: OpGraph,
    units: tuple[Unit, ...],
    nbytes: NDArray[Any],
    cores: tuple[Parts, ...],
    softmax_inputs: bool = False,
) -> tuple[Lifetimes, ...]:
    """The lifetimes of every unit's storages, which have `nbytes`. `cores`: the parts of each that selective
    recomputation runs again. `softmax_inputs`: whether autograd keeps what softmax reads beside what it writes."""
    skeleton, traced = graph.skeleton, tuple([unit.traced or unit for unit in units])
    return _plan(skeleton.traced or skeleton, traced, cores, softmax_inputs).at(nbytes)


@dataclass(frozen=True, slots=True, eq=False)
class _Level:
    """The bytes alive at some calls. Of the storages in the order of events, `sign` is 1 where one is born and -1 after
    it died; the first `passed[i]` events precede the end of `calls[i]`."""

    storages: Indices
    sign: NDArray[np.int64]
    passed: Indices
    calls: Indices

    @classmethod
    def of(cls, born: Indices, dies: Indices, storages: Indices, calls: Sequence[int]) -> _Level:
        """Of storages that live from call `born` to call `dies`."""
        order = np.sort(np.array(calls, dtype=np.intp))
        first, last = (order[0], order[-1]) if len(order) else (0, -1)
        here = (dies >= first) & (born <= last)
        times = np.concatenate((np.maximum(born[here], first), dies[here] + 1))
        sign = np.repeat(np.array((1, -1), dtype=np.int64), np.count_nonzero(here))
        events = np.argsort(times, kind="stable")
        passed = np.searchsorted(times[events], order, side="right")
        # Bytes change only with an event, so of calls between two events the first stands for all.
        changed = np.flatnonzero(np.diff(passed, prepend=0))
        return cls(np.tile(storages[here], 2)[events], sign[events], passed[changed], order[changed])


@dataclass(frozen=True, slots=True, eq=False)
class _Levels:
    """Levels one after another. `starts`, `calls_before`: where the events and the calls of each begin, then the ends.
    A level without calls has one at which nothing is alive."""

    storages: NDArray[np.int32]
    sign: NDArray[np.int8]
    passed: NDArray[np.int32]
    calls: NDArray[np.int32]
    starts: NDArray[np.int32]
    calls_before: NDArray[np.int32]

    @classmethod
    def of(cls, levels: Sequence[_Level]) -> _Levels:
        starts = np.cumsum([0, *(len(level.storages) for level in levels)])
        calls = [level.calls if len(level.calls) else np.array([-1]) for level in levels]
        passed = [level.passed if len(level.calls) else np.array([0]) for level in levels]
        return cls(
            np.concatenate([level.storages for level in levels]).astype(np.int32),
            np.concatenate([level.sign for level in levels]).astype(np.int8),
            np.concatenate([each + start for each, start in zip(passed, starts, strict=False)]).astype(np.int32),
            np.concatenate(calls).astype(np.int32),
            starts.astype(np.int32),
            np.cumsum([0, *map(len, calls)]).astype(np.int32),
        )

    def fullest(self, nbytes: NDArray[Any]) -> tuple[list[int], list[int]]:
        """Of each level the most bytes alive at one of the calls, and the first such call (-1: nothing is alive)."""
        alive = _sums(self.sign * nbytes[self.storages])
        first, last = self.calls_before[:-1], self.calls_before[1:]
        level = alive[self.passed] - np.repeat(alive[self.starts[:-1]], last - first)
        peaks = np.maximum.reduceat(level, first)
        hits = np.flatnonzero(level == np.repeat(peaks, last - first))
        calls = self.calls[hits[np.searchsorted(hits, first)]]
        return np.maximum(peaks, 0).tolist(), np.where(peaks > 0, calls, -1).tolist()


def _sums(values: NDArray[Any]) -> NDArray[Any]:
    """Sums of the first 0, 1, 2 ... values."""
    return np.concatenate((np.zeros(1, dtype=values.dtype), np.cumsum(values)))


@dataclass(frozen=True, slots=True, eq=False)
class _Plan:
    """Which storages each figure of the `Lifetimes` of some units counts: the same at all input sizes.

    Figures are in the order kept, output, core, copies, taken of one unit after another; levels in the order forward,
    blind, backward, graded of one unit after another.
    """

    counted: NDArray[np.int32]
    ends: NDArray[np.int32]
    levels: _Levels
    gradients: NDArray[np.int32]
    born: NDArray[np.int32]
    """Of `gradients`."""
    gradient_ends: NDArray[np.int32]

    def held_bytes(self) -> int:
        """Bytes of memory."""
        arrays = (self.counted, self.ends, self.gradients, self.born, self.levels.storages, self.levels.calls)
        return 1500 + sum(a.nbytes for a in arrays) + self.levels.passed.nbytes + self.levels.sign.nbytes

    def at(self, nbytes: NDArray[Any]) -> tuple[Lifetimes, ...]:
        totals = np.diff(_sums(nbytes[self.counted])[self.ends]).tolist()
        peaks, calls = self.levels.fullest(nbytes)
        before = np.repeat(calls[3::4], np.diff(self.gradient_ends)) >= self.born
        gradients = np.diff(_sums(nbytes[self.gradients] * before)[self.gradient_ends]).tolist()
        return tuple(
            [
                Lifetimes(*(totals[5 * unit : 5 * unit + 5] + peaks[4 * unit : 4 * unit + 4] + [gradients[unit]]))
                for unit in range(len(gradients))
            ]
        )


@dataclass(frozen=True, slots=True, eq=False)
class _Traced:
    """A skeleton's calls and storages as arrays, from which the plan of any of its units is taken.

    `last_read`: the last forward call that reads a storage; -1: none does. `casts`: whether a
    call casts weights. `turn`: the first backward call.
    """

    born: Indices
    dies: Indices
    last_read: Indices
    active: NDArray[np.bool_]
    gradients: NDArray[np.bool_]
    casts: NDArray[np.bool_]
    turn: int
    calls: int


def _traced(graph: Skeleton, softmax_inputs: bool) -> _Traced:
    calls, category = graph.calls, graph.spans.category
    dies = graph.spans.dies.astype(np.intp)
    if softmax_inputs:
        kept, until = _softmax_inputs(graph)
        np.maximum.at(dies, kept, until)
    turn = calls.first(Phase.BACKWARD)
    last_read = np.full(len(graph.spans), -1, dtype=np.intp)
    early = calls.reader < turn
    last_read[calls.reads[early]] = calls.reader[early]  # the last one stays
    other = np.bincount(calls.reader[category[calls.reads] != Category.WEIGHTS], minlength=len(calls))
    cast = np.array([name == "aten._to_copy" for name in graph.names], dtype=np.bool_)[calls.kind]
    return _Traced(
        graph.spans.born.astype(np.intp),
        dies,
        last_read,
        category == Category.ACTIVATIONS,
        category == Category.GRADIENTS,
        cast & (other == 0),
        turn,
        len(calls),
    )


def _softmax_inputs(graph: Skeleton) -> tuple[Indices, Indices]:
    """Storages that the softmaxes of the forward pass read, and the backward call of each."""
    calls, names = graph.calls, np.array(graph.names)
    forward = np.isin(names, ("aten._softmax", "aten._log_softmax"))[calls.kind]
    backward = np.isin(names, ("aten._softmax_backward_data", "aten._log_softmax_backward_data"))[calls.kind]
    # The result of a softmax is what its backward call reads: so each finds its call.
    until = np.full(len(graph.spans), -1, dtype=np.intp)
    reads = backward[calls.reader]
    until[calls.reads[reads]] = calls.reader[reads]
    of_call = np.full(len(calls), -1, dtype=np.intp)
    writes = forward[calls.writer]
    of_call[calls.writer[writes]] = until[calls.writes[writes]]
    reads = forward[calls.reader]
    return calls.reads[reads].astype(np.intp), of_call[calls.reader[reads]]


@bounded(budget=STRUCTURES)
def _plan(graph: Skeleton, units: tuple[Unit, ...], cores: tuple[Parts, ...], softmax_inputs: bool) -> _Plan:
    traced = _traced(graph, softmax_inputs)
    parts = [_of_unit(graph, traced, unit, core) for unit, core in zip(units, cores, strict=True)]
    counted = [storages for part in parts for storages in part.counted]
    gradients = [part.gradients for part in parts]
    return _Plan(
        np.concatenate(counted).astype(np.int32),
        np.cumsum([0, *map(len, counted)]).astype(np.int32),
        _Levels.of([level for part in parts for level in part.levels]),
        np.concatenate(gradients).astype(np.int32),
        np.concatenate([part.born for part in parts]).astype(np.int32),
        np.cumsum([0, *map(len, gradients)]).astype(np.int32),
    )


@dataclass(frozen=True, slots=True, eq=False)
class _OfUnit:
    """What `_Plan` holds, of one unit."""

    counted: tuple[Indices, ...]
    levels: tuple[_Level, ...]
    gradients: Indices
    born: Indices


def _of_unit(graph: Skeleton, traced: _Traced, unit: Unit, core: Parts) -> _OfUnit:
    born, dies, turn, active = traced.born, traced.dies, traced.turn, traced.active
    forward, backward = (_within(calls, traced.calls) for calls in (unit.forward, unit.backward))
    own = np.flatnonzero(active & forward[born])
    kept = own[dies[own] >= turn]
    end = max(unit.forward, default=-1)
    leaves = traced.last_read[own] > end
    read = _read(graph, forward)
    taken = read[active[read] & (born[read] >= 0) & (born[read] < turn) & ~forward[born[read]]]
    passing = taken[dies[taken] < turn]
    unsaved = np.where(leaves, end, np.where(traced.last_read[own] < 0, born[own], traced.last_read[own]))
    read = _read(graph, backward)
    arriving = read[active[read] & (born[read] >= turn) & ~(forward | backward)[born[read]]]
    made = np.flatnonzero(active & backward[born])
    gradients = np.flatnonzero(traced.gradients & backward[born])
    after = np.concatenate((kept, arriving, made))
    alive = np.concatenate((own, passing))
    weighted = np.concatenate((after, gradients))
    lasting = np.concatenate((dies[after], np.full(len(gradients), traced.calls)))
    inner = np.array(_inner(graph, kept.tolist(), core, traced.last_read), dtype=np.intp)
    return _OfUnit(
        (kept, own[leaves], inner, kept[traced.casts[born[kept]]], taken[dies[taken] >= turn]),
        (
            _Level.of(born[alive], dies[alive], alive, unit.forward),
            _Level.of(born[alive], np.concatenate((unsaved, dies[passing])), alive, unit.forward),
            _Level.of(born[after], dies[after], after, unit.backward),
            _Level.of(born[weighted], lasting, weighted, unit.backward),
        ),
        gradients,
        born[gradients],
    )


def _within(calls: Sequence[int], count: int) -> NDArray[np.bool_]:
    """Whether each of a graph's calls is one of `calls`; the entry after the last, which -1 takes, is not."""
    inside = np.zeros(count + 1, dtype=np.bool_)
    inside[np.array(calls, dtype=np.intp)] = True
    return inside


def _read(graph: Skeleton, inside: NDArray[np.bool_]) -> Indices:
    """Storages that calls read, in order."""
    return np.unique(graph.calls.reads[inside[graph.calls.reader]]).astype(np.intp)


def _inner(graph: Skeleton, kept: Sequence[int], core: Parts, last_read: Indices) -> list[int]:
    """Kept storages that can be made again by parts that run again."""
    return sorted({i for calls, drops in core for i in _inner_of(graph, kept, calls, drops, last_read)})


def _inner_of(
    graph: Skeleton, kept: Iterable[int], core: Collection[int], drops: bool, last_read: Indices
) -> list[int]:
    """Kept storages that can be made again from what stands around a part, such as attention.

    What goes into it (also as a copy) has to stay, and what comes out of it (the output projection keeps it) unless
    that is dropped too.
    """
    if not core:
        return []
    inside, end = set(core), max(core)
    inner = []
    birth = graph.spans.born
    for i in kept:
        born = int(birth[i])
        if born not in inside or (not drops and last_read[i] > end):
            continue
        copied = graph.names[graph.calls.kind[born]] in ("aten.clone", "aten._to_copy")
        if not copied or inside.issuperset(birth[graph.calls.read_by([born])].tolist()):
            inner.append(i)
    return inner
