"""LoRA and QLoRA: against a traced torch model with adapters, torch's FLOP counter, and counts by hand."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from precision_time import Job
from precision_time.capture.adapters import with_adapters
from precision_time.capture.graph import Category, OpGraph, Phase
from precision_time.capture.linear_layers import linear_layers
from precision_time.capture.quantized_weights import NF4_BYTES
from precision_time.capture.training_step import training_step
from precision_time.errors import JobError
from precision_time.estimate.estimate import Estimate
from precision_time.job.importers import from_axolotl, from_huggingface, from_llm_foundry, from_nemo
from precision_time.job.lora import Lora
from precision_time.placement import catalog_of, cluster_of
from precision_time.prediction import predict, rank_program

SHAPE = {"layers": 3, "hidden": 64, "heads": 4, "kv_heads": 2, "head_dim": 16, "ffn": 112, "vocab": 320}
SIZES = {"batch_size": 2, "seq_len": 64}


def estimate(**fields: Any) -> Estimate:
    fields = {"model": "llama3-8b", "gpu": "h100-80gb-sxm", "input": {"seq_len": 2048}, "batch_size": 2, **fields}
    return predict(Job(**{"precision": "bf16-master", "recompute": "full", **fields}))


# --- the field --------------------------------------------------------------------------------------------------


def test_the_words_of_the_field() -> None:
    job = Job("llama3-8b", lora={"rank": 8, "targets": ["q_proj", "v_proj"]}, quantized="nf4")
    assert job.lora == Lora(rank=8, targets=("q_proj", "v_proj"))
    assert Job.from_dict(job.to_dict()) == job
    assert Job("llama3-8b", lora="rank=8;targets=q_proj,v_proj", quantized="NF4") == job
    assert Job("llama3-8b", lora="16").lora == Job("llama3-8b", lora=16).lora == Lora(rank=16)
    assert "LoRA of rank 8 on q_proj v_proj on nf4 weights" in job.signature()
    for fields, message in (
        ({"lora": {"targets": "all-linear"}}, "lora has no rank"),
        ({"lora": {"rank": 0}}, "lora.rank must be a whole number of features from 1"),
        ({"lora": {"rank": 8, "alpha": 3}}, "unknown field 'alpha' in lora; nearest: .*dropout"),
        ({"lora": [16]}, "lora must be a rank or a mapping"),
        ({"lora": {"rank": 8, "targets": [3]}}, "lora.targets must be a list of layers"),
        ({"quantized": "nf4"}, "quantized nf4 freezes the weights, and no adapter is trained"),
        ({"lora": 8, "quantized": "int4"}, "quantized 'int4' is unknown; nearest: int8"),
        ({"lora": 8, "quantized": "nf4", "precision": "fp8"}, "set precision to bf16-master"),
        ({"lora": {"rank": 8, "bias": "some"}}, "lora.bias 'some' is unknown; nearest: none"),
        ({"lora": {"rank": 8, "dora": True}, "layout": {"tp": 2}, "gpus": 2}, "lora.dora takes norms.*set tp to 1"),
    ):
        with pytest.raises(JobError, match=message):
            Job("llama3-8b", **fields)


def test_targets_that_a_model_lacks() -> None:
    for fields, message in (
        ({"model": "gpt2", "lora": "rank=8;targets=q_proj"}, "'q_proj' is no linear layer of gpt2.*qkv, output"),
        ({"model": "mixtral-8x7b", "lora": {"rank": 8, "dora": True}}, "lora.dora has no form for the experts '\\w+'"),
        ({"model": "llama2-70b-lora", "lora": 8}, "lora adds adapters, and llama2-70b-lora has its own"),
    ):
        with pytest.raises(JobError, match=message):
            training_step(Job(**fields))


def test_adapters_are_not_trained_by_verify() -> None:
    pytest.importorskip("torch")
    from precision_time.errors import MeasureError
    from precision_time.measure.train import check

    with pytest.raises(MeasureError, match="lora cannot be trained here"):
        check(Job("gpt", lora=8))


# --- counts by hand ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("targets", "per_layer"),
    [
        # in + out of each adapted layer of Llama 3 8B: hidden 4096, keys and values 1024, feed-forward 14336
        ("q_proj,v_proj", (4096 + 4096) + (4096 + 1024)),
        ("attention", 2 * (4096 + 4096) + 2 * (4096 + 1024)),
        ("all-linear", 2 * (4096 + 4096) + 2 * (4096 + 1024) + 3 * (4096 + 14336)),
    ],
)
def test_trained_parameters_of_llama(targets: str, per_layer: int) -> None:
    step = training_step(Job("llama3-8b", lora=f"rank=16;targets={targets}"))
    trained = 16 * 32 * per_layer
    assert step.parameters == 8_030_261_248 + trained
    assert round(step.layers.trainable_share * step.parameters) == trained


def test_what_is_trained_travels_and_is_updated() -> None:
    """Master weights and states of Adam are of adapters alone; gradients are all that DDP reduces."""
    trained = 41_943_040  # of all linear layers, rank 16: the figure that peft prints for Llama 3 8B
    plain, adapted = estimate(gpus=8), estimate(gpus=8, lora=16)
    rows = adapted.memory.by_category
    assert rows["master weights"] == 4 * trained
    assert rows["optimizer states"] == 8 * trained
    assert rows["weights"] == 2 * (8_030_261_248 + trained)
    assert adapted.breakdown["communication_exposed"] < 0.02 * plain.breakdown["communication_exposed"]
    assert adapted.step.p50 < plain.step.p50
    note = "LoRA of rank 16 on all-linear: 41,943,040 of 8,072,204,288 parameters are trained"
    assert note in adapted.assumptions


def test_utilisation_counts_what_is_trained() -> None:
    """Of 6 FLOP a weight and token 4 are left: no products for gradients of weights; and attention's are all left."""
    plain, adapted = (estimate(lora=lora, input={"seq_len": 512}) for lora in (None, "rank=8;targets=q_proj,v_proj"))
    weights = 8_030_261_248 - 128_256 * 4096  # the embedding has no product
    tokens = 2 * 512
    attention = plain.utilisation.model_flops - 6 * weights * tokens
    adapters = 6 * 32 * 8 * (4096 + 4096 + 4096 + 1024) * tokens
    assert 0 < attention < 0.03 * plain.utilisation.model_flops
    expected = 4 * weights * tokens + attention + adapters
    assert adapted.utilisation.model_flops == pytest.approx(expected, rel=0.01)  # the first block has a little less
    rates = [each.utilisation.model_flops / each.step.p50 / 989.4e12 for each in (plain, adapted)]
    assert [each.utilisation.mfu for each in (plain, adapted)] == pytest.approx(rates, rel=0.01)


