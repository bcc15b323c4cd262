"""Graphs stored as polynomials of the input sizes: equal to a capture at sizes never seen, and to today's capture."""

from __future__ import annotations

import dataclasses
import json
import zipfile
from functools import cache
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from hypothesis import given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

from networks import cnn, names, total, trace, transformer  # noqa: E402
from precision_time.capture import symbolic, symbolic_fit  # noqa: E402
from precision_time.capture.graph import Call, OpGraph, OpSignature, Phase, TensorSpec  # noqa: E402
from precision_time.capture.stored_apart import last_of  # noqa: E402
from precision_time.capture.trace import trace_entry  # noqa: E402
from precision_time.errors import CaptureError, DataError  # noqa: E402
from precision_time.zoo.catalog import ENTRIES  # noqa: E402
from precision_time.zoo.ship import DATA, variants_of  # noqa: E402
from precision_time.zoo.workload import BATCH, Symbol  # noqa: E402

LENGTH = Symbol("length", (8, 12, 20), 28, degree=2)
REGIMES = ("full", "autocast", "half")


@cache
def fitted(regime: str) -> dict[str, Any]:
    return symbolic_fit.fit("transformer", (BATCH, LENGTH),
                        lambda s: trace(lambda: transformer(s["batch_size"], s["length"]), regime))  # fmt: skip


@settings(max_examples=8)
@given(regime=st.sampled_from(REGIMES), batch=st.integers(2, 64), width=st.integers(1, 16).map(lambda n: 4 * n))
def test_cnn_at_unseen_sizes(regime: str, batch: int, width: int) -> None:
    evaluated = symbolic.evaluate(_cnn_of(width, regime), {"batch_size": batch})
    assert symbolic_fit.same_step(evaluated, trace(lambda: cnn(batch, width), regime))


@cache
def _cnn_of(width: int, regime: str) -> dict[str, Any]:
    return symbolic_fit.fit("cnn", (BATCH,), lambda s: trace(lambda: cnn(s["batch_size"], width), regime))


@settings(max_examples=8)
@given(regime=st.sampled_from(REGIMES), batch=st.integers(2, 32), length=st.integers(2, 96))
def test_transformer_at_unseen_sizes(regime: str, batch: int, length: int) -> None:
    # At batch size 1 some copies are views; see test_batch_size_one.
    evaluated = symbolic.evaluate(fitted(regime), {"batch_size": batch, "length": length})
    assert symbolic_fit.same_step(evaluated, trace(lambda: transformer(batch, length), regime))


def test_batch_size_one_differs_by_copies_only() -> None:
    """A dimension of 1 lets torch view where it copies otherwise: the stored graph has those copies too many."""
    evaluated = symbolic.evaluate(fitted("autocast"), {"batch_size": 1, "length": 24})
    traced = trace(lambda: transformer(1, 24), "autocast")
    extra = names(evaluated)
    extra.subtract(names(traced))
    assert {name for name, count in extra.items() if count} <= {"clone", "sum"}
    assert all(count >= 0 for count in extra.values())


def test_evaluation_keeps_what_the_capture_knew() -> None:
    sizes = {"batch_size": 3, "length": 10}
    evaluated = symbolic.evaluate(fitted("autocast"), sizes)
    traced = trace(lambda: transformer(3, 10), "autocast")
    assert evaluated.parameters == traced.parameters
    assert evaluated.modules == traced.modules
    assert [c.module for c in evaluated.calls] == [c.module for c in traced.calls]
    assert evaluated.buffer_bytes == traced.buffer_bytes
    assert evaluated.sizes == sizes


@pytest.mark.parametrize("regime", ["autocast", "half"])
def test_renaming_equals_tracing_in_the_other_dtype(regime: str) -> None:
    """Stored graphs are bfloat16; everything but softmax with fp32 result is the same in float16."""
    evaluated = symbolic.evaluate(_cnn_of(8, regime), {"batch_size": 5}, {"bfloat16": "float16"})
    traced = trace(lambda: cnn(5, 8), regime, low_precision=torch.float16)
    kinds = [(evaluated.kinds[c.kind].name, evaluated.kinds[c.kind].inputs) for c in evaluated.calls]
    other = [(traced.kinds[c.kind].name, traced.kinds[c.kind].inputs) for c in traced.calls]
    if regime == "autocast":
        drop = ("softmax", "_to_copy", "nll_loss")
        kinds, other = ([k for k in side if not any(d in k[0] for d in drop)] for side in (kinds, other))
    assert kinds == other
    assert symbolic.rename_dtypes(trace(lambda: cnn(5, 8), regime), {"bfloat16": "float16"}).kinds == evaluated.kinds


