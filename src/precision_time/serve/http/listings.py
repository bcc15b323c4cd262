"""What the server lists of the package: models, GPUs, the accuracy of the shipped parameters. Made once."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

from precision_time.reading import to_json
from precision_time.shipped import shipped_file


@cache
def models() -> bytes:
    """As `precision-time zoo --json`."""
    from precision_time.zoo.catalog import ENTRIES

    names = ("name", "family", "dataset", "optimizer", "batch_size", "parameters", "parameters_source")
    found = [
        {**{name: getattr(e, name) for name in names}, "input": dict(e.input), "model_config": dict(e.config)}
        for _, e in sorted(ENTRIES.items())
    ]
    return to_json({"models": found}).encode()


@cache
def gpus() -> bytes:
    """As `precision-time gpus --json`."""
    from precision_time.hardware import default_catalog

    found = [
        {
            "name": gpu.name,
            "vendor": gpu.vendor,
            "arch": gpu.arch,
            "memory_bytes": gpu.memory_bytes,
            "memory_bytes_per_s": gpu.memory_bytes_per_s,
            "peaks_flop_per_s": dict(gpu.peaks),
            "sources": gpu.sources,
        }
        for gpu in default_catalog().gpus_like("")
    ]
    return to_json({"gpus": found}).encode()


@cache
def board() -> dict[str, Any]:
    """The committed accuracy board as `{source, tables}`; a table has a title, heads and rows of text."""
    content: dict[str, Any] = json.loads(shipped_file("serve/http/data/board.json").read_bytes())
    return content
