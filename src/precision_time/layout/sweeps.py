"""Passes over all parameters of a pipeline stage: optimizer, bucket copies, division by the number of replicas, and
sums of gradients over micro-batches."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import ceil

from precision_time.bounded_cache import STRUCTURES, bounded
from precision_time.capture.graph import BYTES_PER_ELEMENT, OpSignature, Parameter, Phase, Skeleton
from precision_time.capture.layers import AFTER, BEFORE, Unit
from precision_time.capture.matrix_optimizers import Matrix
from precision_time.capture.optimizer import Sweep, Tail, average, rule, sweep_kind, sweep_tail, tail
from precision_time.capture.training_step import TrainingStep
from precision_time.errors import JobError
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
    over: float
    expert_over: float
    recompute: str
    recompute_layers: int | None
    recompute_method: str | None
    accumulates: bool
    sums: float
    """Ranks that share the accumulated gradients: 1 below ZeRO 2, where every rank keeps all of them."""
    weights_over: tuple[int, int]
    """Ranks that share the weights between steps, of experts last: 1 below ZeRO 3."""
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
    ema: str | None


def updates_of(step: TrainingStep) -> Updates:
    """Of a step."""
    skeleton, units = step.layers.graph.skeleton, step.layers.units
    return Updates(skeleton, units, step.precision, step.optimizer, step.implementation, step.clip_norm, step.ema)


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
    whole = after
    if cut.sums != cut.over:  # sums of whole gradients do not depend on how matrices are updated
        plain = step if rule(step.optimizer).matrix is None else replace(step, optimizer="adamw")
        whole = _tail(plain, held, copies, replace(cut, over=1, expert_over=1))
    split = after.host_waits_after + 1
    first = (*_mean(step, held, cut), *after.operators[:split])
    last = (*after.operators[split:], *_average(step, held, copies, cut))
    into_buckets, out_of_buckets = _bucket_copies(step, held, copies, cut)
    return Sweeps(
        (first, last) if split else ((*first, *last),),
        into_buckets,
        out_of_buckets,
        ((Phase.BACKWARD, whole.accumulate),) if cut.accumulates and whole.accumulate is not None else (),
    )


def _average(step: Updates, held: Held, copies: Sequence[Parameter], cut: Cut) -> Operators:
    """The update of the moving average of a rank's weights."""
    if step.ema is None:
        return ()
    first, sizes, _ = _numbers(step, held, copies, *cut.weights_over)
    if first is None:
        return ()
    names, kinds = step.skeleton.names, step.skeleton.calls.kind
    norms = sum(repeat for i, repeat in held for call in step.units[i].forward if "batch_norm" in names[kinds[call]])
    return average(_sweep_of(sizes), 3 * norms, first.dtype, step.ema)  # mean, variance and their number of updates


def _mean(step: Updates, held: Held, cut: Cut) -> tuple[tuple[Phase, OpSignature], ...]:
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
    sweep = _sweep_of(counts)
    wire = cut.wire or first.grad_dtype
    return (
        ((Phase.BACKWARD, sweep_kind("into_buckets", sweep, [first.grad_dtype], [wire], "single")),),
        ((Phase.BACKWARD, sweep_kind("out_of_buckets", sweep, [wire], [first.grad_dtype], "single")),),
    )


def _tail(step: Updates, held: Held, copies: Sequence[Parameter], cut: Cut) -> Tail:
    """The optimizer over this rank's shard of the parameters of `held` units and of `copies`."""
    first, sizes, others = _numbers(step, held, copies, cut.over, cut.expert_over)
    if first is None or step.optimizer == "none":
        return tail((), step.precision, step.optimizer)
    sweep = _sweep_of(sizes)
    if rule(step.optimizer).matrix is not None:
        matrices = matrices_of(step.units, held, cut.over, cut.expert_over)
        sweep = replace(sweep, matrices=tuple(matrices), others=_sweep_of(others))
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


def _numbers(
    step: Updates, held: Held, copies: Sequence[Parameter], over: float, expert_over: float
) -> tuple[Parameter | None, dict[int, int], dict[int, int]]:
    """The first trainable parameter, and how many tensors there are of each size of a rank's share: of all, and of
    those that no rule of matrices updates."""
    sizes: dict[int, int] = {}
    others: dict[int, int] = {}
    first = None
    for known, repeat in (*((sizes_of(step.units[i]), n) for i, n in held), (_sizes_among(copies), 1)):
        first = first or known.first
        for counts, of in ((sizes, known.sizes), (others, known.others)):
            for numel, expert, times in of:
                own = ceil(numel / (expert_over if expert else over))
                counts[own] = counts.get(own, 0) + times * repeat
    return first, sizes, others


