"""Modules given in Python: copied to meta without weights, unwrapped with a note, traced as those of a file."""

from __future__ import annotations

import gc
import json
import types
import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402

from precision_time import Estimate, Job, predict, predict_time  # noqa: E402
from precision_time.capture.given_module import GivenModule  # noqa: E402
from precision_time.capture.meta_copy import meta_module, meta_tensors, unwrapped  # noqa: E402
from precision_time.errors import CaptureError, JobError  # noqa: E402


class Net(nn.Module):
    """Two linear layers with one weight, a buffer, a module in a list, a plain tensor and shared data."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(16, 16), nn.Linear(16, 16)
        self.second.weight = self.first.weight
        self.register_buffer("scale", torch.ones(16))
        self.unregistered = [nn.Linear(16, 16)]
        self.plain = torch.ones(16)
        self.data = list(range(20_000))
        self.calls = 0
        self.act = self.curve

    def curve(self, x: Any) -> Any:
        self.calls += 1
        return x.relu()

    def forward(self, x: Any) -> Any:
        return self.unregistered[0](self.second(self.act(self.first(x)))) * self.scale + self.plain


def predicted(module: Any, call: Any = None, batch: Any = None) -> Estimate:
    given = GivenModule(module, batch or BATCH, call or mse)
    return predict(Job(given.name))


def mse(module: Any, batch: Any) -> Any:
    return F.mse_loss(module(batch[0]), batch[1])


BATCH = (torch.zeros(8, 16), torch.zeros(8, 16))


def test_the_copy_has_the_structure_and_no_weights() -> None:
    net = Net()
    before = {name: value.clone() for name, value in net.state_dict().items()}
    copied = meta_module(net)
    assert type(copied) is Net
    assert {each.device.type for each in (*copied.parameters(), *copied.buffers())} == {"meta"}
    assert copied.first.weight is copied.second.weight
    assert copied.plain.device.type == copied.unregistered[0].weight.device.type == "meta"
    assert copied.act.__self__ is copied
    assert copied.data is net.data, "data is shared, not copied"
    assert [tuple(p.shape) for p in copied.parameters()] == [tuple(p.shape) for p in net.parameters()]
    net.first.weight.requires_grad_(False)
    assert not meta_module(net).first.weight.requires_grad
    predicted(net)
    assert net.calls == 0
    assert all(torch.equal(before[name], value) for name, value in net.state_dict().items())
    assert {each.device.type for each in net.parameters()} == {"cpu"}


def test_a_billion_weights_are_copied_without_memory() -> None:
    with torch.device("meta"):
        large = nn.ModuleList(nn.Linear(16_384, 16_384) for _ in range(8))
    assert sum(p.numel() for p in meta_module(large).parameters()) > 2e9


def test_strides_and_dtypes_stay() -> None:
    conv = nn.Conv2d(8, 8, 3).to(memory_format=torch.channels_last, dtype=torch.bfloat16)
    copied = meta_module(conv)
    assert copied.weight.stride() == conv.weight.stride()
    assert copied.weight.dtype is torch.bfloat16
    batch = meta_tensors({"x": torch.ones(2, 3), "more": [torch.ones(1), ("text", 3)]})
    assert batch["x"].device.type == batch["more"][0].device.type == "meta"
    assert batch["more"][1] == ("text", 3)


def test_a_module_is_predicted_as_the_same_module_in_a_file(tmp_path: Path) -> None:
    body = "torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.GELU(), torch.nn.Linear(32, 4))"
    (tmp_path / "model.py").write_text(
        f"""
import torch
def make_job(batch_size=8):
    return {{"model": {body}, "inputs": torch.empty(batch_size, 16), "optimizer": "adamw",
             "targets": torch.empty(batch_size, dtype=torch.long), "loss": torch.nn.functional.cross_entropy}}
