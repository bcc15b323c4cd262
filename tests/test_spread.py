"""The spread of an estimate: what a job adds that no fitted step has."""

from __future__ import annotations

import dataclasses
import math

import pytest

from precision_time import Job, predict
from precision_time.estimate import spread
from precision_time.estimate.interval import Z90
from precision_time.estimate.spread import OTHER_FRAMEWORK, JobFacts, SpreadTerms, kind_of, log_spread, novel

SEEN = {
    "family": ["resnet"], "gpu": ["a100"], "architecture": ["ampere"], "precision": ["amp-fp16"],
    "framework": ["pytorch"], "gpus": 64,
}  # fmt: skip
KNOWN = {
    "family": "resnet", "gpu": "a100", "architecture": "ampere", "precision": "amp-fp16", "framework": "pytorch",
    "gpus": 8,
}  # fmt: skip
NOTHING = SpreadTerms(0.0, 0.0, 0.0, 0.0, 0.0, 0.0)


@pytest.mark.parametrize(
    ("change", "names"),
    [
        ({}, []),
        ({"family": "vit"}, ["family"]),
        ({"gpu": "a30"}, ["gpu"]),
        ({"gpu": "h100", "architecture": "hopper"}, ["architecture"]),
        ({"precision": "fp64", "framework": "mxnet"}, ["precision", "framework"]),
        ({"gpus": 128}, ["scale"]),
        ({"gpus": 64}, []),
    ],
)
def test_what_is_new_about_a_job(change: dict[str, object], names: list[str]) -> None:
    assert novel(JobFacts(**{**KNOWN, **change}), SEEN) == names  # type: ignore[arg-type]


def test_new_facts_add_in_quadrature(monkeypatch: pytest.MonkeyPatch) -> None:
    fitted = {"log_spread": 0.05, "seen": SEEN, "novelty": {"family": 0.12, "gpu": 0.09, "architecture": 0.2}}
    monkeypatch.setattr(spread, "_fitted", lambda source: fitted)
    assert log_spread(NOTHING, JobFacts(**KNOWN)) == pytest.approx(0.05)  # type: ignore[arg-type]
    new = {**KNOWN, "family": "vit", "gpu": "a30"}
    assert log_spread(NOTHING, JobFacts(**new)) == pytest.approx(math.sqrt(0.05**2 + 0.12**2 + 0.09**2))  # type: ignore[arg-type]


def test_launches_that_fill_the_step_lengthen_it_as_a_whole() -> None:
    """Launch costs at their P90: nothing while the device takes twice as long, all of it once launches take the whole
    step, and between the two what they then exceed it by."""

    def host(busy: float, share: float = 0.0) -> float:
        return SpreadTerms(0.0, 0.0, share, 0.2, 0.0, 0.0, host_busy=busy).host

    assert [host(0.0), host(0.5), host(1.0)] == pytest.approx([0.0, 0.0, 0.2])
    assert host(0.9) == pytest.approx(0.2 + math.log(0.9) / Z90)
    assert host(0.5, share=0.3) == pytest.approx(0.3 * 0.2)


def test_nobody_knows_what_launches_cost_in_a_new_framework(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spread, "_fitted", lambda source: {"log_spread": 0.05, "seen": SEEN, "novelty": {}})
    launching = dataclasses.replace(NOTHING, host_spread=0.2, host_busy=1.0)
    new = {**KNOWN, "framework": "nemo"}
    assert log_spread(launching, JobFacts(**KNOWN)) == pytest.approx(math.hypot(0.05, 0.2))  # type: ignore[arg-type]
    wide = math.hypot(0.2, spread.NEW_FRAMEWORK_HOST_SPREAD)
    assert log_spread(launching, JobFacts(**new)) == pytest.approx(math.hypot(0.05, wide))  # type: ignore[arg-type]
    assert log_spread(NOTHING, JobFacts(**new)) == pytest.approx(0.05)  # type: ignore[arg-type]


