"""Layouts: every spelling, the rules between degrees, and the label that is read back."""

from __future__ import annotations

import dataclasses
import pickle
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from precision_time.errors import JobError
from precision_time.job.layout import CP_COMMS, LAYOUT_FIELDS, SCHEDULES, Layout
from precision_time.job.layout_parsing import ALIASES, NAMES, parse_layout

degrees = st.sampled_from([1, 1, 2, 3, 4, 8])


@st.composite
def layouts(draw: st.DrawFn) -> Layout:
    fields: dict[str, Any] = {name: draw(degrees) for name in ("dp", "tp", "pp", "cp")}
    fields["sp"] = draw(st.booleans())
    fields["zero"] = draw(st.integers(0, 3))
    ranks = fields["dp"] * fields["cp"]
    if fields["zero"]:
        fields["shard"] = draw(st.sampled_from([None, *(n for n in range(2, ranks + 1) if ranks % n == 0)]))
        fields["overlap_param_gather"] = draw(st.sampled_from([None, True, False]))
    fields["ep"] = draw(st.sampled_from([n for n in range(1, ranks + 1) if ranks % n == 0]))
    fields["etp"] = draw(st.sampled_from([None, 1, fields["tp"]]))
    fields["vpp"] = draw(degrees) if fields["pp"] > 1 else 1
    if fields["pp"] > 1:
        fields["schedule"] = draw(st.sampled_from(["1f1b", "zero-bubble", *(["gpipe"] if fields["vpp"] == 1 else [])]))
    fields["cp_comm"] = draw(st.sampled_from(CP_COMMS))
    fields["overlap_grad_reduce"] = draw(st.sampled_from([None, True, False]))
    fields["overlap_tp"] = fields["sp"] and draw(st.booleans())
    fields["expert_imbalance"] = draw(st.floats(1.0, 1e6))
    fields["capacity_factor"] = draw(st.none() | st.floats(1e-6, 1e6))
    return Layout(**fields)


@given(layouts())
def test_the_label_is_read_back(layout: Layout) -> None:
    again = parse_layout(layout.label, layout.gpus)
    assert again == layout
    assert again.label == layout.label
    assert parse_layout(layout.text(with_dp=False), layout.gpus) == layout
    assert parse_layout(dataclasses.asdict(layout), layout.gpus) == layout
    assert parse_layout(layout, layout.gpus) is layout
    assert pickle.loads(pickle.dumps(layout)) == layout


@given(layouts())
def test_ranks_add_up(layout: Layout) -> None:
    assert layout.gpus == layout.tp * layout.pp * layout.cp * layout.dp
    assert layout.expert_ranks * layout.ep * layout.etp * layout.pp == layout.gpus
    assert layout.data_ranks % layout.shard_ranks == 0
    assert layout.plain == (layout.label == "dp")


