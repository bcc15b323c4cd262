"""The parallel layout of a job: into how many parts the ranks split the batch, the model, the sequence and the states.

A `Layout` holds all degrees and is checked on construction; `layout_parsing` reads its spellings. The ranks of one
tp x pp x cp group work on the same samples, so a step has batch_size x grad_accum x dp samples.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import Any

from precision_time.errors import JobError
from precision_time.field_types import DEGREE, ON_OFF, apply_checks, choice, number, option, optional, whole

SCHEDULES = ("1f1b", "gpipe", "interleaved", "zero-bubble")
CP_COMMS = ("ring", "all-gather", "all-to-all")
_SCHEDULE_ALIASES = {
    "interleaved_1f1b": "interleaved", "interleaved1f1b": "interleaved",
    "zero_bubble": "zero-bubble", "zerobubble": "zero-bubble", "zb": "zero-bubble",
}  # fmt: skip
_CP_ALIASES = {
    "p2p": "ring", "all_gather": "all-gather", "allgather": "all-gather",
    "all_to_all": "all-to-all", "alltoall": "all-to-all", "a2a": "all-to-all", "ulysses": "all-to-all",
}  # fmt: skip
DISPATCHERS = ("all-to-all", "deepep")
_DISPATCHER_ALIASES = {
    "alltoall": "all-to-all", "all_to_all": "all-to-all", "a2a": "all-to-all", "hybridep": "deepep", "flex": "deepep",
}  # fmt: skip
MOST_CHUNKS = 10**4
"""Most model chunks of one pipeline rank; a model has no more layers."""
_SHORT = {0: "dp", 1: "zero1", 2: "zero2", 3: "fsdp"}

FSDP_FRAMEWORKS = frozenset({"pytorch", "llm-foundry", "torchtitan", "internevo"})
"""Frameworks whose sharded weights are FSDP's: the shard that is kept is the fp32 master."""


