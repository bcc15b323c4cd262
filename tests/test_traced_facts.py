"""Facts of jobs that torch traced, read back from their columns and from the works of their kernels."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pytest

from precision_time.fit import traced
from precision_time.hardware.catalog import default_catalog
from precision_time.job import Job
from precision_time.measurements.row import row_of
from precision_time.measurements.table import OPTIONAL, REQUIRED
from precision_time.predictors import traced_facts
from precision_time.predictors.facts import facts_of
from precision_time.predictors.features import vector
from precision_time.predictors.kernel_sizes import NAMES, kernel_sizes


def test_traced_facts_are_those_of_the_job() -> None:
    """Columns of a zoo job, read back as if torch had traced it."""
    job = Job("resnet50", gpu="rtx-3090", precision="amp-fp16", batch_size=32, torch="1.13")
    known = facts_of(job)
    columns = json.loads(json.dumps(traced_facts._columns(known)))
    again = traced_facts.facts_from(traced_facts.TracedRow(columns, known.sizes), job)
    np.testing.assert_allclose(vector(again), vector(known), rtol=1e-12)
    assert again.initial_s == pytest.approx(known.initial_s)


@pytest.mark.parametrize("memory_format", ["nchw", "nhwc"])
def test_sizes_of_the_works_of_a_job_are_those_of_the_job(memory_format: str) -> None:
    """Works of a zoo job, written and read as if torch had traced it; they are kept in single precision."""
    cells = {
        "model": "efficientnet-b0", "gpu": "rtx-3090", "precision": "amp-fp16", "batch_size": "32",
        "memory_format": memory_format, "torch": "1.11", "step_time_s": "0.1",
    }  # fmt: skip
    row = row_of(1, {name: cells.get(name, "") for name in (*REQUIRED, *OPTIONAL)} | {"gpus": "1", "trust": "A"})
    assert row.job is not None
    (traced_job,) = traced._traced_model([row])
    works = pd.DataFrame(traced_job.columns)
    works = works[works["replaces"] < 0]
    works["class"] = works["class"].astype("category")
    calls = works["calls"].to_numpy(np.float64)
    sizes = kernel_sizes(traced._table(works), calls, default_catalog().gpu("rtx-3090"))
    assert sizes["depthwise.taps"] > 3.0
    known = facts_of(row.job).sizes
    np.testing.assert_allclose([sizes[name] for name in NAMES], [known[name] for name in NAMES], atol=1e-6)
