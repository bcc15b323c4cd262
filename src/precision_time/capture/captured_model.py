"""From a job's words to the traced step: find the model, take its shipped graph or trace it, add the tail.

The model word is a zoo name, `torchvision:NAME`, `timm:NAME`, `hf:path/to/config.json`, `path/to/file.py:function` or
`graph:DIGEST` (`posted_graph`).
A zoo name at its own shape needs no torch; everything else is traced here and now.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from precision_time.bounded_cache import bounded
from precision_time.capture import symbolic
from precision_time.capture.adapters import with_adapters
from precision_time.capture.composed_norms import composed_rms_norms
from precision_time.capture.fused_kernels import framework_kernels
from precision_time.capture.graph import OpGraph, Parameter, Skeleton
from precision_time.capture.kinds import Form
from precision_time.capture.layers import layered
from precision_time.capture.lengths import padded_to_longest, settle_lengths
from precision_time.capture.posted_graph import posted_step
from precision_time.capture.regimes import channels_last, compiled, dtype_renames, regime_of, transform
from precision_time.capture.stored_graph import stored_graph
from precision_time.capture.trace import as_evaluation, trace_entry, with_few_layers
from precision_time.errors import CaptureError, JobError, nearest
from precision_time.job.choices import FUSING, NOT_PYTORCH
from precision_time.job.code import POSTED, is_code
from precision_time.job.job import Job
from precision_time.job.lora import Lora
from precision_time.job.precision import Precision
from precision_time.reading import read_json
from precision_time.shipped import is_shipped
from precision_time.zoo.catalog import ENTRIES
from precision_time.zoo.hf_families import UNKNOWN, family_of_config
from precision_time.zoo.names import find, nearest_models
from precision_time.zoo.shape import checked_sizes, with_overrides
from precision_time.zoo.workload import Workload, ZooEntry

_PREFIXES = ("torchvision", "timm", "hf")


@dataclass(frozen=True, slots=True, eq=False)
class CapturedModel:
    """The graph of a whole model's micro-step at its own sizes, and what the job and the zoo say about its training.

    `batch_size` is samples per micro-step; `dataset` comes from the zoo entry, if any.
    """

    model: str
    graph: OpGraph
    precision: Precision
    optimizer: str
    batch_size: int
    dataset: str | None
    family: str
    sizes: Mapping[str, Any] = field(default_factory=dict)
    length_spread: float = 0.0
    """Half the range of batch lengths, as a share of the middle (see `lengths`): ranks wait for the longest."""
    implementation: str | None = None
    """Of the optimizer, as `optimizer.tail` takes it."""
    clip_norm: float | None = None
    ema: str | None = None
    """As `TrainingStep.ema`."""

    @property
    def parameter_count(self) -> int:
        return self.graph.parameter_count


@dataclass(frozen=True, slots=True)
class _Model:
    """What the model word stands for, before any graph."""

    name: str
    entry: ZooEntry
    config: Mapping[str, Any]
    sizes: Mapping[str, Any]
    shipped: bool
    length_spread: float = 0.0


def capture_model(
    job: Job, precision: Precision | None = None, device_type: str = "cuda", few_layers: bool = False
) -> CapturedModel:
    """The traced step of a job (of one precision, where the job has a schedule).

    `device_type` is torch's word, "cuda" or "cpu": autocast casts other operators on a CPU, and optimizers loop over
    the tensors there. `few_layers`: the graph of a model of Hugging Face may have one of many equal blocks, so that it
    has to be read through `layers.layered`.
    """
    precision = precision or job.precision_spec
    usual = usual_implementation(device_type)
    if is_code(job.model):
        if job.lora is not None:
            raise JobError(
                f"lora adds adapters to models of the zoo and of hf:, and {job.model} is your own; leave lora out and "
                "give a module with its adapters, the other weights frozen (requires_grad=False)"
            )
        from precision_time.capture.user_model import user_model_step  # traces, so it needs torch

        own = user_model_step(job, precision, device_type)
        return CapturedModel(
            model=own.name,
            graph=own.graph,
            precision=precision,
            optimizer=own.optimizer,
            batch_size=own.batch_size,
            dataset=None,
            family="own",
            sizes=own.sizes,
            length_spread=settle_lengths(job.input)[1],
            implementation=job.optimizer_impl or own.optimizer_impl or usual,
            clip_norm=job.clip_norm or None,
            ema=settle_ema(job),
        )
    if job.model.startswith(POSTED):
        found, graph = posted_step(job, precision, device_type)
        return CapturedModel(
            model=job.model,
            graph=graph,
            precision=precision,
            optimizer=job.optimizer or found.optimizer,
            batch_size=found.batch_size,
            dataset=None,
            family="own",
            sizes=found.sizes,
            length_spread=found.length_spread,
            implementation=job.optimizer_impl or found.implementation or usual,
            clip_norm=job.clip_norm or None,
            ema=settle_ema(job),
        )
    model = resolve(job)
    clip_norm = job.clip_norm if job.clip_norm is not None else model.entry.clip_norm
    return CapturedModel(
        model=model.name,
        graph=_graph(model, job, precision, device_type, few_layers=few_layers),
        precision=precision,
        optimizer=job.optimizer or model.entry.optimizer,
        batch_size=int(model.sizes["batch_size"]),
        dataset=model.entry.dataset or None,
        family=model.entry.family,
        sizes=model.sizes,
        length_spread=model.length_spread,
        implementation=job.optimizer_impl or usual,
        clip_norm=clip_norm or None,
        ema=settle_ema(job, model.entry.ema),
    )


def settle_ema(job: Job, usual: str | None = None) -> str | None:
    """How the job updates a moving average of its weights; `usual`: how its model does."""
    how = job.ema or usual
    return None if how == "none" or job.optimizer == "none" else how


def evaluation_graph(job: Job) -> OpGraph:
    """The operators of an evaluation's forward pass and loss, in which a module runs as `eval()` has it.

    It is traced, which needs PyTorch.
    """
    return _graph(resolve(job), job, job.precision_spec, "cuda", training=False)


def usual_implementation(device_type: str) -> str | None:
    """torch.optim takes its multi-tensor kernels by itself on accelerators alone; None: see `optimizer.tail`."""
    return "single" if device_type == "cpu" else None


def resolve(job: Job) -> _Model:
    """Which zoo entry (or entry made for an external name) a job means, at which configuration and sizes."""
    prefix, colon, rest = job.model.partition(":")
    if colon and prefix in _PREFIXES:
        return _external(job, prefix, rest)
    entry = find(job.model)
    if entry is None and {"layers", "hidden"} <= set(job.model_config):
        entry = ENTRIES["gpt"]
    if entry is None:
        raise JobError(
            f"model {job.model!r} is unknown; nearest: {nearest_models(job.model)}; name one of "
            "`precision-time zoo`, or torchvision:NAME, timm:NAME, hf:CONFIG.json, FILE.py:FUNCTION"
        )
    config = with_overrides(entry, job.model_config)
    grid = {s.name: s.multiple_of for s in entry.symbols}
    sizes, spread = settle_lengths(_sizes(job, entry), grid)
    sizes = checked_sizes(sizes)
    if entry.varies and isinstance({**entry.input, **job.input}[entry.varies[0]], int):
        sizes, spread = padded_to_longest(sizes, *entry.varies, grid)
    written_out = attention_of(job, config, job.precision_spec) == "math"
    shipped = _is_shipped(entry, config, sizes) and (entry.ships_math or not written_out)
    return _Model(entry.name, entry, config, sizes, shipped, spread)


def _sizes(job: Job, entry: ZooEntry) -> dict[str, Any]:
    unknown = set(job.input) - set(entry.input)
    if unknown:
        field_name = sorted(unknown)[0]
        raise JobError(
            f"input {field_name!r} is not an input size of {entry.name}; nearest: "
            f"{nearest(field_name, entry.input)}; its sizes are {', '.join(entry.input)}"
        )
    return {**entry.input, **job.input, "batch_size": job.batch_size or entry.batch_size}


def attention_of(job: Job, config: Mapping[str, Any], precision: Precision) -> str:
    """The attention kernel of a model at `config`: "math" where the job says so, or has no fused one."""
    grouped = config.get("kv_heads", config.get("heads")) != config.get("heads")
    if grouped and precision.compute_dtype in ("float32", "float64") and job.unfused_grouped_fp32:
        return "math"
    return job.attention_kernel


def _is_shipped(entry: ZooEntry, config: Mapping[str, Any], sizes: Mapping[str, Any]) -> bool:
    if dict(config) != dict(entry.config) or not is_shipped(f"zoo/data/{entry.name}.zip"):
        return False
    symbols = {s.name: s for s in entry.symbols}
    for name, value in sizes.items():
        symbol = symbols.get(name)
        if symbol is None:
            if value != entry.input.get(name):
                return False
        elif not isinstance(value, int) or value % symbol.multiple_of:
            return False
    return True


def _external(job: Job, prefix: str, rest: str) -> _Model:
    if not rest:
        raise JobError(f"model {job.model!r} names nothing after {prefix}:; write for example {_example(prefix)}")
    builder = "models.huggingface:build" if prefix == "hf" else f"models.torchvision_models:build_{prefix}"
    if prefix == "hf":
        rest = str(Path(rest) / "config.json") if Path(rest).is_dir() else rest
        if not Path(rest).is_file():
            raise JobError(f"model {job.model!r}: there is no file {rest}; give the path of a Hugging Face config.json")
    entry = ZooEntry(
        name=job.model,
        builder=builder,
        family=_hf_family(rest, Path(rest).stat().st_mtime_ns) if prefix == "hf" else prefix,
        input=_EXTERNAL_SIZES[prefix],
        optimizer="adamw" if prefix == "hf" else "sgd",
        dataset="" if prefix == "hf" else "imagenet",
        batch_size=32,
        config=_EXTERNAL_CONFIG[prefix],
    )
    config = {**with_overrides(entry, job.model_config), "path" if prefix == "hf" else "name": rest}
    if prefix == "hf":
        config["changed_ns"] = Path(rest).stat().st_mtime_ns  # a file that is written again is another model
    sizes, spread = settle_lengths(_sizes(job, entry))
    sizes = {name: value for name, value in checked_sizes(sizes).items() if value is not None}
    return _Model(job.model, entry, config, sizes, False, spread)


@bounded()
def _hf_family(path: str, _changed_ns: int) -> str:
    config = read_json(path, "Hugging Face config", infinity_as_null=True)
    return family_of_config(config) if isinstance(config, dict) else UNKNOWN


_EXTERNAL_SIZES: Mapping[str, Mapping[str, Any]] = {
    "hf": {
        "seq_len": 128,
        **dict.fromkeys(
            ("target_len", "image_size", "images", "frames", "audio_samples", "audio_frames", "global_tokens")
        ),
    },
    "torchvision": {"image_size": 224, "frames": None, "channels": None},
    "timm": {"image_size": 224, "channels": None},
}
"""Input sizes of models of other libraries; None: the library's."""
_EXTERNAL_CONFIG: Mapping[str, Mapping[str, Any]] = {
    "hf": {"freeze": "none"},
    "torchvision": {"classes": 1000},
    "timm": {"classes": 1000, "fast_norm": False},
}


