#!/usr/bin/env python3
"""Renders conversations with chat templates as transformers does, and writes one golden file per template.

    python3 -m venv venv && venv/bin/pip install jinja2==3.1.6
    venv/bin/python crates/walla_model/tests/golden/make.py ../shared/data/templates crates/walla_model/tests/golden

The templates belong to their vendors and are not part of the repository. Keep the cases in sync with `chat/golden.rs`.
"""

import datetime
import json
import pathlib
import sys

import jinja2
from jinja2.ext import loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

SYSTEM = {"role": "system", "content": "You are Greta, the smith of Emberfall.\nA horseshoe costs 3 silver."}
ASK = {"role": "user", "content": "What does a horseshoe cost?"}
REPLY = {"role": "assistant", "content": "Three silver, \u00fcber-cheap \U0001f642."}
SPACED = {"role": "user", "content": " Thank you,\n  Greta \n"}
SPACED_REPLY = {"role": "assistant", "content": "\n\nSafe travels!\n"}
THOUGHT = {"role": "assistant", "content": "<think>\nA horseshoe? Hm.\n</think>\n\nThree silver."}

CASES = {
    "system_user": [SYSTEM, ASK],
    "user": [ASK],
    "system_turns": [SYSTEM, ASK, REPLY, SPACED],
    "turns": [ASK, REPLY, SPACED],
    "replied": [SYSTEM, ASK, REPLY, SPACED, SPACED_REPLY],
    "thought": [SYSTEM, ASK, THOUGHT, SPACED],
    "thought_last": [SYSTEM, ASK, THOUGHT],
}


class Refused(Exception):
    pass


def raise_exception(message):
    raise Refused(message)


def tojson(value, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def compile_template(source):
    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols])
    environment.filters["tojson"] = tojson
    environment.globals["raise_exception"] = raise_exception
    environment.globals["strftime_now"] = lambda form: datetime.datetime(2024, 7, 26).strftime(form)
    return environment.from_string(source)


def fold_system(messages):
    """walla's handling of a template that does not accept system messages."""
    system, user, *rest = messages
    return [{"role": "user", "content": system["content"] + "\n\n" + user["content"]}, *rest]


def render(template, messages, generation, thinking):
    variables = dict(
        tools=None, documents=None, bos_token="<s>", eos_token="</s>",
        add_generation_prompt=generation, enable_thinking=thinking,
    )
    try:
        return template.render(messages=messages, **variables)
    except Refused:
        if messages[0]["role"] != "system":
            raise
        return template.render(messages=fold_system(messages), **variables)


def main():
    templates, golden = map(pathlib.Path, sys.argv[1:3])
    for path in sorted(templates.glob("*.jinja")):
        template = compile_template(path.read_text(encoding="utf-8"))
        out = []
        for name, messages in CASES.items():
            for generation in (False, True):
                for thinking in (False, True):
                    if thinking and name != "system_turns":
                        continue
                    text = render(template, messages, generation, thinking)
                    head = f"#### {name} generation={generation:d} thinking={thinking:d}"
                    out.append(f"{head}\n{text}\n")
        (golden / (path.stem + ".txt")).write_text("".join(out), encoding="utf-8", newline="\n")


if __name__ == "__main__":
    main()
