"""The job's field `lora`: adapters of low rank beside frozen weights (LoRA, arXiv:2106.09685; DoRA, 2402.09353)."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass
from typing import Any

from precision_time.checks import known_fields, show
from precision_time.errors import JobError
from precision_time.field_types import SWITCH, apply_checks, choice, number, option, present_fields, structured, whole
from precision_time.job.fields import parse_fields

ALL_LINEAR, ATTENTION = "all-linear", "attention"
QUANTIZED = ("nf4", "fp4", "int8")
"""Formats of frozen weights, all of bitsandbytes: 4 bits with constants quantized twice, or LLM.int8()."""
BIASES = ("none", "all", "lora_only")
"""As peft calls them."""
_MOST_TARGETS, _LONGEST = 100, 100


def _layers(field: str, value: Any) -> tuple[str, ...]:
    names = tuple(value.split(",")) if isinstance(value, str) else value
    if not isinstance(names, (list, tuple)) or not all(isinstance(name, str) for name in names):
        raise JobError(f"{field} must be a list of layers, not {show(value)}; for example {field}: [q_proj, v_proj]")
    names = tuple(dict.fromkeys(name.strip() for name in names))
    if not 1 <= len(names) <= _MOST_TARGETS or not all(0 < len(name) <= _LONGEST for name in names):
        raise JobError(f"{field} {show(value)} names no layer, or too many; give names, or of targets all-linear")
    return names


def _targets(field: str, value: Any) -> tuple[str, ...]:
    words = {"all_linear": ALL_LINEAR, "all": ALL_LINEAR}
    return tuple(words.get(name.lower(), name) for name in _layers(field, value))


def _saved(field: str, value: Any) -> tuple[str, ...]:
    return _layers(field, value) if value else ()


@dataclass(frozen=True, slots=True)
class Lora:
    """Adapters beside linear layers: `rank`, which layers have one, and dropout of what goes into them."""

    _: KW_ONLY
    rank: int = option(dataclasses.MISSING, whole(1, 65536, "features"), "rank of the adapters")
    targets: tuple[str, ...] = option(
        (ALL_LINEAR,),
        structured("list", _targets),
        "layers with an adapter: all-linear (those of all blocks), attention, or names such as q_proj, v_proj",
    )
    modules_to_save: tuple[str, ...] = option(
        (), structured("list", _saved), "modules trained whole beside adapters, such as embed_tokens, lm_head"
    )
    dora: bool = option(False, SWITCH, "also train the length of each row of the adapted weights (DoRA)")
    bias: str = option(
        "none", choice(BIASES), "biases that are trained beside adapters: none, all, or of adapted layers"
    )
    dropout: float = option(0.0, number(1e-6, 0.999999, zero=True), "dropout of what goes into an adapter")

    def __post_init__(self) -> None:
        apply_checks(self, "lora.")

    def to_dict(self) -> dict[str, Any]:
        """The fields as plain JSON values."""
        return {
            name: list(value) if isinstance(value, tuple) else value for name, value in present_fields(self).items()
        }

    def __str__(self) -> str:
        dropout = f", dropout {self.dropout:g}" if self.dropout else ""
        whole = f", {' '.join(self.modules_to_save)} whole" if self.modules_to_save else ""
        biases = {"none": "", "all": ", all biases", "lora_only": ", their biases"}[self.bias]
        kind = "DoRA" if self.dora else "LoRA"
        return f"{kind} of rank {self.rank} on {' '.join(self.targets)}{whole}{biases}{dropout}"


LORA_FIELDS = tuple(item.name for item in dataclasses.fields(Lora))


def parse_lora(field: str, value: Any) -> Lora | None:
    """Adapters from their rank, from a mapping or from `key=value;...` text of their fields."""
    if value is None or isinstance(value, Lora):
        return value
    if isinstance(value, str) and "=" in value:
        value = parse_fields(value, field)
    if isinstance(value, Mapping):
        fields = known_fields(value, LORA_FIELDS, field)
        if "rank" not in fields:
            raise JobError(f"{field} has no rank; add one, for example {field}: {{rank: 16}}")
        return Lora(**fields)
    if isinstance(value, (list, tuple)):
        raise JobError(f"{field} must be a rank or a mapping, not {show(value)}; for example {field}: {{rank: 16}}")
    return Lora(rank=value)