def width(**fields: object) -> float:
    step = predict(Job("resnet50", **{"precision": "amp-fp16", "anchors": "none", **fields})).step  # type: ignore[arg-type]
    return math.log(step.p90 / step.p50)


def test_an_interval_is_wider_where_nothing_alike_was_measured() -> None:
    usual = width(gpu="a100-80gb-sxm")
    assert width(gpu="mi300x") > usual
    assert width(gpu="a100-80gb-sxm", precision="bf16") > usual


def test_kinds_of_steps_have_spreads_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    novelty = {"gpu": 0.1, "gpu:fp8": 0.3}
    fitted = {"log_spread": 0.05, "log_spread:fp8": 0.12, "seen": SEEN, "novelty": novelty}
    monkeypatch.setattr(spread, "_fitted", lambda source: fitted)
    for kind, base, new in (("fp8", 0.12, 0.3), ("whole", 0.05, 0.1), ("", 0.05, 0.1)):
        known = JobFacts(**KNOWN, kind=kind)  # type: ignore[arg-type]
        assert log_spread(NOTHING, known) == pytest.approx(base)
        assert log_spread(NOTHING, dataclasses.replace(known, gpu="a30")) == pytest.approx(math.hypot(base, new))
        assert log_spread(NOTHING, dataclasses.replace(known, family="vit")) == pytest.approx(base)  # which none says


@pytest.mark.parametrize(
    ("family", "precision", "layout", "kind"),
    [
        ("gpt", "fp8", "tp=2,dp=4", "fp8"), ("gpt", "bf16", "tp=2,dp=4", "divided"),
        ("gpt", "bf16", "pp=8,dp=1", "divided"), ("gpt", "bf16", "fsdp", "whole"),
        ("resnet", "bf16-master", "fsdp", "half"), ("resnet", "fp16", "ddp", "pure-half"),
        ("resnet", "amp-fp16", "ddp", "half"), ("resnet", "tf32", "ddp", "tf32"), ("resnet", "fp32", "ddp", "single"),
        ("bert", "fp64", "ddp", "double"), ("timm", "fp32", "ddp", "timm"),
    ],
)  # fmt: skip
def test_the_kind_of_a_step(family: str, precision: str, layout: str, kind: str) -> None:
    assert kind_of(family, precision, Job("gpt2", layout=layout, gpus=8, torch="1.12"), "rtx-3090") == kind


@pytest.mark.parametrize(
    ("framework", "family", "kind"),
    [
        ("tensorflow1", "bert", OTHER_FRAMEWORK), ("tensorflow2", "timm", OTHER_FRAMEWORK),
        ("paddle", "resnet", OTHER_FRAMEWORK),
        ("tensorflow2", "gpt", OTHER_FRAMEWORK), ("mxnet", "resnet", "half"), ("deepspeed", "gpt", "whole"),
    ],
)  # fmt: skip
def test_frameworks_for_which_pytorch_stands_are_a_kind(framework: str, family: str, kind: str) -> None:
    assert kind_of(family, "amp-fp16", Job("gpt2", framework=framework), "v100") == kind


def test_the_interval_of_a_framework_for_which_pytorch_stands_is_wider_and_says_so() -> None:
    there, here = (predict(Job("bert-large", precision="amp-fp16", framework=f)) for f in ("tensorflow2", "pytorch"))
    assert there.step.p90 / there.step.p50 > 1.05 * here.step.p90 / here.step.p50
    assert any(
        note.startswith("tensorflow2: PyTorch's operators and kernels, several for") for note in there.assumptions
    )
    assert not any("stand for its own" in note for note in here.assumptions)


def test_networks_of_timm_are_a_kind_where_their_table_is() -> None:
    """On another GPU or under a newer PyTorch they err like others (`benchmarks/results/unknown.md`)."""
    job = Job("timm:resnet18", precision="amp-fp16")
    for torch, gpu, kind in (("1.13", "rtx-3090", "timm"), (None, "rtx-3090", "half"), ("1.13", "v100", "half")):
        assert kind_of("timm", "amp-fp16", job.replace(torch=torch), gpu) == kind
