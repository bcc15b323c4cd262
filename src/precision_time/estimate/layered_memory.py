"""Peak device memory of the fullest rank of a layout, by category and pipeline stage.

States follow the layout (what is sharded over how many ranks), activations the traced lifetimes of every tensor:
what each unit keeps for its backward pass, times the micro-batches that a stage has in flight, and the working set of
the unit that runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import ceil

from precision_time.capture.graph import BYTES_PER_ELEMENT
from precision_time.capture.layered_step import LayeredStep
from precision_time.capture.layers import AFTER, BEFORE, Unit
from precision_time.capture.optimizer import rule
from precision_time.estimate.memory import FRAGMENTATION, FRAMEWORK_BYTES, Memory
from precision_time.layout.layered_program import LayeredProgram, Stage
from precision_time.layout.layers import core_attention

GATHERED_UNITS = 2
"""Units whose gathered weights are there at once under full sharding: the one that runs and the next."""


@dataclass(frozen=True, slots=True)
class StageMemory:
    """Bytes of one stage at its fullest moment, by category."""

    by_category: dict[str, int]

    @property
    def peak_bytes(self) -> int:
        return sum(self.by_category.values())


def layered_memory(
    step: LayeredStep, program: LayeredProgram, in_flight: Sequence[float], capacity_bytes: int, recompute: str,
    process_bytes: int = FRAMEWORK_BYTES,
) -> tuple[Memory, tuple[StageMemory, ...]]:  # fmt: skip
    """The fullest stage against the device, and every stage. `in_flight`: activations of so many (micro-batch, chunk)
    pairs that each stage holds at most."""
    stages = []
    known: dict[tuple[int, float], StageMemory] = {}
    for stage, alive in zip(program.stages, in_flight, strict=True):
        key = (id(stage), alive)
        if key not in known:
            known[key] = _stage(step, program, stage, alive, recompute, process_bytes)
        stages.append(known[key])
    fullest = max(stages, key=lambda s: s.peak_bytes)
    return Memory(fullest.by_category, capacity_bytes), tuple(stages)


def _stage(
    step: LayeredStep, program: LayeredProgram, stage: Stage, alive: float, recompute: str, process_bytes: int
) -> StageMemory:
    layout = program.layout
    precision = step.precision
    weight, gradient = _widths(step)
    if program.gradient_bytes > gradient and layout.zero < 3 and program.micro_batches > 1:
        gradient = int(program.gradient_bytes)  # accumulated in the dtype they are reduced in
    over, expert_over = layout.shard_ranks, layout.expert_ranks
    held = (stage.dense_elements, stage.expert_elements)
    trained = (stage.dense_trainable, stage.expert_trainable)

    def shared(elements: tuple[int, int], sharded: bool) -> float:
        return elements[0] / (over if sharded else 1) + elements[1] / (expert_over if sharded else 1)

    # Fully sharded and in half precision, the shard that is kept is the fp32 master copy itself (FSDP MixedPrecision).
    masters = 4 * shared(trained, layout.zero >= 1) if precision.master_weights else 0.0
    weights = weight * shared(held, layout.zero >= 3)
    if layout.zero >= 3 and precision.master_weights:
        weights = 0.0
    state = BYTES_PER_ELEMENT[precision.state_dtype]
    states = rule(step.optimizer).states * state * shared(trained, layout.zero >= 1)
    gradients = gradient * shared(trained, layout.zero >= 2)
    if layout.zero >= 3 and precision.master_weights:
        gradients = 4 * shared(trained, True)
    buffers = 0.0
    biggest = max(u.dense_elements + u.expert_elements for u in program.units)
    if layout.zero >= 3:
        buffers = biggest * (GATHERED_UNITS * program.weight_bytes + program.gradient_bytes)
    elif layout.zero == 0 and layout.data_ranks > 1 and layout.overlap_grad_reduce:
        buffers = gradient * shared(trained, False)
    activations = _activations(step, program, stage, alive, recompute)
    rows = {
        "weights": weights,
        "gradients": gradients,
        "optimizer states": states,
        "master weights": masters,
        "activations": activations,
        "communication buffers": buffers,
    }
    total = sum(rows.values())
    rows["framework and fragmentation"] = process_bytes + FRAGMENTATION * total
    return StageMemory({name: ceil(value) for name, value in rows.items()})


@lru_cache(maxsize=256)
def _widths(step: LayeredStep) -> tuple[int, int]:
    """Bytes of an element of the widest weight, and of the widest gradient."""
    weight = max(BYTES_PER_ELEMENT[p.dtype] for u in step.layers.units for p in u.parameters)
    gradients = (BYTES_PER_ELEMENT[p.grad_dtype] for u in step.layers.units for p in u.parameters)
    return weight, max(gradients, default=weight)


def _activations(step: LayeredStep, program: LayeredProgram, stage: Stage, alive: float, recompute: str) -> float:
    """Saved tensors of the micro-batches in flight, and the most that one unit needs while it runs."""
    layout = program.layout
    per_chunk = []
    working = 0.0
    for chunk in stage.chunks:
        saved = 0.0
        for index, repeat, again in chunk.units:
            unit = step.layers.units[index]
            kept, kept_again = (_kept(step, unit, mode, layout.tp, layout.sp) for mode in ("none", recompute))
            saved += (repeat - again) * kept + again * kept_again
            redone = kept - kept_again if again else 0.0
            working = max(working, unit.working_bytes + redone)
        per_chunk.append(saved)
    return alive * sum(per_chunk) / len(per_chunk) + working


@lru_cache(maxsize=4096)
def _kept(step: LayeredStep, unit: Unit, recompute: str, tp: int, sp: bool) -> float:
    """Bytes of a unit that wait for its backward pass, on this rank's part of the sequence where it has one."""
    whole = float(unit.saved_bytes)
    if step.sharded is not None and step.split is not None:
        # Outside the divided modules only this rank's tokens are kept.
        whole = _sharded_saved(step, unit)
    if recompute == "none" or unit.name in (BEFORE, AFTER):
        return whole
    if recompute == "full":
        return float(unit.boundary_bytes) / (tp if sp else 1)
    graph = step.layers.graph
    inside = set(core_attention(graph, unit))
    dropped = sum(s.nbytes for s in graph.storages if s.born in inside and s.dies > max(unit.forward))
    return max(whole - dropped, 0.0)


def _sharded_saved(step: LayeredStep, unit: Unit) -> float:
    from precision_time.layout.tensor_parallel import region_of

    graph, sharded = step.layers.graph, step.sharded
    assert step.split is not None and sharded is not None
    end = max(unit.forward)
    inside = set(unit.forward)
    total = 0
    for index, storage in enumerate(graph.storages):
        if storage.born in inside and storage.dies > end and storage.category == 2:
            divided = region_of(graph.modules[graph.calls[storage.born].module], unit.name, step.split)
            total += storage.nbytes if divided else sharded.graph.storages[index].nbytes
    return float(total)
