"""What ranks cost each other besides communication: the step waits for the slowest of them, and they share a host.

Ranks of plain data parallelism run the same program, yet never equally long: clocks, memory, interrupts differ, and
so do batches of clips or texts padded to their longest. Gradients are reduced when the last rank has its own.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache
from statistics import NormalDist

from precision_time.timing.parameters import read_data


@dataclass(frozen=True, slots=True)
class RankCosts:
    """`jitter`: standard deviation of a rank's time from one micro-step to the next, as a share of it.
    `host_contention`: what every further rank on a node adds to each host cost, as a share of it."""

    jitter: float
    host_contention: float

    def wait_share(self, ranks: int, length_spread: float) -> float:
        """How much longer than the mean rank the slowest takes, as a share of its time between two reductions.

        Jitter is taken as normal, batch lengths as uniform in 1 - `length_spread` .. 1 + `length_spread`.
        """
        if ranks < 2:
            return 0.0
        return self.jitter * largest_of(ranks) + length_spread * (ranks - 1) / (ranks + 1)

    def host_factor(self, ranks_on_node: int) -> float:
        """How much slower a rank's host runs beside the others."""
        return 1.0 + self.host_contention * (ranks_on_node - 1)


@cache
def largest_of(count: int) -> float:
    """Expected largest of `count` standard normal numbers (Blom 1958; 4 % too large for two, within 1 % from five)."""
    return NormalDist().inv_cdf((count - 0.375) / (count + 0.25)) if count > 1 else 0.0


def averaged(share: float, micro_steps: int) -> float:
    """The share after several micro-steps without a reduction: what varies between them averages out."""
    return share / math.sqrt(micro_steps)


@cache
def rank_costs(jitter: float = 1.0, host_contention: float = 1.0) -> RankCosts:
    """The costs set by hand, times the factors that whole steps settled."""
    content = read_data("host.json")["ranks"]
    return RankCosts(content["jitter"] * jitter, content["host_contention"] * host_contention)
