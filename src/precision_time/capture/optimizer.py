"""The operators after the backward pass: unscale, clip, optimizer update, casts of master weights.

They follow from the parameters alone, so they are written from a table instead of traced: one row per pass over the
parameters, as PyTorch's `torch.optim` (2.13) and apex run them. `tests/test_optimizer.py` traces the real optimizers
and compares operator by operator.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from precision_time.capture.graph import BYTES_PER_ELEMENT, OpKind, Parameter, Phase, TensorSpec
from precision_time.errors import JobError, nearest
from precision_time.job.precision import Precision


@dataclass(frozen=True, slots=True)
class Pass:
    """One sweep over all parameters: how many parameter-sized tensors are read and written per element."""

    name: str
    reads: int
    writes: int


@dataclass(frozen=True, slots=True)
class Rule:
    """An optimizer: its passes unfused, its passes as one fused kernel, and state tensors per parameter."""

    passes: tuple[Pass, ...]
    fused: tuple[Pass, ...]
    states: int


_MUL, _ADD, _SQRT, _DIV = Pass("mul_", 1, 1), Pass("add_", 1, 1), Pass("sqrt", 1, 1), Pass("div_", 1, 1)
_AXPY = Pass("add_", 2, 1)
_NORM = Pass("norm", 1, 0)
_ADAM = (Pass("lerp_", 2, 1), _MUL, Pass("addcmul_", 2, 1), _SQRT, _DIV, _ADD, Pass("addcdiv_", 3, 1))

OPTIMIZERS: dict[str, Rule] = {
    "sgd": Rule((Pass("add", 2, 1), _MUL, _AXPY, _AXPY), (Pass("sgd", 3, 2),), 1),
    "adam": Rule(_ADAM, (Pass("adam", 4, 3),), 2),
    "adamw": Rule((_MUL, *_ADAM), (Pass("adamw", 4, 3),), 2),
    "adagrad": Rule(
        (Pass("addcmul_", 2, 1), _SQRT, _ADD, Pass("mul", 1, 1), Pass("addcdiv_", 3, 1)), (Pass("adagrad", 3, 2),), 1
    ),
    "rmsprop": Rule(
        (_MUL, Pass("addcmul_", 2, 1), _SQRT, _ADD, _MUL, Pass("addcdiv_", 3, 1), _AXPY),
        (Pass("rmsprop", 4, 3),),
        2,
    ),
    # LAMB: gradient norm, Adam direction, norms of weight and direction, update (apex's multi-tensor stages).
    "lamb": Rule(
        (_NORM, _DIV, *_ADAM[:6], Pass("div", 2, 1), _AXPY, _NORM, _NORM, _AXPY),
        (_NORM, Pass("lamb_stage_1", 4, 3), Pass("norm", 2, 0), Pass("lamb_stage_2", 2, 1)),
        2,
    ),
    # NovoGrad keeps one number per tensor as second moment.
    "novograd": Rule((_NORM, _DIV, _AXPY, _MUL, _AXPY, _AXPY), (_NORM, Pass("novograd", 3, 2)), 1),
    "lars": Rule((_NORM, _NORM, Pass("add", 2, 1), _MUL, _AXPY, _AXPY), (Pass("norm", 2, 0), Pass("lars", 3, 2)), 1),
    "none": Rule((), (), 0),
}

# torch/aten/src/ATen/native/cuda/MultiTensorApply.cuh: tensors per launch by list depth, blocks and chunk size.
_TENSORS_PER_LAUNCH = {1: 110, 2: 64, 3: 48, 4: 36, 5: 30}
_BLOCKS_PER_LAUNCH, _CHUNK = 320, 65536


def rule(name: str) -> Rule:
    if name not in OPTIMIZERS:
        raise JobError(
            f"optimizer {name!r} is unknown; nearest: {nearest(name, OPTIMIZERS)}; set optimizer to one of them"
        )
    return OPTIMIZERS[name]


@dataclass(frozen=True, slots=True)
class Sweep:
    """What a pass runs over: the trainable parameters' sizes."""

    numels: tuple[int, ...]

    @property
    def total(self) -> int:
        return sum(self.numels)

    def launches(self, depth: int, implementation: str) -> int:
        if implementation == "single":
            return len(self.numels)
        blocks = sum(math.ceil(n / _CHUNK) for n in self.numels)
        per_launch = _TENSORS_PER_LAUNCH[min(max(depth, 1), 5)]
        return max(1, math.ceil(len(self.numels) / per_launch), math.ceil(blocks / _BLOCKS_PER_LAUNCH))


