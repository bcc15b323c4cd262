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
from precision_time.anchors.anchor import Anchor, JobDescriptor, shares_of
from precision_time.anchors.base import published, read_base, row_of_anchor, shipped_covariance
from precision_time.anchors.covariance import EFFECTS, FADING, Covariance, JobColumns, self_variance, step_covariance
from precision_time.anchors.posterior import Anchors
from precision_time.cli.main import main
from precision_time.errors import DataError, JobError, MissingPeakError
from precision_time.estimate.correction import NONE, Correction
from precision_time.estimate.estimate import Estimate
from precision_time.evaluation import evaluate
from precision_time.fit.anchor_choice import FAMILY, LEFT_OUT, NEW, Choice, Evidence, KindRows
from precision_time.fit.anchor_environment import environment_size
from precision_time.fit.anchors import TABLES, correct, covariances_without
from precision_time.fit.cases import is_data_parallel
from precision_time.fit.folds import HeldOut
from precision_time.job import Job
from precision_time.measurements.row import Row
from precision_time.measurements.table import read_table
from precision_time.timing.parameters import read_data
from precision_time.timing.scaled import Factors

DATA = Path(__file__).parent.parent / "data"
TABLE = DATA / "published" / "measurements.csv"
NO_ANCHORS = Anchoring(use=False)
DESCRIPTOR = JobDescriptor(
    family="bert", model="bert", gpu="g", arch="a", maths="fp32", precision="fp32", framework="pytorch",
    setting="nchw", batch_size=8, gpus=1, shares=(1.0, 0.0, 0.0), key="one",
)  # fmt: skip
RESNET = Job("resnet50", gpu="a100-80gb-sxm", gpus=8, precision="amp-fp16", batch_size=256, memory_format="nhwc")


def covariance(noise: float = 0.02, **effects: float) -> Covariance:
    named = {name.replace(" ", "_").replace(",", ""): name for name in EFFECTS}
    effects_by_name = {named[name]: value for name, value in effects.items()}
    own = {effect: effects_by_name.get(effect, 0.0) for effect in EFFECTS}
    return Covariance(own, dict.fromkeys("ABC", noise), noise)


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

    return HeldOut(row, job.family, known.predicted_s, 0.0, "half", {}, True, job, scaled)


# --- the arithmetic


def test_one_anchor_by_hand() -> None:
    """Shrunk by effect^2 / (effect^2 + noise^2): 0.1^2 / (0.1^2 + 0.05^2) = 0.8."""
    known = Anchors([anchor(1.2)], covariance(0.05, model_maths=0.1))
    correction = known.correction(replace(DESCRIPTOR, key="two"), at_once)
    assert correction.factors.kernels == pytest.approx(1.2**0.8)
    assert correction.factors.host == 1.0
    assert correction.informed == pytest.approx(0.8)
    assert correction.narrowed(0.1) == pytest.approx(math.hypot(0.1 * math.sqrt(0.2), 0.05))
    assert correction.nearest[0].likeness == pytest.approx(0.01 / math.sqrt(0.01 * 0.0125), abs=1e-3)


def test_a_factor_acts_on_what_it_moved_in_the_anchor() -> None:
    """Half of the anchor's step is kernels, so a step 10 % longer says 2 x as much of kernels, before shrinkage."""
    half = replace(DESCRIPTOR, shares=(0.5, 0.5, 0.0))
    known = Anchors([anchor(1.1, half)], covariance(1e-6, model_maths=0.1))
    correction = known.correction(replace(DESCRIPTOR, key="two"), at_once)
    assert math.log(correction.factors.kernels) == pytest.approx(2 * math.log(1.1), rel=1e-6)
    both = Anchors([anchor(1.1, half)], covariance(1e-6, model_maths=0.1, host=0.1)).correction(half, at_once)
    assert both.factors.kernels == pytest.approx(both.factors.host)
    assert math.log(both.factors.host) == pytest.approx(math.log(1.1))


