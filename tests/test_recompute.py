"""What of a block runs again in the backward pass: as PyTorch does, as torchtitan's policy has it, as Megatron does."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from precision_time.capture.training_step import training_step
from precision_time.errors import JobError
from precision_time.job import Job
from precision_time.layout.program import TENSOR, StepProgram, UnitProgram
from precision_time.layout.step_program import Options, step_program


def program(framework: str, recompute: str, layout: str = "dp", gpus: int = 1, **fields: Any) -> StepProgram:
    words: dict[str, Any] = {"input": {"seq_len": 512}, "batch_size": 1, "precision": "bf16-master", **fields}
    job = Job("llama3-8b", framework=framework, recompute=recompute, layout=layout, gpus=gpus, **words)
    return step_program(training_step(job), job.layout_spec, Options.of(job))


def block_of(found: StepProgram) -> UnitProgram:
    return next(unit for unit in found.units if len(unit.recompute))


def again(framework: str, recompute: str, **fields: Any) -> list[str]:
    found = program(framework, recompute, **fields)
    return [found.kinds[kind].name.removeprefix("aten.") for kind in block_of(found).recompute.kind]


def forward(framework: str) -> list[str]:
    found = program(framework, "full")
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
    assert again(framework, "full", **fields) == forward(framework)


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
