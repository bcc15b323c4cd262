"""Stored steps: a graph whose dimensions are polynomials of the input sizes, evaluated at concrete sizes without torch.

`symbolic_fit` makes them from captures. Coefficients are exact rationals: an evaluated dimension equals the traced one.
"""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

from precision_time.capture.graph import (
    BYTES_PER_ELEMENT,
    AttrValue,
    Call,
    Category,
    OpGraph,
    OpSignature,
    Parameter,
    Phase,
    Storage,
    TensorSpec,
)
from precision_time.errors import CaptureError, DataError
from precision_time.shipped import write_shipped

FORMAT = 2
_EPOCH = (1980, 1, 1, 0, 0, 0)  # a fixed date in the archive: the same graphs give the same bytes


def _attr(value: Any, values: Sequence[int]) -> AttrValue:
    """A stored attribute; `values`: of the polynomials at the sizes asked for."""
    if isinstance(value, dict):
        return values[value["polynomial"]]
    return tuple(_attr(v, values) for v in value) if isinstance(value, list) else value


def _evaluate_polynomials(stored: Mapping[str, Any], sizes: Mapping[str, int]) -> list[int]:
    symbols = stored["symbols"]
    units: list[int] = []
    for name, multiple, _ in symbols:
        value = sizes[name]
        if value % multiple:
            raise CaptureError(
                f"{name} {value} is not a multiple of {multiple}, which the stored graph of {stored['name']} needs"
            )
        units.append(value // multiple)
    monomials: dict[int, int] = {}

    def monomial(index: int) -> int:
        if index not in monomials:
            left, product = index, 1
            for unit, (_, _, degree) in zip(reversed(units), reversed(symbols), strict=True):
                left, power = divmod(left, degree + 1)
                product *= unit**power
            monomials[index] = product
        return monomials[index]

    out = []
    for terms in stored["polynomials"]:
        if all(isinstance(c, int) for _, c in terms):
            out.append(sum(c * monomial(i) for i, c in terms))
        else:
            exact = sum((Fraction(c) * monomial(i) for i, c in terms), Fraction(0))
            out.append(exact.numerator // exact.denominator)
    return out


def evaluate(stored: Mapping[str, Any], sizes: Mapping[str, int], rename: Mapping[str, str] | None = None) -> OpGraph:
    """The `OpGraph` at concrete sizes; `rename` replaces dtypes (bfloat16 -> float16, float32 -> float64)."""
    rename = rename or {}
    values = _evaluate_polynomials(stored, sizes)
    specs = [TensorSpec(tuple(values[d] for d in dims), rename.get(dtype, dtype)) for dtype, *dims in stored["specs"]]
    widened = {old: _width(new) / _width(old) for old, new in rename.items()}
    factor = widened.get("float32", 1.0)
    kinds = tuple(
        OpSignature(
            name,
            tuple(specs[i] for i in inputs),
            tuple(specs[o] for o in outputs),
            tuple((k, _attr(v, values)) for k, v in attrs),
        )
        for name, inputs, outputs, attrs in stored["kinds"]
    )
    phases = list(Phase)
    calls = stored["calls"]
    storages = stored["storages"]
    categories = list(Category)
    return OpGraph(
        name=stored["name"],
        kinds=kinds,
        calls=tuple(
            Call(kind, phases[phase], module, views, tuple(reads), tuple(writes))
            for kind, phase, module, views, reads, writes in zip(
                calls["kind"],
                calls["phase"],
                calls["module"],
                calls["views"],
                calls["reads"],
                calls["writes"],
                strict=True,
            )
        ),
        modules=tuple(stored["modules"]),
        storages=tuple(
            Storage(int(values[size] * factor), born, born + life, categories[category])
            for size, born, life, category in zip(
                storages["bytes"], storages["born"], storages["dies"], storages["category"], strict=True
            )
        ),
        parameters=tuple(
            Parameter(
                n,
                tuple(values[d] for d in shape),
                rename.get(dtype, dtype),
                rename.get(grad, grad),
                ready,
                bool(trainable),
            )
            for n, shape, dtype, grad, ready, trainable in stored["parameters"]
        ),
        buffer_bytes=int(values[stored["buffer_bytes"]] * factor),
        sizes=dict(sizes),
        assumptions=tuple(stored["assumptions"]),
    )


def rename_dtypes(graph: OpGraph, rename: Mapping[str, str]) -> OpGraph:
    """A traced graph in another dtype of the same regime, with storages scaled to its bytes per element."""
    if not rename:
        return graph
    factor = {old: _width(new) / _width(old) for old, new in rename.items()}.get("float32", 1.0)

    def specs(tensors: tuple[TensorSpec, ...]) -> tuple[TensorSpec, ...]:
        return tuple(TensorSpec(s.shape, rename.get(s.dtype, s.dtype)) for s in tensors)

    return replace(
        graph,
        kinds=tuple(OpSignature(k.name, specs(k.inputs), specs(k.outputs), k.attrs) for k in graph.kinds),
        storages=tuple(replace(s, nbytes=int(s.nbytes * factor)) for s in graph.storages),
        parameters=tuple(
            replace(p, dtype=rename.get(p.dtype, p.dtype), grad_dtype=rename.get(p.grad_dtype, p.grad_dtype))
            for p in graph.parameters
        ),
        buffer_bytes=int(graph.buffer_bytes * factor),
    )


def _width(dtype: str) -> int:
    return BYTES_PER_ELEMENT[dtype]


def save(path: Path, variants: Mapping[str, Mapping[str, Any]], provenance: Mapping[str, Any]) -> None:
    """Write the variants of one model ("autocast", "half.math", ...) into one archive, byte for byte reproducible."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_LZMA) as archive:
        for member, content in [("provenance", provenance), *sorted(variants.items())]:
            text = json.dumps(content, separators=(",", ":"))
            archive.writestr(zipfile.ZipInfo(f"{member}.json", _EPOCH), text, zipfile.ZIP_LZMA)
    write_shipped(path, buffer.getvalue())


def load(path: Path, variant: str) -> dict[str, Any]:
    """One variant of a stored model; `DataError` when the file is damaged or of another format."""
    try:
        with zipfile.ZipFile(path) as archive:
            stored: dict[str, Any] = json.loads(archive.read(f"{variant}.json"))
    except KeyError as error:
        raise DataError(
            f"{path.name} holds no graph for {variant}: regenerate it with `python -m precision_time.zoo.ship`"
        ) from error
    except (OSError, zipfile.BadZipFile, ValueError) as error:
        raise DataError(
            f"{path.name} cannot be read ({error}): regenerate it with `python -m precision_time.zoo.ship`"
        ) from error
    if stored.get("format") != FORMAT:
        raise DataError(f"{path.name} has format {stored.get('format')}, this version reads {FORMAT}: regenerate it")
    return stored
