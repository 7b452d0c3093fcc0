"""Pictures of the latent: principal components and t-SNE of a few episodes, the raw plane beside.

A t-SNE may tear apart what lies together, so `geometry` says in numbers what these only suggest.
"""

from typing import Any

import numpy as np
from numpy import ndarray

from sdjepa.compass.result import Diagnosis, said
from sdjepa.compass.trace import Trace
from sdjepa.seeds import derive

EPISODES = 7
POINTS = 350  # of all episodes together; the time of a t-SNE grows faster than their number


def perplexity(count: int) -> int:
    """The published rule."""
    return max(5, min(30, count // 4))


def embedding(trace: Trace, *, seed: int) -> Diagnosis:
    """Two- and three-dimensional coordinates of progress and content, frame by frame."""
    shown = trace.episodes[:EPISODES]
    total = sum(e.num_rows for e in shown)
    stride = max(1, -(-total // POINTS))
    rows = [np.arange(0, e.num_rows, stride) for e in shown]
    progress = np.concatenate([e.progress[own] for e, own in zip(shown, rows, strict=True)])
    content = np.concatenate([e.content[own] for e, own in zip(shown, rows, strict=True)])
    latent = np.concatenate([progress, content], axis=-1).astype(float)
    centred = latent - latent.mean(0)
    _, values, axes = np.linalg.svd(centred, full_matrices=False)
    ratio = values**2 / max(float((values**2).sum()), 1e-12)
    number = derive(seed, "compass", "tsne") % 2**31
    results: dict[str, Any] = {
        "episodes": [e.index for e in shown],
        "points": [{"episode": e.index, "rows": own} for e, own in zip(shown, rows, strict=True)],
        "plane": progress[:, :2],
        "pca": {"coordinates": centred @ axes[:2].T, "variance_ratio": ratio[:10]},
        "tsne": {
            name: {
                "2d": _tsne(part, 2, seed=number),
                "3d": _tsne(part, 3, seed=number),
                "perplexity": perplexity(len(part)),
            }
            for name, part in (("progress", progress), ("content", content))
        },
    }
    reason = (
        f"the first two principal components hold {said(float(ratio[:2].sum()))} of the variance "
        f"of {len(shown)} episodes; the geometry diagnostic measures separation in numbers"
    )
    return Diagnosis(
        "embedding",
        "The latent as a picture",
        "What do the two parts of the latent look like when flattened to a page?",
        "shown",
        reason,
        results,
    )


def _tsne(points: ndarray, dim: int, *, seed: int) -> ndarray:
    from sklearn.manifold import TSNE

    found = TSNE(
        n_components=dim,
        perplexity=min(perplexity(len(points)), len(points) - 1),
        init="pca" if points.shape[1] >= dim else "random",
        random_state=seed,
    )
    return found.fit_transform(points.astype(np.float32))