def test_bytes_of_4_bit_weights() -> None:
    """The linear layers of all blocks in NF4 with constants quantized twice, the rest in bf16 (QLoRA, section 3)."""
    assert pytest.approx(0.5 + 0.127 / 8, abs=1e-4) == NF4_BYTES
    linear = 32 * (2 * 4096 * 4096 + 2 * 4096 * 1024 + 3 * 4096 * 14336)
    rest = 8_030_261_248 - linear + 41_943_040
    for layout, gpus in (("dp", 1), ("fsdp", 8)):
        rows = estimate(lora=16, quantized="nf4", layout=layout, gpus=gpus).memory.by_category
        trained = 0 if layout == "fsdp" else 41_943_040  # FSDP keeps the fp32 master instead
        assert rows["weights"] == pytest.approx(
            (NF4_BYTES * linear + 2 * (rest - 41_943_040 + trained)) / gpus, rel=1e-6
        )


def test_dequantization_costs_time_and_saves_memory() -> None:
    plain, packed = estimate(lora=16), estimate(lora=16, quantized="nf4")
    assert packed.memory.peak_bytes < plain.memory.peak_bytes - 10e9
    assert 1.01 < packed.step.p50 / plain.step.p50 < 1.3


def test_8_bit_weights() -> None:
    """A byte a weight; two more passes over activations before each product and two after, and all inputs are kept."""
    linear = 32 * (2 * 4096 * 4096 + 2 * 4096 * 1024 + 3 * 4096 * 14336)
    plain, eight, four = (estimate(lora=16, quantized=q, recompute="none") for q in (None, "int8", "nf4"))
    saved = plain.memory.by_category["weights"] - eight.memory.by_category["weights"]
    assert saved == pytest.approx(linear, rel=1e-6)
    assert plain.step.p50 < eight.step.p50 < 2 * plain.step.p50
    assert any("products of 8 bits taken to last as long" in note for note in eight.assumptions)
    # of adapters on queries and values alone, what goes into the last product (4096 tokens of 14336) is kept as well
    few = "rank=8;targets=q_proj,v_proj"
    kept = [
        estimate(lora=few, quantized=q, recompute="none").memory.by_category["activations"] for q in ("int8", "nf4")
    ]
    assert kept[0] - kept[1] > 31 * 2 * 4096 * 14336
    assert four.memory.by_category["weights"] < eight.memory.by_category["weights"]
    job = Job("llama3-8b", lora=8, quantized="fp4", precision="bf16-master", gpu="h100-80gb-sxm")
    assert predict(job).step.p50 == predict(job.replace(quantized="nf4")).step.p50


