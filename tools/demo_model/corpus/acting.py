"""Dialogues with actions: personas and robots that call them, the results, and talk in which nothing is called."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from . import action_words as aw
from . import company, talk, trade, words
from . import robot_words as rw
from .common_words import COMMON_ADJECTIVES, COMMON_NOUNS
from .dialogue import Check, Dialogue, Message, Spoken, Tool
from .grammar import Phrases, Slots, a_or_an, capital, plural
from .names import Maker, Ware
from .persona import sample_persona, system_prompt
from .request_words import ANSWERS_TALK
from .requests import Composer
from .robot import Robot
from .tavern import Tavern, dressed, roughen

NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*")
"""Names that calls can have."""
FILLER = "..."
"""What stands for a user's turn where a talk has none yet."""


@dataclass(frozen=True)
class Field:
    """An argument of an action: its name, and its JSON schema."""

    name: str
    schema: dict[str, object]


@dataclass(frozen=True)
class Action:
    """One line of the list that the prompt shows."""

    key: str
    name: str
    description: str
    fields: tuple[Field, ...] = ()
    slots: dict[str, str] = field(default_factory=dict)
    """Words of its phrases, such as its verb."""
    kind: aw.Kind | None = None

    def tool(self) -> Tool:
        properties = {f.name: f.schema for f in self.fields}
        parameters: dict[str, object] = {"type": "object", "properties": properties}
        if properties:
            parameters["required"] = list(properties)
        parameters["additionalProperties"] = False
        return {"type": "function", "function": {"name": self.name, "description": self.description, "parameters": parameters}}


def one_of(choices: list[str]) -> dict[str, object]:
    return {"type": "string", "enum": choices}


def draw(maker: Maker, words_of: aw.WordList) -> str:
    """A word of training, or (for half of the evaluation's draws) a held-out one."""
    train, held_out = words_of
    return maker.pick(held_out if maker.held_out and held_out and maker.chance(0.5) else train)


ARGUMENT_WORDS = [word for words_of in (aw.ITEM, aw.PLACE, aw.TARGET, aw.PERSON, aw.RECEIVER, aw.COUNT, aw.PRICE, aw.SONG, aw.SECONDS) for word in words_of[0]]
HELD_OUT_NAMES = frozenset(
    name.lower()
    for words_of in (
        aw.ITEM, aw.PLACE, aw.TARGET, aw.PERSON, aw.RECEIVER, aw.COUNT, aw.PRICE, aw.SONG, aw.SECONDS, *aw.ROBOT_NAMES_OF.values(),
        *(kind.names for kind in (aw.GIVE, aw.PAY, aw.REFUSE, aw.MOVE, aw.ATTACK, aw.FLEE, aw.FOLLOW, aw.PLAY)),
    )
    for name in words_of[1]
)


def styled(maker: Maker, name: str) -> str:
    """``hand_over`` in another style of names, now and then."""
    parts = name.replace(" ", "_").split("_")
    value = maker.rng.random()
    if value < 0.7 or len(parts) == 1 and value < 0.9:
        return "_".join(parts)
    if value < 0.82:
        return parts[0] + "".join(map(capital, parts[1:]))
    if value < 0.9:
        return "".join(map(capital, parts))
    return ("-" if value < 0.96 else "").join(parts)


def any_word(maker: Maker) -> str:
    return (maker.invented_noun() if maker.chance(0.5) else maker.noun()).replace(" ", "_").lower()


def invented_name(maker: Maker) -> str:
    """An invented word that may name an action."""
    while not NAME.fullmatch(name := maker.invented_noun()):
        pass
    return name


def varied(maker: Maker, words_of: aw.WordList, others: list[str]) -> tuple[str, bool]:
    """A name, and whether it says what it means. Most of training's names say little, so that they have to be copied."""
    if maker.held_out:
        if maker.chance(0.06):
            return invented_name(maker), False
        name = draw(maker, words_of)
        return name, name in words_of[0]
    for _ in range(20):
        value = maker.rng.random()
        known = maker.pick(words_of[0])
        if value < 0.45:
            name = styled(maker, known)
        elif value < 0.6:
            name = styled(maker, "_".join(maker.pick([[known, any_word(maker)], [any_word(maker), known], [maker.pick(["do", "action", "npc", "cmd", "the", "my", "try"]), known], [known, maker.pick(["name", "id", "now", "it", "value", "action", "to", "one"])]])))
        elif value < 0.75:
            name = styled(maker, maker.pick(others))
        elif value < 0.92:
            name = styled(maker, any_word(maker))
        else:
            name = styled(maker, f"{any_word(maker)}_{any_word(maker)}")
        if name.lower() not in HELD_OUT_NAMES and name.isascii() and len(name) <= 32 and name[0].isalpha():
            return name, value < 0.6
    return known, True


class Actions:
    """The actions of one prompt."""

    def __init__(self, maker: Maker) -> None:
        self.maker = maker
        self.all: list[Action] = []

    def get(self, key: str) -> Action | None:
        return next((action for action in self.all if action.key == key), None)

    def tools(self) -> list[Tool]:
        return [action.tool() for action in self.all]

    def add(self, key: str, names: aw.WordList, descriptions: Phrases, fields: tuple[Field, ...] = (), slots: dict[str, str] | None = None, kind: aw.Kind | None = None) -> None:
        maker, slots = self.maker, slots or {}
        for _ in range(8):
            name, known = varied(maker, names, VERB_NAMES)
            if all(name != other.name for other in self.all):
                break
        else:
            return
        described = not known or maker.chance(0.92)
        description = descriptions.pick(maker.rng, slots, maker.held_out and maker.chance(0.5)) if described else ""
        self.all.append(Action(key, name, description if maker.chance(0.9) else description.rstrip("."), fields, slots, kind))

    def field(self, names: aw.WordList, schema: dict[str, object], taken: tuple[str, ...] = ()) -> Field:
        for _ in range(8):
            name, _ = varied(self.maker, names, ARGUMENT_WORDS)
            if name not in taken:
                break
        return Field(name, schema)

    def add_kind(self, kind: aw.Kind, *values: list[str]) -> None:
        fields = tuple(self.field(argument.names, one_of(choices)) for argument, choices in zip(kind.arguments, values))
        self.add(kind.key, kind.names, kind.descriptions, fields, kind=kind)

    def add_gestures(self, count: int, without: tuple[str, ...] = ()) -> None:
        maker = self.maker
        for _ in range(count):
            verb, description, requests, past = maker.pick(list(aw.GESTURES))
            if verb in without or self.get(f"gesture {verb}"):
                continue
            plain = verb.replace("_", " ")
            self.add(f"gesture {verb}", ([verb, verb, f"do_{verb}"], []), Phrases(description), slots={"verb": plain, "past": past, "requests": requests})

    def add_things(self, count: int, without: tuple[str, ...] = ()) -> None:
        """Actions with a verb of the list (of training's or the evaluation's part) and some things."""
        maker = self.maker
        for _ in range(count):
            verb, verbs, past = any_verb(maker)
            if verb in without or self.get(f"thing {verb}"):
                continue
            things = distinct([maker.thing() if maker.chance(0.4) else maker.noun() for _ in range(maker.rng.randint(1, 5))])
            shapes = [verb, verb, f"{verb}_item", f"{verb}_thing", f"{verb}_object"]
            plain = verb.replace("_", " ")
            slots = {"verb": plain, "verbs": verbs, "past": past}
            self.add(f"thing {verb}", (shapes, []), aw.THING_DESCRIPTIONS, (self.field(aw.ITEM, one_of(things)),), slots)


