"""Seconds that a pipeline of stages takes for the micro-batches of a step, given the seconds of every stage.

| schedule      | order on stage s of p, m micro-batches, v chunks per stage                   | holds |
|---------------|------------------------------------------------------------------------------|-------|
| `gpipe`       | all forwards, then all backwards (arXiv:1811.06965)                          | m |
| `1f1b`        | p - s - 1 forwards, then a forward and a backward in turn (arXiv:2006.09503) | p - s |
| `interleaved` | w = 2(p - s - 1) + (v - 1)p forwards of chunks, then in turn (Megatron-LM,   | w + 1 |
|               | arXiv:2104.04473)                                                            |       |
| `zero-bubble` | 1f1b, but the weight gradient of a micro-batch waits for s more backwards    | p |
|               | (ZB-H1, arXiv:2401.10241)                                                    |       |

A stage *holds* at most this many (micro-batch, chunk) activations at once. A zero-bubble stage keeps a micro-batch
until its weight gradient is computed, so every stage holds as many as the first stage of 1f1b: the peak over all stages
is that of 1f1b.

A send delays the receiver. With `blocking_send` it also blocks both ends: the exchange starts when both neighbours are
ready and lasts `send_s`; a forward and a backward that cross on a link are exchanged at once. That is Megatron's plain
1F1B (`send_forward_recv_backward`), and GPipe written the same way. One stage sends nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal, NamedTuple

import numpy as np

from precision_time.bounded_cache import bounded
from precision_time.errors import JobError, nearest
from precision_time.timeline.pipeline_grid import (
    Array,
    Grid,
    Index,
    PairCells,
    RingCells,
    pair_cells,
    pair_grid,
    pair_offset,
    pair_rows,
    ring_cells,
    ring_grid,
    ring_rows,
)
from precision_time.timeline.pipeline_play import Played, play, play_all, play_whole

SCHEDULES = ("gpipe", "1f1b", "interleaved", "zero-bubble")

MOST_OPERATIONS, MOST_ROWS = 5_000_000, 200_000
"""Most cells and rows of a simulated grid: about two seconds and 300 MB."""

Kind = Literal["forward", "backward", "weight"]


@dataclass(frozen=True, slots=True, eq=False)
class StageTimes:
    """Seconds of every virtual chunk on every stage: arrays (stages, chunks). Chunk c of stage s is part c*stages + s.

    `backward_s` is the whole backward pass; `weight_s` is the part of it that only computes weight gradients.
    """

    forward_s: Array
    backward_s: Array
    weight_s: Array | None = None

    def __post_init__(self) -> None:
        for name in ("forward_s", "backward_s", "weight_s"):
            given = getattr(self, name)
            if given is None:
                continue
            seconds = np.asarray(given, dtype=np.float64)
            if seconds.ndim != 2 or not seconds.size:
                raise JobError(f"{name} has shape {seconds.shape}; give an array (stages, chunks)")
            if not np.isfinite(seconds).all() or (seconds < 0).any():
                raise JobError(f"{name} holds seconds that are negative or not finite; give seconds of each chunk")
            object.__setattr__(self, name, seconds)
        shapes = {s.shape for s in (self.forward_s, self.backward_s, self.weight_s) if s is not None}
        if len(shapes) > 1:
            raise JobError(f"stage times differ in shape, {sorted(shapes)}; give each as (stages, chunks)")
        if self.weight_s is not None and (self.weight_s > self.backward_s).any():
            raise JobError("weight_s exceeds backward_s, of which it is a part; give backward_s of the whole chunk")

    @property
    def stages(self) -> int:
        return int(self.forward_s.shape[0])

    @property
    def chunks(self) -> int:
        return int(self.forward_s.shape[1])


class Interval(NamedTuple):
    """One operation of a stage; in `zero-bubble`, "backward" is without the weight gradient."""

    start_s: float
    duration_s: float
    kind: Kind
    micro_batch: int
    chunk: int


@dataclass(frozen=True, eq=False)
class PipelineTimeline:
    """One step, from the start of its first forward to the end of its last backward. Arrays are (stages,).

    `stage_start_s`: start of the first forward; `stage_end_s`: end of the last backward, when gradients are complete.
    `bubble_s` is `step_s` minus `busy_s`. `exposed_send_s` is the part of it in which the next input is being sent
    (with blocking sends: in sends and receives, without the wait for the neighbour).
    """

    schedule: str
    times: StageTimes
    send_s: float
    micro_batches: int
    blocking_send: bool
    step_s: float
    stage_start_s: Array
    stage_end_s: Array
    busy_s: Array
    exposed_send_s: Array
    in_flight: Index

    @property
    def bubble_s(self) -> Array:
        return np.maximum(self.step_s - self.busy_s, 0.0)

    def intervals(self, stage: int, most: int | None = None) -> Iterator[Interval]:
        """The operations of a stage in order; `most`: those of so many first micro-batches. The first call simulates
        all micro-batches without skipping any.

        Raises `JobError` where these are more than are simulated.
        """
        times, micro_batches = self.times, self.micro_batches
        most = micro_batches if most is None else most
        if micro_batches > (largest := _most_simulated(self.schedule, times)):
            raise JobError(
                f"grad_accum makes {micro_batches:,} micro-batches, of which at most {largest:,} on {times.stages:,} "
                "stages are drawn; lower grad_accum or pp"
            )
        if self.schedule == "interleaved":
            yield from self._ring_intervals(stage, most)
            return
        forward_s, backward_s, weight_s = _parts(self.schedule, times)
        cells = self._pair_cells
        chosen = cells.forward[:, stage] | cells.backward[:, stage]
        if self.schedule != "zero-bubble":  # where the weights of one micro-batch follow the backward of another
            chosen &= cells.micro[:, stage] < most
        rows = np.flatnonzero(chosen)
        f, b, w = float(forward_s[stage]), float(backward_s[stage]), float(weight_s[stage])
        end = 0.0
        for start, forward, micro in zip(
            self._starts[rows, 0, stage].tolist(),
            cells.forward[rows, stage].tolist(),
            cells.micro[rows, stage].tolist(),
            strict=True,
        ):
            if micro < most:
                yield Interval(start, f if forward else b, "forward" if forward else "backward", micro, 0)
            end = start + (f if forward else b)
            if self.schedule == "zero-bubble" and not forward and micro >= stage:
                if micro - stage < most:
                    yield Interval(end, w, "weight", micro - stage, 0)
                end += w
        if self.schedule == "zero-bubble":
            for micro in range(max(micro_batches - stage, 0), min(micro_batches, most)):
                yield Interval(end, w, "weight", micro, 0)
                end += w

    def _ring_intervals(self, stage: int, most: int) -> Iterator[Interval]:
        cells = self._ring_cells
        rows, halves = np.nonzero(cells.real[:, :, stage] & (cells.micro[:, :, stage] < most))
        at = (rows, halves, stage)
        seconds = np.stack([self.times.forward_s[stage], self.times.backward_s[stage]])[halves, cells.chunk[at]]
        for start, duration, half, micro, chunk in zip(
            self._starts[at].tolist(),
            seconds.tolist(),
            halves.tolist(),
            cells.micro[at].tolist(),
            cells.chunk[at].tolist(),
            strict=True,
        ):
            yield Interval(start, duration, "backward" if half else "forward", micro, chunk)

    @cached_property
    def _pair_cells(self) -> PairCells:
        stages, micro_batches = self.times.stages, self.micro_batches
        offset = pair_offset(stages, micro_batches, self.schedule == "gpipe")
        return pair_cells(np.arange(pair_rows(micro_batches, offset)), stages, micro_batches, offset)

    @cached_property
    def _ring_cells(self) -> RingCells:
        shape = (self.times.stages, self.times.chunks, self.micro_batches)
        return ring_cells(np.arange(ring_rows(*shape)), *shape)

    @cached_property
    def _starts(self) -> Array:
        """Start of every operation, all simulated."""
        return play_all(_grid(self.schedule, self.times, self.send_s, self.micro_batches, self.blocking_send))


def pipeline(
    schedule: str, times: StageTimes, send_s: float, micro_batches: int, *, blocking_send: bool = False
) -> PipelineTimeline:
    """The step of a pipeline. `send_s`: seconds to send an activation or its gradient to the neighbour (or last to
    first).

    Raises `JobError` where the schedule, micro-batches and chunks do not fit.
    """
    _check(schedule, times, send_s, micro_batches, blocking_send)
    stages, chunks = times.stages, times.chunks
    send_s = float(send_s) if stages > 1 else 0.0
    stage = np.arange(stages)
    played = _played(schedule, times, send_s, micro_batches, blocking_send)
    _, backward_s, weight_s = _parts(schedule, times)
    end = played.last_backward_s + backward_s
    if schedule == "zero-bubble":
        end += weight_s * np.minimum(stage + 1, micro_batches)
    exposed_s = played.exposed_send_s
    if blocking_send:
        exposed_s = _exchanges(schedule, stages, micro_batches).astype(np.float64) * send_s
    return PipelineTimeline(
        schedule=schedule,
        times=times,
        send_s=send_s,
        micro_batches=micro_batches,
        blocking_send=blocking_send,
        step_s=float(end.max()),
        stage_start_s=played.first_forward_s,
        stage_end_s=end,
        busy_s=micro_batches * (times.forward_s + times.backward_s).sum(axis=1),
        exposed_send_s=exposed_s,
        in_flight=held_in_flight(schedule, stages, chunks, micro_batches),
    )


@dataclass(frozen=True, slots=True)
class _TimesKey:
    """Stage times, equal where all their seconds are."""

    seconds: tuple[bytes | int | None, ...]
    times: StageTimes = field(compare=False)

    @classmethod
    def of(cls, times: StageTimes) -> _TimesKey:
        weight = None if times.weight_s is None else times.weight_s.tobytes()
        return cls((times.chunks, times.forward_s.tobytes(), times.backward_s.tobytes(), weight), times)


def _played(schedule: str, times: StageTimes, send_s: float, micro_batches: int, blocking_send: bool) -> Played:
    """Simulates as few micro-batches as show the repeating pattern, and counts the others as repetitions of it.

    At most `MOST_OPERATIONS` are simulated; a pipeline that shows no pattern within them goes on at its last rate.
    """
    key = _TimesKey.of(times)
    group = times.stages if schedule == "interleaved" else 1
    few, most = _enough(schedule, times.stages), _most_simulated(schedule, times)
    while schedule != "gpipe" and 3 * few <= 2 * micro_batches and few <= most:
        played = _play(schedule, key, send_s, few, blocking_send)
        if played.period:
            periods, rest = divmod((micro_batches - few) // group, played.period)
            if rest:
                played = _play(schedule, key, send_s, few, blocking_send, rest)
            return played.longer(periods)
        few *= 2
    if micro_batches <= most:
        return _play(schedule, key, send_s, micro_batches, blocking_send, None)
    few = most // group * group
    less = few - max(few // 4 // group, 1) * group
    if less < times.stages:
        raise JobError(
            f"layout pp={times.stages} x vpp={times.chunks} with {micro_batches} micro-batches is a pipeline of more "
            f"than {MOST_OPERATIONS:,} operations, the most that are simulated; lower pp or vpp"
        )
    shorter, longer = (_play(schedule, key, send_s, n, blocking_send, None) for n in (less, few))
    return longer.at_last_rate(shorter, (micro_batches - few) / (few - less))


def _most_simulated(schedule: str, times: StageTimes) -> int:
    """Micro-batches of a pipeline whose simulation has `MOST_OPERATIONS` cells in at most `MOST_ROWS` rows."""
    stages, chunks = times.stages, times.chunks
    if schedule == "interleaved":
        return (min(MOST_OPERATIONS // (2 * stages), MOST_ROWS) - stages * (chunks + 1)) // chunks
    return (min(MOST_OPERATIONS // stages, MOST_ROWS) - 2 * stages) // (4 if schedule == "gpipe" else 2)


@bounded()
def _play(
    schedule: str, key: _TimesKey, send_s: float, micro_batches: int, blocking_send: bool, extra: int | None = 0
) -> Played:
    """Simulates with this many `extra` rounds (None: no rounds are skipped).

    Layouts that differ only in the number of replicas, and so of micro-batches, or in sharding, have the same stages
    and share the cached result.
    """
    grid = _grid(schedule, key.times, send_s, micro_batches, blocking_send)
    waited_s = 0.0 if blocking_send else send_s
    return play_whole(grid, waited_s) if extra is None else play(grid, waited_s, extra)


def _check(schedule: str, times: StageTimes, send_s: float, micro_batches: int, blocking_send: bool) -> None:
    if schedule not in SCHEDULES:
        raise JobError(f"pipeline schedule {schedule!r} is unknown; choose {nearest(schedule, SCHEDULES)}")
    if micro_batches < 1:
        raise JobError(f"a pipeline over {micro_batches} micro-batches does nothing; give 1 or more")
    if not (np.isfinite(send_s) and send_s >= 0):
        raise JobError(f"send_s is {send_s}; give the seconds of one send, 0 or more")
    if schedule == "interleaved":
        if times.chunks < 2:
            raise JobError("the interleaved schedule needs 2 or more chunks per stage (vpp); with 1, say 1f1b")
        if micro_batches % times.stages:
            # Megatron-LM checks the same; groups larger than the pipeline (its
            # microbatch_group_size_per_vp_stage) are not modelled.
            raise JobError(
                f"{micro_batches} micro-batches on {times.stages} interleaved stages; give a multiple of {times.stages}"
            )
    elif times.chunks > 1:
        raise JobError(f"{schedule} runs 1 chunk per stage, not {times.chunks}; say interleaved")
    if schedule == "zero-bubble" and times.weight_s is None:
        raise JobError("zero-bubble splits the backward; give weight_s, the part that only makes weight gradients")
    if blocking_send and schedule not in ("gpipe", "1f1b"):
        raise JobError(f"{schedule} overlaps its sends; give blocking_send=False, or say 1f1b or gpipe")


def _enough(schedule: str, stages: int) -> int:
    """Micro-batches within which most pipelines repeat: fill, drain, and enough rounds for the slowest stage, or for a
    round trip through all stages, to determine the period.
    """
    if schedule == "interleaved":
        return 5 * stages
    return 2 * stages + 2 * (1 << (stages - 1).bit_length()) + 2


def _parts(schedule: str, times: StageTimes) -> tuple[Array, Array, Array]:
    """Forward, backward and split-off weight gradient of the first chunk, as the schedule runs them."""
    forward_s, backward_s = times.forward_s[:, 0], times.backward_s[:, 0]
    if schedule == "zero-bubble" and times.weight_s is not None:
        return forward_s, backward_s - times.weight_s[:, 0], times.weight_s[:, 0]
    return forward_s, backward_s, np.zeros_like(forward_s)


def _grid(schedule: str, times: StageTimes, send_s: float, micro_batches: int, blocking_send: bool) -> Grid:
    if schedule == "interleaved":
        return ring_grid(times.forward_s, times.backward_s, send_s, micro_batches)
    forward_s, backward_s, weight_s = _parts(schedule, times)
    return pair_grid(
        forward_s,
        backward_s,
        send_s,
        micro_batches,
        all_forwards_first=schedule == "gpipe",
        blocking=blocking_send,
        delayed_weight_s=weight_s if schedule == "zero-bubble" else None,
    )


def _exchanges(schedule: str, stages: int, micro_batches: int) -> Index:
    """Exchanges of each stage with its neighbours. In 1F1B a forward and a backward cross, except in fill and drain."""
    alone = np.full(stages, micro_batches)
    if schedule == "1f1b":
        alone = np.minimum(alone, stages - 1 - np.arange(stages))
    right = micro_batches + alone
    right[-1] = 0
    left = np.concatenate([[0], right[:-1]])
    return np.asarray(left + right, dtype=np.int64)


def held_in_flight(schedule: str, stages: int, chunks: int, micro_batches: int) -> Index:
    """Largest number of activations that every stage holds: see the table above."""
    stage = np.arange(stages)
    if schedule == "gpipe":
        held = np.full(stages, micro_batches)
    elif schedule == "zero-bubble":
        held = np.full(stages, stages)
    elif schedule == "1f1b":
        held = stages - stage
    else:
        held = 2 * (stages - stage - 1) + (chunks - 1) * stages + 1
    return np.asarray(np.minimum(held, micro_batches * chunks), dtype=np.int64)
