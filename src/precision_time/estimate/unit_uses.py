"""The units of a step as their memory sees them: bytes of each, and the uses of a stage with their recomputation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from precision_time.bounded_cache import STRUCTURES, bounded
from precision_time.capture.graph import BYTES_PER_ELEMENT, Category, Skeleton
from precision_time.capture.layers import AFTER, BEFORE, Unit
from precision_time.capture.lifetimes import Lifetimes, lifetimes
from precision_time.capture.training_step import TrainingStep
from precision_time.layout.local_bytes import local_bytes
from precision_time.layout.options import Options
from precision_time.layout.program import Chunk, StepProgram
from precision_time.layout.recomputation import recomputed_parts, saved_products
from precision_time.layout.step_program import shared_weights


class Use(NamedTuple):
    """One use of a unit: its lifetimes, its weights on a rank before sharding over data ranks (bytes of all as they are
    gathered, elements of the trainable ones and of the largest of these), whether it is a block, whether it precedes
    the blocks, how it recomputes ("ops": by torchtitan's policy, which keeps `saved` bytes of results), and how many
    equal units in a row are computed again together from the input of the first.

    `times` equal uses between equal neighbours are one `Use`: live bytes grow linearly over them, so the peak is not
    among them.
    """

    lives: Lifetimes
    gathered: float
    trainable: int
    largest: int
    block: bool
    first: bool
    recompute: str
    saved: int = 0
    group: int = 1
    times: int = 1

    @property
    def reruns(self) -> bool:
        """Whether its forward pass starts again from its input."""
        return self.recompute in ("full", "ops")

    @property
    def keeps(self) -> int:
        """Bytes kept for the backward pass."""
        if self.reruns:
            return self.lives.output + self.saved
        return self.lives.kept - (self.lives.core if self.recompute != "none" else 0)

    @property
    def forward(self) -> int:
        if not self.reruns:
            return self.lives.forward
        return self.lives.blind + self.saved + (self.lives.output if self.group > 1 else 0)

    def backward(self, graded: bool) -> tuple[int, int]:
        """The most alive in its turn backward, in place of what it kept, and which of it are gradients of its weights.

        A unit that runs again has at the end all that it keeps without recomputation, beside the gradient that came in.
        Of a group, all units have that before the last one's turn.
        """
        most, gradients = (self.lives.graded, self.lives.gradients) if graded else (self.lives.backward, 0)
        again = self.lives.forward + self.lives.output if self.reruns else 0
        before = (self.group - 1) * self.lives.kept
        return (before + most, gradients) if most >= again else (before + again, 0)


@dataclass(frozen=True, slots=True, eq=False)
class UnitParts:
    """Properties of a step's units that do not depend on other degrees of the layout: by unit lifetimes and elements of
    the largest trainable tensor; bytes of an element of weights and of gradients; elements of tied
    weights; bytes sent from a stage to the next; bytes of the samples; by unit bytes of saved results (`Use`)."""

    lives: tuple[Lifetimes, ...]
    saved: tuple[int, ...]
    largest_trained: tuple[int, ...]
    weight_bytes: int
    gradient_bytes: int
    tied: int
    boundary: int
    inputs: int


@bounded()
def unit_parts(step: TrainingStep, framework: str, softmax_inputs: bool, recompute: str) -> UnitParts:
    """The units of a step. `softmax_inputs`: softmax keeps its input beside its output; `recompute`: the job's."""
    units, graph = step.layers.units, step.layers.graph
    sizes = local_bytes(step, framework)
    lives = lifetimes(
        graph, units, sizes, tuple(recomputed_parts(graph, unit, recompute) for unit in units), softmax_inputs
    )
    largest_trained, weight, gradient = _widths(units)
    inputs = graph.skeleton.spans.category == Category.INPUTS
    return UnitParts(
        lives=lives,
        saved=tuple(_saved_bytes(graph.skeleton, unit, sizes) for unit in units),
        largest_trained=largest_trained,
        weight_bytes=weight,
        gradient_bytes=gradient,
        tied=sum(p.numel for p in shared_weights(graph.skeleton, units) if p.trainable),
        boundary=next((life.taken for unit, life in zip(units, lives, strict=True) if unit.name == AFTER), 0),
        inputs=int(graph.storage_bytes[inputs].sum()),
    )


def _saved_bytes(graph: Skeleton, unit: Unit, sizes: NDArray[Any]) -> int:
    """Bytes of the results that torchtitan's policy keeps of a unit's forward calls."""
    inside = np.isin(graph.calls.writer, list(saved_products(graph, unit.forward)))
    return int(sizes[graph.calls.writes[inside]].sum())


@bounded(budget=STRUCTURES)
def _widths(units: tuple[Unit, ...]) -> tuple[tuple[int, ...], int, int]:
    """By unit the elements of the largest trainable tensor; bytes of an element of weights and of gradients."""
    parameters = [p for unit in units for p in unit.parameters]
    weight = max((BYTES_PER_ELEMENT[p.dtype] for p in parameters), default=4)
    return (
        tuple(max((p.numel for p in u.parameters if p.trainable), default=0) for u in units),
        weight,
        max((BYTES_PER_ELEMENT[p.grad_dtype] for p in parameters), default=weight),
    )


def uses_of(chunk: Chunk, program: StepProgram, options: Options, parts: UnitParts) -> list[Use]:
    """The uses of a chunk's units in order; of more than four equal ones, the middle ones are one `Use`."""
    uses: list[Use] = []
    for index, repeat, again in chunk.units:
        for recompute, count, group in _modes(options, repeat, again):
            if count > 0:
                use = _use(index, recompute, program, parts)._replace(group=group)
                rest = [use._replace(times=count - 4)] if count > 4 else []
                uses += [use] * min(count, 2) + rest + [use] * max(min(count, 4) - 2, 0)
    return uses


def _modes(options: Options, repeat: int, again: int) -> list[tuple[str, int, int]]:
    """Of `repeat` equal units in a row, of which `again` recompute: mode, number of uses and units of each."""
    mode = "ops" if options.saves_products else options.recompute
    each = options.recompute_layers or 1
    if options.recompute_method == "uniform" and again:
        return [
            (mode, again // each, each),
            (mode, min(again % each, 1), again % each),
            ("none", repeat - again, 1),
        ]
    if options.recompute_method == "every" and again:  # in the middle, which has no peak, one kind after the other
        period = [("none", each - 1, 1), (mode, 1, 1)]
        middle = [("none", (again - 4) * (each - 1), 1), (mode, again - 4, 1)]
        rows = period * again if again <= 4 else [*period * 2, *middle, *period * 2]
        return [*rows, ("none", repeat - again * each, 1)]
    return [(mode, again, 1), ("none", repeat - again, 1)]


def _use(index: int, recompute: str, program: StepProgram, parts: UnitParts) -> Use:
    unit = program.units[index]
    return Use(
        lives=parts.lives[index],
        gathered=program.gathered_bytes(
            unit.dense_elements + unit.expert_elements, unit.packed_dense + unit.packed_expert
        ),
        trainable=unit.dense_trainable + unit.expert_trainable,
        largest=parts.largest_trained[index],
        block=unit.name not in (BEFORE, AFTER),
        first=unit.name == BEFORE,
        recompute=recompute,
        saved=_saved(index, program, parts) if recompute == "ops" else 0,
    )


def _saved(index: int, program: StepProgram, parts: UnitParts) -> int:
    """Bytes of the results that torchtitan's policy keeps, also of the reduce-scatters of each half of a block."""
    layout = program.layout
    reduced = 2 * parts.lives[index].output if layout.sp and layout.tp > 1 else 0
    return parts.saved[index] + reduced
