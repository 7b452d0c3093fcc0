"""The world model: encode, predict, rollout, split. The four calls everyone else uses."""

from typing import cast

import torch
from jaxtyping import Float, UInt8
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from sdjepa.config import Model
from sdjepa.model.encoder import Encoder
from sdjepa.model.layers import Projector
from sdjepa.model.predictor import REF_ACTION_WIDTH, ActionEncoder, Predictor
from sdjepa.model.split import Split, polar_features
from sdjepa.seeds import derive


class WorldModel(nn.Module):
    """A LeWM-style joint-embedding world model; `config.k` = 0 makes it LeWM itself."""

    def __init__(self, config: Model) -> None:
        super().__init__()
        if config.action_dim < 1 or config.frame_skip < 1:
            raise ValueError(
                "model.action_dim and model.frame_skip come from the dataset: set them"
            )
        self.config = config
        self.block = config.action_dim * config.frame_skip
        latent, hidden = config.latent, config.projector_hidden
        self.encoder = Encoder(config)
        self.projector = Projector(config.encoder_width, hidden, latent)
        width = REF_ACTION_WIDTH if config.action_width == "ref" else self.block
        self.action_encoder = ActionEncoder(self.block, latent, width=width)
        self.predictor = Predictor(config)
        self.prediction_projector = Projector(latent, hidden, latent)
        self.split = Split(latent, config.k, learned=config.split == "learned")
        self.polar: nn.Linear | None = None
        if config.polar == "ref":
            self.polar = nn.Linear(latent + 3, latent)
        elif config.polar == "paper":
            self.polar = nn.Linear(3, latent)
        # Without a bias: a ranking of scores has no gradient for what they all have in common.
        self.progress_head: nn.Linear | None = None
        if config.progress_head:
            self.progress_head = nn.Linear(config.k, 1, bias=False)

    def encode(
        self, frames: UInt8[Tensor, "batch time *frame"], *, parts: int = 1
    ) -> Float[Tensor, "batch time latent"]:
        """Latents of frames, each frame alone.

        With `parts` > 1 the encoder takes them in so many pieces and forgets what it did until the
        gradient comes back: less memory, the same numbers, since frames meet only after it.
        """
        flat = frames.flatten(0, 1)
        if parts == 1:
            features = self.encoder(flat)
        else:
            pieces = [checkpoint(self.encoder, x, use_reentrant=False) for x in flat.chunk(parts)]
            features = torch.cat(cast(list[Tensor], pieces))
        return self.projector(features).view(*frames.shape[:2], -1)

    def embed_actions(
        self, actions: Float[Tensor, "batch time block"]
    ) -> Float[Tensor, "batch time latent"]:
        """Embeddings of normalised action blocks; computed once, reused along a rollout."""
        return self.action_encoder(actions)

    def predict(
        self,
        latents: Float[Tensor, "batch time latent"],
        actions: Float[Tensor, "batch time block"],
    ) -> Float[Tensor, "batch time latent"]:
        """Position i holds the prediction of latent i + 1 from latents and actions 0..i."""
        return self.predict_embedded(latents, self.embed_actions(actions))

    def predict_embedded(
        self,
        latents: Float[Tensor, "batch time latent"],
        action_embeddings: Float[Tensor, "batch time latent"],
    ) -> Float[Tensor, "batch time latent"]:
        """`predict` with actions already embedded."""
        condition = self._condition(latents, action_embeddings)
        return self.prediction_projector(self.predictor(latents, condition))

    def _condition(
        self,
        latents: Float[Tensor, "batch time latent"],
        action_embeddings: Float[Tensor, "batch time latent"],
    ) -> Float[Tensor, "batch time latent"]:
        if self.polar is None:
            return action_embeddings
        polar = polar_features(self.split(latents).progress).to(action_embeddings.dtype)
        if self.config.polar == "ref":
            return self.polar(torch.cat([action_embeddings, polar], dim=-1))
        return action_embeddings + self.polar(polar)

    def rollout(
        self,
        latents: Float[Tensor, "batch context latent"],
        past_actions: Float[Tensor, "batch past block"],
        actions: Float[Tensor, "batch horizon block"],
    ) -> Float[Tensor, "batch horizon latent"]:
        """Latents reached by `actions`; `past_actions` led from each context latent to the next.

        The predictor sees the last `history` latents, counted from position 0 again as they slide.
        """
        context, history = latents.shape[1], self.config.history
        assert past_actions.shape[1] == context - 1
        embedded = self.embed_actions(torch.cat([past_actions, actions], dim=1))
        path = list(latents.unbind(dim=1))
        for step in range(actions.shape[1]):
            low = max(0, context + step - history)
            window = torch.stack(path[low:], dim=1)
            path.append(self.predict_embedded(window, embedded[:, low : context + step])[:, -1])
        return torch.stack(path[context:], dim=1)

    def teacher_forced(
        self,
        latents: Float[Tensor, "batch time latent"],
        actions: Float[Tensor, "batch steps block"],
    ) -> Float[Tensor, "batch steps latent"]:
        """Predictions of latents 1..steps, each from at most `history` true latents before it."""
        steps, history = actions.shape[1], self.config.history
        embedded = self.embed_actions(actions)
        first = self.predict_embedded(latents[:, : min(steps, history)], embedded[:, :history])
        if steps <= history:
            return first
        # Every later step has a full history of its own: stack those windows into the batch.
        windows = latents[:, 1:steps].unfold(1, history, 1).transpose(2, 3).flatten(0, 1)
        conditions = embedded[:, 1:].unfold(1, history, 1).transpose(2, 3).flatten(0, 1)
        later = self.predict_embedded(windows, conditions)[:, -1]
        return torch.cat([first, later.view(len(latents), steps - history, -1)], dim=1)


def build(config: Model, *, seed: int) -> WorldModel:
    """A new model whose weights depend on `seed` alone; the global random state is untouched."""
    state = torch.get_rng_state()
    torch.manual_seed(derive(seed, "initialisation"))
    model = WorldModel(config)
    torch.set_rng_state(state)
    return model


def count_parameters(model: nn.Module) -> int:
    """Trainable numbers."""
    return sum(p.numel() for p in model.parameters() if p.requires_grad)
