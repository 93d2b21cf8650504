#!/usr/bin/env python3
"""Splits texts into words with the published expressions of each pre-tokenizer, and writes a hash of the words per family and first character.

    python3 -m venv venv && venv/bin/pip install regex==2026.11.15
    venv/bin/python crates/walla_model/tests/golden/splits.py > crates/walla_model/tests/golden/splits.txt

Keep the texts in sync with `src/tokenizer/split/tests.rs`. As in llama.cpp, white space beyond ASCII is one character that is in no range,
and `$` is the end of a piece. Of the letters that `deepseek-llm` lists, these texts need only the Latin ones.
"""

import regex

CHARACTERS = "aZ'sé中カ\u03017½,$`～。 \t\n\r\u00a0\u3000\u0001\ue000😀"
SENTENCES = [
    "They're I'LL we'VE he'd it'm DON'T 'twas o'Reilly's",
    "HelloWorld XMLHttpRequest iPhone ÉCOLE Ǆ ǅ straße/\n//x\r\n",
    "1234567 12,345.67 ½¾ ٣٤٥ 三千 v2.0",
    "  two  spaces\t\ttabs \n \n\n lines \r\n end  ",
    "f(x) = !y && z != `w` <|im_end|> [a]{b} ~^$+",
    "日本語のテキスト、カタカナ。中文！한국어 텍스트",
    "e\u0301a\u0301 \u0301x 👍🏽 😀!\u00a0\u3000 x\u00a0y",
]

GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)"
ENDINGS = r"(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])"
SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
ASCII_SIGNS = r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~]"
EAST_ASIAN = "[一-龥\u0800-一가-\ud7ff]+"


def llama3(digits, letter=r"\p{L}"):
    other = r"\p{L}\p{M}" if "M" in letter else r"\p{L}"
    return rf"{ENDINGS}|[^\r\n\p{{L}}\p{{N}}]?{letter}+|\p{{N}}{digits}| ?[^\s{other}\p{{N}}]+[\r\n]*|{SPACES}"


def mixed_case(digits, endings):
    upper, lower = r"(?:(?=\p{L})[^a-z])", r"(?:(?=\p{L})[^A-Z])"
    start = r"[^\r\n\p{L}\p{N}]?"
    words = rf"{start}{upper}*{lower}+{endings}|{start}{upper}+{lower}*{endings}"
    return rf"{words}|\p{{N}}{digits}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{SPACES}"


FAMILIES = {
    "Default": [r"[\p{P}$+<=>^~|]+", GPT2, r"\p{N}+", "[0-9][0-9][0-9]"],
    "Gpt2": [GPT2],
    "Llama3": [llama3("{1,3}")],
    "Dbrx": [llama3("{1,3}")],
    "MiniCpm5": [r"\p{N}{1,3}", llama3("+")],
    "Qwen2": [llama3("")],
    "Qwen35": [llama3("", r"[\p{L}\p{M}]")],
    "SmolLm": [r"\p{N}", GPT2],
    "Falcon": [r"[\p{P}$+<=>^~|`]+", GPT2, "[0-9][0-9][0-9]"],
    "DeepseekLlm": [
        r"[\r\n]",
        r"\s?[A-Za-zµÀ-ÖØ-öø-ƺƼ-ƿǄ-ʓ]+",
        r"\s?[!-/:-~！-／：-～‘-‟　-。]+",
        r"\s+\Z",
        EAST_ASIAN,
        r"\p{N}+",
    ],
    "DeepseekCoder": [r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", EAST_ASIAN, r"\p{N}"],
    "DeepseekV3": [
        r"\p{N}{1,3}",
        "[一-龥\u3040-\u309f\u30a0-ヿ]+",
        rf"{ASCII_SIGNS}[A-Za-z]+|[^\r\n\p{{L}}\p{{P}}\p{{S}}]?[\p{{L}}\p{{M}}]+| ?[\p{{P}}\p{{S}}]+[\r\n]*|{SPACES}",
    ],
    "Gpt4o": [mixed_case("{1,3}", ENDINGS + "?")],
    "Tekken": [mixed_case("", "")],
}


def isolate(pieces, expression):
    """Splits pieces into the matches of the expression and the text between them."""
    for start, end, text in pieces:
        at = start
        for match in expression.finditer(text[start:end]):
            first, last = start + match.start(), start + match.end()
            if first > at:
                yield at, first, text
            if last > first:
                yield first, last, text
            at = last
        if at < end:
            yield at, end, text


def words(expressions, text):
    seen = "".join("\u00a0" if c.isspace() and not c.isascii() else c for c in text)
    pieces = [(0, len(text), seen)]
    for expression in expressions:
        pieces = list(isolate(pieces, expression))
    return [text[start:end] for start, end, _ in pieces]


def fnv1a(value, data):
    for byte in data:
        value = (value ^ byte) * 0x100000001B3 & 0xFFFFFFFFFFFFFFFF
    return value


def main():
    for family, expressions in FAMILIES.items():
        compiled = [regex.compile(expression, regex.V0) for expression in expressions]
        groups = [[a + b + c + a for b in CHARACTERS for c in CHARACTERS] for a in CHARACTERS]
        groups += [[sentence] for sentence in SENTENCES]
        for number, texts in enumerate(groups):
            value = 0xCBF29CE484222325
            for text in texts:
                for word in words(compiled, text):
                    value = fnv1a(value, word.encode() + b"\xff")
            print(f"{family} {number} {value:016x}")


if __name__ == "__main__":
    main()
