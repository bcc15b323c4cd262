"""Gradient boosting: features worked by hand, monotone where claimed, nothing judged by what it taught, blind twins.

Times are invented: the kernel seconds of shipped models, divided by utilisations that differ by dtype.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from boosting_cases import measured_jobs
from precision_time.errors import PredictorError
from precision_time.hardware.gpu import Gpu
from precision_time.job.job import Job
from precision_time.predictors import boosting
from precision_time.predictors.boosting import BlindBoosting, Boosting
from precision_time.predictors.facts import Facts, facts_of
from precision_time.predictors.features import COMPUTE, FEATURES, matrix, names, vector
from precision_time.predictors.interface import MeasuredJob, Predictor
from precision_time.predictors.kernel_sizes import NAMES, kernel_sizes
from precision_time.predictors.published import card_group, grouped_folds, job_group, published_jobs
from precision_time.predictors.registry import predictor_class
from precision_time.predictors.residual import BoostingResidual
from precision_time.predictors.rows import (
    Radii,
    Rows,
    best_share,
    conformal,
    conformal_of_groups,
    merged,
    out_of_fold,
)
from precision_time.predictors.simulator import BlindSimulator, Simulator
from precision_time.predictors.trees import Setting
from precision_time.timing.work import Convolution, Work, conv_work, matmul_work
from precision_time.timing.work_table import WorkTable

FEW = Setting(rounds=80, seeds=2)


@pytest.fixture(scope="module")
def measured() -> list[MeasuredJob]:
    return measured_jobs()


@pytest.fixture(scope="module")
def trained(measured: list[MeasuredJob]) -> Boosting:
    predictor = Boosting(FEW)
    predictor.fit(measured)
    return predictor


# --- facts and features

LINEAR = """
import torch

def job(batch_size=512):
    return {"model": torch.nn.Linear(1024, 2048, bias=False), "inputs": torch.empty(batch_size, 1024),
            "loss": lambda output: output.sum(), "optimizer": "sgd"}