def test_double_is_float_with_twice_the_bytes() -> None:
    single = symbolic.evaluate(_cnn_of(8, "full"), {"batch_size": 5})
    double = symbolic.evaluate(_cnn_of(8, "full"), {"batch_size": 5}, {"float32": "float64"})
    assert {p.dtype for p in double.parameters} == {"float64"}
    assert not any(s.dtype == "float32" for k in double.kinds for s in (*k.inputs, *k.outputs))
    weights = [s.nbytes for s in single.storages if s.category == 0]
    assert [s.nbytes for s in double.storages if s.category == 0] == [2 * n for n in weights]


# --- what cannot be stored --------------------------------------------------------------------------------------


def sized(function: Any, symbol: Symbol = BATCH) -> dict[str, Any]:
    """Fit a linear layer on an input whose shape is `function` of the symbol."""
    return symbolic_fit.fit(
        "odd", (symbol,), lambda s: trace(lambda: total(torch.nn.Linear(4, 4), torch.ones(*function(s[symbol.name]))))
    )


def test_a_dimension_that_is_no_polynomial_raises() -> None:
    with pytest.raises(CaptureError, match="no polynomials"):
        sized(lambda n: (n**2, 4))
    with pytest.raises(CaptureError, match="no polynomials"):
        sized(lambda n: (2 ** (n // 2), 4))
    assert sized(lambda n: (n**2, 4), Symbol("n", (2, 3, 4), 9, degree=2))


def test_another_sequence_of_operators_raises() -> None:
    with pytest.raises(CaptureError, match=r"rank|sequence|becomes"):
        sized(lambda n: (n, 4) if n < 5 else (n, 2, 4))
    deep = lambda s: trace(lambda: total(torch.nn.Sequential(*(torch.nn.Linear(4, 4)  # noqa: E731
                                         for _ in range(s["batch_size"]))), torch.ones(2, 4)))  # fmt: skip
    with pytest.raises(CaptureError, match="sequence of operators"):
        symbolic_fit.fit("deep", (BATCH,), deep)


def test_a_size_off_the_grid_raises() -> None:
    stored = sized(lambda n: (n // 4, 4), Symbol("n", (8, 12), 20, multiple_of=4))
    assert symbolic.evaluate(stored, {"n": 40}).kinds[0].inputs[1].shape == (10, 4)
    with pytest.raises(CaptureError, match="not a multiple of 4"):
        symbolic.evaluate(stored, {"n": 42})


def test_what_torch_cannot_train_at_a_size_of_one_is_stored_as_refused() -> None:
    batch = Symbol("batch_size", (4, 6), 10, apart=1)

    def at(sizes: dict[str, int], error: type[Exception] = ValueError) -> OpGraph:
        if sizes["batch_size"] == 1:
            raise CaptureError("cannot be traced") from error("more than 1 value per channel")
        return trace(lambda: total(torch.nn.Linear(4, 4), torch.ones(sizes["batch_size"], 4)))

    stored = symbolic_fit.fit("norm", (batch,), at)
    (refused,) = symbolic_fit.fit_apart(stored, (batch,), at).values()
    expected = "norm cannot be trained with batch_size=1: more than 1 value per channel; raise batch_size"
    assert refused["refused"] == expected
    with pytest.raises(CaptureError, match="cannot be traced"):  # a limit of ours says nothing about training
        symbolic_fit.fit_apart(stored, (batch,), lambda sizes: at(sizes, CaptureError))


def test_a_grid_without_its_far_corners_is_enough_for_few_factors() -> None:
    """Three symbols, products of two: four points of eight and three of them doubled decide all."""
    symbols = (BATCH, Symbol("width", (8, 16), 24), Symbol("classes", (3, 5), 9))
    seen: list[dict[str, int]] = []

    def at(sizes: dict[str, int]) -> OpGraph:
        seen.append(sizes)
        linear = lambda: torch.nn.Linear(sizes["width"], sizes["classes"])  # noqa: E731
        return trace(lambda: total(linear(), torch.ones(sizes["batch_size"], sizes["width"])))

    stored = symbolic_fit.fit("linear", symbols, at, degree=2)
    assert len(seen) == 7 + 1  # and the check
    sizes = {"batch_size": 7, "width": 40, "classes": 11}
    assert symbolic_fit.same_step(symbolic.evaluate(stored, sizes), at(sizes))
    with pytest.raises(CaptureError, match="no polynomials"):
        symbolic_fit.fit("linear", symbols, at, degree=1)


def test_a_count_among_the_attributes_is_a_polynomial_too(tmp_path: Path) -> None:
    experts = Symbol("experts", (2, 3), 5)

    def at(sizes: dict[str, int]) -> OpGraph:
        attrs = (("groups", 2 * sizes["experts"]), ("p", 0.5))
        kind = OpSignature("pt.grouped_sum", (TensorSpec((8, 4), "float32"),), (), attrs)
        return dataclasses.replace(trace(cnn), kinds=(kind,), calls=(Call(0, Phase.FORWARD),))

    stored = symbolic_fit.fit("experts", (experts,), at)
    path = tmp_path / "experts.zip"
    symbolic.save(path, {"half": stored}, {})
    (kind,) = symbolic.evaluate(symbolic.load(path, "half"), {"experts": 7}).kinds
    assert kind.attrs == (("groups", 14), ("p", 0.5))
    graph_at = lambda s: dataclasses.replace(  # noqa: E731
        at(s), kinds=(dataclasses.replace(at(s).kinds[0], attrs=(("mode", "x" * s["experts"]),)),)
    )
    with pytest.raises(CaptureError, match=r"attributes of pt\.grouped_sum change"):
        symbolic_fit.fit("experts", (experts,), graph_at)


def test_graphs_that_differ_in_one_thing_are_not_the_same_step() -> None:
    graph = trace(cnn)
    assert symbolic_fit.same_step(graph, trace(cnn))
    shorter = dataclasses.replace(graph, calls=graph.calls[:-1])
    later = dataclasses.replace(
        graph, storages=(dataclasses.replace(graph.storages[-1], dies=0), *graph.storages[1:])
    )  # fmt: skip
    assert not symbolic_fit.same_step(graph, shorter)
    assert not symbolic_fit.same_step(graph, later)
    assert not symbolic_fit.same_step(graph, trace(cnn, "half"))


# --- the file ---------------------------------------------------------------------------------------------------


def test_files_are_reproducible_and_read_back(tmp_path: Path) -> None:
    variants = {r: fitted(r) for r in REGIMES}
    for name in ("a.zip", "b.zip"):
        symbolic.save(tmp_path / name, variants, {"torch": "x"})
    assert (tmp_path / "a.zip").read_bytes() == (tmp_path / "b.zip").read_bytes()
    for regime, stored in variants.items():
        read = symbolic.load(tmp_path / "a.zip", regime)
        sizes = {"batch_size": 7, "length": 33}
        assert symbolic_fit.same_step(symbolic.evaluate(read, sizes), symbolic.evaluate(stored, sizes))


def test_a_damaged_or_foreign_file_is_a_data_error(tmp_path: Path) -> None:
    path = tmp_path / "model.zip"
    symbolic.save(path, {"full": {"format": 99}}, {})
    with pytest.raises(DataError, match="format 99"):
        symbolic.load(path, "full")
    with pytest.raises(DataError, match="no graph for half"):
        symbolic.load(path, "half")
    path.write_bytes(path.read_bytes()[:40])
    with pytest.raises(DataError, match="cannot be read"):
        symbolic.load(path, "full")
    with pytest.raises(DataError, match="cannot be read"):
        symbolic.load(tmp_path / "absent.zip", "full")


# --- what ships -------------------------------------------------------------------------------------------------

SAMPLE = ("resnet50", "gpt2", "ncf", "jasper-10x5dr", "densenet121", "unet3d", "mixtral-8x7b", "dit-xl-2")
LONGEST = ("jasper-10x5dr", "densenet121", "mixtral-8x7b", "dit-xl-2")
SHIPPED = [n for n in SAMPLE if (DATA / f"{n}.zip").exists()]


def _traffic(graph: OpGraph) -> float:
    return float(
        sum(s.nbytes for call in graph.calls for s in (*graph.kinds[call.kind].inputs, *graph.kinds[call.kind].outputs))
    )


@pytest.mark.parametrize("name", SHIPPED)
def test_a_fresh_capture_equals_the_shipped_graph(name: str) -> None:
    """Of the longest graphs one variant, which rotates: tests/test_stored_sizes.py checks those of every family."""
    entry = ENTRIES[name]
    with zipfile.ZipFile(DATA / f"{name}.zip") as archive:
        stored_names = {n.removesuffix(".json").partition("@")[0] for n in archive.namelist()} - {"provenance"}
        # another release of torch may dispatch a few operators differently; the traffic must stay
        same_torch = json.loads(archive.read("provenance.json"))["torch"] == torch.__version__.split("+")[0]
    variants = variants_of(entry)
    rows = {variant for variant, *_ in variants}
    assert rows <= stored_names
    assert stored_names - rows == (
        {last_of(v) for v in rows} if name in ("resnet50", "densenet121", "dit-xl-2", "unet3d") else set()
    )
    sizes = {s.name: s.samples[0] + s.multiple_of for s in entry.symbols}
    number = SHIPPED.index(name)
    for variant, regime, attention in variants[number % 3 :][:1] if name in LONGEST else variants[:3]:
        evaluated = symbolic.evaluate(symbolic.load(DATA / f"{name}.zip", variant), sizes)
        try:
            traced = trace_entry(entry, entry.config, {**entry.input, **sizes}, regime, attention)
        except CaptureError as error:
            if "not installed" in str(error):
                pytest.skip(str(error))
            raise
        if same_torch:
            assert symbolic_fit.same_step(evaluated, traced), (
                f"{variant} changed: run python -m precision_time.zoo.ship {name}"
            )
        assert _traffic(traced) == pytest.approx(_traffic(evaluated), rel=0.02)
