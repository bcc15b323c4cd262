"""Autocast: every operator's class, against torch's own lists and against steps really executed on the CPU."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402
from torch.testing._internal.autocast_test_lists import AutocastTestLists  # noqa: E402
from torch.utils._pytree import tree_leaves, tree_map  # noqa: E402

from networks import Block, cnn, cross_entropy, dtypes, names, only, rows, total, trace, transformer  # noqa: E402
from precision_time.capture import fused, intercept  # noqa: E402
from precision_time.capture.autocast import CLASSES, CastClass  # noqa: E402
from precision_time.capture.graph import OpGraph, Phase  # noqa: E402
from precision_time.capture.tracer import Tracer  # noqa: E402
from precision_time.errors import CaptureError  # noqa: E402
from precision_time.zoo.workload import Workload  # noqa: E402

# --- the tables -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("device", ["cuda", "cpu"])
def test_every_operator_with_an_autocast_kernel_has_a_class(device: str) -> None:
    registered = intercept.registered(device)
    assert len(registered) > 80
    unclassified = sorted(registered - set(CLASSES[device]) - set(fused.REPLACEMENTS))
    assert unclassified == []


# --- torch's own lists ------------------------------------------------------------------------------------------

LISTS = AutocastTestLists("meta")
MODULES = {"nn": torch._C._nn, "linalg": torch._C._linalg, "torch": torch}
# No shape rule on the meta device; both are the inner kernel of conv2d, which is in the list too.
NO_META = {"cudnn_convolution", "cudnn_convolution_transpose"}
KEEPS_INPUTS = {"softmax", "log_softmax", "cumprod", "cumsum", "prod", "sum", "norm"}
"""Operators that autocast asks for an fp32 result without casting their input first."""

Stream = list[tuple[str, tuple[str, ...], tuple[str, ...]]]


def cases(*lists: str) -> list[Any]:
    parameters = []
    for name in lists:
        for i, (op, args, *rest) in enumerate(getattr(LISTS, name)):
            if op == "einsum":  # its entry is malformed (torch skips it); tested below
                continue
            marks = [pytest.mark.skip(reason="no meta kernel")] if op in NO_META else []
            marks += [pytest.mark.filterwarnings("ignore:.*deprecated")]
            options = rest[0] if rest and isinstance(rest[0], dict) else {}
            parameters.append(pytest.param(name.split("_")[0], op, args, options, id=f"{name}-{op}-{i}", marks=marks))
    return parameters


def run(namespace: str, op: str, args: Any, options: dict[str, Any]) -> Any:
    if namespace == "methods":
        return getattr(args[0], op)(*args[1:], **options)
    return getattr(MODULES[namespace], op)(*args, **options)


def stream(tracer: Tracer) -> Stream:
    kinds = list(tracer.kinds)
    return [
        (kinds[c.kind].name, dtypes(kinds[c.kind].inputs), dtypes(kinds[c.kind].outputs))
        for c in tracer.calls
    ]  # fmt: skip


def without_casts(operators: Stream) -> Stream:
    return [row for row in operators if row[0] != "aten._to_copy"]


def traced(low: torch.dtype | None, namespace: str, op: str, args: Any, options: dict[str, Any]) -> tuple[Any, Stream]:
    tracer = Tracer()
    with torch.device("meta"), tracer, intercept.region(low):
        return run(namespace, op, args, options), stream(tracer)


def cast(args: Any, dtype: torch.dtype) -> Any:
    return tree_map(lambda t: t.to(dtype) if isinstance(t, torch.Tensor) and t.is_floating_point() else t, args)


def floating(tree: Any) -> set[torch.dtype]:
    return {t.dtype for t in tree_leaves(tree) if isinstance(t, torch.Tensor) and t.is_floating_point()}


@pytest.mark.parametrize("low", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize(
    ("namespace", "op", "args", "options"), cases("torch_fp16", "nn_fp16", "linalg_fp16", "methods_fp16")
)
def test_low_precision_list(low: torch.dtype, namespace: str, op: str, args: Any, options: dict[str, Any]) -> None:
    result, operators = traced(low, namespace, op, args, options)
    expected, reference = traced(None, namespace, op, cast(args, low), options)
    assert floating(result) == floating(expected) == {low}
    assert without_casts(operators) == without_casts(reference)


@pytest.mark.parametrize(("namespace", "op", "args", "options"), cases("torch_fp32", "nn_fp32", "methods_fp32"))
def test_fp32_list(namespace: str, op: str, args: Any, options: dict[str, Any]) -> None:
    result, operators = traced(torch.float16, namespace, op, args, options)
    expected, reference = traced(None, namespace, op, cast(args, torch.float32), options)
    assert floating(result) == floating(expected) == {torch.float32}
    if op not in KEEPS_INPUTS:
        assert without_casts(operators) == without_casts(reference)


@pytest.mark.parametrize(("namespace", "op", "args", "options"), cases("torch_need_autocast_promote"))
def test_promote_list(namespace: str, op: str, args: Any, options: dict[str, Any]) -> None:
    result, operators = traced(torch.float16, namespace, op, args, options)
    expected, reference = traced(None, namespace, op, cast(args, torch.float32), options)
    assert floating(result) == floating(expected) == {torch.float32}
    assert without_casts(operators) == without_casts(reference)


def test_promote_without_fp32_stays_low() -> None:
    half = torch.empty(8, dtype=torch.float16, device="meta")
    result, operators = traced(torch.float16, "torch", "atan2", (half, half), {})
    assert result.dtype == torch.float16
    assert [name for name, *_ in operators] == ["aten.atan2"]


@pytest.mark.parametrize(
    ("op", "args", "out"),
    [c for c in LISTS.torch_expect_builtin_promote if c[0] != "equal"],  # equal asks for the value
)
def test_builtin_promotion_is_left_alone(op: str, args: Any, out: torch.dtype) -> None:
    result, operators = traced(torch.float16, "torch", op, args, {})
    assert result.dtype == out
    assert operators == traced(None, "torch", op, args, {})[1]


@pytest.mark.parametrize(("op", "args", "module"), LISTS.banned)
def test_banned_raises(op: str, args: Any, module: Any) -> None:
    with intercept.region(torch.float16), pytest.raises(CaptureError, match="binary_cross_entropy_with_logits"):
        getattr(module, op)(*args)
    getattr(module, op)(*args)


def test_einsum_and_attention_run_low() -> None:
    a = torch.empty(2, 3, 4, 8, device="meta")
    result, operators = traced(torch.bfloat16, "torch", "einsum", ("bkhd,bqhd->bqkh", a, a), {})
    assert result.dtype == torch.bfloat16
    assert ("aten.bmm", ("bfloat16", "bfloat16"), ("bfloat16",)) in operators
    _, operators = traced(torch.bfloat16, "nn", "scaled_dot_product_attention", (a, a, a), {})
    assert operators[-1] == ("pt.attention", ("bfloat16",) * 3, ("bfloat16", "float32"))


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32], ids=str)
@pytest.mark.parametrize(
    "function",
    [F.relu, F.gelu, F.silu, torch.sigmoid, lambda x: x + x, lambda x: x * 2, F.dropout,
     lambda x: F.max_pool2d(x, 2), lambda x: F.avg_pool2d(x, 2), lambda x: torch.cat([x, x]), torch.mean],
)  # fmt: skip
def test_pass_through_runs_in_its_inputs_dtype(function: Any, dtype: torch.dtype) -> None:
    x = torch.empty(1, 2, 4, 4, dtype=dtype, device="meta")
    with intercept.region(torch.float16):
        assert function(x).dtype == dtype


def test_batch_norm_takes_half_input_with_fp32_statistics() -> None:
    norm = nn.BatchNorm2d(2, device="meta")
    tracer = Tracer()
    with tracer, intercept.region(torch.float16):
        norm(torch.empty(1, 2, 4, 4, dtype=torch.float16, device="meta"))
    name, inputs, outputs = next(row for row in stream(tracer) if "norm" in row[0])
    assert name == "aten.native_batch_norm"
    assert inputs == ("float16", *["float32"] * 4)
    assert outputs == ("float16", "float32", "float32")


def test_softmax_is_one_kernel_in_float16_and_a_cast_first_in_bfloat16() -> None:
    for low, expected in ((torch.float16, ["aten._softmax"]), (torch.bfloat16, ["aten._to_copy", "aten._softmax"])):
        x = torch.empty(4, 8, dtype=low, device="meta")
        result, operators = traced(low, "torch", "softmax", (x, -1), {})
        assert [name for name, *_ in operators] == expected
        assert result.dtype == torch.float32


def test_double_is_left_alone() -> None:
    a = torch.empty(8, 8, dtype=torch.float64, device="meta")
    result, operators = traced(torch.float16, "torch", "mm", (a, a), {})
    assert result.dtype == torch.float64
    assert len(operators) == 1


def test_the_cast_of_a_weight_is_not_taken_for_another_weight_in_its_place() -> None:
    """Python gives the id of a tensor that is gone to the next one; widths differ, so a wrong cast would show."""
    ids = set()
    with torch.device("meta"), intercept.region(torch.bfloat16), torch.no_grad():
        x = torch.zeros(2, 4)
        for i in range(100):
            weight = torch.zeros(4, 3 + i % 7, requires_grad=True)
            ids.add(id(weight))
            assert torch.mm(x, weight).shape == (2, 3 + i % 7)
            del weight
    assert len(ids) < 100, "no id came twice, so nothing was tested"


def test_a_weight_is_cast_once_in_a_region() -> None:
    tracer = Tracer()
    with torch.device("meta"), tracer, intercept.region(torch.bfloat16):
        x, weight = torch.zeros(2, 4), torch.zeros(4, 3, requires_grad=True)
        for _ in range(3):
            torch.mm(x, weight)
    casts = [call for call in tracer.calls if list(tracer.kinds)[call.kind].name == "aten._to_copy"]
    assert len([c for c in casts if list(tracer.kinds)[c.kind].inputs[0].shape == (4, 3)]) == 1


def test_nothing_changes_outside_a_region() -> None:
    a = torch.empty(8, 8, device="meta")
    with intercept.region(torch.float16):
        pass
    assert torch.mm(a, a).dtype == torch.float32
    assert not torch.is_autocast_enabled("cuda")


# --- weights and gradients --------------------------------------------------------------------------------------


class Twice(nn.Module):
    """One linear layer used twice."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(16, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(self.layer(x))