def _example(prefix: str) -> str:
    return {
        "torchvision": "torchvision:resnet50",
        "timm": "timm:vit_base_patch16_224",
        "hf": "hf:config.json",
    }[prefix]


def _of_few_layers(traced: Callable[..., OpGraph]) -> OpGraph:
    """The trace of few blocks; of all where the model's forward pass does not run with fewer."""
    left_out = False

    def edit(workload: Workload) -> None:
        nonlocal left_out
        with_few_layers(workload)
        left_out = bool(workload.repeated)

    try:
        graph = traced(edit)
        layered(graph)  # raises where the blocks do not follow one another
    except CaptureError:
        if not left_out:
            raise
        return traced(None)
    return graph


@dataclass(frozen=True, slots=True)
class _GraphKey:
    """Everything a traced graph depends on, hashable; the entry itself follows from its name."""

    name: str
    shipped: bool
    config: tuple[tuple[str, Any], ...]
    sizes: tuple[tuple[str, Any], ...]
    precision: Precision
    attention: str
    execution: str
    device_rules: str
    """Whose autocast lists hold; without autocast both devices run the same graph."""
    channels_last: bool
    """Whether images lie so in the traced step, with the copies that PyTorch makes there."""
    images_last: bool
    """Whether the framework's own kernels, which need no copies, read them so."""
    framework: str
    """Whose fused kernels run; "" where it fuses nothing."""
    training: bool
    """False: an evaluation, which is never stored."""
    lora: Lora | None
    quantized: str | None
    composed_norms: bool
    few_layers: bool
    entry: ZooEntry = field(compare=False)


