"""ChatML: dialogues to token ids, with the marks of the tokens that are learned."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from corpus.dialogue import Dialogue, Message

START, END, END_OF_TEXT = "<|im_start|>", "<|im_end|>", "<|endoftext|>"
CONTROL_TOKENS = (END_OF_TEXT, START, END)
"""In the order of their ids, 0, 1 and 2."""

TEMPLATE = (
    "{%- for message in messages -%}"
    "{{- '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' -}}"
    "{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\\n' -}}{%- endif -%}"
)
"""The chat template that the file carries. Nothing is added: a talk without a system message has none."""

PRE_TOKENIZER = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
"""How text is cut before merging: what ``tokenizer.ggml.pre = "qwen2"`` means."""

TOKENIZER_FILE = Path(__file__).parent / "tokenizer.json"

Ids = NDArray[np.uint16]


class ChatEncoder:
    """Turns messages into ids. Contents are encoded separately from the template, so they never contain control tokens."""

    def __init__(self, path: Path = TOKENIZER_FILE) -> None:
        self.tokenizer = Tokenizer.from_file(str(path))
        self.tokenizer.encode_special_tokens = True  # control tokens in a message stay plain text
        self.end_of_text, self.start, self.end = range(3)
        self._newline = self._plain("\n")
        self._role = {role: [self.start, *self._plain(f"{role}\n")] for role in ("system", "user", "assistant")}

    def _plain(self, text: str) -> list[int]:
        return list(self.tokenizer.encode(text, add_special_tokens=False).ids)

    def prompt(self, messages: Sequence[Message]) -> list[int]:
        """Ids up to and including the start of the assistant's next turn."""
        ids: list[int] = []
        for message in messages:
            ids += [*self._role[message["role"]], *self._plain(message["content"]), self.end, *self._newline]
        return ids + self._role["assistant"]

    def decode(self, ids: Iterable[int]) -> str:
        return str(self.tokenizer.decode(list(ids), skip_special_tokens=False))

    def encode_batch(self, dialogues: Sequence[Dialogue]) -> list[tuple[Ids, NDArray[np.bool_]]]:
        """For each dialogue its ids, and which of them are learned: the assistant's words and their end."""
        batches = [dialogue.messages() for dialogue in dialogues]
        texts = [message["content"] for messages in batches for message in messages]
        encoded = iter(self.tokenizer.encode_batch(texts, add_special_tokens=False))
        result: list[tuple[Ids, NDArray[np.bool_]]] = []
        for messages in batches:
            ids: list[int] = []
            learned: list[bool] = []
            for message in messages:
                head, body = self._role[message["role"]], next(encoded).ids
                spoken = message["role"] == "assistant"
                ids += [*head, *body, self.end, *self._newline]
                learned += [False] * len(head) + [spoken] * (len(body) + 1) + [False] * len(self._newline)
            result.append((np.array(ids, np.uint16), np.array(learned, np.bool_)))
        return result