def test_an_environment_by_hand() -> None:
    """Shared by the user's jobs of one configuration: 0.1^2 / (0.1^2 + 0.05^2) = 0.8 of what one of them errs by."""
    own, cov = replace(anchor(1.1), own=True), replace(covariance(0.05, model=1e-4), environment=0.1)
    job = replace(DESCRIPTOR, key="two")
    for anchors in ([own], [own, anchor(0.5, name="published")]):
        correction = Anchors(anchors, cov).correction(job, at_once)
        assert correction.factors == pytest.approx([1.1**0.8] * 3, rel=1e-4), "published rows know nothing of it"
        assert correction.informed == pytest.approx(0.8, rel=1e-3)
    for other in (replace(job, gpu="h"), replace(job, maths="half"), replace(job, setting="nhwc")):
        assert Anchors([own], cov).correction(other, at_once).factors.kernels == pytest.approx(1.0, abs=1e-4)
    assert Anchors([replace(own, own=False)], cov).correction(job, at_once).informed < 1e-3


def test_a_step_far_from_its_prediction_is_followed() -> None:
    """An environment is as large as what the user's jobs err by: log(2)^2 / (log(2)^2 + 0.05^2) = 0.995 of it."""
    own, cov = replace(anchor(2.0), own=True), replace(covariance(0.05, model=1e-4), environment=0.1)
    correction = Anchors([own, anchor(1.0, name="published")], cov).correction(DESCRIPTOR, at_once)
    share = math.log(2) ** 2 / (math.log(2) ** 2 + 0.05**2)
    assert correction.factors.kernels == pytest.approx(2.0**share, rel=1e-4)


def test_an_environment_fades_with_the_length_of_the_step() -> None:
    """Sixteen times as long: by four factors of two, thus by 1/e."""
    own = Anchor(DESCRIPTOR, "x", "lab@1", "A", 1.2, 1.0, own=True)
    cov = replace(covariance(1e-6, model=1e-4), environment=0.1)

    def held(step_s: float) -> float:
        correction = Anchors([own, replace(own, measured_s=16.0, predicted_s=16.0)], cov).correction(
            replace(DESCRIPTOR, key="two"), lambda factors: step_s * factors.kernels
        )
        return math.log(correction.factors.kernels) / math.log(1.2)

    assert held(1.0) == pytest.approx(1.0, rel=1e-3)
    assert held(16.0) == pytest.approx(0.0, abs=1e-3)
    assert 0.4 < held(4.0) < 0.5


@pytest.mark.parametrize(("hidden_s", "step_s"), [(0.9, 3.6), (0.2, 1.0)])
def test_hidden_communication_lengthens_a_step_once_it_is_longer_than_kernels(hidden_s: float, step_s: float) -> None:
    """Half of the anchor's step is communication, so a step twice as long says four times as much of it, before
    shrinkage. A step of 1 s hides 0.9 s of it before, and not 3.6 s; 0.8 s stay hidden and correct nothing."""
    other = replace(DESCRIPTOR, model="another", shares=(0.5, 0.0, 0.5))
    known = Anchors([anchor(2.0, other)], covariance(1e-6, communication=0.3, model=1e-4))

    def longest(factors: Factors) -> float:
        return max(factors.kernels, hidden_s * factors.communication)

    correction = known.correction(replace(DESCRIPTOR, key="two"), longest)
    assert longest(correction.factors) == pytest.approx(step_s, rel=1e-6)
    assert (correction.count, correction.informed) == (int(step_s > 1.0), 0.0)
    assert [use.id for use in correction.nearest] == ["x"] * correction.count


def test_rows_of_another_framework_do_not_correct() -> None:
    known = Anchors([anchor(2.0, replace(DESCRIPTOR, framework="tensorflow1"))], shipped_covariance())
    for framework, moves in (("tensorflow1", True), ("pytorch", False)):
        correction = known.correction(replace(DESCRIPTOR, key="two", framework=framework), at_once)
        assert (correction.factors.kernels > 1.1) == moves


@given(
    st.sampled_from(EFFECTS),
    st.lists(st.floats(0.3, 3.0), min_size=1, max_size=4),
    st.floats(0.0, 0.3),
)
def test_an_effect_without_variance_changes_nothing(effect: str, ratios: list[float], others: float) -> None:
    """Whatever measured jobs share by it alone: with no variance anywhere the prediction is the uncorrected one."""
    cov = covariance(0.02)
    alone = replace(cov, effects={**cov.effects, effect: 0.0})
    anchors = [anchor(ratio, replace(DESCRIPTOR, key=f"{i}"), f"{i}") for i, ratio in enumerate(ratios)]
    found = Anchors(anchors, alone).correction(DESCRIPTOR, at_once)
    assert found.factors == Factors()
    assert found.informed == 0.0
    assert found.narrowed(others) == others


