"""Actions: their names, descriptions, arguments, the requests for them, and the results that games report.

Lines that begin with ``~`` are held out. An outcome is one line: ``result => answer / answer => words that the answer
mentions``.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from .grammar import Phrases, Slots, Template

WordList = tuple[list[str], list[str]]
"""Words for training, and held-out words."""


def word_list(text: str) -> WordList:
    words = [word.strip() for word in text.replace("\n", ",").split(",") if word.strip()]
    return [w for w in words if not w.startswith("~")], [w[1:].strip() for w in words if w.startswith("~")]


@dataclass(frozen=True)
class Outcome:
    result: Template
    answers: tuple[Template, ...]
    needed: tuple[Template, ...]


class Outcomes:
    """Results of an action with the sentences that follow them."""

    def __init__(self, text: str) -> None:
        lines = [line.strip() for line in text.strip().splitlines() if line.strip()]
        self.train = [self._parse(line) for line in lines if not line.startswith("~")]
        self.held_out = [self._parse(line[1:].strip()) for line in lines if line.startswith("~")]

    @staticmethod
    def _parse(line: str) -> Outcome:
        result, answers, needed = (part.strip() for part in line.split("=>"))
        return Outcome(Template.parse(result), tuple(Template.parse(a) for a in answers.split(" / ")), tuple(Template.parse(n.strip()) for n in needed.split(";")))

    def pick(self, rng: random.Random, slots: Slots, held_out: bool, answer_slots: Slots | None = None) -> tuple[str, str, tuple[str, ...]] | None:
        """A result, an answer and the words that it mentions; ``None`` if no outcome fits the slots."""
        said = {**slots, **(answer_slots or {})}
        choices = self.held_out if held_out and self.held_out and rng.random() < 0.5 else self.train
        fitting = [o for o in choices if o.result.keys <= slots.keys()]
        if not fitting:
            return None
        outcome = fitting[int(rng.random() * len(fitting))]
        answers = [a for a in outcome.answers if a.keys <= slots.keys()]
        answer = answers[int(rng.random() * len(answers))]
        return outcome.result.fill(rng, slots), answer.fill(rng, said), tuple(n.fill(rng, said) for n in outcome.needed)


@dataclass(frozen=True)
class Argument:
    """``values``: how its legal values are made (a method of ``acting.Choices``)."""

    names: WordList
    values: str


@dataclass(frozen=True)
class Kind:
    key: str
    names: WordList
    descriptions: Phrases
    arguments: tuple[Argument, ...]
    requests: Phrases
    says: Phrases
    done: Outcomes
    failed: Outcomes


ITEM = word_list("item, ware, thing, what, product, goods, object, article, stuff, ~ merchandise, ~ piece")
PLACE = word_list("place, location, destination, where, to, room, target, site, ~ spot, ~ goal")
TARGET = word_list("target, enemy, opponent, who, foe, whom, attacker, ~ rival, ~ creature")
PERSON = word_list("person, who, whom, target, name, leader, ~ companion, ~ character")
RECEIVER = word_list("to, recipient, receiver, person, who, customer, ~ addressee, ~ buyer")
COUNT = word_list("count, amount, number, quantity, how_many, ~ pieces, ~ total")
PRICE = word_list("price, amount, coins, cost, money, ~ sum, ~ fee")
SONG = word_list("song, tune, title, melody, piece, what, ~ ballad, ~ music")
SECONDS = word_list("seconds, duration, time, secs, how_long, ~ delay, ~ period")

NO_OUTCOMES = Outcomes("")


def third(verb: str) -> str:
    """``she carves``"""
    if verb.endswith(("s", "x", "z", "ch", "sh")):
        return f"{verb}es"
    return f"{verb[:-1]}ies" if verb.endswith("y") and verb[-2] not in "aeiou" else f"{verb}s"


IRREGULAR = {"wind": "wound", "grind": "ground", "shake": "shaken", "shear": "shorn", "reset": "reset"}
DOUBLED = frozenset("chop tap rub scan trim unplug whip stir unwrap flip".split())


def past(verb: str) -> str:
    """``it is carved``"""
    if verb in IRREGULAR:
        return IRREGULAR[verb]
    if verb in DOUBLED:
        return f"{verb}{verb[-1]}ed"
    if verb.endswith("e"):
        return f"{verb}d"
    return f"{verb[:-1]}ied" if verb.endswith("y") and verb[-2] not in "aeiou" else f"{verb}ed"

GIVE = Kind(
    "give",
    word_list("give, hand_over, give_item, sell, hand_item, sell_item, serve, hand_out, offer_item, give_ware, sell_ware, hand, ~ pass_item, ~ provide, ~ supply, ~ giveItem"),
    Phrases("""
        Hands an item over the counter.
        Gives an item to the player.
        Sells an item.
        Hands something to the guest.
        Gives the player one of your goods.
        Gives a ware to the customer.
        Sells one of your wares to the player.
        ~ Passes an item to the customer.
        Hand over an item.
        Give an item to someone.
        ~ Sell something to the visitor.
        Transfers an item from your stock to the player.
        Use this to hand over an item.
        Use this when the customer buys something.
        Lets the customer have an item.
        Item for the player.
        Hands a thing to the visitor.
        Puts an item into the hands of the customer.
        The player gets an item from you.
        Hand something to the guest.
        Sell something to the player.
        Give something to the customer.
        Gives something away from your shelf.
    """),
    (Argument(ITEM, "goods"),),
    Phrases("""
        I'll take {one}.
        I'd like to buy {one}.
        Give me {one}, please.
        {One}, please.
        I'll have {one}.
        One {bare}, please.
        ~ Alright, {one} it is.
        Sell me {one}.
        I take the {bare}.
        Then I'll buy {one}.
        Let me have {one}.
        Wrap up {one} for me.
        One {bare}.
        Just one {bare}.
        I'll take one {bare}, please.
        I'll buy {one}.
        Can I have {one}?
        I would like {one}, please.
        Okay, {one}.
        Hand me the {bare}.
        Give me the {bare}.
        I want to buy the {bare}.
        Could I get {one}?
        ~ Could you get me {one}, please?
        Please sell me the {bare}.
        May I have the {bare}?
        I want the {bare}, please.
        The {bare} looks good. I'll take it.
        ~ I think I'll go for the {bare}.
        The {bare} is just what I need. I'll buy it.
        Here is my money. Give me the {bare}.
        Could you hand me the {bare}?
        Would you sell me {one}?
        I have decided. {One}, please.
    The {bare} will do. I buy it.
    The {bare} is fine. I'll have it.
    What a fine {bare}! I want it.
    This {bare} is good. Sell it to me.
    I like the {bare}. I'll take it.
    I've been looking for {one}. I'll buy it.
    The {bare} seems right. Give it to me.
    That {bare} there, I'll buy it.
    Could I buy {one}?
    Could I have {one}, please?
    May I buy the {bare}?
    Can I buy {one}?
    Can I get the {bare}, please?
    One of your {many}, please.
    For me {one}.
    For me one {bare}.
    Just {one} for me, please.
    {One} for me.
    I need {one}. I'll pay.
    I would like to have the {bare}.
    I'd love to have {one}.
    I'll pay for {one}.
    I choose the {bare}.
    I want to have {one}.
    A {bare} is what I need. I'll take it.
    Let me buy {one}.
    Let me have the {bare}, please.
    Pack {one} for me.
    Then {one}, please.
    Please give me {one}.
    Please, {one}.
    Bring me {one}, please.
    Get me {one}.
    So, one {bare} for me, please.
    Only the {bare}, please.
    The {bare}, please.
    I came for {one}. Here is the money.
    I am hungry for a good deal: {one}, please.
    Yes, I want {one}.
    Good, then {one}.
    You have {many}? I'll take one.
    [The|This|That] {bare} looks [fine|right|nice|perfect|useful|great]. I'll [buy|have|get] it.
    [The|This|That] {bare} is [fine|good|nice|perfect|just right]. [I'll take it|I take it|I'll buy it|I want it].
    [What a nice {bare}|A fine {bare}|Such a good {bare}]. I'll [take|buy|have] it.
    I'll take [the|this|that] {bare}.
    [The|This|That] {bare} [suits me|is what I want|pleases me|will do]. [I'll take it|I'll buy it|Sell it to me].
    I see [the|your] {bare} and I want to buy it.
    [One|A single] {bare} [for me|to go][, please|].
    One {bare}, [thank you|if you have it|and quickly].
    I'd take one {bare}.
    Could I [have|buy|take] [one|a single] {bare}?
    I could use {one}. I'll buy it.
    """),
    Phrases("""
        Coming right up.
        Of course.
        One moment.
        Certainly.
        Let me get it.
        A good choice.
        Very well.
        Let me see.
        {One}, coming up.
        The {bare}, then.
        As you wish.
    """),
    Outcomes("""
        The player has the {bare}. => The {bare} is yours now. / You have the {bare}. Use it well. / Now the {bare} is yours. => {bare}
        The {bare} is sold. => The {bare} is sold. / Sold. The {bare} is yours. => {bare}
        The {userword} takes the {bare}. => There you go, the {bare} is yours. / Take good care of the {bare}. => {bare}
        The {bare} is handed over. => Here you are, the {bare}. / The {bare} is in your hands now. => {bare}
        You gave the {bare} to the {userword}. => I gave you the {bare}. / You have the {bare} now. => {bare}
        ~ The {userword} now owns the {bare}. => The {bare} is yours. => {bare}
        ~ You sold the {bare}. => I sold you the {bare}. => {bare}
        The player receives the {bare}. => There, you have the {bare}. / Enjoy the {bare}. => {bare}
        OK => Here you are. / There you go. / It's yours. / Done. => 
        Done. => Here you are. / There you go. / It's yours. => 
    """),
    Outcomes("""
        The {bare} is gone. => I'm sorry, the {bare} is gone. / It seems the {bare} is gone. => {bare}; gone
        The {userword}'s hands are full. => Your hands are full. Come back later. / You can't carry more, your hands are full. => hands; full
        The {userword} has no room for the {bare}. => You have no room for the {bare}. / There is no room in your bag for the {bare}. => room; {bare}
        The {bare} is broken. => I can't sell it, the {bare} is broken. / Oh, the {bare} is broken. => {bare}; broken
        The {bare} is already sold. => Sorry, the {bare} is already sold. / The {bare} is already sold, I'm afraid. => {bare}; sold
        ~ The {bare} is out of stock. => The {bare} is out of stock, sorry. => {bare}; stock
        The {userword} left without the {bare}. => You left without the {bare}. / So you don't want the {bare}. => {bare}
        The {userword} does not want the {bare}. => So you don't want the {bare}. / Then keep your money, if you don't want the {bare}. => {bare}
    """),
)
PAY = Kind(
    "pay",
    word_list("take_payment, collect_payment, ask_payment, request_payment, receive_payment, take_money, charge_price, ask_for_money, payment, get_paid, ~ collect_money, ~ bill_player, ~ takePayment"),
    Phrases("""
        Asks the player to pay for an item.
        Takes the money for an item.
        Collects the price of an item.
        Takes the payment of the player.
        Asks the customer for the money.
        Requests the payment before an item is handed over.
        ~ Lets the player pay.
        ~ Takes the coins of the customer.
        Receive the money for something that is sold.
        Use this to get the money for an item.
        Use this before you hand over an item: the customer pays.
        The player pays you.
        The customer pays for an item.
        Makes the player pay.
        Collect money from the player.
        Cash in.
        Get the coins of the player.
        Takes coins from the player.
        Let the customer pay for something.
    """),
    (Argument(ITEM, "goods"),),
    GIVE.requests,
    Phrases("""
        That will be {price}.
        {Price}, please.
        That makes {price}.
        {One} costs {price}.
        First the money.
        Of course.
        Certainly.
        One moment.
        {Price} for {one}.
    """),
    Outcomes("""
        The {userword} pays {price}. => {Price}, thank you. / Thank you for the {price}. / {Price}. That is right. => {price}
        {Price} received. => {Price}, thank you. / I have your {price}. / Thank you, {price}. => {price}
        You receive {price}. => Thank you for the {price}. / {Price}, all there. / I have your {price}. => {price}
        The {userword} paid {price} for the {bare}. => {Price} for the {bare}, thank you. / Thank you, {price}. => {price}
        ~ {Price} was paid. => Thank you for the {price}. => {price}
        ~ The {userword} gives you {price}. => {Price}, thank you. => {price}
        The {userword} hands you {price}. => Thank you, {price}. / {Price}, just right. => {price}
    """),
    Outcomes("""
        The {userword} has not enough {currency}. => You don't have enough {currency}. / Without enough {currency} I can't sell you {one}. / Not enough {currency}? Then come back later. => enough; {currency}
        The {userword} does not have {price}. => You don't have {price}. / Come back when you have {price}. / {Price}, and you don't have it. => {price}
        The {userword} can't pay. => You can't pay, so I keep the {bare}. / If you can't pay, I can't sell. => can't pay
        The {userword} has only {offer}. => You have only {offer}. That's too little. / Only {offer}? I need {price}. / {Offer} is not enough. => {offer}
        The {userword} refuses to pay. => If you refuse to pay, you get nothing. / You refuse to pay? Then no {bare}. => refuse
        ~ The {userword}'s purse is empty. => Your purse is empty. => purse; empty
        ~ The {userword} lacks {currency}. => You lack the {currency}. => {currency}
        Not enough {currency}. => You don't have enough {currency}. / Not enough {currency}, I'm afraid. => enough; {currency}
        The {userword}'s bag is empty. => Your bag is empty. No money, no {bare}. / I see, your bag is empty. => bag; empty
    """),
)
REFUSE = Kind(
    "refuse",
    word_list("refuse, decline, reject, deny, say_no, refuse_request, refuse_trade, not_possible, ~ turn_down, ~ dismiss, ~ refuseRequest"),
    Phrases("""
        Refuses a request.
        Declines what the player wants.
        Turns the player down.
        Rejects a request that you cannot or do not want to fulfil.
        Refuses to do something.
        ~ Says no to a request.
        Refuse a trade or a request.
        Use this if you cannot do what the player asks.
        Use this to refuse.
        Call this for a request that you refuse.
        Say no to the player.
        The character refuses.
        Decline a request.
        Denies a request.
        Says that you won't do it.
    """),
    (),
    Phrases("Refuse."),
    Phrases("No.\nI can't do that.\nNo, sorry."),
    Outcomes("""
        The {userword} is disappointed. => Don't be disappointed. / I see you are disappointed. Maybe another time. => disappointed
        The {userword} nods. => Good that you understand. You nod, so we are fine. / You nod. Good. => nod
        ~ The {userword} sighs. => You sigh, but I can't change it. => sigh
        The {userword} is angry. => Don't be angry. / You are angry, I see. => angry
        OK => As I said, no. / Maybe another time. =>
    """),
    NO_OUTCOMES,
)
MOVE = Kind(
    "move",
    word_list("move, go, go_to, walk_to, walk, travel, move_to, visit, goto, enter, ~ head_to, ~ step_to, ~ relocate, ~ moveTo"),
    Phrases("""
        Walks to a place.
        Moves to another place.
        Goes to a location.
        Go to a place.
        Walk to one of the places.
        ~ Takes you to another place.
        Moves your character.
        You leave and go to a place.
        ~ Travel to a location.
        Use this to go somewhere.
        Travel to a place.
        Takes the character to a place.
        Brings you to a location.
        The character walks to another place.
        Changes your place.
        Go somewhere else.
        Walk to a location.
        Visits a place.
    """),
    (Argument(PLACE, "places"),),
    Phrases("""
        Go to {the_x}.
        Please go to {the_x}.
        Can you go to {the_x}?
        Meet me at {the_x}.
        Come to {the_x}.
        Walk to {the_x}.
        Would you go to {the_x} for me?
        Let's go to {the_x}.
        You are needed at {the_x}.
        Go and look at {the_x}.
        ~ Could you walk over to {the_x}?
        Wait for me at {the_x}.
        I'll see you at {the_x}. Go ahead.
        Come with me to {the_x}.
        Leave this place and go to {the_x}.
        ~ Head over to {the_x}.
        Somebody waits for you at {the_x}.
        Move to {the_x}.
        Run to {the_x}!
        Please visit {the_x}.
        Your friend is at {the_x}. Go there.
        Take me to {the_x}.
        Show me the way to {the_x}.
        Lead me to {the_x}.
    Would you walk to {the_x}?
    Could you go over to {the_x}?
    Could you come to {the_x}?
    Can you come with me to {the_x}?
    Please walk to {the_x}.
    Go over to {the_x}.
    Walk over to {the_x}, please.
    Get over to {the_x}.
    Off to {the_x}!
    Let us walk to {the_x}.
    Hurry to {the_x}.
    Go and wait at {the_x}.
    I want you to go to {the_x}.
    I need you at {the_x}.
    You should go to {the_x}.
    You must go to {the_x} at once.
    They want to see you at {the_x}.
    We meet at {the_x}. Go there.
    Travel to {the_x}.
    Return to {the_x}.
    Would you come with me to {the_x}?
    Make for {the_x}.
    To {the_x}!
    """),
    Phrases("""
        I'm on my way.
        Then let us go to {the_x}.
        I'll go to {the_x}.
        {The_x}, then.
        Very well.
        I'm going.
        Let's go.
        All right.
    """),
    Outcomes("""
        You are at {the_x}. => I am at {the_x} now. / Here we are, at {the_x}. / So this is {the_x}. => {x}
        You arrive at {the_x}. => I have arrived at {the_x}. / There, {the_x}. => {x}
        You have reached {the_x}. => I have reached {the_x}. / Finally, {the_x}. => {x}
        Arrived at {the_x}. => I have arrived at {the_x}. / I am at {the_x}. => {x}
        ~ You walked to {the_x}. => I walked to {the_x}. => {x}
        ~ You stand before {the_x}. => I stand before {the_x}. => {x}
        {The_x} is reached. => I have reached {the_x}. / Here we are, at {the_x}. => {x}
        OK => Here I am. / I'm there. =>
    """),
    Outcomes("""
        The way to {the_x} is blocked. => The way to {the_x} is blocked. / I can't, the way to {the_x} is blocked. => {x}; blocked
        {The_x} is closed. => {The_x} is closed. / Too bad, {the_x} is closed. => {x}; closed
        {Name} stops you at {the_x}. => {Name} stopped me at {the_x}. / I can't, {name} stopped me. => {name}
        The door of {the_x} is locked. => The door of {the_x} is locked. / The door is locked. => door; locked
        ~ {The_x} is too far away. => {The_x} is too far away. => {x}; far
        You lost the way to {the_x}. => I lost the way to {the_x}. => lost; {x}
        {The_x} is empty. => {The_x} is empty. / Nobody is here, {the_x} is empty. => {x}; empty
    """),
)
ATTACK = Kind(
    "attack",
    word_list("attack, fight, strike, hit, attack_target, fight_back, defend_against, strike_down, ~ assault, ~ battle, ~ attackTarget"),
    Phrases("""
        Attacks someone.
        Fights an enemy.
        Draws a weapon and attacks.
        Attack an enemy.
        Strikes a target with a weapon.
        Fight against someone.
        ~ Starts a fight.
        Attacks somebody who threatens you.
        ~ Strike back at an attacker.
        Use this to fight.
        Starts fighting with someone.
        Start a fight against an attacker.
        Hits back at an enemy.
        Strike an enemy.
        Beat an attacker.
        Use your weapon against someone.
        The character attacks somebody.
        Hits someone.
        Defend yourself against somebody.
    """),
    (Argument(TARGET, "targets"),),
    Phrases("""
        Attack {the_x}!
        Kill {the_x}.
        Fight {the_x} for me.
        Hit {the_x}.
        ~ Strike down {the_x}.
        Draw your weapon and attack {the_x}.
        I want you to kill {the_x}.
        Beat {the_x}.
        {The_x} must die. Attack!
        Can you kill {the_x}?
        Would you fight {the_x}?
        ~ Go and attack {the_x}.
        Hurt {the_x}!
        I'll pay you to kill {the_x}.
        {The_x} is weak. Attack now.
    Strike {the_x}!
    Cut down {the_x}.
    Take down {the_x}.
    Knock down {the_x}.
    Go and fight {the_x}.
    Go and kill {the_x}.
    Go and beat {the_x}.
    Please attack {the_x}.
    Please kill {the_x} for me.
    Attack {the_x} for me.
    You must attack {the_x}.
    You should fight {the_x}.
    Slay {the_x}.
    Stab {the_x}.
    Punch {the_x}.
    Shoot {the_x}.
    Finish {the_x} off.
    Get rid of {the_x}.
    Teach {the_x} a lesson with your fists.
    """),
    Phrases("""
        You will regret this!
        Then have it your way!
        Enough!
        I warned you!
        Stay back!
        You asked for it!
        Now you will see!
    """),
    Outcomes("""
        You hit {the_x}. => I hit {the_x}. / Ha, I hit {the_x}! => hit
        You miss. => I missed. / Missed! => miss
        You wound {the_x}. => I wounded {the_x}. / {The_x} is wounded. => wounded
        {The_x} runs away. => {The_x} runs away. / Look, {the_x} runs away! => runs away
        {The_x} is dead. => {The_x} is dead. / It is over, {the_x} is dead. => dead
        {The_x} falls to the ground. => {The_x} falls to the ground. / Down you go. {The_x} is on the ground. => ground
        ~ {The_x} is unconscious. => {The_x} is unconscious. => unconscious
        ~ Your blow strikes {the_x}. => My blow struck {the_x}. / My blow hit. => blow
        {The_x} surrenders. => {The_x} surrenders. / Good, {the_x} surrenders. => surrenders
        You defeated {the_x}. => I defeated {the_x}. / {The_x} is defeated. => defeated
    """),
    Outcomes("""
        {The_x} blocks the blow. => {The_x} blocked my blow. / My blow was blocked. => blow
        You are wounded. => I am wounded! / Ah, I'm wounded. => wounded
        Your weapon breaks. => My weapon is broken! / My weapon breaks! => weapon
        You lose {n} health. => I lost {n} health. / That cost me {n} health. => {n} health
    """),
)
FLEE = Kind(
    "flee",
    word_list("flee, run_away, escape, retreat, hide, run, get_away, flee_from_danger, ~ run_off, ~ take_cover, ~ runAway"),
    Phrases("""
        Runs away from danger.
        Escapes.
        Flee from an enemy.
        You run away.
        Leaves the place as fast as possible.
        ~ Runs for your life.
        Hides from danger.
        ~ Gets you out of danger.
        Use this to get away from danger.
        Runs for safety.
        Brings you to safety.
        Takes you out of a fight.
        Get out of danger.
        The character runs away.
        Leave the fight.
        Save your life and run.
        Run from an attacker.
    """),
    (),
    Phrases("""
        Run away!
        Flee!
        Run!
        Hide!
        You should flee.
        ~ Get out of here!
        Escape while you can.
        Run for your life!
        You had better run away.
        ~ Go and hide.
        Leave everything and run.
    Run while you can!
    Go away, run!
    Get away from here!
    Get away!
    Get out, run!
    You must flee.
    You must hide.
    Flee while you can!
    Go, run!
    Quick, run away!
    Quick, hide!
    Hide somewhere.
    Hide yourself.
    Go and run.
    Leave, fast!
    Out of here, run!
    Save yourself!
    You need to run.
    Let's run away.
    """),
    Phrases("""
        Help!
        Don't hurt me!
        I'm leaving!
        Somebody help!
        Not with me!
        I want no trouble!
        Away from here!
    """),
    Outcomes("""
        You escape. => I escaped. / That was close, but I escaped. => escaped
        You are safe. => I am safe now. / Safe at last. => safe
        You run to {place}. => I ran to {place}. / I am at {place} now. => {place}
        You hide behind {place}. => I hide behind {place}. / I am behind {place}. => behind {place}
        ~ You got away. => I got away. => got away
        ~ Nobody follows you. => Nobody follows me. => follows
        You are out of danger. => I am out of danger. / Out of danger, at last. => danger
    """),
    Outcomes("""
        You are trapped. => I am trapped! / No way out, I'm trapped. => trapped
        {The_x} catches you. => {The_x} caught me! / Let me go! You caught me. => caught
        You stumble. => I stumbled! / Ah, I stumbled. => stumbled
        The door is locked. => The door is locked! / Oh no, the door is locked. => door; locked
    """),
)
FOLLOW = Kind(
    "follow",
    word_list("follow, accompany, come_along, walk_with, follow_person, go_with, ~ escort, ~ tag_along, ~ followPerson"),
    Phrases("""
        Follows a person.
        Walks with someone.
        Accompanies a person.
        Follow someone.
        ~ Stays close to a person.
        Goes where the person goes.
        Use this to go with someone.
        Keep close to a person.
        Walks behind somebody.
        Go with a person.
        Stay near somebody.
        The character follows somebody.
    """),
    (Argument(PERSON, "people"),),
    Phrases("""
        Follow {the_x}.
        Please follow {the_x}.
        Go with {the_x}.
        Can you follow {the_x}?
        Stay with {the_x}.
        ~ Accompany {the_x}.
        Keep close to {the_x}.
        Walk behind {the_x}.
        Stick with {the_x}.
        Stay close to {the_x}.
        Walk with {the_x}.
        Go where {the_x} goes.
        ~ Would you accompany {the_x}?
        Come along with {the_x}.
    Please accompany {the_x} for a while.
    Could you accompany {the_x}?
    Would you follow {the_x}?
    Would you go with {the_x}?
    Please go with {the_x}.
    Please stay with {the_x}.
    Follow {the_x}, please.
    Go after {the_x}.
    Keep up with {the_x}.
    Come with {the_x}.
    I want you to follow {the_x}.
    You should stay with {the_x}.
    Don't leave {the_x} alone, go with {the_x}.
    """),
    Phrases("""
        I'll follow {the_x}.
        Lead the way.
        I'm coming.
        Right behind {the_x}.
        All right.
    """),
    Outcomes("""
        You follow {the_x}. => I am following {the_x}. / I'm right behind {the_x}. => {x}
        You walk behind {the_x}. => I walk behind {the_x}. => {x}
        Following {the_x}. => I am following {the_x}. / I follow {the_x}. => {x}
        ~ You are close to {the_x}. => I am close to {the_x}. => {x}
    """),
    Outcomes("""
        {The_x} is too fast. => {The_x} is too fast for me. / Slow down, {the_x} is too fast. => too fast
        {The_x} is out of sight. => {The_x} is out of sight. / I can't see {the_x}, out of sight. => out of sight
        ~ You lost {the_x}. => I lost {the_x}. => lost
    """),
)
PLAY = Kind(
    "play",
    word_list("play, sing, play_song, sing_song, perform, play_music, ~ play_tune, ~ strike_up, ~ singSong"),
    Phrases("""
        Plays a song.
        Sings a song.
        Performs a piece of music.
        Play one of your songs.
        ~ Entertains the guests with a song.
        Use this to make music.
        Entertains the guests.
        Sing one of your songs.
        Make music for the guests.
        Gives the guests a song.
    """),
    (Argument(SONG, "songs"),),
    Phrases("""
        Play {x}.
        Sing {x} for us.
        Can you play {x}?
        I'd like to hear {x}.
        Do you know {x}? Play it.
        ~ Let's hear {x}.
        Give us {x}!
        Please sing {x}.
        I want to hear {x}.
        Once more {x}, please.
        ~ How about {x}? Play it for me.
        Perform {x} for me.
    Let us hear {x}.
    I'd love to hear {x}. Play it.
    How about {x}?
    Would you play {x}?
    Could you sing {x}?
    Please play {x}.
    Play {x} for me.
    Now {x}, please.
    {X}, please!
    I want {x}. Sing it.
    Start with {x}.
    Your best song, {x}!
    """),
    Phrases("""
        Listen.
        {X}, then.
        Gladly.
        Here it comes.
        This one is for you.
    """),
    Outcomes("""
        You play {x}. => That was {x}. / I played {x} for you. => {x}
        The guests clap. => Thank you, you clap too kindly. / Hear how they clap! => clap
        You sing {x}. => That was {x}. / I sang {x}. => {x}
        ~ The guests cheer. => Listen, they cheer! => cheer
        The {userword} gives you {price}. => {Price}, how kind. / Thank you for the {price}. => {price}
    """),
    Outcomes("""
        A string breaks. => A string broke. / Oh no, a string is broken. => string
        Nobody listens. => Nobody listens to me. => listen
        ~ Your voice fails. => My voice fails me. => voice
    """),
)
GESTURES = (
    ("wave", "Waves a hand.", "Wave to the crowd. / Wave at me. / Please wave. / Can you wave? / Wave your hand.", "waved"),
    ("bow", "Bows.", "Bow to the queen. / Bow before me. / Please bow. / Can you bow? / Take a bow.", "bowed"),
    ("dance", "Dances.", "Dance for me. / Dance with me. / Can you dance? / Let's dance. / Show me a dance.", "danced"),
    ("sit_down", "Sits down.", "Sit down. / Take a seat. / Please sit down. / Sit with me. / Have a seat.", "sat down"),
    ("stand_up", "Stands up.", "Stand up. / Get up. / On your feet! / Please stand up. / Rise.", "stood up"),
    ("kneel", "Kneels down.", "Kneel. / On your knees! / Kneel before me. / Please kneel down. / Get down on your knees.", "knelt"),
    ("jump", "Jumps.", "Jump! / Can you jump? / Jump up and down. / Please jump. / Let me see you jump.", "jumped"),
    ("pray", "Says a prayer.", "Pray for us. / Say a prayer. / Please pray. / Pray with me. / Will you pray for me?", "prayed"),
    ("clap", "Claps.", "Clap your hands. / Clap for the bard. / Please clap. / Let's clap. / Give him a hand, clap!", "clapped"),
    ("whistle", "Whistles.", "Whistle. / Can you whistle? / Whistle for me. / Please whistle. / Whistle loudly.", "whistled"),
    ("turn_around", "Turns around.", "Turn around. / Please turn around. / Look the other way, turn around. / Turn your back to me. / About turn!", "turned around"),
    ("lie_down", "Lies down.", "Lie down. / Please lie down. / Get some rest, lie down. / Go and lie down. / Lie on the floor.", "lay down"),
    ("ring_bell", "Rings the bell.", "Ring the bell. / Please ring the bell. / Can you ring the bell? / Sound the bell. / Let me hear the bell.", "rang the bell"),
    ("sleep", "Goes to sleep.", "Go to sleep. / Sleep now. / You should sleep. / Go to bed. / Please get some sleep.", "slept"),
    ("wait", "Waits here.", "Wait here. / Please wait. / Stay here. / Wait a moment. / Stay where you are.", "waited"),
    ("call_guards", "Calls the guards.", "Call the guards. / Get the guards! / Please call the guards. / Shout for the guards. / We need the guards.", "called the guards"),
)
"""Actions without arguments: name, description, requests, past."""
VERBS = (
    ("clean", "cleans", "cleaned"), ("paint", "paints", "painted"), ("sharpen", "sharpens", "sharpened"), ("count", "counts", "counted"),
    ("hide", "hides", "hidden"), ("burn", "burns", "burned"), ("bless", "blesses", "blessed"), ("curse", "curses", "cursed"),
    ("wash", "washes", "washed"), ("wrap", "wraps", "wrapped"), ("weigh", "weighs", "weighed"), ("lift", "lifts", "lifted"),
    ("push", "pushes", "pushed"), ("pull", "pulls", "pulled"), ("read", "reads", "read"), ("repair", "repairs", "repaired"),
    ("cook", "cooks", "cooked"), ("taste", "tastes", "tasted"), ("feed", "feeds", "fed"), ("polish", "polishes", "polished"),
    ("measure", "measures", "measured"), ("cut", "cuts", "cut"), ("throw", "throws", "thrown"), ("kick", "kicks", "kicked"),
    ("open", "opens", "opened"), ("close", "closes", "closed"), ("lock", "locks", "locked"), ("unlock", "unlocks", "unlocked"),
    ("light", "lights", "lit"), ("inspect", "inspects", "inspected"), ("search", "searches", "searched"), ("break", "breaks", "broken"),
    ("heal", "heals", "healed"), ("enchant", "enchants", "enchanted"), ("bury", "buries", "buried"), ("water", "waters", "watered"),
    ("mend", "mends", "mended"), ("fill", "fills", "filled"), ("empty", "empties", "emptied"), ("brush", "brushes", "brushed"),
    ("forge", "forges", "forged"), ("test", "tests", "tested"), ("drop", "drops", "dropped"), ("hold", "holds", "held"),
    *((verb, third(verb), past(verb)) for verb in """
    carve chop drain fold guard iron knead load melt oil pack peel plant press roast roll salt scratch seal sketch slice smell sort stack stir store tune wind wipe copy heat cool dry dye dust
    fix flip check cover uncover decorate destroy examine label lower raise replace rescue scan sign stretch touch trim untie season frame nail glue grease hammer varnish stuff pickle smoke
    boil grate mash whip dissolve mix shake squeeze tap knock rub scrape rinse soak unpack unwrap unroll turn tilt rotate aim name praise admire photograph record film weld solder calibrate
    reset restart unplug connect update ignite extinguish activate deactivate milk shear saddle groom harness comb braid stitch hem crush grind pound spray bandage sterilise label wax
    """.split()),
    ("mark", "marks", "marked"), ("move", "moves", "moved"), ("switch_on", "switches on", "switched on"), ("switch_off", "switches off", "switched off"),
)
"""Verbs of actions with a thing. Which of them are held out is decided by ``grammar.is_held_out``."""
THING_REQUESTS = Phrases("""
    {Verb} the {x}.
    Please {verb} the {x}.
    Can you {verb} the {x}?
    Could you {verb} the {x} for me?
    I want you to {verb} the {x}.
    Would you {verb} the {x}, please?
    Will you {verb} the {x}?
    ~ Kindly {verb} the {x}.
    Go and {verb} the {x}.
    You should {verb} the {x}.
    The {x} must be {past}.
    The {x} needs to be {past}.
    I need the {x} {past}.
    It is time to {verb} the {x}.
    ~ I'd be glad if you could {verb} the {x}.
    Now {verb} the {x}.
    Do me a favour and {verb} the {x}.
    You could {verb} the {x}.
    Time to {verb} the {x}.
    Will you please {verb} the {x}?
    Will you {verb} the {x} for me?
    It's time to {verb} the {x}.
    It is time that you {verb} the {x}.
    I'd like you to {verb} the {x}.
    I want the {x} {past}.
    Let's {verb} the {x}.
    You must {verb} the {x}.
    You have to {verb} the {x}.
    Somebody should {verb} the {x}.
    {Verb} the {x}, please.
    {Verb} the {x} for me.
    {Verb} the {x} now.
    First {verb} the {x}.
    Go {verb} the {x}.
    Try to {verb} the {x}.
    Would you mind? {Verb} the {x}.
    The {x}! {Verb} it.
    Here is the {x}. {Verb} it, please.
    Take the {x} and {verb} it.
    Why don't you {verb} the {x}?
    How about the {x}? {Verb} it.
    Be so kind and {verb} the {x}.
    Will you go and {verb} the {x}?
    Will you now {verb} the {x}?
    Won't you {verb} the {x}?
    Can you please {verb} the {x}?
    Could you {verb} the {x}?
    Would you {verb} the {x}?
    It is time. {Verb} the {x}.
    It's high time to {verb} the {x}.
    [Somebody|Someone] must {verb} the {x}. Do it.
