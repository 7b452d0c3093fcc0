"""Where the paper and its reference code disagree, and which side a configuration takes.

A list to read: each entry has both sides in plain words. `explain.py` turns it into sentences.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from sdjepa.config import Config

Side = Literal["paper", "reference", "neither"]


@dataclass(frozen=True)
class Quarrel:
    """A point on which the paper and its reference code differ."""

    key: str
    paper: str
    reference: str
    side: Callable[[Config], tuple[Side, str]]  # which side this configuration takes, and why
    matters: Callable[[Config], bool] = lambda config: True


def value_of(config: Config, key: str) -> Any:
    """The value of a dotted key."""
    section, leaf = key.split(".")
    return getattr(getattr(config, section), leaf)


def _always(side: Side, why: str) -> Callable[[Config], tuple[Side, str]]:
    return lambda config: (side, why)


def _by_value(
    key: str, answers: dict[Any, tuple[Side, str]], otherwise: tuple[Side, str]
) -> Callable[[Config], tuple[Side, str]]:
    return lambda config: answers.get(value_of(config, key), otherwise)


def _triplet(config: Config) -> bool:
    return config.objectives.triplet_weight > 0


def _polar(config: Config) -> bool:
    return config.model.polar != "off"


def _angular(config: Config) -> bool:
    return config.plan.cost == "angular"


QUARRELS = (
    Quarrel(
        "prediction loss",
        "a squared norm",
        "the mean over the latent's coordinates, which is smaller by the latent's width",
        _always("reference", "the published weights of the other terms fit the mean"),
    ),
    Quarrel(
        "SIGReg",
        "a statistic of the marginal distribution, without scale or precision",
        "per time step, times the batch size, projected in bfloat16, on each GPU's own batch",
        _always(
            "reference",
            "the weight fits that scale; but in float32 and over the batch of all processes",
        ),
    ),
    Quarrel(
        "objectives.triplet_sampler",
        "many anchors, random positives within a window, negatives outside it or elsewhere",
        "one anchor, the next frame, the same frame of another window, maybe of the same episode",
        _by_value(
            "objectives.triplet_sampler",
            {"ref": ("reference", "it made the published numbers, though it carries no order")},
            ("paper", "far frames of the same window are negatives, so time has an order"),
        ),
        _triplet,
    ),
    Quarrel(
        "objectives.straighten_weight",
        "minus the cosine between successive steps",
        "one minus that cosine",
        _always("reference", "the gradients are the same, and 0 means straight"),
        lambda config: config.objectives.straighten_weight > 0,
    ),
    Quarrel(
        "objectives.prototype_weight",
        "no published rung uses it",
        "on by default, with straightening and polar conditioning, which is no published rung",
        _by_value(
            "objectives.prototype_weight",
            {0.0: ("paper", "a window's ends are arbitrary frames of an episode")},
            ("reference", "the term was asked for"),
        ),
    ),
    Quarrel(
        "objectives.first_anchor_weight",
        "does not state the weight of this attempt",
        "0.1, the default of another term",
        _always("reference", "there is no other number"),
        lambda config: config.objectives.first_anchor_weight > 0,
    ),
    Quarrel(
        "model.polar",
        "angle and radius are embedded and added, and no parameter is new",
        "they are concatenated and a new layer mixes them, 37,632 parameters at the paper's size",
        _by_value(
            "model.polar",
            {"ref": ("reference", "it is what was trained")},
            ("paper", "as written, though embedding three numbers needs weights too"),
        ),
        _polar,
    ),
    Quarrel(
        "polar features",
        "sine, cosine and radius",
        "the same through atan2, whose gradient is undefined at radius 0",
        _always("neither", "the same values, made so that the gradient is finite everywhere"),
        _polar,
    ),
    Quarrel(
        "angle",
        "the one-dimensional readout of the progress part",
        "made of the first two of its coordinates, while the radius is made of all",
        _always("reference", "the radius of the angle's own plane is reported beside it"),
        lambda config: config.model.k > 2,
    ),
    Quarrel(
        "model.action_width",
        "does not say",
        "10 for every environment, which squeezes wider action blocks",
        _by_value(
            "model.action_width",
            {"ref": ("reference", "it made the published numbers")},
            ("neither", "as wide as the action block, so nothing is squeezed"),
        ),
    ),
    Quarrel(
        "parameter count",
        "18.04 million, the same for every rung",
        "18.03 million trainable; 18.04 with BatchNorm's statistics; more with polar conditioning",
        _always("reference", "the paper counts what is stored, not what is trained"),
    ),
    Quarrel(
        "train.warmup_share",
        "a cosine over all epochs",
        "a linear warm-up over a twentieth of the steps first, from a rate of 0",
        lambda config: (
            ("paper", "no warm-up was asked for")
            if config.train.warmup_share == 0
            else ("reference", "it is what was trained")
        ),
    ),
    Quarrel(
        "train.seed",
        "several seeds of training",
        "the seed decides split and shuffling; initial weights are not seeded",
        _always("paper", "one seed decides every random draw"),
    ),
    Quarrel(
        "data split",
        "diagnostics on held-out episodes",
        "a random 90/10 split over overlapping windows, so no episode is held out",
        _always("paper", "whole episodes are held out before training"),
    ),
    Quarrel(
        "data.tail",
        "does not say",
        "windows keep room for a last action block nobody reads, so four frames are never seen",
        _by_value(
            "data.tail",
            {"ref": ("reference", "it gives the published number of windows")},
            ("neither", "every frame is seen"),
        ),
    ),
    Quarrel(
        "action normaliser",
        "does not say",
        "two: one for training, one for planning, both over all rows",
        _always("neither", "one, over training episodes, saved with the checkpoint"),
    ),
    Quarrel(
        "plan.iterations",
        "30 in one environment, 10 in the other three",
        "30 everywhere",
        _by_value(
            "plan.iterations",
            {
                30: ("reference", "it is the larger search, and what the code runs"),
                10: ("paper", "as in three of its four environments"),
            },
            ("neither", "another number was asked for"),
        ),
    ),
    Quarrel(
        "plan.gamma",
        "the angular rung plans with an angular and a radial cost, weights unsaid",
        "1.0 and 0.1 stand in a file its evaluation never reads, so it plans without them",
        _always("paper", "the weights are applied and written into every score"),
        _angular,
    ),
    Quarrel(
        "plan.cost",
        "reports planning on the progress part alone",
        "has no code for it",
        _always("paper", "the cost exists"),
        lambda config: config.plan.cost == "progress",
    ),
    Quarrel(
        "score.protocol",
        "does not say which episodes tasks are drawn from",
        "draws starts and goals from the training file, and never its last admissible row",
        _by_value(
            "score.protocol",
            {"lewm": ("reference", "it makes scores comparable with published ones")},
            ("neither", "tasks come from held-out episodes and none is solved by doing nothing"),
        ),
    ),
    Quarrel(
        "solved tasks",
        "does not say",
        "an environment that succeeds is reset and planned for until the budget ends",
        _always("neither", "a solved task stops there, and each task has its own random stream"),
    ),
)
