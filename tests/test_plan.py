"""Plans against brute force, layouts against their rules, prices, chances, time limits."""

from __future__ import annotations

import itertools
import json
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from precision_time import predict
from precision_time.cli.main import main
from precision_time.errors import CatalogError, DataError, JobError, PlanError
from precision_time.global_batch import global_batch_of
from precision_time.hardware.catalog import default_catalog
from precision_time.job import Job
from precision_time.plan import Goal, Plan, Space, plan, rank_layouts
from precision_time.plan.goal import deadline_hours
from precision_time.plan.grid import grid_of, grids
from precision_time.plan.layouts import LEAST_TOKENS, Parts, arranged, layouts_of
from precision_time.plan.offers import offers_of, placed_offers
from precision_time.plan.options import front
from precision_time.plan.space import counts_of
from precision_time.plan.walltime import slurm_time, time_limit
from precision_time.plan.worth import worth_measuring

JOB = Job("resnet50", precision="amp-fp16", batch_size=256, gpus=8, run={"epochs": 90})
SMALL = Space(providers=("aws",), gpu=("a100-40gb-sxm", "v100-16gb-sxm"), gpus=(8, 16), precision=("amp-fp16", "fp32"))


@pytest.fixture(scope="module")
def small() -> Plan:
    return plan(JOB, Goal(deadline_hours=30, budget_usd=400), SMALL)


# --- the choice


def test_the_choice_is_that_of_brute_force(small: Plan) -> None:
    """Every GPU type, count, precision and micro-batch predicted one by one, with prices from the list by hand."""
    usd_per_hour = {"a100-40gb-sxm": 21.957642, "v100-16gb-sxm": 24.48}  # p4d.24xlarge, p3.16xlarge
    best: tuple[float, ...] | None = None
    meeting = 0
    for gpu, gpus, precision in itertools.product(usd_per_hour, (8, 16), ("amp-fp16", "fp32")):
        for exponent in range(12):
            batch = 1 << exponent
            if 2048 % (batch * gpus):
                continue
            job = JOB.replace(
                gpu=gpu, gpus=gpus, precision=precision, batch_size=batch, grad_accum=2048 // batch // gpus
            )
            found = predict(job)
            assert found.goodput is not None
            hourly = usd_per_hour[gpu] * gpus / 8
            wall = found.goodput.wall
            chance = found.memory.fit_probability * wall.probability(min(30 * 3600, 400 / hourly * 3600))
            if chance >= 0.9:
                meeting += 1
                candidate = (wall.interval.p50 / 3600 * hourly, wall.interval.p50, gpus, batch)
                best = min(best or candidate, candidate)
    assert best is not None
    chosen = small.chosen
    assert chosen.objective("cost") == pytest.approx(best[0])
    assert (chosen.assessed.job.gpus, chosen.assessed.job.batch_size) == best[2:]
    assert len(small.others) == meeting


def test_every_candidate_trains_on_the_same_samples(small: Plan) -> None:
    for option in small.options:
        job = option.assessed.job
        assert job.batch_size is not None
        assert job.batch_size * job.grad_accum * job.layout_spec.dp == 2048


def test_the_front_is_what_nothing_beats(small: Plan) -> None:
    values = {o: (o.objective("time"), o.objective("cost")) for o in small.others}
    for option in small.others:
        beaten = any(
            a <= values[option][0] and b <= values[option][1] and (a, b) != values[option] for a, b in values.values()
        )
        if option in small.front:
            assert not beaten
    assert {values[o] for o in small.front} == {v for o, v in values.items() if not any(
        a <= v[0] and b <= v[1] and (a, b) != v for a, b in values.values()
    )}  # fmt: skip
    assert front(small.others, "energy")


@pytest.mark.parametrize("objective", ["cost", "time", "energy", "co2"])
def test_the_chosen_option_has_the_least_of_the_objective(objective: str) -> None:
    space = Space(providers=("aws",), gpu=("a100-40gb-sxm", "l4"), gpus=(4, 8), grid="germany", pue=1.2)
    found = plan(JOB, Goal(objective=objective), space)
    assert found.chosen.objective(objective) == min(o.objective(objective) for o in found.options)
    energy, co2 = found.chosen.energy_kwh, found.chosen.co2_kg
    assert energy is not None
    assert co2 is not None
    assert co2.p50 == pytest.approx(energy.p50 * 0.381)
    assert found.chosen.assessed.energy_j is not None
    assert energy.p50 == pytest.approx(found.chosen.assessed.energy_j.p50 * 1.2 / 3.6e6)


