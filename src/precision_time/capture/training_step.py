"""From a job's words to one rank's step in units: the same model, with this rank's heads, width, vocabulary, tokens.

A tensor-parallel rank is traced as the model itself at its local shape (`zoo.parallel` says which words are divided), a
context-parallel one at its part of the sequence. What runs on a part of the sequence between the divided modules
(sequence parallelism) is traced at that length, too. Only a few blocks are traced; all others equal them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from operator import attrgetter
from typing import Any

from precision_time.bounded_cache import STRUCTURES, bounded
from precision_time.capture import symbolic
from precision_time.capture.adapters import with_adapters
from precision_time.capture.captured_model import attention_of, capture_model, resolve, settle_ema, usual_implementation
from precision_time.capture.composed_norms import composed_rms_norms
from precision_time.capture.fused_kernels import FUSED, MEASURES_TRAINING, attention_kernel, framework_kernels
from precision_time.capture.graph import OpGraph, Parameter, Skeleton
from precision_time.capture.kinds import Form
from precision_time.capture.layers import AFTER, BEFORE, LayeredGraph, Unit, layered
from precision_time.capture.limits import check_size
from precision_time.capture.regimes import compiled, dtype_renames, regime_of, transform
from precision_time.capture.stored_graph import stored_graph
from precision_time.capture.trace import trace_entry
from precision_time.capture.vocabulary_loss import LIGER, with_loss
from precision_time.errors import JobError
from precision_time.job.job import Job
from precision_time.job.layout import Layout
from precision_time.job.lora import Lora
from precision_time.job.precision import Precision
from precision_time.shipped import is_shipped
from precision_time.zoo.catalog import ENTRIES
from precision_time.zoo.parallel import DECODER, SPLITS, Split, indivisible, local_config, whole_config
from precision_time.zoo.shallow import Shallow
from precision_time.zoo.templates import TEMPLATES, Template, template_for


@dataclass(frozen=True, slots=True, eq=False)
class TrainingStep:
    """One micro-step of one rank, in units.

    layers       the rank's own operators
    sharded      the same calls on the rank's part of the sequence, where sequence parallelism is on
    split        which modules are divided; None for a model that is not
    parameters   of the whole model, over all ranks
    """

    model: str
    layers: LayeredGraph
    sharded: LayeredGraph | None
    split: Split | None
    parameters: int
    precision: Precision
    optimizer: str
    implementation: str | None
    clip_norm: float | None
    batch_size: int
    dataset: str | None
    family: str
    ema: str | None = None
    """How a moving average of the weights is updated, as `optimizer.AVERAGES` names it; None: there is none."""
    config: Mapping[str, Any] = field(default_factory=dict)
    sizes: Mapping[str, Any] = field(default_factory=dict)
    length_spread: float = 0.0
    """Half the range of batch lengths, as a share of the middle (see `lengths`): ranks wait for the longest."""

    @property
    def parameter_count(self) -> int:
        return self.parameters

    @property
    def graph(self) -> OpGraph:
        """The traced operators, of which a deep model has few layers (see `LayeredGraph`)."""
        return self.layers.graph


def training_step(job: Job, precision: Precision | None = None, device_type: str = "cuda") -> TrainingStep:
    """The units of a rank's step. Raises `JobError` where the model cannot be divided as the layout asks."""
    precision = precision or job.precision_spec
    if ".py" in job.model or ":" in job.model:  # of a file, which may change
        return _whole(job, job.layout_spec, precision, device_type)
    words = (
        *_words(job),
        tuple(job.model_config.items()),
        tuple(job.input.items()),
        *_degrees(job.layout_spec),
        precision,
        device_type,
    )
    return _step(_Asked(words, job, precision, device_type))