def test_modules_trained_whole_beside_adapters() -> None:
    """Embedding and head of Llama 3 8B, 128,256 x 4,096 each: trained, and their originals kept beside."""
    whole = 128_256 * 4096
    plain, saved = estimate(lora=16), estimate(lora={"rank": 16, "modules_to_save": ["embed_tokens", "lm_head"]})
    rows = [each.memory.by_category for each in (plain, saved)]
    assert rows[1]["master weights"] - rows[0]["master weights"] == 4 * 2 * whole
    assert rows[1]["optimizer states"] - rows[0]["optimizer states"] == 8 * 2 * whole
    assert rows[1]["weights"] - rows[0]["weights"] == 2 * 2 * whole
    assert any("embed_tokens lm_head whole" in note and "41,943,040" not in note for note in saved.assumptions)
    flop = saved.utilisation.model_flops - plain.utilisation.model_flops
    # the head's gradient, and those of what goes into the first block, which lead to the embedding
    assert flop == pytest.approx(2 * 4096 * (whole + 4096 * 4096 + 2 * 4096 * 1024), rel=0.01)
    with pytest.raises(JobError, match="'lm_haed' is no module of llama3-8b with weights; nearest: head"):
        estimate(lora={"rank": 16, "modules_to_save": ["lm_haed"]})
    tied = training_step(Job("gpt2", lora={"rank": 4, "modules_to_save": "lm_head"}))
    assert [p.name for p in tied.graph.parameters if p.trainable and "lora" not in p.name] == ["embedding.weight"]


def test_4_bit_weights_are_gathered_in_4_bits() -> None:
    """FSDP's all-gather of a block: linear layers in NF4, its two norms and the adapters in bf16."""
    job = Job(
        "llama3-8b", lora=16, quantized="nf4", layout="fsdp", gpus=8, gpu="h100-80gb-sxm", precision="bf16-master"
    )
    program = rank_program(job, job.precision_spec, cluster_of(job, catalog_of(job)))[1]
    block = next(unit for unit in program.units if unit.name.startswith("blocks"))
    linear = 2 * 4096 * 4096 + 2 * 4096 * 1024 + 3 * 4096 * 14336
    gathered = program.gathered_bytes(block.dense_elements, block.packed_dense)
    assert gathered == pytest.approx(NF4_BYTES * linear + 2 * (2 * 4096 + 41_943_040 / 32))


# --- against torch ----------------------------------------------------------------------------------------------