def _fusion_of(job: Job, entry: ZooEntry) -> str:
    """The execution mode whose chains of pointwise operators are one kernel, or "eager"."""
    if job.execution in FUSING:
        return job.execution
    return "torchscript" if entry.scripted and job.execution == "cuda_graphs" else "eager"


def _graph(
    model: _Model,
    job: Job,
    precision: Precision,
    device_type: str,
    training: bool = True,
    few_layers: bool = False,
) -> OpGraph:
    rules = device_type if precision.autocast else "cuda"
    written_out = attention_of(job, model.config, precision) == "math"
    if model.shipped:  # in which every attention that is not written out has a fused kernel
        attention = "math" if written_out and model.entry.attention else "flash"
    else:
        attention = "math" if written_out else job.traced_attention
    images_last, mxnet = channels_last(job.memory_format, precision), job.framework == "mxnet"
    return _cached_graph(
        _GraphKey(
            model.name,
            model.shipped and rules == "cuda" and training,
            tuple(sorted(model.config.items())),
            tuple(sorted(model.sizes.items())),
            precision,
            attention,
            _fusion_of(job, model.entry),
            rules,
            model.entry.has_images and images_last and job.framework not in NOT_PYTORCH,
            mxnet and images_last,
            "mxnet" if mxnet else "",
            training,
            job.lora,
            job.quantized,
            job.composes_rms_norms,
            few_layers and model.name.startswith("hf:"),
            model.entry,
        )
    )


