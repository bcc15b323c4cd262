"""Parsing the field `layout` of a job: a name, `tp=8,pp=4` text or a mapping.

Degrees may have the names of Megatron (tensor_model_parallel_size ...), DeepSpeed or torchtitan
(data_parallel_shard_degree ...). dp may be left out: it follows from the number of GPUs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from precision_time.bounded_cache import bounded
from precision_time.checks import on_off, show
from precision_time.errors import JobError, nearest
from precision_time.field_types import DEGREE
from precision_time.job.layout import LAYOUT_FIELDS, Layout

_NODE = "node"
"""Placeholder for a shard of one node's GPUs, until the number of nodes is known."""

NAMES: dict[str, dict[str, Any]] = {
    "dp": {}, "ddp": {}, "no_shard": {},
    "fsdp": {"zero": 3}, "fsdp2": {"zero": 3}, "full_shard": {"zero": 3},
    "shard_grad_op": {"zero": 2},
    "hsdp": {"zero": 3, "shard": _NODE}, "hybrid_shard": {"zero": 3, "shard": _NODE},
    "hybrid_shard_zero2": {"zero": 2, "shard": _NODE},
    **{f"zero{dash}{stage}": {"zero": stage} for dash in ("", "_") for stage in range(4)},
}  # fmt: skip
"""Layouts by name. Those that shard may have a number: fsdp=8 and hsdp=8 both share one copy among 8 ranks."""

ALIASES: dict[str, str] = {
    # Megatron
    "data_parallel_size": "dp", "tensor_model_parallel_size": "tp", "pipeline_model_parallel_size": "pp",
    "context_parallel_size": "cp", "expert_model_parallel_size": "ep", "expert_tensor_parallel_size": "etp",
    "virtual_pipeline_model_parallel_size": "vpp", "num_virtual_stages_per_pipeline_rank": "vpp",
    "sequence_parallel": "sp", "cp_comm_type": "cp_comm", "tp_comm_overlap": "overlap_tp",
    "moe_expert_capacity_factor": "capacity_factor",
    # DeepSpeed
    "stage": "zero", "zero_stage": "zero", "mics_shard_size": "shard", "tensor_parallel_size": "tp",
    "pipeline_parallel_size": "pp", "expert_parallel_size": "ep",
    # torchtitan
    "tensor_parallel_degree": "tp", "pipeline_parallel_degree": "pp", "context_parallel_degree": "cp",
    "expert_parallel_degree": "ep", "expert_tensor_parallel_degree": "etp",
    "pipeline_parallel_schedule": "schedule",
    "enable_async_tensor_parallel": "overlap_tp",
}  # fmt: skip
"""Name of a field in another program -> its name here."""

_DISTRIBUTED, _INSTANCES = "use_distributed_optimizer", "num_distributed_optimizer_instances"
_STRATEGY, _CHUNK = "data_parallel_sharding_strategy", "num_layers_per_virtual_pipeline_stage"
_REPLICATE, _SHARD = "data_parallel_replicate_degree", "data_parallel_shard_degree"
_DERIVED = (_DISTRIBUTED, _INSTANCES, _STRATEGY, _CHUNK, _REPLICATE, _SHARD, "lora")
"""Settings of other programs that decide a field in combination with others."""

_STRATEGIES = {"no_shard": 0, "optim": 1, "optim_grads": 2, "optim_grads_params": 3}
_BARE = (
    "sp", "overlap_grad_reduce", "overlap_param_gather", "overlap_tp", "overlap_ep", "use_distributed_optimizer",
)  # fmt: skip
"""Switches that may be given without a value."""


def parse_layout(value: Any, gpus: int, nodes: int | None = None) -> Layout:
    """The layout that `value` (a name, text, a mapping or a Layout) means on `gpus`; `nodes` settles a bare hsdp.

    Raises JobError with the nearest names, or with the whole product of degrees where it is not `gpus`.
    """
    if isinstance(value, Layout):
        _check_product(value.tp, value.pp, value.cp, value.dp, gpus)
        return value
    if isinstance(value, str):
        return _of_text(value, gpus, nodes)
    if isinstance(value, Mapping):
        return _settle(_collect(value.items()), gpus, nodes)
    raise _unknown(value)


@bounded()
def _of_text(text: str, gpus: int, nodes: int | None) -> Layout:
    pairs: list[tuple[Any, Any]] = []
    for part in text.replace(";", ",").split(","):
        key, equals, value = part.partition("=")
        name = _plain(key)
        if equals and not value.strip():
            raise JobError(f"layout {show(text)} has no value in {show(part.strip())}; write for example tp=8")
        if not equals and name not in NAMES and name not in _BARE:
            raise _unknown(text, name)
        pairs.append((key, value.strip() if equals else True))
    return _settle(_collect(pairs), gpus, nodes)


def _plain(key: Any) -> str:
    return key.strip().lower().lstrip("-_").replace("-", "_") if isinstance(key, str) else ""


def _unknown(value: Any, name: str = "") -> JobError:
    return JobError(
        f"layout {show(value)} is unknown; nearest: {nearest(name, (*NAMES, *LAYOUT_FIELDS))}; "
        f"set layout to dp, fsdp, hsdp=8, zero1 or degrees such as tp=8,pp=4,sp=1"
    )


