"""The commands that list what the package knows: named models, GPUs, prices of cloud instances.

Each gives its content for JSON, and a table as text.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from precision_time.cli.parser import UsageError
from precision_time.report.table import Table

if TYPE_CHECKING:
    from precision_time.hardware import Price

Listing = tuple[list[dict[str, Any]], str]
_PEAKS = ("fp64", "fp32", "tf32", "fp16", "bf16", "fp8")


def zoo(options: Namespace) -> Listing:
    """The named models whose name contains the text."""
    from precision_time.zoo.catalog import ENTRIES
    from precision_time.zoo.names import find, nearest_models

    text = options.filter or ""
    entries = [ENTRIES[name] for name in sorted(ENTRIES) if text.lower() in name]
    if not entries:
        entry = find(text)
        if entry is None:
            raise _no_match("model", text, nearest_models(text))
        entries = [entry]
    names = ("name", "family", "dataset", "optimizer", "batch_size", "parameters", "parameters_source")
    content = [
        {**{name: getattr(e, name) for name in names}, "input": dict(e.input), "model_config": dict(e.config)}
        for e in entries
    ]
    heads = ["model", "family", "input", "dataset", "optimizer", "batch", "parameters"]
    rows = [
        [e.name, e.family, _joined(e.input), e.dataset, e.optimizer, str(e.batch_size), _millions(e.parameters)]
        for e in entries
    ]
    return content, Table(heads, rows, left=5).text()


def gpus(options: Namespace) -> Listing:
    """The GPUs of the catalog whose name contains the text; with `--prices` the cloud instances that have them."""
    from precision_time.hardware import default_catalog, load_device_file

    catalog = load_device_file(options.device) if options.device else default_catalog()
    if options.prices:
        return _prices(catalog.prices.values(), options.filter or "")
    devices = catalog.gpus_like(options.filter or "")
    content = [
        {
            "name": gpu.name,
            "vendor": gpu.vendor,
            "arch": gpu.arch,
            "memory_bytes": gpu.memory_bytes,
            "memory_bytes_per_s": gpu.memory_bytes_per_s,
            "peaks_flop_per_s": dict(gpu.peaks),
            "sources": gpu.sources,
        }
        for gpu in devices
    ]
    rows = [
        [
            gpu.name,
            gpu.arch,
            f"{gpu.memory_bytes / 2**30:.0f}",
            f"{gpu.memory_bytes_per_s / 1e9:,.0f}",
            *(f"{gpu.peaks[kind] / 1e12:,.1f}" if kind in gpu.peaks else "-" for kind in _PEAKS),
        ]
        for gpu in devices
    ]
    table = Table(["gpu", "arch", "GiB", "GB/s", *_PEAKS], rows, left=2).text()
    return content, f"{table}\n\nfp64 to fp8: dense peaks in TFLOP/s"


def _prices(known: Iterable[Price], text: str) -> Listing:
    """Cloud instances whose name, provider or GPU contains the text, the cheapest GPU hour of each GPU first."""
    from precision_time.errors import nearest

    named = [(price, (price.instance, price.provider, price.gpu)) for price in known]
    prices = [price for price, names in named if any(text.lower() in name.lower() for name in names)]
    if not prices:
        raise _no_match("price", text, nearest(text, {name for _, names in named for name in names}))
    prices.sort(key=lambda p: (p.gpu, p.usd_per_gpu_hour))
    heads = ["gpu", "provider", "instance", "region", "as of", "trust", "GPUs", "$/hour", "$/GPU-hour"]
    rows = [
        [
            *(p.gpu, p.provider, p.instance, p.region, p.as_of, p.trust, str(p.gpus)),
            *(f"{usd:,.2f}" for usd in (p.usd_per_hour, p.usd_per_gpu_hour)),
        ]
        for p in prices
    ]
    table = Table(heads, rows, left=6).text()
    return [asdict(p) for p in prices], f"{table}\n\non-demand list prices; they change. Sources: --json"


def _no_match(kind: str, text: str, nearest: str) -> UsageError:
    return UsageError(f"no {kind} name contains {text!r}; nearest: {nearest}; leave it out for all")


def _joined(values: Mapping[str, Any]) -> str:
    return " ".join(f"{k}={'x'.join(map(str, v)) if isinstance(v, tuple) else v}" for k, v in values.items())


def _millions(count: int) -> str:
    return f"{count / 1e6:,.1f} M" if count else "-"
