"""Folders of `measure` become parameters: written with times of known parameters, which the fit has to recover."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("scipy")
pytest.importorskip("pandas")

from precision_time.capture.captured_model import capture_model
from precision_time.capture.graph import OpSignature, TensorSpec
from precision_time.errors import CatalogError, DataError
from precision_time.fit.kernel_tables import Rows
from precision_time.fit.measured_parameters import FEWEST, fit_measured
from precision_time.fit.measured_points import MeasuredFolder, MeasuredGroup, read_folder, read_folders, update_work
from precision_time.hardware.catalog import default_catalog
from precision_time.job import Job
from precision_time.journal import Journal, read
from precision_time.measure.clock import Timed
from precision_time.measure.measurement import JOURNAL, write_tables
from precision_time.measure.point import Point
from precision_time.timing import constants, parameters
from precision_time.timing.kernels import SOURCES, KernelModel, WorkTable
from precision_time.timing.operators import WorkOptions, works
from precision_time.timing.parameters import LEARNED, ParameterBook, read_data
from precision_time.timing.work import Attention, Convolution, Work, attention_work, conv_work, matmul_work, memory_work

H200 = default_catalog().gpu("h200")
SETS: dict[str, Any] = read_data("kernels.json")["sets"]
NOISE = 0.03
"""Standard deviation of log time in the synthetic folders."""

_TILES = {"e256x128": 0.7, "e128x128": 0.66, "e128x64": 0.5, "e64x64": 0.4, "e64x32": 0.25}
_MATMUL = {**_TILES, "k0": 200.0, "wave": 0.5, "stream": 0.6, "reduce": 0.5, "memory": 0.8, "start": 3e-6, "power": 4.0}


def _departing(share: float, memory: float) -> dict[str, float]:
    return {**_MATMUL, **{name: share * value for name, value in _TILES.items()}, "memory": memory, "start": 4e-6}


TRUTH: dict[str, dict[str, float]] = {
    "matmul|half": _MATMUL,
    "conv.fwd.nhwc|half": _departing(0.9, 0.7), "conv.dgrad.nhwc|half": _departing(0.8, 0.6),
    "conv.wgrad.nhwc|half": _departing(0.7, 0.5), "conv.fwd.nchw|half": _departing(0.85, 0.65),
    "conv.dgrad.nchw|half": _departing(0.75, 0.55), "conv.wgrad.nchw|half": _departing(0.65, 0.45),
    "batch_norm.fwd.native.nchw|half": {"memory": 0.2, "start": 2.5e-6},
    "batch_norm.bwd.native.nchw|half": {"memory": 0.3, "start": 3.5e-6},
    "pointwise.fwd|half": {"memory": 0.9, "start": 2e-6}, "pointwise.bwd|half": {"memory": 0.88, "start": 2e-6},
    "cast.fwd|half": {"memory": 0.8, "start": 2e-6}, "optimizer|fp32": {"memory": 0.83, "start": 6e-6},
    "conv_depthwise.fwd.nhwc|half": {"e256x128": 0.2, "memory": 0.6, "start": 4e-6, "power": 4.0},
    "attention.fwd|half": {"e256x128": 0.6, "k0": 150.0, "wave": 0.5, "memory": 0.7, "start": 5e-6, "power": 3.0,
                           "d0": 20.0},
}  # fmt: skip
"""What the synthetic H200 does; classes that are not named do what the package assumes."""


def content(values: Mapping[str, Mapping[str, float]], chip: str = "H200-SXM") -> dict[str, Any]:
    """kernels.json with these sets under `own`."""
    measured_sets = {}
    for key, numbers in values.items():
        variant = key.partition("|")[0].partition(".")[2]
        measured_sets[key] = {chip: {"values": dict(numbers), "variants": [variant], "log_spread": 0.03}}
    return {"sets": SETS, "own": measured_sets}


REAL = KernelModel(scales={}, fitted=content(TRUTH))
"""The synthetic H200."""


def real_seconds(kernels: Iterable[Work]) -> np.ndarray:
    return REAL.seconds(list(kernels), H200).seconds


def kinds_of(model: str, batches: Iterable[int]) -> Iterator[OpSignature]:
    """Operators of a step, convolutions pass by pass, as the suite measures them."""
    for batch in batches:
        for kind in capture_model(Job(model, precision="amp-bf16", batch_size=batch)).graph.kinds:
            if kind.name != "aten.convolution_backward":
                yield kind
                continue
            for mask in ((True, False, False), (False, True, False)):
                if kind.attr("output_mask")[:2] >= mask[:2]:  # type: ignore[index]
                    attrs = tuple((k, mask if k == "output_mask" else v) for k, v in kind.attrs)
                    yield replace(kind, attrs=attrs)


def point(
    kind: OpSignature, rng: np.random.Generator, nhwc: bool = False, factor: float = 1.0
) -> dict[str, Any] | None:
    """The operator with the time that the synthetic H200 takes, in the journal's words."""
    options = WorkOptions(False, nhwc)
    kernels = works(kind, options)
    if not kernels:
        return None
    seconds = float(real_seconds(kernels).sum() * np.exp(NOISE * rng.standard_normal()))
    return Point(kind, options, Timed(seconds * factor, NOISE, 9, seconds * 1.1)).to_json()


