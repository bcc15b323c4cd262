"""What of a block runs again in the backward pass, by the mode of recomputation."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np

from precision_time.bounded_cache import STRUCTURES, bounded
from precision_time.capture.graph import OpGraph, Skeleton
from precision_time.capture.layers import AFTER, BEFORE, Unit, as_traced
from precision_time.errors import JobError
from precision_time.job.choices import MODULES
from precision_time.layout.program import CONTEXT, EXPERT, TENSOR, CollectiveOp

UNTIL_SAVED, SECOND_PRODUCTS = "until saved", "second products"
"""Further modes of recomputation beside those of a job:

until saved       PyTorch's checkpoint without reentrant autograd stops "as soon as it has computed all needed Tensors"
                  (torch/utils/checkpoint.py, set_checkpoint_early_stop), before a block's last product and sum
second products   the same, of torchtitan's selective mode: what its policy saves does not run again, which is fused
                  attention and every product but each second (torchtitan/models/llama3/parallelize.py, _save_list);
                  fp8 products are not on its list
"""


def recomputed(graph: Skeleton, unit: Unit, mode: str) -> tuple[int, ...]:
    """Forward calls that run again in the backward pass.

    Selective recomputation runs what lies between the projections of attention again: scores, softmax, dropout and
    their product with the values (arXiv:2205.05198), or the fused kernel that replaces them.
    """
    if not is_block(unit) or mode == "none":
        return ()
    if mode in (UNTIL_SAVED, SECOND_PRODUCTS):
        needed = _until_saved(graph, unit)
        return needed if mode == UNTIL_SAVED else _without_saved_products(graph, needed)
    if mode == "full":
        return unit.forward
    return tuple(sorted({call for calls, _ in parts_of(graph, unit, mode) for call in calls}))


@bounded(budget=STRUCTURES)
def _until_saved(graph: Skeleton, unit: Unit) -> tuple[int, ...]:
    """Forward calls up to the last that writes what the unit's backward pass reads. A product saves what it reads
    before it runs."""
    written = graph.spans.born[graph.calls.read_by(unit.backward)]
    needed = written[np.isin(written, np.array(unit.forward))]
    return tuple([i for i in unit.forward if i <= needed.max(initial=-1)])


def _without_saved_products(graph: Skeleton, calls: Sequence[int]) -> tuple[int, ...]:
    saved = saved_products(graph, calls)
    return tuple([i for i in calls if i not in saved])


def saved_products(graph: Skeleton, calls: Sequence[int]) -> set[int]:
    """Those of some forward calls whose results torchtitan's policy keeps."""
    names = {i: graph.names[graph.calls.kind[i]] for i in calls}
    saved = {i for i, name in names.items() if name == "pt.attention"}
    saved.update([i for i, name in names.items() if name == "aten.mm"][::2])
    return saved


def exchanged_again(forward: tuple[CollectiveOp, ...], mode: str) -> tuple[CollectiveOp, ...]:
    """Collectives that recomputation repeats: all with `full`, keys and values of other ranks with core attention, and
    those of the feed-forward layer or of the experts with these."""
    if mode == "full":
        return forward
    if mode == UNTIL_SAVED:  # not what leaves the block's last product
        last = max((i for i, e in enumerate(forward) if e.group == TENSOR), default=None)
        return tuple(e for i, e in enumerate(forward) if i != last)
    if mode == SECOND_PRODUCTS:  # torchtitan saves the results of reductions and of attention
        return tuple(e for e in forward if e.group == TENSOR and e.collective == "all_gather")
    names = modules_of(mode)
    groups = {CONTEXT} if "core_attn" in names else set()
    groups |= {EXPERT} if "moe" in names else set()
    inside = [i for i, e in enumerate(forward) if e.group == TENSOR]
    # Of a block those of attention come first, then as many of what follows it.
    second = set(inside[len(inside) // 2 :]) if {"mlp", "moe"} & set(names) else set()
    return tuple(e for i, e in enumerate(forward) if e.group in groups or i in second)


Part = tuple[tuple[int, ...], bool]
"""Forward calls that run again together, and whether what they hand on is dropped too and made again: Megatron-LM's
`CheckpointWithoutOutput`, where a plain checkpoint keeps what it hands on."""

_PLACES: dict[str, tuple[str, bool]] = {
    "layernorm": (r"[^.]*(?:norm|ln)[^.]*", True),
    "mla_up_proj": (r"(?:attention|self_attn)\.(?:q_up|kv_up|q_b_proj|kv_b_proj)", True),
    "mlp": (r"(?:ffn|mlp|feed_forward)(?:\..*)?", False),
    "moe": (r"moe(?:\..*)?", False),
    "moe_act": (r"moe\.experts", True),
    "shared_experts": (r"moe\.shared(?:\..*)?", False),
}
"""Part of a block (`job.choices.MODULES`) -> where its calls stand inside the block, and as in `Part`. What Megatron-LM
recomputes of each: megatron/core/transformer/transformer_config.py, recompute_modules."""
_PRODUCTS = ("aten.mm", "aten.addmm", "pt.scaled_mm", "pt.grouped_mm", "pt.scaled_grouped_mm")


def modules_of(mode: str) -> tuple[str, ...]:
    """Parts of a block that a mode recomputes; () for modes of other kinds."""
    return ("core_attn",) if mode == "selective" else tuple(name for name in mode.split(",") if name in MODULES)


def is_block(unit: Unit) -> bool:
    return unit.name not in (BEFORE, AFTER)


def recomputed_parts(graph: OpGraph, unit: Unit, mode: str) -> tuple[Part, ...]:
    """The parts of a unit that a mode recomputes by name; of another mode core attention, which `selective` would."""
    return parts_of(*as_traced(graph.skeleton, unit), mode if modules_of(mode) else "selective")


@bounded(budget=STRUCTURES)
def parts_of(graph: Skeleton, unit: Unit, mode: str) -> tuple[Part, ...]:
    """The same of a traced unit."""
    parts: list[Part] = []
    for name in modules_of(mode):
        if name == "core_attn":
            parts.append((_core_attention(graph, unit), False))
            continue
        pattern, drops = _PLACES[name]
        runs: dict[str, list[int]] = {}
        for i in unit.forward:
            path = graph.modules[graph.calls.module[i]]
            inside = path.removeprefix(f"{unit.name}.") if path != unit.name else ""
            product = graph.names[graph.calls.kind[i]] in _PRODUCTS
            if re.fullmatch(pattern, inside) and not (name == "moe_act" and product):
                runs.setdefault(inside if drops else name, []).append(i)
        parts += [(tuple(calls), drops) for calls in runs.values()]
    return tuple(part for part in parts if part[0])


def check_modules(graph: Skeleton, units: Sequence[Unit], mode: str, model: str) -> None:
    """Raise `JobError` for a part that no block of the model has."""
    for name in modules_of(mode) if mode != "selective" else ():
        if not any(is_block(unit) and parts_of(*as_traced(graph, unit), name) for unit in units):
            raise JobError(f"recompute {name}: no block of {model} has such a part; leave it out")


@bounded(budget=STRUCTURES)
def _core_attention(graph: Skeleton, unit: Unit) -> tuple[int, ...]:
    calls: list[int] = []
    inside = False
    kinds, modules = graph.calls.kind.tolist(), graph.calls.module.tolist()
    for i in unit.forward:
        name = graph.names[kinds[i]]
        own = graph.modules[modules[i]].endswith("attention")
        inside = own and (inside or name in ("aten.bmm", "pt.attention"))
        if inside:
            calls.append(i)
    return tuple(calls)
