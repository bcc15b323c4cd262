"""The operators after the backward pass: the tables against the real `torch.optim`, casts and counts by hand."""

from __future__ import annotations

import math
from typing import Any

import pytest

from precision_time.capture.graph import BYTES_PER_ELEMENT, OpSignature, Parameter, Phase
from precision_time.capture.matrix_optimizers import MATRIX_RULES
from precision_time.capture.optimizer import OPTIMIZERS, Sweep, Tail, rule, tail
from precision_time.errors import JobError
from precision_time.job import Job
from precision_time.job.precision import PRECISIONS
from precision_time.prediction import predict

SHAPES = ((64, 32), (64,), (10, 64), (10,))
ELEMENTS = sum(math.prod(s) for s in SHAPES)


def parameters(precision: str) -> tuple[Parameter, ...]:
    dtypes = PRECISIONS[precision]
    return tuple(
        Parameter(f"p{i}", shape, dtypes.parameter_dtype, dtypes.gradient_dtype, len(SHAPES) - i)
        for i, shape in enumerate(SHAPES)
    )  # fmt: skip


def tail_of(
    precision: str, optimizer: str = "adam", implementation: str | None = None, clip: float | None = None
) -> Tail:
    return tail(parameters(precision), PRECISIONS[precision], optimizer, implementation, clip)


def bytes_per_element(kind: OpSignature) -> int:
    return sum(BYTES_PER_ELEMENT[s.dtype] for s in (*kind.inputs, *kind.outputs))


def traffic(operators: Tail, *phases: Phase) -> int:
    return sum(bytes_per_element(kind) for phase, kind in operators.operators if not phases or phase in phases)


# --- against torch ----------------------------------------------------------------------------------------------