def calls(graph: OpGraph) -> Counter[Any]:
    """Every call with its module, operator, dtypes and elements."""
    found: Counter[Any] = Counter()
    for call in graph.calls:
        kind = graph.kinds[call.kind]
        module = graph.modules[call.module]
        for part in (".lora_a", ".lora_b", ".dropout"):
            module = module.removesuffix(part)
        inputs, outputs = (tuple((t.dtype, t.numel) for t in specs) for specs in (kind.inputs, kind.outputs))
        found[call.phase, module, kind.name, inputs, outputs] += 1
    return found


def most_alive(graph: OpGraph) -> int:
    """Most bytes of activations and gradients at once."""
    change = [0] * (len(graph.calls) + 2)
    for s in graph.storages:
        if s.category in (Category.ACTIVATIONS, Category.GRADIENTS) and s.born >= 0:
            change[s.born] += s.nbytes
            change[min(s.dies, len(graph.calls)) + 1] -= s.nbytes
    alive = most = 0
    for each in change:
        most = max(most, alive := alive + each)
    return most


def traced(config: dict[str, Any], regime: str, name: str = "llama3-8b") -> OpGraph:
    pytest.importorskip("torch")
    from precision_time.capture.trace import trace_entry
    from precision_time.zoo.catalog import ENTRIES

    entry = ENTRIES[name]
    return trace_entry(entry, {**entry.config, **SHAPE, **config}, SIZES, regime, "flash")


@pytest.fixture
def peft_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """The zoo's adapters, which scale between their products as NVIDIA's do, with the order of peft."""
    pytest.importorskip("torch")
    from torch import Tensor, nn

    from precision_time.zoo.models.decoder_parts import LoraLinear

    def forward(self: Any, x: Tensor) -> Tensor:
        return nn.Linear.forward(self, x) + self.lora_b(self.lora_a(self.dropout(x))) * 2.0

    monkeypatch.setattr(LoraLinear, "forward", forward)


@pytest.mark.parametrize("dropout", [0.0, 0.1])
@pytest.mark.parametrize("regime", ["full", "autocast", "half"])
@pytest.mark.parametrize("fused", [0, 1])
@pytest.mark.usefixtures("peft_order")
def test_a_step_with_adapters_is_that_of_torch(regime: str, dropout: float, fused: int) -> None:
    """Operators, dtypes, trained weights and live bytes of a real module with adapters, traced."""
    shape = {"fused_qkv": fused, "bias": fused}
    real = traced({**shape, "lora": 8, "lora_dropout": dropout}, regime)
    made = with_adapters(traced(shape, regime), Lora(rank=8, targets=("attention",), dropout=dropout))
    assert calls(made) == calls(real)
    assert most_alive(made) == most_alive(real)
    trained = [sorted((p.shape, p.dtype) for p in g.parameters if p.trainable) for g in (made, real)]
    assert trained[0] == trained[1]
    assert all(made.kinds[made.calls[p.ready].kind].outputs[0].shape == p.shape for p in made.parameters if p.trainable)


@pytest.fixture
def dora_of_peft(monkeypatch: pytest.MonkeyPatch) -> None:
    """The zoo's adapters as DoRA in the order of peft 0.21 (DoraLinearLayer.forward, DoraLinearVariant.forward)."""
    torch = pytest.importorskip("torch")
    from torch import nn

    from precision_time.zoo.models.decoder_parts import LoraLinear

    made = LoraLinear.__init__

    def init(self: Any, inputs: int, outputs: int, *rest: Any) -> None:
        made(self, inputs, outputs, *rest)
        self.lora_magnitude = nn.Parameter(torch.empty(outputs))

    def forward(self: Any, x: Any) -> Any:
        result = nn.Linear.forward(self, x)
        a, b, dropping = self.lora_a, self.lora_b, isinstance(self.dropout, nn.Dropout)
        if dropping:
            x = self.dropout(x)
        dtype = a.weight.dtype
        change = b(a(torch.eye(a.weight.shape[1], dtype=dtype))).T.to(dtype)
        weight = self.weight.to(dtype)
        norm = torch.linalg.norm(weight + 2.0 * change.detach(), dim=1).to(dtype).detach()
        factor = (self.lora_magnitude / norm).view(1, -1)
        low = b(a(x))
        base = nn.functional.linear(x, weight) if dropping else result if self.bias is None else result - self.bias
        return (result + ((factor - 1) * base + factor * low * 2.0)).to(result.dtype)

    monkeypatch.setattr(LoraLinear, "__init__", init)
    monkeypatch.setattr(LoraLinear, "forward", forward)


