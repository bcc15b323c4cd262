"""One realistic file of each program that `--import` reads, in our own words; its job is worked out in the tests."""

from __future__ import annotations

TRAINING_ARGUMENTS = """{
  "output_dir": "out/sft", "per_device_train_batch_size": 4, "gradient_accumulation_steps": 8,
  "learning_rate": 2e-05, "lr_scheduler_type": "cosine", "warmup_ratio": 0.03, "weight_decay": 0.0,
  "max_grad_norm": 0.5, "optim": "adamw_torch_fused", "bf16": true, "fp16": false, "tf32": true,
  "gradient_checkpointing": true, "gradient_checkpointing_kwargs": {"use_reentrant": false},
  "max_steps": 1000, "num_train_epochs": 3.0, "save_strategy": "steps", "save_steps": 250,
  "eval_strategy": "steps", "eval_steps": 250, "dataloader_num_workers": 4, "torch_compile": true,
  "ddp_find_unused_parameters": false, "report_to": ["wandb"], "seed": 1, "deepspeed": null, "fsdp": [],
  "fsdp_config": {"min_num_params": 0, "xla": false}, "neftune_noise_alpha": 5, "novel_kernel_option": true
}"""

ACCELERATE = """
compute_environment: LOCAL_MACHINE
debug: false
distributed_type: FSDP
downcast_bf16: 'no'
enable_cpu_affinity: false
fsdp_config:
  fsdp_activation_checkpointing: true
  fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP
  fsdp_backward_prefetch: BACKWARD_PRE
  fsdp_cpu_ram_efficient_loading: true
  fsdp_offload_params: false
  fsdp_sharding_strategy: HYBRID_SHARD
  fsdp_state_dict_type: SHARDED_STATE_DICT
  fsdp_transformer_layer_cls_to_wrap: LlamaDecoderLayer
  fsdp_use_orig_params: true
machine_rank: 0
main_training_function: main
mixed_precision: bf16
num_machines: 2
num_processes: 16
rdzv_backend: static
same_network: true
use_cpu: false
"""

LIGHTNING = """
seed_everything: 7
trainer:
  accelerator: gpu
  devices: 4
  num_nodes: 2
  strategy:
    class_path: lightning.pytorch.strategies.FSDPStrategy
    init_args:
      sharding_strategy: SHARD_GRAD_OP
      cpu_offload: false
      state_dict_type: full
  precision: bf16-mixed
  max_epochs: 20
  accumulate_grad_batches: 2
  gradient_clip_val: 1.0
  val_check_interval: 0.5
  log_every_n_steps: 50
  sync_batchnorm: false
  callbacks:
    - class_path: lightning.pytorch.callbacks.ModelCheckpoint
      init_args: {monitor: val_loss}
model:
  class_path: ours.models.Classifier
  init_args: {width: 512}
data:
  class_path: ours.data.Images
  init_args: {batch_size: 64, num_workers: 8, root: /data}
optimizer:
  class_path: torch.optim.AdamW
  init_args: {lr: 0.001, fused: true}
lr_scheduler:
  class_path: torch.optim.lr_scheduler.CosineAnnealingLR
  init_args: {T_max: 20}
ckpt_path: null
"""

AXOLOTL = """
base_model: gpt2-xl
model_type: AutoModelForCausalLM
tokenizer_type: AutoTokenizer
strict: false
datasets:
  - path: ours/chats
    type: chat_template
val_set_size: 0.02
output_dir: ./out
sequence_len: 1024
sample_packing: true
pad_to_sequence_len: true
gradient_accumulation_steps: 4
micro_batch_size: 2
num_epochs: 2
optimizer: adamw_torch
lr_scheduler: cosine
learning_rate: 0.00002
bf16: true
tf32: false
gradient_checkpointing: true
flash_attention: true
warmup_steps: 10
evals_per_epoch: 2
saves_per_epoch: 1
weight_decay: 0.0
wandb_project: ours
fsdp:
  - full_shard
  - auto_wrap
fsdp_config:
  fsdp_offload_params: false
  fsdp_state_dict_type: FULL_STATE_DICT
  fsdp_transformer_layer_cls_to_wrap: GPT2Block
special_tokens:
  pad_token: "<|end|>"
"""

