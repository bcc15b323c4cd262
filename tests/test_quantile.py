"""A chosen quantile beside P10, P50 and P90, and comparisons at the largest batch that fits."""

from __future__ import annotations

import json
import math
import re
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from precision_time import Job, predict_time
from precision_time.cli.main import main
from precision_time.comparison import compare, cross
from precision_time.errors import JobError
from precision_time.estimate.estimate import Estimate
from precision_time.estimate.interval import Interval
from precision_time.estimate.memory import Memory
from precision_time.estimate.quantile import at_quantile, label, peak_bytes, quantile_of
from precision_time.largest_batch import at_largest_batch, memory_of
from precision_time.plan import Goal, Space, plan, rank_layouts

Z95_OVER_Z90 = 1.6448536269514722 / 1.2815515655446004
"""Quantiles of the standard normal distribution, from a table."""


@pytest.fixture(scope="module")
def estimate() -> Estimate:
    return predict_time("resnet50", precision="amp-bf16", batch_size=64, epochs=1, price_per_gpu_hour=2.0)


def test_p95_of_a_log_normal_quantity() -> None:
    """Above the median log(t) is normal with P90 at 12 s of 10: P95 is 10 x 1.2^(1.645 / 1.282) = 12.64 s."""
    assert quantile_of(Interval(9.0, 10.0, 12.0), 0.95) == pytest.approx(10 * 1.2**Z95_OVER_Z90)
    assert quantile_of(Interval(9.0, 10.0, 12.0), 0.05) == pytest.approx(10 * 0.9**Z95_OVER_Z90)
    assert quantile_of(Interval(9.0, 10.0, 12.0), 0.05, least=8.9) == 8.9


def test_the_peak_of_memory_is_logistic_in_its_logarithm() -> None:
    """Log odds of 0.9 are log 9, so P90 is the peak x 9^scale; of 0.99 it is log 99."""
    memory = Memory({"weights": 1000}, 10_000, log_scale=0.05)
    assert peak_bytes(memory, 0.9) == round(1000 * 9**0.05) == memory.peak_interval[2]
    assert peak_bytes(memory, 0.99) == round(1000 * 99**0.05)
    assert peak_bytes(memory, 0.5) == 1000


def test_the_quantiles_of_the_intervals_are_theirs(estimate: Estimate) -> None:
    for probability, name in ((0.1, "p10"), (0.5, "p50"), (0.9, "p90")):
        at = estimate.at_quantile(probability)
        for seconds, interval in (
            (at.step_s, estimate.step), (at.epoch_s, estimate.epoch), (at.run_s, estimate.run),
            (at.cost_usd, estimate.cost_usd), (at.energy_j, estimate.energy_j),
        ):  # fmt: skip
            assert seconds == pytest.approx(getattr(interval, name))


@given(low=st.floats(0.01, 0.999), high=st.floats(0.01, 0.999))
def test_more_probability_is_never_less_time(estimate: Estimate, low: float, high: float) -> None:
    low, high = sorted((low, high))
    one, other = at_quantile(estimate, low), at_quantile(estimate, high)
    for name in ("step_s", "epoch_s", "run_s", "cost_usd", "energy_j", "peak_bytes"):
        assert getattr(one, name) <= getattr(other, name) * (1 + 1e-12)
    assert one.step_s >= estimate.floor_s


def test_a_quantity_that_is_not_there_has_no_quantile() -> None:
    at = predict_time("resnet50").at_quantile(0.8)
    assert at.run_s is None
    assert at.cost_usd is None
    assert at.step_s > 0


def test_text_json_notebook_and_rows_show_it(estimate: Estimate) -> None:
    shown = estimate.with_quantile(0.95)
    head, step = str(shown).splitlines()[2:4]
    assert head.split() == ["P50", "P10", "P90", "P95"]
    assert step.split()[-2:] == [f"{shown.at_quantile(0.95).step_s * 1e3:.1f}", "ms"]
    assert re.search(r"cost( +\$\d+\.\d\d){4}\n", str(shown))
    assert "peak P95" in str(shown)
    assert "P95" not in str(estimate)
    assert "quantile" not in estimate.to_dict()
    again = Estimate.from_dict(json.loads(json.dumps(shown.to_dict())))
    assert again.to_dict() == shown.to_dict()
    assert again.to_dict()["quantile"]["run_s"] == shown.at_quantile(0.95).run_s
    assert "<th>P95</th>" in shown._repr_html_()
    pytest.importorskip("pandas")
    assert shown.to_pandas().loc["run", "p95"] == shown.at_quantile(0.95).run_s