VERBS_TRAINED = [entry for entry in aw.VERBS if sum(map(ord, entry[0])) % 6]
VERBS_HELD_OUT = [entry for entry in aw.VERBS if sum(map(ord, entry[0])) % 6 == 0]
VERB_NAMES = [entry[0] for entry in VERBS_TRAINED] + [name for kind in (aw.GIVE, aw.MOVE, aw.ATTACK, aw.FLEE, aw.FOLLOW, aw.PLAY, aw.REFUSE) for name in kind.names[0]]


def any_verb(maker: Maker) -> tuple[str, str, str]:
    """A verb, its third person and its participle; in training sometimes of no dictionary."""
    if maker.held_out:
        return maker.pick(VERBS_HELD_OUT)
    if maker.chance(0.25):
        verb = maker.invented_noun()
        return verb, aw.third(verb), aw.past(verb)
    return maker.pick(VERBS_TRAINED)


def distinct(choices: list[str]) -> list[str]:
    """The choices without those that contain another one."""
    kept: list[str] = []
    for choice in choices:
        if not any(choice.lower() in other.lower() or other.lower() in choice.lower() for other in kept):
            kept.append(choice)
    return kept


def with_article(name: str) -> str:
    return name if name[:1].isupper() or name.startswith("the ") else f"the {name}"


class Outcomes:
    """Chooses results for a dialogue."""

    def __init__(self, maker: Maker, currency: str) -> None:
        self.maker, self.currency = maker, currency

    def common(self) -> dict[str, str]:
        maker = self.maker
        noun, number = maker.invented_noun() if maker.chance(0.2) else maker.noun(), str(maker.rng.randint(2, 40))
        noun2, (verb, verbs, past) = maker.noun(), any_verb(maker)
        slots = {"noun2": noun2, "a_noun2": a_or_an(noun2), "verb": verb.replace("_", " "), "verbs": verbs, "past": past, "does": draw(maker, aw.DOES), "feeling": draw(maker, aw.FEELINGS), "noun": noun, "a_noun": a_or_an(noun), "nouns": plural(noun), "name": maker.first_name(), "n": number, "state": draw(maker, aw.STATES), "price": maker.price(self.currency), "currency": self.currency, "offer": maker.price(self.currency)}
        if not maker.held_out:  # any words, so that they are copied
            slots["word"] = maker.pick([verb, maker.pick(COMMON_NOUNS), maker.invented_noun()]).replace("_", " ")
            if maker.chance(0.5):
                slots["state"] = slots["feeling"] = maker.pick(COMMON_ADJECTIVES)
        return slots

    def pick(self, done: aw.Outcomes, failed: aw.Outcomes, slots: Slots, answer_slots: Slots | None = None) -> tuple[str, str, tuple[str, ...], bool]:
        """A result, the answer, the words that it mentions, and whether the action succeeded."""
        maker = self.maker
        common = self.common()
        filled = {**common, **slots}
        value = maker.rng.random()
        held_out = maker.held_out
        found, good = None, value < 0.52
        if value < 0.52:
            found = done.pick(maker.rng, filled, held_out, answer_slots)
        elif value < 0.74:
            found = failed.pick(maker.rng, filled, held_out, answer_slots)
        if found is None and not held_out and maker.chance(0.5):
            found, good = aw.MORE_RESULTS.pick(maker.rng, {"userword": "player", **filled}, False), False
        if found is None:
            found = aw.GENERIC_RESULTS.pick(maker.rng, common, held_out)
            good = False
        assert found is not None
        result, answer, needed = found
        if maker.chance(0.06):
            result = result.rstrip(".")
        return result, answer, tuple(n for n in needed if n), good


