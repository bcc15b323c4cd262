"""Units of traced steps: every call and weight in one of them, and few layers standing for many."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from precision_time.capture.captured_model import capture_model
from precision_time.capture.graph import Call, OpGraph, OpSignature, Parameter, Phase, Storage, TensorSpec
from precision_time.capture.layers import AFTER, BEFORE, WHOLE, LayeredGraph, block_of, layered
from precision_time.capture.training_step import training_step
from precision_time.job import Job
from precision_time.job.precision import parse_precision
from precision_time.layout.segment import OpSignatures
from precision_time.prediction import predict
from precision_time.timing.kind_works import kind_works
from precision_time.timing.operators import WorkOptions
from precision_time.zoo.shallow import Shallow

MODELS = ("resnet50", "bert-large", "t5-base", "gpt2", "llama3-8b", "vit-b-16", "jasper-10x5dr", "unet3d", "gpunet-0",
          "maskrcnn-r50-fpn", "dlrm-small", "densenet121", "bart-large", "transformer-xl-base")  # fmt: skip
"""Convolutions, encoders, both, shared embeddings, weights without gradients, nothing that repeats."""


def graph_of(model: str, precision: str = "amp-bf16") -> OpGraph:
    return capture_model(Job(model, precision=precision)).graph


@pytest.mark.parametrize(
    ("path", "block"),
    [("blocks.3.attention.output", "blocks.3"), ("layer2.1", "layer2.1"), ("encoder.block.0.ffn", "encoder.block.0"),
     ("head", ""), ("", ""), ("7", "7"), ("norm1.weight", "")],
)  # fmt: skip
def test_a_block_is_the_outermost_numbered_module(path: str, block: str) -> None:
    assert block_of(path) == block


def kinds_of(found: LayeredGraph, calls: tuple[int, ...]) -> Counter[tuple[OpSignature, Phase]]:
    graph = found.graph
    return Counter((graph.kinds[graph.calls[i].kind], graph.calls[i].phase) for i in calls)


def run(found: LayeredGraph) -> Counter[tuple[OpSignature, Phase]]:
    """What the order of the units runs."""
    total = Counter[tuple[OpSignature, Phase]]()
    for index, times in Counter(found.order).items():
        unit = found.units[index]
        for kind, count in kinds_of(found, (*unit.forward, *unit.backward)).items():
            total[kind] += times * count
    return total


@pytest.mark.parametrize("model", MODELS)
def test_units_in_order_are_the_whole_step(model: str) -> None:
    graph = graph_of(model)
    found = layered(graph)
    assert run(found) == kinds_of(found, tuple(range(len(graph.calls))))
    assert found.parameter_count == graph.parameter_count
    held = Counter((p.shape, p.dtype) for i in found.order for p in found.units[i].parameters)
    assert held == Counter((p.shape, p.dtype) for p in graph.parameters)
    for unit in found.units:
        assert all(graph.calls[i].phase < Phase.BACKWARD for i in unit.forward)
        assert all(graph.calls[i].phase >= Phase.BACKWARD for i in unit.backward)
        assert list(unit.forward) == sorted(unit.forward)
    assert not {found.units[i].name for i in found.order[1:-1]} & {BEFORE, AFTER}
    assert len(found.blocks) == sum(found.units[i].name not in (BEFORE, AFTER) for i in found.order)


@pytest.mark.parametrize("model", ["resnet50", "gpt2", "t5-base"])
def test_floating_point_operations_of_units_add_up(model: str) -> None:
    found = layered(graph_of(model))
    works = kind_works(OpSignatures(found.graph.kinds), WorkOptions())
    table, owner = works.table, works.owner
    flops = [float(table.flops[owner == k].sum()) for k in range(len(found.graph.kinds))]
    calls = found.graph.calls
    whole = sum(flops[c.kind] for c in calls)
    by_unit = [sum(flops[calls[i].kind] for i in (*u.forward, *u.backward)) for u in found.units]
    assert sum(by_unit[i] for i in found.order) == pytest.approx(whole, rel=1e-12)
    assert whole > 0


def test_equal_blocks_are_one_unit() -> None:
    assert len(layered(graph_of("gpt2")).units) == 3
    assert layered(graph_of("gpt2")).order == (0, *[1] * 12, 2)
    encoder_decoder = layered(graph_of("t5-base"))
    assert len(encoder_decoder.blocks) == 24
    encoder = encoder_decoder.units[encoder_decoder.order[2]]
    decoder = encoder_decoder.units[encoder_decoder.order[-3]]
    assert len(decoder.parameters) > len(encoder.parameters)  # cross attention


# --- a graph made by hand ---------------------------------------------------------------------------------------------

SPEC = TensorSpec((4,), "float32")


def made(*calls: tuple[str, str, Phase], parameters: tuple[tuple[str, int], ...] = ()) -> OpGraph:
    """Calls (operator, module, phase); parameters (name, call that reads it, or -1)."""
    modules = tuple(dict.fromkeys(("", *(module for _, module, _ in calls))))
    kinds = tuple(OpSignature(name, (SPEC,), (SPEC,)) for name in dict.fromkeys(name for name, _, _ in calls))
    names = [k.name for k in kinds]
    reads = {i: tuple(s for s, (_, at) in enumerate(parameters) if at == i) for i in range(len(calls))}
    return OpGraph(
        "made", kinds,
        tuple(Call(names.index(n), p, modules.index(m), 0, reads[i], ()) for i, (n, m, p) in enumerate(calls)),
        modules, tuple(Storage(16, -1, len(calls), 0) for _ in parameters),  # type: ignore[arg-type]
        tuple(Parameter(n, (4,), "float32", "float32", -1) for n, _ in parameters), 0,
    )  # fmt: skip


F, L, B = Phase.FORWARD, Phase.LOSS, Phase.BACKWARD


def unit_of(found: LayeredGraph, name: str) -> list[str]:
    unit = next(u for u in found.units if u.name == name)
    return [found.graph.kinds[found.graph.calls[i].kind].name for i in (*unit.forward, *unit.backward)]


def test_what_lies_in_no_block_belongs_by_its_place() -> None:
    found = layered(made(
        ("embed", "embedding", F), ("a", "blocks.0", F), ("between", "shared", F), ("b", "blocks.1.mlp", F),
        ("norm", "norm", F), ("loss", "", L),
        ("d_loss", "", B), ("d_norm", "norm", B), ("d_b", "blocks.1.mlp", B), ("d_between", "shared", B),
        ("d_drop", "blocks.7.drop", B), ("d_a", "blocks.0", B), ("d_embed", "embedding", B),
        parameters=(("embedding.weight", 0), ("blocks.1.mlp.weight", 3), ("shared.weight", 2), ("unused", -1)),
    ))  # fmt: skip
    assert unit_of(found, BEFORE) == ["embed", "d_embed"]
    assert unit_of(found, "blocks.0") == ["a", "between", "d_a"]
    assert unit_of(found, "blocks.1") == ["b", "d_b", "d_between", "d_drop"]
    assert unit_of(found, AFTER) == ["norm", "loss", "d_loss", "d_norm"]
    held = {u.name: [p.name for p in u.parameters] for u in found.units}
    assert held == {BEFORE: ["embedding.weight", "unused"], "blocks.0": ["shared.weight"],
                    "blocks.1": ["blocks.1.mlp.weight"], AFTER: []}  # fmt: skip


def test_a_model_without_blocks_is_one_unit() -> None:
    found = layered(made(("a", "stem", F), ("b", "head", F), ("d_b", "head", B), parameters=(("stem.weight", 0),)))
    assert [u.name for u in found.units] == [WHOLE]
    assert found.order == (0,)
    assert found.parameter_count == 4


# --- few layers for many ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("model", ["gpt2", "gpt2-xl", "llama3-8b", "mpt-1b", "nemotron-8b"])
@pytest.mark.parametrize("precision", ["amp-bf16", "bf16-master", "fp8"])
def test_three_layers_repeated_are_the_deep_model(model: str, precision: str) -> None:
    """Named models ship traced at their full depth, templates with three layers."""
    job = Job(model, precision=precision, batch_size=2, input={"seq_len": 1024})
    graph = capture_model(job).graph
    expanded = training_step(job).layers
    assert len(expanded.graph.calls) < len(graph.calls)
    assert run(expanded) == run(layered(graph))
    assert expanded.parameter_count == graph.parameter_count


@settings(max_examples=100)
@given(
    depth=st.integers(1, 40), dense=st.integers(0, 5), period=st.sampled_from([1, 2, 6]), experts=st.booleans()
)  # fmt: skip
def test_every_layer_has_one_to_stand_for_it(depth: int, dense: int, period: int, experts: bool) -> None:
    config = {"layers": depth, "dense_layers": dense, "experts": 8 * experts}
    config |= {1: {}, 2: {"sliding_window": "128_every_second_layer"}, 6: {"sliding_window": "1024_five_of_six"}}[
        period
    ]
    shallow = Shallow.of(config)
    traced = int(shallow.changes.get("layers", depth))
    few_dense = int(shallow.changes.get("dense_layers", config["dense_layers"])) if experts else 0
    real_dense = min(dense, depth) if experts else 0

    def sort_of(layer: int, dense_layers: int) -> tuple[bool, int]:
        """Dense or not, and which of the period's."""
        inside = layer >= dense_layers
        return inside, (layer - dense_layers) % period if inside else 0

    assert traced <= depth
    for layer in range(depth):
        stand_in = shallow.stands_for(layer, depth)
        assert 0 <= stand_in < traced
        if shallow.changes:
            assert sort_of(stand_in, few_dense) == sort_of(layer, real_dense)
        else:
            assert stand_in == layer
    if real_dense < depth:
        assert shallow.stands_for(real_dense, depth) == (few_dense if shallow.changes else real_dense)


