"""Writes the small models of walla_embed's tests, with ids and vectors of some texts.

    environment/bin/pip install gguf numpy tokenizers
    environment/bin/python oracle.py ../../crates/walla_embed/tests/data

The weights are random numbers from a fixed seed, so the files are reproducible and free of other
rights. BERT's vectors are computed from the weights before the conversion (reference.py), those of
Qwen 3 below from the numbers of the file, in f64.
"""

from __future__ import annotations

import argparse
import json
import struct
import tempfile
from pathlib import Path

import gguf
import numpy as np
import tokenizers
from convert import convert
from reference import Bert, described

WORDS = """the a of and to in is you it for on are with as at smith sell horse shoe iron night rain
door key where can find buy who when ##s ##ing ##ed ##er ##shoe ##ly un ##able ##ness play king cafe
naive uber""".split()
# The words of Qwen 2's tokenizer.json.
QWEN2_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
TEXTS = [
    "Where can I buy iron?",
    "The smith sells horseshoes.",
    "",
    "   \t\n ",
    "a",
    "Café NAÏVE Über resumé",
    "e\u0301te\u0301 \u212bngstrom \u1e9b\u0323",
    "中文 and 日本語 in the night",
    "한국어 rain",
    "emoji 😀 and zwj 👩\u200d🚀 text",
    "a.b,c!d?e;f:g-h_i(j)[k]{l}<m>'n'\"o\"",
    "[CLS] [SEP] [MASK] [UNK] ##ing",
    "under­stand\u00ad soft hyphen \ufeff bom \u0000 nul \ufffd replacement",
    "unplayable " * 3 + "kingly kingness",
    "x" * 100 + " " + "y" * 101 + " z",
    "tab\tnew\nline\rreturn\u00a0nbsp\u3000wide\u2028line\u0085next",
    "¿Qué? «oui» „nein“ 5€ 3×4 50% #1 @you a+b=c ~ ^ ` |",
    "the night " * 60,
    "İstanbul ẞ ǅ ſ K",
    "ﬁne ½ ² ③ Ⅷ",
]


def save_safetensors(path: Path, tensors: dict[str, np.ndarray]) -> None:
    header, offset = {}, 0
    for name, tensor in tensors.items():
        end = offset + tensor.nbytes
        header[name] = {"dtype": "F32", "shape": tensor.shape, "data_offsets": [offset, end]}
        offset = end
    encoded = json.dumps(header).encode()
    numbers = b"".join(tensor.tobytes() for tensor in tensors.values())
    path.write_bytes(struct.pack("<Q", len(encoded)) + encoded + numbers)


def vocabulary() -> dict[str, int]:
    letters = [chr(c) for c in range(ord("a"), ord("z") + 1)] + list("0123456789")
    signs = list("!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~¿«»„“”…×€")
    other = list("中日本語ㅎ") + ["\u1112", "##\u1161", "##\u11ab", "\u110b", "ı", "²"]
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "[unused0]"]
    tokens = special + signs + letters + ["##" + letter for letter in letters] + other + WORDS
    return {token: index for index, token in enumerate(dict.fromkeys(tokens))}


def make_bert(directory: Path, heads: int, cls: bool, seed: int) -> None:
    """A sentence-transformers directory of a small model."""
    random = np.random.default_rng(seed)
    vocab = vocabulary()
    width, hidden, context = 32, 64, 48
    config = {
        "architectures": ["BertModel"],
        "hidden_act": "gelu",
        "hidden_size": width,
        "intermediate_size": hidden,
        "layer_norm_eps": 1e-12,
        "max_position_embeddings": context,
        "num_attention_heads": heads,
        "num_hidden_layers": 2,
        "type_vocab_size": 2,
        "vocab_size": len(vocab),
    }
    shapes = {
        "embeddings.word_embeddings.weight": (len(vocab), width),
        "embeddings.position_embeddings.weight": (context, width),
        "embeddings.token_type_embeddings.weight": (2, width),
        "embeddings.LayerNorm.weight": (width,),
        "embeddings.LayerNorm.bias": (width,),
    }
    for index in range(2):
        layer = f"encoder.layer.{index}"
        sizes = {
            "attention.self.query": (width, width),
            "attention.self.key": (width, width),
            "attention.self.value": (width, width),
            "attention.output.dense": (width, width),
            "attention.output.LayerNorm": (width,),
            "intermediate.dense": (hidden, width),
            "output.dense": (width, hidden),
            "output.LayerNorm": (width,),
        }
        for name, shape in sizes.items():
            shapes[f"{layer}.{name}.weight"] = shape
            shapes[f"{layer}.{name}.bias"] = shape[:1]
    tensors = {}
    for name, shape in shapes.items():
        scale = 1.0 if "embeddings" in name else 0.3
        tensor = random.normal(0, scale, shape)
        if "LayerNorm.weight" in name:
            tensor = 1 + 0.3 * tensor
        tensors[name] = tensor.astype(np.float32)
    directory.mkdir(parents=True)
    save_safetensors(directory / "model.safetensors", tensors)
    model = tokenizers.models.WordPiece(vocab, unk_token="[UNK]", max_input_chars_per_word=100)
    tokenizer = tokenizers.Tokenizer(model)
    tokenizer.normalizer = tokenizers.normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.BertPreTokenizer()
    ends = [("[SEP]", vocab["[SEP]"]), ("[CLS]", vocab["[CLS]"])]
    tokenizer.post_processor = tokenizers.processors.BertProcessing(*ends)
    tokenizer.save(str(directory / "tokenizer.json"))
    (directory / "config.json").write_text(json.dumps(config))
    (directory / "1_Pooling").mkdir()
    pooling = {"pooling_mode_mean_tokens": not cls, "pooling_mode_cls_token": cls}
    (directory / "1_Pooling" / "config.json").write_text(json.dumps(pooling))
    modules = [{"type": "sentence_transformers.models.Pooling", "path": "1_Pooling"}]
    (directory / "modules.json").write_text(json.dumps(modules))


