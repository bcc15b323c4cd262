"""All valid parallel layouts of a model on a number of GPUs, at a fixed global batch.

| degree | values |
|---|---|
| `tp` | powers of two that divide heads, feed-forward width and a node's GPUs; with sequence parallelism (`sp`) |
| `cp` | powers of two, while a rank keeps `LEAST_TOKENS` tokens of a sequence |
| `pp` | divisors of the number of blocks; at least as many micro-batches as stages |
| `vpp` | so that every model chunk has equally many blocks; micro-batches are a multiple of the stages (Megatron) |
| `ep` | powers of two that divide the experts and the ranks of a stage; experts are not cut by `tp` (`etp` 1) |
| ZeRO | `zero` 0 to 3 with data parallelism alone; 0, 1 and 3 with `tp`, `cp` or `ep`; 0 and 1 with `pp` |
| `shard` | `hsdp`: a node's GPUs share one copy, where there are several nodes |
| `recompute` | none, selective (models whose attention is unfused), full |
| `batch_size` | powers of two that divide a replica's share of the global batch; `grad_accum` follows |

`tp`, `cp` and `ep` need a transformer for text of the zoo; other models have the rest.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from precision_time.capture.captured_model import resolve
from precision_time.errors import JobError
from precision_time.job.choices import RECOMPUTES
from precision_time.job.job import Job
from precision_time.job.layout import Layout
from precision_time.zoo.parallel import SPLITS, indivisible, whole_config

LEAST_TOKENS = 2048
"""Of a sequence on one context-parallel rank: below it attention is too small to hide the exchange of keys."""
MOST_CHUNKS = 8
"""Model chunks of a pipeline rank that are tried; more add collectives and hardly shorten the bubble."""


@dataclass(frozen=True, slots=True)
class Parts:
    """Into what a model can be divided: blocks for stages, and whether tensors, sequences and experts can be cut."""

    blocks: int
    experts: int
    tokens: int
    tensor: tuple[int, ...]
    context: bool
    unfused: bool

    @classmethod
    def of(cls, job: Job, node_gpus: int) -> Parts:
        """The parts of a job's model; `node_gpus`: GPUs that share the fast fabric."""
        model = resolve(job)
        split = SPLITS.get(model.entry.builder)
        if split is None:
            return cls(1, 0, 0, (1,), False, False)
        config = whole_config(model.config, split)
        tensor = [tp for tp in _powers(node_gpus) if not node_gpus % tp and indivisible(config, split, tp, 1) is None]
        lengths = [int(model.sizes[name]) for name in split.lengths if isinstance(model.sizes.get(name), int)]
        return cls(
            blocks=int(config[split.depth]) * split.stacks,
            experts=int(config.get("experts") or 0),
            tokens=min(lengths, default=0),
            tensor=tuple(tensor),
            context=split.context and job.attention != "math",
            unfused=job.attention == "math",
        )


def arranged(
    job: Job, gpus: int, node_gpus: int, global_batch: int, *, all_layouts: bool = True, all_batches: bool = False
) -> Iterator[Job]:
    """The job on so many GPUs in every valid layout and micro-batch; with `all_layouts` false in its own layout only.

    `node_gpus`: GPUs that share the fast fabric. `all_batches`: at every micro-batch that divides a replica's share of
    the global batch, not at powers of two alone. A layout that the model refuses is left out.
    """
    if not all_layouts:
        try:
            own = job.replace(gpus=gpus)
        except JobError:
            return
        yield from _batches(own, global_batch, (job.recompute,), all_batches)
        return
    parts = Parts.of(job, node_gpus)
    levels = ("none", *(("selective",) if parts.unfused else ()), "full") if parts.blocks > 1 else ("none",)
    if job.recompute not in RECOMPUTES:  # parts by name
        levels = (*levels, job.recompute)
    for layout in layouts_of(parts, gpus, node_gpus):
        try:
            placed = job.replace(gpus=gpus, layout=layout.text())
        except JobError:
            continue
        yield from _batches(placed, global_batch, levels, all_batches)


def layouts_of(parts: Parts, gpus: int, node_gpus: int) -> Iterator[Layout]:
    """Every layout of the table above, the simplest first."""
    for pp in (d for d in range(1, min(parts.blocks, gpus) + 1) if not parts.blocks % d and not gpus % d):
        for tp in (t for t in parts.tensor if not gpus // pp % t):
            ranks = gpus // pp // tp
            for cp in (c for c in _powers(ranks) if c == 1 or (parts.context and parts.tokens // c >= LEAST_TOKENS)):
                if not ranks % cp:
                    yield from _with_experts(parts, Layout(dp=ranks // cp, tp=tp, pp=pp, cp=cp, sp=tp > 1), node_gpus)


def _with_experts(parts: Parts, base: Layout, node_gpus: int) -> Iterator[Layout]:
    stage = base.tp * base.cp * base.dp
    for ep in (e for e in _powers(parts.experts or 1) if e == 1 or (not parts.experts % e and not stage % e)):
        for vpp in _chunks(parts.blocks, base.pp):
            yield from _sharded(base, ep, vpp, node_gpus)


def _sharded(base: Layout, ep: int, vpp: int, node_gpus: int) -> Iterator[Layout]:
    # Experts that are spread over ranks are whole on them.
    changes: dict[str, Any] = {"ep": ep, "etp": 1 if ep > 1 else None, "vpp": vpp, "schedule": "1f1b"}
    cut = dataclasses.replace(base, **changes)
    alone = base.tp == base.cp == base.pp == ep == 1
    stages = (0,) if base.data_ranks == 1 else (0, 1, 2, 3) if alone else (0, 1, 3) if base.pp == 1 else (0, 1)
    for zero in stages:
        yield _at(cut, zero)
    if alone and base.dp > node_gpus > 1 and not base.dp % node_gpus:
        yield _at(cut, 3, node_gpus)


def _at(cut: Layout, zero: int, shard: int | None = None) -> Layout:
    """The layout at a stage of ZeRO, with the overlaps that are usual there."""
    usual: dict[str, Any] = {"overlap_grad_reduce": None, "overlap_param_gather": None}
    return dataclasses.replace(cut, zero=zero, shard=shard, **usual)


def _chunks(blocks: int, pp: int) -> list[int]:
    """Model chunks of a pipeline rank that hold equally many blocks."""
    if pp == 1:
        return [1]
    return [v for v in range(1, MOST_CHUNKS + 1) if not blocks % (pp * v)]


def _batches(job: Job, global_batch: int, recomputes: tuple[str, ...], every: bool) -> Iterator[Job]:
    """The job at every micro-batch that makes up the global batch."""
    layout = job.layout_spec
    share, rest = divmod(global_batch, layout.dp)
    if rest or not share:
        return
    for batch in (b for b in (_divisors(share) if every else _powers(share)) if not share % b):
        accum = share // batch
        if layout.pp > 1 and (accum < layout.pp or (layout.vpp > 1 and accum % layout.pp)):
            continue
        for recompute in recomputes:
            try:
                yield job.replace(batch_size=batch, grad_accum=accum, recompute=recompute)
            except JobError:
                continue


def _divisors(number: int) -> list[int]:
    small = [d for d in range(1, math.isqrt(number) + 1) if not number % d]
    return sorted({*small, *(number // d for d in small)})


def _powers(most: int) -> list[int]:
    """Powers of two up to `most`."""
    return [1 << n for n in range(max(most, 1).bit_length())]
