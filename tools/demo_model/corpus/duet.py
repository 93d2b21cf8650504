"""Two personas talk to each other; the model learns one side. No question or statement is repeated."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from . import company, memory, talk, trade
from .dialogue import Check, Dialogue
from .facts import Fact
from .facts_small import KINDS
from .grammar import Phrases, a_or_an, capital, listing
from .names import Maker
from .persona import Persona, sample_persona, system_prompt
from .tavern import dressed, sentence_count

ASK_NEWS = Phrases("""
    Have you heard any news?
    Any news?
    What have you heard lately?
    Have you heard any rumours?
    What is new in {home}?
    What's new?
    Any gossip?
    What do people say in {home}?
""")
ASK_WORK = Phrases("""
    Do you need any help?
    Do you have work for someone like me?
    Is there any work in {home}?
    Do you need anything?
    Can I do something for you?
""")
ASK_WARES = Phrases("""
    What do you sell?
    What do you have for sale?
    Do you sell anything?
    What are your prices?
    Do you have anything to sell?
""")
ASK_BACK = Phrases("""
    And you?
    What about you?
    And yourself?
""")
HEARS_QUEST = Phrases("""
    {Reward}? I'll think about it.
    That sounds dangerous.
    For {reward}? Perhaps I know somebody.
    {Reward} is good money. I'll ask around.
    I'm too busy with my own work, but I wish you luck.
    I could do that. {Reward}, you said?
    Not for me. I'm {a_trade}, after all.
    I'd do it, if I were younger.
    I'll tell the people in {home} about it.
""")
HEARS_PRICE = Phrases("""
    {Price}? That's fair.
    {Price} is a lot of money.
    Hm, {price}. Maybe later.
    I'll take one, then.
    Not bad. I may come back for that.
    {Price}? I have paid more.
    Too much for my purse.
    I will tell my friends.
""")
HEARS_FACT = Phrases("""
    Is that so?
    I can understand that.
    Who would have thought?
    You never told me that.
    That is good to know.
    Ha, I like that.
    Well, everyone has something like that.
    I feel the same, now and then.
    How strange.
    That explains a lot.
    I didn't know that.
    Interesting.
""")
HEARS_PERSON = Phrases("""
    {rname}? I don't think we have met.
    Then greet {rname} from me.
    {rname}, you say? I'll remember the name.
    Your {role} sounds like good company.
    I once had a {role} like that.
    You are lucky to have a {role} like {rname}.
""")
HEARS_NOTHING = Phrases("""
    A pity.
    Well, never mind.
    No matter.
    I thought so.
    Fair enough.
    Then let us talk about something else.
    As you say.
    So be it.
""")
HEARS_MOOD = Phrases("""
    I know what you mean.
    Good to hear, or so I think.
    We all have such days.
    That's how it goes.
    As for me, I can't complain.
    I see.
    So it goes in {home} too.
""")
MOVES_ON = Phrases("""
    Tell me something.
    By the way.
    Let me ask you something.
    But enough of that.
    Listen.
""")
FROM_HOME = Phrases("""
    I come from {home}.
    {home} is my home.
    I'm from {home}.
    From {home}[, a quiet place|, born and raised|].
    I live in {home}.
    My home is {home}.
""")
PURPOSE = Phrases("""
    Work, mostly.
    I am only passing through.
    I needed a warm room and some company.
    I came for the company.
    I was thirsty.
    I'm here on business.
    Nothing much. I like to sit here.
    I'm looking for good company.
    The rain drove me in.
    I was hoping for some news.
""")
TELLS_WARE = Phrases("""
    I sell {one} for {price}, should you need one.
    If you ever need {one}, I ask {price}.
    My {many} cost {price}.
    {One} costs {price} at my place.