def folder_of(path: Path, records: Mapping[str, Any], gpu: str = "h200-141gb-sxm") -> Path:
    """A folder as `measure` leaves it."""
    path.mkdir()
    head = {"machine": "1 x NVIDIA H200", "threads": 8, "torch": "2.13", "gpu": gpu}
    journal = Journal(path / JOURNAL, head)
    for label, record in records.items():
        journal.add(label, dict(record))
    write_tables(path, *read(path / JOURNAL)[:2])
    return path


MODELS = (("resnet50", (8, 32, 128)), ("mobilenet-v3-large", (16, 128)), ("gpt2", (2, 8)), ("bert-base", (4, 16)))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> MeasuredFolder:
    """The operators of four models at several batches, and updates, on the synthetic H200."""
    rng = np.random.default_rng(7)
    records: dict[str, Any] = {"c": {"probe_s": 1e-3, "at": "2026-11-21T03:04:05+00:00"}, "r": {"refused": "no"}}
    for model, batches in MODELS:
        for index, kind in enumerate(kinds_of(model, batches)):
            for nhwc in (False, True) if "convolution" in kind.name or "batch_norm" in kind.name else (False,):
                if record := point(kind, rng, nhwc):
                    records[f"{model} {index} {nhwc}"] = {"points": [record]}
    for model in ("resnet50", "bert-large"):
        for what in ("sgd", "adam", "adamw", "adagrad"):
            for how in ("foreach", "fused"):
                record = {"update": f"{what} {how}", "model": model, "dtype": "float32"}
                seconds = float(real_seconds([update_work(record)])[0])
                records[f"update {what} {how} {model}"] = {
                    **record, "seconds": seconds, "spread": 0.01, "host_s": seconds / 3, "tensors": 1, "elements": 1
                }  # fmt: skip
    return read_folder(folder_of(tmp_path_factory.mktemp("own") / "h200", records))


@pytest.fixture(scope="module")
def measured_sets(folder: MeasuredFolder) -> dict[str, Any]:
    return fit_measured([folder], [], SETS)[0]


def relative_error(measured_sets: Mapping[str, Any], kernels: list[Work], gpu: Any = H200) -> np.ndarray:
    """|predicted / real - 1| of works, by the fitted sets and without noise."""
    return np.abs(KernelModel(scales={}, fitted={"sets": SETS, "own": measured_sets}).seconds(kernels, gpu).seconds
                  / REAL.seconds(kernels, gpu).seconds - 1.0)  # fmt: skip


# --- what is read ---------------------------------------------------------------------------------------------------


def test_a_folder_becomes_groups_of_one_family_pass_and_dtype(folder: MeasuredFolder) -> None:
    assert folder.gpu == H200
    assert folder.file == "h200/journal.jsonl"
    assert len(folder.sha256) == 64
    keys = {group.key for group in folder.groups}
    assert {key for key in keys if key[0] == "conv" and key[2] == "half"} == {
        ("conv", f"{way}.{layout}", "half") for way in ("fwd", "dgrad", "wgrad") for layout in ("nchw", "nhwc")
    }
    assert {("matmul", "", "half"), ("optimizer", "", "fp32"), ("scatter", "embedding", "fp32")} <= keys
    for group in folder.groups:
        assert all((m.work.family, m.work.variant, m.work.dtype_class) == group.key for m in group.members)
    lookups = next(group for group in folder.groups if group.key[0] == "scatter")
    assert {w.family for m in lookups.members for w in m.others} == {"fill", "sort"}


