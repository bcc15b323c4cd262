"""Encoders and encoder-decoders divided over ranks: shapes, work and exchanges counted by hand, whole predictions."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from precision_time import Job, predict  # noqa: E402
from precision_time.capture.captured_model import capture_model  # noqa: E402
from precision_time.capture.layers import LayeredGraph, layered  # noqa: E402
from precision_time.capture.training_step import TrainingStep, training_step  # noqa: E402
from precision_time.errors import JobError  # noqa: E402
from precision_time.layout.tensor_parallel import exchanges, region_of  # noqa: E402
from precision_time.timing.operators import WorkOptions, works  # noqa: E402
from precision_time.zoo.catalog import ENTRIES  # noqa: E402
from precision_time.zoo.parallel import SPLITS, Split, local_config, whole_config  # noqa: E402

MODELS = ["bert-base", "bert-large", "roberta-base", "electra-base", "bart-large", "t5-base", "t5-large"]
SOME = ["bert-large", "electra-base", "bart-large", "t5-base"]
BATCH, LENGTH, TARGET = 4, 128, 64


def job(model: str, layout: str, **words: Any) -> Job:
    lengths = {"seq_len": LENGTH, "target_len": TARGET} if model.startswith("t5") else {"seq_len": LENGTH}
    given = {"precision": "bf16", "batch_size": BATCH, "input": lengths, "gpu": "h100-80gb-sxm", "gpus": 8, **words}
    return Job(model, layout=layout, **given)


def of(model: str, layout: str, **words: Any) -> TrainingStep:
    return training_step(job(model, layout, **words))


def deep(model: str) -> LayeredGraph:
    return layered(capture_model(job(model, "dp")).graph)


def split_of(model: str) -> Split:
    return SPLITS[ENTRIES[model].builder]


def calls(layers: LayeredGraph) -> Counter[str]:
    """Operators of the whole depth by name, forward and backward."""
    return Counter(
        layers.graph.kinds[layers.graph.calls[c].kind].name
        for i in layers.order
        for c in (*layers.units[i].forward, *layers.units[i].backward)
    )


def flops(layers: LayeredGraph, split: Split, divided: bool) -> float:
    """Of the products and attention of the whole depth, in modules with divided weights or outside of them."""
    total = 0.0
    for unit in (layers.units[i] for i in layers.order):
        for call in (layers.graph.calls[c] for c in (*unit.forward, *unit.backward)):
            if bool(region_of(layers.graph.modules[call.module], unit.name, split)) is divided:
                found = works(layers.graph.kinds[call.kind], WorkOptions()) or []
                total += sum(w.flops for w in found if w.math != "vector")
    return total


# --- shapes and work ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("model", MODELS)
def test_three_blocks_of_every_stack_stand_for_all(model: str) -> None:
    step, whole = of(model, "tp=2"), deep(model)
    blocks = split_of(model).stacks * ENTRIES[model].config["layers"]
    assert len(step.layers.blocks) == len(whole.blocks) == blocks
    assert calls(step.layers) == calls(whole)
    assert len(step.layers.graph.calls) < len(whole.graph.calls)
    assert step.parameters == whole.parameter_count


@pytest.mark.parametrize("tp", [2, 4])
@pytest.mark.parametrize("model", MODELS)
def test_the_ranks_parts_are_the_model(model: str, tp: int) -> None:
    """Every weight of a rank is the model's, or a tp-th of it along one side; a padded vocabulary aside."""
    split, config = split_of(model), ENTRIES[model].config
    local = {p.name: p for p in of(model, f"tp={tp}").layers.graph.parameters}
    padded = local_config(whole_config(config, split), split, tp, 1, 1)["vocab"] * tp
    assert config["vocab"] <= padded < config["vocab"] + 128 * tp
    whole = {p.name: p for p in capture_model(job(model, "dp")).graph.parameters}
    divided = set()
    assert set(local) < set(whole)
    for name, mine in local.items():
        shape = tuple(padded if d == config["vocab"] else d for d in whole[name].shape)
        sides = [a != b for a, b in zip(shape, mine.shape, strict=True)]
        assert sum(sides) <= 1
        assert tuple(b * tp if d else b for b, d in zip(mine.shape, sides, strict=True)) == shape
        if any(sides):
            divided.add(name.split(".")[-3] if "bias" not in name else "bias")
    assert divided >= {"attention", "ffn"}


@pytest.mark.parametrize("model", SOME)
def test_ranks_share_the_work_of_divided_modules(model: str) -> None:
    split, exact = split_of(model), "vocab"
    whole = deep(model)
    for tp in (2, 4):
        rank = of(model, f"tp={tp}").layers
        padded = local_config(whole_config(ENTRIES[model].config, split), split, tp, 1, 1)[exact] * tp
        more = 0.0 if padded == ENTRIES[model].config[exact] else 0.02
        assert tp * flops(rank, split, True) == pytest.approx(flops(whole, split, True), rel=more or 1e-12)
        assert flops(rank, split, False) == flops(whole, split, False)


@pytest.mark.parametrize("model", SOME)
def test_sequence_parallel_ranks_share_what_lies_between(model: str) -> None:
    step = of(model, "tp=2,sp")
    assert step.sharded is not None
    assert len(step.sharded.graph.calls) == len(step.layers.graph.calls)
    outside = flops(step.layers, split_of(model), False)
    assert flops(step.sharded, split_of(model), False) <= outside