@dataclass(frozen=True, slots=True)
class Layout:
    """Parallel degrees (numbers of ranks) and how they communicate; dp x tp x pp x cp are all GPUs.

    dp, tp, pp, cp    data, tensor, pipeline and context parallelism
    ep, etp           expert and expert tensor parallelism. Experts are spread over the ranks of one pipeline stage, so
                      ep x etp divides tp x cp x dp. etp is tp unless given, as in Megatron; ep then divides dp x cp.
    vpp               model chunks on each pipeline rank; above 1 the schedule is interleaved
    sp                sequence parallelism between the tensor-parallel regions; off where tp is 1, as in Megatron
    zero              0: states replicated; 1: optimizer states sharded; 2: gradients too; 3: weights too (FSDP)
    shard             ranks that share one copy of what is sharded; None: all dp x cp; fewer: hybrid sharding (HSDP)
    schedule          1f1b, gpipe, interleaved or zero-bubble
    cp_comm           how keys and values reach the other ranks: ring, all-gather or all-to-all (Ulysses)
    overlap_grad_reduce   gradients are reduced during the backward pass. Default: true for layouts with dp alone and
                      from zero 2 on, as in PyTorch's DDP and FSDP; false for others, as in Megatron.
    overlap_param_gather  sharded weights are gathered during compute. Default: true from zero 2 on, as FSDP prefetches;
                      false for zero 1, where the distributed optimizer gathers after its update.
    dispatcher        how tokens reach experts: all-to-all sends one copy for each expert, deepep one for each node and
                      rank (DeepEP, HybridEP); default all-to-all
    overlap_ep        tokens travel to experts behind another micro-batch's compute; default off
    overlap_tp        tensor-parallel traffic is split and hidden behind matrix products; needs sp, default off
    expert_imbalance  tokens of the busiest expert-parallel rank over the mean
    capacity_factor   tokens that an expert takes at most, over its even share; the rest is dropped (see `expert_load`);
                      None: dropless

    Raises JobError for an invalid value or combination.
    """

    dp: int = option(1, DEGREE, "data-parallel replicas")
    tp: int = option(1, DEGREE, "tensor parallelism")
    pp: int = option(1, DEGREE, "pipeline parallelism")
    cp: int = option(1, DEGREE, "context parallelism")
    ep: int = option(1, DEGREE, "expert parallelism")
    etp: int = option(None, optional(DEGREE), "expert tensor parallelism (default: tp)")
    vpp: int = option(1, whole(1, MOST_CHUNKS, "chunks"), "model chunks on each pipeline rank")
    sp: bool = option(False, ON_OFF, "sequence parallelism")
    zero: int = option(0, whole(0, 3), "ZeRO stage")
    shard: int | None = option(None, optional(DEGREE), "ranks that share one copy of the sharded states")
    schedule: str = option("1f1b", choice(SCHEDULES, _SCHEDULE_ALIASES), "pipeline schedule")
    cp_comm: str = option("ring", choice(CP_COMMS, _CP_ALIASES), "how keys and values travel")
    overlap_grad_reduce: bool = option(None, optional(ON_OFF), "gradients are reduced behind the backward pass")
    overlap_param_gather: bool = option(None, optional(ON_OFF), "sharded weights are gathered behind compute")
    overlap_tp: bool = option(False, ON_OFF, "tensor-parallel traffic hides behind matrix products")
    dispatcher: str = option("all-to-all", choice(DISPATCHERS, _DISPATCHER_ALIASES), "how tokens reach experts")
    overlap_ep: bool = option(False, ON_OFF, "tokens travel to experts behind another micro-batch's compute")
    expert_imbalance: float = option(1.0, number(1, 1e6, "times the mean"), "busiest rank's tokens over the mean")
    capacity_factor: float | None = option(
        None, optional(number(1e-6, 1e6, "even shares")), "tokens an expert takes over its even share"
    )

    def __post_init__(self) -> None:
        apply_checks(self, "layout.")
        self._settle_tensor()
        self._settle_pipeline()
        self._settle_context()
        self._settle_experts()
        self._settle_shards()
        for name, value in self._usual().items():
            if getattr(self, name) is None:
                self._set(name, value)
        if self.overlap_param_gather and not self.zero:
            raise JobError("layout overlap_param_gather needs sharded states to gather; set zero to 1, 2 or 3")

    def _set(self, name: str, value: Any) -> None:
        object.__setattr__(self, name, value)

    def _settle_tensor(self) -> None:
        if self.tp == 1:  # as Megatron does, with a warning: there is nothing to split
            self._set("sp", False)
            self._set("overlap_tp", False)
        if self.overlap_tp and not self.sp:
            raise JobError(f"layout overlap_tp=1 with tp={self.tp} needs sequence parallelism; set sp to 1")

    def _settle_pipeline(self) -> None:
        if self.vpp > 1 and self.pp == 1:
            raise JobError(f"layout vpp={self.vpp} has no pipeline to interleave; set pp above 1 or vpp to 1")
        if self.pp == 1:
            self._set("schedule", "1f1b")  # without stages all schedules are one
        elif self.vpp > 1 and self.schedule == "1f1b":
            self._set("schedule", "interleaved")
        if self.schedule == "interleaved" and self.vpp == 1:
            raise JobError("layout schedule=interleaved has vpp=1; set vpp to the chunks of each rank, 2 or more")
        if self.schedule == "gpipe" and self.vpp > 1:
            raise JobError(f"layout schedule=gpipe has no chunks, but vpp={self.vpp}; set vpp to 1, or no schedule")

    def _settle_context(self) -> None:
        if self.cp == 1:
            self._set("cp_comm", "ring")  # nothing travels

    def _settle_experts(self) -> None:
        etp = self.tp if self.etp is None else self.etp
        self._set("etp", etp)
        ranks = self.tp * self.cp * self.dp
        if ranks % (self.ep * etp) == 0:
            return
        fixes = [f"ep to {math.gcd(self.ep, ranks // etp)}"] if ranks % etp == 0 else []
        if etp > 1 and ranks % self.ep == 0:
            fixes.append("etp to 1")
        raise JobError(
            f"layout ep={self.ep} x etp={etp} = {self.ep * etp} does not divide "
            f"tp={self.tp} x cp={self.cp} x dp={self.dp} = {ranks}; set {' or '.join(fixes) or f'etp to {self.tp}'}"
        )

    def _settle_shards(self) -> None:
        if self.shard is None:
            return
        ranks = self.data_ranks
        if ranks % self.shard:
            common = math.gcd(self.shard, ranks)
            raise JobError(
                f"layout shard={self.shard} does not divide dp={self.dp} x cp={self.cp} = {ranks}; "
                f"{f'set it to {common} or ' if common > 1 else ''}leave it out (all ranks share)"
            )
        if self.zero == 0:
            raise JobError(f"layout shard={self.shard} has nothing to share at zero=0; set zero to 1, 2 or 3")
        if self.shard == 1 < ranks:
            raise JobError("layout shard=1 shards nothing; set zero to 0, or shard to 2 or more")
        if self.shard == ranks:
            self._set("shard", None)

    def _usual(self) -> dict[str, Any]:
        """Defaults of the fields whose default depends on other fields."""
        data_alone = self.tp == self.pp == self.cp == self.ep == 1
        return {
            "etp": self.tp,
            "schedule": "interleaved" if self.vpp > 1 else "1f1b",
            "overlap_grad_reduce": data_alone or self.zero >= 2,
            "overlap_param_gather": self.zero >= 2,
        }

    @property
    def gpus(self) -> int:
        """All ranks: tp x pp x cp x dp."""
        return self.tp * self.pp * self.cp * self.dp

    @property
    def data_ranks(self) -> int:
        """Ranks that hold the same weights and sum their gradients: dp x cp."""
        return self.dp * self.cp

    @property
    def shard_ranks(self) -> int:
        """Ranks that share one copy of the sharded states; 1 where nothing is sharded."""
        return (self.shard or self.data_ranks) if self.zero else 1

    @property
    def expert_ranks(self) -> int:
        """Ranks that hold the same experts and sum their gradients: tp x cp x dp / (ep x etp)."""
        return self.tp * self.cp * self.dp // (self.ep * self.etp)

    @property
    def expert_load(self) -> float:
        """Tokens that the busiest expert-parallel rank computes, over the even share: `expert_imbalance`, but at most
        `capacity_factor`, since tokens over an expert's capacity are dropped (GShard, arXiv:2006.16668; Megatron-LM's
        --moe-expert-capacity-factor)."""
        return min(self.expert_imbalance, self.capacity_factor or self.expert_imbalance)

    @property
    def plain(self) -> bool:
        """Whether this is data parallelism as DDP runs it: every rank holds the whole model and all states."""
        return self.tp == self.pp == self.cp == self.ep == 1 and not self.zero and self.label == "dp"

    @property
    def label(self) -> str:
        """The shortest text that parses to this layout on as many GPUs: dp, fsdp, hsdp=8, tp=8,pp=4,dp=2,sp=1."""
        return self.text()

    def text(self, with_dp: bool = True) -> str:
        """The label. Without dp it fits any number of GPUs, and dp follows from that number."""
        departures = self._departures()
        only = {name for name, _ in departures} - {"zero", "shard"}
        if only:
            dp = [("dp", self.dp)] if with_dp else []
            head = [pair for pair in departures if pair[0] in ("tp", "pp")]
            tail = [pair for pair in departures if pair[0] not in ("tp", "pp")]
            return ",".join(f"{name}={_written(value)}" for name, value in (*head, *dp, *tail))
        if self.shard is None:
            return _SHORT[self.zero]
        return f"hsdp={self.shard}" if self.zero == 3 else f"{_SHORT[self.zero]},shard={self.shard}"

    def _departures(self) -> list[tuple[str, Any]]:
        """The fields but dp that differ from their default, in their order."""
        usual = self._usual()
        values = [(f, getattr(self, f.name), usual.get(f.name, f.default)) for f in dataclasses.fields(self)]
        return [(f.name, value) for f, value, default in values if f.name != "dp" and value != default]

    def check_sequence(self, length: int) -> None:
        """Raises JobError where a sequence of `length` tokens cannot be split over the ranks.

        Causal attention is balanced by giving each context-parallel rank two of 2 x cp chunks, one from either end;
        sequence parallelism splits what a rank holds over tp.
        """
        parts = (2 * self.cp if self.cp > 1 else 1) * (self.tp if self.sp else 1)
        if length % parts:
            cause = " and ".join([f"cp={self.cp}"] * (self.cp > 1) + [f"sp=1 with tp={self.tp}"] * self.sp)
            raise JobError(
                f"seq_len {length} is not a multiple of {parts}, as layout {cause} needs; "
                f"set seq_len to {max(1, round(length / parts)) * parts} or lower the degrees"
            )


def _written(value: Any) -> str:
    return str(int(value)) if isinstance(value, bool) else str(value)


LAYOUT_FIELDS = tuple(item.name for item in dataclasses.fields(Layout))