SPELLINGS: list[tuple[Any, str]] = [
    ("dp", "dp"),
    ("DDP", "dp"),
    ("ddp=16", "dp"),
    ("no_shard", "dp"),
    ("tp=1,pp=1,dp=16,cp=1,ep=1,vpp=1", "dp"),
    ("fsdp", "fsdp"),
    ("FSDP2", "fsdp"),
    ("full-shard", "fsdp"),
    ("zero3", "fsdp"),
    ("ZeRO-3", "fsdp"),
    ("zero=3", "fsdp"),
    ("fsdp=16", "fsdp"),
    ("fsdp=8", "hsdp=8"),
    ("hsdp=8", "hsdp=8"),
    ("hybrid_shard=4", "hsdp=4"),
    ({"fsdp": True}, "fsdp"),
    ({"hsdp": 8}, "hsdp=8"),
    ("shard_grad_op", "zero2"),
    ("zero_2", "zero2"),
    ("zero1", "zero1"),
    ("zero1,shard=8", "zero1,shard=8"),
    ({"stage": 1}, "zero1"),
    ("tp=8", "tp=8,dp=2"),
    ("tp=8,sp", "tp=8,dp=2,sp=1"),
    ("tp=4; pp=2; zero=1", "tp=4,pp=2,dp=2,zero=1"),
    ("fsdp,tp=8", "tp=8,dp=2,zero=3"),
    ("pp=4,vpp=2", "pp=4,dp=4,vpp=2"),
    ("pp=4,schedule=GPipe", "pp=4,dp=4,schedule=gpipe"),
    ("pp=4,vpp=2,schedule=zero_bubble", "pp=4,dp=4,vpp=2,schedule=zero-bubble"),
    ("cp=2,cp_comm=p2p", "dp=8,cp=2"),
    ("cp=2,cp_comm=ulysses", "dp=8,cp=2,cp_comm=all-to-all"),
    ("cp=2,cp_comm=all_gather", "dp=8,cp=2,cp_comm=all-gather"),
    ("tp=2,ep=16,etp=1", "tp=2,dp=8,ep=16,etp=1"),
    ("ep=8,expert_imbalance=1.25,capacity_factor=1", "dp=16,ep=8,expert_imbalance=1.25,capacity_factor=1.0"),
    ("dp=16,overlap_grad_reduce=0", "dp=16,overlap_grad_reduce=0"),
    ({"tensor-model-parallel-size": 2, "pipeline_model_parallel_size": "4"}, "tp=2,pp=4,dp=2"),
    ({"--tensor-model-parallel-size": 4, "--sequence-parallel": True}, "tp=4,dp=4,sp=1"),
    ({"context_parallel_size": 2, "expert_model_parallel_size": 4}, "dp=8,cp=2,ep=4"),
    ({"virtual_pipeline_model_parallel_size": 3, "pp": 2}, "pp=2,dp=8,vpp=3"),
    ({"tp": 2, "use_distributed_optimizer": True}, "tp=2,dp=8,zero=1"),
    ({"tp": 2, "use_distributed_optimizer": False}, "tp=2,dp=8"),
    ({"use_distributed_optimizer": True, "num_distributed_optimizer_instances": 2}, "zero1,shard=8"),
    ({"data_parallel_sharding_strategy": "optim_grads_params"}, "fsdp"),
    ({"tp": 4, "sp": 1, "tp_comm_overlap": True}, "tp=4,dp=4,sp=1,overlap_tp=1"),
    ({"data_parallel_shard_degree": -1}, "fsdp"),
    ({"data_parallel_replicate_degree": 2, "data_parallel_shard_degree": 8}, "hsdp=8"),
    ({"data_parallel_replicate_degree": 2, "tensor_parallel_degree": 2}, "tp=2,dp=8,zero=3,shard=4"),
    ({"data_parallel_replicate_degree": 16, "data_parallel_shard_degree": 1}, "dp"),
    ({"data_parallel_shard_degree": 1, "data_parallel_replicate_degree": 8, "context_parallel_degree": 2},
     "dp=8,cp=2,zero=3,shard=2"),
]  # fmt: skip


@pytest.mark.parametrize(("value", "label"), SPELLINGS, ids=[str(value) for value, _ in SPELLINGS])
def test_spellings(value: Any, label: str) -> None:
    assert parse_layout(value, 16).label == label


def test_every_name_and_alias_is_read() -> None:
    assert set(ALIASES.values()) <= set(LAYOUT_FIELDS)
    for name in NAMES:
        assert parse_layout(name, 16, nodes=2).gpus == 16
    for alias, field in ALIASES.items():
        value = {"schedule": "1f1b", "cp_comm": "ring"}.get(field, 1 if field != "dp" else 16)
        with_states = {"zero": 1} if field == "shard" else {}
        if field == "shard":
            value = 4
        assert parse_layout({alias: value, **with_states}, 16) == parse_layout({field: value, **with_states}, 16)
    for schedule in SCHEDULES:
        assert parse_layout({"pp": 2, "vpp": 2 if schedule == "interleaved" else 1, "schedule": schedule}, 2).gpus == 2


