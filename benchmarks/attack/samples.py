"""A valid file of each kind, from which attacks start."""

from __future__ import annotations

import json
from typing import Any

from benchmarks.attack.import_files import FILES

_DEEPSPEED = {
    "train_batch_size": 512, "gradient_accumulation_steps": 4, "bf16": {"enabled": True}, "gradient_clipping": 1.0,
    "zero_optimization": {"stage": 2, "overlap_comm": True, "reduce_bucket_size": 5e8},
    "optimizer": {"type": "AdamW", "params": {"lr": 1e-4}}, "fp16": {"enabled": False},
    "activation_checkpointing": {"partition_activations": False},
}  # fmt: skip
_MEGATRON = """GPUS_PER_NODE=8
MODEL_ARGS=(
    --num-layers 24 --hidden-size 1024 --num-attention-heads 16
    --seq-length 1024 --max-position-embeddings 1024 --vocab-size 50257
)
torchrun --nproc-per-node $GPUS_PER_NODE --nnodes 2 pretrain_gpt.py ${MODEL_ARGS[@]} \\
    --micro-batch-size 4 --global-batch-size 512 --bf16 --overlap-grad-reduce --lr 1e-4 --train-iters 500 \\
    --tensor-model-parallel-size 2 --pipeline-model-parallel-size 2 --use-distributed-optimizer
"""
_TORCHTITAN = """[job]
dump_folder = "./outputs"
[model]
name = "llama3"
flavor = "8B"
[optimizer]
name = "AdamW"
implementation = "fused"
[training]
local_batch_size = 1
global_batch_size = 64
seq_len = 8192
max_norm = 1.0
steps = 1000
[parallelism]
data_parallel_replicate_degree = 1
data_parallel_shard_degree = -1
tensor_parallel_degree = 2
pipeline_parallel_degree = 1
[activation_checkpoint]
mode = "selective"
selective_ac_option = "op"
"""
IMPORTS = (
    ("ds_config.json", json.dumps(_DEEPSPEED)), ("pretrain.sh", _MEGATRON), ("config.toml", _TORCHTITAN),
    *((name, text) for name, (text, _) in FILES.items()),
)  # fmt: skip

