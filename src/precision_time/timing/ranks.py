"""Straggler wait and host contention: what ranks cost each other besides communication.

Data-parallel ranks run the same program but not equally long: clocks, memory and interrupts differ, and so do the
lengths of padded batches. A reduction ends when the last rank has its gradients. Ranks of a node share its host.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist

from precision_time.bounded_cache import bounded
from precision_time.timing.parameters import read_data


@dataclass(frozen=True, slots=True)
class RankCosts:
    """jitter            standard deviation of a rank's time between micro-steps, as a share of it
    host_contention   share that each further rank on a node adds to every host cost
    """

    jitter: float
    host_contention: float

    def wait_share(self, ranks: int, length_spread: float) -> float:
        """Excess of the slowest rank over the mean rank, as a share of the time between two reductions.

        Jitter is normal, batch lengths are uniform in 1 - `length_spread` .. 1 + `length_spread`.
        """
        if ranks < 2:
            return 0.0
        return self.jitter * largest_of(ranks) + length_spread * (ranks - 1) / (ranks + 1)

    def host_factor(self, ranks_on_node: int) -> float:
        """Factor on the host costs of a rank among `ranks_on_node`."""
        return 1.0 + self.host_contention * (ranks_on_node - 1)


@bounded()
def largest_of(count: int) -> float:
    """Expected largest of `count` standard normal numbers (Blom 1958; 4 % too large for two, within 1 % from five)."""
    return NormalDist().inv_cdf((count - 0.375) / (count + 0.25)) if count > 1 else 0.0


def averaged(share: float, micro_steps: int) -> float:
    """The wait share where a reduction follows every `micro_steps`: independent deviations average out."""
    return share / math.sqrt(micro_steps)


@bounded()
def rank_costs(jitter: float = 1.0, host_contention: float = 1.0) -> RankCosts:
    """The costs set by hand in `data/host.json`, times the factors fitted on whole steps."""
    content = read_data("host.json")["ranks"]
    return RankCosts(content["jitter"] * jitter, content["host_contention"] * host_contention)
