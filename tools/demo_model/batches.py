"""Training batches, made on the fly: batch ``i`` is the same whenever it is asked for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from chatml import ChatEncoder
from corpus.mix import dialogues


class Batch(NamedTuple):
    """``[rows, length]`` each: ids, the document of each token (-1: padding), and which ids are learned."""

    ids: Tensor
    documents: Tensor
    learned: Tensor


@dataclass
class Packer:
    """Fills rows with whole dialogues, first fit."""

    rows: int
    length: int

    def __post_init__(self) -> None:
        shape = (self.rows, self.length)
        self.ids = np.zeros(shape, np.int32)
        self.documents = np.full(shape, -1, np.int32)
        self.learned = np.zeros(shape, np.bool_)
        self.used = np.zeros(self.rows, np.int64)
        self.count = 0

    def add(self, ids: np.ndarray, learned: np.ndarray) -> bool:
        """Whether some row had room; a dialogue longer than a row is cut."""
        ids, learned = ids[: self.length], learned[: self.length]
        fitting = np.flatnonzero(self.used + len(ids) <= self.length)
        if not len(fitting):
            return False
        row = fitting[0]
        span = slice(self.used[row], self.used[row] + len(ids))
        self.ids[row, span], self.learned[row, span], self.documents[row, span] = ids, learned, self.count
        self.used[row] += len(ids)
        self.count += 1
        return True

    def batch(self) -> Batch:
        # Padding stands in documents of its own (-1) at a row's end; documents never decrease along a row.
        documents = np.where(self.documents < 0, self.count, self.documents)
        return Batch(torch.from_numpy(self.ids), torch.from_numpy(documents), torch.from_numpy(self.learned))


class Batches(Dataset[Batch]):
    """``count`` batches of ``rows`` x ``length`` tokens."""

    MISSES = 12
    """Dialogues that find no room before a batch counts as full."""

    def __init__(self, seed: int, count: int, rows: int, length: int) -> None:
        self.seed, self.count, self.rows, self.length = seed, count, rows, length
        self.encoder: ChatEncoder | None = None

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Batch:
        self.encoder = self.encoder or ChatEncoder()
        packer = Packer(self.rows, self.length)
        misses, part = 0, 0
        while misses < self.MISSES:
            chunk = dialogues(seed=(self.seed * 1_000_003 + index) * 64 + part, count=64)
            part += 1
            for ids, learned in self.encoder.encode_batch(chunk):
                misses += not packer.add(ids, learned)
                if misses >= self.MISSES:
                    break
        return packer.batch()
