"""all-MiniLM-L6-v2: a BERT of six layers whose masked mean, normalised, is a sentence's embedding (384 numbers)."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor, nn
from torch.nn import functional

WIDTH, HEADS, LAYERS, HIDDEN = 384, 12, 6, 1536
VOCABULARY, POSITIONS = 30522, 512
EPSILON = 1e-12

_RENAMED = {
    "attention.self.query": "query",
    "attention.self.key": "key",
    "attention.self.value": "value",
    "attention.output.dense": "attended",
    "attention.output.LayerNorm": "attention_norm",
    "intermediate.dense": "up",
    "output.dense": "down",
    "output.LayerNorm": "output_norm",
}


class Layer(nn.Module):
    """Self-attention and a feed-forward net, each with a residual and a norm after it, as BERT has them."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.attended = nn.Linear(WIDTH, WIDTH)
        self.attention_norm = nn.LayerNorm(WIDTH, EPSILON)
        self.up = nn.Linear(WIDTH, HIDDEN)
        self.down = nn.Linear(HIDDEN, WIDTH)
        self.output_norm = nn.LayerNorm(WIDTH, EPSILON)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        """`x` FP32 [batch, length, 384], `mask` BOOL [batch, 1, 1, length]; returns the shape of `x`."""
        query, key, value = (
            part(x).unflatten(-1, (HEADS, WIDTH // HEADS)).transpose(1, 2)
            for part in (self.query, self.key, self.value)
        )
        attended = functional.scaled_dot_product_attention(query, key, value, attn_mask=mask)
        x = self.attention_norm(x + self.attended(attended.transpose(1, 2).flatten(2)))
        x = self.output_norm(x + self.down(functional.gelu(self.up(x))))
        return x


class MiniLM(nn.Module):
    """Token ids to embeddings."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(VOCABULARY, WIDTH)
        self.positions = nn.Embedding(POSITIONS, WIDTH)
        self.types = nn.Embedding(2, WIDTH)
        self.norm = nn.LayerNorm(WIDTH, EPSILON)
        self.layers = nn.ModuleList(Layer() for _ in range(LAYERS))

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        """`input_ids` and `attention_mask` INT64 [batch, length]; returns FP32 [batch, 384], each row of length 1."""
        x = self.words(input_ids) + self.positions.weight[: input_ids.shape[1]] + self.types.weight[0]
        x = self.norm(x)
        mask = attention_mask.bool()[:, None, None, :]
        for layer in self.layers:
            x = layer(x, mask)
        weights = attention_mask.unsqueeze(-1).to(x.dtype)
        mean = (x * weights).sum(1) / weights.sum(1).clamp(min=1e-9)
        return functional.normalize(mean, dim=1)


def load(weights: Mapping[str, Tensor]) -> MiniLM:
    """Return the network with the weights of a Hugging Face BERT checkpoint. Raises RuntimeError when a weight is missing."""
    state = {}
    for name, value in weights.items():
        if name.startswith("encoder.layer."):
            _, _, index, rest = name.split(".", 3)
            part, _, kind = rest.rpartition(".")
            state[f"layers.{index}.{_RENAMED[part]}.{kind}"] = value
        elif name.startswith("embeddings.") and name.endswith("_embeddings.weight"):
            part = name.removeprefix("embeddings.").removesuffix("_embeddings.weight")
            state[{"word": "words", "position": "positions", "token_type": "types"}[part] + ".weight"] = value
        elif name.startswith("embeddings.LayerNorm."):
            state[name.replace("embeddings.LayerNorm", "norm")] = value
    net = MiniLM()
    net.load_state_dict(state, strict=True, assign=True)
    return net.eval()
