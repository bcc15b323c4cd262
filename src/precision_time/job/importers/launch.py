"""The launch of a job as its fields: directives of Slurm, and flags of srun, torchrun, deepspeed and accelerate launch.

Gives GPUs and nodes. What the launched program is told is read by the importer of that program.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from precision_time.checks import show, small_number
from precision_time.errors import JobError
from precision_time.field_types import COUNT
from precision_time.job.importers.accelerate import from_accelerate
from precision_time.job.importers.imported import Imported
from precision_time.job.importers.reader import NO_EFFECT, Reader, not_understood

SBATCH, LAUNCH = "sbatch script", "launch command"

_GRES = re.compile(r"(?:^|,)gpu(?::([A-Za-z][\w.-]*))?(?::(\d{1,7}))?(?=,|\(|$)")
_SLURM_NO_EFFECT = (
    "job-name", "partition", "account", "output", "error", "nodelist", "exclude", "qos", "cpus-per-task", "mem",
    "mem-per-cpu", "mem-per-gpu", "cpus-per-gpu", "exclusive", "mail-type", "mail-user", "array", "dependency",
    "requeue", "no-requeue", "open-mode", "signal", "chdir", "export", "wait-all-nodes", "reservation", "comment",
    "gpu-bind", "hint", "distribution", "licenses", "begin", "container", "segment", "tasks-per-node", "propagate",
)  # fmt: skip
TORCHRUN = frozenset(
    """
    nproc-per-node nnodes node-rank master-addr master-port rdzv-backend rdzv-endpoint rdzv-id rdzv-conf max-restarts
    monitor-interval tee standalone log-dir redirects start-method local-addr role
    """.split()
)
DEEPSPEED = frozenset(
    "num-gpus num-nodes hostfile include exclude no-ssh no-local-rank enable-each-rank-log launcher".split()
)
SRUN = frozenset(
    """
    nodes ntasks ntasks-per-node gpus gpus-per-node gpus-per-task gres cpus-per-task cpu-bind gpu-bind kill-on-bad-exit
    wait container-image container-mounts container-workdir container-name no-container-mount-home mpi jobid export
    label unbuffered output error time
    """.split()
)
ACCELERATE = frozenset(
    """
    num-processes num-machines machine-rank main-process-ip main-process-port multi-gpu use-fsdp use-deepspeed
    use-megatron-lm mixed-precision dynamo-backend dynamo-mode config-file zero-stage offload-optimizer-device
    offload-param-device deepspeed-config-file deepspeed-multinode-launcher deepspeed-hostfile zero3-init-flag
    zero3-save-16bit-model gpu-ids same-network rdzv-backend num-cpu-threads-per-process main-training-function
    """.split()
)


def from_sbatch(options: Mapping[str, str]) -> Imported:
    """GPUs and nodes of directives. Raises JobError for a count that is not a whole number."""
    reader = Reader({f"#SBATCH --{name}": value for name, value in options.items()})
    fields = _allocation(reader, "#SBATCH --")
    return Imported(SBATCH, fields, None, 1, _rest(reader, "#SBATCH --"), reader.taken, undecided=reader.undecided)


def _allocation(reader: Reader, prefix: str) -> dict[str, Any]:
    """`gpus` and `nodes` of Slurm's options."""
    fields: dict[str, Any] = {}
    text = reader.text(f"{prefix}nodes")
    nodes: int | None = None
    if text and small_number(text) is None:
        reader.undecided["gpus"] = f"{prefix}nodes {show(text)} is no single number of nodes"
    elif text:
        nodes = COUNT(f"{prefix}nodes", text)
    tasks = reader.number(f"{prefix}ntasks")
    per_node_tasks = reader.number(f"{prefix}ntasks-per-node")
    total = _count(reader, f"{prefix}gpus", r"(?:([A-Za-z][\w.-]*):)?(\d{1,7})")
    each = _count(reader, f"{prefix}gpus-per-node", r"(?:([A-Za-z][\w.-]*):)?(\d{1,7})")
    task = _count(reader, f"{prefix}gpus-per-task", r"(?:([A-Za-z][\w.-]*):)?(\d{1,7})")
    gres = reader.take(f"{prefix}gres")
    if gres is not None and (match := _GRES.search(str(gres))) is not None:
        each = each or int(match[2] or 1)
        _named(reader, f"{prefix}gres", match[1])
    if task is not None:
        total = total or task * (tasks or (per_node_tasks or 1) * (nodes or 1))
    if each is not None:
        total = each * (nodes or 1)
    if total is not None and "gpus" not in reader.undecided:
        fields["gpus"] = total
    if nodes is not None and nodes > 1:
        fields["nodes"] = nodes
    return fields


def _count(reader: Reader, name: str, pattern: str) -> int | None:
    value = reader.take(name)
    if value is None:
        return None
    match = re.fullmatch(pattern, str(value))
    if match is None:
        raise JobError(f"{name} is {show(value)}; give a whole number of GPUs")
    _named(reader, name, match[1])
    return int(match[2])


def _named(reader: Reader, name: str, gpu: str | None) -> None:
    if gpu:
        reader.not_taken[f"{name} {gpu}"] = "names a kind of GPU, not its memory and form; give --gpu"


