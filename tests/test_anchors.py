"""Anchors: the arithmetic by hand, what they may not see, how they enter an estimate, and that the base is current."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise, product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from precision_time import predict, prediction
from precision_time.anchoring import Anchoring
from precision_time.anchors.anchor import OWN, Anchor, JobDescriptor, environment_of, shares_of
from precision_time.anchors.base import published, read_base, row_of_anchor, shipped_covariance
from precision_time.anchors.covariance import EFFECTS, FADING, Covariance, JobColumns, self_variance, step_covariance
from precision_time.anchors.posterior import Anchors
from precision_time.cli.main import main
from precision_time.errors import DataError, JobError
from precision_time.estimate.correction import NONE, Correction
from precision_time.estimate.estimate import Estimate
from precision_time.evaluation import evaluate
from precision_time.fit.anchors import LEFT_OUT, ONE, fit_covariance, judge_anchored, judge_one
from precision_time.fit.folds import HeldOut
from precision_time.job import Job
from precision_time.measurements.row import Row
from precision_time.measurements.table import read_table
from precision_time.timing.parameters import read_data
from precision_time.timing.scaled import Factors

TABLE = Path(__file__).parent.parent / "data" / "published" / "measurements.csv"
NO_ANCHORS = Anchoring(use=False)
DESCRIPTOR = JobDescriptor(
    family="bert", model="bert", gpu="g", arch="a", maths="fp32", precision="fp32", framework="pytorch",
    setting="nchw", environment="lab", batch_size=8, gpus=1, shares=(1.0, 0.0, 0.0), key="one",
)  # fmt: skip
RESNET = Job("resnet50", gpu="a100-80gb-sxm", gpus=8, precision="amp-fp16", batch_size=256, memory_format="nhwc")


def covariance(noise: float = 0.02, **effects: float) -> Covariance:
    named = {name.replace(" ", "_").replace(",", ""): name for name in EFFECTS}
    effects_by_name = {named[name]: value for name, value in effects.items()}
    return Covariance({effect: effects_by_name.get(effect, 0.0) for effect in EFFECTS}, dict.fromkeys("ABC", noise))


def anchor(ratio: float, job: JobDescriptor = DESCRIPTOR, name: str = "x") -> Anchor:
    return Anchor(job, name, "lab@1", "A", ratio, 1.0)


def at_once(factors: Factors) -> float:
    """Seconds of a step of kernels alone."""
    return factors.kernels


def held_out(known: Anchor) -> HeldOut:
    """A row that its anchor tells of; its step is kernels alone."""
    job = known.job
    row = Row(
        known.id, known.source, 1, known.trust, job.framework, job.model, job.family, job.gpu, job.precision, job.gpus,
        known.measured_s, None, "", (), (), "",
    )  # fmt: skip

    def scaled(factors: Factors) -> dict[str, float]:
        return {"forward": known.predicted_s * factors.kernels}

    return HeldOut(row, job.family, known.predicted_s, 0.0, {}, True, job, scaled)


# --- the arithmetic


def test_one_anchor_by_hand() -> None:
    """Shrunk by effect^2 / (effect^2 + noise^2): 0.1^2 / (0.1^2 + 0.05^2) = 0.8."""
    known = Anchors([anchor(1.2)], covariance(0.05, family_maths=0.1))
    correction = known.correction(replace(DESCRIPTOR, key="two"), at_once)
    assert correction.factors.kernels == pytest.approx(1.2**0.8)
    assert correction.factors.host == 1.0
    assert correction.log_spread == pytest.approx(math.hypot(math.sqrt(0.01 * 0.2), 0.05))
    assert correction.informed == pytest.approx(0.8)
    assert correction.nearest[0].likeness == pytest.approx(0.01 / math.sqrt(0.01 * 0.0125), abs=1e-3)


def test_a_factor_acts_on_what_it_moved_in_the_anchor() -> None:
    """Half of the anchor's step is kernels, so a step 10 % longer says 2 x as much of kernels, before shrinkage."""
    half = replace(DESCRIPTOR, shares=(0.5, 0.5, 0.0))
    known = Anchors([anchor(1.1, half)], covariance(1e-6, family_maths=0.1))
    correction = known.correction(replace(DESCRIPTOR, key="two"), at_once)
    assert math.log(correction.factors.kernels) == pytest.approx(2 * math.log(1.1), rel=1e-6)
    both = Anchors([anchor(1.1, half)], covariance(1e-6, family_maths=0.1, host=0.1)).correction(half, at_once)
    assert both.factors.kernels == pytest.approx(both.factors.host)
    assert math.log(both.factors.host) == pytest.approx(math.log(1.1))


