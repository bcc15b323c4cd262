"""A process that predicts many distinct jobs stays small and as fast as it began; a short run here, a long one slow."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks import distinct, soak

ROOT = Path(__file__).parent.parent


def run(jobs: int, folder: Path) -> dict[str, Any]:
    command = [sys.executable, "-m", "benchmarks.soak", "--jobs", str(jobs), "--output", str(folder)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    content: dict[str, Any] = json.loads((folder / "soak.json").read_text(encoding="utf-8"))
    return content


def test_jobs_are_distinct_and_drawn_by_their_seed() -> None:
    first = [job for job, _ in zip(soak.jobs(3), range(200), strict=False)]
    again = [job for job, _ in zip(soak.jobs(3), range(200), strict=False)]
    assert first == again
    assert len({repr(job) for job in first}) == 200
    assert len({job.model for job in first}) > 50


@pytest.mark.slow
def test_distinct_jobs_are_timed_by_what_differs() -> None:
    content = distinct.summary(distinct.measure(1, ["gpt2", "resnet50"]))
    assert content["batch size"]["jobs"] == 80
    assert min(of["median_ms"] for of in content.values()) > 0.0
    where = {"date": "d", "cpu": "c", "system": "s", "numpy": "n"}
    text = distinct.page(content, ["gpt2", "resnet50"], where)
    assert all(f"| {name} |" in text for name in distinct.CHANGES)


def test_a_short_soak_writes_its_figures(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    content = run(30, tmp_path)
    assert content["jobs"] == 30
    assert not content["torch_imported"]
    assert content["end_mib"] * 2**20 < 400e6
    assert "30 distinct jobs over" in (tmp_path / "soak.md").read_text(encoding="utf-8")
    assert (tmp_path / "soak.png").stat().st_size > 1000


@pytest.mark.slow
def test_distinct_jobs_end_under_400_mb_and_without_slowing_down(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    content = run(50_000, tmp_path)
    assert not content["torch_imported"]
    assert content["end_mib"] * 2**20 < 400e6
    # CPU time of equal work varies by half with what else runs; a cache that grows slows down by more.
    assert content["last_tenth_ms"] < 1.5 * content["second_tenth_ms"]
