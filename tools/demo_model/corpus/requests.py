"""Requests that are composed from parts, for training only: openers, courtesy, reasons, subjects, verbs, closers.

The written lists of ``action_words`` are short; these parts combine to millions of sentences, so that a request is
recognised by its grammar. No composed text shares three words in a row with a held-out phrasing, except such as
training's written phrases contain as well (:func:`free_of_held_out`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from . import action_words as aw
from . import company, robot_words, trade, words
from . import request_words as rq
from .common_words import COMMON_ADJECTIVES, COMMON_NOUNS
from .grammar import Choice, Phrases, Sequence, Slot, Slots, Template, a_or_an, capital, plural
from .names import Maker

# Held-out phrasings

RUN = 3
WORD = re.compile(r"[\w']+")
DOUBLED = re.compile(r"([.!?])[.](?![.])")
"""An end mark behind another one."""
NEXT_SENTENCE = re.compile(r"(?<=[a-z][.!?] )[a-z]")


def _texts(sequence: Sequence) -> Iterator[str]:
    """Every text of a template, with slots as line breaks."""
    texts = [""]
    for part in sequence:
        if isinstance(part, str):
            texts = [text + part for text in texts]
        elif isinstance(part, Slot):
            texts = [text + "\n" for text in texts]
        elif isinstance(part, Choice):
            texts = [text + option for text in texts for choice in part.options for option in _texts(choice)]
    yield from texts


def _runs(text: str) -> set[tuple[str, ...]]:
    found: set[tuple[str, ...]] = set()
    for line in text.lower().split("\n"):
        said = WORD.findall(line)
        found.update(tuple(said[i : i + RUN]) for i in range(len(said) - RUN + 1))
    return found


def _runs_of(templates: list[Template]) -> set[tuple[str, ...]]:
    return {run for template in templates for text in _texts(template.sequence) for run in _runs(text)}


_KINDS = (aw.GIVE, aw.MOVE, aw.ATTACK, aw.FLEE, aw.FOLLOW, aw.PLAY)
_LISTS = (
    *(kind.requests for kind in _KINDS), aw.THING_REQUESTS, aw.MENTIONS, aw.THREATS, aw.ATTACKS, aw.QUIET_EVENTS, aw.BRAVE, aw.TIMID, trade.BUY, trade.HAVE_QUESTIONS, company.FILLERS,
    *(getattr(robot_words, key) for key in ("GOTO", "FETCH", "DELIVER", "FOLLOW", "CLEAN", "WAIT", "WAIT_HERE", "STOP", "CHARGE", "IMPOSSIBLE_ACTS")),
)
_WRITTEN_RUNS = _runs_of([template for phrases in _LISTS for template in phrases.train])
_HELD_OUT_RUNS = _runs_of([template for phrases in _LISTS for template in phrases.held_out]) - _WRITTEN_RUNS


def free_of_held_out(text: str) -> bool:
    """Whether a text has no three words in a row that only held-out phrasings have."""
    return _HELD_OUT_RUNS.isdisjoint(_runs(text))


# Words


class WideMaker(Maker):
    """Training's maker: many of its nouns are common words, or built of two."""

    def noun(self) -> str:
        return self.wide_noun() if self.chance(0.4) else super().noun()

    def wide_noun(self) -> str:
        noun = COMMON_NOUNS[int(self.rng.random() * len(COMMON_NOUNS))]
        value = self.rng.random()
        if value < 0.12:
            built = f"{self.pick(COMMON_ADJECTIVES)} {noun}"
        elif value < 0.2:
            built = f"{self.pick(COMMON_NOUNS)} {noun}"
        else:
            return noun
        return self._draw(lambda: built)

    def pick_kept(self, options: list[str]) -> str:
        if (options is robot_words.ROOMS or options is robot_words.ITEMS or options is words.SPOTS) and self.chance(0.3):
            return self.wide_noun()
        return super().pick_kept(options)