def test_low_trust_rows_of_another_framework_do_not_correct() -> None:
    """TensorFlow's kernels, measured loosely, move a TensorFlow job and no PyTorch job; sound ones move both."""
    loose = replace(anchor(2.0, replace(DESCRIPTOR, framework="tensorflow1")), trust="C")
    for trust, framework, moves in (("C", "tensorflow1", True), ("C", "pytorch", False), ("A", "pytorch", True)):
        known = Anchors([replace(loose, trust=trust)], covariance(0.05, family_maths=0.1))
        correction = known.correction(replace(DESCRIPTOR, key="two", framework=framework), at_once)
        assert (correction.factors.kernels > 1.1) == moves


def columns(jobs: Sequence[JobDescriptor], seconds: Sequence[float] | None = None) -> JobColumns:
    return JobColumns(jobs, seconds or [1.0] * len(jobs))


def test_errors_agree_less_where_steps_or_counts_differ() -> None:
    jobs = columns([DESCRIPTOR, DESCRIPTOR, replace(DESCRIPTOR, gpus=16)], [1.0, 4.0, 1.0])
    length, gpus = (step_covariance(covariance(**{name: 1.0}), jobs, jobs)[0] for name in ("length", "gpus"))
    assert length == pytest.approx([1.0, math.exp(-2.0 / FADING), 1.0])
    assert gpus == pytest.approx([1.0, 1.0, math.exp(-4.0 / FADING)])


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.floats(0.01, 10.0), st.floats(0.6, 1.6)), min_size=1, max_size=12),
    st.tuples(st.floats(0.0, 1.0), st.floats(0.0, 1.0)).filter(lambda shares: sum(shares) <= 1.0),
)
def test_a_longer_step_is_longer_once_corrected(rows: list[tuple[float, float]], shares: tuple[float, float]) -> None:
    """Whatever the anchors say: all factors are the same, but for one that changes slowly with the step's length."""
    job = replace(DESCRIPTOR, shares=(*shares, 1.0 - sum(shares)))
    anchors = [Anchor(job, "x", "lab@1", "A", seconds, seconds / ratio) for seconds, ratio in rows]
    known, lengths = Anchors(anchors, shipped_covariance()), np.geomspace(0.001, 100.0, 60)
    found = [known.correction(job, lambda f, s=s: s * f.kernels).factors for s in lengths]  # type: ignore[misc]
    ratios = {(round(f.host / f.kernels, 9), round(f.communication / f.kernels, 9)) for f in found}
    assert len(ratios) == 1
    assert found[-1] == found[-2], "longer than any anchor"
    steps = [seconds * f.kernels for seconds, f in zip(lengths, found, strict=True)]
    assert all(after > before for before, after in pairwise(steps))


def test_a_job_shares_everything_with_itself() -> None:
    job, known = replace(DESCRIPTOR, shares=(0.6, 0.3, 0.1)), shipped_covariance()
    whole = step_covariance(known, columns([job]), columns([job]))[0, 0]
    assert self_variance(known, job.shares) == pytest.approx(whole)


def test_corrections_are_the_same_with_what_alike_jobs_share_remembered() -> None:
    """Every field that a covariance reads keeps jobs apart; the rest of a job follows it anew."""
    fields = {
        "model": "bert-large", "arch": "b", "maths": "half", "framework": "other", "setting": "nhwc",
        "environment": "office", "gpus": 64, "shares": (0.5, 0.3, 0.2), "batch_size": 99,
    }  # fmt: skip
    jobs = [DESCRIPTOR, *(replace(DESCRIPTOR, **{name: value}) for name, value in fields.items())]  # type: ignore[arg-type]
    known = [Anchor(job, "x", "lab@1", "A", 1.0 + 0.1 * i, 1.0) for i, job in enumerate(jobs)]
    kept, anew = (Anchors(known, shipped_covariance(), kept=kept) for kept in (True, False))
    for _ in range(2):
        for job, seconds in product(jobs, (0.1, 1.0, 30.0)):
            found = [each.correction(job, lambda f, s=seconds: s * f.kernels) for each in (kept, anew)]  # type: ignore[misc]
            assert found[0] == found[1]
    assert len({anew.correction(job, at_once).factors for job in jobs[:7]}) == 7