def _collect(pairs: Iterable[tuple[Any, Any]]) -> dict[str, Any]:
    """The given values by name of the field, each once; those in `_DERIVED` keep their name."""
    fields: dict[str, Any] = {}

    def add(name: str, value: Any, spelling: Any) -> None:
        if name in fields and str(fields[name]) != str(value):
            raise JobError(f"layout gives {name} twice, once as {show(spelling)}; keep one of them")
        fields[name] = value

    for key, value in pairs:
        name = ALIASES.get(_plain(key), _plain(key))
        if value is None:
            continue
        numbered = value is not True and value is not False
        if name in ("dp", "ddp") and numbered:
            add("dp", value, key)
        elif name in NAMES:
            implied = NAMES[name] if value is not False else {}
            for field, each in (implied | {"shard": value} if numbered else implied).items():
                add(field, each, key)
        elif name in LAYOUT_FIELDS or name in _DERIVED:
            add(name, value, key)
        else:
            raise JobError(
                f"unknown field {show(key)} in layout; nearest: {nearest(_plain(key), (*LAYOUT_FIELDS, *NAMES))}; "
                f"correct or remove it"
            )
    return fields


def _settle(fields: dict[str, Any], gpus: int, nodes: int | None) -> Layout:
    """The layout of the collected fields: first the degrees, whose product is `gpus`, then the sharding of states."""
    if "lora" in fields:
        raise JobError(
            f"layout lora={fields['lora']} is not a degree; leave it out of the layout and set lora to {fields['lora']}"
        )
    if _CHUNK in fields:
        raise JobError(
            f"layout {_CHUNK}={fields[_CHUNK]} needs the model's layers; "
            f"give vpp instead, layers / (pp x {fields[_CHUNK]})"
        )
    derived = {name: fields.pop(name) for name in _DERIVED if name in fields}
    tp, pp, cp = (DEGREE(f"layout.{name}", fields.get(name, 1)) for name in ("tp", "pp", "cp"))
    replicas = DEGREE(f"layout.{_REPLICATE}", derived.get(_REPLICATE, 1))
    shards = derived.get(_SHARD, -1)
    if "dp" not in fields and str(shards).strip() != "-1":
        fields["dp"] = replicas * DEGREE(f"layout.{_SHARD}", shards)
    if "dp" in fields:
        fields["dp"] = DEGREE("layout.dp", fields["dp"])
    dp = fields["dp"] = _check_product(tp, pp, cp, fields.get("dp"), gpus)
    if derived.get(_DISTRIBUTED) is not None and on_off(f"layout.{_DISTRIBUTED}", derived[_DISTRIBUTED]):
        fields.setdefault("zero", 1)
    if _STRATEGY in derived:
        fields.setdefault("zero", _strategy(derived[_STRATEGY]))
    if _REPLICATE in derived or _SHARD in derived:
        _replicate(fields, replicas, dp, cp)
    if _INSTANCES in derived and (instances := DEGREE(f"layout.{_INSTANCES}", derived[_INSTANCES])) > 1:
        if dp * cp % instances:
            raise JobError(f"layout {_INSTANCES}={instances} does not divide dp={dp} x cp={cp} = {dp * cp}; lower it")
        fields.setdefault("shard", dp * cp // instances)
    if fields.get("shard") == _NODE:
        fields["shard"] = _node_shard(gpus, nodes, tp, dp * cp)
    return Layout(**fields)


def _check_product(tp: int, pp: int, cp: int, dp: int | None, gpus: int) -> int:
    """dp, derived from `gpus` where it is None. Raises JobError with the whole product where it is not `gpus`."""
    model = tp * pp * cp
    if dp is None:
        if gpus % model:
            raise JobError(
                f"layout tp={tp} x pp={pp} x cp={cp} = {model} does not divide gpus {gpus}; "
                f"set gpus to a multiple, for example {-(-gpus // model) * model}"
            )
        return gpus // model
    if model * dp != gpus:
        fixes = [f"dp to {gpus // model}"] if gpus % model == 0 else []
        raise JobError(
            f"layout tp={tp} x pp={pp} x cp={cp} x dp={dp} = {model * dp} does not make up gpus {gpus}; "
            f"set {' or '.join([*fixes, f'gpus to {model * dp}'])}"
        )
    return dp


def _strategy(value: Any) -> int:
    name = _plain(value)
    if name not in _STRATEGIES:
        raise JobError(
            f"layout {_STRATEGY} {show(value)} is unknown; nearest: {nearest(name, _STRATEGIES)}; "
            f"set it to one of {', '.join(_STRATEGIES)}"
        )
    return _STRATEGIES[name]


def _replicate(fields: dict[str, Any], replicas: int, dp: int, cp: int) -> None:
    """Sets zero and shard from torchtitan's two degrees: copies of the weights, and ranks (dp x cp) of each copy."""
    if dp % replicas:
        raise JobError(f"layout {_REPLICATE}={replicas} does not divide dp={dp}; set it to 1 or to a divisor of {dp}")
    shared = dp // replicas * cp
    if shared > 1:
        fields.setdefault("zero", 3)
        if replicas > 1:
            fields.setdefault("shard", shared)


def _node_shard(gpus: int, nodes: int | None, tp: int, ranks: int) -> int | None:
    """Data-parallel ranks on one node, where tensor-parallel ranks are neighbours; None where that is all of them."""
    if nodes is None:
        raise JobError("layout hsdp needs the number of GPUs that share a copy; write hsdp=8, or give nodes")
    shard = max(1, gpus // nodes // tp)
    return shard if shard < ranks else None
