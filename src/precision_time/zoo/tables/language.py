"""Encoders and encoder-decoders: BERT, RoBERTa, ELECTRA, BART, T5, Transformer-XL.

Parameter counts marked "transformers" are those of the named class of the Hugging Face library at the
published configuration; they hold for the vocabulary and head stated there.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from precision_time.zoo.workload import BATCH, Symbol, ZooEntry

# Bytes of an unfused attention matrix and of T5's position bias grow with the square of the length.
SEQ = Symbol("seq_len", (64, 96, 128), 160, degree=2)
BATCH_SEQ = (BATCH, SEQ)

ENCODER: Mapping[str, Any] = {
    "segments": 2,
    "max_positions": 512,
    "dropout": 0.1,
    "attention_dropout": 0.1,
    "act": "gelu",
    "labels": 2,
    "max_predictions": 20,
}
BASE: Mapping[str, Any] = {**ENCODER, "layers": 12, "hidden": 768, "heads": 12, "ffn": 3072, "vocab": 30522}
LARGE: Mapping[str, Any] = {**ENCODER, "layers": 24, "hidden": 1024, "heads": 16, "ffn": 4096, "vocab": 30528}

ENTRIES: tuple[ZooEntry, ...] = (
    ZooEntry(
        name="bert-large",
        builder="models.encoder:build",
        family="bert",
        input={"seq_len": 128},
        optimizer="lamb",
        dataset="wikipedia",
        batch_size=64,
        config={**LARGE, "head": "pretrain", "act": "gelu_tanh"},
        symbols=BATCH_SEQ,
        clip_norm=1.0,
        attention=True,
        parameters=336_226_108,
        parameters_source="transformers BertForPreTraining, bert-large-uncased "
        "(vocabulary 30522; padded to 30528 here, +6,150)",
    ),
    ZooEntry(
        name="bert-base",
        builder="models.encoder:build",
        family="bert",
        input={"seq_len": 384},
        optimizer="adam",
        dataset="squad",
        batch_size=32,
        config={**BASE, "head": "squad"},
        symbols=BATCH_SEQ,
        clip_norm=1.0,
        attention=True,
        parameters=108_893_186,
        parameters_source="transformers BertForQuestionAnswering, bert-base-uncased",
    ),
    ZooEntry(
        name="roberta-base",
        builder="models.encoder:build",
        family="bert",
        input={"seq_len": 512},
        optimizer="adamw",
        dataset="text",
        batch_size=16,
        config={**BASE, "head": "mlm", "vocab": 50265, "max_positions": 514, "segments": 1},
        symbols=BATCH_SEQ,
        attention=True,
        parameters=124_697_433,
        parameters_source="transformers RobertaForMaskedLM, roberta-base",
    ),
    # Recalled: facebook/esm2_t*_UR50D. Counts of these weights include a head of contacts, which is not trained.
    *(
        ZooEntry(
            name=f"esm2-{size}",
            builder="models.transformers_models:build_esm",
            family="esm2",
            input={"seq_len": 1024},
            optimizer="adamw",
            dataset="",
            batch_size=batch,
            config={"layers": layers, "hidden": hidden, "heads": heads, "ffn": 4 * hidden, "vocab": 33},
            attention=True,
            ships_math=False,
            ships=size in ("150m", "650m"),
            symbols=BATCH_SEQ,
            parameters=count,
            parameters_source="transformers EsmForMaskedLM, without the head of contacts",
        )
        for size, layers, hidden, heads, batch, count in (
            ("8m", 6, 320, 20, 64, 7_512_474),
            ("35m", 12, 480, 20, 32, 33_501_394),
            ("150m", 30, 640, 20, 16, 148_140_154),
            ("650m", 33, 1280, 20, 8, 651_043_254),
            ("3b", 36, 2560, 40, 2, 2_839_005_634),
        )
    ),
    ZooEntry(
        name="electra-base",
        builder="models.electra:build",
        family="electra",
        input={"seq_len": 128},
        optimizer="lamb",
        dataset="wikipedia",
        batch_size=176,
        config={
            **BASE,
            "head": "pretrain",
            "generator_hidden": 256,
            "generator_heads": 4,
            "generator_ffn": 1024,
            "discriminator_weight": 50.0,
        },
        symbols=BATCH_SEQ,
        clip_norm=1.0,
        attention=True,
        # discriminator 109,483,009 + generator 33,740,602 - shared word embedding 23,440,896
        parameters=119_782_715,
        parameters_source="transformers ElectraForPreTraining + ElectraForMaskedLM (generator 256 wide), "
        "word embedding counted once",
    ),
    ZooEntry(
        name="bart-large",
        builder="models.bart_t5:build_bart",
        family="bart",
        input={"seq_len": 128},
        optimizer="lamb",
        optimizer_impl="fused",
        dataset="wikipedia",
        batch_size=64,
        config={
            "layers": 12,
            "hidden": 1024,
            "heads": 16,
            "ffn": 4096,
            "vocab": 50265,
            "max_positions": 1024,
            "pre_norm": 1,
            "act": "gelu",
            "dropout": 0.1,
            "attention_dropout": 0.0,
        },
        symbols=BATCH_SEQ,
        clip_norm=1.0,
        attention=True,
        parameters=406_291_456,
        parameters_source="transformers BartForConditionalGeneration, bart-large "
        "(post-LN; the pre-LN variant here has two more norms, +4,096)",
    ),
    *(
        ZooEntry(
            name=name,
            builder="models.bart_t5:build_t5",
            family="t5",
            input={"seq_len": 512, "target_len": 114},
            optimizer="adamw",
            dataset="c4",
            batch_size=8,
            config={
                "layers": layers,
                "hidden": hidden,
                "heads": heads,
                "head_dim": 64,
                "ffn": ffn,
                "vocab": 32128,
                "dropout": 0.1,
            },
            symbols=BATCH_SEQ,
            attention=True,
            parameters=parameters,
            parameters_source=f"transformers T5ForConditionalGeneration, {name}",
        )
        for name, layers, hidden, heads, ffn, parameters in (
            ("t5-base", 12, 768, 12, 3072, 222_903_552),
            ("t5-large", 24, 1024, 16, 4096, 737_668_096),
        )
    ),
    *(
        ZooEntry(
            name=f"transformer-xl-{size}",
            builder="models.transformer_xl:build",
            family="transformer-xl",
            input={"seq_len": length, "mem_len": length},
            optimizer="lamb",
            dataset="wikitext103",
            batch_size=batch,
            config={
                "layers": layers,
                "hidden": hidden,
                "heads": heads,
                "ffn": ffn,
                "vocab": 267735,
                "cutoffs": (19997, 39997, 199997),
                "div_val": div_val,
                "dropout": dropout,
                "attention_dropout": attention_dropout,
                "cluster_shares": (0.032, 0.035, 0.003),
            },
            symbols=(BATCH,),
            clip_norm=0.25,
        )
        for size, length, batch, layers, hidden, heads, ffn, div_val, dropout, attention_dropout in (
            ("base", 192, 32, 16, 512, 8, 2048, 1, 0.1, 0.0),
            ("large", 384, 8, 18, 1024, 16, 4096, 4, 0.2, 0.2),
        )
    ),
)
