"""Makes the embedding model of the crate `walla_minilm` from all-MiniLM-L6-v2.

    environment/bin/pip install gguf numpy tokenizers wordfreq
    environment/bin/python shrink.py DIRECTORY OUT.gguf

DIRECTORY is that of sentence-transformers. Two things make the model smaller:

- Tokens: the most frequent of English texts stay, by wordfreq's list of words. A word without its
  own token is divided into others, as unknown words are. Positions behind 255 are dropped: the
  model was trained with 256 at most.
- Matrices are IQ4_NL: 4.5 bits a weight. The scale of 32 weights minimises the squared error of
  products with typical inputs, which a corpus of dialogues shows.

The same packages give the same bytes (`cargo xtask minilm --shrink`).
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import gguf
import numpy as np
import wordfreq

from convert import Vocabulary, file_head, read_json, renamed, safetensors, vocabulary
from reference import Bert

sys.path.insert(0, str(Path(__file__).parent / "../demo_model"))
from corpus.mix import noted_talks, talks  # noqa: E402

TOKENS = 15_500
POSITIONS = 256
# Below 1, so that parts of many rare words count as well as one frequent word.
FREQUENCY_POWER = 0.75
# Words of digits and signs are many in the list.
OTHER_WORDS = 0.02
TALKS = 400
NOTED_TALKS = 300
CALIBRATION_TEXTS = 700

# ggml's table of IQ4_NL.
LEVELS = np.array([-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], np.float32)
BOUNDS = (LEVELS[1:] + LEVELS[:-1]) / 2
BLOCK = 32
SCALES = np.linspace(0.75, 1.3, 23, dtype=np.float32)


def kept_tokens(model: Bert) -> list[int]:
    """Ids of the tokens that stay, ascending."""
    vocab = model.tokenizer.get_vocab()

    def is_single(text: str) -> bool:
        return text.isascii() and len(text.removeprefix("##")) == 1

    always = {i for text, i in vocab.items() if text in SPECIAL or is_single(text)}
    words = [word for word in wordfreq.iter_wordlist("en") if word.isascii()]
    counts = np.zeros(len(vocab))
    for word, encoding in zip(words, model.tokenizer.encode_batch(words, add_special_tokens=False), strict=True):
        share = 1.0 if word.isalpha() or len(word) <= 2 else OTHER_WORDS
        counts[encoding.ids] += (wordfreq.word_frequency(word, "en") * share) ** FREQUENCY_POWER
    by_count = [int(i) for i in np.argsort(-counts, kind="stable") if counts[i] > 0 and i not in always]
    return sorted([*always, *by_count[: TOKENS - len(always)]])


SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")


class Calibration(Bert):
    """Sums the squares of the inputs of each matrix."""

    def linear(self, x: np.ndarray, name: str) -> np.ndarray:
        self.squares[name] = self.squares.get(name, 0.0) + (x**2).sum(0)
        return super().linear(x, name)

    def input_squares(self, texts: list[str]) -> dict[str, np.ndarray]:
        self.squares: dict[str, np.ndarray] = {}
        for text in texts:
            self.states(self.tokenizer.encode(text).ids)
        return self.squares


def dialogue_texts() -> list[str]:
    """Texts of the demo model's corpus, of the length of a question or a memory."""
    talked = [message.get("content") or "" for talk in talks(7, TALKS) + noted_talks(7, NOTED_TALKS) for message in talk.messages()]
    unique = dict.fromkeys(" ".join(text.split()) for text in talked)
    fitting = [text for text in unique if 12 < len(text) < 200]
    return fitting[:: max(1, len(fitting) // CALIBRATION_TEXTS)]


def nearest(blocks: np.ndarray, scales: np.ndarray) -> np.ndarray:
    """Indices of the nearest levels."""
    divisors = np.where(scales == 0, 1, scales)[:, None]
    return np.searchsorted(BOUNDS, (blocks / divisors).ravel()).reshape(blocks.shape)


def iq4_nl(matrix: np.ndarray, squares: np.ndarray | None) -> np.ndarray:
    """The blocks of a matrix, as bytes: of each 32 numbers a scale in f16 and 32 nibbles."""
    importance = np.ones(matrix.shape[1]) if squares is None else squares / squares.mean()
    importance = np.broadcast_to(importance.astype(np.float32), matrix.shape).reshape(-1, BLOCK)
    blocks = matrix.astype(np.float32).reshape(-1, BLOCK)
    largest = blocks[np.arange(len(blocks)), np.abs(blocks).argmax(1)]
    errors = np.full(len(blocks), np.inf, np.float32)
    best_scales, best_indices = np.zeros(len(blocks), np.float16), np.zeros(blocks.shape, np.uint8)
    for factor in SCALES:
        for end in (LEVELS[0], LEVELS[-1]):
            levels = LEVELS[nearest(blocks, largest / end * factor)]
            sums = (importance * blocks * levels).sum(1), (importance * levels * levels).sum(1)
            scales = (sums[0] / sums[1]).astype(np.float16)
            indices = nearest(blocks, scales.astype(np.float32))
            rounded = scales.astype(np.float32)[:, None] * LEVELS[indices]
            found = (importance * (blocks - rounded) ** 2).sum(1)
            is_better = found < errors
            errors[is_better] = found[is_better]
            best_scales[is_better], best_indices[is_better] = scales[is_better], indices[is_better]
    nibbles = best_indices[:, : BLOCK // 2] | best_indices[:, BLOCK // 2 :] << 4
    packed = np.concatenate([best_scales.view(np.uint8).reshape(-1, 2), nibbles], axis=1)
    return packed.reshape(matrix.shape[0], -1)


def shrink(directory: Path, out: Path) -> None:
    model = Calibration.load(directory)
    kept = kept_tokens(model)
    squares = model.input_squares(dialogue_texts())
    config = read_json(directory / "config.json") | {"max_position_embeddings": POSITIONS}
    tokens = vocabulary(directory, config["vocab_size"])
    tokens = Vocabulary(
        [tokens.texts[i] for i in kept], [tokens.types[i] for i in kept], tokens.lowercase, tokens.strip_accents
    )
    types = gguf.GGMLQuantizationType
    writer = file_head(directory, out, config, tokens, "all-MiniLM-L6-v2", gguf.LlamaFileType.MOSTLY_IQ4_NL)
    writer.add_license("apache-2.0")
    writer.add_source_url("https://huggingface.co/sentence-transformers/all-MiniLM-L6-v2")
    writer.add_description("fewer tokens and positions, matrices in IQ4_NL, for the crate walla_minilm")
    for source, tensor in safetensors(directory / "model.safetensors").items():
        name = renamed(source)
        if name is None:
            continue
        if name == "position_embd.weight":
            writer.add_tensor(name, tensor[:POSITIONS].astype(np.float16))
        elif name == "token_embd.weight":
            writer.add_tensor(name, iq4_nl(tensor[kept], None), raw_dtype=types.IQ4_NL)
        elif tensor.ndim == 1 or name == "token_types.weight":
            writer.add_tensor(name, tensor.astype(np.float32))
        else:
            of_input = squares[source.removeprefix("bert.").removesuffix(".weight")]
            writer.add_tensor(name, iq4_nl(tensor, of_input), raw_dtype=types.IQ4_NL)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("directory", type=Path)
    parser.add_argument("out", type=Path)
    arguments = parser.parse_args()
    shrink(arguments.directory, arguments.out)


if __name__ == "__main__":
    main()