LLM_FOUNDRY = """
variables:
  data_local: /data/c4
  max_seq_len: 2048
  global_seed: 17
  run_name: ours
max_seq_len: ${variables.max_seq_len}
run_name: ${variables.run_name}
model:
  name: mpt_causal_lm
  init_device: meta
  d_model: 2048
  n_heads: 16
  n_layers: 24
  expansion_ratio: 4
  max_seq_len: ${max_seq_len}
  vocab_size: 50368
  attn_config:
    attn_impl: flash
tokenizer:
  name: EleutherAI/gpt-neox-20b
  kwargs: {model_max_length: "${max_seq_len}"}
train_loader:
  name: text
  dataset: {local: "${variables.data_local}", split: train, max_seq_len: "${max_seq_len}"}
  drop_last: true
  num_workers: 8
optimizer:
  name: decoupled_adamw
  lr: 2.0e-4
  betas: [0.9, 0.95]
  weight_decay: 0.0
algorithms:
  gradient_clipping:
    clipping_type: norm
    clipping_threshold: 1.0
max_duration: 24800ba
eval_interval: 1000ba
save_interval: 500ba
save_folder: ./out
global_train_batch_size: 512
seed: ${variables.global_seed}
device_eval_batch_size: 4
device_train_microbatch_size: 4
precision: amp_bf16
fsdp_config:
  sharding_strategy: FULL_SHARD
  mixed_precision: PURE
  activation_checkpointing: false
  activation_checkpointing_reentrant: false
  activation_cpu_offload: false
  limit_all_gathers: true
progress_bar: false
callbacks:
  speed_monitor: {window_size: 10}
loggers: {}
"""

MEGATRON_BRIDGE = """
_target_: megatron.bridge.training.config.ConfigContainer
train: {micro_batch_size: 1, global_batch_size: 128, train_iters: 500, eval_interval: 100, manual_gc: true}
model:
  _target_: megatron.bridge.models.llama.llama_provider.Llama31ModelProvider8B
  num_layers: 32
  hidden_size: 4096
  num_attention_heads: 32
  num_query_groups: 8
  ffn_hidden_size: 14336
  vocab_size: 128256
  seq_length: 8192
  normalization: RMSNorm
  gated_linear_unit: true
  activation_func: {_target_: torch.nn.functional.silu, _call_: false}
  add_bias_linear: false
  share_embeddings_and_output_weights: false
  position_embedding_type: rope
  rotary_base: 500000
  hidden_dropout: 0.0
  attention_dropout: 0.0
  tensor_model_parallel_size: 2
  pipeline_model_parallel_size: 1
  context_parallel_size: 2
  sequence_parallel: true
  bias_dropout_fusion: true
  persist_layer_norm: true
  novel_router: true
optimizer: {optimizer: adam, lr: 0.0003, clip_grad: 1.0, use_distributed_optimizer: true}
ddp: {use_distributed_optimizer: true, overlap_grad_reduce: true, overlap_param_gather: true}
scheduler: {lr_decay_style: cosine, lr_warmup_iters: 10}
dataset: {seq_length: 8192, random_seed: 1234}
tokenizer: {tokenizer_type: NullTokenizer}
checkpoint: {save: /out, save_interval: 100}
logger: {log_interval: 10}
rng: {seed: 1234}
mixed_precision: bf16_with_fp8_current_scaling_mixed
"""

NEMO_1 = """
name: ours
trainer: {devices: 8, num_nodes: 4, accelerator: gpu, precision: bf16, max_steps: 1000, gradient_clip_val: 1.0,
          accumulate_grad_batches: 1, log_every_n_steps: 10}
exp_manager: {exp_dir: /out, create_checkpoint_callback: true}
model:
  micro_batch_size: 4
  global_batch_size: 512
  tensor_model_parallel_size: 4
  pipeline_model_parallel_size: 1
  encoder_seq_length: 2048
  max_position_embeddings: 2048
  num_layers: 24
  hidden_size: 4096
  ffn_hidden_size: 16384
  num_attention_heads: 32
  megatron_amp_O2: true
  sequence_parallel: true
  activations_checkpoint_granularity: selective
  optim: {name: fused_adam, lr: 0.0001, betas: [0.9, 0.95]}
"""

