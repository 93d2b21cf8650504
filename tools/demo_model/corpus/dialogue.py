"""Result of every generator: a dialogue, and the check of its last answer."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypedDict


class Message(TypedDict):
    role: str
    content: str


@dataclass(frozen=True)
class Check:
    """How to judge an answer.

    ``kind``: ``fact`` (all of ``needed`` appear), ``unknown`` (admits it), ``action`` (JSON with this action and
    target), ``talk`` (only the form is judged). ``topic`` names the row of the report.
    """

    kind: str
    topic: str
    needed: tuple[str, ...] = ()
    action: dict[str, str] = field(default_factory=dict)


TALK = Check("talk", "talk")


@dataclass
class Dialogue:
    """System prompt (may be empty), then user and assistant in turn; one check for each assistant turn."""

    system: str
    turns: list[tuple[str, str, Check]]

    def messages(self) -> list[Message]:
        messages: list[Message] = [{"role": "system", "content": self.system}] if self.system else []
        for user, assistant, _ in self.turns:
            messages += [{"role": "user", "content": user}, {"role": "assistant", "content": assistant}]
        return messages
