"""States and weights on the host: what leaves the GPU, what copies and the CPUs' update cost, by hand."""

from __future__ import annotations

from typing import Any

import pytest

from precision_time import Job
from precision_time.errors import JobError
from precision_time.estimate.estimate import Estimate
from precision_time.hardware.storage import storage
from precision_time.job.importers import (
    from_accelerate,
    from_deepspeed,
    from_huggingface,
    from_lightning,
    from_llm_foundry,
    from_megatron,
    from_torchtitan,
)
from precision_time.prediction import predict
from precision_time.timing.offload import UPDATE_EFFICIENCY

PARAMETERS = 8_030_261_248
"""Of Llama 3 8B."""
A100_LINK = 1.969e9 * 16 * 0.8
"""PCIe 4.0 x16 at 80 %, bytes a second."""


def job(**fields: Any) -> Job:
    words: dict[str, Any] = {
        "gpu": "a100-80gb-sxm",
        "precision": "bf16-master",
        "framework": "deepspeed",
        "layout": "zero2",
    }
    words |= {"input": {"seq_len": 2048}, "batch_size": 4, "recompute": "full", "optimizer": "adamw"}
    return Job("llama3-8b", **{**words, **fields})


def rows(estimate: Estimate) -> dict[str, float]:
    return {name: size for name, size in estimate.memory.by_category.items() if size}


def test_what_leaves_the_gpu() -> None:
    """ZeRO-Offload keeps 2 bytes a weight on the GPU (arXiv:2101.06840, section 3): no gradient, state or master."""
    plain, moved = predict(job()), predict(job(offload="optimizer"))
    assert not plain.memory.fits
    assert moved.memory.fits
    kept = rows(moved)
    assert kept["weights"] == 2 * PARAMETERS
    assert not {"optimizer states", "master weights", "temporaries of the update"} & set(kept)
    everything = rows(predict(job(offload="parameters", layout="zero3")))
    assert "weights" not in everything
    assert everything["communication buffers"] >= 2 * 128_256 * 4096  # the head, which is gathered alone


def test_below_zero_2_gradients_stay_until_the_update() -> None:
    staying = rows(predict(job(offload="optimizer", layout="zero1", gpus=8)))
    leaving = rows(predict(job(offload="optimizer", layout="zero2", gpus=8)))
    assert staying["gradients"] > 1.8 * PARAMETERS  # of 2, at the fullest moment of the backward pass
    assert "gradients" not in leaving


def test_the_update_by_hand() -> None:
    """AdamW moves 28 bytes a weight and writes it back in 2, at 46 % of a DGX A100's 410 GB/s; alone or shared by
    eight ranks, the node updates all weights."""
    seconds = PARAMETERS * 30 / (410e9 * UPDATE_EFFICIENCY)
    for gpus in (1, 8):
        found = predict(job(offload="optimizer", gpus=gpus))
        assert found.breakdown["optimizer"] == pytest.approx(seconds, rel=0.05)  # anchors scale a step
    unfused = predict(job(offload="parameters", framework="pytorch", layout="fsdp", gpus=8))
    assert unfused.breakdown["optimizer"] > 2 * seconds  # torch.optim passes over the weights eight times


def on_a_v100(shape: dict[str, int], **fields: Any) -> Job:
    words: dict[str, Any] = {"precision": "fp16-master", "recompute": "full", "batch_size": 1, "gpu": "v100-32gb-sxm"}
    words |= {"framework": "deepspeed", "layout": "zero2", "input": {"seq_len": 1024}, **fields}
    return Job("gpt", model_config=shape, **words)


def test_published_updates() -> None:
    """Adam of ZeRO-Offload on a DGX-2, its table 4 (recalled): seconds for 1, 4, 8 and 10 billion weights."""
    shapes = ((20, 2048, 1.0e9, 0.22), (64, 2304, 4.2e9, 1.03), (72, 3072, 8.3e9, 2.41), (50, 4096, 10.3e9, 2.57))
    for layers, hidden, count, measured in shapes:
        shape = {"layers": layers, "hidden": hidden, "heads": 16, "vocab": 50304}
        found = predict(on_a_v100(shape, offload="optimizer", node="dgx-2"))
        assert found.parameters == pytest.approx(count, rel=0.12)
        assert found.breakdown["optimizer"] == pytest.approx(measured * found.parameters / count, rel=0.3)


def test_13_billion_weights_fit_a_v100() -> None:
    """The abstract of arXiv:2101.06840: over 13 billion parameters on one GPU of 32 GB, 1.4 billion without."""
    sizes = ((65, 4096), (52, 2048), (27, 2048))
    large, middle, small = ({"layers": n, "hidden": h, "heads": 32, "vocab": 50304} for n, h in sizes)
    assert predict(on_a_v100(large, offload="optimizer")).memory.fits
    alone = [predict(on_a_v100(shape)) for shape in (large, middle, small)]
    assert [round(each.parameters / 1e9, 1) for each in alone] == [13.3, 2.7, 1.5]
    assert [each.memory.fits for each in alone] == [False, False, True]


