"""`predict_time`: the prediction from keyword arguments, with the type and meaning of each."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypedDict

from precision_time.errors import JobError
from precision_time.job.code import GIVEN
from precision_time.job.job import Job
from precision_time.prediction import predict

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from precision_time.estimate.estimate import Estimate


class JobFields(TypedDict, total=False):
    """The keyword arguments of `predict_time`: every field of a job and of its run but `model` (docs/job.md)."""

    model_config: Mapping[str, Any] | str
    """where it departs from the named model: key=value;..."""
    lora: Mapping[str, Any] | int | str
    """adapters trained beside frozen weights: a rank, or rank=16;targets=q_proj,v_proj;dropout=0.05"""
    quantized: str
    """with lora: format of the frozen weights of linear layers (QLoRA)"""
    loss: str
    """of a decoder's logits: fp32 (cast first, as by transformers), liger (fused with the head); default: as it is"""
    input: Mapping[str, Any] | str
    """input sizes: image_size=224, seq_len=128, ... as key=value;..."""
    precision: str | Sequence[Mapping[str, Any]]
    """precision name or alias (default fp32)"""
    schedule: Sequence[Mapping[str, Any]]
    """precision by step: [{from_step, precision}, ...]"""
    batch_size: int | None
    """samples per data rank and micro-step (default: the model's)"""
    grad_accum: int
    """micro-steps per optimizer step"""
    gpu: str
    """GPU catalog name (default a100-80gb-sxm)"""
    gpus: int
    """GPUs in all"""
    node: str | None
    """node type, which decides the fabric"""
    nodes: int | None
    """nodes (default: as few as hold the GPUs)"""
    system: str | None
    """published system name, where clocks differ (DGX-2H)"""
    device: str | None
    """YAML file that adds a GPU, node or fabric"""
    layout: str | Mapping[str, Any]
    """parallel layout: dp, fsdp, hsdp=8, zero1, zero2 or degrees as in tp=8,pp=4,sp=1,zero=1 (dp follows from gpus)"""
    optimizer: str | None
    """optimizer (default: the model's); none: forward and backward only"""
    optimizer_impl: str | None
    """optimizer kernels (default: foreach; fused with master weights)"""
    clip_norm: float | None
    """gradient norm clipped to this (default: the model's); 0: no clipping"""
    ema: str | None
    """moving average of the weights, updated each step (default: the model's): foreach, as torch's AveragedModel"""
    loss_scale: str
    """loss scaling where the precision has it; static: the host never waits for overflows; none: no scaler"""
    memory_format: str
    """image layout"""
    attention: str
    """attention kernel"""
    recompute: str
    """recomputed activations; selective: inside attention; selective-ops: all but products; or parts by name"""
    recompute_layers: int | None
    """with recompute full: only so many layers of each pipeline stage (default: all)"""
    recompute_method: str
    """with recompute_layers N: block (N of each stage, default), uniform (in groups of N), every (each N-th)"""
    offload: str
    """kept and updated on the host or its NVMe: states of the optimizer, or these and sharded parameters"""
    offload_ratio: float
    """share of the weights whose states offload optimizer keeps and updates on the host"""
    reference: bool
    """a frozen copy (with lora: the model without adapters) runs forward on each batch too, as in DPO"""
    execution: str
    """how the step is run"""
    framework: str
    """framework, which decides fused kernels and communication overhead"""
    torch: str | None
    """version of PyTorch as text (default: a current one), which decides some kernels"""
    no_sync: bool
    """reduce gradients once per step (false: after every micro-step)"""
    communication_dtype: str | None
    """dtype of reduced gradients (default: the precision's)"""
    anchors: str | Mapping[str, Any] | Sequence[str | Mapping[str, Any]]
    """measured jobs that correct the estimate: published (default), none or FILE.csv"""
    data: Mapping[str, Any] | str | None
    """storage and loader: storage=nfs-10gbe;workers=8;... (default: loading takes no time)"""
    run: Mapping[str, Any] | None
    """length of the run and the facts around the steps"""
    # The run around the steps.

    epochs: float | None
    """epochs to train; may be a fraction"""
    steps: int | None
    """optimizer steps to train, instead of epochs"""
    samples: int | None
    """samples to train on, instead of epochs"""
    dataset: str | None
    """training set, from the catalog or with dataset_size"""
    dataset_size: int | None
    """samples in one epoch, instead of the catalog's"""
    steps_per_epoch: int | None
    """optimizer steps in one epoch, if not derived"""
    evaluation_samples: int | None
    """samples of one evaluation (forward only)"""
    evaluation_every_epochs: float | None
    """epochs between evaluations (1 when an evaluation has a length)"""
    evaluation_every_steps: int | None
    """steps between evaluations, instead of epochs"""
    evaluation_s: float | None
    """seconds of one evaluation, instead of predicted ones"""
    checkpoint_every_steps: int | None
    """steps between checkpoints"""
    checkpoint_every_s: float | None
    """seconds between checkpoints (default: what loses least, where failures are known)"""
    checkpoint_s: float | None
    """seconds that one checkpoint stops training"""
    checkpoint_storage: str | None
    """storage that checkpoints are written to, from the catalog or a file"""
    checkpoint_async: bool | None
    """training goes on once a checkpoint is copied to the host's memory"""
    start_up_s: float | None
    """seconds from launch to the first step (default: as MLPerf's runs)"""
    compile_s: float | None
    """seconds of compilation and warm-up besides start-up"""
    queue_s: float | None
    """seconds in a scheduler's queue before launch"""
    gpu_hours_per_failure: float | None
    """GPU-hours between failures that interrupt a run, where they are known"""
    failure_prior: str | None
    """failures where none are known: none, or published (one in 50,700 GPU-hours)"""
    failures_seen: int | None
    """failures in a log of failures_gpu_hours"""
    failures_gpu_hours: float | None
    """GPU-hours of that log, which updates the published rate"""
    restart_s: float | None
    """seconds from a failure until training goes on (default: as the start-up)"""
    price_per_gpu_hour: float | None
    """US dollars per GPU and hour"""
    price: str | None
    """list price of a cloud: aws, azure, gcp ..., any, or an instance type (p4d.24xlarge)"""


def predict_time(model: str, **fields: Unpack[JobFields]) -> Estimate:
    """The estimate of a job given as keyword arguments, which are the fields of the job file (`JobFields`).

        predict_time(model="resnet50", precision="mixed_fp16_fp32", gpus=8, batch_size=256, epochs=90)

    A field that is left out or None takes its default: precision fp32, one GPU a100-80gb-sxm in its usual node, and
    the model's own optimizer, input size, batch size and data set. Raises a `PrecisionTimeError` that names the field,
    the value and the fix.
    """
    if hasattr(model, "named_parameters"):
        raise JobError(
            f"model is the module {type(model).__name__}, but predict_time takes its name; call predict_module(model, "
            "batch, ...) of precision_time.integrations.torch, which takes the module and a sample batch"
        )
    return predict(Job.from_fields({"model": model, **fields}, GIVEN))


def _text(kind: Any) -> str:
    return str(getattr(kind, "__forward_arg__", kind))


# `help()` and notebooks do not read `JobFields` from the annotation, so they get the arguments one by one, with types.
_MODEL = inspect.Parameter("model", inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation="str")
_KEYWORDS = [
    inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=_text(kind))
    for name, kind in JobFields.__annotations__.items()
]
predict_time.__signature__ = inspect.Signature([_MODEL, *_KEYWORDS])  # type: ignore[attr-defined]
