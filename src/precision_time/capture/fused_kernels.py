"""Replaces operators of plain PyTorch by the fused kernels of training frameworks.

Megatron: scaled, masked softmax as one kernel (megatron/legacy/fused_kernels), bias + dropout + add, SwiGLU, rotary
embedding and cross-entropy by Transformer Engine or its own fused functions (megatron/core/fusions). llm-foundry: fused
cross-entropy (flash-attn's). NVIDIA's MXNet: batch norm channels last with the sum and ReLU that follow, which stores
one bit per activation for the way back, for instance norms as well (src/operator/nn/instance_norm_v2.cu); convolutions
that add their gradient to that of another branch (src/executor/inplace_addto_detect_pass.cc), and cuDNN's pooling,
which stores no indices (src/operator/nn/pooling.cu). A batch norm says that it is one (`of_batch`), because on some
GPUs it reads its input twice (`timing.traffic`). A fused kernel moves the bytes of its inputs and outputs, not of
intermediate tensors.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from precision_time.capture.fusion import fused_call
from precision_time.capture.graph import AttrValue, Call, OpGraph, OpSignature, Phase, TensorSpec
from precision_time.capture.replace_calls import Signatures, replace_calls

SOFTMAX, DROPOUT_ADD, SWIGLU, ROPE, CROSS_ENTROPY = "softmax", "dropout_add", "swiglu", "rope", "cross_entropy"
BATCH_NORM, POOLING, ADD_TO = "batch_norm", "pooling", "add_to"
FUSED: Mapping[str, frozenset[str]] = {
    "megatron": frozenset({SOFTMAX, DROPOUT_ADD, SWIGLU, ROPE, CROSS_ENTROPY}),
    "megatron-deepspeed": frozenset({SOFTMAX, DROPOUT_ADD}),
    "megatron-bridge": frozenset({SOFTMAX, DROPOUT_ADD, SWIGLU, ROPE, CROSS_ENTROPY}),
    "llm-foundry": frozenset({CROSS_ENTROPY}),
    "mxnet": frozenset({BATCH_NORM, POOLING, ADD_TO}),
}
"""What each framework fuses; other frameworks run PyTorch's own operators."""

MEASURES_TRAINING: Mapping[str, int] = {"llm-foundry": 2, "internevo": 2}
"""Metrics of the training batch that are cross-entropies of all logits, in fp32 under autocast: LanguageCrossEntropy
and LanguagePerplexity of llm-foundry's language models (`use_train_metrics`, on by default). InternEvo's AccPerplex
copies the logits, takes the largest, the exponentials and their sum, in fp32: about the traffic of two."""

FLOAT_LOSS = frozenset({"megatron-deepspeed"})
"""Frameworks whose cross-entropy of half-precision logits runs in fp32, one operator after another: a cast, the largest
logit, its subtraction, exponentials, their sum, the division by it; backward a product and a cast (Megatron-LM,
megatron/mpu/cross_entropy.py)."""

_CHAINS: tuple[tuple[str, tuple[str, ...]], ...] = (
    (SOFTMAX, ("mul", "masked_fill", "_softmax")),
    (SOFTMAX, ("_softmax_backward_data", "masked_fill", "mul")),
    (ROPE, ("mul", "neg", "cat", "mul", "add")),
    (ROPE, ("mul", "neg", "mul", "cat", "add")),
    (DROPOUT_ADD, ("native_dropout", "add")),
    (CROSS_ENTROPY, ("_log_softmax", "_to_copy", "nll_loss_forward")),
    (CROSS_ENTROPY, ("_log_softmax", "nll_loss_forward")),
    (CROSS_ENTROPY, ("nll_loss_backward", "_to_copy", "_log_softmax_backward_data")),
    (CROSS_ENTROPY, ("nll_loss_backward", "_log_softmax_backward_data")),
    (BATCH_NORM, ("native_batch_norm", "add_", "relu_")),
    (BATCH_NORM, ("native_batch_norm", "relu_")),
    (BATCH_NORM, ("native_batch_norm", "relu")),
    (BATCH_NORM, ("threshold_backward", "native_batch_norm_backward")),
    (BATCH_NORM, ("native_batch_norm",)),
    (BATCH_NORM, ("native_batch_norm_backward",)),
)
"""Neighbouring operators that become one, the longest first."""