@pytest.mark.parametrize("dropout", [0.0, 0.1])
@pytest.mark.parametrize("regime", ["full", "autocast", "half"])
@pytest.mark.parametrize("fused", [0, 1])
@pytest.mark.usefixtures("dora_of_peft")
def test_a_step_with_dora_is_that_of_torch(regime: str, dropout: float, fused: int) -> None:
    """Operators, dtypes, trained weights and live bytes of a real module with adapters and magnitudes, traced."""
    shape = {"fused_qkv": fused, "bias": fused}
    real = traced({**shape, "lora": 8, "lora_dropout": dropout}, regime)
    lora = Lora(rank=8, targets=("attention",), dropout=dropout, dora=True)
    made = with_adapters(traced(shape, regime), lora)
    assert calls(made) == calls(real)
    assert most_alive(made) == most_alive(real)
    trained = [sorted((p.shape, p.dtype) for p in g.parameters if p.trainable) for g in (made, real)]
    assert trained[0] == trained[1]


def test_dora_by_hand() -> None:
    """Of one layer of Llama 3 8B, keys of 4096 features into 1024, with rank 16: what DoRA adds to LoRA."""
    inputs, outputs, rank, tokens = 4096, 1024, 16, 256
    fields: dict[str, Any] = {"precision": "bf16", "batch_size": 1, "input": {"seq_len": tokens}}
    lora, dora = (
        training_step(Job("llama3-8b", lora={"rank": rank, "targets": ["k_proj"], "dora": on}, **fields)).graph
        for on in (False, True)
    )
    more = calls(dora)
    more.subtract(calls(lora))
    here = {key: n for key, n in more.items() if key[1] == "blocks.1.attention.key" and n}
    products = [(phase, i, o) for (phase, _, name, i, o), n in here.items() if name == "aten.mm"]
    eye, a, b = inputs * inputs, inputs * rank, rank * outputs
    assert sorted(products) == [  # an identity matrix through A and B: 2 x 4096 x 16 x (4096 + 1024) FLOP
        (Phase.FORWARD, (("bfloat16", inputs * rank), ("bfloat16", b)), (("bfloat16", inputs * outputs),)),
        (Phase.FORWARD, (("bfloat16", eye), ("bfloat16", a)), (("bfloat16", inputs * rank),)),
    ]
    whole = ("bfloat16", inputs * outputs)
    passes = Counter(
        {(name, o): n for (phase, _, name, i, o), n in here.items() if o == (whole,) and name != "aten.mm"}
    )
    assert passes == {("aten.mul", (whole,)): 1, ("aten.add", (whole,)): 1}  # s B A, and W + s B A
    assert here[Phase.FORWARD, "blocks.1.attention.key", "aten.linalg_vector_norm", (whole,), (("bfloat16", outputs),)]
    result = (("bfloat16", tokens * outputs),)
    over = Counter()  # passes over the layer's result
    for (phase, _, name, _, o), n in here.items():
        if o == result and name != "aten.mm":
            over[phase.name, name] += n
    assert over == {("FORWARD", "aten.mul"): 2, ("FORWARD", "aten.add"): 1, ("BACKWARD", "aten.mul"): 4,
                    ("BACKWARD", "aten.add"): 1}  # fmt: skip
    magnitudes = [p for p in dora.parameters if "lora_magnitude" in p.name]
    assert [(p.shape, p.trainable) for p in magnitudes] == [((outputs,), True)] * len(magnitudes)
    # the layer's result and the adapter's are kept for the gradient of the magnitudes
    assert most_alive(dora) - most_alive(lora) >= 2 * 2 * tokens * outputs


