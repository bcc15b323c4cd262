"""`suggest_batch_size`: the largest batch that fits a GPU, from predicted memory.

No GPU is used and no step runs, so the answer also holds for a GPU that is not in this machine.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from precision_time.capture.given_module import GivenModule
from precision_time.capture.user_model import optimizer_of
from precision_time.checks import show
from precision_time.errors import JobError, nearest
from precision_time.integrations.preview import check_fields, device_fields
from precision_time.integrations.torch_calls import call_of
from precision_time.integrations.torch_facts import device_type_of, memory_format, optimizer_fields, precision_name
from precision_time.job.code import GIVEN
from precision_time.job.job import Job
from precision_time.largest_batch import memory_of

MODES = ("power", "binsearch")


def suggest_batch_size(  # noqa: PLR0913 - the arguments of Lightning's scale_batch_size
    model: Any,
    batch: Any,
    *,
    mode: str = "power",
    init_val: int = 2,
    max_trials: int = 25,
    margin: float = 0.05,
    max_val: int = 8192,
    loss: Callable[..., Any] | None = None,
    optimizer: Any = None,
    **fields: Any,
) -> int:
    """Samples per GPU and micro-step that fit in memory; the arguments are those of Lightning's `scale_batch_size`.

    model        a `torch.nn.Module` or `LightningModule`, an instance in any wrapper or a class
    batch        one batch as the data loader returns it; its first dimension is scaled
    mode         "power": doubled as long as it fits; "binsearch": then halved between the last two
    init_val     first batch size; halved where even that does not fit
    max_trials   batch sizes that are tried
    margin       share by which the result of "binsearch" is made smaller, for safety
    max_val      largest batch size
    loss         function of (output, targets) for a batch (inputs, targets), as in `preview`
    optimizer    a `torch.optim` optimizer, or its name; default: sgd, without states
    fields       job fields: gpu, device, precision, gpus, layout, recompute ... (docs/job.md)

    Raises `JobError` where no batch fits, or an argument is wrong, and `CaptureError` where the model cannot be traced.
    """
    _check(mode, init_val, max_trials, margin, max_val)
    check_fields(fields)
    given = GivenModule(model, batch, call_of(model, batch, loss))
    kind = device_type_of(model) if hasattr(model, "parameters") and not isinstance(model, type) else "cpu"
    words: dict[str, Any] = {
        "precision": precision_name(None, given.module, str(fields.get("layout", "dp")), kind),
        "memory_format": memory_format(given.module),
        **_optimizer(optimizer, kind),
        **fields,
    }
    job = Job.from_fields({"model": given.name, **device_fields(words, kind), **words}, GIVEN)
    trials = _Trials(job, max_trials)
    size = _search(trials, mode, min(init_val, max_val), max_val)
    if size is None:
        raise JobError(
            f"model {type(given.module).__name__} does not fit {job.gpu} with any batch size that was tried "
            f"({', '.join(map(str, trials.tried))}); take a larger GPU, recompute='full' or a sharded layout"
        )
    return max(int(size * (1 - margin)), 1) if mode == "binsearch" else size


def _check(mode: str, init_val: int, max_trials: int, margin: float, max_val: int) -> None:
    if mode not in MODES:
        raise JobError(f"mode {show(mode)} is unknown; nearest: {nearest(mode, MODES)}; give one of {', '.join(MODES)}")
    for name, value in (("init_val", init_val), ("max_trials", max_trials), ("max_val", max_val)):
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise JobError(f"{name} {show(value)} is no positive whole number; give for example {name}=8")
    if not isinstance(margin, (int, float)) or not 0 <= margin < 1:
        raise JobError(f"margin {show(margin)} is no share from 0 to below 1; give for example margin=0.05")


def _optimizer(optimizer: Any, device_type: str) -> dict[str, str]:
    if optimizer is None or isinstance(optimizer, str):
        return {} if optimizer is None else {"optimizer": optimizer_of(optimizer, device_type)[0]}
    return optimizer_fields(optimizer, device_type)[0]


class _Trials:
    """Batch sizes that were tried, at most so many."""

    def __init__(self, job: Job, most: int) -> None:
        self.job, self.most = job, most
        self.tried: dict[int, bool] = {}

    def fits(self, size: int) -> bool | None:
        """Whether the job fits at this batch size; None where no trials are left."""
        if size not in self.tried:
            if len(self.tried) >= self.most:
                return None
            self.tried[size] = self._fits(size)
        return self.tried[size]

    def _fits(self, size: int) -> bool:
        return memory_of(self.job.replace(batch_size=size)).fits


def _search(trials: _Trials, mode: str, first: int, most: int) -> int | None:
    """The largest batch size found to fit; None where none did."""
    good: int | None = None
    bad: int | None = None
    size = first
    while (fits := trials.fits(size)) is not None:
        if fits:
            good = size
            if bad is not None or size == most:
                break
            size = min(2 * size, most)
        else:
            bad = size
            if good is not None or size == 1:
                break
            size //= 2
    if mode == "power" or good is None or bad is None:
        return good
    while bad - good > 1:
        middle = (good + bad) // 2
        fits = trials.fits(middle)
        if fits is None:
            break
        good, bad = (middle, bad) if fits else (good, middle)
    return good
