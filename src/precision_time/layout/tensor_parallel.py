"""Collectives of tensor-, context- and expert-parallel ranks inside a unit, and which operators run on part of the
tokens.

Outside divided modules every rank of a tensor-parallel group runs the same operators; with sequence parallelism each
runs them on its part of the tokens. Activations are exchanged where they enter and leave a divided module
(Shoeybi et al. 2019, arXiv:1909.08053; Korthikanti et al. 2022, arXiv:2205.05198):

    without sequence parallelism   all-reduce on leaving forward; all-reduce of the input's gradient backward
    with it                        all-gather on entering, reduce-scatter on leaving, and the same backward; the input
                                   is gathered once more for the weight gradients, behind which its own gradient is
                                   scattered (Megatron's LinearWithGradAccumulationAndAsyncCommunication)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

from precision_time.capture.graph import BYTES_PER_ELEMENT, Call, OpGraph, Phase, TensorSpec
from precision_time.capture.layers import AFTER, BEFORE, Unit
from precision_time.job.layout import Layout
from precision_time.layout.program import CONTEXT, EXPERT, TENSOR, CollectiveOp
from precision_time.zoo.parallel import Split

GROUPED = ("pt.grouped_mm", "pt.scaled_grouped_mm")
_ATTENTION = ("pt.attention", "pt.attention_backward")


@dataclass(frozen=True, slots=True)
class Exchanges:
    """The collectives of a unit in one micro-batch."""

    forward: tuple[CollectiveOp, ...] = ()
    backward: tuple[CollectiveOp, ...] = ()


def region_of(path: str, unit: str, split: Split) -> str:
    """The divided module, or the module run on the whole sequence, that a call belongs to; "" if none.

    A block may also hold operators between two stacks of blocks: a second embedding, the first stack's head.
    """
    if unit not in (BEFORE, AFTER) and (path == unit or path.startswith(f"{unit}.")):
        inside = path[len(unit) :].split(".")
        return next((part for part in inside if part in split.regions), "")
    outer = (*split.embedding, *split.head, *split.whole)
    return next((module for module in outer if path == module or path.startswith(f"{module}.")), "")


def local_call(
    graph: OpGraph, sharded: OpGraph | None, unit: Unit, index: int, split: Split | None
) -> tuple[Call, OpGraph]:
    """A call of the unit and the graph it is taken from: `sharded` if it runs on the rank's part of the sequence."""
    call = graph.calls[index]
    if sharded is None or split is None:
        return call, graph
    path = graph.modules[call.module]
    divided = region_of(path, unit.name, split)
    if divided == split.moe and split.own_tokens and not _is_shared(path, split):
        return sharded.calls[index], sharded
    outermost = graph.modules[call.module] == ""
    in_loss = unit.name == AFTER and (call.phase is Phase.LOSS or outermost)
    # Between two stacks (a mask, tokens drawn from the generator); backward there are only sums of gradients.
    in_loss = in_loss or (unit.name != BEFORE and outermost and call.phase is Phase.FORWARD)
    return (call, graph) if divided or in_loss else (sharded.calls[index], sharded)


def exchanges(
    graph: OpGraph, unit: Unit, split: Split | None, layout: Layout, config: Mapping[str, Any] = MappingProxyType({})
) -> Exchanges:
    """The collectives of a unit at the rank's local shapes; `config`: the model's, which tells where tokens go."""
    if split is None:
        return Exchanges()
    forward: list[CollectiveOp] = []
    backward: list[CollectiveOp] = []
    for region in _regions(graph, unit, split):
        everyone = region != split.moe or not split.own_tokens or _has_shared(graph, unit, split)
        if layout.tp > 1 and everyone:
            _tensor(graph, unit, split, layout, region, forward, backward)
        if region == split.moe and layout.ep > 1:
            _expert(graph, unit, layout, config, forward, backward)
    if layout.cp > 1:
        _context(graph, unit, layout, forward, backward)
    return Exchanges(tuple(forward), tuple(backward))


