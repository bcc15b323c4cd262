"""The division of a model's blocks over pipeline stages and their chunks."""

from __future__ import annotations

from collections.abc import Sequence

from precision_time.bounded_cache import bounded
from precision_time.capture.layers import AFTER, BEFORE, Unit
from precision_time.errors import JobError
from precision_time.layout.program import Chunk, UnitProgram
from precision_time.layout.sweeps import Held


def cut_into_parts(order: Sequence[int], units: Sequence[Unit], pp: int, vpp: int) -> list[tuple[tuple[int, ...], ...]]:
    """The units of every chunk of every stage.

    Blocks are divided evenly. Where they do not divide, the units before the first and after the last block count as
    one block each (Megatron-LM's account-for-embedding-in-pipeline-split and -loss-), else the first parts hold fewer.
    """
    parts = pp * vpp
    before = [i for i in order if units[i].name == BEFORE]
    after = [i for i in order if units[i].name == AFTER]
    blocks = [i for i in order if units[i].name not in (BEFORE, AFTER)]
    if len(blocks) < parts:
        raise JobError(
            f"layout pp={pp} x vpp={vpp} cuts the model into {parts} parts, but it has {len(blocks)} block"
            f"{'s' if len(blocks) > 1 else ''}; lower pp or vpp"
        )
    sizes = _shares(len(blocks), parts)
    cut: list[list[int]] = []
    start = 0
    for size in sizes:
        cut.append(blocks[start : start + size])
        start += size
    cut[0] = before + cut[0]
    cut[-1] = cut[-1] + after
    return [tuple(tuple(cut[c * pp + s]) for c in range(vpp)) for s in range(pp)]


def _shares(blocks: int, parts: int) -> list[int]:
    if parts == 1 or blocks % parts == 0:
        return [blocks // parts] * parts
    if parts > 1 and (blocks + 2) % parts == 0 and (blocks + 2) // parts > 1:
        each = (blocks + 2) // parts
        return [each - 1, *[each] * (parts - 2), each - 1]
    each, more = divmod(blocks, parts)
    # The last part holds the head, the first the embedding, so the longer parts are those before the last.
    sizes = [each] * parts
    for k in range(more):
        sizes[parts - 2 - k if parts - 2 - k >= 0 else parts - 1] += 1
    return sizes


@bounded()
def chunks_of(
    units: tuple[UnitProgram, ...],
    parts: tuple[tuple[int, ...], ...],
    recompute: str,
    recompute_layers: int | None,
    method: str | None = None,
) -> tuple[tuple[Chunk, ...], Held]:
    """The chunks of a stage, and which units it holds how many times. `method`: see the job's field."""
    chunks = []
    held: dict[int, int] = {}
    blocks, every = 0, recompute_layers if method == "every" else None
    if method in ("every", "uniform"):
        recompute_layers = None
    for place, part in enumerate(parts):
        left = _recomputed_layers(recompute, recompute_layers, place, len(parts))
        runs: list[list[int]] = []
        for index in part:
            block = units[index].name not in (BEFORE, AFTER)
            blocks += block
            again = 1 if block and (left is None or left > 0) and blocks % (every or 1) == 0 else 0
            if again and left is not None:
                left -= 1
            if runs and runs[-1][0] == index:
                runs[-1][1] += 1
                runs[-1][2] += again
            else:
                runs.append([index, 1, again])
            held[index] = held.get(index, 0) + 1
        chunks.append(Chunk(tuple((u, n, r) for u, n, r in runs)))
    return tuple(chunks), tuple(held.items())


def _recomputed_layers(recompute: str, layers: int | None, chunk: int, chunks: int) -> int | None:
    """Blocks of a chunk that recompute (None: all): `layers` per stage, divided over its chunks as in Megatron-LM."""
    if recompute == "none":
        return 0
    if layers is None:
        return None
    each, more = divmod(layers, chunks)
    return each + (chunk < more)
