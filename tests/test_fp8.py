"""fp8: products become scaled fp8 products with casts before them; nothing else changes."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from networks import cnn, dtypes, names, rows, total, trace, transformer  # noqa: E402
from precision_time.capture.fp8 import to_fp8  # noqa: E402
from precision_time.capture.graph import OpGraph, Phase  # noqa: E402
from precision_time.timing.operators import WorkOptions, works  # noqa: E402


def product_flops(graph: OpGraph, phase: Phase, math: tuple[str, ...] = ("bf16", "fp8")) -> float:
    work = [w for _, k in rows(graph, phase) for w in works(k, WorkOptions()) or []]
    return sum(w.flops for w in work if w.math in math)


def linears(rows_: int = 32, width: int = 64, layers: int = 2) -> OpGraph:
    build = lambda: total(nn.Sequential(*(nn.Linear(width, width) for _ in range(layers))), torch.ones(rows_, width))  # noqa: E731
    return trace(build, "half")


def test_one_layer_by_hand() -> None:
    """Forward: activation and weight to e4m3, product to bf16. Backward (weight only): gradient to e5m2; the
    activation is there already."""
    graph = to_fp8(linears(layers=1), "tensorwise")
    forward = [(k.name, dtypes(k.inputs), dtypes(k.outputs)) for _, k in rows(graph, Phase.FORWARD)]
    assert forward == [
        ("pt.quantize", ("bfloat16",), ("float8_e4m3fn",)),
        ("pt.quantize", ("bfloat16",), ("float8_e4m3fn",)),
        ("pt.scaled_mm", ("float8_e4m3fn", "float8_e4m3fn"), ("bfloat16",)),
    ]
    backward = [(k.name, dtypes(k.inputs)) for _, k in rows(graph, Phase.BACKWARD) if k.name.startswith("pt.")]
    assert backward == [
        ("pt.quantize", ("bfloat16",)),
        ("pt.scaled_mm", ("float8_e5m2", "float8_e4m3fn")),
    ]
    (kind,) = {k for _, k in rows(graph, Phase.FORWARD) if k.name == "pt.scaled_mm"}
    (work,) = works(kind, WorkOptions()) or []
    assert (work.math, work.flops) == ("fp8", 2 * 32 * 64 * 64)
    assert (work.bytes_read, work.bytes_written) == (32 * 64 + 64 * 64, 2 * 32 * 64)


def test_each_tensor_is_quantised_once() -> None:
    graph = to_fp8(linears(layers=3), "tensorwise")
    # Forward: three activations, three weights. Backward: the gradient of each layer's output.
    assert names(graph, Phase.FORWARD)["pt.quantize"] == 6
    assert names(graph, Phase.BACKWARD)["pt.quantize"] == 3
    read = [c.reads[0] for c, k in rows(graph) if k.name == "pt.quantize"]
    assert len(read) == len(set(read))


@pytest.mark.parametrize("build", [cnn, transformer, lambda: transformer(fused=True)], ids=["cnn", "math", "flash"])
def test_flops_and_phases_are_kept(build: object) -> None:
    plain = trace(build, "half")  # type: ignore[arg-type]
    graph = to_fp8(plain, "tensorwise")
    for phase in Phase:
        assert product_flops(graph, phase) == product_flops(plain, phase)
    assert [c.phase for c in graph.calls] == sorted(c.phase for c in graph.calls)
    added = len(graph.calls) - len(plain.calls)
    assert added == names(graph)["pt.quantize"]
    for before, after in zip(plain.parameters, graph.parameters, strict=True):
        old, new = plain.calls[before.ready], graph.calls[after.ready]
        assert (old.phase, old.module, old.writes) == (new.phase, new.module, new.writes)


def test_linear_layers_of_a_transformer_run_in_fp8_and_attention_does_not() -> None:
    graph = to_fp8(trace(lambda: transformer(fused=True), "half"), "tensorwise")
    assert product_flops(graph, Phase.FORWARD, ("bf16",)) == sum(
        w.flops
        for _, k in rows(graph, Phase.FORWARD)
        if k.name == "pt.attention"
        for w in works(k, WorkOptions()) or []
    )
    assert product_flops(graph, Phase.FORWARD, ("fp8",)) > 0


def test_weights_off_the_grid_of_16_stay_bf16() -> None:
    graph = to_fp8(linears(rows_=32, width=72), "tensorwise")
    assert names(graph)["pt.scaled_mm"] == 0
    assert to_fp8(linears(rows_=32, width=64), "rowwise") != graph


@pytest.mark.parametrize("samples", [1, 8, 24, 31, 33])
def test_samples_are_padded_to_the_grid_of_16(samples: int) -> None:
    """A batch decides nothing: the same products run in fp8, at the time of the next multiple of 16."""
    graph = to_fp8(linears(rows_=samples), "tensorwise")
    even = to_fp8(linears(rows_=-(-samples // 16) * 16), "tensorwise")
    assert names(graph) == names(even)
    products = [
        [work.shape for _, k in rows(g) if k.name == "pt.scaled_mm" for work in works(k, WorkOptions()) or []]
        for g in (graph, even)
    ]
    assert products[0] == products[1] != []


def test_scaling_is_recorded() -> None:
    graph = to_fp8(linears(), "block")
    assert {k.attr("scaling") for _, k in rows(graph) if k.name == "pt.quantize"} == {"block"}


def test_fp32_and_convolutions_are_left_alone() -> None:
    full = trace(transformer)
    assert to_fp8(full, "tensorwise").calls == full.calls
    convolutions = names(to_fp8(trace(cnn, "half"), "tensorwise"))
    assert convolutions["convolution"] == 2


@pytest.mark.parametrize(("scaling", "casts"), [("tensorwise", 3 + 3), ("block", 3 + 3), ("rowwise", 4 + 6)])
def test_a_tensor_is_cast_again_where_its_scales_do_not_hold(scaling: str, casts: int) -> None:
    """A layer has an input, a weight and a gradient, each in two of its three products; a scale for each row holds in
    one of them. The first layer's input has no gradient, so its weight and output are in one product less."""
    graph = to_fp8(linears(layers=2), scaling)
    assert names(graph)["pt.scaled_mm"] == 2 + 2 + 1
    assert names(graph)["pt.quantize"] == casts
