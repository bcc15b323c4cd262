"""Pointwise kernels that load each element alone, and pooling: time by elements where bytes take less."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from precision_time.capture.graph import OpSignature, TensorSpec
from precision_time.capture.tracer import Tracer
from precision_time.hardware.catalog import default_catalog
from precision_time.hardware.gpu import Gpu
from precision_time.timing.kernel_factors import NO_FACTORS
from precision_time.timing.kernels import KernelModel
from precision_time.timing.operators import WorkOptions, works
from precision_time.timing.work import Work

IMAGE = (128, 256, 56, 56)
WHOLE = TensorSpec(IMAGE, "float16")
MODEL = KernelModel(scales={}, factors=NO_FACTORS)


def gpu(name: str) -> Gpu:
    return default_catalog().gpu(name)


def of(name: str, *tensors: TensorSpec) -> Work:
    """The work of an operator on tensors, of which the last is its result."""
    (work,) = works(OpSignature(f"aten.{name}", tensors[:-1], tensors[-1:]), WorkOptions()) or []
    return work


def seconds(work: Work, device: Gpu) -> float:
    return float(MODEL.seconds([work], device).seconds[0])


def like(shape: tuple[int, ...] = IMAGE, dtype: str = "float16") -> TensorSpec:
    return TensorSpec(shape, dtype)


@pytest.mark.parametrize(
    ("name", "tensors", "alone"),
    [
        ("relu", (WHOLE, WHOLE), False),
        ("add", (WHOLE, WHOLE, WHOLE), False),
        ("where", (like(dtype="bool"), WHOLE, WHOLE, WHOLE), False),
        ("eq", (WHOLE, WHOLE, like(dtype="bool")), False),
        ("gelu_backward", (WHOLE, WHOLE, WHOLE), False),
        ("bitwise_and", (like(dtype="bool"), like(dtype="bool"), like(dtype="bool")), False),
        ("mul", (WHOLE, like((128, 256, 1, 1)), WHOLE), True),
        ("add", (WHOLE, like((256,)), WHOLE), True),
        ("add", (WHOLE, like(dtype="float32"), like(dtype="float32")), True),
        ("gelu_backward", (WHOLE, like((1, 256, 1, 1)), WHOLE), True),
    ],
)
def test_operands_of_another_shape_or_dtype_are_loaded_alone(
    name: str, tensors: tuple[TensorSpec, ...], alone: bool
) -> None:
    direction = "bwd" if "backward" in name else "fwd"
    assert of(name, *tensors).variant == (f"{direction}.by_element" if alone else direction)


ARGUMENTS: dict[str, Callable[[torch.Tensor], tuple[torch.Tensor, ...]]] = {
    "rows": lambda x: (x, x),
    "both transposed": lambda x: (x.transpose(1, 2), x.transpose(1, 2)),
    "one transposed": lambda x: (x.transpose(1, 2).contiguous(), x.transpose(1, 2)),
    "a part of each row": lambda x: (x[..., :3], x[..., :3]),
    "the first samples": lambda x: (x[:2], x[:2]),
    "repeated in place": lambda x: (x, x[:, :1].expand_as(x)),
    "a dimension of one": lambda x: (x[:, :1].transpose(0, 1), x[:, :1].transpose(0, 1)),
    "channels last": lambda x: (x.contiguous(memory_format=torch.channels_last),) * 2,
    "one channels last": lambda x: (x, x.contiguous(memory_format=torch.channels_last)),
    "the other channels last": lambda x: (x.contiguous(memory_format=torch.channels_last), x),
    "last two dimensions exchanged": lambda x: (x.transpose(2, 3).contiguous(), x.transpose(2, 3)),
    "one number for each plane": lambda x: (x, x[:, :, 0, 0].contiguous()[..., None, None].expand_as(x)),
}


def in_memory(tensor: torch.Tensor) -> torch.Tensor:
    """The numbers from the first on as they lie in memory, as many as the tensor has elements."""
    return tensor.as_strided((tensor.numel(),), (1,))


def usual_distance(operand: torch.Tensor, result: torch.Tensor) -> int:
    """How many numbers of the result are computed in its order from one of the operand to its neighbour in memory."""
    places = torch.arange(1000).as_strided(operand.shape, operand.stride())
    in_order = in_memory(torch.empty_like(result, dtype=torch.long).copy_(places)).tolist()
    last = {place: i for i, place in enumerate(in_order)}
    first = {place: i for i, place in reversed(list(enumerate(in_order)))}
    return statistics.mode(first[place + 1] - i for place, i in last.items() if place + 1 in first)


@pytest.mark.parametrize("name", ARGUMENTS)
def test_a_trace_says_whether_a_kernel_may_take_its_tensors_for_rows_of_numbers(name: str) -> None:
    """A real sum is the oracle: it may, if the numbers of the result are sums of those in memory in the same order."""
    a, b = ARGUMENTS[name](torch.rand(4, 5, 6, 7))
    result = a + b
    try:
        rows = torch.equal(in_memory(result), in_memory(a) + in_memory(b))
    except RuntimeError:  # elements that lie on each other
        rows = False
    apart = max(usual_distance(a, result), usual_distance(b, result))
    a, b = ARGUMENTS[name](torch.empty(4, 5, 6, 7, device="meta"))
    with Tracer() as tracer:
        _ = a + b
    (kind,) = tracer.kinds
    assert kind.attrs == (() if rows else (("strided", apart),))


@pytest.mark.parametrize(
    ("copied", "strided"),
    [
        (lambda x: x.clone(), False),
        (lambda x: x.half(), False),
        (lambda x: x.transpose(1, 2).clone(), False),
        (lambda x: x.transpose(1, 2).contiguous(), True),
        (lambda x: x.contiguous(memory_format=torch.channels_last), True),
        (lambda x: torch.empty_like(x).transpose(1, 2).copy_(x.transpose(1, 2)), False),
        (lambda x: torch.empty_like(x).copy_(x.transpose(1, 2)), True),
    ],
)  # fmt: skip
def test_copies_into_another_order_are_by_element(
    copied: Callable[[torch.Tensor], torch.Tensor], strided: bool
) -> None:
    x = torch.empty(4, 6, 6, 7, device="meta")
    with Tracer() as tracer:
        copied(x)
    (kind,) = tracer.kinds
    (work,) = works(kind, WorkOptions()) or []
    assert work.variant == ("fwd.by_element" if strided else "fwd")


def of_copies(apart: int, spec: TensorSpec = WHOLE) -> float:
    """Elements that an H100 copies in a second where neighbours are that far apart."""
    (work,) = works(OpSignature("aten.clone", (spec,), (spec,), (("strided", apart),)), WorkOptions()) or []
    return spec.numel / seconds(work, gpu("h100-80gb-sxm"))


def test_copies_into_another_memory_format_read_a_sector_for_every_element() -> None:
    """Rates of copies and sums that an H100 did (`data/measured/h100/profiled.csv`), in trillions of elements a second:
    nnU-Net's by channels, EfficientNet's, and those of volumes of 64 and 128 cubed; within a quarter."""
    volume = like((2, 32, 128, 128, 128))
    measured = {1: 0.34, 32: 0.30, 64: 0.227, 128: 0.206, 480: 0.124}
    assert {apart: of_copies(apart) / 1e12 for apart in measured} == pytest.approx(measured, rel=0.25)
    assert of_copies(64**3, volume) / 1e12 == pytest.approx(0.099, rel=0.25)
    assert of_copies(128**3, volume) / 1e12 == pytest.approx(0.049, rel=0.25)


@pytest.mark.parametrize(("parts", "measured"), [([64] + 5 * [32], 0.374), (4 * [112], 0.243), ([128, 384], 0.199)])
def test_tensors_are_joined_one_element_at_a_time(parts: list[int], measured: float) -> None:
    """Trillions of elements a second of DenseNet, Res2Net and FasterNet on an H100 (`data/measured/h100`), of which the
    last two join parts of other tensors: within 40 %, where the rate of its memory is 0.84."""
    inputs, whole = tuple(like((128, n, 28, 28)) for n in parts), like((128, sum(parts), 28, 28))
    (work,) = works(OpSignature("aten.cat", inputs, (whole,)), WorkOptions()) or []
    assert whole.numel / seconds(work, gpu("h100-80gb-sxm")) / 1e12 == pytest.approx(measured, rel=0.4)


def test_an_h100_takes_the_time_of_its_multiprocessors_for_them() -> None:
    """102.8 million elements, 2.6 billion a second on each of 132 multiprocessors: 0.299 ms, of bytes 0.123 ms."""
    h100 = gpu("h100-80gb-sxm")
    scaled = seconds(of("mul", WHOLE, like((128, 256, 1, 1)), WHOLE), h100)
    assert scaled == pytest.approx(102_760_448 / (2.6e9 * 132), rel=0.05)
    assert seconds(of("relu", WHOLE, WHOLE), h100) < 0.5 * scaled


def test_a_gpu_of_little_bandwidth_hardly_waits_for_them() -> None:
    work, plain = of("mul", WHOLE, like((128, 256, 1, 1)), WHOLE), of("relu", WHOLE, WHOLE)
    ratio = {
        name: seconds(work, gpu(name)) / seconds(plain, gpu(name)) for name in ("t4", "v100-16gb-sxm", "b200-180gb-sxm")
    }
    assert ratio["t4"] < 1.15 < ratio["v100-16gb-sxm"] < 1.5
    assert ratio["b200-180gb-sxm"] > 3.0


def test_single_precision_is_as_long_as_half_until_bytes_take_longer() -> None:
    h100 = gpu("h100-80gb-sxm")
    scale = (128, 256, 1, 1)
    half = seconds(of("mul", WHOLE, like(scale), WHOLE), h100)
    single = seconds(of("mul", like(dtype="float32"), like(scale, "float32"), like(dtype="float32")), h100)
    assert half < single < 1.35 * half


def test_a_kernel_of_one_operand_takes_six_tenths_of_the_steps() -> None:
    """A gradient of a mean divides an expanded tensor; a sum over all but the channels reads one."""
    divided = works(OpSignature("aten.div", (WHOLE,), (WHOLE,), (("strided", True),)), WorkOptions()) or []
    added = of("sum", WHOLE, like((256,)))
    assert divided[0].flops == added.flops == pytest.approx(0.6 * 102_760_448)
    assert added.variant == divided[0].variant == "fwd.by_element"
    assert seconds(added, gpu("h100-80gb-sxm")) == pytest.approx(0.6 * 102_760_448 / (2.6e9 * 132), rel=0.05)


def test_floors_are_those_of_the_arithmetic_and_of_memory() -> None:
    """What a kernel takes for its elements, or a depthwise convolution on vector units, is no physical floor."""
    h100 = gpu("h100-80gb-sxm")
    scaled = of("mul", WHOLE, like((128, 256, 1, 1)), WHOLE)
    weight = like((256, 1, 3, 3))
    attributes = (("stride", (1, 1)), ("padding", (1, 1)), ("dilation", (1, 1)), ("groups", 256))
    (depthwise,) = works(OpSignature("aten.convolution", (WHOLE, weight), (WHOLE,), attributes), WorkOptions()) or []
    times = MODEL.seconds([scaled, depthwise], h100)
    assert times.floor_seconds[0] == pytest.approx(scaled.bytes / h100.memory_bytes_per_s)
    least = max(depthwise.floor_flops / h100.peak("fp16"), depthwise.bytes / h100.memory_bytes_per_s)
    assert times.floor_seconds[1] == pytest.approx(least)


def test_processors_load_elements_at_the_rate_of_memory() -> None:
    cpu = replace(gpu("h100-80gb-sxm"), arch="cpu")
    plain, scaled = of("relu", WHOLE, WHOLE), of("mul", WHOLE, like((128, 256, 1, 1)), WHOLE)
    assert seconds(scaled, cpu) == pytest.approx(seconds(plain, cpu), rel=0.1)


def test_pooling_takes_longer_than_its_bytes_and_mean_longer_than_maximum() -> None:
    h100, small = gpu("h100-80gb-sxm"), like((128, 256, 28, 28))
    mean = [of("avg_pool2d", WHOLE, small), of("avg_pool2d_backward", small, WHOLE, WHOLE)]
    most = [
        of("max_pool2d_with_indices", WHOLE, small),
        of("max_pool2d_with_indices_backward", small, WHOLE, WHOLE),
    ]
    assert [work.variant for work in (*mean, *most)] == ["fwd.avg", "bwd.avg", "fwd.max", "bwd.max"]
    taken = [seconds(work, h100) for work in (*most, *mean)]
    assert taken[0] == pytest.approx(1.4 * 102_760_448 / (2.6e9 * 132), rel=0.05)
    assert taken[1] == pytest.approx(3.0 * 102_760_448 / (2.6e9 * 132), rel=0.05)
    assert taken[0] < taken[2]
    assert taken[1] < taken[3]


@pytest.mark.parametrize("name", ["h100-96gb-sxm", "h800-80gb-sxm"])
def test_variants_of_a_chip_take_the_same_time(name: str) -> None:
    work = [of("relu", WHOLE, WHOLE), of("max_pool2d_with_indices", WHOLE, like((128, 256, 28, 28)))]
    shipped = KernelModel()
    times = [shipped.seconds(work, gpu(each)).seconds.tolist() for each in (name, "h100-80gb-sxm")]
    assert times[0] == times[1]


def product(m: int, n: int, k: int) -> Work:
    return of("mm", like((m, k)), like((k, n)), like((m, n)))


def test_rows_that_are_not_whole_16_bytes_are_loaded_piece_by_piece() -> None:
    """GPT-2's head, 8,192 tokens: 393 x 64 tiles of 128 load 768 elements of 128 rows and columns each."""
    head, padded, device = product(8192, 50257, 768), product(8192, 50304, 768), gpu("h100-80gb-sxm")
    assert (head.variant, padded.variant) == ("align1", "")
    moved = 8192 * 768 * 393 + 768 * 50257 * 64 + 8192 * 50257
    assert seconds(head, device) == pytest.approx(moved / (device.sm_count * 6.5e9), rel=0.02)
    assert seconds(padded, device) < 0.25 * seconds(head, device)
    floors = [float(MODEL.seconds([work], device).floor_seconds[0]) for work in (head, padded)]
    assert floors[0] == pytest.approx(floors[1], rel=0.002)  # tensor cores could do both


