"""A configuration in; every way it departs from the paper, and every quarrel it settles, out.

The defaults of `config.py` are the paper's values, and the reference's where the paper is silent,
so a departure is a governed key with another value than its rung gives it. Where the paper and its
reference code disagree, each point says which side is taken and why (`quarrels.py`).
"""

from dataclasses import dataclass
from typing import Any, Literal

from sdjepa.config import Config
from sdjepa.quarrels import QUARRELS, Quarrel, value_of
from sdjepa.resolve import RUNGS, known_keys, resolve

# Where files are and how often to write them: no result depends on these.
_FREE_SECTIONS = ("collect", "compass")
_FREE = {
    "data.path",
    "model.action_dim",
    "model.frame_skip",
    "data.frames_on",
    "train.device",
    "train.engine",
    "train.kernels",
    "train.accumulate",
    "train.trackers",
    "train.log_every",
    "train.validate_every",
    "train.checkpoint_every",
    "train.keep_checkpoints",
    "train.diagnose_every",
    "plan.batch",
    "plan.engine",
    "score.workers",
}
# What the paper prints; every other governed value is known from its reference code alone.
_PRINTED = {
    "data.frame_skip",
    "model.image_size",
    "model.patch",
    "model.encoder_width",
    "model.encoder_depth",
    "model.encoder_heads",
    "model.encoder_mlp",
    "model.latent",
    "model.predictor_depth",
    "model.k",
    "model.split",
    "model.polar",
    "objectives.prediction_weight",
    "objectives.sigreg_weight",
    "objectives.triplet_weight",
    "objectives.triplet_on",
    "objectives.triplet_sampler",
    "objectives.straighten_on",
    "train.seed",
    "train.epochs",
    "train.steps",
    "train.batch",
    "train.learning_rate",
    "train.weight_decay",
    "plan.cost",
    "plan.when",
    "plan.solver",
    "plan.candidates",
    "plan.elites",
    "plan.iterations",
    "plan.horizon",
    "score.protocol",
    "score.tasks",
    "score.offset",
    "score.budget",
}
# Extensions: neither the paper nor its code has them.
_NEW = {
    "model.progress_head",
    "objectives.rollout_weight",
    "objectives.rollout_blocks",
    "objectives.progress_head_weight",
    "objectives.triplet_other_share",
    "plan.pull",
    "plan.seconds",
    "plan.correlation",
    "plan.correlated",
    "plan.colour",
    "plan.keep",
    "plan.decay",
    "plan.momentum",
    "plan.temperature",
    "plan.step_size",
    "plan.ahead",
    "plan.engine",
}
# Other values the paper has, where it has several or where its reference differs from it.
_ALSO_PUBLISHED: dict[str, tuple[Any, ...]] = {
    "train.seed": (0, 42, 3072),
    "train.warmup_share": (0.05, 0.0),
    "model.k": (2, 4, 8),
    "model.polar": ("ref", "paper"),
    "objectives.triplet_sampler": ("ref", "paper"),
    "plan.iterations": (30, 10),
}
_IN_WORDS = {"train.steps": "as many as 10 epochs have", "score.protocol": "the rule called lewm"}


@dataclass(frozen=True)
class Departure:
    """One line of `sdjepa train --explain`."""

    key: str  # dotted, or a topic no key governs
    kind: Literal["departs", "disagree"]
    value: Any
    sentence: str


def governed_keys() -> list[str]:
    """Every key whose value the paper or its reference code decides."""
    return [
        key
        for key in known_keys()
        if key not in _FREE and key.partition(".")[0] not in _FREE_SECTIONS
    ]


def explain(config: Config) -> list[Departure]:
    """Departures from the configuration's rung first, then the quarrels it settles."""
    return _departures(config) + [
        _settled(quarrel, config) for quarrel in QUARRELS if quarrel.matters(config)
    ]


def _departures(config: Config) -> list[Departure]:
    rung = config.rung.partition(" ")[0]
    rung = rung if rung in RUNGS else "A2"
    published = resolve(rung=rung)
    found = []
    for key in governed_keys():
        value, expected = value_of(config, key), value_of(published, key)
        alike = (expected,)
        if key in _ALSO_PUBLISHED and expected in _ALSO_PUBLISHED[key]:
            alike = _ALSO_PUBLISHED[key]
        if value in alike and type(value) is type(expected):
            continue
        said = _IN_WORDS.get(key) or " or ".join(str(one) for one in alike)
        if key in _NEW:
            against = "neither the paper nor its reference has it"
        elif key in RUNGS[rung]:
            against = f"the paper's rung {rung} has {said}"
        elif key in _PRINTED:
            against = f"the paper has {said}"
        else:
            against = f"the reference has {said}, the paper does not say"
        found.append(Departure(key, "departs", value, f"{key} is {value}: {against}."))
    return found


def _settled(quarrel: Quarrel, config: Config) -> Departure:
    side, why = quarrel.side(config)
    value = value_of(config, quarrel.key) if "." in quarrel.key else None
    named = quarrel.key if value is None else f"{quarrel.key} = {value}"
    taken = {
        "paper": "the paper's side is taken",
        "reference": "the reference's side is taken",
        "neither": "neither side is taken",
    }[side]
    sentence = f"{named}: paper: {quarrel.paper}; reference: {quarrel.reference}; {taken}: {why}."
    return Departure(quarrel.key, "disagree", value, sentence)
