"""The captured step: FLOPs against torch's own counter, small layers by hand, lifetimes and gradient order."""

from __future__ import annotations

import tracemalloc
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402
from torch.utils.flop_counter import FlopCounterMode  # noqa: E402

from networks import cnn, dtypes, names, only, rows, total, trace, transformer  # noqa: E402
from precision_time.capture.graph import OpGraph, OpSignature, Phase, TensorSpec  # noqa: E402
from precision_time.capture.trace import trace_entry  # noqa: E402
from precision_time.errors import CaptureError  # noqa: E402
from precision_time.timing.operators import WorkOptions, works  # noqa: E402
from precision_time.zoo.catalog import ENTRIES  # noqa: E402
from precision_time.zoo.workload import Workload  # noqa: E402

OPTIONS = WorkOptions()


def product_flops(graph: OpGraph, *phases: Phase) -> float:
    """FLOPs of matrix products and convolutions, which is what FlopCounterMode counts."""
    products = [w for _, kind in rows(graph, *phases) for w in works(kind, OPTIONS) or []]
    return sum(w.flops for w in products if w.math != "vector")


def counted(build: Callable[[], Workload]) -> tuple[int, int]:
    """FLOPs of forward and backward by torch's counter."""
    with torch.device("meta"):
        workload = build()
        forward, backward = FlopCounterMode(display=False), FlopCounterMode(display=False)
        with forward:
            loss = workload.loss(workload.module, workload.inputs)
        with backward:
            loss.backward()
    return forward.get_total_flops(), backward.get_total_flops()


