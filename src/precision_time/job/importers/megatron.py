"""Megatron-LM arguments as fields of a job: a launch script, a command line, or a mapping of arguments."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from precision_time.checks import show
from precision_time.errors import JobError
from precision_time.field_types import COUNT
from precision_time.job.choices import MODULES, recompute_of
from precision_time.job.importers.imported import Imported
from precision_time.job.importers.megatron_model import model_config
from precision_time.job.importers.numerics import FULL_PRECISION
from precision_time.job.importers.reader import NO_EFFECT, Reader, is_on
from precision_time.job.importers.shell import arguments, unset_variables
from precision_time.reading import plain_mapping

KIND = "Megatron arguments"

_OPTIMIZERS = {"adam": "adamw", "sgd": "sgd", "muon": "muon", "dist_muon": "muon"}
"""Megatron's Adam decays weights as AdamW."""
_CP_COMMS = {"p2p": "ring", "all_gather": "all-gather", "allgather": "all-gather", "a2a": "all-to-all"}
_FP8 = {"delayed": "fp8", "tensorwise": "fp8", "blockwise": "fp8-block", "mxfp8": "fp8-block"}
_FP8_OPTIONS = ("fp8", "no-fp8", "first-last-layers-bf16", "num-layers-at-start-in-bf16", "num-layers-at-end-in-bf16")
_NO_EFFECT = (
    "lr", "min-lr", "weight-decay", "start-weight-decay", "end-weight-decay", "adam-", "sgd-", "init-method", "seed",
    "norm-epsilon", "layernorm-epsilon", "data-", "train-data", "valid-data", "test-data", "split", "tokenizer",
    "vocab-file", "merge-file", "save", "load", "ckpt", "no-load", "no-save", "log", "tensorboard", "wandb", "eval",
    "exit", "timing", "distributed-", "master-", "node-rank", "rdzv", "num-workers", "dataloader", "mock-data",
    "no-create-attention-mask", "override-opt", "use-checkpoint", "finetune", "initial-loss-scale", "min-loss-scale",
    "loss-scale-window", "hysteresis", "moe-aux-loss", "moe-z-loss", "moe-router-load-balancing", "moe-router-score",
    "moe-router-enable", "moe-router-bias", "moe-token-drop-policy", "clone-", "manual-gc", "ddp-bucket", "ddp-num",
    "use-mcore-models", "job-name", "reset-", "nccl-", "check-for-nan", "no-check-for-nan",
    "num-dataset-builder", "max-restarts", "monitor-interval", "tee", "no-initialization", "use-dist-ckpt",
    "dist-ckpt", "auto-detect-ckpt", "async-save", "mid-level", "rampup", "override-", "train-sync", "cross-entropy",
    "local-rank", "module", "role", "run-path", "no-python", "attention-softmax-in-fp32",
)  # fmt: skip
_SWITCHES = frozenset(
    """
    bf16 fp16 sequence-parallel use-distributed-optimizer overlap-grad-reduce overlap-param-gather tp-comm-overlap
    swiglu group-query-attention multi-latent-attention disable-bias-linear untie-embeddings-and-output-weights
    qk-layernorm recompute-activations use-flash-attn no-position-embedding optimizer-cpu-offload
    use-torch-fsdp2 grad-reduce-in-bf16 accumulate-allreduce-grads-in-fp32
    """.split()
)
"""Arguments without a value; what follows one in a script belongs to another."""
_FUSIONS = (
    "overlap-", "delay-", "align-", "tp-comm-", "no-overlap", "defer-", "microbatch-group", "moe-grouped",
    "moe-permute",
    "moe-token-dispatcher", "moe-shared-expert-overlap", "no-bias-", "no-masked-", "no-rope", "bias-", "apply-",
    "gradient-accum", "no-gradient-accum", "no-async-", "use-fused", "recompute-", "wgrad-",
)  # fmt: skip


