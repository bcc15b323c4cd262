"""LAMB as the suite runs it: against a step worked out in plain numbers, and against the passes that are timed."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from precision_time.capture.optimizer import rule
from precision_time.measure.lamb import Lamb

SHAPES = ((6, 3), (5,), (2, 7))


def by_hand(
    weights: list[list[float]], gradients: list[list[list[float]]], lr: float, decay: float, max_norm: float
) -> list[list[float]]:
    """The paper's update (Algorithm 2) after clipping by the global norm, one number after another."""
    first = [[0.0] * len(w) for w in weights]
    second = [[0.0] * len(w) for w in weights]
    for step, now in enumerate(gradients, 1):
        clip = max(math.sqrt(sum(g * g for tensor in now for g in tensor)) / max_norm, 1.0)
        for w, tensor, m, v in zip(weights, now, first, second, strict=True):
            direction = []
            for i, g in enumerate(g / clip for g in tensor):
                m[i] = 0.9 * m[i] + 0.1 * g
                v[i] = 0.999 * v[i] + 0.001 * g * g
                adam = m[i] / (1 - 0.9**step) / (math.sqrt(v[i] / (1 - 0.999**step)) + 1e-6)
                direction.append(adam + decay * w[i])
            ratio = math.hypot(*w) / math.hypot(*direction) if any(w) and any(direction) else 1.0
            for i, d in enumerate(direction):
                w[i] -= lr * ratio * d
    return weights


@pytest.mark.parametrize("foreach", [False, True])
@pytest.mark.parametrize("max_norm", [0.5, 1e6])
def test_two_steps_by_hand(foreach: bool, max_norm: float) -> None:
    """The last tensor is zero at first and moves by the direction itself; the second step clips anew."""
    weights = [[0.5, -1.0, 2.0], [0.25, 0.125], [0.0, 0.0]]
    gradients = [[[0.1, 0.2, -0.3], [1.0, -2.0], [0.5, 0.5]], [[0.3, -0.1, 0.1], [0.1, 0.2], [-1.0, 0.25]]]
    parameters = [torch.nn.Parameter(torch.tensor(w, dtype=torch.float64)) for w in weights]
    optimizer = Lamb(parameters, lr=0.01, weight_decay=0.1, max_norm=max_norm, foreach=foreach)
    for now in gradients:
        for p, g in zip(parameters, now, strict=True):
            p.grad = torch.tensor(g, dtype=torch.float64)
        optimizer.step()
    expected = by_hand(weights, gradients, 0.01, 0.1, max_norm)
    for p, w in zip(parameters, expected, strict=True):
        assert p.tolist() == pytest.approx(w, rel=1e-10)


@pytest.mark.parametrize("foreach", [False, True])
def test_it_makes_the_passes_that_are_priced(foreach: bool) -> None:
    """As many over all parameters, each reading as many tensors; the ratios of each tensor are single numbers."""
    reads: list[int] = []

    class Passes(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            tensors = [t for t in tree_leaves((args, kwargs)) if isinstance(t, torch.Tensor)]
            large = {id(t) for t in tensors if t.shape in SHAPES}
            if large and "detach" not in func._schema.name:
                reads.append(len(large))
            return func(*args, **(kwargs or {}))

    parameters = [torch.nn.Parameter(torch.ones(shape)) for shape in SHAPES]
    for p in parameters:
        p.grad = torch.ones_like(p)
    optimizer = Lamb(parameters, foreach=foreach)
    with Passes():
        optimizer.step()
    count = len(SHAPES)
    expected = [step.reads for step in rule("lamb").passes]
    assert sorted(reads) == sorted([n * count for n in expected] if foreach else expected * count)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_state_and_weights_stay_in_half(dtype: torch.dtype) -> None:
    parameters = [torch.nn.Parameter(torch.ones(shape, dtype=dtype)) for shape in SHAPES]
    for p in parameters:
        p.grad = torch.ones_like(p)
    Lamb(parameters, lr=0.1, foreach=True).step()  # 0.001 would be lost in rounding
    assert all(p.dtype == dtype and bool((p < 1).all()) for p in parameters)
