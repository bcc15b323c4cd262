"""BERT and RoBERTa encoders with their training heads.

BERT: Devlin et al. 2018 (arXiv:1810.04805); RoBERTa: Liu et al. 2019 (arXiv:1907.11692). Post-LN blocks,
learned positions. `head` is one of pretrain (masked tokens gathered + next sentence), mlm (every position),
squad (span), ner (a class per token) and classify (a class per sequence). `head_dim` is hidden / heads unless given:
a tensor-parallel rank is this model with fewer heads of the same size.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from precision_time.zoo.models.text import FeedForward, activation, dropout, key_mask, tokens, vocabulary_loss
from precision_time.zoo.workload import Config, Sizes, Workload

EPS = 1e-12


class Embeddings(nn.Module):
    """Word + position + segment, normalised. `projected` narrows them to a smaller hidden size (ELECTRA)."""

    def __init__(self, config: Config, size: int, projected: int | None = None) -> None:
        super().__init__()
        self.word = nn.Embedding(int(config["vocab"]), size)
        self.position = nn.Embedding(int(config["max_positions"]), size)
        self.segment = nn.Embedding(int(config["segments"]), size)
        self.norm = nn.LayerNorm(size, eps=EPS)
        self.dropout = dropout(float(config["dropout"]))
        self.project = nn.Linear(size, projected) if projected is not None else nn.Identity()

    def forward(self, input_ids: Tensor, segment_ids: Tensor) -> Tensor:
        positions = torch.arange(input_ids.shape[1], device=input_ids.device).unsqueeze(0)
        summed = self.word(input_ids) + self.position(positions) + self.segment(segment_ids)
        return self.project(self.dropout(self.norm(summed)))


class SelfAttention(nn.Module):
    def __init__(self, hidden: int, heads: int, head_dim: int, drop: float) -> None:
        super().__init__()
        self.heads, self.drop = heads, drop
        self.query = nn.Linear(hidden, heads * head_dim)
        self.key = nn.Linear(hidden, heads * head_dim)
        self.value = nn.Linear(hidden, heads * head_dim)
        self.output = nn.Linear(heads * head_dim, hidden)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        def split(y: Tensor) -> Tensor:
            return y.unflatten(-1, (self.heads, -1)).transpose(1, 2)

        context = F.scaled_dot_product_attention(
            split(self.query(x)),
            split(self.key(x)),
            split(self.value(x)),
            attn_mask=mask,
            dropout_p=self.drop if self.training else 0.0,
        )
        return self.output(context.transpose(1, 2).flatten(2))


class Layer(nn.Module):
    """Post-LN block: attention, add and norm, feed-forward, add and norm."""

    def __init__(self, config: Config, hidden: int, heads: int, head_dim: int, ffn: int) -> None:
        super().__init__()
        self.attention = SelfAttention(hidden, heads, head_dim, float(config["attention_dropout"]))
        self.attention_norm = nn.LayerNorm(hidden, eps=EPS)
        self.ffn = FeedForward(hidden, ffn, str(config["act"]))
        self.norm = nn.LayerNorm(hidden, eps=EPS)
        self.dropout = dropout(float(config["dropout"]))

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        x = self.attention_norm(x + self.dropout(self.attention(x, mask)))
        return self.norm(x + self.dropout(self.ffn(x)))


class Encoder(nn.Module):
    """Embeddings and the stack of layers; `hidden`, `heads`, `head_dim` and `ffn` of the config unless given."""

    def __init__(
        self,
        config: Config,
        hidden: int | None = None,
        heads: int | None = None,
        ffn: int | None = None,
        embedding: int | None = None,
        head_dim: int | None = None,
    ) -> None:
        super().__init__()
        hidden = hidden or int(config["hidden"])
        heads = heads or int(config["heads"])
        ffn = ffn or int(config["ffn"])
        head_dim = head_dim or int(config.get("head_dim", hidden // heads))
        embedding = embedding or hidden
        self.embeddings = Embeddings(config, embedding, hidden if hidden != embedding else None)
        self.layers = nn.ModuleList(Layer(config, hidden, heads, head_dim, ffn) for _ in range(int(config["layers"])))

    def forward(self, input_ids: Tensor, segment_ids: Tensor, attention_mask: Tensor) -> Tensor:
        x = self.embeddings(input_ids, segment_ids)
        mask = key_mask(attention_mask)
        for layer in self.layers:
            x = layer(x, mask)
        return x


class TokenPrediction(nn.Module):
    """Dense, GELU, norm, then logits through the transposed word embedding plus a bias."""

    def __init__(self, config: Config, hidden: int, word: nn.Embedding) -> None:
        super().__init__()
        self.dense = nn.Linear(hidden, word.embedding_dim)
        self.norm = nn.LayerNorm(word.embedding_dim, eps=EPS)
        self.decoder = nn.Linear(word.embedding_dim, word.num_embeddings)
        self.decoder.weight = word.weight
        self.act = activation(str(config["act"]))

    def forward(self, x: Tensor) -> Tensor:
        return self.decoder(self.norm(self.act(self.dense(x))))


class EncoderModel(nn.Module):
    """An encoder with the head that the config names; forward returns the scalar loss of that head."""

    HEADS = ("pretrain", "mlm", "squad", "ner", "classify")

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.head = str(config["head"])
        if self.head not in self.HEADS:
            raise ValueError(f"unknown head {self.head!r}: use one of {', '.join(self.HEADS)}")
        hidden = int(config["hidden"])
        self.encoder = Encoder(config)
        if self.head in ("pretrain", "classify"):
            self.pooler = nn.Linear(hidden, hidden)
        if self.head in ("pretrain", "mlm"):
            self.prediction = TokenPrediction(config, hidden, self.encoder.embeddings.word)
        if self.head == "pretrain":
            self.next_sentence = nn.Linear(hidden, 2)
        elif self.head == "squad":
            self.span = nn.Linear(hidden, 2)
        elif self.head in ("ner", "classify"):
            self.dropout = dropout(float(config["dropout"]))
            self.classifier = nn.Linear(hidden, int(config["labels"]))

    def forward(self, inputs: dict[str, Tensor]) -> Tensor:
        x = self.encoder(inputs["input_ids"], inputs["segment_ids"], inputs["attention_mask"])
        if self.head == "pretrain":
            masked = x.flatten(0, 1).index_select(0, inputs["masked_positions"].flatten())
            token_loss = vocabulary_loss(self.prediction(masked), inputs["masked_labels"])
            pooled = torch.tanh(self.pooler(x[:, 0]))
            return token_loss + F.cross_entropy(self.next_sentence(pooled), inputs["next_sentence"])
        if self.head == "mlm":
            return vocabulary_loss(self.prediction(x), inputs["labels"])
        if self.head == "squad":
            start, end = self.span(x).unbind(-1)
            loss = F.cross_entropy(start, inputs["start"]) + F.cross_entropy(end, inputs["end"])
            return loss / 2
        if self.head == "ner":
            return vocabulary_loss(self.classifier(self.dropout(x)), inputs["labels"])
        pooled = torch.tanh(self.pooler(x[:, 0]))
        return F.cross_entropy(self.classifier(self.dropout(pooled)), inputs["labels"])


def encoder_inputs(config: Config, sizes: Sizes) -> dict[str, Tensor]:
    """The tensors that the head of the config needs, sequences padded to `seq_len`."""
    batch, seq, head = int(sizes["batch_size"]), int(sizes["seq_len"]), str(config["head"])
    inputs = {name: tokens(batch, seq) for name in ("input_ids", "segment_ids", "attention_mask")}
    if head == "pretrain":
        inputs["masked_positions"] = tokens(batch, int(config["max_predictions"]))
        inputs["masked_labels"] = tokens(batch, int(config["max_predictions"]))
        inputs["next_sentence"] = tokens(batch)
    elif head == "squad":
        inputs["start"] = tokens(batch)
        inputs["end"] = tokens(batch)
    elif head == "classify":
        inputs["labels"] = tokens(batch)
    else:
        inputs["labels"] = tokens(batch, seq)
    return inputs


def build(config: Config, sizes: Sizes) -> Workload:
    return Workload(
        module=EncoderModel(config),
        inputs=encoder_inputs(config, sizes),
        loss=lambda module, inputs: module(inputs),
    )