class ActingPersona(Tavern):
    """A persona with actions."""

    def __init__(self, maker: Maker) -> None:
        persona = sample_persona(maker, 4)
        super().__init__(maker, persona, False)
        self.composer = None if maker.held_out else Composer(maker, persona.slots())
        self.me = draw(maker, aw.USER_WORDS)
        if not maker.held_out and maker.chance(0.3):
            self.me = maker.pick([lambda: maker.trade()[1], maker.invented_noun, maker.noun])()
        self.people = distinct([maker.first_name() for _ in range(3)])
        self.actions = Actions(maker)
        self.outcomes = Outcomes(maker, persona.currency)
        self.manners: list[str] = []
        self.goods: list[tuple[str, Ware, str]] = []
        """Choice, ware and price."""
        self.places: list[str] = []
        self.targets: list[str] = []
        self.songs: list[str] = []
        self.brave: bool | None = None
        self.prices_known = True
        self._equip()

    def _equip(self) -> None:
        maker, actions = self.maker, self.actions
        if maker.chance(0.6):
            self._equip_trade()
        if maker.chance(0.4):
            self.places = distinct([maker.pick([maker.place, maker.spot, lambda: maker.building().removeprefix("the ")])() for _ in range(maker.rng.randint(2, 6))])
            actions.add_kind(aw.MOVE, self.places)
        if maker.chance(0.38 if maker.held_out else 0.5):
            self._equip_fight()
        if maker.chance(0.2):
            actions.add_kind(aw.FOLLOW, self._listed(self.people))
        if maker.chance(0.5 if self.persona.style == "bard" else 0.06):
            self.songs = distinct([maker.pick([lambda: f"the {maker.noun_phrase()}", lambda: f"The {capital(maker.noun())}", lambda: f"{maker.first_name()}'s {maker.pick(['song', 'tale', 'farewell', 'dance'])}", lambda: f"the ballad of {maker.first_name()}"])() for _ in range(maker.rng.randint(2, 4))])
            actions.add_kind(aw.PLAY, self.songs)
        guards = ("call_guards",) if self.brave is not None or actions.get("attack") or actions.get("flee") else ()
        actions.add_gestures(maker.rng.choices([0, 1, 2], [60, 25, 15])[0], guards)
        actions.add_things(maker.rng.choices([0, 1, 2], [50, 28, 22] if self.composer else [60, 25, 15])[0], ("move", "hide"))
        if not actions.all:
            self._equip_trade()
        if maker.chance(0.3):
            actions.add_kind(aw.REFUSE)
        maker.rng.shuffle(actions.all)

    def _listed(self, names: list[str]) -> list[str]:
        """The names with the user among them."""
        listed = [self.me, *names]
        self.maker.rng.shuffle(listed)
        return listed

    def _equip_trade(self) -> None:
        maker, persona, actions = self.maker, self.persona, self.actions
        while not persona.wares:
            ware = maker.ware(persona.style)
            persona.wares.append((ware, maker.price(persona.currency)))
        forms = [ware.bare if maker.chance(0.7) else ware.many for ware, _ in persona.wares]
        self.goods = [(form, ware, price) for form, (ware, price) in zip(forms, persona.wares) if sum(form in other or other in form for other in forms) == 1]
        if not self.goods:
            ware, price = persona.wares[0]
            persona.wares[:] = [(ware, price)]
            self.goods = [(ware.bare, ware, price)]
        self.prices_known = maker.chance(0.82)
        choices = [choice for choice, _, _ in self.goods]
        maker.rng.shuffle(choices)
        pays = maker.chance(0.45 if maker.held_out else 0.6)
        if not pays or maker.chance(0.8):
            item = actions.field(aw.ITEM, one_of(choices))
            extra: tuple[Field, ...] = ()
            if maker.chance(0.16):
                extra = (actions.field(aw.RECEIVER, one_of(self._listed(self.people[:2])), (item.name,)),)
            elif maker.chance(0.1):
                extra = (actions.field(aw.COUNT, {"type": "integer"}, (item.name,)),)
            actions.add("give", aw.GIVE.names, aw.GIVE.descriptions, (item, *extra), kind=aw.GIVE)
        if pays:
            by_price = self.prices_known and maker.chance(0.35) and all(price.split()[0].isdigit() for _, _, price in self.goods)
            paid = actions.field(aw.PRICE, {"type": "integer"}) if by_price else actions.field(aw.ITEM, one_of(choices))
            fields = () if maker.chance(0.12) else (paid,)
            actions.add("pay", aw.PAY.names, aw.PAY.descriptions, fields, kind=aw.PAY)
        if maker.chance(0.3):
            self.manners.append(aw.TRADE_MANNERS.pick(maker.rng, {}))

    def _equip_fight(self) -> None:
        maker = self.maker
        beasts = [self._beast() for _ in range(maker.rng.randint(0, 2))]
        self.targets = distinct([*self.people[: maker.rng.randint(0, 2)], *beasts])
        if maker.chance(0.85) or not self.targets:
            self.targets.append(self.me)
        maker.rng.shuffle(self.targets)
        which = maker.rng.random()
        if self.composer and maker.chance(0.4):
            which = 0.5  # both
        if which < 0.75:
            self.actions.add_kind(aw.ATTACK, self.targets)
        if which > 0.3:
            self.actions.add_kind(aw.FLEE)
        if self.actions.get("attack") and self.actions.get("flee"):
            self.brave = maker.chance(0.5)
            composer = self.composes(0.6)
            written = aw.BRAVE if self.brave else aw.TIMID
            self.manners.append(composer.manner(self.brave) if composer else written.pick(maker.rng, {}, maker.held_out and maker.chance(0.5)))

    def _beast(self) -> str:
        """An enemy; in training sometimes a word that means nothing, which has to be copied."""
        maker = self.maker
        if not maker.held_out and maker.chance(0.2):
            return maker.pick([maker.invented_noun, maker.noun])()
        return draw(maker, aw.BEASTS)

    def system(self) -> str:
        """The persona's prompt, in most cases with its wares."""
        wares = self.persona.wares
        if self.goods and not self.prices_known:
            self.persona.wares = []
        text = system_prompt(self.maker, self.persona)
        self.persona.wares = wares
        separator = "\n" if "\n" in text else " "
        return separator.join([text, *self.manners])

    # Turns

    def composes(self, probability: float) -> Composer | None:
        """The composer of training's requests, for a part of the draws; never for the evaluation."""
        return self.composer if self.composer and self.maker.chance(probability) else None

    def before(self, text: str) -> str:
        return self.prefix.replace("{text}", roughen(self.maker, text))

    def events(self, text: str) -> list[Message]:
        """An observation, now and then followed by a user's turn."""
        messages: list[Message] = [{"role": "observation", "content": text}]
        talked = any(isinstance(before, str) or any(m["role"] == "user" for m in before) for before, _, _ in self.turns)
        if self.maker.chance(0.2):
            messages.append({"role": "user", "content": self.maker.pick(["Do something!", "Did you see that?", "Watch out!", "What now?", "And now?", "Hey!", "Look!"])})
        elif not talked:
            messages.append({"role": "user", "content": FILLER})
        return messages

    def quiet(self, before: str | list[Message], answer: str, topic: str, refusal: bool = False) -> None:
        """An answer without a call; a refusal is a call if the persona can refuse."""
        refuse = self.actions.get("refuse") if refusal else None
        if refuse is None:
            self.turns.append((before, answer, Check("quiet", topic)))
            return
        check = Check("quiet", f"{topic} (can refuse)", calls={refuse.name: {}})
        self.turns.append((before, Spoken(answer, ((refuse.name, {}),)), check))
        if self.maker.chance(0.5):
            self.result(aw.REFUSE.done, aw.NO_OUTCOMES, {"userword": self.me}, "refuse")

    def tone(self, text: str) -> str:
        return dressed(self.maker, self.persona, text) if self.maker.chance(0.6) else text

    def call(self, before: str | list[Message], action: Action, arguments: dict[str, object], says: Phrases, slots: Slots, alternatives: dict[str, dict[str, object]] | None = None) -> None:
        text = self.tone(says.pick(self.rng, slots)) if self.maker.chance(0.45) else ""
        check = Check("call", action.key.split()[0], calls={action.name: arguments, **(alternatives or {})})
        self.turns.append((before, Spoken(text, ((action.name, arguments),)), check))

    def result(self, done: aw.Outcomes, failed: aw.Outcomes, slots: Slots, topic: str, answer_slots: Slots | None = None, then: Action | None = None, arguments: dict[str, object] | None = None) -> None:
        """A result, and the sentence that mentions it; after a payment another call."""
        result, answer, needed, good = self.outcomes.pick(done, failed, slots, answer_slots)
        before: list[Message] = [{"role": "result", "content": result}]
        answer = self.tone(answer) if self.maker.chance(0.2) else answer
        if then is not None and good and arguments is not None:
            check = Check("call", f"{then.key} after {topic}", needed, calls={then.name: arguments})
            self.turns.append((before, Spoken(answer, ((then.name, arguments),)), check))
            return
        self.turns.append((before, answer, Check("result", topic, needed) if needed else Check("talk", f"after {topic}")))

    # Trade

    def ware_slots(self, ware: Ware, price: str) -> dict[str, str]:
        slots = {"one": ware.one, "many": ware.many, "bare": ware.bare, "x": ware.bare, "userword": self.me, "currency": self.persona.currency}
        if self.prices_known:
            slots |= {"price": price, "offer": self.maker.price(price.split(" ", 1)[1])}
        return slots

    def buys(self) -> None:
        if not self.goods:
            return self.acts()
        good = self.maker.pick(self.goods)
        follows = self.last_ware is not None and self.maker.chance(0.4)
        if follows and self.last_ware:
            good = next((g for g in self.goods if g[1].bare == self.last_ware[0].bare), good)
            follows = good[1].bare == self.last_ware[0].bare and self.turns[-1][2].topic.startswith(("price", "haggle"))
        choice, ware, price = good
        slots = self.ware_slots(ware, price)
        self.last_ware = (ware, price)
        give, pay = self.actions.get("give"), self.actions.get("pay")
        extra: dict[str, object] = {}
        text = GOES_FOR_IT.pick(self.rng, {}) if follows else self._purchase(slots)
        if give and len(give.fields) > 1 and give.fields[1].schema["type"] == "integer":
            count = self.rng.randint(2, 12)
            said = words.NUMBER_WORDS[count] if self.maker.chance(0.4) else str(count)
            extra = {give.fields[1].name: 1}
            if self.maker.chance(0.6):
                composer = self.composes(0.5)
                some = {**slots, "n": said}
                text = composer.purchase_of_some(some, COUNT_REQUESTS) if composer else COUNT_REQUESTS.pick(self.rng, some, self.held_out)
                extra = {give.fields[1].name: count}
        elif give and len(give.fields) > 1:
            extra = {give.fields[1].name: self.me}
            if self.maker.chance(0.5) and not pay:
                choices = give.fields[1].schema["enum"]
                assert isinstance(choices, list)
                name = self.maker.pick([c for c in choices if c != self.me])
                text = TO_REQUESTS.pick(self.rng, {**slots, "name": name}, self.held_out)
                if composer := self.composes(0.4):
                    verb, what = self.maker.pick(["give", "hand", "sell", "bring", "send"]), self.maker.pick([ware.one, f"the {ware.bare}", f"one {ware.bare}"])
                    text = composer.order(f"{verb} {name} {what}" if self.maker.chance(0.4) else f"{verb} {what} to {name}", text)
                extra = {give.fields[1].name: name}
        given: dict[str, object] = {give.fields[0].name: choice, **extra} if give else {}
        before = self.before(self._lead(text))
        if pay:
            paid = {f.name: int(price.split()[0]) if f.schema["type"] == "integer" else choice for f in pay.fields}
            self.call(before, pay, paid, aw.PAY.says, slots)
            if self.maker.chance(0.9):
                self.result(aw.PAY.done, aw.PAY.failed, slots, "pay", None, give, given)
        elif give:
            self.call(before, give, given, aw.GIVE.says, slots)
        called = self.turns[-1][2].kind == "call"
        if give and called and self.turns[-1][2].calls.get(give.name) is not None and self.maker.chance(0.8):
            self.result(aw.GIVE.done, aw.GIVE.failed, slots, "give")

    def _purchase(self, slots: Slots) -> str:
        """A request for a ware."""
        composer = self.composes(0.66)
        return composer.purchase(slots) if composer else aw.GIVE.requests.pick(self.rng, slots, self.held_out)

    def buys_unknown(self) -> None:
        """The user wants something that is not in the list."""
        ware = self.maker.ware(self.persona.style)
        heads = {word for choice, w, _ in self.goods for word in (choice.split()[-1], w.bare.split()[-1], w.many.split()[-1])}
        if {ware.bare.split()[-1], ware.many.split()[-1]} & heads or any(ware.bare in w.bare or w.bare in ware.bare for _, w, _ in self.goods):
            return self.small_talk()
        slots = {"one": ware.one, "many": ware.many, "bare": ware.bare, "currency": self.persona.currency}
        text = self._purchase(slots)
        answers = trade.NOT_SOLD
        if self.goods and self.maker.chance(0.2):
            _, other, price = self.maker.pick(self.goods)
            slots |= {"other_many": other.many, "other_one": other.one, "other_price": price}
            answers = trade.NOT_SOLD_BUT if self.prices_known else trade.NOT_SOLD
        self.quiet(self.before(self._lead(text)), self.say(answers, **slots), "not for sale", refusal=True)

    def begs(self) -> None:
        """The user wants something for free."""
        choice, ware, price = self.maker.pick(self.goods)
        slots = self.ware_slots(ware, price)
        self.quiet(self.before(BEGS.pick(self.rng, slots, self.held_out)), self.tone(NOT_FREE.pick(self.rng, slots)), "for free", refusal=True)

    # Other actions

    def acts(self) -> None:
        """A request for an action of the list, other than trade and fights."""
        possible = [a for a in self.actions.all if a.key not in ("give", "pay", "refuse", "attack", "flee")]
        if not possible:
            return self.buys() if self.goods else self.small_talk()
        if self.composer:  # things are harder than the rest
            possible += [a for a in possible if a.key.startswith("thing")]
        action = self.maker.pick(possible)
        known = self.maker.chance(0.82)
        if action.key.startswith("gesture"):
            text = self._gesture_request(action.slots["verb"], action.slots["requests"])
            self.call(self.before(self._lead(text)), action, {}, GESTURE_SAYS, action.slots)
            if self.maker.chance(0.5):
                self.result(GESTURE_DONE, aw.NO_OUTCOMES, {**action.slots, "userword": self.me}, "gesture")
        elif action.key.startswith("thing"):
            self._acts_on_thing(action, known)
        elif action.key == "move":
            self._acts(action, aw.MOVE, self.places, known, lambda: self.maker.pick([self.maker.place, self.maker.spot])(), aw.NO_WAY)
        elif action.key == "play":
            self._acts(action, aw.PLAY, self.songs, known, lambda: f"the ballad of {self.maker.first_name()}", aw.NO_SONG)
        elif action.key == "follow":
            self._acts(action, aw.FOLLOW, [self.me, *self.people], known, self.maker.first_name, aw.NO_PERSON)

    def _gesture_request(self, verb: str, requests: str) -> str:
        text = self.maker.pick(requests.split(" / "))
        if composer := self.composes(0.25):
            return composer.order(verb.replace("ring ", "ring the ").replace("call ", "call the "), text)
        return text

    def _acts(self, action: Action, kind: aw.Kind, choices: list[str], known: bool, other, answers: Phrases) -> None:  # type: ignore[no-untyped-def]
        value = self.maker.pick(choices)
        if not known:
            value = other()
            if any(value.lower() in c.lower() or c.lower() in value.lower() for c in choices):
                return self.small_talk()
        slots = {"x": value, "the_x": with_article(value) if kind is not aw.FOLLOW else value, "userword": self.me}
        answer_slots: dict[str, str] | None = None
        failed = kind.failed
        if kind is aw.FOLLOW and value == self.me:
            asked = {**slots, "the_x": "me", "x": "me"}
            said = {**slots, "the_x": "you", "x": "you"}
            slots |= {"the_x": f"the {self.me}"}
            answer_slots, failed = said, aw.NO_OUTCOMES
        else:
            asked = said = slots
        text = kind.requests.pick(self.rng, asked, self.held_out)
        if composer := self.composes(0.5):
            text = composer.order(composer.pick(ACTS[kind.key], asked), text)
        before = self.before(self._lead(text))
        if not known:
            return self.quiet(before, self.tone(answers.pick(self.rng, said)), f"impossible {kind.key}", refusal=True)
        self.call(before, action, {action.fields[0].name: value}, kind.says, said)
        if self.maker.chance(0.8):
            self.result(kind.done, failed, slots, kind.key, answer_slots)

    def _acts_on_thing(self, action: Action, known: bool) -> None:
        choices = action.fields[0].schema["enum"]
        assert isinstance(choices, list)
        value = self.maker.pick(choices)
        if not known:
            value = self.maker.noun()
            if any(value in c or c in value for c in choices):
                return self.small_talk()
        slots = {**action.slots, "x": value, "x_a": a_or_an(value), "userword": self.me}
        before = self.before(self._lead(self._thing_request(slots)))
        if not known:
            return self.quiet(before, self.tone(aw.NO_THING.pick(self.rng, slots)), "impossible thing", refusal=True)
        self.call(before, action, {action.fields[0].name: value}, aw.THING_SAYS, slots)
        if self.maker.chance(0.75):
            self.result(aw.THING_DONE, aw.THING_FAILED, slots, "thing")

    def _thing_request(self, slots: Slots) -> str:
        text = aw.THING_REQUESTS.pick(self.rng, slots, self.held_out)
        if composer := self.composes(0.55):
            return composer.order(composer.pick(ACTS["thing"], slots), text)
        return text

    def absent(self) -> None:
        """A request for an action that is not in the list."""
        maker = self.maker
        draw_ = maker.rng.random()
        names = {a.key.removeprefix("thing ").removeprefix("gesture ") for a in self.actions.all}
        if draw_ < 0.4:
            verb, verbs, past = any_verb(maker)
            if verb in names:
                return self.small_talk()
            slots = {"verb": verb.replace("_", " "), "verbs": verbs, "past": past, "x": maker.noun()}
            text = self._thing_request(slots)
        elif draw_ < 0.6:
            verb, _, requests, _ = maker.pick(list(aw.GESTURES))
            if verb in names or verb == "wait":
                return self.small_talk()
            text = self._gesture_request(verb.replace("_", " "), requests)
        elif draw_ < 0.8 and not self.actions.get("move"):
            value = maker.pick([maker.place, maker.spot])()
            slots = {"x": value, "the_x": with_article(value)}
            text = aw.MOVE.requests.pick(self.rng, slots, self.held_out)
            if composer := self.composes(0.5):
                text = composer.order(composer.pick(ACTS["move"], slots), text)
        elif not self.actions.get("follow"):
            text = aw.FOLLOW.requests.pick(self.rng, {"x": "me", "the_x": maker.pick(["me", self.people[0]])}, self.held_out)
        else:
            return self.small_talk()
        self.quiet(self.before(self._lead(text)), self.tone(aw.NOT_ABLE.pick(self.rng, {})), "absent action", refusal=True)

    def mentions(self) -> None:
        """Something of the lists is mentioned, and nothing is requested."""
        listed: list[tuple[str, tuple[Ware, str] | Action]] = [(ware.bare, (ware, price)) for _, ware, price in self.goods]
        for action in self.actions.all:
            if action.key.startswith("thing"):
                choices = action.fields[0].schema["enum"]
                assert isinstance(choices, list)
                listed += [(choice, action) for choice in choices]
        if not listed:
            return self.small_talk()
        x, source = self.maker.pick(listed)
        slots = self.slots(x=x, x_a=a_or_an(x), role=self.maker.pick(list(words.RELATIONS)))
        text = aw.MENTIONS.pick(self.rng, slots, self.held_out)
        if composer := self.composes(0.5):
            if isinstance(source, Action):
                text = composer.no_order({**source.slots, "x": x, "x_a": a_or_an(x)})
            else:
                text = composer.no_purchase(self.ware_slots(*source))
        answers = aw.KNOWS_NO_MORE if text.endswith("?") else aw.HEARS_MENTION
        self.quiet(self.before(text), self.tone(answers.pick(self.rng, slots)), "mention")

    # Fights

    def event(self) -> None:
        """Something harmless happens."""
        slots = {**self.outcomes.common(), "userword": self.me, "an_animal": a_or_an(self.maker.pick(words.ANIMALS))}
        text = aw.QUIET_EVENTS.pick(self.rng, slots, self.held_out)
        answers = aw.HEARS_EVENT if self.maker.chance(0.7) else company.FILLERS
        self.quiet(self.events(text), self.tone(answers.pick(self.rng, self.slots())), "event")

    def provoked(self) -> None:
        """A threat or an attack: the persona fights or flees."""
        attack, flee = self.actions.get("attack"), self.actions.get("flee")
        by_user = self.maker.chance(0.5)
        target = self.me if by_user or not self.targets else self.maker.pick(self.targets)
        if not by_user and self.maker.chance(0.15):
            target = self._beast()
        shown = target if target[:1].isupper() else (f"the {target}" if target == self.me or self.maker.chance(0.5) else a_or_an(target))
        slots = {"x": target, "the_x": shown, "userword": self.me, "place": self.maker.building(), "a_noun": a_or_an(self.maker.noun())}
        composer = self.composes(0.7)
        before: str | list[Message]
        if by_user:
            before = self.before(composer.threat(self.slots()) if composer else aw.THREATS.pick(self.rng, self.slots(), self.held_out))
        else:
            before = self.events(composer.attack(slots) if composer else aw.ATTACKS.pick(self.rng, slots, self.held_out))
        fights = attack is not None and target in self.targets and (self.brave is not False or flee is None)
        if not fights and flee is None:
            answers = next(e for e in talk.EXCHANGES if e.key == "threat").answers
            return self.quiet(before, self.say(answers), "threat without an action")
        slots["the_x"] = target if target[:1].isupper() else f"the {target}"
        if fights and attack:
            self.call(before, attack, {attack.fields[0].name: target}, aw.ATTACK.says, slots)
        elif flee:
            self.call(before, flee, {}, aw.FLEE.says, slots)
        if self.maker.chance(0.75):
            kind = aw.ATTACK if fights else aw.FLEE
            self.result(kind.done, kind.failed, slots, kind.key)

    def urged(self) -> None:
        """Somebody wants the persona to fight or to flee, without a reason."""
        if self.actions.get("attack") and (self.maker.chance(0.7) or not self.actions.get("flee")):
            target = self.maker.pick([t for t in self.targets if t != self.me] or [self.maker.first_name()])
            slots = {"x": target, "the_x": with_article(target)}
            text = aw.ATTACK.requests.pick(self.rng, slots, self.held_out)
            if composer := self.composes(0.35):
                text = composer.order(composer.pick(ACTS["attack"], slots), text)
            self.quiet(self.before(text), self.tone(aw.NO_VIOLENCE.pick(self.rng, slots)), "unprovoked attack", refusal=True)
        elif self.actions.get("flee"):
            text = aw.FLEE.requests.pick(self.rng, {}, self.held_out)
            if composer := self.composes(0.35):
                text = composer.order(composer.pick(ACTS["flee"], {}), text)
            self.quiet(self.before(text), self.tone(aw.NO_FLIGHT.pick(self.rng, {})), "unprovoked flight", refusal=True)

    def peaceful(self) -> None:
        """Talk about fights that starts none; only in training."""
        if self.composer is None:
            return self.small_talk()
        text = self.composer.peace()
        answers = aw.KNOWS_NO_MORE if text.endswith("?") else ANSWERS_TALK
        self.quiet(self.before(text), self.tone(answers.pick(self.rng, {})), "peace")

    # Ordinary talk

    def add(self, user: str, reply: str, check: Check = Check("talk", "talk")) -> None:
        """A turn of ordinary talk: nothing is called."""
        self.turns.append((self.prefix.replace("{text}", user), reply, Check("quiet", f"{check.topic} talk", check.needed)))

    def exchange(self, exchange: talk.Exchange) -> None:
        if exchange.key == "threat":
            return self.provoked() if self.targets else self.small_talk()
        if exchange.key == "story" and self.songs:
            return self.small_talk()  # "Sing me a song."
        super().exchange(exchange)

    def buy(self) -> None:
        self.buys() if self.goods else super().price()

    def have(self) -> None:
        self.price()

    def price(self) -> None:
        if self.goods and not self.prices_known:
            return self.small_talk()
        super().price()

    def stock(self) -> None:
        if self.goods and not self.prices_known:
            return self.small_talk()
        super().stock()

    def haggle(self) -> None:
        self.price() if not self.last_ware or not self.prices_known else super().haggle()

    def unknown_ware(self) -> None:
        self.buys_unknown() if self.goods else self.small_talk()

    def statement(self) -> None:
        """As in the tavern, without requests: they may be for actions."""
        while True:
            count = len(self.turns)
            super().statement()
            if self.turns[-1][2].topic != "request talk" or len(self.turns) == count:
                return
            self.turns.pop()

    def acting_step(self) -> None:
        fights = bool(self.actions.get("attack") or self.actions.get("flee"))
        acts = any(a.key not in ("give", "pay", "refuse", "attack", "flee") for a in self.actions.all)
        moves = [self.step, self.buys, self.acts, self.provoked, self.urged, self.buys_unknown, self.begs, self.absent, self.mentions, self.event, self.peaceful]
        goods = bool(self.goods)
        weights = [30, 26 * goods, 26 * acts, 16 * fights, 9 * fights, 8 * goods, 2.5 * goods, 5, 6, 5, 0.0]
        if self.composer:  # training has more of what is hard
            weights = [26, 32 * goods, 30 * acts, (26 if self.brave is None else 44) * fights, 8 * fights, 9 * goods, 3 * goods, 8, 6.5, 5, 6 * fights]
        if self.pending is not None and self.maker.chance(0.6):
            return self.answers_pending()
        self.rng.choices(moves, weights)[0]()


