"""The tavern: simulated dialogues between a persona and a player or another character."""

from __future__ import annotations

import random
import re
from collections.abc import Callable

from . import company, frames, memory, talk, trade, words
from .dialogue import TALK, Check, Dialogue, Turn
from .facts import RELATION, Fact, Kind
from .facts_small import KIND_WEIGHTS, KINDS, TOPIC_GENERAL, TOPIC_UNKNOWN
from .grammar import Phrases, a_or_an, capital, listing
from .names import Maker, Ware
from .persona import Persona, Topic, sample_persona, system_prompt

SENTENCE_END = re.compile(r"[.!?]+(?=\s|$)")


def sentence_count(text: str) -> int:
    """Sentences of a reply; a reply without an end mark is one sentence."""
    return max(1, len(SENTENCE_END.findall(text)))


def roughen(maker: Maker, text: str) -> str:
    """Imitates a hurried player: lower case, no end mark, sometimes a typing error."""
    draw = maker.rng.random()
    if draw < 0.72:
        return text
    if draw < 0.80:
        return text.rstrip("?.!")
    if draw < 0.90:
        return text.lower().rstrip(".!") if maker.chance(0.5) else text.lower().rstrip("?.!")
    if draw < 0.93:
        return text.upper() if maker.chance(0.3) else text.lower()
    if draw < 0.96:
        return text.replace("'", "").replace(",", "")
    at = maker.rng.randrange(len(text)) if text else 0
    slip = maker.pick(["drop", "double", "swap"])
    if slip == "drop":
        return text[:at] + text[at + 1 :] if len(text) > 4 else text
    if slip == "double":
        return text[:at] + text[at : at + 1] + text[at:]
    return text[:at] + text[at + 1 : at + 2] + text[at : at + 1] + text[at + 2 :]


LOWERED = frozenset("""
    A An The My That That's It It's For You If There This They People Word No Not We What At From Come To Nothing Never Good
    Well Many Strangers When Years Long
""".split())
"""First words of answers that lose their capital behind an opener such as "Well,"."""


def dressed(maker: Maker, persona: Persona, text: str) -> str:
    """The same words, sometimes with an opener of the persona's mood or a closer of its trade."""
    tone = persona.tone
    if sentence_count(text) <= 2 and maker.chance(0.3 if tone else 0.08):
        opener = talk.OPENERS[tone].pick(maker.rng, {})
        if not opener.endswith((".", "!", "?", "*", ":")) and text.split(" ", 1)[0].rstrip(",.?!") in LOWERED:
            text = text[0].lower() + text[1:]
        text = f"{opener} {text}"
    if sentence_count(text) <= 2 and maker.chance(0.1):
        text = f"{text} {talk.CLOSERS[persona.style].pick(maker.rng, {})}"
    return text


CONFLICTS = {
    "trivia": re.compile(r"child|kids|family|married|friend|name of the river|horse is|lives? next", re.IGNORECASE),
    "place": re.compile(r"from", re.IGNORECASE),
    "story": re.compile(r"stor|yourself|past|life|who are you", re.IGNORECASE),
}
"""Questions of small talk that a fact of the persona could answer otherwise: asked only of personas without facts."""


