"""What a run will take: the estimate of a module, a batch and the settings that a framework has, before its first step.

This module needs torch to trace the module, and knows no training framework.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from precision_time.errors import CatalogError, JobError
from precision_time.estimate.estimate import Estimate
from precision_time.estimate.goodput import LABELS
from precision_time.estimate.text import interval_text
from precision_time.hardware.catalog import default_catalog
from precision_time.job.code import GIVEN
from precision_time.job.job import Job
from precision_time.placement import catalog_of, cluster_of
from precision_time.prediction import predict
from precision_time.units import human_bytes, human_seconds

if TYPE_CHECKING:
    from precision_time.capture.given_module import GivenModule

Fields = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Preview:
    """An estimate made inside of a program.

    here    whether it is for the kind of device that trains
    notes   what was taken off the model or could not be read from the framework, one sentence each
    """

    estimate: Estimate
    here: bool
    notes: tuple[str, ...] = ()

    def __str__(self) -> str:
        return preview_text(self)


def check_fields(fields: Fields) -> None:
    """Check job fields that are given before there is a model. Raises a `PrecisionTimeError` that names the field."""
    job = Job.from_fields({"model": "given", **fields}, GIVEN)
    if "gpu" in fields or "device" in fields:
        catalog_of(job).gpu(str(fields.get("gpu") or _only_gpu(str(job.device))))


def predict_given(
    given: GivenModule, settings: Fields, fields: Fields, device_type: str, notes: tuple[str, ...] = ()
) -> Preview:
    """The preview of a module; `settings` are what the framework has, `fields` what the user gave, which wins.

    `device_type`: torch's word for the device that trains. Raises a `PrecisionTimeError` where the module cannot be
    traced, or the device is not known.
    """
    merged = {**{k: v for k, v in settings.items() if v is not None}, **fields}
    merged = _without_rivals(merged, fields)
    merged = {**device_fields(merged, device_type), **merged}
    merged.setdefault("batch_size", given.batch_size)
    job = Job.from_fields({"model": given.name, **merged}, GIVEN)
    if job.precision == "torch-fp32" and cluster_of(job).gpu.device_type == "cpu":
        job = job.replace(precision="fp32")  # which it is where there is no TF32
    estimate = predict(job)
    # The estimate holds the module, so that its job can be predicted or compared as long as the estimate lives.
    estimate = dataclasses.replace(estimate, events=partial(_events, given, estimate))
    gpu = cluster_of(job).gpu
    here = gpu.device_type == device_type and (device_type != "cuda" or _is_this_gpu(gpu.name))
    if not here:
        notes = (*notes, f"predicted for {job.gpu}, but this process trains on {device_type}: it is not corrected")
    return Preview(estimate, here, (*given.notes, *notes))


def _events(given: GivenModule, estimate: Estimate) -> dict[str, Any]:
    return estimate.trace_events()


_LENGTHS = ("epochs", "steps", "samples")
_RIVALS = (_LENGTHS, ("evaluation_every_epochs", "evaluation_every_steps"), ("evaluation_samples", "evaluation_s"),
           ("checkpoint_every_steps", "checkpoint_every_s"))  # fmt: skip
"""Fields of which a job has one: what the user gives replaces what the framework has."""


def _without_rivals(merged: dict[str, Any], fields: Fields) -> dict[str, Any]:
    replaced = {name for rivals in _RIVALS if set(rivals) & set(fields) for name in rivals} - set(fields)
    return {name: value for name, value in merged.items() if name not in replaced}


def device_fields(fields: Fields, device_type: str) -> dict[str, str]:
    """The field `gpu` where it is not given: the only GPU of the device file, else the CUDA device by its name.

    Raises `JobError` where neither is known.
    """
    if fields.get("gpu"):
        return {}
    if fields.get("device"):
        return {"gpu": _only_gpu(str(fields["device"]))}
    name = "this processor"
    if device_type == "cuda":
        import torch

        name = torch.cuda.get_device_name()
        try:
            return {"gpu": default_catalog().gpu(name).name}
        except CatalogError:
            pass
    raise JobError(
        f"training runs on {device_type} ({name}), which is not in the catalog; give gpu, a name that `precision-time "
        "gpus` lists, or device, the file that `precision-time calibrate` writes"
    )


def _only_gpu(device: str) -> str:
    known = default_catalog()
    names = sorted(set(known.with_file(Path(device)).gpus) - set(known.gpus))
    if len(names) != 1:
        raise JobError(f"device {device!r} has {len(names)} GPUs ({', '.join(names) or 'none'}); give gpu, one of them")
    return names[0]


def _is_this_gpu(name: str) -> bool:
    """Whether a GPU is the CUDA device of this process; one of a device file is taken to be calibrated here."""
    import torch

    known = default_catalog()
    if name not in known.gpus:
        return True
    try:
        return known.gpu(torch.cuda.get_device_name()).name == name
    except CatalogError:
        return False


def node_fields() -> dict[str, int]:
    """The number of nodes, where a launcher such as torchrun says how many processes one has."""
    world, local = (os.environ.get(name, "") for name in ("WORLD_SIZE", "LOCAL_WORLD_SIZE"))
    if world.isdigit() and local.isdigit() and int(local) and int(world) > int(local):
        return {"nodes": -(-int(world) // int(local))}
    return {}


def preview_text(preview: Preview) -> str:
    """Step, run, memory, cost and energy of a run in a few lines."""
    estimate = preview.estimate
    memory = estimate.memory
    lines = [f"precision-time: {estimate.job.signature()}", _line("step", interval_text(estimate.step))]
    if estimate.run is not None and estimate.steps:
        parts = estimate.goodput.parts if estimate.goodput else {}
        beside = [f"{LABELS[name]} {human_seconds(parts[name].p50)}" for name in _BESIDE if name in parts]
        with_parts = f", of it {', '.join(beside)}" if beside else ""
        lines.append(_line("run", f"{interval_text(estimate.run)} for {estimate.steps:,} steps{with_parts}"))
    low, _, high = memory.peak_interval
    verdict = "fits" if memory.fits else f"DOES NOT FIT by {human_bytes(memory.missing_bytes)}"
    lines.append(
        _line(
            "memory",
            f"{human_bytes(memory.peak_bytes)} ({human_bytes(low)} to {human_bytes(high)}) of "
            f"{human_bytes(memory.capacity_bytes)}: {verdict}",
        )
    )
    if estimate.cost_usd is not None:
        cost = estimate.cost_usd
        lines.append(_line("cost", f"${cost.p50:,.2f} (${cost.p10:,.2f} to ${cost.p90:,.2f})"))
    return "\n".join([*lines, *(f"  {note}" for note in preview.notes)])


_BESIDE = ("evaluation", "checkpoints")


def _line(name: str, value: str) -> str:
    return f"  {name:8}{value}"
