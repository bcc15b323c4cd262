"""Predictions do not depend on what was predicted before: caches are keyed on all that their values depend on.

Steps, programs, timed programs and graphs are compared by identity, so that what follows from them is cached at little
cost. Equal jobs therefore have to share these objects, and unequal jobs must never do so by accident.
"""

from __future__ import annotations

import ast
import random
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import precision_time
from precision_time.bounded_cache import BUDGET, CACHES, STRUCTURES, Budget, bounded, size_of
from precision_time.job import Job
from precision_time.prediction import predict

UNBOUNDED = {
    "capture.stored_apart._stored": "a name per model",
    "anchors.base.published": "a data file of the package",
    "anchors.base.shipped_covariance": "a data file of the package",
    "anchors.base.read_base": "a data file of the package",
    "capture.intercept.registered": "one entry for each kind of device of torch",
    "capture.intercept._classes": "one entry for each kind of device of torch",
    "capture.intercept._install": "no arguments",
    "capture.tracer.dtype_name": "dtypes of torch",
    "field_table.field_table": "no arguments",
    "hardware.catalog._after_fit": "no arguments",
    "hardware.catalog._gpu_rows": "no arguments",
    "zoo.names._other_names": "no arguments",
    "field_types._types": "one entry for each class with fields",
    "hardware.fields._si_types": "one entry for each class with fields",
    "estimate.levels.normal": "one entry for each axis",
    "estimate.levels.uniform": "one entry for each axis",
    "plan.grid.grids": "a data file of the package",
    "plan.spot.published_zones": "a data file of the package",
    "serve.http.listings.board": "a data file of the package",
    "serve.http.listings.gpus": "no arguments",
    "serve.http.listings.models": "no arguments",
    "serve.http.problems._field_names": "no arguments",
    "serve.learning.effects.shipped_variances": "a data file of the package",
    "estimate.memory.memory_parameters": "a data file of the package",
    "estimate.run_parts.run_parts": "a data file of the package",
    "estimate.spread._fitted": "one entry for each data file of the package",
    "estimate.spread._decoder_families": "no arguments",
    "evaluation.fitted_rows.fitted": "one entry for each data file of the package",
    "hardware.catalog.default_catalog": "the catalog of the package",
    "hardware.catalog._builtin_gpus": "the catalog of the package",
    "hardware.catalog._builtin_nodes": "the catalog of the package",
    "hardware.catalog._builtin_node_entries": "the catalog of the package",
    "hardware.catalog._builtin_fabrics": "the catalog of the package",
    "hardware.catalog._builtin_prices": "the catalog of the package",
    "hardware.storage._plain_names": "the catalog of the package",
    "hardware.storage.storages": "the catalog of the package",
    "measure.conditions._nvidia_smi": "no arguments",
    "measure.kernel_support.autocast_lstm_error": "one entry for each dtype",
    "measure.tensors._pool": "one entry for each device of the machine",
    "predictors.predictddl.predictor.encoder_of": "two encoders",
    "predictors.predictddl.predictor.embedder_of": "two encoders",
    "predictors.predictddl.traced.known_networks": "a data file of the repository",
    "predictors.slice_sampling._dposv": "one function of LAPACK",
    "reading.yaml_text._loader": "no arguments",
    "shipped._digests": "no arguments",
    "timing.collectives.fitted": "a data file of the package",
    "timing.constants.shipped": "a data file of the package",
    "timing.kernel_factors._shipped": "a data file of the package",
    "timing.layout_costs.shipped_layout_costs": "a data file of the package",
    "timing.overlap._numbers": "a data file of the package",
    "timing.parameters.read_data": "one entry for each data file of the package",
    "timing.step_factors.shipped_openness": "a data file of the package",
}
"""Every cache without a bound, and why its entries are few whatever is predicted."""


def jobs() -> list[Job]:
    """Jobs that differ in one field each, and so would share a cache entry keyed on too little."""
    resnet = Job("resnet50", gpus=8, precision="amp-fp16", batch_size=64)
    llama = Job("llama3-8b", gpu="h100-80gb-sxm", gpus=64, precision="bf16-master", grad_accum=8, framework="megatron",
                layout="tp=4,pp=2,zero=1")  # fmt: skip
    changes: list[tuple[Job, dict[str, Any]]] = [
        (resnet, change) for change in (
            {}, {"gpus": 1}, {"gpus": 16}, {"precision": "amp-bf16"}, {"precision": "tf32"}, {"batch_size": 32},
            {"grad_accum": 2}, {"grad_accum": 2, "no_sync": False}, {"memory_format": "nhwc"}, {"optimizer": "adam"},
            {"optimizer_impl": "fused"}, {"execution": "compile"}, {"layout": "fsdp"}, {"layout": "zero1"},
            {"recompute": "full"}, {"communication_dtype": "float16"}, {"gpu": "v100-16gb-sxm"},
            {"loss_scale": "static"},
        )
    ] + [
        (llama, change) for change in (
            {}, {"layout": "tp=4,pp=2,zero=1,sp=1"}, {"layout": "tp=2,pp=4,zero=1"}, {"layout": "tp=4,pp=2"},
            {"grad_accum": 16}, {"recompute": "selective"}, {"recompute": "full", "recompute_layers": 4},
            {"framework": "pytorch"}, {"attention": "math"}, {"input": {"seq_len": 2048}}, {"precision": "fp8"},
        )
    ]  # fmt: skip
    return [job.replace(**change) for job, change in changes]