"""


@pytest.fixture(scope="module")
def linear(tmp_path_factory: pytest.TempPathFactory) -> Job:
    pytest.importorskip("torch")
    path = tmp_path_factory.mktemp("own") / "linear.py"
    path.write_text(LINEAR, encoding="utf-8")
    return Job(f"{path}:job", precision="fp32", gpu="v100-16gb-sxm")


def test_facts_of_one_linear_layer_by_hand(linear: Job) -> None:
    facts = facts_of(linear)
    product = 2 * 512 * 1024 * 2048  # multiply-adds count twice; the input needs no gradient, so two products in all
    matmul_s = 2 * product / 15.7e12
    assert matmul_s < facts.kernel_seconds["matmul", ""] < 1.5 * matmul_s
    assert sum(facts.flops.values()) == pytest.approx(2 * product, rel=0.01)  # beside them only sums and updates
    assert facts.flops["half"] == facts.flops["tf32"] == 0
    assert facts.matrix_flops == 0  # fp32 never runs on Volta's matrix units
    assert facts.fp32_bytes == facts.bytes
    assert facts.casts == facts.scalings == facts.wire_bytes == facts.wire_s == 0
    values = dict(zip(names(FEATURES), vector(facts), strict=True))
    assert values["log_flops_fp32"] == pytest.approx(math.log10(2 * product), abs=0.01)
    assert values["bandwidth_saved"] == 1
    assert values["gradient_bytes"] == values["log_ranks"] == 0


def test_gradients_have_the_bytes_that_are_really_reduced(linear: Job) -> None:
    weights = 1024 * 2048
    for precision, width in (("fp32", 4), ("amp-fp16", 4), ("fp16-master", 2)):
        facts = facts_of(linear.replace(precision=precision, gpus=8))
        assert facts.gradient_bytes == width, precision
        assert facts.wire_bytes == width * weights
    half = facts_of(linear.replace(precision="fp16-master", gpus=8))
    assert half.wire_s < facts_of(linear.replace(gpus=8)).wire_s
    in_fp32 = facts_of(linear.replace(precision="fp16-master", gpus=8, communication_dtype="float32"))
    assert in_fp32.wire_bytes == 4 * weights


def test_autocast_uses_matrix_units_casts_and_scales_its_loss(linear: Job) -> None:
    facts = facts_of(linear.replace(precision="amp-fp16"))
    product = 2 * 512 * 1024 * 2048
    assert facts.matrix_flops == pytest.approx(2 * product, rel=1e-3)  # fp16 has the best peak of a V100
    assert 2 * product / 125e12 < facts.kernel_seconds["matmul", ""] < 5 * product / 125e12
    assert facts.casts >= 2  # the weight and the input, at least
    assert facts.cast_bytes >= (4 + 2) * (512 * 1024 + 1024 * 2048)
    assert facts.scaling_bytes >= 2 * 4 * 1024 * 2048  # unscaling reads and writes every gradient


@pytest.mark.parametrize("model", ["resnet50", "bert-base"])
def test_traffic_in_fp32_is_that_of_the_step_captured_in_fp32(model: str) -> None:
    job = Job(model, batch_size=16, gpu="v100-16gb-sxm")
    half, full = facts_of(job.replace(precision="amp-fp16")), facts_of(job.replace(precision="fp32"))
    unscaled = half.fp32_bytes - half.scaling_bytes
    assert unscaled == pytest.approx(full.bytes, rel=0.08)
    assert half.bytes < 0.9 * full.bytes


def test_facts_of_a_divided_model() -> None:
    job = Job(
        "gpt2", precision="bf16-master", batch_size=2, gpu="a100-80gb-sxm", gpus=8, grad_accum=4, layout="tp=2,pp=2"
    )
    facts = facts_of(job)
    assert facts.bubble == pytest.approx(1 / 5)  # one stage ahead of four micro-batches
    assert facts.inner_s > 0
    assert facts.wire_s > 0
    alone = facts_of(job.replace(gpus=1, layout="dp"))
    assert alone.bubble == alone.wire_s == 0
    # a quarter of the layers' work, and the head's
    assert 0.2 * alone.kernel_s < facts.kernel_s < 0.5 * alone.kernel_s


def test_a_schedule_has_no_features() -> None:
    job = Job("resnet50", precision=[{"from_step": 0, "precision": "fp32"}, {"from_step": 5, "precision": "amp-fp16"}])
    with pytest.raises(PredictorError, match="schedule"):
        facts_of(job)


# --- where the trees start, and sizes of kernels


def test_trees_start_from_the_longer_of_kernels_and_launches(linear: Job) -> None:
    facts = dataclasses.replace(facts_of(linear), host_s=1.0)  # longer than one small layer
    assert facts.kernel_s < facts.host_s == facts.initial_s
    large = dataclasses.replace(facts, host_s=facts.kernel_s / 2)
    assert large.initial_s == facts.kernel_s
    assert dataclasses.replace(large, bubble=0.2).initial_s == pytest.approx(facts.kernel_s / 0.8)


def test_sizes_of_one_linear_layer_by_hand(linear: Job) -> None:
    """Two products: x w^T is 512 x 1024 by 1024 x 2048, the weight's gradient 2048 x 512 by 512 x 1024."""
    sizes = facts_of(linear).sizes
    assert set(sizes) == set(NAMES)
    assert sizes["matmul.batch"] == 0.0  # log2 of one product
    assert sizes["matmul.m"] + sizes["matmul.n"] + sizes["matmul.k"] == pytest.approx(30.0)  # 2^9 x 2^10 x 2^11
    assert sizes["matmul.k"] == pytest.approx(9.5)  # 1024 and 512, of equal operations
    assert sizes["matmul.kernel"] == pytest.approx(math.log10(2 * 512 * 1024 * 2048 / 15.7e12))
    assert 0.5 < sizes["matmul.compute"] < 1.0  # beside the products only a sum and the update
    assert sizes["matmul.narrow"] == sizes["matmul.unaligned"] == 0.0
    assert not any(value for name, value in sizes.items() if not name.startswith("matmul"))


GPU = Gpu("ten", "", "nvidia", "volta", 1 << 30, 1e9, {"fp32": 1e12, "fp16": 1e13})
"""1 TFLOP/s in fp32, 10 in fp16, 1 GB/s."""


def sizes_of(*works: Work, calls: Sequence[float] = ()) -> dict[str, float]:
    """Sizes of works on GPU, each once by default."""
    return kernel_sizes(WorkTable.from_works(works), np.array(calls or [1.0] * len(works)), GPU)


def convolution(c_in: int, c_out: int, groups: int, taps: int = 3, stride: int = 1) -> Convolution:
    size = 16 // stride
    return Convolution(4, c_in, c_out, (16, 16), (size, size), (taps, taps), (stride, stride), groups)