def test_chances_are_those_of_the_distribution(small: Plan) -> None:
    for option in small.options:
        assert option.in_time == pytest.approx(option.finish.probability(30 * 3600))
        assert option.in_budget == pytest.approx(option.cost.probability(400), abs=1e-9)
        assert option.chance <= min(option.in_time, option.in_budget, option.assessed.fits) + 1e-12


def test_time_in_a_queue_counts_for_the_deadline_and_costs_nothing() -> None:
    space = Space(providers=("aws",), gpu=("a100-40gb-sxm",), gpus=(8,))
    free, queued = (
        plan(JOB.replace(queue_s=seconds), Goal(deadline_hours=12), space) for seconds in (None, 5 * 3600.0)
    )
    assert queued.chosen.cost.interval.p50 == pytest.approx(free.chosen.cost.interval.p50)
    assert queued.chosen.finish.interval.p50 == pytest.approx(free.chosen.finish.interval.p50 + 5 * 3600)
    with pytest.raises(PlanError, match="deadline"):
        plan(JOB.replace(queue_s=10 * 3600.0), Goal(deadline_hours=12), space)


def test_two_processes_give_the_same_plan(small: Plan) -> None:
    again = plan(JOB, small.goal, small.space, workers=2)
    assert again.to_dict() == small.to_dict()


def test_the_text_and_the_json(small: Plan) -> None:
    text = str(small)
    assert text.startswith("launch on 1 x p4d.24xlarge (aws us-east-1): 8 x a100-40gb-sxm, amp-fp16, dp · 256 x 1")
    assert "left out:" in text
    assert "looked up" in text
    content = json.loads(json.dumps(small.to_dict()))
    assert content["chosen"]["rented"]["source"]
    assert content["worth_measuring"]["half_width_after"] < content["worth_measuring"]["half_width_before"]
    assert Job.from_dict(content["chosen"]["job"]) == small.chosen.assessed.job


def test_a_measurement_is_named_that_narrows_the_best(small: Plan) -> None:
    found = worth_measuring(small)
    assert found is not None
    assert found.after < found.before
    # as the anchor itself would
    line = f"gpus={found.job.gpus},batch_size={found.job.batch_size},grad_accum={found.job.grad_accum}"
    step = predict(found.job).step
    measured = predict(found.job.replace(anchors=["published", f"{line},step_time_s={step.p50!r}"])).step
    assert measured.p90 / measured.p10 < step.p90 / step.p10


# --- what cannot be met


@pytest.mark.parametrize(
    ("goal", "says"),
    [
        (Goal(deadline_hours=0.01), r"nothing meets the deadline with 90%: the earliest finish is in .* \(16 x a100"),
        (Goal(budget_usd=1), r"nothing meets the budget with 90%: it takes \$\d+ \(8 x "),
        (
            Goal(deadline_hours=1.95, budget_usd=40),
            r"budget with 90%: in 117 min it takes \$79 .*; the cheapest takes \$75",
        ),
        (Goal(deadline_hours=1.95, budget_usd=76), r"the deadline and the budget together .* with \$76 the earliest"),
    ],
)
def test_what_binds_and_the_nearest_goal(goal: Goal, says: str) -> None:
    with pytest.raises(PlanError, match=says) as error:
        plan(JOB, goal, SMALL)
    assert "\n" not in str(error.value)


def test_the_nearest_goal_can_be_met() -> None:
    """The dollars and hours that the sentence names, taken as the goal, have a plan."""
    import re

    with pytest.raises(PlanError) as error:
        plan(JOB, Goal(budget_usd=1), SMALL)
    dollars = re.search(r"takes \$([\d,]+)", str(error.value))
    assert dollars is not None
    assert plan(JOB, Goal(budget_usd=int(dollars[1].replace(",", "")) + 1), SMALL).chosen


