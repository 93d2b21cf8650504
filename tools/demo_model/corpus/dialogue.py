"""Result of every generator: a dialogue, and the check of its last answer."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, TypedDict

Tool = dict[str, Any]
"""An action in the form of OpenAI's API: ``{"type": "function", "function": {"name", "description", "parameters"}}``."""


class Message(TypedDict):
    """``role``: ``system``, ``user``, ``assistant``, ``observation``, ``action`` (the content is the call in JSON) or ``result``."""

    role: str
    content: str


@dataclass(frozen=True)
class Check:
    """How to judge an answer.

    ``kind``: ``fact`` (all of ``needed`` appear), ``unknown`` (admits it), ``action`` (JSON with this action and
    target), ``talk`` (only the form is judged), ``call`` (a call of one of ``calls``), ``quiet`` (no call, or one of
    ``calls``), ``result`` (all of ``needed`` appear after a result). ``topic`` names the row of the report.
    """

    kind: str
    topic: str
    needed: tuple[str, ...] = ()
    action: dict[str, str] = field(default_factory=dict)
    calls: dict[str, dict[str, object]] = field(default_factory=dict)
    """Right actions with their arguments."""


TALK = Check("talk", "talk")


@dataclass(frozen=True)
class Spoken:
    """An answer with calls."""

    text: str
    calls: tuple[tuple[str, dict[str, object]], ...]

    def messages(self) -> list[Message]:
        said: list[Message] = [{"role": "assistant", "content": self.text}] if self.text else []
        return said + [{"role": "action", "content": call_text(name, arguments)} for name, arguments in self.calls]


def call_text(name: str, arguments: dict[str, object]) -> str:
    """The JSON of a call, as the chat template prints it."""
    return json.dumps({"name": name, "arguments": arguments}, ensure_ascii=False)


Turn = tuple["str | list[Message]", "str | Spoken", Check]
"""What precedes an answer (a user's text, or messages), the answer, and its check."""


@dataclass
class Dialogue:
    """System prompt (may be empty), then user and assistant in turn; one check for each assistant turn."""

    system: str
    turns: list[Turn]
    tools: list[Tool] = field(default_factory=list)

    def prompts(self) -> Iterator[tuple[list[Message], Check]]:
        """The messages before each answer, with the check of the answer."""
        messages: list[Message] = [{"role": "system", "content": self.system}] if self.system else []
        for before, answer, check in self.turns:
            messages += [{"role": "user", "content": before}] if isinstance(before, str) else before
            yield list(messages), check
            messages += [{"role": "assistant", "content": answer}] if isinstance(answer, str) else answer.messages()

    def messages(self) -> list[Message]:
        messages: list[Message] = [{"role": "system", "content": self.system}] if self.system else []
        for before, answer, _ in self.turns:
            messages += [{"role": "user", "content": before}] if isinstance(before, str) else before
            messages += [{"role": "assistant", "content": answer}] if isinstance(answer, str) else answer.messages()
        return messages
