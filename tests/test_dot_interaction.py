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


def test_gathered_rows_by_hand() -> None:
    from precision_time.zoo.models.operators import gather_rows

    table = torch.tensor([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])
    rows = gather_rows(table, torch.tensor([[2, 0]]), torch.float16)
    assert rows.dtype == torch.float16
    assert rows.tolist() == [[[5.0, 6.0], [1.0, 2.0]]]


@pytest.mark.parametrize("precision", ["amp-fp16", "fp32"])
def test_rows_are_gathered_in_the_dtype_of_autocast_and_added_to_by_sgd(precision: str) -> None:
    """26 rows of 128 floats a sample are read, and written as what the products take; their gradients are written as
    floats, divided by the scale under autocast, and added to the table, whose rows are read and written for that."""
    graph = capture_model(Job("dlrm-small", batch_size=64, precision=precision)).graph
    rows, half = 64 * 26 * 128, precision == "amp-fp16"
    taken = rows * (2 if half else 4)

    def moved(name: str, elements: int) -> list[float]:
        kinds = [kind for kind in graph.kinds if kind.name == name and kind.inputs[-1].numel == elements]
        return [sum(work.bytes for work in works(kind, WorkOptions()) or []) for kind in kinds]

    assert moved("pt.gathered_rows", 64 * 26) == [rows * 4 + 64 * 26 * 8 + taken]
    made_contiguous = [] if half else [2 * rows * 4]  # by an operator that has the name of the next one in fp32
    assert moved("aten._to_copy" if half else "aten.clone", rows) == [*made_contiguous, taken + rows * 4]
    assert moved("aten.mul_", rows) == ([2 * rows * 4] if half else [])
    assert moved("aten.index_add_", rows) == [3 * rows * 4]
