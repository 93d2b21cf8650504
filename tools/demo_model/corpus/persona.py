"""Personas and the system prompts that describe them."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from . import words
from .facts import Fact
from .facts_small import KIND_WEIGHTS, KINDS, topic
from .frames import Free, sample_frame
from .grammar import Phrases, a_or_an, capital, listing
from .names import Maker, Ware

TONES: dict[str, list[str]] = {
    "cheerful": ["cheerful", "happy", "in high spirits", "merry", "in a good mood", "friendly", "jolly", "warm and friendly", "kind", "excited"],
    "grumpy": ["grumpy", "in a bad mood", "short-tempered", "gruff", "annoyed", "angry", "irritable", "bitter", "rude", "stern"],
    "weary": ["tired", "weary", "exhausted", "sleepy", "worn out", "bored"],
    "nervous": ["nervous", "anxious", "scared", "jumpy", "worried", "shy", "afraid"],
    "proud": ["proud", "boastful", "vain", "arrogant", "very sure of yourself", "haughty"],
    "sad": ["sad", "gloomy", "lonely", "melancholic", "heartbroken", "in mourning"],
    "suspicious": ["suspicious", "wary", "distrustful", "secretive", "careful", "mistrustful of strangers"],
    "calm": ["calm", "patient", "thoughtful", "quiet", "gentle", "wise", "polite", "peaceful"],
}


@dataclass(frozen=True)
class Topic:
    slots: dict[str, str]
    sentence: str
    needed: tuple[str, ...]
    questions: Phrases


@dataclass
class Persona:
    """A character, with all facts of its prompt."""

    name: str
    trade: str
    style: str
    place: str
    pronoun: str
    tone: str | None = None
    mood: str = ""
    wares: list[tuple[Ware, str]] = field(default_factory=list)
    facts: list[Fact] = field(default_factory=list)
    topics: list[Topic] = field(default_factory=list)
    free: list[Free] = field(default_factory=list)
    currency: str = "silver"

    def slots(self) -> dict[str, str]:
        return {"self": self.name, "trade": self.trade, "a_trade": a_or_an(self.trade), "home": self.place}

    def fact(self, key: str) -> Fact | None:
        return next((fact for fact in self.facts if fact.kind.key == key), None)


def sample_persona(maker: Maker, facts_max: int = 6) -> Persona:
    """A persona with some wares and facts; about one in eight is bare."""
    rng = maker.rng
    style, trade = maker.trade()
    persona = Persona(maker.person(), trade, style, maker.place(), maker.pick(["he", "she"]), currency=maker.currency())
    if maker.chance(0.55):
        persona.tone = maker.pick(list(TONES))
        persona.mood = maker.pick(TONES[persona.tone])
    for _ in range(rng.choices([0, 1, 2, 3, 4, 5], [18, 28, 22, 16, 10, 6])[0]):
        _add_ware(maker, persona)
    for _ in range(rng.randint(0, facts_max)):
        _add_fact(maker, persona)
    for _ in range(rng.choices([0, 1, 2, 3], [60, 24, 12, 4])[0]):
        found = Topic(*topic(maker))
        if all(found.slots["subject"] != t.slots["subject"] for t in persona.topics):
            persona.topics.append(found)
    for _ in range(rng.choices([0, 1, 2, 3, 4], [40, 25, 18, 11, 6])[0]):
        free = sample_frame(maker, persona.place)
        if all(free.frame is not other.frame for other in persona.free):
            persona.free.append(free)
    return persona


def _add_ware(maker: Maker, persona: Persona) -> None:
    ware = maker.ware(persona.style)
    if any(ware.bare in w.bare or w.bare in ware.bare or w.many == ware.many for w, _ in persona.wares):
        return
    currency = persona.currency if maker.chance(0.8) else maker.currency()
    persona.wares.append((ware, maker.price(currency)))


def _add_fact(maker: Maker, persona: Persona) -> None:
    kind = maker.rng.choices(KINDS, KIND_WEIGHTS)[0]
    limit = 2 if kind.key == "relation" else 1
    same = [fact for fact in persona.facts if fact.kind.key == kind.key]
    fact = Fact(kind, kind.sample(maker))
    if len(same) < limit and all(other.slots.get("role") != fact.slots.get("role") or "role" not in fact.slots for other in same):
        persona.facts.append(fact)


IDENTITY = Phrases("""
    You are {self}, the {trade} of {home}.
    You are {self}, the {trade} of {home}.
    You are {self}, {a_trade} in {home}.
    You are {self}, {a_trade} from {home}.
    You are {self}. You are {a_trade} in {home}.
    Your name is {self}. You are the {trade} of {home}.
    Your name is {self} and you are {a_trade} in {home}.
    You are the {trade} of {home}. Your name is {self}.
    You are {a_trade} named {self}. You live in {home}.
    You are {a_trade} in {home}, and your name is {self}.
    You are {a_trade} called {self} and you live in {home}.
    You are {self} and work as {a_trade} in {home}.
    You play {self}, {a_trade} in {home}.
    Play the part of {self}, the {trade} of {home}.
    You are the {mood_adjective} {trade} {self} of {home}.
    You are {self}, a {mood_adjective} {trade} in {home}.
    You are {self}, {a_trade} in the town of {home}.
    You are {self}, {a_trade} in the village of {home}.