@pytest.mark.parametrize("table", ["operators.parquet", "operators.csv"])
def test_the_tables_and_the_card_replace_the_journal(
    table: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = np.random.default_rng(1)
    points = filter(None, (point(kind, rng) for kind in kinds_of("resnet50", [4])))
    records: dict[str, Any] = {str(i): {"points": [point_record]} for i, point_record in enumerate(points)}
    records["u"] = {"update": "adam fused", "model": "resnet50", "dtype": "float32", "seconds": 1e-3, "host_s": 1e-4,
                    "spread": 0.0}  # fmt: skip
    if table.endswith(".csv"):
        monkeypatch.setitem(__import__("sys").modules, "pyarrow", None)
    path = folder_of(tmp_path / "h200", records)
    whole = read_folder(path)
    (path / JOURNAL).unlink()
    again = read_folder(path)
    assert again.file == f"h200/{table}"
    assert again.groups == tuple(replace(group, file=again.file) for group in whole.groups)


def test_outliers_are_left_out(tmp_path: Path) -> None:
    rng = np.random.default_rng(2)
    records = {}
    for index, kind in enumerate(kinds_of("resnet50", [16])):
        if record := point(kind, rng):
            records[str(index)] = {"points": [record]}
            wild = {**record, "seconds": 50 * record["seconds"], "slowest": 500 * record["seconds"], "outlier": True}
            records[f"{index} again"] = {"points": [wild]}
    result = read_folder(folder_of(tmp_path / "h200", records))
    assert result.outliers == len(records) / 2
    assert max(m.seconds for g in result.groups for m in g.members) < 0.1


def test_an_update_in_half_moves_half_the_bytes() -> None:
    """SGD fused: gradient, weight and momentum in, weight and momentum out, two bytes each."""
    elements = sum(p.numel for p in capture_model(Job("resnet50")).graph.parameters)
    for dtype, width in (("float32", 4), ("float16", 2), ("bfloat16", 2)):
        work = update_work({"update": "sgd fused", "model": "resnet50", "dtype": dtype})
        assert (work.dtype, work.bytes) == (dtype, 5 * width * elements)


def test_updates_that_wait_for_the_host_are_left_out(tmp_path: Path) -> None:
    record = {"update": "sgd fused", "model": "resnet50", "dtype": "float32", "seconds": 1e-3, "spread": 0.0}
    records = {str(share): {**record, "host_s": share * 1e-3} for share in (0.1, 0.9)}
    (group,) = read_folder(folder_of(tmp_path / "h200", records)).groups
    assert len(group.members) == 1
    # SGD with momentum, fused: gradient, weight and momentum read, the last two written
    parameters = sum(p.numel for p in capture_model(Job("resnet50")).graph.parameters)
    assert group.members[0].work.bytes == 4 * 5 * parameters


def test_a_recurrent_layer_is_its_chain_and_its_products(tmp_path: Path) -> None:
    def lstm(batch: int, steps: int, hidden: int) -> OpSignature:
        x = TensorSpec((batch, steps, hidden), "bfloat16")
        attrs = (("hidden", hidden), ("layers", 2), ("mode", 2), ("batch_first", True), ("bidirectional", False))
        return OpSignature("pt.rnn", (x,), (x,), attrs)

    rng = np.random.default_rng(3)
    shapes = [(b, s, h) for b in (16, 64) for s in (50, 200) for h in (512, 1024, 2048)]
    records = {str(shape): {"points": [point(lstm(*shape), rng)]} for shape in shapes}
    result = read_folder(folder_of(tmp_path / "h200", records))
    (group,) = result.groups
    assert group.key == ("rnn", "fwd", "half")
    assert {(m.count, len(m.others)) for m in group.members} == {(2, 2)}
    measured_sets, _ = fit_measured([result], [], SETS)
    chains = [works(lstm(32, 100, h), WorkOptions())[1] for h in (768, 1536)]  # type: ignore[index]
    assert relative_error(measured_sets, chains).max() < 0.10


# --- what is fitted -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("key", "name"),
    [
        (key, name)
        for key, values in TRUTH.items()
        for name in values
        if key.startswith(("batch", "pointwise", "cast", "optimizer")) or (key.startswith("conv_d") and name != "power")
    ],
)
def test_shares_and_starts_are_recovered_within_a_tenth(measured_sets: dict[str, Any], key: str, name: str) -> None:
    assert measured_sets[key]["H200-SXM"]["values"][name] == pytest.approx(TRUTH[key][name], rel=0.10)


def _convolutions(direction: str, layout: str) -> list[Work]:
    return [
        conv_work(
            Convolution(n, c, c2, (s, s), (s, s), (k, k), (1, 1), 1), "bf16", 2, direction=direction, layout=layout
        )
        for n in (24, 96)
        for c, c2, s in ((64, 128, 48), (192, 384, 24), (512, 512, 12))
        for k in (1, 3)
    ]


UNSEEN: dict[str, list[Work]] = {
    "matmul|half": [
        matmul_work((1, m, n, k), "bf16", 2)
        for m in (3000, 9000) for n in (1000, 5000) for k in (700, 999)
    ],
    **{
        f"conv.{way}.{layout}|half": _convolutions(way, layout)
        for way in ("fwd", "dgrad", "wgrad") for layout in ("nchw", "nhwc")
    },
    "batch_norm.bwd.native.nchw|half": [
        memory_work("batch_norm", b, b / 4, 2, dtype="bfloat16", variant="bwd.native.nchw") for b in (3e5, 5e7, 6e8)
    ],
}  # fmt: skip


@pytest.mark.parametrize("key", UNSEEN)
def test_works_that_were_not_measured_are_timed_within_a_few_percent(measured_sets: dict[str, Any], key: str) -> None:
    error = relative_error(measured_sets, UNSEEN[key])
    assert np.median(error) < 0.05
    assert error.max() < 0.15
    assert np.median(relative_error({}, UNSEEN[key])) > 2 * np.median(error), "better than what was guessed"