@pytest.mark.parametrize(
    ("job", "goal", "space", "error", "says"),
    [
        (JOB.replace(epochs=None), Goal(), SMALL, JobError, "needs the length"),
        (JOB, Goal(objective="co2"), SMALL, JobError, "needs a grid"),
        (JOB, Goal(), Space(providers=("awz",)), CatalogError, "nearest: aws"),
        (JOB, Goal(), Space(gpu=("a1000",)), CatalogError, "a100"),
        (JOB, Goal(), Space(precision=("fp33",)), JobError, "fp32"),
        (JOB, Goal(), Space(providers=("aws",), gpu=("rtx-3090",)), PlanError, "no known price"),
        (JOB, Goal(), Space(gpu=("v100-16gb-sxm",), precision=("fp8",), gpus=(8,)), PlanError, "no fp8 peak"),
        (JOB.replace(batch_size=3), Goal(), Space(gpu=("l4",), gpus=(16,)), PlanError, "share the global batch"),
        (JOB, Goal(), Space(gpu=("l4",), gpus=(1,), global_batch_size=2**20 + 1), PlanError, "nothing fits with|share"),
    ],
)  # fmt: skip
def test_what_is_refused(job: Job, goal: Goal, space: Space, error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says):
        plan(job, goal, space)


# --- words


@pytest.mark.parametrize(
    ("text", "hours"),
    [("36h", 36), ("3d", 72), ("90 min", 1.5), ("2026-12-04 18:00", 42), ("2026-12-03T06:00", 6), ("2026-12-03", 24)],
)
def test_deadlines(text: str, hours: float) -> None:
    assert deadline_hours(text, datetime(2026, 12, 3, 0, 0)) == pytest.approx(hours)


@pytest.mark.parametrize(
    ("text", "says"),
    [("2026-12-02 18:00", "in the past"), ("soon", "no date"), ("3 fortnights", "unit 'fortnights'"), ("", "no date")],
)
def test_deadlines_that_are_refused(text: str, says: str) -> None:
    with pytest.raises(JobError, match=says):
        deadline_hours(text, datetime(2026, 12, 3, 0, 0))


def test_counts() -> None:
    assert counts_of("gpus", "8..256") == (8, 16, 32, 64, 128, 256)
    assert counts_of("gpus", "6..30") == (6, 12, 24)
    assert counts_of("gpus", "8,12,8") == (8, 12)
    assert counts_of("gpus", 4) == (4,)
    for wrong in ("16..8", "", "a..b", "0,1", {"a": 1}):
        with pytest.raises(JobError, match="gpus"):
            counts_of("gpus", wrong)


def test_grids() -> None:
    assert grid_of("Germany").grams_per_kwh == 381
    assert grid_of("United States") is grids()["united-states"]
    assert grid_of(17).grams_per_kwh == 17
    for wrong in ("germani", -3, 1e9):
        with pytest.raises(CatalogError, match="grid"):
            grid_of(wrong)


# --- prices


def test_a_skypilot_catalog(tmp_path: Path) -> None:
    """The cheapest region of every instance; rows without a GPU of the catalog or a price are left."""
    path = tmp_path / "vms.csv"
    path.write_text(
        "InstanceType,AcceleratorName,AcceleratorCount,vCPUs,MemoryGiB,Price,SpotPrice,Region,GpuInfo\n"
        "p4d.24xlarge,A100,8.0,96,1152,32.77,12.1,us-east-1,\n"
        "p4d.24xlarge,A100,8.0,96,1152,30.50,12.1,us-west-2,\n"
        "g9.huge,Unheard,1,4,16,0.1,,us-east-1,\n"
        "NV6ads,A100,0.167,6,55,0.45,,eastus,\n"
        "m5.large,,,2,8,0.096,0.03,us-east-1,\n"
        "p5.48xlarge,H100,8,192,2048,,20.0,us-east-1,\n",
        encoding="utf-8",
    )
    offers = offers_of([str(path)], default_catalog())
    assert [(o.gpu, o.usd_per_hour(8), o.text(16)) for o in offers] == [
        ("a100-40gb-sxm", 30.5, "2 x p4d.24xlarge (vms us-west-2)")
    ]
    found = plan(JOB, Goal(), Space(providers=(str(path),), gpus=(8, 16)))
    assert found.chosen.usd_per_hour == pytest.approx(30.5 * found.chosen.assessed.job.gpus / 8)
    path.write_text("InstanceType,Price\na,1\n", encoding="utf-8")
    with pytest.raises(DataError, match="no column acceleratorname"):
        offers_of([str(path)], default_catalog())
    path.write_text("InstanceType,AcceleratorName,AcceleratorCount,Price,Region\na,A100,eight,1,x\n", encoding="utf-8")
    with pytest.raises(DataError, match="line 2"):
        offers_of([str(path)], default_catalog())


