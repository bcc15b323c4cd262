"""Factors between kernels and whole steps: their groups, their fit to measured steps, and their remaining spread."""

from __future__ import annotations

import numpy as np
import pytest

from precision_time.estimate.assemble import spread_terms
from precision_time.fit import row_correlation
from precision_time.fit.cases import Case, cases
from precision_time.fit.factors import Fitted, fit
from precision_time.hardware.catalog import default_catalog
from precision_time.job import Job
from precision_time.measurements.row import Row, row_of
from precision_time.prediction import simulate_step
from precision_time.timeline.simulate import simulate
from precision_time.timing.constants import StepConstants
from precision_time.timing.program_times import TimedProgram
from precision_time.timing.step_factors import GROUP_PRIOR, GROUPS, Openness, group_seconds, parts, shipped_openness

CELLS = {
    "id": "x", "source": "repo@1:a", "trust": "A", "framework": "pytorch", "execution": "", "model": "resnet50",
    "model_config": "", "input": "", "batch_size": "64", "grad_accum": "", "gpus": "1", "nodes": "",
    "gpu": "v100-16gb-sxm", "system": "", "precision": "fp32", "parallelism": "", "optimizer": "",
    "memory_format": "", "attention": "", "recompute": "", "torch": "", "optimizer_impl": "", "ema": "",
    "no_sync": "", "communication_dtype": "",
    "step_time_s": "0.2", "notes": "",
}  # fmt: skip


def measured(**cells: str) -> Row:
    return row_of(2, {**CELLS, **cells})


def timed(model: str = "resnet50", precision: str = "amp-fp16", batch: int = 32) -> TimedProgram:
    job = Job(model, precision=precision, batch_size=batch)
    return simulate_step(job, job.precision_spec, default_catalog().cluster("a100-80gb-sxm", 1)).timed


# --- what shares a factor -------------------------------------------------------------------------------------------


def test_parts_of_a_factor_narrow_down() -> None:
    assert parts(("conv.nhwc", "ampere", "half")) == pytest.approx(
        {"conv": 0.8, "conv.nhwc": 0.56, "conv.nhwc|half": 0.56, "conv.nhwc|ampere|half": 0.4}
    )
    # A one-dimensional convolution departs from what holds for all.
    assert parts(("conv_1d", "volta", "fp32")) == pytest.approx(
        {"conv": 0.8, "conv_1d": 0.35, "conv_1d|fp32": 0.245, "conv_1d|volta|fp32": 0.175}
    )
    assert list(parts(("norm", "volta", "fp32"))) == ["norm", "norm|fp32", "norm|volta|fp32"]
    assert {group.partition(".")[0] for group in GROUPS} == set(GROUP_PRIOR)


def test_seconds_of_groups_add_up_to_the_step() -> None:
    """Summed by hand over the calls of the step; attention and optimizers have no factor, transposes their own."""
    program = timed()
    seconds_by_group = group_seconds(program, "ampere")
    times = np.zeros(len(program.program.kinds))
    (stage,) = program.program.stages
    for segment in stage.tails:
        np.add.at(times, segment.kind, 1.0)
    for index, repeat, _ in stage.chunks[0].units:
        for segment in (program.program.units[index].forward, program.program.units[index].backward):
            np.add.at(times, segment.kind, repeat)
    for kind, expected in (("conv.nchw", ("conv", "conv_few")), ("norm", GROUPS["norm"])):
        spent = np.array(
            [
                (program.work_s[i] * times[program.works.owner[i]], program.work_helpers[i])
                for i, family in enumerate(program.works.family)
                if family in expected
            ]
        )
        total = sum(
            seconds for (group, arch, _), seconds in seconds_by_group.items() if group == kind and arch == "ampere"
        )
        assert total == pytest.approx((spent[:, 0] * (1.0 - spent[:, 1])).sum())
        if kind == "conv.nchw":
            assert seconds_by_group["helpers", "ampere", "half"] == pytest.approx((spent[:, 0] * spent[:, 1]).sum())
            assert seconds_by_group["helpers", "ampere", "half"] > 0.1 * total


# --- what is left open ----------------------------------------------------------------------------------------------


def test_what_no_step_has_shown_is_as_open_as_its_prior() -> None:
    openness = Openness([], np.zeros((0, 0)))
    width = (0.35**2 + (0.7 * 0.35) ** 2 + (0.5 * 0.35) ** 2) ** 0.5
    assert openness.log_spread({("grouped", "volta", "half"): 0.2}, 1.0) == pytest.approx(0.2 * width)
    assert openness.log_spread({}, 1.0) == 0.0


def test_openness_follows_the_covariance_by_hand() -> None:
    names = list(parts(("norm", "volta", "fp32")))
    variance = np.diag([0.01, 0.0, 0.0])
    spread = Openness(names, variance).log_spread({("norm", "volta", "fp32"): 0.5}, 1.0)
    assert spread == pytest.approx(0.5 * 0.1)
    other = Openness(names, variance).log_spread({("norm", "hopper", "fp32"): 0.5}, 1.0)
    assert other == pytest.approx(0.5 * (0.1**2 + (0.5 * 0.15) ** 2) ** 0.5)