@pytest.mark.parametrize("direction", ["fwd", "dgrad", "wgrad"])
def test_sizes_of_a_grouped_convolution_by_hand(direction: str) -> None:
    sizes = sizes_of(conv_work(convolution(64, 128, 8), "fp16", 2, direction=direction, layout="nhwc"))
    assert sizes["grouped.groups"] == 3.0
    assert sizes["grouped.channels"] == {"fwd": 4.0, "dgrad": 3.0, "wgrad": 4.0}[direction]  # 16 of 128, 8 of 64
    assert sizes["grouped.nhwc"] == 1.0
    assert sizes["grouped.nchw"] == sizes["grouped.unaligned"] == 0.0
    assert not any(value for name, value in sizes.items() if name.startswith(("depthwise", "dense", "matmul")))


def test_sizes_of_a_depthwise_convolution_by_hand() -> None:
    work = conv_work(convolution(32, 32, 32, taps=5, stride=2), "fp16", 2)
    sizes = sizes_of(work)
    assert sizes["depthwise.taps"] == sizes["conv.taps"] == pytest.approx(math.log2(25))
    assert sizes["depthwise.positions"] == 6.0  # 8 x 8
    assert sizes["depthwise.nchw"] == sizes["conv.strided"] == sizes["conv.narrow"] == 1.0
    assert sizes["conv.compute"] == 0.0
    # 4 images: 16 x 16 x 32 read, 8 x 8 x 32 and 25 x 32 weights, of 2 bytes
    assert sizes["conv.kernel"] == pytest.approx(math.log10((4 * (256 + 64) * 32 + 25 * 32) * 2 / 1e9))


@pytest.mark.parametrize("direction", ["fwd", "dgrad", "wgrad"])
@pytest.mark.parametrize("stride", [1, 2])
def test_channels_that_are_no_multiple_of_16_bytes(direction: str, stride: int) -> None:
    def share(kind: str, c_in: int, c_out: int, groups: int = 1, math: str = "fp16") -> float:
        given = convolution(c_in, c_out, groups, stride=stride)
        return sizes_of(conv_work(given, math, 2 if math == "fp16" else 4, direction=direction))[f"{kind}.unaligned"]

    assert share("dense", 64, 64) == 0.0
    assert share("dense", 3, 64) == share("dense", 64, 20) == 1.0
    assert share("dense", 64, 20, math="fp32") == 0.0  # 80 bytes
    assert share("depthwise", 24, 24, groups=24) == 0.0
    assert share("depthwise", 20, 20, groups=20) == 1.0
    assert share("grouped", 32, 64, groups=16) == 0.0  # 2 and 4 channels a group, 32 and 64 in all
    assert share("grouped", 36, 72, groups=18) == 1.0


def test_products_that_are_no_multiple_of_16_bytes() -> None:
    even, odd = (matmul_work((1, 512, n, 256), "fp16", 2) for n in (512, 257))
    assert sizes_of(even)["matmul.unaligned"] == 0.0
    assert sizes_of(odd)["matmul.unaligned"] == 1.0


def test_sizes_weigh_by_roofline_seconds_and_calls() -> None:
    """Bound by bytes, a product in fp32 takes twice the seconds of the same in fp16; the latter runs three times."""
    wide, half = (matmul_work((1, 64, n, 64), math, width) for n, math, width in ((64, "fp32", 4), (64, "fp16", 2)))
    apart = matmul_work((1, 64, 32, 64), "fp16", 2)
    assert wide.bytes == 2 * half.bytes
    sizes = sizes_of(wide, half, apart, calls=(1, 3, 0))
    assert sizes["matmul.narrow"] == 0.0  # the only narrow one never runs
    mean = (2 * math.log10(wide.bytes / 1e9) + 3 * math.log10(half.bytes / 1e9)) / 5
    assert sizes["matmul.kernel"] == pytest.approx(mean)
    assert sizes_of(half, apart)["matmul.narrow"] == pytest.approx(apart.bytes / (apart.bytes + half.bytes))


def test_later_releases_of_pytorch_are_not_told_apart(linear: Job) -> None:
    def value(release: str | None) -> float:
        facts = dataclasses.replace(facts_of(linear), torch=release)
        return dict(zip(names(FEATURES), vector(facts), strict=True))["torch_before_2"]

    assert [value(each) for each in ("1.10", "1.13", "2.0", "2.6", None)] == [4.0, 1.0, 0.0, 0.0, 0.0]


