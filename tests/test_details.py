"""Details of what runs: operators, dtypes and bytes of a step, against steps really executed and against sums by hand.

docs/details.md lists the details; what they cost in time is in test_details_time.py.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402
from torch.utils._pytree import tree_leaves  # noqa: E402
from torch.utils.flop_counter import FlopCounterMode  # noqa: E402

from networks import Block, cnn, cross_entropy, names, only, rows, total, trace, transformer  # noqa: E402
from precision_time.capture.graph import Category, OpGraph, OpSignature, Parameter, Phase, TensorSpec  # noqa: E402
from precision_time.capture.layers import layered  # noqa: E402
from precision_time.capture.optimizer import Tail, tail  # noqa: E402
from precision_time.capture.trace import trace_entry  # noqa: E402
from precision_time.job.precision import PRECISIONS  # noqa: E402
from precision_time.layout.buckets import stage_buckets  # noqa: E402
from precision_time.layout.program import Chunk  # noqa: E402
from precision_time.timing.operators import WorkOptions, works  # noqa: E402
from precision_time.timing.work import Work  # noqa: E402
from precision_time.zoo.catalog import ENTRIES  # noqa: E402
from precision_time.zoo.workload import Workload  # noqa: E402


class Recorder(TorchDispatchMode):
    """Operators dispatched on real tensors; `free` counts views and allocations, which run no kernel."""

    def __init__(self) -> None:
        super().__init__()
        self.operators: list[str] = []
        self.free = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        blocks = {t.untyped_storage().data_ptr() for t in tree_leaves((args, kwargs)) if isinstance(t, torch.Tensor)}
        results = [t for t in tree_leaves(out) if isinstance(t, torch.Tensor)]
        view = not func._schema.is_mutable and results and results[0].untyped_storage().data_ptr() in blocks
        name = func._schema.name.removeprefix("aten::")
        if view or name.startswith(("empty", "new_empty")):
            self.free += 1
        else:
            self.operators.append(name)
        return out


def executed(build: Callable[[], Workload], autocast: bool = False) -> tuple[Recorder, Recorder]:
    """Forward with loss, and backward, as the CPU runs them."""
    workload = build()
    workload.module.train()
    forward, backward = Recorder(), Recorder()
    with forward, torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
        loss = workload.loss(workload.module, workload.inputs)
    with backward:
        loss.backward()
    return forward, backward


def counts(graph: OpGraph, *phases: Phase) -> dict[str, int]:
    return dict(names(graph, *phases))


def all_works(graph: OpGraph, *phases: Phase) -> list[Work]:
    return [work for _, kind in rows(graph, *phases) for work in works(kind, WorkOptions()) or []]


def product_flops(graph: OpGraph, *phases: Phase) -> float:
    return sum(work.flops for work in all_works(graph, *phases) if work.math != "vector")


# --- dropout, weight norm and activations in place --------------------------------------------------------------


def after_a_convolution(*layers: nn.Module) -> Workload:
    return total(nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), *layers), torch.ones(2, 3, 8, 8))


ACTIVATIONS: dict[str, tuple[Callable[[], Workload], int]] = {
    # autograd keeps a copy of what is overwritten where the derivative needs the input, none where the output will do
    "relu in place": (lambda: after_a_convolution(nn.BatchNorm2d(8), nn.ReLU(inplace=True)), 0),
    "silu in place": (lambda: after_a_convolution(nn.BatchNorm2d(8), nn.SiLU(inplace=True)), 1),
    "hardswish in place": (lambda: after_a_convolution(nn.BatchNorm2d(8), nn.Hardswish(inplace=True)), 1),
    "silu": (lambda: after_a_convolution(nn.BatchNorm2d(8), nn.SiLU()), 0),
    "leaky relu on an instance norm's view": (
        lambda: after_a_convolution(nn.InstanceNorm2d(8, affine=True), nn.LeakyReLU(0.01, inplace=True)), 0,
    ),
    "silu on a group norm": (lambda: after_a_convolution(nn.GroupNorm(2, 8), nn.SiLU(inplace=True)), 1),
}  # fmt: skip


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activations_in_place_copy_what_a_real_step_copies(name: str) -> None:
    build, copies = ACTIVATIONS[name]
    forward, backward = executed(build)
    graph = trace(build)
    assert counts(graph, Phase.FORWARD, Phase.LOSS) == Counter(forward.operators)
    assert counts(graph, Phase.BACKWARD) == Counter(backward.operators)
    assert counts(graph, Phase.FORWARD).get("clone", 0) == copies


@pytest.mark.parametrize(
    "wrap", [nn.utils.parametrizations.weight_norm, torch.nn.utils.weight_norm], ids=["new", "old"]
)
@pytest.mark.filterwarnings("ignore:.*weight_norm.*:FutureWarning")
def test_weight_norm_is_one_kernel_each_way(wrap: Any) -> None:
    def build() -> Workload:
        return total(wrap(nn.Conv1d(4, 8, 3)), torch.ones(2, 4, 16))

    forward, backward = executed(build)
    graph = trace(build)
    assert counts(graph, Phase.FORWARD, Phase.LOSS) == Counter(forward.operators)
    # The gradient of a sum is expanded; CUDA's convolution copies it, which an operator of a CPU does not show.
    assert counts(graph, Phase.BACKWARD) == Counter([*backward.operators, "clone"])
    assert counts(graph)["_weight_norm_interface"] == counts(graph)["_weight_norm_interface_backward"] == 1


@pytest.mark.parametrize(("regime", "width"), [("full", 4), ("half", 2)])
def test_dropout_is_one_pass_where_a_cpu_runs_three_kernels(regime: str, width: int) -> None:
    """One kernel: input read, output and a mask of bytes written; back the gradient and the mask read, one written."""

    def build() -> Workload:
        return after_a_convolution(nn.Dropout(0.1))

    graph = trace(build, regime)
    elements = 2 * 8 * 8 * 8
    for name in ("aten.native_dropout", "aten.native_dropout_backward"):
        (work,) = works(only(graph, name), WorkOptions()) or []
        assert work.bytes == elements * (2 * width + 1)
        assert work.launches == 1
    forward, backward = executed(build)
    assert forward.operators[1:4] == ["bernoulli_", "div_", "mul"]
    assert "mul" in backward.operators


# --- casts and the residual stream ------------------------------------------------------------------------------


def cast_elements(graph: OpGraph, source: str, *phases: Phase) -> int:
    """Elements of all casts from that dtype; a cast moves 4 + 2 bytes for each, either way."""
    casts = [k for _, k in rows(graph, *phases) if k.name == "aten._to_copy" and k.inputs[0].dtype == source]
    assert all(k.inputs[0].nbytes + k.outputs[0].nbytes == 6 * k.inputs[0].numel for k in casts)
    return sum(k.inputs[0].numel for k in casts)


def test_casts_around_an_fp32_residual_stream() -> None:
    """A pre-norm block under autocast: its input, both residual sums and both norms are fp32, all products bf16."""
    batch, length, hidden = 2, 8, 32

    def build() -> Workload:
        def loss(module: nn.Module, inputs: dict[str, torch.Tensor]) -> torch.Tensor:
            return F.mse_loss(module(inputs["x"]), inputs["target"])

        x = torch.ones(batch, length, hidden)
        return Workload(Block(hidden, 4, True), {"x": x, "target": torch.zeros(batch, length, hidden)}, loss)

    graph = trace(build, "autocast")
    stream = batch * length * hidden
    weights = (3 + 1 + 4 + 4) * hidden * hidden + (3 + 1 + 4 + 1) * hidden
    # Down: weights and biases once, the results of both norms before the products that read them.
    assert cast_elements(graph, "float32", Phase.FORWARD, Phase.LOSS) == weights + 2 * stream
    assert cast_elements(graph, "bfloat16", Phase.FORWARD, Phase.LOSS) == 0
    # Back: the stream's gradient down into either branch, and up again at either norm; every weight's gradient up.
    assert cast_elements(graph, "float32", Phase.BACKWARD) == 2 * stream
    assert cast_elements(graph, "bfloat16", Phase.BACKWARD) == weights + 2 * stream
    # The sums themselves mix dtypes without a cast of their own: fp32 + bf16 in, fp32 out.
    sums = [k for _, k in rows(graph, Phase.FORWARD) if k.name == "aten.add"]
    assert [(k.inputs[0].dtype, k.inputs[1].dtype, k.outputs[0].dtype) for k in sums] == [
        ("float32", "bfloat16", "float32")
    ] * 2


# --- frozen parts -----------------------------------------------------------------------------------------------

ROWS, WIDTH = 8, 16
ONE_PRODUCT = 2 * ROWS * WIDTH * WIDTH


def four_layers(frozen: tuple[int, ...]) -> Workload:
    layers = nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(4)))
    for index in frozen:
        layers[index].requires_grad_(False)
    return total(layers, torch.ones(ROWS, WIDTH))


@pytest.mark.parametrize(
    ("frozen", "weight_gradients", "input_gradients"),
    [((), 4, 3), ((0, 1), 2, 1), ((2, 3), 2, 3), ((0, 1, 2), 1, 0), ((1,), 3, 3)],
)
@pytest.mark.parametrize("regime", ["full", "autocast"])
def test_frozen_layers_have_no_weight_gradients(
    frozen: tuple[int, ...], weight_gradients: int, input_gradients: int, regime: str
) -> None:
    """What a frozen layer still pays is the gradient of its input, and only above the first layer that trains."""
    graph = trace(lambda: four_layers(frozen), regime)
    products = [k for _, k in rows(graph, Phase.BACKWARD) if k.name == "aten.mm"]
    shapes = Counter(k.outputs[0].shape for k in products)
    assert shapes[WIDTH, WIDTH] == weight_gradients
    assert shapes[ROWS, WIDTH] == input_gradients
    with torch.device("meta"):
        workload = four_layers(frozen)
        loss = workload.loss(workload.module, workload.inputs)
        with FlopCounterMode(display=False) as counter:
            loss.backward()
    assert product_flops(graph, Phase.BACKWARD) == counter.get_total_flops() == len(products) * ONE_PRODUCT
    trained = (4 - len(frozen)) * (WIDTH * WIDTH + WIDTH)
    assert sum(s.nbytes for s in graph.storages if s.category is Category.GRADIENTS) == 4 * trained
    units = layered(graph)
    buckets = stage_buckets(units.units, (Chunk(tuple((unit, 1, 0) for unit in units.order)),), None).buckets
    assert sum(bucket.elements for bucket in buckets) == trained
    update = tail(graph.parameters, PRECISIONS["fp32"], "adam", "fused")
    assert update.state_bytes == 2 * 4 * trained
    assert [kind.inputs[0].numel for _, kind in update.operators] == [trained]


def test_a_frozen_weight_used_twice_is_cast_twice() -> None:
    """Autocast remembers the cast of a weight that trains; a frozen one it casts at every use, as the real one does."""

    class Twice(nn.Module):
        def __init__(self, frozen: bool) -> None:
            super().__init__()
            self.layer = nn.Linear(WIDTH, WIDTH, bias=False).requires_grad_(not frozen)
            self.first = nn.Linear(WIDTH, WIDTH, bias=False)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.layer(self.layer(self.first(x)))

    for frozen, expected in ((False, 1 + 1), (True, 2 + 1)):
        build = lambda frozen=frozen: total(Twice(frozen), torch.ones(ROWS, WIDTH))  # noqa: E731
        graph = trace(build, "autocast")
        casts = [k for _, k in rows(graph, Phase.FORWARD) if k.name == "aten._to_copy"]
        assert sum(k.inputs[0].shape == (WIDTH, WIDTH) for k in casts) == expected
        forward, _ = executed(build, autocast=True)
        assert forward.operators.count("_to_copy") == expected + 1  # and the input


# --- large vocabularies, tied or not; masked positions ----------------------------------------------------------


class TinyLanguageModel(nn.Module):
    def __init__(self, vocab: int, hidden: int, tied: bool) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(vocab, hidden), nn.Linear(hidden, vocab, bias=False)
        if tied:
            self.head.weight = self.embed.weight

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.head(self.embed(ids))


VOCAB, HIDDEN, TOKENS = 1000, 16, 24


def language_model(tied: bool) -> Workload:
    ids = torch.zeros(2, TOKENS // 2, dtype=torch.int64)
    return Workload(TinyLanguageModel(VOCAB, HIDDEN, tied), {"x": ids, "target": ids}, cross_entropy)


@pytest.mark.parametrize("tied", [True, False])
def test_a_tied_embedding_is_one_weight_with_two_gradients(tied: bool) -> None:
    graph = trace(lambda: language_model(tied))
    table = VOCAB * HIDDEN
    assert graph.parameter_count == (1 if tied else 2) * table
    update = tail(graph.parameters, PRECISIONS["fp32"], "adam", "fused")
    assert update.state_bytes == 2 * 4 * graph.parameter_count
    found = counts(graph, Phase.BACKWARD)
    assert found["embedding_dense_backward"] == 1
    sums = [k for _, k in rows(graph, Phase.BACKWARD) if k.name == "aten.add" and k.outputs[0].numel == table]
    assert len(sums) == (1 if tied else 0)  # the product's and the lookup's gradient, added once
    assert len({p.ready for p in graph.parameters}) == (1 if tied else 2)
    forward, backward = executed(lambda: language_model(tied))
    assert counts(graph, Phase.FORWARD, Phase.LOSS) == Counter(forward.operators)
    assert found == Counter(backward.operators)


@pytest.mark.parametrize(("regime", "bytes_per_logit"), [("full", 24), ("autocast", 26), ("half", 12)])
def test_cross_entropy_of_a_large_vocabulary_gains_nothing_from_autocast(regime: str, bytes_per_logit: int) -> None:
    """log-softmax reads and writes the logits, its gradient is zeroed, then read with the result, and written.

    fp32: 8 + 4 + 12 bytes a logit. Half throughout: 4 + 2 + 6. Under autocast log-softmax stays half (4 + 6), but the
    loss is fp32: its input is cast up (6), its gradient zeroed in fp32 (4) and cast down (6).
    """
    graph = trace(lambda: language_model(False), regime)
    logits = TOKENS * VOCAB
    moved = 0.0
    for _, kind in rows(graph):
        if kind.name != "aten.mm" and any(spec.numel == logits for spec in (*kind.inputs, *kind.outputs)):
            moved += sum(work.bytes for work in works(kind, WorkOptions()) or [])
    assert moved == pytest.approx(bytes_per_logit * logits, rel=0.02)  # and a few numbers a row


def test_masked_positions_shrink_the_head_by_what_they_leave_out() -> None:
    """BERT's pretraining head runs on 20 of 128 positions; the dense one, without a sentence head, on all."""
    batch, length, hidden, vocab = 4, 128, 1024, 30528
    sizes = {"batch_size": batch, "seq_len": length}
    config = {**ENTRIES["bert-large"].config, "layers": 1}

    def flops(**change: Any) -> float:
        return product_flops(trace_entry(ENTRIES["bert-large"], {**config, **change}, sizes, "half", "flash"))

    one_position = 3 * 2 * batch * (hidden * hidden + hidden * vocab)  # transform and decoder, forward and back
    sentence = 3 * 2 * batch * (hidden * hidden + hidden * 2)
    masked, more, dense = flops(max_predictions=20), flops(max_predictions=80), flops(head="mlm")
    assert more - masked == 60 * one_position
    assert dense - masked == (length - 20) * one_position - sentence


