"""The LAMB optimizer, which torch lacks: tensor by tensor, or with torch's multi-tensor operators.

A step follows You et al. (arXiv 1904.00962), with the clipping by the global norm of NVIDIA's implementation: gradients
are clipped, Adam's direction plus weight decay is computed, and each tensor moves along it by the ratio of its norm to
that of the direction. The passes over parameters are those that `capture.optimizer` counts. The fused kernels of apex
are not part of this package.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch


class Lamb:
    """The optimizer for fixed parameters, each of which must have a gradient at `step()`; clipping scales gradients.

    `foreach` as in `torch.optim`. Moments have the dtype of the parameters. A step never waits for the device.
    """

    def __init__(
        self,
        parameters: Sequence[torch.Tensor],
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-6,
        weight_decay: float = 0.01,
        max_norm: float = 1.0,
        foreach: bool = False,
    ) -> None:
        self._parameters = list(parameters)
        self._lr, self._betas, self._eps = lr, betas, eps
        self._decay, self._max_norm = weight_decay, max_norm
        self._foreach = foreach
        self._first = [torch.zeros_like(p) for p in self._parameters]
        self._second = [torch.zeros_like(p) for p in self._parameters]
        self._steps = 0

    def step(self) -> None:
        """One update of all parameters."""
        with torch.no_grad():
            self._update()

    def _update(self) -> None:
        gradients = [p.grad for p in self._parameters if p.grad is not None]
        self._steps += 1
        # (m / c1) / (sqrt(v / c2) + eps), with both corrections in the denominator to save a division.
        one, two = (1.0 - beta**self._steps for beta in self._betas)
        if self._foreach:
            self._update_foreach(gradients, math.sqrt(two) / one, one * self._eps)
            return
        clip = self._clip([torch.linalg.vector_norm(g) for g in gradients])
        for p, g, m, v in zip(self._parameters, gradients, self._first, self._second, strict=True):
            self._update_one(p, g.div_(clip), m, v, math.sqrt(two) / one, one * self._eps)

    def _clip(self, norms: Sequence[torch.Tensor]) -> torch.Tensor:
        """The divisor of gradients: their global norm over the largest allowed norm, at least one."""
        return (torch.linalg.vector_norm(torch.stack(list(norms))) / self._max_norm).clamp(min=1.0)

    def _update_one(
        self, p: torch.Tensor, g: torch.Tensor, m: torch.Tensor, v: torch.Tensor, root: float, eps: float
    ) -> None:
        m.lerp_(g, 1.0 - self._betas[0])
        v.mul_(self._betas[1]).addcmul_(g, g, value=1.0 - self._betas[1])
        direction = m / v.sqrt().div_(root).add_(eps)
        direction.add_(p, alpha=self._decay)
        ratio = _ratio(torch.linalg.vector_norm(p), torch.linalg.vector_norm(direction))
        p.addcmul_(direction, ratio, value=-self._lr)

    def _update_foreach(self, gradients: list[torch.Tensor], root: float, eps: float) -> None:
        parameters = self._parameters
        torch._foreach_div_(gradients, self._clip(torch._foreach_norm(gradients)))
        torch._foreach_lerp_(self._first, gradients, 1.0 - self._betas[0])
        torch._foreach_mul_(self._second, self._betas[1])
        torch._foreach_addcmul_(self._second, gradients, gradients, 1.0 - self._betas[1])
        roots = torch._foreach_sqrt(self._second)
        torch._foreach_div_(roots, root)
        torch._foreach_add_(roots, eps)
        directions = torch._foreach_div(self._first, roots)
        torch._foreach_add_(directions, parameters, alpha=self._decay)
        norms = (torch.stack(torch._foreach_norm(tensors)) for tensors in (parameters, directions))
        # One factor per tensor, on the device: torch applies such factors tensor by tensor.
        torch._foreach_addcmul_(parameters, directions, _ratio(*norms).unbind(), -self._lr)


def _ratio(weight: torch.Tensor, direction: torch.Tensor) -> torch.Tensor:
    """The norm of a tensor over that of its direction; one if either is zero."""
    return torch.where((weight > 0) & (direction > 0), weight / direction, 1.0)
