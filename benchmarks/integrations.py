"""The callbacks in two really trained small models: `python -m benchmarks.integrations DEVICE.json`.

A GPT-2 by the Hugging Face Trainer and a convolutional network by Lightning train on this CPU without and with the
callback, in processes of their own that take turns. DEVICE.json is what `precision-time calibrate --on cpu` wrote.
Writes benchmarks/results/integrations.json and integrations.md: the predicted and the measured step, the error of the
time left over the run, and what the callback costs.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from typing import Any

from benchmarks.speed import RESULTS, machine
from precision_time.report.table import Table

STEPS = 120
WAYS = ("huggingface", "lightning")
MODELS = {"huggingface": "GPT-2, 4 layers of 256", "lightning": "6 convolutions of 32 channels"}
TURNS = 3


def huggingface(callback: Any, watch: Any, folder: str) -> None:
    """Train a GPT-2 of 4 layers."""
    import torch
    import transformers

    class Watch(transformers.TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            watch(state.global_step)

    draw = torch.Generator().manual_seed(0)
    tokens = [torch.randint(0, 1000, (64,), generator=draw) for _ in range(512)]
    config = transformers.GPT2Config(
        n_layer=4, n_embd=256, n_head=4, vocab_size=1000, n_positions=64, bos_token_id=0, eos_token_id=0
    )
    arguments = transformers.TrainingArguments(
        folder, per_device_train_batch_size=4, max_steps=STEPS, report_to=[], use_cpu=True, disable_tqdm=True,
        dataloader_pin_memory=False, eval_strategy="steps", eval_steps=STEPS // 5, save_steps=STEPS // 2,
    )  # fmt: skip
    data = [{"input_ids": ids, "labels": ids} for ids in tokens]
    transformers.Trainer(
        transformers.GPT2LMHeadModel(config), arguments, train_dataset=data, eval_dataset=data[:64],
        callbacks=[*([callback] if callback else []), Watch()],
    ).train()  # fmt: skip


def lightning(callback: Any, watch: Any, folder: str) -> None:
    """Train six convolutions."""
    import lightning as framework
    import torch

    class Watch(framework.Callback):
        def on_train_batch_end(self, trainer: Any, *given: Any) -> None:
            watch(trainer.global_step)

    class Network(framework.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            layers: list[Any] = [torch.nn.Conv2d(3, 32, 3, padding=1)]
            for _ in range(5):
                layers += [torch.nn.ReLU(), torch.nn.Conv2d(32, 32, 3, padding=1)]
            head = [torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten(), torch.nn.Linear(32, 10)]
            self.net = torch.nn.Sequential(*layers, *head)

        def loss(self, batch: Any) -> Any:
            return torch.nn.functional.cross_entropy(self.net(batch[0]), batch[1])

        def training_step(self, batch: Any, batch_idx: int) -> Any:
            return self.loss(batch)

        def validation_step(self, batch: Any, batch_idx: int) -> None:
            self.log("validation", self.loss(batch))

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=0.01, momentum=0.9)

    images = torch.utils.data.TensorDataset(torch.randn(8 * STEPS // 3, 3, 32, 32), torch.zeros(8 * STEPS // 3).long())
    few = torch.utils.data.Subset(images, range(64))
    trainer = framework.Trainer(
        max_epochs=3, accelerator="cpu", logger=False, default_root_dir=folder, enable_progress_bar=False,
        enable_model_summary=False, callbacks=[*([callback] if callback else []), Watch()],
    )  # fmt: skip
    loaders = [torch.utils.data.DataLoader(data, batch_size=8) for data in (images, few)]
    trainer.fit(Network(), *loaders)


def trained(way: str, device: str, predicted: bool) -> dict[str, Any]:
    """One training in this process: its seconds and, with the callback, what it said."""
    warnings.simplefilter("ignore")
    import importlib

    module = importlib.import_module(f"precision_time.integrations.{way}")
    fields = {"evaluation_samples": 64} if way == "huggingface" else {}
    callback = module.PredictTime(device=device, report=lambda text: None, **fields) if predicted else None
    left: dict[int, tuple[Any, float]] = {}

    def watch(step: int) -> None:
        if callback:
            left[step] = callback.session.live.left(), time.perf_counter()

    with tempfile.TemporaryDirectory() as folder:
        began = time.perf_counter()
        {"huggingface": huggingface, "lightning": lightning}[way](callback, watch, folder)
        end = time.perf_counter()
    found: dict[str, Any] = {"seconds": end - began}
    if callback:
        errors = {step: each.p50 / (end - now) - 1 for step, (each, now) in left.items() if each and end - now > 0.5}
        estimate = callback.session.preview.estimate
        live = callback.session.live
        found |= {
            "predicted_step_s": estimate.step.p50,
            "p10_s": estimate.step.p10,
            "p90_s": estimate.step.p90,
            "measured_step_s": live.pace_s,
            "run_error_before": estimate.run.p50 / (end - began) - 1,
            "left_errors": [abs(error) for step, error in sorted(errors.items()) if step > 10],
            "own_cost_s": callback.session.cost_s,
        }
    return found


def run(device: str) -> list[dict[str, Any]]:
    """Every way without and with the callback, in turns."""
    rows = []
    for way in WAYS:
        results: dict[bool, list[dict[str, Any]]] = {False: [], True: []}
        for turn in range(TURNS):
            for predicted in (turn % 2 == 0, turn % 2 == 1):
                command = [sys.executable, "-m", "benchmarks.integrations", device, "--one", way]
                command += ["--predicted"] if predicted else []
                environment = {**os.environ, "OMP_NUM_THREADS": "1"}
                done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
                results[predicted].append(json.loads(done.stdout.splitlines()[-1]))
        last = results[True]
        rows.append(
            {
                "way": way,
                "model": MODELS[way],
                **{
                    name: statistics.median(each[name] for each in last)
                    for name in ("predicted_step_s", "p10_s", "p90_s", "measured_step_s", "own_cost_s")
                },
                "left_error": statistics.fmean(error for each in last for error in each["left_errors"]),
                "left_error_p90": statistics.quantiles((e for each in last for e in each["left_errors"]), n=10)[-1],
                "seconds_without": sorted(each["seconds"] for each in results[False]),
                "seconds_with": sorted(each["seconds"] for each in last),
            }
        )
    return rows


def page(rows: list[dict[str, Any]], load: float) -> str:
    """The results as Markdown; `load`: programs that ran on the machine on average."""
    head = ["callback", "model", "step predicted (P10-P90)", "measured", "error of the time left, mean", "P90",
            "seconds of the run without", "with", "of them the callback's"]  # fmt: skip
    body = [
        [
            row["way"],
            row["model"],
            f"{1e3 * row['predicted_step_s']:.1f} ms ({1e3 * row['p10_s']:.1f}-{1e3 * row['p90_s']:.1f})",
            f"{1e3 * row['measured_step_s']:.1f} ms",
            f"{row['left_error']:.1%}",
            f"{row['left_error_p90']:.1%}",
            f"{row['seconds_without'][0]:.1f}",
            f"{row['seconds_with'][0]:.1f}",
            f"{row['own_cost_s']:.2f}",
        ]
        for row in rows
    ]
    where = machine()
    return (
        "# Callbacks in really trained models\n\n"
        f"`python -m benchmarks.integrations DEVICE.json`, {where['date']}, {where['cpu']}, torch {where['torch']}: "
        f"{STEPS} steps on one thread,\nwith evaluations and checkpoints, {TURNS} times without and with the callback "
        "in turns. Seconds are the least of them, steps the\nmedian; the error of the time left is over all steps "
        "after the tenth until half a second before the end.\n\n"
        f"The load of the machine was {load:.1f}: above 1 other programs ran beside, and the seconds of whole runs\n"
        "differ by more than the callback takes. What it takes itself is measured within the run.\n\n"
        f"{Table(head, body).markdown()}\n"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("device", help="device file of this CPU")
    parser.add_argument("--one", choices=WAYS, help="train once in this process and print JSON")
    parser.add_argument("--predicted", action="store_true", help="with the callback")
    options = parser.parse_args()
    if options.one:
        print(json.dumps(trained(options.one, options.device, options.predicted)))
        return
    rows = run(options.device)
    load = os.getloadavg()[2]  # of the last 15 minutes
    content = {"machine": machine(), "load": load, "rows": rows}
    (RESULTS / "integrations.json").write_text(json.dumps(content, indent=1) + "\n")
    (RESULTS / "integrations.md").write_text(page(rows, load))
    print(page(rows, load))


if __name__ == "__main__":
    main()
