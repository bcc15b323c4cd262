"""Ranks wait for the slowest of them, and share a host."""

from __future__ import annotations

import dataclasses
import math
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from precision_time.anchoring import Anchoring
from precision_time.capture.captured_model import capture_model, resolve
from precision_time.capture.lengths import settle_lengths
from precision_time.errors import JobError
from precision_time.hardware.catalog import default_catalog
from precision_time.job.job import Job
from precision_time.prediction import predict, simulate_step
from precision_time.timeline.timeline import Timeline
from precision_time.timing.constants import StepConstants, shipped
from precision_time.timing.ranks import RankCosts, averaged, largest_of, rank_costs
from precision_time.zoo.catalog import ENTRIES

NO_ANCHORS = Anchoring(use=False)


def timed(job: Job, constants: StepConstants | None = None) -> Timeline:
    cluster = default_catalog().cluster(job.gpu, job.gpus)
    return simulate_step(job, job.precision_spec, cluster, constants).timeline


# --- how long the slowest takes -------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [2, 8, 64])
def test_the_largest_of_normal_numbers(count: int) -> None:
    """Blom's formula against a hundred thousand draws."""
    drawn = np.random.default_rng(0).standard_normal((100_000, count)).max(axis=1).mean()
    assert largest_of(count) == pytest.approx(drawn, rel=0.05)


def test_the_longest_of_uniform_batches() -> None:
    """Eight batches between 1408 and 1920 frames: the longest has 1408 + 512 x 8 / 9 = 1863 on average, 1664 is one."""
    costs = RankCosts(jitter=0.0, host_contention=0.0)
    assert 1 + costs.wait_share(8, 256 / 1664) == pytest.approx((1408 + 512 * 8 / 9) / 1664)
    drawn = np.random.default_rng(0).uniform(1408, 1920, (100_000, 8)).max(axis=1).mean()
    assert 1664 * (1 + costs.wait_share(8, 256 / 1664)) == pytest.approx(drawn, rel=0.002)


def test_one_rank_waits_for_nobody_and_more_wait_longer() -> None:
    costs = RankCosts(jitter=0.02, host_contention=0.03)
    shares = [costs.wait_share(ranks, 0.1) for ranks in (1, 2, 4, 8, 64, 1024)]
    assert shares[0] == 0.0
    assert all(a < b for a, b in pairwise(shares))
    assert costs.host_factor(1) == 1.0
    assert costs.host_factor(8) == pytest.approx(1.21)


def test_micro_steps_without_a_reduction_average_out() -> None:
    assert averaged(0.08, 4) == pytest.approx(0.04)


def test_factors_multiply_what_is_set_by_hand() -> None:
    plain = rank_costs()
    assert rank_costs(2.0, 3.0) == RankCosts(2.0 * plain.jitter, 3.0 * plain.host_contention)
    assert StepConstants(ranks={"jitter": 2.0}).rank_costs.jitter == 2.0 * plain.jitter


# --- in a step ------------------------------------------------------------------------------------------------------


def test_a_step_of_several_ranks_is_longer_by_its_share() -> None:
    """ResNet-50, bound by its kernels: between two reductions lies the step without the wait."""
    job = Job("resnet50", precision="amp-fp16", batch_size=128, gpus=8)
    constants = StepConstants(ranks={"jitter": 3.0})
    found = timed(job, constants)
    share = constants.rank_costs.wait_share(8, 0.0)
    assert found.straggler_wait_s == pytest.approx(share * (found.step_s - found.straggler_wait_s))
    assert timed(job.replace(gpus=1), constants).straggler_wait_s == 0.0


def test_accumulation_waits_once_a_step() -> None:
    job = Job("resnet50", precision="amp-fp16", batch_size=64, gpus=8, grad_accum=16)
    found = timed(job)
    share = shipped().rank_costs.wait_share(8, 0.0)
    wait, without = found.straggler_wait_s, found.step_s - found.straggler_wait_s
    assert averaged(share, 16) * without < wait < 1.1 * averaged(share, 16) * without  # the update is a small part


def test_one_more_micro_step_never_shortens_a_step_that_reduces_for_long() -> None:
    """Gradients of 1,000 billion parameters over the network of 512 nodes: waits of micro-steps average out, but the
    reduction stays as long."""
    job = Job("kimi-k2", precision="amp-fp16", batch_size=1, gpu="l40", gpus=4096, layout="tp=8,dp=512")
    steps = [predict(job.replace(grad_accum=n)).step.p50 for n in (1, 2, 3, 4, 8)]
    assert steps == sorted(steps)


def test_eight_ranks_crowd_one_host() -> None:
    """A batch of one image waits for the host, and the more ranks share it the longer."""
    job = Job("resnet50", precision="amp-bf16", batch_size=1)
    quiet, crowded = ({"jitter": 1e-9, "host_contention": c} for c in (1e-9, 1.0))
    gaps = [timed(job.replace(gpus=8), StepConstants(ranks=ranks)).host_s for ranks in (quiet, crowded)]
    assert gaps[1] == pytest.approx(1.21 * gaps[0], rel=0.01)
    alone = [timed(job, StepConstants(ranks=ranks)).host_s for ranks in (quiet, crowded)]
    assert alone[0] == alone[1]


# --- lengths that vary ----------------------------------------------------------------------------------------------


