"""A deep model with few of its blocks, which stand for all: what is traced in place of a Hugging Face model.

Two blocks are equal where their modules, the shapes of their weights and all plain attributes but the number of the
layer are. Of every stack the first and the last block are kept, and between them one of each kind, in their order.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import FunctionType
from typing import Any

from torch import nn

from precision_time.capture.layers import block_of

_PLACES = frozenset(["layer_idx", "layer_id", "layer_index", "layer_number", "layer_num"])
"""Attributes that number a block."""
_PER_LAYER = "hidden_size_per_layer_input"
"""Key of a model whose embedding has a part for every layer, so that its code has to know them all (Gemma 3n)."""
_WHOLE = ("output_hidden_states", "output_attentions", "output_router_logits")
"""Options with which the model uses what every block returned, so that no block stands for another."""


def leave_few(module: nn.Module) -> tuple[tuple[str, tuple[int, ...]], ...]:
    """Remove, in place, the blocks that others stand for; returns `OpGraph.repeated`, empty where none is removed."""
    if any(getattr(getattr(module, "config", None), name, False) for name in _WHOLE):
        return ()
    stacks = [
        (path, blocks)
        for path, blocks in module.named_modules()
        if isinstance(blocks, nn.ModuleList) and len(blocks) and block_of(f"{path}.0") == f"{path}.0"
    ]
    found = [(path, _shortened(module.get_submodule(path.rpartition(".")[0]), blocks)) for path, blocks in stacks]
    return tuple((path, stands_for) for path, stands_for in found if stands_for)


def _shortened(owner: nn.Module, blocks: nn.ModuleList) -> tuple[int, ...]:
    depth = len(blocks)
    if sum(1 for block in blocks for _ in block.parameters()) > sum(1 for _ in blocks.parameters()):
        return ()  # blocks that share weights (Zamba) do not stand for others
    forms = [_form(block) for block in blocks]
    inner = {form: i for i, form in reversed([*enumerate(forms)][1:-1])}
    kept = sorted({0, depth - 1, *inner.values()})
    config = getattr(owner, "config", None)
    if len(kept) == depth or config is None or not _lower(config, depth, kept):
        return ()
    place = {layer: new for new, layer in enumerate(kept)}
    for new, layer in enumerate(kept):
        _number(blocks[layer], new)
    left = [blocks[layer] for layer in kept]
    del blocks[len(kept) :]
    for new, block in enumerate(left):
        blocks[new] = block
    return (0, *(place[inner[form]] for form in forms[1:-1]), place[depth - 1])


def _form(block: nn.Module) -> tuple[Any, ...]:
    """What decides which operators a block runs."""
    return tuple(
        (
            path,
            type(part).__qualname__,
            tuple((name, tuple(p.shape), p.dtype, p.requires_grad) for name, p in part.named_parameters(recurse=False)),
            tuple((name, _plain(value)) for name, value in vars(part).items() if name not in _PLACES),
        )
        for path, part in block.named_modules()
    )


def _plain(value: object) -> object:
    """A value that can be compared; nothing of objects, whose modules and weights are compared by themselves."""
    if isinstance(value, (bool, int, float, str, type(None))):
        return value
    if isinstance(value, FunctionType):
        return value.__qualname__
    if isinstance(value, (list, tuple)):
        return tuple(_plain(each) for each in value)
    return None


def _lower(config: Any, depth: int, kept: Sequence[int]) -> bool:
    """Write the new depth into the configuration that the stack's owner reads; False where it has no such number."""
    values = {name: value for name, value in vars(config).items() if not name.startswith("_")}
    counts = [name for name, value in values.items() if type(value) is int and value == depth and "layer" in name]
    for name in () if getattr(config, _PER_LAYER, None) else counts:
        object.__setattr__(config, name, len(kept))
    for name, value in values.items():
        if isinstance(value, list) and len(value) == depth:
            object.__setattr__(config, name, [value[layer] for layer in kept])
    return bool(counts)


def _number(block: nn.Module, place: int) -> None:
    for part in block.modules():
        for name in _PLACES & vars(part).keys():
            setattr(part, name, place)
