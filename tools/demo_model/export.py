"""Writes GGUF files from ``weights.npz``: Q8_0 (shipped) or F32 (for comparing logits).

    python export.py --weights build/weights.npz --type q8_0 --out ../../crates/walla_demo_model/walla-demo-q8_0.gguf
"""

from __future__ import annotations

import argparse
import hashlib
import json
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from gguf import GGMLQuantizationType, GGUFWriter, LlamaFileType, TokenType

from chatml import CALL_TOKENS, CONTROL_TOKENS, TEMPLATE, TOKENIZER_FILE
from corpus.mix import CORPUS_VERSION

FILE_TYPES = {
    "q8_0": (LlamaFileType.MOSTLY_Q8_0, GGMLQuantizationType.Q8_0),
    "f32": (LlamaFileType.ALL_F32, GGMLQuantizationType.F32),
}
LAYER_NAMES = {
    "attention_norm": "attn_norm",
    "attention.query": "attn_q",
    "attention.key": "attn_k",
    "attention.value": "attn_v",
    "attention.output": "attn_output",
    "attention.query_norm": "attn_q_norm",
    "attention.key_norm": "attn_k_norm",
    "feed_forward_norm": "ffn_norm",
    "feed_forward.gate": "ffn_gate",
    "feed_forward.up": "ffn_up",
    "feed_forward.down": "ffn_down",
}
"""PyTorch's names inside a layer, and those that GGUF readers expect."""


def tensor_name(name: str) -> str:
    """``layers.3.attention.query.weight`` to ``blk.3.attn_q.weight``."""
    if name == "embedding.weight":
        return "token_embd.weight"
    if name == "norm.weight":
        return "output_norm.weight"
    _, index, rest = name.split(".", 2)
    return f"blk.{index}.{LAYER_NAMES[rest.removesuffix('.weight')]}.weight"


def add_architecture(writer: GGUFWriter, config: dict[str, Any]) -> None:
    writer.add_context_length(config["context"])
    writer.add_embedding_length(config["width"])
    writer.add_block_count(config["layers"])
    writer.add_feed_forward_length(config["hidden"])
    writer.add_head_count(config["heads"])
    writer.add_head_count_kv(config["kv_heads"])
    writer.add_key_length(config["head_dim"])
    writer.add_value_length(config["head_dim"])
    writer.add_rope_freq_base(config["rope_base"])
    writer.add_layer_norm_rms_eps(config["epsilon"])
    writer.add_vocab_size(config["vocabulary"])


def add_tokenizer(writer: GGUFWriter) -> None:
    file = json.loads(TOKENIZER_FILE.read_text())
    model = file["model"]
    ids = model["vocab"] | {token["content"]: token["id"] for token in file["added_tokens"]}
    tokens = sorted(ids, key=ids.__getitem__)
    control = (*CONTROL_TOKENS, *CALL_TOKENS)
    merges = [pair if isinstance(pair, str) else " ".join(pair) for pair in model["merges"]]
    end_of_text, _, end = (tokens.index(token) for token in CONTROL_TOKENS)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2")
    writer.add_token_list(tokens)
    writer.add_token_types([TokenType.CONTROL if token in control else TokenType.NORMAL for token in tokens])
    writer.add_token_merges(merges)
    writer.add_bos_token_id(end_of_text)
    writer.add_eos_token_id(end)
    writer.add_pad_token_id(end_of_text)
    writer.add_add_bos_token(False)
    writer.add_chat_template(TEMPLATE)


def export(weights: Path, out: Path, kind: str) -> None:
    file_type, matrix_type = FILE_TYPES[kind]
    out.parent.mkdir(parents=True, exist_ok=True)
    writer = GGUFWriter(out, "qwen3")
    writer.add_name("walla demo")
    writer.add_description(f"Small talk in a tavern, actions, and a robot; corpus {CORPUS_VERSION}")
    writer.add_license("cc0-1.0")
    writer.add_file_type(file_type)
    writer.add_quantization_version(gguf.GGML_QUANT_VERSION)
    with np.load(weights) as file:
        add_architecture(writer, json.loads(file["config"].tobytes()))
        add_tokenizer(writer)
        for name in file.files:
            if not name.endswith(".weight"):
                continue
            tensor = np.ascontiguousarray(file[name], np.float32)
            kept = matrix_type if tensor.ndim == 2 else GGMLQuantizationType.F32
            writer.add_tensor(tensor_name(name), gguf.quants.quantize(tensor, kept), raw_dtype=kept)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    data = out.read_bytes()
    print(f"{out}: {len(data):,} bytes, sha256 {hashlib.sha256(data).hexdigest()}")


def main() -> None:
    parser = argparse.ArgumentParser(description="Writes a GGUF file.")
    parser.add_argument("--weights", type=Path, required=True)
    parser.add_argument("--type", choices=sorted(FILE_TYPES), default="q8_0")
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    export(arguments.weights, arguments.out, arguments.type)


if __name__ == "__main__":
    main()
