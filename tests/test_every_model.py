"""Every named model in every precision on four generations of GPUs: a prediction, or one clear sentence why not."""

from __future__ import annotations

import pytest

from precision_time.errors import MissingPeakError
from precision_time.hardware import gpu
from precision_time.job import Job
from precision_time.job.precision import PRECISIONS
from precision_time.prediction import predict
from precision_time.zoo.catalog import ENTRIES
from precision_time.zoo.ship import DATA, variants_of
from precision_time.zoo.templates import template_for
from precision_time.zoo.workload import ZooEntry

GPUS = ("v100-16gb-sxm", "a100-80gb-sxm", "h100-80gb-sxm", "h200-141gb-sxm")
_NEEDS = {"fp8": {"fp8", "bf16"}}


SHIPPED = {name: entry for name, entry in ENTRIES.items() if entry.ships}
"""Small networks are traced at need (test_small_networks.py)."""


def family(entry: ZooEntry) -> tuple[str, str]:
    """Models of one family have the same operators, in other numbers and sizes."""
    template = template_for(entry.builder, entry.config, "flash")
    return entry.builder, template.name if template else ""


SMALLEST = {family(entry): name for name, entry in sorted(SHIPPED.items(), key=lambda item: -item[1].parameters)}
KINDS = (("fp64", "fp32", "tf32", "torch-fp32"), ("amp-fp16", "amp-bf16"), ("fp16-master", "bf16-master", "fp8"),
         ("fp16", "bf16"))  # fmt: skip
"""Precisions whose steps have their casts and updates in the same places."""


def check(name: str, precision: str, device: str) -> None:
    job = Job(name, precision=precision, gpu=device, gpus=1)
    spec = PRECISIONS[precision]
    if not _NEEDS.get(spec.math, {spec.math}) <= set(gpu(device).peaks):
        with pytest.raises(MissingPeakError, match=device):
            predict(job)
        return
    estimate = predict(job)
    assert estimate.unsupported_bytes_share < 0.01, (precision, device, estimate.unsupported)
    assert estimate.step.p10 < estimate.step.p50 < estimate.step.p90
    assert estimate.step.p50 >= estimate.floor_s > 0
    assert sum(estimate.breakdown.values()) == pytest.approx(estimate.step.p50, rel=1e-9)


@pytest.mark.parametrize("index", range(len(SHIPPED)), ids=sorted(SHIPPED))
def test_predicts_in_every_precision(index: int) -> None:
    """GPUs rotate, so that every model sees all of them and every precision meets each of them in many models.

    The smallest model of each family in every precision, the others in one of each kind, which rotates too.
    """
    name = sorted(SHIPPED)[index]
    rotated = [kind[index % len(kind)] for kind in KINDS]
    for offset, precision in enumerate(PRECISIONS if name in SMALLEST.values() else rotated):
        check(name, precision, GPUS[(index + offset) % len(GPUS)])


def test_kinds_of_precisions_are_all_precisions() -> None:
    assert sorted(name for kind in KINDS for name in kind) == sorted(PRECISIONS)


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(SHIPPED))
def test_predicts_in_every_precision_on_every_gpu(name: str) -> None:
    for precision in PRECISIONS:
        for device in GPUS:
            check(name, precision, device)


def test_every_model_ships_all_its_graphs() -> None:
    import zipfile

    for name, entry in SHIPPED.items():
        with zipfile.ZipFile(DATA / f"{name}.zip") as archive:
            held = {member.removesuffix(".json") for member in archive.namelist()}
        assert {variant for variant, _, _ in variants_of(entry)} <= held, name
