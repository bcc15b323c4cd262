"""Plans whose precision changes during the run, against predictions of single jobs; prices of reservations; the map of
goals that can be met."""

from __future__ import annotations

import pytest

from precision_time import predict
from precision_time.cli.main import main
from precision_time.errors import CatalogError, JobError
from precision_time.hardware.catalog import default_catalog
from precision_time.job import Job
from precision_time.plan import Goal, Plan, Space, plan
from precision_time.plan.figure import _reach
from precision_time.plan.offers import offers_of, placed_offers
from precision_time.plan.schedules import Schedule, parse_schedule
from precision_time.plan.space import candidates, steps_of

JOB = Job("resnet50", precision="amp-fp16", batch_size=256, gpus=8, run={"epochs": 90})
PLACE = {"providers": "aws", "gpu": "a100-40gb-sxm", "gpus": 8}
LIMITED = Goal(deadline_hours=8, budget_usd=300)


@pytest.fixture(scope="module")
def searched() -> Plan:
    return plan(JOB, LIMITED, Space(**PLACE, schedule="fp32:N%..amp-fp16"))


def test_texts() -> None:
    assert parse_schedule("schedule", "fp32:25%..mixed") == Schedule("fp32", "amp-fp16", 0.25)
    assert str(parse_schedule("schedule", " fp32 : N % .. amp-bf16 ")) == "fp32:N%..amp-bf16"
    assert [len(Schedule("fp32", "tf32").entries(share, 100)) for share in (0.0, 0.5, 1.0)] == [1, 2, 1]
    assert Schedule("fp32", "tf32").entries(1.0, 100)[0].precision == "fp32"
    assert Schedule("fp32", "tf32").entries(0.0, 100)[0].precision == "tf32"
    assert Schedule("fp32", "tf32").entries(0.3, 50)[1].from_step == 15


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("fp32", "no schedule"),
        ("fp32:..amp-fp16", "no schedule"),
        ("fp32:101%..amp-fp16", "whole run"),
        ("fp32:N%..float32", "fp32 twice"),
        ("fp33:N%..amp-fp16", "nearest: fp32"),
        (7, "no schedule"),
    ],
)
def test_texts_that_are_refused(text: object, says: str) -> None:
    with pytest.raises(JobError, match=says):
        Space(schedule=text)  # type: ignore[arg-type]


def test_both_a_precision_and_a_schedule() -> None:
    with pytest.raises(JobError, match="keep one"):
        Space(precision="fp32", schedule="fp32:N%..amp-fp16")  # type: ignore[arg-type]


def test_every_length_is_the_prediction_of_that_job(searched: Plan) -> None:
    """The best option of every tenth is the cheapest of the micro-batches, predicted one by one."""
    steps = steps_of(JOB, "amp-fp16", 2048)
    assert steps == predict(JOB).steps
    assert [round(option.share, 1) for option in searched.by_share] == [n / 10 for n in range(11)]
    meeting = [option for option in searched.by_share[1:-1] if option.chance >= 0.9]
    assert len(meeting) >= 2
    for option in (meeting[0], meeting[-1]):
        best = float("inf")
        for exponent in range(4, 9):
            job = JOB.replace(
                gpu="a100-40gb-sxm",
                batch_size=1 << exponent,
                grad_accum=256 >> exponent,
                precision=[
                    {"from_step": 0, "precision": "fp32"},
                    {"from_step": round(option.share * steps), "precision": "amp-fp16"},
                ],
            )
            found = predict(job)
            assert found.goodput is not None
            chance = found.memory.fit_probability * found.goodput.wall.probability(8 * 3600)
            if chance >= 0.9:
                best = min(best, found.goodput.wall.interval.p50 / 3600 * 21.957642)
        assert option.cost.interval.p50 == pytest.approx(best, rel=1e-6)
    # Where none meets the goal, the likeliest in time is the best option, not the cheapest.
    costs = [option.cost.interval.p50 for option in meeting]
    assert costs == sorted(costs)