SBATCH = """#!/bin/bash
#SBATCH --job-name=sft
#SBATCH --nodes=2 --ntasks-per-node=1
#SBATCH --gres=gpu:a100:8
#SBATCH -t 12:00:00
#SBATCH --exclusive
module load cuda
export NCCL_DEBUG=INFO
srun torchrun --nnodes $SLURM_NNODES --nproc_per_node 8 --rdzv_backend c10d --rdzv_endpoint $HOST:29500 \\
    finetune.py --model_name_or_path gpt2-xl --bf16 --per_device_train_batch_size 4 --block_size 1024 \\
    --output_dir out --max_steps 400 --gradient_accumulation_steps 2 --new_option 3
echo done
"""

ACCELERATE_LAUNCH = """
accelerate launch --multi_gpu --num_processes 8 --mixed_precision fp16 --dynamo_backend inductor train.py --steps 10
"""

DEEPSPEED_AUTO = """{
  "bf16": {"enabled": "auto"}, "fp16": {"enabled": "auto", "loss_scale_window": 1000},
  "zero_optimization": {"stage": 3, "overlap_comm": true, "contiguous_gradients": true, "reduce_bucket_size": "auto",
                        "stage3_prefetch_bucket_size": "auto", "offload_optimizer": {"device": "none"}},
  "optimizer": {"type": "AdamW", "params": {"lr": "auto", "betas": "auto"}},
  "gradient_accumulation_steps": "auto", "gradient_clipping": "auto", "steps_per_print": 100,
  "train_batch_size": "auto", "train_micro_batch_size_per_gpu": "auto", "wall_clock_breakdown": false
}"""

DEEPSPEED = """{
  "train_batch_size": 512, "train_micro_batch_size_per_gpu": 8, "gradient_clipping": 1.0, "steps_per_print": 10,
  "bf16": {"enabled": true}, "optimizer": {"type": "AdamW", "params": {"lr": 1e-4}},
  "zero_optimization": {"stage": 2, "allgather_bucket_size": 5e8, "reduce_scatter": true}
}"""

TORCHTITAN = """
[job]
dump_folder = "./out"
[model]
name = "llama3"
flavor = "8B"
[optimizer]
name = "AdamW"
lr = 3e-4
[training]
local_batch_size = 1
seq_len = 8192
max_norm = 1.0
steps = 1000
dataset = "c4"
[parallelism]
data_parallel_shard_degree = -1
tensor_parallel_degree = 2
[activation_checkpoint]
mode = "selective"
selective_ac_option = "op"
"""

MEGATRON = """#!/bin/bash
torchrun --nproc-per-node 8 --nnodes 2 pretrain_gpt.py --num-layers 24 --hidden-size 2048 --num-attention-heads 16 \\
    --seq-length 2048 --max-position-embeddings 2048 --micro-batch-size 4 --global-batch-size 256 --bf16 \\
    --vocab-size 50257 --lr 1e-4 --train-iters 100 --use-distributed-optimizer
"""

PYTORCH_JOB = """
apiVersion: kubeflow.org/v1
kind: PyTorchJob
metadata: {name: finetune, labels: {team: ours}}
spec:
  runPolicy: {activeDeadlineSeconds: 7200, cleanPodPolicy: None}
  pytorchReplicaSpecs:
    Master:
      replicas: 1
      template:
        spec:
          nodeSelector: {nvidia.com/gpu.product: NVIDIA-H100-80GB-HBM3}
          containers:
            - name: pytorch
              image: ours
              command: [torchrun, --nproc-per-node, "8", train.py]
              args: [--per_device_train_batch_size, "8", --bf16, --max_steps, "1000", --learning_rate, "1e-5"]
              resources: {limits: {nvidia.com/gpu: 8, memory: 900Gi}}
    Worker:
      replicas: 1
      template: {spec: {containers: [{name: pytorch, resources: {limits: {nvidia.com/gpu: 8}}}]}}
"""

