"""Training batches, generated on the fly: batch ``i`` is always the same."""

from __future__ import annotations

import random
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from chatml import ChatEncoder
from corpus.mix import dialogues
from model import DIALOGUE_TOKENS_MAX

DIALOGUES_A_CHUNK = 64
CHUNKS_MAX = 1_000
TOKENS_A_DIALOGUE_MIN = 192
"""Bounds the dialogues of a batch. Their mean is near 300, so that a batch of many is full before it meets this."""


class Batch(NamedTuple):
    """Consecutive dialogues in a single row of ``tokens``."""

    ids: Tensor
    """``[1, tokens]``"""
    positions: Tensor
    """``[1, tokens]``, from zero in each dialogue"""
    bounds: Tensor
    """``[dialogues_max + 1]``: where each dialogue starts; the unused ones are empty and lie at the end"""
    learned: Tensor
    """``[1, tokens]``: which ids are learned"""


class Batches(Dataset[Batch]):
    """The batches from ``first`` to ``count`` of ``tokens`` each; the last dialogue of a batch is cut."""

    def __init__(self, seed: int, count: int, tokens: int, first: int = 0) -> None:
        self.seed, self.count, self.tokens, self.first = seed, count, tokens, first
        self.dialogues_max = tokens // TOKENS_A_DIALOGUE_MIN
        self.encoder: ChatEncoder | None = None

    def __len__(self) -> int:
        return self.count - self.first

    def __getitem__(self, index: int) -> Batch:
        index += self.first
        self.encoder = self.encoder or ChatEncoder()
        ids = np.zeros(self.tokens, np.int32)
        positions = np.zeros(self.tokens, np.int32)
        learned = np.zeros(self.tokens, np.bool_)
        bounds = np.full(self.dialogues_max + 1, self.tokens, np.int32)
        used = count = chunk = 0
        while used < self.tokens and count < self.dialogues_max:
            seed = (self.seed * 1_000_003 + index) * CHUNKS_MAX + chunk
            chunk += 1
            for words, spoken in self.encoder.encode_batch(dialogues(seed, DIALOGUES_A_CHUNK), random.Random(seed)):
                length = min(len(words), DIALOGUE_TOKENS_MAX, self.tokens - used)
                if length == 0 or count == self.dialogues_max:
                    break
                span = slice(used, used + length)
                ids[span], learned[span], positions[span] = words[:length], spoken[:length], np.arange(length)
                bounds[count] = used
                used, count = used + length, count + 1
        return Batch(*(torch.from_numpy(a) for a in (ids[None], positions[None], bounds, learned[None])))
