"""What one unit of a model keeps, hands on and needs while it runs, from the lifetimes of every tensor.

All sizes are taken from a list with the bytes of every storage, so that one trace answers for any rank whose operators
are the same at other sizes.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from precision_time.bounded_cache import bounded
from precision_time.capture.graph import Category, OpGraph, Phase, Skeleton
from precision_time.capture.layers import Unit

Indices = NDArray[np.intp]


@dataclass(frozen=True, slots=True)
class Lifetimes:
    """Bytes of one unit in one micro-batch.

    kept         activations that its forward pass leaves for its backward pass, with `output` where that is kept
    output       what later units read of it: all that remains of a unit which is computed again
    core         of `kept`, what selective recomputation drops: what lies between scores and context of attention
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


def lifetimes(graph: OpGraph, unit: Unit, nbytes: Sequence[int], core: Collection[int] = ()) -> Lifetimes:
    """The lifetimes of a unit's storages. `core`: its forward calls that selective recomputation runs again."""
    # Sums of more bytes than an array holds exactly are Python's.
    kind: Any = np.int64 if float(max(nbytes, default=0)) * max(len(nbytes), 1) < 2.0**62 else object
    return _plan(graph.skeleton, unit, tuple(core)).at(np.array(nbytes, dtype=kind))


@dataclass(frozen=True, slots=True, eq=False)
class _Level:
    """The bytes alive at some calls. Of the storages in the order of events, `sign` is 1 where one is born and -1 after
    it died; the first `passed[i]` events precede the end of `calls[i]`."""

    storages: NDArray[np.intp]
    sign: NDArray[np.int64]
    passed: NDArray[np.intp]
    calls: NDArray[np.intp]

    @classmethod
    def of(cls, born: Indices, dies: Indices, storages: Indices, calls: Sequence[int]) -> _Level:
        """Of storages that live from call `born` to call `dies`."""
        order = np.sort(np.array(calls, dtype=np.intp))
        first, last = (order[0], order[-1]) if len(order) else (0, -1)
        here = (dies >= first) & (born <= last)
        times = np.concatenate((np.maximum(born[here], first), dies[here] + 1))
        sign = np.repeat(np.array((1, -1), dtype=np.int64), np.count_nonzero(here))
        events = np.argsort(times, kind="stable")
        return cls(
            np.tile(storages[here], 2)[events],
            sign[events],
            np.searchsorted(times[events], order, side="right").astype(np.intp),
            order,
        )

    def fullest(self, nbytes: NDArray[Any]) -> tuple[int, int]:
        """The most bytes alive at one of the calls, and the first such call (-1: none); both ends of a span count."""
        if not len(self.calls) or not len(self.storages):
            return 0, -1
        level = np.concatenate(([0], np.cumsum(self.sign * nbytes[self.storages])))[self.passed]
        place = int(np.argmax(level))
        peak = int(level[place])
        return (peak, int(self.calls[place])) if peak > 0 else (0, -1)


@dataclass(frozen=True, slots=True, eq=False)
class _Plan:
    """Which storages each figure of `Lifetimes` counts: the same at all input sizes."""

    kept: Indices
    handed: Indices
    core: Indices
    copies: Indices
    taken: Indices
    forward: _Level
    blind: _Level
    backward: _Level
    graded: _Level
    gradients: Indices
    born: Indices
    """Of `gradients`."""

    def at(self, nbytes: NDArray[Any]) -> Lifetimes:
        graded, fullest = self.graded.fullest(nbytes)
        return Lifetimes(
            kept=_total(nbytes, self.kept),
            output=_total(nbytes, self.handed),
            core=_total(nbytes, self.core),
            copies=_total(nbytes, self.copies),
            taken=_total(nbytes, self.taken),
            forward=self.forward.fullest(nbytes)[0],
            blind=self.blind.fullest(nbytes)[0],
            backward=self.backward.fullest(nbytes)[0],
            graded=graded,
            gradients=_total(nbytes, self.gradients[self.born <= fullest]),
        )


def _total(nbytes: NDArray[Any], storages: Indices) -> int:
    return int(nbytes[storages].sum()) if len(storages) else 0


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


@bounded()
def _traced(graph: Skeleton) -> _Traced:
    calls, category = graph.calls, graph.spans.category
    turn = calls.first(Phase.BACKWARD)
    last_read = np.full(len(graph.spans), -1, dtype=np.intp)
    early = calls.reader < turn
    last_read[calls.reads[early]] = calls.reader[early]  # the last one stays
    other = np.bincount(calls.reader[category[calls.reads] != Category.WEIGHTS], minlength=len(calls))
    cast = np.array([name == "aten._to_copy" for name in graph.names], dtype=np.bool_)[calls.kind]
    return _Traced(
        graph.spans.born.astype(np.intp),
        graph.spans.dies.astype(np.intp),
        last_read,
        category == Category.ACTIVATIONS,
        category == Category.GRADIENTS,
        cast & (other == 0),
        turn,
        len(calls),
    )


@bounded()
def _plan(graph: Skeleton, unit: Unit, core: tuple[int, ...]) -> _Plan:
    traced = _traced(graph)
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
    return _Plan(
        kept=kept,
        handed=own[leaves],
        core=np.array(_inner(graph, kept.tolist(), core, traced.last_read), dtype=np.intp),
        copies=kept[traced.casts[born[kept]]],
        taken=taken[dies[taken] >= turn],
        forward=_Level.of(born[alive], dies[alive], alive, unit.forward),
        blind=_Level.of(born[alive], np.concatenate((unsaved, dies[passing])), alive, unit.forward),
        backward=_Level.of(born[after], dies[after], after, unit.backward),
        graded=_Level.of(born[weighted], lasting, weighted, unit.backward),
        gradients=gradients,
        born=born[gradients],
    )


def _within(calls: Sequence[int], count: int) -> NDArray[np.bool_]:
    """Whether each of a graph's calls is one of `calls`; the entry after the last, which -1 takes, is not."""
    inside = np.zeros(count + 1, dtype=np.bool_)
    inside[np.array(calls, dtype=np.intp)] = True
    return inside


def _read(graph: Skeleton, inside: NDArray[np.bool_]) -> Indices:
    """Storages that calls read, in order."""
    return np.unique(graph.calls.reads[inside[graph.calls.reader]]).astype(np.intp)


def _inner(graph: Skeleton, kept: Iterable[int], core: Collection[int], last_read: Indices) -> list[int]:
    """Kept storages that can be made again from what stands around attention.

    What goes into it (also as a copy) and what comes out of it (the output projection keeps it) has to stay.
    """
    if not core:
        return []
    inside, end = set(core), max(core)
    inner = []
    birth = graph.spans.born
    for i in kept:
        born = int(birth[i])
        if born not in inside or last_read[i] > end:
            continue
        copied = graph.names[graph.calls.kind[born]] in ("aten.clone", "aten._to_copy")
        if not copied or inside.issuperset(birth[graph.calls.read_by([born])].tolist()):
            inner.append(i)
    return inner
