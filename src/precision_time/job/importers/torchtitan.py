"""A torchtitan config (its parsed TOML file) as fields of a job."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from precision_time.checks import show, small_number
from precision_time.errors import JobError
from precision_time.field_types import COUNT
from precision_time.job.importers.imported import Imported
from precision_time.job.importers.numerics import FULL_PRECISION
from precision_time.job.importers.reader import Reader, flat
from precision_time.reading import plain_mapping

KIND = "torchtitan config"
SECTIONS = ("parallelism", "training", "model", "job", "activation_checkpoint", "experimental")
"""Tables by which a torchtitan config is recognised."""

_MODELS = {("llama3", "405b"): "llama3.1-405b"}
"""Model and flavour with another name in the zoo; others are model-flavour."""
_SCHEDULES: dict[str, dict[str, Any]] = {
    "1f1b": {"schedule": "1f1b"}, "gpipe": {"schedule": "gpipe"},
    # Schedules of several stages on each rank: torchtitan makes two.
    "interleaved1f1b": {"schedule": "interleaved", "vpp": 2}, "loopedbfs": {"schedule": "interleaved", "vpp": 2},
    "interleavedzerobubble": {"schedule": "zero-bubble", "vpp": 2},
    "zbvzerobubble": {"schedule": "zero-bubble", "vpp": 2}, "dualpipev": {"schedule": "zero-bubble", "vpp": 2},
}  # fmt: skip
_IMPLEMENTATIONS = {"fused": "fused", "foreach": "foreach", "for-loop": "single"}
_FP8 = {"": "fp8", "tensorwise": "fp8", "rowwise": "fp8-rowwise", "rowwise_with_gw_hp": "fp8-rowwise"}
_DTYPES = {"bfloat16": "bf16", "float16": "fp16", "float32": FULL_PRECISION}
_NO_EFFECT = (
    "job", "profiling", "metrics", "lr_scheduler", "comm", "fault_tolerance", "validation", "debug",
    "memory_estimation", "optimizer.lr", "optimizer.beta", "optimizer.eps", "optimizer.weight_decay", "checkpoint",
    "model.tokenizer", "model.hf_assets", "model.print",
    "training.dataset_path", "training.seed", "training.deterministic", "training.gc_", "training.warmup",
    "training.debug", "compile.components", "compile.backend", "compile.enable", "activation_checkpoint.early_stop",
    "activation_checkpoint.preserve", "activation_checkpoint.determinism",
)  # fmt: skip


def from_torchtitan(config: Mapping[str, Any]) -> Imported:
    """The job fields of a torchtitan config. Raises JobError for an invalid value."""
    reader = Reader(flat(plain_mapping("the config", config)))
    fields: dict[str, Any] = {"framework": "torchtitan"}
    layout, least = _layout(reader)
    fields["layout"] = layout
    _model(reader, fields)
    if (length := reader.number("training.seq_len")) is not None:
        fields["input"] = {"seq_len": length}
    total = _batch(reader, fields, layout)
    _precision(reader, fields, layout)
    _step(reader, fields)
    _recompute(reader, fields)
    not_taken = reader.finish(_NO_EFFECT)
    return Imported(KIND, fields, total, least, not_taken, reader.taken, undecided=reader.undecided)


def _model(reader: Reader, fields: dict[str, Any]) -> None:
    name, flavour = str(reader.take("model.name", default="")), str(reader.take("model.flavor", default=""))
    if not name:
        return
    if flavour.lower().startswith("debug"):
        reader.not_taken["model.flavor"] = f"{flavour} is no published size; name a model"
        return
    plain = f"{name}-{flavour}".lower().replace("_", "-").strip("-")
    fields["model"] = _MODELS.get((name.lower(), flavour.lower()), plain)


def _layout(reader: Reader) -> tuple[dict[str, Any], int]:
    """The layout with torchtitan's names of the degrees, and the product of the degrees."""
    number = reader.number
    old = "experimental."
    tp = number("parallelism.tensor_parallel_degree", "training.tensor_parallel_degree", default=1) or 1
    pp = number("parallelism.pipeline_parallel_degree", f"{old}pipeline_parallel_degree", default=1) or 1
    cp = number("parallelism.context_parallel_degree", f"{old}context_parallel_degree", default=1) or 1
    replicate = number("parallelism.data_parallel_replicate_degree", "training.data_parallel_replicate_degree") or 1
    shard = reader.take("parallelism.data_parallel_shard_degree", "training.data_parallel_shard_degree", default=-1)
    layout: dict[str, Any] = {
        "data_parallel_replicate_degree": replicate,
        "data_parallel_shard_degree": shard,
        "tp": tp,
        "pp": pp,
        "cp": cp,
        "sp": tp > 1,  # its tensor parallelism always splits the sequence of norms and dropouts
    }
    if str(reader.take("parallelism.fsdp_reshard_after_forward", default="default")) == "never":
        layout["zero"] = 2
    for field, name in (("ep", "expert_parallel_degree"), ("etp", "expert_tensor_parallel_degree")):
        if (degree := number(f"parallelism.{name}")) is not None:
            layout[field] = degree
    if cp > 1:
        # Its "alltoall" passes keys and values round as a ring does; it is not Ulysses.
        way = reader.take("parallelism.context_parallel_rotate_method", f"{old}context_parallel_rotate_method")
        layout["cp_comm"] = "ring" if way == "alltoall" else "all-gather"
    reader.refuse("without context parallelism nothing travels", "parallelism.context_parallel_rotate_method")
    if reader.on("parallelism.enable_async_tensor_parallel", f"{old}enable_async_tensor_parallel") and tp > 1:
        layout["overlap_tp"] = True
    name = str(reader.take("parallelism.pipeline_parallel_schedule", f"{old}pipeline_parallel_schedule", default=""))
    if pp > 1 and name:
        if name.lower() in _SCHEDULES:
            layout |= _SCHEDULES[name.lower()]
        else:
            reader.not_taken[f"pipeline_parallel_schedule {name}"] = "no model of this schedule; taken as 1F1B"
    reader.refuse(
        "the split of layers over stages is taken as even",
        *(
            f"parallelism.{n}"
            for n in (
                "pipeline_parallel_layers_per_stage",
                "pipeline_parallel_split_points",
                "module_fqns_per_model_part",
                "pipeline_parallel_first_stage_less_layers",
                "pipeline_parallel_last_stage_less_layers",
            )
        ),
    )
    known = str(shard).strip()
    return layout, tp * pp * cp * replicate * (small_number(known) or 1)


