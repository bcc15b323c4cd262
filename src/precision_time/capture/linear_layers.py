"""The linear layers of a traced step, which adapters and quantized weights are about."""

from __future__ import annotations

from dataclasses import dataclass

from precision_time.capture.graph import OpGraph, Phase
from precision_time.capture.graph_edit import casts_of_weights
from precision_time.capture.layers import block_of

OPERANDS = {"aten.mm": 0, "aten.addmm": 1, "pt.grouped_mm": 0}
"""Products of a linear layer, and where its input stands; the weight follows."""


@dataclass(frozen=True, slots=True)
class LinearLayer:
    """A linear layer of a traced step.

    parameter  number of its weight; `path`: name of the weight without ".weight"
    forward    the call of its product; `backward`: that of the gradient of its input (None: there is none)
    weight     the storage that products read: the weight, or the result of call `cast`
    source     what goes in, before the cast that this layer makes of it (then `casts` is true)
    """

    parameter: int
    path: str
    forward: int
    backward: int | None
    weight: int
    cast: int | None
    source: int
    casts: bool

    @property
    def name(self) -> str:
        return self.path.rpartition(".")[2]


def linear_layers(graph: OpGraph) -> list[LinearLayer]:
    """The linear layers of all blocks, in the order they run; no router of experts."""
    casts, calls = casts_of_weights(graph), graph.calls
    born = {s: i for i, call in enumerate(calls) for s in call.writes}
    gradient_of: dict[int, int] = {}
    for i, call in enumerate(calls):
        at = OPERANDS.get(graph.kinds[call.kind].name)
        if call.phase is Phase.BACKWARD and at is not None and len(call.reads) > at + 1:
            gradient_of.setdefault(call.reads[at + 1], i)
    layers = []
    for i, call in enumerate(calls):
        at = OPERANDS.get(graph.kinds[call.kind].name)
        if call.phase is not Phase.FORWARD or at is None or len(call.reads) < at + 2:
            continue
        x, weight = call.reads[at], call.reads[at + 1]
        number = casts.get(weight, weight if weight < len(graph.parameters) else -1)
        path = graph.parameters[number].name.removesuffix(".weight") if number >= 0 else ""
        if not block_of(path) or "router" in path:
            continue
        before = born.get(x, -1)
        own = before >= 0 and calls[before].module == call.module
        cast = own and graph.kinds[calls[before].kind].name == "aten._to_copy"
        layers.append(
            LinearLayer(
                number,
                path,
                i,
                gradient_of.get(weight),
                weight,
                born[weight] if weight in casts else None,
                calls[before].reads[0] if cast else x,
                cast,
            )
        )
    return layers