# --- folds and their rows


def test_a_group_is_a_job_in_any_precision_and_batch() -> None:
    base = Job("resnet50", precision="fp32", batch_size=16, gpu="v100-16gb-sxm")
    same = [base.replace(precision="amp-fp16"), base.replace(batch_size=64), base.replace(input={"image_size": 224})]
    other = [base.replace(gpus=8), base.replace(gpu="a100-80gb-sxm"), base.replace(input={"image_size": 192})]

    def group(job: Job) -> str:
        return job_group(MeasuredJob("a", job, 1.0, "resnet"))

    assert {group(job) for job in same} == {group(base)}
    assert len({group(job) for job in (base, *other)}) == 4
    assert card_group(MeasuredJob("a", other[0], 1.0, "")) == card_group(MeasuredJob("a", base, 1.0, ""))


def test_folds_keep_groups_whole_and_are_of_like_size(measured: list[MeasuredJob]) -> None:
    folds = grouped_folds(measured, job_group, 4)
    by_group: dict[str, set[int]] = {}
    for each, fold in zip(measured, folds, strict=True):
        by_group.setdefault(job_group(each), set()).add(fold)
    assert all(len(found) == 1 for found in by_group.values())
    assert [folds.count(i) for i in range(4)] == [18, 18, 18, 18]


def test_published_rows_of_trust_a_and_b_become_measured_jobs(tmp_path: Path) -> None:
    table = tmp_path / "rows.csv"
    table.write_text(
        "id,source,trust,framework,model,batch_size,gpus,gpu,precision,step_time_s\n"
        "a,lab,A,pytorch,resnet50,64,1,v100-16gb-sxm,fp32,0.25\n"
        "b,lab,B,pytorch,bert-base,8,1,v100-16gb-sxm,amp-fp16,0.125\n"
        "c,lab,C,pytorch,resnet50,64,1,v100-16gb-sxm,amp-fp16,0.1\n"
        "d,lab,A,pytorch,nonesuch,64,1,v100-16gb-sxm,fp32,0.2\n",
        encoding="utf-8",
    )
    found = published_jobs(table)
    assert [(m.id, m.seconds, m.family, m.dataset, m.precision) for m in found] == [
        ("a", 0.25, "resnet", "imagenet", "fp32"), ("b", 0.125, "bert", "squad", "amp-fp16")
    ]  # fmt: skip
    assert published_jobs(tmp_path / "absent.csv") == ()


def test_out_of_fold_never_trains_on_what_it_judges() -> None:
    folds = np.array([0, 1, 1, 2, 0])

    def held_out(training: np.ndarray, judged: np.ndarray) -> np.ndarray:
        assert not set(folds[training]) & set(folds[judged])
        return 10.0 * folds[judged]

    assert out_of_fold(folds, held_out).tolist() == [0, 10, 10, 20, 0]


def test_conformal_radius_by_hand() -> None:
    errors = np.array([0.01, -0.02, 0.03, -0.04, 0.05, -0.06, 0.07, -0.08, 0.09])
    assert conformal(errors, 0.8) == 0.08  # the 8th of 9: ceil(0.8 x 10)
    assert conformal(np.array([])) == 0.0


def test_an_interval_is_no_narrower_for_a_less_familiar_job() -> None:
    small, large, families = np.full(9, 0.1), np.full(9, 0.3), list("aaabbbccc")
    assert Radii.of(small, large, small, families) == Radii(0.1, 0.3, 0.3)


def test_the_width_for_a_new_family_by_hand() -> None:
    """Three families, each a quarter of the whole, and a quarter for one that is not among them."""
    errors = np.array([0.1, -0.1, 0.1, 0.1, -0.2, 0.3, 0.3])
    families = ["many"] * 4 + ["one", "two", "two"]
    assert conformal_of_groups(errors, families, 0.25) == 0.1  # the many count no more than the one
    assert conformal_of_groups(errors, families, 0.26) == 0.2
    assert conformal_of_groups(errors, families, 0.51) == 0.3
    assert conformal_of_groups(errors, families, 0.80) == 0.3  # three families cannot promise more than 75 %
    assert conformal_of_groups(np.array([]), []) == 0.0
    alone = [str(i) for i in range(9)]  # each its own family: the plain rule
    sizes = np.linspace(0.1, 0.9, 9)
    assert conformal_of_groups(sizes, alone) == conformal(sizes) == pytest.approx(0.8)