""")
THING_SAYS = Phrases("""
    I'll {verb} the {x}.
    The {x}, then.
    At once.
    Very well.
    I can do that.
    Let me see.
    Gladly.
    One moment.
""")
THING_DONE = Outcomes("""
    You have {past} the {x}. => I have {past} the {x}. / The {x} is {past}. => {x}; {past}
    The {x} is now {past}. => The {x} is {past} now. / Now the {x} is {past}. => {x}; {past}
    The {x} was {past}. => The {x} is {past}. / Done, the {x} is {past}. => {x}; {past}
    The {x} is {past}. => The {x} is {past}. / Done, the {x} is {past}. / There, the {x} is {past} now. => {x}; {past}
    You {verb} the {x}. => The {x} is {past}. / The {x} is {past} now. => {x}; {past}
    The {x} has been {past}. => The {x} has been {past}. / There, the {x} is {past}. => {x}; {past}
    ~ The {x} was {past} by you. => The {x} is {past}. => {x}; {past}
    OK => Done. / It is done. =>
""")
THING_FAILED = Outcomes("""
    The {x} is gone. => The {x} is gone. / I can't, the {x} is gone. => {x}; gone
    The {x} is too heavy. => The {x} is too heavy. / I can't, the {x} is too heavy for me. => {x}; heavy
    The {x} can't be {past}. => The {x} can't be {past}. / I'm afraid the {x} can't be {past}. => {x}; {past}
    The {x} is stuck. => The {x} is stuck. / It seems the {x} is stuck. => {x}; stuck
    ~ The {x} is already {past}. => The {x} is already {past}. => already {past}
    {Name} has the {x}. => {Name} has the {x}. / I can't, {name} has the {x}. => {name}; {x}
