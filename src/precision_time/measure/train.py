"""Trains a job for some steps and returns the seconds of each.

The job's fields decide what runs: model, sizes, precision, optimizer and its implementation, accumulation, clipping,
memory format, attention. Weights are random and one random batch is used in every step, so nothing is loaded. Values
affect the time: a CPU takes several times as long for square roots of zeros and for exponentials that underflow.
Embeddings are therefore scaled as published models initialise them, and the optimizer's state is made dense.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from precision_time.capture.build import build_workload
from precision_time.capture.channels_last import convert, converted
from precision_time.errors import MeasureError
from precision_time.job.code import GIVEN
from precision_time.job.job import Job
from precision_time.job.precision import Precision
from precision_time.measure.kernel_support import check_kernels
from precision_time.measure.launch import Report, no_report
from precision_time.zoo.workload import Workload

TRAINABLE = ("fp64", "fp32", "torch-fp32", "tf32", "amp-fp16", "amp-bf16", "fp16", "bf16")
"""Precisions that plain PyTorch can train; master weights and fp8 need another library."""
OPTIMIZERS: Mapping[str, Callable[..., torch.optim.Optimizer]] = {
    "sgd": lambda p, **how: torch.optim.SGD(p, lr=1e-4, momentum=0.9, weight_decay=1e-4, **how),
    "adam": lambda p, **how: torch.optim.Adam(p, lr=1e-5, **how),
    "adamw": lambda p, **how: torch.optim.AdamW(p, lr=1e-5, **how),
    "adagrad": lambda p, **how: torch.optim.Adagrad(p, lr=1e-5, **how),
    "rmsprop": lambda p, **how: torch.optim.RMSprop(p, lr=1e-5, momentum=0.9, weight_decay=1e-5, **how),
}
"""Optimizers of torch, with the settings of the operator tables (`capture.optimizer`)."""
_UNINITIALISED = 1e3
"""A weight of larger magnitude was allocated without being initialised."""
DECAY = 0.9999
"""Of moving averages of the weights."""
_EMBEDDING_STD = 0.02
"""Standard deviation of the embeddings of GPT-2 and BERT (`initializer_range` of their Hugging Face configurations)."""


class _Loss(nn.Module):
    """Model and loss as one module, so that DistributedDataParallel wraps every use of the model."""

    def __init__(self, workload: Workload) -> None:
        super().__init__()
        self.module = workload.module
        self._loss = workload.loss

    def forward(self, inputs: dict[str, Any]) -> torch.Tensor:
        return self._loss(self.module, inputs)


class Trainer:
    """A job on a device, ready to take steps.

    Raises `MeasureError` for what cannot be trained here; `UnsupportedError` where the device lacks a kernel.
    """

    def __init__(self, job: Job, device: torch.device) -> None:
        precision = job.precision_spec
        check(job)
        torch.manual_seed(0)
        with torch.device(device):
            built = build_workload(job)
        workload, optimizer_name = built.workload, built.optimizer
        if workload.updates:
            raise MeasureError(f"{job.model} updates several networks in turn, which verify cannot train yet")
        if optimizer_name not in OPTIMIZERS:
            raise MeasureError(
                f"torch has no optimizer {optimizer_name}, so it cannot be trained here; "
                f"set optimizer to one of {', '.join(OPTIMIZERS)}"
            )
        module = workload.module.to(device)
        check_kernels(module, job, device)
        _initialise(module)
        if not precision.autocast:
            module.to(getattr(torch, precision.parameter_dtype))
        if job.memory_format == "nhwc":
            convert(module)
        module.train()
        self._inputs = _inputs(workload, device, precision, job.memory_format)
        self._job, self._device, self._precision, self._clip = job, device, precision, built.clip_norm
        self._parameters = [p for p in module.parameters() if p.requires_grad]
        self._optimizer = OPTIMIZERS[optimizer_name](self._parameters, **_implementation(built.optimizer_impl))
        _fill_state(self._optimizer, self._parameters)
        self._ema = built.ema
        self._averages = [p.detach().clone() for p in self._parameters] if built.ema else []
        self._scaler = torch.amp.GradScaler(device.type, enabled=precision.loss_scaling and job.loss_scale != "none")
        whole: nn.Module = _Loss(workload)
        if dist.is_initialized() and dist.get_world_size() > 1:
            whole = nn.parallel.DistributedDataParallel(whole)
        self._whole = torch.compile(whole) if job.execution == "compile" else whole

    def step(self, inputs: dict[str, Any] | None = None) -> None:
        """One optimizer step over `inputs`, or over the fixed batch of the job."""
        batch = self._inputs if inputs is None else inputs
        self._optimizer.zero_grad(set_to_none=True)
        last = self._job.grad_accum - 1
        for index in range(self._job.grad_accum):
            no_sync = getattr(self._whole, "no_sync", None)
            with no_sync() if no_sync and self._job.no_sync and index < last else contextlib.nullcontext():
                with self._autocast():
                    loss = self._whole(batch)
                self._scaler.scale(loss / self._job.grad_accum if last else loss).backward()
        if self._clip:
            self._scaler.unscale_(self._optimizer)
            nn.utils.clip_grad_norm_(self._parameters, self._clip)
        self._scaler.step(self._optimizer)
        self._scaler.update()
        self._average()

    def _average(self) -> None:
        """Update the moving average of the weights."""
        with torch.no_grad():
            if self._ema == "foreach":
                torch._foreach_lerp_(self._averages, self._parameters, 1 - DECAY)
            elif self._ema == "single":
                for average, parameter in zip(self._averages, self._parameters, strict=True):
                    average.copy_(average * DECAY + parameter * (1 - DECAY))

    def _autocast(self) -> Any:
        if not self._precision.autocast:
            return contextlib.nullcontext()
        return torch.autocast(self._device.type, dtype=getattr(torch, self._precision.compute_dtype))


def check(job: Job) -> None:
    """Raise `MeasureError` for a job that plain PyTorch cannot train."""
    if job.schedule:
        raise MeasureError("a precision schedule cannot be measured in one run; measure each precision by itself")
    if job.precision_spec.name not in TRAINABLE:
        raise MeasureError(
            f"precision {job.precision} needs a library beyond PyTorch and cannot be trained here; "
            f"use one of {', '.join(TRAINABLE)}"
        )
    if job.loss_scale == "static" and job.precision_spec.loss_scaling:
        raise MeasureError(
            "loss_scale static is apex's and cannot be trained here: PyTorch's GradScaler asks for overflows in every "
            "step; use dynamic"
        )
    if job.lora is not None:
        raise MeasureError(
            "lora cannot be trained here: PyTorch itself has no adapters; give a FILE.py:FUNCTION whose module has them"
        )
    if job.loss is not None:
        raise MeasureError(f"loss {job.loss} is that of other programs and cannot be trained here; leave it out")
    if job.offload is not None:
        raise MeasureError("offload is DeepSpeed's and FSDP's and cannot be trained here; leave it out")
    if job.execution not in ("eager", "compile"):
        raise MeasureError(f"execution {job.execution} cannot be trained here; use eager or compile")


def train_task(task: dict[str, Any], device: torch.device, _report: Report = no_report) -> dict[str, Any]:
    """{"steps_s": seconds of each measured step on the slowest rank}, as `worker` runs it."""
    job = Job.from_fields(task["job"], GIVEN)
    with settings(job, device):
        trainer = Trainer(job, device)
        return {"steps_s": times(trainer.step, device, task["warmup"], task["steps"], task.get("budget_s", 1e9))}


def times(
    step: Callable[[], None], device: torch.device, warmup: int, steps: int, budget_s: float = 1e9
) -> list[float]:
    """Seconds of `steps` steps after `warmup` steps; fewer, but at least three, if `budget_s` does not suffice.

    Warm-up also ends early, after two steps, if it would take a quarter of the budget. Short steps need about ten
    warm-up steps until the C library's allocator stops returning memory to the system.
    """
    step()
    begin = time.perf_counter()
    step()
    wait(device)
    each = max(time.perf_counter() - begin, 1e-9)
    for _ in range(_agreed(min(warmup - 2, budget_s / 4 / each), device)):
        step()
    wait(device)
    count = _agreed(max(3, min(steps, budget_s / each)), device)
    seconds = []
    if device.type == "cuda":
        marks = [torch.cuda.Event(enable_timing=True) for _ in range(count + 1)]
        marks[0].record()
        for mark in marks[1:]:
            step()
            mark.record()
        wait(device)
        seconds = [a.elapsed_time(b) / 1e3 for a, b in pairwise(marks)]
    else:
        for _ in range(count):
            begin = time.perf_counter()
            step()
            seconds.append(time.perf_counter() - begin)
    slowest = torch.tensor(seconds, dtype=torch.float64, device=device)
    if dist.is_initialized():
        dist.all_reduce(slowest, dist.ReduceOp.MAX)
    return [float(x) for x in slowest]


def _agreed(count: float, device: torch.device) -> int:
    """The smallest count of any rank, rounded down: all ranks must take equally many steps."""
    least = torch.tensor(
        max(count, 0.0), dtype=torch.float64, device=device
    )  # gloo refuses to reduce an int with a float
    if dist.is_initialized():
        dist.all_reduce(least, dist.ReduceOp.MIN)
    return int(least)


def wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


@contextlib.contextmanager
def settings(job: Job, device: torch.device) -> Iterator[None]:
    """Set the global switches of torch for a job: TF32 and the attention kernel."""
    precision = job.precision_spec
    if device.type == "cuda":
        torch.backends.cuda.matmul.allow_tf32 = precision.tf32
        torch.backends.cudnn.allow_tf32 = precision.tf32 or precision.tf32_convolutions
    if job.attention == "math":
        from torch.nn.attention import SDPBackend, sdpa_kernel

        with sdpa_kernel(SDPBackend.MATH):
            yield
    else:
        yield


def _implementation(named: str | None) -> dict[str, bool]:
    if named is None:
        return {}
    return {"fused": True} if named == "fused" else {"foreach": named == "foreach"}


def _initialise(module: nn.Module) -> None:
    """Initialise weights that their module only allocated, and scale embeddings down.

    torch initialises embeddings with standard deviation 1; tied to a head, these give logits whose softmax underflows.
    """
    with torch.no_grad():
        for part in module.modules():
            if isinstance(part, nn.Embedding) and float(part.weight.std()) > 0.5:
                part.weight.mul_(_EMBEDDING_STD)
        for p in module.parameters():
            if p.is_floating_point() and not bool((p.abs() < _UNINITIALISED).all()):
                p.normal_(0.0, 0.02)


def _fill_state(optimizer: torch.optim.Optimizer, parameters: Sequence[nn.Parameter]) -> None:
    """Make one update with dense gradients: the state of embedding rows that the one batch does not contain would stay
    zero, unlike in a long training."""
    for p in parameters:
        p.grad = torch.randn_like(p)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)


def _inputs(workload: Workload, device: torch.device, precision: Precision, memory_format: str) -> dict[str, Any]:
    """The batch on the device, filled with random values where the builder left zeros.

    Token ids are smaller than every embedding's number of rows, so that each is valid in any of them.
    """
    rows = [m.num_embeddings for m in workload.module.modules() if isinstance(m, nn.Embedding)]
    inputs: dict[str, Any] = {}
    for name, value in workload.inputs.items():
        if not isinstance(value, torch.Tensor):
            inputs[name] = value
            continue
        tensor = value.to(device)
        if tensor.is_floating_point():
            tensor = torch.randn_like(tensor) if not bool(tensor.any()) else tensor
            if not precision.autocast:
                tensor = tensor.to(getattr(torch, precision.compute_dtype))
            if memory_format == "nhwc":
                tensor = converted(tensor)
        elif tensor.dtype == torch.int64 and tensor.dim() >= 2 and rows and not bool(tensor.any()):
            tensor = torch.randint(0, min(rows), tensor.shape, device=device)
        inputs[name] = tensor
    return inputs
