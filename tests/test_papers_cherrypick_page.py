"""docs/cherrypick.md holds the figures of its file, the file holds what the code computes, words follow numbers."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from benchmarks.papers import cherrypick_page as page
from benchmarks.papers import cherrypick_seeds as seeds
from benchmarks.papers.cherrypick import deadline_text, descent_text, stopping_text
from benchmarks.papers.cherrypick_paths import Path, gaps_of, search_path
from benchmarks.papers.cherrypick_searches import LADDER, Gaps, judge
from benchmarks.papers.cloud_tables import cloud_configurations, read_cloud_runs
from precision_time.measurements.repository import required_data_folder
from precision_time.predictors.cherrypick import IMPROVED, PUBLISHED, cherrypick
from precision_time.predictors.surrogate import Averaged
from precision_time.report.page import fill_markers

pytest.importorskip("sklearn")


@pytest.fixture(scope="module")
def content() -> Any:
    return json.loads(seeds.FILE.read_text(encoding="utf-8"))


def test_the_page_holds_the_figures_of_the_file(content: Any) -> None:
    whole = seeds.PAGE.read_text(encoding="utf-8")
    for mark, text in page.blocks(content).items():
        assert fill_markers(whole, mark, text, str(seeds.PAGE)) == whole
    whole = seeds.OVERVIEW.read_text(encoding="utf-8")
    assert fill_markers(whole, "cherrypick", page.summary(content), str(seeds.OVERVIEW)) == whole


@pytest.mark.parametrize(("surrogate", "job", "count"), [("averaged (ours)", "tpcds", 8), ("sampled", "kmeans", 3)])
def test_searches_give_the_figures_of_the_file(content: Any, surrogate: str, job: str, count: int) -> None:
    table = cloud_configurations(read_cloud_runs(required_data_folder()), job, as_authors=True)
    setting = replace(PUBLISHED, surrogate=seeds.SURROGATES[surrogate])
    judged = judge(table, [cherrypick(table, seed=seed, setting=setting) for seed in range(count)])
    kept = content["factorial"][f"{surrogate}, 3 starts, 0.1"][job]
    assert kept["gap"][:count] == pytest.approx(judged.gap, abs=1e-5)
    assert kept["runs"][:count] == list(judged.runs)
    assert kept["cost"][:count] == pytest.approx(judged.cost, abs=1e-5)


def test_the_improved_setting_gives_the_figures_of_the_file(content: Any) -> None:
    runs = read_cloud_runs(required_data_folder())
    table = cloud_configurations(runs, "tpch", encoding="totals", as_authors=True)
    judged = judge(table, [cherrypick(table, seed=seed, setting=IMPROVED) for seed in range(4)])
    assert content["shipped"] == f"{IMPROVED.stop_below:g}, {IMPROVED.least_runs}"
    assert content["choices"][content["shipped"]]["tpch"]["gap"][:4] == pytest.approx(judged.gap, abs=1e-5)


def test_a_rule_cuts_the_path_where_the_search_stops() -> None:
    table = cloud_configurations(read_cloud_runs(required_data_folder()), "spark", encoding="totals")
    late = replace(IMPROVED, surrogate=Averaged(draws=16), stop_below=0.01, least_runs=10)
    paths = [search_path(table, late, seed) for seed in range(3)]
    for stop, least in ((0.2, 6), (0.03, 8), (0.01, 10)):
        found = gaps_of(paths, stop, least)
        setting = replace(late, stop_below=stop, least_runs=least)
        searched = judge(table, [cherrypick(table, seed=seed, setting=setting) for seed in range(3)])
        for field in ("gap", "runs", "cost"):
            np.testing.assert_allclose(getattr(found, field), getattr(searched, field))
    assert Path.from_dict(json.loads(json.dumps(paths[0].to_dict()))) == paths[0]


def _judged(gaps: Sequence[float], cost: float = 0.2) -> dict[str, dict[str, list[float]]]:
    """Two jobs with these gaps by seed."""
    each = {"gap": list(gaps), "runs": [6.0] * len(gaps), "cost": [cost] * len(gaps)}
    return {"one": each, "two": each}


def test_the_choice_is_the_cheapest_that_keeps_the_targets() -> None:
    choices = {
        "0.03, 8": _judged([0.0] * 6 + [0.5] * 4, 0.1),
        "0.02, 8": _judged([0.0] * 10, 0.2),
        "0.01, 8": _judged([0.0] * 10, 0.3),
    }
    assert page.chosen(choices) == "0.02, 8"
    assert page.chosen({"0.03, 8": choices["0.03, 8"]}) is None
    choices["0.03, 8"]["one"] = choices["0.02, 8"]["one"] | {"cost": [0.1] * 10}
    found = page.held_out(choices)
    assert found["two"][0] == "0.03, 8"  # job one alone would choose it
    assert found["two"][1]["gap"][-1] == 0.5
    assert found["one"][0] == "0.02, 8"


def _page(published: float, likelihood: float, late: float, improved: float, gpus: float) -> str:
    other = {name: _judged([published] * 4) for name in ("sampled, 2 starts, 0.1",)}
    factorial = {
        page.AS_PUBLISHED: _judged([published] * 4, 0.11),
        "greatest likelihood, 3 starts, 0.1": _judged([likelihood] * 4),
        "sampled, 3 starts, 0.06": _judged([late] * 4),
        **other,
    }
    content = {
        "machine": {"date": "2026-01-01"}, "seeds": 4, "factorial": factorial, "shipped": "0.02, 8",
        "choices": {"0.02, 8": _judged([improved] * 4)}, "gpus": _judged([gpus] * 4),
    }  # fmt: skip
    return "\n".join(page.blocks(content).values())


def test_words_of_the_page_follow_numbers() -> None:
    text = _page(0.06, 0.15, 0.055, 0.0, 0.0)
    assert "agrees: no" in text
    assert "within 5 % on 0 of 2" in text
    assert "greatest likelihood instead of sampling raises it to 15.0 %" in text
    assert "stopping below 6 % instead of 10 % hardly moves it: 5.5 %" in text
    assert "the surrogate moves it most" in text
    assert "met on the jobs it was chosen on (0.0 % and 0.0 %)" in text
    assert "met on the published GPU steps" in text
    text = _page(0.04, 0.04, 0.01, 0.03, 0.2)
    assert "agrees: yes" in text
    assert "stopping below 6 % instead of 10 % lowers it to 1.0 %" in text
    assert "the stopping rule moves it most" in text
    assert "missed on the jobs it was chosen on (3.0 % and 3.0 %)" in text
    assert "missed on the published GPU steps (20.0 % and 20.0 %; beyond it alone: one, two)" in text
    assert "none keeps the targets" in text
    assert "no factor moves it by a point" in _page(0.06, 0.06, 0.06, 0.0, 0.0)


def _gaps(gap: float, runs: float) -> Gaps:
    return Gaps(np.full(3, gap), np.full(3, runs), np.full(3, 0.1))


def test_words_of_the_report_follow_numbers() -> None:
    means = {"CherryPick": 0.03, "coordinate descent": 0.2, "random": 0.3}
    assert "finds dearer ones than the surrogate" in descent_text(means)
    assert "finds as cheap ones as" in descent_text({**means, "coordinate descent": 0.035})
    assert "finds cheaper configurations than" in descent_text({**means, "coordinate descent": 0.01})

    def curves(published: Sequence[float], averaged: Sequence[float]) -> dict[str, list[float]]:
        named = {LADDER[0][0]: published, LADDER[3][0]: averaged}
        return {name: [1.0] * 5 + [six] + [0.5] * 3 + [ten] for name, (six, ten) in named.items()}

    text = stopping_text(curves((0.2, 0.0), (0.15, 0.0)), [6, 6, 6, 7])
    assert "20.0 points, more than averaged" in text
    assert "in most of the searches (3 of 4)" in text
    assert "less than averaged" in stopping_text(curves((0.2, 0.18), (0.05, 0.0)), [7])
    assert "less than half" in stopping_text(curves((0.2, 0.18), (0.05, 0.0)), [7])
    text = deadline_text(_gaps(0.3, 6.0), _gaps(0.1, 8.0), _gaps(0.0, 12.0))
    assert "finds is dearer, and it stops sooner than" in text
    text = deadline_text(_gaps(0.3, 6.0), _gaps(0.0, 12.0), _gaps(0.1, 12.1))
    assert "finds is cheaper, and it stops as late as" in text