def clear_caches() -> int:
    """Empties the bounded caches, which are all whose keys follow from jobs; returns how many there are."""
    for cache in CACHES:
        cache.clear()
    assert BUDGET.held_bytes == STRUCTURES.held_bytes == 0
    return len(CACHES)


def answer(job: Job) -> tuple[float, float, int, tuple[str, ...]]:
    estimate = predict(job)
    return estimate.step.p50, estimate.step.p90, estimate.memory.peak_bytes, estimate.assumptions


def test_what_is_cached_changes_no_prediction() -> None:
    every = jobs()
    cold = []
    for job in every:
        assert clear_caches() > 20
        cold.append(answer(job))
    assert len({seconds for seconds, *_ in cold}) > 0.9 * len(every)  # the changes do matter
    clear_caches()
    order = [*range(len(every)), *range(len(every))]
    random.Random(0).shuffle(order)
    for place in order:
        assert answer(every[place]) == cold[place], every[place]


def _functools_caches() -> dict[str, str]:
    """Every use of `functools.cache` and `lru_cache` in the package: name of the function -> the decorator."""
    root = Path(precision_time.__file__).parent
    uses = {}
    for path in root.rglob("*.py"):
        if path.name == "bounded_cache.py":
            continue
        module = ".".join(path.relative_to(root).with_suffix("").parts)
        tree = ast.parse(path.read_text(encoding="utf-8"))
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef):
                for decorator in node.decorator_list:
                    text = ast.unparse(decorator)
                    if text.removeprefix("functools.").partition("(")[0] in ("cache", "lru_cache"):
                        uses[f"{module}.{node.name}"] = text
            elif isinstance(node, ast.Call) and ast.unparse(node.func).rpartition(".")[2] == "lru_cache":
                uses.setdefault(f"{module} line {node.lineno}", ast.unparse(node))
    return uses


def test_every_cache_is_bounded_by_bytes_or_has_few_keys_by_nature() -> None:
    assert set(_functools_caches()) == set(UNBOUNDED)


def test_caches_together_stay_under_their_limit_and_drop_what_was_used_longest_ago() -> None:
    budget = Budget(100_000)
    made: list[int] = []

    @bounded(budget=budget)
    def zeros(number: int) -> np.ndarray[Any, Any]:
        made.append(number)
        return np.zeros(1000)

    @bounded(budget=budget)
    def twice(number: int) -> tuple[int, int]:
        return number, number

    kept = zeros(0)
    for number in range(1, 200):
        assert zeros(number) is zeros(number)
        assert zeros(0) is kept, "asked for again and again, so never the oldest"
        assert twice(number) == (number, number)
        assert budget.held_bytes <= 100_000
    assert made == list(range(200))
    assert len(zeros(1)) == 1000
    assert made[-1] == 1, "dropped, so made again"
    assert sum(entry.nbytes for table in budget.tables for entry in table.values()) == budget.held_bytes


def test_a_result_larger_than_the_budget_is_not_kept() -> None:
    budget = Budget(1000)

    @bounded(budget=budget)
    def large(number: int) -> bytes:
        return bytes(number)

    assert large(10_000) == bytes(10_000)
    assert budget.held_bytes == 0


def test_threads_that_ask_at_once_get_the_same_object() -> None:
    barrier = threading.Barrier(8)
    answers: list[object] = []

    @bounded(budget=Budget(1 << 20))
    def made(_number: int) -> object:
        barrier.wait(10)
        return [object()]

    threads = [threading.Thread(target=lambda: answers.append(made(1))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({id(answer) for answer in answers}) == 1


@pytest.mark.parametrize(
    ("value", "least", "most"),
    [(np.zeros(1000), 8000, 8300), ((1.0,) * 100, 800, 1000), ("x" * 1000, 1000, 1100), ({1: [2] * 50}, 450, 900)],
)
def test_sizes_count_what_a_value_holds(value: object, least: int, most: int) -> None:
    assert least <= size_of(value) <= most
    assert size_of((value, value)) < size_of(value) + 100, "each object once"


def test_caches_of_jobs_hold_about_what_they_say() -> None:
    """A distinct job holds kilobytes to megabytes, and the sum of the caches of a budget is its count."""
    clear_caches()
    predict(Job("resnet50", batch_size=77, gpus=8, precision="amp-fp16"))
    for budget in (BUDGET, STRUCTURES):
        assert 1e5 < budget.held_bytes < 1e7
        assert sum(cache.held_bytes for cache in CACHES if cache.budget is budget) == budget.held_bytes