""")
MOOD = Phrases("""
    You are {mood}.
    You are {mood} today.
    You feel {mood}.
    Today you are {mood}.
    You are always {mood}.
    You sound {mood}.
    You seem {mood} to everyone you meet.
    Be {mood}.
""")
ONE_WARE = Phrases("""
    {One} costs {price}.
    {One} costs {price}.
    {One} is {price}.
    You sell {one} for {price}.
    You sell {many} for {price}.
    You sell {many} for {price} each.
    You ask {price} for {one}.
    Your {many} cost {price} each.
    The price of {one} is {price}.
    You charge {price} for {one}.
    You want {price} for {one}.
""")
TWO_WARES = Phrases("""
    {One} costs {price}, {other} {number}.
    {One} costs {price}, {other} costs {number}.
    You sell {many} at {price} and {other_many} at {number}.
    You sell {one} for {price} and {other} for {number}.
    {One} is {price}, {other} {number}.
""")
"""The second price leaves out the coin."""
WARES_ALL = Phrases("""
    You sell {list_for}.
    Your wares: {list_paren}.
    You sell: {list_paren}.
    Your prices are: {list_is}.
    You sell {list_at}.
    For sale: {list_colon}.
    Your goods and prices: {list_paren}.
""")
BEHAVIOUR = Phrases("""
    Answer in one or two [short |]sentences.
    You sit in the tavern. Answer in one or two sentences, in your own voice, without quotation marks.
    Answer in your own voice.
    You speak in short, plain sentences.
    You never raise your voice.
    You talk fast.
    You laugh loudly.
    You like to answer with a question.
    Keep your answers short.
    Speak briefly.
    Stay in character.
    Never break character.
    Answer only with what you know.
    You speak in short sentences.
    If you do not know something, say so.
    Talk like a real person.
    You talk with travellers in the tavern.
    You are talking to a stranger.
    A stranger walks up to you.
    You sit in the tavern and talk with the other guests.
    It is [a rainy evening|a cold night|a bright morning|late|market day|a quiet afternoon].
    The tavern is [full|loud|nearly empty|warm] tonight.
""")
SCENERY = Phrases("""
    You wear {a_colour} {garment}.
    You have [grey|red|black|long|short|curly|no] hair.
    You have a [loud|soft|deep|rough|high] voice.
    You [limp|squint|laugh a lot|hum to yourself|cough often|never sit still|rarely smile].
    You are [tall|short|very strong|thin|round|missing a tooth].
    You have lived in {home} [all your life|for years|since the war].
    You work from morning to night.
    Everybody in {home} knows you.
    You [rarely|seldom] leave {home}.
    You are good at your trade.
    You took over the business from your parents.
""")

_VERBS = {"are": "is", "have": "has", "do": "does", "miss": "misses", "turned": "turned"}
_PAST = {"heard", "lost", "grew", "borrowed", "turned", "took", "lived", "rarely", "seldom", "only", "always", "still"}


def third_person(text: str, name: str, pronoun: str) -> str:
    """Converts a second-person description to the third person, with the name ``name``."""
    possessive = {"he": "his", "she": "her"}[pronoun]

    def verb(match: re.Match[str]) -> str:
        subject = capital(pronoun) if match[1] == "You" else pronoun
        word = match[2]
        if word in _VERBS:
            word = _VERBS[word]
        elif word not in _PAST and not word.endswith("ed") and word not in ("can", "could", "would", "will"):
            word += "es" if word.endswith(("sh", "ch", "ss")) else "s"
        return f"{subject} {word}"

    text = re.sub(r"\b(You|you) (\w+)", verb, text)
    text = re.sub(r"\bYour\b", capital(possessive), text)
    text = re.sub(r"\byour\b", possessive, text)
    text = re.sub(r"\byourself\b", {"he": "himself", "she": "herself"}[pronoun], text)
    return re.sub(rf"^{capital(pronoun)}\b", name, text)


def _ware_lists(persona: Persona) -> dict[str, str]:
    wares = persona.wares
    return {
        "list_for": listing([f"{w.one} for {p}" for w, p in wares]),
        "list_at": listing([f"{w.many} at {p}" for w, p in wares]),
        "list_is": ", ".join(f"{w.one} is {p}" for w, p in wares),
        "list_paren": ", ".join(f"{w.bare} ({p})" for w, p in wares),
        "list_colon": ", ".join(f"{w.bare}: {p}" for w, p in wares),
    }


def _scene_slots(maker: Maker, persona: Persona) -> dict[str, str]:
    slots = persona.slots()
    slots["a_colour"] = a_or_an(maker.pick(words.COLOURS))
    slots["garment"] = maker.pick(["coat", "hat", "apron", "scarf", "cloak", "shirt", "hood", "dress", "vest"])
    if persona.mood and " " not in persona.mood:
        slots["mood_adjective"] = persona.mood
    return slots


def system_prompt(maker: Maker, persona: Persona) -> str:
    """The persona's prompt: prose in most cases, else a list, else prose in the third person."""
    draw = maker.rng.random()
    if draw < 0.16:
        return _as_list(maker, persona)
    sentences = _sentences(maker, persona)
    if draw < 0.25:
        described = " ".join(third_person(s, persona.name, persona.pronoun) if i == 0 or maker.chance(0.35) else third_person(s, capital(persona.pronoun), persona.pronoun) for i, s in enumerate(sentences))
        lead = maker.pick(["", "", f"You are {persona.name}. ", f"Play {persona.name}. ", f"Speak as {persona.name}. ", "Play this character: ", "Your character: "])
        return lead + described
    separator = "\n" if maker.chance(0.08) else " "
    return separator.join(sentences)


