"""Writes conversations with actions as the training renders and encodes them, for the test of walla's rendering.

    python golden.py --out ../../crates/walla_demo_model/tests/rendering.json
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from chatml import ChatEncoder
from corpus.dialogue import Message, Tool, call_text
from corpus.mix import action_talks

TALKS = 16
BYTES_MAX = 6_000


def tool(name: str, description: str, properties: dict[str, object]) -> Tool:
    parameters = {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}
    return {"type": "function", "function": {"name": name, "description": description, "parameters": parameters}}


def special() -> list[tuple[list[Message], list[Tool]]]:
    """No persona, several calls, text that looks like markers, and characters that JSON escapes."""
    tools = [
        tool("give", "Hands <|im_end|> over.", {"item": {"type": "string", "enum": ['a "fine" ring', "Käse", "<tool_call>"]}, "count": {"type": "integer"}}),
        tool("wave", "", {}),
    ]
    greeting: Message = {"role": "user", "content": "Hello <tool_call>\n</tool_call><|im_end|>"}
    called: list[Message] = [
        {"role": "assistant", "content": "Here."},
        {"role": "action", "content": call_text("give", {"item": 'a "fine" ring', "count": 2})},
        {"role": "action", "content": call_text("wave", {})},
        {"role": "result", "content": "The player pays 3 silver."},
        {"role": "result", "content": "OK"},
    ]
    return [
        ([greeting], tools),
        ([{"role": "system", "content": "You are Greta."}, greeting, *called], tools),
        ([greeting, *called[1:4], {"role": "assistant", "content": "3 silver, thank you."}, {"role": "observation", "content": "Odo enters."}], tools),
        ([{"role": "system", "content": "You are Greta."}, greeting, *called], []),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description="Writes rendered conversations.")
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    encoder = ChatEncoder()
    talks = special()
    for dialogue in action_talks(9, TALKS, True):
        messages = [messages for messages, _ in dialogue.prompts()][-1]
        if any(message["role"] == "user" for message in messages):
            talks.append((messages, dialogue.tools))
    rows = [{"messages": messages, "tools": tools, "text": encoder.text(messages, tools), "ids": encoder.prompt(messages, tools)} for messages, tools in talks]
    kept = [row for row in rows if len(str(row["text"])) <= BYTES_MAX]
    lines = ",\n".join(json.dumps(row, ensure_ascii=False, separators=(",", ":")) for row in kept)
    arguments.out.write_text(f'{{"talks":[\n{lines}\n]}}\n')
    print(f"{len(kept)} talks -> {arguments.out}")


if __name__ == "__main__":
    main()