def from_megatron(settings: str | Mapping[str, Any]) -> Imported:
    """The job fields of Megatron-LM arguments, given as the text of a script or command line, or as a mapping.

    Defaults are Megatron-LM's. The number of GPUs is nproc-per-node x nnodes where torchrun's flags are given. Raises
    JobError for an invalid value; unknown flags are reported in `not_taken` and are no error.
    """
    given = arguments(settings) if isinstance(settings, str) else plain_mapping("the settings", settings)
    reader = Reader(_plain(given), switches=True)
    _leave_unset(reader)
    layout = _layout(reader)
    tp, pp, cp = (int(layout.get(name, 1)) for name in ("tp", "pp", "cp"))
    fields: dict[str, Any] = {"framework": "megatron"}
    config = model_config(reader, tp)
    if {"layers", "hidden", "heads"} <= set(config):
        fields |= {"model": "gpt", "model_config": config}
    elif config.keys() & {"layers", "hidden", "heads"}:
        lacking = [
            flag
            for flag, key in (("num-layers", "layers"), ("hidden-size", "hidden"), ("num-attention-heads", "heads"))
            if key not in config
        ]
        reader.not_taken["the model"] = f"its shape lacks {' and '.join(lacking)}; name a model"
    if (length := reader.number("seq-length", "encoder-seq-length")) is not None:
        fields["input"] = {"seq_len": length}
    _pipeline(reader, fields, layout, config, pp)
    fields["layout"] = layout
    fields["batch_size"] = reader.number("micro-batch-size", "batch-size", default=1)
    if (per_node := reader.number("nproc-per-node")) is not None:
        fields["gpus"] = per_node * (reader.number("nnodes", default=1) or 1)
        if per_node > 1 and fields["gpus"] > per_node:
            fields["nodes"] = fields["gpus"] // per_node
    elif (world := reader.number("world-size")) is not None:
        fields["gpus"] = world
    _precision(reader, fields)
    _step(reader, fields)
    total = reader.number("global-batch-size")
    _evaluations(reader, fields, total)
    if total is None:
        fields["grad_accum"] = 1  # Megatron's default: one micro-batch for each replica
    not_taken = reader.finish(_NO_EFFECT)
    return Imported(KIND, fields, total, tp * pp * cp, not_taken, reader.taken, undecided=reader.undecided)


def _evaluations(reader: Reader, fields: dict[str, Any], total: int | None) -> None:
    """Evaluations of `eval-iters` global batches each, where the arguments say all of that."""
    given = [str(reader.left.get(name)) for name in ("eval-interval", "eval-iters")]
    if total is None or "run" not in fields or not all(each.isdecimal() and int(each) for each in given):
        return
    every, iterations = reader.number("eval-interval"), reader.number("eval-iters")
    fields["run"] |= {"evaluation_every_steps": every, "evaluation_samples": (iterations or 0) * total}


