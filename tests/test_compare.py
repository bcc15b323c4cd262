"""Comparisons: the table that adds up, speed-ups, explanations in words, the picture."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fakes import FakeEstimate, FakeInterval, FakeMemory, fake
from precision_time.cli.main import main
from precision_time.comparison import Comparison, Row, compare, cross, crossed
from precision_time.errors import DataError, JobError, MissingPeakError
from precision_time.estimate.text import interval_text
from precision_time.global_batch import at_global_batch
from precision_time.job import Job
from precision_time.units import rounded_parts

BASE = Job("resnet50", gpu="v100-32gb-sxm", gpus=8, batch_size=100)


def comparison(*estimates: FakeEstimate) -> Comparison:
    return Comparison(tuple(Row(estimate.job, estimate) for estimate in estimates))


def amp(**terms: float) -> FakeEstimate:
    return fake(BASE.replace(precision="amp-fp16"), **terms)


def test_cross_varies_the_last_axis_fastest_and_drops_repeats() -> None:
    jobs = cross(BASE, gpus=["1", "8"], precision=["fp32", "mixed", "amp-fp16"])
    assert [(job.gpus, job.precision) for job in jobs] == [
        (1, "fp32"),
        (1, "amp-fp16"),
        (8, "fp32"),
        (8, "amp-fp16"),
    ]


def test_more_jobs_than_anyone_compares_are_refused_before_they_are_made() -> None:
    """360,000 jobs took more than a minute and 760 MB before the first was predicted."""
    with pytest.raises(
        JobError,
        match=r"^1,000,000 gpus x 4 precision make 4,000,000 jobs; give at most 20,000 at once, by fewer values",
    ):
        cross(BASE, gpus=range(1, 1_000_001), precision=["fp32", "tf32", "bf16", "amp-bf16"])
    several = [BASE, BASE.replace(model="gpt2")]
    with pytest.raises(JobError, match=r"^2 models x 20,000 batch_size make 40,000 jobs"):
        crossed(several, {"batch_size": range(20_000)})


def test_a_job_that_fails_keeps_its_row() -> None:
    seen = []

    def predict(job: Job) -> FakeEstimate:
        if job.precision == "bf16":
            raise MissingPeakError("v100 has no bf16 peak; use amp-fp16.")
        return fake(job)

    result = compare(
        cross(BASE, precision=["bf16", "fp32"]),
        predict,
        progress=lambda done, total: seen.append((done, total)),
    )
    assert seen == [(0, 2), (1, 2), (2, 2)]
    assert [row.estimate is None for row in result.rows] == [True, False]
    assert "no estimate" in str(result)
    assert "bf16: no estimate: v100 has no bf16 peak; use amp-fp16." in result.explanations()
    data = json.loads(json.dumps(result.to_dict()))
    assert data["baseline"] == 1
    assert data["rows"][0]["error"].startswith("v100")


def test_speed_up_is_over_fp32_wherever_it_stands() -> None:
    result = comparison(amp(forward=0.0, backward=0.03), fake(BASE))
    assert [result.speed_up(row) for row in result.rows] == [pytest.approx(2.0), pytest.approx(1.0)]


def test_no_full_precision_row() -> None:
    result = comparison(amp(), fake(BASE.replace(precision="bf16")))
    assert result.baseline is result.rows[0]
    assert result.explanations() == []


def test_empty() -> None:
    assert str(Comparison(())) == "nothing to compare"
    assert Comparison(()).to_dict()["baseline"] is None


def test_host_bound_and_fp32_gradients_explain_why_it_is_not_faster() -> None:
    slow = amp(forward=0.015, backward=0.025, host_gaps=0.040, communication_exposed=0.010)
    (text,) = comparison(fake(BASE), slow).explanations()
    assert text.startswith("amp-fp16: hardly faster than fp32, 1.00x its samples per second")
    assert "closer than a prediction can tell apart" in text
    assert "waits for the host during 40% of the step" in text
    assert "under autocast the gradients stay float32, so their bytes do not halve" in text
    assert text.index("host") < text.index("communication")


def test_slower_says_so_with_casts_and_slower_kernels() -> None:
    slow = amp(forward=0.060, casts=0.020, loss_scaling=0.010)
    (text,) = comparison(fake(BASE), slow).explanations()
    assert text.startswith("amp-fp16: slower than fp32, 0.62x its samples per second, because")
    assert "casts to and from float16 cost 12% of the step; fp32 has none" in text
    assert "its forward kernels take 2.00x as long as in fp32" in text
    assert "unscaling" in text


def test_memory_bound_and_compute_bound_kernels() -> None:
    (text,) = comparison(fake(BASE), replace(amp(), bound_shares={"memory": 0.8, "launch": 0.2})).explanations()
    assert "80% of the kernel time is bound by memory traffic" in text
    assert "20% of the kernel time goes to kernels too small" in text
    (text,) = comparison(fake(BASE), replace(amp(), bound_shares={"compute": 0.9})).explanations()
    assert "hardly faster at these operators in fp16 than in fp32" in text


def test_half_gradients_are_not_said_to_stay_fp32() -> None:
    half = fake(BASE.replace(precision="fp16-master"), communication_exposed=0.02)
    (text,) = comparison(fake(BASE), half).explanations()
    assert "although gradients travel in float16" in text
    assert "do not halve" not in text


def test_faster_names_what_holds_it_back() -> None:
    fast = amp(forward=0.010, backward=0.015, optimizer=0.010, communication_exposed=0.0)
    (text,) = comparison(fake(BASE), fast).explanations()
    assert text.startswith("amp-fp16: 2.86x as fast as fp32; what holds it back: the optimizer takes 29%")
    assert "works on float32 weights and moments in both" in text


def test_each_row_is_explained_against_its_own_gpus_and_batch() -> None:
    jobs = cross(BASE, gpus=[1, 8], batch_size=[50, 100], precision=["fp32", "amp-fp16"])
    texts = comparison(*(fake(job) for job in jobs)).explanations()
    assert len(texts) == 4
    assert texts[0].startswith("amp-fp16 on 1 x v100-32gb-sxm batch 50: hardly faster than fp32,")
    mixed = comparison(fake(BASE), fake(BASE.replace(precision="bf16", batch_size=200)))
    assert "as fast as fp32 at batch 100" in mixed.explanations()[0]


def test_memory_that_does_not_fit_is_said_with_the_excess() -> None:
    result = comparison(replace(fake(BASE), memory=FakeMemory(50 * 2**30)))
    assert result.explanations() == [
        "fp32: does not fit in memory: it needs 50.0 GiB, 10.0 GiB more than the 40.0 GiB there are."
    ]
    assert "50.0/40 GiB NO" in str(result)


def test_the_table_adds_up_as_printed() -> None:
    text = str(comparison(fake(BASE, forward=0.0333333, backward=0.0666666, casts=0.0000333)))
    line = text.splitlines()[-1]
    numbers = [float(n) for n in re.findall(r"[\d.]+", line.removeprefix("fp32"))]
    assert sum(numbers[:7]) == pytest.approx(numbers[7], abs=1e-9)


def test_a_gpu_that_no_cloud_has_keeps_its_row_without_a_cost(capsys: pytest.CaptureFixture[str]) -> None:
    assert main("compare resnet50 --gpu a100,mi300x --precision amp-bf16 --price any --epochs 1".split()) == 0
    out, err = capsys.readouterr()
    assert "no estimate" not in out
    assert re.search(r"1 x mi300x.* -\n", out)
    assert err.count("no price is known of mi300x") == 1
    assert main("compare resnet50 --gpu a100,mi300x --precision amp-bf16 --price aws --epochs 1".split()) == 0
    assert "no estimate" in capsys.readouterr().out  # a cloud that is named


def test_cost_per_epoch() -> None:
    priced = replace(fake(BASE.replace(price_per_gpu_hour=2.0)), epoch=FakeInterval(1700, 1800, 1900))
    assert re.search(r"\$/epoch.*8\.00", str(comparison(priced)), re.DOTALL)
    of_run = replace(
        fake(BASE),
        epoch=FakeInterval(9, 10, 11),
        run=FakeInterval(90, 100, 110),
        cost_usd=FakeInterval(45, 50, 55),
    )
    assert re.search(r"\$/epoch.*5\.00", str(comparison(of_run)), re.DOTALL)
    assert "$/epoch" not in str(comparison(fake(BASE)))


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=9), st.integers(0, 3))
def test_rounded_parts_sum_to_the_rounded_total(parts: list[float], digits: int) -> None:
    rounded = rounded_parts(parts, digits)
    assert sum(rounded) == pytest.approx(round(sum(parts), digits), abs=10.0**-digits / 2 + 1e-6)
    assert all(abs(a - b) <= 10.0**-digits + 1e-6 for a, b in zip(parts, rounded, strict=True))


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.1049, "105 ms (94-126)"),
        (1.5, "1.50 s (1.35-1.80)"),
        (2e-5, "20.0 us"),
        (7200, "2.00 h"),
        (0.0, "0 us (0-0)"),
    ],
)
def test_human_time(seconds: float, text: str) -> None:
    interval = FakeInterval(0.9 * seconds, seconds, 1.2 * seconds)
    assert interval_text(interval).startswith(text)


def test_picture(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    failed = Row(BASE.replace(precision="fp8"), None, "no <fp8> here")
    result = comparison(fake(BASE), amp(forward=0.01), fake(BASE.replace(precision="bf16", batch_size=200)))
    result = Comparison((*result.rows, failed))
    result.plot(tmp_path / "out.png")
    assert (tmp_path / "out.png").read_bytes().startswith(b"\x89PNG")
    result.plot(tmp_path / "out.html")
    page = (tmp_path / "out.html").read_text()
    assert "<svg" in page
    assert "no &lt;fp8&gt; here" in page
    assert not re.search(r"""(?:src|href)=["']https?:""", page)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["out.html", "out.png"]


