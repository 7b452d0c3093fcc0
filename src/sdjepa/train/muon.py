"""Muon: matrices inside transformer blocks move along orthogonalised momentum, the rest by AdamW.

An update of a matrix has all singular values near 1, so directions that gradients rarely point to
are learnt as fast as the common ones. It is scaled to the size of an AdamW update, so one learning
rate serves both kinds. Matrices of one shape are orthogonalised together.
"""

# torch._foreach_*, which torch.optim is built on: one launch for many small tensors.
# pyright: reportPrivateImportUsage=false

from collections import defaultdict
from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

# A quintic whose iteration draws singular values in (0, 1] to near 1; five rounds suffice in bf16.
A, B, C = 3.4445, -4.7750, 2.0315
ROUNDS = 5
ADAM_SIZE = 0.2  # root mean square of a typical AdamW update, in units of the learning rate


def orthogonalise(matrices: Float[Tensor, "n rows columns"]) -> Float[Tensor, "n rows columns"]:
    """Each matrix with its singular values replaced by numbers near 1."""
    x = matrices.bfloat16() if matrices.is_cuda else matrices
    tall = x.shape[-2] > x.shape[-1]
    x = x.mT if tall else x
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(ROUNDS):
        square = x @ x.mT
        x = A * x + (B * square + C * square @ square) @ x
    return (x.mT if tall else x).to(matrices.dtype)


class Muon(torch.optim.Optimizer):
    """Groups with `matrices` = True take the orthogonalised step, others AdamW's."""

    def __init__(
        self,
        groups: list[dict[str, Any]],
        *,
        lr: float | Tensor,
        betas: tuple[float, float],
        momentum: float = 0.95,
        eps: float = 1e-8,
    ) -> None:
        defaults = {"lr": lr, "betas": betas, "momentum": momentum, "eps": eps, "matrices": False}
        super().__init__(groups, defaults)

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            used = [p for p in group["params"] if p.grad is not None]
            if group["matrices"]:
                self._turn(used, group)
            elif used:
                self._adam(used, group)

    def _turn(self, parameters: list[Tensor], group: dict[str, Any]) -> None:
        alike: dict[torch.Size, list[Tensor]] = defaultdict(list)
        for parameter in parameters:
            alike[parameter.shape].append(parameter)
        for shape, members in alike.items():
            moments = [self._moment(p, "momentum") for p in members]
            grads = [p.grad for p in members if p.grad is not None]
            torch._foreach_lerp_(moments, grads, 1 - group["momentum"])
            # Nesterov: look one step ahead along the momentum.
            ahead = torch._foreach_lerp(grads, moments, group["momentum"])
            turned = orthogonalise(torch.stack(ahead)).unbind()
            self._apply(members, list(turned), group, scale=ADAM_SIZE * max(shape) ** 0.5)

    def _adam(self, parameters: list[Tensor], group: dict[str, Any]) -> None:
        beta1, beta2 = group["betas"]
        grads = [p.grad for p in parameters if p.grad is not None]
        first = [self._moment(p, "exp_avg") for p in parameters]
        second = [self._moment(p, "exp_avg_sq") for p in parameters]
        counts = [self._count(p) for p in parameters]
        torch._foreach_add_(counts, 1)
        torch._foreach_lerp_(first, grads, 1 - beta1)
        torch._foreach_mul_(second, beta2)
        torch._foreach_addcmul_(second, grads, grads, 1 - beta2)
        steps = counts[0]  # all parameters of a group are as old as each other
        size = torch._foreach_sqrt(torch._foreach_div(second, 1 - beta2**steps))
        torch._foreach_add_(size, group["eps"])
        torch._foreach_mul_(size, 1 - beta1**steps)
        self._apply(parameters, list(torch._foreach_div(first, size)), group, scale=1.0)

    def _apply(
        self,
        parameters: list[Tensor],
        updates: list[Tensor],
        group: dict[str, Any],
        *,
        scale: float,
    ) -> None:
        """Decoupled decay and a step of lr * scale."""
        rate = group["lr"]
        torch._foreach_mul_(parameters, 1 - rate * group["weight_decay"])
        torch._foreach_mul_(updates, -rate * scale)
        torch._foreach_add_(parameters, updates)

    def _moment(self, parameter: Tensor, name: str) -> Tensor:
        state = self.state[parameter]
        if name not in state:
            state[name] = torch.zeros_like(parameter)
        return state[name]

    def _count(self, parameter: Tensor) -> Tensor:
        state = self.state[parameter]
        if "step" not in state:
            state["step"] = torch.zeros((), device=parameter.device)
        return state["step"]
