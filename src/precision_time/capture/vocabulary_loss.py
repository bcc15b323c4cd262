"""The cross-entropy of a language model's logits as other programs compute it: in fp32, or fused with the head.

`fp32`: transformers casts the logits before its loss (ForCausalLMLoss in transformers/loss/loss_utils.py, also under
autocast): a copy of 4 bytes an element beside the logits, and log-softmax and gradients of 4 bytes.

`liger`: Liger Kernel, Unsloth and others take the head into the loss and go over the tokens in chunks, each with the
product, the loss with its gradient in place of the logits, and the products for both gradients
(liger_kernel/ops/fused_linear_cross_entropy.py, 0.8.5). A chunk's logits are about as large as what goes into the head,
and no others are kept. The backward pass only scales the two gradients.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from precision_time.capture.graph import Call, Category, OpGraph, OpSignature, Phase, Storage, TensorSpec
from precision_time.capture.replace_calls import Signatures, replace_calls
from precision_time.errors import JobError

FLOAT, LIGER = "fp32", "liger"
_SOFTMAX, _SOFTMAX_BACKWARD = "aten._log_softmax", "aten._log_softmax_backward_data"
_CAST, _LOSS, _LOSS_BACKWARD = "aten._to_copy", "aten.nll_loss_forward", "aten.nll_loss_backward"
_HALF = ("float16", "bfloat16")
_MOST_CHUNKS = 4096


def with_loss(graph: OpGraph, loss: str) -> OpGraph:
    """The graph with the loss of that name. Raises `JobError` where `liger` finds no head and loss to fuse."""
    found = [chain for i in range(len(graph.calls)) if (chain := _chain(graph, i)) is not None]
    if loss == FLOAT:
        return _in_float(graph, [each for each in found if each.softmax_input.dtype in _HALF])
    if len(found) != 1 or (head := _head(graph, found[0])) is None:
        raise JobError(
            f"loss {loss} fuses the head of {graph.name} with its cross-entropy, and there is no such pair alone; "
            f"set loss to {FLOAT}, or leave it out"
        )
    return _chunked(graph, found[0], head)


@dataclass(frozen=True, slots=True)
class _Chain:
    """Positions of the calls of one cross-entropy; None for a cast that is not there.

    first, last  the first and the last call: casts of logits and of their gradient included
    """

    first: int
    softmax: int
    cast: int | None
    loss: int
    loss_backward: int
    cast_backward: int | None
    softmax_backward: int
    last: int
    softmax_input: TensorSpec

    @property
    def calls(self) -> list[int]:
        every = (self.first, self.softmax, self.cast, self.loss, self.loss_backward, self.cast_backward,
                 self.softmax_backward, self.last)  # fmt: skip
        return sorted({i for i in every if i is not None})


def _chain(graph: OpGraph, at: int) -> _Chain | None:
    """The cross-entropy whose log-softmax is call `at`."""
    if _name(graph, at) != _SOFTMAX or graph.calls[at].phase >= Phase.BACKWARD:
        return None
    reads, made = graph.calls[at].reads[0], graph.calls[at].writes[0]
    before = _writer(graph, reads)
    first = before if before is not None and _name(graph, before) == _CAST else at
    cast = _next(graph, at, made, _CAST)
    loss = _next(graph, at, graph.calls[cast].writes[0] if cast is not None else made, _LOSS)
    if loss is None:
        return None
    back = _next(graph, loss, graph.calls[loss].reads[0], _LOSS_BACKWARD)
    end = _next(graph, loss, made, _SOFTMAX_BACKWARD)
    if back is None or end is None:
        return None
    narrow = _next(graph, back, graph.calls[back].writes[0], _CAST)
    last = _next(graph, end, graph.calls[end].writes[0], _CAST) if first != at else None
    spec = graph.kinds[graph.calls[at].kind].inputs[0]
    return _Chain(first, at, cast, loss, back, narrow, end, end if last is None else last, spec)


def _name(graph: OpGraph, at: int) -> str:
    return graph.kinds[graph.calls[at].kind].name


def _writer(graph: OpGraph, storage: int) -> int | None:
    return next((i for i, call in enumerate(graph.calls) if storage in call.writes), None)


def _next(graph: OpGraph, at: int, storage: int, name: str) -> int | None:
    """The first call after `at` of this name that reads a storage."""
    after = range(at + 1, len(graph.calls))
    return next((i for i in after if storage in graph.calls[i].reads and _name(graph, i) == name), None)


# --- fp32


def _in_float(graph: OpGraph, chains: list[_Chain]) -> OpGraph:
    """The graph with logits cast to fp32 before the losses of `chains`, and their gradient cast back."""
    changes: dict[int, list[tuple[OpSignature, Call]]] = {}
    storages = list(graph.storages)
    kept: list[tuple[int, int, int, int]] = []
    for chain in chains:
        half = chain.softmax_input
        wide = replace(half, dtype="float32")
        calls = graph.calls
        softmax, loss, back, end = (
            calls[i] for i in (chain.softmax, chain.loss, chain.loss_backward, chain.softmax_backward)
        )
        logits, made, gradient, result = softmax.reads[0], softmax.writes[0], back.writes[0], end.writes[0]
        copy, of_copy = (_add(storages, Storage(wide.nbytes, -1, -1, Category.ACTIVATIONS)) for _ in range(2))
        for s in (made, gradient):
            storages[s] = replace(storages[s], nbytes=wide.nbytes)
        storages[gradient] = replace(storages[gradient], dies=chain.softmax_backward)
        kept.append((made, gradient, copy, of_copy))
        storages[copy] = replace(storages[copy], born=chain.softmax, dies=chain.loss)  # a name in the loss's function
        storages[of_copy] = replace(storages[of_copy], born=chain.softmax_backward, dies=chain.softmax_backward)
        changes |= {i: [] for i in (chain.cast, chain.cast_backward) if i is not None}
        changes[chain.softmax] = [
            (OpSignature(_CAST, (half,), (wide,)), replace(softmax, reads=(logits,), writes=(copy,))),
            (_as_float(graph, softmax), replace(softmax, reads=(copy,), writes=(made,))),
        ]
        changes[chain.loss] = [(_as_float(graph, loss), replace(loss, reads=(made, *loss.reads[1:])))]
        reads = tuple([made if s == loss.reads[0] else s for s in back.reads])
        changes[chain.loss_backward] = [(_as_float(graph, back), replace(back, reads=reads, writes=(gradient,)))]
        changes[chain.softmax_backward] = [
            (_as_float(graph, end), replace(end, reads=(gradient, made), writes=(of_copy,))),
            (OpSignature(_CAST, (wide,), (half,)), replace(end, reads=(of_copy,), writes=(result,))),
        ]
    changed = _changed(replace(graph, storages=tuple(storages)), changes)
    storages = list(changed.storages)
    for made, gradient, copy, of_copy in kept:  # a position stands for the last of the calls that replace one
        backward = _writer(changed, of_copy)
        storages[copy] = replace(storages[copy], born=_writer(changed, copy) or 0)
        storages[of_copy] = replace(storages[of_copy], born=backward or 0)
        for s in (made, gradient):
            storages[s] = replace(storages[s], dies=backward or 0)
    return replace(changed, storages=tuple(storages))


def _as_float(graph: OpGraph, call: Call) -> OpSignature:
    kind = graph.kinds[call.kind]

    def wide(specs: tuple[TensorSpec, ...]) -> tuple[TensorSpec, ...]:
        return tuple([replace(s, dtype="float32") if s.dtype in _HALF else s for s in specs])

    return replace(kind, inputs=wide(kind.inputs), outputs=wide(kind.outputs))


def _add(storages: list[Storage], storage: Storage) -> int:
    storages.append(storage)
    return len(storages) - 1


def _changed(graph: OpGraph, changes: dict[int, list[tuple[OpSignature, Call]]]) -> OpGraph:
    """The graph with other calls in place of some; lifetimes are those of positions before."""
    signatures = Signatures()
    calls: list[Call] = []
    positions: list[int] = []
    for i, call in enumerate(graph.calls):
        for kind, new in changes.get(i, [(graph.kinds[call.kind], call)]):
            calls.append(replace(new, kind=signatures(kind)))
        positions.append(max(len(calls) - 1, 0))
    return replace(replace_calls(graph, signatures, calls, positions), base=None)


# --- fused with the head


@dataclass(frozen=True, slots=True)
class _Head:
    """The calls of the product that gives the logits: forward, and of its gradients (None: the weight is frozen)."""

    forward: int
    of_weight: int | None
    of_input: int


def _head(graph: OpGraph, chain: _Chain) -> _Head | None:
    """The head before a cross-entropy; None where something else stands between them, or it has a bias."""
    logits = graph.calls[chain.first].reads[0]
    forward = _writer(graph, logits)
    if forward is None or _name(graph, forward) != "aten.mm":
        return None
    weight, gradient = graph.calls[forward].reads[1], graph.calls[chain.last].writes[0]
    readers = [i for i in range(chain.last + 1, len(graph.calls)) if gradient in graph.calls[i].reads]
    if any(_name(graph, i) != "aten.mm" for i in readers) or len(readers) > 2:
        return None
    of_input = next((i for i in readers if weight in graph.calls[i].reads), None)
    of_weight = next((i for i in readers if weight not in graph.calls[i].reads), None)
    return None if of_input is None else _Head(forward, of_weight, of_input)


def chunks(tokens: int, hidden: int, vocabulary: int) -> tuple[int, int]:
    """Tokens of a chunk and the number of chunks: logits of a chunk are about as large as what goes into the head."""
    share = -(-tokens // -(-vocabulary // hidden))
    size = min(1 << (share - 1).bit_length(), tokens)
    return size, -(-tokens // size)


def _chunked(graph: OpGraph, chain: _Chain, head: _Head) -> OpGraph:
    """The graph with the head and its loss as one function over chunks of tokens."""
    product = graph.calls[head.forward]
    kind = graph.kinds[product.kind]
    (tokens, hidden), vocabulary, dtype = kind.inputs[0].shape, kind.inputs[1].shape[1], kind.inputs[0].dtype
    size, count = chunks(tokens, hidden, vocabulary)
    if count > _MOST_CHUNKS:
        raise JobError(f"loss {LIGER} has {count} chunks of {size} tokens; more than {_MOST_CHUNKS} are not modelled")
    x, weight = product.reads[:2]
    of_input = graph.calls[head.of_input].writes[0]
    of_weight = None if head.of_weight is None else graph.calls[head.of_weight].writes[0]
    made = len(graph.storages)
    whole, wide = TensorSpec((vocabulary, hidden), dtype), TensorSpec((tokens, hidden), dtype)
    calls: list[tuple[OpSignature, Call]] = []

    def add(name: str, before: tuple[TensorSpec, ...], after: TensorSpec, reads: tuple[int, ...], writes: int,
            phase: Phase = Phase.LOSS) -> None:  # fmt: skip
        signature = OpSignature(name, before, (after,), (("operators", 8),) if name == "pt.fused_pointwise" else ())
        calls.append((signature, Call(0, phase, product.module, 0, reads, (writes,))))

    add("aten.zeros_like", (wide,), wide, (x,), of_input)
    if of_weight is not None:
        add("aten.zeros_like", (whole,), whole, (weight,), of_weight)
    for chunk in range(count):
        rows = min(size, tokens - chunk * size)
        part, logits = TensorSpec((rows, hidden), dtype), TensorSpec((rows, vocabulary), dtype)
        add("aten.mm", (part, TensorSpec((hidden, vocabulary), dtype)), logits, (x, weight), made)
        add("pt.fused_pointwise", (logits, logits), logits, (made,), made)  # read for the sum, then read and written
        add("aten.mm", (logits, whole), part, (made, weight), of_input)
        if of_weight is not None:
            turned = TensorSpec((vocabulary, rows), dtype)
            add("aten.addmm", (whole, turned, part), whole, (of_weight, made, x), of_weight)
    loss = graph.calls[chain.loss]
    add("aten.sum", (TensorSpec((tokens,), "float32"),), TensorSpec((), "float32"), (made,), loss.writes[0])
    forward = len(calls)
    add("aten.mul_", (wide,), wide, (of_input,), of_input, Phase.BACKWARD)
    if of_weight is not None:
        add("aten.mul_", (whole,), whole, (of_weight,), of_weight, Phase.BACKWARD)
    return _fused(graph, chain, head, (calls[:forward], calls[forward:]), size * vocabulary * _width(dtype))


def _width(dtype: str) -> int:
    return TensorSpec((1,), dtype).nbytes


def _fused(
    graph: OpGraph,
    chain: _Chain,
    head: _Head,
    new: tuple[list[tuple[OpSignature, Call]], list[tuple[OpSignature, Call]]],
    nbytes: int,
) -> OpGraph:
    """The graph with the new calls of the forward and backward pass; `nbytes` are those of a chunk's logits."""
    gone = {*chain.calls, head.forward, head.of_input, *(() if head.of_weight is None else (head.of_weight,))}
    changes: dict[int, list[tuple[OpSignature, Call]]] = {i: [] for i in gone}
    changes[chain.loss], changes[chain.last] = new
    written = [graph.calls[i].writes[0] for i in (head.of_input, head.of_weight) if i is not None]
    storages = list(graph.storages)
    for s in graph.calls[head.forward].reads:  # the backward pass no longer reads what went into the head
        readers = [i for i, call in enumerate(graph.calls) if s in call.reads and i not in gone]
        if s >= len(graph.parameters) and storages[s].dies in gone and not any(i > chain.loss for i in readers):
            storages[s] = replace(storages[s], dies=chain.loss)
    changed = _changed(replace(graph, storages=tuple(storages)), changes)
    first = next(i for i, call in enumerate(changed.calls) if written[0] in call.writes)
    last = next(i for i, call in reversed(list(enumerate(changed.calls))) if call.phase is Phase.LOSS)
    storages = list(changed.storages)
    for s in written:
        storages[s] = replace(storages[s], born=first)
    storages.append(Storage(nbytes, first, last, Category.ACTIVATIONS))
    return replace(changed, storages=tuple(storages))
