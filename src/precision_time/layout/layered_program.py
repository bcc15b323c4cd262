"""What the ranks of any layout run: units in order with their collectives, cut into pipeline stages.

A `UnitProgram` is one stretch of the model on one rank: its operators forward and backward, what it recomputes,
what its ranks exchange. Stages list units. Nothing here grows with the number of GPUs, layers or micro-batches. Knows
no seconds.
"""

from __future__ import annotations

from dataclasses import dataclass

from precision_time.job.layout import Layout
from precision_time.layout.rank_program import OpSignatures, Segment

TENSOR, CONTEXT, EXPERT, DATA, PIPELINE = "tensor", "context", "expert", "data", "pipeline"


@dataclass(frozen=True, slots=True)
class CollectiveOp:
    """One collective: who takes part (a group of the layout), which one, its bytes as nccl-tests count them.

    behind   calls of the unit that it may run beside: "" for none (the ranks wait), "weights" for the weight gradients
             of the same module, "attention" for the attention of a step of the ring, "products" for the products
             it is split with, "compute" for another micro-batch's
    """

    group: str
    collective: str
    nbytes: int
    times: int = 1
    behind: str = ""
    copies: int = 0
    """Copies of a token among `nbytes`, where each place is sent it once however many of its experts want it."""


@dataclass(frozen=True, slots=True, eq=False)
class UnitProgram:
    """One stretch on one rank.

    weight_elements  parameters held if nothing is sharded over data-parallel ranks; `expert_elements` of them belong to
                     experts and are replicated over fewer ranks
    trainable        of the dense and the expert ones, those with gradients
    """

    name: str
    forward: Segment
    backward: Segment
    recompute: Segment
    forward_collectives: tuple[CollectiveOp, ...]
    backward_collectives: tuple[CollectiveOp, ...]
    recompute_collectives: tuple[CollectiveOp, ...]
    dense_elements: int
    expert_elements: int
    dense_trainable: int
    expert_trainable: int
    tensors: int
    attention: tuple[int, ...] = ()
    """OpSignatures of attention among the forward calls, which context parallelism runs once per ring step."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """Units of one model part on one stage: (unit, how often in a row, how many of these recompute)."""

    units: tuple[tuple[int, int, int], ...]


@dataclass(frozen=True, slots=True, eq=False)
class Stage:
    """One pipeline stage: its chunks in the order of the model, and what follows its last backward; `copies` once for
    every reduction."""

    chunks: tuple[Chunk, ...]
    tail: Segment
    accumulate: Segment
    copies: Segment
    dense_trainable: int
    expert_trainable: int
    dense_elements: int
    expert_elements: int


@dataclass(frozen=True, slots=True, eq=False)
class LayeredProgram:
    """One optimizer step of all distinct ranks.

    weight_bytes, gradient_bytes  per element on the wire between data-parallel ranks
    boundary_bytes   what a stage sends to the next for one micro-batch
    tied_bytes       gradient of the weights that first and last stage share
    reduces_always   gradients are summed over data-parallel ranks after every micro-batch
    groups           name -> (ranks, stride between them)
    """

    kinds: OpSignatures
    units: tuple[UnitProgram, ...]
    stages: tuple[Stage, ...]
    layout: Layout
    micro_batches: int
    weight_bytes: float
    gradient_bytes: float
    boundary_bytes: int
    tied_bytes: int
    groups: dict[str, tuple[int, int]]
    reduces_always: bool
    sync_after_tail: bool
    framework: str = "pytorch"

    @property
    def reductions(self) -> int:
        """Micro-batches after which gradients are reduced as a whole."""
        return self.micro_batches if self.reduces_always else 1
