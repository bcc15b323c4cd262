"""`PredictTime` in the real transformers Trainer, which trains a tiny model on this CPU."""

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
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
transformers = pytest.importorskip("transformers", reason="transformers is not installed")
pytest.importorskip("accelerate", reason="accelerate, which the transformers Trainer needs, is not installed")

from fakes import HOST, TWO, US, device_document, kernel_row, product  # noqa: E402
from precision_time.errors import CatalogError, JobError  # noqa: E402
from precision_time.integrations.huggingface import PredictTime, suggest_batch_size  # noqa: E402
from precision_time.serve.store import open_store  # noqa: E402

ROWS = [*TWO, *(kernel_row("aten.mm", w, 10 * US) for w in (product(8, 64, 64), product(512, 64, 64)))]
pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning:torch"),
    pytest.mark.filterwarnings("ignore::FutureWarning:transformers"),
]


class Tokens(torch.utils.data.Dataset):  # type: ignore[misc]
    """Random sequences of 32 tokens; `before` is called for each."""

    def __init__(self, count: int, before: Any = None) -> None:
        self.count, self.before = count, before

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> dict[str, Any]:
        if self.before:
            self.before()
        ids = torch.randint(0, 100, (32,), generator=torch.Generator().manual_seed(index))
        return {"input_ids": ids, "labels": ids}


class Stream(torch.utils.data.IterableDataset):  # type: ignore[misc]
    """The same without a length, which can be read only once."""

    def __init__(self, count: int) -> None:
        self.tokens = iter(range(count))

    def __iter__(self) -> Iterator[dict[str, Any]]:
        data = Tokens(1 << 30)
        return (data[index] for index in self.tokens)


def model(**fields: Any) -> Any:
    torch.manual_seed(0)
    config = transformers.GPT2Config(
        n_layer=2, n_embd=32, n_head=2, vocab_size=100, n_positions=32, bos_token_id=0, eos_token_id=0,
        loss_type="ForCausalLM", **fields,
    )  # fmt: skip
    return transformers.GPT2LMHeadModel(config)


def trainer(folder: Path, callback: Any = None, train: Any = None, net: Any = None, **arguments: Any) -> Any:
    given = {
        "per_device_train_batch_size": 4, "max_steps": 30, "report_to": [], "use_cpu": True, "disable_tqdm": True,
        "dataloader_pin_memory": False, "save_strategy": "no", "logging_strategy": "no", **arguments,
    }  # fmt: skip
    return transformers.Trainer(
        net or model(),
        transformers.TrainingArguments(str(folder), **given),
        train_dataset=train or Tokens(400),
        eval_dataset=Tokens(16),
        callbacks=[callback] if callback else [],
    )


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


def at(callback: PredictTime, clock: Clock) -> PredictTime:
    callback._settings = dataclasses.replace(callback._settings, clock=clock)
    return callback


def test_a_real_training_is_predicted_before_its_first_step(tmp_path: Path, device: str) -> None:
    texts: list[tuple[int, str]] = []
    callback = PredictTime(
        device=device, evaluation_samples=16, report=lambda text: texts.append((run.state.global_step, text)),
        record=tmp_path / "store.db",
    )  # fmt: skip
    run = trainer(
        tmp_path / "out", callback, eval_strategy="steps", eval_steps=10, save_strategy="steps", save_steps=15,
        gradient_accumulation_steps=2,
    )  # fmt: skip
    run.train()
    step, text = texts[0]
    assert step == 0
    assert text.startswith("precision-time: module:GPT2LMHeadModel-")
    assert "for 30 steps, of it evaluation" in text
    estimate = callback.session.preview.estimate
    job = estimate.job
    assert (job.precision, job.batch_size, job.grad_accum, job.optimizer) == ("fp32", 4, 2, "adamw")
    assert (job.optimizer_impl, job.clip_norm, job.gpu, job.layout) == ("fused", 1.0, "this-cpu", "dp")
    assert estimate.parameters == sum(p.numel() for p in run.model.parameters())
    content = json.loads((tmp_path / "out" / "precision_time_outcome.json").read_text())
    assert content["finished"] is True
    assert content["framework"]["name"] == "transformers"
    assert content["predicted_for_this_device"] is True
    assert content["prediction"]["step"]["p50"] == estimate.step.p50
    measured = content["measured"]
    assert len(measured["steps_s"]) == len(measured["waits_s"]) == 30
    assert len(measured["evaluations_s"]) == 3
    assert len(measured["checkpoints_s"]) == 2
    assert sum(measured["steps_s"]) < measured["run_s"]
    assert measured["own_cost_s"] == pytest.approx(callback.session.cost_s, abs=0.5)
    left = callback.session.live.left()
    assert left is not None
    assert left.p50 == 0.0
    store = open_store(tmp_path / "store.db")
    ((recorded),) = store.recorded()
    assert recorded.outcome.step_s == measured["step_s"]
    assert recorded.prediction.facets["family"] == "module:gpt2lmheadmodel"
    store.close()


