"""Trains the model on one GPU and writes ``weights.npz`` (float32).

    python train.py --rate 4e-3 --steps 8612 --out build/weights.npz

A long run can be cut into parts: ``--pause SECONDS`` ends a part and writes ``--checkpoint``, and the same command with
``--resume`` continues from there. Batches and rates depend on the step alone, so the parts are one run.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from dataclasses import asdict
from pathlib import Path

import numpy as np
import torch
from torch.utils.data import DataLoader

from batches import Batches
from corpus.mix import CORPUS_VERSION
from model import Config, Model
from muon import Muon

WARM_UP_STEPS = 100
DECAY_PART = 0.5
"""The last part of the run in which the rate falls linearly to zero."""

FIRST_STEADY_STEP, MEASURED_STEPS = 20, 200
"""``--seconds`` is turned into a number of steps by the speed of these steps, after compilation."""


def rate_at(step: int, steps: int, peak: float) -> float:
    """Warm-up, plateau, linear decay."""
    warm = min(1.0, (step + 1) / WARM_UP_STEPS)
    cool = min(1.0, (steps - step) / (steps * DECAY_PART))
    return peak * warm * cool


def write_checkpoint(path: Path, step: int, model: Model, muon: Muon, adam: torch.optim.Optimizer) -> None:
    """Everything that the next step needs; ``step`` is the number of finished steps."""
    path.parent.mkdir(parents=True, exist_ok=True)
    torch.save({"step": step, "model": model.state_dict(), "muon": muon.state(), "adam": adam.state_dict()}, path)


def read_checkpoint(path: Path, model: Model, muon: Muon, adam: torch.optim.Optimizer) -> int:
    """Restores a checkpoint; returns the number of finished steps."""
    kept = torch.load(path, map_location="cuda", weights_only=True)
    model.load_state_dict(kept["model"])
    muon.restore(kept["muon"])
    adam.load_state_dict(kept["adam"])
    return int(kept["step"])


def train(arguments: argparse.Namespace) -> Model | None:
    """The trained model; ``None`` if the run paused."""
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # the loader parallelises with processes
    torch.manual_seed(arguments.seed)
    torch.set_float32_matmul_precision("high")
    model = (load(arguments.start).train() if arguments.start else Model(Config())).cuda()
    numbers = sum(p.numel() for p in model.parameters())
    print(f"{numbers:,} parameters, {arguments.steps} steps of {arguments.tokens:,} tokens, corpus {CORPUS_VERSION}")
    matrices = [p for p in model.layers.parameters() if p.ndim == 2]
    rest = [p for p in model.parameters() if not any(p is m for m in matrices)]
    muon = Muon(matrices, arguments.decay)
    adam = torch.optim.AdamW(rest, lr=arguments.rate, betas=(0.9, 0.95), weight_decay=0.0, fused=True)
    first = read_checkpoint(arguments.checkpoint, model, muon, adam) if arguments.resume else 0
    loss_of = torch.compile(model.loss, dynamic=False)

    workers = max(1, (os.cpu_count() or 2) - 1)
    batches = Batches(arguments.seed, arguments.steps, arguments.tokens, first)
    loader = DataLoader(batches, batch_size=None, num_workers=workers, prefetch_factor=4, pin_memory=True)
    begun = steady = ready = time.monotonic()
    waited = 0.0
    losses: list[torch.Tensor] = []
    for step, batch in enumerate(loader, first):
        waited += time.monotonic() - ready
        ids, positions, bounds, learned = (tensor.cuda(non_blocking=True) for tensor in batch)
        with torch.autocast("cuda", torch.bfloat16):
            loss = loss_of(ids.long(), positions, bounds, learned)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(rest, 1.0)
        rate = rate_at(step, arguments.steps, arguments.rate)
        for group in adam.param_groups:
            group["lr"] = rate
        adam.step()
        muon.step(rate)
        for parameter in model.parameters():
            parameter.grad = None
        losses.append(loss.detach())
        if step % 100 == 0 or step == arguments.steps - 1:
            seconds = time.monotonic() - begun
            mean = torch.stack(losses[-100:]).mean().item()
            tokens = (step + 1 - first) * arguments.tokens
            print(f"step {step:5} loss {mean:.4f} rate {rate:.5f} {seconds:6.1f} s {tokens / max(seconds, 1e-9) / 1e6:.2f} Mtok/s, {waited:.1f} s waited for batches", flush=True)
        if step == first + FIRST_STEADY_STEP:
            torch.cuda.synchronize()
            steady = time.monotonic()
        if step == first + FIRST_STEADY_STEP + MEASURED_STEPS and arguments.seconds:
            torch.cuda.synchronize()
            now = time.monotonic()
            left = arguments.seconds - (now - begun)
            arguments.steps = min(arguments.steps, step + int(left * MEASURED_STEPS / (now - steady)))
            print(f"{arguments.steps} steps fit into {arguments.seconds} s")
        if step + 1 >= arguments.steps:
            break
        if arguments.pause and step % 20 == 0 and time.monotonic() - begun > arguments.pause:
            write_checkpoint(arguments.checkpoint, step + 1, model, muon, adam)
            print(f"paused after step {step}", flush=True)
            return None
        ready = time.monotonic()
    return model


@torch.no_grad()
def round_to_q8_0(model: Model) -> None:
    """Rounds every matrix to Q8_0's grid, so that the float and the quantised file are the same function.

    Q8_0: blocks of 32 numbers of a row; scale ``d = max|x| / 127``, kept as float16; ``x = d * round(x / d)``.
    """
    for matrix in model.parameters():
        if matrix.ndim == 2:
            blocks = matrix.view(-1, 32)
            scale = blocks.abs().amax(1, keepdim=True) / 127
            matrix.copy_((torch.round(blocks / scale.clamp_min(1e-12)) * scale.half().float()).view_as(matrix))


def save(model: Model, path: Path) -> None:
    """Weights by PyTorch's names, and the shapes as JSON under ``config``."""
    path.parent.mkdir(parents=True, exist_ok=True)
    arrays = {name: tensor.detach().float().cpu().numpy() for name, tensor in model.state_dict().items()}
    config = np.frombuffer(json.dumps(asdict(model.config)).encode(), np.uint8)
    np.savez(path, config=config, allow_pickle=False, **arrays)