""")
THING_DESCRIPTIONS = Phrases("""
    {Verbs} a thing.
    {Verbs} something.
    {Verbs} one of the things.
    {Verb} a thing.
    {Verb} an object.
    {Verbs} an object in the room.
    Here you {verb} a thing.
    ~ Action to {verb} a thing.
    The character {verbs} a thing.
    Use this to {verb} something.
    Use this to {verb} a thing.
    Call this to {verb} an object.
    Lets you {verb} a thing.
    You {verb} something.
    You {verb} a thing here.
    With this you {verb} something.
    Here you {verb} an object.
    Here something is {past}.
    To {verb} a thing.
    For you to {verb} a thing.
    The thing is {past}.
    Something is {past}.
""")
GENERIC_RESULTS = Outcomes("""
    The {noun} is {state}. => The {noun} is {state}. / It seems the {noun} is {state}. / Look, the {noun} is {state}. / I see, the {noun} is {state}. => {noun}; {state}
    The {noun} is {state}. => The {noun} is {state}. / I'm afraid the {noun} is {state}. => {noun}; {state}
    The {noun} was {past} by {name}. => The {noun} was {past} by {name}. / {Name} has {past} the {noun}. => {noun}; {name}
    The {noun} was {past}. => The {noun} was {past}. / It seems the {noun} was {past}. => {noun}; {past}
    The {noun} has been {past}. => The {noun} has been {past}. / Look, the {noun} has been {past}. => {noun}; {past}
    The {noun} can't be {past}. => The {noun} can't be {past}. / I see, the {noun} can't be {past}. => {noun}; {past}
    You {verb} the {noun}. => I {verb} the {noun}. / Now I {verb} the {noun}. => {noun}; {verb}
    You must {verb} the {noun} first. => I must {verb} the {noun} first. / First I must {verb} the {noun}. => {noun}; {verb}
    {Name} {verbs} the {noun}. => {Name} {verbs} the {noun}. / Look, {name} {verbs} the {noun}. => {name}; {noun}
    {Name} wants to {verb} the {noun}. => {Name} wants to {verb} the {noun}. => {name}; {noun}
    {Name} {does}. => {Name} {does}. / Look, {name} {does}. / I see that {name} {does}. => {name}
    {Name} {does} at you. => {Name} {does} at me. / Why does {name} look at me? => {name}
    {Name} is in the way. => {Name} is in the way. / I can't, {name} is in the way. => {name}
    {Name} is {state}. => {Name} is {state}. / It seems {name} is {state}. => {name}; {state}
    {Name} has taken the {noun}. => {Name} has taken the {noun}. / It was {name} who took the {noun}. => {name}; {noun}
    The {noun} is {name}'s. => The {noun} is {name}'s. / It is {name}'s {noun}. => {noun}; {name}
    There are {n} {nouns} left. => There are {n} {nouns} left. / {N} {nouns} are left. => {n}; {nouns}
    You have {n} {nouns} now. => I have {n} {nouns} now. / Now I have {n} {nouns}. => {n}; {nouns}
    You find {a_noun}. => I found {a_noun}. / Look, {a_noun}! => {noun}
    You get {a_noun} from {name}. => I got {a_noun} from {name}. / {Name} gave me {a_noun}. => {noun}; {name}
    You lose {price}. => I lost {price}. / That cost me {price}. => {price}
    You lose the {noun}. => I lost the {noun}. / The {noun} is lost. => {noun}
    It takes {n} minutes. => It takes {n} minutes. / That will take {n} minutes. => {n} minutes
    {A_noun} blocks the way. => {A_noun} blocks the way. / I can't, {a_noun} blocks the way. => {noun}
    {Name} says no. => {Name} says no. / I can't, {name} said no. => {name}
    Error: no {noun} found. => I found no {noun}. / There is no {noun}. => no {noun}
    ~ The {noun} belongs to {name}. => The {noun} belongs to {name}. => {noun}; {name}
    ~ {Name} laughs at you. => {Name} laughs at me. => {name}
    You need {a_noun} first. => I need {a_noun} first. / First I need {a_noun}. => {noun}
    You are too {feeling}. => I am too {feeling}. / I can't, I am too {feeling}. => {feeling}
    You feel {feeling}. => I feel {feeling}. / Now I feel {feeling}. => {feeling}
    Somebody has stolen the {noun}. => Somebody has stolen the {noun}! / The {noun} is stolen! => {noun}; stolen
    The {noun} does not {verb}. => The {noun} does not {verb}. => {noun}; {verb}
    The {noun} is out of {noun2}. => The {noun} is out of {noun2}. / It is out of {noun2}. => {noun2}
    The {noun} has {a_noun2}. => The {noun} has {a_noun2}. => {noun}; {noun2}
    You stand near the {noun}. => I stand near the {noun}. / I am near the {noun}. => {noun}
    You stand behind the {noun}. => I stand behind the {noun}. => {noun}
    Nobody has {a_noun}. => Nobody has {a_noun}. => nobody; {noun}
    Nobody {does}. => Nobody {does}. => nobody
    The {noun} and the {noun2} are {state}. => The {noun} and the {noun2} are {state}. => {noun}; {noun2}; {state}
