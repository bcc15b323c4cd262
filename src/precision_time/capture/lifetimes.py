"""What one unit of a model keeps, hands on and needs while it runs, from the lifetimes of every tensor.

All sizes are taken from a list with the bytes of every storage, so that one trace answers for any rank whose operators
are the same at other sizes.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from precision_time.capture.graph import Category, OpGraph, Phase
from precision_time.capture.layers import Unit

Span = tuple[int, int, int]
"""First call, last call, bytes."""


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
    calls, storages = graph.calls, graph.storages
    turn = next((i for i, c in enumerate(calls) if c.phase >= Phase.BACKWARD), len(calls))
    forward, backward = set(unit.forward), set(unit.backward)
    working = [i for i, s in enumerate(storages) if s.category is Category.ACTIVATIONS]
    own = [i for i in working if storages[i].born in forward]
    kept = [i for i in own if storages[i].dies >= turn]
    last_read: dict[int, int] = {}
    for i, call in enumerate(calls[:turn]):
        last_read.update(dict.fromkeys(call.reads, i))
    end = max(forward, default=-1)
    handed = {i for i in own if last_read.get(i, -1) > end}
    taken = {r for i in unit.forward for r in calls[i].reads} & {
        i for i in working if 0 <= storages[i].born < turn and storages[i].born not in forward
    }
    passing = [i for i in taken if storages[i].dies < turn]
    spans = [(storages[i].born, storages[i].dies, nbytes[i]) for i in (*own, *passing)]
    unsaved = [(storages[i].born, end if i in handed else last_read.get(i, storages[i].born), nbytes[i]) for i in own]
    unsaved += [(storages[i].born, storages[i].dies, nbytes[i]) for i in passing]
    read = {r for i in unit.backward for r in calls[i].reads}
    inside = forward | backward
    arriving = [i for i in read if storages[i].born >= turn and storages[i].born not in inside and i in set(working)]
    made = [i for i in working if storages[i].born in backward]
    gradients = [i for i, s in enumerate(storages) if s.category is Category.GRADIENTS and s.born in backward]
    after = [(storages[i].born, storages[i].dies, nbytes[i]) for i in (*kept, *arriving, *made)]
    weights = [(storages[i].born, len(calls), nbytes[i]) for i in gradients]
    graded, fullest = _fullest([*after, *weights], unit.backward)
    return Lifetimes(
        kept=sum(nbytes[i] for i in kept),
        output=sum(nbytes[i] for i in handed),
        core=sum(nbytes[i] for i in _inner(graph, kept, core, last_read)),
        copies=sum(nbytes[i] for i in kept if _is_copy(graph, i)),
        taken=sum(nbytes[i] for i in taken if storages[i].dies >= turn),
        forward=_fullest(spans, unit.forward)[0],
        blind=_fullest(unsaved, unit.forward)[0],
        backward=_fullest(after, unit.backward)[0],
        graded=graded,
        gradients=sum(size for born, _, size in weights if born <= fullest),
    )


def _inner(graph: OpGraph, kept: Iterable[int], core: Collection[int], last_read: dict[int, int]) -> list[int]:
    """Kept storages that can be made again from what stands around attention.

    What goes into it (also as a copy) and what comes out of it (the output projection keeps it) has to stay.
    """
    if not core:
        return []
    inside, end = set(core), max(core)
    inner = []
    for i in kept:
        born = graph.storages[i].born
        if born not in inside or last_read.get(i, -1) > end:
            continue
        copied = graph.kinds[graph.calls[born].kind].name in ("aten.clone", "aten._to_copy")
        if not copied or all(graph.storages[r].born in inside for r in graph.calls[born].reads):
            inner.append(i)
    return inner


def _is_copy(graph: OpGraph, index: int) -> bool:
    call = graph.calls[graph.storages[index].born]
    cast = graph.kinds[call.kind].name == "aten._to_copy"
    return cast and all(graph.storages[r].category is Category.WEIGHTS for r in call.reads)


def _fullest(spans: Iterable[Span], calls: Sequence[int]) -> tuple[int, int]:
    """The most bytes alive at one of these calls, and that call (-1: none); both ends of a span count."""
    if not calls:
        return 0, -1
    order = sorted(calls)
    first, last = order[0], order[-1]
    change: dict[int, int] = defaultdict(int)
    for born, dies, size in spans:
        if dies >= first and born <= last:
            change[max(born, first)] += size
            change[dies + 1] -= size
    level, peak, fullest = 0, 0, -1
    steps = iter(sorted(change))
    at = next(steps, None)
    for call in order:
        while at is not None and at <= call:
            level += change[at]
            at = next(steps, None)
        if level > peak:
            peak, fullest = level, call
    return peak, fullest
