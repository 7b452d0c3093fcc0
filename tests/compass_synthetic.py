"""Traces whose truth is known: one with a planted phase, one in which nothing is related."""

import numpy as np
from scipy.signal import lfilter

from sdjepa.compass.trace import EpisodeTrace, Trace

K, LATENT, SKIP, HISTORY, BLOCK = 2, 12, 5, 3, 4


def wandering(rng: np.random.Generator, rows: int, dim: int, keep: float = 0.9) -> np.ndarray:
    """Stationary series that forget slowly."""
    noise = rng.standard_normal((rows + 50, dim)) * np.sqrt(1 - keep**2)
    return lfilter([1], [1, -keep], noise, axis=0)[50:]


def episode(index: int, latents, *, predicted, measures, events, actions=None) -> EpisodeTrace:
    steps = len(latents) // SKIP
    seen = latents[np.arange(steps) * SKIP]
    rolled = np.full((steps - 1, 4, LATENT), np.nan)
    for ahead in range(4):
        rolled[: steps - 1 - ahead, ahead] = seen[1 + ahead :]
    return EpisodeTrace(
        index=index,
        latents=latents.astype(np.float32),
        actions=np.zeros((steps, BLOCK), np.float32) if actions is None else actions,
        predicted=predicted.astype(np.float32),
        rollouts=rolled,
        measures=measures,
        events=events,
        path=latents[:, -2:].astype(float),
        k=K,
        frame_skip=SKIP,
    )


def trace_of(episodes) -> Trace:
    return Trace(
        env="synthetic",
        k=K,
        stand_in=False,
        frame_skip=SKIP,
        history=HISTORY,
        episodes=tuple(episodes),
    )


def unrelated(seed: int, *, episodes: int = 8, rows: int = 60, drift: float = 2.0) -> Trace:
    """Smooth latents, a measure that drifts with time, events at random: no relation anywhere."""
    rng = np.random.default_rng([1, seed])
    made = []
    for index in range(episodes):
        latents = wandering(rng, rows, LATENT)
        steps = latents[np.arange(rows // SKIP) * SKIP]
        made.append(
            episode(
                index,
                latents,
                predicted=steps[HISTORY:] + 0.3 * rng.standard_normal(steps[HISTORY:].shape),
                measures={
                    "distance": 3 - np.linspace(0, drift, rows) + wandering(rng, rows, 1)[:, 0],
                    "speed": wandering(rng, rows, 1)[:, 0],
                },
                events={"switch": np.sort(rng.choice(np.arange(20, rows - 10), 2, replace=False))},
                actions=rng.standard_normal((rows // SKIP, BLOCK)).astype(np.float32),
            )
        )
    return trace_of(made)


def planted(seed: int, *, episodes: int = 16, rows: int = 200) -> Trace:
    """Theta is the task's phase, which changes its pace at events, where prediction also fails."""
    rng = np.random.default_rng([2, seed])
    made = []
    for index in range(episodes):
        switches = np.sort(rng.choice(np.arange(30, rows - 20, 10), 3, replace=False))
        # Slow, fast, back again, slow: a phase that no clock and no other episode can stand for.
        regime = np.searchsorted(switches, np.arange(rows), side="right")
        phase = np.cumsum(np.array([1.0, 6.0, -4.0, 1.0])[regime])
        phase = (phase - phase.min()) / np.ptp(phase)
        theta = 2.4 * phase
        latents = wandering(rng, rows, LATENT)
        latents[:, :2] = np.stack([np.cos(theta), np.sin(theta)], -1)
        latents[:, :2] += 0.002 * rng.standard_normal((rows, 2))
        count = rows // SKIP
        steps = latents[np.arange(count) * SKIP]
        predicted = steps + 0.5 * rng.standard_normal(steps.shape)
        near = np.unique(-(-switches // SKIP)[:, None] + np.arange(-1, 2))
        turn = 0.02 * rng.standard_normal(count)
        turn[near[near < count]] += 1.0
        angle = theta[np.arange(count) * SKIP] + turn
        predicted[:, :2] = np.stack([np.cos(angle), np.sin(angle)], -1)
        made.append(
            episode(
                index,
                latents,
                predicted=predicted[HISTORY:],
                measures={"distance": 1 - phase, "speed": wandering(rng, rows, 1)[:, 0]},
                events={"switch": switches},
            )
        )
    return trace_of(made)


class Persistence:
    """A model that always expects what it last saw, whatever the actions."""

    def following(self, latents, actions):
        return latents[:, -1]

    def rollout(self, start, actions):
        return np.repeat(start[:, None], actions.shape[1], axis=1)


class Linear:
    """A world whose next latent is the last one moved by the action, known exactly."""

    def __init__(self, seed: int) -> None:
        self.push = np.random.default_rng([3, seed]).standard_normal((BLOCK, LATENT)) * 0.5

    def following(self, latents, actions):
        return latents[:, -1] + actions[:, -1] @ self.push

    def rollout(self, start, actions):
        return start[:, None] + np.cumsum(actions @ self.push, axis=1)

    def trace(
        self, seed: int, *, episodes: int = 12, steps: int = 30, noise: float = 0.05
    ) -> Trace:
        """Episodes of this world; frames between steps lie on the straight line."""
        rng = np.random.default_rng([4, seed])
        made = []
        for index in range(episodes):
            actions = rng.standard_normal((steps, BLOCK)).astype(np.float32)
            moves = actions @ self.push + noise * rng.standard_normal((steps, LATENT))
            seen = 2 + np.cumsum(np.concatenate([np.zeros((1, LATENT)), moves]), axis=0)
            at = np.arange(steps * SKIP) / SKIP
            low = np.floor(at).astype(int)
            latents = seen[low] + (at - low)[:, None] * (seen[low + 1] - seen[low])
            predicted = seen[HISTORY - 1 : steps - 1] + actions[HISTORY - 1 : steps - 1] @ self.push
            made.append(
                episode(
                    index,
                    latents,
                    predicted=predicted,
                    measures={"distance": np.linspace(1, 0, len(latents))},
                    events={},
                    actions=actions,
                )
            )
        return trace_of(made)
