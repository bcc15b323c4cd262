"""Measures host costs: autograd, views, the optimizer's loop over tensors, and the fixed cost of a step.

On a CPU the time of an operator includes its dispatch, so only the time beyond it is counted. On a GPU these are launch
times, measured with the tiny kernels of small layers: operators in a tight loop launch in a third of the time that
those of modules with parameters do (10 us against 30 us and more on the host of data/measured/h100).
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import torch

from precision_time.timing.host import relative_costs

_CHAIN = 200
_REPEATS = 15
_BLOCKS = 16
FORWARD = ("convolution", "add_", "native_batch_norm", "relu", "addmm", "native_layer_norm", "gelu")
BACKWARD = (
    "convolution_backward", "native_batch_norm_backward", "threshold_backward", "mm", "mm", "sum",
    "native_layer_norm_backward", "gelu_backward",
)  # fmt: skip
"""Operators of a block of `small_layers`: a batch norm counts its batches."""


def host_costs(device: torch.device) -> dict[str, float]:
    """Host costs in microseconds under the names of `timing/data/host.json`, and `backward_share`."""
    on_cpu = device.type == "cpu"
    if on_cpu:
        base, forward, backward = _chain(device)
    else:
        base, (forward, backward) = 0.0, layer_launches(device)
    forward_us, backward_us = (max(x - base, 0.0) * 1e6 for x in (forward, backward))
    operator_us = max(forward_us, 0.1)
    tensor_us = _per_tensor(device, base) * 1e6
    return {
        "operator_us": operator_us,
        "view_us": _view(device) * 1e6,
        "kernel_us": 0.0 if on_cpu else 0.25 * operator_us,
        "sweep_us": (3.0 if on_cpu else 1.0) * operator_us,
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


def small_layers(blocks: int) -> torch.nn.Sequential:
    """Layers of eight features whose kernels take no longer than their launch; inputs are (batch, 8, 8, 8)."""

    def block() -> list[torch.nn.Module]:
        convolution = [torch.nn.Conv2d(8, 8, 1), torch.nn.BatchNorm2d(8), torch.nn.ReLU()]
        return [*convolution, torch.nn.Linear(8, 8), torch.nn.LayerNorm(8), torch.nn.GELU()]

    return torch.nn.Sequential(*[layer for _ in range(blocks) for layer in block()])


def layer_launches(device: torch.device) -> tuple[float, float]:
    """Seconds to launch an operator whose relative cost is one, from those of `small_layers`: forward, backward."""
    network = small_layers(_BLOCKS).to(device)
    x = torch.ones(2, 8, 8, 8, device=device)
    forward, backward = [], []
    for _ in range(_REPEATS + 3):
        network.zero_grad(set_to_none=True)
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        begin = time.perf_counter()
        total = network(x).sum()
        middle = time.perf_counter()
        total.backward()
        backward.append(time.perf_counter() - middle)
        forward.append(middle - begin)
    relative = relative_costs()
    of_pass = [_BLOCKS * sum(relative.of(f"aten.{name}") for name in names) + 1.0 for names in (FORWARD, BACKWARD)]
    return statistics.median(forward[3:]) / of_pass[0], statistics.median(backward[3:]) / of_pass[1]


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