def _is_shared(path: str, split: Split) -> bool:
    """Whether a call belongs to the shared expert, which processes all tokens."""
    return f".{split.moe}.{split.shared}" in f".{path}"


def _has_shared(graph: OpGraph, unit: Unit, split: Split) -> bool:
    return any(_is_shared(graph.modules[graph.calls[i].module], split) for i in unit.forward)


def _regions(graph: OpGraph, unit: Unit, split: Split) -> list[str]:
    regions = (region_of(graph.modules[graph.calls[i].module], unit.name, split) for i in unit.forward)
    return [r for r in dict.fromkeys(regions) if r and r not in split.whole]


def _stream(graph: OpGraph, unit: Unit, region: str, split: Split) -> int:
    """Bytes of the activations that enter or leave a region: the last tensor of its kind (batch, tokens, hidden)."""
    inside = [i for i in unit.forward if _in(graph, i, unit, region, split)]
    if region in split.head:
        kind = graph.kinds[graph.calls[next(i for i in inside if _is_product(graph, i))].kind]
        return kind.inputs[-2].nbytes
    return graph.kinds[graph.calls[inside[-1]].kind].outputs[0].nbytes


def _in(graph: OpGraph, index: int, unit: Unit, region: str, split: Split) -> bool:
    return region_of(graph.modules[graph.calls[index].module], unit.name, split) == region


def _sources(graph: OpGraph, unit: Unit, region: str, split: Split) -> list[int]:
    """Bytes of the inputs of a region's products beside the first: the source of cross-attention's keys and values."""
    inside = [i for i in unit.forward if _in(graph, i, unit, region, split)]
    copied = {
        graph.calls[i].writes[0]: graph.calls[i].reads[0]
        for i in inside
        if graph.kinds[graph.calls[i].kind].name in ("aten._to_copy", "aten.clone")
    }
    made = {storage for i in inside for storage in graph.calls[i].writes if storage not in copied}
    entering: dict[int, int] = {}
    for i in inside:
        if _is_product(graph, i):
            storage = graph.calls[i].reads[-2]
            storage = copied.get(storage, storage)
            if storage not in made:
                entering.setdefault(storage, graph.kinds[graph.calls[i].kind].inputs[-2].nbytes)
    return list(entering.values())[1:]


def _is_product(graph: OpGraph, index: int) -> bool:
    return graph.kinds[graph.calls[index].kind].name in ("aten.mm", "aten.addmm", "pt.scaled_mm", "aten.bmm")


def _tensor(
    graph: OpGraph,
    unit: Unit,
    split: Split,
    layout: Layout,
    region: str,
    forward: list[CollectiveOp],
    backward: list[CollectiveOp],
) -> None:
    size = _stream(graph, unit, region, split)
    hidden = "products" if layout.overlap_tp else ""
    gather = CollectiveOp(TENSOR, "all_gather", size, behind=hidden)
    scatter = CollectiveOp(TENSOR, "reduce_scatter", size, behind=hidden)
    reduce = CollectiveOp(TENSOR, "all_reduce", size)
    again = CollectiveOp(TENSOR, "all_gather", size, behind="weights")
    scattered = CollectiveOp(TENSOR, "reduce_scatter", size, behind=hidden or "weights")
    sp = layout.sp
    if region in split.embedding:
        forward.append(scatter if sp else reduce)
        if sp:
            backward.append(gather)
        return
    if region in split.head:
        if sp:
            forward.append(gather)
        backward += [again, scattered] if sp else [CollectiveOp(TENSOR, "all_reduce", size, behind="weights")]
        # The loss over a divided vocabulary: largest logit, sum of exponentials, the label's own logit, in fp32.
        head = next(i for i in unit.forward if _in(graph, i, unit, region, split) and _is_product(graph, i))
        tokens = graph.kinds[graph.calls[head].kind].outputs[0].shape[0]
        forward += [CollectiveOp(TENSOR, "all_reduce", 4 * tokens, times=3)]
        return
    if sp:
        forward += [gather, scatter]
        backward += [gather, again, scattered]
    else:
        forward.append(reduce)
        # Megatron reduces the input's gradient while the weight gradients are computed.
        backward.append(CollectiveOp(TENSOR, "all_reduce", size, behind="weights"))
    for other in _sources(graph, unit, region, split) if region in split.cross else ():
        if sp:
            forward.append(replace(gather, nbytes=other))
            backward += [replace(again, nbytes=other), replace(scattered, nbytes=other)]
        else:
            backward.append(CollectiveOp(TENSOR, "all_reduce", other, behind="weights"))


