"""Dialogues in which a turn has notes: an observation with things that the character knows for this turn.

walla puts found memories there: a heading, then a line for each text. The character answers from them as from its own
prompt, leaves out what does not fit, and admits what neither has.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from . import memory
from .dialogue import Dialogue, Message
from .facts import RELATION, RUMOUR, Fact
from .facts_small import topic
from .frames import Free, sample_frame
from .names import Maker
from .persona import ONE_WARE, Persona, Topic, sample_persona, system_prompt
from .tavern import Tavern

HEADINGS = ["You know:", "You know:", "You know:", "You know:", "You know:", "You know:", "You remember:", "You also know:", "Notes:", "Known:", "Memories:", ""]
EXCHANGES = ['The player said: "{says}" I said: "{reaction}"', 'The player said: "{says}" I said: "{reaction}"', 'The player said: "{says}"', '{name} said: "{says}"', 'Someone said: "{says}" You said: "{reaction}"']


class Note:
    """A thing that a note says: its line, how a persona has it, and a question about it."""

    def __init__(self, line: str, give: Callable[[Persona], None], ask: Callable[[Tavern], None]) -> None:
        self.line, self.give, self.ask = line, give, ask


def _ware(maker: Maker, persona: Persona) -> Note:
    ware, price = maker.ware(persona.style if maker.chance(0.5) else "merchant"), maker.price(persona.currency)
    line = ONE_WARE.pick(maker.rng, {"one": ware.one, "many": ware.many, "price": price})
    return Note(line, lambda has: has.wares.append((ware, price)), lambda tavern: tavern.price() if maker.chance(0.7) else tavern.have())


def _topic(maker: Maker, persona: Persona) -> Note:
    found = Topic(*topic(maker))
    return Note(found.sentence, lambda has: has.topics.append(found), lambda tavern: tavern.known_topic())


def _free(maker: Maker, persona: Persona) -> Note:
    free: Free = sample_frame(maker, persona.place)
    return Note(free.frame.prompts.pick(maker.rng, free.slots), lambda has: has.free.append(free), lambda tavern: tavern.known_free())


def _fact(maker: Maker, persona: Persona) -> Note:
    kind = maker.pick([RELATION, RUMOUR, RUMOUR])
    fact = Fact(kind, kind.sample(maker))
    return Note(kind.prompts.pick(maker.rng, fact.slots), lambda has: has.facts.append(fact), lambda tavern: tavern.known_fact())


def _told(maker: Maker, tavern: Tavern) -> Note:
    """An exchange of an earlier conversation."""
    told = maker.pick(list(memory.TOLD))
    slots = {"says": told.says.pick(maker.rng, tavern.slots(**tavern.user)), "name": maker.first_name()}
    slots["reaction"] = told.reactions.pick(maker.rng, tavern.slots(**tavern._user_seen()))
    return Note(maker.pick(EXCHANGES).format(**slots), lambda has: None, lambda tavern: tavern.recall(told))


def _distractor(maker: Maker, persona: Persona) -> Note:
    return maker.pick([_ware, _topic, _topic, _free, _free, _fact])(maker, persona)


@contextmanager
def knowing(tavern: Tavern, notes: list[Note], only: Note | None) -> Iterator[None]:
    """The persona knows the notes; questions are about ``only`` this one."""
    persona = tavern.persona
    before = persona.wares, persona.facts, persona.topics, persona.free
    if only is None:
        persona.wares, persona.facts, persona.topics, persona.free = ([*part] for part in before)
        for note in notes:
            note.give(persona)
    else:
        persona.wares, persona.facts, persona.topics, persona.free = [], [], [], []
        only.give(persona)
    try:
        yield
    finally:
        persona.wares, persona.facts, persona.topics, persona.free = before


def noted_turn(maker: Maker, tavern: Tavern) -> None:
    """A turn with notes: the answer is in them, in the persona's prompt, or nowhere."""
    persona = tavern.persona
    draw = maker.rng.random()
    others = [_distractor(maker, persona) for _ in range(maker.rng.choices([0, 1, 2, 3, 4], [28, 26, 22, 14, 10])[0])]
    turns = len(tavern.turns)
    notes = others
    if draw < 0.7:
        note = _told(maker, tavern) if maker.chance(0.14) else maker.pick([_ware, _topic, _topic, _free, _free, _free, _fact])(maker, persona)
        notes = [*others, note]
        with knowing(tavern, notes, note):
            note.ask(tavern)
    elif draw < 0.84:
        with knowing(tavern, notes, None):
            maker.pick([tavern.unknown_topic, tavern.unknown_ware, tavern.unknown_fact])()
    elif draw < 0.92:
        tavern.small_talk()
    else:
        maker.pick([tavern.price, tavern.known_fact, tavern.known_topic])()
    if len(tavern.turns) == turns or not notes:
        return
    maker.rng.shuffle(notes)
    heading = maker.pick(HEADINGS)
    text = "\n".join([heading] * bool(heading) + [f"- {note.line}" for note in notes])
    said, reply, check = tavern.turns[-1]
    assert isinstance(said, str)
    messages: list[Message] = [{"role": "observation", "content": text}, {"role": "user", "content": said}]
    tavern.turns[-1] = (messages, reply, check)


def noted_dialogue(maker: Maker) -> Dialogue:
    """A conversation in which the last turn has notes, or most of its turns."""
    persona = sample_persona(maker, 3)
    tavern = Tavern(maker, persona, maker.chance(0.2))
    prompt = system_prompt(maker, persona)
    for _ in range(maker.rng.choices([0, 1, 2, 3, 5], [34, 24, 18, 14, 10])[0]):
        if maker.chance(0.35):
            noted_turn(maker, tavern)
        else:
            tavern.step()
    noted_turn(maker, tavern)
    return Dialogue(prompt, tavern.turns)
