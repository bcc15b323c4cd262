"""Scans of states in Hugging Face's models as the kernels that training on a GPU runs, one operator each.

Without mamba-ssm, causal-conv1d and flash-linear-attention, transformers loops over positions in Python. The trace has
the kernels of these libraries instead, which it assumes to be installed:

causal_conv1d    a short convolution along the sequence with its activation (causal_conv1d_fn)
selective_scan   Mamba's scan with gate and skip (mamba_ssm's selective_scan_fn; Gu and Dao 2023, arXiv:2312.00752)
state_scan       Mamba-2's scan by chunks (mamba_chunk_scan_combined), as in `operators`
delta_rule       the gated delta rule by chunks of 64 (fla's chunk_gated_delta_rule; Yang et al. 2024,
                 arXiv:2412.06464), also with a gate for every channel (fla's chunk_kda)
wkv              RWKV-4's attention (its own CUDA kernel; Peng et al. 2023, arXiv:2305.13048)

RecurrentGemma's recurrence has no such kernel in transformers, which loops over positions: `position_loop` is one
operator for this loop, with all of its kernels (`timing/scans.py`), so that sequences of any length are traced.

Their stand-ins have shapes and compute nothing; on a device that computes, transformers' own functions run.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from precision_time.zoo.models.operators import state_scan

ASSUMED = "scans of states run in the kernels of {}, one for each layer and pass, not in transformers' loops"
LOOPED = "the recurrence runs position by position, as transformers runs it: a step waits for the host's launches"
_LIBRARIES = {
    "causal_conv1d_fn": "causal-conv1d",
    "mamba_selective_scan": "mamba-ssm",
    "mamba2_chunk_scan": "mamba-ssm",
    "torch_chunk_gated_delta_rule": "flash-linear-attention",
    "chunk_kimi_delta_attention": "flash-linear-attention",
    "rwkv_linear_attention": "RWKV",
}


def _stand_in(name: str, arguments: str, like: int) -> Callable[..., Tensor]:
    """An operator whose result has the shape and dtype of an argument, and gradients of all arguments."""
    names = [part.strip() for part in arguments.split(",")]

    def nothing(*_: Tensor | None) -> Any:
        raise NotImplementedError("a stand-in for tracing on the meta device; it has shapes but computes nothing")

    inputs = ", ".join(f"Tensor{'?' if each.endswith('?') else ''} {each.rstrip('?')}" for each in names)
    forward = torch.library.custom_op(
        f"precision_time::{name}", nothing, mutates_args=(), schema=f"({inputs}) -> Tensor"
    )
    gradients = ", ".join(["Tensor"] * len(names))
    backward = torch.library.custom_op(
        f"precision_time::{name}_backward", nothing, mutates_args=(), schema=f"(Tensor grad, {inputs}) -> ({gradients})"
    )
    forward.register_fake(lambda *given: given[like].new_empty(given[like].shape))
    backward.register_fake(
        lambda grad, *given: tuple(grad.new_empty(0 if each is None else each.shape) for each in given)
    )

    def save(ctx: Any, inputs: tuple[Tensor | None, ...], output: Tensor) -> None:
        ctx.save_for_backward(*inputs)

    def gradient(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        saved = ctx.saved_tensors
        found = backward(grad, *saved)
        return tuple(
            None if of is None else each.to(of.dtype) if each.dtype != of.dtype and of.is_floating_point() else each
            for each, of in zip(found, saved, strict=True)
        )

    forward.register_autograd(gradient, setup_context=save)
    operator: Callable[..., Tensor] = forward
    return operator


_causal_conv1d = _stand_in("causal_conv1d", "input, weight, bias?", 0)
_selective_scan = _stand_in("selective_scan", "values, steps, decay, b, c, skip?, gate?, step_bias?", 0)
_delta_rule = _stand_in("delta_rule", "value, query, key, gate, beta", 0)
_wkv = _stand_in("wkv", "key, value, time_decay, time_first", 0)


def _convolved(hidden: Tensor, weight: Tensor, bias: Tensor | None = None, activation: Any = None, **_: Any) -> Tensor:
    return _causal_conv1d(hidden, weight, bias)


def _scanned(
    hidden: Tensor,
    dt: Tensor,
    decay: Tensor,
    b: Tensor,
    c: Tensor,
    D: Tensor | None = None,  # noqa: N803 (transformers' name)
    z: Tensor | None = None,
    delta_bias: Tensor | None = None,
    **_: Any,
) -> Tensor:
    return _selective_scan(hidden, dt, decay, b, c, D, z, delta_bias)


def _scanned_in_chunks(
    hidden: Tensor,
    dt: Tensor,
    decay: Tensor,
    b: Tensor,
    c: Tensor,
    chunk_size: int,
    D: Tensor | None = None,  # noqa: N803 (transformers' name)
    dt_bias: Tensor | None = None,
    **_: Any,
) -> Tensor:
    of_head = decay if D is None or D.ndim != 1 else D
    bias = decay if dt_bias is None else dt_bias
    scanned: Tensor = state_scan(hidden, dt, bias, decay, b, c, of_head, chunk_size)
    return scanned


def _delta(query: Tensor, key: Tensor, value: Tensor, g: Tensor, beta: Tensor, *_: Any, **__: Any) -> Any:
    return _delta_rule(value, query, key, g, beta), None


def _attended(time_decay: Tensor, time_first: Tensor, key: Tensor, value: Tensor, *_: Any, **__: Any) -> Any:
    return _wkv(key, value, time_decay, time_first), None


def _nothing(*_: Tensor) -> Any:
    raise NotImplementedError("a stand-in for tracing on the meta device; it has shapes but computes nothing")


_position_loop = torch.library.custom_op(
    "precision_time::position_loop",
    _nothing,
    mutates_args=(),
    schema="(Tensor hidden, Tensor gate) -> (Tensor, Tensor)",
)
_position_loop_backward = torch.library.custom_op(
    "precision_time::position_loop_backward", _nothing, mutates_args=(),
    schema="(Tensor grad, Tensor hidden, Tensor gate, Tensor kept) -> (Tensor, Tensor)",
)  # fmt: skip


def _looped_shapes(hidden: Tensor, gate: Tensor) -> tuple[Tensor, Tensor]:
    # Autograd keeps the state at each position, in fp32, and the gate's cast to it.
    kept = 1 if gate.dtype == torch.float32 else 2
    return torch.empty_like(hidden), hidden.new_empty((kept, *hidden.shape), dtype=torch.float32)


def _gradient_shapes(grad: Tensor, hidden: Tensor, gate: Tensor, kept: Tensor) -> tuple[Tensor, Tensor]:
    return torch.empty_like(hidden), torch.empty_like(gate)


def _keep(ctx: Any, inputs: tuple[Tensor, Tensor], output: tuple[Tensor, Tensor]) -> None:
    ctx.mark_non_differentiable(output[1])
    ctx.save_for_backward(*inputs, output[1])


_position_loop.register_fake(_looped_shapes)
_position_loop_backward.register_fake(_gradient_shapes)
_position_loop.register_autograd(
    lambda ctx, grad, _: _position_loop_backward(grad, *ctx.saved_tensors), setup_context=_keep
)


def _looped(
    _layer: nn.Module, hidden_states: Tensor, recurrent_gate: Tensor, reset: Tensor, *_: Any, **__: Any
) -> tuple[Tensor, Tensor]:
    result, _kept = _position_loop(hidden_states, recurrent_gate * ~reset)
    return result, result[:, -1].detach().float()


_KERNELS: dict[str, Callable[..., Any]] = {
    "causal_conv1d_fn": _convolved,
    "mamba_selective_scan": _scanned,
    "mamba2_chunk_scan": _scanned_in_chunks,
    "torch_chunk_gated_delta_rule": _delta,
    "chunk_kimi_delta_attention": _delta,
    "rwkv_linear_attention": _attended,
}
"""Functions of transformers' modelling files -> what stands for them."""