def test_others_say_nothing() -> None:
    known = Anchors([anchor(2.0)], covariance(0.02, family_maths=0.1))
    assert known.correction(replace(DESCRIPTOR, family="resnet"), at_once) == NONE
    assert known.correction(DESCRIPTOR, at_once, without=("key",)) == NONE
    assert known.correction(replace(DESCRIPTOR, maths="fp16"), at_once).factors.kernels == 1.0


@settings(max_examples=40, deadline=None)
@given(st.lists(st.floats(0.3, 3.0), min_size=1, max_size=6), st.integers(1, 64), st.sampled_from(["fp32", "fp16"]))
def test_more_anchors_never_make_less_sure(ratios: list[float], batch: int, maths: str) -> None:
    shipped = shipped_covariance()  # without what agrees and yet corrects nothing, or not all
    cov = replace(shipped, effects={**shipped.effects, "gpus": 0.0, "length": 0.0})
    jobs = [
        replace(DESCRIPTOR, key=f"{i}", batch_size=1 + i * batch, environment=f"{i % 2}") for i in range(len(ratios))
    ]
    anchors = [anchor(ratio, job, job.key) for ratio, job in zip(ratios, jobs, strict=True)]
    target = replace(DESCRIPTOR, key="target", maths=maths, environment=OWN)
    numbers = range(1, len(anchors) + 1)
    spreads = [Anchors(anchors[:n], cov).correction(target, at_once).log_spread or 9.0 for n in numbers]
    assert all(b <= a + 1e-9 for a, b in zip([9.0, *spreads], spreads, strict=False))
    last = Anchors(anchors, cov).correction(target, at_once)
    assert 0.0 <= last.informed <= 1.0
    limit = max(abs(math.log(r)) for r in ratios) * len(ratios)
    assert all(abs(math.log(f)) <= limit for f in last.factors)


def test_the_covariance_is_found_again_in_what_was_drawn_from_it() -> None:
    true = covariance(0.02, model_framework=0.2, family_maths=0.1)
    draw = np.random.default_rng(1)
    anchors = []
    for family in range(40):
        jobs = [
            replace(
                DESCRIPTOR, family=f"{family}", model=f"{family} {m}", maths=p, batch_size=b,
                key=f"{family} {m} {p} {b}",
            )
            for m in range(3) for p in ("fp32", "fp16") for b in (1, 8)
        ]  # fmt: skip
        block = step_covariance(true, columns(jobs), columns(jobs)) + 0.02**2 * np.eye(len(jobs))
        logs = draw.multivariate_normal(np.zeros(len(jobs)), block)
        anchors += [anchor(math.exp(log), job) for log, job in zip(logs, jobs, strict=True)]
    fitted = fit_covariance(anchors)
    assert fitted.effects["model, framework"] == pytest.approx(0.2, rel=0.25)
    # with one architecture and framework these effects cannot be told apart, their sum can
    same = ("family, maths", "family, architecture, maths", "family, framework, maths")
    maths = math.hypot(*(fitted.effects[effect] for effect in same))
    assert maths == pytest.approx(0.1, rel=0.25)
    assert fitted.noise["A"] == pytest.approx(0.02, rel=0.3)


@pytest.mark.parametrize("rule", LEFT_OUT)
def test_what_is_left_out_moves_nothing(rule: str) -> None:
    """Whatever was measured for the jobs that are left out, the judged row's prediction is the same."""
    without = LEFT_OUT[rule]
    anchors = [a for a in published() if a.job.family == "unet"]
    judged = anchors[0]
    agreeing = [a for a in anchors if all(getattr(a.job, n) == getattr(judged.job, n) for n in without)]
    lied = [replace(a, measured_s=3 * a.measured_s) if a in agreeing else a for a in anchors]
    known = {"unet": shipped_covariance()}
    usual = [0.2] * len(anchors)
    before, after = (
        {row.held_out.row.id: row for row in judge_anchored(list(map(held_out, s)), usual, known, without)}
        for s in (anchors, lied)
    )
    assert after[judged.id].seconds == before[judged.id].seconds
    assert after[judged.id].spread == before[judged.id].spread


