"""PredictDDL around the encoder: columns, regressors, folds, confidence, the checker, storage."""

from __future__ import annotations

import csv
import dataclasses
import math
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.papers.random_networks import random_networks
from precision_time.errors import CatalogError, DataError, JobError, PredictorError
from precision_time.job.job import Job
from precision_time.predictors.interface import Z90, MeasuredJob, Predictor
from precision_time.predictors.predictddl import PredictDDL
from precision_time.predictors.predictddl.confidence import likeness
from precision_time.predictors.predictddl.facts import facts_of
from precision_time.predictors.predictddl.features import GROUPS, PUBLISHED, columns, matrix
from precision_time.predictors.predictddl.predictor import embedder_of
from precision_time.predictors.predictddl.primitives import Primitive
from precision_time.predictors.predictddl.regressors import LINEAR, MLP, QUADRATIC, SVR, Setting, fit
from precision_time.predictors.predictddl.selection import choose, grouped_folds
from precision_time.predictors.predictddl.trainer import OTHER_GPU, Design
from precision_time.predictors.runs import read_runs
from predictddl_cases import IMAGE_MODELS, lawful, network

QUICK = Design(settings=(Setting(LINEAR, (("alpha", 0.1),)), Setting(SVR, (("C", 100.0), ("width", 0.1)))))


@cache
def rows() -> tuple[MeasuredJob, ...]:
    return tuple(lawful())


@cache
def trained() -> PredictDDL:
    made = PredictDDL(QUICK)
    made.fit(rows())
    return made


# --- columns ---------------------------------------------------------------------------------------------------------


def test_the_columns_of_a_job_worked_by_hand() -> None:
    job = Job("resnet50", batch_size=32, gpus=16, nodes=2, gpu="a100-80gb-sxm", precision="amp-bf16",
              run={"dataset": "imagenet", "samples": 51200})  # fmt: skip
    row = columns(facts_of(job), np.arange(32.0))
    assert row["graph.07"] == 7.0
    assert row["size.log_params"] == pytest.approx(math.log(25_557_033))
    assert row["cluster.ranks"] == 16.0
    assert row["cluster.1/ranks"] == 1 / 16
    assert row["cluster.log_nodes"] == pytest.approx(math.log(2))
    assert row["cluster.log_bf16"] == pytest.approx(math.log(312e12))
    assert row["run.log_batch"] == pytest.approx(math.log(32))
    assert row["run.log_samples"] == pytest.approx(math.log(51200))
    assert row["run.log_steps"] == pytest.approx(math.log(51200 / (32 * 16)))
    assert row["run.log_resolution"] == pytest.approx(math.log(224))
    assert row["precision.log_peak"] == pytest.approx(math.log(312e12))
    assert row["precision.log_width"] == pytest.approx(math.log(2))


def test_ablations_really_remove_their_columns() -> None:
    facts = facts_of(rows()[0].job)
    whole = columns(facts, np.zeros(32))
    for gone in GROUPS:
        left = columns(facts, np.zeros(32), [group for group in GROUPS if group != gone])
        assert {name for name in whole if not name.startswith(f"{gone}.")} == set(left)
        assert len(left) < len(whole)
    with pytest.raises(PredictorError, match="nearest: graph"):
        columns(facts, np.zeros(32), ["grapf"])


def test_without_precision_columns_two_precisions_have_the_same_time() -> None:
    blind = PredictDDL(dataclasses.replace(QUICK, groups=PUBLISHED, law=False))
    blind.fit(rows())
    job = rows()[0].job
    assert blind.predict(job).seconds == blind.predict(job.replace(precision="amp-bf16")).seconds
    assert trained().predict(job).seconds != trained().predict(job.replace(precision="amp-bf16")).seconds


def test_a_random_encoder_gives_other_vectors_than_the_shipped_one() -> None:
    network = facts_of(rows()[0].job).network
    assert np.abs(embedder_of("random")(network) - embedder_of("pretrained")(network)).max() > 0.1
    with pytest.raises(PredictorError, match="use pretrained or random"):
        embedder_of("other")(network)


