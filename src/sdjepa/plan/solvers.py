"""Search for the actions of least cost: functions of (cost, settings, random streams) -> plan.

A task draws from its own stream, so its plan does not depend on which tasks share the batch.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from sdjepa.config import Plan as Settings

Cost = Callable[
    [Float[Tensor, "tasks candidates horizon block"]], Float[Tensor, "tasks candidates"]
]


@dataclass(frozen=True)
class Plan:
    """Normalised action blocks to execute, and how the search went."""

    actions: Float[Tensor, "tasks horizon block"]
    best_cost: Float[Tensor, "tasks iterations"]  # of the best candidate at each iteration


def cem(
    cost: Cost,
    settings: Settings,
    *,
    streams: Sequence[torch.Generator],
    block: int,
    device: torch.device,
    warm_start: Float[Tensor, "tasks horizon block"] | None = None,
) -> Plan:
    """Cross-entropy method: sample, keep the elites, refit; the plan is the last mean.

    The current mean is always candidate 0. The elites' unbiased standard deviation is used as it is:
    no floor, no momentum, no clipping to action bounds.
    """
    tasks, horizon = len(streams), settings.horizon
    mean = torch.zeros(tasks, horizon, block, device=device) if warm_start is None else warm_start
    std = torch.full_like(mean, settings.initial_std)
    trace = []
    for _ in range(settings.iterations):
        noise = torch.stack(
            [
                torch.randn(settings.candidates, horizon, block, generator=g, device=g.device)
                for g in streams
            ]
        ).to(device)
        candidates = mean[:, None] + std[:, None] * noise
        candidates[:, 0] = mean
        costs = cost(candidates)
        lowest = costs.topk(settings.elites, dim=1, largest=False)
        elites = candidates.gather(
            1, lowest.indices[..., None, None].expand(-1, -1, horizon, block)
        )
        mean, std = elites.mean(dim=1), elites.std(dim=1)
        trace.append(lowest.values[:, 0])
    return Plan(actions=mean, best_cost=torch.stack(trace, dim=1))


SOLVERS = {"cem": cem}