# --- attention --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("length", "size"), [(16, 8), (32, 8), (16, 24), (128, 64)])
def test_attention_counts_what_its_products_count(length: int, size: int) -> None:
    """The fused kernel's FLOPs are those of the products it fuses (its backward computes the scores once more)."""
    batch, heads = 2, 3

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.empty(1))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            q = x * self.scale
            return F.scaled_dot_product_attention(q, q, q)

    build = lambda: total(Net(), torch.ones(batch, heads, length, size))  # noqa: E731
    fused, written = trace(build), trace(build, attention="math")
    assert names(written)["bmm"] == 2 + 4
    forward, backward = product_flops(fused, Phase.FORWARD), product_flops(fused, Phase.BACKWARD)
    assert forward == product_flops(written, Phase.FORWARD) == 2 * 2 * batch * heads * length * length * size
    assert backward == product_flops(written, Phase.BACKWARD) + forward / 2
    # What it saves is the scores: no tensor of length x length is left.
    squares = [s for _, k in rows(fused) for s in (*k.inputs, *k.outputs) if s.shape[-2:] == (length, length)]
    assert squares == [] or length == size


class Masked(nn.Module):
    """Attention with a mask, which may be learned."""

    def __init__(self, learned: bool) -> None:
        super().__init__()
        self.project = nn.Linear(8, 8)
        self.bias = nn.Embedding(32, 4).requires_grad_(learned)

    def forward(self, x: torch.Tensor, distance: torch.Tensor) -> torch.Tensor:
        q = self.project(x)
        return F.scaled_dot_product_attention(q, q, q, attn_mask=self.bias(distance).permute(2, 0, 1).unsqueeze(0))