def test_the_longest_first_part_that_meets_the_goal_is_chosen(searched: Plan) -> None:
    meeting = [option.share for option in searched.by_share if option.chance >= 0.9]
    assert 0.0 < max(meeting) < 1.0
    assert searched.chosen.share == max(meeting)
    assert all(option.share == max(meeting) for option in searched.front)
    text = str(searched)
    assert "fp32:N%..amp-fp16" in text
    assert text.count("misses the goal") == 11 - len(meeting)
    content = searched.to_dict()
    assert [each["share"] for each in content["by_share"]] == [option.share for option in searched.by_share]
    assert Job.from_dict(content["chosen"]["job"]).schedule[1].precision == "amp-fp16"


def test_without_limits_the_least_of_the_objective_is_chosen() -> None:
    found = plan(JOB, Goal(), Space(**PLACE, schedule="fp32:N%..amp-fp16"))
    assert found.chosen.share == 0.0
    assert len(found.by_share) == 11


def test_a_given_length() -> None:
    found = plan(JOB, LIMITED, Space(**PLACE, schedule="fp32:10%..amp-fp16"))
    assert found.by_share == ()
    assert found.chosen.assessed.precision == f"fp32, amp-fp16 from step {round(0.1 * (predict(JOB).steps or 0)):,}"
    assert found.chosen.share == pytest.approx(0.1)


def test_floors_of_schedules_leave_out_only_what_cannot_meet_the_goal() -> None:
    space = Space(providers="aws", gpu="l4", gpus=(1, 4), schedule="fp32:N%..amp-fp16")  # type: ignore[arg-type]
    goal = Goal(deadline_hours=5)
    kept, all_of = candidates(JOB, space, goal), candidates(JOB, space, Goal())
    assert len(kept.jobs) < len(all_of.jobs)
    left = [job for job in all_of.jobs if job not in kept.jobs]
    for job in left[::7]:
        found = predict(job)
        assert found.goodput is not None
        assert found.goodput.wall.quantiles[0] > 5 * 3600


# --- reservations


def test_prices_of_reservations() -> None:
    catalog = default_catalog()
    on_demand = placed_offers(offers_of(["aws"], catalog), "a100-40gb-sxm", 16, 8)
    both = placed_offers(offers_of(["aws"], catalog, reserved=True), "a100-40gb-sxm", 16, 8)
    assert [(o.usd_per_hour(16), o.reserved) for o in on_demand] == [(2 * 21.957642, False)]
    assert [(o.usd_per_hour(16), o.reserved) for o in both] == [(2 * 13.921094, True), (2 * 21.957642, False)]
    assert both[0].text(16) == "2 x p4d.24xlarge (aws us-east-1, reserved)"
    found = plan(JOB, Goal(), Space(**PLACE, reserved=True))
    assert found.chosen.offer.reserved
    assert "for a reservation" in str(found)
    assert found.chosen.cost.interval.p50 == pytest.approx(
        plan(JOB, Goal(), Space(**PLACE)).chosen.cost.interval.p50 * 13.921094 / 21.957642
    )
    with pytest.raises(CatalogError, match="no price of a reservation; known: aws"):
        offers_of(["gcp"], catalog, reserved=True)


# --- the map of goals


def test_goals_on_the_line_are_met_and_below_it_are_not() -> None:
    found = plan(JOB, Goal(), Space(providers="aws", gpu="a100-40gb-sxm,v100-16gb-sxm", gpus=(8, 16, 32)))  # type: ignore[arg-type]
    front = _reach(found.options, 0.9)
    assert len(front) >= 2

    def chance(seconds: float, usd: float) -> float:
        return max(
            o.assessed.fits * o.wall.probability(min(seconds, usd / o.usd_per_hour * 3600)) for o in found.options
        )

    for seconds, usd in front:
        assert chance(1.001 * seconds, 1.001 * usd) >= 0.9
        assert chance(0.999 * seconds, 0.999 * usd) < 0.9


def test_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    asked = "plan resnet50 --epochs 90 --batch-size 256 --gpus 8 --provider aws --gpu a100-40gb-sxm".split()
    assert main([*asked, "--schedule", "fp32:50%..amp-fp16", "--reserved"]) == 0
    printed = capsys.readouterr().out
    assert "amp-fp16 from step" in printed
    assert "reserved" in printed
