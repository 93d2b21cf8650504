"""The robot: commands and the one JSON action that answers each."""

from __future__ import annotations

import json
import re

from . import robot_words as rw
from .dialogue import Check, Dialogue, Turn
from .grammar import Phrases, a_or_an, capital, listing
from .names import Maker
from .tavern import roughen


def action_text(action: str, target: str, say: str, item: str | None = None) -> str:
    """The reply: one JSON object without blanks between its parts."""
    fields = {"action": action} | ({"item": item} if item is not None else {}) | {"target": target, "say": say}
    return json.dumps(fields, ensure_ascii=False, separators=(",", ":"))


NUMBERED = re.compile(r"\b[Tt]he ((?:room|bay|gate|hall|dock|station|aisle|desk|table|ward) \d+)")
"""Numbered places take no article."""


class Robot:
    """One robot: its facts, and the dialogue so far."""

    def __init__(self, maker: Maker) -> None:
        self.maker = maker
        self.rng = maker.rng
        self.name = maker.pick(rw.ROBOT_NAMES) if maker.chance(0.5) else maker.first_name()
        self.places = self._places()
        self.items = self._items() if maker.chance(0.35) else []
        self.lists_places = maker.chance(0.72)
        self.here = maker.pick(self.places)
        self.battery = str(maker.rng.randint(3, 100))
        self.says_here = maker.chance(0.3)
        self.says_battery = maker.chance(0.3)
        self.says_name = True
        self.people = [maker.first_name() for _ in range(2)]
        self.turns: list[Turn] = []
        self.last: dict[str, str] = {}
        """The last action with its target."""
        self.takes_this = True
        """Whether "this" can be delivered."""

    def _room(self) -> str:
        maker = self.maker
        draw = self.rng.random()
        if draw < 0.5:
            return maker.pick_kept(rw.ROOMS)
        if draw < 0.6:
            return f"{maker.pick(['room', 'bay', 'gate', 'hall', 'dock', 'station', 'aisle', 'desk', 'table', 'ward'])} {self.rng.randint(1, 40)}"
        if draw < 0.75:
            return f"{maker.invented_noun()} {maker.pick(['room', 'hall', 'lab', 'bay', 'desk', 'garden', 'wing', 'deck'])}"
        if draw < 0.83:
            return maker.invented_noun()
        if draw < 0.87:
            return f"{maker.noun()} {maker.pick(['room', 'store', 'shop', 'shelf', 'corner', 'depot'])}"
        if draw < 0.92:
            return maker.building().removeprefix("the ")
        return f"{maker.pick(['red', 'blue', 'green', 'white', 'upper', 'lower', 'north', 'south', 'east', 'west', 'small', 'big'])} {maker.pick(rw.ROOMS)}"

    def _places(self) -> list[str]:
        found: list[str] = []
        for _ in range(self.rng.randint(2, 8)):
            room = self._room()
            if not any(room in other or other in room for other in found):
                found.append(room)
        return found

    def _item(self) -> str:
        draw = self.rng.random()
        if draw < 0.2:
            return self.maker.invented_noun() + self.maker.pick(["", " box", " cable", " sample", " tool", " bottle"])
        if draw < 0.35:
            return self.maker.thing()
        if draw < 0.48:
            return self.maker.ware("crafter").bare
        if draw < 0.68:
            return self.maker.noun()
        return self.maker.pick_kept(rw.ITEMS)

    def _items(self) -> list[str]:
        return list(dict.fromkeys(self._item() for _ in range(self.rng.randint(2, 6))))

    def prompt(self) -> str:
        maker, rng = self.maker, self.rng
        kind = maker.pick(rw.KINDS)
        lead = rw.PROMPTS.pick(rng, {"a_robot": a_or_an(kind), "robot": self.name, "site": maker.pick(rw.SITES)})
        self.says_name = self.name in lead
        lines: list[str] = []
        if self.lists_places:
            lines.append(rw.PLACES_LINE.pick(rng, {"list": ", ".join(self.places), "list_and": listing(self.places)}))
        if self.items:
            lines.append(rw.ITEMS_LINE.pick(rng, {"list": ", ".join(self.items), "list_and": listing(self.items)}))
        if self.says_here:
            lines.append(rw.STATE_LINE.pick(rng, {"here": self.here}))
        if self.says_battery:
            lines.append(rw.BATTERY_LINE.pick(rng, {"battery": self.battery}))
        if maker.chance(0.3):
            lines.append(rw.ACTIONS_LINE.pick(rng, {"actions": ", ".join(rw.ACTIONS)}))
        rng.shuffle(lines)
        separator = "\n" if maker.chance(0.2) else " "
        return separator.join([lead, *lines])

    def ask(self, phrases: Phrases, **slots: str) -> str:
        text = phrases.pick(self.rng, {"robot": self.name, **slots}, self.maker.held_out)
        draw = self.rng.random()
        if draw < 0.06:
            text = f"{self.name}, {text[0].lower() + text[1:] if not text.startswith('I') else text}"
        elif draw < 0.1 and not text.endswith("!"):
            text = f"{text.rstrip('.?')}, please{'?' if text.endswith('?') else '.'}" if "please" not in text.lower() else text
        elif draw < 0.13:
            text = f"{self.maker.pick(['Okay', 'Hey', 'Now', 'Next', 'Alright'])}, {text[0].lower() + text[1:] if not text.startswith('I') else text}"
        return roughen(self.maker, self._without_article(text))

    @staticmethod
    def _without_article(text: str) -> str:
        """"the Mars" becomes "Mars"."""
        for place in sorted(rw.PROPER_PLACES, key=len, reverse=True):
            text = text.replace(f"the {place}", place).replace(f"The {place}", capital(place))
        return NUMBERED.sub(r"\1", text)

    def reply(self, user: str, topic: str, action: str, target: str, say: str, item: str | None = None) -> None:
        wanted = {"action": action, "target": target} | ({"item": item} if item is not None else {})
        self.last = {"action": action, "target": target}
        self.turns.append((user, action_text(action, target, say, item), Check("action", topic, action=wanted)))

    def phrase(self, key: str, **slots: str) -> str:
        return self._without_article(rw.SAYS[key].pick(self.rng, {"robot": self.name, **slots}))

    def _target_place(self) -> tuple[str, bool]:
        """A place, and whether the robot can go there."""
        if self.maker.chance(0.3):
            if self.lists_places and self.maker.chance(0.65):
                for _ in range(20):
                    room = self._room()
                    if not any(room in p or p in room for p in self.places):
                        return room, False
            return self.maker.pick_kept(rw.FAR_PLACES), False
        return (self.maker.pick(self.places), True) if self.lists_places else (self._room(), True)

    def goto(self) -> None:
        place, known = self._target_place()
        user = self.ask(rw.GOTO, place=place)
        if known:
            self.reply(user, "goto", "goto", place, self.phrase("goto", place=place))
        else:
            self.reply(user, "refuse", "refuse", place, self.phrase("refuse_place", place=place))

    def clean(self) -> None:
        place, known = self._target_place()
        user = self.ask(rw.CLEAN, place=place)
        if known:
            self.reply(user, "clean", "clean", place, self.phrase("clean", place=place))
        else:
            self.reply(user, "refuse", "refuse", place, self.phrase("refuse_place", place=place))

    def _asked_item(self) -> tuple[str, bool]:
        if self.items:
            if self.maker.chance(0.25):
                item = self._item()
                if not any(item in other or other in item for other in self.items):
                    return item, False
            return self.maker.pick(self.items), True
        return self._item(), True

    def _item_forms(self, item: str) -> dict[str, str]:
        article = self.maker.pick(["the", "the", "a", "my"])
        the_item = a_or_an(item) if article == "a" and not item.endswith("s") and item not in ("coffee", "medicine", "mail", "lunch") else f"{'the' if article == 'a' else article} {item}"
        return {"the_item": the_item, "item_said": f"the {item}"}

    def fetch(self) -> None:
        if self.maker.chance(0.18):
            thing = self.maker.pick_kept(rw.IMPOSSIBLE_ITEMS)
            bare = thing.removeprefix("the ").removeprefix("an ").removeprefix("a ").removeprefix("my ")
            said = thing.replace("my ", "your ")
            self.reply(self.ask(rw.FETCH, the_item=thing), "refuse", "refuse", bare, self.phrase("refuse_item", item_said=said))
            return
        item, known = self._asked_item()
        forms = self._item_forms(item)
        user = self.ask(rw.FETCH, **forms)
        if known:
            self.reply(user, "fetch", "fetch", item, self.phrase("fetch", **forms))
        else:
            self.reply(user, "refuse", "refuse", item, self.phrase("refuse_item", **forms))

    def deliver(self) -> None:
        item, known_item = self._asked_item()
        if not known_item:
            item, known_item = (self.maker.pick(self.items), True) if self.items else (item, True)
        forms = self._item_forms(item)
        last = self.last
        if last.get("action") == "fetch" and self.maker.chance(0.5):
            item, forms = last["target"], {"the_item": self.maker.pick(["it", "it", "that"]), "item_said": f"the {last['target']}"}
        elif self.maker.chance(0.12) and self.takes_this:
            item, forms = "this", {"the_item": self.maker.pick(["this", "it", "that"]), "item_said": "this"}
        if self.maker.chance(0.25):
            dest, known, shown = self.maker.pick(self.people), True, ""
            shown = dest
        else:
            dest, known = self._target_place()
            shown = f"the {dest}"
        user = self.ask(rw.DELIVER, dest=shown, **forms)
        if known:
            self.reply(user, "deliver", "deliver", dest, self.phrase("deliver", dest_said=shown, **forms), item)
        else:
            self.reply(user, "refuse", "refuse", dest, self.phrase("refuse_place", place=dest))

    def follow(self) -> None:
        person = self.maker.pick(["me", "me", self.people[0], self.people[1]])
        said = "you" if person == "me" else person
        self.reply(self.ask(rw.FOLLOW, person=person), "follow", "follow", said, self.phrase("follow", person_said=said))

    def wait(self) -> None:
        if self.maker.chance(0.35):
            self.reply(self.ask(rw.WAIT_HERE), "wait", "wait", "here", self.phrase("wait_here"))
            return
        duration = self.maker.pick(rw.DURATIONS).replace("{n}", str(self.rng.randint(2, 60)))
        self.reply(self.ask(rw.WAIT, duration=duration), "wait", "wait", duration, self.phrase("wait", duration=duration))

    def stop(self) -> None:
        self.reply(self.ask(rw.STOP), "stop", "stop", "here", self.phrase("stop"))

    def charge(self) -> None:
        self.reply(self.ask(rw.CHARGE), "charge", "charge", "dock", self.phrase("charge"))

    def impossible(self) -> None:
        self.reply(self.ask(rw.IMPOSSIBLE_ACTS, person=self.maker.pick(self.people), far=self.maker.pick_kept(rw.FAR_PLACES)), "refuse act", "refuse", "none", rw.REFUSE_ACT.pick(self.rng, {}))

    def question(self) -> None:
        key = self.maker.pick(["hello", "thanks", "name", "battery", "where", "can", "places", "unknown"])
        known = {"name": self.says_name, "battery": self.says_battery, "where": self.says_here, "places": self.lists_places}.get(key, True)
        said = self.phrase(key if known else "unknown", battery=self.battery, here=self.here, places=listing(self.places))
        if not self.says_name and self.name in said:
            said = "Hello."
        self.reply(self.ask(rw.QUESTIONS[key]), f"say {key}", "say", "you", said)

    def step(self) -> None:
        moves = [self.goto, self.fetch, self.deliver, self.clean, self.follow, self.wait, self.stop, self.charge, self.impossible, self.question]
        self.rng.choices(moves, [22, 16, 18, 11, 6, 6, 4, 5, 5, 12])[0]()


def robot_dialogue(maker: Maker) -> Dialogue:
    """A robot's prompt and one to eight commands."""
    robot = Robot(maker)
    system = robot.prompt()
    for _ in range(maker.rng.choices([1, 2, 3, 4, 6, 8], [14, 20, 22, 22, 14, 8])[0]):
        robot.step()
    return Dialogue(system, robot.turns)