def _plain(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Argument names without leading dashes, with hyphens for underscores; nested tables flattened.

    Raises JobError for an argument that has two values.
    """
    result: dict[str, Any] = {}
    for key, value in settings.items():
        name = str(key).strip().lstrip("-").replace("_", "-")
        for argument, each in (_plain(value) if isinstance(value, Mapping) and value else {name: value}).items():
            if argument in result and str(result[argument]) != str(each):
                raise JobError(f"{argument} is given as {show(result[argument])} and {show(each)}; keep one of them")
            result[argument] = each
    return result


def _leave_unset(reader: Reader) -> None:
    """Arguments whose value is a shell variable that the text does not set; switches have none, and stay on."""
    for name, value in unset_variables(reader.left, _SWITCHES):
        reader.left[name] = True
        reader.not_taken[f"the arguments {value} after {name}"] = "are not set in the text"
    for name, value in list(reader.left.items()):
        if isinstance(value, str) and "$" in value:
            reader.refuse(NO_EFFECT if name.startswith(_NO_EFFECT) else f"{show(value)} is not set in the text", name)


def _layout(reader: Reader) -> dict[str, Any]:
    layout: dict[str, Any] = {}
    for field, name in (
        ("tp", "tensor-model-parallel-size"),
        ("pp", "pipeline-model-parallel-size"),
        ("cp", "context-parallel-size"),
        ("ep", "expert-model-parallel-size"),
        ("etp", "expert-tensor-parallel-size"),
    ):
        if (degree := reader.number(name)) is not None:
            layout[field] = degree
    if reader.on("sequence-parallel"):
        layout["sp"] = True
    sharded = reader.on("use-distributed-optimizer")
    if strategy := reader.take("data-parallel-sharding-strategy"):
        layout["data_parallel_sharding_strategy"] = strategy
    elif reader.on("use-torch-fsdp2"):
        layout["zero"] = 3
    elif sharded:
        layout["zero"] = 1
    if (instances := reader.number("num-distributed-optimizer-instances")) is not None:
        layout["num_distributed_optimizer_instances"] = instances
    # Megatron overlaps nothing by default; with dp alone, the layout's defaults are those of PyTorch.
    layout["overlap_grad_reduce"] = reader.on("overlap-grad-reduce") or layout.get("zero") == 3
    gathers = reader.on("overlap-param-gather")
    if layout.get("zero"):
        layout["overlap_param_gather"] = gathers or layout["zero"] == 3
    elif gathers and "data_parallel_sharding_strategy" not in layout:
        reader.not_taken["overlap-param-gather"] = "needs use-distributed-optimizer"
    if reader.on("tp-comm-overlap") and layout.get("sp"):
        layout["overlap_tp"] = True
    if way := reader.take("cp-comm-type"):
        way = (str(way).split() or [""])[0]
        if way in _CP_COMMS:
            layout["cp_comm"] = _CP_COMMS[way]
        else:
            reader.not_taken[f"cp-comm-type {way}"] = "no model of this mixture; taken as p2p"
    if (capacity := reader.take("moe-expert-capacity-factor")) is not None:
        layout["capacity_factor"] = capacity
    return layout


def _pipeline(
    reader: Reader, fields: dict[str, Any], layout: dict[str, Any], config: Mapping[str, Any], pp: int
) -> None:
    """Virtual stages, and how many layers of each stage are computed again."""
    chunks = reader.number("virtual-pipeline-model-parallel-size", "num-virtual-stages-per-pipeline-rank")
    if (each := reader.number("num-layers-per-virtual-pipeline-stage")) is not None:
        layers = config.get("layers")
        if layers is None:
            reader.not_taken["num-layers-per-virtual-pipeline-stage"] = "needs num-layers; give vpp in --layout"
        elif int(layers) % (pp * each):
            raise JobError(
                f"num-layers {layers} is not a multiple of pipeline-model-parallel-size {pp} x "
                f"num-layers-per-virtual-pipeline-stage {each} = {pp * each}; change one of them"
            )
        else:
            chunks = int(layers) // (pp * each)
    if pp > 1 and chunks is not None and chunks > 1:
        layout["vpp"] = chunks
    default = "selective" if reader.on("recompute-activations") else "none"
    granularity = str(reader.take("recompute-granularity", default=default))
    if reader.on("checkpoint-activations"):
        granularity = "full"
    method = reader.take("recompute-method", "activations-checkpoint-method")
    number = reader.number("recompute-num-layers", "activations-checkpoint-num-layers", default=1) or 1
    fields["recompute"] = granularity
    if granularity == "full" and method == "block":
        # Megatron counts the layers of each model chunk, the job those of the whole stage.
        fields["recompute_layers"] = number * int(layout.get("vpp", 1))
    elif granularity == "full" and number > 1:
        fields |= {"recompute_method": "uniform", "recompute_layers": number}
    modules = reader.take("recompute-modules", default="core_attn", several=True)
    names = re.findall(r"\w+", str(modules))
    if granularity == "selective":
        fields["recompute"] = recompute_of("recompute-modules", [name for name in names if name in MODULES])
        for name in names:
            if name not in MODULES:
                reader.not_taken[f"recompute-modules {name}"] = "no model of this part; its activations are kept"


def _precision(reader: Reader, fields: dict[str, Any]) -> None:
    """Half weights with an fp32 copy. bf16 gradients are accumulated and reduced in fp32 unless grad-reduce-in-bf16."""
    bf16, fp16 = reader.switch("bf16"), reader.switch("fp16")
    in_fp32 = reader.on("accumulate-allreduce-grads-in-fp32")
    in_bf16 = reader.on("grad-reduce-in-bf16")
    fields["precision"] = "bf16-master" if bf16 else "fp16-master" if fp16 else FULL_PRECISION
    if (bf16 and not in_bf16) or (fp16 and in_fp32):
        fields["communication_dtype"] = "float32"
    recipe = str(reader.take("fp8-recipe", default="delayed"))
    if reader.take("fp8-format", "fp8", "fp8-hybrid", "fp8-e4m3"):
        fields["precision"] = _FP8.get(recipe, "fp8")
        if recipe == "mxfp8":
            reader.not_taken["fp8-recipe mxfp8"] = "no model of its scaling; taken as fp8-block"
        elif recipe not in _FP8:
            reader.undecided["precision"] = f"fp8-recipe {show(recipe)} has no model here"
    reader.refuse(
        "an option of fp8; weights are gathered in the dtype of the precision",
        *reader.where(lambda name: name.startswith(_FP8_OPTIONS)),
    )
    reader.refuse("the loss is taken in fp32", "fp16-lm-cross-entropy")
    if fp16 and reader.take("loss-scale") is not None:
        fields["loss_scale"] = "static"


def _step(reader: Reader, fields: dict[str, Any]) -> None:
    """Optimizer, clipping, attention, graphs and the length of the run."""
    optimizer = str(reader.take("optimizer", default="adam")).lower()
    if optimizer in _OPTIMIZERS:
        fields["optimizer"] = _OPTIMIZERS[optimizer]
    else:
        reader.undecided["optimizer"] = f"optimizer {show(optimizer)} has no model here"
    fields["clip_norm"] = reader.take("clip-grad", default=1.0)
    fraction = reader.take("optimizer-offload-fraction", default=1.0)
    if reader.on("optimizer-cpu-offload") and fraction not in (0, 0.0, "0", "0.0"):
        fields |= {"offload": "optimizer", "offload_ratio": fraction}
    reader.refuse("copies are taken as hidden where compute is long enough", "overlap-cpu-optimizer-d2h-h2d")
    reader.refuse(NO_EFFECT, "use-torch-optimizer-for-cpu-offload")
    backend = str(reader.take("attention-backend", default="auto")).removeprefix("AttnBackend.")
    local = reader.take("transformer-impl") == "local"
    if reader.on("use-flash-attn") or backend == "flash":
        fields["attention"] = "flash"
    elif backend == "fused":
        fields["attention"] = "fused"
    elif backend in ("unfused", "local") or local:
        fields["attention"] = "math"
    if is_on(reader.take("cuda-graph-impl", "enable-cuda-graph", "external-cuda-graph")):
        reader.not_taken["cuda graphs"] = "cover parts of the step; for the whole step give --execution cuda_graphs"
    run: dict[str, Any] = {}
    for field, name in (("steps", "train-iters"), ("samples", "train-samples")):
        if (value := reader.take(name)) is not None and not run:
            run[field] = COUNT(name, value)
    if "save" in reader.left and (every := reader.number("save-interval")) is not None:
        run["checkpoint_every_steps"] = every
    if run:
        fields["run"] = run
    reader.refuse("the batch after the ramp is taken", "rampup-batch-size")
    others = "an overlap or fusion that is not modelled by itself"
    reader.refuse(others, *(name for name in tuple(reader.left) if name.startswith(_FUSIONS)))
