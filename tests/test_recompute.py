"""What of a block runs again in the backward pass: as PyTorch does, as torchtitan's policy has it, as Megatron does."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from precision_time.capture.training_step import training_step
from precision_time.errors import JobError
from precision_time.job import Job
from precision_time.layout.options import Options
from precision_time.layout.program import TENSOR, StepProgram, UnitProgram
from precision_time.layout.step_program import step_program
from precision_time.prediction import predict


def program(framework: str, recompute: str, layout: str = "dp", gpus: int = 1, **fields: Any) -> StepProgram:
    words: dict[str, Any] = {"input": {"seq_len": 512}, "batch_size": 1, "precision": "bf16-master", **fields}
    job = Job("llama3-8b", framework=framework, recompute=recompute, layout=layout, gpus=gpus, **words)
    return step_program(training_step(job), job.layout_spec, Options.of(job))


def block_of(found: StepProgram) -> UnitProgram:
    return next(unit for unit in found.units if len(unit.recompute))


def again(framework: str, recompute: str, **fields: Any) -> list[str]:
    found = program(framework, recompute, **fields)
    return [found.kinds[kind].name.removeprefix("aten.") for kind in block_of(found).recompute.kind]


def forward(framework: str, **fields: Any) -> list[str]:
    found = program(framework, "full", **fields)
    return [found.kinds[kind].name.removeprefix("aten.") for kind in block_of(found).forward.kind]


@pytest.mark.parametrize("framework", ["pytorch", "llm-foundry", "torchtitan"])
def test_the_last_product_and_sum_do_not_run_again(framework: str) -> None:
    """The backward pass needs what the last product read, not what it wrote."""
    assert forward(framework)[-2:] == ["mm", "add"]
    assert again(framework, "full") == forward(framework)[:-2]


@pytest.mark.parametrize(
    ("framework", "fields"),
    [("megatron-deepspeed", {}), ("megatron-bridge", {}), ("internevo", {}), ("pytorch", {"torch": "2.0"})],
)
def test_other_checkpoints_run_the_whole_block_again(framework: str, fields: dict[str, Any]) -> None:
    assert again(framework, "full", **fields) == forward(framework, **fields)


def test_torchtitan_saves_attention_and_every_product_but_each_second() -> None:
    """Of queries, keys, values, output, gate, up and down: keys, output and up run again."""
    repeated, whole = Counter(again("torchtitan", "selective")), Counter(forward("torchtitan"))
    assert (whole["mm"], whole["pt.attention"]) == (7, 1)
    assert (repeated["mm"], repeated["pt.attention"]) == (3, 0)
    assert repeated["pt.rms_norm"] == whole["pt.rms_norm"] == 2
    sizes = program("torchtitan", "selective")
    products = [sizes.kinds[k] for k in block_of(sizes).recompute.kind if sizes.kinds[k].name == "aten.mm"]
    assert [kind.outputs[0].shape[-1] for kind in products] == [1024, 4096, 14336]


@pytest.mark.parametrize("framework", ["pytorch", "megatron-bridge"])
def test_torchtitans_policy_has_a_name_of_its_own(framework: str) -> None:
    plain = Counter(again("torchtitan", "selective"))
    named = Counter(again(framework, "selective-ops"))
    assert (named["mm"], named["pt.attention"], named["pt.rms_norm"]) == (plain["mm"], 0, plain["pt.rms_norm"])


@pytest.mark.parametrize(
    ("words", "layers"),
    [
        ({}, 32), ({"recompute_layers": 5}, 5), ({"recompute_layers": 5, "recompute_method": "block"}, 5),
        ({"recompute_layers": 2, "recompute_method": "every"}, 16),
        ({"recompute_layers": 5, "recompute_method": "every"}, 6),
        ({"recompute_layers": 5, "recompute_method": "uniform"}, 32),
    ],
)  # fmt: skip
def test_layers_that_run_again(words: dict[str, Any], layers: int) -> None:
    """Of 32: all, the first five, each second (16), each fifth (6), and all in groups of five."""
    found = program("torchtitan", "full", **words)
    assert sum(again for chunk in found.stages[0].chunks for _, _, again in chunk.units) == layers


def test_every_nth_layer_of_a_pipeline_is_counted_on_its_stage() -> None:
    words: dict[str, Any] = {"layout": "pp=4,dp=1", "gpus": 4, "recompute_layers": 3, "recompute_method": "every"}
    found = program("torchtitan", "full", **words)
    assert [sum(n for c in s.chunks for _, _, n in c.units) for s in found.stages] == [2, 2, 2, 2]


def test_a_method_needs_its_number() -> None:
    for words, message in (
        ({"recompute": "full", "recompute_method": "every"}, "recompute_method every needs a number of layers"),
        ({"recompute_layers": 2, "recompute_method": "uniform"}, "recompute_layers 2 goes with recompute full"),
        (
            {"recompute": "full", "recompute_layers": 2, "recompute_method": "some"},
            "recompute_method 'some' is unknown",
        ),
    ):
        with pytest.raises(JobError, match=message):
            Job("gpt2", **words)
    job = Job("gpt2", recompute="full", recompute_layers=2, recompute_method="every")
    assert "recompute full of every layer whose number 2 divides" in job.signature()
    assert Job("gpt2", recompute="op").recompute == "selective-ops"


def test_fp8_products_of_torchtitan_run_again() -> None:
    assert Counter(again("torchtitan", "selective", precision="fp8"))["pt.scaled_mm"] == 6  # the seventh is the last


def test_what_leaves_the_last_product_is_not_reduced_again() -> None:
    words: dict[str, Any] = {"layout": "tp=8,dp=1,sp=1", "gpus": 8}
    both = ["all_gather", "reduce_scatter"]
    repeated = {
        mode: [e.collective for e in block_of(program(*mode, **words)).recompute_collectives if e.group == TENSOR]
        for mode in (("megatron", "full"), ("torchtitan", "full"), ("torchtitan", "selective"))
    }
    assert list(repeated.values()) == [both * 2, [*both, "all_gather"], ["all_gather"] * 2]


def test_pytorch_stops_before_the_last_product() -> None:
    torch = pytest.importorskip("torch")
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils.checkpoint import checkpoint

    class Products(TorchDispatchMode):
        count = 0

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            Products.count += func is torch.ops.aten.addmm.default
            return func(*args, **(kwargs or {}))

    up, down = torch.nn.Linear(8, 32), torch.nn.Linear(32, 8)
    x = torch.ones(4, 8, requires_grad=True)
    for reentrant, products in ((False, 3), (True, 4)):  # two forward, then the first again, or both
        Products.count = 0
        with Products():
            checkpoint(lambda y: y + down(up(y).relu()), x, use_reentrant=reentrant).sum().backward()
        assert Products.count == products


# --- parts by name, as Megatron-LM's --recompute-modules


def parts(
    model: str, recompute: str, layout: str = "dp", gpus: int = 1, **fields: Any
) -> tuple[UnitProgram, list[str]]:
    """The last block of a model in Megatron, and the operators that run again."""
    words: dict[str, Any] = {"input": {"seq_len": 512}, "batch_size": 1, "precision": "bf16-master", **fields}
    job = Job(model, framework="megatron", recompute=recompute, layout=layout, gpus=gpus, **words)
    found = step_program(training_step(job), job.layout_spec, Options.of(job))
    block = [unit for unit in found.units if len(unit.recompute)][-1]
    return block, [found.kinds[kind].name.removeprefix("aten.") for kind in block.recompute.kind]


def test_parts_of_a_block_run_again() -> None:
    assert parts("llama3-8b", "layernorm")[1] == ["pt.rms_norm"] * 2
    assert parts("llama3-8b", "mlp")[1].count("mm") == 3
    both = parts("llama3-8b", "mlp,core_attn,layernorm")[1]
    assert Counter(both) == Counter([*parts("llama3-8b", "mlp")[1], "pt.attention", "pt.rms_norm", "pt.rms_norm"])
    moe = parts("mixtral-8x7b", "moe")[1]
    assert moe.count("pt.grouped_mm") == 2 or moe.count("pt.grouped_mm") == 3
    assert "pt.grouped_mm" not in parts("mixtral-8x7b", "moe_act")[1]
    assert parts("deepseek-v2-lite", "mla_up_proj")[1] == ["mm", "mm"]
    assert set(parts("deepseek-v2-lite", "shared_experts")[1]) < set(parts("deepseek-v2-lite", "moe")[1])
    assert parts("llama3-8b", "core_attn")[1] == parts("llama3-8b", "selective")[1] == ["pt.attention"]


def test_exchanges_of_parts_are_repeated() -> None:
    words: dict[str, Any] = {"layout": "tp=2,sp=1,dp=4,ep=4", "gpus": 8}
    for mode, expected in (("layernorm", []), ("moe", ["all_gather", "reduce_scatter", "all_to_all"])):
        block, _ = parts("deepseek-v2-lite", mode, **words)
        assert sorted(e.collective for e in block.recompute_collectives) == sorted(expected)
    block, _ = parts("llama3-8b", "mlp", layout="tp=8,dp=1,sp=1", gpus=8)
    assert [e.collective for e in block.recompute_collectives] == ["all_gather", "reduce_scatter"]


def test_memory_of_parts_by_hand() -> None:
    """Of each of 32 blocks of 512 tokens in bf16: two results of norms, and of the feed-forward layer gate, up and what
    goes into the last product (with Megatron's fused SwiGLU)."""
    words: dict[str, Any] = {"input": {"seq_len": 512}, "batch_size": 1, "precision": "bf16-master", "gpus": 1}
    job = Job("llama3-8b", framework="megatron", gpu="h200-141gb-sxm", **words)

    def activations(recompute: str) -> float:
        return predict(job.replace(recompute=recompute)).memory.by_category["activations"]

    whole = activations("none")
    assert whole - activations("layernorm") == pytest.approx(32 * 2 * 512 * 4096 * 2, rel=0.05)
    assert whole - activations("mlp") == pytest.approx(32 * 3 * 512 * 14336 * 2, rel=0.05)


def test_a_part_that_the_model_lacks_is_refused() -> None:
    with pytest.raises(JobError, match="recompute moe: no block of llama3-8b has such a part"):
        parts("llama3-8b", "moe")
    with pytest.raises(JobError, match="'mlpp' is no part of a block"):
        Job("llama3-8b", recompute="mlpp,moe")
    assert Job("llama3-8b", recompute=["mlp", "core_attn"]).recompute == "core_attn,mlp"
    assert Job("llama3-8b", recompute="core_attn").recompute == "selective"
