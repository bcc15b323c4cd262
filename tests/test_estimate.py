"""The whole line: floors, order, sums, intervals, JSON, memory, schedules, users' own models."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from precision_time import Estimate, predict_time
from precision_time.errors import CaptureError, JobError, PrecisionTimeError
from precision_time.estimate.estimate import BREAKDOWN_TERMS
from precision_time.estimate.interval import Interval
from precision_time.job.precision import PRECISIONS
from precision_time.units import human_bytes
from precision_time.zoo.ship import DATA

MODELS = [n for n in ("resnet50", "bert-large", "gpt2", "jasper-10x5dr", "ncf") if (DATA / f"{n}.zip").exists()]
GPUS = ["v100-32gb-sxm", "a100-80gb-sxm", "h100-80gb-sxm", "h200-141gb-sxm"]
pytestmark = pytest.mark.skipif(not MODELS, reason="no shipped graphs")

jobs = st.fixed_dictionaries(
    {
        "model": st.sampled_from(MODELS),
        "precision": st.sampled_from(["fp64", "fp32", "amp-fp16", "fp16-master", "fp16"]),
        "gpu": st.sampled_from(GPUS),
        "gpus": st.sampled_from([1, 2, 8, 16]),
        "batch_size": st.integers(2, 64),
        "grad_accum": st.sampled_from([1, 2, 7]),
        "optimizer_impl": st.sampled_from([None, "single", "foreach", "fused"]),
        "execution": st.sampled_from(["eager", "compile", "cuda_graphs"]),
    }
)


def steps(estimate: Estimate) -> float:
    return estimate.step.p50


# --- invariants -------------------------------------------------------------------------------------------------


@settings(max_examples=40)
@given(jobs)
def test_every_estimate_holds_together(job: dict[str, Any]) -> None:
    found = predict_time(**job, epochs=2, dataset_size=100_000, price_per_gpu_hour=2.0, start_up_s=0)
    # never below the physical floor, parts sum to the whole, percentiles in order
    assert found.floor_s > 0
    assert steps(found) >= found.floor_s
    assert tuple(found.breakdown) == BREAKDOWN_TERMS
    assert sum(found.breakdown.values()) == pytest.approx(steps(found), rel=1e-9)
    assert min(found.breakdown.values()) >= 0
    for interval in (found.step, found.epoch, found.run, found.cost_usd, found.energy_j):
        assert interval is not None
        assert 0 < interval.p10 < interval.p50 < interval.p90
    assert float(found) == steps(found)
    # memory and shares
    assert sum(found.memory.by_category.values()) == found.memory.peak_bytes
    assert min(found.memory.by_category.values()) >= 0
    assert sum(found.sources.values()) == pytest.approx(1.0)
    assert sum(found.bound_shares.values()) == pytest.approx(1.0)
    # arithmetic of the run
    global_batch = job["batch_size"] * job["grad_accum"] * job["gpus"]
    assert found.samples_per_s == pytest.approx(global_batch / steps(found))
    assert found.steps_per_epoch == -(-100_000 // global_batch)
    assert found.epoch.p50 == pytest.approx(steps(found) * found.steps_per_epoch)
    assert found.run.p50 == pytest.approx(steps(found) * found.steps)
    assert found.cost_usd.p50 == pytest.approx(found.run.p50 / 3600 * job["gpus"] * 2.0)
    # JSON
    assert Estimate.from_dict(json.loads(json.dumps(found.to_dict()))) == found


@settings(max_examples=25)
@given(jobs, st.integers(2, 3))
def test_a_larger_batch_is_never_faster(job: dict[str, Any], factor: int) -> None:
    small = predict_time(**job)
    large = predict_time(**{**job, "batch_size": job["batch_size"] * factor})
    assert steps(large) >= steps(small) * (1 - 1e-9)
    assert large.floor_s >= small.floor_s
    assert large.memory.peak_bytes >= small.memory.peak_bytes
    assert sum(large.flops_per_step.values()) > sum(small.flops_per_step.values())


@settings(max_examples=15)
@given(jobs)
def test_more_accumulation_never_takes_less(job: dict[str, Any]) -> None:
    one, four = (predict_time(**{**job, "grad_accum": n}) for n in (1, 4))
    assert steps(four) > steps(one)
    assert four.floor_s > 3.5 * (one.floor_s - one.breakdown["optimizer"])
    assert four.samples_per_s >= one.samples_per_s * 0.8


def test_throughput_on_more_gpus_never_passes_linear_scaling() -> None:
    one = predict_time("resnet50", precision="amp-fp16", batch_size=64)
    for gpus in (2, 8, 32):
        many = predict_time("resnet50", precision="amp-fp16", batch_size=64, gpus=gpus)
        assert many.samples_per_s <= gpus * one.samples_per_s * (1 + 1e-9)
        assert steps(many) >= steps(one)


def test_a_slower_wire_is_never_faster() -> None:
    near = predict_time("resnet50", gpus=8, batch_size=16)
    far = predict_time("resnet50", gpus=8, nodes=8, batch_size=16)
    assert steps(far) >= steps(near)


def test_precisions_come_in_the_expected_order() -> None:
    def seconds(precision: str) -> float:
        return steps(predict_time("resnet50", precision=precision, batch_size=256))

    assert seconds("bf16") < seconds("amp-bf16") < seconds("tf32") < seconds("fp32") < seconds("fp64")


@pytest.mark.parametrize("precision", sorted(PRECISIONS))
@pytest.mark.parametrize("model", MODELS)
def test_every_precision_on_h100_without_unknown_operators(model: str, precision: str) -> None:
    found = predict_time(model, precision=precision, gpu="h100-80gb-sxm", gpus=8)
    assert found.unsupported_bytes_share < 0.01
    assert found.parameters > 1e6


# --- memory and length ------------------------------------------------------------------------------------------


def test_a_job_that_does_not_fit_is_estimated_and_says_by_how_much() -> None:
    found = predict_time("resnet50", gpu="v100-16gb-sxm", batch_size=4096)
    memory = found.memory
    assert not memory.fits
    assert memory.missing_bytes == memory.peak_bytes - memory.capacity_bytes > 0
    assert steps(found) > 0
    assert "NOT FIT" in str(found).upper()
    assert human_bytes(memory.missing_bytes) in str(found)


def test_memory_follows_precision() -> None:
    full, amp, master, half = (predict_time("resnet50", precision=p, batch_size=128).memory.by_category
                               for p in ("fp32", "amp-bf16", "bf16-master", "bf16"))  # fmt: skip
    assert amp["activations"] < 0.65 * full["activations"]
    assert amp["weights"] == full["weights"]
    assert half["weights"] < 0.51 * full["weights"]
    assert master["optimizer states"] == full["optimizer states"] == 2 * half["optimizer states"]
    assert master["master weights"] == pytest.approx(full["weights"], rel=0.01)  # weights also counts the buffers


def test_length_of_the_run() -> None:
    by_steps = predict_time("resnet50", batch_size=32, steps=100, start_up_s=0)
    assert by_steps.run is not None
    assert by_steps.run.p50 == pytest.approx(100 * steps(by_steps))
    by_samples = predict_time("resnet50", batch_size=32, gpus=2, samples=6401)
    assert by_samples.steps == 101
    started = predict_time(
        "resnet50", batch_size=32, steps=100, start_up_s=60, checkpoint_every_steps=50, checkpoint_s=5
    )
    assert started.run is not None
    assert started.run.p50 == pytest.approx(by_steps.run.p50 + 60 + 2 * 5)
    assert predict_time("resnet50", batch_size=32).run is None


def test_a_schedule_sums_its_parts() -> None:
    fixed = {"batch_size": 64, "steps": 1000, "start_up_s": 0}
    single = {p: predict_time("resnet50", precision=p, **fixed) for p in ("fp32", "amp-bf16")}
    schedule = [{"from_step": 0, "precision": "fp32"}, {"from_step": 300, "precision": "amp-bf16"}]
    found = predict_time("resnet50", precision=schedule, **fixed)
    assert found.run is not None
    assert found.run.p50 == pytest.approx(300 * steps(single["fp32"]) + 700 * steps(single["amp-bf16"]))
    assert found.run.p10 < found.run.p50 < found.run.p90
    assert steps(found) == steps(single["amp-bf16"])
    assert Estimate.from_dict(json.loads(json.dumps(found.to_dict()))) == found
    with pytest.raises(JobError, match="from_step 300"):
        predict_time("resnet50", precision=schedule, batch_size=64, steps=200)
    with pytest.raises(JobError, match="length"):
        predict_time("resnet50", precision=schedule, batch_size=64)


@given(st.floats(1e-6, 1e6), st.floats(0, 3), st.floats(0, 3))
def test_intervals_widen_with_the_spread(middle: float, a: float, b: float) -> None:
    narrow, wide = (Interval.around(middle, s) for s in sorted((a, b)))
    assert wide.p10 <= narrow.p10 <= narrow.p50 == wide.p50 <= narrow.p90 <= wide.p90
    assert narrow.p10 > 0


def test_trace_events_belong_to_a_fresh_estimate() -> None:
    found = predict_time("resnet50", batch_size=8, gpus=2)
    events = [e for e in found.trace_events()["traceEvents"] if e["ph"] == "X"]
    assert max(e["ts"] + e["dur"] for e in events) == pytest.approx(steps(found) * 1e6, rel=1e-6)
    with pytest.raises(PrecisionTimeError, match="JSON"):
        Estimate.from_dict(found.to_dict()).trace_events()


def test_a_named_model_imports_no_torch() -> None:
    code = (
        "import sys; from precision_time import predict_time;"
        "print(float(predict_time('resnet50', precision='mixed_fp16_fp32', gpus=8, batch_size=256)));"
        "assert not {'torch', 'scipy', 'pandas', 'matplotlib'} & set(sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    expected = steps(predict_time("resnet50", precision="mixed_fp16_fp32", gpus=8, batch_size=256))
    assert float(done.stdout) == expected


# --- other models -----------------------------------------------------------------------------------------------

OWN = """
import torch
from torch import nn
from torch.nn import functional as F

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(64, 32)
    def forward(self, x, y=None):
        out = self.layer(x)
        return out if y is None else F.mse_loss(out, y)

