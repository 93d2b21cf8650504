"""ChatML: dialogues to token ids, with the marks of the tokens that are learned."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from corpus.dialogue import Dialogue, Message, Tool

START, END, END_OF_TEXT = "<|im_start|>", "<|im_end|>", "<|endoftext|>"
CALL, CALL_END = "<tool_call>", "</tool_call>"
CONTROL_TOKENS = (END_OF_TEXT, START, END)
"""In the order of their ids, 0, 1 and 2."""
CALL_TOKENS = (CALL, CALL_END)
"""The last ids of the vocabulary."""

TEMPLATE = (
    "{%- set has_system = messages and messages[0]['role'] == 'system' -%}"
    "{%- if tools or has_system -%}"
    "{{- '<|im_start|>system\\n' -}}"
    "{%- if has_system -%}{{- messages[0]['content'] -}}{%- endif -%}"
    "{%- if tools -%}"
    "{{- ('\\n\\n' if has_system and messages[0]['content'] else '') + 'Actions:' -}}"
    "{%- for tool in tools -%}"
    "{{- '\\n' + tool['function']['name'] + '(' -}}"
    "{%- if tool['function']['parameters'] and tool['function']['parameters']['properties'] -%}"
    "{%- for name, value in tool['function']['parameters']['properties'] | items -%}"
    "{{- (', ' if not loop.first else '') + name + ': ' -}}"
    "{%- if value['enum'] -%}{{- value['enum'] | tojson -}}{%- else -%}{{- value['type'] or 'any' -}}{%- endif -%}"
    "{%- endfor -%}"
    "{%- endif -%}"
    "{{- ')' -}}"
    "{%- if tool['function']['description'] -%}{{- ': ' + tool['function']['description'] -}}{%- endif -%}"
    "{%- endfor -%}"
    "{%- endif -%}"
    "{{- '<|im_end|>\\n' -}}"
    "{%- endif -%}"
    "{%- for message in messages -%}"
    "{%- if not (loop.first and has_system) -%}"
    "{{- '<|im_start|>' + message['role'] + '\\n' -}}"
    "{%- if message['content'] -%}{{- message['content'] -}}{%- endif -%}"
    "{%- if message['tool_calls'] -%}"
    "{%- for call in message['tool_calls'] -%}"
    "{{- ('\\n' if not loop.first else '') + '<tool_call>\\n{\"name\": \"' + call['function']['name'] + '\", \"arguments\": ' -}}"
    "{{- call['function']['arguments'] | tojson -}}"
    "{{- '}\\n</tool_call>' -}}"
    "{%- endfor -%}"
    "{%- endif -%}"
    "{{- '<|im_end|>\\n' -}}"
    "{%- endif -%}"
    "{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\\n' -}}{%- endif -%}"
)
"""The chat template that the file carries. A talk without a system message and without actions has no system text."""

PRE_TOKENIZER = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
"""How text is cut before merging: what ``tokenizer.ggml.pre = "qwen2"`` means."""

TOKENIZER_FILE = Path(__file__).parent / "tokenizer.json"

Ids = NDArray[np.uint16]
Piece = tuple["str | int", bool]
"""Text or the id of a control token, and whether it is learned."""

ROLES = {"system": "system", "user": "user", "assistant": "assistant", "observation": "system", "action": "assistant", "result": "tool"}
"""The template's name of each role."""


def tool_line(tool: Tool) -> str:
    """One line of the list of actions, as the template prints it."""
    function = tool["function"]
    properties = function["parameters"].get("properties", {})
    arguments = ", ".join(f"{name}: {_values(value)}" for name, value in properties.items())
    described = f": {function['description']}" if function["description"] else ""
    return f"{function['name']}({arguments}){described}"


def _values(schema: dict[str, object]) -> str:
    if choices := schema.get("enum"):
        return json.dumps(choices, ensure_ascii=False)
    return str(schema.get("type") or "any")


CUT_PART = 0.35
"""How many of the texts are cut."""
CHARACTERS_A_CUT = 30
WORD_STARTS = re.compile(r"(?<= )(?=[A-Za-z])")
INSIDE_OF_WORDS = re.compile(r"(?<=[A-Za-z])(?=[A-Za-z])")


