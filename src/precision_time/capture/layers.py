"""A step cut into the units that a model repeats: what stands before its blocks, every block, what follows them.

A block is the outermost numbered module of a path (`blocks.3` of `blocks.3.attention.output`, `layer2.1` of a ResNet):
the modules of an `nn.ModuleList` or `nn.Sequential`, which is what FSDP wraps, pipelines cut at and recomputation
runs again. Blocks that run the same operators are one `Unit`, so that whatever comes later costs no more for a hundred
layers than for three.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from precision_time.bounded_cache import STRUCTURES, bounded
from precision_time.capture.graph import OpGraph, Parameter, Phase, Skeleton
from precision_time.errors import CaptureError

BEFORE, AFTER = "before", "after"
WHOLE = "model"
"""The only block of a model without numbered modules, or that runs forward again after a backward pass (a GAN)."""


@dataclass(frozen=True, slots=True, eq=False)
class Unit:
    """One stretch of a model.

    forward, backward   its calls, as indices into the graph's
    parameters          its own weights
    """

    name: str
    forward: tuple[int, ...]
    backward: tuple[int, ...]
    parameters: tuple[Parameter, ...]
    traced: Unit | None = None
    """The same in the dtypes that the step was traced in, where these are others."""

    def held_bytes(self) -> int:
        """Bytes of memory, without what it shares: parameters, and the calls of the traced one."""
        own = len(self.forward) + len(self.backward) if self.traced is None else 0
        return 200 + 8 * (own + len(self.parameters))


def as_traced(graph: Skeleton, unit: Unit) -> tuple[Skeleton, Unit]:
    """Both in the dtypes that the step was traced in, for what does not depend on dtypes."""
    return graph.traced or graph, unit.traced or unit


@dataclass(frozen=True, slots=True, eq=False)
class LayeredGraph:
    """A traced step as units. `order` holds the unit of every stretch in the order of the forward pass.

    A graph that was traced with a few layers stands for all of them: `order` is as long as the model is deep.
    """

    graph: OpGraph
    units: tuple[Unit, ...]
    order: tuple[int, ...]

    @property
    def blocks(self) -> tuple[int, ...]:
        """`order` without what stands before and after the blocks."""
        outer = (BEFORE, AFTER)
        return tuple(i for i in self.order if self.units[i].name not in outer)

    @property
    def parameter_count(self) -> int:
        """Of the whole model."""
        of_unit = _elements(self.units)
        return sum([of_unit[i] for i in self.order])

    @property
    def trainable_share(self) -> float:
        """Share of the parameters that is trained; 1 for a model without any."""
        of_unit = _trainable(self.units)
        return sum([of_unit[i] for i in self.order]) / (self.parameter_count or 1) or 1.0

    def with_order(self, order: Sequence[int]) -> LayeredGraph:
        return replace(self, order=tuple(order))


@bounded(budget=STRUCTURES)
def _elements(units: tuple[Unit, ...]) -> tuple[int, ...]:
    """Elements of the parameters of each unit."""
    return tuple([sum([p.numel for p in unit.parameters]) for unit in units])


@bounded(budget=STRUCTURES)
def _trainable(units: tuple[Unit, ...]) -> tuple[int, ...]:
    """Elements of the trained parameters of each unit."""
    return tuple([sum([p.numel for p in unit.parameters if p.trainable]) for unit in units])


def block_of(path: str) -> str:
    """The outermost numbered module that a path lies in, or nothing; torchvision's ViT writes numbers into names."""
    parts = path.split(".")
    at = next((i for i, part in enumerate(parts) if part.removeprefix("encoder_layer_").isdigit()), -1)
    return ".".join(parts[: at + 1])


def layered(graph: OpGraph) -> LayeredGraph:
    """The units of a graph, equal blocks as one."""
    return LayeredGraph(graph, *_units(graph.skeleton))