"""
    )
    batch = torch.empty(8, 16), torch.empty(8, dtype=torch.long)
    given = GivenModule(eval(body, {"torch": torch}), batch, lambda module, b: F.cross_entropy(module(b[0]), b[1]))
    for precision in ("fp32", "amp-bf16", "bf16", "bf16-master"):
        for batch_size in (8, 64):
            fields: dict[str, Any] = {"precision": precision, "batch_size": batch_size}
            module = predict(Job(given.name, optimizer="adamw", **fields))
            file = predict_time(str(tmp_path / "model.py"), **fields)
            assert module.step == file.step
            assert module.memory == file.memory


def test_wrappers_are_taken_off_with_a_note(tmp_path: Path) -> None:
    net = Net()
    assert unwrapped(net) == (net, ())
    compiled, parallel = torch.compile(net), nn.DataParallel(net)
    for wrapped, what in ((compiled, "torch.compile"), (parallel, "DataParallel")):
        plain, notes = unwrapped(wrapped)
        assert plain is net
        assert notes == (f"the model is Net, taken out of {what}",)
    distributed = torch.distributed
    distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/group", rank=0, world_size=1)
    try:
        ddp = nn.parallel.DistributedDataParallel(net)
        assert unwrapped(ddp)[0] is net
        given = GivenModule(torch.compile(ddp), BATCH, mse)
        assert len(given.notes) == 2
        assert given.batch_size == 8
        from torch.distributed.fsdp import fully_shard

        sharded = nn.Sequential(nn.Linear(16, 16), nn.Linear(16, 16))
        fully_shard(sharded[0])
        fully_shard(sharded)
        copied = meta_module(unwrapped(sharded)[0])
        assert type(copied) is nn.Sequential
        assert type(copied[0]) is nn.Linear
        assert type(copied[0].weight) is nn.Parameter
        assert tuple(copied[0].weight.shape) == (16, 16)
        assert predicted(sharded).parameters == 2 * (16 * 16 + 16)
    finally:
        distributed.destroy_process_group()


class Tied(nn.Module):
    """Blocks, a frozen layer, and two layers with one weight."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.Sequential(Net(), Net())
        self.frozen = nn.Linear(4, 4).requires_grad_(False)
        self.head, self.tied = nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False)
        self.tied.weight = self.head.weight

    def forward(self, x: Any) -> Any:
        return self.tied(self.head(self.frozen(x))) + sum(block(x.repeat(1, 4)) for block in self.blocks)[:, :4]


@pytest.mark.filterwarnings("ignore:FSDP is switching:UserWarning", "ignore:.*NO_SHARD.*:FutureWarning")
@pytest.mark.parametrize("ranks", [1, 8])
@pytest.mark.parametrize("original", [False, True])
def test_flat_shards_get_their_weights_back(original: bool, ranks: int, tmp_path: Path) -> None:
    """A module really wrapped by FSDP1, with blocks in wrappers of their own, is the plain module with a note. One of
    eight ranks, whose collectives do nothing, holds an eighth of each flat tensor."""
    fsdp = pytest.importorskip("torch.distributed.fsdp")
    fake = pytest.importorskip("torch.testing._internal.distributed.fake_pg")
    distributed = torch.distributed
    if ranks == 1:
        distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/group", rank=0, world_size=1)
    else:
        distributed.init_process_group("fake", store=fake.FakeStore(), rank=0, world_size=ranks)
    try:
        options: dict[str, Any] = {"device_id": torch.device("cpu"), "use_orig_params": original}
        net = Tied() if original else Tied().requires_grad_(True)  # flat tensors are trained or frozen as a whole
        expected = {name: (p.shape, p.requires_grad) for name, p in net.named_parameters()}
        policy = fsdp.wrap.ModuleWrapPolicy({Net})
        wrapped = fsdp.FullyShardedDataParallel(net, auto_wrap_policy=policy, **options)
        wrapped(torch.zeros(2, 4)).sum().backward()  # leaves views of flat tensors behind
        plain, notes = unwrapped(wrapped)
        assert notes == ("the model is Tied, taken out of FullyShardedDataParallel; give layout='fsdp'",)
        copied = meta_module(plain)
        assert type(copied) is Tied
        assert type(copied.blocks[0]) is Net
        assert {name: (p.shape, p.requires_grad) for name, p in copied.named_parameters()} == expected
        assert copied.tied.weight is copied.head.weight
        assert all(p.device.type == "meta" for p in copied.parameters())
        whole, sharded = predicted(Net()), predicted(fsdp.FullyShardedDataParallel(Net(), **options))
        assert sharded.step == whole.step
        assert unwrapped(nn.Sequential(wrapped))[1] == (
            "3 parts of the model are taken out of FullyShardedDataParallel; give layout='fsdp'",
        )
    finally:
        distributed.destroy_process_group()


