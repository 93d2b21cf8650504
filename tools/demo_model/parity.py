"""Writes the reference logits for engines: 100 held-out prompts, PyTorch float32, last position.

    python parity.py --weights build/weights.npz --out parity.json
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import torch

from chatml import ChatEncoder
from judging import held_out_cases
from train import load

PROMPTS = 100
KEPT = 8
TOKENS_MAX = 400


def main() -> None:
    parser = argparse.ArgumentParser(description="Writes reference logits for the parity test.")
    parser.add_argument("--weights", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    torch.set_float32_matmul_precision("highest")
    model, encoder = load(arguments.weights), ChatEncoder()
    rows: list[dict[str, object]] = []
    for case in held_out_cases(7, {"fact": 60, "unknown": 30, "action": 40, "talk": 30}):
        ids = encoder.prompt(case.messages)
        if len(ids) > TOKENS_MAX or len(rows) == PROMPTS:
            continue
        with torch.inference_mode():
            logits = model.logits(model.hidden(torch.tensor([ids]))[0, -1])
        top = logits.topk(KEPT)
        rows.append(
            {
                "messages": case.messages,
                "ids": ids,
                "top_ids": top.indices.tolist(),
                "top_logits": [round(value, 5) for value in top.values.tolist()],
                "mean": round(logits.mean().item(), 5),
                "norm": round(logits.norm().item(), 4),
            }
        )
    lines = ",\n".join(json.dumps(row, ensure_ascii=False, separators=(",", ":")) for row in rows)
    arguments.out.write_text(f'{{"prompts":[\n{lines}\n]}}\n')
    print(f"{len(rows)} prompts -> {arguments.out}")


if __name__ == "__main__":
    main()