def attention_kernel(graph: OpGraph, kernel: str) -> OpGraph:
    """The graph with its fused attention run by `kernel`; "flash" is the kernel that torch chooses.

    Since PyTorch 2.11 torch chooses the fastest kernel, cuDNN's on Hopper and Blackwell (sdp_utils.cpp,
    check_prefer_cudnn_attention); before, and in the flash-attn package, FlashAttention-2, which is `flash2`.
    """
    if kernel not in ("triton", "flash2"):
        return graph
    kinds = (
        replace(kind, attrs=(*kind.attrs, ("kernel", kernel))) if kind.name.startswith("pt.attention") else kind
        for kind in graph.kinds
    )
    return replace(graph, kinds=tuple(kinds))


def framework_kernels(graph: OpGraph, framework: str, images_last: bool = False) -> OpGraph:
    """The graph with the framework's fused kernels, and with the metrics that it computes in addition to the loss."""
    if framework in MEASURES_TRAINING:
        graph = _with_metrics(graph, MEASURES_TRAINING[framework])
    if framework in FLOAT_LOSS:
        graph = _with_float_loss(graph)
    fused = FUSED.get(framework, frozenset())
    if not images_last:
        fused -= {BATCH_NORM}
    if not fused:
        return graph
    if ADD_TO in fused:
        graph = _adding_to_gradients(graph)
    if POOLING in fused:
        graph = replace(graph, kinds=tuple(_without_indices(kind) for kind in graph.kinds))
    chains = [(fusion, names) for fusion, names in _CHAINS if fusion in fused]
    names = [graph.kinds[c.kind].name.removeprefix("aten.") for c in graph.calls]
    last_read = {storage: i for i, call in enumerate(graph.calls) for storage in call.reads}
    gates, removed = _gates(graph, names) if SWIGLU in fused else ({}, set())
    signatures = Signatures()
    calls: list[Call] = []
    new_positions: list[int] = []
    i = 0
    while i < len(names):
        length, fusion = _match(names, i, chains, graph)
        position = len(calls)
        if fusion:
            group = list(range(i, i + length))
            calls.append(_one(graph, group, fusion, last_read, signatures))
            new_positions.extend([position] * length)
            i += length
            continue
        swapped = gates.get(i, (graph.kinds[graph.calls[i].kind], graph.calls[i]))
        if swapped is not None:
            calls.append(replace(swapped[1], kind=signatures(swapped[0])))
        new_positions.append(max(len(calls) - 1, 0))
        i += 1
    changed = replace_calls(graph, signatures, calls, new_positions)
    storages = (replace(s, nbytes=0) if i in removed else s for i, s in enumerate(changed.storages))
    return replace(changed, storages=tuple(storages)) if removed else changed


def _match(
    names: Sequence[str], at: int, chains: Sequence[tuple[str, tuple[str, ...]]], graph: OpGraph
) -> tuple[int, str]:
    phase = graph.calls[at].phase
    for fusion, chain in chains:
        here = tuple(names[at : at + len(chain)])
        if here == chain and (phase is not Phase.BACKWARD) == (
            graph.calls[at + len(chain) - 1].phase is not Phase.BACKWARD
        ):
            return len(chain), fusion
    return 1, ""


def _one(graph: OpGraph, group: list[int], fusion: str, last_read: dict[int, int], signatures: Signatures) -> Call:
    if fusion == BATCH_NORM:
        return _batch_norm(graph, group, last_read, signatures)
    call = fused_call(graph, group, last_read, signatures)
    if fusion != SOFTMAX:
        return call
    # The fused softmax is a softmax still: a row is read, reduced twice and written.
    first, last = graph.calls[group[0]], graph.calls[group[-1]]
    softmax = next(
        graph.kinds[graph.calls[i].kind] for i in group if "softmax" in graph.kinds[graph.calls[i].kind].name
    )
    kind = OpSignature(softmax.name, softmax.inputs, softmax.outputs, (*softmax.attrs, ("fused", True)))
    return Call(signatures(kind), first.phase, first.module, first.views, first.reads, last.writes)