def test_flat_shards_that_say_nothing_are_refused() -> None:
    class FullyShardedDataParallel(nn.Module):
        """Has the name of torch's class, and neither its module nor its shapes."""

        def __init__(self, inner: nn.Module | None, handle: object) -> None:
            super().__init__()
            self.add_module("_fsdp_wrapped_module", inner)
            self._handle = handle

    for module in (
        FullyShardedDataParallel(None, None),
        FullyShardedDataParallel(nn.Linear(2, 2), SimpleNamespace(flat_param=torch.zeros(4))),
    ):
        with pytest.raises(
            CaptureError, match=r"flat shards do not say .* give the module before .*, with layout='fsdp'"
        ):
            meta_module(nn.Sequential(module))


def test_weights_that_deepspeed_partitioned_have_their_whole_shape() -> None:
    layer = nn.Linear(16, 16)
    for parameter in layer.parameters():
        parameter.ds_shape, parameter.data = parameter.shape, torch.empty(0)
    assert [tuple(p.shape) for p in meta_module(layer).parameters()] == [(16, 16), (16,)]


def test_a_class_or_a_function_is_made_on_meta() -> None:
    assert GivenModule(Net, BATCH, mse).module.first.weight.device.type == "meta"
    assert GivenModule(lambda: nn.Linear(16, 16), BATCH, mse).batch_size == 8
    with pytest.raises(CaptureError, match=r"Linear could not be made without arguments .* give an instance"):
        GivenModule(nn.Linear, BATCH, mse)
    with pytest.raises(CaptureError, match=r"model is int, not a torch.nn.Module"):
        GivenModule(3, BATCH, mse)
    with pytest.raises(CaptureError, match=r"made int, not a torch.nn.Module"):
        GivenModule(int, BATCH, mse)


def test_hooks_of_training_loops_are_left_out_and_those_of_weights_stay() -> None:
    ran = []
    net = nn.Sequential(nn.Linear(16, 16))
    net.register_forward_pre_hook(lambda *given: ran.append(given))
    net.register_full_backward_hook(lambda *given: ran.append(given))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the older weight_norm, which works by a hook
        nn.utils.weight_norm(net[0])
    nn.utils.parametrizations.spectral_norm(net.append(nn.Linear(16, 16))[1])
    predicted(net)
    assert ran == []
    assert len(meta_module(net)[0]._forward_pre_hooks) == 1


def test_a_forward_that_accelerate_replaced_is_left_out() -> None:
    net = nn.Linear(16, 16)
    ran = []
    original = net.forward
    net._original_forward = original

    def forward(self: Any, x: Any) -> Any:
        ran.append(x)
        return original(x)

    net.forward = types.MethodType(forward, net)
    predicted(net)
    assert ran == []


def test_the_batch_may_have_another_size() -> None:
    batch = {"x": torch.zeros(4, 16), "weight": torch.ones(16), "scalar": torch.tensor(1.0), "name": "x"}
    given = GivenModule(nn.Linear(16, 16), batch, lambda module, b: (module(b["x"]) * b["weight"] * b["scalar"]).sum())
    shapes = [tuple(tensor.shape) for tensor in given.workload(6).inputs.values()]
    assert shapes == [(6, 16), (16,), ()]
    assert (
        predict(Job(given.name, batch_size=4)).flops_per_step != predict(Job(given.name, batch_size=8)).flops_per_step
    )


def test_the_loss_is_found_in_what_a_model_returns() -> None:
    returned: list[Any] = [
        lambda loss: {"loss": loss}, lambda loss: types.SimpleNamespace(loss=loss), lambda loss: (loss, 1),
        lambda loss: loss.reshape(1),
    ]  # fmt: skip
    for wrap in returned:
        assert predicted(nn.Linear(16, 16), lambda module, b, wrap=wrap: wrap(mse(module, b))).step.p50 > 0
    with pytest.raises(CaptureError, match=r"returned no loss but str; give loss"):
        predicted(nn.Linear(16, 16), lambda module, b: "loss")
    with pytest.raises(CaptureError, match=r"not one number; reduce it"):
        predicted(nn.Linear(16, 16), lambda module, b: module(b[0]))


def test_a_batch_without_tensors_and_a_module_that_is_gone() -> None:
    with pytest.raises(CaptureError, match=r"holds no tensor with a first dimension"):
        GivenModule(nn.Linear(2, 2), {"text": "x", "scalar": torch.tensor(1.0)}, mse)
    given = GivenModule(nn.Linear(16, 16), BATCH, mse)
    job = Job(given.name)
    again = Job.from_dict(json.loads(json.dumps(job.to_dict())))
    with pytest.raises(JobError, match=r"code, and data runs none"):
        predict(again)
    del given
    gc.collect()
    with pytest.raises(JobError, match=r"was a module of a running program, which is gone"):
        predict(job)