@given(st.lists(st.floats(0.0, 3.0), min_size=40, max_size=40), st.integers(2, 8))
def test_coverage_of_a_new_family_holds_on_average(errors: list[float], count: int) -> None:
    """Each family left out in turn: the mean share of its rows inside what the others say, as exchangeability has it.

    The bound holds where the others are enough to promise it: coverage (families) / (families + 1).
    """
    families = np.array([str(i % count) for i in range(len(errors))])
    sizes = np.array(errors)
    coverage = 0.8 * (count - 1) / count
    inside = []
    for family in sorted(set(families)):
        rest = families != family
        radius = conformal_of_groups(sizes[rest], families[rest].tolist(), coverage)
        inside.append(np.mean(sizes[~rest] <= radius))
    assert np.mean(inside) >= coverage - 1.0 / count - 1e-9


def test_lengths_of_one_job_are_one_training_row() -> None:
    job = Job("resnet50", gpu="v100-16gb-sxm", batch_size=8)
    short, long = (MeasuredJob(str(n), job.replace(run={"steps": n}), s, "resnet") for n, s in ((1, 3.0), (4, 6.0)))
    other = dataclasses.replace(short, id="other", job=short.job.replace(batch_size=16))
    steps = [MeasuredJob(name, job, s, "resnet") for name, s in (("a", 1.0), ("b", 2.0))]
    found = merged([short, other, *steps, long])
    assert [each.id for each in found] == ["1", "other", "a", "b"]  # steps without a length stay what they are
    assert found[0].seconds == pytest.approx(9.0 / 5.0)
    assert found[1:] == [other, *steps]


def test_best_share_by_hand() -> None:
    errors, correction = np.array([0.2, 0.2, 0.2]), np.array([0.4, 0.4, 0.1])
    assert best_share(errors, correction, np.ones(3)) == 0.5  # 0 + 0 + 0.15 is the least of all shares
    assert best_share(errors, -correction, np.ones(3)) == 0.0


def test_the_aggregator_never_sees_its_own_rows(measured: list[MeasuredJob], monkeypatch: pytest.MonkeyPatch) -> None:
    """What it is trained on for a row comes from base predictors that were fitted without the row's job."""
    taught: dict[int, set[str]] = {}
    told: list[tuple[set[str], set[str]]] = []
    aggregated: list[tuple[Rows, np.ndarray, np.ndarray]] = []
    held_out: dict[str, list[float]] = {}
    for cls in (boosting.Compute, boosting.Communication):
        fit = cls.fit.__func__  # type: ignore[attr-defined]

        def spy(kind: type, rows: Rows, *rest: object, fit: object = fit) -> object:
            made = fit(kind, rows, *rest)  # type: ignore[operator]
            taught[id(made)] = {job_group(m) for m in rows.measured}
            kept.append(made)
            return made

        monkeypatch.setattr(cls, "fit", classmethod(spy))
    kept: list[object] = []
    seconds = boosting.Compute.log_seconds

    def asked(self: boosting.Compute, facts: Sequence[Facts]) -> np.ndarray:
        found = seconds(self, facts)
        judged = {job_group(m) for m in measured if any(facts_of(m.job) is f for f in facts)}
        told.append((taught[id(self)], judged))
        for f, value in zip(facts, found, strict=True):
            if not taught[id(self)] & judged:
                held_out.setdefault(next(m.id for m in measured if facts_of(m.job) is f), []).append(float(value))
        return found

    monkeypatch.setattr(boosting.Compute, "log_seconds", asked)
    factor = boosting.Communication.log_factor

    def asked_too(self: boosting.Communication, facts: Sequence[Facts]) -> np.ndarray:
        judged = {job_group(m) for m in measured if any(facts_of(m.job) is f for f in facts)}
        told.append((taught[id(self)], judged))
        return factor(self, facts)

    monkeypatch.setattr(boosting.Communication, "log_factor", asked_too)
    gather = boosting.Aggregator.fit.__func__  # type: ignore[attr-defined]

    def gathered(kind: type, rows: Rows, compute: np.ndarray, added: np.ndarray, *rest: object) -> object:
        aggregated.append((rows, compute, added))
        return gather(kind, rows, compute, added, *rest)

    monkeypatch.setattr(boosting.Aggregator, "fit", classmethod(gathered))
    Boosting(Setting(rounds=5, seeds=1)).fit(measured)
    assert told
    assert all(not training & judged for training, judged in told), "while fitting, base predictors judge others' rows"
    rows, compute, _ = aggregated[0]
    assert {m.job.gpus for m in rows.measured} == {8}
    for each, value in zip(rows.measured, compute, strict=True):
        assert value in held_out[each.id], "every input is an out-of-fold output"


