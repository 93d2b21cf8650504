"""Engines that answer the cases: PyTorch (while training) or a command such as walla's (for the published numbers)."""

from __future__ import annotations

import json
import shlex
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from corpus.dialogue import Message
from judging import Case, Reply, split_calls


class Driver(Protocol):
    """Answers talks, each with a separate seed."""

    def reply_all(self, cases: Sequence[Case], temperature: float, tokens_max: int) -> list[Reply]: ...


class CommandDriver:
    """One subprocess for all talks: JSON lines in, JSON lines out, in the same order.

    In: ``{"messages": [{"role", "content"}...], "seed", "temperature", "max_tokens"}``, with ``"tools"`` if there are
    actions. Out: ``{"text", "finish"}`` where ``finish`` is ``stop`` or ``length``, and ``"calls": [{"name",
    "arguments"}...]`` if there are actions.
    """

    def __init__(self, command: str) -> None:
        self.command = shlex.split(command)

    def reply_all(self, cases: Sequence[Case], temperature: float, tokens_max: int) -> list[Reply]:
        requests = [
            json.dumps({"messages": case.messages, "seed": seed, "temperature": temperature, "max_tokens": tokens_max} | ({"tools": case.tools} if case.tools else {}))
            for seed, case in enumerate(cases)
        ]
        done = subprocess.run(self.command, input="\n".join(requests) + "\n", capture_output=True, text=True, check=True)
        answers = [json.loads(line) for line in done.stdout.splitlines() if line.strip()]
        if len(answers) != len(cases):
            raise RuntimeError(f"{len(cases)} talks went in, {len(answers)} answers came out")
        called = [tuple((call["name"], call["arguments"]) for call in answer.get("calls", [])) for answer in answers]
        return [Reply(answer["text"], answer["finish"] == "stop", calls) for answer, calls in zip(answers, called)]


class WallaDriver:
    """One ``walla chat`` per talk, with the persona as an argument and the user's turns as lines.

    The assistant's earlier turns are walla's replies, not the case's, so this is the harder test; only the last
    reply is judged.
    """

    PROMPT = "> "

    def __init__(self, program: str, model: Path) -> None:
        self.command = [*shlex.split(program), "chat", str(model), "--context", "2048", "--top-k", "0", "--top-p", "1", "--min-p", "0"]

    def reply_all(self, cases: Sequence[Case], temperature: float, tokens_max: int) -> list[Reply]:
        return [self._reply(case.messages, temperature, tokens_max, seed) for seed, case in enumerate(cases)]

    def _reply(self, talk: list[Message], temperature: float, tokens_max: int, seed: int) -> Reply:
        persona = next((message["content"] for message in talk if message["role"] == "system"), "")
        said = "".join(f"{message['content']}\n" for message in talk if message["role"] == "user")
        settings = [f"--persona={persona}", "--temperature", str(temperature), "-n", str(tokens_max), "--seed", str(seed)]
        done = subprocess.run([*self.command, *settings], input=said, capture_output=True, text=True, check=True)
        lines = [line.removeprefix(self.PROMPT) for line in done.stdout.splitlines() if line.strip() not in ("", ">")]
        text = lines[-1].strip() if lines else ""
        return Reply(text, text.endswith((".", "!", "?", "}", "*")))


class TorchDriver:
    """Samples with PyTorch, many talks at a time; recomputes the whole sequence at each step, so it needs a GPU."""

    def __init__(self, weights: Path, rows: int = 256) -> None:
        import torch

        from chatml import ChatEncoder
        from train import load

        self.torch, self.rows = torch, rows
        self.device = "cuda" if torch.cuda.is_available() else "cpu"
        self.model = load(weights).to(self.device)
        self.encoder = ChatEncoder()

    def reply_all(self, cases: Sequence[Case], temperature: float, tokens_max: int) -> list[Reply]:
        prompts = [self.encoder.prompt(case.messages, case.tools)[-(self.model.config.context - tokens_max) :] for case in cases]
        order = sorted(range(len(prompts)), key=lambda i: len(prompts[i]))
        replies: dict[int, Reply] = {}
        for at in range(0, len(order), self.rows):
            part = order[at : at + self.rows]
            for index, reply in zip(part, self._sample([prompts[i] for i in part], temperature, tokens_max)):
                replies[index] = reply
        return [replies[i] if case.tools == [] else Reply(text, replies[i].finished, calls) for i, case in enumerate(cases) for text, calls in [split_calls(replies[i].text)]]

    def _sample(self, prompts: list[list[int]], temperature: float, tokens_max: int) -> list[Reply]:
        torch = self.torch
        torch.manual_seed(len(prompts[0]))
        lengths = torch.tensor([len(p) for p in prompts], device=self.device)
        ids = torch.zeros(len(prompts), int(lengths.max()) + tokens_max, dtype=torch.long, device=self.device)
        for row, prompt in enumerate(prompts):
            ids[row, : len(prompt)] = torch.tensor(prompt)
        rows = torch.arange(len(prompts), device=self.device)
        ended = torch.zeros(len(prompts), dtype=torch.bool, device=self.device)
        ends = lengths.clone()
        with torch.inference_mode():
            for _ in range(tokens_max):
                hidden = self.model.hidden(ids[:, : int(ends.max())])
                logits = self.model.logits(hidden[rows, ends - 1])
                token = torch.multinomial((logits / temperature).softmax(-1), 1)[:, 0] if temperature > 0 else logits.argmax(-1)
                ended |= token == self.encoder.end
                ids[rows[~ended], ends[~ended]] = token[~ended]
                ends = ends + (~ended).long()
                if bool(ended.all()):
                    break
        spans = [ids[row, lengths[row] : ends[row]].tolist() for row in range(len(prompts))]
        return [Reply(self.encoder.decode(span), bool(done)) for span, done in zip(spans, ended.tolist())]