def cut(piece: Piece, rng: random.Random) -> list[Piece]:
    """A text, now and then cut before or inside of some words, which then get other tokens.

    A word has one spelling behind a blank and another behind a quotation mark. The cuts show both for every word, so
    that a word of a request is found in a list of choices, also if no list of training has it.
    """
    text, learned = piece
    if learned or isinstance(text, int) or rng.random() >= CUT_PART:
        return [piece]
    where = WORD_STARTS if rng.random() < 0.65 else INSIDE_OF_WORDS
    places = [match.start() for match in where.finditer(text)]
    chosen = sorted(rng.sample(places, min(len(places), 1 + len(text) // CHARACTERS_A_CUT)))
    return [(text[start:end], False) for start, end in zip([0, *chosen], [*chosen, len(text)])]


class ChatEncoder:
    """Turns messages into ids. Contents are encoded separately from the template, so they never contain control tokens."""

    def __init__(self, path: Path = TOKENIZER_FILE) -> None:
        self.tokenizer = Tokenizer.from_file(str(path))
        self.tokenizer.encode_special_tokens = True  # control tokens in a message stay plain text
        self.end_of_text, self.start, self.end = range(3)
        size = self.tokenizer.get_vocab_size()
        self.call, self.call_end = size - 2, size - 1
        self._newline = self._plain("\n")
        self._role = {role: self._plain(f"{role}\n") for role in set(ROLES.values())}

    def _plain(self, text: str) -> list[int]:
        return list(self.tokenizer.encode(text, add_special_tokens=False).ids)

    def pieces(self, messages: Sequence[Message], tools: Sequence[Tool] = ()) -> list[Piece]:
        """The rendered conversation, cut at control tokens and at the borders of contents."""
        pieces: list[Piece] = []
        system = messages[0]["content"] if messages and messages[0]["role"] == "system" else ""
        if tools:
            listed = "\n".join(["Actions:", *map(tool_line, tools)])
            system = f"{system}\n\n{listed}" if system else listed
        if tools or (messages and messages[0]["role"] == "system"):
            pieces += [(self.start, False), ("system\n", False), (system, False), (self.end, False), ("\n", False)]
            messages = messages[1:] if messages and messages[0]["role"] == "system" else messages
        for index, message in enumerate(messages):
            role = ROLES[message["role"]]
            spoken, called = role == "assistant", message["role"] == "action"
            joins = called and index > 0 and messages[index - 1]["role"] in ("assistant", "action")
            if not joins:
                pieces += [(self.start, False), (f"{role}\n", False)]
            if called:
                if joins and messages[index - 1]["role"] == "action":
                    pieces.append(("\n", True))
                pieces += [(self.call, True), (f"\n{message['content']}\n", True), (self.call_end, True)]
            elif message["content"]:
                pieces.append((message["content"], spoken))
            if not (spoken and index + 1 < len(messages) and messages[index + 1]["role"] == "action"):
                pieces += [(self.end, spoken), ("\n", False)]
        return pieces

    def text(self, messages: Sequence[Message], tools: Sequence[Tool] = ()) -> str:
        """The rendered prompt, up to and including the start of the assistant's next turn."""
        names = {self.start: START, self.end: END, self.call: CALL, self.call_end: CALL_END}
        return "".join(names[p] if isinstance(p, int) else p for p, _ in self.pieces(messages, tools)) + f"{START}assistant\n"

    def prompt(self, messages: Sequence[Message], tools: Sequence[Tool] = ()) -> list[int]:
        """Ids up to and including the start of the assistant's next turn."""
        ids: list[int] = []
        for piece, _ in self.pieces(messages, tools):
            ids += [piece] if isinstance(piece, int) else self._plain(piece)
        return [*ids, self.start, *self._role["assistant"]]

    def decode(self, ids: Iterable[int]) -> str:
        return str(self.tokenizer.decode(list(ids), skip_special_tokens=False))

    def encode_batch(self, dialogues: Sequence[Dialogue], rng: random.Random | None = None) -> list[tuple[Ids, NDArray[np.bool_]]]:
        """For each dialogue its ids, and which of them are learned: the assistant's words, its calls, and their ends.

        With ``rng`` some texts that are not learned are cut inside of words (:func:`cut`).
        """
        batches = [self.pieces(dialogue.messages(), dialogue.tools) for dialogue in dialogues]
        if rng is not None:
            batches = [[part for piece in pieces for part in cut(piece, rng)] for pieces in batches]
        short = {"\n": self._newline} | {f"{role}\n": ids for role, ids in self._role.items()}
        texts = [piece for pieces in batches for piece, _ in pieces if isinstance(piece, str) and piece not in short]
        encoded = iter(self.tokenizer.encode_batch(texts, add_special_tokens=False))
        result: list[tuple[Ids, NDArray[np.bool_]]] = []
        for pieces in batches:
            ids: list[int] = []
            learned: list[bool] = []
            for piece, spoken in pieces:
                if isinstance(piece, int):
                    part = [piece]
                else:
                    part = short.get(piece) or next(encoded).ids
                ids += part
                learned += [spoken] * len(part)
            result.append((np.array(ids, np.uint16), np.array(learned, np.bool_)))
        return result