def test_a_cluster_of_ones_own(tmp_path: Path) -> None:
    path = tmp_path / "our-cluster.yaml"
    path.write_text("{gpu: h100, gpus: 16, usd_per_gpu_hour: 2.5}", encoding="utf-8")
    (offer,) = offers_of([str(path)], default_catalog())
    assert (offer.provider, offer.gpu, offer.usd_per_hour(12)) == ("our-cluster", "h100-80gb-sxm", 30.0)
    assert placed_offers([offer], offer.gpu, 16, 8) == [offer]
    assert placed_offers([offer], offer.gpu, 32, 8) == []
    path.write_text("{gpu: h100, gpus: 16}", encoding="utf-8")
    found = plan(JOB, Goal(objective="time"), Space(providers=(str(path), "aws"), gpus=(8, 16)))
    assert found.chosen.cost.interval.p50 == 0.0 or found.chosen.offer.price is not None
    cheapest = plan(JOB, Goal(budget_usd=1), Space(providers=(str(path),), gpus=(8, 16)))
    assert "have no price" in str(cheapest)
    for text, says in (
        ("{gpu: h100}", "gpus"),
        ("{gpu: h100, gpus: 8, usd: 3}", "usd"),
        ("{gpu: h1, gpus: 8}", "h100"),
    ):
        path.write_text(text, encoding="utf-8")
        with pytest.raises(CatalogError, match=says):
            offers_of([str(path)], default_catalog())


def test_whole_instances_that_hold_a_node_are_rented() -> None:
    offers = offers_of(["aws"], default_catalog())
    (eight,) = placed_offers(offers, "h100-80gb-sxm", 8, 8)
    assert eight.price is not None
    assert eight.price.instance == "p5.48xlarge"  # not 8 x p5.4xlarge, whose GPUs talk over a network
    (one,) = placed_offers(offers, "h100-80gb-sxm", 1, 1)
    assert one.price is not None
    assert one.price.instance == "p5.4xlarge"


# --- layouts

LLAMA = Job("llama3-8b", precision="bf16-master", gpu="h100-80gb-sxm", gpus=16, input={"seq_len": 8192}, batch_size=1)
MOE = Job("mixtral-8x7b", precision="bf16-master", gpu="h100-80gb-sxm", gpus=16, batch_size=1)


@pytest.mark.parametrize("job", [LLAMA, MOE, JOB], ids=lambda job: job.model)
def test_layouts_obey_the_rules(job: Job) -> None:
    parts = Parts.of(job, 8)
    layouts = list(layouts_of(parts, 16, 8))
    assert len({layout.text() for layout in layouts}) == len(layouts)
    for layout in layouts:
        assert layout.gpus == 16
        assert parts.blocks % (layout.pp * layout.vpp) == 0
        assert layout.tp in parts.tensor
        assert layout.cp == 1 or parts.tokens / layout.cp >= LEAST_TOKENS
        assert layout.ep == 1 or (parts.experts % layout.ep == 0 and layout.etp == 1)
        assert layout.zero <= (1 if layout.pp > 1 else 3)
        assert layout.sp == (layout.tp > 1)
    degrees = {(layout.tp, layout.pp, layout.cp, layout.ep) for layout in layouts}
    if job is LLAMA:  # 32 blocks, 32 heads of which 8 are of keys, 8,192 tokens
        expected = {
            (tp, pp, cp, 1)
            for tp, pp, cp in itertools.product((1, 2, 4, 8), (1, 2, 4, 8, 16), (1, 2, 4))
            if 16 % (tp * pp * cp) == 0
        }
        assert degrees == expected
    if job is MOE:
        assert {ep for *_, ep in degrees} == {1, 2, 4, 8}
    if job is JOB:
        assert {layout.text() for layout in layouts} == {"dp", "zero1", "zero2", "fsdp", "hsdp=8"}


@pytest.mark.parametrize("job", [LLAMA, MOE], ids=lambda job: job.model)
def test_every_layout_can_be_predicted(job: Job) -> None:
    for index, each in enumerate(arranged(job, 16, 8, 64)):
        assert each.batch_size is not None
        assert each.batch_size * each.grad_accum * each.layout_spec.dp == 64
        if index % 40 == 0:
            assert predict(each).step.p50 > 0