@settings(max_examples=50, deadline=None)
@given(st.floats(0.5, 2.0), st.floats(0.5, 2.0), st.sampled_from(["model", "gpu", "maths", "framework", "setting"]))
def test_a_row_of_the_same_configuration_outweighs_one_of_another(same: float, other: float, field: str) -> None:
    """The row of the same configuration decides, whatever one of another says."""
    there = replace(DESCRIPTOR, key="there", **{field: "another"})  # type: ignore[arg-type]
    here = anchor(same, replace(DESCRIPTOR, key="here"))
    cov, job = shipped_covariance(), replace(DESCRIPTOR, key="asked")

    def said(*anchors: Anchor) -> float:
        return math.log(Anchors(anchors, cov).correction(job, at_once).factors.kernels)

    own, another, both = said(here), said(anchor(other, there)), said(here, anchor(other, there))
    assert abs(own) >= 0.75 * abs(math.log(same)) - 1e-9
    assert abs(another) <= 0.75 * abs(math.log(other)) + 1e-9
    assert abs(both - math.log(same)) <= 0.3 * abs(math.log(same)) + 0.3 * abs(math.log(other)) + 1e-9


def columns(jobs: Sequence[JobDescriptor], seconds: Sequence[float] | None = None) -> JobColumns:
    return JobColumns(jobs, seconds or [1.0] * len(jobs))


def test_errors_agree_less_where_steps_differ_in_length() -> None:
    jobs = columns([DESCRIPTOR, DESCRIPTOR, replace(DESCRIPTOR, gpus=16)], [1.0, 4.0, 1.0])
    assert step_covariance(covariance(length=1.0), jobs, jobs)[0] == pytest.approx([1.0, math.exp(-2.0 / FADING), 1.0])


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.floats(0.01, 10.0), st.floats(0.6, 1.6), st.booleans()), min_size=1, max_size=12),
    st.tuples(st.floats(0.0, 1.0), st.floats(0.0, 1.0)).filter(lambda shares: sum(shares) <= 1.0),
)
def test_a_longer_step_is_longer_once_corrected(
    rows: list[tuple[float, float, bool]], shares: tuple[float, float]
) -> None:
    """Whatever the anchors say: all factors are the same, but for one that changes slowly with the step's length."""
    job = replace(DESCRIPTOR, shares=(*shares, 1.0 - sum(shares)))
    anchors = [Anchor(job, "x", "lab@1", "A", seconds, seconds / ratio, own) for seconds, ratio, own in rows]
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
        "model": "bert-large", "gpu": "b", "maths": "half", "framework": "other", "setting": "nhwc",
        "arch": "office", "gpus": 64, "shares": (0.5, 0.3, 0.2), "batch_size": 99,
    }  # fmt: skip
    jobs = [DESCRIPTOR, *(replace(DESCRIPTOR, **{name: value}) for name, value in fields.items())]  # type: ignore[arg-type]
    known = [Anchor(job, "x", "lab@1", "A", 1.0 + 0.1 * i, 1.0) for i, job in enumerate(jobs)]
    kept, anew = (Anchors(known, shipped_covariance(), kept=kept) for kept in (True, False))
    for _ in range(2):
        for job, seconds in product(jobs, (0.1, 1.0, 30.0)):
            found = [each.correction(job, lambda f, s=seconds: s * f.kernels) for each in (kept, anew)]  # type: ignore[misc]
            assert found[0] == found[1]
    assert len({anew.correction(job, at_once).factors for job in jobs[:6]}) == 6


def test_others_say_nothing() -> None:
    known = Anchors([anchor(2.0)], covariance(0.02, model_maths=0.1))
    assert known.correction(replace(DESCRIPTOR, family="resnet"), at_once) == NONE
    assert known.correction(DESCRIPTOR, at_once, without=("key",)) == NONE
    assert known.correction(replace(DESCRIPTOR, maths="fp16"), at_once) == NONE


