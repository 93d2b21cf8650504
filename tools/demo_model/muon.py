"""Muon: momentum whose matrices are made orthogonal by a few Newton-Schulz steps (Jordan et al., 2024)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

import torch
from torch import Tensor, nn

COEFFICIENTS = (3.4445, -4.7750, 2.0315)
"""Quintic iteration with the steepest slope at zero, from Jordan's note."""


@torch.compile(dynamic=False)
def orthogonalise(stack: Tensor) -> Tensor:
    """Replaces the singular values of each matrix in ``[count, rows, columns]`` by values near one."""
    a, b, c = COEFFICIENTS
    x = stack.bfloat16()
    tall = x.shape[-2] > x.shape[-1]
    if tall:
        x = x.mT
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(5):
        gram = x @ x.mT
        x = a * x + (b * gram + c * gram @ gram) @ x
    return (x.mT if tall else x).float()


class Muon:
    """One stack of matrices for each shape, so that a step is a few batched products."""

    MOMENTUM = 0.95
    UPDATE_RMS = 0.2
    """Size of an update's numbers at rate one, as AdamW's are: one rate and one decay serve both (Liu et al., 2025)."""

    def __init__(self, matrices: Iterable[nn.Parameter], decay: float) -> None:
        groups: dict[torch.Size, list[nn.Parameter]] = defaultdict(list)
        for matrix in matrices:
            groups[matrix.shape].append(matrix)
        self.groups = list(groups.values())
        self.momenta = [torch.zeros(len(group), *group[0].shape, device=group[0].device) for group in self.groups]
        self.decay = decay

    def state(self) -> list[Tensor]:
        """What a checkpoint keeps."""
        return self.momenta

    def restore(self, state: list[Tensor]) -> None:
        for momentum, kept in zip(self.momenta, state, strict=True):
            momentum.copy_(kept)

    @torch.no_grad()
    def step(self, rate: float) -> None:
        for group, momentum in zip(self.groups, self.momenta, strict=True):
            gradient = torch.stack([p.grad for p in group if p.grad is not None])
            momentum.lerp_(gradient, 1 - self.MOMENTUM)
            update = orthogonalise(gradient.lerp(momentum, self.MOMENTUM))
            update *= self.UPDATE_RMS * max(group[0].shape) ** 0.5
            torch._foreach_mul_(group, 1 - rate * self.decay)
            torch._foreach_add_(group, list(update.unbind()), alpha=-rate)
