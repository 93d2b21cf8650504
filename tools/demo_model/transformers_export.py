"""Writes the demo model as a directory for transformers, vLLM and SGLang, from its GGUF file.

    python transformers_export.py --model ../../crates/walla_demo_model/walla-demo-q8_0.gguf --out build/demo

The architecture is transformers' ``Qwen3ForCausalLM``; weights are the dequantised ones, in 16 bits.
"""

from __future__ import annotations

import argparse
import json
import shutil
import struct
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGUFReader, dequantize

from chatml import END, END_OF_TEXT, TEMPLATE, TOKENIZER_FILE

LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
"""GGUF's names inside a layer, and those of transformers."""


def tensor_name(name: str) -> str:
    """``blk.3.attn_q.weight`` to ``model.layers.3.self_attn.q_proj.weight``."""
    if name == "token_embd.weight":
        return "model.embed_tokens.weight"
    if name == "output_norm.weight":
        return "model.norm.weight"
    _, index, part, _ = name.split(".")
    return f"model.layers.{index}.{LAYER_NAMES[part]}.weight"


def write_tensors(path: Path, tensors: dict[str, np.ndarray]) -> None:
    """The safetensors format: length of the header, header as JSON, data."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, tensor in tensors.items():
        header[name] = {"dtype": "F16", "shape": tensor.shape, "data_offsets": [end, end + tensor.nbytes]}
        end += tensor.nbytes
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for tensor in tensors.values():
            file.write(tensor.tobytes())


def config(reader: GGUFReader) -> dict[str, Any]:
    def value(key: str) -> Any:
        return reader.fields[f"qwen3.{key}"].contents()

    return {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "hidden_size": value("embedding_length"),
        "num_hidden_layers": value("block_count"),
        "num_attention_heads": value("attention.head_count"),
        "num_key_value_heads": value("attention.head_count_kv"),
        "head_dim": value("attention.key_length"),
        "intermediate_size": value("feed_forward_length"),
        "vocab_size": value("vocab_size"),
        "max_position_embeddings": value("context_length"),
        "rope_theta": value("rope.freq_base"),
        "rms_norm_eps": value("attention.layer_norm_rms_epsilon"),
        "hidden_act": "silu",
        "tie_word_embeddings": True,
        "attention_bias": False,
        "use_sliding_window": False,
        "torch_dtype": "float16",
        "bos_token_id": 0,
        "eos_token_id": 2,
        "pad_token_id": 0,
    }


def export(model: Path, out: Path) -> None:
    out.mkdir(parents=True, exist_ok=True)
    reader = GGUFReader(model)
    tensors = {
        tensor_name(tensor.name): np.ascontiguousarray(dequantize(tensor.data, tensor.tensor_type), np.float16)
        for tensor in reader.tensors
    }
    write_tensors(out / "model.safetensors", tensors)
    tokenizer = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": END,
        "pad_token": END_OF_TEXT,
        "bos_token": None,
        "add_bos_token": False,
        "clean_up_tokenization_spaces": False,
        "model_max_length": reader.fields["qwen3.context_length"].contents(),
        "chat_template": TEMPLATE,
    }
    (out / "config.json").write_text(json.dumps(config(reader), indent=1))
    (out / "generation_config.json").write_text(json.dumps({"eos_token_id": [2, 0], "do_sample": True}))
    (out / "tokenizer_config.json").write_text(json.dumps(tokenizer, indent=1))
    shutil.copy(TOKENIZER_FILE, out / "tokenizer.json")


def main() -> None:
    parser = argparse.ArgumentParser(description="Writes a directory for transformers, vLLM and SGLang.")
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    export(arguments.model, arguments.out)


if __name__ == "__main__":
    main()