_words = attrgetter(
    "model",
    "batch_size",
    "attention_kernel",
    "traced_attention",
    "unfused_grouped_fp32",
    "composes_rms_norms",
    "execution",
    "framework",
    "memory_format",
    "optimizer",
    "optimizer_impl",
    "clip_norm",
    "ema",
    "loss_scale",
    "lora",
    "quantized",
    "logits_loss",
)
_OUTSIDE = frozenset({"dp", "zero", "shard", "schedule", "overlap_grad_reduce", "overlap_param_gather"})
_degrees = attrgetter(*(item.name for item in fields(Layout) if item.name not in _OUTSIDE))


@dataclass(frozen=True, slots=True)
class _Asked:
    """A job as far as a rank's step is concerned, whatever its ranks share and how many they are: jobs with the same
    `words` are equal."""

    words: tuple[Any, ...]
    job: Job = field(compare=False)
    precision: Precision = field(compare=False)
    device_type: str = field(compare=False)


@bounded(LayeredGraph)
def _step(asked: _Asked) -> TrainingStep:
    job, precision, device_type = asked.job, asked.precision, asked.device_type
    layout = job.layout_spec
    model = resolve(job)
    split = SPLITS.get(model.entry.builder)
    undivided = _undivided(model.entry.builder, layout)
    if split is None or (model.shipped and undivided):
        return _whole(job, layout, precision, device_type)
    config = whole_config(model.config, split)
    _check(job, split, config, layout, model.sizes)
    sizes = {k: v for k, v in model.sizes.items() if isinstance(v, int)}
    kernel = attention_of(job, config, precision)
    attention = kernel if kernel in ("math", "triton", "flash2") else "flash"
    etp = layout.etp or layout.tp

    def at(tp: int, ep: int, etp: int, parts: int) -> LayeredGraph:
        local = local_config(config, split, tp, ep, etp, parts)
        there = {**sizes, **{word: -(-sizes[word] // parts) for word in split.lengths if word in sizes}}
        return _layers(
            _Key(
                model.entry.name,
                model.entry.builder,
                tuple(sorted(local.items())),
                tuple(sorted(there.items())),
                precision,
                attention,
                job.execution,
                device_type,
                "pytorch" if undivided else job.framework,  # as `_whole` has it, so that depth alone changes nothing
                split.depth,
                job.lora,
                job.quantized,
                job.logits_loss,
                job.composes_rms_norms,
            )
        )

    layers = at(layout.tp, layout.ep, etp, layout.cp)
    sharded = at(layout.tp, layout.ep, etp, layout.cp * layout.tp) if layout.sp and layout.tp > 1 else None
    parameters = layers.parameter_count if layout.tp == layout.ep == 1 else at(1, 1, 1, layout.cp).parameter_count
    check_size(layers.graph, parameters)
    entry = ENTRIES[model.entry.name]
    clip = job.clip_norm if job.clip_norm is not None else entry.clip_norm
    return _kept(
        model=model.name,
        layers=layers,
        sharded=sharded,
        split=replace(split, own_tokens=layout.sp and layout.tp > 1 and etp == 1),
        parameters=parameters,
        precision=precision,
        optimizer=job.optimizer or entry.optimizer,
        implementation=job.optimizer_impl or usual_implementation(device_type),
        clip_norm=clip or None,
        ema=settle_ema(job, entry.ema),
        batch_size=sizes["batch_size"],
        length_spread=model.length_spread,
        dataset=entry.dataset or None,
        family=entry.family,
        config=tuple(config.items()),
        sizes=tuple(model.sizes.items()),
    )


def _undivided(builder: str, layout: Layout) -> bool:
    """Whether every rank runs whole layers on whole sequences of a model that no template stands for."""
    return layout.tp == layout.cp == layout.ep == 1 and all(t.builder != builder for t in TEMPLATES)


def _kept(**words: Any) -> TrainingStep:
    """Equal steps are one object, from which programs and what is derived from them are remembered."""
    return _same(tuple(words.items()))


@bounded(LayeredGraph)
def _same(words: tuple[tuple[str, Any], ...]) -> TrainingStep:
    given = dict(words)
    return TrainingStep(**{**given, "config": dict(given["config"]), "sizes": dict(given["sizes"])})


@bounded(OpGraph)
def _units(graph: OpGraph) -> LayeredGraph:
    return layered(graph)


def _whole(job: Job, layout: Layout, precision: Precision, device_type: str) -> TrainingStep:
    """Any other model: whole on every rank, cut into units where it repeats."""
    for name in ("tp", "cp", "ep"):
        if getattr(layout, name) > 1:
            raise JobError(
                f"layout {name}={getattr(layout, name)} needs a model whose parts are known, and {job.model} is not "
                f"one: use dp, fsdp, zero1..3 or pp, a transformer for text of the zoo (docs/layout.md lists them), or "
                "--import CONFIG.json for the shape of a Hugging Face decoder"
            )
    step = capture_model(job, precision, device_type, few_layers=True)
    if job.loss == LIGER:
        if not job.model.startswith("hf:"):
            raise JobError(
                f"loss {LIGER} is of decoders of the zoo and hf: models, and {job.model} is none; set loss to fp32"
            )
        step = replace(step, graph=with_loss(step.graph, LIGER))
    layers = _units(step.graph)
    check_size(step.graph, layers.parameter_count)
    return _kept(
        model=step.model,
        layers=layers,
        sharded=None,
        split=None,
        parameters=layers.parameter_count,
        precision=precision,
        optimizer=step.optimizer,
        implementation=step.implementation,
        clip_norm=step.clip_norm,
        ema=step.ema,
        batch_size=step.batch_size,
        dataset=step.dataset,
        family=step.family,
        config=(),
        sizes=tuple(step.sizes.items()),
        length_spread=step.length_spread,
    )


def _check(job: Job, split: Split, config: Mapping[str, Any], layout: Layout, sizes: Mapping[str, Any]) -> None:
    if wrong := indivisible(config, split, layout.tp, layout.ep):
        word, value = wrong
        degree, name = (layout.ep, "ep") if word == "experts" else (layout.tp, "tp")
        raise JobError(
            f"layout {name}={degree} does not divide {word}={value} of {job.model}; "
            f"set {name} to a divisor of {value}: {', '.join(str(d) for d in _divisors(value, 64))}"
        )
    if layout.ep > 1 and not config.get("experts"):
        raise JobError(f"layout ep={layout.ep} needs a model with experts, which {job.model} has not; set ep to 1")
    if layout.cp > 1 and not split.context:
        raise JobError(
            f"layout cp={layout.cp} splits one sequence that attends to itself, and {job.model} attends from one to "
            "another; set cp to 1"
        )
    layout.check_sequence(int(sizes["seq_len"]))  # of the model, where the job names none
    parts = layout.tp if layout.sp else 1
    for length in split.lengths:
        if int(sizes.get(length, parts)) % parts:
            raise JobError(
                f"input {length}={sizes[length]} cannot be shared out over tp={layout.tp} (sequence parallel); "
                f"set {length} to a multiple of {parts}"
            )
    if layout.cp > 1 and job.attention == "math":
        raise JobError(f"layout cp={layout.cp} needs fused attention; set attention to flash")
    if layout.cp > 1 and attention_of(job, config, job.precision_spec) == "math":
        raise JobError(
            f"layout cp={layout.cp} needs fused attention, and torch {job.torch} has none in {job.precision} for fewer "
            "heads of keys than of queries; set torch to 2.14 or precision to amp-bf16"
        )
    depth = int(config[split.depth]) * split.stacks
    if depth < layout.pp * layout.vpp:
        raise JobError(
            f"layout pp={layout.pp} x vpp={layout.vpp} cuts {job.model} into {layout.pp * layout.vpp} parts, but it "
            f"has {split.depth}={config[split.depth]}; lower pp or vpp"
        )


def _divisors(value: int, limit: int) -> list[int]:
    return [d for d in range(1, min(value, limit) + 1) if value % d == 0]


@dataclass(frozen=True, slots=True)
class _Key:
    """Everything that a rank's units depend on."""

    name: str
    builder: str
    config: tuple[tuple[str, Any], ...]
    sizes: tuple[tuple[str, int], ...]
    precision: Precision
    attention: str
    execution: str
    device_type: str
    framework: str
    depth: str
    lora: Lora | None
    quantized: str | None
    loss: str | None
    composed_norms: bool


@bounded(Skeleton, Parameter, Form, Unit)
def _layers(key: _Key) -> LayeredGraph:
    config, sizes = dict(key.config), dict(key.sizes)
    depth = int(config[key.depth])
    template = _template(key)
    if template is None:
        shallow = Shallow.of(config, key.depth)
        graph = _run_by(key, _traced(key, {**config, **shallow.changes}, sizes))
    else:
        shallow = Shallow.stored(config, key.depth)
        graph = _evaluated(key, template, config, sizes)
    shallow_layers = layered(composed_rms_norms(graph) if key.composed_norms else graph)
    blocks = [i for i in shallow_layers.order if shallow_layers.units[i].name not in (BEFORE, AFTER)]
    order: list[int] = []
    further = int(config.get("mtp_layers") or 0)  # after the last stack, each a block of its own
    for first in range(0, len(blocks) - further, shallow.few):
        stack = blocks[first : first + shallow.few]
        order += [stack[shallow.stands_for(i, depth)] for i in range(depth)]
    order += blocks[len(blocks) - further :]
    before = [i for i in shallow_layers.order if shallow_layers.units[i].name == BEFORE]
    after = [i for i in shallow_layers.order if shallow_layers.units[i].name == AFTER]
    return shallow_layers.with_order((*before, *order, *after))


def _run_by(key: _Key, graph: OpGraph) -> OpGraph:
    """A traced graph as the framework runs it in the key's precision."""
    if key.lora is not None:
        graph = with_adapters(graph, key.lora, key.quantized)
    if key.loss is not None and key.builder == DECODER:
        graph = with_loss(graph, key.loss)
    graph = attention_kernel(framework_kernels(graph, key.framework), key.attention)
    return transform(graph, key.precision, key.execution, key.device_type)


def _template(key: _Key) -> Template | None:
    """The stored step of this model, if any; a CPU's autocast casts other operators than the stored ones."""
    if key.device_type != "cuda" and key.precision.autocast:
        return None
    return _shipped_template(key.builder, key.config, _attention(key))


@bounded(budget=STRUCTURES)
def _shipped_template(builder: str, config: tuple[tuple[str, Any], ...], attention: str) -> Template | None:
    template = template_for(builder, dict(config), attention)
    return template if template is not None and is_shipped(_name(template)) else None


def _evaluated(key: _Key, template: Template, config: Mapping[str, Any], sizes: Mapping[str, int]) -> OpGraph:
    """The stored step in the key's precision, framework and execution."""
    # What changes it before the precision does.
    early = key.framework in FUSED or key.framework in MEASURES_TRAINING or key.lora is not None
    early = early or key.loss is not None
    there = template.sizes_of(config, sizes)
    graph = stored_graph(_name(template), _attention(key), key.precision, there, as_traced=early)
    graph = replace(template.with_values(graph, config), name=key.name)
    if not early:
        return compiled(attention_kernel(graph, key.attention), key.execution)
    return _run_by(key, graph)


def _traced(key: _Key, config: Mapping[str, Any], sizes: Mapping[str, int]) -> OpGraph:
    graph = trace_entry(ENTRIES[key.name], config, sizes, regime_of(key.precision), _attention(key), key.device_type)
    return symbolic.rename_dtypes(graph, dtype_renames(key.precision))


def _attention(key: _Key) -> str:
    """The traced path: other fused kernels replace the one traced as "flash"."""
    return "math" if key.attention == "math" else "flash"


def _name(template: Template) -> str:
    return f"zoo/data/template-{template.name}.zip"
