"""The operators after the backward pass: unscale, clip, optimizer update, casts of master weights.

They follow from the parameters alone, so they are written from a table instead of traced: one row per pass over the
parameters, as PyTorch's `torch.optim` (2.13) and apex run them. `tests/test_optimizer.py` traces the real optimizers
and compares operator by operator.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from dataclasses import dataclass, replace

from precision_time.capture.graph import BYTES_PER_ELEMENT, OpSignature, Parameter, Phase, TensorSpec
from precision_time.capture.matrix_optimizers import MATRIX_RULES, Matrix, MatrixRule
from precision_time.errors import JobError, nearest
from precision_time.job.precision import Precision


@dataclass(frozen=True, slots=True)
class Pass:
    """One sweep over all parameters: how many parameter-sized tensors are read and written per element, of which the
    last `packed` ones in 8 bits."""

    name: str
    reads: int
    writes: int
    packed: int = 0


@dataclass(frozen=True, slots=True)
class Rule:
    """An optimizer: its passes unfused, its passes as one fused kernel, and state tensors per parameter.

    `asks`: for every tensor, the host waits for a number from the device before it continues.
    `older`: its passes in PyTorch 1.x, where they differ.
    `packed`: state tensors of 8 bits, with a scale of 4 bytes for every `PACKED_BLOCK` elements.
    `matrix`: how matrices are updated, where that differs; the rest holds for all other weights.
    """

    passes: tuple[Pass, ...]
    fused: tuple[Pass, ...]
    states: int
    asks: bool = False
    packed: int = 0
    matrix: MatrixRule | None = None
    older: tuple[Pass, ...] = ()

    def state_bytes(self, width: int) -> float:
        """Of the states of a parameter in no matrix with a rule of its own; `width`: bytes of an element in the
        precision's dtype of states."""
        return self.states * width + self.packed * (1.0 + 4.0 / PACKED_BLOCK)


PACKED_BLOCK = 256
"""Elements that share a scale in 8-bit states (bitsandbytes, block-wise quantization: arXiv:2110.02861)."""


_MUL, _ADD, _SQRT, _DIV = Pass("mul_", 1, 1), Pass("add_", 1, 1), Pass("sqrt", 1, 1), Pass("div_", 1, 1)
_AXPY = Pass("add_", 2, 1)
_NORM = Pass("norm", 1, 0)
_ADAM = (Pass("lerp_", 2, 1), _MUL, Pass("addcmul_", 2, 1), _SQRT, _DIV, _ADD, Pass("addcdiv_", 3, 1))
_OLDER_ADAM = (_MUL, _AXPY, *_ADAM[1:])

OPTIMIZERS: dict[str, Rule] = {
    "sgd": Rule((Pass("add", 2, 1), _MUL, _AXPY, _AXPY), (Pass("sgd", 3, 2),), 1),
    "adam": Rule(_ADAM, (Pass("adam", 4, 3),), 2, older=_OLDER_ADAM),
    "adamw": Rule((_MUL, *_ADAM), (Pass("adamw", 4, 3),), 2, older=(_MUL, *_OLDER_ADAM)),
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
    # NovoGrad keeps one number per tensor as second moment; the host reads each to see whether it is still zero.
    "novograd": Rule(
        (Pass("pow", 1, 1), _NORM, _DIV, _AXPY, _MUL, _AXPY, _AXPY), (_NORM, Pass("novograd", 3, 2)), 1, asks=True
    ),
    # Lion (arXiv:2302.06675): decay, interpolate momentum and gradient, sign, step, momentum.
    "lion": Rule((_MUL, Pass("mul", 1, 1), _AXPY, Pass("sign_", 1, 1), _AXPY, _MUL, _AXPY), (Pass("lion", 3, 2),), 1),
    # Adafactor (arXiv:1804.04235) as torch.optim has it: norm of the weights, squared norms of rows and columns, their
    # outer product as second moment, update by its root, norm of the update. The moments of rows and columns are small.
    "adafactor": Rule(
        (
            _NORM,
            Pass("vector_norm", 1, 0),
            Pass("vector_norm", 1, 0),
            Pass("mm", 0, 1),
            _DIV,
            Pass("clamp_", 1, 1),
            Pass("rsqrt_", 1, 1),
            Pass("mul_", 2, 1),
            _NORM,
            _AXPY,
        ),
        (Pass("norm", 2, 0), Pass("adafactor_update", 1, 1), _NORM, Pass("adafactor", 2, 1)),
        0,
        asks=True,
    ),
    # bitsandbytes has one kernel for each tensor, which reads and writes both states in 8 bits.
    "adamw-8bit": Rule((Pass("adamw_8bit", 4, 3, packed=2),), (Pass("adamw_8bit", 4, 3, packed=2),), 0, packed=2),
    "lars": Rule((_NORM, _NORM, Pass("add", 2, 1), _MUL, _AXPY, _AXPY), (Pass("norm", 2, 0), Pass("lars", 3, 2)), 1),
    "none": Rule((), (), 0),
    **{name: Rule((_MUL, *_ADAM), (Pass("adamw", 4, 3),), 2, matrix=of) for name, of in MATRIX_RULES.items()},
}

