"""The `Job`: the fields of one training job, checked on construction.

The fields are Python arguments, keys of a YAML or JSON file and, with hyphens, command-line flags. None is the default
of the named model, which capture fills in.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Container, Mapping
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import Any

from precision_time.bounded_cache import bounded
from precision_time.checks import known_fields, show
from precision_time.errors import DataError, JobError
from precision_time.field_types import (
    BATCH,
    GPUS,
    MICRO_STEPS,
    NODES,
    SWITCH,
    TEXT,
    apply_checks,
    choice,
    number,
    option,
    optional,
    structured,
    whole,
)
from precision_time.job import choices, other_words
from precision_time.job.anchors import parse_anchors
from precision_time.job.check_together import check_together
from precision_time.job.code import GIVEN, CodeRule, rule_of
from precision_time.job.data import NO_DATA, Data, parse_data
from precision_time.job.fields import Value, clean_fields, is_shape, parse_fields
from precision_time.job.layout import Layout
from precision_time.job.layout_parsing import parse_layout
from precision_time.job.lora import QUANTIZED, Lora, parse_lora
from precision_time.job.precision import PRECISIONS, Precision, parse_precision
from precision_time.job.run import RUN_FIELDS, Run
from precision_time.job.schedule import PrecisionFrom, parse_schedule
from precision_time.reading import plain_mapping, plain_values, read_mapping

DEFAULT_PRECISION = "fp32"
DEFAULT_GPU = "a100-80gb-sxm"


def _mapping(field: str, value: Any) -> dict[str, Value]:
    if isinstance(value, str):
        return parse_fields(f"shape={value}" if is_shape(value) and field == "input" else value, field)
    if not isinstance(value, Mapping):
        raise JobError(f"{field} must be a mapping, not {show(value)}; for example {field}: {{seq_len: 128}}")
    return clean_fields(value, field)


def _run(field: str, value: Any) -> Run:
    if value is None or isinstance(value, Run):
        return value or Run()
    if not isinstance(value, Mapping):
        raise JobError(f"{field} must be a mapping, not {show(value)}; for example {field}: {{epochs: 3}}")
    return Run.from_dict(value)


def _precision(field: str, value: Any) -> str:
    """The label of the precision; "" where the default or a schedule decides it."""
    return "" if value in ("", None) else parse_precision(value, field).label


def _schedule(field: str, value: Any) -> tuple[PrecisionFrom, ...]:
    return parse_schedule(value, field) if value else ()


def _as_given(field: str, value: Any) -> Any:
    return value


@bounded()
def _label(layout: Layout) -> str:
    return layout.label


@dataclass(frozen=True, slots=True)
class Job:
    """One training job. `precision` is a precision name, or a list of {from_step, precision}, which is a schedule."""

    model: str = option(
        dataclasses.MISSING, TEXT, "model name, torchvision:NAME, timm:NAME, hf:FILE or FILE.py:FUNCTION"
    )
    _: KW_ONLY
    model_config: Mapping[str, Value] = option(
        (), structured("mapping", _mapping), "where it departs from the named model: key=value;..."
    )
    lora: Lora | None = option(  # noqa: RUF009
        None,
        optional(structured("mapping", parse_lora)),
        "adapters trained beside frozen weights: a rank, or rank=16;targets=q_proj,v_proj;dropout=0.05",
    )
    quantized: str | None = option(
        None, optional(choice(QUANTIZED)), "with lora: format of the frozen weights of linear layers (QLoRA)"
    )
    loss: str | None = option(
        None,
        optional(choice(choices.LOSSES)),
        "of a decoder's logits: fp32 (cast first, as by transformers), liger (fused with the head); default: as it is",
    )
    input: Mapping[str, Value] = option(
        (), structured("mapping", _mapping), "input sizes: image_size=224, seq_len=128, ... as key=value;..."
    )
    precision: str = option(
        "", structured("precision", _precision, PRECISIONS), f"precision name or alias (default {DEFAULT_PRECISION})"
    )
    schedule: tuple[PrecisionFrom, ...] = option(
        (), structured("list", _schedule), "precision by step: [{from_step, precision}, ...]"
    )
    batch_size: int | None = option(
        None, optional(BATCH), "samples per data rank and micro-step (default: the model's)"
    )
    grad_accum: int = option(1, MICRO_STEPS, "micro-steps per optimizer step")
    gpu: str = option(DEFAULT_GPU, TEXT, f"GPU catalog name (default {DEFAULT_GPU})")
    gpus: int = option(1, GPUS, "GPUs in all")
    node: str | None = option(None, optional(TEXT), "node type, which decides the fabric")
    nodes: int | None = option(None, optional(NODES), "nodes (default: as few as hold the GPUs)")
    system: str | None = option(None, optional(TEXT), "published system name, where clocks differ (DGX-2H)")
    device: str | None = option(None, optional(TEXT), "YAML file that adds a GPU, node or fabric")
    layout: str = option(
        "dp",
        structured("layout", _as_given, choices.LAYOUTS),
        "parallel layout: dp, fsdp, hsdp=8, zero1, zero2 or degrees as in tp=8,pp=4,sp=1,zero=1 (dp follows from gpus)",
    )
    optimizer: str | None = option(
        None, optional(choice(choices.OPTIMIZERS)), "optimizer (default: the model's); none: forward and backward only"
    )
    optimizer_impl: str | None = option(
        None,
        optional(choice(choices.OPTIMIZER_IMPLS)),
        "optimizer kernels (default: foreach; fused with master weights)",
    )
    clip_norm: float | None = option(
        None,
        optional(number(1e-9, 1e9, zero=True)),
        "gradient norm clipped to this (default: the model's); 0: no clipping",
    )
    ema: str | None = option(
        None,
        optional(choice(choices.EMAS)),
        "moving average of the weights, updated each step (default: the model's): foreach, as torch's AveragedModel",
    )
    loss_scale: str = option(
        "dynamic",
        choice(choices.LOSS_SCALES),
        "loss scaling where the precision has it; static: the host never waits for overflows; none: no scaler",
    )
    memory_format: str = option("nchw", choice(choices.MEMORY_FORMATS, choices.FORMAT_ALIASES), "image layout")
    attention: str = option("flash", choice(choices.ATTENTIONS), "attention kernel")
    recompute: str = option(
        "none",
        structured("text", choices.recompute_of, choices.RECOMPUTES),
        "recomputed activations; selective: inside attention; selective-ops: all but products; or parts by name",
    )
    recompute_layers: int | None = option(
        None,
        optional(whole(1, 10**4, "layers")),
        "with recompute full: only so many layers of each pipeline stage (default: all)",
    )
    recompute_method: str | None = option(
        None,
        optional(choice(choices.RECOMPUTE_METHODS)),
        "with recompute_layers N: block (N of each stage, default), uniform (in groups of N), every (each N-th)",
    )
    offload: str | None = option(
        None,
        optional(choice(choices.OFFLOADS, choices.OFFLOAD_ALIASES)),
        "kept and updated on the host or its NVMe: states of the optimizer, or these and sharded parameters",
    )
    offload_ratio: float = option(
        1.0, number(1e-6, 1), "share of the weights whose states offload optimizer keeps and updates on the host"
    )
    reference: bool = option(
        False, SWITCH, "a frozen copy (with lora: the model without adapters) runs forward on each batch too, as in DPO"
    )
    execution: str = option("eager", choice(choices.EXECUTIONS), "how the step is run")
    framework: str = option(
        "pytorch",
        choice(choices.FRAMEWORKS, choices.FRAMEWORK_ALIASES),
        "framework, which decides fused kernels and communication overhead",
    )
    torch: str | None = option(
        None,
        optional(structured("text", choices.torch_version)),
        "version of PyTorch as text (default: a current one), which decides some kernels",
    )
    no_sync: bool = option(True, SWITCH, "reduce gradients once per step (false: after every micro-step)")
    communication_dtype: str | None = option(
        None,
        optional(choice(choices.DTYPES, choices.DTYPE_ALIASES)),
        "dtype of reduced gradients (default: the precision's)",
    )
    anchors: tuple[str, ...] = option(
        (),
        structured("list", parse_anchors),
        "measured jobs that correct the estimate: published (default), none or FILE.csv",
    )
    data: Data = option(  # noqa: RUF009
        NO_DATA,
        structured("mapping", parse_data),
        "storage and loader: storage=nfs-10gbe;workers=8;... (default: loading takes no time)",
    )
    run: Run = option(None, structured("mapping", _run), "length of the run and the facts around the steps")  # noqa: RUF009
    code: CodeRule = dataclasses.field(default=GIVEN, compare=False, repr=False)
    """Whether the model may be a Python file that is run; no field of a job file (see `job.code`)."""

    def __post_init__(self) -> None:
        self._check(None)

    def _check(self, names: Container[str] | None) -> None:
        """Check and settle the fields; `names`: those whose values were not checked before (None: all)."""
        object.__setattr__(self, "precision", plain_values("precision", self.precision))
        object.__setattr__(self, "schedule", plain_values("schedule", self.schedule))
        if isinstance(self.precision, (list, tuple)):
            if self.schedule:
                raise JobError("precision is a list and schedule is given too; keep one of them")
            object.__setattr__(self, "schedule", self.precision)
            object.__setattr__(self, "precision", "")
        for name in ("model_config", "input"):  # the dataclass default is immutable
            if names is None or name in names:
                object.__setattr__(self, name, plain_values(name, getattr(self, name)) or {})
        apply_checks(self, names=names)
        layout = parse_layout(self.layout, self.gpus, self.nodes)
        object.__setattr__(self, "layout", _label(layout))
        if type(self.input.get("seq_len")) is int:
            layout.check_sequence(self.input["seq_len"])  # type: ignore[arg-type]
        self._settle_precision()
        check_together(self, layout)

    def _settle_precision(self) -> None:
        first = self.schedule[0].precision if self.schedule else self.precision or DEFAULT_PRECISION
        if self.precision not in ("", first):
            raise JobError(f"precision {show(self.precision)} is not the schedule's first, {show(first)}; keep one")
        object.__setattr__(self, "precision", first)
        if len(self.schedule) == 1:
            object.__setattr__(self, "schedule", ())

    @property
    def precision_spec(self) -> Precision:
        """The dtypes of the precision; with a schedule, of its first entry."""
        return parse_precision(self.precision)

    @property
    def grouped_kernels(self) -> int:
        """The kernels that PyTorch has for grouped convolutions in nhwc: 0 before 1.12, 1 before 2.4, 2 since."""
        return 0 if self.older_than(1, 12) else 1 if self.older_than(2, 4) else 2

    @property
    def measured_groups(self) -> bool:
        """Whether steps with grouped convolutions in nhwc were measured under such a PyTorch: to 1.12, from 2.4."""
        return self.older_than(1, 13) or not self.older_than(2, 4)

    @property
    def keeps_softmax_inputs(self) -> bool:
        """Whether PyTorch is older than 1.11, whose softmax keeps its input for the backward pass beside its output."""
        return self.older_than(1, 11)

    @property
    def torch_version(self) -> tuple[int, ...] | None:
        """The numbers of the version of PyTorch, None for a current one."""
        return None if self.torch is None else tuple(map(int, self.torch.split(".")))

    @property
    def decomposes_by_magma(self) -> bool:
        """Whether PyTorch is older than 1.10, whose decompositions of a single matrix are MAGMA's (pytorch pull request
        56887). Jobs that name its optimizer of that time (`torch1`) and no version are taken for such."""
        return self.older_than(1, 10) or (self.torch is None and self.optimizer_impl == "torch1")

    @property
    def zeroes_gradients(self) -> bool:
        """Whether PyTorch is older than 2.0, whose `zero_grad` zeroes gradients where later ones free them."""
        return self.older_than(2, 0)

    @property
    def stops_recomputing(self) -> bool:
        """Whether recomputation of a block ends with the last tensor that its backward pass needs: PyTorch's checkpoint
        without reentrant autograd from 2.1 on, which Megatron-LM and DeepSpeed replace by their own."""
        return self.framework in ("pytorch", "llm-foundry", "torchtitan") and not self.older_than(2, 1)

    @property
    def attention_kernel(self) -> str:
        """The attention kernel; before 2.11 PyTorch's own choice was FlashAttention-2."""
        return "flash2" if self.attention == "flash" and self.older_than(2, 11) else self.attention

    @property
    def unfused_grouped_fp32(self) -> bool:
        """Whether attention with fewer heads of keys than of queries has no fused kernel in single precision: PyTorch
        2.5 to 2.13. Models repeated the keys before, and its memory-efficient kernel takes them since (pytorch pull
        request 191085)."""
        return self.framework == "pytorch" and self.older_than(2, 14) and not self.older_than(2, 5)

    @property
    def traced_attention(self) -> str:
        """The `attention` of `capture.trace_entry`."""
        if self.attention == "math":
            return "math"
        return "flash_before_2_5" if self.older_than(2, 5) else "flash"

    @property
    def logits_loss(self) -> str | None:
        """How the loss of a decoder's logits is computed: torchtitan casts them (`components/loss.py`)."""
        return self.loss or ("fp32" if self.framework == "torchtitan" else None)

    @property
    def composes_rms_norms(self) -> bool:
        """Whether RMS norms run as several operators: eagerly in PyTorch before 2.9 (`capture.composed_norms`)."""
        return self.framework in choices.PLAIN and self.execution not in choices.FUSING and self.older_than(2, 9)

    def older_than(self, *version: int) -> bool:
        """Whether the job names a version of PyTorch that is older than `version`."""
        mine = self.torch_version
        return mine is not None and mine < version

    @property
    def layout_spec(self) -> Layout:
        """The parsed layout."""
        return parse_layout(self.layout, self.gpus)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any], *, allow_code: bool = False) -> Job:
        """The Job of a mapping of fields; None is not set. The fields of `run` may be given directly.

        A mapping is data: a model FILE.py:FUNCTION in it runs only with `allow_code`.
        """
        return cls.from_fields(values, rule_of("a mapping of job fields", allow_code))

    @classmethod
    def from_fields(cls, values: Mapping[str, Any], code: CodeRule) -> Job:
        """As `from_dict`, under the rule of the place that the fields are from."""
        fields = known_fields(
            plain_mapping("the job", values), (*JOB_FIELDS, *RUN_FIELDS), "the job", other_words.where
        )
        run_fields = {name: fields.pop(name) for name in RUN_FIELDS if name in fields}
        if run_fields:
            run = plain_values("run", fields.get("run", {}))
            in_run = run.to_dict() if isinstance(run, Run) else run
            if not isinstance(in_run, Mapping):
                _run("run", in_run)
            for name in run_fields:
                if name in in_run:
                    raise JobError(f"{name} is given both in the job and in run; keep one of them")
            fields["run"] = {**in_run, **run_fields}
        if "model" not in fields:
            raise JobError("the job names no model; add the field model, for example model: resnet50")
        return cls(**fields, code=code)

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values that `from_dict` reads back to an equal Job, without the fields that are not set."""
        result: dict[str, Any] = {}
        for name in JOB_FIELDS:
            value = getattr(self, name)
            if name == "precision" and self.schedule:
                value = [entry.to_dict() for entry in self.schedule]
            elif name in ("run", "data") or (name == "lora" and value is not None):
                value = value.to_dict()
            elif isinstance(value, Mapping):
                value = {key: list(v) if isinstance(v, tuple) else v for key, v in value.items()}
            elif name == "anchors":
                value = list(value) or None
            if name != "schedule" and value is not None and value != {}:
                result[name] = value
        return result

    @classmethod
    def from_file(cls, path: str | Path, *, allow_code: bool = False) -> Job:
        """The Job of a YAML or JSON file; its model may be a Python file only with `allow_code`."""
        values = read_mapping(path)
        try:
            return cls.from_fields(values, rule_of(f"job file {str(path)!r}", allow_code))
        except JobError as error:
            raise DataError(f"job file {str(path)!r}: {error}") from error

    def replace(self, **changes: Any) -> Job:
        """A copy with some fields changed, also those of `run` (`epochs=3`).

        A model given here is given in Python, so that it may be a Python file. If `gpus` changes and `layout` does not,
        the layout keeps its degrees but dp, which follows from `gpus`; raises JobError where they do not divide it.
        """
        run_changes = {name: changes.pop(name) for name in tuple(changes) if name in RUN_FIELDS}
        if run_changes:
            run = _run("run", changes.get("run", self.run))
            if any(run_changes.get(name) is not None for name in ("epochs", "steps", "samples")):
                run_changes = {"epochs": None, "steps": None, "samples": None, **run_changes}
            changes["run"] = dataclasses.replace(run, **run_changes)
        unknown = known_fields(dict.fromkeys(changes, 0), JOB_FIELDS, "the job")
        if "precision" in unknown or "schedule" in unknown:
            changes = {"precision": "", "schedule": (), **changes}
        if "gpus" in unknown and "layout" not in unknown:
            changes["layout"] = self.layout_spec.text(with_dp=False)
        if "model" in changes and self.code.refused:
            changes["code"] = GIVEN
        given = {name.replace("-", "_"): value for name, value in changes.items()}
        changed = object.__new__(type(self))
        for name in _DEFAULTS:
            object.__setattr__(changed, name, given[name] if name in given else getattr(self, name))
        changed._check(given)
        return changed

    def signature(self) -> str:
        """One line for people: model, precision, GPUs and every other field that is not its default."""
        parts = [self.model]
        parts += [",".join(f"{k}={v}" for k, v in m.items()) for m in (self.model_config, self.input) if m]
        if self.lora is not None:
            parts.append(f"{self.lora}{f' on {self.quantized} weights' if self.quantized else ''}")
        if self.loss is not None:
            parts.append(f"loss {self.loss}")
        parts.append(" then ".join(entry.precision for entry in self.schedule) or self.precision)
        parts.append(f"{self.gpus} x {self.gpu}")
        parts.append("default batch" if self.batch_size is None else f"batch {self.batch_size}")
        if self.grad_accum > 1:
            parts.append(f"grad_accum {self.grad_accum}")
        if self.layout != "dp":
            parts.append(self.layout)
        if self.recompute != "none":
            layers = (
                ""
                if self.recompute_layers is None
                else _RECOMPUTED[self.recompute_method].format(self.recompute_layers)
            )
            parts.append(f"recompute {self.recompute}{layers}")
        if self.data:
            parts.append(f"data from {self.data.storage or 'a given storage'}")
        if self.offload is not None:
            parts.append(f"offload {self.offload}{f' of {self.offload_ratio:g}' if self.offload_ratio < 1 else ''}")
        if self.reference:
            parts.append("with a reference model")
        for name in ("optimizer", "memory_format", "attention", "execution"):
            value = getattr(self, name)
            if value is not None and value != _DEFAULTS[name]:
                parts.append(value)
        if self.torch is not None:
            parts.append(f"PyTorch {self.torch}")
        return " · ".join(parts)


_RECOMPUTED = dict.fromkeys((None, "block"), " of {} layers a stage") | {
    "uniform": " in groups of {} layers", "every": " of every layer whose number {} divides",
}  # fmt: skip
JOB_FIELDS = tuple(item.name for item in dataclasses.fields(Job) if item.name != "code")
_DEFAULTS = {item.name: item.default for item in dataclasses.fields(Job)}