# --- monotone


@settings(max_examples=40)
@given(scale=st.floats(1.0, 30.0), index=st.integers(0, 71))
def test_more_work_of_the_same_mix_is_never_faster(scale: float, index: int, trained: Boosting) -> None:
    job = measured_jobs_once()[index].job
    facts = facts_of(job.replace(gpus=1))
    more = dataclasses.replace(
        facts,
        kernel_seconds={key: scale * seconds for key, seconds in facts.kernel_seconds.items()},
        flops={kind: scale * flops for kind, flops in facts.flops.items()},
        **{
            name: scale * getattr(facts, name)
            for name in ("matrix_flops", "bytes", "fp32_bytes", "cast_bytes", "casts", "scaling_bytes", "scalings",
                         "kernels", "host_s", "backward_s")
        },
    )  # fmt: skip
    before, after = (sum(part[0] for part in trained.learned.log_parts([each])) for each in (facts, more))
    assert after >= before + math.log(scale) - 1e-9


@settings(max_examples=40)
@given(scale=st.floats(1.0, 100.0), index=st.integers(0, 71))
def test_more_bytes_between_ranks_are_never_faster(scale: float, index: int, trained: Boosting) -> None:
    facts = facts_of(measured_jobs_once()[index].job.replace(gpus=8))
    more = dataclasses.replace(facts, wire_bytes=scale * facts.wire_bytes, wire_s=scale * facts.wire_s)
    before, after = (sum(part[0] for part in trained.learned.log_parts([each])) for each in (facts, more))
    assert after >= before - 1e-9


@settings(max_examples=60)
@given(data=st.data())
def test_trees_keep_every_sign_of_the_table(data: st.DataObject, trained: Boosting) -> None:
    columns = matrix([facts_of(m.job) for m in measured_jobs_once()], COMPUTE)
    row = columns[data.draw(st.integers(0, len(columns) - 1))]
    at = data.draw(st.sampled_from([i for i, feature in enumerate(COMPUTE) if feature.sign]))
    raised = row.copy()
    raised[at] += data.draw(st.floats(0.0, 5.0))
    low, high = trained.learned.compute.trees.predict(np.array([row, raised]))
    assert high >= low - 1e-12


_ONCE: list[MeasuredJob] = []


def measured_jobs_once() -> list[MeasuredJob]:
    if not _ONCE:
        _ONCE.extend(measured_jobs())
    return _ONCE


# --- predictors


def test_boosting_learns_and_its_parts_add_up(measured: list[MeasuredJob], trained: Boosting) -> None:
    errors = [trained.predict(m.job).seconds / m.seconds - 1 for m in measured]
    assert np.abs(errors).mean() < 0.08
    several = next(m.job for m in measured if m.job.gpus == 8)
    parts = trained.explain(several)
    assert sum(parts.values()) == pytest.approx(trained.predict(several).seconds)
    assert parts["communication"] >= 0
    alone = trained.explain(several.replace(gpus=1))
    assert alone["communication"] == alone["overlap"] == 0
    assert trained.cost().runs == 72
    assert trained.cost().measured_s == 720.0


def test_a_run_takes_its_steps(trained: Boosting, measured: list[MeasuredJob]) -> None:
    job = measured[0].job
    step, run = trained.predict(job), trained.predict(job.replace(steps=250))
    assert run.seconds == pytest.approx(250 * step.seconds)
    assert run.p90_s / run.p10_s == pytest.approx(step.p90_s / step.p10_s)


def test_a_new_family_or_gpu_has_a_note_and_a_wider_interval(trained: Boosting, measured: list[MeasuredJob]) -> None:
    known = trained.predict(measured[0].job)
    assert known.notes == ()
    assert known.p10_s < known.seconds < known.p90_s
    family = trained.predict(Job("densenet121", precision="fp32", batch_size=16, gpu="v100-16gb-sxm"))
    hopper = trained.predict(measured[0].job.replace(gpu="h100-80gb-sxm"))
    assert "family densenet" in family.notes[0]
    assert "hopper" in hopper.notes[0]
    assert family.p90_s / family.p10_s >= known.p90_s / known.p10_s


