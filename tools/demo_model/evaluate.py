"""Measures a model on held-out personas and phrasings.

    python evaluate.py --walla "cargo run --release -p walla --" --model ../../crates/walla_demo_model/walla-demo-q8_0.gguf
    python evaluate.py --weights build/weights.npz
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from drivers import CommandDriver, Driver, TorchDriver, WallaDriver
from judging import forgotten_cases, held_out_action_cases, held_out_cases, noted_cases, summarise, summarise_actions, trained_action_cases

WANTED = {"fact": 900, "unknown": 500, "action": 700, "talk": 500}
WANTED_WITH_NOTES = {"fact": 500, "unknown": 150, "talk": 100}
WANTED_WITH_ACTIONS = {"call": 1_200, "quiet": 900, "result": 500}


def driver_of(arguments: argparse.Namespace) -> Driver:
    if arguments.walla:
        return WallaDriver(arguments.walla, arguments.model)
    return CommandDriver(arguments.command) if arguments.command else TorchDriver(arguments.weights)


def main() -> None:
    parser = argparse.ArgumentParser(description="Measures a model on held-out personas and phrasings.")
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--walla", help="walla's command line program; wants --model")
    source.add_argument("--command", help="a command that speaks the JSON lines of drivers.CommandDriver")
    source.add_argument("--weights", type=Path, help="weights.npz, sampled with PyTorch")
    parser.add_argument("--model", type=Path, help="a GGUF file, for --walla")
    parser.add_argument("--temperature", type=float, default=0.7)
    parser.add_argument("--tokens-max", type=int, default=96)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--scale", type=float, default=1.0, help="more or fewer cases")
    parser.add_argument("--part", choices=["all", "talk", "actions", "trained", "notes", "forgotten"], default="all", help="talk without actions, with actions, with actions in training's words, with notes, or the same questions without the notes")
    parser.add_argument("--out", type=Path, help="where numbers, failures and samples go, as JSON")
    arguments = parser.parse_args()

    driver = driver_of(arguments)
    out: dict[str, object] = {}
    for part, make, wanted, judge in (
        ("talk", held_out_cases, WANTED, summarise),
        ("actions", held_out_action_cases, WANTED_WITH_ACTIONS, summarise_actions),
        ("notes", noted_cases, WANTED_WITH_NOTES, summarise),
        ("forgotten", forgotten_cases, WANTED_WITH_NOTES, summarise),
        ("trained", trained_action_cases, WANTED_WITH_ACTIONS, summarise_actions),
    ):
        if arguments.part != part and (arguments.part != "all" or part == "trained"):
            continue
        cases = make(arguments.seed, {kind: int(count * arguments.scale) for kind, count in wanted.items()})
        numbers, report = judge(cases, driver.reply_all(cases, arguments.temperature, arguments.tokens_max))
        for row, value in numbers.items():
            print(f"{row:48} {value}")
        out[part] = {"numbers": numbers, "failures": report.failures, "samples": report.samples}
    if arguments.out:
        arguments.out.write_text(json.dumps(out, indent=1))


if __name__ == "__main__":
    main()