def test_hybrid_sharding_over_a_node() -> None:
    assert parse_layout("hsdp", 32, nodes=4).label == "hsdp=8"
    assert parse_layout("hsdp,tp=2", 32, nodes=4).label == "tp=2,dp=16,zero=3,shard=4"
    assert parse_layout("hsdp", 8, nodes=1).label == "fsdp"
    assert parse_layout("hybrid_shard_zero2", 32, nodes=4).label == "zero2,shard=8"


def test_what_follows_from_what() -> None:
    assert Layout(dp=4, sp=True).sp is False, "Megatron switches it off where tp is 1"
    assert Layout(tp=2, etp=None).etp == 2
    assert Layout(pp=2, vpp=2).schedule == "interleaved"
    assert Layout(dp=8, zero=3, shard=8).shard is None
    assert Layout(dp=8, zero=3, shard=4).shard_ranks == 4
    assert Layout(dp=8, cp=2, zero=1).shard_ranks == 16
    assert Layout(dp=8).shard_ranks == 1
    assert Layout(dp=8).overlap_grad_reduce, "DDP"
    assert not Layout(dp=8).overlap_param_gather
    assert Layout(dp=8, zero=3).overlap_param_gather, "FSDP prefetches"
    assert Layout(dp=8, tp=2, zero=3).overlap_grad_reduce
    assert not Layout(dp=8, tp=2, zero=1).overlap_grad_reduce, "Megatron does when told"
    assert Layout(dp=8, tp=2, ep=4).expert_ranks == 2
    assert (parse_layout("ep=32,tp=2,etp=1", 64).expert_ranks, parse_layout("ep=32,tp=2", 64).expert_ranks) == (2, 1)