def executed_passes(optimizer: str, foreach: bool) -> tuple[list[tuple[str, int, int]], int]:
    """(operator, tensors read, tensors written) for the first parameter in a real second step, and operators in all."""
    torch = pytest.importorskip("torch")
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils._pytree import tree_leaves

    weights = [torch.nn.Parameter(torch.empty(s, device="meta")) for s in SHAPES]
    made: dict[str, Any] = {
        "sgd": lambda: torch.optim.SGD(weights, lr=0.1, momentum=0.9, weight_decay=1e-4, foreach=foreach),
        "adam": lambda: torch.optim.Adam(weights, foreach=foreach),
        "adamw": lambda: torch.optim.AdamW(weights, foreach=foreach),
        "rmsprop": lambda: torch.optim.RMSprop(weights, momentum=0.9, foreach=foreach),
        "adagrad": lambda: torch.optim.Adagrad(weights, foreach=foreach),
        "lion": lambda: Lion(torch, weights),
    }
    chosen = made[optimizer]()
    passes: list[tuple[str, int, bool]] = []

    class Recorder(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            out = func(*args, **(kwargs or {}))
            name = func._schema.name.removeprefix("aten::").removeprefix("_foreach_")
            inputs = [t for t in tree_leaves((args, kwargs)) if isinstance(t, torch.Tensor) and t.device.type == "meta"]
            if inputs and "view" not in name and name not in ("empty_like", "detach", "zeros_like", "stack"):
                distinct = len({id(t) for t in inputs})
                passes.append((name, distinct // (len(SHAPES) if foreach else 1), inputs[0].shape == SHAPES[0]))
            return out

    for step in range(2):
        for weight in weights:
            weight.grad = torch.empty_like(weight)
        passes.clear()
        if step:
            with Recorder():
                chosen.step()
        else:
            chosen.step()
    return [(name, reads, 1) for name, reads, is_first in passes if is_first], len(passes)


class Lion:
    """The update of the paper's program 2 (arXiv:2302.06675), one tensor after another."""

    def __init__(self, torch: Any, weights: list[Any]) -> None:
        self.torch, self.weights = torch, weights
        self.momenta = [torch.empty_like(weight) for weight in weights]

    def step(self) -> None:
        with self.torch.no_grad():
            for weight, momentum in zip(self.weights, self.momenta, strict=True):
                weight.mul_(1 - 1e-4 * 0.1)
                update = (momentum * 0.9).add_(weight.grad, alpha=0.1).sign_()
                weight.add_(update, alpha=-1e-4)
                momentum.mul_(0.99).add_(weight.grad, alpha=0.01)


def test_adafactors_passes_are_those_of_torch() -> None:
    """Passes over whole tensors of a real second step of torch.optim.Adafactor, for one matrix."""
    torch = pytest.importorskip("torch")
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils._pytree import tree_leaves

    weight = torch.nn.Parameter(torch.ones(64, 32))
    chosen = torch.optim.Adafactor([weight], foreach=False, weight_decay=0.0)
    passes: list[tuple[str, int, int]] = []

    class Recorder(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            out = func(*args, **(kwargs or {}))
            name = func._schema.name.removeprefix("aten::").removeprefix("linalg_").rstrip("_")
            whole = [t for t in tree_leaves((args, kwargs)) if isinstance(t, torch.Tensor) and t.shape == weight.shape]
            made = [t for t in tree_leaves(out) if isinstance(t, torch.Tensor) and t.shape == weight.shape]
            if (whole or made) and name not in ("detach", "empty_like"):
                passes.append((name, len(whole), len(made)))
            return out

    for step in range(2):
        weight.grad = torch.full_like(weight, 0.1)
        passes.clear()
        if step:
            with Recorder():
                chosen.step()
        else:
            chosen.step()
    rows = [(p.name.rstrip("_"), p.reads, p.writes) for p in rule("adafactor").passes]
    assert sorted(passes) == sorted(("vector_norm", *row[1:]) if row[0] == "norm" else row for row in rows)
    held = [t for t in chosen.state[weight].values() if isinstance(t, torch.Tensor)]
    assert max(t.numel() for t in held) == 64  # of rows
    assert tail_of("fp32", "adafactor").state_bytes == 0
    asked = [kind for _, kind in tail_of("fp32", "adafactor", "single").operators if kind.int_attr("host_waits", 0)]
    assert len(asked) == 2  # the norms of weight and update


def test_states_of_8_bits() -> None:
    """fp32 weights and gradient (12 bytes moved) and two states of a byte each way; a scale for every 256 elements."""
    operators = tail_of("fp32", "adamw-8bit")
    assert traffic(operators) == 4 + 2 * 4 + 2 * 2
    assert operators.state_bytes == math.ceil(2 * (1 + 4 / 256) * ELEMENTS)
    assert tail_of("bf16", "adamw-8bit").state_bytes == operators.state_bytes


@pytest.mark.parametrize(
    ("optimizer", "foreach"),
    # a single-tensor Adagrad folds its learning rate into the last pass, one sweep less than the table says
    [*((o, f) for o in ("sgd", "adam", "adamw", "rmsprop") for f in (False, True)), ("adagrad", True), ("lion", False)],
)
def test_table_equals_the_real_optimizer(optimizer: str, foreach: bool) -> None:
    implementation = "foreach" if foreach else "single"
    passes, operators = executed_passes(optimizer, foreach)
    rows = [(p.name.rstrip("_"), p.reads, p.writes) for p in rule(optimizer).passes]
    assert sorted(rows) == sorted((name.rstrip("_"), reads, writes) for name, reads, writes in passes)
    kinds = [kind for _, kind in tail_of("fp32", optimizer, implementation).operators]
    assert sum(int(kind.attr("host_calls", 0)) for kind in kinds) == operators  # type: ignore[arg-type]
    if not foreach:  # a kernel for every tensor and pass
        assert sum(int(kind.attr("launches", 0)) for kind in kinds) == operators  # type: ignore[arg-type]


@pytest.mark.parametrize("optimizer", ["sgd", "adam", "adamw", "rmsprop"])
def test_state_equals_the_real_optimizers(optimizer: str) -> None:
    torch = pytest.importorskip("torch")
    weight = torch.nn.Parameter(torch.ones(16))
    made = {
        "sgd": lambda: torch.optim.SGD([weight], momentum=0.9),
        "adam": lambda: torch.optim.Adam([weight]),
        "adamw": lambda: torch.optim.AdamW([weight]),
        "rmsprop": lambda: torch.optim.RMSprop([weight], momentum=0.9),
    }[optimizer]()
    weight.grad = torch.ones(16)
    made.step()
    held = [t for t in made.state[weight].values() if isinstance(t, torch.Tensor) and t.shape == weight.shape]
    assert len(held) == rule(optimizer).states
    assert tail_of("fp32", optimizer).state_bytes == len(held) * 4 * ELEMENTS


# --- by hand ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("optimizer", "expected"), [("sgd", 20), ("adam", 28), ("adamw", 28)])
def test_fused_bytes_per_parameter(optimizer: str, expected: int) -> None:
    """SGD: gradient, weight, momentum in; weight, momentum out. Adam: one moment more each way."""
    operators = tail_of("fp32", optimizer, "fused")
    assert traffic(operators) == expected
    assert len(operators.operators) == 1


def test_foreach_changes_launches_not_bytes() -> None:
    single, foreach = tail_of("fp32", "adam", "single"), tail_of("fp32", "adam", "foreach")
    assert traffic(single) == traffic(foreach)
    assert [k.attr("launches") for _, k in single.operators] == [4] * 7
    assert [k.attr("launches") for _, k in foreach.operators] == [1] * 7


def test_launches_follow_multi_tensor_apply() -> None:
    many = Sweep((16,) * 1000)
    assert [many.launches(depth, "foreach") for depth in (1, 2, 3, 4, 5)] == [10, 16, 21, 28, 34]
    large = Sweep((65536 * 1000,))  # 1000 chunks, 320 blocks a launch
    assert large.launches(4, "fused") == 4
    assert large.launches(4, "single") == 1


def test_loss_scaling_reads_and_writes_every_gradient_once() -> None:
    """GradScaler: 8 bytes per parameter and one host synchronisation, none when the optimizer is fused or in bf16."""
    amp = tail_of("amp-fp16", "adam")
    assert traffic(amp, Phase.UNSCALE) == 8
    assert amp.host_waits_after == 0
    assert tail_of("amp-fp16", "adam", "fused").host_waits_after == -1
    assert traffic(tail_of("amp-bf16"), Phase.UNSCALE) == 0
    assert traffic(tail_of("fp32"), Phase.UNSCALE) == 0
    assert traffic(tail_of("fp16"), Phase.UNSCALE) == 0
    assert traffic(amp, Phase.OPTIMIZER) == traffic(tail_of("fp32"), Phase.OPTIMIZER)


def test_master_weights_fused() -> None:
    """Half gradient in (2); master and two moments in and out (24); half weight out (2)."""
    operators = tail_of("bf16-master", "adam")
    assert traffic(operators) == 2 + 3 * 4 + 3 * 4 + 2
    assert operators.master_bytes == 4 * ELEMENTS
    assert operators.state_bytes == 8 * ELEMENTS


def test_master_weights_unfused_add_two_casts() -> None:
    plain, master = tail_of("fp32", "adam", "foreach"), tail_of("fp16-master", "adam", "foreach")
    assert traffic(master) == traffic(plain) + (2 + 4) + (4 + 2)
    assert master.host_waits_after == 0


def test_novograd_in_python_asks_for_every_tensor() -> None:
    """NVIDIA's NovoGrad compares each second moment with zero on the host; apex's fused one does not."""
    alone = tail_of("fp32", "novograd", "single")
    (asked,) = [kind for _, kind in alone.operators if kind.int_attr("host_waits", 0)]
    assert (asked.attr("label"), asked.int_attr("host_waits", 0)) == ("norm", asked.int_attr("tensors", 0))
    assert alone.operators[alone.host_waits_after][1] is asked
    for implementation in ("foreach", "fused"):
        other = tail_of("fp32", "novograd", implementation)
        assert other.host_waits_after == -1
        assert not any(kind.int_attr("host_waits", 0) for _, kind in other.operators)


def test_torch_1_clips_tensor_by_tensor_and_asks_for_the_norm() -> None:
    """torch/nn/utils/clip_grad.py before 1.13: one norm a tensor, and `if clip_coef < 1` on the host."""
    old, new = (tail_of("fp32", "adam", implementation, clip=1.0) for implementation in ("torch1", "single"))
    labels = [kind.attr("label") for _, kind in old.operators]
    assert old.host_waits_after == labels.index("grad_norm")
    assert new.host_waits_after == -1
    by_label = {kind.attr("label"): kind for _, kind in old.operators}
    assert by_label["clip"].int_attr("host_calls", 0) == by_label["clip"].int_attr("tensors", 0)
    assert traffic(old, Phase.CLIP) == traffic(new, Phase.CLIP) == 4 + 8


def test_torch_1_zeroes_gradients_and_adds_to_them() -> None:
    """A real backward pass after zero_grad(set_to_none=False) has these operators for every parameter, and none of them
    after zero_grad(). The first moment of Adam is two passes before 2.0 (mul_ and add_ for lerp_)."""
    torch = pytest.importorskip("torch")
    from torch.utils._python_dispatch import TorchDispatchMode

    model = torch.nn.Sequential(torch.nn.Linear(32, 8), torch.nn.Linear(8, 4))
    chosen = torch.optim.SGD(model.parameters(), lr=0.1, foreach=False)
    shapes = {tuple(weight.shape) for weight in model.parameters()}
    called: list[str] = []

    class Recorder(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if args and isinstance(args[0], torch.Tensor) and tuple(args[0].shape) in shapes:
                called.append(func._schema.name.removeprefix("aten::"))
            return func(*args, **(kwargs or {}))

    found = {}
    for frees in (True, False):
        model(torch.ones(2, 32)).sum().backward()
        called.clear()
        with Recorder():
            chosen.zero_grad(set_to_none=frees)
            model(torch.ones(2, 32)).sum().backward()
        found[frees] = {name: called.count(name) for name in ("zero_", "add_")}
    assert found == {True: {"zero_": 0, "add_": 0}, False: {"zero_": 4, "add_": 4}}
    old, new = (tail_of("fp32", "adam", implementation) for implementation in ("torch1", "single"))
    labels = [kind.attr("label") for _, kind in old.operators]
    assert (labels[0], labels[-1]) == ("accumulate", "zero_")
    assert traffic(old, Phase.BACKWARD) == 2 * 4 + 4
    assert traffic(old, Phase.OPTIMIZER) == traffic(new) + (4 + 4) + 4
    assert {kind.int_attr("host_calls", 0) for _, kind in old.operators} == {len(SHAPES)}


def test_apexs_lamb_clips_in_its_own_kernels() -> None:
    assert tail_of("fp32", "lamb", "fused", clip=1.0).operators == tail_of("fp32", "lamb", "fused").operators
    assert tail_of("fp32", "lamb", "foreach", clip=1.0).operators != tail_of("fp32", "lamb", "foreach").operators


def test_a_scripted_optimizer_loops_over_tensors_in_few_passes() -> None:
    scripted, fused, single = (tail_of("fp32", "lamb", name) for name in ("scripted", "fused", "single"))
    assert traffic(scripted) == traffic(fused) < traffic(single)
    calls = [sum(kind.int_attr("host_calls", 0) for _, kind in each.operators) for each in (fused, scripted, single)]
    assert calls[0] < calls[1] < calls[2]


def test_pure_half_keeps_everything_in_half() -> None:
    full, half = tail_of("fp32", "adam"), tail_of("bf16", "adam")
    assert traffic(half) * 2 == traffic(full)
    assert half.state_bytes * 2 == full.state_bytes
    assert half.master_bytes == 0


def test_clipping_reads_for_the_norm_then_scales() -> None:
    clipped = tail_of("fp32", "adam", clip=1.0)
    assert traffic(clipped, Phase.CLIP) == 4 + 8
    assert traffic(clipped, Phase.OPTIMIZER) == traffic(tail_of("fp32", "adam"))


@pytest.mark.parametrize("optimizer", sorted(set(OPTIMIZERS) - set(MATRIX_RULES) - {"none", "adamw-8bit"}))
def test_fusing_never_moves_more(optimizer: str) -> None:
    """Of 8-bit AdamW there is one kernel alone, of matrices none that fuses."""
    assert traffic(tail_of("fp32", optimizer, "fused")) < traffic(tail_of("fp32", optimizer, "foreach"))


def test_no_optimizer_and_no_gradient_leave_nothing() -> None:
    assert tail_of("fp32", "none").operators == ()
    frozen = tuple(Parameter("p", (4,), "float32", "float32", -1, False) for _ in range(2))
    assert tail(frozen, PRECISIONS["fp32"], "adam").operators == ()


def test_an_unknown_optimizer_names_the_nearest() -> None:
    with pytest.raises(JobError, match="adamw"):
        rule("adamv")


def test_a_rank_updates_a_limited_number_of_matrices() -> None:
    """Qwen3 30B-A3B: 48 layers, each with two for every one of 128 experts (gate and up are one), four of attention and
    the router."""
    job = Job("qwen3-30b-a3b", gpu="h100-80gb-sxm", gpus=16, precision="bf16-master", optimizer="muon")
    with pytest.raises(JobError, match=r"optimizer: a rank updates 12,528 matrices one by one, .*2,048.*zero1"):
        predict(job)
    assert predict(job.replace(layout="zero1")).step.p50 > 0.0