def test_layouts_ranked() -> None:
    ranked = rank_layouts(LLAMA, global_batch=64)
    steps = [row.step.p50 for row in ranked.rows if row.step]
    assert steps == sorted(steps)
    assert len(steps) + ranked.unfit == ranked.tried
    best = ranked.rows[0]
    again = predict(best.job)
    assert again.step.p50 == pytest.approx(steps[0])
    assert again.memory.fits
    tokens = 64 * 8192
    found = again.utilisation
    assert found is not None
    assert best.mfu == pytest.approx(found.model_flops / steps[0] / 16 / 989e12, rel=0.01)
    assert f"{ranked.tried} layouts of a global batch of 64 samples" in str(ranked)
    assert json.loads(json.dumps(ranked.to_dict()))["layouts"][0]["tokens_per_s"] == pytest.approx(tokens / steps[0])


def test_layouts_that_cannot_be() -> None:
    with pytest.raises(JobError, match="misses by"):
        rank_layouts(Job("llama3.1-70b", precision="bf16-master", gpu="l4", gpus=2))
    with pytest.raises(JobError, match="--global-batch-size"):
        rank_layouts(JOB, global_batch=7)
    assert global_batch_of(JOB) == 2048


# --- time limits


@pytest.mark.parametrize(
    ("seconds", "text"), [(60, "00:01:00"), (86_400, "1-00:00:00"), (93_784, "1-02:03:04"), (3_600, "01:00:00")]
)
def test_slurm_times(seconds: int, text: str) -> None:
    assert slurm_time(seconds) == text


def test_time_limits() -> None:
    job = JOB.replace(queue_s=1000)
    estimate = predict(job)
    assert estimate.goodput is not None
    p95 = estimate.goodput.wall.quantile(0.95)
    assert time_limit(estimate).seconds - 1 < p95 <= time_limit(estimate).seconds
    slurm = time_limit(estimate, form="slurm")
    assert slurm.seconds % 60 == 0
    assert slurm.seconds - 60 < p95 <= slurm.seconds
    assert slurm.text == f"#SBATCH --time={slurm_time(slurm.seconds)}"
    resumable = predict(job.replace(checkpoint_every_s=600, checkpoint_s=1))
    assert "--time-min=" in time_limit(resumable, form="slurm").text
    assert f'max-exec-time-seconds: "{time_limit(estimate).seconds}"' in time_limit(estimate, form="kueue").text
    for form in ("trainjob", "job"):  # the clock starts at creation
        limit = time_limit(estimate, form=form)
        assert limit.seconds - time_limit(estimate).seconds in (999, 1000, 1001)
        assert limit.text == f"spec:\n  activeDeadlineSeconds: {limit.seconds}"
    with pytest.raises(JobError, match="needs the length"):
        time_limit(predict(JOB.replace(epochs=None)))
    for wrong in ({"form": "pbs"}, {"confidence": 2}):
        with pytest.raises(JobError):
            time_limit(estimate, **wrong)  # type: ignore[arg-type]


@given(st.floats(0.5, 0.999), st.floats(0.5, 0.999))
def test_more_confidence_asks_for_more_time(a: float, b: float) -> None:
    estimate = predict(JOB)
    low, high = sorted((a, b))
    assert time_limit(estimate, low).seconds <= time_limit(estimate, high).seconds


# --- the command line


