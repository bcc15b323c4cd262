"""PredictDDL's law of work, networks under several names, and the repository's table of networks."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import numpy as np
import pytest

from precision_time.errors import DataError
from precision_time.job.job import Job
from precision_time.predictors.interface import MeasuredJob
from precision_time.predictors.predictddl.facts import facts_of
from precision_time.predictors.predictddl.identity import joined, plain_name
from precision_time.predictors.predictddl.law import RING, Work, fit_law, steps, terms
from precision_time.predictors.predictddl.traced import (
    TracedNetwork,
    key_of,
    known_networks,
    read_table,
    write_table,
)
from predictddl_cases import IMAGE_MODELS, lawful


@cache
def rows() -> tuple[MeasuredJob, ...]:
    return tuple(lawful())


# --- the law of work -------------------------------------------------------------------------------------------------


def test_the_law_finds_rates_that_add_and_survives_a_precision_it_never_saw() -> None:
    facts = [facts_of(row.job) for row in rows()]
    theta = np.linspace(0.5, 2.0, len(terms(facts[0])))
    theta[RING] = 1.0  # to which it is pulled
    seconds = np.array([float(terms(each) @ theta) * steps(each) for each in facts])
    work = Work.of(facts)
    law = fit_law(work, seconds, [row.id for row in rows()])
    np.testing.assert_allclose(law.log_seconds(work), np.log(seconds), atol=0.02)
    assert set(law.theta) == {
        "", "fp32", "fp32 nchw", "32-bit arithmetic", "32-bit arithmetic nchw", "amp-bf16", "amp-bf16 nchw",
        "16-bit arithmetic", "16-bit arithmetic nchw",
    }  # fmt: skip
    other = Work.of([facts_of(rows()[0].job.replace(precision="amp-fp16"))])
    assert np.isfinite(law.log_seconds(other)).all()


def test_a_theta_that_few_rows_tell_stays_near_that_of_all() -> None:
    """amp-bf16 rows without linear layers of any size do not set the theta of linear layers, which fp32 rows tell."""
    facts = [facts_of(row.job) for row in rows()]
    theta = np.linspace(0.5, 2.0, len(terms(facts[0])))
    linear = 2
    small = [each.job.precision == "amp-bf16" for each in facts]
    work = Work.of(facts)
    work.terms[small, linear] *= 1e-6
    seconds = work.terms @ theta
    found = fit_law(work, seconds, [row.job.model for row in rows()]).theta
    assert found["amp-bf16"][linear] == pytest.approx(found[""][linear], rel=0.1)


def test_a_theta_of_few_networks_is_not_kept() -> None:
    """amp-bf16 was run for two of six networks only, which cannot determine thirteen terms."""
    some = [row for row in rows() if row.job.precision == "fp32" or row.job.model in IMAGE_MODELS[:2]]
    seconds = np.array([row.seconds for row in some])
    law = fit_law(Work.of([facts_of(row.job) for row in some]), seconds, [row.job.model for row in some])
    assert set(law.theta) == {"", "fp32", "fp32 nchw", "32-bit arithmetic", "32-bit arithmetic nchw"}


def test_several_gpus_add_the_ring_and_a_constant_and_no_operations() -> None:
    one, two, eight = (terms(facts_of(rows()[0].job.replace(gpus=gpus))) for gpus in (1, 2, 8))
    count = (len(one) - 2) // 2
    assert two[:count].tolist() == eight[:count].tolist() == one[:count].tolist()
    assert not one[count:].any()
    assert not eight[count:-2].any()
    bus = facts_of(rows()[0].job.replace(gpus=8)).cluster.world.bus_bytes_per_s
    assert eight[-2] == pytest.approx(2 * 7 / 8 * 4 * facts_of(rows()[0].job).network.parameters / bus)


# --- networks under several names ------------------------------------------------------------------------------------


def test_names_and_graphs_join_rows_of_one_network() -> None:
    assert joined([("timm:tv_resnet50.tv_in1k", 1), ("resnet50", 1), ("torchvision:resnet50", 2), ("vgg16", 3)]) == [
        "resnet50", "resnet50", "resnet50", "vgg16",
    ]  # fmt: skip
    assert plain_name("torchvision:wide_resnet50_2") == "wide-resnet50-2"


# --- the repository's table of networks ------------------------------------------------------------------------------


def test_a_table_of_networks_is_read_as_it_was_written(tmp_path: Path) -> None:
    some = facts_of(rows()[0].job).network
    write_table(tmp_path / "networks.npz", {"key": TracedNetwork(some, "imagenet", 32, 224.0, "resnet")})
    again = read_table(tmp_path / "networks.npz")["key"]
    assert (again.dataset, again.batch_size, again.resolution, again.family) == ("imagenet", 32, 224.0, "resnet")
    for name in ("types", "shapes", "edges"):
        assert getattr(again.network, name).tolist() == getattr(some, name).tolist()
    np.testing.assert_allclose(again.network.flops, some.flops, rtol=1e-6)
    (tmp_path / "networks.npz").write_bytes(b"no table")
    with pytest.raises(DataError, match="predictddl_networks"):
        read_table(tmp_path / "networks.npz")


def test_the_repositorys_table_has_today_s_network_of_a_zoo_model() -> None:
    job = Job("resnet50", input={"image_size": 224})
    known = known_networks()[key_of(job)]
    fresh = facts_of(job).network
    assert known.network.types.tolist() == fresh.types.tolist()
    assert known.network.edges.tolist() == fresh.edges.tolist()
    assert known.network.parameters == fresh.parameters
    assert known.family == "resnet"
