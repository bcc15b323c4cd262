"""The fullest moment of a pipeline stage, by the number of micro-batches in flight."""

from __future__ import annotations

from dataclasses import dataclass

from precision_time.estimate.memory import ACTIVATIONS


@dataclass(frozen=True, slots=True)
class Alone:
    """One micro-batch in a chunk: bytes it keeps, and its fullest moment without other micro-batches."""

    keeps: int
    fullest: dict[str, float]


@dataclass(frozen=True, slots=True)
class StageMoments:
    """Bytes of a stage, for any number of micro-batches in flight: lasting, at the update, and of each chunk's pass."""

    lasting: dict[str, float]
    update: dict[str, float]
    chunks: tuple[Alone, ...]

    def fullest(self, alive: int, group: int) -> dict[str, float]:
        """The fullest moment with `alive` activations: the update, or a chunk's pass plus what the others keep."""
        count = [0] * len(self.chunks)
        for k in range(0, alive, group):  # groups of pp micro-batches go through a chunk in turn
            count[k // group % len(count)] += min(group, alive - k)
        waiting = sum(n * chunk.keeps for n, chunk in zip(count, self.chunks, strict=True))
        moments = [self.update]
        for n, chunk in zip(count, self.chunks, strict=True):
            if n:
                moments.append({**chunk.fullest, ACTIVATIONS: chunk.fullest[ACTIVATIONS] + waiting - chunk.keeps})
        return max(moments, key=lambda rows: sum(rows.values()))
