"""Numbers as people read them, and the printed estimate: it adds up as printed and carries no noise."""

from __future__ import annotations

import re

import pytest

from precision_time.estimate.estimate import BREAKDOWN_TERMS, Estimate
from precision_time.estimate.interval import Interval
from precision_time.estimate.memory import Memory
from precision_time.job import Job
from precision_time.units import human_bytes, human_count, human_seconds

GIB = 2**30


def estimate(job: Job, *terms: float, memory: dict[str, int] | None = None, run: float | None = None) -> Estimate:
    breakdown = dict(zip(BREAKDOWN_TERMS, (*terms, *[0.0] * 7), strict=False))
    step = sum(breakdown.values())
    length = None if run is None else Interval(0.5 * run, run, 2 * run)
    return Estimate(
        job=job, step=Interval.around(step, 0.1), epoch=None, run=length, breakdown=breakdown,
        communication_hidden_s=0.0, samples_per_s=64 * job.gpus / step, samples_unit="images",
        steps_per_epoch=None, steps=None, memory=Memory(memory or {"weights": GIB}, 80 * GIB),
        sources={"measured": 0.0, "learned": 0.666, "assumed": 0.334}, bound_shares={}, unsupported=(),
        unsupported_bytes_share=0.0, floor_s=step / 2, parameters=1, flops_per_step={},
        energy_j=length, assumptions=("something",),
    )  # fmt: skip


def numbers(text: str, start: str, end: str) -> list[float]:
    """First number of every line after `start` up to and with the line of `end`."""
    lines = text[text.index(start) :].splitlines()[1:]
    last = next(i for i, line in enumerate(lines) if line.strip().startswith(end))
    return [float(re.findall(r"[\d,]+\.\d+", line)[0].replace(",", "")) for line in lines[: last + 1]]


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.0, "0 us"), (9e-15, "0 us"), (3e-8, "0.0300 us"), (0.1049, "105 ms"), (1.5, "1.50 s"), (119, "119 s"),
     (120, "2.00 min"), (9e4, "25.0 h"), (2e5, "2.31 days"), (1e9, "11,574 days")],
)  # fmt: skip
def test_seconds(seconds: float, text: str) -> None:
    assert human_seconds(seconds) == text


def test_bytes_and_counts() -> None:
    assert [human_bytes(n) for n in (0, 1023, 1536, 12.25 * GIB)] == ["0 B", "1,023 B", "1.50 KiB", "12.2 GiB"]
    assert [human_count(n) for n in (0, 0.1234, 99.96, 13200.4)] == ["0", "0.123", "100.0", "13,200"]


def test_breakdown_and_memory_add_up_as_printed() -> None:
    thirds = {"weights": GIB // 3, "gradients": GIB // 3, "activations": 9 * GIB}
    text = str(estimate(Job("resnet50"), 0.0333333, 0.0666666, 0.0000333, memory=thirds))
    *terms, step = numbers(text, "where a step goes", "step")
    assert sum(terms) == pytest.approx(step, abs=1e-9)
    *categories, peak = numbers(text, "memory of a GPU", "peak")
    assert sum(categories) == pytest.approx(peak, abs=1e-9)
    assert re.findall(r"([\d.]+)%", text.split("sources of")[0])[-1] == "100.0"
    assert "learned 67%, assumed 33%" in text


def test_terms_that_print_as_nothing_are_left_out() -> None:
    text = str(estimate(Job("resnet50"), 0.03, 0.07, 1e-15))
    assert "optimizer" not in text
    assert "casts" not in text
    assert "measured" not in text


def test_the_batch_that_was_taken_is_named() -> None:
    assert str(estimate(Job("resnet50", gpus=8), 0.1)).splitlines()[0].endswith("batch 64")


def test_a_row_keeps_one_unit() -> None:
    text = str(estimate(Job("resnet50"), 0.1, run=90.0))
    row = next(line for line in text.splitlines() if line.startswith("run"))
    assert row.split()[1:] == ["90.0", "s", "45.0", "s", "180.0", "s"]
    assert "0.0250 Wh" in text


def test_what_does_not_fit_says_by_how_much() -> None:
    text = str(estimate(Job("resnet50"), 0.1, memory={"activations": 100 * GIB}))
    assert "DOES NOT FIT by 20.0 GiB" in text
