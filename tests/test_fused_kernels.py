"""What frameworks fuse by hand: the calls that vanish, and bytes in and out worked out here."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from precision_time.capture.captured_model import capture_model
from precision_time.capture.fused_kernels import FLOAT_LOSS, FUSED, MEASURES_TRAINING, framework_kernels
from precision_time.capture.graph import Call, Category, OpGraph, OpSignature, Phase, Storage, TensorSpec
from precision_time.capture.layers import AFTER, BEFORE, layered
from precision_time.capture.training_step import training_step
from precision_time.hardware import catalog
from precision_time.job import Job
from precision_time.prediction import work_options
from precision_time.timing.operators import WorkOptions, works

BATCH, SEQ = 2, 512


def graph_of(model: str, framework: str, **fields: object) -> OpGraph:
    """The traced step of three layers, or of the named model where it is not divided."""
    job = Job(model, precision="bf16", input={"seq_len": SEQ}, batch_size=BATCH, framework=framework, **fields)  # type: ignore[arg-type]
    return training_step(job).layers.graph


def names(graph: OpGraph, *phases: Phase) -> Counter[str]:
    return Counter(
        graph.kinds[c.kind].name.removeprefix("aten.") for c in graph.calls if not phases or c.phase in phases
    )


def inside(graph: OpGraph, module: str, phase: Phase, name: str) -> list[OpSignature]:
    calls = (c for c in graph.calls if graph.modules[c.module] == module and c.phase is phase)
    return [graph.kinds[c.kind] for c in calls if graph.kinds[c.kind].name == name]


def moved(kind: OpSignature) -> tuple[int, int]:
    return sum(s.nbytes for s in kind.inputs), sum(s.nbytes for s in kind.outputs)


def test_other_frameworks_run_the_operators_of_pytorch() -> None:
    graph = graph_of("llama3-8b", "pytorch")
    for framework in ("pytorch", "deepspeed", "torchtitan"):
        assert framework not in FUSED
        assert framework_kernels(graph, framework) is graph


FFN = 2 * BATCH * SEQ * 14336
"""Bytes of gate, of up, of either one's gradient in bf16."""


def saved(graph: OpGraph) -> int:
    """Bytes that a block's forward pass leaves for its backward pass."""
    forward = set(layered(graph).units[1].forward)
    end = max(i for i, c in enumerate(graph.calls) if c.phase < Phase.BACKWARD)
    return sum(
        s.nbytes for s in graph.storages if s.category is Category.ACTIVATIONS and s.born in forward and s.dies > end
    )


def test_swiglu_is_one_kernel_each_way() -> None:
    plain, fused = graph_of("llama3-8b", "pytorch"), graph_of("llama3-8b", "megatron")
    assert names(plain)["silu"] == names(plain)["silu_backward"] == 3
    assert names(fused)["silu"] == names(fused)["silu_backward"] == 0
    ffn = "blocks.1.ffn"
    assert [moved(k) for k in inside(fused, ffn, Phase.FORWARD, "aten.mul")] == [(2 * FFN, FFN)]
    assert [moved(k) for k in inside(fused, ffn, Phase.BACKWARD, "pt.fused_pointwise")] == [(3 * FFN, 2 * FFN)]
    assert not inside(fused, ffn, Phase.BACKWARD, "aten.mul")
    # Gate, up and their product wait for the backward pass; SiLU's result does not.
    assert saved(plain) - saved(fused) == FFN


def test_the_fused_swiglu_reads_and_writes_the_traced_tensors() -> None:
    """What is read was written before, what the products around it read is written by it."""
    fused = graph_of("llama3-8b", "megatron")
    written = {s for s, storage in enumerate(fused.storages) if storage.born < 0}
    for call in fused.calls:
        assert written.issuperset(call.reads), fused.kinds[call.kind].name
        written.update(call.writes)


def test_silu_alone_stays() -> None:
    graph = capture_model(Job("efficientnet-b0", precision="bf16")).graph
    assert names(graph)["silu_"] == names(graph)["silu_backward"] > 0
    fused = names(framework_kernels(graph, "megatron"))
    assert fused["silu_"] == fused["silu_backward"] == names(graph)["silu_"]


@pytest.mark.parametrize(("phase", "heads"), [(Phase.FORWARD, (32, 8)), (Phase.BACKWARD, (8, 32))])
def test_rotary_embedding_is_one_kernel_for_queries_and_one_for_keys(phase: Phase, heads: tuple[int, int]) -> None:
    fused = graph_of("llama3-8b", "megatron")
    table = 2 * SEQ * 128
    sizes = [2 * BATCH * h * SEQ * 128 for h in heads]
    kernels = inside(fused, "blocks.1.attention", phase, "pt.fused_pointwise")
    assert [moved(k) for k in kernels] == [(size + 2 * table, size) for size in sizes]
    for name in ("neg", "cat"):
        assert not inside(fused, "blocks.1.attention", phase, f"aten.{name}")