class Products(nn.Module):
    """Batched products and an input that needs a gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.empty(4, 8, 16))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.bmm(x, self.scale) + torch.einsum("bij,bjk->bik", x, self.scale)


NETWORKS: dict[str, Callable[[], Workload]] = {
    "cnn": cnn,
    "transformer": transformer,
    "bmm": lambda: total(Products(), torch.ones(4, 5, 8)),
    "grouped": lambda: total(nn.Sequential(nn.Conv2d(8, 12, 3), nn.Conv2d(12, 8, 3, groups=4)), torch.ones(2, 8, 9, 9)),
    "depthwise": lambda: total(nn.Sequential(nn.Conv2d(3, 8, 1), nn.Conv2d(8, 8, 5, padding=2, groups=8)),
                               torch.ones(2, 3, 9, 9)),
    "strided": lambda: total(nn.Sequential(nn.Conv1d(3, 8, 5, stride=2), nn.Conv1d(8, 8, 3, stride=3, dilation=2)),
                             torch.ones(2, 3, 64)),
    "transposed": lambda: total(nn.Sequential(nn.ConvTranspose2d(4, 6, 4, stride=2, padding=1), nn.Conv2d(6, 4, 3)),
                                torch.ones(2, 4, 8, 8)),
    "3d": lambda: total(nn.Conv3d(2, 4, 3, padding=1), torch.ones(1, 2, 4, 6, 8)),
}  # fmt: skip


@pytest.mark.parametrize("regime", ["full", "autocast", "half"])
@pytest.mark.parametrize("name", NETWORKS)
def test_flops_equal_torchs_counter(name: str, regime: str) -> None:
    forward, backward = counted(NETWORKS[name])
    graph = trace(NETWORKS[name], regime)
    assert forward > 0
    assert product_flops(graph, Phase.FORWARD, Phase.LOSS) == forward
    if name in ("grouped", "depthwise"):
        # torch's counter multiplies the weight gradient of a grouped convolution by its groups. By hand: backward is
        # both gradients of the second layer and the weight gradient of the first, each as much as its forward.
        first, second = (sum(w.flops for w in works(k, OPTIONS) or [] if w.math != "vector")
                         for _, k in rows(graph, Phase.FORWARD) if k.name == "aten.convolution")  # fmt: skip
        groups = {"grouped": 4, "depthwise": 8}[name]
        assert backward == first + second + groups * second
        backward = int(first + 2 * second)
    assert product_flops(graph, Phase.BACKWARD) == backward


def test_flops_of_resnet18_equal_torchs_counter() -> None:
    models = pytest.importorskip("torchvision.models")

    def build() -> Workload:
        return total(models.resnet18(), torch.ones(2, 3, 224, 224))

    forward, backward = counted(build)
    graph = trace(build)
    assert forward == pytest.approx(2 * 3.63e9, rel=0.01)  # 1.81 G multiply-adds a picture
    assert product_flops(graph, Phase.FORWARD) == forward
    assert product_flops(graph, Phase.BACKWARD) == backward


@pytest.mark.skipif(not hasattr(torch, "_grouped_mm"), reason="this torch has no grouped product")
def test_grouped_products_of_torch_by_hand() -> None:
    class Rows(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.up = nn.Parameter(torch.empty(4, 16, 32))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch._grouped_mm(x, self.up, offs=torch.empty(4, dtype=torch.int32))

    graph = trace(lambda: total(nn.Sequential(nn.Linear(16, 16), Rows()), torch.ones(64, 16)), "half")
    forward = next(kind for _, kind in rows(graph, Phase.FORWARD) if kind.name == "pt.grouped_mm")
    (work,) = works(forward, OPTIONS) or []
    assert (work.shape, work.flops) == ((4, 16, 32, 16), 2 * 64 * 16 * 32)
    backward = names(graph, Phase.BACKWARD)
    assert (backward["pt.grouped_mm"], backward["pt.grouped_mm_weight"]) == (1, 1)


@pytest.mark.parametrize(("a", "b", "out", "shape"), [
    ((64, 16), (4, 16, 32), (64, 32), (4, 16, 32, 16)),  # rows in groups
    ((4, 32, 16), (16, 64), (32, 64), (4, 32, 16, 16)),  # columns in groups
    ((16, 64), (64, 32), (4, 16, 32), (4, 16, 32, 16)),  # the summed side in groups
    ((4, 8, 16), (4, 16, 32), (4, 8, 32), (4, 8, 32, 16)),  # as many matrices
])  # fmt: skip
def test_every_form_of_torchs_grouped_product(
    a: tuple[int, ...], b: tuple[int, ...], out: tuple[int, ...], shape: tuple[int, ...]
) -> None:
    inputs = tuple(TensorSpec(side, "bfloat16") for side in (a, b))
    (work,) = works(OpSignature("aten._grouped_mm", inputs, (TensorSpec(out, "bfloat16"),)), OPTIONS) or []
    assert work.shape == shape
    assert work.flops == 2 * shape[0] * shape[1] * shape[2] * shape[3]


# --- one layer, by hand -----------------------------------------------------------------------------------------


def spec(dtype: str, *shape: int) -> TensorSpec:
    return TensorSpec(shape, dtype)


def moved(kind: OpSignature) -> tuple[float, float]:
    (work,) = works(kind, OPTIONS) or []
    return work.bytes_read, work.bytes_written


@pytest.mark.parametrize(("regime", "dtype", "width"), [("full", "float32", 4), ("autocast", "bfloat16", 2),
                                                        ("half", "bfloat16", 2)])  # fmt: skip
def test_linear(regime: str, dtype: str, width: int) -> None:
    graph = trace(lambda: total(nn.Linear(16, 32), torch.ones(4, 16)), regime)
    forward = only(graph, "aten.addmm")
    assert forward.inputs == (spec(dtype, 32), spec(dtype, 4, 16), spec(dtype, 16, 32))
    assert forward.outputs == (spec(dtype, 4, 32),)
    (work,) = works(forward, OPTIONS) or []
    assert work.flops == 2 * 4 * 16 * 32
    assert work.bytes_read == width * (32 + 4 * 16 + 16 * 32)
    assert work.bytes_written == width * 4 * 32
    # The input needs no gradient: the backward pass is the weight's product and the bias's sum.
    backward = names(graph, Phase.BACKWARD)
    assert (backward["mm"], backward["sum"]) == (1, 1)
    weight = next(k for _, k in rows(graph, Phase.BACKWARD) if k.name == "aten.mm")
    assert weight.outputs == (spec(dtype, 32, 16),)
    assert names(graph)["_to_copy"] == {"full": 0, "autocast": 3 + 1 + 2, "half": 0}[regime]


def test_casts_of_a_linear_under_autocast() -> None:
    """Input, weight, bias down; the sum asks for fp32 itself; its gradient down; weight and bias gradients up."""
    graph = trace(lambda: total(nn.Linear(16, 32), torch.ones(4, 16)), "autocast")
    casts = [(c.phase.name, k.inputs[0].dtype, k.inputs[0].shape) for c, k in rows(graph) if k.name == "aten._to_copy"]
    assert sorted(casts) == [
        ("BACKWARD", "bfloat16", (32,)),
        ("BACKWARD", "bfloat16", (32, 16)),
        ("BACKWARD", "float32", (4, 32)),
        ("FORWARD", "float32", (4, 16)),
        ("FORWARD", "float32", (32,)),
        ("FORWARD", "float32", (32, 16)),
    ]


def test_convolution() -> None:
    graph = trace(lambda: total(nn.Conv2d(3, 8, 3, stride=2, padding=1, bias=False), torch.ones(2, 3, 16, 16)), "half")
    kind = only(graph, "aten.convolution")
    assert kind.inputs == (spec("bfloat16", 2, 3, 16, 16), spec("bfloat16", 8, 3, 3, 3))
    assert kind.outputs == (spec("bfloat16", 2, 8, 8, 8),)
    (work,) = works(kind, OPTIONS) or []
    assert work.flops == 2 * 2 * 8 * 8 * 8 * 3 * 9
    assert work.bytes_read == 2 * (2 * 3 * 256 + 8 * 27)
    assert work.bytes_written == 2 * 2 * 8 * 64
    (back,) = works(only(graph, "aten.convolution_backward"), OPTIONS) or []  # weight only: the image needs none
    assert back.flops == work.flops
    assert back.variant.startswith("wgrad")


def test_convolution_with_bias_adds_a_kernel_each_way() -> None:
    build = lambda: total(nn.Sequential(nn.Conv2d(3, 8, 3), nn.Conv2d(8, 8, 3)), torch.ones(1, 3, 8, 8))  # noqa: E731
    graph = trace(build)
    forward = [k for _, k in rows(graph) if k.name == "aten.convolution"][1]
    backward = next(k for _, k in rows(graph) if k.name == "aten.convolution_backward")
    assert [w.family for w in works(forward, OPTIONS) or []] == ["conv", "pointwise"]
    assert [w.family for w in works(backward, OPTIONS) or []] == ["conv", "conv", "reduction"]


@pytest.mark.parametrize(("regime", "data", "statistics"), [("full", "float32", "float32"),
                                                            ("half", "bfloat16", "bfloat16")])  # fmt: skip
def test_batch_norm(regime: str, data: str, statistics: str) -> None:
    graph = trace(lambda: total(nn.BatchNorm2d(8), torch.ones(4, 8, 5, 5)), regime)
    kind = only(graph, "aten.native_batch_norm")
    assert dtypes(kind.inputs) == (data, *[statistics] * 4)
    size = kind.inputs[0].nbytes
    assert moved(kind) == (2 * size, size)
    assert moved(only(graph, "aten.native_batch_norm_backward")) == (4 * size, size)


def test_an_evaluation_has_no_backward_pass_and_no_statistics() -> None:
    def workload(training: bool) -> Workload:
        layers = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.Dropout(0.5), nn.ReLU())
        return replace(total(layers, torch.ones(2, 3, 8, 8)), training=training)

    graph = trace(lambda: workload(False), "autocast")
    assert {call.phase for call in graph.calls} == {Phase.FORWARD, Phase.LOSS}
    kind = only(graph, "aten.native_batch_norm")
    assert moved(kind) == (kind.inputs[0].nbytes, kind.inputs[0].nbytes)
    assert not {"native_dropout", "bernoulli_"} & set(names(graph))
    trained = trace(lambda: workload(True), "autocast")
    assert product_flops(graph) == product_flops(trained, Phase.FORWARD)


def test_batch_norm_after_a_convolution_under_autocast_reads_half() -> None:
    build = lambda: total(nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8)), torch.ones(2, 3, 8, 8))  # noqa: E731
    kind = only(trace(build, "autocast"), "aten.native_batch_norm")
    assert dtypes(kind.inputs) == ("bfloat16", *["float32"] * 4)
    assert dtypes(kind.outputs) == ("bfloat16", "float32", "float32")


@pytest.mark.parametrize(("regime", "dtype"), [("full", "float32"), ("autocast", "float32"), ("half", "bfloat16")])
def test_embedding(regime: str, dtype: str) -> None:
    graph = trace(lambda: total(nn.Embedding(100, 16), torch.zeros(4, 6, dtype=torch.int64)), regime)
    kind = only(graph, "aten.embedding")
    assert kind.inputs == (spec(dtype, 100, 16), spec("int64", 4, 6))
    assert kind.outputs == (spec(dtype, 4, 6, 16),)
    rows_moved = kind.outputs[0].nbytes
    assert moved(kind) == (rows_moved + 8 * 24, rows_moved)  # the rows used and the indices, not the table
    fill, sort, scatter = works(only(graph, "aten.embedding_dense_backward"), OPTIONS) or []
    assert fill.bytes_written == kind.inputs[0].nbytes
    assert sort.bytes == 2 * 8 * 24
    assert scatter.bytes == 2 * rows_moved


# --- operators that must stay whole -----------------------------------------------------------------------------


def test_fused_attention_is_one_operator_each_way() -> None:
    graph = trace(lambda: transformer(fused=True, layers=1), "autocast")
    forward, backward = only(graph, "pt.attention"), only(graph, "pt.attention_backward")
    assert dtypes(forward.inputs) == ("bfloat16",) * 3
    assert forward.outputs[1] == spec("float32", 2, 4, 16)
    assert len(backward.outputs) == 3
    assert not {"_softmax", "bmm", "baddbmm"} & set(names(graph))
    (work,) = works(forward, OPTIONS) or []
    assert work.flops == 2 * 2 * (2 * 4 * 16 * 16 * 8)
    assert names(graph)["clone"] == 0  # the output is in the query's memory order, so joining the heads is a view


def test_math_attention_is_the_chain() -> None:
    graph = trace(lambda: transformer(fused=True, layers=1), "autocast", attention="math")
    forward = names(graph, Phase.FORWARD)
    assert (forward["bmm"], forward["_softmax"], forward["mul"]) == (2, 1, 1)
    assert not any("attention" in name for name in names(graph))
    softmax = only(graph, "aten._softmax")
    assert softmax.outputs[0].dtype == "float32"
    assert softmax.outputs[0].shape == (2, 4, 16, 16)
    assert names(graph, Phase.BACKWARD)["_softmax_backward_data"] == 1


class Windows(nn.Module):
    """Attention within windows, as NesT and Hiera have it: five dimensions, which no fused kernel takes."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q = x * self.scale
        return F.scaled_dot_product_attention(q, q, q).float()