def test_dora_of_a_whole_model() -> None:
    """Magnitudes are trained; the step takes longer, most with dropout, which computes each layer twice."""
    rank, outputs = 16, 32 * (2 * 4096 + 2 * 1024 + 2 * 14336 + 4096)
    plain, dora, dropped = (
        estimate(lora={"rank": rank, "dora": on, "dropout": p}) for on, p in ((False, 0), (True, 0), (True, 0.05))
    )
    rows = [each.memory.by_category["optimizer states"] for each in (plain, dora)]
    assert rows[1] - rows[0] == 8 * outputs
    assert 1.2 < dora.step.p50 / plain.step.p50 < 2
    assert 1.2 < dropped.step.p50 / dora.step.p50 < 1.8
    assert not dropped.unsupported
    assert any("DoRA of rank 16 on all-linear" in note for note in dora.assumptions)
    sides = 2 * [(4096, 4096)] + 2 * [(4096, 1024)] + 2 * [(4096, 14336)] + [(14336, 4096)]
    norms = 32 * sum(2 * rank * a * (a + b) for a, b in sides)  # an identity matrix through both parts of the adapter
    assert dora.utilisation.model_flops - plain.utilisation.model_flops == pytest.approx(norms, rel=0.03)
    for kind in ("nf4", "int8"):
        packed = [estimate(lora={"rank": rank, "dora": on}, quantized=kind) for on in (False, True)]
        assert packed[1].step.p50 > packed[0].step.p50 + (dora.step.p50 - plain.step.p50)  # dequantized once more


def test_biases_trained_beside_adapters() -> None:
    """GPT-2, 12 blocks of width 768: biases of two norms, attention 3 + 1, feed-forward 4 + 1, and of the last norm."""
    width, layers = 768, 12
    adapters = layers * 4 * (width + 3 * width)
    for bias, trained in (
        ("none", 0),
        ("all", layers * width * (2 + 3 + 1 + 4 + 1) + width),
        ("lora_only", layers * 3 * width),
    ):
        lora = {"rank": 4, "targets": ["c_attn"], "bias": bias}
        for precision in ("bf16-master", "amp-bf16", "torch-fp32"):
            step = training_step(Job("gpt2", lora=lora, precision=precision, input={"seq_len": 128}))
            assert round(step.layers.trainable_share * step.parameters) == adapters + trained
            graph = step.graph
            elements = [p.numel for p in graph.parameters if p.trainable]
            written = {s for call in graph.calls for s in call.writes}
            gradients = [i for i, s in enumerate(graph.storages) if s.category is Category.GRADIENTS and i in written]
            assert sorted(graph.storages[i].nbytes for i in gradients) == sorted(
                (2 if precision == "bf16-master" else 4) * n for n in elements
            )


def test_flop_are_those_of_torch() -> None:
    """A hand-written decoder block with adapters beside all its layers, under FlopCounterMode."""
    torch = pytest.importorskip("torch")
    from torch import nn
    from torch.utils.flop_counter import FlopCounterMode

    hidden, ffn, rank, tokens, layers = 64, 112, 8, 128, 3

    class Adapted(nn.Module):
        def __init__(self, inputs: int, outputs: int) -> None:
            super().__init__()
            self.base = nn.Linear(inputs, outputs, bias=False).requires_grad_(False)
            self.a, self.b = nn.Linear(inputs, rank, bias=False), nn.Linear(rank, outputs, bias=False)

        def forward(self, x: Any) -> Any:
            return self.base(x) + 2.0 * self.b(self.a(x))

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.q, self.k, self.v = Adapted(hidden, hidden), Adapted(hidden, 32), Adapted(hidden, 32)
            self.o = Adapted(hidden, hidden)
            self.gate, self.up, self.down = Adapted(hidden, ffn), Adapted(hidden, ffn), Adapted(ffn, hidden)

        def forward(self, x: Any) -> Any:
            x = x + self.o(self.q(x) + torch.cat((self.k(x), self.v(x)), -1))
            return x + self.down(nn.functional.silu(self.gate(x)) * self.up(x))

    head = nn.Linear(hidden, 320, bias=False).requires_grad_(False)
    model = nn.Sequential(*(Block() for _ in range(layers)), head)
    with FlopCounterMode(display=False) as counter:
        model(torch.randn(tokens, hidden)).sum().backward()

    graph = with_adapters(traced({}, "full"), Lora(rank=rank))
    flop = 0
    for call in graph.calls:
        kind = graph.kinds[call.kind]
        if kind.name == "aten.mm":
            flop += 2 * kind.inputs[0].numel * kind.inputs[1].shape[1]
    assert flop == counter.get_total_flops()


