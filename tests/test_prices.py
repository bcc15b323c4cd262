"""List prices: complete rows, whole instances, named errors, and a cost that says what it is of."""

from __future__ import annotations

import json
import re
from math import ceil
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from precision_time import predict_time
from precision_time.cli.main import main
from precision_time.comparison import compare, cross
from precision_time.errors import CatalogError
from precision_time.estimate.estimate import Estimate
from precision_time.hardware import Price, Rental, cluster, default_catalog, load_device_file
from precision_time.hardware.prices import ANY, rental
from precision_time.job import Job

PRICES = list(default_catalog().prices.values())
FIELDS = {"region": "r", "as_of": "2026-01-01", "trust": "looked up", "source": "invented"}
SMALL = Price("small", "acme", "t4", 1, 1.0, **FIELDS)
BOX = Price("box", "acme", "t4", 4, 5.0, **FIELDS)
BIG = Price("big", "other", "t4", 8, 7.0, **FIELDS)


@pytest.mark.parametrize("price", PRICES, ids=lambda price: price.instance)
def test_every_row_is_complete(price: Price) -> None:
    assert price.gpu in default_catalog().gpus
    assert price.gpus >= 1
    assert 0.05 < price.usd_per_gpu_hour < 25
    assert re.fullmatch(r"20\d\d(-\d\d){0,2}", price.as_of)
    assert price.source
    assert price.region
    assert (price.trust == "recalled") == ("recalled" in price.source)


def test_well_known_instances_are_there() -> None:
    known = default_catalog().prices
    assert (known["p3.16xlarge"].gpu, known["p3.16xlarge"].gpus) == ("v100-16gb-sxm", 8)
    assert known["p3.16xlarge"].usd_per_gpu_hour == pytest.approx(3.06)
    assert known["p4d.24xlarge"].gpu == "a100-40gb-sxm"
    assert known["p4de.24xlarge"].gpu == "a100-80gb-sxm"
    assert {p.provider for p in PRICES} == {"aws", "azure", "gcp", "lambda", "coreweave"}


@pytest.mark.parametrize(
    ("choice", "gpus", "per_node", "instance", "count", "usd"),
    [
        ("acme", 1, 1, "small", 1, 1.0),
        ("acme", 2, 2, "box", 1, 5.0),  # 2 x small would be cheaper, but are two boxes
        ("acme", 5, 4, "box", 2, 10.0),
        ("acme", 8, 8, "box", 2, 10.0),  # nothing of theirs holds 8: the largest
        ("Any", 8, 8, "big", 1, 7.0),
        ("BIG", 9, 8, "big", 2, 14.0),
        ("small", 3, 3, "small", 3, 3.0),  # a named instance is taken as it is
    ],
)
def test_whole_instances_by_hand(choice: str, gpus: int, per_node: int, instance: str, count: int, usd: float) -> None:
    rented = rental([SMALL, BOX, BIG], choice, "t4", gpus, per_node)
    assert (rented.price.instance, rented.instances, rented.usd_per_hour) == (instance, count, usd)


@given(st.sampled_from(sorted({p.gpu for p in PRICES})), st.integers(1, 200))
def test_instances_hold_the_job_and_none_is_idle(gpu: str, gpus: int) -> None:
    rented = rental(PRICES, ANY, gpu, gpus, 1)
    assert (rented.instances - 1) * rented.price.gpus < gpus <= rented.instances * rented.price.gpus
    assert rented.usd_per_hour <= min(p.usd_per_hour * ceil(gpus / p.gpus) for p in PRICES if p.gpu == gpu)


@pytest.mark.parametrize(
    ("choice", "gpu", "message"),
    [
        ("asw", "t4", "nearest: aws"),
        ("p4d.24xlarg", "t4", "nearest: p4d.24xlarge"),
        ("aws", "mi300x", "no instance with mi300x; with it: none known"),
        ("p4d.24xlarge", "a100-80gb-sxm", "instance with a100-40gb-sxm, not a100-80gb-sxm; with it: p4de"),
    ],
)
def test_errors_name_the_nearest_and_the_fix(choice: str, gpu: str, message: str) -> None:
    with pytest.raises(CatalogError, match=re.escape(message)) as error:
        default_catalog().rental(choice, cluster(gpu, 2))
    assert "price_per_gpu_hour" in str(error.value)


