"""Experts, latent attention, windows, adapters: operations worked out by hand, numbers against loops, ranks' shapes."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch.utils.flop_counter import FlopCounterMode  # noqa: E402

from networks import names, only, rows  # noqa: E402
from precision_time.capture import symbolic, symbolic_fit  # noqa: E402
from precision_time.capture.captured_model import capture_model  # noqa: E402
from precision_time.capture.fp8 import to_fp8  # noqa: E402
from precision_time.capture.graph import OpGraph, Phase  # noqa: E402
from precision_time.capture.optimizer import tail  # noqa: E402
from precision_time.capture.trace import trace_entry  # noqa: E402
from precision_time.job import Job  # noqa: E402
from precision_time.job.precision import PRECISIONS  # noqa: E402
from precision_time.timing.operators import WorkOptions, works  # noqa: E402
from precision_time.zoo.catalog import ENTRIES  # noqa: E402
from precision_time.zoo.models.decoder import build, complete  # noqa: E402
from precision_time.zoo.models.decoder_parts import FeedForward  # noqa: E402
from precision_time.zoo.models.mla import LatentAttention  # noqa: E402
from precision_time.zoo.models.moe import MixtureOfExperts  # noqa: E402
from precision_time.zoo.models.operators import state_scan, window_attention  # noqa: E402
from precision_time.zoo.shape import with_overrides  # noqa: E402
from precision_time.zoo.workload import BATCH, SEQ  # noqa: E402

PRE: dict[str, Any] = {"norm": "rmsnorm", "act": "swiglu", "pos": "rope", "bias": 0, "tied_embeddings": 0}
MOE = {**PRE, "layers": 1, "hidden": 64, "heads": 4, "vocab": 96,
       "experts": 8, "topk": 2, "moe_ffn": 32, "shared_ffn": 48}  # fmt: skip
MLA = {**PRE, "layers": 1, "hidden": 64, "heads": 4, "vocab": 96, "ffn": 32,
       "attn": "mla", "q_lora": 24, "kv_lora": 16, "qk_nope": 16, "qk_rope": 8, "v_head": 12}  # fmt: skip
SINKS = {**MOE, "layers": 2, "bias": 1, "act": "clamped_quick_geglu", "pos": "yarn_rope",
         "sliding_window": "4_every_second_layer", "attn_sink": "learned"}  # fmt: skip
SIZES = {"batch_size": 2, "seq_len": 32}
TOKENS = 64


def graph_of(shape: dict[str, Any], regime: str = "half", attention: str = "flash", **sizes: int) -> OpGraph:
    entry = ENTRIES["gpt"]
    return trace_entry(entry, with_overrides(entry, shape), {**SIZES, **sizes}, regime, attention)


def flops(graph: OpGraph, module: str, *phases: Phase) -> float:
    """Of the matrix products and attention of the modules below `where`."""
    total = 0.0
    for call, kind in rows(graph, *phases):
        if graph.modules[call.module].startswith(module):
            total += sum(w.flops for w in works(kind, WorkOptions()) or [] if w.math != "vector")
    return total


# --- operations ---------------------------------------------------------------------------------------------------


def test_the_products_of_one_layer_of_experts_by_hand() -> None:
    router = 2 * TOKENS * 64 * 8
    routed = TOKENS * 2 * (2 * 64 * (2 * 32) + 2 * 32 * 64)  # two experts a token: gate and up, then down
    shared = TOKENS * 3 * (2 * 64 * 48)
    graph = graph_of(MOE)
    assert flops(graph, "blocks.0.moe", Phase.FORWARD) == router + routed + shared
    total = [flops(graph, "", phase) for phase in (Phase.FORWARD, Phase.BACKWARD)]
    attention = sum(w.flops for _, k in rows(graph, Phase.FORWARD) if k.name == "pt.attention"
                    for w in works(k, WorkOptions()) or [])  # fmt: skip
    # Two products back for each one forward, 2.5 times the attention.
    assert total[1] == pytest.approx(2 * (total[0] - attention) + 2.5 * attention)


def test_the_products_of_latent_attention_by_hand() -> None:
    down = 64 * 24 + 64 * (16 + 8)
    up = 24 * 4 * (16 + 8) + 16 * 4 * (16 + 12)
    scores = 4 * ((32 + 1) / 2) * (16 + 8 + 12)
    assert flops(graph_of(MLA), "blocks.0.attention", Phase.FORWARD) == 2 * TOKENS * (down + up + 4 * 12 * 64 + scores)


@pytest.mark.parametrize("shape", [MOE, MLA, {**MLA, **MOE, "attn": "mla", "mtp_layers": 1}], ids=["moe", "mla", "mtp"])
def test_a_step_does_the_operations_that_torch_counts(shape: dict[str, Any]) -> None:
    """On real tensors, where every expert has its own product; attention written out, since torch counts no mask."""
    workload = build(shape, SIZES)
    with FlopCounterMode(display=False) as counter, torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        workload.loss(workload.module, workload.inputs).backward()
    assert flops(graph_of(shape, "full", "math"), "") == counter.get_total_flops()


def test_a_window_leaves_so_many_keys() -> None:
    def keys(window: int) -> float:
        graph = graph_of({**SINKS, "layers": 1, "sliding_window": window})
        kinds = {k.name: k for _, k in rows(graph) if k.name.startswith("pt.attention")}
        (forward,), (backward,) = (works(kinds[n], WorkOptions()) for n in ("pt.attention", "pt.attention_backward"))
        assert backward.flops == 2.5 * forward.flops
        return forward.flops / (2.0 * TOKENS * 64 * 2)

    assert (keys(4), keys(0)) == (4.0, 16.5)


def test_few_rows_leave_weights_unread() -> None:
    (work,) = works(only_grouped(graph_of({**MOE, "experts": 64}, batch_size=1, seq_len=8)), WorkOptions()) or []
    assert work.shape == (16.0, 1.0, 64.0, 64.0)
    assert work.bytes_read == 2 * (16 * 64 + 16 * 64 * 64)


def only_grouped(graph: OpGraph) -> Any:
    return next(k for _, k in rows(graph, Phase.FORWARD) if k.name == "pt.grouped_mm")


# --- numbers ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("act", ["swiglu", "clamped_quick_geglu", "relu2"])
def test_experts_compute_what_a_loop_over_tokens_does(act: str) -> None:
    torch.manual_seed(0)
    config = complete({**MOE, "act": act, "bias": 1, "router": "sigmoid"})
    moe = MixtureOfExperts(config)
    x = torch.randn(2, 5, 64)
    weights, chosen = moe.router(x.flatten(0, 1))
    assert torch.allclose(weights.sum(-1), torch.ones(10))
    assert moe.shared is not None
    loop = moe.shared(x).flatten(0, 1).clone()
    for token, row in enumerate(x.flatten(0, 1)):
        for weight, expert in zip(weights[token], chosen[token], strict=True):
            alone = FeedForward(config, 32)
            halves = moe.experts.up[expert].chunk(2, -1) if alone.gated else (moe.experts.up[expert],)
            for linear, half in zip((alone.gate, alone.up) if alone.gated else (alone.up,), halves, strict=True):
                linear.weight, linear.bias = torch.nn.Parameter(half.T), torch.nn.Parameter(torch.zeros(32))
            alone.down.weight = torch.nn.Parameter(moe.experts.down[expert].T)
            alone.down.bias = torch.nn.Parameter(torch.zeros(64))
            loop[token] += weight * alone(row)
    assert torch.allclose(moe(x).flatten(0, 1), loop, atol=1e-5)


def test_a_window_and_a_sink_change_the_softmax() -> None:
    torch.manual_seed(0)
    q, k, v = (torch.randn(1, heads, 6, 8) for heads in (4, 2, 2))
    plain = window_attention(q, k, v, None, 0, 0.0)
    wide = (y.repeat_interleave(2, 1) for y in (k, v))
    assert torch.allclose(plain, torch.nn.functional.scaled_dot_product_attention(q, *wide, is_causal=True), atol=1e-5)
    windowed = window_attention(q, k, v, None, 2, 0.0)
    assert torch.allclose(windowed[:, :, :2], plain[:, :, :2])
    last_k, last_v = (y.repeat_interleave(2, 1)[:, :, 4:] for y in (k, v))
    by_hand = torch.softmax(q[:, :, 5:] @ last_k.mT / 8**0.5, -1) @ last_v
    assert torch.allclose(windowed[:, :, 5:], by_hand, atol=1e-5)
    assert window_attention(q, k, v, torch.full((4,), 50.0), 0, 0.0).abs().max() < 1e-6  # all weight on the sink


@pytest.mark.parametrize("which", ["moe", "mla", "sinks", "mtp", "hybrid"])
def test_a_later_token_changes_no_earlier_logits(which: str) -> None:
    shape = {"moe": MOE, "mla": MLA, "sinks": SINKS, "mtp": {**MLA, "mtp_layers": 1}, "hybrid": HYBRID}[which]
    module = build(shape, {"batch_size": 1, "seq_len": 6}).module
    logits = [module(torch.tensor([[1, 2, 3, 4, 5, last]])) for last in (6, 7)]
    first, second = (one[0] if isinstance(one, tuple) else one for one in logits)
    assert torch.allclose(first[:, :-1], second[:, :-1], atol=1e-5)
    assert not torch.allclose(first[:, -1], second[:, -1])


# --- shapes -------------------------------------------------------------------------------------------------------

TABLES = (
    "layers=61;hidden=7168;heads=128;attn=mla;q_lora=1536;kv_lora=512;qk_nope=128;qk_rope=64;v_head=128;experts=256;"
    "topk=8;moe_ffn=2048;shared_ffn=2048;dense_layers=3;ffn=18432;mtp_layers=0;vocab=129280;norm=rmsnorm;act=swiglu;"
    "pos=rope;bias=0;tied_embeddings=0",
    "layers=36;hidden=2880;heads=64;kv_heads=8;head_dim=64;sliding_window=128_every_second_layer;attn_sink=learned;"
    "experts=128;topk=4;moe_ffn=2880;shared_ffn=0;dense_layers=0;vocab=201088;norm=rmsnorm;act=clamped_quick_geglu;"
    "pos=yarn_rope;bias=1;tied_embeddings=0",
    "layers=48;hidden=2048;heads=32;kv_heads=4;head_dim=128;qk_norm=1;experts=128;topk=8;moe_ffn=768;shared_ffn=0;"
    "dense_layers=0;vocab=151936;norm=rmsnorm;act=swiglu;pos=rope;bias=0;tied_embeddings=0",
)


@pytest.mark.parametrize(
    ("name", "fields"), [*zip(("deepseek-v3", "gpt-oss-120b", "qwen3-30b-a3b"), TABLES, strict=True)]
)
def test_the_config_of_the_tables_is_the_named_model(name: str, fields: str) -> None:
    pairs = (pair.split("=") for pair in fields.split(";"))
    config = {key: int(value) if value.isdigit() else value for key, value in pairs}
    assert with_overrides(ENTRIES[name], config) == dict(ENTRIES[name].config)
    with torch.device("meta"):
        same = build(with_overrides(ENTRIES["gpt"], config), {"batch_size": 1, "seq_len": 8}).module
    assert sum(p.numel() for p in same.parameters()) == ENTRIES[name].parameters


def test_a_tensor_parallel_rank_is_the_model_with_its_share() -> None:
    share = {"heads": 2, "moe_ffn": 16, "shared_ffn": 24, "vocab": 48, "head_dim": 16}
    whole = {**MLA, **MOE, "attn": "mla", "lora": 16}
    for shape in (whole, {**MOE, "heads": 4, "lora": 16}):
        full, rank = graph_of(shape), graph_of({**shape, **share, "kv_heads": 2})
        for part in ("moe.experts", "moe.shared", "attention.output"):
            halved = flops(rank, f"blocks.0.{part}", Phase.FORWARD)
            whole_part = flops(full, f"blocks.0.{part}", Phase.FORWARD)
            assert halved < whole_part if part == "attention.output" else halved == whole_part / 2
        router = [flops(g, "blocks.0.moe.router", Phase.FORWARD) for g in (full, rank)]
        assert router[0] == router[1] > 0
    down = [flops(g, "blocks.0.attention.kv_down", Phase.FORWARD) for g in (graph_of(MLA), graph_of({**MLA, "heads": 2,
            "kv_heads": 2, "head_dim": 16}))]  # fmt: skip
    assert down[0] == down[1] > 0


def test_a_rank_of_few_experts_works_on_as_many_rows() -> None:
    full, rank = graph_of(MOE), graph_of({**MOE, "local_experts": 2})
    kinds = [only_grouped(graph) for graph in (full, rank)]
    assert [k.inputs[0].shape for k in kinds] == [(128, 64)] * 2
    assert [k.inputs[1].shape for k in kinds] == [(8, 64, 64), (2, 64, 64)]
    assert flops(full, "blocks.0.moe", Phase.FORWARD) == flops(rank, "blocks.0.moe", Phase.FORWARD)
    assert {p.name: p.shape for p in rank.parameters}["blocks.0.moe.router.linear.weight"] == (8, 64)


def test_modules_have_the_names_that_layouts_look_for() -> None:
    modules = {
        type(m).__name__: n for n, m in build({**MOE, "layers": 2, "dense_layers": 1}, SIZES).module.named_modules()
    }
    assert modules["MixtureOfExperts"] == "blocks.1.moe"
    assert modules["Experts"] == "blocks.1.moe.experts"
    names = {n for n, _ in MixtureOfExperts(complete(MOE)).named_children()}
    assert names == {"router", "dispatch", "experts", "combine", "shared"}
    latent = {n for n, _ in LatentAttention(complete(MLA)).named_children()}
    assert latent == {"q_down", "q_norm", "q_up", "kv_down", "kv_norm", "kv_up", "output"}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"topk": 9}, "topk=9 of 8 experts"),
        ({"router": "hash"}, "unknown router"),
        ({"attn": "linear"}, "unknown attn"),
        ({"attn": "mla"}, "attn=mla needs kv_lora"),
        ({"sliding_window": "wide"}, "sliding_window='wide'"),
        ({"attn_sink": "fixed"}, "unknown attn_sink"),
    ],
)
def test_impossible_models_are_errors(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        build({**MOE, **change}, SIZES)


# --- what is captured ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("regime", ["full", "autocast", "half"])
def test_a_graph_of_experts_is_good_for_every_size(regime: str) -> None:
    shape = {**MLA, **MOE, "attn": "mla", "layers": 2, "dense_layers": 1}
    stored = symbolic_fit.fit("moe", (BATCH, SEQ), lambda s: graph_of(shape, regime, **s))
    sizes = {"batch_size": 3, "seq_len": 50}
    assert symbolic_fit.same_step(symbolic.evaluate(stored, sizes), graph_of(shape, regime, **sizes))


def test_under_autocast_products_are_low_and_routing_is_single() -> None:
    graph = graph_of(MOE, "autocast")
    assert {s.dtype for _, k in rows(graph) if k.name.startswith("pt.grouped") for s in k.inputs} == {"bfloat16"}
    assert {p.grad_dtype for p in graph.parameters} == {"float32"}
    assert only(graph, "aten._softmax").outputs[0].dtype == "float32"


def test_fp8_takes_the_grouped_products() -> None:
    plain = graph_of(MOE)
    graph = to_fp8(plain, "block")
    counts = names(graph)
    assert (counts["pt.scaled_grouped_mm"], counts["pt.scaled_grouped_mm_weight"]) == (4, 2)
    assert not counts["pt.grouped_mm"] + counts["pt.grouped_mm_weight"]
    assert flops(graph, "", Phase.BACKWARD) == flops(plain, "", Phase.BACKWARD)
    weight = next(k for _, k in rows(graph) if k.name == "pt.scaled_grouped_mm_weight")
    assert [s.dtype for s in weight.inputs] == ["float8_e5m2", "float8_e4m3fn"]


def test_transformer_engine_runs_kernels_of_every_expert() -> None:
    """One product of each; in fp8 three more that quantise its rows, which the gradient of the weight has already."""
    apart = WorkOptions(separate_experts=True)

    def launches(graph: OpGraph, name: str, options: WorkOptions) -> set[int]:
        kinds = [kind for _, kind in rows(graph, Phase.FORWARD, Phase.BACKWARD) if kind.name == name]
        return {work.launches for kind in kinds for work in works(kind, options) or []}

    half = graph_of(MOE)
    low = to_fp8(half, "tensorwise")
    for name, kernels in (("pt.grouped_mm", 1), ("pt.grouped_mm_weight", 1)):
        assert launches(half, name, apart) == {8 * kernels}
        assert launches(half, name, WorkOptions()) == {1}
    for name, kernels in (("pt.scaled_grouped_mm", 4), ("pt.scaled_grouped_mm_weight", 1)):
        assert launches(low, name, apart) == {8 * kernels}
        assert launches(low, name, WorkOptions()) == {1}


def test_adapters_are_all_that_is_trained() -> None:
    plain, graph = graph_of(MOE), graph_of({**MOE, "lora": 16})
    trained = [p for p in graph.parameters if p.trainable]
    assert {p.name.rsplit(".", 2)[-2] for p in trained} == {"lora_a", "lora_b"}
    assert all((p.ready >= 0) == p.trainable for p in graph.parameters)
    count = 4 * (64 * 16 + 16 * 64)
    assert sum(p.numel for p in trained) == count
    # Gradients of adapters, none of frozen weights, nor anything before the first adapter.
    assert (
        names(graph, Phase.BACKWARD)["pt.grouped_mm_weight"] == 0 < names(plain, Phase.BACKWARD)["pt.grouped_mm_weight"]
    )
    assert names(graph, Phase.BACKWARD)["embedding_dense_backward"] == 0
    assert sum(s.nbytes for s in graph.storages if s.category == 1) == 2 * count
    after = tail(graph.parameters, PRECISIONS["bf16-master"], "adamw")
    assert (after.state_bytes, after.master_bytes) == (2 * 4 * count, 4 * count)


def test_each_further_token_is_a_block_and_a_head_more() -> None:
    one, two = (graph_of({**MLA, "mtp_layers": n}) for n in (0, 1))
    more = flops(two, "", Phase.FORWARD) - flops(one, "", Phase.FORWARD)
    block, head = flops(one, "blocks.0", Phase.FORWARD), flops(one, "head", Phase.FORWARD)
    assert more == block + head + 2 * TOKENS * 128 * 64


def test_attention_written_out_is_traced_where_it_does_not_ship() -> None:
    step = capture_model(Job("mixtral-8x7b", gpu="h100-80gb-sxm", precision="bf16", attention="math",
                             model_config={"layers": 1}, input={"seq_len": 64}))  # fmt: skip
    assert not names(step.graph)["pt.attention"]
    assert step.graph.parameter_count < ENTRIES["mixtral-8x7b"].parameters


# --- state spaces -------------------------------------------------------------------------------------------------

HYBRID = {**MOE, "layers": 4, "pattern": "ME*E", "act": "relu2", "pos": "none",
          "mamba_heads": 4, "mamba_head_dim": 16, "mamba_groups": 2, "mamba_state": 8}  # fmt: skip


def test_the_scan_is_the_recurrence() -> None:
    torch.manual_seed(0)
    x, steps, b, c = torch.randn(1, 5, 4, 3), torch.randn(1, 5, 4), torch.randn(1, 5, 2, 6), torch.randn(1, 5, 2, 6)
    step_bias, decay, skip = (torch.randn(4) for _ in range(3))
    state, outputs = torch.zeros(4, 3, 6), []
    for t in range(5):
        d = torch.nn.functional.softplus(steps[0, t] + step_bias)
        wide_b, wide_c = (y[0, t].repeat_interleave(2, 0) for y in (b, c))
        state = torch.exp(-torch.exp(decay) * d)[:, None, None] * state
        state = state + (d[:, None] * x[0, t])[:, :, None] * wide_b[:, None]
        outputs.append((state * wide_c[:, None]).sum(-1) + skip[:, None] * x[0, t])
    assert torch.allclose(state_scan(x, steps, step_bias, decay, b, c, skip)[0], torch.stack(outputs), atol=1e-5)


def test_a_hybrid_has_one_mixer_in_a_layer() -> None:
    graph = graph_of(HYBRID, seq_len=256)
    assert names(graph, Phase.FORWARD)["pt.attention"] == names(graph, Phase.FORWARD)["pt.state_scan_forward"] == 1
    assert names(graph, Phase.FORWARD)["pt.grouped_mm"] == 2 * 2
    inside = 2 * 8 * 128 * 2 + 4 * 2 * (128 * 16 + 2 * 16 * 8)  # for a token: scores of two groups, then four heads
    projections = 2 * 64 * (2 * 64 + 2 * 16 + 4) + 2 * 64 * 64
    convolution = 2 * 4 * (64 + 2 * 16)
    (scan,) = {k for _, k in rows(graph) if k.name == "pt.state_scan_forward"}
    assert sum(w.flops for w in works(scan, WorkOptions()) or []) == 512 * inside
    # The convolution also runs over the three positions that are cut off.
    total = flops(graph, "blocks.0.mamba", Phase.FORWARD)
    assert total == 512 * (inside + projections) + convolution * 2 * (256 + 3)


def test_a_hybrid_says_what_its_letters_are() -> None:
    with pytest.raises(ValueError, match="use the letters M"):
        build({**HYBRID, "pattern": "MX"}, SIZES)
    with pytest.raises(ValueError, match="Mamba layers need"):
        build({**HYBRID, "mamba_state": 0}, SIZES)
