"""Stored steps: a graph whose dimensions are polynomials of the input sizes, evaluated at concrete sizes without torch.

`symbolic_fit` makes them from captures. Coefficients are exact rationals: an evaluated dimension equals the traced one.
"""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from precision_time.capture.graph import (
    BYTES_PER_ELEMENT,
    OpGraph,
    OpSignature,
    TensorSpec,
)
from precision_time.capture.stored_step import StoredStep
from precision_time.errors import DataError, JobError
from precision_time.shipped import write_shipped

FORMAT = 2
_EPOCH = (1980, 1, 1, 0, 0, 0)  # a fixed date in the archive: the same graphs give the same bytes


def evaluate(stored: Mapping[str, Any], sizes: Mapping[str, int], rename: Mapping[str, str] | None = None) -> OpGraph:
    """The `OpGraph` at concrete sizes; `rename` replaces dtypes (bfloat16 -> float16, float32 -> float64)."""
    return StoredStep.of(stored, rename or {}).at(sizes)


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
    """One variant of a stored model.

    Raises `DataError` when the file is damaged or of another format, `JobError` where the model cannot be trained at
    the sizes of this variant.
    """
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
    if "refused" in stored:
        raise JobError(stored["refused"])
    return stored
