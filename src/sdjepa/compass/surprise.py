"""Does the angle mark the moment when the film is cut? Four edits, many pairs of episodes.

The encoder sees one frame at a time, so after a splice theta *is* the donor's theta, as any readout
of a single frame would be; and reversing frames only permutes angles. What can be asked fairly:
does the angle jump more at a cut than other readouts do, and does the predictor, which knows the
actions, notice more than the jump of a single-frame readout?
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float
from numpy import ndarray

from sdjepa.compass.detection import auroc
from sdjepa.compass.film import Frames, thumbnails
from sdjepa.compass.nulls import random_frames, summary
from sdjepa.compass.perturb import Edit, reverse, splice, teleport, teleport_continue
from sdjepa.compass.reader import Dynamics
from sdjepa.compass.result import Diagnosis, Status, below, judge, said, said_p
from sdjepa.compass.signals import errors
from sdjepa.compass.trace import EpisodeTrace, Trace, plane_angle, wrap
from sdjepa.seeds import numpy_stream

PAIRS = 200
PLANES = 199
STEP_PUBLISHED = 50
WINDOW = 10
MODES = ("splice", "teleport_continue", "teleport", "reverse")
JUMPS = ("theta", "progress", "content", "latent")
PREDICTED = ("angle_error", "latent_error", "progress_error", "content_error")
_TITLE = "Surprise at a cut in the film"
_QUESTION = "When the scene suddenly changes, does the angle show it better than other readouts do?"


@dataclass(frozen=True)
class _Pair:
    own: EpisodeTrace
    donor: EpisodeTrace
    at: int  # row of the cut, on the step base


def edit_of(mode: str, own_rows: int, donor_rows: int, at: int) -> Edit:
    """The named edit at row `at`."""
    if mode == "splice":
        return splice(own_rows, donor_rows, at)
    if mode == "teleport_continue":
        return teleport_continue(own_rows, donor_rows, at)
    if mode == "teleport":
        return teleport(own_rows, donor_rows, at)
    return reverse(own_rows, at, WINDOW)


def surprise(
    trace: Trace,
    dynamics: Dynamics,
    *,
    seed: int,
    pairs: int = PAIRS,
    planes: int = PLANES,
    frames: Frames | None = None,
) -> Diagnosis:
    """Jumps and prediction errors at a cut, against the same row of the uncut episode."""
    drawn = _draw_pairs(trace, pairs, rng=numpy_stream(seed, "compass", "pairs"))
    if not drawn:
        return Diagnosis("surprise", _TITLE, _QUESTION, "not tested", "episodes are too short", {})
    rng = numpy_stream(seed, "compass", "planes")
    drawn_planes = random_frames(trace.episodes[0].latents.shape[1], 2, planes, rng=rng)
    results: dict[str, Any] = {"pairs": len(drawn), "window": WINDOW, "modes": {}}
    nulls: dict[str, Any] = {}
    for mode in MODES:
        results["modes"][mode], nulls[mode] = _one_mode(mode, drawn, dynamics, drawn_planes)
    results["chosen_pair"] = _chosen(trace)
    if frames:  # of both episodes: with `source` and `row` of an edit they are its film
        results["chosen_pair"]["frames"] = {
            name: thumbnails(frames(e.index, np.arange(e.num_rows)))
            for name, e in zip(("own", "donor"), trace.episodes, strict=False)
        }
    results["relocalisation"] = _relocalisation(drawn)
    status, reason = _verdict(results, nulls)
    return Diagnosis("surprise", _TITLE, _QUESTION, status, reason, results, nulls)


def _draw_pairs(trace: Trace, count: int, *, rng: np.random.Generator) -> list[_Pair]:
    found, skip = [], trace.frame_skip
    able = [e for e in trace.episodes if _last_cut(e) >= trace.history * skip]
    if len(able) < 2:
        return []
    for _ in range(count):
        own, donor = (able[i] for i in rng.choice(len(able), 2, replace=False))
        last = min(_last_cut(own), _last_cut(donor))
        steps = np.arange(trace.history * skip, last + 1, skip)
        found.append(_Pair(own, donor, int(rng.choice(steps))))
    return found


def _last_cut(e: EpisodeTrace) -> int:
    """The last step row with room for the reversed window and one step behind it."""
    room = (e.num_steps - 1) * e.frame_skip - WINDOW
    return room // e.frame_skip * e.frame_skip


def _jumps(before: ndarray, after: ndarray, *, k: int) -> dict[str, Float[ndarray, "pairs"]]:
    moved = after - before
    return {
        "theta": np.abs(wrap(plane_angle(after) - plane_angle(before))),
        "progress": np.linalg.norm(moved[:, :k], axis=-1),
        "content": np.linalg.norm(moved[:, k:], axis=-1),
        "latent": np.linalg.norm(moved, axis=-1),
    }


def _plane_jumps(
    before: ndarray, after: ndarray, frames: ndarray
) -> Float[ndarray, "planes pairs"]:
    ends = [plane_angle(np.einsum("nd,pdk->pnk", side, frames)) for side in (before, after)]
    return np.abs(wrap(ends[1] - ends[0]))


def _one_mode(
    mode: str, pairs: list[_Pair], dynamics: Dynamics, frames: ndarray
) -> tuple[dict[str, Any], dict[str, Any]]:
    k, skip = pairs[0].own.k, pairs[0].own.frame_skip
    history = pairs[0].own.history
    clean_ends, cut_ends, windows, actions, seen, clean_errors = [], [], [], [], [], []
    for pair in pairs:
        own, donor, at = pair.own, pair.donor, pair.at
        edit = edit_of(mode, own.num_rows, donor.num_rows, at)
        shown = edit.take(own.latents, donor.latents)
        clean_ends.append(own.latents[[at - 1, at]])
        cut_ends.append(shown[[at - 1, at]])
        # The model is told the actions the episode really took before the cut.
        step = at // skip
        windows.append(shown[np.arange(step - history, step) * skip])
        actions.append(own.actions[step - history : step])
        seen.append(shown[at])
        clean = errors(own.steps[step], own.predicted[step - history], k=k)
        clean_errors.append([clean[name] for name in PREDICTED])
    calm, cut = np.stack(clean_ends), np.stack(cut_ends)
    at_rest, at_cut = _jumps(calm[:, 0], calm[:, 1], k=k), _jumps(cut[:, 0], cut[:, 1], k=k)
    predicted = dynamics.following(np.stack(windows), np.stack(actions))
    at_cut |= errors(np.stack(seen), predicted, k=k)
    at_rest |= dict(zip(PREDICTED, np.array(clean_errors).T, strict=True))
    labels = np.repeat([False, True], len(pairs))
    results = {}
    for name in (*JUMPS, *PREDICTED):
        low, high = at_rest[name], at_cut[name]
        results[name] = {
            "auroc": float(auroc(np.concatenate([low, high]), labels)),
            "share_larger": float((high > low).mean()),
            "clean": _spread(low),
            "cut": _spread(high),
            "ratio_of_medians": float(np.median(high) / max(np.median(low), 1e-12)),
        }
    planes = auroc(
        np.concatenate(
            [
                _plane_jumps(calm[:, 0], calm[:, 1], frames),
                _plane_jumps(cut[:, 0], cut[:, 1], frames),
            ],
            axis=-1,
        ),
        labels,
    )
    flips = _sign_test(at_cut["theta"] - at_rest["theta"])
    nulls = {"random_planes": summary(results["theta"]["auroc"], planes), "sign_test_p": flips}
    if mode == "reverse":
        # Both edges of a reversed window are plain differences between frames WINDOW rows apart.
        drift = [abs(p.own.theta[p.at + WINDOW - 1] - p.own.theta[p.at - 1]) for p in pairs]
        results["ordinary_drift"] = _spread(np.abs(wrap(np.array(drift))))
    return results, nulls


def _spread(values: ndarray) -> dict[str, float]:
    quantiles = np.quantile(values, [0.05, 0.25, 0.5, 0.75, 0.95])
    names = ("p05", "p25", "median", "p75", "p95")
    return dict(zip(names, map(float, quantiles), strict=True)) | {"mean": float(values.mean())}


def _sign_test(gain: Float[ndarray, "pairs"]) -> float:
    """Chance that so many pairs would jump more at the cut if both rows were alike."""
    from scipy.stats import binomtest

    moved = gain[gain != 0]
    if not moved.size:
        return 1.0
    return float(binomtest(int((moved > 0).sum()), moved.size, 0.5, alternative="greater").pvalue)


def _chosen(trace: Trace) -> dict[str, Any]:
    """One pair in full, for the figure and the film."""
    own, donor = trace.episodes[:2]
    skip = trace.frame_skip
    last = min(_last_cut(own), _last_cut(donor))
    at = min(STEP_PUBLISHED, last // 2 // skip * skip if last < STEP_PUBLISHED else STEP_PUBLISHED)
    record: dict[str, Any] = {"own": own.index, "donor": donor.index, "at": at, "modes": {}}
    record["theta_clean"], record["jump_clean"] = own.theta, own.observed_jump
    for mode in MODES:
        edit = edit_of(mode, own.num_rows, donor.num_rows, at)
        theta = np.unwrap(plane_angle(edit.take(own.latents, donor.latents)))
        jump = np.abs(np.diff(theta))
        record["modes"][mode] = {
            "source": edit.source,
            "row": edit.row,
            "cuts": edit.cuts,
            "theta": theta,
            "jump": jump,
            "jump_at_cuts": [float(jump[cut - 1]) for cut in edit.cuts if cut - 1 < len(jump)],
            "times_clean_mean": float(jump[at - 1] / max(own.observed_jump.mean(), 1e-12)),
        }
    return record


def _relocalisation(pairs: list[_Pair]) -> dict[str, Any]:
    """How far theta is from the donor's after a splice: 0, and so it is for any readout."""
    apart = []
    for pair in pairs:
        edit = splice(pair.own.num_rows, pair.donor.num_rows, pair.at)
        shown = plane_angle(edit.take(pair.own.latents, pair.donor.latents))
        donor = plane_angle(pair.donor.latents)[: len(shown)]
        apart.append(np.abs(wrap(shown - donor))[pair.at :].max())
    return {"largest_difference_rad": float(np.max(apart)), "by_construction": True}


def _verdict(results: dict[str, Any], nulls: dict[str, Any]) -> tuple[Status, str]:
    cut = results["modes"]["splice"]
    theta, content, predicted = (
        cut[name]["auroc"] for name in ("theta", "content", "latent_error")
    )
    p_plane = nulls["splice"]["random_planes"]["p"]
    status = judge(
        effect=below(nulls["splice"]["sign_test_p"]),
        control=below(p_plane) and theta >= max(content, predicted),
    )
    reason = (
        f"at {results['pairs']} random splices the angle jumps "
        f"{said(cut['theta']['ratio_of_medians'])} times as far as without a cut (AUROC "
        f"{said(theta)}); the content part has AUROC {said(content)}, the prediction error "
        f"{said(predicted)}, random planes {said(nulls['splice']['random_planes']['mean'])} "
        f"({said_p(p_plane)}). That theta then follows the donor is true of every readout of "
        f"single frames"
    )
    return status, reason