@pytest.mark.parametrize(
    ("given", "answer"),
    [
        (95, "for P95 give 0.95"),
        ("p99.9", "for P99.9 give 0.999"),
        (1.5, "for P1.5 give 0.015"),
        ("often", "from 0.01"),
    ],
)
def test_a_percentage_is_answered_with_its_share(estimate: Estimate, given: object, answer: str) -> None:
    with pytest.raises(JobError, match=re.escape(answer)):
        estimate.with_quantile(given)  # type: ignore[arg-type]


@pytest.mark.parametrize(("probability", "text"), [(0.9, "P90"), (0.995, "P99.5"), (0.333, "P33.3"), (0.01, "P1")])
def test_labels(probability: float, text: str) -> None:
    assert label(probability) == text


def test_a_comparison_has_columns_of_it() -> None:
    jobs = cross(Job("resnet50", gpus=8, run={"epochs": 1, "price_per_gpu_hour": 2.0}), precision=["fp32", "tf32"])
    result = compare(jobs).best().with_quantile(0.75)
    head = str(result).splitlines()[2]
    assert ["step P75" in head, "run P75" in head, "$/run P75" in head] == [True] * 3
    rows = result.to_dict()["rows"]
    assert [row["estimate"]["quantile"]["probability"] for row in rows] == [0.75, 0.75]
    assert result.baseline in result.rows
    assert "P75" not in str(compare(jobs))