""")
MORE_RESULTS = Outcomes("""
    The {noun} is too {state}. => The {noun} is too {state}. / I can't, the {noun} is too {state}. => {noun}; {state}
    Your {noun} is {state}. => My {noun} is {state}. / Oh, my {noun} is {state}. => {noun}; {state}
    The {userword}'s {noun} is {state}. => Your {noun} is {state}. / I see, your {noun} is {state}. => {noun}; {state}
    The {noun} of the {userword} is {state}. => Your {noun} is {state}. / It seems your {noun} is {state}. => {noun}; {state}
    The {noun} {verbs} the {noun2}. => The {noun} {verbs} the {noun2}. / Look, the {noun} {verbs} the {noun2}. => {noun}; {noun2}
    The {noun} is in the {noun2}. => The {noun} is in the {noun2}. / I found the {noun} in the {noun2}. => {noun}; {noun2}
    There is no {noun} in the {noun2}. => There is no {noun} in the {noun2}. / I see no {noun} in the {noun2}. => {noun}; {noun2}
    {Name} is too {state}. => {Name} is too {state}. => {name}; {state}
    The {noun} does not {word} any more. => The {noun} does not {word} any more. / Sorry, the {noun} does not {word} any more. => {noun}; {word}
    The {noun} won't {word}. => The {noun} won't {word}. / I tried, but the {noun} won't {word}. => {noun}; {word}
    {Name} does not want to {word}. => {Name} does not want to {word}. => {name}; {word}
    Nobody {verbs} the {noun}. => Nobody {verbs} the {noun}. => nobody; {noun}
    Everybody {verbs} the {noun}. => Everybody {verbs} the {noun}. => everybody; {noun}
    The {noun} smells of {noun2}. => The {noun} smells of {noun2}. => {noun}; {noun2}
    The {noun} costs {price}. => The {noun} costs {price}. / It costs {price}. => {price}
    The {noun} is full of {nouns}. => The {noun} is full of {nouns}. => {noun}; {nouns}
    You are {n} steps from the {noun}. => I am {n} steps from the {noun}. => {n}; {noun}
    You are under the {noun}. => I am under the {noun}. => {noun}
    You are {state}. => I am {state}. / Now I am {state}. => {state}
    The {userword} is {state}. => You are {state}. / I see that you are {state}. => {state}
    The {userword} has a {state} {noun}. => You have a {state} {noun}. => {state}; {noun}
    The {userword} wants the {noun}. => You want the {noun}. / So you want the {noun}. => {noun}
    The {userword} {verbs} the {noun}. => You {verb} the {noun}. / Why do you {verb} the {noun}? => {verb}; {noun}
    The {userword} {does}. => I see it. The {userword} {does}. => {does}
    The {state} {noun} is gone. => The {state} {noun} is gone. => {state}; {noun}; gone
    The {noun} became {state}. => The {noun} became {state}. / Look, the {noun} became {state}. => {noun}; {state}
    Result: {noun}. => The result is {noun}. / It says {noun}. => {noun}
    {Name} of {noun}: {state}. => {Name} of {noun} is {state}. => {name}; {state}
    The {noun} can {word} now. => The {noun} can {word} now. => {noun}; {word}
    You could not {word}. => I could not {word}. / I tried, but I could not {word}. => {word}
    You have to {word} the {noun}. => I have to {word} the {noun}. / First I have to {word} the {noun}. => {word}; {noun}
    The {noun} needs {a_noun2}. => The {noun} needs {a_noun2}. => {noun}; {noun2}
    The {noun} is {n} {nouns} long. => It is {n} {nouns} long. => {n}; {nouns}