def test_a_weight_is_cast_once_per_region_and_its_gradient_once_back() -> None:
    graph = trace(lambda: total(Twice(), torch.ones(4, 16)), "autocast")
    casts = [kind for _, kind in rows(graph, Phase.FORWARD) if kind.name == "aten._to_copy"]
    shapes = sorted(k.inputs[0].shape for k in casts)
    assert shapes == [(4, 16), (16,), (16, 16)]  # input, bias, weight; the second use finds them in the cache
    back = [k for _, k in rows(graph, Phase.BACKWARD) if k.name == "aten._to_copy" and k.outputs[0].dtype == "float32"]
    assert sorted(k.inputs[0].shape for k in back) == [(16,), (16, 16)]


@pytest.mark.parametrize(
    ("regime", "weight", "gradient"),
    [("full", "float32", "float32"), ("autocast", "float32", "float32"), ("half", "bfloat16", "bfloat16")],
)
def test_gradients_have_the_dtype_of_their_leaf(regime: str, weight: str, gradient: str) -> None:
    for build in (cnn, transformer):
        graph = trace(build, regime)
        assert {p.dtype for p in graph.parameters} == {weight}
        assert {p.grad_dtype for p in graph.parameters} == {gradient}


class Careful(nn.Module):
    """A layer that switches autocast off, as loss code often does."""

    def __init__(self) -> None:
        super().__init__()
        self.inside, self.outside = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cuda", enabled=False):
            x = self.inside(x.float())
        return self.outside(x)


