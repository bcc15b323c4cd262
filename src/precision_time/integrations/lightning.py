"""`PredictTime` for Lightning: `Trainer(callbacks=[PredictTime(gpu="a100-80gb-sxm")])`."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

try:
    from lightning.pytorch import Callback
except ImportError:
    try:
        from pytorch_lightning import Callback
    except ImportError as error:
        from precision_time.errors import MissingExtraError

        raise MissingExtraError(
            "precision_time.integrations.lightning needs lightning: pip install 'precision-time[lightning]'"
        ) from error

from precision_time.capture.given_module import GivenModule
from precision_time.capture.meta_copy import meta_module
from precision_time.integrations.batch_size import suggest_batch_size
from precision_time.integrations.live import WARMUP_STEPS
from precision_time.integrations.outcome import FILE
from precision_time.integrations.preview import Preview, predict_given
from precision_time.integrations.session import ETA_EVERY_S, Report, Session, Settings, Target, print_line
from precision_time.integrations.torch_calls import training_step_call
from precision_time.integrations.torch_facts import memory_format, optimizer_fields, precision_name

__all__ = ["PredictTime", "suggest_batch_size"]


class PredictTime(Callback):
    """Prints what a fit will take before its first step, the time left while it trains, and writes the outcome.

    fields        job fields that override what the Trainer has (docs/job.md): gpu="h100-80gb-sxm",
                  device="device.json", price_per_gpu_hour=2.5, checkpoint_storage="nfs-10gbe"
    output        file of the outcome; default precision_time_outcome.json in the Trainer's log folder; False: none
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
        output: str | Path | bool | None = None,
        report: Report = print_line,
        eta_every_s: float = ETA_EVERY_S,
        warmup_steps: int = WARMUP_STEPS,
        record: Target = None,
        **fields: Any,
    ) -> None:
        self._settings = Settings(fields, output, report, eta_every_s, warmup_steps, record)
        self._at_step = 0
        self._in_step = False
        self._validation_began_s = 0.0
        self._saving: Any = None
        self._whole: Any = None
        self.session = Session(self._settings, "lightning")

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        if layout_of(trainer) == "fsdp":  # before its weights become flat shards
            self.session.attempt(lambda: setattr(self, "_whole", meta_module(pl_module)))

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        self.session = Session(self._settings, "lightning")
        self._at_step, self._in_step = trainer.global_step, False
        self.session.attempt(lambda: self._begin(trainer))

    def _begin(self, trainer: Any) -> None:
        # What may speak with other ranks is asked on all of them; anything else would wait for ranks that never ask.
        steps = _steps_left(trainer)
        if not trainer.is_global_zero:
            self.session.off = True
            return
        folder = _folder(trainer)
        per_epoch = _steps_per_epoch(trainer)
        self.session.begin(
            steps, trainer.strategy.root_device.type, folder / FILE, _evaluation(trainer, per_epoch),
            _checkpoint(trainer, per_epoch),
        )  # fmt: skip
        self._time_saving(trainer)

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        session = self.session
        session.predict(lambda: self._preview(trainer, pl_module, batch))
        if not self._in_step:
            self._in_step = True
            session.step_begins()

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        if trainer.global_step > self._at_step:
            self._at_step, self._in_step = trainer.global_step, False
            self.session.step_ends()

    def on_validation_start(self, trainer: Any, pl_module: Any) -> None:
        self._validation_began_s = self._settings.clock()

    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
        if not trainer.sanity_checking:
            self.session.paused("evaluation", self._settings.clock() - self._validation_began_s)

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        self._restore(trainer)
        interrupted = getattr(trainer, "interrupted", False)
        self.session.end("interrupted" if interrupted else "")

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        self._restore(trainer)
        self.session.end(f"{type(exception).__name__}: {exception}"[:500])

    def _time_saving(self, trainer: Any) -> None:
        """Time `trainer.save_checkpoint`, which no callback encloses."""
        save, clock = trainer.save_checkpoint, self._settings.clock

        def timed(*args: Any, **kwargs: Any) -> Any:
            began = clock()
            result = save(*args, **kwargs)
            self.session.paused("checkpoint", clock() - began)
            return result

        self._saving = timed
        trainer.save_checkpoint = timed

    def _restore(self, trainer: Any) -> None:
        if self._saving is not None and trainer.__dict__.get("save_checkpoint") is self._saving:
            del trainer.save_checkpoint
        self._saving = None

    def _preview(self, trainer: Any, module: Any, batch: Any) -> Preview:
        kind = trainer.strategy.root_device.type
        layout = layout_of(trainer)
        words, notes = optimizer_fields(next(iter(trainer.optimizers), None), kind)
        live = self.session.live
        evaluated = _validation_samples(trainer)
        settings = {
            "precision": _precision(trainer, module, layout, kind),
            "grad_accum": trainer.accumulate_grad_batches,
            "gpus": trainer.world_size,
            "nodes": trainer.num_nodes if trainer.num_nodes > 1 else None,
            "layout": layout,
            "clip_norm": float(trainer.gradient_clip_val or 0.0),
            "memory_format": memory_format(module),
            "steps": live.steps,
            "start_up_s": 0.0,
            "evaluation_samples": evaluated,
            "evaluation_every_steps": live.evaluations.every_steps if evaluated else None,
            "checkpoint_every_steps": live.checkpoints.every_steps,
            **words,
        }
        given = GivenModule(self._whole or module, batch, training_step_call)
        return predict_given(given, settings, self._settings.fields, kind, notes)


