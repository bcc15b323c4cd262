"""`PredictTime` in the real Lightning Trainer, which trains a tiny model on this CPU."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import signal
import subprocess
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    lightning = pytest.importorskip("lightning", reason="lightning is not installed")
    import torchmetrics

from fakes import HOST, TWO, US, device_document, kernel_row, product  # noqa: E402
from precision_time.errors import CatalogError  # noqa: E402
from precision_time.integrations.lightning import PredictTime, suggest_batch_size  # noqa: E402
from precision_time.serve.store import open_store  # noqa: E402

ROWS = [*TWO, *(kernel_row("aten.mm", w, 10 * US) for w in (product(8, 64, 64), product(512, 64, 64)))]
pytestmark = [
    # Of Lightning itself: few loader workers, deprecated names of torch that it uses, no GPU.
    pytest.mark.filterwarnings("ignore:.*num_workers.*"),
    pytest.mark.filterwarnings("ignore:.*LeafSpec.*"),
    pytest.mark.filterwarnings("ignore:.*litlogger.*"),
    pytest.mark.filterwarnings("ignore:.*number of training batches.*"),
    pytest.mark.filterwarnings("ignore:Checkpoint directory"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning:torch"),
]


class Images(torch.utils.data.Dataset):  # type: ignore[misc]
    """Random vectors; `before` is called for each."""

    def __init__(self, count: int, before: Any = None) -> None:
        self.count, self.before = count, before

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> tuple[Any, int]:
        if self.before:
            self.before()
        return torch.randn(64, generator=torch.Generator().manual_seed(index)), index % 10


class Model(lightning.LightningModule):  # type: ignore[misc]
    """Logs a loss and a metric, keeps outputs, asks for its device, has dropout and batch normalisation."""

    def __init__(self, before: Any = None, width: int = 64, fails_at: int = -1) -> None:
        super().__init__()
        self.net = torch.nn.Sequential(
            torch.nn.Linear(64, width), torch.nn.BatchNorm1d(width), torch.nn.ReLU(), torch.nn.Dropout(0.1),
            torch.nn.Linear(width, 10),
        )  # fmt: skip
        self.accuracy = torchmetrics.Accuracy("multiclass", num_classes=10)
        self.outputs: list[Any] = []
        self.before, self.fails_at = before, fails_at

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        if self.before:
            self.before()
        if self.global_step == self.fails_at:
            raise ValueError("a loss that is not a number")
        x, y = batch
        output = self.net(x) + torch.zeros(10, device=self.device)
        loss = torch.nn.functional.cross_entropy(output, y)
        self.accuracy(output, y)
        self.log("loss", loss)
        self.log("accuracy", self.accuracy)
        self.outputs.append(loss.detach())
        return loss

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        if self.before:
            self.before()
        self.log("validation", torch.nn.functional.cross_entropy(self.net(batch[0]), batch[1]))

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.01, momentum=0.9)


def fit(folder: Path, callbacks: list[Any], model: Any = None, train: Any = None, **arguments: Any) -> Any:
    lightning.seed_everything(0, verbose=False)
    given = {
        "max_epochs": 2, "accelerator": "cpu", "devices": 1, "default_root_dir": str(folder), "logger": False,
        "enable_progress_bar": False, "enable_model_summary": False, "enable_checkpointing": False, **arguments,
    }  # fmt: skip
    trainer = lightning.Trainer(callbacks=callbacks, **given)
    loaders = [
        torch.utils.data.DataLoader(data, batch_size=8, shuffle=not index)
        for index, data in enumerate((train or Images(160), Images(32)))
    ]
    trainer.fit(model or Model(), *loaders)
    return trainer


@pytest.fixture
def device(tmp_path: Path) -> str:
    path = tmp_path / "device.json"
    path.write_text(json.dumps(device_document(ROWS, host=HOST)))
    return str(path)


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def add(self, seconds: float) -> None:
        self.now += seconds


def test_a_real_fit_is_predicted_before_its_first_step(tmp_path: Path, device: str) -> None:
    texts: list[tuple[int, str]] = []
    callback = PredictTime(
        device=device, report=lambda text: texts.append((model.global_step, text)), record=tmp_path / "store.db"
    )
    model = Model()
    trainer = fit(
        tmp_path, [callback], model, accumulate_grad_batches=2, gradient_clip_val=0.5, enable_checkpointing=True
    )
    step, text = texts[0]
    assert step == 0
    assert text.startswith("precision-time: module:Model-")
    assert "for 20 steps, of it evaluation" in text
    estimate = callback.session.preview.estimate
    job = estimate.job
    assert (job.precision, job.batch_size, job.grad_accum, job.optimizer) == ("fp32", 8, 2, "sgd")
    assert (job.clip_norm, job.gpu, job.layout) == (0.5, "this-cpu", "dp")
    assert (job.run.evaluation_samples, job.run.evaluation_every_steps) == (32, 10)
    assert estimate.parameters == sum(p.numel() for p in model.parameters())
    content = json.loads((tmp_path / "precision_time_outcome.json").read_text())
    assert content["finished"] is True
    assert content["framework"]["name"] == "lightning"
    measured = content["measured"]
    assert len(measured["steps_s"]) == 20
    assert len(measured["evaluations_s"]) == 2, "the sanity check is none"
    assert len(measured["checkpoints_s"]) >= 1
    assert "save_checkpoint" not in trainer.__dict__
    assert len(model.outputs) == 40, "tracing runs a copy"
    left = callback.session.live.left()
    assert left is not None
    assert left.p50 == 0.0
    store = open_store(tmp_path / "store.db")
    ((recorded),) = store.recorded()
    assert recorded.outcome.step_s == measured["step_s"]
    assert recorded.prediction.facets["family"] == "module:model"
    store.close()


def test_a_fit_is_the_same_with_and_without_it(tmp_path: Path, device: str) -> None:
    models, accuracies = [], []
    for callbacks in ([], [PredictTime(device=device, report=lambda text: None)]):
        lightning.seed_everything(1, verbose=False)
        models.append(Model())
        accuracies.append(fit(tmp_path, callbacks, models[-1]).callback_metrics["accuracy"])
    one, other = models
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), other.parameters(), strict=True))
    assert accuracies[0] == accuracies[1]


def test_the_time_left_by_a_known_clock(tmp_path: Path, device: str) -> None:
    clock, left = Clock(), {}

    class Watch(lightning.Callback):  # type: ignore[misc]
        def on_train_batch_start(self, trainer: Any, *given: Any) -> None:
            left[trainer.global_step] = callback.session.live.left(), clock.now

    callback = PredictTime(device=device, report=lambda text: None)
    callback._settings = dataclasses.replace(callback._settings, clock=clock)
    model, train = Model(lambda: clock.add(0.2)), Images(160, lambda: clock.add(0.005))
    fit(tmp_path, [callback, Watch()], model, train, num_sanity_val_steps=0, max_epochs=3)
    end = clock.now
    # steps: 8 samples of 0.005 s and 0.2 s; three validations of 4 batches; tracing runs training_step once more
    assert end == pytest.approx(60 * 0.24 + 3 * 0.8 + 0.2)
    for step, (found, now) in left.items():
        if step > 20:
            assert found is not None
            assert found.p50 == pytest.approx(end - now, rel=0.05), step


def test_mixed_precision_and_another_gpu(tmp_path: Path) -> None:
    texts: list[str] = []
    callback = PredictTime(gpu="h100", price_per_gpu_hour=2.0, report=texts.append, output=False)
    fit(tmp_path, [callback], precision="bf16-mixed", max_steps=4, max_epochs=-1, limit_val_batches=0)
    assert "amp-bf16 · 1 x h100" in texts[0]
    assert "predicted for h100, but this process trains on cpu" in texts[0]
    assert callback.session.preview.estimate.steps == 4
    callback = PredictTime(gpu="h100", report=texts.append, output=False)
    fit(tmp_path, [callback], precision="bf16-true", max_steps=2, limit_val_batches=0)
    assert callback.session.preview.estimate.job.precision == "bf16"


def test_a_cpu_without_a_device_file_is_one_sentence(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    callback = PredictTime(report=lambda text: None)
    fit(tmp_path, [callback])
    (record,) = [r for r in caplog.records if r.name == "precision_time"]
    assert "training runs on cpu" in record.getMessage()
    assert callback.session.live.done == 40
    assert callback.session.live.pace_s is not None


def test_an_exception_is_in_the_outcome_and_is_raised(tmp_path: Path, device: str) -> None:
    callback = PredictTime(device=device, report=lambda text: None)
    with pytest.raises(ValueError, match=r"not a number"):
        fit(tmp_path, [callback], Model(fails_at=7))
    content = json.loads((tmp_path / "precision_time_outcome.json").read_text())
    assert content["finished"] is False
    assert content["ended"] == "ValueError: a loss that is not a number"
    assert content["steps"] == {"done": 7, "planned": 40}


def test_manual_optimization_is_measured_and_not_predicted(tmp_path: Path, device: str, caplog: Any) -> None:
    class Manual(Model):
        def __init__(self) -> None:
            super().__init__()
            self.automatic_optimization = False

        def training_step(self, batch: Any, batch_idx: int) -> None:
            optimizer = self.optimizers()
            optimizer.zero_grad()
            self.manual_backward(torch.nn.functional.cross_entropy(self.net(batch[0]), batch[1]))
            optimizer.step()

    callback = PredictTime(device=device, report=lambda text: None)
    fit(tmp_path, [callback], Manual())
    assert "automatic_optimization = False" in caplog.text
    assert callback.session.preview is None
    assert callback.session.live.done == 40


def test_the_batch_size_of_a_lightning_module() -> None:
    batch = torch.zeros(8, 64), torch.zeros(8, dtype=torch.long)
    large = Model(width=1 << 16)
    power = suggest_batch_size(large, batch, gpu="rtx-3090", max_val=1 << 20)
    exact = suggest_batch_size(large, batch, gpu="rtx-3090", max_val=1 << 20, mode="binsearch", margin=0.0)
    with_margin = suggest_batch_size(large, batch, gpu="rtx-3090", max_val=1 << 20, mode="binsearch")
    assert power <= exact < 2 * power
    assert with_margin == int(exact * 0.95)


def test_wrong_fields_are_refused_when_the_callback_is_made() -> None:
    with pytest.raises(CatalogError, match=r"nearest"):
        PredictTime(gpu="h1000")


@pytest.mark.slow
@pytest.mark.usefixtures("idle_machine")
def test_a_fit_costs_less_than_two_seconds_more_and_the_time_left_is_right(tmp_path: Path, device: str) -> None:
    seconds, left = {}, {}

    class Watch(lightning.Callback):  # type: ignore[misc]
        def on_train_batch_end(self, trainer: Any, *given: Any) -> None:
            left[trainer.global_step] = callback.session.live.left(), time.perf_counter()

    callback = PredictTime(device=device, report=lambda text: None)
    for name, callbacks in (("without", []), ("with", [callback, Watch()])):
        began = time.perf_counter()
        fit(tmp_path, callbacks, Model(width=4096), Images(1600))
        end = time.perf_counter()
        seconds[name] = end - began
    assert seconds["with"] - seconds["without"] < 2.0
    assert callback.session.cost_s < 2.0
    errors = [abs(found.p50 - (end - now)) / (end - began) for step, (found, now) in left.items() if step > 10]
    print({"mean error": sum(errors) / len(errors), "seconds": seconds, "cost_s": callback.session.cost_s})
    assert sum(errors) / len(errors) < 0.2  # of the run, whose pace drifts


DISTRIBUTED = """
import lightning, sys, torch
from precision_time.integrations.lightning import PredictTime

