"""Operators and collectives of one rank in a step, at their local shapes: the input of the additive model.

It holds no seconds. Any captured model runs data parallel; models with a division in the zoo also run tensor parallel;
both are cut into pipeline stages.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from precision_time.bounded_cache import bounded
from precision_time.capture.graph import Phase
from precision_time.capture.training_step import training_step
from precision_time.errors import PredictorError
from precision_time.job.code import GIVEN, check_code, is_code
from precision_time.job.job import Job
from precision_time.layout.options import Options
from precision_time.layout.program import DATA, TENSOR, Stage, StepProgram, UnitProgram
from precision_time.layout.segment import OpSignatures, Segment
from precision_time.layout.step_program import step_program
from precision_time.predictors.additive_equations import Sent

Counts = NDArray[np.float64]

_UNKNOWN = ("cp", "ep")
_SWEEP = "pt.sweep"
"""Passes over all parameters (optimizer, buckets, loss scaler), which are no operators of the model."""
_IRRELEVANT = ("gpu", "device", "node", "nodes", "system", "anchors", "run")
"""Fields of a job that do not change the operators of a rank."""


@dataclass(frozen=True, slots=True, eq=False)
class LocalStep:
    """One optimizer step of the ranks of every distinct pipeline stage.

    calls   how often each of `kinds` runs, one array for each stage: forward, loss, backward and recomputation
    data    collectives of the data-parallel ranks, one tuple for each stage; `tensor`: of the tensor-parallel ranks
    data_group, tensor_group  (ranks, stride between them)
    """

    kinds: OpSignatures
    calls: tuple[Counts, ...]
    data: tuple[tuple[Sent, ...], ...]
    tensor: tuple[tuple[Sent, ...], ...]
    data_group: tuple[int, int]
    tensor_group: tuple[int, int]
    pp: int


def local_step(job: Job, device_type: str) -> LocalStep:
    """A rank's part of the job. Raises `PredictorError` for a layout that is not in the published equations."""
    layout = job.layout_spec
    for name in _UNKNOWN:
        if getattr(layout, name) > 1:
            raise PredictorError(
                f"layout {name}={getattr(layout, name)} is not in the additive model, which knows dp, tp and pp; "
                f"set {name} to 1 or use predictor simulator"
            )
    fields = {key: value for key, value in job.to_dict().items() if key not in _IRRELEVANT}
    if is_code(job.model):
        check_code(job.code, job.model)
    path = Path(job.model.partition(".py")[0] + ".py")
    changed_ns = path.stat().st_mtime_ns if ".py" in job.model and path.is_file() else 0
    return _remembered(json.dumps(fields, sort_keys=True), device_type, changed_ns)


@bounded()
def _remembered(fields: str, device_type: str, _changed_ns: int) -> LocalStep:
    """Cached by the fields of the job, and by the modification time of its model file."""
    job = Job.from_fields(json.loads(fields), GIVEN)  # checked above
    step = training_step(job, None, device_type)
    return _local_step(step_program(step, job.layout_spec, Options.of(job)))


def _local_step(program: StepProgram) -> LocalStep:
    stages = list({id(stage): stage for stage in program.stages}.values())
    return LocalStep(
        kinds=program.kinds,
        calls=tuple(_stage_calls(program, stage) for stage in stages),
        data=tuple(_stage_data(program, stage) for stage in stages),
        tensor=tuple(_stage_tensor(program, stage) for stage in stages),
        data_group=(program.layout.data_ranks, program.groups[DATA][1]),
        tensor_group=program.groups[TENSOR],
        pp=program.layout.pp,
    )


def _calls(segment: Segment, kinds: OpSignatures) -> Counts:
    """How often each kind runs in the passes of the model itself."""
    chosen = segment.kind[segment.phase <= Phase.BACKWARD]
    return np.where(_sweeps(kinds), 0.0, np.bincount(chosen, minlength=len(kinds)))


@bounded()
def _sweeps(kinds: OpSignatures) -> NDArray[np.bool_]:
    return np.array([kind.name == _SWEEP for kind in kinds], dtype=np.bool_)


def _units(program: StepProgram, stage: Stage) -> Iterator[tuple[UnitProgram, int, int]]:
    """Units of a stage, how often each runs in a micro-batch, and how often of these it is recomputed."""
    for chunk in stage.chunks:
        for index, times, again in chunk.units:
            yield program.units[index], times, again


def _stage_calls(program: StepProgram, stage: Stage) -> Counts:
    total = np.zeros(len(program.kinds))
    for unit, times, again in _units(program, stage):
        total += times * (_calls(unit.forward, program.kinds) + _calls(unit.backward, program.kinds))
        total += again * _calls(unit.recompute, program.kinds)
    return total * program.micro_batches


def _stage_tensor(program: StepProgram, stage: Stage) -> tuple[Sent, ...]:
    sent: dict[str, float] = {}
    for unit, times, again in _units(program, stage):
        for exchanges, count in (
            (unit.forward_collectives, times),
            (unit.backward_collectives, times),
            (unit.recompute_collectives, again),
        ):
            for each in exchanges:
                if each.group == TENSOR:
                    sent[each.collective] = sent.get(each.collective, 0.0) + each.nbytes * each.times * count
    return tuple((name, nbytes * program.micro_batches) for name, nbytes in sent.items())


def _stage_data(program: StepProgram, stage: Stage) -> tuple[Sent, ...]:
    """Collectives of gradients; with sharded states (not in the paper) also the gathering of weights."""
    if program.layout.data_ranks == 1:
        return ()
    trainable = stage.dense_trainable + stage.expert_trainable
    reduced = trainable * program.gradient_bytes * program.reductions
    if program.layout.zero == 0:
        return (("all_reduce", reduced),)
    if program.layout.zero < 3:
        return (("reduce_scatter", reduced), ("all_gather", trainable * program.weight_bytes))
    held = program.gathered_bytes(
        stage.dense_elements + stage.expert_elements, stage.packed_dense + stage.packed_expert
    )
    return (("reduce_scatter", reduced), ("all_gather", 2.0 * held * program.micro_batches))