def test_copies_hide_behind_compute_or_wait() -> None:
    """With little to compute, gradients leave after the backward pass, and every pass waits for its weights."""
    hidden, bare = (
        predict(job(offload="parameters", layout="zero3", batch_size=batch, input={"seq_len": length}))
        for batch, length in ((8, 2048), (1, 32))
    )
    assert "host" not in hidden.communication
    copies = 3 * 2 * PARAMETERS / A100_LINK  # weights for both passes, gradients back
    assert 0.6 * copies < bare.communication["host"]["exposed_s"] < copies
    assert sum(bare.breakdown.values()) == pytest.approx(bare.step.p50)
    twice = predict(job(offload="parameters", layout="zero3", batch_size=1, input={"seq_len": 32}, grad_accum=2))
    assert twice.communication["host"]["exposed_s"] == pytest.approx(
        2 * bare.communication["host"]["exposed_s"], rel=0.01
    )


def test_nvme_is_read_and_written() -> None:
    """12 bytes of states a weight, read and written by the four drives of a DGX A100; more GPUs do not help."""
    drive = 4 * storage("nvme-gen4").bytes_per_s
    seconds = 12 * PARAMETERS * (1 / drive + 1 / (0.6 * drive))
    for gpus in (1, 8):
        assert predict(job(offload="optimizer-nvme", gpus=gpus)).breakdown["optimizer"] == pytest.approx(
            seconds, rel=0.05
        )
    slower = [predict(job(offload=word, layout="zero3")).step.p50 for word in ("optimizer", "optimizer-nvme")]
    assert slower[0] < slower[1]


def test_what_the_host_holds_is_said() -> None:
    (note,) = (n for n in predict(job(offload="optimizer")).assumptions if n.startswith("offload"))
    held = PARAMETERS * (12 + 2) / 2**30  # states, masters, gradients
    assert note.startswith(f"offload optimizer: {held:,.0f} GiB of host memory a node")
    large = job(offload="parameters", layout="zero3", gpus=8).replace(model="llama3.1-405b", gpu="h100-80gb-sxm")
    assert any("does not hold" in n and "take more nodes or parameters-nvme" in n for n in predict(large).assumptions)


def test_half_or_more_is_assumed() -> None:
    """The rate of an update is no measurement of this program, and its share counts as assumed."""
    plain, moved = predict(job(anchors="none")), predict(job(offload="optimizer", anchors="none"))
    assert moved.sources["assumed"] > plain.sources["assumed"] + 0.2
    assert moved.step.p90 / moved.step.p50 > plain.step.p90 / plain.step.p50


def test_a_part_of_the_states_stays_on_the_gpu() -> None:
    """DeepSpeed's `ratio` (ZeRO-Offload++): of 0.4, six tenths of the states are on the GPU, which updates them."""
    fields: dict[str, Any] = {"layout": "zero3", "gpus": 8}
    plain, part, whole = (
        predict(job(**fields, **more))
        for more in ({}, {"offload": "optimizer", "offload_ratio": 0.4}, {"offload": "optimizer"})
    )
    for name in ("optimizer states", "master weights"):
        assert rows(part)[name] == pytest.approx(0.6 * rows(plain)[name])
    shares = [estimate.breakdown["optimizer"] for estimate in (plain, part, whole)]
    assert shares[1] == pytest.approx(0.6 * shares[0] + 0.4 * shares[2], rel=0.05)


def test_states_of_a_pipeline_are_on_the_host() -> None:
    """Megatron's --optimizer-cpu-offload: each stage's states leave, and its update waits for the CPUs."""
    fields: dict[str, Any] = {
        "layout": "pp=4,dp=2,zero=1", "gpus": 8, "framework": "megatron", "grad_accum": 8, "batch_size": 1,
    }  # fmt: skip
    plain, moved = predict(job(**fields)), predict(job(**fields, offload="optimizer"))
    assert not {"optimizer states", "master weights"} & set(rows(moved))
    one = predict(job(layout="zero1", gpus=8, framework="megatron", batch_size=1, offload="optimizer"))
    # the fullest of 4 stages holds more than a quarter of the weights, on 2 ranks in place of 8
    assert moved.breakdown["optimizer"] == pytest.approx(one.breakdown["optimizer"], rel=0.35)
    assert moved.step.p50 > plain.step.p50 + 0.9 * moved.breakdown["optimizer"] - plain.breakdown["optimizer"]


