"""Steps with images stored channels last: the trace on the meta device against real execution on a CPU."""

from __future__ import annotations

import csv
import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402
from torch.utils._pytree import tree_flatten  # noqa: E402

from precision_time.capture.channels_last import convert, converted, is_last  # noqa: E402
from precision_time.capture.graph import OpGraph, OpSignature, TensorSpec  # noqa: E402
from precision_time.capture.step import Regime, capture  # noqa: E402
from precision_time.capture.tracer import Tracer  # noqa: E402
from precision_time.capture.training_step import training_step  # noqa: E402
from precision_time.job import Job  # noqa: E402
from precision_time.measure.train import Trainer  # noqa: E402
from precision_time.timing.operators import WorkOptions, works  # noqa: E402
from precision_time.zoo.workload import Workload  # noqa: E402

COPIES = frozenset({"aten.clone.default", "aten._to_copy.default", "aten.copy_.default", "aten.contiguous.default"})
WIDTH, CLASSES, SIDE = 16, 10, 32


def conv(inputs: int, outputs: int, side: int = 3, stride: int = 1, **options: Any) -> nn.Module:
    return nn.Conv2d(inputs, outputs, side, stride, padding=side // 2, **options)


def normed(inputs: int, outputs: int, side: int = 3, stride: int = 1, **options: Any) -> nn.Sequential:
    return nn.Sequential(conv(inputs, outputs, side, stride, bias=False, **options), nn.BatchNorm2d(outputs))


class Network(nn.Module):
    """A stem of stride two, a body and a classifier of the mean over positions."""

    def __init__(self, out: int = WIDTH) -> None:
        super().__init__()
        self.stem, self.head = normed(3, WIDTH, stride=2), nn.Linear(out, CLASSES)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        return self.head(self.pooled(self.body(F.relu(self.stem(image)))))

    def pooled(self, x: torch.Tensor) -> torch.Tensor:
        return x.mean((2, 3))

    def body(self, x: torch.Tensor) -> torch.Tensor:
        raise NotImplementedError


class Residual(Network):
    def __init__(self) -> None:
        super().__init__(2 * WIDTH)
        self.a, self.b, self.skip = normed(WIDTH, WIDTH), normed(WIDTH, 2 * WIDTH, 3, 2), normed(WIDTH, 2 * WIDTH, 1, 2)

    def body(self, x: torch.Tensor) -> torch.Tensor:
        x = F.max_pool2d(x, 3, 2, 1)
        return F.relu(self.b(F.relu(self.a(x))) + self.skip(x))

    def pooled(self, x: torch.Tensor) -> torch.Tensor:
        return torch.flatten(F.adaptive_avg_pool2d(x, 1), 1)


class InvertedBottleneck(Network):
    def __init__(self) -> None:
        super().__init__()
        wide = 4 * WIDTH
        self.up, self.deep = normed(WIDTH, wide, 1), normed(wide, wide, groups=wide)
        self.down = normed(wide, WIDTH, 1)

    def body(self, x: torch.Tensor) -> torch.Tensor:
        return F.relu6(x + self.down(F.relu6(self.deep(F.hardswish(self.up(x))))))


class ChannelShuffle(Network):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = normed(WIDTH // 2, WIDTH // 2, 1), conv(WIDTH // 2, WIDTH // 2, groups=WIDTH // 2)
        self.last = conv(WIDTH, WIDTH, 1)

    def body(self, x: torch.Tensor) -> torch.Tensor:
        left, right = x.chunk(2, 1)
        x = torch.cat([left, self.b(F.relu(self.a(right)))], 1)
        n, c, h, w = x.shape
        x = x.reshape(n, 2, c // 2, h, w).transpose(1, 2).contiguous()
        return self.last(x.view(n, c, h, w))


class SqueezeExcite(Network):
    def __init__(self) -> None:
        super().__init__()
        self.squeeze, self.excite = conv(WIDTH, 4, 1), conv(4, WIDTH, 1)
        self.narrow, self.wide = nn.Linear(WIDTH, 4), nn.Linear(4, WIDTH)
        self.last = conv(WIDTH, WIDTH)

    def body(self, x: torch.Tensor) -> torch.Tensor:
        x = F.silu(x)
        x = x * torch.sigmoid(self.excite(F.relu(self.squeeze(F.adaptive_avg_pool2d(x, 1)))))
        gate = F.hardsigmoid(self.wide(F.relu(self.narrow(F.adaptive_avg_pool2d(x, 1).flatten(1)))))
        return F.avg_pool2d(self.last(x * gate.view(*gate.shape, 1, 1)), 2)


class ConvNext(Network):
    def __init__(self) -> None:
        super().__init__(2 * WIDTH)
        self.deep, self.norm = conv(WIDTH, WIDTH, 7, groups=WIDTH), nn.LayerNorm(WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)
        self.scale = nn.Parameter(torch.ones(WIDTH, 1, 1))
        self.last = nn.Conv2d(WIDTH, 2 * WIDTH, 2, 2)

    def body(self, x: torch.Tensor) -> torch.Tensor:
        y = self.down(F.gelu(self.up(self.norm(self.deep(x).permute(0, 2, 3, 1)))))
        x = x + self.scale * y.permute(0, 3, 1, 2)
        return self.last(self.norm(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2))


class Dense(Network):
    def __init__(self) -> None:
        super().__init__(WIDTH * 16)
        self.a, self.b, self.last = conv(WIDTH, 8), conv(WIDTH + 8, 8), conv(WIDTH + 16, WIDTH, 1)

    def body(self, x: torch.Tensor) -> torch.Tensor:
        a = self.a(F.leaky_relu(x))
        b = self.b(F.elu(torch.cat([x, a], 1)))
        return self.last(torch.cat([x, a, b], 1))

    def pooled(self, x: torch.Tensor) -> torch.Tensor:
        return F.avg_pool2d(x, 4).flatten(1)


class Patches(Network):
    def __init__(self) -> None:
        super().__init__()
        self.patch, self.token = nn.Conv2d(WIDTH, WIDTH, 4, 4), nn.Parameter(torch.zeros(1, 1, WIDTH))
        self.norm, self.qkv, self.out = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def body(self, x: torch.Tensor) -> torch.Tensor:
        x = self.patch(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(len(x), -1, -1), x], 1)
        q, k, v = self.qkv(self.norm(x)).reshape(*x.shape[:2], 3, 2, WIDTH // 2).permute(2, 0, 3, 1, 4).unbind(0)
        mixed = (q @ k.transpose(-2, -1)).softmax(-1) @ v
        return x + self.out(mixed.transpose(1, 2).reshape(x.shape))

    def pooled(self, x: torch.Tensor) -> torch.Tensor:
        return x[:, 0]


class Unet(Network):
    def __init__(self) -> None:
        super().__init__(8)
        self.low, self.up = conv(WIDTH, 2 * WIDTH, 3, 2), nn.ConvTranspose2d(2 * WIDTH, WIDTH, 2, 2)
        self.norm, self.join, self.last = nn.InstanceNorm2d(WIDTH, affine=True), conv(2 * WIDTH, WIDTH), conv(48, 8)

    def body(self, x: torch.Tensor) -> torch.Tensor:
        low = F.relu(self.low(self.norm(x)))
        y = F.softplus(self.join(torch.cat([self.up(low), x], 1)))
        smooth = F.interpolate(low, scale_factor=2, mode="bilinear", align_corners=False)
        y = self.last(torch.cat([y, smooth], 1))
        return F.pad(F.interpolate(F.max_pool2d(y, 2), scale_factor=2) + y, (1, 1, 1, 1))


NETWORKS = (Residual, InvertedBottleneck, ChannelShuffle, SqueezeExcite, ConvNext, Dense, Patches, Unet)


# --- what runs: operators with the layout of their results -----------------------------------------------------------


def layout(value: Any) -> list[Any]:
    """Shape, dtype and strides of every tensor. The stride of a dimension of one addresses nothing, and kernels of
    CPU and CUDA set it differently."""
    tensors = [t for t in tree_flatten(value)[0] if isinstance(t, torch.Tensor)]
    return [
        (tuple(t.shape), t.dtype, tuple(s for s, n in zip(t.stride(), t.shape, strict=True) if n > 1)) for t in tensors
    ]


class Executed(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.operators: list[tuple[str, list[Any]]] = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        out = function(*args, **(kwargs or {}))
        self.operators.append((str(function), layout(out)))
        return out


class Traced(Tracer):
    def __init__(self, channels_last: bool) -> None:
        super().__init__(channels_last=channels_last)
        self.operators: list[tuple[str, list[Any]]] = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        out = super().__torch_dispatch__(function, types, args, kwargs)
        self.operators.append((str(function), layout(out)))
        return out


def workload(network: Callable[[], nn.Module]) -> Workload:
    inputs = {"x": torch.ones(4, 3, SIDE, SIDE), "y": torch.zeros(4, dtype=torch.int64)}
    return Workload(network(), inputs, lambda model, named: F.cross_entropy(model(named["x"]), named["y"]))


def executed(network: type[nn.Module], last: bool, autocast: bool = False) -> list[tuple[str, list[Any]]]:
    """As a user trains: weights and images in the format, forward and backward on a CPU."""
    one = workload(network)
    image = one.inputs["x"]
    if last:
        one.module.to(memory_format=torch.channels_last)
        image = image.to(memory_format=torch.channels_last)
    with Executed() as mode:
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            loss = one.loss(one.module, {**one.inputs, "x": image})
        loss.backward()
    return mode.operators


def traced(
    network: type[nn.Module], last: bool, regime: Regime = Regime.FULL
) -> tuple[list[tuple[str, list[Any]]], OpGraph]:
    tracer = Traced(last)
    graph = capture(lambda: workload(network), regime, device_rules="cpu", tracer=tracer)
    return tracer.operators, graph


@pytest.mark.parametrize("last", [False, True], ids=["nchw", "nhwc"])
@pytest.mark.parametrize("network", NETWORKS)
def test_a_trace_runs_the_operators_of_a_cpu_with_the_same_strides(network: type[nn.Module], last: bool) -> None:
    """Also the copies, then. In rows, a layer norm leaves the input of ConvNeXt's convolution channels last, and so is
    its result."""
    real, trace = executed(network, last), traced(network, last)[0]
    assert [name for name, _ in real] == [name for name, _ in trace]
    assert [each for each in real if each[0] in COPIES] == [each for each in trace if each[0] in COPIES]
    assert [each for each in zip(real, trace, strict=True) if each[0] != each[1]] == []


@pytest.mark.parametrize("network", [Residual, SqueezeExcite, Dense, Unet])
def test_autocast_keeps_the_format(network: type[nn.Module]) -> None:
    """Casts included, in any order: a CPU casts the weight of a convolution before its input, a trace after it."""
    real, trace = executed(network, True, autocast=True), traced(network, True, Regime.AUTOCAST)[0]
    assert sorted(map(str, real)) == sorted(map(str, trace))


def copied(graph: OpGraph) -> list[tuple[str, tuple[int, ...]]]:
    kinds = [(graph.kinds[call.kind], graph.modules[call.module]) for call in graph.calls]
    return [(module, kind.inputs[0].shape) for kind, module in kinds if kind.name == "aten.clone"]


def test_convolutions_copy_parts_of_channels_and_what_is_in_rows() -> None:
    """In either format a convolution copies half of the channels, in both directions, and a gradient that is half of
    one. The shuffled channels are a view of a copy in rows: in NHWC the next convolution copies them in both
    directions, with the gradient, which comes from the mean over positions in rows."""
    rows, last = (copied(traced(ChannelShuffle, x)[1]) for x in (False, True))
    images, half = (4, WIDTH, 16, 16), (4, WIDTH // 2, 16, 16)
    assert rows == [("a.0", half), ("", (4, 8, 2, 16, 16)), ("", (4, 2, 8, 16, 16)), ("b", half), ("a.0", half)]
    assert sorted(last) == sorted([*rows, ("last", images), ("last", images), ("last", images)])


def test_a_batch_norm_copies_a_gradient_in_rows() -> None:
    assert copied(traced(InvertedBottleneck, False)[1]) == []
    assert copied(traced(InvertedBottleneck, True)[1]) == [("down.1", (4, WIDTH, 16, 16))]


def test_a_layer_norm_copies_what_is_not_in_rows() -> None:
    """Images in NCHW, seen as rows of channels: twice forward and twice backward."""
    of_norms = [[each for each in copied(traced(ConvNext, last)[1]) if each[0] == "norm"] for last in (False, True)]
    assert of_norms == [4 * [("norm", (4, 16, 16, WIDTH))], []]


def test_a_copy_lives_until_its_convolution_has_run() -> None:
    graph = traced(ChannelShuffle, True)[1]
    at = next(i for i, call in enumerate(graph.calls) if graph.modules[call.module] == "last")
    clone, convolution = graph.calls[at : at + 2]
    storage = graph.storages[clone.writes[0]]
    assert clone.writes[0] in convolution.reads
    assert clone.reads[0] not in convolution.reads
    assert (storage.born, storage.dies) == (at, at + 1)


def formats(graph: OpGraph, name: str) -> list[tuple[str, bool]]:
    """The module of every call of an operator, and whether its kernel is one for channels last in a job in NCHW."""
    calls = [(graph.modules[call.module], graph.kinds[call.kind]) for call in graph.calls]
    return [(module, kind.attr("channels_last") is True) for module, kind in calls if kind.name == name]


@pytest.mark.parametrize("network", NETWORKS)
def test_in_nchw_a_convolution_runs_channels_last_where_its_operands_are(network: type[nn.Module]) -> None:
    """As its result on a CPU is, which follows the same rule; backward as forward."""
    real = [tensors[0] for name, tensors in executed(network, False) if name == "aten.convolution.default"]
    graph = traced(network, False)[1]
    forward = formats(graph, "aten.convolution")
    assert [last for _, last in forward] == [len(strides) == 4 and strides[1] == 1 for _, _, strides in real]
    assert sorted(formats(graph, "aten.convolution_backward")) == sorted(forward)
    assert not any(last for _, last in formats(traced(network, True)[1], "aten.convolution"))  # the job says so


def test_convnext_runs_channels_last_in_nchw_behind_its_first_layer_norm() -> None:
    assert formats(traced(ConvNext, False)[1], "aten.convolution") == [
        ("stem.0", False), ("deep", False), ("last", True),
    ]  # fmt: skip
    graph = training_step(Job("convnext-t", precision="amp-fp16", memory_format="nchw")).graph
    last = [each for _, each in formats(graph, "aten.convolution")]
    assert (last.count(True), len(last)) == (21, 22)
    residual = training_step(Job("resnet-50", precision="amp-fp16", memory_format="nchw")).graph
    assert not any(each for _, each in formats(residual, "aten.convolution"))


def test_kernels_of_permuted_tensors_are_those_of_nhwc() -> None:
    image, filters = TensorSpec((8, 96, 56, 56), "float16"), TensorSpec((96, 1, 7, 7), "float16")
    attrs = (("stride", (1, 1)), ("padding", (3, 3)), ("dilation", (1, 1)), ("groups", 96), ("transposed", False))
    plain = OpSignature("aten.convolution", (image, filters), (image,), attrs)
    permuted = OpSignature("aten.convolution", (image, filters), (image,), (*attrs, ("channels_last", True)))
    rows, last = WorkOptions(), WorkOptions(channels_last=True)
    assert works(plain, rows)[0].variant == "fwd.native"
    assert works(permuted, rows) == works(plain, last) == works(permuted, last)
    double = dataclasses.replace(permuted, inputs=tuple(TensorSpec(x.shape, "float64") for x in permuted.inputs))
    assert works(double, rows)[0].variant == "fwd.native"
    norm = OpSignature("aten.native_batch_norm", (image,), (image,), (("training", True),))
    permuted = OpSignature(norm.name, norm.inputs, norm.outputs, (*norm.attrs, ("channels_last", True)))
    assert works(permuted, rows) == works(norm, last) != works(norm, rows)


POINTWISE: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "hardtanh": lambda g, x: torch.ops.aten.hardtanh_backward(g, x, 0, 6),
    "hardswish": torch.ops.aten.hardswish_backward,
    "hardsigmoid": torch.ops.aten.hardsigmoid_backward,
    "softplus": lambda g, x: torch.ops.aten.softplus_backward(g, x, 1, 20),
    "elu": lambda g, x: torch.ops.aten.elu_backward(g, 1, 1, 1, True, x),
    "silu": torch.ops.aten.silu_backward,
    "gelu": torch.ops.aten.gelu_backward,
    "mish": torch.ops.aten.mish_backward,
    "relu": lambda g, x: torch.ops.aten.threshold_backward(g, x, 0),
    "leaky relu": lambda g, x: torch.ops.aten.leaky_relu_backward(g, x, 0.1, True),
    "dropout": lambda g, x: torch.ops.aten.native_dropout_backward(g, x > 0, 2.0),
    "sum": torch.add,
    "product": torch.mul,
    "cat": lambda g, x: torch.cat([g, x], 1),
    "cast": lambda g, x: x.to(torch.bfloat16),
    "mean": lambda g, x: x.mean(1, keepdim=True),
    "pad": lambda g, x: F.pad(x, (1, 1, 1, 1)),
    "max pool": lambda g, x: F.max_pool2d(x, 2),
    "average pool": lambda g, x: F.avg_pool2d(x, 2),
    "adaptive pool": lambda g, x: F.adaptive_avg_pool2d(x, 2),
    "nearest": lambda g, x: F.interpolate(x, scale_factor=2),
    "bilinear": lambda g, x: F.interpolate(x, scale_factor=2, mode="bilinear"),
    "bicubic": lambda g, x: F.interpolate(x, scale_factor=2, mode="bicubic"),
}


@pytest.mark.parametrize("gradient_last", [False, True])
@pytest.mark.parametrize("name", POINTWISE)
def test_results_are_laid_out_as_on_a_cpu(name: str, gradient_last: bool) -> None:
    """Of an operand channels last and one that is or is not."""

    def result(device: str) -> torch.Tensor:
        x = converted(torch.ones(2, 8, 4, 4, device=device))
        return POINTWISE[name](torch.ones_like(x) if gradient_last else torch.ones(2, 8, 4, 4, device=device), x)

    with Tracer(channels_last=True):
        trace = result("meta")
    assert trace.stride() == result("cpu").stride()


def test_pixel_shuffle_writes_rows_on_a_gpu_but_not_on_a_cpu() -> None:
    """CUDA has no kernel of its own for it: it permutes a view and copies that (aten/src/ATen/native/PixelShuffle.cpp,
    math_pixel_shuffle)."""
    real, trace = (F.pixel_shuffle(converted(torch.ones(2, 8, 4, 4, device=d)), 2) for d in ("cpu", "meta"))
    assert is_last(real)
    assert trace.is_contiguous()


# --- conversion and jobs ----------------------------------------------------------------------------------------------


def test_weights_are_converted_as_module_to_does() -> None:
    user, ours = Residual(), Residual()
    user.to(memory_format=torch.channels_last)
    convert(ours)
    assert [p.stride() for p in user.parameters()] == [p.stride() for p in ours.parameters()]
    volumes = nn.Conv3d(4, 8, 3)
    convert(volumes)
    assert is_last(volumes.weight)
    assert is_last(converted(torch.ones(2, 4, 3, 3, 3)))
    tokens = torch.zeros(2, 3, 4, 5, dtype=torch.int64)
    assert converted(tokens) is tokens


def test_volumes_are_trained_in_the_format_in_which_they_are_traced(tmp_path: Path) -> None:
    """The trace of a user's file, and a real step of it on a CPU."""
    path = tmp_path / "volumes.py"
    path.write_text(
        "import torch\n"
        "from torch import nn\n"
        "def make(batch_size=2):\n"
        "    model = nn.Sequential(nn.Conv3d(2, 8, 3), nn.BatchNorm3d(8), nn.ReLU(), nn.Flatten(), nn.Linear(512, 4))\n"
        "    return {'model': model, 'inputs': torch.zeros(batch_size, 2, 6, 6, 6), 'loss': lambda y: y.sum()}\n"
    )
    job = Job(f"{path}:make", precision="fp32", memory_format="nhwc")
    with Executed() as mode:
        Trainer(job, torch.device("cpu")).step()
    real = next(tensors for name, tensors in mode.operators if name == "aten.native_batch_norm.default")
    assert real[0][2] == (8 * 4**3, 1, 8 * 4**2, 8 * 4, 8)
    traced_clones = {x: copied(training_step(job.replace(memory_format=x)).graph) for x in ("nchw", "nhwc")}
    assert traced_clones == {"nchw": [], "nhwc": [("3", (2, 8, 4, 4, 4))]}
    clones = [tensors[0][0] for name, tensors in mode.operators if name == "aten.clone.default"]
    assert [shape for shape in clones if shape[0] == 2] == [(2, 8, 4, 4, 4)]  # others are the optimizer's


def test_the_format_matters_to_models_with_images_alone() -> None:
    def steps(model: str, **fields: Any) -> list[Any]:
        job = Job(model, **fields)
        return [training_step(job.replace(memory_format=x)) for x in ("nchw", "nhwc")]

    for text in ("bert-base", "jasper-10x5dr", "dlrm-small"):
        rows, last = steps(text, precision="amp-fp16")
        assert rows is last
    rows, last = steps("mobilenet-v3-large", precision="amp-fp16")
    assert rows.graph is not last.graph
    assert len(copied(last.graph)) == len(copied(rows.graph)) + 1


@pytest.mark.parametrize("framework", ["tensorflow1", "tensorflow2", "paddle"])
def test_frameworks_with_a_format_of_their_own_make_none_of_the_copies_of_pytorch(framework: str) -> None:
    """PyTorch's instance norm copies its images to channels first and back."""
    job = Job("nnunet-2d", precision="amp-fp16", memory_format="nhwc")
    there, here = (training_step(each).graph for each in (job.replace(framework=framework), job))
    assert len(copied(there)) == len(copied(training_step(job.replace(memory_format="nchw")).graph)) < len(copied(here))


def test_a_framework_whose_kernels_read_the_format_copies_parts_alone() -> None:
    """MXNet's instance norm reads volumes channels last, so that gradients of joined volumes are all that is copied, as
    in rows. PyTorch copies 2 x 32 x 128^3 as often as a step on an H100 in either format (`data/measured`)."""
    graphs = {
        (framework, memory_format): training_step(
            Job("unet3d", precision="amp-fp16", framework=framework, memory_format=memory_format)
        ).graph
        for framework in ("pytorch", "mxnet")
        for memory_format in ("nchw", "nhwc")
    }
    parts = copied(graphs["mxnet", "nhwc"])
    assert parts == copied(graphs["pytorch", "nchw"])
    assert [module for module, _ in parts] == [f"up.{i}" for i in (4, 3, 2, 1, 0)]
    largest = (2, 32, 128, 128, 128)
    copies = {
        memory_format: [shape for _, shape in copied(graphs["pytorch", memory_format])].count(largest)
        for memory_format in ("nchw", "nhwc")
    }
    with (Path(__file__).parents[1] / "data/measured/h100/profiled.csv").open(newline="") as file:
        lines = [line for line in csv.DictReader(file) if (line["model"], line["operator"]) == ("unet3d", "aten.copy_")]
    sizes = ";".join(["x".join(map(str, largest))] * 2)
    seen = {line["memory_format"]: int(line["calls"]) for line in lines if line["shapes"] == sizes}
    assert seen == copies == {"nchw": 1, "nhwc": 17}


def test_convolutions_in_double_precision_run_in_rows() -> None:
    rows, last = (training_step(Job("mobilenet-v3-large", precision="fp64", memory_format=x)) for x in ("nchw", "nhwc"))
    assert rows is last
