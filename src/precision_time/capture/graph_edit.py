"""Calls inserted into a traced step, weights frozen in it, and the lifetimes of tensors that follow.

Autograd computes a gradient only if a trained weight needs it. So a step in which few weights are trained is the whole
step without the backward calls that lead to no trained weight, and a tensor that only they read is not kept.
"""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from precision_time.capture.graph import Call, Category, OpGraph, OpSignature, Parameter, Phase, Storage, TensorSpec
from precision_time.capture.replace_calls import Signatures


class Placed(NamedTuple):
    """A call with its operator; `old`: its number in the graph before, -1 for a new one."""

    old: int
    kind: OpSignature
    call: Call


class GraphEdit:
    """Collects changes of a graph; `finish` applies them. Numbers of storages are valid until then."""

    def __init__(self, graph: OpGraph) -> None:
        self.graph = graph
        self.storages: list[Storage] = list(graph.storages)
        self.parameters: list[Parameter] = list(graph.parameters)
        self._weights: list[int] = []
        """Storages of new parameters, in their order."""
        self._gradients: list[int | None] = []
        self._trained: dict[int, int] = {}
        """Parameters of the graph that are still trained, and their gradients."""
        self._changed: dict[int, Placed | None] = {}
        self._before: dict[int, list[Placed]] = defaultdict(list)
        self._after: dict[int, list[Placed]] = defaultdict(list)

    # --- changes

    def storage(self, spec: TensorSpec, category: Category = Category.ACTIVATIONS) -> int:
        """A new tensor that calls of this edit write."""
        self.storages.append(Storage(spec.nbytes, -1, -1, category))
        return len(self.storages) - 1

    def parameter(self, parameter: Parameter, gradient: int | None) -> int:
        """A new weight, whose gradient is a storage of this edit (None: it is not trained); the number of its own
        storage."""
        spec = TensorSpec(parameter.shape, parameter.dtype)
        self.parameters.append(parameter)
        self._gradients.append(gradient)
        self._weights.append(self.storage(spec, Category.WEIGHTS))
        return self._weights[-1]

    def train(self, number: int) -> None:
        """Leave parameter `number` of the graph trained."""
        parameter = self.graph.parameters[number]
        if not parameter.trainable:
            return
        size = TensorSpec(parameter.shape, parameter.grad_dtype).nbytes
        backwards = parameter.name.endswith(".bias")  # norms write it after the gradient of the weight, of one size
        for call in reversed(self.graph.calls[: parameter.ready + 1]):  # complete with that call, written in one before
            for s in reversed(call.writes) if backwards else call.writes:
                storage = self.graph.storages[s]
                if storage.category is Category.GRADIENTS and storage.nbytes == size:
                    self._trained[number] = s
                    return

    def change(self, at: int, kind: OpSignature | None = None, call: Call | None = None) -> None:
        """Another operator, or other tensors, in place of call `at` as it is now."""
        now = self.at(at)
        self._changed[at] = Placed(at, kind or now.kind, call or now.call)

    def remove(self, at: int) -> None:
        """Leave a call out."""
        self._changed[at] = None

    def before(self, at: int, calls: Iterable[tuple[OpSignature, Call]]) -> None:
        """Insert calls before call `at`, after those inserted there before."""
        self._before[at] += [Placed(-1, kind, call) for kind, call in calls]

    def after(self, at: int, calls: Iterable[tuple[OpSignature, Call]]) -> None:
        """Insert calls after call `at`, after those inserted there before."""
        self._after[at] += [Placed(-1, kind, call) for kind, call in calls]

    def at(self, number: int) -> Placed:
        """A call as it is now."""
        call = self.graph.calls[number]
        placed = self._changed.get(number, Placed(number, self.graph.kinds[call.kind], call))
        assert placed is not None, "a removed call is not asked for"
        return placed

    # --- the result

    def finish(self) -> OpGraph:
        """The changed graph, in which only the new parameters and those of `train` are trained."""
        placed = [entry for i in range(len(self.graph.calls)) for entry in self._around(i)]
        gradients = {gradient for gradient in self._gradients if gradient is not None}
        placed = _needed(placed, gradients | set(self._trained.values()))
        calls_of_gradient = {s: at for at, entry in enumerate(placed) for s in entry.call.writes}
        storages = self._lifetimes(placed)
        count = len(self.graph.parameters)
        order = [*range(count), *self._weights]
        order += [i for i in range(count, len(storages)) if i not in set(self._weights)]
        number = {old: at for at, old in enumerate(order)}
        signatures = Signatures()
        calls = [
            dataclasses.replace(
                entry.call,
                kind=signatures(entry.kind),
                reads=tuple([number[s] for s in entry.call.reads]),
                writes=tuple([number[s] for s in entry.call.writes]),
            )
            for entry in placed
        ]
        wanted = [*map(self._trained.get, range(count)), *self._gradients]
        parameters = [
            dataclasses.replace(p, trainable=g is not None, ready=-1 if g is None else calls_of_gradient[g])
            for p, g in zip(self.parameters, wanted, strict=True)
        ]
        return dataclasses.replace(
            self.graph,
            kinds=tuple(signatures),
            calls=tuple(calls),
            storages=tuple([storages[old] for old in order]),
            parameters=tuple(parameters),
            base=None,
        )

    def _around(self, i: int) -> list[Placed]:
        own = self._changed.get(i, self.at(i) if i not in self._changed else None)
        return [*self._before.get(i, ()), *([] if own is None else [own]), *self._after.get(i, ())]

    def _lifetimes(self, placed: Sequence[Placed]) -> list[Storage]:
        """Storages born where a call first writes them. One dies where it did, if the call that used it last is still
        there, else with its last use; what nothing uses has no bytes. A cast of a frozen weight is not kept for other
        uses (autocast keeps those of leaves that require a gradient)."""
        graph, end = self.graph, len(placed)
        last_before: dict[int, int] = {}
        for i, call in enumerate(graph.calls):
            last_before.update(dict.fromkeys((*call.reads, *call.writes), i))
        first: dict[int, int] = {}
        last: dict[int, int] = {}
        for at, entry in enumerate(placed):
            for s in (*entry.call.reads, *entry.call.writes):
                first.setdefault(s, at)
                last[s] = at
        position = _positions(placed, len(graph.calls))
        casts = set(casts_of_weights(graph))
        kept = {entry.old for entry in placed}
        result = []
        for s, storage in enumerate(self.storages):
            if s not in last:
                weight = storage.category is Category.WEIGHTS
                result.append(dataclasses.replace(storage, nbytes=storage.nbytes if weight else 0, born=-1, dies=-1))
                continue
            new = s >= len(graph.storages)
            dies = end if storage.category in (Category.WEIGHTS, Category.GRADIENTS) else last[s]
            if not new and storage.dies >= len(graph.calls):
                dies = end
            elif not new and s not in casts and last_before[s] in kept:
                dies = max(dies, position[storage.dies])
            outside = storage.category is Category.WEIGHTS if new else storage.born < 0
            result.append(dataclasses.replace(storage, born=-1 if outside else first[s], dies=dies))
        return result


