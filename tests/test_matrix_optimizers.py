"""Muon, SOAP and Shampoo: operators and states of torch's own Muon and of the papers' updates, and counts by hand."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from precision_time import Job
from precision_time.capture.graph import OpSignature, Parameter, Phase
from precision_time.capture.matrix_optimizers import MATRIX_RULES, Matrix
from precision_time.capture.optimizer import OPTIMIZERS, Sweep, tail
from precision_time.capture.training_step import training_step
from precision_time.job.importers import from_deepspeed, from_huggingface
from precision_time.job.precision import PRECISIONS
from precision_time.layout.sweeps import kept_states, matrices_of
from precision_time.prediction import predict
from precision_time.timing.operators import WorkOptions, works

SHAPES = ((64, 32), (16, 48), (64,), (10,))


def parameters() -> tuple[Parameter, ...]:
    return tuple(Parameter(f"p{i}", shape, "float32", "float32", i) for i, shape in enumerate(SHAPES))


def flops(kind: OpSignature) -> float:
    """Of matrix products."""
    if kind.name not in ("aten.mm", "aten.addmm"):
        return 0.0
    return 2.0 * kind.inputs[-2].numel * kind.inputs[-1].shape[1]


def recorded(optimizer: Any, weights: list[Any]) -> Counter[tuple[str, Any, Any]]:
    """Operators of a real second step with the shapes of what they read and write, and no views."""
    torch = pytest.importorskip("torch")
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils._pytree import tree_leaves

    found: Counter[tuple[str, Any, Any]] = Counter()
    free = ("view", "t", "permute", "detach", "alias", "transpose", "zeros_like", "_unsafe_view", "expand")

    class Recorder(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            out = func(*args, **(kwargs or {}))
            name = func._schema.name.removeprefix("aten::")
            if name not in free and not name.startswith("profiler::"):
                inputs = [tuple(t.shape) for t in tree_leaves((args, kwargs)) if isinstance(t, torch.Tensor)]
                outputs = [tuple(t.shape) for t in tree_leaves(out) if isinstance(t, torch.Tensor)]
                found[name, tuple(inputs), tuple(outputs)] += 1
            return out

    for step in range(2):
        for weight in weights:
            weight.grad = torch.ones_like(weight)
        if step:
            with Recorder():
                optimizer.step()
        else:
            optimizer.step()
    return found


@pytest.mark.parametrize("shape", [(64, 32), (16, 48), (24, 24)])
def test_muon_is_that_of_torch(shape: tuple[int, int]) -> None:
    """Every operator of torch.optim.Muon on one matrix, and the state that it keeps."""
    torch = pytest.importorskip("torch")
    if not hasattr(torch.optim, "Muon"):
        pytest.skip("this PyTorch has no Muon")
    weight = torch.nn.Parameter(torch.ones(*shape, device="meta"))
    muon = torch.optim.Muon([weight])
    real = recorded(muon, [weight])
    made: Counter[tuple[str, Any, Any]] = Counter()
    for kind, count in MATRIX_RULES["muon"].operators(Matrix(*shape, 1), "float32", "float32"):
        name = kind.name.removeprefix("aten.").replace("_to_copy", "to_copy")
        made[name, tuple(t.shape for t in kind.inputs), tuple(t.shape for t in kind.outputs)] += count
    named = Counter({(n.replace("_to_copy", "to_copy"), i, o): c for (n, i, o), c in real.items()})

    def rows(found: Counter[tuple[str, Any, Any]]) -> list[Any]:
        """With a matrix as its transpose: Muon transposes tall ones, which costs nothing."""
        return sorted((n, [sorted(s) for s in i], [sorted(s) for s in o], c) for (n, i, o), c in found.items())

    assert rows(made) == rows(named)
    (held,) = muon.state[weight].values()
    assert MATRIX_RULES["muon"].state_elements(Matrix(*shape, 1)) == held.numel() == shape[0] * shape[1]


def test_other_weights_have_adamw() -> None:
    """Matrices have one momentum, norms and biases two moments; the passes of AdamW are over the latter alone."""
    ends = tail(parameters(), PRECISIONS["fp32"], "muon")
    matrices, others = 64 * 32 + 16 * 48, 64 + 10
    assert ends.state_bytes == 4 * matrices + 8 * others
    sweeps = [kind for phase, kind in ends.operators if phase is Phase.OPTIMIZER and kind.name == "pt.sweep"]
    assert {kind.inputs[0].numel for kind in sweeps} == {others}
    assert len(sweeps) == len(OPTIMIZERS["adamw"].passes)
    counted = sum(flops(kind) for _, kind in ends.operators)
    # 5 iterations of m x n by n x m, m x m by m x m and m x m by m x n, of the smaller side m
    assert counted == sum(5 * 2 * (2 * m * m * n + m**3) for m, n in ((32, 64), (16, 48)))


class Soap:
    """Algorithm 3 of arXiv:2409.11321 for one matrix, whose products a counter sees."""

    def __init__(self, torch: Any, rows: int, columns: int) -> None:
        self.torch = torch
        self.left, self.right = torch.eye(rows), torch.eye(columns)
        self.of_left, self.of_right = torch.eye(rows), torch.eye(columns)
        self.first, self.second = torch.zeros(rows, columns), torch.zeros(rows, columns)

    def step(self, gradient: Any, step: int) -> Any:
        def project(x: Any, back: bool = False) -> Any:
            return self.of_left @ x @ self.of_right.T if back else self.of_left.T @ x @ self.of_right

        turned = project(gradient)
        self.first = 0.95 * self.first + 0.05 * gradient
        moved = project(self.first)
        self.second = 0.95 * self.second + 0.05 * turned**2
        update = project(moved / self.second.sqrt().clamp(min=1e-8), back=True)
        self.left = 0.95 * self.left + 0.05 * gradient @ gradient.T
        self.right = 0.95 * self.right + 0.05 * gradient.T @ gradient
        if step % 10 == 0:
            self.of_left = self.torch.linalg.qr(self.left @ self.of_left)[0]
            self.of_right = self.torch.linalg.qr(self.right @ self.of_right)[0]
        return update

    @property
    def held(self) -> int:
        kept = (self.left, self.right, self.of_left, self.of_right, self.first, self.second)
        return sum(each.numel() for each in kept)


def test_soap_has_the_products_and_states_of_its_paper() -> None:
    torch = pytest.importorskip("torch")
    from torch.utils.flop_counter import FlopCounterMode

    soap = Soap(torch, 24, 40)
    with FlopCounterMode(display=False) as counter:
        for step in range(1, 11):
            soap.step(torch.randn(24, 40), step)
    rule = MATRIX_RULES["soap"]
    ten = list(
        rule.operators(Matrix(24, 40, 10), "float32", "float32")
    )  # ten matrices in one step: one in ten decomposes
    assert sum(flops(kind) * count for kind, count in ten) == counter.get_total_flops()
    assert rule.state_elements(Matrix(24, 40, 1)) == soap.held
    decomposed = {kind.inputs[0].shape: count for kind, count in ten if kind.name == "aten.linalg_qr" and count}
    assert decomposed == {(24, 24): 1, (40, 40): 1}


def test_decompositions_are_spread_over_steps() -> None:
    """Of 7 matrices 0.7 decompositions in each step, of 25 2.5; and none of a side above 10,000."""
    for count, whole, share in ((7, 0, 0.7), (25, 2, 0.5), (30, 3, 0.0)):
        found = [
            (kind, n)
            for kind, n in MATRIX_RULES["soap"].operators(Matrix(64, 16_384, count), "float32", "float32")
            if kind.name == "aten.linalg_qr" and n
        ]
        assert {kind.inputs[0].shape for kind, _ in found} == {(64, 64)}
        assert sum(n for kind, n in found if not kind.attrs) == whole
        assert sum(float(str(kind.attr("share"))) for kind, _ in found if kind.attrs) == pytest.approx(share)
    assert MATRIX_RULES["soap"].state_elements(Matrix(64, 16_384, 1)) == 2 * 64 * 16_384 + 2 * 64 * 64


def test_shampoo_cuts_long_sides_into_blocks() -> None:
    """12,288 in two blocks of 6,144, each with preconditioners for both sides (arXiv:2309.06497, section 3.3)."""
    kept = MATRIX_RULES["shampoo"].state_elements(Matrix(12_288, 4096, 3))
    assert kept == 3 * (2 * 12_288 * 4096 + 2 * 2 * (6144**2 + 4096**2))


@pytest.mark.parametrize(
    ("name", "side", "measured_ms"),
    [("aten.linalg_qr", 512, 1.84), ("aten.linalg_qr", 1024, 4.45), ("aten.linalg_qr", 2048, 16.0),
     ("aten.linalg_qr", 4096, 31.6), ("aten._linalg_eigh", 1024, 13.1), ("aten._linalg_eigh", 2048, 34.0)],
)  # fmt: skip
def test_decompositions_take_about_what_was_measured(name: str, side: int, measured_ms: float) -> None:
    """Published times, of which the GPU is known of three (A100): within a factor of two."""
    from precision_time.capture.graph import TensorSpec

    square = TensorSpec((side, side), "float32")
    (work,) = works(OpSignature(name, (square,), (square,)), WorkOptions()) or []
    seconds = work.launches * 3.5e-6 + work.flops / 19.5e12  # start of a kernel, fp32 peak of an A100
    assert 0.5 < 1e3 * seconds / measured_ms < 2.0


# --- in jobs ----------------------------------------------------------------------------------------------------


def test_matrices_of_a_decoder() -> None:
    """Of GPT-2: four matrices a layer; no embedding, norm or bias. Of Mixtral: those of every expert."""
    step = training_step(Job("gpt2"))
    found = matrices_of(step.layers.units, [(i, step.layers.order.count(i)) for i in set(step.layers.order)], 1, 1)
    shapes = {(m.rows, m.columns): m.times for m in found}
    assert shapes == {(2304, 768): 12, (768, 768): 12, (3072, 768): 12, (768, 3072): 12}
    step = training_step(Job("mixtral-8x7b", precision="bf16"))
    found = matrices_of(step.layers.units, [(i, step.layers.order.count(i)) for i in set(step.layers.order)], 1, 1)
    assert {(m.rows, m.columns): m.times for m in found}[14336, 4096] == 8 * 32


@pytest.mark.parametrize("optimizer", sorted(MATRIX_RULES))
def test_states_of_a_job(optimizer: str) -> None:
    """The memory table, the checkpoint's bytes and the sum over a decoder's matrices agree; eight ranks share them."""
    job = Job("gpt2", optimizer=optimizer, precision="fp32", batch_size=1)
    states = predict(job).memory.by_category["optimizer states"]
    rule, matrices = MATRIX_RULES[optimizer], [(2304, 768), (768, 768), (3072, 768), (768, 3072)]
    total = 124_439_808 - 12 * sum(a * b for a, b in matrices)
    assert states == 4 * (2 * total + sum(rule.state_elements(Matrix(a, b, 12)) for a, b in matrices))
    step = training_step(job)
    held = [(i, step.layers.order.count(i)) for i in set(step.layers.order)]
    assert kept_states(step, held, 1, 1) == states
    assert kept_states(training_step(job.replace(optimizer="adamw")), held, 1, 1) is None
    shared = predict(job.replace(gpus=8, layout="fsdp")).memory.by_category["optimizer states"]
    assert states / 8 <= shared < states / 5  # twelve equal matrices: two for some of eight ranks


def test_time_and_memory_of_muon() -> None:
    """Muon keeps less than AdamW and updates slower; sharing matrices over ranks makes it nearly free."""
    job = Job("llama3-8b", gpu="h100-80gb-sxm", gpus=8, precision="bf16-master", input={"seq_len": 4096},
              recompute="full", batch_size=1)  # fmt: skip
    alone = {name: predict(job.replace(optimizer=name)) for name in ("adamw", "muon", "soap")}
    assert (
        alone["muon"].memory.by_category["optimizer states"]
        < 0.6 * alone["adamw"].memory.by_category["optimizer states"]
    )
    assert alone["adamw"].step.p50 < alone["muon"].step.p50 < alone["soap"].step.p50
    sharded = {name: predict(job.replace(optimizer=name, layout="fsdp", gpus=64)) for name in ("adamw", "muon")}
    assert sharded["muon"].step.p50 < 1.15 * sharded["adamw"].step.p50
    # 5 x 2 (2 m m n + m m m) FLOP of each matrix at the H100's dense bf16 peak is a floor of its update
    floor = sum(
        5 * 2 * (2 * min(s) ** 2 * max(s) + min(s) ** 3) * 32 * n
        for s, n in (((4096, 4096), 2), ((1024, 4096), 2), ((4096, 14336), 3))
    )
    assert alone["muon"].breakdown["optimizer"] > floor / 989e12
    assert any("muon: each rank updates whole matrices" in note for note in sharded["muon"].assumptions)


def test_adapters_are_matrices() -> None:
    step = training_step(Job("llama3-8b", lora=16, optimizer="muon"))
    found = matrices_of(step.layers.units, [(i, step.layers.order.count(i)) for i in set(step.layers.order)], 1, 1)
    assert {min(m.rows, m.columns) for m in found} == {16}
    assert sum(m.elements for m in found) == 41_943_040


def test_names_in_other_programs_files() -> None:
    assert from_deepspeed({"optimizer": {"type": "Muon"}, "train_batch_size": 8}).fields["optimizer"] == "muon"
    assert from_huggingface({"output_dir": "x", "optim": "muon"}).fields["optimizer"] == "muon"


def test_a_sweep_without_matrices_is_adamw() -> None:
    """Where no weight is a matrix, passes and states are those of AdamW."""
    only = tuple(p for p in parameters() if len(p.shape) == 1)
    muon, adamw = (tail(only, PRECISIONS["fp32"], name) for name in ("muon", "adamw"))
    assert (muon.operators, muon.state_bytes) == (adamw.operators, adamw.state_bytes)
    assert Sweep((1,)).matrices == ()
    assert all(rule.matrix is None for name, rule in OPTIMIZERS.items() if name not in MATRIX_RULES)