""")

Slots = dict[str, str]
QUESTION_KEYS = [
    (re.compile(pattern), key)
    for pattern, key in [
        (r"brings you|What do you want", "purpose"),
        (r"What can I do|do you need|help you", "quest"),
        (r"How (?:are|goes|is)|And you\b|about you", "how"),
        (r"news|heard|rumour", "rumour"),
        (r"come from|from\?", "place"),
        (r"sell", "wares"),
        (r"for a living|your work|do you do", "trade"),
        (r"name|Who are you", "name"),
    ]
]
"""What a question that stands in some answer or greeting asks for."""
TELLABLE = ("rumour", "quest", "relation", "past")
"""Facts that are told unasked."""
SMALL_KEYS = ("age", "like", "fear", "drink", "dream", "past", "origin")
"""Facts that strangers ask each other for without knowing that there is one."""


@dataclass
class Side:
    """One of the two personas, with its statements and questions so far."""

    persona: Persona
    told: set[str] = field(default_factory=set)
    asked: set[str] = field(default_factory=set)


@dataclass
class Said:
    """Open topic of the last turn: a question with its key, or news with the reactions to it."""

    question: str | None = None
    reactions: Phrases | None = None
    slots: Slots = field(default_factory=dict)


def question_in(text: str) -> str | None:
    """The key of the question that the text ends with, if any is known."""
    if not text.endswith("?"):
        return None
    question = re.split(r"(?<=[.!?]) ", text)[-1]
    return next((key for pattern, key in QUESTION_KEYS if pattern.search(question)), None)


class Duet:
    """A conversation of two personas."""

    def __init__(self, maker: Maker, first: Persona, second: Persona) -> None:
        self.maker, self.rng = maker, maker.rng
        self.sides = (Side(first), Side(second))
        self.said = Said()
        self.just_told = ""
        """What the speaker has answered in this turn: asked back with "And you?"."""

    def _slots(self, speaker: Persona, listener: Persona, **more: str) -> Slots:
        seen = {"user": listener.name, "user_home": listener.place, "user_work": a_or_an(listener.trade)}
        return {**speaker.slots(), **seen, **more}

    def opening(self, speaker: Side, listener: Side) -> list[str]:
        """A greeting; the names are known from here on."""
        if self.maker.chance(0.5):
            speaker.told.add("name")
            listener.asked.add("name")
            self.said = Said(None, company.HEARS_SELF)
            return [company.TELLS_SELF.pick(self.rng, self._slots(speaker.persona, speaker.persona))]
        answers = talk.GREETING.toned.get(speaker.persona.tone or "", talk.GREETING.answers)
        greeting = answers.pick(self.rng, self._slots(speaker.persona, listener.persona))
        self.said = Said(question_in(greeting) or "greeting")
        return [greeting]

    def turn(self, speaker: Side, listener: Side, last: bool) -> str:
        """First an answer or reaction, then a question or a statement."""
        parts = self._reply(speaker, listener)
        if last:
            parts.append(talk.FAREWELL.answers.pick(self.rng, self._slots(listener.persona, speaker.persona)))
            self.said = Said()
        elif self.said.question is None:
            before = self.said
            move = self._move(speaker, listener, forced=before.reactions is None)
            if sentence_count(" ".join(parts + move)) <= 3:
                parts += move
            else:
                self.said = before
        return " ".join(parts)

    def _reply(self, speaker: Side, listener: Side) -> list[str]:
        said, self.said = self.said, Said()
        self.just_told = said.question or ""
        slots = self._slots(speaker.persona, listener.persona, **said.slots)
        if said.question is not None:
            return [self._answer(speaker, listener, said.question)]
        if said.reactions is not None:
            reaction = said.reactions.pick(self.rng, slots) if self.maker.chance(0.85) else ""
            self.said = Said(question_in(reaction))
            return [reaction] if reaction else []
        return []

    # Answers that invite a reaction

    def _answer(self, speaker: Side, listener: Side, key: str) -> str:
        persona = speaker.persona
        slots = self._slots(persona, listener.persona)
        speaker.told.add(key)
        if key == "purpose":
            self.said = Said(None, HEARS_FACT)
            return PURPOSE.pick(self.rng, slots)
        if key == "place" and not persona.fact("origin"):
            self.said = Said(None, memory.TOLD_ORIGIN.reactions)
            return dressed(self.maker, persona, FROM_HOME.pick(self.rng, slots))
        key = "origin" if key == "place" else key
        exchanges = {"name": talk.NAME, "trade": talk.TRADE, "how": talk.HOW, "greeting": talk.GREETING}
        if key in exchanges:
            exchange = exchanges[key]
            toned = exchange.toned.get(persona.tone or "")
            answers = toned if toned and self.maker.chance(0.6) else exchange.answers
            reactions = {"name": company.HEARS_SELF, "trade": memory.TOLD_WORK.reactions, "how": HEARS_MOOD}
            text = answers.pick(self.rng, slots)
            question = question_in(text)
            self.said = Said(question, None if question else reactions.get(key))
            return dressed(self.maker, persona, text) if key != "greeting" else text
        if key == "wares":
            return dressed(self.maker, persona, self._wares(persona))
        fact = persona.fact(key)
        if fact is None:
            self.said = Said(None, HEARS_NOTHING)
            kind = next(kind for kind in KINDS if kind.key == key)
            return dressed(self.maker, persona, kind.unknown.pick(self.rng, slots))
        self.said = self._heard(fact)
        return dressed(self.maker, persona, fact.kind.answers.pick(self.rng, {**slots, **fact.slots}))

    def _wares(self, persona: Persona) -> str:
        if not persona.wares:
            self.said = Said(None, HEARS_NOTHING)
            return trade.STOCK_EMPTY.pick(self.rng, persona.slots())
        ware, price = self.rng.choice(persona.wares)
        self.said = Said(None, HEARS_PRICE, {"price": price, "one": ware.one, "many": ware.many})
        list_for = listing([f"{w.one} for {p}" for w, p in persona.wares[:2]])
        list_many = listing([w.many for w, _ in persona.wares[:3]])
        forms = {"list_for": list_for, "list_for_capital": capital(list_for)}
        if self.maker.chance(0.4):
            self.said = Said(None, HEARS_FACT)
            forms = {"list_many": list_many, "list_many_capital": capital(list_many)}
        return trade.STOCK_ANSWERS.pick(self.rng, {**persona.slots(), **forms})

    @staticmethod
    def _heard(fact: Fact) -> Said:
        reactions = {"rumour": company.HEARS_RUMOUR, "quest": HEARS_QUEST, "relation": HEARS_PERSON}
        return Said(None, reactions.get(fact.kind.key, HEARS_FACT), dict(fact.slots))

    # Moves

    def _move(self, speaker: Side, listener: Side, forced: bool) -> list[str]:
        if self.maker.chance(0.55):
            return self._ask(speaker, listener)
        if forced or self.maker.chance(0.4):
            return self._tell(speaker) or self._ask(speaker, listener)
        return []

    def _ask(self, speaker: Side, listener: Side) -> list[str]:
        questions: dict[str, Phrases] = {
            "name": talk.NAME.users,
            "trade": talk.TRADE.users,
            "place": memory.TOLD_ORIGIN.asks_back,
            "how": talk.HOW.users,
            "rumour": ASK_NEWS,
            "quest": ASK_WORK,
            "wares": ASK_WARES,
        } | {kind.key: kind.questions for kind in KINDS if kind.key in SMALL_KEYS}
        open_keys = [key for key in questions if key not in speaker.asked and key not in listener.told]
        if not open_keys:
            return []
        key = self.just_told if self.just_told in open_keys and self.maker.chance(0.5) else self.rng.choices(open_keys, [1 if key in SMALL_KEYS else 4 for key in open_keys])[0]
        speaker.asked.add(key)
        self.said = Said(key)
        if key == self.just_told and key != "name":
            return [ASK_BACK.pick(self.rng, {})]
        return [questions[key].pick(self.rng, listener.persona.slots())]

    def _tell(self, speaker: Side) -> list[str]:
        persona = speaker.persona
        fresh = [fact for fact in persona.facts if fact.kind.key in TELLABLE and fact.kind.key not in speaker.told]
        if persona.wares and "ware told" not in speaker.told and self.maker.chance(0.3):
            speaker.told.add("ware told")
            ware, price = self.rng.choice(persona.wares)
            slots = {"one": ware.one, "many": ware.many, "price": price}
            self.said = Said(None, HEARS_PRICE, slots)
            return [TELLS_WARE.pick(self.rng, slots)]
        free = [free for free in persona.free if f"free {free.frame.subject}" not in speaker.told]
        if free and (not fresh or self.maker.chance(0.4)):
            chosen = self.rng.choice(free)
            speaker.told.add(f"free {chosen.frame.subject}")
            self.said = Said(None, HEARS_FACT)
            return [chosen.frame.told.pick(self.rng, chosen.slots)]
        if not fresh:
            return []
        fact = self.rng.choice(fresh)
        speaker.told.add(fact.kind.key)
        self.said = self._heard(fact)
        lead = [MOVES_ON.pick(self.rng, {})] if self.maker.chance(0.15) else []
        return [*lead, fact.kind.answers.pick(self.rng, {**persona.slots(), **fact.slots})]


def duet_dialogue(maker: Maker) -> Dialogue:
    """Six to twenty turns, from the view of one of the two."""
    me, other = sample_persona(maker), sample_persona(maker)
    duet = Duet(maker, me, other)
    mine, theirs = duet.sides
    turns = maker.rng.choices([3, 4, 5, 6, 8, 12, 20], [12, 18, 20, 20, 16, 10, 4])[0]
    prefix = maker.pick(["{text}", "{text}", "{text}", f"{other.name}: {{text}}", f'{other.name} says: "{{text}}"', f"{other.name} says to you: {{text}}"])
    talked: list[tuple[str, str, Check]] = []
    if maker.chance(0.45):
        kick_off = talk.KICK_OFFS.pick(maker.rng, {"user": other.name, "a_user_trade": a_or_an(other.trade)}, maker.held_out)
        named = other.name in kick_off
        slots = {**me.slots(), "user": other.name}
        mine.asked |= {"name"} if named else set()
        opening = (talk.OPENINGS_NAMED if named else talk.OPENINGS).pick(maker.rng, slots)
        duet.said = Said(question_in(opening) or "greeting")
        talked.append((kick_off, dressed(maker, me, opening), Check("talk", "kick-off")))
    else:
        user = " ".join(duet.opening(theirs, mine))
        talked.append((prefix.replace("{text}", user), duet.turn(mine, theirs, False), Check("talk", "duet")))
    for turn in range(1, turns):
        last = turn == turns - 1 and maker.chance(0.4)
        user = duet.turn(theirs, mine, last) or "I see."
        reply = duet.turn(mine, theirs, last) if not last else talk.FAREWELL.answers.pick(maker.rng, {**me.slots()})
        talked.append((prefix.replace("{text}", user), reply or HEARS_FACT.pick(maker.rng, {}), Check("talk", "duet")))
    return Dialogue(system_prompt(maker, me), talked)
