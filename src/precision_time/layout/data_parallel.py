"""Plain data parallelism as PyTorch's DistributedDataParallel runs it.

Gradients go into buckets in the order they arrive (the reducer rebuilds its buckets after the first iteration): the
first bucket closes at 1 MiB, the others at 25 MiB, each after the parameter that reaches the limit
(torch/nn/parallel/distributed.py and csrc/distributed/c10d/reducer.cpp, 2.13). Every gradient is divided into its
bucket and copied back after the reduction (`gradient_as_bucket_view=False`, the default).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache

from precision_time.capture.graph import BYTES_PER_ELEMENT, OpGraph, OpSignature, Parameter, Phase
from precision_time.capture.optimizer import Sweep, Tail, sweep_kind
from precision_time.capture.training_step import TrainingStep
from precision_time.layout.rank_program import Bucket, OpSignatures, RankProgram, Segment

FIRST_BUCKET_BYTES = 1 << 20
BUCKET_BYTES = 25 << 20


def buckets(parameters: Sequence[Parameter], wire_dtype: str | None = None) -> tuple[Bucket, ...]:
    """DDP's buckets in the order they are reduced; `wire_dtype` is what a compression hook sends instead."""
    arrived = sorted((p for p in parameters if p.trainable and p.ready >= 0), key=lambda p: p.ready)
    found: list[Bucket] = []
    elements, ready, size = 0, -1, 0
    for parameter in arrived:
        elements += parameter.numel
        size += parameter.numel * BYTES_PER_ELEMENT[parameter.grad_dtype]
        ready = max(ready, parameter.ready)
        if size >= (BUCKET_BYTES if found else FIRST_BUCKET_BYTES):
            found.append(Bucket(_on_wire(elements, size, wire_dtype), elements, ready))
            elements, size = 0, 0
    if elements:
        found.append(Bucket(_on_wire(elements, size, wire_dtype), elements, ready))
    return tuple(found)


def _on_wire(elements: int, size: int, wire_dtype: str | None) -> int:
    return size if wire_dtype is None else elements * BYTES_PER_ELEMENT[wire_dtype]


def data_parallel(
    step: TrainingStep, ranks: int, grad_accum: int = 1, no_sync: bool = True, wire_dtype: str | None = None
) -> RankProgram:
    """The program of one of `ranks` equal ranks; all ranks of plain data parallelism run the same."""
    program = _program(step.graph, step.tail, ranks > 1, grad_accum, no_sync, wire_dtype)
    return _with_ranks(program, ranks, step.length_spread)


@lru_cache(maxsize=128)
def _with_ranks(program: RankProgram, ranks: int, length_spread: float) -> RankProgram:
    return replace(program, ranks=ranks, length_spread=length_spread)


@lru_cache(maxsize=128)
def _program(
    graph: OpGraph, tail: Tail, several: bool, grad_accum: int, no_sync: bool, wire_dtype: str | None
) -> RankProgram:
    kinds: list[OpSignature] = list(graph.kinds)
    trainable = [p for p in graph.parameters if p.trainable and p.ready >= 0]

    def enter(operators: Sequence[tuple[Phase, OpSignature]]) -> Segment:
        rows = []
        for phase, kind in operators:
            kinds.append(kind)
            rows.append((len(kinds) - 1, phase, 0, 0))
        return Segment.of(rows)

    operators = list(tail.operators)
    copies: list[tuple[Phase, OpSignature]] = []
    if several and trainable:
        sweep = Sweep(tuple(p.numel for p in trainable))
        dtype = trainable[0].grad_dtype
        wire = wire_dtype or dtype
        copies = [
            (Phase.BACKWARD, sweep_kind("into_buckets", sweep, [dtype], [wire], "single")),
            (Phase.BACKWARD, sweep_kind("out_of_buckets", sweep, [wire], [dtype], "single")),
        ]
    accumulate = [(Phase.BACKWARD, tail.accumulate)] if tail.accumulate is not None and grad_accum > 1 else []
    return RankProgram(
        micro=Segment.of_calls(graph.calls),
        tail=enter(operators),
        accumulate=enter(accumulate),
        bucket_copies=enter(copies),
        kinds=OpSignatures(kinds),
        buckets=buckets(graph.parameters, wire_dtype) if several else (),
        broadcast_bytes=graph.buffer_bytes if several else 0,
        micro_steps=grad_accum,
        synced_micro_steps=(1 if no_sync else grad_accum) if several else 0,
        ranks=2 if several else 1,
        sync_after_tail=tail.host_waits_after,
    )
