"""Generates a data set of real JPEG files: `python -m` this module.

Picture i depends only on the recipe and i, so that an interrupted run can continue and two machines make the same
pixels. A picture is a pattern of its label with noise; the noise sets the size of the file.
"""

from __future__ import annotations

import argparse
import io
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from precision_time.checks import show
from precision_time.errors import IngestError, MissingExtraError, PrecisionTimeError
from precision_time.reading import read_json, to_json

INDEX = "index.json"
RECIPE = "recipe.json"
LABELS = 10
MOST_NOISE = 120.0
"""Standard deviation of the noise, of 255, beyond which clipping keeps files from growing."""

Report = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class Recipe:
    """Parameters of the pictures: edge in pixels, JPEG quality, standard deviation of the noise (of 255), seed."""

    size: int = 160
    quality: int = 85
    noise: float = 40.0
    seed: int = 0

    def __post_init__(self) -> None:
        for word, low, high in (("size", 8, 8192), ("quality", 1, 95), ("noise", 0, MOST_NOISE), ("seed", 0, 2**63)):
            value = getattr(self, word)
            if not low <= value <= high:
                raise IngestError(f"{word} of the pictures is {value}; give a value from {low} to {high:g}")

    def of_bytes(self, target_bytes: float) -> Recipe:
        """This recipe with the noise at which files have about `target_bytes`; raises IngestError out of range."""
        low, high = 0.0, MOST_NOISE
        least, most = (len(picture(self._with(noise), 0)) for noise in (low, high))
        if not least <= target_bytes <= most:
            raise IngestError(
                f"a file of {target_bytes / 1024:g} KiB cannot be had at {self.size} x {self.size} pixels in quality "
                f"{self.quality}; give {least / 1024:.3g} to {most / 1024:.3g} KiB, or another size"
            )
        for _ in range(12):
            middle = (low + high) / 2
            low, high = (middle, high) if len(picture(self._with(middle), 0)) < target_bytes else (low, middle)
        return self._with(round((low + high) / 2, 2))

    def _with(self, noise: float) -> Recipe:
        return Recipe(self.size, self.quality, noise, self.seed)


def label_of(index: int) -> int:
    """Labels are cyclic: any ten consecutive pictures have each label once."""
    return index % LABELS


def picture(recipe: Recipe, index: int) -> bytes:
    """The content of JPEG file number `index`."""
    numpy, image = _numpy_and_pillow()
    chance = numpy.random.default_rng((recipe.seed, index))
    angle, waves = numpy.pi * label_of(index) / LABELS, 2 + 4 * chance.random()
    ramp = numpy.linspace(-numpy.pi, numpy.pi, recipe.size, dtype=numpy.float32)
    across = numpy.cos(angle) * ramp[None, :] + numpy.sin(angle) * ramp[:, None]
    pattern = numpy.sin(waves * across + 6.28 * chance.random())[:, :, None]
    colour = chance.uniform(30, 90, 3).astype(numpy.float32)
    noise = chance.standard_normal((recipe.size, recipe.size, 3), dtype=numpy.float32)
    pixels = numpy.clip(128 + colour * pattern + recipe.noise * noise, 0, 255).astype(numpy.uint8)
    out = io.BytesIO()
    image.fromarray(pixels).save(out, "JPEG", quality=recipe.quality)
    return out.getvalue()


def make(
    folder: str | Path, count: int, recipe: Recipe | None = None, report: Report = lambda done, total: None
) -> dict[str, Any]:
    """Fill `folder` with `count` pictures and their index; files of an earlier call are kept. Returns the index.

    The index is written last: a folder with an index is complete.
    """
    recipe = recipe or Recipe()
    if count < 1:
        raise IngestError(f"count of pictures is {count}; give at least 1")
    target = Path(folder)
    try:
        target.mkdir(parents=True, exist_ok=True)
        _same_recipe(target, recipe)
        (target / INDEX).unlink(missing_ok=True)
        files = []
        for index in range(count):
            path = target / f"{index:06d}.jpg"
            if not path.exists():
                _write(path, picture(recipe, index))
            files.append([path.name, path.stat().st_size, label_of(index)])
            report(index + 1, count)
        content = {"format": "jpeg", "recipe": asdict(recipe), "columns": ["name", "bytes", "label"], "files": files}
        _write(target / INDEX, to_json(content).encode())
    except OSError as error:
        raise IngestError(f"folder {str(target)!r} cannot be filled with pictures: {error}; choose another") from error
    return content


def _same_recipe(target: Path, recipe: Recipe) -> None:
    """Raise IngestError if the folder holds pictures of another recipe."""
    path = target / RECIPE
    if path.exists():
        held = read_json(path, "recipe")
        if held != asdict(recipe):
            raise IngestError(
                f"folder {str(target)!r} holds pictures of another recipe, {show(held)}; choose another folder"
            )
    elif any(target.glob("*.jpg")):
        raise IngestError(f"folder {str(target)!r} holds pictures that were not made here; choose another folder")
    else:
        _write(path, to_json(asdict(recipe)).encode())


def _write(path: Path, content: bytes) -> None:
    """Write a file atomically."""
    part = path.with_name(f"{path.name}.{os.getpid()}.part")
    part.write_bytes(content)
    part.replace(path)


def _numpy_and_pillow() -> tuple[Any, Any]:
    import numpy

    try:
        from PIL import Image
    except ImportError as missing:
        raise MissingExtraError("Pillow is not installed; pip install 'precision-time[ingest]'") from missing
    return numpy, Image


def main(argv: Sequence[str] | None = None) -> int:
    """The command; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m precision_time.ingest.storage.pictures", description=make.__doc__)
    parser.add_argument("folder", metavar="FOLDER")
    parser.add_argument("--count", type=int, default=600, help="pictures (default 600)")
    parser.add_argument("--size", type=int, default=160, help="edge in pixels (default 160)")
    parser.add_argument("--quality", type=int, default=85, help="JPEG quality (default 85)")
    parser.add_argument("--kib", type=float, help="wanted size of a file, in KiB (default: as the usual noise gives)")
    parser.add_argument("--seed", type=int, default=0, help="what all chance hangs on (default 0)")
    options = parser.parse_args(argv)
    try:
        recipe = Recipe(options.size, options.quality, seed=options.seed)
        recipe = recipe.of_bytes(options.kib * 1024) if options.kib else recipe
        index = make(options.folder, options.count, recipe, _show if sys.stderr.isatty() else lambda done, total: None)
    except PrecisionTimeError as error:
        print(f"pictures: error: {error}", file=sys.stderr)
        return 2
    total = sum(size for _, size, _ in index["files"])
    print(
        f"{options.count} pictures, {total / 1e6:.1f} MB, {total / options.count / 1e3:.1f} kB each: {options.folder}"
    )
    return 0


def _show(done: int, total: int) -> None:
    if done % 20 == 0 or done == total:
        print(f"\r{done}/{total} pictures", end="\n" if done == total else "", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