def test_trained_on_one_gpu_it_refuses_several(measured: list[MeasuredJob]) -> None:
    predictor = Boosting(FEW)
    predictor.fit([m for m in measured if m.job.gpus == 1])
    assert predictor.predict(measured[0].job.replace(gpus=1)).seconds > 0
    with pytest.raises(PredictorError, match=r"jobs of one GPU.*gpus 8"):
        predictor.predict(measured[0].job.replace(gpus=8))


@pytest.mark.parametrize("kind", ["boosting", "blind", "residual", "simulator", "blind simulator"])
def test_save_and_load_without_pickle(kind: str, measured: list[MeasuredJob], tmp_path: Path) -> None:
    some = [m for m in measured if m.job.model == "resnet50" or m.job.gpus == 1]
    made: Predictor = {
        "boosting": lambda: Boosting(FEW),
        "blind": lambda: BlindBoosting("amp-fp16", setting=FEW),
        "residual": lambda: BoostingResidual(FEW, simulator=Simulator(rounds=1)),
        "simulator": lambda: Simulator(rounds=1),
        "blind simulator": lambda: BlindSimulator("fp32", rounds=1),
    }[kind]()
    made.fit(measured if kind in ("boosting", "blind") else some)
    made.save(tmp_path)
    assert {path.suffix for path in tmp_path.iterdir()} <= {".json", ".txt"}
    for path in tmp_path.glob("*.json"):
        json.loads(path.read_text(encoding="utf-8"))
    again = type(made).load(tmp_path)
    assert again.name == made.name
    assert again.cost() == made.cost()
    for each in some[::5]:
        before, after = made.predict(each.job), again.predict(each.job)
        assert after.seconds == pytest.approx(before.seconds, rel=1e-9)
        assert after.p90_s == pytest.approx(before.p90_s, rel=1e-9)


@pytest.mark.parametrize("name", ["boosting", "boosting-residual"])
def test_an_untrained_predictor_raises(name: str, tmp_path: Path) -> None:
    cls = predictor_class(name)
    assert cls.name == name
    with pytest.raises(PredictorError, match="not trained; call fit"):
        cls().predict(Job("resnet50"))
    with pytest.raises(PredictorError, match="not trained"):
        cls().save(tmp_path)
    with pytest.raises(PredictorError, match="holds no saved predictor"):
        cls.load(tmp_path)


def test_too_few_rows_and_another_predictors_folder(
    measured: list[MeasuredJob], trained: Boosting, tmp_path: Path
) -> None:
    with pytest.raises(PredictorError, match="boosting cannot be trained on 19 measured jobs"):
        Boosting().fit(measured[:19])
    with pytest.raises(PredictorError, match="in 2 groups; give at least 20 in 4"):
        Boosting().fit([m for m in measured if m.job.model == "resnet50"][:3] * 7)
    trained.save(tmp_path)
    with pytest.raises(PredictorError, match="holds predictor 'boosting', not 'boosting-blind'"):
        BlindBoosting.load(tmp_path)
    (tmp_path / "compute-0.txt").unlink()
    with pytest.raises(PredictorError, match=r"has no compute-0\.txt"):
        Boosting.load(tmp_path)


# --- blind twins


def test_the_blind_twin_ignores_dtype(measured: list[MeasuredJob], trained: Boosting) -> None:
    twin = predictor_class("boosting", blind=True)("fp32", setting=FEW)  # type: ignore[call-arg]
    longest = max((m for m in measured if m.precision == "fp32"), key=lambda m: m.seconds)
    with pytest.raises(PredictorError, match="cannot be trained on 18"):
        twin.fit(measured)
    twin = BlindBoosting("amp-fp16", setting=FEW)
    twin.fit(measured)
    assert twin.cost().runs == sum(m.precision == "amp-fp16" for m in measured)
    job = longest.job  # kernels limit it, and not the host
    asked = [job.replace(precision=p) for p in ("fp32", "amp-fp16", "fp16-master")]
    assert len({twin.predict(each).seconds for each in asked}) == 1
    assert len({trained.predict(each).seconds for each in asked}) == 3
    assert trained.predict(asked[0]).seconds > 1.2 * twin.predict(asked[0]).seconds  # it takes fp32 for half
    changed = [dataclasses.replace(m, seconds=99.0) if m.precision != "amp-fp16" else m for m in measured]
    before = twin.predict(job).seconds
    twin.fit(changed)
    assert twin.predict(job).seconds == before, "rows of other precisions teach it nothing"