HF_MODEL = """{
  "architectures": ["DeepseekV3ForCausalLM"], "model_type": "deepseek_v3", "transformers_version": "5.1.0",
  "hidden_size": 512, "intermediate_size": 1024, "moe_intermediate_size": 128, "num_hidden_layers": 4,
  "num_attention_heads": 8, "num_key_value_heads": 8, "vocab_size": 1024, "n_routed_experts": 16,
  "n_shared_experts": 1, "num_experts_per_tok": 2, "first_k_dense_replace": 1, "q_lora_rank": 96, "kv_lora_rank": 64,
  "qk_nope_head_dim": 64, "qk_rope_head_dim": 32, "v_head_dim": 64, "hidden_act": "silu", "tie_word_embeddings": false,
  "max_position_embeddings": 4096, "rope_theta": 10000, "torch_dtype": "bfloat16", "num_nextn_predict_layers": 1
}
"""

LLAMA_FACTORY = """
# model
model_name_or_path: meta-llama/Llama-3.1-8B-Instruct
quantization_bit: 8
trust_remote_code: true
# method
stage: dpo
do_train: true
finetuning_type: lora
lora_rank: 16
lora_alpha: 32
lora_target: q_proj,k_proj,v_proj,o_proj
pref_beta: 0.1
pref_loss: sigmoid
# data
dataset: preference_pairs
template: llama3
cutoff_len: 1024
max_samples: 5000
preprocessing_num_workers: 16
# training
output_dir: saves/llama3/dpo
logging_steps: 10
save_strategy: steps
save_steps: 200
per_device_train_batch_size: 2
gradient_accumulation_steps: 4
learning_rate: 5.0e-6
max_steps: 600
lr_scheduler_type: cosine
warmup_ratio: 0.1
bf16: true
flash_attn: fa2
ddp_timeout: 180000000
report_to: none
"""

TRL_DPO = """
model_name_or_path: Qwen/Qwen2.5-7B-Instruct
attn_implementation: sdpa
dtype: bfloat16
dataset_name: preference_pairs
beta: 0.05
loss_type: sigmoid
max_length: 2048
max_prompt_length: 1024
per_device_train_batch_size: 1
gradient_accumulation_steps: 16
gradient_checkpointing: true
gradient_checkpointing_kwargs: {use_reentrant: false}
learning_rate: 5.0e-7
lr_scheduler_type: cosine
optim: adamw_torch_fused
bf16: true
max_steps: 500
logging_steps: 10
eval_strategy: "no"
fsdp: full_shard auto_wrap
output_dir: dpo
report_to: none
"""

FILES: dict[str, tuple[str, str]] = {
    "config.json": (HF_MODEL, "Hugging Face model config"),
    "training_args.json": (TRAINING_ARGUMENTS, "Hugging Face TrainingArguments"),
    "accelerate.yaml": (ACCELERATE, "accelerate config"),
    "lightning.yaml": (LIGHTNING, "LightningCLI config"),
    "axolotl.yaml": (AXOLOTL, "Axolotl config"),
    "llama_factory.yaml": (LLAMA_FACTORY, "LLaMA-Factory config"),
    "trl_dpo.yaml": (TRL_DPO, "Hugging Face TrainingArguments"),
    "foundry.yaml": (LLM_FOUNDRY, "llm-foundry config"),
    "bridge.yaml": (MEGATRON_BRIDGE, "NeMo or Megatron-Bridge recipe"),
    "nemo.yaml": (NEMO_1, "NeMo or Megatron-Bridge recipe"),
    "run.sbatch": (SBATCH, "sbatch script with launch command with Hugging Face TrainingArguments"),
    "launch.sh": (ACCELERATE_LAUNCH, "accelerate config with script"),
    "ds_auto.json": (DEEPSPEED_AUTO, "DeepSpeed config"),
    "ds.json": (DEEPSPEED, "DeepSpeed config"),
    "titan.toml": (TORCHTITAN, "torchtitan config"),
    "pretrain.sh": (MEGATRON, "Megatron arguments"),
    "manifest.yaml": (PYTORCH_JOB, "PyTorchJob of Kubernetes with launch command with Hugging Face TrainingArguments"),
}
"""Name of a file -> its content and its kind."""
