"""The fields of a job beside its layout that decide the program of a step."""

from __future__ import annotations

from dataclasses import dataclass

from precision_time.job.job import Job
from precision_time.layout.recomputation import SECOND_PRODUCTS, UNTIL_SAVED


@dataclass(frozen=True, slots=True)
class Options:
    """Fields of a job beside its layout that decide the program: micro-batches, recomputation, dtypes on the wire."""

    micro_batches: int
    recompute: str = "none"
    recompute_layers: int | None = None
    communication_dtype: str | None = None
    framework: str = "pytorch"
    loss_scale: str = "dynamic"
    no_sync: bool = True
    softmax_inputs: bool = False
    zeroes_gradients: bool = False
    stops_recomputing: bool = False
    recompute_method: str | None = None
    offload: str | None = None
    reference: bool = False
    offload_ratio: float = 1.0

    @property
    def repeated(self) -> str:
        """What of a block runs again in the backward pass, as `unit_program` names it."""
        if self.recompute == "full" and self.stops_recomputing:
            return UNTIL_SAVED
        return SECOND_PRODUCTS if self.saves_products else self.recompute

    @property
    def saves_products(self) -> bool:
        """Whether torchtitan's policy decides what is kept: by name, or because its step is selective."""
        by_framework = self.recompute == "selective" and self.framework == "torchtitan"
        return by_framework or self.recompute == "selective-ops"

    @classmethod
    def of(cls, job: Job) -> Options:
        """The options of a job."""
        return cls(
            job.grad_accum,
            job.recompute,
            job.recompute_layers,
            job.communication_dtype,
            job.framework,
            job.loss_scale,
            job.no_sync,
            job.keeps_softmax_inputs,
            job.zeroes_gradients,
            job.stops_recomputing,
            job.recompute_method,
            job.offload,
            job.reference,
            job.offload_ratio,
        )