def _sweep_of(sizes: Mapping[int, int]) -> Sweep:
    """Tensors given by how many there are of each size."""
    order = tuple(sorted(sizes.items()))
    return Sweep(tuple(size for size, _ in order), tuple(times for _, times in order))


def kept_states(step: TrainingStep, held: Iterable[tuple[int, int]], over: int, expert_over: int) -> float | None:
    """Bytes of the optimizer's states of one of `over` ranks, of an optimizer that keeps matrices in another way than
    other weights; None for any other optimizer. `held`: units and how many times."""
    chosen, width = rule(step.optimizer), BYTES_PER_ELEMENT[step.precision.state_dtype]
    if chosen.matrix is None:
        return None
    held, units = tuple(held), step.layers.units
    total = 0.0
    for index, repeat in held:
        for numel, expert, times in sizes_of(units[index]).others:
            total += chosen.state_bytes(width) * numel * times * repeat / (expert_over if expert else over)
    matrices = matrices_of(units, held, over, expert_over)
    return total + width * sum(chosen.matrix.state_elements(matrix) for matrix in matrices)


_sweep_tail = bounded()(sweep_tail)


@dataclass(frozen=True, slots=True)
class Sizes:
    """Trainable parameters of a unit: (elements, whether of an expert, how many of this size), and the first of
    them; elements of all parameters, of experts and others, and those of them that are stored in fewer bits."""

    sizes: tuple[tuple[int, bool, int], ...]
    first: Parameter | None
    dense: int
    expert: int
    packed_dense: int = 0
    packed_expert: int = 0
    matrices: tuple[tuple[Matrix, bool], ...] = ()
    """The trainable matrices of a block, for optimizers that update them whole, and whether they are of an expert."""
    others: tuple[tuple[int, bool, int], ...] = ()
    """`sizes` without these."""

    def trainable(self, expert: bool) -> int:
        """Elements of the trainable parameters, of experts or of the others."""
        return sum([numel * times for numel, of_expert, times in self.sizes if of_expert is expert])


@bounded(Parameter, budget=STRUCTURES)
def sizes_of(unit: Unit) -> Sizes:
    found = _sizes_among(unit.parameters)
    if unit.name in (BEFORE, AFTER):
        return found
    counts: dict[tuple[int, int, bool], int] = {}
    others = []
    for p in unit.parameters:
        expert = EXPERTS in f".{p.name}."
        if len(p.shape) != 2 and not (expert and len(p.shape) == 3):
            others.append(p)
        elif p.trainable and p.ready >= 0:
            key = (*p.shape[-2:], expert)
            counts[key] = counts.get(key, 0) + (p.shape[0] if len(p.shape) == 3 else 1)
    matrices = tuple([(Matrix(rows, columns, n), expert) for (rows, columns, expert), n in counts.items()])
    return replace(found, matrices=matrices, others=_sizes_among(others).sizes)


MOST_MATRICES = 2_048
"""Most matrices that a rank updates one by one; every one has up to 23 operators, which a step lists."""


def matrices_of(
    units: Sequence[Unit], held: Iterable[tuple[int, int]], over: float, expert_over: float
) -> list[Matrix]:
    """The matrices that one of `over` ranks updates, each whole, of units held so many times. Raises `JobError`
    where there are more than `MOST_MATRICES`."""
    counts: dict[tuple[int, int, bool], int] = {}
    for index, repeat in held:
        for matrix, expert in sizes_of(units[index]).matrices:
            key = (matrix.rows, matrix.columns, expert)
            counts[key] = counts.get(key, 0) + matrix.times * repeat
    shares = {True: expert_over, False: over}
    found = [Matrix(rows, columns, ceil(n / shares[expert])) for (rows, columns, expert), n in counts.items()]
    if (total := sum(matrix.times for matrix in found)) > MOST_MATRICES:
        raise JobError(
            f"optimizer: a rank updates {total:,} matrices one by one, and at most {MOST_MATRICES:,} are predicted; "
            "share them among more ranks (layout zero1, or a larger ep), or set optimizer to adamw."
        )
    return found


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
    sizes = tuple([(*key, times) for key, times in counts.items()])
    return Sizes(sizes, first, held[0], held[1], packed[0], packed[1], others=sizes)