def test_sets_state_their_provenance(folder: MeasuredFolder, measured_sets: dict[str, Any]) -> None:
    for sets in measured_sets.values():
        for chip, described in sets.items():
            assert chip in ("H200-SXM", "arch:hopper")
            assert described["file"] == folder.file
            assert described["gpus"] == ["H200-SXM"]
            assert described["rows"] >= FEWEST
            assert 0.02 <= described["log_spread"] < 0.5
    assert folder.described() == {
        "sha256": folder.sha256, "gpu": "h200-141gb-sxm", "rows": folder.rows, "outliers": 0
    }  # fmt: skip


def test_few_rows_are_pooled_with_their_pass_or_family_or_left(folder: MeasuredFolder) -> None:
    groups = {group.key: group for group in folder.groups}
    wgrad, dgrad = (groups["conv", f"{way}.nchw", "half"] for way in ("wgrad", "dgrad"))
    norm = groups["batch_norm", "bwd.native.nchw", "half"]

    def fitted(*parts: tuple[MeasuredGroup, str, int]) -> dict[str, list[str]]:
        cut = []
        for group, variant, count in parts:
            family, _, kind = group.key
            cut.append(replace(group, key=(family, variant, kind), members=group.members[:count]))
        measured_sets, _ = fit_measured([replace(folder, groups=tuple(cut))], [], SETS)
        return {key: sets["H200-SXM"]["variants"] for key, sets in measured_sets.items()}

    assert fitted((wgrad, "wgrad.nchw", 9), (wgrad, "wgrad.nhwc", 3)) == {
        "conv.wgrad.nchw|half": ["wgrad.nchw"], "conv.wgrad|half": ["wgrad.nchw", "wgrad.nhwc"],
    }  # fmt: skip
    assert fitted((wgrad, "wgrad.nchw", 4), (dgrad, "dgrad.nchw", 4)) == {"conv|half": ["dgrad.nchw", "wgrad.nchw"]}
    assert fitted((norm, "bwd.native.nchw", FEWEST - 1)) == {}
    assert fitted((norm, "bwd.native.nchw", FEWEST)) == {"batch_norm.bwd.native.nchw|half": ["bwd.native.nchw"]}


def test_a_pooled_set_serves_the_variants_it_was_measured_in() -> None:
    parameters = {"values": {"memory": 0.5}, "log_spread": 0.1}
    sets = {
        "conv.wgrad|half": {"H200-SXM": {**parameters, "variants": ["wgrad.nchw", "wgrad.nhwc"]}},
        "pooling|half": {"H200-SXM": {**parameters, "variants": ["fwd"]}},
    }
    book = ParameterBook(scales={}, fitted={"sets": SETS, "own": sets})

    def learned(family: str, variant: str) -> bool:
        return book.resolve(family, variant, "half", "H200-SXM", "hopper").source == LEARNED

    assert learned("conv", "wgrad.nhwc")
    assert not learned("conv", "dgrad.nhwc")
    assert learned("pooling", "fwd")
    assert not learned("pooling", "bwd")


def test_unmarked_outliers_hardly_matter(folder: MeasuredFolder) -> None:
    key = ("batch_norm", "bwd.native.nchw", "half")
    (group,) = [group for group in folder.groups if group.key == key]
    wild = [replace(m, seconds=m.seconds * (5 if i % 20 == 0 else 1)) for i, m in enumerate(group.members)]
    measured_sets, _ = fit_measured([replace(folder, groups=(replace(group, members=tuple(wild)),))], [], SETS)
    for name, value in TRUTH["batch_norm.bwd.native.nchw|half"].items():
        assert measured_sets["batch_norm.bwd.native.nchw|half"]["H200-SXM"]["values"][name] == pytest.approx(
            value, rel=0.15
        )


def test_rows_of_the_tables_give_the_shape_and_ours_the_level(tmp_path: Path) -> None:
    """Others timed small products too, with a library 20 % slower and 10 us of overhead; we have only a few large."""
    sizes = [(m, n, k) for m in (64, 256, 1024, 4096) for n in (512, 2048, 8192) for k in (256, 1024, 4096)]
    small = [matmul_work((1, *size), "bf16", 2) for size in sizes]
    table_rows = Rows("matmul", "half", H200, small, 1.2 * real_seconds(small) + 10e-6, False, "table.parquet")
    rng = np.random.default_rng(4)

    def product(m: int, n: int, k: int) -> OpSignature:
        a, b, c = (TensorSpec(shape, "bfloat16") for shape in ((m, k), (k, n), (m, n)))
        return OpSignature("aten.mm", (a, b), (c,))

    large = [(m, 4096, k) for m in (2048, 4096, 8192) for k in (1024, 2048, 4096)]
    records = {str(size): {"points": [point(product(*size), rng)]} for size in large}
    sets, report = fit_measured([read_folder(folder_of(tmp_path / "h200", records))], [table_rows], SETS)
    parameters = sets["matmul|half"]["H200-SXM"]
    assert parameters["file"] == "h200/journal.jsonl + table.parquet"
    assert parameters["others"]["rows"] == len(small)
    assert parameters["others"]["factor"] == pytest.approx(1.2, rel=0.05)
    assert parameters["others"]["overhead"] == pytest.approx(10e-6, rel=0.3)
    assert np.median(relative_error(sets, small)) < 0.05
    assert [(row["kernels"], row["dtype"], row["rows"]) for row in report] == [("matmul", "half", len(large))]