def make_job(batch_size=4):
    x, y = torch.randn(batch_size, 64), torch.zeros(batch_size, 32)
    return {"model": Net(), "inputs": x, "loss": F.mse_loss, "targets": y, "optimizer": "adam"}

def as_tuple(batch_size=4, width=64):
    return Net(), torch.randn(batch_size, width), lambda out: out.sum(), "sgd"

def with_optimizer():
    net = Net()
    inputs = {"x": torch.randn(4, 64), "y": torch.zeros(4, 32)}
    optimizer = torch.optim.AdamW(net.parameters(), foreach=False)
    return {"model": net, "inputs": inputs, "loss": None, "optimizer": optimizer}

def nothing(): return None
def no_model(): return {"inputs": torch.zeros(4)}
def typo(): return {"model": Net(), "inputs": torch.zeros(4, 64), "optimiser": "adam"}
def raises(): raise ValueError("no such thing")
def bad_loss(): return {"model": Net(), "inputs": torch.zeros(4, 64), "loss": lambda out: out.nothing}
def bad_shape(): return {"model": Net(), "inputs": torch.zeros(4, 65), "loss": lambda out: out.sum()}
def no_scalar(): return {"model": Net(), "inputs": torch.zeros(4, 64), "loss": lambda out: out}
def no_loss(): return {"model": Net(), "inputs": torch.zeros(4, 64)}
def no_tensor(): return {"model": Net(), "inputs": (), "loss": lambda out: out.sum()}
def strange_optimizer(): return {"model": Net(), "inputs": torch.zeros(4, 64), "loss": torch.sum, "optimizer": "adamm"}
def lbfgs():
    net = Net()
    optimizer = torch.optim.LBFGS(net.parameters())
    return {"model": net, "inputs": torch.zeros(4, 64), "loss": torch.sum, "optimizer": optimizer}