def test_the_loss_is_one_kernel_each_way() -> None:
    fused = graph_of("llama3-8b", "megatron")
    logits, labels = 2 * BATCH * SEQ * 128256, 8 * BATCH * SEQ
    loss = [fused.kinds[c.kind] for c in fused.calls if c.phase is Phase.LOSS]
    assert [k.name for k in loss] == ["pt.fused_pointwise"]
    assert moved(loss[0]) == (logits + labels, logits + 2 + 2)  # log-probabilities, loss, count
    back = inside(fused, "", Phase.BACKWARD, "pt.fused_pointwise")
    assert [moved(k) for k in back] == [(2 + logits + labels + 2, logits)]
    assert names(fused)["_log_softmax"] == names(fused)["nll_loss_forward"] == 0


def test_dropout_and_the_addition_are_one_kernel() -> None:
    plain, fused = graph_of("gpt2", "pytorch"), graph_of("gpt2", "megatron-deepspeed")
    assert names(plain)["native_dropout"] == 7  # two in each of three blocks, one behind the embedding
    assert names(fused)["native_dropout"] == 1
    stream = 2 * BATCH * SEQ * 768
    kernels = inside(fused, "blocks.1.dropout", Phase.FORWARD, "pt.fused_pointwise")
    assert [moved(k) for k in kernels] == [(2 * stream, stream + stream // 2)] * 2  # the sum and a mask of bytes
    assert names(fused, Phase.BACKWARD)["native_dropout_backward"] == 7


def test_scaled_masked_softmax_is_a_softmax() -> None:
    plain, fused = (graph_of("gpt", framework, attention="math") for framework in ("pytorch", "megatron"))
    scores = 2 * BATCH * 12 * SEQ * SEQ
    for phase, name, reads in ((Phase.FORWARD, "aten._softmax", 1), (Phase.BACKWARD, "aten._softmax_backward_data", 2)):
        kernels = inside(fused, "blocks.1.attention", phase, name)
        assert [moved(k) for k in kernels] == [(reads * scores, scores)]
        assert {len(works(k, WorkOptions()) or []) for k in kernels} == {1}  # backward PyTorch has two
        assert inside(plain, "blocks.1.attention", phase, "aten.masked_fill")
        assert not inside(fused, "blocks.1.attention", phase, "aten.masked_fill")
        assert not inside(fused, "blocks.1.attention", phase, "aten.mul")


def image_graph(model: str, framework: str, memory_format: str = "nhwc") -> OpGraph:
    job = Job(model, precision="fp16", batch_size=8, framework=framework, memory_format=memory_format)
    return training_step(job).graph


def test_batch_norm_of_mxnet_is_one_kernel_with_its_sum_and_relu() -> None:
    """ResNet-50 has 53 norms: 33 with ReLU, 16 with sum and ReLU, 4 of shortcuts alone; and one pooling."""
    plain, fused = (image_graph("resnet50", framework) for framework in ("pytorch", "mxnet"))
    forward, backward = names(fused, Phase.FORWARD), names(fused, Phase.BACKWARD)
    assert (forward["pt.fused_pointwise"], forward["native_batch_norm"], forward["relu_"]) == (54, 0, 0)
    assert (backward["pt.fused_pointwise"], backward["threshold_backward"]) == (54, 0)
    assert names(plain)["convolution"] == names(fused)["convolution"] == 53
    x = 8 * 64 * 112 * 112 * 2  # bytes of the first activation in half precision
    first = next(k for k in fused.kinds if k.name == "pt.fused_pointwise" and not k.attr("backward"))
    assert moved(first)[0] == pytest.approx(x, rel=0.001)  # read once, and the channels' terms
    assert moved(first)[1] == pytest.approx(x, rel=0.001)
    kinds = [fused.kinds[c.kind] for c in fused.calls if c.phase is Phase.BACKWARD]
    last = [k for k in kinds if k.name == "pt.fused_pointwise"][-1]
    assert moved(last)[0] == pytest.approx(2 * x, rel=0.001)  # the gradient and what was normed, not the activation
    assert moved(last)[1] == pytest.approx(x, rel=0.001)
    assert {k.outputs[0].dtype for k in kinds if k.name == "pt.fused_pointwise"} == {"float16"}


def test_batch_norm_of_mxnet_reads_twice_forward_and_backward_before_hopper() -> None:
    """Forward it reads the input twice and writes once; backward it reads gradient and input once or twice."""
    job, volta, ada = Job("resnet50", framework="mxnet"), catalog.gpu("v100-16gb-sxm"), catalog.gpu("l40s")
    once, twice = work_options(job, ada), work_options(job, volta)
    assert (once.separate_statistics, twice.separate_statistics) == (False, True)
    assert not work_options(Job("resnet50"), volta).separate_statistics
    fused = image_graph("resnet50", "mxnet")
    kinds = [k for k in fused.kinds if k.name == "pt.fused_pointwise" and k.attr("of_batch")]
    for kind, tensors in ((kinds[0], (3, 3)), (kinds[-1], (3, 5))):
        x = max(s.nbytes for s in kind.outputs)
        for options, count in zip((once, twice), tensors, strict=True):
            (work,) = works(kind, options) or []
            assert work.bytes == pytest.approx(count * x, rel=0.001)
    assert not any(k.attr("of_batch") for k in image_graph("unet3d", "mxnet").kinds)  # instance norms


def test_instance_norm_of_mxnet_is_the_same_kernel() -> None:
    plain, fused = (image_graph("unet3d", framework) for framework in ("pytorch", "mxnet"))
    count = names(plain)["native_batch_norm"]
    assert count == names(plain)["relu"] == names(fused, Phase.FORWARD)["pt.fused_pointwise"] > 20
    assert names(fused)["native_batch_norm"] == names(fused)["relu"] == names(fused)["threshold_backward"] == 0
    x = 8 * 32 * 128**3 * 2
    first = next(k for k in fused.kinds if k.name == "pt.fused_pointwise")
    assert moved(first) == pytest.approx((x, x), rel=0.001)


@pytest.mark.parametrize("memory_format", ["nhwc", "nchw"])
def test_convolutions_of_mxnet_add_to_the_gradient_of_the_other_branch(memory_format: str) -> None:
    """Each of 16 blocks of ResNet-50 has two branches, whose gradients PyTorch adds in an operator."""
    plain, fused = (image_graph("resnet50", framework, memory_format) for framework in ("pytorch", "mxnet"))
    adding = [c for c in fused.calls if fused.kinds[c.kind].attr("add_to")]
    assert len(adding) == names(plain, Phase.BACKWARD)["add"] - names(fused, Phase.BACKWARD)["add"] == 16
    written = {s for c in fused.calls for s in c.writes}
    for call in adding:
        kind = fused.kinds[call.kind]
        assert kind.name == "aten.convolution_backward"
        before = {s for c in fused.calls[: fused.calls.index(call)] for s in c.writes}
        other = call.reads[-1]
        assert other in before
        assert fused.storages[call.writes[0]].nbytes == kind.inputs[1].nbytes
        assert call.writes[0] in {s for c in fused.calls for s in c.reads}
    assert all(fused.storages[s].nbytes > 0 for s in written)
    options = WorkOptions(channels_last=memory_format == "nhwc")
    kind = fused.kinds[adding[-1].kind]
    own = replace(kind, attrs=tuple(a for a in kind.attrs if a[0] != "add_to"))
    (dgrad, wgrad), (alone, same) = works(kind, options) or (), works(own, options) or ()
    assert dgrad.bytes - alone.bytes == kind.inputs[1].nbytes == kind.outputs[0].nbytes  # read once more
    assert (wgrad.bytes, dgrad.flops) == (same.bytes, alone.flops)


def test_a_gradient_that_comes_after_that_of_a_convolution_is_added_apart() -> None:
    """`b` of a convolution is written first, `a` of another operator last: nothing is there that `b` could add to."""
    half = TensorSpec((2, 4, 8, 8), "float16")
    weight = TensorSpec((4, 4, 1, 1), "float16")
    mask = (("output_mask", (True, False, False)),)
    kinds = (
        OpSignature("aten.convolution_backward", (half, half, weight), (half,), mask),
        OpSignature("aten.threshold_backward", (half, half), (half,)),
        OpSignature("aten.add", (half, half), (half,)),
    )

    def graph(*order: int) -> OpGraph:
        calls = {
            0: Call(0, Phase.BACKWARD, 0, 0, (0, 1, 2), (3,)),
            1: Call(1, Phase.BACKWARD, 0, 0, (0, 1), (4,)),
            2: Call(2, Phase.BACKWARD, 0, 0, (3, 4), (5,)),
        }
        storages = tuple(Storage(half.nbytes, 0, 3, Category.ACTIVATIONS) for _ in range(6))
        return OpGraph("made", kinds, tuple(calls[i] for i in order), ("",), storages, (), 0)

    assert names(framework_kernels(graph(0, 1, 2), "mxnet"))["add"] == 1
    added = framework_kernels(graph(1, 0, 2), "mxnet")
    assert names(added)["add"] == 0
    assert (added.calls[-1].reads, added.calls[-1].writes) == ((0, 1, 2, 4), (5,))
    assert added.storages[3].nbytes == 0  # never there


def test_gradients_of_shared_weights_are_added_apart() -> None:
    half, weight = TensorSpec((2, 4, 8, 8), "float16"), TensorSpec((4, 4, 1, 1), "float16")
    kinds = (
        OpSignature("aten.convolution_backward", (half, half, weight), (half, weight)),
        OpSignature("aten.add", (weight, weight), (weight,)),
    )
    calls = (
        Call(0, Phase.BACKWARD, 0, 0, (0, 1, 2), (3, 4)),
        Call(0, Phase.BACKWARD, 0, 0, (3, 1, 2), (5, 6)),
        Call(1, Phase.BACKWARD, 0, 0, (4, 6), (7,)),
    )
    storages = tuple(Storage(half.nbytes, 0, 3, Category.ACTIVATIONS) for _ in range(8))
    assert names(framework_kernels(OpGraph("made", kinds, calls, ("",), storages, (), 0), "mxnet"))["add"] == 1


def test_pooling_of_mxnet_stores_no_indices() -> None:
    plain, fused = (image_graph("resnet50", framework, "nchw") for framework in ("pytorch", "mxnet"))
    large, small = 8 * 64 * 112 * 112 * 2, 8 * 64 * 56 * 56 * 2
    found = [fused.kinds[c.kind] for c in fused.calls if fused.kinds[c.kind].name == "pt.fused_pointwise"]
    assert [moved(k) for k in found] == [(large, small), (small + large + small, large)]
    (indexed,) = (k for k in plain.kinds if k.name == "aten.max_pool2d_with_indices")
    assert moved(indexed) == (large, small + small // 2 * 8)
    assert names(plain)["native_batch_norm"] == names(fused)["native_batch_norm"] == 53  # NCHW: cuDNN's, as PyTorch's


@pytest.mark.parametrize("model", ["gpt2", "llama3-8b", "qwen3"])
@pytest.mark.parametrize("framework", sorted(FUSED))
def test_products_weights_and_order_stay(model: str, framework: str) -> None:
    if model == "qwen3":
        job = Job("llama3-8b", model_config={"qk_norm": 1}, precision="bf16", batch_size=2, input={"seq_len": SEQ})
        graph = training_step(job).layers.graph
    else:
        graph = graph_of(model, "pytorch")
    fused = framework_kernels(graph, framework)
    longer = framework in MEASURES_TRAINING or framework in FLOAT_LOSS  # losses of their own, or of more operators
    assert longer or len(fused.calls) <= len(graph.calls)
    for name in ("mm", "addmm", "pt.attention", "pt.attention_backward", "embedding", "pt.rms_norm"):
        assert names(fused)[name] == names(graph)[name]
    assert [replace(p, ready=0) for p in fused.parameters] == [replace(p, ready=0) for p in graph.parameters]
    ready = [p.ready for p in fused.parameters]
    assert sorted(range(len(ready)), key=lambda i: (graph.parameters[i].ready, i)) == sorted(
        range(len(ready)), key=lambda i: (ready[i], graph.parameters[i].ready, i)
    )
    assert [c.phase for c in fused.calls] == sorted(c.phase for c in fused.calls)
    for storage in fused.storages:
        assert storage.category is Category.WEIGHTS or -1 <= storage.born <= storage.dies <= len(fused.calls)
    units = layered(fused)
    assert [units.units[i].name in (BEFORE, AFTER) for i in units.order] == [True, False, False, False, True]


def test_megatrons_loss_of_half_precision_logits_runs_in_fp32() -> None:
    """Bytes per logit: cast 2 + 4, largest 4, difference 4 + 4, exponential 4 + 4, sum 4, quotient 4 + 4; back 4 + 4
    for the product and 4 + 2 for the cast."""
    found = graph_of("gpt2", "megatron-deepspeed")
    logits, rows = BATCH * SEQ * 50257, BATCH * SEQ
    loss = [found.kinds[c.kind] for c in found.calls if c.phase is Phase.LOSS and "nll" not in found.kinds[c.kind].name]
    assert [k.name.removeprefix("aten.") for k in loss] == ["_to_copy", "amax", "sub_", "exp", "sum", "div_"]
    assert sum(sum(moved(k)) for k in loss) == 38 * logits + 4 * 4 * rows
    back = [k for name in ("mul_", "_to_copy") for k in inside(found, "", Phase.BACKWARD, f"aten.{name}")]
    assert sum(sum(moved(k)) for k in back) == 14 * logits + 4 * rows
    assert names(found)["_log_softmax"] == names(found)["_log_softmax_backward_data"] == 0


def test_a_loss_in_fp32_stays_as_it_is() -> None:
    job = Job("gpt2", precision="fp32", input={"seq_len": SEQ}, batch_size=BATCH, framework="megatron-deepspeed")
    assert names(training_step(job).layers.graph)["_log_softmax"] == 1