@pytest.mark.parametrize(("words", "tokens", "variant"), [(50257, 8192, "align1"), (50264, 8191, "")])
def test_rows_of_a_gradient_of_weights_are_those_of_its_gradient(words: int, tokens: int, variant: str) -> None:
    """As PyTorch computes it: the gradient of the logits transposed, by the inputs. Odd tokens make no row odd."""
    inputs = torch.empty(tokens, 768, dtype=torch.float16, device="meta", requires_grad=True)
    weight = torch.empty(words, 768, dtype=torch.float16, device="meta", requires_grad=True)
    with Tracer() as tracer:
        (inputs @ weight.t()).square().sum().backward()
    (gradient,) = [kind for kind in tracer.kinds if kind.outputs[0].shape == (words, 768) and kind.name == "aten.mm"]
    (work,) = works(gradient, WorkOptions()) or []
    assert work.variant == variant


@pytest.mark.parametrize(
    ("batch", "m", "n", "k", "measured_us"),
    [(24576, 32, 49, 49, 230), (24576, 49, 32, 49, 213), (24576, 49, 49, 32, 174)],
)  # fmt: skip
def test_small_unaligned_products_load_whole_tiles(batch: int, m: int, n: int, k: int, measured_us: float) -> None:
    """Attention over 49 positions on an H100 (`data/measured/h100/profiled.csv`): within a fifth."""
    work = of("bmm", like((batch, m, k)), like((batch, k, n)), like((batch, m, n)))
    assert 1e6 * seconds(work, gpu("h100-80gb-sxm")) == pytest.approx(measured_us, rel=0.2)


def test_unaligned_rows_take_the_time_of_multiprocessors_whatever_their_tensor_cores() -> None:
    head, device = product(8192, 50257, 768), gpu("h100-80gb-sxm")
    faster = replace(device, peaks={**device.peaks, "fp16": 2 * device.peaks["fp16"]})
    assert seconds(head, faster) == pytest.approx(seconds(head, device), rel=0.02)
    fewer = replace(device, sm_count=device.sm_count // 2)
    assert seconds(head, fewer) == pytest.approx(2 * seconds(head, device), rel=0.02)
    by_twos = product(8192, 50258, 768)
    assert by_twos.variant == "align2"
    assert seconds(by_twos, device) == pytest.approx(seconds(head, device) / 2, rel=0.05)