def test_offloading_is_refused_where_nothing_offloads() -> None:
    for fields, message in (
        ({"layout": "dp"}, "offload optimizer needs shards, and layout is dp; set layout to zero1"),
        ({"layout": "zero2", "offload": "parameters"}, "offload parameters needs shards.*set layout to zero3"),
        ({"layout": "fsdp", "framework": "pytorch"}, "offload optimizer is DeepSpeed's.*set offload to parameters"),
        (
            {"layout": "pp=2,dp=1,zero=3", "gpus": 2, "offload": "parameters"},
            "one pipeline stage, and layout has pp=2",
        ),
        ({"offload": None, "offload_ratio": 0.5}, "offload_ratio 0.5 goes with offload optimizer, not none"),
        ({"optimizer": "muon"}, "no update of muon on CPUs"),
        ({"offload": "disk"}, "offload 'disk' is unknown"),
    ):
        with pytest.raises(JobError, match=message):
            job(**{"offload": "optimizer", **fields})
    assert "offload optimizer" in job(offload="cpu").signature()


def test_verify_does_not_train_it() -> None:
    pytest.importorskip("torch")
    from precision_time.errors import MeasureError
    from precision_time.measure.train import check

    with pytest.raises(MeasureError, match="offload is DeepSpeed's and FSDP's"):
        check(Job("gpt", precision="fp32", framework="deepspeed", layout="zero2", offload="optimizer"))


# --- other programs' files --------------------------------------------------------------------------------------


def deep(**zero: Any) -> dict[str, Any]:
    config = {"train_micro_batch_size_per_gpu": 1, "bf16": {"enabled": True}, "zero_optimization": zero}
    return dict(from_deepspeed(config).fields)


def test_files_that_offload() -> None:
    assert deep(stage=2, offload_optimizer={"device": "cpu", "pin_memory": True})["offload"] == "optimizer"
    assert deep(stage=2, cpu_offload=True)["offload"] == "optimizer"
    assert deep(stage=3, offload_optimizer={"device": "nvme", "nvme_path": "/x"})["offload"] == "optimizer-nvme"
    both = {"offload_optimizer": {"device": "cpu"}, "offload_param": {"device": "cpu"}}
    assert deep(stage=3, **both)["offload"] == "parameters"
    assert deep(stage=3, **{**both, "offload_optimizer": {"device": "nvme"}})["offload"] == "parameters-nvme"
    assert "offload" not in deep(stage=2, offload_optimizer={"device": "none"})
    low = from_deepspeed({"zero_optimization": {"stage": 2, **both}})
    assert low.not_taken["zero_optimization.offload"] == "needs a higher stage than 2"
    part = from_deepspeed({"zero_optimization": {"stage": 3, "offload_optimizer": {"device": "cpu", "ratio": 0.3}}})
    assert (part.fields["offload"], part.fields["offload_ratio"]) == ("optimizer", 0.3)
    part = from_deepspeed({"zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu", "ratio": 0.3}}})
    assert "needs stage 3" in part.not_taken["zero_optimization.offload_optimizer.ratio"]
    megatron = from_megatron({"use-distributed-optimizer": True, "optimizer-cpu-offload": True, "bf16": True})
    assert (megatron.fields["offload"], megatron.fields["offload_ratio"]) == ("optimizer", 1.0)
    with pytest.raises(JobError, match="device is 'disk'; set it to cpu, nvme or none"):
        deep(stage=3, offload_param={"device": "disk"})
    trainer = {"output_dir": "x", "fsdp": "full_shard offload"}
    assert from_huggingface(trainer).fields["offload"] == "parameters"
    accelerate = {
        "distributed_type": "DEEPSPEED",
        "deepspeed_config": {"zero_stage": 3, "offload_optimizer_device": "cpu"},
    }
    assert from_accelerate(accelerate).fields["offload"] == "optimizer"
    sharded = {"distributed_type": "FSDP", "fsdp_config": {"fsdp_offload_params": True}}
    assert from_accelerate(sharded).fields["offload"] == "parameters"
    assert from_lightning({"trainer": {"strategy": "deepspeed_stage_3_offload"}}).fields["offload"] == "parameters"
    assert from_lightning({"trainer": {"strategy": "deepspeed_stage_2_offload"}}).fields["offload"] == "optimizer"
    assert from_lightning({"trainer": {"strategy": "fsdp_cpu_offload"}}).fields["offload"] == "parameters"
    foundry = {"max_seq_len": 8, "fsdp_config": {"sharding_strategy": "FULL_SHARD", "cpu_offload": True}}
    assert from_llm_foundry(foundry).fields["offload"] == "parameters"
    titan = {"training": {"enable_cpu_offload": True}, "parallelism": {"data_parallel_shard_degree": 8}}
    assert from_torchtitan(titan).fields["offload"] == "parameters"
