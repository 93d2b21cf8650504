"""The mixture that training and evaluation draw from."""

from __future__ import annotations

import random

from .dialogue import Dialogue
from .duet import duet_dialogue
from .names import Maker
from .plain import plain_dialogue
from .robot import robot_dialogue
from .tavern import tavern_dialogue

CORPUS_VERSION = 2
"""Changes whenever the same seed gives another text."""

SHARES = {tavern_dialogue: 0.54, duet_dialogue: 0.14, robot_dialogue: 0.28, plain_dialogue: 0.04}


def dialogues(seed: int, count: int, held_out: bool = False) -> list[Dialogue]:
    """``count`` dialogues; the same for the same seed and version."""
    maker = Maker(random.Random(f"{CORPUS_VERSION}/{'held-out' if held_out else 'train'}/{seed}"), held_out)
    generators = maker.rng.choices(list(SHARES), list(SHARES.values()), k=count)
    return [generate(maker) for generate in generators]