def test_training_is_the_same_with_and_without_it(tmp_path: Path, device: str) -> None:
    losses = []
    for callback in (None, PredictTime(device=device)):
        run = trainer(tmp_path, callback, net=model(attn_pdrop=0.1), max_steps=8)
        run.train()
        losses.append([p.detach().clone() for p in run.model.parameters()])
    assert all(torch.equal(one, other) for one, other in zip(*losses, strict=True))
    assert not run.model._forward_pre_hooks


def test_the_time_left_by_a_known_clock(tmp_path: Path, device: str) -> None:
    clock, left = Clock(), {}
    net = model()
    forward = net.forward
    net.register_forward_pre_hook(lambda *_: clock.add(0.2))  # a step of 0.2 s, an evaluation of 4 batches

    class Watch(transformers.TrainerCallback):  # type: ignore[misc]
        def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            left[state.global_step] = callback.session.live.left(), clock.now

    callback = at(PredictTime(device=device, report=lambda text: None), clock)
    run = trainer(
        tmp_path, callback, train=Tokens(400, lambda: clock.add(0.01)), net=net, eval_strategy="steps", eval_steps=10,
        per_device_eval_batch_size=4,
    )  # fmt: skip
    run.add_callback(Watch())
    run.train()
    assert net.forward == forward
    end = clock.now
    # steps: 4 samples of 0.01 s and 0.2 s; three evaluations of 0.8 s
    assert end == pytest.approx(30 * 0.24 + 3 * 0.8, rel=0.02)
    for step, (found, now) in left.items():
        if step > 12:  # an evaluation has been measured
            assert found is not None
            assert found.p50 == pytest.approx(end - now, rel=0.05), step
    assert callback.session.live.wait_s == pytest.approx(0.04)


