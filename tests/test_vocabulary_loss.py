"""The loss of logits in fp32 and fused with the head: against transformers, a real step's memory, and by hand."""

from __future__ import annotations

import json
import weakref
from pathlib import Path
from typing import Any

import pytest

from precision_time import Job
from precision_time.capture.graph import Category, OpGraph, Phase
from precision_time.capture.training_step import training_step
from precision_time.capture.vocabulary_loss import chunks
from precision_time.errors import JobError
from precision_time.job.importers import from_accelerate, from_axolotl, from_huggingface, merged
from precision_time.prediction import predict
from test_lora import most_alive

VOCABULARY, HIDDEN = 4000, 64
SHAPE = {"layers": 3, "hidden": HIDDEN, "heads": 4, "kv_heads": 2, "head_dim": 16, "ffn": 112, "vocab": VOCABULARY}
CONFIG = {
    "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": HIDDEN, "intermediate_size": 112,
    "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": VOCABULARY,
    "head_dim": 16,
}  # fmt: skip
TOKENS = 256


def step(loss: str | None, precision: str = "bf16", **fields: Any) -> OpGraph:
    shape = {"model_config": SHAPE, "batch_size": 2, "input": {"seq_len": 128}}
    return training_step(Job("llama3-8b", loss=loss, precision=precision, **{**shape, **fields})).graph


def of_logits(graph: OpGraph) -> list[Any]:
    """Calls on tensors of a row for each token and a column for each word: operator, dtypes, and how long what they
    write lives in calls that are among them."""
    elements = TOKENS * VOCABULARY
    here = [
        i
        for i, call in enumerate(graph.calls)
        if any(s.numel == elements for s in (*graph.kinds[call.kind].inputs, *graph.kinds[call.kind].outputs))
    ]
    found = []
    for i in here:
        call = graph.calls[i]
        kind = graph.kinds[call.kind]
        lives = [
            sum(i < j <= graph.storages[s].dies for j in here)
            for s, spec in zip(call.writes, kind.outputs, strict=True)
            if spec.numel == elements
        ]
        nbytes = [graph.storages[s].nbytes for s in call.writes if graph.storages[s].nbytes >= 2 * elements]
        found.append((kind.name, [s.dtype for s in (*kind.inputs, *kind.outputs)], lives, nbytes))
    return found


@pytest.mark.parametrize("precision", ["bf16", "amp-bf16", "fp16", "bf16-master"])
def test_in_fp32_it_is_that_of_transformers(precision: str, tmp_path: Path) -> None:
    """Operators on logits, their dtypes and lifetimes, of LlamaForCausalLM as it is traced."""
    pytest.importorskip("transformers")
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    job = Job(f"hf:{tmp_path}/config.json", precision=precision, batch_size=2, input={"seq_len": 128})
    real, made, plain = of_logits(training_step(job).graph), of_logits(step("fp32", precision)), step(None, precision)
    names = [name.removeprefix("aten.") for name, *_ in made]
    assert names == ["mm", "_to_copy", "_log_softmax", "nll_loss_forward", "nll_loss_backward",
                     "_log_softmax_backward_data", "_to_copy", "mm", "mm"]  # fmt: skip
    # one call of transformers' forward pass is between the loss and the end of its names
    assert [(name, dtypes, nbytes) for name, dtypes, _, nbytes in made] == [(n, d, b) for n, d, _, b in real]
    assert [lives for *_, lives, _ in made] == [lives for *_, lives, _ in real]
    assert of_logits(plain) != made