def _batch_norm(graph: OpGraph, group: list[int], last_read: dict[int, int], signatures: Signatures) -> Call:
    """A batch norm and its neighbours as one kernel; backward, the sign of the activation is a bit and not read."""
    found: list[OpSignature] = []

    def enter(kind: OpSignature) -> int:
        found.append(kind)
        return 0

    call = fused_call(graph, group, last_read, enter)
    backward = call.phase is Phase.BACKWARD
    activation = graph.calls[group[0]].reads[1] if backward and len(group) > 1 else None
    kept = [i for i, storage in enumerate(call.reads) if storage != activation]
    inputs, reads = tuple(found[0].inputs[i] for i in kept), tuple(call.reads[i] for i in kept)
    attributes: tuple[tuple[str, AttrValue], ...] = (("operators", len(group)), ("backward", backward))
    if all(len(spec.shape) < 2 or spec.shape[0] > 1 for spec in found[0].inputs):
        attributes += (("of_batch", True),)  # an instance norm is traced over one sample of samples x channels
    outputs = found[0].outputs
    order = sorted(range(len(outputs)), key=lambda i: -outputs[i].numel)  # the first names the kernel's dtype
    writes = tuple(call.writes[i] for i in order)
    kind = OpSignature("pt.fused_pointwise", inputs, tuple(outputs[i] for i in order), attributes)
    return replace(call, kind=signatures(kind), reads=reads, writes=writes)


def _adding_to_gradients(graph: OpGraph) -> OpGraph:
    """The graph whose convolutions add the gradient of their input to that of another branch, if it is there before.

    Such a kernel reads what it adds to (`add_to`), where PyTorch runs an addition that reads both and writes a third.
    """
    written = {storage: i for i, call in enumerate(graph.calls) for storage in call.writes}
    addition_of: dict[int, int] = {}
    for i, call in enumerate(graph.calls):
        kind = graph.kinds[call.kind]
        if call.phase is not Phase.BACKWARD or kind.name != "aten.add" or len(call.reads) != 2:
            continue
        earlier, last = sorted(written.get(storage, -1) for storage in call.reads)
        maker = graph.kinds[graph.calls[last].kind]
        # Gradients of weights that convolutions share are added as PyTorch does.
        of_input = maker.name == "aten.convolution_backward" and maker.inputs[1].shape == kind.outputs[0].shape
        if earlier < last < i and of_input:
            addition_of[last] = i
    removed = set(addition_of.values())
    signatures = Signatures()
    calls: list[Call] = []
    new_positions: list[int] = []
    for i, call in enumerate(graph.calls):
        kind = graph.kinds[call.kind]
        if i in removed:
            new_positions.append(len(calls) - 1)
            continue
        new_positions.append(len(calls))
        if i in addition_of:
            addition = graph.calls[addition_of[i]]
            (own,) = set(addition.reads) & set(call.writes)
            (other,) = set(addition.reads) - {own}
            kind = replace(kind, attrs=(*kind.attrs, ("add_to", True)))
            writes = tuple(addition.writes[0] if storage == own else storage for storage in call.writes)
            call = replace(call, reads=(*call.reads, other), writes=writes)
        calls.append(replace(call, kind=signatures(kind)))
    return replace_calls(graph, signatures, calls, new_positions)


def _without_indices(kind: OpSignature) -> OpSignature:
    """cuDNN's pooling reads its result on the way back instead of indices, and moves its tensors once."""
    if "_pool" not in kind.name or ("2d" not in kind.name and "3d" not in kind.name):
        return kind
    backward = kind.name.endswith("_backward")
    images = [s for s in kind.inputs if s.dtype != "int64"]
    inputs = (*images, images[0]) if backward and "max" in kind.name else tuple(images)
    return OpSignature("pt.fused_pointwise", inputs, kind.outputs[:1], (("operators", 1), ("backward", backward)))