def masked(learned: bool) -> Workload:
    return total(Masked(learned), torch.ones(2, 4, 16, 8), torch.zeros(16, 16, dtype=torch.int64))


@pytest.mark.parametrize(("regime", "width"), [("full", 4), ("half", 2)])
def test_a_mask_is_read_with_the_keys_and_a_causal_one_is_not_there(regime: str, width: int) -> None:
    graph = trace(lambda: masked(False), regime)
    tensor, mask = 2 * 4 * 16 * 8, 4 * 16 * 16
    (forward,) = works(only(graph, "pt.attention"), WorkOptions()) or []
    assert (forward.bytes_read, forward.bytes_written) == (width * (3 * tensor + mask), width * tensor)
    (backward,) = works(only(graph, "pt.attention_backward"), WorkOptions()) or []
    assert (backward.bytes_read, backward.bytes_written) == (width * (5 * tensor + mask), width * 3 * tensor)
    spec = TensorSpec((2, 4, 16, 8), "float32")
    full, causal = (
        works(OpSignature("pt.attention", (spec,) * 3, (spec,), (("is_causal", value),)), WorkOptions()) or []
        for value in (False, True)
    )
    assert causal[0].flops / full[0].flops == (16 + 1) / 2 / 16  # query i sees i keys: 8.5 of 16 on average
    assert causal[0].bytes == full[0].bytes


