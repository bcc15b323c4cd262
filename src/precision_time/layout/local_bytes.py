"""Bytes of every traced tensor as a rank stores it, which depends on the layout and the framework."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from precision_time.bounded_cache import STRUCTURES, bounded
from precision_time.capture.graph import BYTES_PER_ELEMENT, Category, OpGraph, Phase, Skeleton
from precision_time.capture.layers import BEFORE
from precision_time.capture.training_step import TrainingStep
from precision_time.layout.tensor_parallel import local_call

FLOAT_LOSS = frozenset({"megatron", "megatron-bridge", "megatron-deepspeed"})
"""Frameworks whose loss casts half-precision logits to fp32 and keeps their exponentials in fp32 (Megatron-LM,
megatron/core/ models/common/language_module: `vocab_parallel_cross_entropy` of `output.float()` unless
--fp16-lm-cross-entropy)."""
_PRODUCTS = ("pt.quantize", "pt.scaled_mm")


@bounded()
def local_bytes(step: TrainingStep, framework: str) -> NDArray[Any]:
    """Bytes of each storage of the step's graph: of the rank's own tokens outside divided modules (sequence
    parallelism), in fp8 where only fp8 products read it in the backward pass, in fp32 where the framework's loss keeps
    fp32. Whole numbers whose sums are exact."""
    graph = step.layers.graph
    sizes = graph.storage_bytes.copy()
    if step.sharded is not None:
        sharded = step.sharded.graph
        for unit in step.layers.units:
            for call in (*unit.forward, *unit.backward):
                if local_call(graph, sharded, unit, call, step.split)[1] is sharded:
                    for index in graph.calls[call].writes:
                        if graph.skeleton.spans.born[index] == call and index < len(sharded.storages):
                            sizes[index] = sharded.storage_bytes[index]
        for index in _leaving(step):
            sizes[index] = sharded.storage_bytes[index]
    if step.precision.fp8_scaling:
        sizes[_only_multiplied(graph.skeleton)] //= 2
    if framework in FLOAT_LOSS:
        for index in _half_losses(graph):
            sizes[index] *= 2
    return sizes


def _leaving(step: TrainingStep) -> list[int]:
    """Storages that pass from the embedding to the first block: they are scattered over the ranks before they are
    kept."""
    graph = step.layers.graph
    before = next((u for u in step.layers.units if u.name == BEFORE), None)
    if before is None:
        return []
    inside = set(before.forward)
    end = max(inside, default=-1)
    turn = next((i for i, c in enumerate(graph.calls) if c.phase >= Phase.BACKWARD), len(graph.calls))
    read = {r for call in graph.calls[end + 1 : turn] for r in call.reads}
    return [i for i in read if graph.storages[i].born in inside and graph.storages[i].category is Category.ACTIVATIONS]


@bounded(budget=STRUCTURES)
def _only_multiplied(graph: Skeleton) -> NDArray[np.intp]:
    """Half-precision activations that only fp8 products read in the backward pass: Transformer Engine keeps an fp8
    copy."""
    calls, spans = graph.calls, graph.spans
    turn = calls.first(Phase.BACKWARD)
    backward = calls.reader >= turn
    product = np.array([name in _PRODUCTS for name in graph.names], dtype=np.bool_)[calls.kind]
    read = np.setdiff1d(calls.reads[backward], calls.reads[backward & ~product[calls.reader]])
    born = spans.born[read]
    chosen: NDArray[np.intp] = read[(born >= 0) & (born < turn) & (spans.category[read] == Category.ACTIVATIONS)]
    return chosen


def _half_losses(graph: OpGraph) -> list[int]:
    """Storages that the loss computes from half-precision logits and keeps for the backward pass."""
    return [
        index
        for call in graph.calls
        if call.phase is Phase.LOSS
        for index, spec in zip(call.writes, graph.kinds[call.kind].outputs, strict=False)
        if BYTES_PER_ELEMENT[spec.dtype] == 2 and graph.storages[index].category is Category.ACTIVATIONS
    ]
