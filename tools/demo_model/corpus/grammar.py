"""Templates: hand-written phrases with alternatives and slots.

``[Good|Fine] day, {name}.`` chooses one alternative and fills one slot. An alternative may be empty and may nest.
A slot written with a capital letter (``{Price}``) is filled with its value's first letter in upper case.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from zlib import crc32

Slots = Mapping[str, str]

WORDS_HELD_OUT_EVERY = 8
"""About every eighth word is kept for evaluation."""
HOLD_OUT_SALT = "10/"
"""Chosen so that the words of the project's own examples (Greta, Emberfall, horseshoe, kitchen, moon) are trained."""


@dataclass(frozen=True)
class Slot:
    key: str
    capital: bool


@dataclass(frozen=True)
class Choice:
    options: tuple[Sequence, ...]


Sequence = tuple["str | Slot | Choice", ...]


def capital(text: str) -> str:
    """The same text with its first letter in upper case."""
    return text[:1].upper() + text[1:]


def _parse(text: str, at: int, nested: bool) -> tuple[Sequence, int]:
    parts: list[str | Slot | Choice] = []
    plain: list[str] = []

    def flush() -> None:
        if plain:
            parts.append("".join(plain))
            plain.clear()

    while at < len(text):
        mark = text[at]
        if nested and mark in "|]":
            break
        if mark == "[":
            flush()
            options: list[Sequence] = []
            while True:
                option, at = _parse(text, at + 1, True)
                options.append(option)
                if at >= len(text):
                    raise ValueError(f"unclosed '[' in {text!r}")
                if text[at] == "]":
                    break
            parts.append(Choice(tuple(options)))
        elif mark == "{":
            flush()
            end = text.index("}", at)
            key = text[at + 1 : end]
            parts.append(Slot(key.lower(), key[0].isupper()))
            at = end
        else:
            plain.append(mark)
        at += 1
    flush()
    return tuple(parts), at


def _keys(sequence: Sequence) -> set[str]:
    keys: set[str] = set()
    for part in sequence:
        if isinstance(part, Slot):
            keys.add(part.key)
        elif isinstance(part, Choice):
            for option in part.options:
                keys |= _keys(option)
    return keys


def _fill(sequence: Sequence, rng: random.Random, slots: Slots, out: list[str]) -> None:
    for part in sequence:
        if isinstance(part, str):
            out.append(part)
        elif isinstance(part, Slot):
            value = slots[part.key]
            out.append(capital(value) if part.capital else value)
        else:
            _fill(part.options[int(rng.random() * len(part.options))], rng, slots, out)


@dataclass(frozen=True)
class Template:
    """One phrase."""

    sequence: Sequence
    keys: frozenset[str]

    @staticmethod
    def parse(text: str) -> Template:
        sequence, _ = _parse(text, 0, False)
        return Template(sequence, frozenset(_keys(sequence)))

    def fill(self, rng: random.Random, slots: Slots) -> str:
        out: list[str] = []
        _fill(self.sequence, rng, slots, out)
        return "".join(out).replace("  ", " ").strip()


class Phrases:
    """A list of phrases, one a line; those that begin with ``~`` are kept out of training, for evaluation."""

    def __init__(self, text: str) -> None:
        lines = [line.strip() for line in text.strip().splitlines() if line.strip()]
        self.train = [Template.parse(line) for line in lines if not line.startswith("~")]
        self.held_out = [Template.parse(line.removeprefix("~").strip()) for line in lines if line.startswith("~")]
        if not self.train:
            raise ValueError("an empty list of phrases")

    def pick(self, rng: random.Random, slots: Slots, held_out: bool = False) -> str:
        """A filled phrase whose slots are all given; a held-out one if requested and available."""
        choices = self.held_out if held_out and self.held_out else self.train
        for _ in range(24):
            template = choices[int(rng.random() * len(choices))]
            if template.keys <= slots.keys():
                return template.fill(rng, slots)
        fitting = [t for t in choices if t.keys <= slots.keys()] or [t for t in self.train if t.keys <= slots.keys()]
        if not fitting:
            raise KeyError(f"no phrase fits the slots {sorted(slots)}")
        return rng.choice(fitting).fill(rng, slots)


def is_held_out(word: str) -> bool:
    """Whether a generated word belongs to the evaluation."""
    return crc32(f"{HOLD_OUT_SALT}{word.lower()}".encode()) % WORDS_HELD_OUT_EVERY == 0


def a_or_an(noun: str) -> str:
    """The noun with its indefinite article."""
    article = "an" if noun[0].lower() in "aeiou" and not noun.startswith(("one", "uni", "use")) else "a"
    return f"{article} {noun}"


def plural(noun: str) -> str:
    """The plural of the noun (of its head in "bag of nails")."""
    head, of, rest = noun.partition(" of ")
    if head.endswith(("s", "x", "z", "ch", "sh")):
        head += "es"
    elif head.endswith("y") and head[-2:-1] not in "aeiou":
        head = head[:-1] + "ies"
    elif head.endswith("fe"):
        head = head[:-2] + "ves"
    elif head.endswith("loaf") or head.endswith("leaf"):
        head = head[:-1] + "ves"
    else:
        head += "s"
    return head + of + rest


def listing(items: Iterable[str]) -> str:
    """``a, b and c``."""
    items = list(items)
    return items[0] if len(items) == 1 else ", ".join(items[:-1]) + " and " + items[-1]