AVERAGES: dict[str, tuple[Pass, ...]] = {
    "foreach": (Pass("lerp_", 2, 1),),
    "single": (_MUL, _MUL, Pass("add", 2, 1), Pass("copy_", 1, 1)),
}
"""Moving averages of weights by their update: torch.optim.swa_utils.AveragedModel with get_ema_multi_avg_fn (2.13), and
timm's ModelEmaV2, which NVIDIA's GPUNet has and which loops over the tensors."""

BY_TENSOR = ("single", "torch1", "scripted")
"""Implementations that loop over the tensors."""
CLIPS_BY_TENSOR = ("torch1", "scripted")
"""Implementations of torch 1.x, whose clip_grad_norm_ also loops and compares the norm on the host."""
ZEROES = "torch1"
"""The implementation whose zero_grad() writes zeros, one tensor after another, to which the next backward pass adds
(torch/optim/optimizer.py before 2.0); apex's optimizers and later ones of PyTorch drop the gradients."""
CLIPS_ITSELF = "lamb"
"""The optimizer whose fused kernels also clip by the global norm (apex/optimizers/fused_lamb.py: `max_grad_norm`)."""
FEW_PASSES = ("fused", "scripted")
"""Implementations whose pointwise passes are one kernel, written by hand or fused by TorchScript."""

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
    """What a pass runs over: the trainable parameters' sizes, `times[i]` tensors of `numels[i]` (None: one of each).

    `matrices`: those of them that this rank updates whole, for optimizers with a rule of their own; `others`: the rest.
    """

    numels: tuple[int, ...]
    times: tuple[int, ...] | None = None
    matrices: tuple[Matrix, ...] = ()
    others: Sweep | None = None

    @property
    def tensors(self) -> int:
        return len(self.numels) if self.times is None else sum(self.times)

    @property
    def total(self) -> int:
        return sum(self.numels) if self.times is None else sum(map(operator.mul, self.numels, self.times))

    def launches(self, depth: int, implementation: str) -> int:
        if implementation in BY_TENSOR:
            return self.tensors
        times = self.times or (1,) * len(self.numels)
        blocks = sum(math.ceil(n / _CHUNK) * t for n, t in zip(self.numels, times, strict=True))
        per_launch = _TENSORS_PER_LAUNCH[min(max(depth, 1), 5)]
        return max(1, math.ceil(self.tensors / per_launch), math.ceil(blocks / _BLOCKS_PER_LAUNCH))


