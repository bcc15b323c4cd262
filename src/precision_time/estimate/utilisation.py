"""Throughput of a step as people compare it: tokens per second, model FLOP/s of a GPU, MFU and HFU.

MFU (model FLOP utilisation; Chowdhery et al. 2022, PaLM, appendix B) is the FLOP that forward and backward pass need
by the definition of the model over what the GPUs could do in the step at the dense peak of its precision. HFU also
counts what is computed again. FLOP are those of matrix products, convolutions, attention and recurrent layers, 2 for a
multiplication with its addition. As in the published formulas, attention is counted over all pairs of positions,
causal or not, and its backward pass as twice the forward one.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from precision_time.bounded_cache import bounded
from precision_time.hardware.gpu import Gpu
from precision_time.layout.program import Stage, UnitProgram
from precision_time.timing.program_times import TimedProgram

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Utilisation:
    """What a step achieves.

    tokens_per_s   of all GPUs; None for a model without a sequence of tokens
    model_flops    of a step, all GPUs together, without recomputation; `repeated_flops`: what is computed again
    tflops_per_gpu model TFLOP per second of a GPU
    mfu, hfu       shares of the peak; None where the GPU's peak is not known
    peak           the unit whose dense peak they refer to, as a key of `Gpu.peaks`
    """

    tokens_per_s: float | None
    model_flops: float
    repeated_flops: float
    tflops_per_gpu: float
    mfu: float | None
    hfu: float | None
    peak: str

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return asdict(self)


def utilisation(
    timed: TimedProgram, gpu: Gpu, gpus: int, math: str, step_s: float, tokens: float | None
) -> Utilisation:
    """Of a step of `step_s` seconds that trains on so many `tokens`. `math`: the precision's key of `Gpu.peaks`."""
    program = timed.program
    model, again = _calls(program.units, tuple(program.stages))
    flops, owner = _flops(timed), timed.works.owner
    ranks = program.micro_batches * gpus / program.layout.pp  # stages are counted once each
    needed = flops * _at(model, owner) * ranks
    model_flops = float(needed.sum())
    repeated = float((flops * _at(again, owner)).sum()) * ranks if again.any() else 0.0
    if math == "fp32" and model_flops and float(needed[_of_math(timed, "tf32")].sum()) > 0.5 * model_flops:
        math = "tf32"  # PyTorch's default runs convolutions there
    peak = gpu.peaks.get(math, 0.0)
    most = peak * gpus * step_s
    return Utilisation(
        tokens_per_s=tokens / step_s if tokens else None,
        model_flops=model_flops,
        repeated_flops=repeated,
        tflops_per_gpu=model_flops / step_s / gpus / 1e12,
        mfu=model_flops / most if most else None,
        hfu=(model_flops + repeated) / most if most else None,
        peak=math,
    )


def _of_math(timed: TimedProgram, name: str) -> NDArray[np.bool_]:
    """Whether each work runs on the unit of that name."""
    table = timed.works.table
    of_class: NDArray[np.bool_] = np.array([math == name for _, _, math, _ in table.classes], dtype=np.bool_)
    return of_class[table.class_of]


def _flops(timed: TimedProgram) -> Floats:
    """FLOP of every work as the published formulas count them."""
    table = timed.works.table
    flops: Floats = np.where(_of_math(timed, "vector"), 0.0, table.flops)
    variants = [variant for _, variant, *_ in table.classes]
    for place in table.attention.tolist():
        passes = 2.0 if variants[table.class_of[place]].startswith("bwd") else 1.0
        flops[place] = 4.0 * passes * float(table.shape[:, place].prod())
    return flops


def _at(calls: Floats, owner: NDArray[np.intp]) -> Floats:
    """Calls of the operator of every work; operators after the units' own are no part of the model."""
    inside = owner < len(calls)
    result: Floats = np.where(inside, calls[np.minimum(owner, len(calls) - 1)], 0.0)
    return result


@bounded()
def _calls(units: tuple[UnitProgram, ...], stages: tuple[Stage, ...]) -> tuple[Floats, Floats]:
    """How often every kind runs in a micro-batch on all stages together: for the model, and again."""
    runs = Counter[int]()
    repeats = Counter[int]()
    for stage in stages:
        for chunk in stage.chunks:
            for index, times, repeated in chunk.units:
                runs[index] += times
                repeats[index] += repeated
    last = (int(s.kind.max()) for unit in units for s in (unit.forward, unit.backward, unit.recompute) if len(s))
    model = np.zeros(1 + max(last, default=0))
    again = np.zeros_like(model)
    for index, unit in enumerate(units):
        for total, segment, count in (
            (model, unit.forward, runs[index]),
            (model, unit.backward, runs[index]),
            (again, unit.recompute, repeats[index]),
        ):
            if len(segment) and count:
                total += np.bincount(segment.kind, minlength=len(total)) * count
    return model, again
