"""Latents of held-out episodes in; how often they say which of two frames came first, out.

0.5 is chance. The angle has no preferred sense of rotation, so its accuracy is given twice: with
the sense that suits each episode best, which is above 0.5 even for noise and so stands beside two
nulls treated the same way; and with the sense the *other* episodes suggest, for which 0.5 is
chance. The best linear direction of the progress part is fitted on the other episodes too.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int
from numpy import ndarray
from numpy.random import Generator

from sdjepa.compass.nulls import bootstrap_mean, phase_randomised, random_frames, summary
from sdjepa.compass.result import Diagnosis, below, judge, said, said_p
from sdjepa.compass.trace import Trace, plane_angle
from sdjepa.errors import UserError
from sdjepa.seeds import numpy_stream

_TITLE = "Does the progress part know before from after?"
_QUESTION = "Shown two frames of an unseen episode, does it say which came first?"
MAX_GAP = 8
RIDGE = 1e-6  # of the mean variance: only there to make a constant coordinate harmless


def order(trace: Trace, *, seed: int) -> Diagnosis:
    """The paper's claim that the triplet orders frames in time, on episodes the model never saw."""
    rng = numpy_stream(seed, "compass", "order")
    gap = min(MAX_GAP, min(e.num_steps for e in trace.episodes) - 1)
    found = order_accuracy([e.steps for e in trace.episodes], k=trace.k, rng=rng, max_gap=gap)
    records = found.as_json(rng=rng)
    theta, linear = found.theta_best_sense.mean(), found.linear.mean()
    common = found.theta_common_sense.mean()
    nulls = {
        "phase_randomised": summary(float(theta), found.phase_null.mean(-1)),
        "random_planes": summary(float(theta), found.plane_null.mean(-1)),
        "random_directions": summary(float(linear), found.linear_null.mean(-1)),
    }
    reason = (
        f"over pairs 1 to {gap} model steps apart the angle, read in the sense that suits each "
        f"episode best, is right {said(theta)} of the time (smooth chance "
        f"{said(nulls['phase_randomised']['mean'])}, {said_p(nulls['phase_randomised']['p'])}; "
        f"random planes {said(nulls['random_planes']['mean'])}, "
        f"{said_p(nulls['random_planes']['p'])}); in the sense other episodes suggest "
        f"{said(common)} (chance 0.50); the best line through the progress part "
        f"{said(linear)} (equally many random directions "
        f"{said(nulls['random_directions']['mean'])}, {said_p(nulls['random_directions']['p'])})"
    )
    status = judge(
        effect=below(nulls["phase_randomised"]["p"]), control=below(nulls["random_planes"]["p"])
    )
    results = {
        "gaps": records,
        "theta_best_sense": theta,
        "theta_common_sense": common,
        "linear": linear,
    }
    return Diagnosis("order", _TITLE, _QUESTION, status, reason, results, nulls)


@dataclass(frozen=True)
class OrderAccuracy:
    """Share of pairs put in the right order, per episode and gap, with what chance would give."""

    gaps: Int[ndarray, "gaps"]  # steps between the two frames
    theta_best_sense: Float[ndarray, "episodes gaps"]
    theta_common_sense: Float[ndarray, "episodes gaps"]
    linear: Float[ndarray, "episodes gaps"]
    phase_null: Float[ndarray, "draws gaps"]  # of theta_best_sense, mean over episodes
    plane_null: Float[ndarray, "draws gaps"]  # the same for random planes of the whole latent
    linear_null: Float[ndarray, "draws gaps"]  # of linear, for k random directions

    def as_json(self, *, rng: Generator) -> list[dict[str, object]]:
        """One record per gap: means over episodes, bootstrap intervals, and their nulls."""
        records = []
        for at, gap in enumerate(self.gaps):
            best = float(self.theta_best_sense[:, at].mean())
            linear = float(self.linear[:, at].mean())
            records.append(
                {
                    "gap": int(gap),
                    "theta_best_sense": best,
                    "theta_best_sense_ci95": bootstrap_mean(self.theta_best_sense[:, at], rng=rng),
                    "against_phase_randomised": summary(best, self.phase_null[:, at]),
                    "against_random_planes": summary(best, self.plane_null[:, at]),
                    "theta_common_sense": float(self.theta_common_sense[:, at].mean()),
                    "theta_common_sense_ci95": bootstrap_mean(
                        self.theta_common_sense[:, at], rng=rng
                    ),
                    "linear": linear,
                    "linear_ci95": bootstrap_mean(self.linear[:, at], rng=rng),
                    "against_random_directions": summary(linear, self.linear_null[:, at]),
                }
            )
        return records