def sweep_kind(name: str, sweep: Sweep, reads: Sequence[str], writes: Sequence[str], implementation: str) -> OpKind:
    """One pass as an operator: `reads` and `writes` are dtypes of parameter-sized tensors."""
    launches = sweep.launches(max(len(reads), len(writes)), implementation)
    host_calls = len(sweep.numels) if implementation == "single" else 1
    return OpKind(
        "pt.sweep",
        tuple(TensorSpec((sweep.total,), dtype) for dtype in reads),
        tuple(TensorSpec((sweep.total,), dtype) for dtype in writes),
        (("label", name), ("launches", launches), ("host_calls", host_calls), ("tensors", len(sweep.numels))),
    )


@dataclass(frozen=True, slots=True, eq=False)
class Tail:
    """Everything of a step after the last backward."""

    operators: tuple[tuple[Phase, OpKind], ...]
    accumulate: OpKind | None
    state_bytes: int
    master_bytes: int
    host_syncs: int


def tail(
    parameters: Sequence[Parameter],
    precision: Precision,
    optimizer: str,
    implementation: str | None = None,
    clip_norm: float | None = None,
    parameter_dtype: str | None = None,
) -> Tail:
    """The operators after backward for these parameters.

    `implementation`: single | foreach | fused; None means fused for master-weight precisions (apex, Megatron and
    DeepSpeed have no other) and foreach otherwise (torch's default on GPUs since 2.0).
    """
    chosen = rule(optimizer)
    trainable = [p for p in parameters if p.trainable and p.ready >= 0]
    sweep = Sweep(tuple(p.numel for p in trainable))
    if optimizer == "none" or not trainable:
        return Tail((), None, 0, 0, 0)
    how = implementation or ("fused" if precision.master_weights else "foreach")
    gradient = trainable[0].grad_dtype
    weight = trainable[0].dtype
    state = precision.state_dtype
    operators: list[tuple[Phase, OpKind]] = []
    working = gradient
    # apex, Megatron and DeepSpeed sweep all tensors at once also where the update itself is per tensor.
    multi = "foreach" if how == "single" else how
    if precision.master_weights and how != "fused":
        operators.append((Phase.UNSCALE, sweep_kind("master_gradients", sweep, [gradient], ["float32"], how)))
        working = "float32"
    elif precision.loss_scaling:
        # _amp_foreach_non_finite_check_and_unscale_: one read and one write of every gradient.
        operators.append((Phase.UNSCALE, sweep_kind("unscale", sweep, [working], [working], multi)))
    if clip_norm is not None:
        operators.append((Phase.CLIP, sweep_kind("grad_norm", sweep, [working], [], multi)))
        operators.append((Phase.CLIP, sweep_kind("clip", sweep, [working], [working], multi)))
    for step in chosen.fused if how == "fused" else chosen.passes:
        reads = [working, *[state] * (step.reads - 1)]
        writes = [state] * step.writes
        if how == "fused" and precision.master_weights and step is chosen.fused[-1]:
            writes.append(weight)  # the fused kernel also writes the half weights
        operators.append((Phase.OPTIMIZER, sweep_kind(step.name, sweep, reads, writes, how)))
    if precision.master_weights and how != "fused":
        operators.append((Phase.OPTIMIZER, sweep_kind("master_to_weights", sweep, ["float32"], [weight], how)))
    width = BYTES_PER_ELEMENT[state]
    return Tail(
        operators=tuple(operators),
        accumulate=sweep_kind("accumulate", sweep, [gradient, gradient], [gradient], "single"),
        state_bytes=chosen.states * sweep.total * width,
        master_bytes=sweep.total * 4 if precision.master_weights else 0,
        host_syncs=int(precision.loss_scaling and how != "fused"),
    )
