"""Converts a sentence-transformers directory of a BERT model to a GGUF file.

    python3 -m venv environment && environment/bin/pip install gguf numpy
    environment/bin/python convert.py DIRECTORY OUT.gguf [--type f32|f16|q8_0]

The directory has config.json, model.safetensors, tokenizer.json (or vocab.txt) and, for the
pooling, modules.json with the Pooling module's config.json. Names of keys and tensors, the text of
tokens and the types of tensors are those of llama.cpp's converter, so llama.cpp reads the file as
well. Norms, biases and the embeddings of positions and types are F32 in every file.
"""

from __future__ import annotations

import argparse
import json
import struct
from dataclasses import dataclass
from pathlib import Path

import gguf
import numpy as np

# Names of tensors in model.safetensors, without the prefix "bert.", and in the file.
WHOLE = {
    "embeddings.word_embeddings.weight": "token_embd.weight",
    "embeddings.position_embeddings.weight": "position_embd.weight",
    "embeddings.token_type_embeddings.weight": "token_types.weight",
    "embeddings.LayerNorm": "token_embd_norm",
}
LAYER = {
    "attention.self.query": "attn_q",
    "attention.self.key": "attn_k",
    "attention.self.value": "attn_v",
    "attention.output.dense": "attn_output",
    "attention.output.LayerNorm": "attn_output_norm",
    "intermediate.dense": "ffn_up",
    "output.dense": "ffn_down",
    "output.LayerNorm": "layer_output_norm",
}
# Heads for the pre-training, which no embedding uses.
UNUSED = ("pooler.", "cls.", "embeddings.position_ids")
TYPES = {
    "f32": (gguf.LlamaFileType.ALL_F32, gguf.GGMLQuantizationType.F32),
    "f16": (gguf.LlamaFileType.MOSTLY_F16, gguf.GGMLQuantizationType.F16),
    "q8_0": (gguf.LlamaFileType.MOSTLY_Q8_0, gguf.GGMLQuantizationType.Q8_0),
}


@dataclass
class Vocabulary:
    """Tokens in the file's form, and how text is normalised."""

    texts: list[str]
    types: list[gguf.TokenType]
    lowercase: bool
    strip_accents: bool


def read_json(path: Path) -> dict:
    return json.loads(path.read_text(encoding="utf-8"))


def safetensors(path: Path) -> dict[str, np.ndarray]:
    """The tensors of a file: a length, a header in JSON, and the numbers."""
    data = path.read_bytes()
    (length,) = struct.unpack_from("<Q", data)
    header = json.loads(data[8 : 8 + length])
    header.pop("__metadata__", None)
    tensors = {}
    for name, entry in header.items():
        first, end = (8 + length + offset for offset in entry["data_offsets"])
        raw = data[first:end]
        if entry["dtype"] == "F32":
            numbers = np.frombuffer(raw, "<f4")
        elif entry["dtype"] == "F16":
            numbers = np.frombuffer(raw, "<f2").astype(np.float32)
        elif entry["dtype"] == "BF16":
            numbers = (np.frombuffer(raw, "<u2").astype(np.uint32) << 16).view(np.float32)
        elif name.endswith("position_ids"):
            continue
        else:
            raise SystemExit(f"{path}: tensor {name} has the type {entry['dtype']}")
        tensors[name] = numbers.reshape(entry["shape"])
    return tensors


def renamed(name: str) -> str | None:
    """The name of a tensor in the file; None if it is not used."""
    name = name.removeprefix("bert.").replace(".gamma", ".weight").replace(".beta", ".bias")
    if name.startswith(UNUSED):
        return None
    if name in WHOLE:
        return WHOLE[name]
    stem, part = name.rsplit(".", 1)
    if stem in WHOLE:
        return f"{WHOLE[stem]}.{part}"
    if stem.startswith("encoder.layer."):
        index, inner = stem.removeprefix("encoder.layer.").split(".", 1)
        if inner in LAYER:
            return f"blk.{int(index)}.{LAYER[inner]}.{part}"
    raise SystemExit(f"tensor {name} is no part of a BERT model")


def phantom(text: str) -> str:
    """A token's text in the file: word starts have a space, continuations no mark."""
    return text[2:] if text.startswith("##") else "\u2581" + text