# --- regressors and folds --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("setting", "law"),
    [
        (Setting(LINEAR, (("alpha", 1e-6),)), lambda x: 3 * x[:, 0] - x[:, 1] + 2),
        (Setting(QUADRATIC, (("alpha", 1e-6),)), lambda x: x[:, 0] * x[:, 1] - x[:, 2] ** 2),
        (Setting(SVR, (("C", 1000.0), ("width", 0.5))), lambda x: np.sin(x[:, 0]) + x[:, 1]),
        (Setting(MLP, (("alpha", 1e-4),)), lambda x: np.abs(x[:, 0]) + x[:, 1]),
    ],
)
def test_each_regressor_learns_a_law_of_its_kind(setting: Setting, law) -> None:
    x = np.random.default_rng(0).normal(size=(200, 3))
    fitted = fit(setting, x[:150], law(x[:150]))
    assert np.abs(fitted.predict(x[150:]) - law(x[150:])).mean() < 0.1


def test_our_prediction_from_arrays_is_that_of_scikit_learn() -> None:
    from sklearn import svm

    x = np.random.default_rng(0).normal(size=(60, 4))
    y = np.sin(x[:, 0]) + x[:, 1]
    mine = fit(Setting(SVR, (("C", 10.0), ("width", 0.4))), x, y).predict(x)
    z, target = (x - x.mean(0)) / x.std(0), (y - y.mean()) / y.std()
    theirs = svm.SVR(C=10.0, gamma=0.1, epsilon=0.01).fit(z, target).predict(z) * y.std() + y.mean()
    np.testing.assert_allclose(mine, theirs, atol=1e-5)  # arrays are kept in single precision


def test_an_unknown_regressor_is_an_error() -> None:
    with pytest.raises(PredictorError, match="'ridge' is unknown"):
        fit(Setting("ridge"), np.zeros((3, 1)), np.zeros(3))


@given(st.lists(st.sampled_from("abcdefgh"), min_size=1, max_size=60), st.integers(2, 6), st.integers(0, 5))
@settings(max_examples=80, deadline=None)
def test_folds_never_share_a_network_and_hold_every_row_out_once(groups: list[str], count: int, seed: int) -> None:
    held: list[int] = []
    for train, test in grouped_folds(groups, count, seed):
        assert not {groups[i] for i in train} & {groups[i] for i in test}
        assert sorted([*train, *test]) == list(range(len(groups)))
        held += test.tolist()
    assert sorted(held) == list(range(len(groups)))


