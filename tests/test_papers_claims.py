"""The table of published claims: its rule, its readings of a report, and the committed page."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.papers import claims
from benchmarks.papers.claim_readings import BANDWIDTH, READERS, TENSOR_CORES, Reading
from benchmarks.papers.claims import (
    CLAIMS,
    VERDICTS,
    Published,
    agrees,
    errors_table,
    judged,
    markdown,
    summary,
    verdict,
)
from benchmarks.speed import RESULTS
from precision_time.predictors.features import COMPUTE
from precision_time.report.page import fill_markers

LEAST = Published("error", "ten times less", 10.0, "at least", "x", "a paper")
MOST = Published("aware", "errs by 10 %", 0.1, "at most", "%", "a paper")
HOLDS, PART, REFUTED, NONE = VERDICTS


def reading(figure: float, low: float | None = None, high: float | None = None, n: int = 20) -> Reading:
    return Reading("a reading", figure, low, high, n, "rows")


@pytest.mark.parametrize(
    ("published", "readings", "expected"),
    [
        (LEAST, [reading(12.0, 10.5, 14.0)], HOLDS),
        (LEAST, [reading(12.0, 9.0, 14.0)], PART),
        (LEAST, [reading(4.0, 2.0, 6.0), reading(12.0)], PART),
        (LEAST, [reading(4.0, 2.0, 6.0), reading(9.9)], REFUTED),
        (LEAST, [reading(4.0, 2.0, 10.0), reading(9.9)], PART),
        (LEAST, [], NONE),
        (LEAST, [reading(12.0, n=4)], NONE),
        (LEAST, [reading(12.0), reading(2.0, n=4)], HOLDS),
        (MOST, [reading(0.08, 0.06, 0.1)], HOLDS),
        (MOST, [reading(0.08, 0.06, 0.11)], PART),
        (MOST, [reading(0.2, 0.15, 0.3)], REFUTED),
    ],
)
def test_every_verdict_follows_from_the_numbers(published: Published, readings: list[Reading], expected: str) -> None:
    assert verdict(published, readings) == expected


def test_a_reading_is_open_where_its_interval_holds_the_figure() -> None:
    assert [agrees(LEAST, reading(10.0, *ends)) for ends in ((10, 11), (9, 11), (8, 9))] == [True, None, False]
    assert agrees(MOST, reading(0.1)) is True


def run(mape: float) -> dict[str, Any]:
    return {"all": {"n": 40, "mape": mape}, "family": {str(i): {"n": 10, "mape": mape} for i in range(4)}}


def report(
    aware: float, ranks: tuple[int, int], blind: float, ratio: float, range_: float, speed: float
) -> dict[str, Any]:
    """A report whose figures all agree with the claims, or none."""
    features = [[f"f{i}", 1.0 - 0.01 * i, 1.0 - 0.01 * i] for i in range(20)]
    features[ranks[0]][0], features[ranks[1]][0] = TENSOR_CORES, BANDWIDTH
    scores = {f"boosting by {way}": run(aware) for way in ("job", "family", "precision")}
    twins = {"aware": {"fp32": 9.0}, "blind, trained in fp32": {"fp32": 8.0, "tf32": blind, "all": 7.0}}
    protocol = {"ratio": ratio, "median_ratio": ratio, "ratios": {str(i): ratio for i in range(6)}}
    protocol |= {"ratio_interval": [ratio, ratio], "median_ratio_interval": [ratio, ratio]}
    timings = {"median": speed, "q1": speed, "q3": speed, "timings": 9}
    boosting = {"scores": scores, "blind": twins, "rows": 40, "precision_range": [range_] * 6}
    boosting["importance"] = {"compute": features}
    return {
        "about": {"date": "2026-11-23"},
        "studies": {
            "boosting": {"data": {**boosting, "real_runs": {"scores": scores, "blind": twins, "rows": 40}}},
            "predictddl": {"data": {"protocols": {"same runs": protocol}, "speed": {"ratio_fresh": timings}}},
        },
    }


def stagger(chosen: float) -> dict[str, Any]:
    rows = [{"name": n, "measured_s": [s]} for n, s in (("01:0", 10.0), ("serial", 11.0), ("best", chosen))]
    return {"stagger_runs": {"pairs": [{"rows": rows}] * 6}}


def test_all_claims_hold_or_are_refuted_by_the_report() -> None:
    good = judged(report(0.05, (1, 0), 2.0, 11.0, 2.6, 12.0), stagger(9.0))
    bad = judged(report(0.30, (9, 7), 1.0, 2.0, 1.9, 3.0), stagger(13.0))
    assert {each["key"]: each["verdict"] for each in good["claims"]} == dict.fromkeys(READERS, HOLDS)
    assert {each["key"]: each["verdict"] for each in bad["claims"]} == dict.fromkeys(READERS, REFUTED)
    blind = next(each for each in bad["claims"] if each["key"] == "blind")
    assert {each["figure"] for each in blind["readings"]} == {1.0}  # neither aware, nor its own precision, nor all
    text = markdown(bad)
    assert "rank of tensor-core use by mean |SHAP|" in text.replace("\\|", "|")
    assert "| 10 |" in text
    assert "30.0 % - 30.0 %" in text
    assert "| 30.0 % to 30.0 % in 4 readings | refuted |" in summary(bad)


def test_the_page_has_its_markers() -> None:
    page = claims.PAGE.read_text(encoding="utf-8")
    assert "| new text |" in fill_markers(page, "claims", "| new text |", "docs/predictors.md")


def test_one_feature_at_the_top_holds_in_part() -> None:
    found = judged(report(0.05, (0, 9), 2.0, 11.0, 2.6, 12.0), {})["claims"]
    verdicts = {each["key"]: each["verdict"] for each in found}
    assert verdicts["features"] == PART
    assert verdicts["stagger"] == NONE


def test_seeds_of_all_published_steps_are_readings() -> None:
    steps = {"mape": 0.09, "least": 0.08, "most": 0.12, "rows": 4000}
    more = {"boosting_steps": {"held_out": {"gpu": {"boosting | all": {"all": steps}}}}}
    found = judged(report(0.05, (0, 1), 2.0, 11.0, 2.6, 12.0), more)["claims"]
    aware = next(each for each in found if each["key"] == "aware")
    assert aware["verdict"] == PART
    assert [each["agrees"] for each in aware["readings"] if "seeds" in each["what"]] == ["open"]


def test_errors_are_those_of_the_table_of_all_predictors() -> None:
    errors = {"all": {"n": 1200, "mape": 0.123, "median_ape": 0.1}, "fp32": {"n": 5, "mape": 0.5, "median_ape": 0.5}}
    side_by_side = [{"predictor": "ernest", "rows": "real runs", "left_out": "network", "errors": errors}]
    text = errors_table(judged({"studies": {}, "side_by_side": side_by_side}, {}))
    assert "| real runs | ernest | network | 1,200 | 12.3 % | 10.0 % |" in text


def test_a_report_without_studies_judges_nothing() -> None:
    found = judged({"studies": {}}, {})
    assert {each["verdict"] for each in found["claims"]} == {NONE}
    assert markdown(found).count(NONE) == len(CLAIMS)


def test_the_features_of_the_claim_exist() -> None:
    assert {TENSOR_CORES, BANDWIDTH} <= {feature.name for feature in COMPUTE}


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "report.json"
    assert claims.main([str(path), "--output", str(tmp_path)]) == 2
    assert "cannot be read" in capsys.readouterr().err
    path.write_text(json.dumps(report(0.05, (1, 0), 2.0, 11.0, 2.6, 12.0)))
    assert claims.main([str(path), "--output", str(tmp_path)]) == 0
    assert "holds: PredictDDL errs up to 9.8 times less than Ernest" in capsys.readouterr().out
    content = json.loads((tmp_path / "claims.json").read_text())
    assert (tmp_path / "claims.md").read_text() == markdown(content)


def test_the_committed_page_is_that_of_the_committed_file() -> None:
    file = RESULTS / "claims.json"
    if not file.is_file():
        pytest.skip("make reproduce has not written it")
    content = json.loads(file.read_text(encoding="utf-8"))
    assert (RESULTS / "claims.md").read_text(encoding="utf-8") == markdown(content)
    page = claims.PAGE.read_text(encoding="utf-8")
    assert fill_markers(page, "claims", summary(content), "docs/predictors.md") == page
    assert fill_markers(page, "errors", errors_table(content), "docs/predictors.md") == page
    for published in CLAIMS:
        claim = next(each for each in content["claims"] if each["key"] == published.key)
        readings = [Reading(**{k: v for k, v in each.items() if k != "agrees"}) for each in claim["readings"]]
        assert claim["verdict"] == verdict(published, readings)