def test_a_cpu_without_a_device_file_is_one_sentence(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    callback = PredictTime(output=tmp_path / "outcome.json")
    trainer(tmp_path, callback, max_steps=12).train()
    (record,) = [r for r in caplog.records if r.name == "precision_time"]
    assert "training runs on cpu" in record.getMessage()
    assert "precision-time calibrate" in record.getMessage()
    content = json.loads((tmp_path / "outcome.json").read_text())
    assert content["prediction"] is content["job"] is None
    assert content["finished"] is True
    assert content["measured"]["step_s"] > 0


def test_for_another_gpu_it_predicts_and_does_not_correct(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    texts: list[str] = []
    callback = PredictTime(gpu="h100", price_per_gpu_hour=2.0, report=texts.append, output=False)
    trainer(tmp_path, callback, max_steps=14, bf16=True).train()
    assert "amp-bf16 · 1 x h100" in texts[0]
    assert "predicted for h100, but this process trains on cpu" in texts[0]
    assert "cost    $" in texts[0]
    assert callback.session.live.ratio is None
    assert not [r for r in caplog.records if r.name == "precision_time"]
    assert not (tmp_path / "precision_time_outcome.json").exists()


def test_a_stream_loses_no_sample(tmp_path: Path, device: str) -> None:
    data = Stream(48)
    callback = PredictTime(device=device, report=lambda text: None)
    trainer(tmp_path, callback, train=data, max_steps=12).train()
    assert callback.session.preview is not None
    assert callback.session.live.done == 12


def test_gradient_checkpointing_is_predicted_as_recompute(tmp_path: Path, device: str) -> None:
    callback = PredictTime(device=device, report=lambda text: None)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trainer(tmp_path, callback, max_steps=2, gradient_checkpointing=True).train()
    estimate = callback.session.preview.estimate
    assert estimate.job.recompute == "full"
    assert estimate.breakdown["recompute"] > 0


def test_a_model_without_a_loss_and_early_stopping(tmp_path: Path, device: str, caplog: Any) -> None:
    class Stop(transformers.TrainerCallback):  # type: ignore[misc]
        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            control.should_training_stop = state.global_step >= 5

    class NoLoss(transformers.Trainer):  # type: ignore[misc]
        def compute_loss(self, model: Any, inputs: Any, *given: Any, **keywords: Any) -> Any:
            labels = inputs.pop("labels")
            return model(**inputs).logits.flatten(0, 1).log_softmax(-1)[:, labels[0, 0]].mean()

    path = tmp_path / "outcome.json"
    for loss, predicted in ((None, False), (lambda output: output.logits.float().mean(), True)):
        callback = PredictTime(device=device, loss=loss, output=path, report=lambda text: None)
        usual = trainer(tmp_path, callback)
        run = NoLoss(model(), usual.args, train_dataset=Tokens(400), callbacks=[callback, Stop()])
        run.train()
        assert (callback.session.preview is not None) is predicted
        content = json.loads(path.read_text())
        assert content["finished"] is False
        assert content["ended"] == "stopped early"
        assert content["steps"] == {"done": 5, "planned": 30}
    assert "returned no loss" in caplog.text


def test_wrong_fields_are_refused_when_the_callback_is_made() -> None:
    with pytest.raises(CatalogError, match=r"nearest"):
        PredictTime(gpu="h1000")
    with pytest.raises(JobError, match=r"nearest.*batch_size"):
        PredictTime(batchsize=3)


def test_the_batch_size_of_a_model_of_transformers() -> None:
    batch = {"input_ids": torch.zeros(2, 32, dtype=torch.long), "labels": torch.zeros(2, 32, dtype=torch.long)}
    found = suggest_batch_size(model(), batch, gpu="rtx-3090", optimizer="adamw", max_val=1 << 20)
    assert found > 8192
    assert found & (found - 1) == 0


@pytest.mark.slow
@pytest.mark.usefixtures("idle_machine")
def test_a_train_costs_less_than_two_seconds_more_and_the_time_left_is_right(tmp_path: Path, device: str) -> None:
    seconds, left = {}, {}

    class Watch(transformers.TrainerCallback):  # type: ignore[misc]
        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            left[state.global_step] = callback.session.live.left(), time.perf_counter()

    callback = PredictTime(device=device, report=lambda text: None)
    config = transformers.GPT2Config(n_layer=4, n_embd=256, n_head=4, vocab_size=1000, n_positions=32)
    for name, given in (("without", None), ("with", callback)):
        run = trainer(tmp_path, given, net=transformers.GPT2LMHeadModel(config), max_steps=150)
        if given:
            run.add_callback(Watch())
        began = time.perf_counter()
        run.train()
        end = time.perf_counter()
        seconds[name] = end - began
    assert seconds["with"] - seconds["without"] < 2.0
    assert callback.session.cost_s < 2.0
    errors = [abs(found.p50 - (end - now)) / (end - began) for step, (found, now) in left.items() if step > 10]
    print({"mean error": sum(errors) / len(errors), "seconds": seconds, "cost_s": callback.session.cost_s})
    assert sum(errors) / len(errors) < 0.2  # of the run, whose pace drifts


DISTRIBUTED = """
import sys, torch, transformers
from precision_time.integrations.huggingface import PredictTime

device, folder = sys.argv[1:]
ids = torch.zeros(32, dtype=torch.long)
config = transformers.GPT2Config(n_layer=2, n_embd=32, n_head=2, vocab_size=100, bos_token_id=0, eos_token_id=0)
arguments = transformers.TrainingArguments(
    folder, per_device_train_batch_size=4, max_steps=12, save_strategy="no", report_to=[], use_cpu=True, bf16=True,
    disable_tqdm=True, dataloader_pin_memory=False,
)
callbacks = [PredictTime(device=device)]
data = [{"input_ids": ids, "labels": ids}] * 640
transformers.Trainer(transformers.GPT2LMHeadModel(config), arguments, train_dataset=data, callbacks=callbacks).train()
"""


@pytest.mark.slow
def test_two_ranks_are_predicted_by_the_first_and_none_waits(tmp_path: Path, device: str) -> None:
    script = tmp_path / "train.py"
    script.write_text(DISTRIBUTED)
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    command = [*launcher, str(script), device, str(tmp_path)]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True, "start_new_session": True}
    with subprocess.Popen(command, **pipes) as run:
        try:
            output, _ = run.communicate(timeout=120)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(run.pid, signal.SIGKILL)
    assert run.returncode == 0, output
    assert output.count("precision-time: module:GPT2LMHeadModel") == 1
    assert "amp-bf16 · 2 x this-cpu" in output
    content = json.loads((tmp_path / "precision_time_outcome.json").read_text())
    assert content["job"]["gpus"] == 2
    assert content["steps"] == {"done": 12, "planned": 12}


def test_what_the_trainer_offloads() -> None:
    from types import SimpleNamespace

    from precision_time.integrations.huggingface import offload_of

    def deep(stage: int, **devices: str) -> dict[str, str]:
        plugin = SimpleNamespace(zero_stage=stage, **{f"offload_{what}_device": on for what, on in devices.items()})
        return offload_of(SimpleNamespace(deepspeed="ds.json", deepspeed_plugin=plugin, fsdp=""))

    assert deep(2, optimizer="cpu", param="none") == {"offload": "optimizer", "framework": "deepspeed"}
    assert deep(3, optimizer="nvme", param="cpu")["offload"] == "parameters-nvme"
    assert deep(2, optimizer="none") == deep(0, optimizer="cpu") == {}
    sharded = SimpleNamespace(deepspeed=None, fsdp="full_shard offload", fsdp_config={})
    assert offload_of(sharded) == {"offload": "parameters"}
    assert offload_of(SimpleNamespace(deepspeed=None, fsdp="full_shard", fsdp_config={})) == {}
