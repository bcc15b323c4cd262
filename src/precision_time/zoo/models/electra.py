"""ELECTRA: a small generator fills masked tokens, a discriminator finds the replaced ones.

Clark et al. 2020 (arXiv:2003.10555). The generator is `generator_size` of the discriminator's width and
shares its word embedding. It predicts only the masked positions; a Gumbel sample of its logits replaces them
in the discriminator's input. head=squad trains the discriminator alone on answer spans.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from precision_time.zoo.models.encoder import Encoder, EncoderModel, TokenPrediction, encoder_inputs
from precision_time.zoo.models.text import VocabularyLoss, activation, tokens
from precision_time.zoo.workload import Config, Sizes, Workload


class Discriminator(nn.Module):
    """Encoder, dense + activation, one logit per token: was it replaced?"""

    def __init__(self, config: Config) -> None:
        super().__init__()
        hidden = int(config["hidden"])
        self.encoder = Encoder(config)
        self.dense = nn.Linear(hidden, hidden)
        self.replaced = nn.Linear(hidden, 1)
        self.act = activation(str(config["act"]))

    def forward(self, input_ids: Tensor, segment_ids: Tensor, attention_mask: Tensor) -> Tensor:
        x = self.encoder(input_ids, segment_ids, attention_mask)
        return self.replaced(self.act(self.dense(x))).squeeze(-1)


class Generator(nn.Module):
    """A narrow encoder over the shared word embedding, with a token prediction at the masked positions."""

    def __init__(self, config: Config, word: nn.Embedding) -> None:
        super().__init__()
        hidden = int(config["generator_hidden"])
        heads, ffn = int(config["generator_heads"]), int(config["generator_ffn"])
        head_dim = int(config.get("generator_head_dim", hidden // heads))
        self.encoder = Encoder(config, hidden, heads, ffn, word.embedding_dim, head_dim)
        self.encoder.embeddings.word = word
        self.prediction = TokenPrediction(config, hidden, word)

    def forward(self, input_ids: Tensor, segment_ids: Tensor, attention_mask: Tensor, positions: Tensor) -> Tensor:
        x = self.encoder(input_ids, segment_ids, attention_mask)
        masked = x.gather(1, positions.unsqueeze(-1).expand(-1, -1, x.shape[-1]))
        return self.prediction(masked)


class Electra(nn.Module):
    """Both networks; forward returns masked-token loss + weight x replaced-token loss."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.discriminator = Discriminator(config)
        self.generator = Generator(config, self.discriminator.encoder.embeddings.word)
        self.generator_loss = VocabularyLoss()
        self.weight = float(config["discriminator_weight"])

    def forward(self, inputs: dict[str, Tensor]) -> Tensor:
        ids, segments, mask = inputs["input_ids"], inputs["segment_ids"], inputs["attention_mask"]
        positions, labels = inputs["masked_positions"], inputs["masked_labels"]
        logits = self.generator(ids, segments, mask, positions)
        generator_loss = self.generator_loss(logits, labels)

        frozen = logits.detach()
        gumbel = -torch.log(-torch.log(torch.rand_like(frozen)))
        sampled = (frozen + gumbel).argmax(-1)
        replaced = (ids.scatter(1, positions, sampled) != ids.scatter(1, positions, labels)).to(frozen.dtype)
        scores = self.discriminator(ids.scatter(1, positions, sampled), segments, mask)
        losses = F.binary_cross_entropy_with_logits(scores.float(), replaced.float(), reduction="none")
        valid = mask.to(losses.dtype)
        return generator_loss + self.weight * (losses * valid).sum() / valid.sum()


def build(config: Config, sizes: Sizes) -> Workload:
    if str(config["head"]) != "pretrain":
        # SQuAD and the like use the discriminator as a plain encoder, without the generator.
        return Workload(EncoderModel(config), encoder_inputs(config, sizes), lambda module, inputs: module(inputs))
    batch, seq, masked = int(sizes["batch_size"]), int(sizes["seq_len"]), int(config["max_predictions"])
    inputs = {name: tokens(batch, seq) for name in ("input_ids", "segment_ids", "attention_mask")}
    inputs |= {name: tokens(batch, masked) for name in ("masked_positions", "masked_labels")}
    return Workload(Electra(config), inputs, lambda module, inputs: module(inputs))
