"""Rules that judge an answer. No model is used: every rule is a string comparison or a parse."""

from __future__ import annotations

import json
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field

from chatml import CALL, CALL_END, CONTROL_TOKENS
from corpus.dialogue import Check, Dialogue, Message, Tool
from corpus.mix import action_talks, noted_talks, talks
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
    tools: list[Tool] = field(default_factory=list)


Call = tuple[str, dict[str, object]]


@dataclass(frozen=True)
class Reply:
    """An engine's answer; ``finished`` is false if it reached the token limit."""

    text: str
    finished: bool
    calls: tuple[Call, ...] = ()


CALL_TEXT = re.compile(rf"{CALL}\n?(.*?)\n?(?:{CALL_END}|$)", re.DOTALL)


def split_calls(text: str) -> tuple[str, tuple[Call, ...]]:
    """Speech and calls of a model's text. The name of a malformed call is empty."""
    calls: list[Call] = []
    for body in CALL_TEXT.findall(text):
        try:
            call = json.loads(body)
            calls.append((str(call["name"]), dict(call["arguments"])))
        except (ValueError, KeyError, TypeError):
            calls.append(("", {}))
    return CALL_TEXT.sub("", text).strip(), tuple(calls)


def held_out_cases(seed: int, wanted: dict[str, int]) -> list[Case]:
    """Cases from held-out names, wares, places and phrasings: ``wanted[kind]`` of each kind, topics in equal parts."""
    return _cases(talks, seed, wanted)


def held_out_action_cases(seed: int, wanted: dict[str, int]) -> list[Case]:
    """The same, from held-out actions."""
    return _cases(action_talks, seed, wanted)


def trained_action_cases(seed: int, wanted: dict[str, int]) -> list[Case]:
    """Cases from training's words and phrasings: what fails here is not a matter of new words."""
    return _cases(action_talks, seed, wanted, False)


def noted_cases(seed: int, wanted: dict[str, int]) -> list[Case]:
    """Cases from held-out words whose last turn has notes."""
    return _cases(noted_talks, seed, wanted, suits=lambda messages: messages[-2]["role"] == "observation")


def forgotten_cases(seed: int, wanted: dict[str, int]) -> list[Case]:
    """The questions of :func:`noted_cases` whose answer is in the notes alone, without the notes."""
    cases = [case for case in noted_cases(seed, wanted) if case.check.kind == "fact" and not mentions(case.messages[0]["content"], case.check.needed)]
    return [Case([m for m in case.messages if m["role"] != "observation"], case.check) for case in cases]


def _cases(source: Callable[[int, int, bool], list[Dialogue]], seed: int, wanted: dict[str, int], held_out: bool = True, suits: Callable[[list[Message]], bool] = lambda _: True) -> list[Case]:
    counts: Counter[tuple[str, str]] = Counter()
    totals: Counter[str] = Counter()
    topics: dict[str, set[str]] = defaultdict(set)
    cases: list[Case] = []
    for part in range(400):
        for dialogue in source(seed * 1_000 + part, 64, held_out):
            for messages, check in dialogue.prompts():
                if check.kind not in wanted or not suits(messages):
                    continue
                topics[check.kind].add(check.topic)
                cap = max(1, wanted[check.kind] // max(1, len(topics[check.kind])) * 2)
                if totals[check.kind] >= wanted[check.kind] or counts[check.kind, check.topic] >= cap:
                    continue
                counts[check.kind, check.topic] += 1
                totals[check.kind] += 1
                cases.append(Case(messages, check, dialogue.tools))
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


def mentions(text: str, needed: Iterable[str]) -> bool:
    """Whether all of these words appear in a text."""
    return all(re.search(rf"(?<!\w){re.escape(word.lower())}", text.lower()) for word in needed)


def is_right(check: Check, text: str) -> bool:
    """Whether the answer passes the check."""
    if check.kind == "fact":
        return mentions(text, check.needed)
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


def same_arguments(wanted: dict[str, object], found: dict[str, object]) -> bool:
    """Whether arguments are equal, regardless of the case of texts."""
    lowered = [{key: str(value).lower() for key, value in arguments.items()} for arguments in (wanted, found)]
    return lowered[0] == lowered[1]


def summarise_actions(cases: Sequence[Case], replies: Sequence[Reply]) -> tuple[dict[str, float], Report]:
    """The numbers of the cases with actions.

    ``right action``: of the requests that need one, a single call of a right action. ``right arguments``: of these
    calls, those with the right arguments. ``no action``: of the turns that need none. ``result mentioned``: of the
    sentences after a result.
    """
    report = Report()
    for case, reply in zip(cases, replies, strict=True):
        check, rows = case.check, dict[str, bool]()
        names = [name for name, _ in reply.calls]
        if check.kind == "call":
            action = len(names) == 1 and names[0] in check.calls
            rows["right action"] = action
            if action:
                rows["right arguments"] = same_arguments(check.calls[names[0]], reply.calls[0][1])
            if check.needed:
                rows["result mentioned"] = mentions(reply.text, check.needed)
        elif check.kind == "quiet":
            rows["no action"] = all(name in check.calls for name in names)
            if check.needed:
                rows["fact beside actions"] = mentions(reply.text, check.needed)
        else:
            rows["result mentioned"] = mentions(reply.text, check.needed) and not names
        rows["finished"] = reply.finished and not loops(reply.text)
        for row, right in rows.items():
            for name in (row, f"{row}: {check.topic}") if row != "finished" else (row,):
                report.right[name].append(right)
        case_report = {"tools": case.tools, "messages": case.messages, "reply": reply.text, "calls": reply.calls, "check": asdict(check)}
        if not all(rows.values()):
            report.failures.append({"wrong": [row for row, right in rows.items() if not right], **case_report})
        elif len(report.samples) < 200:
            report.samples.append(case_report)
    return {f"{row} ({len(values)})": round(sum(values) / len(values), 4) for row, values in sorted(report.right.items())}, report