def test_attention_and_fp32_convolutions_have_their_own_curves(tmp_path: Path) -> None:
    rng = np.random.default_rng(5)
    kinds = []
    for batch, heads, length, size in ((b, h, n, d) for b in (2, 8) for h in (8, 16) for n in (256, 1024, 2048)
                                       for d in (64, 128)):  # fmt: skip
        q = TensorSpec((batch, heads, length, size), "bfloat16")
        kinds.append(OpSignature("pt.attention", (q, q, q), (q,), (("is_causal", True),)))
    for n, c, side, kernel in ((n, c, s, k) for n in (8, 32) for c in (64, 256) for s in (14, 28, 56) for k in (1, 3)):
        x, w = TensorSpec((n, c, side, side), "float32"), TensorSpec((c, c, kernel, kernel), "float32")
        kinds.append(OpSignature("aten.convolution", (x, w), (x,), (("stride", (1, 1)), ("groups", 1))))
    records = {str(kind): {"points": [point(kind, rng)]} for kind in kinds}
    sets, _ = fit_measured([read_folder(folder_of(tmp_path / "h200", records))], [], SETS)
    assert {"attention.fwd|half", "conv.fwd.nchw|fp32", "winograd.fwd.nchw|fp32"} == set(sets)
    unseen = [attention_work(Attention(4, 12, 12, n, n, 64, causal=True), "bf16", 2) for n in (512, 1536)]
    assert relative_error(sets, unseen).max() < 0.10
    rivals = [
        conv_work(Convolution(n, c, c, (s, s), (s, s), (3, 3), (1, 1), 1), "fp32", 4)
        for n in (12, 24) for c, s in ((96, 40), (192, 20), (256, 28))
    ]  # fmt: skip
    assert np.median(relative_error(sets, rivals)) < 0.10
    assert np.median(relative_error({}, rivals)) == 0.0, "the truth of this class is what the package assumes"


def test_a_dilated_convolution_in_fp32_is_fitted_beside_the_winograd_kernels_it_may_run(tmp_path: Path) -> None:
    rng = np.random.default_rng(6)
    records = {}
    for n, c, side in ((n, c, s) for n in (4, 16) for c in (64, 128, 256) for s in (14, 28)):
        x, w = TensorSpec((n, c, side, side), "float32"), TensorSpec((c, c, 3, 3), "float32")
        attrs = (("stride", (1, 1)), ("dilation", (2, 2)), ("groups", 1))
        records[f"{n} {c} {side}"] = {"points": [point(OpSignature("aten.convolution", (x, w), (x,), attrs), rng)]}
    sets, report = fit_measured([read_folder(folder_of(tmp_path / "h200", records))], [], SETS)
    assert set(sets) == {"conv_dilated.fwd.nchw|fp32"}
    dilated = [
        conv_work(Convolution(8, c, c, (20, 20), (20, 20), (3, 3), (1, 1), 1, dilated=True), "fp32", 4)
        for c in (96, 192)
    ]  # fmt: skip
    assert relative_error(sets, dilated).max() < 0.15
    assert report[0]["median"] < 0.10


def test_an_architecture_pools_all_its_measured_devices(tmp_path: Path) -> None:
    rng = np.random.default_rng(8)
    folders = []
    for name, share in (("h100", 0.8), ("h200", 0.9)):
        gpu = default_catalog().gpu(name)
        model = KernelModel(
            scales={}, fitted=content({"pointwise.fwd|half": {"memory": share, "start": 2e-6}}, gpu.kernel_name)
        )
        records = {}
        for elements in (1 << 20, 1 << 22, 1 << 24, 1 << 25, 1 << 26, 1 << 27):
            x = TensorSpec((elements,), "bfloat16")
            kind = OpSignature("aten.relu", (x,), (x,))
            seconds = float(model.seconds(works(kind, WorkOptions()) or [], gpu).seconds[0])
            seconds *= float(np.exp(NOISE * rng.standard_normal()))
            record = Point(kind, WorkOptions(), Timed(seconds, NOISE, 9, seconds)).to_json()
            records[str(elements)] = {"points": [record]}
        folders.append(read_folder(folder_of(tmp_path / name, records, gpu.name)))
    (sets,) = fit_measured(folders, [], SETS)[0].values()
    assert set(sets) == {"H100-SXM-80GB", "H200-SXM", "arch:hopper"}
    assert sets["H100-SXM-80GB"]["values"]["memory"] == pytest.approx(0.8, rel=0.05)
    assert sets["H200-SXM"]["values"]["memory"] == pytest.approx(0.9, rel=0.05)
    assert 0.8 < sets["arch:hopper"]["values"]["memory"] < 0.9
    assert sets["arch:hopper"]["gpus"] == ["H100-SXM-80GB", "H200-SXM"]
    assert sets["arch:hopper"]["file"] == "h100/journal.jsonl + h200/journal.jsonl"


