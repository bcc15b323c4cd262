"""Regenerate the graphs that ship with the package: `python -m precision_time.zoo.ship [NAME ...]`.

Each named model is captured at a few sizes in every dtype regime (and, where it has attention, with the unfused path),
fitted over its symbols and checked at another size; so is every template (`template-gpt`), over its shape as well.
Needs torch (and torchvision for the models built from it).
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

from precision_time.capture import symbolic, symbolic_fit
from precision_time.capture.graph import OpGraph
from precision_time.capture.trace import trace_entry
from precision_time.errors import PrecisionTimeError
from precision_time.zoo.catalog import ENTRIES
from precision_time.zoo.templates import TEMPLATES, Template
from precision_time.zoo.workload import ZooEntry

DATA = Path(__file__).parent / "data"
REGIMES = ("full", "autocast", "half")


def variants_of(entry: ZooEntry) -> list[tuple[str, str, str]]:
    """(variant, regime, attention) of every graph that ships for a model; `variant` is its name in the archive."""
    attentions = ("flash", "math") if entry.attention and entry.ships_math else ("flash",)
    return [(r if a == "flash" else f"{r}.math", r, a) for a in attentions for r in REGIMES]


def ship(entry: ZooEntry, folder: Path = DATA) -> Path:
    """Capture, fit, check and write one model."""
    import torch

    def at(regime: str, attention: str, sizes: dict[str, int]) -> OpGraph:
        return trace_entry(entry, entry.config, {**entry.input, **sizes}, regime, attention)

    fitted = {
        variant: symbolic_fit.fit(entry.name, entry.symbols, lambda s, r=regime, a=attention: at(r, a, s))  # type: ignore[misc]
        for variant, regime, attention in variants_of(entry)
    }
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

    fitted = {
        r if a == "flash" else f"{r}.math": symbolic_fit.fit(
            f"template-{template.name}",
            template.symbols,
            lambda s, r=r, a=a: at(r, a, s),  # type: ignore[misc]
            template.degree,
            template.products,
        )
        for a in template.attentions
        for r in REGIMES
    }
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
