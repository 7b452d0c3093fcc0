"""What the latent notices: two scenes in, how far each thing that differs moves the latent out.

A frame of one episode is drawn again with a single thing as it is in another episode: the block
there and all else here, then the agent there and all else here. A latent that says where a thing is
moves when that thing does. One that does not leaves the planner blind to it, however well
it foresees, and no loss tells: what is not in the latent need not be predicted.
"""

from typing import Any

import numpy as np
from jaxtyping import Float
from numpy import ndarray

from sdjepa.compass.nulls import interval
from sdjepa.compass.reader import Reader
from sdjepa.compass.result import Diagnosis
from sdjepa.compass.trace import Trace
from sdjepa.data.episodes import Episodes
from sdjepa.envs.base import Env, make
from sdjepa.errors import UserError
from sdjepa.seeds import numpy_stream

PAIRS = 60
DRAWS = 1999
_TITLE = "What the latent notices"
_QUESTION = "When one thing alone is where it is in another episode, how far does the latent move?"


def notice(
    trace: Trace, reader: Reader, source: Episodes, *, seed: int, pairs: int = PAIRS
) -> Diagnosis:
    """Squared distances over pairs of frames, for each thing, in shares of exchanging all."""

    def untested(reason: str) -> Diagnosis:
        return Diagnosis("notice", _TITLE, _QUESTION, "not tested", reason, {})

    try:
        env = make(source.env)
    except UserError as error:
        return untested(str(error))
    try:
        if len(env.parts) < 2:
            return untested(f"in {source.env} only one thing moves")
        apart = _apart(env, trace, reader, source, seed=seed, pairs=pairs)
    finally:
        env.close()
    rng = numpy_stream(seed, "compass", "notice", "bootstrap")
    drawn = rng.integers(pairs, size=(DRAWS, pairs))
    results: dict[str, Any] = {"pairs": pairs, "things": list(env.parts)}
    for what, table in apart.items():
        own = {name: shares(table[:, i], table[:, -1], drawn) for i, name in enumerate(env.parts)}
        results[what] = {**own, "all": float(table[:, -1].mean())}
    return Diagnosis("notice", _TITLE, _QUESTION, "shown", _sentence(results), results)


def shares(
    part: Float[ndarray, "pairs"],
    whole: Float[ndarray, "pairs"],
    drawn: Float[ndarray, "draws pairs"],
) -> dict[str, Any]:
    """What exchanging a part moves, in shares of what exchanging all does, with an interval."""
    return {
        "share": float(part.sum() / whole.sum()),
        "ci95": interval(part[drawn].sum(1) / whole[drawn].sum(1)),
    }


def _apart(
    env: Env, trace: Trace, reader: Reader, source: Episodes, *, seed: int, pairs: int
) -> dict[str, Float[ndarray, "pairs parts_and_all"]]:
    """Squared distances to the frame before any exchange, of pixels and of parts of the latent."""
    rng = numpy_stream(seed, "compass", "notice")
    env.reset(rng)
    found: dict[str, list[list[float]]] = {"pixels": [], "content": [], "progress": []}
    for _ in range(pairs):
        chosen = rng.choice(len(trace.episodes), 2, replace=False)
        here, there = (
            source.row(source.rows(e.index).start + int(rng.integers(e.num_rows)))
            for e in (trace.episodes[int(number)] for number in chosen)
        )
        states = [here, *(env.exchange(here, there, part) for part in env.parts), there]
        frames = []
        for state in states:
            env.set_state(state)
            frames.append(env.render(source.image_size))
        latents = reader.encode(np.stack(frames)).astype(float)
        pixels = np.stack(frames).astype(float).reshape(len(frames), -1) / 255
        for what, points in (
            ("pixels", pixels),
            ("content", latents[:, trace.k :]),
            ("progress", latents[:, : trace.k]),
        ):
            found[what].append(((points[1:] - points[0]) ** 2).sum(1).tolist())
    return {what: np.array(rows) for what, rows in found.items()}


def _sentence(results: dict[str, Any]) -> str:
    said = []
    for thing in results["things"]:
        content, pixels = results["content"][thing], results["pixels"][thing]
        low, high = (100 * end for end in content["ci95"])
        said.append(
            f"the {thing} alone moves content by {100 * content['share']:.1f} % "
            f"[{low:.1f}, {high:.1f}] of what exchanging everything does (progress by "
            f"{100 * results['progress'][thing]['share']:.1f} %, the picture by "
            f"{100 * pixels['share']:.0f} %)"
        )
    return "; ".join(said)