""")
"""Of training: any words in the results, so that an answer copies them."""
FEELINGS = word_list("tired, weak, old, slow, hungry, happy, sick, strong, small, cold, brave, afraid, young, busy, sleepy, heavy, loud, angry, ~ drunk, ~ clumsy, ~ dizzy")
STATES = word_list("empty, broken, locked, too heavy, wet, cold, hot, missing, dirty, full, stuck, on fire, asleep, dark, closed, gone, old, loose, frozen, red, too small, too big, ready, warm, ~ damaged, ~ rusty, ~ open, ~ burned, ~ crooked")

NOT_HERE = Phrases("""
    I have no {x}.
    I don't have {x_a}.
    There is no {x} here.
    I don't have {x_a}, sorry.
    I can't give you {x_a}. I have none.
    Sorry, no {x} here.
""")
"""Something is requested that is not in the list."""
NO_WAY = Phrases("""
    I don't know the way to {the_x}.
    I can't go to {the_x}.
    I don't know how to get to {the_x}.
    {The_x}? I can't go there.
    Sorry, I can't go to {the_x}.
""")
NOT_ABLE = Phrases("""
    I can't do that.
    That's not something I can do.
    I can't do that, sorry.
    I don't know how to do that.
    I'm afraid I can't.
    No, I can't do that.