class Executed(TorchDispatchMode):
    """(operator, dtypes of its operands) of a step that is really run."""

    def __init__(self) -> None:
        super().__init__()
        self.steps: list[tuple[str, tuple[str, ...]]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        operands = tuple(str(a.dtype).removeprefix("torch.") for a in args if isinstance(a, torch.Tensor))
        self.steps.append((func._schema.name.replace("::", "."), operands))
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("half", [True, False])
def test_attention_without_a_fused_kernel_is_that_of_a_real_step(half: bool) -> None:
    """Its products and softmax are of the dtypes that torch runs on a CPU, where autocast widens it, too."""
    arithmetic = ("aten.bmm", "aten._safe_softmax", "aten._softmax_backward_data")
    net, x = Windows(), torch.randn(2, 3, 4, 16, 8)
    with Executed() as executed:
        with torch.autocast("cpu", torch.bfloat16, enabled=half):
            loss = net(x).sum()
        loss.backward()
    graph = trace(lambda: total(Windows(), x), "autocast" if half else "full")
    assert Counter(step for step in executed.steps if step[0] in arithmetic) == {
        ("aten.bmm", ("float32", "float32")): 6,
        ("aten._safe_softmax", ("float32",)): 1,
        ("aten._softmax_backward_data", ("float32", "float32")): 1,
    }
    traced = [(kind.name, dtypes(kind.inputs)) for _, kind in rows(graph) if kind.name in arithmetic]
    assert Counter(traced) == Counter(step for step in executed.steps if step[0] in arithmetic)
    assert names(graph)["_to_copy"] == sum(name == "aten._to_copy" for name, _ in executed.steps)


def test_attention_without_a_fused_kernel_ran_in_half_precision_before_2_5() -> None:
    x = torch.randn(2, 3, 4, 16, 8)
    graph = trace(lambda: total(Windows(), x), "autocast", attention="flash_before_2_5")
    assert {kind.inputs[0].dtype for _, kind in rows(graph) if kind.name == "aten.bmm"} == {"bfloat16"}
    assert "_safe_softmax" not in names(graph)


@pytest.mark.parametrize(("causal", "operator"), [(False, "add"), (True, "masked_fill")])
def test_math_attention_adds_the_mask_of_keys_and_fills_that_of_positions(causal: bool, operator: str) -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.empty(1))

        def forward(self, q: torch.Tensor) -> torch.Tensor:
            mask = None if causal else torch.ones(2, 1, 1, 16, dtype=torch.bool)
            return F.scaled_dot_product_attention(q * self.scale, q, q, attn_mask=mask, is_causal=causal)

    graph = trace(lambda: total(Net(), torch.ones(2, 4, 16, 8)), attention="math")
    forward, backward = names(graph, Phase.FORWARD), names(graph, Phase.BACKWARD)
    assert [name for name in ("add", "masked_fill") if forward[name]] == [operator]
    assert backward["masked_fill"] == int(causal)  # what is added has no gradient