def _rest(reader: Reader, prefix: str) -> dict[str, str]:
    limit = reader.take(f"{prefix}time")
    if limit is not None:
        reader.not_taken[f"{prefix}time"] = (
            f"the limit {show(limit)} does not change the time of a step; `precision-time slurm` checks it"
        )
    names = (prefix + each for each in _SLURM_NO_EFFECT)
    constraint = reader.where(lambda name: name == f"{prefix}constraint")
    reader.refuse("may choose the kind of GPU; give --gpu", *constraint)
    return reader.finish(names=frozenset(names))


def split_flags(flags: Mapping[str, Any], text: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """The flags of the launcher, and those of the program that it starts."""
    accelerated = re.search(r"\baccelerate\s+launch\b", text) is not None
    known: set[str] = set(TORCHRUN)
    if accelerated:
        known |= ACCELERATE
    if re.search(r"(?:^|[\s/])deepspeed\s", text):
        known |= DEEPSPEED
    if re.search(r"(?:^|\s)srun\s", text):
        known |= SRUN
    ours = {
        name: value
        for name, value in flags.items()
        if name in known or (accelerated and name.startswith(("fsdp-", "dynamo-", "megatron-lm-", "fp8-")))
    }
    return ours, {name: value for name, value in flags.items() if name not in ours}


def from_launcher(flags: Mapping[str, Any], text: str) -> list[Imported]:
    """What the flags of launchers say: srun's of an allocation, the others' of processes."""
    result: list[Imported] = []
    rest = dict(flags)
    if re.search(r"\baccelerate\s+launch\b", text):
        chosen = {
            n: rest.pop(n) for n in tuple(rest) if n in ACCELERATE or n.startswith(("fsdp", "dynamo", "mega", "fp8"))
        }
        if chosen:
            result.append(_accelerate(chosen))
    reader = Reader({f"--{name}": value for name, value in rest.items()}, switches=True)
    fields: dict[str, Any] = {}
    for per, count in (("--nproc-per-node", "--nnodes"), ("--num-gpus", "--num-nodes")):
        each, nodes = reader.take(per), reader.take(count)
        if each is None:
            if nodes is not None:
                reader.not_taken[count] = f"needs {per[2:]}, the GPUs of a node; give --gpus"
            continue
        if small_number(str(each)) is None:
            reader.not_taken[per] = f"{show(each)} takes all GPUs of a node; give --gpus"
            continue
        number = COUNT(per[2:], each)
        if nodes is not None and small_number(str(nodes)) is None:
            reader.undecided["gpus"] = f"{count[2:]} {show(nodes)} is not set in the text"
            continue
        many = COUNT(count[2:], nodes or 1)
        fields["gpus"] = number * many
        if many > 1:
            fields["nodes"] = many
    if not fields:
        fields = _allocation(reader, "--")
    else:
        reader.refuse("the launcher of the processes decides", *reader.where(lambda name: name[2:] in SRUN))
    for name in tuple(reader.left):
        reader.refuse(NO_EFFECT if name[2:] in TORCHRUN | DEEPSPEED | SRUN else not_understood(name), name)
    if reader.given:
        result.append(Imported(LAUNCH, fields, None, 1, reader.not_taken, reader.taken, undecided=reader.undecided))
    return result


def _accelerate(flags: Mapping[str, Any]) -> Imported:
    """Flags of `accelerate launch` as the config that they replace."""
    plain = {name.replace("-", "_"): value for name, value in flags.items()}
    config: dict[str, Any] = {}
    for flag, kind in (("use_fsdp", "FSDP"), ("use_deepspeed", "DEEPSPEED"), ("use_megatron_lm", "MEGATRON_LM"),
                       ("multi_gpu", "MULTI_GPU")):  # fmt: skip
        if plain.pop(flag, None):
            config.setdefault("distributed_type", kind)
    deep = ("zero", "offload_", "deepspeed_")
    for name, value in plain.items():
        section = next((s for s in ("fsdp", "megatron_lm", "dynamo", "fp8") if name.startswith(f"{s}_")), None)
        section = "deepspeed" if name.startswith(deep) else section
        if section is None:
            config[name] = value
        else:
            config.setdefault(f"{section}_config", {})[name] = value
    return from_accelerate(config)


def variables(options: Mapping[str, str], allocation: Mapping[str, Any]) -> dict[str, str]:
    """Variables that Slurm sets in the job, as far as the directives decide them."""
    nodes = options.get("nodes", "1")
    known = {"SLURM_NNODES": nodes, "SLURM_JOB_NUM_NODES": nodes}
    if "gpus" in allocation and (count := small_number(nodes)):
        known["SLURM_GPUS_ON_NODE"] = known["SLURM_GPUS_PER_NODE"] = str(int(allocation["gpus"]) // count)
    for name, variable in (("ntasks", "SLURM_NTASKS"), ("ntasks-per-node", "SLURM_NTASKS_PER_NODE")):
        if name in options:
            known[variable] = options[name]
    if "ntasks-per-node" in options and (count := small_number(nodes)) and "ntasks" not in options:
        known["SLURM_NTASKS"] = str(count * (small_number(options["ntasks-per-node"]) or 1))
    return known