ACTS = {
    "thing": Phrases("{verb} the {x}\n{verb} the {x}\n{verb} [the|this|that|my|your|our] {x}\ntake the {x} and {verb} it"),
    "move": Phrases("[go|go|go over|walk|come|travel|hurry|run|ride|move|return|make your way|set out|get|come with me|follow me] to {the_x}\n[take me|lead me|bring me|guide me|show me the way|come along] to {the_x}\n[visit|go and see|look for me at|wait for me at|meet me at|be at|enter] {the_x}"),
    "follow": Phrases("[follow|go with|stay with|walk with|join|keep close to|keep up with|go after|travel with|come with|walk behind|stay near|not leave|stay beside] {the_x}"),
    "play": Phrases("[play|sing|perform|let us hear|give us] {x}"),
    "attack": Phrases("[attack|kill|fight|hit|beat|hurt|strike|slay|punch|stab|shoot|wound|get rid of|finish] {the_x}"),
    "flee": Phrases("[run|run away|flee|hide|escape|leave|get away|go away from here|save yourself|run for it|hide somewhere|disappear]"),
    "goto": Phrases("[go|go|drive|move|come|travel|navigate|roll|return|drive over|go over|get|ride|proceed] to the {place}\n[visit|enter|check|go and see|find your way to|meet me in|be in|have a look at] the {place}"),
    "fetch": Phrases("[fetch|bring|get|find|give|hand] me {the_item}\n[fetch|bring|get|pick up|find|grab] {the_item}[| and bring it here]"),
    "deliver": Phrases("[bring|take|carry|deliver|move|transport|get|send] {the_item} to {dest}\n[bring|give|hand|get] {dest} {the_item}\n[drop off|leave] {the_item} at {dest}"),
    "follow robot": Phrases("[follow|go with|stay with|walk behind|come with|keep close to|drive behind|go after|stay near|join] {person}"),
    "clean": Phrases("[clean|vacuum|mop|tidy|tidy up|wash|wipe|clean up|dust|polish] the {place}\n[clean|mop|wash|wipe] the floor [of|in] the {place}\nmake the {place} [clean|tidy|shine]"),
    "wait": Phrases("[wait|pause|rest|stay here|stand still|hold still|do nothing|sleep] for {duration}\nwait {duration}"),
    "charge": Phrases("[charge|recharge|charge your battery|go to your dock|load your battery|return to your charger|go and charge|get some power|drive to the charging station]"),
}
"""What orders of training order."""
GOES_FOR_IT = Phrases("I'll take it.\nDeal.\nAgreed, I'll take it.\nThen I'll buy it.\nOkay, give it to me.\nI'll buy it.\nGood, I take it.\nThat is fine. I'll take it.\nYes, please.\nAll right, I'll have it.")
COUNT_REQUESTS = Phrases("""
    I'll take {n} {many}.
    Give me {n} {many}, please.
    {N} {many}, please.
    I need {n} {many}.
    I'd like to buy {n} {many}.
    ~ Could I have {n} {many}?
    Sell me {n} {many}.
    I'll have {n} {many}.
    I want {n} {many}.
    Can I have {n} {many}?
    Could I get {n} {many}?
    May I have {n} {many}?
    Let me have {n} {many}.
    I'll buy {n} {many}.
    Pack {n} {many} for me.
    {N} of your {many}, please.
    I take {n} {many}.
""")
TO_REQUESTS = Phrases("""
    Give {one} to {name}.
    {Name} needs {one}. Give it to {name}.
    Please hand {name} the {bare}.
    Give {name} {one}.
    {One} for {name}, please.
    ~ Pass the {bare} to {name}.
    Hand the {bare} to {name}.
    Give the {bare} to {name}.
    Bring {name} {one}.
    Bring {one} to {name}.
    The {bare} is for {name}.
    Sell {name} {one}.
    {Name} wants {one}.
    {Name} wants to buy {one}.
    Let {name} have {one}.
    {Name} gets {one}.
    I want {name} to have the {bare}.
    Sell {one} to {name}.
""")
BEGS = Phrases("""
    Give me {one} for free.
    I want {one} for nothing.
    Can I have {one} without paying?
    Give me the {bare} as a gift.
    ~ I have no money. Give me {one} anyway.
    I won't pay for the {bare}. Just give it to me.
    Let me have the {bare} for free.
    I have no money, but I want {one}.
    I have no coins. Give me the {bare}.
    I have nothing to pay with. Give me {one}.
    I can't pay. Give me {one} anyway.
    I am poor. Give me {one} for nothing.
    My purse is empty. Let me have {one}.
    I don't want to pay. Give me {one} anyway.
    Could I get {one} without money?
    Let me have {one} as a gift.
    Make me a gift: {one}.
    I won't give you a coin. Hand over the {bare} anyway.
    {One}, but I have no money.
    I'd like {one}, but I can't pay.
    Give me {one}. I pay nothing.
    Without money, can I have {one}?
    I want the {bare}, but I have no money.
    Can you give me {one} for free?
    {One} for free, please.
""")
NOT_FREE = Phrases("""
    Nothing is free here.
    No. You must pay for the {bare}.
    I don't give {one} away.
    For free? No.
    Without money you get nothing.
    No money, no {bare}.
    {One} costs {price}, and that is that.
""")
GESTURE_SAYS = Phrases("Of course.\nIf you like.\nVery well.\nAs you wish.\nLook.\nGladly.\nAll right.\nWatch.")
GESTURE_DONE = aw.Outcomes("""
    You {past}. => I {past}. / I {past} for you. / There, I {past}. => {past}
    The {userword} smiles. => You smile. Good. / I am glad that you smile. => smile
    The {userword} laughs. => Don't laugh at me. / You laugh? => laugh
    OK => There. / Done. =>
""")


