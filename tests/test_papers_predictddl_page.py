"""The figures of PredictDDL on published steps: the page is what the file says, and its words follow the numbers."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.papers.predictddl_gpus import DATASET, RESULTS, VARIANTS, WITH, WITHOUT, gain, judged
from benchmarks.papers.predictddl_page import DOCS, block, page, verdict
from precision_time.measurements.repository import required_data_folder
from precision_time.predictors.predictddl.traced import published_steps
from precision_time.predictors.predictddl.trainer import Table, described, in_known_frameworks
from precision_time.report.page import fill_markers

ROOT = Path(__file__).parents[1]


@pytest.fixture
def content() -> Any:
    return json.loads((ROOT / RESULTS).read_text(encoding="utf-8"))


def test_the_pages_hold_the_figures_of_the_file(content: Any) -> None:
    text = DOCS.read_text(encoding="utf-8")
    assert fill_markers(text, "figures", block(content), DOCS.name) == text
    assert (ROOT / RESULTS).with_suffix(".md").read_text(encoding="utf-8") == page(content)


def test_words_follow_the_numbers(content: Any) -> None:
    shipped = content["variants"]["network"][WITH]
    for error, word in ((0.05, "found 5.0 %, met."), (0.2, "found 20.0 %, missed.")):
        other = copy.deepcopy(content)
        other["variants"]["network"][WITH]["timm"]["mean"]["mean"] = error
        assert word in block(other)
    for share, word in ((0.5, "too narrow"), (0.81, "as intended"), (0.95, "too wide")):
        other = copy.deepcopy(content)
        other["variants"]["network"][WITH]["all"]["coverage"]["mean"] = share
        assert f"Held out by network, P10 to P90 holds {100 * share:.0f} % of the rows: {word}." in block(other)
    for factor, word in ((0.5, "less than"), (2.0, "more than")):
        other = copy.deepcopy(content)
        family = other["variants"]["family"][WITH]
        family["flagged"]["mean"]["mean"] = factor * family["all"]["mean"]["mean"]
        assert f", {word} all rows" in block(other)
    assert shipped["timm"]["rows"] + shipped["other"]["rows"] == content["rows"]


def test_a_gain_s_word_follows_its_interval(content: Any) -> None:
    assert [verdict(0.1, 0.2), verdict(-0.1, 0.2), verdict(-0.2, -0.1)] == ["helps", "makes no difference", "harms"]
    other = copy.deepcopy(content)
    for variants in other["gain"].values():
        for parts in variants.values():
            for figures in parts.values():
                for each in figures.values():
                    each |= {"mean": -0.02, "low": -0.03, "high": -0.01}
    text = block(other)
    assert "0 times it helps" in text
    assert "| helps |" not in text
    assert text.count("| harms |") == text.count("| -2.0 | -3.0 to -1.0 |")


def test_a_gain_by_hand() -> None:
    errors = {WITH: (0.10, 0.12), WITHOUT: (0.13, 0.13)}
    found = {
        f"network|{seed}|{name}": {"timm": {"mean": value}} for name, values in errors.items()
        for seed, value in enumerate(values)
    }  # fmt: skip
    # gains of 0.03 and 0.01: mean 0.02, standard deviation 0.01414, standard error 0.01
    assert gain(found, "network", WITHOUT, "timm", "mean", 2) == pytest.approx({"mean": 0.02, "low": 0.0, "high": 0.04})


@pytest.mark.slow
def test_a_variant_judged_again_gives_the_figures_of_the_file(content: Any) -> None:
    """Without the graph vector no network has to be embedded."""
    rows = [row for row in described(published_steps(required_data_folder())) if row.facts.dataset == DATASET]
    table = Table.of(in_known_frameworks(rows), lambda network: np.zeros(32))
    assert len(table.rows) == content["rows"]
    again = judged(table, VARIANTS[WITHOUT], "network", 0)
    known = content["variants"]["network"][WITHOUT]
    for part in ("timm", "other"):
        assert again[part]["mean"] == pytest.approx(known[part]["mean"]["first"], rel=0.02)