def load(path: Path) -> Model:
    """The model that :func:`save` wrote, on the CPU."""
    with np.load(path) as file:
        model = Model(Config(**json.loads(file["config"].tobytes())))
        state = {name: torch.from_numpy(file[name]) for name in model.state_dict()}
    model.load_state_dict(state)
    return model.eval()


def main() -> None:
    parser = argparse.ArgumentParser(description="Trains the demo model on one GPU.")
    parser.add_argument("--out", type=Path, default=Path("build/weights.npz"))
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--steps", type=int, default=5_000)
    parser.add_argument("--seconds", type=int, default=0, help="shorten the run so that it ends after about this long")
    parser.add_argument("--pause", type=int, default=0, help="write the checkpoint and end after this many seconds")
    parser.add_argument("--checkpoint", type=Path, default=Path("build/checkpoint.pt"))
    parser.add_argument("--resume", action="store_true", help="continue from the checkpoint")
    parser.add_argument("--start", type=Path, help="begin with the weights of an earlier run")
    parser.add_argument("--tokens", type=int, default=131_072, help="tokens of a batch")
    parser.add_argument("--rate", type=float, default=3e-3)
    parser.add_argument("--decay", type=float, default=0.05)
    arguments = parser.parse_args()
    model = train(arguments)
    if model is None:
        return
    round_to_q8_0(model)
    save(model, arguments.out)


if __name__ == "__main__":
    main()
