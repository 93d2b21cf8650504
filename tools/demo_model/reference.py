"""Runs an exported GGUF file in NumPy: checks the export against PyTorch's logits, and generates replies.

    python reference.py check --model walla-demo-f32.gguf --logits parity.json
    python reference.py chat --model walla-demo-q8_0.gguf --system "You are Greta, the smith of Emberfall."
    python reference.py serve --model walla-demo-q8_0.gguf      (JSON lines, for drivers.CommandDriver)
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from gguf import GGUFReader
from gguf.quants import dequantize
from numpy.typing import NDArray

from chatml import ChatEncoder
from corpus.dialogue import Message, Tool
from judging import split_calls

Floats = NDArray[np.float32]


class Reference:
    """The forward pass of one sequence, built from the file's metadata, with a KV cache."""

    def __init__(self, path: Path) -> None:
        reader = GGUFReader(path)
        self.encoder = ChatEncoder()

        def number(key: str) -> float:
            return float(reader.fields[f"qwen3.{key}"].contents())

        self.tensors: dict[str, Floats] = {}
        for tensor in reader.tensors:
            values = dequantize(tensor.data, tensor.tensor_type).astype(np.float32)
            self.tensors[tensor.name] = values.reshape(tuple(int(n) for n in reversed(tensor.shape)))
        self.layers = int(number("block_count"))
        self.heads, self.kv_heads = int(number("attention.head_count")), int(number("attention.head_count_kv"))
        self.head_dim = int(number("attention.key_length"))
        self.epsilon = np.float32(number("attention.layer_norm_rms_epsilon"))
        half = np.arange(self.head_dim // 2)
        self.frequencies = number("rope.freq_base") ** (-half / len(half))
        self.clear()

    def clear(self) -> None:
        """Resets the sequence."""
        empty = np.zeros((0, self.kv_heads, self.head_dim), np.float32)
        self.keys, self.values = [empty] * self.layers, [empty] * self.layers

    def _norm(self, x: Floats, name: str) -> Floats:
        return x / np.sqrt((x * x).mean(-1, keepdims=True) + self.epsilon) * self.tensors[name]

    def _rotate(self, x: Floats, first: int) -> Floats:
        angles = np.outer(np.arange(first, first + len(x)), self.frequencies)[:, None]
        cosine, sine = np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)
        low, high = np.split(x, 2, axis=-1)
        return np.concatenate((low * cosine - high * sine, high * cosine + low * sine), axis=-1)

    def _attend(self, x: Floats, layer: int) -> Floats:
        w, name = self.tensors, f"blk.{layer}."
        first = len(self.keys[layer])
        query = (x @ w[f"{name}attn_q.weight"].T).reshape(len(x), self.heads, self.head_dim)
        key = (x @ w[f"{name}attn_k.weight"].T).reshape(len(x), self.kv_heads, self.head_dim)
        value = (x @ w[f"{name}attn_v.weight"].T).reshape(len(x), self.kv_heads, self.head_dim)
        query = self._rotate(self._norm(query, f"{name}attn_q_norm.weight"), first)
        key = self._rotate(self._norm(key, f"{name}attn_k_norm.weight"), first)
        self.keys[layer] = keys = np.concatenate((self.keys[layer], key))
        self.values[layer] = values = np.concatenate((self.values[layer], value))
        keys, values = (np.repeat(y, self.heads // self.kv_heads, axis=1) for y in (keys, values))
        scores = np.einsum("qhd,khd->hqk", query, keys) / np.float32(self.head_dim**0.5)
        later = np.arange(len(keys))[None, :] > np.arange(first, first + len(x))[:, None]
        scores = np.where(later[None], np.float32(-np.inf), scores)
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        weights /= weights.sum(-1, keepdims=True)
        seen = np.einsum("hqk,khd->qhd", weights, values).reshape(len(x), -1)
        return seen @ w[f"{name}attn_output.weight"].T

    def _feed(self, x: Floats, layer: int) -> Floats:
        w, name = self.tensors, f"blk.{layer}."
        gate = x @ w[f"{name}ffn_gate.weight"].T
        return (gate / (1 + np.exp(-gate)) * (x @ w[f"{name}ffn_up.weight"].T)) @ w[f"{name}ffn_down.weight"].T

    def logits(self, ids: Sequence[int]) -> Floats:
        """Appends ``ids`` to the sequence; returns the logits after the last one."""
        x = self.tensors["token_embd.weight"][list(ids)]
        for layer in range(self.layers):
            x = x + self._attend(self._norm(x, f"blk.{layer}.attn_norm.weight"), layer)
            x = x + self._feed(self._norm(x, f"blk.{layer}.ffn_norm.weight"), layer)
        return self._norm(x[-1], "output_norm.weight") @ self.tensors["token_embd.weight"].T

    def reply(self, messages: list[Message], temperature: float, seed: int, tokens_max: int = 96, tools: Sequence[Tool] = ()) -> tuple[str, bool]:
        """Samples the assistant's next turn, with the text of its calls; false if it reached ``tokens_max``."""
        rng, ids = np.random.default_rng(seed), list[int]()
        self.clear()
        logits = self.logits(self.encoder.prompt(messages, tools))
        while len(ids) < tokens_max:
            noise = rng.gumbel(size=len(logits)) if temperature > 0 else 0.0
            token = int((logits / (temperature or 1.0) + noise).argmax())
            if token == self.encoder.end:
                return self.encoder.decode(ids), True
            ids.append(token)
            logits = self.logits([token])
        return self.encoder.decode(ids), False


def check(model: Path, logits: Path) -> None:
    """Prints the largest difference between the file's logits and PyTorch's."""
    reference, rows = Reference(model), json.loads(logits.read_text())["prompts"]
    worst, same = 0.0, 0
    for row in rows:
        reference.clear()
        found = reference.logits(row["ids"])
        worst = max(worst, float(np.abs(found[row["top_ids"]] - np.array(row["top_logits"])).max()))
        same += int(found.argmax() == row["top_ids"][0])
    print(f"{len(rows)} prompts: largest difference {worst:.2e}, same best token {same}")


def chat(model: Path, system: str, temperature: float) -> None:
    """Chats on the terminal; an empty line ends it."""
    reference = Reference(model)
    messages: list[Message] = [{"role": "system", "content": system}] if system else []
    while text := input("> ").strip():
        messages.append({"role": "user", "content": text})
        reply, _ = reference.reply(messages, temperature, seed=len(messages))
        messages.append({"role": "assistant", "content": reply})
        print(reply)


def serve(model: Path) -> None:
    """Answers JSON lines until the input ends."""
    reference = Reference(model)
    for line in sys.stdin:
        asked = json.loads(line)
        tools = asked.get("tools", [])
        text, finished = reference.reply(asked["messages"], asked["temperature"], asked["seed"], asked["max_tokens"], tools)
        answer: dict[str, object] = {"text": text, "finish": "stop" if finished else "length"}
        if tools:
            text, calls = split_calls(text)
            answer |= {"text": text, "calls": [{"name": name, "arguments": arguments} for name, arguments in calls]}
        print(json.dumps(answer), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description="Runs an exported GGUF file in NumPy.")
    parser.add_argument("task", choices=["check", "chat", "serve"])
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--logits", type=Path, help="what parity.py wrote")
    parser.add_argument("--system", default="")
    parser.add_argument("--temperature", type=float, default=0.7)
    arguments = parser.parse_args()
    if arguments.task == "check":
        check(arguments.model, arguments.logits)
    elif arguments.task == "serve":
        serve(arguments.model)
    else:
        chat(arguments.model, arguments.system, arguments.temperature)


if __name__ == "__main__":
    main()