def test_one_row_corrects_what_differs_from_it_in_one_way_by_hand() -> None:
    """Three rows of one model on one GPU, 30 % slow in fp32 and right in fp16; another GPU never speaks."""
    cov = covariance(0.01, model_framework=0.0, family_maths=0.5)
    half, elsewhere = (
        replace(DESCRIPTOR, key="c", maths="half", precision="amp-fp16"),
        replace(DESCRIPTOR, key="d", gpu="another"),
    )
    jobs = [
        replace(DESCRIPTOR, key="a"),
        replace(DESCRIPTOR, key="b", batch_size=DESCRIPTOR.batch_size * 2),
        half,
        elsewhere,
    ]
    anchors = [anchor(ratio, job, job.key) for ratio, job in zip((1.3, 1.3, 1.0, 2.0), jobs, strict=True)]
    known, usual = {DESCRIPTOR.family: cov}, [0.2] * 4
    rows = list(map(held_out, anchors))
    same = judge_one(rows, usual, known, ONE["another size, batch or count"])
    assert len(same) == 2, "c differs in precision and d in its GPU"
    assert all(mean < 0.01 and abs(row.log_error) < 0.01 for mean, row in same)
    other = judge_one(rows, usual, known, ONE["another precision"])
    assert [round(mean, 2) for mean, _ in other] == [0.23, 0.23, 0.0], "nothing is shared, so nothing moves"
    assert all(row.spread < 0.2 for _, row in same)


def test_a_repository_is_one_environment() -> None:
    assert environment_of("NVIDIA/X@729963d:README.md#L8") == environment_of("NVIDIA/X@0a:other.md") == "NVIDIA/X"
    assert shares_of({"forward": 1.0, "backward": 2.0, "host_gaps": 1.0}) == (0.75, 0.25, 0.0)


# --- in an estimate


def test_a_published_job_comes_out_near_its_measurement_and_says_why() -> None:
    published_as = RESNET.replace(optimizer_impl="torch1")
    bare, anchored = predict(published_as.replace(anchors="none")), predict(published_as)
    nearest = next(use for use in anchored.anchors.nearest if "8x-amp-fp16-b256" in use.id)
    assert bare.anchors == NONE
    assert nearest.likeness > 0.6
    assert abs(math.log(anchored.step.p50 / nearest.measured_s)) < 0.05  # other counts and batches speak too
    assert anchored.step.p90 / anchored.step.p10 < bare.step.p90 / bare.step.p10
    assert anchored.sources["measured"] > 0.5 > bare.sources["measured"]
    assert sum(anchored.sources.values()) == pytest.approx(1.0)
    assert sum(anchored.breakdown.values()) == pytest.approx(anchored.step.p50)
    assert nearest.id in str(anchored)
    assert "DeepLearningExamples" in str(anchored)
    assert Estimate.from_dict(json.loads(json.dumps(anchored.to_dict()))).anchors == anchored.anchors


def test_an_unknown_family_is_left_alone() -> None:
    job = Job("gpt2", precision="bf16")
    assert predict(job) == predict(job, anchoring=NO_ANCHORS)


def test_one_measured_step_of_the_user() -> None:
    """40 % slower than said in fp32 alone: the other precision follows part of the way, the same job nearly all."""
    job = Job("gpt2", gpu="h100-80gb-sxm", precision="fp32", batch_size=4)
    bare = predict(job).step.p50
    line = f"precision=fp32,batch_size=4,step_time_s={1.4 * bare:.6g}"
    same = predict(job.replace(anchors=line))
    assert same.step.p50 == pytest.approx(1.4 * bare, rel=0.04)
    half = job.replace(precision="amp-bf16")
    follows = predict(half.replace(anchors=[line])).step.p50 / predict(half).step.p50
    assert 1.02 < follows < 1.35
    assert same.step.p90 / same.step.p10 < predict(job).step.p90 / predict(job).step.p10
    assert "corrected by 1 measured job of this family" in str(same)


def test_no_anchor_pulls_a_step_below_its_floor() -> None:
    job = Job("gpt2", gpu="h100-80gb-sxm", precision="bf16", batch_size=4)
    estimate = predict(job.replace(anchors="step_time_s=0.000001"))
    assert estimate.step.p50 >= estimate.floor_s * (1 - 1e-9)
    assert sum(estimate.breakdown.values()) == pytest.approx(estimate.step.p50)


