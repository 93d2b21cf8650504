"""Rules that judge an answer. No model is used: every rule is a string comparison or a parse."""

from __future__ import annotations

import json
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field

from chatml import CONTROL_TOKENS
from corpus.dialogue import Check, Message
from corpus.mix import dialogues
from corpus.robot_words import ACTIONS
from corpus.tavern import sentence_count

ADMITS = re.compile(
    r"don't know|do not know|how should i know|don't\b.*\bknow"
    r"|n't (?:say|tell|help|think of|heard|told|counted?|lost|sell|have|need|keep|owe|dream|remember|understand)"
    r"|never (?:heard|told|been|counted|think)|not (?:told|heard|that i know|lost)|nothing"
    r"|\bno (?:idea|work|news|wares|pets?|animals?|debts?|dreams?|name|fixed|favourite)|\bno \w+(?: \w+){0,3} here|have no "
    r"|each day as it comes|stopped counting|beyond me|too (?:small|hard)",
    re.IGNORECASE,
)
"""How an answer admits that it does not know or have something."""


@dataclass(frozen=True)
class Case:
    """A talk up to a user's turn, and how to judge the answer to it."""

    messages: list[Message]
    check: Check


@dataclass(frozen=True)
class Reply:
    """An engine's answer; ``finished`` is false if it reached the token limit."""

    text: str
    finished: bool


def held_out_cases(seed: int, wanted: dict[str, int]) -> list[Case]:
    """Cases from held-out names, wares, places and phrasings: ``wanted[kind]`` of each kind, topics in equal parts."""
    counts: Counter[tuple[str, str]] = Counter()
    totals: Counter[str] = Counter()
    topics: dict[str, set[str]] = defaultdict(set)
    cases: list[Case] = []
    for part in range(400):
        for dialogue in dialogues(seed * 1_000 + part, 64, held_out=True):
            messages = dialogue.messages()
            for turn, (_, _, check) in enumerate(dialogue.turns):
                topics[check.kind].add(check.topic)
                cap = max(1, wanted[check.kind] // max(1, len(topics[check.kind])) * 2)
                if totals[check.kind] >= wanted[check.kind] or counts[check.kind, check.topic] >= cap:
                    continue
                counts[check.kind, check.topic] += 1
                totals[check.kind] += 1
                end = (1 if dialogue.system else 0) + 2 * turn + 1
                cases.append(Case(messages[:end], check))
                break  # one case per dialogue
        if all(totals[kind] >= wanted[kind] for kind in wanted):
            break
    return cases


def parse_action(text: str) -> dict[str, str] | None:
    """The reply's action if it is one JSON object of the documented form, else ``None``."""
    try:
        value = json.loads(text)
    except json.JSONDecodeError:
        return None
    if not isinstance(value, dict) or value.get("action") not in ACTIONS or not all(isinstance(v, str) for v in value.values()):
        return None
    return value if {"target", "say"} <= value.keys() else None


def is_right(check: Check, text: str) -> bool:
    """Whether the answer passes the check."""
    lowered = text.lower()
    if check.kind == "fact":
        return all(re.search(rf"(?<!\w){re.escape(needed.lower())}", lowered) for needed in check.needed)
    if check.kind == "unknown":
        return ADMITS.search(text) is not None
    if check.kind == "action":
        action = parse_action(text)
        return action is not None and all(action.get(key, "").lower() == value.lower() for key, value in check.action.items())
    return bool(text.strip())


def loops(text: str) -> bool:
    """Whether a sequence of four words occurs at least three times."""
    words = text.split()
    runs = Counter(tuple(words[i : i + 4]) for i in range(len(words) - 3))
    return any(count >= 3 for count in runs.values())


def distinct_2(texts: Iterable[str]) -> float:
    """Different pairs of neighbouring words over all pairs."""
    pairs = [pair for text in texts for words in [text.lower().split()] for pair in zip(words, words[1:])]
    return len(set(pairs)) / max(1, len(pairs))


@dataclass
class Report:
    """Counts by topic, and the failures."""

    right: dict[str, list[bool]] = field(default_factory=lambda: defaultdict(list))
    failures: list[dict[str, object]] = field(default_factory=list)
    samples: list[dict[str, object]] = field(default_factory=list)


def summarise(cases: Sequence[Case], replies: Sequence[Reply]) -> tuple[dict[str, float], Report]:
    """The numbers of the model card, and the report behind them."""
    report = Report()
    spoken = [reply.text for case, reply in zip(cases, replies, strict=True) if case.check.kind != "action"]
    actions = [parse_action(reply.text) for case, reply in zip(cases, replies, strict=True) if case.check.kind == "action"]
    for case, reply in zip(cases, replies, strict=True):
        right = is_right(case.check, reply.text)
        group = "refuse" if case.check.kind == "action" and case.check.action.get("action") == "refuse" else case.check.kind
        for row in {group, f"{group}: {case.check.topic}"}:
            report.right[row].append(right)
        if not right or loops(reply.text) or not reply.finished:
            report.failures.append({"system": case.messages[0]["content"], "talk": [m["content"] for m in case.messages[1:]], "reply": reply.text, "check": asdict(case.check)})
        elif len(report.samples) < 300:
            report.samples.append({"messages": case.messages, "reply": reply.text})
    total = max(1, len(replies))
    numbers = {f"{row} ({len(values)})": round(sum(values) / len(values), 4) for row, values in sorted(report.right.items())}
    numbers |= {
        "robot: valid JSON": round(sum(action is not None for action in actions) / max(1, len(actions)), 4),
        "loops or cut off": round(sum(loops(r.text) or not r.finished for r in replies) / total, 4),
        "control tokens in text": float(sum(any(token in r.text for token in CONTROL_TOKENS) for r in replies)),
        "1 to 3 sentences": round(sum(1 <= sentence_count(text) <= 3 for text in spoken) / max(1, len(spoken)), 4),
        "distinct-2 of 500": round(distinct_2(spoken[:500]), 4),
    }
    return numbers, report
