"""Passes over all parameters of a pipeline stage: optimizer, bucket copies, division by the number of replicas, and
sums of gradients over micro-batches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import ceil

from precision_time.bounded_cache import STRUCTURES, bounded
from precision_time.capture.graph import OpSignature, Parameter, Phase, Skeleton
from precision_time.capture.layers import Unit
from precision_time.capture.optimizer import Sweep, Tail, sweep_kind, sweep_tail, tail
from precision_time.capture.training_step import TrainingStep
from precision_time.job.precision import Precision

EXPERTS = ".experts."
"""Part of the name of every parameter that one expert of many holds."""

Operators = tuple[tuple[Phase, OpSignature], ...]
Held = tuple[tuple[int, int], ...]
"""Unit and how many times a stage holds it."""


@dataclass(frozen=True, slots=True)
class Cut:
    """What stages depend on beside the units: where they are cut, and how their optimizer is sharded."""

    pp: int
    vpp: int
    over: int
    expert_over: int
    recompute: str
    recompute_layers: int | None
    accumulates: bool
    sums: int
    """Ranks that share the accumulated gradients: 1 below ZeRO 2, where every rank keeps all of them."""
    loss_scale: str
    averages: bool
    """Gradients are divided by the number of replicas once, in one buffer of dtype `wire` (None: their own)."""
    wire: str | None
    buckets: bool
    """Gradients are copied into buckets and back, as PyTorch's DDP does."""


@dataclass(frozen=True, slots=True)
class Updates:
    """What the passes over parameters depend on of a training step: not its input sizes."""

    skeleton: Skeleton
    units: tuple[Unit, ...]
    precision: Precision
    optimizer: str
    implementation: str | None
    clip_norm: float | None


def updates_of(step: TrainingStep) -> Updates:
    """Of a step."""
    skeleton, units = step.layers.graph.skeleton, step.layers.units
    return Updates(skeleton, units, step.precision, step.optimizer, step.implementation, step.clip_norm)


@dataclass(frozen=True, slots=True, eq=False)
class Sweeps:
    """Passes over all parameters of a stage: after the last backward, before and after every reduction, and for every
    micro-batch after the first. Between two of `tails` the host waits for the device."""

    tails: tuple[Operators, ...]
    into_buckets: Operators
    out_of_buckets: Operators
    accumulate: Operators


@bounded()
def sweeps(step: Updates, held: Held, copies: tuple[Parameter, ...], cut: Cut) -> Sweeps:
    """The sweeps of a stage. `held`: units and how many times; `copies`: weights of another stage that it also
    holds."""
    after = _tail(step, held, copies, cut)
    whole = after if cut.sums == cut.over else _tail(step, held, copies, replace(cut, over=1, expert_over=1))
    split = after.host_waits_after + 1
    average = _average(step, held, cut)
    first = (*average, *after.operators[:split])
    into_buckets, out_of_buckets = _bucket_copies(step, held, copies, cut)
    return Sweeps(
        (first, after.operators[split:]) if split else ((*average, *after.operators),),
        into_buckets,
        out_of_buckets,
        ((Phase.BACKWARD, whole.accumulate),) if cut.accumulates and whole.accumulate is not None else (),
    )


def _average(step: Updates, held: Held, cut: Cut) -> tuple[tuple[Phase, OpSignature], ...]:
    """The division of all gradients by the number of replicas, where they are reduced once in one buffer."""
    if not cut.averages:
        return ()
    known = [(sizes_of(step.units[index]), repeat) for index, repeat in held]
    first = next((sizes.first for sizes, _ in known if sizes.first), None)
    if first is None:
        return ()
    total = sum(numel * times * repeat for sizes, repeat in known for numel, _, times in sizes.sizes)
    wire = cut.wire or first.grad_dtype
    return ((Phase.BACKWARD, sweep_kind("average", Sweep((total,)), [wire], [wire], "fused")),)


def _bucket_copies(step: Updates, held: Held, copies: Sequence[Parameter], cut: Cut) -> tuple[Operators, Operators]:
    """PyTorch's DDP copies every gradient into its bucket and back; frameworks with one gradient buffer do not."""
    if not cut.buckets:
        return (), ()
    known = [(sizes_of(step.units[index]), repeat) for index, repeat in held]
    first = next((sizes.first for sizes, _ in known if sizes.first), None)
    if first is None:
        return (), ()
    counts: dict[int, int] = {}
    for sizes, repeat in known:
        for numel, _, times in sizes.sizes:
            counts[numel] = counts.get(numel, 0) + times * repeat
    for p in copies:
        if p.trainable and p.ready >= 0:
            counts[p.numel] = counts.get(p.numel, 0) + 1
    order = tuple(sorted(counts.items()))
    sweep = Sweep(tuple(size for size, _ in order), tuple(times for _, times in order))
    wire = cut.wire or first.grad_dtype
    return (
        ((Phase.BACKWARD, sweep_kind("into_buckets", sweep, [first.grad_dtype], [wire], "single")),),
        ((Phase.BACKWARD, sweep_kind("out_of_buckets", sweep, [wire], [first.grad_dtype], "single")),),
    )


def _tail(step: Updates, held: Held, copies: Sequence[Parameter], cut: Cut) -> Tail:
    """The optimizer over this rank's shard of the parameters of `held` units and of `copies`."""
    sizes: dict[int, int] = {}
    first = None
    for known, repeat in (*((sizes_of(step.units[i]), n) for i, n in held), (_sizes_among(copies), 1)):
        first = first or known.first
        for numel, expert, times in known.sizes:
            own = ceil(numel / (cut.expert_over if expert else cut.over))
            sizes[own] = sizes.get(own, 0) + times * repeat
    if first is None or step.optimizer == "none":
        return tail((), step.precision, step.optimizer)
    order = tuple(sorted(sizes.items()))
    sweep = Sweep(tuple(size for size, _ in order), tuple(times for _, times in order))
    return _sweep_tail(
        sweep,
        first.dtype,
        first.grad_dtype,
        step.precision,
        step.optimizer,
        step.implementation,
        step.clip_norm,
        cut.loss_scale,
    )


_sweep_tail = bounded()(sweep_tail)


@dataclass(frozen=True, slots=True)
class Sizes:
    """Trainable parameters of a unit: (elements, whether of an expert, how many of this size), and the first of
    them; elements of all parameters, of experts and others, and those of them that are stored in 4 bits."""

    sizes: tuple[tuple[int, bool, int], ...]
    first: Parameter | None
    dense: int
    expert: int
    packed_dense: int = 0
    packed_expert: int = 0

    def trainable(self, expert: bool) -> int:
        """Elements of the trainable parameters, of experts or of the others."""
        return sum([numel * times for numel, of_expert, times in self.sizes if of_expert is expert])


@bounded(Parameter, budget=STRUCTURES)
def sizes_of(unit: Unit) -> Sizes:
    return _sizes_among(unit.parameters)


def _sizes_among(parameters: Sequence[Parameter]) -> Sizes:
    counts: dict[tuple[int, bool], int] = {}
    held, packed = [0, 0], [0, 0]
    first = None
    for p in parameters:
        numel, expert = p.numel, EXPERTS in f".{p.name}."
        held[expert] += numel
        packed[expert] += numel if p.packed else 0
        if p.trainable and p.ready >= 0:
            first = first or p
            counts[numel, expert] = counts.get((numel, expert), 0) + 1
    return Sizes(tuple([(*key, times) for key, times in counts.items()]), first, *held, *packed)