""")
NO_THING = Phrases("""
    I can't {verb} the {x}.
    There is no {x} here.
    I see no {x} here.
    Sorry, I can't {verb} the {x}.
    I don't know that {x}.
""")
NO_SONG = Phrases("""
    I don't know {x}.
    {X}? I don't know that one.
    Sorry, I can't play {x}.
    I never learned {x}.
""")
NO_PERSON = Phrases("""
    I can't follow {the_x}.
    I don't see {the_x} here.
    {The_x}? I don't know where to find {the_x}.
    Sorry, I can't follow {the_x}.
""")
NO_VIOLENCE = Phrases("""
    I won't hurt anyone without a reason.
    No. {The_x} has done nothing to me.
    Why should I? {The_x} has done me no harm.
    I don't fight without a reason.
    No, I won't attack {the_x}.
    There will be no fight here.
    I'm no murderer.
""")
NO_FLIGHT = Phrases("""
    Why should I run? There is no danger.
    I see no danger here.
    Run? From what?
    I stay here.
    There is nothing to run from.
""")
MENTIONS = Phrases("""
    I like the {x}.
    I saw the {x} yesterday.
    Is the {x} old?
    My {role} has {x_a} as well.
    A nice {x}.
    What {x_a}!
    Everybody talks about the {x}.
    ~ I once had {x_a}.
    I have heard of the {x}.
    The {x} is beautiful.
    I don't need the {x}.
    Don't touch the {x}.
    I don't want the {x}.
    ~ The {x} is not for me.
    I dreamed of the {x}.
    Did you see the {x}?
    Who made the {x}?
    Where is the {x} from?
    Do not give anyone the {x}.
    I already have {x_a}.
    I had {x_a} once.
    Once I had {x_a}, long ago.
    My father had {x_a}.
    I used to have {x_a}.
    I have seen {x_a} before.
    I lost my {x}.
    The {x} is not what I want.
    The {x} is nothing for me.
    This {x} is not for you.
    I don't like the {x}.
    I never liked the {x}.
    I hate the {x}.
    So this is the {x}.
    The {x} looks old.
    The {x} looks nice.
    Keep the {x}.
    I don't want {x_a}.
    No {x} for me.
    No {x} today, thanks.
    How old is the {x}?
    Whose {x} is that?
    Is that {x_a}?
    Why is the {x} here?
    Is the {x} yours?
    Who owns the {x}?
    Leave the {x} alone.
    Somebody talked about the {x}.
    I was thinking about the {x}.
    Not the {x} again.
""")
"""Something of the lists is mentioned, and nothing is requested."""
KNOWS_NO_MORE = Phrases("""
    I don't know.
    I can't say.
    I don't know much about the {x}.
    No idea.
    I never thought about it.
    About the {x}? I don't know.
""")
HEARS_MENTION = Phrases("""
    I see.
    Is that so?
    Yes, the {x}.
    Good to know.
    As you say.
    I understand.
    Hm, the {x}.
    If you say so.