def test_picture_errors(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    with pytest.raises(JobError, match=r"end it in \.png"):
        comparison(fake(BASE)).plot(tmp_path / "out.gif")
    with pytest.raises(DataError, match="there is no folder"):
        comparison(fake(BASE)).plot(tmp_path / "none" / "out.png")
    assert not list(tmp_path.iterdir())


# --- the best rows, equal batches, many rows


def test_best_rows_first_with_the_same_baseline() -> None:
    jobs = cross(Job("resnet50", batch_size=64), gpu=["v100-16gb-sxm", "a100-80gb-sxm"], precision=["fp32", "amp-fp16"])
    rows = compare(jobs)
    best = rows.best(2)
    speeds = sorted((row.estimate.samples_per_s for row in rows.rows if row.estimate), reverse=True)
    assert [row.estimate.samples_per_s for row in best.rows if row.estimate] == speeds[:2]
    assert best.baseline is rows.baseline
    assert best.speed_up(best.rows[0]) == rows.speed_up(best.rows[0])
    by_memory = [row.estimate.memory.peak_bytes for row in rows.best(by="memory").rows if row.estimate]
    assert by_memory == sorted(by_memory)
    with pytest.raises(JobError, match="nearest: cost"):
        rows.best(by="costs")


def test_what_does_not_fit_or_has_no_price_comes_last() -> None:
    jobs = cross(Job("resnet50", gpu="v100-16gb-sxm"), batch_size=[64, 4096], precision=["fp32", "amp-bf16"])
    priced = [jobs[0].replace(price_per_gpu_hour=2.0), *jobs[1:]]
    rows = compare(priced).best(by="cost")
    assert rows.rows[0].job == priced[0]
    assert all(row.estimate is None or not row.estimate.memory.fits for row in rows.rows[1:])


def test_equal_samples_in_a_step() -> None:
    for gpus, layout in ((1, "dp"), (8, "dp"), (8, "pp=2")):
        job = Job("gpt2", batch_size=24, gpus=gpus, layout=layout)
        made = at_global_batch(job, 96)
        assert made.batch_size is not None
        assert made.batch_size * made.grad_accum * made.layout_spec.dp == 96
        assert made.batch_size <= 24
    with pytest.raises(JobError, match="for example 96"):
        at_global_batch(Job("gpt2", gpus=8), 100)


def test_many_rows_are_explained_in_groups() -> None:
    jobs = cross(
        Job("resnet50", gpu="v100-16gb-sxm"),
        gpus=[1, 2, 4, 8],
        batch_size=[64, 2048],
        precision=["fp32", "amp-fp16", "amp-bf16"],
    )
    sentences = compare(jobs).explanations()
    assert sum("do not fit in memory; the nearest" in each for each in sentences) == 1
    (unknown,) = [each for each in sentences if "no estimate" in each]
    assert "and 5 more: no estimate: v100-16gb-sxm has no bf16 peak" in unknown
    assert len(sentences) <= 4 + 1 + 1 + 4 + 1  # fp32 is not what PyTorch does by default


def test_the_flags(capsys: pytest.CaptureFixture[str]) -> None:
    asked = "compare resnet50 --gpus 1,8 --precision fp32,amp-fp16 --global-batch-size 512 --best 2 --sort step --json"
    assert main(asked.split()) == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert len(rows) == 2
    assert all(row["job"]["batch_size"] * row["job"].get("grad_accum", 1) * row["job"]["gpus"] == 512 for row in rows)
    for wrong, says in (("--best none", "--best"), ("--sort fastest", "--sort"), ("--global-batch-size 0", "global")):
        assert main(["compare", "resnet50", *wrong.split()]) == 2
        assert says in capsys.readouterr().err


RECOMPUTED = Job("gpt2", gpus=8, layout="fsdp", batch_size=4, precision="bf16-master", recompute="full")


def test_text_frame_and_picture_have_what_people_compare(tmp_path: Path) -> None:
    """Tokens per second, TFLOP/s of a GPU, MFU and, where something is computed again, HFU."""
    result = compare([RECOMPUTED, RECOMPUTED.replace(recompute="none")])
    heads = next(line for line in str(result).splitlines() if "tokens/s" in line)
    assert [heads.index(each) for each in ("tokens/s", "TFLOP/s/GPU", "MFU", "HFU")] == sorted(
        heads.index(each) for each in ("tokens/s", "TFLOP/s/GPU", "MFU", "HFU")
    )
    for row in result.rows:
        assert row.estimate is not None
        assert row.estimate.utilisation is not None
        assert f"{row.estimate.utilisation.tflops_per_gpu:,.1f}" in str(result)
    assert "HFU" not in str(compare([RECOMPUTED.replace(recompute="none")]))
    frame = result.to_pandas()
    assert frame["hfu"][0] > frame["mfu"][0]
    assert frame["hfu"][1] == frame["mfu"][1]
    pytest.importorskip("matplotlib")
    result.plot(tmp_path / "rows.svg")
    assert re.search(r"tokens/s, [\d.]+ TFLOP/s a GPU, MFU [\d.]+%, HFU [\d.]+%", (tmp_path / "rows.svg").read_text())
    assert result.rows[0].estimate is not None
    result.rows[0].estimate.plot(tmp_path / "row.svg")
    drawn = (tmp_path / "row.svg").read_text()
    assert re.search(r"tokens per second, [\d.]+ TFLOP/s a GPU, MFU [\d.]+%, HFU [\d.]+%", drawn)
    assert "batch 4" in drawn


def test_the_baseline_has_its_whole_label() -> None:
    jobs = cross(Job("resnet50"), precision=["fp32", "tf32"], batch_size=[64, 128])
    assert "over fp32 on 1 x a100-80gb-sxm, batch 64\n" in str(compare(jobs))
    models = [Job("resnet18", gpus=2), Job("resnet50", gpus=4, layout="zero1")]
    assert "over resnet18 in fp32 on 2 x a100-80gb-sxm, dp\n" in str(compare(models))
    best = compare(jobs).best(1)
    assert "over fp32 on 1 x a100-80gb-sxm, batch 64\n" in str(best), "also where its row is not among the best"


def test_precisions_that_are_taken_for_others_are_explained() -> None:
    text = "\n".join(compare(cross(Job("resnet50"), precision=["torch-fp32", "fp16", "amp-fp16"])).explanations())
    assert "torch-fp32, PyTorch's default: convolutions and recurrent layers in tf32, products in fp32." in text
    assert "fp16: pure half, of weights, gradients and optimizer states too" in text
    assert text.count("pure half") == 1


def test_its_repr_is_one_line() -> None:
    jobs = cross(Job("resnet50", gpu="v100"), precision=["fp32", "amp-bf16"])
    assert repr(compare(jobs)) == "<Comparison resnet50 on 1 x v100, batch 256 per GPU: 2 rows, 1 without an estimate>"