def test_a_masked_fill_copies_first() -> None:
    """torch's own profiler sees a copy and a fill in place; both are priced."""
    x, mask = torch.ones(8, 8), torch.zeros(8, 8, dtype=torch.bool)
    with torch.profiler.profile() as profile:
        x.masked_fill(mask, 0.0)
    assert {"aten::copy_", "aten::masked_fill_"} <= {event.key for event in profile.key_averages()}
    kind = OpSignature("aten.masked_fill", (spec("float32", 8, 8), spec("bool", 8, 8)), (spec("float32", 8, 8),))
    copy, fill = works(kind, OPTIONS) or []
    assert (copy.family, copy.bytes_read, copy.bytes_written) == ("copy", 256, 256)
    assert (fill.family, fill.bytes_read, fill.bytes_written) == ("pointwise", 256 + 64, 256)


def test_causal_attention_and_value_width() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.empty(1))

        def forward(self, q: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
            return F.scaled_dot_product_attention(q * self.scale, q, v, is_causal=True)

    graph = trace(lambda: total(Net(), torch.ones(2, 4, 16, 8), torch.ones(2, 4, 16, 24)))
    kind = only(graph, "pt.attention")
    assert kind.attr("is_causal") is True
    assert kind.outputs[0].shape == (2, 4, 16, 24)


@pytest.mark.parametrize(("layer", "gates"), [(nn.LSTM, 4), (nn.GRU, 3), (nn.RNN, 1)])
def test_a_recurrent_layer_is_one_operator_each_way(layer: Any, gates: int) -> None:
    graph = trace(lambda: total(layer(8, 16, batch_first=True), torch.ones(3, 10, 8)))
    kind = only(graph, "pt.rnn")
    only(graph, "pt.rnn_backward")
    assert kind.outputs[0].shape == (3, 10, 16)
    assert kind.attr("hidden") == 16
    flops = sum(w.flops for w in works(kind, OPTIONS) or [])
    assert flops == 2 * 3 * 10 * gates * 16 * (8 + 16)


@pytest.mark.parametrize("layer", [nn.LSTM, nn.GRU])
def test_the_state_that_an_encoder_hands_to_its_decoder_has_a_gradient(layer: Any) -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.encoder, self.decoder = layer(8, 16, 2, bidirectional=True), layer(8, 16, 2, bidirectional=True)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            decoded: torch.Tensor = self.decoder(x, self.encoder(x)[1])[0]
            return decoded

    graph = trace(lambda: total(Net(), torch.ones(10, 3, 8)))
    assert names(graph, Phase.BACKWARD)["pt.rnn_backward"] == 2
    assert all(p.ready >= 0 for p in graph.parameters)
    (with_states,) = [
        k for k in graph.kinds if k.name == "pt.rnn_backward" and (4, 3, 16) in {o.shape for o in k.outputs}
    ]
    plain = next(k for k in graph.kinds if k.name == "pt.rnn_backward" and k is not with_states)
    assert [w.flops for w in works(with_states, OPTIONS) or []] == [w.flops for w in works(plain, OPTIONS) or []]


def test_dropout_is_one_kernel_each_way() -> None:
    graph = trace(lambda: total(nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.1)), torch.ones(4, 8)))
    assert names(graph, Phase.FORWARD)["native_dropout"] == 1
    assert names(graph, Phase.BACKWARD)["native_dropout_backward"] == 1
    assert not {"bernoulli", "bernoulli_", "div_"} & set(names(graph))