class Tavern:
    """One conversation in progress."""

    def __init__(self, maker: Maker, persona: Persona, agents: bool) -> None:
        self.maker = maker
        self.rng: random.Random = maker.rng
        self.persona = persona
        self.agents = agents
        self.held_out = maker.held_out
        self.turns: list[Turn] = []
        self.told: set[str] = set()
        self.pending: memory.Told | None = None
        self.last_ware: tuple[Ware, str] | None = None
        work = maker.trade()[1]
        goal = maker.thing()
        speaker = maker.first_name()
        self.prefix = "{text}"
        """How a turn names its speaker, if it does."""
        if agents and maker.chance(0.3):
            self.prefix = speaker + maker.pick([": {text}", ": {text}", ' says: "{text}"', ': "{text}"', " says to you: {text}", " says to you: {text}", " asks you: {text}"])
            self.told.add("user")
        elif maker.chance(0.05):
            self.prefix = maker.pick(["A visitor asks you: {text}", "A stranger says: {text}", "A visitor says to you: {text}", "Somebody asks: {text}", "The player says: {text}"])
        self.user = {
            "user": speaker,
            "user_home": maker.place(),
            "user_work": a_or_an(work),
            "user_goal": maker.pick([a_or_an(goal), f"the {goal} of {maker.first_name()}", maker.person(), f"my {maker.pick(list(words.RELATIONS))} {maker.first_name()}", maker.ware("merchant").one]),
        }

    # Text

    def slots(self, **more: str) -> dict[str, str]:
        return {**self.persona.slots(), **more}

    def ask(self, phrases: Phrases, **slots: str) -> str:
        """A user's turn: a phrase, sometimes with a lead or an address, sometimes roughly typed."""
        text = phrases.pick(self.rng, self.slots(**slots), self.held_out)
        return roughen(self.maker, self._lead(text))

    def _lead(self, text: str) -> str:
        if self.agents and self.turns and self.maker.chance(0.45):
            return f"{company.FILLERS.pick(self.rng, {}, self.held_out)} {text}"
        draw = self.rng.random()
        if draw < 0.05:
            return f"{self.maker.pick(['Excuse me', 'Tell me', 'Sorry', 'So', 'Say', 'Listen', self.persona.name, capital(self.persona.trade)])}, {text[0].lower() if not text.startswith('I ') else text[0]}{text[1:]}"
        if draw < 0.08 and text.endswith("?"):
            return f"{text[:-1]}, {self.maker.pick([self.persona.name, self.persona.trade, 'friend', 'please'])}?"
        if draw < 0.1 and not self.turns:
            return f"{self.maker.pick(['Hello', 'Good evening', 'Hi', 'Good day', 'Hey'])}{self.maker.pick(['. ', '! ', ', ' + self.persona.name + '. '])}{text}"
        return text

    def say(self, phrases: Phrases, **slots: str) -> str:
        """The persona's answer, adapted to its mood and trade."""
        core = dressed(self.maker, self.persona, phrases.pick(self.rng, self.slots(**slots)))
        if sentence_count(core) <= 2 and phrases is not talk.FAREWELL.answers and phrases not in talk.FAREWELL.toned.values() and self.pending is None and self.maker.chance(0.3 if self.agents else 0.1):
            core = f"{core} {self._ask_back()}"
        return core

    def _ask_back(self) -> str:
        open_questions = [told for told in memory.TOLD if told.key not in self.told]
        if not open_questions:
            return self.maker.pick(["What else do you want to know?", "Anything else?", "And you, what do you think?"])
        self.pending = self.rng.choice(open_questions)
        return self.pending.asks_back.pick(self.rng, self.slots())

    def add(self, user: str, reply: str, check: Check = TALK) -> None:
        self.turns.append((self.prefix.replace("{text}", user), reply, check))

    # Exchanges

    def small_talk(self) -> None:
        exchange = self.rng.choices(talk.EXCHANGES, talk.EXCHANGE_WEIGHTS)[0]
        self.exchange(exchange)

    def exchange(self, exchange: talk.Exchange) -> None:
        noise = {"noise": self.maker.invented_noun() + self.maker.invented_noun(), "noise2": self.maker.invented_noun(), "wrong_place": self.maker.place()}
        toned = exchange.toned.get(self.persona.tone or "")
        answers = toned if toned and self.maker.chance(0.6) else exchange.answers
        if exchange is talk.GREETING and self.maker.chance(0.3):
            user = self.ask(exchange.users)
        else:
            slots = {"user": self.user["user"]} if exchange is talk.GREETING else {}
            more = exchange is talk.TRADE and not self.held_out and self.maker.chance(0.4)
            user = self.ask(talk.TRADE_MORE if more else exchange.users, **noise, **slots)
            if slots and self.user["user"].lower() in user.lower():
                self.told.add("user")
        conflict = CONFLICTS.get(exchange.key)
        if conflict and self.persona.facts and conflict.search(user):
            return self.known_fact()
        checks = {
            "name": Check("fact", "name", (self.persona.name,)),
            "trade": Check("fact", "trade", (self.persona.trade,)),
            "place": Check("fact", "place", (self.persona.place,)),
            "trivia": Check("unknown", "trivia"),
            "modern": Check("unknown", "world"),
            "injection": Check("talk", "injection"),
        }
        self.add(user, self.say(answers), checks.get(exchange.key, Check("talk", exchange.key)))

    def known_fact(self) -> None:
        if not self.persona.facts:
            return self.small_talk()
        fact = self.rng.choice(self.persona.facts)
        user = self.ask(fact.kind.questions, **self._question_slots(fact))
        self.add(user, self.say(fact.kind.answers, **fact.slots), self._fact_check(fact))

    def _question_slots(self, fact: Fact) -> dict[str, str]:
        roles = [other.slots.get("role") for other in self.persona.facts if other is not fact]
        return {key: value for key, value in fact.slots.items() if not (key == "role" and value in roles)}

    @staticmethod
    def _fact_check(fact: Fact) -> Check:
        if fact.kind.key == "rumour":
            needed = tuple(v.removeprefix("the ") for k, v in fact.slots.items() if k.startswith("_"))
        elif fact.kind.key == "quest":
            needed = (fact.slots["reward"],)
        elif fact.kind.key == "relation":
            needed = (fact.slots["rname"], fact.slots["role"])
        else:
            needed = tuple(fact.slots[key] for key in fact.kind.needed)
        return Check("fact", fact.kind.key, needed)

    def unknown_fact(self) -> None:
        kind: Kind = self.rng.choices(KINDS, KIND_WEIGHTS)[0]
        if kind.key != "relation" and self.persona.fact(kind.key):
            return self.unknown_ware()
        slots = {"other": self.maker.person(), "other_animal": self.maker.animal(), "other_thing": self.maker.thing()}
        user = self.ask(kind.blank, **slots)
        self.add(user, self.say(kind.unknown, **slots), Check("unknown", kind.key))

    def known_topic(self) -> None:
        if not self.persona.topics:
            return self.unknown_topic()
        found: Topic = self.rng.choice(self.persona.topics)
        phrases = found.questions if self.maker.chance(0.7) else TOPIC_GENERAL
        needed = tuple(found.slots[key] for key in found.needed)
        lead = self.maker.pick(["", "", "", "", "I know that ", "As far as I know, ", "They say ", "Well, "])
        sentence = lead + (found.sentence[0].lower() + found.sentence[1:] if lead and found.sentence.startswith("The ") else found.sentence)
        if lead and not found.sentence.startswith(("The ", found.slots["name"])):
            sentence = found.sentence
        self.add(self.ask(phrases, **found.slots), sentence, Check("fact", "topic", needed))

    def unknown_topic(self) -> None:
        subject = self.maker.building()
        if any(subject.split()[-1] in topic.slots["subject"] for topic in self.persona.topics):
            return self.small_talk()
        phrases = TOPIC_GENERAL
        if self.maker.chance(0.6):
            from .facts_small import TOPIC_FRAMES

            phrases = self.rng.choice(TOPIC_FRAMES)[2]
        self.add(self.ask(phrases, subject=subject), self.say(TOPIC_UNKNOWN, subject=subject), Check("unknown", "topic"))

    def free_fact(self) -> None:
        """A question about a free fact, a remark that touches it, or a question about a fact that is not there."""
        if self.persona.free and self.maker.chance(0.85):
            return self.known_free()
        free = frames.sample_frame(self.maker, self.persona.place)
        if any(other.frame.subject == free.frame.subject for other in self.persona.free) or free.frame.subject in ("home", "many", "a_thing"):
            return self.small_talk()
        if self.persona.facts and free.frame.subject in ("name", "the_thing", "thing", "service", "work", "do", "day", "awaited"):
            return self.unknown_ware()
        self.add(self.ask(free.frame.questions, **free.slots), self.say(frames.UNKNOWN), Check("unknown", "free"))

    def known_free(self) -> None:
        """A question about a free fact, or a remark that touches it."""
        free = self.rng.choice(self.persona.free)
        touched = self.maker.chance(0.18)
        slots = {**free.slots, "subject": free.slots[free.frame.subject]}
        user = self.ask(frames.MENTIONS if touched else free.frame.questions, **slots)
        check = Check("talk", "touched") if touched else Check("fact", "free", tuple(free.slots[key].removeprefix("a ").removeprefix("an ").removeprefix("the ") for key in free.frame.needed[:1]))
        self.add(user, self.say(free.frame.answers, **free.slots), check)

    # Trade

    def _ware_slots(self, ware: Ware, price: str) -> dict[str, str]:
        return {"one": ware.one, "many": ware.many, "bare": ware.bare, "price": price}

    def price(self) -> None:
        if not self.persona.wares:
            return self.stock()
        ware, price = self.rng.choice(self.persona.wares)
        follow_up = self.last_ware is not None and self.last_ware[0] is not ware and self.turns[-1][2].topic == "price"
        phrases = trade.PRICE_FOLLOW_UPS if follow_up and self.maker.chance(0.6) else trade.PRICE_QUESTIONS
        slots = self._ware_slots(ware, price)
        self.last_ware = (ware, price)
        self.add(self.ask(phrases, **slots), self.say(trade.PRICE_ANSWERS, **slots), Check("fact", "price", (price,)))

    def stock(self) -> None:
        wares = self.persona.wares
        if not wares:
            return self.add(self.ask(trade.STOCK_QUESTIONS), self.say(trade.STOCK_EMPTY), Check("unknown", "stock"))
        shown = wares[:3] if len(wares) > 3 else wares
        list_for, list_many = listing([f"{w.one} for {p}" for w, p in shown]), listing([w.many for w, _ in shown])
        slots = {"list_for": list_for, "list_for_capital": capital(list_for), "list_many": list_many, "list_many_capital": capital(list_many)}
        check = Check("fact", "wares", tuple(w.many.split()[-1].rstrip("s")[:-2] or w.many for w, _ in shown[:1]))
        self.add(self.ask(trade.STOCK_QUESTIONS), self.say(trade.STOCK_ANSWERS, **slots), check)

    def have(self) -> None:
        if not self.persona.wares:
            return self.unknown_ware()
        ware, price = self.rng.choice(self.persona.wares)
        slots = self._ware_slots(ware, price)
        self.last_ware = (ware, price)
        self.add(self.ask(trade.HAVE_QUESTIONS, **slots), self.say(trade.HAVE_ANSWERS, **slots), Check("fact", "price", (price,)))

    def unknown_ware(self) -> None:
        ware = self.maker.ware(self.persona.style)
        heads = {w.bare.split()[-1] for w, _ in self.persona.wares} | {w.many.split()[-1] for w, _ in self.persona.wares}
        if {ware.bare.split()[-1], ware.many.split()[-1]} & heads or any(ware.bare in w.bare or w.bare in ware.bare for w, _ in self.persona.wares):
            return self.small_talk()
        slots = self._ware_slots(ware, "")
        phrases = self.maker.pick([trade.PRICE_QUESTIONS, trade.PRICE_QUESTIONS, trade.HAVE_QUESTIONS, trade.BUY])
        if self.turns and self.turns[-1][2].topic == "price" and self.maker.chance(0.4):
            phrases = trade.PRICE_FOLLOW_UPS
        user = self.ask(phrases, **slots)
        if self.persona.wares and self.maker.chance(0.35):
            other, price = self.rng.choice(self.persona.wares)
            reply = self.say(trade.NOT_SOLD_BUT, **slots, other_many=other.many, other_one=other.one, other_price=price)
        else:
            reply = self.say(trade.NOT_SOLD, **slots)
        self.add(user, reply, Check("unknown", "ware"))

    def buy(self) -> None:
        if not self.persona.wares:
            return self.unknown_ware()
        ware, price = self.last_ware if self.last_ware and self.maker.chance(0.6) else self.rng.choice(self.persona.wares)
        slots = self._ware_slots(ware, price)
        self.last_ware = (ware, price)
        self.add(self.ask(trade.BUY, **slots), self.say(trade.BUY_ANSWERS, **slots), Check("fact", "price", (price,)))

    def haggle(self) -> None:
        if not self.last_ware:
            return self.price()
        ware, price = self.last_ware
        slots = self._ware_slots(ware, price)
        offer = self.maker.price(price.split(" ", 1)[1])
        self.add(self.ask(trade.HAGGLE, **slots, offer=offer), self.say(trade.HAGGLE_ANSWERS, **slots), Check("fact", "haggle", (price,)))

    # Company and memory

    def tells(self) -> None:
        """The user states a fact about himself that a later question can refer to."""
        told = self.rng.choice(memory.TOLD)
        self.told.add(told.key)
        self.add(self.ask(told.says, **self.user), self.say(told.reactions, **self._user_seen()), Check("talk", "tells"))

    def _user_seen(self) -> dict[str, str]:
        """The user's slots as the persona says them: "my brother" becomes "your brother"."""
        return {key: f"your {value[3:]}" if value.startswith("my ") else value for key, value in self.user.items()}

    def introduces(self) -> None:
        self.told |= {"user", "user_home", "user_work"}
        self.add(self.ask(company.TELLS_SELF, **self.user), self.say(company.HEARS_SELF, **self.user), Check("talk", "tells"))

    def recalls(self) -> None:
        """A question about what was said earlier, or never said."""
        told = self.rng.choice(memory.TOLD)
        known = [t for t in memory.TOLD if t.key in self.told]
        if known and self.maker.chance(0.8):
            told = self.rng.choice(known)
        if told.key in self.told:
            self.recall(told)
        else:
            self.add(self.ask(told.recalls), self.say(told.not_told), Check("unknown", "memory"))

    def recall(self, told: memory.Told) -> None:
        """A question about what was said."""
        user = self.ask(told.recalls)
        check = Check("fact", "memory", (self.user[told.key].removeprefix("a ").removeprefix("an ").removeprefix("my "),))
        self.add(user, self.say(told.answers, **self._user_seen()), check)

    def answers_pending(self) -> None:
        """The user answers the persona's question."""
        told = self.pending
        assert told is not None
        self.pending = None
        self.told.add(told.key)
        self.add(self.ask(told.replies_when_asked, **self.user), self.say(told.reactions, **self._user_seen()), Check("talk", "tells"))

    def statement(self) -> None:
        """The user shares a rumour, a feeling, an offer or a request."""
        draw = self.rng.random()
        if draw < 0.4:
            from .facts import RUMOUR

            rumour = {"rumour": RUMOUR.sample(self.maker)["rumour"]}
            self.add(self.ask(company.TELLS_RUMOUR, **rumour), self.say(company.HEARS_RUMOUR, **rumour), Check("talk", "news"))
        elif draw < 0.6:
            ware = self.maker.ware("merchant")
            slots = self._ware_slots(ware, self.maker.price(self.maker.currency()))
            self.add(self.ask(company.OFFERS, **slots), self.say(company.HEARS_OFFER, **slots), Check("talk", "offer"))
        elif draw < 0.8:
            self.add(self.ask(company.TELLS_FEELING), self.say(company.HEARS_FEELING), Check("talk", "feeling"))
        elif draw < 0.9:
            self.add(self.ask(company.REQUESTS), self.say(company.HEARS_REQUEST), Check("talk", "request"))
        else:
            text = roughen(self.maker, company.FILLERS.pick(self.rng, {}, self.held_out))
            self.filler(text)

    def filler(self, text: str) -> None:
        """After a mere "I see" the persona continues with one of its facts, or a question."""
        fresh = [fact for fact in self.persona.facts if fact.kind.key in ("rumour", "quest", "relation", "loss", "like")]
        if fresh and self.maker.chance(0.6):
            fact = self.rng.choice(fresh)
            self.add(text, self.say(fact.kind.answers, **fact.slots), Check("talk", "filler"))
        elif self.pending is None:
            self.add(text, self._ask_back(), Check("talk", "filler"))
        else:
            self.add(text, self.say(talk.EXCHANGES[0].answers), Check("talk", "filler"))

    def correction(self) -> None:
        """The persona corrects a wrong guess about name, trade or place."""
        guess = {"wrong_name": self.maker.first_name(), "wrong_place": self.maker.place(), "wrong_trade": self.maker.trade()[1]}
        if guess["wrong_trade"] in self.persona.trade or self.persona.trade in guess["wrong_trade"]:
            return self.small_talk()
        guess["a_wrong_trade"] = a_or_an(guess["wrong_trade"])
        users, answers, key = self.rng.choice(talk.CORRECTIONS)
        needed = {"name": self.persona.name, "trade": self.persona.trade, "place": self.persona.place}[key]
        self.add(self.ask(users, **guess), self.say(answers, **guess), Check("fact", f"wrong {key}", (needed,)))

    def mention(self) -> None:
        """A question about a name or place that some fact mentions is answered with that fact."""
        found: list[tuple[str, Fact]] = []
        for fact in self.persona.facts:
            found += [(fact.slots[key], fact) for key in ("_name", "_place", "debtor", "pet", "first_name", "second_name") if key in fact.slots]
        if not found:
            return self.known_fact()
        subject, fact = self.rng.choice(found)
        phrases = RELATION.blank if fact.kind.key == "company" and self.maker.chance(0.6) else talk.MENTIONS
        self.add(self.ask(phrases, subject=subject, other=subject), self.say(fact.kind.answers, **fact.slots), self._fact_check(fact))

    def kick_off(self) -> None:
        """A stage direction makes the persona begin."""
        trade = self.maker.trade()[1]
        slots = {"user": self.user["user"], "a_user_trade": a_or_an(trade)}
        user = talk.KICK_OFFS.pick(self.rng, self.slots(**slots), self.held_out)
        named = slots["user"] in user
        if named:
            self.told.add("user")
        prefix, self.prefix = self.prefix, "{text}"
        self.add(user, self.say(talk.OPENINGS_NAMED if named else talk.OPENINGS, **slots), Check("talk", "kick-off"))
        self.prefix = prefix

    def repeat(self) -> None:
        said = self.turns[-1][1] if self.turns else ""
        if not isinstance(said, str) or not said or sentence_count(said) > 2 or "?" in said:
            return self.small_talk()
        if re.search(r"\bI said\b", said):
            return self.small_talk()
        kept = Check("talk", "repeat")
        self.add(self.ask(memory.REPEAT_QUESTIONS), f"I said: {said}", kept)

    def step(self) -> None:
        if self.pending is not None and self.maker.chance(0.75):
            return self.answers_pending()
        moves: list[Callable[[], None]] = [self.known_fact, self.unknown_fact, self.known_topic, self.unknown_topic, self.price, self.stock, self.have, self.unknown_ware, self.buy, self.haggle, self.small_talk, self.tells, self.recalls, self.statement, self.introduces, self.repeat, self.correction, self.mention, self.free_fact]
        weights = [22, 9, 5 if self.persona.topics else 1, 3, 12, 5, 4, 7, 3, 3 if self.last_ware else 0.3, 22, 3, 4 if self.told else 1, 12 if self.agents else 4, 3 if self.agents else 1, 0.6, 2, 3, 14 if self.persona.free else 2]
        self.rng.choices(moves, weights)[0]()


def tavern_dialogue(maker: Maker) -> Dialogue:
    """A whole conversation: mostly short, sometimes up to some thirty turns."""
    rng = maker.rng
    persona = sample_persona(maker)
    agents = maker.chance(0.35)
    tavern = Tavern(maker, persona, agents)
    turns = rng.choices([2, 3, 4, 5, 6, 8, 12, 20, 40, 60], [12, 14, 16, 16, 14, 14, 9, 3.5, 1, 0.5])[0]
    if agents and maker.chance(0.3):
        tavern.kick_off()
    elif maker.chance(0.3):
        tavern.exchange(talk.GREETING)
    while len(tavern.turns) < turns:
        tavern.step()
    if maker.chance(0.2):
        tavern.exchange(talk.FAREWELL)
    return Dialogue(system_prompt(maker, persona), tavern.turns)