def test_a_file_of_measured_jobs(tmp_path: Path) -> None:
    path, heads = tmp_path / "mine.csv", "id,model,gpu,precision,batch_size,step_time_s"
    path.write_text(f"{heads}\nrun-1,gpt2,h100-80gb-sxm,bf16,4,0.5\n", encoding="utf-8")
    job = Job("gpt2", gpu="h100-80gb-sxm", precision="bf16", batch_size=4, anchors=str(path))
    estimate = predict(job)
    assert [use.id for use in estimate.anchors.nearest] == ["run-1"]
    assert estimate.step.p50 == pytest.approx(0.5, rel=0.15)
    path.write_text(f"{heads}\nrun-1,bert-large,h100-80gb-sxm,bf16,4,0.5\n", encoding="utf-8")
    other = predict(job)
    assert other.step == predict(job.replace(anchors="none")).step
    assert "no given anchor is of this model's family" in str(other)
    path.write_text(f"{heads}\nrun-1,gpt2,h100-80gb-sxm,fp99,4,0.5\n", encoding="utf-8")
    with pytest.raises(DataError, match=r"no row of .* can be used: precision 'fp99'"):
        predict(job)
    with pytest.raises(DataError, match="cannot be read"):
        predict(job.replace(anchors=str(tmp_path / "none.csv")))


def test_the_field_of_a_job() -> None:
    job = Job("resnet50", anchors=["none", {"gpus": 1, "step_time_s": 0.3}])
    assert job.anchors == ("none", "gpus=1,step_time_s=0.3")
    assert Job.from_dict(job.to_dict()) == job
    assert Job("resnet50").to_dict().get("anchors") is None
    for bad, message in (
        ("nothing", "anchors 'nothing' is unknown; give published, none, a file"),
        ("gpuss=1,step_time_s=1", "unknown column 'gpuss'; nearest: gpus"),
        ("gpus=1", "step_time_s is missing"),
        ("step_time_s=-1", "step_time_s is -1"),
        (3, "not 3"),
        ([3], "anchors 3 is not text"),
    ):
        with pytest.raises(JobError, match=message):
            Job("resnet50", anchors=bad)  # type: ignore[arg-type]
    with pytest.raises(JobError, match=r"anchors 'precision=fp99,step_time_s=1': precision 'fp99'"):
        predict(Job("resnet50", anchors="precision=fp99,step_time_s=1"))


