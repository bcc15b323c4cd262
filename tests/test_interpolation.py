"""Kernels whose threads take all planes one after another, or of which every sample has one."""

from __future__ import annotations

import pytest

from precision_time.capture.graph import OpSignature, TensorSpec
from precision_time.timing.operators import WorkOptions, works
from precision_time.timing.work import Work

NCHW, NHWC = WorkOptions(), WorkOptions(channels_last=True)
PLANE_S = 297e-9


def only(kind: OpSignature, options: WorkOptions = NCHW) -> Work:
    (work,) = works(kind, options) or []
    return work


def enlarged(name: str, batch: int, channels: int, sides: tuple[int, ...], **attrs: bool) -> OpSignature:
    small, large = (TensorSpec((batch, channels, *(n * side for side in sides)), "float32") for n in (1, 2))
    gradient = name.endswith("_backward")
    given, made = (large, small) if gradient else (small, large)
    return OpSignature(f"aten.{name}", (given,), (made,), tuple(attrs.items()))


@pytest.mark.parametrize(
    ("name", "sides"),
    [
        ("upsample_bilinear2d", (7, 7)), ("upsample_bicubic2d", (7, 7)), ("upsample_bicubic2d_backward", (7, 7)),
        ("upsample_trilinear3d", (4, 4, 4)), ("upsample_trilinear3d_backward", (4, 4, 4)), ("upsample_linear1d", (50,)),
    ],
)  # fmt: skip
def test_a_thread_of_a_position_takes_every_plane(name: str, sides: tuple[int, ...]) -> None:
    """1,024 images of 1,024 channels: 0.31 s, whatever their few positions. EfficientFormerV2 takes 0.25 s on an RTX
    4090, 0.30 on an RTX 3090 for 14 x 14 positions."""
    work = only(enlarged(name, 1024, 1024, sides))
    assert work.latency_s == pytest.approx(1024 * 1024 * PLANE_S, rel=0.01)


def test_many_positions_are_as_fast_as_memory() -> None:
    assert only(enlarged("upsample_bilinear2d", 8, 21, (128, 128))).latency_s == 0.0
    half = only(enlarged("upsample_bilinear2d", 8, 64, (64, 128))).latency_s
    assert half == pytest.approx(8 * 64 * PLANE_S / 2)


def test_with_channels_last_a_thread_has_an_element() -> None:
    kind = enlarged("upsample_bilinear2d", 64, 256, (7, 7))
    assert only(kind, NHWC).latency_s == 0.0
    assert only(enlarged("upsample_bilinear2d", 64, 256, (7, 7), channels_last=False), NHWC).latency_s > 0.0
    assert only(enlarged("upsample_bilinear2d", 64, 256, (7, 7), channels_last=True)).latency_s == 0.0
    assert only(enlarged("upsample_bilinear2d", 64, 8, (7, 7)), NHWC).latency_s > 0.0, "fewer than 16 channels"
    assert only(enlarged("upsample_bicubic2d", 64, 256, (7, 7)), NHWC).latency_s > 0.0, "has no such kernel"


@pytest.mark.parametrize("name", ["upsample_nearest2d", "upsample_bilinear2d_backward"])
def test_others_have_a_thread_for_each_element(name: str) -> None:
    assert only(enlarged(name, 1024, 1024, (7, 7))).latency_s == 0.0


def test_columns_of_every_sample_are_a_kernel() -> None:
    samples, columns = TensorSpec((128, 192, 28, 28), "float16"), TensorSpec((128, 1728, 196), "float16")
    assert only(OpSignature("aten.im2col", (samples,), (columns,))).launches == 128
    assert only(OpSignature("aten.col2im", (columns,), (samples,))).launches == 1
    one, its = TensorSpec((192, 28, 28), "float16"), TensorSpec((1728, 196), "float16")
    assert only(OpSignature("aten.im2col", (one,), (its,))).launches == 1


def test_a_trace_says_where_the_format_of_an_interpolation_is_not_that_of_its_images() -> None:
    torch = pytest.importorskip("torch")
    from networks import rows, total
    from precision_time.capture.step import Regime, capture
    from precision_time.capture.tracer import Tracer

    class Enlarges(torch.nn.Module):  # type: ignore[misc]
        def forward(self, image: object) -> object:
            x = torch.nn.functional.max_pool2d(image, 2)
            rows = x.flatten(2).contiguous().reshape(x.shape)
            enlarge = torch.nn.Upsample(scale_factor=2, mode="bilinear")
            return enlarge(x) + enlarge(rows)

    def formats(last: bool) -> list[object]:
        image = torch.ones(2, 16, 8, 8, requires_grad=True)
        graph = capture(lambda: total(Enlarges(), image), Regime.FULL, tracer=Tracer(channels_last=last))
        return [kind.attr("channels_last") for _, kind in rows(graph) if kind.name == "aten.upsample_bilinear2d"]

    assert formats(True) == [None, False]
    assert formats(False) == [None, None]


def test_products_of_a_batch_by_one_matrix_are_one_product() -> None:
    torch = pytest.importorskip("torch")
    from networks import only as only_kind
    from networks import total, trace

    class Windows(torch.nn.Module):  # type: ignore[misc]
        """Rows that do not lie one after another, of which `linear` without gradients makes a batch."""

        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(16, 32)

        def forward(self, x: object) -> object:
            with torch.no_grad():
                mixed = torch.matmul(x.transpose(1, 2), self.layer.weight.detach().t())
            return mixed.sum() + self.layer(x).sum()

    kind = only_kind(trace(lambda: total(Windows(), torch.ones(4, 6, 7, 5, 16))), "aten.bmm")
    assert kind.attr("shared") is True
    batch, m, n, k = only(kind).shape
    assert (batch, m, n, k) == (1, 4 * 6 * 7 * 5, 32, 16)
