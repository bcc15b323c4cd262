"""Regenerate the graphs that ship with the package: `python -m precision_time.zoo.ship [NAME ...]`.

Each named model is captured at a few sizes in every dtype regime (and, where it has attention, with the unfused path),
fitted over its symbols and checked at another size; so is every template (`template-gpt`), over its shape as well.
Sizes at which a dimension is one are captured, too, and stored apart where other operators run there. Models with
images are also captured with these stored channels last; where that is another step, it is stored as well.
Needs torch (and torchvision for the models built from it).
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from precision_time.capture import symbolic, symbolic_fit
from precision_time.capture.graph import OpGraph
from precision_time.capture.stored_apart import last_of, member_of
from precision_time.capture.trace import trace_entry
from precision_time.errors import DataError, PrecisionTimeError
from precision_time.shipped import writing
from precision_time.zoo.catalog import ENTRIES
from precision_time.zoo.templates import TEMPLATES, Template
from precision_time.zoo.workload import Symbol, ZooEntry

DATA = Path(__file__).parent / "data"
REGIMES = ("full", "autocast", "half")
Steps = dict[str, dict[str, Any]]
"""Stored steps by their names in the archive."""


def variants_of(entry: ZooEntry) -> list[tuple[str, str, str]]:
    """(variant, regime, attention) of every graph that ships for a model; `variant` is its name in the archive."""
    attentions = ("flash", "math") if entry.attention and entry.ships_math else ("flash",)
    return [(r if a == "flash" else f"{r}.math", r, a) for a in attentions for r in REGIMES]


def _fitted(
    name: str,
    variant: str,
    symbols: Sequence[Symbol],
    at: Callable[[dict[str, int]], OpGraph],
    degree: int | None = None,
    products: Sequence[Sequence[str]] = (),
    same: Callable[[OpGraph, OpGraph], bool] | None = None,
) -> Steps:
    """The step of a variant, and those that are stored apart, by their names in the archive; see `fit_apart`."""
    stored = symbolic_fit.fit(name, symbols, at, degree, products)
    apart = symbolic_fit.fit_apart(stored, symbols, at, degree, products, same)
    return {variant: stored, **{member_of(variant, pins): each for pins, each in apart.items()}}


def ship(entry: ZooEntry, folder: Path = DATA) -> Path:
    """Capture, fit, check and write one model."""
    import torch

    def at(regime: str, attention: str, last: bool, sizes: dict[str, int]) -> OpGraph:
        return trace_entry(entry, entry.config, {**entry.input, **sizes}, regime, attention, channels_last=last)

    fitted: Steps = {}
    for variant, regime, attention in variants_of(entry):
        rows = _fitted(entry.name, variant, entry.symbols, partial(at, regime, attention, False))
        fitted |= rows
        if entry.has_images:
            captured = partial(at, regime, attention, True)
            last = _fitted(entry.name, last_of(variant), entry.symbols, captured, same=symbolic_fit.as_long)
            if list(last.values()) != list(rows.values()):
                fitted |= last
    folder.mkdir(exist_ok=True)
    path = folder / f"{entry.name}.zip"
    symbolic.save(path, fitted, {"torch": torch.__version__.split("+")[0]})
    return path


def ship_template(template: Template, folder: Path = DATA) -> Path:
    """Capture, fit, check and write one template."""
    import torch

    entry = next(e for e in ENTRIES.values() if e.builder == template.builder)

    def at(regime: str, attention: str, sizes: dict[str, int]) -> OpGraph:
        inputs = {"batch_size": sizes["batch_size"], "seq_len": sizes["seq_len"]}
        return trace_entry(entry, template.config_at(sizes), inputs, regime, attention)

    fitted: Steps = {}
    for attention in template.attentions:
        for regime in REGIMES:
            fitted |= _fitted(
                f"template-{template.name}",
                regime if attention == "flash" else f"{regime}.math",
                template.symbols,
                partial(at, regime, attention),
                template.degree,
                template.products,
            )
    path = folder / f"template-{template.name}.zip"
    symbolic.save(path, fitted, {"torch": torch.__version__.split("+")[0]})
    return path


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m precision_time.zoo.ship", description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", help="models to regenerate (default: all)")
    parser.add_argument("--missing", action="store_true", help="only models without a shipped graph")
    options = parser.parse_args(arguments)
    templates = {f"template-{t.name}": t for t in TEMPLATES}
    names = options.names or [*sorted(name for name, entry in ENTRIES.items() if entry.ships), *templates]
    if options.missing:
        names = [n for n in names if not (DATA / f"{n}.zip").exists()]
    try:
        with writing():
            return _ship_all(names, templates)
    except DataError as error:
        print(f"{parser.prog}: {error}", file=sys.stderr)
        return 2


def _ship_all(names: Sequence[str], templates: Mapping[str, Template]) -> int:
    """Ship each; returns the exit code."""
    failed = 0
    for done, name in enumerate(names, 1):
        start = time.perf_counter()
        try:
            path = ship_template(templates[name]) if name in templates else ship(ENTRIES[name])
        except PrecisionTimeError as error:
            failed += 1
            print(f"[{done}/{len(names)}] {name}: FAILED: {error}", file=sys.stderr)
            continue
        seconds = time.perf_counter() - start
        print(f"[{done}/{len(names)}] {name}: {path.stat().st_size / 1024:.0f} kB in {seconds:.1f} s", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