@pytest.mark.parametrize("layers", [1, 2, 3, 5])
def test_a_shallow_model_traced_whole_and_by_its_layers(layers: int) -> None:
    pytest.importorskip("torch")
    job = Job("gpt", model_config={"layers": layers, "hidden": 64, "heads": 4, "head_dim": 16, "vocab": 320},
              input={"seq_len": 64}, batch_size=2, precision="bf16")  # fmt: skip
    whole = layered(capture_model(job).graph)
    expanded = training_step(job, parse_precision("bf16")).layers
    assert run(expanded) == run(whole)
    assert expanded.parameter_count == whole.parameter_count


def test_a_model_without_numbered_modules_is_one_block() -> None:
    """So that it can be sharded, recomputed and trained in any layout of data ranks."""
    step = training_step(Job("inception-v3"))
    assert [unit.name for unit in step.layers.units] == [WHOLE]
    assert step.layers.order == (0,)
    assert step.layers.parameter_count == step.parameter_count


@pytest.mark.parametrize("model", ["inception-v3", "densenet121"])
@pytest.mark.parametrize("words", [{"layout": "zero1"}, {"layout": "fsdp"}, {"recompute": "full"}])
def test_it_takes_every_layout_of_data_ranks(model: str, words: dict[str, str]) -> None:
    estimate = predict(Job(model, gpus=8, precision="amp-fp16", **words))
    assert estimate.step.p50 > estimate.floor_s > 0.0


@pytest.mark.parametrize("model", ["resnet50", "gpt2", "t5-base"])
@pytest.mark.parametrize(("precision", "traced"), [("fp16", "bf16"), ("fp64", "fp32")])
def test_units_in_other_dtypes_are_those_that_were_traced(model: str, precision: str, traced: str) -> None:
    """Cutting the step anew gives the same units; they share what does not depend on dtypes."""
    graph, other = (graph_of(model, each) for each in (precision, traced))
    assert graph.skeleton.traced is other.skeleton
    found = layered(graph)
    anew = layered(replace(graph, base=replace(graph.skeleton, traced=None)))
    assert found.order == anew.order
    for unit, same, before in zip(found.units, anew.units, layered(other).units, strict=True):
        assert unit.traced is before
        assert (unit.name, unit.forward, unit.backward) == (same.name, same.forward, same.backward)
        assert unit.parameters == same.parameters
        assert not unit.parameters or unit.parameters != before.parameters
