"""Defaults depart from nothing; any governed key that is changed is named; quarrels take sides."""

from typing import Any

import pytest

from sdjepa.config import Config
from sdjepa.explain import Departure, explain, governed_keys
from sdjepa.quarrels import QUARRELS, value_of
from sdjepa.resolve import RUNGS, known_keys, resolve


def departures(config: Config) -> dict[str, Departure]:
    return {found.key: found for found in explain(config) if found.kind == "departs"}


def sentences(config: Config) -> set[str]:
    return {found.sentence for found in explain(config)}


def with_value(config: Config, key: str, value: Any) -> Config:
    """Unchecked on purpose: some keys may only change together with others."""
    section, leaf = key.split(".")
    changed = getattr(config, section).model_copy(update={leaf: value})
    return config.model_copy(update={section: changed})


@pytest.mark.parametrize("rung", RUNGS)
@pytest.mark.parametrize("k", [2, 4, 8])
def test_a_published_rung_departs_from_nothing(rung: str, k: int):
    assert departures(resolve(rung=rung, k=k)) == {}


def other(value: Any) -> Any:
    if isinstance(value, bool):
        return not value
    return "another" if isinstance(value, str) else value + 1


@pytest.mark.parametrize("key", governed_keys())
def test_any_governed_key_that_is_changed_is_named_with_both_values(key: str):
    default = resolve()
    value = value_of(default, key)
    changed = with_value(default, key, other(value))
    found = departures(changed)
    assert set(found) == {key}
    assert str(other(value)) in found[key].sentence
    if "neither the paper" not in found[key].sentence and key not in (
        "train.steps",
        "score.protocol",
    ):
        assert str(value) in found[key].sentence


def test_what_no_result_depends_on_is_not_governed():
    free = set(known_keys()) - set(governed_keys())
    assert {"data.path", "train.device", "train.log_every"} <= free
    sections = {key.partition(".")[0] for key in free}
    assert sections == {"collect", "compass", "data", "model", "plan", "score", "train"}
    assert {key for key in free if key.startswith("model.")} == {
        "model.action_dim",
        "model.frame_skip",
    }


@pytest.mark.parametrize(
    ("rung", "key", "value", "side"),
    [
        ("A2", "objectives.triplet_sampler", "ref", "the reference's side"),
        ("A2", "objectives.triplet_sampler", "paper", "the paper's side"),
        ("A5", "model.polar", "ref", "the reference's side"),
        ("A5", "model.polar", "paper", "the paper's side"),
        ("A2", "train.warmup_share", 0.05, "the reference's side"),
        ("A2", "train.warmup_share", 0.0, "the paper's side"),
        ("A2", "plan.iterations", 30, "the reference's side"),
        ("A2", "plan.iterations", 10, "the paper's side"),
        ("A2", "plan.iterations", 17, "neither side"),
        ("A2", "data.tail", "full", "neither side"),
        ("A2", "model.action_width", "block", "neither side"),
        ("A2", "objectives.prototype_weight", 0.1, "the reference's side"),
        ("A6", "plan.gamma", 1.0, "the paper's side"),
        ("A2", "score.protocol", "strict", "neither side"),
    ],
)
def test_a_quarrel_says_which_side_the_value_takes(rung: str, key: str, value: Any, side: str):
    config = with_value(resolve(rung=rung), key, value)
    (found,) = [f for f in explain(config) if f.kind == "disagree" and f.key == key]
    assert f"{key} = {value}: " in found.sentence
    assert f"; {side} is taken: " in found.sentence


def test_taking_the_papers_side_is_no_departure():
    for rung, key in (("A2", "objectives.triplet_sampler"), ("A5", "model.polar")):
        assert departures(with_value(resolve(rung=rung), key, "paper")) == {}
    assert "model.polar" in departures(with_value(resolve(), "model.polar", "paper"))


def test_a_quarrel_is_silent_where_it_does_not_matter():
    def topics(rung: str) -> set[str]:
        return {found.key for found in explain(resolve(rung=rung)) if found.kind == "disagree"}

    assert "objectives.triplet_sampler" not in topics("A0")
    assert "model.polar" in topics("A5") - topics("A4")
    assert "plan.gamma" in topics("A6") - topics("A5")
    assert "plan.cost" in topics("progress_only") - topics("A2")
    wide = {found.key for found in explain(resolve(k=8))} - topics("A2")
    assert wide == {"angle"}


def test_every_quarrel_over_a_key_is_over_one_that_exists():
    keyed = {quarrel.key for quarrel in QUARRELS if "." in quarrel.key}
    assert keyed <= set(known_keys())
    assert len({quarrel.key for quarrel in QUARRELS}) == len(QUARRELS)


def test_sentences_are_single_lines_without_environments():
    for rung in RUNGS:
        for sentence in sentences(resolve(rung=rung)):
            assert "\n" not in sentence
            assert sentence.endswith(".")
            assert sentence.isascii()


def test_a_changed_rung_is_measured_against_the_rung_it_started_from():
    config = resolve(rung="A4", settings=["objectives.straighten_weight=0.2"])
    assert config.rung == "A4 with other objectives.straighten_weight"
    found = departures(config)["objectives.straighten_weight"].sentence
    assert found == "objectives.straighten_weight is 0.2: the paper's rung A4 has 0.05."