""")
THREATS = Phrases("""
    I will kill you!
    I'm going to kill you.
    Prepare to die!
    Your money or your life!
    *draws a sword and attacks*
    *hits you in the face*
    I'll break your bones!
    Die!
    *swings an axe at you*
    I will cut your throat!
    Give me all your money or I'll kill you!
    Now you die!
    ~ You won't leave this place alive!
    *punches you*
    *pulls a knife on you*
    Hand over your gold or I'll hurt you!
    Fight me! *raises the fists*
    *throws a knife at you*
    ~ *hits you over the head with a bottle*
    This is a robbery! Hands up!
    *kicks you*
    I will burn your house and you in it!
    *attacks you*
    I'll smash your head!
    Time to die, {trade}.
    *charges at you with a spear*
    ~ *draws a dagger and lunges at your throat*
    Draw your sword and fight, {self}!
    I'll beat you to death.
    I will stab you.
    *shoots an arrow at you*
    You die now!
    Now I will kill you!
    Now you are dead!
    I'll kill you!
    *throws a stone at you*
    *throws an axe at you*
    *slaps you*
    *bites you*
    *runs at you with a sword*
    *charges at you*
    *stabs you with a knife*
    *lunges at you*
    *grabs you by the throat*
    *strikes you with a club*
    I will hurt you badly!
    Your life ends here!
    I'll have your head!
    *points a crossbow at you* Your money!
    You will die, {self}!
    *aims a bow at you*
    *[throws|hurls|flings] [a rock|a bottle|a dagger|an axe|a chair] at you*
    *[runs|rushes|leaps|jumps|comes] at you with [a knife|a sword|a club|an axe|a hammer]*
    *[swings|raises|thrusts] [a sword|a club|a fist|a hammer] at you*
    *[shoots|fires] at you*
    [Now|Today|Here] you [will die|are going to die|are dead].
    Die, {trade}!
    [I'll|I will] [kill|murder|slay|stab|strike|beat|burn|hang] you [now|for this|right here|with my own hands].
    You [die|bleed] [today|tonight|here]!
    Say your prayers, you are dead!
""")
ATTACKS = Phrases("""
    {The_x} attacks you.
    {The_x} hits you.
    {The_x} draws a weapon and attacks you.
    {The_x} runs at you with an axe.
    {The_x} strikes you from behind.
    {The_x} is attacking you!
    {The_x} wounds you.
    {The_x} tries to kill you.
    {The_x} throws a stone at you.
    ~ {The_x} hits you over the head with a bottle.
    {The_x} lunges at you with a knife.
    ~ {The_x} cuts you with a blade.
    {The_x} jumps at you.
    {The_x} pushes you and raises a knife.
    You are attacked by {the_x}.
    You are hit by {the_x}.
    {The_x} shoots at you.
    {The_x} bites you.
    Suddenly {the_x} assaults you.
    ~ Out of nowhere, {the_x} attacks you.
    {The_x} threatens you with a sword.
    {The_x} threatens to kill you.
    {The_x} throws an axe at you.
    {The_x} throws something at you and hits you.
    {The_x} swings a club at you.
    {The_x} charges at you.
    {The_x} comes at you with a knife.
    {The_x} slaps you in the face.
    {The_x} kicks you.
    {The_x} stabs at you.
    {The_x} grabs you by the throat.
    Suddenly {the_x} attacks you.
    Suddenly {the_x} hits you.
    Without warning {the_x} strikes you.
    From behind {the_x} attacks you.
    Now {the_x} attacks you.
    You are wounded by {the_x}.
    {The_x} wants to kill you.
    {The_x} has hit you.
    {The_x} has attacked you.
    An attack! {The_x} hits you.
    {The_x} [throws|hurls|flings] [a rock|a bottle|a spear|a brick|a dagger|a chair|an axe|a burning torch|{a_noun}] at you.
    {The_x} [leaps|jumps|rushes|runs|charges|comes|dashes|springs|goes] at you with [a knife|a sword|a club|a spear|an axe|a dagger|a hammer|bare hands|{a_noun}].
    {The_x} [swings|thrusts|raises|aims] [a knife|a sword|a club|a spear|an axe|a hammer|a fist|{a_noun}] at you.
    {The_x} [shoots|fires] [an arrow|a bolt|a crossbow|a pistol] at you.
    [All of a sudden|Without a word|In the dark|At once|Now|Then|Again] {the_x} [attacks|hits|strikes|stabs|kicks|bites] you.
    An assault! {The_x} [attacks|strikes] you.
    {The_x} starts an assault on you.
    {The_x} [knocks you down|breaks your nose|cuts your arm|scratches your face|hits your head|tears at your clothes].
    {The_x} [fights|beats|cuts|stabs|punches|chokes|burns|claws] you.
    {The_x} beats you.
""")
QUIET_EVENTS = Phrases("""
    {Name} enters the room.
    {Name} leaves.
    {Name} {does}.
    {Name} {does}.
    {Name} {does}.
    {Name} {does} at you.
    {Name} {verbs} the {noun}.
    {Name} {verbs} {a_noun}.
    The {userword} {does}.
    The {userword} {does} at you.
    {An_animal} {does}.
    It starts to rain.
    The {userword} sits down.
    {An_animal} runs by.
    The bell rings.
    {Name} greets you.
    It gets dark.
    {Name} drops {a_noun}.
    ~ Somebody opens a window.
    Somebody {does}.
    Somebody {verbs} {a_noun}.
    Somebody comes in.
    Somebody closes the door.
    The {userword} puts {a_noun} on the table.
    ~ {Name} smiles at you.
    The wind gets stronger.
    {Name} sings a song.
    {Name} looks at you.
    The {userword} comes closer.
    The sun is rising.
    {Name} is waiting outside.
    {Name} is back.
    You hear {an_animal}.
    You see {name}.
    You see {a_noun}.
    {A_noun} falls to the floor.
    The {noun} is {state}.
    There is {a_noun} on the table.
    It is {state} outside.
    The {userword} buys {a_noun} from {name}.
    {Name} gives you {a_noun}.
    {Name} tells a story.
    Two guests talk about {name}.
    The door opens.
    The fire goes out.
""")
DOES = word_list("""
laughs, cries, sneezes, dances, falls asleep, yawns, coughs, whistles, prays, shouts, whispers, nods, winks, points, waves, bows, walks by, sits down, stands up, hums, sighs, snores, drinks, eats,
stares, looks, sings, grins, frowns, shrugs, jumps, trembles, turns around, kneels, speaks, thinks, waits, rests, leaves, comes back, listens, smokes, blinks, giggles, groans, weeps, claps, cheers
""")
HEARS_EVENT = Phrases("""
    What was that?
    I see.
    Hm.
    So it goes.
    Well, well.
    Another day in {home}.
    Life goes on.
    I have seen stranger things.
    What a day.
""")
BRAVE = Phrases("""
    You never run from a fight.
    You are brave and fight back.
    If someone attacks you, you fight back.
    You are a good fighter and fear nobody.
    You always fight back.
    You stand your ground in a fight.
    You would rather fight than flee.
    You do not flee from anybody.
    You don't run away.
    You would not run from an enemy.
    You never flee.
    You are a warrior and not afraid.
    Running away is not for you.
    Whoever attacks you gets a fight.
    You would never run away.
    ~ You fight to the end.
""")
TIMID = Phrases("""
    You are a coward.
    You run from danger.
    If someone attacks you, you run away.
    You are no fighter. You flee from danger.
    You are easily scared and run away.
    You don't fight.
    You avoid every fight.
    You never hit anyone.
    You never draw a weapon.
    You do not fight, you run.
    You would rather flee than fight.
    You hate fights and run from them.
    Fights are not for you.
    You never attack anyone.
    You never fight.
    ~ You always run when there is danger.
""")
USER_WORDS = word_list("player, player, stranger, visitor, guest, traveller, customer, hero, wanderer, buyer, client, passenger, friend, human, foreigner, knight, pilgrim, citizen, patient, ~ newcomer, ~ adventurer")
BEASTS = word_list("wolf, bandit, goblin, bear, ghost, troll, giant rat, pirate, wild boar, spider, thief, dragon, smuggler, deserter, lion, ogre, vampire, orc, snake, skeleton, ~ werewolf, ~ hyena, ~ assassin, ~ zombie, ~ harpy")

# The robot

ROBOT_DONE = {
    "goto": Outcomes("""
        You are in the {x}. => I am in the {x}. / I have arrived in the {x}. => {x}
        Arrived at the {x}. => I have arrived at the {x}. / I am at the {x} now. => {x}
        Position: {x}. => I am at the {x}. / My position is the {x}. => {x}
        ~ The {x} is reached. => I have reached the {x}. => {x}
        OK => I am there. / Done. =>
    """),
    "fetch": Outcomes("""
        You have the {x}. => I have the {x}. / Here is the {x}. => {x}
        The {x} is picked up. => I have picked up the {x}. / The {x} is here. => {x}
        Item loaded: {x}. => The {x} is loaded. / I have the {x}. => {x}
        ~ The {x} is in your gripper. => The {x} is in my gripper. => {x}
        OK => Here it is. / Done. =>
    """),
    "deliver": Outcomes("""
        The {x} is delivered. => The {x} is delivered. / I have delivered the {x}. => {x}
        The {x} is in the {y}. => The {x} is in the {y}. / I brought the {x} to the {y}. => {x}; {y}
        Delivered: {x}, {y}. => I delivered the {x} to the {y}. / The {x} is in the {y}. => {x}; {y}
        ~ The {y} has the {x}. => The {y} has the {x} now. => {y}; {x}
        OK => Delivered. / Done. =>
    """),
    "follow": FOLLOW.done,
    "clean": Outcomes("""
        The {x} is clean. => The {x} is clean. / Done, the {x} is clean again. => {x}; clean
        Cleaning of the {x} is finished. => I have cleaned the {x}. / The {x} is finished. => {x}
        ~ The {x} has been cleaned. => The {x} has been cleaned. => {x}; cleaned
        OK => It is clean. / Done. =>
    """),
    "wait": Outcomes("""
        You waited. => I have waited. => waited
        The time is over. => The time is over. / I waited until the time was over. => time
        ~ Waiting is finished. => I am finished with waiting. => finished
        OK => I am ready. / Done. =>
    """),
    "stop": Outcomes("""
        You have stopped. => I have stopped. => stopped
        Stopped. => I have stopped. / I stopped. => stopped
        The motors are off. => My motors are off. => motors; off
        ~ You are standing still. => I am standing still. => still
    """),
    "charge": Outcomes("""
        The battery is full. => My battery is full. => battery; full
        Battery: {n} percent. => My battery is at {n} percent. / I have {n} percent now. => {n} percent
        You are charging. => I am charging. => charging
        ~ The battery is charged. => My battery is charged. => charged
    """),
}
ROBOT_FAILED = {
    "goto": Outcomes("""
        The way is blocked. => The way to the {x} is blocked. / I can't get there, the way is blocked. => blocked
        The door to the {x} is locked. => The door to the {x} is locked. / I can't, the door is locked. => door; locked
        No path to the {x}. => I found no path to the {x}. / There is no path to the {x}. => path
        ~ An obstacle is in the way. => An obstacle is in the way. => obstacle
        The elevator is broken. => The elevator is broken. / I can't, the elevator is broken. => elevator; broken
    """),
    "fetch": Outcomes("""
        The {x} is not there. => The {x} is not there. / Sorry, the {x} is not there. => {x}; not there
        The {x} is too heavy. => The {x} is too heavy. / I can't carry the {x}, too heavy. => {x}; heavy
        No {x} found. => I found no {x}. / There is no {x}. => no {x}
        ~ The {x} is out of reach. => The {x} is out of reach. => {x}; reach
    """),
    "deliver": Outcomes("""
        The {y} is closed. => The {y} is closed. / I can't deliver it, the {y} is closed. => {y}; closed
        Nobody is in the {y}. => Nobody is in the {y}. / Sorry, nobody is in the {y}. => nobody; {y}
        The {x} fell down. => The {x} fell down. / Sorry, the {x} fell down. => {x}; fell
        ~ The {y} does not answer. => The {y} does not answer. => {y}; answer
    """),
    "follow": FOLLOW.failed,
    "clean": Outcomes("""
        The water tank is empty. => My water tank is empty. => tank; empty
        The {x} is occupied. => The {x} is occupied. / I can't clean, the {x} is occupied. => {x}; occupied
        ~ The brush is stuck. => My brush is stuck. => brush; stuck
    """),
    "wait": NO_OUTCOMES,
    "stop": NO_OUTCOMES,
    "charge": Outcomes("""
        The dock is occupied. => The dock is occupied. / I can't charge, the dock is occupied. => dock; occupied
        No power at the dock. => There is no power at the dock. => power
        ~ The charger is broken. => The charger is broken. => charger; broken
    """),
}
ROBOT_NAMES_OF = {
    "goto": word_list("goto, go_to, drive, drive_to, navigate, move_to, go, move, ~ travel_to, ~ navigate_to, ~ goTo"),
    "fetch": word_list("fetch, bring, get, get_item, pick_up, fetch_item, grab, ~ retrieve, ~ collect_item, ~ pickUp"),
    "deliver": word_list("deliver, take_to, carry, transport, bring_to, deliver_item, carry_to, ~ drop_off, ~ hand_to, ~ ship"),
    "follow": word_list("follow, accompany, follow_person, go_with, follow_me, ~ escort, ~ stay_with"),
    "clean": word_list("clean, clean_room, vacuum, mop, tidy, clean_up, wipe, ~ sweep, ~ scrub"),
    "wait": word_list("wait, pause, hold, stay, wait_for, sleep, ~ stand_by, ~ idle"),
    "stop": word_list("stop, halt, emergency_stop, abort, cancel, ~ freeze, ~ stop_moving"),
    "charge": word_list("charge, recharge, dock, go_charge, charge_battery, return_to_dock, ~ power_up, ~ refuel"),
}
ROBOT_DESCRIPTIONS = {
    "goto": Phrases("Drives to a place.\nGo to a place.\nMoves the robot to a room.\nNavigates to a destination.\n~ Travel to a room.\nUse this to go to a room.\nBrings the robot to a place.\nDrive to a room.\nMove to a destination.\nThe robot drives somewhere.\nChanges the position of the robot."),
    "fetch": Phrases("Fetches a thing.\nBrings an item to the user.\nPicks up an item.\nGet an item.\nRetrieves an object.\n~ Go and pick up an object.\nUse this to get a thing.\nGet an object for the user.\nPick up a thing and bring it.\nBrings a thing.\nThe robot gets an item.\nTakes an object from the shelf.\nRetrieves a thing for the user.\nRetrieve something.\nCollects a thing.\nCollect an item and bring it.\nGrabs an item.\nGoes and gets a thing."),
    "deliver": Phrases("Brings an item to a place.\nDelivers a thing.\nCarries an item to a destination.\nTake an item somewhere.\n~ Transports an object to a room.\nUse this to carry a thing to a place.\nCarries a thing to a room.\nBring an object to someone.\nMoves an item to another place.\nTake a thing to a room.\nThe robot delivers an item."),
    "follow": Phrases("Follows a person.\nStays behind a person.\nFollow someone.\n~ Keeps close to a person.\nUse this to go with a person.\nGoes with a person.\nStay near somebody.\nThe robot follows somebody."),
    "clean": Phrases("Cleans a room.\nClean a place.\nCleans the floor of a room.\n~ Makes a room clean.\nUse this to clean a place.\nMakes a place clean.\nRemoves dirt from a room.\nThe robot cleans a room.\nMop the floor of a room.\nTidies a room."),
    "wait": Phrases("Waits.\nWait for some time.\nStays where it is for a while.\n~ Does nothing for some time.\nUse this to wait.\nDoes nothing for a while.\nPauses for some time.\nStand still for some time.\nThe robot waits."),
    "stop": Phrases("Stops at once.\nStop moving.\nCancels the movement.\n~ Ends the current movement.\nUse this to stop.\nEnds what the robot is doing.\nStop everything.\nThe robot stops.\nCancels all movement."),
    "charge": Phrases("Drives to the dock and charges the battery.\nCharge the battery.\nRecharges.\n~ Loads the battery at the station.\nUse this to charge the battery.\nFills the battery.\nLoads the battery.\nThe robot returns to the dock.\nGo to the dock and get power."),
}
ROBOT_LEADS = Phrases("""
    You are {a_robot}.
    You are {robot}, {a_robot}.
    You are {robot}, {a_robot} in {site}.
    You are {a_robot} called {robot}.
    You are {a_robot} in {site}. Your name is {robot}.
    You control {a_robot} named {robot}.
    {robot} is {a_robot} in {site}.
    You are {robot}, a mobile robot.
    You are {a_robot} in {site}.
""")
ROBOT_MANNERS = Phrases("""
    Answer in one sentence.
    You answer briefly.
    Use your actions.
    You carry out orders with your actions.
    You are polite.
    Do what the user wants.
""")
TRADE_MANNERS = Phrases("""
    Take the payment before you hand something over.
    You only sell for money.
    First the money, then the goods.
    Use your actions.
    You act as well as speak.
""")
