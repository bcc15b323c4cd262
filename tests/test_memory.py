"""Peak memory: lifetimes of tensors by hand, and the table that adds them up."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from networks import total, trace  # noqa: E402
from precision_time.capture.captured_model import CapturedModel  # noqa: E402
from precision_time.capture.graph import Category, OpGraph, Phase  # noqa: E402
from precision_time.capture.optimizer import tail  # noqa: E402
from precision_time.estimate.memory import FRAGMENTATION, FRAMEWORK_BYTES, Memory, _peak_of_step, memory  # noqa: E402
from precision_time.job.precision import PRECISIONS  # noqa: E402

WEIGHT = 4 * 256 * 256


def test_peak_of_a_chain_of_linears() -> None:
    """Three bias-free layers of width 32 on 64 samples, in bytes at 4 per element, worked out by hand."""
    layers, width, batch = 3, 32, 64
    build = lambda: total(nn.Sequential(*(nn.Linear(width, width, bias=False) for _ in range(layers))),  # noqa: E731
                          torch.ones(batch, width))  # fmt: skip
    graph = trace(build)
    activation, weight = 4 * batch * width, 4 * width * width
    by_category = {c: sum(s.nbytes for s in graph.storages if s.category is c) for c in Category}
    assert by_category[Category.WEIGHTS] == layers * weight
    assert by_category[Category.GRADIENTS] == layers * weight
    assert by_category[Category.INPUTS] == activation
    level, everything = _peak_of_step(graph, False)
    assert level.weights == layers * weight
    # Fullest while the middle layer's input gradient is made: beside the input stand its own input, the gradient of
    # its output and the one being written, and the weight gradients of the last two layers. The loss is a scalar, and
    # the gradient of its sum another one, expanded.
    assert level.gradients == 2 * weight
    assert everything == 3 * weight
    assert level.activations == 4 * activation + 2 * 4


def test_saved_activations_die_as_the_backward_pass_uses_them() -> None:
    graph = trace(lambda: total(nn.Sequential(*(nn.Linear(32, 32) for _ in range(6))), torch.ones(64, 32)))
    backward_from = next(i for i, c in enumerate(graph.calls) if c.phase is Phase.BACKWARD)
    saved = [s for s in graph.storages if s.category is Category.ACTIVATIONS and s.nbytes == 4 * 64 * 32
             and 0 <= s.born < backward_from <= s.dies]  # fmt: skip
    assert len(saved) == 5  # the inputs of layers 2 to 6
    deaths = [s.dies for s in saved]
    assert deaths == sorted(deaths, reverse=True)
    assert len(set(deaths)) == 5


def chain(layers: int = 3, width: int = 256, batch: int = 64) -> OpGraph:
    build = lambda: total(nn.Sequential(*(nn.Linear(width, width, bias=False) for _ in range(layers))),  # noqa: E731
                          torch.ones(batch, width))  # fmt: skip
    return trace(build)


def table(ranks: int = 1, grad_accum: int = 1, optimizer: str = "adam", how: str = "fused") -> Memory:
    graph, said = chain(), PRECISIONS["fp32"]
    step = CapturedModel("chain", graph, tail(graph.parameters, said, optimizer, how), said, optimizer, 64, None, "own",
                        implementation=how)  # fmt: skip
    return memory(step, 1 << 30, ranks, grad_accum)


def test_the_table_by_hand() -> None:
    """Wide layers on few samples: the update, with all gradients alive and no activations, is the fullest moment."""
    rows = table().by_category
    assert rows["weights"] == 3 * WEIGHT
    assert rows["optimizer states"] == 2 * 3 * WEIGHT
    assert rows["gradients"] == 3 * WEIGHT
    assert rows["master weights"] == rows["communication buffers"] == 0
    held = sum(size for name, size in rows.items() if not name.startswith("framework"))
    assert rows["framework and fragmentation"] == FRAMEWORK_BYTES + int(FRAGMENTATION * held)


def test_buckets_and_kept_gradients() -> None:
    assert table(ranks=2).by_category["communication buffers"] == 3 * WEIGHT
    for more in (table(ranks=2), table(grad_accum=4)):  # at the update all gradients stand
        assert more.by_category["gradients"] == 3 * WEIGHT
        assert more.peak_bytes >= table().peak_bytes


def test_foreach_needs_a_temporary_copy_of_the_parameters() -> None:
    assert table(how="foreach").peak_bytes >= table(how="single").peak_bytes
    assert table(optimizer="sgd").by_category["optimizer states"] == 3 * WEIGHT


def test_what_is_missing() -> None:
    assert (Memory({"a": 3, "b": 4}, 10).missing_bytes, Memory({"a": 3, "b": 4}, 10).fits) == (0, True)
    assert (Memory({"a": 8, "b": 4}, 10).missing_bytes, Memory({"a": 8, "b": 4}, 10).fits) == (2, False)
