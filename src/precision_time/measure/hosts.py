"""Measures host costs: autograd, views, the optimizer's loop over tensors, and the fixed cost of a step.

On a CPU the time of an operator includes its dispatch, so only the time beyond it is counted. On a GPU these are launch
times, measured with tiny kernels.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import torch

_CHAIN = 200
_REPEATS = 15


def host_costs(device: torch.device) -> dict[str, float]:
    """Host costs in microseconds under the names of `timing/data/host.json`, and `backward_share`."""
    operator, forward, backward = _chain(device)
    base = operator if device.type == "cpu" else 0.0
    forward_us, backward_us = (max(x - base, 0.0) * 1e6 for x in (forward, backward))
    operator_us = max(forward_us, 0.1)
    tensor_us = _per_tensor(device, base) * 1e6
    return {
        "operator_us": operator_us,
        "view_us": _view(device) * 1e6,
        "kernel_us": 0.0 if device.type == "cpu" else 0.5 * operator_us,
        "sweep_us": 3.0 * operator_us,
        "list_us": 0.1 * tensor_us,
        "tensor_us": tensor_us,
        "step_us": _empty_step(device) * 1e6,
        "backward_share": min(max(backward_us / operator_us, 0.05), 2.0),
        "log_spread": 0.2,
    }


def graph_launch_us(device: torch.device) -> dict[str, float]:
    """Microseconds to launch a CUDA graph of tiny kernels (graph_launch_us) and for each kernel of it
    (graph_operator_us); empty on a CPU."""
    if device.type != "cuda":
        return {}
    x = torch.ones(16, device=device)

    def chain() -> Any:
        value = x
        for _ in range(_CHAIN):
            value = value + 1.0
        return value

    stream = torch.cuda.Stream(device)
    stream.wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.stream(stream):
        chain()
    torch.cuda.current_stream(device).wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        chain()
    launch_s = _median(graph.replay, device)
    whole = []
    for _ in range(_REPEATS):
        torch.cuda.synchronize(device)
        begin = time.perf_counter()
        graph.replay()
        torch.cuda.synchronize(device)
        whole.append(time.perf_counter() - begin)
    return {"graph_launch_us": launch_s * 1e6, "graph_operator_us": statistics.median(whole) / _CHAIN * 1e6}


def _median(call: Callable[[], Any], device: torch.device) -> float:
    samples = []
    for _ in range(_REPEATS + 3):
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        begin = time.perf_counter()
        call()
        samples.append(time.perf_counter() - begin)
    return statistics.median(samples[3:])


def _chain(device: torch.device) -> tuple[float, float, float]:
    """Seconds per tiny operator: without autograd, forward with autograd, and backward."""
    x = torch.ones(16, device=device)
    weight = torch.ones(16, device=device, requires_grad=True)

    def chain(start: torch.Tensor) -> torch.Tensor:
        value = start
        for _ in range(_CHAIN // 2):
            value = torch.sigmoid(torch.tanh(value))
        return value

    with torch.no_grad():
        plain = _median(lambda: chain(x), device) / _CHAIN
    forward = _median(lambda: chain(weight), device) / _CHAIN
    one = torch.ones(16, device=device)
    samples = []
    for _ in range(_REPEATS):
        out = chain(weight)
        begin = time.perf_counter()
        torch.autograd.grad(out, weight, one)
        samples.append(time.perf_counter() - begin)
    return plain, forward, statistics.median(samples) / _CHAIN


def _view(device: torch.device) -> float:
    x = torch.ones(4, 4, device=device, requires_grad=True)

    def views() -> None:
        for _ in range(_CHAIN):
            x.view(16)

    return _median(views, device) / _CHAIN


def _per_tensor(device: torch.device, base: float) -> float:
    """Seconds of a single-tensor optimizer per tensor and pass, minus the operator's time `base`."""
    count = 50
    parameters = [torch.nn.Parameter(torch.ones(16, device=device)) for _ in range(count)]
    for p in parameters:
        p.grad = torch.ones_like(p)
    per_pass = []
    for optimizer, passes in (
        (torch.optim.SGD(parameters, lr=1e-3, momentum=0.9, weight_decay=1e-4, foreach=False), 4),
        (torch.optim.AdamW(parameters, foreach=False), 8),
    ):
        per_pass.append(_median(optimizer.step, device) / (count * passes))
    return max(statistics.mean(per_pass) - base, 0.1e-6)


def _empty_step(device: torch.device) -> float:
    """Fixed seconds of a step: gradients to None, a backward pass of one operator, an optimizer with one tensor."""
    parameter = torch.nn.Parameter(torch.ones(16, device=device))
    optimizer = torch.optim.SGD([parameter], lr=1e-3)

    def step() -> None:
        optimizer.zero_grad()
        parameter.sum().backward()
        optimizer.step()

    return _median(step, device)