@settings(max_examples=40, deadline=None)
@given(st.lists(st.floats(0.3, 3.0), min_size=1, max_size=6), st.integers(1, 64), st.sampled_from(["fp32", "fp16"]))
def test_more_anchors_never_make_less_sure(ratios: list[float], batch: int, maths: str) -> None:
    shipped = shipped_covariance()  # without the effect that corrects less than all that agrees
    cov = replace(shipped, effects={**shipped.effects, "length": 0.0})
    jobs = [replace(DESCRIPTOR, key=f"{i}", batch_size=1 + i * batch, gpu=f"{i % 2}") for i in range(len(ratios))]
    anchors = [anchor(ratio, job, job.key) for ratio, job in zip(ratios, jobs, strict=True)]
    target = replace(DESCRIPTOR, key="target", maths=maths)
    numbers = range(1, len(anchors) + 1)
    spreads = [Anchors(anchors[:n], cov).correction(target, at_once).narrowed(0.2) for n in numbers]
    assert all(b <= a + 1e-9 for a, b in zip([9.0, *spreads], spreads, strict=False))
    last = Anchors(anchors, cov).correction(target, at_once)
    assert 0.0 <= last.informed <= 1.0
    limit = max(abs(math.log(r)) for r in ratios) * len(ratios)
    assert all(abs(math.log(f)) <= limit for f in last.factors)


def drawn(true: Covariance, families: int, seed: int = 1) -> list[Evidence]:
    """Rows of families of three models on two GPUs in two precisions, whose errors have this covariance."""
    draw = np.random.default_rng(seed)
    found = []
    for family in range(families):
        jobs = [
            replace(
                DESCRIPTOR, family=f"{family}", model=f"{family} {m}", maths=p, precision=p, gpu=gpu, batch_size=b,
                key=f"{family} {m} {p} {gpu} {b}",
            )
            for m in range(3) for p in ("fp32", "half") for gpu in ("g", "h") for b in (1, 8)
        ]  # fmt: skip
        block = step_covariance(true, columns(jobs), columns(jobs)) + true.noise["A"] ** 2 * np.eye(len(jobs))
        logs = draw.multivariate_normal(np.zeros(len(jobs)), block).tolist()
        found += [
            Evidence(anchor(math.exp(log), job, job.key), {FAMILY: log}, {FAMILY: 0.1})
            for log, job in zip(logs, jobs, strict=True)
        ]
    return found


def test_effects_that_jobs_do_not_share_get_no_variance() -> None:
    """Errors of one model in one arithmetic agree and all else is chance: no other effect remains."""
    fitted = Choice(drawn(covariance(0.03, model_maths=0.1), 8)).covariance()
    assert [effect for effect, size in fitted.effects.items() if size] == ["model, maths"]
    nothing = Choice(drawn(covariance(0.1), 8)).covariance()
    assert not any(nothing.effects.values())


@pytest.mark.parametrize(("apart", "least", "most"), [(0.0, 0.0, 0.05), (0.15, 0.1, 0.3)])
def test_an_environment_is_what_rows_of_one_source_share(apart: float, least: float, most: float) -> None:
    """Errors of the rows of one source in one configuration differ from those of another by 15 % or by nothing."""
    draw, rows = np.random.default_rng(3), []
    for family, gpu in product("abcd", "gh"):
        for source in ("lab@1", "lab@2"):
            shift = float(draw.normal(0.0, apart)) if apart else 0.0
            for batch in (8, 9, 10):
                job = replace(DESCRIPTOR, family=family, gpu=gpu, batch_size=batch, key=f"{batch} {source}")
                log = shift + float(draw.normal(0.0, 0.03))
                known = Anchor(job, job.key, f"{source}:table.csv", "A", math.exp(log), 1.0)
                rows.append(Evidence(known, {FAMILY: log}, {FAMILY: 0.1}))
    kinds = Choice(rows).rows.values()
    assert least <= environment_size(kinds, covariance(length=0.035).effects) <= most
    assert environment_size([], covariance().effects) == 0.0


@pytest.mark.parametrize("last", [0, 1])
def test_the_best_end_of_all_searches_is_taken(monkeypatch: pytest.MonkeyPatch, last: int) -> None:
    """One search ends where no effect is left, which is worse than the truth; whichever comes first."""
    truth, nothing = (
        {effect: 0.1 if effect == "model, maths" else 0.0 for effect in EFFECTS},
        dict.fromkeys(EFFECTS, 0.0),
    )
    ends = iter((truth, nothing) if last else (nothing, truth))
    monkeypatch.setattr(Choice, "_search", lambda self, kinds, start: next(ends))
    assert Choice(drawn(covariance(0.03, model_maths=0.1), 4)).covariance().effects == truth


