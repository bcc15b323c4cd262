"""`ZooEntry`, a line of the catalog that needs no torch, and `Workload`, the model built from it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

Config = Mapping[str, Any]
"""`model_config` of the job over the entry's defaults: the model's shape, keys as in the measurement tables."""
Sizes = Mapping[str, Any]
"""Input sizes: `batch_size`, and `image_size`, `seq_len`, `audio_frames` ... as ints (or tuples of ints)."""


@dataclass(slots=True)
class Update:
    """One forward, loss, backward and optimizer update. Most workloads have one; a GAN has two.

    `frozen`: parameters that get no gradient in it.
    """

    loss: Callable[[], torch.Tensor]
    frozen: Sequence[torch.nn.Parameter] = ()


@dataclass(slots=True)
class Workload:
    """A model ready to be traced: everything in it was created under `torch.device("meta")`.

    `inputs` are the tensors of one micro-batch of one rank; `loss(module, inputs)` runs forward and loss and returns
    a scalar. `updates`, where given, replaces the single update (adversarial training). `training`: false for an
    evaluation, which has no backward pass and whose module runs as `eval()` has it. `repeated`: as `OpGraph.repeated`.
    `assumptions`: what the model's description left open, one sentence each.
    """

    module: torch.nn.Module
    inputs: dict[str, torch.Tensor]
    loss: Callable[[torch.nn.Module, dict[str, torch.Tensor]], torch.Tensor]
    updates: list[Update] | None = None
    training: bool = True
    repeated: tuple[tuple[str, tuple[int, ...]], ...] = ()
    assumptions: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Symbol:
    """An input size that may vary without a new capture: every tensor dimension is a polynomial of it.

    `samples` are the sizes captured, one more than `degree`; `multiple_of` is the grid on which the polynomial holds.
    `apart`: a size at which a dimension is one, where torch may run other operators, so that the step is stored apart;
    `apart_with`: other symbols that have such a size wherever this one has.
    """

    name: str
    samples: tuple[int, ...]
    check: int
    degree: int = 1
    multiple_of: int = 1
    apart: int | None = None
    apart_with: tuple[str, ...] = ()


_IMAGES = frozenset({"image_size", "volume", "latent_size"})
"""Input sizes of images and volumes."""
BATCH = Symbol("batch_size", (4, 6), 10, apart=1)
SEQ = Symbol("seq_len", (64, 96), 160)


@dataclass(frozen=True, slots=True)
class ZooEntry:
    """One named workload. `builder` is "module:function" below `precision_time.zoo`, imported only for capture.

    `parameters` is the published count (0 where none is published), with its source; `family` groups models that
    share an architecture, for held-out evaluation. `input` holds default input sizes.
    """

    name: str
    builder: str
    family: str
    input: Mapping[str, Any]
    optimizer: str
    dataset: str
    batch_size: int
    config: Mapping[str, Any] = field(default_factory=dict)
    symbols: tuple[Symbol, ...] = (BATCH,)
    clip_norm: float | None = None
    optimizer_impl: str | None = None
    """Kernels of the optimizer in published runs of PyTorch before 2.0, as the job's field; None: torch.optim's loop
    over the tensors, or for LAMB and NovoGrad apex's fused kernels."""
    ema: str | None = None
    """How published runs update a moving average of the weights in every step, as the job's field; None: they keep
    none."""
    attention: bool = False
    ships_math: bool = True
    """Whether graphs with unfused attention ship as well; if not, such a job is traced."""
    ships: bool = True
    """Whether its graphs ship with the package; if not, every job of it is traced."""
    parameters: int = 0
    parameters_source: str = ""
    samples_unit: str = "samples"
    varies: tuple[str, float] | None = None
    """The input size to which batches are padded, and half its range as a share of the middle, of batches of one clip
    (see `capture.lengths`)."""
    scripted: bool = False
    """Whether published runs under CUDA graphs script the model too: pointwise chains are one kernel there."""

    @property
    def has_images(self) -> bool:
        """Whether there are inputs to which a memory format applies."""
        return not _IMAGES.isdisjoint(self.input)
