"""Estimates and comparisons in a notebook: one line, tables, rows for pandas, and why."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from precision_time import Job, compare, predict_time
from precision_time.errors import JobError, MissingExtraError
from precision_time.estimate.estimate import Estimate


@pytest.fixture(scope="module")
def estimate() -> Estimate:
    return predict_time("resnet50", precision="amp-bf16", batch_size=64, epochs=1, price_per_gpu_hour=2.0)


def test_the_repr_is_one_line(estimate: Estimate) -> None:
    assert repr(estimate).startswith("<Estimate resnet50 · amp-bf16 · 1 x a100-80gb-sxm · batch 64: step ")
    assert ", run " in repr(estimate)
    assert repr(estimate).endswith(", fits>")
    assert "\n" not in repr(estimate)
    assert "does not fit" in repr(predict_time("resnet50", batch_size=8192))


def test_html_has_a_table_and_bars_that_add_up(estimate: Estimate) -> None:
    text = estimate._repr_html_()
    assert text.count("<table") == text.count("</table>") == 2
    assert "step" in text
    assert "cost" in text
    widths = [float(width) for width in re.findall(r"width:([\d.]+)em;background", text)]
    assert sum(widths) == pytest.approx(12, abs=0.3)
    assert "<script" not in predict_time("resnet50", model_config={}, batch_size=1)._repr_html_()


def test_pandas_has_a_row_for_each_quantity(estimate: Estimate) -> None:
    pytest.importorskip("pandas")
    frame = estimate.to_pandas()
    assert frame.loc["step", "p50"] == estimate.step.p50
    assert frame.loc["memory", "unit"] == "bytes"
    assert frame.loc["cost", "p90"] == estimate.cost_usd.p90  # type: ignore[union-attr]
    parts = frame[frame.index.str.startswith("step: ")]["p50"]
    assert parts.sum() == pytest.approx(estimate.step.p50)


def test_without_pandas_the_error_names_it(estimate: Estimate, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(MissingExtraError, match="pip install pandas"):
        estimate.to_pandas()
    with pytest.raises(MissingExtraError, match="pip install pandas"):
        compare(Job("resnet50")).to_pandas()


def test_explain_says_what_takes_the_time(estimate: Estimate) -> None:
    text = estimate.explain()
    assert "backward" in text
    assert "of the kernel time is limited by" in text
    assert "Memory peaks at" in text
    assert "most of it is activations" in text
    small = predict_time("resnet50", batch_size=2, gpu="h100", precision="amp-bf16").explain()
    assert "The GPU waits for the host" in small


def test_a_comparison_is_a_table() -> None:
    jobs = [Job("resnet50", precision=precision, batch_size=64) for precision in ("fp32", "amp-bf16", "fp8")]
    table = compare([*jobs, Job("resnet50", gpu="v100", precision="bf16")])
    text = table._repr_html_()
    assert text.count("<tr") == 5
    assert "amp-bf16" in text
    pytest.importorskip("pandas")
    frame = table.to_pandas()
    assert len(frame) == 4
    assert list(frame["precision"]) == ["fp32", "amp-bf16", "fp8", "bf16"]
    assert frame["step_p50_s"].notna().sum() >= 2
    assert frame["error"].notna().sum() == len(frame) - frame["step_p50_s"].notna().sum()


def test_plot_draws_step_run_and_memory(estimate: Estimate, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    figure = estimate.plot(tmp_path / "estimate.png")
    assert (tmp_path / "estimate.png").stat().st_size > 5000
    step, run, memory = figure.axes
    scale = 1e3  # ms
    assert sum(bar.get_width() for bar in step.patches) == pytest.approx(estimate.step.p50 * scale)
    assert sum(bar.get_width() for bar in memory.patches) == pytest.approx(estimate.memory.peak_bytes / 2**30)
    assert len(run.patches) >= 2
    assert len(predict_time("resnet50", batch_size=8).plot().axes) == 2
    estimate.plot(tmp_path / "estimate.html")
    assert "resnet50" in (tmp_path / "estimate.html").read_text(encoding="utf-8")
    with pytest.raises(JobError, match=r"\.png"):
        estimate.plot(tmp_path / "estimate.gif")
