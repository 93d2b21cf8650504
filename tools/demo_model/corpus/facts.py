"""Kinds of facts of a persona: phrases for the prompt, the question, the answer, and the unknown fact."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from . import words
from .grammar import Phrases, a_or_an, plural
from .names import Maker

Sample = Callable[[Maker], dict[str, str]]


@dataclass(frozen=True)
class Kind:
    """One kind of fact. A question about a fact that the persona lacks uses ``blank`` and is answered by ``unknown``."""

    key: str
    sample: Sample
    prompts: Phrases
    """Sentences in the second person, for prose."""
    labels: Phrases
    """Lines for personas written as lists."""
    questions: Phrases
    answers: Phrases
    needed: tuple[str, ...]
    """Slots whose values an answer must contain."""
    blank: Phrases
    unknown: Phrases


@dataclass(frozen=True)
class Fact:
    """A kind with its values."""

    kind: Kind
    slots: dict[str, str]


def _relation(maker: Maker) -> dict[str, str]:
    role = maker.pick(list(words.RELATIONS))
    trade = maker.trade()[1]
    pronoun = words.RELATIONS[role] or maker.pick(["he", "she"])
    return {"role": role, "rname": maker.first_name(), "rplace": maker.place(), "rtrade": trade, "a_rtrade": a_or_an(trade), "he": pronoun, "him": {"he": "him", "she": "her"}[pronoun], "his": {"he": "his", "she": "her"}[pronoun]}


RELATION = Kind(
    "relation",
    _relation,
    Phrases("""
        Your {role} {rname} is {a_rtrade} in {rplace}.
        {rname}, {a_rtrade} in {rplace}, is your {role}.
        Your {role} is {rname}, {a_rtrade} in {rplace}.
        You have a {role}, {rname}, {a_rtrade} in {rplace}.
        {rname} is your {role}. {He} lives in {rplace} and works as {a_rtrade}.
        Your {role} {rname} works as {a_rtrade} in {rplace}.
        The {rtrade} of {rplace}, {rname}, is your {role}.
        Your {role} is called {rname} and is {a_rtrade} in {rplace}.
        Your {role} {rname} lives in {rplace} and is {a_rtrade}.
    """),
    Phrases("""
        {role}: {rname}, {a_rtrade} in {rplace}
        {Role}: {rname} ({rtrade}, {rplace})
        Relation: {rname}, {a_rtrade} in {rplace}, is your {role}
        Knows: {rname} ({role}, {a_rtrade} in {rplace})
    """),
    Phrases("""
        Who is {rname}?
        Do you know {rname}?
        Who is your {role}?
        Do you have a {role}?
        Tell me about your {role}.
        ~ What do you know about {rname}?
        [Have you|You] heard of {rname}?
        Tell me about {rname}.
        What is your {role}'s name?
        Can you tell me who {rname} is?
        What is your {role} called?
        What does {rname} do?
        Where does {rname} live?
        ~ Where does your {role} live?
        Where can I find {rname}?
        What does your {role} do?
        I am looking for {rname}.
        How do you know {rname}?
        Is {rname} a friend of yours?
        Where is {rname}?
        And your {role}?
        ~ Ever met {rname}?
        Does the name {rname} mean anything to you?
        I heard you have a {role}.
        Have you ever met {rname}?
        Did you ever meet {rname}?
        You have met {rname}, haven't you?
        What about {rname}?
        And {rname}?
        What about your {role}?
        Where is your {role}?
        Who's {rname}?
        What does your {role} do for a living?
        Is {rname} your friend?
        What is {rname} to you?
        In which town does {rname} live?
        What is your {role} like?
        Tell me who {rname} is.
        Do you have any family?
        I met {rname} on the road.
        I met your {role}.
        Do you know somebody called {rname}?
        {rname}?
        I know {rname}.
        Where does {rname} work?
        I want to know about {rname}.
        What's the name of your {role}?
    """),
    Phrases("""
        {rname} is my {role}, {a_rtrade} in {rplace}.
        My {role} {rname} is {a_rtrade} in {rplace}.
        {rname}? [That's|That is] my {role}, {a_rtrade} over in {rplace}.
        My {role} is {rname}, {a_rtrade} in {rplace}.
        [Yes, |Ah, |]{rname} is my {role}. {He} is {a_rtrade} in {rplace}.
        You mean {rname}, my {role}. {He} works as {a_rtrade} in {rplace}.
        You will find my {role} {rname} in {rplace}. {He} is {a_rtrade} there.
        {rname}, my {role}, lives in {rplace}. {He} is {a_rtrade}.
        {rname} is {a_rtrade} in {rplace}, and my {role}[ too|].
    """),
    ("rname", "role", "rplace"),
    Phrases("""
        Who is {other}?
        Do you know {other}?
        Have you heard of {other}?
        What do you know about {other}?
        Tell me about {other}.
        ~ Where can I find {other}?
        Where does {other} live?
        I am looking for {other}.
        Have you seen {other}?
        Is {other} here?
        Ever met {other}?
        Does the name {other} mean anything to you?
        Can you find {other}?
        Can I find {other} here?
        Where is {other}?
        Can you tell me where {other} is?
        Have you ever met {other}?
        Who's {other}?
        What about {other}?
        And {other}?
        Do you know somebody called {other}?
        {other}?
        What does {other} do?
        Can you tell me who {other} is?
        Is {other} a friend of yours?
        Tell me who {other} is.
    """),
    Phrases("""
        I don't know anyone called {other}.
        {other}? I don't know that name.
        {other}? Never heard of them.
        I have never heard of {other}.
        I don't know {other}, sorry.
        I'm afraid I don't know {other}. Ask somebody else.
        That name means nothing to me. I don't know any {other}.
        I can't say I know {other}.
        No idea who {other} is.
    """),
)


DOINGS = Phrases("""
    [guards|watches] {building}
    sells {many} in {place}
    works in the {spot}
    lives in the {spot}
    went to {place} and never came back
    has gone to {place}
    is away at sea
    hates {many}
    owes {name} {price}
    taught {name} to read
    is married to {name}
    runs {building} in {place}
    makes the best {many} in {place}
    keeps {animals}
    [sings|plays the flute|plays cards] at {inn}
    drinks at {inn} every night
    lost a {thing} in the {spot}
    wants to {dream}
    is afraid of {fear}
    fell in love with {name}
    was born in {place}
    is in prison in {place}
    has a {animal} named {name}
    fights {beasts} near {place}
    serves the {official} of {place}
    works for {name}
    is looking for a {thing}
""")


def doing(maker: Maker) -> str:
    """An occupation in the third person: ``guards the north gate``."""
    ware = maker.ware("merchant")
    return DOINGS.pick(
        maker.rng,
        {
            "building": maker.building(),
            "many": ware.many,
            "place": maker.place(),
            "spot": maker.spot(),
            "name": maker.first_name(),
            "price": maker.price(maker.currency()),
            "animals": plural(maker.animal()),
            "animal": maker.animal(),
            "inn": maker.inn_name(),
            "thing": maker.thing(),
            "dream": maker.dream(),
            "fear": maker.fear(),
            "beasts": maker.pick(words.BEASTS),
            "official": maker.pick(words.OFFICIALS),
        },
    )


def _acquaintance(maker: Maker) -> dict[str, str]:
    slots = _relation(maker)
    return {key: slots[key] for key in ("role", "rname", "he", "him", "his")} | {"doing": doing(maker)}


ACQUAINTANCE = Kind(
    "relation",
    _acquaintance,
    Phrases("""
        Your {role} {rname} {doing}.
        Your {role} is {rname}, who {doing}.
        {rname} is your {role}. {He} {doing}.
        {rname}, your {role}, {doing}.
        You have a {role} called {rname} who {doing}.
    """),
    Phrases("""
        {Role}: {rname} ({doing})
        {role}: {rname}, who {doing}
    """),
    RELATION.questions,
    Phrases("""
        {rname} is my {role}. {He} {doing}.
        My {role} {rname} {doing}.
        {rname}? That's my {role}. {He} {doing}.
        My {role} is {rname}. {He} {doing}.
        [Yes, |Ah, |]{rname} is my {role} and {doing}.
        You mean my {role} {rname}. {He} {doing}.
    """),
    ("rname", "role", "doing"),
    RELATION.blank,
    RELATION.unknown,
)


def _rumour(maker: Maker) -> dict[str, str]:
    frame = maker.pick(RUMOUR_FRAMES)
    values = {
        "beasts": maker.pick(words.BEASTS),
        "place": maker.place(),
        "name": maker.person(),
        "building": maker.building(),
        "thing": maker.thing(),
        "spot": maker.spot(),
        "colour": maker.pick(words.COLOURS),
        "day": maker.pick(words.DAYS),
        "official": maker.pick(words.OFFICIALS),
        "ware": maker.ware("merchant").many,
        "relation": maker.pick(list(words.RELATIONS)),
        "doing": doing(maker),
    }
    text = frame.fill(maker.rng, values)
    return {"rumour": text, **{f"_{key}": values[key] for key in frame.keys}}


RUMOUR_FRAMES = Phrases("""
    {beasts} were seen near {place}
    {beasts} have been seen [close to|by] {building}
    the {official}'s {thing} has been stolen
    the {official} of {place} has lost a {thing}
    someone stole the {thing} of the {official}
    {building} in {place} is haunted
    {building} burned down [last night|last week]
    {building} of {place} has been sold to {name}
    a stranger in a {colour} cloak is asking for {name}
    {name} found a {thing} in the {spot}
    {name} is hiding in the {spot}
    {name} has run away to {place}
    {name} is going to marry the {official}
    {name} the {official} [drinks too much|cheats at cards|owes money to everyone]
    {name} was seen with {beasts} at night
    there is gold under {building}
    there is a [secret tunnel|hidden door] beneath {building}
    the {official} is [ill|bankrupt|in love|hiding something]
    the {official} is a spy from {place}
    the {official} will leave {place} on {day}
    the road to {place} is [closed|flooded|full of robbers|blocked by a fallen tree]
    the well in {place} has run dry
    the price of {ware} will double by {day}
    a ship full of {ware} sank near {place}
    a {colour} light shines in the {spot} at night
    somebody buried a {thing} in the {spot}
    the old {thing} in the {spot} is cursed
    {beasts} stole all the {ware} in {place}
    a war is coming to {place}
    there will be a feast in {place} on {day}
    the bell of {place} rang by itself [last night|at midnight]
    {name} talks to {beasts}
    the new {official} comes from {place}
    {name} won a {thing} at cards from the {official}
    {name} is the {official}'s secret {relation}
    children saw {beasts} in the {spot}
    the {official} pays well for {ware}
    {name} has not been seen since {day}
    no one has come back from the {spot} since {day}
    a {colour} {thing} fell from the sky near {place}
    {name} {doing}
    the {official} {doing}
    the {official} of {place} {doing}
    {name} the {official} {doing}
""").train

RUMOUR = Kind(
    "rumour",
    _rumour,
    Phrases("""
        You heard that {rumour}.
        You have heard that {rumour}.
        There is a rumour that {rumour}.
        You know a rumour: {rumour}.
        People say that {rumour}.
        You heard a rumour that {rumour}.
        Rumour has it that {rumour}.
        You believe that {rumour}.
        Your favourite gossip: {rumour}.
        You know that {rumour}.
        In town they whisper that {rumour}.
        The latest news is that {rumour}.
    """),
    Phrases("""
        Rumour: {rumour}
        Gossip: {rumour}
        Heard: {rumour}
        News: {rumour}
    """),
    Phrases("""
        [Have you heard|Heard] any rumours?
        Any [news|rumours|gossip]?
        What do people [say|talk about] [around here|these days|here]?
        What is the latest [news|gossip]?
        Do you know any [rumours|gossip]?
        ~ What have you heard lately?
        Any news lately?
        Has anything interesting happened lately?
        ~ Tell me a rumour.
        Is there any news [from the road|in town|around here]?
        What's new [around here|in town|]?
        Heard anything interesting?
        Anything [strange|interesting|odd] happening [here|around here|lately]?
        What are folk whispering about?
        Got any gossip [for me|]?
        ~ Tell me something interesting.
        Have you heard the news?
        What's the word around town?
        Anything I should know about?
        What is going on [here|in this place|in town]?
        You look like someone who hears things.
        What news do you have?
        Has anything happened [here|lately|since I left]?
        ~ Tell me what you have heard.
        Are there any stories going around?
        Any tidings?
        Tell me something [new|]. Any news?
        Tell me the latest.
        Tell me some [news|gossip].
        Tell me something I don't know.
        A rumour, please.
        Tell me a good rumour.
        Do you know a rumour?
        Is there something interesting going on?
        Something interesting to tell?
        Have you heard any [news|gossip]?
        What rumours have you heard?
        What's the latest [rumour|gossip|news]?
        What is the news?
        What's going on?
        What have you heard?
        Did you hear anything?
        What's happening [here|in town|around here]?
        Any interesting [stories|news|rumours]?
        Is there any gossip?
        Tell me the news.
        Have you heard something?
        What do they say in the tavern?
        News?
        Have you got any news?
        Have you any news for me?
        Any tidings from the road?
        What tidings do you bring?
        Share some gossip with me.
        Have any strange things happened?
    """),
    Phrases("""
        They say {rumour}.
        I heard that {rumour}.
        People say that {rumour}.
        Word is that {rumour}.
        [Well|Listen|Keep it to yourself|Between us|You did not hear it from me], but {rumour}.
        Rumour has it that {rumour}.
        Have you not heard? {Rumour}.
        {Rumour}, or so they say.
        {Rumour}. [That's|That is] what I heard[, at least|].
        Folk whisper that {rumour}.
        Lean closer. {Rumour}.
    """),
    ("rumour",),
    Phrases("""
        [Have you heard|Heard] any rumours?
        Any [news|rumours|gossip]?
        What do people [say|talk about] [around here|these days|here]?
        What is the latest [news|gossip]?
        ~ What have you heard lately?
        Any news lately?
        Has anything interesting happened lately?
        ~ Tell me a rumour.
        What's new [around here|in town|]?
        Heard anything interesting?
        Got any gossip [for me|]?
        Have you heard the news?
        What news do you have?
        Any tidings?
        Tell me something [new|]. Any news?
        Tell me the latest.
        Tell me some [news|gossip].
        Tell me something I don't know.
        A rumour, please.
        Tell me a good rumour.
        Do you know a rumour?
        Is there something interesting going on?
        Something interesting to tell?
        Have you heard any [news|gossip]?
        What rumours have you heard?
        What's the latest [rumour|gossip|news]?
        What is the news?
        What's going on?
        What have you heard?
        Did you hear anything?
        What's happening [here|in town|around here]?
        Any interesting [stories|news|rumours]?
        Is there any gossip?
        Tell me the news.
        Have you heard something?
        What do they say in the tavern?
        News?
        Have you got any news?
        Have you any news for me?
        Any tidings from the road?
        What tidings do you bring?
        Share some gossip with me.
        Have any strange things happened?
    """),
    Phrases("""
        I haven't heard anything [new|lately|worth telling].
        No news that I know of.
        Nothing has reached my ears. I don't know any rumours.
        I don't know any rumours[, sorry|, I keep to myself|].
        I have heard nothing[ of late|].
        It's been quiet. I haven't heard a thing.
        I don't listen to gossip, so I don't know.
    """),
)


def _quest(maker: Maker) -> dict[str, str]:
    frame = maker.pick(QUEST_FRAMES)
    currency = maker.currency()
    count = maker.number(12) if maker.chance(0.9) else "a dozen"
    count = {"1": "3", "one": "two"}.get(count, count)
    values = {
        "count": count,
        "material": maker.material(),
        "place": maker.place(),
        "name": maker.person(),
        "thing": maker.thing(),
        "spot": maker.spot(),
        "beasts": maker.pick(words.BEASTS),
        "building": maker.building(),
        "ware": maker.ware("merchant").bare,
        "official": maker.pick(words.OFFICIALS),
    }
    values |= {"animal": maker.animal(), "relation": maker.pick(list(words.RELATIONS)), "wares": maker.ware("merchant").many}
    task = frame.fill(maker.rng, values)
    reward = maker.price(currency) if maker.chance(0.75) else maker.pick(["a free meal", "a good sword", "a warm bed", "a keg of ale", "my thanks and a horse", "a silver ring", "a healing potion", "a map of the hills", "a song in your honour", "free drinks for a week"])
    reward = reward.replace("my thanks", "thanks")
    return {"task": task, "task_said": re.sub(r"\byour\b", "my", task), "reward": reward}


QUEST_FRAMES = Phrases("""
    bring [back|] {count} {material} from {place}
    bring {count} {material} from the {spot}
    find the [lost|stolen|missing] {thing} in the {spot}
    find {name} in {place}
    take a letter to {name} in {place}
    deliver a {ware} to {name} in {place}
    deliver a {ware} to the {official} of {place}
    drive the {beasts} out of the {spot}
    drive the {beasts} away from {building}
    guard {building} for one night
    bring back the {thing} that {name} stole
    ask {name} in {place} for the {thing}
    get rid of the {beasts} in {building}
    fetch {count} {material}
    win back the {thing} from {name}
    repair the roof of {building}
    escort {name} to {place}
    find out who stole the {official}'s {thing}
    look for a {thing} near {building}
    carry a {thing} to {place}
    collect a debt from {name}
    spy on the {official} of {place}
    bury a {thing} in the {spot}
    warn {name} about the {beasts}
    find your [lost|missing|stolen] {thing}
    find your [lost|runaway|missing] {animal} {name}
    find your {animal}
    bring your {relation} {name} a {ware}
    bring a {ware} to your {relation} in {place}
    find your {relation} {name}
    look for your {relation} in {place}
    get your {thing} back from {name}
    repair your roof
    protect your {wares} from the {beasts}
    watch over your house for a night
    carry your bags to {place}
    teach your {relation} to read
    take your {animal} to {place}
""").train

QUEST = Kind(
    "quest",
    _quest,
    Phrases("""
        You need someone to {task}, and you pay {reward}.
        You want someone to {task}. You offer {reward}.
        You are looking for someone to {task}. The reward is {reward}.
        You have a job: {task}. It pays {reward}.
        You give {reward} to whoever will {task}.
        You offer {reward} to anyone who will {task}.
        You hope that someone will {task}. Your reward is {reward}.
        You have a task for brave people: {task}. The reward is {reward}.
        You would pay {reward} to anyone willing to {task}.
    """),
    Phrases("""
        Quest: {task} (reward: {reward})
        Quest: {task}, reward {reward}
        Job: {task}. Pays {reward}
        Needs: someone to {task}, for {reward}
    """),
    Phrases("""
        Do you have any work [for me|]?
        Can I help you [with something|with anything|somehow|]?
        Do you need help?
        Do you have a quest for me?
        I'm looking for work.
        ~ Is there anything I can do for you?
        Got any jobs?
        Do you need [a hand|anything done]?
        Any work for [a traveller|a strong back|an adventurer]?
        How can I earn some coin here?
        I need money. Any jobs?
        What do you need done?
        I heard you need help.
        ~ How can I help?
        I want to earn some money.
        Is there a job to be done?
        What would you have me do?
        I am an adventurer. Need anything?
        Is there anything I can do?
        Is there anything you need?
        Is there something I can do for you?
        Is there any work for me?
        Is there work here?
        Can I do something for you?
        Can I do anything for you?
        Do you need anything?
        Do you need somebody for a job?
        Any quests?
        Do you have a job for me?
        Have you got a job for me?
        Have you got work for me?
        Give me a quest.
        I'd like to help you.
        Let me help you.
        What do you need?
        Do you have a task for me?
        Can I be of help?
        Do you need someone?
        What can I do for you?
        I need a job.
        I want work.
        I'm looking for a job.
        Need a hand?
    """),
    Phrases("""
        I need someone to {task_said}. I pay {reward}.
        [Yes. |There is something. |Indeed. |]{Task_said}, and I will give you {reward}.
        If you {task_said}, you get {reward}.
        {Task_said}, and {reward} is yours.
        You could {task_said}. The reward is {reward}.
        There is {reward} in it for you if you {task_said}.
        I'm looking for someone to {task_said}. It pays {reward}.
        I offer {reward} to whoever will {task_said}. Are you up for it?
        Would you {task_said}? I'd pay {reward}.
    """),
    ("task_said", "reward"),
    Phrases("""
        Do you have any work [for me|]?
        Can I help you [with something|with anything|]?
        Do you need help?
        Do you have a quest for me?
        I'm looking for work.
        ~ Is there anything I can do for you?
        Got any jobs?
        Any work for [a traveller|a strong back|an adventurer]?
        I need money. Any jobs?
        I heard you need help.
        Is there anything I can do?
        Is there anything you need?
        Is there something I can do for you?
        Is there any work for me?
        Is there work here?
        Can I do something for you?
        Can I do anything for you?
        Do you need anything?
        Do you need somebody for a job?
        Any quests?
        Do you have a job for me?
        Have you got a job for me?
        Have you got work for me?
        Give me a quest.
        I'd like to help you.
        Let me help you.
        What do you need?
        Do you have a task for me?
        Can I be of help?
        Do you need someone?
        What can I do for you?
        I need a job.
        I want work.
        I'm looking for a job.
        Need a hand?
    """),
    Phrases("""
        I have no work for you[, sorry|, friend|].
        No work here[ today|], I'm afraid. 
        I don't have any jobs to give.
        I don't need anything[ right now|], but thank you.
        I have nothing for you to do.
        Kind of you, but I don't need help.
        No, I manage on my own. I have no work for you.
    """),
)


def simple(key: str, sample: Sample, prompts: str, labels: str, questions: str, answers: str, needed: tuple[str, ...], blank: str, unknown: str) -> Kind:
    return Kind(key, sample, Phrases(prompts), Phrases(labels), Phrases(questions), Phrases(answers), needed, Phrases(blank or questions), Phrases(unknown))