def vocabulary(directory: Path, size: int) -> Vocabulary:
    """Reads tokenizer.json, or vocab.txt and tokenizer_config.json."""
    lowercase, strip_accents = True, None
    special = {"[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"}
    if (directory / "tokenizer.json").is_file():
        tokenizer = read_json(directory / "tokenizer.json")
        if tokenizer["model"]["type"] != "WordPiece":
            raise SystemExit(f"the tokenizer is {tokenizer['model']['type']}, expected WordPiece")
        by_id = {index: text for text, index in tokenizer["model"]["vocab"].items()}
        special |= {token["content"] for token in tokenizer["added_tokens"] if token["special"]}
        normalizer = tokenizer.get("normalizer") or {}
        lowercase = normalizer.get("lowercase", True)
        strip_accents = normalizer.get("strip_accents")
    else:
        lines = (directory / "vocab.txt").read_text(encoding="utf-8").split("\n")
        by_id = dict(enumerate(line for line in lines if line))
        config = directory / "tokenizer_config.json"
        if config.is_file():
            lowercase = read_json(config).get("do_lower_case", True)
            strip_accents = read_json(config).get("strip_accents")
    texts, types = [], []
    for index in range(size):
        text = by_id.get(index)
        if text is None:
            texts.append(f"[PAD{index}]")
            types.append(gguf.TokenType.UNUSED)
        elif text in special:
            texts.append(text)
            types.append(gguf.TokenType.CONTROL)
        else:
            texts.append(phantom(text))
            types.append(gguf.TokenType.NORMAL)
    return Vocabulary(texts, types, lowercase, lowercase if strip_accents is None else strip_accents)


def pooling(directory: Path) -> gguf.PoolingType:
    """The pooling that the model was trained with."""
    path = next(
        (
            directory / module["path"] / "config.json"
            for module in read_json(directory / "modules.json")
            if module["type"].endswith("Pooling")
        ),
        None,
    )
    if path is None:
        raise SystemExit("modules.json names no Pooling module")
    config = read_json(path)
    if config.get("pooling_mode_mean_tokens") or config.get("pooling_mode") == "mean":
        return gguf.PoolingType.MEAN
    if config.get("pooling_mode_cls_token") or config.get("pooling_mode") == "cls":
        return gguf.PoolingType.CLS
    if config.get("pooling_mode_lasttoken") or config.get("pooling_mode") == "lasttoken":
        return gguf.PoolingType.LAST
    raise SystemExit(f"{path}: the pooling is neither mean nor cls nor lasttoken")


def tensor_type(
    name: str, tensor: np.ndarray, wanted: gguf.GGMLQuantizationType
) -> gguf.GGMLQuantizationType:
    """The type that llama.cpp's converter gives a tensor."""
    types = gguf.GGMLQuantizationType
    if tensor.ndim == 1 or name in ("position_embd.weight", "token_types.weight"):
        return types.F32
    if wanted == types.Q8_0 and tensor.shape[-1] % 32 != 0:
        return types.F16
    return wanted


def file_head(
    directory: Path,
    out: Path,
    config: dict,
    tokens: Vocabulary,
    name: str,
    file_type: gguf.LlamaFileType,
) -> gguf.GGUFWriter:
    """The keys of a file."""
    if config.get("hidden_act", "gelu") != "gelu":
        raise SystemExit(f"hidden_act is {config['hidden_act']}, expected gelu")
    if config.get("position_embedding_type", "absolute") != "absolute":
        raise SystemExit("the positions are not absolute")
    writer = gguf.GGUFWriter(str(out), "bert")
    writer.add_name(name)
    writer.add_file_type(file_type)
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_layer_norm_eps(config["layer_norm_eps"])
    writer.add_causal_attention(False)
    writer.add_pooling_type(pooling(directory))
    writer.add_token_type_count(config.get("type_vocab_size", 1))
    writer.add_tokenizer_model("bert")
    writer.add_tokenizer_pre("default")
    writer.add_token_list(tokens.texts)
    writer.add_token_types(tokens.types)
    writer.add_bool("tokenizer.ggml.normalizer.lowercase", tokens.lowercase)
    writer.add_bool("tokenizer.ggml.normalizer.strip_accents", tokens.strip_accents)
    roles = {
        "[UNK]": writer.add_unk_token_id,
        "[SEP]": writer.add_sep_token_id,
        "[PAD]": writer.add_pad_token_id,
        "[CLS]": writer.add_bos_token_id,
        "[MASK]": writer.add_mask_token_id,
    }
    for text, add in roles.items():
        if text in tokens.texts:
            add(tokens.texts.index(text))
    if "[CLS]" in tokens.texts:
        writer.add_uint32("tokenizer.ggml.cls_token_id", tokens.texts.index("[CLS]"))
    return writer


def convert(directory: Path, out: Path, kind: str, name: str | None) -> None:
    config = read_json(directory / "config.json")
    file_type, wanted = TYPES[kind]
    tokens = vocabulary(directory, config["vocab_size"])
    name = name or directory.resolve().name
    writer = file_head(directory, out, config, tokens, name, file_type)
    for source, tensor in safetensors(directory / "model.safetensors").items():
        target = renamed(source)
        if target is None:
            continue
        chosen = tensor_type(target, tensor, wanted)
        writer.add_tensor(target, gguf.quants.quantize(tensor, chosen), raw_dtype=chosen)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("directory", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--type", choices=TYPES, default="f16")
    parser.add_argument("--name", help="general.name; default: the directory's name")
    arguments = parser.parse_args()
    convert(arguments.directory, arguments.out, arguments.type, arguments.name)


if __name__ == "__main__":
    main()
