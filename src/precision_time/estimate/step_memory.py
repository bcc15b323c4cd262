"""Peak device memory of every pipeline stage of a layout, by category.

Lasting bytes (weights, optimizer states, master weights, buffers) follow from the layout. Temporary bytes are
simulated: the units of a stage run forward and backward once, with the lifetimes of their tensors, beside what the
other micro-batches in flight keep. The peak is the fullest moment of that, or the update of the weights where it needs
more.

Not modelled: static buffers of CUDA graphs, activations offloaded to the host, workspaces inside kernels.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import ceil

from precision_time.bounded_cache import bounded
from precision_time.capture.graph import BYTES_PER_ELEMENT
from precision_time.capture.optimizer import rule
from precision_time.capture.training_step import TrainingStep
from precision_time.estimate.memory import (
    ACTIVATIONS,
    BUFFERS,
    COPIES,
    FRAMEWORK,
    GRADIENTS,
    MASTERS,
    STATES,
    UPDATE,
    WEIGHTS,
    Memory,
    memory_parameters,
    update_bytes,
)
from precision_time.estimate.stage_moments import Alone, StageMoments
from precision_time.estimate.unit_uses import Use, unit_parts, uses_of
from precision_time.layout.options import Options
from precision_time.layout.program import CONTEXT, TENSOR, Stage, StepProgram
from precision_time.layout.step_program import EXPERT_DATA
from precision_time.layout.sweeps import kept_states, matrices_of
from precision_time.timeline.pipeline import held_in_flight

NCCL_BYTES = 128 << 20
"""Bytes of one communicator: 16 channels (assumed), each with a send and a receive buffer of NCCL_BUFFSIZE, 4 MiB by
default (NCCL documentation, environment variables)."""
DEEPSPEED_BUCKET = 500_000_000
"""Elements gathered and reduced at once (DeepSpeed's reduce_bucket_size and allgather_bucket_size: 5e8)."""
_MEGATRON = frozenset({"megatron", "megatron-bridge"})
"""Frameworks with one gradient buffer, allocated at the start, to which products add and which is reduced."""
_DEEPSPEED = frozenset({"deepspeed", "megatron-deepspeed"})
_ROWS = (WEIGHTS, COPIES, GRADIENTS, STATES, MASTERS, ACTIVATIONS, BUFFERS, UPDATE, FRAMEWORK)


def step_memory(
    step: TrainingStep,
    program: StepProgram,
    options: Options,
    capacity_bytes: int,
    process_bytes: int | None = None,
) -> Memory:
    """Memory of the fullest stage, with all stages of a pipeline. `capacity_bytes`: of the device; `process_bytes`: of
    the process besides tensors (None: on a GPU)."""
    parameters = memory_parameters()
    process_bytes = parameters.process_bytes if process_bytes is None else process_bytes
    costs = _Costs(step, program, options, process_bytes)
    known: dict[tuple[int, int, bool, bool], dict[str, int]] = {}
    stages = []
    last = len(program.stages) - 1
    for place, (stage, alive) in enumerate(zip(program.stages, in_flight(program), strict=True)):
        key = (id(stage), int(alive), place == 0, place == last)
        if key not in known:
            known[key] = costs.stage(stage, int(alive), place == 0, place == last)
        stages.append(known[key])
    fullest = max(stages, key=lambda rows: sum(rows.values()))
    scale = parameters.log_scale if program.layout.gpus == 1 else parameters.log_scale_many
    return Memory(fullest, capacity_bytes, tuple(stages) if last else (), log_scale=scale)


def in_flight(program: StepProgram) -> list[int]:
    """Largest number of (micro-batch, chunk) pairs whose activations each stage holds at once."""
    layout = program.layout
    if layout.pp == 1:
        return [1]
    return [int(n) for n in held_in_flight(layout.schedule, layout.pp, layout.vpp, program.micro_batches)]


@dataclass(frozen=True, slots=True)
class _Asked:
    """Cache key of a stage's simulation: equal where all `words`, on which it depends, are equal."""

    words: tuple[object, ...]
    costs: _Costs = field(compare=False)
    stage: Stage = field(compare=False)
    first: bool = field(compare=False)
    last: bool = field(compare=False)


@bounded()
def _played(asked: _Asked) -> tuple[Alone, ...]:
    return asked.costs.chunks_alone(asked.stage, asked.first, asked.last)


def _held(stage: Stage) -> list[tuple[int, int]]:
    """Units of a stage and how many times it holds each."""
    return [(index, times) for chunk in stage.chunks for index, times, _ in chunk.units]


class _Costs:
    """Memory of a program's stages: bytes per element, and values that all stages share."""

    def __init__(self, step: TrainingStep, program: StepProgram, options: Options, process_bytes: int) -> None:
        self.step, self.program, self.options, self.process_bytes = step, program, options, process_bytes
        layout, precision = program.layout, step.precision
        parts = unit_parts(step, options.framework, options.softmax_inputs, options.recompute)
        self.zero, self.masters = layout.zero, precision.master_weights
        self.fsdp = layout.zero >= 2 and options.framework not in (_MEGATRON | _DEEPSPEED)
        self.weight = parts.weight_bytes
        self.gradient = self._gradient(parts.gradient_bytes)
        # Whether gradients are allocated during the backward pass, or kept all the time.
        frees = not options.zeroes_gradients and options.framework not in _MEGATRON
        self.appears = program.micro_batches == 1 and frees
        self.state = BYTES_PER_ELEMENT[precision.state_dtype]
        self.tied, self.boundary, self.largest_trained = parts.tied, parts.boundary, parts.largest_trained
        self.parts, self.received, self.communicators = parts, self._received(), self._communicators()
        self.moments: dict[tuple[int, bool, bool], StageMoments] = {}

    def _gradient(self, traced: int) -> int:
        """Bytes of an element of a gradient as kept: Megatron-LM accumulates those of bf16 weights in fp32 (`--bf16`
        sets accumulate_allreduce_grads_in_fp32; Megatron-Bridge's performance recipes unset it)."""
        if self.options.communication_dtype and self.options.framework in _MEGATRON:
            return BYTES_PER_ELEMENT[self.options.communication_dtype]
        half = self.step.precision.compute_dtype
        if self.options.framework == "megatron" and self.masters and half == "bfloat16":
            return 4
        return traced

    def stage(self, stage: Stage, alive: int, first: bool, last: bool) -> dict[str, int]:
        """Bytes of one stage at its fullest moment, by category."""
        key = (id(stage), first, last)
        if key not in self.moments:
            update = {GRADIENTS: self._gradients(stage), UPDATE: self._update(stage)}
            self.moments[key] = StageMoments(self._lasting(stage), update, self._alone(stage, first, last))
        known = self.moments[key]
        fullest = known.fullest(alive, self.program.layout.pp)
        rows = {name: known.lasting.get(name, 0.0) + fullest.get(name, 0.0) for name in _ROWS}
        rows[BUFFERS] += self.communicators
        rows[FRAMEWORK] = self.process_bytes + memory_parameters().fragmentation * sum(rows.values())
        return {name: ceil(size) for name, size in rows.items()}

    def _alone(self, stage: Stage, first: bool, last: bool) -> tuple[Alone, ...]:
        """The chunks of a stage. Where at most states are sharded they do not depend on replicas, so layouts share
        them."""
        sharing = self.program if self.zero >= 2 else None
        words = (
            self.parts,
            self.program.units,
            stage.chunks,
            first,
            last,
            self.options.recompute,
            self.options.recompute_layers,
            self.options.recompute_method,
            self.options.framework,
            self.appears,
            self.gradient,
            self.received,
            self._gradients(stage),
            sharing,
        )
        return _played(_Asked(words, self, stage, first, last))

    # --- lasting bytes

    def _shared(self, dense: float, expert: float, sharded: bool) -> float:
        """Elements of this rank's share."""
        layout = self.program.layout
        experts_over = max(1, min(layout.expert_ranks, layout.shard_ranks))
        return dense / (layout.shard_ranks if sharded else 1) + expert / (experts_over if sharded else 1)

    def _lasting(self, stage: Stage) -> dict[str, float]:
        zero, masters = self.zero, self.masters
        trained = self._shared(stage.dense_trainable, stage.expert_trainable, zero >= 1)
        weights = self.weight * self._shared(stage.dense_elements, stage.expert_elements, zero >= 3)
        frozen = stage.dense_elements + stage.expert_elements - stage.dense_trainable - stage.expert_trainable
        if zero >= 3 and masters and self.fsdp:
            # FSDP's MixedPrecision: the shard that is kept is the fp32 master itself.
            weights = self.weight * self._shared(frozen, 0, True)
        offload, left = self.program.offload, self._left
        packed = self._shared(stage.packed_dense, stage.packed_expert, zero >= 3)
        leaves = offload is not None and offload.parameters and zero >= 3
        weights = 0.0 if leaves else weights - (self.weight - self.program.stored_bytes) * packed
        if self.program.reference:
            width = 4.0 if masters and self.fsdp else self.weight
            reference = width * self._shared(stage.dense_elements, stage.expert_elements, zero >= 3)
            weights += 0.0 if packed or frozen else reference  # with adapters it is the same model without them
        rows: dict[str, float] = {
            WEIGHTS: weights,
            STATES: (left * self._states(stage, trained) if left else 0.0) + self._average(stage),
            MASTERS: left * 4 * trained if masters else 0.0,
            BUFFERS: self._buckets(stage),
        }
        if self.step.precision.fp8_scaling and self.options.framework != "megatron-bridge" and zero < 3:
            # Transformer Engine keeps an fp8 copy of every matrix and its transpose beside the half weights.
            rows[COPIES] = 2.0 * (stage.dense_elements + stage.expert_elements)
        return rows

    @property
    def _left(self) -> float:
        """Share of the weights that the GPU updates itself."""
        return 1.0 if self.program.offload is None else 1.0 - self.program.offload.ratio

    def _states(self, stage: Stage, trained: float) -> float:
        """Bytes of the optimizer's states. `trained`: elements of this rank's share."""
        kept = kept_states(self.step, _held(stage), *self._sharing)
        return rule(self.step.optimizer).state_bytes(self.state) * trained if kept is None else kept

    def _average(self, stage: Stage) -> float:
        """Bytes of the moving average of the weights, which only ZeRO 3 shares out."""
        if self.step.ema is None:
            return 0.0
        return self.weight * self._shared(stage.dense_trainable, stage.expert_trainable, self.zero >= 3)

    @property
    def _sharing(self) -> tuple[int, int]:
        """Ranks that share the states, of dense weights and of experts."""
        layout = self.program.layout
        if not self.zero:
            return 1, 1
        return layout.shard_ranks, max(1, min(layout.expert_ranks, layout.shard_ranks))

    def _buckets(self, stage: Stage) -> float:
        """Bytes of the buffers that gradients are copied into before they are reduced."""
        if self.program.layout.data_ranks == 1 or self.options.framework in _MEGATRON:
            return 0.0
        elements = stage.dense_trainable + stage.expert_trainable
        if self.options.framework in _DEEPSPEED:
            return self.program.gradient_bytes * min(elements, DEEPSPEED_BUCKET)
        return self.gradient * elements if self.zero < 2 else 0.0

    def _communicators(self) -> int:
        experts = self.program.layout.ep > 1
        return NCCL_BYTES * sum(
            ranks > 1 for name, (ranks, _) in self.program.groups.items() if experts or name != EXPERT_DATA
        )

    @property
    def _gradient_width(self) -> int:
        """Bytes of an element of a gradient kept for the update: FSDP casts its shard to the master's dtype."""
        return 4 if self.fsdp and self.masters else self.gradient

    def _gradients(self, stage: Stage) -> float:
        """All gradients of the stage, as they are kept until the update; offloaded ones leave as they are reduced."""
        left = self._left if self.program.offload is not None and self.program.offload.reduces_each else 1.0
        return left * self._gradient_width * self._shared(stage.dense_trainable, stage.expert_trainable, self.zero >= 2)

    def _update(self, stage: Stage) -> float:
        """Bytes of temporaries of the update, and of fp32 copies of half-precision gradients."""
        if not self._left:
            return 0.0
        how = self.step.implementation or ("fused" if self.masters else "foreach")
        of_matrix = rule(self.step.optimizer).matrix
        how = "foreach" if of_matrix is not None and how == "fused" else how
        copied = self.masters and self.gradient < 4 and not self.fsdp
        copied = copied and (self.options.framework in (_MEGATRON | _DEEPSPEED) or how != "fused")
        trained = self._left * self._shared(stage.dense_trainable, stage.expert_trainable, self.zero >= 1)
        largest = max((self.largest_trained[i] for c in stage.chunks for i, _, _ in c.units), default=0)
        over = self.program.layout.shard_ranks if self.zero else 1
        one = 0
        if of_matrix is not None:
            matrices = matrices_of(self.step.layers.units, _held(stage), *self._sharing)
            trained -= sum(matrix.elements for matrix in matrices)
            one = max((of_matrix.temporary_bytes(matrix) for matrix in matrices), default=0)
        return (4 if copied else 0) * trained + max(
            one, update_bytes(self.step.optimizer, how, max(trained, 0.0), largest / over, self.state)
        )

    # --- temporary bytes

    def chunks_alone(self, stage: Stage, first: bool, last: bool) -> tuple[Alone, ...]:
        """By chunk: bytes that one micro-batch keeps, and its fullest moment without other micro-batches."""
        chunks = [uses_of(chunk, self.program, self.options, self.parts) for chunk in stage.chunks]
        alone = []
        for c, uses in enumerate(chunks):
            enters = self.parts.inputs if first and c == 0 else self.boundary
            # The output of a stage is freed once it is sent (Megatron-LM's deallocate_pipeline_outputs).
            leaves = 0 if last and c == len(chunks) - 1 else uses[-1].lives.output
            keeps = enters + sum(use.times * use.keeps for use in uses) - leaves
            alone.append(Alone(keeps, max(self._walk(stage, uses, enters), key=lambda rows: sum(rows.values()))))
        return tuple(alone)

    def _walk(self, stage: Stage, uses: Sequence[Use], level: int) -> list[dict[str, float]]:
        """Moments of one micro-batch: one for each unit and pass, and where FSDP reduces what it did not wrap."""
        moments: list[dict[str, float]] = []
        standing = 0.0 if self.appears else self._gradients(stage)
        # Whether a unit's gradients are allocated beside the accumulated ones, or reduced unit by unit.
        graded = self.zero >= 2 or self.appears
        adds = not graded and self.options.framework not in _MEGATRON
        copies = 0
        for place, use in enumerate(uses):
            if use.times == 1:
                held = min(use.lives.copies, use.forward)
                moments.append(
                    {
                        ACTIVATIONS: level + use.forward - held,
                        COPIES: copies + held,
                        GRADIENTS: standing,
                        BUFFERS: self.received + self._gathered(uses, place, 1),
                    }
                )
            level += use.times * (use.keeps - (0 if use.reruns else use.lives.copies))
            copies += use.times * use.group * use.lives.copies
        copies -= sum(use.times * use.group * use.lives.copies for use in uses if use.reruns)
        done = 0.0
        for place in range(len(uses) - 1, -1, -1):
            use = uses[place]
            own = 0 if use.reruns else use.lives.copies
            level -= use.times * (use.keeps - own)
            copies -= use.times * own
            if use.times == 1:
                most, gradients = use.backward(graded)
                working = most - gradients
                held = min(use.lives.copies, working)  # not all copies may live at its fullest moment
                gradients += self.gradient * use.largest if adds else 0
                moments.append(
                    {
                        ACTIVATIONS: level + working - held,
                        COPIES: copies + held,
                        GRADIENTS: standing + done + gradients,
                        BUFFERS: self.received + self._gathered(uses, place, -1),
                    }
                )
            done += use.times * use.group * self._done(use)
        if self.fsdp:
            rest = sum(use.times * use.trainable for use in uses if not use.block)
            reduced = next((use.trainable for use in uses if use.block), 0)
            # Its weights are freed before its gradients are copied to be reduced.
            wide = max(self.program.weight_bytes if self.zero >= 3 else 0.0, self.program.gradient_bytes)
            sharded = self._gradient_width * rest / self.program.layout.shard_ranks
            moments.append(
                {
                    GRADIENTS: self._gradients(stage) - (sharded if self.appears else 0.0) + self.gradient * rest,
                    ACTIVATIONS: 0.0,
                    BUFFERS: wide * rest + self.program.gradient_bytes * reduced,
                }
            )
        return moments

    def _done(self, use: Use) -> float:
        """Bytes of gradients that the backward pass of a unit leaves, besides those kept all the time."""
        if self.fsdp and not use.block:
            return float(self.gradient * (use.trainable + (0 if use.first else self.tied)))  # reduced at the end
        if not self.appears:
            return 0.0
        if self.program.offload is not None and self.program.offload.reduces_each:
            return 0.0
        if self.zero < 2:
            return float(self.gradient * (use.trainable + (0 if use.block or use.first else self.tied)))
        return self._gradient_width * use.trainable / self.program.layout.shard_ranks

    def _received(self) -> float:
        """Bytes of activations in transit: gathered over tensor ranks, keys and values of a ring, between stages."""
        most = 0
        for unit in self.program.units:
            for exchange in (*unit.forward_collectives, *unit.backward_collectives):
                if exchange.collective == "all_gather" and exchange.group in (TENSOR, CONTEXT):
                    most = max(most, exchange.nbytes)
                elif exchange.group == CONTEXT and exchange.collective == "send_recv":
                    most = max(most, 2 * exchange.nbytes)
        return most + (2 * self.program.boundary_bytes if self.program.layout.pp > 1 else 0)

    def _gathered(self, uses: Sequence[Use], place: int, towards: int) -> float:
        """Bytes of weights gathered during a use, and of gradients being reduced.

        FSDP gathers the next unit while one runs; weights outside blocks (embedding, head) stay gathered from the first
        forward to the last backward pass. While the gradients of a unit are reduced, the next unit's are computed.
        """
        if self.zero < 2:
            return 0.0
        use = uses[place]
        following = uses[place + towards] if 0 <= place + towards < len(uses) else None
        ahead = following if self.program.layout.overlap_param_gather and (use.block or towards > 0) else None
        before = uses[place - towards] if 0 <= place - towards < len(uses) else None
        total = 0.0
        if self.zero >= 3:
            blocks = sum(u.gathered for u in (use, ahead) if u is not None and u.block)
            # ZeRO 3 and Megatron's FSDP take them module by module.
            outside = [u for u in uses if not u.block]
            all_outside = sum(u.times * u.gathered for u in outside)
            total += blocks + (all_outside if self.fsdp else max((u.gathered for u in outside), default=0))
        if towards < 0 and before is not None and before.block:
            total += self.program.gradient_bytes * before.trainable
        return total