def test_flags(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["predict", "gpt2", "--precision", "bf16", "--batch-size", "4", "--json"]
    assert main([*arguments, "--anchor", "step_time_s=0.5", "--anchor", "gpus=8,step_time_s=0.6"]) == 0
    content = json.loads(capsys.readouterr().out)
    assert content["anchors"]["count"] == 2
    assert content["job"]["anchors"] == ["step_time_s=0.5", "gpus=8,step_time_s=0.6"]
    assert main(["predict", "gpt2", "--anchor", "gpus=8"]) == 2
    assert "step_time_s is missing" in capsys.readouterr().err
    assert main(["evaluate", "x.csv", "--anchors", "some"]) == 2
    assert "--anchors 'some' is unknown; use one of all, other-families, none" in capsys.readouterr().err


def test_a_correction_in_plain_values() -> None:
    assert Correction.from_dict(NONE.to_dict()) == NONE
    assert NONE.narrowed(0.3) == 0.3
    assert replace(NONE, log_spread=0.1).narrowed(0.3) == 0.1
    explained = replace(NONE, log_spread=0.5, informed=0.75, own_spread=0.08)
    assert explained.narrowed(0.3) == pytest.approx(0.17), "half of 0.3, and 0.08 that no anchor explains"
    assert explained.narrowed(0.05) == 0.05, "never wider"


# --- evaluate


def test_evaluate_never_lets_a_job_anchor_itself(tmp_path: Path) -> None:
    lines = TABLE.read_text(encoding="utf-8").splitlines()
    rows = [line for line in lines if ",ncf," in line][:4]
    path = tmp_path / "t.csv"
    path.write_text("\n".join([lines[0], *rows]) + "\n", encoding="utf-8")
    evaluations = {mode: evaluate(path, anchors=mode) for mode in ("all", "other-families", "none")}
    assert [j.step for j in evaluations["none"].judged] == [j.step for j in evaluations["other-families"].judged]
    assert evaluations["all"].overall.mape != evaluations["none"].overall.mape
    for judged in evaluations["all"].judged:
        row = judged.row
        assert row.job is not None
        alone = predict(row.job, anchoring=Anchoring(framework=row.framework, source=row.source))
        without = predict(row.job, anchoring=Anchoring(True, ("key",), row.framework, row.source))
        assert judged.step.p50 == pytest.approx(without.step.p50)
        assert abs(math.log(alone.step.p50 / row.measured_s)) < abs(math.log(without.step.p50 / row.measured_s)) + 0.02
    assert evaluations["none"].to_dict()["anchors"] == "none"
    assert any("--anchors none" in note for note in evaluations["all"].notes())
    with pytest.raises(DataError, match="anchors 'some' is unknown"):
        evaluate(path, anchors="some")


# --- the base


def test_the_base_is_what_this_version_predicts() -> None:
    """A sample of the shipped rows, predicted again: run `precision-time fit anchors` where this fails."""
    rows = {row.id: row for row in read_table(TABLE).rows}
    every = list(published())
    assert sorted(rows) == sorted(a.id for a in every)
    shipped_by_model: dict[str, Anchor] = {}
    for each in every:
        shipped_by_model.setdefault(rows[each.id].model, each)
    checked = 0
    for each in list(shipped_by_model.values())[:12]:
        job = rows[each.id].job
        assert job is not None
        estimate = predict(job, anchoring=NO_ANCHORS)
        assert estimate.step.p50 == pytest.approx(each.predicted_s, rel=1e-3), each.id
        assert each.job.shares == pytest.approx(shares_of(estimate.breakdown), abs=2e-3)
        checked += 1
    assert checked >= 8


def test_the_base_is_of_the_table_that_the_factors_are_of() -> None:
    provenance = read_base()["provenance"]
    steps = read_data("step_scales.json")["provenance"]
    assert provenance["sha256"] == steps["sha256"]
    assert provenance["rows"] == len(published())


def test_a_row_of_the_base_reads_back() -> None:
    one = next(iter(published()))
    columns = dict(zip(read_base()["columns"], row_of_anchor(one), strict=True))
    assert columns["source"] == one.source
    assert dataclasses.replace(one) == one
    assert columns["shares"] == list(one.job.shares)


def test_a_file_with_too_many_anchors_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "many.csv"
    rows = "".join(f"resnet50,a100-80gb-sxm,fp32,0.{number}\n" for number in range(1, 1002))
    path.write_text(f"model,gpu,precision,step_time_s\n{rows}")
    with pytest.raises(DataError, match="1,001 measured jobs of the model's family, and at most 1,000"):
        predict(Job("resnet50", anchors=(str(path),)))
    path.write_bytes(b" " * (2**22 + 1))
    with pytest.raises(DataError, match=r"many\.csv' is larger than 4 MiB"):
        predict(Job("resnet50", anchors=(str(path),)))
    for name in ("a.csv", "b.csv"):
        (tmp_path / name).write_bytes(b" " * (2**21 + 1))
    with pytest.raises(DataError, match="2 files together are larger than 4 MiB"):
        predict(Job("resnet50", anchors=(str(tmp_path / "a.csv"), str(tmp_path / "b.csv"))))


def test_anchors_of_a_file_are_predicted_once_for_all_jobs_of_a_comparison(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, asked = tmp_path / "own.csv", []
    path.write_text("model,gpu,precision,step_time_s\n" + "resnet50,a100-80gb-sxm,fp32,0.2\n" * 3)
    uncorrected = prediction._uncorrected

    def recorded(*given: Any) -> Any:
        asked.append(given)
        return uncorrected(*given)

    monkeypatch.setattr(prediction, "_uncorrected", recorded)
    one, other = (predict(Job("resnet50", gpus=gpus, anchors=(str(path),))) for gpus in (8, 4))
    assert len(asked) == 3
    assert one.anchors.count == other.anchors.count > 3
    path.write_text("model,gpu,precision,step_time_s\nresnet50,a100-80gb-sxm,fp32,0.23\n")
    assert predict(Job("resnet50", gpus=4, anchors=(str(path),))).anchors.count == other.anchors.count - 2
    assert len(asked) == 4