def test_the_chosen_setting_has_the_least_error_on_unseen_networks() -> None:
    chance = np.random.default_rng(0)
    x = chance.normal(size=(80, 2))
    groups = [str(i // 8) for i in range(80)]
    x[:, 1] = [int(g) for g in groups]  # names the network, which only misleads about another
    y = x[:, 0] * 2.0
    choice = choose(x, y, groups, settings=(Setting(LINEAR, (("alpha", 1e4),)), Setting(LINEAR, (("alpha", 1e-3),))))
    assert choice.fitted.setting.options == (("alpha", 1e-3),)
    assert np.abs(choice.residuals).max() < 0.05


def test_the_best_setting_is_kept_where_the_simplest_is_not_asked_for() -> None:
    chance = np.random.default_rng(0)
    x = chance.normal(size=(200, 3))
    groups = [str(i // 4) for i in range(200)]
    y = x[:, 0] + 0.05 * x[:, 1] ** 2 + 0.4 * np.repeat(chance.normal(size=50), 4)  # networks differ more than settings
    few = Setting(LINEAR, (("alpha", 1.0),)), Setting(QUADRATIC, (("alpha", 1.0),))
    best = min(choose(x, y, groups, settings=few).errors, key=lambda pair: pair[1])[0]
    assert choose(x, y, groups, settings=few, simplest=False).fitted.setting == best
    assert choose(x, y, groups, settings=few).fitted.setting == few[0]


# --- the whole -------------------------------------------------------------------------------------------------------


def test_it_is_a_predictor_of_the_registry() -> None:
    assert isinstance(trained(), Predictor)
    cost = trained().cost()
    assert cost.runs == len(rows())
    assert cost.measured_s == pytest.approx(sum(row.cost_s for row in rows()))
    assert cost.fit_s > 0


def test_an_unseen_network_is_predicted_from_the_others() -> None:
    unseen = "inception-v3"
    made = PredictDDL(QUICK)
    made.fit([row for row in rows() if row.job.model != unseen])
    errors = [abs(made.predict(r.job).seconds / r.seconds - 1) for r in rows() if r.job.model == unseen]
    # six networks of 0.9 to 31 GFLOP: the mean of the others alone would be off by far more than this
    assert np.mean(errors) < 0.5
    others = np.exp(np.mean(np.log([r.seconds for r in rows() if r.job.model != unseen])))
    assert np.mean(errors) < np.mean([abs(others / r.seconds - 1) for r in rows() if r.job.model == unseen])


def test_save_and_load_predict_the_same(tmp_path: Path) -> None:
    trained().save(tmp_path / "ddl")
    again = PredictDDL.load(tmp_path / "ddl")
    for row in rows()[::5]:
        one, two = trained().predict(row.job), again.predict(row.job)
        assert two.seconds == pytest.approx(one.seconds, rel=1e-12)
        assert (two.p10_s, two.p90_s, two.confidence) == pytest.approx((one.p10_s, one.p90_s, one.confidence))
    assert again.design == QUICK
    assert again.cost() == trained().cost()
    with pytest.raises(DataError, match="cannot be read"):
        PredictDDL.load(tmp_path / "nothing")


@pytest.mark.parametrize(
    "setting",
    [Setting(QUADRATIC, (("alpha", 30.0),)), Setting(MLP, (("alpha", 1.0),)), Setting(LINEAR, (("alpha", 1.0),))],
)
def test_every_kind_of_regressor_survives_the_disk(setting: Setting, tmp_path: Path) -> None:
    made = PredictDDL(Design(settings=(setting,)))
    made.fit(rows())
    made.save(tmp_path)
    job = rows()[3].job
    assert PredictDDL.load(tmp_path).predict(job).seconds == pytest.approx(made.predict(job).seconds, rel=1e-12)


def test_new_rows_of_a_new_dataset_type_train_it_and_leave_the_others(tmp_path: Path) -> None:
    trained().save(tmp_path)  # a copy
    made = PredictDDL.load(tmp_path)
    before = made.predict(rows()[0].job).seconds
    cifar = [
        dataclasses.replace(row, job=row.job.replace(dataset="cifar10", samples=4096), seconds=2 * row.seconds)
        for row in rows()
    ]
    with pytest.raises(PredictorError, match="'cifar10' has no trained predictor"):
        made.predict(cifar[0].job)
    made.learn(cifar)
    assert set(made.trained) == {"imagenet", "cifar10"}
    assert made.predict(cifar[0].job).seconds == pytest.approx(2 * before, rel=0.05)
    assert made.predict(rows()[0].job).seconds == before


def test_too_few_networks_are_left_out_by_name() -> None:
    made = PredictDDL(QUICK)
    with pytest.raises(PredictorError, match="2 networks, and an unseen one cannot be told"):
        made.fit([row for row in rows() if row.job.model in IMAGE_MODELS[:2]])
    with pytest.raises(PredictorError, match="no measured jobs"):
        made.fit([])


@cache
def convolutional() -> tuple[np.ndarray, np.ndarray]:
    """Vectors of forty random convolutional networks, and of thirty others."""
    some = [each for each in random_networks(160, seed=3) if each.name == "convolutional"]
    vectors = np.stack([embedder_of("pretrained")(each) for each in some[:70]])
    return vectors[:40], vectors[40:]


@pytest.mark.parametrize("kind", [Primitive.RNN, Primitive.EMBEDDING, Primitive.MSA])
def test_a_network_out_of_distribution_is_flagged_with_a_wider_interval(kind: Primitive) -> None:
    known, others = convolutional()
    chain = network([Primitive.INPUT, *[kind] * 8], [(i, i + 1) for i in range(8)],
                    [(1, 1, 512, 1), *[(4096, 4096, 512, 4)] * 8])  # fmt: skip
    alien = embedder_of("pretrained")(chain)
    likely = likeness(known)
    assert likely.is_strange(alien)
    assert np.mean([likely.is_strange(each) for each in others]) < 0.2
    assert likely.confidence(alien) < np.min([likely.confidence(each) for each in known])
    who = dataclasses.replace(trained().trained["imagenet"], likeness=likely, networks=("cnn",) * len(known))
    facts = facts_of(rows()[0].job)
    native, strange = who.forecast(facts, known[0]), who.forecast(facts, alien)
    assert native.confidence == pytest.approx(1.0)
    assert native.notes == ("Nearest of 40 training networks: cnn.",)
    assert any("Out of distribution" in note for note in strange.notes)
    assert math.log(strange.p90_s / strange.seconds) == pytest.approx(2 * math.log(native.p90_s / native.seconds))


def test_a_network_far_larger_than_all_trained_on_has_a_note_on_extrapolation() -> None:
    who = trained().trained["imagenet"]
    said = facts_of(rows()[0].job)
    huge = dataclasses.replace(said, network=dataclasses.replace(said.network, flops=said.network.flops * 1e6))
    vector = embedder_of("pretrained")(said.network)
    assert any("Extrapolated: log flops" in note for note in who.forecast(huge, vector).notes)
    assert who.forecast(said, vector).notes == (f"Nearest of {len(IMAGE_MODELS)} training networks: {said.job.model}.",)


def test_likeness_in_two_dimensions_by_hand() -> None:
    known = likeness(np.array([[1.0, 0.0], [2.0, 0.0], [-1.0, 0.0], [-2.0, 0.0]]))  # on a line, standardised 1.58
    assert known.threshold == pytest.approx(1.0)
    assert known.confidence(np.array([3.0, 0.0])) == pytest.approx(1.0)
    assert not known.is_strange(np.array([3.0, 0.0]))
    assert known.confidence(np.array([1.5811388, 1.0])) == pytest.approx(math.sqrt(0.5))  # 45 degrees off
    assert known.is_strange(np.array([1.5811388, 1.0]))
    assert known.nearest(np.array([-0.5, 0.0])) in (2, 3)


def test_a_framework_that_ran_one_network_takes_no_part() -> None:
    other = [
        dataclasses.replace(row, job=row.job.replace(framework="mxnet"), seconds=100.0 * row.seconds)
        for row in rows()
        if row.job.model == "vgg16"
    ]
    made = PredictDDL(QUICK)
    made.fit([*rows(), *other])
    job = rows()[0].job
    assert made.predict(job).seconds == trained().predict(job).seconds
    assert made.trained["imagenet"].frameworks == ("pytorch",)
    assert any("No training run was in mxnet" in note for note in made.predict(job.replace(framework="mxnet")).notes)
    alone = PredictDDL(QUICK)
    alone.fit([dataclasses.replace(row, job=row.job.replace(framework="mxnet")) for row in rows()])
    assert alone.trained["imagenet"].frameworks == ("mxnet",)


def test_a_gpu_without_runs_has_the_interval_of_gpus_held_out() -> None:
    """One GPU takes three times as long as its catalog figures and those of the others say."""
    gpus = ("a100-80gb-sxm", "v100-16gb-sxm", "h100-80gb-sxm", "t4")
    some = [
        dataclasses.replace(row, seconds=row.seconds * (3.0 if gpu == "t4" else 1.0))
        for gpu in gpus
        for row in lawful(gpu=gpu)
        if row.job.gpus == 1
    ]
    made = PredictDDL(QUICK)
    made.fit(some)
    who = made.trained["imagenet"]
    assert set(who.gpus) == set(gpus)
    # The rows of that GPU weigh a quarter, so that four fifths of all lie within its errors, a factor of three.
    assert who.spreads[OTHER_GPU] == pytest.approx(math.log(3.0) / Z90, rel=0.25)
    assert OTHER_GPU not in trained().trained["imagenet"].spreads
    other = made.predict(some[0].job.replace(gpu="l40s"))
    assert math.log(other.p90_s / other.seconds) >= Z90 * max(who.spreads.values()) - 1e-9
    assert any("No training run was on l40s" in note for note in other.notes)


# --- the checker -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "error", "text"),
    [
        ({"model": "resnet50", "dataset": "coco"}, PredictorError, "dataset type 'coco' has no trained predictor"),
        ({"model": "resnet5o", "dataset": "imagenet"}, JobError, "model 'resnet5o' is unknown"),
        ({"model": "resnet50", "gpus": 8, "layout": "fsdp"}, PredictorError, "layout fsdp is not plain"),
        ({"model": "resnet50", "gpu": "h100-80gb-sxm"}, PredictorError, "gpu 'h100-80gb-sxm' is not among"),
        ({"model": "resnet50", "gpu": "my-cpu"}, PredictorError, "gpu 'my-cpu' is not among"),
        ({"model": "resnet50", "gpus": 7, "nodes": 1, "node": "no-such-node"}, CatalogError, "no-such-node"),
    ],
)
def test_the_checker_names_the_fault(words: dict, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        trained().predict(Job.from_dict({"batch_size": 16, "samples": 4096, **words}))


def test_aliases_of_a_gpu_are_one_and_an_unknown_one_names_the_command() -> None:
    job = Job("resnet50", batch_size=16, gpu="A100", run={"dataset": "imagenet", "samples": 4096})
    assert trained().predict(job) == trained().predict(job.replace(gpu="a100-80gb-sxm"))
    for other in (job.replace(gpu="h100"), job.replace(dataset="coco")):
        with pytest.raises(PredictorError, match=r"runs of at least 4 networks .* with gpu .*runs\.csv .*--real-runs"):
            trained().predict(other)


def test_a_folder_of_runs_of_ones_own_trains_a_new_dataset_type(tmp_path: Path) -> None:
    columns_of = ("id", "model", "model_config", "input", "batch_size", "gpus", "gpu", "precision", "optimizer",
                  "dataset", "samples", "pass_s", "spread", "cost_s")  # fmt: skip
    with (tmp_path / "runs.csv").open("w", newline="") as file:
        table = csv.DictWriter(file, columns_of)
        table.writeheader()
        for row in rows():
            if row.job.model != "resnet50":  # the one asked about
                words = {name: getattr(row.job, name) for name in ("model", "batch_size", "gpus", "gpu", "precision")}
                table.writerow({
                    **words, "id": row.id, "model_config": "", "input": "", "optimizer": "sgd", "dataset": "imagenet",
                    "samples": 4096, "pass_s": row.seconds, "spread": "", "cost_s": row.cost_s,
                })  # fmt: skip
    made = PredictDDL(QUICK)
    made.fit(read_runs(tmp_path))
    asked = [row for row in rows() if row.job.model == "resnet50"]
    errors = [made.predict(row.job.replace(gpu="a100")).seconds / row.seconds - 1 for row in asked]
    assert np.abs(errors).mean() < 0.3


def test_a_device_that_had_peaks_in_training_must_have_them_when_asked() -> None:
    made = PredictDDL(QUICK)
    who = dataclasses.replace(trained().trained["imagenet"], gpus=("this-cpu",))
    made._trained = {"imagenet": who}
    job = Job("resnet50", batch_size=16, gpu="this-cpu", run={"dataset": "imagenet", "samples": 4096})
    with pytest.raises(PredictorError, match="names none; give device"):
        made.predict(job)


def test_predicting_before_training_raises() -> None:
    with pytest.raises(PredictorError, match="is not trained"):
        PredictDDL().predict(Job("resnet50"))


def test_a_zoo_model_needs_no_dataset_of_the_job() -> None:
    assert trained().predict(Job("resnet50", batch_size=16, run={"epochs": 1})).seconds == pytest.approx(
        trained().predict(Job("resnet50", batch_size=16, run={"epochs": 1, "dataset": "imagenet"})).seconds
    )


def test_a_matrix_keeps_the_order_of_its_names() -> None:
    assert matrix([{"b": 2.0, "a": 1.0}, {"a": 3.0}], ["a", "b"]).tolist() == [[1.0, 2.0], [3.0, 0.0]]