@pytest.mark.parametrize(("regime", "width"), [("full", 4), ("half", 2)])
def test_a_learned_attention_bias_gets_its_gradient(regime: str, width: int) -> None:
    """The backward kernel also writes the gradient of every score, which is then summed over the batch."""
    graph = trace(lambda: masked(True), regime)
    tensor, mask, scores = 2 * 4 * 16 * 8, 4 * 16 * 16, 2 * 4 * 16 * 16
    (work,) = works(only(graph, "pt.attention_backward"), WorkOptions()) or []
    assert (work.bytes_read, work.bytes_written) == (width * (5 * tensor + mask), width * (3 * tensor + scores))
    first, *_ = [kind for _, kind in rows(graph, Phase.BACKWARD) if kind.name == "aten.sum"]
    assert (first.inputs[0].numel, first.outputs[0].shape) == (scores, (1, 4, 16, 16))
    assert names(graph, Phase.BACKWARD)["embedding_dense_backward"] == 1
    _, backward = executed(lambda: masked(True))
    assert backward.operators.count("embedding_dense_backward") == 1
    learned = {p.name: p for p in graph.parameters}["bias.weight"]
    assert learned.ready >= 0
    assert learned.grad_dtype == graph.parameters[0].grad_dtype
    assert "embedding_dense_backward" not in names(trace(lambda: masked(False), regime), Phase.BACKWARD)