def _batch(reader: Reader, fields: dict[str, Any], layout: Mapping[str, Any]) -> int | None:
    """Sets batch_size (of one micro-batch); grad_accum too, unless a global batch decides it."""
    local = reader.number("training.local_batch_size", "training.batch_size", default=8) or 8
    micro = local
    if layout["pp"] > 1:
        micro = reader.number("parallelism.pipeline_parallel_microbatch_size", default=1) or 1
        if local % micro:
            raise JobError(
                f"training.local_batch_size {local} is not a multiple of pipeline_parallel_microbatch_size {micro}; "
                f"change one of them"
            )
    fields["batch_size"] = micro
    total = reader.take("training.global_batch_size", default=-1)
    if str(total).strip() != "-1":
        batch: int = COUNT("training.global_batch_size", total)
        return batch
    fields["grad_accum"] = local // micro
    return None


def _precision(reader: Reader, fields: dict[str, Any], layout: Mapping[str, Any]) -> None:
    """FSDP casts weights as it gathers them (bf16-master), DDP runs autocast, tp or pp alone leave it out."""
    weights = str(reader.take("training.dtype", default="float32"))
    low = str(reader.take("training.mixed_precision_param", default="bfloat16"))
    reduce = str(reader.take("training.mixed_precision_reduce", default="float32"))
    sharded = str(layout["data_parallel_shard_degree"]).strip() != "1" or layout["cp"] > 1
    if low == "float32" or weights != "float32":
        fields["precision"] = _DTYPES.get(weights, weights)
    elif sharded:
        fields |= {"precision": f"{_DTYPES.get(low, low)}-master", "communication_dtype": reduce}
        if layout["cp"] == 1 and (layout["tp"] > 1 or layout["pp"] > 1):
            reader.not_taken["mixed precision of tp and pp alone"] = (
                "with no more GPUs than tp x pp nothing is sharded, and torchtitan trains in fp32; then give "
                "--precision torch-fp32"
            )
    elif layout["tp"] > 1 or layout["pp"] > 1:
        fields["precision"] = FULL_PRECISION
    else:
        fields["precision"] = f"amp-{_DTYPES.get(low, low)}"
    converters = reader.take("model.converters", default=[], several=True)
    chosen = converters if isinstance(converters, list) else [converters]
    recipes = [str(reader.take(f"{table}.recipe_name", default="")) for table in ("float8", "quantize.linear.float8")]
    for name in map(str, filter(None, chosen)):
        if "float8" in name and not name.endswith("grouped_mm.float8"):
            recipe = next(filter(None, recipes), "")
            fields["precision"] = _FP8.get(recipe, "fp8")
            if recipe not in _FP8:
                reader.undecided["precision"] = f"float8 recipe {show(recipe)} has no model here"
        elif "mx" in name or "fp4" in name:
            reader.undecided["precision"] = f"model.converters {show(name)} has no model here"
        else:
            reader.not_taken[f"model.converters {name}"] = "no model of this converter"
    unused = "goes with the float8 converter, in which communication stays in the reduced dtype"
    reader.refuse(unused, *(key for key in tuple(reader.left) if key.startswith(("float8.", "quantize."))))