# --- exchanges by hand --------------------------------------------------------------------------------------------


def exchanged(model: str, layout: str, place: int) -> tuple[list[tuple[str, int]], list[tuple[str, int]]]:
    """(collective, bytes) of the unit at this place of the forward pass, forward and backward."""
    given = job(model, layout)
    step = training_step(given)
    unit = step.layers.units[step.layers.order[place]]
    found = exchanges(step.layers.graph, unit, step.split, given.layout_spec)
    return tuple(
        [(e.collective, e.nbytes) for e in side for _ in range(e.times)] for side in (found.forward, found.backward)
    )  # type: ignore[return-value]


def test_a_block_of_bert() -> None:
    stream = BATCH * LENGTH * 1024 * 2
    reduce, gather, scatter = ("all_reduce", stream), ("all_gather", stream), ("reduce_scatter", stream)
    assert exchanged("bert-large", "tp=2", 5) == ([reduce] * 2, [reduce] * 2)
    forward, backward = exchanged("bert-large", "tp=2,sp", 5)
    assert forward == [gather, scatter] * 2
    assert Counter(backward) == {gather: 4, scatter: 2}  # the input is gathered again for the weight gradients


def test_embedding_and_head_of_bert() -> None:
    assert exchanged("bert-large", "tp=2", 0) == ([("all_reduce", BATCH * LENGTH * 1024 * 2)], [])
    masked = BATCH * 20
    forward, backward = exchanged("bert-large", "tp=2", -1)
    assert forward == [("all_reduce", 4 * masked)] * 3
    assert backward == [("all_reduce", masked * 1024 * 2)]
    assert exchanged("bert-base", "tp=2", -1) == ([], [])  # answer spans need no vocabulary


def test_blocks_of_t5() -> None:
    source, target = (("all_reduce", BATCH * n * 768 * 2) for n in (LENGTH, TARGET))
    assert exchanged("t5-base", "tp=2", 5) == ([source] * 2, [source] * 2)
    # Between the stacks, with the last encoder block, runs the decoder's embedding.
    assert exchanged("t5-base", "tp=2", 12) == ([source, source, target], [source] * 2)
    forward, backward = exchanged("t5-base", "tp=2", 15)
    assert forward == [target] * 3
    assert Counter(backward) == {target: 3, source: 1}  # cross-attention's keys and values are of the source
    forward, _ = exchanged("t5-base", "tp=2,sp", 15)
    names = Counter(forward)
    assert names[("all_gather", source[1])] == 1
    assert names[("all_gather", target[1])] == names[("reduce_scatter", target[1])] == 3


def test_the_generators_head_runs_between_the_networks() -> None:
    masked = BATCH * 20
    forward, _ = exchanged("electra-base", "tp=2", 12)
    assert forward.count(("all_reduce", 4 * masked)) == 3
    assert ("all_reduce", BATCH * LENGTH * 768 * 2) in forward  # the discriminator's embedding
    assert exchanged("electra-base", "tp=2", 20)[0] == [("all_reduce", BATCH * LENGTH * 768 * 2)] * 2


# --- whole predictions --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("layout", ["tp=2", "tp=4,sp", "pp=2", "tp=2,pp=2,zero=1"])
@pytest.mark.parametrize("model", MODELS)
def test_a_prediction(model: str, layout: str) -> None:
    words = job(model, layout, precision="bf16-master", grad_accum=4)
    found = predict(words)
    assert found.floor_s < found.step.p50
    assert ("tensor" in found.communication) == ("tp" in layout)
    assert found.memory.peak_bytes < predict(words.replace(layout="dp")).memory.peak_bytes


def test_a_sequence_is_shared_where_attention_stays_within_it() -> None:
    step = of("bert-base", "cp=2")
    unit = step.layers.units[step.layers.order[5]]
    found = exchanges(step.layers.graph, unit, step.split, job("bert-base", "cp=2").layout_spec)
    assert [(e.collective, e.nbytes) for e in found.forward] == [("send_recv", 2 * BATCH * LENGTH // 2 * 768 * 2)]


@pytest.mark.parametrize(
    ("model", "layout", "says"),
    [
        ("t5-base", "cp=2", "attends from one to another; set cp to 1"),
        ("bart-large", "cp=2", "attends from one to another; set cp to 1"),
        ("electra-base", "tp=8", "does not divide heads=12"),
        ("bert-base", "tp=2,dp=4,ep=2", "needs a model with experts"),
        ("vit-b-16", "tp=2", "needs a model whose parts are known"),
        ("bert-base", "tp=2,pp=4,vpp=4", "has layers=12"),
    ],
)
def test_what_cannot_be_divided(model: str, layout: str, says: str) -> None:
    with pytest.raises(JobError, match=says):
        training_step(Job(model, gpu="h100-80gb-sxm", gpus=8, layout=layout))


def test_both_lengths_are_shared_out() -> None:
    with pytest.raises(JobError, match="target_len=114 cannot be shared out over tp=4"):
        training_step(Job("t5-base", gpu="h100-80gb-sxm", gpus=8, layout="tp=4,sp"))
