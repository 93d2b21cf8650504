"""The network: Qwen 3's architecture, so that every runtime that knows GGUF can run it."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention.flex_attention import BlockMask, flex_attention

MASK_BLOCK = 128


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


def document_mask(documents: Tensor) -> BlockMask:
    """Causal attention inside documents that lie one after another: ``documents`` [rows, length] never decreases."""
    rows, length = documents.shape
    blocks = length // MASK_BLOCK
    by_block = documents.view(rows, blocks, MASK_BLOCK)
    first, last = by_block[..., 0], by_block[..., -1]
    index = torch.arange(blocks, device=documents.device)
    causal = index[:, None] >= index[None, :]
    some = causal & (last[:, None, :] >= first[:, :, None])
    full = (index[:, None] > index[None, :]) & (first[:, None, :] == last[:, :, None])
    partial = some & ~full

    def ordered(mask: Tensor) -> tuple[Tensor, Tensor]:
        counts = mask.sum(-1, dtype=torch.int32)
        return counts[:, None].contiguous(), mask.int().argsort(-1, descending=True, stable=True).to(torch.int32)[:, None].contiguous()

    def allowed(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        return (q >= k) & (documents[b, q] == documents[b, k])

    return BlockMask.from_kv_blocks(*ordered(partial), *ordered(full), BLOCK_SIZE=MASK_BLOCK, mask_mod=allowed)


def rotate(x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    """Rotary position: pairs are (i, i + head_dim / 2). ``x`` [rows, heads, length, head_dim]."""
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

    def forward(self, x: Tensor, cosine: Tensor, sine: Tensor, mask: BlockMask | None) -> Tensor:
        rows, length, _ = x.shape
        c = self.config

        def split(y: Tensor, heads: int) -> Tensor:
            return y.view(rows, length, heads, c.head_dim)

        query = rotate(self.query_norm(split(self.query(x), c.heads)).transpose(1, 2), cosine, sine)
        key = rotate(self.key_norm(split(self.key(x), c.kv_heads)).transpose(1, 2), cosine, sine)
        value = split(self.value(x), c.kv_heads).transpose(1, 2)
        if mask is None:
            seen = F.scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=True)
        else:
            seen = flex_attention(query.to(value.dtype), key.to(value.dtype), value, block_mask=mask, enable_gqa=True)
        return self.output(seen.transpose(1, 2).reshape(rows, length, -1))


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

    def forward(self, x: Tensor, cosine: Tensor, sine: Tensor, mask: BlockMask | None) -> Tensor:
        x = x + self.attention(self.attention_norm(x), cosine, sine, mask)
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
        """Normal weights; what writes into the residual stream starts smaller, by the depth."""
        nn.init.normal_(self.embedding.weight, std=0.02)
        for name, module in self.named_modules():
            if isinstance(module, nn.Linear):
                writes = name.endswith(("output", "down"))
                scale = (2 * self.config.layers) ** -0.5 if writes else 1.0
                nn.init.normal_(module.weight, std=scale * module.in_features**-0.5)

    def hidden(self, ids: Tensor, mask: BlockMask | None = None) -> Tensor:
        """``[rows, length]`` ids to ``[rows, length, width]``."""
        x = self.embedding(ids)
        cosine, sine = self.cosine[: ids.shape[1]], self.sine[: ids.shape[1]]
        for layer in self.layers:
            x = layer(x, cosine, sine, mask)
        return self.norm(x)

    def logits(self, hidden: Tensor) -> Tensor:
        return F.linear(hidden, self.embedding.weight)

    def loss(self, ids: Tensor, documents: Tensor, learned: Tensor) -> Tensor:
        """Mean cross-entropy of the learned tokens, each predicted from those before it in its document."""
        hidden = self.hidden(ids, document_mask(documents))[:, :-1]
        targets = torch.where(learned[:, 1:], ids[:, 1:], -100)
        return F.cross_entropy(self.logits(hidden).flatten(0, 1).float(), targets.flatten(), ignore_index=-100)