def _expert(
    graph: OpGraph,
    unit: Unit,
    layout: Layout,
    config: Mapping[str, Any],
    forward: list[CollectiveOp],
    backward: list[CollectiveOp],
) -> None:
    """Sending tokens to their experts and back: one all-to-all each, in both passes."""
    routed = routed_tokens(graph, unit)
    if routed is None:
        return
    shards = layout.tp if layout.sp else 1
    size = int(routed.nbytes / shards * layout.expert_load)
    topk, groups, chosen = (int(config.get(name) or 0) for name in ("topk", "expert_groups", "topk_groups"))
    each = CollectiveOp(
        EXPERT,
        "all_to_all",
        size,
        times=2,
        behind="compute" if layout.overlap_ep else "",
        copies=topk if layout.dispatcher == "deepep" else 0,
        spread=chosen / groups if 0 < chosen < groups else 1.0,
    )
    forward.append(each)
    backward.append(each)


def routed_tokens(graph: OpGraph, unit: Unit) -> TensorSpec | None:
    """Tokens as they are sent to experts: (tokens x experts per token, hidden)."""
    for i in unit.forward:
        kind = graph.kinds[graph.calls[i].kind]
        if kind.name in GROUPED:
            tokens, hidden = kind.inputs[0].shape[-2:]
            # Tokens are sent in half precision, also where the following products are in fp8.
            return TensorSpec(
                (tokens, hidden), "bfloat16" if BYTES_PER_ELEMENT[kind.inputs[0].dtype] < 4 else "float32"
            )
    return None


def _context(
    graph: OpGraph, unit: Unit, layout: Layout, forward: list[CollectiveOp], backward: list[CollectiveOp]
) -> None:
    """Sending keys and values to the queries of every rank, and their gradients back."""
    for i in unit.forward:
        kind = graph.kinds[graph.calls[i].kind]
        if kind.name != "pt.attention":
            continue
        query, key, value = kind.inputs[:3]
        moved = key.nbytes + value.nbytes
        if layout.cp_comm == "all-to-all":
            size = query.nbytes + moved + kind.outputs[0].nbytes
            forward.append(CollectiveOp(CONTEXT, "all_to_all", size))
            backward.append(CollectiveOp(CONTEXT, "all_to_all", size))
        elif layout.cp_comm == "all-gather":
            forward.append(CollectiveOp(CONTEXT, "all_gather", moved * layout.cp))
            backward.append(CollectiveOp(CONTEXT, "all_gather", moved * layout.cp))
            backward.append(CollectiveOp(CONTEXT, "reduce_scatter", moved * layout.cp))
        else:
            steps = layout.cp - 1
            forward.append(CollectiveOp(CONTEXT, "send_recv", moved, times=steps, behind="attention"))
            backward.append(CollectiveOp(CONTEXT, "send_recv", 2 * moved, times=steps, behind="attention"))


def attention_parts(operator: str, layout: Layout) -> int:
    """How many times a rank runs an attention call of its part of the sequence: once per part of the keys.

    In a ring each rank holds two parts, one from each end of the sequence, so that a causal mask leaves every rank half
    of each step (arXiv:2310.01889, Megatron-LM's load balancing): cp causal calls. With all keys gathered, or the whole
    sequence for some of the heads (all-to-all), one call does the work of these cp.
    """
    return layout.cp if layout.cp > 1 and operator in _ATTENTION else 1
