"""Times whole updates of real parameter lists: optimizers of torch in each implementation, LAMB, clipping, unscaling.

SGD, Adam and AdamW are also measured in pure half precision. The host time per tensor of an update can exceed that of
its kernels, so these times check the sweeps of the timing model.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import torch

from precision_time.capture.captured_model import capture_model
from precision_time.job.job import Job
from precision_time.journal import Record
from precision_time.measure.clock import summary
from precision_time.measure.lamb import Lamb
from precision_time.measure.suite import Task
from precision_time.measure.train import OPTIMIZERS

MODELS = {"cpu": ("mobilenet-v3-large",), "cuda": ("mobilenet-v3-large", "resnet50", "bert-large")}
IMPLEMENTATIONS = ("single", "foreach", "fused")
IN_HALF = ("sgd", "adam", "adamw")
"""Optimizers that are also measured in pure half precision."""
_HALF = (torch.float16, torch.bfloat16)
_SAMPLES = 7


def update_tasks(device: torch.device) -> list[Task]:
    """Each optimizer over the parameters of each model, and clipping and unscaling of its gradients."""
    tasks = []
    for model in MODELS[device.type]:
        tasks += [
            _task(model, f"{optimizer} {how}", _optimizer(optimizer, how), device, dtype)
            for dtype in (torch.float32, *_HALF)
            for optimizer in (OPTIMIZERS if dtype == torch.float32 else IN_HALF)
            for how in IMPLEMENTATIONS
        ]
        tasks += [_task(model, f"lamb {how}", _lamb(how), device) for how in ("single", "foreach")]
        tasks.append(_task(model, "clip", _clip, device))
        if device.type == "cuda":
            tasks.append(_task(model, "unscale", _unscale, device))
    return tasks


Parameters = Sequence[torch.nn.Parameter]


def _task(
    model: str,
    update: str,
    make: Callable[[Parameters], Callable[[], Any]],
    device: torch.device,
    dtype: torch.dtype = torch.float32,
) -> Task:
    name = str(dtype).removeprefix("torch.")

    def run(_budget_s: float) -> Record:
        parameters = _parameters(model, device, dtype)
        call = make(parameters)
        device_s, host_s = _times(call, device)
        return {
            "update": update,
            "model": model,
            "tensors": len(parameters),
            "elements": sum(p.numel() for p in parameters),
            "dtype": name,
            "seconds": summary(device_s).seconds,
            "spread": summary(device_s).spread,
            "host_s": summary(host_s).seconds,
        }

    return Task(f"update {update} of {model}{'' if dtype == torch.float32 else f' in {name}'}", run)


def _parameters(model: str, device: torch.device, dtype: torch.dtype) -> list[torch.nn.Parameter]:
    described = capture_model(Job(model)).graph.parameters
    shapes = [p.shape for p in described if p.trainable]
    parameters = [torch.nn.Parameter((torch.randn(shape, device=device) * 0.02).to(dtype)) for shape in shapes]
    for p in parameters:
        p.grad = torch.randn_like(p)
    return parameters


def _optimizer(name: str, how: str) -> Callable[[Parameters], Callable[[], Any]]:
    settings = {"fused": True} if how == "fused" else {"foreach": how == "foreach"}

    def make(parameters: Parameters) -> Callable[[], Any]:
        optimizer = OPTIMIZERS[name](parameters, **settings)
        optimizer.step()  # allocates its state
        return lambda: optimizer.step()

    return make


def _lamb(how: str) -> Callable[[Parameters], Callable[[], Any]]:
    return lambda parameters: Lamb(parameters, lr=1e-5, foreach=how == "foreach").step


def _clip(parameters: Parameters) -> Callable[[], Any]:
    return lambda: torch.nn.utils.clip_grad_norm_(parameters, 1e6)


def _unscale(parameters: Parameters) -> Callable[[], Any]:
    gradients = [p.grad for p in parameters if p.grad is not None]
    found_inf, scale = (torch.full((), value, device=gradients[0].device) for value in (0.0, 1.0))
    return lambda: torch._amp_foreach_non_finite_check_and_unscale_(gradients, found_inf, scale)


def _times(call: Callable[[], Any], device: torch.device) -> tuple[list[float], list[float]]:
    """Samples of the seconds until the device has finished and until the call returns."""
    whole, host = [], []
    for index in range(_SAMPLES + 2):
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        begin = time.perf_counter()
        call()
        free = time.perf_counter()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        if index > 1:
            host.append(free - begin)
            whole.append(time.perf_counter() - begin)
    return whole, host