def test_memory_is_that_of_a_real_step() -> None:
    """LlamaForCausalLM and the zoo's Llama in bf16, really run on the CPU: most bytes alive beside weights."""
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    from torch.utils._python_dispatch import TorchDispatchMode

    from precision_time.zoo.catalog import ENTRIES
    from precision_time.zoo.models.decoder import build

    class Alive(TorchDispatchMode):
        def __init__(self) -> None:
            super().__init__()
            self.known: weakref.WeakSet[Any] = weakref.WeakSet()
            self.now = self.most = 0

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            result = func(*args, **(kwargs or {}))
            for each in torch.utils._pytree.tree_leaves(result):
                if isinstance(each, torch.Tensor) and (storage := each.untyped_storage()) not in self.known:
                    self.known.add(storage)
                    self.now += storage.nbytes()
                    self.most = max(self.most, self.now)
                    weakref.finalize(storage, self.gone, storage.nbytes())
            return result

        def gone(self, nbytes: int) -> None:
            self.now -= nbytes

    kept = {k: v for k, v in CONFIG.items() if k not in ("model_type", "architectures")}
    config = transformers.LlamaConfig(**kept, attn_implementation="sdpa")
    model = transformers.LlamaForCausalLM(config).to(torch.bfloat16)
    ids = torch.randint(0, VOCABULARY, (2, 128))
    with Alive() as alive:
        model(input_ids=ids, labels=ids, use_cache=False).loss.backward()
    # its norms and activations, which the zoo has as one kernel each, keep the rest
    assert 0.9 * alive.most < most_alive(step("fp32")) < alive.most
    assert most_alive(step(None)) < 0.6 * alive.most  # what was predicted before

    entry = ENTRIES["llama3-8b"]
    most = []
    for wide in (False, True):
        work = build({**entry.config, **SHAPE}, {"batch_size": 2, "seq_len": 128})
        module = work.module.to(torch.bfloat16)
        with Alive() as alive:
            logits = module(ids).float() if wide else module(ids)
            loss = torch.nn.functional.cross_entropy(logits.flatten(0, -2), ids.flatten())
            del logits
            loss.backward()
        most.append(alive.most)
    # a CPU's norms are several kernels, which keep more of both; what fp32 adds is the same to a few bytes
    assert most_alive(step("fp32")) - most_alive(step(None)) == pytest.approx(most[1] - most[0], abs=64)


def test_bytes_by_hand() -> None:
    """At the fullest moment of the backward pass log-probabilities, their gradient and that of the logits, 4 bytes an
    element each; before, 2 bytes each."""
    elements = TOKENS * VOCABULARY
    assert most_alive(step("fp32")) - most_alive(step(None)) == pytest.approx(6 * elements, rel=0.01)
    # under autocast the cast is made before log-softmax instead of behind it
    made, plain = of_logits(step("fp32", "amp-bf16")), of_logits(step(None, "amp-bf16"))
    assert sorted(name for name, *_ in made) == sorted(name for name, *_ in plain)


def test_chunks_are_those_of_liger() -> None:
    assert chunks(4 * 4096, 4096, 32000) == (2048, 8)  # the example in its source
    assert chunks(8192, 4096, 128_256) == (256, 32)
    assert chunks(100, 64, 32) == (100, 1)
    assert chunks(TOKENS, HIDDEN, VOCABULARY) == (8, 32)  # 63 times as wide: 256 / 63 tokens, as a power of two


def test_fused_with_the_head_by_hand() -> None:
    graph, plain = step("liger"), step(None)
    size, count = chunks(TOKENS, HIDDEN, VOCABULARY)
    here = [(graph.kinds[c.kind], c) for c in graph.calls if graph.modules[c.module] == "head"]
    names = [kind.name for kind, _ in here]
    assert names.count("aten.mm") == 2 * count
    assert names.count("aten.addmm") == names.count("pt.fused_pointwise") == count
    assert [kind.name for kind, call in here if call.phase is Phase.BACKWARD] == ["aten.mul_", "aten.mul_"]
    assert not {"aten._log_softmax", "aten.nll_loss_backward"} & {kind.name for kind in graph.kinds}
    assert flop(graph) == flop(plain)
    # a chunk's logits are all that there is of them
    largest = max(s.nbytes for s in graph.storages if s.category is Category.ACTIVATIONS and s.born >= 0)
    assert size * VOCABULARY * 2 <= largest < TOKENS * VOCABULARY
    assert most_alive(graph) < most_alive(plain) / 2
    (head,) = (p for p in graph.parameters if p.name == "head.weight")
    assert graph.calls[head.ready].phase is Phase.BACKWARD
    assert graph.kinds[graph.calls[head.ready].kind].name == "aten.mul_"


def flop(graph: OpGraph) -> int:
    total = 0
    for call in graph.calls:
        kind = graph.kinds[call.kind]
        if kind.name in ("aten.mm", "aten.addmm"):
            a, b = kind.inputs[-2:]
            total += 2 * a.numel * b.shape[1]
    return total


