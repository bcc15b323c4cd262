"""`PredictTime` for the Hugging Face Trainer: `Trainer(..., callbacks=[PredictTime(gpu="a100-80gb-sxm")])`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

try:
    from transformers import TrainerCallback
except ImportError as error:
    from precision_time.errors import MissingExtraError

    raise MissingExtraError(
        "precision_time.integrations.huggingface needs transformers and accelerate: "
        "pip install 'precision-time[huggingface]'"
    ) from error

from precision_time.capture.given_module import GivenModule
from precision_time.capture.meta_copy import meta_module
from precision_time.integrations.batch_size import suggest_batch_size
from precision_time.integrations.live import WARMUP_STEPS
from precision_time.integrations.outcome import FILE
from precision_time.integrations.preview import Preview, node_fields, predict_given
from precision_time.integrations.session import ETA_EVERY_S, Report, Session, Settings, Target, print_line
from precision_time.integrations.torch_facts import device_type_of, memory_format, optimizer_fields, precision_name

__all__ = ["PredictTime", "suggest_batch_size"]


class PredictTime(TrainerCallback):
    """Prints what a run will take before its first step, the time left while it trains, and writes the outcome.

    fields        job fields that override what TrainingArguments say (docs/job.md): gpu="h100-80gb-sxm",
                  device="device.json", price_per_gpu_hour=2.5, checkpoint_storage="nfs-10gbe", evaluation_samples=5000
    loss          function of the model's output, where the model itself returns no loss
    output        file of the outcome; default precision_time_outcome.json in `output_dir`; False: none
    report        called with each text; default: prints
    eta_every_s   seconds between two lines about the time left; 0: none
    warmup_steps  first steps that do not correct the prediction
    record        where the outcome is recorded at the end: the path of a store, postgresql://..., the http://... of a
                  server, or a pair of one of these and the name of the cluster; a failure is a note in the outcome

    Raises `PrecisionTimeError` for a field that is wrong; nothing is raised once training has begun. `session` holds
    the prediction and the measured steps; `session.live.left()` is the time left in seconds as P10, P50 and P90.
    """

    def __init__(
        self,
        *,
        loss: Callable[[Any], Any] | None = None,
        output: str | Path | bool | None = None,
        report: Report = print_line,
        eta_every_s: float = ETA_EVERY_S,
        warmup_steps: int = WARMUP_STEPS,
        record: Target = None,
        **fields: Any,
    ) -> None:
        self._settings = Settings(fields, output, report, eta_every_s, warmup_steps, record)
        self._loss = loss
        self._hook: Any = None
        self._steps = 0
        self._whole: Any = None
        self.session = Session(self._settings, "transformers")

    def on_init_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if args.fsdp and kwargs.get("model") is not None:  # before its weights become flat shards
            self.session.attempt(lambda: setattr(self, "_whole", meta_module(kwargs["model"])))

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.session = Session(self._settings, "transformers")
        if not state.is_world_process_zero:
            self.session.off = True
            return
        self.session.attempt(lambda: self._begin(args, state, kwargs))

    def _begin(self, args: Any, state: Any, kwargs: Any) -> None:
        model = kwargs["model"]
        per_epoch = _steps_per_epoch(args, kwargs.get("train_dataloader"))
        self._steps = state.max_steps - state.global_step
        evaluation = _every(args.eval_strategy, args.eval_steps, per_epoch)
        checkpoint = _every(args.save_strategy, args.save_steps, per_epoch)
        self.session.begin(self._steps, device_type_of(model), Path(args.output_dir) / FILE, evaluation, checkpoint)
        if args.torch_compile:
            # A hook would be compiled with the model, and its removal would compile the model again.
            self.session.notes.append("not predicted: with torch_compile call suggest_batch_size or predict_module")
            return

        def first_batch(module: Any, positional: Any, keywords: Any) -> None:
            self._unhook()
            self.session.predict(lambda: self._preview(args, module, (positional, keywords), kwargs.get("optimizer")))

        # The first forward pass has the batch as the model gets it. Reading the loader once more would change the
        # order of samples, since it draws from torch's generator.
        self._hook = model.register_forward_pre_hook(first_batch, with_kwargs=True)

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.session.step_begins()

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.session.step_ends()

    def on_evaluate(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.session.paused("evaluation", self.session.idle_s)

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.session.paused("checkpoint", self.session.idle_s)

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._unhook()
        self.session.end()

    def _unhook(self) -> None:
        if self._hook is not None:
            self._hook.remove()
            self._hook = None

    def _preview(self, args: Any, model: Any, batch: Any, optimizer: Any) -> Preview:
        kind = device_type_of(model)
        layout, layout_notes = layout_of(args)
        mixed = "bf16" if args.bf16 else "fp16" if args.fp16 else None
        optimizer_words, optimizer_notes = optimizer_fields(optimizer, kind)
        live = self.session.live
        settings = {
            "precision": precision_name(mixed, model, layout, kind),
            "grad_accum": args.gradient_accumulation_steps,
            "gpus": args.world_size,
            "layout": layout,
            "clip_norm": args.max_grad_norm or 0.0,
            "memory_format": memory_format(model),
            "recompute": "full" if args.gradient_checkpointing else None,
            "steps": self._steps,
            "start_up_s": 0.0,
            "checkpoint_every_steps": live.checkpoints.every_steps,
            **offload_of(args),
            **optimizer_words,
            **node_fields(),
        }
        if {"evaluation_samples", "evaluation_s"} & set(self._settings.fields):
            settings["evaluation_every_steps"] = live.evaluations.every_steps
        given = GivenModule(self._whole or model, batch, self._call)
        if args.gradient_checkpointing:
            for module in given.module.modules():  # counted by `recompute`
                if getattr(module, "gradient_checkpointing", False):
                    module.gradient_checkpointing = False
        return predict_given(given, settings, self._settings.fields, kind, (*layout_notes, *optimizer_notes))

    def _call(self, module: Any, batch: Any) -> Any:
        positional, keywords = batch
        output = module(*positional, **keywords)
        return output if self._loss is None else self._loss(output)


def offload_of(args: Any) -> dict[str, str]:
    """The job's fields of what TrainingArguments offload to the host."""
    plugin: Any = getattr(args, "deepspeed_plugin", None)
    stage = getattr(plugin, "zero_stage", None)
    if args.deepspeed and stage:
        devices = [getattr(plugin, f"offload_{what}_device", None) for what in ("optimizer", "param")]
        states, weights = (device if device in ("cpu", "nvme") else None for device in devices)
        if states or weights:
            word = "parameters" if weights and stage == 3 else "optimizer"
            return {"offload": f"{word}-nvme" if "nvme" in (states, weights) else word, "framework": "deepspeed"}
    elif args.fsdp and ("offload" in str(args.fsdp) or (getattr(args, "fsdp_config", None) or {}).get("cpu_offload")):
        return {"offload": "parameters"}
    return {}


def layout_of(args: Any) -> tuple[str, tuple[str, ...]]:
    """The layout of TrainingArguments, and a note about what of it is not predicted."""
    stage = getattr(getattr(args, "deepspeed_plugin", None), "zero_stage", None)
    if args.deepspeed and stage is not None:
        return f"zero{stage}" if stage else "dp", ()
    if args.fsdp:
        return "fsdp", ()
    if getattr(args, "n_gpu", 1) > 1:
        return "dp", ("one process drives several GPUs by DataParallel: predicted for one; launch with torchrun",)
    return "dp", ()


def _steps_per_epoch(args: Any, loader: Any) -> int | None:
    """Optimizer steps of an epoch; None for a loader without a length."""
    try:
        batches = len(loader)
    except TypeError:
        return None
    return max(-(-batches // int(args.gradient_accumulation_steps)), 1)


def _every(strategy: Any, steps: Any, per_epoch: int | None) -> int | None:
    """Steps between evaluations or checkpoints; None for none, or where an epoch has no length."""
    word = str(getattr(strategy, "value", strategy))
    if word == "steps":
        return int(steps) if steps else None
    return per_epoch if word in ("epoch", "best") else None