def test_commands(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib")
    picture = tmp_path / "plan.svg"
    asked = (
        "plan resnet50 --epochs 90 --batch-size 256 --global-batch-size 2048 --precision amp-fp16 --gpus 8,16 "
        f"--provider aws --gpu a100-40gb-sxm --deadline 36h --budget 300 --plot {picture}"
    )
    assert main(asked.split()) == 0
    out = capsys.readouterr().out
    assert "launch on 1 x p4d.24xlarge" in out
    assert "a100-40gb-sxm" in picture.read_text(encoding="utf-8")
    assert main([*asked.split()[:-2], "--json", "--plot", str(tmp_path / "plan.html")]) == 0
    assert json.loads(capsys.readouterr().out)["chosen"]["gpus"] == 8
    assert (
        main("layouts llama3-8b --gpu h100 --gpus 8 --precision bf16-master --global-batch-size 16 --top 3".split())
        == 0
    )
    assert "MFU" in capsys.readouterr().out
    assert main("walltime resnet50 --epochs 90 --gpus 8 --precision amp-fp16 --format slurm".split()) == 0
    assert capsys.readouterr().out.startswith("#SBATCH --time=")


@pytest.mark.parametrize(
    ("command", "says"),
    [
        ("plan resnet50", "needs the length of the run"),
        ("plan resnet50 --epochs 1 --deadline 2020-01-01", "in the past"),
        ("plan resnet50 --epochs 1 --budget much", "budget_usd"),
        ("plan resnet50 --epochs 1 --confidence 2", "confidence"),
        ("plan resnet50 --epochs 1 --objective fun", "objective"),
        ("plan resnet50 --epochs 1 --provider nowhere.csv", "nowhere.csv"),
        ("plan resnet50 --epochs 1 --gpus 8..", "gpus"),
        ("plan resnet50 --epochs 1 --workers many", "--workers"),
        ("plan resnet50 --epochs 1 --grid atlantis", "grid"),
        ("layouts resnet50 --top none", "--top"),
        ("walltime resnet50", "needs the length"),
        ("walltime resnet50 --epochs 1 --format pbs", "format"),
    ],
)
def test_commands_that_are_refused(command: str, says: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(command.split()) == 2
    printed: Any = capsys.readouterr()
    assert printed.out == ""
    assert says in printed.err
    assert printed.err.count("\n") == 1


def test_floors_leave_out_only_what_cannot_meet_the_goal() -> None:
    """The floor of every candidate is below the P1 of its run, and with floors the plan is that without them."""
    from precision_time.plan.floors import Work
    from precision_time.plan.space import candidates

    catalog = default_catalog()
    for job, types in ((JOB, ("a100-40gb-sxm", "v100-16gb-sxm", "l4")), (LLAMA.replace(steps=100), ("h100-80gb-sxm",))):
        work = Work.of(job, job.precision, global_batch_of(job))
        assert work.flops
        for gpu, gpus in itertools.product(types, (8, 16)):
            placed = job.replace(gpu=gpu, gpus=gpus, layout="fsdp" if job is not JOB else "dp")
            placed = placed.replace(batch_size=global_batch_of(job) // gpus)
            found = predict(placed)
            assert found.goodput is not None
            assert 0 < work.seconds(catalog.gpu(gpu), gpus) < found.goodput.wall.quantiles[0]
    space = Space(providers=("aws",), gpu=("a100-40gb-sxm", "l4", "t4"), gpus=(1, 2, 4, 8, 16))
    goal = Goal(deadline_hours=2.9)
    pruned = candidates(JOB, space, goal)
    assert pruned.pruned
    assert any("even at the peak" in kind for kind, _ in pruned.refused)
    assert len(pruned.jobs) < len(candidates(JOB, space, Goal()).jobs)
    found = plan(JOB, goal, space)
    everything = plan(JOB, Goal(), space)
    meeting = [o for o in everything.options if o.assessed.fits * o.finish.probability(2.9 * 3600) >= 0.9]
    assert len(found.others) == len(meeting)
    assert found.chosen.to_dict()["job"] == min(meeting, key=lambda o: o.objective("cost")).to_dict()["job"]


def test_a_schedule_is_not_planned() -> None:
    scheduled = JOB.replace(schedule=[{"from_step": 0, "precision": "fp32"}, {"from_step": 9, "precision": "amp-fp16"}])
    with pytest.raises(JobError, match="schedule"):
        plan(scheduled)


def test_no_plan_is_surer_than_a_job_is_said_to_fit() -> None:
    assert plan(JOB, Goal(confidence=0.98), Space(providers=("aws",), gpu=("a100-80gb-sxm",), gpus=(8,))).chosen
    with pytest.raises(JobError, match=r"from 0.5 to 0.98"):
        Goal(confidence=0.99)


@pytest.mark.parametrize(
    "fields",
    [
        {"recompute": "full", "recompute_layers": 16},
        {"layout": "zero3", "framework": "deepspeed", "offload": "optimizer", "offload_ratio": 0.5},
    ],
    ids=str,
)
def test_fields_that_go_with_others_are_planned(fields: dict[str, Any]) -> None:
    """The work of a job is that of one GPU without recomputation and offloading, where these fields have no place."""
    words: dict[str, Any] = {"precision": "bf16-master", "batch_size": 4, "gpus": 8, "layout": "fsdp", **fields}
    job = Job("gpt2", run={"samples": 10_000}, **words)
    space = Space(providers=("aws",), gpu=("h100-80gb-sxm",), gpus=(8,), precision=("bf16-master",))
    assert plan(job, Goal(deadline_hours=100.0), space).options