class Model(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(64, 64)
    def training_step(self, batch, batch_idx):
        return self.layer(batch).square().mean()
    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters())

device, folder = sys.argv[1:]
trainer = lightning.Trainer(
    max_epochs=1, accelerator="cpu", devices=2, strategy="ddp", default_root_dir=folder, enable_progress_bar=False,
    logger=lightning.pytorch.loggers.CSVLogger(folder),
    callbacks=[PredictTime(device=device, output=folder + "/o.json")],
)
trainer.fit(Model(), torch.utils.data.DataLoader(torch.randn(640, 64), batch_size=8))
"""


@pytest.mark.slow
def test_two_ranks_are_predicted_by_the_first_and_none_waits(tmp_path: Path, device: str) -> None:
    script = tmp_path / "train.py"
    script.write_text(DISTRIBUTED)
    command = [sys.executable, str(script), device, str(tmp_path)]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True, "start_new_session": True}
    with subprocess.Popen(command, **pipes) as run:
        try:
            output, _ = run.communicate(timeout=120)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(run.pid, signal.SIGKILL)
    assert run.returncode == 0, output
    assert output.count("precision-time: module:Model") == 1
    assert "2 x this-cpu" in output
    content = json.loads((tmp_path / "o.json").read_text())
    assert content["job"]["gpus"] == 2
    assert content["steps"] == {"done": 40, "planned": 40}
