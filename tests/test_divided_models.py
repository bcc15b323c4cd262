"""Encoders, encoder-decoders and mixtures of experts divided over ranks: shapes, work and exchanges counted by hand."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from precision_time import Job, predict  # noqa: E402
from precision_time.capture.layered_step import LayeredStep, layered_step  # noqa: E402
from precision_time.capture.layers import AFTER, BEFORE, LayeredGraph, layered  # noqa: E402
from precision_time.capture.training_step import training_step  # noqa: E402
from precision_time.errors import JobError  # noqa: E402
from precision_time.layout.tensor_parallel import exchanges, region_of  # noqa: E402
from precision_time.timing.operators import WorkOptions, works  # noqa: E402
from precision_time.zoo.catalog import ENTRIES  # noqa: E402
from precision_time.zoo.parallel import SPLITS, local_config, whole_config  # noqa: E402

MODELS = ["bert-base", "bert-large", "roberta-base", "electra-base", "bart-large", "t5-base", "t5-large"]
BATCH, LENGTH, TARGET = 4, 128, 64


def job(model: str, layout: str, **words: Any) -> Job:
    lengths = {"seq_len": LENGTH, "target_len": TARGET} if model.startswith("t5") else {"seq_len": LENGTH}
    given = {"precision": "bf16", "batch_size": BATCH, "input": lengths, "gpu": "h100-80gb-sxm", "gpus": 8, **words}
    return Job(model, layout=layout, **given)


def of(model: str, layout: str, **words: Any) -> LayeredStep:
    return layered_step(job(model, layout, **words))


def flops(layers: LayeredGraph, regions: bool, step: LayeredStep) -> float:
    """Of the products and attention of all units, inside the divided modules or outside."""
    total = 0.0
    assert step.split is not None
    for index in layers.order:
        unit = layers.units[index]
        for i in (*unit.forward, *unit.backward):
            call = layers.graph.calls[i]
            divided = bool(region_of(layers.graph.modules[call.module], unit.name, step.split))
            kind = layers.graph.kinds[call.kind]
            if divided is regions:
                total += sum(w.flops for w in works(kind, WorkOptions()) or [] if w.math != "vector")
    return total


@pytest.mark.parametrize("model", MODELS)
def test_a_few_blocks_stand_for_every_stack(model: str) -> None:
    """A model traced shallow and repeated is the model traced at its full depth."""
    few = of(model, "tp=2")  # divided models are traced with three blocks a stack
    entry = ENTRIES[model]
    split = SPLITS[entry.builder]
    stacks = split.stacks
    assert len(few.layers.blocks) == stacks * entry.config["layers"]
    assert len(few.layers.units) <= 3 * stacks + 2
    assert few.parameters == training_step(job(model, "dp")).parameter_count


@pytest.mark.parametrize("model", ["bert-base", "electra-base", "bart-large", "t5-base"])
def test_the_repeated_blocks_run_what_the_deep_model_runs(model: str) -> None:
    def run(layers: LayeredGraph) -> float:
        calls = (c for i in layers.order for c in (*layers.units[i].forward, *layers.units[i].backward))
        return sum(
            w.flops + w.bytes_moved if hasattr(w, "bytes_moved") else w.flops
            for c in calls
            for w in works(layers.graph.kinds[layers.graph.calls[c].kind], WorkOptions()) or []
        )

    deep = layered(training_step(job(model, "dp")).graph)
    step = of(model, "tp=2")
    whole = local_config(step.config, SPLITS[ENTRIES[model].builder], 1, 1, 1)
    assert whole == dict(step.config)
    few = of(model, "sp,tp=2")
    assert few.sharded is not None
    assert sum(len(deep.units[i].forward) for i in deep.order) == sum(
        len(step.layers.units[i].forward) for i in step.layers.order
    )
    assert sum(len(deep.units[i].backward) for i in deep.order) == sum(
        len(step.layers.units[i].backward) for i in step.layers.order
    )
    assert run(step.layers) < run(deep)


@pytest.mark.parametrize("tp", [2, 4])
@pytest.mark.parametrize("model", MODELS)
def test_the_ranks_parts_are_the_model(model: str, tp: int) -> None:
    """Divided weights times ranks and shared ones once: the model's parameters, a padded vocabulary aside."""
    step, split, config = of(model, f"tp={tp}"), SPLITS[ENTRIES[model].builder], ENTRIES[model].config
    whole = layered(training_step(job(model, "dp")).graph)
    local = {p.name: p for u in step.layers.units for p in u.parameters}
    vocab = config["vocab"]
    padded = local_config(whole_config(config, split), split, tp, 1, 1)["vocab"] * tp
    seen = 0
    for unit in whole.units:
        for parameter in unit.parameters:
            mine = local.get(parameter.name)
            if mine is None:
                continue  # a block that another stands for
            seen += 1
            shape = tuple(padded if d == vocab else d for d in parameter.shape)
            divided = [a != b for a, b in zip(shape, mine.shape, strict=True)]
            assert sum(divided) <= 1
            assert tuple(b * tp if d else b for b, d in zip(mine.shape, divided, strict=True)) == shape
    assert seen >= len(local) - 3 * 30
    divided_words = [w for w in split.tensor if w in config and w != "vocab"]
    assert all(config[w] == tp * local_config(config, split, tp, 1, 1)[w] for w in divided_words)


@pytest.mark.parametrize("model", ["bert-large", "electra-base", "bart-large", "t5-base"])
def test_ranks_share_the_work_of_divided_modules(model: str) -> None:
    one, two, four = (of(model, f"tp={tp}") for tp in (1, 2, 4)) if False else (None, of(model, "tp=2"), of(model, "tp=4"))
    assert one is None
    inside = [flops(step.layers, True, step) for step in (two, four)]
    vocab = [local_config(step.config, step.split, tp, 1, 1)["vocab"] * tp for step, tp in ((two, 2), (four, 4))]  # type: ignore[arg-type]
    if vocab[0] == vocab[1]:
        assert inside[0] == 2 * inside[1]
    else:
        assert inside[0] == pytest.approx(2 * inside[1], rel=0.02)  # the vocabulary is padded to other multiples
    assert flops(two.layers, False, two) == flops(four.layers, False, four)
