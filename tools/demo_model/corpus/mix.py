"""The mixtures that training and evaluation draw from."""

from __future__ import annotations

import random

from .acting import action_dialogue
from .dialogue import Dialogue
from .duet import duet_dialogue
from .names import Maker
from .notes import noted_dialogue
from .plain import plain_dialogue
from .requests import WideMaker
from .robot import robot_dialogue
from .tavern import tavern_dialogue

CORPUS_VERSION = 6
"""Changes whenever the same seed gives another text."""
TALK_VERSION = 2
"""The version of :func:`talks`, so that the evaluation of talks stays the same."""

TALK_SHARES = {tavern_dialogue: 0.54, duet_dialogue: 0.14, robot_dialogue: 0.28, plain_dialogue: 0.04}
ACTION_SHARE = 0.42
NOTE_SHARE = 0.16


def talks(seed: int, count: int, held_out: bool = False) -> list[Dialogue]:
    """``count`` dialogues without actions; the same for the same seed and version."""
    maker = Maker(random.Random(f"{TALK_VERSION}/{'held-out' if held_out else 'train'}/{seed}"), held_out)
    generators = maker.rng.choices(list(TALK_SHARES), list(TALK_SHARES.values()), k=count)
    return [generate(maker) for generate in generators]


def dialogues(seed: int, count: int) -> list[Dialogue]:
    """``count`` dialogues of the training; the same for the same seed and version."""
    maker = WideMaker(random.Random(f"{CORPUS_VERSION}/train/{seed}"), False)
    rest = 1 - ACTION_SHARE - NOTE_SHARE
    shares = {generate: share * rest for generate, share in TALK_SHARES.items()} | {action_dialogue: ACTION_SHARE, noted_dialogue: NOTE_SHARE}
    generators = maker.rng.choices(list(shares), list(shares.values()), k=count)
    return [generate(maker) for generate in generators]


def action_talks(seed: int, count: int, held_out: bool = False) -> list[Dialogue]:
    """``count`` dialogues with actions; the same for the same seed and version."""
    maker = (Maker if held_out else WideMaker)(random.Random(f"{CORPUS_VERSION}/{'held-out' if held_out else 'train'} actions/{seed}"), held_out)
    return [action_dialogue(maker) for _ in range(count)]


def noted_talks(seed: int, count: int, held_out: bool = False) -> list[Dialogue]:
    """``count`` dialogues with notes; the same for the same seed and version."""
    maker = (Maker if held_out else WideMaker)(random.Random(f"{CORPUS_VERSION}/{'held-out' if held_out else 'train'} notes/{seed}"), held_out)
    return [noted_dialogue(maker) for _ in range(count)]