def test_pictures_draw_it(estimate: Estimate, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    estimate.with_quantile(0.95).plot(tmp_path / "estimate.svg")
    compare([Job("bert-large", gpus=8)]).with_quantile(0.95).plot(tmp_path / "compare.svg")
    texts = [(tmp_path / name).read_text() for name in ("estimate.svg", "compare.svg")]
    assert all("diamonds: P95" in text for text in texts)
    assert re.search(r"[\d,]+ tokens/s, [\d.]+ TFLOP/s a GPU, MFU \d+%, 1\.00x", texts[1])
    estimate.plot(tmp_path / "estimate.svg")
    assert "diamonds" not in (tmp_path / "estimate.svg").read_text()


def test_layouts_have_it() -> None:
    job = Job("gpt2", gpus=4, precision="amp-bf16", batch_size=8)
    found = rank_layouts(job, global_batch=64).with_quantile(0.95)
    rows = found.to_dict()["layouts"]
    step = rows[0]["step"]
    assert rows[0]["step_at_quantile_s"] == pytest.approx(step["p50"] * (step["p90"] / step["p50"]) ** Z95_OVER_Z90)
    assert "P95" in found.text().splitlines()[2]


def test_a_plan_has_it() -> None:
    job = Job("resnet50", precision="amp-fp16", run={"epochs": 1, "dataset": "imagenet"}, batch_size=256)
    found = plan(job, Goal(), Space(providers=("aws",), gpus=(8,), gpu=("a100-80gb-sxm",)))
    assert "P90" in str(found)
    shown = found.with_quantile(0.99)
    chosen = shown.to_dict()["chosen"]
    assert chosen["quantile"]["finish_s"] == found.chosen.finish.quantile(0.99) > chosen["finish_s"]["p90"]
    assert "quantile" not in found.to_dict()["chosen"]
    assert "P99" in str(shown)
    assert "P90" not in str(shown)


# --- the largest batch that fits


def test_every_row_of_a_comparison_at_its_largest_batch() -> None:
    """By trying: the batch fits, and one more does not."""
    jobs = cross(Job("resnet50"), precision=["fp32", "amp-bf16"], gpu=["l4", "a100-40gb-sxm"])
    result = compare(jobs, prepare=at_largest_batch)
    batches = [row.job.batch_size for row in result.rows]
    assert len(set(batches)) == 4
    for row in result.rows:
        assert row.estimate is not None
        assert row.estimate.memory.fits
        assert not memory_of(row.job.replace(batch_size=(row.job.batch_size or 0) + 1)).fits


def test_the_largest_batch_at_a_global_batch_divides_it() -> None:
    job = Job("resnet50", gpu="l4", gpus=2, precision="fp32")
    alone = at_largest_batch(job).batch_size or 0
    found = at_largest_batch(job, 2 * 60 * 7)
    assert found.grad_accum * (found.batch_size or 0) == 60 * 7
    larger = [size for size in range((found.batch_size or 0) + 1, alone + 1) if 60 * 7 % size == 0]
    assert not any(memory_of(job.replace(batch_size=size, grad_accum=60 * 7 // size)).fits for size in larger)
    with pytest.raises(JobError, match="cannot be shared evenly by 2 data-parallel ranks"):
        at_largest_batch(job, 7)


def test_a_row_that_no_batch_fits_says_what_one_sample_needs() -> None:
    row = compare([Job("llama3-70b", gpu="l4")], prepare=at_largest_batch).rows[0]
    assert row.estimate is None
    assert re.match(
        r"no batch_size of llama3-70b fits on 1 x l4: 1 needs [\d,.]+ TiB of 24.0 GiB; take", row.error or ""
    )


def test_layouts_at_their_largest_batch() -> None:
    """Each layout and recomputation has one row, at the largest divisor of its share that fits."""
    job = Job("gpt2-large", gpu="l4", gpus=4, precision="amp-bf16")
    found = rank_layouts(job, global_batch=4 * 96, largest_batch=True)
    places = [(row.job.layout, row.job.recompute) for row in found.rows]
    assert len(places) == len(set(places))
    for row in found.rows[:5]:
        size, share = row.job.batch_size or 0, (row.job.batch_size or 0) * row.job.grad_accum
        larger = [each for each in range(size + 1, share + 1) if share % each == 0]
        tried = [row.job.replace(batch_size=each, grad_accum=share // each) for each in larger]
        assert not any(memory_of(each).fit_probability >= 0.5 for each in tried if each.layout_spec.pp == 1)
    steps = [row.step.p50 for row in found.rows if row.step]
    assert steps == sorted(steps)
    assert any(math.log2(row.job.batch_size or 1) % 1 for row in found.rows), "not only powers of two"


def test_the_flags(capsys: pytest.CaptureFixture[str]) -> None:
    assert main("compare resnet50 --gpu l4,t4 --precision fp32 --largest-batch --quantile 0.8".split()) == 0
    out = capsys.readouterr().out
    assert "step P80" in out
    assert "  batch  " in out
    assert main("compare resnet50 --batch-size 8 --largest-batch".split()) == 2
    assert "leave one of them out" in capsys.readouterr().err
    assert main("predict resnet50 --quantile 0.8 --json".split()) == 0
    assert json.loads(capsys.readouterr().out)["quantile"]["probability"] == 0.8
    assert main("predict resnet50 --quantile 80".split()) == 2
    assert "for P80 give 0.8" in capsys.readouterr().err
    assert main("predict resnet50 --predictor boosting --quantile 0.8".split()) == 2
    assert "--quantile needs the distribution of predictor simulator" in capsys.readouterr().err
    assert main("layouts gpt2 --gpus 2 --largest-batch --quantile 0.8 --top 3".split()) == 0
    assert "P80" in capsys.readouterr().out


def test_the_picture_of_predict(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib")
    path = tmp_path / "estimate.html"
    assert main(["predict", "resnet50", "--quantile", "0.8", "--epochs", "1", "--plot", str(path)]) == 0
    assert "diamonds: P80" in path.read_text()
    assert "picture written" in capsys.readouterr().err
    assert main(["predict", "resnet50", "--plot", str(tmp_path / "estimate.txt")]) == 2
    assert "no picture this can write" in capsys.readouterr().err
    assert main(["predict", "resnet50", "--predictor", "boosting", "--plot", str(path)]) == 2
    assert "--plot needs the breakdown" in capsys.readouterr().err


def test_replaced_estimates_keep_the_quantile(estimate: Estimate) -> None:
    assert replace(estimate.with_quantile(0.9), samples_per_s=1.0).quantile == 0.9