def sweep_kind(
    name: str,
    sweep: Sweep,
    reads: Sequence[str],
    writes: Sequence[str],
    implementation: str,
    asked: bool = False,
) -> OpSignature:
    """One pass as an operator. `reads` and `writes` are dtypes of parameter-sized tensors; `asked` is whether the host
    waits for the result of every tensor."""
    launches = sweep.launches(max(len(reads), len(writes)), implementation)
    host_calls = sweep.tensors if implementation in BY_TENSOR else 1
    more = [("host_waits", sweep.tensors)] if asked else []
    shape = (sweep.total,)
    return OpSignature(
        "pt.sweep",
        tuple([TensorSpec(shape, dtype) for dtype in reads]),
        tuple([TensorSpec(shape, dtype) for dtype in writes]),
        (("label", name), ("launches", launches), ("host_calls", host_calls), ("tensors", sweep.tensors), *more),
    )


def average(sweep: Sweep, statistics: int, dtype: str, how: str) -> tuple[tuple[Phase, OpSignature], ...]:
    """The update of a moving average of weights of this dtype, kept in the same; `how`: one of `AVERAGES`.

    `statistics`: running statistics of norms, small tensors beside the weights, which loops average too and
    `AveragedModel` copies one by one.
    """
    small = Sweep((1,), (statistics,))
    if how == "foreach":
        kinds = [_pass_of(step, sweep, dtype, how) for step in AVERAGES[how]]
        kinds += [_pass_of(Pass("copy_", 1, 1), small, dtype, "single")] if statistics else []
    else:
        times = sweep.times or (1,) * len(sweep.numels)
        kinds = [
            _pass_of(step, Sweep((*sweep.numels, 1), (*times, statistics)), dtype, "single") for step in AVERAGES[how]
        ]
    return tuple((Phase.OPTIMIZER, kind) for kind in kinds)


def _pass_of(step: Pass, sweep: Sweep, dtype: str, how: str) -> OpSignature:
    return sweep_kind(step.name, sweep, [dtype] * step.reads, [dtype] * step.writes, how)


@dataclass(frozen=True, slots=True, eq=False)
class Tail:
    """The operators of a step after the last backward. After operator `host_waits_after` the host waits for a flag
    from the device (-1: never)."""

    operators: tuple[tuple[Phase, OpSignature], ...]
    accumulate: OpSignature | None
    state_bytes: int
    master_bytes: int
    host_waits_after: int


def tail(
    parameters: Sequence[Parameter],
    precision: Precision,
    optimizer: str,
    implementation: str | None = None,
    clip_norm: float | None = None,
    parameter_dtype: str | None = None,
    loss_scale: str = "dynamic",
) -> Tail:
    """The operators after backward for these parameters.

    `implementation`: single | torch1 | scripted | foreach | fused; None means fused for master-weight precisions
    (apex, Megatron and DeepSpeed have no other) and foreach otherwise (torch's default on GPUs since 2.0).

    `loss_scale`: none | dynamic | static, which unscales as well but never asks whether a gradient overflowed. So does
    apex with a number (apex/amp/scaler.py: `update_scale` reads the overflow buffer if `self.dynamic`); torch's
    GradScaler asks whatever its growth interval.
    """
    rule(optimizer)
    trainable = [p for p in parameters if p.trainable and p.ready >= 0]
    if optimizer == "none" or not trainable:
        return Tail((), None, 0, 0, -1)
    sweep = Sweep(tuple(p.numel for p in trainable))
    if OPTIMIZERS[optimizer].matrix is not None:
        matrices = tuple(Matrix(*p.shape, 1) for p in trainable if len(p.shape) == 2)
        others = Sweep(tuple(p.numel for p in trainable if len(p.shape) != 2))
        sweep = replace(sweep, matrices=matrices, others=others)
    first = trainable[0]
    return sweep_tail(sweep, first.dtype, first.grad_dtype, precision, optimizer, implementation, clip_norm, loss_scale)


