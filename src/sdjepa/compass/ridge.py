"""Linear probes: features and a target in, held-out predictions out, many feature sets at once.

Features have shape (batch, time, dim): a hundred random projections are one batch. Three ways of
holding out, from lenient to strict: one step (its neighbours stay, so any smooth curve will do), a
block with a gap around it, and the future.
"""

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from jaxtyping import Bool, Float
from numpy import ndarray

ALPHAS = tuple(10.0**power for power in range(-3, 5))
_TINY = 1e-12


@dataclass(frozen=True)
class Fold:
    """Which steps are learned from and which are predicted; the gap belongs to neither."""

    train: Bool[ndarray, "time"]
    test: Bool[ndarray, "time"]


def blocked(num_steps: int, *, blocks: int = 5, gap: int = 1) -> list[Fold]:
    """Contiguous test blocks; `gap` steps on either side are not learned from."""
    position = np.arange(num_steps)
    edges = np.linspace(0, num_steps, blocks + 1).round().astype(int)
    folds = []
    for low, high in pairwise(edges):
        test = (position >= low) & (position < high)
        train = (position < low - gap) | (position >= high + gap)
        if test.any() and train.sum() >= 3:
            folds.append(Fold(train, test))
    return folds


def forward(num_steps: int, *, blocks: int = 3, gap: int = 0) -> list[Fold]:
    """The second half in `blocks` parts, each predicted from all that came before it."""
    position = np.arange(num_steps)
    edges = np.linspace(num_steps // 2, num_steps, blocks + 1).round().astype(int)
    folds = []
    for low, high in pairwise(edges):
        test, train = (position >= low) & (position < high), position < low - gap
        if test.any() and train.sum() >= 3:
            folds.append(Fold(train, test))
    return folds


def leave_one_out(
    features: Float[ndarray, "batch time dim"],
    target: Float[ndarray, "#batch time"],
    alpha: float = 1e-3,
) -> Float[ndarray, "batch time"]:
    """Each step predicted by a ridge with intercept fitted to all others, in closed form.

    Leaving step i out changes its residual by the factor 1 / (1 - leverage), exactly, because the
    penalty does not depend on the data.
    """
    centred = features - features.mean(1, keepdims=True)
    gram = centred.swapaxes(1, 2) @ centred + alpha * np.eye(features.shape[-1])
    hat = centred @ np.linalg.solve(gram, centred.swapaxes(1, 2)) + 1 / features.shape[1]
    residual = target - (hat @ target[..., None])[..., 0]
    leverage = np.einsum("btt->bt", hat)
    return target - residual / np.maximum(1 - leverage, _TINY)


def fit_predict(
    train: Float[ndarray, "batch time dim"],
    target: Float[ndarray, "#batch time"],
    test: Float[ndarray, "batch count dim"],
    *,
    alphas: tuple[float, ...] = ALPHAS,
    standardise: bool = True,
) -> Float[ndarray, "batch count"]:
    """Ridge with intercept; the penalty is chosen by leave-one-out inside the training part.

    With `standardise` features have mean 0 and variance 1 over the training part, so that one
    penalty means the same for every feature set.
    """
    mean = train.mean(1, keepdims=True)
    spread = train.std(1, keepdims=True) if standardise else np.ones_like(mean)
    spread = np.where(spread > _TINY, spread, 1.0)
    left, values, right = np.linalg.svd((train - mean) / spread, full_matrices=False)
    level = target.mean(-1, keepdims=True)
    goal = np.broadcast_to(target - level, left.shape[:2])
    along = (left.swapaxes(1, 2) @ goal[..., None])[..., 0]
    shrink = values**2 / (values**2 + np.asarray(alphas)[:, None, None])  # alphas, batch, rank
    across = shrink.transpose(1, 2, 0)  # batch, rank, alphas
    fitted = left @ (across * along[..., None])
    leverage = left**2 @ across + 1 / train.shape[1]
    missed = (goal[..., None] - fitted) / np.maximum(1 - leverage, _TINY)
    best = (missed**2).sum(1).argmin(-1)  # batch
    scale = values / (values**2 + np.asarray(alphas)[best][:, None])
    weights = right.swapaxes(1, 2) @ (scale * along)[..., None]
    return level + (((test - mean) / spread) @ weights)[..., 0]


def cross_validated_r2(
    features: Float[ndarray, "batch time dim"],
    target: Float[ndarray, "#batch time"],
    folds: list[Fold],
) -> Float[ndarray, "batch"]:
    """Share of held-out variance explained, beside a probe that always says the training mean."""
    if not folds:
        return np.full(len(features), np.nan)
    wrong, baseline = np.zeros(len(features)), np.zeros(len(features))
    for fold in folds:
        truth, known = target[:, fold.test], target[:, fold.train]
        guess = fit_predict(features[:, fold.train], known, features[:, fold.test])
        wrong += ((guess - truth) ** 2).sum(-1)
        baseline += ((truth - known.mean(-1, keepdims=True)) ** 2).sum(-1)
    return 1 - wrong / (baseline + _TINY)


def r2(
    predicted: Float[ndarray, "*batch time"], target: Float[ndarray, "*#batch time"]
) -> Float[ndarray, "*batch"]:
    """Share of variance explained; below 0 the mean would have done better."""
    wrong = ((predicted - target) ** 2).sum(-1)
    spread = ((target - target.mean(-1, keepdims=True)) ** 2).sum(-1)
    return 1 - wrong / (spread + _TINY)
