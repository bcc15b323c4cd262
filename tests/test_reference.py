"""A frozen reference model that runs forward beside the trained one, as in DPO."""

from __future__ import annotations

from typing import Any

import pytest

from precision_time import Job, predict
from precision_time.errors import JobError
from precision_time.estimate.estimate import Estimate

BASE: dict[str, Any] = {
    "gpu": "h100-80gb-sxm", "gpus": 8, "precision": "bf16-master", "batch_size": 2, "input": {"seq_len": 2048},
    "recompute": "full",
}  # fmt: skip
PARAMETERS = 8_030_261_248


def both(**fields: Any) -> tuple[Estimate, Estimate]:
    job = Job("llama3-8b", **{**BASE, **fields})
    return predict(job), predict(job.replace(reference=True))


def test_its_forward_pass_is_added() -> None:
    for layout in ("dp", "fsdp", "tp=2,sp=1,dp=4"):
        plain, with_reference = both(layout=layout)
        assert with_reference.breakdown["forward"] == pytest.approx(2 * plain.breakdown["forward"], rel=1e-6)
        for name in ("backward", "recompute", "optimizer"):
            assert with_reference.breakdown[name] == pytest.approx(plain.breakdown[name], rel=1e-6)
    # of 6 FLOP a weight and token, 2 more
    ratio = with_reference.utilisation.model_flops / plain.utilisation.model_flops
    assert ratio == pytest.approx(4 / 3, rel=1e-3)


def test_its_weights_are_kept_and_sharded_as_the_trained_ones() -> None:
    for layout, bytes_of_a_rank in (("dp", 2 * PARAMETERS), ("fsdp", 4 * PARAMETERS / 8)):
        plain, with_reference = both(layout=layout)
        more = with_reference.memory.by_category["weights"] - plain.memory.by_category["weights"]
        assert more == pytest.approx(bytes_of_a_rank, rel=1e-6)


def test_with_adapters_it_is_the_model_without_them() -> None:
    plain, with_reference = both(lora=16)
    assert with_reference.memory.by_category["weights"] == plain.memory.by_category["weights"]
    assert with_reference.breakdown["forward"] > 1.9 * plain.breakdown["forward"]


def test_fsdp_gathers_it_too() -> None:
    slow: dict[str, Any] = {"layout": "fsdp", "gpu": "rtx-3090", "batch_size": 1, "input": {"seq_len": 128}}
    plain, with_reference = both(**slow)
    growth = with_reference.breakdown["communication_exposed"] / plain.breakdown["communication_exposed"]
    assert 1.2 < growth < 1.6  # gathers of two passes and a reduction become gathers of three and one


def test_a_pipeline_is_refused() -> None:
    with pytest.raises(JobError, match="reference goes with one pipeline stage"):
        Job("llama3-8b", **{**BASE, "layout": "pp=2", "reference": True})