def test_a_choice_does_not_see_the_family_that_it_is_for() -> None:
    evidence = drawn(covariance(0.03, model_maths=0.1), 4)
    lied = [
        replace(row, residuals={FAMILY: 0.5 if row.anchor.job.batch_size == 1 else -0.5}) if row.family == "0" else row
        for row in evidence
    ]
    assert covariances_without(evidence)["0"] == covariances_without(lied)["0"]


def test_corrections_by_hand() -> None:
    """Of two jobs with residuals 0.2 and 0.1, each corrects the other by 0.01 / (0.01 + 0.03^2) of its own."""
    jobs = [replace(DESCRIPTOR, key=key, batch_size=b) for key, b in (("a", 1), ("b", 2))]
    rows = [
        Evidence(anchor(math.exp(log), job, job.key), {FAMILY: log}, {FAMILY: 0.1})
        for log, job in zip((0.2, 0.1), jobs, strict=True)
    ]
    weight = 0.01 / (0.01 + 0.03**2)
    found = KindRows(rows).judged(covariance(model_maths=0.1).effects)
    assert set(found) == {(NEW, "the job itself"), (NEW, "at another batch or count")}
    for each in found.values():
        assert each.after == pytest.approx([0.2 - weight * 0.1, 0.1 - weight * 0.2])
        assert each.informed == pytest.approx([weight, weight])
    judged = correct(held_out(rows[0].anchor), rows[0], Anchors([rows[1].anchor], covariance(0.03, model_maths=0.1)))
    assert (judged.before, judged.after) == pytest.approx((-0.2, weight * 0.1 - 0.2))


@pytest.mark.parametrize("rule", LEFT_OUT)
def test_what_is_left_out_moves_nothing(rule: str) -> None:
    """Whatever was measured for the jobs that are left out, the judged row's prediction is the same."""
    field = LEFT_OUT[rule]
    anchors = [a for a in published() if a.job.family == "unet"]
    judged = anchors[0]
    lied = [
        replace(a, measured_s=3 * a.measured_s) if getattr(a.job, field) == getattr(judged.job, field) else a
        for a in anchors
    ]
    row = Evidence(judged, {FAMILY: judged.residual}, {FAMILY: 0.2})
    before, after = (
        correct(held_out(judged), row, Anchors(each, shipped_covariance()), field=field) for each in (anchors, lied)
    )
    assert (after.after, after.spread) == (before.after, before.spread)


def test_shares_of_terms() -> None:
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
    """40 % slower than said in fp32 alone: the same job follows, another precision hardly."""
    job = Job("gpt2", gpu="h100-80gb-sxm", precision="fp32", batch_size=4)
    bare = predict(job).step.p50
    line = f"precision=fp32,batch_size=4,step_time_s={1.4 * bare:.6g}"
    same = predict(job.replace(anchors=line))
    assert same.step.p50 == pytest.approx(1.4 * bare, rel=0.04)
    half = job.replace(precision="amp-bf16")
    other = predict(half.replace(anchors=[line]))
    alone = predict(half.replace(anchors="none")).step.p50
    assert alone <= other.step.p50 < 1.05 * alone
    assert same.step.p90 / same.step.p10 < predict(job).step.p90 / predict(job).step.p10
    assert "corrected by 1 measured job of this family" in str(same)


def test_no_anchor_pulls_a_step_below_its_floor() -> None:
    job = Job("gpt2", gpu="h100-80gb-sxm", precision="bf16", batch_size=4)
    estimate = predict(job.replace(anchors="step_time_s=0.000001"))
    assert estimate.step.p50 >= estimate.floor_s * (1 - 1e-9)
    assert sum(estimate.breakdown.values()) == pytest.approx(estimate.step.p50)