def bert(out: Path, name: str, kind: str, heads: int, cls: bool, seed: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        directory = Path(folder) / "model"
        make_bert(directory, heads, cls, seed)
        convert(directory, out / f"{name}.gguf", kind, f"random {name}")
        texts = described(Bert.load(directory), TEXTS)
        write(out, name, texts)


def write(out: Path, name: str, texts: list[dict]) -> None:
    data = json.dumps({"texts": texts}, ensure_ascii=False, indent=0)
    (out / f"{name}.json").write_text(data + "\n", encoding="utf-8")


class Qwen3:
    """A small Qwen 3 with byte tokens, and the numbers of its file in f64."""

    WIDTH, HIDDEN, LAYERS, HEADS, KV_HEADS, DIM, CONTEXT = 32, 64, 2, 4, 2, 16, 256
    BASE, EPS = 1e6, 1e-6

    def __init__(self, seed: int) -> None:
        random = np.random.default_rng(seed)
        self.tokens = [self.spelled(byte) for byte in range(256)] + ["Ġt", "he", "Ġthe"]
        self.merges = ["Ġ t", "h e", "Ġt he"]
        self.eos = len(self.tokens)
        self.tokens.append("<|endoftext|>")
        width, hidden = self.WIDTH, self.HIDDEN
        queries, keys = self.HEADS * self.DIM, self.KV_HEADS * self.DIM
        shapes = {"token_embd.weight": (len(self.tokens), width), "output_norm.weight": (width,)}
        for layer in range(self.LAYERS):
            for name, shape in {
                "attn_norm": (width,),
                "attn_q": (queries, width),
                "attn_k": (keys, width),
                "attn_v": (keys, width),
                "attn_q_norm": (self.DIM,),
                "attn_k_norm": (self.DIM,),
                "attn_output": (width, queries),
                "ffn_norm": (width,),
                "ffn_gate": (hidden, width),
                "ffn_up": (hidden, width),
                "ffn_down": (width, hidden),
            }.items():
                shapes[f"blk.{layer}.{name}.weight"] = shape
        self.weights = {}
        for name, shape in shapes.items():
            tensor = random.normal(0, 1 / np.sqrt(shape[-1]) if len(shape) > 1 else 0.2, shape)
            self.weights[name] = tensor.astype(np.float16) if len(shape) > 1 else (1 + tensor)

    @staticmethod
    def spelled(byte: int) -> str:
        """GPT-2's character for a byte."""
        plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
        others = [b for b in range(256) if b not in plain]
        return chr(byte) if byte in plain else chr(256 + others.index(byte))

    def save(self, path: Path) -> None:
        writer = gguf.GGUFWriter(str(path), "qwen3")
        writer.add_name("random qwen3-last")
        writer.add_file_type(gguf.LlamaFileType.MOSTLY_F16)
        writer.add_block_count(self.LAYERS)
        writer.add_context_length(self.CONTEXT)
        writer.add_embedding_length(self.WIDTH)
        writer.add_feed_forward_length(self.HIDDEN)
        writer.add_head_count(self.HEADS)
        writer.add_head_count_kv(self.KV_HEADS)
        writer.add_key_length(self.DIM)
        writer.add_value_length(self.DIM)
        writer.add_rope_freq_base(self.BASE)
        writer.add_layer_norm_rms_eps(self.EPS)
        writer.add_pooling_type(gguf.PoolingType.LAST)
        writer.add_tokenizer_model("gpt2")
        writer.add_tokenizer_pre("qwen2")
        writer.add_token_list(self.tokens)
        kinds = [gguf.TokenType.NORMAL] * self.eos + [gguf.TokenType.CONTROL]
        writer.add_token_types(kinds)
        writer.add_token_merges(self.merges)
        writer.add_eos_token_id(self.eos)
        writer.add_add_eos_token(True)
        writer.add_add_bos_token(False)
        for name, tensor in self.weights.items():
            writer.add_tensor(name, tensor if tensor.ndim > 1 else tensor.astype(np.float32))
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()

    def ids(self, text: str) -> list[int]:
        """Byte-level BPE of the tokenizers library, cut, and the token of the end."""
        vocab = {token: index for index, token in enumerate(self.tokens)}
        merges = [tuple(merge.split(" ")) for merge in self.merges]
        tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE(vocab, merges))
        split = tokenizers.pre_tokenizers.Split(tokenizers.Regex(QWEN2_WORDS), "isolated")
        letters = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Sequence([split, letters])
        return [*tokenizer.encode(text).ids[: self.CONTEXT - 1], self.eos]

    def weight(self, name: str) -> np.ndarray:
        tensor = self.weights[f"{name}.weight"]
        # Vectors are stored in f32.
        return (tensor if tensor.ndim > 1 else tensor.astype(np.float32)).astype(np.float64)

    def norm(self, x: np.ndarray, name: str) -> np.ndarray:
        return x / np.sqrt((x**2).mean(-1, keepdims=True) + self.EPS) * self.weight(name)

    def rotated(self, x: np.ndarray) -> np.ndarray:
        """[heads, rows, dim]: pairs of halves turn with the position."""
        half = self.DIM // 2
        frequencies = self.BASE ** (-np.arange(half) / half)
        angles = np.arange(x.shape[1])[:, None] * frequencies
        low, high = x[..., :half], x[..., half:]
        cos, sin = np.cos(angles), np.sin(angles)
        return np.concatenate([low * cos - high * sin, low * sin + high * cos], -1)

    def vector(self, ids: list[int]) -> np.ndarray:
        x = self.weight("token_embd")[ids]
        rows = len(ids)
        mask = np.triu(np.full((rows, rows), -np.inf), 1)
        for layer in range(self.LAYERS):
            name = f"blk.{layer}"
            n = self.norm(x, f"{name}.attn_norm")

            def heads(part: str, count: int, n: np.ndarray = n, name: str = name) -> np.ndarray:
                y = n @ self.weight(f"{name}.{part}").T
                return y.reshape(rows, count, self.DIM).transpose(1, 0, 2)

            q = self.rotated(self.norm(heads("attn_q", self.HEADS), f"{name}.attn_q_norm"))
            k = self.rotated(self.norm(heads("attn_k", self.KV_HEADS), f"{name}.attn_k_norm"))
            v = heads("attn_v", self.KV_HEADS)
            group = self.HEADS // self.KV_HEADS
            k, v = k.repeat(group, 0), v.repeat(group, 0)
            scores = q @ k.transpose(0, 2, 1) / np.sqrt(self.DIM) + mask
            weights = np.exp(scores - scores.max(-1, keepdims=True))
            weights /= weights.sum(-1, keepdims=True)
            attended = (weights @ v).transpose(1, 0, 2).reshape(rows, -1)
            x = x + attended @ self.weight(f"{name}.attn_output").T
            n = self.norm(x, f"{name}.ffn_norm")
            gate = n @ self.weight(f"{name}.ffn_gate").T
            h = gate / (1 + np.exp(-gate)) * (n @ self.weight(f"{name}.ffn_up").T)
            x = x + h @ self.weight(f"{name}.ffn_down").T
        last = self.norm(x[-1], "output_norm")
        return last / np.linalg.norm(last)


def qwen3(out: Path) -> None:
    model = Qwen3(3)
    model.save(out / "qwen3-last.gguf")
    texts = ["", "a", "Find the key", "in the night the king", "Café", "the night " * 60]
    described_texts = []
    for text in texts:
        ids = model.ids(text)
        vector = [round(float(x), 7) for x in model.vector(ids)]
        described_texts.append({"text": text, "ids": ids, "vector": vector})
    write(out, "qwen3-last", described_texts)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("out", type=Path)
    out = parser.parse_args().out
    out.mkdir(parents=True, exist_ok=True)
    bert(out, "bert-mean-f32", "f32", heads=2, cls=False, seed=1)
    bert(out, "bert-cls-q8_0", "q8_0", heads=4, cls=True, seed=2)
    qwen3(out)


if __name__ == "__main__":
    main()
