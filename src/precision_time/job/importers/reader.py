"""`Reader`: takes the settings of a file one by one; each of those left over gets the reason why it is not taken."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from typing import Any

from precision_time.checks import on_off, show
from precision_time.errors import JobError
from precision_time.field_types import COUNT

NO_EFFECT = "does not change the time of a step"
_EFFECTS = (
    (
        r"fp4|fp8|fp16|bf16|float\d|bfloat|dtype|precision|quant|half|(?:^|_)amp(?:_|$)",
        "may change the precision, and so the time",
    ),
    (r"parallel|shard|fsdp|zero|stage|_degree|_rank|offload", "may change the layout or its communication"),
    (r"batch|accum|micro|packing", "may change the samples of a step"),
    (r"seq|length|resolution|image_size|crop", "may change the size of the input, and so the time"),
    (
        r"model|layer|hidden|head|expert|vocab|attn|attention|lora|adapter|freez",
        "may change the model, and so the time",
    ),
    (r"recompute|checkpointing|remat", "may change what is computed again in the backward pass"),
    (r"optim|clip|adam|master", "may change the optimizer step"),
    (r"epoch|step|iter|duration|dataset|samples|eval|valid|save", "may change the length of the run"),
    (r"worker|loader|prefetch|stream|data", "may change the time of data loading"),
)
"""Words in the name of a setting -> what it may change. The first that fits counts."""
_PRECISIONS = re.compile(
    r"fp4|fp8|fp16|bf16|float8|float4|bfloat16|mixed_?precision|half_precision|weight_dtype|param_dtype|reduce_dtype|compute_dtype|master_weights"
)
_OFF = ("", "false", "0", "no", "off", "none", "null", "fp32", "float32", "32", "32-true", "auto")


_OF_SCRIPTS = re.compile(r"(?:use_|torch_|enable_)?(?:dtype|precision|amp|half|fp8|fp16|bf16|mixed_?precision)")


def names_precision(name: str, value: Any) -> bool:
    """Whether an argument of a script that no importer knows says in which precision it trains."""
    plain = name.lower().replace("-", "_")
    return _OF_SCRIPTS.fullmatch(plain) is not None and str(value).strip().lower() not in _OFF


def not_understood(name: str) -> str:
    """Why a setting that no importer knows is not taken, with the effect that its name suggests."""
    plain = name.lower().replace("-", "_")
    effect = next((effect for words, effect in _EFFECTS if re.search(words, plain)), "may change the time of a step")
    return f"not understood: {effect}"


class Reader:
    """Takes settings out of a flat mapping one by one; those left over get a reason why they were not taken."""

    def __init__(self, values: Mapping[str, Any], switches: bool = False) -> None:
        """`switches`: whether false means that a setting is left out (command-line flags)."""
        self.left = dict(values)
        self.given = tuple(self.left)
        self.not_taken: dict[str, str] = {}
        self.undecided: dict[str, str] = {}
        self._switches = switches

    def take(self, *names: str, default: Any = None, several: bool = False) -> Any:
        """The value of the first of `names` that is set; all of them are taken. None is not set.

        Raises JobError for a list or a mapping, unless the setting may have `several` values.
        """
        result = default
        for name in reversed(names):
            value = self.left.pop(name, None)
            if isinstance(value, (list, tuple, Mapping)) and not several:
                raise JobError(f"{name} is {show(value)}; give a single value")
            if value is not None and not (value is False and self._switches):
                result = value
        return result

    def number(self, *names: str, default: int | None = None) -> int | None:
        """The same for a whole number of at least 1. Raises JobError, with the file's name of it, for anything else."""
        name = next((name for name in names if self.left.get(name) is not None), names[0])
        value = self.take(*names)
        return default if value is None else COUNT(name, value)

    def on(self, *names: str) -> bool:
        """Whether a switch is set and on."""
        return is_on(self.take(*names))

    def switch(self, *names: str) -> bool:
        """The same, where the value decides the precision: JobError for anything but true and false."""
        name = next((name for name in names if self.left.get(name) is not None), names[0])
        value = self.take(*names)
        return value is not None and on_off(name, value)

    def text(self, *names: str, default: str = "") -> str:
        """The value as text in small letters without spaces around it."""
        return str(self.take(*names, default=default)).strip().lower()

    def refuse(self, reason: str, *names: str) -> None:
        """Mark those of `names` that are set as not taken, for this reason."""
        for name in names:
            if name in self.left:
                del self.left[name]
                self.not_taken[name] = reason

    def refuse_on(self, reasons: Mapping[str, str]) -> None:
        """Mark the settings of `reasons` as not taken: for their reason where they are on, else as without effect."""
        for name, reason in reasons.items():
            if name in self.left:
                self.not_taken[name] = reason if is_on(self.left.pop(name)) else NO_EFFECT

    def where(self, chosen: Callable[[str], bool]) -> tuple[str, ...]:
        """The names left for which `chosen` is true."""
        return tuple(filter(chosen, self.left))

    def finish(self, prefixes: tuple[str, ...] = (), names: Collection[str] = ()) -> dict[str, str]:
        """All settings not taken, with the reason; `names` and those that start with one of `prefixes` change no time.

        A setting that is not understood, is on and names a precision leaves the precision undecided.
        """
        for name, value in self.left.items():
            harmless = name.startswith(prefixes) or name in names
            self.not_taken.setdefault(name, NO_EFFECT if harmless else not_understood(name))
            last = name.rpartition(".")[2].lower().replace("-", "_")
            if not harmless and _PRECISIONS.search(last) and str(value).strip().lower() not in _OFF:
                self.undecided.setdefault("precision", f"{name} {show(value)} is not understood")
        return self.not_taken

    @property
    def taken(self) -> tuple[str, ...]:
        """The names that were taken so far, in the order of the file."""
        return tuple(name for name in self.given if name not in self.left and name not in self.not_taken)


def is_on(value: Any) -> bool:
    """Whether the value of a switch means on: true, 1, or a flag without a value."""
    if isinstance(value, str):
        return value.strip().lower() not in ("", "false", "0", "no", "off", "none", "null")
    return bool(value)


def flat(config: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested mappings with dotted keys: `seq_len` of `training` becomes training.seq_len; empty ones stay."""
    result: dict[str, Any] = {}
    for key, value in config.items():
        inner = flat(value, f"{prefix}{key}.") if isinstance(value, Mapping) and value else {f"{prefix}{key}": value}
        for name in inner:
            if name in result:
                raise JobError(f"{name} is given twice, once with a dot in its name; keep one of them")
        result |= inner
    return result
