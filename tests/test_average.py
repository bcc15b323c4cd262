"""Moving averages of weights: their operators against PyTorch's own, their memory and time by hand."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from precision_time.capture.graph import BYTES_PER_ELEMENT, Phase
from precision_time.capture.optimizer import Sweep, average
from precision_time.capture.training_step import training_step
from precision_time.errors import JobError
from precision_time.estimate.checkpoints import checkpoint_bytes
from precision_time.job import Job
from precision_time.prediction import predict

STATES = "optimizer states"


def executed(how: str) -> Counter[str]:
    """Operators of the second update of the average of a convolution, a norm and a linear layer."""
    torch = pytest.importorskip("torch")
    from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
    from torch.utils._python_dispatch import TorchDispatchMode

    model = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.BatchNorm2d(8), torch.nn.Linear(8, 4))
    found: Counter[str] = Counter()

    class Mode(TorchDispatchMode):  # type: ignore[misc]
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            found[func._schema.name.removeprefix("aten::")] += 1
            return func(*args, **(kwargs or {}))

    averaged = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.999))
    averaged.update_parameters(model)
    with torch.no_grad(), Mode():
        if how == "foreach":
            averaged.update_parameters(model)
        else:  # the loop of timm's ModelEmaV2
            for kept, new in zip(averaged.module.state_dict().values(), model.state_dict().values(), strict=True):
                kept.copy_(0.999 * kept + (1.0 - 0.999) * new)
    return found


@pytest.mark.parametrize(
    ("how", "names"), [("foreach", ["_foreach_lerp_", "copy_"]), ("single", ["mul", "add", "copy_"])]
)
def test_operators_equal_the_real_average(how: str, names: list[str]) -> None:
    real = executed(how)
    sweep = Sweep((216, 8, 8, 8, 32, 4))  # convolution, norm and linear layer, with biases
    predicted: Counter[str] = Counter()
    for phase, kind in average(sweep, 3, "float32", how):
        assert phase == Phase.OPTIMIZER
        label = str(kind.attr("label"))
        predicted[{"lerp_": "_foreach_lerp_", "mul_": "mul"}.get(label, label)] += kind.int_attr("launches", 0)
    assert {name: real[name] for name in names} == predicted


def test_bytes_by_hand() -> None:
    (_, lerp), (_, copies) = average(Sweep((1000, 24)), 6, "float32", "foreach")
    assert (sum(s.shape[0] for s in lerp.inputs), lerp.int_attr("launches", 0)) == (2 * 1024, 1)
    assert copies.int_attr("launches", 0) == 6
    kinds = [kind for _, kind in average(Sweep((1000, 24)), 6, "bfloat16", "single")]
    moved = sum(BYTES_PER_ELEMENT[s.dtype] * s.shape[0] for kind in kinds for s in (*kind.inputs, *kind.outputs))
    assert moved == (2 + 2 + 3 + 2) * 2 * (1024 + 6)
    assert all(kind.int_attr("launches", 0) == 2 + 6 for kind in kinds)


def test_it_takes_a_copy_of_the_weights_which_only_zero_3_shares_out() -> None:
    job = Job("gpt2", batch_size=4, gpus=8)
    for layout, ranks in (("dp", 1), ("zero1", 1), ("fsdp", 8)):
        without, kept = (predict(job.replace(layout=layout, ema=ema)) for ema in ("none", "foreach"))
        more = kept.memory.by_category[STATES] - without.memory.by_category[STATES]
        assert more == pytest.approx(4 * without.parameters / ranks, rel=1e-3)


def test_it_takes_time_in_the_optimizer_alone() -> None:
    job = Job("gpt2", batch_size=4, precision="amp-bf16", anchors="none")
    without, kept = predict(job), predict(job.replace(ema="foreach"))
    apart = {k: v - without.breakdown[k] for k, v in kept.breakdown.items() if v != pytest.approx(without.breakdown[k])}
    assert set(apart) == {"optimizer"}
    # Two reads and one write of every weight, at 60 to 100 % of the A100's 2.04 TB/s.
    assert 12 * without.parameters / 2.04e12 < apart["optimizer"] < 12 * without.parameters / 1.2e12


def test_a_loop_waits_for_its_host_behind_a_loss_scale() -> None:
    job = Job("resnet50", batch_size=128, precision="amp-fp16", anchors="none")
    foreach, single = (predict(job.replace(ema=ema)).step.p50 for ema in ("foreach", "single"))
    assert 1.05 < single / foreach < 1.5


def test_the_models_default_is_said_and_may_be_refused() -> None:
    usual = predict(Job("gpunet-0"))
    assert any("ema single" in said for said in usual.assumptions)
    assert predict(Job("gpunet-0", ema="none")).step.p50 < usual.step.p50
    assert training_step(Job("gpunet-0", ema="none")).ema is None
    assert training_step(Job("gpunet-0", optimizer="none")).ema is None


def test_a_checkpoint_holds_it() -> None:
    step, without = (training_step(Job("resnet50", ema=ema)) for ema in ("foreach", None))
    assert checkpoint_bytes(step, 0) - checkpoint_bytes(without, 0) == pytest.approx(4 * step.parameters, rel=1e-6)


def test_without_an_update_there_is_nothing_to_average() -> None:
    with pytest.raises(JobError, match="ema foreach averages weights after an update, and optimizer is none"):
        Job("resnet50", optimizer="none", ema="foreach")
    with pytest.raises(JobError, match=r"ema .* foreach"):
        Job("resnet50", ema="yes")


@pytest.mark.parametrize("how", ["foreach", "single"])
def test_training_here_updates_it(how: str) -> None:
    torch = pytest.importorskip("torch")
    from precision_time.measure.train import DECAY, Trainer

    trainer = Trainer(Job("small-lenet5", batch_size=2, ema=how), torch.device("cpu"))
    before = [average.clone() for average in trainer._averages]
    assert all(torch.equal(a, p) for a, p in zip(before, trainer._parameters, strict=True))
    trainer.step()
    for now, old, weight in zip(trainer._averages, before, trainer._parameters, strict=True):
        torch.testing.assert_close(now, old * DECAY + weight.detach() * (1 - DECAY))