def pair_accuracy(
    scores: Float[ndarray, "*batch time"], gaps: Int[ndarray, "gaps"]
) -> Float[ndarray, "*batch gaps"]:
    """Share of pairs a gap apart whose later frame scores higher; a tie counts half."""
    rises = [np.sign(scores[..., gap:] - scores[..., :-gap]).mean(-1) for gap in gaps]
    return 0.5 + 0.5 * np.stack(rises, axis=-1)


def best_sense(accuracy: Float[ndarray, "*batch gaps"]) -> Float[ndarray, "*batch gaps"]:
    """The same read backwards where that is right more often over all gaps together.

    One sense for an episode: choosing it anew for every gap would flatter more.
    """
    backwards = accuracy.mean(-1, keepdims=True) < 0.5
    return np.where(backwards, 1 - accuracy, accuracy)


def common_sense(accuracy: Float[ndarray, "episodes gaps"]) -> Float[ndarray, "episodes gaps"]:
    """Each episode read in the sense the other episodes suggest, so 0.5 is chance.

    Where the others are exactly divided there is no suggestion, and the answer is chance itself.
    """
    lean = accuracy.mean(-1) - 0.5
    others = lean.sum() - lean
    sense = np.where(np.abs(others) > 1e-9, np.sign(others), 0.0)
    return 0.5 + sense[:, None] * (accuracy - 0.5)


def linear_scores(
    features: Sequence[Float[ndarray, "time dim"]],
) -> list[Float[ndarray, "time"]]:
    """Each episode along the direction that best follows time in the other episodes.

    Features and time are centred within each episode: only differences can order a pair.
    """
    centred = [x - x.mean(0) for x in features]
    clocks = [np.linspace(-1, 1, len(x)) for x in features]
    grams = np.stack([x.T @ x for x in centred])
    pulls = np.stack([x.T @ clock for x, clock in zip(centred, clocks, strict=True)])
    gram, pull = grams.sum(0) - grams, pulls.sum(0) - pulls
    width = gram.shape[-1]
    ridge = RIDGE * np.trace(gram, axis1=1, axis2=2)[:, None, None] / width + 1e-30
    found = np.linalg.solve(gram + ridge * np.eye(width), pull[..., None])[..., 0]
    return [x @ direction for x, direction in zip(features, found, strict=True)]


def order_accuracy(
    episodes: Sequence[Float[ndarray, "time latent"]],
    *,
    k: int,
    rng: Generator,
    max_gap: int = 8,
    draws: int = 199,
) -> OrderAccuracy:
    """Do theta and the progress part (the first k coordinates) order the steps of these episodes?

    Episodes must be ones the model was not trained on; `latents` are those of the model's steps.
    """
    kept = [np.asarray(z, np.float64) for z in episodes if len(z) > max_gap]
    if len(kept) < 2 or k < 2:
        raise UserError(
            f"{len(kept)} episodes are longer than {max_gap} steps and k is {k}; ordering needs "
            "two such episodes and k >= 2: trace more episodes or lower the largest gap"
        )
    gaps = np.arange(1, max_gap + 1)
    angles = [np.unwrap(plane_angle(z[:, :k])) for z in kept]
    accuracy = np.stack([pair_accuracy(theta, gaps) for theta in angles])
    phase = [pair_accuracy(phase_randomised(theta, draws, rng=rng), gaps) for theta in angles]
    planes = random_frames(kept[0].shape[1], 2, draws, rng=rng)
    turned = [np.unwrap(plane_angle(z @ planes)) for z in kept]  # draws, time
    plane = [pair_accuracy(theta, gaps) for theta in turned]
    frames = random_frames(kept[0].shape[1], k, draws, rng=rng)
    return OrderAccuracy(
        gaps=gaps,
        theta_best_sense=best_sense(accuracy),
        theta_common_sense=common_sense(accuracy),
        linear=_linear_accuracy([z[:, :k] for z in kept], gaps),
        phase_null=best_sense(np.stack(phase)).mean(0),
        plane_null=best_sense(np.stack(plane)).mean(0),
        linear_null=np.stack(
            [_linear_accuracy([z @ frame for z in kept], gaps).mean(0) for frame in frames]
        ),
    )


def _linear_accuracy(
    features: Sequence[Float[ndarray, "time dim"]], gaps: Int[ndarray, "gaps"]
) -> Float[ndarray, "episodes gaps"]:
    return np.stack([pair_accuracy(scores, gaps) for scores in linear_scores(features)])
