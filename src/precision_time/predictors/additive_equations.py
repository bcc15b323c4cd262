"""The four equations of the per-operator additive model (arXiv 2604.16145), and the symbols in them.

    T_comp = sum over the operators of a rank of t_fwd(operator, dtype, local shape) + t_bwd(...)      seconds
    T_dp   = V_dp / B                                                                                 seconds
    T_tp   = V_tp / B                                                                                 seconds
    T_pp   = T_comp * (pp - 1)                                                                        seconds

    T      = T_comp + T_dp + T_tp + T_pp

No term overlaps another, messages have no latency, and optimizer, loss scaler and casts are not included.

**Source.** The equations are those that readers of the short paper report; its text is not public. The definitions of
the symbols are this project's reading:

- T_comp is one step of the busiest pipeline stage: all micro-batches, forward, loss and backward, and what is
  recomputed. Casts do not count.
- V_dp, V_tp: bytes that each rank sends in the ring algorithm: 2 (n - 1) / n of the buffer in an all-reduce among n
  ranks, (n - 1) / n in an all-gather or reduce-scatter. The buffer of V_dp is the gradient in the dtype in which it is
  reduced: float32 under autocast. Plain volumes would be off by these factors, the same for all precisions.
- B, bytes per second: bus bandwidth between the ranks that exchange (what nccl-tests call so, to which the volumes
  above belong); across nodes the least of fabric and network.
- (pp - 1): idle time of a pipeline that passes one micro-batch through its stages. With m micro-batches a real one
  idles (pp - 1) / m of T_comp, which the published equation does not include, nor transfers between stages.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from precision_time.errors import PredictorError
from precision_time.hardware.fabric import Group

Sent = tuple[str, float]
"""A collective and its buffer in bytes, as nccl-tests count them (`timing.collectives`)."""

_TRIPS = {"all_reduce": 2.0, "all_gather": 1.0, "reduce_scatter": 1.0}
"""Passes of a ring over (n - 1) / n of the buffer."""


@dataclass(frozen=True, slots=True)
class Terms:
    """Seconds of one optimizer step by the four equations."""

    compute_s: float
    data_s: float
    tensor_s: float
    pipeline_s: float

    @property
    def seconds(self) -> float:
        return self.compute_s + self.data_s + self.tensor_s + self.pipeline_s


def additive(
    compute_s: float,
    data_bytes: float,
    data_bytes_per_s: float,
    tensor_bytes: float,
    tensor_bytes_per_s: float,
    pp: int,
) -> Terms:
    """The terms from T_comp, V_dp and V_tp with their bandwidths (unused where nothing is sent), and pp stages."""
    return Terms(
        compute_s,
        data_bytes / data_bytes_per_s if data_bytes else 0.0,
        tensor_bytes / tensor_bytes_per_s if tensor_bytes else 0.0,
        compute_s * (pp - 1),
    )


def ring_volume(sent: Iterable[Sent], ranks: int) -> float:
    """V: bytes that each of `ranks` ranks sends in these collectives."""
    volume = 0.0
    for collective, nbytes in sent:
        if collective not in _TRIPS:
            raise PredictorError(
                f"the additive model has no volume for {collective}; it knows {', '.join(_TRIPS)}: use another layout"
            )
        volume += _TRIPS[collective] * (ranks - 1) / ranks * nbytes
    return volume


def bandwidth(group: Group) -> float:
    """B, bytes per second: of the slowest link that a ring through the group's ranks crosses."""
    inside = group.bus_bytes_per_s if group.ranks_per_domain > 1 else float("inf")
    across = group.neighbour_bytes_per_s if group.domains > 1 else float("inf")
    return min(inside, across)
