"""`preview` and `predict_module` for plain PyTorch loops, and `suggest_batch_size`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402

from fakes import HOST, TWO, US, device_document, kernel_row, product  # noqa: E402
from precision_time import Estimate, compare, predict, predict_time  # noqa: E402
from precision_time.errors import CaptureError, JobError, PrecisionTimeError  # noqa: E402
from precision_time.integrations.torch import TrainingRun, predict_module, preview, suggest_batch_size  # noqa: E402
from precision_time.largest_batch import largest_micro_batch, memory_of  # noqa: E402

ROWS = [*TWO, *(kernel_row("aten.mm", w, 10 * US) for w in (product(8, 64, 64), product(512, 64, 64)))]


@pytest.fixture
def device(tmp_path: Path) -> str:
    path = tmp_path / "device.json"
    path.write_text(json.dumps(device_document(ROWS, host=HOST)))
    return str(path)


def net(width: int = 64) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(16, width), nn.ReLU(), nn.Linear(width, 10))


BATCH = torch.zeros(8, 16), torch.zeros(8, dtype=torch.long)


def data(count: int) -> list[Any]:
    return [(torch.randn(8, 16), torch.zeros(8, dtype=torch.long)) for _ in range(count)]


def train(run: TrainingRun, model: Any, optimizer: Any, batches: Any) -> None:
    for x, y in run.watch(batches):
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()


def test_a_plain_loop_from_preview_to_outcome(tmp_path: Path, device: str) -> None:
    model, texts, path = net(), [], tmp_path / "outcome.json"
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    with preview(
        model, optimizer, BATCH, loss=F.cross_entropy, device=device, epochs=2, dataset_size=160, output=path,
        report=texts.append, evaluation_samples=80, checkpoint_every_steps=20,
    ) as run:  # fmt: skip
        assert texts[0].startswith("precision-time: module:Sequential-")
        assert "for 40 steps, of it evaluation" in texts[0]
        assert run.estimate is not None
        assert run.left is not None
        assert run.left.p50 == pytest.approx(run.estimate.run.p50, rel=0.05)  # type: ignore[union-attr]
        for _ in range(2):
            train(run, model, optimizer, data(20))
            with run.evaluating():
                model(BATCH[0])
            with run.saving():
                torch.save(model.state_dict(), tmp_path / "model.pt")
        assert run.left.p50 == 0.0
    content = json.loads(path.read_text())
    job = content["job"]
    assert (job["optimizer"], job["optimizer_impl"], job["batch_size"], job["gpu"]) == ("adamw", "fused", 8, "this-cpu")
    assert content["finished"] is True
    assert len(content["measured"]["steps_s"]) == 40
    assert len(content["measured"]["evaluations_s"]) == len(content["measured"]["checkpoints_s"]) == 2
    assert Estimate.from_dict({**content["prediction"], "job": {**job, "model": "resnet50"}}).step.p50 > 0


def test_micro_steps_and_a_loop_that_is_left(device: str) -> None:
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    run = preview(model, optimizer, BATCH, loss=F.cross_entropy, device=device, grad_accum=4, steps=5, report=str)
    train(run, model, optimizer, data(10))
    assert run.session.live.done == 2
    for index, _ in enumerate(run.watch(data(100)), 1):
        if index == 8:
            break
    with run.saving():
        pass
    assert run.session.live.done == 4
    run.end()


def test_an_exception_in_the_loop_is_raised_and_is_in_the_outcome(tmp_path: Path, device: str) -> None:
    model, path = net(), tmp_path / "outcome.json"
    optimizer = torch.optim.SGD(model.parameters(), 0.1)

    def loop() -> None:
        with preview(
            model, optimizer, BATCH, loss=F.cross_entropy, device=device, steps=9, output=path, report=str
        ) as run:
            for _ in run.watch(data(9)):
                if run.session.live.done == 3:
                    _ = 1 / 0

    with pytest.raises(ZeroDivisionError):
        loop()
    content = json.loads(path.read_text())
    assert content["ended"] == "ZeroDivisionError: division by zero"
    assert content["steps"] == {"done": 3, "planned": 9}


def test_without_a_prediction_the_loop_runs_and_is_measured(caplog: pytest.LogCaptureFixture) -> None:
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for fields in ({}, {"gpu": "h100", "loss": lambda output, targets: output}):
        run = preview(model, optimizer, BATCH, **{"loss": F.cross_entropy, "steps": 9, "report": str, **fields})
        train(run, model, optimizer, data(9))
        assert run.session.live.pace_s is not None
        assert run.estimate is None
    first, second = (record.getMessage() for record in caplog.records)
    assert "not predicted: training runs on cpu" in first
    assert "is (8, 10), not one number; reduce it" in second


def test_other_ranks_are_silent(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    texts: list[str] = []
    run = preview(net(), None, BATCH, loss=F.cross_entropy, device=device, steps=3, report=texts.append)
    train(run, net(), torch.optim.SGD(net().parameters(), 0.1), data(3))
    run.end()
    assert texts == []


def test_a_module_at_hand_is_predicted_with_what_it_shows() -> None:
    model = net().to(torch.bfloat16)
    half = tuple(t.to(torch.bfloat16) if t.is_floating_point() else t for t in BATCH)
    fields: dict[str, Any] = {"loss": F.cross_entropy, "gpu": "h100"}
    estimate = predict_module(model, half, optimizer=torch.optim.Adam(model.parameters()), **fields)
    assert (estimate.job.precision, estimate.job.optimizer) == ("bf16", "adam")
    assert predict_module(net(), BATCH, precision="bf16-mixed", **fields).job.precision == "amp-bf16"
    compiled = predict_module(torch.compile(net()), BATCH, **fields)
    assert compiled.job.execution == "compile"
    assert compiled.assumptions[0] == "the model is Sequential, taken out of torch.compile"
    assert not any("this process trains" in each for each in compiled.assumptions)
    images = torch.zeros(4, 3, 8, 8)
    conv = nn.Sequential(nn.Conv2d(3, 8, 3), nn.Flatten(), nn.Linear(288, 1)).to(memory_format=torch.channels_last)
    assert predict_module(conv, images, gpu="h100", loss=None, batch_size=1).job.memory_format == "nhwc"
    assert predict_module(
        net().double(), (BATCH[0].double(), BATCH[1]), loss=F.cross_entropy, gpu="h100"
    ).job.precision == ("fp64")


def test_the_job_of_an_estimate_can_be_predicted_again_while_the_estimate_lives() -> None:
    estimate = predict_module(net(), BATCH, loss=F.cross_entropy, gpu="h100", epochs=1, dataset_size=800)
    assert predict(estimate.job) == estimate
    assert estimate.steps == 100
    half = estimate.job.replace(precision="amp-bf16")
    assert "amp-bf16" in str(compare([estimate.job, half]))
    assert estimate.trace_events()["traceEvents"]


def test_a_launcher_says_how_many_processes_and_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "16")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "8")
    job = predict_module(net(), BATCH, loss=F.cross_entropy, gpu="h100").job
    assert (job.gpus, job.nodes) == (16, 2)
    assert predict_module(net(), BATCH, loss=F.cross_entropy, gpu="h100", gpus=1).job.gpus == 1


def test_an_optimizer_that_is_not_known_is_named(device: str) -> None:
    class Rprop2(torch.optim.SGD):
        """Not in the table of optimizers."""

    model, texts = net(), []
    preview(model, Rprop2(model.parameters()), BATCH, loss=F.cross_entropy, gpu="h100", steps=1, report=texts.append)
    assert "taken as adamw: optimizer Rprop2 has no operator table" in texts[0]


def test_an_eight_bit_optimizer_has_its_own_memory() -> None:
    class AdamW8bit(torch.optim.SGD):
        """Has the name of the class of bitsandbytes, which needs a GPU."""

    model = net(4096)
    fields: dict[str, Any] = {"loss": F.cross_entropy, "gpu": "h100"}
    small = predict_module(model, BATCH, optimizer=AdamW8bit(model.parameters()), **fields)
    large = predict_module(model, BATCH, optimizer=torch.optim.AdamW(model.parameters()), **fields)
    assert small.job.optimizer == "adamw-8bit"
    assert small.memory.by_category["optimizer states"] < 0.3 * large.memory.by_category["optimizer states"]


BAD: list[tuple[dict[str, Any], str]] = [
    ({"gpu": "h1000"}, "h1000.*nearest"),
    ({"gpu": "h100", "precison": "bf16"}, "precison.*precision"),
    ({"gpu": "h100", "loss": 3}, "loss is int; give a function of"),
    ({}, "training runs on cpu .* give gpu"),
]


@pytest.mark.parametrize(("fields", "message"), BAD)
def test_bad_input_is_one_sentence(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(PrecisionTimeError, match=message):
        predict_module(net(), BATCH, **{"loss": F.cross_entropy, **fields})


def test_a_batch_or_model_of_the_wrong_kind() -> None:
    with pytest.raises(JobError, match=r"batch is Tensor, but with loss it must be \(inputs, targets\)"):
        predict_module(net(), BATCH[0], loss=F.cross_entropy, gpu="h100")
    with pytest.raises(JobError, match=r"model is int, not a torch.nn.Module"):
        preview(3, None, BATCH)
    with pytest.raises(CaptureError, match=r"could not be made without arguments"):
        predict_module(nn.Linear, BATCH[0], gpu="h100")
    with pytest.raises(CaptureError, match=r"returned no loss"):
        predict_module(lambda: Returns(), BATCH[0], gpu="h100")


class Returns(nn.Module):
    """Has keyword arguments and returns no loss."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(16, 4)

    def forward(self, x: Any) -> Any:
        return {"output": self.linear(x)}


