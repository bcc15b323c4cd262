"""What one unit of a model keeps, hands on and needs while it runs, from the lifetimes of every tensor.

All sizes are taken from a list with the bytes of every storage, so that one trace answers for any rank whose operators
are the same at other sizes.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from precision_time.bounded_cache import bounded
from precision_time.capture.graph import Category, OpGraph, Phase, Skeleton
from precision_time.capture.layers import Unit

Span = tuple[int, int, int]
"""First call, last call, storage."""
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
    def of(cls, spans: Iterable[Span], calls: Sequence[int]) -> _Level:
        order = sorted(calls)
        first, last = (order[0], order[-1]) if order else (0, -1)
        events = []
        for born, dies, storage in spans:
            if dies >= first and born <= last:
                events += [(max(born, first), 1, storage), (dies + 1, -1, storage)]
        events.sort(key=itemgetter(0))
        times = np.array([time for time, _, _ in events], dtype=np.intp)
        return cls(
            np.array([storage for _, _, storage in events], dtype=np.intp),
            np.array([sign for _, sign, _ in events], dtype=np.int64),
            np.searchsorted(times, order, side="right").astype(np.intp),
            np.array(order, dtype=np.intp),
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


@bounded()
def _plan(graph: Skeleton, unit: Unit, core: tuple[int, ...]) -> _Plan:
    calls, spans = graph.calls, graph.spans
    turn = next((i for i, c in enumerate(calls) if c.phase >= Phase.BACKWARD), len(calls))
    forward, backward = set(unit.forward), set(unit.backward)
    working = [i for i, (_, _, category) in enumerate(spans) if category is Category.ACTIVATIONS]
    own = [i for i in working if spans[i][0] in forward]
    kept = [i for i in own if spans[i][1] >= turn]
    last_read: dict[int, int] = {}
    for i, call in enumerate(calls[:turn]):
        last_read.update(dict.fromkeys(call.reads, i))
    end = max(forward, default=-1)
    handed = {i for i in own if last_read.get(i, -1) > end}
    taken = {r for i in unit.forward for r in calls[i].reads} & {
        i for i in working if 0 <= spans[i][0] < turn and spans[i][0] not in forward
    }
    passing = [i for i in taken if spans[i][1] < turn]
    unsaved = [(spans[i][0], end if i in handed else last_read.get(i, spans[i][0]), i) for i in own]
    read = {r for i in unit.backward for r in calls[i].reads}
    inside, active = forward | backward, set(working)
    arriving = [i for i in read if spans[i][0] >= turn and spans[i][0] not in inside and i in active]
    made = [i for i in working if spans[i][0] in backward]
    gradients = [i for i, span in enumerate(spans) if span[2] is Category.GRADIENTS and span[0] in backward]

    def alive(storages: Iterable[int]) -> list[Span]:
        return [(*spans[i][:2], i) for i in storages]

    after = alive((*kept, *arriving, *made))
    weights = [(spans[i][0], len(calls), i) for i in gradients]
    return _Plan(
        kept=_indices(kept),
        handed=_indices(handed),
        core=_indices(_inner(graph, kept, core, last_read)),
        copies=_indices(i for i in kept if _is_copy(graph, i)),
        taken=_indices(i for i in taken if spans[i][1] >= turn),
        forward=_Level.of(alive((*own, *passing)), unit.forward),
        blind=_Level.of([*unsaved, *alive(passing)], unit.forward),
        backward=_Level.of(after, unit.backward),
        graded=_Level.of([*after, *weights], unit.backward),
        gradients=_indices(gradients),
        born=_indices(spans[i][0] for i in gradients),
    )


def _indices(storages: Iterable[int]) -> Indices:
    return np.array(sorted(storages) if isinstance(storages, set) else list(storages), dtype=np.intp)


def _inner(graph: Skeleton, kept: Iterable[int], core: Collection[int], last_read: dict[int, int]) -> list[int]:
    """Kept storages that can be made again from what stands around attention.

    What goes into it (also as a copy) and what comes out of it (the output projection keeps it) has to stay.
    """
    if not core:
        return []
    inside, end = set(core), max(core)
    inner = []
    for i in kept:
        born = graph.spans[i][0]
        if born not in inside or last_read.get(i, -1) > end:
            continue
        copied = graph.names[graph.calls[born].kind] in ("aten.clone", "aten._to_copy")
        if not copied or all(graph.spans[r][0] in inside for r in graph.calls[born].reads):
            inner.append(i)
    return inner


def _is_copy(graph: Skeleton, index: int) -> bool:
    call = graph.calls[graph.spans[index][0]]
    cast = graph.names[call.kind] == "aten._to_copy"
    return cast and all(graph.spans[r][2] is Category.WEIGHTS for r in call.reads)