@bounded(Parameter, budget=STRUCTURES)
def _units(graph: Skeleton) -> tuple[tuple[Unit, ...], tuple[int, ...]]:
    """The units and their order, which do not depend on the input sizes."""
    if graph.traced is not None:
        traced = _units(graph.traced)
        renamed = dict(zip(map(id, graph.traced.parameters), graph.parameters, strict=True))
        return tuple([_renamed(unit, renamed) for unit in traced[0]]), traced[1]
    owner = _owners(graph)
    phases, kinds = graph.calls.phase.tolist(), graph.calls.kind.tolist()
    names = list(dict.fromkeys(name for name, phase in zip(owner, phases, strict=True) if phase < Phase.BACKWARD))
    blocks = [name for name in names if name not in (BEFORE, AFTER)]
    order_of_names = [*([BEFORE] if BEFORE in owner else []), *blocks, *([AFTER] if AFTER in owner else [])]
    parameters = _parameters(graph, owner, order_of_names)
    forward: dict[str, list[int]] = defaultdict(list)
    backward: dict[str, list[int]] = defaultdict(list)
    for i, phase in zip(numbers_to(len(phases)), phases, strict=True):
        (forward if phase < Phase.BACKWARD else backward)[owner[i]].append(i)
    units: list[Unit] = []
    order: list[int] = []
    known: dict[object, int] = {}
    for name in order_of_names:
        signature = (
            name if name in (BEFORE, AFTER) else "",
            tuple([(kinds[i], phases[i]) for i in (*forward[name], *backward[name])]),
            tuple((p.shape, p.dtype, p.trainable) for p in parameters[name]),
        )
        if signature not in known:
            known[signature] = len(units)
            units.append(Unit(name, tuple(forward[name]), tuple(backward[name]), tuple(parameters[name])))
        order.append(known[signature])
    return tuple(units), tuple(_whole_order(graph.repeated, order_of_names, order))


def _whole_order(
    repeated: tuple[tuple[str, tuple[int, ...]], ...], names: Sequence[str], order: Sequence[int]
) -> Sequence[int]:
    """The order of units with every block of the model in place of the few traced ones."""
    for path, stands_for in repeated:
        traced = [i for i, name in enumerate(names) if name.rpartition(".")[0] == path]
        count = max(stands_for) + 1
        if not traced:
            continue  # a tower that is not used
        first, after = traced[0], traced[0] + count
        if names[first:after] != [f"{path}.{n}" for n in range(count)]:
            raise CaptureError(f"blocks of {path} do not run one after another, so that all must be traced")
        names = [*names[:first], *[""] * len(stands_for), *names[after:]]
        order = [*order[:first], *(order[first + each] for each in stands_for), *order[after:]]
    return order


def _renamed(unit: Unit, parameters: Mapping[int, Parameter]) -> Unit:
    """The unit in other dtypes; `parameters` by the identity of the traced ones."""
    own = tuple([parameters[id(parameter)] for parameter in unit.parameters])
    return Unit(unit.name, unit.forward, unit.backward, own, unit)


_NUMBERS: list[int] = []


def numbers_to(count: int) -> list[int]:
    """0, 1, 2 ... as the same objects each time: the units of all models hold a few numbers over and over."""
    _NUMBERS.extend(range(len(_NUMBERS), count))
    return _NUMBERS[:count]


def _owners(graph: Skeleton) -> list[str]:
    """The stretch that every call belongs to.

    What lies in no block belongs to what stands before the first or after the last, by its place; between two blocks
    (a transition, a second use of the embedding) to the block that ran last. So does what a module without operators
    of its own in the forward pass (dropout in place, a shortcut) runs backward. A model without blocks, or whose
    forward and backward passes alternate, is one block.
    """
    of_module = [block_of(path) for path in graph.modules]
    owners = [of_module[module] for module in graph.calls.module.tolist()]
    in_forward = graph.calls.phase < Phase.BACKWARD
    forward = {owners[i] for i in np.flatnonzero(in_forward).tolist()} - {""}
    if not forward or in_forward[graph.calls.first(Phase.BACKWARD) :].any():
        return [WHOLE] * len(owners)
    owners = [owner if owner in forward else "" for owner in owners]
    for backward in (False, True):
        at = np.flatnonzero(in_forward ^ backward).tolist()
        inside = [i for i in at if owners[i]]
        first, last = (inside[0], inside[-1]) if inside else (len(owners), -1)
        previous = ""
        for i in at:
            if owners[i]:
                previous = owners[i]
            elif i < first:
                owners[i] = AFTER if backward else BEFORE
            elif i > last:
                owners[i] = BEFORE if backward else AFTER
            else:
                owners[i] = previous
    return owners


def _parameters(graph: Skeleton, owner: Sequence[str], names: Sequence[str]) -> dict[str, list[Parameter]]:
    """Weights by stretch: of a block by their name, all others where they are first read (tied: the embedding's place).

    What is never read stands at the start, with the weights of all blocks that a traced one of an unused tower stands
    for. A traced parameter is the storage of the same number.
    """
    calls = graph.calls
    first_read = dict(zip(calls.reads[::-1].tolist(), calls.reader[::-1].tolist(), strict=True))
    by_block: dict[str, list[Parameter]] = defaultdict(list)
    repeated = dict(graph.repeated)
    for storage, parameter in enumerate(graph.parameters):
        block = block_of(parameter.name)
        if block not in names:
            path, _, place = block.rpartition(".")
            times = repeated[path].count(int(place)) if path in repeated else 1
            block = owner[first_read[storage]] if storage in first_read else names[0]
            by_block[block] += [parameter] * (times - 1)
        by_block[block].append(parameter)
    return by_block