def test_cost_is_time_by_whole_instances() -> None:
    fields = {"model": "resnet50", "gpu": "a100-40gb", "gpus": 4, "batch_size": 64, "steps": 1000}
    estimate = predict_time(**fields, price="p4d.24xlarge")
    assert estimate.run is not None
    assert estimate.cost_usd is not None
    assert estimate.rental is not None
    assert estimate.cost_usd.p90 == pytest.approx(estimate.run.p90 / 3600 * 21.957642)  # 8 GPUs are paid
    assert "1 x p4d.24xlarge at $21.96 an hour (aws us-east-1" in str(estimate)
    assert "2026-11-09, looked up); prices" in str(estimate)
    again = Estimate.from_dict(json.loads(json.dumps(estimate.to_dict())))
    assert again.rental == estimate.rental
    assert str(again) == str(estimate)
    mine = predict_time(**fields, price="aws", price_per_gpu_hour=2.0)  # one's own price is taken before the list's
    assert mine.rental is None
    assert mine.cost_usd is not None
    assert mine.cost_usd.p50 == pytest.approx(estimate.run.p50 / 3600 * 8.0)


def test_without_a_price_there_is_no_cost() -> None:
    estimate = predict_time(model="resnet50", gpus=8, batch_size=64, steps=10)
    assert estimate.cost_usd is None
    assert "$" not in str(estimate)
    assert "rental" not in estimate.to_dict()


def test_without_a_length_the_price_is_shown_without_a_cost() -> None:
    text = str(predict_time(model="resnet50", gpus=8, batch_size=64, price="lambda"))
    assert "gpu_8x_a100_80gb_sxm4" in text
    assert "no cost of a run" in text


def test_a_layout_and_a_schedule_are_priced() -> None:
    layered = Job.from_dict({
        "model": "gpt2", "gpu": "h100", "gpus": 16, "layout": "tp=2", "batch_size": 2, "steps": 10, "price": "aws"
    })  # fmt: skip
    row = compare(layered).rows[0]
    assert row.error is None
    assert row.estimate is not None
    assert row.estimate.rental == Rental(default_catalog().prices["p5.48xlarge"], 2)


def test_compare_names_the_rented_instances() -> None:
    base = Job.from_dict({"model": "resnet50", "batch_size": 64, "dataset": "imagenet", "price": "aws"})
    text = str(compare(cross(base, gpu=["t4", "v100"], precision=["amp-fp16"])))
    assert "$/epoch" in text
    assert "1 x g4dn.xlarge at $0.53" in text
    assert "1 x p3.2xlarge at $3.06" in text


def test_a_device_file_adds_prices_and_errors_name_the_key(tmp_path: Path) -> None:
    file = tmp_path / "ours.yaml"
    file.write_text("prices:\n  rack-1: {provider: Ours, gpu: A100, gpus: 8, usd_per_hour: 12}\n")
    rented = load_device_file(file).rental("ours", cluster("a100", 16))
    assert (rented.instances, rented.usd_per_hour, rented.price.gpu) == (2, 24.0, "a100-80gb-sxm")
    for entry, message in (
        ("{provider: x, gpu: a100, gpus: 8}", "usd_per_hour is missing"),
        ("{provider: x, gpu: a100, gpus: 8, usd_per_hour: 1, day: 2}", "nearest: "),
        ("{provider: x, gpu: a1000, gpus: 8, usd_per_hour: 1}", "unknown GPU 'a1000'"),
        ("{provider: x, gpu: a100, gpus: 0, usd_per_hour: 1}", "must be a whole number of GPUs from 1"),
        ("{provider: x, gpu: a100, gpus: 1, usd_per_hour: 1, trust: sure}", "to one of looked up, recalled"),
    ):
        file.write_text(f"prices:\n  rack-1: {entry}\n")
        with pytest.raises(CatalogError, match=re.escape(message)):
            load_device_file(file)


def test_the_list_of_prices(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["gpus", "--prices", "h100-80gb-sxm", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [row["usd_per_hour"] / row["gpus"] for row in rows] == sorted(r["usd_per_hour"] / r["gpus"] for r in rows)
    assert main(["gpus", "--prices", "p4d"]) == 0
    assert re.search(r"a100-40gb-sxm +aws +p4d.24xlarge .* 21.96 +2.74", capsys.readouterr().out)
    assert main(["gpus", "--prices", "nowhere"]) == 2