DEVICE: dict[str, Any] = {
    "gpus": {
        "acme-1": {
            "vendor": "ACME", "mem_gb": 64, "mem_bw_gbs": 3000, "fp32_tflops": 50, "bf16_tflops": 400,
            "boost_mhz": 1800, "max_mhz": 2100, "sm_count": 100, "l2_mb": 40, "tdp_w": 400,
        },
        "slow-a100": {"based_on": "a100-80gb-sxm", "mem_bw_gbs": 1800},
        "cool-4090": {"based_on": "rtx-4090", "boost_mhz": 2000, "max_mhz": 2500},
    },
    "nodes": {
        "acme-box": {
            "gpus": ["acme-1"], "gpus_per_node": 4, "intra": "acme-link", "inter": "infiniband-400", "nics": 4,
            "default_for": ["acme-1"], "cores": 64, "host_memory_gib": 512, "clock_factor": 1.0,
        }
    },
    "fabrics": {
        "acme-link": {"kind": "nvswitch", "bus_gb_per_s": {2: 100, 4: 180}, "source": "ours", "latency_scale": 1}
    },
    "prices": {
        "our-rack": {
            "provider": "ours", "gpu": "a100", "gpus": 8, "usd_per_hour": 14.5, "region": "basement",
            "as_of": "2026-11-01", "source": "the invoice",
        }
    },
}  # fmt: skip
STORAGE: dict[str, Any] = {
    "name": "scratch", "bandwidth_gb_per_s": 2.5, "stream_mb_per_s": 400, "latency_ms": 0.3, "requests_per_s": 20000,
    "reader_efficiency": 0.9, "shared": True, "page_cache": True, "source": "measured here",
}  # fmt: skip
TABLE = """id,trust,framework,model,input,batch_size,gpus,gpu,precision,optimizer,memory_format,step_time_s,notes
resnet50-tf32,A,pytorch,resnet50,image_size=224,128,8,a100-80gb-sxm,tf32,sgd,nchw,0.14,invented
resnet50-amp,A,pytorch,resnet50,image_size=224,128,8,a100-80gb-sxm,amp-fp16,sgd,nhwc,0.06,invented
bert-fp32,A,pytorch,bert-base,seq_len=128,32,1,v100-16gb-sxm,fp32,adamw,,0.21,invented
bert-amp,B,pytorch,bert-base,seq_len=128,64,1,v100-16gb-sxm,amp-fp16,adamw,,0.14,invented
"""
WIDE_TABLE = """id,source,trust,framework,execution,model,model_config,input,batch_size,grad_accum,gpus,nodes,gpu,system,precision,parallelism,optimizer,memory_format,attention,recompute,torch,optimizer_impl,no_sync,communication_dtype,step_time_s,notes
one,x,A,pytorch,eager,resnet50,,image_size=224,128,1,8,1,a100-80gb-sxm,,tf32,dp,sgd,nchw,,none,1.11,fused,true,float32,0.14,invented
two,x,A,pytorch,compile,gpt2,,seq_len=1024,8,2,8,1,h100-80gb-sxm,,amp-bf16,dp,adamw,,flash,none,2.10,,false,,0.21,fused
three,x,B,megatron,eager,gpt3-5b,layers=24;hidden=4096;heads=32,seq_len=2048,1,16,64,8,a100-80gb-sxm,selene,bf16-master,tp=4;pp=2,adam,,flash,selective,,,,bfloat16,2.5,
four,x,C,tensorflow2,,bert-large,,seq_len=128,32,1,16,2,v100-32gb-sxm,dgx2h,amp-fp16,dp,lamb,,,,,,,,0.3,no no_sync
five,x,A,pytorch,eager,resnet50,,image_size=224,256,1,1,1,rtx-3090,,amp-fp16,dp,none,nhwc,,none,1.13,,,,0.05,forward and backward
"""  # noqa: E501
ANCHOR = (("step_time_s", 0.31), ("gpus", 1), ("precision", "fp32"), ("batch_size", 64), ("gpu", "a100-80gb-sxm"))
NODES = (
    """NodeName=node1 Arch=x86_64 CoresPerSocket=32
   CPUAlloc=0 CPUTot=128 Gres=gpu:h200:8(S:0-1) RealMemory=1031000 State=IDLE
NodeName=node2 Arch=x86_64 CPUTot=128 Gres=gpu:h200:8(S:0-1) RealMemory=1031000 State=ALLOCATED
""",
    json.dumps(
        {
            "kind": "Node",
            "metadata": {
                "name": "n1",
                "labels": {"nvidia.com/gpu.product": "NVIDIA-A100-SXM4-80GB", "nvidia.com/gpu.memory": "81920"},
            },
            "status": {
                "allocatable": {"cpu": "63800m", "memory": "527988868Ki", "nvidia.com/gpu": "8"},
                "conditions": [{"type": "Ready", "status": "True"}],
                "nodeInfo": {"architecture": "amd64"},
            },
        }
    ),
)
SEARCH = """id,vm,machines,price_per_hour,seconds
a,m4,2,0.4,900
b,m4,4,0.8,460
c,m4,8,1.6,260
d,c4,2,0.35,failed
e,c4,4,0.7,
f,r3,8,1.4,
"""
SKYPILOT = """InstanceType,AcceleratorName,AcceleratorCount,vCPUs,MemoryGiB,Price,SpotPrice,Region
p4d.24xlarge,A100,8.0,96,1152,32.77,12.1,us-east-1
p5.48xlarge,H100,8,192,2048,55.04,20.0,us-east-1
m5.large,,,2,8,0.096,0.03,us-east-1
"""
STAGGER: dict[str, Any] = {
    "data": "pictures",
    "samples": 240,
    "cache": {"reset": {"command": "true"}, "capacity": "2GiB", "policy": "lru"},
    "bytes_per_sample": 1000,
    "jobs": [
        {"name": "small", "run": "true {samples} {first} {epochs}", "epochs": 3, "progress": r"(?P<samples>\d+)"},
        {"name": "large", "run": "true {samples} {first} {epochs}", "epochs": 2, "progress": r"(?P<samples>\d+)"},
    ],
    "calibration": {"samples": 60, "patience_s": 0.5},
}
HF_CONFIGS: tuple[dict[str, Any], ...] = (
    {"architectures": ["BertForMaskedLM"], "model_type": "bert", "hidden_size": 64, "intermediate_size": 128,
     "num_attention_heads": 4, "num_hidden_layers": 2, "vocab_size": 1000, "max_position_embeddings": 128},
    {"architectures": ["T5ForConditionalGeneration"], "model_type": "t5", "d_model": 64, "d_ff": 128, "d_kv": 16,
     "num_heads": 4, "num_layers": 2, "vocab_size": 1000},
    {"architectures": ["ViTForImageClassification"], "model_type": "vit", "hidden_size": 64, "intermediate_size": 128,
     "num_attention_heads": 4, "num_hidden_layers": 2, "image_size": 64, "patch_size": 16, "num_channels": 3},
    {"architectures": ["MixtralForCausalLM"], "model_type": "mixtral", "hidden_size": 64, "intermediate_size": 128,
     "num_attention_heads": 4, "num_hidden_layers": 2, "num_key_value_heads": 2, "vocab_size": 1000,
     "num_local_experts": 4, "num_experts_per_tok": 2, "max_position_embeddings": 128},
    {"architectures": ["GPT2LMHeadModel"], "model_type": "gpt2", "n_embd": 64, "n_head": 4, "n_layer": 2,
     "n_positions": 128, "vocab_size": 1000},
)  # fmt: skip
HF_CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 64, "intermediate_size": 128,
    "num_attention_heads": 4, "num_hidden_layers": 2, "num_key_value_heads": 2, "vocab_size": 1000,
    "max_position_embeddings": 128, "rms_norm_eps": 1e-5, "torch_dtype": "bfloat16", "tie_word_embeddings": False,
}  # fmt: skip