WRONG: list[tuple[Any, int, str]] = [
    ("tp=8,pp=4,cp=1,dp=3", 128,
     "layout tp=8 x pp=4 x cp=1 x dp=3 = 96 does not make up gpus 128; set dp to 4 or gpus to 96"),
    ("tp=8,pp=4,dp=3", 100, "layout tp=8 x pp=4 x cp=1 x dp=3 = 96 does not make up gpus 100; set gpus to 96"),
    ("tp=8,pp=4", 40,
     "layout tp=8 x pp=4 x cp=1 = 32 does not divide gpus 40; set gpus to a multiple, for example 64"),
    (Layout(dp=4), 8, "layout tp=1 x pp=1 x cp=1 x dp=4 = 4 does not make up gpus 8; set dp to 8 or gpus to 4"),
    ("tp=2,dp=32,ep=64", 64,
     "layout ep=64 x etp=2 = 128 does not divide tp=2 x cp=1 x dp=32 = 64; set ep to 32 or etp to 1"),
    ("ep=3", 8, "layout ep=3 x etp=1 = 3 does not divide tp=1 x cp=1 x dp=8 = 8; set ep to 1"),
    ("etp=3", 8, "layout ep=1 x etp=3 = 3 does not divide tp=1 x cp=1 x dp=8 = 8; set etp to 1"),
    ("vpp=2", 8, "layout vpp=2 has no pipeline to interleave; set pp above 1 or vpp to 1"),
    ("pp=2,schedule=interleaved", 8, "layout schedule=interleaved has vpp=1; set vpp to the chunks of each rank, 2 or"),
    ("pp=2,vpp=2,schedule=gpipe", 8, "layout schedule=gpipe has no chunks, but vpp=2; set vpp to 1, or no schedule"),
    ("pp=2,schedule=gpip", 8, "layout.schedule 'gpip' is unknown; nearest: gpipe"),
    ("cp=2,cp_comm=rung", 8, "layout.cp_comm 'rung' is unknown; nearest: ring"),
    ("tp=2,overlap_tp", 8, "layout overlap_tp=1 with tp=2 needs sequence parallelism; set sp to 1"),
    ("overlap_param_gather", 8, "layout overlap_param_gather needs sharded states to gather; set zero to 1, 2 or 3"),
    ("fsdp=3", 8, "layout shard=3 does not divide dp=8 x cp=1 = 8; leave it out (all ranks share)"),
    ("fsdp=6", 8, "layout shard=6 does not divide dp=8 x cp=1 = 8; set it to 2 or leave it out (all ranks share)"),
    ("shard=4", 8, "layout shard=4 has nothing to share at zero=0; set zero to 1, 2 or 3"),
    ("fsdp=1", 8, "layout shard=1 shards nothing; set zero to 0, or shard to 2 or more"),
    ("zero=4", 8, "layout.zero must be a whole number from 0 to 3, not '4'"),
    ("hsdp", 8, "layout hsdp needs the number of GPUs that share a copy; write hsdp=8, or give nodes"),
    ("expert_imbalance=0.5", 8, "layout.expert_imbalance must be a number of times the mean from 1 to 1,000,000"),
    ("capacity_factor=0", 8, "layout.capacity_factor must be a number of even shares from 1e-6 to 1,000,000, not '0'"),
    ("tp=x", 8, "layout.tp must be a whole number of ranks from 1 to 1,048,576, not 'x'"),
    ("tp=", 8, "layout 'tp=' has no value in 'tp='; write for example tp=8"),
    ("tp=8,tp=4", 8, "layout gives tp twice, once as 'tp'; keep one of them"),
    ({"tp": 8, "tensor_model_parallel_size": 4}, 8, "layout gives tp twice, once as 'tensor_model_parallel_size'"),
    ("fsdp,zero=1", 8, "layout gives zero twice"),
    ({"tq": 8}, 8, "unknown field 'tq' in layout; nearest: tp"),
    ("fdsp", 8, "layout 'fdsp' is unknown; nearest: fsdp"),
    ("", 8, "layout '' is unknown"),
    (8, 8, "layout 8 is unknown"),
    (None, 8, "layout None is unknown"),
    ({"sp": "maybe", "tp": 2}, 8, "layout.sp must be true or false, not 'maybe'"),
    ("lora=16", 8, "layout lora=16 is not a degree; leave it out of the layout and set lora to 16"),
    ({"num_layers_per_virtual_pipeline_stage": 2, "pp": 2}, 8,
     "layout num_layers_per_virtual_pipeline_stage=2 needs the model's layers; give vpp instead, layers / (pp x 2)"),
    ({"data_parallel_replicate_degree": 3}, 8, "layout data_parallel_replicate_degree=3 does not divide dp=8;"),
    ({"use_distributed_optimizer": True, "num_distributed_optimizer_instances": 3}, 8,
     "layout num_distributed_optimizer_instances=3 does not divide dp=8 x cp=1 = 8; lower it"),
    ({"data_parallel_sharding_strategy": "optim_grad"}, 8, "nearest: optim_grads"),
]  # fmt: skip


@pytest.mark.parametrize(("value", "gpus", "message"), WRONG, ids=[str(value) for value, _, _ in WRONG])
def test_impossible_layouts_are_one_sentence(value: Any, gpus: int, message: str) -> None:
    with pytest.raises(JobError) as caught:
        parse_layout(value, gpus)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_sequences_are_split_evenly() -> None:
    Layout(cp=4).check_sequence(8192)
    Layout(tp=8).check_sequence(1001)
    with pytest.raises(
        JobError, match="seq_len 1001 is not a multiple of 8, as layout cp=4 needs; set seq_len to 1000"
    ):
        Layout(cp=4).check_sequence(1001)
    with pytest.raises(JobError, match="multiple of 16, as layout cp=4 and sp=1 with tp=2 needs"):
        Layout(cp=4, tp=2, sp=True).check_sequence(1000)