@pytest.mark.parametrize("mask", [(16, 16), (4, 16, 16), (2, 1, 16, 16)])
def test_the_gradient_of_a_mask_has_its_shape(mask: tuple[int, ...]) -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.bias = nn.Parameter(torch.zeros(mask))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return F.scaled_dot_product_attention(x, x, x, attn_mask=self.bias)

    graph = trace(lambda: total(Net(), torch.ones(2, 4, 16, 8)))
    (summed,) = [k for _, k in rows(graph, Phase.BACKWARD) if k.name == "aten.sum"]
    assert summed.inputs[0].shape == (2, 4, 16, 16)
    assert summed.outputs[0].numel == torch.Size(mask).numel()


# --- RMS norm ---------------------------------------------------------------------------------------------------


class ToFloat(nn.Module):
    """What CUDA's autocast does before an RMS norm; a CPU's lists do not name it."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.float()


def normed(*before: nn.Module, dtype: torch.dtype = torch.float32) -> Workload:
    layers = nn.Sequential(nn.Linear(8, 8), *before, nn.RMSNorm(8), nn.ReLU()).to(dtype)
    return total(layers, torch.ones(4, 6, 8, dtype=dtype))


@pytest.mark.parametrize(("regime", "width"), [("full", 4), ("autocast", 4), ("half", 2)])
def test_rms_norm_is_one_kernel(regime: str, width: int) -> None:
    """Forward the input and the weight are read, the result and a number a row written. Back two kernels read gradient
    and input each; weight and rows are read, both gradients written once. Shapes and dtypes are those of a real step.
    """
    graph = trace(normed, regime)
    values, rows_ = 4 * 6 * 8, 4 * 6
    (forward,) = works(only(graph, "pt.rms_norm"), WorkOptions()) or []
    assert (forward.bytes_read, forward.bytes_written) == (width * (values + 8), width * values + 4 * rows_)
    (backward,) = works(only(graph, "pt.rms_norm_backward"), WorkOptions()) or []
    assert backward.bytes_read == width * (2 * 2 * values + 8) + 4 * rows_
    assert backward.bytes_written == width * (values + 8)
    assert (forward.launches, backward.launches) == (1, 2)
    assert forward.family == backward.family == "layer_norm"
    assert forward.flops == backward.flops == 8 * values
    kernels = [name for name in names(graph, Phase.FORWARD).elements() if name != "_to_copy"]
    assert kernels == ["addmm", "pt.rms_norm", "relu"]

    before = [ToFloat()] if regime == "autocast" else []
    workload = normed(*before, dtype=torch.bfloat16 if regime == "half" else torch.float32)
    seen: list[torch.Tensor] = []
    norm = next(m for m in workload.module if isinstance(m, nn.RMSNorm))
    norm.register_full_backward_hook(lambda _module, grads, _outputs: seen.extend(grads))
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=regime == "autocast"):
        loss = workload.loss(workload.module, workload.inputs)
    loss.backward()
    assert norm.weight.grad is not None
    expected = [(tuple(t.shape), str(t.dtype).removeprefix("torch.")) for t in (seen[0], norm.weight.grad)]
    kind = only(graph, "pt.rms_norm_backward")
    assert [(s.shape, s.dtype) for s in kind.outputs] == expected
    real = [(tuple(p.shape), str(p.grad.dtype).removeprefix("torch.")) for p in workload.module.parameters()]
    assert [(p.shape, p.grad_dtype) for p in graph.parameters] == real


@pytest.mark.filterwarnings("ignore:Mismatch dtype between input and weight")
def test_rms_norm_of_mixed_dtypes_is_composed() -> None:
    """An fp32 weight on half input without autocast: PyTorch warns and runs what a CPU runs."""

    def build() -> Workload:
        layers = nn.Sequential(nn.Linear(8, 8, dtype=torch.bfloat16), nn.RMSNorm(8))
        return total(layers, torch.ones(4, 8, dtype=torch.bfloat16))

    forward, backward = executed(build)
    graph = trace(build)
    assert counts(graph, Phase.FORWARD, Phase.LOSS) == Counter(forward.operators)
    assert counts(graph, Phase.BACKWARD) == Counter(backward.operators)


def test_rms_norm_copies_rows_that_are_not_together_and_skips_a_frozen_weight() -> None:
    class Heads(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.project, self.norm = nn.Linear(8, 8), nn.RMSNorm(4).requires_grad_(False)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.norm(self.project(x).unflatten(-1, (2, 4)).transpose(1, 2)).relu()

    graph = trace(lambda: total(Heads(), torch.ones(3, 5, 8)))
    assert names(graph, Phase.FORWARD)["clone"] == 1
    assert names(graph, Phase.BACKWARD)["clone"] == 2  # the input once more, and its gradient for the product
    kind = only(graph, "pt.rms_norm_backward")
    assert [s.shape for s in kind.outputs] == [(3, 2, 5, 4)]
    (work,) = works(kind, WorkOptions()) or []
    assert (work.bytes_read, work.launches) == (4 * (2 * 120 + 4) + 4 * 30, 1)


# --- optimizer, scaler and clipping -----------------------------------------------------------------------------


def weights(tensors: int, elements: int, precision: str) -> tuple[Parameter, ...]:
    said = PRECISIONS[precision]
    return tuple(Parameter(f"p{i}", (elements,), said.parameter_dtype, said.gradient_dtype, i) for i in range(tensors))


def tail_of(how: str, precision: str = "fp32", tensors: int = 5, clip: float | None = None) -> Tail:
    return tail(weights(tensors, 16, precision), PRECISIONS[precision], "adam", how, clip)


def real_update(how: str, scaled: bool, clip: bool, tensors: int = 5) -> Recorder:
    """The second step of a real Adam behind a real GradScaler, on the CPU, whose scaler runs the same Python."""
    parameters = [nn.Parameter(torch.ones(16)) for _ in range(tensors)]
    optimizer = torch.optim.Adam(parameters, **({"fused": True} if how == "fused" else {"foreach": how == "foreach"}))
    scaler = torch.amp.GradScaler("cpu", enabled=scaled)
    for _ in range(2):
        optimizer.zero_grad()
        scaler.scale(torch.stack([p.sum() for p in parameters]).sum()).backward()
        with Recorder() as recorder:
            if clip:
                scaler.unscale_(optimizer)
                torch.nn.utils.clip_grad_norm_(parameters, 1.0)
            scaler.step(optimizer)
            scaler.update()
    return recorder


@pytest.mark.parametrize("clip", [False, True])
@pytest.mark.parametrize("scaled", [False, True])
@pytest.mark.parametrize("how", ["single", "foreach", "fused"])
def test_scaler_and_clipping_as_the_real_ones_run(how: str, scaled: bool, clip: bool) -> None:
    """One sweep unscales and looks for infinities. The host asks for the answer, unless the update is fused."""
    found = Counter(real_update(how, scaled, clip).operators)
    # Adam reads the step counters that it keeps on the CPU; a read more is the scaler's question to the device.
    unscaled = Counter(real_update(how, False, clip).operators)
    questions = found["_local_scalar_dense"] - unscaled["_local_scalar_dense"]
    ours = tail_of(how, "amp-fp16" if scaled else "fp32", clip=1.0 if clip else None)
    sweeps = Counter(kind.attr("label") for phase, kind in ours.operators if phase is not Phase.OPTIMIZER)
    assert sweeps["unscale"] == found["_amp_foreach_non_finite_check_and_unscale_"] == int(scaled)
    assert sweeps["grad_norm"] == found["_foreach_norm"] == int(clip)
    assert (ours.host_waits_after >= 0) == (questions == 1) == (scaled and how != "fused")
    if scaled and how != "fused":
        assert ours.operators[ours.host_waits_after][1].attr("label") == "unscale"


def test_state_dtype_decides_the_bytes_of_an_update() -> None:
    """Fused Adam, bytes a weight: gradient, weight and both moments in, all but the gradient out."""
    expected = {
        "fp32": 4 * 4 + 3 * 4,
        "amp-bf16": 4 * 4 + 3 * 4,
        "bf16-master": (2 + 3 * 4) + (3 * 4 + 2),  # the gradient is half, and half weights are written beside
        "bf16": 4 * 2 + 3 * 2,
        "fp64": 4 * 8 + 3 * 8,
    }
    for precision, width in expected.items():
        (kind,) = [kind for _, kind in tail_of("fused", precision).operators]
        (work,) = works(kind, WorkOptions()) or []
        assert work.bytes == width * 5 * 16, precision


def test_accumulation_adds_one_sweep_of_twelve_bytes_a_weight() -> None:
    kinds: dict[str, OpSignature | None] = {p: tail_of("fused", p).accumulate for p in ("fp32", "amp-fp16", "bf16")}
    for precision, width in (("fp32", 12), ("amp-fp16", 12), ("bf16", 6)):
        kind = kinds[precision]
        assert kind is not None
        assert kind.attr("host_calls") == 5  # autograd adds tensor by tensor
        (work,) = works(kind, WorkOptions()) or []
        assert work.bytes == width * 5 * 16


# --- the host -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("autocast", [False, True])
@pytest.mark.parametrize("build", [cnn, transformer], ids=["cnn", "transformer"])
def test_the_host_dispatches_what_a_real_step_dispatches(build: Any, autocast: bool) -> None:
    """Kernels one by one, and the views and allocations between them; those behind the last kernel belong to none."""
    graph = trace(build, "autocast" if autocast else "full", device_rules="cpu")
    forward, backward = executed(build, autocast)
    before = [call for call, _ in rows(graph, Phase.FORWARD, Phase.LOSS)]
    after = [call for call, _ in rows(graph, Phase.BACKWARD)]
    assert (len(before), len(after)) == (len(forward.operators), len(backward.operators))
    free = sum(call.views for call in (*before, *after))
    assert 0 <= forward.free + backward.free - free <= 1