def _functions_of(module: nn.Module) -> list[tuple[Any, str]]:
    """The functions above in the files of a model's classes."""
    files = {type(part).__module__ for part in module.modules()}
    files = {name for name in files if name.startswith("transformers.models.")}
    return [
        (sys.modules[file], name) for file in sorted(files) for name in _KERNELS if hasattr(sys.modules[file], name)
    ]


_LOOP = "_rnn_scan"
"""Method of RecurrentGemma's recurrent layer that loops over positions."""


def _loops_of(module: nn.Module) -> list[type[nn.Module]]:
    """The classes of a model's layers that have such a loop."""
    kinds = dict.fromkeys(type(part) for part in module.modules())
    return [kind for kind in kinds if kind.__module__.startswith("transformers.models.") and hasattr(kind, _LOOP)]


def assumed_kernels(module: nn.Module) -> tuple[str, ...]:
    """A note on the libraries whose kernels stand in the trace of a model; none where it has no scans."""
    libraries = dict.fromkeys(_LIBRARIES[name] for _, name in _functions_of(module))
    notes = (ASSUMED.format(" and ".join(libraries)),) if libraries else ()
    return (*notes, LOOPED) if _loops_of(module) else notes


@contextmanager
def scan_kernels(module: nn.Module) -> Iterator[None]:
    """While a model runs on the meta device, its scans are the operators above."""
    loops = [(kind, _LOOP, getattr(kind, _LOOP)) for kind in _loops_of(module)]
    replaced = [(file, name, getattr(file, name)) for file, name in _functions_of(module)]
    for file, name, usual in replaced:
        setattr(file, name, _on_meta(usual, _KERNELS[name]))
    for kind, name, usual in loops:
        setattr(kind, name, _on_meta(usual, _looped))
    replaced += loops
    try:
        yield
    finally:
        for file, name, usual in replaced:
            setattr(file, name, usual)


def _on_meta(usual: Callable[..., Any], kernel: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(usual)
    def chosen(*args: Any, **kwargs: Any) -> Any:
        tensor = next(each for each in (*args, *kwargs.values()) if isinstance(each, Tensor))
        return (kernel if tensor.is_meta else usual)(*args, **kwargs)

    return chosen
