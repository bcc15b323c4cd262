"""The fit of what a device holds beside tensors: brackets made from known parameters, the board, and what ships."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from precision_time.errors import DataError
from precision_time.estimate.memory import PARAMETERS, memory_parameters
from precision_time.fit import memory
from precision_time.fit.brackets import BRACKETS, Brackets, job_of, read, read_table, torch_of, traced
from precision_time.fit.provenance import sha256
from precision_time.shipped import shipped_file

DATA = Path(__file__).parent.parent / "data"
GIB = 2.0**30


def made(process_gib: float, scale: float, stray: float = 0.0, count: int = 600) -> Brackets:
    """Brackets of networks whose bytes grow with the batch, of 20 families, on 24 GiB."""
    rng = np.random.default_rng(1)
    per_sample = np.exp(rng.normal(np.log(0.07 * GIB), 0.8, count))
    error = np.exp(rng.logistic(0.0, scale, count)) * np.where(rng.random(count) < stray, 2.0, 1.0)
    ladder = np.array([2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048])
    live = per_sample[:, None] * ladder
    runs = ((live * 1.05 + process_gib * GIB) * error[:, None] <= 24 * GIB).sum(axis=1)
    kept = (runs > 0) & (runs < len(ladder))
    at, row = runs[kept], np.flatnonzero(kept)
    text = np.full(len(row), "x")
    return Brackets(
        tuple(map(str, row)), np.array([f"family{i % 20}" for i in row]), np.full(len(row), 224), text, text, text,
        live[row, at - 1], live[row, at], np.full(len(row), 24 * GIB),
    )  # fmt: skip


def test_known_parameters_are_found() -> None:
    found = memory.fitted(made(1.6, 0.01))
    assert found.process_bytes / GIB == pytest.approx(1.6, abs=0.15)
    assert found.log_scale == pytest.approx(0.01, rel=0.3)
    judged = memory.judge(made(1.6, 0.01))
    assert min(judged.fits.mean(), judged.fails.mean()) > 0.92


def test_brackets_that_fail_for_other_reasons_do_not_move_the_fit() -> None:
    found = memory.fitted(made(1.6, 0.01, stray=0.02))
    assert found.process_bytes / GIB == pytest.approx(1.6, abs=0.2)


def test_a_miss_says_in_which_direction() -> None:
    """Twice the tensors in one family: too much is predicted there."""
    brackets = made(1.6, 0.01)
    other = brackets.family == "family0"
    twice = replace(brackets, fits=np.where(other, 2, 1) * brackets.fits, fails=np.where(other, 2, 1) * brackets.fails)
    judged = memory.judge(twice)
    assert (judged.least_error[other] > 0.0).mean() > 0.8
    assert (judged.least_error[~other] > 0.0).mean() < 0.1


def test_shipped_parameters_are_those_of_the_traced_brackets() -> None:
    content = json.loads(shipped_file(PARAMETERS).read_text(encoding="utf-8"))
    assert content["provenance"]["sha256"] == sha256(DATA / BRACKETS)
    assert memory.fitted(read(DATA)) == memory_parameters()


def test_answers_are_right_for_families_that_the_fit_has_not_seen() -> None:
    judged = memory.judge(read(DATA))
    assert judged.fits.mean() >= 0.92
    assert judged.fails.mean() >= 0.92


def test_a_line_becomes_the_job_that_its_source_ran() -> None:
    cells = next(cells for cells in read_table(DATA) if cells["id"].endswith("nhwc-pt110"))
    job = job_of(cells, 7)
    assert (job.batch_size, job.torch, job.attention, job.memory_format) == (7, "1.10", "math", "nhwc")
    assert job.keeps_softmax_inputs
    assert job.zeroes_gradients
    assert torch_of("timm-x-nchw-pt112") == "1.12"


def test_untraced_brackets_name_the_command(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="precision-time fit brackets writes it"):
        read(tmp_path)
    with pytest.raises(DataError, match=r"has no .*memory_brackets\.csv"):
        read_table(tmp_path)


def test_traced_bytes_are_those_of_a_capture_today() -> None:
    """Of one line, whose network is small; needs torch and timm."""
    pytest.importorskip("timm")
    brackets = read(DATA)
    at = next(i for i, name in enumerate(brackets.id) if name.startswith("timm-mobilenetv2_140-nchw-pt110"))
    cells = next(cells for cells in read_table(DATA) if cells["id"] == brackets.id[at])
    ((_, fits, fails),) = traced([cells])
    assert (fits, fails) == pytest.approx((brackets.fits[at], brackets.fails[at]), rel=2e-3)