def _positions(placed: Sequence[Placed], calls: int) -> list[int]:
    """Of each call of the graph before, where it is now; of one that is gone, where the one before it is."""
    found = {entry.old: at for at, entry in enumerate(placed)}
    positions, at = [], 0
    for old in range(calls):
        at = found.get(old, at)
        positions.append(at)
    return positions


def _needed(placed: Sequence[Placed], gradients: set[int]) -> list[Placed]:
    """The calls without those of the backward pass that lead to none of `gradients`."""
    needed = set(gradients)
    kept: list[Placed] = []
    for entry in reversed(placed):
        if entry.call.phase is Phase.BACKWARD and not needed.intersection(entry.call.writes):
            continue
        needed.update(entry.call.reads if entry.call.phase is Phase.BACKWARD else ())
        kept.append(_masked(entry, needed) if entry.call.phase is Phase.BACKWARD else entry)
    return kept[::-1]


def _masked(entry: Placed, needed: set[int]) -> Placed:
    """A backward call without the gradients of frozen weights, where its operator can leave them out."""
    mask, writes, outputs = entry.kind.attr("output_mask"), entry.call.writes, entry.kind.outputs
    if not isinstance(mask, tuple) or len(writes) != len(outputs) or sum(map(bool, mask)) != len(outputs):
        return entry
    wanted = [s in needed for s in writes]
    if all(wanted):
        return entry
    of_outputs = iter(wanted)
    left = tuple([bool(on) and next(of_outputs) for on in mask])
    kind = dataclasses.replace(
        entry.kind,
        outputs=tuple([o for o, on in zip(outputs, wanted, strict=True) if on]),
        attrs=tuple([(name, left if name == "output_mask" else value) for name, value in entry.kind.attrs]),
    )
    kept = tuple([s for s, on in zip(writes, wanted, strict=True) if on])
    return Placed(entry.old, kind, dataclasses.replace(entry.call, writes=kept))


def casts_of_weights(graph: OpGraph) -> dict[int, int]:
    """Storages that a forward call casts a weight into, and the number of the weight."""
    count = len(graph.parameters)
    return {
        call.writes[0]: call.reads[0]
        for call in graph.calls
        if call.phase < Phase.BACKWARD
        and len(call.reads) == len(call.writes) == 1
        and call.reads[0] < count
        and graph.kinds[call.kind].name == "aten._to_copy"
    }