def _ware_sentences(maker: Maker, persona: Persona) -> list[str]:
    rng = maker.rng
    if len(persona.wares) == 2 and maker.chance(0.5):
        (first, first_price), (second, second_price) = persona.wares
        number, _, currency = second_price.partition(" ")
        if first_price.partition(" ")[2] == currency:
            return [TWO_WARES.pick(rng, {"one": first.one, "many": first.many, "price": first_price, "other": second.one, "other_many": second.many, "number": number})]
    if len(persona.wares) > 1 and maker.chance(0.45):
        return [WARES_ALL.pick(rng, _ware_lists(persona))]
    return [ONE_WARE.pick(rng, {"one": w.one, "many": w.many, "price": p}) for w, p in persona.wares]


def _sentences(maker: Maker, persona: Persona) -> list[str]:
    rng = maker.rng
    slots = _scene_slots(maker, persona)
    identity = IDENTITY.pick(rng, slots)
    mood_said = "mood_adjective" in slots and f"{persona.mood} {persona.trade}" in identity
    groups: list[list[str]] = []
    if persona.mood and not mood_said:
        groups.append([MOOD.pick(rng, {"mood": persona.mood})])
    if persona.wares:
        groups.append(_ware_sentences(maker, persona))
    groups += [[fact.kind.prompts.pick(rng, fact.slots)] for fact in persona.facts]
    groups += [[topic.sentence] for topic in persona.topics]
    groups += [[free.frame.prompts.pick(rng, free.slots)] for free in persona.free]
    groups += [[SCENERY.pick(rng, slots)] for _ in range(rng.choices([0, 1, 2], [60, 28, 12])[0])]
    rng.shuffle(groups)
    sentences = [sentence for group in groups for sentence in group]
    behaviour = [BEHAVIOUR.pick(rng, {}) for _ in range(rng.choices([0, 1, 2], [50, 35, 15])[0])]
    if maker.chance(0.04):
        return sentences + [identity] + behaviour
    return [identity] + sentences + behaviour if maker.chance(0.85) else behaviour + [identity] + sentences


def _as_list(maker: Maker, persona: Persona) -> str:
    rng = maker.rng
    lines = [f"Name: {persona.name}", f"{maker.pick(['Trade', 'Job', 'Occupation', 'Work'])}: {persona.trade}", f"{maker.pick(['Place', 'Lives in', 'Town', 'Home', 'Location'])}: {persona.place}"]
    if persona.mood:
        lines.append(f"{maker.pick(['Mood', 'Manner', 'Temper'])}: {persona.mood}".replace("yourself", "oneself"))
    if persona.wares:
        style = maker.pick(["list_paren", "list_colon", "list_for", "lines"])
        if style == "lines":
            lines.append("Wares:\n" + "\n".join(f"- {w.bare}: {p}" for w, p in persona.wares))
        else:
            lines.append(f"{maker.pick(['Wares', 'Sells', 'Prices', 'Goods'])}: {_ware_lists(persona)[style]}")
    rest = [fact.kind.labels.pick(rng, fact.slots) for fact in persona.facts]
    rest += [f"{maker.pick(['Knows', 'Fact', 'Note'])}: {topic.sentence}" for topic in persona.topics]
    rest += [f"{maker.pick(['Knows', 'Fact', 'Note', 'Also'])}: {free.frame.prompts.pick(rng, free.slots)}" for free in persona.free]
    rng.shuffle(rest)
    lines += rest
    lead = maker.pick(["", "", "You are this character.\n", "Play this character.\n", "Character sheet\n", "You are a person in a tavern.\n"])
    tail = maker.pick(["", "", "\nStay in character.", "\nAnswer in one or two sentences."])
    bullet = "- " if maker.chance(0.15) else ""
    joined = "\n".join(bullet + line for line in lines)
    return lead + (joined if maker.chance(0.85) else ". ".join(lines) + ".") + tail
