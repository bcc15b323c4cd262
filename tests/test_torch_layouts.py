"""Ranks of a layout against PyTorch's own tensor parallelism and FSDP2, run on a fake process group of eight.

Megatron and DTensor exchange the same activations but for one: under sequence parallelism Megatron keeps a rank's part
of a divided module's input and gathers it again for the weight gradients (`behind="weights"` here), DTensor keeps all
of it. Norm weights' gradients, partial over a sequence-parallel group, are left out by both.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch")
if not hasattr(pytest.importorskip("torch.distributed.fsdp"), "fully_shard"):
    pytest.skip("needs FSDP2 (torch 2.6)", allow_module_level=True)

import torch.distributed as dist  # noqa: E402
import torch.nn.functional as F  # noqa: E402
from torch._subclasses import FakeTensor  # noqa: E402
from torch.distributed.device_mesh import init_device_mesh  # noqa: E402
from torch.distributed.fsdp import fully_shard  # noqa: E402
from torch.distributed.tensor import DTensor, Replicate, Shard  # noqa: E402
from torch.distributed.tensor.debug import CommDebugMode  # noqa: E402
from torch.distributed.tensor.parallel import (  # noqa: E402
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    loss_parallel,
    parallelize_module,
)
from torch.testing._internal.distributed.fake_pg import FakeStore  # noqa: E402
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402

from precision_time.capture.graph import OpSignature, Phase  # noqa: E402
from precision_time.capture.layers import AFTER, BEFORE  # noqa: E402
from precision_time.capture.training_step import TrainingStep, training_step  # noqa: E402
from precision_time.hardware import cluster  # noqa: E402
from precision_time.job import Job  # noqa: E402
from precision_time.layout.options import Options  # noqa: E402
from precision_time.layout.program import CollectiveOp  # noqa: E402
from precision_time.layout.step_program import step_program  # noqa: E402
from precision_time.layout.tensor_parallel import exchanges  # noqa: E402
from precision_time.timeline.simulate import simulate  # noqa: E402
from precision_time.timeline.timeline import COMMUNICATION  # noqa: E402
from precision_time.timing.operators import WorkOptions  # noqa: E402
from precision_time.timing.program_times import time_program  # noqa: E402
from precision_time.zoo.models.decoder import Decoder, complete  # noqa: E402
from precision_time.zoo.tables.decoders import LLAMA  # noqa: E402

RANKS, LAYERS, BATCH, SEQ = 8, 3, 2, 32
SHAPE = {"layers": LAYERS, "hidden": 64, "heads": 16, "kv_heads": 8, "head_dim": 8, "ffn": 128, "vocab": 256}
SHORT = {
    "all_reduce": "all_reduce", "all_gather_into_tensor": "all_gather", "reduce_scatter_tensor": "reduce_scatter",
    "_allgather_base_": "all_gather", "_reduce_scatter_base_": "reduce_scatter",
}  # fmt: skip


@pytest.fixture(scope="module", autouse=True)
def _ranks() -> Iterator[None]:
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=RANKS)
    yield
    dist.destroy_process_group()


def step(layout: str) -> TrainingStep:
    return training_step(
        Job("llama3-8b", model_config=SHAPE, input={"seq_len": SEQ}, batch_size=BATCH, gpus=RANKS, layout=layout)
    )


def counted(mode: CommDebugMode) -> Counter[str]:
    return Counter({SHORT[str(op).rsplit(".", 1)[-1]]: n for op, n in mode.get_comm_counts().items()})


class LocalOperators(TorchDispatchMode):
    """Matrix products and attention as they run on one rank's own tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.products: Counter[tuple[int, ...]] = Counter()
        self.attention: list[tuple[int, ...]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(issubclass(t, DTensor) for t in types):
            return NotImplemented
        name = str(func)
        if any(issubclass(t, FakeTensor) for t in types):  # DTensor asks for the shape of a result
            name = ""
        if name.startswith("aten.mm."):
            self.products[sides(args[0].shape, args[1].shape)] += 1
        elif "attention" in name and "backward" not in name:
            self.attention += [tuple(t.shape) for t in args[:2]]
        return func(*args, **(kwargs or {}))


def sides(a: Any, b: Any) -> tuple[int, ...]:
    """Of a product in any of its transpositions, which frameworks choose as they like."""
    return tuple(sorted((a[0], a[1], b[1])))


def tensor_parallel(sp: bool) -> Decoder:
    whole = Shard(1) if sp else Replicate()
    into: dict[str, Any] = {"desired_input_layouts": (Replicate(),), "use_local_output": False}
    block: dict[str, Any] = {
        "attention": PrepareModuleInput(
            input_layouts=(whole, None), desired_input_layouts=(Replicate(), None), use_local_output=False
        ),
        "ffn": PrepareModuleInput(input_layouts=(whole,), **into),
        **{f"attention.{name}": ColwiseParallel() for name in ("query", "key", "value")},
        "attention.output": RowwiseParallel(output_layouts=whole),
        "ffn.gate": ColwiseParallel(),
        "ffn.up": ColwiseParallel(),
        "ffn.down": RowwiseParallel(output_layouts=whole),
    }
    plan: dict[str, Any] = {
        "embedding": RowwiseParallel(input_layouts=Replicate(), output_layouts=whole),
        "head": ColwiseParallel(input_layouts=whole, output_layouts=Shard(-1), use_local_output=False),
    }
    if sp:
        plan["norm"] = SequenceParallel(use_local_output=True)
        block |= {name: SequenceParallel(use_local_output=True) for name in ("attention_norm", "ffn_norm")}
    plan |= {f"blocks.{i}.{name}": style for i in range(LAYERS) for name, style in block.items()}
    model = Decoder(complete({**LLAMA, **SHAPE}), SEQ)
    parallelize_module(model, init_device_mesh("cpu", (RANKS,)), plan)
    return model


def ours(traced: TrainingStep, sp: bool) -> tuple[Counter[str], Counter[str], Counter[str]]:
    """Collectives of the whole step: forward without the loss, the loss, backward without what is gathered again."""
    layout = Job("gpt", gpus=RANKS, layout=f"tp={RANKS},sp={int(sp)}").layout_spec
    forward, loss, backward = Counter[str](), Counter[str](), Counter[str]()

    def add(into: Counter[str], found: tuple[CollectiveOp, ...]) -> None:
        for each in found:
            into[each.collective] += each.times

    for index in traced.layers.order:
        unit = traced.layers.units[index]
        found = exchanges(traced.layers.graph, unit, traced.split, layout)
        if unit.name == AFTER:  # the loss comes last
            add(loss, found.forward[-1:])
            add(forward, found.forward[:-1])
        else:
            add(forward, found.forward)
        again = [e for e in found.backward if e.collective == "all_gather" and e.behind == "weights"]
        assert len(again) == (0 if not sp or unit.name == BEFORE else 1 if unit.name == AFTER else 2)
        add(backward, tuple(e for e in found.backward if e not in again))
    return forward, loss, backward


@pytest.mark.parametrize("sp", [False, True])
def test_a_tensor_parallel_rank_exchanges_and_runs_what_torch_does(sp: bool) -> None:
    model, ids = tensor_parallel(sp), torch.randint(0, SHAPE["vocab"], (BATCH, SEQ))
    operators = LocalOperators()
    with CommDebugMode() as forward, operators:
        logits = model(ids)
    with CommDebugMode() as loss, loss_parallel():
        result = F.cross_entropy(logits.flatten(0, 1), ids.flatten())
    with loss_parallel(), CommDebugMode() as backward, operators:
        result.backward()
    traced = step(f"tp={RANKS},sp={int(sp)}")
    assert ours(traced, sp) == (counted(forward), counted(loss), counted(backward))

    held = sum((p.to_local() if isinstance(p, DTensor) else p).numel() for p in model.parameters())
    assert held == traced.layers.parameter_count
    assert traced.parameters == sum(p.numel() for p in model.parameters())

    kinds = [k for phase in (Phase.FORWARD, Phase.BACKWARD) for k in run(traced, phase)]
    products = Counter(sides(k.inputs[0].shape, k.inputs[1].shape) for k in kinds if k.name == "aten.mm")
    assert products == operators.products
    attention = [k.inputs[i].shape for k in kinds if k.name == "pt.attention" for i in range(2)]
    assert attention == operators.attention


def run(traced: TrainingStep, phase: Phase) -> list[OpSignature]:
    graph, units = traced.layers.graph, traced.layers.units
    calls = [graph.calls[i] for u in traced.layers.order for i in (*units[u].forward, *units[u].backward)]
    return [graph.kinds[c.kind] for c in calls if c.phase is phase]


@pytest.mark.parametrize("micro_batches", [1, 2])
@pytest.mark.parametrize("zero", [3, 2])
@pytest.mark.filterwarnings("ignore:FSDP2-wrapped module")
def test_a_sharded_rank_gathers_and_reduces_as_fsdp2(zero: int, micro_batches: int) -> None:
    """Wrapped as torchtitan does: embedding, blocks, norm and head together. One collective for each of ours."""
    mesh = init_device_mesh("cpu", (RANKS,))
    model, ids = Decoder(complete({**LLAMA, **SHAPE}), SEQ), torch.randint(0, SHAPE["vocab"], (BATCH, SEQ))
    for part in (model.embedding, *model.blocks):
        fully_shard(part, mesh=mesh, reshard_after_forward=zero == 3)
    fully_shard([model.norm, model.head], mesh=mesh, reshard_after_forward=False)
    fully_shard(model, mesh=mesh)
    if zero == 2:  # gradients are sharded, weights stay: they are gathered once in a step
        model.set_reshard_after_backward(False)
    forward, backward = Counter[str](), Counter[str]()
    for _ in range(micro_batches):
        with CommDebugMode() as there:
            loss = F.cross_entropy(model(ids).flatten(0, 1), ids.flatten())
        with CommDebugMode() as back:
            loss.backward()
        forward += counted(there)
        backward += counted(back)

    traced = step("fsdp" if zero == 3 else "zero2")
    layout = Job("gpt", gpus=RANKS, layout="fsdp" if zero == 3 else "zero2").layout_spec
    program = step_program(traced, layout, Options(micro_batches))
    timeline = simulate(time_program(program, cluster("h100-80gb-sxm", RANKS), WorkOptions()), record=True)
    wire = [span.name for span in timeline.spans if span.stream == COMMUNICATION]
    gathered, reduced = (sum(name.startswith(word) for name in wire) for word in ("gather", "reduce"))
    assert gathered == forward["all_gather"] + backward["all_gather"]
    assert reduced == backward["reduce_scatter"]
    if zero == 3:
        held = sum(p.to_local().numel() for p in model.parameters())  # type: ignore[attr-defined]
        assert held == traced.parameters / RANKS
