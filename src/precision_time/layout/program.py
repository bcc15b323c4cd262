"""The program of a step in any layout: units in order with their collectives, cut into pipeline stages.

A `UnitProgram` is one repeating part of the model on one rank: its operators forward and backward, what it recomputes,
and its collectives. Stages list units. Data parallelism has one stage. Sizes do not grow with the number of GPUs,
layers or micro-batches. There are no seconds here.
"""

from __future__ import annotations

from dataclasses import dataclass

from precision_time.job.layout import Layout
from precision_time.layout.segment import OpSignatures, Segment

TENSOR, CONTEXT, EXPERT, DATA, PIPELINE = "tensor", "context", "expert", "data", "pipeline"


@dataclass(frozen=True, slots=True)
class CollectiveOp:
    """One collective: its group of ranks, its name, and its bytes as nccl-tests counts them.

    behind   compute of the unit that hides it: "" for none (the ranks wait), "weights" for the weight gradients of the
             same module, "attention" for the attention of a ring step, "products" for the products it is split with,
             "compute" for all compute (of another micro-batch)
    """

    group: str
    collective: str
    nbytes: int
    times: int = 1
    behind: str = ""
    copies: int = 0
    """Copies of a token in `nbytes`, one per expert, where each node or rank receives a token only once; 0: not so."""
    spread: float = 1.0
    """Share of the nodes or ranks that the experts of one token may be on."""


@dataclass(frozen=True, slots=True, eq=False)
class UnitProgram:
    """One unit on one rank.

    weight_elements  parameters held if nothing is sharded over data-parallel ranks; `expert_elements` of them belong to
                     experts and are replicated over fewer ranks
    trainable        of the dense and the expert ones, those with gradients
    packed           of the dense and the expert ones, those stored in fewer bits
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
    attention: tuple[int, ...] = ()
    """Operators of attention among the forward calls, as indices into the program's `kinds`."""
    packed_dense: int = 0
    packed_expert: int = 0


@dataclass(frozen=True, slots=True)
class Bucket:
    """Gradients reduced in one all-reduce: bytes on the wire and elements.

    They are complete after operator `position` of the backward pass of the unit that runs backward as number `use`.
    """

    nbytes: int
    elements: int
    use: int
    position: int


@dataclass(frozen=True, slots=True, eq=False)
class Buckets:
    """All buckets of a rank in the order they are reduced."""

    buckets: tuple[Bucket, ...] = ()


@dataclass(frozen=True, slots=True)
class Chunk:
    """Units of one model part on one stage: (unit, times in a row, how many of these recompute)."""

    units: tuple[tuple[int, int, int], ...]


@dataclass(frozen=True, slots=True, eq=False)
class Stage:
    """One pipeline stage: its chunks in the order of the model, and its passes over all parameters.

    tails           operators after the last backward pass (optimizer); between two tails the host waits for the device
    accumulate      sums of gradients, once for every micro-batch after the first
    into_buckets, out_of_buckets   copies of gradients before and after every reduction
    """

    chunks: tuple[Chunk, ...]
    tails: tuple[Segment, ...]
    accumulate: Segment
    into_buckets: Segment
    out_of_buckets: Segment
    dense_trainable: int
    expert_trainable: int
    dense_elements: int
    expert_elements: int
    packed_dense: int = 0
    packed_expert: int = 0


@dataclass(frozen=True, slots=True)
class Offload:
    """What a rank keeps and updates on its host.

    ratio         share of the weights whose states are there; the others are updated on the GPU
    parameters    also the weights, of which every pass fetches its share; `nvme`: on NVMe drives
    trained_elements, held_elements   of the rank's share: updated; of all weights
    state_bytes, update_bytes         per updated element: kept (states, master weights); moved by the CPUs in an update
    weight_bytes, gradient_bytes      per element that crosses to the GPU and back
    reduces_each  gradients leave after every micro-batch, as they are reduced; else once a step
    """

    ratio: float
    parameters: bool
    nvme: bool
    trained_elements: float
    held_elements: float
    state_bytes: float
    update_bytes: float
    weight_bytes: float
    gradient_bytes: float
    reduces_each: bool


@dataclass(frozen=True, slots=True, eq=False)
class StepProgram:
    """One optimizer step of all distinct ranks.

    weight_bytes, gradient_bytes  per element on the wire between data-parallel ranks
    boundary_bytes   sent from a stage to the next for one micro-batch
    tied_bytes       gradient of the weights that first and last stage share
    reduces_always   gradients are summed over data-parallel ranks after every micro-batch
    buckets          of DDP's gradients, where there is one stage
    broadcast_bytes  of DDP's buffers (running means of batch norm), sent before a micro-batch that reduces
    length_spread    half the range of the ranks' batch lengths, as a share of the middle (`CapturedModel`)
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
    framework: str = "pytorch"
    buckets: Buckets = Buckets()
    broadcast_bytes: int = 0
    length_spread: float = 0.0
    offload: Offload | None = None
    stored_bytes: float = 0.0
    """Of an element that is stored in fewer bits."""
    reference: bool = False
    """Units hold the forward pass of a frozen model too, whose weights are sharded as the trained ones."""
    unit_kinds: OpSignatures | None = None
    """The first of `kinds`, to which all units refer; None: all of them."""

    def gathered_bytes(self, elements: int, packed: int) -> float:
        """Bytes on the wire of weights, `packed` of which are stored and sent in fewer bits."""
        return self.weight_bytes * elements - (self.weight_bytes - self.stored_bytes) * packed

    @property
    def reductions(self) -> int:
        """Micro-batches of a step after which all gradients are reduced."""
        return self.micro_batches if self.reduces_always else 1

    def sweeps(self, stage: Stage) -> tuple[tuple[Segment, int], ...]:
        """The passes over all parameters of a stage, and how often each runs in a step."""
        return (
            *((tail, 1) for tail in stage.tails),
            (stage.accumulate, self.micro_batches - 1),
            (stage.into_buckets, self.reductions),
            (stage.out_of_buckets, self.reductions),
        )
