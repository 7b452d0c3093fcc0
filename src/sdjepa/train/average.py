"""A running average of the weights, which plans better than the weights of any one step."""

# torch._foreach_*, which torch.optim is built on: one launch for many small tensors.
# pyright: reportPrivateImportUsage=false

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from sdjepa.model.world_model import WorldModel


class Average:
    """Exponential average of weights and BatchNorm statistics, on the model's device.

    Young averages forget faster, so that the first steps do not stay in it: after t steps at most
    10 / (10 + t) of the newest weights is still to come.
    """

    def __init__(self, model: WorldModel, *, decay: float) -> None:
        self.decay = decay
        self.values = {name: value.detach().clone() for name, value in _moving(model).items()}
        device = next(model.parameters()).device
        self._share = torch.ones((), device=device)  # a tensor, so that a recorded step reads it

    def advance(self, step: int) -> None:
        """Say which step the next update belongs to."""
        self._share.fill_(1 - min(self.decay, (1 + step) / (10 + step)))

    @torch.no_grad()
    def update(self, model: WorldModel) -> None:
        """Move toward the present weights."""
        averages = list(self.values.values())
        gaps = torch._foreach_sub(list(_moving(model).values()), averages)
        torch._foreach_mul_(gaps, self._share)
        torch._foreach_add_(averages, gaps)

    def tensors(self) -> list[Tensor]:
        return list(self.values.values())

    @contextmanager
    @torch.no_grad()
    def instead(self, model: WorldModel) -> Iterator[None]:
        """The model with averaged weights, for a while; in place, in either direction."""
        moving = _moving(model)
        kept = {name: value.clone() for name, value in moving.items()}
        for name, value in moving.items():
            value.copy_(self.values[name])
        try:
            yield
        finally:
            with torch.no_grad():
                for name, value in moving.items():
                    value.copy_(kept[name])


def _moving(model: WorldModel) -> dict[str, Tensor]:
    """Everything of the state that training moves and an average makes sense of."""
    return {name: value for name, value in model.state_dict().items() if value.is_floating_point()}
