"""Candidates that differ in their micro-batch alone: larger ones need no less memory, so a search need not lay them
out."""

from __future__ import annotations

import functools
import itertools
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from precision_time.job.job import Job
from precision_time.plan.assess import Assessed, _as_many_in_flight, assess, assess_batches
from precision_time.plan.layouts import arranged
from precision_time.plan.ranking import assessed

SPACES = [
    Job("llama3-8b", gpu="h100-80gb-sxm", precision="bf16-master", framework="torchtitan", run={"steps": 10}),
    Job("bert-large", gpu="l4", precision="amp-fp16", run={"steps": 10}),
    Job("resnet50", gpu="t4", precision="amp-fp16", run={"steps": 10}),
    Job("gpt2-xl", gpu="v100-16gb-sxm", precision="amp-fp16", attention="math", run={"steps": 10}),
]


def ladders(job: Job, gpus: int, batch: int) -> list[list[Job]]:
    """The candidates of a search, those that differ in their micro-batch together, by micro-batch."""
    found: dict[tuple[str, str], list[Job]] = {}
    for each in arranged(job, gpus, min(gpus, 8), batch):
        found.setdefault((each.layout, each.recompute), []).append(each)
    return [sorted(jobs, key=lambda each: each.batch_size or 0) for jobs in found.values()]


@functools.cache
def known_ladders(which: int, gpus: int) -> list[list[Job]]:
    return ladders(SPACES[which], gpus, 128)


@settings(max_examples=20, deadline=None)
@given(st.sampled_from(range(len(SPACES))), st.sampled_from([4, 16]), st.data())
def test_a_larger_micro_batch_needs_no_less_memory(which: int, gpus: int, data: st.DataObject) -> None:
    """What the search relies on, tried with every candidate laid out."""
    jobs = data.draw(st.sampled_from(known_ladders(which, gpus)))
    peaks = [(each, assess(each, 1.0).peak_bytes) for each in jobs]
    for (_, before), (larger, after) in itertools.pairwise(peaks):
        if _as_many_in_flight(larger):
            assert after >= before > 0


@pytest.mark.parametrize("job", SPACES, ids=lambda job: job.model)
def test_skipped_candidates_change_no_verdict(job: Job) -> None:
    """Those that are predicted, and the nearest of the others, are the same as without skipping."""
    least_fit = 0.9
    gpus, batch = (2, 1024) if job.model in ("bert-large", "resnet50") else (8, 64)
    jobs = [each for ladder in ladders(job, gpus, batch) for each in ladder]
    every = [assess(each, least_fit) for each in jobs]
    found = assessed(jobs, least_fit)
    assert [row.job for row in found] == jobs
    assert [row.predicted for row in found] == [row.predicted for row in every]
    assert [row for row in found if row.predicted] == [row for row in every if row.predicted]
    unfit = [(row, exact) for row, exact in zip(found, every, strict=True) if not exact.predicted and not exact.error]
    assert unfit, "the case has to have candidates that do not fit"
    assert all(row.missing_bytes <= exact.missing_bytes and row.fits >= exact.fits for row, exact in unfit)
    nearest, exact = (min(rows, key=lambda row: row.missing_bytes) for rows in zip(*unfit, strict=True))
    assert nearest == exact


def test_candidates_after_one_that_does_not_fit_are_not_laid_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Eight micro-batches on one GPU of a model that never fits: the first and, with a single micro-batch in the step,
    the last are laid out."""
    laid_out = []

    def counted(job: Job, least_fit: float, learned: None) -> Assessed:
        laid_out.append(job.batch_size)
        return assess(job, least_fit)

    base = Job("llama3-8b", gpu="t4", precision="fp16-master", run={"steps": 1})
    jobs = [base.replace(batch_size=1 << n, grad_accum=128 >> n) for n in range(8)]
    monkeypatch.setattr("precision_time.plan.assess.assess", counted)
    rows = assess_batches(jobs, 0.9)
    assert laid_out == [1, 128]
    assert [row.job for row in rows] == jobs
    assert all(replace(row, job=base) == replace(rows[0], job=base) for row in rows[:-1])
