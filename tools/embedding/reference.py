"""Vectors of BERT models by numpy in f64, from a sentence-transformers directory.

    environment/bin/pip install numpy tokenizers
    environment/bin/python reference.py DIRECTORY OUT.json < TEXTS

TEXTS is a JSON list of strings. OUT.json receives token ids and vectors of each. It shares no code
with walla and reads the original weights; formulas: Devlin et al. 2018, Reimers and Gurevych 2019.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import dataclass
from math import erf
from pathlib import Path

import numpy as np
import tokenizers

from convert import read_json, safetensors

ERF = np.frompyfunc(erf, 1, 1)


@dataclass
class Bert:
    """Weights of a model in f64, and its tokenizer."""

    config: dict
    weights: dict[str, np.ndarray]
    tokenizer: tokenizers.Tokenizer
    pooling: str

    @classmethod
    def load(cls, directory: Path) -> Bert:
        tensors = safetensors(directory / "model.safetensors")
        weights = {k.removeprefix("bert."): v.astype(np.float64) for k, v in tensors.items()}
        tokenizer = tokenizers.Tokenizer.from_file(str(directory / "tokenizer.json"))
        tokenizer.no_padding()
        config = read_json(directory / "config.json")
        tokenizer.enable_truncation(config["max_position_embeddings"])
        pooling = read_json(directory / "1_Pooling" / "config.json")
        is_cls = pooling.get("pooling_mode_cls_token")
        return cls(config, weights, tokenizer, "cls" if is_cls else "mean")

    def norm(self, x: np.ndarray, name: str) -> np.ndarray:
        mean = x.mean(-1, keepdims=True)
        variance = ((x - mean) ** 2).mean(-1, keepdims=True)
        y = (x - mean) / np.sqrt(variance + self.config["layer_norm_eps"])
        return y * self.weights[f"{name}.weight"] + self.weights[f"{name}.bias"]

    def linear(self, x: np.ndarray, name: str) -> np.ndarray:
        return x @ self.weights[f"{name}.weight"].T + self.weights[f"{name}.bias"]

    def attention(self, x: np.ndarray, layer: str) -> np.ndarray:
        heads = self.config["num_attention_heads"]
        parts = [self.linear(x, f"{layer}.attention.self.{p}") for p in ("query", "key", "value")]
        q, k, v = (p.reshape(len(x), heads, -1).transpose(1, 0, 2) for p in parts)
        scores = q @ k.transpose(0, 2, 1) / np.sqrt(q.shape[-1])
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        weights /= weights.sum(-1, keepdims=True)
        return (weights @ v).transpose(1, 0, 2).reshape(len(x), -1)

    def states(self, ids: list[int]) -> np.ndarray:
        w = self.weights
        x = w["embeddings.word_embeddings.weight"][ids]
        x = x + w["embeddings.token_type_embeddings.weight"][0]
        x = x + w["embeddings.position_embeddings.weight"][: len(ids)]
        x = self.norm(x, "embeddings.LayerNorm")
        for index in range(self.config["num_hidden_layers"]):
            layer = f"encoder.layer.{index}"
            attended = self.linear(self.attention(x, layer), f"{layer}.attention.output.dense")
            x = self.norm(x + attended, f"{layer}.attention.output.LayerNorm")
            h = self.linear(x, f"{layer}.intermediate.dense")
            h = h / 2 * (1 + ERF(h / np.sqrt(2)).astype(np.float64))
            x = self.norm(x + self.linear(h, f"{layer}.output.dense"), f"{layer}.output.LayerNorm")
        return x

    def vector(self, ids: list[int]) -> np.ndarray:
        states = self.states(ids)
        pooled = states[0] if self.pooling == "cls" else states.mean(0)
        return pooled / np.linalg.norm(pooled)


def described(model: Bert, texts: list[str]) -> list[dict]:
    """Ids and vector of each text."""
    out = []
    for text in texts:
        ids = model.tokenizer.encode(text).ids
        vector = [round(float(x), 7) for x in model.vector(ids)]
        out.append({"text": text, "ids": ids, "vector": vector})
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("directory", type=Path)
    parser.add_argument("out", type=Path)
    arguments = parser.parse_args()
    texts = described(Bert.load(arguments.directory), json.load(sys.stdin))
    arguments.out.write_text(json.dumps({"texts": texts}, ensure_ascii=False), encoding="utf-8")


if __name__ == "__main__":
    main()