def weapon(maker: Maker) -> str:
    """``a club``, ``his old sword``, ``a burning lamp``"""
    value = maker.rng.random()
    if value < 0.6:
        noun = maker.pick(rq.WEAPONS)
    elif value < 0.85:
        noun = maker.pick(COMMON_NOUNS)
    else:
        noun = maker.invented_noun()
    if maker.chance(0.25):
        noun = f"{maker.pick(rq.WEAPON_QUALITIES)} {noun}"
    return a_or_an(noun)


class Lazy(dict[str, Any]):
    """Slots of which some are functions, called when their value is used first."""

    def __getitem__(self, key: str) -> str:
        value = super().__getitem__(key)
        if not isinstance(value, str):
            value = self[key] = value()
        return str(value)


class Composer:
    """Composes user turns of one dialogue."""

    def __init__(self, maker: Maker, persona_slots: Slots) -> None:
        self.maker, self.rng = maker, maker.rng
        self.named = {"self": persona_slots["self"], "trade": persona_slots["trade"]}

    def words(self, *more: Slots) -> Lazy:
        """The given slots, and some that are drawn when a phrase uses them."""
        maker, slots = self.maker, Lazy(self.named)
        slots.update(
            noun=maker.noun, a_noun=lambda: a_or_an(slots["noun"]), odd=maker.invented_noun, name=maker.first_name, name2=maker.first_name, place=maker.place,
            role=lambda: maker.pick(rq.ROLES), official=lambda: maker.pick(words.OFFICIALS), animal=lambda: maker.pick(words.ANIMALS), animals=lambda: plural(maker.pick(words.ANIMALS)),
            beasts=lambda: maker.pick(words.BEASTS), weapon=lambda: weapon(maker), body=lambda: maker.pick(rq.BODY), bone=lambda: maker.pick(rq.BONES),
            adverb=self.adverb, verb=lambda: maker.invented_noun() if maker.chance(0.5) else maker.pick(COMMON_NOUNS),
        )
        for given in more:
            slots.update(given)
        return slots

    def pick(self, phrases: Phrases, slots: Slots) -> str:
        return tidy(phrases.pick(self.rng, slots))

    def dress(self, core: str, slots: Slots) -> str:
        """The sentence, which begins in lower case, with an opener, a reason or a closer."""
        chance, text = self.maker.chance, core
        if text[-1] == "." and chance(0.16):
            text = f"{text[:-1]}{self.maker.pick([', ', ', ', ' '])}{self.pick(rq.TAILS, slots)}{self.maker.pick(['.', '.', '!'])}"
        elif text[-1] == "." and chance(0.1):
            text = f"{text[:-1]}{self.maker.pick(['!', '!', ' ...', ''])}"
        if chance(0.1):
            reason = self.pick(rq.REASONS, slots)
            way = self.rng.random()
            if way < 0.4 or text[-1] not in ".!":
                text = joined(f"{reason}.", text)
            elif way < 0.65:
                text = joined(text, f"{reason}.")
            elif way < 0.85:
                text = f"{text[:-1]}, {self.maker.pick(rq.LINKS)} {reason}."
            else:
                text = f"{self.maker.pick(rq.LINKS[:3])} {reason}, {text}"
        if chance(0.34):
            text = joined(self.pick(rq.OPENERS, slots), text)
        if chance(0.1):
            text = joined(text if text[-1] in ".!?*" else f"{text}.", self.pick(rq.CLOSERS, slots))
        return capital(text)

    def composed(self, phrases: Phrases, slots: Slots, plain: Phrases, dressed: float = 0.75) -> str:
        """A sentence of the parts; one of the written phrases if each attempt resembles a held-out one."""
        for _ in range(4):
            core = self.pick(phrases, slots)
            text = self.dress(core, slots) if self.maker.chance(dressed) else capital(core)
            if free_of_held_out(text):
                return text
        return self.pick(plain, slots)

    # Requests

    def purchase(self, slots: Slots) -> str:
        return self.composed(rq.PURCHASES, self.words(slots), aw.GIVE.requests)

    def purchase_of_some(self, slots: Slots, plain: Phrases) -> str:
        return self.composed(rq.COUNT_PURCHASES, self.words(slots), plain)

    def order(self, act: str, plain: str) -> str:
        """An order in one of many forms: ``act`` is a verb with its objects in lower case."""
        slots = self.words({"act": act})
        for _ in range(4):
            core = self.pick(rq.ORDERS, slots)
            text = self.dress(core, slots) if self.maker.chance(0.6) else capital(core)
            if free_of_held_out(text):
                return text
        return plain

    def adverb(self) -> str:
        stem = self.maker.pick(rq.ADVERBS) if self.maker.chance(0.7) else self.maker.invented_noun()
        return f"{stem}ly"

    def no_purchase(self, slots: Slots) -> str:
        return self.composed(rq.NO_PURCHASES, self.words(slots), aw.MENTIONS, 0.4)

    def no_order(self, slots: Slots) -> str:
        return self.composed(rq.NO_ORDERS, self.words(slots), aw.MENTIONS, 0.3)

    # Fights

    def harm(self, slots: Slots) -> Lazy:
        """The slots of a threat with what somebody will do, and what happens to the victim."""
        filled = self.words(slots)
        filled.update(
            harm=lambda: self.pick(rq.HARMS, filled), harm2=lambda: self.pick(rq.HARMS, filled), doom=lambda: self.pick(rq.DOOMS, filled), demand=lambda: self.pick(rq.DEMANDS, filled),
            strike=lambda: self.pick(rq.STRIKES_BASE, filled), strikes=lambda: self.strikes(filled),
        )
        return filled

    def strikes(self, slots: Slots) -> str:
        """An attack in the third person."""
        text = self.pick(rq.STRIKES, slots)
        return f"{text} and {self.pick(rq.STRIKES, slots)}" if self.maker.chance(0.12) else text

    def threat(self, slots: Slots) -> str:
        filled = self.harm(slots)
        for _ in range(4):
            value = self.rng.random()
            if value < 0.26:
                text = f"*{self.pick(rq.DIRECTIONS, filled)}*"
                if self.maker.chance(0.2):
                    said = self.pick(rq.THREATS, filled)
                    text = f"{text} {capital(said)}" if self.maker.chance(0.6) else f"{said} {text}"
                elif self.maker.chance(0.1):
                    text = f"({text[1:-1]})"
            else:
                text = self.pick(rq.THREATS, filled)
                if self.maker.chance(0.2):
                    text = joined(text, self.pick(rq.THREATS, filled))
                if self.maker.chance(0.25):
                    lead = self.pick(rq.CURSES, filled)
                    text = joined(lead, text)
            text = capital(text)
            if free_of_held_out(text):
                return text
            filled = self.harm(slots)
        return self.pick(aw.THREATS, slots)

    def attack(self, slots: Slots) -> str:
        for _ in range(4):
            filled = self.harm(slots)
            text = capital(self.pick(rq.SEEN, filled))
            if free_of_held_out(text):
                return text
        return self.pick(aw.ATTACKS, slots)

    def manner(self, brave: bool) -> str:
        """A sentence of the prompt that decides between fight and flight."""
        for _ in range(4):
            text = capital(self.pick(rq.BRAVE if brave else rq.TIMID, self.words()))
            if free_of_held_out(text):
                return text
        return self.pick(aw.BRAVE if brave else aw.TIMID, {})

    def peace(self) -> str:
        """Talk about fights that starts none."""
        slots = self.harm({})
        for _ in range(4):
            text = self.pick(rq.PEACE, slots)
            text = self.dress(text, slots) if self.maker.chance(0.25) and text[-1] == "." else capital(text)
            if free_of_held_out(text):
                return text
        return "I don't want a fight."


def tidy(text: str) -> str:
    """The text with one mark at the end of a sentence, and a capital behind it."""
    return NEXT_SENTENCE.sub(lambda match: match[0].upper(), DOUBLED.sub(r"\1", text))


def joined(first: str, second: str) -> str:
    """Two parts in a row; the second begins with a capital behind an end mark."""
    return f"{first} {capital(second) if first[-1] in '.!?' else second}"