def sweep_tail(
    sweep: Sweep,
    weight: str,
    gradient: str,
    precision: Precision,
    optimizer: str,
    implementation: str | None,
    clip_norm: float | None,
    loss_scale: str,
) -> Tail:
    """The same for parameters given by their sizes, and by the dtypes of the first one and of its gradient."""
    chosen = rule(optimizer)
    kernels = implementation or ("fused" if precision.master_weights else "foreach")
    if chosen.matrix is not None and kernels == "fused":
        kernels = "foreach"  # matrices have no fused kernels
    state = precision.state_dtype
    operators: list[tuple[Phase, OpSignature]] = []
    working = gradient
    added = sweep_kind("accumulate", sweep, [gradient, gradient], [gradient], "single")
    if kernels == ZEROES:
        operators.append((Phase.BACKWARD, added))
    # apex, Megatron and DeepSpeed sweep all tensors at once also where the update itself is per tensor.
    multi = "foreach" if kernels in BY_TENSOR else kernels
    if precision.master_weights and kernels != "fused":
        operators.append((Phase.UNSCALE, sweep_kind("master_gradients", sweep, [gradient], ["float32"], kernels)))
        working = "float32"
    elif precision.loss_scaling and loss_scale != "none":
        # _amp_foreach_non_finite_check_and_unscale_: one read and one write of every gradient.
        operators.append((Phase.UNSCALE, sweep_kind("unscale", sweep, [working], [working], multi)))
    if clip_norm is not None and not (optimizer == CLIPS_ITSELF and kernels == "fused"):
        clips = "single" if kernels in CLIPS_BY_TENSOR else multi
        operators.append((Phase.CLIP, sweep_kind("grad_norm", sweep, [working], [], clips)))
        operators.append((Phase.CLIP, sweep_kind("clip", sweep, [working], [working], clips)))
    waits_after = -1
    if precision.loss_scaling and loss_scale == "dynamic" and kernels != "fused":
        waits_after = max((i for i, (phase, _) in enumerate(operators) if phase == Phase.UNSCALE), default=-1)
    if clip_norm is not None and kernels in CLIPS_BY_TENSOR:
        waits_after = len(operators) - 2  # after the norm
    asks = chosen.asks and kernels in ("single", "torch1")
    if asks:
        waits_after = len(operators) + chosen.passes.index(_NORM)
    whole = chosen.older if chosen.older and kernels == "torch1" else chosen.passes
    passes = chosen.fused if kernels in FEW_PASSES else whole
    of_matrices: list[OpSignature] = []
    others = sweep if sweep.others is None or chosen.matrix is None else sweep.others
    if chosen.matrix is not None:
        for matrix in sweep.matrices:
            of_matrices += [k for k, n in chosen.matrix.operators(matrix, working, state) for _ in range(n)]
    operators += [(Phase.OPTIMIZER, kind) for kind in of_matrices]
    for step in passes if others.numels else ():
        reads = [working, *[state] * (step.reads - 1 - step.packed)][: step.reads] + ["uint8"] * step.packed
        writes = [state] * (step.writes - step.packed) + ["uint8"] * step.packed
        if kernels == "fused" and precision.master_weights and step is chosen.fused[-1]:
            writes.append(weight)  # the fused kernel also writes the half weights
        asked = asks and step is _NORM
        operators.append((Phase.OPTIMIZER, sweep_kind(step.name, others, reads, writes, kernels, asked)))
    if precision.master_weights and kernels != "fused":
        operators.append((Phase.OPTIMIZER, sweep_kind("master_to_weights", sweep, ["float32"], [weight], kernels)))
    if kernels == ZEROES:
        operators.append((Phase.OPTIMIZER, sweep_kind("zero_", sweep, [], [gradient], kernels)))
    width = BYTES_PER_ELEMENT[state]
    return Tail(
        operators=tuple(operators),
        accumulate=added,
        state_bytes=math.ceil(chosen.state_bytes(width) * others.total)
        + sum(width * chosen.matrix.state_elements(m) for m in sweep.matrices if chosen.matrix is not None),
        master_bytes=sweep.total * 4 if precision.master_weights else 0,
        host_waits_after=waits_after,
    )