def test_a_frozen_head_has_no_gradient_of_its_weight() -> None:
    graph = step("liger", lora=8)
    names = [graph.kinds[c.kind].name for c in graph.calls if graph.modules[c.module] == "head"]
    assert "aten.addmm" not in names
    assert names.count("aten.mul_") == 1


def test_models_of_transformers_are_fused_too(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    job = Job(f"hf:{tmp_path}/config.json", precision="bf16", batch_size=2, input={"seq_len": 128})
    graphs = [training_step(job.replace(loss=loss)).graph for loss in (None, "fp32", "liger")]
    assert flop(graphs[0]) == flop(graphs[1]) == flop(graphs[2])
    assert most_alive(graphs[0]) == most_alive(graphs[1])  # which is in fp32 anyway
    assert most_alive(graphs[2]) < most_alive(graphs[0]) / 4


def test_whole_models() -> None:
    """Llama 3 8B, 8,192 tokens a GPU: 6 bytes more for each of 8192 x 128,256 logits, or nearly none of them."""
    job = Job("llama3-8b", precision="bf16-master", gpu="h100", gpus=8, layout="fsdp", recompute="full", batch_size=1)
    plain, wide, fused = (predict(job.replace(loss=loss)) for loss in (None, "fp32", "liger"))
    logits = 8192 * 128_256
    activations = [each.memory.by_category["activations"] for each in (plain, wide)]
    assert activations[1] - activations[0] == pytest.approx(6 * logits, rel=0.05)
    assert fused.memory.peak_bytes < plain.memory.peak_bytes < wide.memory.peak_bytes
    assert plain.step.p50 < wide.step.p50
    assert plain.utilisation.model_flops == wide.utilisation.model_flops == fused.utilisation.model_flops
    assert [each.unsupported for each in (wide, fused)] == [(), ()]


def test_what_is_refused() -> None:
    for fields, message in (
        ({"loss": "fp16"}, "loss 'fp16' is unknown; nearest: fp32"),
        ({"loss": "liger", "precision": "amp-bf16"}, "each chunk casts the head again; set precision to bf16-master"),
        ({"loss": "liger", "layout": {"tp": 2}, "gpus": 2, "precision": "bf16-master"}, "set tp to 1"),
        ({"loss": "fp32", "framework": "megatron"}, "megatron has its own; leave loss out"),
    ):
        with pytest.raises(JobError, match=message):
            Job("llama3-8b", **fields)
    with pytest.raises(JobError, match="no such pair alone"):  # its capped logits stand between
        training_step(Job("gemma2-2b", loss="liger", precision="bf16", batch_size=1, input={"seq_len": 64}))
    with pytest.raises(JobError, match="resnet50 is none; set loss to fp32"):
        training_step(Job("resnet50", loss="liger", precision="bf16"))


def test_other_programs_set_it() -> None:
    trainer = {"output_dir": "x", "bf16": True}
    assert from_huggingface(trainer).job_fields()["loss"] == "fp32"
    fsdp = {**trainer, "fsdp": "full_shard", "use_liger_kernel": True}
    assert from_huggingface(fsdp).job_fields()["loss"] == "liger"
    under_ddp = from_huggingface({**trainer, "use_liger_kernel": True})  # autocast casts the head for each chunk
    assert under_ddp.job_fields()["loss"] == "fp32"
    assert "use_liger_kernel" in under_ddp.not_taken
    megatron = from_accelerate({"distributed_type": "MEGATRON_LM", "num_processes": 8, "mixed_precision": "bf16"})
    assert "loss" not in merged([("a", from_huggingface({"output_dir": "x"})), ("b", megatron)]).job_fields()
    axolotl = {"base_model": "meta-llama/Llama-3.1-8B", "bf16": True}
    assert from_axolotl(axolotl).job_fields()["loss"] == "fp32"
    fused = from_axolotl({**axolotl, "liger_fused_linear_cross_entropy": True, "liger_rms_norm": True})
    assert fused.job_fields()["loss"] == "liger"
    assert "liger_rms_norm" in fused.not_taken
    assert "loss" not in from_axolotl({**axolotl, "rl": "dpo"}).job_fields()


def test_torchtitan_casts_logits_of_itself() -> None:
    unsaid, stated = step(None, framework="torchtitan"), step("fp32", framework="torchtitan")
    assert of_logits(unsaid) == of_logits(stated) != of_logits(step(None))
    assert of_logits(step("liger", framework="torchtitan")) == of_logits(step("liger"))