@pytest.mark.parametrize("model", ["llama3-8b", "gpt2", "mixtral-8x7b", "gemma3-4b", "deepseek-v3"])
@pytest.mark.parametrize("quantized", [None, "nf4", "int8"])
def test_stored_and_traced_steps_get_the_same_adapters(model: str, quantized: str | None) -> None:
    """The step that ships, without torch, against the model traced at the same shape."""
    pytest.importorskip("torch")
    from precision_time.capture.trace import trace_entry
    from precision_time.zoo.catalog import ENTRIES

    shape: dict[str, Any] = {"layers": 6 if "gemma3" in model else 4, "vocab": 640}
    job = Job(
        model, lora=Lora(rank=4, dropout=0.05), quantized=quantized, precision="bf16-master", batch_size=2,
        input={"seq_len": 256}, model_config=shape,
    )  # fmt: skip
    layers = training_step(job).layers
    entry = ENTRIES[model]
    config = {**entry.config, **shape}
    depth = len({p.name.split(".")[1] for p in layers.graph.parameters if p.name.startswith("blocks.")})
    config |= {"layers": depth, **({"dense_layers": 1} if config.get("dense_layers") else {})}
    assert job.lora is not None
    plain = trace_entry(entry, config, {"batch_size": 2, "seq_len": 256}, "half", "flash")
    assert calls(with_adapters(plain, job.lora, quantized)) == calls(layers.graph)


def test_models_of_transformers_and_encoders(tmp_path: Path) -> None:
    """Adapters of a traced Llama of Hugging Face, of BERT, and of Whisper, whose positions are frozen anyway."""
    pytest.importorskip("transformers")
    config = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 64, "intermediate_size": 176,
              "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 99}  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(config))
    for job, trained in (
        (Job(f"hf:{tmp_path}/config.json", lora="rank=8;targets=q_proj,v_proj"), 3 * 8 * (64 + 64 + 64 + 32)),
        (Job("bert-large", lora="rank=8;targets=attention"), 24 * 8 * 4 * (1024 + 1024)),
        (Job("whisper-small", lora="rank=8;targets=q_proj"), 12 * 3 * 8 * (768 + 768)),
    ):
        found = predict(job.replace(gpu="h100-80gb-sxm", precision="bf16-master", batch_size=1))
        assert any(f": {trained:,} of " in note for note in found.assumptions), found.assumptions


def test_experts_have_an_adapter_each() -> None:
    step = training_step(Job("mixtral-8x7b", lora=16, precision="bf16-master", input={"seq_len": 256}))
    graph = step.graph
    down = {
        p.name: p.shape for p in graph.parameters if "experts.down.lora" in p.name and p.name.startswith("blocks.1")
    }
    assert sorted(down.values()) == [(8, 16, 4096), (8, 14336, 16)]
    assert all("router" not in layer.path for layer in linear_layers(training_step(Job("mixtral-8x7b")).graph))


def test_frozen_layers_have_no_products_for_their_gradients() -> None:
    """Backward, a frozen layer has the product for its input alone, and the first block's first layers have none."""
    job = Job(
        "llama3-8b", lora="rank=8;targets=down_proj", precision="bf16-master", input={"seq_len": 256}, batch_size=1
    )
    graph = training_step(job).graph
    products = [
        (graph.modules[c.module], graph.kinds[c.kind].outputs[0].shape)
        for c in graph.calls
        if c.phase is Phase.BACKWARD and graph.kinds[c.kind].name == "aten.mm"
    ]
    assert [shape for module, shape in products if module == "blocks.1.ffn.up"] == [(256, 4096)]
    assert not [module for module, _ in products if module.startswith("blocks.0.") and "down" not in module]


