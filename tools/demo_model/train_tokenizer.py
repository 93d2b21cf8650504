"""Trains the byte-level BPE on a sample of the corpus and writes ``tokenizer.json``.

    python train_tokenizer.py
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from chatml import CALL_TOKENS, CONTROL_TOKENS, PRE_TOKENIZER, TOKENIZER_FILE, tool_line
from corpus.mix import dialogues

MERGED = 3_070
"""Tokens without those of calls, which are appended."""


def texts(count: int) -> Iterator[str]:
    """Every message and every action of ``count`` dialogues, none of which training sees again."""
    for dialogue in dialogues(seed=-1, count=count):
        for message in dialogue.messages():
            yield message["content"]
        yield from map(tool_line, dialogue.tools)


def train(count: int) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(PRE_TOKENIZER), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=MERGED,
        special_tokens=list(CONTROL_TOKENS),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts(count), trainer)
    tokenizer.add_special_tokens(list(CALL_TOKENS))
    return tokenizer


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--dialogues", type=int, default=30_000)
    parser.add_argument("--out", type=Path, default=TOKENIZER_FILE)
    arguments = parser.parse_args()
    tokenizer = train(arguments.dialogues)
    tokenizer.save(str(arguments.out), pretty=False)
    print(f"{tokenizer.get_vocab_size()} tokens -> {arguments.out}")


if __name__ == "__main__":
    main()
