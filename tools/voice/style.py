"""Writes one voice of Kokoro as the file that walla_voice reads.

    python style.py VOICES.npz NAME OUT

VOICES is an archive of numpy arrays [510, 1, 256] by name, as the packages of Kokoro's ONNX files
have. OUT receives 510 x 256 numbers, little-endian f32: row i is the style of a text of i symbols.
Needs numpy.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np

SHAPE = (510, 1, 256)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("voices", type=Path)
    parser.add_argument("name")
    parser.add_argument("out", type=Path)
    arguments = parser.parse_args()
    with np.load(arguments.voices) as voices:
        if arguments.name not in voices:
            names = ", ".join(sorted(voices))
            parser.exit(1, f"style.py: no voice {arguments.name!r}; it has {names}\n")
        voice = voices[arguments.name]
    if voice.shape != SHAPE:
        parser.exit(1, f"style.py: shape {voice.shape}, expected {SHAPE}\n")
    voice.astype("<f4").tofile(arguments.out)


if __name__ == "__main__":
    main()
