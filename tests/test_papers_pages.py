"""docs/ernest.md and docs/additive.md hold the figures of their file, and the file holds what the code computes."""

from __future__ import annotations

import json
from typing import Any

import pytest

from benchmarks.papers import pages
from precision_time.measurements.repository import STEPS, required_data_folder
from precision_time.predictors.published import published_jobs
from precision_time.predictors.runs import read_runs


@pytest.fixture(scope="module")
def content() -> Any:
    return json.loads(pages.FILE.read_text(encoding="utf-8"))


def test_the_pages_hold_the_figures_of_the_file(content: Any) -> None:
    for page, text in pages.blocks(content).items():
        path = pages.DOCS / f"{page}.md"
        whole = path.read_text(encoding="utf-8")
        assert pages.fill_markers(whole, "figures", text, str(path)) == whole


def test_another_figure_is_another_page(content: Any) -> None:
    other = json.loads(json.dumps(content))
    for name in other["ernest"]:
        other["ernest"][name]["mape"] += 0.1
    assert pages.blocks(other)["ernest"] != pages.blocks(content)["ernest"]
    assert pages.blocks(other)["additive"] == pages.blocks(content)["additive"]


def test_ernest_gives_the_figures_of_the_file(content: Any) -> None:
    found = pages.ernest_figures(read_runs(None))
    assert found == {name: pytest.approx(each, rel=1e-3) for name, each in content["ernest"].items()}


def test_the_additive_model_gives_the_figures_of_the_file(content: Any) -> None:
    found = pages.additive_figures(published_jobs(required_data_folder() / STEPS))
    for name, each in content["additive"][STEPS.name].items():
        assert found[name] == {k: v if v is None else pytest.approx(v, rel=1e-3) for k, v in each.items()}
