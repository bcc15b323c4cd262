"""The dot products of DLRM: by hand, their gradient, and one kernel each way."""

from __future__ import annotations

import pytest

from precision_time.capture.captured_model import capture_model
from precision_time.job import Job
from precision_time.timing.operators import WorkOptions, works

torch = pytest.importorskip("torch")


def test_by_hand() -> None:
    from precision_time.zoo.models.operators import dot_interaction

    vectors = torch.tensor([[[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]])
    pairs = torch.tensor([3, 6, 7])  # (1, 0), (2, 0), (2, 1) of three vectors
    assert dot_interaction(vectors, pairs, 2).tolist() == [[1, 2, 11, 17, 39, 0, 0]]


def test_its_gradient() -> None:
    from precision_time.zoo.models.operators import dot_interaction

    vectors = torch.randn(2, 4, 3, dtype=torch.float64, requires_grad=True)
    pairs = torch.tensor([4, 8, 9, 12, 13, 14])
    assert torch.autograd.gradcheck(lambda v: dot_interaction(v, pairs, 1), (vectors,))


def test_it_is_one_kernel_each_way() -> None:
    """27 vectors of 128 halves are read and 480 halves written; backward reads both and writes the vectors."""
    graph = capture_model(Job("dlrm-small", batch_size=64, precision="amp-fp16")).graph
    assert not [kind for kind in graph.kinds if "bmm" in kind.name]
    forward, backward = (kind for kind in graph.kinds if kind.name.startswith("pt.dot_interaction"))
    vectors, result = 64 * 27 * 128 * 2, 64 * 480 * 2
    of = [sum(work.bytes for work in works(kind, WorkOptions()) or []) for kind in (forward, backward)]
    assert of == [vectors + result, 2 * vectors + result]