ACTS_OF_ROBOTS = {
    id(phrases): ACTS[key]
    for phrases, key in (
        (rw.GOTO, "goto"), (rw.FETCH, "fetch"), (rw.DELIVER, "deliver"), (rw.FOLLOW, "follow robot"), (rw.CLEAN, "clean"), (rw.WAIT, "wait"), (rw.CHARGE, "charge"),
    )
}
"""By the identity of the written phrases."""


class ActingRobot(Robot):
    """A robot with actions."""

    def __init__(self, maker: Maker) -> None:
        super().__init__(maker)
        self.takes_this = False
        self.lists_places = True
        self.composer = None if maker.held_out else Composer(maker, {"self": self.name, "trade": "robot"})
        self.me = maker.pick(["user", "operator", "customer", "visitor", "player", "boss"])
        self.people = distinct(self.people)
        if len(self.people) < 2:
            self.people = [self.people[0], self.people[0]]
        self.actions = Actions(maker)
        self.outcomes = Outcomes(maker, "coins")
        self.duration = "none"
        if not self.items and maker.chance(0.6):
            self.items = self._items()
        self.items = distinct(self.items)
        self._equip()

    def _equip(self) -> None:
        maker, actions = self.maker, self.actions
        chances = {"goto": 0.85, "fetch": 0.6, "deliver": 0.6, "follow": 0.4, "clean": 0.45, "wait": 0.45, "stop": 0.4, "charge": 0.4}
        people = [self.me, *dict.fromkeys(self.people)]
        for key, chance in chances.items():
            if not maker.chance(chance):
                continue
            item = one_of(self.items) if self.items else {"type": "string"}
            fields: tuple[Field, ...] = ()
            if key in ("goto", "clean"):
                fields = (actions.field(aw.PLACE, one_of(self.places)),)
            elif key == "fetch":
                fields = (actions.field(aw.ITEM, item),)
            elif key == "deliver":
                first = actions.field(aw.ITEM, item)
                fields = (first, actions.field(aw.PLACE, one_of([*self.places, *dict.fromkeys(self.people)]), (first.name,)))
            elif key == "follow":
                fields = (actions.field(aw.PERSON, one_of(people)),)
            elif key == "wait":
                self.duration = maker.pick(["none", "seconds", "minutes", "text"])
                if self.duration == "seconds":
                    fields = (actions.field(aw.SECONDS, {"type": maker.pick(["integer", "number"])}),)
                elif self.duration == "minutes":
                    fields = (Field("minutes", {"type": "integer"}),)
                elif self.duration == "text":
                    fields = (actions.field((["duration", "time", "how_long"], ["period"]), {"type": "string"}),)
            actions.add(key, aw.ROBOT_NAMES_OF[key], aw.ROBOT_DESCRIPTIONS[key], fields)
        actions.add_gestures(maker.rng.choices([0, 1], [75, 25])[0], ("wait", "sleep"))
        actions.add_things(maker.rng.choices([0, 1, 2], [65, 25, 10])[0], ("clean", "move", "wash", "hold", "brush", "drop"))
        if not actions.all:
            actions.add("goto", aw.ROBOT_NAMES_OF["goto"], aw.ROBOT_DESCRIPTIONS["goto"], (actions.field(aw.PLACE, one_of(self.places)),))
        maker.rng.shuffle(actions.all)

    def ask(self, phrases: Phrases, **slots: str) -> str:
        """A command; in training often composed."""
        acts = ACTS_OF_ROBOTS.get(id(phrases))
        if self.composer and acts and self.maker.chance(0.4):
            plain = phrases.pick(self.rng, {"robot": self.name, **slots})
            text = self.composer.order(self.composer.pick(acts, slots), plain)
            return roughen(self.maker, self._without_article(text))
        return super().ask(phrases, **slots)

    def prompt(self) -> str:
        maker, rng = self.maker, self.rng
        lead = aw.ROBOT_LEADS.pick(rng, {"a_robot": a_or_an(maker.pick(rw.KINDS)), "robot": self.name, "site": maker.pick(rw.SITES)})
        self.says_name = self.name in lead
        lines: list[str] = []
        if maker.chance(0.3):
            lines.append(rw.PLACES_LINE.pick(rng, {"list": ", ".join(self.places), "list_and": ", ".join(self.places)}))
        if self.says_here:
            lines.append(rw.STATE_LINE.pick(rng, {"here": self.here}))
        if self.says_battery:
            lines.append(rw.BATTERY_LINE.pick(rng, {"battery": self.battery}))
        if maker.chance(0.4):
            lines.append(aw.ROBOT_MANNERS.pick(rng, {}))
        rng.shuffle(lines)
        separator = "\n" if maker.chance(0.15) else " "
        return separator.join([lead, *lines])

    def reply(self, user: str, topic: str, action: str, target: str, say: str, item: str | None = None) -> None:
        """Called by the robot's moves with the action as it is without a list of actions."""
        self.last = {"action": action, "target": target}
        if action in ("say", "refuse"):
            self.turns.append((user, say, Check("quiet", topic)))
            return
        chosen = self.actions.get(action)
        if chosen is None:
            self.last = {}
            self.turns.append((user, aw.NOT_ABLE.pick(self.rng, {}), Check("quiet", "absent action")))
            return
        values: list[object] = [target]
        if action == "deliver":
            values = [item, target]
        elif action == "follow":
            values = [self.me if target == "you" else target]
        elif action == "wait" and self.duration in ("seconds", "minutes"):
            values = [int(re.findall(r"\d+", target)[0])]
        arguments = {f.name: value for f, value in zip(chosen.fields, values)}
        text = say if self.maker.chance(0.5) else ""
        check = Check("call", f"robot {action}", calls={chosen.name: arguments})
        self.turns.append((user, Spoken(text, ((chosen.name, arguments),)), check))
        if self.maker.chance(0.75):
            x = item if action == "deliver" and item else target
            slots = {"x": x, "y": target, "the_x": f"the {self.me}" if target == "you" else x}
            answer_slots = {**slots, "the_x": "you", "x": "you"} if target == "you" else None
            failed = aw.NO_OUTCOMES if target == "you" else aw.ROBOT_FAILED[action]
            self.result(aw.ROBOT_DONE[action], failed, slots, f"robot {action}", answer_slots)

    def result(self, done: aw.Outcomes, failed: aw.Outcomes, slots: Slots, topic: str, answer_slots: Slots | None = None) -> None:
        result, answer, needed, _ = self.outcomes.pick(done, failed, slots, answer_slots)
        result, answer = self._without_article(result), self._without_article(answer)
        check = Check("result", topic, needed) if needed else Check("talk", f"after {topic}")
        self.turns.append(([{"role": "result", "content": result}], answer, check))

    def wait(self) -> None:
        if self.duration in ("none", "text"):
            if self.duration == "none":
                return super().wait()
            duration = self.maker.pick(rw.DURATIONS).replace("{n}", str(self.rng.randint(2, 60)))
        else:
            duration = f"{self.rng.randint(2, 60)} {self.duration}"
        self.reply(self.ask(rw.WAIT, duration=duration), "wait", "wait", duration, self.phrase("wait", duration=duration))

    def question(self) -> None:
        key = self.maker.pick(["hello", "thanks", "name", "battery", "where", "can", "unknown"])
        known = {"name": self.says_name, "battery": self.says_battery, "where": self.says_here}.get(key, True)
        said = self.phrase(key if known else "unknown", battery=self.battery, here=self.here)
        if key == "can":
            said = self.maker.pick(["I can use my actions.", "I do what you order, as far as I can.", "I carry out orders."])
        if not self.says_name and self.name in said:
            said = "Hello."
        self.reply(self.ask(rw.QUESTIONS[key]), f"say {key}", "say", "you", said)

    def _thing_request(self, slots: Slots) -> str:
        text = aw.THING_REQUESTS.pick(self.rng, slots, self.maker.held_out)
        if self.composer and self.maker.chance(0.5):
            return self.composer.order(self.composer.pick(ACTS["thing"], slots), text)
        return text

    def generic(self) -> None:
        """An action that only this robot has."""
        possible = [a for a in self.actions.all if a.key.startswith(("gesture", "thing"))]
        if not possible:
            return self.question()
        action = self.maker.pick(possible)
        arguments: dict[str, object] = {}
        slots = dict(action.slots)
        if action.key.startswith("gesture"):
            text, says, done, failed = self.maker.pick(action.slots["requests"].split(" / ")), GESTURE_SAYS, GESTURE_DONE, aw.NO_OUTCOMES
        else:
            choices = action.fields[0].schema["enum"]
            assert isinstance(choices, list)
            value = self.maker.pick(choices)
            if self.maker.chance(0.15):
                other = self.maker.noun()
                if not any(other in c or c in other for c in choices):
                    slots |= {"x": other, "x_a": a_or_an(other)}
                    user = roughen(self.maker, self._thing_request(slots))
                    self.last = {}
                    self.turns.append((user, aw.NO_THING.pick(self.rng, slots), Check("quiet", "impossible thing")))
                    return
            slots |= {"x": value}
            arguments = {action.fields[0].name: value}
            text, says, done, failed = self._thing_request(slots), aw.THING_SAYS, aw.THING_DONE, aw.THING_FAILED
        self.last = {}
        spoken = says.pick(self.rng, slots) if self.maker.chance(0.5) else ""
        key = action.key.split()[0]
        self.turns.append((roughen(self.maker, text), Spoken(spoken, ((action.name, arguments),)), Check("call", key, calls={action.name: arguments})))
        if self.maker.chance(0.6):
            self.result(done, failed, {**slots, "userword": self.me}, key)

    def acting_step(self) -> None:
        keys = ["goto", "fetch", "deliver", "clean", "follow", "wait", "stop", "charge"]
        moves = [self.goto, self.fetch, self.deliver, self.clean, self.follow, self.wait, self.stop, self.charge, self.impossible, self.question, self.generic]
        base = [22, 16, 18, 11, 7, 7, 5, 6]
        weights = [w if self.actions.get(k) else (0.18 if self.composer else 0.12) * w for w, k in zip(base, keys)]
        generic = any(a.key.startswith(("gesture", "thing")) for a in self.actions.all)
        self.rng.choices(moves, [*weights, 5, 14, 22 * generic])[0]()


def action_dialogue(maker: Maker) -> Dialogue:
    """A persona or a robot with actions, and a short conversation."""
    rng = maker.rng
    turns = rng.choices([1, 2, 3, 4, 6, 8, 14], [12, 16, 20, 20, 16, 12, 4])[0]
    if maker.chance(0.3):
        robot = ActingRobot(maker)
        system = robot.prompt()
        while len(robot.turns) < turns:
            robot.acting_step()
        return Dialogue(system, robot.turns, robot.actions.tools())
    persona = ActingPersona(maker)
    system = persona.system()
    if maker.chance(0.2):
        persona.exchange(talk.GREETING)
    while len(persona.turns) < turns:
        persona.acting_step()
    return Dialogue(system if maker.chance(0.97) else "", persona.turns, persona.actions.tools())
