"""The replay of published rows: its rows, its parts by hand, and pages that agree with the committed results."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks.replay import page
from benchmarks.replay.held_out import OUTPUT, HeldOutRow, cluster_of_source, left_out_with, read_held_out
from benchmarks.replay.replay import Step, base_spreads, replay
from benchmarks.replay.results import RATES, _within, by_source, chosen_rates, curve, summary
from benchmarks.replay.variances import Fit, document
from precision_time.fit.provenance import sha256
from precision_time.measurements.repository import LARGE_TABLES
from precision_time.measurements.table import read_table
from precision_time.report.errors import percent
from precision_time.serve.learning.effects import FILE, shipped_variances
from precision_time.shipped import ROOT

REPOSITORY = Path(__file__).parents[1]
TABLE = REPOSITORY / "data" / OUTPUT
RESULTS = json.loads((REPOSITORY / "benchmarks" / "results" / "replay.json").read_text(encoding="utf-8"))
SMALL = ("InternLM/InternEvo", "pytorch/torchtitan")


@pytest.fixture(scope="module")
def rows() -> list[HeldOutRow]:
    return read_held_out(TABLE)


@pytest.fixture(scope="module")
def fit(rows: list[HeldOutRow]) -> Fit:
    return Fit(rows)


def test_sources_are_repositories_and_submitters() -> None:
    azure = "mlcommons/training_results_v1.1@ebe92f81f7:Azure/results/nd96amsr_a100_v4_ngc21.09_mxnet/unet3d"
    assert (cluster_of_source(azure), left_out_with(azure)) == ("mlcommons/Azure", "mlcommons")
    table = "NVIDIA/Megatron-LM@1b8e2891fd:images/tables.tex"
    assert cluster_of_source(table) == left_out_with(table) == "NVIDIA/Megatron-LM"


def test_rows_are_those_of_the_tables(rows: list[HeldOutRow]) -> None:
    tables = [read_table(TABLE.parents[1] / "published" / name) for name in ("measurements.csv", "internevo.csv")]
    known = {row.id: row for table in tables for row in table.rows}
    found = [row for row in rows if row.id in known]
    assert len(found) > 450
    for row in found:
        assert row.measured_s == known[row.id].measured_s
        assert row.cluster == cluster_of_source(known[row.id].source)
    for row in rows:
        assert row.predicted_s > 0.0
        assert row.widening >= 0.0


def test_rows_of_one_job_as_stated_repeat(rows: list[HeldOutRow]) -> None:
    """Process groups of InternEvo told apart, the steps of a job repeat within 2 %; one lumped job differed by 7 %."""
    jobs: dict[str, list[float]] = {}
    for row in rows:
        if row.cluster == "InternLM/InternEvo":
            jobs.setdefault(row.job, []).append(row.measured_s)
    repeated = [seconds for seconds in jobs.values() if len(seconds) > 1]
    assert len(repeated) >= 4
    assert all(max(seconds) < 1.02 * min(seconds) for seconds in repeated)


def test_held_out_rows_are_the_stated_jobs(rows: list[HeldOutRow]) -> None:
    told = {row.id: row.job for name in LARGE_TABLES for row in read_table(TABLE.parents[1] / name).rows if row.job}
    found = [row for row in rows if row.id in told]
    assert {row.precision for row in found} >= {"fp8", "fp8-block", "fp8-rowwise"}
    for row in found:
        assert row.precision == told[row.id].precision


def test_shipped_variances_are_those_of_the_rows(rows: list[HeldOutRow], fit: Fit) -> None:
    shipped, found = shipped_variances(), fit.variances()
    assert dict(shipped.effects) == pytest.approx(dict(found.effects), rel=0.02)
    assert (shipped.job, shipped.noise) == pytest.approx((found.job, found.noise), rel=0.02)
    stored = json.loads((ROOT / FILE).read_text(encoding="utf-8"))
    assert stored["provenance"] == json.loads(json.dumps(document(found, TABLE, rows)["provenance"]))


def test_a_source_is_judged_by_variances_and_widths_without_it(rows: list[HeldOutRow], fit: Fit) -> None:
    """Whatever a source measured, what is fitted without it stays."""
    name = "VIA-Research/vTrain"
    other = [replace(row, measured_s=3.0 * row.measured_s) if row.source == name else row for row in rows]
    assert Fit(other).variances(name) == fit.variances(name) != shipped_variances()
    assert base_spreads(other, name) == base_spreads(rows, name)


def test_the_committed_results_are_those_of_the_code(rows: list[HeldOutRow], fit: Fit) -> None:
    found = by_source(replay(rows, fit, sources=SMALL))
    for name in SMALL:
        assert _numbers(found[name]) == pytest.approx(_numbers(RESULTS["sources"][name]), abs=0.002), name
    assert RESULTS["held_out_sha256"] == sha256(TABLE)


def _numbers(part: Any) -> dict[str, float]:
    found: dict[str, float] = {}
    for name, value in part.items():
        if isinstance(value, dict):
            found |= {f"{name}.{key}": each for key, each in _numbers(value).items()}
        elif value is not None:
            found[name] = value
    return found


def test_broken_machines_change_what_is_learned_and_not_what_is_judged(rows: list[HeldOutRow], fit: Fit) -> None:
    clean, broken = (
        replay(rows, fit, injected=seed, sources=["NVIDIA/Megatron-LM"], variances=shipped_variances())
        for seed in (None, 3)
    )
    assert [step.plain for step in clean] == [step.plain for step in broken]
    assert [step.learned for step in clean] != [step.learned for step in broken]


def _step(outcomes: int, others: int, plain: float, learned: float, inside: bool = True, source: str = "a") -> Step:
    return Step(
        id="r", source=source, cluster=source, outcomes=outcomes, others=others, repeats=outcomes - others, models=0,
        plain=plain, learned=learned, by_others=learned, by_models=None, running=0.0, anchored=0.0, deviation=-learned,
        inside=inside, inside_plain=True, broken=False, learn_s=0.001,
    )  # fmt: skip


def test_a_summary_by_hand() -> None:
    steps = [
        _step(0, 0, math.log(1.5), math.log(1.5)),
        _step(5, 5, math.log(1.2), math.log(1.1)),
        _step(31, 30, math.log(1.4), math.log(0.98), inside=False),
    ]
    found = summary(steps)
    assert found["after_others"]["n"] == 2
    assert found["after_others"]["plain"] == pytest.approx(0.3)
    assert found["after_others"]["others"] == pytest.approx(0.06)
    assert found["soon_after_others"]["n"] == 1
    assert found["after_one_of_the_job"]["learned"] == pytest.approx(0.02)
    assert found["coverage"] == {"n": 1, "settled": 0.0, "early": 1.0, "shipped_width": 1.0}
    both = curve([*steps, _step(0, 0, math.log(1.1), 0.0, source="b")])
    assert [(point["outcomes"], point["sources"]) for point in both] == [(0, 2)]
    assert both[0]["plain"] == pytest.approx(0.3)


def test_rates_are_chosen_by_other_sources_by_hand() -> None:
    """`a` and `b` go from one spread to two and a half after thirty outcomes, which slow tails follow late; `c` lies
    inside with any rate, and takes the rate of the others."""

    def stream(source: str, far: float, near: float) -> list[Step]:
        return [
            replace(_step(n, n, 0.1, 0.0, source=source), deviation=far * (-1) ** n if n < 30 else near * (-1) ** n)
            for n in range(100)
        ]

    steps = [*stream("a", 1.0, 2.5), *stream("b", 1.0, 2.5), *stream("c", 0.1, 0.1)]
    found = chosen_rates(steps)
    within = {rate: sum(flags) / len(flags) for rate in RATES for flags in [_within(steps, rate)["a"]]}
    assert found["sources"]["c"]["settled"] == 1.0
    nearest = min(RATES, key=lambda rate: abs(within[rate] - 0.8))
    assert found["sources"]["c"]["rate"] == nearest
    assert found["sources"]["a"]["settled"] == pytest.approx(within[found["sources"]["a"]["rate"]], abs=1e-4)
    assert found["sources"]["a"]["n"] == 70


def test_the_page_is_that_of_the_results() -> None:
    written = (REPOSITORY / "benchmarks" / "results" / "replay.md").read_text(encoding="utf-8")
    assert written == page.page(RESULTS)


def test_targets() -> None:
    """What issue 23 asks for, over all rows; sources that miss it are named in docs/serve.md."""
    whole = RESULTS["all"]
    assert whole["after_others"]["others"] <= 2 / 3 * whole["after_others"]["plain"]
    assert whole["other_models"]["learned"] < whole["other_models"]["plain"]
    assert whole["after_one_of_the_job"]["learned"] <= 0.04
    assert 0.77 <= whole["coverage"]["settled"] <= 0.83
    settled = [each["coverage"] for each in RESULTS["sources"].values() if each["coverage"]["n"] >= 100]
    assert len(settled) == 6
    assert all(0.77 <= each["settled"] <= 0.83 for each in settled)
    assert 0.77 <= RESULTS["rates"]["settled"] <= 0.83
    assert RESULTS["injection"]["learned"]["injected"] < 1.15 * RESULTS["injection"]["learned"]["clean"]


def _figures() -> Sequence[str]:
    whole, broken = RESULTS["all"], RESULTS["injection"]
    others, once, models = whole["after_others"], whole["after_one_of_the_job"], whole["other_models"]
    return (
        *(percent(others[name]) for name in ("plain", "running", "anchored", "others")),
        f"{others['others'] / others['plain']:.2f}",
        f"{RESULTS['mean_ratio']:.2f}",
        f"{RESULTS['shuffled']['mean_ratio']:.2f}",
        percent(models["plain"]),
        percent(models["learned"]),
        percent(once["learned"]),
        percent(once["median"]),
        percent(whole["coverage"]["settled"]),
        percent(whole["coverage"]["shipped_width"]),
        *(percent(broken[name][kind]) for name in ("learned", "running") for kind in ("clean", "injected")),
        f"{whole['rows']:,}",
        f"{RESULTS['learn_ms']['mean']:.0f} ms",
    )


@pytest.mark.parametrize("figure", _figures())
def test_the_docs_have_the_figures_of_the_results(figure: str) -> None:
    text = (REPOSITORY / "docs" / "serve.md").read_text(encoding="utf-8")
    section = text[text.index("## Correction") :]
    assert figure in section