def test_a_file_of_measured_jobs(tmp_path: Path) -> None:
    path, heads = tmp_path / "mine.csv", "id,model,gpu,precision,batch_size,step_time_s"
    job = Job("gpt2", gpu="h100-80gb-sxm", precision="bf16", batch_size=32, anchors=str(path))
    measured_s = 1.3 * predict(job.replace(anchors="none")).step.p50
    path.write_text(f"{heads}\nrun-1,gpt2,h100-80gb-sxm,bf16,32,{measured_s}\n", encoding="utf-8")
    estimate = predict(job)
    assert [use.id for use in estimate.anchors.nearest] == ["run-1"]
    assert estimate.step.p50 == pytest.approx(measured_s, rel=0.08)
    path.write_text(f"{heads}\nrun-1,bert-large,h100-80gb-sxm,bf16,32,0.5\n", encoding="utf-8")
    other = predict(job)
    assert other.step == predict(job.replace(anchors="none")).step
    assert "no given anchor is of this model's family in the same framework" in str(other)
    path.write_text(f"{heads}\nrun-1,gpt2,h100-80gb-sxm,fp99,4,0.5\n", encoding="utf-8")
    with pytest.raises(DataError, match=r"no row of .* can be used: precision 'fp99'"):
        predict(job)
    with pytest.raises(DataError, match="cannot be read"):
        predict(job.replace(anchors=str(tmp_path / "none.csv")))


def test_a_row_that_cannot_be_predicted_is_named(tmp_path: Path) -> None:
    (tmp_path / "own.csv").write_text(
        "id,model,gpu,precision,step_time_s\nours,resnet50,a100-80gb-sxm,bf16,0.2\ntheirs,resnet50,t4,bf16,0.9\n",
        encoding="utf-8",
    )
    job = Job("resnet50", anchors=(str(tmp_path / "own.csv"),))
    with pytest.raises(MissingPeakError, match="anchors 'theirs': t4 has no bf16 peak"):
        predict(job)


def test_kernels_that_anchors_slow_down_hide_the_host() -> None:
    """At batch 10 the host limits the step as predicted, but not with kernels as slow as the anchors have them."""
    job = Job("nnunet-2d", gpu="a100-80gb-sxm", precision="fp16-master", batch_size=10)
    estimate, alone = predict(job), predict(job.replace(anchors="none"))
    assert estimate.breakdown["host_gaps"] < 1e-9 < 1e-4 < alone.breakdown["host_gaps"]
    assert estimate.step.p50 > alone.step.p50
    assert estimate.anchors.count > 0
    assert predict(job.replace(batch_size=64)).breakdown["host_gaps"] < 1e-9, (
        "of larger batches they hide it in any case"
    )


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
    explained = replace(NONE, informed=0.75, own_spread=0.08, count=1)
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
        alone = predict(row.job, anchoring=Anchoring(framework=row.framework))
        without = predict(row.job, anchoring=Anchoring(True, ("key",), row.framework))
        assert judged.step.p50 == pytest.approx(without.step.p50)
        assert abs(math.log(alone.step.p50 / row.measured_s)) < abs(math.log(without.step.p50 / row.measured_s)) + 0.02
    assert evaluations["none"].to_dict()["anchors"] == "none"
    assert any("--anchors none" in note for note in evaluations["all"].notes())
    with pytest.raises(DataError, match="anchors 'some' is unknown"):
        evaluate(path, anchors="some")


# --- the base


def test_the_base_is_what_this_version_predicts() -> None:
    """A sample of the shipped rows, predicted again: run `precision-time fit anchors` where this fails."""
    rows = {row.id: row for name in TABLES for row in read_table(DATA / name).rows}
    every = list(published())
    plain = {name for name, row in rows.items() if row.job is not None and is_data_parallel(row.job)}
    assert plain == {a.id for a in every}
    shipped_by_model: dict[str, Anchor] = {}
    for each in every:
        shipped_by_model.setdefault(rows[each.id].model, each)
    checked = 0
    for each in list(shipped_by_model.values())[:16]:
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
    path.write_text("model,gpu,precision,step_time_s\n" + "resnet50,a100-80gb-sxm,amp-fp16,0.2\n" * 3)
    uncorrected = prediction._uncorrected

    def recorded(*given: Any) -> Any:
        asked.append(given)
        return uncorrected(*given)

    monkeypatch.setattr(prediction, "_uncorrected", recorded)
    one, other = (predict(Job("resnet50", precision="amp-fp16", gpus=gpus, anchors=(str(path),))) for gpus in (8, 4))
    assert len(asked) == 3
    assert one.anchors.count == other.anchors.count > 3
    path.write_text("model,gpu,precision,step_time_s\nresnet50,a100-80gb-sxm,amp-fp16,0.23\n")
    assert (
        predict(Job("resnet50", precision="amp-fp16", gpus=4, anchors=(str(path),))).anchors.count
        == other.anchors.count - 2
    )
    assert len(asked) == 4