# --- other programs' files --------------------------------------------------------------------------------------


def test_adapters_of_other_programs() -> None:
    axolotl = {"base_model": "meta-llama/Llama-3.1-8B", "bf16": True, "lora_r": 32, "lora_alpha": 16}
    qlora = from_axolotl(
        {**axolotl, "adapter": "qlora", "load_in_4bit": True, "lora_target_linear": True, "lora_dropout": 0.05}
    )
    fields = qlora.job_fields()
    assert fields["lora"] == {"rank": 32, "targets": ["all-linear"], "dropout": 0.05}
    assert (fields["quantized"], qlora.not_taken["lora_alpha"]) == ("nf4", "does not change the time of a step")
    named = {
        "adapter": "lora",
        "lora_target_modules": ["q_proj", "model.layers.o_proj"],
        "lora_modules_to_save": ["lm_head"],
    }
    lora = from_axolotl({**axolotl, **named})
    assert lora.fields["lora"] == {"rank": 32, "targets": ["q_proj", "o_proj"], "modules_to_save": ["lm_head"]}
    experts = {"adapter": "lora", "lora_target_parameters": ["mlp.experts.gate_up_proj"], "lora_bias": "lora_only"}
    lora = from_axolotl({**axolotl, **experts, "load_in_8bit": True})
    assert lora.fields["lora"] == {"rank": 32, "targets": ["gate_up_proj"], "bias": "lora_only"}
    assert lora.fields["quantized"] == "int8"
    assert not {"peft_use_dora", "lora_bias"} & set(lora.not_taken)
    trl = from_huggingface({"output_dir": "x", "use_peft": True, "load_in_4bit": True, "model_name_or_path": "gpt2"})
    assert (trl.fields["lora"], trl.fields["quantized"]) == ({"rank": 16, "targets": ["c_attn"]}, "nf4")
    dora = from_huggingface({"output_dir": "x", "use_peft": True, "use_dora": True, "model_name_or_path": "gpt2"})
    assert dora.fields["lora"] == {"rank": 16, "targets": ["c_attn"], "dora": True}
    assert "use_dora" in dora.taken
    foundry = {
        "name": "hf_causal_lm",
        "pretrained_model_name_or_path": "a/b",
        "peft_config": {"r": 8, "target_modules": "all-linear"},
    }
    assert from_llm_foundry({"max_seq_len": 8, "model": foundry}).fields["lora"] == {
        "rank": 8,
        "targets": ["all-linear"],
    }
    bridge = from_nemo({"train": {"micro_batch_size": 1, "global_batch_size": 8},
                        "model": {"_target_": "megatron.bridge.models.llama.Llama3ModelProvider8B"},
                        "peft": {"_target_": "megatron.bridge.peft.lora.LoRA", "dim": 8, "alpha": 16}})  # fmt: skip
    assert bridge.fields["lora"]["targets"] == ["linear_qkv", "linear_proj", "linear_fc1", "linear_fc2"]
    dora = from_nemo({"train": {"micro_batch_size": 1, "global_batch_size": 8},
                      "model": {"_target_": "megatron.bridge.models.llama.Llama3ModelProvider8B"},
                      "peft": {"_target_": "megatron.bridge.peft.dora.DoRA", "dim": 8}})  # fmt: skip
    assert (dora.fields["lora"]["dora"], dora.not_taken["DoRA"]) == (True, "is taken in peft's order of operations")
    job = Job("llama3-8b", lora=bridge.fields["lora"])
    assert training_step(job).parameters == training_step(Job("llama3-8b", lora=8)).parameters
    for config, message in (
        ({"adapter": "lora", "lora_r": None}, "lora .the file has an adapter but no lora_r"),
        ({"adapter": "lora", "lora_target_modules": ".*proj"}, "is a pattern; give the names"),
    ):
        with pytest.raises(JobError, match=message):
            from_axolotl({**axolotl, **config}).job_fields()