def test_views_cost_nothing_but_host_time() -> None:
    def plain(x: torch.Tensor) -> torch.Tensor:
        return x

    def viewed(x: torch.Tensor) -> torch.Tensor:
        return x.view(2, 2, 8).transpose(1, 2).unsqueeze(0).squeeze(0).transpose(1, 2).reshape(4, 8)

    class Net(nn.Module):
        def __init__(self, function: Any) -> None:
            super().__init__()
            self.layer, self.function = nn.Linear(8, 8), function

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.function(self.layer(x))

    one, other = (trace(lambda f=f: total(Net(f), torch.ones(4, 8))) for f in (plain, viewed))
    assert names(one) == names(other)
    assert sum(c.views for c in other.calls) > sum(c.views for c in one.calls)


def test_a_batch_of_one_dispatches_no_more_views_than_two_in_the_gradient_of_as_strided() -> None:
    class Frames(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(64, 64)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.layer(x).as_strided((len(x), 8, 16), (64, 4, 1)) * 2.0

    one, two = (trace(lambda n=n: total(Frames(), torch.ones(n, 64))) for n in (1, 2))
    assert [c.views for c in one.calls] == [c.views for c in two.calls]


# --- the step as a whole ----------------------------------------------------------------------------------------


def test_nothing_is_allocated() -> None:
    tracemalloc.start()
    # 64 layers of 64 MiB: 4 GiB of weights that never exist.
    build = lambda: total(nn.Sequential(*(nn.Linear(4096, 4096) for _ in range(64))), torch.ones(8, 4096))  # noqa: E731
    graph = trace(build)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert graph.parameter_count * 4 > 4 << 30
    assert peak < 32 << 20
    assert len(graph.kinds) < 20  # equal layers are one kind


def test_a_model_on_the_cpu_is_refused() -> None:
    with torch.device("cpu"):
        module = nn.Linear(4, 4)
    with pytest.raises(CaptureError, match=r"weight of model lives on cpu"):
        trace(lambda: total(module, torch.ones(2, 4)))


def test_a_model_that_needs_its_data_says_so() -> None:
    class Asks(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x) if float(x.sum()) > 0 else x

    with pytest.raises(CaptureError, match=r"model"):
        trace(lambda: total(Asks(4, 4), torch.ones(2, 4)))


def test_a_model_that_fails_is_a_capture_error() -> None:
    class Wrong(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x.missing)

    with pytest.raises(CaptureError, match=r"missing"):
        trace(lambda: total(Wrong(4, 4), torch.ones(2, 4)))


@pytest.mark.parametrize(
    ("build", "order"),
    [(cnn, "head.weight deep.weight norm.weight stem.weight"),
     (transformer, "head.weight blocks.1.down.weight blocks.1.qkv.weight blocks.0.down.weight embed.weight")],
    ids=["cnn", "transformer"],
)  # fmt: skip
def test_gradients_arrive_from_the_last_layer_to_the_first(build: Any, order: str) -> None:
    graph = trace(build)
    ready = {p.name: p.ready for p in graph.parameters}
    assert all(graph.calls[r].phase is Phase.BACKWARD for r in ready.values())
    positions = [ready[name] for name in order.split()]
    assert positions == sorted(positions)
    assert len(set(positions)) == len(positions)


def test_values_held_on_the_cpu_are_really_computed() -> None:
    class Net(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for _ in range(2):  # equal calls: the second must not be taken for a repetition
                steps = torch.arange(3, device="cpu") * 2
                x = super().forward(x) * int(steps[2])
                assert int(steps[2]) == 4
            return x

    assert names(trace(lambda: total(Net(4, 4), torch.ones(2, 4))))["addmm"] == 2


def test_unused_and_frozen_parameters_get_no_gradient() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.used, self.unused, self.frozen = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4)
            self.frozen.requires_grad_(False)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.frozen(self.used(x))

    parameters = {p.name: (p.ready >= 0, p.trainable) for p in trace(lambda: total(Net(), torch.ones(2, 4))).parameters}
    assert parameters["used.weight"] == (True, True)
    assert parameters["unused.weight"] == (False, True)
    assert parameters["frozen.weight"] == (False, False)


def test_phases_come_in_order() -> None:
    phases = [c.phase for c in trace(transformer).calls]
    assert phases == sorted(phases)
    assert set(phases) == {Phase.FORWARD, Phase.LOSS, Phase.BACKWARD}


def test_module_paths_reach_the_backward_pass() -> None:
    graph = trace(cnn)
    modules = {kind.name: graph.modules[call.module] for call, kind in rows(graph)}
    assert modules["aten.native_batch_norm"] == "norm"
    assert modules["aten.native_batch_norm_backward"] == "norm"


def test_an_update_may_freeze_what_another_trains() -> None:
    """HiFi-GAN's generator is trained through its 54 convolutions of discriminators, which get no gradient there."""
    entry = ENTRIES["hifigan"]
    graph = trace_entry(entry, entry.config, {**entry.input, "batch_size": 2}, "half", "flash")
    masks = Counter(
        kind.attr("output_mask")
        for call, kind in rows(graph)
        if kind.name == "aten.convolution_backward" and graph.modules[call.module].startswith("discriminators")
    )
    assert masks[True, False, False] == 54
    assert sum(count for mask, count in masks.items() if mask[1]) == 2 * 54  # of real and of generated audio
    assert all(parameter.trainable and parameter.ready >= 0 for parameter in graph.parameters)