def not_a_module(): return {"model": lambda x: x, "inputs": torch.zeros(4, 64), "loss": torch.sum}
"""


@pytest.fixture
def own(tmp_path: Path) -> Path:
    pytest.importorskip("torch")
    path = tmp_path / "own.py"
    path.write_text(OWN)
    return path


@pytest.mark.parametrize("precision", sorted(PRECISIONS))
def test_an_own_model(own: Path, precision: str) -> None:
    found = predict_time(f"{own}:make_job", precision=precision, batch_size=16, gpu="h100-80gb-sxm")
    assert found.parameters == 64 * 32 + 32
    assert found.samples_per_s == pytest.approx(16 / steps(found))
    assert steps(found) >= found.floor_s > 0


def test_forms_of_an_own_model(own: Path) -> None:
    default = predict_time(str(own))
    assert default.to_dict() == {**predict_time(f"{own}:make_job").to_dict(), "job": default.job.to_dict()}
    assert predict_time(f"{own}:as_tuple", batch_size=8, input={"width": 64}).samples_per_s > 0
    adamw = predict_time(f"{own}:with_optimizer")
    assert adamw.memory.by_category["optimizer states"] == 2 * 4 * adamw.parameters
    sgd = predict_time(f"{own}:with_optimizer", optimizer="sgd")
    assert sgd.memory.by_category["optimizer states"] == 4 * sgd.parameters


@pytest.mark.parametrize(
    ("function", "fields", "words"),
    [
        ("absent", {}, "no function"), ("nothing", {}, "NoneType"), ("no_model", {}, "model"),
        ("typo", {}, "optimiser"), ("raises", {}, "no such thing"), ("bad_loss", {}, "nothing"),
        ("bad_shape", {}, "64"), ("no_scalar", {}, "not one number"), ("no_loss", {}, "loss"),
        ("no_tensor", {}, "tensor"),
        ("strange_optimizer", {}, "adam"), ("lbfgs", {}, "LBFGS"), ("not_a_module", {}, "Module"),
        ("nothing", {"batch_size": 4}, "batch_size"),
        ("make_job", {"input": {"seq_len": 4}}, "seq_len"),
    ],
)  # fmt: skip
def test_mistakes_in_an_own_model_are_one_sentence(own: Path, function: str, fields: Any, words: str) -> None:
    with pytest.raises(PrecisionTimeError, match=words) as caught:
        predict_time(f"{own}:{function}", **fields)
    assert "\n" not in str(caught.value)


def test_a_file_that_cannot_be_read_is_an_error(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    with pytest.raises(JobError, match=r"no file"):
        predict_time(f"{tmp_path}/absent.py:make_job")
    broken = tmp_path / "broken.py"
    broken.write_text("def make_job(:\n")
    with pytest.raises(CaptureError, match="SyntaxError"):
        predict_time(f"{broken}:make_job")


def test_a_hugging_face_configuration(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    config = {"architectures": ["GPT2LMHeadModel"], "model_type": "gpt2", "n_embd": 64, "n_layer": 2, "n_head": 4,
              "vocab_size": 100, "n_positions": 64}  # fmt: skip
    path = tmp_path / "config.json"
    path.write_text(json.dumps(config))
    found = predict_time(f"hf:{path}", precision="amp-bf16", input={"seq_len": 32}, batch_size=2)
    # embeddings (tied with the head), 12 h^2 + 13 h a layer, final norm
    assert found.parameters == 100 * 64 + 64 * 64 + 2 * (12 * 64**2 + 13 * 64) + 2 * 64
    with pytest.raises(JobError, match="no file"):
        predict_time(f"hf:{tmp_path}/absent.json")


@pytest.mark.parametrize("library", ["torchvision", "timm"])
def test_resnet18_of_a_library(library: str) -> None:
    pytest.importorskip(library)
    found = predict_time(f"{library}:resnet18", precision="amp-fp16", batch_size=4)
    assert found.parameters == 11_689_512
    with pytest.raises(JobError, match="resnet"):
        predict_time(f"{library}:resnet1888")


def test_an_unknown_model_names_the_nearest() -> None:
    with pytest.raises(JobError, match="resnet50"):
        predict_time("resnet5")