def test_a_range_is_traced_at_its_middle() -> None:
    plain = resolve(Job("bert-base", input={"seq_len": 96}))
    found = resolve(Job("bert-base", input={"seq_len": "64..128"}))
    assert found.sizes == plain.sizes
    assert (plain.length_spread, found.length_spread) == (0.0, pytest.approx(1 / 3))


def test_clips_vary_unless_said_otherwise() -> None:
    """Batches of more clips are longer, and vary less, with the root of their number."""
    entry = ENTRIES["jasper-10x5dr"]
    assert entry.varies is not None
    eight, more = (resolve(Job("jasper-10x5dr", batch_size=n)) for n in (8, 32))
    assert eight.sizes["audio_frames"] == entry.input["audio_frames"] == 1664
    assert more.sizes["audio_frames"] == 1792  # 1664 (1 + 1.25 x 0.34 (1/sqrt(8) - 1/sqrt(32))) = 1789, to 16 frames
    assert eight.length_spread == pytest.approx(entry.varies[1] / math.sqrt(8))
    assert more.length_spread == pytest.approx(eight.length_spread / 2)
    said = resolve(Job("jasper-10x5dr", batch_size=32, input={"audio_frames": "1600..1600"}))
    assert (said.sizes["audio_frames"], said.length_spread) == (1600, 0.0)
    sizes, spread = settle_lengths({"audio_frames": "1000..1015", "n_mels": 64}, {"audio_frames": 16})
    assert sizes == {"audio_frames": 1008, "n_mels": 64}  # batches are padded to 16 frames
    assert spread == pytest.approx(15 / 2015)


@pytest.mark.parametrize("batch", [4, 8, 16, 32, 64, 128])
def test_batches_are_padded_to_their_longest_clip(batch: int) -> None:
    """Clips as LibriSpeech has them (12.3 s on average, many near 15, none above 16.7), less 3 % of silence, at 0.85 to
    1.15 times the speed, 100 frames a second: the mean batch, and the longest of eight over it."""
    drawn = np.random.default_rng(0)
    seconds = 16.7 * drawn.beta(2.0, 0.72, (2000, 8, batch)) / drawn.uniform(0.85, 1.15, (2000, 8, batch))
    padded = 97.0 * seconds.max(axis=2)
    found = resolve(Job("jasper-10x5dr", batch_size=batch))
    assert found.sizes["audio_frames"] == pytest.approx(padded.mean(), rel=0.02)
    longer = padded.max(axis=1).mean() / padded.mean() - 1.0
    assert RankCosts(0.0, 0.0).wait_share(8, found.length_spread) == pytest.approx(longer, rel=0.2)


def test_ranks_wait_for_the_longest_batch() -> None:
    """The published Jasper on eight GPUs takes 9 to 11 % longer than on one; equal clips would not."""
    job = Job("jasper-10x5dr", precision="amp-fp16", batch_size=32)
    ratio = {}
    usual = resolve(job).sizes["audio_frames"]
    for name, frames in (("varied", 1664), ("equal", f"{usual}..{usual}")):
        one, eight = (
            predict(job.replace(input={"audio_frames": frames}, gpus=n), anchoring=NO_ANCHORS) for n in (1, 8)
        )
        ratio[name] = eight.step.p50 / one.step.p50
        said = any("wait for the longest" in a for a in eight.assumptions)
        assert said == (name == "varied")
        assert not any("wait for the longest" in a for a in one.assumptions)
        padded = any(f"one of 32 is padded to its longest, about {usual:,}" in a for a in one.assumptions)
        assert padded == (name == "varied")
    assert ratio["varied"] - ratio["equal"] == pytest.approx(resolve(job).length_spread * 7 / 9, abs=0.02)


@pytest.mark.parametrize(("value", "fix"), [("1920..1408", "1408..1920"), ("0..16", "")])
def test_a_range_that_falls_is_refused(value: str, fix: str) -> None:
    with pytest.raises(JobError, match=f"audio_frames '{value}' is a range") as raised:
        resolve(Job("jasper-10x5dr", input={"audio_frames": value}))
    assert fix in str(raised.value)


def test_own_models_may_vary_too(tmp_path: Any) -> None:
    """The function is called with the middle."""
    pytest.importorskip("torch")
    file = tmp_path / "net.py"
    file.write_text(
        "import torch\n"
        "def job(seq_len=16):\n"
        "    return {'model': torch.nn.Linear(8, 8), 'inputs': torch.empty(2, seq_len, 8),\n"
        "            'loss': lambda out: out.sum(), 'optimizer': 'sgd'}\n"
    )
    step = capture_model(Job(f"{file}:job", input={"seq_len": "8..24"}))
    assert step.length_spread == 0.5
    assert any(spec.numel == 2 * 16 * 8 for kind in step.graph.kinds for spec in kind.outputs)


def test_the_slowest_gpu_has_a_line_of_its_own() -> None:
    estimate = predict(Job("resnet50", gpus=8), anchoring=NO_ANCHORS)
    assert estimate.breakdown["straggler_wait"] > 0.0
    assert "waiting for the slowest GPU" in str(estimate)
    assert sum(estimate.breakdown.values()) == pytest.approx(estimate.step.p50)
    assert dataclasses.replace(estimate).breakdown["straggler_wait"] < 0.1 * estimate.step.p50