@bounded(Skeleton, Parameter, Form)
def _cached_graph(key: _GraphKey) -> OpGraph:
    graph = _graph_of(key)
    return composed_rms_norms(graph) if key.composed_norms else graph


def _graph_of(key: _GraphKey) -> OpGraph:
    sizes = dict(key.sizes)
    if key.shipped:
        concrete = {symbol.name: int(sizes[symbol.name]) for symbol in key.entry.symbols}
        file = f"zoo/data/{key.name}.zip"
        early = key.lora is not None
        graph = stored_graph(file, key.attention, key.precision, concrete, early, channels_last=key.channels_last)
        if key.lora is not None:
            graph = with_adapters(graph, key.lora, key.quantized)
            return transform(framework_kernels(graph, key.framework, key.images_last), key.precision, key.execution)
        return compiled(framework_kernels(graph, key.framework, key.images_last), key.execution)
    regime = regime_of(key.precision)
    rules = key.device_rules, key.channels_last
    traced = partial(trace_entry, key.entry, dict(key.config), sizes, regime, key.attention, *rules)
    graph = _of_few_layers(traced) if key.few_layers else traced(None if key.training else as_evaluation)
    graph = symbolic.rename_dtypes(graph, dtype_renames(key.precision))
    if key.lora is not None and key.training:
        graph = with_adapters(graph, key.lora, key.quantized)
    graph = framework_kernels(graph, key.framework, key.images_last)
    return transform(graph, key.precision, key.execution, key.device_rules)
