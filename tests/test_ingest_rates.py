"""The descriptions of jobs, caches and data refuse what cannot be."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from precision_time.errors import IngestError
from precision_time.ingest.model.fluid import run
from precision_time.ingest.model.parts import Parts
from precision_time.ingest.model.rates import JobRates, SharedCache, Slowdowns

JOB = JobRates("a", 1000, 2, 0.001, 0.004)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("samples", 0),
        ("epochs", -1),
        ("hot_s", 0),
        ("hot_s", float("nan")),
        ("storage_s", -1),
        ("overlap", 1.2),
        ("cached", -0.1),
        ("start_up_s", float("inf")),
        ("bytes_per_sample", 0),
        ("parts", {"x": 0.5}),
        ("parts", {"x": 1.5}),
    ],
)
def test_a_job_that_cannot_be(name: str, value: Any) -> None:
    with pytest.raises(IngestError, match="'a'"):
        replace(JOB, **{name: value})


def test_together_and_cache_that_cannot_be() -> None:
    with pytest.raises(IngestError, match=r"hot\[0\]\[1\]"):
        Slowdowns(((1, 0.5), (1, 1)), ((1, 1), (1, 1)))
    with pytest.raises(IngestError, match="square"):
        Slowdowns(((1, 1),), ((1, 1), (1, 1)))
    with pytest.raises(IngestError, match="lru"):
        SharedCache(10, "lur")
    with pytest.raises(IngestError, match="capacity"):
        SharedCache(-1)


def test_time_of_a_sample_by_hand() -> None:
    deep, none = JOB, replace(JOB, overlap=0.0)
    assert deep.time_s(1) == 0.004
    assert deep.time_s(0.2) == 0.001
    assert deep.time_s(0.5) == 0.002
    assert none.time_s(0.5) == pytest.approx(0.0025)
    assert replace(JOB, overlap=0.5).time_s(0.5) == pytest.approx(0.00225)
    assert deep.time_s(0.5, storage_stretch=2, hot_stretch=5) == pytest.approx(0.005)
    assert deep.time_s(np.array([0.0, 1.0])).tolist() == [0.001, 0.004]
    assert (deep.cold_epoch_s, deep.hot_epoch_s) == (4.0, 1.0)


def test_parts_whose_sizes_disagree() -> None:
    jobs = [replace(JOB, parts={"x": 1.0}), replace(JOB, name="b", samples=3000, parts={"x": 1 / 3, "y": 2 / 3})]
    parts = Parts.of(jobs)
    assert parts.names == ("x", "y")
    assert parts.size.tolist() == pytest.approx([1000, 2000])
    with pytest.raises(IngestError, match="'x' has 1000 samples in job 'a' but 1500 in job 'b'"):
        Parts.of([jobs[0], replace(jobs[1], parts={"x": 0.5, "y": 0.5})])


def test_runs_that_cannot_be() -> None:
    two, table = [JOB, replace(JOB, name="b")], Slowdowns.uniform(2)
    for offsets in ([[0.0]], [0.0, 1.0], [[0.0, -1.0]], [[0.0, float("nan")]]):
        with pytest.raises(IngestError, match="offsets_s"):
            run(two, table, SharedCache(), offsets)  # type: ignore[arg-type]
    with pytest.raises(IngestError, match="one row for each job"):
        run(two, Slowdowns.uniform(3), SharedCache(), [[0.0, 0.0]])
    partly = [replace(JOB, parts={"x": 1.0}), replace(JOB, samples=2000, parts={"x": 0.5, "y": 0.5})]
    with pytest.raises(IngestError, match="same_order"):
        run(partly, Slowdowns.uniform(2, same_order=True), SharedCache(), [[0.0, 0.0]])