def test_predict_time_names_what_takes_a_module() -> None:
    with pytest.raises(JobError, match=r"model is the module Sequential.*predict_module\(model, batch"):
        predict_time(net())  # type: ignore[arg-type]


def test_a_mapping_is_given_as_keywords() -> None:
    estimate = predict_module(Returns, {"x": BATCH[0]}, loss=lambda out: out["output"].sum(), gpu="h100")
    assert estimate.parameters == 16 * 4 + 4


# --- the largest batch


def test_the_largest_batch_is_that_of_the_memory_model() -> None:
    model = net(1 << 16)
    fields: dict[str, Any] = {"gpu": "rtx-3090", "loss": F.cross_entropy, "optimizer": "adamw"}
    estimate = predict_module(model, BATCH, **{**fields, "optimizer": torch.optim.AdamW(model.parameters())})
    largest = largest_micro_batch(estimate.job)
    assert (
        suggest_batch_size(model, BATCH, mode="binsearch", margin=0, max_val=1 << 20, max_trials=50, **fields)
        == largest
    )
    power = suggest_batch_size(model, BATCH, max_val=1 << 20, **fields)
    assert power == 1 << (largest.bit_length() - 1)
    assert memory_of(estimate.job.replace(batch_size=power)).fits
    assert suggest_batch_size(model, BATCH, **fields) == 8192, "Lightning's max_val"
    assert suggest_batch_size(model, BATCH, init_val=3, max_trials=4, **fields) == 24
    assert suggest_batch_size(model, BATCH, init_val=1 << 20, max_val=1 << 30, **fields) <= largest


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"mode": "bisect"}, "mode 'bisect' is unknown; nearest: binsearch"),
        ({"init_val": 0}, "init_val 0 is no positive whole number"),
        ({"max_trials": True}, "max_trials True is no positive"),
        ({"margin": 1.5}, "margin 1.5 is no share"),
        ({"gpuz": "h100"}, "gpuz"),
    ],
)
def test_wrong_arguments_of_the_batch_size(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(JobError, match=message):
        suggest_batch_size(net(), BATCH, **{"loss": F.cross_entropy, "gpu": "h100", **arguments})


def test_a_model_that_fits_with_no_batch() -> None:
    with torch.device("meta"):
        large = nn.Sequential(*(nn.Linear(1 << 16, 1 << 16) for _ in range(4)))
    with pytest.raises(JobError, match=r"does not fit rtx-3090 with any batch size .*\(2, 1\); take a larger GPU"):
        suggest_batch_size(large, {"input": torch.zeros(2, 1 << 16)}, gpu="rtx-3090", loss=lambda output: output.sum())


# --- what is imported


def test_no_framework_is_imported_by_the_shared_part() -> None:
    code = (
        "import sys, precision_time.integrations.torch\n"
        "print([m for m in ('transformers', 'accelerate', 'lightning', 'pytorch_lightning') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize(("module", "extra"), [("transformers", "huggingface"), ("lightning", "lightning")])
def test_an_absent_framework_names_the_extra(module: str, extra: str) -> None:
    code = (
        f"import sys\nfor name in ({module!r}, 'pytorch_lightning'): sys.modules[name] = None\n"
        f"import precision_time.integrations.{extra}"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=os.environ.copy())
    assert f"pip install 'precision-time[{extra}]'" in done.stderr.splitlines()[-1]


@pytest.mark.slow
@pytest.mark.usefixtures("idle_machine")
def test_the_time_left_of_a_plain_loop_is_right(device: str) -> None:
    model, left = net(8192), {}
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    run = preview(model, optimizer, BATCH, loss=F.cross_entropy, device=device, steps=2000, report=str)
    began = time.perf_counter()
    for x, y in run.watch(data(2000)):
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
        left[run.session.live.done] = run.left, time.perf_counter()
    end = time.perf_counter()
    errors = [abs(each.p50 - (end - now)) / (end - began) for step, (each, now) in left.items() if each and step > 10]
    print({"mean error": sum(errors) / len(errors), "cost_s": run.session.cost_s})
    assert sum(errors) / len(errors) < 0.2  # of the run, whose pace drifts
    assert run.session.cost_s < 2.0