def _step(reader: Reader, fields: dict[str, Any]) -> None:
    """Optimizer, clipping, compilation, and how long the run is."""
    fields["optimizer"] = str(reader.take("optimizer.name", default="AdamW")).lower()
    implementation = reader.take("optimizer.implementation", default="fused")
    fields["optimizer_impl"] = _IMPLEMENTATIONS.get(str(implementation), implementation)
    fields["clip_norm"] = reader.take("training.max_norm", default=1.0)
    if reader.on("compile.enable", "training.compile"):
        fields["execution"] = "compile"
    if reader.on("training.enable_cpu_offload"):
        fields["offload"] = "parameters"
    run: dict[str, Any] = {}
    if (steps := reader.number("training.steps")) is not None:
        run["steps"] = steps
    if reader.on("checkpoint.enable", "checkpoint.enable_checkpoint"):
        run["checkpoint_every_steps"] = reader.number("checkpoint.interval", default=500)
    if (data := reader.take("training.dataset")) == "c4":
        run["dataset"] = data
    elif data:
        reader.not_taken[f"training.dataset {data}"] = "not in the catalog of data sets; the run has training.steps"
    if run:
        fields["run"] = run


def _recompute(reader: Reader, fields: dict[str, Any]) -> None:
    mode = str(reader.take("activation_checkpoint.mode", default="selective")).lower()
    option = str(reader.take("activation_checkpoint.selective_ac_option", default="2"))
    chosen = "activation_checkpoint.per_op_sac_force_recompute_mm_shapes_by_fqns"
    reader.refuse("operators are not chosen one by one", chosen)
    if mode not in ("none", "full", "selective"):
        reader.undecided["recompute"] = f"activation_checkpoint.mode {show(mode)} has no model here"
        mode = "none"
    if mode == "selective" and small_number(option) is not None:
        mode = "full"
        if option != "1":
            fields |= {"recompute_method": "every", "recompute_layers": small_number(option)}
    fields["recompute"] = mode
