"""Generated words: names, places, wares, prices. Effectively unbounded, so that copying has to be learned."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from . import robot_words, words
from .grammar import a_or_an, capital, is_held_out, plural

T = TypeVar("T")

CROSSABLE = sorted(
    {
        part
        for entry in [
            *words.NOUNS, *words.THINGS, *words.SPOTS, *words.BUILDINGS, *words.ANIMALS, *words.MATERIALS, *words.LIKES, *words.FEARS, *words.DRINKS,
            *(ware for wares in words.WARES.values() for ware in wares), *robot_words.ROOMS, *robot_words.ITEMS, *robot_words.FAR_PLACES,
        ]
        for part in entry.replace("/", " ").split()
        if len(part) > 2
    }
)
"""Words whose halves make new words."""


@dataclass(frozen=True)
class Ware:
    """Something for sale."""

    bare: str
    """``horseshoe``, ``bag of nails``"""
    one: str
    """``a horseshoe``, ``a bag of nails``"""
    many: str
    """``horseshoes``, ``nails``"""


@dataclass(frozen=True)
class Maker:
    """Draws words for training, or the held-out ones for evaluation."""

    rng: random.Random
    held_out: bool = False

    def _draw(self, make: Callable[[], str]) -> str:
        for _ in range(60):
            word = make()
            if is_held_out(word) == self.held_out:
                return word
        return word

    def pick(self, options: list[T]) -> T:
        return options[int(self.rng.random() * len(options))]

    def pick_kept(self, options: list[str]) -> str:
        """One of the options, of training's part or of the evaluation's part of the list."""
        return self._draw(lambda: self.pick(options))

    def chance(self, probability: float) -> bool:
        return self.rng.random() < probability

    def first_name(self) -> str:
        return self._draw(self._first_name)

    def _first_name(self) -> str:
        if self.chance(0.3):
            return self.pick(words.FIRST_NAMES)
        if self.chance(0.3):
            return self._crossed(words.FIRST_NAMES + words.SURNAMES)
        parts = [self.pick(words.NAME_STARTS)]
        if self.chance(0.4):
            parts.append(self.pick(words.NAME_MIDDLES))
        parts.append(self.pick(words.NAME_ENDS))
        return "".join(parts)

    def person(self) -> str:
        """A name, now and then with a title or a surname."""
        name = self.first_name()
        draw = self.rng.random()
        if draw < 0.1:
            return f"{name} {self.pick(words.SURNAMES)}"
        if draw < 0.13:
            return f"{name} {self.place_stem()}"
        if draw < 0.2:
            return f"{self.pick(words.TITLES)} {name}"
        return name

    def place_stem(self) -> str:
        return self._draw(self._place_stem)

    def _place_stem(self) -> str:
        if self.chance(0.6):
            return self.pick(words.PLACE_STARTS) + self.pick(words.PLACE_ENDS)
        if self.chance(0.3):
            return capital(self._crossed(CROSSABLE)) + self.pick(words.PLACE_ENDS)
        parts = [self.pick(words.NAME_STARTS)]
        if self.chance(0.4):
            parts.append(self.pick(words.NAME_MIDDLES))
        parts.append(self.pick(words.PLACE_ENDS + words.NAME_ENDS))
        return "".join(parts)

    def place(self) -> str:
        stem = self.place_stem()
        return self.pick(words.PLACE_SHAPES).replace("{x}", stem) if self.chance(0.1) else stem

    def noun(self) -> str:
        """A plain noun of the dictionary."""
        return self.pick_kept(words.NOUNS)

    def invented_noun(self) -> str:
        return self._draw(self._invented_noun)

    def _invented_noun(self) -> str:
        """Of syllables; or crossed from two nouns, so that every part of a word is copied now and then."""
        if self.chance(0.4):
            return self._crossed(CROSSABLE)
        return "".join(self.pick(words.WARE_PARTS) for _ in range(self.rng.randint(1, 2))) + self.pick(words.WARE_ENDS)

    def _crossed(self, options: list[str]) -> str:
        """The head of one word and the tail of another: ``blan`` + ``cony``."""
        head, tail = self.pick(options).split()[-1], self.pick(options).split()[-1]
        return head[: self.rng.randint(2, max(2, len(head) - 1))] + tail[-self.rng.randint(2, max(2, len(tail) - 1)) :].lower()

    def ware(self, style: str) -> Ware:
        """A ware of the trade, sometimes of another one, sometimes of no dictionary."""
        draw = self.rng.random()
        if draw < 0.3:
            noun = self.invented_noun()
            bare = noun if self.chance(0.5) else f"{noun} {self.pick(words.INVENTED_WARE_KINDS)}"
            return Ware(bare, a_or_an(bare), plural(bare))
        if draw < 0.42:
            style = self.pick(list(words.WARES))
        entry = self.noun() if draw > 0.82 else self.pick_kept(words.WARES[style])
        bare, _, many = entry.partition("/")
        if not many and self.chance(0.3):
            bare = self._draw(lambda: f"{self.pick(words.WARE_QUALITIES)} {entry}")
        if many == bare:
            return Ware(bare, bare, bare)
        one = bare if bare.startswith("dozen") else a_or_an(bare)
        return Ware(bare, "a " + bare if bare.startswith("dozen") else one, many or plural(bare))

    def number(self, top: int = 20) -> str:
        value = self.rng.randint(1, top)
        if value < 13 and self.chance(0.2):
            return words.NUMBER_WORDS[value]
        if self.chance(0.06):
            return str(self.rng.choice([25, 30, 35, 40, 45, 50, 60, 75, 80, 90, 99, 100, 120, 150, 200, 250, 300, 500]))
        return str(self.rng.randint(21, 99)) if self.chance(0.12) else str(value)

    def currency(self) -> str:
        return self.invented_noun() + "s" if self.chance(0.05) else self.pick(words.CURRENCIES)

    def price(self, currency: str) -> str:
        number = self.number()
        if number in ("1", "one") and currency.endswith("s") and not currency.endswith("ss"):
            currency = {"pence": "penny", "pennies": "penny"}.get(currency, currency[:-1])
        return f"{number} {currency}"

    def building(self) -> str:
        """``the old mill``"""
        noun = self.pick(words.BUILDINGS)
        return "the " + self._draw(lambda: f"{self.pick(words.BUILDING_QUALITIES)} {noun}") if self.chance(0.5) else f"the {noun}"

    def inn_name(self) -> str:
        """``the Gilded Goose``"""
        adjective = self.pick(["Gilded", "Rusty", "Drunken", "Sleeping", "Laughing", "Broken", "Red", "Silver", "Blind", "Dancing", "Lucky", "Black", "Golden", "Howling", "Merry", "Salty", "Crooked", "Prancing", "Green", "Last"])
        noun = self.pick(["Goose", "Anvil", "Kettle", "Dragon", "Stag", "Barrel", "Lantern", "Fox", "Crown", "Mermaid", "Boar", "Pony", "Hammer", "Candle", "Raven", "Wheel", "Cat", "Oak", "Anchor", "Flagon", "Bear", "Hearth"])
        return "the " + self._draw(lambda: f"{adjective} {capital(noun)}")

    # Open lists: about half hand-written words, half built or invented, so that an answer has to be copied.

    def _open(self, options: list[str], *built: Callable[[], str]) -> str:
        """A word of the list, or (for half of the draws) a result of ``built``."""
        if self.chance(0.5):
            return self.pick_kept(options)
        return self._draw(built[int(self.rng.random() * len(built))])

    def noun_phrase(self) -> str:
        """Something that can be owned, without an article: ``blue lantern``, ``drovik``."""
        if self.chance(0.4):
            noun = self.invented_noun()
            return noun if self.chance(0.5) else f"{noun} {self.pick(words.INVENTED_WARE_KINDS)}"
        return f"{self.pick(words.WARE_QUALITIES + words.COLOURS)} {self.pick(words.THINGS if self.chance(0.4) else words.NOUNS)}"

    def thing(self) -> str:
        return self._open(words.THINGS, self.noun_phrase, self.noun_phrase, self.noun)

    def spot(self) -> str:
        return self._open(
            words.SPOTS,
            lambda: f"{self.pick(words.BUILDING_QUALITIES + words.COLOURS)} {self.pick(words.SPOTS)}",
            lambda: f"{self.invented_noun()} {self.pick(['forest', 'hills', 'cave', 'valley', 'marsh', 'woods', 'tunnel', 'pit'])}",
            lambda: f"{self.pick(words.TRADES[self.pick(list(words.TRADES))])}'s {self.pick(['house', 'cellar', 'garden', 'shed', 'barn'])}",
        )

    def like(self) -> str:
        return self._open(
            words.LIKES,
            lambda: plural(self.noun_phrase()),
            lambda: self.ware("merchant").many,
            lambda: f"{self.pick(['painting', 'collecting', 'counting', 'making', 'watching', 'finding', 'drawing', 'stealing'])} {plural(self.noun_phrase())}",
            lambda: f"{self.invented_noun()} {self.pick(['soup', 'cake', 'games', 'songs', 'pie', 'racing', 'dancing', 'stew'])}",
        )

    def fear(self) -> str:
        return self._open(
            words.FEARS + words.BEASTS,
            lambda: plural(self.noun_phrase()),
            lambda: f"{self.pick(words.COLOURS)} {plural(self.pick(words.ANIMALS))}",
            lambda: f"the {self.pick(words.OFFICIALS)}",
            lambda: self.first_name(),
            lambda: f"the {self.pick(words.BUILDING_QUALITIES)} {self.pick(words.SPOTS)}",
        )

    def drink(self) -> str:
        kinds = ["wine", "ale", "tea", "juice", "brandy", "milk", "beer", "cider", "mead", "water", "schnapps"]
        return self._open(
            words.DRINKS,
            lambda: f"{self.invented_noun()} {self.pick(kinds)}",
            lambda: f"{self.pick(words.COLOURS + ['hot', 'cold', 'sweet', 'bitter', 'old', 'warm'])} {self.pick(kinds)}",
            lambda: f"{self.pick(['apple', 'plum', 'honey', 'pear', 'berry', 'mint', 'nettle', 'carrot', 'cherry', 'rose', 'barley', 'ginger'])} {self.pick(kinds)}",
        )

    def animal(self) -> str:
        return self._open(
            words.ANIMALS,
            lambda: f"{self.pick(words.COLOURS)} {self.pick(words.ANIMALS)}",
            lambda: self.invented_noun(),
            lambda: f"{self.pick(['old', 'blind', 'little', 'fat', 'young', 'three-legged', 'lame', 'clever', 'wild'])} {self.pick(words.ANIMALS)}",
        )

    def dream(self) -> str:
        return self._open(
            words.DREAMS,
            lambda: f"{self.pick(['visit', 'see', 'live in', 'move to', 'rule', 'travel to', 'return to'])} {self.place()}",
            lambda: f"{self.pick(['own', 'find', 'win', 'build', 'buy', 'make', 'steal', 'sell'])} {a_or_an(self.noun_phrase())}",
            lambda: f"{self.pick(['marry', 'meet', 'find', 'beat', 'forget', 'see', 'defeat'])} {self.first_name()}",
            lambda: f"{self.pick(['become', 'work as', 'be'])} {a_or_an(self.trade()[1])}",
            lambda: f"{self.pick(['open', 'build', 'own', 'buy'])} {a_or_an(self.pick(words.BUILDINGS))} in {self.place()}",
        )

    def material(self) -> str:
        return self._open(words.MATERIALS, lambda: plural(self.noun_phrase()), lambda: self.ware("farmer").many)

    def trade(self) -> tuple[str, str]:
        """A style and a trade of that style; some trades are built."""
        style = self.pick(list(words.TRADES))
        if self.chance(0.8):
            return style, self.pick(words.TRADES[style])
        built: list[Callable[[], tuple[str, str]]] = [
            lambda: ("merchant", f"{self.ware('merchant').bare.split()[-1]} {self.pick(['seller', 'dealer', 'trader'])}"),
            lambda: ("crafter", f"{self.ware('crafter').bare.split()[-1]} {self.pick(['maker', 'painter', 'carver'])}"),
            lambda: ("farmer", f"{self.pick(words.ANIMALS)} {self.pick(['breeder', 'trainer', 'keeper', 'tamer'])}"),
            lambda: ("traveller", self.pick_kept(["thief", "beggar", "smuggler", "pirate", "bandit", "monster hunter", "treasure hunter", "gambler", "fortune teller", "spy", "exile", "hermit", "giant slayer"])),
            lambda: ("scholar", self.pick_kept(["judge", "mayor", "tax collector", "doctor", "professor", "lawyer", "painter", "inventor", "witch", "druid", "sorcerer", "necromancer", "sculptor"])),
            lambda: ("guard", self.pick_kept(["king", "queen", "duke", "princess", "baron", "jailer", "hangman", "squire", "captain", "sheriff", "bodyguard"])),
            lambda: ("engineer", self.pick_kept(["gravedigger", "chimney sweep", "lamplighter", "barber", "coachman", "stonecutter", "lighthouse keeper", "dentist", "nurse", "teacher", "bartender", "taxi driver"])),
        ]
        return self.pick(built)()
