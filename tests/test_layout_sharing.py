"""What layouts share is worked out once: the same numbers, bit by bit, whatever was predicted before; and in bulk."""

from __future__ import annotations

import pytest

from precision_time import Job, compare, predict
from precision_time.bounded_cache import CACHES
from precision_time.cli.main import main
from precision_time.comparison import Comparison

LAYOUTS = ("tp=4,pp=2,sp=1,zero=1", "tp=4,pp=4,vpp=2", "tp=2,cp=2", "fsdp", "zero1", "pp=8,schedule=zero-bubble")


def _jobs() -> list[Job]:
    return [
        Job("llama3-8b", gpu="h100-80gb-sxm", gpus=32, precision="bf16-master", grad_accum=16, layout=layout,
            recompute=recompute)
        for layout in LAYOUTS
        for recompute in ("none", "full")
    ]  # fmt: skip


def _forget() -> None:
    for cache in CACHES:
        cache.clear()


def test_what_was_predicted_before_changes_nothing() -> None:
    alone = []
    for job in _jobs():
        _forget()
        alone.append(predict(job).to_dict())
    after_others = [predict(job).to_dict() for job in [*_jobs(), *reversed(_jobs())]]
    assert after_others == [*alone, *reversed(alone)]


def test_compare_takes_layouts() -> None:
    job = Job("llama3-8b", gpu="h100-80gb-sxm", gpus=32, precision="bf16-master", grad_accum=16)
    found = compare(job, layouts=LAYOUTS)
    assert [row.job.layout for row in found.rows] == [job.replace(layout=each).layout for each in LAYOUTS]
    assert "bubble" in str(found)
    assert "tp=4,pp=2" in str(found)


def test_processes_give_the_same_rows() -> None:
    jobs = [job.replace(recompute="none") for job in _jobs()[::4]]
    one, two = compare(jobs), compare(jobs, workers=2)
    assert isinstance(two, Comparison)
    assert two.to_dict() == one.to_dict()
    estimate = two.rows[0].estimate
    assert estimate is not None
    assert estimate.trace_events() == predict(jobs[0]).trace_events()  # type: ignore[attr-defined]


def test_several_layouts_on_the_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    words = "compare llama3-8b --gpu h100-80gb-sxm --gpus 16 --precision bf16-master"
    assert main([*words.split(), "--layout", "tp=8,dp=2", "--layout", "fsdp,zero1"]) == 0
    said = capsys.readouterr().out
    assert all(layout in said for layout in ("tp=8,dp=2", "fsdp", "zero1"))
