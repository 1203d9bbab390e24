"""The MiniLM sentence encoder: tokens in, 384 features out.

A BERT of six layers (Devlin et al. 2019), distilled by Wang et al. (2020) and trained on pairs of sentences by
Reimers and Gurevych: the mean of the last layer over a text's tokens, brought to length 1.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

FEATURES, LAYERS, HEADS, INNER = 384, 6, 12, 1536
POSITIONS, VOCABULARY = 512, 30_522
_EPSILON = 1e-12


class Layer(nn.Module):
    """Attention over all tokens, then two linear layers per token; each is added to its input and normalised."""

    def __init__(self, features: int, heads: int, inner: int) -> None:
        super().__init__()
        self.heads = heads
        self.query, self.key, self.value, self.attended = (nn.Linear(features, features) for _ in range(4))
        self.first_norm = nn.LayerNorm(features, eps=_EPSILON)
        self.widen, self.narrow = nn.Linear(features, inner), nn.Linear(inner, features)
        self.second_norm = nn.LayerNorm(features, eps=_EPSILON)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (
            part(x).unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in (self.query, self.key, self.value)
        )
        attention = F.softmax(q @ k.mT / q.shape[-1] ** 0.5, -1)
        x = self.first_norm(x + self.attended((attention @ v).transpose(1, 2).flatten(2)))
        normalised: Tensor = self.second_norm(x + self.narrow(F.gelu(self.widen(x))))
        return normalised


class MiniLM(nn.Module):
    """Tokens (1, length) of one text, without padding → features (1, 384) of length 1."""

    def __init__(
        self,
        features: int = FEATURES,
        layers: int = LAYERS,
        heads: int = HEADS,
        inner: int = INNER,
        vocabulary: int = VOCABULARY,
    ) -> None:
        super().__init__()
        self.words = nn.Embedding(vocabulary, features)
        self.positions = nn.Embedding(POSITIONS, features)
        self.kind = nn.Parameter(torch.zeros(features))
        self.norm = nn.LayerNorm(features, eps=_EPSILON)
        self.layers = nn.ModuleList(Layer(features, heads, inner) for _ in range(layers))

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.norm(self.words(tokens) + self.positions.weight[: tokens.shape[1]] + self.kind)
        for layer in self.layers:
            x = layer(x)
        return F.normalize(x.mean(1), dim=-1)


#: Our names for the published ones, in a layer.
_NAMES = {
    "attention.self.query": "query",
    "attention.self.key": "key",
    "attention.self.value": "value",
    "attention.output.dense": "attended",
    "attention.output.LayerNorm": "first_norm",
    "intermediate.dense": "widen",
    "output.dense": "narrow",
    "output.LayerNorm": "second_norm",
}


def convert(published: dict[str, Tensor]) -> dict[str, Tensor]:
    """The tensors of `MiniLM` from those of the published file; one text has tokens of one kind only."""
    found = {
        "words.weight": published["embeddings.word_embeddings.weight"],
        "positions.weight": published["embeddings.position_embeddings.weight"],
        "kind": published["embeddings.token_type_embeddings.weight"][0],
        "norm.weight": published["embeddings.LayerNorm.weight"],
        "norm.bias": published["embeddings.LayerNorm.bias"],
    }
    for name, tensor in published.items():
        start, _, rest = name.removeprefix("encoder.layer.").partition(".")
        inner, _, part = rest.rpartition(".")
        if name.startswith("encoder.layer."):
            found[f"layers.{start}.{_NAMES[inner]}.{part}"] = tensor
    return found
