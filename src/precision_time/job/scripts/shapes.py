"""Sizes of the input and the data set of a script, where its text says them."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from typing import Any

from precision_time.job.datasets import is_known
from precision_time.job.scripts.facts import Reading
from precision_time.job.scripts.loops import LENGTHS, count
from precision_time.job.scripts.values import Unread

_DATASETS: dict[str, tuple[str, int, int]] = {
    "CIFAR10": ("cifar10", 3, 32), "CIFAR100": ("cifar100", 3, 32), "MNIST": ("mnist", 1, 28),
    "FashionMNIST": ("fashion-mnist", 1, 28), "KMNIST": ("", 1, 28), "SVHN": ("", 3, 32), "STL10": ("", 3, 96),
    "ImageNet": ("imagenet", 3, 0), "ImageFolder": ("", 3, 0), "FakeData": ("", 3, 224),
}  # fmt: skip
"""Class of torchvision.datasets -> name here, channels, pixels a side (0: of the files). ImageFolder reads RGB."""
_CROPS = ("RandomResizedCrop", "RandomCrop", "CenterCrop", "Resize")
"""Transforms that set the size, the decisive ones first."""
_TOKENS = ("idx", "input_ids", "tokens", "ids", "token_ids")


@dataclass(frozen=True, slots=True)
class Shape:
    """Sizes with the lines that say them; a size that the text does not say is None."""

    image_size: int | None = None
    channels: int | None = None
    seq_len: int | None = None
    where: str = ""
    dataset: str = ""


def shape_of(reading: Reading) -> Shape:
    """The sizes of images, else of sequences."""
    sets = [call for call in reading.calls if call.last in _DATASETS and "." in call.name]
    dataset, channels, pixels = _DATASETS[sets[0].last] if sets else (_hub_dataset(reading), 0, 0)
    size, where = _cropped(reading)
    if size is None and pixels:
        size, where = pixels, reading.place(sets[0])
    if size is not None:
        return Shape(size, channels or None, None, where, dataset)
    given: Any = reading.facts.fields.get("input", {})
    if "seq_len" in given:
        return Shape(seq_len=given["seq_len"], where=reading.facts.where["input"], dataset=dataset)
    name, value = reading.values.setting(*LENGTHS)
    number = count(value)
    if name and not isinstance(number, Unread):
        return Shape(seq_len=number, where=f"line {reading.values.where(name)}: {name}", dataset=dataset)
    return Shape(channels=channels or None, dataset=dataset)


def _cropped(reading: Reading) -> tuple[int | None, str]:
    for name in _CROPS:
        sizes = {}
        for call in reading.named(name):
            value = reading.values.argument(call, "size", 0)
            pair = isinstance(value, (list, tuple)) and len(value) == 2 and value[0] == value[1]
            number = count(value[0] if pair else value)
            if not isinstance(number, Unread):
                sizes[number] = call
        if len(sizes) == 1:
            size, call = next(iter(sizes.items()))
            return size, reading.place(call)
        if sizes:
            lines = " and ".join(str(call.line) for call in sizes.values())
            reading.facts.missing["image_size"] = f"lines {lines} have different ones"
            return None, ""
    return None, ""


def _hub_dataset(reading: Reading) -> str:
    """A whole training set of the hub whose size is known."""
    for call in reading.named("load_dataset"):
        values = [reading.values.argument(call, word, place) for place, word in enumerate(("path", "name"))]
        if reading.values.argument(call, "split") not in ("train",) and call.argument("split") is not None:
            return ""
        for value in values:
            if isinstance(value, str):
                plain = value.rpartition("/")[2].removesuffix("-v1").removesuffix("-raw")
                if is_known(plain):
                    return plain
    return ""


def takes_tokens(model: ast.ClassDef) -> bool:
    """Whether the first argument of a model's forward pass is named as tokens are."""
    forward = next((n for n in model.body if isinstance(n, ast.FunctionDef) and n.name == "forward"), None)
    return forward is not None and len(forward.args.args) > 1 and forward.args.args[1].arg in _TOKENS