def _folder(trainer: Any) -> Path:
    """The folder of the first logger, else the root folder. `trainer.log_dir` would broadcast it to all ranks."""
    folder = getattr(trainer.logger, "log_dir", None) if trainer.logger is not None else None
    return Path(folder or trainer.default_root_dir)


def layout_of(trainer: Any) -> str:
    """The layout of a Trainer's strategy."""
    name = type(trainer.strategy).__name__
    if "FSDP" in name:
        return "fsdp"
    if "DeepSpeed" in name:
        stage = (trainer.strategy.config or {}).get("zero_optimization", {}).get("stage", 0)
        return f"zero{stage}" if stage else "dp"
    return "dp"


def _precision(trainer: Any, module: Any, layout: str, kind: str) -> str:
    word = str(trainer.precision)
    if word.endswith("-true") and not word.startswith("32"):
        return word
    mixed = {"16-mixed": "fp16", "bf16-mixed": "bf16"}.get(word)
    return precision_name(mixed, module, layout, kind)


def _steps_left(trainer: Any) -> int | None:
    total = trainer.estimated_stepping_batches
    return None if math.isinf(total) or total < 0 else max(int(total) - trainer.global_step, 0)


def _steps_per_epoch(trainer: Any) -> int | None:
    batches = trainer.num_training_batches
    return None if math.isinf(batches) else max(-(-int(batches) // trainer.accumulate_grad_batches), 1)


def _validation_samples(trainer: Any) -> int | None:
    """Samples of one validation on all ranks; None without one."""
    loaders = trainer.val_dataloaders
    loaders = [] if loaders is None else loaders if isinstance(loaders, (list, tuple)) else [loaders]
    total = 0
    for loader, batches in zip(loaders, trainer.num_val_batches, strict=False):
        if math.isinf(batches) or not getattr(loader, "batch_size", None):
            return None
        total += int(batches) * loader.batch_size * trainer.world_size
    return total or None


def _evaluation(trainer: Any, per_epoch: int | None) -> int | None:
    """Optimizer steps between two validations."""
    if not trainer.enable_validation or not sum(trainer.num_val_batches):
        return None
    epochs = trainer.check_val_every_n_epoch
    batches = trainer.val_check_batch
    if math.isinf(batches):
        return None
    within: int = max(int(batches) // trainer.accumulate_grad_batches, 1)
    if epochs is None or per_epoch is None or within < per_epoch:
        return within
    return per_epoch * int(epochs)


def _checkpoint(trainer: Any, per_epoch: int | None) -> int | None:
    """Optimizer steps between two checkpoints of the first ModelCheckpoint."""
    callback = trainer.checkpoint_callback
    if callback is None or getattr(callback, "save_top_k", 1) == 0:
        return None
    steps = getattr(callback, "_every_n_train_steps", 0)
    epochs = getattr(callback, "_every_n_epochs", 1) or 1
    if steps:
        return int(steps)
    return per_epoch * int(epochs) if per_epoch else None
