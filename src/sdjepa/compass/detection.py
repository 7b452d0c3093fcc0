"""Scores and labels in, how well the one finds the other out; pooled over episodes.

Episodes are lists: `scores[e]` belongs to `labels[e]`. Steps of an episode are not independent, so
the null shifts labels in circles within an episode and the interval resamples whole episodes. A
score may be many scores at once (leading axes), for random-plane controls.
"""

import numpy as np
from jaxtyping import Bool, Float, Int
from numpy import ndarray
from numpy.random import Generator

from sdjepa.compass.association import ranks
from sdjepa.compass.nulls import episode_weights, shift_sums, shifted_totals


def labels_near(
    events: Int[ndarray, "count"], num_steps: int, tolerance: int
) -> Bool[ndarray, "steps"]:
    """Steps within `tolerance` of an event."""
    apart = np.abs(np.arange(num_steps)[:, None] - np.asarray(events, int)[None, :])
    return np.any(apart <= tolerance, axis=-1, keepdims=True)[:, 0]


def auroc(
    scores: Float[ndarray, "*batch steps"], labels: Bool[ndarray, "steps"]
) -> Float[ndarray, "*batch"]:
    """Chance that a labelled step scores above an unlabelled one, ties half; NaN without both."""
    return _from_rank_sum(ranks(scores)[..., labels].sum(-1), labels)


def _from_rank_sum(total: ndarray, labels: Bool[ndarray, "steps"]) -> ndarray:
    positives = int(labels.sum())
    negatives = labels.size - positives
    if not positives or not negatives:
        return np.full(np.shape(total), np.nan)
    return (total - positives * (positives + 1) / 2) / (positives * negatives)


def average_precision(scores: Float[ndarray, "steps"], labels: Bool[ndarray, "steps"]) -> float:
    """Area under the precision-recall steps; its chance level is the share of labelled steps."""
    if not labels.any():
        return float("nan")
    order = np.argsort(-scores, kind="stable")
    hits = np.cumsum(labels[order])
    # Tied scores are one threshold: only the last of a run counts.
    last = np.append(np.diff(scores[order]) != 0, True)
    hits, called = hits[last], np.flatnonzero(last) + 1
    gained = np.diff(hits, prepend=0) / labels.sum()
    return float((gained * hits / called).sum())


def shift_null(
    scores: list[Float[ndarray, "*batch steps"]],
    labels: list[Bool[ndarray, "steps"]],
    *,
    draws: int,
    rng: Generator,
) -> Float[ndarray, "*batch draws"]:
    """Pooled AUROC when every episode's labels are turned by a random number of steps."""
    pooled = ranks(np.concatenate(scores, axis=-1))
    cuts = np.cumsum([len(own) for own in labels])[:-1]
    parts = np.split(pooled, cuts, axis=-1)
    sums = [shift_sums(part, own) for part, own in zip(parts, labels, strict=True)]
    return _from_rank_sum(shifted_totals(sums, draws, rng=rng), np.concatenate(labels))


def pair_table(
    scores: list[Float[ndarray, "steps"]], labels: list[Bool[ndarray, "steps"]]
) -> Float[ndarray, "episodes episodes"]:
    """Entry (e, f): pairs where a labelled step of e beats an unlabelled step of f, ties half."""
    positives = np.concatenate([s[own] for s, own in zip(scores, labels, strict=True)])
    owner = np.repeat(np.arange(len(labels)), [int(own.sum()) for own in labels])
    table = np.zeros((len(labels), len(labels)))
    for f, (s, own) in enumerate(zip(scores, labels, strict=True)):
        rest = np.sort(s[~own])
        lower = np.searchsorted(rest, positives, side="left")
        upper = np.searchsorted(rest, positives, side="right")
        table[:, f] = np.bincount(owner, (lower + upper) / 2, minlength=len(labels))
    return table


def bootstrap_auroc(
    tables: list[Float[ndarray, "episodes episodes"]],
    labels: list[Bool[ndarray, "steps"]],
    *,
    draws: int,
    rng: Generator,
) -> Float[ndarray, "signals draws"]:
    """Pooled AUROC of several signals over the same resampled episodes, so they can be paired."""
    weights = episode_weights(len(labels), draws, rng=rng).astype(float)
    positives = weights @ np.array([own.sum() for own in labels], float)
    negatives = weights @ np.array([(~own).sum() for own in labels], float)
    pairs = positives * negatives
    found = []
    for table in tables:
        won = np.einsum("de,ef,df->d", weights, table, weights, optimize=True)
        found.append(np.divide(won, pairs, out=np.full(draws, np.nan), where=pairs > 0))
    return np.stack(found)


def rank_sum(
    left: list[Float[ndarray, "steps"]], right: list[Float[ndarray, "steps"]]
) -> list[Float[ndarray, "steps"]]:
    """Both scores as pooled ranks over their number, added: the published combination."""
    cuts = np.cumsum([len(own) for own in left])[:-1]
    total = sum(ranks(np.concatenate(side)) / sum(map(len, side)) for side in (left, right))
    return np.split(np.asarray(total), cuts)
