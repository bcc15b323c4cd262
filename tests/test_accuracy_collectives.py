"""How the collective model is judged: what is left out, what is guessed for it, and what the page says."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

import numpy as np
import pytest

from precision_time.hardware import Fabric, fabric
from precision_time.timing.collectives import Constants, fitted

pytest.importorskip("scipy")
pytest.importorskip("pandas")

from benchmarks.accuracy.collective_page import page
from benchmarks.accuracy.collectives import TARGETS, figures, grouped, misses
from precision_time.fit.__main__ import main
from precision_time.fit.collective_cases import NVLINK, PCIE, Array, Case, table_cases
from precision_time.fit.collectives import log_errors
from precision_time.fit.held_out_fabrics import (
    CLOCK_GHZ,
    GENERATIONS,
    CaseErrors,
    assumed_fabric,
    case_errors,
    gpu_types,
    held_out,
    link_generations,
)

REPO = Path(__file__).parents[1]
PARAMETERS = json.loads((REPO / "src/precision_time/timing/data/collectives.json").read_text(encoding="utf-8"))
ERRORS = json.loads((REPO / "benchmarks/results/collectives.json").read_text(encoding="utf-8"))
PAGE = (REPO / "benchmarks/results/collectives.md").read_text(encoding="utf-8")


def known(name: str, share: float, pace: float, nvls: float = 0.0) -> Fabric:
    link = {"nvlink3-switch": 300e9, "nvlink4-switch": 450e9, "pcie4": 32e9}[name]
    return replace(
        fabric(name),
        bus_bytes_per_s_by_gpus=MappingProxyType({2: share * link}),
        latency_scale=pace / CLOCK_GHZ[name],
        nvls_bytes_per_s=nvls * link,
    )


def test_an_unmeasured_fabric_is_assumed_from_its_datasheet() -> None:
    others = {
        "nvlink3-switch": known("nvlink3-switch", 0.8, 1.0),
        "nvlink4-switch": known("nvlink4-switch", 0.9, 4.0, nvls=0.6),
        "pcie4": known("pcie4", 0.65, 2.0),
    }
    switch = assumed_fabric("nvlink5-switch", others)  # 900 GB/s a direction at the mean of 0.8 and 0.9
    assert switch.bus_bytes_per_s(8) == pytest.approx(0.85 * 900e9)
    assert switch.nvls_bytes_per_s == pytest.approx(0.6 * 900e9)
    assert switch.latency_scale == pytest.approx(2.0 / 1.98)  # the geometric mean of 1, 4 and 2 over its clock
    card = assumed_fabric("pcie5", others)  # the other card at 0.65, the published slide at 0.75
    assert card.bus_bytes_per_s(2) == pytest.approx(0.70 * 64e9)
    assert card.bus_bytes_per_s(8) == pytest.approx(28e9)  # nothing but the published box


def test_cases_left_out_are_not_fitted() -> None:
    cases = [Case(gpu, "all_reduce", home, 2, np.array([1e3]), np.array([1e-5])) for gpu, home in NVLINK.items()]
    cases.append(replace(cases[0], weight=5.0))
    fits: list[set[str]] = []

    def fit(others: Sequence[Case]) -> tuple[Constants, dict[str, Fabric]]:
        fits.append({case.gpu for case in others})
        return fitted().constants, {case.fabric: fabric(case.fabric) for case in others}

    def errors(members: Sequence[Case], _: Constants, fabrics: Mapping[str, Fabric]) -> list[Array]:
        return [np.array([np.log(fabrics[case.fabric].bus_bytes_per_s(2) / 1e9)]) for case in members]

    judged = held_out(
        cases, {"H100-SXM-80GB": ["H100-SXM-80GB"], "NVLink 4": link_generations()["NVLink 4"]}, fit, errors
    )
    everyone = set(NVLINK)
    assert fits == [everyone - {"H100-SXM-80GB"}, everyone - {"H100-SXM-80GB", "H200-SXM"}]
    same_switch, assumed = (np.exp(judged[name][0].errors[0]) for name in ("H100-SXM-80GB", "NVLink 4"))
    assert same_switch == pytest.approx(fabric("nvlink4-switch").bus_bytes_per_s(2) / 1e9)  # H200 has the same switch
    assert assumed != pytest.approx(same_switch)


def test_folds_name_every_gpu_once() -> None:
    assert (
        sorted(gpu for gpus in link_generations().values() for gpu in gpus)
        == sorted(gpu_types())
        == sorted({**NVLINK, **PCIE})
    )
    assert {link for links in GENERATIONS.values() for link in links} == {*NVLINK.values(), *PCIE.values()}


def test_figures_by_hand() -> None:
    case = Case("A", "all_reduce", "pcie4", 2, np.array([1e3, 2**20, 2e6, 1e9]), np.ones(4))
    part = CaseErrors(case, np.log(np.array([1.2, 1.4, 0.5, 0.8])))
    assert figures([part]) == {
        "<= 1 MB": {"n": 2, "median_ape": 0.3, "p90_ape": 0.38, "median_error": 0.3},
        "> 1 MB": {"n": 2, "median_ape": 0.35, "p90_ape": 0.47, "median_error": -0.35},
    }
    assert misses(grouped([part], lambda one: one.gpu)) == ["A, > 1 MB: 35.0%"]


def test_the_page_is_what_was_fitted_and_judged() -> None:
    assert page(PARAMETERS, ERRORS) == PAGE, "stale: python -m benchmarks.accuracy collectives"


@pytest.mark.parametrize("run", ["in_sample", "gpu_type_left_out", "link_left_out"])
def test_targets_are_met_or_the_miss_is_stated(run: str) -> None:
    by_gpu = ERRORS[run]["by_gpu"]
    assert set(by_gpu) == {*NVLINK, *PCIE}
    stated = ERRORS[run].get("misses", [])
    assert misses(by_gpu) == stated
    assert all(miss in PAGE for miss in stated)
    overall = ERRORS[run]["all"]
    for label, limit in TARGETS.items():
        assert overall[label]["median_ape"] <= limit


def test_only_the_host_bridges_of_one_server_miss_when_a_type_is_left_out() -> None:
    assert {miss.split(",")[0] for miss in ERRORS["gpu_type_left_out"]["misses"]} <= {"RTX-PRO-6000-Server"}


def test_the_shipped_constants_give_the_figures_in_sample() -> None:
    pandas = pytest.importorskip("pandas")
    pytest.importorskip("pyarrow")
    table = pandas.read_parquet(REPO / "data" / "kernels" / "aic_nccl.parquet")
    cases = table_cases(table, {**NVLINK, **PCIE})
    homes = {name: fabric(name) for name in {case.fabric for case in cases}}
    again = grouped(case_errors(cases, log_errors(cases, fitted().constants, homes)), lambda case: case.gpu)
    for gpu, entry in ERRORS["in_sample"]["by_gpu"].items():
        for label in TARGETS:
            assert again[gpu][label]["n"] == entry[label]["n"]
            assert again[gpu][label]["median_ape"] == pytest.approx(entry[label]["median_ape"], abs=0.01)


def test_a_missing_table_is_one_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["collectives", "--tables", str(tmp_path)]) == 2
    assert "aic_nccl.parquet does not exist" in capsys.readouterr().err
