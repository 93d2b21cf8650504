"""The network: Qwen 3's architecture, so that every GGUF runtime can run it."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention.varlen import varlen_attn

DIALOGUE_TOKENS_MAX = 2_048
"""No dialogue of a packed batch is longer."""


@dataclass(frozen=True)
class Config:
    """Shapes. Every matrix row (``width``, ``hidden``, ``heads * head_dim``) is a multiple of 256."""

    vocabulary: int = 3_072
    width: int = 256
    layers: int = 8
    heads: int = 8
    kv_heads: int = 2
    head_dim: int = 64
    hidden: int = 768
    context: int = 2_048
    rope_base: float = 10_000.0
    epsilon: float = 1e-6


def rotate(x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    """Rotary position: pairs are (i, i + head_dim / 2). ``x`` [rows, length, heads, head_dim]."""
    low, high = x.chunk(2, dim=-1)
    return torch.cat((low * cosine - high * sine, high * cosine + low * sine), dim=-1)


class Attention(nn.Module):
    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config = config
        self.query = nn.Linear(config.width, config.heads * config.head_dim, bias=False)
        self.key = nn.Linear(config.width, config.kv_heads * config.head_dim, bias=False)
        self.value = nn.Linear(config.width, config.kv_heads * config.head_dim, bias=False)
        self.output = nn.Linear(config.heads * config.head_dim, config.width, bias=False)
        self.query_norm = nn.RMSNorm(config.head_dim, config.epsilon)
        self.key_norm = nn.RMSNorm(config.head_dim, config.epsilon)

    def forward(self, x: Tensor, cosine: Tensor, sine: Tensor, bounds: Tensor | None) -> Tensor:
        rows, length, _ = x.shape
        c = self.config

        def split(y: Tensor, heads: int) -> Tensor:
            return y.view(rows, length, heads, c.head_dim)

        query = rotate(self.query_norm(split(self.query(x), c.heads)), cosine, sine)
        key = rotate(self.key_norm(split(self.key(x), c.kv_heads)), cosine, sine)
        value = split(self.value(x), c.kv_heads)
        key, value = (y.repeat_interleave(c.heads // c.kv_heads, dim=2) for y in (key, value))
        if bounds is None:
            query, key, value = (y.transpose(1, 2) for y in (query, key, value))
            seen = F.scaled_dot_product_attention(query, key, value, is_causal=True).transpose(1, 2)
        else:
            packed = (y.flatten(0, 1).bfloat16() for y in (query, key, value))
            causal = (-1, 0)
            seen = varlen_attn(*packed, bounds, bounds, DIALOGUE_TOKENS_MAX, DIALOGUE_TOKENS_MAX, window_size=causal)
        return self.output(seen.reshape(rows, length, -1))


class FeedForward(nn.Module):
    def __init__(self, config: Config) -> None:
        super().__init__()
        self.gate = nn.Linear(config.width, config.hidden, bias=False)
        self.up = nn.Linear(config.width, config.hidden, bias=False)
        self.down = nn.Linear(config.hidden, config.width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(F.silu(self.gate(x)) * self.up(x))


class Layer(nn.Module):
    def __init__(self, config: Config) -> None:
        super().__init__()
        self.attention_norm = nn.RMSNorm(config.width, config.epsilon)
        self.attention = Attention(config)
        self.feed_forward_norm = nn.RMSNorm(config.width, config.epsilon)
        self.feed_forward = FeedForward(config)

    def forward(self, x: Tensor, cosine: Tensor, sine: Tensor, bounds: Tensor | None) -> Tensor:
        x = x + self.attention(self.attention_norm(x), cosine, sine, bounds)
        return x + self.feed_forward(self.feed_forward_norm(x))


class Model(nn.Module):
    """Decoder with tied embeddings."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config = config
        self.embedding = nn.Embedding(config.vocabulary, config.width)
        self.layers = nn.ModuleList(Layer(config) for _ in range(config.layers))
        self.norm = nn.RMSNorm(config.width, config.epsilon)
        half = torch.arange(config.head_dim // 2, dtype=torch.float64)
        angles = torch.outer(torch.arange(config.context, dtype=torch.float64), config.rope_base ** (-half / len(half)))
        self.register_buffer("cosine", angles.cos().float(), persistent=False)
        self.register_buffer("sine", angles.sin().float(), persistent=False)
        self.initialise()

    def initialise(self) -> None:
        """Initialises normal weights; matrices that write to the residual stream are scaled down by depth."""
        nn.init.normal_(self.embedding.weight, std=0.02)
        for name, module in self.named_modules():
            if isinstance(module, nn.Linear):
                writes = name.endswith(("output", "down"))
                scale = (2 * self.config.layers) ** -0.5 if writes else 1.0
                nn.init.normal_(module.weight, std=scale * module.in_features**-0.5)

    def hidden(self, ids: Tensor, positions: Tensor | None = None, bounds: Tensor | None = None) -> Tensor:
        """``[rows, length]`` ids to ``[rows, length, width]``.

        With ``bounds`` (``[dialogues + 1]``, int32) the one row holds several dialogues, the ``i``-th from ``bounds[i]``
        to ``bounds[i + 1]``, and attention is limited to each dialogue; ``positions`` count from its start.
        """
        x = self.embedding(ids)
        if positions is None:
            positions = torch.arange(ids.shape[1], device=ids.device)[None]
        cosine, sine = self.cosine[positions][:, :, None], self.sine[positions][:, :, None]
        for layer in self.layers:
            x = layer(x, cosine, sine, bounds)
        return self.norm(x)

    def logits(self, hidden: Tensor) -> Tensor:
        return F.linear(hidden, self.embedding.weight)

    def loss(self, ids: Tensor, positions: Tensor, bounds: Tensor, learned: Tensor) -> Tensor:
        """Mean cross-entropy of the learned tokens of one packed row, each predicted from its dialogue so far."""
        hidden = self.hidden(ids, positions, bounds)[:, :-1]
        targets = torch.where(learned[:, 1:], ids[:, 1:], -100)
        return F.cross_entropy(self.logits(hidden).flatten(0, 1).float(), targets.flatten(), ignore_index=-100)