def _gates(graph: OpGraph, names: Sequence[str]) -> tuple[dict[int, tuple[OpSignature, Call] | None], set[int]]:
    """The fused operators of SiLU(gate) x up by position, None for an operator that fusion removes; and the storages
    of tensors that are not materialised any more.

    Forward: SiLU is part of the product that reads its result. Backward: one kernel reads the gradient, gate and up and
    writes both gradients; the trace has two products and the backward of SiLU. SiLU alone (EfficientNet) stays.
    """
    replacements: dict[int, tuple[OpSignature, Call] | None] = {}
    removed: set[int] = set()
    silu_of = {s: i for i, call in enumerate(graph.calls) if names[i] == "silu" for s in call.writes}
    for i, call in enumerate(graph.calls):
        kind = graph.kinds[call.kind]
        silu = next((silu_of[s] for s in call.reads if s in silu_of), None)
        if silu is None or names[i] != "mul" or call.phase is Phase.BACKWARD or len({s.shape for s in kind.inputs}) > 1:
            continue
        activated, gate = graph.calls[silu].writes[0], graph.calls[silu].reads[0]
        up = next(s for s in call.reads if s != activated)
        replacements[silu], replacements[i] = None, (kind, replace(call, reads=(gate, up)))
        removed.add(activated)
        back = next(
            (j for j in range(i, len(names)) if names[j] == "silu_backward" and gate in graph.calls[j].reads), None
        )
        if back is None:
            continue
        reads = set(graph.calls[back].reads)
        for_gate = next(j for j in range(back, -1, -1) if reads & set(graph.calls[j].writes))
        for_up = next(j for j in range(i + 1, len(names)) if names[j] == "mul" and activated in graph.calls[j].reads)
        first = min(for_gate, for_up)
        gradient = next(s for s in graph.calls[for_up].reads if s != activated)
        wide = kind.outputs[0]
        replacements |= dict.fromkeys((for_gate, for_up, back))
        replacements[first] = (
            OpSignature("pt.fused_pointwise", (wide, wide, wide), (wide, wide), (("operators", 3),)),
            replace(
                graph.calls[first],
                reads=(gradient, gate, up),
                writes=(*graph.calls[back].writes, *graph.calls[for_up].writes),
            ),
        )
        removed.update(graph.calls[for_gate].writes)
    return replacements, removed


def _with_metrics(graph: OpGraph, count: int) -> OpGraph:
    """The graph with `count` further cross-entropies of the logits, forward only."""
    at = next((i for i, c in enumerate(graph.calls) if "nll_loss_forward" in graph.kinds[c.kind].name), None)
    softmax = next((c for c in graph.calls if graph.kinds[c.kind].name == "aten._log_softmax"), None)
    if at is None or softmax is None:
        return graph
    logits = graph.kinds[softmax.kind].inputs[0]
    wide = TensorSpec(logits.shape, "float32")
    row = TensorSpec(logits.shape[:1], "float32")
    extra = (
        OpSignature("aten._to_copy", (logits,), (wide,)),
        OpSignature("aten._log_softmax", (wide,), (wide,), (("dim", 1), ("half_to_float", False))),
        OpSignature("aten.nll_loss_forward", (wide, TensorSpec(logits.shape[:1], "int64")), (row,)),
    )
    signatures = Signatures()
    calls: list[Call] = []
    new_positions: list[int] = []
    for i, call in enumerate(graph.calls):
        new_positions.append(len(calls))
        calls.append(replace(call, kind=signatures(graph.kinds[call.kind])))
        if i == at:
            calls += [Call(signatures(kind), Phase.LOSS, call.module) for _ in range(count) for kind in extra]
    return replace_calls(graph, signatures, calls, new_positions)


def _with_float_loss(graph: OpGraph) -> OpGraph:
    """The graph with its cross-entropy of half-precision logits as `FLOAT_LOSS` has it."""
    signatures = Signatures()
    calls: list[Call] = []
    new_positions: list[int] = []
    for call in graph.calls:
        *before, last = _in_float(graph.kinds[call.kind])
        calls += [Call(signatures(kind), call.phase, call.module) for kind in before]
        new_positions.append(len(calls))
        calls.append(replace(call, kind=signatures(last)))
    return replace_calls(graph, signatures, calls, new_positions)


def _in_float(kind: OpSignature) -> list[OpSignature]:
    """The operators in place of one of a half-precision cross-entropy; any other is itself."""
    half = kind.outputs[0] if kind.outputs else None
    if half is None or half.dtype not in ("float16", "bfloat16"):
        return [kind]
    wide, row = TensorSpec(half.shape, "float32"), TensorSpec(half.shape[:1], "float32")
    rules = {
        "aten._log_softmax": (
            ("_to_copy", (half,), wide), ("amax", (wide,), row), ("sub_", (wide, row), wide), ("exp", (wide,), wide),
            ("sum", (wide,), row), ("div_", (wide, row), wide),
        ),
        "aten.nll_loss_backward": (("mul_", (wide, row), wide),),
        "aten._log_softmax_backward_data": (("_to_copy", (wide,), half),),
    }  # fmt: skip
    rule = rules.get(kind.name)
    if rule is None:
        return [kind]
    return [OpSignature(f"aten.{name}", inputs, (output,)) for name, inputs, output in rule]