def test_the_blind_twin_of_all_rows_sees_none_of_their_dtypes(measured: list[MeasuredJob]) -> None:
    twin = BlindBoosting("fp32", everything=True, setting=FEW)
    twin.fit(measured)
    assert twin.cost().runs == 72
    job = measured[0].job
    assert twin.predict(job).seconds == twin.predict(job.replace(precision="amp-fp16")).seconds


def test_a_twin_of_a_precision_the_gpu_lacks_takes_fp32(measured: list[MeasuredJob]) -> None:
    twin = BlindSimulator("tf32")
    job = Job("resnet50", precision="amp-fp16", batch_size=16, gpu="v100-16gb-sxm")
    assert twin.predict(job).seconds == Simulator().predict(job.replace(precision="fp32")).seconds


def test_a_twin_needs_rows_of_its_precision(measured: list[MeasuredJob]) -> None:
    with pytest.raises(PredictorError, match="no measured job ran in precision 'bf16-master'; measured ones: amp-fp16"):
        BlindBoosting("bf16-master").fit(measured)


# --- the simulator


def test_the_simulator_is_predict_before_a_fit_and_has_no_anchors_after_it(measured: list[MeasuredJob]) -> None:
    from precision_time.prediction import predict

    job = Job("resnet50", precision="amp-fp16", batch_size=256, gpu="v100-16gb-sxm", gpus=8)
    simulator = Simulator(rounds=1)
    assert simulator.predict(job).seconds == predict(job).step.p50
    taught = [dataclasses.replace(m, seconds=2 * m.seconds) for m in measured if m.job.gpus == 1]
    simulator.fit(taught)
    assert simulator.constants is not None
    assert simulator.predict(job).seconds == pytest.approx(predict(job, constants=simulator.constants).step.p50)
    assert simulator.step_seconds(job) == pytest.approx(simulator.predict(job).seconds, rel=1e-6)
    assert not predict(job, constants=simulator.constants).anchors.count
    slower = np.mean([simulator.predict(m.job).seconds / m.seconds for m in taught[::6]])
    assert 0.5 < slower < 1.5


def test_the_effect_of_leaving_out_a_family_needs_no_second_fit(measured: list[MeasuredJob]) -> None:
    """To first order: against a simulator that is really fitted without the family."""
    some = [m for m in measured if m.job.gpus == 1][::2]
    taught = [dataclasses.replace(m, seconds=m.seconds * (1.3 if m.family == "bert" else 1.0)) for m in some]
    families = sorted({m.family for m in taught})
    simulator = Simulator()
    simulator.fit(taught)
    moved = simulator.moved_without([families.index(m.family) for m in taught])
    without = Simulator()
    without.fit([m for m in taught if m.family != "bert"])
    really = [np.log(without.step_seconds(m.job) / simulator.step_seconds(m.job)) for m in taught]
    assert moved[families.index("bert")] == pytest.approx(really, abs=0.004)
    of_bert = [change for change, m in zip(really, taught, strict=True) if m.family == "bert"]
    assert min(of_bert) < -0.012  # else there is nothing to tell apart
    assert Simulator().moved_without([0, 1]) == {}
    with pytest.raises(PredictorError, match="fitted to 18 jobs, not 2"):
        simulator.moved_without([0, 1])


def test_fitting_the_simulator_needs_data_parallel_rows() -> None:
    job = Job("gpt2", precision="bf16-master", batch_size=2, gpus=8, grad_accum=4, layout="tp=2,pp=2")
    with pytest.raises(PredictorError, match="none of the 1 measured jobs is plain data parallel"):
        Simulator().fit([MeasuredJob("a", job, 1.0, "gpt")])


def test_boosting_residual_learns_the_residuals_of_the_simulator(measured: list[MeasuredJob]) -> None:
    simulator = Simulator(rounds=1)
    simulator.fit(measured)
    doubled = [dataclasses.replace(m, seconds=2.0 * simulator.step_seconds(m.job)) for m in measured]
    predictor = BoostingResidual(Setting(rounds=60, seeds=1), simulator=simulator)
    predictor.fit(doubled)
    ratio = np.mean([predictor.predict(m.job).seconds / m.seconds for m in doubled])
    assert ratio == pytest.approx(1.0, abs=0.1)
    assert simulator.step_seconds(doubled[0].job) == pytest.approx(doubled[0].seconds / 2)
