"""The course of the compass needle: theta, radius, plane and path of every traced episode.

Nothing is judged here; the file holds what a person needs to look before believing any statistic.
"""

from typing import Any

import numpy as np

from sdjepa.compass.association import spearman
from sdjepa.compass.result import Diagnosis, said
from sdjepa.compass.trace import EpisodeTrace, Trace


def course(trace: Trace) -> Diagnosis:
    """Theta, radius, plane and path of every traced episode, for figures and for the eye."""
    spans = np.array([np.ptp(e.theta) for e in trace.episodes])
    turning = np.array([spearman(e.theta, np.arange(float(e.num_rows))) for e in trace.episodes])
    plane = np.concatenate([e.plane_radius for e in trace.episodes])
    lengths = np.array([e.num_rows for e in trace.episodes])
    weak = float((plane < 0.1 * np.median(plane)).mean())
    distinct = len(set(lengths.tolist()))
    reason = (
        f"theta spans {said(float(np.median(spans)))} rad in the median episode, runs with time in "
        f"{int((turning > 0).sum())} and against it in {int((turning < 0).sum())} of {len(spans)} "
        f"episodes, and is ill defined (plane radius under a tenth of its median) on "
        f"{100 * weak:.1f} % of frames"
    )
    if distinct == 1:
        reason += f"; all episodes have {lengths[0]} frames, so a shared clock comes for free"
    return Diagnosis(
        diagnostic="course",
        title="The compass needle over whole episodes",
        question="How does the angle of the progress part move while an episode runs?",
        status="shown",
        reason=reason,
        results={
            "episodes": [_episode_record(e) for e in trace.episodes],
            "lengths": {
                "min": int(lengths.min()),
                "max": int(lengths.max()),
                "mean": float(lengths.mean()),
                "std": float(lengths.std()),
                "distinct": distinct,
            },
            "theta_span": spans,
            "weak_plane_share": weak,
            "stand_in": trace.stand_in,
        },
    )


def _episode_record(e: EpisodeTrace) -> dict[str, Any]:
    return {
        "episode": e.index,
        "theta": e.theta,
        "radius": e.radius,
        "plane_radius": e.plane_radius,
        "plane": e.progress[:, :2],
        "path": e.path,
        "measures": dict(e.measures),
        "events": dict(e.events),
    }
