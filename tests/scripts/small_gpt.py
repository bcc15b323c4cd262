"""Pretrains a small GPT; settings are globals. An example of a script, read by tests/test_skeleton.py and never run."""

import os
import pickle
from contextlib import nullcontext

import numpy as np
import torch
from small_gpt_model import GPT, GPTConfig
from torch.distributed import init_process_group
from torch.nn.parallel import DistributedDataParallel as DDP

out_dir = "out"
eval_interval = 2000
init_from = "scratch"  # or "resume"
dataset = "openwebtext"
gradient_accumulation_steps = 5 * 8
batch_size = 12
block_size = 1024
n_layer = 12
n_head = 12
n_embd = 768
dropout = 0.0
bias = False
learning_rate = 6e-4
max_iters = 600000
grad_clip = 1.0
device = "cuda"
dtype = "bfloat16" if torch.cuda.is_available() and torch.cuda.is_bf16_supported() else "float16"
compile = True
exec(open("overrides.py").read())

ddp = int(os.environ.get("RANK", -1)) != -1
if ddp:
    init_process_group(backend="nccl")
    world_size = int(os.environ["WORLD_SIZE"])
    device = f"cuda:{os.environ['LOCAL_RANK']}"
    assert gradient_accumulation_steps % world_size == 0
    gradient_accumulation_steps //= world_size
device_type = "cuda" if "cuda" in device else "cpu"
kinds = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
context = nullcontext() if device_type == "cpu" else torch.amp.autocast(device_type=device_type, dtype=kinds[dtype])
torch.backends.cuda.matmul.allow_tf32 = True
tokens = np.memmap(os.path.join("data", dataset, "train.bin"), dtype=np.uint16, mode="r")


def get_batch():
    starts = torch.randint(len(tokens) - block_size, (batch_size,))
    x = torch.stack([torch.from_numpy(tokens[i : i + block_size].astype(np.int64)) for i in starts])
    y = torch.stack([torch.from_numpy(tokens[i + 1 : i + 1 + block_size].astype(np.int64)) for i in starts])
    return x.to(device), y.to(device)


meta_path = os.path.join("data", dataset, "meta.pkl")
vocabulary = None
if os.path.exists(meta_path):
    with open(meta_path, "rb") as file:
        vocabulary = pickle.load(file)["vocab_size"]
model_args = dict(n_layer=n_layer, n_head=n_head, n_embd=n_embd, block_size=block_size, bias=bias, dropout=dropout)
if init_from == "scratch":
    model_args["vocab_size"] = vocabulary if vocabulary is not None else 50304
    model = GPT(GPTConfig(**model_args))
elif init_from == "resume":
    checkpoint = torch.load(os.path.join(out_dir, "ckpt.pt"), map_location=device)
    model = GPT(GPTConfig(**checkpoint["model_args"]))
model.to(device)
scaler = torch.amp.GradScaler("cuda", enabled=(dtype == "float16"))
optimizer = model.configure_optimizers(learning_rate)
if compile:
    model = torch.compile(model)
if ddp:
    model = DDP(model, device_ids=[int(device[-1])])

for step in range(max_iters):
    for micro_step in range(gradient_accumulation_steps):
        X, Y = get_batch()
        with context:
            logits, loss = model(X, Y)
            loss = loss / gradient_accumulation_steps
        scaler.scale(loss).backward()
    if grad_clip != 0.0:
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), grad_clip)
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad(set_to_none=True)