def test_a_class_of_kernels_that_no_step_covers_widens_the_interval() -> None:
    """Convolutions on an architecture of the fit, and on one it never saw."""
    program = timed()
    timeline = simulate(program)
    known = spread_terms(program, timeline, "ampere").factors
    unseen = spread_terms(program, timeline, "blackwell").factors
    assert 0.0 < known < unseen
    nothing = spread_terms(program, timeline, "ampere", Openness([], np.zeros((0, 0)))).factors
    assert nothing > 2 * known


def test_what_ships_is_a_covariance_narrower_than_the_priors() -> None:
    openness = shipped_openness()
    widths: dict[str, float] = {}
    for name in openness.names:
        group, *rest = name.split("|")
        widths |= parts((group if group in GROUPS else f"{group}.nchw", *(rest if len(rest) == 2 else ("x", "half"))))  # type: ignore[arg-type]
    assert np.allclose(openness.covariance, openness.covariance.T)
    assert np.linalg.eigvalsh(openness.covariance).min() > -1e-6
    deviations = dict(zip(openness.names, np.sqrt(np.diag(openness.covariance)), strict=True))
    assert deviations["conv"] < 0.5 * 0.80
    assert deviations["norm"] < 0.15 * 1.5


# --- covariance of the rows --------------------------------------------------------------------------------------


def test_rows_share_errors_by_family_and_arithmetic(monkeypatch: pytest.MonkeyPatch) -> None:
    """By hand: 0.3 for the family, 0.4 for its arithmetic, own errors of 0.1 and 0.2."""
    rows = [measured(), measured(id="y", precision="amp-fp16"), measured(id="z", model="bert-large", trust="C")]
    effects = dict.fromkeys(row_correlation.SHARED, 0.0)
    monkeypatch.setattr(row_correlation, "SHARED", {**effects, "family": 0.3, "family, class": 0.4})
    monkeypatch.setattr(row_correlation, "OWN", {"A": 0.1, "B": 0.1, "C": 0.2})
    covariance = row_correlation.error_covariance(rows, ["volta"] * 3, np.zeros(3))
    assert covariance == pytest.approx(np.array([[0.26, 0.09, 0.0], [0.09, 0.26, 0.0], [0.0, 0.0, 0.29]]))
    far = row_correlation.error_covariance(rows, ["volta"] * 3, np.array([0.6, 0.0, 0.0]))
    assert far[0, 0] == pytest.approx(0.25 + 0.02), "twice as far as allowed, twice the variance of its own"


def test_many_rows_of_one_family_count_little_more_than_one() -> None:
    """Forty rows of one model that are 20 % slow against five families that are each 20 % fast."""
    rows = [measured(id=str(i)) for i in range(40)]
    rows += [measured(id=m, model=m) for m in ("bert-large", "ncf", "waveglow", "jasper-10x5dr", "nnunet-2d")]
    slopes, wanted = np.ones((45, 1)), np.array([0.2] * 40 + [-0.2] * 5)
    weight = np.linalg.inv(row_correlation.error_covariance(rows, ["volta"] * 45, np.zeros(45)))
    estimate = float((slopes.T @ weight @ wanted)[0] / (slopes.T @ weight @ slopes + 0.15**-2)[0, 0])
    assert estimate < 0.0 < float(wanted.mean()), "as independent rows the one model would prevail"


@pytest.fixture(scope="module")
def fitted() -> tuple[list[Case], Fitted]:
    """Three jobs measured 30 % slower than the model without factors predicts."""
    rows = []
    for model, batch in (("resnet50", "64"), ("nnunet-2d", "8"), ("bert-large", "8")):
        (plain,) = cases([measured(id=model, model=model, batch_size=batch)])
        seconds = plain.seconds(StepConstants())
        rows.append(measured(id=model, model=model, batch_size=batch, step_time_s=str(1.3 * seconds)))
    traced = cases(rows)
    return traced, fit(traced)


def test_the_fit_approaches_the_measurements_and_narrows_the_spread(fitted: tuple[list[Case], Fitted]) -> None:
    traced, result = fitted
    for case in traced:
        plain, moved = (case.seconds(constants) for constants in (StepConstants(), result.constants))
        assert abs(case.row.measured_s - moved) < case.row.measured_s - plain
        timed = group_seconds(case.run(result.constants)[0], "volta")
        before = Openness([], np.zeros((0, 0))).log_spread(timed, moved)
        assert result.openness.log_spread(timed, moved) < before
    assert np.allclose(result.covariance, result.covariance.T)
    assert not any(":" in name for name in result.openness.names), "host and execution have spreads of their own"


def test_factors_without_measurements_keep_their_spread(fitted: tuple[list[Case], Fitted]) -> None:
    _, result = fitted
    key = ("depthwise", "volta", "half")
    wide = Openness([], np.zeros((0, 0))).log_spread({key: 1.0}, 1.0)
    assert result.openness.log_spread({key: 1.0}, 1.0) == pytest.approx(wide)


def test_static_graphs_of_other_frameworks_say_nothing_of_torchscript() -> None:
    """The same job, slower by half, as a step of TensorFlow 1 and as a scripted one of PyTorch."""
    theta = {}
    for framework, execution in (("tensorflow1", ""), ("pytorch", "torchscript")):
        row = measured(framework=framework, execution=execution, step_time_s="1.5")
        fitted = fit(cases([row]), iterations=2)
        theta[framework] = dict(zip(fitted.parameters.names, fitted.theta.tolist(), strict=True))[
            "execution:torchscript"
        ]
    assert theta["tensorflow1"] == 0.0
    assert theta["pytorch"] > 0.01
