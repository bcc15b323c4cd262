"""Layers cut into stages, groups of ranks, what recomputes, and shares of weights that add up to the model."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from precision_time.capture.layers import AFTER, BEFORE
from precision_time.capture.training_step import TrainingStep, training_step
from precision_time.errors import JobError
from precision_time.job import Job
from precision_time.job.layout import Layout
from precision_time.layout.options import Options
from precision_time.layout.program import CONTEXT, DATA, EXPERT, PIPELINE, TENSOR, StepProgram
from precision_time.layout.stages import cut_into_parts
from precision_time.layout.step_program import EXPERT_DATA, REPLICAS, TIED, groups, step_program
from precision_time.layout.tensor_parallel import exchanges

UNITS = (SimpleNamespace(name=BEFORE), SimpleNamespace(name="blocks.0"), SimpleNamespace(name=AFTER))


def cut(blocks: int, pp: int, vpp: int = 1) -> list[tuple[tuple[int, ...], ...]]:
    return cut_into_parts((0, *[1] * blocks, 2), UNITS, pp, vpp)  # type: ignore[arg-type]


def sizes(blocks: int, pp: int, vpp: int = 1) -> list[int]:
    """Blocks of every part in the order of the model."""
    stages = cut(blocks, pp, vpp)
    return [stages[part % pp][part // pp].count(1) for part in range(pp * vpp)]


@pytest.mark.parametrize(
    ("blocks", "pp", "vpp", "parts"),
    [
        (32, 4, 1, [8, 8, 8, 8]),
        (32, 4, 2, [4] * 8),
        (126, 16, 1, [7, *[8] * 14, 7]),  # Llama 3.1 405B: embedding and loss count as one each
        (30, 4, 2, [3, 4, 4, 4, 4, 4, 4, 3]),
        (10, 4, 1, [2, 3, 3, 2]),
        (5, 2, 1, [3, 2]),
        (7, 1, 1, [7]),
    ],
)
def test_blocks_by_part(blocks: int, pp: int, vpp: int, parts: list[int]) -> None:
    assert sizes(blocks, pp, vpp) == parts


@given(st.integers(1, 130), st.integers(1, 16), st.integers(1, 4))
def test_every_block_is_on_one_stage(blocks: int, pp: int, vpp: int) -> None:
    vpp = vpp if pp > 1 else 1
    if blocks < pp * vpp:
        with pytest.raises(JobError, match="lower pp or vpp"):
            cut(blocks, pp, vpp)
        return
    stages = cut(blocks, pp, vpp)
    assert [len(s) for s in stages] == [vpp] * pp
    flat = [unit for part in range(pp * vpp) for unit in stages[part % pp][part // pp]]
    assert flat == [0, *[1] * blocks, 2]
    found = sizes(blocks, pp, vpp)
    assert min(found) >= 1
    assert max(found) - min(found) <= 1


# --- groups -----------------------------------------------------------------------------------------------------------


@st.composite
def layouts(draw: Any, most: int = 512) -> Layout:
    two = st.integers(0, 3).map(lambda n: 2**n)
    tp, pp, cp, dp = draw(two), draw(two), draw(two), draw(two)
    ep = draw(two)
    zero = draw(st.integers(0, 3))
    data = dp * cp
    shard = draw(st.sampled_from([None, *[d for d in (2, 4, 8) if data % d == 0]])) if zero else None
    assume(tp * pp * cp * dp <= most)
    etp = draw(st.sampled_from([None, 1]))
    assume(tp * cp * dp % (ep * (tp if etp is None else 1)) == 0)
    return Layout(dp=dp, tp=tp, pp=pp, cp=cp, ep=ep, etp=etp, sp=draw(st.booleans()), zero=zero, shard=shard)


def ranks_of(layout: Layout, group: str) -> list[frozenset[int]]:
    """All groups of a kind, from coordinates: tp innermost, then cp, dp, pp (Megatron's order tp-cp-dp-pp)."""
    found: dict[tuple[int, ...], set[int]] = {}
    stage = layout.tp * layout.cp * layout.dp
    etp, ep = layout.etp or layout.tp, layout.ep
    for rank in range(layout.gpus):
        tp, cp = rank % layout.tp, rank // layout.tp % layout.cp
        dp, pp = rank // layout.tp // layout.cp % layout.dp, rank // stage
        data = dp * layout.cp + cp
        inside = rank % stage
        key = {
            TENSOR: (cp, dp, pp), CONTEXT: (tp, dp, pp), PIPELINE: (tp, cp, dp),
            DATA: (tp, pp, data // layout.shard_ranks if layout.zero else 0),
            REPLICAS: (tp, pp, data % layout.shard_ranks),
            EXPERT: (inside % etp, inside // (etp * ep), pp), EXPERT_DATA: (inside % (etp * ep), pp),
        }[group]  # fmt: skip
        found.setdefault(key, set()).add(rank)
    return [frozenset(ranks) for ranks in found.values()]


@settings(max_examples=150)
@given(layouts())
def test_groups_are_those_of_the_coordinates(layout: Layout) -> None:
    for name, (size, stride) in groups(layout).items():
        if name == TIED or (name == REPLICAS and not layout.zero):
            continue
        for ranks in ranks_of(layout, name):
            first = min(ranks)
            assert ranks == {first + stride * k for k in range(size)}, name
    found = groups(layout)
    assert found[TENSOR][0] * found[CONTEXT][0] * layout.dp * found[PIPELINE][0] == layout.gpus
    assert found[EXPERT][0] * (layout.etp or layout.tp) * found[EXPERT_DATA][0] * layout.pp == layout.gpus


# --- programs ---------------------------------------------------------------------------------------------------------


def program(
    model: str, layout: str, gpus: int, micro_batches: int = 4, **words: Any
) -> tuple[TrainingStep, StepProgram]:
    options = {k: words.pop(k) for k in ("recompute_layers", "communication_dtype", "no_sync") if k in words}
    precision = words.pop("precision", "bf16-master")
    recompute, framework = words.pop("recompute", "none"), words.pop("framework", "pytorch")
    job = Job(model, gpus=gpus, layout=layout, input={"seq_len": 2048} if model != "gpt2" else {}, batch_size=1,
              precision=precision, framework=framework)  # fmt: skip
    step = training_step(job)
    return step, step_program(step, job.layout_spec, Options(micro_batches, recompute, framework=framework, **options))


@pytest.mark.parametrize(
    ("model", "layout", "gpus"),
    [("llama3-8b", "tp=8", 8), ("llama3-8b", "tp=2,pp=4,vpp=2,sp=1", 16), ("llama3-70b", "tp=4,pp=8", 64),
     ("nemotron-8b", "tp=2,pp=4", 8), ("llama3-8b", "fsdp", 8), ("llama3.1-405b", "tp=8,pp=16,sp=1", 128)],
)  # fmt: skip
def test_weights_of_all_ranks_are_the_models(model: str, layout: str, gpus: int) -> None:
    """Every tensor rank has norms of its own; heads, width and vocabulary are divided."""
    step, found = program(model, layout, gpus)
    tp = found.layout.tp
    held = sum(s.dense_elements + s.expert_elements for s in found.stages)
    replicated = sum(
        p.numel for i in step.layers.order for p in step.layers.units[i].parameters if "norm" in p.name
    )  # fmt: skip
    assert (held - replicated) * tp + replicated == step.parameters
    assert step.parameters == training_step(Job(model, input={"seq_len": 2048}, batch_size=1)).parameters
    assert all(s.dense_trainable == s.dense_elements for s in found.stages)


def test_more_tensor_ranks_than_key_heads_repeat_these() -> None:
    step, found = program("llama3-8b", "tp=16", 16)
    once, _ = program("llama3-8b", "tp=8", 8)
    own = {p.name: p.numel for p in step.layers.units[1].parameters}
    eighth = {p.name: p.numel for p in once.layers.units[1].parameters}
    for name, numel in own.items():
        whole = "norm" in name or name.endswith(("key.weight", "value.weight"))
        assert numel == eighth[name] / (1 if whole else 2), name
    assert found.stages[0].dense_elements == step.layers.parameter_count


def test_an_indivisible_vocabulary_is_padded() -> None:
    whole, _ = program("gpt2", "dp", 1)
    _, found = program("gpt2", "tp=4", 4)
    rows = -(-50257 // 512) * 512 // 4
    embedding = next(p for u in training_step(Job("gpt2", gpus=4, layout="tp=4")).layers.units for p in u.parameters
                     if p.name == "embedding.weight")  # fmt: skip
    assert embedding.shape == (rows, 768)
    assert found.stages[0].dense_elements < whole.parameters


def test_a_tied_embedding_is_held_by_both_ends_of_a_pipeline() -> None:
    step, found = program("gpt2", "pp=4", 4)
    embedding = 50257 * 768
    assert sum(s.dense_elements for s in found.stages) == step.parameters + embedding
    assert found.tied_bytes == 2 * embedding
    _, one = program("gpt2", "dp", 1)
    _, untied = program("llama3-8b", "pp=4", 4)
    assert one.tied_bytes == untied.tied_bytes == 0
    assert groups(found.layout)[TIED] == (2, 2)


@pytest.mark.parametrize(
    ("precision", "words", "weight", "gradient"),
    [("amp-bf16", {}, 4, 4), ("bf16-master", {}, 2, 2), ("fp64", {}, 8, 8),
     ("bf16-master", {"communication_dtype": "float32"}, 2, 4), ("fp8", {}, 2, 2),
     ("fp8", {"framework": "megatron-bridge"}, 1, 2)],
)  # fmt: skip
def test_bytes_on_the_wire(precision: str, words: dict[str, Any], weight: float, gradient: float) -> None:
    _, found = program("llama3-8b", "zero1", 8, precision=precision, **words)
    assert (found.weight_bytes, found.gradient_bytes) == (weight, gradient)


def again(found: StepProgram) -> list[list[int]]:
    """How many layers of every chunk recompute."""
    return [[sum(r for _, _, r in chunk.units) for chunk in stage.chunks] for stage in found.stages]


def test_what_recomputes() -> None:
    step, full = program("llama3-8b", "pp=4", 4, recompute="full")
    assert again(full) == [[8]] * 4
    block = next(u for u in full.units if u.name not in (BEFORE, AFTER))
    assert block.recompute.kind.tolist() == block.forward.kind.tolist()
    assert not any(len(u.recompute) for u in full.units if u.name in (BEFORE, AFTER))
    _, some = program("llama3-8b", "pp=4", 4, recompute="full", recompute_layers=3)
    assert again(some) == [[3]] * 4
    _, chunked = program("llama3-8b", "pp=4,vpp=2", 4, recompute="full", recompute_layers=5)
    assert again(chunked) == [[3, 2]] * 4
    _, all_of_them = program("llama3-8b", "pp=4", 4, recompute="full", recompute_layers=99)
    assert again(all_of_them) == [[8]] * 4
    _, none = program("llama3-8b", "pp=4", 4)
    assert again(none) == [[0]] * 4
    _, selective = program("llama3-8b", "pp=4", 4, recompute="selective")
    block = next(u for u in selective.units if u.name not in (BEFORE, AFTER))
    assert [selective.kinds[k].name for k in block.recompute.kind] == ["pt.attention"]
    assert step.parameters == 8_030_261_248


def test_selective_recomputation_of_unfused_attention() -> None:
    job = Job("gpt", attention="math", precision="bf16-master", gpus=2, layout="tp=2")
    step = training_step(job)
    found = step_program(step, job.layout_spec, Options(1, "selective"))
    block = next(u for u in found.units if u.name not in (BEFORE, AFTER))
    names = [found.kinds[k].name.removeprefix("aten.") for k in block.recompute.kind]
    assert names[0] == names[-2] == "bmm" or names[-1] == "bmm"
    assert "_softmax" in names
    assert not {"mm", "addmm"} & set(names)


# --- exchanges worked out by hand -------------------------------------------------------------------------------------


def told(layout: str, gpus: int, unit: int = 1, **words: Any) -> tuple[list[tuple[Any, ...]], list[tuple[Any, ...]]]:
    step, found = program("llama3-8b", layout, gpus, **words)
    made = exchanges(step.layers.graph, step.layers.units[unit], step.split, found.layout)

    def rows(each: Any) -> list[tuple[Any, ...]]:
        return [(e.group, e.collective, e.nbytes, e.times, e.behind) for e in each]

    return rows(made.forward), rows(made.backward)


def test_context_parallel_exchanges() -> None:
    keys = 2 * 2 * 8 * 128 * 1024  # keys and values in bf16: 8 heads of 128 over 1024 tokens
    query = 2 * 32 * 128 * 1024
    assert told("cp=2", 2) == (
        [(CONTEXT, "send_recv", keys, 1, "attention")], [(CONTEXT, "send_recv", 2 * keys, 1, "attention")]
    )  # fmt: skip
    assert told("cp=2,cp_comm=all-gather", 2) == (
        [(CONTEXT, "all_gather", 2 * keys, 1, "")],
        [(CONTEXT, "all_gather", 2 * keys, 1, ""), (CONTEXT, "reduce_scatter", 2 * keys, 1, "")],
    )
    both = [(CONTEXT, "all_to_all", keys + 2 * query, 1, "")]
    assert told("cp=2,cp_comm=all-to-all", 2) == (both, both)


@pytest.mark.parametrize("comm", ["ring", "all-gather", "all-to-all"])
def test_context_parallel_ranks_share_the_work_of_attention(comm: str) -> None:
    """Whatever travels, cp ranks do a cp-th each of the pairs of queries and keys."""

    def pairs(layout: str, gpus: int) -> int:
        _, found = program("llama3-8b", layout, gpus)
        block = next(u for u in found.units if u.name not in (BEFORE, AFTER))
        kinds = [found.kinds[k] for k in block.forward.kind if found.kinds[k].name == "pt.attention"]
        return sum(k.inputs[0].shape[-2] * k.inputs[1].shape[-2] for k in kinds)

    assert pairs(f"cp=4,cp_comm={comm}", 4) * 4 == pairs("dp", 1)


def test_a_ring_is_asked_again_by_selective_recomputation() -> None:
    _, found = program("llama3-8b", "tp=2,cp=2", 4, recompute="selective")
    block = next(u for u in found.units if u.name not in (BEFORE, AFTER))
    assert {e.group for e in block.recompute_collectives} == {CONTEXT}
    assert {e.group for e in block.forward_collectives} == {CONTEXT, TENSOR}


def test_pipeline_boundaries_carry_the_residual_stream() -> None:
    stream = 2 * 2048 * 4096
    assert program("llama3-8b", "pp=4", 4)[1].boundary_bytes == stream
    assert program("llama3-8b", "tp=4,pp=4", 16)[1].boundary_bytes == stream
    assert program("llama3-8b", "tp=4,pp=4,sp=1", 16)[1].boundary_bytes == stream / 4
    assert program("llama3-8b", "pp=4,cp=2", 8)[1].boundary_bytes == stream / 2
    assert program("llama3-8b", "fsdp", 8)[1].boundary_bytes == 0


@pytest.mark.parametrize(
    ("words", "says"),
    [({"layout": "tp=3", "gpus": 3}, "does not divide heads=32"),
     ({"layout": "pp=64", "gpus": 64}, "but it has layers=32"),
     ({"layout": "ep=2", "gpus": 2}, "needs a model with experts"),
     ({"layout": "cp=2", "gpus": 2, "attention": "math"}, "needs fused attention"),
     ({"layout": "cp=2", "gpus": 2, "model": "resnet50"}, "needs a model whose parts are known")],
)  # fmt: skip
def test_what_a_model_cannot_be_divided_into(words: dict[str, Any], says: str) -> None:
    with pytest.raises(JobError, match=says):
        training_step(Job(words.pop("model", "llama3-8b"), **words))


@pytest.mark.parametrize(("zero", "share"), [(0, 1), (1, 1), (2, 4), (3, 4)])
def test_sums_of_gradients_stand_whole_below_zero_2(zero: int, share: int) -> None:
    """Over micro-batches: only from ZeRO 2 on is a gradient scattered before it is added."""
    job = Job("gpt2", gpu="h100-80gb-sxm", gpus=4, precision="bf16-master", batch_size=1)
    step = training_step(job)
    program = step_program(step, Layout(dp=4, zero=zero), Options(4, "none", None, None, "deepspeed"))
    stage = program.stages[0]
    (added,) = (program.kinds[int(k)].outputs[0].shape for k in stage.accumulate.kind)
    assert added == pytest.approx((stage.dense_trainable / share,))
