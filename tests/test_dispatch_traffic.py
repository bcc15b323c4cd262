"""Traffic of experts whose tokens each node receives once, by hand."""

from __future__ import annotations

import pytest

from precision_time import predict
from precision_time.hardware.fabric import Group
from precision_time.job import Job
from precision_time.placement import cluster_of
from precision_time.timing.communicators import _sent_once


def _group(ranks: int) -> Group:
    job = Job("deepseek-v3", gpu="h100-80gb-sxm", gpus=64, precision="bf16-master", layout="dp=64,ep=64")
    return cluster_of(job).group(ranks)


def test_a_node_receives_a_token_once() -> None:
    """Eight experts of a token, evenly on eight nodes of eight GPUs, are on 8 (1 - (7/8)^8) = 5.25 of them; of four of
    the eight groups, they are on 4 (1 - (3/4)^8) = 3.60."""
    assert _sent_once(_group(64), 8, 1.0) == pytest.approx(5.2511 / 8, abs=1e-4)
    assert _sent_once(_group(64), 8, 0.5) == pytest.approx(3.5995 / 8, abs=1e-4)


def test_within_a_node_each_rank_is_a_place() -> None:
    assert _sent_once(_group(8), 8, 1.0) == pytest.approx(5.2511 / 8, abs=1e-4)
    assert _sent_once(_group(2), 1, 0.25) == 1.0, "at least one place"


def _exposed_s(**config: int) -> float:
    words = {"layout": "dp=64,ep=64,zero=1,dispatcher=deepep", "batch_size": 1, "precision": "bf16-master"}
    job = Job("deepseek-v3", gpu="h100-80gb-sxm", gpus=64, model_config={"layers": 8, **config}, **words)
    return predict(job).breakdown["communication_exposed"]


def test_node_limited_routing_sends_less() -> None:
    """DeepSeek-V3's tokens go to experts of four of eight groups (arXiv:2412.19437)."""
    limited, free = _exposed_s(), _exposed_s(topk_groups=0)
    assert free * 0.6 < limited < free * 0.95
    assert _exposed_s(topk_groups=8) == free
