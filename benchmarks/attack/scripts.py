"""Training scripts whose text is read and never run: `skeleton FILE.py` and `predict FILE.py`."""

from __future__ import annotations

import random
import re
from pathlib import Path

from benchmarks.attack.input import Input, as_json
from benchmarks.attack.mutate import bad_value, mutated_text

_LOOP = """import argparse
import torch, torchvision
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader

parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int, default=64)
parser.add_argument("--epochs", default=90, type=int)
args = parser.parse_args()
WIDTH = 16 * 4
class Net(nn.Module):
    def __init__(self, width=WIDTH, classes=10):
        super().__init__()
        self.layers = nn.Sequential(nn.Conv2d(3, width, 3), nn.ReLU(), nn.Flatten(), nn.LazyLinear(classes))
    def forward(self, x):
        return self.layers(x)
model = DDP(torchvision.models.resnet50(num_classes=1000).cuda())
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.05)
scaler = torch.amp.GradScaler()
loader = DataLoader(images, batch_size=args.batch_size // 8, num_workers=8)
for epoch in range(args.epochs):
    for x, y in loader:
        with torch.autocast("cuda", dtype=torch.float16):
            loss = nn.functional.cross_entropy(model(x), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
"""
_SETTINGS = """import os
import torch
batch_size = 12
block_size = 1024
gradient_accumulation_steps = 5 * 8
n_layer, n_head, n_embd = 12, 12, 768
dtype = 'bfloat16' if torch.cuda.is_available() and torch.cuda.is_bf16_supported() else 'float16'
compile = True
config_keys = [k for k, v in globals().items() if not k.startswith('_')]
from model import GPTConfig, GPT
model_args = dict(n_layer=n_layer, n_head=n_head, n_embd=n_embd, block_size=block_size, vocab_size=50304)
model = GPT(GPTConfig(**model_args))
optimizer = torch.optim.AdamW(model.parameters(), lr=6e-4, betas=(0.9, 0.95), fused=True)
for step in range(600000):
    x = torch.randint(0, 50304, (batch_size, block_size))
    logits, loss = model(x, x)
    loss.backward()
    optimizer.step()
"""
_TRAINER = """from transformers import AutoModelForCausalLM, Trainer, TrainingArguments
from peft import LoraConfig, get_peft_model
NAME = "meta-llama/Llama-3.1-8B"
model = AutoModelForCausalLM.from_pretrained(NAME, load_in_4bit=True)
model = get_peft_model(model, LoraConfig(r=16, target_modules=["q_proj", "v_proj"]))
arguments = TrainingArguments(output_dir="out", per_device_train_batch_size=2, gradient_accumulation_steps=8, bf16=True,
                              num_train_epochs=3, gradient_checkpointing=True)
Trainer(model=model, args=arguments, train_dataset=data).train()
"""
_NUMBER = re.compile(r"(?<![\w.])\d+(?:\.\d+)?(?:e-?\d+)?(?![\w.])")
_EXPRESSIONS = (
    "10**10**10", "'a' * 10**10", "1 << 10**10", "-3", "0", "1e400", "[1] * 10**9", "max(range(10**12))", "1 / 0",
    "5 % 0", "lambda: 1", "2**100000", "None", "True", "b'x'", "3 + 1j", "(-8)**0.5", "batch_size", "args", "print",
    "...", "{}",
    "f'{3:>999999999}'", "'%0999999999d' % 3", "(" * 190 + "1" + ")" * 190, "+".join(["1"] * 3000), "*args", "9" * 4000,
    "globals()['x']", "__import__('os').system('true')", "open('out', 'w')", "[i for i in iter(int, 1)]", "yield",
    "await x",
)  # fmt: skip
"""What stands in place of a number."""


def training_script(source: random.Random, folder: Path) -> Input:
    """A script with numbers replaced, lines left out, doubled or exchanged, or its text damaged."""
    text = source.choice((_LOOP, _SETTINGS, _TRAINER))
    for _ in range(source.choice((0, 1, 1, 2))):
        value = source.choice((*_EXPRESSIONS, _repr_of(bad_value(source))))
        found = source.choice(list(_NUMBER.finditer(text)) or [None])
        if found:
            text = text[: found.start()] + value + text[found.end() :]
    lines = text.splitlines()
    if source.random() < 0.4:
        at, other = source.randrange(len(lines)), source.randrange(len(lines))
        lines[at], lines[other] = source.choice(((lines[other], lines[at]), ("", lines[other]), (lines[at], lines[at])))
    text = "\n".join(lines) + "\n"
    if source.random() < 0.3:
        text = mutated_text(source, text)
    (folder / "train.py").write_bytes(text.encode("utf-8", "replace"))
    command = source.choice(("skeleton", "skeleton", "predict"))
    return Input("training script", (command, "train.py", *(as_json(source) if command == "predict" else ())))


def _repr_of(value: object) -> str:
    try:
        return repr(value)[:5000]
    except ValueError:  # an integer of more digits than Python writes
        return "10**5000"
