"""Greedy text and perplexity of llama.cpp's CPU build for a real model, as JSON: what `tests/real_model.rs` expects.

    pip install llama-cpp-python==0.3.36 numpy
    python llama_reference.py gemma-3-270m-q4_k_m.gguf > gemma3_270m.json
"""

from __future__ import annotations

import ctypes
import hashlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path

import llama_cpp as llama
import numpy as np

PROMPTS = (
    "The capital of France is",
    "Once upon a time, a small robot lived in a lighthouse.",
    "To sharpen a knife, you need",
)
TOKENS = 64
WINDOW = 512
TEXT = Path(__file__).with_name("text.txt")
"""Text for the perplexity: prose written for this test, then paragraphs of this project's documentation."""


class Model:
    def __init__(self, path: Path) -> None:
        llama.llama_backend_init()
        parameters = llama.llama_model_default_params()
        parameters.n_gpu_layers = 0
        self.model = llama.llama_model_load_from_file(str(path).encode(), parameters)
        self.vocabulary = llama.llama_model_get_vocab(self.model)
        self.size = llama.llama_vocab_n_tokens(self.vocabulary)

    def encode(self, text: str) -> list[int]:
        raw = text.encode()
        ids = (llama.llama_token * (len(raw) + 8))()
        count = llama.llama_tokenize(self.vocabulary, raw, len(raw), ids, len(ids), True, False)
        return list(ids[:count])

    def decode(self, ids: list[int]) -> str:
        pieces = b""
        for token in ids:
            buffer = ctypes.create_string_buffer(256)
            length = llama.llama_token_to_piece(self.vocabulary, token, buffer, 256, 0, True)
            pieces += buffer.raw[:length]
        return pieces.decode()

    def context(self) -> "Context":
        return Context(self)


class Context:
    """A sequence of its own."""

    def __init__(self, model: Model) -> None:
        self.model, self.position = model, 0
        parameters = llama.llama_context_default_params()
        parameters.n_ctx, parameters.n_batch, parameters.n_ubatch = 1024, 1024, 256
        self.context = llama.llama_init_from_model(model.model, parameters)

    def __del__(self) -> None:
        llama.llama_free(self.context)

    def rows(self, ids: list[int]) -> Iterator[np.ndarray]:
        """Evaluates the tokens behind the earlier ones; the logits of each."""
        batch = llama.llama_batch_init(len(ids), 0, 1)
        batch.n_tokens = len(ids)
        for i, token in enumerate(ids):
            batch.token[i], batch.pos[i] = token, self.position + i
            batch.n_seq_id[i], batch.seq_id[i][0], batch.logits[i] = 1, 0, 1
        if llama.llama_decode(self.context, batch) != 0:
            raise RuntimeError("llama_decode failed")
        llama.llama_batch_free(batch)
        self.position += len(ids)
        for i in range(len(ids)):
            yield np.ctypeslib.as_array(llama.llama_get_logits_ith(self.context, i), shape=(self.model.size,))


def last(rows: Iterator[np.ndarray]) -> np.ndarray:
    *_, row = rows
    return row


def greedy(model: Model, prompt: str) -> dict[str, object]:
    context, ids = model.context(), model.encode(prompt)
    row = last(context.rows(ids))
    out: list[int] = []
    gaps: list[float] = []
    for _ in range(TOKENS):
        first, second = np.sort(row)[::-1][:2]
        out.append(int(row.argmax()))
        gaps.append(round(float(first - second), 4))
        row = last(context.rows(out[-1:]))
    return {"prompt": prompt, "ids": ids, "continuation": out, "gaps": gaps, "text": model.decode(out)}


def perplexity(model: Model, text: str) -> dict[str, object]:
    """Of all tokens but BOS. Each window of the text is a sequence of its own behind BOS."""
    bos, *ids = model.encode(text)
    loss = 0.0
    for start in range(0, len(ids), WINDOW):
        window = [bos, *ids[start : start + WINDOW]]
        for row, following in zip(model.context().rows(window), window[1:]):
            largest = row.max()
            loss += float(np.log(np.exp(row - largest).sum(dtype=np.float64)) + largest - row[following])
    return {"tokens": len(ids), "window": WINDOW, "perplexity": float(np.exp(loss / len(ids)))}


def main() -> None:
    path = Path(sys.argv[1])
    model = Model(path)
    text = TEXT.read_text(encoding="utf-8")
    result = {
        "file": path.name,
        "sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
        "by": f"llama-cpp-python {llama.__version__}, CPU, cache in F16",
        "greedy": [greedy(model, prompt) for prompt in PROMPTS],
        "text": perplexity(model, text),
    }
    print(json.dumps(result, ensure_ascii=False))


main()