def test_a_nested_disabled_region_is_obeyed() -> None:
    graph = trace(lambda: total(Careful(), torch.ones(4, 8)), "autocast")
    products = [k.outputs[0].dtype for _, k in rows(graph, Phase.FORWARD) if k.name == "aten.addmm"]
    assert products == ["float32", "bfloat16"]


def test_composite_operators_are_seen_from_inside() -> None:
    """cross_entropy asks for its log-softmax in the logits' dtype; nll_loss inside it is on the fp32 list.

    (aten/src/ATen/native/LossNLL.cpp; only the CPU has an autocast kernel for cross_entropy_loss itself.)
    """
    x = torch.empty(4, 8, dtype=torch.bfloat16, device="meta")
    target = torch.zeros(4, dtype=torch.int64, device="meta")
    result, operators = traced(torch.bfloat16, "nn", "cross_entropy_loss", (x, target), {})
    assert result.dtype == torch.float32
    assert [(name, out[0]) for name, _, out in operators] == [
        ("aten._log_softmax", "bfloat16"), ("aten._to_copy", "float32"), ("aten.nll_loss_forward", "float32"),
    ]  # fmt: skip


@pytest.mark.parametrize("device", ["cuda", "meta"])
def test_model_code_may_open_regions_of_its_own(device: str) -> None:
    class Own(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(8, 8)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            with torch.autocast(device, enabled=False):
                x = self.layer(x.float())
            with torch.autocast(device_type=device, dtype=torch.float16):
                x = self.layer(x)
            return self.layer(x)

    graph = trace(lambda: total(Own(), torch.ones(4, 8)), "autocast")
    products = [k.outputs[0].dtype for _, k in rows(graph, Phase.FORWARD) if k.name == "aten.addmm"]
    assert products == ["float32", "float16", "bfloat16"]


@pytest.mark.parametrize("device", ["cuda", "meta"])
def test_model_code_may_ask_whether_autocast_is_on(device: str) -> None:
    class Asks(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.ones(8))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            assert torch.is_autocast_enabled(device)
            assert torch.is_autocast_enabled(device_type=device)
            with torch.autocast(device, enabled=False):
                assert not torch.is_autocast_enabled(device)
            return (x * self.scale).to(torch.get_autocast_dtype(device)).sin()

    graph = trace(lambda: total(Asks(), torch.ones(4, 8)), "autocast")
    assert set(dtypes(only(graph, "aten.sin").inputs)) == {"bfloat16"}
    with pytest.raises(RuntimeError, match="unknown device type"):
        torch.is_autocast_enabled("meta")


def test_fused_replacements_cast_like_autocast() -> None:
    graph = trace(lambda: total(nn.LSTM(8, 8), torch.ones(5, 2, 8)), "autocast")
    assert set(dtypes(only(graph, "pt.rnn").inputs)) == {"bfloat16"}
    assert {p.grad_dtype for p in graph.parameters} == {"float32"}


def test_classes_of_the_two_devices_differ_where_they_should() -> None:
    x = torch.empty(4, 8, dtype=torch.bfloat16, device="meta")
    with intercept.region(torch.bfloat16, device="cuda"):
        assert F.softmax(x, -1).dtype == torch.float32
    with intercept.region(torch.bfloat16, device="cpu"):
        assert F.softmax(x, -1).dtype == torch.bfloat16
    assert CLASSES["cpu"]["nll_loss"] is CastClass.FP32


# --- a step really executed -------------------------------------------------------------------------------------


class Executed(Tracer):
    """The tracer on real tensors: every operator is computed."""

    def _run(self, func: Any, args: Any, kwargs: Any, inputs: Any) -> Any:
        return func(*args, **kwargs)


def executed(workload: Workload, dtype: torch.dtype) -> Stream:
    workload.module.train()
    tracer = Executed()
    with tracer:
        with torch.autocast("cpu", dtype=dtype):
            loss = workload.loss(workload.module, workload.inputs)
        loss.backward()
    assert torch.isfinite(loss)
    return stream(tracer)


def captured(graph: OpGraph) -> Stream:
    return [(kind.name, dtypes(kind.inputs), dtypes(kind.outputs)) for _, kind in rows(graph)]


def block_only(fused_attention: bool) -> Workload:
    def loss(module: nn.Module, inputs: dict[str, torch.Tensor]) -> torch.Tensor:
        return F.mse_loss(module(inputs["x"]), inputs["target"])

    inputs = {"x": torch.ones(2, 8, 32), "target": torch.zeros(2, 8, 32)}
    return Workload(Block(32, 4, fused_attention), inputs, loss)


class Mixed(nn.Module):
    """Operators whose CPU class differs from their CUDA class, and one weight used twice."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(16, 16)
        self.transposed = nn.ConvTranspose1d(16, 4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.cat([self.layer(self.layer(x)), x])  # promote
        x = torch.einsum("bi,bj->ij", x, x)  # no kernel of its own on the CPU: what it is made of is cast
        x = torch.stack([torch.exp(x), x]).sum(0).cumsum(-1)
        x = F.softplus(self.transposed(F.group_norm(x.unsqueeze(-1), 4)))
        return F.log_softmax(x.flatten(1), -1)


def mixed() -> Workload:
    inputs = {"x": torch.ones(4, 16), "target": torch.zeros(16, dtype=torch.int64)}
    return Workload(Mixed(), inputs, cross_entropy)


# The CPU has its own fused attention kernels; capture knows one fused attention for every device.
ON_CPU = {
    "aten._scaled_dot_product_flash_attention_for_cpu": "pt.attention",
    "aten._scaled_dot_product_flash_attention_for_cpu_backward": "pt.attention_backward",
}


def mapped(operators: Stream) -> Stream:
    return [(ON_CPU.get(name, name), inputs, outputs) for name, inputs, outputs in operators]


@pytest.mark.parametrize(
    "build",
    [cnn, transformer, lambda: transformer(fused=True), lambda: block_only(False), mixed],
    ids=["cnn", "transformer", "fused attention", "block", "mixed"],
)
def test_captured_dtypes_equal_those_of_an_executed_cpu_step(build: Any) -> None:
    graph = trace(build, "autocast", device_rules="cpu")
    assert captured(graph) == mapped(executed(build(), torch.bfloat16))


def test_cpu_and_cuda_rules_give_different_streams() -> None:
    """The comparison above would not pass with the other device's lists."""
    assert captured(trace(transformer, "autocast")) != captured(trace(transformer, "autocast", device_rules="cpu"))
    assert names(trace(transformer, "full")) != names(trace(transformer, "autocast"))
