"""Averages the weights of two runs of which the second continued the first.

    python average.py --first build/first.npz --second build/second.npz --out build/weights.npz
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch

from model import Model
from train import load, round_to_q8_0, save


@torch.no_grad()
def average(first: Model, second: Model, part: float) -> Model:
    """``part`` of the second model and the rest of the first, on Q8_0's grid."""
    for ours, theirs in zip(first.parameters(), second.parameters(), strict=True):
        ours.lerp_(theirs, part)
    round_to_q8_0(first)
    return first


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--first", type=Path, required=True)
    parser.add_argument("--second", type=Path, required=True)
    parser.add_argument("--part", type=float, default=0.5, help="how much of the second")
    parser.add_argument("--out", type=Path, default=Path("build/weights.npz"))
    arguments = parser.parse_args()
    save(average(load(arguments.first), load(arguments.second), arguments.part), arguments.out)


if __name__ == "__main__":
    main()