# --- what predictions make of it ------------------------------------------------------------------------------------


def test_a_resnet_on_the_measured_gpu_is_learned_and_as_fast_as_measured(
    measured_sets: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    from precision_time.prediction import predict

    job = Job("resnet50", precision="amp-bf16", gpu="h200", batch_size=128, memory_format="nchw", anchors="none")

    def predicted(kernels: Mapping[str, Any]) -> Any:
        real = parameters.read_data
        with monkeypatch.context() as patched:
            patched.setattr(parameters, "read_data", lambda name: kernels if name == "kernels.json" else real(name))
            constants.shipped.cache_clear()
            try:
                return predict(job)
            finally:
                constants.shipped.cache_clear()

    before, after = predicted({"sets": SETS}), predicted({"sets": SETS, "own": measured_sets})
    truth = predicted(content(TRUTH))
    assert before.sources["assumed"] > 0.7
    assert after.sources["learned"] > 0.8
    assert after.step.p50 == pytest.approx(truth.step.p50, rel=0.05)
    assert abs(before.step.p50 / truth.step.p50 - 1) > 0.08

    kinds = capture_model(job).graph.kinds
    kernels = [work for kind in kinds for work in works(kind, WorkOptions(False, True)) or ()]
    table = WorkTable.from_works(kernels)
    for sets, source in (({"sets": SETS}, "assumed"), ({"sets": SETS, "own": measured_sets}, "learned")):
        times = KernelModel(fitted=sets).seconds(table, H200)
        for family in ("conv", "batch_norm"):
            codes = {int(c) for c, w in zip(times.source, kernels, strict=True) if w.family == family}
            assert {SOURCES[c] for c in codes} == {source}


def test_an_h100_benefits_and_an_a100_does_not_move(measured_sets: dict[str, Any]) -> None:
    fitted = {"sets": SETS, "own": measured_sets}
    book, plain = ParameterBook(fitted=fitted), ParameterBook(fitted={"sets": SETS})
    conv = ("conv", "fwd.nhwc", "half")
    measured_device, sibling = (book.resolve(*conv, name, "hopper") for name in ("H200-SXM", "H100-SXM-80GB"))
    assert (measured_device.source, sibling.source) == (LEARNED, LEARNED)
    assert sibling.log_spread > measured_device.log_spread
    assert np.array_equal(measured_device.values, sibling.values)
    # What others measured on the very device stays before what we measured on a relative of it.
    products = ("matmul", "", "half", "H100-SXM-80GB", "hopper")
    assert np.array_equal(book.resolve(*products).values, plain.resolve(*products).values)
    for key in measured_sets:
        family, _, variant = key.partition("|")[0].partition(".")
        for name, arch in (("A100-SXM4-80GB", "ampere"), ("B200-SXM", "blackwell"), ("V100-SXM2-16GB", "volta")):
            where = (family, variant, key.partition("|")[2], name, arch)
            now, then = book.resolve(*where), plain.resolve(*where)
            assert np.array_equal(now.values, then.values), where
            assert (now.source, now.log_spread, now.scale) == (then.source, then.log_spread, then.scale)


def test_cards_of_another_kind_do_not_take_their_architectures_convolutions(measured_sets: dict[str, Any]) -> None:
    of_l40s = {key: {"L40S": s["H200-SXM"], "arch:ada": s["H200-SXM"]} for key, s in measured_sets.items()}
    book, plain = (ParameterBook(scales={}, fitted={"sets": SETS, "own": o}) for o in (of_l40s, {}))
    conv, norm = (("conv", "fwd.nhwc", "half"), ("batch_norm", "fwd.native.nhwc", "half"))
    for name in ("RTX-4090", "L40"):
        assert np.array_equal(book.resolve(*conv, name, "ada").values, plain.resolve(*conv, name, "ada").values)
        assert book.resolve(*norm, name, "ada").source == LEARNED


def test_a_factor_fitted_on_guesses_is_not_put_on_what_was_measured(measured_sets: dict[str, Any]) -> None:
    scales = {"conv.nhwc|*|half": 0.6, "batch_norm|hopper|half": 0.9}
    book = ParameterBook(fitted={"sets": SETS, "own": measured_sets}, scales=scales)
    conv, norm = ("conv", "fwd.nhwc", "half"), ("batch_norm", "fwd.native.nhwc", "half")
    assert book.resolve(*conv, "H200-SXM", "hopper").scale == 1.0
    assert book.resolve(*conv, "A100-SXM4-80GB", "ampere").scale == 0.6
    assert book.resolve(*norm, "H200-SXM", "hopper").scale == 0.9, "a step on this architecture saw these kernels"


def test_helpers_without_a_pass_take_their_familys_forward(measured_sets: dict[str, Any]) -> None:
    """The bias of a convolution is a pointwise kernel without a variant."""
    book = ParameterBook(fitted={"sets": SETS, "own": measured_sets}, scales={})
    helper, forward = (book.resolve("pointwise", v, "half", "H200-SXM", "hopper") for v in ("", "fwd"))
    assert np.array_equal(helper.values, forward.values)


# --- folders that are none ------------------------------------------------------------------------------------------


def _relu(rng: np.random.Generator) -> dict[str, Any]:
    x = TensorSpec((1 << 20,), "bfloat16")
    record = point(OpSignature("aten.relu", (x,), (x,)), rng)
    assert record is not None
    return record


@pytest.mark.parametrize(
    ("make", "error", "why"),
    [
        (lambda p: None, DataError, "is not a folder that `precision-time measure` wrote"),
        (lambda p: p.write_text("x"), DataError, "is not a folder that `precision-time measure` wrote"),
        (lambda p: p.mkdir(), DataError, "is not a folder that `precision-time measure` wrote"),
        (
            lambda p: (p.mkdir(), (p / JOURNAL).write_text("hello\n")),
            DataError,
            "are not what `precision-time measure`",
        ),
        (lambda p: (p.mkdir(), Journal(p / JOURNAL, {"machine": "x"})), DataError, "are not what"),
        (lambda p: (p.mkdir(), (p / "operators.csv").write_bytes(b"\xff\xfe")), DataError, "are not what"),
        (lambda p: (p.mkdir(), (p / "operators.parquet").write_bytes(b"PAR1")), DataError, "are not what"),
        (lambda p: folder_of(p, {}, "this-cpu"), DataError, "on a CPU; CPUs are predicted from a device file"),
        (lambda p: folder_of(p, {}, "NVIDIA TITAN Z"), CatalogError, "'NVIDIA TITAN Z', which is not in the catalog"),
        (lambda p: folder_of(p, {}), DataError, "holds no operator that a fit can use"),
        (lambda p: folder_of(p, {"a": {"refused": "no"}}), DataError, "holds no operator that a fit can use"),
    ],
)
def test_a_hostile_folder_is_one_sentence(make: Any, error: type[Exception], why: str, tmp_path: Path) -> None:
    make(tmp_path / "it")
    with pytest.raises(error, match=why) as raised:
        read_folder(tmp_path / "it")
    assert "\n" not in str(raised.value)
    assert str(raised.value).count(". ") == 0


@pytest.mark.parametrize(
    "broken",
    [
        {"seconds": "fast"}, {"inputs": [[["a"], "bfloat16"]]}, {"inputs": [[[4], "float3"]]}, {"attrs": None},
        {"operator": "aten.convolution", "inputs": []},
    ],
)  # fmt: skip
def test_a_broken_point_is_named(broken: dict[str, Any], tmp_path: Path) -> None:
    path = folder_of(tmp_path / "h200", {})
    Journal(path / JOURNAL).add("a", {"points": [{**_relu(np.random.default_rng(0)), **broken}]})
    with pytest.raises(DataError, match="holds a point that this version cannot read"):
        read_folder(path)


@pytest.mark.parametrize("seconds", [0.0, -1.0])
def test_impossible_times_are_left_out(seconds: float, tmp_path: Path) -> None:
    good = _relu(np.random.default_rng(0))
    path = folder_of(tmp_path / "h200", {"good": {"points": [good]}})
    Journal(path / JOURNAL).add("bad", {"points": [{**good, "seconds": seconds}]})
    result = read_folder(path)
    assert (result.rows, result.skipped) == (1, 1)


def test_a_folder_counts_once(tmp_path: Path) -> None:
    path = folder_of(tmp_path / "h200", {"a": {"points": [_relu(np.random.default_rng(0))]}})
    with pytest.raises(DataError, match="two measured folders have the file h200/"):
        read_folders([path, path])


def test_a_folder_with_too_little_changes_nothing(tmp_path: Path) -> None:
    path = folder_of(tmp_path / "h200", {"a": {"points": [_relu(np.random.default_rng(0))]}})
    assert fit_measured([read_folder(path)], [], SETS) == ({}, [])


# --- the command ----------------------------------------------------------------------------------------------------


def _tables(path: Path) -> Path:
    """A data folder with the files that the stages check first."""
    for name in ("kernels/aic_gemm.parquet", "published/measurements.csv"):
        (path / "data" / name).parent.mkdir(parents=True, exist_ok=True)
        (path / "data" / name).write_text("", encoding="utf-8")
    return path / "data"


def test_the_command_hands_the_folders_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from types import SimpleNamespace

    from precision_time.cli import fitting
    from precision_time.cli.main import main

    path = folder_of(tmp_path / "h200", {"a": {"points": [_relu(np.random.default_rng(0))]}})
    ran: list[list[str]] = []
    stage = SimpleNamespace(returncode=0, communicate=lambda: (b"", None))
    monkeypatch.setattr(fitting, "start_module", lambda _, *words, **__: ran.append([*words]) or stage)
    monkeypatch.setattr(fitting, "end_process", lambda _: None)
    tables = str(_tables(tmp_path))
    assert main(["fit", "kernels", "steps", "--tables", tables, "--measured", str(path)]) == 0
    assert ran == [["kernels", "--tables", tables, "--measured", str(path)], ["steps", "--tables", tables]]
    ran.clear()
    assert main(["fit", "steps", "--shared", str(tmp_path)]) == 0
    assert ran == [["steps", "--tables", tables]]
    assert "note: flag --shared is now --tables" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("fit steps --measured nowhere", "--measured goes with stage kernels, which is not among steps"),
        ("fit --report --measured nowhere", "--measured goes with stage kernels"),
        ("fit kernels --measured nowhere", "measured 'nowhere' is not a folder that `precision-time measure` wrote"),
    ],
)
def test_a_wrong_word_is_one_line(words: str, says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from precision_time.cli.main import main

    assert main([*words.split(), "--tables", str(_tables(tmp_path))]) == 2
    message = capsys.readouterr().err
    assert says in message
    assert message.count("\n") == 1


def test_the_stage_refuses_alike_and_never_drops_measured_sets(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from precision_time.fit.__main__ import main
    from precision_time.fit.kernels import check_kept

    assert main(["kernels", "--tables", str(tmp_path), "--measured", str(tmp_path)]) == 2
    assert capsys.readouterr().err.count("\n") == 1
    out = tmp_path / "kernels.json"
    out.write_text(json.dumps({"measured": {"h200/journal.jsonl": {}}}), encoding="utf-8")
    with pytest.raises(DataError, match=r"holds sets fitted to h200/journal\.jsonl, which this fit would drop"):
        check_kept(out, [])


def test_the_stage_writes_our_sets_beside_those_of_the_tables(
    folder: MeasuredFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """With the tables and their fit, which takes a minute, taken as done."""
    from precision_time.fit import kernels

    for name, instead in (
        ("read_folders", lambda _: [folder]), ("read_gpus", dict), ("read_rows", lambda *_: []),
        ("fit_sets", lambda _: SETS), ("sha256", lambda _: "0" * 64),
    ):  # fmt: skip
        monkeypatch.setattr(kernels, name, instead)
    out = tmp_path / "kernels.json"
    kernels.run(tmp_path, ["h200"], output=out)
    printed = capsys.readouterr()
    assert re.search(r"^conv\.fwd\.nhwc +half +H200-SXM ", printed.out, re.MULTILINE)
    assert "now refit the whole-step factors" in printed.err
    written = json.loads(out.read_text(encoding="utf-8"))
    assert written["sets"] == SETS
    assert written["measured"] == {"h200/journal.jsonl": folder.described()}
    before = [row for row in written["own_evaluation"] if row["kernels"].startswith("conv.")]
    assert all(row["held-out median"] < 0.06 < row["before"] for row in before)
    times = KernelModel(fitted=written).seconds(_convolutions("wgrad", "nchw"), H200)
    assert {SOURCES[code] for code in times.source} == {"learned"}


def test_reading_a_folder_needs_no_torch() -> None:
    import subprocess
    import sys

    code = "import sys, precision_time.fit.measured_parameters; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_the_real_suite_writes_what_the_fit_reads(tmp_path: Path) -> None:
    """Small real measurements on this CPU, recorded as if on an H200: only the form matters."""
    torch = pytest.importorskip("torch")
    from precision_time.measure.convolutions import conv_benches
    from precision_time.measure.products import Limits, attention_benches, matmul_benches
    from precision_time.measure.session import run_plan
    from precision_time.measure.suite import bench_task, interleaved
    from precision_time.measure.traffic import traffic_benches

    cpu, limits, dtype = torch.device("cpu"), Limits(3e7, 1e6), torch.float32
    families = [traffic_benches(dtype, [1 << 18]), matmul_benches(dtype, 1, limits), conv_benches(dtype, 2, limits),
                attention_benches(dtype, 1, limits)]  # fmt: skip
    journal = Journal(tmp_path / JOURNAL)
    plan = [bench_task(bench, cpu) for bench in interleaved(families)]
    run_plan(plan[:24], journal, cpu, budget_s=600.0)  # so few that a busy machine finishes them
    for record in journal.records.values():  # another process on these cores makes outliers of them
        for point_record in record.get("points", ()):
            point_record["outlier"] = False
    result = read_folder(folder_of(tmp_path / "result", journal.records))
    assert result.rows > 15
    assert {"matmul", "conv", "pointwise"} <= {group.key[0] for group in result.groups}
    assert result.skipped == 0
    measured_sets, _ = fit_measured([result], [], SETS)
    assert measured_sets
    for sets in measured_sets.values():
        assert all(np.isfinite(list(s["values"].values())).all() for s in sets.values())
