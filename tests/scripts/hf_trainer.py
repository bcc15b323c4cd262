"""Continues the training of a causal model with the Trainer. An example, read by tests/test_skeleton.py and never run."""

import argparse

import torch
from datasets import load_dataset
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    DataCollatorForLanguageModeling,
    Trainer,
    TrainingArguments,
)

parser = argparse.ArgumentParser()
parser.add_argument("--model", default="Qwen/Qwen2.5-1.5B")
parser.add_argument("--out", required=True)
parser.add_argument("--length", type=int, default=2048)


def main():
    args = parser.parse_args()
    tokenizer = AutoTokenizer.from_pretrained(args.model)
    model = AutoModelForCausalLM.from_pretrained(args.model, torch_dtype=torch.bfloat16, attn_implementation="sdpa")
    texts = load_dataset("roneneldan/TinyStories", split="train")

    def tokenize(batch):
        return tokenizer(batch["text"], truncation=True, max_length=args.length, padding="max_length")

    training_args = TrainingArguments(
        output_dir=args.out,
        per_device_train_batch_size=4,
        gradient_accumulation_steps=8,
        num_train_epochs=3,
        learning_rate=2e-5,
        lr_scheduler_type="cosine",
        warmup_ratio=0.03,
        bf16=True,
        gradient_checkpointing=True,
        optim="adamw_torch_fused",
        fsdp="full_shard auto_wrap",
        logging_steps=10,
        save_strategy="no",
    )
    trainer = Trainer(
        model=model,
        args=training_args,
        train_dataset=texts.map(tokenize, batched=True),
        data_collator=DataCollatorForLanguageModeling(tokenizer, mlm=False),
    )
    trainer.train()


if __name__ == "__main__":
    main()
